//! Tests that only apply to the store over etcd: several members, logins, TLS, compaction, and requests that come late
//! or twice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use etcd_client::{Channel, Client, ConnectOptions, Permission};
use futures_util::StreamExt;
use putexd::{
    store::{
        Creation, Link, Store, StoreError, WriteOutcome,
        etcd::{EtcdSettings, EtcdStore},
        files::Files,
        settings::Access,
    },
    types::{Revision, Value},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Notify,
};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use super::{
    CALL_LIMIT, attempt, base,
    capture::{Capture, PASSWORD, configured, password_in, with_public_authority},
    certificates::certificate,
    etcd_rig::{EtcdServer, init, settings},
    held_by, key,
    load::renewals_are_measured,
    process::free_port,
    read,
    remote::remote,
    turned_away, up, usable, within, won, works, write,
};

fn open(settings: &EtcdSettings) -> EtcdStore {
    EtcdStore::new(settings.clone(), CALL_LIMIT, Files::of_this_host())
}

/// A single member, and a connected store that has been made.
async fn ready() -> (EtcdServer, EtcdStore) {
    let server = EtcdServer::start(&[]);
    init(&server.settings()).await;
    let store = open(&server.settings());
    up(&store).await;
    (server, store)
}

/// Polls until `done` returns true.
async fn until<Done: Future<Output = bool>>(mut done: impl FnMut() -> Done) {
    let polling = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(polling).await;
}

#[tokio::test]
async fn nothing_is_there_before_init_and_a_second_init_changes_nothing() {
    let server = EtcdServer::start(&[]);
    let store = open(&server.settings());
    up(&store).await;
    assert!(
        matches!(store.read(&key(), None).await, Err(StoreError::Missing(why)) if why.contains("putexctl init"))
    );
    assert!(matches!(store.examine().await, Err(StoreError::Missing(_))));
    assert!(
        matches!(store.init().await, Ok(Creation { what, is_new: true }) if what.contains("/putex/incarnation"))
    );
    works(&store).await;
    let now = read(&store, &key()).await;
    assert!(matches!(
        store.init().await,
        Ok(Creation { is_new: false, .. })
    ));
    assert_eq!(read(&store, &key()).await, now);
}

#[tokio::test]
async fn a_wiped_cluster_is_missing_and_then_another_incarnation() {
    let (mut server, store) = ready().await;
    for _ in 0..3 {
        won(
            &store,
            &key(),
            &attempt(&read(&store, &key()).await, held_by("a")),
        )
        .await;
    }
    let before = read(&store, &key()).await;
    server.forget();
    server.come_back();
    until(async || matches!(store.read(&key(), None).await, Err(StoreError::Missing(_)))).await;
    assert_eq!(
        store
            .compare_and_set(&key(), &attempt(&before, held_by("b")))
            .await,
        WriteOutcome::Conflict
    );

    assert!(matches!(
        store.init().await,
        Ok(Creation { is_new: true, .. })
    ));
    // Revisions repeat in the new incarnation. An old base that equals the latest revision again must not win.
    while base(&read(&store, &key()).await) < base(&before) {
        won(
            &store,
            &key(),
            &attempt(&read(&store, &key()).await, held_by("c")),
        )
        .await;
    }
    let after = read(&store, &key()).await;
    assert_eq!(base(&after), base(&before));
    assert_ne!(after.incarnation, before.incarnation);
    assert_eq!(
        store
            .compare_and_set(&key(), &attempt(&before, held_by("b")))
            .await,
        WriteOutcome::Conflict
    );
    assert_eq!(read(&store, &key()).await, after);
}

