//! The entry of one unit in the store, hosts whose configurations name different keys for that unit, and the locks under these
//! keys: the rules N1 (the unit's entry), N2 (vetting), N3 (adoption of another key) and N4 (what a host remembers), one step
//! at a time.
//!
//! What an entry says, how it is judged, and for which key it vouches is putexd's own code: [`judge`] and [`Registration`]. The
//! daemon's `registration` is async around a store, so its steps are repeated here, in the same order: an entry is read and
//! judged, former locks are looked at one by one, the entry is written, and whatever the outcome, it is read again.
//!
//! The elections are reduced to what these rules need. One host at a time has the lock under a key and renews it. A host that
//! stands still is dead at its deadline, before any other host starts under that key, and before another has seen its lock
//! unchanged for the wait. So there is no time. There are no revisions either: as long as a write can still win, the value that
//! it replaces is there; else the write is forgotten, because it would conflict. That leaves so few states that all of them are
//! visited, although each step may happen any number of times.
//!
//! Any look may show the past. A look at the entry then shows any key without former ones, because other entries clear no host.
//! A look at a lock then shows it released, because the unit was run under each of the keys before. A write from such a look
//! conflicts. So reading a value and writing it again is one step: if the write is won, the value was there at that moment.
//!
//! Whether an entry is newer than the one that a host saw last comes down to two questions. The past is not newer for a host
//! that saw the newest entry last. The present entry is not newer if the entry went back to a copy and was not written since,
//! and the host saw its last one after that copy was taken. From the next write on the entry counts as newer for every host.
//! Its revision may still be lower, but a host that is refused because of that does nothing that it could not do by not
//! looking. Entries that name the same key need not be told apart, because the question matters only where the host has kept
//! another key than is shown.
//!
//! A unit that one service binds and that is another's main unit, or that both bind, has one entry as well. Two such services
//! on two hosts are two keys for one unit, which this model covers. So it covers each unit of a service by itself: nothing is
//! started before all of the service's entries vouch for it.
//!
//! Another store (N4) is not in this model; what a host's disk remembers of a key is. A write from before the store went back
//! that is applied after it is not in this model either.

use std::sync::Arc;

use stateright::{Model, Property};

use crate::{
    check::{Milestone, Milestones, OVERLAP, PROMISE},
    election::{Found, KeptPlace, KeyRefusal, LockPlace, Position, Registration, Verdict, judge},
    types::{Incarnation, Key, Revision, UnitName, Value, store::StoreAddress},
};

/// The keys that configurations may name. Each is the name of a lock.
const KEYS: [&str; 3] = ["db", "ctl", "old"];

/// The parts of the rules that keep two hosts apart. Each can be dropped, to see whether it is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Premise {
    /// N1: the first host makes the entry by compare-and-set.
    MadeByComparing,
    /// N1: after a write whose answer was lost the entry is read again.
    ReadAgain,
    /// N2: the entry is read between the claim and the start.
    Vetted,
    /// N2: the entry is written again as it was read.
    VettedByWriting,
    /// N2: an entry that has former keys vouches for no key.
    VettedForFormer,
    /// N2: what the host remembers is judged as well.
    VettedByMemory,
    /// N3: the former key is kept when another is adopted.
    FormerKept,
    /// N3: the former lock has to be free before its key is struck out.
    FormerWaitedFor,
    /// N3: the former lock is written again as it was seen.
    FormerTouched,
    /// N3: a `proven` former lock is free at once only if its tenure was seen before.
    ProvenFollowed,
    /// N3: the former key is struck out by compare-and-set.
    StruckByComparing,
    /// N4: what a host remembers counts if there is no entry, or an older one.
    KeptHeeded,
    /// N4: it counts if there is an older one.
    PositionHeeded,
    /// N4: the key is remembered after a look that was refused, too.
    KeptWhenRefused,
    /// N4: a look at the past does not replace what is remembered.
    KeptNewest,
    /// Assumption (g): if an entry goes back or is deleted while a host has the unit's lock under its key, every host that
    /// names another key saw that entry last.
    SeenByAll,
}

/// The hosts and the possible steps of one search.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The key that the configuration of each host names at the beginning.
    pub hosts: &'static [usize],
    /// How many keys a configuration may name.
    pub keys: usize,
    /// Whether a configuration may come to name another key.
    pub reconfigured: bool,
    /// Whether somebody may delete the entry, or make it unreadable.
    pub by_hand: bool,
    /// Whether the entry may go back to a copy, alone or with all of the store.
    pub goes_back: bool,
    pub dropped: Option<Premise>,
}

