//! What operators want of a lock: that the service is stopped everywhere, or started again, and what its holder is to do (orders, H7);
//! and that the holder keeps the lease for a long time (pause, H8). And what a host writes into a record which has no fencing token
//! above the highest one that it has seen (tokens seen, K10).

use std::time::Duration;

use serde::Serialize;

use super::{Election, events::latest_believed, phase::Phase};
use crate::{
    election::{
        event::{Action, Content, Moment, Observation, WriteRequest, WriteResult},
        record::{Asked, Details, OperatorNote, Order, Record, Refused, Standing, Wanted, Word},
        tenure::Tenure,
    },
    facts::{Bar, ReleaseCause, StepDown},
    types::{FencingToken, Instance, Revision, Time, WriteId},
    words,
};

/// The writes of a host without a tenure into the record of the lock.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Rewrite {
    /// The one that was not answered yet, and when it was sent.
    pub attempt: Option<(Time, WriteRequest)>,
    /// The revision that the last attempt would have replaced. It is not tried again before `next`.
    base: Revision,
    next: Time,
}

impl Election {
    /// The word that keeps the service stopped everywhere, as far as this host knows, if it is not over.
    pub fn stop_word(&self, now: Time) -> Option<&Word> {
        let said = match &self.tenure {
            Some(tenure) => self.stop_of(tenure),
            None => self.recorded_stop(),
        };
        said.filter(|word| word.holds(self.wall(now)))
            .or_else(|| self.lost_stop(now))
    }

    /// The stop that the next write of this host's own tenure says.
    fn stop_of<'a>(&'a self, tenure: &'a Tenure) -> Option<&'a Word> {
        let said = tenure.note.stopped.as_ref();
        match &self.pending {
            Some(Wanted::Stop(word)) => Some(word),
            Some(Wanted::Start(word)) => said.filter(|said| *said != word),
            Some(Wanted::Order(..) | Wanted::Pause(_)) | None => said,
        }
    }

    /// The word that keeps the service stopped on this host alone, because the store has lost it: it shows no record with the word, and
    /// none that says that the word was taken back.
    pub fn lost_stop(&self, now: Time) -> Option<&Word> {
        let wall = self.wall(now);
        // An old record may have a stop that is over, or be over before this one.
        let is_shown = self.recorded_stop().is_some_and(|word| word.holds(wall));
        let known = self.memory.stopped.as_ref();
        known.filter(|word| self.tenure.is_none() && !is_shown && word.holds(wall))
    }

    /// Orders (H7): remembers a stop that the record has, until a record says that it was taken back.
    pub(super) fn remember_stop(&mut self, now: Time) {
        let wall = self.wall(now);
        let Some(note) = self.recorded_note() else {
            return;
        };
        let (stopped, started) = (note.stopped.clone(), note.started);
        // Whoever may write to the store could otherwise end each word that is to come.
        let believed = |at: &u64| *at <= latest_believed(wall);
        if let Some(at) = started.filter(believed) {
            self.memory.see_start(at);
        }
        if let Some(word) = stopped.filter(|word| word.holds(wall) && believed(&word.at)) {
            self.memory.see_stop(&word);
        }
        self.memory.stopped.take_if(|word| !word.holds(wall));
    }

    /// The word for a long lease that the lock's record has.
    pub fn pause_word(&self, now: Time) -> Option<&Word> {
        let word = self.recorded_note()?.paused.as_ref();
        word.filter(|word| word.holds(self.wall(now)))
    }

    /// Whether this host's lease is that of a putexd before, and the store has not shown its record since, which may have a pause.
    pub fn is_unread(&self) -> bool {
        let tenure = self.tenure.as_ref();
        tenure.is_some_and(|tenure| tenure.claim.adopted)
    }

    /// What is wanted on this host and not in the lock's record yet.
    pub fn unwritten(&self) -> Option<&Wanted> {
        let wanted = self.pending.as_ref()?;
        (!self.is_written(wanted)).then_some(wanted)
    }

