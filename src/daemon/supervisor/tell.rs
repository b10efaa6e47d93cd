//! What clients of D-Bus and systemd are told of the services, and what operators have them do.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::retire::Retiring;
use super::{Supervisor, share};
use crate::cluster::history::Run;
use crate::cluster::report;
use crate::cluster::request::Verb;
use crate::cluster::view::{HostStatus, Life};
use crate::config::ServiceSettings;
use crate::daemon::notify;
use crate::daemon::service::{Answer, Handle, Order, Status};
use crate::dbus::{Ask, Description, ServiceStatus, Shown, ShownService, StoreStatus, TimingsStatus, Unread};
use crate::election::{Cause, Heard, Hindrance, Stage, State, Waiting, Word};
use crate::journal;
use crate::types::span::milliseconds;
use crate::types::{NodeId, ServiceName, Time, UnitName, printable};

/// A report may be read so long after it was written: one that a host wrote before it died says nothing of its life.
const READ_LATE: Duration = Duration::from_secs(15);

/// A holder that the store's silence has kept from renewing has so long to do it again before its own silence is told of.
const RECOVERY: Duration = Duration::from_secs(3);

impl Supervisor {
    /// Answers a D-Bus client from what this host knows, or does on this host what the client asks for.
    pub(super) fn answer_here(&mut self, ask: Ask) {
        match ask {
            Ask::Describe(answer) => {
                self.cluster.looked_at();
                let (services, store) = (self.statuses_of(|_| true), self.store_status());
                let _ = answer.send(Description { services, store, cluster: self.cluster.status() });
            }
            Ask::Service { service, answer } => {
                let statuses = self.statuses_of(|name| name.as_str() == service);
                let _ = answer.send(statuses.into_iter().find(|status| status.service == service));
            }
            Ask::History { service, answer } => self.tell_history(&service, answer),
            Ask::Do { verb, by, answer } => match verb {
                Verb::StepDown { service, reason, to } => {
                    self.order(&service, answer, |answer| Order::StepDown { reason, to, answer });
                }
                Verb::Adopt { service } => self.order(&service, answer, Order::Adopt),
                Verb::Stop { service, reason, until } => {
                    let word = Word::new(&by, &reason, self.host.machine.wall().as_secs(), until);
                    self.order(&service, answer, |answer| Order::Stop(word, answer));
                }
                Verb::Start { service } => {
                    let kept_by = self.kept_by_others(&service);
                    self.order(&service, answer, |answer| Order::Start { by, kept_by, answer });
                }
                Verb::Pause { service, reason, seconds } => {
                    let at = self.host.machine.wall().as_secs();
                    let word = Word::new(&by, &reason, at, Some(at.saturating_add(seconds)));
                    self.order(&service, answer, |answer| Order::Pause(word, answer));
                }
                Verb::Resume { service } => self.order(&service, answer, |answer| Order::Resume(by, answer)),
                Verb::Drain { reason, until, force } => {
                    let at = self.host.machine.wall().as_secs();
                    self.drain(report::Word { by, reason, at, until }, force, answer);
                }
                Verb::Undrain => self.undrain(&by, answer),
                Verb::ConfirmDead { node } => {
                    let _ = answer.send(self.confirm_dead(&node, &by).map_err(Into::into));
                }
            },
        }
    }

    /// Hands an order to a service, which answers the client. If that is not possible the client is told why.
    pub(super) fn order(&self, service: &ServiceName, answer: Answer, order: impl FnOnce(Answer) -> Order) {
        let Some(handle) = self.services.get(service) else {
            let why = if self.observers.has(service) {
                format!("say it on a host that runs {service}: it is only observed here (mode = \"observe\")")
            } else {
                format!("no service is called {service}")
            };
            let _ = answer.send(Err(why.into()));
            return;
        };
        let untaken = handle.orders.give(order(answer)).err();
        if let Some(answer) = untaken.and_then(Order::into_answer) {
            let _ = answer.send(Err(format!("the election of {service} does not answer").into()));
        }
    }

