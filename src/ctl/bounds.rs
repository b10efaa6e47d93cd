//! How long a failover takes at most, as a sum of named terms: "How long it takes" in protocol.md, with the numbers of one service.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::config::ServiceSettings;
use crate::election::Confirmation;
use crate::types::span::{milliseconds, rounded};

/// One term of a bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Term {
    /// What takes the time.
    name: &'static str,
    /// How long it takes at most, in milliseconds.
    ms: u64,
}

/// One kind of failover. The start of the unit, which has no bound, comes to those in which another host starts it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Bound {
    /// What happens.
    pub(super) event: &'static str,
    /// The sum of the terms, in milliseconds.
    pub(super) at_most_ms: u64,
    /// What the time is made of.
    terms: Vec<Term>,
}

impl Bound {
    fn new(event: &'static str, terms: Vec<Term>) -> Self {
        Self { event, at_most_ms: terms.iter().map(|term| term.ms).sum(), terms }
    }

    /// The longest that it takes.
    pub(super) fn at_most(&self) -> Duration {
        Duration::from_millis(self.at_most_ms)
    }

    /// What it is made of.
    pub(super) fn terms(&self) -> String {
        self.terms.iter().map(Term::to_string).collect::<Vec<_>>().join(" + ")
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, rounded(Duration::from_millis(self.ms)))
    }
}

fn term(name: &'static str, span: Duration) -> Term {
    Term { name, ms: milliseconds(span) }
}

/// From the last renewal of a holder that falls silent to the start elsewhere.
fn silence(service: &ServiceSettings) -> Vec<Term> {
    let timings = &service.timings;
    let wait = match timings.confirmation {
        Confirmation::Full => "T + C·R",
        Confirmation::Minimal => "hold",
    };
    let fencing = service.fence.others.as_ref().map(|_| term("fence", service.fence.timeout));
    let wait = term(wait, timings.wait(timings.usual_hold()));
    [wait, term("2 round trips", timings.call_limit() * 2)].into_iter().chain(fencing).collect()
}

/// The failover after the holder's host dies, hangs or is cut off, counted from its last renewal.
pub(super) fn of_silence(service: &ServiceSettings) -> Bound {
    Bound::new("power loss, partition", silence(service))
}

/// All kinds of failover of a service.
pub(super) fn of(service: &ServiceSettings) -> [Bound; 5] {
    let timings = &service.timings;
    let planned = vec![
        term("stop", service.stop_limit),
        term("4 round trips", timings.call_limit() * 4),
        term("R", timings.renew_interval),
    ];
    let lapse = || vec![term("lease", timings.deadline_after()), term("stop", timings.stop_budget)];
    [
        Bound::new("planned hand-over", planned),
        of_silence(service),
        Bound::new("store away", lapse()),
        Bound::new("putexd or guard gone", lapse()),
        Bound::new("store and holder lost", silence(service)),
    ]
}
