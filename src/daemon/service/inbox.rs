//! Everything that a service is told, by the tasks that carry out its actions or look for it, and by operators. It all goes
//! through one channel, because a channel takes more memory than all else that a task has of its own.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::bars::BarSource;
use crate::{
    cluster::verb::Unmet,
    config::ServiceSettings,
    daemon::units::ObservedUnits,
    election::{self, Event, Word},
    facts::{Bar, Retirement, alarm::StopFailure},
    systemd::OutsideWork,
};

/// Limit of the messages that wait for the loop. The loop takes messages faster than anybody makes them. Where the channel
/// is full, whoever sends more has to wait.
const LIMIT: usize = 64;

/// What was begun for an operator, or why nothing was.
pub type Said = Result<String, Unmet>;

/// The channel for the answer to an operator.
pub type Answer = oneshot::Sender<Said>;

/// What the daemon or an operator tells a service to do.
pub enum ServiceOrder {
    /// The configuration was read anew: go on with these settings, whose units and key are the same, and try again what was refused
    /// (back-off, K9).
    Reconfigure(Arc<ServiceSettings>),
    /// What failed is tried again at once: the back-off (K9) ends.
    TryAgain,
    /// Do what an operator asks for, and answer.
    Request(OperatorRequest, Answer),
    /// Stop the unit, release the lock, end.
    Retire(Retirement),
}

/// What an operator asks a service for.
pub enum OperatorRequest {
    /// What the holder of the lock is to do (orders, H7).
    Ask(election::Order),
    /// Keep the service stopped on all hosts (orders, H7).
    Stop(Word),
    /// Take the word back that keeps the service stopped, as this operator asks.
    Start(String),
    /// The store and the key that the configuration names are meant, whatever they were before (adoption of another key, N3;
    /// what a host remembers, N4).
    Adopt,
}

/// What one look at the units has shown.
pub struct Looked {
    /// The epoch in which the look began.
    pub epoch: u64,
    pub units: ObservedUnits,
    /// Whether the host is going down: PID 1 then stops the units itself, and would refuse to start any.
    pub host_stops: bool,
}

/// A message to a service's loop.
pub enum Message {
    /// The outcome of an action, or the verdict of a health check.
    Event(Event),
    /// The outcome of a read, and why the lock cannot be read. `None`: it can, or there is no store, which is told elsewhere.
    Read(Event, Option<String>),
    /// What a look at the units has shown.
    Looked(Looked),
    /// The work of the units that is outside of their control groups, each time that the list changes.
    Outside(Vec<OutsideWork>),
    /// A bar that comes or goes: of units that cannot be supervised, or of the key (the unit's entry, N1). `EntryUnknown`: the store has not answered, and is asked again before a start (vetting, N2).
    Bar(BarSource, Option<Bar>),
    /// What the daemon or an operator wants.
    Order(ServiceOrder),
    /// The service is to be handed over now, because the host is drained.
    Turn,
    /// A stop whose time is over is not proven.
    StopFailed(StopFailure),
    /// There is something to be looked at, such as the proof of a stop in `Work::proven`.
    Wake,
}

/// The sending end of a service's channel. Messages are boxed, because a channel allocates room for 32 of them from the
/// beginning on.
#[derive(Clone)]
pub struct Inbox(mpsc::Sender<Box<Message>>);

impl Inbox {
    /// Makes an empty inbox, and its receiving end.
    pub fn new() -> (Self, mpsc::Receiver<Box<Message>>) {
        let (sender, messages) = mpsc::channel(LIMIT);
        (Self(sender), messages)
    }

    /// Sends a message, and waits while the channel is full. It is lost if the service has ended, with which its tasks end as well.
    pub async fn send(&self, message: Message) {
        let _ = self.0.send(Box::new(message)).await;
    }

    /// Sends the bar of a source, or that there is none, if that is another one than the `last`.
    pub async fn send_bar(
        &self,
        last: &mut Option<Option<Bar>>,
        source: BarSource,
        bar: Option<Bar>,
    ) {
        if last.as_ref() != Some(&bar) {
            *last = Some(bar.clone());
            self.send(Message::Bar(source, bar)).await;
        }
    }

    /// Gives an order at once. It is lost if the service is gone, or if its loop stands still, which the watchdog ends.
    pub fn give(&self, order: ServiceOrder) {
        let _ = self.0.try_send(Box::new(Message::Order(order)));
    }

    /// Asks for something, and returns what comes of it.
    pub async fn ask(&self, request: OperatorRequest) -> Said {
        let (answer, said) = oneshot::channel();
        self.give(ServiceOrder::Request(request, answer));
        let lost = "see \"putexctl status\": its election does not answer";
        said.await
            .unwrap_or_else(|_| Err(Unmet::Open(lost.to_owned())))
    }
}