/// The index of the member that leads.
async fn leader_of(members: &[EtcdServer]) -> usize {
    for (index, member) in members.iter().enumerate() {
        let status = member.admin().await.status().await.expect("a status");
        if status.header().map(etcd_client::ResponseHeader::member_id) == Some(status.leader()) {
            return index;
        }
    }
    panic!("nobody leads");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_rides_through_the_death_of_its_leader_and_of_the_member_connected_to() {
    let mut members = EtcdServer::cluster(&[]);
    let endpoints: Vec<String> = members.iter().map(EtcdServer::url).collect();
    init(&settings(endpoints.clone())).await;
    let leader = leader_of(&members).await;
    let follower = (leader + 1) % members.len();
    for victim in [leader, follower] {
        // The store connects to the first endpoint.
        let mut endpoints = endpoints.clone();
        endpoints.rotate_left(follower);
        let store = open(&settings(endpoints));
        works(&store).await;
        let before = read(&store, &key()).await;
        members[victim].die();
        usable(&store, &key()).await;
        assert_eq!(read(&store, &key()).await, before);
        until(async || store.read(&key(), None).await.is_ok()).await;
        works(&store).await;
        members[victim].come_back();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_hangs_is_left_for_another_after_one_call() {
    let members = EtcdServer::cluster(&[]);
    let leader = leader_of(&members).await;
    let follower = (leader + 1) % members.len();
    let mut endpoints: Vec<String> = members.iter().map(EtcdServer::url).collect();
    endpoints.rotate_left(follower);
    init(&settings(endpoints.clone())).await;
    // Each connection begins at a random member: one that begins at the follower is looked for.
    let mut tries = 0..40;
    let (store, mut hints, since) = loop {
        tries.next().expect("a connection to the follower");
        let store = open(&settings(endpoints.clone()));
        works(&store).await;
        let hints = store.watch().await.expect("a watch");
        let before = read(&store, &key()).await;
        members[follower].hang();
        let since = Instant::now();
        let outcome = store
            .compare_and_set(&key(), &attempt(&before, held_by("b")))
            .await;
        if matches!(outcome, WriteOutcome::Unknown(_)) {
            break (store, hints, since);
        }
        assert!(matches!(outcome, WriteOutcome::Won(_)), "{outcome:?}");
        members[follower].release();
    };
    usable(&store, &key()).await;
    assert!(since.elapsed() < CALL_LIMIT * 3, "{:?}", since.elapsed());
    while within(hints.next()).await.is_some() {}
    works(&store).await;
    members[follower].release();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_without_the_others_is_no_store() {
    let mut members = EtcdServer::cluster(&[]);
    init(&members[0].settings()).await;
    let store = open(&members[0].settings());
    works(&store).await;
    let before = read(&store, &key()).await;
    let mut hints = store.watch().await.expect("a watch");
    let mut link = store.link();
    members[1].die();
    members[2].die();
    let outcome = store
        .compare_and_set(&key(), &attempt(&before, held_by("b")))
        .await;
    assert!(matches!(outcome, WriteOutcome::Unknown(_)), "{outcome:?}");
    within(link.wait_for(|link| !link.is_up()))
        .await
        .expect("the store lives");
    assert!(matches!(
        store.read(&key(), None).await,
        Err(StoreError::Unreachable(_))
    ));
    while within(hints.next()).await.is_some() {}
    members[1].come_back();
    works(&store).await;
}

#[tokio::test]
async fn endpoints_where_nobody_answers_are_passed_over_and_named_when_there_is_no_other() {
    let (mut server, _) = ready().await;
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let store = open(&settings(vec![nobody.clone(), server.url()]));
    works(&store).await;
    server.die();
    let mut link = store.link();
    let all = |link: &Link| matches!(&link.down, Some(why) if why.contains(&nobody) && why.contains(&server.url()));
    within(link.wait_for(all)).await.expect("the store lives");
}

#[tokio::test]
async fn a_silent_watch_ends() {
    let (server, store) = ready().await;
    let mut hints = store.watch().await.expect("a watch");
    server.hang();
    assert_eq!(within(hints.next()).await, None);
    server.release();
}

#[tokio::test]
async fn an_idle_watch_goes_on() {
    let server = EtcdServer::start(&[]);
    init(&server.settings()).await;
    let store = EtcdStore::new(server.settings(), CALL_LIMIT, Files::of_this_host());
    works(&store).await;
    let mut hints = store.watch().await.expect("a watch");
    // Longer than the store tolerates silence from the server.
    let idle = tokio::time::timeout(CALL_LIMIT * 5, hints.next()).await;
    assert!(idle.is_err(), "{idle:?}");
    won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("b")),
    )
    .await;
    assert_eq!(within(hints.next()).await, Some(key()));
}

#[tokio::test]
async fn what_was_compacted_is_not_remembered_and_the_rest_is() {
    let (server, store) = ready().await;
    let mut made = Vec::new();
    for round in 0..4 {
        made.push(
            won(
                &store,
                &key(),
                &attempt(&read(&store, &key()).await, held_by(&round.to_string())),
            )
            .await,
        );
    }
    let mut hints = store.watch().await.expect("a watch");
    let replaced = async |revision| {
        store
            .read(&key(), Some(revision))
            .await
            .expect("a snapshot")
            .entry
            .map(|entry| entry.revision)
    };
    assert_eq!(replaced(made[1]).await, Some(made[0]));
    let compaction = i64::try_from(made[2].0).expect("a revision");
    server
        .admin()
        .await
        .compact(compaction, None)
        .await
        .expect("it is compacted");
    assert_eq!(replaced(made[1]).await, None);
    assert_eq!(replaced(made[2]).await, None);
    assert_eq!(replaced(made[3]).await, Some(made[2]));
    won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("a")),
    )
    .await;
    assert_eq!(within(hints.next()).await, Some(key()));
}

