//! Under which key a unit is run: an entry in the store says it, the same for all hosts.
//!
//! An election keeps hosts apart that contend for one key. It cannot see a host that contends for another key on behalf of the
//! same unit, as after a rename on one host. So each unit of a service, the bound ones as well, has an entry in the store, beside
//! the locks, that names its key. The first host makes the entry by a compare-and-set, so that of two hosts that try at once only
//! one succeeds. A host whose configuration names another key does not contend (the unit's entry, N1).
//!
//! An operator may give the unit another key (adoption of another key, N3). A host under the old key may still hold the old lock
//! then. That host has *written* the old lock, and reads the entry *after that*, before it starts anything. The host that has
//! changed the entry reads the old lock *after that*, and starts nothing before the old lock was free
//! ([`FormerLock`](super::FormerLock)). Of two hosts that each write first and then read, one sees the write of the other. A read
//! that must not show the past ends with a compare-and-set that writes again what was read (vetting, N2).
//!
//! A host cannot look into another store, and a store that went back does not say so. So each host keeps what it has seen on its
//! own disk ([`KeptPlace`]): a unit that it has known in another store, or under another key by a later entry than the present
//! one, waits for an operator's word (what a host remembers, N4).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::types::{Incarnation, Key, Revision, UnitName, Value, store::StoreAddress};

/// The most former keys of a unit that have not been seen free. A change of the key that would add one more is refused.
const FORMER_LIMIT: usize = 8;

mod field {
    pub(super) const UNIT: &str = "unit";
    pub(super) const FORMER: &str = "former";
}

/// The entry of a unit in the store (the unit's entry, N1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The lock that the unit is run under.
    pub key: Key,
    /// The locks that the unit was run under before, and that have not been seen free since.
    pub former: Vec<Key>,
}

/// What a host keeps on its disk of a unit (what a host remembers, N4).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptPlace {
    /// The store, and the key that the unit's entry named when this host last saw it.
    #[serde(flatten)]
    pub place: LockPlace,
    /// The former keys that the entry had then.
    #[serde(default)]
    pub former: Vec<Key>,
    /// The position of that entry. `None`: not known.
    #[serde(default)]
    pub position: Option<Position>,
}

/// The incarnation of a store, and the revision of an entry in it. The revision is 0 where there is no entry.
pub type Position = (Incarnation, Revision);

/// Where a unit's lock is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockPlace {
    /// The store, by its address. The incarnation does not tell it from another store, because a copy has the same.
    pub store: StoreAddress,
    /// The key of the lock in that store.
    pub key: Key,
}

/// Whether a unit may be run under a key, and what has to be done before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The unit may be run under the key.
    Cleared,
    /// This entry has to be written first.
    Write(Registration),
    /// Each former key of this entry has to be seen free first.
    Waits(Registration),
    /// The unit must not be run under the key.
    Refused(KeyRefusal),
}

/// Why a unit is not run under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyRefusal {
    /// The entry names this key, and the other hosts run the unit under it.
    OtherKey(Key),
    /// This host has known the unit under this key, and there is no entry, or one that lacks the key and is not newer than the one that
    /// was seen: the entry was deleted, or the store went back.
    FormerKey(Key),
    /// This host has known the unit in another store.
    OtherStore(LockPlace),
    /// What the store holds is not an entry of this unit, or has no valid seal.
    Garbled,
    /// The new entry would have this many former keys that have not been seen free.
    TooMany(usize),
}

impl Registration {
    /// The value that the store keeps.
    #[must_use]
    pub fn encode(&self, unit: &UnitName) -> Value {
        let mut fields = BTreeMap::from([(field::UNIT.to_owned(), unit.to_string())]);
        if !self.former.is_empty() {
            let former: Vec<&str> = self.former.iter().map(Key::as_str).collect();
            fields.insert(field::FORMER.to_owned(), former.join(" "));
        }
        Value {
            body: self.key.as_str().as_bytes().to_vec(),
            fields,
        }
    }

