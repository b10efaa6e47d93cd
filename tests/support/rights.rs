//! Hosts whose rights are older than what hosts tell each other: their locks work, and each other key is refused in words, at once, and
//! over the connection that the locks use on.

use std::time::Instant;

use putexd::{
    store::{Snapshot, Store, WriteOutcome, files::Files},
    types::{Key, NodeId},
};

use super::{CALL_LIMIT, attempt, held_by, key, read, up, usable, won};

/// How often everything is tried.
const ROUNDS: usize = 5;

fn notes() -> [Key; 3] {
    let node = NodeId::new("h1").expect("a node's name");
    [
        Key::of_hosts(None),
        Key::of_host(None, &node, 0),
        Key::of_history(&key()),
    ]
}

async fn notes_are_refused_and_locks_go_on(store: &dyn Store) {
    let is_denied = |said: &str| said.starts_with("the store refused access");
    notes_fail_and_locks_go_on(store, async |note, lock| {
        let found = store.read(&note, None).await;
        if let Err(error) = &found {
            assert!(is_denied(&error.to_string()), "{note}: {error}");
        }
        // Whoever may not read it either tries to make it.
        let found = found.unwrap_or(Snapshot {
            entry: None,
            ..lock
        });
        let written = store
            .compare_and_set(&note, &attempt(&found, held_by("h1")))
            .await;
        assert!(
            matches!(&written, WriteOutcome::Unknown(why) if is_denied(&why.to_string())),
            "{note}: {written:?}"
        );
    })
    .await;
}

/// `fails` uses a note, and gets the lock as it is.
async fn notes_fail_and_locks_go_on(store: &dyn Store, fails: impl AsyncFn(Key, Snapshot)) {
    up(store).await;
    usable(store, &key()).await;
    let mut link = store.link();
    link.mark_unchanged();
    for _ in 0..ROUNDS {
        for note in notes() {
            let lock = read(store, &key()).await;
            let began = Instant::now();
            fails(note, lock.clone()).await;
            assert!(
                began.elapsed() < CALL_LIMIT / 2,
                "a refusal is not waited out: {:?}",
                began.elapsed()
            );
            won(store, &key(), &attempt(&lock, held_by("h1"))).await;
        }
    }
    assert!(
        !link.has_changed().expect("the store lives"),
        "the connection is the same: {:?}",
        *link.borrow()
    );
}

#[tokio::test]
async fn nats_permissions_of_each_lock_keep_the_locks() {
    use putexd::store::nats::NatsSettings;
    use putexd::store::nats::NatsStore;
    use putexd::store::settings::Access;

    let server = super::nats_server::NatsServer::start(
        "authorization { users: [
            { user: admin, password: p }
            { user: putexd, password: p, permissions: {
                publish: [ \"$JS.API.STREAM.INFO.KV_locks\", \"$JS.API.STREAM.MSG.GET.KV_locks\",
                           \"$JS.API.CONSUMER.CREATE.KV_locks\", \"$KV.locks.database\" ]
                subscribe: [ \"_INBOX.putexd.>\" ]
            } }
        ] }",
    );
    let password_file = server.folder().join("password");
    super::write(&password_file, "p");
    let open = |user: &str| {
        let login = Access {
            user: Some(user.to_owned()),
            password_file: Some(password_file.clone()),
            ..Access::default()
        };
        NatsStore::new(
            NatsSettings {
                access: login,
                ..server.settings()
            },
            CALL_LIMIT,
            Files::of_this_host(),
        )
    };
    super::made(open("admin")).await;
    let store = open("putexd");
    notes_are_refused_and_locks_go_on(&store).await;
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn an_etcd_role_for_each_lock_keeps_the_locks() {
    use etcd_client::Permission;
    use putexd::store::etcd::EtcdSettings;
    use putexd::store::etcd::EtcdStore;
    use putexd::store::settings::Access;

    use super::etcd_rig::{EtcdServer, init};

    let server = EtcdServer::start(&[]);
    init(&server.settings()).await;
    let mut admin = server.admin().await;
    admin.role_add("putexd").await.expect("a role");
    for name in ["incarnation", "locks/database", "tickets/database"] {
        let permission = Permission::read_write(format!("/putex/{name}"));
        admin
            .role_grant_permission("putexd", permission)
            .await
            .expect("a permission");
    }
    admin.role_add("root").await.expect("a role");
    for (user, password) in [("putexd", "p"), ("root", "r")] {
        admin.user_add(user, password, None).await.expect("a user");
        admin
            .user_grant_role(user, user)
            .await
            .expect("a role of the user");
    }
    admin.auth_enable().await.expect("users and roles are on");
    let password_file = server.folder().join("password");
    super::write(&password_file, "p");
    let login = Access {
        user: Some("putexd".to_owned()),
        password_file: Some(password_file),
        ..Access::default()
    };
    let store = EtcdStore::new(
        EtcdSettings {
            access: login,
            ..server.settings()
        },
        CALL_LIMIT,
        Files::of_this_host(),
    );
    notes_are_refused_and_locks_go_on(&store).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_policy_for_rows_of_postgres_keeps_the_locks() {
    use putexd::store::Store as _;
    use putexd::store::postgres::PostgresStore;

    use super::postgres_rig::{PostgresServer, settings};

    let server = PostgresServer::start("");
    let made = PostgresStore::new(server.settings(), CALL_LIMIT, Files::of_this_host());
    up(&made).await;
    made.init().await.expect("the table is made");
    server.sql("CREATE ROLE putexd LOGIN").await;
    server
        .sql("GRANT SELECT, INSERT, UPDATE ON putex_locks TO putexd")
        .await;
    server
        .sql("ALTER TABLE putex_locks ENABLE ROW LEVEL SECURITY")
        .await;
    let locks = "name NOT LIKE 'putex-h%'";
    server
        .sql(&format!(
            "CREATE POLICY locks ON putex_locks TO putexd USING ({locks}) WITH CHECK ({locks})"
        ))
        .await;
    let own = settings(&[server.port], "user=putexd dbname=postgres");
    let store = PostgresStore::new(own, CALL_LIMIT, Files::of_this_host());
    notes_are_refused_and_locks_go_on(&store).await;
}

/// In a directory there is nothing to grant. A folder of a note that others may write to is not believed.
#[tokio::test]
async fn a_folder_of_a_note_that_others_may_write_to_keeps_the_locks() {
    use std::os::unix::fs::PermissionsExt as _;

    use putexd::store::Store as _;
    use putexd::store::directory::DirectorySettings;
    use putexd::store::directory::DirectoryStore;

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store");
    std::fs::create_dir(&path).expect("a folder");
    let store = DirectoryStore::at(
        DirectorySettings {
            path: path.clone(),
            owner: None,
        },
        CALL_LIMIT,
    );
    up(&store).await;
    store.init().await.expect("the store is made");
    for note in notes() {
        let place = path.join(format!("lock-{}", note.as_str().replace('/', "+")));
        std::fs::create_dir(&place).expect("the folder of a note");
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o777)).expect("its mode");
    }
    notes_fail_and_locks_go_on(&store, async |note, _| {
        let error = store.read(&note, None).await.expect_err("it is anybody's");
        assert!(error.to_string().contains("chmod go-w"), "{note}: {error}");
    })
    .await;
}
