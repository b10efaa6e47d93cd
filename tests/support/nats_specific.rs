//! Tests that only apply to the store over NATS: credentials, TLS, clusters, buckets that others have made, and putex
//! 0.2.0.

use std::{
    io::{Read, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::{
    HeaderMap,
    jetstream::{self, stream},
};
use data_encoding::{BASE64, BASE64URL_NOPAD};
use futures_util::StreamExt;
use nkeys::KeyPair;
use putexd::{
    store::{
        Creation, Store, StoreError, WriteOutcome,
        files::Files,
        nats::{NatsSettings, NatsStore},
        settings::Access,
    },
    types::{Key, Revision, Value},
};
use serde_json::json;
use tempfile::TempDir;

use super::{
    CALL_LIMIT, attempt, base,
    capture::{Capture, PASSWORD, configured, password_in, with_public_authority},
    certificates::certificate,
    held_by, key,
    load::renewals_are_measured,
    made,
    nats_server::{NatsServer, settings},
    read,
    remote::remote,
    turned_away, up, usable, within, won, works, write,
};

fn open(settings: &NatsSettings) -> NatsStore {
    NatsStore::new(settings.clone(), CALL_LIMIT, Files::of_this_host())
}

/// As `open`, of a bucket that is made first.
async fn opened(settings: &NatsSettings) -> NatsStore {
    made(open(settings)).await
}

#[tokio::test]
async fn a_write_that_meets_a_dying_server_is_not_sent_to_the_next() {
    let mut server = NatsServer::start("");
    let store = opened(&server.settings()).await;
    let now = read(&store, &key()).await;
    server.die();
    // The client may not have noticed the server's death yet.
    let outcome = store
        .compare_and_set(&key(), &attempt(&now, held_by("a")))
        .await;
    assert!(matches!(outcome, WriteOutcome::Unknown(_)), "{outcome:?}");
    server.come_back();
    usable(&store, &key()).await;
    assert_eq!(read(&store, &key()).await, now);
}

/// Another login of the account sees each write with the inbox for its answer, and is faster than the server.
#[tokio::test]
async fn a_forged_answer_is_noticed_by_the_answer_of_the_server() {
    let server = NatsServer::start("");
    let store = opened(&server.settings()).await;
    let first = won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("a")),
    )
    .await;
    let liar = async_nats::connect(server.url())
        .await
        .expect("another login connects");
    let mut writes = liar
        .subscribe("$KV.locks.>")
        .await
        .expect("it may subscribe");
    liar.flush().await.expect("the subscription counts");
    let now = read(&store, &key()).await;
    assert_eq!(
        (store.link().borrow().forgeries, base(&now)),
        (0, first),
        "nothing is forged yet"
    );
    // What the write rests on is gone, and the server refuses it.
    server
        .admin()
        .await
        .publish("$KV.locks.database", "".into())
        .await
        .expect("sent")
        .await
        .expect("stored");
    let lies = tokio::spawn(async move {
        while let Some(write) = writes.next().await {
            if let (Some(inbox), true) = (write.reply, write.headers.is_some()) {
                liar.publish(inbox, "{\"stream\":\"KV_locks\",\"seq\":99}".into())
                    .await
                    .expect("it may answer");
            }
        }
    });
    let mut link = store.link();
    link.mark_unchanged();
    // The lie comes first or second; either way there are two answers.
    store
        .compare_and_set(&key(), &attempt(&now, held_by("a")))
        .await;
    within(
        link.wait_for(
            |link| matches!(&link.down, Some(why) if why.contains("two different answers")),
        ),
    )
    .await
    .expect("it lives");
    assert_eq!(store.link().borrow().forgeries, 1);
    lies.abort();
    usable(&store, &key()).await;
    won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("a")),
    )
    .await;
    assert_eq!(
        store.link().borrow().forgeries,
        1,
        "genuine answers are believed"
    );
}

