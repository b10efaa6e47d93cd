//! Reads the reports of the other hosts: at hints of the store, and from time to time. A page is read only when the report of
//! its host says that it has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::{Cluster, Fresh, Part, REPORT, Site};
use crate::cluster::report::{HostReport, ServiceReport};
use crate::cluster::view::{HostStatus, SILENT};
use crate::cluster::wire::{self, HOSTS_LIMIT};
use crate::daemon::alarms;
use crate::daemon::hints::{Bell, rung};
use crate::daemon::notes::{Trouble, position};
use crate::task::lock;
use crate::types::span::milliseconds;
use crate::types::{Incarnation, NodeId, Revision, Value, is_device_path};

/// Time between two looks at a report. A hint of a report comes before that, as a rule.
const LOOK: Duration = Duration::from_secs(11);
/// In a large cluster each host adds so much to it.
const LOOK_OF_HOST: Duration = Duration::from_millis(400);
/// Time between the first looks at the hosts.
const APART: Duration = Duration::from_millis(100);
/// Shortest time between two looks at a report.
const AGAIN: Duration = Duration::from_millis(500);
/// In a large cluster each host adds so much to it while somebody looks.
const AGAIN_OF_HOST: Duration = Duration::from_millis(50);
/// Pause after a read that failed.
const AWAY: Duration = Duration::from_secs(2);

/// How many services are kept of all other hosts together, and how many bytes of their pages. What is kept takes several times the
/// memory, and somebody else may have written it.
const SERVICES_LIMIT: usize = 32_768;
const BYTES_LIMIT: usize = SERVICES_LIMIT * 256;

/// A host that is missing in the list of hosts is looked at for so long after its last report: the list may be written by somebody
/// who knows nothing of the host, which then puts itself there again.
const UNLISTED: Duration = SILENT;

/// How long it is told that a host reports without a valid seal. Hosts with two keys write the list of hosts in turn.
const UNSEALED: Duration = Duration::from_secs(60);

/// A host may report so long before it dies, after its last renewal; and the report of a host that dies may be read so late.
const LAST_WORD: Duration = Duration::from_secs(3);

/// The most hosts that are looked at, with those that the list lacks.
const LOOKED_AT_LIMIT: usize = 2 * HOSTS_LIMIT;

/// What is known of the other hosts.
#[derive(Default)]
pub(super) struct View {
    hosts: BTreeMap<NodeId, Seen>,
    /// When the store has last answered a look, by `CLOCK_BOOTTIME`.
    answered: Option<Duration>,
    /// Whether it has failed since.
    is_away: bool,
    /// The hosts whose word was found without a valid seal, and when, by `CLOCK_BOOTTIME`. Somebody else may have written it.
    unsealed: BTreeMap<NodeId, Duration>,
}

/// A page of a report as it was read last.
#[derive(Default)]
struct Page {
    sum: String,
    bytes: usize,
    services: Vec<ServiceReport>,
    /// Whether there was no room for all of it.
    is_cut: bool,
}

/// What is known of a host.
struct Seen {
    /// When it was found, by `CLOCK_BOOTTIME`.
    found: Duration,
    /// When its report was last seen to change, without the time in which the store did not answer.
    changed: Option<Duration>,
    /// When its report was last seen to change.
    reported: Option<Duration>,
    /// Where the report was when it was last read.
    position: Option<(Incarnation, Revision)>,
    report: Option<HostReport>,
    /// When this host has taken a lock from it because it fell silent.
    lost: Option<Duration>,
    pages: Vec<Page>,
}

impl Seen {
    /// Whether the report and each of its pages were read once.
    fn is_read(&self) -> bool {
        self.report.is_some() && self.pages.iter().all(|page| !page.sum.is_empty())
    }

    /// How long ago its report was written by its own clock, in milliseconds, if that clock seems to go as this host's does. It
    /// counts until the report is seen to change.
    fn written_ms(&self, wall: Duration) -> Option<u64> {
        let at = Duration::from_secs(self.report.as_ref()?.at);
        (at.abs_diff(wall) <= SILENT).then(|| milliseconds(wall.saturating_sub(at)))
    }

    /// Whether nothing was heard of it since this host has taken a lock from it.
    fn is_lost(&self) -> bool {
        self.lost.is_some_and(|lost| self.changed.is_none_or(|changed| changed <= lost))
    }
}

