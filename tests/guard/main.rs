//! Tests of the real putex-guard on a directory of its own, driven through the client that putexd uses.
//!
//! Tests that need control groups run where they may make one (as root), and are skipped with a message elsewhere.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{
        fs::PermissionsExt as _,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

use putexd::{
    guard_client::{
        GuardClient, GuardError,
        frame::{self, Lease, REQUEST_LIMIT_BYTES},
    },
    host::{
        cgroup::{Hierarchy, group_of},
        clock,
    },
    types::{
        Extension, FencingToken, Instance, LeaseTerms, NodeId, OnStopFailure, Revision,
        ServiceName, Time, WriteId,
    },
};
use tokio::time::{sleep, timeout};

/// For what takes a moment, and longer on a busy machine.
const LIMIT: Duration = Duration::from_secs(10);
/// A life that a lease still has when it is armed on a busy machine.
const SHORT: Duration = Duration::from_secs(1);

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Most tests share this lock. Those with a thousand processes take it alone, because the others measure tenths of a
/// second.
static TURNS: RwLock<()> = RwLock::new(());

struct Guard {
    root: tempfile::TempDir,
    child: Child,
    _turn: Option<RwLockReadGuard<'static, ()>>,
}

impl Guard {
    fn start() -> Self {
        Self::start_with(Stdio::piped())
    }

    /// Starts a guard with another journal.
    fn start_with(stderr: Stdio) -> Self {
        let turn = turn();
        let root = in_memory();
        let child = Self::spawn(root.path(), stderr);
        Self {
            root,
            child,
            _turn: Some(turn),
        }
    }

    /// Starts a guard in a test that holds the lock [`TURNS`] alone.
    fn alone(stderr: Stdio) -> Self {
        let root = in_memory();
        let child = Self::spawn(root.path(), stderr);
        Self {
            root,
            child,
            _turn: None,
        }
    }

    /// Starts a guard with a file in place of the watchdog device. With `None` the file does not exist.
    fn with_watchdog(content: Option<&str>) -> Self {
        Self::with_watchdog_of("1s", content)
    }

    /// As [`with_watchdog`](Self::with_watchdog), with that timeout.
    fn with_watchdog_of(limit: &str, content: Option<&str>) -> Self {
        let root = tempfile::tempdir().expect("a directory");
        if let Some(content) = content {
            fs::write(root.path().join("watchdog"), content).expect("writes");
        }
        let turn = turn();
        let child = Self::spawn_with_watchdog(root.path(), limit);
        Self {
            root,
            child,
            _turn: Some(turn),
        }
    }

    fn spawn_with_watchdog(root: &Path, limit: &str) -> Child {
        let device = root.join("watchdog").display().to_string();
        Self::spawn_with(
            root,
            Stdio::piped(),
            &["--watchdog-device", &device, "--watchdog-timeout", limit],
        )
    }

    /// What was written to the device.
    fn keep_alives(&self) -> String {
        fs::read_to_string(self.root.path().join("watchdog")).unwrap_or_default()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)
            .expect("is sent");
    }

    fn spawn(root: &Path, stderr: Stdio) -> Child {
        Self::spawn_with(root, stderr, &[])
    }

    fn spawn_with(root: &Path, stderr: Stdio, arguments: &[&str]) -> Child {
        Self::spawn_program(
            Path::new(env!("CARGO_BIN_EXE_putex-guard")),
            root,
            stderr,
            arguments,
        )
    }

    fn spawn_program(program: &Path, root: &Path, stderr: Stdio, arguments: &[&str]) -> Child {
        // In particular, the trigger that takes the host down must not be the host's own.
        fs::create_dir_all(root.join("proc")).expect("a folder");
        Command::new(program)
            .arg("--root")
            .arg(root)
            .args(arguments)
            .stderr(stderr)
            .spawn()
            .expect("starts")
    }

    fn kill(&mut self) -> String {
        self.child.kill().expect("is killed");
        self.ended().1
    }

    /// Waits for the end of the guard. Returns its exit status and its log.
    fn ended(&mut self) -> (Option<i32>, String) {
        let log =
            std::io::read_to_string(self.child.stderr.take().expect("is piped")).expect("is text");
        (self.child.wait().expect("ends").code(), log)
    }

    fn restart(&mut self) {
        self.child = Self::spawn(self.root.path(), Stdio::piped());
    }

    fn socket(&self) -> PathBuf {
        self.root.path().join("run/putex/guard.sock")
    }

    fn grant(&self) -> PathBuf {
        self.root.path().join("run/putex/leases/db")
    }

    async fn client(&self) -> GuardClient {
        client_of(&self.socket()).await
    }

    fn gate(&self, token: &str) -> Option<i32> {
        let mut gate = Command::new(env!("CARGO_BIN_EXE_putex-guard"));
        gate.args(["gate", "db", "--root"])
            .arg(self.root.path())
            .env("PUTEX_FENCING_TOKEN", token)
            .stderr(Stdio::null());
        gate.status().expect("runs").code()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Takes the lock for a test that can run together with others.
fn turn() -> RwLockReadGuard<'static, ()> {
    TURNS.read().unwrap_or_else(PoisonError::into_inner)
}

/// A temporary directory in memory, as /run is. A thousand files on a disk would take longer than such short leases
/// last.
fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a directory")
}

/// A client with an established connection.
async fn client_of(socket: &Path) -> GuardClient {
    let client = GuardClient::new(socket, LIMIT);
    up(&client, true).await;
    client
}

async fn up(client: &GuardClient, is_up: bool) {
    timeout(LIMIT, client.link().wait_for(|now| *now == is_up))
        .await
        .expect("in time")
        .expect("is alive");
}

fn db() -> ServiceName {
    ServiceName::new("db").expect("a good name")
}

fn lease(instance: u128, life: Duration) -> Lease {
    Lease {
        service: db(),
        node: NodeId::new("alpha").expect("a good name"),
        terms: LeaseTerms {
            instance: Instance(instance),
            write: WriteId(1),
            revision: Revision(1),
            token: FencingToken(42),
            deadline: clock::now().plus(life),
            stop_budget: ms(600),
            kill_reserve: ms(300),
        },
        units: Vec::new(),
        cgroups: Vec::new(),
        inactive: Vec::new(),
        begun: Vec::new(),
        contains: Vec::new(),
        outside: [].into(),
        on_stop_failure: OnStopFailure::Alert,
        closing: false,
    }
}

/// Waits until all leases of the guard have lapsed.
async fn lapse(client: &GuardClient) {
    let lapsed = async {
        while !client
            .list()
            .await
            .expect("lists")
            .iter()
            .all(|listed| listed.lapsed)
        {
            sleep(ms(5)).await;
        }
    };
    timeout(LIMIT, lapsed).await.expect("the deadline passes");
}

