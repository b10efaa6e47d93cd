//! Starting and stopping units.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Systemd;
use super::error::BusError;
use super::gate::{self, Trouble};
use super::job::{JobEnd, Order};
use super::prepared_start::Prepared;
use super::properties::{Invocation, Properties, UnitState, Unmet};
use super::stranger::Stranger;
use crate::types::span::rounded;
use crate::types::{ServiceName, UnitName};

/// The interval at which a unit is looked at whose job is done and which is not yet started.
const POLL: Duration = Duration::from_millis(100);
/// For how long a PID 1 that answers late, as it does when it has many units to start, is asked again before a start is
/// given up of which nothing has begun. Another host may do better.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// After how many automatic restarts, with no service time in between, a unit has failed: systemd's own default for
/// StartLimitBurst=.
pub const RESTARTS_LIMIT: u32 = 5;

/// A unit that was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// The run that the start began.
    pub invocation: Invocation,
    /// The state of the unit when it was seen to be started.
    pub state: UnitState,
}

/// Why a unit is not known to be started. After any of these variants but the first eight something of the unit may run:
/// stop it, and prove it dead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// systemd has no such unit, or cannot use it.
    #[error("{unit} is {load_state}{}{load_error}", if load_error.is_empty() { "" } else { ": " })]
    NotLoaded {
        /// The unit.
        unit: String,
        /// Its LoadState.
        load_state: String,
        /// The error with which it was loaded; empty if there was none.
        load_error: String,
    },
    /// The unit could be started without the lease.
    #[error("{unit} {trouble}; {remedy}")]
    Ungated {
        /// The unit.
        unit: String,
        /// What the unit lacks.
        trouble: String,
        /// What the operator should do.
        remedy: String,
    },
    /// The start would end a unit of another service, which runs on this host.
    #[error("{unit} {trouble}: {remedy}")]
    Rival {
        /// The unit.
        unit: String,
        /// What it would end.
        trouble: String,
        /// What the operator should do.
        remedy: String,
    },
    /// systemd refused to keep the unit loaded, and so may forget how its start goes. For a unit that can be active
    /// without a process that is a part of the proof.
    #[error(
        "{unit} is not started; see why systemd refuses to keep it loaded, without which nobody would know how its start went: \
         {error}"
    )]
    NotKept {
        /// The unit.
        unit: String,
        /// Why systemd has not taken a reference to it.
        error: BusError,
    },
    /// The unit is dead, and systemd counts it as frozen, which it does until it forgets the unit. It forgets none that another
    /// unit wants.
    #[error("reboot this host: systemd counts {0} as frozen, although nothing of it runs, and starts no frozen unit")]
    Frozen(String),
    /// The host is going down, which is no failure of the unit.
    #[error("the host is shutting down")]
    ShuttingDown,
    /// Conditions that do not hold, so that systemd skipped the start and called it done.
    #[error("skipped by systemd, because {0} does not hold")]
    Condition(String),
    /// Assertions that do not hold.
    #[error("refused by systemd, because {0} does not hold")]
    Assert(String),
    /// The unit was running before, by a start of somebody else.
    #[error("it was {0} before")]
    AlreadyRunning(String),
    /// The limit passed before the unit was started. Its job may still be queued.
    #[error("not started within {}: it is {state}", rounded(*.limit))]
    TimedOut {
        /// The limit.
        limit: Duration,
        /// The unit's state.
        state: String,
    },
    /// systemd has restarted the unit so often by itself, and it was not seen active.
    #[error("systemd has restarted it {0} times in vain: it is {1}")]
    Restarts(u32, String),
    /// The unit was started and ended at once, as a oneshot does that does not remain after exit.
    #[error("it ended as soon as it was started: it is {0}")]
    Ended(String),
    /// systemd takes a process that is not the unit's for its main process.
    #[error("{0}")]
    Misled(Box<Stranger>),
    /// The start failed.
    #[error("{}it is {state}", if job.is_empty() { String::new() } else { format!("its job ended as {job:?}, and ") })]
    Failed {
        /// The job's result; empty when the signal of its end was not heard.
        job: String,
        /// The unit's state, and how its process ended.
        state: String,
    },
    /// systemd refused a call, or the outcome is unknown.
    #[error(transparent)]
    Bus(BusError),
}

impl From<BusError> for StartError {
    fn from(error: BusError) -> Self {
        if error.is_shutting_down() { Self::ShuttingDown } else { Self::Bus(error) }
    }
}

impl Systemd {
    /// Starts a unit and waits until it is started: ActiveState says so, with an InvocationID that it did not have
    /// before. `limit` is for all of it; time in suspend does not count.
    ///
    /// What "started" means depends on the type of the unit: the process runs (`simple`, `exec`), has told so (`notify`,
    /// `dbus`), has gone to the background (`forking`), has ended well (oneshot that remains after exit), the mount is
    /// there, the socket listens, the timer waits.
    pub async fn start(&self, unit: &UnitName, limit: Duration) -> Result<Started, StartError> {
        self.start_if(unit, limit, |_| Ok(())).await
    }

