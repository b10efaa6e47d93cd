//! Reports this host and its services. A change of many services costs as many writes as they have pages, and one more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::slot::{Replaced, Slot};
use super::{Asked, Cluster, PACE, Part, REPORT, Services, Watched};
use crate::cluster::alarm::AlarmStatus;
use crate::cluster::report::{HostReport, ServiceReport};
use crate::cluster::view::HostStatus;
use crate::cluster::wire::{self, HOSTS_LIMIT, HostList, Listed};
use crate::daemon::notes::{Trouble, update};
use crate::daemon::service::Status;
use crate::election::{Hindrance, State, Waiting};
use crate::task::lock;
use crate::types::span::milliseconds;
use crate::types::{Key, ServiceName, Value, shortened};

/// Time between two looks at the services, unless one of them enters another state.
const LOOK: Duration = Duration::from_secs(2);
/// Time between two looks whether this host is in the list of hosts.
const LIST: Duration = Duration::from_secs(60);
/// The most characters of why a run failed.
const FAILURE_LIMIT: usize = 160;
/// This host puts itself into the list anew after so long, in seconds.
const LISTED_ANEW: u64 = 24 * 60 * 60;
/// Hosts that have not done so for so long, in seconds, are taken off the list.
const FORGOTTEN: u64 = 30 * 24 * 60 * 60;
/// Another host of the same name is told of for so long after its last report. It reports six times as often.
const NAMESAKE_SHOWN: Duration = Duration::from_secs(60);
/// So many writes may follow each other at once, so that a change of state, which takes two, is seen at once.
pub(super) const BURST: u32 = 4;
/// After so many writes in a row that the store has not taken while it answered reads, it counts as refusing them: a store may
/// leave a write without permission unanswered.
const UNTAKEN: u32 = 3;

pub(super) struct Publisher {
    cluster: Cluster,
    describe: Box<dyn Fn() -> HostReport + Send + Sync>,
    services: watch::Receiver<Services>,
    /// Who waits for a report that is written at once.
    asked: mpsc::Receiver<Asked>,
    /// The services as they were last set.
    current: Services,
    /// What was last made of each service.
    reports: BTreeMap<ServiceName, ServiceReport>,
    /// The pages as they should be, and how many services have no room there.
    pages: Vec<(String, Value)>,
    left_out: usize,
    head: Slot,
    /// The keys of the pages, and the sum of what was last written to each.
    written: Vec<(Slot, String)>,
    /// The report that was last written.
    told: Option<HostReport>,
    /// When something was last written.
    wrote: Option<Instant>,
    /// When the next write would be due if they came one after the other in their pace.
    next: Instant,
    /// When the list is looked at again.
    list_at: Instant,
    /// When a host that has this host's name has last written a report, and what is told of it.
    namesake: Option<(Instant, String)>,
    untaken: u32,
}

impl Publisher {
    pub(super) fn new(
        cluster: Cluster,
        describe: Box<dyn Fn() -> HostReport + Send + Sync>,
        asked: mpsc::Receiver<Asked>,
    ) -> Self {
        let site = &cluster.0.site;
        Self {
            head: Slot::new(site.page(&site.node, 0)),
            describe,
            asked,
            services: cluster.0.services.subscribe(),
            current: Services::default(),
            reports: BTreeMap::new(),
            pages: Vec::new(),
            left_out: 0,
            written: Vec::new(),
            told: None,
            wrote: None,
            next: Instant::now(),
            list_at: Instant::now(),
            namesake: None,
            untaken: 0,
            cluster,
        }
    }

