//! Reads the reports of the other hosts: at hints of the store, and from time to time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use super::{AWAY, Cluster, Part, REPORT, SharedCluster};
use crate::{
    cluster::{
        picture::SILENT,
        wire::{self, HOSTS_LIMIT, PAGES_LIMIT, Report},
    },
    daemon::store_access::{hints::rung, notes::is_refusal},
    facts::{At, HostState, KnownHost, Presence, ServiceState},
    store::StoreError,
    task::lock,
    types::{Incarnation, Key, NodeId, Revision, Value},
};

/// Time between two looks at all reports. A hint of a report comes before that, as a rule.
const LOOK: Duration = Duration::from_secs(11);
/// Shortest time between two looks, and what each host that is looked at adds to it.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_OF_HOST: Duration = Duration::from_millis(10);

/// How long after the renewal is due that a host that dies does not make a report of it may be found.
const LAST_REPORT: Duration = Duration::from_secs(3);

/// How many bytes of the reports of all other hosts are kept. What is kept takes several times the memory, and somebody else may have
/// written it.
const BYTES_LIMIT: usize = 8 * 1024 * 1024;

/// How long it is told that a host reports without a valid seal. Hosts with two keys write the list of hosts in turn.
const UNSEALED: Duration = Duration::from_secs(60);

/// The most hosts that are looked at, with those that the list lacks.
const LOOKED_AT_LIMIT: usize = 2 * HOSTS_LIMIT;

/// What is known of the other hosts. Times are by `CLOCK_BOOTTIME`, but for those that are counted.
#[derive(Default)]
pub struct View {
    hosts: BTreeMap<NodeId, SeenHost>,
    /// When the store has last answered a look, and how much time has counted until then: that in which it does not answer says nothing
    /// of the other hosts.
    answered: Duration,
    counted: Duration,
    /// Whether it has failed since.
    is_away: bool,
    /// The hosts in the list that was last found without a valid seal, and when. Somebody else may have written it.
    unsealed: (BTreeSet<NodeId>, Duration),
}

/// What is known of a host.
#[derive(Default)]
struct SeenHost {
    /// When it was found, of the time that counts.
    found: Duration,
    /// When its report was last seen to change, of the time that counts.
    changed: Option<Duration>,
    /// The same by the clock.
    reported: Option<Duration>,
    /// Where the report was when it was last read.
    position: Option<(Incarnation, Revision)>,
    /// Whether a lock was taken from it because it fell silent, and it has not reported since.
    is_lost: bool,
    report: Option<HostState>,
    services: BTreeMap<String, ServiceState>,
    /// How long its report was.
    bytes: usize,
}

impl SeenHost {
    /// When its report was written by its own clock, if that clock seems to go as this host's does. It counts until the report is
    /// seen to change.
    fn written(&self, wall: Duration) -> Option<At> {
        let at = Duration::from_millis(self.report.as_ref()?.at.0);
        (at.abs_diff(wall) <= SILENT).then(|| At::new(at.min(wall)))
    }

    /// Whether it reports, when `counted` has counted.
    fn reports(&self, counted: Duration) -> bool {
        // Only a report changes.
        self.changed
            .is_some_and(|changed| counted.saturating_sub(changed) <= SILENT)
    }
}

impl View {
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// How much time has counted by `now`.
    fn counted(&self, now: Duration) -> Duration {
        let since = now.saturating_sub(self.answered);
        // A host that has not asked for so long stood still itself.
        if self.is_away || since > SILENT {
            self.counted
        } else {
            self.counted + since
        }
    }

    /// The other hosts as they are known at `now`.
    pub fn hosts(&self, now: Duration, wall: Duration) -> impl Iterator<Item = KnownHost> {
        let counted = self.counted(now);
        let ago = move |past: Duration| At::new(wall.saturating_sub(past));
        let is_long = move |since: At| since.since(At::new(wall)) > SILENT;
        self.hosts.iter().map(move |(name, seen)| {
            let changed = seen.changed.map(|at| ago(counted.saturating_sub(at)));
            let last = changed.or_else(|| seen.written(wall));
            let found = ago(counted.saturating_sub(seen.found));
            let presence = match last {
                _ if seen.is_lost || is_long(last.unwrap_or(found)) => Presence::Silent,
                Some(_) => Presence::Up,
                None => Presence::Unknown,
            };
            let state = seen.report.clone().unwrap_or_else(|| HostState {
                node: name.to_string(),
                ..HostState::default()
            });
            KnownHost {
                state,
                presence,
                seen: last,
                reported: seen.reported.map(|at| ago(now.saturating_sub(at))),
                found: Some(found),
                services: seen.services.clone(),
            }
        })
    }

