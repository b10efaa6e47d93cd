//! What a service waits for on a host, and why.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{At, StopCause};
use crate::types::OnStopFailure;

/// When something was last heard of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Seen<P = At> {
    /// The record was seen to change at this time.
    Renewed(P),
    /// The record was found at this time by a host that had not watched the lock, and was not seen to change since.
    Found(P),
}

/// What a service waits for on this host. It has points in time and not spans, so that the rest is computed when the text is
/// made.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "for", rename_all = "kebab-case")]
pub enum Wait {
    /// Until this host may start the unit.
    Entitlement {
        /// When it may start.
        until: At,
        /// The former holder whose unit may live until then, and when something was last heard of it. `None`: nothing shows that the last
        /// holder's unit is dead, whoever that was.
        former: Option<(String, Seen)>,
    },
    /// For other hosts to be fenced.
    Fencing {
        /// The names of these hosts.
        hosts: Vec<String>,
    },
    /// For a renewal: the unit runs, and the store has taken none for longer than one takes.
    Renewal {
        /// When the last won renewal was sent.
        since: At,
        /// When the unit is stopped unless a renewal is won.
        deadline: At,
    },
    /// For the proof that the unit is dead.
    Proof {
        /// Why it is stopped.
        cause: StopCause,
        /// When the stop should be proven.
        until: At,
        /// What happens if it is not proven by then.
        on_stop_failure: OnStopFailure,
    },
    /// For the store to answer.
    Store {
        /// Who held the lock by the last record that was seen, and when something was last heard of that holder.
        holder: Option<(String, Seen)>,
    },
    /// For the holder to let the lock go, or to fall silent.
    Holder {
        /// The holder's name.
        holder: String,
        /// Whether it may run the unit. Else it has only claimed the lock, and waits itself before it starts the unit.
        runs: bool,
        /// When something was last heard of the holder.
        seen: Seen,
        /// When this host may take the lock. `None`: it does not contend.
        take_at: Option<At>,
    },
    /// For news of who holds the lock: the last record seen is this host's own, and nothing runs under it any more.
    OwnRecord {
        /// Whether this host may have run the unit under it.
        runs: bool,
        /// When this host may take the lock. `None`: it does not contend.
        take_at: Option<At>,
    },
    /// For another service to stop here, which has the same unit or the same lock.
    Other {
        /// Its name, and those of others like it.
        services: Vec<String>,
    },
}

impl<P: Copy> Seen<P> {
    /// When that was.
    pub fn at(self) -> P {
        match self {
            Self::Renewed(at) | Self::Found(at) => at,
        }
    }

    /// When the record was seen to change, if it was.
    pub fn renewed(self) -> Option<P> {
        match self {
            Self::Renewed(at) => Some(at),
            Self::Found(_) => None,
        }
    }

    /// The same with another point in time.
    pub fn map<Q>(self, time: impl Fn(P) -> Q) -> Seen<Q> {
        match self {
            Self::Renewed(at) => Seen::Renewed(time(at)),
            Self::Found(at) => Seen::Found(time(at)),
        }
    }
}
