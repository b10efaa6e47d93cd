//! How an election takes in each event, according to its phase.

use std::time::Duration;

use super::{
    BackOff, Election,
    phase::{Lapse, Phase, Release, ReleaseStep},
};
use crate::{
    election::{
        event::{
            Action, Content, ElectionSettings, Event, GuardRequest, Moment, Observation,
            ObservedUnit, ReadId, Step, WriteResult,
        },
        lock_view::News,
        record::FORMAT,
    },
    facts::{Bar, LapseCause, Occasion, ReleaseCause, alarm::Problem},
    types::{FencingToken, Instance, Time, WriteId},
};

/// 2026, in seconds since 1970. A clock that shows less is wrong, and a host that has lost its clock has to believe the other
/// hosts.
const EARLIEST_CLOCK: u64 = 1_767_225_600;

const TEN_YEARS: u64 = 315_576_000;

/// How far the next fencing token may be above the highest one that was seen here, whatever the clock says.
const TOKEN_STEP: u64 = 1 << 16;

/// The latest point in time, in seconds since 1970, that is believed of the store by a clock that shows `wall`.
pub(super) fn latest_believed(wall: Duration) -> u64 {
    wall.as_secs().max(EARLIEST_CLOCK).saturating_add(TEN_YEARS)
}

impl Election {
    pub(super) fn happened(&mut self, at: &Moment, event: Event) {
        match event {
            Event::Timeout => {}
            Event::StoreUp => {
                self.connected = true;
                self.reads.anew(at.now);
            }
            Event::StoreDown => self.store_down(),
            Event::Forged => self.lose(at.now, LapseCause::Forged),
            Event::Hint => self.hint(at.now),
            Event::Read { id, answer } => {
                let answer = answer.map(|shown| self.believed(at, shown));
                self.read(at.now, id, answer);
            }
            Event::Replaced { id, answer } => {
                self.lock
                    .verify(id, answer.as_ref(), at.now.plus(self.pace()));
                self.remember_longest_hold(at.now);
            }
            Event::Written { write, result } => self.written(at.now, write, result),
            Event::GuardUp => self.guard_is_up(),
            Event::GuardDown => self.guard_is_down(at.now),
            Event::GuardDone(request) => self.guard_done(at.now, request),
            Event::GuardRefused(request, reason) => self.guard_refused(at.now, request, reason),
            Event::Unit(unit) => self.observe_unit(at.now, unit),
            Event::SystemdSilent { nothing_left } => self.systemd_is_silent(at.now, nothing_left),
            Event::StandbyCheck(result) => self.standby_check = Some(result),
            Event::ActiveCheck(result) => self.active_check(at.now, result),
            Event::Answered {
                instance,
                step,
                result,
            } => self.answered(at.now, instance, step, result),
            Event::Stopped => self.stopped(),
            Event::Contend(Ok(())) => (self.barred, self.unit.strayed) = (None, false),
            Event::Contend(Err(bar)) => {
                self.unit.strayed |= matches!(bar, Bar::Outside { .. });
                self.barred = Some(bar.clone());
                self.release(at.now, ReleaseCause::Barred(bar));
            }
            Event::StepDown(because) => {
                let cause = ReleaseCause::SteppedDown(because);
                if self.may_be_running() {
                    self.release(at.now, cause);
                } else {
                    self.end_claim(at.now, Occasion::Planned, &cause.to_string());
                }
            }
            Event::Order(order) => self.order_holder(at.now, order),
            Event::Refuse(refused) => self.refuse(at.now, refused),
            Event::Stop(word) => self.stop_everywhere(at.now, word),
            Event::StartAgain => self.start_again(at.now),
            Event::Pause(word) => self.pause(at.now, word),
            Event::Retire(because) => {
                self.retiring = Some(because);
                self.release(at.now, ReleaseCause::Retired(because));
            }
            Event::Reconfigure(settings) => self.reconfigure(settings),
            Event::TryAgain => self.back_off = BackOff::default(),
        }
    }

    fn store_down(&mut self) {
        self.connected = false;
        // Nobody knows what became of an attempt, and the record is read before the next one.
        self.rewrite.attempt = None;
        if let Some(tenure) = &mut self.tenure
            && tenure.attempts.awaited.is_some()
        {
            tenure.attempts.doubt(false);
        }
        if let Phase::Idle = self.phase {
            self.enter(Phase::Idle, "the store is out of reach");
        }
    }

