//! One service: its task feeds events to the election, and has the election's actions carried out.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OnceCell, mpsc, watch};
use tokio::task::JoinHandle;

use super::alarms::Alarms;
use super::beyond::Outside;
use super::guard_queue::GuardQueue;
use super::health::{Checker, Role};
use super::hints::{Bell, Ring};
pub use super::host::Host;
use super::inbox::{Admission, Inbox, Looked, Refusal, Standpoint, Told};
pub use super::inbox::{Answer, Order, Orders};
use super::machine::{Task, Timer};
use super::registration::{self, Adoptions};
use super::restarts::Restarts;
use super::run_tracker::RunTracker;
use super::tidings::Standing;
use super::unit_control::{self, ObservedUnits, UnitControl};
use crate::cluster::request::Unmet;
use crate::config::{ServiceSettings, StopProof};
use crate::election::{self, Election, Event, GuardDone, GuardRequest, Moment, ObservedUnit, State};
use crate::guard_client::Link as GuardLink;
use crate::journal;
use crate::metrics::OfService;
use crate::store::Link as StoreLink;
use crate::systemd::CheckUser;
use crate::task::OwnedTask;
use crate::types::{Incarnation, Revision, ServiceName, Time, UnitName};

mod actions;
mod admission;
mod alarms;
mod drained;
mod inherited;
mod lookout;
mod status;
mod tell;
mod words;

use actions::Unreadable;
use admission::{Admitter, admit};
pub use inherited::InheritedLease;
pub(super) use inherited::without_file;
use lookout::{watch_outside, watch_units};
pub use status::Status;

/// Limit of the requests that wait for the guard.
const GUARD_LIMIT: usize = 32;
/// How long a loop without events takes to show that it lives: where it waits for something, and at rest.
const HEARTBEAT: Duration = Duration::from_secs(1);
const HEARTBEAT_AT_REST: Duration = Duration::from_secs(4);
/// How much later a due timer may fire, where there are many services: by this part of R at rest, and by `LATENESS_LIMIT`
/// while something is under way. The latter is half of the slack of scheduling ε (20 ms) that the protocol allows.
const LATENESS_SHARE: u32 = 64;
const LATENESS_LIMIT: Duration = Duration::from_millis(10);
/// The same for a turn (taking, K2), of which the shortest last 30 ms.
const LATENESS_OF_A_TURN: Duration = Duration::from_millis(2);
/// How many processes outside of their control groups are named.
const STRAYS_SHOWN: usize = 3;

/// What has woken a service's loop.
enum Woken {
    Due,
    Told(Box<Told>),
    Rung(Ring),
}

/// A running service.
pub struct Handle {
    /// The settings that it runs with.
    pub settings: Arc<ServiceSettings>,
    /// Takes orders for the service.
    pub orders: Orders,
    /// The status that the service shows.
    pub status: watch::Receiver<Status>,
    /// A counter that grows as long as the loop makes progress, for the supervisor's watchdog.
    pub progress: Arc<AtomicU64>,
    /// Ends when the service has retired, and not before.
    pub task: JoinHandle<()>,
}

