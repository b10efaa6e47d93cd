//! Jobs: no other module queues a job and awaits its end.
//!
//! PID 1 only queues what it is asked for. It tells of the end of a job by a signal, which can be lost and says little
//! about the unit. So the wait here ends by the signal or by a look at the unit from time to time, and the caller reads
//! what became of the unit.

use std::time::Duration;

use tokio::{
    sync::broadcast::{self, error::RecvError},
    time::{Instant, sleep, timeout, timeout_at},
};
use zbus::{Connection, OwnedObjectPath};

use super::{
    Systemd,
    changes::JobRemoved,
    error::BusError,
    interface::{MANAGER, MANAGER_PATH},
    link::{Pid1Link, Setting, ask, bounded},
    properties::Invocation,
};
use crate::task::lock;

/// The time until a job is looked at first, should its signal be lost. It doubles with each look, up to `POLL_MAX`.
const POLL_MIN: Duration = Duration::from_secs(1);
const POLL_MAX: Duration = Duration::from_secs(16);

/// How long after an answer a signal may be heard that was sent before it.
const SIGNAL_LAG: Duration = Duration::from_millis(100);

/// How the wait for a job ended. No variant says what the unit does now.
#[derive(Debug, PartialEq, Eq)]
pub enum JobEnd {
    /// There is no job any more; its result in systemd's word, such as `done`, `failed`, `canceled`, `timeout`, `dependency`,
    /// and empty where its signal was lost, or the unit is not loaded, so that there was nothing to stop.
    Ended(String),
    /// The time limit came first: the job is still queued.
    StillQueued,
}

/// What PID 1 is asked to do.
pub enum JobOrder<'a> {
    Start(&'a str),
    Stop(&'a str),
    /// Over the bus, because the settings ask for a reference, which PID 1 keeps for clients of the bus alone.
    Transient(&'a str, &'a [Setting], &'a Connection),
}

impl JobOrder<'_> {
    fn unit(&self) -> &str {
        match self {
            Self::Start(unit) | Self::Stop(unit) | Self::Transient(unit, ..) => unit,
        }
    }
}

impl Systemd {
    /// Queues a job and awaits its end, until `deadline` at the latest. `before` is the invocation before the order: another
    /// one shows that an unanswered order took effect.
    pub async fn carry_out(
        &self,
        order: &JobOrder<'_>,
        before: Option<Invocation>,
        deadline: Instant,
    ) -> Result<JobEnd, BusError> {
        // The job may end before its number is known.
        let ends = lock(&self.keeper.board).job_ends.subscribe();
        let job = loop {
            let link = self.keeper.link_by(deadline).await?;
            match self.queue(order, &link).await {
                Ok(job) => break job,
                Err(error) if error.is_unreachable() && Instant::now() < deadline => {}
                Err(error) if error.is_no_such_unit() && matches!(order, JobOrder::Stop(_)) => {
                    return Ok(JobEnd::Ended(String::new()));
                }
                Err(error) => return Err(error),
            }
            // Nobody answered, but the order may have arrived. A second stop does no harm, a second start does.
            sleep(SIGNAL_LAG).await;
            if !matches!(order, JobOrder::Stop(_)) {
                let state = match self.read(order.unit()).await {
                    Err(error) if error.is_unreachable() && Instant::now() < deadline => continue,
                    other => other?.state(),
                };
                if let Some(job) = state.job {
                    break job;
                }
                if state.is_new(before) {
                    return Ok(JobEnd::Ended(String::new()));
                }
            }
        };
        timeout_at(deadline, self.await_end(ends, order.unit(), job))
            .await
            .unwrap_or(Ok(JobEnd::StillQueued))
    }

    async fn queue(&self, order: &JobOrder<'_>, link: &Pid1Link) -> Result<u32, BusError> {
        let object: OwnedObjectPath = match order {
            JobOrder::Start(unit) => queue(link, "StartUnit", unit).await?,
            JobOrder::Stop(unit) => queue(link, "StopUnit", unit).await?,
            JobOrder::Transient(unit, settings, bus) => {
                let no_other_units: Vec<(&str, Vec<Setting>)> = Vec::new();
                let body = (*unit, "replace", settings, no_other_units);
                let call = ask(bus, MANAGER_PATH, MANAGER, "StartTransientUnit", &body);
                bounded(self.keeper.call_limit, call).await?
            }
        };
        let number = object.as_str().rsplit('/').next().unwrap_or_default();
        let no_job = |_| BusError::Malformed(format!("{object} is no job"));
        number.parse().map_err(no_job)
    }

    async fn await_end(
        &self,
        mut ends: broadcast::Receiver<JobRemoved>,
        unit: &str,
        job: u32,
    ) -> Result<JobEnd, BusError> {
        let mut links = self.keeper.newest.clone();
        links.mark_unchanged();
        let mut pause = POLL_MIN;
        loop {
            tokio::select! {
                result = result_of(&mut ends, job) => return Ok(JobEnd::Ended(result)),
                // The connection has changed: nobody heard of a job that ended while PID 1 was away.
                Ok(()) = links.changed() => {}
                () = sleep(pause) => pause = (pause * 2).min(POLL_MAX),
            }
            let row = async { self.link().await?.row(unit).await };
            match row.await {
                Ok((.., queued, _, _)) if queued == job => {}
                Ok(_) => {
                    let late = timeout(SIGNAL_LAG, result_of(&mut ends, job)).await;
                    return Ok(JobEnd::Ended(late.unwrap_or_default()));
                }
                // PID 1 does not answer, as while it re-executes itself. A job outlives that.
                Err(error) if error.is_unreachable() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Waits for the result of a job. Never returns if its end is not heard.
async fn result_of(ends: &mut broadcast::Receiver<JobRemoved>, job: u32) -> String {
    loop {
        match ends.recv().await {
            Ok((ended, result)) if ended == job => return result,
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Queues a job for a unit, and returns its object.
pub async fn queue(
    link: &Pid1Link,
    method: &'static str,
    unit: &str,
) -> Result<OwnedObjectPath, BusError> {
    link.manager(method, (unit.to_owned(), "replace")).await
}
