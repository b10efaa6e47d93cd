//! What putexd and the process with the store's client send each other.
//!
//! The process may have been taken over by whoever is at the other end of the network. So what it sends is believed no more than
//! what a server sends: each text is cut and made printable, each value is within the limit of values, and has no name that putexd
//! itself gives to what it has found ([`believed`] and its kin).

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    Attempt, Examination, Link, Result, Snapshot, StoreSettings, TEXT_LIMIT, incarnation, refusal,
};
use crate::types::{Key, Revision, Value, shortened};

/// How many characters of a sentence for an administrator are shown.
const SENTENCE_LIMIT: usize = 2048;
/// How many warnings of an examination are shown.
const SENTENCES_LIMIT: usize = 64;

/// What putexd sends.
#[derive(Serialize, Deserialize)]
pub enum StoreRequest {
    /// The first frame.
    Open {
        settings: StoreSettings,
        call_limit: Duration,
    },
    /// Asks for a watch, in the place of the one before.
    Watch,
    /// Asks for a call, which is not begun after `latest` on `CLOCK_BOOTTIME`: a process that stood still must not send a write that
    /// was given up long ago. The answer is a `Result` with what the call returns.
    Call { latest: Duration, call: Call },
}

/// A call of the store.
#[derive(Serialize, Deserialize)]
pub enum Call {
    Read { key: Key, before: Option<Revision> },
    CompareAndSet { key: Key, attempt: Attempt },
    Init,
    Examine,
}

/// What the process sends.
#[derive(Serialize, Deserialize)]
pub enum StoreEvent {
    /// A hint of the watch; `None`: it has ended.
    Hint(Option<Key>),
    /// The connection to the servers.
    Link(Link),
    /// Asks for the text of a file that the settings name.
    File(PathBuf),
}

/// A snapshot as it is believed.
pub fn believed(mut snapshot: Snapshot) -> Result<Snapshot> {
    snapshot.incarnation = incarnation(&snapshot.incarnation.0)?;
    if let Some(entry) = &mut snapshot.entry {
        entry.value = entry.value.take().map(within_bounds);
    }
    Ok(snapshot)
}

/// A value as a store returns it: too large, malformed, or one that putexd could have written.
fn within_bounds(value: Value) -> Value {
    if value.is_too_large() {
        Value::too_large()
    } else if value.is_malformed() || refusal(&value).is_some() {
        Value::malformed(&value.body)
    } else {
        value
    }
}

/// A state of the connection as it is shown.
pub fn believed_link(link: Link) -> Link {
    Link {
        down: link.down.map(|reason| shortened(&reason, TEXT_LIMIT)),
        ..link
    }
}

/// What an administrator is told of what was done, as it is shown.
pub fn sentence(text: &str) -> String {
    shortened(text, SENTENCE_LIMIT)
}

/// See [`sentence`].
pub fn believed_examination(found: &Examination) -> Examination {
    let warnings = found.warnings.iter().take(SENTENCES_LIMIT);
    Examination {
        what: sentence(&found.what),
        warnings: warnings.map(|text| sentence(text)).collect(),
        fault: found.fault.as_deref().map(sentence),
        forgeable: found.forgeable.as_deref().map(sentence),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Entry, StoreError};
    use crate::types::Incarnation;

    fn entry(value: Value) -> Snapshot {
        let entry = Some(Entry {
            revision: Revision(3),
            value: Some(value),
        });
        Snapshot {
            incarnation: Incarnation("life".to_owned()),
            entry,
        }
    }

    fn value(field: &str) -> Value {
        Value {
            body: b"h1".to_vec(),
            fields: [(field.to_owned(), "x".to_owned())].into(),
        }
    }

    #[test]
    fn what_no_store_returns_is_not_believed() {
        let good = entry(value("lease"));
        assert_eq!(believed(good.clone()), Ok(good));
        let found = |value: Value| {
            believed(entry(value))
                .expect("a snapshot")
                .entry
                .expect("an entry")
                .value
                .expect("a value")
        };
        assert!(
            found(Value {
                body: vec![b'x'; Value::LIMIT_BYTES + 9],
                ..Value::default()
            })
            .is_too_large()
        );
        // A mark that putexd gives to what it has checked must not come from outside.
        for odd in [value("?unsealed"), value("Lease"), value("")] {
            let found = found(odd);
            assert!(found.is_malformed() && !found.is_unsealed(), "{found:?}");
        }
        assert!(found(Value::malformed(b"x")).is_malformed());
        let lives = ["", "a\nb", &"x".repeat(300)];
        for life in lives {
            let odd = Snapshot {
                incarnation: Incarnation(life.to_owned()),
                ..entry(value("lease"))
            };
            assert!(
                matches!(believed(odd), Err(StoreError::Garbled(_))),
                "{life:?}"
            );
        }
    }

    #[test]
    fn texts_are_short_and_printable() {
        let long = format!("\u{1b}{}", "x".repeat(4000));
        let shown = believed_link(Link::lost(long.clone()))
            .down
            .expect("it is down");
        assert!(
            shown.chars().count() <= TEXT_LIMIT && shown.starts_with("\\u{1b}"),
            "{shown}"
        );
        let found = Examination {
            what: long.clone(),
            warnings: vec![long.clone(); 100],
            fault: Some(long.clone()),
            ..Examination::default()
        };
        let shown = believed_examination(&found);
        assert_eq!(shown.warnings.len(), SENTENCES_LIMIT);
        let texts = [&shown.what]
            .into_iter()
            .chain(&shown.warnings)
            .chain(&shown.fault);
        assert!(
            texts
                .into_iter()
                .all(|text| text.chars().count() <= SENTENCE_LIMIT && !text.contains('\u{1b}'))
        );
    }
}
