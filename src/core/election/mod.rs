//! The protocol: pure, no clock, no randomness, no log, no I/O.
//!
//! One [`Election`] per service. [`Election::handle`] takes what happened and when, and answers what to do;
//! [`Election::poll_timeout`] says when to call again. The same state and input give the same output, so that the daemon,
//! the scenario tests and a model check all run this code.
//!
//! Where to look for a rule: [`Timings`] has the inequality that makes R, F, C and S safe; `lock_view` what a contender may
//! believe of the store (K1 to K7), and `stagger` which of several is to take it first; `registration` under which key a unit
//! is run at all (N1 to N4), and `former_lock` when nobody runs it under another one any more; `tenure` what a holder may
//! believe of its own writes (H1, H2); `waiting` what is waited for and why, in words; `stop_cause` everything that can stop a
//! unit; `machine` when a unit is started and stopped (H3 to H6, K3, K8, K9).
//!
//! What follows is `protocol.md` in this folder: the rules, why they keep two units apart, and on what that rests.
//!
#![doc = include_str!("protocol.md")]

mod event;
mod former_lock;
mod lock_view;
mod longest_hold;
mod machine;
mod record;
mod registration;
mod stagger;
mod state;
mod stop_cause;
mod tenure;
mod timings;
mod waiting;

pub use event::{
    Action, Alarm, Content, Event, GuardDone, GuardRequest, Memory, Moment, Observation, ObservedUnit, ReadId,
    Remembered, Settings, Transition, WriteRequest, WriteResult,
};
pub use former_lock::FormerLock;
pub use machine::Election;
pub use record::{
    Details, HOLDERS_LIMIT, LONGEST_HOLD, LONGEST_LEASE, Odd, Oddity, OperatorNote, Record, Standing, UNFENCED_LIMIT,
};
pub use registration::{Found, KeptPlace, Place, Position, Refusal, Registration, Verdict, is_newer, judge};
pub use state::{EDGES, Edge, State, find_edge};
pub use timings::{Confirmation, Timings, TimingsError};
pub use waiting::{Cause, Heard, Hindrance, Longest, Unseen, Waiting, Why, rounded};