    /// What the holder of this host's own tenure is asked to do. It is to be answered by [`Event::StepDown`], [`Event::Pause`] or
    /// [`Event::Refuse`].
    ///
    /// [`Event::StepDown`]: crate::election::Event::StepDown
    /// [`Event::Pause`]: crate::election::Event::Pause
    /// [`Event::Refuse`]: crate::election::Event::Refuse
    pub fn order(&self, now: Time) -> Option<&Order> {
        let wall = self.wall(now);
        let tenure = self.tenure.as_ref().filter(|_| self.phase.is_open())?;
        tenure.note.order.as_ref().filter(|order| order.holds(wall))
    }

    /// The latest order that the holder has refused, by the lock's record.
    pub fn refused(&self) -> Option<&Refused> {
        self.recorded_note()?.refused.as_ref()
    }

    /// The tenure to which an order can be written from this host.
    pub fn orderable(&self) -> Option<Instance> {
        let record = self.lock.record().filter(|_| self.tenure.is_none())?;
        let details = record.details.as_ref()?;
        let is_held = matches!(details.standing, Standing::Confirming | Standing::Active);
        (record.newer.is_none() && is_held).then_some(details.instance)
    }

    fn is_in_record(&self, wanted: &Wanted) -> bool {
        let details = self.lock.details();
        details.is_some_and(|details| wanted.is_done(details.instance, &details.note))
    }

    /// Whether the record has it, and no write of this host's own tenure, sent or to come, says anything else.
    fn is_written(&self, wanted: &Wanted) -> bool {
        let is_said = |tenure: &Tenure| {
            tenure.attempts.list.is_empty() && wanted.is_done(tenure.instance, &tenure.note)
        };
        self.is_in_record(wanted) && self.tenure.as_ref().is_none_or(is_said)
    }

    fn recorded_note(&self) -> Option<&OperatorNote> {
        self.lock.details().map(|details| &details.note)
    }

    fn recorded_stop(&self) -> Option<&Word> {
        self.recorded_note()?.stopped.as_ref()
    }

    /// The time of day at `now`, by what the last event said of it.
    pub(super) fn wall(&self, now: Time) -> Duration {
        now.boot.saturating_add(self.wall_ahead.unwrap_or_default())
    }

    /// Why this host takes no lock, as far as that is due to a word.
    pub(super) fn silenced(&self, now: Time) -> Option<Bar> {
        if let Some(word) = self.lost_stop(now) {
            return Some(Bar::StopLost(word.clone()));
        }
        if let Some(word) = self.stop_word(now) {
            return Some(Bar::Stopped(word.clone()));
        }
        let is_writing = self.rewrite.attempt.is_some();
        let stops = matches!(self.pending, Some(Wanted::Stop(_))) && self.recorded_note().is_some();
        (stops || is_writing).then_some(Bar::Writing)
    }

    /// Nobody is to run the service any more. The word is later than each that was taken back.
    pub(super) fn stop_everywhere(&mut self, now: Time, mut word: Word) {
        let least = self.memory.started.map(|at| at.saturating_add(1));
        word.at = word.at.max(least.unwrap_or_default());
        self.want(now, Wanted::Stop(word));
    }

    /// An order for the holder that another host is: it is written into the record of the tenure that is seen here.
    pub(super) fn order_holder(&mut self, now: Time, mut order: Order) {
        let Some(instance) = self.orderable() else {
            return;
        };
        // It is told from the orders that the tenure has had by its time, in whole seconds.
        let note = self.recorded_note();
        let ordered = note.and_then(|note| Some(note.order.as_ref()?.word.at));
        let refused = self.refused().map(|refused| refused.at);
        let least = ordered.max(refused).map_or(0, |at| at.saturating_add(1));
        order.word.at = order.word.at.max(least);
        self.want(now, Wanted::Order(instance, order));
    }

