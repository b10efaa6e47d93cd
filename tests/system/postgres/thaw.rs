//! How a database is affected by a host that was frozen while another one took over, and then goes on: how long the old
//! copy lives beside the new one, what it acknowledges, and whether the data survive.
//!
//! It is not a part of the suite, because it takes minutes, and its figures are worth something only on a machine that does
//! nothing else. `PUTEX_THAWS` is the number of freezes:
//! ```text
//! PUTEX_THAWS=20 cargo test --release --all-features --test system -- --ignored --nocapture postgres::thaw
//! ```
//!
//! It prints all figures, and then fails if the old copy lived longer than it should. What a copy acknowledges in that
//! time, and whether the data survive it, is luck: only `[fence]` or a check of the token rules it out.

use std::{collections::HashSet, thread, time::Duration};

use super::{Acknowledged, Database};
use crate::{
    campaign::{PACE, number, seconds_since_1970},
    cluster::Host,
    command::{now, since, wait_for},
    fixture::{SOON, UNIT, wait_for_standby},
    watch::Event,
};

const THAWS: &str = "PUTEX_THAWS";
/// How long the host stands still: longer than the lease, and than systemd's watchdog timeout of the guard.
const FREEZE: Duration = Duration::from_secs(12);
/// Limits from the thaw to the end of the old copy, on a machine that does nothing else.
const MEDIAN: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(30);
/// Limit for a database to recover from a crash, on this host or the other, or to say why it cannot.
const RECOVERY: Duration = Duration::from_secs(60);

#[test]
#[ignore = "takes minutes, and its figures need a machine that does nothing else"]
fn a_database_on_a_host_that_thaws() {
    let Some(database) = Database::run("thaw", 2, false) else {
        return;
    };
    let rounds: Vec<Round> = (1..=number(THAWS).unwrap_or(20))
        .map(|number| {
            let round = freeze(&database);
            println!("thaw {number}: {round:?}");
            if !round.is_whole() {
                database.begin_anew();
            }
            round
        })
        .collect();
    let (median, longest) = summary(&rounds, |round| round.lived_on);
    let (kernels_median, kernels_longest) = summary(&rounds, |round| round.kernels);
    let sum = |of: fn(&Round) -> usize| rounds.iter().map(of).sum::<usize>();
    let with = |is: fn(&Round) -> bool| rounds.iter().filter(|round| is(round)).count();
    println!(
        "{} freezes of {FREEZE:?}: from the thaw to the end of the old copy p50 {median:?}, max {longest:?}; from the same \
         SIGKILL where nothing thaws p50 {kernels_median:?}, max {kernels_longest:?}",
        rounds.len()
    );
    println!(
        "rows that the thawed copy acknowledged: {} in {} rounds, and {} that it was asked for before the freeze",
        sum(|round| round.acknowledged),
        with(|round| round.acknowledged > 0),
        sum(|round| round.in_flight)
    );
    println!(
        "the guard was killed by its watchdog in {} rounds; in {} the next crash recovery failed, in {} pg_amcheck found \
         damage after it; {} acknowledged rows of the new copy were lost, and {} of the thawed one",
        with(|round| round.guards_shot > 0),
        with(|round| round.recovery.is_err()),
        with(|round| round.damage.is_some()),
        sum(|round| round.lost_of_new),
        sum(|round| round.lost_of_thawed)
    );
    // The cluster is dropped before the test can fail, because its journals would only hide the figures.
    drop(database);
    assert!(
        median <= MEDIAN && longest <= LONGEST,
        "allowed are {MEDIAN:?} and {LONGEST:?}"
    );
}

/// The median and the longest of one time in all rounds.
fn summary(rounds: &[Round], of: fn(&Round) -> Duration) -> (Duration, Duration) {
    let mut spans: Vec<Duration> = rounds.iter().map(of).collect();
    spans.sort();
    (spans[spans.len() / 2], spans[spans.len() - 1])
}

/// The outcome of one freeze.
#[derive(Debug)]
struct Round {
    /// Time from the thaw until the last process of the old copy had closed its files. The kernel needs some more milliseconds
    /// to free its memory, and counts the control group as populated until then.
    lived_on: Duration,
    /// Time from a SIGKILL to all processes of the new copy, some time later, until these had closed their files: the
    /// kernel's share.
    kernels: Duration,
    /// Rows that were sent to the thawed copy after the thaw, and that it acknowledged.
    acknowledged: usize,
    /// Rows that were sent to it before the freeze, and whose acknowledgement was read after the thaw.
    in_flight: usize,
    guards_shot: usize,
    /// Whether a database came up after the next crash, or else its error.
    recovery: Result<(), String>,
    damage: Option<String>,
    /// Acknowledged rows that are lost, of the new copy and of the thawed one, if there is a sound database to count
    /// in.
    lost_of_new: usize,
    lost_of_thawed: usize,
}

