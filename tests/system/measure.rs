//! How long the changes of hands take: three hosts with a NATS cluster on them, at R = 1 s, F = 3, C = 1.
//!
//! Not a part of the suite, because its figures are worth something only on a machine that does nothing else:
//!
//! ```text
//! cargo test --release --test system -- --ignored --nocapture measure
//! ```
//!
//! The store's own time without a leader is measured from outside, by a writer that puts a value into the same bucket
//! every few milliseconds: it is the longest time between two values that were taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::cluster::{Cluster, Cut, Host};
use crate::command::{holds_for, kill, now, wait_until};
use crate::lockstore::Lockstore;
use crate::pauses::overlap;
use crate::scene::{ELECTED, Plan, SOON, Scene, WAIT, wait_for_standby, wait_for_status};
use crate::watch::Event;

const RUNS: usize = 10;
const THAWS: usize = 20;
/// Between two puts, and how long an answer is waited for: a request to a group without a leader is never answered.
const PACE: Duration = Duration::from_millis(5);
const ANSWER: Duration = Duration::from_millis(50);
/// What the issue allows beyond T + C·R and the store's time without a leader.
const SLACK: Duration = Duration::from_millis(500);
const PLANNED: Duration = Duration::from_millis(300);
const THAWED: Duration = Duration::from_millis(30);

/// When a put was answered with success.
struct Writer {
    ended: Arc<AtomicBool>,
    puts: mpsc::Receiver<Duration>,
}

impl Writer {
    /// Writes until it is dropped, through servers whose hosts are not touched meanwhile.
    fn begin(scene: &Scene, servers: &[String]) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (sender, puts) = mpsc::channel();
        let (servers, thread_ended) = (servers.to_vec(), Arc::clone(&ended));
        let switch = scene.switch();
        thread::spawn(move || {
            crate::cluster::in_network(&switch, || {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread may have one");
                runtime.block_on(put(&servers, &thread_ended, &sender));
            });
        });
        let writer = Self { ended, puts };
        writer.puts.recv_timeout(ELECTED).expect("the store takes a value");
        writer
    }

    /// The longest time between two puts that were taken, from `since` until now.
    fn longest_gap(&self, since: Duration) -> Duration {
        let until = now();
        let puts = self.puts.try_iter().filter(|at| *at > since && *at < until);
        let mut last = since;
        let mut longest = Duration::ZERO;
        for at in puts.chain([until]) {
            longest = longest.max(at.saturating_sub(last));
            last = at;
        }
        longest
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

async fn put(servers: &[String], ended: &AtomicBool, puts: &mpsc::Sender<Duration>) {
    let Ok(client) = async_nats::connect(servers).await else { return };
    let mut pace = tokio::time::interval(PACE);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !ended.load(Ordering::Relaxed) {
        pace.tick().await;
        let answer = client.request("$KV.locks.measure", "value".into());
        if let Ok(Ok(answer)) = tokio::time::timeout(ANSWER, answer).await
            && String::from_utf8_lossy(&answer.payload).contains("\"seq\"")
            && puts.send(now()).is_err()
        {
            return;
        }
    }
}

/// Waits until all servers agree and one host has held the lock for a while: each run begins from the same rest.
fn at_rest(scene: &Scene) -> Event {
    scene.locks.on_hosts().wait_for_leader(scene);
    loop {
        let one = scene.wait_for_one_active(ELECTED);
        for host in scene.others(&one) {
            wait_for_status(host, |status| status.contains("db standby (h") || status.contains("db active"));
        }
        let since = now();
        // A server that has come back may still cost an election; and a host that let the lock go waits 2·R.
        while now().saturating_sub(since) < WAIT && scene.oracle.live() == [one.clone()] {
            thread::sleep(PACE);
        }
        if now().saturating_sub(since) >= WAIT {
            return one;
        }
    }
}

fn servers_but(cluster: &Cluster, start: &Event) -> Vec<String> {
    let rest = cluster.hosts.iter().filter(|host| host.name != start.host);
    rest.map(|host| format!("nats://{}:4222", host.address)).collect()
}

#[test]
#[ignore = "takes minutes, and its figures need a machine that does nothing else"]
fn measure() {
    let Some((scene, _)) = Plan::hosts("measure", 3, Lockstore::Nats).servers_on_hosts().run() else { return };
    let mut table = Table::default();
    for run in 1..=RUNS {
        planned(&scene, run, &mut table);
        power_loss(&scene, run, &mut table);
        partition(&scene, run, &mut table);
    }
    table.print();
    scene.assert_no_violation();
    assert!(table.misses.is_empty(), "not as promised: {:#?}", table.misses);
}

/// How long a copy lives that a pause of its whole host has made the old one, by who is there to kill it at the thaw.
#[test]
#[ignore = "takes minutes, and its figures need a machine that does nothing else"]
fn measure_thaws() {
    let plan = Plan::hosts("thaws", 2, Lockstore::Nats).oracle(&["ORACLE_IGNORE_TERM=1"]);
    let Some((scene, mut active)) = plan.run() else { return };
    let mut table = Table::default();
    let those = |host: &Host| {
        let guards = ["putex-guard.service", "putex-guard-watch.service"];
        guards.into_iter().flat_map(|unit| host.processes_of(unit)).collect::<Vec<_>>()
    };
    let without_guard = |host: &Host| {
        host.freeze();
        // It is delivered at the thaw, before they do anything.
        kill("STOP", &those(host));
    };
    let mut rounds = |row: &'static str, runs: usize, sleep: &dyn Fn(&Host), limit: Duration| {
        for run in 1..=runs {
            let host = scene.host_of(&active);
            let (next, span) = overlap(&scene, &active, sleep, &Host::thaw);
            println!("{row}, run {run}: {span:?}");
            table.add(row, span);
            table.require(run, row, span, limit);
            kill("CONT", &those(host));
            wait_for_standby(host);
            active = next;
        }
    };
    rounds("thaw: to the end of the old copy", THAWS, &Host::freeze, THAWED);
    rounds("the same with a guard that hangs, by putexd", RUNS, &without_guard, WAIT);
    table.print();
    assert!(table.misses.is_empty(), "not as promised: {:#?}", table.misses);
}

