//! The protocol: pure, no clock, no randomness, no log, no I/O.
//!
//! One [`Election`] per service. [`Election::handle`] takes what happened and when, and answers what to do;
//! [`Election::poll_timeout`] says when to call again. The same state and input give the same output, so that the daemon,
//! the scenario tests and a model check all run this code.
//!
//! Where to look for a rule: [`Timings`] has the inequality that makes R, F, C and S safe; `lock` what a contender may
//! believe of the store (K1 to K7); `registration` under which key a unit is run at all; `holding` what a holder may believe of its own writes (H1, H2); `core` when a unit is
//! started and stopped (H3 to H6, K3, K8, K9).
//!
//! **What is not promised:** two units alive at once are excluded only as long as a won write is durable, clocks keep
//! within the stated error, guard and putexd are not both gone while PID 1 hangs, and nobody runs the program outside of
//! its unit.

mod core;
mod event;
mod holding;
mod lock;
mod record;
mod registration;
mod state;
mod timings;

pub use self::core::Election;
pub use event::{
    Action, Alarm, Content, Event, GuardDone, GuardRequest, Memory, Moment, Observation, ReadId, Remembered, Settings,
    Sight, Transition, WriteRequest, WriteResult,
};
pub use record::{Details, Record, Standing, UNFENCED_LIMIT, Words};
pub use registration::{Found, Place, Refusal, Registration, Verdict, judge};
pub use state::{EDGES, Edge, State, find_edge};
pub use timings::{Confirmation, Timings, TimingsError};