    pub(super) async fn run(mut self) {
        // A report without services would say that there are none.
        let _ = timeout(REPORT, self.services.changed()).await;
        self.services.mark_changed();
        self.cluster.connected().await;
        let mut has_failed = false;
        let mut asked: Option<Asked> = None;
        loop {
            let result = self.publish(asked.is_some()).await;
            if let Some(asked) = asked.take() {
                // Whoever has asked may have given up.
                let _ = asked.send(result.clone().map_err(|trouble| trouble.in_words(Part::Report)));
            }
            let pause = match &result {
                Ok(()) => {
                    self.untaken = 0;
                    None
                }
                Err(trouble) if trouble.is_refusal() => Some(REPORT),
                // Hosts that start together get in each other's way in the list of hosts.
                Err(_) if !has_failed => Some(LOOK),
                Err(_) => Some(REPORT),
            };
            has_failed = result.is_err();
            self.cluster.note(Part::Report, result);
            asked = match pause {
                None => tokio::select! {
                    asked = self.asked.recv() => asked,
                    () = self.cluster.0.unlisted.notified() => {
                        self.list_at = Instant::now();
                        None
                    }
                    _ = timeout(LOOK, self.cluster.0.changed.notified()) => None,
                },
                // A store that fails is not asked at each change.
                Some(pause) => self.wait_and_compose(Instant::now() + pause).await,
            };
        }
    }

    /// Waits until `end`, until the store answers again, or until somebody asks for a report, and shows changes to this host's own
    /// clients meanwhile.
    async fn wait_and_compose(&mut self, end: Instant) -> Option<Asked> {
        let mut returns = self.cluster.0.site.returns.clone();
        returns.mark_unchanged();
        loop {
            tokio::select! {
                () = self.cluster.0.changed.notified() => {}
                Ok(()) = returns.changed() => return None,
                asked = self.asked.recv() => return asked,
                () = sleep_until(end) => return None,
            }
            let report = self.compose();
            self.show(&report);
            // However many changes there are, they are looked at once in a while.
            tokio::select! {
                Ok(()) = returns.changed() => return None,
                asked = self.asked.recv() => return asked,
                () = sleep_until((Instant::now() + PACE).min(end)) => {}
            }
        }
    }

    /// Writes what has changed. `at_once`: the report is written in any case, and without a pause before it.
    async fn publish(&mut self, at_once: bool) -> Result<(), Trouble> {
        let mut report = self.compose();
        self.show(&report);
        if Instant::now() >= self.list_at {
            self.enlist().await?;
            self.check_pages().await?;
            self.list_at = Instant::now() + LIST;
        }
        let is_due = at_once || self.wrote.is_none_or(|wrote| wrote.elapsed() >= REPORT);
        if !is_due && self.told.as_ref().is_some_and(|told| is_told_as(told, &report)) {
            return Ok(());
        }
        for index in 0..self.pages.len() {
            self.write_page(index, at_once).await?;
        }
        // What has changed meanwhile is told with the next report, and no page is written twice for one report.
        report.at = self.cluster.0.site.clock.wall().as_secs();
        self.turn(at_once).await;
        let site = self.cluster.0.site.clone();
        let written = self.head.write(&site, &wire::encode(&report)).await;
        self.wrote = Some(Instant::now());
        if let Replaced::Other(value) = written.map_err(|trouble| self.judge(trouble))? {
            // Whatever else this host has written may be gone, too.
            self.written.iter_mut().for_each(|(_, sum)| sum.clear());
            self.list_at = Instant::now();
            self.meet(value.and_then(|value| wire::report(&value, &site.node)), &report);
        }
        self.told = Some(report);
        Ok(())
    }

    /// Reads the pages as the store has them, so that those are written again that somebody else has written over.
    async fn check_pages(&mut self) -> Result<(), Trouble> {
        let site = &self.cluster.0.site;
        for (number, (_, written)) in (1_u32..).zip(&mut self.written) {
            let found = site.notes.read(&site.page(&site.node, number), None).await?;
            let value = found.entry.and_then(|entry| entry.value);
            if value.is_none_or(|value| wire::sum(&value.body) != *written) {
                written.clear();
                self.told = None;
            }
        }
        Ok(())
    }

