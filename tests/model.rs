//! The model check: no two units alive at once, whatever happens within what the protocol assumes.
use std::time::Duration;

use putexd_model::check::{self, Milestone, OVERLAP};
use putexd_model::election::Timings;
use putexd_model::plan::{Fault, Plan, ALWAYS};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn tight(failures: u32, confirmations: u32) -> Timings {
    Timings {
        margin: Duration::ZERO,
        clock_error_ppm: 0,
        slack: Duration::ZERO,
        ..Timings::new(seconds(1), failures, confirmations)
    }
}

#[test]
fn two_hosts() {
    let plan = Plan::of(&[tight(2, 1), tight(2, 1)]);
    check::exhaust("2 hosts, any pause", plan, seconds(40), 30_000_000).holds(1000, &[Milestone::ActiveOnFirst]);
}

#[test]
fn one_late() {
    for late in [0, 1] {
        let mut plan = Plan::of(&[tight(2, 1), tight(2, 1)]);
        plan.hosts[1 - late].late = false;
        check::exhaust("2 hosts, any pause of one", plan, seconds(40), 30_000_000).holds(1000, &[Milestone::ActiveOnFirst]);
    }
}

#[test]
fn walk() {
    let plan = Plan::of(&[tight(2, 1), tight(2, 1)]).with(&[(Fault::Loss, ALWAYS), (Fault::DaemonCrash, 3)]);
    check::walk("walk", plan, 1, seconds(10)).holds(1000, &[Milestone::ActiveOnFirst]);
}

#[test]
fn too_long() {
    let t = Timings { stop_budget: seconds(2), ..tight(2, 1) };
    let plan = Plan::of(&[t, t]);
    check::exhaust("S too long", plan, seconds(40), 30_000_000).finds(OVERLAP);
}
