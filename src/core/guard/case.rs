//! The enforcement of one lapsed lease (H4): what is due, and what is proven, by what was seen so far.
//!
//! Up to `deadline + S − k` systemd has time to stop the units in their order. From then on their control groups get SIGKILL,
//! again and again. Then systemd is asked to stop what the units contain too, because it would start things in it anew. An
//! enforcement that begins so late asks systemd for a stop only when the groups are empty, or half of k is over. An enforcement
//! ends when the lease is disarmed, and not at the first empty control group: a unit that passed its gate just before the
//! deadline has an empty group until its own program starts.
//!
//! The lease names the control groups that putexd knew. They are empty where a unit was started again in another slice while
//! putexd hung, or where its main process was moved to a control group that is not the unit's. So PID 1 is asked too, once it
//! has taken on the stop: the groups that it names are killed as well, and so are main processes that it still has when all
//! groups are empty.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{frame::Lease, table::is_below_the_root};
use crate::types::Time;

/// Time between two looks at a control group that is not empty.
pub const KILL_INTERVAL: Duration = Duration::from_millis(20);
/// Time between two looks at a control group that was empty.
pub const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two complaints in the log.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);
/// How long a stop is under way, at least, before the log complains of it.
const FIRST_COMPLAINT_AFTER: Duration = Duration::from_secs(1);

/// What is known of the units of one lapsed lease. Who looks at the control groups and who asks systemd do not wait for each other, so
/// what each of them finds may come in any order.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is seen by itself, in any order"
)]
pub struct Case {
    lease: Arc<Lease>,
    /// When the control groups are to be looked at next.
    look_at: Time,
    /// When SIGKILL was due, or the enforcement began after that.
    killing_since: Time,
    /// All groups were empty at the last look.
    empty: bool,
    /// How often a group had processes. An answer counts only if this has not changed since the question.
    sightings: u64,
    /// The control groups whose kill the journal was told of.
    killed: BTreeSet<String>,
    /// When the log may complain again that the units are not dead.
    complain_at: Time,
    /// Why systemd, or what is mounted, did not show them dead when it was last asked, for the log.
    pub doubt: Option<String>,
    /// Systemd has accepted the stop of the units.
    asked: bool,
    /// After it took on the stop, systemd has said which control groups the units have.
    placed: bool,
    /// The control groups that systemd has named and the lease does not.
    elsewhere: BTreeSet<String>,
    /// Systemd had no main process of the units when it was last asked, with all groups empty, and no process was seen in the groups
    /// since.
    has_no_main: bool,
    /// Since processes were last seen in a group, systemd has accepted the stop of what is contained.
    emptied: bool,
    /// When systemd is next asked for that.
    empty_at: Time,
    /// The units that can be active without a process were inactive when systemd was last asked.
    inactive: bool,
    /// The units were seen dead, and nothing of them was seen since.
    stopped: bool,
}

/// What a look at the control groups has found.
#[derive(Debug, Default)]
pub struct Sighting {
    /// A group had processes.
    pub is_alive: bool,
    /// The groups that have got SIGKILL for that.
    pub killed: Vec<String>,
    /// Why of some group it is not known what it has, or it was not killed.
    pub troubles: Vec<String>,
}

/// What the journal is told after a look.
#[derive(Debug, PartialEq, Eq)]
pub struct LookNews {
    /// The groups that have got SIGKILL, for the first time or again after the units had been seen dead.
    pub killed: Vec<String>,
    /// The units are seen dead, and were not before.
    pub is_death: bool,
    /// It is time to complain that they are not, with what is in the way of knowing it.
    pub complaint: Option<Vec<String>>,
}

/// What systemd is to be asked now, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a question of its own"
)]
pub struct Questions {
    /// To stop what the units contain.
    pub end_contained: bool,
    /// To stop the units.
    pub stop: bool,
    /// Which control groups the units have. The stops of all cases go first.
    pub place: bool,
    /// To kill the main processes that it knows, which are in none of the groups.
    pub end_main: bool,
    /// Whether the units that can be active without a process are inactive.
    pub inactive: bool,
    sightings: u64,
}