/// A login that may change the stream has the server not answer the write, and answers in its place.
#[tokio::test]
async fn a_forged_answer_is_noticed_where_the_server_is_kept_from_answering_the_write() {
    let server = NatsServer::start("");
    let store = opened(&server.settings()).await;
    let sealed = |body| {
        let mut value = held_by(body);
        value.fields.insert("seal".to_owned(), "00".to_owned());
        value
    };
    won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, sealed("a")),
    )
    .await;
    let now = read(&store, &key()).await;
    let admin = server.admin().await;
    // What the write rests on is gone.
    admin
        .publish("$KV.locks.database", "".into())
        .await
        .expect("sent")
        .await
        .expect("stored");
    let config = admin
        .get_stream("KV_locks")
        .await
        .expect("it is there")
        .cached_info()
        .config
        .clone();
    let acknowledges = async |acknowledges: bool| {
        let config = stream::Config {
            no_ack: !acknowledges,
            ..config.clone()
        };
        admin
            .update_stream(config)
            .await
            .expect("it may be changed");
    };
    let liar = async_nats::connect(server.url())
        .await
        .expect("another login connects");
    let mut writes = liar
        .subscribe("$KV.locks.>")
        .await
        .expect("it may subscribe");
    let mut reads = liar
        .subscribe("$JS.API.STREAM.MSG.GET.KV_locks")
        .await
        .expect("it may subscribe");
    liar.flush().await.expect("the subscriptions count");
    acknowledges(false).await;
    let forged = attempt(&now, sealed("b"));
    let lies = async {
        let write = within(writes.next()).await.expect("the write");
        acknowledges(true).await;
        let seq = base(&now).0 + 100;
        let ack = format!("{{\"stream\":\"KV_locks\",\"seq\":{seq}}}");
        liar.publish(write.reply.expect("an inbox"), ack.into())
            .await
            .expect("it may answer");
        let read = within(reads.next()).await.expect("the write is read back");
        let message = json!({
            "subject": "$KV.locks.database",
            "seq": seq,
            "hdrs": BASE64.encode(&header_bytes(&write.headers.expect("headers"))),
            "data": BASE64.encode(&write.payload),
            "time": "2026-01-01T00:00:00Z",
        });
        let answer = json!({ "type": "io.nats.jetstream.api.v1.stream_msg_get_response", "message": message });
        liar.publish(read.reply.expect("an inbox"), answer.to_string().into())
            .await
            .expect("it may answer");
    };
    let lock = key();
    let (outcome, ()) = tokio::join!(store.compare_and_set(&lock, &forged), lies);
    println!("{outcome:?}");
    within(async {
        while store.link().borrow().forgeries == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Headers as they are on the wire.
fn header_bytes(headers: &HeaderMap) -> Vec<u8> {
    let mut text = "NATS/1.0\r\n".to_owned();
    for (name, values) in headers.iter() {
        for value in values {
            text.extend([&format!("{name}: "), value.as_str(), "\r\n"]);
        }
    }
    text.push_str("\r\n");
    text.into_bytes()
}

#[tokio::test]
async fn user_and_password_are_read_at_each_connect() {
    let server =
        NatsServer::start("authorization { users: [ { user: putexd, password: \"s3 cret\" } ] }");
    let password_file = server.folder().join("password");
    write(&password_file, "wrong\n");
    let access = Access {
        user: Some("putexd".to_owned()),
        password_file: Some(password_file.clone()),
        ..Access::default()
    };
    let store = open(&NatsSettings {
        access,
        ..server.settings()
    });
    let (reason, error) = turned_away(&store).await;
    assert!(reason.contains("authorization violation"), "{reason}");
    assert!(matches!(error, StoreError::Denied(_)), "{error}");
    write(&password_file, "s3 cret\n");
    works(&made(store).await).await;
}

#[tokio::test]
async fn credentials_that_cannot_be_read_are_named() {
    let server = NatsServer::start("");
    let creds = Some(server.folder().join("absent.creds"));
    let (reason, _) = turned_away(&open(&NatsSettings {
        creds,
        ..server.settings()
    }))
    .await;
    assert!(reason.contains("absent.creds"), "{reason}");
}

#[tokio::test]
async fn an_nkey_logs_in() {
    let user = KeyPair::new_user();
    let server = NatsServer::start(&format!(
        "authorization {{ users: [ {{ nkey: {} }} ] }}",
        user.public_key()
    ));
    let seed_file = server.folder().join("seed");
    write(&seed_file, &format!("{}\n", user.seed().expect("a seed")));
    works(
        &opened(&NatsSettings {
            nkey_seed: Some(seed_file),
            ..server.settings()
        })
        .await,
    )
    .await;
}

#[tokio::test]
async fn a_creds_file_logs_in() {
    let (operator, account, user) = (
        KeyPair::new_operator(),
        KeyPair::new_account(),
        KeyPair::new_user(),
    );
    let system = KeyPair::new_account();
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
        "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
    });
    let operator_token = jwt(
        &operator,
        &operator,
        &json!({ "type": "operator", "version": 2 }),
    );
    let account_token = jwt(
        &operator,
        &account,
        &json!({ "type": "account", "version": 2, "limits": limits }),
    );
    let system_token = jwt(
        &operator,
        &system,
        &json!({ "type": "account", "version": 2 }),
    );
    let user_limits =
        json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 });
    let user_token = jwt(&account, &user, &user_limits);

    let (account, system) = (account.public_key(), system.public_key());
    let server = NatsServer::start(&format!(
        "operator: \"{operator_token}\"\nsystem_account: {system}\nresolver: MEMORY\n\
         resolver_preload {{ {account}: \"{account_token}\", {system}: \"{system_token}\" }}"
    ));
    let creds = server.folder().join("user.creds");
    let seed = user.seed().expect("a seed");
    write(
        &creds,
        &format!(
            "-----BEGIN NATS USER JWT-----\n{user_token}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        ),
    );
    works(
        &opened(&NatsSettings {
            creds: Some(creds),
            ..server.settings()
        })
        .await,
    )
    .await;
}

