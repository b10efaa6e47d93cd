//! The cluster as one host knows it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::report::{HostReport, ServiceReport};

/// A host whose report has not changed for so long is silent. It reports three times as often.
pub const SILENT: Duration = Duration::from_secs(30);

/// A host as this one knows it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostStatus {
    /// What the host has last reported.
    #[serde(flatten)]
    pub report: HostReport,
    /// How long ago its last report was seen here to change, in milliseconds, without the time in which the store did not answer. Of a
    /// report that was found and has not changed since: how old it is by both hosts' clocks, if these seem to go alike. `None`: that
    /// is not known.
    pub silent_ms: Option<u64>,
    /// The same with the time in which the store did not answer. `None`: it was not seen to change.
    pub reported_ms: Option<u64>,
    /// How long ago this host has found the report for the first time, in milliseconds.
    pub found_ms: u64,
    /// The host that has taken a lock from it because it fell silent, if nothing was heard of it since; empty = there is none.
    pub lost_to: String,
    /// Its services.
    pub services: Vec<ServiceReport>,
}

/// What is known of whether a host is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It reports.
    Reports,
    /// Its report was found a moment ago, and it is too early to say.
    Unknown,
    /// It has not reported for longer than [`SILENT`].
    Silent,
    /// Another host has taken a lock from it because it fell silent, and it has not reported since.
    Lost,
}

impl HostStatus {
    /// Whether the host is alive, as far as its reports tell.
    #[must_use]
    pub fn life(&self) -> Life {
        let is_long = |ms: u64| Duration::from_millis(ms) > SILENT;
        match self.silent_ms {
            _ if !self.lost_to.is_empty() => Life::Lost,
            Some(ms) if is_long(ms) => Life::Silent,
            Some(_) => Life::Reports,
            None if is_long(self.found_ms) => Life::Silent,
            None => Life::Unknown,
        }
    }
}

/// The cluster as this host knows it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterStatus {
    /// The name of this host in the locks.
    pub node: String,
    /// All hosts, this one included, by name.
    pub hosts: Vec<HostStatus>,
    /// Why this is not all that there is, as a sentence that begins with what to do; empty = nothing is known to be missing.
    pub trouble: String,
}

impl ClusterStatus {
    /// The name under which the machine of `host` reports by now: it has the same machine id, and putexd was started there after the
    /// last report of `host`, by the one clock that both have. So a host is seen that was renamed.
    #[must_use]
    pub fn renamed(&self, host: &HostStatus) -> Option<&str> {
        let former = &host.report;
        let is_new = |other: &&HostStatus| {
            let now = &other.report;
            let is_up = now.node == self.node || other.life() == Life::Reports;
            now.node != former.node && now.machine == former.machine && now.since >= former.at && is_up
        };
        let new = self.hosts.iter().filter(|_| !former.machine.is_empty()).find(is_new);
        new.map(|new| new.report.node.as_str())
    }
}