    pub(super) fn hint(&mut self, now: Time) {
        let heeds = if let Some(tenure) = self.tenure.as_ref().filter(|_| self.phase.is_open()) {
            // The writes of this host itself bring hints, too, at about the time of their answers.
            let pause = self.settings.timings.renew_interval / 8;
            let sent = tenure
                .grant
                .won_sent
                .filter(|_| tenure.attempts.awaited.is_none());
            sent.is_some_and(|sent| now.since_at_least(sent) >= pause)
        } else {
            matches!(self.phase, Phase::Idle)
        };
        if heeds {
            self.reads.again = true;
            self.reads.due = now;
        }
    }

    pub(super) fn read(&mut self, now: Time, id: ReadId, answer: Option<Observation>) {
        if self.reads.pending != Some(id) {
            return;
        }
        self.reads.pending = None;
        let Some(observation) = answer else {
            // The time that a read without an answer took counts as part of the wait before the next one.
            self.reads.due = now.latest(self.reads.sent.plus(self.pace()));
            return;
        };
        let is_first = self.lock.seen().is_none();
        let news = self.observe(now, observation.clone());
        // A regression (K6) is shown by two older answers R apart, and so the time counts from the first of them. For other
        // answers it counts from the sending of the read, however long an answer takes.
        let from = if news == News::Stale {
            now
        } else {
            self.reads.sent
        };
        let after = self.settings.timings.read_after(self.reads.hinted);
        self.reads.due = if self.reads.again {
            now
        } else {
            from.plus(after)
        };
        self.resolve(now, &observation);
        if let Phase::Idle = self.phase {
            // Age (K1): what a gap costs is what this host waits for.
            let gap = if !is_first && self.lock.is_found() {
                "; what it held meanwhile is not known here"
            } else {
                ""
            };
            self.enter(Phase::Idle, &format!("the store answered{gap}"));
        }
    }

    /// What the store shows. A record is not believed when its fencing token is one that no putexd would have, above which none
    /// could grow.
    ///
    /// The limit moves on with the clock. So of tenures that follow each other at the limit, or of hosts whose clocks differ, one
    /// may be over it. For this reason a host that has seen a token also believes one that is at most [`TOKEN_STEP`] higher. A few
    /// such steps do no harm, and as many as would do harm take centuries.
    fn believed(&self, at: &Moment, mut shown: Observation) -> Observation {
        if let Content::Record(record) = shown.content {
            shown.content = Content::Record(record.believed(self.highest_believed(at.wall)));
        }
        shown
    }

    fn highest_believed(&self, wall: Duration) -> FencingToken {
        FencingToken(latest_believed(wall).max(self.memory.token.0.saturating_add(TOKEN_STEP)))
    }

    /// Tokens seen (K10): takes in the token of the latest record, and the one that it says the next has to be above. One that is out
    /// of reach is carried on by whoever has the record, and is heeded by nobody here.
    fn see_tokens(&mut self, now: Time) {
        let Some(details) = self.lock.details() else {
            return;
        };
        let (token, instance, above) = (details.token, details.instance, details.note.above);
        self.memory.see_token(token, Some(instance));
        if let Some(above) = above.filter(|above| *above <= self.highest_believed(self.wall(now))) {
            self.memory.see_token(above, None);
        }
    }

    /// Tells the operator of a record of a later format, and of one that is not believed: when it first comes, and again after T at the
    /// earliest, because somebody may write such records a thousand times a second.
    fn tell_of_record(&mut self, now: Time) {
        let Some(record) = self.lock.record() else {
            return;
        };
        let lease = self.settings.timings.lease();
        let is_recent = |at: Time| now.since_at_least(at) < lease;
        if let Some(format) = record.newer {
            let known = FORMAT;
            self.alarm(Problem::NewerRecord { format, known });
        } else if let Some(oddity) = &record.oddity
            && !self.oddity_at.is_some_and(is_recent)
        {
            let holder = record.holder.to_string();
            let what = oddity.what.clone();
            self.alarm(Problem::OddRecord { holder, what });
            self.oddity_at = Some(now);
        }
    }

