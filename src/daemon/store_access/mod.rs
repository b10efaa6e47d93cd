//! The ways to the store.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`store_health`] | how the store answers this host |
//! | [`hints`] | one watch of the store for all services |
//! | [`observation`] | what the store has shown, in the words of the election |
//! | [`notes`] | the way to the store for what is no lock |
//! | [`history`] | writes the histories of locks into the store |

pub mod hints;
pub mod history;
pub mod notes;
pub mod observation;
pub mod store_health;
