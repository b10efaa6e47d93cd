//! Tests of single rules of the core, which a scenario would show only in passing. Each drives one host, step by step.

#[path = "support/hostile.rs"]
mod hostile;

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;

use putexd::election::{
    Action, Alarm, Content, Details, Election, Event, GuardDone, GuardRequest, Hindrance, LONGEST_PAUSE, Memory,
    Moment, Observation, ObservedUnit, OperatorNote, ReadId, Record, Remembered, Settings, Standing, State, Timings,
    Waiting, Word, WriteRequest, WriteResult,
};
use putexd::types::{
    FencingToken, Holder, Incarnation, Instance, Key, LeaseTerms, MachineId, NodeId, OnStopFailure, Revision, Time,
    UnitName, WriteId,
};

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("a node name")
}

fn settings() -> Settings {
    let timings = Timings::new(ms(1000), 3, 1);
    Settings {
        key: Key::new("db").expect("a key"),
        node: node("h1"),
        machine: MachineId(1),
        timings,
        stop_limit: ms(30_000),
        on_stop_failure: OnStopFailure::Alert,
        check_validity: None,
        checks_standby: false,
        fences: false,
        fence_hosts: Vec::new(),
        unfences: false,
        units: Vec::new(),
    }
}

fn a() -> Incarnation {
    Incarnation("a".to_owned())
}

/// An election with its clocks, and the store that it talks to.
struct Host {
    election: Election,
    now: Duration,
    /// How far the wall clock is ahead.
    wall: Duration,
    random: u128,
    /// What the store holds (the last element), and what it has held before.
    store: Vec<(Revision, Content)>,
}

impl Host {
    fn new(settings: Settings, memory: Memory, remembered: Option<Remembered>) -> Self {
        let now = ms(100_000);
        let election = Election::new(settings, memory, remembered, Time::both(now));
        let store = vec![(Revision(0), Content::Absent)];
        Self { election, now, wall: ms(1_000_000), random: 100, store }
    }

    /// Gives an event to the election, and answers each vetting (N2) that it asks for: every unit is run under the key
    /// that this host has for it.
    fn handle(&mut self, event: Event) -> Vec<Action> {
        let mut actions = self.handle_unvetted(event);
        while let Some(position) = actions.iter().position(|action| matches!(action, Action::Vet { .. })) {
            let Action::Vet { instance } = actions.remove(position) else { unreachable!("it is one") };
            actions.extend(self.handle_unvetted(Event::Vetted { instance, result: Ok(()) }));
        }
        actions
    }

    fn handle_unvetted(&mut self, event: Event) -> Vec<Action> {
        self.random += 1;
        let moment = Moment { now: Time::both(self.now), wall: self.now + self.wall, random: self.random };
        self.election.handle(&moment, event)
    }

    /// Lets `span` go by, and tells the election.
    fn after(&mut self, span: Duration) -> Vec<Action> {
        self.now += span;
        self.handle(Event::Timeout)
    }

    /// Brings guard and unit in order, and connects the store. Returns the read that the election asks for first.
    fn ready(&mut self) -> ReadId {
        self.handle(Event::GuardUp);
        self.handle(Event::Unit(ObservedUnit::Dead { result: "success".to_owned(), failed: false }));
        read(&self.handle(Event::StoreUp)).expect("the store is asked")
    }

    /// Lets time go by until the election asks the store again.
    fn until_asked(&mut self) -> ReadId {
        for _ in 0..100 {
            if let Some(id) = read(&self.after(ms(50))) {
                return id;
            }
        }
        panic!("nothing is asked for")
    }

    /// Answers the read `id`: the store shows `content` at `revision`.
    fn shown(&mut self, id: ReadId, revision: u64, content: Content) -> Vec<Action> {
        self.store.push((Revision(revision), content.clone()));
        let answer = Some(Observation { incarnation: a(), revision: Revision(revision), content });
        self.handle(Event::Read { id, answer })
    }

    /// Answers every read from the store's content. Returns the other actions.
    fn answered(&mut self, actions: Vec<Action>) -> Vec<Action> {
        let mut asked = VecDeque::from(actions);
        let mut others = Vec::new();
        while let Some(action) = asked.pop_front() {
            let Action::Read { id, before } = action else {
                others.push(action);
                continue;
            };
            let held = self.store.iter().rev().find(|(revision, _)| before.is_none_or(|before| *revision < before));
            let (revision, content) = held.cloned().unwrap_or((Revision(0), Content::Absent));
            let answer = Some(Observation { incarnation: a(), revision, content });
            asked.extend(self.handle(match before {
                None => Event::Read { id, answer },
                Some(_) => Event::Replaced { id, answer },
            }));
        }
        others
    }

    fn won(&mut self, write: &WriteRequest) -> Vec<Action> {
        let revision = Revision(write.base.0 + 1);
        self.store.push((revision, Content::Record(write.record.clone())));
        self.handle(Event::Written { write: write.write, result: WriteResult::Won(revision) })
    }

    /// A host that has taken a key that was absent, and runs the unit. Returns the instance of its tenure, too.
    fn activated() -> (Self, Instance) {
        let mut host = Self::new(settings(), Memory::default(), None);
        let instance = host.activate();
        (host, instance)
    }

    fn activate(&mut self) -> Instance {
        let id = self.ready();
        let mut actions = self.shown(id, 0, Content::Absent);
        for _ in 0..200 {
            if let Some(write) = write(&actions) {
                actions = self.won(&write);
            } else if let Some(GuardRequest::Arm(LeaseTerms { instance, deadline, .. })) = guard(&actions) {
                actions = self.handle(Event::GuardDone { instance, done: GuardDone::Armed(deadline) });
            } else if let Some(instance) = started(&actions) {
                self.handle(Event::Started { instance, result: Ok(()) });
                assert_eq!(self.election.state(), State::Active);
                return instance;
            } else {
                actions = self.after(ms(100));
                actions = self.answered(actions);
            }
        }
        panic!("it never became active: {}", self.election.state());
    }

    /// Lets `span` go by while the store and the guard answer at once. Returns all other actions.
    fn goes_on(&mut self, span: Duration) -> Vec<Action> {
        let until = self.now + span;
        let mut others = Vec::new();
        while self.now < until {
            let mut actions = self.after(ms(50).min(until.saturating_sub(self.now)));
            while let Some(action) = actions.pop() {
                let more = match &action {
                    Action::Write(write) => self.won(write),
                    Action::Guard(GuardRequest::Extend { instance, deadline, .. }) => {
                        let (instance, done) = (*instance, GuardDone::Extended(*deadline));
                        self.handle(Event::GuardDone { instance, done })
                    }
                    Action::Persist(_) | Action::Report(_) => Vec::new(),
                    Action::Read { .. }
                    | Action::Guard(_)
                    | Action::Vet { .. }
                    | Action::Fence { .. }
                    | Action::Unfence { .. }
                    | Action::Start { .. }
                    | Action::Stop { .. }
                    | Action::Alarm(_) => {
                        others.push(action);
                        continue;
                    }
                };
                actions.extend(more);
            }
        }
        others
    }

    /// Releases (H5) a unit that runs, because of `event`: the unit is stopped, the lease disarmed, and the release
    /// written.
    fn let_go_for(&mut self, instance: Instance, event: Event) {
        self.handle(event);
        self.handle(Event::GuardDone { instance, done: GuardDone::Closed });
        self.handle(Event::Stopped);
        let blank = write(&self.handle(Event::GuardDone { instance, done: GuardDone::Disarmed })).expect("a blank");
        assert!(blank.record.holder.is_nobody());
        let actions = self.won(&blank);
        assert_eq!(write(&self.answered(actions)), None);
        assert_eq!(self.election.state(), State::Standby);
    }

    /// Why the host does not contend, in words.
    fn hindrance(&self) -> Option<String> {
        let now = Time::both(self.now);
        self.election.hindrance(now).map(|hindrance| hindrance.in_words(now))
    }

    /// How long the host waits before it tries again, if back-off (K9) is all that keeps it from contending.
    fn back_off(&self) -> Duration {
        let hindered = |after: Duration| {
            matches!(self.election.hindrance(Time::both(self.now + after)), Some(Hindrance::BackOff(_)))
        };
        (0..100_000).map(ms).find(|after| !hindered(*after)).expect("it ends")
    }

    /// The guard comes back to a lease that was left to it: its gate is closed, the unit is stopped again, and the
    /// lease is forgotten. The host claims nothing before that.
    fn comes_back(&mut self, instance: Instance, again: Action) {
        let actions = self.handle(Event::StoreUp);
        self.answered(actions);
        let waits = |host: &Self| {
            assert_eq!(host.hindrance().as_deref(), Some("the guard has not forgotten the last lease yet"));
        };
        let actions = self.handle(Event::GuardUp);
        assert_eq!(guard(&actions), Some(GuardRequest::Close { instance }));
        let stop = self.handle(Event::GuardDone { instance, done: GuardDone::Closed });
        assert_eq!(stop, [again], "what was started meanwhile has no longer to live");
        waits(self);
        assert_eq!(self.handle(Event::Stopped), [Action::Guard(GuardRequest::Disarm { instance })]);
        let actions = self.after(ms(60_000));
        assert_eq!(write(&self.answered(actions)), None);
        waits(self);
        self.handle(Event::GuardDone { instance: Instance(1), done: GuardDone::Disarmed });
        waits(self);
        self.handle(Event::GuardDone { instance, done: GuardDone::Disarmed });
        assert_eq!(self.election.hindrance(Time::both(self.now)), None);
    }

    /// Lets time go by until the next write.
    fn next_write(&mut self) -> WriteRequest {
        for _ in 0..1000 {
            let actions = self.after(ms(100));
            if let Some(write) = write(&self.answered(actions)) {
                return write;
            }
        }
        panic!("nothing is written");
    }
}

fn read(actions: &[Action]) -> Option<ReadId> {
    actions.iter().find_map(|action| if let Action::Read { id, before: None } = action { Some(*id) } else { None })
}

fn write(actions: &[Action]) -> Option<WriteRequest> {
    actions.iter().find_map(|action| if let Action::Write(write) = action { Some((**write).clone()) } else { None })
}

fn guard(actions: &[Action]) -> Option<GuardRequest> {
    actions.iter().find_map(|action| if let Action::Guard(request) = action { Some(*request) } else { None })
}

fn started(actions: &[Action]) -> Option<Instance> {
    actions.iter().find_map(|action| if let Action::Start { instance, .. } = action { Some(*instance) } else { None })
}

fn held_by(token: &str, instance: u128, write: u128) -> Content {
    Content::Record(Record::new(
        Holder::decode(token.as_bytes()),
        Some(Details {
            machine: MachineId(2),
            instance: Instance(instance),
            write: WriteId(write),
            standing: Standing::Active,
            lease: ms(3000),
            hold: ms(3900),
            token: FencingToken(7),
            prev: None,
            unfenced: Vec::new(),
            units: Vec::new(),
            holders: Vec::new(),
            note: OperatorNote::default(),
        }),
    ))
}

/// What the guard remembers of the lease of instance 7.
fn remembered(deadline: Duration, lapsed: bool) -> Remembered {
    Remembered {
        terms: LeaseTerms {
            instance: Instance(7),
            write: WriteId(1),
            revision: Revision(10),
            token: FencingToken(5),
            deadline: Time::both(deadline),
            stop_budget: ms(1000),
            kill_reserve: ms(250),
        },
        closing: false,
        lapsed,
        units: Vec::new(),
    }
}

/// A `proven` of this instance that replaced its record at revision `prev`. This host is the only other one in `holders`,
/// and so the first in turn.
fn let_go_by(instance: u128, prev: u64) -> Content {
    let mut let_go = held_by("", instance, u128::from(prev) + 1);
    if let Content::Record(Record { details: Some(details), .. }) = &mut let_go {
        (details.standing, details.prev) = (Standing::Proven, Some((Revision(prev), Some(Instance(instance)))));
        details.holders = ["h1", "h2"].map(node).to_vec();
    }
    let_go
}

#[test]
fn what_the_store_shows_can_be_read_off() {
    let mut host = Host::new(settings(), Memory { token: FencingToken(5), ..Memory::default() }, None);
    assert_eq!(host.election.settings(), &settings());
    assert_eq!(
        (host.election.holder(), host.election.revision(), host.election.token()),
        ("", Revision(0), FencingToken(5))
    );
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    assert_eq!(
        (host.election.holder(), host.election.revision(), host.election.token()),
        ("h2", Revision(41), FencingToken(7))
    );
    assert_eq!(host.election.memory(), &Memory { token: FencingToken(7), longest_hold: ms(3900), ..Memory::default() });
    assert_eq!((host.election.state(), host.election.deadline()), (State::Standby, None));
}

#[test]
fn what_is_held_can_be_read_off() {
    let (mut host, instance) = Host::activated();
    // The token comes from the clock at the entitlement: an absent key is waited out for 4.004 s, and seconds are
    // rounded up.
    let token = FencingToken((host.wall + ms(100_000)).as_secs() + 5);
    assert_eq!(host.election.token(), token);
    let written = host.next_write();
    let sent = host.now;
    host.won(&written);
    let armed = host.election.deadline().expect("it is held");
    let deadline = Time::both(sent).plus(settings().timings.deadline_after());
    assert!(armed.boot < deadline.boot, "a renewal counts only when the guard has it");
    host.handle(Event::GuardDone { instance, done: GuardDone::Extended(deadline) });
    assert_eq!(host.election.deadline(), Some(deadline));
    let position = Some((a(), host.election.revision()));
    assert_eq!(host.election.memory().position, position);
    assert_eq!((host.election.memory().token, host.election.holder()), (token, "h1"));
}

#[test]
fn a_late_answer_to_an_earlier_read_says_nothing() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let early = host.ready();
    host.handle(Event::StoreDown);
    let late = read(&host.handle(Event::StoreUp)).expect("the store is asked anew");
    assert_ne!(early, late);
    host.shown(early, 41, held_by("h2", 9, 9));
    assert_eq!(host.election.revision(), Revision(0));
    host.shown(late, 42, held_by("h2", 9, 10));
    assert_eq!(host.election.revision(), Revision(42));
}

