//! `[health]` and `[fence]`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use toml::Spanned;

use super::settings::{FenceSettings, HealthSettings, Probe};
use super::timings::LONGEST_LIMIT;
use crate::election::Timings;
use crate::host::address::{is_host, is_host_and_port};
use crate::keys::{ConfigKey, Read, Table, Value};
use crate::types::{NodeId, UnitName};

/// The largest `rise` and `fall`. They count checks, and only few checks fit into a lease.
const MOST_CHECKS: u32 = 1000;

/// A program with its arguments, as a list; a program alone may be a plain string.
#[derive(Debug)]
struct Command(Vec<String>);

impl Read for Command {
    fn read(value: &mut Value<'_>) -> Option<Self> {
        if value.get().is_array() {
            return Read::read(value).map(Self);
        }
        // There is no shell and there are no quoting rules: only a list says without doubt where an argument ends.
        match value.get().as_str().filter(|text| !text.contains(char::is_whitespace)) {
            Some(program) => Some(Self(vec![program.to_owned()])),
            None => value.is_not("a program with its arguments as a list, such as [\"/usr/bin/check-db\", \"--fast\"]"),
        }
    }
}

/// `[health]` as it is written.
#[derive(Default)]
pub(super) struct Check {
    command: Option<Command>,
    user: Option<String>,
    unit: Option<String>,
    tcp: Option<String>,
    http: Option<String>,
    interval: Duration,
    timeout: Duration,
    rise: u32,
    fall: u32,
}

pub(super) const HEALTH: &[ConfigKey<Check>] = &[
    ConfigKey::<Check>::new("command", |check| &mut check.command)
        .checked(|check| command_problem(check.command.as_ref()?)),
    ConfigKey::<Check>::new("user", |check| &mut check.user).checked(|check| user_problem(check.user.as_ref()?)),
    ConfigKey::<Check>::new("unit", |check| &mut check.unit)
        .checked(|check| template_problem(check.unit.as_ref()?, "active", "check-db@.service")),
    ConfigKey::<Check>::new("tcp", |check| &mut check.tcp).checked(|check| {
        let text = check.tcp.as_ref().filter(|text| !is_host_and_port(text))?;
        Some(format!("{text:?} is not host:port: write it like \"127.0.0.1:5432\" or \"[::1]:5432\""))
    }),
    ConfigKey::<Check>::new("http", |check| &mut check.http).checked(|check| http_problem(check.http.as_ref()?)),
    ConfigKey::<Check>::new("interval", |check| &mut check.interval),
    ConfigKey::<Check>::new("timeout", |check| &mut check.timeout),
    ConfigKey::<Check>::new("rise", |check| &mut check.rise).checked(|check| count_problem("rise", check.rise)),
    ConfigKey::<Check>::new("fall", |check| &mut check.fall).checked(|check| count_problem("fall", check.fall)),
];

pub(super) const FENCE: &[ConfigKey<FenceSettings>] = &[
    ConfigKey::<FenceSettings>::new("others", |fence| &mut fence.others)
        .agreed()
        .checked(|fence| template_problem(fence.others.as_ref()?, "h1", "fence@.service")),
    ConfigKey::<FenceSettings>::new("hosts", |fence| &mut fence.hosts).agreed(),
    ConfigKey::<FenceSettings>::new("required", |fence| &mut fence.required).agreed(),
    ConfigKey::<FenceSettings>::new("unfence", |fence| &mut fence.unfence),
    ConfigKey::<FenceSettings>::new("timeout", |fence| &mut fence.timeout).agreed().checked(|fence| {
        let is_good = !fence.timeout.is_zero() && fence.timeout <= LONGEST_LIMIT;
        (!is_good).then(|| {
            format!("timeout = {:?} is out of range: set more than 0s, at most {LONGEST_LIMIT:?}", fence.timeout)
        })
    }),
];

