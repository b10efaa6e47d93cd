//! A server as a process of its own: it dies, hangs and comes back as a test asks, and is killed on drop.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// How long a server may take to start, or a cluster to elect its leader. Far more than either needs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// One program, running or not.
pub struct ServerProcess {
    program: &'static str,
    /// The Debian package that has it.
    package: &'static str,
    arguments: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
}

impl ServerProcess {
    /// Not running yet. What it says goes to the file `log`.
    pub fn new(program: &'static str, package: &'static str, arguments: Vec<String>, log: PathBuf) -> Self {
        Self { program, package, arguments, log, child: None }
    }

    pub fn launch(&mut self) {
        let log = fs::File::options().create(true).append(true).open(&self.log).expect("the server's log");
        let child = Command::new(self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{} cannot be started ({error}): install the Debian package {}", self.program, self.package)
            });
        self.child = Some(child);
    }

    /// Waits until the server says that it is ready, or else shows what it said.
    pub fn wait_until(&self, ready: impl FnMut() -> bool) {
        eventually("the server answers", ready, || fs::read_to_string(&self.log).unwrap_or_default());
    }

    /// SIGKILL.
    pub fn die(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("the server is killed");
            child.wait().expect("the server is reaped");
        }
    }

    /// SIGSTOP: the server keeps its connections and answers nothing.
    pub fn hang(&self) {
        kill_process(self.pid(), Signal::STOP).expect("the signal is sent");
        // Its threads stop one by one, and only the parent is told when the last has.
        waitpid(Some(self.pid()), WaitOptions::UNTRACED).expect("the server stops");
    }

    /// SIGCONT.
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
            // Nothing to be done about a failure here; the server's folder goes away all the same.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Looks every few milliseconds until `done` says yes; panics with `report` when that takes too long.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool, report: impl FnOnce() -> String) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}\n{}", report());
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    listener.local_addr().expect("the port's address").port()
}
