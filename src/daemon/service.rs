//! One service: its task feeds events to the election, and has the election's actions carried out.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
};

pub use super::host::Host;
use super::{
    local::machine::{Task, Timer},
    store_access::hints::Bell,
    units::UnitControl,
};
use crate::{
    config::ServiceSettings,
    election::{self, Election, Event, GuardRequest, Memory, Moment, ObservedUnit, State, Step},
    facts::{
        At, Bar, LapseCause, Retirement, ServiceState, StepDown,
        alarm::{Alarm, AlarmKind, Problem},
    },
    guard_client::frame::ListedLease,
    store::Link as StoreLink,
    systemd::OutsideWork,
    task::OwnedTask,
    types::{Incarnation, ServiceName, span::milliseconds},
};

mod actions;
mod admission;
mod alarms;
mod bars;
mod drained;
mod guard_queue;
mod health;
mod inbox;
mod lookout;
mod orders;
mod registration;
mod run_tracker;
mod seen;
mod status;

use actions::Work;
use admission::{admit, not_admitted};
use alarms::Failures;
use bars::{BarSource, Bars};
use guard_queue::GuardQueue;
pub(super) use guard_queue::without_file;
use health::{CheckRole, Checks};
use inbox::{Answer, Looked, Message};
pub use inbox::{Inbox, OperatorRequest, Said, ServiceOrder};
use lookout::{watch_outside, watch_units};
use run_tracker::RunTracker;
use seen::LastLook;
use status::Display;
pub use status::of_settings;
#[cfg(test)]
pub(super) use status::unknown;

/// Limit of the requests that wait for the guard.
const GUARD_LIMIT: usize = 32;
/// How long a loop without events takes to show that it lives: where it waits for something, and at rest, where a thousand loops would
/// else cost several times as much as their renewals.
const HEARTBEAT: Duration = Duration::from_secs(1);
const HEARTBEAT_AT_REST: Duration = Duration::from_secs(4);
/// How much later than it is due a renewal may be made, so that it is with those of other services: by this part of R.
const LATENESS_SHARE: u32 = 64;

/// A running service.
pub struct Handle {
    /// The settings that it runs with.
    pub settings: Arc<ServiceSettings>,
    /// Takes orders for the service.
    pub orders: Inbox,
    /// The status that the service shows.
    pub status: watch::Receiver<ServiceState>,
    /// When the loop last made progress, in milliseconds of `CLOCK_BOOTTIME`, for the supervisor's watchdog.
    pub progress: Arc<AtomicU64>,
    /// Ends when the service has retired, and not before.
    pub task: JoinHandle<()>,
}

/// Starts a service's task. `kept` is the lease of the service that the guard remembers: it may cover units that the configuration names
/// no longer, and control groups that its units have left. `broken`: why the service's file is broken, in words for the operator, if it
/// is; the settings are then the former ones, for this lease alone. `changed` is notified when the status changes. `Err`: no timer could
/// be made.
pub fn spawn(
    host: &Host,
    settings: Arc<ServiceSettings>,
    kept: Option<&ListedLease>,
    broken: Option<String>,
    changed: Arc<Notify>,
) -> std::io::Result<Handle> {
    let (status, shown) = watch::channel(status::unknown(&settings, At::new(host.machine.wall())));
    let progress = Arc::new(AtomicU64::new(milliseconds(host.machine.now().boot)));
    host.metrics.show(&settings.name, shown.clone());
    let display = Display {
        status,
        changed,
        ahead: Duration::ZERO,
        unreadable: None,
        settings: of_settings(&settings),
    };
    let mut service = Service::new(host, &settings, kept, display, &progress)?;
    let broken = broken.map(|error| Bar::Broken { error });
    service.bars.set(BarSource::File, broken);
    if kept.is_some_and(|kept| kept.lapsed) {
        service.raise(Problem::Lapsed {
            cause: LapseCause::EndedWhileAway.to_string(),
        });
    }
    Ok(Handle {
        settings,
        orders: service.inbox.clone(),
        status: shown,
        progress,
        task: host.machine.spawn(Box::pin(Box::new(service).run())),
    })
}

