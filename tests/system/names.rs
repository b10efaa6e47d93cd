//! The name of a service and the store of its lock, changed host by host: the procedures of putexd-operations(7), and
//! what happens on a host where such a procedure is left half done.

use std::time::Duration;

use crate::{
    cluster::Host,
    command::{holds_for, now, run},
    environment::utf8,
    fixture::{
        Fixture, Plan, SERVICE, SOON, TAKE_OVER, WAIT, wait_for_standby, wait_for_status,
        wait_for_words,
    },
    lockstore::{Lockstore, on_each_store},
    watch::Event,
};

on_each_store! {
    ; nats: a_service_is_renamed_host_by_host, a_unit_moves_from_one_service_to_another
    ; directory: a_service_is_renamed_host_by_host, a_store_is_moved_host_by_host, a_store_goes_back_behind_an_adoption
}

/// Long enough for a host that contends to have started its copy.
const TEMPTED: Duration = WAIT.saturating_mul(2);

/// The reload fails where a file is broken, which is not what these tests are about.
fn reload(host: &Host) {
    host.output(&["systemctl", "reload", "putexd.service"]);
}

#[track_caller]
fn nobody_else_starts(fixture: &Fixture, what: &str) {
    let starts = fixture.oracle.starts();
    holds_for(TEMPTED, what, || fixture.oracle.starts() == starts);
    fixture.assert_no_violation();
}

fn rename(host: &Host, from: &str, to: &str) {
    host.exec(&[
        "mv",
        &format!("/etc/putex.d/{from}.toml"),
        &format!("/etc/putex.d/{to}.toml"),
    ]);
    reload(host);
}

fn a_service_is_renamed_host_by_host(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("rename", 2, store).run() else {
        return;
    };
    let (holder, other) = (fixture.host_of(&first), fixture.other(&first));

    // Under another name the service has another key, and so another lock.
    rename(other, "db", "ctl");
    wait_for_words(SOON, other, &["ctl ", "does not contend", "key = \"db\""]);
    nobody_else_starts(&fixture, "a host with another key waits");

    // An operator confirms the new name. The holder under the old name releases the lock first.
    let asked = now();
    other.exec(&["putexctl", "adopt", "ctl"]);
    let second = fixture.wait_for_takeover(&first, asked, TAKE_OVER, "adopted under another key");
    wait_for_words(SOON, holder, &["does not contend", "key = \"ctl\""]);
    rename(holder, "db", "ctl");
    wait_for_status(holder, |status| status.contains("ctl standby (h"));

    // A host that was left behind, and has lost its memory, is refused as well.
    holder.exec(&["systemctl", "stop", "putexd.service"]);
    holder.sh("rm -rf /var/lib/putex/*; mv /etc/putex.d/ctl.toml /etc/putex.d/db.toml");
    holder.exec(&["systemctl", "start", "putexd.service"]);
    wait_for_words(SOON, holder, &["does not contend", "key = \"ctl\""]);
    // It is refused even when nobody holds the lock.
    other.exec(&["systemctl", "stop", "putexd.service"]);
    fixture.oracle.wait_for_end(&second, SOON);
    nobody_else_starts(&fixture, "the old name stays refused");
    let asked = now();
    holder.exec(&["putexctl", "adopt", "db"]);
    // No host saw who released the lock under the other name, so the wait for an unknown holder applies (K5).
    let third =
        fixture.wait_for_takeover(&second, asked, TAKE_OVER, "adopted while nobody holds it");
    other.exec(&["systemctl", "start", "putexd.service"]);
    wait_for_words(SOON, other, &["does not contend", "key = \"db\""]);
    rename(other, "ctl", "db");
    wait_for_standby(other);
    // A file with another name and the former key is the same lock.
    other.sh("echo 'key = \"db\"' >> /etc/putex.d/db.toml");
    rename(other, "db", "ctl");
    wait_for_status(other, |status| status.contains("ctl standby (h"));
    fixture.assert_alone(&third);
    fixture.assert_no_violation();
}

/// A unit that does not run the oracle.
const FRONT: &str = "[Service]\nExecStart=/usr/bin/sleep infinity\n";