impl Case {
    /// The units of `lease` are to be stopped from now on.
    pub fn new(lease: Lease, now: Time) -> Self {
        Self {
            look_at: lease.terms.kill_at(),
            killing_since: lease.terms.kill_at().latest(now),
            // After the host stood still S may be over already, although the stop has only just begun.
            complain_at: lease
                .terms
                .dead_by()
                .latest(now.plus(FIRST_COMPLAINT_AFTER)),
            doubt: None,
            empty_at: now,
            lease: Arc::new(lease),
            empty: false,
            sightings: 0,
            killed: BTreeSet::new(),
            asked: false,
            placed: false,
            elsewhere: BTreeSet::new(),
            has_no_main: false,
            emptied: false,
            inactive: false,
            stopped: false,
        }
    }

    /// The lease.
    pub fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// When the control groups are to be looked at next.
    pub fn look_at(&self) -> Time {
        self.look_at
    }

    /// The control groups to look at: what is in one gets SIGKILL.
    pub fn groups(&self) -> impl Iterator<Item = &String> {
        self.lease.cgroups.iter().chain(&self.elsewhere)
    }

    /// Whether SIGKILL is due.
    pub fn is_late(&self, now: Time) -> bool {
        now.has_passed(self.lease.terms.kill_at())
    }

    /// Whether systemd has accepted the stop.
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// Whether the units were seen dead after SIGKILL was due, and nothing of them was seen since.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether the latest looks show the units dead too, and systemd has taken on their stop. A systemd that hangs may be in
    /// the middle of a start, of which the control groups show nothing yet.
    pub fn is_proven(&self) -> bool {
        self.stopped && self.shows_nothing() && self.asked && self.placed && self.has_no_main
    }

    /// Whether the last looks at the groups, and at what can be active without a process, have shown nothing of the units.
    fn shows_nothing(&self) -> bool {
        self.empty && (self.inactive || self.lease.inactive.is_empty())
    }

    /// Whether systemd has nothing to do for this case now.
    pub fn is_settled(&self, now: Time) -> bool {
        let is_dead = self.stopped && self.has_no_main;
        let is_over = is_dead && (self.emptied || self.lease.contains.is_empty());
        self.asked && self.placed && (is_over || !self.is_late(now))
    }

    /// The groups were looked at, not before [`Case::look_at`].
    pub fn looked(&mut self, now: Time, found: Sighting) -> LookNews {
        self.empty = !found.is_alive && found.troubles.is_empty();
        self.emptied &= self.empty;
        let were_dead = self.stopped;
        if found.is_alive {
            self.sightings += 1;
            self.has_no_main = false;
            self.stopped = false;
        }
        let mut killed = found.killed;
        killed.retain(|group| self.killed.insert(group.clone()) || were_dead);
        let is_dead = self.shows_nothing() && self.is_known(now);
        self.look_at = now.plus(if is_dead {
            WATCH_INTERVAL
        } else {
            KILL_INTERVAL
        });
        let is_due = now.has_passed(self.complain_at);
        if is_due {
            self.complain_at = now.plus(COMPLAINT_INTERVAL);
        }
        LookNews {
            killed,
            // Where systemd has to be asked, its answer is the proof.
            is_death: is_dead && self.lease.inactive.is_empty() && self.dies(),
            complaint: (is_due && !is_dead).then(|| {
                found
                    .troubles
                    .into_iter()
                    .chain(self.doubt.clone())
                    .collect()
            }),
        }
    }