impl Plan {
    /// If no entry is ever lost, what a host remembers only protects it from looks at the past.
    fn needs_memory(self) -> bool {
        self.by_hand || self.goes_back
    }

    fn keeps(self, premise: Premise) -> bool {
        self.dropped != Some(premise)
    }
}

/// What a write replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Base {
    Nothing,
    /// The value that was read, which is still there.
    Latest,
}

/// A write of the entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Write {
    base: Base,
    value: Arc<Value>,
}

/// The state of a host's look at the entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Registrar {
    Resting,
    /// One of the former locks of this entry has to be free before its key is struck out.
    Waiting(Arc<Value>),
    Writing(Write),
    /// The write of a key that an operator's word adopts.
    Adopting(Write),
}

/// How far a host has come with a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Lease {
    Claimed,
    Vetted,
    /// The unit is alive.
    Running,
    /// The unit is alive, and the lock is no longer renewed.
    Doomed,
}

/// A host with its daemon.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Host {
    /// The key in its configuration.
    key: usize,
    /// The key that its disk remembers, and whether the entry named it after the copy of the store was taken.
    kept: Option<usize>,
    after_copy: bool,
    /// The host was last shown the newest entry, which names this key, and still has its disk.
    saw: Option<usize>,
    registrar: Registrar,
    /// Whether the last look told its election that it may contend.
    cleared: bool,
    /// The lock that it has. After a change of the configuration this is under the former key, until it is released.
    lease: Option<(usize, Lease)>,
    /// The key of that lock was in the entry, and is not since the entry was deleted or went back.
    orphaned: bool,
}

/// One state of the search.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    entry: Option<Arc<Value>>,
    /// For each lock, whether its record is `proven`.
    proven: Vec<bool>,
    hosts: Vec<Host>,
    /// A write that its sender has given up, and that may still be applied.
    late: Option<Write>,
    /// The key in the newest entry that there ever was.
    newest: Option<usize>,
    copy: Copied,
    /// Whether the entry was written since the copy was taken, or since the store went back to it.
    gone_on: bool,
}

/// A copy of the store. Before the first is taken it is a copy of the empty store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Copied {
    entry: Option<Arc<Value>>,
    proven: Vec<bool>,
}

/// What a host hears of its write to the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The outcome.
    Comes,
    /// Nothing. The write was applied if that was possible.
    IsLost,
    /// Nothing. The write may be applied later.
    ComesTooEarly,
}

/// One step. The first number of a step is that of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The configuration names this key from now on. A lock under another key is released.
    Configure(usize, usize),
    /// The entry is read and judged.
    Look(usize),
    /// A look that shows the past: an entry that named this key.
    OldLook(usize, usize),
    /// A former lock is read, and written again if it is free.
    LookAtLock(usize, usize),
    OldLookAtLock(usize, usize),
    /// An operator says that the configured key is the right one.
    Adopt(usize),
    Write(usize, Answer),
    /// A write that was given up is applied, or conflicts.
    LateWrite,
    /// The lock is written: a claim.
    Claim(usize),
    /// The entry is read once more, and written again (N2).
    Vet(usize),
    OldVet(usize),
    Start(usize),
    /// A claim is no longer renewed.
    GiveUp(usize),
    /// The unit is stopped, and the lock released.
    Release(usize),
    /// A host no longer renews, and its unit is still alive.
    StandStill(usize),
    /// The deadline has passed, and the unit is dead.
    Die(usize),
    /// The daemon is killed and starts again. A unit that is alive goes on. Together with the two steps above this is a loss of
    /// power.
    Crash(usize),
    /// A host without a lock loses its disk.
    LoseDisk(usize),
    /// Somebody deletes the entry.
    Delete,
    /// Somebody makes the entry unreadable.
    Garble,
    /// A copy of the store is taken.
    Copy,
    /// The store goes back to the copy, and no host can renew.
    GoBack,
    /// The entry alone goes back to the copy.
    EntryGoesBack,
}

/// The model, which searches for an overlap.
pub struct Entries {
    pub plan: Plan,
    pub milestones: Arc<Milestones>,
}

