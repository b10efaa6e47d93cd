//! Files that are replaced as a whole, and sockets in the place of former ones.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, ErrorKind, Write as _},
    os::unix::{
        fs::{OpenOptionsExt as _, PermissionsExt as _},
        net::UnixListener,
    },
    path::Path,
};

/// Writes a new file, which takes the space for it, and does `then` with it, such as moving it to its place. Where that fails nothing is
/// left: half of a file would take space that is needed elsewhere.
pub fn write_new(
    path: &Path,
    content: &[u8],
    mode: u32,
    then: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    let written = options.open(path).and_then(|mut file| {
        // The umask may have cleared bits of the mode at creation, and a file that was there has its own.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(content)?;
        then(&file)
    });
    written.inspect_err(|_| drop(fs::remove_file(path)))
}

/// Takes `NotFound` as success: somebody else has removed it.
pub fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Waits until the names in a folder are on the disk.
pub fn sync_names(folder: &File) -> io::Result<()> {
    match folder.sync_all() {
        // Some file systems do not support the call for folders, and have nothing to write for them.
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

/// Listens on a socket that only its owner may connect to, and replaces one that a predecessor left.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    gone(fs::remove_file(path))?;
    // Between `bind` and `set_permissions` the umask keeps other users out.
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
