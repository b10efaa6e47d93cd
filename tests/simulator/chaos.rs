//! Random worlds: hosts, timings and faults from a seed, and then calm, in which the service has to come back.

use std::time::Duration;

use putexd::election::{Confirmation, Content, Event, Record, Timings};
use putexd::types::Holder;

use super::clocks::TRUE_RATE;
use super::host::Link;
use super::rng::Rng;
use super::store::Store;
use super::{Sim, node, settings};

/// Faults begin in this time. After it everything is healed.
const STORMY: Duration = Duration::from_secs(40);

/// What a random world is made from.
#[derive(Debug, Clone, Copy)]
pub struct Climate {
    pub hosts: usize,
    pub faults: u64,
    /// Timings differ between the hosts and change at run time; `longest-hold` is set.
    pub differing: bool,
}

/// A world at the end of its run.
pub struct Outcome {
    pub sim: Sim,
    /// What went wrong. `None`: nothing did.
    pub failure: Option<String>,
}

/// Draws timings that are safe, with the largest stop budget up to 4·R that is.
fn draw_timings(rng: &mut Rng, error_ppm: u32) -> Timings {
    loop {
        let renew = Duration::from_millis([200, 500, 1000][usize::try_from(rng.below(3)).expect("small")]);
        let failures = u32::try_from(2 + rng.below(4)).expect("small");
        let confirmations = u32::try_from(rng.below(4)).expect("small");
        let mut timings = Timings::new(renew, failures, confirmations);
        timings.clock_error_ppm = error_ppm;
        timings.stop_budget = renew * 4;
        if rng.chance(25) {
            timings.confirmation = Confirmation::Minimal;
        }
        while timings.stop_budget > renew / 4 {
            timings.kill_reserve = Timings::default_kill_reserve(timings.stop_budget);
            if timings.validate().is_ok() {
                return timings;
            }
            timings.stop_budget -= Duration::from_millis(10);
        }
    }
}

fn build(seed: u64, climate: Climate) -> (Sim, Vec<Timings>) {
    let mut sim = Sim::new(seed);
    let rng = &mut sim.rng;
    let error_ppm = [1000, 10_000, 40_000][usize::try_from(rng.below(3)).expect("small")];
    let error = u64::from(error_ppm);
    let first = draw_timings(rng, error_ppm);
    let mut palette = vec![first];
    if climate.differing {
        palette.extend((0..3).map(|_| draw_timings(rng, error_ppm)));
        let longest = palette.iter().map(Timings::hold).max();
        for timings in &mut palette {
            timings.longest_hold = longest;
        }
    }
    let quickest = palette.iter().map(|timings| timings.renew_interval).min().expect("at least one");
    sim.pace.network = (Duration::from_millis(1), quickest / 10);
    sim.pace.start_queue = sim.rng.millis(1, 30);
    sim.blind_writes = !climate.differing && sim.rng.chance(30);
    let (fences, unfences, checks) = (sim.rng.chance(30), sim.rng.chance(20), sim.rng.chance(40));
    for number in 0..climate.hosts {
        let timings = palette[number % palette.len()];
        let name = format!("h{}", number + 1);
        let mut settings = settings(&name, 1 + number as u128, timings);
        settings.fences = fences;
        settings.unfences = unfences;
        settings.check_validity = checks.then(|| timings.lease());
        settings.checks_standby = checks;
        let h = sim.add_host(settings);
        let raw_rate = TRUE_RATE - error + sim.rng.below(2 * error + 1);
        // Slewing changes the rate of CLOCK_BOOTTIME by far more than ρ.
        let boot_rate = if sim.rng.chance(30) { TRUE_RATE - 100_000 + sim.rng.below(200_001) } else { raw_rate };
        sim.set_rates(h, boot_rate, raw_rate);
        let shortest_budget = palette.iter().map(|timings| timings.stop_budget).min().expect("at least one");
        draw_nature(&mut sim, h, shortest_budget);
        let begins = sim.rng.millis(0, 1500);
        sim.at(begins, move |sim| sim.start_daemon(h));
    }
    (sim, palette)
}

