//! What an operator has asked for, as the history tells it.

use crate::cluster::history::{ASKED_START, ASKED_STOP};
use crate::cluster::request::{NO_REASON, Verb};

/// What is asked for in a few words.
pub(in crate::daemon) fn in_words(verb: &Verb) -> String {
    let because = |words: &str, reason: &str| {
        if reason.is_empty() || reason == NO_REASON { words.to_owned() } else { format!("{words}: {reason}") }
    };
    match verb {
        Verb::StepDown { to: None, reason, .. } => because("step down", reason),
        Verb::StepDown { to: Some(to), reason, .. } => because(&format!("move to {to}"), reason),
        Verb::Stop { reason, .. } => because(ASKED_STOP, reason),
        Verb::Start { .. } => ASKED_START.to_owned(),
        Verb::Pause { reason, seconds, .. } => because(&format!("pause for {seconds} s"), reason),
        Verb::Resume { .. } => "resume".to_owned(),
        Verb::Adopt { .. } => "run it under the key of this host's configuration".to_owned(),
        Verb::Drain { reason, .. } => because("drain this host", reason),
        Verb::Undrain => "end the drain of this host".to_owned(),
        Verb::ConfirmDead { node } => format!("take {node} for dead"),
    }
}
