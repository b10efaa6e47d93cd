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

    /// The next write, at its time, and when that was.
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
