//! What a service shows to operators, and to the daemon for STATUS=.

use std::time::Duration;

use super::Service;
use crate::daemon::unit_control;
use crate::election::{Hindrance, State, Waiting, Word};
use crate::metrics::Shown;
use crate::types::{FencingToken, Revision, Time, span};

/// A unit that has to be dead is remarked on when it has not been proven dead for so long, because an orderly stop takes a
/// while.
const UNDEAD_TOLD_AFTER: Duration = Duration::from_secs(1);

/// The status of a service, as operators see it. It has points in time and not spans, so that it changes only when something
/// happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The state of the host (protocol.md, "The states of a host").
    pub state: State,
    /// Since when it is in that state, in seconds since 1970.
    pub since: u64,
    /// The lock's holder, by the latest record. Empty: nobody.
    pub holder: String,
    /// Since when this host has seen that tenure, or that nobody holds the lock, in seconds since 1970. `None`: it has seen nothing.
    pub held_since: Option<u64>,
    /// The lock's revision.
    pub revision: Revision,
    /// The fencing token of its own tenure, else the highest seen.
    pub token: FencingToken,
    /// The last verdict of the health check: `passes`, or why it fails. Empty: there is none.
    pub health: String,
    /// Why the last run on this host failed, until a start succeeds. Empty: it did not.
    pub failure: String,
    /// Grows with each change that the bus tells by itself. What changes with every renewal is not among them.
    pub version: u64,
    /// Why this host does not contend.
    pub hindrance: Option<Hindrance>,
    /// The word that keeps the service stopped everywhere, as far as this host knows.
    pub stopped: Option<Word>,
    /// The word for a long lease of the holder, as far as this host knows.
    pub paused: Option<Word>,
    /// When this host's own lease ends, unless it is renewed. `None`: it has none.
    pub deadline: Option<Time>,
    /// What the service waits for.
    pub waiting: Option<Waiting>,
    /// What an operator has said of a stop and is not in the lock's record yet.
    pub unsaid: Option<String>,
    /// What keeps the stop of its units from being proven, while it is releasing or lapsing.
    pub unproven: Option<String>,
    /// Whether the last tenure has ended without a release, so that the record is left to age.
    pub is_left_to_age: bool,
    /// The alarms that stand, a sentence each.
    pub alarms: Vec<String>,
    /// What the operator should know of the service although it is supervised, in whole sentences.
    pub remarks: Vec<String>,
}

