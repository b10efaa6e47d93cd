//! What PID 1 says of the units of this host's services, for `putexd --check`. Nothing is changed.
//!
//! The daemon asks the same before it takes a unit under supervision, so a unit that is refused here is refused there.

use std::{collections::BTreeSet, path::Path, time::Duration};

use crate::{
    config::{Diagnostic, Probe, ServiceSettings, Settings, Severity, StopProof},
    systemd::{
        BusError, Puller, Refusal, Surroundings, Systemd, bounded,
        private::{PATH, PrivateSocket},
        remedy::drop_in,
        type_name,
    },
    types::{UnitName, span::rounded},
};

/// Longest time of one call: nothing depends on the answer but the person who waits for it.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// Connects to PID 1. The error says why that cannot be, as a reason that fits behind a colon. It has to be called inside of a
/// tokio runtime.
pub async fn connect() -> Result<Systemd, String> {
    let connected = bounded(CALL_LIMIT, async { Ok(PrivateSocket::at(PATH).await?) }).await;
    connected.map_err(|error| format!("{error}; only root is answered"))?;
    Ok(Systemd::connect(CALL_LIMIT))
}

/// What speaks against the units of all services; each text has the remedy in it. An error keeps putexd from running the service.
/// `Err`: PID 1 stopped answering.
pub async fn units(systemd: &Systemd, settings: &Settings) -> Result<Vec<Diagnostic>, BusError> {
    let run = settings
        .services
        .iter()
        .filter(|service| !service.observes());
    let judged = run.flat_map(ServiceSettings::units).cloned().collect();
    let boot = systemd.boot(&judged).await?;
    let mut found = Vec::new();
    for service in &settings.services {
        let mut add = |severity, text| {
            let source = service.source.0.clone();
            found.push(Diagnostic::of_file(severity, source, text));
        };
        let all: Vec<UnitName> = service.units().cloned().collect();
        for unit in &all {
            let around = Surroundings {
                // The drop-ins that bind it to a lease come with a daemon-reload, or from putexd.
                service: None,
                named_in: Some(&service.name),
                ..surroundings(service, unit, &all)
            };
            let state = systemd.state(unit).await?;
            match systemd.supervisable(unit, around).await {
                Ok(()) => {
                    if let Some(text) = of_time(unit, state.stop_time, service) {
                        add(Severity::Warning, text);
                    }
                }
                Err(Refusal::Bus(error)) => return Err(error),
                Err(error) => add(Severity::Error, error.to_string()),
            }
            // What is only observed may be started at a boot, and runs without a lease.
            if service.observes() {
                continue;
            }
            let bound = systemd.loaded_drop_ins(unit).await?;
            if state.active_state.is_started() && !bound.kept && !bound.generated {
                add(Severity::Warning, of_running(unit, service));
            }
            for puller in boot.pullers(unit).await? {
                add(Severity::Warning, of_boot(&puller));
            }
        }
        if let Some(text) = of_health(service) {
            add(Severity::Warning, text);
        }
        for (key, unit) in others_of(service, settings.node.as_str()) {
            let state = systemd.state(&unit).await?.load_state;
            if state != "loaded" {
                let text =
                    format!("install the unit of {key}, or correct its name: {unit} is {state}");
                add(Severity::Warning, text);
            }
        }
    }
    Ok(found)
}

/// What the admission of `unit` depends on, which is one of all units of the service.
pub fn surroundings<'a>(
    service: &'a ServiceSettings,
    unit: &UnitName,
    all: &'a [UnitName],
) -> Surroundings<'a> {
    Surroundings {
        service: Some(&service.name),
        named_in: None,
        self_fence: service.on_stop_failure.is_self_fence(),
        bound: all,
        beside: &service.beside,
        contains: &service.contains,
        unit_only: service.stop_proof == StopProof::UnitOnly,
        may_end: *unit != service.unit,
    }
}

fn of_boot(Puller { command, cause }: &Puller) -> String {
    format!(
        "run \"{command}\": {cause}, where it fails for want of the lease, and the package putexd cannot be removed"
    )
}

/// What starts `units` at a boot, whatever they are. `Err`: PID 1 does not say so.
pub async fn pullers(units: &BTreeSet<UnitName>) -> Result<Vec<Puller>, String> {
    let mut found = Vec::new();
    if units.is_empty() {
        return Ok(found);
    }
    let systemd = connect().await?;
    let said = |error: BusError| error.to_string();
    let boot = systemd.boot(units).await.map_err(said)?;
    for unit in units {
        found.extend(boot.pullers(unit).await.map_err(said)?);
    }
    Ok(found)
}

