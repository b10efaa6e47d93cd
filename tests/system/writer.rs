//! Inserts rows into a PostgreSQL for as long as it runs, over connections that break, and writes down which of them the
//! server has acknowledged.
//!
//! `writer NAME CONNECTION FOLDER` inserts into `written (writer, n)`: `writer` is unlike that of any other run, and `n`
//! grows by one with each attempt, so that no row is asked for twice. What was acknowledged stands in `FOLDER/WRITER`, a
//! line `N SENT_NS ACKNOWLEDGED_NS` for each row; CLOCK_MONOTONIC is the same on all hosts. A row whose answer did not
//! come may be there or not, and no line tells of it. For how long an answer is waited for, the parameters of the
//! connection say: a clock of its own would give up what came while the host stood still.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::sleep;
use tokio_postgres::{Client, NoTls};

/// Between two rows: the server is there to be broken, not to be measured.
const PACE: Duration = Duration::from_millis(5);
/// Between two connections.
const RETRY: Duration = Duration::from_millis(20);

fn main() -> io::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, connection, folder] = &arguments[..] else {
        eprintln!("usage: writer NAME CONNECTION FOLDER");
        return Ok(ExitCode::from(64));
    };
    let id = format!("{name}-{}", monotonic_ns());
    let log = File::options().create_new(true).append(true).open(Path::new(folder).join(&id))?;
    let mut writer = Writer { id, n: 0, log };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        loop {
            // The server is gone most of the time on most hosts, which is nothing to tell of.
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
    /// Of the last attempt.
    n: i64,
    log: File,
}

impl Writer {
    /// Returns when the server does not take a row; fails when that a row was taken cannot be written down.
    async fn write(&mut self, client: &Client) -> io::Result<()> {
        loop {
            self.n += 1;
            let sent = monotonic_ns();
            let values: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&self.id, &self.n];
            let inserted = client.execute("INSERT INTO written (writer, n) VALUES ($1, $2)", &values);
            let Ok(1) = inserted.await else { return Ok(()) };
            // One write, so that whoever reads meanwhile and whatever ends this process finds no half of a line but the last.
            self.log.write_all(format!("{} {sent} {}\n", self.n, monotonic_ns()).as_bytes())?;
            sleep(PACE).await;
        }
    }
}

fn monotonic_ns() -> u128 {
    let now = clock_gettime(ClockId::Monotonic);
    u128::from(now.tv_sec.unsigned_abs()) * 1_000_000_000 + u128::from(now.tv_nsec.unsigned_abs())
}
