//! Checks what is mounted, in threads of its own: opening a device may hang, and SIGKILL must not wait for it.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::thread_pool::ThreadPool;
use crate::host::mountinfo::Mount;
use crate::host::mounts::{Configured, NotUnmounted, check_unmounted, place_of, source_of};
use crate::types::UnitName;

/// How long a check takes at most when nothing hangs.
const USUAL: Duration = Duration::from_millis(100);

/// How the mounts of a lease were mounted when the enforcement began, by their mount points.
type Mounted = HashMap<String, Mount>;

/// Why the mounts of a lease are not proven to be unmounted.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unproven {
    /// The first look, of the beginning of the enforcement, has not ended.
    #[error("what was mounted is still being looked at")]
    NotYetRead,
    #[error("{place}: {source}")]
    Mounted { place: String, source: NotUnmounted },
    /// The answer is from before a unit was seen active.
    #[error("it is looked at again")]
    Stale,
    /// There is no answer yet.
    #[error("the kernel does not tell what is mounted")]
    Silent,
}

/// The checks of the mounts of one lease.
#[derive(Debug)]
pub(super) struct Looker {
    pool: ThreadPool,
    were: Arc<OnceLock<Mounted>>,
    tell: Sender<Result<(), Unproven>>,
    found: Receiver<Result<(), Unproven>>,
    /// Whether an answer is outstanding.
    waits: bool,
    /// When the outstanding answer was asked for.
    asked_at: Instant,
    /// Whether the outstanding answer is to be ignored when it comes.
    is_stale: bool,
}

impl Looker {
    /// Reads how the mounts among `units` are mounted now, for later checks. `None`: there is no mount among them.
    pub(super) fn begin(pool: &ThreadPool, units: &[UnitName]) -> Option<Self> {
        let places: Vec<String> = units.iter().filter_map(place_of).collect();
        if places.is_empty() {
            return None;
        }
        let (tell, found) = channel();
        let were = Arc::new(OnceLock::new());
        let seen = Arc::clone(&were);
        pool.give(move || {
            // A mount that cannot be read now is checked later by its configuration alone.
            let mounted = places.into_iter().filter_map(|place| Some((place.clone(), Mount::at(&place).ok()??)));
            let _ = seen.set(mounted.collect());
        });
        Some(Self { pool: pool.clone(), were, tell, found, waits: false, asked_at: Instant::now(), is_stale: false })
    }

    /// Whether an answer is outstanding for no longer than a check usually takes, so that there is nothing to complain of yet.
    pub(super) fn is_looking(&self) -> bool {
        self.waits && self.asked_at.elapsed() < USUAL
    }

    /// Is called when a unit was seen active: an answer that is outstanding then does not count.
    pub(super) fn doubt(&mut self) {
        self.is_stale = self.waits;
    }

    /// Proves that none of `mounts` is mounted; waits for the answer for `limit` at most. A late answer counts for the next
    /// call.
    pub(super) fn check(&mut self, mounts: Vec<Configured>, limit: Duration) -> Result<(), Unproven> {
        if self.waits {
            self.pool.look_after();
        } else {
            let (were, tell) = (Arc::clone(&self.were), self.tell.clone());
            self.pool.give(move || {
                let found = match were.get() {
                    Some(were) => mounts.iter().try_for_each(|mount| look(mount, were.get(&mount.place))),
                    None => Err(Unproven::NotYetRead),
                };
                // The enforcement that asked may have ended.
                let _ = tell.send(found);
            });
            (self.waits, self.asked_at) = (true, Instant::now());
        }
        match self.found.recv_timeout(limit) {
            Ok(found) => {
                self.waits = false;
                if std::mem::take(&mut self.is_stale) { Err(Unproven::Stale) } else { found }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(Unproven::Silent),
        }
    }
}

fn look(mount: &Configured, was: Option<&Mount>) -> Result<(), Unproven> {
    let source = source_of(&mount.source(was)).map_err(NotUnmounted::from);
    let checked = source.and_then(|source| check_unmounted(mount, was, &source));
    checked.map_err(|source| Unproven::Mounted { place: mount.place.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_to_a_question_from_before_a_doubt_does_not_count() {
        let unit = |name| UnitName::new(name).expect("a unit's name");
        let pool = ThreadPool::new("test", 1).expect("a thread");
        assert!(Looker::begin(&pool, &[unit("a.service")]).is_none());
        let mut looker = Looker::begin(&pool, &[unit("nowhere.mount")]).expect("there is a mount");
        let mounts = |place: &str| {
            vec![Configured { place: place.to_owned(), what: "/dev/nowhere".to_owned(), options: String::new() }]
        };
        let limit = Duration::from_secs(20);
        looker.doubt();
        looker.check(mounts("/nowhere"), limit).expect("nothing was outstanding");
        // The first call usually times out, as its limit is zero.
        while looker.check(mounts("/nowhere"), Duration::ZERO).is_ok() {}
        looker.asked_at = Instant::now();
        assert!(looker.is_looking(), "no trouble yet");
        looker.asked_at -= USUAL;
        assert!(!looker.is_looking());
        looker.doubt();
        let stale = looker.check(mounts("/nowhere"), limit);
        assert!(matches!(stale, Err(Unproven::Stale)), "it may have been mounted since: {stale:?}");
        looker.check(mounts("/nowhere"), limit).expect("it is not mounted");
        let trouble = looker.check(mounts("/"), limit).expect_err("it is mounted").to_string();
        assert!(trouble.starts_with("/: ") && trouble.contains("something is mounted"), "{trouble}");
    }
}
