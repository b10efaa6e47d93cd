//! The history of a lock: its last tenures, as one value beside it.
//!
//! ```json
//! {"runs":[{"token":1767225600,"host":"h1","start":{"at":1767225600123},"end":{"at_ms":1767225700456,"known":"exactly"},"ended":"…"}]}
//! ```
//!
//! | of a tenure | who writes it, and when |
//! | --- | --- |
//! | when its unit was started | its host, once the unit runs |
//! | when that stopped, or that it was not started, and why | its host, once that is proven |
//! | the same, where that host has not written it | the next holder, once its own unit runs: the time is when it had last heard of the former one, or had seen that lock free |
//!
//! Fencing tokens put the tenures in order. A time that is a bound is marked as one. The clocks of hosts differ by some seconds at most.

use std::{cmp::Reverse, fmt, time::Duration};

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    facts::{
        alarm::{Alarm, known},
        from_others, json,
    },
    types::{NodeId, Value, shortened, span::rounded},
};

/// How many tenures of each lock are kept at most.
pub const KEPT: usize = 100;
/// The most characters of a text.
const TEXT_LIMIT: usize = 160;
/// What is further ahead of a reader's clock was forged, or its host's clock was wrong, and would be the latest for ever.
const AHEAD_MS: u64 = 24 * 60 * 60 * 1000;

/// The tenures, in the order of their tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// The latest is the last.
    #[serde(default)]
    pub runs: Vec<Run>,
}

/// How many alarms of one tenure are kept. The first ones say most about a cause.
pub const ALARMS: usize = 16;

/// One tenure. Times are those of the host that has written them, in milliseconds since 1970.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Its fencing token.
    pub token: u64,
    /// The host.
    pub host: String,
    /// When its unit was started.
    pub start: Start,
    /// When it ended. `None`: nobody has written that.
    pub end: Option<End>,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ended: String,
    /// Whether an operator had the service stopped everywhere: the time after it is no gap.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// The alarms that were raised while it lasted.
    #[serde(deserialize_with = "known")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alarms: Vec<Alarm>,
}

/// When the unit was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// At this time.
    At(u64),
    /// Before whoever writes this has looked.
    Unseen,
    /// It was not: the start failed.
    Failed,
}

/// When a tenure ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The time, which `known` says more about.
    pub at_ms: u64,
    /// What is known of it.
    pub known: Known,
}

/// What is known of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Known {
    /// It was then or later: the host was last heard of then.
    AtLeast,
    /// It was then or before.
    AtMost,
    /// It was then.
    Exactly,
}

/// A length of time, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Length {
    /// In milliseconds.
    pub ms: u64,
    /// What is known of it.
    pub known: Known,
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.known {
            Known::AtLeast => "≥ ",
            Known::AtMost => "≤ ",
            Known::Exactly => "",
        })?;
        f.write_str(&rounded(Duration::from_millis(self.ms)))
    }
}

impl Run {
    /// A tenure of which nothing is known yet but this.
    pub fn new(token: u64, host: &str, start: Start) -> Self {
        Self {
            token,
            host: host.to_owned(),
            start,
            end: None,
            ended: String::new(),
            stopped: false,
            alarms: Vec::new(),
        }
    }

    /// How long it lasted, or has lasted until now. `None`: that is not known, or the unit was not started.
    pub fn length(&self, now_ms: u64) -> Option<Length> {
        let (until, known) = self
            .end
            .map_or((now_ms, Known::Exactly), |end| (end.at_ms, end.known));
        match self.start {
            Start::At(at) => Some(Length {
                ms: until.saturating_sub(at),
                known,
            }),
            Start::Unseen | Start::Failed => None,
        }
    }

    /// For how long nobody ran the unit before, where this tenure was before. `None`: that is not known, or an operator had it stopped.
    pub fn gap_after(&self, before: &Self) -> Option<Length> {
        let (Start::At(at), Some(end)) = (self.start, before.end.filter(|_| !before.stopped))
        else {
            return None;
        };
        let known = match end.known {
            Known::AtLeast => Known::AtMost,
            Known::AtMost => Known::AtLeast,
            Known::Exactly => Known::Exactly,
        };
        let ms = at.saturating_sub(end.at_ms);
        (known != Known::AtLeast || ms > 0).then_some(Length { ms, known })
    }