impl Model for Entries {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.plan)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        let offer = |steps: &mut Vec<Step>, offered: &[Step], is_possible: bool| {
            steps.extend(offered.iter().filter(|_| is_possible));
        };
        offer(steps, &[Step::Delete, Step::Garble], self.plan.by_hand);
        offer(
            steps,
            &[Step::Copy, Step::GoBack, Step::EntryGoesBack],
            self.plan.goes_back,
        );
        offer(steps, &[Step::LateWrite], world.late.is_some());
        for h in 0..world.hosts.len() {
            world.steps_of_registrar(h, self.plan, |step, is_possible| {
                offer(steps, &[step], is_possible)
            });
            world.steps_of_election(h, self.plan, |step, is_possible| {
                offer(steps, &[step], is_possible)
            });
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        next.take(step, self);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(PROMISE, |_: &Self, world: &World| {
            world.fault().is_none()
        })]
    }

    fn within_boundary(&self, world: &World) -> bool {
        !self.plan.keeps(Premise::SeenByAll) || world.is_seen_by_all()
    }
}

fn unit() -> UnitName {
    UnitName::new("database.service").expect("the name of a unit")
}

fn place(key: usize) -> LockPlace {
    let store = StoreAddress {
        what: "directory".to_owned(),
        servers: vec!["/srv/putex".to_owned()],
    };
    LockPlace {
        store,
        key: Key::new(KEYS[key]).expect("a key"),
    }
}

fn lock_of(key: &Key) -> usize {
    KEYS.iter()
        .position(|name| *name == key.as_str())
        .expect("one of the keys")
}

fn found(value: Option<&Arc<Value>>) -> Found {
    let Some(value) = value else {
        return Found::Nothing;
    };
    Registration::decode(value, &unit()).map_or(Found::Garbled, Found::Entry)
}

/// The entry in `value`, if it can be read.
fn registration(value: Option<&Arc<Value>>) -> Option<Registration> {
    Registration::decode(value?, &unit())
}

/// An entry that names this key alone.
fn naming(key: usize) -> Registration {
    Registration {
        key: place(key).key,
        former: Vec::new(),
    }
}

fn mentions(entry: Option<&Registration>, key: usize) -> bool {
    let mut keys = entry
        .into_iter()
        .flat_map(|entry| entry.former.iter().chain([&entry.key]));
    keys.any(|name| lock_of(name) == key)
}

fn tell(entry: &Registration) -> String {
    let Registration { key, former } = entry;
    former.iter().fold(key.to_string(), |text, former| {
        format!("{text} after {former}")
    })
}

fn position(revision: u64) -> Position {
    (Incarnation(String::new()), Revision(revision))
}

/// The state, and the steps that are possible.
impl World {
    fn new(plan: Plan) -> Self {
        let none = vec![false; plan.keys];
        let host = |key: &usize| Host {
            key: *key,
            kept: None,
            after_copy: false,
            saw: None,
            registrar: Registrar::Resting,
            cleared: false,
            lease: None,
            orphaned: false,
        };
        Self {
            entry: None,
            proven: none.clone(),
            hosts: plan.hosts.iter().map(host).collect(),
            late: None,
            newest: None,
            copy: Copied {
                entry: None,
                proven: none,
            },
            gone_on: false,
        }
    }

