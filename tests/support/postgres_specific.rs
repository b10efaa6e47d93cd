//! Tests that only apply to the store over PostgreSQL: standbys and their failures, settings that lose writes,
//! credentials, TLS, and rows that others have written.

use std::{
    fs,
    net::TcpListener,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::StreamExt;
use putexd::{
    store::{
        Creation, Entry, Link, Store, StoreError, WriteOutcome,
        files::Files,
        postgres::{PostgresSettings, PostgresStore},
        settings::Access,
    },
    types::{Key, Revision, Value},
};

use super::{
    CALL_LIMIT, attempt, base,
    capture::{Capture, PASSWORD, configured, password_in, with_public_authority},
    certificates::certificate,
    held_by, key,
    load::renewals_are_measured,
    postgres_rig::{PostgresServer, folder, give, settings},
    process::PATIENCE,
    read,
    remote::remote,
    turned_away, up, usable, within, won, works,
};

/// Selects every session that waits for a standby.
const SYNC_WAITS: &str = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'";

fn open(settings: &PostgresSettings) -> PostgresStore {
    PostgresStore::new(settings.clone(), CALL_LIMIT, Files::of_this_host())
}

/// A server with the table of the store, and a store on it.
async fn ready() -> (PostgresServer, PostgresStore) {
    let server = PostgresServer::start("");
    let store = open(&server.settings());
    made(&store).await;
    (server, store)
}

async fn made(store: &PostgresStore) {
    up(store).await;
    store.init().await.expect("the table is made");
}

/// Repeats the administrator's question until the answer fits, and returns that answer.
async fn answered(
    server: &PostgresServer,
    question: &str,
    fits: impl Fn(&[String]) -> bool,
) -> Vec<String> {
    let asking = async {
        loop {
            let answer = server.sql(question).await;
            if fits(&answer) {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(asking).await
}

/// Changes a setting of the running server, and waits until new sessions use it.
async fn alter(server: &PostgresServer, name: &str, value: &str) {
    server
        .sql(&format!("ALTER SYSTEM SET {name} = '{value}'"))
        .await;
    server.reload();
    answered(server, &format!("SHOW {name}"), |shown| shown == [value]).await;
}

/// Starts a write that no standby confirms. Returns its task, and the id of the server's process that waits.
async fn waiting_write(
    server: &PostgresServer,
    store: &PostgresStore,
    body: &str,
) -> (tokio::task::JoinHandle<WriteOutcome>, String) {
    let attempt = attempt(&read(store, &key()).await, held_by(body));
    let writer = store.clone();
    let write = tokio::spawn(async move { writer.compare_and_set(&key(), &attempt).await });
    let mut pids = answered(server, SYNC_WAITS, |pids| pids.len() == 1).await;
    (write, pids.remove(0))
}

fn unknown(outcome: WriteOutcome) -> String {
    let WriteOutcome::Unknown(why) = outcome else {
        panic!("{outcome:?}")
    };
    why.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_wait_for_the_standby_was_cancelled_is_unknown_though_it_can_be_read() {
    let server = PostgresServer::start("");
    // The store's own limit is long here, because the test is about the end of the wait at the server.
    let store = PostgresStore::new(server.settings(), PATIENCE, Files::of_this_host());
    made(&store).await;
    won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("first")),
    )
    .await;
    alter(&server, "synchronous_standby_names", "absent").await;

    for (end, body) in [
        ("pg_cancel_backend", "cancelled"),
        ("pg_terminate_backend", "terminated"),
    ] {
        let (write, pid) = waiting_write(&server, &store, body).await;
        assert_ne!(held(&store).await, body, "not to be read while it waits");
        server.sql(&format!("SELECT {end}({pid})")).await;
        unknown(within(write).await.expect("the write ends"));
        assert_eq!(held(&store).await, body);
    }
    alter(&server, "synchronous_standby_names", "").await;
    won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("last")),
    )
    .await;
}

#[tokio::test]
async fn a_write_with_a_warning_that_is_not_known_is_unknown() {
    let (server, store) = ready().await;
    won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("a")),
    )
    .await;
    server
        .sql(
            "CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE WARNING 'of another kind'; RETURN NEW; END $$;
             CREATE TRIGGER warn BEFORE UPDATE ON putex_locks FOR EACH ROW EXECUTE FUNCTION warn()",
        )
        .await;
    let why = unknown(
        store
            .compare_and_set(&key(), &attempt(&read(&store, &key()).await, held_by("b")))
            .await,
    );
    assert!(why.contains("of another kind"), "{why}");
    assert_eq!(held(&store).await, "b");
    server.sql("DROP TRIGGER warn ON putex_locks").await;
    won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("c")),
    )
    .await;
}

