//! putexd runs a systemd unit on one host at a time, over a lock store.
//!
//! The layers, lowest first; imports point down only, and `tests/layering.rs` reads the sources to keep it so:
//!
//! | layer | modules |
//! | --- | --- |
//! | words | [`types`], [`command_line`] |
//! | the protocol, the kernel | [`election`], [`host`] |
//! | edges, which never import each other | [`config`], [`store`], [`systemd`], [`guard`], [`journal`] |
//! | the served interface | [`dbus`] |
//! | programs | [`daemon`], [`ctl`], [`generator`], [`guardian`] |
//!
//! **Architecture invariant:** nothing in [`election`] reads a clock, draws randomness, logs, or does I/O.

pub mod command_line;
pub mod config;
pub mod ctl;
pub mod daemon;
pub mod dbus;
pub mod election;
pub mod generator;
pub mod guard;
pub mod guardian;
pub mod host;
pub mod journal;
pub mod store;
pub mod systemd;
pub mod types;
