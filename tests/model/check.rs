//! The searches, through all states or along random walks, and their reports.

use std::{
    fmt::{Debug, Write as _},
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use stateright::{Checker, HasDiscoveries, Model, Path, Property};

use crate::{
    entry::{self, Entries},
    plan::Plan,
    world::{Step, World},
};

/// What a search has to reach; without it the search has shown nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Milestone {
    ActiveOnFirst,
    ActiveOnSecond,
    ActiveOnThird,
    /// A record that another host held was replaced.
    TakeOver,
    /// A `proven` was written.
    Release,
    /// A daemon came back to a lease that the guard remembers.
    Adoption,
    /// A lease ended with the unit running, or starting.
    Lapse,
    /// A start came too late, and the gate refused it.
    GateRefused,
    /// A write was applied that nobody waited for any more.
    LateWrite,
    /// A claim was lost, or given up.
    ClaimLost,
    /// A host told that it gave up its claim.
    GaveUp,
    /// The store went back in place.
    WentBack,
    /// The entry of a unit was made.
    EntryMade,
    /// An operator's word changed the key in the entry.
    KeyAdopted,
    /// A former lock was seen free, and its key was struck out of the entry.
    FormerStruckOut,
    /// The entry did not vouch for a claim.
    VetFailed,
    /// A host noticed that the entry is older than the one that it saw before, and refused it.
    GoingBackNoticed,
}

impl Milestone {
    const COUNT: usize = Self::GoingBackNoticed as usize + 1;

    const ALL: [Self; Self::COUNT] = [
        Self::ActiveOnFirst,
        Self::ActiveOnSecond,
        Self::ActiveOnThird,
        Self::TakeOver,
        Self::Release,
        Self::Adoption,
        Self::Lapse,
        Self::GateRefused,
        Self::LateWrite,
        Self::ClaimLost,
        Self::GaveUp,
        Self::WentBack,
        Self::EntryMade,
        Self::KeyAdopted,
        Self::FormerStruckOut,
        Self::VetFailed,
        Self::GoingBackNoticed,
    ];

    pub fn active_on(host: usize) -> Self {
        match host {
            0 => Self::ActiveOnFirst,
            1 => Self::ActiveOnSecond,
            _ => Self::ActiveOnThird,
        }
    }
}

/// How often each milestone was reached.
#[derive(Debug, Default)]
pub struct Milestones([AtomicU64; Milestone::COUNT]);

