//! Tests that only apply to the store in a shared directory: a folder that may be absent, local or not mounted, a file
//! system that misbehaves, and writers that are killed while they write.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::{
        fs::{PermissionsExt as _, chown, symlink},
        process::CommandExt as _,
    },
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use putexd::{
    store::{
        Creation, Store, StoreError, WriteOutcome,
        directory::{DirectorySettings, DirectoryStore},
    },
    types::{Key, Revision, Value},
};
use tempfile::TempDir;

use super::{
    CALL_LIMIT, Rig, attempt, base,
    directory_rig::DirectoryRig,
    faulty_fs::{self, Hang, Mischief},
    held_by, key,
    load::renewals_are_measured,
    process::eventually,
    read, up, usable, within, won,
};

/// Environment variable: set for the processes that only write.
const WRITER: &str = "PUTEX_TEST_DIRECTORY_WRITER";

fn open(path: &Path) -> DirectoryStore {
    DirectoryStore::at(
        DirectorySettings {
            path: path.to_owned(),
            owner: None,
        },
        CALL_LIMIT,
    )
}

/// A folder in memory, if this machine has /dev/shm, with a store in it.
async fn made() -> (TempDir, DirectoryStore) {
    let folder = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a folder");
    let store = open(folder.path());
    up(&store).await;
    store.init().await.expect("the store is made");
    (folder, store)
}

async fn down(store: &dyn Store) -> String {
    let mut link = store.link();
    let link = within(
        link.wait_for(|link| matches!(&link.down, Some(why) if !why.contains("not connected yet"))),
    )
    .await;
    let Some(reason) = link.expect("the store lives").down.clone() else {
        panic!("it is up")
    };
    reason
}

#[tokio::test]
async fn nothing_is_made_before_init_and_once_by_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    up(&store).await;
    let error = store
        .read(&key(), None)
        .await
        .expect_err("there is no store");
    assert!(
        matches!(&error, StoreError::Missing(why) if why.contains("putexctl init")),
        "{error}"
    );
    assert!(matches!(store.watch().await, Err(StoreError::Missing(_))));
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0);

    let creation = store.init().await.expect("the store is made");
    assert!(
        matches!(&creation, Creation { what, is_new: true } if what.contains(" from ")),
        "{creation:?}"
    );
    let other = open(folder.path());
    up(&other).await;
    assert!(matches!(
        other.init().await,
        Ok(Creation { is_new: false, .. })
    ));
    let now = read(&store, &key()).await;
    won(&store, &key(), &attempt(&now, held_by("a"))).await;
    usable(&other, &key()).await;
    assert_eq!(read(&other, &key()).await, read(&store, &key()).await);
    let examination = store.examine().await.expect("it can be looked at");
    assert!(examination.what.contains("the store "), "{examination:?}");
    assert!(
        examination
            .warnings
            .iter()
            .any(|warning| warning.contains("local to this host"))
    );
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
}

#[tokio::test]
async fn a_folder_that_others_may_write_is_no_store_and_makes_none() {
    let (folder, store) = made().await;
    let now = read(&store, &key()).await;
    won(&store, &key(), &attempt(&now, held_by("a"))).await;
    for mode in [0o777, 0o770, 0o1777] {
        set_mode(folder.path(), mode);
        let late = open(folder.path());
        let why = down(&late).await;
        assert!(
            why.contains(&format!("run \"chmod go-w {}\"", folder.path().display())),
            "{why}"
        );
        assert!(matches!(
            late.read(&key(), None).await,
            Err(StoreError::Unfit(_))
        ));
        // A client that is connected already goes on, and its administrator is warned.
        usable(&store, &key()).await;
        let warnings = store.examine().await.expect("it can be looked at").warnings;
        assert!(
            warnings
                .iter()
                .any(|warning| warning.contains("chmod go-w")),
            "{warnings:?}"
        );
        set_mode(folder.path(), 0o755);
        usable(&late, &key()).await;
    }
    let empty = tempfile::tempdir().expect("a folder");
    set_mode(empty.path(), 0o777);
    let store = open(empty.path());
    up(&store).await;
    assert!(
        matches!(store.init().await, Err(StoreError::Unfit(why)) if why.contains("chmod go-w"))
    );
    assert_eq!(fs::read_dir(empty.path()).expect("the folder").count(), 0);
}