impl Round {
    fn is_whole(&self) -> bool {
        self.recovery.is_ok()
            && self.damage.is_none()
            && self.lost_of_new + self.lost_of_thawed == 0
    }
}

fn freeze(database: &Database) -> Round {
    let fixture = &database.fixture;
    let old = database.wait_for_one_active();
    let host = fixture.host_of(&old);
    wait_for_standby(fixture.other(&old));
    database.wait_for_rows(&old);
    let shots = guards_shot(host);

    let frozen = now();
    host.freeze();
    // A host whose copies were killed soon after their start waits longer before each new try.
    let new = fixture
        .oracle
        .wait_for_start_on(&[fixture.other(&old)], frozen, RECOVERY);
    database.wait_for_rows(&new);
    // Waits for the rest of the freeze.
    thread::sleep((frozen + FREEZE).saturating_sub(now()));
    let thawed = now();
    host.thaw();
    let end = fixture.oracle.wait_for_end(&old, SOON);
    wait_for_standby(host);
    let shots = guards_shot(host) - shots;
    // The rows are read before the crash, because the next copy may run on the same host.
    let (late, kept): (Vec<Acknowledged>, Vec<Acknowledged>) = database
        .acknowledged()
        .into_iter()
        .partition(|row| row.is_of(&host.name) && row.at > thawed);
    let (kernels, recovery) = crash(database, &new);
    let sound = recovery
        .as_ref()
        .ok()
        .map(|()| look_into(database))
        .transpose();
    let lost = |acknowledged: &[Acknowledged]| match &sound {
        Ok(Some(rows)) => acknowledged
            .iter()
            .filter(|row| !rows.contains(&row.key()))
            .count(),
        Ok(None) | Err(_) => 0,
    };
    Round {
        lived_on: end.after(thawed),
        kernels,
        acknowledged: late.iter().filter(|row| row.sent > thawed).count(),
        in_flight: late.iter().filter(|row| row.sent <= thawed).count(),
        guards_shot: shots,
        lost_of_new: lost(&kept),
        lost_of_thawed: lost(&late),
        damage: sound.err(),
        recovery,
    }
}

/// How often systemd's watchdog has killed the guard of a host.
fn guards_shot(host: &Host) -> usize {
    let journal = host.journal(&["putex-guard.service"]);
    journal
        .lines()
        .filter(|line| line.contains("Watchdog timeout"))
        .count()
}

/// Kills all processes of the database at once. Returns how long they took to end, and whether a copy accepts rows after
/// that, or else the error of a database that did not come up.
fn crash(database: &Database, active: &Event) -> (Duration, Result<(), String>) {
    let fixture = &database.fixture;
    let (killed, second) = (now(), seconds_since_1970());
    fixture.host_of(active).kill_service(UNIT);
    // Until the end of this copy it may still acknowledge a row, and counts as the one that is alive.
    let end = fixture.oracle.wait_for_end(active, SOON);
    loop {
        let up = fixture
            .hosts
            .iter()
            .any(|host| database.last_of(&host.name) > end.at);
        if up && fixture.oracle.live().len() == 1 {
            return (end.after(killed), Ok(()));
        }
        let journals = fixture
            .hosts
            .iter()
            .map(|host| host.journal_since(second))
            .collect::<String>();
        if let Some((_, said)) = journals
            .lines()
            .find_map(|line| line.split_once(" PANIC: "))
        {
            return (end.after(killed), Err(said.trim().to_owned()));
        }
        assert!(
            since(killed) < RECOVERY,
            "no database came up after a crash, nor said why: {journals}"
        );
        thread::sleep(PACE);
    }
}

/// The rows of a sound database, or what is wrong with it. If the copy ends during the check, because this machine is busy
/// enough to cost it its lease, that tells nothing about its data, and the next copy is checked.
fn look_into(database: &Database) -> Result<HashSet<String>, String> {
    loop {
        let active = database.wait_for_one_active();
        let why = match database
            .check(&active)
            .and_then(|()| database.rows(&active))
        {
            Ok((rows, _)) => return Ok(rows),
            Err(why) => why,
        };
        let answers = wait_for(
            RECOVERY,
            "the copy that was looked into answers or ends",
            || {
                let lives = database.fixture.oracle.live().contains(&active);
                if lives {
                    database.ask(&active, "SELECT 1").ok().map(|_| true)
                } else {
                    Some(false)
                }
            },
        );
        if answers {
            return Err(why);
        }
        println!(
            "the copy on {} ended while it was looked into: {why}",
            active.host
        );
    }
}
