//! Runs one scene, and then checks that the service comes back.

use std::{collections::BTreeSet, time::Duration};

use putexd::election::Timings;
use tokio::runtime::Builder;

use crate::{
    draw::STORMY,
    journal::Log,
    scene::{Scene, host_name},
    world::{Failure, Sim},
};

/// How often the run checks whether the service is back.
const LOOK: Duration = Duration::from_millis(500);

/// The result of a scene.
pub struct Outcome {
    /// What happened while the scene lasted.
    pub trace: Vec<String>,
    /// What happened after it.
    pub calm: Vec<String>,
    /// The changes of state that the daemons told, by their names.
    pub edges: BTreeSet<(String, String)>,
    pub has_overlapped: bool,
    pub failure: Option<Failure>,
    /// How often the unit was started, on all hosts.
    pub starts: usize,
}

impl Outcome {
    /// All that happened.
    pub fn log(&self) -> Vec<&str> {
        self.trace
            .iter()
            .chain(&self.calm)
            .map(String::as_str)
            .collect()
    }
}

/// Runs a scene from its beginning to its end.
pub fn run(scene: &Scene) -> Outcome {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let log = Log::default();
    let (sim, trace) = log.keep(|| {
        runtime.block_on(async {
            let sim = play(scene, log.clone()).await;
            let trace = log.take();
            recover(scene, &sim).await;
            (sim, trace)
        })
    });
    drop(runtime);
    let (calm, edges) = log.take();
    let mut world = sim.lock();
    Outcome {
        trace: trace.0,
        calm,
        edges: trace.1.into_iter().chain(edges).collect(),
        has_overlapped: world.has_overlapped,
        failure: world.failure.take(),
        starts: world.starts,
    }
}

/// Runs a scene until its last fault is over, and its last expectation was looked at.
async fn play(scene: &Scene, log: Log) -> Sim {
    let sim = Sim::new(scene, log);
    for expectation in &scene.expectations {
        sim.run_until(expectation.at).await;
        let mut world = sim.lock();
        match world.check(&expectation.what) {
            Ok(()) => {}
            Err(text) => world.fail(Failure::Unmet(text)),
        }
    }
    let over = scene
        .faults
        .iter()
        .map(|fault| fault.at + fault.lasts)
        .max()
        .unwrap_or_default();
    let now = sim.lock().now();
    sim.run_until(over.min(STORMY + Duration::from_secs(8)).max(now))
        .await;
    sim
}

/// Ends all faults, and checks that the service comes back.
async fn recover(scene: &Scene, sim: &Sim) {
    if failed(sim) {
        return;
    }
    sim.lock().calm();
    let (bound, lease) = bounds(&scene.palette);
    // A stop may have begun just before the end of the storm.
    let stops = scene.hosts.iter();
    let stop = stops.map(|host| host.stop_takes.unwrap_or(host.stop_timeout));
    let stopped = bound + stop.max().unwrap_or_default();
    comes_back(sim, stopped, lease, "after the storm").await;
    // A host may hold the lock back from others without an error of the one that serves, so each host has to serve alone.
    for h in 0..scene.hosts.len() {
        if failed(sim) {
            return;
        }
        let others: Vec<usize> = (0..scene.hosts.len()).filter(|other| *other != h).collect();
        for other in &others {
            sim.lock().power_off(*other);
        }
        let starts = sim.lock().starts;
        comes_back(sim, bound, lease, &format!("with {} alone", host_name(h))).await;
        let starts = sim.lock().starts - starts;
        if starts > 1 {
            let text = format!(
                "{} alone and in good order starts the unit {starts} times",
                host_name(h)
            );
            sim.lock().fail(Failure::Restless(text));
        }
        for other in &others {
            sim.lock().power_on(*other);
        }
    }
}

fn failed(sim: &Sim) -> bool {
    sim.lock().failure.is_some()
}

/// The time within which a unit has to be active, and for how long it has to stay active.
///
/// A back-off is at most 10·T. Then comes one take-over of a record whose holder is unknown, and one more each for a claim that
/// was lost to another host's and for a claim without an answer.
fn bounds(palette: &[Timings]) -> (Duration, Duration) {
    let lease = palette
        .iter()
        .map(Timings::lease)
        .max()
        .expect("at least one");
    let take_over = palette
        .iter()
        .map(|timings| {
            timings.lease() + timings.wait(timings.longest_hold.unwrap_or(timings.hold()))
        })
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
            sim.lock().fail(Failure::Stuck(format!(
                "no unit is active {bound:?} {when}"
            )));
            return;
        }
        sim.run_until(now + LOOK).await;
        served_for = if sim.lock().is_served() {
            served_for + LOOK
        } else {
            Duration::ZERO
        };
    }
}
