//! Runs a health command as a user that may have no name, which systemd cannot do.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use rustix::{
    process::{Gid, Uid},
    thread::{
        CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
        set_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    },
};

use crate::{
    host::exit::{EXIT_EXEC, EXIT_USER},
    types::printable,
};

/// Replaces this program by `program`, with the user `uid`, the group of the same number, no other group and no capability. Returns
/// only if that fails: why, and the exit status with which systemd itself says so. There must be no other thread.
pub fn run(uid: u32, program: &OsString, arguments: &[OsString]) -> (String, i32) {
    if let Err(error) = become_user(uid) {
        return (format!("user {uid} cannot be had: {error}"), EXIT_USER);
    }
    let error = Command::new(program).args(arguments).exec();
    let program = program.to_string_lossy();
    let program = printable(&program);
    (
        format!("{program:?} cannot be run as user {uid}: {error}"),
        EXIT_EXEC,
    )
}

fn become_user(uid: u32) -> rustix::io::Result<()> {
    // From systemd 257 on a unit of root begins with its capabilities in this set, too.
    let sets = CapabilitySets {
        inheritable: CapabilitySet::empty(),
        ..capabilities(None)?
    };
    set_capabilities(None, sets)?;
    // The last one is needed for this.
    for capability in [
        CapabilitySet::SETUID,
        CapabilitySet::SETGID,
        CapabilitySet::SETPCAP,
    ] {
        remove_capability_from_bounding_set(capability)?;
    }
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    // The kernel takes all capabilities from whoever stops being root.
    set_thread_res_uid(user, user, user)
}
