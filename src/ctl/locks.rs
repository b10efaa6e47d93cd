//! `putexctl locks`: all keys of the store, with their age, their holder, and which configured service they are.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::output::{Cell, Failure, Screen, Style, Surface, print_json};
use super::store::{load, open, read_all};
use crate::config::Settings;
use crate::election::{Record, Standing};
use crate::store::Listed;
use crate::types::Key;
use crate::types::span::{milliseconds, rounded};

/// What `putexctl locks` is called with.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Show also what is no lock: the entries of units, the reports of hosts, histories
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print long output as it is, without a pager
    #[arg(long)]
    no_pager: bool,
    /// Look for the configuration below this directory
    #[arg(long, value_name = "DIRECTORY", default_value = "/")]
    root: PathBuf,
}

/// One key, as `--json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Lock {
    /// The key.
    key: String,
    /// What it is: `lock`, or `note` for what putexd keeps beside the locks.
    kind: &'static str,
    /// The service of this host's configuration that it belongs to; empty = none.
    service: String,
    /// The holder by its record; empty = nobody, or it is no lock.
    holder: String,
    /// What the holder was doing by its record: `confirming`, `gave-up` before a start, or `active`; empty = it does not say, or
    /// nobody holds the lock.
    standing: &'static str,
    /// The revision of the latest write.
    revision: u64,
    /// How long ago that was, in milliseconds; `null` = the store does not keep it.
    age_ms: Option<u64>,
}

impl Lock {
    fn tell_of(&mut self, record: &Record) {
        record.holder.as_str().clone_into(&mut self.holder);
        self.standing = match record.details.as_ref().map(|details| details.standing) {
            Some(Standing::Confirming) => "confirming",
            Some(Standing::GaveUp) => "gave-up",
            Some(Standing::Active) => "active",
            Some(Standing::Proven) | None => "",
        };
    }

    /// The holder, as people are told. One that runs the unit needs no more words.
    fn holder_in_words(&self) -> String {
        match self.standing {
            "confirming" => format!("{} (waits to start it)", self.holder),
            "gave-up" => format!("{} (gave up before a start)", self.holder),
            _ => self.holder.clone(),
        }
    }
}

/// Lists them.
pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let settings = load(&arguments.root)?;
    let store = open(&settings).await?;
    let listing = store.list().await.map_err(|error| Failure::unavailable(error.to_string()))?;
    let mut locks = known(&settings, &listing.keys);
    locks.retain(|lock| arguments.all || lock.kind == "lock");
    let (places, keys): (Vec<usize>, Vec<Key>) = locks
        .iter()
        .enumerate()
        .filter(|(_, lock)| lock.kind == "lock")
        .filter_map(|(place, lock)| Some((place, Key::new(&lock.key).ok()?)))
        .unzip();
    for (place, found) in places.into_iter().zip(read_all(&*store, &keys).await) {
        let value = found.ok().and_then(|snapshot| snapshot.entry?.value);
        if let Some(record) = value.as_ref().map(Record::decode).filter(Record::is_held) {
            locks[place].tell_of(&record);
        }
    }
    if arguments.json {
        return print_json(&locks);
    }
    screen(&locks, listing.is_cut, Surface::of_output()).show(!arguments.no_pager)
}

/// What each key is. Notes of putexd begin with `putex-`.
fn known(settings: &Settings, keys: &[Listed]) -> Vec<Lock> {
    let services: BTreeMap<&str, &str> =
        settings.services.iter().map(|service| (service.key.as_str(), service.name.as_str())).collect();
    let of_key = |listed: &Listed| {
        let service = services.get(listed.name.as_str()).copied().unwrap_or_default();
        let is_note = service.is_empty() && listed.name.starts_with("putex-");
        Lock {
            key: listed.name.clone(),
            kind: if is_note { "note" } else { "lock" },
            service: service.to_owned(),
            holder: String::new(),
            standing: "",
            revision: listed.revision.0,
            age_ms: listed.age.map(milliseconds),
        }
    };
    keys.iter().map(of_key).collect()
}

fn screen(locks: &[Lock], is_cut: bool, surface: Surface) -> Screen {
    let mut screen = Screen::new(surface);
    let row = |lock: &Lock| {
        let age = lock.age_ms.map(|ms| rounded(Duration::from_millis(ms))).unwrap_or_default();
        let service = if lock.service.is_empty() && lock.kind == "lock" {
            Cell::styled("none on this host", Style::Notable)
        } else {
            Cell::new(lock.service.clone())
        };
        vec![
            Cell::new(lock.key.clone()),
            service,
            Cell::new(lock.holder_in_words()),
            Cell::new(age),
            Cell::new(lock.revision.to_string()),
        ]
    };
    let rows: Vec<Vec<Cell>> = locks.iter().map(row).collect();
    if rows.is_empty() {
        screen.line("The store has no lock.");
    } else {
        screen.table(&["KEY", "SERVICE", "HOLDER", "AGE", "REVISION"], &rows, 1);
    }
    if is_cut {
        screen.line("There are more keys, which the store did not show in time.");
    }
    screen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Value;

    #[test]
    fn a_lock_tells_what_its_holder_was_doing() {
        let told = |fields: &[(&str, &str)]| {
            let ordinary = [
                ("machine", "00000000000000000000000000000002"),
                ("instance", "0000000000000000000000000000000a"),
                ("write", "0000000000000000000000000000000b"),
                ("lease-ms", "3000"),
                ("hold-ms", "3900"),
                ("token", "1767225600"),
            ];
            let fields = ordinary.iter().chain(fields).map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
            let mut lock = Lock {
                key: "db".to_owned(),
                kind: "lock",
                service: "db".to_owned(),
                holder: String::new(),
                standing: "",
                revision: 7,
                age_ms: Some(1000),
            };
            lock.tell_of(&Record::decode(&Value { body: b"h2".to_vec(), fields: fields.collect() }));
            super::super::fixture::assert_described("locks", &[&lock]);
            let surface = Surface { colours: false, width: Some(80), height: None };
            (lock.standing, screen(std::slice::from_ref(&lock), false, surface).as_text().to_owned())
        };
        for (fields, standing, words) in [
            (&[("state", "active")][..], "active", "h2"),
            (&[("state", "confirming")], "confirming", "h2 (waits to start it)"),
            (&[("state", "confirming"), ("gave-up", "yes")], "gave-up", "h2 (gave up before a start)"),
            (&[("state", "nonsense")], "", "h2"),
        ] {
            let (told, shown) = told(fields);
            assert_eq!(told, standing, "{fields:?}");
            assert!(shown.contains(words), "{shown}");
        }
    }
}
