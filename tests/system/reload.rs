//! `systemctl reload putexd`, and two services on the same hosts.

use std::time::Duration;

use crate::{
    cluster::Host,
    command::{holds_for, now, wait_for, wait_until},
    fixture::{
        Fixture, HAND_OVER, Plan, SERVICE, SOON, TAKE_OVER, WAIT, main_pid, wait_for_line,
        wait_for_standby,
    },
    lockstore::{Lockstore, on_each_store},
};

on_each_store! {
    two_services_do_not_disturb_each_other,
    a_reload_touches_what_has_changed_and_nothing_else,
}

/// A second program that must run once: it fails to start while another copy has its lock.
const WEB: &str = "[Unit]\nDescription=A web server that must run once\n\n\
                   [Service]\nExecStart=/usr/bin/flock --nonblock --no-fork /srv/shared/web.lock sleep infinity\n";
const WEB_UNIT: &str = "/etc/systemd/system/web.service";
const WEB_SERVICE: &str =
    "unit = \"web.service\"\nrenew-interval = \"1s\"\nfailures = 3\nconfirmations = 1\n";

fn runs_web(host: &Host) -> bool {
    host.is_on() && host.property("web.service", "ActiveState") == "active"
}

fn wait_for_web(fixture: &Fixture, limit: Duration) -> &Host {
    wait_for(limit, "one host runs the web server", || {
        let running: Vec<&Host> = fixture.hosts.iter().filter(|host| runs_web(host)).collect();
        assert!(running.len() < 2, "two hosts run the web server");
        running.first().copied()
    })
}

fn reload(host: &Host) {
    host.exec(&["systemctl", "reload", "putexd.service"]);
}

fn two_services_do_not_disturb_each_other(store: Lockstore) {
    let plan = Plan::hosts("two", 2, store)
        .file(WEB_UNIT, WEB)
        .service("web", WEB_SERVICE);
    let Some((fixture, first)) = plan.run() else {
        return;
    };
    let web = wait_for_web(&fixture, TAKE_OVER);
    fixture.uninterrupted(&first, WAIT, "the other service's unit killed", || {
        web.exec(&["systemctl", "kill", "--signal=KILL", "web.service"]);
        wait_until(SOON, "the web server is gone", || !runs_web(web));
    });
    wait_for_web(&fixture, TAKE_OVER);

    let asked = now();
    let host = fixture.host_of(&first);
    host.exec(&["systemctl", "stop", "putexd.service"]);
    let second = fixture.wait_for_takeover(&first, asked, HAND_OVER, "hand-over of two services");
    assert_eq!(wait_for_web(&fixture, TAKE_OVER).name, second.host);
    host.exec(&["systemctl", "start", "putexd.service"]);
    wait_for_standby(host);
    let lost = fixture.host_of(&second).power_off_hard();
    let third = fixture.wait_for_takeover(&second, lost, TAKE_OVER, "power loss with two services");
    assert_eq!(wait_for_web(&fixture, TAKE_OVER).name, third.host);
    let invocations = |unit| host.property(unit, "Result");
    assert_eq!(
        (invocations("web.service"), invocations("database.service")),
        ("success".into(), "success".into())
    );
}

fn a_reload_touches_what_has_changed_and_nothing_else(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("reload", 2, store).file(WEB_UNIT, WEB).run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let daemon = main_pid(host, "putexd.service");
    let write = |name: &str, text: &str| {
        for host in &fixture.hosts {
            host.write_file(&format!("/etc/putex.d/{name}.toml"), text);
        }
    };
    let reload_all = || fixture.hosts.iter().for_each(reload);

    fixture.uninterrupted(
        &first,
        Duration::from_secs(2),
        "nothing has changed",
        reload_all,
    );
    wait_for_line(host, &["the configuration is reloaded", "nothing changed"]);

    // A new file: its unit is gated and started, and the other unit runs on.
    fixture.uninterrupted(&first, Duration::from_secs(2), "a new service", || {
        write("web", WEB_SERVICE);
        reload_all();
        wait_for_web(&fixture, TAKE_OVER);
    });
    wait_for_line(host, &["the configuration is reloaded", "web added"]);
    let web = wait_for_web(&fixture, SOON);
    let invocation = web.property("web.service", "InvocationID");

    // Changed timings take effect in the middle of a lease.
    fixture.uninterrupted(&first, WAIT * 2, "changed timings", || {
        write("db", &SERVICE.replace("\"1s\"", "\"2s\""));
        reload_all();
    });
    wait_for_line(host, &["the configuration is reloaded", "db changed"]);

    // A broken file leaves its service as it was.
    fixture.uninterrupted(&first, WAIT * 2, "a broken file", || {
        write("db", "unit = \"database.service\"\nrenew-interval = 5\n");
        for host in &fixture.hosts {
            // The exit status of systemctl does not matter here, only the unit does.
            host.output(&["systemctl", "reload", "putexd.service"]);
        }
    });
    wait_for_line(host, &["/etc/putex.d/db.toml:2:18"]);
    assert_eq!(
        web.property("web.service", "InvocationID"),
        invocation,
        "the other service was never touched"
    );
    write("db", SERVICE);
    fixture.uninterrupted(&first, WAIT, "mended", reload_all);

    // A removed file: the unit is stopped, and the lock released.
    fixture.uninterrupted(&first, Duration::from_secs(2), "a removed service", || {
        for host in &fixture.hosts {
            host.exec(&["rm", "/etc/putex.d/web.toml"]);
        }
        reload_all();
        wait_until(SOON, "nobody runs the web server", || {
            !fixture.hosts.iter().any(runs_web)
        });
    });
    wait_for_line(host, &["the configuration is reloaded", "web removed"]);
    holds_for(WAIT, "a service without a file is not started", || {
        !fixture.hosts.iter().any(runs_web)
    });
    assert_eq!(
        main_pid(host, "putexd.service"),
        daemon,
        "one daemon did all of this"
    );

    // Another unit under the same name is another service: the old unit is stopped first.
    let since = now();
    write(
        "db",
        &WEB_SERVICE.replace("web.service", "web.service\"\nkey = \"elsewhere"),
    );
    reload_all();
    let end = fixture.oracle.wait_for_end(&first, SOON);
    println!(
        "another unit: the old one was gone {:?} after the files were written",
        end.after(since)
    );
    // The new unit was run under another key before, so an operator has to confirm the change.
    wait_for_line(
        host,
        &["db: web.service is run under the key \"web\" in this store"],
    );
    host.exec(&["putexctl", "adopt", "db"]);
    wait_for_web(&fixture, TAKE_OVER);
    fixture.assert_no_violation();
}
