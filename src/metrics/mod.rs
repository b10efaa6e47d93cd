//! What putexd serves to machines over HTTP: its metrics, and whether this host has the lease of a service.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`counters`] | what is counted and shown of services and store, by atomic numbers |
//! | [`text`] | the OpenMetrics text, made when it is asked for |
//! | [`answer`] | the answers to `GET /metrics` and `GET /lease/SERVICE` |
//! | [`host_name`] | by which names a client may ask for the metrics |
//!
//! **Architecture invariant:** nothing here is waited for by an election. A service increments and stores atomic numbers; all
//! else happens on the thread of [`http`](crate::http).

mod answer;
mod counters;
mod host_name;
mod text;

pub use answer::{Answers, Sources};
pub use counters::{Metrics, OfService, Renewal, Result, Shown, bit};
pub use text::{HostFacts, StoreFacts};
