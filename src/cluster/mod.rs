//! What the hosts of a cluster tell each other through the store, beside the locks: a report of each host, requests of
//! operators to another host, and the history of each lock; and what one host makes of all that.
//!
//! Nothing here decides anything. A host that can neither read nor write these keys runs its services as ever, and an operator
//! sees less. The layout of each value is JSON with a version of its own; whoever reads it takes anything that is missing or
//! unknown as absent, because other versions of putexd write it as well.

pub mod history;
pub mod picture;
pub mod verb;
pub mod wire;
