//! The latest record of a lock as this host has seen it, and what a contender may do because of it.

use std::time::Duration;

use serde::Serialize;

use super::event::{Content, ReadId};
use crate::{
    facts::Seen,
    types::{Incarnation, Revision, Time},
};

/// The latest record, and the time from which its age counts.
#[derive(Debug, Clone, Serialize)]
pub struct ObservedLock {
    pub incarnation: Incarnation,
    pub revision: Revision,
    pub content: Content,
    /// Age (K1): the local time of the answer that first showed the record, or showed it again after a gap.
    pub since: Time,
    /// How long that answer took.
    pub round_trip: Duration,
    /// Whether this host saw the lock change to this record: it has watched the lock all the time since it saw the record before. Else this
    /// is the first of its incarnation, or comes after a regression or a gap. The store may have gone back meanwhile: then this is a copy
    /// from the past, whose successors are lost (unknown holder, K5), and what it says of its holder's death is not believed.
    pub is_followed: bool,
    /// Two hosts with one name (K7): how often the lock was seen to change without a change of the holder's name, counted up to twice.
    pub changes: u8,
    /// When something was last heard of the holder; a record that is shown again says nothing of that. Only the text for
    /// operators uses it.
    #[serde(skip)]
    pub holder_seen: Seen<Time>,
    pub question: Question,
    /// The record that was seen before, if this one differs from it in nothing but its words.
    pub reworded: Option<Former>,
}

/// Age (K1): a record that another host has written anew with other words.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Former {
    pub revision: Revision,
    /// From when on its age counts.
    pub since: Time,
}

/// The state of the question to the store which record the latest one replaced. It is asked of a `proven` (verified release, K4), and
/// of a record that has other words than before (age, K1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Question {
    /// It is to be put to the store from then on.
    Due(Time),
    /// It was put to the store, which has not answered yet.
    Asked(ReadId),
    /// The store has answered. `true`: it is the record that a `proven` has to replace, or the one that had other words.
    Answered(bool),
}

/// From when on a contender may write its claim, and from when on it may start the unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entitlement {
    /// No claim is written before this (taking, K2; verified release, K4; unknown holder, K5).
    #[serde(skip)]
    pub take_at: Time,
    /// The unit is not started before this (confirming, K3; verified release, K4; unknown holder, K5).
    pub entitled_at: Time,
    /// The lasting hold that is waited out, and that has to be published until it is.
    pub hold: Duration,
    /// The end of the passing holds that are waited out. What is left until then has to be published too (passing hold, H9).
    pub until: Option<Time>,
    /// The former holder whose unit may live until then, and when something was last heard of it. Only the text for operators uses it.
    #[serde(skip)]
    pub former: Option<(String, Seen<Time>)>,
}

impl Entitlement {
    /// Nothing has to be waited for after `now`.
    pub fn at(now: Time) -> Self {
        Self {
            take_at: now,
            entitled_at: now,
            hold: Duration::ZERO,
            until: None,
            former: None,
        }
    }
}
