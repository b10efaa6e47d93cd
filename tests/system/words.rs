//! What a person reads who has stopped, moved or lost a service: why the service waits, for how long, and what to do.

use std::time::Duration;

use crate::{
    command::{holds_for, now, said, wait_until},
    fixture::{
        HAND_OVER, Plan, SERVICE, SOON, TAKE_OVER, UNIT, WAIT, wait_for_line, wait_for_standby,
        wait_for_status, wait_for_words,
    },
    lockstore::Lockstore,
};

/// 2R of [`SERVICE`], and the time of a start on a busy machine.
const ONCE: Duration = Duration::from_secs(6);
/// A unit whose start always fails.
const BAD: &str = "[Service]\nType=notify\nExecStart=false\n";
const BAD_SERVICE: &str =
    "unit = \"bad.service\"\nrenew-interval = \"1s\"\nfailures = 3\nconfirmations = 1\n";

#[test]
fn what_an_operator_stops_comes_back_after_one_wait_each_time() {
    let plan = Plan::hosts("once", 1, Lockstore::Nats)
        .unit("bad", BAD)
        .service("bad", BAD_SERVICE);
    let Some((fixture, mut running)) = plan.run() else {
        return;
    };
    let host = fixture.host_of(&running);
    for round in 0..4 {
        // The unit runs for longer than T, because one that ends sooner counts as failed.
        holds_for(WAIT, "the unit runs", || {
            fixture.oracle.live() == [running.clone()]
        });
        let asked = now();
        // A putexd that has run for longer refuses it: no other host has ever reported.
        if round > 0 {
            host.exec(&["systemctl", "stop", UNIT]);
            wait_for_line(
                host,
                &["db: database.service was stopped", "putexctl stop db"],
            );
        } else {
            let printed = said(&host.output(&["putexctl", "step-down", "--no-wait", "db"]));
            assert!(printed.contains("db: begun"), "{printed}");
        }
        let text = wait_for_words(TAKE_OVER, host, &["db ", "standby", "tries again in"]);
        println!("{text}");
        running = fixture.wait_for_start(asked, SOON);
        println!(
            "round {round}: back {:?} after it was asked for",
            running.after(asked)
        );
        assert!(
            running.after(asked) < ONCE,
            "round {round}: {:?}",
            running.after(asked)
        );
    }
    // A service that fails says so and why, and waits longer each time.
    wait_for_words(
        TAKE_OVER,
        host,
        &[
            "bad ",
            "tries again in",
            "at once after \"systemctl reload putexd\"",
            "in a row",
            "the start failed",
        ],
    );
}

#[test]
fn whoever_does_not_hold_the_lock_says_who_does() {
    let Some((fixture, first)) = Plan::hosts("whose", 2, Lockstore::Nats)
        .oracle(&["ORACLE_STOP_DELAY_MS=4000"])
        .run()
    else {
        return;
    };
    let (holder, standby) = (fixture.host_of(&first), fixture.other(&first));
    wait_for_words(
        TAKE_OVER,
        standby,
        &[
            &format!("{} holds the lock and last renewed", holder.name),
            "it may be taken in",
        ],
    );
    // When the unit is started by hand where it must not run, the journal says which command to ask.
    assert!(
        !standby
            .output(&["systemctl", "start", UNIT])
            .status
            .success()
    );
    wait_for_line(standby, &["systemd[1]", "putexctl status db"]);

    // The reader of the table may close the pipe early.
    let closed = "mkfifo /tmp/p; (exec 4</tmp/p) & exec 3>/tmp/p; wait; putexctl status >&3 2>/tmp/error; echo $?; \
                  cat /tmp/error";
    assert_eq!(standby.exec(&["sh", "-c", closed]).trim(), "141");

    // While a stop is slow, the status says what is waited for.
    // Until the standby has read a report of the holder it only says who that is.
    let since = now();
    let begun = format!("{} is asked for it", first.host);
    wait_until(SOON, "the standby has the holder step down", || {
        said(&standby.output(&["putexctl", "step-down", "--no-wait", "db"])).contains(&begun)
    });
    let words = [
        "releasing",
        "waits until the unit is proven dead",
        "step-down by root@",
        "is not proven dead yet",
    ];
    println!("{}", wait_for_words(TAKE_OVER, holder, &words));
    let second = fixture.wait_for_takeover(
        &first,
        since,
        TAKE_OVER,
        "step-down of a unit that stops slowly",
    );

    // After the loss of a host, the other one says why it waits.
    wait_for_standby(holder);
    let lost = fixture.host_of(&second).power_off_hard();
    let third = fixture.wait_for_takeover(&second, lost, TAKE_OVER, "power loss");
    wait_for_line(
        fixture.host_of(&third),
        &["db: confirming", "has not renewed for", "starts in"],
    );
}

