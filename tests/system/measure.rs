//! How long changes of holder take: three hosts with a NATS cluster on them, at R = 1 s, F = 3, C = 1.
//!
//! It is not a part of the suite, because its figures are worth something only on a machine that does nothing else:
//!
//! ```text
//! cargo test --release --test system -- --ignored --nocapture measure
//! PUTEX_ROUNDS=50 cargo test --release --test system -- --ignored --nocapture measure_planned measure_power_loss
//! PUTEX_FAST_MS=50 PUTEX_MINUTES=10 PUTEX_ROUNDS=10 \
//!     cargo test --release --all-features --test system -- --ignored --nocapture measure_fast
//! PUTEX_NATS_SERVER=/path/of/a/newer/nats-server PUTEX_ROUNDS=8 \
//!     cargo test --release --test system -- --ignored --nocapture measure_silence
//! ```
//!
//! For each change of holder that took longer than it should, it prints what was written to the lock meanwhile, as the
//! store has it, and what the hosts logged about it.
//!
//! The store's own time without a leader is measured from outside, by a writer that puts a value into the same bucket
//! every few milliseconds. It is the longest time between two values that were accepted.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use async_nats::jetstream::{message::StreamMessage, stream::RawMessage};
use rustix::process::Signal;
use serde_json::json;

use crate::{
    campaign::{number, seconds_since_1970},
    cluster::{Cluster, Cut, Host},
    command::{holds_for, kill, now, wait_until},
    fixture::{ELECTED, Fixture, Plan, SOON, WAIT, wait_for_standby, wait_for_status},
    lockstore::Lockstore,
    pauses::overlap,
    watch::Event,
};

const RUNS: usize = 10;
/// Environment variable: how often each change is measured, instead of `RUNS` times.
const ROUNDS: &str = "PUTEX_ROUNDS";
const THAWS: usize = 20;
/// The pause between two puts, and how long an answer is waited for. A request to a group without a leader is never
/// answered.
const PACE: Duration = Duration::from_millis(5);
const ANSWER: Duration = Duration::from_millis(50);
/// What the requirement allows beyond T + C·R and the store's time without a leader.
const SLACK: Duration = Duration::from_millis(500);
const PLANNED: Duration = Duration::from_millis(500);
/// The limit of the median of planned changes.
const PLANNED_MEDIAN: Duration = Duration::from_millis(80);
const IDLE: Duration = Duration::from_secs(60);
/// How long a host stays cut off after another has taken over, and how long the servers are watched after the heal.
const HEALED: Duration = Duration::from_secs(20);
const THAWED: Duration = Duration::from_millis(30);
/// Environment variables: R of `measure_fast` in milliseconds, and for how many minutes its leases are to be kept.
const FAST_MS: &str = "PUTEX_FAST_MS";
const FAST_MINUTES: &str = "PUTEX_MINUTES";
const FAST_NAMES: [&str; 10] = ["db", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "f9"];
/// Limit beyond T + C·R, until all ten services are started.
const FAST_SLACK: Duration = Duration::from_millis(100);

/// A client of the bucket on a thread of its own, and the times at which its puts were answered with success.
struct Writer {
    ended: Arc<AtomicBool>,
    puts: mpsc::Receiver<Duration>,
}

impl Writer {
    /// Writes until it is dropped, through servers whose hosts are not broken meanwhile.
    fn begin(fixture: &Fixture, servers: &[String]) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (sender, puts) = mpsc::channel();
        let (servers, thread_ended) = (servers.to_vec(), Arc::clone(&ended));
        let switch = fixture.switch();
        thread::spawn(move || {
            crate::cluster::in_network(&switch, || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a thread may have one");
                runtime.block_on(put(&servers, &thread_ended, &sender));
            });
        });
        let writer = Self { ended, puts };
        writer
            .puts
            .recv_timeout(ELECTED)
            .expect("the store takes a value");
        writer
    }

    /// The longest time between two successful puts, from `since` until now.
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
    let Ok(client) = async_nats::connect(servers).await else {
        return;
    };
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

/// Waits until all servers agree and one host has held the lock for a while, so that each run begins from the same
/// state.
fn at_rest(fixture: &Fixture) -> Event {
    fixture.locks.on_hosts().wait_for_leader(fixture);
    loop {
        let one = fixture.wait_for_one_active(ELECTED);
        for host in fixture.others(&one) {
            wait_for_status(host, |status| {
                status.contains("db standby (h") || status.contains("db active")
            });
        }
        let since = now();
        // A server that has come back may still cost an election, and a host that released the lock waits 2·R.
        while now().saturating_sub(since) < WAIT && fixture.oracle.live() == [one.clone()] {
            thread::sleep(PACE);
        }
        if now().saturating_sub(since) >= WAIT {
            return one;
        }
    }
}

