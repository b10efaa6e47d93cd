//! What a service shows to operators, and to the daemon for STATUS=.

use std::time::Duration;

use super::Service;
use crate::daemon::unit_control;
use crate::election::{Hindrance, State, Waiting};
use crate::types::{FencingToken, Revision, span};

/// A unit that has to be dead is remarked on when it has not been proven dead for so long, because an orderly stop takes a
/// while.
const UNDEAD_TOLD_AFTER: Duration = Duration::from_secs(1);

/// The status of a service, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The state of the host (protocol.md, "The states of a host").
    pub state: State,
    /// The lock's holder, by the latest record. Empty: nobody.
    pub holder: String,
    /// The lock's revision.
    pub revision: Revision,
    /// The fencing token of its own tenure, else the highest seen.
    pub token: FencingToken,
    /// Why this host does not contend.
    pub hindrance: Option<Hindrance>,
    /// What the service waits for.
    pub waiting: Option<Waiting>,
    /// What keeps the stop of its units from being proven, while it is releasing or lapsing.
    pub unproven: Option<String>,
    /// Whether the last tenure has ended without a release, so that the record is left to age.
    pub is_left_to_age: bool,
    /// What the operator should know of the service although it is supervised, in whole sentences.
    pub remarks: Vec<String>,
}

impl Status {
    /// Whether STATUS=, which is made anew for each change, says the same of the service with both statuses. A renewal
    /// changes the revision alone, which STATUS= does not name.
    fn is_told_as(&self, other: &Self) -> bool {
        let is_claimed = |status: &Self| matches!(status.waiting, Some(Waiting::Holder { is_claim: true, .. }));
        let told = |status: &Self| (status.waiting.as_ref().map(std::mem::discriminant), is_claimed(status));
        self.state == other.state && self.holder == other.holder && told(self) == told(other)
    }
}

impl Service {
    pub(super) fn show(&mut self) {
        let now = self.host.machine.now();
        let is_active = matches!(self.election.state(), State::Starting | State::Active);
        self.standing.put(self.election.deadline().filter(|_| is_active));
        let status = Status {
            state: self.election.state(),
            holder: self.election.holder().to_owned(),
            revision: self.election.revision(),
            token: self.election.token(),
            hindrance: self.election.hindrance(now),
            waiting: self.election.waiting(now),
            unproven: self.unproven(),
            is_left_to_age: self.election.leaves_lock_to_age(),
            remarks: self.remarks(),
        };
        self.diary.hear(status.waiting.as_ref());
        let mut is_told = false;
        self.status.send_if_modified(|shown| {
            is_told = !shown.is_told_as(&status);
            let modified = *shown != status;
            *shown = status;
            modified
        });
        if is_told {
            self.changed.notify_one();
        }
    }

    /// What keeps the end of the tenure from being proven, while it is releasing or lapsing.
    fn unproven(&self) -> Option<String> {
        self.units.unproven().filter(|_| matches!(self.election.state(), State::Releasing | State::Lapsing))
    }

    fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = Vec::new();
        if self.broken.is_some() && self.may_run() {
            remarks.push(format!(
                "once {} is let go, it is not taken again on this host before its file is mended",
                self.settings.name
            ));
        }
        remarks.extend(self.admission.iter().flatten().chain(&self.outside).cloned());
        // Where nothing runs, the refusal is shown as the hindrance.
        remarks.extend(self.admission.as_ref().err().filter(|_| self.may_run()).map(ToString::to_string));
        remarks.extend(self.host.machine.trouble());
        remarks.extend(self.unreadable.told());
        let now = self.host.machine.now();
        let lasts = self.undead_since.is_some_and(|since| now.since_at_least(since) >= UNDEAD_TOLD_AFTER);
        // What a stop waits for is shown with the stop.
        let unproven = self.unproven();
        let is_told = |undead: &&unit_control::Trouble| {
            (undead.is_for_the_operator || lasts) && unproven.as_ref() != Some(&undead.words)
        };
        remarks.extend(self.undead.as_ref().filter(is_told).map(|undead| undead.words.clone()));
        remarks.extend(self.failure.as_ref().map(|(at, failure)| {
            let (unit, at) = (&self.settings.unit, span::date(at.as_secs()));
            format!("the last start on this host failed at {at}: {failure}; see \"journalctl --unit {unit}\"")
        }));
        remarks
    }
}
