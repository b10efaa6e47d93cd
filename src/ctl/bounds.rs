//! How long a failover takes at most, as a sum of named terms: "How long it takes" in protocol.md, with the numbers of one service.

use std::time::Duration;

use serde::Serialize;

use crate::config::ServiceSettings;
use crate::election::{Confirmation, Timings};
use crate::types::span::milliseconds;

/// One term of a bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Term {
    /// What takes the time, with the keys that decide it.
    pub(super) name: String,
    /// How long it takes at most, in milliseconds. `None`: it has no number, such as the unit's own start.
    pub(super) ms: Option<u64>,
}

/// One kind of failover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Bound {
    /// What happens.
    pub(super) event: String,
    /// The sum of the terms that have a number, in milliseconds.
    pub(super) at_most_ms: u64,
    /// What the time is made of.
    pub(super) terms: Vec<Term>,
    /// What an operator has to know beside it.
    pub(super) remark: String,
}

impl Bound {
    fn new(event: &str, terms: Vec<Term>, remark: String) -> Self {
        let at_most_ms = terms.iter().filter_map(|term| term.ms).sum();
        Self { event: event.to_owned(), at_most_ms, terms, remark }
    }

    /// The longest that the terms with a number take together.
    pub(super) fn at_most(&self) -> Duration {
        Duration::from_millis(self.at_most_ms)
    }
}

fn term(name: impl Into<String>, span: Duration) -> Term {
    Term { name: name.into(), ms: Some(milliseconds(span)) }
}

fn unnumbered(name: &str) -> Term {
    Term { name: name.to_owned(), ms: None }
}

/// From the last renewal of a holder that falls silent to the start elsewhere.
fn wait(timings: &Timings) -> (Duration, String) {
    let wait = timings.wait(timings.usual_hold());
    let name = match timings.confirmation {
        Confirmation::Full => "from its last renewal: T + C·R, or the longest hold of a host if that is longer",
        Confirmation::Minimal => "from its last renewal: until the holder's hold T − margin + stop-budget is over",
    };
    (wait, name.to_owned())
}

fn fencing(service: &ServiceSettings) -> Option<Term> {
    let fence = &service.fence;
    let others = fence.others.as_ref()?;
    let name = if fence.required {
        format!("fencing of the former holder by {others} ([fence] timeout); without its success no start")
    } else {
        format!("fencing of the former holder by {others} ([fence] timeout)")
    };
    Some(term(name, fence.timeout))
}

/// The failover after the holder's host dies, hangs or is cut off.
pub(super) fn of_silence(service: &ServiceSettings) -> Bound {
    let timings = &service.timings;
    let (wait, name) = wait(timings);
    let mut terms = vec![
        term(name, wait),
        term("two round trips to the store, each of at most min(R, (T − margin)/3)", timings.call_limit() * 2),
    ];
    terms.extend(fencing(service));
    terms.push(unnumbered("the start of the unit"));
    let earlier = timings.renew_interval;
    let remark = format!(
        "The last renewal was sent at most R = {earlier:?} before the fault, so that from the fault on it is up to {earlier:?} less."
    );
    Bound::new("The holder's host loses its power, hangs, or is cut off from the store", terms, remark)
}

/// All kinds of failover of a service.
pub(super) fn of(service: &ServiceSettings) -> Vec<Bound> {
    let timings = &service.timings;
    let round_trips = timings.call_limit();
    let planned = vec![
        term("the stop of the unit, proven (stop-limit; after that, SIGKILL or on-stop-failure)", service.stop_limit),
        term(
            "a write, a read, the claim and its confirmation: four round trips of at most min(R, (T − margin)/3)",
            round_trips * 4,
        ),
        term("the news of the free lock, where the store's watch does not bring it: R", timings.renew_interval),
        unnumbered("the start of the unit"),
    ];
    let usual = "As a rule the stop takes what the unit itself takes, and the rest a few round trips to the store and what PID 1 of both \
                 hosts takes for the stop, its proof and the start. Where many services move together, each of them waits for those \
                 before it.";
    let rides = timings.rides_through();
    let away = vec![
        term(
            "it stops the unit at its deadline, T·(1 − clock-error) − margin after the last renewal",
            timings.deadline_after(),
        ),
        term("its stop, by SIGKILL at the latest (stop-budget)", timings.stop_budget),
    ];
    let remark = format!(
        "An absence of up to {rides:.1?} (T·(1 − clock-error) − margin − R), less two round trips, is not felt. After that the unit \
         stops, and no host starts it before the store answers again."
    );
    let deadline = timings.deadline_after();
    let daemon = vec![
        term("the guard goes on until the deadline, T·(1 − clock-error) − margin after the last renewal", deadline),
        term("its stop, by SIGKILL at the latest (stop-budget)", timings.stop_budget),
    ];
    let daemon_remark = "A putexd that is back before the deadline, as after a crash or an upgrade, takes up its lease again: the unit \
                         goes on. A guard that dies is started again by systemd; while there is none, the unit is stopped as if the \
                         lease had ended.";
    let (silent, name) = wait(timings);
    let mut both = vec![
        unnumbered("until the store answers again"),
        term(format!("{name}; counted from the first answer where the host had none for a while"), silent),
        term("two round trips to the store", round_trips * 2),
    ];
    both.extend(fencing(service));
    both.push(unnumbered("the start of the unit"));
    vec![
        Bound::new("Planned: step-down, move, drain, or a failed health check", planned, usual.to_owned()),
        of_silence(service),
        Bound::new("The store is away: until the holder's unit is stopped", away, remark),
        Bound::new(
            "putexd or the guard on the holder's host dies and stays away: until the unit is stopped",
            daemon,
            daemon_remark.to_owned(),
        ),
        Bound::new("The store and the holder are lost together", both, String::new()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_leaves_out_what_has_no_number() {
        let bound = Bound::new("x", vec![term("a", Duration::from_secs(2)), unnumbered("b")], String::new());
        assert_eq!(bound.at_most(), Duration::from_secs(2));
    }
}
