//! The cluster as one picture: who runs what, put together from what this host sees of the locks and what all hosts say.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::facts::{
    Activity, At, Bar, Candidate, ClusterState, Heard, KnownHost, NotTaking, Presence,
    ServiceState, ServiceSummary, State, StoreState, Wait, Word,
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
#[must_use]
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
    let hosts = cluster.hosts.iter();
    let names: BTreeSet<&String> = hosts.flat_map(|host| host.services.keys()).collect();
    let service = |name| Service {
        name,
        here: said(cluster.host(&cluster.node), name),
        cluster: &cluster,
    };
    let services = names.into_iter().map(|name| service(name).summary());
    cluster.services = services.collect();
    cluster
}

/// What a host says of a service.
fn said<'a>(host: Option<&'a KnownHost>, service: &str) -> Option<&'a ServiceState> {
    host?.services.get(service)
}

/// What is known of one service.
struct Service<'a> {
    name: &'a str,
    /// What this host says of it. `None`: it does not have it.
    here: Option<&'a ServiceState>,
    cluster: &'a ClusterState,
}

/// What is known of a holder, beside what this host sees of the lock.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Holder<'a> {
    name: &'a str,
    is_here: bool,
    /// What it says of the service, if that is of this tenure and not an old report.
    report: Option<&'a ServiceState>,
    /// When it was last heard of. `None`: not since this putexd was started.
    heard: Option<At>,
    /// Whether the report was made after this host has seen the tenure.
    is_of_tenure: bool,
    /// Whether it does not report any more.
    is_gone: bool,
    /// Whether it has reported before the store was away, and this host has not seen it renew its lease since.
    is_stale: bool,
}

impl<'a> Service<'a> {
    fn summary(&self) -> ServiceSummary {
        // Where this host's file has another key, the lock that it sees is not the one of the service.
        let lock = self
            .here
            .filter(|here| here.holder().is_some() || !self.is_held_under_another_key(&here.key));
        let holder = self.holder(lock).map(|name| self.known_holder(name, lock));
        let activity = match &holder {
            Some(holder) => self.activity(lock, holder),
            None => self.activity_without_holder(lock),
        };
        let last_run = lock
            .and_then(|here| here.lock.as_ref()?.last_run.as_ref())
            .zip(holder.as_ref())
            .filter(|(last, holder)| activity == Activity::Lapsed && last.host == holder.name);
        let since = match last_run {
            Some((last, _)) => Some(last.until),
            None => since(lock, holder.as_ref()),
        };
        let is_to_come = |wait: &&Wait<At>| matches!(wait, Wait::Entitlement { until, .. } if *until > self.cluster.at);
        let report = holder.as_ref().and_then(|holder| holder.report);
        ServiceSummary {
            service: self.name.to_owned(),
            unit: self.unit(),
            activity,
            since,
            lease_until: holder
                .as_ref()
                .and_then(|holder| lease_until(lock?, holder.is_here)),
            token: lock
                .and_then(|here| here.lock.as_ref()?.token)
                .or(report.and_then(|report| report.token)),
            wait: report
                .filter(|_| holder.as_ref().is_some_and(|holder| !holder.is_here))
                .and_then(|report| report.wait.as_ref())
                .filter(is_to_come)
                .cloned(),
            stopped: lock.and_then(|here| here.stopped.clone()),
            paused: lock.and_then(|here| here.paused.clone()),
            said: holder
                .as_ref()
                .filter(|holder| holder.is_stale)
                .and_then(|holder| self.cluster.host(holder.name)?.reported),
            hosts: self.candidates(holder.as_ref().map(|holder| holder.name)),
            holder: holder.map(|holder| holder.name.to_owned()),
        }
    }

    /// The hosts that are not silent, with what they say of the service.
    fn alive(&self) -> impl Iterator<Item = (&'a KnownHost, &'a ServiceState)> {
        let hosts = self.cluster.hosts.iter();
        hosts
            .filter(|host| host.presence != Presence::Silent)
            .filter_map(|host| Some((host, said(Some(host), self.name)?)))
    }

