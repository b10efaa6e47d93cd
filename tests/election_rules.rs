//! Single rules of the core, where a scenario would show them only by the way. One host, step by step.

use std::time::Duration;

use putexd::election::{
    Action, Alarm, Content, Details, Election, Event, GuardDone, GuardRequest, Memory, Moment, Observation, ReadId,
    Record, Remembered, Settings, Sight, Standing, State, Timings, Words, WriteRequest, WriteResult,
};
use putexd::types::{Incarnation, Instance, MachineId, NodeId, Revision, Term, Time, WriteId};

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("a node name")
}

fn settings() -> Settings {
    let timings = Timings::new(ms(1000), 3, 1);
    Settings {
        node: node("h1"),
        machine: MachineId(1),
        timings,
        stop_limit: ms(30_000),
        check_validity: None,
        fences: false,
        unfences: false,
    }
}

fn a() -> Incarnation {
    Incarnation("a".to_owned())
}

/// The election with its clocks, and what it has asked for and was not given yet.
struct Host {
    election: Election,
    now: Duration,
    /// The wall clock is so much ahead.
    wall: Duration,
    random: u128,
}

impl Host {
    fn new(settings: Settings, memory: Memory, remembered: Option<Remembered>) -> Self {
        let now = ms(100_000);
        let election = Election::new(settings, memory, remembered, Time::both(now));
        Self { election, now, wall: ms(1_000_000), random: 100 }
    }

    fn handle(&mut self, event: Event) -> Vec<Action> {
        self.random += 1;
        let moment = Moment { now: Time::both(self.now), wall: self.now + self.wall, random: self.random };
        self.election.handle(&moment, event)
    }

    /// Time goes by, and the election is told.
    fn after(&mut self, span: Duration) -> Vec<Action> {
        self.now += span;
        self.handle(Event::Timeout)
    }

    /// Everything is in order, and the store has not answered yet; the read that asks it.
    fn ready(&mut self) -> ReadId {
        self.handle(Event::GuardUp);
        self.handle(Event::Unit(Sight::Dead { result: "success".to_owned() }));
        read(&self.handle(Event::StoreUp)).expect("the store is asked")
    }

    /// The store shows `content` at a revision.
    fn shown(&mut self, id: ReadId, revision: u64, content: Content) -> Vec<Action> {
        let answer = Some(Observation { incarnation: a(), revision: Revision(revision), content });
        self.handle(Event::Read { id, answer })
    }

    fn won(&mut self, write: &WriteRequest) -> Vec<Action> {
        let revision = Revision(write.base.0 + 1);
        self.handle(Event::Written { write: write.write, result: WriteResult::Won(revision) })
    }

