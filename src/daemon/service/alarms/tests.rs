use std::{collections::BTreeSet, path::Path, sync::Arc};

use super::*;
use crate::{
    daemon::{
        fake::{Fake, guard, settings, stopped_lease},
        local::machine::ThisMachine,
    },
    guard_client::frame::ListedLease,
};

/// Whether `units` are dead by the word of a guard that lists `listed`.
async fn are_dead(units: &UnitControl, listed: Option<Vec<ListedLease>>) -> bool {
    let guard = guard(listed).await;
    are_dead_by_guard(&guard, &settings().name, units).await
}

#[tokio::test(start_paused = true)]
async fn a_host_is_spared_by_the_guards_word_or_the_proof_and_waits_for_neither() {
    let machine = Arc::new(ThisMachine::new(Path::new("/nowhere")));
    let fake = Arc::new(Fake::default());
    let units = UnitControl::new(&settings(), Vec::new(), BTreeSet::new(), fake, machine);
    let unproven = ListedLease {
        stopped: false,
        ..stopped_lease()
    };
    assert!(are_dead(&units, Some(vec![stopped_lease()])).await);
    assert!(
        !are_dead(&units, Some(vec![unproven])).await,
        "the guard has no proof"
    );
    assert!(
        !are_dead(&units, Some(Vec::new())).await,
        "the guard knows of no lease"
    );
    let since = tokio::time::Instant::now();
    assert!(!are_dead(&units, None).await, "the guard hangs");
    assert!(
        since.elapsed() < GUARD_LIMIT * 2,
        "another host may start them meanwhile"
    );
    units.stop(Some(Time::default())).await;
    assert!(
        are_dead(&units, Some(Vec::new())).await,
        "the proof came, and the guard has forgotten the lease"
    );
}
