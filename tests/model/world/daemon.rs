//! The process of a daemon: its driver, which hands events to the election and performs its actions, and its systemd.

use std::{collections::VecDeque, sync::Arc};

use serde::Serialize;

use super::{
    Unit, World,
    guard::{remembered, stop_unit},
    network::{Ask, Call, Sent},
    steps::Step,
};
use crate::{
    check::Milestone,
    election::{
        Action, Asked, Election, ElectionSettings, Event, GuardRequest, Moment, Order, State,
    },
    facts::{Bar, StepDown},
    guard::frame::{Command, Of, Outcome},
    types::{FencingToken, Instance, Key, MachineId, NodeId, OnStopFailure},
};

/// The process of a daemon.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact")]
pub(super) struct Daemon {
    pub(super) election: Election,
    pub(super) calls: Vec<Call>,
    /// Requests to the guard, which are served in this order.
    pub(super) queue: VecDeque<GuardRequest>,
    pub(super) replies: VecDeque<(GuardRequest, bool)>,
    pub(super) start: Start,
    /// Hosts that are being fenced, for this tenure.
    pub(super) fence: Option<(Instance, Vec<NodeId>)>,
    pub(super) stops: bool,
    pub(super) sees_alive: Option<bool>,
    pub(super) sees_guard: bool,
    /// A guard died while it had requests or replies of this daemon.
    pub(super) guard_lost: bool,
    pub(super) sees_store: bool,
    pub(super) hint: bool,
    /// Time has passed since the election got its last event.
    pub(super) heartbeat: bool,
}

/// A start that was decided, from the decision to its report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Start {
    None,
    Queued {
        instance: Instance,
        token: FencingToken,
    },
    Done {
        instance: Instance,
        works: bool,
    },
}

impl World {
    pub(super) fn settings(&self, n: usize) -> ElectionSettings {
        let node = &self.nodes[n];
        ElectionSettings {
            key: Key::new("db").expect("a key"),
            node: NodeId::new(self.plan.hosts[n].name).expect("a node's name"),
            machine: MachineId(n as u128 + 1),
            timings: node.timings,
            stop_limit: node.timings.stop_budget * 30,
            on_stop_failure: OnStopFailure::Alert,
            check_validity: None,
            checks_standby: false,
            fences: self.plan.fences,
            fence_hosts: Vec::new(),
            units: Vec::new(),
        }
    }

    pub(super) fn start_daemon(&mut self, n: usize) {
        let settings = self.settings(n);
        let node = self.node(n);
        let (outcome, _) = node.guard.table.handle(node.clock, Command::List(Of::All));
        let remembered = match outcome {
            Outcome::Leases(state) => state.leases.first().map(remembered),
            Outcome::Done | Outcome::Refused { .. } => None,
        };
        let election = Election::new(settings, node.disk.clone(), remembered, node.clock);
        node.daemon = Some(Daemon {
            election,
            calls: Vec::new(),
            queue: VecDeque::new(),
            replies: VecDeque::new(),
            start: Start::None,
            fence: None,
            stops: false,
            sees_alive: None,
            sees_guard: true,
            guard_lost: false,
            sees_store: true,
            hint: false,
            heartbeat: false,
        });
        let drained = node.drained;
        self.give(n, Event::Timeout);
        if drained {
            self.give(n, Event::Contend(Err(Bar::ShuttingDown)));
        }
        self.give(n, Event::GuardUp);
        self.give(n, Event::StoreUp);
        self.take(Step::ObservedUnit(n));
    }

    /// Hands an event to the election and performs its actions.
    pub(super) fn give(&mut self, n: usize, event: Event) {
        self.draws += 1;
        let random = self.draws;
        let node = self.node(n);
        let moment = Moment {
            now: node.clock,
            wall: node.clock.boot + node.wall_ahead,
            random,
        };
        let Some(daemon) = node.daemon.as_mut() else {
            return;
        };
        daemon.heartbeat = false;
        let actions = daemon.election.handle(&moment, event);
        for action in actions {
            self.perform(n, action);
        }
        self.obey(n);
    }

    /// Does what the record asks the holder for.
    fn obey(&mut self, n: usize) {
        let node = &self.nodes[n];
        let order = node
            .daemon
            .as_ref()
            .and_then(|daemon| daemon.election.order(node.clock));
        let Some(Order { what, word }) = order.cloned() else {
            return;
        };
        self.give(
            n,
            match &what {
                Asked::StepDown(_) => Event::StepDown(StepDown::Order(Order { what, word })),
                Asked::Pause => Event::Pause(Some(word)),
                Asked::Resume => Event::Pause(None),
            },
        );
    }