impl View {
    /// The hosts as they are known at `now`. While the store does not answer, no host is any longer silent than it was before: it
    /// may not reach the store either.
    pub(super) fn hosts(&self, site: &Site, now: Duration, wall: Duration) -> Vec<HostStatus> {
        let age = |since: Duration| milliseconds(now.saturating_sub(since));
        let now = self.answered.filter(|_| self.is_away).unwrap_or(now);
        let ms = |since: Duration| milliseconds(now.saturating_sub(since));
        let status = |(name, seen): (&NodeId, &Seen)| {
            let unread = || HostReport { node: name.to_string(), ..HostReport::default() };
            let services = seen.pages.iter().flat_map(|page| page.services.iter().cloned());
            let (mut report, mut services) = (seen.report.clone().unwrap_or_else(unread), services.collect::<Vec<_>>());
            if !site.is_sealed {
                quote_all(&mut report, &mut services);
            }
            HostStatus {
                report,
                // A host of which not everything was read yet is not known.
                silent_ms: seen.changed.map(ms).or_else(|| seen.written_ms(wall)).filter(|_| seen.is_read()),
                reported_ms: seen.reported.map(age),
                found_ms: ms(seen.found),
                lost_to: if seen.is_lost() { site.node.to_string() } else { self.lost_to_another(name, seen) },
                services,
            }
        };
        self.hosts.iter().map(status).collect()
    }

    /// The host that says that it has taken a lock from this one, and has reported later than it.
    fn lost_to_another(&self, name: &NodeId, seen: &Seen) -> String {
        let says = |(other, by): &(&NodeId, &Seen)| {
            *other != name
                && by.changed > seen.changed
                && by.report.as_ref().is_some_and(|report| report.lost.iter().any(|lost| lost == name.as_str()))
        };
        self.hosts.iter().find(says).map(|(other, _)| other.to_string()).unwrap_or_default()
    }

    /// Notes that this host has taken a lock from another one that fell silent after `heard`. One that has reported since then is up,
    /// and has lost that lock alone.
    pub(super) fn lose(&mut self, node: &str, heard: Duration, now: Duration) {
        let known = self.hosts.iter_mut().find(|(name, _)| name.as_str() == node);
        if let Some((_, seen)) = known
            && seen.changed.is_none_or(|changed| changed <= heard + LAST_WORD)
        {
            seen.lost = Some(now);
        }
    }

    /// The hosts that are lost by what this one has seen itself.
    pub(super) fn lost(&self) -> Vec<String> {
        self.hosts.iter().filter(|(_, seen)| seen.is_lost()).map(|(name, _)| name.to_string()).collect()
    }

    /// Notes whether the store has answered a look. The time in which it did not says nothing of the other hosts, and is not
    /// counted as their silence.
    fn hear(&mut self, is_answered: bool, now: Duration) {
        if !is_answered {
            self.is_away = true;
            return;
        }
        let away = now.saturating_sub(self.answered.unwrap_or(now));
        // A host that has not asked for so long stood still itself.
        if std::mem::take(&mut self.is_away) || away > SILENT {
            for seen in self.hosts.values_mut() {
                seen.found = (seen.found + away).min(now);
                seen.changed = seen.changed.map(|changed| (changed + away).min(now));
                seen.lost = seen.lost.map(|lost| lost + away);
            }
        }
        self.answered = Some(now);
    }

    /// Whether a host that the list of hosts lacks reports all the same.
    fn reports_unlisted(seen: &Seen, now: Duration) -> bool {
        let is_heard = seen.changed.is_some_and(|changed| now.saturating_sub(changed) <= UNLISTED);
        seen.report.is_some() && is_heard
    }

    /// Whether the report of a listed host was looked for, and there is none.
    pub(super) fn has_no_report(&self, node: &NodeId) -> bool {
        self.hosts.get(node).is_some_and(|seen| seen.position.is_some() && seen.report.is_none())
    }

    /// The report of a host, and what it has reported of the service whose lock has this key.
    pub(super) fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Notes that what `node` has written, or somebody in its name, has no valid seal.
    fn see_unsealed(&mut self, node: NodeId, now: Duration) {
        if self.unsealed.len() < HOSTS_LIMIT || self.unsealed.contains_key(&node) {
            self.unsealed.insert(node, now);
        }
    }

    /// The hosts that seem to report without a valid seal, and do not report otherwise.
    pub(super) fn unsealed(&self, now: Duration) -> Vec<&NodeId> {
        let is_recent = |at: Duration| now.saturating_sub(at) <= UNSEALED;
        let reports = |node| {
            let changed = self.hosts.get(node).and_then(|seen: &Seen| seen.changed.filter(|_| seen.report.is_some()));
            changed.is_some_and(|changed| now.saturating_sub(changed) <= SILENT)
        };
        self.unsealed.iter().filter(|(node, at)| is_recent(**at) && !reports(node)).map(|(node, _)| node).collect()
    }