#[tokio::test]
async fn a_key_that_was_deleted_and_made_again_replaced_nothing() {
    let (server, store) = ready().await;
    works(&store).await;
    server
        .admin()
        .await
        .delete("/putex/locks/database", None)
        .await
        .expect("it is deleted");
    let again = won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("b")),
    )
    .await;
    for revision in [again, Revision(again.0 - 1), Revision(again.0 - 2)] {
        assert_eq!(
            store
                .read(&key(), Some(revision))
                .await
                .expect("a snapshot")
                .entry,
            None,
            "{revision}"
        );
    }
}

#[tokio::test]
async fn what_others_put_is_a_body_and_what_it_replaced_is_known() {
    let (server, store) = ready().await;
    let first = won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("a")),
    )
    .await;
    server
        .admin()
        .await
        .put("/putex/locks/database", "node-7", None)
        .await
        .expect("it is put");
    let now = read(&store, &key()).await;
    let plain = Value {
        body: b"node-7".to_vec(),
        ..Value::default()
    };
    assert_eq!(
        now.entry.as_ref().and_then(|entry| entry.value.clone()),
        Some(plain)
    );
    let replaced = store
        .read(&key(), Some(base(&now)))
        .await
        .expect("a snapshot")
        .entry;
    assert_eq!(replaced.map(|entry| entry.revision), Some(first));
    won(&store, &key(), &attempt(&now, held_by("b"))).await;
}

