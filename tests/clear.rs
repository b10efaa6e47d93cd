//! `putexctl clear`, on locks in a shared directory.

use std::{
    fs,
    process::{Command, Output},
    time::Duration,
};

use putexd::{
    election::{Details, OperatorNote, Record, Standing},
    store::{
        Attempt, Link, Snapshot, Store, WriteOutcome,
        directory::{DirectorySettings, DirectoryStore},
    },
    types::{FencingToken, Holder, Instance, Key, MachineId, Revision, WriteId},
};
use tempfile::TempDir;

const LEASE: Duration = Duration::from_secs(1);

/// A host with a service `db` and a store that has been made.
struct Host {
    root: TempDir,
    store: DirectoryStore,
}

impl Host {
    async fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        let path = root.path().join("srv");
        fs::create_dir(&path).expect("a folder");
        let host = format!(
            "node = \"h1\"\n[store]\ntype = \"directory\"\npath = {:?}\n",
            path.display().to_string()
        );
        write("etc/putex/putexd.toml", &host);
        write(
            "etc/putex.d/db.toml",
            "unit = \"database.service\"\nkey = \"the/lock\"\n",
        );
        let store = DirectoryStore::at(
            DirectorySettings { path, owner: None },
            Duration::from_secs(5),
        );
        let host = Self { root, store };
        // Only this machine sees the folder, and nobody may take it for the share by mistake.
        let refused = host.putexctl(&["init"]);
        assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stdout));
        assert!(
            text(&refused.stderr).contains("--local-folder"),
            "{}",
            text(&refused.stderr)
        );
        let made = host.putexctl(&["init", "--local-folder"]);
        assert!(
            made.status.success() && text(&made.stdout).starts_with("made the store "),
            "{}",
            text(&made.stdout)
        );
        host.store
            .link()
            .wait_for(Link::is_up)
            .await
            .expect("the store lives");
        while host.store.read(&key(), None).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        host
    }

    /// `putexctl clear` of the lock, beside the test.
    fn begin_clearing(&self) -> tokio::task::JoinHandle<Output> {
        let path = self.root.path().to_owned();
        tokio::task::spawn_blocking(move || {
            let program = env!("CARGO_BIN_EXE_putexctl");
            let arguments = ["clear", "--key", "the/lock", "--root"];
            Command::new(program)
                .args(arguments)
                .arg(path)
                .output()
                .expect("the program starts")
        })
    }

    fn putexctl(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_putexctl"))
            .args(arguments)
            .arg("--root")
            .arg(self.root.path())
            .output()
            .expect("the program starts")
    }

    async fn read(&self) -> Snapshot {
        self.store.read(&key(), None).await.expect("a snapshot")
    }

    async fn write(&self, now: &Snapshot, record: &Record) {
        let base = now
            .entry
            .as_ref()
            .map_or(Revision(0), |entry| entry.revision);
        let attempt = Attempt {
            base,
            incarnation: now.incarnation.clone(),
            write: WriteId(1),
            value: record.encode(),
        };
        let outcome = self.store.compare_and_set(&key(), &attempt).await;
        assert!(matches!(outcome, WriteOutcome::Won(_)), "{outcome:?}");
    }
}

fn key() -> Key {
    Key::new("the/lock").expect("a key")
}

