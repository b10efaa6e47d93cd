//! The names and the files of a lock's folder. The parent module says what they are for.
//!
//! A file contains its lengths and ends with a checksum, so that a torn or truncated file is noticed. It is text as far
//! as its values are: `cat` shows an administrator who holds a lock.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::types;
use crate::types::{Key, Revision, Value};

/// The marker: a folder that contains the store's id in [`VALUE`]. A directory without it is no store.
pub(super) const MARKER: &str = "putex-store";
/// The file of a revision.
pub(super) const VALUE: &str = "value";
/// The file that says which lock a folder is.
pub(super) const IDENTITY: &str = "identity";
/// The most bytes that are read of a file. No file of putexd is larger, even with the largest value and as many fields
/// as fit into it.
pub(super) const FILE_LIMIT_BYTES: u64 = 1 << 20;

const FIRST_LINE: &str = "putexd 1";
const LOCK_PREFIX: &str = "lock-";
const REVISION_PREFIX: &str = "r-";
const NONCE_PREFIX: &str = "n-";
const DRAFT_PREFIX: &str = "t-";
const DISCARD_PREFIX: &str = "d-";

/// A name that nobody else uses: 128 random bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Nonce(String);

impl Nonce {
    /// Draws a new nonce. The error is the kernel's.
    pub(super) fn draw() -> std::io::Result<Self> {
        let mut bytes = [0_u8; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Self(format!("{:032x}", u128::from_ne_bytes(bytes))))
    }

