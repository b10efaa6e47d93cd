//! Inserts rows into a PostgreSQL for as long as it runs, and connects again when a connection breaks. It writes down
//! which of the rows the server has acknowledged.
//!
//! `writer NAME CONNECTION FOLDER` inserts into `written (writer, n)`. `writer` is different in each run, and `n` grows
//! by one with each attempt, so that no row is sent twice. Acknowledged rows are in `FOLDER/WRITER`, a line
//! `N SENT_NS ACKNOWLEDGED_NS` for each; CLOCK_MONOTONIC is the same on all hosts. A row whose answer did not come may
//! be there or not, and has no line. The parameters of the connection say for how long an answer is waited for: a
//! timeout of the program's own would give up an answer that came while the host stood still.

use std::{
    fs::File,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};
use tokio::time::sleep;
use tokio_postgres::{Client, NoTls};

/// Pause between two rows: the server is there to be broken, not to be measured.
const PACE: Duration = Duration::from_millis(5);
/// Pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(20);

fn main() -> io::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, connection, folder] = &arguments[..] else {
        eprintln!("usage: writer NAME CONNECTION FOLDER");
        return Ok(ExitCode::from(64));
    };
    let id = format!("{name}-{}", monotonic_ns());
    let log = File::options()
        .create_new(true)
        .append(true)
        .open(Path::new(folder).join(&id))?;
    let mut writer = Writer { id, n: 0, log };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        loop {
            // On most hosts there is no server most of the time, so a failed connection is not reported.
            if let Some(client) = connect(connection).await {
                writer.write(&client).await?;
            }
            sleep(RETRY).await;
        }
    })
}

async fn connect(connection: &str) -> Option<Client> {
    let (client, connection) = tokio_postgres::connect(connection, NoTls).await.ok()?;
    tokio::spawn(connection);
    Some(client)
}

struct Writer {
    id: String,
    /// The number of the last attempt.
    n: i64,
    log: File,
}

impl Writer {
    /// Writes rows, and returns when the server does not accept one. It fails when an acknowledgement cannot be written
    /// down.
    async fn write(&mut self, client: &Client) -> io::Result<()> {
        loop {
            self.n += 1;
            let sent = monotonic_ns();
            let values: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&self.id, &self.n];
            let inserted =
                client.execute("INSERT INTO written (writer, n) VALUES ($1, $2)", &values);
            let Ok(1) = inserted.await else { return Ok(()) };
            // Each line is one write, so that a reader, or the end of this process, leaves no incomplete line but the last.
            self.log
                .write_all(format!("{} {sent} {}\n", self.n, monotonic_ns()).as_bytes())?;
            sleep(PACE).await;
        }
    }
}

fn monotonic_ns() -> u128 {
    let now = clock_gettime(ClockId::Monotonic);
    u128::from(now.tv_sec.unsigned_abs()) * 1_000_000_000 + u128::from(now.tv_nsec.unsigned_abs())
}
