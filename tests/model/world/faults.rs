//! The faults and orders: when each can happen, and what it does.

use std::{sync::Arc, time::Duration};

use super::{
    Both, Unit, World,
    clocks::TRUE_RATE,
    guard::{Guard, stop_unit},
    network::Ask,
    steps::Step,
};
use crate::{
    check::Milestone,
    election::{
        Asked, Content, Details, Event, Observation, Order, Passing, Record, Standing, Word,
    },
    facts::{Bar, StepDown},
    plan::{Fault, PAUSE},
    types::{Holder, MachineId, WriteId},
};

/// When a fault can happen.
impl World {
    pub(super) fn faults_of(&self, n: usize, steps: &mut Vec<Step>) {
        if self.plan.witness == Some(n) {
            return;
        }
        let node = &self.nodes[n];
        let mut offer = |fault: Fault, applies: bool| {
            if applies && self.may(fault) {
                steps.push(Step::Fault(fault, n));
            }
        };
        let runs = node.runs();
        let serves = runs && node.daemon.is_some();
        offer(Fault::DaemonCrash, serves);
        offer(
            Fault::ForgetPassing,
            runs && node.daemon.is_none() && node.disk.passing.is_some(),
        );
        offer(Fault::PowerLoss, node.powered);
        offer(Fault::Freeze, runs);
        offer(Fault::StoppedClock, runs);
        offer(Fault::GuardDeath, runs && node.guard.up);
        offer(Fault::UnitDeath, runs && node.unit == Unit::Running);
        offer(
            Fault::StartByHand,
            runs && node.unit == Unit::Dead && node.gate_is_open(None),
        );
        offer(Fault::Stray, runs && node.unit == Unit::Dead);
        offer(Fault::NobodyEnforces, runs && node.unit == Unit::Running);
        offer(
            Fault::Unkillable,
            runs && node.unit == Unit::Running && !node.unkillable,
        );
        offer(
            Fault::FenceFails,
            serves
                && node
                    .daemon
                    .as_ref()
                    .is_some_and(|daemon| daemon.fence.is_some()),
        );
        offer(
            Fault::Disconnect,
            serves && node.daemon.as_ref().is_some_and(|daemon| daemon.sees_store),
        );
        offer(Fault::StepDown, serves);
        for word in [Fault::Stop, Fault::StartAgain, Fault::Pause, Fault::Resume] {
            offer(word, serves);
        }
        let orders = serves
            && node
                .daemon
                .as_ref()
                .is_some_and(|daemon| daemon.election.orderable().is_some());
        for order in [Fault::OrderStepDown, Fault::OrderPause, Fault::OrderResume] {
            offer(order, orders);
        }
        offer(Fault::Drain, serves && !node.drained);
        if serves && self.may(Fault::StepDown) {
            steps.extend(
                (0..self.nodes.len())
                    .filter(|other| *other != n)
                    .map(|other| Step::HandOver(n, other)),
            );
        }
        if serves && self.may(Fault::Reload) {
            let others = self
                .plan
                .reloads
                .iter()
                .enumerate()
                .filter(|(_, timings)| **timings != node.timings);
            steps.extend(others.map(|(index, _)| Step::Reload(n, index)));
        }
        let error = u64::from(node.timings.clock_error_ppm);
        let mut rates = Vec::new();
        if self.may(Fault::Rate) {
            rates
                .extend([TRUE_RATE - error, TRUE_RATE, TRUE_RATE + error].map(|rate| (rate, rate)));
        }
        if self.may(Fault::Slew) {
            rates.extend([
                (TRUE_RATE / 2, TRUE_RATE),
                (TRUE_RATE * 2, TRUE_RATE),
                (TRUE_RATE, TRUE_RATE / 2),
            ]);
        }
        if self.may(Fault::WrongRate) {
            rates.extend([TRUE_RATE / 2, TRUE_RATE * 2].map(|rate| (rate, rate)));
        }
        rates.retain(|rates| *rates != node.rates);
        if runs {
            steps.extend(
                rates
                    .into_iter()
                    .map(|(boot, raw)| Step::Rate(n, boot, raw)),
            );
        }
    }

