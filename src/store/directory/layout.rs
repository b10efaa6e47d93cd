//! The names and the files of a lock's folder. The parent module says what they are for.
//!
//! A file ends with a checksum, so that a torn or truncated file is noticed. It is text: `cat` shows an administrator who holds a lock.

use std::path::{Path, PathBuf};

use crate::{
    store::text,
    types::{self, Key, Revision, Value},
};

/// The marker: a folder that contains the store's id in [`VALUE`]. A directory without it is no store.
pub const MARKER: &str = "putex-store";
/// The file of a revision.
pub const VALUE: &str = "value";
/// The file that says which lock a folder is.
pub const IDENTITY: &str = "identity";
/// The most bytes that are read of a file. No file of putexd is larger, even with the largest value and as many fields
/// as fit into it.
pub const FILE_LIMIT_BYTES: u64 = 1 << 20;

const LOCK_PREFIX: &str = "lock-";
const REVISION_PREFIX: &str = "r-";
const NONCE_PREFIX: &str = "n-";
const DRAFT_PREFIX: &str = "t-";
const DISCARD_PREFIX: &str = "d-";

/// The nonce in the name of a revision's inner folder; `None` for other names.
pub(super) fn nonce_of(name: &str) -> Option<&str> {
    name.strip_prefix(NONCE_PREFIX)
        .filter(|nonce| !nonce.is_empty())
}

/// The path of a lock's folder. `+` stands for `/`, and no key contains it. The prefix keeps a leading dot of a key
/// from hiding the folder.
pub(super) fn lock(key: &Key) -> PathBuf {
    format!("{LOCK_PREFIX}{}", key.as_str().replace('/', "+")).into()
}

/// The key of the lock whose folder has this name; `None` for other names.
pub(super) fn key_of(name: &str) -> Option<Key> {
    Key::new(&name.strip_prefix(LOCK_PREFIX)?.replace('+', "/")).ok()
}

/// The folder of a revision of a lock.
pub(super) fn revision(lock: &Path, revision: Revision) -> PathBuf {
    lock.join(format!("{REVISION_PREFIX}{:020}", revision.0))
}

/// The revision of a folder with this name in a lock's folder; `None` for other names.
pub(super) fn revision_of(name: &str) -> Option<Revision> {
    let digits = name.strip_prefix(REVISION_PREFIX)?;
    let canonical = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    canonical.then(|| digits.parse().ok().map(Revision))?
}

/// The highest revision of a lock's folder with these names; 0 if it has none.
pub(super) fn highest_of(names: &[String]) -> Revision {
    names
        .iter()
        .filter_map(|name| revision_of(name))
        .max()
        .unwrap_or_default()
}

/// The inner folder of a revision, whose nonce distinguishes it from another revision with the same number.
pub(super) fn inner(revision: &Path, nonce: &str) -> PathBuf {
    revision.join(format!("{NONCE_PREFIX}{nonce}"))
}

/// The witness in the folder `inner` of a revision: it says that the next revision is that of `successor`.
pub(super) fn witness(inner: &Path, successor: &str) -> PathBuf {
    inner.join(format!("w-{successor}"))
}

/// The path at which a folder is built before it is renamed into place.
pub(super) fn draft(folder: &Path, nonce: &str) -> PathBuf {
    folder.join(format!("{DRAFT_PREFIX}{nonce}"))
}

/// Whether this is the name of a draft.
pub(super) fn is_draft(name: &str) -> bool {
    name.starts_with(DRAFT_PREFIX)
}

/// The name of a draft that is not to be renamed into place any more.
pub(super) fn discarded(draft: &str) -> String {
    format!("{DISCARD_PREFIX}{}", draft.trim_start_matches(DRAFT_PREFIX))
}

/// Whether this is the name of a discarded draft.
pub(super) fn is_discarded(name: &str) -> bool {
    name.starts_with(DISCARD_PREFIX)
}

/// The path to which an administrator moves a damaged lock's folder.
pub(super) fn moved(key: &Key) -> PathBuf {
    format!("x-{}", key.as_str().replace('/', "+")).into()
}

/// The bytes of the file that holds `value`.
pub fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = text::line(value, None);
    let sum = types::sum(&bytes);
    bytes.extend(format!("\nsum {sum:016x}\n").into_bytes());
    bytes
}

/// The value in a file with these bytes. The error says what is wrong with the file.
pub fn decode(bytes: &[u8]) -> Result<Value, &'static str> {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let (line, sum) = bytes.split_at(end.ok_or("is cut short")?);
    if sum != format!("\nsum {:016x}\n", types::sum(line)).as_bytes() {
        return Err("is damaged");
    }
    let (value, _) = text::parse(line).ok_or("is no value of this version of putexd")?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_and_revisions_survive_their_names() {
        for name in [
            "database",
            "app/other.lock=1",
            ".hidden",
            "..",
            "/",
            "A-b_c",
        ] {
            let key = Key::new(name).expect("a key");
            let path = lock(&key);
            assert_eq!(path.parent(), Some(Path::new("")), "{name}");
            let folder = path.file_name().expect("a name").to_str().expect("text");
            assert_eq!(key_of(folder), Some(key));
        }
        let longest = Key::new(&"/".repeat(128)).expect("a key");
        assert!(lock(&longest).as_os_str().len() < 255);
        for number in [0, 7, u64::MAX] {
            let path = revision(Path::new("/l"), Revision(number));
            assert_eq!(
                revision_of(path.file_name().expect("a name").to_str().expect("text")),
                Some(Revision(number))
            );
        }
        for odd in [
            "r-7",
            "r-+0000000000000000007",
            "r-99999999999999999999",
            "t-00000000000000000007",
        ] {
            assert_eq!(revision_of(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_file_that_is_cut_short_or_changed_anywhere_is_noticed() {
        let fields = [
            ("lease".to_owned(), "3000".to_owned()),
            ("reason".to_owned(), "a\nbody 2\n".to_owned()),
        ];
        let value = Value {
            body: b"h1\n\\".to_vec(),
            fields: fields.into(),
        };
        let bytes = encode(&value);
        assert_eq!(decode(&bytes), Ok(value));
        for position in 0..bytes.len() {
            assert!(decode(&bytes[..position]).is_err(), "cut at {position}");
            let mut changed = bytes.clone();
            changed[position] ^= 1;
            assert!(decode(&changed).is_err(), "changed at {position}");
        }
        assert!(decode(&[bytes, b"\n".to_vec()].concat()).is_err());
    }

    proptest! {
        #[test]
        fn values_survive(body in ".*", fields in proptest::collection::btree_map("[a-z][a-z0-9-]{0,8}", ".*", 0..8)) {
            let value = Value { body: body.into(), fields };
            prop_assert_eq!(decode(&encode(&value)), Ok(value));
        }

        #[test]
        fn decoding_takes_anything(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }
    }
}
