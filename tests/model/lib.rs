//! Searches the states that elections, guards and a store can get into for two units that are alive at the same time.
//!
//! The election and the guard's table are the sources of putexd itself; everything around them is [`world`]. The rules N1 to
//! N4, under which key an election takes place at all, have a world of their own, [`entry`].

#[path = "../../src/election/mod.rs"]
pub mod election;
#[path = "../../src/types/mod.rs"]
pub mod types;

/// The part of `guard_client` that the guard's table needs.
#[path = "../../src/guard_client"]
pub mod guard_client {
    pub mod frame;
}

/// The part of the guard that keeps deadlines.
#[path = "../../src/guard"]
pub mod guard {
    pub mod agenda;
    pub mod table;
}

pub mod canonical;
pub mod check;
pub mod entry;
pub mod plan;
pub mod world;