async fn extend(client: &GuardClient, instance: u128, life: Duration) -> Result<(), GuardError> {
    let extend = frame::Command::Extend {
        service: db(),
        instance: Instance(instance),
        extension: Extension {
            write: WriteId(2),
            revision: Revision(2),
            deadline: clock::now().plus(life),
        },
    };
    client.order(extend).await
}

#[tokio::test]
async fn a_grant_exists_exactly_while_a_deadline_is_armed_and_open() {
    let guard = Guard::start();
    let client = guard.client().await;
    assert_eq!(guard.gate("42"), Some(254), "no lease");
    client.arm(lease(1, ms(30_000))).await.expect("arms");
    assert!(
        fs::read_to_string(guard.grant())
            .expect("is there")
            .contains("PUTEX_FENCING_TOKEN=42\n")
    );
    assert_eq!(
        (guard.gate("42"), guard.gate("41"), guard.gate("")),
        (Some(0), Some(254), Some(254))
    );
    let before = fs::read_to_string(guard.grant()).expect("is there");
    extend(&client, 1, ms(60_000)).await.expect("extends");
    assert_ne!(
        before,
        fs::read_to_string(guard.grant()).expect("is there"),
        "the gate sees the new deadline"
    );
    client.close(&db(), Instance(1)).await.expect("closes");
    assert!(!guard.grant().exists());
    extend(&client, 1, ms(90_000))
        .await
        .expect("extends a closing lease");
    assert!(!guard.grant().exists());
    assert!(matches!(
        client.arm(lease(2, ms(30_000))).await,
        Err(GuardError::Refused(_))
    ));
    client.disarm(&db(), Instance(1)).await.expect("disarms");
    assert_eq!(client.list().await.expect("lists"), []);
    client.arm(lease(2, SHORT)).await.expect("arms");
    lapse(&client).await;
    assert!(!guard.grant().exists(), "the deadline has passed");
    assert!(matches!(
        extend(&client, 2, ms(9000)).await,
        Err(GuardError::Refused(_))
    ));
}

