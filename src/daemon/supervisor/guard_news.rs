//! What the guard says of itself: that it can arm no lease, or cannot serve the hardware watchdog.
//!
//! The guard writes this to the journal at once. Here it is asked from time to time, so that `status` shows it for as long as it
//! is so: one small question every few seconds for the whole host, which no service waits for. The journal is not read, because
//! what stands is a state of the guard, and its entries may be lost.

use std::time::Duration;

use tokio::time::sleep;

use crate::daemon::local::alarms::Alarms;
use crate::facts::alarm::{AlarmKind, Problem};
use crate::guard_client::GuardClient;

/// Time between two questions. A host's report is as old at most.
const INTERVAL: Duration = Duration::from_secs(10);

/// Asks the guard for ever. A guard that does not answer is told of elsewhere, and what it said before stands no more.
pub async fn follow(guard: GuardClient, alarms: Alarms) {
    loop {
        let state = guard.state().await.unwrap_or_default();
        let unserved = state.watchdog.and_then(|watchdog| {
            let device = watchdog.device.display();
            Some(format!("{device} is not served: {}", watchdog.trouble?))
        });
        let unfit = state.trouble.or(unserved);
        let unfit = unfit.map(|error| Problem::GuardUnfit { error });
        alarms.set(AlarmKind::GuardUnfit, unfit);
        sleep(INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, duplex};

    use super::*;
    use crate::facts::alarm::Alarm;
    use crate::guard_client::frame::{GuardState, Outcome, Reply, Request, Watchdog};
    use crate::task::{OwnedTask, lock};

    /// What the guard answers to each question; `None`: nothing.
    type Says = Arc<Mutex<Option<Outcome>>>;

    fn leases(trouble: Option<&str>, of_watchdog: Option<&str>) -> Outcome {
        let watchdog = of_watchdog.map(|trouble| Watchdog {
            device: "/dev/watchdog0".into(),
            timeout: Duration::from_secs(3),
            trouble: Some(trouble.to_owned()).filter(|trouble| !trouble.is_empty()),
        });
        Outcome::Leases(GuardState {
            watchdog,
            trouble: trouble.map(ToOwned::to_owned),
            ..GuardState::default()
        })
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
                    let Some(result) = lock(&says).clone() else {
                        continue;
                    };
                    let mut reply = serde_json::to_vec(&Reply {
                        id: request.id,
                        result,
                    })
                    .expect("it encodes");
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
        let alarms = Alarms::default();
        let _following = OwnedTask::spawn(follow(client, alarms.clone()));
        let stands = async |outcome| {
            *lock(&says) = outcome;
            sleep(INTERVAL * 2).await;
            alarms
                .of_host()
                .iter()
                .map(|alarm| alarm.problem.to_string())
                .collect::<Vec<_>>()
        };
        let none = Vec::<String>::new();
        assert_eq!(stands(None).await, none);
        assert_eq!(stands(Some(leases(None, None))).await, none);
        let room = "free space in /run";
        let told = |error: &str| [format!("the guard arms no lease: {error}")];
        assert_eq!(stands(Some(leases(Some(room), None))).await, told(room));
        let open = Some(leases(None, Some("it is open already")));
        let watchdog = told("/dev/watchdog0 is not served: it is open already");
        assert_eq!(stands(open).await, watchdog);
        assert_eq!(
            stands(Some(leases(None, Some("")))).await,
            none,
            "it is served"
        );
        assert_eq!(stands(Some(leases(Some(room), None))).await.len(), 1);
        assert_eq!(
            stands(None).await,
            none,
            "nobody knows whether it is so still"
        );
        let refused = Some(Outcome::Refused {
            reason: "it is not known".to_owned(),
        });
        assert_eq!(stands(refused).await, none);
    }
}
