//! A fake PID 1 for unit tests, which gives the answers that the test has set and remembers the calls, and a journal that
//! remembers what was written to it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::stream;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use crate::{
    config::{FenceSettings, Mode, ServiceSettings, SourceFile, StopProof},
    election::Timings,
    guard_client::{
        GuardClient,
        frame::{Command, GuardState, Lease, ListedLease, Of, Outcome, Reply, Request},
    },
    host::processes::{Members, Process},
    systemd::{
        ActiveState, BusError, ChangeHints, CheckCommand, CheckUser, CheckUserError, JobEnd,
        KernelError, Look, Manager, ManagerFuture, NotDead, OutsideWork, Placement, PreparedStart,
        Refusal, RunResult, Surroundings, UnitState,
    },
    task::lock,
    types::{
        FencingToken, Instance, Key, LeaseTerms, NodeId, OnStopFailure, Revision, ServiceName,
        Time, UnitName, WriteId,
    },
};

/// What the fake answers, and the calls that it got.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct FakeState {
    /// Whether calls to PID 1 fail as if it could not be reached.
    pub silent: bool,
    /// The control groups of units; a unit that is not here has none.
    pub groups: BTreeMap<UnitName, Vec<String>>,
    /// The control groups that have processes, until these are killed.
    pub full: BTreeSet<String>,
    /// The processes that descend from the units and are outside of their control groups.
    pub outside: Vec<Process>,
    /// Whether the units that are dead were killed.
    pub killed: bool,
    /// The processes that have their work done elsewhere.
    pub clients: Vec<OutsideWork>,
    /// The commands that the units have run.
    pub ran: Vec<Vec<String>>,
    /// The processes of others that use each mount.
    pub users: Vec<Process>,
    /// Processes that run, until they are killed.
    pub alive: Vec<Process>,
    /// Why units are not dead. All other units are dead unless their control group is in `full`.
    pub not_dead: BTreeMap<UnitName, NotDead>,
    /// The control groups that are frozen.
    pub frozen: BTreeSet<String>,
    /// Whether jobs are queued for the units, and whether the units are being started.
    pub is_queued: bool,
    pub tries: bool,
    /// Units that are started.
    pub started: BTreeSet<UnitName>,
    /// When they became active, since 1970.
    pub active_at: Option<Duration>,
    /// Whether the job of a stop is still queued at the end of the time for which the caller waits.
    pub stops_slowly: bool,
    /// Whether a unit that runs to its end never comes to it.
    pub hangs: bool,
    /// The outcomes of the next runs of units that run to their end. All runs after these pass.
    pub runs: VecDeque<RunResult>,
    /// The calls that change or look for something, in their order.
    pub done: Vec<String>,
}

impl FakeState {
    fn placement(&self, unit: &UnitName) -> Placement {
        let groups = self.groups.get(unit).cloned().unwrap_or_default();
        Placement {
            groups,
            processes: Vec::new(),
            is_effect: false,
        }
    }
}

/// Clones share one [`FakeState`].
#[derive(Debug, Clone, Default)]
pub struct Fake(Arc<Mutex<FakeState>>);

impl Fake {
    pub fn with<T>(&self, with: impl FnOnce(&mut FakeState) -> T) -> T {
        with(&mut lock(&self.0))
    }

    /// Returns the calls since the last `done`.
    pub fn done(&self) -> Vec<String> {
        self.with(|state| std::mem::take(&mut state.done))
    }

    fn answer<T: Send + 'static, E: Send + 'static>(
        &self,
        silence: impl FnOnce(BusError) -> E,
        answer: impl FnOnce(&mut FakeState) -> Result<T, E>,
    ) -> ManagerFuture<'_, Result<T, E>> {
        let answer = self.with(|state| {
            if state.silent {
                Err(silence(BusError::Unreachable("it is silent".to_owned())))
            } else {
                answer(state)
            }
        });
        Box::pin(async { answer })
    }
}

pub fn unit(name: &str) -> UnitName {
    UnitName::new(name).expect("a unit's name")
}

