//! How an election takes in each event, according to its phase.

use std::time::Duration;

use super::phase::{LapseStep, Phase, ReleaseStep, StartStep};
use super::{BackOff, Election, PendingDisarm};
use crate::election::event::{
    Action, Alarm, Content, Event, GuardDone, GuardRequest, Moment, Observation, ObservedUnit, ReadId, Settings,
    WriteResult,
};
use crate::election::lock_view::News;
use crate::election::record::Record;
use crate::election::stop_cause::{LapseCause, Occasion, ReleaseCause};
use crate::election::tenure::Guarded;
use crate::election::waiting::ahead;
use crate::types::{FencingToken, Instance, Time, WriteId};

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
            Event::StoreUp => self.store_up(at.now),
            Event::StoreDown => self.store_down(),
            Event::Forged => self.lose(at.now, &LapseCause::Forged),
            Event::Hint => self.hint(at.now),
            Event::Read { id, answer } => {
                let answer = answer.map(|shown| self.believed(at, shown));
                self.read(at.now, id, answer);
            }
            Event::Replaced { id, answer } => {
                self.lock.verify(id, answer.as_ref(), at.now.plus(self.pace()));
                self.remember_longest_hold(at.now);
            }
            Event::Written { write, result } => self.written(at.now, write, result),
            Event::GuardUp => self.guard_is_up(),
            Event::GuardDown => self.guard_is_down(at.now),
            Event::GuardDone { instance, done } => self.guard_done(at.now, instance, done),
            Event::GuardRefused { instance, asked, reason } => self.guard_refused(at.now, instance, asked, &reason),
            Event::Unit(unit) => self.observe_unit(at.now, unit),
            Event::SystemdSilent { nothing_left } => self.systemd_is_silent(at.now, nothing_left),
            Event::StandbyCheck(result) => self.standby_check = Some(result),
            Event::ActiveCheck(result) => self.active_check(at.now, result),
            Event::Vetted { instance, result } => self.vetted(at.now, instance, result),
            Event::Fenced { instance, result } => self.fenced(at.now, instance, result),
            Event::Unfenced { instance, result } => self.unfenced(at.now, instance, result),
            Event::Started { instance, result } => self.started(at.now, instance, result),
            Event::Stopped => self.stopped(at.now),
            Event::Contend(Ok(())) => (self.barred, self.strayed) = (None, false),
            Event::Contend(Err(reason)) => self.bar(at.now, reason),
            Event::Strayed(reason) => {
                self.strayed = true;
                self.bar(at.now, reason);
            }
            Event::StepDown { reason, next } => {
                if self.may_be_running() {
                    self.release(at.now, ReleaseCause::SteppedDown(reason), next);
                } else {
                    self.wait_before_next_claim(at.now, Occasion::Planned, &reason);
                    self.give_up(&reason);
                }
            }
            Event::Stop(word) => self.stop_everywhere(at.now, word),
            Event::StartAgain => self.start_again(at.now),
            Event::Pause(word) => self.pause(at.now, Some(word)),
            Event::Resume => self.pause(at.now, None),
            Event::Retire { reason } => {
                self.retiring = Some(reason.clone());
                self.release(at.now, ReleaseCause::Retired(reason), None);
            }
            Event::Reconfigure(settings) => self.reconfigure(settings),
            Event::TryAgain => self.back_off = BackOff::default(),
        }
    }

    fn bar(&mut self, now: Time, reason: String) {
        self.barred = Some(reason.clone());
        self.release(now, ReleaseCause::Barred(reason), None);
    }

    pub(super) fn store_up(&mut self, now: Time) {
        self.connected = true;
        self.reads.pending = None;
        self.reads.due = now;
    }

    pub(super) fn store_down(&mut self) {
        self.connected = false;
        self.doubt_the_word();
        if let Some(tenure) = self.tenure_mut().filter(|tenure| tenure.awaited.is_some()) {
            tenure.doubt(false);
        }
        if let Phase::Idle(_) = self.phase {
            self.settle("the store is out of reach");
        }
    }

    pub(super) fn hint(&mut self, now: Time) {
        if let Phase::Idle(_) = self.phase {
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
        let from = if news == News::Stale { now } else { self.reads.sent };
        let after = self.settings.timings.read_after(self.reads.hinted);
        self.reads.due = if self.reads.again { now } else { from.plus(after) };
        self.resolve(now, &observation);
        if let Phase::Idle(_) = self.phase {
            let gap = (!is_first && self.lock.is_found()).then(|| self.found_in_words(now)).flatten();
            self.settle(gap.as_deref().unwrap_or("the store answered"));
        }
    }

    /// Age (K1): text for the journal on what a gap costs.
    fn found_in_words(&self, now: Time) -> Option<String> {
        let claim = self.lock.claim(&self.settings.key, &self.settings.node, &self.settings.timings)?;
        let (take, start) = (now.until_waited(claim.take_at), now.until_waited(claim.entitled_at));
        Some(format!(
            "the store answered; what it held meanwhile is not known here: unless somebody renews it, the lock may \
             be taken {}, and the unit started {}",
            ahead(take),
            ahead(start)
        ))
    }

    /// What the store shows. A record is not believed when its fencing token is one that no putexd would have, above which none
    /// could grow.
    ///
    /// The limit moves on with the clock. So of tenures that follow each other at the limit, or of hosts whose clocks differ, one
    /// may be over it. For this reason a host that has seen a token also believes one that is at most [`TOKEN_STEP`] higher. A few
    /// such steps do no harm, and as many as would do harm take centuries.
    fn believed(&self, at: &Moment, shown: Observation) -> Observation {
        let highest = self.highest_believed(at.wall);
        let content = match shown.content {
            Content::Record(record) => Content::Record(record.believed(highest)),
            content @ (Content::Absent | Content::Tombstone) => content,
        };
        Observation { content, ..shown }
    }

    fn highest_believed(&self, wall: Duration) -> FencingToken {
        FencingToken(latest_believed(wall).max(self.memory.token.0.saturating_add(TOKEN_STEP)))
    }

    /// Tokens seen (K10): takes in the token of the latest record, and the one that it says the next has to be above. One that is out
    /// of reach is carried on by whoever has the record, and is heeded by nobody here.
    fn see_tokens(&mut self, now: Time) {
        let Some(Record { details: Some(details), .. }) = self.lock.record() else { return };
        let (token, instance, above) = (details.token, details.instance, details.note.above);
        self.memory.see_token(token, Some(instance));
        if let Some(above) = above.filter(|above| *above <= self.highest_believed(self.wall(now))) {
            self.memory.see_token(above, None);
        }
    }

    /// Tells the operator of a record that is not believed, when it first comes, and again after T at the earliest: somebody may
    /// write such records a thousand times a second.
    fn tell_of_oddity(&mut self, now: Time) {
        let odd = self.lock.record().and_then(|record| Some((record.holder.to_string(), record.oddity.as_ref()?.what)));
        let Some((holder, what)) = odd else { return };
        let lease = self.settings.timings.lease();
        if self.told_of_oddity.is_some_and(|told| now.since_at_least(told) < lease) {
            return;
        }
        self.told_of_oddity = Some(now);
        self.actions.push(Action::Alarm(Alarm::OddRecord { holder, what }));
    }

    /// Tells the operator of a record of a later format, once for each holder.
    fn tell_of_newer(&mut self) {
        let of = |record: &Record| record.newer.map(|format| (record.holder.clone(), format));
        let told = self.lock.record().and_then(of);
        if let (Some((holder, format)), false) = (told.clone(), told == self.told_of_newer) {
            let lease = self.lock.record().and_then(|record| record.details.as_ref()).map(|details| details.lease);
            self.actions.push(Action::Alarm(Alarm::NewerRecord { holder: holder.to_string(), format, lease }));
        }
        self.told_of_newer = told;
    }

    pub(super) fn observe(&mut self, now: Time, observation: Observation) -> News {
        let timings = self.settings.timings;
        let to = observation.revision;
        let before = self.lock.record().and_then(Record::write);
        let news = self.lock.observe(observation, self.reads.sent, now, &timings, self.memory.position.as_ref());
        match news {
            News::Same | News::Stale => {}
            News::Newer => {
                let mine = self.tenure().map(|tenure| tenure.instance);
                // An operator's word on a held record (words, H7) is no renewal: the write is the same.
                let is_renewal = before.is_none() || self.lock.record().and_then(Record::write) != before;
                if is_renewal
                    && self.lock.watch_for_duplicate(&self.settings.node, mine, now, &timings)
                    && let Some(machine) = self.lock.duplicate(now, &timings)
                {
                    self.actions.push(Action::Alarm(Alarm::TwoHostsOneName { machine }));
                }
            }
            News::Regressed { from } => self.actions.push(Action::Alarm(Alarm::Regression { from, to })),
            News::OtherStore => self.actions.push(Action::Alarm(Alarm::NewIncarnation)),
        }
        self.see_tokens(now);
        if !matches!(news, News::Same | News::Stale) {
            self.tell_of_oddity(now);
            self.tell_of_newer();
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
        let conflicted = match result {
            WriteResult::Won(revision) => {
                self.won(now, write, revision);
                return;
            }
            WriteResult::Conflict => true,
            WriteResult::Unknown => false,
        };
        let Some(tenure) = self.tenure_mut().filter(|tenure| tenure.awaited == Some(write)) else { return };
        tenure.doubt(conflicted);
        if conflicted {
            self.lock.existed(now);
        }
        self.reads.pending = None;
        self.reads.due = now;
    }

    pub(super) fn guard_is_up(&mut self) {
        self.guard_up = true;
        if let Some(PendingDisarm { instance, .. }) = self.pending_disarm {
            self.actions.push(Action::Guard(GuardRequest::Close { instance }));
        }
        if let Phase::Lapsing(lapse) = &self.phase {
            let instance = lapse.instance;
            let proven = lapse.step == LapseStep::Disarming;
            let request = if proven { GuardRequest::Disarm { instance } } else { GuardRequest::Close { instance } };
            self.actions.push(Action::Guard(request));
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

    pub(super) fn guard_is_down(&mut self, now: Time) {
        self.guard_up = false;
        if let Some(tenure) = self.tenure_mut() {
            tenure.shortening = false;
        }
        match &self.phase {
            Phase::Claiming(_) | Phase::Confirming(_) | Phase::Fencing(_) | Phase::Starting(..) | Phase::Active(..) => {
                self.release(now, ReleaseCause::GuardGone, None);
            }
            Phase::Releasing(_) => self.stop_for_release(),
            Phase::Lapsing(lapse) if lapse.step == LapseStep::Dead => self.leave_to_disarm(now),
            Phase::Lapsing(_) | Phase::Idle(_) | Phase::Retired => {}
        }
    }

    pub(super) fn guard_done(&mut self, now: Time, instance: Instance, done: GuardDone) {
        if self.pending_disarm.is_some_and(|pending| pending.instance == instance) && done == GuardDone::Disarmed {
            self.pending_disarm = None;
        }
        match done {
            GuardDone::Armed(_) if self.is_mine(instance) => {
                if let Some(tenure) = self.tenure_mut() {
                    tenure.guarded = Guarded::Armed;
                }
                self.extend();
                self.go_on_starting(StartStep::Arming);
            }
            GuardDone::Extended(deadline) if self.is_mine(instance) => {
                if let Some(tenure) = self.tenure_mut() {
                    // Answers may come late, but the guard has never taken back what it granted.
                    tenure.granted = tenure.granted.map(|granted| granted.latest(deadline));
                }
            }
            GuardDone::Shortened(deadline) if self.is_mine(instance) => {
                if let Some(tenure) = self.tenure_mut().filter(|tenure| tenure.shortening) {
                    // The guard was asked for no other deadline since. The next write tells the shorter hold.
                    (tenure.granted, tenure.asked, tenure.shortening) = (Some(deadline), Some(deadline), false);
                    (tenure.next_attempt, tenure.hastened) = (now, Some(now));
                }
                self.extend();
            }
            GuardDone::Closed => self.closed(now, instance),
            GuardDone::Disarmed => self.disarmed(now, instance),
            GuardDone::Armed(_) | GuardDone::Extended(_) | GuardDone::Shortened(_) => {}
        }
    }

    pub(super) fn guard_refused(&mut self, now: Time, instance: Instance, asked: GuardDone, reason: &str) {
        match asked {
            GuardDone::Armed(_) if self.is_mine(instance) => {
                self.release(now, ReleaseCause::GuardRefusedLease(reason.to_owned()), None);
            }
            GuardDone::Extended(_) if self.guard_up && self.is_mine(instance) && self.may_be_running() => {
                self.lapse(now, &LapseCause::GuardRefusedExtension(reason.to_owned()));
            }
            // A guard that does not know a lease need not close or forget it. A guard that is gone has refused nothing.
            GuardDone::Closed | GuardDone::Disarmed if self.guard_up => self.guard_done(now, instance, asked),
            GuardDone::Shortened(_) if self.is_mine(instance) => {
                // The later deadline stays in force, and is published. After the next won write the guard is asked again.
                if let Some(tenure) = self.tenure_mut() {
                    tenure.shortening = false;
                }
            }
            GuardDone::Armed(_)
            | GuardDone::Extended(_)
            | GuardDone::Shortened(_)
            | GuardDone::Closed
            | GuardDone::Disarmed => {}
        }
    }

    /// Lapse (H4): nobody runs the unit, and nobody can start it here. A host that is to go down for a stop that is not proven does so
    /// in a release by the rule for that (release, H5), which gives systemd more time.
    fn systemd_is_silent(&mut self, now: Time, nothing_left: bool) {
        if !nothing_left {
            self.silent_since = None;
            return;
        }
        let since = *self.silent_since.get_or_insert(now);
        let goes_down = self.settings.on_stop_failure.is_self_fence() && self.release_under_way().is_some();
        let is_over = now.since_at_least(since) >= self.settings.timings.lease();
        if is_over && !goes_down && self.may_be_running() {
            self.lapse(now, &LapseCause::SystemdSilent);
        }
    }

    pub(super) fn observe_unit(&mut self, now: Time, unit: ObservedUnit) {
        self.silent_since = None;
        let alive = !matches!(unit, ObservedUnit::Dead { .. });
        self.unit_alive = Some(alive);
        if alive {
            self.give_up("the unit is not known to be dead");
            if let Phase::Lapsing(lapse) = &self.phase
                && lapse.step == LapseStep::Dead
            {
                self.stop_again(now);
            }
        }
        let Phase::Active(_, since) = &mut self.phase else { return };
        match unit {
            ObservedUnit::Dead { result, failed } => {
                // A unit that ends in good order and at once would be started again and again.
                let too_soon = now.since_at_least(*since) < self.settings.timings.lease();
                self.release(now, ReleaseCause::UnitEnded { result, in_order: !failed && !too_soon }, None);
            }
            ObservedUnit::Failing(why) => self.release(now, ReleaseCause::UnitFails(why), None),
            // Its health counts from the restart on.
            ObservedUnit::Trying => *since = now,
            ObservedUnit::Alive => {}
        }
    }

    pub(super) fn active_check(&mut self, now: Time, result: Result<(), String>) {
        match (&self.phase, result) {
            (Phase::Active(..), Ok(())) => self.last_pass = Some(now),
            (Phase::Active(..), Err(reason)) => {
                self.release(now, ReleaseCause::CheckFailed(reason), None);
            }
            (_, Ok(()) | Err(_)) => {}
        }
    }

    pub(super) fn vetted(&mut self, now: Time, instance: Instance, result: Result<(), String>) {
        let Phase::Confirming(tenure) = &mut self.phase else { return };
        if tenure.instance != instance {
            return;
        }
        match result {
            Ok(()) => tenure.vetted = true,
            Err(reason) => {
                self.wait_before_next_claim(now, Occasion::Failure, &reason);
                self.give_up(&reason);
            }
        }
    }

    pub(super) fn fenced(&mut self, now: Time, instance: Instance, result: Result<(), String>) {
        if !self.is_mine(instance) || !matches!(self.phase, Phase::Fencing(_)) {
            return;
        }
        match result {
            Ok(()) => self.become_starting("the previous holders are fenced"),
            Err(reason) => {
                let failed = format!("fencing failed: {reason}");
                self.wait_before_next_claim(now, Occasion::Failure, &failed);
                self.give_up(&failed);
                self.actions.push(Action::Alarm(Alarm::FenceFailed { reason }));
            }
        }
    }

    pub(super) fn unfenced(&mut self, now: Time, instance: Instance, result: Result<(), String>) {
        if !self.is_mine(instance) {
            return;
        }
        match result {
            Ok(()) => self.go_on_starting(StartStep::Unfencing),
            Err(reason) => self.failed_start(now, format!("unfencing failed: {reason}")),
        }
    }

    pub(super) fn started(&mut self, now: Time, instance: Instance, result: Result<(), String>) {
        if !self.is_mine(instance) {
            return;
        }
        match result {
            // The stop may have begun meanwhile.
            Ok(()) if matches!(self.phase, Phase::Starting(_, StartStep::Starting)) => self.become_active(now),
            Ok(()) => {}
            Err(reason) => self.failed_start(now, format!("the start failed: {reason}")),
        }
    }

    pub(super) fn failed_start(&mut self, now: Time, reason: String) {
        if let Phase::Starting(..) = self.phase {
            self.release(now, ReleaseCause::StartFailed(reason), None);
        }
    }

    pub(super) fn reconfigure(&mut self, settings: Settings) {
        if settings.checks_standby != self.settings.checks_standby {
            self.standby_check = None;
        }
        if settings.check_validity.is_some() != self.settings.check_validity.is_some() {
            self.last_pass = Some(self.last_now);
        }
        let goes_down = settings.on_stop_failure.is_self_fence() && !self.settings.on_stop_failure.is_self_fence();
        self.settings = settings;
        if goes_down {
            // What was only told of has consequences now.
            match &mut self.phase {
                Phase::Releasing(release) => release.shouted = false,
                Phase::Lapsing(lapse) => lapse.shouted = false,
                Phase::Idle(_)
                | Phase::Claiming(_)
                | Phase::Confirming(_)
                | Phase::Fencing(_)
                | Phase::Starting(..)
                | Phase::Active(..)
                | Phase::Retired => {}
            }
        }
        let (timings, now) = (self.settings.timings, self.last_now);
        if let Some(tenure) = self.tenure_mut() {
            tenure.heed(&timings, now);
        }
    }
}
