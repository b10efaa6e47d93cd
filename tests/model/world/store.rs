//! A store with one key, the part of its past that it still shows, and its compare-and-set.

use std::{sync::Arc, time::Duration};

use super::{Both, World, network::Sent};
use crate::{
    check::Milestone,
    election::{Content, Observation, Record, Standing, WriteResult},
    plan::Fault,
    types::{Incarnation, Revision},
};

/// A store with one key, and a copy of it.
#[derive(Debug, Clone)]
pub(super) struct Store {
    pub(super) life: u64,
    pub(super) last_revision: u64,
    /// The past that the store still shows, with the latest value at the end.
    pub(super) history: Vec<Observation>,
    /// The same part of a copy, which is empty until one is taken.
    pub(super) copy: Vec<Observation>,
    /// When the lock last changed hands since the copy was taken.
    pub(super) copy_left: Option<Duration>,
}

impl Store {
    pub(super) fn incarnation(&self) -> Incarnation {
        Incarnation(format!("life{}", self.life))
    }

    pub(super) fn latest(&self) -> &Observation {
        self.history
            .last()
            .expect("a store holds at least its beginning")
    }

    /// Becomes another store, with another incarnation, which shows `past`.
    pub(super) fn restore(&mut self, past: Vec<Observation>) {
        self.life += 1;
        let incarnation = self.incarnation();
        self.history = past
            .into_iter()
            .map(|old| Observation {
                incarnation: incarnation.clone(),
                ..old
            })
            .collect();
        self.last_revision = self.latest().revision.0;
    }

    pub(super) fn remember(&mut self, revision: u64, content: Content, keep: usize) {
        let observation = Observation {
            incarnation: self.incarnation(),
            revision: Revision(revision),
            content,
        };
        self.history.push(observation);
        let surplus = self.history.len().saturating_sub(keep);
        self.history.drain(..surplus);
    }

    /// Whether this write would win.
    pub(super) fn takes(&self, Sent { request, blind }: &Sent) -> bool {
        (*blind || request.incarnation == self.incarnation())
            && self.latest().revision == request.base
    }

    /// The record before `revision` that the same write made, if it was held.
    pub(super) fn same_before(&self, revision: Revision) -> Option<Observation> {
        let write = |old: &Observation| {
            old.content
                .record()
                .filter(|record| record.is_held())?
                .write()
        };
        let shown = self.history.iter().rfind(|old| old.revision == revision)?;
        self.history
            .iter()
            .rfind(|old| old.revision < revision && write(old) == write(shown))
            .cloned()
    }

    pub(super) fn replaced_by(&self, revision: Revision) -> Observation {
        let replaced = self
            .history
            .iter()
            .rposition(|old| old.revision == revision)
            .and_then(|position| {
                self.history[..position]
                    .iter()
                    .rfind(|old| old.revision < revision)
            });
        let absent = || Observation {
            incarnation: self.incarnation(),
            revision: Revision(0),
            content: Content::Absent,
        };
        replaced.cloned().unwrap_or_else(absent)
    }
}

impl World {
    pub(super) fn compare_and_set(&mut self, sent: &Sent) -> WriteResult {
        let Sent { request, .. } = sent;
        let store = &self.store;
        if !store.takes(sent) {
            if self.both == Both::From(request.base) && request.incarnation == store.incarnation() {
                self.both = Both::No;
                self.put(Content::Record(request.record.clone()));
            }
            return WriteResult::Conflict;
        }
        if let Some(details) = &request.record.details {
            let others =
                |record: &Record| record.is_held() && record.instance() != Some(details.instance);
            if details.standing == Standing::GaveUp {
                self.reach(Milestone::GaveUp);
            } else if details.standing == Standing::Proven {
                self.reach(Milestone::Release);
            } else if store.latest().content.record().is_some_and(others) {
                self.reach(Milestone::TakeOver);
            }
        }
        if self.both != Both::No {
            self.both = Both::From(request.base);
        }
        WriteResult::Won(self.put(Content::Record(request.record.clone())))
    }

    pub(super) fn put(&mut self, content: Content) -> Revision {
        let keep = self.keep();
        let held = |content: &Content| {
            content
                .record()
                .filter(|record| record.is_held())
                .and_then(Record::instance)
        };
        let now = self.elapsed;
        let store = Arc::make_mut(&mut self.store);
        if store.copy_left.is_none() || held(&content) != held(&store.latest().content) {
            store.copy_left = Some(now);
        }
        store.last_revision += 1;
        let revision = store.last_revision;
        store.remember(revision, content, keep);
        self.store_changed();
        Revision(revision)
    }

    pub(super) fn store_changed(&mut self) {
        // A write that can never be applied any more counts as lost, and is dropped.
        let store = Arc::clone(&self.store);
        let may_come_back = [
            Fault::RollBack,
            Fault::Restore,
            Fault::GoBack,
            Fault::Wipe,
            Fault::SilentWipe,
            Fault::Purge,
            Fault::WipeWhatIsKnown,
        ]
        .iter()
        .any(|fault| self.may(*fault));
        if !may_come_back {
            let latest = store.latest().revision;
            self.orphans.retain(|orphan| {
                orphan.request.base == latest
                    || (orphan.request.base > latest
                        && (orphan.blind || orphan.request.incarnation == store.incarnation()))
            });
        }
        if self.plan.hints {
            for n in 0..self.nodes.len() {
                if let Some(daemon) = self.daemon(n) {
                    daemon.hint = true;
                }
            }
        }
    }

    fn keep(&self) -> usize {
        let looks_back = [
            Fault::StaleRead,
            Fault::Restore,
            Fault::GoBack,
            Fault::RollBack,
            Fault::FalseAnswer,
        ];
        if looks_back
            .iter()
            .any(|fault| self.plan.faults[*fault as usize] > 0)
        {
            3
        } else {
            2
        }
    }
}