fn servers_but(cluster: &Cluster, start: &Event) -> Vec<String> {
    let rest = cluster.hosts.iter().filter(|host| host.name != start.host);
    rest.map(|host| format!("nats://{}:4222", host.address))
        .collect()
}

#[test]
#[ignore = "takes minutes, and its figures need a machine that does nothing else"]
fn measure() {
    let Some((fixture, _)) = Plan::hosts("measure", 3, Lockstore::Nats)
        .servers_on_hosts()
        .run()
    else {
        return;
    };
    let mut table = Table::default();
    for run in 1..=rounds() {
        planned(&fixture, run, &mut table);
        power_loss(&fixture, run, &mut table);
        partition(&fixture, run, &mut table);
    }
    table.print();
    fixture.assert_no_violation();
    assert!(
        table.misses.is_empty(),
        "not as promised: {:#?}",
        table.misses
    );
}

/// Measures planned hand-overs alone.
#[test]
#[ignore = "takes minutes, and its figures need a machine that does nothing else"]
fn measure_planned() {
    let Some((fixture, _)) = Plan::hosts("planned", 3, Lockstore::Nats)
        .servers_on_hosts()
        .run()
    else {
        return;
    };
    let mut table = Table::default();
    every_host_holds_once(&fixture);
    (1..=rounds()).for_each(|run| planned(&fixture, run, &mut table));
    table.print();
    let median = table.part(PLANNED_ROW, 50);
    if median > PLANNED_MEDIAN {
        table.misses.push(format!(
            "the median of planned hand-overs is {median:.3?}, allowed are {PLANNED_MEDIAN:.3?}"
        ));
    }
    fixture.assert_no_violation();
    assert!(
        table.misses.is_empty(),
        "not as promised: {:#?}",
        table.misses
    );
}

/// Has each host hold the lock once. A host that has never held it comes behind the others in turn (taking, K2), and would
/// never take it.
fn every_host_holds_once(fixture: &Fixture) {
    for host in &fixture.hosts {
        let others = || fixture.hosts.iter().filter(|other| other.name != host.name);
        others().for_each(|other| _ = other.exec(&["systemctl", "stop", "putexd.service"]));
        wait_until(ELECTED, "the host is active", || {
            host.property("putexd.service", "StatusText")
                .contains("db active")
        });
        others().for_each(|other| _ = other.exec(&["systemctl", "start", "putexd.service"]));
    }
}

/// Measures power losses alone.
#[test]
#[ignore = "takes minutes, and its figures need a machine that does nothing else"]
fn measure_power_loss() {
    let Some((fixture, _)) = Plan::hosts("losses", 3, Lockstore::Nats)
        .servers_on_hosts()
        .run()
    else {
        return;
    };
    let mut table = Table::default();
    (1..=rounds()).for_each(|run| power_loss(&fixture, run, &mut table));
    table.print();
    fixture.assert_no_violation();
    assert!(
        table.misses.is_empty(),
        "not as promised: {:#?}",
        table.misses
    );
}

