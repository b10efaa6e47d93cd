//! Hosts with clocks, guards and units, a store, and a network: everything around the elections, one step at a time.
//!
//! Only time, the guard and the kernel are punctual. Any other step may come at any later time, which covers a daemon that is
//! paused, a slow network and a busy systemd.
//!
//! `steps` says what can happen, and `faults` what can go wrong. The effects are in `clocks`, `daemon` with its calls in
//! `network`, `guard` and `store`. `oracle` answers the questions of a search about a world, and `fingerprint` says which
//! worlds are the same.

use std::{sync::Arc, time::Duration};

use serde::Serialize;

pub use self::steps::Step;
use self::store::Store;
use self::{clocks::BOOT, daemon::Daemon, guard::Guard, network::Sent};
use crate::{
    check::{Milestone, Milestones},
    election::{Content, Memory, Timings},
    plan::{ALWAYS, Fault, Plan},
    types::{FencingToken, Revision, Time},
};

mod clocks;
mod daemon;
mod faults;
mod fingerprint;
mod guard;
mod network;
mod oracle;
mod steps;
mod store;

/// Fencing tokens begin above what CLOCK_REALTIME says, so that they grow by one from holder to holder.
const FIRST_TOKEN: u64 = 1_000_000;

/// The hosts, the store and what is on its way between them: one state of the search.
#[derive(Debug, Clone)]
pub struct World {
    plan: Arc<Plan>,
    milestones: Arc<Milestones>,
    elapsed: Duration,
    store: Arc<Store>,
    nodes: Vec<Arc<Node>>,
    /// Writes that nobody waits for any more, and that may still be applied.
    orphans: Vec<Arc<Sent>>,
    left: [u8; Fault::COUNT],
    both: Both,
    calm: bool,
    /// For how long no unit was active since all is calm.
    quiet: Duration,
    draws: u128,
    highest_token: u64,
    started_token: u64,
    token_fell: bool,
}

#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact")]
struct Node {
    clock: Time,
    /// How far `CLOCK_REALTIME` is ahead of the clock since boot, because the whole machine stood still.
    wall_ahead: Duration,
    rates: (u64, u64),
    powered: bool,
    frozen: bool,
    clocks_stand: bool,
    unenforced: bool,
    unkillable: bool,
    disk: Memory,
    /// When a passing hold was written there that is not over. A reboot counts what was left then from the boot on.
    kept_at: Option<Time>,
    timings: Timings,
    guard: Guard,
    unit: Unit,
    drained: bool,
    daemon: Option<Daemon>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
enum Unit {
    Dead,
    Running,
    /// It ends at any time, but no later than by the guard's SIGKILL.
    Stopping,
}

/// Whether the store keeps both of two writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Both {
    No,
    /// The next two that come before time passes.
    Awaited,
    /// The next one from this base, from which one was won just now.
    From(Revision),
}

impl World {
    pub fn new(plan: &Arc<Plan>, milestones: &Arc<Milestones>) -> Self {
        let nodes = plan.hosts.iter().map(|host| {
            Arc::new(Node {
                clock: Time::both(BOOT),
                wall_ahead: Duration::ZERO,
                rates: (host.rate, host.rate),
                powered: true,
                frozen: false,
                clocks_stand: false,
                unenforced: false,
                unkillable: false,
                disk: Memory {
                    token: FencingToken(FIRST_TOKEN),
                    ..Memory::default()
                },
                kept_at: None,
                timings: host.timings,
                guard: Guard {
                    up: true,
                    ..Guard::default()
                },
                unit: Unit::Dead,
                drained: false,
                daemon: None,
            })
        });
        let mut store = Store {
            life: 1,
            last_revision: 0,
            history: Vec::new(),
            copy: Vec::new(),
            copy_left: None,
        };
        store.remember(0, Content::Absent, 1);
        let mut world = Self {
            plan: Arc::clone(plan),
            milestones: Arc::clone(milestones),
            elapsed: Duration::ZERO,
            store: Arc::new(store),
            nodes: nodes.collect(),
            orphans: Vec::new(),
            left: plan.faults,
            both: Both::No,
            calm: false,
            quiet: Duration::ZERO,
            draws: 0,
            highest_token: FIRST_TOKEN,
            started_token: 0,
            token_fell: false,
        };
        if let Some(witness) = plan.witness {
            world.node(witness).drained = true;
        }
        for (n, host) in plan.hosts.iter().enumerate() {
            if host.up {
                world.start_daemon(n);
            }
        }
        if plan.begins_served {
            world.serve();
        }
        world
    }

    /// Takes steps without faults until a unit is active and nothing is due.
    fn serve(&mut self) {
        self.calm = true;
        let mut steps = Vec::new();
        while !self.is_served() || !steps.contains(&Step::Tick) {
            if let Some(step) = steps.first() {
                self.take(*step);
            }
            // A daemon that is down at the beginning is not started.
            steps.clear();
            self.steps(&mut steps);
            steps.retain(|step| !matches!(step, Step::StartDaemon(_)));
            if steps.is_empty() {
                steps.push(Step::Tick);
            }
        }
        (self.calm, self.quiet) = (false, Duration::ZERO);
    }

    fn node(&mut self, n: usize) -> &mut Node {
        Arc::make_mut(&mut self.nodes[n])
    }

    fn daemon(&mut self, n: usize) -> Option<&mut Daemon> {
        self.node(n).daemon.as_mut()
    }

    fn may(&self, fault: Fault) -> bool {
        self.left[fault as usize] > 0
    }

    fn spend(&mut self, fault: Fault) {
        let left = &mut self.left[fault as usize];
        if *left != ALWAYS {
            *left = left.saturating_sub(1);
        }
    }

    fn reach(&self, milestone: Milestone) {
        self.milestones.reach(milestone);
    }
}

impl Node {
    fn runs(&self) -> bool {
        self.powered && !self.frozen
    }

    /// A frozen unit executes nothing.
    fn executes(&self) -> bool {
        self.runs() && self.unit != Unit::Dead
    }

    fn gate_is_open(&self, token: Option<FencingToken>) -> bool {
        self.guard.up
            && self.guard.grant.is_some_and(|(granted, deadline)| {
                token.is_none_or(|token| token == granted) && !self.clock.has_passed(deadline)
            })
    }
}
