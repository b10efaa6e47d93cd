//! Notes when the store gave this host no answer: for the journal, which hears once for all services that the store is lost
//! and that it is found, and for the administrator, who has to choose T.
//!
//! A silence is noticed by a call that fails or a connection that is lost. It lasts from the last answer before that to the
//! next answer, so a silence that begins between two calls looks longer by up to R. An error that only says that the store
//! cannot be reached is no answer.
//!
//! A store may answer reads and take no writes, as a server does that is cut off from the others of its cluster. That is no
//! silence, and is noted separately.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::tidings::Tidings;
use crate::dbus::StoreStatus;
use crate::host::clock;
use crate::journal;
use crate::metrics::{Metrics, StoreFacts};
use crate::store::{Attempt, Forgeries, Hints, Link, Snapshot, Store, StoreError, StoreFuture, WriteOutcome};
use crate::types::span::{milliseconds, rounded};
use crate::types::{Key, Revision};

/// Shorter silences are a lost call or a connection that was made anew, which nobody has to know of.
const NOTEWORTHY: Duration = Duration::from_secs(1);

/// After a longer time without a call it is not known when the silence began, so it counts from when it is noticed.
const IDLE: Duration = Duration::from_secs(10);

/// The journal is told that the store answers again once it has done so for this time. A store that comes and goes, as a server
/// does that is cut off from the others of its cluster, is one loss.
const SETTLED: Duration = Duration::from_secs(10);

/// The error that is shown for a call that was given up.
const IN_TIME: &str = "a call was not answered in time";

/// A store whose silences are noted.
pub(super) struct Heard {
    store: Arc<dyn Store>,
    silences: Silences,
}

/// What is known of a store's silences since the start of this daemon. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Silences {
    noted: Arc<Mutex<Noted>>,
    /// Changes when the store answers again after a silence, or was made.
    returns: watch::Sender<()>,
    tidings: Tidings,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct Noted {
    answered: Option<Moment>,
    /// When the first call since the last answer was sent.
    asked: Option<Moment>,
    /// The silence that lasts now.
    present: Option<Silence>,
    /// The loss that the journal has been told of, until it has been told that the store answers again.
    loss: Option<Loss>,
    /// Why there was no answer since the last one. Empty: there was an answer, or the reason is not known.
    error: String,
    /// The error that the last read was answered with, as by a store that does not exist. Empty: it was answered with a value.
    refusal: String,
    /// Whether that error was that the store does not exist.
    is_missing: bool,
    unwritten: Option<Unwritten>,
    longest: Option<(Silence, Duration)>,
    count: u64,
    /// When the last noteworthy silence ended, or the store was made that did not exist.
    returned: Option<Instant>,
}

/// A loss of the store, as the journal is told of it.
#[derive(Debug, Clone, Copy)]
struct Loss {
    /// When it began: when the store last answered before. `None`: it has not answered again yet.
    began: Option<Instant>,
    /// Since when it answers again. `None`: it does not.
    back: Option<Instant>,
    /// How often it was lost since.
    times: u64,
}

impl Loss {
    /// How long it has lasted until `back`, in words.
    fn in_words(&self, back: Instant) -> String {
        let lasted = rounded(back.saturating_duration_since(self.began.unwrap_or(back)));
        match self.times {
            1 => format!("it gave no answer for {lasted}"),
            times => format!("it was lost {times} times within {lasted}"),
        }
    }
}

/// A series of writes that the store did not take, without one between them that it took.
#[derive(Debug, Clone)]
struct Unwritten {
    /// When the first of these writes was sent.
    began: Instant,
    /// When the last of them failed. `took` is how long after it was sent that was, and `error` is why.
    last: Instant,
    took: Duration,
    error: String,
    /// When the first read since then was answered.
    heard: Option<Instant>,
    /// Whether one of these writes was sent after `heard`, so that reads are answered while writes are not.
    is_alone: bool,
    /// Whether the journal has been told.
    told: bool,
}

impl Unwritten {
    /// Whether the store still answers reads and this host still tries to write. A host that has nothing to write any more
    /// does not learn that the store takes writes again.
    fn lasts(&self, answered: Option<Moment>) -> bool {
        let patience = self.took * 2 + NOTEWORTHY * 2;
        let is_heard = answered.is_some_and(|answered| answered.at.elapsed() <= patience);
        self.is_alone && is_heard && self.last.elapsed() <= patience + IDLE && self.began.elapsed() >= NOTEWORTHY
    }
}

#[derive(Debug, Clone, Copy)]
struct Moment {
    at: Instant,
    /// The same by the wall clock, for operators.
    wall: SystemTime,
}

