//! Other services beside the one that the campaign is about, so that all faults happen to a host that has much to do.
//!
//! Their copies are not watched one by one as the oracle's are: who runs them is read from the kernel's control groups, now and
//! then. A copy that was there before and after another host's was seen to run is one too many, unless a host stood still.

use std::collections::BTreeMap;
use std::time::Duration;

use super::audit::{Standstill, THAW_BOUND};
use super::number;
use crate::command::now;
use crate::fixture::{Fixture, Plan};

/// How many.
const SERVICES: &str = "PUTEX_CAMPAIGN_SERVICES";
/// What their names begin with.
pub const PREFIX: &str = "crowd-";

/// A process of each service that runs on a host.
type Running = BTreeMap<String, u32>;

#[derive(Debug, Clone, Copy)]
pub struct Crowd(usize);

impl Crowd {
    /// As many as were asked for, or none.
    pub fn of_this_run() -> Self {
        Self(number(SERVICES).unwrap_or(0))
    }

    /// Puts their units and files on the hosts.
    pub fn join(self, plan: Plan) -> Plan {
        (0..self.0).fold(plan, |plan, at| {
            let name = format!("{PREFIX}{at:03}");
            let service = format!("unit = \"{name}.service\"\nrenew-interval = \"2s\"\n");
            plan.unit(&name, "[Service]\nExecStart=/usr/bin/sleep infinity\n")
                .file(&format!("/etc/putex.d/{name}.toml"), &service)
        })
    }

    /// Whether each of them runs, or what is amiss.
    pub fn look(self, fixture: &Fixture) -> Result<(), String> {
        let running: usize = fixture.hosts.iter().map(|host| host.running_services(PREFIX).len()).sum();
        if running == self.0 { Ok(()) } else { Err(format!("{running} of the {} services beside it run", self.0)) }
    }
}

/// One that runs on two hosts at once though nobody stood still.
pub fn find_twice(fixture: &Fixture, standstills: &[Standstill]) -> Option<String> {
    let excused = |at: Duration| standstills.iter().any(|still| still.from <= at && at <= still.until + THAW_BOUND);
    let began = now();
    let look = || -> Vec<Running> { fixture.hosts.iter().map(|host| host.first_processes(PREFIX)).collect() };
    let first = look();
    let names: Vec<&String> = first.iter().flat_map(BTreeMap::keys).collect();
    let is_doubled = |name: &&&String| first.iter().filter(|running| running.contains_key(**name)).count() > 1;
    if !names.iter().any(|name| is_doubled(&name)) || excused(began) {
        return None;
    }
    // What was read on one host may have ended before the next one was read.
    let again = look();
    names.into_iter().filter(|name| is_doubled(&name)).find_map(|name| {
        let lasting =
            |(before, after): &(&Running, &Running)| before.get(name) == after.get(name) && before.contains_key(name);
        (first.iter().zip(&again).filter(lasting).count() > 1).then(|| name.clone())
    })
}
