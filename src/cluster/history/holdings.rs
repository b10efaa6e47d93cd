//! The periods in which somebody ran the unit, made of the events of a history. The rule for what is known of their ends is in
//! the documentation of the [module above](super).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ASKED_START, ASKED_STOP, Happened, NOT_STARTED, What};
use crate::types::span::rounded;

/// Clocks of hosts differ by so much at most. A run that seems to overlap the next one by no more has ended before.
const CLOCKS_MS: u64 = 3000;
/// The stop of a unit takes so long after an operator's order at most. One that takes longer counts as a gap.
const ORDER_LIMIT_MS: u64 = 2 * 60 * 1000;
/// It is told how long a stop took that took longer.
const LONG_STOP_MS: u64 = 2000;

/// One period in which a host ran the unit. Times are those of the host's own clock, in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The host.
    pub host: String,
    /// The fencing token.
    pub token: u64,
    /// When the unit was started.
    pub from_ms: u64,
    /// Whether it was started before `from_ms`, and nobody knows when.
    pub from_is_latest: bool,
    /// When it had stopped, as [`end`](Self::end) says. `None`: nobody has told of its end, and nobody has run the unit since.
    pub to_ms: Option<u64>,
    /// What is known of its end.
    pub end: End,
    /// Until then the host is known to have been alive and to have had the lock, not later than `to_ms`.
    pub told_ms: u64,
    /// Why this host took over.
    pub started_because: String,
    /// Why the unit was stopped; empty while it runs.
    pub ended_because: String,
    /// For how long nobody ran the unit before. `None`: that is not known, or an operator had it stopped all the time.
    pub gap_before_ms: Option<u64>,
    /// Whether that gap may have been longer.
    pub gap_is_least: bool,
    /// Whether it may have been shorter: the host before has told nothing, and may have run it for a while after it was last heard of.
    pub gap_is_most: bool,
    /// The times that the gap is made of, without those in which an operator had it stopped.
    pub gaps: Vec<(u64, u64)>,
}

/// What is known of the end of a holding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// Nobody has told of an end, and nobody has run the unit since.
    GoesOn,
    /// The host has told when it stopped the unit. The stop may have taken a while after that.
    Told,
    /// The host has not told of it. The time is when the next holder had last heard of it, and it may have been later by a lease and
    /// a stop.
    LastHeard,
    /// Nobody knows exactly. The time is the latest one that is possible.
    NotKnown,
}

/// What is said where the event of a start or a stop is missing, or has no exact time.
const START_UNTOLD: &str = "nobody has told of its start";
const END_UNHEARD: &str = "nobody has told when; its host was last heard of then";
const END_UNKNOWN: &str = "nobody has told when; it was then at the latest";
const END_BEFORE_RELEASE: &str = "it was then at the latest, when the next host saw the lock free";
const END_WHILE_AWAY: &str = "it was then at the latest, because putexd was away or its host stood still";

/// What is told of one tenure.
#[derive(Default)]
struct Tenure<'a> {
    started: Option<&'a Happened>,
    stopped: Option<&'a Happened>,
    /// The start of the next holder, which tells when it had last heard of this one.
    seen: Option<&'a Happened>,
    /// The time of the last event that is no start and has an exact time.
    told_ms: u64,
}