/// Neither order runs anything on the standby: there is nothing to stop, and the start is refused.
#[test]
fn an_operators_start_or_stop_where_nothing_runs_is_no_alarm() {
    let Some((fixture, first)) = Plan::hosts("jobs", 2, Lockstore::Nats).run() else {
        return;
    };
    let standby = fixture.other(&first);
    wait_for_standby(standby);
    let often = |verb: &str| {
        standby.output(&[
            "sh",
            "-c",
            &format!("for i in $(seq 200); do systemctl {verb} {UNIT}; done"),
        ])
    };
    assert!(often("stop").status.success());
    let printed = said(&often("start"));
    assert!(
        printed.contains("dependency job for database.service failed")
            && !printed.contains("canceled"),
        "{printed}"
    );
    wait_for_standby(standby);
    let journal = standby.journal(&["putexd.service"]);
    assert!(!journal.contains("runs without the lock"), "{journal}");
    fixture.assert_alone(&first);
}

/// The procedure of putexd-operations(7), step by step.
#[test]
fn a_service_is_stopped_everywhere_and_started_again() {
    let Some((fixture, first)) = Plan::hosts("nowhere", 2, Lockstore::Nats).run() else {
        return;
    };
    let (holder, standby) = (fixture.host_of(&first), fixture.other(&first));
    let (on, off) = ("/etc/putex.d/db.toml", "/etc/putex.d/db.toml.stopped");
    for host in [standby, holder] {
        host.exec(&["mv", on, off]);
        host.exec(&["systemctl", "reload", "putexd.service"]);
        wait_for_status(host, |status| !status.contains("db"));
    }
    fixture.oracle.wait_for_end(&first, HAND_OVER);
    assert_ne!(standby.property(UNIT, "ActiveState"), "active");
    let starts = fixture.oracle.starts();
    holds_for(WAIT * 2, "nobody runs it", || {
        fixture.oracle.starts() == starts && fixture.oracle.live().is_empty()
    });
    let asked = now();
    for host in [standby, holder] {
        host.exec(&["mv", off, on]);
        host.exec(&["systemctl", "reload", "putexd.service"]);
    }
    fixture.wait_for_start(asked, TAKE_OVER);
    assert_eq!(holder.read_file(on).as_deref(), Some(SERVICE));
    fixture.assert_no_violation();
}

/// The holder cannot do what it is asked for, so that the other host writes the word itself, and stops what it has started meanwhile.
#[test]
fn a_stop_that_is_said_when_the_holder_has_just_died_is_no_less_a_stop() {
    let Some((fixture, first)) = Plan::hosts("deadstop", 2, Lockstore::Nats).run() else {
        return;
    };
    let other = fixture.other(&first);
    wait_for_words(
        TAKE_OVER,
        other,
        &[
            &format!("{} holds the lock and last renewed", first.host),
            "it may be taken in",
        ],
    );
    fixture.host_of(&first).power_off_hard();
    let stopped = other.output(&["putexctl", "stop", "db"]);
    assert!(
        stopped.status.success() && said(&stopped).contains("stopped everywhere after "),
        "{}",
        said(&stopped)
    );
    holds_for(WAIT * 2, "nobody runs it", || {
        fixture.oracle.live().is_empty()
    });
    fixture.assert_no_violation();
}

/// A host that stood still says so, and does not report that its elections stand still.
#[test]
fn a_thaw_accuses_no_election() {
    let Some((fixture, first)) = Plan::hosts("accuse", 2, Lockstore::Nats).run() else {
        return;
    };
    let host = fixture.host_of(&first);
    let since = now();
    host.freeze();
    // The freeze is longer than the limit after which a loop counts as standing still.
    holds_for(Duration::from_secs(8), "a frozen copy does not end", || {
        fixture.oracle.live().contains(&first)
    });
    host.thaw();
    fixture
        .oracle
        .wait_for_start_on(&fixture.others(&first), since, TAKE_OVER);
    wait_for_standby(host);
    assert!(!host.journal(&["putexd.service"]).contains("stands still"));
    wait_for_line(host, &["this host, or putexd alone, stood still for"]);
}
