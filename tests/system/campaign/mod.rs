//! Random sequences of faults on three hosts, several faults at a time, with an audit after each step. The store is a
//! NATS cluster on the hosts, or etcd, or a folder that the hosts share.
//!
//! ```text
//! tests/campaign --minutes 60 --seed 7
//! ```
//!
//! As one of the tests it runs for five minutes with a random seed. The script sets `PUTEX_CAMPAIGN_MINUTES`,
//! `PUTEX_CAMPAIGN_SEED`, `PUTEX_CAMPAIGN_STORE` and `PUTEX_CAMPAIGN_SERVICES`.
//!
//! The seed is printed first. The same seed draws the same faults, for the same roles (the active host, a standby),
//! with the same times. What follows from them depends on the machine's real timing, so that a violation may take
//! several runs of its seed to come back.
//!
//! **A step** injects one to three faults within three seconds and undoes each after its span. Then the cluster has to come to
//! rest: one copy of the unit is alive; unit, lease, grant and fencing token are on its host and nowhere else; putexd and the
//! guard run on all hosts (their units have no start limit, so nobody has to restart them), and all of them name the same
//! holder. No unit has failed, except one that was killed, which systemd calls failed until its next start. All servers are
//! well, if need be after a restart, or emptied, which is counted. A lock in a folder that had to be cleared is counted as
//! well: a write that was under way when the folder went back landed in what is there now. From the beginning of the campaign
//! on no two copies are alive at once, tokens grow from start to start, and no journal shows a defect. Each of the other
//! services runs on one host.
//!
//! **What the assumptions exclude** is judged by a rule of its own, or is not drawn:
//!
//! - A host that is frozen cannot stop its unit, and another one takes over meanwhile. The frozen copy touches nothing,
//!   but it exists, and the oracle sees it. It has to be gone within [`audit::THAW_BOUND`] of the thaw, and these
//!   overlaps are reported separately.
//! - If putexd and the guard of one host are both gone while PID 1 hangs, nobody is left who could stop the unit
//!   (assumption c). The guard's successor comes in time only if the lease was fresh when the guard began to hang, and
//!   the host goes on. So faults of both, with the guard's watcher or without, are injected at the same moment and as the
//!   first of their step, or not together. They are not combined with a PID 1 or a host that stands still, nor with a
//!   full /run, on which no successor starts. The watcher alone may be gone at any time, and beside any of them.
//! - A guard that is gone together with a freeze of its host is not drawn: the time after the thaw would be that of the
//!   restart.
//! - A process that SIGKILL does not end (assumption c) requires a self-fence, which is tested elsewhere. The parent of
//!   a vfork(2) is not such a process: it ignores SIGTERM and dies of SIGKILL, as does the unit here that ignores
//!   SIGTERM, and the one whose control group is frozen.
//! - No server is away while the bucket is deleted and made again, or while the store is rolled back: what such a
//!   member brings back is a matter between the servers (assumption a). The copy that the store is rolled back to is
//!   one of all servers, and the services went on after it. Where a host is cut off or stands still, it is a copy of
//!   all servers at the moment when that began, the server of that host among them.
//! - A change of holder that is lost with what the store held, and is younger than [`inject::SETTLED`], is excluded
//!   (assumption a): a host that was away for no longer cannot know of it. So the store is asked who holds the lock that
//!   long before it is to go back, and again when nobody reaches it any more. If the holder is another one, or nobody, the
//!   store does not go back. How often it did is counted. Servers cannot be asked at that moment, only just before. They
//!   take longer to elect a leader than the lease of a holder without them lasts. So it is only on a folder, which is back
//!   at once, that a host meets the copy while the last holder's unit lives.
//! - A unit that systemd starts in another slice is covered there as soon as putexd has seen it. So this fault is the
//!   first of its step, and the other faults wait until the guard knows the new group.
//! - A process that leaves the group of its unit is found by putexd, as a descendant of the unit's processes, and ended
//!   by putexd alone. So it is the main process that leaves, which nobody can take for an orphan. The other faults wait
//!   until putexd has seen it, and putexd, guard, PID 1 and bus of that host are left alone. A process that leaves its
//!   group and its parents between two looks is seen by nobody. It is not drawn, because the promise excludes it.
//! - An operator's adoption of another key (N3) is not drawn with a store that is away or loses what it held: an
//!   operator who gives such a word sees to it that it has been heard. A service that was renamed on one host alone is
//!   drawn with anything.
//! - Two faults of one kind on one host, or anything but a partition beside a power loss, would only hide each other.
//!
//! The wall clock of a container is that of the machine, and there is no time namespace for it. So it jumps for putexd
//! alone, through libfaketime. The clocks that leases rest on are left as they are.