#[tokio::test]
async fn the_socket_is_for_its_owner_alone() {
    let guard = Guard::start();
    let _client = guard.client().await;
    let mode = fs::metadata(guard.socket())
        .expect("is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn deadlines_outlive_the_guard_and_grants_do_not() {
    let mut guard = Guard::start();
    let client = guard.client().await;
    client.arm(lease(1, ms(3000))).await.expect("arms");
    guard.kill();
    up(&client, false).await;
    assert_eq!(client.list().await, Err(GuardError::Gone));
    guard.restart();
    up(&client, true).await;
    assert!(!guard.grant().exists());
    let listed = client.list().await.expect("lists");
    assert!(listed[0].lease.closing && !listed[0].lapsed);
    assert!(matches!(
        client.arm(lease(1, ms(9000))).await,
        Err(GuardError::Refused(_))
    ));
    lapse(&client).await;
    let log = guard.kill();
    assert!(log.contains("<1>db: its lease has lapsed"), "{log}");
}

#[tokio::test]
async fn a_table_of_another_boot_is_forgotten() {
    let mut guard = Guard::start();
    let client = guard.client().await;
    client.arm(lease(1, ms(60_000))).await.expect("arms");
    guard.kill();
    let path = guard.root.path().join("run/putex/guard/leases/db");
    let text = fs::read_to_string(&path).expect("is there");
    let (lines, record) = text.split_once("\"boot\":\"").expect("names the boot");
    let (_, rest) = record.split_once("\",").expect("and more");
    fs::write(&path, format!("{lines}\"boot\":\"{:032x}\",{rest}", 1)).expect("writes");
    guard.restart();
    up(&client, false).await;
    up(&client, true).await;
    assert_eq!(client.list().await.expect("lists"), []);
}

#[tokio::test]
async fn a_new_connection_ends_the_old_one() {
    let guard = Guard::start();
    let client = guard.client().await;
    let old = UnixStream::connect(guard.socket()).expect("connects");
    old.set_read_timeout(Some(LIMIT)).expect("a limit");
    let mut new = UnixStream::connect(guard.socket()).expect("connects");
    assert!(matches!(
        BufReader::new(&old).read_line(&mut String::new()),
        Ok(0) | Err(_)
    ));
    // The client has lost its connection to this one, and comes back. Until then the guard answers this connection.
    let _ = new.write_all(b"{\"id\":7,\"command\":\"list\"}\n");
    up(&client, true).await;
}

#[tokio::test]
async fn what_is_garbled_or_too_long_ends_the_connection() {
    let guard = Guard::start();
    drop(guard.client().await);
    for line in [
        b"{}\n".to_vec(),
        b"\n".to_vec(),
        vec![b'x'; REQUEST_LIMIT_BYTES + 1],
    ] {
        let mut stream = UnixStream::connect(guard.socket()).expect("connects");
        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        let _ = stream.write_all(&line);
        let ended = BufReader::new(stream).read_line(&mut String::new());
        let reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(matches!(ended, Ok(0)) || ended.is_err_and(|error| reset(&error)));
    }
    guard
        .client()
        .await
        .list()
        .await
        .expect("the guard is well");
}

#[tokio::test]
async fn many_services_share_the_connection() {
    let guard = Guard::start();
    let client = guard.client().await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..100 {
        let client = client.clone();
        tasks.spawn(async move {
            let mut lease = lease(number, ms(60_000));
            lease.service = ServiceName::new(&format!("s{number}")).expect("a good name");
            client.arm(lease).await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("does not panic").expect("arms");
    }
    assert_eq!(client.list().await.expect("lists").len(), 100);
}

#[tokio::test]
async fn a_guard_that_hangs_is_gone() {
    let guard = Guard::start();
    let client = GuardClient::new(&guard.socket(), ms(200));
    up(&client, true).await;
    let pid = rustix::process::Pid::from_child(&guard.child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stops");
    assert_eq!(
        client.arm(lease(1, ms(60_000))).await,
        Err(GuardError::Gone)
    );
    up(&client, false).await;
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("goes on");
    // It has the client's short limit for its answer, and may need it more than once.
    let answers = async {
        while client.list().await.is_err() {
            sleep(ms(5)).await;
        }
    };
    timeout(LIMIT, answers).await.expect("lists");
}

/// A control group with a process that ignores SIGTERM. `None`, with a message, where groups cannot be made.
struct Victim {
    directory: PathBuf,
    path: String,
    child: Child,
}

impl Victim {
    fn new(name: &str) -> Option<Self> {
        let path = format!("/putex-test-{name}-{}", std::process::id());
        // The order is the one in which the guard looks.
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let root = roots
            .into_iter()
            .find(|root| Path::new(root).join("cgroup.procs").exists())?;
        let directory = PathBuf::from(format!("{root}{path}"));
        if let Err(error) = fs::create_dir(&directory) {
            eprintln!("not tested: cannot make a control group: {error}");
            return None;
        }
        let child = Command::new("sh")
            .args(["-c", "trap '' TERM; while :; do sleep 1; done"])
            .spawn()
            .expect("starts");
        fs::write(directory.join("cgroup.procs"), child.id().to_string()).expect("moves");
        Some(Self {
            directory,
            path,
            child,
        })
    }

    fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("can be asked").is_none()
    }

    /// Waits until the process is dead, which takes a moment after the signal.
    async fn wait_for_end(&mut self) {
        wait_for_end(&mut self.child).await;
    }

    /// Checks shortly before `kill_at` that the process lives. Whoever looks too late proves nothing.
    async fn assert_alive_until(&mut self, kill_at: Time) {
        sleep(clock::now().until_passed(kill_at).saturating_sub(ms(100))).await;
        assert!(
            self.is_alive() || clock::now().has_passed(kill_at),
            "systemd has its chance first"
        );
    }
}

async fn wait_for_end(child: &mut Child) {
    let ended = async {
        while child.try_wait().expect("can be asked").is_none() {
            sleep(ms(5)).await;
        }
    };
    timeout(LIMIT, ended)
        .await
        .expect("nobody else would kill it");
}

impl Drop for Victim {
    fn drop(&mut self) {
        if let Ok(hierarchy) = Hierarchy::detect() {
            let _ = hierarchy.kill(&self.path);
        }
        let _ = self.child.wait();
        let _ = fs::remove_dir(&self.directory);
    }
}

#[tokio::test]
async fn units_are_killed_between_the_kill_time_and_the_end_of_s_and_again_after_it() {
    let Some(mut victim) = Victim::new("kill") else {
        return;
    };
    let mut guard = Guard::start();
    let client = guard.client().await;
    let mut lease = lease(1, SHORT);
    lease.cgroups = vec![victim.path.clone()];
    let (kill_at, dead_by) = (lease.terms.kill_at(), lease.terms.dead_by());
    client.arm(lease).await.expect("arms");
    victim.assert_alive_until(kill_at).await;
    sleep(clock::now().until_passed(dead_by)).await;
    assert!(!victim.is_alive());
    // A start that systemd had decided before is carried out after the kill. Its process is killed too.
    let mut late = Command::new("sleep").arg("60").spawn().expect("starts");
    fs::write(victim.directory.join("cgroup.procs"), late.id().to_string()).expect("moves");
    wait_for_end(&mut late).await;
    client.disarm(&db(), Instance(1)).await.expect("disarms");
    sleep(ms(150)).await;
    let mut after = Command::new("sleep").arg("60").spawn().expect("starts");
    fs::write(
        victim.directory.join("cgroup.procs"),
        after.id().to_string(),
    )
    .expect("moves");
    sleep(ms(300)).await;
    assert!(
        after.try_wait().expect("can be asked").is_none(),
        "a disarmed lease kills nothing"
    );
    after.kill().expect("is killed");
    after.wait().expect("ends");
    let log = guard.kill();
    assert!(
        log.contains("<5>db: nothing of its units runs any more"),
        "{log}"
    );
    assert_eq!(log.matches("have got SIGKILL").count(), 2, "{log}");
}

/// The unit is started again in another slice, once while its lease is open, and once when the lease has already
/// lapsed.
#[tokio::test]
async fn units_are_killed_in_every_control_group_that_the_guard_knows_of() {
    let (Some(mut first), Some(mut second), Some(mut third)) =
        (Victim::new("was"), Victim::new("is"), Victim::new("came"))
    else {
        return;
    };
    let guard = Guard::start();
    let client = guard.client().await;
    let mut lease = lease(1, ms(1000));
    lease.cgroups = vec![first.path.clone()];
    client.arm(lease.clone()).await.expect("arms");
    lease.cgroups.push(second.path.clone());
    client
        .arm(lease.clone())
        .await
        .expect("arms again, with the same deadline");
    let mut other = lease.clone();
    other.service = ServiceName::new("renamed").expect("a good name");
    other.cgroups = vec![format!("{}/inner", second.path)];
    let refused = Err(GuardError::Refused(format!(
        "the lease of db still covers {}/inner",
        second.path
    )));
    assert_eq!(client.arm(other.clone()).await, refused);
    sleep(clock::now().until_passed(lease.terms.dead_by())).await;
    other.terms.deadline = clock::now().plus(ms(30_000));
    assert_eq!(
        client.arm(other.clone()).await,
        refused,
        "a lease that has lapsed covers it too"
    );
    assert!(!first.is_alive() && !second.is_alive() && third.is_alive());
    lease.closing = true;
    lease.cgroups = vec![third.path.clone()];
    client
        .arm(lease.clone())
        .await
        .expect("a lapsed lease may cover more, long after its deadline");
    assert_eq!(
        client.list().await.expect("lists")[0].lease.cgroups.len(),
        3
    );
    third.wait_for_end().await;
    client.disarm(&db(), Instance(1)).await.expect("disarms");
    client.arm(other).await.expect("it is free");
}

/// A guard whose lease lapses soon, the process that it has to kill then, and the latest time for that.
async fn about_to_lapse(name: &str) -> Option<(Guard, Victim, Time)> {
    let victim = Victim::new(name)?;
    let guard = Guard::start();
    let mut lease = lease(1, SHORT);
    lease.cgroups = vec![victim.path.clone()];
    let kill_at = lease.terms.kill_at();
    guard.client().await.arm(lease).await.expect("arms");
    Some((guard, victim, kill_at))
}

/// Whatever else a guard does when it wakes may fail or be slow. So the first of these steps is made to fail.
#[tokio::test]
async fn a_guard_that_wakes_late_kills_before_it_does_anything_else() {
    let Some((mut guard, mut victim, kill_at)) = about_to_lapse("wakes").await else {
        return;
    };
    guard.signal(rustix::process::Signal::STOP);
    fs::remove_file(guard.grant()).expect("is removed");
    fs::create_dir_all(guard.grant().join("no-file")).expect("is in the way of the removal");
    sleep(clock::now().until_passed(kill_at)).await;
    assert!(victim.is_alive(), "nobody is awake");
    guard.signal(rustix::process::Signal::CONT);
    let (status, log) = guard.ended();
    assert_eq!(status, Some(71), "{log}");
    assert!(log.contains("cannot remove a grant"), "{log}");
    victim.wait_for_end().await;
}

/// The successor cannot even make its socket.
#[tokio::test]
async fn a_successor_kills_before_it_does_anything_else() {
    let Some((mut guard, mut victim, kill_at)) = about_to_lapse("successor").await else {
        return;
    };
    guard.kill();
    fs::remove_file(guard.socket()).expect("is removed");
    fs::create_dir_all(guard.socket().join("no-file")).expect("is in the way of the socket");
    sleep(clock::now().until_passed(kill_at)).await;
    assert!(victim.is_alive(), "nobody is there");
    guard.restart();
    victim.wait_for_end().await;
    sleep(ms(500)).await;
    let log = guard.kill();
    assert!(log.contains("cannot listen"), "{log}");
}

/// The kill does not check what is in a group, so a group must not contain a process that must never be killed.
#[tokio::test]
async fn a_group_that_holds_the_guard_or_putexd_is_not_armed() {
    let Some(victim) = Victim::new("holds") else {
        return;
    };
    let guard = Guard::start();
    let client = guard.client().await;
    let inner = victim.directory.join("inner");
    fs::create_dir(&inner).expect("is made");
    let mut lease = lease(1, ms(30_000));
    lease.cgroups = vec![victim.path.clone()];
    fs::write(inner.join("cgroup.procs"), guard.child.id().to_string()).expect("moves");
    let refused = client.arm(lease.clone()).await;
    let Err(GuardError::Refused(why)) = refused else {
        panic!("{refused:?}")
    };
    assert!(why.contains(&victim.path) && why.contains("holds"), "{why}");
    assert!(!guard.grant().exists());
    fs::write(
        victim.directory.join("../cgroup.procs"),
        guard.child.id().to_string(),
    )
    .expect("moves");

    drop(client);
    let putexd = Command::new(std::env::current_exe().expect("this program has a path"))
        .args(["--ignored", "--exact", "a_putexd_in_the_group_of_its_unit"])
        .envs([
            ("PUTEX_TEST_SOCKET", guard.socket()),
            ("PUTEX_TEST_GROUP", inner.clone()),
        ])
        .output()
        .expect("this program can be run once more");
    assert!(
        putexd.status.success(),
        "{}",
        String::from_utf8_lossy(&putexd.stdout)
    );

    let client = guard.client().await;
    client.arm(lease).await.expect("arms");
    client.disarm(&db(), Instance(1)).await.expect("disarms");
    fs::remove_dir(&inner).expect("is empty");
}

/// This runs in a process of its own, because the whole process is moved to another control group.
#[tokio::test]
#[ignore = "a_group_that_holds_the_guard_or_putexd_is_not_armed runs it"]
async fn a_putexd_in_the_group_of_its_unit() {
    let path = |name| std::env::var_os(name).map(PathBuf::from);
    let (Some(socket), Some(group)) = (path("PUTEX_TEST_SOCKET"), path("PUTEX_TEST_GROUP")) else {
        return;
    };
    fs::write(group.join("cgroup.procs"), "0").expect("moves");
    let own = group_of(Path::new("/proc/self")).expect("is known");
    let client = client_of(&socket).await;
    let mut lease = lease(1, ms(30_000));
    lease.cgroups = vec![own.trim_end_matches("/inner").to_owned()];
    let refused = client.arm(lease).await;
    let Err(GuardError::Refused(why)) = refused else {
        panic!("{refused:?}")
    };
    assert!(why.contains("holds putexd"), "{why}");
}

/// journald may hang with the rest of the host, or not read in time.
#[tokio::test]
async fn a_journal_that_does_not_read_holds_up_nothing() {
    let Some(mut victim) = Victim::new("journal") else {
        return;
    };
    let (journal, stderr) = UnixStream::pair().expect("a pair of sockets");
    stderr.set_nonblocking(true).expect("can be set");
    while (&stderr).write(&[b'x'; 4096]).is_ok() {}
    stderr.set_nonblocking(false).expect("can be set");
    let guard = Guard::start_with(Stdio::from(std::os::fd::OwnedFd::from(stderr)));
    let client = guard.client().await;
    let mut lease = lease(1, SHORT);
    lease.cgroups = vec![victim.path.clone()];
    let dead_by = lease.terms.dead_by();
    client.arm(lease).await.expect("arms");
    sleep(clock::now().until_passed(dead_by)).await;
    assert!(!victim.is_alive());
    drop(journal);
}

/// A lease for a service of its own, whose control group is below `parent`.
fn lease_of_many(parent: &str, number: usize, deadline: Time) -> Lease {
    let service = format!("s{number}");
    let mut lease = lease(number as u128, Duration::ZERO);
    lease.service = ServiceName::new(&service).expect("a good name");
    lease.terms.deadline = deadline;
    (lease.terms.stop_budget, lease.terms.kill_reserve) = (ms(3000), ms(2500));
    lease.units = vec![format!("{service}.service").parse().expect("a good name")];
    lease.cgroups = vec![format!("{parent}/{service}.service")];
    lease
}

/// Asks something for each of many leases, up to 32 at a time.
async fn for_all<F>(leases: &[Lease], ask: impl Fn(Lease) -> F)
where
    F: Future<Output = Result<(), GuardError>> + Send + 'static,
{
    let mut tasks = tokio::task::JoinSet::new();
    for lease in leases {
        tasks.spawn(ask(lease.clone()));
        if tasks.len() >= 32 {
            tasks
                .join_next()
                .await
                .expect("there is one")
                .expect("does not panic")
                .expect("is done");
        }
    }
    for done in tasks.join_all().await {
        done.expect("is done");
    }
}

async fn arm_all(client: &GuardClient, leases: &[Lease]) {
    for_all(leases, |lease| {
        let client = client.clone();
        async move { client.arm(lease).await }
    })
    .await;
}

/// Extends each lease to the deadline that it has in `leases`.
async fn extend_all(client: &GuardClient, leases: &[Lease]) {
    for_all(leases, |lease| {
        let client = client.clone();
        let LeaseTerms {
            instance,
            write,
            revision,
            deadline,
            ..
        } = lease.terms;
        let service = lease.service;
        async move {
            let extend = frame::Command::Extend {
                service,
                instance,
                extension: Extension {
                    write,
                    revision,
                    deadline,
                },
            };
            client.order(extend).await
        }
    })
    .await;
}

/// Control groups with one process each. No other guard runs meanwhile. `None` where groups cannot be made.
struct Many {
    victim: Victim,
    children: Vec<Child>,
    _alone: RwLockWriteGuard<'static, ()>,
}

impl Many {
    fn new(name: &str, count: usize) -> Option<Self> {
        let alone = TURNS.write().unwrap_or_else(PoisonError::into_inner);
        let victim = Victim::new(name)?;
        let mut many = Self {
            victim,
            children: Vec::new(),
            _alone: alone,
        };
        for number in 0..count {
            let group = many.group(number);
            fs::create_dir(&group).expect("is made");
            let child = Command::new("sleep").arg("600").spawn().expect("starts");
            fs::write(group.join("cgroup.procs"), child.id().to_string()).expect("moves");
            many.children.push(child);
        }
        Some(many)
    }

    fn group(&self, number: usize) -> PathBuf {
        self.victim.directory.join(format!("s{number}.service"))
    }

    /// The number of processes that have been killed.
    fn dead(&mut self) -> usize {
        self.children
            .iter_mut()
            .filter_map(|child| child.try_wait().expect("can be asked"))
            .count()
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        for number in 0..self.children.len() {
            let _ = self.children[number].kill();
            let _ = self.children[number].wait();
            let _ = fs::remove_dir(self.group(number));
        }
    }
}

const MANY: usize = 1000;

#[tokio::test]
async fn a_thousand_leases_are_kept_and_end_in_time_though_pid_1_hangs() {
    let journal = tempfile::tempfile().expect("a file");
    let Some(mut units) = Many::new("many", MANY) else {
        return;
    };
    let mut guard = Guard::alone(Stdio::from(journal));
    // This stand-in for PID 1 accepts connections, and never answers.
    let _pid1 = systemd_at(&guard);
    let client = guard.client().await;
    let armed_until = clock::now().plus(ms(600_000));
    let mut leases: Vec<Lease> = (0..MANY)
        .map(|number| lease_of_many(&units.victim.path, number, armed_until))
        .collect();
    let began = clock::now();
    arm_all(&client, &leases).await;
    let took = clock::now().since_at_most(began);
    for round in 1..=3 {
        for (number, lease) in (0..).zip(&mut leases) {
            lease.terms.deadline = armed_until.plus(ms(1000 * round + number));
            (lease.terms.write, lease.terms.revision) =
                (WriteId(1 + u128::from(round)), Revision(1 + round));
        }
        extend_all(&client, &leases).await;
    }

    guard.child.kill().expect("is killed");
    guard.child.wait().expect("ends");
    up(&client, false).await;
    let journal = tempfile::tempfile().expect("a file");
    guard.child = Guard::spawn(guard.root.path(), Stdio::from(journal));
    up(&client, true).await;
    let known = |mut leases: Vec<Lease>| {
        leases.sort_by(|one, other| one.service.cmp(&other.service));
        leases
            .iter()
            .map(|lease| {
                (
                    lease.service.clone(),
                    lease.terms.revision,
                    lease.terms.deadline,
                )
            })
            .collect::<Vec<_>>()
    };
    let listed = client.list().await.expect("lists");
    assert!(
        listed
            .iter()
            .all(|listed| listed.lease.closing && !listed.lapsed)
    );
    assert_eq!(
        known(listed.into_iter().map(|listed| listed.lease).collect()),
        known(leases.clone())
    );
    let one = client
        .lease_of(&leases[7].service)
        .await
        .expect("answers")
        .expect("is there");
    assert_eq!(one.lease.terms.deadline, leases[7].terms.deadline);

    for_all(&leases, |lease| {
        let client = client.clone();
        async move { client.disarm(&lease.service, lease.terms.instance).await }
    })
    .await;
    assert_eq!(
        fs::read_dir(guard.root.path().join("run/putex/guard/leases"))
            .expect("reads")
            .count(),
        0,
        "nothing is left behind"
    );
    let deadline = clock::now().plus(ms(5000).max(took * 3));
    let leases: Vec<Lease> = (0..MANY)
        .map(|number| lease_of_many(&units.victim.path, number, deadline))
        .collect();
    arm_all(&client, &leases).await;
    assert!(
        !clock::now().has_passed(deadline),
        "this host is too slow for a test"
    );
    assert_eq!(
        fs::read_dir(guard.root.path().join("run/putex/leases"))
            .expect("reads")
            .count(),
        MANY
    );
    sleep(
        clock::now()
            .until_passed(leases[0].terms.kill_at())
            .saturating_sub(ms(200)),
    )
    .await;
    let dead = units.dead();
    assert!(
        dead == 0 || clock::now().has_passed(leases[0].terms.kill_at()),
        "systemd has its chance first: {dead}"
    );
    sleep(clock::now().until_passed(leases[0].terms.dead_by())).await;
    assert_eq!(units.dead(), MANY);
    assert_eq!(
        fs::read_dir(guard.root.path().join("run/putex/leases"))
            .expect("reads")
            .count(),
        0
    );
    assert!(
        client
            .list()
            .await
            .expect("lists")
            .iter()
            .all(|listed| listed.lapsed),
        "it serves on"
    );
}

impl Guard {
    /// The processor time of all threads of the guard.
    fn cpu_time(&self) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("it runs");
        let stats =
            tasks.map(|task| fs::read_to_string(task.expect("a thread").path().join("schedstat")));
        let nanos = |stat: String| -> u64 {
            stat.split(' ')
                .next()
                .and_then(|nanos| nanos.parse().ok())
                .unwrap_or_default()
        };
        Duration::from_nanos(stats.flatten().map(nanos).sum())
    }

    /// The line `name` of the guard's /proc/PID/status.
    fn memory(&self, name: &str) -> String {
        let text =
            fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        text.lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_default()
            .to_owned()
    }
}

#[tokio::test]
#[ignore = "it measures, and asserts nothing"]
async fn a_thousand_leases_measured() {
    let Some(mut units) = Many::new("measured", MANY) else {
        return;
    };
    let guard = Guard::alone(Stdio::from(tempfile::tempfile().expect("a file")));
    let _pid1 = systemd_at(&guard);
    let _watcher = Watcher::of(&guard);
    let client = guard.client().await;
    let until = clock::now().plus(ms(20_000));
    let mut leases: Vec<Lease> = (0..MANY)
        .map(|number| lease_of_many(&units.victim.path, number, until))
        .collect();
    arm_all(&client, &leases).await;
    let (rounds, interval) = (4, ms(3000));
    // The renewals are spread as those of a host are, or several come at once. The client sends those in groups.
    for at_once in [1, 8, 25] {
        let (before, began) = (guard.cpu_time(), clock::now());
        let mut asked = tokio::task::JoinSet::new();
        for turn in (0..rounds * MANY).step_by(at_once) {
            sleep(
                clock::now()
                    .until_passed(began.plus(interval * u32::try_from(turn).expect("few") / 1000)),
            )
            .await;
            for lease in &mut leases[turn % MANY..turn % MANY + at_once] {
                lease.terms.deadline = clock::now().plus(ms(20_000));
                let (client, lease) = (client.clone(), lease.clone());
                asked.spawn(async move {
                    let extend = frame::Command::Extend {
                        service: lease.service,
                        instance: lease.terms.instance,
                        extension: Extension {
                            write: WriteId(2),
                            revision: Revision(2),
                            deadline: lease.terms.deadline,
                        },
                    };
                    client.order(extend).await
                });
            }
        }
        for answer in asked.join_all().await {
            answer.expect("extends");
        }
        let (spent, took) = (
            guard.cpu_time().saturating_sub(before),
            clock::now().since_at_most(began),
        );
        let share = 100.0 * spent.as_secs_f64() / took.as_secs_f64();
        let each = spent / u32::try_from(rounds * MANY).expect("few");
        println!(
            "{MANY} leases each {interval:?}, {at_once} at once: {share:.2} % of a core, {each:?} each"
        );
    }
    println!("{} {}", guard.memory("VmRSS"), guard.memory("VmHWM"));
    client.list().await.expect("lists");
    println!(
        "after a list: {} {}",
        guard.memory("VmRSS"),
        guard.memory("VmHWM")
    );

    let last_until = clock::now().plus(ms(25_000));
    let (mut first, mut last) = (leases[0].terms.kill_at(), leases[0].terms.dead_by());
    for lease in &mut leases {
        lease.terms.deadline = last_until;
        (first, last) = (lease.terms.kill_at(), lease.terms.dead_by());
    }
    extend_all(&client, &leases).await;
    sleep(clock::now().until_passed(first)).await;
    while units.dead() < MANY && !clock::now().has_passed(last) {
        sleep(ms(1)).await;
    }
    println!(
        "mass lapse: {} of them dead {:?} after SIGKILL was due",
        units.dead(),
        clock::now().since_at_most(first)
    );
    println!(
        "after it: {} {}",
        guard.memory("VmRSS"),
        guard.memory("VmHWM")
    );
}

/// The process that watches a guard. Its systemd is a stand-in, see [`systemd_of`].
struct Watcher {
    child: Child,
}

impl Watcher {
    fn of(guard: &Guard) -> Self {
        let root = guard.root.path();
        let mut watcher = Command::new(env!("CARGO_BIN_EXE_putex-guard"));
        watcher.args(["watch", "--root"]).arg(root);
        Self {
            child: watcher.spawn().expect("starts"),
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)
            .expect("is sent");
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The socket of a systemd.
fn systemd_at(guard: &Guard) -> UnixListener {
    let folder = guard.root.path().join("run/systemd");
    fs::create_dir_all(&folder).expect("a folder");
    UnixListener::bind(folder.join("private")).expect("listens")
}

/// Starts a stand-in for systemd that answers everybody, for as long as the test runs.
fn systemd_of(guard: &Guard) {
    let listener = systemd_at(guard);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut asked = BufReader::new(&stream);
            let is_begun = |asked: &mut BufReader<&UnixStream>| {
                let mut line = String::new();
                !matches!(asked.read_line(&mut line), Ok(1..)) || line == "BEGIN\r\n"
            };
            while !is_begun(&mut asked) {}
            let _ = (&stream).write_all(b"OK 0123456789abcdef0123456789abcdef\r\n");
        }
    });
}

impl Guard {
    async fn is_killed_within(&mut self, limit: Duration) -> bool {
        let ended = async {
            while self.child.try_wait().expect("can be asked").is_none() {
                sleep(ms(5)).await;
            }
        };
        timeout(limit, ended).await.is_ok()
    }
}

#[tokio::test]
async fn a_guard_that_hangs_is_killed_in_time_for_a_successor() {
    let mut guard = Guard::start();
    systemd_of(&guard);
    let _watcher = Watcher::of(&guard);
    let client = guard.client().await;
    assert!(!guard.is_killed_within(ms(700)).await, "it beats");
    let lease = lease(1, ms(4000));
    let kill_at = lease.terms.kill_at();
    client.arm(lease).await.expect("arms");
    guard.signal(rustix::process::Signal::STOP);
    assert!(!guard.is_killed_within(ms(600)).await, "there is time");
    assert!(guard.is_killed_within(LIMIT).await);
    assert!(
        clock::now().until_passed(kill_at) > ms(600),
        "a successor needs its time"
    );
}

/// As on a host that is paused, all processes stand still. The one that goes on first has waited for longer than its
/// limit.
#[tokio::test]
async fn a_guard_that_stood_still_with_its_watcher_is_not_killed() {
    let mut guard = Guard::start();
    systemd_of(&guard);
    let watcher = Watcher::of(&guard);
    let client = guard.client().await;
    client.arm(lease(1, ms(2500))).await.expect("arms");
    sleep(ms(300)).await;
    for _ in 0..2 {
        guard.signal(rustix::process::Signal::STOP);
        watcher.signal(rustix::process::Signal::STOP);
        sleep(ms(3000)).await;
        watcher.signal(rustix::process::Signal::CONT);
        sleep(ms(20)).await;
        guard.signal(rustix::process::Signal::CONT);
        assert!(!guard.is_killed_within(ms(600)).await);
    }
    assert!(client.list().await.expect("lists")[0].lapsed);
}

/// The first watcher hangs as well, and systemd has started another one.
#[tokio::test]
async fn a_new_watcher_kills_a_guard_that_does_not_speak_once_systemd_can_start_another() {
    let mut guard = Guard::start();
    let client = guard.client().await;
    client.arm(lease(1, ms(30_000))).await.expect("arms");
    let first = Watcher::of(&guard);
    sleep(ms(300)).await;
    first.signal(rustix::process::Signal::STOP);
    let second = Watcher::of(&guard);
    assert!(
        !guard.is_killed_within(ms(600)).await,
        "it speaks to the second one"
    );
    guard.signal(rustix::process::Signal::STOP);
    drop(second);
    let _third = Watcher::of(&guard);
    assert!(
        !guard.is_killed_within(ms(600)).await,
        "systemd hangs as well, and would start no other"
    );
    systemd_of(&guard);
    assert!(guard.is_killed_within(LIMIT).await);
}

#[tokio::test]
async fn what_is_due_is_killed_while_the_guard_hangs_and_systemd_could_start_no_other() {
    let Some(mut victim) = Victim::new("hung") else {
        return;
    };
    let mut guard = Guard::start();
    let client = guard.client().await;
    let _watcher = Watcher::of(&guard);
    let mut lease = lease(1, SHORT);
    lease.cgroups = vec![victim.path.clone()];
    let kill_at = lease.terms.kill_at();
    client.arm(lease).await.expect("arms");
    guard.signal(rustix::process::Signal::STOP);
    victim.assert_alive_until(kill_at).await;
    victim.wait_for_end().await;
    assert!(
        !guard.is_killed_within(ms(10)).await,
        "nobody would be in its place"
    );
}

/// A lease whose stop cannot be proven: it has a mount, and there is no systemd to ask about it.
fn unprovable(on_stop_failure: OnStopFailure) -> Lease {
    let mut lease = lease(1, SHORT);
    lease.inactive = vec!["srv-data.mount".parse().expect("a good name")];
    lease.on_stop_failure = on_stop_failure;
    lease
}

#[tokio::test]
async fn a_stop_that_is_not_proven_fences_the_host() {
    for (on_stop_failure, letter) in [
        (OnStopFailure::RebootForce, "b"),
        (OnStopFailure::KernelPanic, "c"),
    ] {
        let mut guard = Guard::start();
        let client = guard.client().await;
        let lease = unprovable(on_stop_failure);
        let dead_by = lease.terms.dead_by();
        client.arm(lease).await.expect("arms");
        let fenced = async {
            while !guard.root.path().join("proc/sysrq-trigger").exists() {
                sleep(ms(5)).await;
            }
        };
        timeout(LIMIT, fenced)
            .await
            .expect("the host is taken down");
        assert!(clock::now().has_passed(dead_by), "not before the end of S");
        let (status, log) = guard.ended();
        assert_eq!(
            fs::read_to_string(guard.root.path().join("proc/sysrq-trigger")).expect("was written"),
            letter
        );
        assert_eq!(status, Some(71));
        assert!(
            log.contains("<0>db: its units are not proven dead"),
            "{log}"
        );
    }
}

#[tokio::test]
async fn without_systemd_and_without_proof_the_guard_ends_once() {
    let mut guard = Guard::start();
    let client = guard.client().await;
    client
        .arm(unprovable(OnStopFailure::Alert))
        .await
        .expect("arms");
    assert_eq!(guard.ended().0, Some(71), "BindsTo= ends every lease");
    guard.restart();
    up(&client, false).await;
    up(&client, true).await;
    lapse(&client).await;
    assert!(!guard.root.path().join("proc/sysrq-trigger").exists());
}

/// A lease of that life, with that stop budget.
fn lease_with_budget(life: Duration, stop_budget: Duration) -> Lease {
    let mut lease = lease(1, life);
    (lease.terms.stop_budget, lease.terms.kill_reserve) = (stop_budget, ms(100));
    lease
}

#[tokio::test]
async fn a_watchdog_is_kept_alive_until_an_orderly_end_closes_it() {
    let mut guard = Guard::with_watchdog(Some(""));
    let client = guard.client().await;
    let served = client
        .state()
        .await
        .expect("answers")
        .watchdog
        .expect("serves one");
    assert_eq!(
        (served.device, served.timeout),
        (guard.root.path().join("watchdog"), ms(1000))
    );
    assert_eq!(served.trouble, None);
    client.arm(lease(1, ms(30_000))).await.expect("arms");
    client.disarm(&db(), Instance(1)).await.expect("disarms");
    // The guard writes four times a second. This test requires only one write in each second, which is the timeout.
    for _ in 0..3 {
        let before = guard.keep_alives().len();
        sleep(ms(1000)).await;
        assert!(guard.keep_alives().len() > before);
    }
    guard.signal(rustix::process::Signal::TERM);
    let (status, log) = guard.ended();
    assert_eq!(status, Some(0), "{log}");
    let sent = guard.keep_alives();
    assert!(
        sent.ends_with("1V") && sent.matches('V').count() == 1,
        "{sent}"
    );
}

/// Guard, PID 1 and kernel may all hang from any moment on. The device has reset the host by the time when the units
/// have to be dead.
#[tokio::test]
async fn no_keep_alive_outlasts_a_unit_that_is_not_proven_dead() {
    let guard = Guard::with_watchdog(Some(""));
    let client = guard.client().await;
    // Without systemd there is no proof for a mount. The trigger for the self-fence is a file here, so the guard ends.
    let mut lease = lease_with_budget(ms(1500), ms(1500));
    lease.inactive = vec!["srv-data.mount".parse().expect("a good name")];
    let last_allowed = lease.terms.deadline.plus(ms(500));
    client.arm(lease.clone()).await.expect("arms");
    sleep(clock::now().until_passed(last_allowed)).await;
    let sent = guard.keep_alives();
    assert!(sent.len() >= 3, "until then it was kept alive: {sent}");
    sleep(clock::now().until_passed(lease.terms.dead_by())).await;
    assert_eq!(
        guard.keep_alives(),
        sent,
        "a keep-alive now would last until after the units have to be dead"
    );
}

/// The proof comes when keep-alives have stopped, and before the device would reset the host.
#[tokio::test]
async fn a_proof_lets_the_host_live() {
    let Some(victim) = Victim::new("proof") else {
        return;
    };
    // Seconds, so that a moment in which nobody looks is not taken for a silence.
    let guard = Guard::with_watchdog_of("3s", Some(""));
    let client = guard.client().await;
    let mut lease = lease_with_budget(SHORT, ms(6000));
    (lease.cgroups, lease.terms.kill_reserve) = (vec![victim.path.clone()], ms(1350));
    client.arm(lease.clone()).await.expect("arms");
    let end = lease.terms.dead_by().plus(ms(1000));
    let (mut length, mut since, mut longest) = (0, clock::now(), Duration::ZERO);
    while !clock::now().has_passed(end) {
        sleep(ms(5)).await;
        let silence = clock::now().since_at_most(since);
        longest = longest.max(silence);
        if guard.keep_alives().len() > length {
            (length, since) = (guard.keep_alives().len(), clock::now());
        }
    }
    assert!(
        longest > ms(1500),
        "between the last keep-alive that was allowed and the proof there is none: {longest:?}"
    );
    assert!(
        longest < ms(3000),
        "the device would have reset the host: {longest:?}"
    );
    assert!(
        client.list().await.expect("lists")[0].lapsed,
        "though it is not disarmed"
    );
}

#[tokio::test]
async fn a_lease_that_is_shorter_than_the_watchdog_is_not_armed() {
    let guard = Guard::with_watchdog(Some(""));
    let client = guard.client().await;
    let refused = client.arm(lease_with_budget(ms(500), ms(300))).await;
    let Err(GuardError::Refused(why)) = refused else {
        panic!("{refused:?}")
    };
    assert!(
        why.contains("with its timeout of 1s would reset this host only after"),
        "{why}"
    );
    assert!(!guard.grant().exists());
}

#[tokio::test]
async fn without_its_watchdog_the_guard_arms_nothing() {
    let guard = Guard::with_watchdog(None);
    let client = guard.client().await;
    let refused = client.arm(lease(1, ms(30_000))).await;
    let Err(GuardError::Refused(why)) = refused else {
        panic!("{refused:?}")
    };
    assert!(
        why.contains("is not served: No such file or directory"),
        "{why}"
    );
    assert!(
        client
            .state()
            .await
            .expect("answers")
            .watchdog
            .expect("it was told of one")
            .trouble
            .is_some()
    );
    fs::write(guard.root.path().join("watchdog"), "").expect("writes");
    let found = async {
        while client.arm(lease(1, ms(30_000))).await.is_err() {
            sleep(ms(50)).await;
        }
    };
    timeout(ms(5000), found)
        .await
        .expect("it is found when it comes");
}

/// The magic letter V would stop the device while the units run on.
#[tokio::test]
async fn a_guard_that_ends_with_leases_does_not_close_its_watchdog() {
    let mut guard = Guard::with_watchdog(Some(""));
    let client = guard.client().await;
    client.arm(lease(1, ms(30_000))).await.expect("arms");
    guard.kill();
    let sent = guard.keep_alives();
    assert!(!sent.contains('V'), "{sent}");
    // The guard's successor serves the device again, and closes it once there are no leases any more.
    guard.child = Guard::spawn_with_watchdog(guard.root.path(), "1s");
    up(&client, false).await;
    up(&client, true).await;
    assert!(guard.keep_alives().len() > sent.len());
    client.disarm(&db(), Instance(1)).await.expect("disarms");
    guard.signal(rustix::process::Signal::TERM);
    assert_eq!(guard.ended().0, Some(0));
    assert!(guard.keep_alives().ends_with('V'));
}

#[tokio::test]
async fn a_guard_whose_program_was_replaced_ends_in_order_as_soon_as_it_has_no_lease() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let program = folder.path().join("putex-guard");
    // Not a copy: a child of another test could have it open for writing when it is executed.
    fs::hard_link(env!("CARGO_BIN_EXE_putex-guard"), &program).expect("links");
    let mut guard = Guard::with_watchdog(Some(""));
    guard.kill();
    let device = guard.root.path().join("watchdog").display().to_string();
    let spawn = |root: &Path| {
        let watchdog = ["--watchdog-device", &device, "--watchdog-timeout", "1s"];
        Guard::spawn_program(&program, root, Stdio::piped(), &watchdog)
    };
    let install = || {
        let new = folder.path().join("new");
        fs::write(&new, "").expect("writes");
        fs::rename(new, &program).expect("moves");
    };
    guard.child = spawn(guard.root.path());
    let client = guard.client().await;
    client.arm(lease(1, ms(60_000))).await.expect("arms");
    install();
    sleep(ms(6000)).await;
    assert!(
        guard.child.try_wait().expect("can be asked").is_none(),
        "it goes on for its lease"
    );
    extend(&client, 1, ms(90_000)).await.expect("extends");
    assert!(!guard.keep_alives().contains('V'));
    client
        .disarm(&db(), Instance(1))
        .await
        .expect("disarms, and says so");
    let (status, log) = guard.ended();
    assert_eq!(status, Some(0), "{log}");
    assert!(
        log.contains("another version of it is installed") && !log.contains("<1>"),
        "{log}"
    );
    assert!(guard.keep_alives().ends_with('V'), "the device is closed");

    // Without a lease it ends at once, and only once for each new file.
    fs::remove_file(&program).expect("removes");
    fs::hard_link(env!("CARGO_BIN_EXE_putex-guard"), &program).expect("links");
    guard.child = spawn(guard.root.path());
    up(&client, true).await;
    sleep(ms(6000)).await;
    assert!(
        guard.child.try_wait().expect("can be asked").is_none(),
        "its file is the same"
    );
    fs::remove_file(&program).expect("removes");
    sleep(ms(6000)).await;
    assert!(
        guard.child.try_wait().expect("can be asked").is_none(),
        "there is nothing to start"
    );
    install();
    assert_eq!(guard.ended().0, Some(0));
}