    async fn write_page(&mut self, index: usize, at_once: bool) -> Result<(), Trouble> {
        let site = self.cluster.0.site.clone();
        let number = u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1);
        if self.written.len() <= index {
            self.written.push((Slot::new(site.page(&site.node, number)), String::new()));
        }
        let (sum, value) = self.pages[index].clone();
        if self.written[index].1 == sum {
            return Ok(());
        }
        self.turn(at_once).await;
        let (slot, written) = &mut self.written[index];
        // Not known until the store has said so.
        written.clear();
        let result = slot.write(&site, &value).await;
        if result.is_ok() {
            *written = sum;
        }
        self.wrote = Some(Instant::now());
        result.map(drop).map_err(|trouble| self.judge(trouble))
    }

    /// Waits for the time of the next write.
    async fn turn(&mut self, at_once: bool) {
        let next = self.next.max(Instant::now());
        if !at_once {
            sleep_until(next.checked_sub(PACE * (BURST - 1)).unwrap_or(next)).await;
        }
        self.next = next + PACE;
    }

    /// A store that is connected and takes no write again and again refuses them.
    fn judge(&mut self, trouble: Trouble) -> Trouble {
        let is_up = *self.cluster.0.site.notes.link().borrow() == crate::store::Link::Up;
        // A store that does not exist, or is not fit, says so, and no right would help.
        self.untaken = if is_up && trouble.is_no_answer() { self.untaken + 1 } else { 0 };
        match trouble {
            Trouble::Away(error) if self.untaken >= UNTAKEN => Trouble::Refused(error),
            Trouble::Away(_) | Trouble::Refused(_) | Trouble::Unfit(_) => trouble,
        }
    }

    /// Puts this host into the list of hosts.
    async fn enlist(&mut self) -> Result<(), Trouble> {
        let site = self.cluster.0.site.clone();
        let now = site.clock.wall().as_secs();
        let mut is_full = false;
        let cluster = self.cluster.clone();
        let key: Key = site.list();
        update(&*site.notes, &*site.clock, &key, |value| {
            let mut hosts = value.map(wire::listed).unwrap_or_default();
            let known = hosts.iter().find(|(node, _)| *node == site.node);
            if known.is_some_and(|(_, at)| now.abs_diff(*at) < LISTED_ANEW) {
                return None;
            }
            // A time far ahead is no host's word either.
            hosts.retain(|(node, at)| *node != site.node && now.abs_diff(*at) < FORGOTTEN);
            if hosts.len() >= HOSTS_LIMIT {
                // Names under which nobody reports make room.
                let view = lock(&cluster.0.view);
                hosts.retain(|(node, _)| !view.has_no_report(node));
            }
            is_full = hosts.len() >= HOSTS_LIMIT;
            if is_full {
                return None;
            }
            hosts.push((site.node.clone(), now));
            let hosts = hosts.into_iter().map(|(node, at)| Listed { node: node.to_string(), at }).collect();
            Some(wire::encode(&HostList { hosts }))
        })
        .await
        .map_err(|trouble| self.judge(trouble))?;
        if is_full {
            return Err(Trouble::Away(format!("the list of hosts, {key}, has {HOSTS_LIMIT} hosts already")));
        }
        Ok(())
    }

    /// Looks at what has changed, and makes the host's part of the report.
    fn compose(&mut self) -> HostReport {
        let wall = self.cluster.0.site.clock.wall().as_secs();
        let is_other = self.services.has_changed().is_ok_and(|changed| changed);
        let mut changed = is_other || self.pages.is_empty();
        if is_other {
            self.current = self.services.borrow_and_update().clone();
            let known: BTreeSet<_> = self.current.watched.iter().map(|service| &service.settings.name).collect();
            self.reports.retain(|name, _| known.contains(name));
        }
        for service in &mut self.current.watched {
            let before = self.reports.get(&service.settings.name);
            let report = report_of(service, before);
            if before != Some(&report) {
                changed = true;
                self.reports.insert(service.settings.name.clone(), report);
            }
        }
        if changed {
            let mut all: Vec<ServiceReport> =
                self.reports.values().cloned().chain(self.current.resting.iter().cloned()).collect();
            all.sort_by(|one, other| one.service.cmp(&other.service));
            let (pages, left_out) = wire::pages(all);
            self.pages = pages.into_iter().map(|page| (wire::sum(&page.body), page)).collect();
            self.left_out = left_out;
        }
        let mut report = (self.describe)();
        report.node = self.cluster.0.site.node.to_string();
        report.at = wall;
        report.lost = lock(&self.cluster.0.view).lost();
        self.namesake.take_if(|(met, _)| met.elapsed() >= NAMESAKE_SHOWN);
        report.alarms.extend(self.namesake.as_ref().map(|(_, words)| AlarmStatus::sentence(words.clone())));
        if self.left_out > 0 {
            let words = format!("{} of its services have no room in its report", self.left_out);
            report.alarms.push(AlarmStatus::sentence(words));
        }
        report.sums = self.pages.iter().map(|(sum, _)| sum.clone()).collect();
        wire::bounded_report(report)
    }

    /// Shows the report to this host's own clients.
    fn show(&self, report: &HostReport) {
        let services = self.pages.iter().flat_map(|(_, page)| wire::services(page));
        let mut own = lock(&self.cluster.0.own);
        let is_same = own.as_ref().is_some_and(|own| own.report.sums == report.sums);
        let services =
            if is_same { own.take().map(|own| own.services).unwrap_or_default() } else { services.collect() };
        *own = Some(HostStatus {
            report: report.clone(),
            silent_ms: Some(0),
            reported_ms: Some(0),
            services,
            ..HostStatus::default()
        });
    }

    /// Notices that another host has written this host's report.
    fn meet(&mut self, other: Option<HostReport>, own: &HostReport) {
        let Some(other) = other.filter(|other| other.boot != own.boot) else { return };
        let words = format!(
            "give each host a name of its own: another machine, {}, reports as {} too",
            if other.machine.is_empty() { "which names no id" } else { &other.machine },
            own.node
        );
        if self.namesake.as_ref().is_none_or(|(_, before)| *before != words) {
            tracing::warn!("{words}");
        }
        self.namesake = Some((Instant::now(), words));
    }
}

