//! What a contender does: when it writes the lock (taking, K2; verified release, K4; unknown holder, K5), when it may start
//! (confirming, K3), and when it waits (back-off, K9).

use std::time::Duration;

use super::phase::{Phase, StartStep};
use super::{BackOff, Election};
use crate::election::event::{Action, Alarm, Content, GuardRequest, Moment, WriteRequest};
use crate::election::record::{Details, HOLDERS_LIMIT, OperatorNote, Record, Standing, UNFENCED_LIMIT};
use crate::election::stop_cause::Occasion;
use crate::election::tenure::{Guarded, Tenure};
use crate::types::{FencingToken, Instance, LeaseTerms, NodeId, Time, WriteId};

impl Election {
    pub(super) fn claim(&mut self, at: &Moment) {
        let timings = self.settings.timings;
        let Some(claim) = self.lock.claim(&self.settings.key, &self.settings.node, &timings) else { return };
        let Some(seen) = self.lock.seen().cloned() else { return };
        if self.hindrance(at.now).is_some() || !at.now.has_waited_until(claim.take_at) {
            return;
        }
        if !self.lock.is_up_to_date(at.now, &timings) {
            return;
        }
        let details = seen.content.record().and_then(|record| record.details.as_ref());
        // The stop is over, if there was one, the pause was the former holder's, and the node that was named next has had its chance.
        let stopped = self.word_of_claim();
        let said = details.map(|details| details.note.clone()).unwrap_or_default();
        let note = OperatorNote { next: None, stopped, started: self.memory.started, paused: None, ..said };
        let entitled_at = match details {
            Some(_) => claim.entitled_at,
            // Nobody could say of what is there now that the claim needs a higher token (tokens seen, K10).
            None => claim.entitled_at.latest(at.now.plus(timings.watch_gap())),
        };
        let is_suspect = self.suspects(&seen.content).contains(&self.settings.node);
        let unfenced = self.hosts_to_fence(&seen.content);
        let previous_token = details.map_or(0, |details| details.token.0);
        // Saturating: a token that nobody can exceed was put there by hand, and must not make the new one fall to zero.
        let highest = previous_token.max(self.memory.token.0);
        // The clock counts at the entitlement and not now: the holder that is waited for may have started meanwhile, unheard of.
        let by_clock = seconds_up(at.wall + at.now.until_waited(entitled_at));
        let token = highest.saturating_add(1).max(by_clock);
        let tenure = Tenure {
            instance: Instance(at.random),
            token: FencingToken(token),
            base: seen.revision,
            base_instance: details.map(|details| details.instance),
            base_write: None,
            won_sent: None,
            won_deadline: at.now.plus(timings.deadline_after()),
            granted: None,
            asked: None,
            shortening: false,
            pause_told: None,
            pause_ends: None,
            passing: None,
            lasting: Duration::ZERO,
            guarded: Guarded::No,
            renewals: 0,
            attempts: Vec::new(),
            awaited: None,
            unresolved: false,
            conflicted: false,
            adopted: false,
            vetted: false,
            next_attempt: at.now,
            hastened: None,
            in_step: false,
            entitled_at,
            inherited_hold: claim.hold,
            inherited_until: claim.until,
            why: claim.why,
            inherited_lease: details.map_or(Duration::ZERO, Details::lasting_lease),
            unfenced,
            is_suspect,
            units: self.settings.units.clone(),
            holders: self.holders_with_this(details),
            stop_budget: timings.stop_budget,
            kill_reserve: timings.kill_reserve,
            prove_by: None,
            note,
            incarnation: seen.incarnation,
        };
        // A read that looked at the store before this write must not be taken for an answer about it.
        self.reads.pending = None;
        self.become_claiming(tenure);
        self.renew(at);
    }

    /// Confirming (K3): the claim was answered, or found not to be made, only after a gap, in which the store may have gone back
    /// to what was claimed. Everything that may have happened meanwhile is waited out.
    pub(super) fn doubt_the_claim(&mut self) {
        let Phase::Claiming(tenure) = &mut self.phase else { return };
        if self.lock.is_found()
            && let Some(claim) = self.lock.claim(&self.settings.key, &self.settings.node, &self.settings.timings)
        {
            let later = tenure.entitled_at.until_waited(claim.entitled_at);
            tenure.token = FencingToken(tenure.token.0.saturating_add(seconds_up(later)));
            tenure.entitled_at = tenure.entitled_at.latest(claim.entitled_at);
            tenure.inherited_hold = tenure.inherited_hold.max(claim.hold);
            if let Some(until) = claim.until {
                tenure.inherited_until = Some(tenure.inherited_until.map_or(until, |known| known.latest(until)));
                tenure.passing = None;
            }
            tenure.why = claim.why;
        }
    }

