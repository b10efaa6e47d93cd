//! What a host says of a service and of itself, and what it knows of the whole cluster: one type for each fact, as serde writes it.
//!
//! The election makes them, or the daemon does; reports to other hosts, the bus, `--json` and the journal carry them as they are. There
//! is no English here: `words` makes sentences of them, for the journal and putexctl. What is not known is
//! absent. A text in a fact is somebody else's: an error, a name, an operator's reason.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::types::Time;
use crate::types::span::milliseconds;

pub mod alarm;
mod bar;
mod cluster;
mod host;
mod order;
mod service;
mod state;
mod stop_cause;
mod wait;

pub use bar::{Bar, Retirement};
pub use cluster::{
    Activity, Candidate, ClusterState, KnownHost, Missing, NotTaking, Presence, ServiceSummary,
};
pub use host::{HostState, StoreState};
pub use order::{Asked, Order, REMOVED, Refused, Word};
pub use service::{FailedRun, Health, LastRun, LockState, ServiceState, TimingsState};
pub use state::State;
#[cfg(test)]
pub(crate) use stop_cause::tests as stop_causes;
pub use stop_cause::{LapseCause, Occasion, ReleaseCause, StepDown};
pub use wait::{Heard, Wait};

/// A point in time, in milliseconds since 1970, by the clock of the host that says it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct At(pub u64);

impl At {
    /// The time on a clock that shows `wall` since 1970.
    #[must_use]
    pub fn new(wall: Duration) -> Self {
        Self(milliseconds(wall))
    }

    /// A point of `CLOCK_BOOTTIME`, where the wall clock is `ahead` of that one. As long as `ahead` is the same, so is the point.
    #[must_use]
    pub fn of(time: Time, ahead: Duration) -> Self {
        Self::new(time.boot.saturating_add(ahead))
    }

    /// `seconds` since 1970.
    #[must_use]
    pub fn seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// How long ago it was at `now`; zero if it is to come.
    #[must_use]
    pub fn since(self, now: Self) -> Duration {
        Duration::from_millis(now.0.saturating_sub(self.0))
    }

    /// How long it is until then at `now`; zero if it is over.
    #[must_use]
    pub fn until(self, now: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(now.0))
    }

    /// `span` later.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(milliseconds(span)))
    }

    /// `span` earlier.
    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(milliseconds(span)))
    }
}

/// The name by which serde writes a fact, without what it says more.
#[must_use]
pub fn name(fact: &impl Serialize) -> String {
    match serde_json::to_value(fact) {
        Ok(Value::String(name)) => name,
        Ok(Value::Object(fields)) => fields
            .into_iter()
            .map(|(name, _)| name)
            .next()
            .unwrap_or_default(),
        _ => String::new(),
    }
}

/// A fact as JSON, in which what is not known is absent, and each text is as `shown` has it: others have written some of them.
///
/// # Panics
///
/// Where it has a map whose keys are no text, which none of the types here has.
#[must_use]
pub fn json(fact: &impl Serialize, shown: fn(&str) -> String) -> Value {
    let mut json = serde_json::to_value(fact).expect("it has no map with keys other than text");
    tidy(&mut json, shown);
    json
}

/// What somebody has written, as [`json`] has it.
pub fn tidy(json: &mut Value, shown: fn(&str) -> String) {
    match json {
        Value::String(text) => *text = shown(text),
        Value::Array(all) => all.iter_mut().for_each(|one| tidy(one, shown)),
        Value::Object(fields) => {
            // A single entry may be the name of a variant, whose content is not known.
            if fields.len() > 1 {
                fields.retain(|_, field| !field.is_null());
            }
            fields.values_mut().for_each(|field| tidy(field, shown));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_absent_unless_it_is_all_that_a_variant_says() {
        let facts = serde_json::json!({"a": 1, "b": null, "c": {"d": null, "e": null}});
        let shown = json(&facts, str::to_owned);
        assert_eq!(shown, serde_json::json!({"a": 1, "c": {}}));
        let anyone = Asked::StepDown(None);
        let read = serde_json::from_value::<Asked>(json(&anyone, str::to_owned));
        assert_eq!(read.expect("it is the same"), anyone);
    }
}
