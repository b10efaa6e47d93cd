//! This host: the programs of putexd's package, as PID 1 has them, what putexd has not read, and the clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use super::NAMED;
use crate::{
    audit,
    config::{BrokenFiles, ServiceSettings, Settings},
    facts::ClusterState,
    systemd::{
        Systemd, UnitState,
        drop_ins::{self, KEPT_DIR},
    },
    types::{DAEMON_UNIT, NET_SOCKET, UnitName, first_named},
};

/// The units that have to run.
const PARTS: [&str; 4] = [DAEMON_UNIT, GUARD, "putex-guard-watch.service", NET_SOCKET];
const GUARD: &str = "putex-guard.service";

/// What the kernel adds to the path of a program whose file was replaced.
const REPLACED: &str = " (deleted)";

const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

pub async fn look(
    settings: &Settings,
    broken: &BrokenFiles,
    daemon: Option<&ClusterState>,
) -> Vec<String> {
    let mut wrong = match audit::connect().await {
        Err(reason) => vec![format!("run putexctl where systemd can be asked: {reason}")],
        Ok(systemd) => parts(&systemd).await,
    };
    wrong.extend(
        broken
            .values()
            .map(|why| format!("mend it and run \"systemctl reload putexd\": {why}")),
    );
    wrong.extend(daemon.and_then(|daemon| unread(&settings.services, broken, daemon)));
    let source = fs::read_to_string(CLOCK_SOURCE).unwrap_or_default();
    wrong.extend(clock(source.trim()));
    wrong
}

async fn parts(systemd: &Systemd) -> Vec<String> {
    let mut wrong = Vec::new();
    for name in PARTS {
        let found = async {
            let unit = UnitName::new(name)?;
            let boot = systemd.boot(&BTreeSet::new()).await?;
            let is_at_boot = !boot.pullers(&unit).await?.is_empty();
            let state = systemd.state(&unit).await?;
            let program = state
                .main_pid
                .and_then(|pid| fs::read_link(format!("/proc/{pid}/exe")).ok());
            Ok::<_, Box<dyn Error>>(of_part(name, &state, is_at_boot, program))
        };
        let missed = |error| vec![format!("run this again: {name} was not looked at: {error}")];
        wrong.extend(found.await.unwrap_or_else(missed));
    }
    wrong
}

/// What is wrong with one of the units. `at_boot`: whether it is started then. `program`: what its main process runs.
pub fn of_part(
    name: &str,
    state: &UnitState,
    at_boot: bool,
    program: Option<PathBuf>,
) -> Vec<String> {
    let (load, active) = (&state.load_state, &state.active_state);
    if load != "loaded" {
        return vec![format!(
            "install putexd's package, or unmask the unit: {name} is {load}"
        )];
    }
    let mut found = Vec::new();
    if !active.is_started() {
        found.push(format!("run \"systemctl start {name}\": it is {active}"));
    }
    if name == DAEMON_UNIT && !at_boot {
        found.push(format!(
            "run \"systemctl enable {name}\": it is not started at the next boot"
        ));
    }
    if program.is_some_and(|program| program.to_string_lossy().ends_with(REPLACED)) {
        let remedy = match name {
            GUARD => "\"putexctl drain\" and then \"putexctl undrain\"".to_owned(),
            _ => format!("\"systemctl restart {name}\""),
        };
        found.push(format!(
            "run {remedy}: the program of {name} was replaced after it was started"
        ));
    }
    found
}

/// Services whose files putexd has not read as they are: they came, went or were changed since. systemd binds and unbinds the units at
/// each of its own reloads, whether putexd has read the files or not.
pub fn unread(
    files: &[ServiceSettings],
    broken: &BrokenFiles,
    cluster: &ClusterState,
) -> Option<String> {
    let known = cluster.services.iter();
    let known = known.filter_map(|service| cluster.here(service));
    // What a service has of its file; one that is only observed has no settings. A file that is broken is told of by itself.
    let mut read: BTreeMap<&str, &str> = known
        .filter(|state| !state.is_broken())
        .map(|state| (&*state.service, &*state.settings))
        .collect();
    let mut unread = Vec::new();
    for name in broken.keys() {
        read.remove(name.as_str());
    }
    for file in files {
        let settings = read.remove(file.name.as_str());
        if !settings.is_some_and(|read| file.observes() || read == file.agreement()) {
            unread.push(file.name.to_string());
        }
    }
    unread.extend(read.keys().map(|&service| service.to_owned()));
    (!unread.is_empty()).then(|| {
        format!(
            "run \"systemctl reload putexd\": it has not taken up the files of {} as they are",
            first_named(&unread, NAMED)
        )
    })
}

/// Units that a putexd which does not run any more has left bound to a lease, although no service names them.
pub fn left_bound(settings: &Settings) -> Vec<String> {
    let directory = Path::new(KEPT_DIR);
    let services = settings.services.iter();
    let named: BTreeSet<&UnitName> = services
        .flat_map(|service| service.units().chain(&service.contains))
        .collect();
    let mut kept = drop_ins::kept_units(directory).unwrap_or_default();
    kept.retain(|unit| !named.contains(unit));
    let remedy = |unit: &UnitName| {
        format!(
            "start putexd once, or remove {} and run \"systemctl daemon-reload\": {unit} is bound to a lease, and no good file names it",
            drop_ins::kept_path(directory, unit).display()
        )
    };
    kept.iter().map(remedy).collect()
}

/// Judges the clock source. Without a hardware clock the kernel counts its own ticks, and loses those that a hypervisor or a long
/// interrupt takes.
pub fn clock(source: &str) -> Option<String> {
    matches!(source, "jiffies" | "refined-jiffies").then(|| {
        format!(
            "give this host a hardware clock, such as tsc, kvm-clock or hpet: {source} may be off by more than clock-error"
        )
    })
}