struct Service {
    host: Host,
    settings: Arc<ServiceSettings>,
    /// The same settings, for the tasks that go on over a reload.
    shown: watch::Sender<Arc<ServiceSettings>>,
    election: Election,
    units: UnitControl,
    /// Where the service's tasks send what they have to tell, and the receiving end.
    inbox: Inbox,
    messages: mpsc::Receiver<Box<Message>>,
    timer: Box<dyn Timer>,
    links: Links,
    guard_queue: mpsc::Sender<Box<GuardRequest>>,
    /// What is under way for the election.
    work: Work,
    /// What the last look at the units has shown.
    seen: LastLook,
    /// What keeps the service from being started, or from going on.
    bars: Bars,
    /// When the service is handed over because the host is drained.
    turn: drained::Turn,
    checks: Checks,
    failures: Failures,
    display: Display,
    /// What the history of the lock gets.
    runs: RunTracker,
    /// The step-down that the record has asked for, and that is looked into.
    asked: Option<election::Order>,
    /// Once the service retires: why.
    retiring: Option<Retirement>,
    /// The store that this host knew before the present one, which its memory still names.
    left_store: Option<Incarnation>,
    /// Tasks that end with the service.
    _helpers: Vec<OwnedTask>,
    progress: Arc<AtomicU64>,
}

/// The connections to the store and the guard.
struct Links {
    store: watch::Receiver<StoreLink>,
    guard: watch::Receiver<bool>,
    /// How often the store's answers were seen to be forged, when this was last looked at.
    forgeries: u64,
    /// Rings when one of the two links has changed, and when the lock may have.
    bell: Arc<Bell>,
    /// Whether the lease that the guard remembers is for other units than those of the settings.
    units_changed: bool,
}

/// Why nothing is started until there is a first answer.
const UNASKED: &str = "systemd and the store are being asked about its units";

impl Service {
    fn new(
        host: &Host,
        settings: &Arc<ServiceSettings>,
        kept: Option<&ListedLease>,
        display: Display,
        progress: &Arc<AtomicU64>,
    ) -> std::io::Result<Self> {
        let (inbox, messages) = Inbox::new();
        let (guard_queue, requests) = mpsc::channel(GUARD_LIMIT);
        let (looked, sees) = watch::channel(false);
        let mut bars = Bars::default();
        let observes = settings.observes();
        if observes {
            bars.set(BarSource::Mode, Some(Bar::Observed { runs: false }));
        } else {
            bars.set(BarSource::Admission, Some(not_admitted(&UNASKED)));
            let error = UNASKED.to_owned();
            bars.set(BarSource::Entry, Some(Bar::EntryUnknown { error }));
        }
        let armed = kept.map(guard_queue::armed);
        let machine = &host.machine;
        let (units, units_changed) = guard_queue::control(host, settings, armed.as_ref());
        let work = Work::default();
        let memory = if observes {
            Memory::default()
        } else {
            machine.recall(&settings.name, &settings.key)
        };
        let election = Election::new(
            settings.election(host.node.clone(), host.machine_id),
            memory,
            kept.map(guard_queue::remembered),
            machine.now(),
        );
        let (shown, current) = watch::channel(Arc::clone(settings));
        let queue = GuardQueue {
            service: settings.name.clone(),
            node: host.node.clone(),
            guard: host.guard.clone(),
            units: units.clone(),
            settings: current.clone(),
            armed,
            forgotten: None,
        };
        let (epoch, current, to) = (
            Arc::clone(&work.epoch),
            || current.clone(),
            || inbox.clone(),
        );
        let mut tasks: Vec<Task> = vec![Box::pin(watch_units(
            units.clone(),
            current(),
            epoch,
            to(),
            looked,
        ))];
        if !observes {
            tasks.extend::<[Task; 4]>([
                Box::pin(queue.run(requests, to())),
                Box::pin(watch_outside(units.clone(), current(), sees, to())),
                Box::pin(admit(host.clone(), units.clone(), current(), to())),
                Box::pin(registration::keep_looking(host.clone(), current(), to())),
            ]);
        }
        let mut service = Self {
            timer: machine.timer()?,
            links: Links {
                store: host.store.link(),
                guard: host.guard.link(),
                forgeries: host.store.link().borrow().forgeries,
                bell: host.hints.of(&settings.key),
                units_changed,
            },
            checks: Checks::default(),
            failures: Failures::default(),
            runs: RunTracker::new(&host.history, &settings.key, &host.node),
            _helpers: tasks
                .into_iter()
                .map(|task| machine.spawn(task).into())
                .collect(),
            host: host.clone(),
            settings: Arc::clone(settings),
            shown,
            election,
            units,
            inbox,
            messages,
            guard_queue,
            work,
            seen: LastLook::default(),
            bars,
            turn: drained::Turn::default(),
            display,
            asked: None,
            retiring: None,
            left_store: None,
            progress: Arc::clone(progress),
        };
        service.check_health(true);
        Ok(service)
    }

