//! What a service tells the journal, and an operator who has asked for something.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{Admission, Host, Refusal, Service, Told, UnitControl, names};
use crate::cluster::history::What;
use crate::daemon::alarms::Alarms;
use crate::daemon::machine::Machine;
use crate::daemon::run_tracker::{Notes, Place};
use crate::daemon::tidings::{Change, NewHolder};
use crate::dbus::TransitionStatus;
use crate::election::{Alarm, FORMAT, ObservedUnit, State, Transition, Waiting, rounded};
use crate::guard_client::GuardClient;
use crate::journal;
use crate::types::{FencingToken, OnStopFailure, Revision, ServiceName, Time, UnitName};

/// How long the guard may take to say that units are dead whose time is over. Another host may start them from then on.
const GUARD_LIMIT: Duration = Duration::from_millis(100);

/// How long a host with a self-fence waits for a PID 1 that does not confirm an orderly stop, although the kernel shows nothing of the
/// units any more.
const PID_1_PATIENCE: Duration = Duration::from_secs(60);

/// Time between two questions whether PID 1 has confirmed the stop.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// While a lease is not renewed: when the last won renewal was sent, and whether the journal has been told.
#[derive(Debug, Default)]
pub(super) struct Overdue(Option<(Time, bool)>);

/// What the journal is told of renewals.
#[derive(Debug, PartialEq, Eq)]
enum Renewals {
    Fail(String),
    GoOn(String),
}

/// How the journal hears that the units are not admitted.
#[derive(Debug, PartialEq, Eq)]
enum Hears {
    Alarm,
    Error,
    Nothing,
}

impl Hears {
    fn of(refusal: &Refusal, must_end: bool, is_retiring: bool) -> Self {
        if must_end {
            Self::Alarm
        } else if matches!(refusal, Refusal::Host(_)) || is_retiring {
            // A fault of the host is told once for all services. A service that retires takes nothing under supervision any
            // more, and a daemon-reload takes the gate away from units whose file is gone while they are being stopped.
            Self::Nothing
        } else {
            Self::Error
        }
    }
}

impl Overdue {
    /// Returns each change once. The end of the lease is told as a change of state. `store_fails`: the journal has been
    /// told that the store fails, and how long the leases last, so it hears of no single lease that is not renewed.
    fn hear(&mut self, waiting: Option<Waiting>, is_active: bool, store_fails: bool, now: Time) -> Option<Renewals> {
        if let Some(waiting @ Waiting::Renewal { since, .. }) = waiting {
            let is_told = self.0.is_none() && !store_fails;
            self.0.get_or_insert((since, is_told));
            return is_told.then(|| Renewals::Fail(waiting.in_words(now)));
        }
        let (since, _) = self.0.take().filter(|(_, was_told)| *was_told && is_active)?;
        Some(Renewals::GoOn(format!("renewed again after {}", rounded(now.since_at_least(since)))))
    }
}

impl Service {
    /// Tells the journal why the units are refused, and each remark once.
    pub(super) fn tell_of_admission(&mut self, admission: &Admission) {
        let (name, unit) = (&self.settings.name, &self.settings.unit);
        match admission {
            Ok(remarks) => {
                for remark in remarks {
                    if self.remarked.insert(remark.clone()) {
                        tracing::warn!(OBJECT_SYSTEMD_UNIT = unit.as_str(), "{name}: {remark}");
                    }
                }
            }
            Err(refusal) => match Hears::of(refusal, self.must_end(refusal), self.again.is_some()) {
                Hears::Alarm => self.raise(journal::Alarm::Ungated, &refusal.to_string()),
                Hears::Error => tracing::error!(
                    OBJECT_SYSTEMD_UNIT = unit.as_str(),
                    "{name}: failed to take {unit} under supervision: {refusal}"
                ),
                Hears::Nothing => {}
            },
        }
    }