    fn is_held_under_another_key(&self, key: &str) -> bool {
        self.alive().any(|(host, state)| {
            host.node() != self.cluster.node && state.is_held() && state.key != key
        })
    }

    fn holder(&self, lock: Option<&'a ServiceState>) -> Option<&'a str> {
        match lock {
            Some(here) if here.holder().is_some() => here.holder(),
            Some(here) if here.is_held() => Some(&self.cluster.node),
            // This host reads the lock itself, and nobody holds it.
            Some(here) if here.state.is_some_and(|state| state != State::NoStore) => None,
            Some(_) | None => {
                let mut hosts = self.cluster.hosts.iter();
                let holder = hosts.find(|host| host.holds(self.name));
                holder.map(KnownHost::node)
            }
        }
    }

    fn known_holder(&self, name: &'a str, lock: Option<&ServiceState>) -> Holder<'a> {
        let host = self.cluster.host(name);
        let is_here = name == self.cluster.node;
        let is_gone = host.is_some_and(|host| host.presence == Presence::Silent);
        let seen = lock.and_then(|here| here.lock.as_ref());
        // A report of an earlier tenure says nothing of this one.
        let token = seen.and_then(|lock| lock.token);
        let report = host
            .filter(|_| !is_gone)
            .and_then(|host| said(Some(host), self.name))
            .filter(|report| report.token.is_none_or(|own| Some(own) >= token));
        let heard = host.and_then(|host| host.heard);
        let since = seen.and_then(|lock| lock.since);
        let reported = host.and_then(|host| host.reported);
        // What was reported before the store was away says nothing of what has become of the unit meanwhile.
        let is_of_before = self.cluster.store.returned.is_some_and(|returned| {
            reported.is_none_or(|reported| reported < returned.plus(FOUND))
        });
        let is_seen = is_here || lock.is_none_or(|here| renewed(here).is_some());
        Holder {
            name,
            is_here,
            report,
            heard,
            is_of_tenure: since
                .zip(heard)
                .is_some_and(|(since, heard)| heard > since.plus(REPORTED)),
            is_gone,
            is_stale: is_of_before && !is_seen && !is_gone,
        }
    }

    /// For how long the store has given this host no answer.
    fn storeless(&self) -> Option<Duration> {
        let since = self.cluster.store.silent_since;
        since.map(|since| since.since(self.cluster.at))
    }

    fn activity_without_holder(&self, lock: Option<&ServiceState>) -> Activity {
        let is_only_observed =
            self.alive().next().is_some() && self.alive().all(|(_, state)| state.is_observed());
        match lock {
            _ if is_only_observed => Activity::Observed,
            Some(here) if here.stopped.is_some() => Activity::Stopped,
            Some(here) if here.is_broken() => Activity::Broken,
            Some(here) if here.state == Some(State::NoStore) => Activity::Unknown,
            Some(_) if self.storeless().is_none() => Activity::NoHolder,
            Some(_) | None => Activity::Unknown,
        }
    }

    fn activity(&self, lock: Option<&ServiceState>, holder: &Holder<'_>) -> Activity {
        let own = lock.filter(|_| holder.is_here).and_then(|here| here.state);
        let state = own.or(holder.report.and_then(|report| report.state));
        // Without the store nothing is heard of the holder, and its last report is as old as the last that was seen of it.
        let is_blind = lock.is_some_and(|here| here.state == Some(State::NoStore));
        let seen = lock.and_then(renewed);
        let interval = lock
            .and_then(|here| here.timings.as_ref())
            .map(|timings| Duration::from_millis(timings.renew_interval_ms));
        let is_silent = match seen.or(holder.heard.filter(|_| is_blind)) {
            Some(at) => interval
                .is_some_and(|interval| at.since(self.cluster.at) > interval * 2 + ON_ITS_WAY),
            // Nobody has seen it renew anything, and its last report is old, or this host would not hear of a later one.
            None => holder.is_gone || self.storeless().is_some_and(|silent| silent >= CONNECTS),
        };
        match state {
            _ if !holder.is_here && is_silent => Activity::Silent,
            _ if holder.is_stale => Activity::Held,
            // Its own unit is stopped, and another host may run its own.
            Some(State::Standby | State::Retired)
                if holder.is_here && self.storeless().is_some() =>
            {
                Activity::Unknown
            }
            // Another machine is seen to renew it under this host's name.
            Some(State::Standby) if holder.is_here && seen.is_some() => Activity::Held,
            // Its own word comes first; a report counts if it was made after the tenure was seen here.
            Some(State::Standby | State::Retired) if holder.is_here || holder.is_of_tenure => {
                Activity::Lapsed
            }
            Some(State::NoStore) if holder.is_here => Activity::Unknown,
            Some(State::Active) if lock.is_some_and(|here| here.paused.is_some()) => {
                Activity::Paused
            }
            Some(State::Confirming | State::Fencing | State::Starting) => Activity::Starting,
            Some(State::Active) => Activity::Running,
            Some(State::Releasing | State::Lapsing) => Activity::Stopping,
            Some(State::Standby | State::Retired | State::NoStore) | None => Activity::Held,
        }
    }

    fn unit(&self) -> String {
        let others = self.cluster.hosts.iter();
        let others = others.filter_map(|host| said(Some(host), self.name));
        let mut units = self.here.into_iter().chain(others).map(|state| &state.unit);
        let unit = units.find(|unit| !unit.is_empty());
        unit.cloned().unwrap_or_default()
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
                    NotTaking::Unheard
                });
            }
        }
        all
    }
}

