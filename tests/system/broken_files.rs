//! A file of the configuration is broken. A unit that runs under it runs on, even over a restart of putexd, and
//! `putexctl status` says where the file is broken.

use std::time::Duration;

use crate::{
    cluster::Host,
    command::{holds_for, now, said, since, wait_for, wait_until},
    fixture::{
        Fixture, HAND_OVER, Plan, SERVICE, SOON, TAKE_OVER, WAIT, main_pid, putexctl_status,
        wait_for_line, wait_for_standby, wait_for_words,
    },
    lockstore::Lockstore,
};

const DAEMON: &str = "putexd.service";
const FILE: &str = "/etc/putex.d/db.toml";
const HOST_FILE: &str = "/etc/putex/putexd.toml";
/// The generator waits for 3 s for a file, and systemd waits for 90 s for the generator.
const GENERATED: Duration = Duration::from_secs(30);
/// The value in the second line begins at column 18 and is not valid.
const BROKEN: &str = "unit = \"database.service\"\nrenew-interval = 5\n";
/// The unit of another service, which the broken file of `db` must not affect.
const WEB: &str = "[Unit]\nDescription=A web server\n\n[Service]\nExecStart=sleep infinity\n";
const WEB_SERVICE: &str =
    "unit = \"web.service\"\nrenew-interval = \"1s\"\nfailures = 3\nconfirmations = 1\n";

/// Whether the reload succeeded, as it does only where every file is good.
fn reload(host: &Host) -> bool {
    host.output(&["systemctl", "reload", DAEMON])
        .status
        .success()
}

fn restart(host: &Host) {
    let before = main_pid(host, DAEMON);
    host.exec(&["systemctl", "restart", DAEMON]);
    assert_ne!(main_pid(host, DAEMON), before);
}

/// What the status of the cluster says on `host`, which has to say what is wrong at `place` once, and not that the service is not run.
#[track_caller]
fn is_printed_once(host: &Host, place: &str) -> String {
    let mut printed = String::new();
    wait_until(SOON, "the status tells of the file", || {
        printed = said(&host.output(&["putexctl", "status"]));
        printed.contains(place)
    });
    assert!(
        printed.matches(place).count() == 1 && !printed.contains("is not run on this host"),
        "{printed}"
    );
    printed
}

fn plan(name: &'static str) -> Plan {
    Plan::hosts(name, 2, Lockstore::Nats)
        .unit("web", WEB)
        .service("web", WEB_SERVICE)
}

/// Returns the host that runs the web server, and the invocation id of that run.
fn web(fixture: &Fixture) -> (&Host, String) {
    let invocation = |host: &Host| host.property("web.service", "InvocationID");
    let host = wait_for(TAKE_OVER, "one host runs the web server", || {
        fixture
            .hosts
            .iter()
            .find(|host| host.property("web.service", "ActiveState") == "active")
    });
    (host, invocation(host))
}

#[test]
fn a_service_whose_file_is_broken_runs_on_over_a_restart() {
    let Some((fixture, first)) = plan("broken").run() else {
        return;
    };
    let (holder, standby) = (fixture.host_of(&first), fixture.other(&first));
    let (_, web_run) = web(&fixture);

    fixture.uninterrupted(&first, WAIT * 2, "a broken file, and a reload", || {
        holder.write_file(FILE, BROKEN);
        assert!(
            !reload(holder),
            "whoever reloads hears that a file is broken"
        );
        wait_until(SOON, "STATUS= tells of the broken file", || {
            holder
                .property(DAEMON, "StatusText")
                .starts_with("a file is broken: see \"putexctl status\"; ")
        });
        wait_for_line(
            holder,
            &[
                "the configuration is broken",
                "db",
                "former settings",
                "db.toml:2:18",
            ],
        );
        wait_for_line(holder, &["the configuration is reloaded: nothing changed"]);
        wait_for_words(
            SOON,
            holder,
            &[
                "db ",
                "active",
                "former settings",
                "db.toml:2:18",
                "systemctl reload putexd",
            ],
        );
    });
    fixture.uninterrupted(&first, WAIT * 4, "a broken file, and a restart", || {
        restart(holder);
        wait_for_words(
            SOON,
            holder,
            &[
                "db ",
                "active",
                "former settings",
                "db.toml:2:18",
                "systemctl reload putexd",
            ],
        );
        wait_for_line(holder, &["db", "former settings", "db.toml:2:18"]);
        let printed = is_printed_once(holder, "db.toml:2:18");
        assert!(
            printed.contains("until then db goes on with its former settings"),
            "{printed}"
        );
    });
    // A second restart keeps the same former text, even when the file is not valid TOML any more.
    fixture.uninterrupted(
        &first,
        WAIT * 2,
        "a file that is no TOML, and another restart",
        || {
            holder.write_file(FILE, "unit = \"database.ser");
            holder.exec(&["systemctl", "daemon-reload"]);
            restart(holder);
            wait_for_words(
                SOON,
                holder,
                &["db ", "active", "former settings", "db.toml:1:"],
            );
        },
    );
    // A standby has no lease to keep, so it does not contend with a broken file.
    standby.write_file(FILE, BROKEN);
    restart(standby);
    wait_for_words(
        SOON,
        standby,
        &["db ", "broken", "db.toml:2:18", "systemctl reload putexd"],
    );
    fixture.uninterrupted(&first, WAIT, "mended, and a reload", || {
        for host in &fixture.hosts {
            host.write_file(FILE, SERVICE);
            assert!(reload(host), "every file is good");
        }
        wait_until(SOON, "nothing is broken", || {
            fixture
                .hosts
                .iter()
                .all(|host| !putexctl_status(host).contains("broken"))
        });
    });
    wait_for_standby(standby);
    assert_eq!(
        web(&fixture).1,
        web_run,
        "the other service was never touched"
    );

    // A service with a broken file can be released, and this host does not contend again before the file is mended.
    holder.write_file(FILE, BROKEN);
    restart(holder);
    wait_for_words(SOON, holder, &["former settings"]);
    let asked = now();
    holder.exec(&["putexctl", "step-down", "--no-wait", "db"]);
    let second = fixture.wait_for_takeover(
        &first,
        asked,
        HAND_OVER,
        "step-down of a service whose file is broken",
    );
    wait_for_words(SOON, holder, &["db ", "does not contend", "db.toml:2:18"]);
    let asked = now();
    standby.exec(&["systemctl", "stop", DAEMON]);
    fixture.oracle.wait_for_end(&second, SOON);
    holds_for(
        WAIT * 2,
        "a broken service without a lease does not contend",
        || fixture.oracle.live().is_empty(),
    );
    holder.write_file(FILE, SERVICE);
    reload(holder);
    let third = fixture.wait_for_start(asked, TAKE_OVER);
    assert_eq!(third.host, holder.name);

    // putexd is stopped while the file is broken.
    holder.write_file(FILE, BROKEN);
    restart(holder);
    wait_for_words(SOON, holder, &["former settings"]);
    holder.exec(&["systemctl", "stop", DAEMON]);
    fixture.oracle.wait_for_end(&third, SOON);
    assert!(
        !holder
            .guards_table()
            .is_some_and(|table| table.contains("database"))
    );
    fixture.assert_no_violation();
}