    async fn run(mut self: Box<Self>) {
        self.links.store.mark_changed();
        self.links.guard.mark_changed();
        self.handle(Event::Timeout);
        self.follow_links();
        while !self.is_over() {
            self.follow_drain();
            self.contend();
            self.set_timer();
            let message = tokio::select! {
                biased;
                () = poll_fn(|context| self.timer.poll_fired(context)) => Message::Event(Event::Timeout),
                Some(message) = self.messages.recv() => *message,
                // The lock may have changed, or a connection.
                is_hint = self.links.bell.rings() => if is_hint { Message::Event(Event::Hint) } else { Message::Wake },
            };
            // A proof that is there is taken before any other event, and makes what was seen before it invalid.
            if self.work.proven.swap(false, Ordering::AcqRel) {
                self.handle(Event::Stopped);
            }
            // Where the guard is gone, that is why its units have ended.
            self.follow_links();
            if let Some(event) = self.take(message) {
                self.handle(event);
            }
            if let Some(event) = self.obey_record() {
                self.handle(event);
            }
            let now = milliseconds(self.host.machine.now().boot);
            self.progress.store(now, Ordering::Release);
        }
        self.show();
        log_dropped(&self.settings.name, self.unwritten().as_deref());
    }

    /// Whether the service has retired. One that is only observed has nothing to end before.
    fn is_over(&self) -> bool {
        self.election.state() == State::Retired
            || self.settings.observes() && self.retiring.is_some()
    }

    /// Tells the election what keeps this host from taking part, or from going on, and when nothing does any more.
    fn contend(&mut self) {
        if let Some(news) = self.bars.news(self.may_run(), self.ends_tenure()) {
            self.handle(Event::Contend(news));
        }
    }

    /// Takes a message. Returns the event that follows from it for the election, if any.
    fn take(&mut self, message: Message) -> Option<Event> {
        match message {
            Message::Event(event) => return Some(event),
            Message::Read(event, unreadable) => {
                if unreadable != self.display.unreadable {
                    unreadable.iter().for_each(|why| tracing::warn!("{why}"));
                    self.display.unreadable = unreadable;
                }
                return Some(event);
            }
            Message::Looked(look) => return self.observe(look),
            Message::Order(order) => return Some(self.take_order(order)),
            Message::Outside(outside) => self.judge_outside(&outside),
            Message::Bar(BarSource::Entry, bar) => self.register(bar),
            Message::Bar(source, bar) => {
                if let (BarSource::Admission, Some(bar)) = (source, &bar) {
                    self.log_refusal(bar);
                }
                self.bars.set(source, bar);
                self.show();
            }
            Message::StopFailed(why) => self.stop_has_failed(why),
            Message::Turn => self.turn.comes(),
            Message::Wake => {}
        }
        None
    }