    /// From a key that is not there to a running unit; the instance.
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
            } else if let Some(GuardRequest::Arm { instance, deadline, .. }) = guard(&actions) {
                actions = self.handle(Event::GuardDone { instance, done: GuardDone::Armed(deadline) });
            } else if let Some(instance) = started(&actions) {
                self.handle(Event::Started { instance, result: Ok(()) });
                assert_eq!(self.election.state(), State::Active);
                return instance;
            } else if let Some(id) = read(&actions) {
                let content = Content::Absent;
                actions = if self.election.revision() == Revision(0) { self.shown(id, 0, content) } else { Vec::new() };
            } else {
                actions = self.after(ms(100));
            }
        }
        panic!("it never became active: {}", self.election.state());
    }

    /// Time goes by with the store and the guard in order; everything else that was asked for.
    fn goes_on(&mut self, span: Duration) -> Vec<Action> {
        let until = self.now + span;
        let mut others = Vec::new();
        while self.now < until {
            let mut actions = self.after(ms(50).min(until - self.now));
            while let Some(action) = actions.pop() {
                let more = match &action {
                    Action::Write(write) => self.won(write),
                    Action::Guard(GuardRequest::Extend { instance, deadline, .. }) => {
                        let (instance, done) = (*instance, GuardDone::Extended(*deadline));
                        self.handle(Event::GuardDone { instance, done })
                    }
                    Action::Persist(_) | Action::Report(_) => Vec::new(),
                    _ => {
                        others.push(action);
                        continue;
                    }
                };
                actions.extend(more);
            }
        }
        others
    }

    /// A unit that runs is let go, stopped and disarmed, and the store takes it.
    fn let_go(&mut self, instance: Instance) {
        self.handle(Event::StepDown { reason: "an operator said so".to_owned(), next: None });
        self.handle(Event::GuardDone { instance, done: GuardDone::Closed });
        self.handle(Event::Stopped);
        let blank = write(&self.handle(Event::GuardDone { instance, done: GuardDone::Disarmed })).expect("a blank");
        assert_eq!(blank.record.token, "");
        self.won(&blank);
        assert_eq!(self.election.state(), State::Standby);
    }

    /// The next write, at its time.
    fn next_write(&mut self) -> WriteRequest {
        for _ in 0..100 {
            if let Some(write) = write(&self.after(ms(100))) {
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
    Content::Record(Record {
        token: token.to_owned(),
        details: Some(Details {
            machine: MachineId(2),
            instance: Instance(instance),
            write: WriteId(write),
            standing: Standing::Active,
            lease: ms(3000),
            hold: ms(3900),
            term: Term(7),
            prev: None,
            unfenced: Vec::new(),
            words: Words::default(),
        }),
    })
}

#[test]
fn what_the_store_shows_can_be_read_off() {
    let mut host = Host::new(settings(), Memory { term: Term(5), ..Memory::default() }, None);
    assert_eq!(host.election.settings(), &settings());
    assert_eq!((host.election.holder(), host.election.revision(), host.election.term()), ("", Revision(0), Term(5)));
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    assert_eq!((host.election.holder(), host.election.revision(), host.election.term()), ("h2", Revision(41), Term(7)));
    assert_eq!(host.election.memory(), &Memory { position: None, term: Term(7), longest_hold: ms(3900) });
    assert_eq!((host.election.state(), host.election.deadline()), (State::Standby, None));
}

#[test]
fn what_is_held_can_be_read_off() {
    let (mut host, instance) = Host::activated();
    let term = Term((host.wall + ms(100_000)).as_secs());
    assert_eq!(host.election.term(), term);
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
    assert_eq!((host.election.memory().term, host.election.holder()), (term, "h1"));
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
    assert_eq!(host.election.hindrance(Time::both(host.now)).as_deref(), Some("the unit is not known to be dead"));
    assert_eq!(write(&host.after(ms(60_000))), None);
    // A stray unit is dead only when its stop is proven, whatever is seen meanwhile.
    let stray = host.handle(Event::Unit(Sight::Alive));
    assert!(stray.contains(&Action::Alarm(Alarm::StrayUnit)), "{stray:?}");
    host.handle(Event::Unit(Sight::Dead { result: "success".to_owned() }));
    assert_eq!(host.election.hindrance(Time::both(host.now)).as_deref(), Some("the unit is not known to be dead"));
    host.handle(Event::Stopped);
    assert_eq!(host.election.hindrance(Time::both(host.now)), None);
}

#[test]
fn without_a_store_there_is_nothing_to_wake_up_for() {
    let mut host = Host::new(settings(), Memory::default(), None);
    host.handle(Event::StoreUp);
    host.handle(Event::StoreDown);
    assert_eq!(host.election.poll_timeout(), None);
    // Nor while the read that is due has not been answered.
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    assert_eq!(host.election.poll_timeout(), None);
    host.handle(Event::Read { id, answer: None });
    assert!(host.election.poll_timeout().is_some());
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
        host.now = deadline - ms(1);
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

#[test]
fn whoever_wakes_after_the_deadline_still_waits_for_sigkill() {
    let (mut host, _) = Host::activated();
    let deadline = host.election.deadline().expect("it is held").boot;
    host.now = deadline + ms(5000);
    let lapse = host.after(Duration::ZERO);
    assert_eq!(kill_at(&lapse), Some(Time::both(deadline + ms(750))));
    assert_eq!(alarms(&lapse), Vec::<&Alarm>::new());
    assert_eq!(alarms(&host.after(ms(249))), Vec::<&Alarm>::new());
    assert_eq!(alarms(&host.after(ms(1))), [&Alarm::StopUnproven]);
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
fn a_clock_that_jumps_by_more_than_a_renewal_has_to_be_proven_harmless() {
    for forward in [true, false] {
        let jump = |host: &mut Host, by: Duration| {
            host.wall = if forward { host.wall + by } else { host.wall - by };
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
    let mut host = Host::new(Settings { check_validity: Some(ms(3000)), ..settings() }, Memory::default(), None);
    host.handle(Event::StandbyCheck(Ok(())));
    host.activate();
    host.goes_on(ms(2000));
    host.handle(Event::ActiveCheck(Ok(())));
    host.goes_on(ms(2999));
    assert_eq!(host.election.state(), State::Active);
    host.goes_on(ms(1));
    assert_eq!(host.election.state(), State::Releasing);
}

#[test]
fn a_record_says_what_it_replaced_if_there_was_something() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 0, Content::Absent);
    let first = host.next_write();
    let details = |write: &WriteRequest| write.record.details.clone().expect("of putexd");
    assert_eq!((first.base, details(&first).prev), (Revision(0), None));
    host.won(&first);
    let second = host.next_write();
    let instance = details(&first).instance;
    assert_eq!((second.base, details(&second).prev), (Revision(1), Some((Revision(1), Some(instance)))));
}

#[test]
fn a_key_that_was_absent_for_long_is_still_not_started_on_before_the_gap_is_over() {
    let mut host = Host::new(settings(), Memory::default(), None);
    let mut id = host.ready();
    host.handle(Event::Contend(Err("drained".to_owned())));
    // Watched for a minute, every R.
    for _ in 0..60 {
        let actions = host.shown(id, 0, Content::Absent);
        id = read(&actions).or_else(|| read(&host.after(ms(1000)))).expect("it is read every R");
    }
    host.shown(id, 0, Content::Absent);
    let claim = write(&host.handle(Event::Contend(Ok(())))).expect("it is taken at once");
    let claimed = host.now;
    host.won(&claim);
    let started = |host: &mut Host| {
        let actions = host.goes_on(ms(50));
        actions.iter().any(|action| matches!(action, Action::Guard(GuardRequest::Arm { .. })))
    };
    while !started(&mut host) {
        assert!(host.now < claimed + ms(4100), "it is never started");
    }
    assert!(host.now >= claimed + ms(3000), "3·R: somebody else may have created and purged the key");
}

#[test]
fn whoever_let_go_waits_longer_each_time_until_the_unit_was_healthy_for_long() {
    let (mut host, mut instance) = Host::activated();
    let mut waits = Vec::new();
    for healthy in [ms(0), ms(0), ms(29_000), ms(30_000), ms(0), ms(0), ms(0), ms(0)] {
        host.goes_on(healthy);
        host.let_go(instance);
        let hindered = |host: &Host, after| {
            let hindrance = host.election.hindrance(Time::both(host.now + after));
            hindrance.as_deref() == Some("this host let the lock go a moment ago")
        };
        let wait = (1..100_000).map(ms).find(|after| !hindered(&host, *after)).expect("it ends");
        waits.push(wait.as_secs());
        host = again(host, &mut instance);
    }
    // 2R, doubling up to 10·T, and 2R again after 10·T of health.
    assert_eq!(waits, [2, 4, 8, 2, 4, 8, 16, 30]);
}

/// The host that let go takes the lock again, its `proven` verified by the store, and is active.
fn again(mut host: Host, instance: &mut Instance) -> Host {
    for _ in 0..2000 {
        let mut actions = host.after(ms(100));
        while let Some(action) = actions.pop() {
            let event = match action {
                Action::Write(write) => {
                    actions.extend(host.won(&write));
                    continue;
                }
                Action::Guard(GuardRequest::Arm { instance, deadline, .. }) => {
                    Event::GuardDone { instance, done: GuardDone::Armed(deadline) }
                }
                Action::Start { instance: begun, .. } => {
                    *instance = begun;
                    Event::Started { instance: begun, result: Ok(()) }
                }
                _ => continue,
            };
            actions.extend(host.handle(event));
        }
        if host.election.state() == State::Active {
            return host;
        }
    }
    panic!("it is never active again: {:?}", host.election.hindrance(Time::both(host.now)));
}