/// When this host has last seen another one renew the lock.
fn renewed(here: &ServiceState) -> Option<At> {
    match here.heard()? {
        Heard::Renewed(at) => Some(at),
        Heard::Found(_) => None,
    }
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

/// Since when it is so.
fn since(here: Option<&ServiceState>, holder: Option<&Holder<'_>>) -> Option<At> {
    let seen = here.and_then(|here| here.lock.as_ref()?.since);
    let Some(holder) = holder else {
        let stopped = here.and_then(|here| here.stopped.as_ref());
        return stopped.map(|word| At::seconds(word.at)).or(seen);
    };
    let of_report = holder
        .report
        .filter(|report| report.state != Some(State::Standby))
        .and_then(|report| report.since);
    match here {
        Some(here) if holder.is_here => here.since.or(seen),
        Some(_) | None => of_report.or(seen),
    }
}

/// All hosts that report, and whether each would take `service`.
#[must_use]
pub fn candidates(cluster: &ClusterState, service: &str) -> Vec<Candidate> {
    // The host whose settings the others should have.
    let reference = cluster
        .hosts
        .iter()
        .find(|host| host.presence == Presence::Up && host.holds(service))
        .or_else(|| cluster.host(&cluster.node))
        .and_then(|host| Some((host.node(), said(Some(host), service)?)));
    let judge = |host: &KnownHost| {
        let is_self = host.node() == cluster.node;
        let state = said(Some(host), service);
        let alive = if is_self { None } else { not_alive(host) };
        let differs = |(node, other): &(&str, &ServiceState)| {
            *node != host.node()
                && state.is_some_and(|own| {
                    own.settings != other.settings
                        && !own.settings.is_empty()
                        && !other.settings.is_empty()
                })
        };
        Candidate {
            host: host.node().to_owned(),
            not_taking: alive.or_else(|| not_taking(host, state, reference)),
            // The clocks of two hosts may differ: a report that was found is not known to be fresh.
            uncertain: !is_self
                && match host.presence {
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

/// Why a host takes nothing, as far as its reports tell whether it is alive.
fn not_alive(host: &KnownHost) -> Option<NotTaking> {
    match host.presence {
        Presence::Up => None,
        Presence::Unknown => Some(NotTaking::Unheard),
        Presence::Silent => {
            let since = host.heard.or(host.found);
            Some(NotTaking::Silent(since.unwrap_or_default()))
        }
    }
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
    if let Some((_, other)) = reference
        && other.key != state.key
        && !other.key.is_empty()
        && !state.key.is_empty()
    {
        return Some(NotTaking::OtherKey(state.key.clone()));
    }
    let away = (state.state == Some(State::NoStore)).then_some(Bar::StoreAway);
    state.told_bar().cloned().or(away).map(NotTaking::Barred)
}