    fn observe(&mut self, look: Looked) -> Option<Event> {
        if look.epoch != self.work.epoch.load(Ordering::Acquire) {
            return None;
        }
        if look.host_stops {
            self.bars.set(BarSource::Shutdown, Some(Bar::ShuttingDown));
            self.contend();
        }
        if look.units.main.is_none() {
            self.handle(Event::SystemdSilent {
                nothing_left: look.units.nothing_left,
            });
        }
        let unit = self.judge(look.units)?;
        self.log_end(&unit);
        self.failures.only_tries |= matches!(unit, ObservedUnit::Failing(_));
        Some(Event::Unit(unit))
    }

    /// Tells the election of changes of the connections to the store and the guard. The bell wakes the loop when one has
    /// changed, and both are looked at after each wake-up.
    fn follow_links(&mut self) {
        // The senders are the host's, and last as long as it does.
        if self.links.store.has_changed().is_ok_and(|changed| changed) {
            let link = self.links.store.borrow_and_update().clone();
            if link.forgeries > std::mem::replace(&mut self.links.forgeries, link.forgeries) {
                self.raise(Problem::ForgedAnswer);
                self.handle(Event::Forged);
            }
            self.handle(match link.down {
                None => Event::StoreUp,
                Some(_) => Event::StoreDown,
            });
        }
        if self.links.guard.has_changed().is_ok_and(|changed| changed) {
            let is_up = *self.links.guard.borrow_and_update();
            if !is_up && self.may_run() {
                let now = self.host.machine.wall().as_secs();
                let alarm = Alarm::new(None, Problem::GuardLost, now);
                self.host.alarms.add(alarm, None);
            }
            self.handle(if is_up {
                Event::GuardUp
            } else {
                Event::GuardDown
            });
            if is_up
                && std::mem::take(&mut self.links.units_changed)
                && self.election.state() == State::Active
            {
                // This is as at a reload: the old units are stopped under the old lease, and the new units run under the
                // next one.
                self.handle(Event::StepDown(StepDown::UnitsChanged));
            }
        }
    }

    /// Takes over what the entries of the units say, and raises the alarm of a refusal. A service that was cleared stays so while
    /// the store does not answer.
    fn register(&mut self, bar: Option<Bar>) {
        if matches!(bar, Some(Bar::EntryUnknown { .. })) && !self.bars.has(BarSource::Entry) {
            return;
        }
        let before = self.bars.set(BarSource::Entry, bar.clone());
        if self.left_store.is_some() {
            self.keep(self.election.memory().clone());
        }
        if let Some(Bar::OtherLock { error }) = bar {
            self.raise(Problem::OtherLock { reason: error });
        } else if let (Some(Bar::OtherLock { .. }), None) = (before, bar) {
            // Another store was meant, as an operator has said, and so its revisions are others.
            self.clear(AlarmKind::Regression);
        }
    }

    /// Keeps what the election has to remember. Once it is settled that the unit is run in the present store, the place that the lock had in
    /// the one that this host has left is forgotten, so that the next putexd is not told again that the store is another one. It knows as
    /// much then as a new host.
    fn keep(&self, mut memory: Memory) {
        let is_settled = !self.bars.has(BarSource::Entry);
        memory
            .position
            .take_if(|(store, _)| is_settled && self.left_store.as_ref() == Some(store));
        self.host.machine.keep(&self.settings, memory);
    }

    /// Whether the unit runs here, and goes on if nobody asks for anything.
    fn runs_unit(&self) -> bool {
        matches!(self.election.state(), State::Starting | State::Active)
    }

    /// Whether its tenure is on its way to its end.
    fn ends_tenure(&self) -> bool {
        matches!(self.election.state(), State::Releasing | State::Lapsing)
    }

    /// Whether a unit may run in the present state.
    fn may_run(&self) -> bool {
        self.runs_unit() || self.ends_tenure()
    }