fn record(lease: Duration) -> Record {
    let details = Details {
        machine: MachineId(1),
        instance: Instance(2),
        write: WriteId(3),
        standing: Standing::Active,
        lease,
        hold: lease,
        passing: None,
        token: FencingToken(7),
        prev: None,
        unfenced: Vec::new(),
        units: Vec::new(),
        holders: Vec::new(),
        note: OperatorNote::default(),
    };
    Record::new(Holder::decode(b"h2"), Some(details))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn a_stale_lock_is_cleared_and_its_holder_is_named() {
    let host = Host::new().await;
    host.write(&host.read().await, &record(LEASE)).await;
    let output = host.putexctl(&["clear", "db"]);
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}{errors}");
    for words in [
        "the/lock: held by h2, revision 1, token 7; watching it for 1.0s",
        "it was h2's",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let now = host.read().await;
    let entry = now.entry.expect("an entry");
    assert_eq!(entry.revision, Revision(2));
    // The lock is nobody's, but without a proof, so contenders wait their whole time.
    let record = Record::decode(&entry.value.expect("a value"));
    assert!(!record.is_held() && record.details.is_none());

    let again = host.putexctl(&["clear", "db"]);
    assert!(
        again.status.success() && text(&again.stdout).contains("nobody holds it"),
        "{}",
        text(&again.stdout)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_another_host_takes_meanwhile_is_said_to_be_that_hosts() {
    let host = Host::new().await;
    let record = record(Duration::from_secs(20));
    host.write(&host.read().await, &record).await;
    let clearing = host.begin_clearing();
    // It may not have read the lock yet, and then finds the other host there, which it watches as well.
    let mut taken = Record {
        holder: Holder::decode(b"h3"),
        ..record
    };
    while !clearing.is_finished() {
        tokio::time::sleep(Duration::from_millis(600)).await;
        let name = if taken.holder.as_str() == "h3" {
            "h4"
        } else {
            "h3"
        };
        host.write(&host.read().await, &taken).await;
        taken.holder = Holder::decode(name.as_bytes());
    }
    let error = text(&clearing.await.expect("it ends").stderr);
    assert!(error.contains("renewed or taken meanwhile"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_renewed_is_refused_and_left_alone() {
    let host = Host::new().await;
    let record = record(Duration::from_secs(20));
    host.write(&host.read().await, &record).await;
    let begin = std::time::Instant::now();
    let clearing = host.begin_clearing();
    // The record is renewed until `putexctl` notices it, because the test does not know when it begins to watch.
    while !clearing.is_finished() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        host.write(&host.read().await, &record).await;
    }
    let output = clearing.await.expect("it ends");
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "it does not wait for the rest of the lease"
    );
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    let error = text(&output.stderr);
    assert!(
        error.contains("renewed or taken meanwhile") && error.contains("step-down"),
        "{error}"
    );
    let entry = host.read().await.entry.expect("an entry");
    assert_eq!(Record::decode(&entry.value.expect("a value")), record);
}

#[tokio::test]
async fn what_is_not_there_is_said_so() {
    let host = Host::new().await;
    for (arguments, status, words) in [
        (
            &["clear", "unknown"][..],
            1,
            "no such service is configured here",
        ),
        (&["clear", "db"], 1, "there is no lock the/lock"),
        (
            &["clear", "--key", "unknown"],
            1,
            "there is no lock unknown",
        ),
        (&["clear"], 64, "required"),
        (&["clear", "--key", "a b"], 64, "letters, digits"),
    ] {
        let output = host.putexctl(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        assert!(
            text(&output.stderr).contains(words),
            "{arguments:?}: {}",
            text(&output.stderr)
        );
    }
}

#[tokio::test]
async fn how_to_move_a_damaged_lock_away_is_said() {
    let host = Host::new().await;
    host.write(&host.read().await, &record(LEASE)).await;
    host.write(&host.read().await, &record(LEASE)).await;
    let before = host.read().await;
    let revision = host
        .root
        .path()
        .join("srv/lock-the+lock/r-00000000000000000002");
    let inner = fs::read_dir(revision)
        .expect("a revision")
        .next()
        .expect("an entry")
        .expect("a name")
        .path();
    fs::write(inner.join("value"), "").expect("it is emptied");
    let output = host.putexctl(&["clear", "db"]);
    let said = text(&output.stderr);
    let remedy = said.split('"').find(|part| part.starts_with("mv "));
    let (Some(remedy), false) = (remedy, output.status.success()) else {
        panic!("{said}");
    };
    let words: Vec<&str> = remedy.split(' ').collect();
    fs::rename(words[1], words[2]).expect("it is put aside");
    let after = host.read().await;
    assert_eq!(after.entry, None);
    assert_ne!(after.incarnation, before.incarnation);
}
