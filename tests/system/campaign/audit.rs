//! What has to hold after each step.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde_json::Value;

use super::{crowd, inject::SLICES};
use crate::{
    cluster::Host,
    fixture::{Fixture, UNIT},
    watch::Event,
};

const DAEMON: &str = "putexd.service";
const GUARD: &str = "putex-guard.service";
const WATCHER: &str = "putex-guard-watch.service";
const LEASE: &str = "putex-lease@db.target";
const GRANTS: &str = "/run/putex/leases";
const GENERATED: &str = "/run/systemd/generator/database.service.d/zzzz-putex.conf";

/// The state of a cluster in which everything is as it should be.
#[derive(Debug, Clone)]
pub struct Good {
    /// The only copy that runs.
    pub active: Event,
    /// Revision of the lock, as its holder knows it.
    pub revision: u64,
}

/// Tells whether a cluster that was in order once is still in order after one more renewal. A newer renewal shows that the
/// lease of the running copy is fresh.
#[derive(Debug, Default)]
pub struct Rest(Option<Good>);

impl Rest {
    /// Returns the running copy once the lock was renewed for it, or what is still amiss.
    pub fn confirm(&mut self, good: Good) -> Result<Event, String> {
        match &self.0 {
            Some(first) if first.active == good.active && first.revision < good.revision => {
                Ok(good.active)
            }
            Some(first) if first.active == good.active => Err("the lock is not renewed".to_owned()),
            Some(_) | None => {
                let amiss = format!("{} has only just become active", good.active.host);
                self.0 = Some(good);
                Err(amiss)
            }
        }
    }
}

/// Checks the whole cluster once: returns its state, or what is amiss. `program` is the process name of the unit's
/// program.
pub fn look(fixture: &Fixture, program: &str) -> Result<Good, String> {
    let live = fixture.oracle.live();
    let [one] = &live[..] else {
        return Err(format!("{} copies are alive: {live:?}", live.len()));
    };
    let mut revision = 0;
    for host in &fixture.hosts {
        let known =
            look_at(host, one, program).map_err(|amiss| format!("{}: {amiss}", host.name))?;
        if host.name == one.host {
            revision = known;
        }
    }
    Ok(Good {
        active: one.clone(),
        revision,
    })
}

/// Checks one host, and returns the lock's revision as this host knows it.
fn look_at(host: &Host, one: &Event, program: &str) -> Result<u64, String> {
    if !host.is_on() {
        return Err("it is off".to_owned());
    }
    let runs = host.name == one.host;
    let units = units(host)?;
    let of = |unit: &'static str, property: &'static str| {
        units.get(&(unit, property)).map_or("", String::as_str)
    };
    for unit in [DAEMON, GUARD, WATCHER] {
        require(unit, "active", of(unit, "ActiveState"))?;
    }
    let expected = if runs { "active" } else { "inactive" };
    require(LEASE, expected, of(LEASE, "ActiveState"))?;
    // A unit that was killed has failed, and systemd shows it as `failed` until it is started again.
    if runs || of(UNIT, "ActiveState") != "failed" {
        require(UNIT, expected, of(UNIT, "ActiveState"))?;
    }
    require("jobs", "", of(UNIT, "Job").trim_start_matches('0'))?;
    if !host
        .read_file(GENERATED)
        .is_some_and(|bond| bond.contains(&format!("BindsTo={LEASE}")))
    {
        return Err(format!("{UNIT} is not bound to its lease"));
    }
    look_at_processes(host, runs, program)?;
    look_at_grant(host, runs.then_some(one), of(UNIT, "MainPID"))?;
    let revision = look_at_status(host, one)?;
    let failed = said(
        host,
        &[
            "systemctl",
            "list-units",
            "--failed",
            "--plain",
            "--no-legend",
        ],
    )?;
    match failed
        .lines()
        .find(|line| !line.starts_with(UNIT) && !line.starts_with(crowd::PREFIX))
    {
        Some(line) => Err(format!("a unit has failed: {line}")),
        None => Ok(revision),
    }
}

