//! What putexd and the process with the store's client send each other.
//!
//! The process may have been taken over by whoever is at the other end of the network. So what it sends is believed no more than
//! what a server sends: each text is cut and made printable, each value is within the limit of values, and has no name that putexd
//! itself gives to what it has found ([`believed`] and its kin).

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Attempt, Creation, Entry, Examination, Link, Listed, Snapshot, StoreError, StoreSettings, TEXT_LIMIT, WriteOutcome,
    incarnation, listed_name, refusal,
};
use crate::types::{Incarnation, Key, Revision, Value, shortened};

/// How many characters of a sentence for an administrator are shown.
const SENTENCE_LIMIT: usize = 2048;
/// How many facts and warnings of an examination are shown.
const SENTENCES_LIMIT: usize = 64;

/// What putexd sends.
#[derive(Serialize, Deserialize)]
pub(super) enum Request {
    /// The first frame.
    Open { settings: StoreSettings, call_limit: Duration },
    /// A call, which is not begun after `latest` on `CLOCK_BOOTTIME`: a process that stood still must not send a write that was given
    /// up long ago.
    Call { number: u64, latest: Duration, call: Call },
    /// The hints of this watch are not wanted any more.
    Unwatch(u64),
    /// The text of a file that was asked for, or why it cannot be read.
    File { path: PathBuf, text: Result<String, String> },
    /// Asks whether the process stands still.
    Ping,
}

/// A call of the store.
#[derive(Serialize, Deserialize)]
pub(super) enum Call {
    Read {
        key: Key,
        before: Option<Revision>,
    },
    CompareAndSet {
        key: Key,
        attempt: Attempt,
    },
    /// Hints that bear this number.
    Watch(u64),
    Init,
    Examine,
    List,
    Mend(Key),
}

/// What the process sends.
#[derive(Serialize, Deserialize)]
pub(super) enum Reply {
    /// The answer to the call of this number.
    Answer { number: u64, answer: Answer },
    /// A part of the answer to [`Call::List`], which comes before the answer.
    Page { number: u64, keys: Vec<Listed> },
    /// A hint of the watch of this number.
    Hint { number: u64, key: Key },
    /// The watch of this number has ended.
    HintsEnd(u64),
    /// The connection to the servers.
    Link(Link),
    /// Two different answers came to one write.
    Forged,
    /// Asks for the text of a file that the settings name.
    File(PathBuf),
    /// The answer to [`Request::Ping`].
    Pong,
}

/// The answer to a call.
#[derive(Serialize, Deserialize)]
pub(super) enum Answer {
    Read(Result<Snapshot, StoreError>),
    Written(WriteOutcome),
    Watching(Result<(), StoreError>),
    Made(Result<Creation, StoreError>),
    Examined(Result<Examination, StoreError>),
    /// After the pages. `true`: the store has more keys.
    Listed(Result<bool, StoreError>),
    Mended(Result<Option<String>, StoreError>),
}

/// A snapshot as it is believed.
pub(super) fn believed(snapshot: Snapshot) -> Result<Snapshot, StoreError> {
    let Snapshot { incarnation: Incarnation(text), entry } = snapshot;
    let of = |Entry { revision, value }: Entry| Entry { revision, value: value.map(within_bounds) };
    Ok(Snapshot { incarnation: incarnation(&text)?, entry: entry.map(of) })
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

/// An outcome of a write as it is believed.
pub(super) fn believed_outcome(outcome: WriteOutcome) -> WriteOutcome {
    match outcome {
        WriteOutcome::Unknown(reason) => WriteOutcome::Unknown(shortened(&reason, TEXT_LIMIT)),
        known @ (WriteOutcome::Won(_) | WriteOutcome::Conflict) => known,
    }
}

/// A state of the connection as it is shown.
pub(super) fn believed_link(link: Link) -> Link {
    match link {
        Link::Up => Link::Up,
        Link::Down(reason) => Link::Down(shortened(&reason, TEXT_LIMIT)),
    }
}

/// What an administrator is told of what was done, as it is shown.
pub(super) fn sentence(text: &str) -> String {
    shortened(text, SENTENCE_LIMIT)
}

/// See [`sentence`].
pub(super) fn believed_creation(creation: Creation) -> Creation {
    match creation {
        Creation::Created(text) => Creation::Created(sentence(&text)),
        Creation::Existed(text) => Creation::Existed(sentence(&text)),
    }
}

/// See [`sentence`].
pub(super) fn believed_examination(found: Examination) -> Examination {
    let facts = found.facts.into_iter().take(SENTENCES_LIMIT);
    Examination {
        facts: facts.map(|(label, text)| (shortened(&label, 32).into(), sentence(&text))).collect(),
        warnings: found.warnings.iter().take(SENTENCES_LIMIT).map(|text| sentence(text)).collect(),
        degraded: found.degraded.as_deref().map(sentence),
        fault: found.fault.as_deref().map(sentence),
        forgeable: found.forgeable.as_deref().map(sentence),
    }
}

/// A key of a listing as it is shown.
pub(super) fn believed_key(key: &Listed) -> Listed {
    Listed { name: listed_name(&key.name), ..*key }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(value: Value) -> Snapshot {
        let entry = Some(Entry { revision: Revision(3), value: Some(value) });
        Snapshot { incarnation: Incarnation("life".to_owned()), entry }
    }

    fn value(field: &str) -> Value {
        Value { body: b"h1".to_vec(), fields: [(field.to_owned(), "x".to_owned())].into() }
    }

    #[test]
    fn what_no_store_returns_is_not_believed() {
        let good = entry(value("lease"));
        assert_eq!(believed(good.clone()), Ok(good));
        let found =
            |value: Value| believed(entry(value)).expect("a snapshot").entry.expect("an entry").value.expect("a value");
        assert!(found(Value { body: vec![b'x'; Value::LIMIT_BYTES + 9], ..Value::default() }).is_too_large());
        // A mark that putexd gives to what it has checked must not come from outside.
        for odd in [value("?unsealed"), value("Lease"), value("")] {
            let found = found(odd);
            assert!(found.is_malformed() && !found.is_unsealed(), "{found:?}");
        }
        assert!(found(Value::malformed(b"x")).is_malformed());
        let lives = ["", "a\nb", &"x".repeat(300)];
        for life in lives {
            let odd = Snapshot { incarnation: Incarnation(life.to_owned()), ..entry(value("lease")) };
            assert!(matches!(believed(odd), Err(StoreError::Garbled(_))), "{life:?}");
        }
    }

    #[test]
    fn texts_are_short_and_printable() {
        let long = format!("\u{1b}{}", "x".repeat(4000));
        let Link::Down(shown) = believed_link(Link::Down(long.clone())) else { panic!("it is down") };
        assert!(shown.chars().count() <= TEXT_LIMIT && shown.starts_with("\\u{1b}"), "{shown}");
        let found = Examination {
            facts: vec![(long.clone().into(), long.clone()); 100],
            warnings: vec![long.clone(); 100],
            degraded: Some(long.clone()),
            ..Examination::default()
        };
        let shown = believed_examination(found);
        assert_eq!((shown.facts.len(), shown.warnings.len()), (SENTENCES_LIMIT, SENTENCES_LIMIT));
        let texts = shown.facts.iter().map(|(_, text)| text).chain(&shown.warnings).chain(&shown.degraded);
        assert!(texts.into_iter().all(|text| text.chars().count() <= SENTENCE_LIMIT && !text.contains('\u{1b}')));
    }
}
