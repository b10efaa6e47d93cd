//! A server as a process of its own. It dies, hangs and comes back as a test asks, and is killed on drop.

use std::{
    fs,
    net::TcpListener,
    ops::Range,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// How long a server may take to start, or a cluster to elect its leader. Far more than either needs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// One server program, running or not.
pub struct ServerProcess {
    program: &'static str,
    /// The Debian package that contains the program.
    package: &'static str,
    arguments: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
}

impl ServerProcess {
    /// A server that is not running yet. Its output goes to the file `log`.
    pub fn new(
        program: &'static str,
        package: &'static str,
        arguments: Vec<String>,
        log: PathBuf,
    ) -> Self {
        Self {
            program,
            package,
            arguments,
            log,
            child: None,
        }
    }

    pub fn launch(&mut self) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .expect("the server's log");
        let child = Command::new(self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "{} cannot be started ({error}): install the Debian package {}",
                    self.program, self.package
                )
            });
        self.child = Some(child);
    }

    /// Waits until the server is ready. If that takes too long, it panics with the server's log.
    pub fn wait_until(&self, ready: impl FnMut() -> bool) {
        eventually("the server answers", ready, || {
            fs::read_to_string(&self.log).unwrap_or_default()
        });
    }

    /// Kills the server with SIGKILL.
    pub fn die(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("the server is killed");
            child.wait().expect("the server is reaped");
        }
    }

    /// Stops the server with SIGSTOP: it keeps its connections and answers nothing.
    pub fn hang(&self) {
        kill_process(self.pid(), Signal::STOP).expect("the signal is sent");
        // Its threads stop one by one, and the parent is told only when the last one has stopped.
        waitpid(Some(self.pid()), WaitOptions::UNTRACED).expect("the server stops");
    }

    /// Continues the server with SIGCONT.
    pub fn release(&self) {
        kill_process(self.pid(), Signal::CONT).expect("the signal is sent");
    }

    fn pid(&self) -> Pid {
        Pid::from_child(self.child.as_ref().expect("the server runs"))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A failure here cannot be handled. The server's folder is deleted in any case.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Checks `done` every few milliseconds until it is true. Panics with `report` after [`PATIENCE`].
pub fn eventually(what: &str, mut done: impl FnMut() -> bool, report: impl FnOnce() -> String) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(
            Instant::now() < end,
            "{what}: not within {PATIENCE:?}\n{}",
            report()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A port of 127.0.0.1 on which nothing listens. Each call gives another one, below the range from which the kernel takes ports
/// for connections: a server binds the port only after this call, and a connection of another test could have taken it by then.
pub fn free_port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    const PORTS: Range<u16> = 16_384..32_768;
    // Two test programs that run at the same time begin at different ports.
    let first = u16::try_from(std::process::id() % 64).expect("it is small") * 256;
    loop {
        let taken = first.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + taken % (PORTS.end - PORTS.start);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
