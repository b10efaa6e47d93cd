//! What operators say of a lock: that the service is stopped everywhere, or started again (words, H7), and that its holder keeps the
//! lease for a long time (pause, H8). And what a host writes into a record which has no fencing token above the highest one that it has
//! seen (tokens seen, K10).

use std::time::Duration;

use serde::Serialize;

use super::Election;
use super::events::latest_believed;
use super::phase::Phase;
use crate::election::event::{Action, Content, Moment, WriteRequest, WriteResult};
use crate::election::record::{Details, OperatorNote, Record, Word};
use crate::election::stop_cause::ReleaseCause;
use crate::election::tenure::Tenure;
use crate::types::{FencingToken, Instance, Revision, Time, WriteId};

/// For how long a host tries to write a word that was said on it. After so long the operator has given up or said it elsewhere, and a
/// stop that came later would surprise him.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A word that was said on this host while it does not hold the lock, until the store has it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Errand {
    /// What the record is to say of a stop; `None`: nothing.
    stopped: Option<Word>,
    /// The word that is taken back. One that somebody has said since stays.
    instead_of: Option<Word>,
    /// It is given up then.
    until: Time,
}

/// The writes of a host without a tenure into the record of the lock.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Rewording {
    attempt: Option<Attempt>,
    /// The revision that the last attempt would have replaced. It is not tried again before `next`.
    base: Revision,
    next: Time,
}

/// An attempt that was not answered yet.
#[derive(Debug, Clone, Serialize)]
struct Attempt {
    write: WriteId,
    sent: Time,
    request: WriteRequest,
}

