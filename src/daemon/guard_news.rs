//! What the guard says of itself: that it can arm no lease, or cannot serve the hardware watchdog, and which version it is.
//!
//! The guard writes this to the journal at once. Here it is asked from time to time, so that `status` shows it for as long as it
//! is so: one small question every few seconds for the whole host, which no service waits for. The journal is not read, because
//! what stands is a state of the guard, and its entries may be lost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use crate::guard_client::{GuardClient, GuardError};

/// Time between two questions. A host's report is as old at most.
const INTERVAL: Duration = Duration::from_secs(10);

/// What stands. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct GuardNews(Arc<Mutex<Said>>);

/// What the guard said last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Said {
    /// A sentence for each thing that is wrong, without a full stop. What to do about it comes first.
    pub(super) trouble: Vec<String>,
    /// The version of its program; empty = not known.
    pub(super) version: String,
}

impl GuardNews {
    /// What stands now.
    pub(super) fn said(&self) -> Said {
        self.lock().clone()
    }

    /// Asks the guard for ever. A guard that does not answer is told of elsewhere, and what it said before stands no more.
    pub(super) async fn follow(self, guard: GuardClient) {
        loop {
            let said = ask(&guard).await.unwrap_or_default();
            *self.lock() = said;
            sleep(INTERVAL).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Said> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask(guard: &GuardClient) -> Result<Said, GuardError> {
    let room = guard.trouble().await?;
    let watchdog = guard.watchdog().await?.and_then(|watchdog| {
        let (device, trouble) = (watchdog.device, watchdog.trouble?);
        Some(format!(
            "see that nobody else has the hardware watchdog {} open, and that its driver is loaded: the guard does not serve it, \
             so that no lease is armed: {trouble}",
            device.display()
        ))
    });
    let version = guard.version().await?.unwrap_or_default();
    Ok(Said { trouble: room.into_iter().chain(watchdog).collect(), version })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, duplex};

    use super::*;
    use crate::guard_client::frame::{Outcome, Reply, Request, Watchdog};
    use crate::task::{OwnedTask, lock};

    /// What the guard answers to each question; `None`: nothing.
    type Says = Arc<Mutex<Option<Outcome>>>;

    fn leases(trouble: Option<&str>, of_watchdog: Option<&str>) -> Outcome {
        let watchdog = of_watchdog.map(|trouble| Watchdog {
            device: "/dev/watchdog0".into(),
            timeout: Duration::from_secs(3),
            trouble: Some(trouble.to_owned()).filter(|trouble| !trouble.is_empty()),
        });
        Outcome::Leases { leases: Vec::new(), watchdog, trouble: trouble.map(ToOwned::to_owned), version: None }
    }

    /// A client of a guard that answers so.
    fn guard(says: &Says) -> (GuardClient, OwnedTask) {
        let says = Arc::clone(says);
        let (client, connection) = GuardClient::over(Duration::from_secs(1), move || {
            let (near, far) = duplex(65_536);
            let says = Arc::clone(&says);
            tokio::spawn(async move {
                let (read, mut write) = tokio::io::split(far);
                let mut lines = BufReader::new(read).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let request: Request = serde_json::from_str(&line).expect("a request");
                    let Some(result) = lock(&says).clone() else { continue };
                    let mut reply = serde_json::to_vec(&Reply { id: request.id, result }).expect("it encodes");
                    reply.push(b'\n');
                    // The client may have given up.
                    let _ = write.write_all(&reply).await;
                }
            });
            async { Ok(near) }
        });
        (client, OwnedTask::spawn(connection))
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_guard_says_of_itself_is_shown_for_as_long_as_it_is_so() {
        let says = Says::default();
        let (client, _connection) = guard(&says);
        let news = GuardNews::default();
        let _following = OwnedTask::spawn(news.clone().follow(client));
        let heard = async |outcome| {
            *lock(&says) = outcome;
            sleep(INTERVAL * 2).await;
            news.said().trouble
        };
        assert_eq!(heard(None).await, Vec::<String>::new());
        assert_eq!(heard(Some(leases(None, None))).await, Vec::<String>::new());
        assert_eq!(heard(Some(leases(Some("free space in /run"), None))).await, ["free space in /run"]);
        let told = heard(Some(leases(Some("free space in /run"), Some("it is open already")))).await;
        let [room, watchdog] = &told[..] else { panic!("both stand: {told:?}") };
        assert_eq!(room, "free space in /run");
        assert!(
            watchdog.starts_with("see that nobody else has the hardware watchdog /dev/watchdog0 open"),
            "{watchdog}"
        );
        assert!(watchdog.ends_with(": it is open already"), "{watchdog}");
        assert_eq!(heard(Some(leases(None, Some("")))).await, Vec::<String>::new(), "it is served");
        assert_eq!(heard(Some(leases(Some("free space in /run"), None))).await.len(), 1);
        assert_eq!(heard(None).await, Vec::<String>::new(), "nobody knows whether it is so still");
        let version = Some("0.0.1".to_owned());
        let former = Some(Outcome::Leases { leases: Vec::new(), watchdog: None, trouble: None, version });
        assert_eq!((heard(former).await.len(), news.said().version.as_str()), (0, "0.0.1"));
        let refused = Some(Outcome::Refused { reason: "it is not known".to_owned() });
        assert_eq!(heard(refused).await, Vec::<String>::new());
        assert_eq!(news.said(), Said::default());
    }
}