async fn held(store: &PostgresStore) -> String {
    let body = read(store, &key())
        .await
        .entry
        .and_then(|entry| entry.value)
        .map(|value| value.body);
    String::from_utf8(body.unwrap_or_default()).expect("a token")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_no_standby_confirms_is_unknown_within_the_limit_and_not_left_behind() {
    let (server, store) = ready().await;
    won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("first")),
    )
    .await;
    alter(&server, "synchronous_standby_names", "absent").await;
    let (write, _) = waiting_write(&server, &store, "unconfirmed").await;
    let why = unknown(within(write).await.expect("the write ends"));
    assert!(why.contains("no answer within"), "{why}");
    // The store has cancelled the statement at the server, so that the row is free for others.
    answered(&server, SYNC_WAITS, <[String]>::is_empty).await;
    assert_eq!(
        *store.link().borrow(),
        Link::default(),
        "a server that answers reads is there"
    );
    let warnings = store.examine().await.expect("an examination").warnings;
    assert!(
        warnings
            .iter()
            .any(|warning| warning.contains("none is connected")),
        "{warnings:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_waits_for_its_row_keeps_no_other_waiting() {
    let (server, store) = ready().await;
    let other = Key::new("other").expect("a key");
    won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("a")),
    )
    .await;
    let now = read(&store, &key()).await;
    let admin = server.admin().await;
    let lock_row = format!(
        "BEGIN; SELECT 1 FROM putex_locks WHERE name = '{}' FOR UPDATE",
        key()
    );
    admin
        .batch_execute(&lock_row)
        .await
        .expect("the row is locked");

    let (writer, stuck) = (store.clone(), attempt(&now, held_by("b")));
    let stuck = tokio::spawn(async move { writer.compare_and_set(&key(), &stuck).await });
    let waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    answered(&server, waits, |pids| pids.len() == 1).await;
    won(
        &store,
        &other,
        &attempt(&read(&store, &other).await, held_by("b")),
    )
    .await;
    assert_eq!(read(&store, &key()).await, now);
    let why = unknown(within(stuck).await.expect("the write ends"));
    assert!(why.contains("timeout"), "{why}");
    assert!(store.link().borrow().is_up());

    // A call that its caller gave up leaves nothing at the server either.
    let (writer, dropped) = (store.clone(), attempt(&now, held_by("c")));
    let dropped = tokio::spawn(async move { writer.compare_and_set(&key(), &dropped).await });
    answered(&server, waits, |pids| pids.len() == 1).await;
    dropped.abort();
    answered(&server, waits, <[String]>::is_empty).await;
    admin
        .batch_execute("ROLLBACK")
        .await
        .expect("the row is free");
    assert_eq!(read(&store, &key()).await, now);
    won(&store, &key(), &attempt(&now, held_by("d"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_that_cannot_be_given_keep_no_write_waiting() {
    const ROUNDS: u32 = 24;
    let server = PostgresServer::start("");
    made(&open(&server.settings())).await;
    server
        .sql("CREATE ROLE putexd LOGIN SUPERUSER; ALTER ROLE putexd SET synchronous_commit = local")
        .await;
    alter(&server, "synchronous_standby_names", "absent").await;
    let store = open(&settings(&[server.port], "user=putexd dbname=postgres"));
    up(&store).await;
    // A session that notifies keeps all others from notifying until its transaction ends.
    let other = server.admin().await;
    let other = tokio::spawn(async move {
        other
            .batch_execute("BEGIN; CREATE TABLE x (); NOTIFY y; COMMIT")
            .await
    });
    answered(&server, SYNC_WAITS, |pids| pids.len() == 1).await;
    let mut hints = store.watch().await.expect("a watch");
    for round in 0..ROUNDS {
        won(
            &store,
            &key(),
            &attempt(&read(&store, &key()).await, held_by(&format!("{round}"))),
        )
        .await;
    }
    assert!(store.link().borrow().is_up());
    alter(&server, "synchronous_standby_names", "").await;
    within(other)
        .await
        .expect("the other's transaction ends")
        .expect("it is committed");
    assert_eq!(within(hints.next()).await, Some(key()));
}

#[tokio::test]
async fn settings_that_lose_acknowledged_writes_are_refused() {
    let server = PostgresServer::start("synchronous_commit = off");
    let store = open(&server.settings());
    let (reason, error) = turned_away(&store).await;
    assert!(
        matches!(&error, StoreError::Unfit(why) if why.contains("synchronous_commit = on")),
        "{error}"
    );
    assert!(reason.contains("127.0.0.1"), "{reason}");
    // This is the remedy that the message names.
    server
        .sql("ALTER ROLE postgres SET synchronous_commit = on")
        .await;
    made(&store).await;
    works(&store).await;

    let server = PostgresServer::start("fsync = off");
    let (_, error) = turned_away(&open(&server.settings())).await;
    assert!(
        matches!(&error, StoreError::Unfit(why) if why.contains("fsync")),
        "{error}"
    );

    let server = PostgresServer::start("default_transaction_read_only = on");
    let (_, error) = turned_away(&open(&server.settings())).await;
    assert!(
        matches!(&error, StoreError::Unreachable(why) if why.contains("read-only")),
        "{error}"
    );
}

#[tokio::test]
async fn a_session_keeps_waiting_for_the_disk_when_the_server_is_set_not_to() {
    let (server, store) = ready().await;
    won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("a")),
    )
    .await;
    let before = server
        .sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'putexd'")
        .await;
    alter(&server, "synchronous_commit", "off").await;
    // A commit that does not wait for the disk would not wait for a standby either.
    alter(&server, "synchronous_standby_names", "absent").await;
    let (write, pid) = waiting_write(&server, &store, "b").await;
    assert!(
        before.contains(&pid),
        "a new session would have seen the new setting: {pid} after {before:?}"
    );
    unknown(within(write).await.expect("the write ends"));
}

#[tokio::test]
async fn a_table_that_a_crash_empties_is_refused() {
    let (server, store) = ready().await;
    server.sql("ALTER TABLE putex_locks SET UNLOGGED").await;
    let (_, error) = turned_away(&open(&server.settings())).await;
    assert!(
        matches!(&error, StoreError::Unfit(why) if why.contains("SET LOGGED")),
        "{error}"
    );
    drop(store);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_table_is_made_by_one_of_many_and_never_by_a_read() {
    let server = PostgresServer::start("");
    let stores: Vec<PostgresStore> = (0..8).map(|_| open(&server.settings())).collect();
    for store in &stores {
        up(store).await;
        let missing = store.read(&key(), None).await;
        assert!(
            matches!(&missing, Err(StoreError::Missing(why)) if why.contains("putexctl init")),
            "{missing:?}"
        );
    }
    let tasks: Vec<_> = stores
        .iter()
        .cloned()
        .map(|store| tokio::spawn(async move { store.init().await }))
        .collect();
    let mut created = 0;
    for task in tasks {
        let creation = task
            .await
            .expect("the host ends")
            .expect("it is there then");
        created += u32::from(matches!(creation, Creation { is_new: true, .. }));
    }
    assert_eq!(created, 1);
    let mut seen: Vec<_> = Vec::new();
    for store in &stores {
        seen.push(read(store, &key()).await);
        works(store).await;
    }
    assert!(
        seen.windows(2)
            .all(|pair| pair[0].incarnation == pair[1].incarnation),
        "{seen:?}"
    );
    assert!(matches!(
        stores[0].init().await,
        Ok(Creation { is_new: false, .. })
    ));
}

#[tokio::test]
async fn an_emptied_table_is_missing_and_then_another_incarnation() {
    let (server, store) = ready().await;
    won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("a")),
    )
    .await;
    let before = read(&store, &key()).await;
    server.sql("TRUNCATE putex_locks").await;
    assert!(matches!(
        store.read(&key(), None).await,
        Err(StoreError::Missing(_))
    ));
    assert!(matches!(
        store.init().await,
        Ok(Creation { is_new: true, .. })
    ));
    let after = read(&store, &key()).await;
    assert_ne!(after.incarnation, before.incarnation);
    assert_eq!(
        store
            .compare_and_set(&key(), &attempt(&before, held_by("b")))
            .await,
        WriteOutcome::Conflict
    );
    won(&store, &key(), &attempt(&after, held_by("b"))).await;

    // A row of neither incarnation, which somebody may put back, is refused, and so is one with an invalid revision.
    for odd in ["revision = -1", "incarnation = 'old'"] {
        server
            .sql(&format!(
                "UPDATE putex_locks SET {odd} WHERE name = '{}'",
                key()
            ))
            .await;
        let foreign = store.read(&key(), None).await;
        assert!(
            matches!(&foreign, Err(StoreError::Unfit(why)) if why.contains("delete the row")),
            "{odd}: {foreign:?}"
        );
    }
}

