//! Carries out the election's actions. What can hang runs in a task of its own, whose outcome comes back as an event.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{Service, Told};
use crate::daemon::fence::Fencer;
use crate::daemon::observation::observation;
use crate::daemon::unit_control::Limit;
use crate::daemon::{fence, registration};
use crate::election::{Action, Event, GuardRequest, ReadId, State, Waiting, WriteRequest, WriteResult};
use crate::metrics;
use crate::store::{Attempt, StoreError, WriteOutcome};
use crate::types::{Key, Revision, Time};

/// A start that was prepared so long ago is prepared again.
const PREPARED_FOR: Duration = Duration::from_millis(500);

/// What the journal was last told of a lock that cannot be read.
#[derive(Debug, Default)]
pub(super) struct Unreadable(Mutex<Option<String>>);

impl Unreadable {
    /// Tells the journal each change once. That the store is out of reach is told by its connection, for all services.
    fn tell(&self, key: &Key, error: Option<&StoreError>) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match error {
            None => {
                if told.take().is_some() {
                    tracing::info!("the lock {key} can be read again");
                }
            }
            // Nor does each service tell that there is no store.
            Some(StoreError::Unreachable(why) | StoreError::Missing(why)) => {
                tracing::debug!("failed to read the lock {key}: {why}");
            }
            Some(error) => {
                let why = format!("failed to read the lock {key}: {error}; nothing starts here before it can be read");
                if told.as_ref() != Some(&why) {
                    tracing::warn!("{why}");
                    *told = Some(why);
                }
            }
        }
    }

    pub(super) fn told(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Service {
    pub(super) fn carry_out(&mut self, action: Action) {
        match action {
            Action::Read { id, before } => {
                self.read(id, before);
                if before.is_some() {
                    // This read verifies a release (verified release, K4), and the claim that follows it may entitle at once.
                    self.prepare();
                }
            }
            Action::Write(request) => {
                self.write(*request);
                let waiting = self.election.waiting(self.host.machine.now());
                if matches!(waiting, Some(Waiting::Claim | Waiting::LastWrite)) {
                    self.prepare();
                }
            }
            Action::Guard(request) => self.ask_guard(request),
            Action::Vet { instance } => {
                let vet = registration::vet(self.host.clone(), Arc::clone(&self.settings), self.places.clone());
                self.answer(async move { Event::Vetted { instance, result: in_words(vet.await) } });
            }
            Action::Fence { instance, hosts } => {
                let fencer = Fencer {
                    service: self.settings.name.clone(),
                    settings: self.settings.fence.clone(),
                    systemd: Arc::clone(&self.host.systemd),
                    machine: Arc::clone(&self.host.machine),
                    fencings: self.host.fencings.clone(),
                };
                self.answer(async move { Event::Fenced { instance, result: in_words(fencer.fence(&hosts).await) } });
            }
            Action::Unfence { instance } => {
                let (systemd, settings) = (Arc::clone(&self.host.systemd), self.settings.fence.clone());
                self.answer(async move {
                    Event::Unfenced { instance, result: in_words(fence::unfence(&*systemd, &settings).await) }
                });
            }
            Action::Start { instance, token: _ } => {
                let (units, limit) = (self.units.clone(), self.settings.start_limit);
                let start = async move { Event::Started { instance, result: in_words(units.start(limit).await) } };
                self.start = Some(self.answer(start).into());
            }
            Action::Stop { kill_at } => self.stop(kill_at),
            Action::Persist(memory) => self.host.machine.keep(&self.settings, self.without_left_store(memory)),
            Action::Report(transition) => self.report(&transition),
            Action::Alarm(alarm) => self.alarm(&alarm),
        }
    }

    /// Runs `work` in a task of its own, and gives its event to the election.
    fn answer(&self, work: impl Future<Output = Event> + Send + 'static) -> JoinHandle<()> {
        let inbox = self.inbox.clone();
        self.host.machine.spawn(Box::pin(async move {
            let event = work.await;
            // The message is lost if the service has ended, and nobody needs it then.
            let _ = inbox.tell(Told::Event(event)).await;
        }))
    }

    fn read(&self, id: ReadId, before: Option<Revision>) {
        let (store, key) = (Arc::clone(&self.host.store), self.settings.key.clone());
        let limit = self.settings.timings.call_limit();
        let unreadable = Arc::clone(&self.unreadable);
        self.answer(async move {
            let answer = match timeout(limit, store.read(&key, before)).await {
                Ok(read) => {
                    unreadable.tell(&key, read.as_ref().err());
                    read.ok().map(observation)
                }
                Err(_) => None,
            };
            match before {
                None => Event::Read { id, answer },
                Some(_) => Event::Replaced { id, answer },
            }
        });
    }

    /// Prepares a start, because one may follow the answer of the store.
    fn prepare(&mut self) {
        let now = self.host.machine.now();
        if self.prepared.is_none_or(|at| now.since_at_least(at) >= PREPARED_FOR) {
            self.prepared = Some(now);
            let units = self.units.clone();
            self.host.machine.spawn(Box::pin(async move { units.prepare().await }));
        }
    }

    fn write(&self, request: WriteRequest) {
        let (store, key) = (Arc::clone(&self.host.store), self.settings.key.clone());
        let limit = self.settings.timings.call_limit();
        // A claim is no renewal.
        let is_renewal = !matches!(self.election.state(), State::NoStore | State::Standby);
        let renewal = is_renewal.then(|| self.metrics.renewal());
        self.answer(async move {
            let WriteRequest { base, incarnation, write, record } = request;
            let attempt = Attempt { base, incarnation, write, value: record.encode() };
            let result = match timeout(limit, store.compare_and_set(&key, &attempt)).await {
                Ok(WriteOutcome::Won(revision)) => WriteResult::Won(revision),
                Ok(WriteOutcome::Conflict) => WriteResult::Conflict,
                Ok(WriteOutcome::Unknown(reason)) => {
                    tracing::debug!("a write of {key} may have been applied or not: {reason}");
                    WriteResult::Unknown
                }
                Err(_) => WriteResult::Unknown,
            };
            if let Some(renewal) = renewal {
                renewal.ends(match result {
                    WriteResult::Won(_) => metrics::Result::Won,
                    WriteResult::Conflict => metrics::Result::Conflict,
                    WriteResult::Unknown => metrics::Result::Unknown,
                });
            }
            Event::Written { write, result }
        });
    }

    fn ask_guard(&self, request: GuardRequest) {
        if self.guard_queue.try_send(Box::new(request)).is_err() {
            // So many unanswered requests mean that the guard hangs.
            tracing::error!("{}: the guard does not keep up", self.settings.name);
            self.answer(async { Event::GuardDown });
        }
    }

    fn stop(&mut self, kill_at: Option<Time>) {
        (self.start, self.stop) = (None, None);
        self.stops += 1;
        let (units, proven, inbox, stop) =
            (self.units.clone(), Arc::clone(&self.proven), self.inbox.clone(), self.stops);
        let waiting = self.election.waiting(self.host.machine.now());
        let fails_at = waiting.and_then(|waiting| waiting.fails_at(self.settings.timings.stop_budget));
        let limit = fails_at.map(|at| Limit { at, settings: self.shown.subscribe() });
        let task = self.host.machine.spawn(Box::pin(async move {
            units.stop(kill_at, limit).await;
            proven.fetch_max(stop, Ordering::AcqRel);
            // The message is lost if the service has ended, and nobody needs it then.
            let _ = inbox.tell(Told::Proven).await;
        }));
        self.stop = Some(task.into());
    }
}

/// An outcome as the election takes it, which only tells the reason of a failure.
fn in_words<E: std::error::Error>(outcome: Result<(), E>) -> Result<(), String> {
    outcome.map_err(|error| error.to_string())
}
