//! File descriptors: whether an error tells that there are no more.

use std::io;

use rustix::io::Errno;

/// Whether this process or this host has as many files open as it may.
pub fn have_run_out(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE)
    )
}
