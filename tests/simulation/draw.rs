//! Draws a scene from a seed.

use std::time::Duration;

use putexd::election::{Confirmation, Timings};

use crate::{
    clocks::TRUE_RATE,
    rng::Rng,
    scene::{Fault, HostScene, Kind, NETWORK, Scene, StoreFault, Word, share_the_longest_hold},
};

/// All faults begin before this time, or shortly after it.
pub const STORMY: Duration = Duration::from_secs(20);

/// The scene that belongs to `seed`; it is the same at each call.
pub fn scene(seed: u64) -> Scene {
    let mut rng = Rng::new(seed ^ 0x5EED_0F5C_E4E5);
    let rng = &mut rng;
    let error_ppm = *pick(rng, &[1000, 10_000, 40_000]);
    let differing = rng.chance(30);
    let mut palette: Vec<Timings> = (0..if differing { 3 } else { 1 })
        .map(|_| timings(rng, error_ppm))
        .collect();
    share_the_longest_hold(&mut palette);
    let shortest_budget = palette
        .iter()
        .map(|timings| timings.stop_budget)
        .min()
        .expect("at least one");
    let number = if rng.chance(40) { 2 } else { 3 };
    let hosts = (0..number)
        .map(|_| host(rng, palette.len(), error_ppm, shortest_budget))
        .collect();
    let words = [(Word::Checked, 30), (Word::Fenced, 20), (Word::Hurried, 30)];
    let words = words
        .into_iter()
        .filter(|(_, percent)| rng.chance(*percent))
        .map(|(word, _)| word)
        .collect();
    let quickest = palette
        .iter()
        .map(|timings| timings.renew_interval)
        .min()
        .expect("at least one");
    let network = if rng.chance(30) {
        millis(rng, 1, as_millis(quickest / 10))
    } else {
        NETWORK
    };
    let mut faults = Vec::new();
    for _ in 0..4 + rng.below(20) {
        faults.push(fault(rng, number, faults.last().copied()));
    }
    faults.sort_by_key(|fault| fault.at);
    // A write that comes late to a store that was made from a copy, or by hosts with different timings, is one that no
    // contender could notice.
    let is_late = |fault: &Fault| fault.kind == Kind::Store(StoreFault::KeepLateWrites);
    let restores = |fault: &Fault| {
        matches!(
            fault.kind,
            Kind::Store(StoreFault::Restore | StoreFault::RestoreProven)
        )
    };
    if differing || faults.iter().any(restores) {
        faults.retain(|fault| !is_late(fault));
    }
    Scene {
        seed: Some(seed),
        palette,
        network,
        words,
        hosts,
        faults,
        expectations: Vec::new(),
    }
}

/// Draws timings that are safe, with the largest stop budget up to 3·R that is.
fn timings(rng: &mut Rng, error_ppm: u32) -> Timings {
    loop {
        let renew = Duration::from_millis(*pick(rng, &[200, 400, 800]));
        let failures = u32::try_from(2 + rng.below(3)).expect("small");
        let confirmations = u32::try_from(rng.below(3)).expect("small");
        let mut timings = Timings::new(renew, failures, confirmations);
        timings.clock_error_ppm = error_ppm;
        if rng.chance(25) {
            timings.confirmation = Confirmation::Minimal;
        }
        timings.stop_budget = renew * 3;
        while timings.stop_budget > renew / 3 {
            timings.kill_reserve = Timings::default_kill_reserve(timings.stop_budget);
            if timings.validate().is_ok() {
                return timings;
            }
            timings.stop_budget -= Duration::from_millis(10);
        }
    }
}

/// SIGKILL always empties the control group within k (assumption (c)). SIGTERM may take any time, or have no effect.
fn host(rng: &mut Rng, palette: usize, error_ppm: u32, shortest_budget: Duration) -> HostScene {
    let error = u64::from(error_ppm);
    let kill_reserve = Timings::default_kill_reserve(shortest_budget);
    let raw_rate = TRUE_RATE - error + rng.below(2 * error + 1);
    HostScene {
        named_as: None,
        timings: usize::try_from(rng.below(palette as u64)).expect("small"),
        start_takes: millis(rng, 1, 600),
        stop_takes: (!rng.chance(25)).then(|| millis(rng, 1, as_millis(shortest_budget * 2))),
        kill_takes: millis(rng, 1, as_millis(kill_reserve * 7 / 10)),
        stop_timeout: millis(rng, 500, 20_000),
        restart: rng.chance(40).then(|| millis(rng, 10, 500)),
        // Slewing changes the rate of CLOCK_BOOTTIME by far more than ρ.
        boot_rate: if rng.chance(25) {
            TRUE_RATE - 100_000 + rng.below(200_001)
        } else {
            raw_rate
        },
        raw_rate,
        begins: millis(rng, 0, 1500),
    }
}

/// Faults often come together: about half of them begin within 0.7 s of the fault before, and most of those on the same host.
fn fault(rng: &mut Rng, hosts: u64, before: Option<Fault>) -> Fault {
    let kinds: Vec<Kind> = Kind::all()
        .into_iter()
        .filter(|kind| kind.is_drawn())
        .collect();
    let kind = *pick(rng, &kinds);
    let longest = if rng.chance(50) { 1500 } else { 8000 };
    let before = before.filter(|_| rng.chance(55));
    let at = match before {
        Some(before) => before.at + millis(rng, 0, 700),
        None => millis(rng, 0, as_millis(STORMY)),
    };
    let same = before
        .and_then(|before| before.host)
        .filter(|_| rng.chance(75));
    let any = usize::try_from(rng.below(hosts)).expect("small");
    let host = same.unwrap_or(any);
    Fault {
        at,
        host: (!kind.is_of_the_store()).then_some(host),
        kind,
        lasts: millis(rng, 10, longest),
    }
}

fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[usize::try_from(rng.below(from.len() as u64)).expect("small")]
}

fn millis(rng: &mut Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(from + rng.below(to.saturating_sub(from) + 1))
}

fn as_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).expect("short")
}
