//! What a service is told, all of it through one channel: by the tasks that carry out its actions or look for it, and by
//! operators. A channel takes more memory than all else that a task has of its own, so that there is one for each service.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::{Admission, Seen};
use crate::config::ServiceSettings;
use crate::daemon::registration::{Adoption, Standpoint};
use crate::election::Event;
use crate::host::processes::Process;

/// What waits for the loop. It takes it faster than anybody makes it; a full channel makes those wait who tell it more.
const LIMIT: usize = 64;

/// Where the answer to an operator goes: what was done, or why nothing.
pub type Answer = oneshot::Sender<Result<String, String>>;

/// What a service is told from outside.
#[derive(Debug)]
pub enum Order {
    /// Go on with these settings; units and key are the same.
    Reconfigure(Arc<ServiceSettings>),
    /// The configuration was read anew, and that of the service is as it was: what was refused is tried again.
    Reconsider,
    /// Let the lock go now, contend again later; the reason, and where to say what was begun.
    StepDown(String, Answer),
    /// The store and the key that the configuration names are meant, whatever they were before.
    Adopt(Adoption),
    /// Stop the unit, release the lock, end.
    Retire {
        /// Why.
        reason: String,
        /// What has the service taken up on this host again, for the journal; fits behind "before".
        again: String,
    },
}

/// What a service is told.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is boxed as a whole, and mostly an event")]
pub(in crate::daemon) enum Told {
    /// What has become of an action, or what a health check says.
    Event(Event),
    /// What the units do.
    Seen(Seen),
    /// The processes of the units that are outside of their control groups, whenever that changes.
    Strays(Vec<Process>),
    /// Whether the units can be supervised.
    Admission(Admission),
    /// Whether they may be run under the key.
    Standpoint(Standpoint),
    /// What an operator wants.
    Order(Order),
    /// A stop has its proof, which is there to be taken.
    Proven,
}

/// Where it is told. A channel has room for 32 messages from the beginning on, so that they are boxed.
#[derive(Debug, Clone)]
pub(in crate::daemon) struct Inbox(mpsc::Sender<Box<Told>>);

/// The service is gone.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::daemon) struct Gone;

impl Inbox {
    /// One that is empty, and what is in it.
    pub(in crate::daemon) fn new() -> (Self, mpsc::Receiver<Box<Told>>) {
        let (sender, told) = mpsc::channel(LIMIT);
        (Self(sender), told)
    }

    /// Waits for room.
    pub(in crate::daemon) async fn tell(&self, told: Told) -> Result<(), Gone> {
        self.0.send(Box::new(told)).await.map_err(|_| Gone)
    }

    pub(in crate::daemon) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// Where operators say what they want of a service.
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

    /// Waits for room.
    pub(in crate::daemon) async fn give_in_turn(&self, order: Order) -> Result<(), Gone> {
        self.0.tell(Told::Order(order)).await
    }
}
