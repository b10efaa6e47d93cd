//! A real PostgreSQL as the unit, on a folder that all hosts have mounted all the time, with an address that moves with it.
//!
//! Nothing but putexd keeps two servers from using the folder at once: a partition does not take the folder away, and the
//! processes of one host are invisible to the lock file of another. Rows are written through the address, from outside of
//! the hosts, and through the socket on each host, by writers that are not told about any fault. Every row that a server
//! acknowledged has to be there later, once.

mod faults;
mod thaw;

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::{
    command::{now, said, wait_for, wait_until},
    environment::{environment, utf8},
    fixture::{Fixture, Plan, SERVICE, TAKE_OVER},
    lockstore::Lockstore,
    watch::Event,
};

/// The process name of the unit's program.
const PROGRAM: &str = "postgres";
const ADDRESS: &str = "10.77.0.100";
/// Names of folders in the folder that all hosts share.
const DATA: &str = "data";
const ACKNOWLEDGED: &str = "acknowledged";

/// The unit as PostgreSQL's own manual and Debian have it, except that the oracle wraps the server, and that it makes the
/// database itself.
const UNIT_CHANGES: &str = "\
[Service]
Type=notify
User=postgres
RuntimeDirectory=postgresql
ExecStartPre=+/bin/sh -c 'cd /srv/shared && chmod 777 . live && touch oracle.lock && chmod 666 oracle.log oracle.lock'
ExecStartPre=+/usr/bin/install -d -o postgres -g postgres -m 700 /srv/shared/data
ExecStartPre=/bin/sh /usr/local/lib/make-database
ExecStart=
ExecStart=/usr/local/bin/oracle exec /usr/local/bin/postgres -D /srv/shared/data -c listen_addresses=* -c unix_socket_directories=/run/postgresql
ExecStop=/usr/local/bin/pg_ctl stop --mode=fast --pgdata=/srv/shared/data
ExecReload=/bin/kill -HUP $MAINPID
KillMode=mixed
";

/// Makes the database at the first start, and again if a former start did not finish making it.
const MAKE_DATABASE: &str = "\
set -e
cd /srv/shared/data
[ ! -e made ] || exit 0
find . -mindepth 1 -delete
initdb --auth=trust --no-sync --pgdata=. >/dev/null
echo 'host all all 10.77.0.0/24 trust' >>pg_hba.conf
touch made
";

const WITH_ADDRESS: &str =
    "[Unit]\nRequires=database-address.service\nAfter=database-address.service\n";

/// The address as a unit. Its start tells the neighbours where the address is now, or they would go on looking for it at
/// its former place. arping waits for answers that nobody needs, so it is stopped after 0.1 s.
const ADDRESS_UNIT: &str = "\
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/ip address add 10.77.0.100/24 dev eth0
ExecStart=-/usr/bin/timeout 0.1 arping -q -A -c 1 -I eth0 10.77.0.100
ExecStop=/usr/sbin/ip address del 10.77.0.100/24 dev eth0
";

/// The address has no process to kill, so a host that cannot take its address away has to reboot.
const ADDRESS_BOUND: &str =
    "bound-units = [\"database-address.service\"]\non-stop-failure = \"reboot-force\"\n";

/// A writer on every host, whether active or not: its socket leads to a server or nowhere.
const LOCAL_WRITER: &str = "\
[Unit]
StartLimitIntervalSec=0

[Service]
ExecStart=/usr/local/bin/writer %l 'host=/run/postgresql user=postgres dbname=postgres' /srv/shared/acknowledged
Restart=always
";

/// Starts the writer on every host that boots.
const WRITES_AT_BOOT: &str = "[Unit]\nWants=writer.service\n";

const SCHEMA: &str = "CREATE TABLE written (id bigserial PRIMARY KEY, writer text NOT NULL, n bigint NOT NULL); \
                      CREATE INDEX ON written (writer, n)";

/// Hosts with a PostgreSQL, and the writer outside of the hosts.
struct Database {
    fixture: Fixture,
    network: Option<Child>,
}

