//! The programs of putexd's package, as PID 1 has them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::Host;
use crate::systemd::{BusError, Systemd, UnitFacts};
use crate::types::{DAEMON_UNIT, NET_SOCKET, UnitName};

/// The units that have to run, each with what is missing without it.
const PARTS: [(&str, &str); 4] = [
    (DAEMON_UNIT, "this host takes part in nothing"),
    ("putex-guard.service", "no lease can be held on this host"),
    ("putex-guard-watch.service", "a guard that hangs is not restarted"),
    (NET_SOCKET, "the store is not reached any more once the process that has it ends"),
];

/// What the kernel adds to the path of a program whose file was replaced.
const REPLACED: &str = " (deleted)";

pub(super) async fn look(systemd: &Systemd, host: &mut Host) {
    for (name, without) in PARTS {
        let Ok(unit) = UnitName::new(name) else { continue };
        let of_boot = async { systemd.boot().await?.pullers(&unit, &BTreeSet::new()).await };
        let found = async { Ok::<_, BusError>((systemd.facts(&unit).await?, !of_boot.await?.is_empty())) };
        match found.await {
            Ok((facts, at_boot)) => {
                let program = std::fs::read_link(format!("/proc/{}/exe", facts.main_pid)).ok();
                host.findings.extend(of_part(name, without, &facts, at_boot, program));
                host.facts.push(("systemd", format!("{name} is {}", facts.active_state)));
            }
            Err(error) => host.findings.push(format!("run this again: {name} was not looked at: {error}")),
        }
    }
}

/// What is wrong with one of the units. `at_boot`: whether it is started then. `program`: what its main process runs.
fn of_part(name: &str, without: &str, facts: &UnitFacts, at_boot: bool, program: Option<PathBuf>) -> Vec<String> {
    if facts.load_state != "loaded" {
        let remedy = if facts.load_state == "masked" {
            format!("run \"systemctl unmask {name}\"")
        } else {
            "install putexd's package".to_owned()
        };
        return vec![format!("{remedy}: {name} is {}, so {without}", facts.load_state)];
    }
    let mut found = Vec::new();
    if !matches!(facts.active_state.as_str(), "active" | "reloading") {
        found.push(format!("run \"systemctl start {name}\": it is {}, so {without}", facts.active_state));
    }
    if name == DAEMON_UNIT && !at_boot {
        found.push(format!("run \"systemctl enable {name}\": it is not started at the next boot, so {without} then"));
    }
    if program.is_some_and(|program| program.to_string_lossy().ends_with(REPLACED)) {
        let (remedy, until) = match name {
            "putex-guard.service" => (
                "putexctl drain\", and \"putexctl undrain\" when it is over".to_owned(),
                " until this host has no lease",
            ),
            DAEMON_UNIT => (format!("systemctl restart {name}\""), "; the units continue to run"),
            _ => (format!("systemctl restart {name}\""), ""),
        };
        found.push(format!(
            "run \"{remedy}: the program of {name} was replaced after it was started, so the former version runs{until}"
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(load_state: &str, active_state: &str) -> UnitFacts {
        UnitFacts {
            load_state: load_state.to_owned(),
            active_state: active_state.to_owned(),
            stop_time: None,
            main_pid: 1,
            memory: None,
        }
    }

    #[test]
    fn each_fault_of_a_part_has_its_remedy() {
        let at_boot = |at_boot, name, facts: &UnitFacts, program: &str| {
            of_part(name, "nothing works", facts, at_boot, Some(program.into()))
        };
        let of = |name, facts: &UnitFacts, program: &str| at_boot(true, name, facts, program);
        let good = facts("loaded", "active");
        assert_eq!(of(DAEMON_UNIT, &good, "/usr/bin/putexd"), Vec::<String>::new());
        assert_eq!(
            of(DAEMON_UNIT, &facts("not-found", "inactive"), ""),
            ["install putexd's package: putexd.service is not-found, so nothing works"]
        );
        assert_eq!(
            at_boot(false, DAEMON_UNIT, &facts("loaded", "failed"), ""),
            [
                "run \"systemctl start putexd.service\": it is failed, so nothing works",
                "run \"systemctl enable putexd.service\": it is not started at the next boot, so nothing works then",
            ]
        );
        let guard = of("putex-guard.service", &facts("loaded", "active"), "/usr/bin/putex-guard (deleted)");
        let [replaced] = &guard[..] else { panic!("{guard:?}") };
        assert!(
            replaced.starts_with(
                "run \"putexctl drain\", and \"putexctl undrain\" when it is over: the program of putex-guard"
            ),
            "{replaced}"
        );
        let daemon = of(DAEMON_UNIT, &good, "/usr/bin/putexd (deleted)");
        assert!(daemon[0].starts_with("run \"systemctl restart putexd.service\""), "{daemon:?}");
    }
}
