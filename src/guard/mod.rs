//! What others know of the dead man's switch: the frames both ends speak, the client, and the grants that it gives. The
//! switch itself is [`crate::guardian`].

pub mod client;
pub mod frame;
pub mod grant;

pub use client::{GuardClient, GuardError, Link};