pub mod audit;
mod crowd;
pub mod inject;
pub mod script;
mod tally;

use std::{
    collections::VecDeque,
    fmt::Write as _,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io::Write as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use self::{
    audit::{OverlapKind, Rest, Standstill},
    crowd::Crowd,
    inject::{Injected, Injector},
    rng::Rng,
    script::Fault,
    tally::Tally,
};
use crate::{
    cluster::Host,
    command::{now, since},
    environment::BASE,
    fixture::{Fixture, Plan, wait_for_line},
    lockstore::Lockstore,
    on_hosts,
    watch::Event,
};

#[path = "../../support/rng.rs"]
#[expect(
    dead_code,
    reason = "a campaign draws fewer kinds of numbers than the simulation"
)]
pub mod rng;

pub const MINUTES: &str = "PUTEX_CAMPAIGN_MINUTES";
/// Environment variable: the store, "nats", "directory" or "etcd".
const STORE: &str = "PUTEX_CAMPAIGN_STORE";
pub const SEED: &str = "PUTEX_CAMPAIGN_SEED";

/// How long the cluster may take to come to rest. Three servers that were killed take half a minute to elect a leader,
/// and longer on a machine that is busy with other tests.
const REST: Duration = Duration::from_secs(180);
/// How long a server that is back may take to catch up with the others before it is restarted.
const CATCH_UP: Duration = Duration::from_secs(40);
/// Pause between two looks at the cluster.
pub const PACE: Duration = Duration::from_millis(200);
/// How many steps are shown when something went wrong.
const SHOWN: usize = 5;

const CLOCK_OF_ITS_OWN: &str = "[Service]\n\
    Environment=LD_PRELOAD=/usr/$LIB/faketime/libfaketimeMT.so.1\n\
    Environment=FAKETIME_TIMESTAMP_FILE=/etc/campaign-clock FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1\n";

#[test]
fn random_faults_on_three_hosts() {
    let length = Duration::from_secs_f64(60.0 * number(MINUTES).unwrap_or(5.0));
    let seed = seed();
    let store = match std::env::var(STORE).as_deref() {
        Ok("etcd") => Lockstore::Etcd,
        Ok("directory") => Lockstore::Directory,
        Ok("nats") | Err(_) => Lockstore::Nats,
        Ok(other) => {
            panic!("{STORE} is neither \"nats\" nor \"directory\" nor \"etcd\": {other:?}")
        }
    };
    tell(&format!(
        "campaign on {store:?}: {SEED}={seed}, for {:.1} minutes\n",
        length.as_secs_f64() / 60.0
    ));
    let plan = Plan::hosts("campaign", 3, store)
        .servers_on_hosts()
        .small_disk(on_hosts::DATA)
        .file(
            "/etc/systemd/system/putexd.service.d/clock.conf",
            CLOCK_OF_ITS_OWN,
        )
        .file(inject::CLOCK, "+0\n");
    let crowd = Crowd::of_this_run();
    let Some(fixture) = crowd.join(plan).begin() else {
        return;
    };
    try_clock(&fixture.hosts[0]);
    let mut campaign = Campaign::new(&fixture, crowd, seed, store);
    let began = now();
    campaign.rest();
    while since(began) < length {
        campaign.step();
    }
    campaign.tell_report(since(began));
}

/// Checks that putexd sees a jump of the wall clock. Otherwise this fault would never really be injected.
fn try_clock(host: &Host) {
    inject::set_clock(host, 100);
    wait_for_line(host, &["the wall clock moved by"]);
    inject::set_clock(host, 0);
}

/// The seed that the environment asks for, or a random one below 10⁹.
pub fn seed() -> u64 {
    number(SEED).unwrap_or_else(|| RandomState::new().build_hasher().finish() % 1_000_000_000)
}

pub fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text:?}")),
    )
}