    fn observe(&mut self, now: Time, observation: Observation) -> News {
        let timings = self.settings.timings;
        let shared = self.duplicate(now);
        let news = self.lock.observe(
            observation,
            self.reads.sent,
            now,
            &timings,
            self.memory.position.as_ref(),
        );
        if let News::WentBack(revisions) = news {
            self.alarm(Problem::Regression { revisions });
        }
        if let (None, Some(machine)) = (shared, self.duplicate(now)) {
            let machine = Some(machine);
            self.alarm(Problem::SharedName { machine });
        }
        self.see_tokens(now);
        if !matches!(news, News::Same | News::Stale) {
            self.tell_of_record(now);
        }
        self.remember_suspects();
        self.remember_stop(now);
        self.remember_longest_hold(now);
        news
    }

    pub(super) fn written(&mut self, now: Time, write: WriteId, result: WriteResult) {
        if self.word_written(now, write, result) {
            return;
        }
        if let WriteResult::Won(revision) = result {
            self.won(now, write, revision);
            return;
        }
        let conflicted = result == WriteResult::Conflict;
        let Some(tenure) = self
            .tenure
            .as_mut()
            .filter(|tenure| tenure.attempts.awaited == Some(write))
        else {
            return;
        };
        tenure.attempts.doubt(conflicted);
        if conflicted {
            self.lock.existed(now);
        }
        self.reads.anew(now);
    }

    pub(super) fn guard_is_up(&mut self) {
        self.guard_up = true;
        if let Phase::Lapsing(lapse) = &self.phase {
            let instance = lapse.instance;
            let request = if lapse.dead && lapse.closed {
                GuardRequest::Disarm
            } else {
                GuardRequest::Close
            };
            self.actions.push(Action::Guard(request(instance)));
        }
        if let Phase::Releasing(release) = &mut self.phase
            && release.step != ReleaseStep::Blanking
        {
            // A proof that was taken while the guard was away was taken behind a gate that may have been open.
            release.step = ReleaseStep::Closing;
            self.close();
        }
        self.extend();
    }

    fn guard_is_down(&mut self, now: Time) {
        self.guard_up = false;
        if let Some(tenure) = &mut self.tenure {
            tenure.grant.shortening = false;
        }
        if let Phase::Releasing(_) = self.phase {
            self.stop_for_release();
        } else {
            self.release(now, ReleaseCause::GuardGone);
        }
    }

    fn guard_done(&mut self, now: Time, request: GuardRequest) {
        match request {
            GuardRequest::Close(instance) => self.closed(now, instance),
            GuardRequest::Disarm(instance) => self.disarmed(now, instance),
            GuardRequest::Arm(terms) => {
                let Some(tenure) = self.own(terms.instance) else {
                    return;
                };
                let is_first = !std::mem::replace(&mut tenure.grant.armed, true);
                let (instance, token) = (tenure.instance, tenure.token);
                self.extend();
                if is_first && matches!(self.phase, Phase::Starting) {
                    self.actions.push(Action::Start { instance, token });
                }
            }
            GuardRequest::Extend(terms) => {
                if let Some(tenure) = self.own(terms.instance) {
                    // Answers may come late, but the guard has never taken back what it granted.
                    let granted = tenure.grant.acknowledged;
                    tenure.grant.acknowledged = granted.map(|at| at.latest(terms.deadline));
                }
            }
            GuardRequest::Shorten(terms) => {
                let Some(tenure) = self.own(terms.instance) else {
                    return;
                };
                let (grant, deadline) = (&mut tenure.grant, Some(terms.deadline));
                if grant.shortening {
                    // The guard was asked for no other deadline since. The next write tells the shorter hold.
                    (grant.acknowledged, grant.asked) = (deadline, deadline);
                    grant.shortening = false;
                    tenure.attempts.hasten(now);
                }
                self.extend();
            }
        }
    }

    fn guard_refused(&mut self, now: Time, request: GuardRequest, reason: String) {
        match request {
            // A guard that does not know a lease need not close or forget it. A guard that is gone has refused nothing.
            GuardRequest::Close(_) | GuardRequest::Disarm(_) => {
                if self.guard_up {
                    self.guard_done(now, request);
                }
            }
            GuardRequest::Arm(terms) => {
                if self.own(terms.instance).is_some() {
                    self.release(now, ReleaseCause::GuardRefusedLease(reason));
                }
            }
            GuardRequest::Extend(terms) => {
                if self.guard_up && self.may_be_running() && self.own(terms.instance).is_some() {
                    self.lapse(now, LapseCause::GuardRefusedExtension(reason));
                }
            }
            // The later deadline stays in force, and is published. After the next won write the guard is asked again.
            GuardRequest::Shorten(terms) => {
                if let Some(tenure) = self.own(terms.instance) {
                    tenure.grant.shortening = false;
                }
            }
        }
    }