    /// Gives one event to the election, and has all that follows from it carried out. It never waits.
    fn handle(&mut self, event: Event) {
        if event == Event::Stopped {
            self.work.begin_epoch();
            self.runs.note_death(At::new(self.host.machine.wall()));
        }
        if let Event::Answered {
            step: Step::Start,
            result: Ok(()),
            ..
        } = &event
        {
            self.failures.last = None;
            self.work.begin_epoch();
        }
        if let Event::StandbyCheck(verdict) = &event {
            self.note_verdict(CheckRole::Standby, verdict);
        }
        if let Event::ActiveCheck(verdict) = &event {
            self.note_verdict(CheckRole::Active, verdict);
        }
        let machine = &self.host.machine;
        let moment = Moment {
            now: machine.now(),
            wall: machine.wall(),
            random: machine.random(),
        };
        for action in self.election.handle(&moment, event) {
            self.carry_out(action);
        }
        self.check_health(false);
        self.settle_alarms(moment.now);
        self.show();
    }

    /// Sets the timer to what the election has to do next, or to the next heartbeat if that comes first.
    fn set_timer(&self) {
        let rests = matches!(self.election.state(), State::Standby | State::Active)
            && self.seen.alive.is_empty();
        let heartbeat = if rests { HEARTBEAT_AT_REST } else { HEARTBEAT };
        let beat = self.host.machine.now().boot + heartbeat;
        let due = self.election.poll_timeout();
        let at = due.map_or(beat, |at| at.boot.min(beat));
        // Renewals may be late. What another host waits for, or what has a deadline, may not.
        let is_renewal = self.election.state() == State::Active
            && self.election.deadline().is_some_and(|end| at < end.boot);
        let lateness = if is_renewal {
            self.settings.timings.renew_interval / LATENESS_SHARE
        } else {
            Duration::ZERO
        };
        if let Err(error) = self.timer.set(at, lateness) {
            // This is no reason to end: the guard has a timer of its own, and the watchdog ends a loop that stands still.
            tracing::error!("failed to set a timer: {error}");
        }
    }

    fn take_order(&mut self, order: ServiceOrder) -> Event {
        match order {
            ServiceOrder::Retire(because) => {
                self.retiring = Some(because);
                Event::Retire(because)
            }
            ServiceOrder::TryAgain => Event::TryAgain,
            ServiceOrder::Request(request, answer) => self.take_request(request, answer),
            ServiceOrder::Reconfigure(settings) => {
                let changed = settings.health != self.settings.health;
                self.display.settings = of_settings(&settings);
                self.settings = settings;
                self.units.require(self.settings.stop_proof);
                // The file is good, and the administrator may have mended what let processes leave their control groups.
                self.bars.set(BarSource::File, None);
                self.bars.set(BarSource::Outside, None);
                self.shown.send_replace(Arc::clone(&self.settings));
                self.check_health(changed);
                self.handle(Event::Reconfigure(
                    self.settings
                        .election(self.host.node.clone(), self.host.machine_id),
                ));
                Event::TryAgain
            }
        }
    }

    /// Tells of work outside of the units' control groups. It ends the lease, because no stop reaches it, and no empty control group
    /// shows that it is gone. What was seen so far is part of the proof.
    fn judge_outside(&mut self, outside: &[OutsideWork]) {
        let Some(first) = outside
            .first()
            .filter(|_| !self.bars.has(BarSource::Outside))
        else {
            return;
        };
        let work = first.in_words();
        let error = format!(
            "{}, or set stop-proof = \"unit-only\", then run \"systemctl reload putexd\": {} had work outside of its control group: {work}",
            first.remedy(),
            self.settings.unit
        );
        self.raise(Problem::LeftControlGroup { work });
        self.bars
            .set(BarSource::Outside, Some(Bar::Outside { error }));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.host.cgroup_owners.remove(&self.settings.name);
        self.host.alarms.forget(&self.settings.name);
    }
}

/// Says that a word of an operator ends with this putexd, or with the service.
pub fn log_dropped(service: &ServiceName, unsaid: Option<&str>) {
    if let Some(word) = unsaid {
        tracing::warn!(
            "{service}: say it again: {word}: it is not in the lock's record, and is dropped"
        );
    }
}

#[cfg(test)]
mod tests;
