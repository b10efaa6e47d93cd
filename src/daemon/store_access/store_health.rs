//! How the store answers this host: for the journal, which is told once for all services that the store is lost and that it is found,
//! and for the administrator, who has to choose T.
//!
//! A silence is noticed by a call that fails or a connection that is lost. It lasts from the last answer before that to the
//! next answer, so a silence that begins between two calls looks longer by up to R. An error that only says that the store
//! cannot be reached is no answer.
//!
//! A store may answer reads and take no writes, as a server does that is cut off from the others of its cluster. That is no
//! silence, and is noted separately.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use crate::{
    daemon::local::alarms::Alarms,
    facts::{
        self, At,
        alarm::{AlarmKind, Problem},
    },
    store::{
        Attempt, Link, Snapshot, Store, StoreError, WriteOutcome,
        layered::{Layer, Layered},
    },
    task::lock,
    types::{Key, Revision},
};

/// Shorter silences are a lost call or a connection that was made anew, which nobody has to know of.
const NOTEWORTHY: Duration = Duration::from_secs(1);
/// After a longer time without a call it is not known when the silence began, so it counts from when it is noticed.
const IDLE: Duration = Duration::from_secs(10);
/// The store counts as found once it has answered for this time: one that comes and goes, as a server does that is cut off from the
/// others of its cluster, is lost once.
const SETTLED: Duration = Duration::from_secs(10);
/// The error that is shown for a call that was given up.
const IN_TIME: &str = "a call was not answered in time";

/// What is known of a store since the start of this daemon. Clones share it.
#[derive(Clone, Default)]
pub struct StoreHealth {
    state: Arc<Mutex<HealthState>>,
    /// When the store answered again after its last silence, or was made.
    returns: watch::Sender<Option<Instant>>,
    alarms: Alarms,
    address: String,
}

#[derive(Default)]
struct HealthState {
    answered: Option<Instant>,
    /// The present silence.
    silence: Option<Silence>,
    /// The error with which it answers reads, as one does that does not exist.
    refusal: Option<StoreError>,
    /// The writes that it does not take.
    untaken: Option<Untaken>,
    /// Since when it answers again, without a silence since; it is not known yet whether it goes on doing so.
    back: Option<Instant>,
    /// When the last noteworthy silence ended, or the store was made that did not exist.
    returned: Option<Instant>,
}

struct Silence {
    began: Instant,
    /// When the unanswered call was sent, or the connection was lost. Whether the silence is noteworthy counts from here,
    /// because it may have begun only just before.
    noticed: Instant,
    error: String,
    /// Whether a call has failed in it: a new connection alone is no answer then.
    is_asked: bool,
}

/// A series of writes that the store did not take, without one between them that it took.
struct Untaken {
    /// When the first of these writes was sent.
    began: Instant,
    /// When the last of them failed, how long after it was sent, and why.
    last: Instant,
    took: Duration,
    error: String,
    /// Whether one of them was sent after the store had answered something else, so that it answers reads and takes no writes.
    is_alone: bool,
}

impl Silence {
    fn is_noteworthy(&self) -> bool {
        self.noticed.elapsed() >= NOTEWORTHY
    }
}

/// Keeps the latest error. That a call was given up says less than any other.
fn note(known: &mut String, error: &str) {
    if known.is_empty() || error != IN_TIME {
        error.clone_into(known);
    }
}

impl HealthState {
    /// Notes a silence that a call or a loss of the connection at `noticed` shows.
    fn is_silent(&mut self, noticed: Instant, error: &str) -> &mut Silence {
        let known = |answered: &Instant| noticed.saturating_duration_since(*answered) <= IDLE;
        let began = self.answered.filter(known).unwrap_or(noticed);
        (self.refusal, self.back) = (None, None);
        let silence = self.silence.get_or_insert_with(|| Silence {
            began,
            noticed,
            error: String::new(),
            is_asked: false,
        });
        note(&mut silence.error, error);
        silence
    }

    fn is_missing(&self) -> bool {
        matches!(self.refusal, Some(StoreError::Missing(_)))
    }