#[tokio::test]
async fn a_write_that_was_carried_out_before_is_unknown() {
    let (_server, store) = ready().await;
    for body in ["a", "b"] {
        let once = attempt(&read(&store, &key()).await, held_by(body));
        won(&store, &key(), &once).await;
        let outcome = store.compare_and_set(&key(), &once).await;
        assert!(matches!(outcome, WriteOutcome::Unknown(_)), "{outcome:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_no_conflict() {
    let (server, direct) = ready().await;
    works(&direct).await;
    let proxy = Proxy::start(server.port()).await;
    let store = open(&settings(vec![proxy.url()]));
    up(&store).await;
    let now = read(&store, &key()).await;
    proxy.state.mute.store(true, Ordering::SeqCst);
    let outcome = store
        .compare_and_set(&key(), &attempt(&now, held_by("b")))
        .await;
    assert!(matches!(outcome, WriteOutcome::Unknown(_)), "{outcome:?}");
    proxy.state.mute.store(false, Ordering::SeqCst);
    usable(&store, &key()).await;
    let after = read(&store, &key()).await;
    assert_eq!(
        after.entry.as_ref().and_then(|entry| entry.value.clone()),
        Some(held_by("b"))
    );
    assert!(base(&after) > base(&now));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creation_that_is_late_does_not_win_once_the_key_was_deleted() {
    let (server, store) = ready().await;
    let proxy = Proxy::start(server.port()).await;
    let slow = open(&settings(vec![proxy.url()]));
    up(&slow).await;
    let absent = read(&slow, &key()).await;
    assert_eq!(absent.entry, None);
    let outcome = slow
        .compare_and_set(&key(), &attempt(&absent, held_by("slow")))
        .await;
    assert!(matches!(outcome, WriteOutcome::Unknown(_)), "{outcome:?}");

    won(
        &store,
        &key(),
        &attempt(&read(&store, &key()).await, held_by("a")),
    )
    .await;
    server
        .admin()
        .await
        .delete("/putex/locks/database", None)
        .await
        .expect("it is deleted");
    proxy.state.release.notify_one();
    until(async || proxy.state.answered.load(Ordering::SeqCst)).await;
    assert_eq!(read(&store, &key()).await.entry, None);
}

/// A proxy that can drop answers. It also holds back the second step of a creation, and all that the client sends after
/// it.
struct Proxy {
    port: u16,
    state: Arc<ProxyState>,
}

#[derive(Default)]
struct ProxyState {
    /// Whether answers are dropped.
    mute: AtomicBool,
    /// The number of requests so far that name a ticket: both steps of a creation do.
    tickets: AtomicUsize,
    /// Lets the requests go on that are held back.
    release: Notify,
    released: AtomicBool,
    /// Whether the server has answered anything since the release.
    answered: AtomicBool,
}

impl Proxy {
    async fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a loopback port");
        let port = listener.local_addr().expect("the port's address").port();
        let state = Arc::new(ProxyState::default());
        let shared = Arc::clone(&state);
        // This task ends with the test's runtime.
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(upstream) = TcpStream::connect(("127.0.0.1", server)).await else {
                    continue;
                };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = upstream.into_split();
                tokio::spawn(ask(Arc::clone(&shared), from_client, to_server));
                tokio::spawn(answer(Arc::clone(&shared), from_server, to_client));
            }
        });
        Self { port, state }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

async fn ask(state: Arc<ProxyState>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let bytes = &buffer[..length];
        let ticket = bytes.windows(9).any(|window| window == b"/tickets/");
        let held = ticket && state.tickets.fetch_add(1, Ordering::SeqCst) == 1;
        if held {
            state.release.notified().await;
            state.released.store(true, Ordering::SeqCst);
        }
        if to.write_all(bytes).await.is_err() {
            return;
        }
        if held {
            // The connection stays open, because the server needs somebody to answer. It ends with the test.
            std::future::pending::<()>().await;
        }
    }
}

async fn answer(state: Arc<ProxyState>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        state
            .answered
            .fetch_or(state.released.load(Ordering::SeqCst), Ordering::SeqCst);
        if !state.mute.load(Ordering::SeqCst) {
            // The client may have disconnected already.
            let _ = to.write_all(&buffer[..length]).await;
        }
    }
}

/// Turns on users and roles: `root`, and `putexd` with the permission that the manual page names. Returns a session of
/// root.
async fn protect(server: &EtcdServer) -> Client {
    add_users(server.admin().await, "s3 cret").await;
    let login = ConnectOptions::new().with_user("root", "r");
    Client::connect([server.url()], Some(login))
        .await
        .expect("root connects")
}

