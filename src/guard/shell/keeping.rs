//! Keeps the guard's table in /run: a record of each lease for the guard's successor, and the grants. It goes on where /run takes
//! nothing.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use super::Shell;
use crate::guard::files::{Files, Prepared};
use crate::guard::table::{Effect, Entry};
use crate::guard::told::{self, Level};
use crate::guard_client::frame::Lease;
use crate::guard_client::grant;
use crate::host::clock;
use crate::journal::GuardAlarm;
use crate::types::{ServiceName, Time};

/// The shortest time between two tests whether /run has space again.
const ROOM_INTERVAL: Duration = Duration::from_secs(1);

/// What a command changes in a lease, as far as its record is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// The units may run from now on: the command is refused if the record cannot be written.
    Begins,
    /// The units may run for longer.
    Extends,
    /// The units may run no longer, or there is more to be stopped.
    Ends,
}

/// Whether records and grants in /run can be written.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Why they cannot be written, and what to do about it.
    pub(super) trouble: Option<String>,
    /// Services whose grant has an earlier deadline than the lease. The gate lets none of their units start once that is over.
    pub(super) outdated: BTreeSet<ServiceName>,
    /// Services whose record is not up to date.
    unkept: BTreeSet<ServiceName>,
    /// When the guard last tested whether /run has space again.
    looked_at: Option<Time>,
}