    /// The writes that it does not take although it answers. One that answers with an error takes none because of that.
    fn untaken(&self) -> Option<&Untaken> {
        let untaken = self.untaken.as_ref().filter(|untaken| untaken.is_alone)?;
        let patience = untaken.took * 2 + NOTEWORTHY * 2;
        let answers = self.answered.is_some_and(|at| at.elapsed() <= patience);
        (answers && self.refusal.is_none()).then_some(untaken)
    }

    fn is_not_taken(&mut self, call: &MonitoredCall<'_>, error: &str) {
        let untaken = self.untaken.get_or_insert_with(|| Untaken {
            began: call.sent,
            last: call.sent,
            took: Duration::ZERO,
            error: String::new(),
            is_alone: false,
        });
        untaken.is_alone |= call.was_answered > Some(untaken.began);
        (untaken.last, untaken.took) = (Instant::now(), call.sent.elapsed());
        note(&mut untaken.error, error);
    }
}

impl StoreHealth {
    /// The same store, whose health is followed, as its connection is by a task on the current tokio runtime.
    pub fn of(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        tokio::spawn(self.clone().follow(store.link()));
        Arc::new(Layered::new(store, self.clone()))
    }
}

impl Layer for StoreHealth {
    async fn read(
        &self,
        store: &dyn Store,
        key: &Key,
        before: Option<Revision>,
    ) -> Result<Snapshot, StoreError> {
        let call = self.call(false);
        let answer = store.read(key, before).await;
        call.ends(match &answer {
            Ok(_) => Ok(None),
            Err(StoreError::Unreachable(reason)) => Err(reason),
            Err(refusal) => Ok(Some(refusal)),
        });
        answer
    }

    async fn compare_and_set(
        &self,
        store: &dyn Store,
        key: &Key,
        attempt: &Attempt,
    ) -> WriteOutcome {
        let call = self.call(true);
        let outcome = store.compare_and_set(key, attempt).await;
        match &outcome {
            WriteOutcome::Unknown(reason) => call.ends(Err(&reason.to_string())),
            WriteOutcome::Won(_) | WriteOutcome::Conflict => call.ends(Ok(None)),
        }
        outcome
    }
}

/// A call under way. If it is dropped before it ends, the caller gave it up.
struct MonitoredCall<'a> {
    health: &'a StoreHealth,
    sent: Instant,
    /// When the store had answered last by then.
    was_answered: Option<Instant>,
    is_write: bool,
    ended: bool,
}

impl MonitoredCall<'_> {
    /// `Err`: why there was no answer. An error other than that the store cannot be reached is an answer, the refusal.
    fn ends(mut self, answer: Result<Option<&StoreError>, &str>) {
        self.ended = true;
        match answer {
            Ok(refusal) => self.health.answered(refusal.cloned()),
            Err(reason) => return self.fails(reason),
        }
        if self.is_write {
            self.health.state().untaken = None;
            self.health.alarms.clear(AlarmKind::StoreReadOnly);
        }
    }

    fn fails(&self, reason: &str) {
        let mut state = self.health.state();
        // Unless another call was answered after this one was sent.
        if state.answered.is_none_or(|answered| answered < self.sent) {
            let silence = state.is_silent(self.sent, reason);
            silence.is_asked = true;
            if silence.is_noteworthy() {
                self.health.lose(&mut state, reason);
            }
        }
        if self.is_write {
            state.is_not_taken(self, reason);
            let untaken = state.untaken().map(|untaken| untaken.error.as_str().into());
            drop(state);
            if let Some(error) = untaken {
                self.health.alarms.raise(Problem::StoreReadOnly { error });
            }
        }
    }
}

impl Drop for MonitoredCall<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.fails(IN_TIME);
        }
    }
}

impl StoreHealth {
    /// The health of the store that has this address.
    pub fn new(address: String, alarms: Alarms) -> Self {
        Self {
            alarms,
            address,
            ..Self::default()
        }
    }

    /// When the store answered again after its last silence, or was made. It changes each time.
    pub fn returns(&self) -> watch::Receiver<Option<Instant>> {
        self.returns.subscribe()
    }

