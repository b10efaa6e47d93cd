//! The report of a host.

use serde::{Deserialize, Serialize};

use super::alarm::AlarmStatus;

/// The reason for the drain of a host from which the package is removed, as `packaging/usr/libexec/putexd/package-step` gives it.
pub const REMOVED: &str = "the package putexd is removed";

/// The state of a service that a host only observes.
pub const OBSERVED: &str = "observed";

/// What an operator has asked for, and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Word {
    /// Who asked: the user and the host, as in `root@h1`.
    pub by: String,
    /// Why; empty = nothing was said.
    pub reason: String,
    /// When it was asked for, in seconds since 1970.
    pub at: u64,
    /// When it is over, in seconds since 1970. `None`: when somebody takes it back.
    pub until: Option<u64>,
}

impl Word {
    /// Whether the host is drained because the package is removed there.
    #[must_use]
    pub fn is_removal(&self) -> bool {
        self.reason == REMOVED
    }

    /// What ends a drain by this word on its host.
    #[must_use]
    pub fn end_of_drain(&self) -> &'static str {
        if self.is_removal() { "installing the package and starting putexd" } else { "\"putexctl undrain\"" }
    }
}

/// What a host tells of itself. The store has it under [`Key::of_host`](crate::types::Key::of_host), page 0; the services are
/// on the pages from 1 on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostReport {
    /// The host's name in the locks.
    pub node: String,
    /// The version of its putexd.
    pub version: String,
    /// The boot id of the host.
    pub boot: String,
    /// The machine id of the host.
    pub machine: String,
    /// When putexd was started there, in seconds since 1970.
    pub since: u64,
    /// When this report was written, by the host's own clock, in seconds since 1970. Another host's clock may differ.
    pub at: u64,
    /// The operator's word that drains the host.
    pub drained: Option<Word>,
    /// What is wrong with the guard; empty = it answers.
    pub guard: String,
    /// The version of the guard; empty = not known.
    pub guard_version: String,
    /// The hardware watchdog: its device, and what is wrong with it; empty = none is configured.
    pub watchdog: String,
    /// What is wrong with the host as a whole.
    pub alarms: Vec<AlarmStatus>,
    /// The hosts whose locks this one has taken because they fell silent, and which it has not heard of since.
    pub lost: Vec<String>,
    /// The number of pages with services.
    pub pages: u32,
    /// A [sum](super::wire::sum) of each page, which tells a reader which pages have changed.
    pub sums: Vec<String>,
}

/// What a host tells of one of its services. What is ordinary is left empty.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceReport {
    /// The name of the service.
    pub service: String,
    /// The lock's key; empty = the name of the service.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// The unit; empty = the name of the service and `.service`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// A hash of the settings that must agree on all hosts.
    pub settings: String,
    /// The state of the service on the host; empty = standby.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// Why the host would not take the lock if it were free; empty = it would, or it holds the lock.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hindrance: String,
    /// Why the last run on the host failed, until a start succeeds there or it runs well elsewhere; empty = it did not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub failure: String,
    /// Since when the host has been in this state, in seconds since 1970; 0 = not known.
    #[serde(skip_serializing_if = "is_zero")]
    pub since: u64,
    /// The fencing token of the host's own tenure; 0 = it has none.
    #[serde(skip_serializing_if = "is_zero")]
    pub token: u64,
    /// When the host, which has the lock, may start the unit, in seconds since 1970; 0 = it does not wait for that.
    #[serde(skip_serializing_if = "is_zero")]
    pub starts: u64,
    /// Why it may not start it before, or what keeps the stop of its units from being proven.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub waits: String,
    /// When the host goes down unless that stop is proven before, in seconds since 1970; 0 = it does not.
    #[serde(skip_serializing_if = "is_zero")]
    pub goes_down: u64,
    /// For how long the host waits for the unit of a holder that falls silent, if that is longer than usual because the host
    /// remembers a longer lease, in milliseconds; 0 = as usual.
    #[serde(skip_serializing_if = "is_zero")]
    pub remembered_ms: u64,
    /// Until when the host waits for the unit of a holder that falls silent before, because of a pause or a claim that it has seen, in
    /// seconds since 1970; 0 = it has seen none, or would not wait longer than usual.
    #[serde(skip_serializing_if = "is_zero")]
    pub remembered_until: u64,
    /// The alarms that stand.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alarms: Vec<AlarmStatus>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_is_known_by_the_words_of_the_package() {
        let script = include_str!("../../packaging/usr/libexec/putexd/package-step");
        assert!(script.contains(&format!("\nreason=\"{REMOVED}\"\n")));
        let word = Word { reason: REMOVED.to_owned(), ..Word::default() };
        assert!(word.is_removal() && !Word::default().is_removal());
        assert!(!word.end_of_drain().contains("putexctl"), "it is removed, too");
    }
}