    /// What is wrong with this state, if anything is.
    pub fn fault(&self) -> Option<&'static str> {
        let is_alive =
            |host: &&Host| matches!(host.lease, Some((_, Lease::Running | Lease::Doomed)));
        (self.hosts.iter().filter(is_alive).count() > 1).then_some(OVERLAP)
    }

    /// The state in one line, for the path of a search.
    pub fn show(&self) -> String {
        let entry = match found(self.entry.as_ref()) {
            Found::Nothing => "no entry".to_owned(),
            Found::Garbled => "garbled".to_owned(),
            Found::Entry(entry) => tell(&entry),
        };
        let host = |host: &Host| {
            let kept = host
                .kept
                .map(|key| format!(" knows {}", KEYS[key]))
                .unwrap_or_default();
            let cleared = if host.cleared { " cleared" } else { "" };
            let lease = host
                .lease
                .map(|(key, lease)| format!(" {lease:?} under {}", KEYS[key]))
                .unwrap_or_default();
            format!("names {}{kept}{cleared}{lease}", KEYS[host.key])
        };
        let hosts: Vec<String> = self.hosts.iter().map(host).collect();
        format!("entry: {entry}; {}", hosts.join("; "))
    }

    /// The locks that other hosts have.
    fn leases_beside(&self, h: usize) -> impl Iterator<Item = (usize, Lease)> {
        let others = self
            .hosts
            .iter()
            .enumerate()
            .filter(move |(other, _)| *other != h);
        others.filter_map(|(_, host)| host.lease)
    }

    /// Whether assumption (g) holds, and no write is under way that would make an entry after it was deleted. An entry that
    /// cannot be read is excepted: it may still be replaced on an operator's word.
    fn is_seen_by_all(&self) -> bool {
        let is_made_late = self.entry.is_none()
            && self
                .late
                .as_ref()
                .is_some_and(|write| write.base == Base::Nothing);
        let is_garbled = found(self.entry.as_ref()) == Found::Garbled;
        let mut orphaned = self
            .hosts
            .iter()
            .filter(|host| host.orphaned)
            .filter_map(|host| host.lease);
        orphaned.all(|(key, _)| {
            let is_safe = |host: &Host| host.key == key || host.saw == Some(key);
            is_garbled || (!is_made_late && self.hosts.iter().all(is_safe))
        })
    }

    fn steps_of_registrar(&self, h: usize, plan: Plan, mut offer: impl FnMut(Step, bool)) {
        let host = &self.hosts[h];
        for key in (0..plan.keys).filter(|key| *key != host.key) {
            offer(Step::Configure(h, key), plan.reconfigured);
        }
        let is_down = host.registrar == Registrar::Resting && !host.cleared && host.lease.is_none();
        offer(Step::LoseDisk(h), is_down);
        // After a change of the key nothing begins before the lock under the former key is released.
        if host.lease.is_some_and(|(key, _)| key != host.key) {
            return;
        }
        match &host.registrar {
            Registrar::Resting => {
                offer(Step::Look(h), true);
                for key in 0..plan.keys {
                    offer(Step::OldLook(h, key), true);
                }
                offer(Step::Adopt(h), true);
            }
            Registrar::Waiting(entry) => {
                for key in registration(Some(entry))
                    .iter()
                    .flat_map(|entry| &entry.former)
                    .map(lock_of)
                {
                    offer(Step::LookAtLock(h, key), true);
                    offer(Step::OldLookAtLock(h, key), true);
                }
            }
            Registrar::Writing(_) | Registrar::Adopting(_) => {
                for answer in [Answer::Comes, Answer::IsLost, Answer::ComesTooEarly] {
                    offer(Step::Write(h, answer), true);
                }
            }
        }
    }

    fn steps_of_election(&self, h: usize, plan: Plan, mut offer: impl FnMut(Step, bool)) {
        let host = &self.hosts[h];
        offer(Step::Crash(h), true);
        let mut rivals = self
            .leases_beside(h)
            .filter(|(key, _)| *key == host.key)
            .map(|(_, lease)| lease);
        match host.lease.map(|(_, lease)| lease) {
            None => offer(
                Step::Claim(h),
                host.cleared && rivals.all(|lease| lease == Lease::Doomed),
            ),
            Some(Lease::Claimed) => {
                offer(Step::GiveUp(h), true);
                offer(Step::Vet(h), true);
                offer(Step::OldVet(h), true);
                offer(
                    Step::Start(h),
                    !plan.keeps(Premise::Vetted) && rivals.next().is_none(),
                );
            }
            Some(Lease::Vetted) => {
                offer(Step::GiveUp(h), true);
                offer(Step::Start(h), rivals.next().is_none());
            }
            Some(Lease::Running) => {
                offer(Step::Release(h), true);
                offer(Step::StandStill(h), true);
            }
            Some(Lease::Doomed) => offer(Step::Die(h), true),
        }
    }
}

