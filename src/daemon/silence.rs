//! When the store gave this host no answer: for the journal, and for whoever has to choose T.
//!
//! A silence is noticed by a call that fails or a connection that is lost. It began with the last answer before, so that one
//! which begins between two calls looks longer by up to R, and it ends with the next. An error that only says that the
//! store cannot be reached is no answer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::time::Instant;

use crate::dbus::StoreStatus;
use crate::store::{Attempt, Hints, Link, Snapshot, Store, StoreError, StoreFuture, WriteOutcome};
use crate::types::{Key, Revision};

/// Shorter ones are a lost call or a connection that was made anew, which nobody has to know of.
const NOTEWORTHY: Duration = Duration::from_secs(1);

/// After a longer time without a call nobody knows when the silence began, and it begins when it is noticed.
const IDLE: Duration = Duration::from_secs(10);

/// A store whose silences are noted.
pub(super) struct Heard {
    store: Arc<dyn Store>,
    silences: Silences,
}

/// What is known of a store's silences since the start of this daemon. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Silences(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    answered: Option<Moment>,
    /// The first call since the last answer.
    asked: Option<Moment>,
    /// The one that lasts.
    present: Option<Silence>,
    /// It has been told.
    told: bool,
    longest: Option<(Silence, Duration)>,
    count: u64,
}

#[derive(Debug, Clone, Copy)]
struct Moment {
    at: Instant,
    /// On the wall clock, for people.
    wall: SystemTime,
}

#[derive(Debug, Clone, Copy)]
struct Silence {
    began: Moment,
    /// What did not answer was asked then, or lost. From here on it is counted whether the silence is noteworthy, because it may
    /// have begun only just before.
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
    /// The silence that is noticed by what was at `moment`.
    fn noticed(&self, moment: Moment) -> Silence {
        let began = self.answered.filter(|answered| moment.at.saturating_duration_since(answered.at) <= IDLE);
        Silence { began: began.unwrap_or(moment), noticed: moment.at }
    }
}

impl Heard {
    /// Runs on the current tokio runtime.
    pub(super) fn new(store: Arc<dyn Store>, silences: Silences) -> Self {
        tokio::spawn(silences.clone().heed(store.link()));
        Self { store, silences }
    }
}

impl Store for Heard {
    fn read<'a>(&'a self, key: &'a Key, before: Option<Revision>) -> StoreFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            let call = self.silences.call(self.store.link());
            let answer = self.store.read(key, before).await;
            call.ends(answer.as_ref().err().and_then(unreachable));
            answer
        })
    }

    fn compare_and_set<'a>(&'a self, key: &'a Key, attempt: &'a Attempt) -> StoreFuture<'a, WriteOutcome> {
        Box::pin(async move {
            let call = self.silences.call(self.store.link());
            let outcome = self.store.compare_and_set(key, attempt).await;
            call.ends(if let WriteOutcome::Unknown(reason) = &outcome { Some(reason) } else { None });
            outcome
        })
    }

    fn watch(&self) -> StoreFuture<'_, Result<Hints, StoreError>> {
        self.store.watch()
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.store.link()
    }
}

/// The other errors are somebody's answer.
fn unreachable(error: &StoreError) -> Option<&String> {
    if let StoreError::Unreachable(reason) = error { Some(reason) } else { None }
}

/// A call under way. One that is dropped was given up.
struct Call<'a> {
    silences: &'a Silences,
    link: watch::Receiver<Link>,
    sent: Moment,
    ended: bool,
}

impl Call<'_> {
    fn ends(mut self, failure: Option<&String>) {
        self.ended = true;
        match failure {
            None => self.silences.answered(),
            Some(reason) => self.silences.failed(self.sent, reason, &self.link),
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.silences.failed(self.sent, "a call was not answered in time", &self.link);
        }
    }
}

impl Silences {
    fn call(&self, link: watch::Receiver<Link>) -> Call<'_> {
        let sent = Moment::now();
        self.noted().asked.get_or_insert(sent);
        Call { silences: self, link, sent, ended: false }
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the connection until its store is gone.
    async fn heed(self, mut link: watch::Receiver<Link>) {
        loop {
            let is_up = *link.borrow_and_update() == Link::Up;
            self.connected(is_up);
            if link.changed().await.is_err() {
                return;
            }
        }
    }

    fn connected(&self, is_up: bool) {
        let mut noted = self.noted();
        if !is_up {
            let silence = noted.noticed(noted.asked.unwrap_or_else(Moment::now));
            noted.present.get_or_insert(silence);
        } else if noted.asked.is_none() {
            // Where nobody asks, the connection is all the answer there is.
            drop(noted);
            self.answered();
        }
    }

    fn answered(&self) {
        let mut noted = self.noted();
        let now = Moment::now();
        noted.answered = Some(now);
        noted.asked = None;
        noted.told = false;
        let Some(silence) = noted.present.take().filter(Silence::is_noteworthy) else { return };
        let span = now.at - silence.began.at;
        noted.count += 1;
        if noted.longest.is_none_or(|(_, longest)| span > longest) {
            noted.longest = Some((silence, span));
        }
        tracing::info!("the store gave no answer for {span:.1?}, and answers again");
    }

