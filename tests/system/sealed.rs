//! Records are sealed host by host, by the procedure of putexd-operations(7). Then somebody who may write to the store but has
//! no key writes in the holder's name that its unit has ended.

use std::time::Duration;

use futures_util::StreamExt as _;
use putexd::{
    store::{Attempt, Snapshot, Store, StoreError, WriteOutcome},
    types::{Key, Revision, Value, WriteId},
};

use crate::{
    cluster::Host,
    command::{now, since, wait_for},
    fixture::{Fixture, HAND_OVER, Plan, SOON, TAKE_OVER, wait_for_line, wait_for_standby},
    hostile::{put, with_store},
    lockstore::{Lockstore, on_each_store},
    server::ADDRESS,
};

on_each_store! {
    ; nats: a_forged_release_starts_no_second_copy_where_records_are_sealed,
            a_stop_that_the_store_has_lost_is_kept
    ; directory: a_stop_that_the_store_has_lost_is_kept
}

/// Somebody who may write to the store writes an old record over that of a service which an operator has stopped.
fn a_stop_that_the_store_has_lost_is_kept(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("lost-stop", 2, store).run() else {
        return;
    };
    let (holder, other) = (fixture.host_of(&first), fixture.other(&first));
    let key = Key::new("db").expect("a key");
    let old = with_store(&fixture, async |store: &dyn Store| {
        loop {
            if let Ok(Snapshot {
                entry: Some(entry), ..
            }) = store.read(&key, None).await
            {
                return entry.value.expect("the lock is held");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    holder.exec(&["putexctl", "stop", "db", "--reason", "restored by hand"]);
    fixture.oracle.wait_for_end(&first, SOON);
    for host in [holder, other] {
        wait_for_words(
            host,
            "putexctl status db",
            &["stopped everywhere", "restored by hand"],
        );
    }
    let lost = now();
    put(&fixture, &key, &old);
    for host in [holder, other] {
        wait_for_line(
            host,
            &["the store has lost an operator's stop", "restored by hand"],
        );
    }
    other.exec(&["systemctl", "restart", "putexd.service"]);
    // Without the memory it takes a lease and the turns.
    while since(lost) < TAKE_OVER {
        assert_eq!(
            fixture
                .oracle
                .starts()
                .into_iter()
                .find(|start| start.at > lost),
            None
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    wait_for_words(
        other,
        "putexctl status db",
        &["stopped everywhere", "putexctl start"],
    );
    // A host that has not seen the stop runs it, and knows that the other one would not.
    other.exec(&[
        "sh",
        "-c",
        "systemctl stop putexd && rm /var/lib/putex/db.json && systemctl start putexd",
    ]);
    let second = fixture.wait_for_one_active(TAKE_OVER);
    assert_eq!(second.host, other.name);
    wait_for_words(
        other,
        "putexctl status db",
        &["would not take it", "stopped everywhere"],
    );
    holder.exec(&["putexctl", "start", "db"]);
    wait_for_standby(holder);
    let standby = format!("Standby: {}", holder.name);
    wait_for_words(other, "putexctl status db", &[&standby]);
    wait_for_line(holder, &["the alarm stop-lost is over"]);
    fixture.assert_no_violation();
}

/// Another login of the account sees each write with the inbox for its answer, deletes the lock, and answers in the server's place.
#[test]
fn forged_answers_keep_no_unit_running() {
    let Some((fixture, first)) = Plan::hosts("forged", 2, Lockstore::Nats).run() else {
        return;
    };
    wait_for_standby(fixture.other(&first));
    let url = format!("nats://{ADDRESS}:4222");
    let forged = fixture.ask_on_the_switch(async || {
        let liar = async_nats::connect(url).await.expect("it logs in");
        let mut writes = liar
            .subscribe("$KV.locks.db")
            .await
            .expect("it may subscribe");
        liar.flush().await.expect("the server answers");
        liar.publish("$KV.locks.db", "".into())
            .await
            .expect("it may delete");
        let end = tokio::time::Instant::now() + Duration::from_secs(12);
        let mut forged = 0_u32;
        while let Ok(Some(write)) = tokio::time::timeout_at(end, writes.next()).await {
            if let (Some(inbox), true) = (write.reply, write.headers.is_some()) {
                forged += 1;
                let ack = format!(
                    "{{\"stream\":\"KV_locks\",\"seq\":{}}}",
                    u64::from(forged) + (1 << 45)
                );
                liar.publish(inbox, ack.into())
                    .await
                    .expect("it may answer");
            }
        }
        forged
    });
    assert!(forged > 0, "nobody wrote");
    let holder = fixture.host_of(&first);
    wait_for_line(holder, &["two different answers came to one request"]);
    // Whether the second answer or the other host's record comes first is the server's choice.
    wait_for_line(holder, &["lapsing (was active)"]);
    fixture.assert_no_violation();
    fixture.wait_for_one_active(TAKE_OVER);
}

pub const SEAL: &str = "umask 077; echo 'a key that is the same on all of the hosts' > /etc/putex/seal.key
    sed -i '/^.store.$/a seal-key = \"/etc/putex/seal.key\"' /etc/putex/putexd.toml; putexd --check";

fn a_forged_release_starts_no_second_copy_where_records_are_sealed(store: Lockstore) {
    let Some((fixture, first)) = Plan::hosts("sealed", 2, store).run() else {
        return;
    };
    let (holder, other) = (fixture.host_of(&first), fixture.other(&first));

    fixture.uninterrupted(
        &first,
        Duration::from_secs(2),
        "a standby gets the key",
        || {
            fixture.hosts.iter().for_each(|host| drop(host.sh(SEAL)));
            other.exec(&["systemctl", "restart", "putexd.service"]);
            wait_for_words(
                other,
                "putexctl status db",
                &["does not contend", "no valid seal"],
            );
            let remedy = format!("compare the file of seal-key with that of {}", holder.name);
            wait_for_words(other, "putexctl status", &[&remedy]);
            other.exec(&["putexctl", "adopt", "db"]);
            wait_for_standby(other);
        },
    );
    let asked = now();
    holder.exec(&["systemctl", "stop", "putexd.service"]);
    let second = fixture.wait_for_takeover(
        &first,
        asked,
        TAKE_OVER,
        "the last host without the key is stopped",
    );
    holder.exec(&["systemctl", "start", "putexd.service"]);
    wait_for_standby(holder);
    for host in [holder, other] {
        let said = wait_for_words(
            host,
            "putexctl doctor",
            // No login has its own rights in this server.
            &["can answer in the server's place"],
        );
        assert!(!said.contains("seals no records"), "{said}");
        wait_for_line(
            host,
            &["the store's answers can be forged", "which no seal shows"],
        );
    }

    let forged = now();
    forge_a_release(&fixture);
    // A copy starts after the forgery, but only after the other one has ended.
    let begun = wait_for(TAKE_OVER, "one host starts", || {
        fixture
            .oracle
            .starts()
            .into_iter()
            .find(|start| start.at > forged)
    });
    let end = fixture.oracle.wait_for_end(&second, SOON);
    assert!(
        end.at < begun.at,
        "the copy on {} started before the other had ended",
        begun.host
    );
    fixture.assert_no_violation();
    wait_for_line(
        fixture.other(&second),
        &["the lock's record is not believed", "no valid seal"],
    );

    let third = fixture.wait_for_one_active(TAKE_OVER);
    wait_for_standby(fixture.other(&third));
    let asked = now();
    fixture
        .host_of(&third)
        .exec(&["putexctl", "step-down", "--no-wait", "db"]);
    fixture.wait_for_takeover(
        &third,
        asked,
        HAND_OVER,
        "a release of a host that has the key",
    );
}

/// Waits until `command` on `host` prints all of `words`, and returns what it prints.
#[track_caller]
fn wait_for_words(host: &Host, command: &str, words: &[&str]) -> String {
    wait_for(
        SOON,
        &format!("{command} on {} says {words:?}", host.name),
        || {
            let text =
                String::from_utf8_lossy(&host.output(&["sh", "-c", command]).stdout).into_owned();
            words.iter().all(|word| text.contains(word)).then_some(text)
        },
    )
}

/// Writes a forged release. The holder may renew in between, so it tries until it wins.
fn forge_a_release(fixture: &Fixture) {
    let key = Key::new("db").expect("a key");
    with_store(fixture, async |store: &dyn Store| {
        for write in 1_u128.. {
            let Snapshot { incarnation, entry } = match store.read(&key, None).await {
                Err(StoreError::Unreachable(_)) => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
                found => found.expect("the store answers"),
            };
            let entry = entry.expect("the lock is held");
            let value = released(
                entry.value.expect("the lock is held"),
                entry.revision,
                write,
            );
            let attempt = Attempt {
                base: entry.revision,
                incarnation,
                write: WriteId(write),
                value,
            };
            if let WriteOutcome::Won(_) = store.compare_and_set(&key, &attempt).await {
                return;
            }
        }
    });
}

fn released(held: Value, base: Revision, write: u128) -> Value {
    let Value { mut fields, .. } = held;
    let instance = fields["instance"].clone();
    let write = WriteId(write).to_string();
    for (name, text) in [
        ("state", "proven".to_owned()),
        ("write", write),
        ("prev", format!("[{base},{instance:?}]")),
    ] {
        fields.insert(name.to_owned(), text);
    }
    Value {
        body: Vec::new(),
        fields,
    }
}