    /// As [`start`](Self::start), but only if the unit is bound to the lease of `service` as PID 1 has it loaded now: a
    /// daemon-reload may have changed that since the unit was admitted.
    pub async fn start_with_lease(
        &self,
        unit: &UnitName,
        service: &ServiceName,
        limit: Duration,
    ) -> Result<Started, StartError> {
        let is_gated = |properties: &Properties| {
            gate::check(properties, service).map_err(|Trouble { trouble, remedy }| StartError::Ungated {
                unit: unit.to_string(),
                trouble,
                remedy,
            })
        };
        self.start_if(unit, limit, is_gated).await
    }

    async fn start_if(
        &self,
        unit: &UnitName,
        limit: Duration,
        check: impl Fn(&Properties) -> Result<(), StartError>,
    ) -> Result<Started, StartError> {
        let deadline = Instant::now() + limit;
        // The unit is kept loaded. Otherwise systemd could unload it and forget why it did not start, and what the proof
        // needs if the unit is stopped in the middle of its start.
        let place = self.tracked.start().await;
        let (ready, pin) = match self.prepared(unit) {
            Some(Prepared { properties, pin, .. }) => (Some(properties), pin),
            None => (None, None),
        };
        let (under_way, kept) = self.begin(unit, pin).await;
        let check = |properties: &Properties| {
            check(properties)?;
            check_kept(unit, properties.is_effect(), kept.clone())
        };
        let mut is_effect = false;
        let result = self.start_held(unit, ready, limit, deadline, check, &mut is_effect).await;
        let may_be_half_way = match &result {
            Ok(_)
            | Err(
                StartError::NotLoaded { .. }
                | StartError::Ungated { .. }
                | StartError::Rival { .. }
                | StartError::NotKept { .. }
                | StartError::Frozen(_)
                | StartError::ShuttingDown
                | StartError::Condition(_)
                | StartError::Assert(_)
                | StartError::AlreadyRunning(_),
            ) => false,
            Err(
                StartError::TimedOut { .. }
                | StartError::Restarts(..)
                | StartError::Ended(_)
                | StartError::Misled(_)
                | StartError::Failed { .. }
                | StartError::Bus(_),
            ) => true,
        };
        drop(under_way);
        // For a unit of processes alone the proof does not need the end of the start.
        if !(may_be_half_way && is_effect) {
            self.end_start(unit).await;
        }
        drop(place);
        result
    }

    async fn start_held(
        &self,
        unit: &UnitName,
        ready: Option<Properties>,
        limit: Duration,
        deadline: Instant,
        check: impl Fn(&Properties) -> Result<(), StartError>,
        is_effect: &mut bool,
    ) -> Result<Started, StartError> {
        let patient_until = deadline.min(Instant::now() + PATIENCE);
        let (properties, is_ready) = match ready {
            Some(properties) => (properties, true),
            None => (insist(patient_until, || self.read_settings(unit.as_str())).await?, false),
        };
        let properties = if properties.is_frozen() && properties.state().active_state.is_stopped() {
            self.forget_frozen(unit, properties.is_effect(), patient_until).await?
        } else {
            properties
        };
        let before = properties.state();
        *is_effect = before.is_effect;
        if before.load_state != "loaded" {
            let (load_state, load_error) = (before.load_state, before.load_error);
            return Err(StartError::NotLoaded { unit: unit.to_string(), load_state, load_error });
        }
        check(&properties)?;
        if !before.active_state.is_stopped() {
            return Err(StartError::AlreadyRunning(before.in_words()));
        }
        if let Some(rival) = insist(patient_until, || self.running_rival(&properties)).await? {
            let Trouble { trouble, remedy } = rival.trouble();
            return Err(StartError::Rival { unit: unit.to_string(), trouble, remedy });
        }
        // The counters of systemd's start limit are not meant for starts that follow the death of another host.
        if !is_ready {
            insist(patient_until, || self.reset_failed(unit.as_str())).await?;
        }
        let order = Order::Start(unit.as_str());
        let end = self.carry_out(&order, &before.id, before.invocation, deadline).await?;
        self.verify(unit, &before, &end, deadline, limit).await
    }

    /// Has systemd forget a unit that died while it was frozen, because it would refuse the start, and reads the unit anew. systemd
    /// thaws no unit that is dead, and forgets one only if nobody holds a reference.
    async fn forget_frozen(
        &self,
        unit: &UnitName,
        is_effect: bool,
        patient_until: Instant,
    ) -> Result<Properties, StartError> {
        self.end_start(unit).await;
        insist(patient_until, || self.reset_failed(unit.as_str())).await?;
        check_kept(unit, is_effect, self.keep(unit, true).await)?;
        let properties = insist(patient_until, || self.read_settings(unit.as_str())).await?;
        if properties.is_frozen() { Err(StartError::Frozen(unit.to_string())) } else { Ok(properties) }
    }