    /// What systemd is to be asked now.
    pub fn questions(&mut self, now: Time) -> Questions {
        let is_late = self.is_late(now);
        // If a stop is asked for before systemd has noticed the deaths, it runs ExecStop=, which is a program of the unit.
        let half = self.lease.terms.kill_reserve / 2;
        let may_ask = !is_late || self.empty || now.has_passed(self.killing_since.plus(half));
        let is_due = now.has_passed(self.empty_at) && !self.lease.contains.is_empty();
        let end_contained = is_late && !self.emptied && may_ask && is_due;
        if end_contained {
            self.empty_at = now.plus(WATCH_INTERVAL);
        }
        Questions {
            end_contained,
            stop: !self.asked && may_ask,
            place: self.asked && !self.placed,
            end_main: is_late && self.asked && self.empty && !self.has_no_main,
            inactive: is_late && self.empty && !self.lease.inactive.is_empty(),
            sightings: self.sightings,
        }
    }

    /// Whether systemd has accepted the stop of what is contained.
    pub fn contained_ended(&mut self, is_accepted: bool, asked: &Questions) {
        self.emptied = is_accepted && self.sightings == asked.sightings;
    }

    /// Whether systemd has accepted the stop of the units. Only that matters here: the proof is taken from the kernel.
    pub fn stop_asked(&mut self, is_accepted: bool) {
        self.asked = is_accepted;
    }

    /// Systemd has said which control groups the units have. The gate is closed, so none of them is started elsewhere from now on.
    pub fn placed(&mut self, said: impl IntoIterator<Item = String>) {
        self.placed = true;
        for group in said {
            if !self.lease.cgroups.contains(&group) && is_below_the_root(&group) {
                // Nobody has looked at this group yet.
                self.sightings += 1;
                self.empty = false;
                self.elsewhere.insert(group);
            }
        }
    }

    /// Whether systemd had a main process of the units, which it was asked to kill.
    pub fn main_ended(&mut self, had_main: bool, asked: &Questions) {
        if self.sightings == asked.sightings {
            self.has_no_main = !had_main;
        }
    }

    /// Whether the units that can be active without a process were seen inactive, and what was mounted to be gone. Returns what
    /// [`LookNews::is_death`] says.
    pub fn seen_inactive(&mut self, now: Time, is_inactive: bool, asked: &Questions) -> bool {
        self.inactive = is_inactive;
        let is_dead = is_inactive && self.empty && self.is_known(now);
        is_dead && self.sightings == asked.sightings && self.dies()
    }

    /// Whether PID 1 has said where the units are, and that it has no main process of them. If PID 1 has taken on the stop, its
    /// answer is waited for until the units have to be dead. After that the groups are all that counts: a busy PID 1 has not
    /// heard of the deaths yet.
    fn is_known(&self, now: Time) -> bool {
        let is_known = self.placed && self.has_no_main;
        is_known || !self.asked || now.has_passed(self.lease.terms.dead_by())
    }

