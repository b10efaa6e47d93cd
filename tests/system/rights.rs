//! Hosts whose rights in the store are older than what hosts tell each other.

use crate::{
    command::{holds_for, now, said, wait_until},
    fixture::{Plan, TAKE_OVER, WAIT, wait_for_standby},
    lockstore::Lockstore,
};

/// NATS subjects that are granted lock by lock.
const GRANTED: &[&str] = &[
    "$JS.API.STREAM.INFO.KV_locks",
    "$JS.API.STREAM.MSG.GET.KV_locks",
    "$JS.API.CONSUMER.CREATE.KV_locks",
    "$KV.locks.db",
    "$KV.locks.putex-unit/database.service",
];

#[test]
fn without_the_rights_to_notes_services_move_as_ever_and_everybody_is_reported_once() {
    let Some(fixture) = Plan::hosts("rights", 2, Lockstore::Nats).prepare() else {
        return;
    };
    fixture.hosts[0].exec(&["putexctl", "init"]);
    fixture.locks.permit(GRANTED);
    let began = now();
    fixture.start_putexd();
    let first = fixture.wait_for_start(began, TAKE_OVER);
    let (host, other) = (fixture.host_of(&first), fixture.other(&first));
    wait_for_standby(other);

    let status = || said(&other.output(&["putexctl", "status"]));
    wait_until(TAKE_OVER, "status says what is missing", || {
        let status = status();
        status.contains("allow putexd to write putex-host/ and putex-hosts/")
            && status.contains("db")
    });
    let doctor = said(&other.output(&["putexctl", "doctor"]));
    assert!(
        doctor.contains("give putexd the rights to putex-host/ in the store"),
        "{doctor}"
    );

    host.exec(&["putexctl", "step-down", "--no-wait", "db"]);
    let second =
        fixture.wait_for_takeover(&first, began, TAKE_OVER, "step-down without the rights");
    wait_for_standby(host);
    let lost = other.power_off_hard();
    fixture.wait_for_takeover(&second, lost, TAKE_OVER, "power loss without the rights");
    holds_for(WAIT, "it stays there", || fixture.oracle.live().len() == 1);
    let journal = host.journal(&["putexd.service"]);
    for words in [
        "allow putexd to write putex-host/",
        "the history of the locks cannot be written",
    ] {
        assert_eq!(journal.matches(words).count(), 1, "{words}: {journal}");
    }
    assert!(!journal.contains("the store is lost"), "{journal}");
    fixture.assert_no_violation();
}
