//! What decides in putexd, without clock, randomness, log, input and output: the same calls give the same answers, so that the daemon, the
//! guard, the simulation and the model check all run this code.

pub mod election;
pub mod guard;
pub mod types;