/// Whether two reports differ in nothing but their time.
fn is_told_as(one: &HostReport, other: &HostReport) -> bool {
    let timeless = |report: &HostReport| HostReport { at: 0, ..report.clone() };
    timeless(one) == timeless(other)
}

/// The report of a service. `before`: what was reported last.
fn report_of(service: &mut Watched, before: Option<&ServiceReport>) -> ServiceReport {
    let has_changed = service.status.has_changed().is_ok_and(|changed| changed);
    if let Some(before) = before.filter(|before| !has_changed && before.settings == service.sum) {
        return before.clone();
    }
    let (settings, status) = (&service.settings, service.status.borrow_and_update());
    let is_standby = status.state == State::Standby;
    let state = if is_standby { String::new() } else { status.state.to_string() };
    let is_held = crate::cluster::eligibility::is_held_in(&state);
    let unless = |text: &str, ordinary: &str| if text == ordinary { String::new() } else { text.to_owned() };
    ServiceReport {
        service: settings.name.to_string(),
        key: unless(settings.key.as_str(), settings.name.as_str()),
        unit: unless(settings.unit.as_str(), &format!("{}.service", settings.name)),
        settings: service.sum.clone(),
        hindrance: hindrance(&status).filter(|_| !is_held).unwrap_or_default(),
        failure: shortened(&status.failure, FAILURE_LIMIT),
        since: if is_standby { 0 } else { status.since },
        token: if is_held { status.token.0 } else { 0 },
        starts: status.starts.as_ref().map_or(0, |(at, _)| *at),
        waits: status.starts.as_ref().map(|(_, why)| why.clone()).or(status.unproven.clone()).unwrap_or_default(),
        goes_down: status.goes_down.unwrap_or_default(),
        remembered_ms: milliseconds(status.remembered),
        remembered_until: status.remembered_until.unwrap_or_default(),
        alarms: status.alarms.clone(),
        state,
    }
}

/// Why the host would not take the lock, in words that stay the same while the reason does. A short wait after a release is
/// none: it is over before anybody could act upon it.
pub(in crate::daemon) fn hindrance(status: &Status) -> Option<String> {
    match status.hindrance.as_ref()? {
        // It keeps no host from the lock in particular, and the lock's record tells of it.
        Hindrance::Reason(_) if status.stopped.is_some() && status.lost_stop.is_none() => None,
        Hindrance::Reason(reason) => Some(reason.clone()),
        Hindrance::BackOff(Waiting::BackOff { reason, failures, .. }) if *failures > 0 => {
            Some(format!("it waits before it tries again, since {reason}"))
        }
        Hindrance::BackOff(_) => None,
    }
}
