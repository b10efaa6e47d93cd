//! The periods in which somebody ran the unit, made of the events of a history.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Happened, What};

/// One period in which a host ran the unit. Times are those of the host's own clock, in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The host.
    pub host: String,
    /// The fencing token.
    pub token: u64,
    /// When the unit was started.
    pub from_ms: u64,
    /// When it had stopped, as [`end`](Self::end) says. `None`: nobody has told of its end, and nobody has run the unit since.
    pub to_ms: Option<u64>,
    /// What is known of its end.
    pub end: End,
    /// The last event that the host has told of this tenure. Until then it was alive.
    pub told_ms: u64,
    /// Why this host took over.
    pub started_because: String,
    /// Why the unit was stopped; empty while it runs.
    pub ended_because: String,
    /// For how long nobody ran the unit before. `None`: that is not known.
    pub gap_before_ms: Option<u64>,
    /// Whether that gap may have been longer.
    pub gap_is_least: bool,
}

/// What is known of the end of a holding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// Nobody has told of an end, and nobody has run the unit since.
    GoesOn,
    /// The host has told when the unit had stopped.
    Told,
    /// The host has not told of it. The time is when the next holder had last heard of it.
    LastHeard,
    /// Nobody knows. The time is the latest one that is possible.
    NotKnown,
}

/// What is said where the event of a start or a stop is missing.
const START_UNTOLD: &str = "nobody has told of its start";
const END_UNHEARD: &str = "nobody has told when; its host was last heard of then";
const END_UNKNOWN: &str = "nobody has told when; it was then at the latest";

/// The holdings that these events tell of, the latest last. Each tenure has a token of its own, so the order of the events does
/// not matter, and each of them may be missing: a host that dies tells nothing.
#[must_use]
pub fn holdings(events: &[Happened]) -> Vec<Holding> {
    let mut tenures: BTreeMap<(u64, &str), [Option<&Happened>; 2]> = BTreeMap::new();
    for happened in events.iter().filter(|happened| happened.is_of_a_run() && happened.token != 0) {
        let [started, stopped] = tenures.entry((happened.token, &happened.host)).or_default();
        match happened.what {
            // Somebody may have told the same twice: the first start and the last end count.
            What::Started => *started = started.or(Some(happened)),
            What::Stopped => *stopped = Some(happened),
            What::Alarm | What::Asked => {}
        }
    }
    let mut told: BTreeMap<(u64, &str), u64> = BTreeMap::new();
    for happened in events.iter().filter(|happened| happened.token != 0) {
        let last = told.entry((happened.token, &happened.host)).or_default();
        *last = happened.at_ms.max(*last);
    }
    let mut all: Vec<Holding> = Vec::with_capacity(tenures.len());
    for ((token, host), [started, stopped]) in tenures {
        let Some(first) = started.or(stopped) else { continue };
        let before = all.last_mut();
        let from_ms = first.at_ms;
        let mut gap_before_ms = started.and_then(|started| started.gap_ms);
        let mut gap_is_least = started.is_some_and(|started| started.gap_is_least) && gap_before_ms.is_some();
        if let Some(before) = before {
            match before.to_ms {
                // The end of the last holding tells more than what this host had seen of it. Clocks differ.
                Some(to_ms) if started.is_some() => {
                    (gap_before_ms, gap_is_least) = (Some(from_ms.saturating_sub(to_ms)), false);
                }
                Some(_) => {}
                None => {
                    let end = from_ms.saturating_sub(gap_before_ms.unwrap_or(0)).max(before.told_ms.min(from_ms));
                    before.to_ms = Some(end.max(before.from_ms));
                    let is_heard = gap_before_ms.is_some() && !gap_is_least;
                    before.end = if is_heard { End::LastHeard } else { End::NotKnown };
                    if is_heard { END_UNHEARD } else { END_UNKNOWN }.clone_into(&mut before.ended_because);
                }
            }
        }
        all.push(Holding {
            host: host.to_owned(),
            token,
            from_ms,
            to_ms: stopped.map(|stopped| stopped.at_ms.max(from_ms)),
            end: if stopped.is_some() { End::Told } else { End::GoesOn },
            told_ms: told.get(&(token, host)).copied().unwrap_or(0).max(from_ms),
            started_because: started.map_or(START_UNTOLD, |started| &started.reason).to_owned(),
            ended_because: stopped.map(|stopped| stopped.reason.clone()).unwrap_or_default(),
            gap_before_ms,
            gap_is_least,
        });
    }
    all
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

    #[test]
    fn lost_events_and_clocks_that_differ_do_no_harm() {
        assert_eq!(told(&[]), []);
        // The holder died; the next one had not heard of it for 3 s.
        let next = Happened { gap_ms: Some(3000), ..event(9000, "h2", What::Started, 11) };
        let died = [event(1000, "h1", What::Started, 10), next];
        assert_eq!(told(&died), [("h1".to_owned(), 1000, Some(6000), None), ("h2".to_owned(), 9000, None, Some(3000))]);
        assert_eq!((&*holdings(&died)[0].ended_because, holdings(&died)[0].end), (END_UNHEARD, End::LastHeard));
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