    /// Queues a stop and waits for the end of its job, which does not show that the unit is dead:
    /// [`prove_dead`](Self::prove_dead) does.
    pub async fn stop(&self, unit: &UnitName, limit: Duration) -> Result<JobEnd, BusError> {
        let deadline = Instant::now() + limit;
        self.mounts.doubt(unit);
        let id = self.id(unit).await?;
        self.carry_out(&Order::Stop(unit.as_str()), &id, None, deadline).await
    }

    async fn verify(
        &self,
        unit: &UnitName,
        before: &UnitState,
        end: &JobEnd,
        deadline: Instant,
        limit: Duration,
    ) -> Result<Started, StartError> {
        let job = match end {
            JobEnd::Ended(result) => result.as_str(),
            JobEnd::StillQueued => {
                return Err(StartError::TimedOut { limit, state: self.state(unit).await?.in_words() });
            }
            JobEnd::Vanished | JobEnd::NotLoaded => "",
        };
        loop {
            let properties = insist(deadline, || self.read(unit.as_str())).await?;
            let state = properties.state();
            let new = state.invocation.filter(|run| Some(*run) != before.invocation);
            match new {
                Some(invocation) if state.active_state.is_started() => {
                    let stranger = self.stranger(&properties).await;
                    return stranger.map_or(Ok(Started { invocation, state }), |stranger| {
                        Err(StartError::Misled(Box::new(stranger)))
                    });
                }
                Some(_) if state.restarts >= RESTARTS_LIMIT => {
                    return Err(StartError::Restarts(state.restarts, state.in_full()));
                }
                // The unit is between two automatic restarts, or has a job later than ours: it gets the time that is
                // left.
                Some(_) if matches!(job, "done" | "") && state.may_run() => {}
                Some(_) => return Err(why(&state, new, job, &Unmet::default())),
                None => return Err(why(&state, None, job, &insist(deadline, || self.unmet(unit)).await?)),
            }
            if Instant::now() >= deadline {
                return Err(StartError::TimedOut { limit, state: state.in_words() });
            }
            sleep(POLL).await;
        }
    }
}

/// Repeats a call while PID 1 is unreachable, until `deadline`. For calls that may be made twice only.
pub async fn insist<T, F>(deadline: Instant, mut ask: impl FnMut() -> F) -> Result<T, BusError>
where
    F: Future<Output = Result<T, BusError>>,
{
    loop {
        match ask().await {
            Err(error) if error.is_unreachable() && Instant::now() < deadline => sleep(POLL).await,
            answer => return answer,
        }
    }
}

/// Fails if a unit that can be active without a process is not kept loaded. A unit of processes alone is proven dead by
/// its control group, whatever systemd forgets.
fn check_kept(unit: &UnitName, is_effect: bool, kept: Result<(), BusError>) -> Result<(), StartError> {
    match kept {
        Err(error) if is_effect => Err(StartError::NotKept { unit: unit.to_string(), error }),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn why(state: &UnitState, new: Option<Invocation>, job: &str, unmet: &Unmet) -> StartError {
    if !unmet.all.is_empty() {
        let words = unmet.all.join(", ");
        return if unmet.is_asserted { StartError::Assert(words) } else { StartError::Condition(words) };
    }
    if state.result.as_deref() == Some("exec-condition") {
        return StartError::Condition(state.exit.clone());
    }
    let words = state.in_full();
    if new.is_some() && job == "done" {
        return StartError::Ended(words);
    }
    StartError::Failed { job: job.to_owned(), state: words }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_answers_late_is_asked_again_until_the_deadline_and_who_refuses_is_not() {
        let asked = Cell::new(0);
        let late = || BusError::Unreachable("no answer".to_owned());
        let deadline = Instant::now() + Duration::from_secs(2);
        let answer = insist(deadline, async || {
            asked.set(asked.get() + 1);
            if asked.get() < 5 { Err(late()) } else { Ok(asked.get()) }
        });
        assert_eq!(answer.await, Ok(5));
        let never: Result<(), _> = insist(deadline, async || Err(late())).await;
        assert_eq!(never, Err(late()));
        assert!(Instant::now() >= deadline);
        let refusal = BusError::Refused { name: "a.b".to_owned(), message: "no".to_owned() };
        let before = Instant::now();
        let refused: Result<(), _> = insist(before + PATIENCE, async || Err(refusal.clone())).await;
        assert_eq!((refused, before.elapsed()), (Err(refusal), Duration::ZERO));
    }

    #[test]
    fn what_systemd_may_forget_is_not_started_if_it_can_be_active_without_a_process() {
        let unit = UnitName::new("address.service").expect("a unit's name");
        let refused = || {
            let name = "org.freedesktop.DBus.Error.AccessDenied".to_owned();
            Err(BusError::Refused { name, message: "it may not".to_owned() })
        };
        assert_eq!(check_kept(&unit, true, Ok(())), Ok(()));
        assert_eq!(check_kept(&unit, false, refused()), Ok(()));
        let error = check_kept(&unit, true, refused()).expect_err("nobody would know how it went").to_string();
        assert!(
            error.starts_with("address.service is not started; see why") && error.contains("it may not"),
            "{error}"
        );
    }
}
