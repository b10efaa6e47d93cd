//! The enforcement of one lapsed lease (H4): what is due, and what is proven, by what was seen so far.
//!
//! Up to `deadline + S − k` systemd has time to stop the units in their order. From then on their control groups get SIGKILL,
//! again and again. If the guard woke later than that, the main loop has sent the first SIGKILL before it began the
//! enforcement. Then systemd is asked to stop what the units contain too, because it would start things in it anew. An
//! enforcement that begins so late asks systemd for a stop only when the groups are empty, or half of k is over. An enforcement
//! ends when the lease is disarmed, and not at the first empty control group: a unit that passed its gate just before the
//! deadline has an empty group until its own program starts.
//!
//! The lease names the control groups that putexd knew. They are empty where a unit was started again in another slice while
//! putexd hung, or where its main process was moved to a control group that is not the unit's. So PID 1 is asked too, once it
//! has taken on the stop: the groups that it names are killed as well, and so are main processes that it still has when all
//! groups are empty.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::frame::Lease;
use super::table::is_below_the_root;
use crate::types::Time;

/// Time between two looks at a control group that is not empty.
pub const KILL_INTERVAL: Duration = Duration::from_millis(20);
/// Time between two looks at a control group that was empty.
pub const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two complaints in the log of the same kind.
pub const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);
/// How long a stop is under way, at least, before the log complains of it.
const FIRST_COMPLAINT_AFTER: Duration = Duration::from_secs(1);

/// What is known of the units of one lapsed lease. Who looks at the control groups and who asks systemd do not wait for each other, so
/// what each of them finds may come in any order.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is seen by itself, in any order")]
pub struct Case {
    lease: Arc<Lease>,
    /// When the control groups are to be looked at next.
    look_at: Time,
    /// When a look first found that SIGKILL was due.
    killing_since: Option<Time>,
    /// All groups were empty at the last look.
    empty: bool,
    /// How often a group had processes. An answer counts only if this has not changed since the question.
    sightings: u64,
    /// The control groups whose kill the journal was told of.
    killed: BTreeSet<String>,
    /// When the log may complain again that the units are not dead.
    complain_at: Time,
    /// Systemd has accepted the stop of the units.
    asked: bool,
    /// After it took on the stop, systemd has said which control groups the units have.
    placed: bool,
    /// The control groups that systemd has named and the lease does not.
    elsewhere: BTreeSet<String>,
    /// Whether systemd had a main process of the units when it was last asked, with all groups empty. `None`: it was not asked
    /// since processes were last seen in the groups.
    has_main: Option<bool>,
    /// Since processes were last seen in a group, systemd has accepted the stop of what is contained.
    emptied: bool,
    /// When systemd is next asked for that.
    empty_at: Time,
    /// The units that can be active without a process were inactive when systemd was last asked.
    inactive: bool,
    stopped: bool,
    /// The journal was told that the units are dead, and nothing of them was seen since.
    death_is_told: bool,
}

/// A look at the control groups that is due.
#[derive(Debug, PartialEq, Eq)]
pub struct Look {
    /// What to look at, and to kill if it is not empty.
    pub groups: Vec<String>,
    /// Whether the log is told if this is no proof.
    pub complains: bool,
}

/// That a group has got SIGKILL, as far as the journal is to be told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kill {
    /// For the first time.
    First,
    /// It had processes again after the units were seen dead.
    Again,
}

/// That the units were seen dead, which they were not before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Death {
    /// Whether the journal was told already.
    pub is_told: bool,
}