    /// Reads the store's value. `None`: it is not an entry of this unit, or has no valid seal.
    pub fn decode(value: &Value, unit: &UnitName) -> Option<Self> {
        if value.is_unsealed()
            || value.fields.get(field::UNIT).map(String::as_str) != Some(unit.as_str())
        {
            return None;
        }
        let key = Key::new(str::from_utf8(&value.body).ok()?).ok()?;
        let former = value.fields.get(field::FORMER).map_or("", String::as_str);
        let former: Option<Vec<Key>> = former
            .split_whitespace()
            .map(|key| Key::new(key).ok())
            .collect();
        Some(Self {
            key,
            former: former.filter(|former| former.len() <= FORMER_LIMIT)?,
        })
    }
}

/// What a store holds as the entry of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// Something that is not an entry of this unit, or has no valid seal.
    Garbled,
    /// The entry.
    Entry(Registration),
}

/// Whether a host may run a unit at `here`. `found` is the entry that the store shows for the unit at `position`, and `kept` is
/// what the host remembers of it. With an operator's word (`adopting`) only too many former keys are refused, and only former
/// locks in the same store are waited for.
pub fn judge(
    here: &LockPlace,
    kept: Option<&KeptPlace>,
    found: &Found,
    position: &Position,
    adopting: bool,
) -> Verdict {
    let moved = kept.filter(|kept| !here.store.leads_to_that_of(&kept.place.store));
    // Keys that the unit had in another store say nothing about the locks of this one.
    let kept = kept.filter(|_| moved.is_none());
    let keys = kept
        .into_iter()
        .flat_map(|kept| kept.former.iter().chain([&kept.place.key]));
    let known: Vec<&Key> = keys.filter(|key| **key != here.key).collect();
    let is_older = kept.is_some_and(|kept| !is_newer(position, kept.position.as_ref()));
    let (refusal, next) = match found {
        Found::Garbled => (Some(KeyRefusal::Garbled), succeed(here, known)),
        Found::Nothing => {
            let last = known
                .last()
                .map(|key| KeyRefusal::FormerKey((*key).clone()));
            (last, succeed(here, known))
        }
        Found::Entry(entry) if entry.key != here.key => (
            Some(KeyRefusal::OtherKey(entry.key.clone())),
            succeed(here, entry.former.iter().chain([&entry.key])),
        ),
        Found::Entry(entry) => {
            // An entry that names the key as a former one has not lost it.
            let is_lost = |key: &&&Key| is_older && !entry.former.contains(**key);
            match known.iter().rev().find(is_lost) {
                Some(lost) => (
                    Some(KeyRefusal::FormerKey((*lost).clone())),
                    succeed(here, entry.former.iter().chain(known)),
                ),
                None if entry.former.is_empty() => (None, Verdict::Cleared),
                None => (None, Verdict::Waits(entry.clone())),
            }
        }
    };
    let moved = moved.map(|kept| KeyRefusal::OtherStore(kept.place.clone()));
    match moved.or(refusal) {
        Some(refusal) if !adopting => Verdict::Refused(refusal),
        Some(_) | None => next,
    }
}

/// Whether an entry that was seen at `position` is newer than one at `kept`. Without a `kept` position it is. A position of
/// another incarnation cannot be compared, and so is not newer.
pub fn is_newer((incarnation, revision): &Position, kept: Option<&Position>) -> bool {
    kept.is_none_or(|(known, last)| known == incarnation && revision > last)
}