#[tokio::test]
async fn the_documented_statements_make_the_store_and_another_name_makes_another() {
    let server = PostgresServer::start("");
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/packaging/usr/share/putexd/postgres.sql"
    );
    let port = server.port.to_string();
    let options = [
        "-h",
        "127.0.0.1",
        "-p",
        &port,
        "-U",
        "postgres",
        "-v",
        "ON_ERROR_STOP=1",
        "-q",
        "-f",
        file,
    ];
    let status = Command::new("psql")
        .args(options)
        .status()
        .expect("psql runs: install the package postgresql");
    assert!(status.success());
    let store = open(&server.settings());
    works(&store).await;
    assert!(matches!(
        store.init().await,
        Ok(Creation { is_new: false, .. })
    ));

    let other = open(&PostgresSettings {
        table: "ha.order".to_owned(),
        ..server.settings()
    });
    up(&other).await;
    let error = other.init().await.expect_err("there is no such schema");
    assert!(
        matches!(&error, StoreError::Missing(why) if why.contains("create it")),
        "{error}"
    );
    server.sql("CREATE SCHEMA ha").await;
    assert!(matches!(
        other.init().await,
        Ok(Creation { is_new: true, .. })
    ));
    assert_eq!(read(&other, &key()).await.entry, None);
    works(&other).await;
}