/// SIGKILL always empties the control group within k (assumption (c)). SIGTERM may take any time, or have no effect.
fn draw_nature(sim: &mut Sim, h: usize, stop_budget: Duration) {
    let kill_within = Timings::default_kill_reserve(stop_budget) * 9 / 10;
    let ignores = sim.rng.chance(25);
    let stop_takes = sim.rng.span(Duration::from_millis(1), stop_budget * 2);
    let start_takes = sim.rng.millis(1, 800);
    let nature = &mut sim.hosts[h].unit.nature;
    nature.kill_takes = Some(kill_within);
    nature.stop_takes = (!ignores).then_some(stop_takes);
    nature.start_takes = start_takes;
}

/// Runs one world through its faults and through the calm after them.
pub fn run(seed: u64, climate: Climate) -> Outcome {
    let (mut sim, palette) = build(seed, climate);
    for _ in 0..climate.faults {
        let when = sim.rng.millis(0, u64::try_from(STORMY.as_millis()).expect("short"));
        let kind = sim.rng.below(30);
        let h = usize::try_from(sim.rng.below(climate.hosts as u64)).expect("small");
        let longest = if sim.rng.chance(50) { 1500 } else { 9000 };
        let lasts = sim.rng.millis(10, longest);
        let palette = palette.clone();
        sim.at(when, move |sim| strike(sim, h, kind, lasts, &palette));
    }
    sim.run_until(STORMY);
    calm(&mut sim);
    let slowest = palette
        .iter()
        .map(|timings| timings.lease() + timings.wait(timings.longest_hold.unwrap_or(timings.hold())))
        .max();
    let lease = palette.iter().map(Timings::lease).max().expect("at least one");
    // A back-off is at most 10·T, and a pause at most as long as a fault. Then comes one take-over, with time for more after a
    // tie.
    let patience = slowest.expect("at least one") * 3 + lease * 10 + Duration::from_secs(15);
    let mut served_for = Duration::ZERO;
    let step = Duration::from_millis(500);
    while served_for < lease * 2 && sim.now < STORMY + patience {
        sim.run_for(step);
        served_for = if sim.is_served() { served_for + step } else { Duration::ZERO };
    }
    let mut failure = sim.violation.clone();
    if failure.is_none() && served_for.is_zero() {
        failure = Some(format!("no unit is active {patience:?} after the last fault"));
    }
    Outcome { sim, failure }
}

fn strike(sim: &mut Sim, h: usize, kind: u64, lasts: Duration, palette: &[Timings]) {
    match kind {
        0 => faulty_link(sim, h, lasts, Link { down: true, ..Link::default() }, true),
        1 => faulty_link(sim, h, lasts, Link { down: true, ..Link::default() }, false),
        2 => faulty_link(sim, h, lasts, Link { loses_answers: true, ..Link::default() }, false),
        3 => faulty_link(sim, h, lasts, Link { loses_requests: true, ..Link::default() }, false),
        4 => faulty_link(sim, h, lasts, Link { holds_requests: true, ..Link::default() }, false),
        5 => faulty_link(sim, h, lasts, Link { watch_dead: true, ..Link::default() }, false),
        6 => {
            sim.hosts[h].lag = lasts / 2;
            sim.after(lasts, move |sim| sim.hosts[h].lag = Duration::ZERO);
        }
        7 | 8 => {
            sim.pause_daemon(h);
            sim.after(lasts, move |sim| sim.resume_daemon(h));
        }
        9 | 10 => {
            sim.crash_daemon(h);
            sim.after(lasts / 3, move |sim| sim.start_daemon(h));
        }
        11 => {
            sim.freeze(h);
            sim.after(lasts, move |sim| sim.thaw(h));
        }
        12 => {
            let (boot_rate, raw_rate) = (sim.hosts[h].clocks.boot_rate, sim.hosts[h].clocks.raw_rate);
            if sim.hosts[h].runs() {
                sim.suspend(h);
                sim.after(lasts, move |sim| {
                    sim.wake_up(h);
                    sim.set_rates(h, boot_rate, raw_rate);
                });
            }
        }
        13 => {
            sim.power_loss(h);
            sim.after(lasts, move |sim| sim.power_on(h));
        }
        14 => {
            sim.kill_guard(h);
            sim.after(lasts / 4, move |sim| sim.restart_guard(h));
        }
        15 => {
            sim.hang_guard(h);
            let kills = sim.rng.chance(50);
            sim.after(lasts / 3, move |sim| if kills { sim.restart_guard(h) } else { sim.unhang_guard(h) });
        }
        16 => sim.unit_dies(h),
        17 => {
            sim.hosts[h].unit.nature.start_fails = true;
            sim.after(lasts, move |sim| sim.hosts[h].unit.nature.start_fails = false);
        }
        18 => {
            sim.hosts[h].active_healthy = false;
            sim.after(lasts, move |sim| sim.hosts[h].active_healthy = true);
        }
        19 => {
            sim.hosts[h].standby_healthy = false;
            sim.hosts[h].fence_works = false;
            sim.after(lasts, move |sim| {
                sim.hosts[h].standby_healthy = true;
                sim.hosts[h].fence_works = true;
            });
        }
        20 => {
            sim.tell_now(h, Event::Contend(Err("this host is drained".to_owned())));
            sim.after(lasts, move |sim| sim.tell_now(h, Event::Contend(Ok(()))));
        }
        21 => {
            let next = sim.rng.chance(50).then(|| node("h2"));
            sim.tell_now(h, Event::StepDown { reason: "the operator asked".to_owned(), next });
        }
        22 | 23 => sim.start_by_hand(h),
        24 => {
            let timings = palette[usize::try_from(sim.rng.below(palette.len() as u64)).expect("small")];
            sim.reconfigure(h, timings);
        }
        _ => strike_store(sim, kind, lasts),
    }
}

