//! What is told of the store, the services, the hosts and the cluster. The bus and `putexctl --json` have these types as they are.

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use crate::cluster::alarm::AlarmStatus;
pub use crate::cluster::report::{HostReport, ServiceReport, Word};
pub use crate::cluster::view::{ClusterStatus, HostStatus};
use crate::types::span::rounded;

/// The timings of a service, and what follows from them, in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TimingsStatus {
    /// R.
    pub renew_interval_ms: u64,
    /// F.
    pub failures: u64,
    /// C.
    pub confirmations: u64,
    /// T = R·F.
    pub lease_ms: u64,
    /// m.
    pub margin_ms: u64,
    /// S.
    pub stop_budget_ms: u64,
    /// X = T − m + S.
    pub hold_ms: u64,
    /// How long a host waits after a holder that fell silent, from its last renewal to the start.
    pub wait_ms: u64,
    /// The longest time from a holder's last renewal to the start elsewhere: that wait, two round trips to the store, and fencing;
    /// without what the unit's own start takes.
    pub failover_ms: u64,
    /// `stop-limit`.
    pub stop_limit_ms: u64,
}

/// One service as it stands on this host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceStatus {
    /// The name of the service.
    pub service: String,
    /// The unit of the service.
    pub unit: String,
    /// The units that run beside it.
    pub bound_units: Vec<String>,
    /// The slices and scopes in which its processes run.
    pub contains: Vec<String>,
    /// The lock's key.
    pub key: String,
    /// Whether this host takes part in nothing, and only tells what it would do (`mode = "observe"`).
    pub observes: bool,
    /// The state of the service on this host; `broken` where it is not run because its file is broken.
    pub state: String,
    /// Since when it has been in this state, in seconds since 1970.
    pub since: Option<u64>,
    /// The lock's holder as last read; empty = nobody, or not known.
    pub holder: String,
    /// Since when this host has seen that tenure, or that nobody holds the lock, in seconds since 1970.
    pub held_since: Option<u64>,
    /// Whether it was so for longer, because this host did not watch the lock when that began.
    pub held_longer: bool,
    /// When somebody was last known to run it, in seconds since 1970. `None`: it runs on this host, or this host has seen nobody
    /// run it. Of another host it is the last renewal that was seen, and the unit may have run for a lease and a stop longer.
    pub ran_until: Option<u64>,
    /// The host that ran it then; empty = as for `ran_until`.
    pub ran_on: String,
    /// How long ago the holder's last renewal was seen here, in milliseconds.
    pub silent_ms: Option<u64>,
    /// In how many milliseconds this host may take the lock of a holder that stays silent.
    pub takeable_ms: Option<u64>,
    /// In how many milliseconds this host, which has the lock, may start the unit.
    pub starts_ms: Option<u64>,
    /// For how long this host waits for the unit of a holder that falls silent, if that is longer than usual because it remembers a
    /// longer lease, in milliseconds; 0 = as usual.
    pub remembered_ms: u64,
    /// Until when this host waits for the unit of a holder that falls silent before, because of a pause or a claim that it has seen,
    /// in seconds since 1970. `None`: it has seen none, or would not wait longer than usual.
    pub remembered_until: Option<u64>,
    /// How long this host's own lease still lasts, in milliseconds.
    pub lease_left_ms: Option<u64>,
    /// The lock's revision as last read; 0 = not known.
    pub revision: u64,
    /// The fencing token of this host's tenure, else the highest seen; 0 = none.
    pub token: u64,
    /// Why this host would not take the lock if it were free; empty = it would.
    pub hindrance: String,
    /// What the service waits for, why, and how long still; empty = for nothing.
    pub waits: String,
    /// The last verdict of the health check: `passes`, or why it fails; empty = there is none.
    pub health: String,
    /// Why the last run on this host failed, until a start succeeds; empty = it did not.
    pub failure: String,
    /// In how many milliseconds this host tries again after a failure.
    pub next_try_ms: Option<u64>,
    /// The operator's word that keeps the service stopped everywhere.
    pub stopped: Option<Word>,
    /// The operator's word for a long lease, during which nobody takes over.
    pub paused: Option<Word>,
    /// The alarms that stand.
    pub alarms: Vec<AlarmStatus>,
    /// What the operator should know of the service though it is supervised, in whole sentences.
    pub remarks: Vec<String>,
    /// R, F, C, and what follows from them.
    pub timings: Option<TimingsStatus>,
    /// A hash of the settings that must agree on all hosts.
    pub settings: String,
}

