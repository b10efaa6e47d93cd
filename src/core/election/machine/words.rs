//! What operators say of a lock: that the service is stopped everywhere, or started again (words, H7), and that its holder keeps the
//! lease for a long time (pause, H8).

use std::time::Duration;

use serde::Serialize;

use super::Election;
use super::phase::Phase;
use crate::election::event::{Action, Content, Moment, WriteRequest, WriteResult};
use crate::election::record::{Details, OperatorNote, Record, Word};
use crate::election::stop_cause::ReleaseCause;
use crate::types::{Time, WriteId};

/// For how long a host tries to write a word that was said on it. After so long the operator has given up or said it elsewhere, and a
/// stop that came later would surprise him.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A word that was said on this host while it does not hold the lock, until the store has it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Errand {
    /// What the record is to say of a stop; `None`: nothing.
    stopped: Option<Word>,
    attempt: Option<Attempt>,
    /// It is not tried before this.
    next: Time,
    /// It is given up then.
    until: Time,
}

/// An attempt to write it that was not answered yet.
#[derive(Debug, Clone, Serialize)]
struct Attempt {
    write: WriteId,
    sent: Time,
    request: WriteRequest,
}

impl Errand {
    fn new(stopped: Option<Word>, now: Time) -> Self {
        Self { stopped, attempt: None, next: now, until: now.plus(PATIENCE) }
    }
}

impl Election {
    /// The word that keeps the service stopped everywhere, as far as this host knows, if it is not over.
    #[must_use]
    pub fn stop_word(&self, now: Time) -> Option<&Word> {
        self.note()?.stopped.as_ref().filter(|word| word.holds(self.wall(now)))
    }

    /// The word for a long lease of the present holder, as far as this host knows, if it is not over.
    #[must_use]
    pub fn pause_word(&self, now: Time) -> Option<&Word> {
        self.note()?.paused.as_ref().filter(|word| word.holds(self.wall(now)))
    }

    /// Whether the lock has a record into which a word can be written.
    #[must_use]
    pub fn has_believed_record(&self) -> bool {
        self.recorded_note().is_some()
    }

    /// The word of a stop that was said on this host and is not in the lock's record yet; `Some(None)`: one that is to be taken back
    /// there.
    #[must_use]
    pub fn unsaid(&self) -> Option<Option<&Word>> {
        if let Some(errand) = &self.errand {
            return Some(errand.stopped.as_ref());
        }
        let word = self.tenure()?.note.stopped.as_ref()?;
        let is_said = self.recorded_note().is_some_and(|note| note.stopped.as_ref() == Some(word));
        (!is_said).then_some(Some(word))
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
        let errand = self.errand.as_ref()?;
        let has_record = self.recorded_note().is_some();
        (errand.attempt.is_some() || errand.stopped.is_some() && has_record)
            .then(|| "an operator's word is being written to the lock".to_owned())
    }

    /// A host that has a tenure says the word with its next write; another one writes it into the record of the lock.
    pub(super) fn stop_everywhere(&mut self, now: Time, word: Word) {
        if let Some(tenure) = self.tenure_mut() {
            tenure.say(now, |note| note.stopped = Some(word));
        } else {
            self.errand = Some(Errand::new(Some(word), now));
            self.reads.due = now;
        }
    }

    pub(super) fn start_again(&mut self, now: Time) {
        self.back_off = super::BackOff::default();
        if let Some(tenure) = self.tenure_mut() {
            tenure.say(now, |note| note.stopped = None);
            self.errand = None;
        } else {
            let is_stopped = self.stop_word(now).is_some();
            self.errand = is_stopped.then(|| Errand::new(None, now));
            self.reads.due = now;
        }
    }

    /// Pause (H8), or its end: only a host that may run the unit has a lease to be prolonged.
    pub(super) fn pause(&mut self, now: Time, word: Option<Word>) {
        if let Phase::Starting(tenure, _) | Phase::Active(tenure, _) = &mut self.phase {
            tenure.say(now, |note| note.paused = word);
        }
    }

    /// Words (H7): a holder lets the lock go once it is said that the service is stopped. A claim, before a start, is given up when
    /// the store has the word.
    pub(super) fn heed_words(&mut self, at: &Moment) {
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
            self.errand = Some(Errand::new(word, now));
        }
    }

    /// Words (H7): writes a word into the record of the lock, which says the same as before in all else.
    ///
    /// A verified `proven` (verified release, K4) is written anew, as one that replaced the former: this host would be entitled at once, so that it
    /// may say what the former says. Any other record keeps its instance and its write, so that its holder goes on from there,
    /// and everybody else counts its age anew. Where no record is believed, this host has to take the lock first.
    pub(super) fn run_errand(&mut self, at: &Moment) {
        let Some(errand) = &self.errand else { return };
        let is_over = errand.stopped.as_ref().is_some_and(|word| !word.holds(at.wall));
        if is_over || at.now.has_waited_until(errand.until) {
            self.errand = None;
            return;
        }
        let said = self.recorded_note().map(|note| note.in_force(at.wall).stopped);
        if errand.attempt.is_none()
            && (said.as_ref() == Some(&errand.stopped) || said.is_none() && errand.stopped.is_none())
        {
            self.errand = None;
            return;
        }
        let timings = self.settings.timings;
        let may_write = self.connected && errand.attempt.is_none() && at.now.has_waited_until(errand.next);
        let is_being_asked = self.lock.is_being_verified(at.now, &timings);
        if !may_write || is_being_asked || !self.lock.is_up_to_date(at.now, &timings) {
            return;
        }
        let Some(seen) = self.lock.seen() else { return };
        let Content::Record(Record { holder, details: Some(details), .. }) = &seen.content else { return };
        let write = WriteId(!at.random);
        let mut details: Details = details.clone();
        details.note.stopped.clone_from(&errand.stopped);
        if self.lock.is_verified_proven() {
            (details.write, details.prev) = (write, Some((seen.revision, Some(details.instance))));
        }
        let record = Record::new(holder.clone(), Some(details));
        let request = WriteRequest { base: seen.revision, incarnation: seen.incarnation.clone(), write, record };
        if let Some(errand) = &mut self.errand {
            errand.attempt = Some(Attempt { write, sent: at.now, request: request.clone() });
        }
        self.actions.push(Action::Write(Box::new(request)));
    }

    /// The answer to an attempt to write a word. Returns whether `write` was one.
    pub(super) fn word_written(&mut self, now: Time, write: WriteId, result: WriteResult) -> bool {
        let pace = self.pace();
        let timings = self.settings.timings;
        let Some(errand) = &mut self.errand else { return false };
        let Some(Attempt { sent, request, .. }) = errand.attempt.take_if(|attempt| attempt.write == write) else {
            return false;
        };
        if let WriteResult::Won(revision) = result {
            let WriteRequest { incarnation, record, .. } = request;
            self.lock.wrote(incarnation.clone(), revision, record, sent, now, &timings);
            self.memory.position = Some((incarnation, revision));
            self.remember_longest_hold(now);
        } else {
            errand.next = now.plus(pace);
            self.reads.pending = None;
            self.reads.due = now;
        }
        true
    }

    /// The store is out of reach: nobody knows what became of an attempt, and the record is read before the next one.
    pub(super) fn doubt_the_word(&mut self) {
        if let Some(errand) = &mut self.errand {
            errand.attempt = None;
        }
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
        if let Some(errand) = &self.errand {
            spans.extend([errand.next, errand.until].map(|at| now.until_waited(at)));
        }
        spans
    }
}