/// Measures how soon the remaining hosts hear of the lock again when a partition takes its holder and the server that
/// leads the bucket. Their journals tell what the store answered.
#[test]
#[ignore = "takes minutes, and its figures need a machine that does nothing else"]
fn measure_silence() {
    let log = "[Service]\nEnvironment=PUTEX_LOG=putexd=debug\n";
    let plan = Plan::hosts("silence", 3, Lockstore::Nats).servers_on_hosts();
    let Some((fixture, _)) = plan
        .file("/etc/systemd/system/putexd.service.d/log.conf", log)
        .run()
    else {
        return;
    };
    println!(
        "{}",
        fixture.hosts[0].exec(&["nats-server", "--version"]).trim()
    );
    let mut table = Table::default();
    let mut ridden_through = 0;
    for run in 1..=rounds() {
        let old = at_rest(&fixture);
        let host = fixture.host_of(&old);
        have_bucket_led_by(&fixture, &host.name);
        let writer = Writer::begin(&fixture, &servers_but(&fixture, &old));
        let (cut, began) = (now(), seconds_since_1970());
        host.partition(Cut::Silent);
        let new = fixture.wait_for_takeover(
            &old,
            cut,
            ELECTED,
            &format!("run {run}: partition with the leader"),
        );
        let leaderless = writer.longest_gap(cut);
        drop(writer);
        table.add("silence: to the start elsewhere", new.after(cut));
        table.add("silence: the store without a leader", leaderless);
        table.add(
            "silence: the start less the leaderless time",
            new.after(cut).saturating_sub(leaderless),
        );
        println!(
            "run {run}: started after {:.3?}, leaderless {leaderless:.3?}",
            new.after(cut)
        );
        explain(&fixture, began);
        // By then the server that is cut off has stepped down, and asks to be elected.
        holds_for(HEALED, "no second copy", || {
            fixture.oracle.violations().is_empty()
        });
        let writer = Writer::begin(&fixture, &servers_but(&fixture, &old));
        let healed = now();
        host.heal();
        holds_for(HEALED, "no second copy", || {
            fixture.oracle.violations().is_empty()
        });
        let leaderless = writer.longest_gap(healed);
        let lost = fixture.oracle.ends().get(&new.id).copied();
        let fate = match lost {
            None => "rode through".to_owned(),
            Some(end) if end < healed => {
                format!("had lost it {:.3?} before", healed.saturating_sub(end))
            }
            Some(end) => format!("lost it {:.3?} after", end.saturating_sub(healed)),
        };
        println!("run {run}: after the heal leaderless {leaderless:.3?}; the holder {fate}");
        let journal = fixture.host_of(&new).journal(&["putexd.service"]);
        if let Some(why) = journal
            .lines()
            .rfind(|line| line.contains("(was active)"))
            .filter(|_| lost.is_some())
        {
            println!("run {run}: {why}");
        }
        ridden_through += usize::from(lost.is_none());
        table.add("heal: the store without a leader", leaderless);
    }
    println!(
        "{ridden_through} of {} holders rode through the heal",
        rounds()
    );
    table.print();
    fixture.assert_no_violation();
}

/// Makes the server of that host lead the bucket. NATS chooses the new leader, so the leader is told to step down again
/// and again until it is that server.
fn have_bucket_led_by(fixture: &Fixture, name: &str) {
    wait_until(ELECTED, "the host's server leads the bucket", || {
        let leader = asked(fixture, "STREAM.INFO.KV_locks", "").and_then(|info| {
            info.pointer("/cluster/leader")
                .and_then(|leader| leader.as_str().map(str::to_owned))
        });
        if leader.as_deref() != Some(name) {
            asked(fixture, "STREAM.LEADER.STEPDOWN.KV_locks", "");
            thread::sleep(WAIT / 4);
        }
        leader.as_deref() == Some(name)
    });
}

/// One answer of the JetStream API, if there is one.
fn asked(fixture: &Fixture, verb: &str, question: &str) -> Option<serde_json::Value> {
    let servers = fixture.locks.on_hosts().urls(fixture);
    fixture.ask_on_the_switch(async || {
        let client = async_nats::connect(&servers).await.ok()?;
        let answer = client
            .request(format!("$JS.API.{verb}"), question.to_owned().into())
            .await
            .ok()?;
        serde_json::from_slice(&answer.payload).ok()
    })
}

fn rounds() -> usize {
    number(ROUNDS).unwrap_or(RUNS)
}

/// Measures how long a copy lives on that was replaced while its whole host stood still, by which process is there to
/// kill it at the thaw.
#[test]
#[ignore = "takes minutes, and its figures need a machine that does nothing else"]
fn measure_thaws() {
    let plan = Plan::hosts("thaws", 2, Lockstore::Nats).oracle(&["ORACLE_IGNORE_TERM=1"]);
    let Some((fixture, mut active)) = plan.run() else {
        return;
    };
    let mut table = Table::default();
    let those = |host: &Host| {
        let guards = ["putex-guard.service", "putex-guard-watch.service"];
        guards
            .into_iter()
            .flat_map(|unit| host.processes_of(unit))
            .collect::<Vec<_>>()
    };
    let without_guard = |host: &Host| {
        host.freeze();
        // The signal is delivered at the thaw, before these processes do anything.
        kill(Signal::STOP, &those(host));
    };
    let mut rounds = |row: &'static str, runs: usize, sleep: &dyn Fn(&Host), limit: Duration| {
        for run in 1..=runs {
            let host = fixture.host_of(&active);
            let (next, span) = overlap(&fixture, &active, sleep, &Host::thaw);
            println!("{row}, run {run}: {span:?}");
            table.add(row, span);
            table.require(run, row, span, limit);
            kill(Signal::CONT, &those(host));
            wait_for_standby(host);
            active = next;
        }
    };
    rounds(
        "thaw: to the end of the old copy",
        THAWS,
        &Host::freeze,
        THAWED,
    );
    rounds(
        "the same with a guard that hangs, by putexd",
        RUNS,
        &without_guard,
        WAIT,
    );
    table.print();
    assert!(
        table.misses.is_empty(),
        "not as promised: {:#?}",
        table.misses
    );
}