    /// Notes that `node` has not renewed a lock, which was due at `due`. A host that has reported after that is up, and has lost that lock
    /// alone.
    pub fn lose(&mut self, node: &str, due: Duration) {
        let mut hosts = self.hosts.iter_mut();
        if let Some((_, seen)) = hosts.find(|(name, _)| name.as_str() == node) {
            let is_up = seen.reported.is_some_and(|at| at > due + LAST_REPORT);
            seen.is_lost |= !is_up;
        }
    }

    /// Whether the report of a listed host was looked for, and there is none.
    pub fn has_no_report(&self, node: &NodeId) -> bool {
        self.hosts
            .get(node)
            .is_some_and(|seen| seen.position.is_some() && seen.report.is_none())
    }

    /// The hosts that seem to report without a valid seal, and do not report otherwise.
    pub fn unsealed(&self, now: Duration) -> Vec<String> {
        let (counted, (unsealed, at)) = (self.counted(now), &self.unsealed);
        let reports = |seen: &SeenHost| seen.reports(counted);
        let silent = unsealed.iter().filter(|node| {
            now.saturating_sub(*at) <= UNSEALED && !self.hosts.get(*node).is_some_and(reports)
        });
        silent.map(ToString::to_string).collect()
    }

    /// Whether the reports of the hosts are larger together than what is kept of them.
    pub fn is_cut(&self) -> bool {
        self.bytes() > BYTES_LIMIT
    }

    fn bytes(&self) -> usize {
        self.hosts.values().map(|seen| seen.bytes).sum()
    }

    /// Looks at these hosts from now on, and at those that the list lacks and that report all the same: it may be written by somebody
    /// who knows nothing of them, and they put themselves there again.
    fn follow(&mut self, listed: BTreeSet<NodeId>, now: Duration) {
        let counted = self.counted(now);
        let mut room = LOOKED_AT_LIMIT.saturating_sub(listed.len());
        self.hosts.retain(|node, seen| {
            let is_kept = listed.contains(node) || room > 0 && seen.reports(counted);
            room = room.saturating_sub(usize::from(is_kept && !listed.contains(node)));
            is_kept
        });
        for node in listed {
            self.hosts.entry(node).or_insert_with(|| SeenHost {
                found: counted,
                ..SeenHost::default()
            });
        }
    }

    /// The hosts that are wanted, and those that were not read before.
    fn due(&self, is_wanted: impl Fn(&NodeId) -> bool) -> Vec<NodeId> {
        let hosts = self.hosts.iter();
        let due = hosts.filter(|(node, seen)| seen.position.is_none() || is_wanted(node));
        due.map(|(node, _)| node.clone()).collect()
    }

    /// Takes in the report of a host as it was read at `now`, its services as far as there is room for them.
    fn read(
        &mut self,
        node: &NodeId,
        position: (Incarnation, Revision),
        report: Option<(HostState, BTreeMap<String, ServiceState>, usize)>,
        now: Duration,
    ) {
        let counted = self.counted(now);
        let all = self.bytes();
        let Some(seen) = self.hosts.get_mut(node) else {
            return;
        };
        let has_changed = seen.position.replace(position).is_some();
        let Some((host, services, bytes)) = report else {
            return;
        };
        if has_changed {
            (seen.changed, seen.reported, seen.is_lost) = (Some(counted), Some(now), false);
        }
        seen.report = Some(host);
        let has_room = all - seen.bytes + bytes <= BYTES_LIMIT;
        seen.bytes = bytes;
        seen.services = if has_room { services } else { BTreeMap::new() };
    }
}

/// Looks for ever.
pub async fn run(cluster: Cluster) {
    let shared = &*cluster.0;
    let mut returns = shared.returns.clone();
    let mut due = Instant::now();
    loop {
        let nodes = lock(&shared.view).due(|_| true);
        let reports = nodes.iter().map(|node| shared.page_of(node, 0));
        let keys: Vec<Key> = reports.chain([shared.list()]).collect();
        let bells: Vec<_> = keys.iter().map(|key| shared.host.hints.of(key)).collect();
        let hinted = tokio::select! {
            rung = rung(&bells) => Some(rung.into_iter().map(|place| &keys[place]).collect()),
            () = shared.looked_at.notified() => None,
            Ok(()) = returns.changed() => None,
            () = sleep_until(due) => None,
        };
        if hinted.is_none() {
            due = Instant::now() + LOOK;
        }
        let rest = match shared.look(hinted).await {
            (read, Ok(())) => AGAIN.max(AGAIN_OF_HOST * read),
            // A store that fails is left alone for a while.
            (_, Err(error)) if is_refusal(&error) => REPORT,
            (_, Err(_)) => AWAY,
        };
        tokio::select! {
            () = sleep(rest) => {}
            Ok(()) = returns.changed() => due = Instant::now(),
        }
    }
}