/// The hosts whose store servers do not run, or have not caught up with the others.
pub fn unwell(fixture: &Fixture) -> Vec<&Host> {
    let Some(servers) = fixture.locks.servers() else {
        return Vec::new();
    };
    fixture
        .hosts
        .iter()
        .filter(|host| !servers.is_well(fixture, host))
        .collect()
}

fn require(what: &str, expected: &str, found: &str) -> Result<(), String> {
    if expected == found {
        Ok(())
    } else {
        Err(format!("{what} is {found:?} rather than {expected:?}"))
    }
}

fn said(host: &Host, arguments: &[&str]) -> Result<String, String> {
    let output = host.output(arguments);
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!(
        "{}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    ))
}

/// Properties of the units that matter, by unit and property.
fn units(host: &Host) -> Result<BTreeMap<(&'static str, &'static str), String>, String> {
    const UNITS: [&str; 5] = [DAEMON, GUARD, WATCHER, LEASE, UNIT];
    const PROPERTIES: [&str; 3] = ["ActiveState", "MainPID", "Job"];
    let shown = [
        &["systemctl", "show", "--property=Id,ActiveState,MainPID,Job"],
        &UNITS[..],
    ]
    .concat();
    let mut found = BTreeMap::new();
    for block in said(host, &shown)?.split("\n\n") {
        let value = |name: &str| {
            block
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
        };
        let Some(unit) = value("Id").and_then(|id| UNITS.into_iter().find(|unit| *unit == id))
        else {
            continue;
        };
        for property in PROPERTIES {
            found.insert(
                (unit, property),
                value(property).unwrap_or_default().to_owned(),
            );
        }
    }
    Ok(found)
}

/// Checks that no process of the unit is left where the unit does not run, whatever state systemd shows.
fn look_at_processes(host: &Host, runs: bool, program: &str) -> Result<(), String> {
    let there = host.processes(program).len();
    if runs != (there > 0) {
        return Err(format!("{there} processes of the unit are there"));
    }
    let is_populated = |slice: &str| {
        let events = host.read_file(&format!("/sys/fs/cgroup/{slice}/{UNIT}/cgroup.events"));
        events.is_some_and(|events| events.contains("populated 1"))
    };
    match SLICES.into_iter().find(|slice| is_populated(slice)) {
        Some(slice) if !runs => Err(format!("the unit's control group in {slice} is not empty")),
        _ => Ok(()),
    }
}

/// Checks that the host that runs the unit has exactly one grant, with the token that the unit was started with, and
/// that any other host has none.
fn look_at_grant(host: &Host, one: Option<&Event>, main_pid: &str) -> Result<(), String> {
    let listed = said(host, &["ls", "-A", GRANTS])?;
    let grants: Vec<&str> = listed
        .lines()
        .filter(|service| !service.starts_with(crowd::PREFIX))
        .collect();
    let Some(one) = one else {
        return if grants.is_empty() {
            Ok(())
        } else {
            Err(format!("grants are left over: {grants:?}"))
        };
    };
    if grants != ["db"] {
        return Err(format!("its grants are {grants:?}"));
    }
    let token = |text: &str| {
        text.split(['\n', '\0'])
            .find_map(|line| line.strip_prefix("PUTEX_FENCING_TOKEN=")?.parse().ok())
    };
    let granted = host
        .read_file(&format!("{GRANTS}/db"))
        .and_then(|grant| token(&grant));
    let environment = said(host, &["cat", &format!("/proc/{main_pid}/environ")])?;
    if granted.is_some() && granted == one.token && granted == token(&environment) {
        return Ok(());
    }
    Err(format!(
        "token: granted {granted:?}, in the environment {:?}, logged {:?}",
        token(&environment),
        one.token
    ))
}

/// Checks what `putexctl` says of the lock: every host must name the same holder. Returns the revision.
fn look_at_status(host: &Host, one: &Event) -> Result<u64, String> {
    let status: Value = serde_json::from_str(&said(host, &["putexctl", "status", "db", "--json"])?)
        .map_err(|error| format!("putexctl status: {error}"))?;
    let here = crate::fixture::here(&status, &host.name);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let expected = if host.name == one.host {
        "active"
    } else {
        "standby"
    };
    require("the state of db", expected, &text(&here["state"]))?;
    require(
        "the holder of db",
        &one.host,
        &text(&here["lock"]["holder"]),
    )?;
    if host.name == one.host && here["token"].as_u64() != one.token {
        return Err(format!(
            "it holds db with the token {}, the unit has {:?}",
            here["token"], one.token
        ));
    }
    Ok(here["lock"]["revision"].as_u64().unwrap_or_default())
}

/// Lines of the journals that cannot be explained by any fault of a campaign.
pub fn unexpected(fixture: &Fixture, since_seconds: u64) -> Vec<String> {
    const WORDS: [&str; 4] = [
        "panicked at",
        "is a defect",
        "code=dumped",
        "has no valid PUTEX",
    ];
    let mut lines = Vec::new();
    for host in &fixture.hosts {
        let journal = host.journal_since(since_seconds);
        let found = journal
            .lines()
            .filter(|line| line.contains("putex") || line.contains("panicked"));
        lines.extend(
            found
                .filter(|line| WORDS.iter().any(|word| line.contains(word)))
                .map(str::to_owned),
        );
    }
    lines
}

/// A span of time in which a whole host was frozen.
#[derive(Debug, Clone)]
pub struct Standstill {
    pub host: String,
    pub from: Duration,
    pub until: Duration,
}

/// Two copies that were alive at once.
#[derive(Debug, Clone)]
pub struct Overlap {
    pub older: Event,
    pub newer: Event,
    pub kind: OverlapKind,
}

impl fmt::Display for Overlap {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (older, newer) = (&self.older, &self.newer);
        write!(
            formatter,
            "{} (token {:?}, started at {:?}) was alive when {} (token {:?}) started at {:?}",
            older.id, older.token, older.at, newer.id, newer.token, newer.at
        )
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverlapKind {
    /// The host of one of them was frozen. Both were alive for this long after its thaw.
    Frozen { after_thaw: Duration },
    /// No freeze excuses it.
    Violation,
}

/// A copy on a frozen host has to be gone within this time after the thaw.
pub const THAW_BOUND: Duration = Duration::from_secs(1);
/// A thread of the test has to be woken before it writes down the end of a copy. The lock of the oracle needs no such
/// tolerance.
const END_LAG: Duration = Duration::from_secs(1);

/// All overlaps in the oracle's log. `standstills` are the freezes so far, all of them over.
pub fn overlaps(fixture: &Fixture, standstills: &[Standstill]) -> Vec<Overlap> {
    let starts = fixture.oracle.starts();
    let ends = fixture.oracle.ends();
    let noticed = fixture.oracle.violations();
    let end_of = |start: &Event| ends.get(&start.id).copied().unwrap_or(Duration::MAX);
    let mut found = Vec::new();
    for (index, newer) in starts.iter().enumerate() {
        let was_noticed = noticed.iter().any(|seen| seen.id == newer.id);
        let grace = if was_noticed { Duration::ZERO } else { END_LAG };
        let mut older: Vec<&Event> = starts[..index]
            .iter()
            .filter(|older| end_of(older) > newer.at + grace)
            .collect();
        if was_noticed {
            // When one older copy was frozen and the end of another was only written down late, the frozen copy is the
            // one that was in the way.
            let frozen = |older: &&Event| {
                judge(older, newer, end_of(older), end_of(newer), standstills)
                    != OverlapKind::Violation
            };
            if older.iter().any(frozen) {
                older.retain(|older| frozen(older) || end_of(older) > newer.at + END_LAG);
            } else if older.is_empty() {
                found.push(Overlap {
                    older: newer.clone(),
                    newer: newer.clone(),
                    kind: OverlapKind::Violation,
                });
            }
        }
        found.extend(older.into_iter().map(|older| {
            let kind = judge(older, newer, end_of(older), end_of(newer), standstills);
            Overlap {
                older: older.clone(),
                newer: newer.clone(),
                kind,
            }
        }));
    }
    found
}

/// Judges one overlap. A frozen copy touches nothing, and the protocol promises only that it is gone soon after the
/// thaw.
fn judge(
    older: &Event,
    newer: &Event,
    older_end: Duration,
    newer_end: Duration,
    standstills: &[Standstill],
) -> OverlapKind {
    for (copy, end) in [(older, older_end), (newer, newer_end)] {
        let stood_still = standstills.iter().find(|still| {
            still.host == copy.host
                && still.from <= newer.at
                && newer.at <= still.until + THAW_BOUND
        });
        if let Some(still) = stood_still.filter(|still| end <= still.until + THAW_BOUND) {
            return OverlapKind::Frozen {
                after_thaw: end.saturating_sub(still.until.max(newer.at)),
            };
        }
    }
    OverlapKind::Violation
}

/// The first pair of consecutive starts whose fencing token did not grow. A tenure starts its unit once, so that every
/// start has a token of its own. The exception is the starts in `moved`: systemd started those in another slice under the
/// same tenure.
pub fn token_that_did_not_grow(starts: &[Event], moved: &[Event]) -> Option<(Event, Event)> {
    let is_wrong = |pair: &&[Event]| {
        if moved.contains(&pair[1]) {
            pair[0].token != pair[1].token
        } else {
            pair[0].token >= pair[1].token
        }
    };
    starts
        .windows(2)
        .find(is_wrong)
        .map(|pair| (pair[0].clone(), pair[1].clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Kind;

    fn start(host: &str, at: u64, token: u64) -> Event {
        let id = format!("{host}-{at}");
        Event {
            kind: Kind::Start,
            host: host.to_owned(),
            at: Duration::from_secs(at),
            token: Some(token),
            id,
        }
    }

    #[test]
    fn only_a_copy_that_is_gone_soon_after_the_thaw_is_excused() {
        let second = Duration::from_secs;
        let (older, newer) = (start("h1", 1, 1), start("h2", 20, 2));
        let still = Standstill {
            host: "h1".to_owned(),
            from: second(10),
            until: second(30),
        };
        let judged = |end: Duration, stills: &[Standstill]| {
            judge(&older, &newer, end, Duration::MAX, stills)
        };
        let soon = second(30) + Duration::from_millis(40);
        let excused = OverlapKind::Frozen {
            after_thaw: Duration::from_millis(40),
        };
        assert_eq!(judged(soon, std::slice::from_ref(&still)), excused);
        assert_eq!(
            judged(second(32), std::slice::from_ref(&still)),
            OverlapKind::Violation,
            "too late"
        );
        assert_eq!(
            judged(Duration::MAX, std::slice::from_ref(&still)),
            OverlapKind::Violation,
            "never"
        );
        assert_eq!(
            judged(soon, &[]),
            OverlapKind::Violation,
            "nobody was frozen"
        );
        let other = Standstill {
            host: "h3".to_owned(),
            ..still.clone()
        };
        assert_eq!(
            judged(soon, &[other]),
            OverlapKind::Violation,
            "another host was frozen"
        );
        let later = Standstill {
            from: second(21),
            ..still
        };
        assert_eq!(
            judged(second(22), &[later]),
            OverlapKind::Violation,
            "it began before the freeze"
        );
    }

    #[test]
    fn tokens_have_to_grow_from_start_to_start() {
        let wrong =
            |starts: &[Event], moved: &[Event]| token_that_did_not_grow(starts, moved).is_some();
        assert!(!wrong(
            &[start("h1", 1, 5), start("h1", 2, 6), start("h2", 3, 7)],
            &[]
        ));
        for host in ["h1", "h2"] {
            assert!(wrong(&[start("h1", 1, 5), start(host, 2, 5)], &[]));
        }
        let moved = start("h1", 2, 5);
        assert!(!wrong(
            &[start("h1", 1, 5), moved.clone()],
            std::slice::from_ref(&moved)
        ));
        assert!(wrong(&[start("h1", 1, 4), moved.clone()], &[moved]));
        let without = Event {
            token: None,
            ..start("h2", 2, 6)
        };
        assert!(wrong(&[start("h1", 1, 5), without], &[]));
    }
}
