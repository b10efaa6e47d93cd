//! Hints that a unit may have changed.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use tokio::sync::{mpsc, watch};
use zbus::MatchRule;

use super::Systemd;
use super::link::{BusError, Keeper, Link, OwnedTask};
use super::proxy::PROPERTIES;
use crate::types::UnitName;

/// Between two attempts to listen, when PID 1 is there and does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// Yields whenever a unit may have changed: its properties did, or PID 1 came back. Never ends while it is held.
///
/// Many changes may make one hint, and a change may make none: read the state also from time to time.
#[derive(Debug)]
pub struct Changes {
    hints: mpsc::Receiver<()>,
    _task: OwnedTask,
}

impl Stream for Changes {
    type Item = ();

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<()>> {
        self.hints.poll_recv(context)
    }
}

impl Systemd {
    /// Hints that the unit's state should be read again. Needs no connection: it listens as soon as there is one.
    #[must_use]
    pub fn changes(&self, unit: &UnitName) -> Changes {
        let (hint, hints) = mpsc::channel(1);
        let task = OwnedTask::spawn(listen(self.keeper.clone(), unit.to_string(), hint));
        Changes { hints, _task: task }
    }
}

async fn listen(keeper: Keeper, unit: String, hint: mpsc::Sender<()>) {
    let mut links = keeper.watch();
    loop {
        let link = match links.wait_for(Option::is_some).await {
            Ok(link) => link.clone(),
            Err(_) => return,
        };
        if let Some(link) = link
            && drain(&link, &mut links, &unit, &hint).await.is_err()
        {
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Turns signals into hints until the connection ends. A hint that is not yet taken stands for later ones too.
async fn drain(
    link: &Link,
    links: &mut watch::Receiver<Option<Link>>,
    unit: &str,
    hint: &mpsc::Sender<()>,
) -> Result<(), BusError> {
    // The unit may be known by another name than its own, and signals carry its own.
    let path = link.call(link.manager.load_unit(unit)).await?;
    let rule = MatchRule::builder()
        .msg_type(zbus::message::Type::Signal)
        .path(path.into_inner())
        .interface(PROPERTIES)
        .member("PropertiesChanged")
        .build()?;
    let mut signals = link.signals(rule).await?;
    // What happened before the rule was in place was not heard. A full channel already holds a hint.
    let _ = hint.try_send(());
    loop {
        tokio::select! {
            signal = signals.next() => match signal {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Ok(()),
            },
            // PID 1 left the bus, or came back to it: signals in between are lost.
            changed = links.changed() => if changed.is_err() {
                return Ok(());
            },
        }
        let _ = hint.try_send(());
    }
}
