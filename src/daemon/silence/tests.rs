use super::*;
use crate::daemon::fake::written;
use crate::store::Administer as _;
use crate::store::directory::DirectorySettings;
use crate::store::directory::DirectoryStore;
use crate::store::memory::MemoryStore;

fn shown(silences: &Silences) -> (u64, u64, u64) {
    let status = silences.status("a store".to_owned());
    (status.silent_ms, status.silences, status.longest_ms)
}

async fn pass(milliseconds: u64) {
    tokio::time::advance(Duration::from_millis(milliseconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_again_or_is_made_is_told_of() {
    let silences = Silences::default();
    let mut returns = silences.returns();
    let call = || silences.call(false);
    call().ends(Ok(None));
    assert!(silences.returned().is_none() && !returns.has_changed().expect("it is there"));
    pass(100).await;
    drop(call());
    pass(3000).await;
    call().ends(Ok(None));
    assert_eq!(silences.returned(), Some(Duration::ZERO));
    assert!(returns.has_changed().expect("it is there"));
    returns.mark_unchanged();
    pass(2000).await;
    assert_eq!(silences.status(String::new()).returned_ms, Some(2000));
    // A store that was deleted, and refuses writes, is told of as that.
    let missing = StoreError::Missing("the bucket is gone".to_owned());
    call().ends(Ok(Some(&missing)));
    silences.call(true).ends(Err(&"no such stream".to_owned()));
    pass(3000).await;
    call().ends(Ok(Some(&missing)));
    silences.call(true).ends(Err(&"no such stream".to_owned()));
    let status = silences.status(String::new());
    assert_eq!((status.unwritten_ms, &status.error), (0, &missing.to_string()));
    returns.mark_unchanged();
    call().ends(Ok(None));
    assert!(returns.has_changed().expect("it is there"));
    assert_eq!(silences.returned(), Some(Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_silence_lasts_from_the_last_answer_to_the_next() {
    let silences = Silences::default();
    let call = || silences.call(false);
    let (first, early) = (call(), call());
    first.ends(Ok(None));
    pass(2500).await;
    // It was sent before the store answered another call.
    early.ends(Err(&"late".to_owned()));
    assert_eq!(shown(&silences), (0, 0, 0));
    drop(call());
    pass(3000).await;
    call().ends(Err(&"no leader".to_owned()));
    assert_eq!(shown(&silences), (5500, 1, 5500));
    pass(4000).await;
    call().ends(Ok(None));
    assert_eq!(shown(&silences), (0, 1, 9500));
    // A shorter silence is counted, but not a call that failed for less than a second.
    for (span, count) in [(2000, 2), (999, 2), (1000, 3)] {
        pass(1000).await;
        drop(call());
        pass(span).await;
        call().ends(Ok(None));
        assert_eq!(shown(&silences), (0, count, 9500), "{span}");
    }
    // After a long time without calls it is not known since when there would have been no answer.
    pass(60_000).await;
    drop(call());
    pass(2000).await;
    assert_eq!(shown(&silences), (2000, 4, 9500));
}

#[tokio::test(start_paused = true)]
async fn a_store_answers_while_no_call_is_late() {
    let silences = Silences::default();
    silences.call(false).ends(Ok(None));
    pass(2000).await;
    let late = silences.call(false);
    pass(999).await;
    assert_eq!(shown(&silences), (0, 0, 0));
    pass(1).await;
    assert_eq!(shown(&silences), (3000, 0, 0));
    late.ends(Ok(None));
    assert_eq!(shown(&silences), (0, 0, 0));
}

/// A folder that was never made a store, as that of a share that is not mounted, answers, and cannot be used.
#[tokio::test]
async fn a_store_that_does_not_exist_is_not_called_well() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = DirectorySettings { path: folder.path().to_owned(), owner: None };
    let store = Arc::new(DirectoryStore::new(settings, Duration::from_secs(5)));
    let silences = Silences::default();
    let heard = Heard::new(Arc::clone(&store) as Arc<dyn Store>, silences.clone());
    let key = Key::new("db").expect("a key");
    let looked = async {
        loop {
            let error = heard.read(&key, None).await.expect_err("there is no store");
            if !matches!(error, StoreError::Unreachable(_)) {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let error = tokio::time::timeout(Duration::from_secs(10), looked).await.expect("it is looked at");
    assert!(matches!(error, StoreError::Missing(_)), "{error}");
    let status = silences.status("directory".to_owned());
    assert_eq!((status.silent_ms, &status.error), (0, &error.to_string()));
    assert_eq!(status.trouble(), Some(format!("the store (directory) cannot be used: {error}")));
    store.init().await.expect("it is made");
    heard.read(&key, None).await.expect("it is there");
    assert_eq!(silences.status("directory".to_owned()).trouble(), None);
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_is_a_silence_whether_or_not_somebody_asks() {
    let store = Arc::new(MemoryStore::new(Duration::from_secs(1)));
    let silences = Silences::default();
    let heard = Heard::new(Arc::clone(&store) as Arc<dyn Store>, silences.clone());
    let key = Key::new("db").expect("a key");
    tokio::task::yield_now().await;
    heard.read(&key, None).await.expect("it is there");
    pass(1000).await;
    store.go_down("it is away");
    tokio::task::yield_now().await;
    assert_eq!(shown(&silences), (1000, 0, 0));
    pass(2000).await;
    assert_eq!(shown(&silences), (3000, 1, 3000));
    assert!(heard.read(&key, None).await.is_err());
    // A new connection is no answer to the calls that are made.
    store.go_up();
    pass(500).await;
    assert_eq!(shown(&silences), (3500, 1, 3500));
    heard.read(&key, None).await.expect("it is there");
    assert_eq!(shown(&silences), (0, 1, 3500));
    // Without calls it counts as an answer.
    store.go_down("it is away");
    tokio::task::yield_now().await;
    pass(5000).await;
    store.go_up();
    tokio::task::yield_now().await;
    assert_eq!(shown(&silences), (0, 2, 5000));
}

#[tokio::test(start_paused = true)]
async fn the_journal_hears_once_that_the_store_is_lost_and_once_that_it_is_found() {
    let (written, _guard) = written();
    let silences = Silences::default();
    let call = || silences.call(false);
    call().ends(Ok(None));
    for _ in 0..100 {
        drop(call());
    }
    assert!(written.take().is_empty(), "one lost call is no silence");
    pass(1000).await;
    for _ in 0..100 {
        call().ends(Err(&"no leader".to_owned()));
    }
    assert!(silences.tidings.store_fails());
    let lost = "the store is lost: it has given no answer for 1.0s: no leader; 0 services are concerned, none of them \
                active here";
    assert_eq!(written.take(), [lost]);
    pass(3000).await;
    silences.lost(&mut silences.noted(), "the connection is lost as well");
    call().ends(Ok(None));
    call().ends(Ok(None));
    assert!(written.take().is_empty(), "it may be lost again at once");
    settled().await;
    assert!(!silences.tidings.store_fails());
    let found = "the store answers again: it gave no answer for 4.0s; 0 services are concerned, none of \
                 them active here";
    assert_eq!(written.take(), [found]);
    // A lost connection is told at once.
    silences.connected(&Link::Down("refused".to_owned()));
    silences.lost(&mut silences.noted(), "refused");
    silences.lost(&mut silences.noted(), "refused again");
    pass(200).await;
    call().ends(Ok(None));
    settled().await;
    let lost = "the store is lost: refused; 0 services are concerned, none of them active here";
    let found = "the store answers again: it gave no answer for 0.2s; 0 services are concerned, none \
                 of them active here";
    assert_eq!(written.take(), [lost, found]);
}

/// Long enough for the journal to hear that the store answers again.
async fn settled() {
    sleep(SETTLED + Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_comes_and_goes_is_one_loss() {
    let (written, _guard) = written();
    let silences = Silences::default();
    let is_standing = || !silences.tidings.alarms().told().is_empty();
    silences.call(false).ends(Ok(None));
    for _ in 0..14 {
        silences.connected(&Link::Down("refused".to_owned()));
        silences.lost(&mut silences.noted(), "refused");
        assert!(is_standing());
        pass(500).await;
        silences.call(false).ends(Ok(None));
        assert!(!is_standing() && silences.tidings.store_fails());
        pass(500).await;
    }
    let lost = "the store is lost: refused; 0 services are concerned, none of them active here";
    assert_eq!(written.take(), [lost]);
    settled().await;
    let found = "the store answers again: it was lost 14 times within 13.5s; 0 services are concerned, none of them active here";
    assert_eq!(written.take(), [found]);
    settled().await;
    assert!(written.take().is_empty() && !silences.tidings.store_fails());
}

/// The time of the present silence, the time in which no write was taken (both in milliseconds), and the error.
fn trouble(silences: &Silences) -> (u64, u64, String) {
    let status = silences.status("a store".to_owned());
    (status.silent_ms, status.unwritten_ms, status.error)
}

#[tokio::test(start_paused = true)]
async fn the_last_error_of_a_silence_is_told_until_it_ends() {
    let silences = Silences::default();
    let call = || silences.call(false);
    call().ends(Ok(None));
    pass(1000).await;
    drop(call());
    assert_eq!(trouble(&silences), (1000, 0, IN_TIME.to_owned()));
    call().ends(Err(&"no leader".to_owned()));
    drop(call());
    assert_eq!(trouble(&silences).2, "no leader", "it says more");
    silences.connected(&Link::Down("refused".to_owned()));
    assert_eq!(trouble(&silences).2, "refused");
    call().ends(Ok(None));
    assert_eq!(trouble(&silences), (0, 0, String::new()));
}

/// A server that is cut off from the others of its cluster.
#[tokio::test(start_paused = true)]
async fn a_store_that_answers_reads_and_takes_no_writes_is_told_of() {
    let silences = Silences::default();
    let read = || silences.call(false).ends(Ok(None));
    let write = async || {
        let write = silences.call(true);
        pass(1500).await;
        drop(write);
    };
    read();
    write().await;
    read();
    assert_eq!(trouble(&silences), (0, 0, String::new()), "one write may be lost");
    write().await;
    assert_eq!(trouble(&silences), (0, 3000, IN_TIME.to_owned()));
    for _ in 0..10 {
        read();
        write().await;
    }
    assert_eq!(trouble(&silences), (0, 18_000, IN_TIME.to_owned()));
    // Now reads are not answered either.
    for _ in 0..4 {
        write().await;
    }
    assert_eq!((trouble(&silences).0 > 4000, trouble(&silences).1), (true, 0));
    read();
    write().await;
    assert!(trouble(&silences).1 > 24_000);
    silences.call(true).ends(Ok(None));
    assert_eq!(trouble(&silences), (0, 0, String::new()));
    // The store was completely silent, and answers a read first.
    for _ in 0..3 {
        write().await;
    }
    read();
    assert_eq!(trouble(&silences), (0, 0, String::new()));
    silences.call(true).ends(Ok(None));
    // When no host writes any more, the end is not noticed.
    write().await;
    read();
    write().await;
    assert_eq!(trouble(&silences).1, 3000);
    for _ in 0..20 {
        pass(1000).await;
        read();
    }
    assert_eq!(trouble(&silences), (0, 0, String::new()));
    write().await;
    read();
    assert_eq!(trouble(&silences), (0, 0, String::new()), "it counts anew");
}

#[test]
fn what_the_store_refuses_is_an_answer() {
    let silences = Silences::default();
    silences.call(false).ends(Ok(Some(&StoreError::Missing("gone".to_owned()))));
    assert!(silences.noted().answered.is_some());
    assert!(!silences.noted().refusal.is_empty());
    silences.call(false).ends(Ok(None));
    assert_eq!(silences.noted().refusal, "");
}
