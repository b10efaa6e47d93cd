//! A simulated PID 1 with one unit and its lease target: states, jobs, the gate, `Restart=`, processes.

use std::{collections::BTreeSet, time::Duration};

use futures_util::stream::poll_fn;
use putexd::{
    guard_client::grant,
    host::processes::{Members, Process},
    systemd::{
        ActiveState, BusError, ChangeHints, CheckCommand, CheckUser, CheckUserError, Invocation,
        JobEnd, KernelError, Look, Manager, ManagerFuture, NotDead, OutsideWork, Placement,
        PreparedStart, Refusal, RunResult, Surroundings, UnitState,
    },
    types::{FENCING_TOKEN, FencingToken, ServiceName, UnitName},
};
use rustix::process::Signal;
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};

use crate::world::{Deed, Sim, World, as_millis};

/// The time between two starts by hand.
const BY_HAND: Duration = Duration::from_millis(40);
/// How long a call over the bus waits for a PID 1 that does not answer.
const BUS_LIMIT: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Dead,
    Failed,
    /// The start was accepted, and there are no processes yet.
    Queued,
    Starting,
    Running,
    Stopping,
    /// systemd waits for RestartSec= before it starts the unit again.
    Restarting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobKind {
    Start,
    Stop,
}

struct Job {
    number: u32,
    kind: JobKind,
    /// They get the result of the job, as systemd names it.
    waiters: Vec<oneshot::Sender<&'static str>>,
}

/// The unit and its lease target, with the jobs of the unit.
#[derive(Default)]
pub struct Unit {
    phase: Phase,
    /// Whether there are processes in its control group.
    pub alive: bool,
    /// The slice with the control group of the processes, and the slice of the next start.
    slice: u64,
    pub next_slice: u64,
    /// Counts the starts, each of which is a life of the unit.
    pub life: u64,
    /// Whether SIGKILL was sent to this life of the unit.
    killed: bool,
    job: Option<Job>,
    jobs: u32,
    invocation: Option<Invocation>,
    lease_active: bool,
    listeners: Vec<mpsc::Sender<()>>,
    reload_listeners: Vec<mpsc::Sender<()>>,
}

/// Tells each listener that something has changed.
fn tell(listeners: &mut Vec<mpsc::Sender<()>>) {
    // A full channel has a hint in it already.
    listeners.retain(|listener| {
        !matches!(
            listener.try_send(()),
            Err(mpsc::error::TrySendError::Closed(()))
        )
    });
}

/// The hints of a listener that is added to `listeners`.
fn listen(listeners: &mut Vec<mpsc::Sender<()>>) -> ChangeHints {
    let (hint, mut hints) = mpsc::channel(1);
    listeners.push(hint);
    Box::pin(poll_fn(move |context| hints.poll_recv(context)))
}

impl Unit {
    pub fn of_next_boot(&self) -> Self {
        Self {
            life: self.life + 1,
            ..Self::default()
        }
    }

    fn may_run(&self) -> bool {
        self.job.is_some() || !matches!(self.phase, Phase::Dead | Phase::Failed)
    }

    fn changed(&mut self) {
        tell(&mut self.listeners);
    }

    fn end_job(&mut self, result: &'static str) {
        if let Some(job) = self.job.take() {
            for waiter in job.waiters {
                // The caller may have given up.
                let _ = waiter.send(result);
            }
        }
    }

    fn placement(&self, name: &UnitName) -> Placement {
        let mut groups: Vec<String> = self
            .alive
            .then(|| group(name, self.slice))
            .into_iter()
            .collect();
        groups.push(group(name, self.next_slice));
        groups.dedup();
        Placement {
            groups,
            processes: Vec::new(),
            is_effect: false,
        }
    }

