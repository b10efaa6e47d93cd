//! What putexd knows of the dead man's switch: the frames both ends speak, and the client. The switch itself is
//! [`crate::guardian`].

pub mod client;
pub mod frame;

pub use client::{GuardClient, GuardError, Link};