    /// The holder has not done what it was asked for.
    pub(super) fn refuse(&mut self, now: Time, refused: Refused) {
        if let Some(tenure) = &mut self.tenure {
            tenure.answer(|order| order.word.at == refused.at);
            tenure.note.refused = Some(refused);
            tenure.attempts.hasten(now);
        }
    }

    fn want(&mut self, now: Time, wanted: Wanted) {
        self.pending = Some(wanted);
        match &mut self.tenure {
            Some(tenure) => tenure.attempts.hasten(now),
            None => self.reads.due = now,
        }
    }

    pub(super) fn start_again(&mut self, now: Time) {
        self.back_off = super::BackOff::default();
        let recorded = self.recorded_stop().cloned();
        let tenure = self.tenure.as_ref();
        let said = tenure.and_then(|tenure| self.stop_of(tenure));
        let all = [recorded.as_ref(), said, self.memory.stopped.as_ref()];
        if let Some(at) = all.into_iter().flatten().map(|word| word.at).max() {
            self.memory.see_start(at);
        }
        // A stop that the store does not have is not written any more.
        self.pending = None;
        let said = if let Some(tenure) = &self.tenure {
            tenure.note.stopped.clone()
        } else {
            self.reads.due = now;
            None
        };
        if let Some(word) = said.or(recorded).filter(|word| word.holds(self.wall(now))) {
            self.want(now, Wanted::Start(word));
        }
    }

    /// Pause (H8), or its end: only a host that may run the unit has a lease to be prolonged.
    pub(super) fn pause(&mut self, now: Time, word: Option<Word>) {
        if let Some(tenure) = self.tenure.as_mut().filter(|_| self.phase.is_open()) {
            tenure.answer(|order| matches!(order.what, Asked::Pause | Asked::Resume));
            self.want(now, Wanted::Pause(word));
        }
    }

    /// Orders (H7): a holder lets the lock go once it is said that the service is stopped. A claim, before a start, is given up when
    /// the store has the word.
    pub(super) fn heed_words(&mut self, at: &Moment) {
        if let Some(wanted) = &self.pending {
            let may_run = self.phase.is_open();
            let is_written = self.tenure.is_some() && self.is_written(wanted);
            if is_written || matches!(wanted, Wanted::Pause(_)) && !may_run {
                self.pending = None;
            }
        }
        let Some(tenure) = &self.tenure else { return };
        let word = self.stop_of(tenure).filter(|word| word.holds(at.wall));
        let Some(word) = word else { return };
        if self.phase.is_open() {
            let because = StepDown::Stopped(word.clone());
            self.release(at.now, ReleaseCause::SteppedDown(because));
        } else if self.recorded_stop() == Some(word)
            && matches!(self.phase, Phase::Confirming | Phase::Fencing)
        {
            self.give_up(&words::asked(word, "stopped everywhere"));
        }
    }

    /// Orders (H7) and tokens seen (K10): writes them into the record of the lock, which says the same as before in all else.
    ///
    /// A verified `proven` (verified release, K4) is written anew, as one that replaced the former: this host would be entitled at once, so that it
    /// may say what the former says. Any other record keeps its instance and its write, so that its holder goes on from there,
    /// and everybody else counts its age anew. Where no record is believed, this host has to take the lock first.
    pub(super) fn reword(&mut self, at: &Moment) {
        self.end_pending(at);
        let above = self.unknown_token();
        if self.pending.is_none() && above.is_none() {
            return;
        }
        let timings = self.settings.timings;
        let Some(seen) = self.lock.seen() else { return };
        let rewrite = &self.rewrite;
        let is_due = seen.revision != rewrite.base || at.now.has_waited_until(rewrite.next);
        let may_write = self.connected && rewrite.attempt.is_none() && is_due;
        let is_being_asked = self.lock.is_being_verified(at.now, &timings);
        if !may_write || is_being_asked || !self.lock.is_up_to_date(at.now, &timings) {
            return;
        }
        let write = WriteId(!at.random);
        let (wanted, started) = (self.pending.as_ref(), self.memory.started);
        let is_proven = self.lock.is_verified_proven();
        let request = self.reworded(write, |details, base| {
            if let Some(wanted) = wanted {
                wanted.write_into(&mut details.note);
            }
            details.note.started = started;
            details.note.above = details.note.above.max(above);
            if is_proven {
                (details.write, details.prev) = (write, Some((base, Some(details.instance))));
            }
        });
        let Some(request) = request else { return };
        // As with a claim: a read that looked at the store before this write must not be taken for an answer about it.
        self.reads.pending = None;
        self.rewrite.base = request.base;
        self.rewrite.attempt = Some((at.now, request.clone()));
        self.actions.push(Action::Write(Box::new(request)));
    }

