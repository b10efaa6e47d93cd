//! What a host says of a service and of itself, and what it knows of the whole cluster: one type for each fact, as serde writes it.
//!
//! The election makes them, or the daemon does; reports to other hosts, the bus, `--json` and the journal carry them as they are. There
//! is no English here: `words` makes sentences of them, for the journal and putexctl. What is not known is
//! absent. A text in a fact is somebody else's: an error, a name, an operator's reason.

use std::{
    io::{self, Write},
    time::Duration,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{
    Serializer, Value as Json,
    ser::{CharEscape, Formatter},
};

use crate::types::{Time, Value, span::milliseconds};

pub mod alarm;
mod bar;
mod cluster;
mod host;
mod order;
mod service;
mod state;
mod stop_cause;
mod wait;

pub use bar::{Bar, Retirement};
pub use cluster::{
    Activity, Candidate, ClusterState, KnownHost, Missing, NotTaking, Presence, ServiceSummary,
};
pub use host::{HostState, StoreState};
pub use order::{Asked, Order, Refused, Word};
pub use service::{FailedRun, Health, LastRun, LockState, ServiceState, TimingsState};
pub use state::State;
#[cfg(test)]
pub(crate) use stop_cause::tests as stop_causes;
pub use stop_cause::{LapseCause, Occasion, ReleaseCause, StepDown, StopCause};
pub use wait::{Seen, Wait};

/// A point in time, in milliseconds since 1970, by the clock of the host that says it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct At(pub u64);

impl At {
    /// The time on a clock that shows `wall` since 1970.
    pub fn new(wall: Duration) -> Self {
        Self(milliseconds(wall))
    }

    /// A point of `CLOCK_BOOTTIME`, where the wall clock is `ahead` of that one. As long as `ahead` is the same, so is the point.
    pub fn of(time: Time, ahead: Duration) -> Self {
        Self::new(time.boot.saturating_add(ahead))
    }

    /// `seconds` since 1970.
    pub fn seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// How long ago it was at `now`; zero if it is to come.
    pub fn since(self, now: Self) -> Duration {
        Duration::from_millis(now.0.saturating_sub(self.0))
    }

    /// How long it is until then at `now`; zero if it is over.
    pub fn until(self, now: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(now.0))
    }

    /// `span` later.
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(milliseconds(span)))
    }

    /// `span` earlier.
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(milliseconds(span)))
    }
}

/// A fact as JSON in which each text is as `shown` has it: others have written some of them.
pub fn json(fact: &impl Serialize, shown: fn(&str) -> String) -> String {
    let (mut json, text) = (Vec::new(), String::new());
    let mut serializer = Serializer::with_formatter(&mut json, ShownTexts { shown, text });
    // Writing to memory does not fail, and no fact has a map with keys other than text.
    let _ = fact.serialize(&mut serializer);
    String::from_utf8(json).unwrap_or_default()
}

/// A fact that another host has written into the store, with each text as `shown` has it. `None`: the value is none, or is not believed.
pub fn from_others<T: DeserializeOwned>(value: &Value, shown: fn(&str) -> String) -> Option<T> {
    if value.is_too_large() || value.is_malformed() || value.is_unsealed() {
        return None;
    }
    let said: Json = serde_json::from_slice(&value.body).ok()?;
    serde_json::from_str(&json(&said, shown)).ok()
}

/// Gathers each text, and writes what is shown of it.
struct ShownTexts {
    shown: fn(&str) -> String,
    text: String,
}

impl Formatter for ShownTexts {
    fn begin_string<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.text.clear();
        Ok(())
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        _: &mut W,
        text: &str,
    ) -> io::Result<()> {
        self.text.push_str(text);
        Ok(())
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        _: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        self.text.push(match escape {
            CharEscape::Quote => '"',
            CharEscape::ReverseSolidus => '\\',
            CharEscape::Solidus => '/',
            CharEscape::Backspace => '\u{8}',
            CharEscape::FormFeed => '\u{c}',
            CharEscape::LineFeed => '\n',
            CharEscape::CarriageReturn => '\r',
            CharEscape::Tab => '\t',
            CharEscape::AsciiControl(byte) => byte.into(),
        });
        Ok(())
    }

    fn end_string<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        Ok(serde_json::to_writer(writer, &(self.shown)(&self.text))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_shown_and_what_is_not_known_is_absent() {
        let word = Word {
            by: "a\"\\/\u{8}\u{c}\n\r\t\u{1b}\u{9b}b".to_owned(),
            ..Word::default()
        };
        let written = json(&word, str::to_owned);
        assert_eq!(
            serde_json::from_str::<Word>(&written).expect("the same").by,
            crate::types::printable::short(&word.by)
        );
        assert_eq!(written, serde_json::to_string(&word).expect("JSON"));
        let shown = json(&word, str::to_uppercase);
        assert!(shown.contains("B\"") && !shown.contains("UNTIL"), "{shown}");
        let anyone = Asked::StepDown(None);
        let read = serde_json::from_str::<Asked>(&json(&anyone, str::to_owned));
        assert_eq!(read.expect("it is the same"), anyone);
    }
}