async fn add_users(mut admin: Client, password: &str) {
    admin.role_add("putexd").await.expect("a role");
    let permission = Permission::read_write("/putex/").with_prefix();
    admin
        .role_grant_permission("putexd", permission)
        .await
        .expect("a permission");
    admin
        .user_add("putexd", password, None)
        .await
        .expect("a user");
    admin
        .user_grant_role("putexd", "putexd")
        .await
        .expect("a role of the user");
    admin.role_add("root").await.expect("a role");
    admin.user_add("root", "r", None).await.expect("a user");
    admin
        .user_grant_role("root", "root")
        .await
        .expect("a role of the user");
    admin.auth_enable().await.expect("users and roles are on");
}

#[tokio::test]
async fn no_secret_is_seen_on_the_way() {
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
    let open_server = EtcdServer::start(&[]);
    let server = EtcdServer::start_in(
        folder,
        "https",
        &["--cert-file=@/server.pem", "--key-file=@/server.key"],
    );
    password_in(server.folder());
    let store = |capture: &Capture, scheme: &str| {
        let place = format!("endpoints = [\"{scheme}://127.0.0.1:{}\"]", capture.port);
        let login = "user = \"putexd\"\npassword-file = \"@/password\"";
        let ca = if scheme == "https" {
            "tls-ca = \"@/ca.pem\""
        } else {
            ""
        };
        let text = format!("type = \"etcd\"\n{place}\n{login}\n{ca}\n");
        remote(configured(server.folder(), &text), CALL_LIMIT)
    };
    let authority = std::fs::read(server.folder().join("ca.pem")).expect("the authority");
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
    let url = format!("https://127.0.0.1:{}", server.port());
    let endpoint = Endpoint::from_shared(url)
        .and_then(|endpoint| endpoint.tls_config(tls))
        .expect("an endpoint");
    let channel = endpoint
        .connect()
        .await
        .expect("the administrator connects");
    let admin = Client::from_channel(Channel::Tonic(channel), None)
        .await
        .expect("the administrator connects");
    for admin in [open_server.admin().await, admin] {
        add_users(admin, PASSWORD).await;
    }

    // A store without TLS, which is permitted on the loopback device alone.
    let capture = Capture::before(open_server.port()).await;
    let plain = store(&capture, "http");
    up(&plain).await;
    plain.init().await.expect("the store is made");
    works(&plain).await;
    assert!(
        !capture.seen(&[PASSWORD]).is_empty(),
        "this is what a secret looks like"
    );
    // A server in between claims that there is no TLS.
    let capture = Capture::before(open_server.port()).await;
    turned_away(&store(&capture, "https")).await;
    assert_eq!(capture.seen(&[PASSWORD]), Vec::<String>::new());

    let capture = Capture::before(server.port()).await;
    let encrypted = store(&capture, "https");
    up(&encrypted).await;
    encrypted.init().await.expect("the store is made");
    works(&encrypted).await;
    assert_eq!(capture.seen(&[PASSWORD]), Vec::<String>::new());
}

#[tokio::test]
async fn an_authority_of_ones_own_replaces_the_public_ones() {
    const NAME: &str = "etcd_specific::an_authority_of_ones_own_replaces_the_public_ones";
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
    let extra = [
        format!("--cert-file={of}/server.pem"),
        format!("--key-file={of}/server.key"),
    ];
    let extra: Vec<&str> = extra.iter().map(String::as_str).collect();
    let server = EtcdServer::start_in(TempDir::new().expect("a folder"), "https", &extra);
    let settings = settings(vec![format!("https://127.0.0.1:{}", server.port())]);
    up(&open(&settings)).await;
    let tls = Access {
        ca_file: Some(folder.join("own.pem")),
        ..Access::default()
    };
    let (reason, _) = turned_away(&open(&EtcdSettings {
        access: tls,
        ..settings
    }))
    .await;
    assert!(reason.contains("certificate"), "{reason}");
}