#[test]
fn a_broken_putexd_toml_costs_no_lease() {
    let Some((fixture, first)) = plan("brokenhost").run() else {
        return;
    };
    let (holder, standby) = (fixture.host_of(&first), fixture.other(&first));
    let good = holder.read_file(HOST_FILE).expect("it was written");
    let broken = good.replace("[store]", "[stroe]");
    fixture.uninterrupted(&first, WAIT * 4, "a broken putexd.toml", || {
        holder.write_file(HOST_FILE, &broken);
        assert_eq!(
            holder.output(&["putexd", "--check"]).status.code(),
            Some(78)
        );
        reload(holder);
        wait_for_line(holder, &["former settings", "putexd.toml"]);
        wait_for_words(
            SOON,
            holder,
            &["db ", "active", "former settings", "putexd.toml:"],
        );
        restart(holder);
        wait_for_words(
            SOON,
            holder,
            &["db ", "active", "former settings", "putexd.toml:"],
        );
        is_printed_once(holder, "putexd.toml:");
        assert_eq!(
            holder.output(&["putexd", "--check"]).status.code(),
            Some(78)
        );
    });
    fixture.uninterrupted(&first, WAIT * 2, "putexd.toml mended", || {
        holder.write_file(HOST_FILE, &good);
        reload(holder);
        wait_until(SOON, "nothing is broken", || {
            !putexctl_status(holder).contains("former settings")
        });
    });

    // A host that holds no lease has nothing to keep, so putexd ends with an error.
    let (web_host, _) = web(&fixture);
    if web_host.name == standby.name {
        standby.exec(&["putexctl", "step-down", "web"]);
        wait_until(TAKE_OVER, "the web server has moved", || {
            web(&fixture).0.name == holder.name
        });
    }
    standby.write_file(HOST_FILE, &broken);
    standby.output(&["systemctl", "restart", DAEMON]);
    wait_until(SOON, "putexd has ended with 78", || {
        standby.property(DAEMON, "ExecMainStatus") == "78"
    });
    fixture.assert_alone(&first);
    fixture.assert_no_violation();
}

/// Without the former text no settings are known any more, so putexd ends the tenure in a release (H5).
#[test]
fn without_its_former_text_a_broken_service_is_released() {
    let Some((fixture, first)) = Plan::hosts("brokenkept", 2, Lockstore::Nats).run() else {
        return;
    };
    let holder = fixture.host_of(&first);
    holder.exec(&["rm", "-r", "/run/putex/kept"]);
    holder.write_file(FILE, BROKEN);
    let since = now();
    restart(holder);
    let second = fixture.wait_for_takeover(
        &first,
        since,
        HAND_OVER,
        "a broken file, a restart and no text",
    );
    assert!(fixture.stop_of(&first).is_some(), "it was stopped in order");
    wait_for_words(SOON, holder, &["db ", "broken", "db.toml:2:18"]);
    fixture.assert_alone(&second);
}