/// How the store has answered this host since its putexd started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreStatus {
    /// Where the store is.
    pub store: String,
    /// For how many milliseconds it has given no answer; 0 = it answers.
    pub silent_ms: u64,
    /// For how many milliseconds it has answered reads and taken no write; 0 = it takes them, or nobody writes.
    pub unwritten_ms: u64,
    /// The last error, which tells why; empty = it answers and takes writes. A store that answers with an error, as one that does
    /// not exist, has the error alone.
    pub error: String,
    /// How often it gave no answer for a second or more.
    pub silences: u64,
    /// The longest of these silences, in milliseconds; 0 = there was none.
    pub longest_ms: u64,
    /// When the longest silence began, in seconds since 1970.
    pub longest_began: u64,
    /// How many milliseconds ago it answered again after the last of these silences, or was made. `None`: neither was seen.
    pub returned_ms: Option<u64>,
}

/// All that is known on this host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Description {
    /// All services of this host, by name.
    pub services: Vec<ServiceStatus>,
    /// How the store has answered this host.
    pub store: StoreStatus,
    /// The cluster as this host knows it.
    pub cluster: ClusterStatus,
}

/// The answer to an operator who has asked for something.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Begun {
    /// What was begun, before it is done.
    pub begun: String,
    /// Whether nothing was begun, because what was asked for is so already; `begun` says how it is then.
    pub needless: bool,
}

impl StoreStatus {
    /// What is wrong with the store now, in so few words that each service can have them before what follows for it.
    #[must_use]
    pub fn trouble_in_short(&self) -> Option<String> {
        let lasts = |milliseconds: u64| rounded(Duration::from_millis(milliseconds));
        match (self.silent_ms, self.unwritten_ms) {
            (0, 0) => (!self.error.is_empty()).then(|| "the store cannot be used".to_owned()),
            (0, unwritten) => Some(format!("the store has taken no write for {}", lasts(unwritten))),
            (silent, _) => Some(format!("store lost {} ago", lasts(silent))),
        }
    }

    /// What is wrong with the store now, as a sentence without a full stop; what to do about it comes first.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let Self { store, silent_ms, unwritten_ms, error, .. } = self;
        let lasts = |milliseconds: &u64| rounded(Duration::from_millis(*milliseconds));
        if (*silent_ms, *unwritten_ms) == (0, 0) {
            return (!error.is_empty()).then(|| format!("the store ({store}) cannot be used: {error}"));
        }
        let error = if error.is_empty() { String::new() } else { format!(" (the last error: {error})") };
        match (silent_ms, unwritten_ms) {
            (0, unwritten) => Some(format!(
                "see with \"putexctl doctor\" why the store ({store}) takes no writes, as a server does that is cut off from \
                 the others of its cluster: it answers reads, and has taken no write for {}{error}",
                lasts(unwritten)
            )),
            (silent, _) => Some(format!(
                "see that the store ({store}) is up, and that this host reaches it: it has given no answer for {}{error}",
                lasts(silent)
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_the_store_begins_with_what_to_do() {
        let mut store = StoreStatus { store: "directory at /srv/putex".to_owned(), ..StoreStatus::default() };
        assert_eq!((store.trouble(), store.trouble_in_short()), (None, None));
        (store.silent_ms, store.error) = (12_300, "no leader".to_owned());
        assert_eq!(
            store.trouble().as_deref(),
            Some(
                "see that the store (directory at /srv/putex) is up, and that this host reaches it: it has given no answer for \
                 12.3s (the last error: no leader)"
            )
        );
        assert_eq!(store.trouble_in_short().as_deref(), Some("store lost 12.3s ago"));
        (store.silent_ms, store.unwritten_ms, store.error) = (0, 3000, String::new());
        assert_eq!(store.trouble_in_short().as_deref(), Some("the store has taken no write for 3.0s"));
        assert_eq!(
            store.trouble().as_deref(),
            Some(
                "see with \"putexctl doctor\" why the store (directory at /srv/putex) takes no writes, as a server does that \
                 is cut off from the others of its cluster: it answers reads, and has taken no write for 3.0s"
            )
        );
    }
}
