//! What decides in putexd, without clock, randomness, log, input and output: the same calls give the same answers, so that the daemon, the
//! guard, the simulation and the model check all run this code.

#![warn(missing_docs)]

pub mod election;
pub mod facts;
pub mod guard;
pub mod types;
pub mod words;