/// Time of the wall clock, as `journalctl --since` takes it.
pub fn seconds_since_1970() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// Writes to stderr past the test harness, which captures what `eprintln!` prints.
pub fn tell(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

struct Campaign<'a> {
    fixture: &'a Fixture,
    crowd: Crowd,
    rng: Rng,
    seed: u64,
    store: Lockstore,
    faults: Vec<Fault>,
    began: Duration,
    injector: Injector<'a>,
    standstills: Vec<Standstill>,
    tally: Tally,
    steps: usize,
    /// The last steps in words, newest last.
    last: VecDeque<String>,
    /// The journals have been read up to this time, in seconds since 1970.
    read_until: u64,
}

impl<'a> Campaign<'a> {
    fn new(fixture: &'a Fixture, crowd: Crowd, seed: u64, store: Lockstore) -> Self {
        let copy = fixture.shared().with_file_name("copy");
        Self {
            fixture,
            crowd,
            rng: Rng::new(seed),
            seed,
            store,
            faults: Fault::with(store),
            began: now(),
            injector: Injector::new(fixture, copy),
            standstills: Vec::new(),
            tally: Tally::default(),
            steps: 0,
            last: VecDeque::new(),
            read_until: 0,
        }
    }

    fn step(&mut self) {
        self.steps += 1;
        let step = script::draw(&mut self.rng, &self.faults);
        let began = now();
        let old = self.rest();
        let listed = step.iter().fold(String::new(), |all, planned| {
            all + "; " + &planned.to_string()
        });
        self.note(&format!(
            "step {} at {:.1} s, {} is active{listed}",
            self.steps,
            self.age(),
            old.host
        ));

        let injected = self.injector.step(&step, self.fixture.host_of(&old));
        for injected in injected
            .iter()
            .filter(|injected| injected.planned.fault.freezes_host())
        {
            let (Some(host), Some(until)) = (injected.host.clone(), injected.undone) else {
                continue;
            };
            self.standstills.push(Standstill {
                host,
                from: injected.at,
                until,
            });
        }
        let over = now();
        let new = self.rest();
        let settled = since(over);
        self.injector.collect();
        self.examine();

        let mut starts: Vec<Event> = self
            .fixture
            .oracle
            .starts()
            .into_iter()
            .filter(|start| start.at > began)
            .collect();
        // A copy that was moved to another slice belongs to the same tenure.
        let moved = starts
            .extract_if(.., |start| self.injector.moved.contains(start))
            .last();
        let old = moved.unwrap_or(old);
        let end = self.fixture.oracle.ends().get(&old.id).copied();
        self.tally.add_step(&injected, &old, end, &starts, settled);
        self.note(&format!(
            "    {} is active, at rest after {:.1} s{}",
            new.host,
            settled.as_secs_f64(),
            hosts_of(&injected)
        ));
    }

    /// Waits until everything is as it should be, and stays so for one renewal. Returns the copy that runs.
    fn rest(&mut self) -> Event {
        let end = now() + REST;
        let mut revive_at = now() + CATCH_UP;
        let mut rest = Rest::default();
        let mut restarted = Vec::new();
        loop {
            if let Some(name) = crowd::find_twice(self.fixture, &self.standstills) {
                self.fail(&format!("{name} runs on two hosts at once"));
            }
            let good = audit::look(self.fixture, "oracle")
                .and_then(|good| self.crowd.look(self.fixture).map(|()| good));
            let amiss = match (good, audit::unwell(self.fixture)) {
                (Ok(good), unwell) if unwell.is_empty() => match rest.confirm(good) {
                    Ok(active) => return active,
                    Err(amiss) => amiss,
                },
                (Ok(_), unwell) => {
                    format!(
                        "{:?} are not well",
                        unwell.iter().map(|host| &host.name).collect::<Vec<_>>()
                    )
                }
                (Err(amiss), _) => amiss,
            };
            if now() > end {
                self.fail(&format!("not at rest after {REST:?}: {amiss}"));
            }
            if now() > revive_at {
                self.revive(&mut restarted);
                revive_at = now() + CATCH_UP;
            }
            thread::sleep(PACE);
        }
    }