/// An NFS server, for example, may map root to another user.
#[tokio::test]
async fn a_folder_of_another_user_has_to_be_meant() {
    if !is_root() {
        return;
    }
    let (folder, _) = made().await;
    chown(folder.path(), Some(NOT_ROOT), Some(NOT_ROOT)).expect("it is given away");
    let why = down(&open(folder.path())).await;
    assert!(
        why.contains(&format!("belongs to the user {NOT_ROOT}")),
        "{why}"
    );
    let owned = |owner| {
        let path = folder.path().to_owned();
        DirectoryStore::at(
            DirectorySettings {
                path,
                owner: Some(owner),
            },
            CALL_LIMIT,
        )
    };
    let store = owned(NOT_ROOT);
    usable(&store, &key()).await;
    let now = read(&store, &key()).await;
    won(&store, &key(), &attempt(&now, held_by("a"))).await;
    assert!(
        down(&owned(NOT_ROOT + 1))
            .await
            .contains("belongs to the user")
    );
}

/// Runs tests as an unprivileged user in a folder of his own, as a user of an export with root_squash would be.
#[test]
fn a_user_that_is_not_root_holds_locks_in_a_folder_of_his_own() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    chown(folder.path(), Some(NOT_ROOT), Some(NOT_ROOT)).expect("it is given away");
    let tests = [
        "nothing_is_made_before_init_and_once_by_it",
        "a_share_that_is_not_mounted_is_no_store_and_nothing_is_made_in_its_place",
        "a_damaged_lock_that_is_moved_away_has_another_incarnation",
        "a_folder_that_others_may_write_is_no_store_and_makes_none",
        "round_trip",
    ];
    // The program is named by /proc/self/exe, because the user may not enter the folder that it is in.
    let mut again = Command::new("/proc/self/exe");
    again
        .arg("--exact")
        .args(tests.map(|test| format!("directory_specific::{test}")));
    let ended = again
        .env("TMPDIR", folder.path())
        .current_dir("/")
        .uid(NOT_ROOT)
        .gid(NOT_ROOT)
        .output();
    let ended = ended.expect("this test runs as another user");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.success() && said.contains("5 passed"),
        "{said}"
    );
}

/// A user id that no user of this machine has.
const NOT_ROOT: u32 = 54321;

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED: only root can act for another user");
    }
    is_root
}

#[tokio::test]
async fn what_a_link_leads_to_is_left_alone() {
    let (folder, store) = made().await;
    let outside = tempfile::tempdir().expect("a folder");
    for name in ["t-old", "d-old", "r-00000000000000000001"] {
        fs::create_dir(outside.path().join(name)).expect("a folder");
        fs::write(outside.path().join(name).join("precious"), "").expect("a file");
    }
    fs::write(outside.path().join("identity"), "precious").expect("a file");
    for name in ["lock-database", "d-link"] {
        symlink(outside.path(), folder.path().join(name)).expect("a link");
    }
    let error = store.read(&key(), None).await.expect_err("it is a link");
    let remedy = format!(
        "remove {}/lock-database: it is no folder",
        folder.path().display()
    );
    assert!(
        matches!(&error, StoreError::Unfit(why) if why.contains(&remedy)),
        "{error}"
    );
    let other = Key::new("other").expect("a key");
    let now = read(&store, &other).await;
    won(&store, &other, &attempt(&now, held_by("a"))).await;
    // A store that is opened sweeps old folders at once.
    let second = open(folder.path());
    usable(&second, &other).await;
    eventually(
        "the link is swept",
        || fs::symlink_metadata(folder.path().join("d-link")).is_err(),
        String::new,
    );
    assert_eq!(fs::read_dir(outside.path()).expect("the folder").count(), 4);
    assert!(
        outside.path().join("d-old/precious").exists()
            && outside.path().join("t-old/precious").exists()
    );
    assert_eq!(
        fs::read_to_string(outside.path().join("identity")).expect("the file"),
        "precious"
    );
}