#[derive(Debug, Clone, Copy)]
struct Silence {
    began: Moment,
    /// When the unanswered call was sent, or the connection was lost. Whether the silence is noteworthy counts from here,
    /// because it may have begun only just before.
    noticed: Instant,
}

impl Moment {
    fn now() -> Self {
        Self { at: Instant::now(), wall: SystemTime::now() }
    }
}

impl Silence {
    fn is_noteworthy(&self) -> bool {
        self.noticed.elapsed() >= NOTEWORTHY
    }
}

impl Noted {
    /// The silence that is noticed by a call or a loss of the connection at `moment`.
    fn noticed(&self, moment: Moment) -> Silence {
        let began = self.answered.filter(|answered| moment.at.saturating_duration_since(answered.at) <= IDLE);
        Silence { began: began.unwrap_or(moment), noticed: moment.at }
    }
}

impl Heard {
    /// Spawns a task on the current tokio runtime that follows the store's connection.
    pub(super) fn new(store: Arc<dyn Store>, silences: Silences) -> Self {
        tokio::spawn(silences.clone().heed(store.link()));
        Self { store, silences }
    }
}

impl Store for Heard {
    fn read<'a>(&'a self, key: &'a Key, before: Option<Revision>) -> StoreFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            let call = self.silences.call(false);
            let answer = self.store.read(key, before).await;
            call.ends(match &answer {
                Ok(_) => Ok(None),
                Err(StoreError::Unreachable(reason)) => Err(reason),
                Err(refusal) => Ok(Some(refusal)),
            });
            answer
        })
    }

    fn compare_and_set<'a>(&'a self, key: &'a Key, attempt: &'a Attempt) -> StoreFuture<'a, WriteOutcome> {
        Box::pin(async move {
            let call = self.silences.call(true);
            let outcome = self.store.compare_and_set(key, attempt).await;
            call.ends(if let WriteOutcome::Unknown(reason) = &outcome { Err(reason) } else { Ok(None) });
            outcome
        })
    }

    fn watch(&self) -> StoreFuture<'_, Result<Hints, StoreError>> {
        self.store.watch()
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.store.link()
    }

    fn forgeries(&self) -> Forgeries {
        self.store.forgeries()
    }
}

/// A call under way. If it is dropped before it ends, the caller gave it up.
struct Call<'a> {
    silences: &'a Silences,
    sent: Moment,
    is_write: bool,
    ended: bool,
}

impl Call<'_> {
    /// `Err`: why there was no answer. An error other than that the store cannot be reached is an answer, the refusal.
    fn ends(mut self, answer: Result<Option<&StoreError>, &String>) {
        self.ended = true;
        self.silences.metrics.call(self.is_write, answer.is_ok());
        match answer {
            Ok(_) if self.is_write => {
                self.silences.answered(None);
                self.silences.written();
            }
            Ok(refusal) => self.silences.answered(Some(refusal.map_or(Ok(()), Err))),
            Err(reason) => self.fails(reason),
        }
    }

    fn fails(&self, reason: &str) {
        self.silences.failed(self.sent, reason);
        if self.is_write {
            self.silences.not_written(self.sent, reason);
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.silences.metrics.call(self.is_write, false);
            self.fails(IN_TIME);
        }
    }
}

impl Silences {
    /// Uses `tidings` to tell the journal which services a silence concerns.
    pub(super) fn new(tidings: Tidings, metrics: Metrics) -> Self {
        Self { tidings, metrics, ..Self::default() }
    }

    /// Changes each time that the store answers again after a silence, or was made.
    pub(super) fn returns(&self) -> watch::Receiver<()> {
        self.returns.subscribe()
    }

    /// How long ago the store answered again after a noteworthy silence, or was made. `None`: neither was seen.
    pub(super) fn returned(&self) -> Option<Duration> {
        self.noted().returned.map(|returned| returned.elapsed())
    }

    fn call(&self, is_write: bool) -> Call<'_> {
        let sent = Moment::now();
        self.noted().asked.get_or_insert(sent);
        Call { silences: self, sent, is_write, ended: false }
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the connection until the store is dropped. A connection that is lost and made anew at once, as after a change of
    /// passwords, is no loss of the store.
    async fn heed(self, mut link: watch::Receiver<Link>) {
        // A connection that is made for the first time was not lost.
        let mut was_up = false;
        loop {
            let state = link.borrow_and_update().clone();
            self.connected(&state);
            was_up |= state == Link::Up;
            if let Link::Down(reason) = state
                && was_up
            {
                let noticed = self.noted().present.map_or_else(Instant::now, |silence| silence.noticed);
                match timeout_at(noticed + NOTEWORTHY, link.changed()).await {
                    Ok(Ok(())) => continue,
                    Ok(Err(_)) => return,
                    Err(_) => self.lost(&mut self.noted(), &reason),
                }
            }
            if link.changed().await.is_err() {
                return;
            }
        }
    }

