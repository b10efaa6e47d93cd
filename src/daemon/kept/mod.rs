//! Small files that outlive the daemon.
//!
//! | module | what it keeps |
//! | --- | --- |
//! | [`memory`] | what was seen of the lock of each service, and where the lock of each unit was |
//! | [`writer`] | writes files in the background, the newest content of each |
//! | [`in_force`] | the settings in force, for the next putexd |
//! | [`at_boot`] | what is bound, for a boot in which the files cannot be read |
//! | [`drop_ins`] | drop-ins that bind units to their leases where systemd gets none from the generator |

pub mod at_boot;
pub mod drop_ins;
pub mod in_force;
pub mod memory;
pub mod writer;

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};

use crate::host::files::{gone, sync_names, write_new};

/// The mode of files that only root may read.
const PRIVATE: u32 = 0o600;

/// What a file of JSON says. `None`: there is no file.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The same where the loss of the file does no harm: one that is not understood is as one that is not there.
pub fn read_or_ignore<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let read = read(path).inspect_err(|error| {
        tracing::warn!("failed to read {}: {error}, ignoring", path.display());
    });
    read.ok().flatten()
}

/// The content of a file of JSON.
pub fn render(content: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec_pretty(content).expect("it has no map with keys other than text")
}

/// Replaces a file atomically, and returns when a power loss cannot undo that. Only one writer of a file at a time may call
/// it.
fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let new = path.with_extension("new");
    write_new(&new, content, mode, |file| {
        file.sync_all()?;
        fs::rename(&new, path)
    })?;
    sync_folder(path)
}

/// Removes a file, if it is there, and returns when a power loss cannot bring it back.
fn remove(path: &Path) -> io::Result<()> {
    gone(fs::remove_file(path))?;
    sync_folder(path)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    sync_names(&File::open(path.parent().unwrap_or(Path::new("/")))?)
}