    pub(super) fn faults_of_the_store(&self, steps: &mut Vec<Step>) {
        let latest = self.store.latest();
        let there = latest.content != Content::Absent;
        let held = latest.content.record().is_some_and(Record::is_held);
        let standing = latest
            .content
            .record()
            .and_then(|record| Some(record.details.as_ref()?.standing));
        let has_past = self.store.history.len() > 1;
        let applies = [
            (Fault::Wipe, there),
            (
                Fault::WipeWhatIsKnown,
                there && self.is_passing_hold_known(),
            ),
            (
                Fault::FalseResume,
                self.passing().is_some() && standing == Some(Standing::Active),
            ),
            (Fault::SilentWipe, there),
            (Fault::Copy, there),
            (Fault::Restore, has_past || !self.store.copy.is_empty()),
            (
                Fault::PutBack,
                self.store
                    .copy
                    .last()
                    .is_some_and(|old| old.content != latest.content),
            ),
            (Fault::GoBack, self.may_go_back()),
            (Fault::RollBack, has_past),
            (Fault::Purge, there),
            (Fault::Delete, latest.content.record().is_some()),
            (Fault::Clear, held),
            (
                Fault::FalseGaveUp,
                held && standing == Some(Standing::Active),
            ),
            (Fault::KeepBoth, self.both == Both::No),
        ];
        let offered = applies
            .into_iter()
            .filter(|(fault, applies)| *applies && self.may(*fault));
        steps.extend(offered.map(|(fault, _)| Step::Fault(fault, 0)));
    }

    /// The passing hold of the latest record, and by whom it was written.
    fn passing(&self) -> Option<(&Details, Passing)> {
        let details = self.store.latest().content.record()?.details.as_ref()?;
        Some((details, details.passing?))
    }

    /// Whether each host but its writer has seen the passing hold of the latest record, or another one under its id.
    fn is_passing_hold_known(&self) -> bool {
        let Some((details, passing)) = self.passing() else {
            return true;
        };
        self.nodes.iter().enumerate().all(|(n, node)| {
            details.machine == MachineId(n as u128 + 1)
                || node
                    .disk
                    .passing
                    .is_some_and(|known| known.id == passing.id)
        })
    }

    /// Whether all that going back would lose, except renewals, is so old that a host that saw nothing of it had no answer for
    /// longer than counts as watching.
    fn may_go_back(&self) -> bool {
        let store = &self.store;
        let lost_for = store
            .copy_left
            .map(|left| self.elapsed.saturating_sub(left));
        store
            .copy
            .last()
            .is_some_and(|old| old.incarnation == store.incarnation())
            && lost_for.is_some_and(|span| span > self.plan.longest_gap())
    }
}

