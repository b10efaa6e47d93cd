//! What other programs use of the guard: the frames that both ends exchange, putexd's client, the grants that the guard writes, the
//! leases that it keeps, and how the watcher is asked to take the host down. The guard itself is [`crate::guard`].

pub mod alternating;
mod client;
pub mod grant;
pub mod kept;
pub mod take_down;

pub use putexd_core::guard::frame;

pub use client::{GuardClient, GuardError, Link};