/// A token (JWT) in the form that NATS uses: JSON that is signed by its issuer.
fn jwt(issuer: &KeyPair, subject: &KeyPair, claims: &serde_json::Value) -> String {
    let head = json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let body = json!({
        "jti": "test", "iat": 1_600_000_000, "name": "test",
        "iss": issuer.public_key(), "sub": subject.public_key(), "nats": claims,
    });
    let encode = |json: &serde_json::Value| BASE64URL_NOPAD.encode(json.to_string().as_bytes());
    let signed = format!("{}.{}", encode(&head), encode(&body));
    let signature = issuer.sign(signed.as_bytes()).expect("a signature");
    format!("{signed}.{}", BASE64URL_NOPAD.encode(&signature))
}

#[tokio::test]
async fn an_account_with_the_least_permissions_holds_locks_and_cannot_create() {
    let server = NatsServer::start(
        "authorization { users: [
            { user: admin, password: a }
            { user: putexd, password: p, permissions: {
                publish: [ \"$JS.API.STREAM.INFO.KV_locks\", \"$JS.API.STREAM.MSG.GET.KV_locks\",
                           \"$JS.API.CONSUMER.CREATE.KV_locks\", \"$KV.locks.>\" ]
                subscribe: [ \"_INBOX.putexd.>\" ]
            } }
        ] }",
    );
    let login = |user: &str, password: &str| {
        let password_file = server.folder().join(user);
        write(&password_file, password);
        Access {
            user: Some(user.to_owned()),
            password_file: Some(password_file),
            ..Access::default()
        }
    };
    let (admins, own) = (login("admin", "a"), login("putexd", "p"));
    let store = open(&NatsSettings {
        access: own,
        ..server.settings()
    });
    up(&store).await;
    assert!(
        matches!(store.read(&key(), None).await, Err(StoreError::Missing(why)) if why.contains("putexctl init"))
    );
    let since = Instant::now();
    let error = store.init().await.expect_err("not permitted");
    assert!(
        matches!(&error, StoreError::Denied(why) if why.contains("STREAM.CREATE")),
        "{error}"
    );
    assert!(
        since.elapsed() < CALL_LIMIT / 2,
        "a violation is not waited out"
    );

    let init = open(&NatsSettings {
        access: admins,
        ..server.settings()
    });
    up(&init).await;
    assert!(matches!(
        init.init().await,
        Ok(Creation { is_new: true, .. })
    ));
    assert!(matches!(
        init.init().await,
        Ok(Creation { is_new: false, .. })
    ));
    works(&store).await;
}

#[tokio::test]
async fn tls_with_an_authority_of_ones_own_and_client_certificates() {
    let folder = TempDir::new().expect("a temporary folder");
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
    let tls = Access {
        ca_file: Some(path("ca.pem")),
        certificate: Some(path("client.pem")),
        key: Some(path("client.key")),
        ..Access::default()
    };
    let server = NatsServer::start_in(
        folder,
        "tls { cert_file: \"@/server.pem\", key_file: \"@/server.key\", ca_file: \"@/ca.pem\", verify: true }",
    );
    let settings = NatsSettings {
        tls_required: true,
        access: tls,
        ..server.settings()
    };
    works(
        &opened(&NatsSettings {
            servers: vec![server.tls_url()],
            ..settings.clone()
        })
        .await,
    )
    .await;

    let tls = Access {
        ca_file: None,
        ..settings.access.clone()
    };
    let (reason, _) = turned_away(&open(&NatsSettings {
        access: tls,
        ..settings
    }))
    .await;
    assert!(reason.contains("certificate"), "{reason}");
}

