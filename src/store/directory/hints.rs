//! The watch polls the highest revision of every lock.
//!
//! The kernel's notifications are not used, because they report only changes that this host made. The kernel learns
//! what other hosts wrote on a share only when it looks.

use std::collections::HashMap;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::folder::Folder;
use super::layout;
use crate::store::{LISTED_LIMIT, Listed, Listing, StoreError, listed_name, listing};
use crate::types::{Key, Revision};

/// The most hints that wait for their reader. A hint that finds no room is made again at the next look.
pub(super) const HINT_LIMIT: usize = 64;

/// The shortest and the longest interval between two looks.
const INTERVAL_RANGE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// The keys that are not looked at, by their prefixes.
const UNWATCHED: [&str; 2] = [Key::OF_HOSTS_REPORTS, Key::OF_HISTORIES];

/// The latest revision of each lock. `None` is for a lock that could not be looked at: the others must not suffer from
/// it, and readers of that lock get the error. A lock without revisions is not in the map, because nobody needs a hint
/// that its folder was made.
pub(super) type Latest = HashMap<Key, Option<Revision>>;

/// Looks at all locks.
pub(super) fn look(root: &Folder) -> Result<Latest, StoreError> {
    let here = Path::new("");
    let folders = root.names(here).map_err(|error| root.unreachable(here, &error))?;
    let keys = folders.iter().filter_map(|name| Some((layout::key_of(name)?, Path::new(name))));
    // Nobody waits for these, and there are several for each lock.
    let keys = keys.filter(|(key, _)| !UNWATCHED.iter().any(|prefix| key.as_str().starts_with(prefix)));
    let latest = keys.map(|(key, folder)| (key, highest(root, folder).ok()));
    Ok(latest.filter(|(_, revision)| *revision != Some(Revision(0))).collect())
}

/// Lists all locks, as far as that is possible until `end`.
pub(super) fn list(root: &Folder, end: Instant) -> Result<Listing, StoreError> {
    let here = Path::new("");
    let names = root.names(here).map_err(|error| root.unreachable(here, &error))?;
    let folders = names.into_iter().filter_map(|name| Some((layout::shown_key(&name)?, name)));
    let (mut listed, mut is_cut) = (Vec::new(), false);
    for (shown, folder) in folders {
        if Instant::now() >= end || listed.len() > LISTED_LIMIT {
            is_cut = true;
            break;
        }
        let folder = Path::new(&folder);
        // Revision 0 has no value. A folder that cannot be looked at is another program's, or is just being removed.
        let Ok(revision @ Revision(1..)) = highest(root, folder) else { continue };
        let at = layout::revision(folder, revision);
        let inner = root.names(&at).ok().and_then(|names| names.iter().find_map(|name| layout::Nonce::of_folder(name)));
        let value = inner.and_then(|nonce| root.changed_and_size(&layout::inner(&at, &nonce).join(layout::VALUE)).ok());
        listed.push(Listed {
            name: listed_name(&shown),
            revision,
            age: value.and_then(|(changed, _)| changed.elapsed().ok()),
            size: value.map(|(_, size)| size),
        });
    }
    Ok(listing(listed, is_cut))
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