/// What a fault does.
impl World {
    pub(super) fn fault(&mut self, fault: Fault, n: usize) {
        self.spend(fault);
        if fault == Fault::GoBack {
            self.reach(Milestone::WentBack);
        }
        match fault {
            Fault::DaemonCrash => self.crash(n),
            Fault::PowerLoss => self.power_off(n),
            Fault::FenceFails => self.fence(n, false),
            Fault::KeepBoth => self.both = Both::Awaited,
            Fault::Freeze => self.node(n).frozen = true,
            Fault::StoppedClock => {
                let node = self.node(n);
                (node.frozen, node.clocks_stand) = (true, true);
            }
            Fault::GuardDeath => self.kill_guard(n),
            Fault::UnitDeath => self.node(n).unit = Unit::Dead,
            Fault::ForgetPassing => self.node(n).disk.passing = None,
            Fault::StartByHand | Fault::Stray => self.node(n).unit = Unit::Running,
            Fault::Disconnect => {
                if let Some(daemon) = self.daemon(n) {
                    daemon.sees_store = false;
                }
                self.give(n, Event::StoreDown);
            }
            Fault::StepDown => self.give(
                n,
                Event::StepDown(StepDown::Order(Order {
                    what: Asked::StepDown(None),
                    word: Word::new("", "step-down", 0, None),
                })),
            ),
            Fault::Stop => self.give(n, Event::Stop(Word::new("root", "", 0, None))),
            Fault::StartAgain => self.give(n, Event::StartAgain),
            Fault::Pause => {
                let node = &self.nodes[n];
                let until = (node.clock.boot + node.wall_ahead + PAUSE).as_secs();
                self.give(n, Event::Pause(Some(Word::new("root", "", 0, Some(until)))));
            }
            Fault::Resume => self.give(n, Event::Pause(None)),
            Fault::OrderStepDown => self.order(n, Asked::StepDown(None), None),
            Fault::OrderPause => self.order(n, Asked::Pause, Some(PAUSE)),
            Fault::OrderResume => self.order(n, Asked::Resume, None),
            Fault::Drain => {
                self.node(n).drained = true;
                self.give(n, Event::Contend(Err(Bar::ShuttingDown)));
            }
            Fault::NobodyEnforces => {
                self.crash(n);
                self.kill_guard(n);
                let node = self.node(n);
                (node.unenforced, node.unit) = (true, Unit::Running);
            }
            Fault::Unkillable => self.node(n).unkillable = true,
            Fault::Wipe
            | Fault::WipeWhatIsKnown
            | Fault::SilentWipe
            | Fault::Copy
            | Fault::Restore
            | Fault::PutBack
            | Fault::GoBack
            | Fault::RollBack
            | Fault::Purge
            | Fault::Delete
            | Fault::FalseGaveUp
            | Fault::FalseResume
            | Fault::Clear => self.fault_of_the_store(fault),
            Fault::Loss
            | Fault::Orphan
            | Fault::StaleRead
            | Fault::Reload
            | Fault::FalseAnswer
            | Fault::Rate
            | Fault::Slew
            | Fault::WrongRate => {}
        }
    }

    /// Marks the writes that are under way: they will be applied to whichever store is there.
    fn blindfold(&mut self) {
        for n in 0..self.nodes.len() {
            let Some(daemon) = self.daemon(n) else {
                continue;
            };
            for call in &mut daemon.calls {
                if let (Ask::Write(sent), None) = (&mut call.ask, &call.answer) {
                    Arc::make_mut(sent).blind = true;
                }
            }
        }
        for orphan in &mut self.orphans {
            Arc::make_mut(orphan).blind = true;
        }
    }