/// The effect of each step.
impl World {
    fn take(&mut self, step: Step, search: &Entries) {
        let plan = search.plan;
        match step {
            Step::Configure(h, key) => {
                self.hosts[h].key = key;
                self.restart(h);
            }
            Step::Look(h) => {
                let is_newer = self.is_newer(h);
                self.watch(h);
                self.look(h, &found(self.entry.as_ref()), is_newer, true, search);
            }
            Step::OldLook(h, key) => {
                let has_seen_newest = self.newest.is_some() && self.hosts[h].saw == self.newest;
                self.look(
                    h,
                    &Found::Entry(naming(key)),
                    !has_seen_newest,
                    false,
                    search,
                );
            }
            Step::LookAtLock(h, key) => {
                // The lock was unchanged for the wait, or the host saw the end of the tenure that it had seen before.
                let is_free = self
                    .hosts
                    .iter()
                    .all(|host| host.lease.is_none_or(|(held, _)| held != key));
                let is_proven = self.proven[key] && !plan.keeps(Premise::ProvenFollowed);
                self.look_at_lock(h, key, is_free || is_proven);
            }
            Step::OldLookAtLock(h, key) => {
                self.look_at_lock(h, key, !plan.keeps(Premise::FormerTouched))
            }
            Step::Adopt(h) => self.adopt(h, plan),
            Step::Write(h, answer) => self.write(h, answer, search),
            Step::LateWrite => {
                if let Some(write) = self.late.take() {
                    self.apply(&write, plan);
                }
            }
            Step::Claim(h) => {
                let key = self.hosts[h].key;
                self.hosts[h].lease = Some((key, Lease::Claimed));
                self.proven[key] = false;
            }
            Step::Vet(h) => self.vet(h, search),
            Step::OldVet(h) => {
                if !plan.keeps(Premise::VettedByWriting) {
                    self.hosts[h].turn(Lease::Vetted);
                }
            }
            Step::Start(h) => {
                self.hosts[h].turn(Lease::Running);
                search.milestones.reach(Milestone::active_on(h));
            }
            Step::GiveUp(h) | Step::Die(h) => self.hosts[h].end(),
            Step::Release(h) => {
                if let Some((key, _)) = self.hosts[h].lease {
                    self.proven[key] = !plan.keeps(Premise::ProvenFollowed);
                }
                self.hosts[h].end();
                search.milestones.reach(Milestone::Release);
            }
            Step::StandStill(h) => self.hosts[h].turn(Lease::Doomed),
            Step::Crash(h) => self.restart(h),
            Step::LoseDisk(h) => {
                let host = &mut self.hosts[h];
                (host.kept, host.after_copy, host.saw) = (None, false, None);
            }
            Step::Delete => self.change_by_hand(None, plan),
            Step::Garble => self.change_by_hand(Some(Arc::default()), plan),
            Step::Copy => {
                self.copy = Copied {
                    entry: self.entry.clone(),
                    proven: self.proven.clone(),
                };
                if std::mem::take(&mut self.gone_on) {
                    self.hosts
                        .iter_mut()
                        .for_each(|host| host.after_copy = false);
                }
            }
            Step::GoBack => {
                self.go_back(search);
                self.proven.clone_from(&self.copy.proven);
                for host in &mut self.hosts {
                    host.lose_claim();
                    host.turn(Lease::Doomed);
                }
            }
            Step::EntryGoesBack => self.go_back(search),
        }
    }

    fn go_back(&mut self, search: &Entries) {
        self.change_by_hand(self.copy.entry.clone(), search.plan);
        self.gone_on = false;
        search.milestones.reach(Milestone::WentBack);
    }

    /// Changes the entry without regard to the rules: a host that has the lock under the key that was there before is ignored.
    fn change_by_hand(&mut self, value: Option<Arc<Value>>, plan: Plan) {
        self.replace(value, plan);
        let entry = registration(self.entry.as_ref());
        for host in &mut self.hosts {
            let is_vetted =
                |(key, lease)| lease != Lease::Claimed && !mentions(entry.as_ref(), key);
            host.orphaned |= host.lease.is_some_and(is_vetted);
        }
    }

    /// A daemon that starts knows its configuration and its disk. A lease that the guard remembers goes on.
    fn restart(&mut self, h: usize) {
        let host = &mut self.hosts[h];
        (host.registrar, host.cleared) = (Registrar::Resting, false);
        host.lose_claim();
    }

    /// Whether the present entry is newer than the one that the host saw last, or the same.
    fn is_newer(&self, h: usize) -> bool {
        self.gone_on || !self.hosts[h].after_copy
    }

    /// Notes that the host was shown the present entry.
    fn watch(&mut self, h: usize) {
        let named = registration(self.entry.as_ref()).map(|entry| lock_of(&entry.key));
        if named.is_some() && named == self.newest {
            self.hosts[h].saw = named;
        }
    }