    /// The other hosts that keep a service stopped because of a word that the store has lost, as they report.
    fn kept_by_others(&self, service: &ServiceName) -> Vec<String> {
        let cluster = self.cluster.status();
        let (lost, own) = (journal::Alarm::StopLost.kind(), self.host.node.as_str());
        let of_service = |host: &HostStatus| {
            let told = host.services.iter().find(|told| told.service == service.as_str());
            told.is_some_and(|told| told.alarms.iter().any(|alarm| alarm.kind == lost))
        };
        let keeps = |host: &&HostStatus| host.report.node != own && host.life() == Life::Reports && of_service(host);
        cluster.hosts.iter().filter(keeps).map(|host| host.report.node.clone()).collect()
    }

    /// Takes an operator's word that a host is off, and ends the wait for its fencing.
    fn confirm_dead(&self, node: &NodeId, by: &str) -> Result<String, String> {
        if *node == self.host.node {
            return Err(format!("name the host that is off: {node} is this host, which is up"));
        }
        let services = self.host.fencings.confirm(node, by, self.host.machine.now())?;
        let names: Vec<&str> = services.iter().map(ServiceName::as_str).collect();
        let names = names.join(" and ");
        let reason = format!("{by} says that {node} is off, so that its fencing is not waited for by {names}");
        let subject = journal::Subject { holder: Some(node.as_str()), ..journal::Subject::default() };
        journal::alarm(journal::Alarm::ConfirmedDead, &subject, &reason);
        let reason = format!("keep {node} off until it was looked at: {reason}");
        self.host.tidings.stand(journal::Alarm::ConfirmedDead, &reason);
        for handle in services.iter().filter_map(|service| self.services.get(service)) {
            // A full channel would mean a loop that stands still, which the watchdog ends.
            let _ = handle.orders.give(Order::TryAgain);
        }
        Ok(format!(
            "the fencing of {node} is not waited for by {names}, for 10 minutes or until {node} is seen again; nothing starts \
             earlier than the clock permits"
        ))
    }

    /// Ends an operator's word that a host is off once that host reports again. A host that holds no lock is seen in no other way.
    pub(super) fn end_words_on_the_dead(&self) {
        let (fencings, now) = (&self.host.fencings, self.host.machine.now());
        if !fencings.has_word_now(now) {
            return;
        }
        for host in self.cluster.status().hosts {
            let Some(silent) = host.reported_ms.map(Duration::from_millis) else { continue };
            let node = host.report.node;
            if fencings.see(&node, now.minus(silent.saturating_add(READ_LATE))) {
                tracing::warn!("{node} reports again, and is fenced again where that is necessary");
            }
        }
        if !fencings.has_word_now(now) {
            self.host.tidings.end(journal::Alarm::ConfirmedDead);
        }
    }

    /// Reads what the store has of the history of the service's lock, beside all else.
    fn tell_history(&self, service: &ServiceName, answer: oneshot::Sender<Result<Vec<Run>, Unread>>) {
        let run = self.services.get(service).map(|handle| handle.settings.key.clone());
        let Some(lock) = run.or_else(|| self.observers.key(service)) else {
            let why = format!("look at \"putexctl status {service}\": it has no file on this host, or a broken one");
            let _ = answer.send(Err(Unread::Unknown(why)));
            return;
        };
        let (history, notes) = (self.host.history.clone(), Arc::clone(&self.host.notes));
        let now = self.host.machine.wall();
        tokio::spawn(async move {
            let read = history.read(&*notes, &lock, now).await;
            let _ = answer.send(
                read.map(|history| history.runs)
                    .map_err(|why| Unread::Store(format!("see that the store can be reached: {why}"))),
            );
        });
    }

    pub(super) fn store_status(&self) -> StoreStatus {
        self.silences.status(self.store_settings.address().to_string())
    }

