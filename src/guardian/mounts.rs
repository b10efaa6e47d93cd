//! Looks at what is mounted, in a thread of their own: a device may hang when it is opened, and SIGKILL must not wait for it.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::host::mounts::{Configured, Mount, check_unmounted, place_of};
use crate::types::UnitName;

/// Whoever looks. Dropping it ends it, as soon as the kernel lets go of it.
#[derive(Debug)]
pub(super) struct Looker {
    ask: Sender<Vec<Configured>>,
    found: Receiver<Result<(), String>>,
    /// An answer is outstanding.
    waits: bool,
    /// That answer is not to count.
    is_stale: bool,
}

impl Looker {
    /// Keeps in mind how the mounts among `units` are mounted now. `None`: there is no mount among them.
    pub(super) fn begin(name: &str, units: &[UnitName]) -> io::Result<Option<Self>> {
        let places: Vec<String> = units.iter().filter_map(place_of).collect();
        if places.is_empty() {
            return Ok(None);
        }
        let (ask, asked) = channel::<Vec<Configured>>();
        let (tell, found) = channel();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            let were: HashMap<String, Mount> = places
                .into_iter()
                // What cannot be read now is looked for by what it is to be.
                .filter_map(|place| Some((place.clone(), Mount::at(&place).ok()??)))
                .collect();
            for mounts in asked {
                let look = |mount: &Configured| {
                    let found = check_unmounted(mount, were.get(&mount.place));
                    found.map_err(|error| format!("{}: {error}", mount.place))
                };
                if tell.send(mounts.iter().try_for_each(look)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Some(Self { ask, found, waits: false, is_stale: false }))
    }

    /// A unit was seen to be active: what is still being looked at counts no more.
    pub(super) fn doubt(&mut self) {
        self.is_stale = self.waits;
    }

    /// Shows that none of `mounts` is mounted. An answer that comes late counts for the next question.
    pub(super) fn check(&mut self, mounts: Vec<Configured>, limit: Duration) -> Result<(), String> {
        let ended = || "whoever looks at what is mounted has ended".to_owned();
        if !self.waits {
            self.ask.send(mounts).map_err(|_| ended())?;
            self.waits = true;
        }
        match self.found.recv_timeout(limit) {
            Ok(found) => {
                self.waits = false;
                if std::mem::take(&mut self.is_stale) { Err("it is looked at again".to_owned()) } else { found }
            }
            Err(RecvTimeoutError::Timeout) => Err("the kernel does not tell what is mounted".to_owned()),
            Err(RecvTimeoutError::Disconnected) => Err(ended()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_to_a_question_from_before_a_doubt_does_not_count() {
        let unit = |name| UnitName::new(name).expect("a unit's name");
        assert!(Looker::begin("none", &[unit("a.service")]).expect("a thread").is_none());
        let mut looker = Looker::begin("one", &[unit("nowhere.mount")]).expect("a thread").expect("there is a mount");
        let mounts = |place: &str| {
            vec![Configured { place: place.to_owned(), what: "/dev/nowhere".to_owned(), options: String::new() }]
        };
        let limit = Duration::from_secs(20);
        looker.doubt();
        assert_eq!(looker.check(mounts("/nowhere"), limit), Ok(()), "nothing was outstanding");
        // Not in time, mostly at once.
        while looker.check(mounts("/nowhere"), Duration::ZERO).is_ok() {}
        looker.doubt();
        looker.check(mounts("/nowhere"), limit).expect_err("it may have been mounted since");
        assert_eq!(looker.check(mounts("/nowhere"), limit), Ok(()));
        let trouble = looker.check(mounts("/"), limit).expect_err("it is mounted");
        assert!(trouble.starts_with("/: ") && trouble.contains("something is mounted"), "{trouble}");
    }
}