#[test]
fn files_that_do_not_answer_end_no_lease() {
    let Some((fixture, first)) = Plan::hosts("hungfiles", 2, Lockstore::Nats).share().run() else {
        return;
    };
    let holder = fixture.host_of(&first);
    holder.sh("cp -r /etc/putex.d /srv/putex/ && rm -r /etc/putex.d && ln -s /srv/putex/putex.d /etc/putex.d");
    assert!(reload(holder));
    holder.share().hang();
    // It is longer than systemd's watchdog waits.
    fixture.uninterrupted(
        &first,
        Duration::from_secs(20),
        "a reload of files that do not answer",
        || {
            holder.exec(&["systemctl", "reload", "--no-block", DAEMON]);
            wait_for_line(
                holder,
                &[
                    "mount the file system anew that has etc/putex.d",
                    "does not answer",
                ],
            );
        },
    );
    holder.share().go_on();
    assert!(reload(holder));
    wait_until(SOON, "the status does not name the files any more", || {
        !putexctl_status(holder).contains("does not answer")
    });
    fixture.assert_alone(&first);

    // putexd starts without them, and goes on when they are there.
    let since = now();
    holder.exec(&["systemctl", "stop", DAEMON]);
    let second = fixture.wait_for_takeover(&first, since, HAND_OVER, "a planned stop");
    holder.share().hang();
    holder.exec(&["systemctl", "start", "--no-block", DAEMON]);
    wait_until(TAKE_OVER, "it says what it waits for", || {
        said(&holder.output(&["systemctl", "show", "--property=StatusText", DAEMON]))
            .contains("waiting for the configuration")
    });
    holder.share().go_on();
    wait_for_standby(holder);
    fixture.assert_alone(&second);
    fixture.assert_no_violation();
}

/// systemd kills a generator that does not end, and then loads all units without what the generator would have written.
#[test]
fn a_file_that_does_not_answer_sets_no_unit_free() {
    let Some((fixture, first)) = Plan::hosts("unread", 2, Lockstore::Directory).run() else {
        return;
    };
    let standby = fixture.other(&first);
    standby.exec(&["mkfifo", "/etc/putex.d/pipe.toml"]);
    standby.exec(&[
        "ln",
        "-s",
        "/srv/putex/elsewhere.toml",
        "/etc/putex.d/zz.toml",
    ]);
    standby.write_file(
        "/srv/putex/elsewhere.toml",
        "unit = \"elsewhere.service\"\n",
    );
    standby.exec(&["systemctl", "stop", DAEMON]);
    standby.share().hang();
    let began = now();
    standby.exec(&["systemctl", "daemon-reload"]);
    assert!(
        since(began) < GENERATED,
        "daemon-reload took {:?}",
        since(began)
    );
    let refused = standby.output(&["systemctl", "start", "database.service"]);
    assert!(!refused.status.success(), "{}", said(&refused));
    fixture.assert_alone(&first);
    standby.share().go_on();
}

const KEY: &str = "/etc/putex/seal.key";
/// T is 9 s.
const LONG: &str =
    "unit = \"database.service\"\nrenew-interval = \"3s\"\nfailures = 3\nconfirmations = 1\n";

#[test]
fn a_file_that_is_missing_at_a_restart_may_be_put_back_while_the_lease_lasts() {
    let plan = Plan::hosts("lostkey", 2, Lockstore::Nats).service("db", LONG);
    let Some(fixture) = plan.prepare() else {
        return;
    };
    for host in &fixture.hosts {
        host.sh(&format!(
            "umask 077; echo 'a key that is the same on all of the hosts' >{KEY}"
        ));
        host.sh(&format!(
            "sed -i '/^.store.$/a seal-key = \"{KEY}\"' {HOST_FILE}"
        ));
    }
    let begun = now();
    fixture.start_putexd();
    let first = fixture.wait_for_start(begun, TAKE_OVER * 2);
    let (holder, other) = (fixture.host_of(&first), fixture.other(&first));
    wait_for_standby(other);
    let restart_without = || {
        holder.exec(&["mv", KEY, "/root/"]);
        holder.exec(&["systemctl", "restart", "--no-block", DAEMON]);
        wait_for_line(
            holder,
            &[
                "mend /etc/putex/putexd.toml:",
                " within ",
                KEY,
                "the units of db are stopped",
            ],
        );
    };
    fixture.uninterrupted(&first, WAIT * 3, "a key that is put back", || {
        restart_without();
        holder.exec(&["mv", "/root/seal.key", KEY]);
        wait_for_words(SOON, holder, &["db ", "active"]);
    });

    let asked = now();
    restart_without();
    let second =
        fixture.wait_for_takeover(&first, asked, TAKE_OVER * 2, "a key that is not put back");
    assert_eq!(second.host, other.name);
    wait_until(SOON, "putexd ends", || {
        holder.property(DAEMON, "ExecMainStatus") == "78"
    });
    holder.exec(&["mv", "/root/seal.key", KEY]);
    holder.exec(&["systemctl", "start", DAEMON]);
    wait_for_standby(holder);
    fixture.assert_no_violation();
}