    fn state(&self, name: &UnitName) -> UnitState {
        let active_state = match self.phase {
            Phase::Dead => ActiveState::Inactive,
            Phase::Failed => ActiveState::Failed,
            Phase::Queued | Phase::Starting | Phase::Restarting => ActiveState::Activating,
            Phase::Running => ActiveState::Active,
            Phase::Stopping => ActiveState::Deactivating,
        };
        let result = if self.phase == Phase::Failed {
            "exit-code"
        } else {
            "success"
        };
        UnitState {
            load_state: "loaded".to_owned(),
            active_state,
            sub_state: format!("{:?}", self.phase).to_lowercase(),
            result: Some(result.to_owned()),
            job: self.job.as_ref().map(|job| job.number),
            control_group: if self.alive {
                group(name, self.slice)
            } else {
                String::new()
            },
            invocation: self.invocation,
            ..UnitState::default()
        }
    }
}

fn check_dead(state: UnitState) -> Result<UnitState, NotDead> {
    if !state.active_state.is_stopped() {
        return Err(NotDead::Running(state.in_words()));
    }
    if let Some(job) = &state.job {
        return Err(NotDead::JobQueued {
            job: *job,
            state: state.in_words(),
        });
    }
    if state.control_group.is_empty() {
        Ok(state)
    } else {
        Err(NotDead::ProcessesLeft(state.control_group))
    }
}

fn group(unit: &UnitName, slice: u64) -> String {
    format!("/{slice}.slice/{unit}")
}

/// The state of PID 1, and the calls that it has not executed.
#[derive(Default)]
pub struct Calls {
    /// How long a call waits at most until it is sent, behind those of other services.
    pub crowd: Duration,
    /// PID 1 stands still. It executes what is sent to it when it goes on.
    pub hangs: bool,
    due: Vec<Deed>,
}

/// The actions of PID 1.
impl World {
    /// Sends a call to PID 1. `Err`: it is refused and will not be executed.
    fn send(
        &mut self,
        h: usize,
        latency: Duration,
        call: impl FnOnce(&mut World) + Send + 'static,
    ) -> Result<(), BusError> {
        let is_crowded = !self.hosts[h].pid1.crowd.is_zero();
        if is_crowded && self.chance(20) {
            let name = "org.freedesktop.DBus.Error.LimitsExceeded".to_owned();
            return Err(BusError::Refused {
                name,
                message: "too many calls wait".to_owned(),
            });
        }
        if self.hosts[h].bus_up {
            self.on_host(h, latency, move |world| world.arrive_at_pid1(h, call));
        }
        Ok(())
    }

    /// PID 1 executes a call now, or when it goes on.
    pub fn arrive_at_pid1(&mut self, h: usize, call: impl FnOnce(&mut World) + Send + 'static) {
        let pid1 = &mut self.hosts[h].pid1;
        if pid1.hangs {
            pid1.due.push(Box::new(call));
        } else {
            call(self);
        }
    }

    /// PID 1 goes on, and executes what has become due meanwhile, in that order.
    pub fn pid1_goes_on(&mut self, h: usize) {
        let pid1 = &mut self.hosts[h].pid1;
        pid1.hangs = false;
        for deed in std::mem::take(&mut pid1.due) {
            deed(self);
        }
    }

    /// Whether the control group `path` has processes.
    pub fn is_populated(&self, h: usize, path: &str) -> bool {
        let unit = &self.hosts[h].unit;
        unit.alive && path == group(&self.unit, unit.slice)
    }