    fn fault_of_the_store(&mut self, fault: Fault) {
        if matches!(fault, Fault::Wipe | Fault::WipeWhatIsKnown | Fault::Restore)
            && self.plan.blind_writes
        {
            self.blindfold();
        }
        let store = Arc::make_mut(&mut self.store);
        match fault {
            Fault::Wipe | Fault::WipeWhatIsKnown | Fault::SilentWipe => {
                store.life += u64::from(fault != Fault::SilentWipe);
                store.last_revision = 0;
                store.history.clear();
                store.remember(0, Content::Absent, 1);
            }
            Fault::Copy => {
                store.copy.clone_from(&store.history);
                store.copy_left = None;
                return;
            }
            Fault::GoBack => {
                store.copy_left = None;
                store.history = store.copy.clone();
                store.last_revision = store.latest().revision.0;
            }
            Fault::Restore => {
                let mut past = if store.copy.is_empty() {
                    &store.history
                } else {
                    &store.copy
                }
                .clone();
                if store.copy.is_empty() {
                    past.pop();
                }
                store.restore(past);
            }
            Fault::RollBack => {
                store.history.pop();
                store.last_revision = store.latest().revision.0;
            }
            Fault::PutBack => {
                if let Some(old) = store.copy.last() {
                    let content = old.content.clone();
                    self.put(content);
                }
                return;
            }
            Fault::Purge => store.remember(0, Content::Absent, 2),
            Fault::Delete => {
                self.put(Content::Tombstone);
                return;
            }
            Fault::Clear => {
                self.put(Content::Record(Record::new(Holder::default(), None)));
                return;
            }
            Fault::FalseGaveUp => {
                let mut content = store.latest().content.clone();
                if let Content::Record(Record {
                    details: Some(details),
                    ..
                }) = &mut content
                {
                    details.standing = Standing::GaveUp;
                }
                self.put(content);
                return;
            }
            Fault::FalseResume => {
                self.resume_falsely();
                return;
            }
            Fault::Loss
            | Fault::Orphan
            | Fault::StaleRead
            | Fault::ForgetPassing
            | Fault::DaemonCrash
            | Fault::PowerLoss
            | Fault::Freeze
            | Fault::GuardDeath
            | Fault::UnitDeath
            | Fault::StartByHand
            | Fault::Disconnect
            | Fault::StepDown
            | Fault::Drain
            | Fault::Stop
            | Fault::StartAgain
            | Fault::Pause
            | Fault::Resume
            | Fault::OrderStepDown
            | Fault::OrderPause
            | Fault::OrderResume
            | Fault::Reload
            | Fault::FenceFails
            | Fault::KeepBoth
            | Fault::FalseAnswer
            | Fault::Rate
            | Fault::Slew
            | Fault::WrongRate
            | Fault::StoppedClock
            | Fault::NobodyEnforces
            | Fault::Unkillable
            | Fault::Stray => return,
        }
        self.store_changed();
    }

    /// Has the record say what the holder is to do, for `span` where it has an end.
    fn order(&mut self, n: usize, what: Asked, span: Option<Duration>) {
        let node = &self.nodes[n];
        let wall = node.clock.boot + node.wall_ahead;
        let until = span.map(|span| (wall + span).as_secs());
        let word = Word::new("root", "", wall.as_secs(), until);
        self.give(n, Event::Order(Order { what, word }));
    }

    fn resume_falsely(&mut self) {
        self.draws += 1;
        let Observation {
            revision,
            mut content,
            ..
        } = self.store.latest().clone();
        if let Content::Record(Record {
            details: Some(details),
            ..
        }) = &mut content
        {
            (details.hold, details.lease) = (
                details.lasting_hold(),
                details.lease.min(details.lasting_hold()),
            );
            (details.passing, details.prev) = (None, Some((revision, Some(details.instance))));
            details.write = WriteId(!self.draws);
        }
        self.put(content);
    }

    pub(super) fn power_off(&mut self, n: usize) {
        self.crash(n);
        let node = self.node(n);
        (node.powered, node.frozen, node.unkillable) = (false, false, false);
        node.unit = Unit::Dead;
        node.guard = Guard::default();
    }

    /// Ends the daemon. Its writes that are under way may still be applied.
    fn crash(&mut self, n: usize) {
        let Some(daemon) = self.node(n).daemon.take() else {
            return;
        };
        for call in daemon.calls {
            if let (Ask::Write(request), None) = (call.ask, call.answer) {
                self.orphans.push(request);
            }
        }
        self.store_changed();
    }

    /// Ends the guard, and `BindsTo=` makes systemd stop the unit.
    fn kill_guard(&mut self, n: usize) {
        let node = self.node(n);
        (node.guard.up, node.guard.grant) = (false, None);
        stop_unit(node);
        if let Some(daemon) = node.daemon.as_mut() {
            daemon.guard_lost |= !daemon.queue.is_empty() || !daemon.replies.is_empty();
            daemon.queue.clear();
            daemon.replies.clear();
        }
    }
}
