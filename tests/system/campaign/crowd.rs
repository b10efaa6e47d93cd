//! Other services beside the one that the campaign tests, so that all faults happen to a host that has much to do.
//!
//! Their copies are not watched one by one as the oracle's are. The kernel's control groups are read now and then to see which
//! host runs each of them. A copy is one too many if it was there both before and after another host's copy was seen to run,
//! unless a host stood still.

use std::{collections::BTreeMap, time::Duration};

use super::{
    audit::{Standstill, THAW_BOUND},
    number,
};
use crate::{
    command::now,
    fixture::{Fixture, Plan},
};

/// Environment variable: the number of other services.
const SERVICES: &str = "PUTEX_CAMPAIGN_SERVICES";
/// Prefix of the names of the services.
pub const PREFIX: &str = "crowd-";

/// The services that run on a host, each with the id of one of its processes.
type Running = BTreeMap<String, u32>;

#[derive(Debug, Clone, Copy)]
pub struct Crowd(usize);

impl Crowd {
    /// The number that the environment asks for, or 0.
    pub fn of_this_run() -> Self {
        Self(number(SERVICES).unwrap_or(0))
    }

    /// Puts the units and the files of the services on the hosts.
    pub fn join(self, plan: Plan) -> Plan {
        (0..self.0).fold(plan, |plan, at| {
            let name = format!("{PREFIX}{at:03}");
            let service = format!("unit = \"{name}.service\"\nrenew-interval = \"2s\"\n");
            plan.unit(&name, "[Service]\nExecStart=/usr/bin/sleep infinity\n")
                .file(&format!("/etc/putex.d/{name}.toml"), &service)
        })
    }

    /// Checks that each service runs exactly once over all hosts, or tells what is amiss.
    pub fn look(self, fixture: &Fixture) -> Result<(), String> {
        let running: usize = fixture
            .hosts
            .iter()
            .map(|host| host.running_services(PREFIX).len())
            .sum();
        if running == self.0 {
            Ok(())
        } else {
            Err(format!(
                "{running} of the {} services beside it run",
                self.0
            ))
        }
    }
}

/// A service that runs on two hosts at once although no host stood still.
pub fn find_twice(fixture: &Fixture, standstills: &[Standstill]) -> Option<String> {
    let excused = |at: Duration| {
        standstills
            .iter()
            .any(|still| still.from <= at && at <= still.until + THAW_BOUND)
    };
    let began = now();
    let look = || -> Vec<Running> {
        fixture
            .hosts
            .iter()
            .map(|host| host.first_processes(PREFIX))
            .collect()
    };
    let first = look();
    let names: Vec<&String> = first.iter().flat_map(BTreeMap::keys).collect();
    let is_doubled = |name: &&&String| {
        first
            .iter()
            .filter(|running| running.contains_key(**name))
            .count()
            > 1
    };
    if !names.iter().any(|name| is_doubled(&name)) || excused(began) {
        return None;
    }
    // A process that was read on one host may have ended before the next host was read, so all hosts are read a second
    // time.
    let again = look();
    names
        .into_iter()
        .filter(|name| is_doubled(&name))
        .find_map(|name| {
            let lasting = |(before, after): &(&Running, &Running)| {
                before.get(name) == after.get(name) && before.contains_key(name)
            };
            (first.iter().zip(&again).filter(lasting).count() > 1).then(|| name.clone())
        })
}
