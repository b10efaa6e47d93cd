//! What PID 1 says of the units of this host's services, for `putexd --check` and `putexctl doctor`. Nothing is changed.
//!
//! The daemon asks the same before it takes a unit under supervision, so a unit that is refused here is refused there.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::config::{Probe, ServiceSettings, Settings, StopProof};
use crate::election::Timings;
use crate::systemd::remedy::drop_in;
use crate::systemd::{Boot, BusError, MemoryUse, Puller, Surroundings, Systemd, Unsupervisable};
use crate::types::span::rounded;
use crate::types::{ServiceName, UnitName};

/// Longest time of one call.
const CALL_LIMIT: Duration = Duration::from_secs(2);
/// Longest time for the units of all services.
const LIMIT: Duration = Duration::from_secs(30);

/// What was found, as a sentence without a full stop that has the remedy in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The service.
    pub service: ServiceName,
    /// The file that defines the service.
    pub file: PathBuf,
    /// Whether putexd does not run the service because of it.
    pub is_error: bool,
    /// The sentence.
    pub text: String,
}

impl Finding {
    fn of(service: &ServiceSettings, is_error: bool, text: String) -> Self {
        Self { service: service.name.clone(), file: service.source.0.clone(), is_error, text }
    }
}

/// Connects to PID 1. The error says why that cannot be, as a reason that fits behind a colon. It has to be called inside of a
/// tokio runtime.
pub async fn connect() -> Result<Systemd, String> {
    match timeout(CALL_LIMIT, Systemd::can_be_asked()).await {
        Ok(Ok(())) => Ok(Systemd::private(CALL_LIMIT)),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err("only root may ask systemd for that".to_owned())
        }
        Ok(Err(error)) => Err(format!("systemd is not reachable: {error}")),
        Err(_) => Err(format!("systemd did not answer within {}", rounded(CALL_LIMIT))),
    }
}

/// What speaks against the units of all services. `with_gate`: also whether PID 1 has the drop-ins that bind them to their leases,
/// which it gets from the generator at a daemon-reload, or from putexd. `Err`: PID 1 stopped answering.
pub async fn units(systemd: &Systemd, settings: &Settings, with_gate: bool) -> Result<Vec<Finding>, String> {
    let until = Instant::now() + LIMIT;
    let mut found = Vec::new();
    let boot = systemd.boot().await.map_err(|error| error.to_string())?;
    let judged = settings.services.iter().filter(|service| !service.observes()).flat_map(ServiceSettings::units);
    let judged: BTreeSet<UnitName> = judged.cloned().collect();
    for service in &settings.services {
        let of_service = async {
            let mut found = units_of(systemd, service, settings, with_gate).await?;
            found.extend(at_boot(&boot, service, &judged).await?);
            found.extend(others_of(systemd, service, settings.node.as_str()).await?);
            Ok::<_, String>(found)
        };
        match tokio::time::timeout_at(until, of_service).await {
            Ok(more) => found.extend(more?),
            Err(_) => return Err(format!("systemd did not answer for all units within {}", rounded(LIMIT))),
        }
    }
    Ok(found)
}

async fn units_of(
    systemd: &Systemd,
    service: &ServiceSettings,
    settings: &Settings,
    with_gate: bool,
) -> Result<Vec<Finding>, String> {
    let finding = |is_error, text| Finding::of(service, is_error, text);
    let all: Vec<UnitName> = service.units().cloned().collect();
    let mut found = Vec::new();
    for unit in &all {
        let around = Surroundings {
            // What is only observed is not bound to a lease, and systemd may start it.
            service: (with_gate && !service.observes()).then_some(&service.name),
            named_in: Some(&service.name),
            self_fence: service.on_stop_failure.is_self_fence(),
            bound: &all,
            beside: &service.beside,
            contains: &service.contains,
            unit_only: service.stop_proof == StopProof::UnitOnly,
            may_end: *unit != service.unit,
        };
        let (is_error, texts) = match systemd.supervisable(unit, around).await {
            Ok(remarks) => (false, remarks),
            Err(Unsupervisable::Bus(error)) => return Err(error.to_string()),
            Err(error) => (true, vec![error.to_string()]),
        };
        let is_loaded = !is_error;
        found.extend(texts.into_iter().map(|text| finding(is_error, text)));
        if !service.observes() && runs_unbound(systemd, unit).await.map_err(|error| error.to_string())? {
            found.push(finding(
                false,
                format!(
                    "expect {unit} to be stopped here by the next \"systemctl daemon-reload\", which \"systemctl enable\", \"systemctl \
                     disable\" and packages do as well: it runs, and no lease binds it yet; start or reload putexd first, after what \
                     is wrong in this file is mended (\"systemctl start putexd\", \"systemctl reload putexd\"), and one host starts it"
                ),
            ));
        }
        if is_loaded {
            let facts = systemd.facts(unit).await.map_err(|error| error.to_string())?;
            found.extend(of_time(unit, facts.stop_time, service).map(|text| finding(false, text)));
            found.extend(of_memory(unit, facts.memory, service).map(|text| finding(false, text)));
        }
        if is_loaded && !service.observes() {
            let turned_off = systemd.turned_off(unit).await.map_err(|error| error.to_string())?;
            let conflicts = systemd.conflicts(unit).await.map_err(|error| error.to_string())?;
            let rivals = of_rivals(unit, &conflicts, service, &settings.services);
            found.extend(turned_off.into_iter().chain(rivals).map(|text| finding(false, text)));
        }
    }
    Ok(found)
}

