//! What other programs see on the bus with the tools that every host has, and who may act there.

use std::collections::HashMap;
use std::fs;
use std::process::Output;

use futures_util::StreamExt as _;
use zbus::{Connection, MatchRule, MessageStream, OwnedVariant};

use crate::cluster::Host;
use crate::command::{said, wait_until};
use crate::fixture::{Plan, SERVICE, SOON, TAKE_OVER, wait_for_standby};
use crate::lockstore::Lockstore;

const NAME: &str = "org.putexd.Putexd1";
const PATH: &str = "/org/putexd/Putexd1";
const OBJECT: &str = "/org/putexd/Putexd1/service/db";
/// What the stand-in for polkit says: `yes` or `no`.
const SAYS: &str = "/run/t-polkit-says";
/// Lets the stand-in have polkit's name.
const MAY_OWN: &str = "<!DOCTYPE busconfig PUBLIC \"-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN\" \
     \"http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd\">\n\
     <busconfig><policy context=\"mandatory\"><allow own=\"org.freedesktop.PolicyKit1\"/>\
     <allow send_destination=\"org.freedesktop.PolicyKit1\"/></policy></busconfig>\n";

/// What polkit is asked: the subject and its details, the action, more details, flags, and a name for a later cancellation.
type Asked = ((String, HashMap<String, OwnedVariant>), String, HashMap<String, String>, u32, String);

/// Calls `busctl` as a user without rights.
fn as_nobody(host: &Host, arguments: &[&str]) -> Output {
    host.output(&[&["setpriv", "--reuid=65534", "--clear-groups", "busctl"], arguments].concat())
}

/// Asks for the end of a drain that never began, which changes nothing and is answered by this host alone.
fn undrain(host: &Host) -> String {
    said(&as_nobody(host, &["call", NAME, PATH, "org.putexd.Putexd1.Manager", "Undrain", "a{sv}", "0"]))
}

#[test]
fn the_bus_shows_each_service_and_polkit_says_who_may_act() {
    let plan = Plan::hosts("bus", 2, Lockstore::Nats).file("/etc/dbus-1/system.d/t-polkit.conf", MAY_OWN);
    let Some((fixture, first)) = plan.run() else { return };
    let host = fixture.other(&first);
    let tree = || host.exec(&["busctl", "tree", "--list", NAME]);
    assert!(tree().lines().any(|line| line == OBJECT), "{}", tree());
    let described = host.exec(&["busctl", "introspect", NAME, OBJECT, "org.putexd.Putexd1.Service"]);
    for (name, value) in [(".State", "\"standby\""), (".Unit", "\"database.service\""), (".Transition", "signal")] {
        assert!(described.lines().any(|line| line.starts_with(name) && line.contains(value)), "{name}: {described}");
    }

    // A monitor hears of a service that comes and goes with its file, and of a takeover.
    let monitor = format!("exec busctl monitor --json=short {NAME} >/run/t-monitor 2>/run/t-monitor-began");
    host.exec(&["systemd-run", "--unit=t-monitor", "sh", "-c", &monitor]);
    let began = || host.read_file("/run/t-monitor-began").is_some_and(|text| text.contains("Monitoring"));
    wait_until(SOON, "busctl monitors", began);
    let heard = |words: &[&str]| {
        let lines = host.read_file("/run/t-monitor").unwrap_or_default();
        lines.lines().any(|line| words.iter().all(|word| line.contains(word)))
    };
    host.write_file("/etc/putex.d/web-1.toml", &SERVICE.replace("database.service", "web.service"));
    host.exec(&["systemctl", "reload", "putexd.service"]);
    wait_until(SOON, "the object comes", || heard(&["InterfacesAdded", "service/web_2d1"]));
    host.remove_file("/etc/putex.d/web-1.toml");
    host.exec(&["systemctl", "reload", "putexd.service"]);
    wait_until(SOON, "the object goes", || heard(&["InterfacesRemoved", "service/web_2d1"]));

    // Everybody looks; without polkit only root acts.
    let state = said(&as_nobody(host, &["get-property", NAME, OBJECT, "org.putexd.Putexd1.Service", "State"]));
    assert!(state.contains("\"standby\""), "{state}");
    // "busctl" has words of its own for this error.
    let refused = undrain(host);
    assert!(refused.contains("Access denied"), "{refused}");

    // With it, whom it permits to. What putexd then says shows that it was asked.
    let executable = std::env::current_exe().expect("a test has an executable");
    fs::copy(executable, fixture.shared().join("tests")).expect("the shared folder takes it");
    host.write_file(SAYS, "no");
    host.exec(&["systemctl", "reload", "dbus.service"]);
    let polkit = ["/srv/shared/tests", "bus::polkit_of_the_test", "--ignored", "--nocapture"];
    host.exec(&[&["systemd-run", "--unit=t-polkit"], &polkit[..]].concat());
    let owned = || host.output(&["busctl", "status", "org.freedesktop.PolicyKit1"]).status.success();
    wait_until(SOON, "polkit's stand-in is there", owned);
    let refused = undrain(host);
    assert!(refused.contains("Access denied"), "{refused}");
    host.write_file(SAYS, "yes");
    let answered = undrain(host);
    assert!(answered.contains("this host is not drained"), "{answered}");
    host.exec(&["systemctl", "stop", "t-polkit.service"]);

    let lost = fixture.host_of(&first).power_off_hard();
    let second = fixture.wait_for_takeover(&first, lost, TAKE_OVER, "power loss, on a bus that is monitored");
    assert_eq!(fixture.host_of(&second).name, host.name);
    wait_until(SOON, "the takeover is a signal", || {
        heard(&["\"Transition\"", OBJECT, "confirming", "starting"]) && heard(&["\"Transition\"", OBJECT, "\"active\""])
    });
    wait_until(SOON, "the property changes", || heard(&["PropertiesChanged", OBJECT, "\"active\""]));
    host.exec(&["systemctl", "stop", "t-monitor.service"]);
    fixture.host_of(&first).boot();
    wait_for_standby(fixture.host_of(&first));
    fixture.assert_no_violation();
}

#[test]
#[ignore = "runs inside a host"]
fn polkit_of_the_test() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let bus = Connection::system().await.expect("the bus lets root in");
        let rule = MatchRule::builder().msg_type(zbus::message::Type::MethodCall).build().expect("a rule");
        let mut calls = MessageStream::for_match_rule(rule, &bus, None).await.expect("calls");
        bus.request_name("org.freedesktop.PolicyKit1").await.expect("the policy permits it");
        while let Some(Ok(call)) = calls.next().await {
            let yes = fs::read_to_string(SAYS).is_ok_and(|says| says == "yes");
            // As polkit's own policy: everybody may look.
            let body = call.body();
            let (_, action, ..): Asked = body.deserialize().expect("what polkit takes");
            let may = yes || action == "org.putexd.Putexd1.read";
            let details = HashMap::<String, String>::new();
            bus.reply(&call.header(), &((may, false, details),)).await.expect("the bus takes it");
        }
    });
}
