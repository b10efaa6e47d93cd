//! A host that the tests drive step by step, and what they tell it and read off its actions.

use std::{collections::VecDeque, time::Duration};

use putexd::{
    election::{
        Action, Content, Details, Election, ElectionSettings, Event, GuardRequest, Memory, Moment,
        Observation, ObservedUnit, OperatorNote, ReadId, Record, Remembered, Standing, State, Step,
        Timings, Word, WriteRequest, WriteResult,
    },
    facts::{
        Asked, At, Bar, Order, StepDown, Wait,
        alarm::{Problem, StopFailure},
    },
    types::{
        FencingToken, Holder, Incarnation, Instance, Key, LeaseTerms, MachineId, NodeId,
        OnStopFailure, Revision, Time, WriteId,
    },
    words,
};

pub fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("a node name")
}

pub fn settings() -> ElectionSettings {
    let timings = Timings::new(ms(1000), 3, 1);
    ElectionSettings {
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
        units: Vec::new(),
    }
}

pub fn a() -> Incarnation {
    Incarnation("a".to_owned())
}

/// An election with its clocks, and the store that it talks to.
pub struct Host {
    pub election: Election,
    pub now: Duration,
    /// How far the wall clock is ahead.
    pub wall: Duration,
    pub random: u128,
    /// What the store holds (the last element), and what it has held before.
    pub store: Vec<(Revision, Content)>,
}

impl Host {
    pub fn new(settings: ElectionSettings, memory: Memory, remembered: Option<Remembered>) -> Self {
        let now = ms(100_000);
        let election = Election::new(settings, memory, remembered, Time::both(now));
        let store = vec![(Revision(0), Content::Absent)];
        Self {
            election,
            now,
            wall: ms(1_000_000),
            random: 100,
            store,
        }
    }

