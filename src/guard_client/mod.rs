//! What others know of the dead man's switch: the frames both ends speak, the client, the grants that it gives,
//! and how its watcher is asked to take the host down. The
//! switch itself is [`crate::guard`].

pub mod client;
pub mod grant;
pub mod take_down;
pub mod turns;

pub use putexd_core::guard::frame;

pub use client::{GuardClient, GuardError, Link};