    /// The nonce in the name of a revision's inner folder; `None` for other names.
    pub(super) fn of_folder(name: &str) -> Option<Self> {
        name.strip_prefix(NONCE_PREFIX).filter(|nonce| !nonce.is_empty()).map(|nonce| Self(nonce.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The path of a lock's folder. `+` stands for `/`, and no key contains it. The prefix keeps a leading dot of a key
/// from hiding the folder.
pub(super) fn lock(root: &Path, key: &Key) -> PathBuf {
    root.join(format!("{LOCK_PREFIX}{}", key.as_str().replace('/', "+")))
}

/// The key of the lock whose folder has this name; `None` for other names.
pub(super) fn key_of(name: &str) -> Option<Key> {
    Key::new(&name.strip_prefix(LOCK_PREFIX)?.replace('+', "/")).ok()
}

/// The key of the lock whose folder has this name, as a listing shows it; also one that is no good key. `None` for folders of
/// another kind.
pub(super) fn shown_key(name: &str) -> Option<String> {
    Some(name.strip_prefix(LOCK_PREFIX)?.replace('+', "/"))
}

pub(super) fn revision(lock: &Path, revision: Revision) -> PathBuf {
    lock.join(format!("{REVISION_PREFIX}{:020}", revision.0))
}

/// The revision of a folder with this name in a lock's folder; `None` for other names.
pub(super) fn revision_of(name: &str) -> Option<Revision> {
    let digits = name.strip_prefix(REVISION_PREFIX)?;
    let canonical = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    canonical.then(|| digits.parse().ok().map(Revision))?
}

/// The inner folder of a revision, whose nonce distinguishes it from another revision with the same number.
pub(super) fn inner(revision: &Path, nonce: &Nonce) -> PathBuf {
    revision.join(format!("{NONCE_PREFIX}{nonce}"))
}

/// The witness in the folder `inner` of a revision: it says that the next revision is that of `successor`.
pub(super) fn witness(inner: &Path, successor: &Nonce) -> PathBuf {
    inner.join(format!("w-{successor}"))
}

/// The path at which a folder is built before it is renamed into place.
pub(super) fn draft(folder: &Path, nonce: &Nonce) -> PathBuf {
    folder.join(format!("{DRAFT_PREFIX}{nonce}"))
}

pub(super) fn is_draft(name: &str) -> bool {
    name.starts_with(DRAFT_PREFIX)
}

/// The name of a draft that is not to be renamed into place any more.
pub(super) fn discarded(draft: &str) -> String {
    format!("{DISCARD_PREFIX}{}", draft.trim_start_matches(DRAFT_PREFIX))
}

pub(super) fn is_discarded(name: &str) -> bool {
    name.starts_with(DISCARD_PREFIX)
}

/// The path to which a damaged lock's folder is moved, for the administrator to look at.
pub(super) fn aside(root: &Path, key: &Key, nonce: &Nonce) -> PathBuf {
    root.join(format!("x-{}-{nonce}", key.as_str().replace('/', "+")))
}

/// The bytes of the file that holds `value`.
#[must_use]
pub fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = format!("{FIRST_LINE}\n").into_bytes();
    for (name, text) in &value.fields {
        bytes.extend(format!("field {name} {}\n{text}\n", text.len()).into_bytes());
    }
    bytes.extend(format!("body {}\n", value.body.len()).into_bytes());
    bytes.extend(&value.body);
    let sum = types::sum(&bytes);
    bytes.extend(format!("\nsum {sum:016x}\n").into_bytes());
    bytes
}

/// The value in a file with these bytes. The error says what is wrong with the file.
pub fn decode(bytes: &[u8]) -> Result<Value, &'static str> {
    let mut reader = Reader { bytes, position: 0 };
    if reader.line() != Some(FIRST_LINE) {
        return Err("does not begin as a file of this version of putexd does");
    }
    let mut value = Value::default();
    loop {
        let line = reader.line().ok_or("is cut short")?;
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["field", name, length] => {
                let text = reader.text(length).ok_or("is cut short")?;
                let text = str::from_utf8(text).map_err(|_| "has a field that is no text")?;
                value.fields.insert((*name).to_owned(), text.to_owned());
            }
            ["body", length] => {
                let end = reader.position.checked_add(length.parse().map_err(|_| "is damaged")?);
                let whole = end.and_then(|end| bytes.get(..end)).ok_or("is cut short")?;
                value.body = reader.text(length).ok_or("is cut short")?.to_vec();
                let sum = format!("sum {:016x}", types::sum(whole));
                let complete = reader.line() == Some(&sum) && reader.position == bytes.len();
                return if complete { Ok(value) } else { Err("is damaged") };
            }
            _ => return Err("is damaged"),
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    fn line(&mut self) -> Option<&'a str> {
        let rest = self.bytes.get(self.position..)?;
        let length = rest.iter().position(|byte| *byte == b'\n')?;
        self.position += length + 1;
        str::from_utf8(&rest[..length]).ok()
    }

    /// Reads `length` bytes, and skips the newline that must follow them.
    fn text(&mut self, length: &str) -> Option<&'a [u8]> {
        let end = self.position.checked_add(length.parse().ok()?)?;
        let text = self.bytes.get(self.position..end)?;
        self.position = end.checked_add(1)?;
        (self.bytes.get(end) == Some(&b'\n')).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_and_revisions_survive_their_names() {
        for name in ["database", "app/other.lock=1", ".hidden", "..", "/", "A-b_c"] {
            let key = Key::new(name).expect("a key");
            let path = lock(Path::new("/srv/putex"), &key);
            assert_eq!(path.parent(), Some(Path::new("/srv/putex")), "{name}");
            let folder = path.file_name().expect("a name").to_str().expect("text");
            assert_eq!(key_of(folder), Some(key));
        }
        let longest = Key::new(&"/".repeat(128)).expect("a key");
        assert!(lock(Path::new(""), &longest).as_os_str().len() < 255);
        for number in [0, 7, u64::MAX] {
            let path = revision(Path::new("/l"), Revision(number));
            assert_eq!(revision_of(path.file_name().expect("a name").to_str().expect("text")), Some(Revision(number)));
        }
        for odd in ["r-7", "r-+0000000000000000007", "r-99999999999999999999", "t-00000000000000000007"] {
            assert_eq!(revision_of(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_file_that_is_cut_short_or_changed_anywhere_is_noticed() {
        let fields = [("lease".to_owned(), "3000".to_owned()), ("reason".to_owned(), "a\nbody 2\n".to_owned())];
        let value = Value { body: b"h1\n\0\xff".to_vec(), fields: fields.into() };
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
        fn values_survive(body: Vec<u8>, fields in proptest::collection::btree_map("[a-z][a-z0-9-]{0,8}", ".*", 0..8)) {
            let value = Value { body, fields };
            prop_assert_eq!(decode(&encode(&value)), Ok(value));
        }

        #[test]
        fn decoding_takes_anything(bytes: Vec<u8>) {
            let _ = decode(&[FIRST_LINE.as_bytes(), b"\n", &bytes].concat());
        }
    }
}
