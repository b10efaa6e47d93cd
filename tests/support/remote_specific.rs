//! The store by way of its process: what happens when that ends or stands still.

use std::{
    sync::mpsc::{self, Receiver},
    time::{Duration, Instant},
};

use putexd::{
    frames::Role,
    store::{
        Link, Store, StoreSettings, WriteOutcome, files::Files, nats::NatsStore,
        remote::RemoteStore,
    },
};
use rustix::process::{Pid, Signal, kill_process};

use super::{
    attempt, held_by, key, made, nats_server::NatsServer, net_process::start_and_tell,
    process::PATIENCE, read, up, usable, within, won,
};

/// The store of this server, and the processes that it has one after another.
fn store(server: &NatsServer, call_limit: Duration) -> (RemoteStore, Receiver<Pid>) {
    let (tell, pids) = mpsc::channel();
    let store = RemoteStore::new(
        StoreSettings::Nats(server.settings()),
        call_limit,
        move |_| {
            let tell = tell.clone();
            start_and_tell(env!("CARGO_BIN_EXE_putex-net"), Role::Store, move |pid| {
                let pid =
                    Pid::from_raw(pid.try_into().expect("a process id")).expect("a process id");
                tell.send(pid).expect("the test waits");
            })
        },
    );
    (store, pids)
}

/// Calls until one succeeds, and returns how long that took.
async fn back(store: &RemoteStore) -> Duration {
    let began = Instant::now();
    while let Err(error) = store.read(&key(), None).await {
        assert!(began.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    began.elapsed()
}

#[tokio::test]
async fn a_process_that_dies_or_stands_still_is_a_store_that_does_not_answer_for_a_while() {
    const R: Duration = Duration::from_secs(2);
    let server = NatsServer::start("");
    let (store, pids) = store(&server, R);
    let store = made(store).await;
    for (signal, limit) in [(Signal::KILL, R / 2), (Signal::STOP, R)] {
        let pid = pids.recv_timeout(PATIENCE).expect("it was started");
        kill_process(pid, signal).expect("it is there");
        let took = back(&store).await;
        println!("{signal:?}: {took:?}");
        // A machine with work of its own takes a while to start a process.
        assert!(
            took < limit + Duration::from_secs(1),
            "{signal:?}: {took:?}"
        );
        up(&store).await;
        let _ = kill_process(pid, Signal::KILL);
    }
}

#[tokio::test]
async fn a_write_that_was_given_up_is_not_sent_when_the_process_goes_on() {
    const LIMIT: Duration = Duration::from_millis(400);
    let server = NatsServer::start("");
    let (store, pids) = store(&server, LIMIT);
    let store = made(store).await;
    let before = read(&store, &key()).await;
    let pid = pids.recv_timeout(PATIENCE).expect("it was started");
    kill_process(pid, Signal::STOP).expect("it is there");
    let late = attempt(&before, held_by("late"));
    let until = tokio::time::Instant::now() + 2 * LIMIT;
    let outcome = within(store.compare_and_set(&key(), &late)).await;
    assert!(matches!(outcome, WriteOutcome::Unknown(_)), "{outcome:?}");
    // It reads what was sent to it, when that is too late, and then that putexd has gone.
    tokio::time::sleep_until(until).await;
    kill_process(pid, Signal::CONT).expect("it is there");
    let gone = Instant::now();
    while std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
        .is_ok_and(|stat| !stat.contains(") Z "))
    {
        assert!(gone.elapsed() < PATIENCE, "it does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    back(&store).await;
    assert_eq!(read(&store, &key()).await.entry, before.entry);
    won(&store, &key(), &attempt(&before, held_by("next"))).await;
    within(store.link().wait_for(Link::is_up))
        .await
        .expect("it is connected");
}

/// What a call and the process cost: the median of a read by way of the process, less that of a read without, and its memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, on a machine that does nothing else"]
async fn measure_a_call() {
    let server = NatsServer::start("");
    let limit = Duration::from_secs(2);
    let (remote, pids) = store(&server, limit);
    let direct = NatsStore::new(server.settings(), limit, Files::of_this_host());
    let remote = made(remote).await;
    usable(&direct, &key()).await;
    let mut spans: [Vec<Duration>; 2] = Default::default();
    for _ in 0..200 {
        for (store, spans) in [&remote as &dyn Store, &direct].into_iter().zip(&mut spans) {
            // So many calls in a row would wait for each other, see `IDENTITIES_IN_A_CALL`; and both begin on a machine that rests.
            tokio::time::sleep(limit / 40).await;
            let began = Instant::now();
            read(store, &key()).await;
            spans.push(began.elapsed());
        }
    }
    let [remote, direct] = spans.map(|mut spans| {
        spans.sort();
        spans[spans.len() / 2]
    });
    println!("a read: {remote:?} by way of the process, {direct:?} without");
    let pid = pids.recv_timeout(PATIENCE).expect("it was started");
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).expect("it runs");
    status
        .lines()
        .filter(|line| line.starts_with("Rss"))
        .for_each(|line| println!("{line}"));
}
