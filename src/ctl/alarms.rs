//! The alarms of one service on all hosts, each cause once.

use super::found::{Found, PLACE, Rank, Severity, When};
use super::view::{HostView, NAMED, ServiceView, enumerated, report_of};
use crate::dbus::AlarmStatus;
use crate::journal::Alarm;
use crate::types::span::date;

/// The alarms of a service that may stop its unit, or have it run twice.
const THREATS: [Alarm; 6] =
    [Alarm::SharedName, Alarm::StrayUnit, Alarm::Ungated, Alarm::LeftControlGroup, Alarm::StopFailed, Alarm::OtherLock];

/// An alarm, and the hosts that tell it.
struct Alike<'a> {
    hosts: Vec<String>,
    /// As the host tells it on which it has stood for longest; or, where its cause was a moment, where that was last.
    told: &'a AlarmStatus,
}

/// What stands, or was, with a service.
pub(super) struct Alarms {
    /// What keeps it from being run: it fails, or a former holder is not fenced.
    pub(super) prevents: Option<Found>,
    pub(super) others: Vec<Found>,
}

/// The alarms that stand, here and on other hosts. What a host that is gone has said is not news any more; that it is gone is told of
/// the host.
pub(super) fn of(view: &ServiceView, hosts: &[HostView]) -> Alarms {
    let mut all: Vec<Alike<'_>> = Vec::new();
    let here = view.here.iter().flat_map(|here| here.alarms.iter().map(|told| (&view.node, told)));
    let others = hosts.iter().filter(|host| host.node != view.node && !host.presence.is_gone());
    let others = others.flat_map(|host| {
        report_of(host, &view.service).into_iter().flat_map(|report| &report.alarms).map(|told| (&host.node, told))
    });
    for (host, told) in here.chain(others) {
        let AlarmStatus { kind, remedy, what, over, .. } = told;
        let is_same = |other: &&mut Alike<'_>| {
            let other = other.told;
            (kind, remedy, what, over) == (&other.kind, &other.remedy, &other.what, &other.over)
                && (!kind.is_empty() || told.reason == other.reason)
        };
        match all.iter_mut().find(is_same) {
            Some(alike) => {
                alike.hosts.push(host.clone());
                if told.over == (told.since > alike.told.since) {
                    alike.told = told;
                }
            }
            None => all.push(Alike { hosts: vec![host.clone()], told }),
        }
    }
    for alike in &mut all {
        alike.hosts.sort_unstable();
    }
    let mut alarms = Alarms { prevents: None, others: Vec::new() };
    for alike in &all {
        let found = alike.found(view, hosts);
        if alarms.prevents.is_none() && alike.prevents() {
            alarms.prevents = Some(found);
        } else {
            alarms.others.push(found);
        }
    }
    alarms
}

impl Alike<'_> {
    fn prevents(&self) -> bool {
        !self.told.over && [Alarm::ServiceFails, Alarm::FenceFailed].iter().any(|kind| is_of(*kind, self.told))
    }

    fn found(&self, view: &ServiceView, hosts: &[HostView]) -> Found {
        let has_it = |host: &&HostView| report_of(host, &view.service).is_some();
        let is_everywhere = self.hosts.len() > 1 && self.hosts.len() >= hosts.iter().filter(has_it).count();
        let names = enumerated(&self.hosts, NAMED);
        let place = if is_everywhere { format!("every host ({names})") } else { names };
        let is_of_this_host = self.hosts == [view.node.clone()];
        let AlarmStatus { kind, reason, since, over, .. } = self.told;
        let what = if kind.is_empty() { self.told.in_words() } else { self.told.head() };
        let placed = if what.contains("on this host") {
            what.replace("on this host", &format!("on {PLACE}"))
        } else {
            format!("{PLACE}: {what}")
        };
        if kind.is_empty() {
            let text = if is_of_this_host { what } else { placed.replace(PLACE, &place) };
            return Found::new(Severity::Alarm, self.rank(), text);
        }
        let (severity, rank, mark) =
            if *over { (Severity::Warning, Rank::Past, "at") } else { (Severity::Alarm, self.rank(), "since") };
        let words = |what: &str| format!("{what}, {mark} {{0}}: {{reason}}");
        let of = |words: String| {
            Found::with((severity, rank), &view.service, words, vec![When::Date(date(*since))], reason.clone())
        };
        let found = of(words(&placed)).told_on(self.hosts.clone(), &place);
        // What is on this host is told so.
        if is_of_this_host { Found { text: of(words(&what)).text, ..found } } else { found }
    }

    /// What may stop a unit, or have two hosts run it, is worse than what is broken while it runs.
    fn rank(&self) -> Rank {
        if THREATS.iter().any(|kind| is_of(*kind, self.told)) { Rank::Threat } else { Rank::Broken }
    }
}

/// Whether an alarm is of this kind.
pub(super) fn is_of(kind: Alarm, told: &AlarmStatus) -> bool {
    told.kind == kind.kind()
}
