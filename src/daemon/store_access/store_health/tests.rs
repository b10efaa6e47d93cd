use tokio::time::sleep;

use super::*;
use crate::{
    daemon::fake::written,
    store::{
        directory::{DirectorySettings, DirectoryStore},
        memory::MemoryStore,
    },
    types::span::milliseconds,
    words,
};

const WALL: Duration = Duration::from_secs(1_767_225_600);

fn lasts(since: Option<At>) -> u64 {
    since.map_or(0, |since| milliseconds(since.since(At::new(WALL))))
}

fn shown(health: &StoreHealth) -> u64 {
    lasts(health.state_at(WALL).silent_since)
}

/// How long ago the store answered again.
fn returned(health: &StoreHealth) -> Option<u64> {
    let state = health.state_at(WALL);
    state.returned.map(|at| lasts(Some(at)))
}

async fn pass(milliseconds: u64) {
    tokio::time::advance(Duration::from_millis(milliseconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_again_or_is_made_is_reported() {
    let health = StoreHealth::default();
    let mut returns = health.returns();
    let call = || health.call(false);
    call().ends(Ok(None));
    assert!(returned(&health).is_none() && !returns.has_changed().expect("it is there"));
    pass(100).await;
    drop(call());
    pass(3000).await;
    call().ends(Ok(None));
    assert_eq!(returned(&health), Some(0));
    assert!(returns.has_changed().expect("it is there"));
    returns.mark_unchanged();
    pass(2000).await;
    let state = health.state_at(WALL);
    assert_eq!(lasts(state.returned), 2000);
    // A store that was deleted, and refuses writes, is told of as that.
    let missing = StoreError::Missing("the bucket is gone".to_owned());
    call().ends(Ok(Some(&missing)));
    health.call(true).ends(Err("no such stream"));
    pass(3000).await;
    call().ends(Ok(Some(&missing)));
    health.call(true).ends(Err("no such stream"));
    let state = health.state_at(WALL);
    assert_eq!(
        (state.unwritten_since, state.error),
        (None, Some(missing.to_string()))
    );
    returns.mark_unchanged();
    call().ends(Ok(None));
    assert!(returns.has_changed().expect("it is there"));
    assert_eq!(returned(&health), Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_silence_lasts_from_the_last_answer_to_the_next() {
    let health = StoreHealth::default();
    let call = || health.call(false);
    let (first, early) = (call(), call());
    first.ends(Ok(None));
    pass(2500).await;
    // It was sent before the store answered another call.
    early.ends(Err("late"));
    assert_eq!(shown(&health), 0);
    drop(call());
    pass(3000).await;
    call().ends(Err("no leader"));
    assert_eq!(shown(&health), 5500);
    pass(4000).await;
    call().ends(Ok(None));
    assert_eq!(shown(&health), 0);
    // A shorter silence is noted, but not a call that failed for less than a second.
    for (span, ago) in [(2000, 0), (999, 1999), (1000, 0)] {
        pass(1000).await;
        drop(call());
        pass(span).await;
        call().ends(Ok(None));
        assert_eq!(
            (shown(&health), returned(&health)),
            (0, Some(ago)),
            "{span}"
        );
    }
    // After a long time without calls it is not known since when there would have been no answer.
    pass(60_000).await;
    drop(call());
    pass(2000).await;
    assert_eq!(shown(&health), 2000);
}

/// A folder that was never made a store, as that of a share that is not mounted, answers, and cannot be used.
#[tokio::test]
async fn a_store_that_does_not_exist_is_not_called_well() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = DirectorySettings {
        path: folder.path().to_owned(),
        owner: None,
    };
    let store = Arc::new(DirectoryStore::at(settings, Duration::from_secs(5)));
    let health = StoreHealth::new("directory".to_owned(), Alarms::default());
    let monitored = health.of(Arc::clone(&store) as Arc<dyn Store>);
    let key = Key::new("db").expect("a key");
    let looked = async {
        loop {
            let error = monitored
                .read(&key, None)
                .await
                .expect_err("there is no store");
            if !matches!(error, StoreError::Unreachable(_)) {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let error = tokio::time::timeout(Duration::from_secs(10), looked)
        .await
        .expect("it is looked at");
    assert!(matches!(error, StoreError::Missing(_)), "{error}");
    let state = health.state_at(WALL);
    assert_eq!(
        (state.silent_since, state.error.as_ref()),
        (None, Some(&error.to_string()))
    );
    assert_eq!(
        words::store_trouble(&state, At::new(WALL)),
        Some(format!(
            "see \"putexctl doctor\": the store (directory) cannot be used: {error}"
        ))
    );
    store.init().await.expect("it is made");
    monitored.read(&key, None).await.expect("it is there");
    let state = health.state_at(WALL);
    assert_eq!(words::store_trouble(&state, At::new(WALL)), None);
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_is_a_silence_whether_or_not_somebody_asks() {
    let store = Arc::new(MemoryStore::new(Duration::from_secs(1)));
    let health = StoreHealth::default();
    let monitored = health.of(Arc::clone(&store) as Arc<dyn Store>);
    let key = Key::new("db").expect("a key");
    tokio::task::yield_now().await;
    monitored.read(&key, None).await.expect("it is there");
    pass(1000).await;
    store.go_down("it is away");
    tokio::task::yield_now().await;
    assert_eq!(shown(&health), 1000);
    pass(2000).await;
    assert_eq!(shown(&health), 3000);
    assert!(monitored.read(&key, None).await.is_err());
    // A new connection is no answer to the calls that are made.
    store.go_up();
    pass(500).await;
    assert_eq!(shown(&health), 3500);
    monitored.read(&key, None).await.expect("it is there");
    assert_eq!(shown(&health), 0);
    // Without calls it counts as an answer.
    store.go_down("it is away");
    tokio::task::yield_now().await;
    pass(5000).await;
    store.go_up();
    tokio::task::yield_now().await;
    assert_eq!(shown(&health), 0);
}

#[tokio::test(start_paused = true)]
async fn the_journal_hears_once_that_the_store_is_lost_and_once_that_it_is_found() {
    let (written, _guard) = written();
    let health = StoreHealth::default();
    let call = || health.call(false);
    let lose = |error| health.lose(&mut health.state(), error);
    call().ends(Ok(None));
    pass(1).await;
    for _ in 0..100 {
        drop(call());
    }
    assert!(written.take().is_empty(), "one lost call is no silence");
    pass(1000).await;
    for _ in 0..100 {
        call().ends(Err("no leader"));
    }
    assert_eq!(written.take(), ["the store is lost: no leader"]);
    pass(3000).await;
    lose("the connection is lost as well");
    call().ends(Ok(None));
    call().ends(Ok(None));
    assert!(written.take().is_empty(), "it may be lost again at once");
    settled(&health).await;
    let over = "the alarm store-lost is over";
    let found = written.take();
    assert!(
        matches!(&found[..], [one] if one.starts_with(over)),
        "{found:?}"
    );
    // A lost connection is told at once.
    health.connected(&Link::lost("refused"));
    lose("refused");
    lose("refused again");
    pass(200).await;
    call().ends(Ok(None));
    settled(&health).await;
    let logged = written.take();
    assert_eq!(
        (logged.len(), &*logged[0]),
        (2, "the store is lost: refused")
    );
    assert!(logged[1].starts_with(over), "{logged:?}");
}

/// Long enough for the store to count as found.
async fn settled(health: &StoreHealth) {
    sleep(SETTLED).await;
    health.settle();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_comes_and_goes_is_one_loss() {
    let (written, _guard) = written();
    let health = StoreHealth::default();
    health.call(false).ends(Ok(None));
    for _ in 0..14 {
        health.connected(&Link::lost("refused"));
        health.lose(&mut health.state(), "refused");
        pass(500).await;
        health.call(false).ends(Ok(None));
        assert!(health.alarms.stands(AlarmKind::StoreLost));
        pass(500).await;
    }
    // The next silences are too short to be a loss by themselves.
    for _ in 0..30 {
        health.connected(&Link::lost("refused"));
        pass(400).await;
        health.call(false).ends(Ok(None));
        pass(600).await;
        health.settle();
        assert!(health.alarms.stands(AlarmKind::StoreLost));
    }
    assert_eq!(written.take(), ["the store is lost: refused"]);
    settled(&health).await;
    assert_eq!(written.take().len(), 1);
    settled(&health).await;
    assert!(written.take().is_empty() && health.alarms.kinds().is_empty());
}

/// The time of the present silence, the time in which no write was taken (both in milliseconds), and the error.
fn trouble(health: &StoreHealth) -> (u64, u64, String) {
    let state = health.state_at(WALL);
    (
        lasts(state.silent_since),
        lasts(state.unwritten_since),
        state.error.unwrap_or_default(),
    )
}

#[tokio::test(start_paused = true)]
async fn the_last_error_of_a_silence_is_reported_until_it_ends() {
    let health = StoreHealth::default();
    let call = || health.call(false);
    call().ends(Ok(None));
    pass(1000).await;
    drop(call());
    assert_eq!(trouble(&health), (1000, 0, IN_TIME.to_owned()));
    call().ends(Err("no leader"));
    drop(call());
    assert_eq!(trouble(&health).2, "no leader", "it says more");
    health.connected(&Link::lost("refused"));
    assert_eq!(trouble(&health).2, "refused");
    call().ends(Ok(None));
    assert_eq!(trouble(&health), (0, 0, String::new()));
}

/// A server that is cut off from the others of its cluster.
#[tokio::test(start_paused = true)]
async fn a_store_that_answers_reads_and_takes_no_writes_is_reported() {
    let health = StoreHealth::default();
    let read = || health.call(false).ends(Ok(None));
    let write = async || {
        let write = health.call(true);
        pass(1500).await;
        drop(write);
    };
    read();
    write().await;
    read();
    assert_eq!(
        trouble(&health),
        (0, 0, String::new()),
        "one write may be lost"
    );
    write().await;
    assert_eq!(trouble(&health), (0, 3000, IN_TIME.to_owned()));
    assert_eq!(health.alarms.kinds(), [AlarmKind::StoreReadOnly]);
    for _ in 0..10 {
        read();
        write().await;
    }
    assert_eq!(trouble(&health), (0, 18_000, IN_TIME.to_owned()));
    // Now reads are not answered either.
    for _ in 0..4 {
        write().await;
    }
    assert_eq!((trouble(&health).0 > 4000, trouble(&health).1), (true, 0));
    read();
    write().await;
    assert!(trouble(&health).1 > 24_000);
    health.call(true).ends(Ok(None));
    assert_eq!(trouble(&health), (0, 0, String::new()));
    assert!(!health.alarms.stands(AlarmKind::StoreReadOnly));
    // The store was completely silent, and answers a read first.
    for _ in 0..3 {
        write().await;
    }
    read();
    assert_eq!(trouble(&health), (0, 0, String::new()));
    health.call(true).ends(Ok(None));
    // When no host writes any more, the end is not noticed.
    write().await;
    read();
    write().await;
    assert_eq!(trouble(&health).1, 3000);
    for _ in 0..20 {
        pass(1000).await;
        read();
    }
    assert_eq!(trouble(&health), (0, 0, String::new()));
    write().await;
    read();
    assert_eq!(trouble(&health), (0, 0, String::new()), "it counts anew");
}

#[test]
fn what_the_store_refuses_is_an_answer() {
    let health = StoreHealth::default();
    let call = || health.call(false);
    call().ends(Ok(Some(&StoreError::Missing("gone".to_owned()))));
    assert!(health.state().answered.is_some());
    assert!(!trouble(&health).2.is_empty());
    call().ends(Ok(None));
    assert_eq!(trouble(&health).2, "");
}