    /// Gives an event to the election, and answers each vetting (N2) that it asks for: every unit is run under the key
    /// that this host has for it.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        let mut actions = self.handle_unvetted(event);
        while let Some(position) = actions
            .iter()
            .position(|action| matches!(action, Action::Vet { .. }))
        {
            let Action::Vet { instance } = actions.remove(position) else {
                unreachable!("it is one")
            };
            actions.extend(self.handle_unvetted(Event::Answered {
                step: Step::Vet,
                instance,
                result: Ok(()),
            }));
        }
        actions
    }

    pub fn handle_unvetted(&mut self, event: Event) -> Vec<Action> {
        self.random += 1;
        let moment = Moment {
            now: Time::both(self.now),
            wall: self.now + self.wall,
            random: self.random,
        };
        self.election.handle(&moment, event)
    }

    /// Lets `span` go by, and tells the election.
    pub fn after(&mut self, span: Duration) -> Vec<Action> {
        self.now += span;
        self.handle(Event::Timeout)
    }

    /// Brings guard and unit in order, and connects the store. Returns the read that the election asks for first.
    pub fn ready(&mut self) -> ReadId {
        self.handle(Event::GuardUp);
        self.handle(Event::Unit(ObservedUnit::Dead {
            result: "success".to_owned(),
            failed: false,
        }));
        read(&self.handle(Event::StoreUp)).expect("the store is asked")
    }

    /// Lets time go by until the election asks the store again.
    pub fn until_asked(&mut self) -> ReadId {
        for _ in 0..100 {
            if let Some(id) = read(&self.after(ms(50))) {
                return id;
            }
        }
        panic!("nothing is asked for")
    }

    /// Answers the read `id`: the store shows `content` at `revision`.
    pub fn shown(&mut self, id: ReadId, revision: u64, mut content: Content) -> Vec<Action> {
        let Memory {
            token: seen,
            token_of,
            ..
        } = self.election.memory();
        if let Content::Record(Record {
            details: Some(details),
            ..
        }) = &mut content
            && details.token == ANY_TOKEN
            && details.token <= *seen
        {
            // Records follow each other here as those of a store that loses nothing.
            details.token = if Some(details.instance) == *token_of {
                *seen
            } else {
                FencingToken(seen.0 + 1)
            };
        }
        self.store.push((Revision(revision), content.clone()));
        let answer = Some(Observation {
            incarnation: a(),
            revision: Revision(revision),
            content,
        });
        self.handle(Event::Read { id, answer })
    }

    /// Answers every read from the store's content. Returns the other actions.
    pub fn answered(&mut self, actions: Vec<Action>) -> Vec<Action> {
        let mut asked = VecDeque::from(actions);
        let mut others = Vec::new();
        while let Some(action) = asked.pop_front() {
            let Action::Read { id, before } = action else {
                others.push(action);
                continue;
            };
            let held = self
                .store
                .iter()
                .rev()
                .find(|(revision, _)| before.is_none_or(|before| *revision < before));
            let (revision, content) = held.cloned().unwrap_or((Revision(0), Content::Absent));
            let answer = Some(Observation {
                incarnation: a(),
                revision,
                content,
            });
            asked.extend(self.handle(match before {
                None => Event::Read { id, answer },
                Some(_) => Event::Replaced { id, answer },
            }));
        }
        others
    }

    pub fn won(&mut self, write: &WriteRequest) -> Vec<Action> {
        let revision = Revision(write.base.0 + 1);
        self.store
            .push((revision, Content::Record(write.record.clone())));
        self.handle(Event::Written {
            write: write.write,
            result: WriteResult::Won(revision),
        })
    }

    /// A host that has taken a key that was absent, and runs the unit. Returns the instance of its tenure, too.
    pub fn activated() -> (Self, Instance) {
        let mut host = Self::new(settings(), Memory::default(), None);
        let instance = host.activate();
        (host, instance)
    }

    pub fn activate(&mut self) -> Instance {
        let id = self.ready();
        let mut actions = self.shown(id, 0, Content::Absent);
        for _ in 0..200 {
            if let Some(write) = write(&actions) {
                actions = self.won(&write);
            } else if let Some(GuardRequest::Arm(LeaseTerms {
                instance, deadline, ..
            })) = guard(&actions)
            {
                actions = self.handle(Event::GuardDone(GuardDone::Armed(deadline).of(instance)));
            } else if let Some(instance) = started(&actions) {
                self.handle(Event::Answered {
                    step: Step::Start,
                    instance,
                    result: Ok(()),
                });
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
    pub fn goes_on(&mut self, span: Duration) -> Vec<Action> {
        let until = self.now + span;
        let mut others = Vec::new();
        while self.now < until {
            let mut actions = self.after(ms(50).min(until.saturating_sub(self.now)));
            while let Some(action) = actions.pop() {
                let more = match &action {
                    Action::Write(write) => self.won(write),
                    Action::Guard(GuardRequest::Extend(LeaseTerms {
                        instance, deadline, ..
                    })) => self.handle(Event::GuardDone(
                        GuardDone::Extended(*deadline).of(*instance),
                    )),
                    Action::Persist(_) | Action::Report(_) => Vec::new(),
                    Action::Read { .. }
                    | Action::Guard(_)
                    | Action::Vet { .. }
                    | Action::Fence { .. }
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
    pub fn let_go_for(&mut self, instance: Instance, event: Event) {
        self.handle(event);
        self.handle(Event::GuardDone(GuardDone::Closed.of(instance)));
        self.handle(Event::Stopped);
        let blank = write(&self.handle(Event::GuardDone(GuardDone::Disarmed.of(instance))))
            .expect("a blank");
        assert!(blank.record.holder.is_nobody());
        let actions = self.won(&blank);
        assert_eq!(write(&self.answered(actions)), None);
        assert_eq!(self.election.state(), State::Standby);
    }

    /// Why the host does not contend, in words.
    pub fn hindrance(&self) -> Option<String> {
        let now = Time::both(self.now);
        let bar = self.election.bar(now)?;
        let next_try = self.election.next_try(now);
        Some(words::bar_and_pause(
            &bar,
            next_try.map(|until| now.until_waited(until)),
        ))
    }

    /// How long the host waits before it tries again, if back-off (K9) is all that keeps it from contending.
    pub fn back_off(&self) -> Duration {
        let hindered = |after: Duration| {
            matches!(
                self.election.bar(Time::both(self.now + after)),
                Some(Bar::BackOff { .. })
            )
        };
        (0..100_000)
            .map(ms)
            .find(|after| !hindered(*after))
            .expect("it ends")
    }

    /// The guard comes back to a lease whose gate it has not closed: it closes the gate, the unit is stopped again, and the
    /// lease is forgotten. The host claims nothing before that.
    pub fn comes_back(&mut self, instance: Instance, again: Action) {
        let actions = self.handle(Event::StoreUp);
        assert_eq!(self.answered(actions), []);
        let waits = |host: &Self| assert_eq!(host.election.state(), State::Lapsing);
        let actions = self.handle(Event::GuardUp);
        assert_eq!(guard(&actions), Some(GuardRequest::Close(instance)));
        let stop = self.handle(Event::GuardDone(GuardDone::Closed.of(instance)));
        assert_eq!(
            stop,
            [again],
            "what was started meanwhile has no longer to live"
        );
        waits(self);
        assert_eq!(
            self.handle(Event::Stopped),
            [Action::Guard(GuardRequest::Disarm(instance))]
        );
        let actions = self.after(ms(60_000));
        assert_eq!(write(&self.answered(actions)), None);
        waits(self);
        self.handle(Event::GuardDone(GuardDone::Disarmed.of(Instance(1))));
        waits(self);
        let actions = self.handle(Event::GuardDone(GuardDone::Disarmed.of(instance)));
        self.answered(actions);
        assert_eq!(self.election.state(), State::Standby);
    }

    /// Lets time go by until the next write. The store takes what this host says of a token meanwhile.
    pub fn next_write(&mut self) -> WriteRequest {
        for _ in 0..1000 {
            let actions = self.after(ms(100));
            let Some(write) = write(&self.answered(actions)) else {
                continue;
            };
            let says_a_token = write
                .record
                .details
                .as_ref()
                .is_some_and(|details| details.note.above.is_some());
            if !says_a_token {
                return write;
            }
            self.store.push((
                Revision(write.base.0 + 1),
                Content::Record(write.record.clone()),
            ));
            self.won(&write);
        }
        panic!("nothing is written");
    }
}

pub fn read(actions: &[Action]) -> Option<ReadId> {
    actions.iter().find_map(|action| {
        if let Action::Read { id, before: None } = action {
            Some(*id)
        } else {
            None
        }
    })
}

pub fn write(actions: &[Action]) -> Option<WriteRequest> {
    actions.iter().find_map(|action| {
        if let Action::Write(write) = action {
            Some((**write).clone())
        } else {
            None
        }
    })
}

pub fn guard(actions: &[Action]) -> Option<GuardRequest> {
    actions.iter().find_map(|action| {
        if let Action::Guard(request) = action {
            Some(*request)
        } else {
            None
        }
    })
}

pub fn started(actions: &[Action]) -> Option<Instance> {
    actions.iter().find_map(|action| {
        if let Action::Start { instance, .. } = action {
            Some(*instance)
        } else {
            None
        }
    })
}

/// The fencing token of a record where a test is not about it.
pub const ANY_TOKEN: FencingToken = FencingToken(7);

pub fn held_by(token: &str, instance: u128, write: u128) -> Content {
    Content::Record(Record::new(
        Holder::decode(token.as_bytes()),
        Some(Details {
            machine: MachineId(2),
            instance: Instance(instance),
            write: WriteId(write),
            standing: Standing::Active,
            lease: ms(3000),
            hold: ms(3900),
            passing: None,
            token: ANY_TOKEN,
            prev: None,
            unfenced: Vec::new(),
            units: Vec::new(),
            holders: Vec::new(),
            note: OperatorNote::default(),
        }),
    ))
}

/// What the guard remembers of the lease of instance 7.
pub fn remembered(deadline: Duration, lapsed: bool) -> Remembered {
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
pub fn let_go_by(instance: u128, prev: u64) -> Content {
    let mut let_go = held_by("", instance, u128::from(prev) + 1);
    if let Content::Record(Record {
        details: Some(details),
        ..
    }) = &mut let_go
    {
        (details.standing, details.prev) = (
            Standing::Proven,
            Some((Revision(prev), Some(Instance(instance)))),
        );
        details.holders = ["h1", "h2"].map(node).to_vec();
    }
    let_go
}

pub fn stop_failed(why: StopFailure) -> Problem {
    Problem::StopFailed {
        units: Vec::new(),
        why,
    }
}

pub fn stray_unit() -> Problem {
    Problem::StrayUnit { units: Vec::new() }
}

pub fn alarms(actions: &[Action]) -> Vec<&Problem> {
    actions
        .iter()
        .filter_map(|action| {
            if let Action::Alarm(alarm) = action {
                Some(alarm)
            } else {
                None
            }
        })
        .collect()
}

pub fn kill_at(actions: &[Action]) -> Option<Time> {
    actions.iter().find_map(|action| {
        if let Action::Stop { kill_at } = action {
            *kill_at
        } else {
            None
        }
    })
}

pub fn dies(failed: bool) -> Event {
    Event::Unit(ObservedUnit::Dead {
        result: "it ended".to_owned(),
        failed,
    })
}

/// What is waited for, in words.
pub fn in_words(wait: &Wait, now: Time) -> String {
    words::wait(wait, At::of(now, Duration::ZERO))
}

/// An operator has drained the host.
pub fn drained() -> Bar {
    Bar::Drained(Word::new("root@h1", "", 1, None))
}

/// Work of the unit is where no stop reaches it.
pub fn outside() -> Bar {
    Bar::Outside {
        error: "a process".to_owned(),
    }
}

/// What the host waits for, in words.
pub fn said(host: &Host) -> String {
    let now = Time::both(host.now);
    host.election
        .waiting(now, Duration::ZERO)
        .map(|wait| in_words(&wait, now))
        .unwrap_or_default()
}

/// Lets the host take the lock again after its own release, which the store verifies, until it is active.
pub fn again(mut host: Host, instance: &mut Instance) -> Host {
    for _ in 0..2000 {
        let actions = host.after(ms(100));
        let mut actions = host.answered(actions);
        while let Some(action) = actions.pop() {
            let event = match action {
                Action::Write(write) => {
                    actions.extend(host.won(&write));
                    continue;
                }
                Action::Guard(GuardRequest::Arm(LeaseTerms {
                    instance, deadline, ..
                })) => Event::GuardDone(GuardDone::Armed(deadline).of(instance)),
                Action::Start {
                    instance: begun, ..
                } => {
                    *instance = begun;
                    Event::Answered {
                        step: Step::Start,
                        instance: begun,
                        result: Ok(()),
                    }
                }
                Action::Read { .. }
                | Action::Guard(_)
                | Action::Vet { .. }
                | Action::Fence { .. }
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

pub fn reads_before(actions: &[Action]) -> usize {
    actions
        .iter()
        .filter(|action| {
            matches!(
                action,
                Action::Read {
                    before: Some(_),
                    ..
                }
            )
        })
        .count()
}

pub fn stops(actions: &[Action]) -> usize {
    actions
        .iter()
        .filter(|action| matches!(action, Action::Stop { .. }))
        .count()
}

/// What the guard was asked to do, by what the election heeds of it.
#[derive(Debug, Clone, Copy)]
pub enum GuardDone {
    Armed(Time),
    Extended(Time),
    Shortened(Time),
    Closed,
    Disarmed,
}

impl GuardDone {
    /// The request, for the lease of this tenure.
    pub fn of(self, instance: Instance) -> GuardRequest {
        let until = |deadline| LeaseTerms {
            instance,
            deadline,
            ..remembered(Duration::ZERO, false).terms
        };
        match self {
            Self::Armed(deadline) => GuardRequest::Arm(until(deadline)),
            Self::Extended(deadline) => GuardRequest::Extend(until(deadline)),
            Self::Shortened(deadline) => GuardRequest::Shorten(until(deadline)),
            Self::Closed => GuardRequest::Close(instance),
            Self::Disarmed => GuardRequest::Disarm(instance),
        }
    }
}

pub fn closed(instance: Instance) -> Event {
    Event::GuardDone(GuardDone::Closed.of(instance))
}

pub fn disarmed(instance: Instance) -> Event {
    Event::GuardDone(GuardDone::Disarmed.of(instance))
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
pub fn claimed() -> (Host, Instance) {
    let (mut host, claim) = taking_over();
    let revision = Revision(claim.base.0 + 1);
    host.store
        .push((revision, Content::Record(claim.record.clone())));
    let actions = host.handle_unvetted(Event::Written {
        write: claim.write,
        result: WriteResult::Won(revision),
    });
    let asked: Vec<Instance> = actions.iter().filter_map(vetting).collect();
    let instance = claim.record.instance().expect("of putexd");
    assert_eq!(asked, [instance]);
    (host, instance)
}

/// A host that sees h2's record at revision 41, which h2 does not renew any more: the lock may be taken soon.
pub fn about_to_take() -> Host {
    let mut host = Host::new(settings(), Memory::default(), None);
    let id = host.ready();
    host.shown(id, 41, held_by("h2", 9, 9));
    for _ in 0..58 {
        let actions = host.after(ms(50));
        assert_eq!(write(&host.answered(actions)), None);
    }
    host
}

pub fn details(write: &WriteRequest) -> Details {
    write.record.details.clone().expect("of putexd")
}

pub fn vetting(action: &Action) -> Option<Instance> {
    if let Action::Vet { instance } = action {
        Some(*instance)
    } else {
        None
    }
}

pub fn stop() -> Word {
    Word::new("root@h1", "disk is full", 1_700_000_000, None)
}

/// An operator has asked for it, for this reason.
pub fn stepped_down(reason: &str) -> StepDown {
    ordered(None, reason)
}

/// The same, for this node to take over.
pub fn moved(to: &str, reason: &str) -> StepDown {
    ordered(Some(node(to)), reason)
}

fn ordered(to: Option<NodeId>, reason: &str) -> StepDown {
    StepDown::Order(Order {
        what: Asked::StepDown(to),
        word: Word::new("", reason, 0, None),
    })
}
