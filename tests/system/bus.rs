//! What other programs see on the bus with the tools that every host has, and who may act there.

use std::process::Output;

use crate::{
    cluster::Host,
    command::{said, wait_until},
    fixture::{Plan, SERVICE, SOON, TAKE_OVER, wait_for_line, wait_for_standby},
    lockstore::Lockstore,
};

const NAME: &str = "org.putexd.Putexd1";
const PATH: &str = "/org/putexd/Putexd1";
const OBJECT: &str = "/org/putexd/Putexd1/service/db";
/// What polkit reads its rules from.
const RULES: &str = "/etc/polkit-1/rules.d/10-test.rules";

/// Calls `busctl` as a user without rights.
fn as_nobody(host: &Host, arguments: &[&str]) -> Output {
    host.output(
        &[
            &["setpriv", "--reuid=65534", "--clear-groups", "busctl"],
            arguments,
        ]
        .concat(),
    )
}

/// Has polkit answer so for a user without rights.
fn have_polkit_say(host: &Host, act: &str) {
    let rules = format!(
        "polkit.addRule(function(action, subject) {{\n\
         if (subject.user != 'nobody') return polkit.Result.NOT_HANDLED;\n\
         if (action.id == 'org.putexd.Putexd1.manage-services') return polkit.Result.{act};\n\
         return polkit.Result.NO;\n}});\n"
    );
    host.write_file(RULES, &rules);
    host.exec(&["systemctl", "restart", "polkit.service"]);
}

/// Asks for the end of a drain that never began, which changes nothing and is answered by this host alone.
fn undrain(host: &Host) -> String {
    said(&as_nobody(
        host,
        &[
            "call",
            NAME,
            PATH,
            "org.putexd.Putexd1.Manager",
            "Do",
            "s",
            r#"{"verb": "undrain"}"#,
        ],
    ))
}

/// The rule in org.putexd.Putexd1(5) for a group.
fn rule_of_the_manual() -> String {
    let page = include_str!("../../packaging/usr/share/man/man5/org.putexd.Putexd1.5");
    let (_, rule) = page
        .split_once("50\\-putexd.rules :\n.Bd -literal -offset indent\n")
        .expect("it has a rule");
    let (rule, _) = rule.split_once(".Ed").expect("the rule has an end");
    rule.replace("\\-", "-")
}

