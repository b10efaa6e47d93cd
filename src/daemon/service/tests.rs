use std::{path::Path, sync::Arc};

use tokio::time::{sleep, timeout};

use super::*;
use crate::{
    daemon::{
        fake::{Fake, guard, lease, settings, written},
        host_fake::host,
        local::machine::{Clock as _, Machine as _, ThisMachine},
    },
    guard_client::frame::Lease,
    store::memory::MemoryStore,
    systemd::NotDead,
    types::{LeaseTerms, Revision},
};

const PATIENCE: Duration = Duration::from_secs(10);

/// A host without a store on which the guard has a lease of [`settings`] for so long, and that lease.
async fn holder(folder: &Path, fake: &Fake, left: Duration) -> (Host, ListedLease) {
    let machine = ThisMachine::new(folder);
    let memory = Memory {
        position: Some((Incarnation("a".to_owned()), Revision(1))),
        ..Memory::default()
    };
    machine.keep(&settings(), memory);
    machine.files.finish(PATIENCE).await;
    fake.with(|state| {
        state.started.insert(settings().unit);
        let runs = NotDead::Running("active (running)".to_owned());
        state.not_dead.insert(settings().unit, runs);
    });
    let open = lease(false);
    let terms = LeaseTerms {
        deadline: machine.now().plus(left),
        ..open.terms
    };
    let kept = ListedLease {
        lease: Lease { terms, ..open },
        lapsed: false,
        stopped: false,
    };
    let store = MemoryStore::new(Duration::from_secs(1));
    store.go_down("it is away");
    let host = Host {
        systemd: Arc::new(fake.clone()),
        guard: guard(Some(vec![kept.clone()])).await,
        ..host("h1", Arc::new(store), Arc::new(machine))
    };
    (host, kept)
}

/// The unit has run for an hour when putexd is started again.
#[tokio::test]
async fn a_unit_that_runs_on_is_shown_with_the_time_for_which_systemd_has_it_as_started() {
    let folder = tempfile::tempdir().expect("a folder");
    let fake = Fake::default();
    let (host, kept) = holder(folder.path(), &fake, PATIENCE * 6).await;
    let active_at = host
        .machine
        .wall()
        .saturating_sub(Duration::from_secs(3600));
    fake.with(|state| state.active_at = Some(active_at));
    let started = At::new(active_at);
    let (settings, changed) = (Arc::new(settings()), Arc::default());
    let mut service = spawn(&host, settings, Some(&kept), None, changed).expect("a service");
    let is_shown =
        |shown: &ServiceState| shown.state == Some(State::Active) && shown.since == Some(started);
    let is_right = timeout(PATIENCE, service.status.wait_for(is_shown))
        .await
        .is_ok();
    assert!(is_right, "{:?}", service.status.borrow());
    service.task.abort();
}

/// What follows a stop by hand is said of no unit that the guard has stopped.
#[tokio::test]
async fn a_unit_whose_lease_is_over_was_not_stopped_by_somebody() {
    let (written, _guard) = written();
    let folder = tempfile::tempdir().expect("a folder");
    let left = Duration::from_secs(2);
    let (host, kept) = holder(folder.path(), &Fake::default(), left).await;
    let settings = Arc::new(settings());
    let (status, _shown) = watch::channel(ServiceState::default());
    let display = Display {
        status,
        changed: Arc::default(),
        ahead: Duration::ZERO,
        unreadable: None,
        settings: of_settings(&settings),
    };
    let service = Service::new(&host, &settings, Some(&kept), display, &Arc::default());
    let service = service.expect("a service");
    let dead = ObservedUnit::Dead {
        result: "inactive (dead)".to_owned(),
        failed: false,
    };
    let told = || {
        service.log_end(&dead);
        let entries = written.take();
        let is_told = |entry: &String| entry.contains("was stopped, or has ended");
        entries.iter().filter(|entry| is_told(entry)).count()
    };
    assert_eq!((service.election.state(), told()), (State::Active, 1));
    let deadline = kept.lease.terms.deadline;
    while !host.machine.now().has_passed(deadline) {
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((service.election.state(), told()), (State::Active, 0));
}