    /// Whether the reports of the hosts are larger together than what is kept of them.
    pub(super) fn is_cut(&self) -> bool {
        self.hosts.values().flat_map(|seen| &seen.pages).any(|page| page.is_cut)
    }

    /// Keeps a page as far as there is room for it.
    fn keep(&mut self, node: &NodeId, index: usize, mut page: Page) {
        let pages = |view: &Self, of: fn(&Page) -> usize| {
            view.hosts.values().flat_map(|seen| &seen.pages).map(of).sum::<usize>()
        };
        let replaced = self.hosts.get_mut(node).and_then(|seen| seen.pages.get_mut(index)).map(std::mem::take);
        if replaced.is_none() {
            return;
        }
        let room = SERVICES_LIMIT.saturating_sub(pages(self, |page| page.services.len()));
        if pages(self, |page| page.bytes) + page.bytes > BYTES_LIMIT || page.services.len() > room {
            page = Page { sum: page.sum, is_cut: true, ..Page::default() };
        }
        if let Some(kept) = self.hosts.get_mut(node).and_then(|seen| seen.pages.get_mut(index)) {
            *kept = page;
        }
    }
}

/// Quotes what a host says of itself. The names, numbers and states are what they are.
fn quote_all(report: &mut HostReport, services: &mut [ServiceReport]) {
    let alarms = services.iter_mut().flat_map(|service| &mut service.alarms).chain(&mut report.alarms);
    for alarm in alarms {
        *alarm = alarms::quoted(std::mem::take(alarm));
    }
    let of_services = services.iter_mut();
    let of_services =
        of_services.flat_map(|service| [&mut service.hindrance, &mut service.failure, &mut service.waits]);
    for text in of_services.chain([&mut report.guard]) {
        *text = alarms::quote(text);
    }
    if !is_device_path(&report.watchdog) {
        report.watchdog = alarms::quote(&report.watchdog);
    }
    let is_word =
        |text: &str| text.chars().all(|character| character.is_ascii_alphanumeric() || "@._+-".contains(character));
    if let Some(word) = report.drained.as_mut().filter(|word| !word.is_removal()) {
        word.reason = alarms::quote(&word.reason);
    }
    let by = report.drained.as_mut().map(|word| &mut word.by);
    for name in [&mut report.version].into_iter().chain(by).filter(|name| !is_word(name)) {
        "?".clone_into(name);
    }
}

pub(super) struct Viewer {
    cluster: Cluster,
    /// Rings for the list, and then for each host in the order of `due`.
    bells: Vec<Arc<Bell>>,
    /// Who wants all reports read anew.
    fresh: mpsc::Receiver<Fresh>,
    list_at: Instant,
    /// Nothing is read before that by itself: the store has failed.
    rests_until: Instant,
    /// Changes when the store answers again after a silence.
    returns: watch::Receiver<()>,
    /// When each host is looked at.
    due: BTreeMap<NodeId, Instant>,
    /// Whether the list was read before. A host that comes to it later is a new one.
    knows_list: bool,
}

impl Viewer {
    pub(super) fn new(cluster: Cluster, fresh: mpsc::Receiver<Fresh>) -> Self {
        let bells = vec![cluster.0.site.hints.of(&cluster.0.site.list())];
        let (now, returns) = (Instant::now(), cluster.0.site.returns.clone());
        Self { cluster, bells, fresh, list_at: now, rests_until: now, returns, due: BTreeMap::new(), knows_list: false }
    }

    pub(super) async fn run(mut self) {
        self.cluster.connected().await;
        loop {
            let next = self.due.values().copied().min().map_or(self.list_at, |due| due.min(self.list_at));
            let next = next.max(self.rests_until);
            tokio::select! {
                biased;
                Some(asked) = self.fresh.recv() => {
                    let read = self.look_at_all().await;
                    // Whoever has asked may have given up.
                    let _ = asked.send(read.map_err(|trouble| trouble.in_words(Part::View)));
                }
                bells = rung(&self.bells) => self.hasten(&bells),
                () = self.cluster.0.looked_at.notified() => self.hasten_all(),
                Ok(()) = self.returns.changed() => {
                    (self.rests_until, self.list_at) = (Instant::now(), Instant::now());
                    self.hasten_all();
                }
                () = sleep_until(next) => {
                    let result = self.look().await;
                    self.heed(result);
                }
            }
        }
    }

