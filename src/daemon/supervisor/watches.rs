//! Watches what all services of the host need: the guard, PID 1, the store's answers, file descriptors.

use std::{fs::File, future::ready, sync::Arc, time::Duration};

use tokio::time::sleep;

use super::TICK;
use crate::{
    daemon::{host::Host, local::alarms::Alarms},
    election::rounded,
    facts::alarm::{AlarmKind, Problem},
    guard_client::GuardClient,
    host::{clock, descriptors},
    store::{Link as StoreLink, Store},
    systemd::Systemd,
};

/// At how many looks in a row, one each [`TICK`], the guard has to be away before that is an alarm. One that has ended is replaced
/// sooner.
const GUARD_PATIENCE: u32 = 2;
/// The same for a PID 1 that gives no answer, each of which takes a while. One that has much to do answers sooner.
const SYSTEMD_PATIENCE: u32 = 4;
/// At how many looks files can be opened again until a lack of descriptors is over: what is opened next may take the last one.
const DESCRIPTORS_CALM: u32 = 10;
/// Time between two questions what the guard says of itself. A host's report is as old at most. The guard writes the same to the journal
/// at once, whose entries may be lost.
const GUARD_INTERVAL: Duration = Duration::from_secs(10);
/// A host that is late by so much was not busy but stood still.
const STANDSTILL_MIN: Duration = Duration::from_secs(1);

/// Begins all of them.
pub fn begin(host: &Host, systemd: Systemd) {
    let (link, alarms) = (host.guard.link(), &host.alarms);
    let guard = move || ready((!*link.borrow()).then_some(Problem::GuardGone));
    tokio::spawn(watch(alarms.clone(), GUARD_PATIENCE, 1, guard));
    // Every unit of the host depends on it, also those that need nothing of it now.
    let pid1 = move || {
        let systemd = systemd.clone();
        async move {
            let error = systemd.is_stopping().await.err()?;
            error.is_unreachable().then_some(Problem::SystemdSilent)
        }
    };
    tokio::spawn(watch(alarms.clone(), SYSTEMD_PATIENCE, 1, pid1));
    // What cannot be read meanwhile is not known, and is taken for no fact about a unit.
    let descriptors = || {
        let error = File::open("/dev/null")
            .err()
            .filter(descriptors::have_run_out);
        ready(error.map(|error| {
            let error = format!("{error}; nothing is started or proven dead here meanwhile");
            Problem::NoDescriptors { error }
        }))
    };
    tokio::spawn(watch(alarms.clone(), 1, DESCRIPTORS_CALM, descriptors));
    tokio::spawn(follow_guard(host.guard.clone(), alarms.clone()));
    tokio::spawn(log_thaws());
}

/// What the guard says of itself: that it can arm no lease, or cannot serve the hardware watchdog. A guard that does not answer is told
/// of elsewhere, and what it said before stands no more.
async fn follow_guard(guard: GuardClient, alarms: Alarms) {
    loop {
        let unfit = guard
            .state()
            .await
            .unwrap_or_default()
            .unfit()
            .map(|error| Problem::GuardUnfit { error });
        alarms.set(AlarmKind::GuardUnfit, unfit);
        sleep(GUARD_INTERVAL).await;
    }
}

/// Whether others than the store can answer this host. Where values are sealed this is the way that is left to make a holder believe
/// that it has a lock. It is asked after each connect, because the rights of a login can have been changed.
pub async fn judge_answers(store: Arc<dyn Store>, alarms: Alarms) {
    let mut link = store.link();
    while link.wait_for(StoreLink::is_up).await.is_ok() {
        // Where the store does not answer, the connection ends, and the next one is asked.
        if let Ok(found) = store.examine().await {
            let forgeable = found.forgeable.map(|_| Problem::Forgeable);
            alarms.set(AlarmKind::Forgeable, forgeable);
        }
        if link.wait_for(|link| !link.is_up()).await.is_err() {
            return;
        }
    }
}

/// Writes to the journal that the host stood still. The task does nothing else, so that no work of its own makes it late.
async fn log_thaws() {
    loop {
        let before = clock::now();
        sleep(TICK).await;
        let late = clock::now().since_at_most(before).saturating_sub(TICK);
        if late >= STANDSTILL_MIN {
            tracing::warn!(
                "this host, or putexd alone, stood still for {}",
                rounded(late)
            );
        }
    }
}

/// Raises an alarm once there was a `problem` at so many looks in a row, and ends it once there was none at `calm` looks.
async fn watch<F: Future<Output = Option<Problem>> + Send>(
    alarms: Alarms,
    patience: u32,
    calm: u32,
    mut problem: impl FnMut() -> F + Send,
) {
    let (mut good, mut bad, mut stands) = (0, 0, None);
    loop {
        if let Some(problem) = problem().await {
            (good, bad) = (0, bad + 1);
            if bad >= patience && stands.replace(problem.kind()).is_none() {
                alarms.raise(problem);
            }
        } else {
            (good, bad) = (good + 1, 0);
            if good >= calm
                && let Some(kind) = stands.take()
            {
                alarms.clear(kind);
            }
        }
        sleep(TICK).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, duplex};

    use super::*;
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
        let _following = OwnedTask::spawn(follow_guard(client, alarms.clone()));
        let stands = async |outcome| {
            *lock(&says) = outcome;
            sleep(GUARD_INTERVAL * 2).await;
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
        let found = |error: &str| [format!("the guard arms no lease: {error}")];
        assert_eq!(stands(Some(leases(Some(room), None))).await, found(room));
        let open = Some(leases(None, Some("it is open already")));
        let watchdog = found("the watchdog /dev/watchdog0 is not served: it is open already");
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