impl Database {
    /// Returns when the database runs on one host and rows are accepted, or `None` where this machine cannot run hosts.
    /// With an address there is a writer outside as well.
    fn run(name: &'static str, hosts: u8, with_address: bool) -> Option<Self> {
        let mut plan = Plan::hosts(name, hosts, Lockstore::Directory)
            .file(
                "/etc/systemd/system/database.service.d/postgres.conf",
                UNIT_CHANGES,
            )
            .file("/usr/local/lib/make-database", MAKE_DATABASE)
            .file("/etc/systemd/system/writer.service", LOCAL_WRITER)
            .file(
                "/etc/systemd/system/multi-user.target.d/writer.conf",
                WRITES_AT_BOOT,
            );
        if with_address {
            plan = plan
                .service("db", format!("{SERVICE}{ADDRESS_BOUND}"))
                .file("/etc/systemd/system/database-address.service", ADDRESS_UNIT)
                .file(
                    "/etc/systemd/system/database.service.d/address.conf",
                    WITH_ADDRESS,
                );
        }
        let (fixture, _) = plan.run()?;
        let mut database = Self {
            fixture,
            network: None,
        };
        database.make_table();
        if with_address {
            database.network = Some(write_from_outside(
                &database.fixture,
                utf8(&database.acknowledgements()),
            ));
        }
        Some(database)
    }

    /// Begins again with an empty database, and without any acknowledgement.
    fn begin_anew(&self) {
        for host in &self.fixture.hosts {
            host.exec(&["systemctl", "stop", "writer.service", "putexd.service"]);
        }
        fs::remove_dir_all(self.acknowledgements()).expect("the shared folder can be written to");
        fs::remove_dir_all(self.fixture.shared().join(DATA))
            .expect("the shared folder can be written to");
        for host in &self.fixture.hosts {
            host.exec(&["systemctl", "start", "putexd.service"]);
        }
        self.make_table();
    }

    /// Makes the table, and starts the writers on the hosts.
    fn make_table(&self) {
        let active = self.wait_for_one_active();
        self.ask(&active, SCHEMA)
            .expect("a new database takes a table");
        fs::create_dir(self.acknowledgements()).expect("the shared folder can be written to");
        for host in &self.fixture.hosts {
            host.exec(&["systemctl", "start", "writer.service"]);
        }
    }

    /// Waits until one copy is alive and the putexd of its host shows `active`, whatever happened before.
    #[track_caller]
    fn wait_for_one_active(&self) -> Event {
        wait_for(TAKE_OVER, "one host is active", || {
            match &self.fixture.oracle.live()[..] {
                [one] => {
                    let status = self
                        .fixture
                        .host_of(one)
                        .property("putexd.service", "StatusText");
                    status.contains("db active").then(|| one.clone())
                }
                _ => None,
            }
        })
    }

    /// The folder in which the writers write down the rows that were acknowledged.
    fn acknowledgements(&self) -> PathBuf {
        self.fixture.shared().join(ACKNOWLEDGED)
    }

    /// The answer of the database on the host of `active`, asked on that host, or the error that psql printed.
    fn ask(&self, active: &Event, statement: &str) -> Result<String, String> {
        let host = self.fixture.host_of(active);
        let quiet = [
            "--no-psqlrc",
            "--quiet",
            "--tuples-only",
            "--no-align",
            "--set=ON_ERROR_STOP=1",
            "--command",
        ];
        let output = host.output(
            &[
                &["psql", "-h", "/run/postgresql", "-U", "postgres"],
                &quiet[..],
                &[statement],
            ]
            .concat(),
        );
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(said(&output))
        }
    }

    /// Every acknowledgement so far.
    fn acknowledged(&self) -> Vec<Acknowledged> {
        let mut all = Vec::new();
        for entry in fs::read_dir(self.acknowledgements())
            .expect("the folder can be read")
            .flatten()
        {
            let writer = entry.file_name().to_string_lossy().into_owned();
            let text = fs::read_to_string(entry.path()).expect("the file can be read");
            // A line that is not complete yet is left to a later look.
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            all.extend(whole.lines().map(|line| Acknowledged::parse(&writer, line)));
        }
        all
    }

    /// Waits until rows are accepted from every writer that can reach the database: through the address, if it has one,
    /// and on the host where it runs.
    #[track_caller]
    fn wait_for_rows(&self, active: &Event) {
        let since = now();
        let outside = self.network.is_some().then_some("outside");
        for writer in outside.into_iter().chain([active.host.as_str()]) {
            wait_until(TAKE_OVER, &format!("a row of {writer} is taken"), || {
                self.last_of(writer) > since
            });
        }
    }

    /// When the last acknowledged row of a host, or of "outside", was sent.
    fn last_of(&self, writer: &str) -> Duration {
        let folder = fs::read_dir(self.acknowledgements()).expect("the folder can be read");
        let logs = folder.flatten().filter(|log| {
            log.file_name()
                .to_string_lossy()
                .starts_with(&format!("{writer}-"))
        });
        logs.filter_map(|log| last_line(&log.path()))
            .map(|line| Acknowledged::parse(writer, &line).sent)
            .max()
            .unwrap_or_default()
    }

    /// Checks that every acknowledged row is there, and that none is there twice. Returns the number of rows.
    #[track_caller]
    fn assert_rows(&self, active: &Event) -> usize {
        let acknowledged = self.acknowledged();
        let (rows, twice) = self.rows(active).expect("the database answers");
        assert!(twice.is_empty(), "rows are there twice: {twice:?}");
        let lost: Vec<&Acknowledged> = acknowledged
            .iter()
            .filter(|row| !rows.contains(&row.key()))
            .collect();
        assert!(
            lost.is_empty(),
            "of {} acknowledged rows {} are lost: {lost:#?}",
            acknowledged.len(),
            lost.len()
        );
        rows.len()
    }

    /// All rows, as writer and number, and those that are there more than once.
    fn rows(&self, active: &Event) -> Result<(HashSet<String>, Vec<String>), String> {
        let answer = self.ask(active, "SELECT writer || ' ' || n FROM written")?;
        let mut rows = HashSet::new();
        let twice = answer
            .lines()
            .filter(|row| !rows.insert((*row).to_owned()))
            .map(str::to_owned)
            .collect();
        Ok((rows, twice))
    }

    /// Checks with `pg_amcheck` that tables and indexes are sound, those of the system too. The error is what it
    /// printed.
    fn check(&self, active: &Event) -> Result<(), String> {
        let check = [
            "pg_amcheck",
            "-h",
            "/run/postgresql",
            "-U",
            "postgres",
            "--install-missing",
            "--heapallindexed",
        ];
        let checked = self
            .fixture
            .host_of(active)
            .output(&[&check[..], &["--database=postgres"]].concat());
        if checked.status.success() {
            Ok(())
        } else {
            Err(said(&checked))
        }
    }
}