/// Measures the share of one core that putexd, PID 1 and the bus need while nothing happens, with ten services on two
/// hosts.
#[test]
#[ignore = "takes minutes, and its figures need a machine that does nothing else"]
fn measure_idle() {
    const NAMES: [&str; 10] = ["db", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9"];
    for renew_interval in ["1s", "3s"] {
        let plan = NAMES
            .into_iter()
            .fold(Plan::hosts("idle", 2, Lockstore::Nats), |plan, name| {
                let service = format!(
                    "unit = \"idle-{name}.service\"\nrenew-interval = \"{renew_interval}\"\n"
                );
                plan.service(name, service).unit(
                    &format!("idle-{name}"),
                    "[Service]\nExecStart=/usr/bin/sleep infinity\n",
                )
            });
        let Some(fixture) = plan.begin() else { return };
        let active = |host: &Host| {
            let active = |name: &&str| {
                host.property(&format!("idle-{name}.service"), "ActiveState") == "active"
            };
            NAMES.iter().filter(|name| active(name)).count()
        };
        wait_until(ELECTED, "all run", || {
            fixture.hosts.iter().map(active).sum::<usize>() == NAMES.len()
        });
        thread::sleep(IDLE / 4);
        let those = |host: &Host| {
            [
                host.processes_of("putexd.service"),
                vec![host.pid1()],
                host.processes_of("dbus.service"),
            ]
        };
        let spent = || {
            fixture
                .hosts
                .iter()
                .map(|host| those(host).map(|processes| ticks(&processes)))
                .collect::<Vec<_>>()
        };
        let before = spent();
        thread::sleep(IDLE);
        for ((host, before), after) in fixture.hosts.iter().zip(before).zip(spent()) {
            // A second has a hundred ticks.
            let percent = |what: usize| f64::from(after[what] - before[what]) / IDLE.as_secs_f64();
            println!(
                "R = {renew_interval}, {}, {} of {} active: putexd {:.1} %, PID 1 {:.1} %, bus {:.1} % of a core",
                host.name,
                active(host),
                NAMES.len(),
                percent(0),
                percent(1),
                percent(2)
            );
        }
    }
}

/// Measures how soon ten services with a short lease run elsewhere after a power loss, and whether they keep their leases on a
/// machine that does nothing else. The servers of the store are beside the hosts, so that the loss of a host costs the store no
/// election.
#[test]
#[ignore = "takes minutes, and its figures need a machine that does nothing else"]
fn measure_fast() {
    for (name, store) in [
        ("fast-nats", Lockstore::Nats),
        ("fast-etcd", Lockstore::Etcd),
    ] {
        fast(name, store);
    }
}

fn fast(name: &'static str, store: Lockstore) {
    let milliseconds: u64 = number(FAST_MS).unwrap_or(100);
    // The margin, which is at least 25 ms, must be below T/3. With F = 3 there is too little room for it at such an R.
    let failures = if milliseconds < 50 { 4 } else { 3 };
    let renew_interval = Duration::from_millis(milliseconds);
    let plan = FAST_NAMES
        .into_iter()
        .fold(Plan::hosts(name, 2, store), |plan, name| {
            let timings = format!(
                "renew-interval = \"{milliseconds}ms\"\nfailures = {failures}\nconfirmations = 1\n"
            );
            let unit = "[Service]\nExecStart=/usr/bin/sleep infinity\n";
            plan.service(name, format!("unit = \"fast-{name}.service\"\n{timings}"))
                .unit(&format!("fast-{name}"), unit)
        });
    let Some(fixture) = plan.begin() else { return };
    let starts = |host: &Host| {
        FAST_NAMES.map(|name| {
            host.property(
                &format!("fast-{name}.service"),
                "ActiveEnterTimestampMonotonic",
            )
        })
    };
    let active = |host: &Host| {
        let units = FAST_NAMES.map(|name| format!("fast-{name}.service"));
        units
            .iter()
            .filter(|unit| host.property(unit, "ActiveState") == "active")
            .count()
    };
    let wait = renew_interval * (failures + 1);
    let mut table = Table::default();
    for run in 1..=rounds() {
        wait_until(ELECTED, "all run", || {
            fixture.hosts.iter().map(active).sum::<usize>() == FAST_NAMES.len()
        });
        if run == 1 {
            let before = fixture.hosts.iter().map(starts).collect::<Vec<_>>();
            let rest = Duration::from_secs(60) * number::<u32>(FAST_MINUTES).unwrap_or(10);
            thread::sleep(rest);
            let after = fixture.hosts.iter().map(starts).collect::<Vec<_>>();
            let moved = before
                .iter()
                .flatten()
                .zip(after.iter().flatten())
                .filter(|(before, after)| before != after)
                .count();
            println!("{name}, R = {milliseconds} ms: {moved} starts in {rest:?} at rest");
            if moved > 0 {
                table
                    .misses
                    .push(format!("{name}: {moved} leases were lost at rest"));
            }
        }
        // The host that runs more of the services is the one that is lost.
        let lost = fixture
            .hosts
            .iter()
            .max_by_key(|host| active(host))
            .expect("two hosts");
        let other = fixture
            .hosts
            .iter()
            .find(|host| host.name != lost.name)
            .expect("two hosts");
        let at = lost.power_off_hard();
        wait_until(ELECTED, "all run elsewhere", || {
            active(other) == FAST_NAMES.len()
        });
        let latest = starts(other)
            .iter()
            .filter_map(|start| start.parse().ok())
            .map(Duration::from_micros)
            .max();
        let span = latest.expect("they are started").saturating_sub(at);
        println!("{name}, run {run}: the last of them after {span:.3?}");
        table.add("fast: to the last start elsewhere", span);
        table.require(run, name, span, wait + FAST_SLACK);
        lost.boot();
    }
    table.print();
    assert!(
        table.misses.is_empty(),
        "not as promised: {:#?}",
        table.misses
    );
}

/// The processor time of processes, in user and kernel mode, in hundredths of a second.
fn ticks(processes: &[u32]) -> u32 {
    let of = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
        let (_, fields) = stat
            .rsplit_once(')')
            .expect("the command is in parentheses");
        let fields: Vec<&str> = fields.split_whitespace().collect();
        [fields[11], fields[12]]
            .map(|field| field.parse::<u32>().expect("a number"))
            .iter()
            .sum::<u32>()
    };
    processes.iter().map(of).sum()
}