#[test]
fn nobody_contends_before_the_unit_is_known_to_be_dead() {
    let mut host = Host::new(settings(), Memory::default(), None);
    host.handle(Event::GuardUp);
    let id = read(&host.handle(Event::StoreUp)).expect("the store is asked");
    host.shown(id, 0, Content::Absent);
    assert_eq!(host.hindrance().as_deref(), Some("systemd is being asked whether the unit is dead"));
    assert_eq!(write(&host.after(ms(60_000))), None);
    // A stray unit counts as dead only when its stop is proven, whatever is observed meanwhile.
    let stray = host.handle(Event::Unit(ObservedUnit::Alive));
    assert!(stray.contains(&Action::Alarm(Alarm::StrayUnit)), "{stray:?}");
    host.handle(Event::Unit(ObservedUnit::Dead { result: "success".to_owned(), failed: false }));
    assert_eq!(host.hindrance().as_deref(), Some("the unit is not known to be dead"));
    host.handle(Event::Stopped);
    assert_eq!(host.election.hindrance(Time::both(host.now)), None);
}

#[test]
fn without_a_store_there_is_nothing_to_wake_up_for() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    assert_eq!(host.election.poll_timeout(), None, "the answer wakes it up");
    host.handle(Event::Read { id, answer: None });
    assert!(host.election.poll_timeout().is_some(), "it is asked again");
    host.handle(Event::StoreDown);
    assert_eq!(host.election.poll_timeout(), None);
}

fn alarms(actions: &[Action]) -> Vec<&Alarm> {
    actions.iter().filter_map(|action| if let Action::Alarm(alarm) = action { Some(alarm) } else { None }).collect()
}

fn kill_at(actions: &[Action]) -> Option<Time> {
    actions.iter().find_map(|action| if let Action::Stop { kill_at } = action { *kill_at } else { None })
}

#[test]
fn a_stop_that_is_not_proven_in_time_is_told_once() {
    for proven in [false, true] {
        let (mut host, _) = Host::activated();
        let deadline = host.election.deadline().expect("it is held").boot;
        host.handle(Event::StoreDown);
        host.now = deadline.saturating_sub(ms(1));
        assert_eq!(host.after(Duration::ZERO), []);
        let lapse = host.after(ms(1));
        // S = 1 s, of which k = 250 ms are kept for SIGKILL.
        assert_eq!(kill_at(&lapse), Some(Time::both(deadline + ms(750))));
        assert_eq!(host.election.state(), State::Lapsing);
        if proven {
            host.handle(Event::Stopped);
        }
        assert_eq!(alarms(&host.after(ms(999))), Vec::<&Alarm>::new());
        let told = host.after(ms(1));
        assert_eq!(alarms(&told), if proven { vec![] } else { vec![&Alarm::StopUnproven] });
        assert_eq!(alarms(&host.after(ms(60_000))), Vec::<&Alarm>::new());
    }
}

/// The proof may come before the election has looked at the clock again.
#[test]
fn a_stop_that_is_proven_by_the_time_it_is_late_is_not_told_of() {
    let (mut lapsing, _) = Host::activated();
    lapsing.handle(Event::StoreDown);
    let deadline = lapsing.election.deadline().expect("it is held").boot;
    lapsing.now = deadline;
    lapsing.after(ms(1));
    lapsing.now += ms(60_000);
    assert_eq!(alarms(&lapsing.handle(Event::Stopped)), Vec::<&Alarm>::new());
    assert_eq!(alarms(&lapsing.after(ms(1000))), Vec::<&Alarm>::new());

    let (mut releasing, instance) = Host::activated();
    releasing.handle(Event::StepDown { reason: "an operator said so".to_owned(), next: None });
    releasing.handle(Event::GuardDone { instance, done: GuardDone::Closed });
    releasing.goes_on(ms(29_999));
    releasing.now += ms(1);
    assert_eq!(alarms(&releasing.handle(Event::Stopped)), Vec::<&Alarm>::new());
    assert_eq!(alarms(&releasing.after(ms(1000))), Vec::<&Alarm>::new());
}

#[test]
fn whoever_wakes_after_the_deadline_still_waits_for_sigkill() {
    // What is left of S = 1 s, but at least k = 250 ms. If S is over and nobody has looked yet, all of S again.
    for (late, left) in [(0, 1000), (700, 300), (750, 250), (900, 250), (999, 250), (1000, 1000), (5000, 1000)] {
        let (mut host, _) = Host::activated();
        let deadline = host.election.deadline().expect("it is held").boot;
        host.now = deadline + ms(late);
        let lapse = host.after(Duration::ZERO);
        assert_eq!(kill_at(&lapse), Some(Time::both(deadline + ms(750))), "{late}");
        assert_eq!(alarms(&lapse), Vec::<&Alarm>::new(), "{late}");
        assert_eq!(alarms(&host.after(ms(left - 1))), Vec::<&Alarm>::new(), "{late}");
        assert_eq!(alarms(&host.after(ms(1))), [&Alarm::StopUnproven], "{late}");
    }
}

#[test]
fn an_orderly_stop_beyond_its_limit_is_told_once_and_the_lock_is_kept() {
    let (mut host, instance) = Host::activated();
    host.handle(Event::StepDown { reason: "an operator said so".to_owned(), next: None });
    let stop = host.handle(Event::GuardDone { instance, done: GuardDone::Closed });
    assert!(stop.contains(&Action::Stop { kill_at: None }), "{stop:?}");
    assert_eq!(alarms(&host.goes_on(ms(29_999))), Vec::<&Alarm>::new());
    let told = host.goes_on(ms(1));
    assert_eq!(alarms(&told), [&Alarm::StopLimit]);
    assert_eq!(alarms(&host.goes_on(ms(30_000))), Vec::<&Alarm>::new());
    assert_eq!(host.election.state(), State::Releasing);
}

#[test]
fn an_orderly_stop_beyond_its_limit_gets_sigkill_before_the_host_goes_down() {
    let kills = |actions: &[Action]| actions.iter().any(|action| matches!(action, Action::Stop { kill_at: Some(_) }));
    for gate_is_closed in [true, false] {
        let (mut host, instance) = Host::activated();
        host.handle(Event::Reconfigure(Settings { on_stop_failure: OnStopFailure::RebootForce, ..settings() }));
        host.handle(Event::StepDown { reason: "an operator said so".to_owned(), next: None });
        if gate_is_closed {
            host.handle(Event::GuardDone { instance, done: GuardDone::Closed });
        }
        let orderly = host.goes_on(ms(29_999));
        assert!(alarms(&orderly).is_empty() && !kills(&orderly), "{orderly:?}");
        let late = host.goes_on(ms(1));
        assert_eq!(alarms(&late), [&Alarm::StopLimit]);
        assert_eq!(kill_at(&late), Some(Time::both(host.now)));
        if !gate_is_closed {
            let again = host.handle(Event::GuardDone { instance, done: GuardDone::Closed });
            assert!(kills(&again), "whatever was proven before the gate was closed is proven again: {again:?}");
        }
        assert_eq!(alarms(&host.goes_on(ms(999))), Vec::<&Alarm>::new());
        let mut proven = Host { election: host.election.clone(), store: host.store.clone(), ..host };
        assert_eq!(alarms(&host.goes_on(ms(1))), [&Alarm::StopUnproven]);
        assert_eq!(alarms(&host.goes_on(ms(30_000))), Vec::<&Alarm>::new());
        assert_eq!(host.election.state(), State::Releasing, "the lease is renewed meanwhile");
        proven.now += ms(1);
        assert_eq!(alarms(&proven.handle(Event::Stopped)), Vec::<&Alarm>::new(), "it was killed in time");
    }
}

#[test]
fn a_stop_that_is_late_already_heeds_a_reload_that_takes_the_host_down() {
    let goes_down = || Settings { on_stop_failure: OnStopFailure::RebootForce, ..settings() };
    let (mut host, instance) = Host::activated();
    host.handle(Event::StepDown { reason: "an operator said so".to_owned(), next: None });
    host.handle(Event::GuardDone { instance, done: GuardDone::Closed });
    assert_eq!(alarms(&host.goes_on(ms(30_000))), [&Alarm::StopLimit]);
    host.goes_on(ms(5000));
    let late = host.handle(Event::Reconfigure(goes_down()));
    assert_eq!((alarms(&late), kill_at(&late)), (vec![&Alarm::StopLimit], Some(Time::both(host.now))));
    assert_eq!(alarms(&host.handle(Event::Reconfigure(goes_down()))), Vec::<&Alarm>::new());
    assert_eq!(alarms(&host.goes_on(ms(1000))), [&Alarm::StopUnproven]);

    let (mut host, _) = Host::activated();
    host.now = host.election.deadline().expect("it is held").boot;
    host.after(Duration::ZERO);
    assert_eq!(alarms(&host.after(ms(1000))), [&Alarm::StopUnproven]);
    assert_eq!(alarms(&host.after(ms(5000))), Vec::<&Alarm>::new());
    assert_eq!(alarms(&host.handle(Event::Reconfigure(goes_down()))), [&Alarm::StopUnproven]);
}

#[test]
fn a_clock_that_jumps_by_more_than_a_renewal_has_to_be_proven_harmless() {
    for forward in [true, false] {
        let jump = |host: &mut Host, by: Duration| {
            host.wall = if forward { host.wall + by } else { host.wall.saturating_sub(by) };
            host.after(Duration::ZERO)
        };
        let (mut host, _) = Host::activated();
        assert_eq!(jump(&mut host, ms(1000)), []);
        let told = jump(&mut host, ms(1001));
        assert_eq!(alarms(&told), [&Alarm::ClockJump { by: ms(1001) }]);
        assert!(write(&told).is_some(), "a renewal is sent at once");
        // Two call limits of (T − m)/3 each.
        assert_eq!(host.after(Duration::from_nanos(1_933_333_331)), []);
        let lapse = host.after(Duration::from_nanos(1));
        assert!(kill_at(&lapse).is_some(), "{lapse:?}");
        assert_eq!(host.election.state(), State::Lapsing);

        let (mut host, _) = Host::activated();
        let renewal = write(&jump(&mut host, ms(1001))).expect("a renewal is sent at once");
        host.won(&renewal);
        host.goes_on(ms(10_000));
        assert_eq!(host.election.state(), State::Active);
    }
}

#[test]
fn no_renewal_goes_out_on_the_word_of_an_old_check() {
    let checked = Settings { check_validity: Some(ms(3000)), checks_standby: true, ..settings() };
    let mut host = Host::new(checked, Memory::default(), None);
    host.handle(Event::StandbyCheck(Ok(())));
    host.activate();
    host.goes_on(ms(2000));
    host.handle(Event::ActiveCheck(Ok(())));
    host.goes_on(ms(2999));
    assert_eq!(host.election.state(), State::Active);
    host.goes_on(ms(1));
    assert_eq!(host.election.state(), State::Releasing);
}

/// Taking (K2): a check of the active host alone does not keep a standby from contending, and a standby does not give
/// it as a reason.
#[test]
fn a_check_of_the_active_host_alone_is_not_waited_for_by_a_standby() {
    let mut host = Host::new(Settings { check_validity: Some(ms(3000)), ..settings() }, Memory::default(), None);
    let instance = host.activate();
    host.let_go_for(instance, Event::ActiveCheck(Err("connection refused".to_owned())));
    let hindrance = host.hindrance().expect("it waits");
    assert!(hindrance.contains("the active check fails: connection refused"), "{hindrance}");
}

#[test]
fn a_record_says_what_it_replaced_if_there_was_something() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 0, Content::Absent);
    let first = host.next_write();
    let details = |write: &WriteRequest| write.record.details.clone().expect("of putexd");
    assert_eq!((first.base, details(&first).prev), (Revision(0), None));
    assert_ne!(details(&first).instance.0, first.write.0, "one is told from the other wherever it is kept");
    assert_eq!(details(&first).write, first.write);
    host.won(&first);
    let second = host.next_write();
    let instance = details(&first).instance;
    assert_eq!((second.base, details(&second).prev), (Revision(1), Some((Revision(1), Some(instance)))));
}

#[test]
fn who_takes_the_lock_carries_on_what_was_said_but_not_what_is_over() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    let mut found = held_by("h2", 9, 9);
    if let Content::Record(Record { details: Some(details), .. }) = &mut found {
        let text = |text: &str| Some(text.to_owned());
        let over = |by| Some(Word::new(by, "maintenance", 1, Some(2)));
        details.note = OperatorNote {
            next: Some(node("h3")),
            stopped: over("root@h1"),
            paused: Some(Word::new("root@h2", "", 1, None)),
            reason: text("maintenance"),
            by: text("root"),
        };
        details.holders = ["h1", "h4", "h2"].map(node).to_vec();
    }
    host.shown(id, 41, found);
    let claim = host.next_write();
    let Details { note, token, prev, lease, hold, unfenced, holders, .. } = claim.record.details.expect("of putexd");
    assert_eq!(holders, ["h4", "h2", "h1"].map(node));
    assert_eq!((note.next, note.stopped, note.paused), (None, None, None));
    assert_eq!((note.reason.as_deref(), note.by.as_deref()), (Some("maintenance"), Some("root")));
    let seconds = u64::try_from(host.now.as_millis().div_ceil(1000)).expect("of now");
    // It is entitled a second later.
    assert_eq!((token, prev), (FencingToken(seconds + 1001), Some((Revision(41), Some(Instance(9))))));
    // The former holder's unit may live as long as the longest hold that is known.
    assert_eq!((lease, hold, unfenced), (ms(3000), ms(3900), vec![node("h2")]));
}

