//! The grants, `/run/putex/leases/SERVICE`. A grant exists exactly while a lease is armed and open.
//!
//! The guard writes the grants. Lease target and unit assert that the file exists; it is an environment file of the unit; the
//! gate compares it at the moment of the start; and `putexctl token` reads the fencing token from it.
//!
//! The deadline is in the [first line](Extension), which an extension changes. The environment follows it.

use std::{fs, io, path::Path, thread::sleep, time::Duration};

use super::frame::Lease;
use crate::{
    host::clock,
    types::{Extension, FENCING_TOKEN as TOKEN, FencingToken, ServiceName, Time},
};

/// Why a grant does not permit a start.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// There is no grant, or it cannot be read.
    #[error("this host does not hold its lease{}", reading_failed(.0))]
    NoGrant(io::Error),
    /// The grant does not have the form that this program writes. The field says which part is wrong.
    #[error("its grant has no valid {0}")]
    Malformed(&'static str),
    /// The deadline of the grant has passed.
    #[error("its lease has passed its deadline")]
    Passed,
    /// The fencing token in the unit's environment is not that of the grant: the start was decided under another lease.
    #[error("its environment has the fencing token {found:?}, the lease has {token}")]
    Token {
        /// The token in the unit's environment; empty if there is none.
        found: String,
        /// The token in the grant.
        token: FencingToken,
    },
}

/// Why a grant could not be read. That there is none says no more than that.
fn reading_failed(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::NotFound {
        return String::new();
    }
    format!(" ({error})")
}

/// How often a grant is read that somebody seems to be writing, and the pause between two of these.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(2);

/// Whether the unit of `service` may be started now. `ExecCondition=` runs this with the unit's environment.
///
/// This catches a start that was decided before a pause and would be carried out after it. It cannot catch a pause of PID 1
/// between the end of this program and the start of the unit's own. Because of that the guard goes on killing until the lease
/// is disarmed.
pub fn gate(directory: &Path, service: &ServiceName) -> Result<(), GrantError> {
    let grant = read(directory, service)?;
    let found = std::env::var(TOKEN).unwrap_or_default();
    judge(&grant, &found, clock::now())
}

/// What a grant that permits the service to run says.
#[derive(Debug, PartialEq, Eq)]
pub struct Held {
    /// The fencing token of the lease.
    pub token: FencingToken,
    /// How long the lease still lasts.
    pub left: Duration,
}

/// The lease that this host holds now.
///
/// The caller compares the deadline in the grant with its own reading of the clocks. So it shows no token of a lease that is
/// over, even if the guard stands still, or a thawed host runs the caller before its guard.
pub fn held(directory: &Path, service: &ServiceName) -> Result<Held, GrantError> {
    held_of(&read(directory, service)?, clock::now())
}

/// The decision of the gate. `grant` is the text of the grant, and `found` the fencing token in the unit's environment.
pub fn judge(grant: &str, found: &str, now: Time) -> Result<(), GrantError> {
    let token = held_of(grant, now)?.token;
    if found == token.to_string() {
        Ok(())
    } else {
        Err(GrantError::Token {
            found: found.to_owned(),
            token,
        })
    }
}

/// The text of a grant. The guard may be writing its first line.
fn read(directory: &Path, service: &ServiceName) -> Result<String, GrantError> {
    let mut tries = 1;
    loop {
        let text =
            fs::read_to_string(directory.join(service.as_str())).map_err(GrantError::NoGrant)?;
        if tries == TRIES || Extension::read(&text).is_some() {
            return Ok(text);
        }
        tries += 1;
        sleep(PAUSE);
    }
}

fn held_of(grant: &str, now: Time) -> Result<Held, GrantError> {
    let (Extension { deadline, .. }, environment) =
        Extension::read(grant).ok_or(GrantError::Malformed("deadline"))?;
    let token = FencingToken(
        environment
            .lines()
            .find_map(|line| line.strip_prefix(TOKEN)?.strip_prefix('=')?.parse().ok())
            .ok_or(GrantError::Malformed(TOKEN))?,
    );
    if now.has_passed(deadline) {
        return Err(GrantError::Passed);
    }
    let left = now.until_passed(deadline);
    Ok(Held { token, left })
}

