//! The program that must never run twice at once. It notices a second live copy of itself, and writes that down.
//!
//! All hosts of a test share one kernel, so that `flock` on a file of the shared folder tells exactly whether another
//! copy lives, without comparing any clocks. Two locks are held for life, by descendants as well:
//!
//! - `oracle.lock` is tried without waiting. A copy that does not get it is a violation: it writes that down, runs on, and
//!   takes the lock as soon as it is free, so that a third copy is noticed as well.
//! - `live/ID` is waited for by the test, which so knows to the millisecond when the last process of this copy was gone.
//!
//! The program appends lines `KIND HOST MONOTONIC_NS TERM ID` to `oracle.log`. CLOCK_MONOTONIC is the same on all
//! hosts.
//!
//! Its environment: with `ORACLE_IGNORE_TERM=1` only SIGKILL ends it, `ORACLE_STOP_DELAY_MS=500` makes its stop slow,
//! `ORACLE_LEAVE_CHILD=1` leaves a child behind that ignores SIGTERM, and `ORACLE_DATABASE=PARAMETERS` has it write to a
//! PostgreSQL all the time, by the function `put(host, token)`. With `ORACLE_LISTEN=PORT` it answers each TCP connection with its
//! id. While /var/lib/oracle-deaf exists it ignores SIGTERM, and
//! while /var/lib/oracle-leaves exists it leaves a child behind when it stops. `oracle check` is a health check: it fails
//! while /run/oracle-unhealthy exists, and hangs while /run/oracle-hangs exists.
//!
//! `oracle exec PROGRAM ARGUMENT...` becomes another program, which then is what must never run twice: the locks are held
//! until the last of its processes has ended.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, ExitCode},
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, flock},
    io::FdFlags,
    time::{ClockId, clock_gettime},
};
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

const SHARED: &str = "/srv/shared";
const DEAF: &str = "/var/lib/oracle-deaf";
const LEAVES: &str = "/var/lib/oracle-leaves";

fn main() -> io::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["exec", program, rest @ ..] = &words[..] {
        let _locks = Oracle::begin()?;
        return Err(Command::new(program).args(rest).exec());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match words[..] {
            [] => run().await,
            ["child"] => ignore_sigterm().await,
            ["check", ..] => check().await,
            _ => {
                eprintln!("oracle: {words:?} is neither \"child\" nor \"check\" nor \"exec\" with a program");
                Ok(ExitCode::from(64))
            }
        }
    })
}

async fn run() -> io::Result<ExitCode> {
    // The signal handler is installed first: a SIGTERM that comes early must not look like a crash.
    let mut terminate = signal(SignalKind::terminate())?;
    let oracle = Oracle::begin()?;
    if is_set("ORACLE_LEAVE_CHILD") {
        leave_child()?;
    }
    if let Some(port) = std::env::var("ORACLE_LISTEN")
        .ok()
        .and_then(|text| text.parse().ok())
    {
        tokio::spawn(answer_for_ever(port, oracle.id.clone()));
    }
    #[cfg(feature = "postgres")]
    if let Ok(database) = std::env::var("ORACLE_DATABASE") {
        tokio::spawn(write_for_ever(
            database,
            oracle.host.clone(),
            oracle.token.clone(),
        ));
    }
    loop {
        terminate.recv().await;
        if !is_set("ORACLE_IGNORE_TERM") && !Path::new(DEAF).exists() {
            break;
        }
        oracle.log("IGNORE")?;
    }
    if Path::new(LEAVES).exists() {
        leave_child()?;
    }
    let delay_ms = std::env::var("ORACLE_STOP_DELAY_MS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    tokio::time::sleep(Duration::from_millis(delay_ms)).await;
    oracle.log("STOP")?;
    Ok(ExitCode::SUCCESS)
}

/// Answers each connection to `port` with a line, as long as this copy lives.
async fn answer_for_ever(port: u16, id: String) -> io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", port)).await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        // The client may have gone.
        let _ = stream.write_all(format!("{id}\n").as_bytes()).await;
    }
}

fn leave_child() -> io::Result<()> {
    Command::new(std::env::current_exe()?)
        .arg("child")
        .spawn()?;
    Ok(())
}

/// Writes as fast as the database accepts it, whether it accepts the token or not, and connects again when a connection
/// breaks.
#[cfg(feature = "postgres")]
async fn write_for_ever(database: String, host: String, token: String) {
    loop {
        let ended = write(&database, &host, &token).await;
        eprintln!("oracle: the database: {ended:?}, trying again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Writes over one connection, and returns when that fails.
#[cfg(feature = "postgres")]
async fn write(
    database: &str,
    host: &str,
    token: &str,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let token: i64 = token.parse()?;
    let (client, connection) = tokio_postgres::connect(database, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let put = client.prepare("SELECT put($1, $2)").await?;
    loop {
        client.execute(&put, &[&host, &token]).await?;
    }
}

async fn ignore_sigterm() -> io::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    loop {
        terminate.recv().await;
    }
}

async fn check() -> io::Result<ExitCode> {
    while Path::new("/run/oracle-hangs").exists() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(if Path::new("/run/oracle-unhealthy").exists() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| value == "1")
}

struct Oracle {
    host: String,
    token: String,
    id: String,
    log: File,
    /// Both locks are held until the last process that inherited them is gone.
    only: File,
    _live: File,
}

impl Oracle {
    fn begin() -> io::Result<Self> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname")?
            .trim()
            .to_owned();
        let token = std::env::var("PUTEX_FENCING_TOKEN").unwrap_or_else(|_| "-".to_owned());
        let id = format!("{host}-{}-{}", std::process::id(), monotonic_ns());
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(format!("{SHARED}/oracle.log"))?;

        // The file is locked before it gets its name, so that the test never finds it unlocked while this process
        // lives.
        fs::create_dir_all(format!("{SHARED}/live"))?;
        let unnamed = format!("{SHARED}/.{id}");
        let live = inherited(&unnamed)?;
        flock(&live, FlockOperation::LockExclusive)?;
        fs::rename(unnamed, format!("{SHARED}/live/{id}"))?;

        let only = inherited(&format!("{SHARED}/oracle.lock"))?;
        let alone = flock(&only, FlockOperation::NonBlockingLockExclusive).is_ok();
        let oracle = Self {
            host,
            token,
            id,
            log,
            only,
            _live: live,
        };
        if !alone {
            oracle.log("VIOLATION")?;
            let only = oracle.only.try_clone()?;
            std::thread::spawn(move || flock(&only, FlockOperation::LockExclusive));
        }
        oracle.log("START")?;
        Ok(oracle)
    }

    /// Appends a line with one write, so that lines of different hosts never mix.
    fn log(&self, kind: &str) -> io::Result<()> {
        let line = format!(
            "{kind} {} {} {} {}\n",
            self.host,
            monotonic_ns(),
            self.token,
            self.id
        );
        (&self.log).write_all(line.as_bytes())
    }
}

/// Opens a file whose lock is shared with child processes, and ends with the last of them.
fn inherited(path: &str) -> io::Result<File> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    rustix::io::fcntl_setfd(&file, FdFlags::empty())?;
    Ok(file)
}

fn monotonic_ns() -> u128 {
    let now = clock_gettime(ClockId::Monotonic);
    u128::from(now.tv_sec.unsigned_abs()) * 1_000_000_000 + u128::from(now.tv_nsec.unsigned_abs())
}
