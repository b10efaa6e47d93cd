//! What a service does when its host is drained: it takes nothing from then on, and is handed over when its turn comes.

use tokio::time::sleep;

use super::{Bar, BarSource, Message, Service};
use crate::{daemon::local::drain, task::OwnedTask};

/// When the service is handed over.
#[derive(Default)]
pub struct Turn {
    /// Waits for the turn, and keeps the place then for as long as others have to wait for this service. `None`: the host is not drained,
    /// or has nothing to hand over.
    place: Option<OwnedTask>,
    has_come: bool,
}

impl Turn {
    /// The turn has come, unless nobody waits for it any more.
    pub fn comes(&mut self) {
        self.has_come = self.place.is_some();
    }
}

impl Service {
    /// Takes over whether the host is drained. Once it is not any more, the service contends again.
    pub fn follow_drain(&mut self) {
        let drained = self.host.drain.word();
        if drained.is_none() || !self.may_run() {
            self.turn = Turn::default();
        } else if self.turn.place.is_none() {
            let (drain, inbox) = (self.host.drain.clone(), self.inbox.clone());
            let waits = async move {
                let _place = drain.turn().await;
                inbox.send(Message::Turn).await;
                sleep(drain::TURN).await;
            };
            self.turn.place = Some(self.host.machine.spawn(Box::pin(waits)).into());
        }
        let bar = drained.filter(|_| !self.runs_unit() || self.turn.has_come);
        self.bars.set(BarSource::Drain, bar.map(Bar::Drained));
    }
}