    /// Has the properties on the bus show what is so now.
    pub(super) fn show_on_bus(&self) {
        let mut others: Vec<ServiceStatus> = self.observers.statuses().collect();
        others.extend(self.broken.rows(|name| self.services.contains_key(name) || self.observers.has(name)));
        others.extend(self.coming.iter().map(|service| self.row_of_coming(service)));
        let drained = self.host.drain.word().is_some();
        self.on_bus.send_if_modified(|shown| {
            let mut is_new = std::mem::replace(&mut shown.drained, drained) != drained;
            let mut names = BTreeSet::new();
            // What comes first counts: a service that ends here is seen until it has ended.
            let retiring = self.retiring.iter().map(|retiring| &retiring.handle);
            for handle in self.services.values().chain(retiring) {
                let (settings, status) = (&handle.settings, handle.status.borrow());
                if names.insert(settings.name.as_str()) {
                    let now = (settings.unit.as_str(), status.state.as_str(), status.holder.as_str(), status.since);
                    is_new |= show_service(shown, settings.name.as_str(), now);
                }
            }
            for status in &others {
                if names.insert(&status.service) {
                    let now = (&*status.unit, &*status.state, &*status.holder, status.since.unwrap_or_default());
                    is_new |= show_service(shown, &status.service, now);
                }
            }
            let count = shown.services.len();
            shown.services.retain(|name, _| names.contains(name.as_str()));
            is_new || shown.services.len() != count
        });
    }

    /// The status of the services that are `wanted`, and of those that do not run because their file is broken.
    fn statuses_of(&self, wanted: impl Fn(&ServiceName) -> bool) -> Vec<ServiceStatus> {
        let now = self.host.machine.now();
        let trouble = self.store_status().trouble_in_short();
        let of_service = |(name, handle): (&ServiceName, &Handle)| {
            let broken = self.broken.goes_on(name).filter(|_| !self.is_barred(name, handle));
            status_of(&handle.settings, &handle.status.borrow(), now, broken, trouble.as_deref())
        };
        let chosen = self.services.iter().filter(|(name, _)| wanted(name));
        let mut all: Vec<ServiceStatus> = chosen.map(of_service).collect();
        all.extend(self.observers.statuses());
        all.extend(self.broken.rows(|name| self.services.contains_key(name) || self.observers.has(name)));
        for Retiring { handle, .. } in &self.retiring {
            let name = &handle.settings.name;
            if wanted(name) && !all.iter().any(|status| status.service == name.as_str()) {
                all.push(status_of(&handle.settings, &handle.status.borrow(), now, None, trouble.as_deref()));
            }
        }
        for service in self.coming.iter().filter(|service| wanted(&service.name)) {
            if !all.iter().any(|status| status.service == service.name.as_str()) {
                all.push(self.row_of_coming(service));
            }
        }
        all.sort_by(|one, other| one.service.cmp(&other.service));
        all
    }

    /// The status of a service that has not begun here yet.
    fn row_of_coming(&self, service: &ServiceSettings) -> ServiceStatus {
        let before = self.retiring.iter().map(|retiring| &retiring.handle.settings);
        let before: Vec<&str> = before.filter(|other| share(other, service)).map(|other| other.name.as_str()).collect();
        let waits = if before.is_empty() {
            "begins when the guard has said what it remembers of it".to_owned()
        } else {
            format!("begins when {} has stopped here, which has the same unit or the same lock", before.join(" and "))
        };
        ServiceStatus {
            service: service.name.to_string(),
            unit: service.unit.to_string(),
            key: service.key.to_string(),
            // It has not read the lock yet.
            state: State::NoStore.to_string(),
            waits,
            ..ServiceStatus::default()
        }
    }

    /// Notes which hosts have lost a lock to this one because they fell silent.
    fn see_losses(&mut self) {
        for (name, handle) in &self.services {
            let status = handle.status.borrow();
            let Some(Waiting::Entitlement { why, .. } | Waiting::Unproven { why, .. }) = &status.waiting else {
                continue;
            };
            let Cause::Silent { holder, heard } = &why.cause else { continue };
            if status.state == State::Confirming && self.taken.insert(name.clone(), *heard) != Some(*heard) {
                let (Heard::Renewed(at) | Heard::Found(at)) = heard;
                // A host that was last heard of before the store was away had no store either, and its report tells whether it is up.
                let returned = self.silences.returned().map(|ago| self.host.machine.now().minus(ago).plus(RECOVERY));
                if returned.is_none_or(|returned| at.boot > returned.boot) {
                    self.cluster.lose(holder, at.boot);
                }
            }
        }
        self.taken.retain(|name, _| self.services.contains_key(name));
    }

