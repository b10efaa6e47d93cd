//! The ways to the store.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`store_health`] | how the store answers this host |
//! | [`hints`] | one watch of the store for all services |
//! | [`calls`] | calls that are given up in time |
//! | [`notes`] | the way to the store for what is no lock |
//! | [`history`] | writes the histories of locks into the store |

pub(super) mod calls;
pub mod hints;
pub mod history;
pub(super) mod notes;
pub(super) mod store_health;