    /// Lapse (H4): nobody runs the unit, and nobody can start it here. A host that is to go down for a stop that is not proven does so
    /// in a release by the rule for that (release, H5), which gives systemd more time.
    fn systemd_is_silent(&mut self, now: Time, nothing_left: bool) {
        if !nothing_left {
            self.unit.silent_since = None;
            return;
        }
        let since = *self.unit.silent_since.get_or_insert(now);
        let goes_down =
            self.settings.on_stop_failure.is_self_fence() && self.release_under_way().is_some();
        let is_over = now.since_at_least(since) >= self.settings.timings.lease();
        if is_over && !goes_down && self.may_be_running() {
            self.lapse(now, LapseCause::SystemdSilent);
        }
    }

    fn observe_unit(&mut self, now: Time, unit: ObservedUnit) {
        self.unit.silent_since = None;
        let alive = !matches!(unit, ObservedUnit::Dead { .. });
        self.unit.is_alive = Some(alive);
        if alive {
            self.give_up("the unit is not known to be dead");
            if let Phase::Lapsing(lapse) = &self.phase
                && lapse.dead
            {
                self.stop_again(now);
            }
        }
        let Phase::Active(since) = &mut self.phase else {
            return;
        };
        match unit {
            ObservedUnit::Dead { result, failed } => {
                // A unit that ends in good order and at once would be started again and again.
                let too_soon = now.since_at_least(*since) < self.settings.timings.lease();
                let in_order = !failed && !too_soon;
                self.release(now, ReleaseCause::UnitEnded { result, in_order });
            }
            ObservedUnit::Failing(why) => self.release(now, ReleaseCause::UnitFails(why)),
            // Its health counts from the restart on.
            ObservedUnit::Trying => *since = now,
            ObservedUnit::Alive => {}
        }
    }

    fn active_check(&mut self, now: Time, result: Result<(), String>) {
        if let Phase::Active(_) = self.phase {
            match result {
                Ok(()) => self.last_pass = Some(now),
                Err(why) => self.release(now, ReleaseCause::CheckFailed(why)),
            }
        }
    }

    /// What came of a step between the claim and the unit that runs. An answer that the phase does not wait for says nothing: the tenure
    /// may have gone on, or a stop may have begun.
    fn answered(&mut self, now: Time, instance: Instance, step: Step, result: Result<(), String>) {
        let Some(tenure) = self
            .tenure
            .as_mut()
            .filter(|tenure| tenure.instance == instance)
        else {
            return;
        };
        match (&self.phase, step, result) {
            (Phase::Confirming, Step::Vet, Ok(())) => tenure.claim.vetted = true,
            (Phase::Confirming, Step::Vet, Err(why)) => {
                self.end_claim(now, Occasion::Failure, &why);
            }
            (Phase::Fencing, Step::Fence, Ok(())) => {
                self.become_starting("the previous holders are fenced");
            }
            (Phase::Fencing, Step::Fence, Err(why)) => {
                self.end_claim(now, Occasion::Failure, &format!("fencing failed: {why}"));
                self.alarm(Problem::FenceFailed { error: why });
            }
            (Phase::Starting, Step::Start, Ok(())) if tenure.grant.armed => {
                tenure.settle(&self.settings.timings);
                (self.unit.is_alive, self.last_pass) = (Some(true), Some(now));
                self.enter(Phase::Active(now), "the unit runs");
            }
            (Phase::Starting, Step::Start, Err(why)) => {
                let cause = ReleaseCause::StartFailed(why);
                self.release(now, cause);
            }
            _ => {}
        }
    }

    fn reconfigure(&mut self, settings: ElectionSettings) {
        if settings.checks_standby != self.settings.checks_standby {
            self.standby_check = None;
        }
        if settings.check_validity.is_some() != self.settings.check_validity.is_some() {
            self.last_pass = Some(self.last_now);
        }
        // What was only told of has consequences now.
        if settings.on_stop_failure.is_self_fence()
            && !self.settings.on_stop_failure.is_self_fence()
            && let Phase::Releasing(Release { shouted, .. }) | Phase::Lapsing(Lapse { shouted, .. }) =
                &mut self.phase
        {
            *shouted = false;
        }
        self.settings = settings;
        let (timings, now) = (self.settings.timings, self.last_now);
        if let Some(tenure) = &mut self.tenure {
            tenure.heed(&timings, now);
        }
    }
}