    pub(super) fn show(&mut self) {
        self.see_losses();
        self.show_on_bus();
        let states = self.services.values().map(|handle| (handle.status.borrow().state, handle)).collect();
        let drained = if self.host.drain.word().is_some() { " (this host is drained)" } else { "" };
        let count = format!("{}{drained}", self.count());
        let shown = notify::in_one_line(&count, states, |handle: &&Handle| {
            let (name, told) = (&handle.settings.name, handle.status.borrow());
            let holder = match (told.state, told.holder.as_str()) {
                (State::Standby, _) if told.stopped.is_some() => " (stopped everywhere)".to_owned(),
                (State::Standby, "") => " (nobody holds it)".to_owned(),
                (State::Standby, holder) => match told.waiting {
                    Some(Waiting::OwnRecord { .. }) => " (nobody is known to hold it)".to_owned(),
                    Some(Waiting::Store { .. }) => " (the store does not answer)".to_owned(),
                    Some(Waiting::Holder { stage: Stage::Claims, .. }) => format!(" ({holder} has claimed it)"),
                    Some(Waiting::Holder { stage: Stage::GaveUp, .. }) => format!(" ({holder} gave up before a start)"),
                    Some(_) | None => format!(" ({holder} holds it)"),
                },
                _ => String::new(),
            };
            format!("{name} {}{holder}", told.state)
        });
        let shown = self.broken.in_short().into_iter().chain([shown]).collect::<Vec<_>>().join("; ");
        if shown != self.shown {
            notify::status(&shown);
            self.shown = shown;
        }
    }

    pub(super) fn count(&self) -> String {
        match self.services.len() {
            1 => "1 service".to_owned(),
            count => format!("{count} services"),
        }
    }
}

/// Changes what is shown of a service, and returns whether it was something else.
fn show_service(shown: &mut Shown, name: &str, now: (&str, &str, &str, u64)) -> bool {
    let is_so = |before: &ShownService| (&*before.unit, &*before.state, &*before.holder, before.since) == now;
    if shown.services.get(name).is_some_and(is_so) {
        return false;
    }
    let (unit, state, holder, since) = now;
    let (unit, state, holder) = (unit.to_owned(), state.to_owned(), printable(holder).into_owned());
    shown.services.insert(name.to_owned(), ShownService { unit, state, holder, since });
    true
}

/// One service's status for D-Bus clients. `broken`: what is wrong with its file while it goes on. `trouble`: what is wrong
/// with the store, in short.
fn status_of(
    settings: &ServiceSettings,
    status: &Status,
    now: Time,
    broken: Option<String>,
    trouble: Option<&str>,
) -> ServiceStatus {
    let waits = status.waiting.as_ref().map(|waiting| waiting.in_words(now));
    let unproven = status.unproven.clone();
    let spans = Spans::of(status.waiting.as_ref(), now);
    let next_try = match &status.hindrance {
        Some(Hindrance::BackOff(Waiting::BackOff { until, .. })) => Some(milliseconds(now.until_waited(*until))),
        Some(Hindrance::BackOff(_) | Hindrance::Reason(_)) | None => None,
    };
    let names = |units: &[UnitName]| units.iter().map(ToString::to_string).collect();
    // What to do about the store is told once, and not with each service.
    let cause = trouble.filter(|_| status.waiting.as_ref().is_some_and(Waiting::is_for_the_store)).map(str::to_owned);
    ServiceStatus {
        service: settings.name.to_string(),
        unit: settings.unit.to_string(),
        bound_units: names(&settings.bound_units),
        contains: names(&settings.contains),
        key: settings.key.to_string(),
        state: status.state.to_string(),
        since: Some(status.since),
        holder: status.holder.clone(),
        held_since: status.held_since,
        held_longer: status.held_longer,
        silent_ms: spans.silent,
        lease_left_ms: status.deadline.map(|deadline| milliseconds(now.until_passed(deadline))),
        stopped: status.stopped.as_ref().map(word_of),
        paused: status.paused.as_ref().map(word_of),
        takeable_ms: spans.takeable,
        starts_ms: spans.starts,
        revision: status.revision.0,
        token: status.token.0,
        ran_until: status.ran_until,
        ran_on: status.ran_on.clone(),
        remembered_ms: milliseconds(status.remembered),
        remembered_until: status.remembered_until,
        hindrance: status.hindrance.as_ref().map(|hindrance| hindrance.in_words(now)).unwrap_or_default(),
        waits: cause.into_iter().chain(waits).chain(unproven).collect::<Vec<_>>().join("; "),
        alarms: status.alarms.clone(),
        health: status.health.clone(),
        failure: status.failure.clone(),
        next_try_ms: next_try,
        remarks: broken.into_iter().chain(status.remarks.iter().cloned()).collect(),
        timings: Some(timings_of(settings)),
        settings: settings.agreement(),
        ..ServiceStatus::default()
    }
}