/// It has a watchdog, so that it is seen to go on until the end.
#[tokio::test]
async fn a_guard_that_is_asked_to_end_does_so_when_the_units_of_its_leases_are_dead() {
    let Some(mut victim) = Victim::new("told") else {
        return;
    };
    let mut guard = Guard::with_watchdog(Some(""));
    let client = guard.client().await;
    let mut lease = lease_with_budget(ms(30_000), ms(1500));
    lease.cgroups = vec![victim.path.clone()];
    client.arm(lease).await.expect("arms");
    let asked = clock::now();
    guard.signal(rustix::process::Signal::TERM);
    let lapsed = async {
        while !client.list().await.expect("it goes on")[0].lapsed {
            sleep(ms(5)).await;
        }
    };
    timeout(LIMIT, lapsed)
        .await
        .expect("the lease ends at once");
    assert!(!guard.grant().exists());
    let refused = extend(&client, 1, ms(60_000)).await;
    assert!(
        matches!(refused, Err(GuardError::Refused(_))),
        "{refused:?}"
    );
    let mut other = self::lease(2, ms(30_000));
    other.service = ServiceName::new("other").expect("a good name");
    let Err(GuardError::Refused(why)) = client.arm(other).await else {
        panic!("it is to end")
    };
    assert!(why.contains("was told to end"), "{why}");
    assert!(
        client.state().await.expect("it goes on").trouble.is_some(),
        "nobody contends here"
    );
    assert!(victim.is_alive(), "systemd has its chance first");
    let (status, log) = guard.ended();
    assert_eq!(status, Some(0), "{log}");
    assert!(!victim.is_alive(), "{log}");
    assert!(
        clock::now().since_at_most(asked) < ms(10_000),
        "it does not wait for the deadline"
    );
    assert!(guard.keep_alives().ends_with('V'));
}