fn planned(fixture: &Fixture, run: usize, table: &mut Table) {
    let old = at_rest(fixture);
    let host = fixture.host_of(&old);
    let (asked, began) = (now(), seconds_since_1970());
    host.exec(&["systemctl", "stop", "putexd.service"]);
    let new = fixture.wait_for_takeover(
        &old,
        asked,
        ELECTED,
        &format!("run {run}: planned hand-over"),
    );
    let stopped = fixture.stop_of(&old).expect("it was stopped in order");
    table.add(PLANNED_ROW, new.after(stopped));
    if !table.require(run, "planned hand-over", new.after(stopped), PLANNED) {
        explain(fixture, began);
    }
    wait_until(ELECTED, "putexd has stopped", || {
        host.property("putexd.service", "ActiveState") == "inactive"
    });
    host.exec(&["systemctl", "start", "putexd.service"]);
}

fn power_loss(fixture: &Fixture, run: usize, table: &mut Table) {
    let old = at_rest(fixture);
    let host = fixture.host_of(&old);
    let writer = Writer::begin(fixture, &servers_but(fixture, &old));
    let began = seconds_since_1970();
    let lost = host.power_off_hard();
    let new = fixture.wait_for_takeover(&old, lost, ELECTED, &format!("run {run}: power loss"));
    let leaderless = writer.longest_gap(lost);
    drop(writer);
    table.add("power loss: to the start elsewhere", new.after(lost));
    table.add("power loss: the store without a leader", leaderless);
    table.add(
        "power loss: the start less the leaderless time",
        (new.after(lost)).saturating_sub(leaderless),
    );
    if !table.require(
        run,
        "power loss",
        new.after(lost),
        WAIT + SLACK + leaderless,
    ) {
        explain(fixture, began);
    }
    host.boot();
}

