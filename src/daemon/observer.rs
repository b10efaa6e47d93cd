//! Services with `mode = "observe"`: this host takes part in nothing, and tells what it would do.
//!
//! An observer reads the lock and looks at the unit, each about every R, and has no way to do more: it is given no writes, no
//! guard and no verbs of systemd that change anything. What it tells is what the first rules of the protocol (taking, K2; standby)
//! would have a host do that sees the same. It says nothing of waits that only a tenure knows, such as those of fencing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::host::Host;
use super::observation::observation;
use crate::cluster::report::OBSERVED;
use crate::config::ServiceSettings;
use crate::dbus::ServiceStatus;
use crate::election::{Content, Observation, rounded};
use crate::systemd::ActiveState;
use crate::task::OwnedTask;
use crate::types::{Key, NodeId, Revision, ServiceName, Time, UnitName};

/// The services that are observed on this host.
#[derive(Default)]
pub(super) struct Observers(BTreeMap<ServiceName, Observer>);

struct Observer {
    settings: Arc<ServiceSettings>,
    seen: watch::Receiver<Seen>,
    _task: OwnedTask,
}

/// What was seen last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Seen {
    holder: String,
    revision: Revision,
    token: u64,
    /// Whether the unit runs on this host.
    runs: bool,
    would: String,
}

impl Observers {
    /// Observes `services`, and those of the services observed before that `goes_on` names. Returns the changes in words.
    pub(super) fn replace(
        &mut self,
        host: &Host,
        services: Vec<ServiceSettings>,
        goes_on: impl Fn(&ServiceName) -> bool,
        changed: &Arc<Notify>,
    ) -> Vec<String> {
        let mut former = std::mem::take(&mut self.0);
        let mut told = Vec::new();
        for settings in services {
            let name = settings.name.clone();
            let observer = match former.remove(&name) {
                Some(observer) if *observer.settings == settings => observer,
                _ => {
                    told.push(format!("{name} is observed"));
                    Observer::begin(host, Arc::new(settings), Arc::clone(changed))
                }
            };
            self.0.insert(name, observer);
        }
        for (name, observer) in former {
            if goes_on(&name) {
                self.0.insert(name, observer);
            } else {
                told.push(format!("{name} is not observed any more"));
            }
        }
        told
    }

    pub(super) fn has(&self, name: &ServiceName) -> bool {
        self.0.contains_key(name)
    }

    /// The lock's key of a service that is observed.
    pub(super) fn key(&self, name: &ServiceName) -> Option<Key> {
        self.0.get(name).map(|observer| observer.settings.key.clone())
    }

    pub(super) fn statuses(&self) -> impl Iterator<Item = ServiceStatus> {
        self.0.values().map(|observer| {
            let (settings, seen) = (&observer.settings, observer.seen.borrow());
            ServiceStatus {
                service: settings.name.to_string(),
                unit: settings.unit.to_string(),
                bound_units: settings.bound_units.iter().map(UnitName::to_string).collect(),
                key: settings.key.to_string(),
                observes: true,
                state: OBSERVED.to_owned(),
                holder: seen.holder.clone(),
                revision: seen.revision.0,
                token: seen.token,
                hindrance: format!(
                    "it is only observed here (mode = \"observe\"), and {} {}",
                    settings.unit,
                    if seen.runs { "runs" } else { "does not run" }
                ),
                waits: seen.would.clone(),
                settings: settings.agreement(),
                ..ServiceStatus::default()
            }
        })
    }
}

impl Observer {
    fn begin(host: &Host, settings: Arc<ServiceSettings>, changed: Arc<Notify>) -> Self {
        let (show, seen) = watch::channel(Seen::default());
        let task = host.machine.spawn(Box::pin(observe(host.clone(), Arc::clone(&settings), show, changed)));
        Self { settings, seen, _task: task.into() }
    }
}

/// Looks at the lock and the unit about every R, and tells what this host would do each time that this changes.
async fn observe(host: Host, settings: Arc<ServiceSettings>, show: watch::Sender<Seen>, changed: Arc<Notify>) {
    let interval = settings.timings.renew_interval;
    // The services of a host are read one after another, and not all at the same moment.
    let part = u32::try_from(host.machine.random() % 64).unwrap_or(0);
    sleep(interval * part / 64).await;
    let mut lock: Option<Lock> = None;
    loop {
        let read = timeout(settings.timings.call_limit(), host.store.read(&settings.key, None)).await;
        let now = host.machine.now();
        let unit = host.systemd.brief(&settings.unit).await.ok().map(|brief| brief.active_state);
        let would = if let Ok(Ok(snapshot)) = read {
            lock = Some(Lock::see(lock, observation(snapshot), now));
            let seen = lock.as_ref();
            seen.map_or_else(String::new, |lock| lock.would(&host.node, &settings, unit.as_ref(), now))
        } else {
            // What happened meanwhile is not known.
            lock = None;
            "would stay on standby, because the store does not answer".to_owned()
        };
        let record = lock.as_ref().and_then(|lock| lock.shown.content.record());
        let seen = Seen {
            holder: record
                .filter(|record| record.is_held())
                .map(|record| record.holder.to_string())
                .unwrap_or_default(),
            revision: lock.as_ref().map_or(Revision(0), |lock| lock.shown.revision),
            token: record.and_then(|record| record.details.as_ref()).map_or(0, |details| details.token.0),
            runs: unit.is_some_and(|state| !state.is_stopped()),
            would,
        };
        let is_new = show.borrow().would != seen.would;
        if is_new {
            let (name, unit) = (&settings.name, settings.unit.as_str());
            tracing::info!(
                OBJECT_SYSTEMD_UNIT = unit,
                PUTEX_SERVICE = name.as_str(),
                "{name}: observed: {}",
                seen.would
            );
        }
        show.send_if_modified(|shown| std::mem::replace(shown, seen.clone()) != seen);
        if is_new {
            changed.notify_one();
        }
        sleep(interval).await;
    }
}