#[tokio::test]
async fn the_rows_say_who_holds_what_and_tokens_grow_from_holder_to_holder() {
    let (server, store) = ready().await;
    let mut fencing = Vec::new();
    for body in ["h1", "h1", "", "h2"] {
        won(
            &store,
            &key(),
            &attempt(&read(&store, &key()).await, held_by(body)),
        )
        .await;
        let row = format!("FROM putex_locks WHERE name = '{}'", key());
        assert_eq!(server.sql(&format!("SELECT body {row}")).await, [body]);
        assert_eq!(
            server
                .sql(&format!(
                    "SELECT heartbeat > now() - interval '1 minute' {row}"
                ))
                .await,
            ["t"]
        );
        let token = server.sql(&format!("SELECT fencing_token {row}")).await;
        fencing.push(token[0].parse::<u64>().expect("a number"));
    }
    assert!(
        fencing[0] == fencing[1] && fencing[1] < fencing[2] && fencing[2] < fencing[3],
        "{fencing:?}"
    );
    let now = read(&store, &key()).await;
    assert_eq!(base(&now), Revision(fencing[3]));
}

#[tokio::test]
async fn rows_by_other_hands_are_read_as_they_are_and_never_mistaken() {
    let (server, store) = ready().await;
    won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("a")),
    )
    .await;
    let before = read(&store, &key()).await;
    won(&store, &key(), &attempt(&before, held_by("b"))).await;
    let set = |what: &str| format!("UPDATE putex_locks SET {what} WHERE name = '{}'", key());
    server
        .sql(&set(
            "body = 'hand', fields = '{}', revision = revision + 1",
        ))
        .await;
    let now = read(&store, &key()).await;
    let value = Value {
        body: b"hand".to_vec(),
        ..Value::default()
    };
    let revision = Revision(base(&before).0 + 2);
    assert_eq!(
        now.entry,
        Some(Entry {
            revision,
            value: Some(value)
        })
    );
    assert_eq!(
        store
            .read(&key(), Some(revision))
            .await
            .expect("a snapshot")
            .entry,
        None
    );
    assert_eq!(
        store
            .compare_and_set(&key(), &attempt(&before, held_by("c")))
            .await,
        WriteOutcome::Conflict
    );

    let next = won(&store, &key(), &attempt(&now, held_by("c"))).await;
    assert_eq!(
        store
            .read(&key(), Some(next))
            .await
            .expect("a snapshot")
            .entry,
        now.entry
    );
    server
        .sql(&set("fields = 'nonsense', revision = revision + 1"))
        .await;
    let odd = read(&store, &key())
        .await
        .entry
        .and_then(|entry| entry.value)
        .expect("somebody's");
    assert!(odd.is_malformed());
    assert_eq!(odd.body, b"nonsense c");
}