    /// Whether its host was not heard of again, as far as is known.
    pub fn is_silent(&self) -> bool {
        self.end.is_some_and(|end| end.known == Known::AtLeast)
    }

    /// The time by which it has its place on a screen.
    pub fn at_ms(&self) -> u64 {
        match (self.start, self.end) {
            (Start::At(at), _) => at,
            (Start::Unseen | Start::Failed, end) => {
                end.map_or(self.token.saturating_mul(1000), |end| end.at_ms)
            }
        }
    }

    /// Takes what another host, or the same one later, has written of the same tenure. What is known better counts.
    fn merge(&mut self, other: Self) {
        if matches!(self.start, Start::Unseen) || matches!(other.start, Start::Failed) {
            self.start = other.start;
        }
        // Of two bounds the earlier one says more.
        let value = |end: End| {
            (
                end.known,
                (end.known == Known::AtMost).then_some(Reverse(end.at_ms)),
            )
        };
        if other.end.is_some() && other.end.map(value) >= self.end.map(value) {
            (self.end, self.ended, self.stopped) = (other.end, other.ended, other.stopped);
        }
        if self.alarms.len() < other.alarms.len() {
            self.alarms = other.alarms;
        }
    }

    /// Whether another host's run is believed.
    fn is_sound(&self, now_ms: u64) -> bool {
        NodeId::new(&self.host).is_ok() && self.at_ms() <= now_ms.saturating_add(AHEAD_MS)
    }
}

impl History {
    /// Reads what is under the key of a history, at `now_ms` since 1970. What is none counts as empty.
    pub fn decode(value: Option<&Value>, now_ms: u64) -> Self {
        let mut history: Self = value
            .and_then(|value| from_others(value, short))
            .unwrap_or_default();
        history.runs.retain(|run| run.is_sound(now_ms));
        history.runs.sort_by_key(|run| run.token);
        history.shorten();
        history
    }

    /// The value to write, with as many tenures as have room in it.
    pub fn encode(mut self) -> Value {
        loop {
            let value = Value {
                body: json(&self, short).into_bytes(),
                ..Value::default()
            };
            if value.size() <= Value::LIMIT_BYTES || self.runs.is_empty() {
                return value;
            }
            self.runs.remove(0);
        }
    }

    /// Adds what is known of a tenure. The same may be added again.
    pub fn add(&mut self, run: Run) {
        if let Some(known) = self
            .runs
            .iter_mut()
            .find(|known| (known.token, &known.host) == (run.token, &run.host))
        {
            known.merge(run);
        } else {
            let place = self.runs.partition_point(|known| known.token <= run.token);
            self.runs.insert(place, run);
        }
        self.shorten();
    }

    fn shorten(&mut self) {
        self.runs.drain(..self.runs.len().saturating_sub(KEPT));
    }
}

