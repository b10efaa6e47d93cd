//! The cluster as one picture: who runs what, put together from what this host sees of the locks and what all hosts say.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::facts::{
    Activity, At, Bar, Candidate, ClusterState, KnownHost, LockState, NotTaking, Presence, Seen,
    ServiceState, ServiceSummary, State, StoreState, TimingsState, Wait, Word,
};

/// A host whose report has not changed for so long is silent. It reports three times as often.
pub const SILENT: Duration = Duration::from_secs(30);
/// A store that gives no answer for less than this time is not said to be wrong: a connection that is made anew takes less.
pub const CONNECTS: Duration = Duration::from_secs(1);
/// A report that comes so long after a tenure was seen tells of that tenure. It may have been under way before.
const REPORTED: Duration = Duration::from_secs(5);
/// A report that is seen so soon after the store has come back may be one that was written before it was away.
const FOUND: Duration = Duration::from_secs(3);
/// A holder is silent after two intervals, and as long as a renewal may be on its way.
const ON_ITS_WAY: Duration = Duration::from_millis(500);

/// Puts together what is known of the services, from what is known of the hosts; `own`: the services of this host, by name.
pub fn with_services(
    mut cluster: ClusterState,
    own: BTreeMap<String, ServiceState>,
    store: StoreState,
) -> ClusterState {
    let mut hosts = cluster.hosts.iter_mut();
    if let Some(this) = hosts.find(|host| host.node() == cluster.node) {
        this.services = own;
    }
    cluster.store = store;
    let names: BTreeSet<&String> = cluster
        .hosts
        .iter()
        .flat_map(|host| host.services.keys())
        .collect();
    cluster.services = names
        .into_iter()
        .map(|name| KnownService::new(&cluster, name).summary())
        .collect();
    cluster
}

/// What is known of one service.
struct KnownService<'a> {
    name: &'a str,
    cluster: &'a ClusterState,
    /// What this host says of it. `None`: it does not have it, or its file has another key than that of the lock that is held.
    here: Option<&'a ServiceState>,
}

/// What is known of a holder, beside what this host sees of the lock.
struct KnownHolder<'a> {
    name: &'a str,
    is_here: bool,
    host: Option<&'a KnownHost>,
    /// What it says of the service, if that is of this tenure and not an old report.
    report: Option<&'a ServiceState>,
    /// Whether it has reported before the store was away, and this host has not seen it renew its lease since.
    is_stale: bool,
}

impl<'a> KnownService<'a> {
    fn new(cluster: &'a ClusterState, name: &'a str) -> Self {
        let this = cluster.host(&cluster.node);
        let mut service = Self {
            name,
            cluster,
            here: this.and_then(|host| host.services.get(name)),
        };
        let is_held_by_another_key = |key: &str| {
            service.alive().any(|(host, state)| {
                host.node() != cluster.node && state.is_held() && state.key != key
            })
        };
        service.here = service
            .here
            .filter(|here| here.holder().is_some() || !is_held_by_another_key(&here.key));
        service
    }

    fn summary(&self) -> ServiceSummary {
        let holder = self.holder().map(|name| self.known_holder(name));
        let holder = holder.as_ref();
        let activity = match holder {
            Some(holder) => self.activity(holder),
            None => self.activity_without_holder(),
        };
        let last_run = self.lock().and_then(|lock| lock.last_run.as_ref());
        let last_run = last_run.filter(|last| {
            activity == Activity::Lapsed && holder.is_some_and(|holder| holder.name == last.host)
        });
        let since = last_run.map(|last| last.until);
        let report = holder.and_then(|holder| holder.report);
        let stale = holder.filter(|holder| holder.is_stale);
        ServiceSummary {
            service: self.name.to_owned(),
            unit: self.unit(),
            activity,
            since: since.or_else(|| self.since(activity, holder)),
            lease_until: holder.and_then(|holder| lease_until(self.here?, holder.is_here)),
            token: self
                .lock()
                .and_then(|lock| lock.token)
                .or(report.and_then(|report| report.token)),
            stopped: self.here.and_then(|here| here.stopped.clone()),
            paused: self.here.and_then(|here| here.paused.clone()),
            said: stale.and_then(|holder| holder.host?.reported),
            hosts: self.candidates(holder.map(|holder| holder.name)),
            holder: holder.map(|holder| holder.name.to_owned()),
        }
    }

