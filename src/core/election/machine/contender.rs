//! What a contender does: when it writes the lock (taking, K2; verified release, K4; unknown holder, K5), when it may start
//! (confirming, K3), and when it waits (back-off, K9).

use std::time::Duration;

use super::{Election, phase::Phase};
use crate::{
    election::{
        event::{Action, GuardRequest, Moment, WriteRequest},
        observed_lock::Entitlement,
        record::{Details, HOLDERS_LIMIT, OperatorNote, Record, Standing, UNFENCED_LIMIT},
        tenure::{Attempts, Claim, Grant, Tenure},
    },
    facts::{Occasion, alarm::Problem},
    types::{FencingToken, Instance, NodeId, Time, WriteId},
};

impl Election {
    pub(super) fn claim(&mut self, at: &Moment) {
        let timings = self.settings.timings;
        let Some(claim) = self.entitlement() else {
            return;
        };
        let Some(seen) = self.lock.seen().cloned() else {
            return;
        };
        if self.bar(at.now).is_some() || !at.now.has_waited_until(claim.take_at) {
            return;
        }
        if !self.lock.is_up_to_date(at.now, &timings) {
            return;
        }
        let details = seen.content.details();
        // The stop is over, if there was one, the pause was the former holder's, and the node that was named next has had its chance.
        let note = details.map_or_else(OperatorNote::default, |details| OperatorNote {
            next: None,
            stopped: None,
            paused: None,
            order: None,
            refused: None,
            ..details.note.clone()
        });
        let entitled_at = match details {
            Some(_) => claim.entitled_at,
            // Nobody could say of what is there now that the claim needs a higher token (tokens seen, K10).
            None => claim.entitled_at.latest(at.now.plus(timings.watch_gap())),
        };
        let record = seen.content.record();
        let suspects = record
            .map(|record| self.suspects(record))
            .unwrap_or_default();
        let is_suspect = suspects.contains(&self.settings.node);
        let unfenced = record.map(|record| self.hosts_to_fence(record, suspects));
        let previous_token = details.map_or(0, |details| details.token.0);
        // Saturating: a token that nobody can exceed was put there by hand, and must not make the new one fall to zero.
        let highest = previous_token.max(self.memory.token.0);
        // The clock counts at the entitlement and not now: the holder that is waited for may have started meanwhile, unheard of.
        let by_clock = seconds_up(at.wall + at.now.until_waited(entitled_at));
        let token = highest.saturating_add(1).max(by_clock);
        let tenure = Tenure {
            instance: Instance(at.random),
            token: FencingToken(token),
            claim: Claim {
                incarnation: seen.incarnation,
                base: seen.revision,
                base_instance: details.map(|details| details.instance),
                base_write: None,
                inherited: Entitlement {
                    entitled_at,
                    ..claim
                },
                lease: details.map_or(Duration::ZERO, Details::lasting_lease),
                unfenced: unfenced.unwrap_or_default(),
                is_suspect,
                renewals: 0,
                vetted: false,
                adopted: false,
            },
            attempts: Attempts {
                next: at.now,
                ..Attempts::default()
            },
            grant: Grant::until(at.now.plus(timings.deadline_after()), None),
            units: self.settings.units.clone(),
            holders: self.holders_with_this(details),
            stop_budget: timings.stop_budget,
            kill_reserve: timings.kill_reserve,
            note,
            answered: None,
        };
        // A read that looked at the store before this write must not be taken for an answer about it.
        self.reads.pending = None;
        self.tenure = Some(tenure);
        self.enter(Phase::Claiming, "the lock is written");
        self.renew(at);
    }

    /// Confirming (K3): the claim was answered, or found not to be made, only after a gap, in which the store may have gone back
    /// to what was claimed. Everything that may have happened meanwhile is waited out.
    pub(super) fn doubt_the_claim(&mut self) {
        let Some(claim) = self.entitlement().filter(|_| self.lock.is_found()) else {
            return;
        };
        if let (Phase::Claiming, Some(tenure)) = (&self.phase, &mut self.tenure) {
            let inherited = &mut tenure.claim.inherited;
            let later = inherited.entitled_at.until_waited(claim.entitled_at);
            tenure.token = FencingToken(tenure.token.0.saturating_add(seconds_up(later)));
            if claim.until.is_some() {
                tenure.grant.passing = None;
            }
            *inherited = Entitlement {
                entitled_at: inherited.entitled_at.latest(claim.entitled_at),
                hold: inherited.hold.max(claim.hold),
                until: [inherited.until, claim.until]
                    .into_iter()
                    .flatten()
                    .reduce(Time::latest),
                ..claim
            };
        }
    }

