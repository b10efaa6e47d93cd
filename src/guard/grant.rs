//! The grants, `/run/putex/leases/SERVICE`: present exactly while a deadline is armed and open.
//!
//! The guard writes them. Lease target and unit assert that the file exists; the unit's environment comes from it; the
//! gate compares it at the moment of the start; and `putexctl token` reads the fencing token from it.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::frame::Lease;
use crate::host::clock;
use crate::types::{FENCING_TOKEN as TOKEN, ServiceName, Term, Time};

const DEADLINE_BOOT: &str = "PUTEX_DEADLINE_BOOT_NS";
const DEADLINE_RAW: &str = "PUTEX_DEADLINE_RAW_NS";

/// Why a grant permits nothing.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// There is no grant, or it cannot be read.
    #[error("this host does not hold its lease ({0})")]
    NoGrant(io::Error),
    /// The grant is not one of this program's.
    #[error("its grant has no valid {0}")]
    Malformed(&'static str),
    /// The deadline has passed.
    #[error("its lease has passed its deadline")]
    Passed,
}

/// Why a unit is not started.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// This host does not hold the lease now.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// The unit's environment is not that of the grant: the start was decided under another lease.
    #[error("its environment has the fencing token {found:?}, the lease has {term}")]
    Token {
        /// In the environment.
        found: String,
        /// In the grant.
        term: Term,
    },
}

/// Writes the grant, or replaces it, at once and whole.
pub fn write(directory: &Path, lease: &Lease) -> io::Result<()> {
    prepare(directory, lease)?.put()
}

/// Takes the room that the grant needs; nobody sees it before it is [put](Prepared::put) in its place. Everybody may read
/// it then, as everybody may know the token.
pub fn prepare(directory: &Path, lease: &Lease) -> io::Result<Prepared> {
    Prepared::new(&directory.join(lease.service.as_str()), render(lease).as_bytes(), 0o644)
}

/// Removes the grant; one that is not there is removed already.
pub fn withdraw(directory: &Path, service: &ServiceName) -> io::Result<()> {
    match fs::remove_file(directory.join(service.as_str())) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes all grants: those of a guard that died.
pub fn withdraw_all(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        fs::remove_file(entry?.path())?;
    }
    Ok(())
}

/// Writes a file beside `path` and moves it there. /run is memory, so there is nothing to sync.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    Prepared::new(path, content, mode)?.put()
}

/// A file that is written, and not yet in its place. Dropped, it leaves nothing behind: where there is no room, half of a
/// file would take some.
#[derive(Debug)]
pub struct Prepared {
    beside: PathBuf,
    path: PathBuf,
    is_put: bool,
}

impl Prepared {
    fn new(path: &Path, content: &[u8], mode: u32) -> io::Result<Self> {
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
        name.push(".new");
        let prepared = Self { beside: path.with_file_name(name), path: path.to_owned(), is_put: false };
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&prepared.beside)?;
        file.write_all(content)?;
        // The umask may have taken some of it.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        Ok(prepared)
    }

    /// Replaces what is there, which needs no room.
    pub fn put(mut self) -> io::Result<()> {
        fs::rename(&self.beside, &self.path)?;
        self.is_put = true;
        Ok(())
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if !self.is_put {
            let _ = fs::remove_file(&self.beside);
        }
    }
}

/// Whether the unit of `service` may be started now, asked by `ExecCondition=` with the unit's environment.
///
/// This catches a start that was decided before a pause and would be carried out after it. What it cannot catch is a
/// pause of PID 1 between the end of this program and the start of the unit's own: for that the guard goes on killing
/// until the lease is disarmed.
pub fn gate(directory: &Path, service: &ServiceName) -> Result<(), GateError> {
    let grant = read(directory, service)?;
    let found = std::env::var(TOKEN).unwrap_or_default();
    judge(&grant, &found, clock::now())
}

/// The fencing token of the lease that this host holds now.
///
/// The deadline in the grant is looked at by the caller's own reading of the clocks, so that a guard that stands still,
/// or a host that thaws and has its callers go on before its guard, shows no token of a lease that is over.
pub fn token(directory: &Path, service: &ServiceName) -> Result<Term, GrantError> {
    term(&read(directory, service)?, clock::now())
}

/// What the gate says: `grant` is the grant's text, `found` the fencing token in the unit's environment.
pub fn judge(grant: &str, found: &str, now: Time) -> Result<(), GateError> {
    let term = term(grant, now)?;
    if found == term.to_string() { Ok(()) } else { Err(GateError::Token { found: found.to_owned(), term }) }
}

fn read(directory: &Path, service: &ServiceName) -> Result<String, GrantError> {
    fs::read_to_string(directory.join(service.as_str())).map_err(GrantError::NoGrant)
}

fn term(grant: &str, now: Time) -> Result<Term, GrantError> {
    let number = |name: &'static str| {
        grant
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok())
            .ok_or(GrantError::Malformed(name))
    };
    let term = Term(number(TOKEN)?);
    let deadline =
        Time { boot: Duration::from_nanos(number(DEADLINE_BOOT)?), raw: Duration::from_nanos(number(DEADLINE_RAW)?) };
    if now.has_passed(deadline) { Err(GrantError::Passed) } else { Ok(term) }
}