#[test]
fn the_bus_shows_each_service_and_polkit_says_who_may_act() {
    let Some((fixture, first)) = Plan::hosts("bus", 2, Lockstore::Nats).run() else {
        return;
    };
    let host = fixture.other(&first);
    let tree = || host.exec(&["busctl", "tree", "--list", NAME]);
    assert!(tree().lines().any(|line| line == OBJECT), "{}", tree());
    let described = host.exec(&[
        "busctl",
        "introspect",
        NAME,
        OBJECT,
        "org.putexd.Putexd1.Service",
    ]);
    for (name, value) in [(".State", "\"standby\""), (".Unit", "\"database.service\"")] {
        assert!(
            described
                .lines()
                .any(|line| line.starts_with(name) && line.contains(value)),
            "{name}: {described}"
        );
    }

    // A monitor hears of a service that comes and goes with its file, and of a takeover.
    let monitor =
        format!("exec busctl monitor --json=short {NAME} >/run/t-monitor 2>/run/t-monitor-began");
    host.exec(&["systemd-run", "--unit=t-monitor", "sh", "-c", &monitor]);
    let began = || {
        host.read_file("/run/t-monitor-began")
            .is_some_and(|text| text.contains("Monitoring"))
    };
    wait_until(SOON, "busctl monitors", began);
    let signalled = |words: &[&str]| {
        let lines = host.read_file("/run/t-monitor").unwrap_or_default();
        lines
            .lines()
            .any(|line| words.iter().all(|word| line.contains(word)))
    };
    host.write_file(
        "/etc/putex.d/web-1.toml",
        &SERVICE.replace("database.service", "web.service"),
    );
    host.exec(&["systemctl", "reload", "putexd.service"]);
    wait_until(SOON, "the object comes", || {
        signalled(&["InterfacesAdded", "service/web_2d1"])
    });
    host.remove_file("/etc/putex.d/web-1.toml");
    host.exec(&["systemctl", "reload", "putexd.service"]);
    wait_until(SOON, "the object goes", || {
        signalled(&["InterfacesRemoved", "service/web_2d1"])
    });

    // Everybody looks; without polkit only root acts.
    let state = said(&as_nobody(
        host,
        &[
            "get-property",
            NAME,
            OBJECT,
            "org.putexd.Putexd1.Service",
            "State",
        ],
    ));
    assert!(state.contains("\"standby\""), "{state}");
    // "busctl" has words of its own for this error.
    let refused = undrain(host);
    assert!(refused.contains("Access denied"), "{refused}");

    // With it, whom it permits to. What putexd then says shows that it was asked.
    host.exec(&["systemctl", "start", "polkit.service"]);
    let refused = undrain(host);
    assert!(
        refused.contains("let yourself be asked for a password"),
        "by putexd's own policy: {refused}"
    );
    have_polkit_say(host, "NO");
    let refused = undrain(host);
    assert!(refused.contains("Access denied"), "{refused}");
    have_polkit_say(host, "YES");
    let answered = undrain(host);
    assert!(answered.contains("this host is not drained"), "{answered}");
    // To say that a host is dead is another matter.
    let confirm = [
        NAME,
        PATH,
        "org.putexd.Putexd1.Manager",
        "Do",
        "s",
        r#"{"verb": "confirm-dead", "node": "h9"}"#,
    ];
    let refused = said(&as_nobody(host, &[&["call"], &confirm[..]].concat()));
    assert!(refused.contains("Access denied"), "{refused}");
    // The rule of the manual permits the former to its group, and to nobody else.
    host.remove_file(RULES);
    host.sh("groupadd operators && useradd --groups operators anna");
    host.write_file(
        "/etc/polkit-1/rules.d/50-putexd.rules",
        &rule_of_the_manual(),
    );
    host.exec(&["systemctl", "restart", "polkit.service"]);
    let anna = ["setpriv", "--reuid=anna", "--regid=anna", "--init-groups"];
    let answered = said(&host.output(&[&anna[..], &["putexctl", "undrain"]].concat()));
    assert!(answered.contains("is not drained"), "{answered}");
    let refused = said(&host.output(&[&anna[..], &["busctl", "call"], &confirm].concat()));
    assert!(
        refused.contains("let yourself be asked for a password"),
        "{refused}"
    );
    let refused = undrain(host);
    assert!(
        refused.contains("let yourself be asked for a password"),
        "{refused}"
    );
    host.exec(&["systemctl", "stop", "polkit.service"]);
    let refused = undrain(host);
    assert!(refused.contains("Access denied"), "{refused}");
    let state = said(&as_nobody(
        host,
        &[
            "get-property",
            NAME,
            OBJECT,
            "org.putexd.Putexd1.Service",
            "State",
        ],
    ));
    assert!(state.contains("\"standby\""), "{state}");

    let lost = fixture.host_of(&first).power_off_hard();
    let second = fixture.wait_for_takeover(
        &first,
        lost,
        TAKE_OVER,
        "power loss, on a bus that is monitored",
    );
    assert_eq!(fixture.host_of(&second).name, host.name);
    wait_until(SOON, "the property changes", || {
        signalled(&["PropertiesChanged", OBJECT, "\"active\""])
    });
    host.exec(&["systemctl", "stop", "t-monitor.service"]);

    // The loss of the bus and its return are told.
    host.exec(&["systemctl", "stop", "dbus.socket", "dbus.service"]);
    wait_for_line(host, &["putexd", "the system bus is lost"]);
    // Root asks all the same, and nobody else can.
    assert!(host.output(&["putexctl", "status"]).status.success());
    let answered = said(&host.output(&["putexctl", "undrain"]));
    assert!(answered.contains("is not drained"), "{answered}");
    let mode = host.exec(&["stat", "--format=%a %U", "/run/putex/control"]);
    assert_eq!(mode.trim(), "600 root");
    host.exec(&["systemctl", "start", "dbus.socket", "dbus.service"]);
    wait_for_line(host, &["putexd", "the system bus is back"]);
    fixture.host_of(&first).boot();
    wait_for_standby(fixture.host_of(&first));
    fixture.assert_no_violation();
}