#[tokio::test]
async fn user_and_password_are_read_at_each_connect_and_the_least_permissions_do() {
    let server = EtcdServer::start(&[]);
    let password_file = server.folder().join("password");
    write(&password_file, "wrong\n");
    let login = Access {
        user: Some("putexd".to_owned()),
        password_file: Some(password_file.clone()),
        ..Access::default()
    };
    let own = EtcdSettings {
        access: login,
        ..server.settings()
    };
    // The server does not ask for a login yet.
    init(&own).await;
    let mut root = protect(&server).await;

    let store = open(&own);
    let (reason, error) = turned_away(&store).await;
    assert!(reason.contains("authentication failed"), "{reason}");
    assert!(matches!(error, StoreError::Denied(_)), "{error}");
    let (_, error) = turned_away(&open(&server.settings())).await;
    assert!(
        matches!(&error, StoreError::Denied(why) if why.contains("user name is empty")),
        "{error}"
    );
    write(&password_file, "s3 cret\n");
    works(&store).await;
    store
        .examine()
        .await
        .expect("a user who may not list members is no failure");

    // The change of the password ends the token that the old password had got.
    write(&password_file, "other");
    root.user_change_password("putexd", "other")
        .await
        .expect("it is changed");
    until(async || store.read(&key(), None).await.is_ok()).await;
    works(&store).await;

    let elsewhere = EtcdSettings {
        prefix: "/elsewhere".to_owned(),
        ..own
    };
    let (_, error) = turned_away(&open(&elsewhere)).await;
    assert!(
        matches!(&error, StoreError::Denied(why) if why.contains("permission denied")),
        "{error}"
    );
}