    /// Tells the journal once that the lease is not renewed, and once that it is again.
    pub(super) fn tell_of_renewals(&mut self, now: Time) {
        let (name, unit) = (&self.settings.name, &self.settings.unit);
        let is_active = self.election.state() == State::Active;
        let store_fails = self.host.tidings.store_fails();
        match self.overdue.hear(self.election.waiting(now), is_active, store_fails, now) {
            Some(Renewals::Fail(words)) => tracing::warn!(OBJECT_SYSTEMD_UNIT = unit.as_str(), "{name}: {words}"),
            Some(Renewals::GoOn(words)) => tracing::info!(OBJECT_SYSTEMD_UNIT = unit.as_str(), "{name}: {words}"),
            None => {}
        }
    }

    /// Tells the journal of a health check's verdict when it changes. `role` names the check.
    pub(super) fn note_verdict(&mut self, role: &str, verdict: Result<&(), &String>) {
        let words = verdict.map_or_else(String::as_str, |()| "passes");
        if self.verdict != words {
            words.clone_into(&mut self.verdict);
        }
        if verdict.is_ok() == self.healthy {
            return;
        }
        self.healthy = verdict.is_ok();
        match verdict {
            Ok(()) => {
                self.alarms.end(journal::Alarm::CheckFailed);
                self.raise(journal::Alarm::CheckRecovered, &format!("the {role} check passes"));
            }
            Err(reason) => {
                let unit =
                    self.settings.health.as_ref().and_then(|health| health.probe.unit(&self.settings.name, role));
                let printed =
                    unit.map_or_else(String::new, |unit| format!("; \"journalctl -u {unit}\" has what it says"));
                self.raise(journal::Alarm::CheckFailed, &format!("{reason}{printed}"));
            }
        }
    }

    /// Tells the journal why a unit that was stopped by hand, or has ended, comes up elsewhere. An administrator who stops
    /// it should know that.
    pub(super) fn tell_of_end(&self, unit: &ObservedUnit) {
        if let (State::Active, ObservedUnit::Dead { failed: false, .. }) = (self.election.state(), unit) {
            let (name, unit) = (&self.settings.name, &self.settings.unit);
            tracing::warn!(
                OBJECT_SYSTEMD_UNIT = unit.as_str(),
                "{name}: {unit} was stopped, or has ended by itself, and is let go, so that another host may take it; if no host is to \
                 run it, run \"putexctl stop {name}\""
            );
        }
    }

    /// The answer to an operator who has this host let its lock go. `Err`: it does not hold the lock, or its lease is over.
    pub(super) fn told_to_step_down(&self) -> Result<String, String> {
        let unit = &self.settings.unit;
        let again = rounded(self.settings.timings.renew_interval * 2);
        match self.election.state() {
            State::Starting | State::Active if self.broken.is_some() => Ok(format!(
                "begun to stop {unit}; its lock is let go when it is proven dead, and this host does not take it again before \
                 its file is mended"
            )),
            State::Starting | State::Active => Ok(format!(
                "begun to stop {unit}; its lock is let go when it is proven dead. If no other host takes it, {unit} stays \
                 down for {again} at least, and is started here again then"
            )),
            State::Confirming | State::Fencing => Ok(format!(
                "gave up its claim before {unit} was started. If no other host takes the lock, this one tries again in \
                 {again} at the earliest"
            )),
            State::Releasing => Ok(format!("{unit} is being stopped already, in order to let the lock go")),
            State::Lapsing => Err(format!("the lease is over, and {unit} is being stopped already")),
            State::NoStore | State::Standby | State::Retired => {
                Err(format!("it does not run on {}: {}", self.host.node, self.held_elsewhere()))
            }
        }
    }

    /// Notes something of the tenure that goes on, for the history of the lock.
    pub(super) fn note(&self, what: What, text: String) {
        self.runs.notes().add(&*self.host.machine, what, text);
    }

