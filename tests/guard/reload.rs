//! The guard's program is replaced in place.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Output;

use super::*;

impl Guard {
    fn reload(&self) -> Output {
        self.reload_with(Path::new(env!("CARGO_BIN_EXE_putex-guard")))
    }

    fn reload_with(&self, program: &Path) -> Output {
        let socket = self.root.path().join("reload.sock");
        Command::new(program).args(["reload", "--socket"]).arg(socket).output().expect("runs")
    }

    /// The number of the file that the guard's process executes.
    fn inode(&self) -> u64 {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(format!("/proc/{}/exe", self.child.id())).expect("runs").ino()
    }
}

/// A copy of the guard's program, as an update of the package leaves it.
fn installed(folder: &Path) -> PathBuf {
    let program = folder.join("putex-guard");
    fs::copy(env!("CARGO_BIN_EXE_putex-guard"), &program).expect("is copied");
    program
}

fn text(output: &Output) -> String {
    let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    format!("{:?} {}", output.status.code(), said.concat())
}

#[tokio::test]
async fn a_new_program_goes_on_with_every_lease_and_every_connection() {
    let guard = Guard::start();
    let new = tempfile::tempdir().expect("a folder");
    let program = installed(new.path());
    let client = guard.client().await;
    let mut watcher = UnixStream::connect(guard.root.path().join("watch.sock")).expect("the guard is watched");
    client.arm(lease(1, ms(60_000))).await.expect("arms");
    let closed = Lease { service: ServiceName::new("closed").expect("a good name"), ..lease(2, ms(60_000)) };
    client.arm(closed.clone()).await.expect("arms");
    client.close(&closed.service, Instance(2)).await.expect("closes");
    let grant = fs::read_to_string(guard.grant()).expect("is there");
    let before = guard.inode();

    let reloaded = guard.reload_with(&program);
    assert!(reloaded.status.success(), "{}", text(&reloaded));
    assert_ne!(guard.inode(), before, "the same process executes the new file");
    assert_eq!(fs::read_to_string(guard.grant()).expect("is there"), grant);
    assert_eq!(guard.gate("42"), Some(0));
    assert_eq!(*client.link().borrow(), Link::Up, "putexd has not noticed");
    extend(&client, 1, ms(90_000)).await.expect("extends");
    assert!(matches!(client.arm(closed.clone()).await, Err(GuardError::Refused(_))), "a closed lease stays closed");
    let listed = client.list().await.expect("lists");
    assert_eq!(listed.iter().map(|listed| listed.lease.closing).collect::<Vec<_>>(), [true, false]);
    // The watcher's connection is the same, too: the new program beats on it.
    watcher.set_read_timeout(Some(LIMIT)).expect("a limit");
    let mut beats = 0;
    while beats < 4 {
        watcher.read_exact(&mut [0; 4]).expect("the guard beats");
        beats += 1;
    }
    let again = guard.reload();
    assert!(again.status.success(), "and the program before can be put back: {}", text(&again));
    assert_eq!(guard.inode(), before);
    extend(&client, 1, ms(120_000)).await.expect("extends");
}

#[tokio::test]
async fn a_deadline_that_passes_during_the_exchange_is_enforced_by_the_new_program() {
    let mut guard = Guard::start();
    let client = guard.client().await;
    let begun = clock::now();
    let first = guard.reload();
    assert!(first.status.success(), "{}", text(&first));
    // The exchanges follow each other while one deadline after the other passes, however long one takes on this machine.
    let step = ms(20).max(clock::now().since_at_most(begun) / 10);
    let mut last = clock::now();
    for number in 0..50 {
        let service = ServiceName::new(&format!("s{number}")).expect("a good name");
        let lease = Lease { service, ..lease(number.into(), SHORT + step * number) };
        last = lease.terms.deadline;
        client.arm(lease).await.expect("arms");
    }
    let mut exchanges = 0;
    while !clock::now().has_passed(last) {
        exchanges += u32::from(guard.reload().status.success());
    }
    assert!(exchanges >= 2, "{exchanges}");
    lapse(&client).await;
    assert_eq!(client.list().await.expect("lists").len(), 50);
    assert_eq!(fs::read_dir(guard.root.path().join("leases")).expect("reads").count(), 0);
    let log = guard.kill();
    assert_eq!(log.matches("its lease has lapsed").count(), 50, "{log}");
}

#[tokio::test]
async fn units_that_were_seen_dead_are_told_of_once() {
    let mut guard = Guard::start();
    let client = guard.client().await;
    let lease = lease(1, SHORT);
    let deadline = lease.terms.deadline;
    client.arm(lease).await.expect("arms");
    let begun = clock::now();
    let mut exchanges = 0;
    // The program is not replaced while units are being stopped.
    while exchanges < 3 {
        assert!(clock::now().since_at_most(begun) < LIMIT * 3, "the units are not seen dead");
        let is_over = clock::now().has_passed(deadline);
        exchanges += u32::from(guard.reload().status.success() && is_over);
        sleep(ms(250)).await;
    }
    let log = guard.kill();
    assert_eq!(log.matches("nothing of its units runs any more").count(), 1, "{log}");
}

