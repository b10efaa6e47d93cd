//! putexd runs a systemd unit on one host at a time, over a lock store.
//!
//! The layers, lowest first; imports point down only, and `tests/layering.rs` reads the sources to keep it so:
//!
//! | layer | modules |
//! | --- | --- |
//! | words | [`types`], [`command_line`] |
//! | the protocol, the kernel | [`election`], [`host`] |
//! | edges, which never import each other | [`config`], [`store`], [`systemd`], [`guard_client`], [`journal`] |
//! | the served interface | [`dbus`] |
//! | programs | [`daemon`], [`ctl`], [`generator`], [`guard`] |
//!
//! # Glossary
//!
//! | term | meaning |
//! | --- | --- |
//! | service | what one file in /etc/putex.d names: a unit, what is bound to it, and the lock that it runs under |
//! | lock | a key of the store; whoever's record is its latest value holds it |
//! | record | the value of a lock: who holds it, for how long, and what is needed to take it over ([`election::Record`]) |
//! | holder, contender, standby | the host whose record is there; any host that may take the lock; one that does not hold it |
//! | tenure | one time of holding a lock, from the first write to the last; it has an instance of its own |
//! | instance | 128 random bits that tell one tenure from another |
//! | fencing token | a number that grows with each tenure, so that what the unit writes to can refuse a former one; `term` in the record |
//! | R, F, C, S | renewal interval, failures, confirmations, stop budget ([`election::Timings`]) |
//! | T, hold | R·F, the lease; T − m + S, the time in which a holder's unit is dead if nothing is renewed |
//! | lease | a holder's permission to run the unit until a deadline; the guard has it, and systemd shows it as `putex-lease@SERVICE.target` |
//! | grant | the file in /run that the gate looks for while there is a lease |
//! | gate | what keeps systemd from starting the unit without a grant: assertion, condition, `BindsTo=` ([`generator`]) |
//! | guard | the process that ends leases at their deadlines whatever became of putexd ([`guard`]) |
//! | lapse, release | the end of a tenure in which the unit is killed and nothing is written; the one in good order, at whose end the lock is free |
//! | proof | that nothing of a unit runs any more: units inactive, control groups empty, nothing mounted |
//! | entry | under which key a unit is run at all, kept in the store beside the locks |
//! | incarnation | which making of the store it is: a store that was wiped or restored has another |
//! | admission | whether the unit, as systemd has it loaded, is one whose stop can be proven |
//!
//! **Architecture invariant:** nothing in [`election`] reads a clock, draws randomness, logs, or does I/O.

pub mod command_line;
pub mod config;
pub mod ctl;
pub mod daemon;
pub mod dbus;
pub mod generator;
pub mod guard;
pub mod guard_client;
pub mod host;
pub mod journal;
pub mod store;
pub mod systemd;

pub use putexd_core::{election, types};