    /// Tokens seen (K10): the record of this claim says that another tenure has had its token, or a higher one. The claim takes one
    /// above all that were seen here. The last write before the start has to have that one, too: another host that sees it has to
    /// start with a higher one, whatever becomes of this one.
    pub(super) fn raise_token(&mut self) {
        let highest = self.memory.token;
        let (Phase::Claiming(tenure) | Phase::Confirming(tenure)) = &mut self.phase else { return };
        if tenure.note.above.is_some_and(|above| tenure.token <= above && above <= highest) {
            tenure.token = FencingToken(highest.0.saturating_add(1));
            tenure.renewals = 0;
        }
    }

    /// The hosts to fence: those whose units may live by what the store shows, and not this host.
    ///
    /// Whoever writes to the store says who is fenced, and fencing is done as root. So only hosts are fenced that the
    /// configuration names, or, if it names none, that have held the lock by a record that is believed.
    fn hosts_to_fence(&mut self, content: &Content) -> Vec<NodeId> {
        let Some(record) = content.record() else { return Vec::new() };
        let mut hosts = self.suspects(content);
        hosts.retain(|host| *host != self.settings.node);
        if self.settings.fences {
            let (fenced, left): (Vec<NodeId>, _) = hosts.into_iter().partition(|host| self.may_be_fenced(host, record));
            let mut left: Vec<String> = left.iter().map(NodeId::to_string).collect();
            if record.is_held() && record.holder.node().is_none() {
                left.push(record.holder.to_string());
            }
            if !left.is_empty() {
                self.actions.push(Action::Alarm(Alarm::NotToBeFenced { hosts: left }));
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
    fn suspects(&self, content: &Content) -> Vec<NodeId> {
        let Some(record) = content.record().filter(|record| record.is_held()) else { return Vec::new() };
        let standing = record.details.as_ref().map(|details| details.standing);
        let before = match &record.details {
            Some(details) if matches!(details.standing, Standing::Confirming | Standing::GaveUp) => {
                &details.unfenced[..]
            }
            Some(_) => &[],
            None => &self.overwritten[..],
        };
        let holder = record.holder.node().filter(|_| standing != Some(Standing::GaveUp));
        let mut hosts: Vec<NodeId> = Vec::new();
        for host in before.iter().cloned().chain(holder) {
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        hosts
    }

    fn may_be_fenced(&self, host: &NodeId, record: &Record) -> bool {
        let named = &self.settings.fence_hosts;
        let has_held = || match &record.details {
            Some(details) => record.holder == *host || details.holders.contains(host),
            None => self.overwritten.contains(host),
        };
        if named.is_empty() { has_held() } else { named.contains(host) }
    }

    /// Remembers whom a record that is believed would have had fenced: one that is not believed may be written over it later.
    pub(super) fn remember_suspects(&mut self) {
        let Some(seen) = self.lock.seen() else { return };
        if !self.settings.fences || seen.content.record().is_none_or(|record| record.details.is_none()) {
            return;
        }
        let (mut hosts, record) = (self.suspects(&seen.content), seen.content.record());
        hosts.retain(|host| record.is_some_and(|record| self.may_be_fenced(host, record)));
        self.overwritten = hosts;
    }

    /// Taking (K2): the nodes that have held the lock as far as its record says, and this node as the latest.
    fn holders_with_this(&self, details: Option<&Details>) -> Vec<NodeId> {
        let node = &self.settings.node;
        let before = details.into_iter().flat_map(|details| &details.holders).filter(|holder| *holder != node);
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
        let Phase::Confirming(tenure) = &mut self.phase else { return };
        if !at.now.has_waited_until(tenure.entitled_at) {
            return;
        }
        let proof = tenure.won_sent.filter(|_| tenure.renewals > 0);
        if proof.is_some_and(|sent| sent.has_waited_until(tenure.entitled_at)) {
            if !tenure.vetted {
                return;
            }
            if self.settings.fences && !tenure.unfenced.is_empty() {
                let (instance, hosts) = (tenure.instance, tenure.unfenced.clone());
                self.become_fencing(instance, hosts);
            } else {
                self.become_starting("entitled, and the lock is still ours");
            }
        } else {
            // A write that is under way or in doubt goes first all the same: `may_send` sees to that.
            tenure.next_attempt = at.now;
        }
    }

    /// Arms the guard with the last won write, which was sent after the entitlement.
    pub(super) fn arm(&mut self) {
        let Phase::Starting(tenure, _) = &mut self.phase else { return };
        let Some(write) = tenure.base_write else { return };
        tenure.guarded = Guarded::Asked;
        (tenure.granted, tenure.asked) = (Some(tenure.won_deadline), Some(tenure.won_deadline));
        self.actions.push(Action::Guard(GuardRequest::Arm(LeaseTerms {
            instance: tenure.instance,
            write,
            revision: tenure.base,
            token: tenure.token,
            deadline: tenure.won_deadline,
            stop_budget: tenure.stop_budget,
            kill_reserve: tenure.kill_reserve,
        })));
    }

    pub(super) fn go_on_starting(&mut self, from: StartStep) {
        let unfences = self.settings.unfences;
        let Phase::Starting(tenure, step) = &mut self.phase else { return };
        if *step != from {
            return;
        }
        let (instance, token) = (tenure.instance, tenure.token);
        if from == StartStep::Arming && unfences {
            *step = StartStep::Unfencing;
            self.actions.push(Action::Unfence { instance });
        } else {
            *step = StartStep::Starting;
            self.actions.push(Action::Start { instance, token });
        }
    }

    /// Who may write `proven` (H6): a host that gives up before the start stops renewing, and at most tells that it gave up.
    pub(super) fn give_up(&mut self, reason: &str) {
        if matches!(self.phase, Phase::Claiming(_) | Phase::Confirming(_) | Phase::Fencing(_)) {
            self.keep_word(self.last_now);
            self.gave_up = self.tenure_without_a_trace();
            self.become_idle(reason);
        }
    }

    /// Who is fenced: the tenure that is given up now, if it can be told that nothing runs here because of it or an earlier one.
    ///
    /// The guard has not been asked for a lease in these phases, and nothing is started before that. The lock is known to have this
    /// tenure's record. Nothing of the unit is alive here, under whichever tenure it was started.
    fn tenure_without_a_trace(&self) -> Option<Instance> {
        let (Phase::Confirming(tenure) | Phase::Fencing(tenure)) = &self.phase else { return None };
        let is_known = self.connected && tenure.awaited.is_none() && !tenure.unresolved;
        let is_dead = self.unit_alive == Some(false) && !self.strayed;
        (self.settings.fences && is_known && is_dead && !tenure.is_suspect).then_some(tenure.instance)
    }

    /// Who is fenced: writes once, and whatever comes of it, that the tenure which was given up in this call has started nothing.
    /// All else is as its record says, so that a successor waits as long, and has as many others to fence.
    pub(super) fn tell_that_it_gave_up(&mut self, at: &Moment) {
        let Some(instance) = self.gave_up.take() else { return };
        let Some(seen) = self.lock.seen() else { return };
        let Content::Record(Record { holder, details: Some(details), .. }) = &seen.content else { return };
        if details.instance != instance {
            return;
        }
        let write = WriteId(!at.random);
        let prev = Some((seen.revision, Some(instance)));
        let details = Details { write, prev, standing: Standing::GaveUp, ..details.clone() };
        let record = Record::new(holder.clone(), Some(details));
        let request = WriteRequest { base: seen.revision, incarnation: seen.incarnation.clone(), write, record };
        self.lock.sent(write);
        self.actions.push(Action::Write(Box::new(request)));
    }

    /// Back-off (K9): each failure in a row makes the wait longer, and what somebody asked for does not. Neither shortens a wait
    /// that is under way.
    pub(super) fn wait_before_next_claim(&mut self, now: Time, occasion: Occasion, reason: &str) {
        let timings = &self.settings.timings;
        let once = timings.renew_interval * 2;
        let BackOff { until: before, last, failures, .. } = self.back_off;
        let (wait, last, failures) = match occasion {
            Occasion::Planned => (once, last, failures),
            Occasion::Failure => {
                let wait = (last * 2).clamp(once, timings.lease() * 10);
                (wait, wait, failures.saturating_add(1))
            }
        };
        if before.is_some_and(|until| !now.plus(wait).has_waited_until(until)) {
            return;
        }
        let told = if occasion == Occasion::Failure { failures } else { 0 };
        self.back_off = BackOff { until: Some(now.plus(wait)), last, failures, told, reason: reason.to_owned() };
    }

    /// Unknown holder (K5): keeps the longest hold on disk, and the passing one. It is written when a hold is seen that is longer than
    /// what is waited for anyway, when a pause is first seen, and when one is forgotten.
    pub(super) fn remember_longest_hold(&mut self, now: Time) {
        let timings = &self.settings.timings;
        let forgotten = self.lock.forget_longest_hold(now, timings);
        let (longest, passing) = (self.lock.longest_hold(), self.lock.passing_hold());
        let has_grown = longest > self.memory.longest_hold && longest > timings.usual_hold();
        let is_another = passing != self.memory.passing;
        (self.memory.longest_hold, self.memory.passing) = (longest, passing);
        if forgotten || has_grown || is_another {
            self.actions.push(Action::Persist(self.memory.clone()));
        }
    }
}

/// Whole seconds, in which fencing tokens count, rounded up.
fn seconds_up(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}
