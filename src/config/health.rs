//! `[health]` and `[fence]`.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use toml::Spanned;

use super::address::{is_host, is_host_and_port};
use super::diagnostic::Report;
use super::fragment::{Command, Count, FenceFragment, HealthFragment, LONGEST_LIMIT, Length, take};
use super::settings::{FenceSettings, HealthSettings, Probe};
use crate::election::Timings;
use crate::types::{NodeId, UnitName};

/// The largest `rise` and `fall`. They count checks, and only few checks fit into a lease.
const MOST_CHECKS: u32 = 1000;

/// Validates `[health]`, whose times are bounded by the service's timings. Its program is searched for below `root`.
/// `None`: an error was reported, or the service's timings are unknown.
pub(super) fn check_health(
    span: Range<usize>,
    fragment: HealthFragment,
    timings: Option<Timings>,
    root: &Path,
    report: &mut Report,
) -> Option<HealthSettings> {
    let given = [
        ("command", fragment.command.is_some()),
        ("unit", fragment.unit.is_some()),
        ("tcp", fragment.tcp.is_some()),
        ("http", fragment.http.is_some()),
    ];
    let given: Vec<&str> = given.iter().filter(|(_, given)| *given).map(|(key, _)| *key).collect();
    match given.len() {
        1 => {}
        0 => report.error(&span, "[health] asks nothing: set one of command, unit, tcp and http"),
        _ => report.error(&span, format!("[health] has {}: keep one of them", given.join(" and "))),
    }
    let user = take(fragment.user, report);
    if let Some(user) = &user
        && fragment.command.is_none()
    {
        report.error(
            &user.span(),
            "user is about command, which is missing: set User= in the unit that is the check, or remove user",
        );
    }
    let command = take(fragment.command, report).and_then(|command| check_command(command, user, root, report));
    let unit = take(fragment.unit, report)
        .and_then(|unit| check_template(unit, "active", "check-db@.service", report))
        .map(Probe::Unit);
    let tcp = take(fragment.tcp, report).and_then(|address| check_address(address, report));
    let http = take(fragment.http, report).and_then(|url| check_http(url, report));
    let interval = take(fragment.interval, report);
    let timeout = take(fragment.timeout, report);
    let rise = checks("rise", take(fragment.rise, report), 1, report);
    let fall = checks("fall", take(fragment.fall, report), 2, report);
    let timings = timings?;
    let (interval, timeout) = check_health_times(interval, timeout, fall, timings, &span, report);
    let probe = command.or(unit).or(tcp).or(http)?;
    Some(HealthSettings { probe, interval, timeout, rise, fall })
}

/// Validates `[fence]` of a service with these units, on the host `node`. Errors are reported.
pub(super) fn check_fence(
    fragment: FenceFragment,
    units: &[Spanned<UnitName>],
    node: Option<&NodeId>,
    report: &mut Report,
) -> FenceSettings {
    let mut fence = FenceSettings::default();
    let given_others = fragment.others.is_some();
    fence.others =
        take(fragment.others, report).and_then(|others| check_template(others, "h1", "fence@.service", report));
    if let Some(hosts) = take(fragment.hosts, report) {
        let span = hosts.span();
        if !given_others {
            let text = "hosts is about others, which is missing: set it, such as others = \"fence@.service\"";
            report.error(&span, text);
        }
        fence.hosts = hosts
            .into_inner()
            .0
            .into_iter()
            .filter_map(|host| take(Some(host), report))
            .map(Spanned::into_inner)
            .collect();
        // A host that is missing in the list would not be fenced, and nobody would notice before that matters.
        if node.is_some_and(|node| !fence.hosts.contains(node)) {
            report.error(
                &span,
                "hosts does not name this host: list all that may hold the lock, and the same on each of them",
            );
        }
    }
    if let Some(required) = take(fragment.required, report) {
        if !given_others {
            report.error(
                &required.span(),
                "required is about others, which is missing: set it, such as others = \"fence@.service\"",
            );
        }
        fence.required = required.into_inner();
    }
    if let Some(unfence) = take(fragment.unfence, report) {
        let name = unfence.get_ref();
        if units.iter().any(|unit| unit.get_ref() == name) {
            report.error(
                &unfence.span(),
                format!("{name} is a unit of the service itself: unfence names what is started before it"),
            );
        } else if ["scope", "device", "slice"].contains(&name.kind()) {
            report.error(&unfence.span(), format!("{name} cannot be started: name a .service"));
        }
        fence.unfence = Some(unfence.into_inner());
    }
    if let Some(timeout) = take(fragment.timeout, report) {
        let value = timeout.get_ref().0;
        if value.is_zero() || value > LONGEST_LIMIT {
            report.error(
                &timeout.span(),
                format!("timeout = {value:?} is out of range: set more than 0s, at most {LONGEST_LIMIT:?}"),
            );
        }
        fence.timeout = value;
    }
    fence
}

