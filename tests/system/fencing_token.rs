//! The fencing token protects data where no supervisor can: a database accepts no token that is smaller than the largest it
//! has seen, so that a copy that thaws beside its successor can write nothing more.

use std::time::Duration;

use rustix::process::Signal;

use crate::{
    cluster::Host,
    command::{kill, now, wait_until},
    fixture::{Fixture, Plan, SOON, TAKE_OVER, wait_for_standby},
    lockstore::Lockstore,
    server::Server,
    watch::Event,
};

mod nats {
    crate::lockstore::on_store!(
        a_database_rejects_what_an_old_holder_writes,
        Nats,
        "postgres"
    );
}
mod directory {
    crate::lockstore::on_store!(
        a_database_rejects_what_an_old_holder_writes,
        Directory,
        "postgres"
    );
}

/// Settings of the oracle: the database to write to. The address in it is [`crate::server::DATABASE_ADDRESS`].
const WRITES: &[&str] = &["\"ORACLE_DATABASE=host=10.77.0.6 user=postgres dbname=postgres\""];

/// All that a database needs: one row, and one condition. A writer that changes the row holds its lock until its line is in
/// the log, so that the numbers of accepted lines are in the order of the writes. `synchronous_commit` is off because no power
/// is lost here, so nobody needs to wait for the disk.
const SCHEMA: &str = "
ALTER DATABASE postgres SET synchronous_commit = off;
CREATE TABLE newest (token bigint NOT NULL);
INSERT INTO newest VALUES (0);
CREATE TABLE attempts (number bigserial, host text NOT NULL, token bigint NOT NULL, accepted boolean NOT NULL);
CREATE FUNCTION put(writer text, mine bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE fresh boolean;
BEGIN
    UPDATE newest SET token = mine WHERE token <= mine;
    fresh := FOUND;
    INSERT INTO attempts (host, token, accepted) VALUES (writer, mine, fresh);
END $$;";

fn a_database_rejects_what_an_old_holder_writes(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("fencing", 2, store).oracle(WRITES).run() else {
        return;
    };
    let database = fixture.database_beside();
    database.sql(SCHEMA);
    wait_accepted(&database, &first);
    let mut holders = vec![first];

    // In the milliseconds until the guard has killed it, a copy may write or not. Where nothing can kill it, it does
    // write.
    for guarded in [true, false] {
        let old = &holders[holders.len() - 1];
        holders.push(thaw_beside_successor(&fixture, &database, old, guarded));
    }

    // The store has lost its tokens, but the hosts still know the highest one.
    let wiped = now();
    fixture.locks.make_anew(&fixture);
    holders.push(next_holder(&fixture, &database, &holders, wiped));
    // Neither the store nor the hosts know a token, and only the clocks keep tokens growing. The holder is stopped
    // last, so that no other host takes over from it.
    let holder = &holders[holders.len() - 1];
    for host in [fixture.other(holder), fixture.host_of(holder)] {
        host.exec(&["systemctl", "stop", "putexd.service"]);
        host.sh("rm -rf /var/lib/putex/*");
    }
    let wiped = now();
    fixture.locks.make_anew(&fixture);
    for host in &fixture.hosts {
        host.exec(&["systemctl", "start", "putexd.service"]);
    }
    holders.push(next_holder(&fixture, &database, &holders, wiped));

    let tokens: Vec<String> = holders
        .iter()
        .map(|holder| token_of(holder).to_string())
        .collect();
    assert!(
        holders.is_sorted_by(|one, next| one.token < next.token),
        "the token grows: {tokens:?}"
    );
    let accepted = database
        .sql("SELECT token FROM attempts WHERE accepted GROUP BY token ORDER BY min(number)");
    assert_eq!(
        accepted.lines().collect::<Vec<_>>(),
        tokens,
        "each holder wrote, in their order"
    );
    let seen =
        "SELECT token, max(token) OVER (ORDER BY number) AS newest FROM attempts WHERE accepted";
    let late = database.sql(&format!(
        "SELECT count(*) FROM ({seen}) AS seen WHERE token < newest"
    ));
    assert_eq!(late, "0", "a smaller token was accepted after a larger one");
    println!(
        "{store:?}: {} holders, {} writes accepted, {} rejected",
        holders.len(),
        count(&database, "accepted"),
        count(&database, "NOT accepted")
    );
}

/// Freezes the old holder's host until another one has written, and thaws it beside the new one. Returns the new
/// holder.
fn thaw_beside_successor(
    fixture: &Fixture,
    database: &Server,
    old: &Event,
    guarded: bool,
) -> Event {
    let host = fixture.host_of(old);
    let rejected = || {
        count(
            database,
            &format!("token = {} AND NOT accepted", token_of(old)),
        )
    };
    let since = now();
    if !guarded {
        kill(Signal::STOP, &host.those_who_stop_units());
    }
    host.freeze();
    let new = fixture
        .oracle
        .wait_for_start_on(&[fixture.other(old)], since, TAKE_OVER);
    wait_accepted(database, &new);
    host.thaw();
    if !guarded {
        wait_until(SOON, "the old holder tries to write", || rejected() > 0);
        kill(Signal::CONT, &host.those_who_stop_units());
    }
    fixture.oracle.wait_for_end(old, SOON);
    println!(
        "{}, guarded = {guarded}: {} writes rejected after the thaw",
        old.host,
        rejected()
    );
    wait_for_standby(host);
    fixture.assert_alone(&new);
    assert_eq!(
        token(fixture.host_of(&new)),
        Ok(token_of(&new)),
        "the operator is told the same"
    );
    assert_eq!(
        token(host),
        Err(Some(1)),
        "and nothing where the lease is over"
    );
    new
}

/// Waits for the copy that starts after the store was wiped, and for its first accepted write.
fn next_holder(fixture: &Fixture, database: &Server, holders: &[Event], since: Duration) -> Event {
    let next = fixture.wait_for_start(since, TAKE_OVER * 2);
    println!(
        "store wiped: {} started {:?} after it",
        next.host,
        next.after(since)
    );
    fixture
        .oracle
        .wait_for_end(&holders[holders.len() - 1], SOON);
    wait_accepted(database, &next);
    next
}

fn token_of(holder: &Event) -> u64 {
    holder.token.expect("the unit is told")
}

/// What `putexctl token` prints, or its exit status when it prints nothing on standard output.
fn token(host: &Host) -> Result<u64, Option<i32>> {
    // Any user may ask for the token, so an unprivileged one does.
    let output = host.output(&[
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "putexctl",
        "token",
        "db",
    ]);
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout)
            .trim()
            .parse()
            .expect("a number and nothing else"));
    }
    assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    Err(output.status.code())
}

fn count(database: &Server, condition: &str) -> u64 {
    database
        .sql(&format!("SELECT count(*) FROM attempts WHERE {condition}"))
        .parse()
        .expect("a number")
}

fn wait_accepted(database: &Server, holder: &Event) {
    let condition = format!("token = {} AND accepted", token_of(holder));
    wait_until(
        SOON,
        &format!("a write of {} is accepted", holder.id),
        || count(database, &condition) > 0,
    );
}
