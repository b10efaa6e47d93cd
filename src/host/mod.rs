//! What the kernel tells and does: clocks, randomness, identities, control groups, mounts, files. No D-Bus, no store, no configuration.

pub mod address;
pub mod cgroup;
pub mod clock;
pub mod descriptors;
pub mod exit;
pub mod files;
pub mod group_name;
pub mod identity;
pub mod mountinfo;
pub mod mounts;
pub mod processes;
pub mod self_fence;
pub mod watchdog;