/// Checks the interval and the timeout. A holder renews only while its last passed check is younger than T (renewal,
/// H1).
fn check_health_times(
    interval: Option<Spanned<Length>>,
    timeout: Option<Spanned<Length>>,
    fall: u32,
    timings: Timings,
    table: &Range<usize>,
    report: &mut Report,
) -> (Duration, Duration) {
    let lease = timings.lease();
    let usual = timings.renew_interval.min(lease / 3);
    for (key, field) in [("interval", &interval), ("timeout", &timeout)] {
        let Some(field) = field else { continue };
        let value = field.get_ref().0;
        if value.is_zero() {
            report.error(&field.span(), format!("{key} must be greater than zero"));
        } else if value > lease {
            report.error(
                &field.span(),
                format!(
                    "{key} = {value:?} is longer than the lease T = renew-interval · failures = {lease:?}: a holder \
                     renews only while its last passed check is younger than T, so set at most {lease:?}"
                ),
            );
        }
    }
    let span = interval.as_ref().or(timeout.as_ref()).map_or_else(|| table.clone(), Spanned::span);
    let interval = interval.map_or(usual, |interval| interval.into_inner().0);
    let timeout = timeout.map_or(usual, |timeout| timeout.into_inner().0);
    let oldest = interval.saturating_mul(fall).saturating_add(timeout);
    if oldest > lease && interval <= lease && timeout <= lease {
        report.warning(
            &span,
            format!(
                "{fall} failed checks in a row take up to interval · fall + timeout = {oldest:?}, but without a passed \
                 check the lease ends after T = {lease:?}: lower interval, timeout or fall"
            ),
        );
    }
    (interval, timeout)
}

fn checks(key: &str, field: Option<Spanned<Count>>, default: u32, report: &mut Report) -> u32 {
    let Some(field) = field else { return default };
    let number = field.get_ref().0;
    if number == 0 || number > MOST_CHECKS {
        report.error(&field.span(), format!("{key} = {number} is out of range: set 1 to {MOST_CHECKS}"));
    }
    number
}

fn check_command(
    command: Spanned<Command>,
    user: Option<Spanned<String>>,
    root: &Path,
    report: &mut Report,
) -> Option<Probe> {
    let span = command.span();
    let argv = command.into_inner().0;
    let Some(program) = argv.first() else {
        report.error(&span, "the command is empty: name a program by its full path");
        return None;
    };
    if !program.starts_with('/') {
        report.error(&span, format!("{program:?} is not a full path: write it from the root, such as \"/usr/bin/…\""));
        return None;
    }
    if argv.iter().any(|word| word.contains('\0')) {
        report.error(&span, "the command has a zero byte, which no program can be given");
        return None;
    }
    // This is only a warning, because the program may be on a file system that is mounted later.
    if !root.join(program.trim_start_matches('/')).exists() {
        report.warning(
            &span,
            format!(
                "install {program}, which this host does not have: a check that cannot be run has failed, so that this host \
                 neither keeps the service nor takes it"
            ),
        );
    } else if user.is_none()
        && let Some(closed) = closed_to_others(root, program)
    {
        report.warning(
            &span,
            format!(
                "let every user read and execute {program} (chmod o+rx {closed}), or name another user, such as user = \"root\": the check \
                 runs as a user of its own, who may not"
            ),
        );
    }
    if let Some(user) = &user {
        check_user(user, root, report)?;
    }
    Some(Probe::Command { argv, user: user.map(Spanned::into_inner) })
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

/// Checks the name of the user, and warns if there is no such user. `None`: an error was reported.
fn check_user(user: &Spanned<String>, root: &Path, report: &mut Report) -> Option<()> {
    let name = user.get_ref();
    let is_plain = |character: char| !character.is_control() && !character.is_whitespace() && !":/".contains(character);
    let is_number = name.starts_with(|first: char| first.is_ascii_digit());
    if name.is_empty() || name.starts_with('-') || is_number || !name.chars().all(is_plain) {
        report
            .error(&user.span(), format!("{name:?} is not the name of a user: write it like \"postgres\" or \"root\""));
        return None;
    }
    // A host without this file has its users elsewhere.
    let users = fs::read_to_string(root.join("etc/passwd")).unwrap_or_default();
    let is_known = users.lines().any(|line| line.split(':').next() == Some(name));
    if !users.is_empty() && !is_known {
        report.warning(
            &user.span(),
            format!(
                "make the user {name}, unless a directory service knows it: it is not in /etc/passwd, and the check is to run \
                 as it"
            ),
        );
    }
    Some(())
}

/// Checks the name of a template unit whose instance putexd fills in. `None`: an error was reported.
fn check_template(template: Spanned<String>, instance: &str, example: &str, report: &mut Report) -> Option<String> {
    let span = template.span();
    let text = template.into_inner();
    let stem = text.strip_suffix("@.service").filter(|stem| !stem.is_empty() && !stem.contains('@'));
    match stem.map(|stem| UnitName::new(&format!("{stem}@{instance}.service"))) {
        Some(Ok(_)) => Some(text),
        Some(Err(error)) => {
            report.error(&span, error.to_string());
            None
        }
        None => {
            report.error(&span, format!("{text:?} is not a template of a service: write it like {example:?}"));
            None
        }
    }
}

fn check_address(address: Spanned<String>, report: &mut Report) -> Option<Probe> {
    let span = address.span();
    let text = address.into_inner();
    if is_host_and_port(&text) {
        return Some(Probe::Tcp(text));
    }
    report.error(&span, format!("{text:?} is not host:port: write it like \"127.0.0.1:5432\" or \"[::1]:5432\""));
    None
}

fn check_http(url: Spanned<String>, report: &mut Report) -> Option<Probe> {
    let span = url.span();
    let text = url.into_inner();
    let authority = text.strip_prefix("http://").map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
    let good = authority.is_some_and(|authority| is_host(authority) || is_host_and_port(authority))
        && text.chars().all(|character| character.is_ascii_graphic());
    if good {
        return Some(Probe::Http(text));
    }
    report.error(
        &span,
        format!(
            "{text:?} is not an http URL: write it like \"http://127.0.0.1:8080/health\"; for anything else, https \
             too, use command"
        ),
    );
    None
}