fn planned(scene: &Scene, run: usize, table: &mut Table) {
    let old = at_rest(scene);
    let host = scene.host_of(&old);
    let asked = now();
    host.exec(&["systemctl", "stop", "putexd.service"]);
    let new = scene.wait_for_takeover(&old, asked, ELECTED, &format!("run {run}: planned hand-over"));
    let stopped = scene.stop_of(&old).expect("it was stopped in order");
    table.add("planned: old stop to new start", new.after(stopped));
    table.require(run, "planned hand-over", new.after(stopped), PLANNED);
    wait_until(ELECTED, "putexd has stopped", || host.property("putexd.service", "ActiveState") == "inactive");
    host.exec(&["systemctl", "start", "putexd.service"]);
}

fn power_loss(scene: &Scene, run: usize, table: &mut Table) {
    let old = at_rest(scene);
    let host = scene.host_of(&old);
    let writer = Writer::begin(scene, &servers_but(scene, &old));
    let lost = host.power_off_hard();
    let new = scene.wait_for_takeover(&old, lost, ELECTED, &format!("run {run}: power loss"));
    let leaderless = writer.longest_gap(lost);
    drop(writer);
    table.add("power loss: to the start elsewhere", new.after(lost));
    table.add("power loss: the store without a leader", leaderless);
    table.add("power loss: the start less the leaderless time", (new.after(lost)).saturating_sub(leaderless));
    table.require(run, "power loss", new.after(lost), WAIT + SLACK + leaderless);
    host.boot();
}

fn partition(scene: &Scene, run: usize, table: &mut Table) {
    let old = at_rest(scene);
    let host = scene.host_of(&old);
    let writer = Writer::begin(scene, &servers_but(scene, &old));
    let cut = now();
    host.partition(Cut::Silent);
    let new = scene.wait_for_takeover(&old, cut, ELECTED, &format!("run {run}: silent partition"));
    let end = scene.oracle.wait_for_end(&old, SOON);
    table.add("partition: to the start elsewhere", new.after(cut));
    table.add("partition: the store without a leader", writer.longest_gap(cut));
    table.add("partition: to the end of the old copy", end.after(cut));
    table.add("partition: old end to new start", new.after(end.at));
    drop(writer);
    host.heal();
    holds_for(Duration::from_secs(1), "no second copy", || scene.oracle.violations().is_empty());
}

#[derive(Default)]
struct Table {
    rows: Vec<(&'static str, Vec<Duration>)>,
    misses: Vec<String>,
}

impl Table {
    fn add(&mut self, row: &'static str, span: Duration) {
        if let Some((_, spans)) = self.rows.iter_mut().find(|(name, _)| *name == row) {
            spans.push(span);
        } else {
            self.rows.push((row, vec![span]));
        }
    }

    fn require(&mut self, run: usize, what: &str, span: Duration, limit: Duration) {
        if span > limit {
            self.misses.push(format!("run {run}: {what} took {span:.3?}, allowed are {limit:.3?}"));
        }
    }

    fn print(&self) {
        println!("\n{:<50} {:>4} {:>8} {:>8} {:>8}", "seconds", "runs", "min", "median", "max");
        for (name, spans) in &self.rows {
            let mut seconds: Vec<f64> = spans.iter().map(Duration::as_secs_f64).collect();
            seconds.sort_by(f64::total_cmp);
            let (min, median, max) = (seconds[0], seconds[seconds.len() / 2], seconds[seconds.len() - 1]);
            println!("{name:<50} {:>4} {min:>8.3} {median:>8.3} {max:>8.3}", seconds.len());
        }
    }
}