fn partition(fixture: &Fixture, run: usize, table: &mut Table) {
    let old = at_rest(fixture);
    let host = fixture.host_of(&old);
    let writer = Writer::begin(fixture, &servers_but(fixture, &old));
    let cut = now();
    host.partition(Cut::Silent);
    let new =
        fixture.wait_for_takeover(&old, cut, ELECTED, &format!("run {run}: silent partition"));
    let end = fixture.oracle.wait_for_end(&old, SOON);
    table.add("partition: to the start elsewhere", new.after(cut));
    table.add(
        "partition: the store without a leader",
        writer.longest_gap(cut),
    );
    table.add("partition: to the end of the old copy", end.after(cut));
    table.add("partition: old end to new start", new.after(end.at));
    drop(writer);
    host.heal();
    holds_for(Duration::from_secs(1), "no second copy", || {
        fixture.oracle.violations().is_empty()
    });
}

/// Prints what was written to the lock since `began`, in seconds since 1970, and what the hosts logged about it. Two
/// writes on one base come from two hosts that both wanted the lock.
fn explain(fixture: &Fixture, began: u64) {
    for (revision, base, text) in writes_since(fixture, began) {
        println!("    the store: revision {revision} on {base}: {text}");
    }
    for host in &fixture.hosts {
        let journal = host.journal_since(began);
        for line in journal.lines().filter(|line| line.contains(" putexd[")) {
            println!("    {line}");
        }
    }
}

/// Each write of the lock that the store still has: its revision, the revision that it says it replaced, and the rest as
/// text.
fn writes_since(fixture: &Fixture, began: u64) -> Vec<(u64, String, String)> {
    let servers = fixture.locks.on_hosts().urls(fixture);
    fixture.ask_on_the_switch(async || {
        let mut writes = Vec::new();
        let Ok(client) = async_nats::connect(&servers).await else {
            return writes;
        };
        let mut from = 1;
        loop {
            let question = json!({ "next_by_subj": "$KV.locks.db", "seq": from }).to_string();
            let answer = client
                .request("$JS.API.STREAM.MSG.GET.KV_locks", question.into())
                .await;
            let Some(message) = answer.ok().and_then(|answer| message_of(&answer.payload)) else {
                return writes;
            };
            from = message.sequence + 1;
            if message.time.unix_timestamp() < i64::try_from(began).unwrap_or(i64::MAX) {
                continue;
            }
            let header = |name: &str| {
                message
                    .headers
                    .get(name)
                    .map_or("-", |value| value.as_str())
                    .to_owned()
            };
            let (holder, state) = (
                String::from_utf8_lossy(&message.payload),
                header("Putex-State"),
            );
            let machine = header("Putex-Machine");
            let author = fixture
                .hosts
                .iter()
                .find(|host| host.machine_id() == machine);
            let author = author.map_or("nobody known", |host| host.name.as_str());
            let text = format!(
                "{} by {author}, {state}, holder {holder:?}",
                message.time.time()
            );
            writes.push((message.sequence, header("Putexd-Base"), text));
        }
    })
}

fn message_of(answer: &[u8]) -> Option<StreamMessage> {
    let answer: serde_json::Value = serde_json::from_slice(answer).ok()?;
    let raw: RawMessage = serde_json::from_value(answer.get("message")?.clone()).ok()?;
    raw.try_into().ok()
}

const PLANNED_ROW: &str = "planned: old stop to new start";

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

    /// Records a miss if `span` is above `limit`, and returns whether it was not.
    fn require(&mut self, run: usize, what: &str, span: Duration, limit: Duration) -> bool {
        if span > limit {
            let miss = format!("run {run}: {what} took {span:.3?}, allowed are {limit:.3?}");
            println!("{miss}");
            self.misses.push(miss);
        }
        span <= limit
    }

    /// The value of a row that at least `percent` percent of the runs do not exceed.
    fn part(&self, row: &str, percent: usize) -> Duration {
        let found = self.rows.iter().find(|(name, _)| *name == row);
        let mut spans = found.map(|(_, spans)| spans.clone()).expect("a row");
        spans.sort_unstable();
        spans[(spans.len() * percent / 100).min(spans.len() - 1)]
    }

    fn print(&self) {
        println!(
            "\n{:<50} {:>4} {:>8} {:>8} {:>8} {:>8}",
            "seconds", "runs", "min", "median", "90 %", "max"
        );
        for (name, spans) in &self.rows {
            let parts = [0, 50, 90, 100].map(|percent| self.part(name, percent).as_secs_f64());
            let parts = parts.map(|part| format!("{part:>8.3}")).join(" ");
            println!("{name:<50} {:>4} {parts}", spans.len());
        }
    }
}