    /// The lock, as this host sees it.
    fn lock(&self) -> Option<&'a LockState> {
        self.here?.lock.as_ref()
    }

    /// The hosts that are not silent, with what they say of the service.
    fn alive(&self) -> impl Iterator<Item = (&'a KnownHost, &'a ServiceState)> {
        let hosts = self.cluster.hosts.iter();
        hosts
            .filter(|host| !host.is_silent())
            .filter_map(|host| Some((host, host.services.get(self.name)?)))
    }

    fn holder(&self) -> Option<&'a str> {
        match self.here {
            Some(here) if here.holder().is_some() => here.holder(),
            Some(here) if here.is_held() => Some(&self.cluster.node),
            // This host reads the lock itself, and nobody holds it.
            Some(here) if here.state.is_some_and(|state| state != State::NoStore) => None,
            Some(_) | None => {
                let holder = self.cluster.hosts.iter().find(|host| host.holds(self.name));
                holder.map(KnownHost::node)
            }
        }
    }

    fn known_holder(&self, name: &'a str) -> KnownHolder<'a> {
        let host = self.cluster.host(name);
        let alive = host.filter(|host| !host.is_silent());
        // A report of an earlier tenure says nothing of this one.
        let token = self.lock().and_then(|lock| lock.token);
        let report = alive
            .and_then(|host| host.services.get(self.name))
            .filter(|report| report.token.is_none_or(|own| Some(own) >= token));
        let is_here = name == self.cluster.node;
        let is_seen = is_here || self.here.is_none_or(|here| renewed(here).is_some());
        // What was reported before the store was away says nothing of what has become of the unit meanwhile.
        let reported = host.and_then(|host| host.reported);
        let is_of_before = self.cluster.store.returned.is_some_and(|returned| {
            reported.is_none_or(|reported| reported < returned.plus(FOUND))
        });
        KnownHolder {
            name,
            is_here,
            host,
            report,
            is_stale: is_of_before && !is_seen && host.is_none_or(|host| !host.is_silent()),
        }
    }

    /// For how long the store has given this host no answer.
    fn storeless(&self) -> Option<Duration> {
        let since = self.cluster.store.silent_since;
        since.map(|since| since.since(self.cluster.at))
    }

    fn activity_without_holder(&self) -> Activity {
        let is_only_observed =
            self.alive().next().is_some() && self.alive().all(|(_, state)| state.is_observed());
        match self.here {
            _ if is_only_observed => Activity::Observed,
            Some(here) if here.stopped.is_some() => Activity::Stopped,
            Some(here) if here.is_broken() => Activity::Broken,
            Some(here) if here.state == Some(State::NoStore) => Activity::Unknown,
            Some(_) if self.storeless().is_none() && !self.cluster.begins() => Activity::NoHolder,
            Some(_) | None => Activity::Unknown,
        }
    }

    fn activity(&self, holder: &KnownHolder<'_>) -> Activity {
        let (is_here, here) = (holder.is_here, self.here);
        let own = here.filter(|_| is_here).and_then(|here| here.state);
        let state = own.or(holder.report.and_then(|report| report.state));
        let host_seen = holder.host.and_then(|host| host.seen);
        // Without the store nothing is heard of the holder, and its last report is as old as the last that was seen of it.
        let is_blind = here.is_some_and(|here| here.state == Some(State::NoStore));
        let seen = here.and_then(renewed);
        let is_silent = match seen.or(host_seen.filter(|_| is_blind)) {
            Some(at) => is_overdue(
                here.and_then(|here| here.timings.as_ref()),
                at,
                self.cluster.at,
            ),
            // Nobody has seen it renew anything, and its last report is old, or this host would not hear of a later one.
            None => {
                holder.host.is_some_and(KnownHost::is_silent)
                    || self.storeless().is_some_and(|silent| silent >= CONNECTS)
            }
        };
        // A report counts if it was made after the tenure was seen here.
        let since = self.lock().and_then(|lock| lock.since);
        let is_of_tenure =
            (since.zip(host_seen)).is_some_and(|(since, seen)| seen > since.plus(REPORTED));
        match state {
            _ if !is_here && is_silent => Activity::Silent,
            _ if holder.is_stale => Activity::Held,
            // Its own unit is stopped, and another host may run its own.
            Some(State::Standby | State::Retired) if is_here && self.storeless().is_some() => {
                Activity::Unknown
            }
            // Another machine is seen to renew it under this host's name.
            Some(State::Standby) if is_here && seen.is_some() => Activity::Held,
            Some(State::Standby | State::Retired) if is_here || is_of_tenure => Activity::Lapsed,
            Some(State::NoStore) if is_here => Activity::Unknown,
            Some(State::Active) if here.is_some_and(|here| here.paused.is_some()) => {
                Activity::Paused
            }
            Some(State::Confirming | State::Fencing | State::Starting) => Activity::Starting,
            Some(State::Active) => Activity::Running,
            Some(State::Releasing | State::Lapsing) => Activity::Stopping,
            Some(State::Standby | State::Retired | State::NoStore) | None => Activity::Held,
        }
    }

    /// Since when it is so.
    fn since(&self, activity: Activity, holder: Option<&KnownHolder<'_>>) -> Option<At> {
        let said = |word: &Option<Word>| Some(At::seconds(word.as_ref()?.at));
        let since = match (holder, self.here) {
            (None, here) => here.and_then(|here| said(&here.stopped)),
            (Some(_), Some(here)) if activity == Activity::Paused => said(&here.paused),
            (Some(holder), here) if activity == Activity::Silent => {
                let seen = here.and_then(ServiceState::seen).map(Seen::at);
                seen.or_else(|| holder.host?.seen)
            }
            (Some(holder), Some(here)) if holder.is_here => here.since,
            (Some(holder), _) => holder
                .report
                .filter(|report| report.state != Some(State::Standby))
                .and_then(|report| report.since),
        };
        since.or_else(|| self.lock()?.since)
    }

    /// The unit, by this host's file or else by that of another.
    fn unit(&self) -> String {
        let own = self.cluster.host(&self.cluster.node).into_iter();
        own.chain(&self.cluster.hosts)
            .find_map(|host| {
                let unit = &host.services.get(self.name)?.unit;
                (!unit.is_empty()).then(|| unit.clone())
            })
            .unwrap_or_default()
    }

    /// Each host's part in it. A host that neither says anything of the service nor holds it is named as well, because an operator who
    /// looks for it there has to learn that its file is missing.
    fn candidates(&self, holder: Option<&str>) -> Vec<Candidate> {
        let mut all = candidates(self.cluster, self.name);
        if let Some(holder) = holder
            && !all.iter().any(|candidate| candidate.host == holder)
        {
            all.push(Candidate {
                host: holder.to_owned(),
                ..Candidate::default()
            });
            all.sort_by(|one, other| one.host.cmp(&other.host));
        }
        for candidate in &mut all {
            if Some(candidate.host.as_str()) == holder {
                candidate.not_taking = None;
            } else if self.storeless().is_some() {
                candidate.not_taking = Some(if candidate.host == self.cluster.node {
                    NotTaking::Barred(Bar::StoreAway)
                } else {
                    NotTaking::Unseen
                });
            }
        }
        all
    }
}

