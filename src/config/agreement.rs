//! What the files of a service must have in common on all hosts.

use std::fmt::Write as _;

use super::settings::{FenceSettings, ServiceSettings};
use crate::types::{NodeId, UnitName};

/// How many hexadecimal digits the hash has.
const DIGITS: usize = 16;

impl ServiceSettings {
    /// A hash of the settings that must agree on all hosts, in hexadecimal: the key, the units, what they contain, the timings,
    /// `stop-limit`, `stop-proof`, `on-stop-failure`, and the fencing of other hosts. Not among them are the health check
    /// and `unfence`, which may ask a host for something of its own.
    ///
    /// Two hosts with the same settings show the same hash whatever their versions of putexd, as long as this text is what
    /// is hashed: a line per setting, times in nanoseconds, lists sorted unless their order says something.
    #[must_use]
    pub fn agreement(&self) -> String {
        let Self { key, unit, bound_units, contains, stop_proof, timings, stop_limit, on_stop_failure, fence, .. } =
            self;
        let FenceSettings { others, hosts, required, unfence: _, timeout } = fence;
        let names = |units: &[UnitName]| units.iter().map(UnitName::as_str).collect::<Vec<_>>().join(" ");
        let mut hosts: Vec<&str> = hosts.iter().map(NodeId::as_str).collect();
        hosts.sort_unstable();
        let mut text = String::new();
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            writeln!(text, "{name}={value}").expect("writing to a string does not fail");
        };
        line("key", key);
        line("unit", unit);
        line("bound-units", &names(bound_units));
        line("contains", &names(contains));
        line("stop-proof", &format_args!("{stop_proof:?}"));
        line("renew-interval", &timings.renew_interval.as_nanos());
        line("failures", &timings.failures);
        line("confirmations", &timings.confirmations);
        line("confirmation", &format_args!("{:?}", timings.confirmation));
        line("margin", &timings.margin.as_nanos());
        line("stop-budget", &timings.stop_budget.as_nanos());
        line("kill-reserve", &timings.kill_reserve.as_nanos());
        line("clock-error-ppm", &timings.clock_error_ppm);
        line("slack", &timings.slack.as_nanos());
        line("longest-hold", &timings.longest_hold.unwrap_or_default().as_nanos());
        line("stop-limit", &stop_limit.as_nanos());
        line("on-stop-failure", &format_args!("{on_stop_failure:?}"));
        line("fence-others", &others.as_deref().unwrap_or_default());
        line("fence-hosts", &hosts.join(" "));
        line("fence-required", required);
        line("fence-timeout", &timeout.as_nanos());
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        let mut hash = String::with_capacity(DIGITS);
        for byte in digest.as_ref().iter().take(DIGITS / 2) {
            write!(hash, "{byte:02x}").expect("writing to a string does not fail");
        }
        hash
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;
    use crate::config::StopProof;
    use crate::election::Timings;
    use crate::types::{Key, OnStopFailure, ServiceName};

    fn settings() -> ServiceSettings {
        ServiceSettings {
            name: ServiceName::new("db").expect("a name"),
            source: PathBuf::new(),
            unit: UnitName::new("db.service").expect("a name"),
            bound_units: Vec::new(),
            beside: Vec::new(),
            contains: Vec::new(),
            stop_proof: StopProof::default(),
            key: Key::new("db").expect("a key"),
            timings: Timings::new(Duration::from_secs(3), 3, 1),
            stop_limit: Duration::from_secs(90),
            start_limit: None,
            on_stop_failure: OnStopFailure::default(),
            health: None,
            fence: FenceSettings::default(),
            observes: false,
        }
    }

    #[test]
    fn what_must_agree_decides_the_hash_and_nothing_else_does() {
        let own = settings();
        // Hosts of different versions compare their hashes, so it stays what it is.
        assert_eq!(own.agreement(), "d64c6f9238b6c480");
        let mut other = settings();
        (other.source, other.fence.unfence) = (PathBuf::from("/x"), Some(own.unit.clone()));
        assert_eq!(other.agreement(), own.agreement());
        other.timings.margin += Duration::from_millis(1);
        assert_ne!(other.agreement(), own.agreement());
        let (h1, h2) = (NodeId::new("h1").expect("a name"), NodeId::new("h2").expect("a name"));
        let (mut one, mut two) = (settings(), settings());
        (one.fence.hosts, two.fence.hosts) = (vec![h1.clone(), h2.clone()], vec![h2, h1]);
        assert_eq!(one.agreement(), two.agreement());
        assert_ne!(one.agreement(), own.agreement());
    }
}