    /// Notes what came of a look. A store that fails is left alone for a while.
    fn heed(&mut self, result: Result<(), Trouble>) {
        lock(&self.cluster.0.view).hear(result.is_ok(), self.cluster.0.site.clock.boot());
        if let Err(trouble) = &result {
            self.rests_until = Instant::now() + if trouble.is_refusal() { REPORT } else { AWAY };
        }
        self.cluster.note(Part::View, result);
    }

    /// Reads the list and the reports of all hosts now, and returns the hosts of which that was possible.
    async fn look_at_all(&mut self) -> Result<BTreeSet<NodeId>, Trouble> {
        let listed = self.look_at_list().await;
        self.heed(listed.clone());
        listed?;
        let nodes: Vec<NodeId> = self.due.keys().cloned().collect();
        let mut read = BTreeSet::new();
        for node in nodes {
            self.due.insert(node.clone(), Instant::now() + self.interval());
            if self.look_at_host(&node).await.is_ok() {
                read.insert(node);
            }
        }
        Ok(read)
    }

    /// Makes what hints came for due, unless it was read a moment ago.
    fn hasten(&mut self, bells: &[usize]) {
        let interval = self.interval();
        for bell in bells {
            match bell.checked_sub(1) {
                None => hasten(&mut self.list_at, LOOK, AGAIN),
                Some(index) => {
                    if let Some(due) = self.due.values_mut().nth(index) {
                        hasten(due, interval, AGAIN);
                    }
                }
            }
        }
    }

    /// Makes all reports due, unless they were read a moment ago: somebody looks at them.
    fn hasten_all(&mut self) {
        let interval = self.interval();
        let again = AGAIN.max(AGAIN_OF_HOST.saturating_mul(u32::try_from(self.due.len()).unwrap_or(u32::MAX)));
        for due in self.due.values_mut() {
            hasten(due, interval, again);
        }
    }

    /// Time between two looks at a report.
    fn interval(&self) -> Duration {
        let hosts = u32::try_from(self.due.len()).unwrap_or(u32::MAX);
        LOOK.max(LOOK_OF_HOST.saturating_mul(hosts))
    }

    /// Looks at whatever is due first.
    async fn look(&mut self) -> Result<(), Trouble> {
        let now = Instant::now();
        if self.list_at <= now {
            // One value that cannot be read does not keep the others from being read.
            self.list_at = now + LOOK;
            self.look_at_list().await?;
        }
        let first = self.due.iter().min_by_key(|(_, due)| **due).map(|(node, due)| (node.clone(), *due));
        let Some((node, _)) = first.filter(|(_, due)| *due <= now) else { return Ok(()) };
        self.due.insert(node.clone(), now + self.interval());
        self.look_at_host(&node).await
    }

    async fn look_at_list(&mut self) -> Result<(), Trouble> {
        let site = &self.cluster.0.site;
        let snapshot = site.notes.read(&site.list(), None).await?;
        let value = snapshot.entry.and_then(|entry| entry.value).unwrap_or_default();
        let names = |value: &Value| wire::listed(value).into_iter().map(|(node, _)| node).collect::<Vec<_>>();
        let mut listed = names(&value);
        let unsealed = if value.is_unsealed() { names(&value.without_mark()) } else { Vec::new() };
        if !listed.contains(&site.node) {
            self.cluster.0.unlisted.notify_one();
        }
        listed.retain(|node| *node != site.node);
        let (boot, now) = (site.clock.boot(), Instant::now());
        let mut view = lock(&self.cluster.0.view);
        view.unsealed.retain(|_, at| boot.saturating_sub(*at) <= UNSEALED);
        unsealed.into_iter().filter(|node| *node != site.node).for_each(|node| view.see_unsealed(node, boot));
        let room = LOOKED_AT_LIMIT.saturating_sub(listed.len());
        let unlisted =
            view.hosts.iter().filter(|(node, seen)| !listed.contains(node) && View::reports_unlisted(seen, boot));
        let unlisted: Vec<NodeId> = unlisted.map(|(node, _)| node.clone()).take(room).collect();
        listed.extend(unlisted);
        view.hosts.retain(|node, _| listed.contains(node));
        self.due.retain(|node, _| listed.contains(node));
        let mut first = now;
        for node in listed {
            let is_new = self.knows_list;
            view.hosts.entry(node.clone()).or_insert_with(|| Seen {
                found: boot,
                changed: is_new.then_some(boot),
                reported: is_new.then_some(boot),
                position: None,
                report: None,
                lost: None,
                pages: Vec::new(),
            });
            self.due.entry(node).or_insert_with(|| {
                first += APART;
                first
            });
        }
        drop(view);
        self.knows_list = true;
        let heads = self.due.keys().map(|node| site.page(node, 0));
        self.bells = std::iter::once(site.list()).chain(heads).map(|key| site.hints.of(&key)).collect();
        Ok(())
    }

