//! The interface for what the daemon asks of PID 1: [`Systemd`] implements it over D-Bus, a simulated host in memory.

use std::collections::BTreeSet;
use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use rustix::process::Signal;

use super::{
    Awaited, Brief, BusError, Check, CheckUser, CheckUserError, FoundClient, JobEnd, KernelError, KillError, Look,
    Placement, Purpose, RunResult, StartError, Started, Surroundings, SystemState, Systemd, Unsupervisable,
};
use crate::host::processes::Process;
use crate::types::{ServiceName, UnitName};

/// The future that a method of [`Manager`] returns.
pub type ManagerFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Hints that a unit may have changed. The stream never ends.
pub type ChangeHints = Pin<Box<dyn Stream<Item = ()> + Send>>;

/// What runs the units of a host. Each call but `start`, `run_unit_to_completion` and `run_check` is bounded in time by
/// the manager itself. A call whose future is dropped may have taken effect. What each method promises is written at the
/// method of [`Systemd`] with its name, for `start` at [`Systemd::start_with_lease`].
pub trait Manager: fmt::Debug + Send + Sync + 'static {
    /// The state of a unit in short, for a stop that waits for it.
    fn brief<'a>(&'a self, unit: &'a UnitName) -> ManagerFuture<'a, Result<Brief, BusError>>;

    /// In which control groups processes of a unit may be, and which processes PID 1 knows.
    fn placement<'a>(&'a self, unit: &'a UnitName) -> ManagerFuture<'a, Result<Placement, BusError>>;

    /// Admission: `Ok` when a unit is bound to its lease and its stop can be proven, with remarks for the operator.
    fn supervisable<'a>(
        &'a self,
        unit: &'a UnitName,
        around: Surroundings<'a>,
    ) -> ManagerFuture<'a, Result<Vec<String>, Unsupervisable>>;

    /// Whether the host is up or going down.
    fn system_state(&self) -> ManagerFuture<'_, Result<SystemState, BusError>>;

    /// When a unit became active last, since 1970. `None`: never since systemd has it loaded.
    fn active_since<'a>(&'a self, unit: &'a UnitName) -> ManagerFuture<'a, Result<Option<Duration>, BusError>>;

    /// Forgets how a unit failed, and how often it was started.
    fn reset_failed<'a>(&'a self, unit: &'a UnitName) -> ManagerFuture<'a, Result<(), BusError>>;

    /// Prepares a start that may follow soon.
    fn prepare<'a>(&'a self, unit: &'a UnitName) -> ManagerFuture<'a, ()>;

    /// Starts a unit, if it is bound to the lease of the service `lease`, and waits until it is started.
    fn start<'a>(
        &'a self,
        unit: &'a UnitName,
        lease: &'a ServiceName,
        limit: Duration,
    ) -> ManagerFuture<'a, Result<Started, StartError>>;

    /// Queues a stop and waits for the end of its job, which does not show that the unit is dead.
    fn stop<'a>(&'a self, unit: &'a UnitName, limit: Duration) -> ManagerFuture<'a, Result<JobEnd, BusError>>;

    /// Thaws what is frozen in control groups, because systemd does not stop what is frozen.
    fn thaw<'a>(&'a self, groups: &'a BTreeSet<String>) -> ManagerFuture<'a, Vec<String>>;

    /// The job of another unit for which the queued job of the first of `units` waits.
    fn awaits<'a>(&'a self, units: &'a [UnitName]) -> ManagerFuture<'a, Result<Option<Awaited>, BusError>>;

    /// Takes back a start that is queued, and what was queued for it alone.
    fn cancel_start<'a>(&'a self, unit: &'a UnitName) -> ManagerFuture<'a, Result<Vec<String>, BusError>>;

    /// Sends SIGKILL to every process of a unit.
    fn kill<'a>(&'a self, unit: &'a UnitName) -> ManagerFuture<'a, Result<(), KillError>>;

    /// Sends SIGKILL to every process of a control group, without asking PID 1.
    fn kill_group<'a>(&'a self, path: &'a str) -> ManagerFuture<'a, Result<(), KernelError>>;

    /// Whether no process is in a control group, without asking PID 1.
    fn is_group_empty<'a>(&'a self, path: &'a str) -> ManagerFuture<'a, Result<bool, KernelError>>;

    /// Sends SIGTERM to every process of a control group, without asking PID 1.
    fn terminate_group<'a>(&'a self, path: &'a str) -> ManagerFuture<'a, Result<(), KernelError>>;

    /// Of `known`, the processes in `groups` and all their descendants: those that are in none of `groups`.
    fn outside<'a>(
        &'a self,
        known: &'a BTreeSet<i32>,
        groups: &'a BTreeSet<String>,
        age: Duration,
    ) -> ManagerFuture<'a, Result<Vec<Process>, KernelError>>;

    /// The processes in `groups` that have their work done elsewhere, other than in the units `own`.
    fn clients<'a>(
        &'a self,
        groups: &'a BTreeSet<String>,
        own: &'a [UnitName],
        age: Duration,
    ) -> ManagerFuture<'a, Result<Vec<FoundClient>, KernelError>>;

    /// The processes that keep a mount from being unmounted, and that neither belong to `own` nor are stopped by systemd with it.
    fn users_of_mount<'a>(
        &'a self,
        mount: &'a UnitName,
        own: &'a [UnitName],
    ) -> ManagerFuture<'a, Result<Vec<Process>, KernelError>>;

    /// Sends `signal`, if one is given, to `processes`. Returns those that still run.
    fn end_processes<'a>(
        &'a self,
        processes: &'a [Process],
        signal: Option<Signal>,
    ) -> ManagerFuture<'a, Result<Vec<Process>, KernelError>>;

    /// Where processes of a unit may be, whether it is started, and whether it is dead, from one reading.
    fn look<'a>(&'a self, unit: &'a UnitName, purpose: Purpose) -> ManagerFuture<'a, Result<Look, BusError>>;

    /// Notes that another putexd has begun a start whose end is not known.
    fn doubt_start(&self, unit: &UnitName);

    /// Hints that a unit's state should be read again.
    fn changes(&self, unit: &UnitName) -> ChangeHints;

    /// Hints that all that PID 1 has loaded should be read again.
    fn reloads(&self) -> ChangeHints;

    /// How many units are watched for changes.
    fn watched(&self) -> usize;

    /// Starts a unit that comes to an end by itself, and waits for that end.
    fn run_unit_to_completion<'a>(
        &'a self,
        unit: &'a UnitName,
        limit: Duration,
    ) -> ManagerFuture<'a, Result<RunResult, BusError>>;

    /// A user for the check of a service that nothing else on this host has.
    fn check_user<'a>(&'a self, service: &'a ServiceName) -> ManagerFuture<'a, Result<CheckUser, CheckUserError>>;

    /// Runs a command in a unit of its own and waits for its end.
    fn run_check<'a>(&'a self, check: &'a Check) -> ManagerFuture<'a, Result<RunResult, BusError>>;
}