    /// Restarts a server that does not catch up by itself, as an administrator does, or all of them when a bucket takes no
    /// writes though each server says that it is well: nats-server 2.9.10 gets into both states after a quick series of
    /// deaths. If a server was restarted before (`restarted`) and is the only one that is not well, it is emptied, and gets
    /// everything from the others. Also clears a lock that all hosts call damaged.
    fn revive(&mut self, restarted: &mut Vec<String>) {
        if inject::clear_damaged(self.fixture) {
            self.tally.add_revival();
            self.note("    the lock is damaged: cleared");
            return;
        }
        let mut unwell = audit::unwell(self.fixture);
        let takes_writes = inject::takes_writes(self.fixture, self.store);
        if unwell.is_empty() && !takes_writes {
            unwell = self.fixture.hosts.iter().collect();
        }
        let is_the_only_one = unwell.len() == 1 && takes_writes;
        for host in unwell.into_iter().filter(|host| host.is_on()) {
            self.tally.add_revival();
            if self.store == Lockstore::Nats && is_the_only_one && restarted.contains(&host.name) {
                self.note(&format!(
                    "    the server of {} does not recover after a restart: emptied",
                    host.name
                ));
                inject::empty_server(host);
            } else {
                self.note(&format!(
                    "    the server of {} does not recover after {CATCH_UP:?}: restarted",
                    host.name
                ));
                inject::kill_server(host);
                restarted.push(host.name.clone());
            }
        }
    }

    /// Checks what must never happen: overlaps, tokens that do not grow, defects in journals.
    fn examine(&mut self) {
        let overlaps = audit::overlaps(self.fixture, &self.standstills);
        if let Some(violation) = overlaps
            .iter()
            .find(|overlap| overlap.kind == OverlapKind::Violation)
        {
            self.fail(&format!("two copies were alive at once: {violation}"));
        }
        self.tally.set_overlaps(
            overlaps
                .into_iter()
                .filter_map(|overlap| match overlap.kind {
                    OverlapKind::Frozen { after_thaw } => Some(after_thaw),
                    OverlapKind::Violation => None,
                })
                .collect(),
        );
        if let Some(pair) =
            audit::token_that_did_not_grow(&self.fixture.oracle.starts(), &self.injector.moved)
        {
            self.fail(&format!("the fencing token has to grow: {pair:#?}"));
        }
        let until = seconds_since_1970();
        let unexpected = audit::unexpected(self.fixture, self.read_until);
        if !unexpected.is_empty() {
            self.fail(&format!("the journals have {unexpected:#?}"));
        }
        self.read_until = until;
    }

    fn age(&self) -> f64 {
        since(self.began).as_secs_f64()
    }

    fn note(&mut self, text: &str) {
        println!("{text}");
        self.last.push_back(text.to_owned());
        if self.last.len() > 2 * SHOWN {
            self.last.pop_front();
        }
    }

    fn fail(&self, what: &str) -> ! {
        panic!("step {} of {SEED}={}: {what}", self.steps, self.seed);
    }

    fn tell_report(&self, ran: Duration) {
        tell(&self.tally.report(self.seed, ran, 0));
        tell(&format!(
            "{:<44} {:>7}\n",
            "times the store went back under a host away", self.injector.went_back
        ));
    }
}

/// Whatever fails, here or in the harness, keeps the journals that it takes to understand the failure.
impl Drop for Campaign<'_> {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        let folder: PathBuf = Path::new(BASE).join(format!("campaign-{}", self.seed));
        self.fixture.keep_journals(&folder);
        let overlaps = audit::overlaps(self.fixture, &self.standstills);
        let violations = overlaps
            .iter()
            .filter(|overlap| overlap.kind == OverlapKind::Violation)
            .count();
        let mut text = self.tally.report(self.seed, since(self.began), violations);
        writeln!(text, "\nthe last steps:").expect("a string takes all text");
        self.last
            .iter()
            .for_each(|line| writeln!(text, "{line}").expect("a string takes all text"));
        writeln!(
            text,
            "the journals of all hosts are kept in {}",
            folder.display()
        )
        .expect("a string takes all text");
        tell(&text);
    }
}

/// Names the host that each fault befell, for messages.
pub fn hosts_of(injected: &[Injected]) -> String {
    injected.iter().fold(String::new(), |mut all, injected| {
        let host = injected.host.as_deref().unwrap_or("all");
        let missed = if injected.hit { "" } else { " (missed)" };
        write!(all, ", {} {host}{missed}", injected.planned.fault.words())
            .expect("a string takes all text");
        all
    })
}
