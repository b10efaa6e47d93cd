//! What putexd serves to machines over HTTP: its metrics, and whether this host has the lease of a service.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`counters`] | what is counted, and what services show of themselves |
//! | [`text`] | the OpenMetrics text, made when it is asked for |
//! | [`answer`] | the answers to `GET /metrics` and `GET /lease/SERVICE` |
//!
//! **Architecture invariant:** nothing here is waited for by an election. A service counts, and replaces what it shows; all
//! else happens on the thread of [`http`](crate::http).

mod answer;
mod counters;
mod text;

pub use answer::Answers;
pub use counters::Metrics;
pub use text::{HostFacts, Sources};
