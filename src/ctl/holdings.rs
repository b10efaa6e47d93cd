//! Who ran a service from when to when, as `putexctl` prints it.

use std::time::Duration;

use serde::Serialize;

use super::view::ServiceView;
pub(super) use crate::cluster::history::holdings::End;
use crate::cluster::history::{Happened, holdings as periods};
use crate::dbus::ServiceStatus;
use crate::types::span::rounded;

/// One run of a service on one host, under one fencing token. Times are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and is printed as one")]
pub(super) struct Holding {
    /// The host.
    pub(super) host: String,
    /// The fencing token.
    pub(super) token: u64,
    /// When it was started.
    pub(super) from_ms: u64,
    /// Whether it was started before that, and nobody knows when.
    pub(super) from_is_latest: bool,
    /// When it ended, as `end` says. `None`: it goes on.
    pub(super) until_ms: Option<u64>,
    /// What is known of its end: `goes-on`; `told` by its host; `last-heard`: its host told nothing, and was last heard of then;
    /// `not-known`: this is the latest time that it can have been.
    pub(super) end: End,
    /// Why it began.
    pub(super) began: String,
    /// Why it ended; empty = it goes on.
    pub(super) ended: String,
    /// For how long nobody ran the service before. `None`: it is not known.
    pub(super) gap_ms: Option<u64>,
    /// Whether that may have been longer.
    pub(super) gap_is_least: bool,
    /// Whether that may have been shorter: the host before has told nothing of its end, and may have run it for a while after it was
    /// last heard of.
    pub(super) gap_is_most: bool,
    /// The times that the gap is made of, in milliseconds since 1970.
    #[serde(skip)]
    pub(super) gaps: Vec<(u64, u64)>,
    /// Until then its host is known to have been alive, as far as it has told of this run.
    #[serde(skip)]
    pub(super) told_ms: u64,
    /// Whether it may go on, although `end` is `not-known`.
    #[serde(skip)]
    pub(super) may_run: bool,
}

impl Holding {
    /// How long it lasted, or has lasted until `now_ms`.
    pub(super) fn length_in_words(&self, now_ms: u64) -> String {
        let span = self.until_ms.unwrap_or(now_ms).saturating_sub(self.from_ms);
        let words = rounded(Duration::from_millis(span));
        match (self.from_is_latest, self.end) {
            (true, End::NotKnown) => "not known".to_owned(),
            (true, _) if span == 0 => "not known".to_owned(),
            (true, _) | (false, End::LastHeard) => format!("≥ {words}"),
            (false, End::NotKnown) => format!("≤ {words}"),
            (false, End::Told | End::GoesOn) => words,
        }
    }

    /// For how long nobody ran the service before; empty = it is not known.
    pub(super) fn gap_in_words(&self) -> String {
        let bound = self.bound_of_gap();
        self.gap_ms.map(|gap| format!("{bound}{}", rounded(Duration::from_millis(gap)))).unwrap_or_default()
    }

    /// The same in a sentence; `None`: it is not known.
    pub(super) fn gap_in_prose(&self) -> Option<String> {
        let bound = if self.gap_is_least {
            "at least "
        } else if self.gap_is_most {
            "at most "
        } else {
            ""
        };
        self.gap_ms.map(|gap| format!("{bound}{}", rounded(Duration::from_millis(gap))))
    }

    /// What stands before the length of the gap.
    pub(super) fn bound_of_gap(&self) -> &'static str {
        bound(self.gap_is_least, self.gap_is_most)
    }

    /// What stands before the length of the time since this run, the last one, in which nobody has run it.
    fn bound_of_rest(&self) -> &'static str {
        bound(self.end == End::NotKnown, self.end == End::LastHeard)
    }

    /// Has the run end when its host was last heard of, at `heard_ms`.
    fn end_unheard(&mut self, heard_ms: u64, why: String) {
        (self.end, self.until_ms, self.ended) = (End::LastHeard, Some(heard_ms.max(self.from_ms)), why);
        self.told_ms = self.told_ms.max(heard_ms);
    }

    /// Has the run end at a time that nobody knows, at `until_ms` at the latest.
    fn end_unknown(&mut self, until_ms: u64, why: String) {
        let until_ms = until_ms.max(self.from_ms);
        (self.end, self.until_ms, self.ended) = (End::NotKnown, Some(until_ms), why);
        self.told_ms = self.told_ms.min(until_ms);
    }
}

