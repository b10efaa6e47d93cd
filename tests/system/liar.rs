//! A process with the store's client that somebody has taken over: it lies to putexd as `LIE` says.

use std::{
    collections::HashMap,
    os::{fd::AsFd as _, unix::net::UnixStream as StdStream},
    sync::{Arc, Mutex},
    time::Duration,
};

use putexd::{
    frames,
    store::{
        self, Attempt, Entry, Snapshot, Store, StoreError, StoreSettings, WriteOutcome,
        files::Files,
        layered::{Layer, Layered},
        serve,
    },
    types::{Key, Revision, Value},
};
use tokio::{io::AsyncWriteExt as _, net::UnixStream};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let stream = StdStream::from(
        std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .expect("a stream"),
    );
    stream.set_nonblocking(true).expect("a stream");
    let mut stream = UnixStream::from_std(stream).expect("a stream");
    if lie() == "noise" {
        loop {
            stream
                .write_all(&[0x5a; 4096])
                .await
                .expect("putexd has closed it");
        }
    }
    frames::role(&mut stream).await.expect("putexd is there");
    serve::serve(stream, opened).await.expect("putexd is there");
}

fn lie() -> String {
    std::env::var("LIE").expect("LIE is set")
}

fn opened(settings: &StoreSettings, call_limit: Duration, files: Files) -> Arc<dyn Store> {
    let store = store::client(settings, call_limit, files);
    Arc::new(Layered::new(store, Liar::default()))
}

#[derive(Default)]
struct Liar {
    acknowledged: Mutex<HashMap<Key, Entry>>,
}

impl Layer for Liar {
    async fn read(
        &self,
        store: &dyn Store,
        key: &Key,
        before: Option<Revision>,
    ) -> Result<Snapshot, StoreError> {
        let mut found = store.read(key, before).await?;
        let acknowledged = self
            .acknowledged
            .lock()
            .expect("nobody panics")
            .get(key)
            .cloned();
        match &*lie() {
            // The holder has let it go, and its unit is dead.
            "released" if before.is_none() && key.as_str() == "db" => {
                let revision =
                    Revision(found.entry.as_ref().map_or(1, |entry| entry.revision.0 + 1));
                let fields = [("proven", "true"), ("lease", "3000"), ("token", "9000000")];
                let fields = fields
                    .map(|(name, text)| (name.to_owned(), text.to_owned()))
                    .into();
                found.entry = Some(Entry {
                    revision,
                    value: Some(Value {
                        body: Vec::new(),
                        fields,
                    }),
                });
            }
            "acknowledged" if acknowledged.is_some() => found.entry = acknowledged,
            _ => {}
        }
        Ok(found)
    }

    async fn compare_and_set(
        &self,
        store: &dyn Store,
        key: &Key,
        attempt: &Attempt,
    ) -> WriteOutcome {
        if lie() != "acknowledged" || key.as_str() != "twice" {
            return store.compare_and_set(key, attempt).await;
        }
        let revision = Revision(attempt.base.0 + 1);
        let entry = Entry {
            revision,
            value: Some(attempt.value.clone()),
        };
        self.acknowledged
            .lock()
            .expect("nobody panics")
            .insert(key.clone(), entry);
        WriteOutcome::Won(revision)
    }
}