impl SharedCluster {
    /// Reads what is under the `hinted` keys, and reports that were not read before; `None`: the list of hosts and all reports. Returns the
    /// number of reports that could be read, and what has failed.
    pub async fn look(&self, hinted: Option<BTreeSet<&Key>>) -> (u32, Result<(), StoreError>) {
        let _one = self.looking.lock().await;
        let is_hinted = |key| hinted.as_ref().is_none_or(|hinted| hinted.contains(&key));
        let (mut read, mut result) = (0, Ok(()));
        if is_hinted(self.list()) {
            result = self.look_at_list().await;
        }
        if result.is_ok() {
            let due = lock(&self.view).due(|node| is_hinted(self.page_of(node, 0)));
            for node in due {
                // One report that cannot be read does not keep the others from being read.
                match self.look_at_host(&node).await {
                    Ok(()) => read += 1,
                    Err(error) => result = Err(error),
                }
            }
        }
        {
            let (mut view, now) = (lock(&self.view), self.host.machine.now().boot);
            if result.is_ok() {
                (view.counted, view.answered) = (view.counted(now), now);
            }
            view.is_away = result.is_err();
        }
        self.note(Part::View, &result);
        (read, result)
    }

    /// What is under `key`, and where it is.
    async fn read(&self, key: &Key) -> Result<((Incarnation, Revision), Value), StoreError> {
        let snapshot = self.host.notes.read(key, None).await?;
        Ok((
            snapshot.position(),
            snapshot.value().cloned().unwrap_or_default(),
        ))
    }

    async fn look_at_list(&self) -> Result<(), StoreError> {
        let (_, value) = self.read(&self.list()).await?;
        let listed = |value: &Value| {
            let mut listed: BTreeSet<NodeId> = wire::listed(value).into_keys().collect();
            listed.remove(&self.host.node);
            listed
        };
        let now = self.host.machine.now().boot;
        let mut view = lock(&self.view);
        view.follow(listed(&value), now);
        if value.is_unsealed() {
            view.unsealed = (listed(&value.without_mark()), now);
        }
        Ok(())
    }

    async fn look_at_host(&self, node: &NodeId) -> Result<(), StoreError> {
        let (found, value) = self.read(&self.page_of(node, 0)).await?;
        let is_known = |seen: &SeenHost| seen.position.as_ref() == Some(&found);
        if lock(&self.view).hosts.get(node).is_none_or(is_known) {
            return Ok(());
        }
        let mut report = None;
        if let Some(Report {
            host,
            more,
            mut services,
        }) = wire::report(&value, node)
        {
            let mut bytes = value.body.len();
            for page in (1..=more).take(PAGES_LIMIT) {
                let (_, value) = self.read(&self.page_of(node, page)).await?;
                bytes += value.body.len();
                services.extend(wire::report(&value, node).unwrap_or_default().services);
            }
            let services = wire::services(services);
            // No host tells others its timings.
            let here = self.services.borrow();
            for service in services.values().filter(|one| one.wait.is_some()) {
                let mut here = here.running.iter().map(watch::Receiver::borrow);
                let own = here.find(|own| own.service == service.service);
                self.see_loss(service, own.as_ref().and_then(|own| own.timings.as_ref()));
            }
            report = Some((host, services, bytes));
        }
        lock(&self.view).read(node, found, report, self.host.machine.now().boot);
        Ok(())
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever may write to the store may write as many hosts as the list takes, each with as many pages as a report has.
    #[test]
    fn what_is_kept_of_all_hosts_has_a_bound_in_bytes_and_says_when_it_is_cut() {
        let node = |number: usize| format!("h{number}").parse::<NodeId>().expect("a name");
        let mut view = View::default();
        let bytes = 384 * 1024;
        let read = |view: &mut View, host: usize| {
            view.hosts.entry(node(host)).or_default();
            let report = (
                HostState::default(),
                BTreeMap::from([(String::new(), ServiceState::default())]),
                bytes,
            );
            let position = (Incarnation("a".to_owned()), Revision(1));
            view.read(&node(host), position, Some(report), Duration::ZERO);
        };
        (0..254).for_each(|host| read(&mut view, host));
        let kept = |view: &View| {
            view.hosts
                .values()
                .map(|seen| seen.services.len())
                .sum::<usize>()
        };
        assert_eq!(kept(&view), BYTES_LIMIT / bytes);
        assert!(view.is_cut());
        view.hosts.retain(|name, _| *name == node(0));
        read(&mut view, 0);
        assert!(!view.is_cut());
        assert_eq!(kept(&view), 1);
    }
}