/// Validates `[health]`, whose times are bounded by the service's timings. Its program is searched for below `root`.
/// `None`: an error was reported, or the service's timings are unknown.
pub(super) fn check_health(mut table: Table<'_>, timings: Option<Timings>, root: &Path) -> Option<HealthSettings> {
    let mut check = Check { rise: 1, fall: 2, ..Check::default() };
    table.read(HEALTH, &mut check);
    let given: Vec<&str> =
        ["command", "unit", "tcp", "http"].into_iter().filter(|key| table.place(key).is_some()).collect();
    match given.len() {
        1 => {}
        0 => table.error(&[], "[health] asks nothing: set one of command, unit, tcp and http"),
        _ => table.error(&[], format!("[health] has {}: keep one of them", given.join(" and "))),
    }
    if table.has_taken("user") && table.place("command").is_none() {
        table.error(
            &["user"],
            "user is about command, which is missing: set User= in the unit that is the check, or remove user",
        );
    } else if table.is_good("command") {
        warn_of_program(&check, root, &table);
    }
    check_times(&mut check, timings?, &table);
    let Check { command, user, unit, tcp, http, interval, timeout, rise, fall } = check;
    let probe = command
        .map(|Command(argv)| Probe::Command { argv, user })
        .or(unit.map(Probe::Unit))
        .or(tcp.map(Probe::Tcp))
        .or(http.map(Probe::Http))?;
    Some(HealthSettings { probe, interval, timeout, rise, fall })
}

/// Validates `[fence]` of a service with these units, on the host `node`. Errors are reported.
pub(super) fn check_fence(mut table: Table<'_>, units: &[Spanned<UnitName>], node: Option<&NodeId>) -> FenceSettings {
    let mut fence = FenceSettings::default();
    table.read(FENCE, &mut fence);
    for key in ["hosts", "required"] {
        if table.has_taken(key) && table.place("others").is_none() {
            let text = format!("{key} is about others, which is missing: set it, such as others = \"fence@.service\"");
            table.error(&[key], text);
        }
    }
    // A host that is missing in the list would not be fenced, and nobody would notice before that matters.
    if table.has_taken("hosts") && node.is_some_and(|node| !fence.hosts.contains(node)) {
        table.error(
            &["hosts"],
            "hosts does not name this host: list all that may hold the lock, and the same on each of them",
        );
    }
    fence.hosts.sort();
    if let Some(name) = &fence.unfence {
        if units.iter().any(|unit| unit.get_ref() == name) {
            table.error(
                &["unfence"],
                format!("{name} is a unit of the service itself: unfence names what is started before it"),
            );
        } else if ["scope", "device", "slice"].contains(&name.kind()) {
            table.error(&["unfence"], format!("{name} cannot be started: name a .service"));
        }
    }
    fence
}

/// Sets the interval and the timeout, if they are not given, and checks them. A holder renews only while its last passed check is
/// younger than T (renewal, H1).
fn check_times(check: &mut Check, timings: Timings, table: &Table<'_>) {
    let lease = timings.lease();
    for (key, value) in [("interval", &mut check.interval), ("timeout", &mut check.timeout)] {
        if !table.has_taken(key) {
            *value = timings.renew_interval.min(lease / 3);
        } else if value.is_zero() {
            table.error(&[key], format!("{key} must be greater than zero"));
        } else if *value > lease {
            table.error(
                &[key],
                format!(
                    "{key} = {value:?} is longer than the lease T = renew-interval · failures = {lease:?}: a holder \
                     renews only while its last passed check is younger than T, so set at most {lease:?}"
                ),
            );
        }
    }
    let Check { interval, timeout, fall, .. } = *check;
    let oldest = interval.saturating_mul(fall).saturating_add(timeout);
    if oldest > lease && interval <= lease && timeout <= lease {
        table.warning(
            &["interval", "timeout"],
            format!(
                "{fall} failed checks in a row take up to interval · fall + timeout = {oldest:?}, but without a passed \
                 check the lease ends after T = {lease:?}: lower interval, timeout or fall"
            ),
        );
    }
}

fn count_problem(key: &str, number: u32) -> Option<String> {
    let is_good = (1..=MOST_CHECKS).contains(&number);
    (!is_good).then(|| format!("{key} = {number} is out of range: set 1 to {MOST_CHECKS}"))
}

