//! Searches what elections, guards and a store can get into for two units alive at once.
//!
//! The election and the guard's table are the sources of putexd itself; everything around them is [`world`]. Under which key
//! an election takes place at all is a world of its own, [`entry`].

#[path = "../../src/election/mod.rs"]
pub mod election;
#[path = "../../src/types/mod.rs"]
pub mod types;

/// What the guard's table needs of the module of that name.
#[path = "../../src/guard_client"]
pub mod guard_client {
    pub mod frame;
}

/// The guard's deadlines.
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
