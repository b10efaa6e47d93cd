//! Runs a health command as a user that may have no name, which systemd cannot do.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::host::failed_start::{EXIT_EXEC, EXIT_USER};

/// Why the command was not run.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunAsError {
    #[error("user {uid} cannot be had: {source}")]
    User { uid: u32, source: io::Error },
    #[error("{program:?} cannot be run as user {uid}: {source}")]
    Program { uid: u32, program: OsString, source: io::Error },
}

impl RunAsError {
    /// The exit status with which systemd itself says so.
    pub(super) fn status(&self) -> i32 {
        match self {
            Self::User { .. } => EXIT_USER,
            Self::Program { .. } => EXIT_EXEC,
        }
    }
}

/// Replaces this program by `command`, with the user `uid`, the group of the same number, no other group and no capability. Returns
/// only if that fails. There must be no other thread.
pub(super) fn run(uid: u32, program: OsString, arguments: &[OsString]) -> RunAsError {
    if let Err(source) = become_user(uid) {
        return RunAsError::User { uid, source: source.into() };
    }
    let source = Command::new(&program).args(arguments).exec();
    RunAsError::Program { uid, program, source }
}

fn become_user(uid: u32) -> rustix::io::Result<()> {
    // From systemd 257 on a unit of root begins with its capabilities in this set, too.
    let sets = CapabilitySets { inheritable: CapabilitySet::empty(), ..capabilities(None)? };
    set_capabilities(None, sets)?;
    // The last one is needed for this.
    for capability in [CapabilitySet::SETUID, CapabilitySet::SETGID, CapabilitySet::SETPCAP] {
        remove_capability_from_bounding_set(capability)?;
    }
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    // The kernel takes all capabilities from whoever stops being root.
    set_thread_res_uid(user, user, user)
}
