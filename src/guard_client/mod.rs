//! What other programs use of the guard: the frames that both ends exchange, putexd's client, the grants that the guard writes, and
//! the leases that it keeps. The guard itself is [`crate::guard`].

mod client;
pub mod grant;
pub mod kept;

pub use putexd_core::guard::frame;

pub use client::{GuardClient, GuardError};
