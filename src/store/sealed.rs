//! A store whose values are sealed with a key that all hosts of the cluster have, and that other writers of the store
//! do not have.
//!
//! The seal is an HMAC-SHA256 in a field of its own. It covers everything that gives the value its meaning: the
//! cluster, the key of the lock, the store's incarnation, the body, and each other field with its name. It is made when
//! a value is written, and checked when a value is read. A value without a valid seal is returned with a mark
//! ([`Value::is_unsealed`]), and whoever decodes it believes nothing of it. The seal says who made a value, not when:
//! `src/core/election/protocol.md` says what a genuine old value can do.

use std::{
    fs,
    io::{self, ErrorKind},
    path::Path,
    sync::Arc,
};

use data_encoding::HEXLOWER;
use ring::hmac;

use super::{
    Attempt, Result, Snapshot, Store, WriteOutcome,
    layered::{Layer, Layered},
    random_name,
};
use crate::types::{ClusterName, Incarnation, Key, Revision, Value};

/// The field that holds the seal, in lower case hexadecimal digits.
const FIELD: &str = "seal";

/// The first part of the sealed text. It keeps an HMAC that is made with the same key for another purpose from being
/// taken for a seal.
const LABEL: &[u8] = b"putexd sealed value 1";

/// The shortest key that records are sealed with, in bytes, without a newline at its end.
const SHORTEST_KEY_BYTES: usize = 32;

/// Wraps `store` so that the values of `cluster` are sealed, if there is a key file; otherwise returns `store` itself.
/// The file is read once. The error says why the key cannot be used.
pub fn as_configured(
    store: Arc<dyn Store>,
    key_file: Option<&Path>,
    cluster: Option<&ClusterName>,
) -> io::Result<Arc<dyn Store>> {
    let Some(key_file) = key_file else {
        return Ok(store);
    };
    let sealer = Sealer::from_file(key_file, cluster).map_err(|error| {
        let path = key_file.display();
        let why = format!("the seal-key in {path} cannot be used: {error}");
        io::Error::new(error.kind(), why)
    })?;
    Ok(Arc::new(Layered::new(store, sealer)))
}

/// Whether a value has a seal, good or bad.
pub(super) fn is_sealed(value: &Value) -> bool {
    value.fields.contains_key(FIELD)
}

/// A key of 256 random bits, as text.
pub fn new_key() -> io::Result<String> {
    Ok(random_name()? + &random_name()?)
}

/// Makes and checks seals.
pub struct Sealer {
    key: hmac::Key,
    cluster: String,
}

impl Sealer {
    /// Makes a sealer from the text of a key file. A newline at its end is not part of the key. A key of a wrong length
    /// is an error.
    pub fn new(text: &[u8], cluster: Option<&ClusterName>) -> io::Result<Self> {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        if text.len() < SHORTEST_KEY_BYTES {
            let why = format!(
                "make the key with \"head -c 32 /dev/urandom | base64\": it has {} bytes, at least {SHORTEST_KEY_BYTES} are needed",
                text.len()
            );
            return Err(io::Error::new(ErrorKind::InvalidData, why));
        }
        let cluster = cluster.map_or_else(String::new, ToString::to_string);
        Ok(Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, text),
            cluster,
        })
    }

    /// As [`Sealer::new`], of the text in this file.
    pub fn from_file(path: &Path, cluster: Option<&ClusterName>) -> io::Result<Self> {
        Self::new(&fs::read(path)?, cluster)
    }

    /// The value as it is to be written under `key` in `incarnation`, with its seal. A value that was read without a
    /// valid seal is written as it was found, and gets none.
    pub fn seal(&self, key: &Key, incarnation: &Incarnation, mut value: Value) -> Value {
        if value.is_unsealed() {
            return value.without_mark();
        }
        let seal = hmac::sign(&self.key, &self.text(key, incarnation, &value));
        value
            .fields
            .insert(FIELD.to_owned(), HEXLOWER.encode(seal.as_ref()));
        value
    }

    /// The value as it was before it was sealed. A value that was not sealed for this key and incarnation is returned
    /// as it was found, with the mark.
    pub fn open(&self, key: &Key, incarnation: &Incarnation, mut value: Value) -> Value {
        let seal = value
            .fields
            .get(FIELD)
            .and_then(|seal| HEXLOWER.decode(seal.as_bytes()).ok());
        let is_valid = !value.is_too_large()
            && seal.is_some_and(|seal| {
                hmac::verify(&self.key, &self.text(key, incarnation, &value), &seal).is_ok()
            });
        if is_valid {
            value.fields.remove(FIELD);
            value
        } else {
            value.marked_unsealed()
        }
    }

    /// The text that is sealed. Each part is preceded by its length, so that no two values have the same text.
    ///
    /// The entry of a unit (the unit's entry, N1) is not sealed for one incarnation, and so is valid in all. Nothing in it rests on
    /// revisions. Otherwise no host would run the unit in a restored store before an operator has allowed it.
    fn text(&self, key: &Key, incarnation: &Incarnation, value: &Value) -> Vec<u8> {
        let incarnation = if key.as_str().starts_with(Key::OF_UNITS) {
            ""
        } else {
            &incarnation.0
        };
        let mut text = Vec::with_capacity(value.size() + 256);
        let fields = value
            .fields
            .iter()
            .filter(|(name, _)| *name != FIELD)
            .flat_map(|(name, field)| [name.as_bytes(), field.as_bytes()]);
        let first = [
            LABEL,
            self.cluster.as_bytes(),
            key.as_str().as_bytes(),
            incarnation.as_bytes(),
            &value.body,
        ];
        for part in first.into_iter().chain(fields) {
            text.extend_from_slice(&(part.len() as u64).to_be_bytes());
            text.extend_from_slice(part);
        }
        text
    }
}

