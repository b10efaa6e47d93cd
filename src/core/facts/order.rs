//! What operators have asked for.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::types::{
    NodeId,
    printable::{short, short_text},
};

/// What an operator has asked for, and for how long. The records of locks have it, too.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Word {
    /// Who asked: the user and the host, as in `root@h1`.
    #[serde(deserialize_with = "short_text")]
    pub by: String,
    /// Why; empty = nothing was said.
    #[serde(deserialize_with = "short_text")]
    pub reason: String,
    /// When it was asked for, in seconds since 1970, and later than every word that was taken back before. It tells one word from
    /// another, and no wait is counted from it.
    pub at: u64,
    /// When it is over, in seconds since 1970. `None`: when somebody takes it back.
    pub until: Option<u64>,
    /// The package is being removed from the host: its next installation ends the drain, and no operator.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removal: bool,
}

impl Word {
    /// A word as a record can have it: texts that are too long are shortened, and what cannot be printed is left out.
    pub fn new(by: &str, reason: &str, at: u64, until: Option<u64>) -> Self {
        Self {
            by: short(by),
            reason: short(reason),
            at,
            until,
            removal: false,
        }
    }

    /// This word, with the reason of the `former` one if it gives none.
    #[must_use]
    pub fn over(mut self, former: &Self) -> Self {
        if self.reason.is_empty() {
            self.reason.clone_from(&former.reason);
        }
        self
    }

    /// Whether the word is not over yet, by a clock that shows `wall` since 1970.
    pub fn holds(&self, wall: Duration) -> bool {
        self.until
            .is_none_or(|until| wall < Duration::from_secs(until))
    }
}

/// What an operator asks of the tenure that holds the lock (orders, H7). Any host writes it into the record of that tenure, and no
/// other tenure heeds it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Order {
    /// What the holder is to do.
    pub what: Asked,
    /// Who asks for it, and why. The end of a pause is its `until`.
    pub word: Word,
}

/// What a holder is asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Asked {
    /// To let the lock go, so that this node takes over, or any if there is none.
    StepDown(Option<NodeId>),
    /// To keep its lease for a long time.
    Pause,
    /// To end a pause.
    Resume,
}

/// An order is heeded for so long, by the clock of each host: after that the operator has given up, and a holder that was cut off
/// must not surprise him.
const ORDER_LIFE: Duration = Duration::from_secs(600);

impl Order {
    /// Whether the order is to be heeded, by a clock that shows `wall` since 1970.
    pub fn holds(&self, wall: Duration) -> bool {
        self.word.at.abs_diff(wall.as_secs()) <= ORDER_LIFE.as_secs()
    }
}

/// What a holder has not done, and why not.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Refused {
    /// The `at` of the order.
    pub at: u64,
    /// What to do instead, and why it was not done.
    #[serde(deserialize_with = "short_text")]
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_said_anew_has_the_end_that_it_gives_or_none() {
        let word = |reason, until| Word::new("root@h1", reason, 5, until);
        let former = word("a new disk", Some(60));
        assert_eq!(word("", None).over(&former), word("a new disk", None));
        assert_eq!(word("b", Some(9)).over(&former), word("b", Some(9)));
    }
}
