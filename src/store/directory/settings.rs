//! `[store]` with `type = "directory"`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    keys::{ConfigKey, Table, names},
    store::settings::Settings,
    types::store::StoreAddress,
};

/// `[store]` with `type = "directory"`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DirectorySettings {
    /// The directory, on a file system that all hosts mount.
    pub path: PathBuf,
    /// The user that may own the directory, besides root and the user that the program runs as.
    pub owner: Option<u32>,
}

type Row = ConfigKey<DirectorySettings>;

const KEYS: &[Row] = &[
    Row::new("path", |store| &mut store.path)
        .required("add path = \"/srv/putex\"")
        .checked(|store| {
            let shown = store.path.display().to_string();
            (!store.path.is_absolute())
                .then(|| format!("{shown:?} is not a full path: write it from the root"))
        }),
    Row::new("owner", |store| &mut store.owner),
];

impl Settings for DirectorySettings {
    fn keys() -> Vec<&'static str> {
        names(KEYS)
    }

    fn read(table: &mut Table<'_>) -> Option<Self> {
        let mut store = Self::default();
        table.read(KEYS, &mut store).then_some(store)
    }

    fn address(&self) -> StoreAddress {
        StoreAddress {
            what: "directory".to_owned(),
            servers: vec![self.path.display().to_string()],
        }
    }
}
