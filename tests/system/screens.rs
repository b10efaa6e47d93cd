//! What `putexctl status` says of hosts that boot, are renamed or only observe, and of a unit that hides a file.

use std::time::Duration;

use serde_json::Value;

use crate::{
    cluster::Host,
    command::{holds_for, said, wait_for, wait_until},
    fixture::{ELECTED, Plan, SERVICE, SOON, TAKE_OVER, wait_for_standby},
    lockstore::Lockstore,
    vendor,
};

fn status(host: &Host) -> String {
    said(&host.output(&["putexctl", "status"]))
}

/// The state of a service as `host` shows it. `None`: its putexd does not answer yet.
fn state_of(host: &Host, service: &str) -> Option<String> {
    let shown: Value =
        serde_json::from_slice(&host.output(&["putexctl", "status", "--json"]).stdout).ok()?;
    let all = shown["services"].as_array()?.clone();
    all.iter().find(|known| known["service"] == service)?["activity"]
        .as_str()
        .map(str::to_owned)
}

#[test]
fn an_upgrade_of_a_service_hosts_that_boot_or_are_renamed_and_a_unit_that_hides_a_file() {
    let Some((fixture, first)) = Plan::hosts("screens", 2, Lockstore::Directory).run() else {
        return;
    };
    let (holder, other) = (fixture.host_of(&first), fixture.other(&first));

    vendor::is_upgraded(&fixture, holder, other);

    // A unit that systemd-run has made, and that has failed, before its file is there.
    holder.output(&["systemd-run", "--quiet", "--unit=extra", "/bin/false"]);
    wait_until(SOON, "it has failed", || {
        holder.property("extra.service", "ActiveState") == "failed"
    });
    holder.write_file(
        "/etc/systemd/system/extra.service",
        "[Service]\nExecStart=/bin/sleep 1000\n",
    );
    holder.write_file(
        "/etc/putex.d/extra.toml",
        &SERVICE.replace("database.service", "extra.service"),
    );
    holder.sh("systemctl daemon-reload && systemctl reload putexd.service");
    let printed = wait_for(SOON, "the unit is refused", || {
        Some(said(&holder.output(&["putexctl", "status", "extra"])))
            .filter(|printed| printed.contains("systemd-run"))
    });
    let printed = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    let remedy = printed
        .split("run \"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .expect("there is a remedy");
    holder.sh(remedy);
    wait_until(TAKE_OVER, "the file counts now", || {
        holder.property("extra.service", "ActiveState") == "active"
    });
    holder.sh("rm /etc/putex.d/extra.toml && systemctl reload putexd.service");

    // A host that has just booted knows little, and says nothing else.
    other.power_off_hard();
    other.boot();
    let mut seen: Vec<String> = Vec::new();
    holds_for(
        Duration::from_secs(12),
        "the service is not said to be down",
        || {
            let state = state_of(other, "db");
            if let Some(state) = state.filter(|state| seen.last() != Some(state)) {
                seen.push(state);
            }
            // Of the service that was just removed the last report of the other host may be shown for a moment.
            !status(other)
                .lines()
                .any(|line| line.contains("down for") && line.contains("db"))
        },
    );
    assert_eq!(seen.last().map(String::as_str), Some("running"), "{seen:?}");
    assert!(!seen.iter().any(|state| state == "starting"), "{seen:?}");

    // It gets another name.
    wait_for_standby(other);
    let configuration = other
        .read_file("/etc/putex/putexd.toml")
        .expect("it is there");
    let renamed = configuration.replace(&format!("node = \"{}\"", other.name), "node = \"h9\"");
    other.write_file("/etc/putex/putexd.toml", &renamed);
    other.exec(&["systemctl", "restart", "putexd.service"]);
    // Its old name has fallen silent then.
    wait_until(ELECTED, "it is eligible under its new name alone", || {
        said(&holder.output(&["putexctl", "status", "db"])).contains("Standby: h9\n")
    });

    // Nobody takes part any more. The standby comes first: it would take the lock that is free.
    for host in [other, holder] {
        host.write_file(
            "/etc/putex.d/db.toml",
            &format!("{SERVICE}mode = \"observe\"\n"),
        );
        host.exec(&["systemctl", "reload", "putexd.service"]);
    }
    wait_until(TAKE_OVER, "it is said to be observed", || {
        state_of(other, "db").as_deref() == Some("observed")
    });
    fixture.assert_no_violation();
}