impl Status {
    /// The status of a service of which nothing is known yet. `since`: now, in seconds since 1970.
    pub(in crate::daemon) fn unknown(since: u64) -> Self {
        Self {
            state: State::NoStore,
            since,
            holder: String::new(),
            held_since: None,
            health: String::new(),
            failure: String::new(),
            version: 0,
            revision: Revision(0),
            token: FencingToken(0),
            hindrance: None,
            stopped: None,
            paused: None,
            deadline: None,
            waiting: None,
            unsaid: None,
            unproven: None,
            is_left_to_age: false,
            alarms: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// Whether the bus shows the same of both, apart from what changes with every renewal.
    fn is_signalled_as(&self, other: &Self) -> bool {
        let Self { state, since, holder, held_since, token, health, failure, unproven, alarms, remarks, .. } = self;
        let Self { stopped, paused, .. } = self;
        *state == other.state
            && (*since, *held_since, *token) == (other.since, other.held_since, other.token)
            && (holder, health, failure) == (&other.holder, &other.health, &other.failure)
            && (unproven, alarms, remarks) == (&other.unproven, &other.alarms, &other.remarks)
            && (stopped, paused) == (&other.stopped, &other.paused)
            && self.waiting.as_ref().map(std::mem::discriminant) == other.waiting.as_ref().map(std::mem::discriminant)
            && self.hindrance.as_ref().map(hindrance_kind) == other.hindrance.as_ref().map(hindrance_kind)
    }

    /// Whether STATUS=, which is made anew for each change, says the same of the service with both statuses. A renewal
    /// changes the revision alone, which STATUS= does not name.
    fn is_told_as(&self, other: &Self) -> bool {
        let stage = |status: &Self| match status.waiting {
            Some(Waiting::Holder { stage, .. }) => Some(stage),
            Some(_) | None => None,
        };
        let told = |status: &Self| (status.waiting.as_ref().map(std::mem::discriminant), stage(status));
        let is_stopped = |status: &Self| status.stopped.is_some();
        self.state == other.state
            && self.holder == other.holder
            && told(self) == told(other)
            && is_stopped(self) == is_stopped(other)
    }
}

/// What tells two hindrances apart: the text, or the kind where the text counts down.
fn hindrance_kind(hindrance: &Hindrance) -> &str {
    match hindrance {
        Hindrance::Reason(reason) | Hindrance::BackOff(Waiting::BackOff { reason, .. }) => reason,
        Hindrance::BackOff(_) => "",
    }
}

impl Service {
    pub(super) fn show(&mut self) {
        let now = self.host.machine.now();
        let is_active = matches!(self.election.state(), State::Starting | State::Active);
        self.standing.put(self.election.deadline().filter(|_| is_active));
        self.metrics.show(Shown {
            state: self.election.state(),
            holds: self.election.holder() == self.host.node.as_str(),
            alive: !self.alive.is_empty(),
            healthy: self.settings.health.as_ref().map(|_| self.healthy),
            lease: self.settings.timings.lease(),
            stopped: self.election.stop_word(now).is_some(),
            paused: self.election.pause_word(now).is_some(),
            alarms: self.alarms.mask(),
        });
        let wall = self.host.machine.wall().as_secs();
        let has_check = self.settings.health.is_some();
        let holder = self.election.holder().to_owned();
        let mut status = Status {
            state: self.election.state(),
            since: wall,
            held_since: Some(wall),
            holder,
            revision: self.election.revision(),
            token: self.election.token(),
            health: if has_check { self.verdict.clone() } else { String::new() },
            failure: self.failure.as_ref().map(|(_, failure)| failure.clone()).unwrap_or_default(),
            version: 0,
            hindrance: self.election.hindrance(now),
            stopped: self.election.stop_word(now).cloned(),
            paused: self.election.pause_word(now).cloned(),
            deadline: self.election.deadline(),
            waiting: self.election.waiting(now),
            unsaid: self.unsaid(),
            unproven: self.unproven(),
            is_left_to_age: self.election.leaves_lock_to_age(),
            alarms: self.alarms_in_words(now),
            remarks: self.remarks(),
        };
        self.diary.hear(status.waiting.as_ref(), &self.host.node, now);
        let (mut is_told, mut is_signalled) = (false, false);
        self.status.send_if_modified(|shown| {
            if shown.state == status.state {
                status.since = shown.since;
            }
            if (&shown.holder, shown.token) == (&status.holder, status.token) {
                status.held_since = shown.held_since.or(status.held_since);
            }
            is_signalled = !shown.is_signalled_as(&status);
            status.version = shown.version + u64::from(is_signalled);
            is_told = !shown.is_told_as(&status);
            let modified = *shown != status;
            *shown = status;
            modified
        });
        if is_signalled {
            self.host.tidings.bulletin().changed();
        }
        if is_told {
            self.changed.notify_one();
        }
    }

    /// What keeps the end of the tenure from being proven, while it is releasing or lapsing.
    fn unproven(&self) -> Option<String> {
        self.units.unproven().filter(|_| matches!(self.election.state(), State::Releasing | State::Lapsing))
    }

    pub(super) fn stop_of_another(&self) -> String {
        let unit = &self.settings.unit;
        format!(
            "{unit} is being stopped, and putexd has not asked for it; once it has stopped, its lock is let go, so that another \
             host may take it"
        )
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
        remarks.extend(self.stopped_by_another.clone());
        remarks.extend(self.host.machine.trouble());
        remarks.extend(self.unreadable.told());
        remarks.extend(self.unsaid().map(|word| {
            format!(
                "{word}: that is not in the lock's record yet, and this host goes on trying; it is dropped if putexd is restarted \
                 here before"
            )
        }));
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
            format!("the last run on this host failed at {at}: {failure}; see \"journalctl --unit {unit}\"")
        }));
        remarks
    }
}
