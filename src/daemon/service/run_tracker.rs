//! What one host knows of the tenures of a service, for the history of its lock.

use std::mem::{replace, take};

use crate::{
    cluster::history::{ALARMS, End, Known, Run, Start},
    daemon::store_access::history::Histories,
    election::{Seen, State, Transition, Wait},
    facts::{At, LastRun, alarm::Alarm},
    types::{FencingToken, Key, NodeId},
};

/// Follows the tenures of one service. Times are by the clock of the host.
pub struct RunTracker {
    histories: Histories,
    key: Key,
    /// The last tenure of another host, or of an earlier life of this one, as far as this host has seen. Its end is when it was last
    /// heard of: [`Known::AtLeast`], if it has renewed the lock then, and [`Known::AtMost`], if its record was found then, and nobody
    /// knows how old it was.
    former: Option<Run>,
    /// This host's own tenure, from its claim on.
    own: Run,
    end: Ending,
    /// Where and when somebody was last known to run the unit.
    pub last_run: Option<LastRun>,
}

/// The end of a tenure, as far as it has come.
#[derive(Default)]
struct Ending {
    /// Whether the lease was over, so that the guard has ended the unit, perhaps before this putexd did.
    lapsed: bool,
    /// When the stop began.
    stopping: Option<At>,
    /// When the unit was proven dead. What follows until the end of the tenure, such as the release, may take a while.
    dead: Option<At>,
}

impl RunTracker {
    pub fn new(histories: &Histories, key: &Key, node: &NodeId) -> Self {
        Self {
            histories: histories.clone(),
            key: key.clone(),
            former: None,
            own: Run::new(0, node.as_str(), Start::Failed),
            end: Ending::default(),
            last_run: None,
        }
    }

    /// Whether the tenure is one whose unit was started under an earlier putexd.
    pub fn is_adopted(&self) -> bool {
        self.own.start == Start::Unseen
    }

    /// Notes what the service waits for, which says when the holder was last heard of, and the holder's token. A host that has only
    /// claimed the lock runs nothing, this one as well.
    pub fn see_holder(&mut self, wait: Option<&Wait>, token: FencingToken, now: At) {
        if self.own.start != Start::Failed {
            self.ran(self.own.host.clone(), self.end.dead.unwrap_or(now));
        }
        let (host, at, known) = match wait {
            Some(Wait::Holder {
                holder,
                seen,
                runs: true,
                ..
            }) => match *seen {
                Seen::Renewed(at) => {
                    self.ran(holder.clone(), at);
                    (holder, at, Known::AtLeast)
                }
                Seen::Found(at) => (holder, at, Known::AtMost),
            },
            // This host's own record of an earlier life.
            Some(Wait::OwnRecord { runs: true, .. })
                if self
                    .former
                    .as_ref()
                    .is_none_or(|former| former.host != self.own.host) =>
            {
                (&self.own.host, now, Known::AtMost)
            }
            Some(_) | None => return,
        };
        let is_same = |former: &Run| (&former.host, former.token) == (host, token.0);
        let start = match self.former.take().filter(is_same) {
            Some(former) => former.start,
            // It ran before this host looked.
            None if known == Known::AtMost => Start::Unseen,
            None => Start::At(at.0),
        };
        let end = End { at_ms: at.0, known };
        self.former = Some(Run {
            end: Some(end),
            ..Run::new(token.0, host, start)
        });
    }

    fn ran(&mut self, host: String, until: At) {
        self.last_run = Some(LastRun { host, until });
    }

    /// Notes that the unit is proven dead.
    pub fn note_death(&mut self, now: At) {
        self.end.dead = Some(now);
    }

    /// Notes an alarm of the tenure that goes on.
    pub fn note(&mut self, alarm: &Alarm) {
        if self.own.alarms.len() < ALARMS {
            self.own.alarms.push(alarm.clone());
        }
    }

    /// Follows a change of state, and writes what that says of a tenure. `stopped`: an operator has the service stopped everywhere.
    pub fn follow(&mut self, transition: &Transition, stopped: bool, now: At) {
        let Transition {
            from,
            to,
            reason,
            token,
            ..
        } = transition;
        self.end.lapsed |= *to == State::Lapsing;
        if *from != State::Releasing && matches!(to, State::Releasing | State::Lapsing) {
            (self.end.stopping, self.end.dead) = (Some(now), None);
            self.own.stopped = stopped;
        }
        match (from, to) {
            (_, State::Confirming) => self.own = Run::new(0, &self.own.host, Start::Failed),
            (State::Starting, State::Active) => {
                if let Some(former) = self.former.take() {
                    self.add(former);
                }
                (self.own.token, self.own.start) = (token.0, Start::At(now.0));
                self.add(self.own.clone());
            }
            // The unit was started under an earlier putexd.
            (_, State::Active) | (State::NoStore, State::Releasing | State::Lapsing) => {
                (self.own.token, self.own.start) = (token.0, Start::Unseen);
                self.own.ended.clone_from(reason);
            }
            (State::Releasing, State::Lapsing) => {
                self.own.ended = format!("{}; then {reason}", self.own.ended);
            }
            (_, State::Releasing | State::Lapsing) => self.own.ended.clone_from(reason),
            (State::Releasing | State::Lapsing, _) => self.ends(*token, now),
            _ => {}
        }
    }