#[tokio::test]
async fn what_was_handed_over_is_given_back_by_a_program_that_cannot_go_on() {
    let mut guard = Guard::start();
    let client = guard.client().await;
    client.arm(lease(1, ms(60_000))).await.expect("arms");
    let before = guard.inode();
    let programs = Path::new(env!("CARGO_BIN_EXE_putex-guard")).parent().expect("a program lies in a folder");
    examples::build(programs, &["impostor"]);
    let impostor = programs.join("examples/impostor");
    let socket = guard.root.path().join("reload.sock");
    let output = Command::new(impostor).arg(socket).output().expect("runs");
    assert_eq!(text(&output), "Some(0) kept an impostor guards nothing\n");
    assert_eq!(guard.inode(), before);
    assert_eq!(guard.gate("42"), Some(0));
    extend(&client, 1, ms(90_000)).await.expect("extends");
    let again = guard.reload();
    assert!(again.status.success(), "{}", text(&again));
    extend(&client, 1, ms(120_000)).await.expect("extends");
    let log = guard.kill();
    assert!(log.contains("the one before is executed again: an impostor guards nothing"), "{log}");
    assert!(log.contains("the program was replaced in place"), "{log}");
}

#[tokio::test]
async fn whoever_asks_and_says_nothing_good_changes_nothing() {
    let guard = Guard::start();
    let client = guard.client().await;
    client.arm(lease(1, ms(60_000))).await.expect("arms");
    let before = guard.inode();
    let socket = guard.root.path().join("reload.sock");
    let mode = fs::metadata(&socket).expect("is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    for word in [&b"no\n"[..], &[b'x'; 1000], b"\0\n"] {
        let mut asker = UnixStream::connect(&socket).expect("connects");
        asker.set_read_timeout(Some(LIMIT)).expect("a limit");
        asker.write_all(word).expect("writes");
        let mut answer = BufReader::new(asker);
        answer.read_until(b'\n', &mut Vec::new()).expect("what would be handed over");
        let mut said = String::new();
        answer.read_line(&mut said).expect("an answer");
        assert!(said.starts_with("kept "), "{said}");
    }
    // Somebody who connects and says nothing keeps nobody else out for long, and the guard's work goes on.
    let silent = UnixStream::connect(&socket).expect("connects");
    let refused = guard.reload();
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    extend(&client, 1, ms(90_000)).await.expect("extends");
    // It is gone, and another comes, before the guard looks at either.
    guard.signal(rustix::process::Signal::STOP);
    leave(silent);
    let next = UnixStream::connect(&socket).expect("connects");
    guard.signal(rustix::process::Signal::CONT);
    let mut offered = vec![0; 1];
    (&next).read_exact(&mut offered).expect("what would be handed over");
    leave(next);
    let reloaded = guard.reload();
    assert!(reloaded.status.success(), "{}", text(&reloaded));
    assert_eq!(guard.inode(), before);
    let gone = tempfile::tempdir().expect("a folder");
    let program = installed(gone.path());
    // Half of a request is under way: the guard waits for its end.
    drop(client);
    let mut putexd = UnixStream::connect(guard.socket()).expect("connects");
    putexd.write_all(b"{\"id\":7,").expect("writes");
    let waiting = std::thread::spawn({
        let socket = socket.clone();
        move || Command::new(program).args(["reload", "--socket"]).arg(socket).output().expect("runs")
    });
    sleep(ms(300)).await;
    assert!(!waiting.is_finished());
    putexd.write_all(b"\"command\":\"list\"}\n").expect("writes");
    let reloaded = waiting.join().expect("no panic");
    assert!(reloaded.status.success(), "{}", text(&reloaded));
    let mut line = String::new();
    BufReader::new(putexd).read_line(&mut line).expect("the reply");
    assert!(line.contains("\"id\":7"), "{line}");
}

#[tokio::test]
async fn the_watchdogs_device_is_never_closed() {
    let guard = Guard::with_watchdog(Some(""));
    let client = guard.client().await;
    client.arm(lease(1, ms(60_000))).await.expect("arms");
    let reloaded = guard.reload();
    assert!(reloaded.status.success(), "{}", text(&reloaded));
    let written = guard.keep_alives().len();
    extend(&client, 1, ms(90_000)).await.expect("the device still counts");
    timeout(ms(3000), async {
        while guard.keep_alives().len() < written + 2 {
            sleep(ms(20)).await;
        }
    })
    .await
    .expect("keep-alives go on");
    assert!(!guard.keep_alives().contains('V'));
}

/// Closes a connection, also where a child of another test has it until it executes its program.
fn leave(connection: UnixStream) {
    connection.shutdown(Shutdown::Both).expect("is connected");
    drop(connection);
}