fn word_of(word: &Word) -> report::Word {
    let Word { by, reason, at, until } = word.clone();
    report::Word { by, reason, at, until }
}

/// What a service waits for, as spans in milliseconds.
#[derive(Debug, Default, PartialEq, Eq)]
struct Spans {
    silent: Option<u64>,
    takeable: Option<u64>,
    starts: Option<u64>,
}

impl Spans {
    fn of(waiting: Option<&Waiting>, now: Time) -> Self {
        let since = |heard: &Heard| match heard {
            Heard::Renewed(at) => Some(milliseconds(now.since_at_least(*at))),
            Heard::Found(_) => None,
        };
        let until = |at: Time| milliseconds(now.until_waited(at));
        match waiting {
            Some(Waiting::Holder { heard, take_at, .. }) => {
                Self { silent: since(heard), takeable: take_at.map(until), ..Self::default() }
            }
            Some(Waiting::Store { holder: Some((_, heard)) }) => Self { silent: since(heard), ..Self::default() },
            Some(Waiting::OwnRecord { take_at, .. }) => Self { takeable: take_at.map(until), ..Self::default() },
            Some(Waiting::Turn { until: at }) => Self { takeable: Some(until(*at)), ..Self::default() },
            Some(Waiting::Entitlement { until: at, .. }) => Self { starts: Some(until(*at)), ..Self::default() },
            Some(Waiting::Unproven { take_at, start_at, .. }) => {
                Self { takeable: Some(until(*take_at)), starts: Some(until(*start_at)), ..Self::default() }
            }
            Some(_) | None => Self::default(),
        }
    }
}

fn timings_of(settings: &ServiceSettings) -> TimingsStatus {
    let timings = &settings.timings;
    TimingsStatus {
        renew_interval_ms: milliseconds(timings.renew_interval),
        failures: timings.failures.into(),
        confirmations: timings.confirmations.into(),
        lease_ms: milliseconds(timings.lease()),
        margin_ms: milliseconds(timings.margin),
        stop_budget_ms: milliseconds(timings.stop_budget),
        hold_ms: milliseconds(timings.hold()),
        wait_ms: milliseconds(timings.wait(timings.hold())),
        failover_ms: milliseconds(settings.failover()),
        stop_limit_ms: milliseconds(settings.stop_limit),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::daemon::fake::settings;

    fn status(waiting: Waiting) -> Status {
        Status { waiting: Some(waiting), ..Status::unknown(0) }
    }

    #[test]
    fn whoever_waits_for_the_store_says_since_when() {
        let now = Time::both(Duration::from_secs(100));
        let waits = |waiting| status_of(&settings(), &status(waiting), now, None, Some("store lost 12.0s ago")).waits;
        let store = Waiting::Store { holder: None }.in_words(now);
        assert_eq!(waits(Waiting::Store { holder: None }), format!("store lost 12.0s ago; {store}"));
        assert!(waits(Waiting::Claim).starts_with("store lost 12.0s ago; waits for the store to take its claim; "));
        let (since, deadline) = (Time::both(Duration::from_secs(88)), Time::both(Duration::from_secs(104)));
        assert_eq!(
            waits(Waiting::Renewal { since, deadline }),
            "store lost 12.0s ago; last renewed 12.0s ago; stops in 4.0s unless the store takes a renewal before"
        );
        assert_eq!(waits(Waiting::Starting), Waiting::Starting.in_words(now));
    }
}