/// Whether a holder that was last heard of at `seen` is silent.
pub fn is_overdue(timings: Option<&TimingsState>, seen: At, now: At) -> bool {
    timings.is_some_and(|timings| {
        let interval = Duration::from_millis(timings.renew_interval_ms);
        seen.since(now) > interval * 2 + ON_ITS_WAY
    })
}

/// When this host has last seen another one renew the lock.
fn renewed(here: &ServiceState) -> Option<At> {
    here.seen()?.renewed()
}

/// When the holder's lease ends if it does not renew.
fn lease_until(here: &ServiceState, is_here: bool) -> Option<At> {
    let takeable = match here.wait {
        Some(Wait::Holder { take_at, .. } | Wait::OwnRecord { take_at, .. }) => take_at,
        Some(_) | None => None,
    };
    match &here.paused {
        _ if is_here => here.lease_until,
        Some(_) if takeable.is_some() => takeable,
        // A host that would not take the lock counts no wait, and knows the end of the long lease all the same.
        Some(Word {
            until: Some(until), ..
        }) => Some(At::seconds(*until)),
        Some(_) | None => {
            let lease = here.timings.as_ref()?.lease_ms;
            Some(renewed(here)?.plus(Duration::from_millis(lease)))
        }
    }
}

/// All hosts that report, and whether each would take `service`.
pub fn candidates(cluster: &ClusterState, service: &str) -> Vec<Candidate> {
    // The host whose settings the others should have.
    let reference = cluster
        .hosts
        .iter()
        .find(|host| host.presence == Presence::Up && host.holds(service))
        .or_else(|| cluster.host(&cluster.node))
        .and_then(|host| Some((host.node(), host.services.get(service)?)));
    let judge = |host: &KnownHost| {
        let state = host.services.get(service);
        let differs = |(_, other): &(&str, &ServiceState)| {
            state.is_some_and(|own| differ(&own.settings, &other.settings))
        };
        Candidate {
            host: host.node().to_owned(),
            not_taking: match host.presence {
                Presence::Up => not_taking(host, state, reference),
                Presence::Unknown => Some(NotTaking::Unseen),
                Presence::Silent => {
                    let since = host.seen.or(host.found);
                    Some(NotTaking::Silent(since.unwrap_or_default()))
                }
            },
            // The clocks of two hosts may differ: a report that was found is not known to be fresh.
            uncertain: match host.presence {
                Presence::Unknown => true,
                Presence::Up => host.reported.is_none(),
                Presence::Silent => false,
            },
            differs_from: reference.filter(differs).map(|(node, _)| node.to_owned()),
            state: state.cloned(),
        }
    };
    cluster.hosts.iter().map(judge).collect()
}

