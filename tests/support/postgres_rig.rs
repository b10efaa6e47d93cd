//! Real PostgreSQL servers on free loopback ports, each with a database cluster of its own in a temporary folder. They
//! are killed on drop.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use putexd::{
    store::{
        Store, StoreSettings,
        files::Files,
        postgres::{PostgresSettings, PostgresStore},
        settings::Access,
    },
    types::Key,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use super::{
    CALL_LIMIT, Rig,
    process::{eventually, free_port},
    remote::remote,
    up,
};

/// One server, running or not.
pub struct PostgresServer {
    pub port: u16,
    child: Option<Child>,
    folder: Arc<TempDir>,
}

impl PostgresServer {
    /// Starts a server with `extra` in its configuration, where `@` stands for its folder.
    pub fn start(extra: &str) -> Self {
        Self::start_in(folder(), extra)
    }

    /// As [`start`](Self::start), in a folder that has files already.
    pub fn start_in(folder: Arc<TempDir>, extra: &str) -> Self {
        let template = template();
        copy(&template.path().join("data"), &folder.path().join("data"));
        Self::start_with(folder, extra)
    }

    /// A standby server that follows this server, which knows it by `name`.
    pub fn standby(&self, name: &str) -> Self {
        let folder = folder();
        let data = folder.path().join("data");
        let source = format!(
            "host=127.0.0.1 port={} user=postgres application_name={name}",
            self.port
        );
        run(tool("pg_basebackup")
            .arg("-D")
            .arg(&data)
            .args(["-R", "-c", "fast", "-d", &source]));
        Self::start_with(folder, "")
    }