impl Milestones {
    pub fn reach(&self, milestone: Milestone) {
        self.0[milestone as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn count(&self, milestone: Milestone) -> u64 {
        self.0[milestone as usize].load(Ordering::Relaxed)
    }
}

/// What is wrong with a state, if anything is.
fn fault_of(plan: &Plan, world: &World) -> Option<&'static str> {
    if world.executing() > 1 {
        Some(OVERLAP)
    } else if world.token_fell() {
        Some(TOKEN_FELL)
    } else if world.quiet() > plan.bound() {
        Some(IDLE)
    } else {
        None
    }
}

pub const TOKEN_FELL: &str = "a fencing token did not grow";

/// The name of the property that is checked in each state.
pub const PROMISE: &str = "promise";
/// A violation: two units execute at the same time.
pub const OVERLAP: &str = "two units are alive at once";
/// A violation: no unit is active for longer than the bound.
pub const IDLE: &str = "nothing is active, long after the last fault";

/// The result of a search.
#[derive(Debug)]
pub struct Outcome {
    name: String,
    /// How many states were visited, repeated visits included.
    pub visited: u64,
    /// How many different states there were, if the search tells them apart.
    pub unique: Option<u64>,
    /// The largest number of steps from the beginning.
    pub depth: u64,
    pub took: Duration,
    /// Whether every state was visited.
    pub complete: bool,
    /// The violation that was found, and the steps that lead to it.
    pub found: Option<(&'static str, String)>,
    milestones: Arc<Milestones>,
    /// The longest time without an active unit after the last fault.
    pub longest_quiet: Duration,
    bound: Option<Duration>,
}

impl Outcome {
    fn tell(&self) {
        let mut line = format!("{}: ", self.name);
        match self.unique {
            Some(unique) => {
                let _ = write!(line, "{unique} states ({} visits)", self.visited);
            }
            None => {
                let _ = write!(line, "{} random visits", self.visited);
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let rate = self.visited as f64 / self.took.as_secs_f64().max(0.001) / 1000.0;
        let _ = write!(
            line,
            ", depth {}, {:.1?}, {rate:.0} thousand visits a second",
            self.depth, self.took
        );
        line += match (&self.found, self.complete) {
            (Some(_), _) => "; found: ",
            (None, true) => "; complete",
            (None, false) => "; NOT complete",
        };
        line += self.found.as_ref().map_or("", |(what, _)| what);
        if let Some(bound) = self.bound {
            let _ = write!(
                line,
                "; at most {:?} of {bound:?} without an active unit",
                self.longest_quiet
            );
        }
        for milestone in Milestone::ALL {
            let count = self.milestones.count(milestone);
            if count > 0 {
                let _ = write!(line, "; {milestone:?} {count}");
            }
        }
        println!("{line}");
    }

    /// Asserts that no violation was found and that the search was large enough: at least `least` states, and all of
    /// `milestones`.
    pub fn holds(&self, least: u64, milestones: &[Milestone]) {
        if let Some((what, path)) = &self.found {
            panic!("{}: {what}\n{path}", self.name);
        }
        let looked_at = self.unique.unwrap_or(self.visited);
        assert!(
            looked_at >= least,
            "{}: only {looked_at} states were looked at, of at least {least}",
            self.name
        );
        for milestone in milestones {
            assert!(
                self.milestones.count(*milestone) > 0,
                "{}: never came by {milestone:?}",
                self.name
            );
        }
    }

    /// Asserts that the search found the violation that it was made to find.
    pub fn finds(&self, what: &str) {
        match &self.found {
            Some((found, path)) if *found == what => println!("{path}"),
            Some((found, path)) => {
                panic!("{}: found that {found}, not that {what}\n{path}", self.name)
            }
            None if self.complete => panic!("{}: did not find that {what}", self.name),
            None => panic!(
                "{}: did not find that {what} before its time was over",
                self.name
            ),
        }
    }
}

struct Check {
    plan: Arc<Plan>,
    milestones: Arc<Milestones>,
    longest_quiet: Arc<AtomicU64>,
}

impl PartialEq for World {
    /// The search compares states by their fingerprints. This is never called for two states that are equal.
    fn eq(&self, _: &Self) -> bool {
        false
    }
}

impl Model for Check {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.plan, &self.milestones)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Step>) {
        world.steps(actions);
        // When all is calm, what is due happens at once, and its order matters little.
        if world.is_calm() {
            actions.truncate(1);
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        next.take(step);
        let quiet = u64::try_from(next.quiet().as_nanos()).unwrap_or(u64::MAX);
        self.longest_quiet.fetch_max(quiet, Ordering::Relaxed);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(PROMISE, |check: &Self, world: &World| {
            fault_of(&check.plan, world).is_none()
        })]
    }