    fn judge(
        &self,
        h: usize,
        found: &Found,
        is_newer: bool,
        adopting: bool,
        plan: Plan,
    ) -> Verdict {
        let host = &self.hosts[h];
        let kept = host.kept.filter(|_| plan.keeps(Premise::KeptHeeded));
        let kept = kept.map(|key| KeptPlace {
            place: place(key),
            former: Vec::new(),
            position: Some(position(1)),
        });
        let shown = if is_newer || !plan.keeps(Premise::PositionHeeded) {
            position(2)
        } else {
            position(0)
        };
        judge(&place(host.key), kept.as_ref(), found, &shown, adopting)
    }

    /// A look at the entry, up to the first write, or to the first look at a former lock.
    fn look(
        &mut self,
        h: usize,
        shown: &Found,
        is_newer: bool,
        is_present: bool,
        search: &Entries,
    ) {
        let plan = search.plan;
        let verdict = self.judge(h, shown, is_newer, false, plan);
        let is_remembered = match &verdict {
            Verdict::Cleared | Verdict::Waits(_) => true,
            Verdict::Refused(KeyRefusal::OtherKey(_)) => plan.keeps(Premise::KeptWhenRefused),
            Verdict::Write(_) | Verdict::Refused(_) => false,
        };
        if let Found::Entry(entry) = shown
            && is_remembered
            && (is_newer || !plan.keeps(Premise::KeptNewest))
        {
            self.keep(h, entry, is_present, plan);
            self.hosts[h].saw.take_if(|_| is_newer && !is_present);
        }
        let base = self.base();
        let host = &mut self.hosts[h];
        match verdict {
            Verdict::Cleared => host.cleared = true,
            Verdict::Write(entry) => host.registrar = Registrar::Writing(Write::of(&entry, base)),
            Verdict::Waits(entry) if plan.keeps(Premise::FormerWaitedFor) => {
                host.registrar = Registrar::Waiting(Arc::new(entry.encode(&unit())));
            }
            Verdict::Waits(entry) => {
                host.registrar = Registrar::Writing(Write::of(&naming(lock_of(&entry.key)), base));
            }
            Verdict::Refused(refusal) => {
                host.cleared = false;
                if matches!(refusal, KeyRefusal::FormerKey(_)) {
                    search.milestones.reach(Milestone::GoingBackNoticed);
                }
            }
        }
    }

    /// Keeps on the disk what the entry names.
    fn keep(&mut self, h: usize, entry: &Registration, is_present: bool, plan: Plan) {
        if !plan.needs_memory() {
            return;
        }
        let host = &mut self.hosts[h];
        host.kept = Some(lock_of(&entry.key));
        host.after_copy = is_present && self.gone_on;
    }

    /// A look at a former lock. If that is free, its key is to be struck out of the entry.
    fn look_at_lock(&mut self, h: usize, key: usize, is_free: bool) {
        let base = self.base();
        let host = &mut self.hosts[h];
        let Registrar::Waiting(entry) = std::mem::replace(&mut host.registrar, Registrar::Resting)
        else {
            return;
        };
        if let Some(mut entry) = registration(Some(&entry)).filter(|_| is_free) {
            entry.former.retain(|former| lock_of(former) != key);
            host.registrar = Registrar::Writing(Write::of(&entry, base));
        } else {
            host.cleared = false;
        }
    }

    /// Adopts the configured key, up to the write.
    fn adopt(&mut self, h: usize, plan: Plan) {
        let found = found(self.entry.as_ref());
        let verdict = self.judge(h, &found, self.is_newer(h), true, plan);
        match (verdict, found) {
            (Verdict::Write(mut entry), _) => {
                if !plan.keeps(Premise::FormerKept) {
                    entry.former.clear();
                }
                self.hosts[h].registrar = Registrar::Adopting(Write::of(&entry, self.base()));
            }
            (Verdict::Cleared | Verdict::Waits(_), Found::Entry(entry)) => {
                self.keep(h, &entry, true, plan);
                self.watch(h);
            }
            (Verdict::Cleared | Verdict::Waits(_) | Verdict::Refused(_), _) => {}
        }
    }

