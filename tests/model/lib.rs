//! Searches the states that elections, guards and a store can get into for two units that are alive at the same time.
//!
//! The election and the guard's table are the sources of putexd itself; everything around them is [`world`]. The rules N1 to
//! N4, under which key an election takes place at all, have a world of their own, [`entry`].

pub mod canonical;
pub mod check;
pub mod entry;
pub mod plan;
pub mod world;

pub use putexd_core::{election, facts, guard, types};