    pub(super) fn report(&mut self, transition: &Transition) {
        self.metrics.entered(transition.to);
        if matches!(transition.to, State::Releasing | State::Lapsing) {
            self.metrics.stopped(self.election.stop_kind());
        }
        self.runs_since = None;
        if (transition.from, transition.to) == (State::NoStore, State::Active) {
            self.ask_since();
        }
        let now = self.host.machine.now();
        if matches!(transition.to, State::Releasing | State::Lapsing)
            && let Some(word) = self.status.borrow().paused.as_ref().filter(|word| word.holds(self.host.machine.wall()))
        {
            // A long lease belongs to the tenure that ends here.
            let text = format!("the pause ends with the tenure that it belongs to: it was {}", word.in_words("paused"));
            self.note(What::Order, text);
        }
        let Host { history: histories, node, machine, .. } = &self.host;
        let place = Place { histories, key: &self.settings.key, node, machine: &**machine };
        let stopped = self.election.stop_word(now).is_some();
        self.runs.follow(transition, stopped, self.election.lapse_bounds(), now, &place);
        let hindrance = self.election.hindrance(now).map(|hindrance| hindrance.in_words(now));
        let ended = ended(transition, &self.settings.unit, self.again.as_deref(), hindrance.as_deref());
        let mut told = transition.clone();
        if let Some(ended) = ended {
            write!(told.reason, "; {ended}").expect("writing to a string does not fail");
        }
        if transition.to == State::Lapsing {
            // The entry of this change tells of it in the journal.
            let machine = &self.host.machine;
            self.alarms.raise(journal::Alarm::Lapsed, &transition.reason, machine.now(), machine.wall());
            // A lapse that is found when putexd starts is told then.
            if transition.from != State::NoStore {
                journal::count(journal::Alarm::Lapsed);
            }
        }
        let (service, unit) = (self.settings.name.clone(), self.settings.unit.clone());
        self.host.tidings.transitions().tell(TransitionStatus {
            service: service.to_string(),
            from: told.from.to_string(),
            to: told.to.to_string(),
            reason: told.reason.clone(),
            holder: self.election.holder().to_owned(),
            token: self.election.token().0,
            revision: self.election.revision().0,
            at: self.host.machine.wall().as_secs(),
            lost: 0,
        });
        self.write_at(self.host.tidings.tell(Change { service, unit, transition: told }));
    }

    /// Asks systemd since when the unit runs that a former putexd has started.
    fn ask_since(&self) {
        let (units, inbox) = (self.units.clone(), self.inbox.clone());
        self.host.machine.spawn(Box::pin(async move {
            if let Some(since) = units.active_since().await {
                // The message is lost if the service has ended, and nobody needs it then.
                let _ = inbox.tell(Told::RunsSince(since.as_secs())).await;
            }
        }));
    }

    /// Tells the journal that the lock has another holder than before. What this host does itself is told as a change of state.
    pub(super) fn tell_of_holder(&mut self) {
        let holder = self.election.holder();
        if holder.is_empty() || holder == self.last_holder {
            return;
        }
        let former = std::mem::replace(&mut self.last_holder, holder.to_owned());
        if former.is_empty() || self.election.state() != State::Standby || self.last_holder == self.host.node.as_str() {
            return;
        }
        let (service, unit) = (self.settings.name.clone(), self.settings.unit.clone());
        let news = NewHolder { service, unit, holder: self.last_holder.clone(), former };
        self.write_at(self.host.tidings.tell_of_holder(news));
    }

    /// Has what waits for the journal written `at` that time.
    fn write_at(&self, at: Option<Instant>) {
        if let Some(at) = at {
            let tidings = self.host.tidings.clone();
            self.host.machine.spawn(Box::pin(async move {
                sleep_until(at).await;
                tidings.write();
            }));
        }
    }