    fn write(&mut self, h: usize, answer: Answer, search: &Entries) {
        let plan = search.plan;
        let (write, adopts) =
            match std::mem::replace(&mut self.hosts[h].registrar, Registrar::Resting) {
                Registrar::Writing(write) => (write, false),
                Registrar::Adopting(write) => (write, true),
                Registrar::Resting | Registrar::Waiting(_) => return,
            };
        let applied = if answer == Answer::ComesTooEarly {
            self.late = Some(write.clone());
            false
        } else if adopts || plan.keeps(Premise::MadeByComparing) {
            self.apply(&write, plan)
        } else {
            self.replace(Some(Arc::clone(&write.value)), plan);
            true
        };
        if applied {
            search.milestones.reach(match write.base {
                _ if adopts => Milestone::KeyAdopted,
                Base::Nothing => Milestone::EntryMade,
                Base::Latest => Milestone::FormerStruckOut,
            });
        }
        let believed = !adopts && answer != Answer::Comes && !plan.keeps(Premise::ReadAgain);
        self.hosts[h].cleared |= believed;
        if (believed || (adopts && applied && answer == Answer::Comes))
            && let Some(entry) = registration(Some(&write.value))
        {
            self.keep(h, &entry, true, plan);
            self.watch(h);
        }
    }

    /// Applies a write if it does not conflict. Returns whether it did.
    fn apply(&mut self, write: &Write, plan: Plan) -> bool {
        let fits = write.base == Base::Latest || self.entry.is_none();
        if fits {
            self.replace(Some(Arc::clone(&write.value)), plan);
        }
        fits
    }

    fn base(&self) -> Base {
        if self.entry.is_some() {
            Base::Latest
        } else {
            Base::Nothing
        }
    }

    /// Replaces the entry. Every write that was to replace the former value conflicts from now on.
    fn replace(&mut self, value: Option<Arc<Value>>, plan: Plan) {
        self.entry = value;
        self.gone_on = plan.goes_back;
        let entry = registration(self.entry.as_ref());
        let named = entry.as_ref().map(|entry| lock_of(&entry.key));
        if let Some(key) = named.filter(|_| named != self.newest && plan.needs_memory()) {
            self.newest = named;
            self.hosts.iter_mut().for_each(|host| {
                host.saw.take_if(|saw| *saw == key);
            });
        }
        let conflicts = |write: &Write| write.base == Base::Latest;
        for host in &mut self.hosts {
            host.orphaned &= !host
                .lease
                .is_some_and(|(key, _)| mentions(entry.as_ref(), key));
            let is_over = match &host.registrar {
                Registrar::Resting => false,
                Registrar::Waiting(_) => plan.keeps(Premise::StruckByComparing),
                Registrar::Writing(write) => {
                    conflicts(write) && plan.keeps(Premise::StruckByComparing)
                }
                Registrar::Adopting(write) => conflicts(write),
            };
            if is_over {
                host.registrar = Registrar::Resting;
            }
        }
        self.late.take_if(|write| conflicts(write));
    }

    /// Vets a claim between the claim and the start (N2).
    fn vet(&mut self, h: usize, search: &Entries) {
        let plan = search.plan;
        let shown = found(self.entry.as_ref());
        let verdict = if plan.keeps(Premise::VettedByMemory) {
            self.judge(h, &shown, self.is_newer(h), false, plan)
        } else {
            judge(&place(self.hosts[h].key), None, &shown, &position(2), false)
        };
        let vouches = match verdict {
            Verdict::Cleared => true,
            Verdict::Waits(_) => !plan.keeps(Premise::VettedForFormer),
            Verdict::Write(_) | Verdict::Refused(_) => false,
        };
        if vouches {
            self.hosts[h].turn(Lease::Vetted);
            if plan.keeps(Premise::VettedByWriting) {
                self.replace(self.entry.clone(), plan);
            }
        } else {
            self.hosts[h].end();
            search.milestones.reach(Milestone::VetFailed);
        }
    }
}

impl Host {
    fn turn(&mut self, to: Lease) {
        self.lease = self.lease.map(|(key, _)| (key, to));
    }

    fn end(&mut self) {
        (self.lease, self.orphaned) = (None, false);
    }

    /// Drops a claim under which nothing was started.
    fn lose_claim(&mut self) {
        if !matches!(self.lease, Some((_, Lease::Running | Lease::Doomed))) {
            self.end();
        }
    }
}

impl Write {
    fn of(entry: &Registration, base: Base) -> Self {
        Self {
            base,
            value: Arc::new(entry.encode(&unit())),
        }
    }
}
