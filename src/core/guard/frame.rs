//! The frames between putexd and the guard: one JSON object in each line.
//!
//! Both ends import this. After an upgrade a new putexd may talk to an old guard for months: a field is never reused with another
//! meaning, and unknown fields are ignored. A new *command* ends the connection to an old guard.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use crate::types::{
    Extension, Instance, LeaseTerms, NodeId, OnStopFailure, ServiceName, UnitName,
    mount::{Mount, MountUnit},
};

/// The socket on which the guard listens.
pub const SOCKET: &str = "/run/putex/guard.sock";

/// The length of the longest request that the guard reads, its newline included.
pub const REQUEST_LIMIT_BYTES: usize = 64 * 1024;

pub use crate::types::LEASE_LIMIT;

/// The most units of one lease.
pub const MEMBER_LIMIT: usize = 16;

/// The most control groups of one lease: those that its units have and would be started in, and former ones that are not empty
/// yet. As many processes outside of them may be named.
pub const CGROUP_LIMIT: usize = 64;

/// A lease as the guard keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The service whose units may run.
    pub service: ServiceName,
    /// The node's name, for the unit's environment.
    pub node: NodeId,
    /// The terms, as the election has set them.
    pub terms: LeaseTerms,
    /// The units to stop. The lease target is stopped first, because its stop takes everything that is bound to it along, in
    /// the right order; then these, in case one of them is not bound.
    pub units: Vec<UnitName>,
    /// The units' control groups as PID 1 names them (such as `/system.slice/database.service`): those that they have, those
    /// that they would be started in now, and former ones until they were seen empty.
    pub cgroups: Vec<String>,
    /// Those of the units that can be active without a process (mounts, `RemainAfterExit=`). An empty control group proves
    /// nothing for them, so PID 1 must show `ActiveState=inactive` and `Result=success` as well.
    pub inactive: Vec<UnitName>,
    /// Those of `inactive` whose start under this lease has begun, or is about to, and is not known to have ended: systemd may
    /// have stopped one half-way, called that a success, and forgotten it.
    pub begun: Vec<UnitName>,
    /// Slices and scopes in which the units have other programs run. They are stopped after SIGKILL was sent: only their start
    /// needs the lease, so systemd would start things in them for as long as they are active.
    pub contains: Vec<UnitName>,
    /// Processes of the units that were seen outside of their control groups: the number of each, and when it began, in the kernel's
    /// ticks since boot. They get SIGKILL with the control groups, and have to be dead.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outside: BTreeMap<i32, u64>,
    /// What to do when the stop cannot be proven by `deadline + stop_budget`.
    pub on_stop_failure: OnStopFailure,
    /// Whether the lease is closed for a release (H5): the grant is gone for good, and the deadline still counts and can be
    /// extended.
    pub closing: bool,
}

/// A request of putexd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The number of the request, unique on its connection; the reply has the same.
    pub id: u64,
    /// What to do.
    pub command: Command,
}

/// Which leases a list has. All of them are too many to be sent again and again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Of {
    /// All leases.
    All,
    /// The lease of this service, if there is one.
    One(ServiceName),
    /// No lease: only the state of the guard is asked for.
    None,
}

/// What putexd asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// Sets a deadline and writes the grant. Refused when the deadline has passed, while the lease of another instance of the
    /// service is not disarmed, when this instance's lease is closing or has lapsed, or while the lease of another service
    /// covers one of the units or control groups. While the lease is open, the command may be sent again to replace the lease, by
    /// an earlier deadline only with `shorter`; so the guard learns of other control groups. It is also refused when the record for
    /// the guard's successor cannot be written; all other commands are executed nevertheless.
    ///
    /// With `closing: true` it opens nothing and moves no deadline: it adds units and control groups to this instance's lease
    /// that is closing or has lapsed.
    Arm {
        /// The complete lease, whichever parts of it are new.
        lease: Lease,
        /// The deadline of an open lease may become earlier.
        shorter: bool,
    },
    /// Moves the deadline of an armed or closing lease of the same instance to a later time. Refused when the lease is unknown,
    /// is another instance's or has lapsed, or when the deadline is not later or has passed. Sent again, it changes nothing.
    Extend {
        /// The service of the lease.
        service: ServiceName,
        /// The tenure that the lease belongs to.
        instance: Instance,
        /// The later deadline, and the write that it counts from.
        #[serde(flatten)]
        extension: Extension,
    },
    /// Removes the grant and keeps the deadline. Sent again, it changes nothing.
    Close {
        /// The service of the lease.
        service: ServiceName,
        /// The tenure that the lease belongs to.
        instance: Instance,
    },
    /// Forgets the lease, because its units are proven dead. It succeeds as well if the service has no lease. Refused for
    /// another instance's lease.
    Disarm {
        /// The service of the lease.
        service: ServiceName,
        /// The tenure that the lease belongs to.
        instance: Instance,
    },
    /// Asks for the state of the guard, and for leases that are not disarmed, lapsed ones included.
    List(Of),
    /// Asks whether what a unit had mounted is mounted nowhere any more. Refused while it may be. The reply comes when that is known,
    /// after later ones.
    CheckUnmounted {
        /// What it is to mount.
        unit: MountUnit,
        /// How it was mounted, if it was seen then.
        was: Option<Mount>,
    },
}

/// The guard's reply. It is sent after record and grant are written, as far as /run has space for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The number of the request.
    pub id: u64,
    /// The outcome of the command.
    pub result: Outcome,
}

/// The outcome of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The command was executed.
    Done,
    /// The command was not executed; nothing changed.
    Refused {
        /// The reason, in lower case: the end of "the guard refused: ".
        reason: String,
    },
    /// The answer to [`Command::List`].
    Leases(GuardState),
}

/// What the guard says of itself, and the leases that were asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GuardState {
    /// The leases, in no particular order.
    pub leases: Vec<ListedLease>,
    /// The watchdog that the guard was told to serve.
    pub watchdog: Option<Watchdog>,
    /// Why no lease can be armed: the guard cannot write to /run, and what to do about it. A whole text, in lower case.
    pub trouble: Option<String>,
    /// The version of the guard.
    pub version: String,
}

impl GuardState {
    /// Why the guard arms no lease.
    pub fn unfit(&self) -> Option<String> {
        let unserved = || self.watchdog.as_ref()?.unserved();
        self.trouble.clone().or_else(unserved)
    }
}

/// The state of the hardware watchdog that a guard serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watchdog {
    /// The path of its device.
    pub device: PathBuf,
    /// The timeout that the guard was told.
    pub timeout: Duration,
    /// Why it is not served, in lower case: the end of "the watchdog is not served: ". No lease is armed meanwhile.
    pub trouble: Option<String>,
}

impl Watchdog {
    /// Its trouble as a whole text.
    pub fn unserved(&self) -> Option<String> {
        let (device, why) = (self.device.display(), self.trouble.as_ref()?);
        Some(format!("the watchdog {device} is not served: {why}"))
    }
}

/// A lease in the answer to `List`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedLease {
    /// The lease. After a restart of the guard it is `closing`: the grants did not outlive the old guard.
    pub lease: Lease,
    /// The deadline has passed; the guard is stopping the units, or has stopped them.
    pub lapsed: bool,
    /// The guard has seen the units dead after SIGKILL was due, sees nothing of them now, and systemd has taken on their stop.
    pub stopped: bool,
}

#[cfg(test)]
mod tests;