    fn dies(&mut self) -> bool {
        !std::mem::replace(&mut self.stopped, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{
        FencingToken, Instance, LeaseTerms, NodeId, OnStopFailure, Revision, ServiceName, UnitName,
        WriteId,
    };

    fn at(milliseconds: u64) -> Time {
        Time::both(Duration::from_millis(milliseconds))
    }

    fn unit(name: &str) -> UnitName {
        UnitName::new(name).expect("a unit's name")
    }

    /// Its deadline is at 10 s, SIGKILL is due at 12 s, and the units have to be dead by 14 s.
    fn lease() -> Lease {
        Lease {
            service: ServiceName::new("db").expect("a name"),
            node: NodeId::new("h1").expect("a name"),
            terms: LeaseTerms {
                instance: Instance(1),
                write: WriteId(1),
                revision: Revision(1),
                token: FencingToken(1),
                deadline: at(10_000),
                stop_budget: Duration::from_secs(4),
                kill_reserve: Duration::from_secs(2),
            },
            units: vec![unit("db.service")],
            cgroups: vec!["/db.service".to_owned()],
            inactive: Vec::new(),
            begun: Vec::new(),
            contains: Vec::new(),
            outside: [].into(),
            on_stop_failure: OnStopFailure::Alert,
            closing: false,
        }
    }

    fn case() -> Case {
        Case::new(lease(), at(10_000))
    }

    /// Systemd does all that it is asked for and that is due, and has no main process.
    fn answer(case: &mut Case, now: Time) -> Questions {
        let asked = case.questions(now);
        if asked.end_contained {
            case.contained_ended(true, &asked);
        }
        if asked.stop {
            case.stop_asked(true);
        }
        if asked.place {
            case.placed(["/db.service".to_owned()]);
        }
        if asked.end_main {
            case.main_ended(false, &asked);
        }
        asked
    }

    fn nothing() -> Sighting {
        Sighting::default()
    }

    fn life() -> Sighting {
        Sighting {
            is_alive: true,
            killed: vec!["/db.service".to_owned()],
            troubles: Vec::new(),
        }
    }

    /// The outcome of a look that is due.
    fn look(case: &mut Case, now: Time, found: Sighting) -> LookNews {
        assert!(now.has_passed(case.look_at()), "it is due");
        case.looked(now, found)
    }

    #[test]
    fn systemd_has_its_time_and_then_what_is_left_is_killed_and_reported_once() {
        let mut case = case();
        assert!(!case.is_asked());
        let first = answer(&mut case, at(10_000));
        assert!(first.stop && !first.place && case.is_asked());
        assert_eq!(case.look_at(), at(12_000));
        assert_eq!(case.groups().collect::<Vec<_>>(), ["/db.service"]);
        let first = LookNews {
            killed: vec!["/db.service".to_owned()],
            is_death: false,
            complaint: None,
        };
        assert_eq!(look(&mut case, at(12_001), life()), first);
        assert_eq!(case.look_at(), at(12_001).plus(KILL_INTERVAL));
        assert!(
            look(&mut case, at(12_030), life()).killed.is_empty(),
            "once"
        );
        // The last process has died, of which PID 1 has to know before it counts.
        assert!(!look(&mut case, at(12_050), nothing()).is_death);
        answer(&mut case, at(12_060));
        answer(&mut case, at(12_070));
        assert!(look(&mut case, at(12_080), nothing()).is_death);
        assert!(case.is_stopped() && case.is_proven() && case.is_settled(at(12_080)));
        assert_eq!(case.look_at(), at(12_080).plus(WATCH_INTERVAL));
        // What systemd had begun to start before appears.
        let again = look(&mut case, at(13_000), life());
        assert!(!again.killed.is_empty());
        assert!(!case.is_stopped() && !case.is_proven());
        let asked = case.questions(at(13_010));
        assert!(!asked.end_main && !asked.inactive, "while it lives");
        look(&mut case, at(13_020), nothing());
        answer(&mut case, at(13_030));
        assert!(look(&mut case, at(13_040), nothing()).is_death);
        assert!(!look(&mut case, at(14_000), nothing()).is_death, "once");
    }

    #[test]
    fn whoever_is_late_asks_for_a_stop_only_when_the_units_are_dead_or_half_of_k_is_over() {
        let late = || Case::new(lease(), at(60_000));
        let mut alive = late();
        assert!(
            !alive.questions(at(60_000)).stop,
            "nothing has got SIGKILL yet"
        );
        look(&mut alive, at(60_000), life());
        assert!(
            !alive.questions(at(60_999)).stop,
            "their ExecStop= would run"
        );
        assert!(
            alive.questions(at(61_000)).stop,
            "systemd is not to be kept waiting"
        );
        let mut dead = late();
        assert!(look(&mut dead, at(60_000), nothing()).is_death);
        assert!(!dead.is_proven(), "systemd may be in the middle of a start");
        assert!(dead.questions(at(60_002)).stop);
    }

    #[test]
    fn pid_1_is_waited_for_until_the_units_have_to_be_dead_and_no_longer() {
        let mut case = case();
        answer(&mut case, at(10_000));
        for early in [12_000, 13_999] {
            assert!(!look(&mut case, at(early), nothing()).is_death);
        }
        assert!(look(&mut case, at(14_100), nothing()).is_death);
        assert!(!case.is_proven(), "it has not said where the units are");
        case.placed(["/db.service".to_owned()]);
        assert!(!case.is_settled(at(14_200)), "nor of a main process");
    }

    #[test]
    fn a_group_that_is_not_known_to_be_empty_proves_nothing_and_shows_no_life() {
        let unknown = || Sighting {
            troubles: vec!["no descriptors".to_owned()],
            ..Sighting::default()
        };
        let mut case = Case::new(lease(), at(60_000));
        assert!(!look(&mut case, at(60_000), unknown()).is_death);
        assert!(look(&mut case, at(60_100), nothing()).is_death);
        look(&mut case, at(60_200), unknown());
        assert!(case.is_stopped() && !case.is_proven());
        let not_killed = Sighting {
            is_alive: true,
            ..unknown()
        };
        look(&mut case, at(60_300), not_killed);
        assert!(!case.is_stopped());
    }

    #[test]
    fn what_systemd_names_elsewhere_is_killed_too() {
        let mut case = case();
        answer(&mut case, at(10_000));
        look(&mut case, at(12_000), nothing());
        let asked = case.questions(at(12_001));
        assert!(asked.place && asked.end_main);
        let said = ["/other.slice/db.service", "/db.service", "/"].map(str::to_owned);
        case.placed(said);
        case.main_ended(false, &asked);
        assert!(
            !case.is_settled(at(12_001)),
            "that was before the other group was known"
        );
        look(&mut case, at(12_100), nothing());
        assert!(case.questions(at(12_101)).end_main, "it is asked again");
        let groups: Vec<_> = case.groups().collect();
        assert_eq!(groups, ["/db.service", "/other.slice/db.service"]);
    }

    #[test]
    fn an_answer_to_a_question_from_before_life_was_seen_does_not_count() {
        let lease = Lease {
            inactive: vec![unit("db.mount")],
            contains: vec![unit("db.slice")],
            ..lease()
        };
        let mut case = Case::new(lease, at(10_000));
        assert!(!answer(&mut case, at(10_000)).end_contained, "it is early");
        answer(&mut case, at(10_001));
        assert!(
            !look(&mut case, at(12_000), nothing()).is_death,
            "the mount is for systemd to say"
        );
        let asked = case.questions(at(12_001));
        assert!(asked.end_contained && asked.end_main && asked.inactive);
        assert!(
            !case.questions(at(12_002)).end_contained,
            "not as often as that"
        );
        look(&mut case, at(12_100), life());
        let alive = case.questions(at(12_101));
        assert!(!alive.end_main && !alive.inactive);
        case.contained_ended(true, &asked);
        case.main_ended(false, &asked);
        look(&mut case, at(12_120), nothing());
        assert!(!case.seen_inactive(at(12_121), true, &asked));
        assert!(!case.is_settled(at(12_121)) && !case.is_stopped());
        let again = answer(&mut case, at(12_300));
        assert!(again.end_contained && again.inactive);
        assert!(!case.seen_inactive(at(12_300), false, &again) && !case.is_stopped());
        assert!(case.seen_inactive(at(12_301), true, &again));
        assert!(case.is_proven() && case.is_settled(at(12_301)));
        let asked = case.questions(at(12_400));
        assert!(!case.seen_inactive(at(12_400), false, &asked));
        assert!(
            !case.is_proven() && case.is_stopped(),
            "a look without an answer shows no life"
        );
    }

    #[test]
    fn what_is_not_dead_in_time_is_complained_of_now_and_then() {
        let mut case = case();
        let complains = |case: &mut Case, now| look(case, now, life()).complaint.is_some();
        assert!(!complains(&mut case, at(13_000)));
        assert!(
            complains(&mut case, at(14_000))
                && !complains(&mut case, at(23_000))
                && complains(&mut case, at(24_000))
        );
        let mut late = Case::new(lease(), at(60_000));
        assert!(!complains(&mut late, at(60_500)), "it has only just begun");
        assert!(complains(&mut late, at(61_000)));
    }
}
