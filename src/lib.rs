//! putexd runs a systemd unit on one host at a time, over a lock store.
//!
//! The layers, lowest first. A module imports only from lower layers, which `tests/layering.rs` checks in the sources.
//!
//! | layer | modules |
//! | --- | --- |
//! | common types | [`types`], [`command_line`], [`task`], [`frames`], [`bus`] |
//! | what is so, and words for it | [`facts`], [`words`] |
//! | the protocol, the kernel, tables of keys | [`election`], [`host`], [`keys`] |
//! | edges, which never import each other, but `config` the keys of each [`store`] | [`config`], [`store`], [`systemd`], [`guard_client`], [`http`], [`journal`] |
//! | what hosts tell each other, the served interfaces, what PID 1 says of the units | [`cluster`], [`dbus`], [`metrics`], [`audit`] |
//! | programs | [`daemon`], [`ctl`], [`generator`], [`guard`], [`net`] |
//!
//! # Glossary
//!
//! | term | meaning |
//! | --- | --- |
//! | service | what one file in /etc/putex.d describes: a unit, the units bound to it, and the lock that they run under |
//! | lock | a key of the store; the host whose record is its latest value holds the lock |
//! | record | the value of a lock: its holder, for how long, and what a successor has to know ([`election::Record`]) |
//! | holder, contender, standby | the host whose record the lock has; one that may take the lock; one that does not hold it |
//! | tenure | one period of holding a lock, from the first write to the last; each has an instance of its own |
//! | instance | 128 random bits that tell one tenure from another |
//! | fencing token | a number that grows with each tenure: others refuse a former holder's writes by it; `token` in the record |
//! | R, F, C, S | renewal interval, failures, confirmations, stop budget ([`election::Timings`]) |
//! | T, hold | R·F, the lease; T − m + S, after which a holder's unit is dead if nothing is renewed |
//! | passing hold | the part of a hold that ends at one point in time, because an operator has paused the service ([`election::Passing`]) |
//! | lease | a holder's permission to run the unit until a deadline; kept by the guard, shown as `putex-lease@SERVICE.target` |
//! | grant | the file in /run that exists while a lease is armed and open, and that the gate looks for |
//! | gate | what keeps systemd from starting the unit without a grant: assertion, condition, `BindsTo=` ([`generator`]) |
//! | guard | the process that ends leases at their deadlines, whatever happens to putexd ([`guard`]) |
//! | lapse, release | the end of a tenure by killing the unit, writing nothing; the end in good order, which frees the lock |
//! | proof | evidence that nothing of a unit runs any more: units inactive, control groups empty, nothing mounted |
//! | entry | a value in the store, beside the locks, that says under which key a unit is run |
//! | incarnation | what tells one life of a store from the next: a store that was wiped or restored has another |
//! | admission | the check that the unit, as systemd has it loaded, is one whose stop can be proven |
//!
//! **Architecture invariant:** nothing in [`election`] reads a clock, draws randomness, logs, or does I/O.

pub mod audit;
pub mod bus;
pub mod cluster;
pub mod command_line;
pub mod config;
pub mod ctl;
pub mod daemon;
pub mod dbus;
pub mod frames;
pub mod generator;
pub mod guard;
pub mod guard_client;
pub mod host;
pub mod http;
pub mod journal;
pub mod keys;
pub mod metrics;
pub mod net;
#[cfg(test)]
#[path = "../tests/support/samples.rs"]
mod samples;
pub mod store;
pub mod systemd;
pub mod task;

pub use putexd_core::{election, facts, types, words};
