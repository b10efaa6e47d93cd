//! What keeps a host from taking a lock, or from going on with it.

use serde::{Deserialize, Serialize};

use super::Word;
use crate::types::MachineId;

/// Why a host does not take the lock of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "kebab-case")]
pub enum Bar {
    /// An operator keeps the service stopped everywhere (orders, H7).
    Stopped(Word),
    /// The same, but the store has lost that word, so that it keeps this host alone.
    StopLost(Word),
    /// An operator's word, or the highest fencing token that the host has seen, is being written to the lock.
    Writing,
    /// The service takes part no longer under this putexd.
    Retiring {
        /// Why.
        because: Retirement,
    },
    /// This host is shutting down.
    ShuttingDown,
    /// The host is drained.
    Drained(Word),
    /// The service's file was broken when putexd was started, or is.
    Broken {
        /// Where and why, and what to do.
        error: String,
    },
    /// It is only observed here (`mode = "observe"`).
    Observed {
        /// Whether the unit runs here.
        runs: bool,
    },
    /// One of its units cannot be run on one host at a time, or putex-guard can take no lease of them.
    NotAdmitted {
        /// Why.
        error: String,
        /// Whether one of the units can be started, or runs on, without the lease.
        ungated: bool,
    },
    /// The entry of a unit names another lock, or none that is to be trusted (the unit's entry, N1).
    OtherLock {
        /// Which, and what to do.
        error: String,
    },
    /// It is not known yet under which key the units are run.
    EntryUnknown {
        /// Why.
        error: String,
    },
    /// Work of the units is outside of their control groups.
    Outside {
        /// Which.
        error: String,
    },
    /// The store is out of reach, or has not answered yet.
    StoreAway,
    /// The guard does not answer, or has not forgotten the last lease yet.
    GuardAway,
    /// The unit is not known to be dead.
    UnitAlive,
    /// Another machine renews the lock under this host's name (two hosts with one name, K7).
    SharedName {
        /// Its id.
        machine: MachineId,
    },
    /// The standby check fails.
    CheckFails {
        /// Why.
        error: String,
    },
    /// The standby check has not passed yet.
    CheckPending,
    /// The pause before the next claim (back-off, K9).
    BackOff {
        /// What it follows.
        because: String,
        /// How many failures there were in a row; 0 where nothing failed.
        failures: u32,
    },
    /// Something that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Why a service takes part no longer under the putexd of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Retirement {
    /// putexd is stopped.
    Stopped,
    /// The service's file was removed.
    Removed,
    /// Its units, its key or its mode were changed.
    Changed,
    /// No usable file defines it, and the guard has a lease of it.
    Unclaimed,
}

impl Bar {
    /// Whether a unit that runs is stopped because of it. Everything else only keeps a new start from being begun.
    pub fn ends_running(&self) -> bool {
        match self {
            Self::Stopped(_)
            | Self::StopLost(_)
            | Self::Retiring { .. }
            | Self::ShuttingDown
            | Self::Drained(_)
            | Self::OtherLock { .. }
            | Self::Outside { .. } => true,
            Self::NotAdmitted { ungated, .. } => *ungated,
            Self::Writing
            | Self::Broken { .. }
            | Self::Observed { .. }
            | Self::EntryUnknown { .. }
            | Self::StoreAway
            | Self::GuardAway
            | Self::UnitAlive
            | Self::SharedName { .. }
            | Self::CheckFails { .. }
            | Self::CheckPending
            | Self::BackOff { .. }
            | Self::Unknown => false,
        }
    }
}