/// The text of a grant: an environment file.
///
/// # Panics
///
/// Never: writing to a string does not fail.
#[must_use]
pub fn render(lease: &Lease) -> String {
    let mut node = String::new();
    for character in lease.node.as_str().chars() {
        // Within double quotes systemd's EnvironmentFile= unescapes these four and no others.
        if matches!(character, '"' | '\\' | '`' | '$') {
            node.push('\\');
        }
        node.push(character);
    }
    let mut text = String::new();
    for (name, value) in [
        (TOKEN, lease.term.to_string()),
        ("PUTEX_SERVICE", lease.service.to_string()),
        ("PUTEX_NODE", format!("\"{node}\"")),
        (DEADLINE_BOOT, lease.deadline.boot.as_nanos().to_string()),
        (DEADLINE_RAW, lease.deadline.raw.as_nanos().to_string()),
    ] {
        writeln!(text, "{name}={value}").expect("writing to a string does not fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Instance, NodeId, OnStopFailure, Revision, WriteId};

    fn lease() -> Lease {
        Lease {
            service: ServiceName::new("db").expect("a good name"),
            node: NodeId::new(r#"a"b\c$d`e'f"#).expect("a good name"),
            instance: Instance(1),
            write: WriteId(2),
            revision: Revision(3),
            term: Term(42),
            deadline: Time { boot: Duration::from_millis(10_500), raw: Duration::from_secs(9) },
            stop_budget: Duration::from_secs(4),
            kill_reserve: Duration::from_secs(1),
            units: Vec::new(),
            cgroups: Vec::new(),
            inactive: Vec::new(),
            begun: Vec::new(),
            contains: Vec::new(),
            on_stop_failure: OnStopFailure::Alert,
            closing: false,
        }
    }

    #[test]
    fn the_grant_is_an_environment_file() {
        let expected = "PUTEX_FENCING_TOKEN=42\nPUTEX_SERVICE=db\nPUTEX_NODE=\"a\\\"b\\\\c\\$d\\`e'f\"\n\
                        PUTEX_DEADLINE_BOOT_NS=10500000000\nPUTEX_DEADLINE_RAW_NS=9000000000\n";
        assert_eq!(render(&lease()), expected);
    }

    #[test]
    fn the_gate_opens_before_the_deadline_with_the_right_token() {
        let grant = render(&lease());
        let early = Time::both(Duration::from_secs(8));
        assert!(judge(&grant, "42", early).is_ok());
        assert!(matches!(term(&grant, early), Ok(Term(42))));
        for found in ["", "41", "042", "42 "] {
            assert!(matches!(judge(&grant, found, early), Err(GateError::Token { .. })), "{found:?}");
        }
        for late in [
            Time { boot: Duration::from_millis(10_500), raw: Duration::from_secs(1) },
            Time { boot: Duration::from_secs(1), raw: Duration::from_secs(9) },
        ] {
            assert!(matches!(judge(&grant, "42", late), Err(GateError::Grant(GrantError::Passed))));
            assert!(matches!(term(&grant, late), Err(GrantError::Passed)));
        }
    }

    #[test]
    fn a_grant_that_is_not_whole_permits_nothing() {
        let grant = render(&lease());
        for missing in [TOKEN, DEADLINE_BOOT, DEADLINE_RAW] {
            let lines: Vec<&str> = grant.lines().filter(|line| !line.starts_with(missing)).collect();
            assert!(matches!(term(&lines.join("\n"), Time::default()), Err(GrantError::Malformed(_))));
        }
        assert!(judge("", "", Time::default()).is_err());
    }

    #[test]
    fn a_grant_that_cannot_be_removed_is_told() {
        let leases = tempfile::tempdir().expect("a directory");
        let service = lease().service;
        fs::create_dir(leases.path().join(service.as_str())).expect("something else in its place");
        assert!(withdraw(leases.path(), &service).is_err());
        assert!(withdraw_all(leases.path()).is_err());
    }

    #[test]
    fn grants_come_and_go_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        write(directory.path(), &lease()).expect("writes");
        write(directory.path(), &lease()).expect("writes again");
        let names: Vec<_> = fs::read_dir(directory.path()).expect("reads").filter_map(Result::ok).collect();
        assert_eq!(names.len(), 1, "nothing else is left behind");
        let mode = names[0].metadata().expect("is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        withdraw(directory.path(), &lease().service).expect("removes");
        withdraw(directory.path(), &lease().service).expect("nothing is there to remove");
        write(directory.path(), &lease()).expect("writes");
        withdraw_all(directory.path()).expect("removes");
        assert!(gate(directory.path(), &lease().service).is_err());
    }

    #[test]
    fn what_a_host_may_do_now_is_in_the_grant_that_is_there_now() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, service) = (directory.path(), lease().service);
        assert!(matches!(token(path, &service), Err(GrantError::NoGrant(_))));
        assert!(matches!(gate(path, &service), Err(GateError::Grant(GrantError::NoGrant(_)))));
        let until = |deadline| write(path, &Lease { deadline, ..lease() }).expect("writes");
        until(clock::now().plus(Duration::from_secs(3600)));
        assert!(matches!(token(path, &service), Ok(Term(42))));
        // This program was not started with the environment of the grant.
        assert!(matches!(gate(path, &service), Err(GateError::Token { term: Term(42), .. })));
        until(clock::now());
        assert!(matches!(token(path, &service), Err(GrantError::Passed)));
        assert!(matches!(gate(path, &service), Err(GateError::Grant(GrantError::Passed))));
    }
}
