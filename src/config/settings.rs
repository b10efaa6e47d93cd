//! Parts of the configuration as the rest of the program sees it: merged and validated; a value that has a default is always
//! present.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    keys::Parsed,
    types::{NodeId, ServiceName, UnitName},
};

/// `[guard]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WatchdogSettings {
    /// The path of the device.
    pub device: PathBuf,
    /// How long the device waits for a keep-alive before it resets the host.
    pub timeout: Duration,
}

/// The file of a service. It does not count in comparisons, so that a file moved from one directory to another disturbs nothing at a
/// reload.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SourceFile(pub PathBuf);

impl PartialEq for SourceFile {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// `mode`: whether this host takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// It does.
    Run,
    /// It takes part in nothing, and only tells what it would do.
    Observe,
}

impl Parsed for Mode {}

/// `stop-proof`: what has to be dead before the lock is released (H5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopProof {
    /// The units' control groups, those of `contains`, and every descendant that was seen outside of them.
    #[default]
    Whole,
    /// The control groups alone: the administrator is responsible for what other programs run for the units.
    UnitOnly,
}

impl Parsed for StopProof {}

/// `[health]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HealthSettings {
    /// The question that a check asks.
    pub probe: Probe,
    /// The time from the start of one check to the start of the next; at most T, by default min(R, T/3).
    pub interval: Duration,
    /// The time after which a check has failed; at most T, by default min(R, T/3).
    pub timeout: Duration,
    /// The number of passed checks in a row until the service is healthy; 1 by default.
    pub rise: u32,
    /// The number of failed checks in a row until the service is unhealthy; 2 by default, so that one slow answer does
    /// not move the service.
    pub fall: u32,
}

impl Default for HealthSettings {
    fn default() -> Self {
        Self {
            probe: Probe::Tcp(String::new()),
            interval: Duration::ZERO,
            timeout: Duration::ZERO,
            rise: 1,
            fall: 2,
        }
    }
}

/// What a health check asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Probe {
    /// A program that is run as a transient unit.
    Command {
        /// The program's full path and its arguments; `active` or `standby` is appended.
        argv: Vec<String>,
        /// The user that the program runs as; `None` for the one that the package makes for checks.
        user: Option<String>,
    },
    /// A template such as `check-db@.service`, started as `check-db@active.service` or `check-db@standby.service`.
    Unit(String),
    /// A TCP connection to `host:port`, on the active host only.
    Tcp(String),
    /// A GET of an `http://` URL that answers 2xx, on the active host only.
    Http(String),
}

impl Probe {
    /// Whether a standby runs this check as well. It has nothing to connect to, so TCP and HTTP checks are not run
    /// there.
    pub fn asks_standby(&self) -> bool {
        match self {
            Self::Command { .. } | Self::Unit(_) => true,
            Self::Tcp(_) | Self::Http(_) => false,
        }
    }

    /// The unit that is run for the check of `service` in a role, which is `active` or `standby`. `None`: putexd asks itself.
    pub fn unit(&self, service: &ServiceName, role: &str) -> Option<UnitName> {
        match self {
            Self::Command { .. } => {
                UnitName::new(&format!("putex-check-{service}-{role}.service")).ok()
            }
            Self::Unit(template) => UnitName::from_template(template, role).ok(),
            Self::Tcp(_) | Self::Http(_) => None,
        }
    }
}

/// `[fence]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceSettings {
    /// A template such as `fence@.service`, which is started with the previous holder's name as its instance.
    pub others: Option<String>,
    /// The hosts that `others` may be started for. Empty: all hosts that have held the lock according to its record.
    pub hosts: Vec<NodeId>,
    /// Whether `others` must succeed before the start; `true` by default.
    pub required: bool,
    /// A unit that is started before the service starts on this host.
    pub unfence: Option<UnitName>,
    /// The time limit of `others`, and of `unfence`; 30 s by default.
    pub timeout: Duration,
}

impl Default for FenceSettings {
    fn default() -> Self {
        Self {
            others: None,
            hosts: Vec::new(),
            required: true,
            unfence: None,
            timeout: Duration::from_secs(30),
        }
    }
}
