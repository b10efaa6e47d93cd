//! Runs one scene, and then checks that the service comes back.

use std::time::Duration;

use putexd::election::Timings;
use tokio::runtime::Builder;

use crate::draw::STORMY;
use crate::scene::Scene;
use crate::world::{Failure, Sim};

/// How often the run checks whether the service is back.
const LOOK: Duration = Duration::from_millis(500);

/// The result of a scene.
pub struct Outcome {
    pub log: Vec<String>,
    pub failure: Option<Failure>,
    /// How often the unit was started, on all hosts.
    pub starts: usize,
}

/// Runs a scene from its beginning to its end.
pub fn run(scene: &Scene) -> Outcome {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    let sim = runtime.block_on(play(scene));
    drop(runtime);
    let mut world = sim.lock();
    Outcome { log: std::mem::take(&mut world.log), failure: world.failure.take(), starts: world.starts }
}

async fn play(scene: &Scene) -> Sim {
    let sim = Sim::new(scene);
    for expectation in &scene.expectations {
        sim.run_until(expectation.at).await;
        let mut world = sim.lock();
        match world.check(&expectation.what) {
            Ok(()) => {}
            Err(text) => world.fail(Failure::Unmet(text)),
        }
    }
    let over = scene.faults.iter().map(|fault| fault.at + fault.lasts).max().unwrap_or_default();
    let now = sim.lock().now();
    sim.run_until(over.min(STORMY + Duration::from_secs(8)).max(now)).await;
    if failed(&sim) {
        return sim;
    }
    sim.lock().calm();
    let (bound, lease) = bounds(&scene.palette);
    comes_back(&sim, bound, lease, "after the storm").await;
    // A host may hold the lock back from others without an error of the one that serves, so each host has to serve alone.
    for h in 0..scene.hosts.len() {
        if failed(&sim) {
            return sim;
        }
        let others: Vec<usize> = (0..scene.hosts.len()).filter(|other| *other != h).collect();
        for other in &others {
            sim.lock().power_off(*other);
        }
        let starts = sim.lock().starts;
        comes_back(&sim, bound, lease, &format!("with h{} alone", h + 1)).await;
        let starts = sim.lock().starts - starts;
        if starts > 1 {
            let text = format!("h{} alone and in good order starts the unit {starts} times", h + 1);
            sim.lock().fail(Failure::Restless(text));
        }
        for other in &others {
            sim.lock().power_on(*other);
        }
    }
    sim
}

fn failed(sim: &Sim) -> bool {
    sim.lock().failure.is_some()
}

/// The time within which a unit has to be active, and for how long it has to stay active.
///
/// A back-off is at most 10·T. Then comes one take-over of a record whose holder is unknown, and one more each for a claim that
/// was lost to another host's and for a claim without an answer.
fn bounds(palette: &[Timings]) -> (Duration, Duration) {
    let lease = palette.iter().map(Timings::lease).max().expect("at least one");
    let take_over = palette
        .iter()
        .map(|timings| timings.lease() + timings.wait(timings.longest_hold.unwrap_or(timings.hold())))
        .max()
        .expect("at least one");
    (take_over * 3 + lease * 10 + Duration::from_secs(10), lease)
}

async fn comes_back(sim: &Sim, bound: Duration, lasting: Duration, when: &str) {
    let begin = sim.lock().now();
    let mut served_for = Duration::ZERO;
    while served_for < lasting && !failed(sim) {
        let now = sim.lock().now();
        if now >= begin + bound {
            sim.lock().fail(Failure::Stuck(format!("no unit is active {bound:?} {when}")));
            return;
        }
        sim.run_until(now + LOOK).await;
        served_for = if sim.lock().is_served() { served_for + LOOK } else { Duration::ZERO };
    }
}
