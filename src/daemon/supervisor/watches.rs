//! Watches what all services of the host need: the guard, PID 1, file descriptors.

use std::fs::File;
use std::future::ready;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::TICK;
use crate::daemon::host::Host;
use crate::daemon::local::alarms::Alarms;
use crate::election::rounded;
use crate::facts::alarm::Problem;
use crate::guard_client::Link;
use crate::host::clock;
use crate::host::descriptors;
use crate::systemd::Systemd;

/// How long the guard may give no answer before that is an alarm. One that has ended is replaced within this time.
const GUARD_PATIENCE: Duration = Duration::from_secs(1);
/// How long PID 1 may give no answer before that is an alarm. A PID 1 that has much to do answers sooner.
const SYSTEMD_PATIENCE: Duration = Duration::from_secs(5);
/// For how long files can be opened again until a lack of descriptors is over: what is opened next may take the last one.
const DESCRIPTORS_CALM: Duration = Duration::from_secs(10);
/// A host that is late by so much was not busy but stood still.
const STANDSTILL_MIN: Duration = Duration::from_secs(1);

/// Begins all of them.
pub fn begin(host: &Host, systemd: Systemd) {
    let (link, alarms) = (host.guard.link(), &host.alarms);
    let guard = move || ready((*link.borrow() == Link::Down).then_some(Problem::GuardGone));
    tokio::spawn(watch(
        alarms.clone(),
        (GUARD_PATIENCE, Duration::ZERO),
        guard,
    ));
    // Every unit of the host depends on it, also those that need nothing of it now.
    let pid1 = move || {
        let systemd = systemd.clone();
        async move {
            let state = systemd.is_stopping().await;
            let is_silent = state.is_err_and(|error| error.is_unreachable());
            is_silent.then_some(Problem::SystemdSilent)
        }
    };
    tokio::spawn(watch(
        alarms.clone(),
        (SYSTEMD_PATIENCE, Duration::ZERO),
        pid1,
    ));
    // What cannot be read meanwhile is not known, and is taken for no fact about a unit.
    let descriptors = || {
        let opened = File::open("/dev/null").err();
        let error = opened.filter(descriptors::have_run_out);
        ready(error.map(|error| {
            let error = format!(
                "{error}; what runs goes on, and nothing is started or proven dead here meanwhile"
            );
            Problem::NoDescriptors { error }
        }))
    };
    tokio::spawn(watch(
        alarms.clone(),
        (Duration::ZERO, DESCRIPTORS_CALM),
        descriptors,
    ));
    tokio::spawn(tell_of_thaws());
}

/// Writes to the journal that the host stood still. The task does nothing else, so that no work of its own makes it late.
async fn tell_of_thaws() {
    loop {
        let before = clock::now();
        sleep(TICK).await;
        let late = clock::now().since_at_most(before).saturating_sub(TICK);
        if late >= STANDSTILL_MIN {
            tracing::warn!(
                "this host, or putexd alone, stood still for {}",
                rounded(late)
            );
        }
    }
}

/// Raises an alarm once there was a `problem` at each look for a time, and ends it once there was none for another.
async fn watch<F: Future<Output = Option<Problem>> + Send>(
    alarms: Alarms,
    (patience, calm): (Duration, Duration),
    mut problem: impl FnMut() -> F + Send,
) {
    let (mut good, mut bad) = (Instant::now(), Instant::now());
    let (mut looks, mut stands) = (0, None);
    loop {
        if let Some(problem) = problem().await {
            (looks, bad) = (looks + 1, Instant::now());
            // On a host that stood still one look has found a problem.
            let lasts = patience.is_zero() || (looks > 1 && good.elapsed() >= patience);
            if lasts && stands.replace(problem.kind()).is_none() {
                alarms.raise(problem);
            }
        } else {
            (looks, good) = (0, Instant::now());
            if bad.elapsed() >= calm
                && let Some(kind) = stands.take()
            {
                alarms.clear(kind);
            }
        }
        sleep(TICK).await;
    }
}