    /// Tokens seen (K10): the record of this claim says that another tenure has had its token, or a higher one. The claim takes one
    /// above all that were seen here. The last write before the start has to have that one, too: another host that sees it has to
    /// start with a higher one, whatever becomes of this one.
    pub(super) fn raise_token(&mut self) {
        let highest = self.memory.token;
        let (Phase::Claiming | Phase::Confirming, Some(tenure)) = (&self.phase, &mut self.tenure)
        else {
            return;
        };
        let is_used = |above| tenure.token <= above && above <= highest;
        if tenure.note.above.is_some_and(is_used) {
            tenure.token = FencingToken(highest.0.saturating_add(1));
            tenure.claim.renewals = 0;
        }
    }

    /// The hosts to fence: those whose units may live by what the store shows, and not this host.
    ///
    /// Whoever writes to the store says who is fenced, and fencing is done as root. So only hosts are fenced that the
    /// configuration names, or, if it names none, that have held the lock by a record that is believed.
    fn hosts_to_fence(&mut self, record: &Record, suspects: Vec<NodeId>) -> Vec<NodeId> {
        let mut hosts = suspects;
        hosts.retain(|host| *host != self.settings.node);
        if self.settings.fences {
            let (fenced, left): (Vec<NodeId>, _) = hosts
                .into_iter()
                .partition(|host| self.may_be_fenced(host, record));
            let mut left: Vec<String> = left.iter().map(NodeId::to_string).collect();
            if record.is_held() && record.holder.node().is_none() {
                left.push(record.holder.to_string());
            }
            if !left.is_empty() {
                self.alarm(Problem::NotToBeFenced { hosts: left });
            }
            hosts = fenced;
        }
        hosts.split_off(hosts.len().saturating_sub(UNFENCED_LIMIT))
    }

    /// The hosts whose units may live, by what the store shows, and this host may be one of them: the holder, but not one that gave
    /// up before it started anything, and those that this holder had not fenced yet itself.
    ///
    /// A record that is not believed may have been written over that of a holder which nothing has shown dead. Then all the hosts
    /// count that the last record which was believed would have had fenced.
    fn suspects(&self, record: &Record) -> Vec<NodeId> {
        if !record.is_held() {
            return Vec::new();
        }
        let standing = record.details.as_ref().map(|details| details.standing);
        let mut hosts = match &record.details {
            Some(details) => details.unfenced.clone(),
            None => self.overwritten.clone(),
        };
        if matches!(standing, Some(Standing::Active | Standing::Proven)) {
            hosts.clear();
        }
        let holder = record.holder.node();
        hosts.extend(
            holder.filter(|node| standing != Some(Standing::GaveUp) && !hosts.contains(node)),
        );
        hosts
    }

    fn may_be_fenced(&self, host: &NodeId, record: &Record) -> bool {
        let named = &self.settings.fence_hosts;
        let has_held = || match &record.details {
            Some(details) => record.holder == *host || details.holders.contains(host),
            None => self.overwritten.contains(host),
        };
        if named.is_empty() {
            has_held()
        } else {
            named.contains(host)
        }
    }

    /// Remembers whom a record that is believed would have had fenced: one that is not believed may be written over it later.
    pub(super) fn remember_suspects(&mut self) {
        let record = self.lock.record().filter(|record| record.details.is_some());
        let Some(record) = record.filter(|_| self.settings.fences) else {
            return;
        };
        let mut hosts = self.suspects(record);
        hosts.retain(|host| self.may_be_fenced(host, record));
        self.overwritten = hosts;
    }

    /// Taking (K2): the nodes that have held the lock as far as its record says, and this node as the latest.
    fn holders_with_this(&self, details: Option<&Details>) -> Vec<NodeId> {
        let node = &self.settings.node;
        let before = details
            .into_iter()
            .flat_map(|details| &details.holders)
            .filter(|holder| *holder != node);
        let mut holders: Vec<NodeId> = before.chain([node]).cloned().collect();
        holders.split_off(holders.len().saturating_sub(HOLDERS_LIMIT))
    }

    /// Confirming (K3): the last write before a start is always sent after the entitlement, and the store has said after the
    /// first write that the unit is run under this lock.
    pub(super) fn confirm(&mut self, at: &Moment) {
        if let Some(Err(reason)) = self.standby_check.clone() {
            self.give_up(&format!("the standby check fails: {reason}"));
            return;
        }
        let (Phase::Confirming, Some(tenure)) = (&self.phase, &mut self.tenure) else {
            return;
        };
        if !at.now.has_waited_until(tenure.claim.inherited.entitled_at) {
            return;
        }
        let proof = tenure.grant.won_sent.filter(|_| tenure.claim.renewals > 0);
        if proof.is_some_and(|sent| sent.has_waited_until(tenure.claim.inherited.entitled_at)) {
            if !tenure.claim.vetted {
                return;
            }
            if self.settings.fences && !tenure.claim.unfenced.is_empty() {
                let (instance, hosts) = (tenure.instance, tenure.claim.unfenced.clone());
                let names: Vec<&str> = hosts.iter().map(NodeId::as_str).collect();
                let reason = format!("entitled; fences {}", names.join(", "));
                self.enter(Phase::Fencing, &reason);
                self.actions.push(Action::Fence { instance, hosts });
            } else {
                self.become_starting("entitled, and the lock is still ours");
            }
        } else {
            // A write that is under way or in doubt goes first all the same: `may_send` sees to that.
            tenure.attempts.next = at.now;
        }
    }