/// What stands before a length that is a bound.
fn bound(is_least: bool, is_most: bool) -> &'static str {
    match (is_least, is_most) {
        (true, _) => "≥ ",
        (false, true) => "≤ ",
        (false, false) => "",
    }
}

/// What stands before the length of the time since the last of these runs, in which nobody has run it.
pub(super) fn bound_of_rest(all: &[Holding]) -> &'static str {
    all.last().map_or("", Holding::bound_of_rest)
}

/// The holdings that the events tell of, the latest last.
pub(super) fn holdings(events: &[Happened]) -> Vec<Holding> {
    let shown = |period: periods::Holding| Holding {
        host: period.host,
        token: period.token,
        from_ms: period.from_ms,
        from_is_latest: period.from_is_latest,
        until_ms: period.to_ms,
        end: period.end,
        began: period.started_because,
        ended: period.ended_because,
        gap_ms: period.gap_before_ms,
        gap_is_least: period.gap_is_least,
        gap_is_most: period.gap_is_most,
        gaps: period.gaps,
        told_ms: period.told_ms,
        may_run: false,
    };
    periods::holdings(events).into_iter().map(shown).collect()
}

/// Has the last holding go on only if the cluster shows the service, at `now_ms`, on that host by the lock's record, and that host
/// has renewed it.
pub(super) fn settle(all: &mut [Holding], service: &ServiceView, now_ms: u64) {
    let Some(last) = all.last_mut().filter(|last| last.end == End::GoesOn) else { return };
    // The picture of the cluster is older than this run.
    if service.token != 0 && service.token < last.token {
        return;
    }
    let host = last.host.clone();
    // It is told in whole seconds, and may be of an earlier time, such as that of the record that is there still.
    let here = service.here.as_ref();
    // Of a service that is stopped it is the time of the order, and the run may have ended later.
    let since = if service.state == "stopped" { here.and_then(|here| here.held_since) } else { service.since };
    let since = since.map(|since| since.saturating_mul(1000).saturating_add(999));
    let since = since.filter(|since| *since >= last.from_ms).map_or(now_ms, |since| since.min(now_ms));
    let heard = here.filter(|here| here.ran_on == host && here.ran_on != service.node).and_then(|here| here.ran_until);
    let latest = if service.holder == host { now_ms } else { since };
    let heard = heard.map(|heard| heard.saturating_mul(1000)).filter(|heard| (last.from_ms..latest).contains(heard));
    let state = if is_dark(service, last) { "dark" } else { &service.state };
    match (state, heard) {
        ("unknown" | "broken", _) => {
            last.may_run = true;
            last.end_unknown(
                now_ms,
                format!("nobody knows whether it has ended; {} cannot tell who has the lock", service.node),
            );
        }
        ("held", _) if service.is_stale && service.holder == host => {
            let why = format!("nobody knows yet whether it has ended; {host} has the lock, and the store was away");
            last.end_unknown(now_ms, why);
            last.may_run = true;
        }
        ("no-holder" | "stopped" | "lapsed" | "starting" | "dark", Some(heard)) => {
            last.end_unheard(heard, "nobody has told when; its host was last heard of then".to_owned());
        }
        _ if !service.holder.is_empty() && service.holder != host => {
            last.end_unknown(since, format!("nobody has told when; {} has the lock since then", service.holder));
        }
        ("no-holder" | "stopped", None) => {
            last.end_unknown(since, "nobody has told when; nobody has the lock since then".to_owned());
        }
        ("lapsed", None) => last.end_unknown(now_ms, format!("nobody has told when; {host} does not run it now")),
        ("silent", _) => {
            let silent_ms = service.here.as_ref().and_then(|here| here.silent_ms).unwrap_or(0);
            last.told_ms = last.told_ms.max(now_ms.saturating_sub(silent_ms));
            let silent = rounded(Duration::from_millis(silent_ms));
            let why =
                format!("nobody knows whether it has ended; {host} has the lock, and has not renewed it for {silent}");
            last.end_unknown(now_ms, why);
            last.may_run = true;
        }
        _ => {}
    }
}

