//! Random faults, without freezing a host: no row that was acknowledged is lost.
//!
//! Steps of faults are drawn as those of the campaign are, from `PUTEX_CAMPAIGN_SEED`, for a minute or for
//! `PUTEX_CAMPAIGN_MINUTES`. After each step the cluster has to come to rest, and rows have to be accepted through the
//! address and on the host that has it. Then every row of every acknowledgement so far is in the table, none is there
//! twice, and `pg_amcheck` finds tables and indexes sound.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use super::{ADDRESS, Database, PROGRAM};
use crate::{
    campaign::{
        MINUTES, PACE, SEED,
        audit::{self, Rest},
        hosts_of,
        inject::{self, Injector},
        number,
        rng::Rng,
        script::{self, Fault},
        seed, tell,
    },
    cluster::Host,
    command::{EndsAtDrop, now, since},
    watch::Event,
};

/// The faults that are drawn. Freezes are left out, because only the token keeps away what a thawed copy writes. Also left
/// out are faults that concern a program of the tests alone or only a daemon with another clock, and an operator's word,
/// which a host that takes itself down does not hear.
const FAULTS: [Fault; 29] = [
    Fault::PowerLoss,
    Fault::SilentCut,
    Fault::DeafCut,
    Fault::MuteCut,
    Fault::DaemonStopped,
    Fault::DaemonKilled,
    Fault::DaemonRestarted,
    Fault::GuardStopped,
    Fault::GuardKilled,
    Fault::WatcherStopped,
    Fault::WatcherKilled,
    Fault::GuardPairStopped,
    Fault::BothStopped,
    Fault::BothKilled,
    Fault::AllStopped,
    Fault::SystemdStopped,
    Fault::DaemonAndSystemdStopped,
    Fault::SystemdReexecuted,
    Fault::BusStopped,
    Fault::BusKilled,
    Fault::UnitFrozen,
    Fault::UnitKilled,
    Fault::UnitMoved,
    Fault::UnitStartedByHand,
    Fault::SteppedDown,
    Fault::ServiceRenamed,
    Fault::CutAndGoneBack,
    Fault::ServersAway,
    Fault::StoreRolledBack,
];

/// Limit for the cluster to come to rest. A host that has taken itself down boots meanwhile, and a database recovers.
const REST: Duration = Duration::from_secs(90);

#[test]
#[cfg_attr(
    not(feature = "postgres"),
    ignore = "its writers need a PostgreSQL client: --all-features"
)]
fn no_acknowledged_row_is_lost_over_random_faults() {
    let length = Duration::from_secs_f64(60.0 * number(MINUTES).unwrap_or(1.0));
    let seed = seed();
    tell(&format!(
        "PostgreSQL: {SEED}={seed}, for {:.1} minutes\n",
        length.as_secs_f64() / 60.0
    ));
    let Some(database) = Database::run("postgres", 3, true) else {
        return;
    };
    let hosts = &database.fixture.hosts[..];
    let power = Power::default();
    thread::scope(|scope| {
        scope.spawn(|| power.keep_on(hosts));
        let _end = power.until_dropped();
        let copy = database.fixture.shared().with_file_name("copy");
        let injector = Injector::new(&database.fixture, copy);
        let mut run = Run {
            database: &database,
            injector,
            rng: Rng::new(seed),
            steps: 0,
            faults: 0,
            read_until: 0,
        };
        let began = now();
        let mut active = run.rest();
        while since(began) < length {
            active = run.step(&active);
        }
        run.tell_report(seed, &active);
    });
}

/// Switches on hosts that have taken themselves down, as a real machine does by itself.
#[derive(Default)]
struct Power(AtomicBool);