/// Settings of the service `db` with `database.service` and nothing else.
pub fn settings() -> ServiceSettings {
    ServiceSettings {
        name: "db".parse().expect("a service's name"),
        source: SourceFile("db.toml".into()),
        unit: unit("database.service"),
        bound_units: Vec::new(),
        beside: Vec::new(),
        contains: Vec::new(),
        mode: Mode::Run,
        stop_proof: StopProof::Whole,
        key: Key::new("db").expect("a key"),
        timings: Timings::new(Duration::from_millis(50), 2, 1),
        stop_limit: Duration::from_secs(90),
        start_limit: None,
        on_stop_failure: OnStopFailure::Alert,
        health: None,
        fence: FenceSettings::default(),
    }
}

/// A lease of [`settings`], with the control groups `/a` and `/b`.
pub fn lease(closing: bool) -> Lease {
    Lease {
        service: settings().name,
        node: NodeId::new("h1").expect("a node's name"),
        terms: LeaseTerms {
            instance: Instance(1),
            write: WriteId(1),
            revision: Revision(1),
            token: FencingToken(1),
            deadline: Time::both(Duration::from_secs(9)),
            stop_budget: Duration::from_secs(1),
            kill_reserve: Duration::from_millis(500),
        },
        units: vec![settings().unit],
        cgroups: vec!["/a".to_owned(), "/b".to_owned()],
        inactive: Vec::new(),
        begun: Vec::new(),
        contains: Vec::new(),
        outside: [].into(),
        on_stop_failure: OnStopFailure::Alert,
        closing,
    }
}

/// A lapsed lease whose units the guard has proven dead, and whose host would go down if they were not.
pub fn stopped_lease() -> ListedLease {
    let lease = Lease {
        on_stop_failure: OnStopFailure::RebootForce,
        ..lease(true)
    };
    ListedLease {
        lease,
        lapsed: true,
        stopped: true,
    }
}

/// A guard that lists `listed` and has no objections, once it is there. `None`: it does not answer when it is asked for a lease.
pub async fn guard(listed: Option<Vec<ListedLease>>) -> GuardClient {
    GuardClient::served_by(Duration::from_secs(5), move |far| {
        serve(far, listed.clone())
    })
    .await
}

async fn serve(stream: DuplexStream, listed: Option<Vec<ListedLease>>) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while let Ok(1..) = stream.read_line(&mut line).await {
        let Request { id, command } = serde_json::from_str(&line).expect("a request");
        line.clear();
        let result = match (command, &listed) {
            (Command::List(of), None) if of != Of::None => continue,
            (Command::List(_), listed) => Outcome::Leases(GuardState {
                leases: listed.clone().unwrap_or_default(),
                ..GuardState::default()
            }),
            _ => Outcome::Done,
        };
        let mut reply = serde_json::to_vec(&Reply { id, result }).expect("a reply");
        reply.push(b'\n');
        stream.write_all(&reply).await.expect("putexd reads");
    }
}

pub fn process(pid: i32) -> Process {
    Process {
        pid,
        began: 1,
        group: "/elsewhere".to_owned(),
        command: "worker".to_owned(),
    }
}

fn stopped() -> UnitState {
    UnitState {
        load_state: "loaded".to_owned(),
        sub_state: "dead".to_owned(),
        ..UnitState::default()
    }
}

impl Manager for Fake {
    fn brief<'a>(&'a self, _: &'a UnitName) -> ManagerFuture<'a, Result<UnitState, BusError>> {
        let brief = |state: &mut FakeState| UnitState {
            active_state: if state.tries {
                ActiveState::Activating
            } else {
                ActiveState::Inactive
            },
            job: state.is_queued.then_some(7),
            ..stopped()
        };
        self.answer(|silence| silence, |state| Ok(brief(state)))
    }

