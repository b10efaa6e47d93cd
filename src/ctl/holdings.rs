//! Who ran a service from when to when, as the hosts have noted it.

use serde::Serialize;

use crate::cluster::history::{Happened, What};

/// One run of a service on one host, under one fencing token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Holding {
    /// The host.
    pub(super) host: String,
    /// The fencing token; 0 = it was not noted.
    pub(super) token: u64,
    /// When it was started, in milliseconds since 1970. `None`: it was not noted.
    pub(super) from_ms: Option<u64>,
    /// When it ended. `None`: it goes on, or its end was not noted.
    pub(super) until_ms: Option<u64>,
    /// Whether `until_ms` was concluded from the next start, because the host did not note the end.
    pub(super) end_is_concluded: bool,
    /// Why it began.
    pub(super) began: String,
    /// Why it ended; empty = it goes on.
    pub(super) ended: String,
    /// For how long nobody ran the service before, in milliseconds.
    pub(super) gap_ms: Option<u64>,
}

/// What is said of the end of a run that its host has not noted.
const UNNOTED: &str = "its host did not note the end: it died, or was cut off from the store";

/// The holdings in the order of their begin. A host notes a start and a stop by its own clock, so that the fencing token decides
/// the order where there is one.
pub(super) fn holdings(events: &[Happened]) -> Vec<Holding> {
    let mut found: Vec<Holding> = Vec::new();
    for event in events {
        let place = found.iter().rposition(|holding| holding.host == event.host && holding.token == event.token);
        match event.what {
            What::Started => {
                let again = place.is_some_and(|place| found[place].until_ms.is_none() && event.token != 0);
                // The same start, told twice because its answer was lost.
                if !again {
                    found.push(Holding {
                        host: event.host.clone(),
                        token: event.token,
                        from_ms: Some(event.at_ms),
                        until_ms: None,
                        end_is_concluded: false,
                        began: event.reason.clone(),
                        ended: String::new(),
                        gap_ms: event.gap_ms,
                    });
                }
            }
            What::Stopped => match place.filter(|place| found[*place].until_ms.is_none()) {
                Some(place) => (found[place].until_ms, found[place].ended) = (Some(event.at_ms), event.reason.clone()),
                None => found.push(Holding {
                    host: event.host.clone(),
                    token: event.token,
                    from_ms: None,
                    until_ms: Some(event.at_ms),
                    end_is_concluded: false,
                    began: String::new(),
                    ended: event.reason.clone(),
                    gap_ms: None,
                }),
            },
            What::Alarm | What::Asked => {}
        }
    }
    let begin = |holding: &Holding| holding.from_ms.or(holding.until_ms);
    found.sort_by(|one, other| match (one.token, other.token) {
        (0, _) | (_, 0) => begin(one).cmp(&begin(other)),
        (one_token, other_token) => (one_token, begin(one)).cmp(&(other_token, begin(other))),
    });
    conclude(&mut found);
    found
}

/// Ends the holdings behind which another one began.
fn conclude(holdings: &mut [Holding]) {
    for place in 1..holdings.len() {
        let (before, after) = holdings.split_at_mut(place);
        let (Some(last), Some(next)) = (before.last_mut(), after.first()) else { continue };
        if last.until_ms.is_none()
            && let Some(from) = next.from_ms.or(next.until_ms)
        {
            let end = from.saturating_sub(next.gap_ms.unwrap_or(0));
            last.until_ms = Some(end.max(last.from_ms.unwrap_or(0)));
            last.end_is_concluded = true;
            if last.ended.is_empty() {
                UNNOTED.clone_into(&mut last.ended);
            }
        }
    }
}

/// The gap before each holding: as its host has noted it, else the time between the two notes.
pub(super) fn gap_before(holdings: &[Holding], place: usize) -> Option<u64> {
    let next = holdings.get(place)?;
    next.gap_ms.or_else(|| {
        let before = holdings.get(place.checked_sub(1)?)?;
        Some(next.from_ms?.saturating_sub(before.until_ms.filter(|_| !before.end_is_concluded)?))
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::ctl) fn event(at_s: i64, host: &str, what: What, token: u64, reason: &str) -> Happened {
        let (host, reason) = (host.to_owned(), reason.to_owned());
        Happened {
            at_ms: 1_795_000_000_000_u64.saturating_add_signed(at_s * 1000),
            host,
            what,
            token,
            reason,
            gap_ms: None,
        }
    }

    #[test]
    fn a_start_and_its_stop_are_one_holding() {
        let events = [
            event(0, "h1", What::Started, 7, "the lock was free"),
            event(0, "h1", What::Started, 7, "the lock was free"),
            event(50, "h1", What::Alarm, 7, "it is late"),
            event(90, "h1", What::Stopped, 7, "an operator asked for it"),
            event(91, "h2", What::Started, 8, "h1 released it"),
        ];
        let found = holdings(&events);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].until_ms, found[0].ended.as_str()), (Some(1_795_000_090_000), "an operator asked for it"));
        assert_eq!((found[1].until_ms, gap_before(&found, 1)), (None, Some(1000)));
    }

    #[test]
    fn who_did_not_note_its_end_ended_before_the_next_start() {
        let mut taken = event(100, "h2", What::Started, 8, "h1 fell silent");
        taken.gap_ms = Some(9000);
        let found = holdings(&[event(0, "h1", What::Started, 7, ""), taken]);
        assert_eq!((found[0].until_ms, found[0].end_is_concluded), (Some(1_795_000_091_000), true));
        assert_eq!(found[0].ended, UNNOTED);
        assert_eq!(gap_before(&found, 1), Some(9000));
    }

    #[test]
    fn clocks_that_differ_do_not_change_the_order_of_tokens() {
        let events = [event(100, "h2", What::Started, 8, ""), event(200, "h1", What::Started, 7, "")];
        let hosts: Vec<_> = holdings(&events).into_iter().map(|holding| holding.host).collect();
        assert_eq!(hosts, ["h1", "h2"]);
    }
}