#[tokio::test]
async fn no_secret_is_seen_on_the_way() {
    let nkey = KeyPair::new_user();
    let seed = nkey.seed().expect("a seed");
    let users = format!(
        "authorization {{ users: [ {{ user: putexd, password: \"{PASSWORD}\" }}, {{ nkey: {} }} ] }}",
        nkey.public_key()
    );
    let folder = TempDir::new().expect("a temporary folder");
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
    let open_server = NatsServer::start(&users);
    let server = NatsServer::start_in(
        folder,
        &format!("{users}\ntls {{ cert_file: \"@/server.pem\", key_file: \"@/server.key\" }}"),
    );
    password_in(server.folder());
    let seed_file = server.folder().join("seed");
    write(&seed_file, &seed);
    std::fs::set_permissions(&seed_file, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    let secrets = [PASSWORD, seed.as_str()];
    let store = |capture: &Capture, keys: &str| {
        let place = format!(
            "servers = [\"nats://127.0.0.1:{}\"]\nbucket = \"locks\"",
            capture.port
        );
        let text = format!("type = \"nats\"\n{place}\nreplicas = 1\n{keys}");
        remote(configured(server.folder(), &text), CALL_LIMIT)
    };
    let password = "user = \"putexd\"\npassword-file = \"@/password\"\n";
    for (login, shows) in [(password, true), ("nkey-seed = \"@/seed\"\n", false)] {
        // A store without TLS, which is permitted on the loopback device alone.
        let capture = Capture::before(open_server.port()).await;
        works(&made(store(&capture, login)).await).await;
        assert_eq!(!capture.seen(&secrets).is_empty(), shows, "{login}");
        // A server in between claims that there is no TLS.
        let capture = Capture::before(open_server.port()).await;
        turned_away(&store(&capture, &format!("{login}tls-ca = \"@/ca.pem\""))).await;
        assert_eq!(capture.seen(&secrets), Vec::<String>::new(), "{login}");

        let capture = Capture::before(server.port()).await;
        works(&made(store(&capture, &format!("{login}tls-ca = \"@/ca.pem\""))).await).await;
        assert_eq!(capture.seen(&secrets), Vec::<String>::new(), "{login}");
    }
}

#[tokio::test]
async fn an_authority_of_ones_own_replaces_the_public_ones() {
    const NAME: &str = "nats_specific::an_authority_of_ones_own_replaces_the_public_ones";
    let Some(folder) = with_public_authority(NAME) else {
        return;
    };
    certificate(
        &folder,
        "server",
        "subjectAltName=IP:127.0.0.1",
        Some("public"),
    );
    let of = folder.display();
    let server = NatsServer::start(&format!(
        "tls {{ cert_file: \"{of}/server.pem\", key_file: \"{of}/server.key\" }}"
    ));
    let settings = NatsSettings {
        tls_required: true,
        ..server.settings()
    };
    works(&opened(&settings).await).await;
    let tls = Access {
        ca_file: Some(folder.join("own.pem")),
        ..Access::default()
    };
    let (reason, _) = turned_away(&open(&NatsSettings {
        access: tls,
        ..settings
    }))
    .await;
    assert!(reason.contains("certificate"), "{reason}");
}

#[tokio::test]
async fn tls_that_is_required_is_not_done_without() {
    let server = NatsServer::start("");
    let (_, error) = turned_away(&open(&NatsSettings {
        tls_required: true,
        ..server.settings()
    }))
    .await;
    assert!(matches!(error, StoreError::Unreachable(_)), "{error}");
}

#[tokio::test]
async fn putex_0_2_0_and_this_read_each_other() {
    let server = NatsServer::start("");
    let store = opened(&server.settings()).await;
    let js = server.admin().await;
    let other = js.get_key_value("locks").await.expect("the bucket");

    other
        .put("database", "node-a".into())
        .await
        .expect("putex 0.2.0 takes the lock");
    let held = read(&store, &key()).await;
    assert_eq!(
        held.entry.as_ref().and_then(|entry| entry.value.clone()),
        Some(plain("node-a"))
    );
    won(&store, &key(), &attempt(&held, held_by("node-b"))).await;
    assert_eq!(
        other
            .get("database")
            .await
            .expect("an answer")
            .expect("a value"),
        "node-b"
    );

    let now = read(&store, &key()).await;
    other
        .update("database", "".into(), base(&now).0)
        .await
        .expect("putex 0.2.0 releases");
    let released = read(&store, &key()).await;
    assert_eq!(
        released.entry.and_then(|entry| entry.value),
        Some(plain(""))
    );
}

#[tokio::test]
async fn headers_are_as_documented_and_foreign_ones_are_ignored() {
    let server = NatsServer::start("");
    let store = opened(&server.settings()).await;
    let js = server.admin().await;
    let now = read(&store, &key()).await;
    let fields = [("paused-for", "30000"), ("lease", "3000")]
        .map(|(name, text)| (name.to_owned(), text.to_owned()));
    let value = Value {
        body: b"node-a".to_vec(),
        fields: fields.into(),
    };
    let revision = won(&store, &key(), &attempt(&now, value)).await;
    let bucket = js.get_stream("KV_locks").await.expect("the stream");
    let message = bucket
        .get_raw_message(revision.0)
        .await
        .expect("the message");
    assert_eq!(&message.payload[..], b"node-a");
    assert_eq!(
        message
            .headers
            .get("Putex-Fields")
            .map(async_nats::HeaderValue::as_str),
        Some(r#"{"lease":"3000","paused-for":"30000"}"#)
    );

    let mut headers = HeaderMap::new();
    headers.insert("Other-Header", "1");
    headers.insert("Putex-Fields", r#"{"lease":"5000"}"#);
    let publish = js
        .publish_with_headers("$KV.locks.database", headers, "node-c".into())
        .await;
    publish.expect("sent").await.expect("stored");
    let entry = read(&store, &key())
        .await
        .entry
        .and_then(|entry| entry.value)
        .expect("a value");
    assert_eq!(
        (entry.body, entry.fields),
        (
            b"node-c".to_vec(),
            [("lease".to_owned(), "5000".to_owned())].into()
        )
    );
}

fn plain(holder: &str) -> Value {
    Value {
        body: holder.into(),
        ..Value::default()
    }
}

#[tokio::test]
async fn a_repeated_write_id_is_not_won_again() {
    let server = NatsServer::start("");
    let store = opened(&server.settings()).await;
    let first = attempt(&read(&store, &key()).await, held_by("a"));
    won(&store, &key(), &first).await;
    // A server before 2.12 checks the write's id first, and a newer one the revision.
    let outcome = store.compare_and_set(&key(), &first).await;
    assert!(
        matches!(outcome, WriteOutcome::Unknown(_) | WriteOutcome::Conflict),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn what_a_message_put_by_hand_replaced_is_not_known() {
    let server = NatsServer::start("");
    let store = opened(&server.settings()).await;
    let first = won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("a")),
    )
    .await;
    let second = won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("b")),
    )
    .await;
    let replaced = async |revision| {
        store
            .read(&key(), Some(revision))
            .await
            .expect("a snapshot")
            .entry
    };
    assert_eq!(
        replaced(second).await.map(|entry| entry.revision),
        Some(first)
    );

    let js = server.admin().await;
    let stream = js.get_stream("KV_locks").await.expect("the bucket");
    let old = stream.get_raw_message(second.0).await.expect("the message");
    let copy_of = |keeps: fn(&str) -> bool| {
        let headers: HeaderMap = old
            .headers
            .iter()
            .filter(|(name, _)| keeps(name.as_ref()))
            .map(|(name, texts)| (name.clone(), texts[0].clone()))
            .collect();
        js.publish_with_headers("$KV.locks.database", headers, old.payload.clone())
    };
    // With the condition among the copied headers, the server compares as well, and refuses the copy.
    let ack = copy_of(|name| name != "Nats-Msg-Id").await;
    ack.expect("it is sent")
        .await
        .expect_err("the revision is not the latest any more");
    let ack = copy_of(|name| name.starts_with("Putex-")).await;
    let copy = Revision(
        ack.expect("it is sent")
            .await
            .expect("it is taken")
            .sequence,
    );
    assert_eq!(
        read(&store, &key())
            .await
            .entry
            .map(|entry| (entry.revision, entry.value)),
        Some((copy, Some(held_by("b"))))
    );
    assert_eq!(replaced(copy).await, None);
    // A copy that names what the first message replaced is detected.
    let ack = copy_of(|name| name.starts_with("Putex")).await;
    let copy = Revision(
        ack.expect("it is sent")
            .await
            .expect("it is taken")
            .sequence,
    );
    assert_eq!(replaced(copy).await, None);

    let third = won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("c")),
    )
    .await;
    assert_eq!(
        replaced(third).await.map(|entry| entry.revision),
        Some(copy)
    );
}

