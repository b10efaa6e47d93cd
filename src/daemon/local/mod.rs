//! What this host has, keeps and decides by itself.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`machine`] | what a service needs of its host: clocks, timers, tasks, memory |
//! | [`timers`] | what wakes a service, and how often it looks |
//! | [`alarms`] | the alarms that stand, until they are over |
//! | [`drain`] | whether an operator has had this host hand everything over |
//! | [`fence`] | the units that fence other hosts and unfence this one |
//! | [`cgroup_owners`] | which control groups belong to which service |

pub mod alarms;
pub mod cgroup_owners;
pub mod drain;
pub mod fence;
pub mod machine;
pub mod timers;