/// Starts a service's task. `kept` is the lease of the service that the guard remembers, and `changed` is notified when the
/// status changes. `Err`: no timer could be made.
pub fn spawn(
    host: &Host,
    settings: Arc<ServiceSettings>,
    kept: Option<InheritedLease>,
    changed: Arc<Notify>,
) -> std::io::Result<Handle> {
    let (status, shown) = watch::channel(Status::unknown(host.machine.wall().as_secs()));
    let progress = Arc::new(AtomicU64::new(0));
    let has_lapsed = kept.as_ref().is_some_and(|kept| kept.remembered.lapsed);
    let service = Service::new(host, Arc::clone(&settings), kept, status, Arc::clone(&progress), changed)?;
    if has_lapsed {
        service.raise(journal::Alarm::Lapsed, "putexd has not renewed it before its deadline, and the guard ended it");
    }
    let orders = Orders::to(service.inbox.clone());
    let task = host.machine.spawn(Box::pin(Box::new(service).run()));
    Ok(Handle { settings, orders, status: shown, progress, task })
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Service {
    host: Host,
    settings: Arc<ServiceSettings>,
    /// The same settings, for the tasks that go on over a reload.
    shown: watch::Sender<Arc<ServiceSettings>>,
    election: Election,
    units: UnitControl,
    /// Whether the lease that the guard remembers is for other units than these.
    units_changed: bool,
    /// The units that were alive when they were last looked at.
    alive: Vec<UnitName>,
    /// The remark that systemd was stopping the main unit then, which nobody had asked putexd for.
    stopped_by_another: Option<String>,
    /// Whether the main unit serves, by the last look. `None`: it was not looked at since its start.
    serves: Option<bool>,
    /// Whether it is frozen.
    frozen: bool,
    /// Its restarts by systemd.
    restarts: Restarts,
    /// Why one of them was not dead.
    undead: Option<unit_control::Trouble>,
    /// systemd gave no answer about the unit at the last look.
    systemd_is_silent: bool,
    /// Since when `undead` is set without a lease under which the units may run.
    undead_since: Option<Time>,
    /// Who has last ended a pause on this host.
    resumed_by: String,
    /// The last known holder of the lock; empty: none was seen.
    last_holder: String,
    /// What the journal was told of missing renewals.
    overdue: tell::Overdue,
    /// What the history of the lock gets.
    runs: RunTracker,
    /// When somebody was last known to run the unit.
    last_run: status::LastRun,
    /// Since when the unit runs under a lease of a former putexd, in seconds since 1970, as systemd says.
    runs_since: Option<u64>,
    /// Once the service retires: what has to happen before it is taken up on this host again.
    again: Option<String>,
    /// When and why the last run on this host failed, until a start succeeds.
    failure: Option<(Duration, String)>,
    /// Whether the service fails on this host for as long as to be an alarm.
    failing: alarms::Failing,
    /// The alarms that stand, and the revision at which the last odd record was seen.
    alarms: Alarms,
    odd_at: Revision,
    /// The store that this host knew before the present one, which its memory still names.
    left_store: Option<Incarnation>,
    timer: Box<dyn Timer>,
    /// Where the service's tasks send what they have to tell.
    inbox: Inbox,
    /// The receiving end of `inbox`.
    told: mpsc::Receiver<Box<Told>>,
    store_link: watch::Receiver<StoreLink>,
    /// How often the store's answers were seen to be forged, when this was last looked at.
    forgeries: u64,
    guard_link: watch::Receiver<GuardLink>,
    /// Rings when one of the two links has changed, and when the lock may have.
    bell: Arc<Bell>,
    unreadable: Arc<Unreadable>,
    /// The processes outside of their control groups that the status remarks on, as sentences.
    outside: Vec<String>,
    /// Why nothing is started although the units were admitted: some of their processes left their control groups while
    /// they ran. It is kept until the configuration is read anew.
    strayed: Option<String>,
    /// Whether `strayed` or `broken` was set when the configuration was last read anew, or a drain has ended.
    forgiven: bool,
    /// Why nothing is started once the inherited lease has ended: the service's file was broken when this putexd was
    /// started. It is kept until the configuration is read anew.
    broken: Option<String>,
    /// Why nothing runs while the host is drained.
    drained: Option<Arc<str>>,
    /// When the service is handed over because of that.
    turn: drained::Turn,
    /// Counts the starts and proven stops. A look that began before one of them says nothing after it.
    epoch: Arc<AtomicU64>,
    guard_queue: mpsc::Sender<Box<GuardRequest>>,
    role: watch::Sender<Option<Role>>,
    /// When a start was last prepared.
    prepared: Option<Time>,
    start: Option<OwnedTask>,
    stop: Option<OwnedTask>,
    /// Counts the stops that were asked for. A proof that was taken for an earlier stop does not show that the gate has
    /// been closed since.
    stops: u64,
    /// The number of the last stop that has its proof; 0 once that proof is taken.
    proven: Arc<AtomicU64>,
    /// Tasks that end with the service: the guard queue, both lookouts, the admission, and the registration.
    helpers: Vec<OwnedTask>,
    checker: Option<OwnedTask>,
    /// The user of its health command; it outlives a change of the settings, so that the command keeps its files.
    check_user: Arc<OnceCell<CheckUser>>,
    /// Whether the units' stop can be proven and their start is gated, as far as known, and the remarks on that.
    admission: Admission,
    /// The remarks that the journal has been told. What is remarked on may come and go, and is told once.
    remarked: BTreeSet<String>,
    /// Whether the units may be run under the key of the configuration (the unit's entry, N1).
    registration: Standpoint,
    places: registration::Places,
    /// An operator's word on the key, for the task that looks at the entries.
    adoptions: Arc<Adoptions>,
    /// Whether the last verdict of the health check was good, whatever the role.
    healthy: bool,
    /// The last verdict in words; empty: there is none.
    verdict: String,
    status: watch::Sender<Status>,
    /// The end of the lease, for what is told once for all services.
    standing: Standing,
    /// What is counted and shown for monitoring.
    metrics: OfService,
    progress: Arc<AtomicU64>,
    changed: Arc<Notify>,
}

/// What is known of the entry of a unit at first.
const UNASKED: &str = "it was taken up a moment ago, and the store is being asked under which key its units are run";

impl Service {
    fn new(
        host: &Host,
        settings: Arc<ServiceSettings>,
        kept: Option<InheritedLease>,
        status: watch::Sender<Status>,
        progress: Arc<AtomicU64>,
        changed: Arc<Notify>,
    ) -> std::io::Result<Self> {
        let (inbox, told) = Inbox::new();
        let (guard_queue, requests) = mpsc::channel(GUARD_LIMIT);
        let (looked, sees) = watch::channel(false);
        let broken = kept.as_ref().and_then(|kept| kept.broken.clone());
        let (remembered, armed) = kept.map_or((None, None), |kept| (Some(kept.remembered), Some(kept.lease)));
        let places = registration::Places::new(&host.machine, settings.units());
        let machine = &host.machine;
        let (units, units_changed) = inherited::control(host, &settings, armed.as_ref());
        let epoch = Arc::new(AtomicU64::new(0));
        let memory = machine.recall(&settings.name, &settings.key);
        let election_settings = settings.election(host.node.clone(), host.machine_id);
        let election = Election::new(election_settings, memory, remembered, machine.now());
        let (role, _) = watch::channel(Role::of(election.state()));
        let (shown, _) = watch::channel(Arc::clone(&settings));
        let queue_task = GuardQueue {
            service: settings.name.clone(),
            node: host.node.clone(),
            guard: host.guard.clone(),
            units: units.clone(),
            settings: shown.subscribe(),
            armed,
            forgotten: None,
        };
        let watcher = watch_units(units.clone(), shown.subscribe(), Arc::clone(&epoch), inbox.clone(), looked);
        let outside = watch_outside(Arc::clone(machine), units.clone(), shown.subscribe(), sees, inbox.clone());
        let queue_task = queue_task.run(requests, inbox.clone());
        let tasks: [Task; 3] = [Box::pin(queue_task), Box::pin(watcher), Box::pin(outside)];
        let helpers = tasks.into_iter().map(|task| machine.spawn(task).into()).collect();
        let timer = machine.timer()?;
        let bell = host.hints.of(&settings.key);
        let metrics = host.metrics.service(&settings.name);
        let mut service = Self {
            host: host.clone(),
            alarms: Alarms::of_service(&settings.name, host.tidings.alarms().kept()),
            settings,
            shown,
            election,
            units,
            units_changed,
            alive: Vec::new(),
            serves: None,
            frozen: false,
            restarts: Restarts::default(),
            undead: None,
            systemd_is_silent: false,
            stopped_by_another: None,
            undead_since: None,
            resumed_by: String::new(),
            last_holder: String::new(),
            overdue: tell::Overdue::default(),
            runs: RunTracker::default(),
            last_run: status::LastRun::default(),
            runs_since: None,
            again: None,
            failure: None,
            failing: alarms::Failing::default(),
            odd_at: Revision(0),
            left_store: None,
            timer,
            inbox,
            told,
            store_link: host.store.link(),
            forgeries: host.store.forgeries().count(),
            guard_link: host.guard.link(),
            bell,
            unreadable: Arc::default(),
            outside: Vec::new(),
            strayed: None,
            forgiven: false,
            drained: None,
            turn: drained::Turn::default(),
            broken,
            epoch,
            guard_queue,
            role,
            prepared: None,
            start: None,
            stop: None,
            stops: 0,
            proven: Arc::default(),
            helpers,
            checker: None,
            check_user: Arc::default(),
            admission: Err(Refusal::Unasked),
            remarked: BTreeSet::new(),
            registration: Standpoint::Unknown(UNASKED.to_owned()),
            places,
            adoptions: Arc::default(),
            healthy: true,
            verdict: String::new(),
            status,
            standing: host.tidings.add(),
            metrics,
            progress,
            changed,
        };
        service.restart_checker();
        Ok(service)
    }

    async fn run(mut self: Box<Self>) {
        self.store_link.mark_changed();
        self.guard_link.mark_changed();
        let (host, units, settings) = (self.host.clone(), self.units.clone(), self.shown.subscribe());
        let reloads = units.systemd.reloads();
        let admit = admit(Admitter { host, units, settings }, reloads, self.inbox.clone());
        self.helpers.push(self.host.machine.spawn(Box::pin(admit)).into());
        let looks = registration::keep_looking(
            self.host.clone(),
            self.shown.subscribe(),
            self.places.clone(),
            Arc::clone(&self.adoptions),
            self.inbox.clone(),
        );
        self.helpers.push(self.host.machine.spawn(Box::pin(looks)).into());
        self.handle(Event::Timeout);
        self.hear_of_links();
        while self.election.state() != State::Retired {
            self.hear_of_drain();
            let forgiven = !self.may_run() && std::mem::take(&mut self.forgiven);
            if let Some(reason) = self.bar() {
                self.handle(Event::Contend(Err(reason)));
            } else if forgiven && self.is_clear() {
                self.handle(Event::Contend(Ok(())));
            }
            self.set_timer();
            // Hints are heeded only by a host that does not hold the lock: a holder would get hints of its own renewals,
            // and a host that has claimed the lock writes instead of reading.
            let heeds = matches!(self.election.state(), State::NoStore | State::Standby);
            let woken = tokio::select! {
                biased;
                () = poll_fn(|context| self.timer.poll_fired(context)) => Woken::Due,
                Some(told) = self.told.recv() => Woken::Told(told),
                ring = poll_fn(|context| self.bell.poll(context, heeds)) => Woken::Rung(ring),
            };
            // A proof that is there is taken before any other event, and makes what was seen before it invalid.
            if self.takes_proof() {
                self.handle(Event::Stopped);
            }
            let event = match woken {
                Woken::Due => Some(Event::Timeout),
                Woken::Told(told) => self.hear(*told),
                Woken::Rung(Ring::Hint) => Some(Event::Hint),
                Woken::Rung(Ring::Link) => None,
            };
            if let Some(event) = event {
                self.handle(event);
            }
            self.hear_of_links();
            self.progress.fetch_add(1, Ordering::Release);
        }
        self.show();
        tell_of_dropped(&self.settings.name, self.unsaid().as_deref());
    }

    /// Takes a message. Returns the event that follows from it for the election, if any.
    fn hear(&mut self, told: Told) -> Option<Event> {
        match told {
            Told::Event(event) => Some(event),
            Told::Looked(look) => self.observe(look),
            Told::Outside(outside) => self.judge_outside(&outside),
            Told::Admission(admission) => {
                self.tell_of_admission(&admission);
                self.admission = admission;
                self.is_clear().then_some(Event::Contend(Ok(())))
            }
            Told::Standpoint(standpoint) => {
                self.register(standpoint);
                self.is_clear().then_some(Event::Contend(Ok(())))
            }
            Told::Order(order) => Some(self.obey(order)),
            Told::Turn => {
                self.turn.has_come();
                None
            }
            Told::RunsSince(since) => {
                self.runs_since = (self.election.state() == State::Active).then_some(since);
                self.show();
                None
            }
            Told::Proven => None,
        }
    }

    fn observe(&mut self, look: Looked) -> Option<Event> {
        if look.epoch != self.epoch.load(Ordering::Acquire) {
            return None;
        }
        if look.host_stops {
            self.handle(Event::Contend(Err("this host is shutting down".to_owned())));
        }
        self.systemd_is_silent = look.units.main.is_none();
        if self.systemd_is_silent {
            self.handle(Event::SystemdSilent { nothing_left: look.units.nothing_left });
        }
        let unit = self.judge(look.units)?;
        self.tell_of_end(&unit);
        // A unit that fails very soon after its start counts as started or not by chance, so its failure is noted here as
        // well.
        if let (State::Active, ObservedUnit::Dead { result, failed: true }) = (self.election.state(), &unit) {
            self.fails(result.clone());
        }
        if let (State::Active, ObservedUnit::Failing(why)) = (self.election.state(), &unit) {
            self.fails_for_good(why.clone());
        }
        Some(Event::Unit(unit))
    }

    /// Whether the stop that was asked for last has its proof. A proof of an earlier stop is dropped.
    fn takes_proof(&self) -> bool {
        let proven = self.proven.swap(0, Ordering::AcqRel);
        proven != 0 && proven == self.stops
    }

    /// Tells the election of changes of the connections to the store and the guard. The bell wakes the loop when one has
    /// changed, and both are looked at after each wake-up.
    fn hear_of_links(&mut self) {
        // The senders are the host's, and last as long as it does.
        if self.store_link.has_changed().is_ok_and(|changed| changed) {
            let is_up = *self.store_link.borrow_and_update() == StoreLink::Up;
            // A forged answer ends the connection, so this is looked at in time.
            let forgeries = self.host.store.forgeries().count();
            if forgeries > std::mem::replace(&mut self.forgeries, forgeries) {
                self.raise(journal::Alarm::ForgedAnswer, "two different answers came to one request of this host");
                self.handle(Event::Forged);
            }
            self.handle(if is_up { Event::StoreUp } else { Event::StoreDown });
        }
        if self.guard_link.has_changed().is_ok_and(|changed| changed) {
            let is_up = *self.guard_link.borrow_and_update() == GuardLink::Up;
            self.handle(if is_up { Event::GuardUp } else { Event::GuardDown });
            if is_up && std::mem::take(&mut self.units_changed) && self.election.state() == State::Active {
                // This is as at a reload: the old units are stopped under the old lease, and the new units run under the
                // next one.
                let reason = "its units were changed while putexd was away".to_owned();
                self.handle(Event::StepDown { reason, next: None });
            }
        }
    }

    fn heartbeat(&self) -> Duration {
        let rests = matches!(self.election.state(), State::Standby | State::Active) && self.undead.is_none();
        if rests { HEARTBEAT_AT_REST } else { HEARTBEAT }
    }

    /// The administrator has had the configuration read anew. So the file is good, and he may have mended what let
    /// processes leave their control groups.
    fn forgive(&mut self) {
        self.forgiven |= self.strayed.take().is_some();
        self.forgiven |= self.broken.take().is_some();
    }

    /// Why this host does not take part, if it does not. A running unit ends if its entry refuses the key (the unit's entry, N1),
    /// also while a former lock is awaited, if it [must end](Self::must_end), or if the host is drained. All other reasons only
    /// keep new starts from being begun.
    fn bar(&self) -> Option<String> {
        match (&self.registration, &self.admission) {
            (Standpoint::Refused(reason), _) => Some(reason.clone()),
            (_, Err(refusal)) if self.must_end(refusal) => Some(refusal.to_string()),
            (_, _) if self.drained.is_some() && self.may_hand_over() => self.drained.as_deref().map(str::to_owned),
            (_, _) if self.may_run() => None,
            (_, _) if self.broken.is_some() => self.broken.clone(),
            (_, Err(refusal)) => Some(refusal.to_string()),
            (Standpoint::Unknown(reason), Ok(_)) => Some(reason.clone()),
            (Standpoint::Cleared, Ok(_)) => self.strayed.clone(),
        }
    }

    /// Whether nothing keeps a new start from being begun.
    fn is_clear(&self) -> bool {
        self.registration == Standpoint::Cleared
            && self.admission.is_ok()
            && self.strayed.is_none()
            && self.broken.is_none()
            && self.drained.is_none()
    }

    /// Takes over the standpoint, and raises its alarms. A service that was cleared stays so while the store does not
    /// answer.
    fn register(&mut self, standpoint: Standpoint) {
        let before = match (&self.registration, standpoint) {
            (Standpoint::Cleared, Standpoint::Unknown(_)) => return,
            (_, standpoint) => std::mem::replace(&mut self.registration, standpoint),
        };
        self.forget_store();
        match (before, &self.registration) {
            (Standpoint::Refused(before), Standpoint::Refused(reason)) if before == *reason => {}
            (_, Standpoint::Refused(reason)) => self.raise(journal::Alarm::OtherLock, reason),
            (Standpoint::Refused(_), Standpoint::Cleared) => {
                self.alarms.end(journal::Alarm::OtherLock);
                // Another store was meant, as an operator has said, and so its revisions are others.
                self.alarms.end(journal::Alarm::Regression);
                self.raise(journal::Alarm::OneLock, "all hosts run it under one key");
            }
            (_, Standpoint::Cleared | Standpoint::Unknown(_)) => {}
        }
    }

    /// Once it is settled that the unit is run in the present store, the place that the lock had in the former one is forgotten, so that
    /// the next putexd is not told again that the store is another one. It knows as much then as a new host.
    fn forget_store(&self) {
        let memory = self.election.memory();
        if self.left_store.is_some() && memory.position.is_some() && self.registration == Standpoint::Cleared {
            self.host.machine.keep(&self.settings, self.without_left_store(memory.clone()));
        }
    }

    /// The memory without the place of the lock in a store that this host has left.
    fn without_left_store(&self, mut memory: election::Memory) -> election::Memory {
        let is_cleared = self.registration == Standpoint::Cleared;
        memory.position.take_if(|(store, _)| is_cleared && self.left_store.as_ref() == Some(store));
        memory
    }

    /// Whether a unit may run in the present state. Without an admission it goes on, unless it [must end](Self::must_end),
    /// and only new starts are barred.
    fn may_run(&self) -> bool {
        match self.election.state() {
            State::Starting | State::Active | State::Releasing | State::Lapsing => true,
            State::NoStore | State::Standby | State::Confirming | State::Fencing | State::Retired => false,
        }
    }

    /// Whether a running unit has to be stopped because it is not admitted. A unit that has lost its gate would outlive a
    /// guard that dies, and systemd would start it again after the end of its lease. Any other fault of a running unit is
    /// no worse than it was at its start, as its stop has to be proven all the same.
    fn must_end(&self, refusal: &Refusal) -> bool {
        refusal.is_ungated() && matches!(self.election.state(), State::Starting | State::Active)
    }

    /// Gives one event to the election, and has all that follows from it carried out. It never waits.
    fn handle(&mut self, event: Event) {
        if event == Event::Stopped {
            self.epoch.fetch_add(1, Ordering::AcqRel);
            self.runs.note_death(self.host.machine.now());
        }
        if let Event::Started { result, .. } = &event {
            self.failure = None;
            match result {
                Ok(()) => drop(self.epoch.fetch_add(1, Ordering::AcqRel)),
                Err(error) => self.fails(error.clone()),
            }
        }
        if let Some(failure) = failure_of(&event) {
            self.fails(failure);
        }
        if let Event::StandbyCheck(verdict) = &event {
            self.note_verdict("standby", verdict.as_ref());
        }
        if let Event::ActiveCheck(verdict) = &event {
            self.note_verdict("active", verdict.as_ref());
        }
        let machine = &self.host.machine;
        let moment = Moment { now: machine.now(), wall: machine.wall(), random: machine.random() };
        for action in self.election.handle(&moment, event) {
            self.carry_out(action);
        }
        let role = Role::of(self.election.state());
        self.role.send_if_modified(|shown| std::mem::replace(shown, role) != role);
        self.tell_of_unheard();
        self.tell_of_renewals(moment.now);
        self.settle_alarms(moment.now);
        self.tell_of_holder();
        self.show();
    }

    /// Sets the timer to what the election has to do next, or to the next heartbeat if that comes first.
    fn set_timer(&self) {
        let at = self.election.poll_timeout();
        let is_before = |deadline: Option<Time>| deadline.zip(at).is_some_and(|(deadline, at)| at.boot < deadline.boot);
        let longest = match self.election.state() {
            // If hosts were late for their turns up to a moment that they share, all of them would take a free lock at that
            // moment.
            State::Standby if self.election.holder().is_empty() => LATENESS_OF_A_TURN,
            State::Standby => Duration::MAX,
            // What is due before the deadline, such as a renewal, may be late. Where all is well the deadline is never due
            // next.
            State::Active if is_before(self.election.deadline()) => Duration::MAX,
            State::NoStore
            | State::Confirming
            | State::Fencing
            | State::Starting
            | State::Active
            | State::Releasing
            | State::Lapsing
            | State::Retired => LATENESS_LIMIT,
        };
        let lateness = longest.min(self.settings.timings.renew_interval / LATENESS_SHARE);
        let beat = self.host.machine.now().boot + self.heartbeat();
        let wake_at = at.map_or(beat, |at| at.boot.min(beat));
        if let Err(error) = self.timer.set(Some(wake_at), lateness) {
            // This is no reason to end: the guard has a timer of its own, and the watchdog ends a loop that stands still.
            tracing::error!("failed to set a timer: {error}");
        }
    }

    fn obey(&mut self, order: Order) -> Event {
        match order {
            Order::Retire { reason, again } => {
                self.again = Some(again);
                Event::Retire { reason }
            }
            Order::TryAgain => Event::TryAgain,
            Order::Reconsider => {
                self.forgive();
                Event::TryAgain
            }
            Order::StepDown { reason, to, answer } => {
                let told = self.told_to_step_down();
                answered(answer, told, Event::StepDown { reason, next: to })
            }
            Order::Stop(word, answer) => answered(answer, self.told_to_stop(&word), Event::Stop(word)),
            Order::Start { by, kept_by, answer } => {
                answered(answer, self.told_to_start(&by, &kept_by), Event::StartAgain)
            }
            Order::Pause(word, answer) => answered(answer, self.told_to_pause(&word), Event::Pause(word)),
            Order::Resume(by, answer) => answered(answer, self.told_to_resume(&by), Event::Resume),
            Order::Adopt(adoption) => {
                if let Err(adoption) = self.adoptions.say(adoption) {
                    // The client may have gone.
                    let _ = adoption.send(Err("another one is under way; say it again".to_owned().into()));
                }
                Event::Timeout
            }
            Order::Reconfigure(settings) => {
                let health_changed = settings.health != self.settings.health;
                self.settings = settings;
                self.units.beyond.require(self.settings.stop_proof);
                self.forgive();
                self.shown.send_replace(Arc::clone(&self.settings));
                if health_changed {
                    self.restart_checker();
                }
                self.handle(Event::Reconfigure(self.settings.election(self.host.node.clone(), self.host.machine_id)));
                Event::TryAgain
            }
        }
    }

    /// Takes what was seen of the units. While they may run, the main unit decides whether the service lives, because bound
    /// units come and go, as the service of a timer does. Without the lease none of the units may live.
    fn judge(&mut self, observed: ObservedUnits) -> Option<ObservedUnit> {
        self.alive = observed.alive;
        self.undead = observed.trouble;
        self.stopped_by_another =
            (observed.is_stopping && self.election.state() == State::Active).then(|| self.stop_of_another());
        if observed.is_not_run && self.election.state() == State::Active {
            self.runs.note_no_run(self.settings.timings.lease(), self.host.machine.now());
        }
        let runs = matches!(self.election.state(), State::Starting | State::Active);
        let since = self.undead_since.unwrap_or_else(|| self.host.machine.now());
        self.undead_since = (self.undead.is_some() && !runs).then_some(since);
        if self.election.state() != State::Active {
            (self.serves, self.frozen) = (None, false);
            let starts = self.election.state() == State::Starting;
            self.restarts = if starts { Restarts::since_start() } else { Restarts::default() };
            return observed.all;
        }
        let Some(life) = observed.life.filter(|_| observed.main == Some(ObservedUnit::Alive)) else {
            self.serves = observed.main.as_ref().map(|_| false);
            return observed.main;
        };
        self.serves = Some(life.is_started && life.frozen_by.is_none());
        let was_frozen = std::mem::replace(&mut self.frozen, life.frozen_by.is_some());
        if let Some(by) = life.frozen_by.as_ref().filter(|_| !was_frozen) {
            self.raise(
                journal::Alarm::Frozen,
                &format!("run \"systemctl thaw {by}\": {by} is frozen, and keeps its lock"),
            );
        }
        let (lease, now) = (self.settings.timings.lease(), self.host.machine.now());
        Some(match self.restarts.see(&life, lease, self.settings.start_limit, now) {
            Some(why) => ObservedUnit::Failing(why),
            None if life.is_trying => ObservedUnit::Trying,
            None => ObservedUnit::Alive,
        })
    }

    /// Tells of work outside of the units' control groups. By default it ends the lease, because no stop reaches it, and no
    /// empty control group shows that it is gone. What was seen so far is part of the proof.
    fn judge_outside(&mut self, outside: &[Outside]) -> Option<Event> {
        let words: Vec<String> = outside.iter().take(STRAYS_SHOWN).map(Outside::in_words).collect();
        let first = outside.first();
        let unit = &self.settings.unit;
        let outside = |words: &String| {
            format!(
                "{unit} has work outside of its control group: {words}; stop-proof = \"unit-only\": nobody shows that it has ended"
            )
        };
        let whole = self.settings.stop_proof == StopProof::Whole;
        let told =
            std::mem::replace(&mut self.outside, if whole { Vec::new() } else { words.iter().map(outside).collect() });
        let words = words.join("; ");
        let first = first?;
        if !whole {
            if told.is_empty() {
                let reason = format!("{words}; stop-proof = \"unit-only\", ignoring");
                self.raise(journal::Alarm::LeftControlGroup, &reason);
            }
            self.show();
            return None;
        }
        if self.strayed.is_some() {
            return None;
        }
        self.raise(journal::Alarm::LeftControlGroup, &words);
        let reason = format!(
            "{unit} had work outside of its control group, where no stop reaches it: {}: {}, or set stop-proof = \"unit-only\" to \
             answer for it yourself; then run \"systemctl reload putexd\"",
            first.in_words(),
            first.remedy()
        );
        self.strayed = Some(reason.clone());
        Some(Event::Strayed(reason))
    }

    fn restart_checker(&mut self) {
        self.checker = None;
        let Some(health) = self.settings.health.clone() else { return };
        let checker = Checker {
            service: self.settings.name.clone(),
            node: self.host.node.clone(),
            settings: health,
            systemd: Arc::clone(&self.host.systemd),
            http: self.host.http.clone(),
            user: Arc::clone(&self.check_user),
            role: self.role.subscribe(),
            inbox: self.inbox.clone(),
        };
        self.checker = Some(self.host.machine.spawn(Box::pin(checker.run())).into());
    }
}

/// Answers an operator. Returns the event for the election, which is none in effect where the operator was refused.
fn answered<E: Into<Unmet>>(answer: Answer, told: Result<String, E>, event: Event) -> Event {
    let event = if told.is_ok() { event } else { Event::Timeout };
    // The client may have gone.
    let _ = answer.send(told.map_err(Into::into));
    event
}

impl Drop for Service {
    fn drop(&mut self) {
        self.host.grounds.remove(&self.settings.name);
    }
}

/// Says that a word of an operator ends with this putexd, or with the service.
pub(super) fn tell_of_dropped(service: &ServiceName, unsaid: Option<&str>) {
    if let Some(word) = unsaid {
        tracing::warn!("{service}: say it again: {word}: that was not written to the lock, and is dropped");
    }
}

/// Joins names with "and", as in `a.timer and a.service`.
fn names<'a>(units: impl IntoIterator<Item = &'a UnitName>) -> String {
    let names: Vec<&str> = units.into_iter().map(UnitName::as_str).collect();
    names.join(" and ")
}

/// What has kept a start from being begun, for the status. A start that was begun and failed tells it itself.
fn failure_of(event: &Event) -> Option<String> {
    if let Event::GuardRefused { asked: GuardDone::Armed(_), reason, .. } = event {
        return Some(format!("the guard refused the lease: {reason}"));
    }
    if let Event::Fenced { result: Err(reason), .. } = event {
        return Some(format!("fencing has failed: {reason}"));
    }
    if let Event::Unfenced { result: Err(reason), .. } = event {
        return Some(format!("unfencing has failed: {reason}"));
    }
    None
}
