//! What a service does when its host is drained: it takes nothing from then on, and is handed over when its turn comes.

use tokio::time::sleep;

use super::{Service, Told};
use crate::daemon::drain;
use crate::election::State;
use crate::task::OwnedTask;

/// When the service is handed over.
#[derive(Debug, Default)]
pub(super) enum Turn {
    /// The host is not drained, or has nothing to hand over.
    #[default]
    Unasked,
    /// Other services come first. The task waits for the turn.
    Waits(OwnedTask),
    /// It is handed over now. The task keeps the place for as long as others have to wait for this service.
    Come { _place: OwnedTask },
}

impl Turn {
    /// The turn has come. One that nobody waits for any more is given back.
    pub(super) fn has_come(&mut self) {
        *self = match std::mem::take(self) {
            Self::Waits(place) => Self::Come { _place: place },
            other @ (Self::Unasked | Self::Come { .. }) => other,
        };
    }
}

impl Service {
    /// Takes over whether the host is drained. Once it is not any more, the service contends again.
    pub(super) fn hear_of_drain(&mut self) {
        let drained = self.host.drain.reason();
        self.forgiven |= self.drained.is_some() && drained.is_none();
        self.drained = drained;
        if self.drained.is_none() || !self.may_run() {
            self.turn = Turn::Unasked;
        } else if matches!(self.turn, Turn::Unasked) {
            let (drain, inbox) = (self.host.drain.clone(), self.inbox.clone());
            let waits = async move {
                let _place = drain.turn().await;
                // A service that is gone needs no turn.
                if inbox.tell(Told::Turn).await.is_ok() {
                    sleep(drain::TURN).await;
                }
            };
            self.turn = Turn::Waits(self.host.machine.spawn(Box::pin(waits)).into());
        }
    }

    /// Whether nothing keeps a drained host from letting this service go: it does not run here, or its turn has come.
    pub(super) fn may_hand_over(&self) -> bool {
        let runs = matches!(self.election.state(), State::Starting | State::Active);
        !runs || matches!(self.turn, Turn::Come { .. })
    }
}
