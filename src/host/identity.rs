//! Identities: machine id, boot id, host name, the user of this program, and random bits for new ones.

use std::{fs, io};

use crate::types::{BootId, IdError, MachineId};

/// 128 bits from the kernel. Read anew each time: a cloned virtual machine must not draw the same.
///
/// # Panics
///
/// When the kernel gives no random bytes. After boot it always gives them.
pub fn random() -> u128 {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).expect("the kernel gives random bytes");
    u128::from_ne_bytes(bytes)
}

/// The effective user id that this program runs as.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The machine id from `/etc/machine-id`. Fails when that cannot be read or understood.
pub fn machine_id() -> io::Result<MachineId> {
    parse("/etc/machine-id", |text| text.trim().parse())
}

/// The id of this boot, new with each boot. Fails when it cannot be read or understood.
pub fn boot_id() -> io::Result<BootId> {
    parse("/proc/sys/kernel/random/boot_id", |text| {
        text.trim().replace('-', "").parse()
    })
}

/// The host's name as uname(2) gives it.
pub fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

fn parse<T>(path: &str, read: impl Fn(&str) -> Result<T, IdError>) -> io::Result<T> {
    fs::read_to_string(path)
        .and_then(|text| read(&text).map_err(io::Error::other))
        .map_err(|error| io::Error::other(format!("{path}: {error}")))
}
