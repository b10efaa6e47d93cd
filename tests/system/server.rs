//! A server beside the hosts, of any store that has servers. Power losses of the hosts do not affect it.

use std::{
    ffi::OsString,
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::Duration,
};

use serde_json::Value;

use crate::{
    cluster::in_network,
    command::{lock, output, run, said, wait_until},
    environment::{nats_server, utf8},
    lockstore::Lockstore,
    on_hosts::{etcd_command, nats_configuration},
};

/// The address of the locks' server beside the hosts.
pub const ADDRESS: &str = "10.77.0.5";
/// The address of a database beside the hosts that is not putexd's store.
pub const DATABASE_ADDRESS: &str = "10.77.0.6";

/// A server answers within one or two seconds, and later on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The server, running or not. It is killed when this is dropped.
pub struct Server {
    store: Lockstore,
    network: String,
    address: &'static str,
    dir: PathBuf,
    process: Mutex<Option<Child>>,
}

impl Server {
    /// Starts a server of `store` in the network namespace `network`, where it has `address`, and waits until it
    /// answers.
    pub fn start(store: Lockstore, network: String, address: &'static str, dir: &Path) -> Self {
        fs::create_dir_all(dir).expect("the cluster's folder can be written to");
        let server = Self {
            store,
            network,
            address,
            dir: dir.to_owned(),
            process: Mutex::new(None),
        };
        if store == Lockstore::Nats {
            let text = nats_configuration("outside", utf8(&server.data()), &[]);
            fs::write(dir.join("nats.conf"), text).expect("the cluster's folder can be written to");
        }
        server.up();
        server
    }

