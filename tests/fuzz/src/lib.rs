//! What each fuzz target does with its input. `tests/corpora.rs` runs the same functions over the corpora, so that every
//! input that ever broke something is tried on each change without cargo-fuzz.
//!
//! A target is more than a search for panics: what decodes must survive being encoded again, what is refused must be
//! refused with a reason, and whatever a store may hold the election must be able to go on from it.

mod configuration;
mod frames;
mod journal;
mod process;
mod record;
mod stores;

/// A target's name, which its corpus has too, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All of them, but for stores that this build does not have.
pub const TARGETS: &[Target] = &[
    ("configuration", configuration::configuration),
    ("directory", stores::directory),
    #[cfg(feature = "etcd")]
    ("etcd", stores::etcd),
    ("frames", frames::frames),
    ("journal", journal::journal),
    ("nats", stores::nats),
    #[cfg(feature = "postgres")]
    ("postgres", stores::postgres),
    ("process", process::process),
    ("record", record::record),
];

/// Runs the target of a name.
///
/// # Panics
///
/// If the input shows something that must not be, or if there is no such target.
pub fn run(name: &str, input: &[u8]) {
    let (_, target) = TARGETS
        .iter()
        .find(|(known, _)| *known == name)
        .expect("a target of this build");
    target(input);
}