/// The token lasts for three seconds at most, and is renewed several times.
#[tokio::test]
async fn a_login_that_expires_is_renewed_and_no_connection_is_lost() {
    let folder = TempDir::new().expect("a temporary folder");
    certificate(
        folder.path(),
        "jwt",
        "basicConstraints=critical,CA:TRUE",
        None,
    );
    let token = "--auth-token=jwt,pub-key=@/jwt.pem,priv-key=@/jwt.key,sign-method=ES256,ttl=3s";
    let server = EtcdServer::start_in(folder, "http", &[token]);
    let password_file = server.folder().join("password");
    write(&password_file, "s3 cret");
    init(&server.settings()).await;
    let mut root = protect(&server).await;
    let login = Access {
        user: Some("putexd".to_owned()),
        password_file: Some(password_file),
        ..Access::default()
    };
    let store = open(&EtcdSettings {
        access: login,
        ..server.settings()
    });
    up(&store).await;
    let mut link = store.link();
    link.mark_unchanged();
    let began = std::time::Instant::now();
    // An expiry is in whole seconds: a token of one second could be over before the call that it was made for.
    while began.elapsed() < Duration::from_secs(7) {
        works(&store).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(
        !link.has_changed().expect("the store is there"),
        "{:?}",
        *link.borrow()
    );
    // The token of the administrator, which nobody renews, shows that tokens did expire.
    let error = root
        .user_list()
        .await
        .expect_err("the token has expired")
        .to_string();
    assert!(error.contains("invalid auth token"), "{error}");
}

#[tokio::test]
async fn credentials_that_cannot_be_read_are_named() {
    let server = EtcdServer::start(&[]);
    let password_file = server.folder().join("absent");
    let login = Access {
        user: Some("putexd".to_owned()),
        password_file: Some(password_file),
        ..Access::default()
    };
    let (reason, error) = turned_away(&open(&EtcdSettings {
        access: login,
        ..server.settings()
    }))
    .await;
    assert!(reason.contains("absent"), "{reason}");
    assert!(matches!(error, StoreError::Denied(_)), "{error}");
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
    let extra = [
        "--cert-file=@/server.pem",
        "--key-file=@/server.key",
        "--trusted-ca-file=@/ca.pem",
        "--client-cert-auth",
    ];
    let server = EtcdServer::start_in(folder, "https", &extra);
    let secure = vec![format!("https://127.0.0.1:{}", server.port())];
    let good = EtcdSettings {
        access: tls.clone(),
        ..settings(secure.clone())
    };
    init(&good).await;
    works(&open(&good)).await;

    let unknown = Access {
        ca_file: None,
        ..tls.clone()
    };
    let nameless = Access {
        certificate: None,
        key: None,
        ..tls.clone()
    };
    for (tls, endpoints, word) in [
        (unknown, &secure, "certificate"),
        (nameless, &secure, ""),
        (Access::default(), &vec![server.url()], ""),
    ] {
        let (reason, error) = turned_away(&open(&EtcdSettings {
            access: tls,
            ..settings(endpoints.clone())
        }))
        .await;
        assert!(reason.contains(word), "{reason}");
        assert!(
            matches!(error, StoreError::Unreachable(_) | StoreError::Unfit(_)),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_examination_shows_what_is_doubtful() {
    let (mut server, store) = ready().await;
    let found = store.examine().await.expect("an examination");
    assert!(
        found.what.contains("\"/putex\" in etcd, incarnation "),
        "{found:?}"
    );
    server.die();

    let mut members = EtcdServer::cluster(&[]);
    let endpoints: Vec<String> = members.iter().map(EtcdServer::url).collect();
    init(&settings(endpoints.clone())).await;
    let store = open(&settings(endpoints));
    up(&store).await;
    // Two members are enough to begin with, and the third may come later.
    warned(&store, <[String]>::is_empty).await;
    members[2].die();
    let dead = members[2].url();
    warned(
        &store,
        |warnings| matches!(warnings, [warning] if warning.contains(&dead)),
    )
    .await;
}

/// Waits until an examination gives the warnings that are `wanted`.
async fn warned(store: &EtcdStore, wanted: impl Fn(&[String]) -> bool) {
    let warned = async {
        while !store
            .examine()
            .await
            .is_ok_and(|found| wanted(&found.warnings))
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(warned).await;
}

#[tokio::test]
async fn a_full_database_says_so_and_can_be_read() {
    let server = EtcdServer::start(&["--quota-backend-bytes=1048576"]);
    init(&server.settings()).await;
    let store = open(&server.settings());
    works(&store).await;
    let mut admin = server.admin().await;
    let full = async {
        while admin
            .put("/other", vec![b'x'; 64 * 1024], None)
            .await
            .is_ok()
        {}
    };
    within(full).await;
    let now = read(&store, &key()).await;
    let outcome = store
        .compare_and_set(&key(), &attempt(&now, held_by("b")))
        .await;
    assert!(
        matches!(&outcome, WriteOutcome::Unknown(why) if why.to_string().contains("space exceeded")),
        "{outcome:?}"
    );
    assert_eq!(read(&store, &key()).await, now);
    let found = store.examine().await.expect("an examination");
    assert!(
        found
            .warnings
            .iter()
            .any(|text| text.contains("alarm disarm")),
        "{found:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compare_and_set_is_measured() {
    const ROUNDS: usize = 51;
    for (what, flag) in [
        ("without fsync", "--unsafe-no-fsync"),
        ("with fsync", "--unsafe-no-fsync=false"),
    ] {
        let members = EtcdServer::cluster(&[flag]);
        let settings = settings(members.iter().map(EtcdServer::url).collect());
        init(&settings).await;
        let store = open(&settings);
        up(&store).await;
        let mut now = read(&store, &key()).await;
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let next = attempt(&now, held_by("a"));
            let since = Instant::now();
            won(&store, &key(), &next).await;
            times.push(since.elapsed());
            now = read(&store, &key()).await;
        }
        times.sort();
        println!(
            "etcd, three members {what}: a compare-and-set takes {:?}, the median of {ROUNDS}",
            times[ROUNDS / 2]
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, on a machine that does nothing else"]
async fn renewals() {
    let (server, _store) = ready().await;
    let stores = [(); 3].map(|()| Arc::new(open(&server.settings())) as Arc<dyn Store>);
    renewals_are_measured("etcd, one member", stores).await;
}
