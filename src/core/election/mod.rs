//! The protocol as pure code: nothing in this module reads a clock, draws randomness, logs or does I/O.
//!
//! One [`Election`] per service. [`Election::handle`] takes an event and its time, and returns the actions that the driver has to
//! carry out; [`Election::poll_timeout`] says when to call it again. The same state and input give the same output, so that the
//! daemon, the simulation and a model check all run this code.
//!
//! Where to look for a rule: [`Timings`] has the inequality that makes R, F, C and S safe. `lock_view` says what a contender may
//! believe of the store (K1 to K7), and `stagger` which of several contenders takes the lock first. `registration` says under
//! which key a unit is run (N1 to N4), and `former_lock` when nobody runs it under a former key any more. `tenure` says what a
//! holder may believe of its own writes (H1, H2). `stop_cause` in [`facts`](crate::facts)
//! lists everything that can stop a unit, and `wait` what a host waits for. `machine` says when a unit is started and stopped (H3 to H6, K3, K8, K9),
//! and its `orders` what operators want of a lock (orders, H7; pause, H8).
//!
//! What follows is `protocol.md` in this folder: the rules, why they keep two units apart, and the assumptions that this rests
//! on.
//!
#![doc = include_str!("protocol.md")]

mod event;
mod former_lock;
mod lock_view;
mod longest_hold;
mod machine;
mod observed_lock;
mod record;
mod registration;
mod stagger;
mod state;
mod tenure;
mod timings;

pub use crate::facts::{Seen, Wait};
pub use crate::types::span::rounded;
pub use event::{
    Action, Content, ElectionSettings, Event, GuardRequest, Memory, Moment, Observation,
    ObservedUnit, ReadId, Remembered, Step, Transition, WriteRequest, WriteResult,
};
pub use former_lock::FormerLock;
pub use longest_hold::PassingHold;
pub use machine::Election;
pub use record::{
    Asked, Details, FORMAT, HOLDERS_LIMIT, LONGEST_HOLD, LONGEST_LEASE, LONGEST_PAUSE, Oddity,
    OperatorNote, Order, Passing, Record, Refused, Standing, UNFENCED_LIMIT, Wanted, Word,
};
pub use registration::{
    Found, KeptPlace, KeyRefusal, LockPlace, Position, Registration, Verdict, is_newer, judge,
};
pub use state::{EDGES, State, is_edge};
pub use timings::{Caution, Confirmation, Timings};