    fn call(&self, is_write: bool) -> MonitoredCall<'_> {
        MonitoredCall {
            health: self,
            sent: Instant::now(),
            was_answered: self.state().answered,
            is_write,
            ended: false,
        }
    }

    fn state(&self) -> MutexGuard<'_, HealthState> {
        lock(&self.state)
    }

    /// Follows the connection until the store is dropped. A connection that is lost and made anew at once, as after a change of
    /// passwords, is no loss of the store, and one that is made for the first time was not lost.
    async fn follow(self, mut link: watch::Receiver<Link>) {
        let mut was_up = false;
        loop {
            let now = link.borrow_and_update().clone();
            self.connected(&now);
            was_up |= now.is_up();
            if let Some(reason) = now.down
                && was_up
            {
                match timeout(NOTEWORTHY, link.changed()).await {
                    Ok(Ok(())) => continue,
                    Ok(Err(_)) => return,
                    Err(_) => self.lose(&mut self.state(), &reason),
                }
            }
            if link.changed().await.is_err() {
                return;
            }
        }
    }

    fn connected(&self, link: &Link) {
        let mut state = self.state();
        if let Some(reason) = &link.down {
            state.is_silent(Instant::now(), reason);
        } else if state
            .silence
            .as_ref()
            .is_none_or(|silence| !silence.is_asked)
        {
            // Where nobody asks, the connection itself counts as an answer.
            let refusal = state.refusal.clone();
            drop(state);
            self.answered(refusal);
        }
    }

    fn lose(&self, state: &mut HealthState, error: &str) {
        state.back = None;
        if !self.alarms.stands(AlarmKind::StoreLost) {
            let error = error.into();
            self.alarms.raise(Problem::StoreLost { error });
        }
    }

    /// Counts the store as found, once it has answered for a while. It is called from time to time.
    pub fn settle(&self) {
        let back = self.state().back;
        if back.is_some_and(|back| back.elapsed() >= SETTLED) {
            self.alarms.clear(AlarmKind::StoreLost);
        }
    }

    /// `refusal`: the error that is the answer.
    fn answered(&self, refusal: Option<StoreError>) {
        let (mut state, now) = (self.state(), Instant::now());
        state.answered = Some(now);
        // A host that has nothing to write any more does not learn that the store takes writes again.
        state
            .untaken
            .take_if(|former| former.last.elapsed() > former.took * 2 + IDLE);
        let was_missing = state.is_missing();
        state.refusal = refusal;
        let is_made = was_missing && !state.is_missing();
        if let (false, Some(error @ StoreError::Missing(_))) = (was_missing, &state.refusal) {
            tracing::warn!("{error}; no service starts here before that");
        }
        let silence = state.silence.take();
        if silence.is_some() || is_made {
            self.returns.send_replace(Some(now));
        }
        if silence.is_some_and(|silence| silence.is_noteworthy()) || is_made {
            state.returned = Some(now);
        }
        state.back.get_or_insert(now);
    }

    /// The state of the store while the wall clock shows `wall`.
    pub fn state_at(&self, wall: Duration) -> facts::StoreState {
        let state = self.state();
        let ago = |since: Instant| At::new(wall).minus(since.elapsed());
        // What has begun this very moment has lasted for a millisecond.
        let shortest = At::new(wall).minus(Duration::from_millis(1));
        let untaken = state.untaken();
        let silent = state.silence.as_ref().filter(|_| untaken.is_none());
        let error = match (untaken, &state.silence, &state.refusal) {
            (Some(untaken), ..) => Some(untaken.error.clone()),
            (None, Some(silence), _) => Some(silence.error.clone()),
            (None, None, refusal) => refusal.as_ref().map(StoreError::to_string),
        };
        facts::StoreState {
            store: self.address.clone(),
            silent_since: silent.map(|silence| ago(silence.began).min(shortest)),
            unwritten_since: untaken.map(|untaken| ago(untaken.began)),
            error: error.filter(|error| !error.is_empty()),
            returned: state.returned.map(ago),
        }
    }
}

#[cfg(test)]
mod tests;
