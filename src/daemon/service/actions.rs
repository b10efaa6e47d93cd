//! Carries out the election's actions. What can hang runs in a task of its own, whose outcome comes back as an event.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use tokio::{sync::oneshot, task::JoinHandle};

use super::{Message, Service, registration};
use crate::{
    daemon::{
        local::fence::{self, Fencer},
        store_access::calls::{observation, read_within, write_within},
    },
    election::{Action, Event, GuardRequest, ReadId, State, Step, WriteRequest, WriteResult},
    store::{Attempt, StoreError, WriteOutcome},
    systemd::PreparedStart,
    task::OwnedTask,
    types::{Instance, Revision, Time},
};

/// What is under way for the election.
#[derive(Default)]
pub struct Work {
    /// Counts the starts and proven stops. A look that began before one of them says nothing after it.
    pub epoch: Arc<AtomicU64>,
    /// The start or the stop of the units that is under way. One ends the other.
    task: Option<OwnedTask>,
    /// What is prepared for the start while it is vetted.
    prepared: Option<oneshot::Receiver<PreparedStart>>,
    /// Whether the stop that was asked for last has a proof that was not taken yet. Each stop has its own: the proof of an earlier one does
    /// not show that the gate has been closed since.
    pub proven: Arc<AtomicBool>,
}

impl Work {
    pub fn begin_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }
}

impl Service {
    pub fn carry_out(&mut self, action: Action) {
        // A service that is only observed reads, and tells of what it sees, whatever the election asks for.
        if self.settings.observes() && !matches!(action, Action::Read { .. } | Action::Report(_)) {
            return;
        }
        match action {
            Action::Read { id, before } => self.read(id, before),
            Action::Write(request) => self.write(*request),
            Action::Guard(request) => self.ask_guard(request),
            Action::Vet { instance } => {
                // The start follows in a moment.
                let (units, (send, prepared)) = (self.units.clone(), oneshot::channel());
                self.work.prepared = Some(prepared);
                self.host.machine.spawn(Box::pin(async move {
                    if let Some(prepared) = units
                        .systemd
                        .prepare_start(&units.main, Some(&units.service))
                        .await
                    {
                        // Nobody waits for it where no start follows.
                        let _ = send.send(prepared);
                    }
                }));
                let vet = registration::vet(self.host.clone(), self.shown.subscribe());
                self.take_step(instance, Step::Vet, vet);
            }
            Action::Fence { instance, hosts } => {
                let fencer = Fencer {
                    service: self.settings.name.clone(),
                    settings: self.settings.fence.clone(),
                    systemd: Arc::clone(&self.host.systemd),
                    machine: Arc::clone(&self.host.machine),
                    fencings: self.host.fencings.clone(),
                };
                self.take_step(
                    instance,
                    Step::Fence,
                    async move { fencer.fence(&hosts).await },
                );
            }
            Action::Start { instance, token: _ } => {
                let (units, limit) = (self.units.clone(), self.settings.start_limit);
                let (systemd, fence) =
                    (Arc::clone(&self.host.systemd), self.settings.fence.clone());
                let prepared = self.work.prepared.take();
                let start = async move {
                    fence::unfence(&*systemd, &fence).await?;
                    let prepared = match prepared {
                        Some(prepared) => prepared.await.ok(),
                        None => None,
                    };
                    units.start(prepared, limit).await
                };
                let start = self.take_step(instance, Step::Start, start);
                self.work.task = Some(start.into());
            }
            Action::Stop { kill_at } => self.stop(kill_at),
            Action::Persist(memory) => self.keep(memory),
            Action::Report(transition) => self.report(&transition),
            Action::Alarm(alarm) => self.alarm(alarm),
        }
    }

    fn take_step(
        &self,
        instance: Instance,
        step: Step,
        work: impl Future<Output = Result<(), String>> + Send + 'static,
    ) -> JoinHandle<()> {
        self.answer(async move {
            Event::Answered {
                instance,
                step,
                result: work.await,
            }
        })
    }

    /// Runs `work` in a task of its own, and gives its event to the election.
    fn answer(&self, work: impl Future<Output = Event> + Send + 'static) -> JoinHandle<()> {
        self.later(async { Some(Message::Event(work.await)) })
    }

    /// Runs `work` in a task of its own. What it returns comes back as a message.
    pub fn later(
        &self,
        work: impl Future<Output = Option<Message>> + Send + 'static,
    ) -> JoinHandle<()> {
        let inbox = self.inbox.clone();
        self.host.machine.spawn(Box::pin(async move {
            if let Some(message) = work.await {
                inbox.send(message).await;
            }
        }))
    }

    fn read(&self, id: ReadId, before: Option<Revision>) {
        let (store, key) = (Arc::clone(&self.host.store), self.settings.key.clone());
        let limit = self.settings.timings.call_limit();
        self.later(async move {
            let (answer, unreadable) = match read_within(limit, &*store, &key, before).await {
                Ok(read) => (Some(observation(&read)), None),
                Err(StoreError::Unreachable(_) | StoreError::Missing(_)) => (None, None),
                Err(error) => {
                    let why =
                        format!("nothing starts here until the lock {key} can be read: {error}");
                    (None, Some(why))
                }
            };
            let event = match before {
                None => Event::Read { id, answer },
                Some(_) => Event::Replaced { id, answer },
            };
            Some(Message::Read(event, unreadable))
        });
    }

    fn write(&self, request: WriteRequest) {
        let (store, key) = (Arc::clone(&self.host.store), self.settings.key.clone());
        let limit = self.settings.timings.call_limit();
        // A claim is no renewal.
        let is_renewal = !matches!(self.election.state(), State::NoStore | State::Standby);
        let renewal = is_renewal.then(|| (self.host.metrics.clone(), Instant::now()));
        self.answer(async move {
            let WriteRequest {
                base,
                incarnation,
                write,
                record,
            } = request;
            let attempt = Attempt {
                base,
                incarnation,
                write,
                value: record.encode(),
            };
            let result = match write_within(limit, &*store, &key, &attempt).await {
                WriteOutcome::Won(revision) => WriteResult::Won(revision),
                WriteOutcome::Conflict => WriteResult::Conflict,
                WriteOutcome::Unknown(_) => WriteResult::Unknown,
            };
            if let Some((metrics, sent)) = renewal {
                metrics.renewed(sent, &result);
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
        self.work.task = None;
        let (units, proven) = (self.units.clone(), Arc::default());
        self.work.proven = Arc::clone(&proven);
        let task = self.later(async move {
            units.stop(kill_at).await;
            proven.store(true, Ordering::Release);
            Some(Message::Wake)
        });
        self.work.task = Some(task.into());
    }
}
