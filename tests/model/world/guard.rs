//! The guard. Its deadlines are punctual, and its replies need not be. Here is also what SIGKILL and `BindsTo=` do.

use super::{Node, Unit, World};
use crate::{
    election::{Event, GuardRequest, Remembered},
    guard::{
        frame::{Command, Lease, ListedLease, Outcome},
        table::{Effect, LeaseTable},
    },
    types::{Extension, FencingToken, LeaseTerms, NodeId, OnStopFailure, ServiceName, Time},
};

#[derive(Debug, Clone, Default)]
pub(super) struct Guard {
    pub(super) up: bool,
    pub(super) table: LeaseTable,
    /// The token and the deadline that the gate reads.
    pub(super) grant: Option<(FencingToken, Time)>,
    /// The deadline of the lease, and the time by which the unit is dead.
    pub(super) armed: Option<(Time, Time)>,
}

impl World {
    /// The guard, or what stands in for it (assumption (c)), acts on deadlines, and is always punctual.
    pub(super) fn enforce(&mut self, n: usize) {
        let node = self.node(n);
        if !node.runs() {
            return;
        }
        let now = node.clock;
        kill_if_due(node);
        if node.guard.up {
            let effects = node.guard.table.expire(now);
            carry_out(node, effects);
            kill_if_due(node);
        }
        if let Some((deadline, _)) = node.guard.armed
            && now.has_passed(deadline)
            && node.unit == Unit::Running
            && !node.unenforced
        {
            node.unit = Unit::Stopping;
        }
    }

    pub(super) fn guard_serves(&mut self, n: usize) {
        let overrun = self.plan.overrun;
        let node = self.node(n);
        let Some(request) = node
            .daemon
            .as_mut()
            .and_then(|daemon| daemon.queue.pop_front())
        else {
            return;
        };
        let now = node.clock;
        let effects = node.guard.table.expire(now);
        carry_out(node, effects);
        let command = command(request, &node.guard.table);
        let (outcome, effects) = node.guard.table.handle(now, command);
        carry_out(node, effects);
        let done = outcome == Outcome::Done;
        if done {
            match request {
                GuardRequest::Arm(LeaseTerms {
                    deadline,
                    stop_budget,
                    ..
                }) => {
                    node.guard.armed = Some((deadline, deadline.plus(stop_budget + overrun)));
                }
                GuardRequest::Extend(LeaseTerms { deadline, .. })
                | GuardRequest::Shorten(LeaseTerms { deadline, .. }) => {
                    node.guard.armed = node.guard.armed.map(|(before, dead_by)| {
                        let budget = dead_by.boot.saturating_sub(before.boot);
                        (deadline, deadline.plus(budget))
                    });
                }
                GuardRequest::Close(_) => {}
                GuardRequest::Disarm(_) => node.guard.armed = None,
            }
        }
        if let Some(daemon) = node.daemon.as_mut() {
            daemon.replies.push_back((request, done));
        }
        if !self.plan.slow_guard {
            self.guard_replies(n);
        }
    }

    pub(super) fn guard_replies(&mut self, n: usize) {
        let reply = self.daemon(n).and_then(|daemon| daemon.replies.pop_front());
        if let Some((request, done)) = reply {
            self.give(
                n,
                if done {
                    Event::GuardDone(request)
                } else {
                    Event::GuardRefused(request, "refused".to_owned())
                },
            );
        }
    }

    pub(super) fn guard_link(&mut self, n: usize) {
        let up = self.nodes[n].guard.up;
        let Some(daemon) = self.daemon(n) else { return };
        if daemon.guard_lost || !up {
            (daemon.guard_lost, daemon.sees_guard) = (false, false);
            daemon.queue.clear();
            self.give(n, Event::GuardDown);
        } else {
            daemon.sees_guard = true;
            self.give(n, Event::GuardUp);
        }
    }

    pub(super) fn start_guard(&mut self, n: usize) {
        let node = self.node(n);
        let (table, effects) = LeaseTable::resume(node.clock, node.guard.table.entries());
        node.guard.table = table;
        node.guard.up = true;
        carry_out(node, effects);
        self.enforce(n);
    }
}

pub(super) fn stop_unit(node: &mut Node) {
    if node.unit == Unit::Running {
        node.unit = Unit::Stopping;
    }
}

/// SIGKILL empties the control group in time, unless a fault prevents that.
fn kill_if_due(node: &mut Node) {
    let Some((_, dead_by)) = node.guard.armed else {
        return;
    };
    if !node.clock.has_passed(dead_by) {
        return;
    }
    if !node.unkillable && !node.unenforced {
        node.unit = Unit::Dead;
    }
    if node.unit == Unit::Dead {
        node.guard.table.stopped(&service());
    }
}

fn carry_out(node: &mut Node, effects: Vec<Effect>) {
    for effect in effects {
        match effect {
            Effect::Grant(lease) => {
                node.guard.grant = Some((lease.terms.token, lease.terms.deadline))
            }
            Effect::Extend(_, deadline) => {
                if let Some((_, granted)) = &mut node.guard.grant {
                    *granted = deadline;
                }
            }
            Effect::Withdraw(_) => node.guard.grant = None,
            Effect::Enforce(_) => stop_unit(node),
            Effect::Forget(_) | Effect::GiveUp(_) => {}
        }
    }
}

fn service() -> ServiceName {
    ServiceName::new("s").expect("a service's name")
}

fn command(request: GuardRequest, table: &LeaseTable) -> Command {
    let lease = |terms| Lease {
        service: service(),
        node: NodeId::new("h").expect("a node's name"),
        terms,
        units: Vec::new(),
        cgroups: Vec::new(),
        inactive: Vec::new(),
        begun: Vec::new(),
        contains: Vec::new(),
        outside: [].into(),
        on_stop_failure: OnStopFailure::Alert,
        closing: false,
    };
    match request {
        GuardRequest::Arm(terms) => Command::Arm {
            lease: lease(terms),
            shorter: false,
        },
        GuardRequest::Shorten(terms) if table.entry_of(&service()).is_some() => Command::Arm {
            lease: lease(terms),
            shorter: true,
        },
        // The guard refuses to extend a lease that it does not have.
        GuardRequest::Extend(terms) | GuardRequest::Shorten(terms) => Command::Extend {
            service: service(),
            instance: terms.instance,
            extension: Extension {
                write: terms.write,
                revision: terms.revision,
                deadline: terms.deadline,
            },
        },
        GuardRequest::Close(instance) => Command::Close {
            service: service(),
            instance,
        },
        GuardRequest::Disarm(instance) => Command::Disarm {
            service: service(),
            instance,
        },
    }
}

pub(super) fn remembered(listed: &ListedLease) -> Remembered {
    let ListedLease { lease, lapsed, .. } = listed;
    Remembered {
        terms: lease.terms,
        closing: lease.closing,
        lapsed: *lapsed,
        units: Vec::new(),
    }
}