fn a_unit_moves_from_one_service_to_another(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("bound", 2, store).run() else {
        return;
    };
    let (holder, other) = (fixture.host_of(&first), fixture.other(&first));
    let front = SERVICE.replace("database.service", "front.service");
    let with_database = format!("{front}bound-units = [\"database.service\"]\n");
    for host in &fixture.hosts {
        host.write_file("/etc/systemd/system/front.service", FRONT);
    }

    // On one host the unit belongs to another service, which has another key, and so another lock.
    other.sh("rm /etc/putex.d/db.toml");
    other.write_file("/etc/putex.d/front.toml", &with_database);
    reload(other);
    let held = "database.service is run under the key \"db\" in this store";
    wait_for_words(
        SOON,
        other,
        &[
            "front ",
            "does not contend",
            held,
            "take database.service out of bound-units",
        ],
    );
    assert!(
        !other
            .output(&["systemctl", "start", "database.service"])
            .status
            .success()
    );
    nobody_else_starts(
        &fixture,
        "a host that has the unit under another service waits",
    );
    assert_ne!(other.property("front.service", "ActiveState"), "active");

    // An operator confirms that. The host that runs the unit under the old service releases that one first.
    other.exec(&["putexctl", "adopt", "front"]);
    wait_for_words(
        SOON,
        holder,
        &[
            "does not contend",
            "database.service is run under the key \"front\"",
        ],
    );
    fixture.oracle.wait_for_end(&first, SOON);
    wait_for_status(other, |status| status.contains("front active"));
    let asked = now();
    other.exec(&["systemctl", "start", "database.service"]);
    let second = fixture.wait_for_start(asked, SOON);
    assert!(
        !holder
            .output(&["systemctl", "start", "database.service"])
            .status
            .success()
    );
    fixture.assert_alone(&second);

    // The unit goes back, while the service that it leaves runs on: the record of that service says that it runs the
    // others alone.
    other.write_file("/etc/putex.d/front.toml", &front);
    reload(other);
    fixture.oracle.wait_for_end(&second, SOON);
    wait_for_status(other, |status| status.contains("front active"));
    wait_for_words(
        SOON,
        holder,
        &[
            "does not contend",
            "database.service is run under the key \"front\"",
        ],
    );
    nobody_else_starts(
        &fixture,
        "the unit's entry still names the service that has let it go",
    );
    let asked = now();
    holder.exec(&["putexctl", "adopt", "db"]);
    let third = fixture.wait_for_start(asked, TAKE_OVER);
    assert_eq!(third.host, holder.name);
    assert_eq!(other.property("front.service", "ActiveState"), "active");
    fixture.assert_alone(&third);
    fixture.assert_no_violation();
}

/// A copy of the store from before the adoption says that the former key is right. A host that remembers the adoption
/// goes by its own memory.
fn a_store_goes_back_behind_an_adoption(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("goback", 2, store).run() else {
        return;
    };
    let (holder, other) = (fixture.host_of(&first), fixture.other(&first));
    let folder = fixture.putex();
    let copy = folder.with_extension("copy");
    run("cp", &["-a", utf8(&folder), utf8(&copy)]);
    rename(other, "db", "ctl");
    wait_for_words(SOON, other, &["ctl ", "does not contend"]);
    let asked = now();
    other.exec(&["putexctl", "adopt", "ctl"]);
    let second = fixture.wait_for_takeover(&first, asked, TAKE_OVER, "adopted under another key");
    wait_for_words(
        SOON,
        holder,
        &["does not contend", "run under the key \"ctl\""],
    );

    for host in &fixture.hosts {
        host.share().hang();
    }
    fixture.empty_share();
    run(
        "cp",
        &["-a", "--no-target-directory", utf8(&copy), utf8(&folder)],
    );
    for host in &fixture.hosts {
        host.share().go_on();
    }
    fixture.oracle.wait_for_end(&second, SOON);
    wait_for_words(
        SOON,
        holder,
        &["does not contend", "which was run under the key \"ctl\""],
    );
    wait_for_words(
        SOON,
        other,
        &["does not contend", "run under the key \"db\""],
    );
    nobody_else_starts(
        &fixture,
        "nobody starts before an operator has said under which key",
    );
    let asked = now();
    other.exec(&["putexctl", "adopt", "ctl"]);
    let third = fixture.wait_for_start(asked, TAKE_OVER);
    assert_eq!(third.host, other.name);
    fixture.assert_alone(&third);
    fixture.assert_no_violation();
}