    fn queue(&mut self, h: usize, kind: JobKind) -> oneshot::Receiver<&'static str> {
        let (waiter, end) = oneshot::channel();
        let unit = &mut self.hosts[h].unit;
        match &mut unit.job {
            Some(job) if job.kind == kind => job.waiters.push(waiter),
            _ => {
                unit.end_job("canceled");
                unit.jobs += 1;
                unit.job = Some(Job {
                    number: unit.jobs,
                    kind,
                    waiters: vec![waiter],
                });
                let latency = self.millis(1, 20);
                let number = self.hosts[h].unit.jobs;
                self.on_host(h, latency, move |world| world.run_job(h, number));
            }
        }
        end
    }

    fn run_job(&mut self, h: usize, number: u32) {
        let pid1 = &mut self.hosts[h].pid1;
        if pid1.hangs {
            pid1.due
                .push(Box::new(move |world| world.run_job(h, number)));
            return;
        }
        let unit = &self.hosts[h].unit;
        let Some(kind) = unit
            .job
            .as_ref()
            .filter(|job| job.number == number)
            .map(|job| job.kind)
        else {
            return;
        };
        match (kind, unit.phase) {
            (JobKind::Start, Phase::Dead | Phase::Failed | Phase::Restarting) => {
                self.carry_out_start(h)
            }
            // The job is under way already. A start waits for the end of a stop.
            (JobKind::Start, Phase::Queued | Phase::Starting | Phase::Stopping)
            | (JobKind::Stop, Phase::Stopping) => {}
            (JobKind::Start, Phase::Running) => self.hosts[h].unit.end_job("done"),
            (JobKind::Stop, Phase::Starting | Phase::Running) => self.begin_stop(h),
            (JobKind::Stop, Phase::Dead | Phase::Failed | Phase::Queued | Phase::Restarting) => {
                self.hosts[h].unit.phase = Phase::Dead;
                self.hosts[h].unit.end_job("done");
                self.hosts[h].unit.changed();
            }
        }
    }

    /// Starts the unit: first the assertions, then the `ExecCondition=`, then the program itself.
    fn carry_out_start(&mut self, h: usize) {
        if self.hosts[h].guard.grant.is_none() {
            self.note(Some(h), "systemd: the start is refused: there is no grant");
            self.refuse_start(h, "assert");
            return;
        }
        let unit = &mut self.hosts[h].unit;
        unit.phase = Phase::Queued;
        unit.lease_active = true;
        unit.life += 1;
        unit.killed = false;
        unit.changed();
        let life = unit.life;
        let gate = self.millis(1, 15);
        self.on_host(h, gate, move |world| {
            let unit = &world.hosts[h].unit;
            if unit.life == life && unit.phase == Phase::Queued {
                world.pass_the_gate(h);
            }
        });
    }

    fn refuse_start(&mut self, h: usize, result: &'static str) {
        let unit = &mut self.hosts[h].unit;
        unit.phase = Phase::Dead;
        unit.end_job(result);
        unit.changed();
    }

    fn pass_the_gate(&mut self, h: usize) {
        let now = self.clock(h);
        let text = self.hosts[h].guard.grant.clone().unwrap_or_default();
        let token = text
            .lines()
            .find_map(|line| line.strip_prefix(FENCING_TOKEN)?.strip_prefix('='))
            .unwrap_or_default();
        if let Err(error) = grant::judge(&text, token, now) {
            self.note(Some(h), &format!("systemd: the start is skipped: {error}"));
            self.refuse_start(h, "condition");
            return;
        }
        let token = FencingToken(token.parse().expect("a number"));
        let invocation = Invocation(self.random());
        let unit = &mut self.hosts[h].unit;
        unit.phase = Phase::Starting;
        unit.alive = true;
        unit.slice = unit.next_slice;
        unit.invocation = Some(invocation);
        unit.changed();
        let life = unit.life;
        self.note(Some(h), &format!("the unit starts, with token {token}"));
        self.judge_token(h, token);
        self.judge();
        let takes = self.hosts[h].start_takes;
        self.on_host(h, takes, move |world| {
            let unit = &world.hosts[h].unit;
            if unit.life != life || unit.phase != Phase::Starting {
                return;
            }
            if world.hosts[h].starts_fail {
                world.note(Some(h), "the start fails");
                world.unit_dies(h, life);
                return;
            }
            let unit = &mut world.hosts[h].unit;
            unit.phase = Phase::Running;
            unit.end_job("done");
            unit.changed();
        });
    }

    /// Sends SIGTERM, and SIGKILL when the unit's own time for a stop is over.
    fn begin_stop(&mut self, h: usize) {
        let (takes, limit) = (self.hosts[h].stop_takes, self.hosts[h].scene.stop_timeout);
        let unit = &mut self.hosts[h].unit;
        unit.phase = Phase::Stopping;
        unit.changed();
        let life = unit.life;
        self.note(Some(h), "the unit is being stopped");
        if let Some(takes) = takes {
            self.on_host(h, takes, move |world| world.main_process_ends(h, life));
        }
        self.on_host(h, limit, move |world| {
            let unit = &world.hosts[h].unit;
            if unit.life == life && unit.phase == Phase::Stopping {
                world.kill_unit(h);
            }
        });
    }

    /// Sends SIGKILL to everything in the control group.
    pub fn kill_unit(&mut self, h: usize) {
        let takes = self.hosts[h].scene.kill_takes;
        let unit = &mut self.hosts[h].unit;
        if !unit.alive || std::mem::replace(&mut unit.killed, true) {
            return;
        }
        let life = unit.life;
        self.note(Some(h), "SIGKILL is sent to the unit");
        if !self.hosts[h].ignores_sigkill {
            self.on_host(h, takes, move |world| world.unit_dies(h, life));
        }
    }

    /// From now on SIGKILL has its effect, also one that was sent before.
    pub fn heed_sigkill(&mut self, h: usize) {
        let host = &mut self.hosts[h];
        let was_ignored = std::mem::replace(&mut host.ignores_sigkill, false);
        if was_ignored && std::mem::replace(&mut host.unit.killed, false) {
            self.kill_unit(h);
        }
    }

    pub fn unit_crashes(&mut self, h: usize) {
        if self.hosts[h].unit.alive {
            self.note(Some(h), "the unit crashes");
            let life = self.hosts[h].unit.life;
            self.unit_dies(h, life);
        }
    }

    /// Ends an orderly stop. Processes may be left in the control group.
    fn main_process_ends(&mut self, h: usize, life: u64) {
        let left = self.hosts[h].leaves;
        let unit = &mut self.hosts[h].unit;
        if left.is_zero() || unit.life != life || !unit.alive || unit.phase != Phase::Stopping {
            self.unit_dies(h, life);
            return;
        }
        unit.phase = Phase::Dead;
        unit.end_job("done");
        unit.changed();
        self.note(Some(h), "the unit's main process ends, others are left");
        self.on_host(h, left, move |world| world.unit_dies(h, life));
    }

    /// Removes the last processes of this life of the unit.
    fn unit_dies(&mut self, h: usize, life: u64) {
        let restart = self.hosts[h].scene.restart;
        let unit = &mut self.hosts[h].unit;
        if unit.life != life || !unit.alive {
            return;
        }
        unit.alive = false;
        let phase = unit.phase;
        unit.phase = match (phase, restart) {
            (Phase::Stopping | Phase::Dead, _) => Phase::Dead,
            (Phase::Starting | Phase::Running, Some(_)) => Phase::Restarting,
            _ => Phase::Failed,
        };
        self.note(Some(h), "the unit is dead");
        self.judge();
        let unit = &mut self.hosts[h].unit;
        let goes_on = unit
            .job
            .as_ref()
            .is_some_and(|job| job.kind == JobKind::Start && phase == Phase::Stopping);
        if goes_on {
            self.carry_out_start(h);
            return;
        }
        let stopped = unit
            .job
            .as_ref()
            .is_some_and(|job| job.kind == JobKind::Stop);
        if stopped {
            unit.phase = Phase::Dead;
        }
        unit.end_job(if stopped { "done" } else { "failed" });
        unit.changed();
        if unit.phase == Phase::Restarting
            && let Some(after) = restart
        {
            self.on_host(h, after, move |world| {
                let unit = &world.hosts[h].unit;
                if unit.life == life && unit.phase == Phase::Restarting {
                    drop(world.queue(h, JobKind::Start));
                }
            });
        }
    }

    /// Starts the unit by hand, again and again until `patience` is over.
    pub fn start_by_hand(&mut self, h: usize, patience: Duration) {
        if matches!(self.hosts[h].unit.phase, Phase::Dead | Phase::Failed) {
            drop(self.queue(h, JobKind::Start));
        }
        if let Some(patience) = patience.checked_sub(BY_HAND) {
            self.on_host(h, BY_HAND, move |world| world.start_by_hand(h, patience));
        }
    }

    /// Starts the unit's program in the unit's control group, without the gate.
    pub fn run_stray(&mut self, h: usize) {
        let unit = &mut self.hosts[h].unit;
        if unit.alive {
            return;
        }
        unit.life += 1;
        (unit.phase, unit.alive, unit.killed, unit.slice) =
            (Phase::Running, true, false, unit.next_slice);
        unit.changed();
        self.note(Some(h), "the unit runs though nobody let it");
        self.judge();
    }

    /// PID 1 reads the unit's files anew: its stop can be proven no more, or again.
    pub fn misconfigure(&mut self, h: usize, misconfigured: bool) {
        let host = &mut self.hosts[h];
        if std::mem::replace(&mut host.misconfigured, misconfigured) != misconfigured {
            tell(&mut host.unit.reload_listeners);
        }
    }

    pub fn stop_unit(&mut self, h: usize) -> oneshot::Receiver<&'static str> {
        self.queue(h, JobKind::Stop)
    }

    /// Stops the lease target. What is bound to it stops too, and before it.
    pub fn stop_lease(&mut self, h: usize) {
        self.hosts[h].unit.lease_active = false;
        if self.hosts[h].unit.may_run() {
            drop(self.queue(h, JobKind::Stop));
        }
    }
}

