//! Everything that a service is told, by the tasks that carry out its actions or look for it, and by operators. It all goes
//! through one channel, because a channel takes more memory than all else that a task has of its own.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::beyond::Outside;
use super::grounds::Uncontainable;
use super::unit_control::ObservedUnits;
use crate::cluster::request::Unmet;
use crate::config::{ServiceSettings, WatchdogSettings};
use crate::election::{Event, Word};
use crate::systemd::Unsupervisable;
use crate::types::NodeId;

/// Limit of the messages that wait for the loop. The loop takes messages faster than anybody makes them. Where the channel
/// is full, whoever sends more has to wait.
const LIMIT: usize = 64;

/// The channel for the answer to an operator: what was done, or why nothing was.
pub type Answer = oneshot::Sender<Result<String, Unmet>>;

/// What the daemon or an operator tells a service to do.
#[derive(Debug)]
pub enum Order {
    /// Go on with these settings; units and key are the same.
    Reconfigure(Arc<ServiceSettings>),
    /// The configuration was read anew, and the service's part of it is unchanged: what was refused is tried again (back-off, K9).
    Reconsider,
    /// What failed is tried again at once: the back-off (K9) ends.
    TryAgain,
    /// Let the lock go now and contend again later (H5, K9).
    StepDown {
        /// Why, for the record and the journal.
        reason: String,
        /// The host that should take over; `None` = any.
        to: Option<NodeId>,
        /// The channel for the answer, which says what was begun.
        answer: Answer,
    },
    /// Keep the service stopped on all hosts (words, H7).
    Stop(Word, Answer),
    /// Take the word back that keeps the service stopped.
    Start {
        /// Who asks for it.
        by: String,
        /// Other hosts that keep the service stopped, because of a word that the store has lost.
        kept_by: Vec<String>,
        /// The channel for the answer, which says what was begun.
        answer: Answer,
    },
    /// Keep the lease of this host until the word is over (pause, H8).
    Pause(Word, Answer),
    /// Take the word of a pause back. With who asks for it.
    Resume(String, Answer),
    /// The store and the key that the configuration names are meant, whatever they were before (adoption of another key, N3;
    /// what a host remembers, N4).
    Adopt(Adoption),
    /// Stop the unit, release the lock, end.
    Retire {
        /// The reason, for the journal.
        reason: String,
        /// What has to happen before the service is taken up on this host again, for the journal. It fits behind the word
        /// "before".
        again: String,
    },
}

impl Order {
    /// The channel for the answer, where there is one.
    pub(super) fn into_answer(self) -> Option<Answer> {
        match self {
            Self::StepDown { answer, .. }
            | Self::Stop(_, answer)
            | Self::Start { answer, .. }
            | Self::Pause(_, answer)
            | Self::Resume(_, answer)
            | Self::Adopt(answer) => Some(answer),
            Self::Reconfigure(_) | Self::Reconsider | Self::TryAgain | Self::Retire { .. } => None,
        }
    }
}

/// What one look at the units has shown.
#[derive(Debug)]
pub(super) struct Looked {
    /// The epoch in which the look began.
    pub(super) epoch: u64,
    pub(super) units: ObservedUnits,
    /// Whether the host is going down: PID 1 then stops the units itself, and would refuse to start any.
    pub(super) host_stops: bool,
}

/// Whether the units of a service can be supervised: what is to be remarked of them, or why not.
pub(super) type Admission = Result<Vec<String>, Refusal>;

/// Why the units of a service cannot be supervised.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// There is no answer yet.
    #[error("it was taken up a moment ago, and systemd is being asked about its units")]
    Unasked,
    /// One of the units cannot be run on one host at a time.
    #[error(transparent)]
    Unit(#[from] Unsupervisable),
    /// What the service contains cannot be killed as a whole.
    #[error(transparent)]
    Contained(#[from] Uncontainable),
    /// The guard serves no watchdog, or another one than the configuration names.
    #[error(
        "putex-guard does not serve the watchdog {} with a timeout of {:?}; run \"systemctl daemon-reload\" and \
         \"systemctl kill putex-guard\", which ends every lease of this host",
        .0.device.display(), .0.timeout
    )]
    OtherWatchdog(WatchdogSettings),
    /// The guard cannot serve the watchdog, for this reason.
    #[error("the watchdog {} is not served: {trouble}", device.display())]
    Unserved { device: PathBuf, trouble: String },
    /// What has to outlive guard and daemon cannot be written, for this reason. The journal has been told of it once for
    /// all services.
    #[error("{0}")]
    Host(String),
}

impl Refusal {
    /// Whether one of the units can be started, or runs on, without the lease.
    pub(super) fn is_ungated(&self) -> bool {
        matches!(self, Self::Unit(error) if error.is_ungated())
    }
}

/// What the entries of a service's units say of the key in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standpoint {
    /// Nothing is known, because the store has not answered. A service that was cleared before stays so, and the store is
    /// asked again before a start (vetting, N2).
    Unknown(String),
    /// The unit may be run under the key.
    Cleared,
    /// The unit must not be run under the key, for this reason.
    Refused(String),
}

/// An operator's word that the place which the configuration names is meant (adoption of another key, N3). It carries the
/// channel for the answer.
pub(super) type Adoption = Answer;

/// A message to a service's loop.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is boxed as a whole, and mostly an event")]
pub(super) enum Told {
    /// The outcome of an action, or the verdict of a health check.
    Event(Event),
    /// Since when the main unit runs, in seconds since 1970.
    RunsSince(u64),
    /// What a look at the units has shown.
    Looked(Looked),
    /// The work of the units that is outside of their control groups, each time that the list changes.
    Outside(Vec<Outside>),
    /// Whether the units can be supervised, each time that the answer changes.
    Admission(Admission),
    /// Whether the units may be run under the key (the unit's entry, N1).
    Standpoint(Standpoint),
    /// What the daemon or an operator wants.
    Order(Order),
    /// The service is to be handed over now, because the host is drained.
    Turn,
    /// A stop has its proof. The loop takes it from `Service::proven`.
    Proven,
}

/// The sending end of a service's channel. Messages are boxed, because a channel allocates room for 32 of them from the
/// beginning on.
#[derive(Debug, Clone)]
pub(super) struct Inbox(mpsc::Sender<Box<Told>>);

/// The service is gone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gone;

impl Inbox {
    /// Makes an empty inbox, and its receiving end.
    pub(super) fn new() -> (Self, mpsc::Receiver<Box<Told>>) {
        let (sender, told) = mpsc::channel(LIMIT);
        (Self(sender), told)
    }

    /// Sends a message, and waits while the channel is full.
    pub(super) async fn tell(&self, told: Told) -> Result<(), Gone> {
        self.0.send(Box::new(told)).await.map_err(|_| Gone)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// Gives orders to a service.
#[derive(Debug, Clone)]
pub struct Orders(Inbox);

impl Orders {
    pub(super) fn to(inbox: Inbox) -> Self {
        Self(inbox)
    }

    /// Gives an order at once. `Err`: the service is gone, or its loop stands still, which the watchdog ends.
    pub fn give(&self, order: Order) -> Result<(), Order> {
        match self.0.0.try_reserve() {
            Ok(room) => {
                room.send(Box::new(Told::Order(order)));
                Ok(())
            }
            Err(_) => Err(order),
        }
    }

    /// Gives an order, and waits while the channel is full.
    pub(super) async fn give_in_turn(&self, order: Order) -> Result<(), Gone> {
        self.0.tell(Told::Order(order)).await
    }
}