#[test]
fn a_record_names_all_that_may_run_under_the_lock() {
    let unit = |name| UnitName::new(name).expect("a unit's name");
    let settings = Settings { units: ["a.timer", "a.service"].map(unit).to_vec(), ..settings() };
    let units = |write: WriteRequest| write.record.details.expect("of putexd").units;
    let mut host = Host::new(settings.clone(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, let_go_by(9, 40));
    assert_eq!(units(host.next_write()), settings.units);

    // An adopted lease may still have units running that it was armed for before.
    let memory = Memory { position: Some((a(), Revision(10))), ..Memory::default() };
    let remembered = remembered(Duration::from_secs(102), false);
    let armed = Remembered { units: ["a.timer", "b.service"].map(unit).to_vec(), ..remembered };
    let mut host = Host::new(settings, memory, Some(armed));
    host.handle(Event::GuardUp);
    host.handle(Event::Unit(ObservedUnit::Alive));
    let id = read(&host.handle(Event::StoreUp)).expect("the store is asked");
    let renewal = write(&host.shown(id, 10, held_by("h1", 7, 1))).expect("a renewal");
    assert_eq!(units(renewal), ["a.timer", "a.service", "b.service"].map(unit));
}

#[test]
fn whoever_had_not_started_yet_leaves_its_debts_of_fencing_and_nobody_else_does() {
    let inherited = |standing, hosts: &[&str]| {
        let mut host = Host::new(settings(), Memory::default(), None);
        let id = host.ready();
        let mut found = held_by("h2", 9, 9);
        if let Content::Record(Record { details: Some(details), .. }) = &mut found {
            details.standing = standing;
            details.unfenced = hosts.iter().map(|host| node(host)).collect();
        }
        host.shown(id, 41, found);
        let unfenced = host.next_write().record.details.expect("of putexd").unfenced;
        unfenced.iter().map(NodeId::to_string).collect::<Vec<_>>()
    };
    assert_eq!(inherited(Standing::Confirming, &["h4", "h1", "h2"]), ["h4", "h2"]);
    assert_eq!(inherited(Standing::Active, &["h4"]), ["h2"]);
    let many: Vec<String> = (10..26).map(|number| format!("h{number}")).collect();
    let all: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(inherited(Standing::Confirming, &all)[..15], many[1..]);
}

#[test]
fn a_key_that_was_absent_for_long_is_still_not_started_on_before_the_gap_is_over() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let mut id = host.ready();
    host.handle(Event::Contend(Err("drained".to_owned())));
    // The host watches for a minute, with a read every R.
    for _ in 0..60 {
        let actions = host.shown(id, 0, Content::Absent);
        id = read(&actions).or_else(|| read(&host.after(ms(1000)))).expect("it is read every R");
    }
    host.shown(id, 0, Content::Absent);
    let claim = write(&host.handle(Event::Contend(Ok(())))).expect("it is taken at once");
    let claimed = host.now;
    // The outcome of the claim is unknown, and the key is still absent. That it was absent for long does not make the
    // start any earlier.
    let doubt = host.handle(Event::Written { write: claim.write, result: WriteResult::Unknown });
    let claim = write(&host.answered(doubt)).expect("it is tried again");
    host.won(&claim);
    let started = |host: &mut Host| {
        let actions = host.goes_on(ms(50));
        actions.iter().any(|action| matches!(action, Action::Guard(GuardRequest::Arm { .. })))
    };
    while !started(&mut host) {
        assert!(host.now < claimed + ms(4100), "it is never started");
    }
    assert!(host.now >= claimed + settings().timings.watch_gap(), "somebody else may have created and purged the key");
}

fn dies(failed: bool) -> Event {
    Event::Unit(ObservedUnit::Dead { result: "it ended".to_owned(), failed })
}

#[test]
fn what_fails_waits_longer_each_time_until_the_unit_was_healthy_for_long() {
    let (mut host, mut instance) = Host::activated();
    let mut waits = Vec::new();
    for healthy in [ms(0), ms(0), ms(29_000), ms(30_000), ms(0), ms(0), ms(0), ms(0)] {
        host.goes_on(healthy);
        host.let_go_for(instance, dies(true));
        waits.push(host.back_off().as_secs());
        host = again(host, &mut instance);
    }
    // The wait is 2R, doubles up to 10·T, and is 2R again after 10·T of health.
    assert_eq!(waits, [2, 4, 8, 2, 4, 8, 16, 30]);
}

/// Back-off (K9): what an operator asked for costs one wait, whatever failed before it, and a failure after it waits as
/// if the operator had not asked.
#[test]
fn what_somebody_asked_for_waits_once_each_time() {
    let step_down = || Event::StepDown { reason: "an operator said so".to_owned(), next: None };
    let (mut host, mut instance) = Host::activated();
    let mut waits = Vec::new();
    for event in [step_down(), dies(false), step_down(), dies(true), dies(true), step_down(), dies(false), dies(true)] {
        // Long enough to count as stopped by somebody, and not long enough to count as healthy.
        host.goes_on(ms(4000));
        let planned = event != dies(true);
        host.let_go_for(instance, event);
        let hindrance = host.hindrance().expect("it waits");
        assert_eq!(hindrance.contains("it takes it again if nobody else does"), planned, "{hindrance}");
        waits.push(host.back_off().as_secs());
        host = again(host, &mut instance);
    }
    assert_eq!(waits, [2, 2, 2, 2, 4, 2, 2, 8]);
    // A unit that ends in good order, but at once, is not started again and again.
    host.let_go_for(instance, dies(false));
    assert_eq!(host.back_off().as_secs(), 16);
    // A step-down does not make a longer wait shorter.
    host.handle(step_down());
    assert_eq!(host.back_off().as_secs(), 16);
}

/// Back-off (K9): an administrator who has mended what failed need not wait. The next failure is the first one again.
#[test]
fn an_administrator_ends_the_wait_after_a_failure() {
    let (mut host, mut instance) = Host::activated();
    for _ in 0..3 {
        host.let_go_for(instance, dies(true));
        host = again(host, &mut instance);
    }
    host.let_go_for(instance, dies(true));
    assert_eq!(host.back_off().as_secs(), 16);
    let actions = host.handle(Event::TryAgain);
    assert_eq!(host.hindrance(), None);
    assert!(host.election.waiting(Time::both(host.now)).is_some(), "it takes the lock again: {actions:?}");
    host = again(host, &mut instance);
    host.let_go_for(instance, dies(true));
    assert_eq!(host.back_off().as_secs(), 2);
}

/// A unit that runs is not affected by the administrator's order to try again.
#[test]
fn an_administrator_who_asks_for_another_try_leaves_alone_what_runs() {
    let (mut host, _) = Host::activated();
    assert_eq!(host.handle(Event::TryAgain), []);
    assert_eq!(host.election.state(), State::Active);
}

#[test]
fn each_state_that_waits_says_for_what_and_how_long() {
    let (mut host, instance) = claimed();
    assert!(said(&host).starts_with("starts in ") && said(&host).contains("s: the store has no record"));
    let (mut active, instance_active) = Host::activated();
    assert_eq!(said(&active), "");
    active.handle(Event::StepDown { reason: "an operator said so".to_owned(), next: None });
    assert_eq!(
        said(&active),
        "waits for putex-guard to close the gate before it stops the unit for this reason: an operator said so"
    );
    active.handle(Event::GuardDone { instance: instance_active, done: GuardDone::Closed });
    assert!(said(&active).contains("until the unit is proven dead, in its own time and for 30s at most"));
    active.handle(Event::Stopped);
    assert_eq!(said(&active), "the unit is dead; waits for putex-guard to forget the lease");
    active.handle(Event::GuardDone { instance: instance_active, done: GuardDone::Disarmed });
    assert!(said(&active).contains("waits for the store to take the release"));
    // A claim that is given up is not reported as a lease that was not renewed.
    host.now += ms(10_000);
    let actions = host.handle(Event::Timeout);
    let given_up = actions.iter().find_map(|action| {
        if let Action::Report(transition) = action { Some(transition.reason.clone()) } else { None }
    });
    assert!(given_up.is_some_and(|reason| reason.contains("nothing was started")), "{actions:?} {instance:?}");
    // A standby says who holds the lock, since when the holder is silent, and when the lock may be taken.
    let mut standby = about_to_take();
    standby.now += ms(100);
    assert!(said(&standby).starts_with("h2 holds the lock; "), "{}", said(&standby));
    assert!(said(&standby).contains("; it may be taken in "));
}

/// Verified release (K4): a host that has just begun to watch does not believe a release, and says so.
#[test]
fn a_release_that_was_not_followed_is_no_matter_of_turns() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 42, let_go_by(9, 41));
    host.now += ms(100);
    let words = said(&host);
    // T, and T + C·R, after 100 ms.
    assert!(words.contains("this one takes it in 2.9s") && words.contains("starts the unit in 3.9s: "), "{words}");
    assert!(words.contains("this host has just begun to watch, and another may have held the lock since"), "{words}");
}

/// What the host waits for, in words.
fn said(host: &Host) -> String {
    let now = Time::both(host.now);
    host.election.waiting(now).map(|waiting| waiting.in_words(now)).unwrap_or_default()
}

/// A host without a store says that it waits for it, what follows meanwhile, and what it knows of the holder.
#[test]
fn a_host_without_a_store_says_what_it_waits_for_and_that_nothing_is_started() {
    let waits = "waits for the store to answer; nothing is started on this host before it does";
    let mut host = Host::new(settings(), Memory::default(), None);
    host.handle(Event::Timeout);
    assert_eq!(said(&host), waits);
    let mut standby = about_to_take();
    standby.handle(Event::StoreDown);
    standby.after(ms(20_000));
    assert_eq!(standby.election.state(), State::NoStore);
    let last = format!("{waits}; before, h2 held the lock");
    assert!(said(&standby).starts_with(&last), "{}", said(&standby));
    // The host is connected, but no read is answered: what it saw is no longer current.
    let mut silent = about_to_take();
    for _ in 0..40 {
        silent.after(ms(100));
    }
    assert_eq!(silent.election.state(), State::Standby);
    assert!(said(&silent).starts_with(&last), "{}", said(&silent));
}

/// An answer of the store does not count as a sign of life of the holder.
#[test]
fn the_holder_was_heard_of_when_its_record_was_seen_to_change() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    host.now += ms(400);
    let unknown = "h2 holds the lock; this host has seen its record for 0.4s, and does not know how old it was then";
    assert!(said(&host).starts_with(unknown), "{}", said(&host));
    let renewed = |host: &mut Host, revision, write| {
        let id = host.until_asked();
        host.shown(id, revision, held_by("h2", 9, write));
        host.now += ms(400);
    };
    renewed(&mut host, 42, 10);
    let heard = "h2 holds the lock and last renewed 0.4s ago";
    assert!(said(&host).starts_with(heard), "{}", said(&host));
    let again = |host: &mut Host, revision, write| {
        host.handle(Event::StoreDown);
        host.now += ms(60_000);
        let id = read(&host.handle(Event::StoreUp)).expect("the store is asked");
        host.shown(id, revision, held_by("h2", 9, write));
        host.now += ms(400);
    };
    again(&mut host, 42, 10);
    let old = "h2 holds the lock and last renewed 61s ago";
    assert!(said(&host).starts_with(old), "{}", said(&host));
    // The record was renewed while this host did not watch, so nobody here knows when.
    again(&mut host, 43, 11);
    assert!(said(&host).starts_with(unknown), "{}", said(&host));
    renewed(&mut host, 44, 12);
    assert!(said(&host).starts_with(heard), "{}", said(&host));
}

/// A host that has only claimed the lock does not run anything yet.
#[test]
fn a_standby_tells_a_claim_from_a_lease() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    let mut content = held_by("h2", 9, 9);
    if let Content::Record(Record { details: Some(details), .. }) = &mut content {
        details.standing = Standing::Confirming;
    }
    host.shown(id, 41, content);
    assert!(said(&host).starts_with("h2 has claimed the lock and is about to start the unit; "), "{}", said(&host));
}

/// A holder that cannot renew says how long it has left, and does not give a reason for not contending.
#[test]
fn a_holder_that_cannot_renew_counts_down_to_its_stop() {
    let (mut host, _) = Host::activated();
    host.goes_on(ms(5000));
    let waiting = |host: &Host| host.election.waiting(Time::both(host.now));
    assert_eq!(waiting(&host), None);
    host.handle(Event::StoreDown);
    assert_eq!(host.election.hindrance(Time::both(host.now)), None);
    let mut first = None;
    for _ in 0..40 {
        host.after(ms(100));
        match waiting(&host) {
            Some(Waiting::Renewal { since, deadline }) => {
                assert_eq!(Some(deadline), host.election.deadline());
                let silent = Time::both(host.now).since_at_least(since);
                first.get_or_insert(silent);
                assert!(host.election.state() == State::Active && silent < ms(3000), "{silent:?}");
            }
            other => assert!(first.is_none() || matches!(other, Some(Waiting::Lapsing { .. })), "{other:?}"),
        }
    }
    // R, and one call limit of (T − m)/3.
    assert!(first.is_some_and(|first| first > ms(1900) && first < ms(2200)), "{first:?}");
    assert_eq!(host.election.state(), State::Lapsing);
    assert_eq!(host.election.hindrance(Time::both(host.now)), None);
}

/// The last record that this host saw is its own, but its lease is over: it must not say that it holds the lock.
#[test]
fn a_host_that_has_lost_its_lease_does_not_say_that_it_holds_the_lock() {
    let (mut host, instance) = Host::activated();
    host.handle(Event::StoreDown);
    host.after(ms(5000));
    host.handle(Event::GuardDone { instance, done: GuardDone::Closed });
    host.handle(Event::Stopped);
    host.handle(Event::GuardDone { instance, done: GuardDone::Disarmed });
    assert_eq!((host.election.state(), host.election.holder()), (State::NoStore, "h1"));
    let waiting = |host: &Host| host.election.waiting(Time::both(host.now));
    assert_eq!(waiting(&host), Some(Waiting::OwnRecord { shown: false, take_at: None }));
    let actions = host.handle(Event::StoreUp);
    // The store has not answered yet.
    assert!(matches!(waiting(&host), Some(Waiting::OwnRecord { shown: false, .. })), "{:?}", waiting(&host));
    host.answered(actions);
    assert!(matches!(waiting(&host), Some(Waiting::OwnRecord { shown: true, .. })), "{:?}", waiting(&host));
}

/// Lets the host take the lock again after its own release, which the store verifies, until it is active.
fn again(mut host: Host, instance: &mut Instance) -> Host {
    for _ in 0..2000 {
        let actions = host.after(ms(100));
        let mut actions = host.answered(actions);
        while let Some(action) = actions.pop() {
            let event = match action {
                Action::Write(write) => {
                    actions.extend(host.won(&write));
                    continue;
                }
                Action::Guard(GuardRequest::Arm(LeaseTerms { instance, deadline, .. })) => {
                    Event::GuardDone { instance, done: GuardDone::Armed(deadline) }
                }
                Action::Start { instance: begun, .. } => {
                    *instance = begun;
                    Event::Started { instance: begun, result: Ok(()) }
                }
                Action::Read { .. }
                | Action::Guard(_)
                | Action::Vet { .. }
                | Action::Fence { .. }
                | Action::Unfence { .. }
                | Action::Stop { .. }
                | Action::Persist(_)
                | Action::Report(_)
                | Action::Alarm(_) => continue,
            };
            actions.extend(host.handle(event));
        }
        if host.election.state() == State::Active {
            return host;
        }
    }
    panic!("it is never active again: {:?}", host.hindrance());
}

fn reads_before(actions: &[Action]) -> usize {
    actions.iter().filter(|action| matches!(action, Action::Read { before: Some(_), .. })).count()
}