/// What an operator has said on this host and the store has not taken yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsaid<'a> {
    /// The service is to be stopped everywhere.
    Stopped(&'a Word),
    /// It may be started again.
    Started,
    /// The lease is to be a long one.
    Paused(&'a Word),
    /// The lease is to be an ordinary one again.
    Resumed,
}

/// A pause that an operator has taken back on this host.
#[derive(Debug, Clone)]
pub(super) struct TakenBack {
    /// The tenure that it was said to.
    instance: Instance,
    word: Word,
}

impl Errand {
    fn stop(word: Word, now: Time) -> Self {
        Self { stopped: Some(word), instead_of: None, until: now.plus(PATIENCE) }
    }

    fn start(instead_of: Word, now: Time) -> Self {
        Self { stopped: None, instead_of: Some(instead_of), until: now.plus(PATIENCE) }
    }

    /// Whether the lock, whose record says `said` of a stop, is to be told nothing more.
    fn is_done(&self, said: Option<&Word>) -> bool {
        match (&self.stopped, &self.instead_of) {
            (None, Some(word)) => said != Some(word),
            (stopped, _) => said == stopped.as_ref(),
        }
    }
}

impl Election {
    /// The word that keeps the service stopped everywhere, as far as this host knows, if it is not over.
    #[must_use]
    pub fn stop_word(&self, now: Time) -> Option<&Word> {
        let said = self.note().and_then(|note| note.stopped.as_ref()).filter(|word| word.holds(self.wall(now)));
        said.or_else(|| self.lost_stop(now))
    }

    /// The word that keeps the service stopped on this host alone, because the store has lost it: it shows no record with the word, and
    /// none that says that the word was taken back.
    #[must_use]
    pub fn lost_stop(&self, now: Time) -> Option<&Word> {
        let wall = self.wall(now);
        // An old record may have a stop that is over, or be over before this one.
        let is_told = self.recorded_note().and_then(|note| note.stopped.as_ref()).is_some_and(|word| word.holds(wall));
        let is_lost = self.tenure().is_none() && !is_told;
        self.memory.stopped.as_ref().filter(|word| is_lost && word.holds(wall))
    }

    /// Words (H7): remembers a stop that the record has, until a record says that it was taken back.
    pub(super) fn remember_stop(&mut self, now: Time) {
        let wall = self.wall(now);
        let Some(note) = self.recorded_note() else { return };
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
        let started = self.memory.started;
        if let Some(tenure) = self.tenure_mut() {
            tenure.note.started = started;
        }
    }

    /// The word for a long lease that is in force: the lock's record has it, as far as this host knows, or this host's guard has the
    /// late deadline still. A pause that was said here counts once the store has it, and one that was taken back here until the
    /// store has a record without it and the guard has acknowledged the earlier deadline.
    #[must_use]
    pub fn pause_word(&self, now: Time) -> Option<&Word> {
        let recorded = || self.recorded_note()?.paused.as_ref();
        let shortened = || self.taken_back().map(|(word, _)| word).filter(|_| self.is_shortening());
        let word = recorded().or_else(shortened);
        word.filter(|word| word.holds(self.wall(now)))
    }

    /// The word for a long lease that is to be published with the next write of this host's own tenure.
    #[must_use]
    pub fn pause_to_be(&self, now: Time) -> Option<&Word> {
        self.tenure()?.note.paused.as_ref().filter(|word| word.holds(self.wall(now)))
    }

    /// Whether this host's lease lasts longer than an ordinary one by a pause that it does not know: putexd was restarted since,
    /// and the store has not answered yet.
    #[must_use]
    pub fn has_unknown_pause(&self, now: Time) -> bool {
        let adopted = self.tenure().filter(|tenure| tenure.adopted && tenure.note.paused.is_none());
        adopted.is_some_and(|tenure| now.until_passed(tenure.deadline()) > self.settings.timings.lease())
    }

    /// Whether a pause was taken back here, and the guard has not acknowledged the earlier deadline.
    #[must_use]
    pub fn is_shortening(&self) -> bool {
        self.taken_back().is_some_and(|(_, tenure)| tenure.is_too_long(&self.settings.timings))
    }

    /// The pause that was taken back on this host in its present tenure.
    fn taken_back(&self) -> Option<(&Word, &Tenure)> {
        let TakenBack { instance, word } = self.taken_back.as_ref()?;
        let tenure = self.tenure().filter(|tenure| tenure.instance == *instance && tenure.note.paused.is_none())?;
        Some((word, tenure))
    }

    /// Whether the lock has a record into which a word can be written.
    #[must_use]
    pub fn has_believed_record(&self) -> bool {
        self.recorded_note().is_some()
    }

    /// What was said on this host and is not in the lock's record yet.
    #[must_use]
    pub fn unsaid(&self, now: Time) -> Option<Unsaid<'_>> {
        let recorded = self.recorded_note();
        let errand = self.errand.as_ref();
        if let Some(errand) = errand.filter(|errand| !errand.is_done(recorded.and_then(|note| note.stopped.as_ref()))) {
            return Some(errand.stopped.as_ref().map_or(Unsaid::Started, Unsaid::Stopped));
        }
        let tenure = self.tenure()?;
        let stopped = tenure.note.stopped.as_ref().map(Unsaid::Stopped);
        let stopped = stopped.filter(|_| recorded.is_none_or(|note| note.stopped != tenure.note.stopped));
        let paused = || {
            let word = self.pause_to_be(now)?;
            recorded.is_none_or(|note| note.paused.as_ref() != Some(word)).then_some(Unsaid::Paused(word))
        };
        let resumed = || {
            self.taken_back()?;
            let recorded = recorded?.paused.as_ref();
            recorded.is_some_and(|word| word.holds(self.wall(now))).then_some(Unsaid::Resumed)
        };
        stopped.or_else(paused).or_else(resumed)
    }

    /// The word that this host has given up because the store has not taken it in time, once: `Ok` of a stop, `Err` of the stop that
    /// was to be taken back.
    pub fn take_unheard(&mut self) -> Option<Result<Word, Word>> {
        let Errand { stopped, instead_of, .. } = self.unheard.take()?;
        stopped.map(Ok).or_else(|| instead_of.map(Err))
    }

    /// What is said in the name of the holder: by this host if it has a tenure, else by the record.
    fn note(&self) -> Option<&OperatorNote> {
        self.tenure().map(|tenure| &tenure.note).or_else(|| self.recorded_note())
    }

    fn recorded_note(&self) -> Option<&OperatorNote> {
        Some(&self.lock.record()?.details.as_ref()?.note)
    }

    /// The time of day at `now`, by what the last event said of it.
    pub(super) fn wall(&self, now: Time) -> Duration {
        let boot = i128::try_from(now.boot.as_nanos()).unwrap_or(i128::MAX);
        let wall = boot.saturating_add(self.wall_offset_ns.unwrap_or_default());
        Duration::from_nanos(u64::try_from(wall.max(0)).unwrap_or(u64::MAX))
    }

    /// Why this host takes no lock, as far as that is due to a word.
    pub(super) fn silenced(&self, now: Time) -> Option<String> {
        if let Some(word) = self.stop_word(now) {
            return Some(word.in_words("stopped everywhere"));
        }
        let is_writing = self.rewording.attempt.is_some();
        let what = match &self.errand {
            Some(errand) if is_writing || errand.stopped.is_some() && self.recorded_note().is_some() => {
                "an operator's word"
            }
            None if is_writing => "the highest fencing token seen here",
            Some(_) | None => return None,
        };
        Some(format!("{what} is being written to the lock"))
    }

    /// A host that has a tenure says the word with its next write; another one writes it into the record of the lock.
    pub(super) fn stop_everywhere(&mut self, now: Time, word: Word) {
        let word = Word { at: word.at.max(self.memory.started.map_or(0, |at| at.saturating_add(1))), ..word };
        if let Some(tenure) = self.tenure_mut() {
            tenure.say(now, |note| note.stopped = Some(word));
            self.errand = None;
        } else {
            self.errand = Some(Errand::stop(word, now));
            self.reads.due = now;
        }
    }

    pub(super) fn start_again(&mut self, now: Time) {
        self.back_off = super::BackOff::default();
        let recorded = self.recorded_note().and_then(|note| note.stopped.clone());
        let told = self.tenure().and_then(|tenure| tenure.note.stopped.as_ref());
        if let Some(at) =
            [recorded.as_ref(), told, self.memory.stopped.as_ref()].into_iter().flatten().map(|word| word.at).max()
        {
            self.memory.see_start(at);
        }
        let started = self.memory.started;
        // A tenure may end before the store has taken a write of it.
        self.errand = recorded.filter(|word| word.holds(self.wall(now))).map(|word| Errand::start(word, now));
        if let Some(tenure) = self.tenure_mut() {
            tenure.say(now, |note| (note.stopped, note.started) = (None, started));
        } else {
            self.reads.due = now;
        }
    }

    /// Pause (H8), or its end: only a host that may run the unit has a lease to be prolonged.
    pub(super) fn pause(&mut self, now: Time, word: Option<Word>) {
        let recorded = self.recorded_note().and_then(|note| note.paused.clone());
        let (Phase::Starting(tenure, _) | Phase::Active(tenure, _)) = &mut self.phase else { return };
        let before = tenure.note.paused.clone().or(recorded).filter(|_| word.is_none());
        if word.is_some() || before.is_some() {
            self.taken_back = before.map(|word| TakenBack { instance: tenure.instance, word });
        }
        tenure.say(now, |note| note.paused = word);
    }

    /// Words (H7): a holder lets the lock go once it is said that the service is stopped. A claim, before a start, is given up when
    /// the store has the word.
    pub(super) fn heed_words(&mut self, at: &Moment) {
        if self.tenure().is_some() {
            let said = self.recorded_note().and_then(|note| note.stopped.clone());
            self.errand.take_if(|errand| errand.is_done(said.as_ref()));
        }
        let Some(tenure) = self.tenure() else { return };
        let Some(word) = tenure.note.stopped.as_ref().filter(|word| word.holds(at.wall)) else { return };
        let words = word.in_words("stopped everywhere");
        let is_said = self.recorded_note().is_some_and(|note| note.stopped.as_ref() == Some(word));
        match self.phase {
            Phase::Starting(..) | Phase::Active(..) => self.release(at.now, ReleaseCause::SteppedDown(words), None),
            Phase::Confirming(_) | Phase::Fencing(_) if is_said => self.give_up(&words),
            Phase::Confirming(_)
            | Phase::Fencing(_)
            | Phase::Claiming(_)
            | Phase::Releasing(_)
            | Phase::Idle(_)
            | Phase::Lapsing(_)
            | Phase::Retired => {}
        }
    }

    /// A tenure ends. If the store does not have its word yet, this host writes it as one that does not hold the lock.
    pub(super) fn keep_word(&mut self, now: Time) {
        let wall = self.wall(now);
        let word = self.tenure().and_then(|tenure| tenure.note.stopped.clone()).filter(|word| word.holds(wall));
        let is_said = self.recorded_note().is_some_and(|note| note.stopped == word);
        if word.is_some() && !is_said {
            self.errand = word.map(|word| Errand::stop(word, now));
        }
    }

    /// Words (H7) and tokens seen (K10): writes them into the record of the lock, which says the same as before in all else.
    ///
    /// A verified `proven` (verified release, K4) is written anew, as one that replaced the former: this host would be entitled at once, so that it
    /// may say what the former says. Any other record keeps its instance and its write, so that its holder goes on from there,
    /// and everybody else counts its age anew. Where no record is believed, this host has to take the lock first.
    pub(super) fn reword(&mut self, at: &Moment) {
        self.end_errand(at);
        let above = self.unknown_token();
        if self.errand.is_none() && above.is_none() {
            return;
        }
        let timings = self.settings.timings;
        let Some(seen) = self.lock.seen() else { return };
        let Rewording { attempt, base, next } = &self.rewording;
        let is_due = seen.revision != *base || at.now.has_waited_until(*next);
        let may_write = self.connected && attempt.is_none() && is_due;
        let is_being_asked = self.lock.is_being_verified(at.now, &timings);
        if !may_write || is_being_asked || !self.lock.is_up_to_date(at.now, &timings) {
            return;
        }
        // A record of a later format says more than this host could write again.
        let Content::Record(Record { holder, details: Some(details), newer: None, .. }) = &seen.content else { return };
        let write = WriteId(!at.random);
        let mut details: Details = details.clone();
        if let Some(errand) = &self.errand {
            details.note.stopped.clone_from(&errand.stopped);
        }
        details.note.started = self.memory.started;
        details.note.above = details.note.above.max(above);
        if self.lock.is_verified_proven() {
            (details.write, details.prev) = (write, Some((seen.revision, Some(details.instance))));
        }
        let record = Record::new(holder.clone(), Some(details));
        let request = WriteRequest { base: seen.revision, incarnation: seen.incarnation.clone(), write, record };
        // As with a claim: a read that looked at the store before this write must not be taken for an answer about it.
        self.reads.pending = None;
        self.rewording.base = request.base;
        self.rewording.attempt = Some(Attempt { write, sent: at.now, request: request.clone() });
        self.actions.push(Action::Write(Box::new(request)));
    }

    /// Ends what an operator has said here: the lock has the word, or the word is over, or nobody waits for it any more.
    fn end_errand(&mut self, at: &Moment) {
        let Some(errand) = &self.errand else { return };
        let is_over = errand.stopped.as_ref().is_some_and(|word| !word.holds(at.wall));
        if is_over || at.now.has_waited_until(errand.until) {
            let is_heard = errand.is_done(self.recorded_note().and_then(|note| note.stopped.as_ref()));
            self.unheard = self.errand.take().filter(|_| !is_heard);
            return;
        }
        let said = self.recorded_note().map(|note| note.in_force(at.wall).stopped);
        // Of a lock without a record that is believed, a claim says the word.
        let is_done = match said {
            Some(said) => errand.is_done(said.as_ref()),
            None => errand.stopped.is_none(),
        };
        if self.rewording.attempt.is_none() && is_done {
            self.errand = None;
        }
    }

    /// Tokens seen (K10): the highest fencing token seen here, if whoever takes the lock has to be told of it.
    fn unknown_token(&self) -> Option<FencingToken> {
        self.memory.token_unknown_to(self.lock.record()?.details.as_ref()?)
    }

    /// The answer to an attempt to write a word. Returns whether `write` was one.
    pub(super) fn word_written(&mut self, now: Time, write: WriteId, result: WriteResult) -> bool {
        let pace = self.pace();
        let timings = self.settings.timings;
        let attempt = self.rewording.attempt.take_if(|attempt| attempt.write == write);
        let Some(Attempt { sent, request, .. }) = attempt else { return false };
        if let WriteResult::Won(revision) = result {
            let WriteRequest { incarnation, record, .. } = request;
            self.lock.wrote(incarnation.clone(), revision, record, sent, now, &timings);
            self.memory.position = Some((incarnation, revision));
            self.remember_stop(now);
            self.remember_longest_hold(now);
        } else {
            self.rewording.next = now.plus(pace);
            self.reads.pending = None;
            self.reads.due = now;
        }
        true
    }

    /// The store is out of reach: nobody knows what became of an attempt, and the record is read before the next one.
    pub(super) fn doubt_the_word(&mut self) {
        self.rewording.attempt = None;
    }

    /// The word that a claim says: that of a stop which cannot be written into a record, because none is believed.
    pub(super) fn word_of_claim(&mut self) -> Option<Word> {
        self.errand.take()?.stopped
    }

    /// How long it is from `now` until a word is over, or an attempt to write one is due.
    pub(super) fn words_due(&self, now: Time) -> Vec<Duration> {
        let wall = self.wall(now);
        let end = self.stop_word(now).and_then(|word| word.until);
        let mut spans: Vec<Duration> =
            end.map(|end| Duration::from_secs(end).saturating_sub(wall)).into_iter().collect();
        if self.errand.is_some() || self.unknown_token().is_some() {
            spans.push(now.until_waited(self.rewording.next));
        }
        spans.extend(self.errand.as_ref().map(|errand| now.until_waited(errand.until)));
        spans
    }
}
