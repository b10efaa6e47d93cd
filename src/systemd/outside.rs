//! Processes of units that are outside of the units' control groups.
//!
//! systemd counts a process by its control group alone. One that was moved to another, as PAM moves a login to the scope
//! of its session, is not stopped with the unit, and an empty group says nothing of it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::Systemd;
use super::elsewhere::{self, FoundClient};
use super::error::{BusError, KernelError};
use crate::host::mountinfo::Mount;
use crate::host::mounts::place_of;
use crate::host::processes::{self, Family, Process};
use crate::task::OwnedTask;
use crate::types::UnitName;

/// How many questions may wait in the queue for a reading of `/proc`. A caller beyond that waits for a place in the
/// queue.
const ASKS_LIMIT: usize = 64;
/// The properties that name the units which systemd stops with a unit.
const FOLLOWING: [&str; 5] = ["BoundBy", "RequiredBy", "RequisiteOf", "ConsistsOf", "PropagatesStopTo"];
/// How many units are looked at that are stopped together with a mount.
const FOLLOWERS_LIMIT: usize = 256;

impl Systemd {
    /// Of `known`, the processes in `groups` and all their descendants: those that are in none of `groups`. The parents
    /// and the groups of processes may come from a reading that is up to `age` old. What is outside by that reading is
    /// looked at again, so that it is outside now.
    ///
    /// A process that lost its parent is a child of PID 1, and escapes this look unless it is in one of the groups.
    pub async fn outside(
        &self,
        known: &BTreeSet<i32>,
        groups: &BTreeSet<String>,
        age: Duration,
    ) -> Result<Vec<Process>, KernelError> {
        let family = self.walker.family(age, self.keeper.call_limit()).await?;
        let suspects = family.suspects(known, groups);
        if suspects.is_empty() {
            return Ok(Vec::new());
        }
        let groups = groups.clone();
        self.blocking(move || family.outside(&suspects, &groups)).await
    }

    /// The processes in `groups` that are clients of a daemon and stay beside the work that it does for them. `own` are the
    /// units of the service, which a client may start. `age` is as for [`outside`](Self::outside).
    pub async fn clients(
        &self,
        groups: &BTreeSet<String>,
        own: &[UnitName],
        age: Duration,
    ) -> Result<Vec<FoundClient>, KernelError> {
        let family = self.walker.family(age, self.keeper.call_limit()).await?;
        let named = family.named_in(groups);
        if named.is_empty() {
            return Ok(Vec::new());
        }
        let groups = groups.clone();
        let programs = self.blocking(move || family.programs(&named, &groups)).await?;
        Ok(programs.into_iter().filter_map(|running| elsewhere::found(running, own)).collect())
    }

    /// The processes that keep the file system of a mount from being unmounted, and that neither belong to `own` nor are stopped by
    /// systemd together with it. Nobody uses what is not mounted.
    pub async fn users_of_mount(&self, mount: &UnitName, own: &[UnitName]) -> Result<Vec<Process>, KernelError> {
        let Some(place) = place_of(mount) else { return Ok(Vec::new()) };
        let unknown = |error: BusError| KernelError::Failed(error.to_string());
        let link = self.link().await.map_err(unknown)?;
        let (mut open, mut known, mut groups) = (own.to_vec(), BTreeSet::new(), BTreeSet::new());
        while let Some(unit) = open.pop() {
            if known.len() < FOLLOWERS_LIMIT && known.insert(unit.clone()) {
                let properties = link.common(unit.as_str(), &FOLLOWING).await.map_err(unknown)?;
                let followers = FOLLOWING.iter().flat_map(|kind| properties.texts(kind));
                open.extend(followers.filter_map(|follower| UnitName::new(&follower).ok()));
                groups.extend(self.placement(&unit).await.map_err(unknown)?.groups);
            }
        }
        self.blocking(move || match Mount::at(&place)? {
            Some(_) => processes::users_of(Path::new(&place), &groups),
            None => Ok(Vec::new()),
        })
        .await
    }