/// The holdings that these events tell of, the latest last. Each tenure has a token of its own, so the order of the events does
/// not matter, and each of them may be missing: a host that dies tells nothing.
#[must_use]
pub fn holdings(events: &[Happened]) -> Vec<Holding> {
    let tenures = tenures(events);
    let mut all: Vec<(Holding, &Tenure<'_>)> =
        tenures.iter().filter_map(|((token, host), tenure)| Some((begun(*token, host, tenure)?, tenure))).collect();
    let last = all.len().saturating_sub(1);
    for place in 0..all.len() {
        let token = all[place].0.token;
        let next = all.get(place + 1).map(|(next, _)| next.from_ms);
        // A start that failed shows as well that the tenure before is over.
        let failed = events.iter().filter(|event| event.token > token && event.what == What::Alarm);
        let bound = failed.map(|event| event.at_ms).chain(next).min();
        let starts = if place < last { all[place + 1].1.started } else { None };
        let (holding, tenure) = &mut all[place];
        end(holding, tenure, starts, bound);
    }
    for place in 0..all.len() {
        let (before, rest) = all.split_at_mut(place);
        let Some((holding, tenure)) = rest.first_mut() else { break };
        let before = before.last().map(|(before, _)| before);
        let Gap { length_ms, is_least, is_most, parts } = gap(holding, tenure, before, events);
        (holding.gap_before_ms, holding.gap_is_least, holding.gap_is_most) = (length_ms, is_least, is_most);
        holding.gaps = parts;
    }
    all.into_iter().map(|(holding, _)| holding).collect()
}

/// The times in which nobody ran the unit although no operator had it stopped, where a run that began at `began_ms` ended at
/// `ended_ms` and nobody ran it until `until_ms`. Empty: an operator had it stopped all the time.
#[must_use]
pub fn unasked(events: &[Happened], began_ms: u64, ended_ms: u64, until_ms: u64) -> Vec<(u64, u64)> {
    // The order comes before the stop that follows from it, by a clock that may be another host's.
    let earliest = began_ms.max(ended_ms.saturating_sub(ORDER_LIMIT_MS));
    let latest = until_ms.saturating_add(CLOCKS_MS);
    let is_stop = |event: &Happened| event.reason.starts_with(ASKED_STOP);
    let is_order = |event: &&Happened| {
        event.what == What::Asked
            && (earliest..=latest).contains(&event.at_ms)
            && (is_stop(event) || event.reason.starts_with(ASKED_START))
    };
    let mut orders: Vec<&Happened> = events.iter().filter(is_order).collect();
    orders.sort_by_key(|order| order.at_ms);
    let (mut parts, mut since) = (Vec::new(), Some(ended_ms));
    for order in orders {
        since = match (is_stop(order), since) {
            (true, Some(since)) => {
                if order.at_ms > since.saturating_add(CLOCKS_MS) {
                    parts.push((since, order.at_ms.min(until_ms)));
                }
                None
            }
            (false, None) => Some(order.at_ms.min(until_ms).max(ended_ms)),
            (_, since) => since,
        };
    }
    parts.extend(since.map(|since| (since, until_ms)));
    parts.retain(|(from, until)| until > from);
    parts
}

/// What is told of each tenure, by token and host.
fn tenures(events: &[Happened]) -> BTreeMap<(u64, &str), Tenure<'_>> {
    let is_no_run = |event: &&Happened| event.what == What::Alarm && event.reason.starts_with(NOT_STARTED);
    let no_runs: BTreeSet<(u64, &str)> =
        events.iter().filter(is_no_run).map(|event| (event.token, &*event.host)).collect();
    let mut tenures: BTreeMap<(u64, &str), Tenure<'_>> = BTreeMap::new();
    for happened in events.iter().filter(|happened| happened.is_of_a_run() && happened.token != 0) {
        let tenure = tenures.entry((happened.token, &happened.host)).or_default();
        match happened.what {
            // Somebody may have told the same twice: the first start and the last end count.
            What::Started => tenure.started = tenure.started.or(Some(happened)),
            What::Stopped => tenure.stopped = Some(happened),
            What::Alarm | What::Asked => {}
        }
    }
    for happened in events.iter().filter(|happened| happened.token != 0 && !happened.or_earlier) {
        if let Some(tenure) = tenures.get_mut(&(happened.token, happened.host.as_str())) {
            tenure.told_ms = tenure.told_ms.max(happened.at_ms);
        }
    }
    // A host may have had no time to write that it ran the unit. The oldest event tells of one that is not kept any more.
    let oldest = tenures.keys().next().map_or(0, |(token, _)| *token);
    for next in events.iter().filter(|next| next.what == What::Started && next.gap_ms.is_some()) {
        let names_one = !next.former.is_empty() && next.former_token != 0 && next.former_token < next.token;
        if names_one && (next.former_token > oldest || next.former_from_ms.is_some()) {
            let tenure = tenures.entry((next.former_token, &next.former)).or_default();
            let is_better = tenure.seen.is_none_or(|seen| seen.gap_is_least && !next.gap_is_least);
            tenure.seen = if is_better { Some(next) } else { tenure.seen };
        }
    }
    // systemd counts a unit as started before it is known that its program cannot be run, and so does the lock's record.
    tenures.retain(|tenure, told| told.stopped.is_some() || !no_runs.contains(tenure));
    tenures
}