fn faulty_link(sim: &mut Sim, h: usize, lasts: Duration, link: Link, noticed: bool) {
    sim.set_link(h, link, noticed);
    sim.after(lasts, move |sim| sim.set_link(h, Link::default(), true));
}

fn strike_store(sim: &mut Sim, kind: u64, lasts: Duration) {
    match kind {
        25 => sim.renew_store(Store::wipe),
        // With a backup as well, a contender could not notice writes that do not compare the incarnation.
        26 => sim.change_store(move |store, at| {
            let then = store.proven_at().filter(|_| lasts.as_millis().is_multiple_of(2));
            store.restore(at, then.unwrap_or(at.saturating_sub(lasts)));
        }),
        27 => sim.change_store(|store, at| {
            store.put(at, Content::Tombstone);
        }),
        28 => {
            // If the key vanishes while a host still starts for the first time, reads every R cannot notice it.
            let settled =
                sim.hosts.iter().map(|host| host.settings.timings.renew_interval).max().unwrap_or_default() * 5;
            if sim.now.saturating_sub(sim.store.present_since().unwrap_or(sim.now)) > settled {
                sim.change_store(Store::purge);
            }
        }
        29 if lasts.as_millis().is_multiple_of(2) => sim.change_store(|store, at| {
            let copy = store.proven_at().map(|then| store.as_of(then).content.clone());
            store.put(at, copy.unwrap_or(Content::Tombstone));
        }),
        _ => {
            let token = if sim.rng.chance(50) { String::new() } else { "elsewhere".to_owned() };
            sim.change_store(move |store, at| {
                store.put(at, Content::Record(Record::new(Holder::decode(token.as_bytes()), None)));
            });
        }
    }
}

/// Ends all faults, host by host.
fn calm(sim: &mut Sim) {
    for h in 0..sim.hosts.len() {
        sim.power_on(h);
        if sim.hosts[h].frozen {
            sim.wake_up(h);
        }
        let raw_rate = sim.hosts[h].clocks.raw_rate.max(1);
        let boot_rate = sim.hosts[h].clocks.boot_rate.max(1);
        if raw_rate == 1 || boot_rate == 1 {
            sim.set_rates(h, TRUE_RATE, TRUE_RATE);
        }
        sim.restart_guard(h);
        sim.resume_daemon(h);
        sim.start_daemon(h);
        sim.set_link(h, Link::default(), true);
        let host = &mut sim.hosts[h];
        host.lag = Duration::ZERO;
        host.unit.nature.start_fails = false;
        host.standby_healthy = true;
        host.active_healthy = true;
        host.fence_works = true;
        sim.tell_now(h, Event::Contend(Ok(())));
    }
}
