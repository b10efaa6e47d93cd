//! What one service tells the history of its lock: which changes of state are a start or a stop and why, alarms, and what
//! operators have asked for.

mod asked;

use std::sync::Arc;
use std::time::Duration;

use super::history::History;
use super::host::Host;
use super::machine::Machine;
use crate::cluster::history::{Happened, What};
use crate::cluster::request::Verb;
use crate::election::{Heard, State, Transition, Waiting};
use crate::journal;
use crate::types::span::milliseconds;
use crate::types::{FencingToken, Key, NodeId, Time};

/// Tells of one service what happens on this host.
#[derive(Clone)]
pub(super) struct Teller {
    history: History,
    lock: Key,
    node: NodeId,
    machine: Arc<dyn Machine>,
}

/// What a service has to remember until it is told.
#[derive(Debug, Default)]
pub(super) struct Diary {
    /// The holder that was last heard of, and when.
    heard: Option<LastHeard>,
    /// Why this host could take the lock.
    took_because: String,
    /// Whether the unit runs, or has run in this tenure, and under which token.
    runs: Option<FencingToken>,
    /// Why the tenure ends.
    ends_because: String,
}

/// When a holder was last heard of.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LastHeard {
    holder: String,
    at: Time,
    /// Whether its record was only found then, so that nobody knows how old it was.
    is_found: bool,
}

impl Teller {
    /// Tells of the service whose lock has this key.
    pub(super) fn of(host: &Host, lock: &Key) -> Self {
        Self {
            history: host.history.clone(),
            lock: lock.clone(),
            node: host.node.clone(),
            machine: Arc::clone(&host.machine),
        }
    }

    fn tell(&self, what: What, token: FencingToken, reason: &str) {
        self.history.tell(&self.lock, self.happened(what, token, reason));
    }

    /// Tells of a start, and when the former holder was last heard of.
    fn tell_start(&self, token: FencingToken, reason: &str, heard: Option<(Duration, LastHeard)>) {
        let happened = self.happened(What::Started, token, reason);
        match heard {
            None => self.history.tell(&self.lock, happened),
            Some((gap, LastHeard { holder, is_found, .. })) => {
                let happened = Happened { gap_ms: Some(milliseconds(gap)), gap_is_least: is_found, ..happened };
                if is_found {
                    self.history.tell_start(&self.lock, happened, &holder);
                } else {
                    self.history.tell(&self.lock, happened);
                }
            }
        }
    }

    fn happened(&self, what: What, token: FencingToken, reason: &str) -> Happened {
        Happened::new(milliseconds(self.machine.wall()), self.node.as_str(), what, token.0, reason)
    }

    /// Tells of an alarm.
    pub(super) fn alarm(&self, alarm: journal::Alarm, token: FencingToken, reason: &str) {
        self.tell(What::Alarm, token, &format!("{}: {reason}", alarm.name()));
    }

    /// Tells what an operator has asked for.
    pub(super) fn asked(&self, verb: &Verb, by: &str) {
        self.tell(What::Asked, FencingToken(0), &format!("{}; asked for by {by}", asked::in_words(verb)));
    }
}

impl Diary {
    /// Notes what the service waits for, which says when the holder was last heard of. `node`: this host, whose own record of an
    /// earlier life may be what it finds.
    pub(super) fn hear(&mut self, waiting: Option<&Waiting>, node: &NodeId, now: Time) {
        match waiting {
            Some(Waiting::Holder { holder, heard, .. } | Waiting::Store { holder: Some((holder, heard)) }) => {
                let (at, is_found) = match heard {
                    Heard::Renewed(at) => (*at, false),
                    Heard::Found(at) => (*at, true),
                };
                match &mut self.heard {
                    Some(known) if known.holder == *holder => (known.at, known.is_found) = (at, is_found),
                    known => *known = Some(LastHeard { holder: holder.clone(), at, is_found }),
                }
            }
            Some(Waiting::OwnRecord { .. })
                if self.heard.as_ref().is_none_or(|heard| heard.holder != node.as_str()) =>
            {
                self.heard = Some(LastHeard { holder: node.to_string(), at: now, is_found: true });
            }
            Some(_) | None => {}
        }
    }