/// The beginning of a holding, which has no end yet.
fn begun(token: u64, host: &str, tenure: &Tenure<'_>) -> Option<Holding> {
    let heard = tenure.seen.map(heard_ms);
    let seen_from = tenure.seen.and_then(|seen| Some(seen.former_from_ms?.min(seen.at_ms)));
    let stopped = tenure.stopped.map(lease_until_ms);
    let from_ms = tenure.started.map(|started| started.at_ms).or(seen_from).or(stopped).or(heard)?;
    let began = match (tenure.started, tenure.seen.filter(|_| seen_from.is_some())) {
        (Some(started), _) => started.reason.clone(),
        (None, Some(seen)) => format!("its host has not told why; {} has seen it run from then on", seen.host),
        (None, None) => START_UNTOLD.to_owned(),
    };
    Some(Holding {
        host: host.to_owned(),
        token,
        from_ms,
        from_is_latest: tenure.started.is_none() && seen_from.is_none(),
        to_ms: None,
        end: End::GoesOn,
        told_ms: tenure.told_ms.max(from_ms),
        started_because: began,
        ended_because: String::new(),
        gap_before_ms: None,
        gap_is_least: false,
        gap_is_most: false,
        gaps: Vec::new(),
    })
}

/// When the host that was started next had last heard of the one before, or had found its record.
fn heard_ms(next: &Happened) -> u64 {
    next.at_ms.saturating_sub(next.gap_ms.unwrap_or(0))
}

/// Until when the unit ran at least; its stop, where that is exact.
fn lease_until_ms(stopped: &Happened) -> u64 {
    stopped.lease_until_ms.unwrap_or(stopped.at_ms).min(stopped.at_ms)
}

/// Adds the end. `next`: the start of the next holder. `bound`: the latest time that is possible.
fn end(holding: &mut Holding, tenure: &Tenure<'_>, next: Option<&Happened>, bound: Option<u64>) {
    let from_ms = holding.from_ms;
    let within = |at_ms: u64| bound.map_or(at_ms, |bound| at_ms.min(bound)).max(from_ms);
    // The next holder of an earlier version does not name the host that it had heard of.
    let unnamed = next.filter(|next| next.gap_ms.is_some() && next.former.is_empty());
    match (tenure.stopped, tenure.seen.or(unnamed)) {
        (Some(stopped), _) if !stopped.or_earlier => {
            (holding.end, holding.ended_because) = (End::Told, stopped.reason.clone());
            let over = bound.map_or(0, |bound| stopped.at_ms.saturating_sub(bound.max(from_ms)));
            if over > CLOCKS_MS {
                holding.to_ms = Some(stopped.at_ms.max(from_ms));
                let over = rounded(Duration::from_millis(over));
                holding.ended_because = format!(
                    "{}; see whether the clocks of the hosts are right, or two of them ran it at once: it ended {over} after the next \
                     run began",
                    stopped.reason
                );
            } else {
                let began_ms = stopped.stopping_ms.unwrap_or(stopped.at_ms).min(stopped.at_ms);
                holding.to_ms = Some(within(began_ms));
                let took = stopped.at_ms - began_ms;
                if took > LONG_STOP_MS {
                    let took = rounded(Duration::from_millis(took));
                    holding.ended_because = format!("{}; its stop took {took}", stopped.reason);
                }
            }
        }
        (Some(stopped), _) => {
            holding.to_ms = Some(within(stopped.at_ms));
            holding.end = End::NotKnown;
            holding.told_ms = holding.told_ms.max(lease_until_ms(stopped));
            holding.ended_because = format!("{}; {END_WHILE_AWAY}", stopped.reason);
        }
        (None, Some(seen)) => {
            holding.to_ms = Some(within(heard_ms(seen).max(holding.told_ms)));
            (holding.end, holding.ended_because) = if !seen.former_reason.is_empty() {
                (End::NotKnown, format!("{}; {END_BEFORE_RELEASE}", seen.former_reason))
            } else if seen.gap_is_least {
                (End::NotKnown, END_UNKNOWN.to_owned())
            } else {
                (End::LastHeard, END_UNHEARD.to_owned())
            };
        }
        (None, None) => {
            holding.to_ms = bound.map(|bound| bound.max(from_ms));
            if bound.is_some() {
                (holding.end, holding.ended_because) = (End::NotKnown, END_UNKNOWN.to_owned());
            }
        }
    }
    holding.told_ms = holding.to_ms.map_or(holding.told_ms, |to_ms| holding.told_ms.min(to_ms));
}

/// For how long nobody ran the unit before a holding.
#[derive(Default)]
struct Gap {
    length_ms: Option<u64>,
    is_least: bool,
    is_most: bool,
    parts: Vec<(u64, u64)>,
}