fn stops(actions: &[Action]) -> usize {
    actions.iter().filter(|action| matches!(action, Action::Stop { .. })).count()
}

/// A host that has asked the guard to arm its lease, and has no answer yet.
fn arming() -> (Host, Instance, Time) {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    let mut actions = host.shown(id, 0, Content::Absent);
    for _ in 0..200 {
        if let Some(GuardRequest::Arm(LeaseTerms { instance, deadline, .. })) = guard(&actions) {
            return (host, instance, deadline);
        }
        actions = if let Some(write) = write(&actions) {
            host.won(&write)
        } else {
            let actions = host.after(ms(100));
            host.answered(actions)
        };
    }
    panic!("it is never armed: {}", host.election.state());
}

#[test]
fn the_guards_answer_about_another_lease_says_nothing_of_this_one() {
    let other = Instance(1);
    let (mut host, instance, deadline) = arming();
    let later = deadline.plus(ms(60_000));
    assert_eq!(host.handle(Event::GuardDone { instance: other, done: GuardDone::Armed(deadline) }), []);
    for asked in [GuardDone::Armed(deadline), GuardDone::Extended(deadline)] {
        assert_eq!(host.handle(Event::GuardRefused { instance: other, asked, reason: "it lapsed".to_owned() }), []);
    }
    assert_eq!(started(&host.handle(Event::GuardDone { instance, done: GuardDone::Armed(deadline) })), Some(instance));
    host.handle(Event::Started { instance: other, result: Ok(()) });
    host.handle(Event::Started { instance: other, result: Err("it fails".to_owned()) });
    host.handle(Event::Unfenced { instance: other, result: Err("it fails".to_owned()) });
    host.handle(Event::Fenced { instance: other, result: Err("it fails".to_owned()) });
    assert_eq!(host.election.state(), State::Starting);
    host.handle(Event::Started { instance, result: Ok(()) });
    assert_eq!(host.election.state(), State::Active);

    host.handle(Event::GuardDone { instance: other, done: GuardDone::Extended(later) });
    assert_eq!(host.election.deadline(), Some(deadline));
    host.handle(Event::GuardDone { instance, done: GuardDone::Extended(deadline.minus(ms(1))) });
    assert_eq!(host.election.deadline(), Some(deadline), "an earlier deadline is an old answer");
    host.handle(Event::StepDown { reason: "an operator said so".to_owned(), next: None });
    assert_eq!(stops(&host.handle(Event::GuardDone { instance: other, done: GuardDone::Closed })), 0);
    assert_eq!(stops(&host.handle(Event::GuardDone { instance, done: GuardDone::Closed })), 1);
    assert_eq!(stops(&host.handle(Event::GuardDone { instance, done: GuardDone::Closed })), 0, "it is stopped once");
    // The lock is not released by the disarming of another lease, nor by a disarming that nobody asked for.
    assert_eq!(write(&host.handle(Event::GuardDone { instance, done: GuardDone::Disarmed })), None);
    let disarm = host.handle(Event::Stopped);
    assert!(disarm.contains(&Action::Guard(GuardRequest::Disarm { instance })), "{disarm:?}");
    assert_eq!(write(&host.handle(Event::GuardDone { instance: other, done: GuardDone::Disarmed })), None);
    assert!(write(&host.handle(Event::GuardDone { instance, done: GuardDone::Disarmed })).is_some());
}

#[test]
fn what_the_guard_refuses_ends_the_lease() {
    let refused = |asked, reason: &str| {
        let reason = reason.to_owned();
        move |instance| Event::GuardRefused { instance, asked, reason }
    };
    let (mut host, instance, deadline) = arming();
    host.handle(refused(GuardDone::Armed(deadline), "there are 256 leases already")(instance));
    assert_eq!(host.election.state(), State::Releasing);

    // The lease is armed anew when the unit has moved to another control group. If the guard refuses, the unit must not
    // run on uncovered.
    let (mut host, instance) = Host::activated();
    let armed = GuardDone::Armed(host.election.deadline().expect("it is armed"));
    let actions = host.handle(refused(armed, "the lease of other still covers /app.slice/db.service")(instance));
    assert_eq!(host.election.state(), State::Releasing);
    assert!(actions.contains(&Action::Guard(GuardRequest::Close { instance })), "{actions:?}");

    let (mut host, instance) = Host::activated();
    let lapse = host.handle(refused(GuardDone::Extended(Time::both(host.now)), "a lapse is final")(instance));
    assert_eq!((host.election.state(), stops(&lapse)), (State::Lapsing, 1));

    // An answer of a guard that is gone is not a refusal, and a lease whose unit does not run need not lapse.
    let (mut host, instance) = Host::activated();
    host.handle(Event::GuardDown);
    assert_eq!(host.election.state(), State::Releasing);
    host.handle(refused(GuardDone::Extended(Time::both(host.now)), "the guard does not answer")(instance));
    assert_eq!(host.election.state(), State::Releasing);

    let (mut host, instance) = Host::activated();
    host.handle(Event::StepDown { reason: "an operator said so".to_owned(), next: None });
    host.handle(Event::GuardDone { instance, done: GuardDone::Closed });
    host.handle(Event::Stopped);
    host.handle(Event::GuardDown);
    let blank = write(&host.handle(refused(GuardDone::Disarmed, "the guard does not answer")(instance)));
    assert_eq!(blank, None, "it may still act on the lease");

    // A lease that the guard does not know need not be closed or disarmed.
    let (mut host, instance) = Host::activated();
    host.handle(Event::StepDown { reason: "an operator said so".to_owned(), next: None });
    assert_eq!(stops(&host.handle(refused(GuardDone::Closed, "there is no such lease")(instance))), 1);
    host.handle(Event::Stopped);
    let blank = write(&host.handle(refused(GuardDone::Disarmed, "there is no such lease")(instance)));
    assert!(blank.expect("a blank").record.holder.is_nobody());
}

#[test]
fn an_extension_is_asked_for_once_and_only_of_an_armed_lease() {
    let extensions =
        |actions: &[Action]| actions.iter().filter(|a| matches!(a, Action::Guard(GuardRequest::Extend { .. }))).count();
    let (mut host, instance, deadline) = arming();
    // When a renewal is won while the guard arms the lease, the guard is told of it afterwards.
    let renewal = host.next_write();
    assert_eq!(extensions(&host.won(&renewal)), 0);
    assert_eq!(extensions(&host.handle(Event::GuardDone { instance, done: GuardDone::Armed(deadline) })), 1);
    let (mut host, instance, deadline) = arming();
    let armed = host.handle(Event::GuardDone { instance, done: GuardDone::Armed(deadline) });
    assert_eq!(extensions(&armed), 0, "it has the deadline already, and would refuse");
    // While the lease is being disarmed, it is not extended any more.
    host.handle(Event::Started { instance, result: Ok(()) });
    host.handle(Event::StepDown { reason: "an operator said so".to_owned(), next: None });
    host.handle(Event::GuardDone { instance, done: GuardDone::Closed });
    let renewal = host.next_write();
    host.handle(Event::Stopped);
    assert_eq!(extensions(&host.won(&renewal)), 0);
}

#[test]
fn an_operators_words_at_a_release_are_in_the_blank_and_not_before() {
    let (mut host, instance) = Host::activated();
    host.handle(Event::StepDown { reason: "drained".to_owned(), next: Some(node("h3")) });
    host.handle(Event::GuardDone { instance, done: GuardDone::Closed });
    let renewal = host.next_write();
    let note = |write: &WriteRequest| write.record.details.clone().expect("of putexd").note;
    assert_eq!(note(&renewal), OperatorNote::default());
    host.won(&renewal);
    host.handle(Event::Stopped);
    let blank = write(&host.handle(Event::GuardDone { instance, done: GuardDone::Disarmed })).expect("a blank");
    let expected =
        OperatorNote { next: Some(node("h3")), reason: Some("drained".to_owned()), ..OperatorNote::default() };
    assert_eq!(note(&blank), expected);
    assert_eq!(blank.record.details.map(|details| details.standing), Some(Standing::Proven));
}

#[test]
fn a_renewal_under_way_at_the_proof_is_blanked_as_soon_as_it_is_won() {
    let (mut host, instance) = Host::activated();
    host.handle(Event::StepDown { reason: "drained".to_owned(), next: None });
    host.handle(Event::GuardDone { instance, done: GuardDone::Closed });
    let renewal = host.next_write();
    host.handle(Event::Stopped);
    assert_eq!(write(&host.handle(Event::GuardDone { instance, done: GuardDone::Disarmed })), None);
    let blank = write(&host.won(&renewal)).expect("a blank");
    assert_eq!((blank.base, blank.record.holder.as_str()), (Revision(renewal.base.0 + 1), ""));
}

#[test]
fn a_stray_unit_is_stopped_in_its_budget_and_holds_up_a_retirement() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let stray = host.handle(Event::Unit(ObservedUnit::Alive));
    assert_eq!(kill_at(&stray), Some(Time::both(host.now + ms(750))));
    assert_eq!(stops(&host.handle(Event::Unit(ObservedUnit::Alive))), 0, "it is told and stopped once");
    host.handle(Event::Retire { reason: "its file is gone".to_owned() });
    host.handle(Event::Unit(ObservedUnit::Dead { result: "success".to_owned(), failed: false }));
    assert_eq!(host.election.state(), State::NoStore);
    host.handle(Event::Stopped);
    assert_eq!(host.election.state(), State::Retired);
}

#[test]
fn a_read_that_failed_is_made_again_and_a_hint_brings_another_after_the_answer() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.handle(Event::Read { id, answer: None });
    // Half of the call limit of (T − m)/3.
    assert_eq!(read(&host.after(Duration::from_nanos(483_333_332))), None);
    let id = read(&host.after(Duration::from_nanos(1))).expect("it is asked again");
    host.handle(Event::Hint);
    let again = read(&host.shown(id, 41, held_by("h2", 9, 9))).expect("what came meanwhile is read");
    assert_eq!(read(&host.shown(again, 41, held_by("h2", 9, 9))), None);
    // R and a quarter of m: the next renewal is hinted at a little later than R after this one.
    assert_eq!(read(&host.after(ms(1024))), None);
    let id = read(&host.after(ms(1))).expect("it is read every R");
    host.shown(id, 41, held_by("h2", 9, 9));
    assert_eq!(read(&host.after(ms(999))), None);
    assert!(read(&host.after(ms(1))).is_some(), "without a hint every R");
}

#[test]
fn what_a_proven_replaced_is_asked_for_when_there_is_a_store_to_ask() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 40, held_by("h2", 9, 8));
    let id = read(&host.after(ms(1000))).expect("it is read every R");
    host.shown(id, 41, held_by("h2", 9, 9));
    let id = read(&host.after(ms(1000))).expect("it is read every R");
    let asked = host.shown(id, 42, let_go_by(9, 41));
    assert_eq!(reads_before(&asked), 1, "{asked:?}");
    let (question, revision) = asked
        .iter()
        .find_map(|a| if let Action::Read { id, before: Some(before) } = a { Some((*id, *before)) } else { None })
        .expect("it is asked");
    assert_eq!(revision, Revision(42));
    // Without an answer it is asked again at the pace of failed calls, as long as the store is connected.
    host.handle(Event::Replaced { id: question, answer: None });
    host.handle(Event::StoreDown);
    assert_eq!(reads_before(&host.after(ms(1000))), 0);
    assert_eq!(reads_before(&host.handle(Event::StoreUp)), 1);
}

#[test]
fn a_check_that_a_reload_brings_has_its_time_to_pass() {
    let (mut host, _) = Host::activated();
    host.goes_on(ms(10_000));
    host.handle(Event::Reconfigure(Settings { check_validity: Some(ms(3000)), ..settings() }));
    host.goes_on(ms(2999));
    assert_eq!(host.election.state(), State::Active);
    // A reload that changes something else does not give the check more time.
    let longer = Settings { check_validity: Some(ms(3000)), stop_limit: ms(60_000), ..settings() };
    host.handle(Event::Reconfigure(longer));
    host.goes_on(ms(1));
    assert_eq!(host.election.state(), State::Releasing);
}

#[test]
fn a_shorter_r_hastens_the_next_renewal_which_is_not_called_overdue() {
    let (mut host, _) = Host::activated();
    let waiting = |host: &Host| host.election.waiting(Time::both(host.now));
    let shorter = Settings { timings: Timings::new(ms(250), 8, 1), ..settings() };
    let renewal = loop {
        if let Some(write) = write(&host.after(ms(50))) {
            break write;
        }
    };
    host.won(&renewal);
    host.after(ms(600));
    let sent = host.handle(Event::Reconfigure(shorter.clone()));
    assert_eq!(waiting(&host), None, "it is due since now");
    assert!(write(&sent).is_some(), "it does not wait for the end of the former R");
    host.after(shorter.timings.call_limit());
    assert!(matches!(waiting(&host), Some(Waiting::Renewal { .. })), "the store does not take it");
}

/// An operator's word that a former holder is off answers a fence, and nothing else: the wait by the clock (confirming, K3) goes on.
#[test]
fn a_fence_that_is_answered_before_it_is_asked_for_shortens_no_wait() {
    let mut host = Host::new(Settings { fences: true, ..settings() }, Memory::default(), None);
    let id = host.ready();
    host.shown(id, 0, Content::Absent);
    let claim = host.next_write();
    let instance = claim.record.details.as_ref().expect("of putexd").instance;
    host.won(&claim);
    let until = |host: &Host| match host.election.waiting(Time::both(host.now)) {
        Some(Waiting::Entitlement { until, .. }) => until,
        other => panic!("{other:?}"),
    };
    let before = until(&host);
    for event in [Event::Fenced { instance, result: Ok(()) }, Event::TryAgain] {
        assert!(host.handle(event).is_empty());
        assert_eq!((host.election.state(), until(&host)), (State::Confirming, before));
    }
}

#[test]
fn a_clock_that_jumps_while_the_lock_is_confirmed_has_to_be_proven_harmless_too() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 0, Content::Absent);
    let claim = host.next_write();
    host.won(&claim);
    assert_eq!(host.election.state(), State::Confirming);
    host.wall += ms(1001);
    assert!(write(&host.after(Duration::ZERO)).is_some(), "a renewal is sent at once");
    host.after(Duration::from_nanos(1_933_333_331));
    assert_eq!(host.election.state(), State::Confirming);
    host.after(Duration::from_nanos(1));
    assert_eq!(host.election.state(), State::Standby);
}

