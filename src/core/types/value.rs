//! What a store keeps under a key.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a store keeps under a key: a body, and named fields beside it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Value {
    /// In a record the holder's name alone, so that putex 0.2.0 can read it; empty = nobody. In a unit's entry the key of its
    /// lock.
    pub body: Vec<u8>,
    /// Everything else. Field names are lower case ASCII with `-`.
    pub fields: BTreeMap<String, String>,
}

impl Value {
    /// The largest size, body and fields together, of a value that any store takes, or returns from a read.
    pub const LIMIT_BYTES: usize = 32 * 1024;

    /// The field that marks a value without a valid seal. No store is given a field with such a name.
    const UNSEALED: &str = "?unsealed";

    /// The field that marks a value that was not in putexd's form. No store is given this one either.
    const MALFORMED: &str = "?malformed";

    /// This much of a malformed value is kept, to be shown.
    const MALFORMED_LIMIT_BYTES: usize = 256;

    /// What a store returns in place of a value that is larger than the limit, so that nobody has to hold that one.
    pub fn too_large() -> Self {
        Self {
            body: vec![b'?'; Self::LIMIT_BYTES + 1],
            fields: BTreeMap::new(),
        }
    }

    /// What a store returns in place of bytes that are not in the form in which it keeps values: the first of them, with a mark.
    pub fn malformed(found: &[u8]) -> Self {
        let found = if found.is_empty() {
            b"(nothing)"
        } else {
            &found[..found.len().min(Self::MALFORMED_LIMIT_BYTES)]
        };
        Self {
            body: found.to_vec(),
            fields: [(Self::MALFORMED.to_owned(), String::new())].into(),
        }
    }

    /// Whether the value is marked as malformed.
    pub fn is_malformed(&self) -> bool {
        self.fields.contains_key(Self::MALFORMED)
    }

    /// Marks a value that was read without a valid seal: nothing that it says is believed.
    pub fn marked_unsealed(mut self) -> Self {
        self.fields.insert(Self::UNSEALED.to_owned(), String::new());
        self
    }

    /// Whether the value is marked as read without a valid seal.
    pub fn is_unsealed(&self) -> bool {
        self.fields.contains_key(Self::UNSEALED)
    }

    /// The value as it was found, without the mark of a missing seal.
    pub fn without_mark(mut self) -> Self {
        self.fields.remove(Self::UNSEALED);
        self
    }

    /// The size of body and fields together, in bytes.
    pub fn size(&self) -> usize {
        self.body.len()
            + self
                .fields
                .iter()
                .map(|(name, text)| name.len() + text.len())
                .sum::<usize>()
    }

    /// Whether the value is larger than any store takes.
    pub fn is_too_large(&self) -> bool {
        self.size() > Self::LIMIT_BYTES
    }

    /// The value itself, or [`Value::too_large`] in its place.
    pub fn within_limit(self) -> Self {
        if self.is_too_large() {
            Self::too_large()
        } else {
            self
        }
    }
}