    /// Tells the journal that the store is lost, once in each silence.
    fn lost(&self, noted: &mut Noted, reason: &str) {
        match &mut noted.loss {
            Some(Loss { back: None, .. }) => {}
            // It has not answered for long enough to count as found.
            Some(loss) => {
                (loss.back, loss.times) = (None, loss.times + 1);
                self.tidings.stand(journal::Alarm::StoreLost, reason);
            }
            None => {
                noted.loss = Some(Loss { began: None, back: None, times: 1 });
                self.note(noted);
                self.tell(journal::Alarm::StoreLost, reason);
            }
        }
    }

    /// Tells the journal that the store answers again, once it has done so for a while since `back`.
    async fn settle(self, back: Instant) {
        loop {
            sleep(SETTLED).await;
            let mut noted = self.noted();
            let Some(loss) = noted.loss.filter(|loss| loss.back == Some(back)) else { return };
            if noted.present.is_none() {
                noted.loss = None;
                self.note(&noted);
                self.tell(journal::Alarm::StoreFound, &loss.in_words(back));
                return;
            }
        }
    }

    /// Notes in `tidings` whether the store fails, so that services do not report what follows from that.
    fn note(&self, noted: &Noted) {
        self.tidings.note_loss(noted.loss.is_some());
        self.tidings
            .note_store(noted.loss.is_some() || noted.unwritten.as_ref().is_some_and(|unwritten| unwritten.told));
    }

    fn tell(&self, alarm: journal::Alarm, reason: &str) {
        let concerned = self.tidings.concerned(clock::now());
        journal::alarm(alarm, &journal::Subject::default(), &format!("{reason}; {concerned}"));
        if alarm == journal::Alarm::StoreLost {
            // How many services run here, and for how long still, is so for a moment only, and the alarm stands longer.
            self.tidings.stand(alarm, reason);
        }
    }

    fn connected(&self, link: &Link) {
        let mut noted = self.noted();
        if let Link::Down(reason) = link {
            noted.error.clone_from(reason);
            let silence = noted.noticed(noted.asked.unwrap_or_else(Moment::now));
            noted.present.get_or_insert(silence);
        } else if noted.asked.is_none() {
            // If no call was sent since the last answer, the connection itself counts as an answer.
            drop(noted);
            self.answered(None);
        }
    }

    /// `read`: what a read was answered with, a value or an error. `None`: it was no read that was answered.
    fn answered(&self, read: Option<Result<(), &StoreError>>) {
        let mut noted = self.noted();
        let mut is_made = false;
        if let Some(read) = read {
            let is_missing = matches!(read, Err(StoreError::Missing(_)));
            let was_missing = std::mem::replace(&mut noted.is_missing, is_missing);
            is_made = was_missing && !is_missing;
            match read {
                Err(error) if is_missing && !was_missing => {
                    tracing::warn!("{error}; no service starts here before that");
                }
                _ if is_made => tracing::info!("the store exists now"),
                _ => {}
            }
            noted.refusal = read.err().map_or_else(String::new, StoreError::to_string);
        }
        let now = Moment::now();
        noted.answered = Some(now);
        noted.asked = None;
        noted.error.clear();
        if let Some(unwritten) = &mut noted.unwritten {
            unwritten.heard.get_or_insert(now.at);
        }
        let silence = noted.present.take();
        if silence.is_some() || is_made {
            self.returns.send_replace(());
        }
        let noteworthy = silence.filter(Silence::is_noteworthy).map(|silence| (silence, now.at - silence.began.at));
        if let Some((silence, span)) = noteworthy {
            noted.count += 1;
            if noted.longest.is_none_or(|(_, longest)| span > longest) {
                noted.longest = Some((silence, span));
            }
        }
        if noteworthy.is_some() || is_made {
            noted.returned = Some(now.at);
        }
        if let Some(loss) = &mut noted.loss {
            if loss.back.is_none() || silence.is_some() {
                loss.began.get_or_insert(silence.map_or(now.at, |silence| silence.began.at));
                loss.back = Some(now.at);
                // The entry in the journal that it answers again tells that this is over.
                self.tidings.alarms().end(journal::Alarm::StoreLost);
                tokio::spawn(self.clone().settle(now.at));
            }
        } else if let Some((_, span)) = noteworthy {
            tracing::info!("the store gave no answer for {}, and answers again", rounded(span));
        }
    }