/// putexd has lost its list of former holders with its restart. The other hosts need it at the next release.
#[test]
fn an_adopted_tenure_carries_on_who_has_held_the_lock() {
    let memory = Memory { position: Some((a(), Revision(10))), ..Memory::default() };
    let mut host = Host::new(settings(), memory, Some(remembered(ms(102_000), false)));
    let id = host.ready();
    let mut found = held_by("h1", 7, 2);
    let holders = ["h3", "h2", "h1"].map(node);
    if let Content::Record(Record { details: Some(details), .. }) = &mut found {
        details.holders = holders.to_vec();
    }
    let renewal = write(&host.shown(id, 11, found)).expect("it is renewed from what was found");
    assert_eq!((renewal.base, renewal.record.details.expect("of putexd").holders), (Revision(11), holders.to_vec()));
}

#[test]
fn a_lease_that_is_over_is_not_adopted_whether_the_guard_or_the_clock_says_so() {
    let position = Some((a(), Revision(10)));
    let adopted = |deadline, lapsed| {
        let memory = Memory { position: position.clone(), ..Memory::default() };
        Host::new(settings(), memory, Some(remembered(deadline, lapsed)))
    };
    assert_eq!(adopted(ms(102_000), false).election.state(), State::Active);
    for (deadline, lapsed, kill) in
        [(ms(102_000), true, 100_750), (ms(99_000), false, 99_750), (ms(99_000), true, 99_750)]
    {
        let mut host = adopted(deadline, lapsed);
        assert_eq!(host.election.state(), State::Lapsing, "{deadline:?} {lapsed}");
        assert_eq!(kill_at(&host.after(Duration::ZERO)), Some(Time::both(ms(kill))));
    }
}

#[test]
fn a_guard_that_is_gone_holds_up_no_stop_and_nobody_contends_before_it_has_forgotten_the_lease() {
    let (mut host, instance) = Host::activated();
    host.handle(Event::StepDown { reason: "drained".to_owned(), next: None });
    assert_eq!(stops(&host.handle(Event::GuardDown)), 1, "it was asked to close, and will not answer");
    assert_eq!(stops(&host.handle(Event::GuardDown)), 0, "it is stopped once");
    host.handle(Event::StoreDown);
    let lapse = host.after(ms(3000));
    assert_eq!(host.election.state(), State::Lapsing);
    host.handle(Event::Stopped);
    assert_eq!(host.election.state(), State::NoStore);
    let id = read(&host.handle(Event::StoreUp)).expect("the store is asked");
    host.shown(id, 41, held_by("h2", 9, 9));

    host.comes_back(instance, Action::Stop { kill_at: kill_at(&lapse) });
    host.next_write();
}

/// A lease that has just lapsed while its unit runs: the guard was asked to close it, and has not answered.
fn lapsing() -> (Host, Instance, Action) {
    let (mut host, instance) = Host::activated();
    host.handle(Event::StoreDown);
    let deadline = host.election.deadline().expect("it is held");
    host.now = deadline.boot;
    let lapse = host.after(Duration::ZERO);
    let stop = Action::Stop { kill_at: Some(deadline.plus(ms(750))) };
    let asked = [Action::Guard(GuardRequest::Close { instance }), stop.clone()];
    assert_eq!(without_reports(lapse), asked, "the stop does not wait for the gate");
    assert_eq!(host.election.state(), State::Lapsing);
    (host, instance, stop)
}

fn without_reports(actions: Vec<Action>) -> Vec<Action> {
    actions.into_iter().filter(|action| !matches!(action, Action::Report(_))).collect()
}

fn closed(instance: Instance) -> Event {
    Event::GuardDone { instance, done: GuardDone::Closed }
}

fn disarmed(instance: Instance) -> Event {
    Event::GuardDone { instance, done: GuardDone::Disarmed }
}

fn disarm(instance: Instance) -> [Action; 1] {
    [Action::Guard(GuardRequest::Disarm { instance })]
}

#[test]
fn only_a_proof_from_behind_the_closed_gate_ends_a_lapse() {
    let other = Instance(1);
    for early in [true, false] {
        let (mut host, instance, stop) = lapsing();
        if early {
            assert_eq!(host.handle(Event::Stopped), [], "the gate may be open still");
            assert_eq!(host.handle(Event::Stopped), [], "and is not closed by looking twice");
        }
        assert_eq!(host.handle(closed(other)), []);
        assert_eq!(host.handle(closed(instance)), [stop], "what was started meanwhile has no longer to live");
        assert_eq!(host.handle(closed(instance)), [], "it is stopped again once");
        for of in [instance, other] {
            host.handle(disarmed(of));
            assert_eq!(host.election.state(), State::Lapsing, "nobody has asked for that");
        }
        assert_eq!(host.handle(Event::Stopped), disarm(instance));
        assert_eq!(host.handle(closed(instance)), []);
        host.handle(disarmed(other));
        assert_eq!(host.election.state(), State::Lapsing);
        host.handle(disarmed(instance));
        assert_eq!(host.election.state(), State::NoStore);
        assert_eq!(host.handle(disarmed(instance)), []);
    }
}

#[test]
fn a_refusal_to_close_says_that_there_is_nothing_left_to_close() {
    let (mut host, instance, stop) = lapsing();
    let refused = |asked| Event::GuardRefused { instance, asked, reason: "there is no such lease".to_owned() };
    assert_eq!(host.handle(Event::Stopped), []);
    assert_eq!(host.handle(refused(GuardDone::Closed)), [stop]);
    assert_eq!(host.handle(Event::Stopped), disarm(instance));
    host.handle(refused(GuardDone::Disarmed));
    assert_eq!(host.election.state(), State::NoStore);
}

#[test]
fn a_guard_that_never_closes_fences_no_host_on_which_nothing_runs_and_lets_nobody_contend() {
    let (mut host, instance, stop) = lapsing();
    host.handle(Event::Stopped);
    assert_eq!(host.after(ms(60_000)), []);
    let actions = host.handle(Event::StoreUp);
    assert_eq!(host.answered(actions), [], "nothing is read or written in a lapse");
    assert_eq!((host.after(ms(60_000)), host.election.state()), (vec![], State::Lapsing));
    // The guard's answer counts, however late it comes.
    assert_eq!(host.handle(closed(instance)), [stop]);
    assert_eq!(host.handle(Event::Stopped), disarm(instance));
}

#[test]
fn a_guard_that_goes_down_after_an_early_proof_leaves_the_lease_to_be_forgotten_later() {
    let (mut host, instance, stop) = lapsing();
    host.handle(Event::Stopped);
    assert_eq!(alarms(&host.handle(Event::GuardDown)), Vec::<&Alarm>::new());
    assert_eq!(host.election.state(), State::NoStore);
    let actions = host.handle(Event::StoreUp);
    assert_eq!(write(&host.answered(actions)), None);
    let actions = host.after(ms(60_000));
    assert_eq!(alarms(&actions), Vec::<&Alarm>::new());
    assert_eq!(write(&host.answered(actions)), None);
    assert_eq!(host.hindrance().as_deref(), Some("the guard does not answer"));
    assert_eq!(guard(&host.handle(Event::GuardUp)), Some(GuardRequest::Close { instance }));
    assert_eq!(guard(&host.handle(Event::Stopped)), None, "proven before the gate is closed again");
    host.handle(Event::GuardDown);
    host.comes_back(instance, stop);
}

#[test]
fn a_guard_that_goes_down_before_any_proof_leaves_the_unit_to_be_stopped_in_its_budget() {
    for behind in [true, false] {
        let (mut host, instance, stop) = lapsing();
        if behind {
            assert_eq!(host.handle(closed(instance)), std::slice::from_ref(&stop));
        }
        assert_eq!(host.handle(Event::GuardDown), []);
        assert_eq!(host.election.state(), State::Lapsing);
        assert_eq!(alarms(&host.after(ms(999))), Vec::<&Alarm>::new());
        assert_eq!(alarms(&host.after(ms(1))), [&Alarm::StopUnproven]);
        host.handle(Event::Stopped);
        assert_eq!(host.election.state(), State::NoStore);
        host.comes_back(instance, stop);
    }
}

#[test]
fn a_guard_that_comes_back_in_a_lapse_is_asked_what_is_still_to_do() {
    // The same holds whether or not the guard had answered before.
    for behind in [true, false] {
        let (mut host, instance, stop) = lapsing();
        if behind {
            assert_eq!(host.handle(closed(instance)), std::slice::from_ref(&stop));
        }
        host.handle(Event::GuardDown);
        let close = Action::Guard(GuardRequest::Close { instance });
        assert_eq!(host.handle(Event::GuardUp), [close]);
        assert_eq!(host.handle(closed(instance)), if behind { vec![] } else { vec![stop] });
        assert_eq!(host.handle(Event::Stopped), disarm(instance));
        host.handle(Event::GuardDown);
        assert_eq!(host.election.state(), State::Lapsing, "it was proven behind the gate, and is only to be forgotten");
        assert_eq!(host.handle(Event::GuardUp), disarm(instance));
        host.handle(disarmed(instance));
        assert_eq!(host.election.state(), State::NoStore);
    }
}

#[test]
fn a_lease_that_was_left_is_closed_and_the_unit_stopped_again_each_time_the_guard_comes_back() {
    let (mut host, instance, stop) = lapsing();
    host.handle(Event::Stopped);
    host.handle(Event::GuardDown);
    let close = [Action::Guard(GuardRequest::Close { instance })];
    assert_eq!(host.handle(Event::GuardUp), close);
    assert_eq!(stops(&host.handle(closed(instance))), 1);
    host.handle(Event::GuardDown);
    assert_eq!(host.handle(Event::Stopped), [], "there is nobody to tell");
    host.comes_back(instance, stop);
}

#[test]
fn whoever_stood_still_reads_before_it_writes() {
    let instant = Duration::from_nanos(1);
    // The last answered read was sent at 3 s. This host's turn is somewhere from 3003 to 3503 ms on.
    let stood_still = || {
        let mut host = Host::new(settings(), Memory::default(), None);
        let mut id = host.ready();
        let begun = host.now;
        for _ in 0..3 {
            host.shown(id, 41, held_by("h2", 9, 9));
            id = read(&host.after(ms(1000))).expect("it is read every R");
        }
        (host, id, begun)
    };
    // After more than R + m it has to read before it claims. After more than R + call limit + m nobody knows what came
    // before the record that it reads then.
    let watched = ms(3000) + settings().timings.watch_gap();
    for (still, claims, follows) in [
        (ms(4100), true, true),
        (ms(4100) + instant, false, true),
        (watched, false, true),
        (watched + instant, false, false),
        (ms(600_000), false, false),
    ] {
        let (mut host, id, begun) = stood_still();
        assert_eq!(write(&host.shown(id, 41, held_by("h2", 9, 9))), None);
        host.now = begun + still;
        let actions = host.after(Duration::ZERO);
        assert_eq!(write(&actions).is_some(), claims, "after {still:?}");
        if !claims {
            let claim = write(&host.answered(actions));
            assert_eq!(claim.map(|claim| claim.base), follows.then_some(Revision(41)), "after {still:?}");
        }
        if !follows {
            let read = host.now;
            assert_eq!(host.next_write().base, Revision(41));
            assert!(host.now >= read + ms(3003), "it is waited out anew: the store may have gone back to it");
        }
    }
    // The time of sending counts: such an answer may have been on its way while this host stood still.
    let (mut host, id, begun) = stood_still();
    host.now = begun + ms(4100) + instant;
    let actions = host.shown(id, 41, held_by("h2", 9, 9));
    assert_eq!(write(&actions), None);
    assert_eq!(write(&host.answered(actions)), None, "what it reads at once is found as well");
    // The claim is based on what the store has now, and not on what it had before the pause.
    let (mut host, id, _) = stood_still();
    host.shown(id, 41, held_by("h2", 9, 9));
    host.store.push((Revision(43), held_by("h3", 8, 8)));
    let actions = host.after(ms(600_000));
    assert_eq!(write(&host.answered(actions)), None);
    assert_eq!(host.next_write().base, Revision(43));
}

/// A host that follows the lock of h2, with F = 10, until h2 releases it at revision 42. Returns the claim, too.
fn claims_at_once() -> (Host, WriteRequest) {
    let timings = Timings::new(ms(1000), 10, 1);
    // Some former hold was longer than that of any record here.
    let memory = Memory { longest_hold: ms(20_000), ..Memory::default() };
    let mut host = Host::new(Settings { timings, ..settings() }, memory, None);
    let mut id = host.ready();
    for revision in [40, 41] {
        host.shown(id, revision, held_by("h2", 9, revision.into()));
        id = read(&host.after(ms(1000))).expect("it is read every R");
    }
    let actions = host.shown(id, 42, let_go_by(9, 41));
    let claim = write(&host.answered(actions)).expect("it is taken at once");
    assert_eq!(claim.base, Revision(42));
    (host, claim)
}

/// Whether the next write, once it is won, has the guard asked to arm the lease.
fn is_entitled(host: &mut Host, actions: &[Action]) -> bool {
    let Some(second) = write(actions) else { return false };
    matches!(guard(&host.won(&second)), Some(GuardRequest::Arm { .. }))
}

#[test]
fn a_claim_that_is_answered_after_a_gap_waits_as_if_it_were_made_then() {
    let instant = Duration::from_nanos(1);
    let gap = Timings::new(ms(1000), 10, 1).watch_gap();
    assert_eq!(gap, ms(2100));
    for (late, entitled) in [(Duration::ZERO, true), (gap, true), (gap + instant, false), (ms(6000), false)] {
        // The answer to the claim itself is late.
        let (mut host, claim) = claims_at_once();
        host.now += late;
        let actions = host.won(&claim);
        assert_eq!(host.election.state(), State::Confirming);
        assert_eq!(is_entitled(&mut host, &actions), entitled, "{late:?}");
        if !entitled {
            let won = host.now;
            while host.election.state() == State::Confirming {
                host.goes_on(ms(50));
            }
            assert!(host.now >= won + ms(20_000), "whoever came in the gap has its whole time");
        }
        let hold = |write: &WriteRequest| write.record.details.as_ref().expect("of putexd").hold;
        // The outcome of the claim is unknown, and the store shows either the record that the claim was to replace, or
        // the claim itself.
        for applied in [false, true] {
            let (mut host, claim) = claims_at_once();
            let doubt = host.handle(Event::Written { write: claim.write, result: WriteResult::Unknown });
            let id = read(&doubt).expect("the store is asked");
            host.now += late;
            // The read is lost as well, and the next one is answered at once.
            let again = host.handle(Event::Read { id, answer: None });
            let id = read(&again).or_else(|| read(&host.after(ms(500)))).expect("it is asked again");
            let actions = if applied {
                host.shown(id, 43, Content::Record(claim.record.clone()))
            } else {
                host.shown(id, 42, let_go_by(9, 41))
            };
            let next = write(&actions).expect("it goes on");
            assert_eq!(next.base, Revision(if applied { 43 } else { 42 }));
            let actions = host.won(&next);
            let starts = if applied {
                matches!(guard(&actions), Some(GuardRequest::Arm { .. }))
            } else {
                is_entitled(&mut host, &actions)
            };
            assert_eq!(starts, entitled, "{late:?}, applied: {applied}");
            assert_eq!(hold(&next), if entitled { ms(10_900) } else { ms(20_000) });
        }
    }
}