#[tokio::test]
async fn a_missing_bucket_is_not_created_unasked() {
    let server = NatsServer::start("");
    let store = open(&NatsSettings {
        ..server.settings()
    });
    up(&store).await;
    let now = store.read(&key(), None).await;
    assert!(
        matches!(&now, Err(StoreError::Missing(why)) if why.contains("putexctl init")),
        "{now:?}"
    );
    assert!(matches!(store.watch().await, Err(StoreError::Missing(_))));
    assert!(matches!(store.examine().await, Err(StoreError::Missing(_))));
    assert!(matches!(
        store.init().await,
        Ok(Creation { is_new: true, .. })
    ));
    works(&store).await;
}

/// An operator who looks at a store with `putexctl doctor` must not make one.
#[tokio::test]
async fn doctor_makes_no_bucket() {
    let server = NatsServer::start("");
    let root = TempDir::new().expect("a temporary folder");
    std::fs::create_dir_all(root.path().join("etc/putex")).expect("a folder");
    let store = format!(
        "node = \"h1\"\n[store]\ntype = \"nats\"\nservers = [{:?}]\nbucket = \"locks\"\nreplicas = 1\n",
        server.url()
    );
    write(&root.path().join("etc/putex/putexd.toml"), &store);
    let doctor = || {
        let script = "mount -t tmpfs tmpfs /run
            systemd-socket-activate --accept --inetd --listen=/run/putex-net.sock \"$1\" 2>/dev/null &
            until [ -S /run/putex-net.sock ]; do sleep 0.01; done
            \"$2\" doctor --root \"$3\"
            kill $!";
        std::process::Command::new("unshare")
            .args([
                "--mount",
                "sh",
                "-c",
                script,
                "sh",
                env!("CARGO_BIN_EXE_putex-net"),
                env!("CARGO_BIN_EXE_putexctl"),
            ])
            .arg(root.path())
            .output()
            .expect("unshare runs (Debian: util-linux)")
    };
    let said = doctor();
    assert!(
        String::from_utf8_lossy(&said.stderr).contains("there is no bucket locks"),
        "{said:?}"
    );
    let store = open(&NatsSettings {
        ..server.settings()
    });
    up(&store).await;
    assert!(matches!(store.examine().await, Err(StoreError::Missing(_))));
}

