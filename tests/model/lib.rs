//! Searches what elections, guards and a store can get into for two units alive at once.
//!
//! The election and the guard's table are the sources of putexd itself; everything around them is [`world`]. Under which key
//! an election takes place at all is a world of its own, [`entry`].

pub mod canonical;
pub mod check;
pub mod entry;
pub mod plan;
pub mod world;

pub use putexd_core::{election, guard, types};