#[tokio::test]
async fn a_share_that_is_not_mounted_is_no_store_and_nothing_is_made_in_its_place() {
    let (folder, store) = made().await;
    let now = read(&store, &key()).await;
    won(&store, &key(), &attempt(&now, held_by("a"))).await;
    let held = read(&store, &key()).await;
    let elsewhere = folder.path().with_extension("share");
    fs::rename(folder.path(), &elsewhere).expect("it is unmounted");
    assert!(down(&store).await.contains("mount the share"));
    fs::create_dir(folder.path()).expect("an empty place for it");
    up(&store).await;
    assert!(matches!(
        store.read(&key(), None).await,
        Err(StoreError::Missing(_))
    ));
    let outcome = store
        .compare_and_set(&key(), &attempt(&held, held_by("b")))
        .await;
    assert!(matches!(outcome, WriteOutcome::Unknown(_)), "{outcome:?}");
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0);

    fs::remove_dir(folder.path()).expect("the empty place");
    fs::rename(&elsewhere, folder.path()).expect("it is mounted again");
    usable(&store, &key()).await;
    assert_eq!(read(&store, &key()).await, held);
    won(&store, &key(), &attempt(&held, held_by("b"))).await;
}

#[tokio::test]
async fn a_damaged_lock_that_is_moved_away_has_another_incarnation() {
    let (folder, store) = made().await;
    for body in ["h1", "h2"] {
        let now = read(&store, &key()).await;
        won(&store, &key(), &attempt(&now, held_by(body))).await;
    }
    let held = read(&store, &key()).await;
    let revision = folder.path().join("lock-database/r-00000000000000000002");
    let inner = fs::read_dir(&revision)
        .expect("a revision")
        .next()
        .expect("an entry")
        .expect("a name")
        .path();
    fs::write(inner.join("value"), "{\"body\":\"h").expect("it is cut short");

    let error = store.read(&key(), None).await.expect_err("it is damaged");
    assert!(
        matches!(&error, StoreError::Garbled(why) if why.contains("lock-database ")),
        "{error}"
    );
    let moved = folder.path().join("x-database");
    fs::rename(folder.path().join("lock-database"), moved).expect("it is put aside");
    let anew = read(&store, &key()).await;
    assert_eq!(anew.entry, None);
    assert_ne!(anew.incarnation, held.incarnation);
    assert_eq!(
        store
            .compare_and_set(&key(), &attempt(&held, held_by("h2")))
            .await,
        WriteOutcome::Conflict
    );
    won(&store, &key(), &attempt(&anew, held_by("h3"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_system_that_renames_onto_what_is_there_is_refused() {
    if !faulty_fs::is_there() {
        return;
    }
    let rig = DirectoryRig::start().await;
    rig.0.replace();
    let store = rig.open(CALL_LIMIT);
    assert!(
        down(&*store)
            .await
            .contains("renames a folder onto another one")
    );
    assert!(matches!(
        store.read(&key(), None).await,
        Err(StoreError::Unfit(_))
    ));
    let fresh = tempfile::tempdir_in(rig.0.path()).expect("a folder");
    let store = open(fresh.path());
    up(&store).await;
    assert!(matches!(store.init().await, Err(StoreError::Unfit(_))));
    // The file is closed before the file system is unmounted.
    fresh.close().expect("nothing is left in it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_hangs_delays_no_other() {
    if !faulty_fs::is_there() {
        return;
    }
    let rig = DirectoryRig::start().await;
    let (store, other) = (rig.open(CALL_LIMIT), Key::new("other").expect("a key"));
    usable(&*store, &key()).await;
    let now = read(&*store, &other).await;
    rig.0.hang(Hang::Below("lock-database"));
    // More calls than there are threads for one lock.
    let calls: Vec<_> = (0..16)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.read(&key(), None).await })
        })
        .collect();
    eventually("the lock hangs", || rig.0.hanging() > 0, String::new);
    won(&*store, &other, &attempt(&now, held_by("a"))).await;
    for call in calls {
        assert!(matches!(
            call.await.expect("it ends"),
            Err(StoreError::Unreachable(_))
        ));
    }
    let now = read(&*store, &other).await;
    won(&*store, &other, &attempt(&now, held_by("b"))).await;
    assert!(store.link().borrow().is_up());
    rig.0.release();
    usable(&*store, &key()).await;
}

#[test]
fn a_file_system_that_hangs_is_no_store_and_keeps_no_program_from_ending() {
    if !faulty_fs::is_there() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let rig = runtime.block_on(DirectoryRig::start());
    runtime.block_on(async {
        let store = rig.open(CALL_LIMIT);
        usable(&*store, &key()).await;
        rig.0.hang(Hang::All);
        assert!(matches!(
            store.read(&key(), None).await,
            Err(StoreError::Unreachable(_))
        ));
        assert!(down(&*store).await.contains("does not answer"));
        let begin = Instant::now();
        assert!(matches!(
            store.read(&key(), None).await,
            Err(StoreError::Unreachable(_))
        ));
        assert!(
            begin.elapsed() < CALL_LIMIT / 2,
            "once it is known, it is said at once"
        );
    });
    assert!(rig.0.hanging() > 0);
    let begin = Instant::now();
    drop(runtime);
    assert!(begin.elapsed() < CALL_LIMIT * 5, "{:?}", begin.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rename_that_comes_late_takes_nothing_from_anybody() {
    if !faulty_fs::is_there() {
        return;
    }
    // How many writes the other host makes meanwhile: none, one, or so many that the revision of the late write is free
    // again.
    for writes in [0, 1, 40] {
        let rig = DirectoryRig::start_with(Duration::ZERO).await;
        let (slow, other) = (rig.open(CALL_LIMIT), open(rig.0.behind()));
        usable(&*slow, &key()).await;
        usable(&other, &key()).await;
        let before = read(&other, &key()).await;
        let first = won(&other, &key(), &attempt(&before, held_by("a"))).await;
        let begin = read(&other, &key()).await;

        rig.0.hang(Hang::RenamesIn("lock-database"));
        let late = slow
            .compare_and_set(&key(), &attempt(&begin, held_by("late")))
            .await;
        assert!(matches!(late, WriteOutcome::Unknown(_)), "{late:?}");
        assert_eq!(rig.0.hanging(), 1);
        let mut last = begin.clone();
        for number in 0..writes {
            won(
                &other,
                &key(),
                &attempt(&last, held_by(&format!("{number}"))),
            )
            .await;
            last = read(&other, &key()).await;
        }
        rig.0.release();
        if writes == 0 {
            // The write may still have been applied, as `Unknown` says.
            let applied = || {
                fs::exists(rig.0.behind().join("lock-database/r-00000000000000000002"))
                    .expect("a look")
            };
            eventually("the late write is applied", applied, String::new);
            last = read(&other, &key()).await;
            assert_eq!(
                last.entry.as_ref().and_then(|entry| entry.value.clone()),
                Some(held_by("late"))
            );
            let replaced = other
                .read(&key(), Some(base(&last)))
                .await
                .expect("a snapshot")
                .entry;
            assert_eq!(replaced.map(|entry| entry.revision), Some(first));
        }
        usable(&*slow, &key()).await;
        assert_eq!(read(&*slow, &key()).await, last);
        won(&*slow, &key(), &attempt(&last, held_by("after"))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delays_errors_and_repeated_calls_make_no_second_winner() {
    const WRITERS: usize = 6;
    if !faulty_fs::is_there() {
        return;
    }
    let repeats = Mischief {
        repeat: 30,
        delay: 5,
        ..Mischief::default()
    };
    let errors = Mischief {
        fail: 1,
        fail_after: 2,
        repeat: 5,
        delay: 10,
    };
    for (mischief, attempts) in [(repeats, 20), (errors, 30)] {
        let rig = DirectoryRig::start_with(Duration::ZERO).await;
        let seen = Arc::new(Sightings::default());
        let stores: Vec<Arc<dyn Store>> = (0..WRITERS).map(|_| rig.open(CALL_LIMIT)).collect();
        for store in &stores {
            usable(&**store, &key()).await;
        }
        rig.0.set(mischief);
        let writers: Vec<_> = stores
            .iter()
            .enumerate()
            .map(|(writer, store)| {
                let (store, seen) = (Arc::clone(store), Arc::clone(&seen));
                tokio::spawn(async move { write_and_look(&*store, &seen, writer, attempts).await })
            })
            .collect();
        for writer in writers {
            writer.await.expect("the writer ends");
        }
        rig.0.set(Mischief::default());
        usable(&*stores[0], &key()).await;
        let last = read(&*stores[0], &key()).await;
        seen.note(
            base(&last),
            last.entry.as_ref().and_then(|entry| entry.value.as_ref()),
        );
        let summary = seen.check();
        println!("{mischief:?}: {summary}");
        won(&*stores[0], &key(), &attempt(&last, held_by("after"))).await;
    }
}

/// What all writers learnt of one lock.
#[derive(Default)]
struct Sightings {
    values: Mutex<BTreeMap<Revision, Vec<u8>>>,
    won: Mutex<Vec<(Revision, Vec<u8>)>>,
    lost: Mutex<Vec<Vec<u8>>>,
    unknown: Mutex<u32>,
}

impl Sightings {
    /// Checks that a revision never shows two different values.
    fn note(&self, revision: Revision, value: Option<&Value>) {
        let Some(value) = value else { return };
        let mut values = self.values.lock().expect("no writer panicked");
        let known = values.entry(revision).or_insert_with(|| value.body.clone());
        assert_eq!(*known, value.body, "{revision} shows two values");
    }

    fn check(&self) -> String {
        let values = self.values.lock().expect("no writer panicked");
        let won = self.won.lock().expect("no writer panicked");
        let lost = self.lost.lock().expect("no writer panicked");
        let mut winners: BTreeMap<Revision, &[u8]> = BTreeMap::new();
        for (revision, body) in won.iter() {
            assert_eq!(
                winners.insert(*revision, body),
                None,
                "{revision} was won twice"
            );
            assert!(
                values.get(revision).is_none_or(|value| value == body),
                "{revision} shows another's value"
            );
        }
        for body in lost.iter() {
            assert!(
                values.values().all(|value| value != body),
                "a lost one is there"
            );
        }
        assert!(!won.is_empty(), "nobody ever won");
        let unknown = *self.unknown.lock().expect("no writer panicked");
        format!("{} won, {} lost, {unknown} unknown", won.len(), lost.len())
    }
}

async fn write_and_look(store: &dyn Store, seen: &Sightings, writer: usize, attempts: usize) {
    let mut made = 0;
    while made < attempts {
        let Ok(now) = store.read(&key(), None).await else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        seen.note(
            base(&now),
            now.entry.as_ref().and_then(|entry| entry.value.as_ref()),
        );
        if let Ok(replaced) = store.read(&key(), Some(base(&now))).await
            && let Some(entry) = replaced.entry
        {
            assert_eq!(entry.revision.0 + 1, base(&now).0);
            seen.note(entry.revision, entry.value.as_ref());
        }
        let value = held_by(&format!("{writer}-{made}"));
        made += 1;
        let body = value.body.clone();
        match store.compare_and_set(&key(), &attempt(&now, value)).await {
            WriteOutcome::Won(revision) => {
                assert_eq!(revision.0, base(&now).0 + 1);
                seen.won
                    .lock()
                    .expect("no writer panicked")
                    .push((revision, body));
            }
            WriteOutcome::Conflict => seen.lost.lock().expect("no writer panicked").push(body),
            WriteOutcome::Unknown(_) => *seen.unknown.lock().expect("no writer panicked") += 1,
        }
    }
}

/// This is not a test of its own: the processes of the next test run it. It replaces the value again and again. It
/// notes each win as a line `REVISION BASE VALUE` before it goes on, and each write that came too late as `late`.
#[tokio::test]
async fn writes_until_it_is_killed_if_a_test_asks_for_it() {
    let Some(arguments) = std::env::var_os(WRITER) else {
        return;
    };
    let arguments = arguments.into_string().expect("text");
    let (folder, log) = arguments.split_once(':').expect("a folder and a log");
    let mut log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .expect("the log");
    let store = open(Path::new(folder));
    usable(&store, &key()).await;
    let process = std::process::id();
    for number in 0.. {
        let now = match store.read(&key(), None).await {
            Ok(now) => now,
            Err(error) => {
                assert!(is_slowness(&error.to_string()), "{error}");
                continue;
            }
        };
        let value = format!("{}-{process}-{number}", base(&now));
        let attempt = attempt(
            &now,
            Value {
                body: value.clone().into(),
                ..Value::default()
            },
        );
        match store.compare_and_set(&key(), &attempt).await {
            WriteOutcome::Won(revision) => {
                log.write_all(format!("{revision} {} {value}\n", base(&now)).as_bytes())
                    .expect("it is noted");
            }
            WriteOutcome::Conflict => {}
            // The write took so long that its base was collected. The witness exists for this case.
            WriteOutcome::Unknown(why) if why.to_string().contains("failed to write") => {
                log.write_all(b"late\n").expect("it is noted");
            }
            WriteOutcome::Unknown(why) => assert!(is_slowness(&why.to_string()), "{why}"),
        }
    }
}

/// On a file system without faults slowness is the only reason for an error or an unknown outcome.
fn is_slowness(why: &str) -> bool {
    why.contains("does not answer") || why.contains("no answer within")
}

/// Processes that are killed when the test ends, also when it panics.
struct Writers(Vec<Child>);

impl Writers {
    fn start(folder: &Path, log: &Path) -> Child {
        let output = fs::File::create(log.with_extension("output")).expect("a file");
        Command::new(std::env::current_exe().expect("a test has an executable"))
            .args([
                "--exact",
                "directory_specific::writes_until_it_is_killed_if_a_test_asks_for_it",
            ])
            .env(WRITER, format!("{}:{}", folder.display(), log.display()))
            .stdin(Stdio::null())
            .stdout(output)
            .spawn()
            .expect("the test starts itself")
    }

    /// Kills a writer with SIGKILL. A writer never ends by itself, unless it failed.
    fn kill(child: &mut Child, log: &Path) {
        let ended = child.try_wait().expect("it is ours");
        let said = || fs::read_to_string(log.with_extension("output")).unwrap_or_default();
        assert!(ended.is_none(), "a writer failed: {}", said());
        child.kill().expect("it is killed");
        child.wait().expect("it is reaped");
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // A failure here cannot be handled.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs for 10 s, or for `PUTEX_SECONDS`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_that_are_killed_at_random_points_leave_one_winner_for_each_revision() {
    const WRITERS: usize = 8;
    let seconds = std::env::var("PUTEX_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(10);
    let (folder, store) = made().await;
    let logs = tempfile::tempdir().expect("a folder");
    let incarnation = read(&store, &key()).await.incarnation;
    let log = |number: usize| logs.path().join(number.to_string());
    let mut writers = Writers(
        (0..WRITERS)
            .map(|number| Writers::start(folder.path(), &log(number)))
            .collect(),
    );
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut kills = 0;
    while Instant::now() < end {
        let random = getrandom::u64().expect("random bits");
        tokio::time::sleep(Duration::from_micros(random % 40_000)).await;
        let number = usize::try_from(random >> 32).expect("it fits") % WRITERS;
        Writers::kill(&mut writers.0[number], &log(number));
        writers.0[number] = Writers::start(folder.path(), &log(number));
        kills += 1;
    }
    for (number, child) in writers.0.iter_mut().enumerate() {
        Writers::kill(child, &log(number));
    }

    let mut wins: BTreeMap<u64, String> = BTreeMap::new();
    let mut late = 0;
    for number in 0..WRITERS {
        for line in fs::read_to_string(log(number)).unwrap_or_default().lines() {
            if line == "late" {
                late += 1;
                continue;
            }
            let [revision, base, value]: [&str; 3] = line
                .split(' ')
                .collect::<Vec<_>>()
                .try_into()
                .expect("three words in a line");
            let (revision, base): (u64, u64) = (
                revision.parse().expect("a number"),
                base.parse().expect("a number"),
            );
            assert_eq!(revision, base + 1, "{line}");
            let other = wins.insert(revision, value.to_owned());
            assert_eq!(other, None, "{revision} was won twice");
        }
    }
    usable(&store, &key()).await;
    let last = read(&store, &key()).await;
    assert_eq!(last.incarnation, incarnation);
    let before = store
        .read(&key(), Some(base(&last)))
        .await
        .expect("a snapshot");
    for entry in [&last, &before]
        .into_iter()
        .filter_map(|found| found.entry.as_ref())
    {
        let body = entry
            .value
            .as_ref()
            .map(|value| String::from_utf8_lossy(&value.body))
            .expect("a value");
        assert!(
            body.starts_with(&format!("{}-", entry.revision.0 - 1)),
            "{entry:?}"
        );
        assert!(
            wins.get(&entry.revision.0).is_none_or(|won| *won == body),
            "{entry:?}"
        );
    }
    assert!(wins.keys().last() <= Some(&base(&last).0));
    won(&store, &key(), &attempt(&last, held_by("after"))).await;
    let (number, revisions) = (wins.len(), base(&last));
    println!(
        "{number} of {revisions} revisions were won and noted, {kills} writers killed, {late} too late to win"
    );
    assert!(number > 10, "{number} wins");
}

/// Prints how long a compare-and-set takes, with everything that proves it, in `PUTEX_DIRECTORY` or in the folder for
/// temporary files.
#[tokio::test]
async fn round_trip() {
    const ROUNDS: usize = 100;
    let place = std::env::var_os("PUTEX_DIRECTORY").map_or_else(std::env::temp_dir, Into::into);
    let folder = tempfile::tempdir_in(place).expect("a folder");
    let store = open(folder.path());
    up(&store).await;
    store.init().await.expect("the store is made");
    let mut now = read(&store, &key()).await;
    let mut spans = Vec::new();
    for _ in 0..ROUNDS {
        let attempt = attempt(&now, held_by("a"));
        let begin = Instant::now();
        won(&store, &key(), &attempt).await;
        spans.push(begin.elapsed());
        now = read(&store, &key()).await;
    }
    spans.sort_unstable();
    println!(
        "directory: a compare-and-set takes {:?} (median of {ROUNDS})",
        spans[ROUNDS / 2]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, on a machine that does nothing else"]
async fn renewals() {
    let place = std::env::var_os("PUTEX_DIRECTORY").map_or_else(std::env::temp_dir, Into::into);
    let folder = tempfile::tempdir_in(place).expect("a folder");
    let store = open(folder.path());
    up(&store).await;
    store.init().await.expect("the store is made");
    let stores = [(); 3].map(|()| Arc::new(open(folder.path())) as Arc<dyn Store>);
    renewals_are_measured("directory", stores).await;
}