    fn perform(&mut self, n: usize, action: Action) {
        match action {
            Action::Read { id, before: None } => self.call(n, Ask::Latest(id)),
            Action::Read {
                id,
                before: Some(revision),
            } => self.call(n, Ask::ReplacedBy(id, revision)),
            Action::Write(mut request) => {
                if let Some(details) = request.record.details.as_mut().filter(|_| self.plan.mute) {
                    details.note.above = None;
                }
                let token = request
                    .record
                    .details
                    .as_ref()
                    .map_or(0, |details| details.token.0);
                self.highest_token = self.highest_token.max(token);
                self.call(
                    n,
                    Ask::Write(Arc::new(Sent {
                        request: *request,
                        blind: false,
                    })),
                );
            }
            Action::Guard(request) => {
                if let Some(daemon) = self.daemon(n).filter(|daemon| daemon.sees_guard) {
                    daemon.queue.push_back(request);
                }
            }
            // All hosts name the same lock in this world.
            Action::Vet { instance } => self.give(
                n,
                Event::Answered {
                    step: crate::election::Step::Vet,
                    instance,
                    result: Ok(()),
                },
            ),
            Action::Fence { instance, hosts } => {
                if let Some(daemon) = self.daemon(n) {
                    daemon.fence = Some((instance, hosts));
                }
            }
            Action::Start { instance, token } => {
                if let Some(daemon) = self.daemon(n) {
                    daemon.start = Start::Queued { instance, token };
                }
            }
            Action::Stop { .. } => {
                // The daemon's SIGKILL is left out here: the daemon may be paused, and the guard is not.
                let node = self.node(n);
                if let Some(daemon) = node.daemon.as_mut() {
                    (daemon.start, daemon.stops) = (Start::None, true);
                }
                stop_unit(node);
            }
            Action::Persist(memory) => {
                let node = self.node(n);
                node.kept_at = memory
                    .passing
                    .and_then(|passing| passing.until)
                    .map(|_| node.clock);
                node.disk = memory;
            }
            Action::Report(transition) => self.note(n, transition.from, transition.to),
            Action::Alarm(_) => {}
        }
    }

    fn note(&self, n: usize, from: State, to: State) {
        match (from, to) {
            (State::NoStore, State::Active) => self.reach(Milestone::Adoption),
            (_, State::Active) => self.reach(Milestone::active_on(n)),
            (State::Active | State::Starting | State::Releasing, State::Lapsing) => {
                self.reach(Milestone::Lapse)
            }
            (State::Confirming, State::Standby) => self.reach(Milestone::ClaimLost),
            _ => {}
        }
    }

    /// Fencing takes the power from the hosts, or nothing comes of it.
    pub(super) fn fence(&mut self, n: usize, works: bool) {
        let Some((instance, hosts)) = self.daemon(n).and_then(|daemon| daemon.fence.take()) else {
            return;
        };
        let is_fenced = |name: &str| hosts.iter().any(|host| host.as_str() == name);
        for other in 0..self.nodes.len() {
            if works && other != n && is_fenced(self.plan.hosts[other].name) {
                self.power_off(other);
            }
        }
        let result = if works {
            Ok(())
        } else {
            Err("it says no".into())
        };
        self.give(
            n,
            Event::Answered {
                step: crate::election::Step::Fence,
                instance,
                result,
            },
        );
    }

    pub(super) fn start_job(&mut self, n: usize) {
        let node = self.node(n);
        let Some(daemon) = node.daemon.as_mut() else {
            return;
        };
        let Start::Queued { instance, token } = daemon.start else {
            return;
        };
        let opens = node.gate_is_open(Some(token));
        if let Some(daemon) = node.daemon.as_mut() {
            daemon.start = Start::Done {
                instance,
                works: opens,
            };
        }
        if !opens {
            self.reach(Milestone::GateRefused);
            return;
        }
        if node.unit == Unit::Dead {
            node.unit = Unit::Running;
        }
        let is_known = |n: usize| {
            let memory = self.nodes[n]
                .daemon
                .as_ref()
                .map(|daemon| daemon.election.memory());
            memory.is_some_and(|seen| {
                seen.token.0 >= self.started_token && seen.token_of != Some(instance)
            })
        };
        let has_to_grow = !self.plan.tokens_may_fall() || self.plan.witness.is_some_and(is_known);
        self.token_fell |= has_to_grow && token.0 <= self.started_token;
        self.started_token = self.started_token.max(token.0);
    }

    pub(super) fn started(&mut self, n: usize) {
        let Some(daemon) = self.daemon(n) else { return };
        let Start::Done { instance, works } = daemon.start else {
            return;
        };
        daemon.start = Start::None;
        if works {
            daemon.sees_alive = Some(true);
        }
        let result = if works {
            Ok(())
        } else {
            Err("the gate is closed".to_owned())
        };
        self.give(
            n,
            Event::Answered {
                step: crate::election::Step::Start,
                instance,
                result,
            },
        );
    }
}