    /// The token of the present run; 0 if there is none.
    pub(super) fn token(&self) -> FencingToken {
        self.runs.unwrap_or_default()
    }

    /// Tells of a start or a stop, if this change of state is one.
    pub(super) fn note(&mut self, transition: &Transition, now: Time, teller: &Teller) {
        let Transition { from, to, reason, token, .. } = transition;
        match (from, to) {
            (_, State::Confirming) => self.took_because.clone_from(reason),
            (State::Starting, State::Active) => {
                self.runs = Some(*token);
                let heard = self.heard.take().map(|heard| (now.since_at_least(heard.at), heard));
                teller.tell_start(*token, &self.took_because, heard);
            }
            // The unit was started under an earlier putexd, which has told of it.
            (_, State::Active) | (State::NoStore, State::Releasing | State::Lapsing) => {
                self.runs = Some(*token);
                self.ends_because.clone_from(reason);
            }
            (State::Releasing, State::Lapsing) => {
                let before = std::mem::take(&mut self.ends_because);
                self.ends_because = format!("{before}; then {reason}");
            }
            (_, State::Releasing | State::Lapsing) => self.ends_because.clone_from(reason),
            (State::Releasing | State::Lapsing, _) => {
                let because = std::mem::take(&mut self.ends_because);
                match self.runs.take() {
                    Some(token) => teller.tell(What::Stopped, token, &because),
                    None => teller.tell(What::Alarm, *token, &format!("was not started: {because}")),
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::daemon::machine::ThisMachine;
    use crate::types::Revision;

    /// What is told of these changes of state, and the gaps in seconds.
    fn told(changes: &[(State, State, &str)], heard: Option<Time>) -> Vec<(What, u64, String, Option<u64>)> {
        let teller = Teller {
            history: History::default(),
            lock: Key::new("db").expect("a key"),
            node: NodeId::new("h1").expect("a node's name"),
            machine: Arc::new(ThisMachine::new(Path::new("/nowhere"))),
        };
        let mut diary = Diary::default();
        let waiting = heard.map(|at| Waiting::Store { holder: Some(("h2".to_owned(), Heard::Renewed(at))) });
        diary.hear(waiting.as_ref(), &teller.node, Time::default());
        for (token, (from, to, reason)) in (1..).zip(changes) {
            let transition = Transition {
                from: *from,
                to: *to,
                reason: (*reason).to_owned(),
                holder: String::new(),
                revision: Revision(1),
                token: FencingToken(token),
            };
            diary.note(&transition, Time::both(Duration::from_secs(100)), &teller);
        }
        let events = teller.history.taken();
        let shown = |one: Happened| (one.what, one.token, one.reason, one.gap_ms.map(|gap| gap / 1000));
        events.into_iter().map(shown).collect()
    }

    #[test]
    fn a_run_is_told_with_why_it_began_and_why_it_ended() {
        use State::{Active, Confirming, Lapsing, NoStore, Releasing, Standby, Starting};
        let taken = [
            (Standby, Confirming, "wrote the lock"),
            (Confirming, Starting, "entitled"),
            (Starting, Active, "the unit runs"),
            (Active, Releasing, "the unit has ended"),
            (Releasing, Lapsing, "not renewed"),
            (Lapsing, Standby, "the unit is dead"),
        ];
        let heard = Time::both(Duration::from_secs(91));
        assert_eq!(
            told(&taken, Some(heard)),
            [
                (What::Started, 3, "wrote the lock".to_owned(), Some(9)),
                (What::Stopped, 3, "the unit has ended; then not renewed".to_owned(), None),
            ]
        );
        // Under a putexd that was restarted.
        let adopted =
            [(NoStore, Active, "the guard remembers"), (Active, Lapsing, "held by h2"), (Lapsing, NoStore, "")];
        assert_eq!(told(&adopted, None), [(What::Stopped, 1, "held by h2".to_owned(), None)]);
        // A start that fails is no run.
        let failed = [(Confirming, Starting, ""), (Starting, Releasing, "exit code 1"), (Releasing, Standby, "")];
        assert_eq!(told(&failed, None), [(What::Alarm, 3, "was not started: exit code 1".to_owned(), None)]);
        assert_eq!(told(&[(NoStore, Standby, ""), (Standby, Confirming, ""), (Confirming, Standby, "")], None), []);
    }
}
