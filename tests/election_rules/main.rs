//! Tests of single rules of the core, which a scenario would show only in passing. Each drives one host, step by step.

mod contender;
mod fencing;
mod holder;
mod host;
#[path = "../support/hostile.rs"]
mod hostile;
mod lapse;
mod newer;
mod orders;
mod passing;
mod status;
mod store;
mod token;
