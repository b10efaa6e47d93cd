//! The interface for what the daemon asks of PID 1: [`Systemd`] implements it over D-Bus, a simulated host in memory.

#![expect(
    clippy::elidable_lifetime_names,
    reason = "the rows of the table name it"
)]

use std::{collections::BTreeSet, fmt, time::Duration};

pub use futures_util::future::BoxFuture as ManagerFuture;
use rustix::process::Signal;

use super::{
    BusError, ChangeHints, CheckCommand, CheckUser, CheckUserError, JobEnd, KernelError, Look,
    NotDead, OutsideWork, Placement, PreparedStart, Refusal, RunResult, Surroundings, Systemd,
    UnitState,
};
use crate::{
    host::processes::{Members, Process},
    types::{ServiceName, UnitName},
};

/// Makes the trait, and its implementation by the methods of [`Systemd`] with the same names: those that wait, and those that do not.
macro_rules! manager {
    (
        wait { $($name:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)* }
        at once { $($plain:ident($($given:ident: $type:ty),*) -> $result:ty;)* }
    ) => {
        /// What runs the units of a host. Each call but `start`, `run_unit_to_completion` and `run_check` is bounded in time by
        /// the manager itself. A call whose future is dropped may have taken effect. What each method promises is written at the
        /// method of [`Systemd`] with its name.
        pub trait Manager: fmt::Debug + Send + Sync + 'static {
            $(
                fn $name<'a>(&'a self, $($argument: $kind),*) -> ManagerFuture<'a, $answer>;
            )*
            $(
                fn $plain(&self, $($given: $type),*) -> $result;
            )*
        }

        impl Manager for Systemd {
            $(
                fn $name<'a>(&'a self, $($argument: $kind),*) -> ManagerFuture<'a, $answer> {
                    Box::pin(Systemd::$name(self, $($argument),*))
                }
            )*
            $(
                fn $plain(&self, $($given: $type),*) -> $result {
                    Systemd::$plain(self, $($given),*)
                }
            )*
        }
    };
}

manager! {
wait {
    brief(unit: &'a UnitName) -> Result<UnitState, BusError>;
    look(unit: &'a UnitName) -> Result<Look, BusError>;
    placement(unit: &'a UnitName) -> Result<Placement, BusError>;
    supervisable(unit: &'a UnitName, around: Surroundings<'a>) -> Result<(), Refusal>;
    is_stopping() -> Result<bool, BusError>;
    reset_failed(unit: &'a UnitName) -> Result<(), BusError>;
    prepare_start(unit: &'a UnitName, lease: Option<&'a ServiceName>) -> Option<PreparedStart>;
    start(unit: &'a UnitName, lease: Option<&'a ServiceName>, prepared: Option<PreparedStart>, limit: Duration) -> Result<UnitState, Refusal>;
    stop(unit: &'a UnitName, limit: Duration) -> Result<JobEnd, BusError>;
    thaw(groups: &'a BTreeSet<String>) -> Vec<String>;
    kill(unit: &'a UnitName) -> Result<(), NotDead>;
    signal_group(path: &'a str, signal: Signal) -> Result<(), KernelError>;
    is_group_empty(path: &'a str) -> Result<bool, KernelError>;
    outside(known: &'a BTreeSet<i32>, before: &'a Members, groups: &'a BTreeSet<String>, age: Duration) -> Result<(Vec<Process>, Members), KernelError>;
    clients(groups: &'a BTreeSet<String>, own: &'a [UnitName], age: Duration) -> Result<Vec<OutsideWork>, KernelError>;
    users_of_mount(mount: &'a UnitName, own: &'a [UnitName]) -> Result<Vec<Process>, NotDead>;
    end_processes(processes: &'a [Process], signal: Option<Signal>) -> Result<Vec<Process>, KernelError>;
    run_unit_to_completion(unit: &'a UnitName, limit: Duration) -> Result<RunResult, BusError>;
    check_user(service: &'a ServiceName) -> Result<CheckUser, CheckUserError>;
    run_check(check: &'a CheckCommand) -> Result<RunResult, BusError>;
}
at once {
    doubt_start(unit: &UnitName) -> ();
    changes(unit: &UnitName) -> ChangeHints;
    reloads() -> ChangeHints;
    watched() -> usize;
}
}