/// Whether a unit runs that PID 1 has not bound to its lease yet. The generator binds it at the next daemon-reload.
async fn runs_unbound(systemd: &Systemd, unit: &UnitName) -> Result<bool, BusError> {
    let bonds = systemd.loaded_bonds(unit).await?;
    Ok(!bonds.kept && !bonds.generated && systemd.state(unit).await?.active_state.is_started())
}

/// What starts the units of a service at a boot. What is only observed may be started.
async fn at_boot(boot: &Boot, service: &ServiceSettings, judged: &BTreeSet<UnitName>) -> Result<Vec<Finding>, String> {
    let mut found = Vec::new();
    for unit in service.units().filter(|_| !service.observes()) {
        let pullers = boot.pullers(unit, judged).await.map_err(|error| error.to_string())?;
        found.extend(pullers.iter().map(|puller| Finding::of(service, false, of_boot(puller))));
    }
    Ok(found)
}

fn of_boot(puller: &Puller) -> String {
    format!(
        "run \"{}\"{}: {puller}, where it fails for want of the lease, and the package is not removed before, because it would start \
         beside the copy of another host then; putexd starts it",
        puller.command(),
        puller.then()
    )
}

/// What starts `units` at a boot, whatever they are. Where PID 1 cannot be asked, as in the root of a host that does not run, the
/// links on the disk alone tell.
pub async fn pullers(units: &BTreeSet<UnitName>) -> Vec<Puller> {
    let asked = async {
        let systemd = connect().await.ok()?;
        let boot = systemd.boot().await.ok()?;
        pullers_by(&boot, units).await.ok()
    };
    match timeout(LIMIT, asked).await {
        Ok(Some(found)) => found,
        Ok(None) | Err(_) => pullers_by(&Boot::by_files(), units).await.unwrap_or_default(),
    }
}

async fn pullers_by(boot: &Boot, units: &BTreeSet<UnitName>) -> Result<Vec<Puller>, BusError> {
    let mut found = Vec::new();
    for unit in units {
        found.extend(boot.pullers(unit, units).await?);
    }
    Ok(found)
}

/// What is to be known of units of other services that end `unit` by their start.
fn of_rivals(
    unit: &UnitName,
    conflicts: &BTreeSet<String>,
    service: &ServiceSettings,
    all: &[ServiceSettings],
) -> Vec<String> {
    let others = all.iter().filter(|other| other.name != service.name && !other.observes());
    let rivals = others.flat_map(|other| other.units().map(move |rival| (&other.name, rival)));
    let tell = |(other, rival): (&ServiceName, &UnitName)| {
        format!(
            "remove Conflicts= between {unit} and {rival} of the service {other}, if one host is to run both: they end each other, so \
             a host that runs one of them does not take the other"
        )
    };
    rivals.filter(|(_, rival)| conflicts.contains(rival.as_str())).map(tell).collect()
}

/// What is wrong with the time that systemd gives the unit for its stop.
fn of_time(unit: &UnitName, stop_time: Option<Duration>, service: &ServiceSettings) -> Option<String> {
    let (stop_time, limit) = (stop_time?, service.stop_limit);
    let then = service.on_stop_failure.consequence();
    if stop_time == Duration::MAX {
        let (section, name) = match unit.kind() {
            "service" => ("Service", "TimeoutStopSec"),
            "mount" => ("Mount", "TimeoutSec"),
            "swap" => ("Swap", "TimeoutSec"),
            _ => ("Socket", "TimeoutSec"),
        };
        return Some(format!(
            "{}: systemd waits for the stop of {unit} for ever, and when stop-limit = {} is over {then}",
            drop_in(unit.as_str(), section, &format!("{name}={}", limit.as_secs())),
            rounded(limit)
        ));
    }
    (stop_time > limit).then(|| {
        format!(
            "set stop-limit = \"{}s\", or a shorter TimeoutStopSec= of {unit}: systemd gives its stop {time}, and when \
             stop-limit = {} is over {then}",
            stop_time.as_secs() + u64::from(stop_time.subsec_nanos() > 0),
            rounded(limit),
            time = rounded(stop_time)
        )
    })
}