    async fn look_at_host(&self, node: &NodeId) -> Result<(), Trouble> {
        let site = &self.cluster.0.site;
        let snapshot = site.notes.read(&site.page(node, 0), None).await?;
        let found = position(&snapshot);
        let value = snapshot.entry.and_then(|entry| entry.value).unwrap_or_default();
        let report = wire::report(&value, node);
        let mut pages = Vec::new();
        {
            let mut view = lock(&self.cluster.0.view);
            if value.is_unsealed() {
                view.see_unsealed(node.clone(), site.clock.boot());
            }
            let Some(seen) = view.hosts.get_mut(node) else { return Ok(()) };
            if seen.position.as_ref() == Some(&found) && is_complete(seen) {
                return Ok(());
            }
            if seen.position.as_ref().is_some_and(|position| *position != found) && report.is_some() {
                seen.changed = Some(site.clock.boot());
                seen.reported = seen.changed;
            }
            seen.position = Some(found);
            let Some(report) = report else { return Ok(()) };
            let sums = report.sums.clone();
            seen.report = Some(report);
            seen.pages.resize_with(sums.len(), Default::default);
            for (index, (known, sum)) in seen.pages.iter().map(|page| &page.sum).zip(sums).enumerate() {
                if *known != sum {
                    pages.push(index);
                }
            }
        }
        for index in pages {
            self.look_at_page(node, index).await?;
        }
        Ok(())
    }

    async fn look_at_page(&self, node: &NodeId, index: usize) -> Result<(), Trouble> {
        let site = &self.cluster.0.site;
        let number = u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1);
        let snapshot = site.notes.read(&site.page(node, number), None).await?;
        let value = snapshot.entry.and_then(|entry| entry.value).unwrap_or_default();
        let (sum, services) = (wire::sum(&value.body), wire::services(&value));
        let mut view = lock(&self.cluster.0.view);
        // A page that the report does not tell of is about to be told of, or is not that host's own. What was known stays.
        let told = view.hosts.get(node).and_then(|seen| seen.report.as_ref()?.sums.get(index));
        if told != Some(&sum) {
            return Ok(());
        }
        view.keep(node, index, Page { sum, bytes: value.body.len(), services, is_cut: false });
        Ok(())
    }
}

/// Makes something due that is read every `interval`, but not sooner than `again` after it was read.
fn hasten(due: &mut Instant, interval: Duration, again: Duration) {
    let now = Instant::now();
    // What is due after `interval` was read at the beginning of it.
    let soon = due.checked_sub(interval).map_or(now, |read| now.max(read + again));
    *due = soon.min(*due);
}

/// Whether all pages are there of which the report tells.
fn is_complete(seen: &Seen) -> bool {
    let sums = seen.report.as_ref().map_or(&[][..], |report| &report.sums);
    sums.iter().zip(&seen.pages).all(|(sum, page)| *sum == page.sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever may write to the store may write as many hosts as the list takes, each with as many pages as a report has.
    #[test]
    fn what_is_kept_of_all_hosts_has_a_bound_in_bytes_and_says_when_it_is_cut() {
        let services = || vec![ServiceReport::default(); 2];
        let page = |bytes| Page { sum: "0".to_owned(), bytes, services: services(), is_cut: false };
        let seen = || Seen {
            found: Duration::ZERO,
            changed: None,
            reported: None,
            position: None,
            report: None,
            lost: None,
            pages: vec![Page::default(), Page::default()],
        };
        let node = |number: usize| format!("h{number}").parse::<NodeId>().expect("a name");
        let mut view = View::default();
        let bytes = 31 * 1024;
        let hosts = 254;
        for host in 0..hosts {
            view.hosts.insert(node(host), seen());
            view.keep(&node(host), 0, page(bytes));
            view.keep(&node(host), 1, page(bytes));
        }
        let kept = |view: &View| {
            view.hosts.values().flat_map(|seen| &seen.pages).map(|page| page.services.len()).sum::<usize>()
        };
        assert_eq!(kept(&view) / 2, BYTES_LIMIT / bytes);
        assert!(view.is_cut() && kept(&view) < hosts * 4);
        assert!(
            view.hosts.values().all(|seen| seen.pages.iter().all(|page| !page.sum.is_empty())),
            "none is read again and again"
        );
        view.hosts.retain(|name, _| *name == node(0));
        view.keep(&node(0), 0, page(bytes));
        assert!(!view.is_cut());
        assert_eq!(kept(&view), 4);
    }
}
