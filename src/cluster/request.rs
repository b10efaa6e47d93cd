//! What an operator asks for: of the host where the command is run, or of another one through the store.

use serde::{Deserialize, Serialize};

use crate::types::{NodeId, ServiceName};

/// What an operator asks for. Times are in seconds since 1970, reasons are one line and may be empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verb")]
pub enum Verb {
    /// Let the lock go, so that another host takes over.
    StepDown {
        /// The service.
        service: ServiceName,
        /// Why.
        reason: String,
        /// The host that should take over; `None` = any.
        to: Option<NodeId>,
    },
    /// Stop the service everywhere, and keep it stopped.
    Stop {
        /// The service.
        service: ServiceName,
        /// Why.
        reason: String,
        /// When it may be started again; `None` = when somebody says so.
        until: Option<u64>,
    },
    /// Let a stopped service be started again.
    Start {
        /// The service.
        service: ServiceName,
    },
    /// Have the holder keep the lease for a long time, for the maintenance of the store.
    Pause {
        /// The service.
        service: ServiceName,
        /// Why.
        reason: String,
        /// For how many seconds.
        seconds: u64,
    },
    /// End a pause.
    Resume {
        /// The service.
        service: ServiceName,
    },
    /// Take the store and the key that the configuration names as meant (adoption of another key, N3).
    Adopt {
        /// The service.
        service: ServiceName,
    },
    /// Have this host hand everything over, and take nothing.
    Drain {
        /// Why.
        reason: String,
        /// When it is over; `None` = when somebody says so.
        until: Option<u64>,
        /// Also where no other host could take a service.
        force: bool,
    },
    /// Let this host take part again.
    Undrain,
    /// A host is off, as the operator knows: no fencing of it is waited for.
    ConfirmDead {
        /// The host.
        node: NodeId,
    },
}

impl Verb {
    /// The service that it concerns. `None`: it concerns a host.
    #[must_use]
    pub fn service(&self) -> Option<&ServiceName> {
        match self {
            Self::StepDown { service, .. }
            | Self::Stop { service, .. }
            | Self::Start { service }
            | Self::Pause { service, .. }
            | Self::Resume { service }
            | Self::Adopt { service } => Some(service),
            Self::Drain { .. } | Self::Undrain | Self::ConfirmDead { .. } => None,
        }
    }
}

/// A verb, and who asks for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// 128 random bits that tell this request from others, in hexadecimal.
    pub id: String,
    /// Who asks: the user and the host, as in `root@h1`.
    pub by: String,
    /// When it was asked for, in seconds since 1970.
    pub at: u64,
    /// What is asked for.
    #[serde(flatten)]
    pub verb: Verb,
}

/// How many requests may wait for one host.
pub const OPEN_LIMIT: usize = 32;
/// How many results are kept for those who have asked.
pub const RESULTS_LIMIT: usize = 32;

/// What is under [`Key::of_requests`](crate::types::Key::of_requests).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Mailbox {
    /// The requests that wait for the host; each is a [`Request`], maybe of a version that this one does not know.
    pub open: Vec<serde_json::Value>,
    /// What came of the requests that the host has taken, the latest last.
    pub results: Vec<Outcome>,
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// The id of the request.
    pub id: String,
    /// Whether it was carried out or refused; otherwise the host has taken it, and nothing more is known.
    pub is_done: bool,
    /// Whether it was carried out.
    pub is_ok: bool,
    /// What was begun, or why nothing was.
    pub text: String,
}
