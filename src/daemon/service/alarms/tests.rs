use std::{collections::BTreeSet, path::Path, sync::Arc};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, duplex};

use super::*;
use crate::{
    daemon::{
        fake::{Fake, settings, stopped_lease},
        local::machine::ThisMachine,
    },
    guard_client::frame::{Command, GuardState, ListedLease, Of, Outcome, Reply, Request},
};

/// A guard that lists `listed`. `None`: it does not answer when it is asked for a lease.
async fn serve(stream: DuplexStream, listed: Option<Vec<ListedLease>>) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while let Ok(1..) = stream.read_line(&mut line).await {
        let Request { id, command } = serde_json::from_str(&line).expect("a request");
        line.clear();
        let leases = match &listed {
            None if command != Command::List(Of::None) => continue,
            listed => listed.clone().unwrap_or_default(),
        };
        let result = Outcome::Leases(GuardState {
            leases,
            ..GuardState::default()
        });
        let mut reply = serde_json::to_vec(&Reply { id, result }).expect("a reply");
        reply.push(b'\n');
        stream.write_all(&reply).await.expect("putexd reads");
    }
}

/// Whether `units` are dead by the word of a guard that lists `listed`.
async fn are_dead(units: &UnitControl, listed: Option<Vec<ListedLease>>) -> bool {
    let (guard, connection) = GuardClient::over(Duration::from_secs(5), move || {
        let (near, far) = duplex(65_536);
        tokio::spawn(serve(far, listed.clone()));
        async { Ok(near) }
    });
    tokio::spawn(connection);
    guard
        .link()
        .wait_for(|is_up| *is_up)
        .await
        .expect("it is there");
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