/// The last complete line of a file. It reads only the end of the file, because files of long runs are long.
fn last_line(path: &Path) -> Option<String> {
    const ENOUGH: i64 = 200;
    let mut file = File::open(path).ok()?;
    let length = i64::try_from(file.metadata().ok()?.len()).ok()?;
    file.seek(SeekFrom::End(-length.min(ENOUGH))).ok()?;
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let whole = &text[..text.rfind('\n')?];
    Some(whole.rsplit('\n').next()?.to_owned()).filter(|_| whole.contains('\n') || length <= ENOUGH)
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Some(mut writer) = self.network.take() {
            writer.kill().expect("it is a child of this process");
            writer.wait().expect("it is a child of this process");
        }
    }
}

/// Starts the writer in the network of the switch, outside of the hosts.
fn write_from_outside(fixture: &Fixture, folder: &str) -> Child {
    let program = environment()
        .expect("there are hosts")
        .programs
        .join("usr/local/bin/writer");
    // A server that is cut off or has moved does not answer, so the connection has short timeouts.
    let patience = "connect_timeout=1 tcp_user_timeout=2 keepalives_idle=1 keepalives_interval=1 keepalives_retries=2";
    let connection = format!("host={ADDRESS} user=postgres dbname=postgres {patience}");
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net=/run/netns/{}", fixture.switch()))
        .arg(program);
    command
        .args(["outside", &connection, folder])
        .stdin(Stdio::null());
    command.spawn().expect("nsenter can be run")
}

/// A row that a server has acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Acknowledged {
    /// The host or "outside", and the run of the writer.
    writer: String,
    n: i64,
    /// CLOCK_MONOTONIC, the clock of [`now`]: when the row was sent, and when it was acknowledged.
    sent: Duration,
    at: Duration,
}

impl Acknowledged {
    fn parse(writer: &str, line: &str) -> Self {
        let numbers: Vec<u64> = line
            .split(' ')
            .map(|word| word.parse().expect("writers write numbers"))
            .collect();
        let [n, sent, at] = numbers[..] else {
            panic!("{writer} wrote {line:?}")
        };
        let n = i64::try_from(n).expect("writers count from one");
        Self {
            writer: writer.to_owned(),
            n,
            sent: Duration::from_nanos(sent),
            at: Duration::from_nanos(at),
        }
    }

    /// Whether the writer ran on this host, or "outside".
    fn is_of(&self, host: &str) -> bool {
        self.writer
            .strip_prefix(host)
            .is_some_and(|rest| rest.starts_with('-'))
    }

    /// The row as [`Database::rows`] returns it.
    fn key(&self) -> String {
        format!("{} {}", self.writer, self.n)
    }
}