#[test]
fn an_answer_that_was_under_way_while_the_host_stood_still_is_found_and_so_is_the_next() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 40, held_by("h2", 9, 8));
    let id = read(&host.after(ms(1000))).expect("it is read every R");
    // The answer to a read from before the pause comes at the end of the pause. The next answer shows a `proven` that
    // looks like its successor.
    host.now += ms(60_000);
    let actions = host.shown(id, 41, held_by("h2", 9, 9));
    let id = read(&actions).expect("it is read again at once");
    let actions = host.shown(id, 43, let_go_by(9, 42));
    assert_eq!(reads_before(&actions), 0, "what happened in between nobody knows");
    let found = host.now;
    let claim = host.next_write();
    assert!(host.now >= found + ms(3003) && claim.base == Revision(43));
    host.won(&claim);
    while host.election.state() == State::Confirming {
        host.goes_on(ms(50));
    }
    assert!(host.now >= found + ms(4000));
}

#[test]
fn what_the_store_says_of_a_proven_after_a_pause_entitles_nobody_before_it_is_read_again() {
    for (still, claims) in [(ms(1100), true), (ms(1101), false), (ms(60_000), false)] {
        let mut host = Host::new(settings(), Memory::default(), None);
        let mut id = host.ready();
        for revision in [40, 41] {
            host.shown(id, revision, held_by("h2", 9, revision.into()));
            id = read(&host.after(ms(1000))).expect("it is read every R");
        }
        let asked = host.shown(id, 42, let_go_by(9, 41));
        let question =
            asked.iter().find_map(|a| if let Action::Read { id, before: Some(_) } = a { Some(*id) } else { None });
        host.now += still;
        let answer = Some(Observation { incarnation: a(), revision: Revision(41), content: held_by("h2", 9, 41) });
        let actions = host.handle(Event::Replaced { id: question.expect("it is asked"), answer });
        assert_eq!(write(&actions).is_some(), claims, "{still:?}");
        if still == ms(60_000) {
            let read = host.now;
            assert_eq!(write(&host.answered(actions)), None);
            host.next_write();
            assert!(host.now >= read + ms(3003));
        }
    }
}

#[test]
fn a_hand_over_is_immediate_though_a_read_is_lost_and_its_hint_as_well() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let mut id = host.ready();
    for revision in [40, 41] {
        host.now += ms(20);
        host.shown(id, revision, held_by("h2", 9, revision.into()));
        assert_eq!(read(&host.after(ms(979))), None);
        id = read(&host.after(ms(1))).expect("it is sent R after the one before");
    }
    let limit = settings().timings.call_limit();
    host.now += limit;
    let lost = host.handle(Event::Read { id, answer: None });
    let id = read(&lost).expect("it was waited for already, and is made again at once");
    host.now += ms(20);
    let actions = host.shown(id, 42, let_go_by(9, 41));
    let claim = write(&host.answered(actions)).expect("it is taken at once");
    let actions = host.won(&claim);
    assert!(is_entitled(&mut host, &actions));
}

#[test]
fn a_write_that_was_won_and_a_read_that_showed_an_older_record_were_watched_when_they_were_sent() {
    // The last renewal of a holder is answered late, and its lease ends before the next renewal.
    let (mut host, instance) = Host::activated();
    let renewal = host.next_write();
    let sent = host.now;
    host.now += ms(900);
    host.won(&renewal);
    let deadline = Time::both(sent).plus(settings().timings.deadline_after());
    host.handle(Event::GuardDone { instance, done: GuardDone::Extended(deadline) });
    host.now = deadline.boot;
    host.after(Duration::ZERO);
    assert_eq!(host.election.state(), State::Lapsing);
    host.handle(closed(instance));
    host.handle(Event::Stopped);
    let id = read(&host.handle(disarmed(instance))).expect("the store is asked");
    let from = renewal.base.0 + 1;
    assert_eq!(reads_before(&host.shown(id, from + 2, let_go_by(9, from + 1))), 0, "it is found");

    // A contender's claim conflicts, and then the store shows that it has gone back.
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    let claim = host.next_write();
    let conflict = Event::Written { write: claim.write, result: WriteResult::Conflict };
    let id = read(&host.handle(conflict)).expect("the store is asked what is there");
    let sent = host.now;
    host.now += ms(900);
    let id = read(&host.shown(id, 40, held_by("h3", 8, 8))).expect("it is read again");
    host.now = sent + settings().timings.watch_gap() + Duration::from_nanos(1);
    assert_eq!(reads_before(&host.shown(id, 42, let_go_by(8, 41))), 0, "it is found");
}

#[test]
fn a_standby_whose_clock_jumps_has_not_watched() {
    for (by, follows) in [(ms(1000), true), (ms(1001), false)] {
        let mut host = Host::new(settings(), Memory::default(), None);
        let mut id = host.ready();
        for revision in [40, 41] {
            host.shown(id, revision, held_by("h2", 9, revision.into()));
            id = read(&host.after(ms(1000))).expect("it is read every R");
        }
        // As if the whole machine, and both clocks with it, had stood still.
        host.wall += by;
        let actions = host.shown(id, 42, let_go_by(9, 41));
        assert_eq!(write(&host.answered(actions)).is_some(), follows);
    }
}

#[test]
fn a_conflict_and_a_lower_revision_are_a_regression_at_once_and_told_once() {
    // The holder has written at least revisions 1 and 2.
    let (mut host, _) = Host::activated();
    let from = host.election.revision();
    let renewal = host.next_write();
    let conflict = Event::Written { write: renewal.write, result: WriteResult::Conflict };
    let id = read(&host.handle(conflict)).expect("the store is asked what is there");
    let lapse = host.shown(id, 1, held_by("h2", 9, 9));
    assert_eq!(host.election.state(), State::Lapsing);
    assert_eq!(alarms(&lapse), [&Alarm::Regression { from, to: Revision(1) }]);
    assert!(kill_at(&lapse).is_some());
    assert_eq!((host.election.holder(), host.election.revision()), ("h2", Revision(1)));

    // A conflict alone means another host's record. An unknown outcome with a lower revision is the answer of a deposed
    // leader.
    for (result, shown, state) in [
        (WriteResult::Conflict, from.0 + 1, State::Lapsing),
        (WriteResult::Conflict, from.0, State::Lapsing),
        (WriteResult::Unknown, 1, State::Active),
    ] {
        let (mut host, _) = Host::activated();
        let renewal = host.next_write();
        let id = read(&host.handle(Event::Written { write: renewal.write, result })).expect("the store is asked");
        let actions = host.shown(id, shown, held_by("h2", 9, 9));
        assert_eq!((alarms(&actions), host.election.state()), (vec![], state), "{result:?} {shown}");
    }

    // A contender has to wait out everything anew, and reports the regression as well.
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    let claim = host.next_write();
    let conflict = Event::Written { write: claim.write, result: WriteResult::Conflict };
    let id = read(&host.handle(conflict)).expect("the store is asked what is there");
    let told = host.shown(id, 40, held_by("h3", 8, 8));
    let told = host.answered(told);
    assert_eq!(alarms(&told), [&Alarm::Regression { from: Revision(41), to: Revision(40) }]);
    let seen = host.now;
    assert_eq!(host.election.state(), State::Standby);
    assert_eq!(host.next_write().base, Revision(40));
    assert!(host.now >= seen + ms(3003), "T·(1+ρ) from then on");
}

#[test]
fn a_unit_that_was_started_before_the_gate_was_closed_has_to_be_proven_dead_as_well() {
    // The limits are as for a host that wakes late: at least k, and all of S once it is over. Without an early proof
    // the budget does not begin anew.
    for (early, late, due) in [
        (true, 0, 1000),
        (true, 900, 1150),
        (true, 999, 1249),
        (true, 1000, 2000),
        (true, 60_000, 61_000),
        (false, 0, 1000),
        (false, 900, 1000),
    ] {
        let (mut host, instance, stop) = lapsing();
        if early {
            host.handle(Event::Stopped);
        }
        assert_eq!(host.after(ms(late)), []);
        assert_eq!(host.handle(closed(instance)), std::slice::from_ref(&stop));
        assert_eq!(host.handle(Event::GuardDown), []);
        assert_eq!(host.election.state(), State::Lapsing, "a stop is under way");
        assert_eq!(host.election.poll_timeout(), Some(Time::both(host.now + ms(due - late))));
        assert_eq!(alarms(&host.after(ms(due - late - 1))), Vec::<&Alarm>::new(), "{early} {late}");
        assert_eq!(alarms(&host.after(ms(1))), [&Alarm::StopUnproven], "{early} {late}");
        host.handle(Event::Stopped);
        assert_eq!(host.election.state(), State::NoStore);
        host.comes_back(instance, stop);
    }
}

#[test]
fn what_is_started_after_an_early_proof_has_no_longer_to_live_than_the_lease_had() {
    // Another host's record is seen before the deadline. The gate stays open because the guard hangs, and somebody starts
    // the unit.
    let (mut host, instance) = Host::activated();
    let renewal = host.next_write();
    let conflict = Event::Written { write: renewal.write, result: WriteResult::Conflict };
    let id = read(&host.handle(conflict)).expect("the store is asked what is there");
    let kills = kill_at(&host.shown(id, renewal.base.0 + 1, held_by("h2", 9, 9))).expect("it is stopped");
    assert_eq!(kills, Time::both(host.now + ms(750)));
    host.handle(Event::Stopped);
    host.now += ms(1000);
    host.handle(Event::GuardDown);
    host.now += ms(500);
    let stray = host.handle(Event::Unit(ObservedUnit::Alive));
    assert_eq!((alarms(&stray), kill_at(&stray)), (vec![&Alarm::StrayUnit], Some(kills)));
    host.handle(Event::Stopped);
    host.handle(Event::GuardUp);
    assert_eq!(kill_at(&host.handle(closed(instance))), Some(kills));
}

#[test]
fn a_unit_that_is_seen_alive_before_the_gate_is_closed_is_stopped_again_at_once() {
    let (mut host, instance, stop) = lapsing();
    assert_eq!(host.handle(Event::Unit(ObservedUnit::Alive)), [], "it is being stopped");
    host.handle(Event::Stopped);
    assert_eq!(host.handle(Event::Unit(ObservedUnit::Dead { result: "success".to_owned(), failed: false })), []);
    host.now += ms(900);
    assert_eq!(
        host.handle(Event::Unit(ObservedUnit::Alive)),
        std::slice::from_ref(&stop),
        "the guard may never answer"
    );
    assert_eq!(host.handle(Event::Unit(ObservedUnit::Alive)), []);
    assert_eq!(host.handle(Event::GuardDown), []);
    assert_eq!(host.election.state(), State::Lapsing);
    assert_eq!(alarms(&host.after(ms(249))), Vec::<&Alarm>::new());
    assert_eq!(alarms(&host.after(ms(1))), [&Alarm::StopUnproven]);
    host.handle(Event::Stopped);
    host.comes_back(instance, stop);
}

/// A host that takes an absent key. The answer to its claim has not come yet.
fn taking_over() -> (Host, Box<WriteRequest>) {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    let actions = host.shown(id, 0, Content::Absent);
    let mut actions = host.answered(actions);
    for _ in 0..200 {
        if let Some(write) = write(&actions) {
            return (host, Box::new(write));
        }
        actions = host.after(ms(100));
        actions = host.answered(actions);
    }
    panic!("it never claims the lock: {}", host.election.state());
}

/// A host whose claim is won. The store is asked about the unit after the win, and not before.
fn claimed() -> (Host, Instance) {
    let (mut host, claim) = taking_over();
    let revision = Revision(claim.base.0 + 1);
    host.store.push((revision, Content::Record(claim.record.clone())));
    let actions = host.handle_unvetted(Event::Written { write: claim.write, result: WriteResult::Won(revision) });
    let asked: Vec<Instance> = actions.iter().filter_map(vetting).collect();
    let instance = claim.record.instance().expect("of putexd");
    assert_eq!(asked, [instance]);
    (host, instance)
}

fn vetting(action: &Action) -> Option<Instance> {
    if let Action::Vet { instance } = action { Some(*instance) } else { None }
}

/// Wins all renewals for `span`. Returns whether the guard was asked to arm the lease, and how many writes were sent.
fn renews(host: &mut Host, span: Duration) -> (bool, usize) {
    let (until, mut armed, mut writes) = (host.now + span, false, 0);
    while host.now < until {
        let actions = host.after(ms(50));
        let mut actions = host.answered(actions);
        while let Some(write) = write(&actions) {
            writes += 1;
            actions = host.won(&write);
            armed |= guard(&actions).is_some();
        }
        armed |= guard(&actions).is_some();
    }
    (armed, writes)
}

#[test]
fn nothing_is_started_before_the_store_has_said_that_the_unit_is_run_under_this_lock() {
    let (mut host, instance) = claimed();
    // The host has been entitled for long, and renews at its usual pace meanwhile.
    let (armed, writes) = renews(&mut host, ms(20_000));
    assert!(!armed && (15..=45).contains(&writes), "{armed}, {writes} writes");
    assert_eq!(host.election.state(), State::Confirming);
    // A vetting of another tenure does not count for this one.
    host.handle(Event::Vetted { instance: Instance(1), result: Ok(()) });
    assert!(!renews(&mut host, ms(3000)).0);
    host.handle(Event::Vetted { instance: Instance(1), result: Err("of another".to_owned()) });
    assert_eq!(host.election.state(), State::Confirming);
    let armed_at_once = guard(&host.handle(Event::Vetted { instance, result: Ok(()) })).is_some();
    assert!(armed_at_once || renews(&mut host, ms(1000)).0, "it is armed");
    assert_eq!(host.election.state(), State::Starting);
    // A second answer comes too late to change anything.
    host.handle(Event::Vetted { instance, result: Err("too late".to_owned()) });
    assert_eq!(host.election.state(), State::Starting);
}