fn short(text: &str) -> String {
    shortened(text, TEXT_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(token: u64, host: &str, from: u64, end: Option<(u64, Known)>) -> Run {
        let end = end.map(|(at_ms, known)| End { at_ms, known });
        Run {
            end,
            ..Run::new(token, host, Start::At(from))
        }
    }

    #[test]
    fn tenures_are_in_the_order_of_their_tokens_and_the_oldest_go() {
        let mut history = History::default();
        for token in [3, 1, 2] {
            history.add(run(token, "h1", token * 10, None));
        }
        assert_eq!(
            history.runs.iter().map(|run| run.token).collect::<Vec<_>>(),
            [1, 2, 3]
        );
        for token in 4..200 {
            history.add(run(token, "h1", token * 10, None));
        }
        assert_eq!((history.runs.len(), history.runs[0].token), (KEPT, 100));
    }

    #[test]
    fn what_is_known_better_counts_whoever_writes_last() {
        let seen = Run {
            ended: "last heard of".to_owned(),
            ..run(1, "h1", 1000, Some((4000, Known::AtLeast)))
        };
        let own = Run {
            ended: "drained".to_owned(),
            ..run(1, "h1", 1000, Some((5000, Known::Exactly)))
        };
        for both in [[seen.clone(), own.clone()], [own.clone(), seen.clone()]] {
            let mut history = History::default();
            for run in both {
                history.add(run);
            }
            assert_eq!(history.runs, std::slice::from_ref(&own));
        }
        // Of two bounds the earlier one says more.
        let bound = |at_ms, ended: &str| Run {
            ended: ended.to_owned(),
            ..run(1, "h1", 1000, Some((at_ms, Known::AtMost)))
        };
        let (first, later) = (bound(4000, "not renewed in time"), bound(9000, ""));
        for both in [[first.clone(), later.clone()], [later, first.clone()]] {
            let mut history = History::default();
            for run in both {
                history.add(run);
            }
            assert_eq!(history.runs, std::slice::from_ref(&first));
        }
        // A host that was restarted has not seen its own unit's start.
        let mut history = History::default();
        history.add(run(1, "h1", 1000, None));
        history.add(Run {
            start: Start::Unseen,
            ..own.clone()
        });
        assert_eq!(history.runs, std::slice::from_ref(&own));
        // systemd had counted it as started.
        history.add(Run {
            start: Start::Failed,
            ended: "exit status 203".to_owned(),
            ..own
        });
        assert_eq!(
            (history.runs[0].start, &*history.runs[0].ended),
            (Start::Failed, "exit status 203")
        );
    }

    /// The size of a full history with usual reasons, for putexd-scale(7).
    #[test]
    fn what_a_history_takes() {
        let mut history = History::default();
        for token in 1..200 {
            let ended = "root@h1: \"kernel update\"; handed over to h2";
            let times = (1_767_225_600_123, Some((1_767_225_600_456, Known::Exactly)));
            let run = run(
                1_767_225_600 + token,
                "database-1.example.org",
                times.0,
                times.1,
            );
            history.add(Run {
                ended: ended.to_owned(),
                ..run
            });
        }
        let value = history.encode();
        println!("{} bytes", value.size());
        assert_eq!(
            History::decode(Some(&value), u64::MAX).runs.len(),
            KEPT,
            "usual ones have room"
        );
    }

    #[test]
    fn a_gap_is_as_well_known_as_the_end_before_it() {
        let next = run(2, "h2", 9000, None);
        let gap = |known| {
            next.gap_after(&run(1, "h1", 1000, Some((5000, known))))
                .map(|gap| gap.to_string())
        };
        assert_eq!(gap(Known::Exactly).as_deref(), Some("4.0s"));
        assert_eq!(gap(Known::AtLeast).as_deref(), Some("≤ 4.0s"));
        assert_eq!(gap(Known::AtMost).as_deref(), Some("≥ 4.0s"));
        assert_eq!(next.gap_after(&run(1, "h1", 1000, None)), None);
        let stopped = Run {
            stopped: true,
            ..run(1, "h1", 1000, Some((5000, Known::Exactly)))
        };
        assert_eq!(next.gap_after(&stopped), None);
        let length = run(1, "h1", 1000, Some((5000, Known::AtLeast)))
            .length(0)
            .map(|length| length.to_string());
        assert_eq!(length.as_deref(), Some("≥ 4.0s"));
    }

    #[test]
    fn values_of_others_are_bounded_and_what_is_no_history_is_empty() {
        let mut history = History::default();
        for token in 0..u64::try_from(KEPT).expect("few") {
            let text = "\u{1b}\u{0}x".repeat(999);
            let long = Run {
                ended: text,
                ..run(token, "h1", 1, None)
            };
            history.runs.push(long);
        }
        history
            .runs
            .iter_mut()
            .for_each(|run| assert!(run.is_sound(0)));
        let value = history.encode();
        assert!(value.size() <= Value::LIMIT_BYTES);
        let read = History::decode(Some(&value), 0);
        assert!(!read.runs.is_empty() && read.runs.iter().all(|run| !run.ended.contains('\u{1b}')));
        let ahead = run(7, "h1", AHEAD_MS + 2, None);
        let bad = History {
            runs: vec![ahead, run(8, "no host", 1, None), run(9, "h1", 1, None)],
        };
        assert_eq!(
            History::decode(Some(&bad.clone().encode()), 1).runs,
            [run(9, "h1", 1, None)]
        );
        assert_eq!(
            History::decode(Some(&bad.encode().marked_unsealed()), 1),
            History::default()
        );
        for text in ["", "[]", "{\"runs\":7}"] {
            let value = Value {
                body: text.as_bytes().to_vec(),
                ..Value::default()
            };
            assert_eq!(
                History::decode(Some(&value), 1),
                History::default(),
                "{text}"
            );
        }
        assert_eq!(History::decode(None, 1), History::default());
    }
}