impl Power {
    fn keep_on(&self, hosts: &[Host]) {
        while !self.0.load(Ordering::Relaxed) {
            for host in hosts {
                if host.reboot_if_off() {
                    println!("    {} has taken itself down, and boots", host.name);
                }
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn until_dropped(&self) -> EndsAtDrop<'_> {
        EndsAtDrop(&self.0)
    }
}

struct Run<'a> {
    database: &'a Database,
    injector: Injector<'a>,
    rng: Rng,
    steps: usize,
    faults: usize,
    /// The journals have been read up to this time, in seconds since 1970.
    read_until: u64,
}

impl Run<'_> {
    /// Injects the faults of one step, and checks the rows afterwards. Returns the copy that runs then.
    fn step(&mut self, old: &Event) -> Event {
        self.steps += 1;
        let fixture = &self.database.fixture;
        let step = script::draw(&mut self.rng, &FAULTS);
        let listed = step.iter().fold(String::new(), |all, planned| {
            all + "; " + &planned.to_string()
        });
        println!("step {}, {} is active{listed}", self.steps, old.host);
        let injected = self.injector.step(&step, fixture.host_of(old));
        self.faults += injected.iter().filter(|injected| injected.hit).count();
        let over = now();
        let new = self.rest();
        let settled = since(over);
        self.injector.collect();
        fixture.assert_no_violation();
        let tokens = audit::token_that_did_not_grow(&fixture.oracle.starts(), &self.injector.moved);
        assert!(
            tokens.is_none(),
            "the fencing token has to grow: {tokens:#?}"
        );
        let until = crate::campaign::seconds_since_1970();
        let unexpected = audit::unexpected(fixture, self.read_until);
        assert!(unexpected.is_empty(), "the journals have {unexpected:#?}");
        self.read_until = until;
        self.database.wait_for_rows(&new);
        let rows = self.database.assert_rows(&new);
        self.database
            .check(&new)
            .expect("tables and indexes are sound");
        println!(
            "    {} is active, at rest after {:.1} s, {rows} rows{}",
            new.host,
            settled.as_secs_f64(),
            hosts_of(&injected)
        );
        new
    }

    /// Waits until everything is as it should be, and stays so for one renewal. Returns the copy that runs.
    fn rest(&self) -> Event {
        let fixture = &self.database.fixture;
        let end = now() + REST;
        let mut rest = Rest::default();
        loop {
            let good = audit::look(fixture, PROGRAM).and_then(|good| {
                look_at_address(&fixture.hosts, &good.active)?;
                rest.confirm(good)
            });
            match good {
                Ok(active) => return active,
                Err(amiss) => assert!(now() < end, "not at rest after {REST:?}: {amiss}"),
            }
            if now() + REST / 2 > end && inject::clear_damaged(fixture) {
                println!("    the lock is damaged: cleared");
            }
            thread::sleep(PACE);
        }
    }

    fn tell_report(&self, seed: u64, active: &Event) {
        let acknowledged = self.database.acknowledged();
        let outside = acknowledged
            .iter()
            .filter(|row| row.is_of("outside"))
            .count();
        let hands = self
            .database
            .fixture
            .oracle
            .starts()
            .windows(2)
            .filter(|pair| pair[0].host != pair[1].host)
            .count();
        tell(&format!(
            "PostgreSQL: seed {seed}, {} steps, {} faults, {} starts, {hands} changes of hands; acknowledged were {outside} \
             rows from outside and {} on the hosts, {} rows are there, none was lost\n",
            self.steps,
            self.faults,
            self.database.fixture.oracle.starts().len(),
            acknowledged.len() - outside,
            self.database.assert_rows(active),
        ));
    }
}

/// Checks that the address is on the host where the database runs, and on no other.
fn look_at_address(hosts: &[Host], active: &Event) -> Result<(), String> {
    for host in hosts {
        let shown = host.output(&["ip", "-oneline", "address", "show", "dev", "eth0"]);
        let has = String::from_utf8_lossy(&shown.stdout).contains(&format!("{ADDRESS}/"));
        if has != (host.name == active.host) {
            return Err(format!("{} has the address: {has}", host.name));
        }
    }
    Ok(())
}