/// Seals values when they are written, and opens them when they are read.
impl Layer for Sealer {
    async fn read(
        &self,
        store: &dyn Store,
        key: &Key,
        before: Option<Revision>,
    ) -> Result<Snapshot> {
        let mut found = store.read(key, before).await?;
        if let Some(entry) = &mut found.entry {
            let value = entry.value.take();
            entry.value = value.map(|value| self.open(key, &found.incarnation, value));
        }
        Ok(found)
    }

    async fn compare_and_set(
        &self,
        store: &dyn Store,
        key: &Key,
        attempt: &Attempt,
    ) -> WriteOutcome {
        let mut sealed = attempt.clone();
        sealed.value = self.seal(key, &attempt.incarnation, sealed.value);
        store.compare_and_set(key, &sealed).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::{Entry, memory::MemoryStore};
    use super::*;
    use crate::types::{UnitName, WriteId};

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn cluster(name: &str) -> Option<ClusterName> {
        (!name.is_empty()).then(|| ClusterName::new(name).expect("a cluster's name"))
    }

    fn sealer(text: &str, name: &str) -> Sealer {
        Sealer::new(text.as_bytes(), cluster(name).as_ref()).expect("a key")
    }

    fn key(name: &str) -> Key {
        Key::new(name).expect("a key")
    }

    fn life(name: &str) -> Incarnation {
        Incarnation(name.to_owned())
    }

    fn value() -> Value {
        let fields = [
            ("machine", "00000000000000000000000000000002"),
            ("instance", "0000000000000000000000000000000a"),
            ("write", "0000000000000000000000000000000b"),
            ("state", "active"),
            ("lease-ms", "3000"),
            ("hold-ms", "3900"),
            ("token", "1767225600"),
            ("units", "a.service"),
        ];
        let fields = fields.map(|(name, text)| (name.to_owned(), text.to_owned()));
        Value {
            body: b"h1".to_vec(),
            fields: fields.into(),
        }
    }

    fn sealed_value() -> Value {
        sealer(SECRET, "site-a").seal(&key("db"), &life("a"), value())
    }

    fn is_believed(value: Value) -> bool {
        !sealer(SECRET, "site-a")
            .open(&key("db"), &life("a"), value)
            .is_unsealed()
    }

    #[test]
    fn what_was_sealed_is_read_as_it_was_written() {
        assert_eq!(
            sealer(SECRET, "site-a").open(&key("db"), &life("a"), sealed_value()),
            value()
        );
        assert!(is_believed(sealed_value()));
        let Value { body, mut fields } = sealed_value();
        assert_eq!(fields.remove(FIELD).map(|seal| seal.len()), Some(64));
        assert_eq!(
            Value { body, fields },
            value(),
            "whoever has no key reads it all the same"
        );
    }

    #[test]
    fn a_seal_is_what_other_versions_make_of_it() {
        assert_eq!(
            sealed_value().fields[FIELD],
            "dd49b2c18816bf1869a220711a7a78a168daf6bdc0b8402ba05b217f120d027d"
        );
    }

    #[test]
    fn another_key_cluster_lock_or_store_is_not_believed() {
        let (other, newline) = (SECRET.replace('f', "e"), format!("{SECRET}\n"));
        let opens = |text: &str, name: &str, lock: &str, incarnation: &str| {
            !sealer(text, name)
                .open(&key(lock), &life(incarnation), sealed_value())
                .is_unsealed()
        };
        assert!(opens(SECRET, "site-a", "db", "a"));
        assert!(opens(&newline, "site-a", "db", "a"));
        assert!(!opens(&other, "site-a", "db", "a"));
        assert!(!opens(SECRET, "site-b", "db", "a"));
        assert!(!opens(SECRET, "", "db", "a"));
        assert!(!opens(SECRET, "site-a", "web", "a"));
        assert!(
            !opens(SECRET, "site-a", "db", "b"),
            "another store, or the same made anew"
        );
    }

    #[test]
    fn an_entry_of_a_unit_is_good_in_a_restored_store() {
        let sealer = sealer(SECRET, "");
        let of = |name: &str| Key::of_unit(None, &UnitName::new(name).expect("a unit"));
        let entry = sealer.seal(&of("a.service"), &life("a"), value());
        assert!(
            !sealer
                .open(&of("a.service"), &life("b"), entry.clone())
                .is_unsealed()
        );
        assert!(
            sealer
                .open(&of("b.service"), &life("a"), entry)
                .is_unsealed()
        );
    }

    #[test]
    fn a_value_that_was_changed_is_not_believed() {
        let changed = |change: &dyn Fn(&mut Value)| {
            let mut value = sealed_value();
            change(&mut value);
            assert!(!is_believed(value.clone()), "{value:?}");
        };
        changed(&|value| value.body.clear());
        changed(&|value| value.body.push(b'x'));
        for name in sealed_value().fields.keys() {
            changed(&|value| _ = value.fields.remove(name));
            changed(&|value| {
                value
                    .fields
                    .get_mut(name)
                    .into_iter()
                    .for_each(|text| text.push('0'))
            });
            changed(&|value| {
                value
                    .fields
                    .get_mut(name)
                    .into_iter()
                    .for_each(|text| _ = text.pop())
            });
        }
        changed(&|value| _ = value.fields.insert("next".to_owned(), "h2".to_owned()));
        changed(&|value| {
            value
                .fields
                .get_mut(FIELD)
                .into_iter()
                .for_each(|text| text.make_ascii_uppercase())
        });
        for seal in ["", "0", "\u{f6}\u{f6}", &"0".repeat(64)] {
            changed(&|value| _ = value.fields.insert(FIELD.to_owned(), seal.to_owned()));
        }
    }

    #[test]
    fn no_two_values_have_one_text() {
        let sealer = sealer(SECRET, "");
        let value = |body: &str, fields: &[(&str, &str)]| Value {
            body: body.into(),
            fields: fields
                .iter()
                .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
                .collect(),
        };
        let same = [
            value("abc", &[("d", "e")]),
            value("ab", &[("cd", "e")]),
            value("ab", &[("c", "de")]),
            value("ab", &[("c", "d"), ("e", "")]),
            value("abcde", &[]),
        ];
        let texts = same.map(|value| sealer.text(&key("db"), &life("a"), &value));
        for (n, text) in texts.iter().enumerate() {
            assert!(!texts[..n].contains(text), "{n}");
        }
    }

    #[test]
    fn what_was_not_sealed_gets_no_seal_when_it_is_written_again() {
        let sealer = sealer(SECRET, "");
        let forged = value();
        let read = sealer.open(&key("db"), &life("a"), forged.clone());
        assert!(read.is_unsealed());
        assert_eq!(sealer.seal(&key("db"), &life("a"), read), forged);
        let genuine = sealer.seal(&key("db"), &life("a"), forged);
        assert_eq!(
            sealer.seal(
                &key("db"),
                &life("a"),
                sealer.open(&key("db"), &life("a"), genuine.clone())
            ),
            genuine
        );
    }

    #[test]
    fn a_key_has_a_length() {
        for length in [0, 31] {
            let error = Sealer::new(&vec![b'x'; length], None).err();
            let said = error.expect("refused").to_string();
            assert!(said.contains(&format!("it has {length} bytes")), "{said}");
        }
        assert!(Sealer::new(&[b'x'; 4096], None).is_ok());
        assert!(Sealer::new(&[&[b'x'; 31][..], b"\n"].concat(), None).is_err());
    }

    #[tokio::test]
    async fn a_store_seals_what_is_written_and_marks_what_is_forged() {
        let below = Arc::new(MemoryStore::new(Duration::from_secs(5)));
        let store = Layered::new(Arc::clone(&below) as Arc<dyn Store>, sealer(SECRET, ""));
        let read = async |store: &dyn Store| store.read(&key("db"), None).await.expect("an answer");
        let found = read(&store).await;
        let attempt = Attempt {
            base: Revision(0),
            incarnation: found.incarnation,
            write: WriteId(1),
            value: value(),
        };
        let outcome = store.compare_and_set(&key("db"), &attempt).await;
        let WriteOutcome::Won(first) = outcome else {
            panic!("{outcome:?}")
        };
        let of = |snapshot: Snapshot| {
            snapshot
                .entry
                .and_then(|entry| entry.value)
                .expect("a value")
        };
        assert_eq!(of(read(&store).await), value());
        assert_eq!(of(read(&*below).await).fields[FIELD].len(), 64);
        let forged = below.put(&key("db"), value());
        assert!(of(read(&store).await).is_unsealed());
        let before = store
            .read(&key("db"), Some(forged))
            .await
            .expect("an answer");
        assert_eq!(
            before.entry,
            Some(Entry {
                revision: first,
                value: Some(value())
            }),
            "what it replaced was genuine"
        );
    }

    #[test]
    fn a_key_is_read_from_a_file() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), format!("{SECRET}\n")).expect("a key");
        let read = Sealer::from_file(file.path(), cluster("site-a").as_ref()).expect("a key");
        assert!(
            !read
                .open(&key("db"), &life("a"), sealed_value())
                .is_unsealed()
        );
        for text in ["hunter2", "correct horse"] {
            std::fs::write(file.path(), text).expect("a key");
            let error = Sealer::from_file(file.path(), None)
                .err()
                .expect("refused")
                .to_string();
            assert!(
                error.contains("make the key with") && !error.contains(text),
                "{error}"
            );
        }
        let store = Arc::new(MemoryStore::new(Duration::from_secs(5)));
        let error = as_configured(store, Some(Path::new("/absent")), None)
            .err()
            .expect("refused")
            .to_string();
        assert!(
            error.contains("the seal-key in /absent cannot be used"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn any_change_of_a_sealed_value_is_not_believed(
            place in 0..512_usize,
            flip in 1..128_u8,
            body in proptest::collection::vec(any::<u8>(), 1..64),
            fields in proptest::collection::btree_map("[a-z][a-z0-9-]{0,6}", "[ -~]{1,12}", 0..6),
        ) {
            let sealer = sealer(SECRET, "site-a");
            let lock = key("db");
            let mut value = sealer.seal(&lock, &life("a"), Value { body, fields });
            prop_assert!(!sealer.open(&lock, &life("a"), value.clone()).is_unsealed());
            // Changes one byte: of the body, of a field's name or of a field's text.
            let before = value.clone();
            let place = place % value.size();
            if place < value.body.len() {
                value.body[place] ^= flip;
            } else {
                let mut rest = place - value.body.len();
                let (name, text) = value.fields.iter().find(|(name, text)| {
                    let is_here = rest < name.len() + text.len();
                    if !is_here { rest -= name.len() + text.len(); }
                    is_here
                }).map(|(name, text)| (name.clone(), text.clone())).expect("it is within the value");
                value.fields.remove(&name);
                let mut both = [name.as_bytes(), text.as_bytes()].concat();
                both[rest] ^= flip;
                let both = String::from_utf8(both).expect("ASCII");
                let (changed, text) = both.split_at(name.len());
                value.fields.insert(changed.to_owned(), text.to_owned());
            }
            prop_assume!(value != before);
            prop_assert!(sealer.open(&lock, &life("a"), value).is_unsealed());
        }
    }
}