    /// That the connection is lost is told by whoever has it.
    fn failed(&self, sent: Moment, reason: &str, link: &watch::Receiver<Link>) {
        let mut noted = self.noted();
        // Somebody else was answered meanwhile.
        if noted.answered.is_some_and(|answered| answered.at >= sent.at) {
            return;
        }
        let silence = noted.noticed(noted.asked.unwrap_or(sent));
        let first = *noted.present.get_or_insert(silence);
        if first.is_noteworthy() && !noted.told && *link.borrow() == Link::Up {
            noted.told = true;
            tracing::warn!("the store has given no answer for {:.1?}: {reason}", first.began.at.elapsed());
        }
    }

    /// For clients. `store` is its address.
    pub(super) fn status(&self, store: String) -> StoreStatus {
        let noted = self.noted();
        let milliseconds = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        // A call that is late may still be answered, and is counted only if it is not.
        let late = || noted.asked.map(|asked| noted.noticed(asked)).filter(Silence::is_noteworthy);
        let lasts = |silence: Silence| silence.began.at.elapsed();
        let silent = noted.present.or_else(late).map_or(0, |silence| milliseconds(lasts(silence)).max(1));
        let present = noted.present.filter(Silence::is_noteworthy).map(|silence| (silence, lasts(silence)));
        let longest = noted.longest.into_iter().chain(present).max_by_key(|(_, span)| *span);
        let began = longest.and_then(|(silence, _)| silence.began.wall.duration_since(UNIX_EPOCH).ok());
        StoreStatus {
            store,
            silent_ms: silent,
            silences: noted.count + u64::from(present.is_some()),
            longest_ms: longest.map_or(0, |(_, span)| milliseconds(span)),
            longest_began: began.map_or(0, |began| began.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStore;

    fn shown(silences: &Silences) -> (u64, u64, u64) {
        let status = silences.status("a store".to_owned());
        (status.silent_ms, status.silences, status.longest_ms)
    }

    async fn pass(milliseconds: u64) {
        tokio::time::advance(Duration::from_millis(milliseconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_silence_lasts_from_the_last_answer_to_the_next() {
        let silences = Silences::default();
        let (link, _) = watch::channel(Link::Up);
        let call = || silences.call(link.subscribe());
        let (first, early) = (call(), call());
        first.ends(None);
        pass(2500).await;
        // It was sent before the store answered somebody else.
        early.ends(Some(&"late".to_owned()));
        assert_eq!(shown(&silences), (0, 0, 0));
        drop(call());
        pass(3000).await;
        call().ends(Some(&"no leader".to_owned()));
        assert_eq!(shown(&silences), (5500, 1, 5500));
        pass(4000).await;
        call().ends(None);
        assert_eq!(shown(&silences), (0, 1, 9500));
        // A shorter one is counted, and one call that failed for less than a second is not.
        for (span, count) in [(2000, 2), (999, 2), (1000, 3)] {
            pass(1000).await;
            drop(call());
            pass(span).await;
            call().ends(None);
            assert_eq!(shown(&silences), (0, count, 9500), "{span}");
        }
        // Where nobody asked for long, nobody knows since when nobody would have been answered.
        pass(60_000).await;
        drop(call());
        pass(2000).await;
        assert_eq!(shown(&silences), (2000, 4, 9500));
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_answers_while_no_call_is_late() {
        let silences = Silences::default();
        let (link, _) = watch::channel(Link::Up);
        silences.call(link.subscribe()).ends(None);
        pass(2000).await;
        let late = silences.call(link.subscribe());
        pass(999).await;
        assert_eq!(shown(&silences), (0, 0, 0));
        pass(1).await;
        assert_eq!(shown(&silences), (3000, 0, 0));
        late.ends(None);
        assert_eq!(shown(&silences), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_connection_is_a_silence_whether_or_not_somebody_asks() {
        let store = Arc::new(MemoryStore::new(Duration::from_secs(1)));
        let silences = Silences::default();
        let heard = Heard::new(Arc::clone(&store) as Arc<dyn Store>, silences.clone());
        let key = Key::new("db").expect("a key");
        tokio::task::yield_now().await;
        heard.read(&key, None).await.expect("it is there");
        pass(1000).await;
        store.go_down("it is away");
        tokio::task::yield_now().await;
        assert_eq!(shown(&silences), (1000, 0, 0));
        pass(2000).await;
        assert_eq!(shown(&silences), (3000, 1, 3000));
        assert!(heard.read(&key, None).await.is_err());
        // That it is connected again is no answer to those who ask.
        store.go_up();
        pass(500).await;
        assert_eq!(shown(&silences), (3500, 1, 3500));
        heard.read(&key, None).await.expect("it is there");
        assert_eq!(shown(&silences), (0, 1, 3500));
        // Where nobody asks, it is.
        store.go_down("it is away");
        tokio::task::yield_now().await;
        pass(5000).await;
        store.go_up();
        tokio::task::yield_now().await;
        assert_eq!(shown(&silences), (0, 2, 5000));
    }

    #[test]
    fn what_the_store_refuses_is_an_answer() {
        assert_eq!(unreachable(&StoreError::Missing("gone".to_owned())), None);
        assert!(unreachable(&StoreError::Unreachable("away".to_owned())).is_some());
    }
}
