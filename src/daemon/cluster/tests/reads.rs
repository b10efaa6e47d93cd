//! When reports are read, and what of them is believed.

use super::*;

#[tokio::test(start_paused = true)]
async fn whoever_looks_sees_changes_soon_although_the_store_gives_no_hints() {
    let store = MemoryStore::new(LIMIT);
    store.deaden_watches(true);
    let one = Member::new(&store, "h1", 1);
    let two = Member::new(&store, "h2", 1);
    sleep(SEEN * 2).await;
    let reads = two.reads();
    for state in [State::Active, State::Releasing, State::Active] {
        one.enter(state);
        for _ in 0..30 {
            two.cluster.looked_at();
            sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(first(&two.sees("h1")).state, Some(state));
    }
    assert!(
        two.reads() - reads < 60,
        "the looks are paced: {}",
        two.reads() - reads
    );
}

#[tokio::test(start_paused = true)]
async fn nobody_is_silent_because_the_store_was_away() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", 1);
    let two = Member::new(&store, "h2", 1);
    sleep(SEEN * 2).await;
    store.go_down("it is away");
    sleep(Duration::from_secs(90)).await;
    assert_eq!(
        (one.sees("h2").presence, two.sees("h1").presence),
        (Presence::Up, Presence::Up)
    );
    store.go_up();
    for _ in 0..300 {
        sleep(Duration::from_millis(100)).await;
        let seen = one.sees("h2");
        assert_eq!(seen.presence, Presence::Up, "{seen:?}");
    }
    // One that died meanwhile is found out once the store has answered for as long.
    drop(two);
    sleep(Duration::from_secs(45)).await;
    assert_eq!(one.sees("h2").presence, Presence::Silent);
}

/// Nobody waits for the next report where it is known that the store answers again.
#[tokio::test(start_paused = true)]
async fn the_hosts_report_and_look_as_soon_as_the_store_answers_again() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", 1);
    let two = Member::new(&store, "h2", 1);
    sleep(SEEN * 2).await;
    store.go_down("it is away");
    // The pauses after attempts that fail are at their longest.
    sleep(Duration::from_secs(61)).await;
    let [seen, reported] = one.seen("h2");
    assert!(
        reported > Some(50_000) && seen < Some(15_000),
        "{reported:?}, {seen:?}"
    );
    store.go_up();
    for member in [&one, &two] {
        member.returns.send_replace(Some(Instant::now()));
    }
    sleep(Duration::from_millis(1500)).await;
    for (sees, of) in [(&one, "h2"), (&two, "h1")] {
        assert_eq!(sees.trouble(), "");
        assert!(sees.seen(of)[1] <= Some(1500), "{:?}", sees.seen(of));
    }
}

/// After a start of putexd the reports that are there tell how old they are, as far as the clocks go alike.
#[tokio::test(start_paused = true)]
async fn a_report_that_is_found_counts_by_its_time() {
    let store = MemoryStore::new(LIMIT);
    let two = Member::new(&store, "h2", 1);
    sleep(SEEN * 2).await;
    drop(two);
    sleep(Duration::from_secs(2)).await;
    // Its clock begins at the same time as that of h2 did, half a minute ago.
    let late = Member::new(&store, "h3", 1);
    sleep(Duration::from_millis(900)).await;
    let seen = late.sees("h2");
    assert_eq!(
        (seen.presence, seen.reported, seen.services.len()),
        (Presence::Up, None, 1),
        "{:?}",
        seen.seen
    );
    // A clock that goes quite differently says nothing.
    let head = Key::of_host(None, &NodeId::new("h2").expect("a name"), 0);
    let report = Report {
        host: HostState {
            at: At::seconds(NOW + 900),
            ..late.sees("h2").state
        },
        ..Report::default()
    };
    store.put(&head, wire::encode(&report));
    let later = Member::new(&store, "h4", 1);
    sleep(Duration::from_millis(900)).await;
    assert_eq!(later.sees("h2").presence, Presence::Unknown);
}