/// A daemon's connection to the PID 1 of its host.
#[derive(Clone)]
pub struct Pid1 {
    pub sim: Sim,
    pub h: usize,
}

impl std::fmt::Debug for Pid1 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PID 1 of h{}", self.h + 1)
    }
}

impl Pid1 {
    /// Makes one call over the bus. What was sent is executed, whether the caller still waits for the answer or not.
    async fn call<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut World, usize) -> T + Send + 'static,
    ) -> Result<T, BusError> {
        let turn = {
            let mut world = self.sim.lock();
            let crowd = as_millis(world.hosts[self.h].pid1.crowd);
            world.millis(0, crowd)
        };
        pause(turn).await;
        let h = self.h;
        let (answer, mut answers) = oneshot::channel();
        let sent = {
            let mut world = self.sim.lock();
            let there = world.millis(0, 2) + world.hosts[h].bus_latency;
            world.send(h, there, move |world| {
                // The caller may have given up.
                let _ = answer.send(ask(world, h));
            })
        };
        let limit = sleep(BUS_LIMIT);
        sent?;
        tokio::select! {
            biased;
            Ok(answer) = &mut answers => {
                let back = {
                    let mut world = self.sim.lock();
                    // Most answers arrive at once. Some are so late that other events overtake them.
                    if world.chance(12) { world.millis(1, 150) } else { Duration::ZERO }
                };
                pause(back).await;
                Ok(answer)
            }
            () = limit => Err(BusError::Unreachable("no answer in time".to_owned())),
        }
    }

    async fn state_of(&self, unit: &UnitName) -> Result<UnitState, BusError> {
        let unit = unit.clone();
        self.call(move |world, h| {
            let seen = &world.hosts[h].unit;
            let mut state = seen.state(&unit);
            if is_lease(&unit) {
                state.job = None;
                state.active_state = if seen.lease_active {
                    ActiveState::Active
                } else {
                    ActiveState::Inactive
                };
            }
            state
        })
        .await
    }

    async fn start_unit(&self, unit: &UnitName, limit: Duration) -> Result<UnitState, Refusal> {
        let before = self.state_of(unit).await?;
        if !before.active_state.is_stopped() {
            return Err(Refusal::Other(format!(
                "it was {} before",
                before.in_words()
            )));
        }
        let end = self.call(|world, h| world.queue(h, JobKind::Start)).await?;
        let job = timeout(limit, end)
            .await
            .map_or("", |result| result.unwrap_or(""));
        let state = self.state_of(unit).await?;
        match (job, state.invocation) {
            ("done", Some(_)) if state.active_state.is_started() => Ok(state),
            ("assert", _) => Err(Refusal::Other("AssertPathExists= does not hold".to_owned())),
            ("condition", _) => Err(Refusal::Other(
                "its ExecCondition= does not hold".to_owned(),
            )),
            _ => Err(Refusal::Other(format!("it is {}", state.in_words()))),
        }
    }

    async fn stop_and_wait(&self, unit: &UnitName, limit: Duration) -> Result<JobEnd, BusError> {
        let end = if is_lease(unit) {
            self.call(|world, h| {
                world.stop_lease(h);
                world.hosts[h].unit.may_run().then(|| world.stop_unit(h))
            })
            .await?
        } else {
            Some(self.call(World::stop_unit).await?)
        };
        let Some(end) = end else {
            return Ok(JobEnd::Ended("done".to_owned()));
        };
        match timeout(limit, end).await {
            Ok(result) => Ok(JobEnd::Ended(result.unwrap_or_default().to_owned())),
            Err(_) => Ok(JobEnd::StillQueued),
        }
    }

    async fn run(&self, limit: Duration, name: &UnitName) -> Result<RunResult, BusError> {
        let template = name
            .as_str()
            .split('@')
            .next()
            .unwrap_or_default()
            .to_owned();
        let (passes, takes) = self
            .call(move |world, h| {
                let takes = world.millis(5, 40);
                let host = &world.hosts[h];
                match template.as_str() {
                    "fence" => (host.fence_works, takes.max(host.fence_takes)),
                    "check" => (
                        host.healthy,
                        if host.checks_hang {
                            Duration::MAX
                        } else {
                            takes
                        },
                    ),
                    _ => (true, takes),
                }
            })
            .await?;
        sleep(takes.min(limit)).await;
        Ok(match (takes <= limit, passes) {
            (false, _) => RunResult::TimedOut,
            (true, true) => RunResult::Passed,
            (true, false) => RunResult::Failed("it says no".to_owned()),
        })
    }
}