/// Whether two hosts say different things, where both say something.
fn differ(one: &str, other: &str) -> bool {
    one != other && !one.is_empty() && !other.is_empty()
}

/// Why a host that is alive would not take a service.
fn not_taking(
    host: &KnownHost,
    state: Option<&ServiceState>,
    reference: Option<(&str, &ServiceState)>,
) -> Option<NotTaking> {
    if let Some(word) = &host.state.drained {
        return Some(NotTaking::Drained(word.clone()));
    }
    let Some(state) = state else {
        return Some(NotTaking::NoService);
    };
    if reference.is_some_and(|(_, other)| differ(&other.key, &state.key)) {
        return Some(NotTaking::OtherKey(state.key.clone()));
    }
    let away = (state.state == Some(State::NoStore)).then_some(Bar::StoreAway);
    state.own_bar().cloned().or(away).map(NotTaking::Barred)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{HostState, TimingsState};

    const NOW: u64 = 1_795_000_000;

    fn ago(seconds: u64) -> At {
        At::seconds(NOW - seconds)
    }

    /// What h1 shows of db, which `holder` has held for an hour.
    fn summary(holder: &str, here: ServiceState) -> ServiceSummary {
        let here = ServiceState {
            service: "db".to_owned(),
            since: Some(ago(3600)),
            lock: Some(LockState {
                holder: Some(holder.to_owned()),
                since: Some(ago(3600)),
                ..LockState::default()
            }),
            timings: Some(TimingsState {
                renew_interval_ms: 1000,
                lease_ms: 3000,
                ..TimingsState::default()
            }),
            ..here
        };
        let mut host = KnownHost {
            presence: Presence::Up,
            ..KnownHost::default()
        };
        host.state.node = "h1".to_owned();
        let cluster = ClusterState {
            node: "h1".to_owned(),
            at: ago(0),
            hosts: vec![host],
            ..ClusterState::default()
        };
        let own = BTreeMap::from([("db".to_owned(), here)]);
        with_services(cluster, own, StoreState::default())
            .services
            .remove(0)
    }

    #[test]
    fn a_service_is_silent_since_its_holder_was_last_heard_of() {
        let shown = summary(
            "h3",
            ServiceState {
                state: Some(State::Standby),
                wait: Some(Wait::Holder {
                    holder: "h3".to_owned(),
                    runs: true,
                    seen: Seen::Renewed(ago(12)),
                    take_at: None,
                }),
                ..ServiceState::default()
            },
        );
        assert_eq!(
            (shown.activity, shown.since),
            (Activity::Silent, Some(ago(12)))
        );
    }

    #[test]
    fn a_service_is_paused_since_an_operator_has_asked_for_it() {
        let paused = Some(Word::new("root@h1", "", NOW - 60, Some(NOW + 60)));
        let shown = |paused| {
            let here = ServiceState {
                state: Some(State::Active),
                paused,
                ..ServiceState::default()
            };
            let shown = summary("h1", here);
            (shown.activity, shown.since)
        };
        assert_eq!(shown(None), (Activity::Running, Some(ago(3600))));
        assert_eq!(shown(paused), (Activity::Paused, Some(ago(60))));
    }

    #[test]
    fn a_putexd_that_has_just_begun_knows_of_no_holder_and_not_that_there_is_none() {
        for (since, state, expected) in [
            (99, State::NoStore, Activity::Unknown),
            (99, State::Standby, Activity::Unknown),
            (90, State::NoStore, Activity::Unknown),
            (90, State::Standby, Activity::NoHolder),
        ] {
            let host = KnownHost {
                state: HostState {
                    since: At::seconds(since),
                    ..HostState::default()
                },
                ..KnownHost::default()
            };
            let own = ServiceState {
                state: Some(state),
                ..ServiceState::default()
            };
            let cluster = ClusterState {
                at: At::seconds(100),
                hosts: vec![host],
                ..ClusterState::default()
            };
            let own = BTreeMap::from([("db".to_owned(), own)]);
            let known = with_services(cluster, own, StoreState::default());
            assert_eq!(known.services[0].activity, expected, "{since} {state}");
        }
    }
}
