//! The ends of jobs, as PID 1 tells of them.
//!
//! One match rule serves all units, because the bus limits the number of rules, and a host may stop a thousand units at
//! once. One task takes the signals from the connection and hands each to those who wait for it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt;
use tokio::sync::watch;
use zbus::{Connection, MatchRule, Message, MessageStream, OwnedObjectPath};

use super::proxy::{MANAGER, MANAGER_PATH};
use crate::task::OwnedTask;

/// How many ended jobs of one unit are remembered that nobody has asked for; beyond that the oldest are forgotten.
const REMEMBERED: usize = 16;

/// The ended jobs of one unit, each as the object of the job and its result, the latest last.
type Heard = VecDeque<(String, String)>;

/// The listeners by the unit's own name; `None` once the connection has ended.
type Listeners = Arc<Mutex<Option<HashMap<String, watch::Sender<Heard>>>>>;

/// What one connection tells of the ends of jobs. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Ends {
    listeners: Listeners,
    _task: Arc<OwnedTask>,
}

impl Ends {
    pub(super) async fn listen(connection: &Connection) -> zbus::Result<Self> {
        let rule = MatchRule::builder()
            .msg_type(zbus::message::Type::Signal)
            .path(MANAGER_PATH)
            .interface(MANAGER)
            .member("JobRemoved")
            .build()?;
        let signals = MessageStream::for_match_rule(rule, connection, None).await?;
        let listeners = Listeners::new(Mutex::new(Some(HashMap::new())));
        let task = OwnedTask::spawn(take(signals, Arc::clone(&listeners)));
        Ok(Self { listeners, _task: Arc::new(task) })
    }

    /// Begins to listen for the ends of a unit's jobs.
    pub(super) fn of(&self, unit: &str) -> Ears {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = match listeners.as_mut() {
            Some(listeners) => {
                listeners.retain(|_, ends| ends.receiver_count() > 0);
                listeners.entry(unit.to_owned()).or_default().subscribe()
            }
            None => watch::channel(Heard::new()).1,
        };
        Ears { heard }
    }
}

async fn take(mut signals: MessageStream, listeners: Listeners) {
    while let Some(Ok(message)) = signals.next().await {
        if let Some((unit, job, result)) = removed(&message) {
            tell(&listeners, &unit, job, result);
        }
    }
    *listeners.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

fn tell(listeners: &Listeners, unit: &str, job: String, result: String) {
    let listeners = listeners.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(ends) = listeners.as_ref().and_then(|listeners| listeners.get(unit)) else { return };
    ends.send_modify(|ends| {
        ends.push_back((job, result));
        if ends.len() > REMEMBERED {
            ends.pop_front();
        }
    });
}

fn removed(message: &Message) -> Option<(String, String, String)> {
    let (_, job, unit, result): (u32, OwnedObjectPath, String, String) = message.body().deserialize().ok()?;
    Some((unit, job.to_string(), result))
}

/// Listens for the ends of one unit's jobs.
#[derive(Debug)]
pub(super) struct Ears {
    heard: watch::Receiver<Heard>,
}

impl Ears {
    /// Waits for the result of the job whose object is `path`. Never returns if nothing is heard of its end.
    pub(super) async fn hear(&mut self, path: &str) -> String {
        loop {
            let found = self.heard.borrow_and_update().iter().find(|(job, _)| job == path).cloned();
            if let Some((_, result)) = found {
                return result;
            }
            if self.heard.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Whether the connection is gone that it listens on.
    pub(super) fn are_deaf(&self) -> bool {
        self.heard.has_changed().is_err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> (Ends, Listeners) {
        let listeners = Listeners::new(Mutex::new(Some(HashMap::new())));
        let task = OwnedTask::spawn(std::future::pending());
        (Ends { listeners: Arc::clone(&listeners), _task: Arc::new(task) }, listeners)
    }

    #[tokio::test]
    async fn each_hears_of_its_own_unit_and_of_what_ended_before_it_asked() {
        let (ends, listeners) = ends();
        let (mut one, mut other) = (ends.of("a.service"), ends.of("b.service"));
        for (unit, job, result) in [("a.service", "/1", "done"), ("b.service", "/2", "failed"), ("c.service", "/3", "")]
        {
            tell(&listeners, unit, job.to_owned(), result.to_owned());
        }
        assert_eq!((one.hear("/1").await, other.hear("/2").await), ("done".to_owned(), "failed".to_owned()));
        drop((one, other));
        let _new = ends.of("c.service");
        let known = listeners.lock().expect("not poisoned").as_ref().map(HashMap::len);
        assert_eq!(known, Some(1), "nobody listens for the others any more");
    }

    #[tokio::test]
    async fn ears_are_deaf_once_the_connection_has_ended() {
        let (ends, listeners) = ends();
        let before = ends.of("a.service");
        assert!(!before.are_deaf());
        *listeners.lock().expect("not poisoned") = None;
        assert!(before.are_deaf() && ends.of("a.service").are_deaf());
    }
}