    fn within_boundary(&self, world: &World) -> bool {
        // States in which the service is active again after the last fault are not searched further here.
        !(world.is_calm() && world.quiet().is_zero() && world.is_served())
    }
}

/// Visits all states, those with the fewest steps first, until `limit` is over or `most` states were visited.
pub fn exhaust(name: &str, plan: Plan, limit: Duration, most: usize) -> Outcome {
    let (plan, milestones) = (Arc::new(plan), Arc::new(Milestones::default()));
    let longest_quiet = Arc::new(AtomicU64::new(0));
    let check = Check {
        plan: Arc::clone(&plan),
        milestones: Arc::clone(&milestones),
        longest_quiet: Arc::clone(&longest_quiet),
    };
    let mut outcome = search(
        name,
        check,
        milestones,
        limit,
        most,
        |world| fault_of(&plan, world),
        World::show,
    );
    outcome.longest_quiet = Duration::from_nanos(longest_quiet.load(Ordering::Relaxed));
    outcome.bound = plan.calm.then(|| plan.bound());
    outcome.tell();
    outcome
}

/// Visits all states of the model of a unit's entry.
pub fn exhaust_entries(name: &str, plan: entry::Plan, limit: Duration, most: usize) -> Outcome {
    let milestones = Arc::new(Milestones::default());
    let entries = Entries {
        plan,
        milestones: Arc::clone(&milestones),
    };
    let outcome = search(
        name,
        entries,
        milestones,
        limit,
        most,
        entry::World::fault,
        entry::World::show,
    );
    outcome.tell();
    outcome
}

/// Runs the search. `fault_of` says what is wrong with a state that violates the model's promise.
fn search<M>(
    name: &str,
    model: M,
    milestones: Arc<Milestones>,
    limit: Duration,
    most: usize,
    fault_of: impl Fn(&M::State) -> Option<&'static str>,
    show: impl Fn(&M::State) -> String,
) -> Outcome
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let begin = Instant::now();
    let checker = model
        .checker()
        .threads(threads())
        .timeout(limit)
        .target_state_count(most)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let took = begin.elapsed();
    let found = checker.discovery(PROMISE).map(|path| {
        let what = fault_of(path.last_state()).unwrap_or("nothing");
        (what, tell_path(path, show))
    });
    Outcome {
        name: name.to_owned(),
        visited: checker.state_count() as u64,
        unique: Some(checker.unique_state_count() as u64),
        depth: checker.max_depth() as u64,
        took,
        complete: found.is_none() && took < limit && checker.state_count() < most,
        found,
        milestones,
        longest_quiet: Duration::ZERO,
        bound: None,
    }
}

fn tell_path<State, Step: Debug>(
    path: Path<State, Step>,
    show: impl Fn(&State) -> String,
) -> String {
    let mut text = String::new();
    let mut before = None;
    for (state, step) in path.into_vec() {
        let now = show(&state);
        if before.as_ref() != Some(&now) {
            let _ = writeln!(text, "    {now}");
        }
        if let Some(step) = step {
            let _ = writeln!(text, "{step:?}");
        }
        before = Some(now);
    }
    text
}

/// SplitMix64: small, and good enough to choose steps with.
struct Rng(u64);

impl Rng {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.bits() % (limit.max(1) as u64)).unwrap_or_default()
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// What kind of steps a walk prefers.
struct Taste {
    /// In how many percent of the steps a rare step is taken, if there is one.
    rare: usize,
    /// In how many percent of the steps time passes although something is due.
    late: usize,
    /// In how many percent of the steps a stop that is under way may end.
    ends: usize,
    /// In how many percent of the steps a host that may be late begins to delay everything, for fewer than `pause` steps.
    pauses: usize,
    pause: usize,
    length: usize,
}

impl Taste {
    fn of(rng: &mut Rng) -> Self {
        Self {
            rare: [2, 5, 10, 20][rng.below(4)],
            late: [0, 3, 10, 30][rng.below(4)],
            ends: [5, 50][rng.below(2)],
            pauses: [0, 1, 3, 10][rng.below(4)],
            pause: [20, 40, 80][rng.below(3)],
            length: [100, 200, 400][rng.below(3)],
        }
    }

    fn choose(&self, rng: &mut Rng, steps: &[Step], kept: &mut Vec<Step>) -> Step {
        let mut pick = |rng: &mut Rng, wanted: &dyn Fn(Step) -> bool| {
            kept.clear();
            kept.extend(steps.iter().copied().filter(|step| wanted(*step)));
            (!kept.is_empty()).then(|| kept[rng.below(kept.len())])
        };
        let ends = rng.chance(self.ends);
        let passes = rng.chance(self.late);
        let ordinary = |step: Step| {
            !step.is_rare() && step != Step::Tick && (ends || !matches!(step, Step::UnitEnds(_)))
        };
        let rare = if rng.chance(self.rare) {
            pick(rng, &|step| step.is_rare() && step != Step::Calm)
        } else {
            None
        };
        let tick = steps.contains(&Step::Tick).then_some(Step::Tick);
        rare.or(tick.filter(|_| passes))
            .or_else(|| pick(rng, &ordinary))
            .or(tick)
            .unwrap_or_else(|| steps[rng.below(steps.len())])
    }
}

/// A host that delays everything for some steps.
#[derive(Default)]
struct Pause {
    host: usize,
    left: usize,
}

impl Pause {
    fn go_on(&mut self, rng: &mut Rng, taste: &Taste, plan: &Plan) {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 && rng.chance(taste.pauses) {
            let host = rng.below(plan.hosts.len());
            let span = rng.below(taste.pause);
            if plan.hosts[host].late {
                (self.host, self.left) = (host, span);
            }
        }
    }

