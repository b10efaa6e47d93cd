//! Writing to the store what is no lock.

use std::time::Duration;

use tokio::time::sleep;

use super::Site;
use crate::store::{Attempt, Snapshot, StoreError, WriteOutcome};
use crate::types::{Incarnation, Key, Revision, Value, WriteId};

/// How often a change is tried that others get ahead of.
const TRIES: u32 = 5;
/// Longest pause between two of these tries.
const PAUSE: Duration = Duration::from_millis(300);

/// Why the store could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It may work the next time.
    Away(String),
    /// Somebody has to allow it first.
    Refused(String),
    /// Somebody has to mend first what is there; the remedy comes first.
    Unfit(String),
}

impl Trouble {
    /// Whether it stays so until somebody does something about it.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Unfit(_))
    }

    /// Whether nothing was heard of the call, so that the reason is not known.
    pub(super) fn is_no_answer(&self) -> bool {
        let unreachable = StoreError::Unreachable(String::new()).to_string();
        matches!(self, Self::Away(error) if error.starts_with(unreachable.trim_end()))
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Denied(_) => Self::Refused(error.to_string()),
            StoreError::Unfit(why) | StoreError::Misconfigured(why) | StoreError::Garbled(why) => Self::Unfit(why),
            StoreError::Unreachable(_) | StoreError::Missing(_) => Self::Away(error.to_string()),
        }
    }
}

/// Why a write was not taken. A store tells a refusal of a write in words alone.
fn of_write(reason: String) -> Trouble {
    let refusal = StoreError::Denied(String::new()).to_string();
    if reason.starts_with(refusal.trim_end()) { Trouble::Refused(reason) } else { Trouble::Away(reason) }
}

/// What a write has replaced.
#[derive(Debug)]
pub(super) enum Replaced {
    /// What this host wrote last, or what it found where it knew of nothing.
    Expected,
    /// Something else: another host has this host's name, or the store was wiped or restored. `None`: nothing was there.
    Other(Option<Value>),
}

/// A key that this host alone writes, unless another host has its name.
#[derive(Debug)]
pub(super) struct Slot {
    key: Key,
    /// What is known of the latest revision.
    base: Option<(Incarnation, Revision)>,
}

impl Slot {
    pub(super) fn new(key: Key) -> Self {
        Self { key, base: None }
    }

    /// Replaces whatever is there, and says what it was.
    pub(super) async fn write(&mut self, site: &Site, value: &Value) -> Result<Replaced, Trouble> {
        let mut overtaken = false;
        let mut replaced = Replaced::Expected;
        for _ in 0..TRIES {
            let (incarnation, base) = if let Some(base) = self.base.take() {
                base
            } else {
                let snapshot = site.notes.read(&self.key, None).await?;
                if overtaken {
                    let value = snapshot.entry.as_ref().and_then(|entry| entry.value.clone());
                    replaced = Replaced::Other(value);
                }
                position(&snapshot)
            };
            match set(site, &self.key, (incarnation.clone(), base), value).await {
                WriteOutcome::Won(revision) => {
                    self.base = Some((incarnation, revision));
                    return Ok(replaced);
                }
                WriteOutcome::Conflict => overtaken = true,
                WriteOutcome::Unknown(reason) => return Err(of_write(reason)),
            }
        }
        Err(Trouble::Away(format!("others write {} all the time", self.key)))
    }
}

/// Changes what is under `key`, whoever else changes it at the same time. `change` gets what is there, and may be called
/// several times; with `None` nothing is written. After a write whose outcome is not known it is called again, so it has to see
/// by itself whether its change is there.
pub(super) async fn update(
    site: &Site,
    key: &Key,
    mut change: impl FnMut(Option<&Value>) -> Option<Value>,
) -> Result<(), Trouble> {
    let mut trouble = Trouble::Away(format!("others write {key} all the time"));
    for _ in 0..TRIES {
        let snapshot = site.notes.read(key, None).await?;
        let value = snapshot.entry.as_ref().and_then(|entry| entry.value.as_ref());
        let Some(value) = change(value) else { return Ok(()) };
        match set(site, key, position(&snapshot), &value).await {
            WriteOutcome::Won(_) => return Ok(()),
            WriteOutcome::Conflict => {}
            WriteOutcome::Unknown(reason) => trouble = of_write(reason),
        }
        if trouble.is_refusal() {
            break;
        }
        let part = u32::try_from(site.clock.random() % 100).unwrap_or_default() + 1;
        sleep(PAUSE * part / 100).await;
    }
    Err(trouble)
}

/// What a write has to replace.
pub(super) fn position(snapshot: &Snapshot) -> (Incarnation, Revision) {
    (snapshot.incarnation.clone(), snapshot.entry.as_ref().map_or(Revision(0), |entry| entry.revision))
}

async fn set(site: &Site, key: &Key, (incarnation, base): (Incarnation, Revision), value: &Value) -> WriteOutcome {
    let attempt = Attempt { base, incarnation, write: WriteId(site.clock.random()), value: value.clone() };
    site.notes.compare_and_set(key, &attempt).await
}
