//! Real nats-servers on free loopback ports, with everything they write in a temporary folder; killed on drop.

use std::fs;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use putexd::types::store::{NatsCredentials, NatsSettings, Tls};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

/// How long a server may take to start, or a cluster to elect its leader. Far more than either needs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// One server, running or not.
pub struct NatsServer {
    port: u16,
    config: PathBuf,
    child: Option<Child>,
    folder: TempDir,
}

impl NatsServer {
    /// A server with JetStream, and `extra` in its configuration, where `@` stands for its folder.
    pub fn start(extra: &str) -> Self {
        Self::start_in(TempDir::new().expect("a temporary folder"), extra)
    }

    /// `start` in a folder that has files already.
    pub fn start_in(folder: TempDir, extra: &str) -> Self {
        let port = free_port();
        let mut server = Self { port, config: folder.path().join("nats.conf"), child: None, folder };
        let path = server.folder.path().display();
        let text = format!(
            "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{path}/data\" }}\n{}\n",
            extra.replace('@', &path.to_string())
        );
        fs::write(&server.config, text).expect("the configuration is written");
        server.come_back();
        server
    }

    /// Three servers that form a cluster.
    pub fn cluster() -> Vec<Self> {
        let routes: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let urls: Vec<String> = routes.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect();
        let start = |(index, port): (usize, &u16)| {
            Self::start(&format!(
                "server_name: n{index}\ncluster {{ name: test, listen: \"127.0.0.1:{port}\", routes: [{}] }}",
                urls.join(",")
            ))
        };
        routes.iter().enumerate().map(start).collect()
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub fn tls_url(&self) -> String {
        format!("tls://127.0.0.1:{}", self.port)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Settings for this server alone.
    pub fn settings(&self) -> NatsSettings {
        settings(vec![self.url()])
    }

    /// SIGKILL.
    pub fn die(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("the server is killed");
            child.wait().expect("the server is reaped");
        }
    }

    /// Starts it again on the same port with the same data, and waits until it answers.
    pub fn come_back(&mut self) {
        let log = self.folder.path().join("log");
        let output = fs::File::options().create(true).append(true).open(&log).expect("the server's log");
        let child = Command::new("nats-server")
            .arg("-c")
            .arg(&self.config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("nats-server cannot be started ({error}): install the Debian package nats-server")
            });
        self.child = Some(child);
        let port = self.port;
        eventually("the server answers", || greets(port), || fs::read_to_string(&log).unwrap_or_default());
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

impl Drop for NatsServer {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Nothing to be done about a failure here; the folder goes away all the same.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Settings without credentials that may create the bucket `locks`.
pub fn settings(servers: Vec<String>) -> NatsSettings {
    NatsSettings {
        servers,
        bucket: "locks".to_owned(),
        replicas: 1,
        create_bucket: true,
        credentials: NatsCredentials::None,
        tls_required: false,
        tls: Tls::default(),
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

/// A server that is ready greets with INFO.
fn greets(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let mut greeting = [0; 4];
    let greeted = stream.set_read_timeout(Some(Duration::from_secs(1))).and_then(|()| stream.read_exact(&mut greeting));
    greeted.is_ok() && &greeting == b"INFO"
}