#[test]
fn whoever_is_refused_after_its_claim_lets_the_record_age_and_waits_before_the_next() {
    let (mut host, instance) = claimed();
    let actions = host.handle(Event::Vetted { instance, result: Err("it is run under another key".to_owned()) });
    assert_eq!((host.election.state(), write(&actions)), (State::Standby, None));
    assert!(host.hindrance().is_some_and(|why| why.contains("since something failed: it is run under another key")));
    let (armed, writes) = renews(&mut host, ms(1900));
    assert!(!armed && writes == 0, "{armed}, {writes} writes");
}

/// A host that sees h2's record at revision 41, which h2 does not renew any more: the lock may be taken soon.
fn about_to_take() -> Host {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    for _ in 0..58 {
        let actions = host.after(ms(50));
        assert_eq!(write(&host.answered(actions)), None);
    }
    host
}

/// Answers all reads with `content` at `revision` from now on. Returns the first claim, and after how long it came.
fn claims_within(mut host: Host, revision: u64, content: &Content, span: Duration) -> Option<(WriteRequest, Duration)> {
    let since = host.now;
    while host.now < since + span {
        for action in host.after(ms(50)) {
            match action {
                Action::Write(write) => return Some((*write, host.now.saturating_sub(since))),
                Action::Read { id, before: None } => {
                    let content = content.clone();
                    let answer = Some(Observation { incarnation: a(), revision: Revision(revision), content });
                    if let Some(write) = write(&host.handle(Event::Read { id, answer })) {
                        return Some((write, host.now.saturating_sub(since)));
                    }
                }
                Action::Vet { .. }
                | Action::Read { .. }
                | Action::Guard(_)
                | Action::Fence { .. }
                | Action::Unfence { .. }
                | Action::Start { .. }
                | Action::Stop { .. }
                | Action::Persist(_)
                | Action::Report(_)
                | Action::Alarm(_) => {}
            }
        }
    }
    None
}

#[test]
fn a_store_that_went_back_and_grew_to_the_same_revision_shows_a_new_record() {
    let (_, after) = claims_within(about_to_take(), 41, &held_by("h2", 9, 9), ms(5000)).expect("it is taken");
    assert!(after < ms(1000), "after {after:?}");
    // Another host's record at the same revision was never seen before, however long the former record was.
    let (claim, after) = claims_within(about_to_take(), 41, &held_by("h3", 8, 8), ms(8000)).expect("it is taken");
    assert!(claim.base == Revision(41) && after > ms(3000), "after {after:?}");
}

#[test]
fn nobody_claims_on_what_it_saw_while_the_store_shows_a_lower_revision() {
    let (claim, after) = claims_within(about_to_take(), 40, &held_by("h3", 8, 8), ms(8000)).expect("it is taken");
    assert!(claim.base == Revision(40) && after > ms(3000), "after {after:?}, at {:?}", claim.base);
}

/// In seconds: 2026, below which no clock of a host is believed, and ten years.
const EARLIEST: u64 = 1_767_225_600;
const TEN_YEARS: u64 = 315_576_000;

fn with_term(token: u64, instance: u128) -> Content {
    let mut found = held_by("h2", instance, instance);
    if let Content::Record(Record { details: Some(details), .. }) = &mut found {
        details.token = FencingToken(token);
    }
    found
}

#[test]
fn whatever_is_put_over_a_lock_is_taken_within_the_lease_and_nothing_of_it_stays() {
    for hostile::Hostile { name, value } in hostile::values() {
        let record = Record::decode(&value);
        let mut host = Host::new(settings(), Memory::default(), None);
        let id = host.ready();
        let actions = host.shown(id, 41, held_by("h2", 9, 9));
        assert!(alarms(&actions).is_empty(), "{name}: {actions:?}");
        let id = read(&host.after(ms(1000))).expect("the store is asked");
        let actions = host.shown(id, 42, Content::Record(record.clone()));
        // A fencing token that is out of reach is detected by the election alone, and not by the decoding.
        let is_odd = record.oddity.is_some() || name == "a token of 2^64-1";
        let told = matches!(alarms(&actions)[..], [Alarm::OddRecord { .. }]);
        assert_eq!((told, alarms(&actions).len()), (is_odd, usize::from(is_odd)), "{name}: {actions:?}");

        let since = host.now;
        let claim = host.next_write();
        let timings = settings().timings;
        assert!(host.now.saturating_sub(since) <= timings.lease() + timings.renew_interval, "{name}: too late");
        let Details { lease, hold, token, .. } = claim.record.details.clone().expect("of putexd");
        assert_eq!((lease, hold), (ms(3000), ms(3900)), "{name}");
        assert!(token <= FencingToken(EARLIEST + 1), "{name}: {token}");
        let memory = host.election.memory();
        assert!(memory.longest_hold <= ms(3900) && memory.token <= token, "{name}: {memory:?}");
        host.won(&claim);
        let entitled = host.goes_on(timings.wait(ms(3900)) + ms(100));
        assert!(matches!(guard(&entitled), Some(GuardRequest::Arm { .. })), "{name}: {entitled:?}");
    }
}

#[test]
fn the_operator_hears_of_odd_records_once_in_a_lease_however_often_they_are_written() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let mut id = host.ready();
    let mut heard = 0;
    for round in 0..60 {
        heard += alarms(&host.shown(id, 41 + round, with_term(u64::MAX, round.into()))).len();
        host.now += ms(100);
        id = read(&host.handle(Event::Hint)).expect("the store is asked");
    }
    assert_eq!(heard, 2, "in 6 s");
}

#[test]
fn a_fencing_token_at_the_limit_is_believed_by_whoever_has_seen_the_one_before() {
    let believes = |host: &Host| host.election.memory().token;
    let limit = EARLIEST + TEN_YEARS;
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, with_term(limit, 9));
    assert_eq!(believes(&host), FencingToken(limit));
    // The next tenures follow each other more quickly than this clock advances.
    let id = read(&host.after(ms(1000))).expect("the store is asked");
    host.shown(id, 42, with_term(limit + 5, 10));
    assert_eq!(believes(&host), FencingToken(limit + 5));
    // A host that sees only a later token, without those in between, does not believe it, and goes on from the token that
    // it knows.
    let id = read(&host.after(ms(1000))).expect("the store is asked");
    let actions = host.shown(id, 43, with_term(limit + 1_000_000, 11));
    assert!(matches!(alarms(&actions)[..], [Alarm::OddRecord { .. }]), "{actions:?}");
    assert_eq!(believes(&host), FencingToken(limit + 5));
    let token = host.next_write().record.details.expect("of putexd").token;
    assert_eq!(token, FencingToken(limit + 6));
}

#[test]
fn a_host_whose_clock_was_lost_believes_the_fencing_tokens_of_the_others() {
    let today = 1_795_000_000;
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    let actions = host.shown(id, 41, with_term(today, 9));
    assert_eq!((alarms(&actions).len(), host.election.memory().token), (0, FencingToken(today)));
    assert_eq!(host.next_write().record.details.expect("of putexd").token, FencingToken(today + 1));
}

#[test]
fn a_clock_that_is_set_back_by_years_costs_no_holder_its_own_record() {
    let mut host = Host::new(settings(), Memory::default(), None);
    // The year 2040.
    host.wall = Duration::from_secs(2_208_988_800);
    host.activate();
    host.wall = Duration::from_secs(1_000_000);
    let jump = host.after(ms(50));
    let renewal = write(&host.answered(jump)).unwrap_or_else(|| host.next_write());
    let actions = host.handle(Event::Written { write: renewal.write, result: WriteResult::Unknown });
    host.store.push((Revision(renewal.base.0 + 1), Content::Record(renewal.record.clone())));
    let others = host.answered(actions);
    assert_eq!(host.election.state(), State::Active);
    assert!(!alarms(&others).iter().any(|alarm| matches!(alarm, Alarm::OddRecord { .. })), "{others:?}");
}

proptest! {
    #[test]
    fn whatever_tokens_are_shown_to_whatever_clock_ones_own_grows_and_stays_possible(
        shown in proptest::collection::vec((any::<u64>(), 0_u32..64, 0_u64..8_000_000_000), 1..12),
    ) {
        let mut host = Host::new(settings(), Memory::default(), None);
        let mut id = host.ready();
        let mut latest = FencingToken(0);
        let mut highest = EARLIEST + TEN_YEARS;
        for (revision, (token, smaller, wall)) in (41..).zip(shown) {
            host.wall = Duration::from_secs(wall);
            // The clock of the host sets a limit as well, and each step may add a little to it.
            highest = highest.max(wall + TEN_YEARS + 1_000_000) + (1 << 16);
            host.shown(id, revision, with_term(token >> smaller, u128::from(revision)));
            let seen = host.election.memory().token;
            prop_assert!(seen >= latest && seen.0 <= highest, "{seen} after {latest}, at most {highest}");
            latest = seen;
            host.now += ms(1000);
            let actions = host.handle(Event::Hint);
            id = read(&actions).or_else(|| read(&host.after(ms(1000)))).expect("the store is asked");
        }
        host.handle(Event::Read { id, answer: None });
        let token = host.next_write().record.details.expect("of putexd").token;
        prop_assert!(token > latest && token.0 <= highest + 1_000_000, "{token} after {latest}");
    }
}

#[test]
fn only_hosts_that_are_configured_or_have_held_the_lock_are_fenced() {
    let confirming = |hosts: &[&str]| {
        let mut found = held_by("h2", 9, 9);
        if let Content::Record(Record { details: Some(details), .. }) = &mut found {
            details.standing = Standing::Confirming;
            details.unfenced = hosts.iter().map(|host| node(host)).collect();
            details.holders = ["h4", "h2"].map(node).to_vec();
        }
        found
    };
    let foreign = |token: &str| Content::Record(Record::new(Holder::decode(token.as_bytes()), None));
    let fenced = |configured: &[&str], shown: Vec<Content>| {
        let fence_hosts = configured.iter().map(|host| node(host)).collect();
        let mut host = Host::new(Settings { fences: true, fence_hosts, ..settings() }, Memory::default(), None);
        let mut id = host.ready();
        for (revision, content) in (41..).zip(shown) {
            host.shown(id, revision, content);
            id = read(&host.after(ms(1000))).expect("the store is asked");
        }
        host.handle(Event::Read { id, answer: None });
        let (mut claim, mut left) = (None, Vec::new());
        for _ in 0..200 {
            if claim.is_some() {
                break;
            }
            let actions = host.after(ms(100));
            let actions = host.answered(actions);
            left.extend(alarms(&actions).iter().filter_map(|alarm| {
                if let Alarm::NotToBeFenced { hosts } = alarm { Some(hosts.join(" ")) } else { None }
            }));
            claim = write(&actions);
        }
        let unfenced = claim.and_then(|claim| claim.record.details).expect("of putexd").unfenced;
        (unfenced.iter().map(NodeId::to_string).collect::<Vec<_>>().join(" "), left.join(" "))
    };
    let said = |fenced: &str, left: &str| (fenced.to_owned(), left.to_owned());
    // Without a configured list, the hosts that have held the lock are fenced.
    assert_eq!(fenced(&[], vec![confirming(&["h9", "h4"])]), said("h4 h2", "h9"));
    // With a list, the hosts in it are fenced and no others.
    assert_eq!(fenced(&["h1", "h4"], vec![confirming(&["h9", "h4"])]), said("h4", "h9 h2"));
    assert_eq!(fenced(&["h1", "h2"], vec![held_by("h2", 8, 8)]), said("h2", ""));
    // A value that is put over a holder's record does not save that holder from being fenced.
    assert_eq!(fenced(&[], vec![held_by("h2", 8, 8), foreign("h9")]), said("h2", "h9"));
    assert_eq!(fenced(&["h1", "h2", "h9"], vec![held_by("h2", 8, 8), foreign("h9")]), said("h2 h9", ""));
    assert_eq!(fenced(&[], vec![held_by("h2", 8, 8), foreign("h9\n")]), said("h2", "h9"));
    assert_eq!(fenced(&[], vec![held_by("h2", 8, 8), foreign("x\ny")]), said("h2", "x\\ny"));
    // A holder whose unit was shown dead need not be fenced.
    assert_eq!(fenced(&[], vec![held_by("h2", 8, 8), let_go_by(8, 41), foreign("h9")]), said("", "h9"));
}

/// Times from now at which renewals are sent within `span`, with a store that answers at once.
fn renewals(host: &mut Host, span: Duration) -> Vec<Duration> {
    let began = host.now;
    let mut sent = Vec::new();
    while host.now < began + span {
        let actions = host.after(ms(5));
        if let Some(write) = write(&actions) {
            sent.push(host.now.saturating_sub(began));
            let extended = host.won(&write);
            if let Some(GuardRequest::Extend { instance, deadline, .. }) = guard(&extended) {
                host.handle(Event::GuardDone { instance, done: GuardDone::Extended(deadline) });
            }
        }
    }
    sent
}

/// Checks that the renewals of these hosts are spread over R, and that no renewal comes later than R after the one
/// before.
fn assert_spread(hosts: &mut [Host], since: &str) {
    let mut times = Vec::new();
    for host in hosts.iter_mut() {
        let sent = renewals(host, ms(5000));
        let apart: Vec<Duration> = sent.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
        // The first renewal comes after what is left of R, which is random, or after R.
        assert!(sent[0] <= ms(1005), "{since}: {sent:?}");
        assert!(apart.iter().all(|apart| *apart <= ms(1005)), "{since}: {sent:?}");
        let regular = apart[1..].iter().all(|apart| *apart >= ms(995));
        assert!(regular, "{since}: one renewal comes early, and no other: {sent:?}");
        times.push(sent[2].as_millis() % 1000);
    }
    for tenth in 0..10 {
        let count = times.iter().filter(|time| **time / 100 == tenth).count();
        assert!((1..=10).contains(&count), "{since}: {count} of {} in tenth {tenth} of R", times.len());
    }
}