    /// Removes the steps of the paused host. Time can always pass instead.
    fn hold_back(&self, steps: &mut Vec<Step>) {
        if self.left > 0 {
            steps.retain(|step| step.due_at() != Some(self.host));
        }
    }
}

/// How many random walks there are.
#[derive(Debug, Clone, Copy)]
pub enum Effort {
    /// This number of walks, the same ones each time.
    Walks(u64),
    /// Walks until something is found, or until this time is over.
    Time(Duration),
}

/// Random walks from the first state, each with a taste of its own. If the plan allows calm, each walk ends with it.
pub fn walk(name: &str, plan: Plan, first: u64, effort: Effort) -> Outcome {
    let begin = Instant::now();
    let (plan, milestones) = (Arc::new(plan), Arc::new(Milestones::default()));
    let (visited, depth, quiet) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let found = std::sync::Mutex::new(None);
    let next_seed = AtomicU64::new(first);
    let goes_on = |seed: u64| match effort {
        Effort::Walks(walks) => seed - first < walks,
        Effort::Time(limit) => begin.elapsed() < limit,
    };
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                loop {
                    let seed = next_seed.fetch_add(1, Ordering::Relaxed);
                    if !goes_on(seed) || found.lock().expect("no walker fails").is_some() {
                        return;
                    }
                    let walk = walk_once(&plan, &milestones, seed);
                    visited.fetch_add(walk.steps, Ordering::Relaxed);
                    depth.fetch_max(walk.steps, Ordering::Relaxed);
                    let nanos = u64::try_from(walk.quiet.as_nanos()).unwrap_or(u64::MAX);
                    quiet.fetch_max(nanos, Ordering::Relaxed);
                    if let Some(what) = walk.found {
                        *found.lock().expect("no walker fails") = Some((what, replay(&plan, seed)));
                    }
                }
            });
        }
    });
    let outcome = Outcome {
        name: name.to_owned(),
        visited: visited.into_inner(),
        unique: None,
        depth: depth.into_inner(),
        took: begin.elapsed(),
        complete: false,
        found: found.into_inner().expect("no walker failed"),
        milestones,
        longest_quiet: Duration::from_nanos(quiet.into_inner()),
        bound: plan.calm.then(|| plan.bound()),
    };
    outcome.tell();
    outcome
}

struct Walk {
    steps: u64,
    quiet: Duration,
    found: Option<&'static str>,
}

fn walk_once(plan: &Arc<Plan>, milestones: &Arc<Milestones>, seed: u64) -> Walk {
    go(plan, milestones, seed, &mut |_, _| {})
}

fn replay(plan: &Arc<Plan>, seed: u64) -> String {
    let mut text = format!("seed {seed}\n");
    let mut before = String::new();
    go(plan, &Arc::default(), seed, &mut |step, world| {
        let _ = writeln!(text, "{step:?}");
        let now = world.show();
        if now != before {
            let _ = writeln!(text, "    {now}");
        }
        before = now;
    });
    text
}

fn go(
    plan: &Arc<Plan>,
    milestones: &Arc<Milestones>,
    seed: u64,
    tell: &mut dyn FnMut(Step, &World),
) -> Walk {
    let mut rng = Rng(seed);
    let taste = Taste::of(&mut rng);
    let mut world = World::new(plan, milestones);
    let mut walk = Walk {
        steps: 0,
        quiet: Duration::ZERO,
        found: None,
    };
    let (mut steps, mut kept) = (Vec::new(), Vec::new());
    let mut after = 0;
    let mut pause = Pause::default();
    loop {
        steps.clear();
        world.steps(&mut steps);
        if !world.is_calm() {
            pause.go_on(&mut rng, &taste, plan);
            pause.hold_back(&mut steps);
        }
        let begins_calm = walk.steps >= taste.length as u64 && !world.is_calm();
        let step = if begins_calm && plan.calm {
            Step::Calm
        } else {
            taste.choose(&mut rng, &steps, &mut kept)
        };
        world.take(step);
        walk.steps += 1;
        tell(step, &world);
        walk.quiet = walk.quiet.max(world.quiet());
        walk.found = fault_of(plan, &world);
        if walk.found.is_some() || (begins_calm && !plan.calm) {
            return walk;
        }
        // The walk goes on for a while: a service that is active again has to stay so.
        after += u64::from(world.is_calm() && world.is_served());
        if after > 100 {
            return walk;
        }
        assert!(
            walk.steps < 20_000,
            "seed {seed} does not come to an end: {} {steps:?}",
            world.show()
        );
    }
}

fn threads() -> usize {
    std::thread::available_parallelism()
        .map_or(1, std::num::NonZeroUsize::get)
        .min(4)
}
