//! The watch polls the highest revision of every lock.
//!
//! The kernel's notifications are not used, because they report only changes that this host made. The kernel learns
//! what other hosts wrote on a share only when it looks.

use std::collections::HashMap;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::folder::Folder;
use super::layout;
use crate::store::StoreError;
use crate::types::{Key, Revision};

/// The most hints that wait for their reader. A hint that finds no room is made again at the next look.
pub(super) const HINT_LIMIT: usize = 64;

/// The shortest and the longest interval between two looks.
const INTERVAL_RANGE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// The latest revision of each lock. `None` is for a lock that could not be looked at: the others must not suffer from
/// it, and readers of that lock get the error. A lock without revisions is not in the map, because nobody needs a hint
/// that its folder was made.
pub(super) type Latest = HashMap<Key, Option<Revision>>;

/// Looks at all locks.
pub(super) fn look(root: &Folder) -> Result<Latest, StoreError> {
    let here = Path::new("");
    let folders = root.names(here).map_err(|error| root.unreachable(here, &error))?;
    let keys = folders.iter().filter_map(|name| Some((layout::key_of(name)?, Path::new(name))));
    let latest = keys.map(|(key, folder)| (key, highest(root, folder).ok()));
    Ok(latest.filter(|(_, revision)| *revision != Some(Revision(0))).collect())
}

fn highest(root: &Folder, folder: &Path) -> io::Result<Revision> {
    let revisions = match root.names(folder) {
        // A lock that was deleted meanwhile counts as one without revisions.
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        names => names?,
    };
    Ok(revisions.iter().filter_map(|name| layout::revision_of(name)).max().unwrap_or_default())
}

/// Sends a hint for each change from `known` on, until `look` fails or the receiver is gone.
pub(super) async fn poll<Looking>(
    mut known: Latest,
    call_limit: Duration,
    sender: mpsc::Sender<Key>,
    look: impl Fn() -> Looking,
) where
    Looking: Future<Output = Result<Latest, StoreError>>,
{
    let interval = (call_limit / 10).clamp(INTERVAL_RANGE.0, INTERVAL_RANGE.1);
    loop {
        tokio::select! {
            () = sender.closed() => return,
            () = tokio::time::sleep(interval) => {}
        }
        let Ok(latest) = look().await else { return };
        let gone: Vec<Key> = known.keys().filter(|key| !latest.contains_key(*key)).cloned().collect();
        let found = latest.into_iter().filter(|(_, revision)| revision.is_some());
        for (key, revision) in found.chain(gone.into_iter().map(|key| (key, None))) {
            if known.get(&key) == Some(&revision) {
                continue;
            }
            match sender.try_send(key.clone()) {
                Ok(()) if revision.is_some() => drop(known.insert(key, revision)),
                Ok(()) => drop(known.remove(&key)),
                Err(TrySendError::Full(_)) => {}
                Err(TrySendError::Closed(_)) => return,
            }
        }
    }
}