/// Nothing else is there to kill the unit: systemd may be forbidden to start a guard.
#[tokio::test]
async fn the_watcher_enforces_what_a_guard_has_left() {
    let Some(mut victim) = Victim::new("left") else {
        return;
    };
    let mut guard = Guard::start();
    let client = guard.client().await;
    let mut lease = lease(1, ms(1000));
    lease.cgroups = vec![victim.path.clone()];
    let kill_at = lease.terms.kill_at();
    client.arm(lease).await.expect("arms");
    let _watcher = Watcher::of(&guard);
    guard.kill();
    victim.assert_alive_until(kill_at).await;
    victim.wait_for_end().await;
    assert!(clock::now().has_passed(kill_at));
}

/// A line for each try would fill the journal, and every terminal.
#[tokio::test]
async fn a_guard_that_cannot_start_says_so_once_and_starts_when_it_can() {
    let root = tempfile::tempdir().expect("a directory");
    let leases = root.path().join("run/putex/leases");
    fs::create_dir_all(leases.parent().expect("a folder")).expect("folders");
    fs::write(&leases, "").expect("what is in its way");
    let child = Guard::spawn(root.path(), Stdio::piped());
    let mut guard = Guard {
        root,
        child,
        _turn: None,
    };
    let mut log = BufReader::new(guard.child.stderr.take().expect("is piped"));
    let mut line = String::new();
    log.read_line(&mut line).expect("is text");
    assert!(
        line.starts_with("<3>the guard cannot start yet: cannot make the directory of the grants"),
        "{line}"
    );
    // The guard tries a few more times, without a message.
    sleep(ms(500)).await;
    fs::remove_file(&leases).expect("is out of its way");
    guard.client().await;
    guard.child.kill().expect("is killed");
    let rest = std::io::read_to_string(log).expect("is text");
    assert!(
        !rest.contains("cannot start") && !rest.contains("<0>"),
        "{rest}"
    );
}

#[test]
fn wrong_usage_exits_64() {
    for arguments in [
        &["gate"][..],
        &["gate", "../x"],
        &["--nonsense"],
        &["nonsense"],
        &["--watchdog-device", "/dev/watchdog"],
        &[
            "--watchdog-device",
            "/dev/watchdog",
            "--watchdog-timeout",
            "3",
        ],
        &["run-as", "61184"],
        &["run-as", "0", "/bin/true"],
        &["run-as", "65520", "/bin/true"],
    ] {
        let mut guard = Command::new(env!("CARGO_BIN_EXE_putex-guard"));
        let status = guard
            .args(arguments)
            .stderr(Stdio::null())
            .status()
            .expect("runs");
        assert_eq!(status.code(), Some(64), "{arguments:?}");
    }
    for argument in ["--help", "--version"] {
        let mut guard = Command::new(env!("CARGO_BIN_EXE_putex-guard"));
        assert!(
            guard
                .arg(argument)
                .stdout(Stdio::null())
                .status()
                .expect("runs")
                .success()
        );
    }
}