/// What becomes of a unit that runs without a lease.
fn of_running(unit: &UnitName, service: &ServiceSettings) -> String {
    let wait = rounded(service.timings.wait(service.timings.usual_hold()));
    format!(
        "choose when {unit} may be down: it runs without a lease, so that putexd stops it when it is started or reloaded, and one host starts it again after {wait}"
    )
}

/// Whether a health command can be run on this host at all.
fn of_health(service: &ServiceSettings) -> Option<String> {
    let Probe::Command { argv, .. } = &service.health.as_ref()?.probe else {
        return None;
    };
    let program = argv
        .first()
        .filter(|program| !Path::new(program).is_file())?;
    Some(format!(
        "install {program}, or correct command of [health]: without it this host fails each check, and does not keep the service"
    ))
}

/// What is wrong with the time that systemd gives the unit for its stop.
fn of_time(
    unit: &UnitName,
    stop_time: Option<Duration>,
    service: &ServiceSettings,
) -> Option<String> {
    let stop_time = stop_time.filter(|time| *time > service.stop_limit)?;
    let (remedy, time) = if stop_time == Duration::MAX {
        let name = match unit.kind() {
            "service" => "TimeoutStopSec",
            _ => "TimeoutSec",
        };
        let setting = format!("{name}={}", service.stop_limit.as_secs());
        let remedy = drop_in(unit.as_str(), &type_name(unit.as_str()), &setting);
        (remedy, "for ever".to_owned())
    } else {
        let seconds = stop_time.as_secs() + u64::from(stop_time.subsec_nanos() > 0);
        let remedy = format!("set stop-limit = \"{seconds}s\", or a shorter stop time of {unit}");
        (remedy, rounded(stop_time))
    };
    Some(format!(
        "{remedy}: systemd waits for the stop of {unit} {time}, and after stop-limit = {} {}",
        rounded(service.stop_limit),
        service.on_stop_failure.consequence()
    ))
}

/// The units that the service has started for it, for its health check and for fencing, each with the key that names it.
fn others_of(
    service: &ServiceSettings,
    node: &str,
) -> impl Iterator<Item = (&'static str, UnitName)> {
    let fence = &service.fence;
    let others = fence.others.as_ref();
    let others = others.and_then(|unit| UnitName::from_template(unit, node).ok());
    let probe = service.health.as_ref().map(|health| &health.probe);
    // The unit of a command is made for it.
    let probe = probe.filter(|probe| matches!(probe, Probe::Unit(_)));
    let probe = probe.and_then(|probe| probe.unit(&service.name, "active"));
    let units = [
        ("[fence] others", others),
        ("[fence] unfence", fence.unfence.clone()),
        ("[health] unit", probe),
    ];
    units
        .into_iter()
        .filter_map(|(key, unit)| Some((key, unit?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HealthSettings;
    use crate::election::Timings;
    use crate::types::{Key, OnStopFailure, ServiceName};

    #[test]
    fn what_is_found_begins_with_its_remedy() {
        let unit = UnitName::new("database.service").expect("a unit");
        let puller = Puller {
            command: format!("systemctl disable {unit}"),
            cause: format!("multi-user.target starts {unit} at each boot"),
        };
        let text = of_boot(&puller);
        assert!(
            text.starts_with(
                "run \"systemctl disable database.service\": multi-user.target starts"
            ),
            "{text}"
        );
        let (name, key) = (
            ServiceName::new("db").expect("a name"),
            Key::new("db").expect("a key"),
        );
        let timings = Timings::new(Duration::from_secs(3), 3, 2);
        let service = ServiceSettings::without_file(
            name,
            (unit.clone(), Vec::new()),
            key,
            Some(timings),
            OnStopFailure::Alert,
        );
        let text = of_running(&unit, &service);
        assert!(
            text.contains("is started or reloaded, and one host starts it again after 15."),
            "{text}"
        );
        let limit = service.stop_limit;
        let found = |time| of_time(&unit, time, &service);
        assert_eq!((found(None), found(Some(limit))), (None, None));
        let longer = found(Some(limit + Duration::from_secs(1))).expect("it is longer");
        assert!(
            longer.starts_with("set stop-limit = \"") && longer.contains("an alarm is raised"),
            "{longer}"
        );
        let never = found(Some(Duration::MAX)).expect("it never ends");
        assert!(
            never.contains("TimeoutStopSec=") && never.contains("for ever"),
            "{never}"
        );
        let mut service = service;
        let mut of_program = |program: &str| {
            let argv = vec![program.to_owned()];
            let probe = Probe::Command { argv, user: None };
            let settings = HealthSettings::default();
            service.health = Some(HealthSettings { probe, ..settings });
            of_health(&service)
        };
        assert_eq!(of_program("/bin/sh"), None);
        let missing = of_program("/nowhere/check").expect("it is missing");
        assert!(missing.starts_with("install /nowhere/check, "), "{missing}");
    }
}