fn gap(holding: &Holding, tenure: &Tenure<'_>, before: Option<&Holding>, events: &[Happened]) -> Gap {
    let from_ms = holding.from_ms;
    if holding.from_is_latest {
        return Gap::default();
    }
    let Some((before, to_ms)) = before.and_then(|before| Some((before, before.to_ms?))) else {
        let Some(started) = tenure.started.filter(|started| started.gap_ms.is_some()) else { return Gap::default() };
        let parts =
            started.gap_ms.map(|gap| (from_ms.saturating_sub(gap), from_ms)).filter(|(from, until)| from < until);
        let (is_least, is_most) = (started.gap_is_least, !started.gap_is_least);
        return Gap { length_ms: started.gap_ms, is_least, is_most, parts: parts.into_iter().collect() };
    };
    // The end of the last holding tells more than what this host had seen of it. Clocks differ.
    let parts = unasked(events, before.from_ms, to_ms, from_ms.max(to_ms));
    let length: u64 = parts.iter().map(|(from, until)| until - from).sum();
    let (is_least, is_most) = (before.end == End::NotKnown, before.end == End::LastHeard);
    // That it was no less than nothing says nothing; and an operator may have had it stopped all the time.
    let is_known = length > 0 || !is_least && to_ms >= from_ms;
    let length_ms = is_known.then_some(length);
    Gap { length_ms, is_least: is_known && is_least, is_most: is_known && is_most && length > 0, parts }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at_ms: u64, host: &str, what: What, token: u64) -> Happened {
        Happened::new(at_ms, host, what, token, &format!("{what:?} {token}"))
    }

    fn told(events: &[Happened]) -> Vec<(String, u64, Option<u64>, Option<u64>)> {
        holdings(events).into_iter().map(|held| (held.host, held.from_ms, held.to_ms, held.gap_before_ms)).collect()
    }

    #[test]
    fn each_tenure_is_a_holding_with_the_gap_before_it() {
        let mut events = vec![
            event(1000, "h1", What::Started, 10),
            event(1500, "h1", What::Alarm, 10),
            event(5000, "h1", What::Stopped, 10),
            event(5200, "h2", What::Started, 11),
            event(9000, "h2", What::Asked, 0),
        ];
        let expected = [("h1".to_owned(), 1000, Some(5000), None), ("h2".to_owned(), 5200, None, Some(200))];
        assert_eq!(told(&events), expected);
        // The stop came to the store after the next start.
        events.swap(2, 3);
        assert_eq!(told(&events), expected);
        let all = holdings(&events);
        assert_eq!((&*all[0].started_because, &*all[0].ended_because), ("Started 10", "Stopped 10"));
        assert_eq!(all[1].ended_because, "");
    }

    /// A start whose host had last heard of `former` so long before.
    fn took(at_ms: u64, host: &str, token: u64, former: (&str, u64), from_ms: Option<u64>, gap_ms: u64) -> Happened {
        Happened {
            gap_ms: Some(gap_ms),
            former: former.0.to_owned(),
            former_token: former.1,
            former_from_ms: from_ms,
            ..event(at_ms, host, What::Started, token)
        }
    }

    #[test]
    fn a_stop_while_putexd_was_away_ends_before_the_next_run_begins() {
        // putexd on h2 stood still at 17 s. The guard stopped the unit between 20 and 26 s, and h1 began at 21 s.
        let stop =
            Happened { or_earlier: true, lease_until_ms: Some(20_000), ..event(26_000, "h2", What::Stopped, 10) };
        let next = took(21_300, "h1", 11, ("h2", 10), Some(0), 4000);
        let events = [event(0, "h2", What::Started, 10), stop.clone(), next];
        let [first, next] = &holdings(&events)[..] else { panic!("two holdings") };
        assert_eq!((first.end, first.told_ms, first.to_ms), (End::NotKnown, 20_000, Some(21_300)));
        assert_eq!((next.gap_before_ms, next.gap_is_least), (None, false));
        assert!(first.ended_because.contains("Stopped 10") && first.ended_because.contains(END_WHILE_AWAY));
        // Nobody else could take it, because the store was away.
        let alone = &holdings(&[event(0, "h2", What::Started, 10), stop])[0];
        assert_eq!((alone.end, alone.told_ms, alone.to_ms), (End::NotKnown, 20_000, Some(26_000)));
    }

    #[test]
    fn a_run_ends_when_its_stop_begins_and_a_stop_that_hangs_is_a_gap() {
        let stop = Happened { stopping_ms: Some(10_000), ..event(101_000, "h1", What::Stopped, 10) };
        let events = [event(0, "h1", What::Started, 10), stop, event(105_000, "h2", What::Started, 11)];
        let [ran, next] = &holdings(&events)[..] else { panic!("two holdings") };
        assert_eq!(
            (ran.end, ran.to_ms, &*ran.ended_because),
            (End::Told, Some(10_000), "Stopped 10; its stop took 91s")
        );
        assert_eq!((next.gap_before_ms, &*next.gaps), (Some(95_000), &[(10_000, 105_000)][..]));
    }

    #[test]
    fn two_runs_overlap_only_where_both_hosts_say_so_and_that_is_told() {
        let run = |stopped| {
            let events = [
                event(0, "h1", What::Started, 10),
                event(stopped, "h1", What::Stopped, 10),
                event(10_000, "h2", What::Started, 11),
            ];
            holdings(&events)[0].clone()
        };
        assert_eq!((run(12_000).to_ms, &*run(12_000).ended_because), (Some(10_000), "Stopped 10"), "the clocks differ");
        let both = run(30_000);
        assert_eq!(both.to_ms, Some(30_000));
        assert!(both.ended_because.contains("two of them ran it at once: it ended 20s after"), "{both:?}");
    }

    #[test]
    fn a_run_whose_host_could_write_nothing_is_known_by_the_next_one() {
        let events = [
            event(0, "h3", What::Started, 9),
            event(60_000, "h3", What::Stopped, 9),
            // h2 ran it from 60.1 s until its power was gone, and has written nothing.
            took(72_000, "h1", 11, ("h2", 10), Some(60_100), 3000),
        ];
        assert_eq!(
            told(&events),
            [
                ("h3".to_owned(), 0, Some(60_000), None),
                ("h2".to_owned(), 60_100, Some(69_000), Some(100)),
                ("h1".to_owned(), 72_000, None, Some(3000)),
            ]
        );
        // h1 had lost the store meanwhile, and found the record of h2 when it was back.
        let found = Happened { gap_is_least: true, ..took(72_000, "h1", 11, ("h2", 10), None, 3000) };
        let [_, lost, next] = &holdings(&[events[0].clone(), events[1].clone(), found])[..] else { panic!("three") };
        assert_eq!(
            (lost.from_ms, lost.from_is_latest, lost.end, lost.gap_before_ms),
            (69_000, true, End::NotKnown, None)
        );
        assert_eq!((next.gap_before_ms, next.gap_is_least), (Some(3000), true));
    }

    #[test]
    fn a_release_that_the_next_host_has_seen_tells_why_the_run_ended_and_by_when() {
        let start = event(0, "h2", What::Started, 10);
        // h2 had last renewed at 10 s, and h1 saw its release at 11.9 s.
        let next = took(12_000, "h1", 11, ("h2", 10), Some(100), 100).after_release("putexd is stopped");
        let [ended, next] = &holdings(&[start.clone(), next.clone()])[..] else { panic!("two holdings") };
        assert_eq!((ended.end, ended.to_ms), (End::NotKnown, Some(11_900)));
        assert_eq!(ended.ended_because, format!("putexd is stopped; {END_BEFORE_RELEASE}"));
        assert_eq!((next.gap_before_ms, next.gap_is_least, next.gap_is_most), (Some(100), true, false));
        // Its host has told it, too.
        let next = took(12_000, "h1", 11, ("h2", 10), Some(100), 100).after_release("putexd is stopped");
        let [told, _] = &holdings(&[start, event(11_850, "h2", What::Stopped, 10), next])[..] else { panic!("two") };
        assert_eq!((told.end, told.to_ms, &*told.ended_because), (End::Told, Some(11_850), "Stopped 10"));
    }

    #[test]
    fn a_tenure_that_has_started_nothing_is_no_run() {
        // h3 has seen a record of h2 that says that it runs the unit.
        let failed = Happened { reason: format!("{NOT_STARTED}: exit code 1"), ..event(9000, "h2", What::Alarm, 11) };
        let next = took(12_000, "h3", 12, ("h2", 11), Some(8000), 2000);
        let events = [event(0, "h1", What::Started, 10), event(6000, "h1", What::Stopped, 10), failed, next];
        assert_eq!(
            told(&events),
            [("h1".to_owned(), 0, Some(6000), None), ("h3".to_owned(), 12_000, None, Some(6000))]
        );
    }

    #[test]
    fn a_start_whose_program_could_not_be_run_is_no_run() {
        let failed =
            Happened { reason: format!("{NOT_STARTED}: exit status 203"), ..event(6200, "h2", What::Alarm, 11) };
        let mut events = vec![
            event(0, "h1", What::Started, 10),
            event(6000, "h1", What::Stopped, 10),
            event(6100, "h2", What::Started, 11),
            failed,
            event(7000, "h1", What::Started, 12),
        ];
        let runs = [("h1".to_owned(), 0, Some(6000), None), ("h1".to_owned(), 7000, None, Some(1000))];
        assert_eq!(told(&events), runs);
        events.pop();
        assert_eq!(told(&events), runs[..1]);
    }

    #[test]
    fn a_start_that_failed_ends_the_run_before() {
        let events = [event(0, "h2", What::Started, 10), event(9000, "h3", What::Alarm, 11)];
        let [held] = &holdings(&events)[..] else { panic!("one") };
        assert_eq!((held.end, held.to_ms, held.told_ms), (End::NotKnown, Some(9000), 0));
    }

    #[test]
    fn the_time_in_which_an_operator_has_it_stopped_is_no_gap() {
        let asked = |at_ms, reason: &str| Happened { reason: reason.to_owned(), ..event(at_ms, "h9", What::Asked, 0) };
        let mut events = vec![
            event(0, "h1", What::Started, 10),
            asked(9000, "stop everywhere: new disks; asked for by root@h9"),
            event(10_000, "h1", What::Stopped, 10),
            event(95_000, "h2", What::Started, 11),
        ];
        assert_eq!(told(&events)[1].3, None, "nobody knows when the order ended");
        events.push(asked(90_000, "start again; asked for by root@h9"));
        assert_eq!(told(&events)[1].3, Some(5000));
        assert_eq!(unasked(&events, 0, 10_000, 12_000), []);
        assert_eq!(unasked(&events[2..], 0, 10_000, 12_000), [(10_000, 12_000)]);
        // The unit had stopped long before the order, because the store was away.
        events[1].at_ms = 40_000;
        let last = &holdings(&events)[1];
        assert_eq!((last.gap_before_ms, &*last.gaps), (Some(35_000), &[(10_000, 40_000), (90_000, 95_000)][..]));
    }

    #[test]
    fn lost_events_and_clocks_that_differ_do_no_harm() {
        assert_eq!(told(&[]), []);
        // The holder died; the next one had not heard of it for 3 s.
        let next = Happened { gap_ms: Some(3000), ..event(9000, "h2", What::Started, 11) };
        let died = [event(1000, "h1", What::Started, 10), next];
        assert_eq!(told(&died), [("h1".to_owned(), 1000, Some(6000), None), ("h2".to_owned(), 9000, None, Some(3000))]);
        assert_eq!((&*holdings(&died)[0].ended_because, holdings(&died)[0].end), (END_UNHEARD, End::LastHeard));
        // It may have run the unit for a while after that.
        assert!(holdings(&died)[1].gap_is_most && !holdings(&died)[1].gap_is_least);
        // It had no power for 70 s, and the next holder, which had none either, found its record 5 s before it took over.
        let found = Happened { gap_ms: Some(5000), gap_is_least: true, ..event(90_000, "h2", What::Started, 11) };
        let dark = [event(1000, "h1", What::Started, 10), event(15_000, "h1", What::Alarm, 10), found];
        let [first, next] = &holdings(&dark)[..] else { panic!("two holdings") };
        assert_eq!((first.end, first.told_ms, first.to_ms), (End::NotKnown, 15_000, Some(85_000)));
        assert_eq!((next.gap_before_ms, next.gap_is_least), (Some(5000), true));
        // The start is lost.
        let stop = [event(5000, "h1", What::Stopped, 10)];
        assert_eq!(told(&stop), [("h1".to_owned(), 5000, Some(5000), None)]);
        assert_eq!(holdings(&stop)[0].started_because, START_UNTOLD);
        // The clock of the second host is behind.
        let behind = [
            event(5000, "h1", What::Started, 10),
            event(6000, "h1", What::Stopped, 10),
            event(4000, "h2", What::Started, 11),
        ];
        assert_eq!(told(&behind)[1], ("h2".to_owned(), 4000, None, Some(0)));
        let died_ahead = [event(5000, "h1", What::Started, 10), event(4000, "h2", What::Started, 11)];
        assert_eq!(told(&died_ahead)[0], ("h1".to_owned(), 5000, Some(5000), None));
    }
}