fn is_lease(unit: &UnitName) -> bool {
    unit.as_str().ends_with(".target")
}

async fn pause(span: Duration) {
    if !span.is_zero() {
        sleep(span).await;
    }
}

impl Manager for Pid1 {
    fn brief<'a>(&'a self, unit: &'a UnitName) -> ManagerFuture<'a, Result<UnitState, BusError>> {
        Box::pin(self.state_of(unit))
    }

    fn placement<'a>(
        &'a self,
        unit: &'a UnitName,
    ) -> ManagerFuture<'a, Result<Placement, BusError>> {
        let unit = unit.clone();
        Box::pin(self.call(move |world, h| world.hosts[h].unit.placement(&unit)))
    }

    fn supervisable<'a>(
        &'a self,
        unit: &'a UnitName,
        _: Surroundings<'a>,
    ) -> ManagerFuture<'a, Result<(), Refusal>> {
        Box::pin(async move {
            if self.call(|world, h| world.hosts[h].misconfigured).await? {
                return Err(Refusal::Other(format!(
                    "{unit} has KillMode=none: remove that"
                )));
            }
            Ok(())
        })
    }

    fn is_stopping(&self) -> ManagerFuture<'_, Result<bool, BusError>> {
        Box::pin(self.call(|_, _| false))
    }

    fn reset_failed<'a>(&'a self, _: &'a UnitName) -> ManagerFuture<'a, Result<(), BusError>> {
        Box::pin(self.call(|_, _| ()))
    }

    fn prepare_start<'a>(
        &'a self,
        _: &'a UnitName,
        _: Option<&'a ServiceName>,
    ) -> ManagerFuture<'a, Option<PreparedStart>> {
        Box::pin(std::future::ready(None))
    }

    fn start<'a>(
        &'a self,
        unit: &'a UnitName,
        _: Option<&'a ServiceName>,
        _: Option<PreparedStart>,
        limit: Duration,
    ) -> ManagerFuture<'a, Result<UnitState, Refusal>> {
        Box::pin(self.start_unit(unit, limit))
    }

    fn stop<'a>(
        &'a self,
        unit: &'a UnitName,
        limit: Duration,
    ) -> ManagerFuture<'a, Result<JobEnd, BusError>> {
        Box::pin(self.stop_and_wait(unit, limit))
    }

    fn thaw<'a>(&'a self, _: &'a BTreeSet<String>) -> ManagerFuture<'a, Vec<String>> {
        Box::pin(async { Vec::new() })
    }

    fn kill<'a>(&'a self, _: &'a UnitName) -> ManagerFuture<'a, Result<(), NotDead>> {
        Box::pin(async { Ok(self.call(World::kill_unit).await?) })
    }

    fn signal_group<'a>(
        &'a self,
        path: &'a str,
        signal: Signal,
    ) -> ManagerFuture<'a, Result<(), KernelError>> {
        Box::pin(async move {
            let mut world = self.sim.lock();
            if signal == Signal::KILL && world.is_populated(self.h, path) {
                world.kill_unit(self.h);
            }
            Ok(())
        })
    }

    fn is_group_empty<'a>(&'a self, path: &'a str) -> ManagerFuture<'a, Result<bool, KernelError>> {
        Box::pin(async { Ok(!self.sim.lock().is_populated(self.h, path)) })
    }

    fn outside<'a>(
        &'a self,
        _: &'a BTreeSet<i32>,
        _: &'a Members,
        _: &'a BTreeSet<String>,
        _: Duration,
    ) -> ManagerFuture<'a, Result<(Vec<Process>, Members), KernelError>> {
        Box::pin(async {
            self.call(|_, _| (Vec::new(), Members::new()))
                .await
                .map_err(|error| KernelError::Failed(error.to_string()))
        })
    }

    fn clients<'a>(
        &'a self,
        _: &'a BTreeSet<String>,
        _: &'a [UnitName],
        _: Duration,
    ) -> ManagerFuture<'a, Result<Vec<OutsideWork>, KernelError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn users_of_mount<'a>(
        &'a self,
        _: &'a UnitName,
        _: &'a [UnitName],
    ) -> ManagerFuture<'a, Result<Vec<Process>, NotDead>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn end_processes<'a>(
        &'a self,
        _: &'a [Process],
        _: Option<Signal>,
    ) -> ManagerFuture<'a, Result<Vec<Process>, KernelError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// This unit is never active without a process, so its start needs no record.
    fn doubt_start(&self, _: &UnitName) {}

    fn look<'a>(&'a self, unit: &'a UnitName) -> ManagerFuture<'a, Result<Look, BusError>> {
        let unit = unit.clone();
        Box::pin(self.call(move |world, h| {
            let seen = &world.hosts[h].unit;
            let state = seen.state(&unit);
            Look {
                placement: seen.placement(&unit),
                state: state.clone(),
                frozen_by: None,
                dead: check_dead(state),
                ran: Vec::new(),
            }
        }))
    }

    fn changes(&self, _: &UnitName) -> ChangeHints {
        listen(&mut self.sim.lock().hosts[self.h].unit.listeners)
    }

    fn reloads(&self) -> ChangeHints {
        listen(&mut self.sim.lock().hosts[self.h].unit.reload_listeners)
    }

    fn watched(&self) -> usize {
        1
    }

    fn run_unit_to_completion<'a>(
        &'a self,
        unit: &'a UnitName,
        limit: Duration,
    ) -> ManagerFuture<'a, Result<RunResult, BusError>> {
        Box::pin(self.run(limit, unit))
    }

    fn check_user<'a>(
        &'a self,
        _: &'a ServiceName,
    ) -> ManagerFuture<'a, Result<CheckUser, CheckUserError>> {
        unreachable!("no service of the simulation has a check that is a command")
    }

    fn run_check<'a>(
        &'a self,
        check: &'a CheckCommand,
    ) -> ManagerFuture<'a, Result<RunResult, BusError>> {
        Box::pin(self.run(check.timeout, &check.unit))
    }
}