impl Shell<'_> {
    /// Writes what a change of the lease of `service` needs: its record, and for a lease that begins the grant, under a hidden
    /// name beside its place. `Err`: the lease must not begin, because its record or grant cannot be written. Nothing of it is
    /// on the disk then.
    pub(super) fn keep_all(
        &mut self,
        service: &ServiceName,
        effects: &[Effect],
        change: Change,
    ) -> Result<Option<Prepared>, String> {
        let kept = match (change, self.table.entry_of(service)) {
            (Change::Begins, _) => return self.keep_new(service, effects),
            (Change::Extends, Some(entry)) => self.records.extend(entry),
            (Change::Ends, Some(entry)) => self.records.write(entry),
            // The record of a disarmed lease is removed later, after its grant.
            (Change::Extends | Change::Ends, None) => Ok(()),
        };
        self.note_kept(service, kept.is_ok());
        // A success is not noted: this takes less space than a lease that begins, so it does not show that there is space for
        // one.
        if kept.is_err() {
            self.take_note(kept);
        }
        Ok(None)
    }

    /// Writes the record and the grant of a lease that begins.
    fn keep_new(&mut self, service: &ServiceName, effects: &[Effect]) -> Result<Option<Prepared>, String> {
        let granted =
            effects.iter().find_map(|effect| if let Effect::Grant(lease) = effect { Some(lease) } else { None });
        // The space for the grant is taken first: a lease that gets no grant must not have a record either.
        let prepared = granted.map(|lease| prepare_grant(&self.grants, lease)).transpose();
        let kept = prepared.and_then(|grant| match self.table.entry_of(service) {
            Some(entry) => self.records.write(entry).map(|()| grant),
            None => Ok(grant),
        });
        match kept {
            Ok(grant) => {
                self.room.outdated.remove(service);
                self.room.unkept.remove(service);
                self.take_note(Ok(()));
                Ok(grant)
            }
            Err(error) => {
                self.take_note(Err(error));
                Err(self.room.trouble.clone().unwrap_or_default())
            }
        }
    }

    /// Writes a later deadline into the grant, which needs no additional space. A grant that is gone is made anew. If that
    /// fails as well, the gate lets nothing start once the previous deadline is over.
    pub(super) fn extend_grant(&mut self, service: &ServiceName, deadline: Time) {
        let changed = self.grants.change(service, &grant::deadline(deadline)).or_else(|_| {
            let lease = self.table.entry_of(service).map(Entry::lease);
            lease.map_or(Ok(()), |lease| write_grant(&mut self.grants, lease))
        });
        if changed.is_ok() {
            self.room.outdated.remove(service);
        } else {
            self.room.outdated.insert(service.clone());
            self.take_note(changed);
        }
    }

    /// Writes the record of a lease that has changed without a command.
    pub(super) fn keep(&mut self, service: &ServiceName) -> io::Result<()> {
        let kept = self.table.entry_of(service).map_or(Ok(()), |entry| self.records.write(entry));
        self.note_kept(service, kept.is_ok());
        kept
    }

    pub(super) fn note_kept(&mut self, service: &ServiceName, is_kept: bool) {
        if is_kept {
            self.room.unkept.remove(service);
        } else {
            self.room.unkept.insert(service.clone());
        }
    }

    /// Removes the record of a disarmed lease. Its grant is removed before.
    pub(super) fn forget(&mut self, service: &ServiceName) {
        let removed = self.records.remove(service);
        self.note_kept(service, removed.is_ok());
        if removed.is_err() {
            self.take_note(removed);
        }
    }

    /// Tries again to write what could not be written, and tests whether a new lease would find space. At most once in
    /// [`ROOM_INTERVAL`].
    pub(super) fn look_for_room(&mut self) {
        let now = clock::now();
        if self.room.looked_at.is_some_and(|before| !now.has_passed(before.plus(ROOM_INTERVAL))) {
            return;
        }
        self.room.looked_at = Some(now);
        let mut written = self.records.has_room();
        for service in self.room.unkept.clone() {
            let kept = match self.table.entry_of(&service) {
                Some(entry) => self.records.write(entry),
                None => self.records.remove(&service),
            };
            self.note_kept(&service, kept.is_ok());
            self.beat();
            written = written.and(kept);
        }
        for service in self.room.outdated.clone() {
            let lease = self.table.entry_of(&service).map(Entry::lease);
            let granted = lease.map_or(Ok(()), |lease| write_grant(&mut self.grants, lease));
            if granted.is_ok() {
                self.room.outdated.remove(&service);
            }
            self.beat();
            written = written.and(granted);
        }
        self.take_note(written);
    }

    /// Logs once that /run cannot be written, and once that it can be written again.
    pub(super) fn take_note(&mut self, written: io::Result<()>) {
        match written {
            Err(error) => {
                let refused = if self.room.outdated.is_empty() {
                    "and none is begun"
                } else {
                    "none is begun, and what is started again under one may be refused"
                };
                let what = format!("the guard cannot keep {}", self.paths.state.display());
                let trouble = match told::shortage(&error) {
                    Some(shortage) => format!("{shortage}; {what} meanwhile; leases go on, {refused}"),
                    None => format!("{}: {what}: {error}; leases go on, {refused}", remedy(&error)),
                };
                if self.room.trouble.replace(trouble.clone()).is_none() {
                    told::alarm(Level::Alert, GuardAlarm::NoRoom, &trouble);
                }
            }
            Ok(()) if self.room.outdated.is_empty() && self.room.unkept.is_empty() => {
                if self.room.trouble.take().is_some() {
                    told::alarm(Level::Notice, GuardAlarm::NoRoom, "it is over: /run takes the guard's table again");
                }
            }
            Ok(()) => {}
        }
    }
}

pub(super) fn prepare_grant(grants: &Files, lease: &Lease) -> io::Result<Prepared> {
    let environment = grant::environment(lease);
    grants.prepare(&lease.service, &grant::deadline(lease.terms.deadline), environment.as_bytes())
}

/// Writes a grant, or replaces it, in one step: nobody sees half of it.
pub(super) fn write_grant(grants: &mut Files, lease: &Lease) -> io::Result<()> {
    let prepared = prepare_grant(grants, lease)?;
    grants.put(prepared)
}

fn remedy(error: &io::Error) -> &'static str {
    if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        "free space in /run"
    } else {
        "see why /run cannot be written to"
    }
}