    fn start_with(folder: Arc<TempDir>, extra: &str) -> Self {
        let mut server = Self {
            port: free_port(),
            child: None,
            folder,
        };
        let path = server.path().display().to_string();
        let text = format!(
            "port = {}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{path}'\nshared_buffers = 8MB\n\
             max_connections = 60\nmax_wal_size = 64MB\nmin_wal_size = 32MB\nlogging_collector = off\n{}\n",
            server.port,
            extra.replace('@', &path)
        );
        let config = server.data().join("postgresql.conf");
        fs::write(&config, text).expect("the configuration is written");
        server.come_back();
        server
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// Sets who may log in, and how: lines of pg_hba.conf, in place of its usual ones.
    pub fn admit(&self, lines: &str) {
        fs::write(
            self.data().join("pg_hba.conf"),
            format!("local all postgres trust\n{lines}\n"),
        )
        .expect("pg_hba.conf");
        self.reload();
    }

    /// Has the server read its configuration again (SIGHUP).
    pub fn reload(&self) {
        kill_process(self.pid(), Signal::HUP).expect("the signal is sent");
    }

    /// Settings for this server alone.
    pub fn settings(&self) -> PostgresSettings {
        settings(&[self.port], "user=postgres dbname=postgres")
    }

    /// An administrator's session, over the Unix socket.
    pub async fn admin(&self) -> Client {
        let config = format!(
            "host={} port={} user=postgres dbname=postgres",
            self.path().display(),
            self.port
        );
        let (client, connection) = tokio_postgres::connect(&config, NoTls)
            .await
            .expect("the administrator connects");
        tokio::spawn(connection);
        client
    }

    /// Runs SQL as an administrator, and returns the first column of the answer.
    pub async fn sql(&self, text: &str) -> Vec<String> {
        let answer = self
            .admin()
            .await
            .simple_query(text)
            .await
            .unwrap_or_else(|error| panic!("{text}: {error:?}"));
        let rows = answer.iter().filter_map(|message| {
            let SimpleQueryMessage::Row(row) = message else {
                return None;
            };
            Some(row.get(0).unwrap_or_default().to_owned())
        });
        rows.collect()
    }

    /// Kills all processes of the server with SIGKILL.
    pub fn die(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        let children = children(&child);
        child.kill().expect("the server is killed");
        child.wait().expect("the server is reaped");
        for pid in children {
            // The process may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
            eventually("the server's process ends", || is_gone(pid), String::new);
        }
    }

    /// Starts the server again on the same port with the same data, and waits until it answers.
    pub fn come_back(&mut self) {
        let path = self.path().join("log");
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(&path)
            .expect("the server's log");
        let mut server = tool("postgres");
        server
            .arg("-D")
            .arg(self.data())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.child = Some(
            server
                .spawn()
                .expect("postgres starts: install the Debian package postgresql"),
        );
        let mut ready = tool("pg_isready");
        ready.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
        eventually(
            "the server answers",
            || ready.status().is_ok_and(|status| status.success()),
            || fs::read_to_string(&path).unwrap_or_default(),
        );
    }

    /// Stops the server with SIGSTOP: it keeps its connections and answers nothing.
    pub fn hang(&self) {
        stop(self.pid());
        // The main process is stopped, so it makes no more children now.
        self.children().into_iter().for_each(stop);
    }

    /// Continues the server with SIGCONT.
    pub fn release(&self) {
        for pid in self.children().into_iter().chain([self.pid()]) {
            // One of the processes may have ended.
            let _ = kill_process(pid, Signal::CONT);
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(self.child.as_ref().expect("the server runs"))
    }

    fn children(&self) -> Vec<Pid> {
        children(self.child.as_ref().expect("the server runs"))
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.die();
    }
}

pub struct PostgresRig(PostgresServer);

impl Rig for PostgresRig {
    async fn start() -> Self {
        let rig = Self(PostgresServer::start(""));
        rig.make().await;
        rig
    }
    fn open(&self, call_limit: Duration) -> Arc<dyn Store> {
        Arc::new(remote(
            StoreSettings::Postgres(self.0.settings()),
            call_limit,
        ))
    }
    async fn delete(&self, key: &Key) {
        self.0
            .sql(&format!("DELETE FROM putex_locks WHERE name = '{key}'"))
            .await;
    }
    async fn put_too_large(&self, key: &Key) {
        self.0
            .sql(&super::too_large::postgres("putex_locks", key.as_str()))
            .await;
    }
    async fn put_malformed(&self, key: &Key) -> bool {
        self.0
            .sql(&super::malformed::postgres("putex_locks", key.as_str()))
            .await;
        true
    }
    async fn wipe(&self) {
        self.0.sql("DROP TABLE putex_locks").await;
        self.make().await;
    }
    fn hang(&self) {
        self.0.hang();
    }
    fn release(&self) {
        self.0.release();
    }
    fn die(&mut self) {
        self.0.die();
    }
    fn come_back(&mut self) {
        self.0.come_back();
    }
}

impl PostgresRig {
    async fn make(&self) {
        let store = PostgresStore::new(self.0.settings(), CALL_LIMIT, Files::of_this_host());
        up(&store).await;
        store.init().await.expect("the table is made");
    }
}

/// Settings without a password for the usual table.
pub fn settings(ports: &[u16], connection: &str) -> PostgresSettings {
    let server = |port| format!("postgres://127.0.0.1:{port}");
    PostgresSettings {
        servers: ports.iter().map(server).collect(),
        connection: connection.to_owned(),
        table: "putex_locks".to_owned(),
        access: Access::default(),
    }
}

/// A temporary folder that the server's user may write to.
pub fn folder() -> Arc<TempDir> {
    let folder = TempDir::new().expect("a temporary folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))
        .expect("the folder's mode");
    give(folder.path());
    Arc::new(folder)
}

/// Gives a file to the server's user.
pub fn give(path: &Path) {
    if let Some((user, group)) = account() {
        chown(path, Some(user), Some(group)).expect("the file is given to the server's user");
    }
}

/// An empty database cluster to copy from. It takes a second or more to make, so it is kept as long as any test uses
/// it.
fn template() -> Arc<TempDir> {
    static TEMPLATE: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());
    let mut template = TEMPLATE.lock().unwrap_or_else(PoisonError::into_inner);
    template.upgrade().unwrap_or_else(|| {
        let made = folder();
        let options = [
            "-U",
            "postgres",
            "--auth=trust",
            "--no-sync",
            "-E",
            "UTF8",
            "--locale=C",
        ];
        run(tool("initdb")
            .arg("-D")
            .arg(made.path().join("data"))
            .args(options));
        *template = Arc::downgrade(&made);
        made
    })
}

fn copy(from: &Path, to: &Path) {
    run(Command::new("cp").arg("-a").arg(from).arg(to));
}

fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A program of PostgreSQL, run as the user `postgres` if we are root, because it refuses to be run by root.
fn tool(name: &str) -> Command {
    let versions = fs::read_dir("/usr/lib/postgresql")
        .expect("PostgreSQL: install the Debian package postgresql");
    let newest = versions
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .max();
    let version = newest.expect("a version of PostgreSQL: install the Debian package postgresql");
    let mut command = Command::new(format!("/usr/lib/postgresql/{version}/bin/{name}"));
    command.current_dir("/");
    if let Some((user, group)) = account() {
        command.uid(user).gid(group);
    }
    command
}

/// The user and the group that the servers run as, if we are root.
fn account() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("the users of this machine");
    let line = users
        .lines()
        .find(|line| line.starts_with("postgres:"))
        .expect("the user postgres");
    let mut numbers = line
        .split(':')
        .skip(2)
        .map(|number| number.parse().expect("a number"));
    Some((numbers.next()?, numbers.next()?))
}

fn children(child: &Child) -> Vec<Pid> {
    let id = child.id();
    let listed = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))
        .expect("the server's processes");
    listed
        .split_whitespace()
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect()
}

/// The letter of the process's state in /proc, or `None` if there is no such process.
fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn is_gone(pid: Pid) -> bool {
    state(pid).is_none_or(|state| state == 'Z')
}

fn stop(pid: Pid) {
    // The process may have ended.
    let _ = kill_process(pid, Signal::STOP);
    eventually(
        "the server's process stops",
        || is_gone(pid) || state(pid) == Some('T'),
        String::new,
    );
}