/// Somebody writes a list of hosts and a report of his own over those that are there, for as long as he likes.
#[tokio::test(start_paused = true)]
async fn what_was_forged_is_put_right_soon_after() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", 1);
    let two = Member::new(&store, "h2", 1);
    sleep(SEEN * 2).await;
    let h2 = NodeId::new("h2").expect("a name");
    let names = (0..wire::HOSTS_LIMIT).map(|n| (format!("x{n}"), NOW + 60));
    let full = wire::encode(&wire::HostList {
        hosts: names.collect(),
    });
    let forged = wire::encode(&Report {
        host: HostState {
            node: "h2".to_owned(),
            ..HostState::default()
        },
        ..Report::default()
    });
    for round in 0..40 {
        let list = if round % 2 == 0 {
            wire::encode(&wire::HostList::default())
        } else {
            full.clone()
        };
        store.put(&Key::of_hosts(None), list);
        store.put(&Key::of_host(None, &h2, 0), forged.clone());
        sleep(Duration::from_secs(1)).await;
        let known = one.cluster.known().hosts;
        assert_eq!(known.iter().filter(|known| known.node() == "h2").count(), 1);
    }
    sleep(Duration::from_secs(30)).await;
    for (sees, of) in [(&one, "h2"), (&two, "h1")] {
        let seen = sees.sees(of);
        assert_eq!(
            (seen.presence, seen.services.len()),
            (Presence::Up, 1),
            "{of}"
        );
    }
    sleep(Duration::from_secs(60)).await;
    assert!(
        one.sees("h2").state.alarms.is_empty(),
        "another host of the same name is told of for a minute"
    );
}

/// A host with another seal-key writes over the list of hosts, and its report cannot be opened.
#[tokio::test(start_paused = true)]
async fn a_host_with_another_seal_key_is_reported() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", 1);
    let two = Member::new(&store, "h2", 1);
    sleep(SEEN * 2).await;
    let trouble = || one.trouble();
    assert_eq!(trouble(), "");
    drop(two);
    let other_key = |name: &str| {
        let node = NodeId::new(name).expect("a name");
        let list = wire::HostList {
            hosts: BTreeMap::from([(name.to_owned(), NOW + 60)]),
        };
        let report = Report {
            host: HostState {
                node: name.to_owned(),
                ..HostState::default()
            },
            ..Report::default()
        };
        store.put(&Key::of_hosts(None), wire::encode(&list).marked_unsealed());
        store.put(
            &Key::of_host(None, &node, 0),
            wire::encode(&report).marked_unsealed(),
        );
    };
    // One that was known before, and one that has never reported otherwise.
    for name in ["h2", "h3"] {
        for _ in 0..8 {
            sleep(SEEN / 2).await;
            other_key(name);
        }
        sleep(SEEN).await;
        let logged = trouble();
        assert!(
            logged.contains(&format!(
                "compare the file of seal-key with that of {name},"
            )),
            "{logged}"
        );
    }
    let _two = Member::new(&store, "h2", 1);
    sleep(SEEN * 6).await;
    assert_eq!(trouble(), "");
}

#[tokio::test(start_paused = true)]
async fn that_nobody_else_reports_is_known_after_a_while_and_that_somebody_does_at_once() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", 1);
    sleep(SEEN).await;
    assert!(one.cluster.is_new());
    sleep(SEEN * 2).await;
    assert!(!one.cluster.is_new());
    let two = Member::new(&store, "h2", 1);
    sleep(SEEN).await;
    assert!(!two.cluster.is_new());
}

#[tokio::test(start_paused = true)]
async fn a_hint_of_one_report_has_that_report_read_alone() {
    let store = MemoryStore::new(LIMIT);
    let one = Member::new(&store, "h1", 1);
    let _others = ["h2", "h3"].map(|name| Member::new(&store, name, 1));
    sleep(SEEN).await;
    let (shared, node) = (&one.cluster.0, NodeId::new("h2").expect("a name"));
    let (key, before) = (shared.page_of(&node, 0), one.reads());
    let looked = shared.look(Some(BTreeSet::from([&key]))).await;
    assert_eq!(looked, (1, Ok(())));
    assert_eq!(one.reads() - before, 1);
}