/// What is wrong with the time that SIGKILL has for the unit's memory, which the kernel frees before the last process is gone.
fn of_memory(unit: &UnitName, memory: Option<MemoryUse>, service: &ServiceSettings) -> Option<String> {
    let (bytes, whose) = match memory? {
        MemoryUse::AllOfHost(bytes) => (bytes, "may have all that this host has, by MemoryMax="),
        MemoryUse::Limit(bytes) => (bytes, "may have, by MemoryMax="),
        MemoryUse::Present(bytes) => (bytes, "has at present"),
    };
    let (reserve, budget) = (service.timings.kill_reserve, service.timings.stop_budget);
    let needed = Timings::kill_reserve_for(bytes);
    let gib = Duration::from_nanos(bytes).as_secs_f64() * 1e9 / f64::from(1 << 30);
    (needed > reserve).then(|| {
        let milliseconds = |span: Duration| span.as_millis();
        let longer = needed * 5 / 4;
        let is_safe = |stop_budget| Timings { kill_reserve: needed, stop_budget, ..service.timings }.validate().is_ok();
        let room = if is_safe(budget) {
            String::new()
        } else if is_safe(longer) {
            format!(" and stop-budget = \"{}ms\" on all hosts", milliseconds(longer))
        } else {
            format!(
                ", stop-budget = \"{}ms\", and a renew-interval or confirmations that permit this, on all hosts",
                milliseconds(longer)
            )
        };
        format!(
            "set kill-reserve = \"{}ms\"{room}: {unit} {whose}, {gib:.1} GiB, which the kernel frees within that time after SIGKILL, and \
             kill-reserve = {reserve:?} is less: its files and locks may still be held when another host starts it",
            milliseconds(needed)
        )
    })
}

/// What is wrong with the units that the service has started for it: for its health check and for fencing.
async fn others_of(systemd: &Systemd, service: &ServiceSettings, node: &str) -> Result<Vec<Finding>, String> {
    let instance =
        |template: &String, instance: &str| UnitName::new(&template.replacen("@.", &format!("@{instance}."), 1)).ok();
    let fence =
        service.fence.others.iter().filter_map(|unit| instance(unit, node)).map(|unit| ("[fence] others", unit));
    let unfence = service.fence.unfence.iter().cloned().map(|unit| ("[fence] unfence", unit));
    let health = service.health.iter().filter_map(|health| match &health.probe {
        Probe::Unit(unit) => instance(unit, "active").map(|unit| ("[health] unit", unit)),
        Probe::Command { .. } | Probe::Tcp(_) | Probe::Http(_) => None,
    });
    let mut found = Vec::new();
    for (key, unit) in fence.chain(unfence).chain(health) {
        let facts = systemd.facts(&unit).await.map_err(|error| error.to_string())?;
        if facts.load_state != "loaded" {
            let text = format!(
                "install the unit of {key}, or correct its name: {unit} is {}, and what it is for will fail",
                facts.load_state
            );
            found.push(Finding::of(service, false, text));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systemd::Origin;
    use crate::types::{Key, OnStopFailure, ServiceName};

    #[test]
    fn what_is_found_begins_with_its_remedy() {
        let unit = UnitName::new("database.service").expect("a unit");
        let link = "/etc/systemd/system/multi-user.target.wants/database.service";
        let origin = Origin::Enabled(link.into());
        let puller = Puller { unit: unit.to_string(), by: "multi-user.target".to_owned(), origin };
        let text = of_boot(&puller);
        assert!(text.starts_with("run \"systemctl disable database.service\": ") && text.contains(link), "{text}");
        let (name, key) = (ServiceName::new("db").expect("a name"), Key::new("db").expect("a key"));
        let timings = Timings::new(Duration::from_secs(3), 3, 2);
        let service =
            ServiceSettings::without_file(name, (unit.clone(), Vec::new()), key, Some(timings), OnStopFailure::Alert);
        let limit = service.stop_limit;
        let told = |time| of_time(&unit, time, &service);
        assert_eq!((told(None), told(Some(limit))), (None, None));
        let longer = told(Some(limit + Duration::from_secs(1))).expect("it is longer");
        assert!(longer.starts_with("set stop-limit = \"") && longer.contains("an alarm is raised"), "{longer}");
        let never = told(Some(Duration::MAX)).expect("it never ends");
        assert!(never.contains("TimeoutStopSec=") && never.contains("for ever"), "{never}");

        // R = 3 s and C = 2: S = 6 s, and a quarter of it is for SIGKILL.
        let told = |memory| of_memory(&unit, memory, &service);
        let gib = |gib: u64| gib << 30;
        assert_eq!((told(None), told(Some(MemoryUse::Limit(gib(23))))), (None, None));
        let large = told(Some(MemoryUse::Limit(gib(32)))).expect("it takes longer");
        assert!(
            large.starts_with("set kill-reserve = \"2020ms\": database.service may have, by MemoryMax=, 32.0 GiB"),
            "{large}"
        );
        let larger = told(Some(MemoryUse::Present(gib(64)))).expect("it takes longer");
        assert!(larger.starts_with("set kill-reserve = \"3940ms\": database.service has at present, 64.0"), "{larger}");
        let all = told(Some(MemoryUse::AllOfHost(gib(32)))).expect("it takes longer");
        assert!(
            all.starts_with("set kill-reserve = \"2020ms\": database.service may have all that this host has"),
            "{all}"
        );
        // What is proposed is accepted.
        let longer = told(Some(MemoryUse::Limit(gib(100)))).expect("it takes longer");
        assert!(
            longer.starts_with("set kill-reserve = \"6100ms\", stop-budget = \"7625ms\", and a renew-interval"),
            "{longer}"
        );
    }
}