#[test]
fn renewals_of_services_that_began_together_or_were_in_doubt_together_are_spread_over_r() {
    let mut hosts: Vec<Host> = (0..40_u128)
        .map(|number| {
            let mut host = Host::new(settings(), Memory::default(), None);
            host.random = (number << 123 | number << 118) + 100;
            host.activate();
            host
        })
        .collect();
    assert_spread(&mut hosts, "a start");
    for host in &mut hosts {
        let sent = loop {
            if let Some(write) = write(&host.after(ms(5))) {
                break write;
            }
        };
        host.handle(Event::Written { write: sent.write, result: WriteResult::Unknown });
    }
    // The store comes back for all hosts at the same moment.
    let back = hosts.iter().map(|host| host.now).max().expect("a host");
    for host in &mut hosts {
        host.now = back;
        let id = read(&host.handle(Event::StoreUp)).expect("what is in doubt is read");
        let (revision, content) = host.store.last().cloned().expect("a record");
        let write = write(&host.shown(id, revision.0, content)).expect("a renewal");
        let extended = host.won(&write);
        let Some(GuardRequest::Extend { instance, deadline, .. }) = guard(&extended) else { panic!("{extended:?}") };
        host.handle(Event::GuardDone { instance, done: GuardDone::Extended(deadline) });
    }
    assert_spread(&mut hosts, "an outage");
}

#[test]
fn a_standby_reads_once_for_each_renewal_that_is_hinted_at() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 9, held_by("h2", 9, 9));
    let id = read(&host.handle(Event::Hint)).expect("the renewal is read");
    host.shown(id, 10, held_by("h2", 9, 10));
    let mut reads = 0;
    for renewal in 11..31_u64 {
        // The renewal comes a little later than R after the one before, because it takes time to be sent and to be
        // noticed.
        for _ in 0..202 {
            if let Some(id) = read(&host.after(ms(5))) {
                reads += 1;
                host.shown(id, renewal - 1, held_by("h2", 9, u128::from(renewal - 1)));
            }
        }
        let id = read(&host.handle(Event::Hint)).expect("the renewal is read");
        reads += 1;
        host.shown(id, renewal, held_by("h2", 9, u128::from(renewal)));
    }
    assert_eq!(reads, 20);
    let last = host.now;
    host.until_asked();
    assert!(host.now.saturating_sub(last) <= ms(1050), "without a hint it reads all the same");
}

fn stop() -> Word {
    Word::new("root@h1", "disk is full", 1_700_000_000, None)
}

fn details(write: &WriteRequest) -> Details {
    write.record.details.clone().expect("of putexd")
}

const STOPPED: &str = "stopped everywhere by root@h1: disk is full";

/// A standby that has followed a release and had it verified, and is hindered by nothing but its own check.
fn standby_at_a_release() -> Host {
    let mut host = Host::new(Settings { checks_standby: true, ..settings() }, Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    let id = host.until_asked();
    let actions = host.shown(id, 42, let_go_by(9, 41));
    assert_eq!(write(&host.answered(actions)), None);
    host
}

#[test]
fn a_holder_that_is_told_to_stop_says_so_at_once_and_in_its_release() {
    let (mut host, instance) = Host::activated();
    let actions = host.handle(Event::Stop(stop()));
    let told = write(&actions).expect("it is told at once");
    assert_eq!((details(&told).note.stopped, details(&told).standing), (Some(stop()), Standing::Active));
    assert_eq!(guard(&actions), Some(GuardRequest::Close { instance }));
    host.won(&told);
    host.handle(Event::GuardDone { instance, done: GuardDone::Closed });
    host.handle(Event::Stopped);
    let blank = write(&host.handle(Event::GuardDone { instance, done: GuardDone::Disarmed })).expect("a blank");
    assert_eq!((details(&blank).note.stopped, details(&blank).standing), (Some(stop()), Standing::Proven));
    let actions = host.won(&blank);
    assert_eq!(write(&host.answered(actions)), None);
    assert_eq!(host.hindrance().as_deref(), Some(STOPPED));
    let quiet = host.goes_on(ms(60_000));
    assert_eq!(host.answered(quiet), [], "nobody claims it");
    let actions = host.handle(Event::StartAgain);
    let freed = write(&actions).unwrap_or_else(|| host.next_write());
    assert_eq!((details(&freed).note.stopped, details(&freed).standing), (None, Standing::Proven));
}

/// Without the store the word outlives the tenure in which it was said.
#[test]
fn a_stop_that_the_store_did_not_hear_of_is_told_to_whoever_holds_the_lock_then() {
    let (mut host, instance) = Host::activated();
    host.handle(Event::StoreDown);
    host.handle(Event::Stop(stop()));
    host.handle(Event::GuardDone { instance, done: GuardDone::Closed });
    host.handle(Event::Stopped);
    host.handle(Event::GuardDone { instance, done: GuardDone::Disarmed });
    host.after(ms(20_000));
    assert_eq!(host.election.state(), State::NoStore);
    let id = read(&host.handle(Event::StoreUp)).expect("the store is asked");
    let told = write(&host.shown(id, 50, held_by("h2", 9, 9))).expect("it is told");
    assert_eq!((told.base, details(&told).note.stopped), (Revision(50), Some(stop())));
}

#[test]
fn a_verified_release_is_written_anew_with_the_word_and_stays_one() {
    let mut host = standby_at_a_release();
    let stopped = write(&host.handle(Event::Stop(stop()))).expect("it is told at once");
    let before = let_go_by(9, 41);
    let before = before.record().and_then(|record| record.details.clone()).expect("of putexd");
    assert_eq!(stopped.base, Revision(42));
    let told = details(&stopped);
    assert_eq!((told.instance, told.standing), (before.instance, Standing::Proven));
    assert_eq!((told.prev, told.note.stopped.clone()), (Some((Revision(42), Some(before.instance))), Some(stop())));
    assert_ne!(told.write, before.write);
    let actions = host.won(&stopped);
    host.answered(actions);
    host.handle(Event::StandbyCheck(Ok(())));
    assert_eq!(host.hindrance().as_deref(), Some(STOPPED));
    // Taken back, the release entitles at once again.
    let actions = host.handle(Event::StartAgain);
    let freed = write(&actions).expect("it is told at once");
    assert_eq!((freed.base, details(&freed).note.stopped), (Revision(43), None));
    let actions = host.won(&freed);
    let mut actions = host.answered(actions);
    let mut since = ms(0);
    while write(&actions).is_none() {
        since += ms(10);
        let more = host.after(ms(10));
        actions = host.answered(more);
    }
    assert!(since < ms(500), "it waits for its turn alone: {since:?}");
    let claim = write(&actions).expect("a claim");
    assert_eq!((details(&claim).standing, details(&claim).note.stopped), (Standing::Confirming, None));
    assert_eq!(details(&claim).hold, settings().timings.hold(), "nobody is waited for");
}

#[test]
fn words_on_a_held_record_change_nothing_else_and_its_holder_obeys() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    let told = write(&host.handle(Event::Stop(stop()))).expect("it is told at once");
    let Content::Record(held) = held_by("h2", 9, 9) else { panic!("a record") };
    let mut expected = held;
    expected.details.as_mut().expect("of putexd").note.stopped = Some(stop());
    assert_eq!((told.base, &told.record), (Revision(41), &expected));
    // It conflicts: the holder has renewed, and is told again.
    let actions = host.handle(Event::Written { write: told.write, result: WriteResult::Conflict });
    let id = read(&actions).expect("it looks");
    host.shown(id, 42, held_by("h2", 9, 10));
    let again = host.next_write();
    assert_eq!((again.base, again.record.write()), (Revision(42), Some(WriteId(10))));
    host.won(&again);
    assert_eq!(host.hindrance().as_deref(), Some(STOPPED));

    let (mut holder, instance) = Host::activated();
    let renewal = holder.next_write();
    let (revision, content) = holder.store.last().cloned().expect("its record");
    let Content::Record(mut record) = content else { panic!("a record") };
    record.details.as_mut().expect("of putexd").note.stopped = Some(stop());
    let actions = holder.handle(Event::Written { write: renewal.write, result: WriteResult::Conflict });
    let id = read(&actions).expect("it looks");
    let actions = holder.shown(id, revision.0 + 1, Content::Record(record));
    assert_eq!(guard(&actions), Some(GuardRequest::Close { instance }), "{actions:?}");
    assert_eq!(holder.election.state(), State::Releasing);
    assert_eq!(write(&actions).map(|write| write.base), Some(Revision(revision.0 + 1)));
}

#[test]
fn a_lock_without_a_record_is_taken_told_so_and_left() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.handle(Event::Contend(Err("drained".to_owned())));
    host.shown(id, 0, Content::Absent);
    assert_eq!(write(&host.handle(Event::Stop(stop()))), None, "it may not take the lock");
    host.handle(Event::Contend(Ok(())));
    let claim = host.next_write();
    assert_eq!((details(&claim).standing, details(&claim).note.stopped), (Standing::Confirming, Some(stop())));
    assert_eq!(write(&host.won(&claim)), None);
    assert_eq!(host.election.state(), State::Standby);
    assert_eq!(host.hindrance().as_deref(), Some(STOPPED));
    let quiet = host.after(ms(60_000));
    assert_eq!(write(&host.answered(quiet)), None);
}

#[test]
fn a_stop_with_an_end_is_over_by_the_clock_of_each_host() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    let mut content = held_by("h2", 9, 9);
    let now = host.now + host.wall;
    if let Content::Record(Record { details: Some(details), .. }) = &mut content {
        details.note.stopped = Some(Word::new("root@h1", "", 1, Some(now.as_secs() + 30)));
    }
    host.shown(id, 41, content);
    let since = host.now;
    let claim = host.next_write();
    assert!(host.now.saturating_sub(since) >= ms(29_000), "after {:?}", host.now.saturating_sub(since));
    assert!(host.now.saturating_sub(since) <= ms(31_500), "after {:?}", host.now.saturating_sub(since));
    assert_eq!(details(&claim).note.stopped, None);
}

/// The pause of a minute on a host that runs the unit: its word.
fn paused(host: &mut Host) -> Word {
    let until = (host.now + host.wall).as_secs() + 60;
    let word = Word::new("root@h1", "new disks", 1, Some(until));
    let renewal = write(&host.handle(Event::Pause(word.clone()))).expect("it is told at once");
    let told = details(&renewal);
    assert_eq!(told.note.paused.as_ref(), Some(&word));
    assert!((ms(59_000)..=ms(60_000)).contains(&told.lease), "{:?}", told.lease);
    assert_eq!(told.hold + settings().timings.margin, told.lease + settings().timings.stop_budget);
    assert_eq!(guard(&host.won(&renewal)), None, "whoever watches the lock has to see the hold before it is relied on");
    host.goes_on(ms(5000));
    let deadline = host.election.deadline().expect("it has a lease").boot;
    let left = deadline.saturating_sub(host.now);
    assert!((ms(53_000)..ms(55_000)).contains(&left), "{left:?}");
    word
}

#[test]
fn a_pause_rides_through_a_store_that_is_away() {
    let (mut host, _) = Host::activated();
    let word = paused(&mut host);
    assert_eq!(host.election.pause_word(Time::both(host.now)), Some(&word));
    host.handle(Event::StoreDown);
    assert_eq!(host.after(ms(45_000)), []);
    assert_eq!(host.election.state(), State::Active);
    host.after(ms(10_000));
    assert_eq!(host.election.state(), State::Lapsing);
}

#[test]
fn a_pause_that_is_taken_back_is_published_until_the_guard_knows_of_it() {
    let (mut host, instance) = Host::activated();
    paused(&mut host);
    host.goes_on(ms(10_000));
    let renewal = write(&host.handle(Event::Resume)).expect("it is told at once");
    let told = details(&renewal);
    assert_eq!((told.note.paused.clone(), told.lease), (None, ms(3000)));
    assert!(told.hold > ms(45_000), "the guard has the late deadline yet: {:?}", told.hold);
    let asked = guard(&host.won(&renewal)).expect("the guard is asked");
    let GuardRequest::Shorten { deadline, .. } = asked else { panic!("{asked:?}") };
    // A guard that does not know how, or cannot keep it, is asked again after the next renewal.
    let refused =
        Event::GuardRefused { instance, asked: GuardDone::Shortened(deadline), reason: "it is later".to_owned() };
    host.handle(refused);
    let renewal = host.next_write();
    assert!(details(&renewal).hold > ms(40_000));
    let asked = guard(&host.won(&renewal)).expect("the guard is asked");
    let GuardRequest::Shorten { deadline, .. } = asked else { panic!("{asked:?}") };
    // No other deadline is asked for before it has answered.
    let renewal = host.next_write();
    assert!(details(&renewal).hold > ms(40_000));
    assert_eq!(guard(&host.won(&renewal)), None);
    let actions = host.handle(Event::GuardDone { instance, done: GuardDone::Shortened(deadline) });
    assert!(matches!(guard(&actions), Some(GuardRequest::Extend { .. })), "{actions:?}");
    let renewal = write(&actions).expect("it is told at once");
    assert!(details(&renewal).hold < ms(5000), "{:?}", details(&renewal).hold);
    host.handle(Event::StoreDown);
    host.after(ms(4000));
    assert_eq!(host.election.state(), State::Lapsing);
}

#[test]
fn a_paused_holder_lets_go_at_once_and_its_successor_is_not_paused() {
    let (mut host, instance) = Host::activated();
    paused(&mut host);
    host.goes_on(ms(2000));
    host.handle(Event::StepDown { reason: "maintenance".to_owned(), next: None });
    host.handle(Event::GuardDone { instance, done: GuardDone::Closed });
    host.handle(Event::Stopped);
    let blank = write(&host.handle(Event::GuardDone { instance, done: GuardDone::Disarmed })).expect("a blank");
    assert_eq!((details(&blank).note.paused, details(&blank).lease), (None, ms(3000)));
}

#[test]
fn a_pause_outlives_a_restart_of_the_daemon() {
    let until = u64::MAX;
    let memory = Memory { position: Some((a(), Revision(5))), ..Memory::default() };
    let mut host = Host::new(settings(), memory, Some(remembered(ms(600_000), false)));
    host.handle(Event::Timeout);
    host.handle(Event::GuardUp);
    let id = read(&host.handle(Event::StoreUp)).expect("the store is asked");
    let terms = remembered(ms(600_000), false).terms;
    let mut content = held_by("h1", terms.instance.0, terms.write.0);
    if let Content::Record(Record { details: Some(details), .. }) = &mut content {
        details.note.paused = Some(Word::new("root@h1", "", 1, Some(until)));
    }
    let actions = host.shown(id, terms.revision.0.max(5), content);
    let renewal = write(&actions).expect("a renewal");
    assert_eq!(details(&renewal).lease, LONGEST_PAUSE);
    assert_eq!(host.election.state(), State::Active);
}