    fn placement<'a>(
        &'a self,
        unit: &'a UnitName,
    ) -> ManagerFuture<'a, Result<Placement, BusError>> {
        self.answer(|silence| silence, |state| Ok(state.placement(unit)))
    }

    fn stop<'a>(
        &'a self,
        unit: &'a UnitName,
        limit: Duration,
    ) -> ManagerFuture<'a, Result<JobEnd, BusError>> {
        let stop = |state: &mut FakeState| {
            state.done.push(format!("stop {unit}"));
            state.stops_slowly
        };
        let is_slow = self.answer(|silence| silence, |state| Ok(stop(state)));
        Box::pin(async move {
            if is_slow.await? {
                tokio::time::sleep(limit).await;
                return Ok(JobEnd::StillQueued);
            }
            Ok(JobEnd::Ended("done".to_owned()))
        })
    }

    fn thaw<'a>(&'a self, groups: &'a BTreeSet<String>) -> ManagerFuture<'a, Vec<String>> {
        let frozen: Vec<String> =
            self.with(|state| groups.intersection(&state.frozen).cloned().collect());
        self.with(|state| {
            state
                .done
                .extend(frozen.iter().map(|group| format!("thaw {group}")))
        });
        Box::pin(async { frozen })
    }

    fn kill<'a>(&'a self, unit: &'a UnitName) -> ManagerFuture<'a, Result<(), NotDead>> {
        let kill = |state: &mut FakeState| {
            state.done.push(format!("kill {unit}"));
            Ok(())
        };
        self.answer(NotDead::Unknown, kill)
    }

    fn signal_group<'a>(
        &'a self,
        path: &'a str,
        signal: Signal,
    ) -> ManagerFuture<'a, Result<(), KernelError>> {
        self.with(|state| {
            if signal == Signal::KILL {
                state.done.push(format!("kill {path}"));
                state.full.remove(path);
            } else {
                state.done.push(format!("end {path}"));
            }
        });
        Box::pin(async { Ok(()) })
    }

    fn is_group_empty<'a>(&'a self, path: &'a str) -> ManagerFuture<'a, Result<bool, KernelError>> {
        let empty = self.with(|state| !state.full.contains(path));
        Box::pin(async move { Ok(empty) })
    }

    fn outside<'a>(
        &'a self,
        _: &'a BTreeSet<i32>,
        _: &'a Members,
        _: &'a BTreeSet<String>,
        _: Duration,
    ) -> ManagerFuture<'a, Result<(Vec<Process>, Members), KernelError>> {
        let look = |state: &mut FakeState| {
            state.done.push("look".to_owned());
            state.outside.clone()
        };
        self.answer(
            |silence| KernelError::Failed(silence.to_string()),
            |state| Ok((look(state), Members::new())),
        )
    }

    fn clients<'a>(
        &'a self,
        _: &'a BTreeSet<String>,
        _: &'a [UnitName],
        _: Duration,
    ) -> ManagerFuture<'a, Result<Vec<OutsideWork>, KernelError>> {
        self.answer(
            |silence| KernelError::Failed(silence.to_string()),
            |state| Ok(state.clients.clone()),
        )
    }

    fn users_of_mount<'a>(
        &'a self,
        _: &'a UnitName,
        _: &'a [UnitName],
    ) -> ManagerFuture<'a, Result<Vec<Process>, NotDead>> {
        self.answer(Into::into, |state| Ok(state.users.clone()))
    }

    fn end_processes<'a>(
        &'a self,
        processes: &'a [Process],
        signal: Option<Signal>,
    ) -> ManagerFuture<'a, Result<Vec<Process>, KernelError>> {
        let alive = self.with(|state| {
            for process in processes.iter().filter(|_| signal.is_some()) {
                let verb = if signal == Some(Signal::KILL) {
                    "kill"
                } else {
                    "end"
                };
                state.done.push(format!("{verb} {}", process.pid));
            }
            if signal == Some(Signal::KILL) {
                state.alive.retain(|process| !processes.contains(process));
            }
            processes
                .iter()
                .filter(|process| state.alive.contains(process))
                .cloned()
                .collect()
        });
        Box::pin(async { Ok(alive) })
    }

    fn doubt_start(&self, unit: &UnitName) {
        self.with(|state| state.done.push(format!("doubt {unit}")));
    }

    fn look<'a>(&'a self, unit: &'a UnitName) -> ManagerFuture<'a, Result<Look, BusError>> {
        let look = |state: &mut FakeState| {
            let placement = state.placement(unit);
            let left = placement
                .groups
                .iter()
                .find(|group| state.full.contains(*group))
                .cloned();
            let trouble = state
                .not_dead
                .get(unit)
                .cloned()
                .or(left.map(NotDead::ProcessesLeft));
            let result = state.killed.then(|| "timeout".to_owned());
            Look {
                placement,
                state: UnitState {
                    active_state: if state.started.contains(unit) {
                        ActiveState::Active
                    } else {
                        ActiveState::Inactive
                    },
                    active_at: state.active_at,
                    ..stopped()
                },
                frozen_by: None,
                dead: trouble.map_or_else(
                    || {
                        Ok(UnitState {
                            result,
                            ..stopped()
                        })
                    },
                    Err,
                ),
                ran: state.ran.clone(),
            }
        };
        self.answer(|silence| silence, |state| Ok(look(state)))
    }

    fn supervisable<'a>(
        &'a self,
        _: &'a UnitName,
        _: Surroundings<'a>,
    ) -> ManagerFuture<'a, Result<(), Refusal>> {
        Box::pin(std::future::pending())
    }

    fn is_stopping(&self) -> ManagerFuture<'_, Result<bool, BusError>> {
        unreachable!("no test asks for it")
    }

    fn reset_failed<'a>(&'a self, _: &'a UnitName) -> ManagerFuture<'a, Result<(), BusError>> {
        unreachable!("no test asks for it")
    }

    fn prepare_start<'a>(
        &'a self,
        _: &'a UnitName,
        _: Option<&'a ServiceName>,
    ) -> ManagerFuture<'a, Option<PreparedStart>> {
        Box::pin(std::future::ready(None))
    }

    /// No start comes to its end.
    fn start<'a>(
        &'a self,
        _: &'a UnitName,
        _: Option<&'a ServiceName>,
        _: Option<PreparedStart>,
        _: Duration,
    ) -> ManagerFuture<'a, Result<UnitState, Refusal>> {
        Box::pin(std::future::pending())
    }

    fn changes(&self, _: &UnitName) -> ChangeHints {
        Box::pin(stream::pending())
    }

    fn reloads(&self) -> ChangeHints {
        Box::pin(stream::pending())
    }

    fn watched(&self) -> usize {
        1
    }

    fn run_unit_to_completion<'a>(
        &'a self,
        unit: &'a UnitName,
        _: Duration,
    ) -> ManagerFuture<'a, Result<RunResult, BusError>> {
        let run = |state: &mut FakeState| {
            state.done.push(format!("run {unit}"));
            state.runs.pop_front().unwrap_or(RunResult::Passed)
        };
        if self.with(|state| state.hangs) {
            return Box::pin(std::future::pending());
        }
        self.answer(|silence| silence, |state| Ok(run(state)))
    }

    fn check_user<'a>(
        &'a self,
        _: &'a ServiceName,
    ) -> ManagerFuture<'a, Result<CheckUser, CheckUserError>> {
        Box::pin(std::future::ready(Err(CheckUserError::NoneLeft)))
    }

    fn run_check<'a>(
        &'a self,
        _: &'a CheckCommand,
    ) -> ManagerFuture<'a, Result<RunResult, BusError>> {
        unreachable!("no test asks for it")
    }
}

/// The messages of the journal.
#[derive(Clone, Default)]
pub struct Written(Arc<Mutex<Vec<String>>>);

impl Written {
    /// Returns the messages since the last `take`.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("nobody panics with it"))
    }
}

struct Message<'a>(&'a mut Vec<String>);

impl tracing::field::Visit for Message<'_> {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0.push(format!("{value:?}"));
        }
    }
}

impl<S: tracing::Subscriber> Layer<S> for Written {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        event.record(&mut Message(
            &mut self.0.lock().expect("nobody panics with it"),
        ));
    }
}

/// Collects what this thread writes to the journal from now on, until the guard is dropped.
pub fn written() -> (Written, tracing::subscriber::DefaultGuard) {
    let written = Written::default();
    let guard = crate::journal::replaced_by(tracing_subscriber::registry().with(written.clone()));
    (written, guard)
}