    /// Sends `signal`, if one is given, to each of the processes that still runs. Returns those that still run
    /// afterwards.
    pub async fn end_processes(
        &self,
        processes: &[Process],
        signal: Option<Signal>,
    ) -> Result<Vec<Process>, KernelError> {
        let known = processes.to_vec();
        self.blocking(move || {
            if let Some(signal) = signal {
                for process in &known {
                    processes::signal(process, signal)?;
                }
            }
            processes::alive(&known)
        })
        .await
    }

    /// Sends SIGTERM to every process of a control group and of those below it, once.
    pub async fn terminate_group(&self, path: &str) -> Result<(), KernelError> {
        let path = path.to_owned();
        self.control_groups(move |hierarchy| hierarchy.terminate(&path)).await
    }
}

/// Reads `/proc` for all callers, so that the looks of many services cost no more than those of a few. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Walker {
    asks: mpsc::Sender<Ask>,
    _task: Arc<OwnedTask>,
}

#[derive(Debug)]
struct Ask {
    /// The earliest beginning of a reading that is young enough to answer.
    begun_after: Instant,
    answer: oneshot::Sender<Result<Arc<Family>, KernelError>>,
}

impl Walker {
    pub(super) fn new() -> Self {
        let (asks, asked) = mpsc::channel(ASKS_LIMIT);
        Self { asks, _task: Arc::new(OwnedTask::spawn(walk(asked, read))) }
    }

    async fn family(&self, age: Duration, limit: Duration) -> Result<Arc<Family>, KernelError> {
        let now = Instant::now();
        let begun_after = now.checked_sub(age).unwrap_or(now);
        let asked = async {
            let (answer, answered) = oneshot::channel();
            self.asks.send(Ask { begun_after, answer }).await.ok()?;
            answered.await.ok()
        };
        match timeout(limit, asked).await {
            Ok(Some(family)) => family,
            Ok(None) => Err(KernelError::Failed("nobody reads /proc any more".to_owned())),
            Err(_) => Err(KernelError::Late(limit)),
        }
    }
}

fn read() -> std::io::Result<Family> {
    Family::read(elsewhere::stays)
}

/// Answers one question after another. If the kernel hangs in a reading, one thread hangs, and not one for each look.
async fn walk(mut asks: mpsc::Receiver<Ask>, read: fn() -> std::io::Result<Family>) {
    let mut last: Option<(Instant, Result<Arc<Family>, KernelError>)> = None;
    while let Some(Ask { begun_after, answer }) = asks.recv().await {
        let family = if let Some(known) = last.take().filter(|(began, _)| *began >= begun_after) {
            known
        } else {
            let began = Instant::now();
            let family = match tokio::task::spawn_blocking(read).await {
                Ok(family) => family.map(Arc::new).map_err(KernelError::from),
                Err(error) => Err(KernelError::Failed(error.to_string())),
            };
            (began, family)
        };
        // The caller may have given up waiting.
        let _ = answer.send(family.1.clone());
        last = Some(family);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_share_one_reading_and_none_gets_an_older_one_than_it_wants() {
        static READINGS: AtomicU32 = AtomicU32::new(0);
        let (asks, asked) = mpsc::channel(ASKS_LIMIT);
        let read = || {
            READINGS.fetch_add(1, Ordering::Relaxed);
            Ok(Family::default())
        };
        let walker = Walker { asks, _task: Arc::new(OwnedTask::spawn(walk(asked, read))) };
        let limit = Duration::from_secs(1);
        for _ in 0..300 {
            walker.family(Duration::from_millis(500), limit).await.expect("read");
        }
        assert_eq!(READINGS.load(Ordering::Relaxed), 1);
        tokio::time::advance(Duration::from_millis(400)).await;
        walker.family(Duration::from_millis(500), limit).await.expect("read");
        assert_eq!(READINGS.load(Ordering::Relaxed), 1);
        walker.family(Duration::from_millis(300), limit).await.expect("read");
        assert_eq!(READINGS.load(Ordering::Relaxed), 2);
    }
}