    pub(super) fn alarm(&mut self, alarm: &Alarm) {
        if let Alarm::OddRecord { .. } = alarm {
            self.odd_at = self.election.revision();
        }
        if let Alarm::NewIncarnation = alarm {
            self.left_store = self.election.memory().position.as_ref().map(|(store, _)| store.clone());
            self.forget_store();
        }
        let settings = &self.settings;
        let (kind, reason) = match alarm {
            Alarm::TwoHostsOneName { machine } => (
                journal::Alarm::SharedName,
                format!("machine {machine} renews the lock as {}, which is this host's name too", self.host.node),
            ),
            Alarm::Regression { from, to } if from == to => {
                (journal::Alarm::Regression, format!("the lock has another record at revision {to} than it had before"))
            }
            Alarm::Regression { from, to } => {
                (journal::Alarm::Regression, format!("the lock was at revision {from} and is at {to}"))
            }
            Alarm::NewIncarnation => (
                journal::Alarm::Regression,
                "the store was made anew or restored; the last holder counts as unknown".to_owned(),
            ),
            Alarm::StopLimit => {
                let (units, limit) = (names(settings.units()), rounded(settings.stop_limit));
                let reason = format!("the stop of {units} has taken longer than stop-limit = {limit}");
                let how = settings.on_stop_failure;
                if how.is_self_fence() {
                    let (name, budget) = (&settings.name, rounded(settings.timings.stop_budget));
                    tracing::warn!(
                        OBJECT_SYSTEMD_UNIT = settings.unit.as_str(),
                        "{name}: {reason}; SIGKILL is sent; {} in {budget} unless it is proven dead before",
                        how.consequence()
                    );
                } else {
                    let remedy = format!("run \"{}\" unless it needs more time", self.kill_by_hand());
                    self.tell_of_late_stop(format!("{remedy}: {reason}"), LastWord::OfSystemd);
                }
                return;
            }
            Alarm::StopUnproven => {
                let units = names(settings.units());
                let how = settings.on_stop_failure;
                // After a lapse another host may start the units, so a host that is to go down in that case goes down now.
                // During a release the lease is renewed.
                let last_word = if how.is_self_fence() && self.election.state() == State::Lapsing {
                    LastWord::OfGuard
                } else {
                    LastWord::OfSystemd
                };
                self.tell_of_late_stop(
                    format!("the stop of {units} is not proven at the end of its budget"),
                    last_word,
                );
                return;
            }
            Alarm::StrayUnit => match &self.undead {
                Some(undead) if undead.is_for_the_operator => (journal::Alarm::StopFailed, undead.words.clone()),
                Some(_) | None => (
                    journal::Alarm::StrayUnit,
                    format!("this host does not hold the lock, and runs {}; stopping that", names(&self.alive)),
                ),
            },
            Alarm::OddRecord { holder, what } => {
                let whose = if holder.is_empty() { "nobody".to_owned() } else { format!("\"{holder}\"") };
                (
                    journal::Alarm::OddRecord,
                    format!("it is said to be {whose}'s, and {what}; it counts as that of an unknown holder"),
                )
            }
            Alarm::NewerRecord { holder, format, lease } => {
                (journal::Alarm::NewerRecord, newer_record_in_words(holder, *format, *lease))
            }
            Alarm::NotToBeFenced { hosts } => (
                journal::Alarm::NotToBeFenced,
                format!(
                    "{} is left alone: it is not in [fence] hosts, or, without that list, is not known to have held the lock",
                    hosts.join(" and ")
                ),
            ),
            Alarm::FenceFailed { reason } => (journal::Alarm::FenceFailed, reason.clone()),
            Alarm::ClockJump { by } => {
                let by = rounded(*by);
                (journal::Alarm::ClockJump, format!("the wall clock moved by {by} against the time since boot"))
            }
        };
        self.placed().alarm(kind, &reason);
    }