fn command_problem(Command(argv): &Command) -> Option<String> {
    match argv.first() {
        None => Some("the command is empty: name a program by its full path".to_owned()),
        Some(program) if !program.starts_with('/') => {
            Some(format!("{program:?} is not a full path: write it from the root, such as \"/usr/bin/…\""))
        }
        Some(_) => {
            let has_zero = argv.iter().any(|word| word.contains('\0'));
            has_zero.then(|| "the command has a zero byte, which no program can be given".to_owned())
        }
    }
}

/// Warns of a program that is not there, or that its user may not run, and of a user who is not there. The program may be on a file
/// system that is mounted later.
fn warn_of_program(check: &Check, root: &Path, table: &Table<'_>) {
    let Some(program) = check.command.as_ref().and_then(|Command(argv)| argv.first()) else { return };
    if !root.join(program.trim_start_matches('/')).exists() {
        table.warning(&["command"],
            format!(
                "install {program}, which this host does not have: a check that cannot be run has failed, so that this host \
                 neither keeps the service nor takes it"
            ),
        );
    } else if check.user.is_none()
        && let Some(closed) = closed_to_others(root, program)
    {
        table.warning(&["command"],
            format!(
                "let every user read and execute {program} (chmod o+rx {closed}), or name another user, such as user = \"root\": the check \
                 runs as a user of its own, who may not"
            ),
        );
    }
    let Some(name) = check.user.as_ref().filter(|_| table.is_good("user")) else { return };
    // A host without this file has its users elsewhere.
    let users = fs::read_to_string(root.join("etc/passwd")).unwrap_or_default();
    let is_known = users.lines().any(|line| line.split(':').next() == Some(name));
    if !users.is_empty() && !is_known {
        table.warning(&["user"],
            format!(
                "make the user {name}, unless a directory service knows it: it is not in /etc/passwd, and the check is to run \
                 as it"
            ),
        );
    }
}

/// The part of a program's path that a user without special rights may not execute or pass through; `None` if there is
/// no such part, or it cannot be determined.
fn closed_to_others(root: &Path, program: &str) -> Option<String> {
    let ancestors = Path::new(program).ancestors().filter(|path| path.parent().is_some());
    let is_closed = |path: &&Path| {
        let place = root.join(path.strip_prefix("/").unwrap_or(path));
        // The program itself may be a script, which its interpreter has to read.
        let needed = if *path == Path::new(program) { 0o005 } else { 0o001 };
        place.metadata().is_ok_and(|metadata| metadata.permissions().mode() & needed != needed)
    };
    ancestors.filter(is_closed).last().map(|path| path.display().to_string())
}

fn user_problem(name: &str) -> Option<String> {
    let is_plain = |character: char| !character.is_control() && !character.is_whitespace() && !":/".contains(character);
    let is_odd = name.is_empty() || name.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    (is_odd || !name.chars().all(is_plain))
        .then(|| format!("{name:?} is not the name of a user: write it like \"postgres\" or \"root\""))
}

/// What is wrong with the name of a template unit whose instance putexd fills in.
fn template_problem(text: &str, instance: &str, example: &str) -> Option<String> {
    let stem = text.strip_suffix("@.service").filter(|stem| !stem.is_empty() && !stem.contains('@'));
    match stem.map(|stem| UnitName::new(&format!("{stem}@{instance}.service"))) {
        Some(found) => found.err().map(|error| error.to_string()),
        None => Some(format!("{text:?} is not a template of a service: write it like {example:?}")),
    }
}

fn http_problem(text: &str) -> Option<String> {
    let authority = text.strip_prefix("http://").map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
    let is_good = authority.is_some_and(|authority| is_host(authority) || is_host_and_port(authority))
        && text.chars().all(|character| character.is_ascii_graphic());
    (!is_good).then(|| {
        format!(
            "{text:?} is not an http URL: write it like \"http://127.0.0.1:8080/health\"; for anything else, https \
             too, use command"
        )
    })
}