    /// Writes of the tenure that has ended.
    fn ends(&mut self, token: FencingToken, now: At) {
        let end = take(&mut self.end);
        let dead = end.dead.unwrap_or(now);
        let next = Run::new(0, &self.own.host, Start::Failed);
        let mut own = replace(&mut self.own, next);
        if own.start == Start::Failed {
            own.token = token.0;
        } else {
            self.ran(own.host.clone(), dead);
        }
        let (at, known) = if end.lapsed {
            (dead, Known::AtMost)
        } else {
            (end.stopping.unwrap_or(dead).min(dead), Known::Exactly)
        };
        own.end = Some(End { at_ms: at.0, known });
        self.add(own);
    }

    fn add(&self, run: Run) {
        self.histories.add(&self.key, run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::store_access::history::{Entries, histories};
    use crate::types::Revision;

    /// A tracker, and what it has written.
    struct Bench {
        tracker: RunTracker,
        entries: Entries,
    }

    fn at(seconds: u64) -> At {
        At::seconds(seconds)
    }

    fn bench() -> Bench {
        let (histories, entries) = histories();
        let key = Key::new("db").expect("a key");
        let node = NodeId::new("h1").expect("a node's name");
        Bench {
            tracker: RunTracker::new(&histories, &key, &node),
            entries,
        }
    }

    impl Bench {
        fn sees(&mut self, waiting: &Wait, token: u64, now: u64) {
            self.tracker
                .see_holder(Some(waiting), FencingToken(token), at(now));
        }

        fn change(&mut self, token: u64, (from, to, reason): (State, State, &str), now: u64) {
            let transition = Transition {
                from,
                to,
                reason: reason.to_owned(),
                holder: String::new(),
                revision: Revision(1),
                token: FencingToken(token),
            };
            self.tracker.follow(&transition, false, at(now));
        }

        fn starts(&mut self, token: u64, now: u64) {
            self.change(
                token,
                (State::Standby, State::Confirming, "wrote the lock"),
                now,
            );
            self.change(token, (State::Starting, State::Active, ""), now);
        }

        fn written(&mut self) -> Vec<Written> {
            let shown = |run: Run| {
                let length = run.length(0).filter(|_| run.end.is_some());
                let start = if let Start::At(_) = run.start {
                    Start::At(0)
                } else {
                    run.start
                };
                (
                    run.host,
                    run.token,
                    start,
                    length.map(|length| (length.ms / 1000, length.known)),
                    run.ended,
                )
            };
            self.entries.taken().into_iter().map(shown).collect()
        }
    }

    /// What was written: host, token, start, for how long it ran in seconds and how well that is known, and why it ended.
    type Written = (String, u64, Start, Option<(u64, Known)>, String);

    fn holder(runs: bool, seen: Seen) -> Wait {
        Wait::Holder {
            holder: "h2".to_owned(),
            runs,
            seen,
            take_at: None,
        }
    }

    #[test]
    fn who_takes_over_writes_what_it_has_seen_of_the_former_holder() {
        let mut bench = bench();
        bench.sees(&holder(true, Seen::Renewed(at(40))), 7, 50);
        bench.sees(&holder(true, Seen::Renewed(at(48))), 7, 50);
        // It has claimed the lock again, and has died before it started anything.
        bench.sees(&holder(false, Seen::Renewed(at(60))), 8, 60);
        bench.starts(9, 70);
        let seen = (
            "h2".to_owned(),
            7,
            Start::At(0),
            Some((8, Known::AtLeast)),
            String::new(),
        );
        assert_eq!(
            bench.written(),
            [
                seen,
                ("h1".to_owned(), 9, Start::At(0), None, String::new())
            ]
        );
        // A record that was found says nothing of when its run began.
        let mut bench = self::bench();
        bench.sees(&holder(true, Seen::Found(at(40))), 7, 40);
        bench.starts(9, 70);
        let run = bench.entries.taken().remove(0);
        assert_eq!(
            (run.start, run.end.map(|end| end.known)),
            (Start::Unseen, Some(Known::AtMost))
        );
    }

    #[test]
    fn alarms_are_of_the_tenure_in_which_they_were_raised() {
        use State::{Active, Releasing, Standby};
        let alarm = |since| Alarm::new(None, crate::facts::alarm::Problem::GuardGone, since);
        let mut bench = bench();
        bench.tracker.note(&alarm(0));
        bench.starts(3, 91);
        for since in 1..=2 * ALARMS as u64 {
            bench.tracker.note(&alarm(since));
        }
        bench.change(3, (Active, Releasing, "drained"), 92);
        bench.change(3, (Releasing, Standby, ""), 93);
        let alarms = bench.entries.taken().remove(1).alarms;
        assert_eq!((alarms.len(), alarms[0].since), (ALARMS, 1));
    }

    /// h2 has run it, and its fencing by this host has failed once: this host's own claim is no run.
    #[test]
    fn a_claim_of_this_host_that_started_nothing_is_no_run() {
        let mut bench = bench();
        bench.sees(&holder(true, Seen::Renewed(at(40))), 7, 40);
        bench.sees(
            &Wait::OwnRecord {
                runs: false,
                take_at: None,
            },
            8,
            50,
        );
        bench.starts(9, 60);
        assert_eq!(
            bench
                .entries
                .taken()
                .iter()
                .map(|run| run.token)
                .collect::<Vec<_>>(),
            [7, 9]
        );
        // Its own record of an earlier life is one.
        let mut bench = self::bench();
        bench.sees(
            &Wait::OwnRecord {
                runs: true,
                take_at: None,
            },
            8,
            50,
        );
        bench.starts(9, 60);
        assert_eq!(bench.written()[0].0, "h1");
    }

    #[test]
    fn a_run_ends_when_its_stop_begins_and_not_with_the_release() {
        use State::{Active, NoStore, Releasing, Standby};
        let mut bench = bench();
        // A proof of an earlier stop is not the one of this run.
        bench.tracker.note_death(at(1));
        bench.starts(7, 10);
        bench.change(7, (Active, Releasing, "drained"), 100);
        bench.tracker.note_death(at(103));
        bench.change(7, (Releasing, Standby, ""), 161);
        let (_, token, _, length, ended) = bench.written().remove(1);
        assert_eq!((token, &*ended), (7, "drained"));
        assert_eq!(length, Some((90, Known::Exactly)));
        // Under a putexd that was restarted.
        bench.change(7, (NoStore, Active, "the guard remembers"), 170);
        bench.change(7, (Active, Releasing, "held by h2"), 180);
        bench.change(7, (Releasing, NoStore, ""), 180);
        assert_eq!(
            bench.written(),
            [(
                "h1".to_owned(),
                7,
                Start::Unseen,
                None,
                "held by h2".to_owned()
            )]
        );
    }

    #[test]
    fn of_a_lapse_it_is_known_when_the_unit_had_ended_at_the_latest() {
        use State::{Active, Lapsing, NoStore, Standby};
        let mut bench = bench();
        bench.change(7, (NoStore, Active, "adopted"), 10);
        bench.change(7, (Active, Lapsing, "not renewed"), 100);
        bench.tracker.note_death(at(104));
        bench.change(7, (Lapsing, Standby, ""), 110);
        let end = bench.entries.taken().remove(0).end.expect("it has ended");
        assert_eq!((end.at_ms, end.known), (at(104).0, Known::AtMost));
    }

    #[test]
    fn a_start_that_fails_is_no_run_and_a_claim_alone_is_nothing() {
        use State::{Active, Confirming, Lapsing, NoStore, Releasing, Standby, Starting};
        let mut bench = bench();
        bench.starts(3, 91);
        bench.change(3, (Active, Releasing, "the unit has ended"), 92);
        bench.change(3, (Releasing, Lapsing, "not renewed"), 93);
        bench.change(3, (Lapsing, Standby, ""), 94);
        assert_eq!(bench.written()[1].4, "the unit has ended; then not renewed");
        for change in [
            (Confirming, Starting, ""),
            (Starting, Releasing, "exit code 1"),
            (Releasing, Standby, ""),
        ] {
            bench.change(4, change, 95);
        }
        assert_eq!(
            bench.written(),
            [(
                "h1".to_owned(),
                4,
                Start::Failed,
                None,
                "exit code 1".to_owned()
            )]
        );
        for change in [
            (NoStore, Standby, ""),
            (Standby, Confirming, ""),
            (Confirming, Standby, ""),
        ] {
            bench.change(5, change, 96);
        }
        assert_eq!(bench.written(), []);
    }
}