/// A server that is cut off from its cluster answers at once that it cannot answer. A client that is connected to it must
/// leave it for one that can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_cut_off_is_left_for_one_that_answers() {
    let mut alone = NatsServer::start("");
    opened(&alone.settings()).await;
    let mut servers = NatsServer::cluster();
    let maker = opened(&NatsSettings {
        replicas: 3,
        ..settings(servers.iter().map(NatsServer::url).collect())
    })
    .await;
    usable(&maker, &key()).await;
    let leader = leader_of(&maker).await;
    alone.die();
    let store = open(&NatsSettings {
        ..settings(vec![servers[leader].url(), alone.url()])
    });
    usable(&store, &key()).await;
    let before = read(&store, &key()).await.incarnation;
    alone.come_back();
    (0..3)
        .filter(|other| *other != leader)
        .for_each(|other| servers[other].die());
    let other = async {
        loop {
            match store.read(&key(), None).await {
                Ok(now) if now.incarnation != before => return,
                Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    within(other).await;
}

/// A stream that was deleted a moment ago can be made again only when its files are gone, so this tries again and
/// again.
async fn make(js: &jetstream::Context, config: &stream::Config) {
    within(async {
        while js.create_stream(config.clone()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_bucket_that_could_lose_locks_is_refused() {
    let server = NatsServer::start("");
    let js = server.admin().await;
    let store = open(&NatsSettings {
        ..server.settings()
    });
    up(&store).await;
    let fit = stream::Config {
        name: "KV_locks".to_owned(),
        subjects: vec!["$KV.locks.>".to_owned()],
        max_messages_per_subject: 1,
        ..stream::Config::default()
    };
    let unfit = [
        stream::Config {
            max_age: Duration::from_secs(60),
            ..fit.clone()
        },
        stream::Config {
            storage: stream::StorageType::Memory,
            ..fit.clone()
        },
        stream::Config {
            retention: stream::RetentionPolicy::Interest,
            ..fit.clone()
        },
        stream::Config {
            max_messages: 10,
            ..fit.clone()
        },
        stream::Config {
            subjects: vec!["$KV.other.>".to_owned()],
            ..fit.clone()
        },
    ];
    for config in unfit {
        make(&js, &config).await;
        let now = store.read(&key(), None).await;
        assert!(
            matches!(&now, Err(StoreError::Unfit(why)) if why.contains("for ever")),
            "{now:?}"
        );
        js.delete_stream("KV_locks")
            .await
            .expect("the stream is deleted");
    }
    make(&js, &fit).await;
    assert!(matches!(
        store.init().await,
        Ok(Creation { is_new: false, .. })
    ));
    works(&store).await;
    let second = won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("b")),
    )
    .await;
    assert_eq!(
        store
            .read(&key(), Some(second))
            .await
            .expect("a snapshot")
            .entry,
        None
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_hosts_create_the_bucket_at_once() {
    let server = NatsServer::start("");
    let stores: Vec<NatsStore> = (0..8).map(|_| open(&server.settings())).collect();
    let mut tasks = Vec::new();
    for (number, store) in stores.iter().cloned().enumerate() {
        tasks.push(tokio::spawn(async move {
            let store = made(store).await;
            let key = Key::new(&format!("key-{number}")).expect("a key");
            usable(&store, &key).await;
            let now = read(&store, &key).await;
            (
                key.clone(),
                now.incarnation.clone(),
                won(&store, &key, &attempt(&now, held_by("a"))).await,
            )
        }));
    }
    let mut written = Vec::new();
    for task in tasks {
        written.push(task.await.expect("the host ends"));
    }
    for (key, incarnation, revision) in written {
        let now = read(&stores[0], &key).await;
        assert_eq!((base(&now), &now.incarnation), (revision, &incarnation));
    }
}

#[tokio::test]
async fn revisions_and_incarnation_survive_a_restart() {
    let mut server = NatsServer::start("");
    let store = opened(&server.settings()).await;
    let empty = read(&store, &key()).await;
    server.die();
    server.come_back();
    usable(&store, &key()).await;
    assert_eq!(read(&store, &key()).await, empty);
    won(&store, &key(), &attempt(&empty, held_by("a"))).await;
}

#[tokio::test]
async fn a_watch_ends_when_its_bucket_is_deleted() {
    let server = NatsServer::start("");
    let store = opened(&server.settings()).await;
    let mut hints = store.watch().await.expect("a watch");
    server
        .admin()
        .await
        .delete_stream("KV_locks")
        .await
        .expect("the stream is deleted");
    assert_eq!(within(hints.next()).await, None);
}

#[tokio::test]
async fn a_watch_ends_when_its_server_hangs_although_nobody_calls() {
    let server = NatsServer::start("");
    let store = opened(&server.settings()).await;
    let mut hints = store.watch().await.expect("a watch");
    server.hang();
    assert_eq!(within(hints.next()).await, None);
    within(store.link().wait_for(|link| !link.is_up()))
        .await
        .expect("the store lives");
}

#[tokio::test]
async fn a_bucket_that_cannot_be_made_is_missing_and_init_says_why() {
    let server = NatsServer::start("");
    let store = open(&NatsSettings {
        replicas: 3,
        ..server.settings()
    });
    up(&store).await;
    assert!(matches!(
        store.read(&key(), None).await,
        Err(StoreError::Missing(_))
    ));
    let error = store
        .init()
        .await
        .expect_err("one server cannot keep three copies");
    assert!(
        matches!(&error, StoreError::Unfit(why) if why.starts_with("set replicas = 1 in [store] of putexd.toml ")),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_three_rides_through_the_death_of_its_leader() {
    let mut servers = NatsServer::cluster();
    let urls: Vec<String> = servers.iter().map(NatsServer::url).collect();
    let store = opened(&NatsSettings {
        replicas: 3,
        ..settings(urls)
    })
    .await;
    usable(&store, &key()).await;
    won_in_the_end(&store, "a").await;

    let before = read(&store, &key()).await;
    // Each leader in turn dies and comes back, so that in the end a server leads that had come back, with the same
    // revisions.
    let mut last = before.clone();
    for body in ["b", "c"] {
        let index = leader_of(&store).await;
        servers[index].die();
        usable(&store, &key()).await;
        assert_eq!(read(&store, &key()).await, last);
        let revision = won_in_the_end(&store, body).await;
        assert!(revision > base(&last));
        let replaced = store
            .read(&key(), Some(revision))
            .await
            .expect("a snapshot");
        assert_eq!(replaced, last, "a planned hand-over hangs on it");
        last = read(&store, &key()).await;
        servers[index].come_back();
        let all_current = async {
            let lacks = |warning: &String| warning.starts_with("bring back a server");
            while store
                .examine()
                .await
                .map_or(true, |found| found.warnings.iter().any(lacks))
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        within(all_current).await;
    }

    let js = servers[0].admin().await;
    let anew = async {
        loop {
            match store.read(&key(), None).await {
                Ok(now) if now.incarnation != before.incarnation => return now,
                // While the cluster elects the leader that takes such orders, nobody answers, so it is asked again.
                Ok(_) => drop(js.delete_stream("KV_locks").await),
                Err(StoreError::Missing(_)) => drop(store.init().await),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let now = within(anew).await;
    assert_eq!(now.entry, None);
    won_in_the_end(&store, "d").await;
    let stale = store
        .compare_and_set(&key(), &attempt(&last, held_by("of the former life")))
        .await;
    assert!(!matches!(stale, WriteOutcome::Won(_)), "{stale:?}");
}

/// The index of the server that leads the bucket. The store is connected to whichever server it found, and on a busy
/// machine that server may know no leader for a while.
async fn leader_of(store: &NatsStore) -> usize {
    let leader = async {
        loop {
            let found = store.examine().await.unwrap_or_default();
            if let Some((_, number)) = found.what.rsplit_once(", leader n") {
                return number.parse().expect("the number of a server");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(leader).await
}

/// Reads and writes until a write wins, because nobody wins while a leader is elected.
async fn won_in_the_end(store: &NatsStore, body: &str) -> Revision {
    let winning = async {
        loop {
            if let Ok(now) = store.read(&key(), None).await {
                let outcome = store
                    .compare_and_set(&key(), &attempt(&now, held_by(body)))
                    .await;
                if let WriteOutcome::Won(revision) = outcome {
                    return revision;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(winning).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_three_never_lets_two_writers_win() {
    let servers = NatsServer::cluster();
    never_two_winners(servers.iter().map(NatsServer::url).collect()).await;
}

/// In a rolling update the leader may be older than the server that the client is connected to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_newer_than_the_leader_lets_no_two_writers_win() {
    let servers = NatsServer::cluster();
    never_two_winners(
        servers
            .iter()
            .map(|server| looks_newer(server.port()))
            .collect(),
    )
    .await;
}

/// A relay to a server of 2.9.10 that changes its greeting so that it claims to be 2.12.0. The greeting of another
/// version is passed on unchanged.
fn looks_newer(port: u16) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(mut client) = client else { return };
            let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)) else {
                continue;
            };
            let (Ok(mut from_client), Ok(mut to_server)) = (client.try_clone(), server.try_clone())
            else {
                continue;
            };
            std::thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
            std::thread::spawn(move || {
                let mut bytes = vec![0; 65536];
                while let Ok(length @ 1..) = server.read(&mut bytes) {
                    let answer = &mut bytes[..length];
                    let old = b"\"version\":\"2.9.10\"";
                    if let Some(at) = answer.windows(old.len()).position(|window| window == old) {
                        answer[at..at + old.len()].copy_from_slice(b"\"version\":\"2.12.0\"");
                    }
                    if client.write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    format!("nats://{address}")
}

async fn never_two_winners(urls: Vec<String>) {
    const WRITERS: usize = 16;
    const ROUNDS: u32 = 100;
    let store = opened(&NatsSettings {
        replicas: 3,
        ..settings(urls)
    })
    .await;
    usable(&store, &key()).await;
    won_in_the_end(&store, "x").await;
    let mut decided = 0;
    for round in 0..ROUNDS {
        let now = read(&store, &key()).await;
        let tasks: Vec<_> = (0..WRITERS)
            .map(|number| {
                let (store, attempt) =
                    (store.clone(), attempt(&now, held_by(&format!("{number}"))));
                tokio::spawn(async move { store.compare_and_set(&key(), &attempt).await })
            })
            .collect();
        let mut winners = 0;
        for task in tasks {
            winners += u32::from(matches!(
                task.await.expect("the writer ends"),
                WriteOutcome::Won(_)
            ));
        }
        assert!(winners <= 1, "round {round}: {winners} writers won");
        decided += winners;
    }
    // A round without a winner does no harm, but most rounds must have one.
    assert!(
        decided > ROUNDS / 2,
        "{decided} of {ROUNDS} rounds were won"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_trip_is_measured() {
    const ROUNDS: usize = 200;
    let servers = NatsServer::cluster();
    let urls: Vec<String> = servers.iter().map(NatsServer::url).collect();
    let store = opened(&NatsSettings {
        replicas: 3,
        ..settings(urls)
    })
    .await;
    usable(&store, &key()).await;
    won_in_the_end(&store, "x").await;
    let mut spans = Vec::new();
    while spans.len() < ROUNDS {
        let attempt = attempt(&read(&store, &key()).await, held_by("a"));
        let since = Instant::now();
        if let WriteOutcome::Won(_) = store.compare_and_set(&key(), &attempt).await {
            spans.push(since.elapsed());
        }
    }
    spans.sort();
    println!(
        "NATS, three servers: a compare-and-set takes {:?}, the median of {ROUNDS}",
        spans[ROUNDS / 2]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, on a machine that does nothing else"]
async fn renewals() {
    let servers = NatsServer::cluster();
    let urls: Vec<String> = servers.iter().map(NatsServer::url).collect();
    let settings = NatsSettings {
        replicas: 3,
        ..settings(urls)
    };
    opened(&settings).await;
    let stores = [(); 3].map(|()| Arc::new(open(&settings)) as Arc<dyn Store>);
    renewals_are_measured("NATS, three servers", stores).await;
}

/// The number of writes that are under way at once, and for how long each of the two kinds of writers writes in a
/// round.
const UNDER_WAY: u32 = 1000;
const ROUND: Duration = Duration::from_secs(2);
const ROUNDS_OF_BOTH: usize = 5;

/// A value as long as the record of a holder.
fn record() -> Value {
    let field = |letter: u8| (format!("field-{}", char::from(letter)), "0".repeat(40));
    Value {
        body: b"host-1".to_vec(),
        fields: (b'a'..b'k').map(field).collect(),
    }
}

/// Renews a key through the store until the given time, and counts the renewals.
async fn renew(store: Arc<NatsStore>, key: Key, until: Instant) -> u32 {
    let mut now = read(&*store, &key).await;
    let mut count = 0;
    while Instant::now() < until {
        let is_new = now.entry.is_none();
        let revision = won(&*store, &key, &attempt(&now, record())).await;
        now.entry
            .iter_mut()
            .for_each(|entry| entry.revision = revision);
        if is_new {
            now = read(&*store, &key).await;
        }
        count += 1;
    }
    count
}

/// As [`renew`], with a client that only sends the same message and reads the acknowledgement.
async fn renew_barely(context: jetstream::Context, key: String, until: Instant) -> u32 {
    let subject = format!("$KV.locks.{key}");
    let stream = context.get_stream("KV_locks").await.expect("the bucket");
    let mut revision = stream
        .get_last_raw_message_by_subject(&subject)
        .await
        .map_or(0, |message| message.sequence);
    let mut count = 0;
    while Instant::now() < until {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Expected-Last-Subject-Sequence", revision.to_string());
        for (name, text) in record().fields {
            headers.insert(name, text);
        }
        let sent = context
            .publish_with_headers(subject.clone(), headers, "host-1".into())
            .await;
        revision = sent
            .expect("it is sent")
            .await
            .expect("nobody else writes it")
            .sequence;
        count += 1;
    }
    count
}

/// Compares the store with a bare client of the same library, by turns: prints how many writes the store makes as a
/// share of the client's.
async fn compare_with_a_bare_client(servers: &[NatsServer]) {
    let urls: Vec<String> = servers.iter().map(NatsServer::url).collect();
    let settings = NatsSettings {
        replicas: u32::try_from(servers.len()).expect("few"),
        ..settings(urls.clone())
    };
    let store = Arc::new(opened(&settings).await);
    usable(&*store, &key()).await;
    let bare = async_nats::jetstream::new(
        async_nats::connect(&urls)
            .await
            .expect("the bare client connects"),
    );
    let mut shares = Vec::new();
    for _ in 0..ROUNDS_OF_BOTH {
        let until = Instant::now() + ROUND;
        let key = |number: u32| Key::new(&format!("ours-{number}")).expect("a key");
        let ours = sum((0..UNDER_WAY)
            .map(|number| tokio::spawn(renew(Arc::clone(&store), key(number), until))))
        .await;
        let until = Instant::now() + ROUND;
        let its = (0..UNDER_WAY)
            .map(|number| tokio::spawn(renew_barely(bare.clone(), format!("its-{number}"), until)));
        let its = sum(its).await;
        shares.push(f64::from(ours) / f64::from(its));
        println!(
            "{} servers: the store {} a second, the bare client {}",
            servers.len(),
            ours / 2,
            its / 2
        );
    }
    shares.sort_by(f64::total_cmp);
    println!(
        "{} servers: {:.0} % of a bare client, the median",
        servers.len(),
        shares[ROUNDS_OF_BOTH / 2] * 100.0
    );
}

async fn sum(tasks: impl Iterator<Item = tokio::task::JoinHandle<u32>>) -> u32 {
    let tasks: Vec<_> = tasks.collect();
    let mut sum = 0;
    for task in tasks {
        sum += task.await.expect("it ends");
    }
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, on a machine that does nothing else"]
async fn renewals_beside_a_bare_client() {
    compare_with_a_bare_client(&[NatsServer::start("")]).await;
    compare_with_a_bare_client(&NatsServer::cluster()).await;
}
