//! The bucket's name, and the names in NATS that follow from it.

use async_nats::jetstream::ErrorCode;

use crate::{
    store::{MAKE_ONCE, Result, StoreError},
    types::Key,
};

/// A bucket, by its name, and the names in NATS that follow from it.
pub struct Bucket {
    pub name: String,
}

/// Whether NATS takes this as the name of a bucket.
pub fn is_name(name: &str) -> bool {
    let accepted = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !name.is_empty() && name.bytes().all(accepted)
}

impl Bucket {
    pub fn stream(&self) -> String {
        format!("KV_{}", self.name)
    }

    pub fn key_prefix(&self) -> String {
        format!("$KV.{}.", self.name)
    }

    pub fn all_keys(&self) -> String {
        format!("$KV.{}.>", self.name)
    }

    /// The subject of a key; an error for a key that NATS refuses. NATS splits subjects at dots, and no part may be
    /// empty.
    pub fn subject(&self, key: &Key) -> Result<String> {
        if key.as_str().split('.').any(str::is_empty) {
            let why = format!(
                "the key {key} begins or ends with a dot or has two in a row: NATS refuses that"
            );
            return Err(StoreError::Unfit(why));
        }
        Ok(format!("{}{key}", self.key_prefix()))
    }

    /// Translates an error of JetStream.
    pub fn error(&self, refusal: &async_nats::jetstream::Error) -> StoreError {
        match refusal.error_code() {
            ErrorCode::STREAM_NOT_FOUND => self.missing(),
            ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => {
                StoreError::Unfit(refusal.to_string())
            }
            // There is no leader or no quorum, or the server is still starting: the error may pass.
            _ => StoreError::Unreachable(refusal.to_string()),
        }
    }

    pub fn missing(&self) -> StoreError {
        StoreError::Missing(format!("there is no bucket {}: {MAKE_ONCE}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_and_keys_that_nats_refuses_are_refused() {
        let bucket = Bucket {
            name: "locks".to_owned(),
        };
        let key = |name| Key::new(name).expect("a key");
        assert_eq!(
            bucket.subject(&key("a/b.c")),
            Ok("$KV.locks.a/b.c".to_owned())
        );
        for bad in [".a", "a.", "a..b"] {
            assert!(bucket.subject(&key(bad)).is_err(), "{bad}");
        }
        for bad in ["", "a.b", "a b", "a>"] {
            assert!(!is_name(bad), "{bad:?}");
        }
        assert!(is_name("A-b_1"));
    }
}
