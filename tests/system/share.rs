//! A folder that all hosts share, as they share one of a NAS: each host sees it through a file system of its own, which
//! this machine serves, and which can be made to hang for one host or for all.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::command::{output, wait_until};
use crate::environment::utf8;

/// Where the hosts have it.
pub const PLACE: &str = "/srv/putex";

/// What one host sees of the folder.
pub struct Share {
    folder: PathBuf,
    place: PathBuf,
    log: PathBuf,
    network: String,
    server: Mutex<Option<Child>>,
}

impl Share {
    /// `folder` is shared; `dir` is the host's own, and what serves the host belongs to `network`.
    pub fn new(folder: PathBuf, dir: &Path, network: String) -> Self {
        let place = dir.join("putex");
        fs::create_dir_all(&place).expect("the host's folder can be written to");
        Self { folder, place, log: dir.join("putex.log"), network, server: Mutex::new(None) }
    }

    /// Where this machine has what the host sees.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Before the host is switched on.
    pub fn mount(&self) {
        let log = File::create(&self.log).expect("the host's folder can be written to");
        // Nothing is remembered on the way, so that each host sees at once what another one wrote. Found by its network
        // should this process be killed; `ip netns exec` would mount it where no host sees it.
        let server = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{}", self.network))
            .args(["bindfs", "-f", "-o", "attr_timeout=0,entry_timeout=0,negative_timeout=0,ac_attr_timeout=0"])
            .args([&self.folder, &self.place])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .spawn();
        let before = self.lock().replace(server.expect("nsenter can be run"));
        assert!(before.is_none(), "it is mounted already");
        wait_until(Duration::from_secs(10), "the shared folder is mounted", || {
            output("mountpoint", &["--quiet", utf8(&self.place)]).status.success()
        });
    }

    /// After the power loss of the host: what its processes still wait for fails, so that they can end.
    pub fn unmount(&self) {
        let Some(mut server) = self.lock().take() else { return };
        server.kill().expect("the file system's server is a child of this process");
        server.wait().expect("the file system's server is a child of this process");
        output("umount", &["--lazy", utf8(&self.place)]);
    }

    /// Whoever looks into the folder waits, as a host does whose NAS is away. What it has asked for is done later.
    pub fn hang(&self) {
        self.signal("-STOP");
    }

    pub fn go_on(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        if let Some(server) = &*self.lock() {
            let sent = output("kill", &[signal, &server.id().to_string()]);
            assert!(sent.status.success(), "the file system's server runs");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        // A test that failed while tenure it still has to clean up.
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
