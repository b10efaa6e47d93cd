//! Commands on this machine, and waiting for conditions.

use std::{
    fmt::Write as _,
    path::Path,
    process::{Command, Output, Stdio},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
    time::{ClockId, clock_gettime},
};

/// Time between two looks at a condition.
const POLL: Duration = Duration::from_millis(10);

/// Sets its flag when it is dropped, so that a test that fails ends its threads too.
pub struct EndsAtDrop<'a>(pub &'a AtomicBool);

impl Drop for EndsAtDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// CLOCK_MONOTONIC, which the lines of the oracle use. It is the same for this process and all hosts.
pub fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(
        now.tv_sec.unsigned_abs(),
        u32::try_from(now.tv_nsec).expect("nanoseconds are below a second"),
    )
}

/// How long ago `earlier` was, on the clock of [`now`].
pub fn since(earlier: Duration) -> Duration {
    now().saturating_sub(earlier)
}

/// Calls `look` until it returns something, which is then returned. After `limit` it fails the test, naming `what` it
/// waited for.
#[track_caller]
pub fn wait_for<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited {limit:?} in vain: {what}");
        thread::sleep(POLL);
    }
}

/// As [`wait_for`], for a condition without a value.
#[track_caller]
pub fn wait_until(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(limit, what, || holds().then_some(()));
}

/// Fails the test when `holds` turns false within `span`, to check that something does *not* happen.
#[track_caller]
pub fn holds_for(span: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + span;
    while Instant::now() < end {
        assert!(holds(), "no longer so: {what}");
        thread::sleep(POLL);
    }
}

/// Runs a command on this machine without input. The command may fail.
pub fn output(program: impl AsRef<Path>, arguments: &[&str]) -> Output {
    let program = program.as_ref();
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("failed to run {}: {error}", program.display()))
}

/// Runs a command on this machine, which must succeed, and returns its standard output.
#[track_caller]
pub fn run(program: impl AsRef<Path>, arguments: &[&str]) -> String {
    let program = program.as_ref();
    let output = output(program, arguments);
    assert!(
        output.status.success(),
        "{} {}: {}",
        program.display(),
        arguments.join(" "),
        said(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Sends a signal to processes of this machine. A process that has ended since it was listed is skipped.
#[track_caller]
pub fn kill(signal: Signal, processes: &[u32]) {
    for process in processes {
        let pid = i32::try_from(*process)
            .ok()
            .and_then(Pid::from_raw)
            .expect("a process has a positive number");
        let sent = kill_process(pid, signal);
        assert!(
            matches!(sent, Ok(()) | Err(Errno::SRCH)),
            "{signal:?} to process {pid:?}: {sent:?}"
        );
    }
}

/// Runs a command that reads its input, such as `ip -batch -` or `nft -f -`, and must succeed.
#[track_caller]
pub fn run_with_input(program: &str, arguments: &[&str], input: &str) {
    use std::io::Write as _;

    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("failed to run {program}: {error}"));
    child
        .stdin
        .take()
        .expect("standard input is piped")
        .write_all(input.as_bytes())
        .expect("the program reads its orders");
    let output = child
        .wait_with_output()
        .expect("the program can be waited for");
    assert!(
        output.status.success(),
        "{program} {} with\n{input}\n{}",
        arguments.join(" "),
        said(&output)
    );
}

/// Locks what the hosts and servers keep. A test that failed while it held the lock still has to clean up.
pub fn lock<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a command ended, and its output on both streams.
pub fn said(output: &Output) -> String {
    let mut text = output.status.to_string();
    for stream in [&output.stdout, &output.stderr] {
        let stream = String::from_utf8_lossy(stream);
        if !stream.trim().is_empty() {
            write!(text, "\n{}", stream.trim_end()).expect("a string takes all text");
        }
    }
    text
}
