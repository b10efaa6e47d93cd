//! The latest record of a lock as this host has seen it, and what a contender may do because of it.

use std::time::Duration;

use serde::Serialize;

use super::event::{Content, ReadId};
use super::waiting::{Heard, Longest, Unseen, Why};
use crate::types::{Incarnation, Revision, Time};

/// Whether what a record says of its holder's death may be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Trust {
    /// This host saw the lock change to this record: it has watched the lock all the time since it saw the record before.
    Followed,
    /// This host saw the record as the first of its incarnation, after a regression, or after a gap. The store may have gone back
    /// meanwhile: then this is a copy from the past, whose successors are lost (unknown holder, K5).
    Found,
}

/// The latest record, and the time from which its age counts.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ObservedLock {
    pub(super) incarnation: Incarnation,
    pub(super) revision: Revision,
    pub(super) content: Content,
    /// Age (K1): the local time of the answer that first showed the record, or showed it again after a gap.
    pub(super) since: Time,
    /// How long that answer took.
    pub(super) round_trip: Duration,
    pub(super) trust: Trust,
    /// Why the record is found and not followed. Only the text for operators uses it.
    #[serde(skip)]
    pub(super) unseen: Unseen,
    /// When something was last heard of the holder; a record that is shown again says nothing of that. Only the text for
    /// operators uses it.
    #[serde(skip)]
    pub(super) heard: Heard,
    pub(super) question: Question,
    /// The record that was seen before, if this one differs from it in nothing but its words.
    pub(super) reworded: Option<Former>,
}

/// Age (K1): a record that another host has written anew with other words.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Former {
    pub(super) revision: Revision,
    /// From when on its age counts.
    pub(super) since: Time,
}

/// The state of the question to the store which record the latest one replaced. It is asked of a `proven` (verified release, K4), and
/// of a record that has other words than before (age, K1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Question {
    /// It is to be put to the store from then on.
    Due(Time),
    /// It was put to the store, which has not answered yet.
    Asked(ReadId),
    /// The store has answered. `true`: it is the record that a `proven` has to replace, or the one that had other words.
    Answered(bool),
}

/// From when on a contender may write its claim, and from when on it may start the unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    /// No claim is written before this (taking, K2; verified release, K4; unknown holder, K5).
    pub(super) take_at: Time,
    /// The unit is not started before this (confirming, K3; verified release, K4; unknown holder, K5).
    pub(super) entitled_at: Time,
    /// The lasting hold that is waited out, and that has to be published until it is.
    pub(super) hold: Duration,
    /// The end of the passing holds that are waited out. What is left until then has to be published too (passing hold, H9).
    pub(super) until: Option<Time>,
    /// Why this host may not start the unit at once.
    pub(super) why: Why,
}

impl Claim {
    /// The same claim where passing holds are waited out `until` then, too.
    pub(super) fn not_before(self, until: Option<Time>) -> Self {
        let Some(until) = until else { return self };
        let is_later = !self.entitled_at.has_waited_until(until);
        let longest = if is_later { Longest::Passing } else { self.why.longest };
        Self {
            entitled_at: self.entitled_at.latest(until),
            until: Some(until),
            why: Why { longest, ..self.why },
            ..self
        }
    }
}