    /// Raises the alarm for a stop whose time is over, and the self-fence if one is configured. Nothing happens if
    /// `last_word` is that nothing of the units runs any more.
    fn tell_of_late_stop(&self, reason: String, last_word: LastWord) {
        let (placed, units, machine) = (self.placed(), self.units.clone(), Arc::clone(&self.host.machine));
        let (guard, how) = (self.host.guard.clone(), self.settings.on_stop_failure);
        self.host.machine.spawn(Box::pin(async move {
            let since = Instant::now();
            loop {
                let is_dead = match last_word {
                    LastWord::OfSystemd => !units.is_late_for_good().await,
                    LastWord::OfGuard => are_dead_by_guard(&guard, &placed.service, &units).await,
                };
                if is_dead {
                    return;
                }
                // The lease is renewed meanwhile, so that there is time for a PID 1 that stands still.
                let waits = matches!(last_word, LastWord::OfSystemd)
                    && how.is_self_fence()
                    && since.elapsed() < PID_1_PATIENCE
                    && units.are_dead_by_kernel().await;
                if !waits {
                    break;
                }
                sleep(LOOK_AGAIN).await;
            }
            placed.alarm(journal::Alarm::StopFailed, &reason);
            if how == OnStopFailure::Alert {
                return;
            }
            placed.alarm(journal::Alarm::SelfFence, "the stop cannot be proven, so this host goes down");
            if let Err(error) = machine.fence(how).await {
                tracing::error!("failed to take this host down: {error}");
            }
        }));
    }

    /// The command by which an operator kills the units: with systemd, or without it while it does not answer.
    fn kill_by_hand(&self) -> String {
        if !self.systemd_is_silent {
            let all: Vec<&str> = self.settings.units().map(UnitName::as_str).collect();
            return format!("systemctl kill --signal=KILL {}", all.join(" "));
        }
        let groups = self.units.groups();
        let of = |group: &String| format!("/sys/fs/cgroup{{,/unified,/systemd}}'{group}'/cgroup.procs");
        format!("kill -KILL $(cat {})", groups.iter().map(of).collect::<Vec<_>>().join(" "))
    }

    pub(super) fn placed(&self) -> Placed {
        Placed {
            alarms: self.alarms.clone(),
            machine: Arc::clone(&self.host.machine),
            service: self.settings.name.clone(),
            unit: self.settings.unit.clone(),
            holder: self.election.holder().to_owned(),
            revision: self.election.revision(),
            token: self.election.token(),
            notes: self.runs.notes().clone(),
        }
    }
}

/// Who holds the lock and until when, by a record of a later format, and what this host does not know of it.
fn newer_record_in_words(holder: &str, format: u32, lease: Option<Duration>) -> String {
    let whose = match (holder, lease) {
        ("", _) => "nobody holds the lock, and this host waits as for an unknown holder".to_owned(),
        (_, Some(lease)) => format!(
            "{holder} holds the lock until the record has stood unchanged for {}, which this host waits for",
            rounded(lease)
        ),
        (_, None) => format!("{holder} holds the lock, and this host waits as for an unknown holder"),
    };
    format!(
        "it has format {format}, and this putexd knows formats up to {FORMAT}: {whose}; what else it says is not known, so give \
         orders about the service on a host with the later version"
    )
}

/// What the journal adds to the reason of a change of state after which nothing of the unit runs on this host. It may be
/// the last line about the unit. `again`: what has to happen before the service is taken up again. `hindrance`: why its
/// lock is not taken now.
fn ended(transition: &Transition, unit: &UnitName, again: Option<&str>, hindrance: Option<&str>) -> Option<String> {
    let stopped = format!("{unit} is stopped on this host");
    match (transition.from, transition.to) {
        (_, State::Retired) => {
            Some(again.map_or(stopped.clone(), |again| format!("{stopped}, and is not started again before {again}")))
        }
        (State::Releasing | State::Lapsing, State::Standby | State::NoStore) => {
            Some(hindrance.map_or(stopped.clone(), |why| format!("{stopped}, which does not take the lock now: {why}")))
        }
        _ => None,
    }
}

/// Who is asked at the end of a stop's time whether anything still runs.
#[derive(Debug, Clone, Copy)]
enum LastWord {
    /// PID 1, by the next look at the units.
    OfSystemd,
    /// The guard, which does not have to wait for a PID 1 that has many units to stop.
    OfGuard,
}

