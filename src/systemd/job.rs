//! Jobs: no other module queues a job and awaits its end.
//!
//! PID 1 only queues what it is asked for. It tells of the end of a job by a signal, which can be lost and says little
//! about the unit. So the wait here ends by the signal or by a look at the unit from time to time, and the caller reads
//! what became of the unit.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Systemd;
use super::error::BusError;
use super::job_ends::Ears;
use super::link::Link;
use super::properties::{Invocation, QueuedJob, UnitState, job_of};
use super::proxy::{Setting, UNIT, object};

/// The time until a job is looked at first, should its signal be lost. It doubles with each look, up to `POLL_MAX`.
const POLL_MIN: Duration = Duration::from_secs(1);
const POLL_MAX: Duration = Duration::from_secs(16);

/// How long after an answer a signal may be heard that was sent before it.
const SIGNAL_LAG: Duration = Duration::from_millis(100);

/// How the wait for a job ended. No variant says what the unit does now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEnd {
    /// The job ended; the result in systemd's word, such as `done`, `failed`, `canceled`, `timeout`, `dependency`.
    Ended(String),
    /// The job is no longer queued, and its signal was lost.
    Vanished,
    /// The time limit came first: the job is still queued.
    StillQueued,
    /// The unit is not loaded, so there was nothing to stop.
    NotLoaded,
}

/// What PID 1 is asked to do.
pub(super) enum Order<'a> {
    Start(&'a str),
    Stop(&'a str),
    Transient(&'a str, &'a [Setting]),
}

impl Order<'_> {
    fn unit(&self) -> &str {
        match self {
            Self::Start(unit) | Self::Stop(unit) | Self::Transient(unit, _) => unit,
        }
    }
}

impl Systemd {
    /// Queues a job and awaits its end, until `deadline` at the latest. `id` is the unit's own name, as it appears in
    /// signals. `before` is the invocation before the order: another one shows that an unanswered order took effect.
    pub(super) async fn carry_out(
        &self,
        order: &Order<'_>,
        id: &str,
        before: Option<Invocation>,
        deadline: Instant,
    ) -> Result<JobEnd, BusError> {
        let (job_ends, path) = loop {
            let link = self.link_by(deadline).await?;
            // `queue` listens before it asks: the job may end before its number is known.
            match self.queue(order, id, &link).await {
                Ok(queued) => break queued,
                Err(error) if error.is_unreachable() && Instant::now() < deadline => {}
                Err(error) if error.is_no_such_unit() && matches!(order, Order::Stop(_)) => {
                    return Ok(JobEnd::NotLoaded);
                }
                Err(error) => return Err(error),
            }
            // Nobody answered, but the order may have arrived. A second stop does no harm, a second start does.
            sleep(SIGNAL_LAG).await;
            if !matches!(order, Order::Stop(_)) {
                let job_ends = self.link_by(deadline).await?.ends.of(id);
                let state = match self.state_by_name(order.unit()).await {
                    Err(error) if error.is_unreachable() && Instant::now() < deadline => continue,
                    other => other?,
                };
                match follow_up(&state, before) {
                    FollowUp::Await(job) => break (job_ends, job.path),
                    FollowUp::Over => return Ok(JobEnd::Vanished),
                    FollowUp::Again => {}
                }
            }
        };
        let end = self.await_end(job_ends, order.unit(), id, &path);
        timeout_at(deadline, end).await.unwrap_or(Ok(JobEnd::StillQueued))
    }

    /// The job that is queued for a unit; `None` if there is none.
    pub(super) async fn queued_job(&self, unit: &str) -> Result<Option<QueuedJob>, BusError> {
        Ok(job_of(&self.link().await?.property(&object(unit), UNIT, "Job").await?))
    }

    async fn queue(&self, order: &Order<'_>, id: &str, link: &Link) -> Result<(Ears, String), BusError> {
        let job_ends = link.ends.of(id);
        let path = match order {
            Order::Start(unit) => link.start_unit(unit).await?,
            Order::Stop(unit) => link.stop_unit(unit).await?,
            Order::Transient(unit, settings) => {
                let settings = settings.iter().map(|(name, value)| Ok((*name, value.try_clone()?)));
                let settings = settings.collect::<zbus::Result<Vec<Setting>>>()?;
                match &self.references {
                    Some(references) => references.start_transient_unit(unit, settings, self.purpose).await?,
                    None => link.start_transient_unit(unit, settings).await?,
                }
            }
        };
        Ok((job_ends, path.to_string()))
    }

    async fn await_end(&self, mut job_ends: Ears, unit: &str, id: &str, path: &str) -> Result<JobEnd, BusError> {
        let mut links = self.keeper.watch();
        links.mark_unchanged();
        let mut pause = POLL_MIN;
        loop {
            tokio::select! {
                result = job_ends.hear(path) => return Ok(JobEnd::Ended(result)),
                // The connection has changed: nobody heard of a job that ended while PID 1 was away.
                Ok(()) = links.changed() => {}
                () = sleep(pause) => pause = (pause * 2).min(POLL_MAX),
            }
            match self.queued_job(unit).await {
                Ok(Some(job)) if job.path == path => {}
                Ok(_) => {
                    let late = timeout(SIGNAL_LAG, job_ends.hear(path)).await;
                    return Ok(late.map_or(JobEnd::Vanished, JobEnd::Ended));
                }
                // PID 1 does not answer, as while it re-executes itself. A job outlives that.
                Err(error) if error.is_unreachable() => {}
                Err(error) => return Err(error),
            }
            if job_ends.are_deaf()
                && let Ok(link) = self.link().await
            {
                job_ends = link.ends.of(id);
            }
        }
    }
}

enum FollowUp {
    Await(QueuedJob),
    Over,
    Again,
}

fn follow_up(state: &UnitState, before: Option<Invocation>) -> FollowUp {
    match &state.job {
        Some(job) => FollowUp::Await(job.clone()),
        None if state.invocation.is_some() && state.invocation != before => FollowUp::Over,
        None => FollowUp::Again,
    }
}