#[tokio::test]
async fn an_account_with_the_least_privileges_holds_locks_and_cannot_create() {
    let server = PostgresServer::start("");
    server.sql("CREATE ROLE putexd LOGIN").await;
    let store = open(&settings(&[server.port], "user=putexd dbname=postgres"));
    up(&store).await;
    assert!(matches!(
        store.read(&key(), None).await,
        Err(StoreError::Missing(_))
    ));
    assert!(matches!(store.init().await, Err(StoreError::Denied(_))));
    made(&open(&server.settings())).await;
    let denied = store.read(&key(), None).await;
    assert!(
        matches!(&denied, Err(StoreError::Denied(why)) if why.contains("putex_locks")),
        "{denied:?}"
    );
    server
        .sql("GRANT SELECT, INSERT, UPDATE ON putex_locks TO putexd")
        .await;
    works(&store).await;
    assert!(store.examine().await.is_ok());
}

#[tokio::test]
async fn the_password_is_read_at_each_connect() {
    let server = PostgresServer::start("");
    made(&open(&server.settings())).await;
    server
        .sql("CREATE ROLE putexd LOGIN SUPERUSER PASSWORD 's3 cret'")
        .await;
    server.admit("host all all 127.0.0.1/32 scram-sha-256");
    let login = settings(&[server.port], "user=putexd dbname=postgres");
    let file = server.path().join("password");
    let store = open(&PostgresSettings {
        access: Access {
            password_file: Some(file.clone()),
            ..Access::default()
        },
        ..login.clone()
    });
    let (reason, _) = turned_away(&store).await;
    assert!(
        reason.contains("password cannot be used") || reason.contains("/password"),
        "{reason}"
    );
    fs::write(&file, "wrong\n").expect("the file is written");
    let denied = async {
        loop {
            match store.read(&key(), None).await {
                Err(StoreError::Denied(why)) if why.contains("authentication failed") => {
                    return why;
                }
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let why = within(denied).await;
    assert!(!why.contains("wrong"), "{why}");
    fs::write(&file, "s3 cret\n").expect("the file is written");
    works(&store).await;

    let (_, error) = turned_away(&open(&login)).await;
    assert!(
        matches!(&error, StoreError::Denied(why) if why.contains("password missing")),
        "{error}"
    );
    let absent = PostgresSettings {
        access: Access {
            password_file: Some(file.clone()),
            ..Access::default()
        },
        ..settings(&[server.port], "user=putexd dbname=absent")
    };
    let (_, error) = turned_away(&open(&absent)).await;
    assert!(
        matches!(&error, StoreError::Missing(why) if why.contains("create it")),
        "{error}"
    );
}

#[tokio::test]
async fn tls_with_an_authority_of_ones_own_and_client_certificates() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    certificate(
        folder.path(),
        "ca",
        "basicConstraints=critical,CA:TRUE",
        None,
    );
    certificate(
        folder.path(),
        "server",
        "subjectAltName=IP:127.0.0.1",
        Some("ca"),
    );
    certificate(
        folder.path(),
        "client",
        "extendedKeyUsage=clientAuth",
        Some("ca"),
    );
    for name in ["ca.pem", "server.pem", "server.key"] {
        give(&path(name));
    }
    let tls = Access {
        ca_file: Some(path("ca.pem")),
        certificate: Some(path("client.pem")),
        key: Some(path("client.key")),
        ..Access::default()
    };
    let server = PostgresServer::start_in(
        folder,
        "ssl = on\nssl_cert_file = '@/server.pem'\nssl_key_file = '@/server.key'\nssl_ca_file = '@/ca.pem'",
    );
    made(&open(&PostgresSettings {
        access: tls.clone(),
        ..server.settings()
    }))
    .await;
    server.admit("hostssl all all 127.0.0.1/32 trust clientcert=verify-ca");
    let required = settings(
        &[server.port],
        "user=postgres dbname=postgres sslmode=require",
    );
    works(&open(&PostgresSettings {
        access: tls.clone(),
        ..required.clone()
    }))
    .await;

    // Where the connection uses TLS, the server's certificate is verified, whether or not TLS was required.
    for unverified in [&required, &server.settings()] {
        let (reason, _) = turned_away(&open(unverified)).await;
        assert!(reason.contains("certificate"), "{reason}");
    }
    let (_, error) = turned_away(&open(&PostgresSettings {
        access: Access {
            certificate: None,
            key: None,
            ..tls
        },
        ..required
    }))
    .await;
    assert!(
        matches!(&error, StoreError::Denied(why) if why.contains("client certificate")),
        "{error}"
    );
}

#[tokio::test]
async fn no_secret_is_seen_on_the_way() {
    let folder = folder();
    certificate(
        folder.path(),
        "ca",
        "basicConstraints=critical,CA:TRUE",
        None,
    );
    certificate(
        folder.path(),
        "server",
        "subjectAltName=IP:127.0.0.1",
        Some("ca"),
    );
    for name in ["server.pem", "server.key"] {
        give(&folder.path().join(name));
    }
    let open_server = PostgresServer::start("");
    let server = PostgresServer::start_in(
        folder,
        "ssl = on\nssl_cert_file = '@/server.pem'\nssl_key_file = '@/server.key'",
    );
    password_in(server.path());
    for (server, kind) in [(&open_server, "host"), (&server, "hostssl")] {
        server
            .sql(&format!(
                "CREATE ROLE putexd LOGIN SUPERUSER PASSWORD '{PASSWORD}'"
            ))
            .await;
        // A server in between can also ask for the password in the clear.
        server.admit(&format!("{kind} all all 127.0.0.1/32 password"));
    }
    // What the server stores, and asks for where it is told to use MD5.
    let hashed = format!("{PASSWORD}putexd");
    let secrets = [PASSWORD, hashed.as_str()];
    let store = |capture: &Capture, more: &str| {
        let place = format!(
            "servers = [\"postgres://127.0.0.1:{}\"]\nconnection = \"user=putexd dbname=postgres {more}\"",
            capture.port
        );
        let ca = if more.is_empty() {
            ""
        } else {
            "tls-ca = \"@/ca.pem\""
        };
        let text = format!("type = \"postgres\"\n{place}\npassword-file = \"@/password\"\n{ca}\n");
        remote(configured(server.path(), &text), CALL_LIMIT)
    };

    // A store without TLS, which is permitted on the loopback device alone.
    let capture = Capture::before(open_server.port).await;
    let plain = store(&capture, "");
    up(&plain).await;
    plain.init().await.expect("the table is made");
    works(&plain).await;
    assert!(
        !capture.seen(&secrets).is_empty(),
        "this is what a secret looks like"
    );
    // A server in between claims that there is no TLS.
    let capture = Capture::before(open_server.port).await;
    turned_away(&store(&capture, "sslmode=require")).await;
    assert_eq!(capture.seen(&secrets), Vec::<String>::new());

    let capture = Capture::before(server.port).await;
    let encrypted = store(&capture, "sslmode=require");
    up(&encrypted).await;
    encrypted.init().await.expect("the table is made");
    works(&encrypted).await;
    assert_eq!(capture.seen(&secrets), Vec::<String>::new());
}

#[tokio::test]
async fn an_authority_of_ones_own_replaces_the_public_ones() {
    const NAME: &str = "postgres_specific::an_authority_of_ones_own_replaces_the_public_ones";
    let Some(authorities) = with_public_authority(NAME) else {
        return;
    };
    certificate(
        &authorities,
        "server",
        "subjectAltName=IP:127.0.0.1",
        Some("public"),
    );
    let folder = folder();
    for name in ["server.pem", "server.key"] {
        fs::copy(authorities.join(name), folder.path().join(name)).expect("a copy");
        give(&folder.path().join(name));
    }
    let server = PostgresServer::start_in(
        folder,
        "ssl = on\nssl_cert_file = '@/server.pem'\nssl_key_file = '@/server.key'",
    );
    let required = settings(
        &[server.port],
        "user=postgres dbname=postgres sslmode=require",
    );
    up(&open(&required)).await;
    let tls = Access {
        ca_file: Some(authorities.join("own.pem")),
        ..Access::default()
    };
    let (reason, _) = turned_away(&open(&PostgresSettings {
        access: tls,
        ..required
    }))
    .await;
    assert!(reason.contains("certificate"), "{reason}");
}

#[tokio::test]
async fn tls_that_is_required_is_not_done_without() {
    let server = PostgresServer::start("");
    let required = settings(
        &[server.port],
        "user=postgres dbname=postgres sslmode=require",
    );
    let (reason, error) = turned_away(&open(&required)).await;
    assert!(
        matches!(&error, StoreError::Unreachable(_)) && reason.contains("does not support TLS"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_passed_over_and_after_its_promotion_holds_the_same_locks() {
    let mut primary = PostgresServer::start("");
    made(&open(&primary.settings())).await;
    let standby = primary.standby("second");
    answered(
        &primary,
        "SELECT state FROM pg_stat_replication",
        |states| states == ["streaming"],
    )
    .await;
    let (_, error) = turned_away(&open(&standby.settings())).await;
    assert!(
        matches!(&error, StoreError::Unreachable(why) if why.contains("is a standby")),
        "{error}"
    );

    // A dead server and one that never answers come first in the list.
    let mute = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let mute = mute.local_addr().expect("the port's address").port();
    let ports = [1, mute, standby.port, primary.port];
    let store = open(&settings(&ports, "user=postgres dbname=postgres"));
    works(&store).await;
    let warnings = store.examine().await.expect("an examination").warnings;
    assert!(
        warnings
            .iter()
            .any(|warning| warning.contains("none of them is synchronous")),
        "{warnings:?}"
    );
    alter(&primary, "synchronous_standby_names", "second").await;
    assert_eq!(
        store.examine().await.expect("an examination").warnings,
        Vec::<String>::new()
    );
    won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("b")),
    )
    .await;
    let before = read(&store, &key()).await;

    primary.die();
    let mut link = store.link();
    within(link.wait_for(|link| !link.is_up()))
        .await
        .expect("the store lives");
    standby.sql("SELECT pg_promote()").await;
    usable(&store, &key()).await;
    assert_eq!(read(&store, &key()).await, before);
    won(&store, &key(), &attempt(&before, held_by("c"))).await;
}

#[tokio::test]
async fn a_watch_ends_when_its_server_hangs_although_nobody_calls() {
    let (server, store) = ready().await;
    let mut hints = store.watch().await.expect("a watch");
    server.hang();
    assert_eq!(within(hints.next()).await, None);
    within(store.link().wait_for(|link| !link.is_up()))
        .await
        .expect("the store lives");
}

#[tokio::test]
async fn a_session_that_was_ended_is_replaced_and_the_connection_stays() {
    let (server, store) = ready().await;
    works(&store).await;
    let of_calls = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                    WHERE application_name = 'putexd' AND query NOT LIKE 'LISTEN%' AND query NOT LIKE 'SET%'";
    assert!(!server.sql(of_calls).await.is_empty());
    usable(&store, &key()).await;
    works(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_are_decided_under_a_stricter_isolation_too() {
    let server = PostgresServer::start("default_transaction_isolation = 'serializable'");
    let store = open(&server.settings());
    made(&store).await;
    for _ in 0..20 {
        let now = read(&store, &key()).await;
        let writes = (0..16).map(|number| {
            let (store, attempt) = (store.clone(), attempt(&now, held_by(&format!("{number}"))));
            tokio::spawn(async move { store.compare_and_set(&key(), &attempt).await })
        });
        let mut winners = 0;
        for write in writes.collect::<Vec<_>>() {
            match write.await.expect("the writer ends") {
                WriteOutcome::Won(_) => winners += 1,
                WriteOutcome::Conflict => {}
                WriteOutcome::Unknown(why) => panic!("{why}"),
            }
        }
        assert_eq!(winners, 1);
    }
}

#[tokio::test]
async fn a_round_trip_is_measured() {
    const ROUNDS: usize = 200;
    let (_server, store) = ready().await;
    let mut now = read(&store, &key()).await;
    let mut spans = Vec::new();
    for round in 0..ROUNDS {
        let value = held_by(&format!("{}", round % 2));
        let attempt = attempt(&now, value.clone());
        let since = Instant::now();
        let revision = won(&store, &key(), &attempt).await;
        spans.push(since.elapsed());
        now.entry = Some(Entry {
            revision,
            value: Some(value),
        });
    }
    spans.sort();
    println!(
        "PostgreSQL: a compare-and-set takes {:?}, the median of {ROUNDS}",
        spans[ROUNDS / 2]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, on a machine that does nothing else"]
async fn renewals() {
    let (server, _store) = ready().await;
    let stores = [(); 3].map(|()| Arc::new(open(&server.settings())) as Arc<dyn Store>);
    renewals_are_measured("PostgreSQL", stores).await;
}
