//! A folder that all hosts share, like one on a NAS. Each host sees it through a file system of its own, which this
//! machine serves, and which can be made to hang for one host or for all.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    command::{lock, output, wait_until},
    environment::utf8,
};

/// The mount point on the hosts.
pub const PLACE: &str = "/srv/putex";

/// One host's view of the folder.
pub struct Share {
    folder: PathBuf,
    place: PathBuf,
    log: PathBuf,
    network: String,
    server: Mutex<Option<Child>>,
    hangs: AtomicBool,
}

impl Share {
    /// `folder` is the shared one and `dir` is the host's own. The process that serves the host runs in `network`.
    pub fn new(folder: PathBuf, dir: &Path, network: String) -> Self {
        let place = dir.join("putex");
        fs::create_dir_all(&place).expect("the host's folder can be written to");
        Self {
            folder,
            place,
            log: dir.join("putex.log"),
            network,
            server: Mutex::new(None),
            hangs: AtomicBool::new(false),
        }
    }

    /// Where this machine has the host's view mounted.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Mounts the host's view. It must be called before the host is switched on.
    pub fn mount(&self) {
        let log = File::create(&self.log).expect("the host's folder can be written to");
        // Nothing is cached, so that each host sees at once what another one wrote. The server runs in the host's
        // network, where `clear` finds it if this process is killed. `ip netns exec` would mount the folder where no
        // host sees it.
        let server = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{}", self.network))
            .args([
                "bindfs",
                "-f",
                "-o",
                "attr_timeout=0,entry_timeout=0,negative_timeout=0,ac_attr_timeout=0",
            ])
            .args([&self.folder, &self.place])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .spawn();
        let before = lock(&self.server).replace(server.expect("nsenter can be run"));
        assert!(before.is_none(), "it is mounted already");
        self.hangs.store(false, Ordering::Relaxed);
        wait_until(
            Duration::from_secs(10),
            "the shared folder is mounted",
            || {
                output("mountpoint", &["--quiet", utf8(&self.place)])
                    .status
                    .success()
            },
        );
    }

    /// Unmounts the view after a power loss of the host. Calls of its processes that still wait fail, so that these
    /// processes can end.
    pub fn unmount(&self) {
        let Some(mut server) = lock(&self.server).take() else {
            return;
        };
        server
            .kill()
            .expect("the file system's server is a child of this process");
        server
            .wait()
            .expect("the file system's server is a child of this process");
        output("umount", &["--lazy", utf8(&self.place)]);
    }

    /// Makes every access to the folder wait, as on a host whose NAS is away. Pending requests are carried out later.
    pub fn hang(&self) {
        self.signal("-STOP");
        self.hangs.store(true, Ordering::Relaxed);
    }

    pub fn hangs(&self) -> bool {
        self.hangs.load(Ordering::Relaxed)
    }

    pub fn go_on(&self) {
        self.signal("-CONT");
        self.hangs.store(false, Ordering::Relaxed);
    }

    fn signal(&self, signal: &str) {
        if let Some(server) = &*lock(&self.server) {
            let sent = output("kill", &[signal, &server.id().to_string()]);
            assert!(sent.status.success(), "the file system's server runs");
        }
    }
}
