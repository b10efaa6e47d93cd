//! The record, whatever a store says it is, and the election that has to go on from it.

use std::{collections::BTreeMap, time::Duration};

use putexd::{
    election::{
        Action, Content, Details, Election, ElectionSettings, Event, HOLDERS_LIMIT, LONGEST_HOLD,
        LONGEST_LEASE, Memory, Moment, Observation, ObservedUnit, Record, Step, Timings,
        UNFENCED_LIMIT, WriteResult,
    },
    facts::{Asked, Order, StepDown, Word},
    store::refusal,
    types::{
        FencingToken, Incarnation, Key, MachineId, NodeId, OnStopFailure, Revision, Time, UnitName,
        Value, is_printable,
    },
};

/// Lines such as `lease-ms: 3000`, an empty line, and the body.
pub fn record(input: &[u8]) {
    check(&parse(input));
}

/// A value as text: its fields one a line, an empty line, its body.
pub fn parse(input: &[u8]) -> Value {
    let mut fields = BTreeMap::new();
    let mut rest = input;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (line, after) = (&rest[..end], &rest[end + 1..]);
        rest = after;
        if line.is_empty() {
            break;
        }
        let line = String::from_utf8_lossy(line).into_owned();
        let (name, text) = line.split_once(": ").unwrap_or((&line, ""));
        fields.insert(name.to_owned(), text.to_owned());
    }
    Value {
        body: rest.to_vec(),
        fields,
    }
}

/// What must hold for every value that a store gives, whoever wrote it.
pub fn check(value: &Value) {
    let record = Record::decode(value);
    if value.fields.is_empty() {
        assert_eq!(record.details, None, "putex 0.2.0 says nothing of a lease");
    }
    assert!(
        record.holder.as_str().chars().all(is_printable),
        "{:?}",
        record.holder
    );
    assert!(record.details.is_none() || record.oddity.is_none() && !record.holder.is_unknown());
    survives(&record);
    succeed(record);
}

/// What is decoded is the same after another writer has carried it on, and putex 0.2.0 reads the holder from it.
fn survives(record: &Record) {
    // Nobody carries on a record of a later version: what he does not know of it would be lost.
    if record.oddity.is_some() || record.newer.is_some() {
        return;
    }
    let value = record.encode();
    assert_eq!(value.body, record.holder.as_str().as_bytes());
    assert_eq!(&Record::decode(&value), record);
    assert_eq!(refusal(&value), None);
}

fn settings() -> ElectionSettings {
    let timings = Timings::new(Duration::from_secs(1), 3, 2);
    ElectionSettings {
        key: Key::new("db").expect("a key"),
        node: NodeId::new("here").expect("a node name"),
        machine: MachineId(1),
        timings,
        stop_limit: timings.stop_budget * 30,
        on_stop_failure: OnStopFailure::Alert,
        check_validity: None,
        checks_standby: false,
        fences: true,
        fence_hosts: Vec::new(),
        units: Vec::new(),
    }
}

/// Ten years after 2026, and what tenures that follow each other may have on top: the clock of [`World`] shows 1970.
const HIGHEST_TOKEN: u64 = 1_767_225_600 + 315_576_000 + 1000;

/// A host whose store holds the record, alone and with everything in order.
struct World {
    election: Election,
    now: Duration,
    random: u128,
    seen: Observation,
    found_token: FencingToken,
    waiting: Vec<Event>,
}

impl World {
    fn handle(&mut self, event: Event) {
        self.random += 1;
        let moment = Moment {
            now: Time::both(self.now),
            wall: self.now,
            random: self.random,
        };
        for action in self.election.handle(&moment, event) {
            self.carry_out(action);
        }
    }

    fn carry_out(&mut self, action: Action) {
        let event = match action {
            Action::Read { id, before: None } => Event::Read {
                id,
                answer: Some(self.seen.clone()),
            },
            Action::Read {
                id,
                before: Some(_),
            } => Event::Replaced { id, answer: None },
            Action::Write(request) => {
                let details = request
                    .record
                    .details
                    .as_ref()
                    .expect("putexd says of a lease");
                assert!(details.token > self.found_token, "the token has to grow");
                assert!(
                    details.token <= FencingToken(HIGHEST_TOKEN),
                    "a token that nobody can have stays"
                );
                assert!(details.hold <= LONGEST_HOLD && details.lease <= LONGEST_LEASE);
                assert!(details.unfenced.len() <= UNFENCED_LIMIT);
                assert!(details.holders.len() <= HOLDERS_LIMIT);
                let value = request.record.encode();
                assert_eq!(
                    refusal(&value),
                    None,
                    "the successor's own record must fit into the store"
                );
                self.seen = Observation {
                    incarnation: request.incarnation,
                    revision: Revision(request.base.0 + 1),
                    content: Content::Record(Record::decode(&value)),
                };
                Event::Written {
                    write: request.write,
                    result: WriteResult::Won(self.seen.revision),
                }
            }
            Action::Guard(request) => Event::GuardDone(request),
            Action::Fence { instance, hosts } => {
                for host in hosts {
                    assert!(
                        !host.as_str().starts_with('-'),
                        "a name must be no option of a command"
                    );
                    // A name may be too long for a unit, and then this says so.
                    let unit = UnitName::from_template("fence@.service", host.as_str());
                    assert!(unit.is_ok() || host.as_str().len() > 50, "{host:?}");
                }
                Event::Answered {
                    step: Step::Fence,
                    instance,
                    result: Ok(()),
                }
            }
            Action::Vet { instance } => Event::Answered {
                step: Step::Vet,
                instance,
                result: Ok(()),
            },
            Action::Start { instance, .. } => Event::Answered {
                step: Step::Start,
                instance,
                result: Ok(()),
            },
            Action::Stop { .. } => Event::Stopped,
            Action::Persist(_) | Action::Report(_) | Action::Alarm(_) => {
                return;
            }
        };
        self.waiting.push(event);
    }
}

/// Whoever finds the record goes on from it: it never panics, and what it writes itself is a good record.
fn succeed(record: Record) {
    // One that is not believed is not kept.
    let believed = |details: &&Details| details.token < FencingToken(HIGHEST_TOKEN);
    let found_token = record
        .details
        .as_ref()
        .filter(believed)
        .map_or(FencingToken(0), |details| details.token);
    let seen = Observation {
        incarnation: Incarnation("a".to_owned()),
        revision: Revision(7),
        content: Content::Record(record),
    };
    let election = Election::new(
        settings(),
        Memory::default(),
        None,
        Time::both(Duration::from_secs(1)),
    );
    let now = Duration::from_secs(1);
    let mut world = World {
        election,
        now,
        random: 0,
        seen,
        found_token,
        waiting: Vec::new(),
    };
    let awake = Event::Unit(ObservedUnit::Dead {
        result: "success".to_owned(),
        failed: false,
    });
    for event in [Event::GuardUp, awake, Event::StoreUp] {
        world.handle(event);
    }
    for step in 0..40 {
        if let Some(event) = world.waiting.pop() {
            world.handle(event);
        } else {
            let due = world
                .election
                .poll_timeout()
                .map_or(world.now, |due| due.boot);
            world.now = due.clamp(
                world.now + Duration::from_millis(1),
                world.now + Duration::from_secs(3600),
            );
            world.handle(Event::Timeout);
        }
        if step == 30 {
            world.handle(Event::StepDown(StepDown::Order(Order {
                what: Asked::StepDown(None),
                word: Word::new("", "the test ends", 0, None),
            })));
        }
    }
}