    /// The record that the lock has, with a change. `None`: it has none that is believed, or one of a later format, which says more
    /// than this host could write again.
    pub(super) fn reworded(
        &self,
        write: WriteId,
        change: impl FnOnce(&mut Details, Revision),
    ) -> Option<WriteRequest> {
        let seen = self.lock.seen()?;
        let record = self.lock.record().filter(|record| record.newer.is_none())?;
        let mut details = record.details.clone()?;
        change(&mut details, seen.revision);
        Some(WriteRequest {
            base: seen.revision,
            incarnation: seen.incarnation.clone(),
            write,
            record: Record::new(record.holder.clone(), Some(details)),
        })
    }

    /// Ends what an operator wants here: the record has it, or it is over.
    fn end_pending(&mut self, at: &Moment) {
        let Some(wanted) = &self.pending else { return };
        // Of a lock without a record that is believed, a claim says the stop, and nothing else can be said.
        let is_done = match self.recorded_note() {
            Some(_) => {
                self.is_in_record(wanted)
                    || matches!(wanted, Wanted::Start(word) if !word.holds(at.wall))
            }
            None => !matches!(wanted, Wanted::Stop(_)),
        };
        if wanted.is_over(at.wall) || self.rewrite.attempt.is_none() && is_done {
            self.pending = None;
        }
    }

    /// Tokens seen (K10): the highest fencing token seen here, if whoever takes the lock has to be told of it.
    fn unknown_token(&self) -> Option<FencingToken> {
        self.memory.token_unknown_to(self.lock.details()?)
    }

    /// The answer to an attempt to write a word. Returns whether `write` was one.
    pub(super) fn word_written(&mut self, now: Time, write: WriteId, result: WriteResult) -> bool {
        let pace = self.pace();
        let timings = self.settings.timings;
        let attempt = &mut self.rewrite.attempt;
        let Some((sent, request)) = attempt.take_if(|(_, request)| request.write == write) else {
            return false;
        };
        if let WriteResult::Won(revision) = result {
            self.memory.position = Some((request.incarnation.clone(), revision));
            let written = Observation {
                incarnation: request.incarnation,
                revision,
                content: Content::Record(request.record),
            };
            self.lock.wrote(written, sent, now, &timings);
            self.remember_stop(now);
            self.remember_longest_hold(now);
        } else {
            self.rewrite.next = now.plus(pace);
            self.reads.anew(now);
        }
        true
    }

    /// How long it is from `now` until a word is over, or an attempt to write one is due.
    pub(super) fn orders_due(&self, now: Time) -> Vec<Duration> {
        let end = self.stop_word(now).and_then(|word| word.until);
        let left = end.map(|end| Duration::from_secs(end).saturating_sub(self.wall(now)));
        let is_pending = self.pending.is_some() || self.unknown_token().is_some();
        let attempt = is_pending.then(|| now.until_waited(self.rewrite.next));
        left.into_iter().chain(attempt).collect()
    }
}
