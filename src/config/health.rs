//! `[health]` and `[fence]`.

use std::{ops::RangeInclusive, time::Duration};

use hyper::Uri;

use super::{
    settings::{FenceSettings, HealthSettings, Probe},
    timings::LONGEST_LIMIT,
};
use crate::{
    election::Timings,
    host::address::is_host_and_port,
    keys::{ConfigKey, ConfigValue, Read, Table, out_of_range},
    types::{NodeId, UnitName},
};

/// `rise` and `fall`. They count checks, and only few checks fit into a lease.
const CHECKS: RangeInclusive<u32> = 1..=1000;

/// A program with its arguments, as a list; a program alone may be a plain string.
#[derive(Debug)]
struct CommandLine(Vec<String>);

impl Read for CommandLine {
    fn read(value: &ConfigValue<'_>) -> Option<Self> {
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
pub struct Check {
    command: Option<CommandLine>,
    user: Option<String>,
    unit: Option<String>,
    tcp: Option<String>,
    http: Option<String>,
    /// All but the probe.
    settings: HealthSettings,
}

type Row = ConfigKey<Check>;
type FenceRow = ConfigKey<FenceSettings>;

pub const HEALTH: &[Row] = &[
    Row::new("command", |check| &mut check.command)
        .checked(|check| command_problem(check.command.as_ref()?)),
    Row::new("user", |check| &mut check.user),
    Row::new("unit", |check| &mut check.unit)
        .checked(|check| template_problem(check.unit.as_ref()?, "active", "check-db@.service")),
    Row::new("tcp", |check| &mut check.tcp).checked(|check| {
        let text = check.tcp.as_ref().filter(|text| !is_host_and_port(text))?;
        Some(format!(
            "{text:?} is not host:port: write it like \"127.0.0.1:5432\" or \"[::1]:5432\""
        ))
    }),
    Row::new("http", |check| &mut check.http).checked(|check| http_problem(check.http.as_ref()?)),
    Row::new("interval", |check| &mut check.settings.interval),
    Row::new("timeout", |check| &mut check.settings.timeout),
    Row::new("rise", |check| &mut check.settings.rise)
        .checked(|check| out_of_range("rise", &check.settings.rise, &CHECKS)),
    Row::new("fall", |check| &mut check.settings.fall)
        .checked(|check| out_of_range("fall", &check.settings.fall, &CHECKS)),
];

pub const FENCE: &[FenceRow] = &[
    FenceRow::new("others", |fence| &mut fence.others)
        .checked(|fence| template_problem(fence.others.as_ref()?, "h1", "fence@.service")),
    FenceRow::new("hosts", |fence| &mut fence.hosts),
    FenceRow::new("required", |fence| &mut fence.required),
    FenceRow::new("unfence", |fence| &mut fence.unfence).differs(),
    FenceRow::new("timeout", |fence| &mut fence.timeout).checked(|fence| {
        let range = Duration::from_millis(1)..=LONGEST_LIMIT;
        out_of_range("timeout", &fence.timeout, &range)
    }),
];

/// Validates `[health]`, whose times are bounded by the service's timings.
/// `None`: an error was reported, or the service's timings are unknown.
pub fn check_health(mut table: Table<'_>, timings: Option<Timings>) -> Option<HealthSettings> {
    let mut check = Check::default();
    table.read(HEALTH, &mut check);
    let given = ["command", "unit", "tcp", "http"]
        .into_iter()
        .filter(|key| table.has(key))
        .count();
    if given != 1 {
        let message =
            format!("[health] has {given} of command, unit, tcp and http: set one of them");
        table.error(&[], message);
    }
    table.needs("user", "command", "whose user it is: in a unit, set User=");
    check_times(&mut check.settings, timings?, &table);
    let user = check.user;
    let probe = check
        .command
        .map(|CommandLine(argv)| Probe::Command { argv, user })
        .or(check.unit.map(Probe::Unit))
        .or(check.tcp.map(Probe::Tcp))
        .or(check.http.map(Probe::Http))?;
    Some(HealthSettings {
        probe,
        ..check.settings
    })
}

/// Validates `[fence]` of a service with these units, on the host `node`. Errors are reported.
pub fn check_fence(
    mut table: Table<'_>,
    units: &[UnitName],
    node: Option<&NodeId>,
) -> FenceSettings {
    let mut fence = FenceSettings::default();
    table.read(FENCE, &mut fence);
    for key in ["hosts", "required"] {
        table.needs(key, "others", "such as others = \"fence@.service\"");
    }
    // A host that is missing in the list would not be fenced, and nobody would notice before that matters.
    if table.has_taken("hosts") && node.is_some_and(|node| !fence.hosts.contains(node)) {
        table.error(
            &["hosts"],
            "hosts does not name this host: list all hosts of the service",
        );
    }
    fence.hosts.sort();
    if let Some(name) = fence.unfence.as_ref().filter(|name| units.contains(name)) {
        let text = format!("{name} is a unit of the service itself: name another");
        table.error(&["unfence"], text);
    }
    fence
}

/// Sets the interval and the timeout, if they are not given, and checks them. A holder renews only while its last passed check is
/// younger than T (renewal, H1).
fn check_times(check: &mut HealthSettings, timings: Timings, table: &Table<'_>) {
    let lease = timings.lease();
    let mut is_good = true;
    for (key, value) in [
        ("interval", &mut check.interval),
        ("timeout", &mut check.timeout),
    ] {
        if !table.has_taken(key) {
            *value = timings.renew_interval.min(lease / 3);
        } else if value.is_zero() || *value > lease {
            is_good = false;
            table.error(
                &[key],
                format!(
                    "{key} = {value:?} is out of range: set more than 0s, and at most the lease T = renew-interval · failures = {lease:?}"
                ),
            );
        }
    }
    let (interval, timeout, fall) = (check.interval, check.timeout, check.fall);
    let oldest = interval.saturating_mul(fall).saturating_add(timeout);
    if oldest > lease && is_good {
        table.warning(
            &["interval", "timeout"],
            format!(
                "lower interval, timeout or fall: interval · fall + timeout = {oldest:?} is longer than the lease T = {lease:?}"
            ),
        );
    }
}

fn command_problem(CommandLine(argv): &CommandLine) -> Option<String> {
    let program = argv.first().map_or("", String::as_str);
    (!program.starts_with('/')).then(|| {
        format!("{program:?} is not a full path of a program: write it like \"/usr/bin/…\"")
    })
}

/// What is wrong with the name of a template unit whose instance putexd fills in.
fn template_problem(text: &str, instance: &str, example: &str) -> Option<String> {
    let is_good = text.ends_with("@.service") && UnitName::from_template(text, instance).is_ok();
    (!is_good)
        .then(|| format!("{text:?} is not a template of a service: write it like {example:?}"))
}

fn http_problem(text: &str) -> Option<String> {
    let url = text.parse::<Uri>().ok().filter(|url| {
        url.scheme_str() == Some("http")
            && url.host().is_some_and(|host| !host.is_empty())
            && !text.contains('@')
    });
    url.is_none().then(|| {
        format!(
            "{text:?} is not an http URL: write it like \"http://127.0.0.1:8080/health\"; for https too, use command"
        )
    })
}
