//! Jobs: the only place that queues one, and awaits its end.
//!
//! PID 1 only queues what it is asked for. The end of a job is told by a signal that can be lost, and says little about
//! the unit; so the signal and a look at the unit about each second both end the waiting here, and what became of the
//! unit is for the caller to read.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use zbus::{MatchRule, Message, OwnedObjectPath};

use super::Systemd;
use super::link::{BusError, Link, OwnedTask};
use super::properties::{Invocation, QueuedJob, UnitState, job_of};
use super::proxy::{MANAGER, MANAGER_PATH, Setting, UNIT, object};

/// How often a job is looked at, should its signal be lost.
const POLL: Duration = Duration::from_secs(1);

/// A signal that was sent before an answer is heard this soon after it.
const SIGNAL_LAG: Duration = Duration::from_millis(100);

/// Jobs of one unit that ended while nobody asked for them: more than these are forgotten, oldest first.
const REMEMBERED: usize = 16;

/// How the waiting for a job ended. None of them says what the unit does now.
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

/// What PID 1 is asked for.
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

    async fn queue(&self, link: &Link) -> Result<String, BusError> {
        let manager = &link.manager;
        let path: OwnedObjectPath = match self {
            Self::Start(unit) => link.call(manager.start_unit(unit, "replace")).await?,
            Self::Stop(unit) => link.call(manager.stop_unit(unit, "replace")).await?,
            Self::Transient(unit, settings) => {
                link.call(manager.start_transient_unit(unit, "replace", settings, &[])).await?
            }
        };
        Ok(path.to_string())
    }
}

impl Systemd {
    /// Queues a job and awaits its end, `deadline` at the latest. `id` is the unit's own name, as it appears in
    /// signals, and `before` its invocation before: it tells whether an unanswered order took effect.
    pub(super) async fn carry_out(
        &self,
        order: &Order<'_>,
        id: &str,
        before: Option<Invocation>,
        deadline: Instant,
    ) -> Result<JobEnd, BusError> {
        let (ears, path) = loop {
            let link = self.keeper.link_by(deadline).await?;
            // The ears come first: the job may end before its number is known.
            match self.queue(order, id, &link).await {
                Ok(queued) => break queued,
                Err(error) if error.is_unreachable() && Instant::now() < deadline => {}
                Err(error) if error.is_no_such_unit() && matches!(order, Order::Stop(_)) => {
                    return Ok(JobEnd::NotLoaded);
                }
                Err(error) => return Err(error),
            }
            // Nobody answered: the order may have arrived all the same. Stopping twice is fine, starting twice is not.
            sleep(SIGNAL_LAG).await;
            if !matches!(order, Order::Stop(_)) {
                let link = self.keeper.link_by(deadline).await?;
                let ears = Ears::new(&link, id).await?;
                let state = match self.state_by_name(order.unit()).await {
                    Err(error) if error.is_unreachable() && Instant::now() < deadline => continue,
                    other => other?,
                };
                match follow_up(&state, before) {
                    FollowUp::Await(job) => break (ears, job.path),
                    FollowUp::Over => return Ok(JobEnd::Vanished),
                    FollowUp::Again => {}
                }
            }
        };
        let end = self.await_end(ears, order.unit(), id, &path);
        timeout_at(deadline, end).await.unwrap_or(Ok(JobEnd::StillQueued))
    }

    /// The job that is queued for a unit.
    pub(super) async fn queued_job(&self, unit: &str) -> Result<Option<QueuedJob>, BusError> {
        let link = self.keeper.link().await?;
        let properties = link.properties(&object(unit)).await?;
        Ok(job_of(&link.call(properties.get(UNIT, "Job")).await?))
    }

    async fn queue(&self, order: &Order<'_>, id: &str, link: &Link) -> Result<(Ears, String), BusError> {
        let ears = Ears::new(link, id).await?;
        let path = order.queue(link).await?;
        Ok((ears, path))
    }

    async fn await_end(&self, mut ears: Ears, unit: &str, id: &str, path: &str) -> Result<JobEnd, BusError> {
        loop {
            if let Ok(result) = timeout(POLL, ears.hear(path)).await {
                return Ok(JobEnd::Ended(result));
            }
            match self.queued_job(unit).await {
                Ok(Some(job)) if job.path == path => {}
                Ok(_) => {
                    let late = timeout(SIGNAL_LAG, ears.hear(path)).await;
                    return Ok(late.map_or(JobEnd::Vanished, JobEnd::Ended));
                }
                // PID 1 is away; a job outlives its re-execution.
                Err(error) if error.is_unreachable() => {}
                Err(error) => return Err(error),
            }
            if ears.are_deaf()
                && let Ok(link) = self.keeper.link().await
                && let Ok(new) = Ears::new(&link, id).await
            {
                ears = new;
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

/// The ends of one unit's jobs, as they are heard of. A task of its own drains them.
struct Ears {
    heard: watch::Receiver<VecDeque<(String, String)>>,
    _task: OwnedTask,
}

impl Ears {
    async fn new(link: &Link, id: &str) -> Result<Self, BusError> {
        // The bus filters by the unit: the end of a boot is thousands of jobs of others.
        let rule = MatchRule::builder()
            .msg_type(zbus::message::Type::Signal)
            .path(MANAGER_PATH)
            .interface(MANAGER)
            .member("JobRemoved")
            .arg(2, id.to_owned())
            .build()?;
        let mut signals = link.signals(rule).await?;
        let (tell, heard) = watch::channel(VecDeque::new());
        let task = OwnedTask::spawn(async move {
            while let Some(Ok(message)) = signals.next().await {
                if let Some(end) = removed(&message) {
                    tell.send_modify(|ends: &mut VecDeque<_>| {
                        ends.push_back(end);
                        if ends.len() > REMEMBERED {
                            ends.pop_front();
                        }
                    });
                }
            }
        });
        Ok(Self { heard, _task: task })
    }

    /// The result of a job, when it is heard of; never returns if it is not.
    async fn hear(&mut self, path: &str) -> String {
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

    /// Whether the connection they listened on is gone.
    fn are_deaf(&self) -> bool {
        self.heard.has_changed().is_err()
    }
}

fn removed(message: &Message) -> Option<(String, String)> {
    let body = message.body();
    let (_, job, _, result): (u32, OwnedObjectPath, String, String) = body.deserialize().ok()?;
    Some((job.to_string(), result))
}