    fn written(&self) {
        let mut noted = self.noted();
        let Some(unwritten) = noted.unwritten.take().filter(|unwritten| unwritten.told) else { return };
        self.note(&noted);
        tracing::info!(
            "the store takes the writes of this host again: the first that it did not take was sent {} ago, and the last failed {} ago",
            rounded(unwritten.began.elapsed()),
            rounded(unwritten.last.elapsed())
        );
    }

    fn not_written(&self, sent: Moment, reason: &str) {
        let mut noted = self.noted();
        let answered = noted.answered;
        let now = Instant::now();
        let unwritten = noted.unwritten.get_or_insert_with(|| Unwritten {
            began: sent.at,
            last: now,
            took: Duration::ZERO,
            error: String::new(),
            heard: None,
            is_alone: false,
            told: false,
        });
        // If nothing was written for a while, earlier failures say nothing of the present.
        if sent.at.saturating_duration_since(unwritten.last) > unwritten.took * 2 + IDLE {
            (unwritten.began, unwritten.heard) = (sent.at, None);
            (unwritten.is_alone, unwritten.told) = (false, false);
        }
        unwritten.is_alone |= unwritten.heard.is_some_and(|heard| heard <= sent.at);
        (unwritten.last, unwritten.took) = (now, now.saturating_duration_since(sent.at));
        if reason != IN_TIME || unwritten.error.is_empty() {
            reason.clone_into(&mut unwritten.error);
        }
        if unwritten.lasts(answered) && !std::mem::replace(&mut unwritten.told, true) {
            self.tidings.note_store(true);
            tracing::warn!(
                "the store answers reads and has taken no write for {}: {reason}; {}",
                rounded(unwritten.began.elapsed()),
                self.tidings.concerned(clock::now())
            );
        }
    }

    fn failed(&self, sent: Moment, reason: &str) {
        let mut noted = self.noted();
        // Another call was answered after this one was sent.
        if noted.answered.is_some_and(|answered| answered.at >= sent.at) {
            return;
        }
        if reason != IN_TIME || noted.error.is_empty() {
            reason.clone_into(&mut noted.error);
        }
        let silence = noted.noticed(noted.asked.unwrap_or(sent));
        let first = *noted.present.get_or_insert(silence);
        if first.is_noteworthy() {
            let lasts = first.began.at.elapsed();
            self.lost(&mut noted, &format!("it has given no answer for {lasts:.1?}: {reason}"));
        }
    }

    /// The same as [`status`](Self::status), as far as it can be drawn as a line.
    pub(super) fn facts(&self) -> StoreFacts {
        let StoreStatus { silent_ms, unwritten_ms, silences, .. } = self.status(String::new());
        let [silent, unwritten] = [silent_ms, unwritten_ms].map(Duration::from_millis);
        StoreFacts { silent, unwritten, silences }
    }

    /// The status of the store for D-Bus clients. `store` is its address.
    pub(super) fn status(&self, store: String) -> StoreStatus {
        let noted = self.noted();
        // A late call may still be answered, and its silence is counted only if it is not.
        let late = || noted.asked.map(|asked| noted.noticed(asked)).filter(Silence::is_noteworthy);
        let lasts = |silence: Silence| silence.began.at.elapsed();
        // A store that answers with an error takes no writes because of that.
        let is_read = noted.refusal.is_empty();
        let unwritten = noted.unwritten.as_ref().filter(|unwritten| is_read && unwritten.lasts(noted.answered));
        let silence = noted.present.or_else(late).filter(|_| unwritten.is_none());
        let silent = silence.map_or(0, |silence| milliseconds(lasts(silence)).max(1));
        let error = unwritten.map_or(&noted.error, |unwritten| &unwritten.error);
        let present = noted.present.filter(Silence::is_noteworthy).map(|silence| (silence, lasts(silence)));
        let longest = noted.longest.into_iter().chain(present).max_by_key(|(_, span)| *span);
        let began = longest.and_then(|(silence, _)| silence.began.wall.duration_since(UNIX_EPOCH).ok());
        StoreStatus {
            store,
            silent_ms: silent,
            unwritten_ms: unwritten.map_or(0, |unwritten| milliseconds(unwritten.began.elapsed())),
            error: if silent == 0 && unwritten.is_none() { noted.refusal.clone() } else { error.clone() },
            silences: noted.count + u64::from(present.is_some()),
            longest_ms: longest.map_or(0, |(_, span)| milliseconds(span)),
            longest_began: began.map_or(0, |began| began.as_secs()),
            returned_ms: noted.returned.map(|returned| milliseconds(returned.elapsed())),
        }
    }
}

#[cfg(test)]
mod tests;
