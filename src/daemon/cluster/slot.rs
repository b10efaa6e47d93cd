//! A key that this host alone writes.

use super::Site;
use crate::daemon::notes::{TRIES, Trouble, of_write, position, set};
use crate::store::WriteOutcome;
use crate::types::{Incarnation, Key, Revision, Value};

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
            match set(&*site.notes, &*site.clock, &self.key, (incarnation.clone(), base), value).await {
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