/// The whole text of a new grant. An environment file follows its first line, with the fencing token, the service and the node.
pub fn render(lease: &Lease) -> String {
    let line = Extension::of(&lease.terms).line();
    let mut node = String::new();
    for character in lease.node.as_str().chars() {
        // Within double quotes systemd's EnvironmentFile= removes a backslash before these four characters and no others.
        if matches!(character, '"' | '\\' | '`' | '$') {
            node.push('\\');
        }
        node.push(character);
    }
    format!(
        "{line}{TOKEN}={}\nPUTEX_SERVICE={}\nPUTEX_NODE=\"{node}\"\n",
        lease.terms.token, lease.service
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Instance, LeaseTerms, NodeId, OnStopFailure, Revision, WriteId};

    fn lease() -> Lease {
        Lease {
            service: ServiceName::new("db").expect("a good name"),
            node: NodeId::new(r#"a"b\c$d`e'f"#).expect("a good name"),
            terms: LeaseTerms {
                instance: Instance(1),
                write: WriteId(2),
                revision: Revision(3),
                token: FencingToken(42),
                deadline: Time {
                    boot: Duration::from_millis(10_500),
                    raw: Duration::from_secs(9),
                },
                stop_budget: Duration::from_secs(4),
                kill_reserve: Duration::from_secs(1),
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

    #[test]
    fn the_grant_is_an_environment_file_to_systemd() {
        let expected =
            "PUTEX_FENCING_TOKEN=42\nPUTEX_SERVICE=db\nPUTEX_NODE=\"a\\\"b\\\\c\\$d\\`e'f\"\n";
        let grant = render(&lease());
        let lines = grant
            .split_inclusive('\n')
            .filter(|line| !line.starts_with('#'));
        assert_eq!(lines.collect::<String>(), expected);
        assert!(
            grant.starts_with("# 00000000000000000000000000000002 00000000000000000003 00000000010500000000 00000000009000000000 "),
            "{grant}"
        );
    }

    #[test]
    fn the_gate_opens_before_the_deadline_with_the_right_token() {
        let grant = render(&lease());
        let early = Time::both(Duration::from_secs(8));
        assert!(judge(&grant, "42", early).is_ok());
        let left = Duration::from_secs(1);
        assert_eq!(
            held_of(&grant, early).expect("it is held"),
            Held {
                token: FencingToken(42),
                left
            }
        );
        for found in ["", "41", "042", "42 "] {
            assert!(
                matches!(judge(&grant, found, early), Err(GrantError::Token { .. })),
                "{found:?}"
            );
        }
        for late in [
            Time {
                boot: Duration::from_millis(10_500),
                raw: Duration::from_secs(1),
            },
            Time {
                boot: Duration::from_secs(1),
                raw: Duration::from_secs(9),
            },
        ] {
            assert!(matches!(judge(&grant, "42", late), Err(GrantError::Passed)));
            assert!(matches!(held_of(&grant, late), Err(GrantError::Passed)));
        }
    }

    #[test]
    fn a_grant_that_is_not_whole_permits_nothing() {
        let grant = render(&lease());
        for missing in [TOKEN, "# "] {
            let lines: Vec<&str> = grant
                .lines()
                .filter(|line| !line.starts_with(missing))
                .collect();
            assert!(matches!(
                held_of(&lines.join("\n"), Time::default()),
                Err(GrantError::Malformed(_))
            ));
        }
        assert!(judge("", "", Time::default()).is_err());
    }

    #[test]
    fn what_a_host_may_do_now_is_in_the_grant_that_is_there_now() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, service) = (directory.path(), lease().service);
        assert!(matches!(held(path, &service), Err(GrantError::NoGrant(_))));
        assert!(matches!(gate(path, &service), Err(GrantError::NoGrant(_))));
        let until = |deadline| {
            let terms = LeaseTerms {
                deadline,
                ..lease().terms
            };
            fs::write(path.join("db"), render(&Lease { terms, ..lease() })).expect("writes");
        };
        until(clock::now().plus(Duration::from_secs(3600)));
        assert_eq!(
            held(path, &service).expect("it is held").token,
            FencingToken(42)
        );
        // The environment of this test program has no fencing token.
        assert!(matches!(
            gate(path, &service),
            Err(GrantError::Token {
                token: FencingToken(42),
                ..
            })
        ));
        until(clock::now());
        assert!(matches!(held(path, &service), Err(GrantError::Passed)));
        assert!(matches!(gate(path, &service), Err(GrantError::Passed)));
    }
}