fn a_store_is_moved_host_by_host(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("move", 2, store).run() else {
        return;
    };
    let (holder, other) = (fixture.host_of(&first), fixture.other(&first));
    let moved = |host: &Host| {
        host.sh("sed -i 's|^path = .*|path = \"/srv/shared/elsewhere\"|' /etc/putex/putexd.toml");
    };

    // One host uses another store, in which nobody can see that the unit runs: a copy, which looks the same from inside.
    moved(other);
    // What the holder writes and replaces meanwhile may be missing.
    other.sh(
        "cp -a /srv/putex /srv/shared/elsewhere || test -e /srv/shared/elsewhere/lock-db/identity",
    );
    other.exec(&["systemctl", "restart", "putexd.service"]);
    wait_for_words(
        SOON,
        other,
        &[
            "does not contend",
            "/srv/shared/elsewhere",
            "putexctl adopt db",
        ],
    );
    nobody_else_starts(&fixture, "a host with another store waits");
    fixture.assert_alone(&first);
    procedures(&fixture, &first, holder, other, moved);
}

/// What a host remembers of its lock.
const MEMORY: &str = "/var/lib/putex/db.json";

/// The procedures of the manual, step by step.
fn procedures(
    fixture: &Fixture,
    first: &Event,
    holder: &Host,
    other: &Host,
    moved: impl Fn(&Host),
) {
    // Moving the store: stop everywhere, change everywhere, start everywhere, adopt everywhere.
    for host in &fixture.hosts {
        host.exec(&["systemctl", "stop", "putexd.service"]);
        assert_eq!(host.property("database.service", "ActiveState"), "inactive");
    }
    fixture.oracle.wait_for_end(first, SOON);
    moved(holder);
    holder.exec(&["putexctl", "init"]);
    // Both hosts know where the lock was in the former store, as hosts do that have held it once.
    other.write_file(MEMORY, &holder.exec(&["cat", MEMORY]));
    for host in &fixture.hosts {
        host.exec(&["putexd", "--check"]);
        host.exec(&["systemctl", "start", "putexd.service"]);
        wait_for_words(SOON, host, &["does not contend"]);
    }
    nobody_else_starts(fixture, "nobody starts before an operator has said so");
    let asked = now();
    for host in &fixture.hosts {
        host.exec(&["putexctl", "adopt", "db"]);
    }
    let second = fixture.wait_for_start(asked, TAKE_OVER);
    let standby = fixture.other(&second);
    wait_for_standby(standby);
    // A move that is finished is not told of as a loss of the store when putexd is started the next time.
    standby.exec(&["systemctl", "restart", "putexd.service"]);
    wait_for_standby(standby);
    let printed = standby.exec(&["putexctl", "status", "db"]);
    assert!(!printed.contains("made anew"), "{printed}");

    // Longer timings: first `longest-hold` on all hosts, then the timings.
    let write = |text: &str| {
        for host in &fixture.hosts {
            host.write_file("/etc/putex.d/db.toml", text);
            host.exec(&["putexd", "--check"]);
            reload(host);
        }
    };
    fixture.uninterrupted(&second, WAIT, "changed timings", || {
        write(&format!("{SERVICE}longest-hold = \"20s\"\n"));
        write(&format!(
            "{}longest-hold = \"20s\"\n",
            SERVICE.replace("\"1s\"", "\"2s\"")
        ));
        write(&SERVICE.replace("\"1s\"", "\"2s\""));
    });

    // Removing the service: first on the standby, so that it does not take over, then on the holder.
    let asked = now();
    for host in [fixture.other(&second), fixture.host_of(&second)] {
        host.exec(&["rm", "/etc/putex.d/db.toml"]);
        reload(host);
        host.exec(&["systemctl", "daemon-reload"]);
        wait_for_status(host, |status| !status.contains("db"));
    }
    let end = fixture.oracle.wait_for_end(&second, SOON);
    println!(
        "removed: the unit was gone {:?} after the first reload",
        end.after(asked)
    );
    nobody_else_starts(fixture, "a removed service");

    // The service comes back when its file is written again.
    write(SERVICE);
    fixture.wait_for_start(asked, TAKE_OVER);
    fixture.assert_no_violation();
}
