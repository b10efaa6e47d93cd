//! What a new operator trips over, and what is said then: by `putexd --check`, by `putexctl doctor`, by a second putexd, and
//! while putexd stops.

use crate::{
    cluster::Host,
    command::{said, wait_until},
    fixture::{Plan, SOON, wait_for_words},
    lockstore::Lockstore,
};

const DAEMON: &str = "putexd.service";
/// A service whose unit does not exist at first.
const LATE: &str =
    "unit = \"late.service\"\nrenew-interval = \"1s\"\nfailures = 3\nconfirmations = 1\n";
/// A unit that is started at boot, and whose stop may take for ever.
const UNIT: &str = "[Service]\nExecStart=sleep infinity\nTimeoutStopSec=infinity\n\n[Install]\nWantedBy=multi-user.target\n";

/// The exit status of a command, and what it says.
fn asked(host: &Host, command: &[&str]) -> (Option<i32>, String) {
    let output = host.output(command);
    (output.status.code(), said(&output))
}

#[test]
fn what_is_wrong_is_said_before_it_does_harm() {
    let plan = Plan::hosts("trips", 2, Lockstore::Directory).oracle(&["ORACLE_STOP_DELAY_MS=4000"]);
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    let (holder, standby) = (fixture.host_of(&first), fixture.other(&first));

    let (status, printed) = asked(standby, &["putexd", "--check"]);
    assert_eq!(
        (status, printed.contains("were not looked at")),
        (Some(0), false),
        "{printed}"
    );
    let (status, printed) = asked(standby, &["putexctl", "doctor"]);
    println!("{printed}");
    assert!(status == Some(0) && !printed.contains("× "), "{printed}");

    standby.write_file("/etc/putex.d/late.toml", LATE);
    let (status, printed) = asked(standby, &["putexd", "--check"]);
    assert_eq!(status, Some(78), "{printed}");
    assert!(
        printed.contains("late.toml: error: late.service is not-found: install the unit"),
        "{printed}"
    );
    assert_eq!(
        asked(standby, &["putexd", "--check", "--files"]).0,
        Some(0),
        "the files are good"
    );

    standby.write_file("/etc/systemd/system/late.service", UNIT);
    standby.exec(&["systemctl", "daemon-reload"]);
    standby.exec(&["systemctl", "enable", "late.service"]);
    let (status, printed) = asked(standby, &["putexd", "--check"]);
    assert_eq!(status, Some(0), "{printed}");
    assert!(
        printed.contains("run \"systemctl disable late.service\""),
        "{printed}"
    );
    assert!(
        printed.contains("systemd waits for the stop of late.service for ever"),
        "{printed}"
    );
    standby.exec(&["systemctl", "disable", "late.service"]);
    standby.exec(&["rm", "/etc/putex.d/late.toml"]);

    let (status, printed) = asked(holder, &["timeout", "20", "putexd"]);
    assert_eq!(status, Some(1), "{printed}");
    assert!(
        printed.contains("putexd runs on this host already, as process"),
        "{printed}"
    );

    // While the unit stops slowly, systemd and putexctl say what is waited for.
    fixture.assert_alone(&first);
    holder.exec(&["systemctl", "stop", "--no-block", DAEMON]);
    wait_until(SOON, "STATUS= names the service", || {
        holder
            .property(DAEMON, "StatusText")
            .starts_with("stopping: waits for db to stop, for ")
    });
    wait_for_words(
        SOON,
        holder,
        &["db ", "releasing", "waits until the unit is proven dead"],
    );
    fixture.oracle.wait_for_end(&first, SOON);
    fixture.assert_no_violation();
}