    /// Starts the server with the data that it has stored, and waits until it answers.
    pub fn up(&self) {
        if self.store == Lockstore::Postgres && !self.data().exists() {
            self.make_database();
        }
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("log"));
        let log = log.expect("the cluster's folder can be written to");
        let process = Command::new("ip")
            .args(["netns", "exec", &self.network])
            .args(self.command())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .spawn();
        let before = lock(&self.process).replace(process.expect("ip can be run"));
        assert!(before.is_none(), "the server runs already");
        wait_until(START_LIMIT, "the server beside the hosts answers", || {
            let ended = lock(&self.process)
                .as_mut()
                .is_some_and(|process| process.try_wait().is_ok_and(|end| end.is_some()));
            let log = || fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            assert!(!ended, "the server beside the hosts has ended: {}", log());
            self.answers()
        });
    }

    /// Kills the server with SIGKILL, and waits until its processes are gone.
    pub fn kill(&self) {
        if let Some(mut process) = lock(&self.process).take() {
            self.signal("-KILL");
            process
                .wait()
                .expect("the server is a child of this process");
            // PostgreSQL does not start again beside a process of its former run.
            wait_until(START_LIMIT, "the server's processes are gone", || {
                self.processes().is_empty()
            });
        }
    }

    /// Stops the server with SIGSTOP: connections stay, but it answers nothing.
    pub fn hang(&self) {
        self.signal("-STOP");
    }

    pub fn go_on(&self) {
        self.signal("-CONT");
    }

    /// Runs SQL on the PostgreSQL server, and returns its answer, a line for each row.
    #[track_caller]
    pub fn sql(&self, statements: &str) -> String {
        let psql = postgres_program("psql");
        let asked = [
            "netns",
            "exec",
            &self.network,
            utf8(&psql),
            "-h",
            self.address,
            "-U",
            "postgres",
            "-d",
            "postgres",
        ];
        let quiet = [
            "--no-psqlrc",
            "--quiet",
            "--tuples-only",
            "--no-align",
            "--set=ON_ERROR_STOP=1",
            "--command",
        ];
        run("ip", &[&asked[..], &quiet[..], &[statements]].concat())
            .trim()
            .to_owned()
    }

    /// Starts the NATS server again with permissions for these subjects alone.
    pub fn permit(&self, subjects: &[&str]) {
        self.kill();
        let path = self.dir.join("nats.conf");
        let users = format!(
            "authorization {{ users: [ {{ user: all, permissions: {{ publish: {subjects:?} }} }} ] }}"
        );
        let text = nats_configuration("outside", utf8(&self.data()), &[]);
        fs::write(path, format!("{text}{users}\nno_auth_user: all\n"))
            .expect("the cluster's folder can be written to");
        self.up();
    }

    /// Deletes all stored data, as if the disk had been replaced.
    pub fn wipe(&self) {
        self.kill();
        fs::remove_dir_all(self.data()).expect("the server has stored something");
    }

    fn data(&self) -> PathBuf {
        self.dir.join("store")
    }

    fn command(&self) -> Vec<OsString> {
        let words = match self.store {
            Lockstore::Nats => format!(
                "{} -c {}",
                utf8(&nats_server()),
                utf8(&self.dir.join("nats.conf"))
            ),
            Lockstore::Etcd => {
                let member = format!("outside=http://{}:2380", self.address);
                etcd_command("outside", utf8(&self.data()), self.address, &[member])
            }
            Lockstore::Postgres => format!(
                "setpriv --reuid=postgres --regid=postgres --clear-groups {} -D {data} -h 0.0.0.0 -k {data}",
                utf8(&postgres_program("postgres")),
                data = utf8(&self.data())
            ),
            Lockstore::Directory => unreachable!("a shared folder has no server"),
        };
        words.split(' ').map(OsString::from).collect()
    }

    fn answers(&self) -> bool {
        match self.store {
            Lockstore::Nats => {
                in_network(&self.network, || get_json(self.address, 8222, "/healthz")).is_some()
            }
            Lockstore::Etcd => in_network(&self.network, || {
                get_json(self.address, Lockstore::ETCD_PORT, "/health")
            })
            .is_some_and(|health| health["health"] == "true"),
            Lockstore::Postgres => {
                let is_ready = postgres_program("pg_isready");
                let asked = [
                    "netns",
                    "exec",
                    &self.network,
                    utf8(&is_ready),
                    "-q",
                    "-h",
                    self.address,
                ];
                output("ip", &asked).status.success()
            }
            Lockstore::Directory => unreachable!("a shared folder has no server"),
        }
    }

    /// Makes an empty database cluster, owned by the only user that PostgreSQL runs as.
    fn make_database(&self) {
        run("chown", &["postgres:", utf8(&self.dir)]);
        let initdb = postgres_program("initdb");
        let asked = [
            "--reuid=postgres",
            "--regid=postgres",
            "--clear-groups",
            utf8(&initdb),
            "--no-sync",
            "--auth=trust",
        ];
        let data = self.data();
        let made = output("setpriv", &[&asked[..], &["-D", utf8(&data)]].concat());
        assert!(made.status.success(), "initdb: {}", said(&made));
        let everyone = "host all all 10.77.0.0/24 trust\n";
        fs::write(data.join("pg_hba.conf"), everyone)
            .expect("the cluster's folder can be written to");
    }

    /// Sends a signal to all of the server's processes at once: PostgreSQL has one for each connection.
    fn signal(&self, signal: &str) {
        let processes = self.processes();
        let mut arguments = vec![signal];
        arguments.extend(processes.iter().map(String::as_str));
        output("kill", &arguments);
    }

    /// The server's processes: nothing else runs in its network namespace.
    fn processes(&self) -> Vec<String> {
        let listed = run("ip", &["netns", "pids", &self.network]);
        listed.split_whitespace().map(str::to_owned).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A program of PostgreSQL. Debian has a folder of programs for each version, of which the newest is taken.
fn postgres_program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let newest = versions
        .map(|version| version.path().join("bin").join(name))
        .filter(|program| program.exists())
        .max();
    newest.expect("tests/system/prepare installs PostgreSQL")
}

/// A GET request in the network of this thread. `None` when it is not answered with 200 and JSON.
pub fn get_json(address: &str, port: u16, path: &str) -> Option<Value> {
    ask(address, port, &format!("GET {path} HTTP/1.0\r\n\r\n"))
}

/// As [`get_json`], for a POST request.
pub fn post_json(address: &str, port: u16, path: &str, body: &Value) -> Option<Value> {
    let body = body.to_string();
    ask(
        address,
        port,
        &format!(
            "POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ),
    )
}

/// The request is HTTP/1.0, so that the answer comes in one piece and the server closes the connection.
fn ask(address: &str, port: u16, request: &str) -> Option<Value> {
    let limit = Duration::from_secs(1);
    let address = SocketAddr::new(
        address
            .parse()
            .expect("addresses of the tests are addresses"),
        port,
    );
    let mut stream = TcpStream::connect_timeout(&address, limit).ok()?;
    stream.set_read_timeout(Some(limit)).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.lines()
        .next()?
        .contains(" 200 ")
        .then(|| serde_json::from_str(body).ok())?
}
