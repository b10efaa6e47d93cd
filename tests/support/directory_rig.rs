//! The rig of the conformance suite for the store in a shared directory, on a file system of our own that can hang and
//! die.

use std::{fs, sync::Arc, time::Duration};

use putexd::{
    store::{
        Store,
        directory::{DirectorySettings, DirectoryStore, layout},
    },
    types::{Key, Value},
};

use super::{
    CALL_LIMIT, Rig,
    faulty_fs::{FaultyFs, Hang},
    too_large,
};

pub struct DirectoryRig(pub FaultyFs);

impl DirectoryRig {
    /// A store on a file system whose answers the kernel may cache for `ttl`.
    pub async fn start_with(ttl: Duration) -> Self {
        let rig = Self(FaultyFs::mount(ttl));
        rig.make().await;
        rig
    }

    pub fn store(&self, call_limit: Duration) -> DirectoryStore {
        DirectoryStore::at(
            DirectorySettings {
                path: self.0.path().to_owned(),
                owner: None,
            },
            call_limit,
        )
    }

    async fn make(&self) {
        let store = self.store(CALL_LIMIT);
        super::up(&store).await;
        store.init().await.expect("the store is made");
    }
}

impl Rig for DirectoryRig {
    async fn start() -> Self {
        Self::start_with(Duration::from_secs(1)).await
    }
    fn open(&self, call_limit: Duration) -> Arc<dyn Store> {
        Arc::new(self.store(call_limit))
    }
    async fn delete(&self, key: &Key) {
        fs::remove_dir_all(self.0.path().join(format!("lock-{key}"))).expect("the lock is deleted");
    }
    async fn put_too_large(&self, key: &Key) {
        let value = Value {
            body: vec![b'x'; 512 * 1024],
            ..Value::default()
        };
        let file = too_large::file(&self.0.path().join(format!("lock-{key}")));
        fs::write(file, layout::encode(&value)).expect("the file is replaced");
    }
    async fn put_malformed(&self, _key: &Key) -> bool {
        false
    }
    async fn wipe(&self) {
        for entry in fs::read_dir(self.0.path()).expect("the store") {
            fs::remove_dir_all(entry.expect("an entry").path()).expect("it is deleted");
        }
        self.make().await;
    }
    fn hang(&self) {
        self.0.hang(Hang::All);
    }
    fn release(&self) {
        self.0.release();
    }
    fn die(&mut self) {
        self.0.die();
    }
    fn come_back(&mut self) {
        self.0.come_back();
    }
}