impl Manager for Systemd {
    fn brief<'a>(&'a self, unit: &'a UnitName) -> ManagerFuture<'a, Result<Brief, BusError>> {
        Box::pin(async move { Systemd::brief(&self.to(Purpose::Stop), unit).await })
    }

    fn placement<'a>(&'a self, unit: &'a UnitName) -> ManagerFuture<'a, Result<Placement, BusError>> {
        Box::pin(Systemd::placement(self, unit))
    }

    fn supervisable<'a>(
        &'a self,
        unit: &'a UnitName,
        around: Surroundings<'a>,
    ) -> ManagerFuture<'a, Result<Vec<String>, Unsupervisable>> {
        Box::pin(Systemd::supervisable(self, unit, around))
    }

    fn system_state(&self) -> ManagerFuture<'_, Result<SystemState, BusError>> {
        Box::pin(Systemd::system_state(self))
    }

    fn active_since<'a>(&'a self, unit: &'a UnitName) -> ManagerFuture<'a, Result<Option<Duration>, BusError>> {
        Box::pin(Systemd::active_since(self, unit))
    }

    fn reset_failed<'a>(&'a self, unit: &'a UnitName) -> ManagerFuture<'a, Result<(), BusError>> {
        Box::pin(async move { Systemd::reset_failed(&self.to(Purpose::Start), unit.as_str()).await })
    }

    fn prepare<'a>(&'a self, unit: &'a UnitName) -> ManagerFuture<'a, ()> {
        Box::pin(async move { Systemd::prepare(&self.to(Purpose::Start), unit).await })
    }

    fn start<'a>(
        &'a self,
        unit: &'a UnitName,
        lease: &'a ServiceName,
        limit: Duration,
    ) -> ManagerFuture<'a, Result<Started, StartError>> {
        Box::pin(async move { Systemd::start_with_lease(&self.to(Purpose::Start), unit, lease, limit).await })
    }

    fn stop<'a>(&'a self, unit: &'a UnitName, limit: Duration) -> ManagerFuture<'a, Result<JobEnd, BusError>> {
        Box::pin(async move { Systemd::stop(&self.to(Purpose::Stop), unit, limit).await })
    }

    fn thaw<'a>(&'a self, groups: &'a BTreeSet<String>) -> ManagerFuture<'a, Vec<String>> {
        Box::pin(async move { Systemd::thaw(&self.to(Purpose::Stop), groups).await })
    }

    fn awaits<'a>(&'a self, units: &'a [UnitName]) -> ManagerFuture<'a, Result<Option<Awaited>, BusError>> {
        Box::pin(Systemd::awaits(self, units))
    }

    fn cancel_start<'a>(&'a self, unit: &'a UnitName) -> ManagerFuture<'a, Result<Vec<String>, BusError>> {
        Box::pin(async move { Systemd::cancel_start(&self.to(Purpose::Stop), unit).await })
    }

    fn kill<'a>(&'a self, unit: &'a UnitName) -> ManagerFuture<'a, Result<(), KillError>> {
        Box::pin(async move { Systemd::kill(&self.to(Purpose::Stop), unit).await })
    }

    fn kill_group<'a>(&'a self, path: &'a str) -> ManagerFuture<'a, Result<(), KernelError>> {
        Box::pin(Systemd::kill_group(self, path))
    }

    fn is_group_empty<'a>(&'a self, path: &'a str) -> ManagerFuture<'a, Result<bool, KernelError>> {
        Box::pin(Systemd::is_group_empty(self, path))
    }

    fn terminate_group<'a>(&'a self, path: &'a str) -> ManagerFuture<'a, Result<(), KernelError>> {
        Box::pin(Systemd::terminate_group(self, path))
    }

    fn outside<'a>(
        &'a self,
        known: &'a BTreeSet<i32>,
        groups: &'a BTreeSet<String>,
        age: Duration,
    ) -> ManagerFuture<'a, Result<Vec<Process>, KernelError>> {
        Box::pin(Systemd::outside(self, known, groups, age))
    }

    fn clients<'a>(
        &'a self,
        groups: &'a BTreeSet<String>,
        own: &'a [UnitName],
        age: Duration,
    ) -> ManagerFuture<'a, Result<Vec<FoundClient>, KernelError>> {
        Box::pin(Systemd::clients(self, groups, own, age))
    }

    fn users_of_mount<'a>(
        &'a self,
        mount: &'a UnitName,
        own: &'a [UnitName],
    ) -> ManagerFuture<'a, Result<Vec<Process>, KernelError>> {
        Box::pin(async move { Systemd::users_of_mount(&self.to(Purpose::Stop), mount, own).await })
    }

    fn end_processes<'a>(
        &'a self,
        processes: &'a [Process],
        signal: Option<Signal>,
    ) -> ManagerFuture<'a, Result<Vec<Process>, KernelError>> {
        Box::pin(Systemd::end_processes(self, processes, signal))
    }

    fn look<'a>(&'a self, unit: &'a UnitName, purpose: Purpose) -> ManagerFuture<'a, Result<Look, BusError>> {
        Box::pin(async move { Systemd::look(&self.to(purpose), unit).await })
    }

    fn doubt_start(&self, unit: &UnitName) {
        Systemd::doubt_start(self, unit);
    }

    fn changes(&self, unit: &UnitName) -> ChangeHints {
        Box::pin(Systemd::changes(self, unit))
    }

    fn reloads(&self) -> ChangeHints {
        Box::pin(Systemd::reloads(self))
    }

    fn watched(&self) -> usize {
        Systemd::watched(self)
    }

    fn run_unit_to_completion<'a>(
        &'a self,
        unit: &'a UnitName,
        limit: Duration,
    ) -> ManagerFuture<'a, Result<RunResult, BusError>> {
        Box::pin(Systemd::run_unit_to_completion(self, unit, limit))
    }

    fn check_user<'a>(&'a self, service: &'a ServiceName) -> ManagerFuture<'a, Result<CheckUser, CheckUserError>> {
        Box::pin(Systemd::check_user(self, service))
    }

    fn run_check<'a>(&'a self, check: &'a Check) -> ManagerFuture<'a, Result<RunResult, BusError>> {
        Box::pin(Systemd::run_check(self, check))
    }
}
