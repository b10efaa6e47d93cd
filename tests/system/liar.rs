//! A process with the store's client that somebody has taken over: it lies to putexd as `LIE` says.

use std::collections::HashMap;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use putexd::frames::{Frames, Hello};
use putexd::store::StoreSettings;
use putexd::store::files::Files;
use putexd::store::{
    self, Administer, Attempt, Creation, Entry, Examination, Hints, Link, Listing, Snapshot, Store, StoreError,
    StoreFuture, WriteOutcome, serve,
};
use putexd::types::{Key, Revision, Value};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::sync::watch;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let stream = StdStream::from(std::io::stdin().as_fd().try_clone_to_owned().expect("a stream"));
    stream.set_nonblocking(true).expect("a stream");
    let mut stream = UnixStream::from_std(stream).expect("a stream");
    if lie() == "noise" {
        loop {
            stream.write_all(&[0x5a; 4096]).await.expect("putexd has closed it");
        }
    }
    let mut frames: Frames<(), Hello> = Frames::new(stream);
    frames.next().await.expect("a frame").expect("putexd is there");
    serve::serve(frames, opened).await.expect("putexd is there");
}

fn lie() -> String {
    std::env::var("LIE").expect("LIE is set")
}

fn opened(settings: &StoreSettings, call_limit: Duration, files: Files) -> Arc<dyn Administer> {
    let store = store::client(settings, call_limit, files);
    Arc::new(Liar { store, acknowledged: Mutex::default() })
}

struct Liar {
    store: Arc<dyn Administer>,
    acknowledged: Mutex<HashMap<Key, Entry>>,
}

impl Store for Liar {
    fn read<'a>(&'a self, key: &'a Key, before: Option<Revision>) -> StoreFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            let mut found = self.store.read(key, before).await?;
            let acknowledged = self.acknowledged.lock().expect("nobody panics").get(key).cloned();
            match &*lie() {
                // The holder has let it go, and its unit is dead.
                "released" if before.is_none() && key.as_str() == "db" => {
                    let revision = Revision(found.entry.as_ref().map_or(1, |entry| entry.revision.0 + 1));
                    let fields = [("proven", "true"), ("lease", "3000"), ("token", "9000000")];
                    let fields = fields.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
                    found.entry = Some(Entry { revision, value: Some(Value { body: Vec::new(), fields }) });
                }
                "acknowledged" if acknowledged.is_some() => found.entry = acknowledged,
                _ => {}
            }
            Ok(found)
        })
    }

    fn compare_and_set<'a>(&'a self, key: &'a Key, attempt: &'a Attempt) -> StoreFuture<'a, WriteOutcome> {
        Box::pin(async move {
            if lie() != "acknowledged" || key.as_str() != "twice" {
                return self.store.compare_and_set(key, attempt).await;
            }
            let revision = Revision(attempt.base.0 + 1);
            let entry = Entry { revision, value: Some(attempt.value.clone()) };
            self.acknowledged.lock().expect("nobody panics").insert(key.clone(), entry);
            WriteOutcome::Won(revision)
        })
    }

    fn watch(&self) -> StoreFuture<'_, Result<Hints, StoreError>> {
        self.store.watch()
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.store.link()
    }
}

impl Administer for Liar {
    fn init(&self) -> StoreFuture<'_, Result<Creation, StoreError>> {
        self.store.init()
    }

    fn examine(&self) -> StoreFuture<'_, Result<Examination, StoreError>> {
        self.store.examine()
    }

    fn list(&self) -> StoreFuture<'_, Result<Listing, StoreError>> {
        self.store.list()
    }
}