/// The entry to be written next, with `keys` as its former keys, or a refusal when these are too many.
fn succeed<'a>(here: &LockPlace, keys: impl IntoIterator<Item = &'a Key>) -> Verdict {
    let mut former: Vec<Key> = Vec::new();
    for key in keys {
        if *key != here.key && !former.contains(key) {
            former.push(key.clone());
        }
    }
    if former.len() > FORMER_LIMIT {
        return Verdict::Refused(KeyRefusal::TooMany(former.len()));
    }
    Verdict::Write(Registration {
        key: here.key.clone(),
        former,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name).expect("a key")
    }

    fn unit(name: &str) -> UnitName {
        UnitName::new(name).expect("a unit's name")
    }

    /// `store` lists the servers, separated by spaces.
    fn place(store: &str, name: &str) -> LockPlace {
        let servers = store.split(' ').map(str::to_owned).collect();
        LockPlace {
            store: StoreAddress {
                what: "nats, bucket putex".to_owned(),
                servers,
            },
            key: key(name),
        }
    }

    fn position(revision: u64) -> Position {
        (Incarnation("a".to_owned()), Revision(revision))
    }

    /// What a host remembers that saw the entry at revision 10.
    fn kept(place: &LockPlace) -> KeptPlace {
        KeptPlace {
            place: place.clone(),
            former: Vec::new(),
            position: Some(position(10)),
        }
    }

    /// Judges by an entry that is newer than what is kept.
    fn judge(here: &LockPlace, kept: Option<&LockPlace>, found: &Found, adopting: bool) -> Verdict {
        super::judge(
            here,
            kept.map(self::kept).as_ref(),
            found,
            &position(11),
            adopting,
        )
    }

    fn entry(name: &str, former: &[&str]) -> Registration {
        Registration {
            key: key(name),
            former: former.iter().map(|name| key(name)).collect(),
        }
    }

    fn found(name: &str, former: &[&str]) -> Found {
        Found::Entry(entry(name, former))
    }

    fn refused(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Refused(_))
    }

    #[test]
    fn an_entry_survives_the_store_and_names_its_unit() {
        let database = unit("database.service");
        for entry in [entry("db", &[]), entry("a/b=c", &["db", "ctl"])] {
            assert_eq!(
                Registration::decode(&entry.encode(&database), &database),
                Some(entry.clone())
            );
            assert_eq!(
                Registration::decode(&entry.encode(&database), &unit("web.service")),
                None
            );
        }
        assert_eq!(Registration::decode(&Value::default(), &database), None);
        assert_eq!(
            Registration::decode(
                &entry("db", &[]).encode(&database).marked_unsealed(),
                &database
            ),
            None
        );
        let mut garbled = entry("db", &["ctl"]).encode(&database);
        garbled
            .fields
            .insert("former".to_owned(), "a b:c".to_owned());
        assert_eq!(Registration::decode(&garbled, &database), None);
        garbled
            .fields
            .insert("former".to_owned(), "k ".repeat(FORMER_LIMIT + 1));
        assert_eq!(Registration::decode(&garbled, &database), None);
    }

    #[test]
    fn whoever_comes_first_makes_the_entry_and_another_key_is_refused() {
        let here = place("a", "db");
        assert_eq!(
            judge(&here, None, &Found::Nothing, false),
            Verdict::Write(entry("db", &[]))
        );
        assert_eq!(
            judge(&here, Some(&here), &Found::Nothing, false),
            Verdict::Write(entry("db", &[]))
        );
        assert_eq!(
            judge(&here, None, &found("db", &[]), false),
            Verdict::Cleared
        );
        let other = judge(&here, None, &found("ctl", &["db"]), false);
        assert_eq!(other, Verdict::Refused(KeyRefusal::OtherKey(key("ctl"))));
    }

    #[test]
    fn a_former_lock_is_waited_for_by_everybody() {
        let here = place("a", "db");
        assert_eq!(
            judge(&here, None, &found("db", &["ctl"]), false),
            Verdict::Waits(entry("db", &["ctl"]))
        );
    }

    #[test]
    fn an_operators_word_makes_the_key_that_was_a_former_one() {
        let here = place("a", "new");
        let adopt = |found| judge(&here, None, &found, true);
        assert_eq!(
            adopt(found("db", &[])),
            Verdict::Write(entry("new", &["db"]))
        );
        // A former key that was never seen free is still waited for. Adopting the key that the entry names already changes
        // nothing.
        assert_eq!(
            adopt(found("ctl", &["db"])),
            Verdict::Write(entry("new", &["db", "ctl"]))
        );
        assert_eq!(
            adopt(found("ctl", &["new", "db"])),
            Verdict::Write(entry("new", &["db", "ctl"]))
        );
        assert_eq!(
            adopt(found("new", &["db"])),
            Verdict::Waits(entry("new", &["db"]))
        );
        assert_eq!(adopt(Found::Garbled), Verdict::Write(entry("new", &[])));
        let many: Vec<String> = (0..FORMER_LIMIT)
            .map(|number| format!("k{number}"))
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let Verdict::Write(last) = adopt(found("db", &many[1..])) else {
            panic!("there is room for it")
        };
        assert_eq!(last.former.len(), FORMER_LIMIT);
        assert_eq!(
            adopt(found("db", &many)),
            Verdict::Refused(KeyRefusal::TooMany(FORMER_LIMIT + 1))
        );
    }

    #[test]
    fn a_host_that_has_run_the_unit_elsewhere_waits_for_an_operator() {
        let (kept, here) = (place("a", "db"), place("b", "db"));
        for found in [
            Found::Nothing,
            Found::Garbled,
            found("db", &[]),
            found("ctl", &[]),
        ] {
            assert_eq!(
                judge(&here, Some(&kept), &found, false),
                Verdict::Refused(KeyRefusal::OtherStore(kept.clone())),
                "{found:?}"
            );
            assert!(
                !refused(&judge(&here, Some(&kept), &found, true)),
                "{found:?}"
            );
        }
        // The former store's key does not matter: a lock of this store is another one, whatever its key.
        let renamed = place("b", "new");
        assert_eq!(
            judge(&renamed, Some(&kept), &Found::Nothing, true),
            Verdict::Write(entry("new", &[]))
        );
    }

    #[test]
    fn a_store_is_the_same_if_one_of_its_servers_is() {
        let kept = place("a b", "db");
        for servers in ["a b", "b c", "a"] {
            let here = place(servers, "db");
            assert_eq!(
                judge(&here, Some(&kept), &found("db", &[]), false),
                Verdict::Cleared
            );
            assert_eq!(
                judge(&here, Some(&kept), &Found::Nothing, false),
                Verdict::Write(entry("db", &[]))
            );
            assert_eq!(
                judge(&here, Some(&kept), &Found::Garbled, false),
                Verdict::Refused(KeyRefusal::Garbled)
            );
        }
        // A copy of a store holds the same entries, and is another store all the same.
        let copied = place("c", "db");
        assert!(refused(&judge(
            &copied,
            Some(&kept),
            &found("db", &[]),
            false
        )));
        let mut bucket = kept.clone();
        bucket.store.what = "nats, bucket other".to_owned();
        assert!(refused(&judge(
            &bucket,
            Some(&kept),
            &found("db", &[]),
            false
        )));
    }

    #[test]
    fn another_key_without_an_entry_waits_for_an_operator_too() {
        let (kept, here) = (place("a", "db"), place("a", "new"));
        let verdict = judge(&here, Some(&kept), &Found::Nothing, false);
        assert_eq!(verdict, Verdict::Refused(KeyRefusal::FormerKey(key("db"))));
        for found in [Found::Nothing, Found::Garbled] {
            assert_eq!(
                judge(&here, Some(&kept), &found, true),
                Verdict::Write(entry("new", &["db"]))
            );
        }
        // Where the entry names the new key, an operator has given his word on another host.
        assert_eq!(
            judge(&here, Some(&kept), &self::found("new", &[]), false),
            Verdict::Cleared
        );
    }

    #[test]
    fn an_entry_that_is_older_than_what_was_seen_waits_for_an_operator() {
        let (seen, here) = (kept(&place("a", "ctl")), place("a", "db"));
        let elsewhere = (Incarnation("b".to_owned()), Revision(11));
        let went_back = Verdict::Refused(KeyRefusal::FormerKey(key("ctl")));
        for position in [position(9), position(10), elsewhere] {
            let judge = |here, found: &Found, adopting| {
                super::judge(here, Some(&seen), found, &position, adopting)
            };
            assert_eq!(judge(&here, &found("db", &[]), false), went_back);
            assert_eq!(judge(&here, &found("db", &["old"]), false), went_back);
            assert_eq!(
                judge(&here, &found("db", &[]), true),
                Verdict::Write(entry("db", &["ctl"]))
            );
            // An entry that names that key as a former one has lost nothing.
            assert_eq!(
                judge(&here, &found("db", &["ctl"]), false),
                Verdict::Waits(entry("db", &["ctl"]))
            );
            // The entry names the key that this host saw last.
            assert_eq!(
                judge(&seen.place, &found("ctl", &[]), false),
                Verdict::Cleared
            );
            let other = judge(&seen.place, &found("db", &[]), false);
            assert_eq!(other, Verdict::Refused(KeyRefusal::OtherKey(key("db"))));
        }
        let forgotten = KeptPlace {
            position: None,
            ..seen.clone()
        };
        let verdict = super::judge(
            &here,
            Some(&forgotten),
            &found("db", &[]),
            &position(1),
            false,
        );
        assert_eq!(verdict, Verdict::Cleared);
    }

    #[test]
    fn a_former_key_that_was_not_seen_free_is_not_forgotten_with_the_entry() {
        let here = place("a", "ctl");
        let waiting = KeptPlace {
            former: vec![key("db")],
            ..kept(&here)
        };
        let judge = |found: &Found, revision, adopting| {
            super::judge(&here, Some(&waiting), found, &position(revision), adopting)
        };
        assert_eq!(
            judge(&Found::Nothing, 0, false),
            Verdict::Refused(KeyRefusal::FormerKey(key("db")))
        );
        assert_eq!(
            judge(&Found::Nothing, 0, true),
            Verdict::Write(entry("ctl", &["db"]))
        );
        assert_eq!(
            judge(&Found::Garbled, 11, true),
            Verdict::Write(entry("ctl", &["db"]))
        );
        assert_eq!(
            judge(&found("ctl", &[]), 9, false),
            Verdict::Refused(KeyRefusal::FormerKey(key("db")))
        );
        assert_eq!(
            judge(&found("ctl", &[]), 9, true),
            Verdict::Write(entry("ctl", &["db"]))
        );
        // An entry that still has the former key has lost nothing. A newer one without it is believed: the key was struck out.
        assert_eq!(
            judge(&found("ctl", &["db"]), 10, false),
            Verdict::Waits(entry("ctl", &["db"]))
        );
        assert_eq!(
            judge(&found("ctl", &["db"]), 9, false),
            Verdict::Waits(entry("ctl", &["db"]))
        );
        assert_eq!(judge(&found("ctl", &[]), 11, false), Verdict::Cleared);
    }

    proptest! {
        #[test]
        fn decoding_takes_anything_and_keeps_what_it_understands(
            body in "[a-z:/. ]{0,8}",
            former in "[a-z:/. ]{0,24}",
            named in any::<bool>(),
        ) {
            let database = unit("database.service");
            let name = if named { "database.service" } else { "web.service" };
            let fields = [("unit".to_owned(), name.to_owned()), ("former".to_owned(), former)];
            let decoded = Registration::decode(&Value { body: body.into_bytes(), fields: fields.into() }, &database);
            prop_assert!(named || decoded.is_none());
            if let Some(decoded) = decoded {
                prop_assert_eq!(Registration::decode(&decoded.encode(&database), &database), Some(decoded));
            }
        }
    }
}