/// What systemd is to be asked now, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
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
    #[must_use]
    pub fn new(lease: Lease, now: Time) -> Self {
        Self {
            look_at: lease.terms.kill_at(),
            // After the host stood still S may be over already, although the stop has only just begun.
            complain_at: lease.terms.dead_by().latest(now.plus(FIRST_COMPLAINT_AFTER)),
            empty_at: now,
            lease: Arc::new(lease),
            killing_since: None,
            empty: false,
            sightings: 0,
            killed: BTreeSet::new(),
            asked: false,
            placed: false,
            elsewhere: BTreeSet::new(),
            has_main: None,
            emptied: false,
            inactive: false,
            stopped: false,
            death_is_told: false,
        }
    }

    /// The lease.
    #[must_use]
    pub fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// When [`Case::look`] is due next.
    #[must_use]
    pub fn look_at(&self) -> Time {
        self.look_at
    }

    /// Whether SIGKILL is due.
    #[must_use]
    pub fn is_late(&self, now: Time) -> bool {
        now.has_passed(self.lease.terms.kill_at())
    }

    /// Whether systemd has accepted the stop.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// Whether the units were seen dead after SIGKILL was due, and nothing of them was seen since.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether the latest looks show the units dead too, and systemd has taken on their stop. A systemd that hangs may be in
    /// the middle of a start, of which the control groups show nothing yet.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        let is_dead = self.empty && (self.inactive || self.lease.inactive.is_empty());
        self.stopped && is_dead && self.asked && self.placed && self.has_main == Some(false)
    }

    /// Whether systemd has nothing to do for this case now.
    #[must_use]
    pub fn is_settled(&self, now: Time) -> bool {
        let is_dead = self.stopped && self.has_main == Some(false);
        let is_over = is_dead && (self.emptied || self.lease.contains.is_empty());
        self.asked && self.placed && (is_over || !self.is_late(now))
    }

    /// The look that is due, whose outcome goes to [`Case::looked`]. `None`: it is too early.
    pub fn look(&mut self, now: Time) -> Option<Look> {
        if !now.has_passed(self.look_at) {
            return None;
        }
        self.killing_since.get_or_insert(now);
        let complains = now.has_passed(self.complain_at);
        if complains {
            self.complain_at = now.plus(COMPLAINT_INTERVAL);
        }
        let groups = self.lease.cgroups.iter().chain(&self.elsewhere).cloned().collect();
        Some(Look { groups, complains })
    }

    /// A group has processes, which are about to get SIGKILL. Returns whether the units had been seen dead before.
    pub fn sees_life(&mut self) -> bool {
        self.sightings += 1;
        self.has_main = None;
        std::mem::take(&mut self.stopped) | std::mem::take(&mut self.death_is_told)
    }

    /// A group has got SIGKILL. `were_dead` is what [`Case::sees_life`] returned for that.
    pub fn killed(&mut self, group: &str, were_dead: bool) -> Option<Kill> {
        let is_first = self.killed.insert(group.to_owned());
        if were_dead { Some(Kill::Again) } else { is_first.then_some(Kill::First) }
    }

    /// The look has ended. `empty`: all groups were empty in the end.
    pub fn looked(&mut self, now: Time, empty: bool) -> Option<Death> {
        self.empty = empty;
        self.emptied &= empty;
        let is_dead = self.seems_dead(now);
        self.look_at = now.plus(if is_dead { WATCH_INTERVAL } else { KILL_INTERVAL });
        // Where systemd has to be asked, its answer is the proof.
        if is_dead && self.lease.inactive.is_empty() { self.dies() } else { None }
    }

    /// Whether the last look, and what systemd has said, show the units dead.
    #[must_use]
    pub fn seems_dead(&self, now: Time) -> bool {
        self.empty && self.is_known(now) && (self.lease.inactive.is_empty() || self.inactive)
    }

    /// What systemd is to be asked now.
    pub fn questions(&mut self, now: Time) -> Questions {
        let is_late = self.is_late(now);
        // If a stop is asked for before systemd has noticed the deaths, it runs ExecStop=, which is a program of the unit.
        let has_had_time = |since: Time| now.has_passed(since.plus(self.lease.terms.kill_reserve / 2));
        let may_ask = !is_late || self.killing_since.is_some_and(|since| self.empty || has_had_time(since));
        let is_due = now.has_passed(self.empty_at) && !self.lease.contains.is_empty();
        let end_contained = is_late && !self.emptied && may_ask && is_due;
        if end_contained {
            self.empty_at = now.plus(WATCH_INTERVAL);
        }
        Questions {
            end_contained,
            stop: !self.asked && may_ask,
            place: self.asked && !self.placed,
            end_main: is_late && self.asked && self.empty && self.has_main != Some(false),
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
    /// Returns those that the lease does not name.
    pub fn placed(&mut self, said: impl IntoIterator<Item = String>) -> Vec<String> {
        self.placed = true;
        let is_elsewhere = |group: &String| !self.lease.cgroups.contains(group) && is_below_the_root(group);
        let elsewhere: Vec<String> = said.into_iter().filter(is_elsewhere).collect();
        if !elsewhere.is_empty() {
            // Nobody has looked at these groups yet.
            self.sightings += 1;
            self.empty = false;
            self.elsewhere.extend(elsewhere.iter().cloned());
        }
        elsewhere
    }

    /// Whether systemd had a main process of the units, which it was asked to kill.
    pub fn main_ended(&mut self, had_main: bool, asked: &Questions) {
        if self.sightings == asked.sightings {
            self.has_main = Some(had_main);
        }
    }

    /// Whether the units that can be active without a process were seen inactive, and what was mounted to be gone.
    pub fn seen_inactive(&mut self, now: Time, is_inactive: bool, asked: &Questions) -> Option<Death> {
        self.inactive = is_inactive;
        let is_dead = is_inactive && self.empty && self.is_known(now) && self.sightings == asked.sightings;
        if is_dead { self.dies() } else { None }
    }

    /// Whether PID 1 has said where the units are, and that it has no main process of them. If PID 1 has taken on the stop, its
    /// answer is waited for until the units have to be dead. After that the groups are all that counts: a busy PID 1 has not
    /// heard of the deaths yet.
    fn is_known(&self, now: Time) -> bool {
        let is_told = self.placed && self.has_main == Some(false);
        is_told || !self.asked || now.has_passed(self.lease.terms.dead_by())
    }

    fn dies(&mut self) -> Option<Death> {
        let is_new = !std::mem::replace(&mut self.stopped, true);
        is_new.then(|| Death { is_told: std::mem::replace(&mut self.death_is_told, true) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{
        FencingToken, Instance, LeaseTerms, NodeId, OnStopFailure, Revision, ServiceName, UnitName, WriteId,
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
            assert_eq!(case.placed(["/db.service".to_owned()]), [""; 0]);
        }
        if asked.end_main {
            case.main_ended(false, &asked);
        }
        asked
    }

    #[test]
    fn systemd_has_its_time_and_then_what_is_left_is_killed_and_told_of_once() {
        let mut case = case();
        assert!(answer(&mut case, at(10_000)).stop);
        assert_eq!((case.look_at(), case.look(at(11_999))), (at(12_000), None));
        let look = Look { groups: vec!["/db.service".to_owned()], complains: false };
        assert_eq!(case.look(at(12_000)), Some(look));
        assert!(!case.sees_life());
        assert_eq!(case.killed("/db.service", false), Some(Kill::First));
        assert_eq!(case.looked(at(12_001), false), None);
        assert_eq!(case.look_at(), at(12_001).plus(KILL_INTERVAL));
        case.look(at(12_030)).expect("it is due");
        assert!(!case.sees_life());
        assert_eq!(case.killed("/db.service", false), None);
        // The last process has died, of which PID 1 has to know before it counts.
        assert_eq!(case.looked(at(12_031), true), None);
        answer(&mut case, at(12_040));
        answer(&mut case, at(12_050));
        case.look(at(12_060)).expect("it is due");
        assert_eq!(case.looked(at(12_060), true), Some(Death { is_told: false }));
        assert!(case.is_stopped() && case.is_proven() && case.is_settled(at(12_060)));
        assert_eq!(case.look_at(), at(12_060).plus(WATCH_INTERVAL));
        // What systemd had begun to start before appears.
        case.look(at(13_000)).expect("it is due");
        assert!(case.sees_life());
        assert_eq!(case.killed("/db.service", true), Some(Kill::Again));
        assert!(!case.is_stopped() && !case.is_proven());
        case.looked(at(13_001), true);
        answer(&mut case, at(13_010));
        case.look(at(13_030)).expect("it is due");
        assert_eq!(case.looked(at(13_030), true), Some(Death { is_told: false }));
        case.look(at(14_000)).expect("it is due");
        assert_eq!(case.looked(at(14_000), true), None, "once");
    }

    #[test]
    fn whoever_is_late_asks_for_a_stop_only_when_the_units_are_dead_or_half_of_k_is_over() {
        let late = || Case::new(lease(), at(60_000));
        let mut alive = late();
        assert!(!alive.questions(at(60_000)).stop, "nothing has got SIGKILL yet");
        alive.look(at(60_000)).expect("it is due");
        alive.sees_life();
        alive.looked(at(60_001), false);
        assert!(!alive.questions(at(60_999)).stop, "their ExecStop= would run");
        assert!(alive.questions(at(61_000)).stop, "systemd is not to be kept waiting");
        let mut dead = late();
        dead.look(at(60_000)).expect("it is due");
        assert_eq!(dead.looked(at(60_001), true), Some(Death { is_told: false }));
        assert!(!dead.is_proven(), "systemd may be in the middle of a start");
        assert!(dead.questions(at(60_002)).stop);
    }

    #[test]
    fn pid_1_is_waited_for_until_the_units_have_to_be_dead_and_no_longer() {
        let mut case = case();
        answer(&mut case, at(10_000));
        case.look(at(12_000)).expect("it is due");
        assert_eq!(case.looked(at(12_000), true), None);
        case.look(at(13_999)).expect("it is due");
        assert_eq!(case.looked(at(13_999), true), None);
        case.look(at(14_100)).expect("it is due");
        assert_eq!(case.looked(at(14_100), true), Some(Death { is_told: false }));
        assert!(!case.is_proven(), "it has not said where the units are");
    }

    #[test]
    fn what_systemd_names_elsewhere_is_killed_too() {
        let mut case = case();
        answer(&mut case, at(10_000));
        case.look(at(12_000)).expect("it is due");
        case.looked(at(12_000), true);
        let asked = case.questions(at(12_001));
        assert!(asked.place && asked.end_main);
        let said = ["/other.slice/db.service", "/db.service", "/"].map(str::to_owned);
        assert_eq!(case.placed(said), ["/other.slice/db.service"]);
        case.main_ended(false, &asked);
        assert!(!case.is_settled(at(12_001)), "that was before the other group was known");
        let look = case.look(at(12_030)).expect("it is due");
        assert_eq!(look.groups, ["/db.service", "/other.slice/db.service"]);
    }

    #[test]
    fn an_answer_to_a_question_from_before_life_was_seen_does_not_count() {
        let lease = Lease { inactive: vec![unit("db.mount")], contains: vec![unit("db.slice")], ..lease() };
        let mut case = Case::new(lease, at(10_000));
        answer(&mut case, at(10_000));
        answer(&mut case, at(10_001));
        case.look(at(12_000)).expect("it is due");
        assert_eq!(case.looked(at(12_000), true), None, "the mount is for systemd to say");
        let asked = case.questions(at(12_001));
        assert!(asked.end_contained && asked.end_main && asked.inactive);
        assert!(!case.questions(at(12_002)).end_contained, "not as often as that");
        case.sees_life();
        case.contained_ended(true, &asked);
        case.main_ended(false, &asked);
        assert_eq!(case.seen_inactive(at(12_003), true, &asked), None);
        case.looked(at(12_004), true);
        assert!(!case.is_settled(at(12_004)) && !case.is_stopped());
        let again = answer(&mut case, at(12_200));
        assert!(again.end_contained && again.inactive);
        assert_eq!(case.seen_inactive(at(12_201), true, &again), Some(Death { is_told: false }));
        assert!(case.is_proven() && case.is_settled(at(12_201)));
        let asked = case.questions(at(12_300));
        assert_eq!(case.seen_inactive(at(12_300), false, &asked), None);
        assert!(!case.is_proven() && case.is_stopped(), "a look without an answer shows no life");
    }

    #[test]
    fn what_is_not_dead_in_time_is_complained_of_now_and_then() {
        let mut case = case();
        let complains = |case: &mut Case, now| case.look(now).expect("it is due").complains;
        assert!(!complains(&mut case, at(13_000)));
        assert!(
            complains(&mut case, at(14_000)) && !complains(&mut case, at(23_000)) && complains(&mut case, at(24_000))
        );
        let mut late = Case::new(lease(), at(60_000));
        assert!(!complains(&mut late, at(60_500)), "it has only just begun");
        assert!(complains(&mut late, at(61_000)));
    }
}