/// The lock as it was seen last.
#[derive(Debug, Clone)]
struct Lock {
    shown: Observation,
    /// Since when it is as it was shown.
    since: Time,
}

impl Lock {
    fn see(before: Option<Self>, shown: Observation, now: Time) -> Self {
        match before {
            Some(before) if before.shown == shown => before,
            _ => Self { shown, since: now },
        }
    }

    /// What a host that takes part would do now. The words change only where the answer does.
    fn would(&self, node: &NodeId, settings: &ServiceSettings, unit: Option<&ActiveState>, now: Time) -> String {
        let (name, timings) = (&settings.unit, &settings.timings);
        let runs = unit.is_some_and(|state| !state.is_stopped());
        let record = match &self.shown.content {
            Content::Record(record) if record.is_held() => Some(record),
            Content::Record(_) | Content::Absent | Content::Tombstone => None,
        };
        let own = record.is_some_and(|record| record.holder == *node);
        let stop = |why: &str| format!("would stop {name}, which runs here without the lock; {why}");
        let Some(record) = record else {
            let then = match &self.shown.content {
                // A holder that nobody knows of may live, so that a start waits.
                Content::Absent | Content::Tombstone => {
                    format!("start {name} after {}", rounded(timings.wait(timings.usual_hold())))
                }
                Content::Record(_) => format!("start {name}"),
            };
            let take = format!("would take the lock now and {then}: nobody holds it");
            return if runs { stop(&take) } else { take };
        };
        let lease = record.details.as_ref().map_or(Duration::ZERO, |details| details.lease);
        let holder = &record.holder;
        let is_silent = now.has_waited_until(self.since.plus(timings.takeover_wait(lease)));
        let stays = if is_silent {
            format!(
                "would take the lock now: {holder} has not renewed it for {}",
                rounded(timings.takeover_wait(lease))
            )
        } else if own {
            "would wait for its own former record to age".to_owned()
        } else {
            format!("would stay on standby: {holder} holds the lock")
        };
        if runs { stop(&stays) } else { stays }
    }
}

/// The services that take part, and those that are only observed.
pub(super) fn apart(services: Vec<ServiceSettings>) -> (Vec<ServiceSettings>, Vec<ServiceSettings>) {
    services.into_iter().partition(|service| !service.observes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::fake::settings;
    use crate::election::{Details, OperatorNote, Record, Standing, Timings};
    use crate::types::{FencingToken, Holder, Incarnation, Instance, MachineId, WriteId};

    fn at(seconds: u64) -> Time {
        Time::both(Duration::from_secs(seconds))
    }

    fn timings() -> Timings {
        Timings::new(Duration::from_secs(1), 3, 1)
    }

    fn shown(holder: &str, revision: u64) -> Observation {
        let timings = timings();
        let details = Details {
            machine: MachineId(1),
            instance: Instance(1),
            write: WriteId(revision.into()),
            standing: if holder.is_empty() { Standing::Proven } else { Standing::Active },
            lease: timings.lease(),
            hold: timings.hold(),
            passing: None,
            token: FencingToken(5),
            prev: None,
            unfenced: Vec::new(),
            units: Vec::new(),
            holders: Vec::new(),
            note: OperatorNote::default(),
        };
        Observation {
            incarnation: Incarnation("a".to_owned()),
            revision: Revision(revision),
            content: Content::Record(Record::new(Holder::decode(holder.as_bytes()), Some(details))),
        }
    }

    #[test]
    fn it_tells_what_a_host_would_do_that_takes_part() {
        let node = NodeId::new("h1").expect("a node's name");
        let settings = ServiceSettings { timings: timings(), ..settings() };
        let would = |lock: &Lock, unit: ActiveState, now| lock.would(&node, &settings, Some(&unit), now);
        let held = Lock::see(None, shown("h2", 7), at(10));
        assert_eq!(would(&held, ActiveState::Inactive, at(11)), "would stay on standby: h2 holds the lock");
        let unit = &settings.unit;
        assert_eq!(
            would(&held, ActiveState::Active, at(11)),
            format!("would stop {unit}, which runs here without the lock; would stay on standby: h2 holds the lock")
        );
        // It is renewed, and then it is not.
        let renewed = Lock::see(Some(held), shown("h2", 8), at(12));
        let silent = Lock::see(Some(renewed), shown("h2", 8), at(13));
        assert_eq!(silent.since, at(12));
        let late = at(12 + 60);
        assert!(
            would(&silent, ActiveState::Inactive, late).starts_with("would take the lock now: h2 has not renewed it")
        );
        let free = Lock::see(Some(silent), shown("", 9), at(80));
        let words = format!("would take the lock now and start {unit}: nobody holds it");
        assert_eq!(would(&free, ActiveState::Inactive, at(80)), words);
    }
}