/// Whether the holder was not seen to renew the lock, and has not reported whether it runs the service, which somebody was seen to run
/// before: nobody runs it as far as is known. `last`: the last run that was told of, which goes on if it is of the holder's token.
fn is_dark(service: &ServiceView, last: &Holding) -> bool {
    let is_dark = |here: &ServiceStatus| here.silent_ms.is_none() && here.ran_until.is_some();
    let is_told = service.token != 0 && service.token == last.token;
    service.state == "held" && !service.is_stale && !is_told && service.here.as_ref().is_some_and(is_dark)
}

/// Since when nobody has run the service although no operator has it stopped, in milliseconds since 1970. `None`: somebody runs it,
/// or may; or nobody knows. `all`: its [settled](settle) holdings.
pub(super) fn nobody_since(all: &[Holding], events: &[Happened], service: &ServiceView, now_ms: u64) -> Option<u64> {
    let is_dark = all.last().is_some_and(|last| is_dark(service, last));
    let is_idle = is_dark || matches!(service.state.as_str(), "no-holder" | "starting" | "lapsed");
    let is_down = is_idle && service.stopped.is_none();
    let since = match all.last() {
        _ if !is_down => None,
        Some(last) => {
            let last = periods::unasked(events, last.from_ms, last.until_ms?, now_ms).pop();
            last.filter(|(_, until)| *until == now_ms).map(|(since, _)| since)
        }
        // It has never run: then since the first event that tells of it.
        None => events.first().map(|event| event.at_ms),
    };
    since.filter(|since| *since < now_ms)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW, Told, event, small, word};
    use super::*;
    use crate::cluster::history::What;

    const NOW_MS: u64 = NOW * 1000;

    fn view(told: &Told) -> ServiceView {
        told.view().services.into_iter().find(|service| service.service == "db").expect("a service")
    }

    /// The last holding of a run on h1 that nobody has told the end of, and since when nobody runs it.
    fn seen(told: &Told) -> (Holding, Option<u64>) {
        let events = [event(-9000, "h1", What::Started, 7, "the lock was free")];
        let (mut all, service) = (holdings(&events), view(told));
        settle(&mut all, &service, NOW_MS);
        let nobody = nobody_since(&all, &events, &service, NOW_MS);
        (all.remove(0), nobody)
    }

    #[test]
    fn a_run_goes_on_only_where_the_cluster_shows_it() {
        let mut told = small();
        let (runs, nobody) = seen(&told);
        assert_eq!((runs.end, runs.until_ms, nobody), (End::GoesOn, None, None));
        let db = told.service("db");
        (db.holder, db.state, db.held_since) = ("h2".to_owned(), "standby".to_owned(), Some(NOW - 500));
        (told.report("h2", "db").state, told.report("h2", "db").since) = ("active".to_owned(), NOW - 500);
        let (lost, nobody) = seen(&told);
        assert_eq!((lost.end, lost.until_ms, nobody), (End::NotKnown, Some(NOW_MS - 499_001), None));
        assert!(lost.ended.contains("h2 has the lock since then"), "{}", lost.ended);
        // h2 has the lock, and has not started anything yet.
        told.report("h2", "db").state = "fencing".to_owned();
        let (_, nobody) = seen(&told);
        assert_eq!(nobody, Some(NOW_MS - 499_001));
    }

    /// What is shown of a run on h2 whose end nobody has told.
    fn end_on_h2(told: &Told) -> (Holding, Option<u64>) {
        let events = [event(-9000, "h2", What::Started, 7, "the lock was free")];
        let (mut all, service) = (holdings(&events), view(told));
        settle(&mut all, &service, NOW_MS);
        let nobody = nobody_since(&all, &events, &service, NOW_MS);
        (all.remove(0), nobody)
    }

    /// h2 lost its power, and h1 has taken the lock some seconds later.
    #[test]
    fn a_run_whose_host_tells_nothing_ends_when_it_was_last_heard_of_at_the_earliest() {
        let mut told = small();
        let db = told.service("db");
        (db.state, db.since, db.held_since) = ("fencing".to_owned(), Some(NOW - 4), Some(NOW - 4));
        (db.ran_until, db.ran_on) = (Some(NOW - 16), "h2".to_owned());
        let (lost, nobody) = end_on_h2(&told);
        assert_eq!((lost.end, lost.until_ms, nobody), (End::LastHeard, Some(NOW_MS - 16_000), Some(NOW_MS - 16_000)));
        assert!(lost.length_in_words(NOW_MS).starts_with("≥ "), "{lost:?}");
        assert_eq!(bound_of_rest(&[lost]), "≤ ");
    }

    /// h2 could report nothing since it took the lock, and does not renew it.
    #[test]
    fn a_holder_that_neither_renews_nor_reports_does_not_run_it_as_far_as_is_known() {
        let mut told = small();
        let db = told.service("db");
        (db.holder, db.state, db.silent_ms) = ("h2".to_owned(), "standby".to_owned(), None);
        (db.held_since, db.ran_until, db.ran_on) = (Some(NOW - 2), Some(NOW - 96), "h2".to_owned());
        assert_eq!(view(&told).state, "held");
        let (lost, nobody) = end_on_h2(&told);
        assert_eq!((lost.end, nobody), (End::LastHeard, Some(NOW_MS - 96_000)));
        told.service("db").silent_ms = Some(800);
        assert_eq!((end_on_h2(&told).0.end, end_on_h2(&told).1), (End::GoesOn, None), "it renews the lock");
        told.service("db").silent_ms = None;
        told.service("db").token = 7;
        assert_eq!((end_on_h2(&told).0.end, end_on_h2(&told).1), (End::GoesOn, None), "it has told that it runs");
    }

    #[test]
    fn a_time_in_which_nobody_runs_it_is_known_unless_an_operator_has_it_stopped() {
        let mut told = small();
        let db = told.service("db");
        (db.holder, db.state, db.lease_left_ms) = (String::new(), "standby".to_owned(), None);
        db.held_since = Some(NOW - 1320);
        told.report("h1", "db").state = String::new();
        let (ended, nobody) = seen(&told);
        assert_eq!((ended.until_ms, nobody), (Some(NOW_MS - 1_319_001), Some(NOW_MS - 1_319_001)));
        told.service("db").stopped = Some(word("new disks", None));
        assert_eq!(seen(&told).1, None);
        // A service that fails on each host has never run.
        told.service("db").stopped = None;
        let failed = [event(-900, "h1", What::Alarm, 7, "was not started: exit code 1")];
        assert_eq!(nobody_since(&[], &failed, &view(&told), NOW_MS), Some(NOW_MS - 900_000));
    }

    #[test]
    fn a_holder_that_is_silent_is_no_run_that_goes_on() {
        let mut told = small();
        let db = told.service("db");
        (db.state, db.silent_ms) = ("standby".to_owned(), Some(12_100));
        db.holder = "h2".to_owned();
        let events = [event(-9000, "h2", What::Started, 7, "the lock was free")];
        let mut all = holdings(&events);
        settle(&mut all, &view(&told), NOW_MS);
        assert_eq!((all[0].end, all[0].told_ms, all[0].until_ms), (End::NotKnown, NOW_MS - 12_100, Some(NOW_MS)));
        assert!(all[0].ended.contains("has not renewed it for 12.1s"), "{}", all[0].ended);
    }

    #[test]
    fn a_picture_that_is_older_than_the_run_ends_nothing() {
        let mut told = small();
        let db = told.service("db");
        (db.holder, db.state, db.token) = ("h2".to_owned(), "standby".to_owned(), 6);
        told.report("h2", "db").token = 6;
        assert_eq!(seen(&told).0.end, End::GoesOn);
    }

    #[test]
    fn a_length_that_is_not_known_is_never_shown_as_nothing() {
        let mut held = holdings(&[event(-9000, "h1", What::Stopped, 7, "an operator asked for it")]).remove(0);
        assert_eq!(held.length_in_words(NOW_MS), "not known");
        held.until_ms = Some(held.from_ms + 2000);
        assert_eq!(held.length_in_words(NOW_MS), "≥ 2.0s");
        held.from_is_latest = false;
        held.end = End::LastHeard;
        assert_eq!(held.length_in_words(NOW_MS), "≥ 2.0s", "it may have run for a lease longer");
        held.from_is_latest = true;
        held.end = End::NotKnown;
        assert_eq!(held.length_in_words(NOW_MS), "not known");
    }
}