    /// Arms the guard with the last won write, which was sent after the entitlement.
    pub(super) fn arm(&mut self) {
        if let Some(tenure) = &mut self.tenure
            && let Some(terms) = tenure.terms()
        {
            let deadline = Some(terms.deadline);
            (tenure.grant.acknowledged, tenure.grant.asked) = (deadline, deadline);
            self.ask_guard(GuardRequest::Arm(terms));
        }
    }

    /// Who may write `proven` (H6): a host that gives up before the start stops renewing, and at most tells that it gave up.
    pub(super) fn give_up(&mut self, reason: &str) {
        if matches!(
            self.phase,
            Phase::Claiming | Phase::Confirming | Phase::Fencing
        ) {
            self.gave_up = self.tenure_without_a_trace();
            self.become_idle(reason);
        }
    }

    /// Gives up before the start, and waits before the next claim.
    pub(super) fn end_claim(&mut self, now: Time, occasion: Occasion, reason: &str) {
        self.wait_before_next_claim(now, occasion, reason);
        self.give_up(reason);
    }

    /// Who is fenced: the tenure that is given up now, if it can be told that nothing runs here because of it or an earlier one.
    ///
    /// The guard has not been asked for a lease in these phases, and nothing is started before that. The lock is known to have this
    /// tenure's record. Nothing of the unit is alive here, under whichever tenure it was started.
    fn tenure_without_a_trace(&self) -> Option<Instance> {
        let (Phase::Confirming | Phase::Fencing, Some(tenure)) = (&self.phase, &self.tenure) else {
            return None;
        };
        let is_known =
            self.connected && tenure.attempts.awaited.is_none() && !tenure.attempts.unresolved;
        let is_dead = self.unit.is_alive == Some(false) && !self.unit.strayed;
        (self.settings.fences && is_known && is_dead && !tenure.claim.is_suspect)
            .then_some(tenure.instance)
    }

    /// Who is fenced: writes once, and whatever comes of it, that the tenure which was given up in this call has started nothing.
    /// All else is as its record says, so that a successor waits as long, and has as many others to fence.
    pub(super) fn tell_that_it_gave_up(&mut self, at: &Moment) {
        let Some(instance) = self.gave_up.take() else {
            return;
        };
        let write = WriteId(!at.random);
        let gave_up = |details: &mut Details, base| {
            (details.write, details.prev) = (write, Some((base, Some(instance))));
            details.standing = Standing::GaveUp;
        };
        let is_own = |request: &WriteRequest| request.record.instance() == Some(instance);
        if let Some(request) = self.reworded(write, gave_up).filter(is_own) {
            self.actions.push(Action::Write(Box::new(request)));
        }
    }

    /// Back-off (K9): each failure in a row makes the wait longer, and what somebody asked for does not. Neither shortens a wait
    /// that is under way.
    pub(super) fn wait_before_next_claim(&mut self, now: Time, occasion: Occasion, reason: &str) {
        let timings = &self.settings.timings;
        let once = timings.renew_interval * 2;
        let back_off = &mut self.back_off;
        let wait = match occasion {
            Occasion::Planned => once,
            Occasion::Failure => (back_off.last * 2).clamp(once, timings.lease() * 10),
        };
        let until = now.plus(wait);
        if back_off
            .until
            .is_some_and(|before| !until.has_waited_until(before))
        {
            return;
        }
        back_off.shown = 0;
        if occasion == Occasion::Failure {
            back_off.failures = back_off.failures.saturating_add(1);
            (back_off.last, back_off.shown) = (wait, back_off.failures);
        }
        (back_off.until, back_off.reason) = (Some(until), reason.to_owned());
    }

    /// Unknown holder (K5): keeps the longest hold on disk, and the passing one. It is written when a hold is seen that is longer than
    /// what is waited for anyway, when a pause is first seen, and when one is forgotten.
    pub(super) fn remember_longest_hold(&mut self, now: Time) {
        let timings = &self.settings.timings;
        let usual = timings.usual_hold();
        let forgotten = self.lock.longest.expire(usual, now, timings);
        let (longest, passing) = (self.lock.longest.hold, self.lock.longest.passing);
        let has_grown = longest > self.memory.longest_hold && longest > usual;
        let is_another = passing != self.memory.passing;
        (self.memory.longest_hold, self.memory.passing) = (longest, passing);
        self.keeps |= forgotten || has_grown || is_another;
    }
}

/// Whole seconds, in which fencing tokens count, rounded up.
fn seconds_up(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}
