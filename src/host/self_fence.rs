//! Taking this host down, as the last way to be sure that a unit is dead.

use std::{fs, io, path::Path};

use crate::types::OnStopFailure;

/// The file through which the kernel reboots or panics at once.
pub const SYSRQ_TRIGGER: &str = "/proc/sysrq-trigger";

/// Takes the host down as `how` says; returns at once where it says only to alert, or when all failed.
///
/// The sysrq trigger comes first, because it asks neither drivers nor file systems, any of which may be what hangs.
/// Containers have none: there reboot(2) ends the container. A `sysrq` other than [`SYSRQ_TRIGGER`] is the same file at another
/// place, or one of a test, which must not take the host down, so that reboot(2) is not called then.
pub fn self_fence(how: OnStopFailure, sysrq: &Path) -> io::Result<()> {
    let letter = match how {
        OnStopFailure::Alert => return Ok(()),
        OnStopFailure::RebootForce => "b",
        OnStopFailure::KernelPanic => "c",
    };
    match fs::write(sysrq, letter) {
        Err(_) if sysrq == Path::new(SYSRQ_TRIGGER) => Ok(rustix::system::reboot(
            rustix::system::RebootCommand::Restart,
        )?),
        outcome => outcome,
    }
}