/// Whether the guard says within [`GUARD_LIMIT`] that nothing of the units runs. If so, their stop goes on to its own
/// proof, and nothing is released before that. Meanwhile the guard kills what appears in their control groups.
async fn are_dead_by_guard(guard: &GuardClient, service: &ServiceName, units: &UnitControl) -> bool {
    let ask = async {
        let Ok(Some(listed)) = guard.lease_of(service).await else { return false };
        units.are_dead_by(&listed).await
    };
    let is_dead = timeout(GUARD_LIMIT, ask).await.unwrap_or(false);
    // The proof may have come meanwhile, so that the guard was told to forget the lease.
    is_dead || units.is_proven()
}

/// The subject of an alarm, with what is known of the lock when it is made.
pub(super) struct Placed {
    alarms: Alarms,
    machine: Arc<dyn Machine>,
    service: ServiceName,
    unit: UnitName,
    holder: String,
    revision: Revision,
    token: FencingToken,
    notes: Notes,
}

impl Placed {
    pub(super) fn alarm(&self, kind: journal::Alarm, reason: &str) {
        self.alarms.raise(kind, reason, self.machine.now(), self.machine.wall());
        let subject = journal::Subject {
            service: Some((&self.service, &self.unit)),
            holder: Some(&*self.holder).filter(|holder| !holder.is_empty()),
            revision: Some(self.revision),
            token: Some(self.token),
        };
        journal::alarm(kind, &subject, reason);
        self.notes.add(&*self.machine, What::Alarm, format!("{}: {reason}", kind.name()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, duplex};

    use super::*;
    use crate::daemon::fake::{Fake, settings, stopped_lease};
    use crate::daemon::machine::ThisMachine;
    use crate::guard_client::Link;
    use crate::guard_client::frame::{ListedLease, Of, Outcome, Reply, Request};
    use crate::types::Time;

    /// A guard that lists `listed`. `None`: it does not answer when it is asked for a lease.
    async fn serve(stream: DuplexStream, listed: Option<Vec<ListedLease>>) {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        while let Ok(1..) = stream.read_line(&mut line).await {
            let Request { id, of, .. } = serde_json::from_str(&line).expect("a request");
            line.clear();
            let leases = match &listed {
                None if of != Of::None => continue,
                listed => listed.clone().unwrap_or_default(),
            };
            let result = Outcome::Leases { leases, watchdog: None, trouble: None, version: None };
            let mut reply = serde_json::to_vec(&Reply { id, result }).expect("a reply");
            reply.push(b'\n');
            stream.write_all(&reply).await.expect("putexd reads");
        }
    }

    #[test]
    fn a_record_of_a_later_version_is_told_with_its_holder_and_how_long_that_is_waited_for() {
        let said = newer_record_in_words("h2", 2, Some(Duration::from_secs(20)));
        assert!(
            said.starts_with(
                "it has format 2, and this putexd knows formats up to 1: h2 holds the lock until the record"
            )
        );
        assert!(said.contains("has stood unchanged for 20s, which this host waits for;"), "{said}");
        assert!(newer_record_in_words("h2", 2, None).contains("waits as for an unknown holder"));
        assert!(newer_record_in_words("", 2, None).contains("nobody holds the lock"));
    }

    /// Whether `units` are dead by the word of a guard that lists `listed`.
    async fn are_dead(units: &UnitControl, listed: Option<Vec<ListedLease>>) -> bool {
        let (guard, connection) = GuardClient::over(Duration::from_secs(5), move || {
            let (near, far) = duplex(65_536);
            tokio::spawn(serve(far, listed.clone()));
            async { Ok(near) }
        });
        tokio::spawn(connection);
        guard.link().wait_for(|link| *link == Link::Up).await.expect("it is there");
        are_dead_by_guard(&guard, &settings().name, units).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_is_spared_by_the_guards_word_or_the_proof_and_waits_for_neither() {
        let machine = Arc::new(ThisMachine::new(Path::new("/nowhere")));
        let fake = Arc::new(Fake::default());
        let units = UnitControl::new(&settings(), Vec::new(), BTreeSet::new(), fake, machine);
        let unproven = ListedLease { stopped: false, ..stopped_lease() };
        assert!(are_dead(&units, Some(vec![stopped_lease()])).await);
        assert!(!are_dead(&units, Some(vec![unproven])).await, "the guard has no proof");
        assert!(!are_dead(&units, Some(Vec::new())).await, "the guard knows of no lease");
        let since = tokio::time::Instant::now();
        assert!(!are_dead(&units, None).await, "the guard hangs");
        assert!(since.elapsed() < GUARD_LIMIT * 2, "another host may start them meanwhile");
        units.stop(Some(Time::default()), None).await;
        assert!(are_dead(&units, Some(Vec::new())).await, "the proof came, and the guard has forgotten the lease");
    }

    #[test]
    fn the_last_line_names_the_unit_and_what_starts_it_again() {
        let transition = |from, to| Transition {
            from,
            to,
            reason: "putexd is stopped".to_owned(),
            holder: String::new(),
            revision: Revision(0),
            token: FencingToken(0),
        };
        let unit = UnitName::new("database.service").expect("a unit's name");
        let stopped = "database.service is stopped on this host".to_owned();
        let ended = |from, to, again, hindrance| ended(&transition(from, to), &unit, again, hindrance);
        assert_eq!(
            ended(State::Standby, State::Retired, Some("\"systemctl start putexd\""), None),
            Some(format!("{stopped}, and is not started again before \"systemctl start putexd\""))
        );
        assert_eq!(ended(State::Releasing, State::Retired, None, None), Some(stopped.clone()));
        for from in [State::Releasing, State::Lapsing] {
            assert_eq!(ended(from, State::Standby, None, None), Some(stopped.clone()));
            assert_eq!(
                ended(from, State::NoStore, None, Some("the store is out of reach")),
                Some(format!("{stopped}, which does not take the lock now: the store is out of reach"))
            );
        }
        assert_eq!(ended(State::NoStore, State::Standby, None, None), None);
        assert_eq!(ended(State::Starting, State::Active, None, None), None);
    }

    #[test]
    fn a_service_that_retires_is_not_told_to_be_refused() {
        let refusal = Refusal::Unasked;
        assert_eq!(Hears::of(&refusal, false, false), Hears::Error);
        assert_eq!(Hears::of(&refusal, false, true), Hears::Nothing);
        assert_eq!(Hears::of(&refusal, true, false), Hears::Alarm);
        let of_host = Refusal::Host("no room".to_owned());
        assert_eq!(Hears::of(&of_host, false, false), Hears::Nothing);
    }

    #[test]
    fn a_lease_that_is_not_renewed_is_told_once_and_its_renewal_once() {
        let at = |seconds| Time::both(Duration::from_secs(seconds));
        let waiting = || Some(Waiting::Renewal { since: at(1), deadline: at(20) });
        let mut overdue = Overdue::default();
        assert_eq!(overdue.hear(None, true, false, at(2)), None);
        let words = "last renewed 9.0s ago; stops in 10.0s unless the store takes a renewal before".to_owned();
        assert_eq!(overdue.hear(waiting(), true, false, at(10)), Some(Renewals::Fail(words)));
        assert_eq!(overdue.hear(waiting(), true, false, at(11)), None);
        let words = "renewed again after 11.0s".to_owned();
        assert_eq!(overdue.hear(None, true, false, at(12)), Some(Renewals::GoOn(words)));
        assert_eq!(overdue.hear(None, true, false, at(13)), None);
        // A lease that has ended was not renewed.
        assert!(overdue.hear(waiting(), true, false, at(14)).is_some());
        assert_eq!(overdue.hear(None, false, false, at(20)), None);
        assert_eq!(overdue.hear(None, true, false, at(30)), None);
        // What follows from the loss of the store is told with it, and so is its end.
        assert_eq!(overdue.hear(waiting(), true, true, at(40)), None);
        assert_eq!(overdue.hear(waiting(), true, false, at(41)), None);
        assert_eq!(overdue.hear(None, true, false, at(42)), None);
        assert!(overdue.hear(waiting(), true, false, at(50)).is_some());
        assert!(overdue.hear(None, true, true, at(51)).is_some());
    }
}
