//! Enforces lapses (H4), by a bounded number of threads, however many leases lapse at once.
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
//!
//! | who | what it does | where it may hang |
//! | --- | --- | --- |
//! | the timekeeper | when a lease's control groups are to be looked at, gives that as a job to the killers | nowhere |
//! | the killers | look, send SIGKILL, look again; they ask nobody | in the kernel, over one group: another killer is added |
//! | the asker | asks PID 1, over one connection for leases due for SIGKILL, then one for the others | until its time limit |
//! | the lookers | check what is mounted | in the kernel, over one device: another looker is added |
//! | the inquirers | look at the devices that putexd asks about | in the same way, and no lapse waits for them |
//!
//! So a lease whose group or mount hangs, or a PID 1 that hangs, does not keep any other lease from being killed in time. All
//! threads but additional killers, lookers and inquirers exist before the first lease is armed: a lapse needs nothing that the host may be
//! unable to give then.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::agenda::Agenda;
use super::mounts::Looker;
use super::pid1::{self, Systemd, WithoutProcess};
use super::table::is_below_the_root;
use super::thread_pool::{STACK_BYTES, ThreadPool};
use super::told::{self, Level, say};
use crate::guard_client::frame::Lease;
use crate::host::cgroup::Hierarchy;
use crate::host::clock;
use crate::journal::GuardAlarm;
use crate::types::{ServiceName, Time, UnitName};

/// Time between two looks at a control group that is not empty.
const KILL_INTERVAL: Duration = Duration::from_millis(20);
/// Time between two looks at a control group that was empty, and the longest time between two readings of the clock.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// How long systemd may take for everything that it is asked over one connection.
const ASK_LIMIT: Duration = Duration::from_secs(1);
/// Time between two complaints in the log of the same kind.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);
/// How long a stop is under way, at least, before the log complains of it.
const FIRST_COMPLAINT_AFTER: Duration = Duration::from_secs(1);
/// The limit of killers. All but one of them may hang, each over a group, and SIGKILL is still sent.
const MOST_KILLERS: usize = 16;
/// The limit of lookers.
const MOST_LOOKERS: usize = 64;
/// The limit of inquirers. When all of them hang, putexd gets no answer, and the lookers prove what is proven.
const MOST_INQUIRERS: usize = 16;

/// All enforcements, and the threads that carry them out.
#[derive(Debug)]
pub struct Enforcer {
    office: Arc<Office>,
    stopped: Receiver<ServiceName>,
}

/// The enforcement of one lapsed lease. Dropping it ends it.
#[derive(Debug)]
pub struct Enforcement {
    office: Arc<Office>,
    case: Arc<Case>,
}

impl Enforcer {
    /// Starts all threads that a lapse needs. Fails if one cannot be started.
    pub fn start(hierarchy: Arc<Hierarchy>, systemd: PathBuf) -> io::Result<Self> {
        let (tell, stopped) = channel();
        let killers = ThreadPool::new("killer", MOST_KILLERS)?;
        let lookers = ThreadPool::new("looker", MOST_LOOKERS).inspect_err(|_| killers.close())?;
        let close = |_: &io::Error| [&killers, &lookers].into_iter().for_each(ThreadPool::close);
        let inquirers = ThreadPool::new("inquirer", MOST_INQUIRERS).inspect_err(close)?;
        let (cases, timekeeper, asker) = (Mutex::default(), Condvar::new(), Condvar::new());
        let office =
            Arc::new(Office { hierarchy, systemd, killers, lookers, inquirers, tell, cases, timekeeper, asker });
        let enforcer = Self { office, stopped };
        enforcer.spawn("timekeeper", Office::keep_time)?;
        enforcer.spawn("asker", |office| office.ask())?;
        Ok(enforcer)
    }

    fn spawn(&self, name: &str, work: impl FnOnce(Arc<Office>) + Send + 'static) -> io::Result<()> {
        let office = Arc::clone(&self.office);
        thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(move || work(office)).map(drop)
    }

    /// Begins to stop the units of a lapsed lease.
    #[must_use]
    pub fn begin(&self, lease: Lease) -> Enforcement {
        let office = &self.office;
        let now = clock::now();
        let looker = Looker::begin(&office.lookers, &lease.inactive);
        let questions = Questions { begun: lease.begun.clone(), looker, empty_at: now, complain_at: now };
        // After the host stood still S may be over already, although the stop has only just begun.
        let complain_at = lease.terms.dead_by().latest(now.plus(FIRST_COMPLAINT_AFTER));
        let state = State { complain_at, ..State::default() };
        let mut cases = office.lock();
        let number = cases.next;
        cases.next += 1;
        let (state, questions) = (Mutex::new(state), Mutex::new(questions));
        let case = Arc::new(Case { number, target: lease.service.lease_target(), lease, state, questions });
        let due = case.lease.terms.kill_at();
        cases.all.insert(number, Arc::clone(&case));
        office.look_at(&mut cases, due, number);
        office.asker.notify_one();
        drop(cases);
        Enforcement { office: Arc::clone(office), case }
    }

    /// Has an inquirer do a job that may hang.
    pub fn give(&self, job: impl FnOnce() + Send + 'static) {
        self.office.inquirers.give(job);
        // Without the lock the timekeeper would miss this on its way to wait.
        let _cases = self.office.lock();
        self.office.timekeeper.notify_one();
    }

    /// The next service whose units were seen dead; each proof is reported once. They may have been started since:
    /// [`Enforcement::is_stopped`] says what holds now.
    pub fn next_stopped(&self) -> Option<ServiceName> {
        self.stopped.try_recv().ok()
    }
}

impl Drop for Enforcer {
    fn drop(&mut self) {
        self.office.lock().closed = true;
        self.office.timekeeper.notify_one();
        self.office.asker.notify_one();
        self.office.killers.close();
        self.office.lookers.close();
        self.office.inquirers.close();
    }
}

impl Enforcement {
    /// Whether systemd has accepted the stop.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.case.lock().asked
    }

    /// Whether the units were seen dead after SIGKILL was due, and nothing of them was seen since.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.case.lock().stopped
    }

    /// Whether the latest looks show the units dead too, and systemd has taken on their stop. A systemd that hangs may be in
    /// the middle of a start, of which the control groups show nothing yet.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        let state = self.case.lock();
        let is_dead = state.empty && (state.inactive || self.case.lease.inactive.is_empty());
        state.stopped && is_dead && state.asked && state.placed && state.has_main == Some(false)
    }
}

impl Drop for Enforcement {
    fn drop(&mut self) {
        self.case.lock().over = true;
        let mut cases = self.office.lock();
        cases.all.remove(&self.case.number);
        if let Some(due) = cases.times.remove(&self.case.number) {
            cases.due.remove((), due, &self.case.number);
        }
    }
}

/// What all threads share. No lock is held over a call that may hang.
#[derive(Debug)]
struct Office {
    hierarchy: Arc<Hierarchy>,
    systemd: PathBuf,
    killers: ThreadPool,
    lookers: ThreadPool,
    inquirers: ThreadPool,
    tell: Sender<ServiceName>,
    cases: Mutex<Cases>,
    timekeeper: Condvar,
    asker: Condvar,
}

#[derive(Debug, Default)]
struct Cases {
    /// The enforcer was dropped, as when the guard did not start after all: the threads are to end.
    closed: bool,
    next: u64,
    all: BTreeMap<u64, Arc<Case>>,
    /// When each case is looked at next, for the timekeeper. A case is in neither map while a killer looks at it.
    due: Agenda<(), u64>,
    times: BTreeMap<u64, Time>,
}

/// The enforcement of one lapsed lease, as the threads see it.
#[derive(Debug)]
struct Case {
    number: u64,
    target: UnitName,
    lease: Lease,
    state: Mutex<State>,
    /// Only the asker uses these.
    questions: Mutex<Questions>,
}

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is seen by itself, in any order")]
struct State {
    over: bool,
    asked: bool,
    /// After it took on the stop, systemd has said which control groups the units have.
    placed: bool,
    /// The control groups that systemd has named and the lease does not.
    elsewhere: BTreeSet<String>,
    /// The control groups whose kill the journal was told of.
    killed: BTreeSet<String>,
    /// Whether systemd had a main process of the units when it was last asked, with all groups empty. `None`: it was not asked
    /// since processes were last seen in the groups.
    has_main: Option<bool>,
    stopped: bool,
    /// The journal was told that the units are dead, and nothing of them was seen since.
    death_is_told: bool,
    /// All groups were empty at the last look.
    empty: bool,
    /// How often a group had processes. An answer counts only if this has not changed since the question.
    sightings: u64,
    /// When a look first found that SIGKILL was due.
    killing_since: Option<Time>,
    /// Since processes were last seen in a group, systemd has accepted the stop of what is contained.
    emptied: bool,
    /// The units that can be active without a process were inactive when systemd was last asked.
    inactive: bool,
    /// When the log may complain again that the units are not dead.
    complain_at: Time,
}

#[derive(Debug)]
struct Questions {
    /// The units of the lease's `begun` that were not seen active since.
    begun: Vec<UnitName>,
    /// Checks the mounts. `None`: there is no mount among the units.
    looker: Option<Looker>,
    /// When systemd is next asked to stop what is contained.
    empty_at: Time,
    /// When the log may complain again of what is still mounted.
    complain_at: Time,
}

/// The work of the timekeeper and the killers.
impl Office {
    fn lock(&self) -> MutexGuard<'_, Cases> {
        self.cases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the time at which a case is to be looked at.
    fn look_at(&self, cases: &mut Cases, due: Time, number: u64) {
        let first = cases.due.first(());
        cases.due.insert((), due, &number);
        cases.times.insert(number, due);
        if cases.due.first(()) != first {
            self.timekeeper.notify_one();
        }
    }

    fn keep_time(self: Arc<Self>) {
        let mut cases = self.lock();
        while !cases.closed {
            let now = clock::now();
            let due: BTreeSet<u64> = cases.due.passed((), now).copied().collect();
            for number in due {
                if let Some(due) = cases.times.remove(&number) {
                    cases.due.remove((), due, &number);
                }
                if let Some(case) = cases.all.get(&number) {
                    let (office, case) = (Arc::clone(&self), Arc::clone(case));
                    self.killers.give(move || office.look(&case));
                }
            }
            let is_behind = [&self.killers, &self.lookers, &self.inquirers].map(ThreadPool::look_after).contains(&true);
            if cases.all.is_empty() && !is_behind {
                cases = self.timekeeper.wait(cases).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let most = if is_behind { KILL_INTERVAL } else { WATCH_INTERVAL };
            let limit = cases.due.first(()).map_or(most, |first| clock::now().until_passed(first).min(most));
            cases = self.timekeeper.wait_timeout(cases, limit).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn look(&self, case: &Case) {
        let Some(next) = case.look(&self.hierarchy, &self.tell) else { return };
        let mut cases = self.lock();
        if cases.all.contains_key(&case.number) {
            self.look_at(&mut cases, next, case.number);
        }
    }
}

impl Case {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the groups, and kills what is in them if SIGKILL is due. Returns when to look again; `None`: never.
    fn look(&self, hierarchy: &Hierarchy, tell: &Sender<ServiceName>) -> Option<Time> {
        let now = clock::now();
        let kill_at = self.lease.terms.kill_at();
        let complain = {
            let mut state = self.lock();
            if state.over {
                return None;
            }
            if !now.has_passed(kill_at) {
                return Some(kill_at);
            }
            state.killing_since.get_or_insert(now);
            let complain = now.has_passed(state.complain_at);
            if complain {
                state.complain_at = now.plus(COMPLAINT_INTERVAL);
            }
            complain
        };
        let empty = self.kill(hierarchy, complain)?;
        let needs_systemd = !self.lease.inactive.is_empty();
        let stopped = {
            let mut state = self.lock();
            state.empty = empty;
            state.emptied &= empty;
            empty && self.is_known(&state) && (!needs_systemd || state.inactive)
        };
        if stopped && !needs_systemd {
            self.is_dead(None, tell);
        }
        if !stopped && complain {
            self.tell(GuardAlarm::Unproven, "its units are still not proven dead, trying again");
        }
        Some(clock::now().plus(if stopped { WATCH_INTERVAL } else { KILL_INTERVAL }))
    }

    /// Sends SIGKILL to everything in the control groups. Returns whether they are empty; `None`: the lease was disarmed
    /// meanwhile.
    fn kill(&self, hierarchy: &Hierarchy, complain: bool) -> Option<bool> {
        let mut all_empty = true;
        let elsewhere = self.lock().elsewhere.clone();
        for path in self.lease.cgroups.iter().chain(&elsewhere) {
            let empty = hierarchy.is_empty(path).and_then(|empty| {
                if empty {
                    return Ok(empty);
                }
                let Some(was_stopped) = self.sees_life() else { return Ok(empty) };
                hierarchy.kill(path)?;
                self.tell_of_kill(path, was_stopped);
                hierarchy.is_empty(path)
            });
            match empty {
                Ok(empty) => all_empty &= empty,
                Err(error) => {
                    all_empty = false;
                    if complain {
                        self.tell(GuardAlarm::Unproven, &not_killed(path, &error));
                    }
                }
            }
        }
        (!self.lock().over).then_some(all_empty)
    }

    /// Whether PID 1 has said where the units are, and that it has no main process of them. If PID 1 has taken on the stop, its
    /// answer is waited for until the units have to be dead. After that the groups are all that counts: a busy PID 1 has not
    /// heard of the deaths yet.
    fn is_known(&self, state: &State) -> bool {
        let is_told = state.placed && state.has_main == Some(false);
        is_told || !state.asked || clock::now().has_passed(self.lease.terms.dead_by())
    }

    /// Notes that a group has processes. Returns whether the units had been seen dead before; `None`: the lease is not enforced
    /// any more, so that they must not be killed.
    fn sees_life(&self) -> Option<bool> {
        let mut state = self.lock();
        state.sightings += 1;
        state.has_main = None;
        let was_stopped = std::mem::take(&mut state.stopped) | std::mem::take(&mut state.death_is_told);
        (!state.over).then_some(was_stopped)
    }

    /// Tells that a group has got SIGKILL: once, and each time that it had processes again after the units were seen dead.
    fn tell_of_kill(&self, path: &str, was_stopped: bool) {
        let is_new = self.lock().killed.insert(path.to_owned());
        let reason = match (was_stopped, is_new) {
            (true, _) => format!("{path} has processes again, which have got SIGKILL"),
            (false, true) => {
                format!("the processes in {path} have got SIGKILL, because they were left when it was due")
            }
            (false, false) => return,
        };
        told::alarm_of(Level::Alert, GuardAlarm::Killed, &self.lease, &[path], &reason);
    }

    fn tell(&self, alarm: GuardAlarm, reason: &str) {
        told::alarm_of(Level::Alert, alarm, &self.lease, &[], reason);
    }

    /// Notes that the units are dead, if all conditions still hold. `sightings`: the count when systemd was asked; a change
    /// since then makes its answer void.
    fn is_dead(&self, sightings: Option<u64>, tell: &Sender<ServiceName>) {
        let (is_new, is_told) = {
            let mut state = self.lock();
            let holds =
                state.empty && self.is_known(&state) && sightings.is_none_or(|sightings| sightings == state.sightings);
            let is_new = holds && !std::mem::replace(&mut state.stopped, true);
            (is_new, is_new && std::mem::replace(&mut state.death_is_told, true))
        };
        if is_new && !is_told {
            let reason = "nothing of its units runs any more";
            told::alarm_of(Level::Notice, GuardAlarm::Dead, &self.lease, &[], reason);
        }
        if is_new {
            // At the end of the guard nobody receives this.
            let _ = tell.send(self.lease.service.clone());
        }
    }
}

/// The work of the asker.
impl Office {
    fn ask(&self) {
        let mut grumble_at = clock::now();
        loop {
            let mut cases = self.lock();
            while cases.all.is_empty() && !cases.closed {
                cases = self.asker.wait(cases).unwrap_or_else(PoisonError::into_inner);
            }
            if cases.closed {
                return;
            }
            let mut all: Vec<Arc<Case>> = cases.all.values().cloned().collect();
            let known = cases.next;
            drop(cases);
            all.sort_by_key(|case| case.lease.terms.kill_at().boot);
            let (began, now) = (Instant::now(), clock::now());
            let (late, early): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|case| now.has_passed(case.lease.terms.kill_at()));
            // Late and early cases get a connection each, so that the early ones get a part of PID 1's time as well.
            let refusals = [self.ask_for(&late), self.ask_for(&early)];
            if clock::now().has_passed(grumble_at)
                && let Some(refusal) = refusals.into_iter().flatten().next()
            {
                grumble_at = clock::now().plus(COMPLAINT_INTERVAL);
                say(Level::Warning, &refusal);
            }
            // The pause limits how often PID 1 is asked, however many leases lapse one after the other.
            thread::sleep(KILL_INTERVAL);
            if late.iter().chain(&early).all(|case| case.is_settled()) {
                let next = early.iter().map(|case| clock::now().until_passed(case.lease.terms.kill_at())).min();
                // When nothing is left to be asked but to watch, PID 1 keeps most of its time.
                let pause = (began.elapsed() * 4).clamp(WATCH_INTERVAL, ASK_LIMIT).min(next.unwrap_or(ASK_LIMIT));
                let cases = self.lock();
                drop(self.asker.wait_timeout_while(cases, pause, |cases| cases.next == known));
            }
        }
    }

    /// Asks systemd everything that is due for `cases`. Returns the log line for what systemd did not do.
    fn ask_for(&self, cases: &[Arc<Case>]) -> Option<String> {
        let mut connection = None;
        let mut refused = None;
        let mut others = 0;
        for case in cases {
            let mut systemd = Asked { socket: &self.systemd, connection: &mut connection };
            match case.ask(&mut systemd, &self.tell) {
                Ok(()) => {}
                Err(error) if refused.is_none() => refused = Some((&case.lease.service, error)),
                Err(_) => others += 1,
            }
        }
        let (service, error) = refused?;
        let others = if others == 0 { String::new() } else { format!(" and of {others} other services") };
        Some(format!("{service}: cannot have systemd stop its units{others}, trying again: {error}"))
    }
}

/// Why it is not known that nothing of a group is left.
fn not_killed(path: &str, error: &io::Error) -> String {
    match told::shortage(error) {
        Some(shortage) => format!("{shortage}; so it is not known what is left of {path}, which is looked at again"),
        None => format!("cannot kill {path}, trying again: {error}"),
    }
}

/// Why systemd has not done what it was asked for. All questions of a round get the error that ended the connection.
type Unanswered = Arc<pid1::Error>;

struct Asked<'a> {
    socket: &'a PathBuf,
    /// The connection, or why there is none any more. `None`: nothing was asked in this round yet. A connection that has
    /// ended, or could not be made, is not made again within the round.
    connection: &'a mut Option<Result<Systemd, Unanswered>>,
}

impl Asked<'_> {
    fn call<T>(&mut self, question: impl FnOnce(&mut Systemd) -> Result<T, pid1::Error>) -> Result<T, Unanswered> {
        let connect = || Systemd::connect(self.socket, ASK_LIMIT).map_err(Arc::new);
        let connection = self.connection.get_or_insert_with(connect);
        let systemd = connection.as_mut().map_err(|error| Arc::clone(error))?;
        question(systemd).map_err(|error| {
            let error = Arc::new(error);
            if error.ends_connection() {
                *connection = Err(Arc::clone(&error));
            }
            error
        })
    }
}

impl Case {
    /// Whether systemd has nothing to do for this case now.
    fn is_settled(&self) -> bool {
        let state = self.lock();
        let is_late = clock::now().has_passed(self.lease.terms.kill_at());
        let is_dead = state.stopped && state.has_main == Some(false);
        let is_over = is_dead && (state.emptied || self.lease.contains.is_empty());
        state.asked && state.placed && (is_over || !is_late)
    }

    /// Asks systemd everything that is due for this case. `Err`: systemd did not confirm a stop.
    fn ask(&self, systemd: &mut Asked<'_>, tell: &Sender<ServiceName>) -> Result<(), Unanswered> {
        let now = clock::now();
        let is_late = now.has_passed(self.lease.terms.kill_at());
        let (asked, placed, emptied, may_ask, empty, has_main, sightings) = {
            let state = self.lock();
            // If a stop is asked for before systemd has noticed the deaths, it runs ExecStop=, which is a program of the unit.
            let has_had_time = |since: Time| now.has_passed(since.plus(self.lease.terms.kill_reserve / 2));
            let may_ask = !is_late || state.killing_since.is_some_and(|since| state.empty || has_had_time(since));
            if state.over {
                return Ok(());
            }
            (state.asked, state.placed, state.emptied, may_ask, state.empty, state.has_main, state.sightings)
        };
        let mut questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut outcome = Ok(());
        if is_late && !emptied && may_ask && now.has_passed(questions.empty_at) && !self.lease.contains.is_empty() {
            questions.empty_at = now.plus(WATCH_INTERVAL);
            outcome = systemd.call(|systemd| systemd.stop(&self.lease.contains));
            let mut state = self.lock();
            state.emptied = outcome.is_ok() && state.sightings == sightings;
        }
        if !asked && may_ask {
            let stopped = self.stop(&mut questions, systemd);
            self.lock().asked = stopped.is_ok();
            outcome = outcome.and(stopped);
        }
        // This comes in a later round than the stop, because the stops of all cases go first.
        if asked && !placed {
            self.find_groups(systemd);
        }
        if is_late && asked && empty && has_main != Some(false) {
            self.end_main(systemd, sightings);
        }
        if is_late && empty && !self.lease.inactive.is_empty() {
            let inactive = self.is_inactive(&mut questions, systemd);
            self.lock().inactive = inactive;
            if inactive {
                self.is_dead(Some(sightings), tell);
            }
        }
        outcome
    }

    /// Asks systemd to stop the units. Only whether it accepted matters here: the proof is taken from the kernel.
    fn stop(&self, questions: &mut Questions, systemd: &mut Asked<'_>) -> Result<(), Unanswered> {
        // A unit that is active now has completed its start, which systemd may forget after the stop.
        if !questions.begun.is_empty()
            && let Ok(started) = systemd.call(|systemd| systemd.started(&questions.begun))
        {
            questions.begun.retain(|unit| !started.contains(unit));
        }
        // The slices come first: systemd thaws nothing in a frozen slice.
        let slices = self
            .lease
            .cgroups
            .iter()
            .flat_map(|group| group.split('/'))
            .filter(|name| name.strip_suffix(".slice").is_some());
        let frozen: Vec<&str> = slices.chain(self.lease.units.iter().map(UnitName::as_str)).collect();
        systemd.call(|systemd| systemd.thaw(frozen.iter().copied()))?;
        // The lease target comes first: its stop takes everything that is bound to it along, in the right order.
        systemd.call(|systemd| systemd.stop(std::iter::once(&self.target).chain(&self.lease.units)))
    }

    /// Asks PID 1 which control groups the units have. The gate is closed, so none of them is started elsewhere from now on.
    fn find_groups(&self, systemd: &mut Asked<'_>) {
        // On an error the asker asks again in its next round.
        let Ok(said) = systemd.call(|systemd| systemd.groups(&self.lease.units)) else { return };
        let mut state = self.lock();
        state.placed = true;
        let is_elsewhere = |group: &String| !self.lease.cgroups.contains(group) && is_below_the_root(group);
        let elsewhere: Vec<String> = said.into_iter().filter(is_elsewhere).collect();
        if !elsewhere.is_empty() {
            let (service, groups) = (&self.lease.service, elsewhere.join(", "));
            say(
                Level::Warning,
                &format!(
                    "{service}: its units have the control groups {groups} as well, which its lease does not name"
                ),
            );
            // No killer has looked at these groups yet.
            state.sightings += 1;
            state.empty = false;
            state.elsewhere.extend(elsewhere);
        }
    }

    /// Has systemd kill the main processes that it knows, which are in none of the groups.
    fn end_main(&self, systemd: &mut Asked<'_>, sightings: u64) {
        // On an error the asker asks again in its next round.
        let Ok(has_main) = systemd.call(|systemd| systemd.kill_main(&self.lease.units)) else { return };
        let mut state = self.lock();
        if state.sightings == sightings {
            state.has_main = Some(has_main);
        }
    }

    fn is_inactive(&self, questions: &mut Questions, systemd: &mut Asked<'_>) -> bool {
        let of = WithoutProcess { target: &self.target, units: &self.lease.inactive, begun: &questions.begun };
        let inactive = systemd.call(|systemd| systemd.inactive(&of)).ok().flatten();
        let Some(looker) = &mut questions.looker else { return inactive.is_some() };
        let Some(mounts) = inactive else {
            looker.doubt();
            return false;
        };
        // The limit is zero: an answer that is not there yet is used for the next question.
        let Err(trouble) = looker.check(mounts, Duration::ZERO) else { return true };
        if !looker.is_looking() && clock::now().has_passed(questions.complain_at) {
            questions.complain_at = clock::now().plus(COMPLAINT_INTERVAL);
            self.tell(GuardAlarm::Unproven, &trouble.to_string());
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    use super::*;
    use crate::types::{FencingToken, Instance, LeaseTerms, NodeId, OnStopFailure, Revision, ServiceName, WriteId};

    const RESERVE: Duration = Duration::from_secs(2);

    #[test]
    fn a_lack_of_descriptors_is_told_as_what_it_is() {
        let told = |errno: rustix::io::Errno| not_killed("/db.service", &errno.into());
        let lack = told(rustix::io::Errno::MFILE);
        assert!(lack.starts_with("look with \"ls -l /proc/") && lack.contains("prlimit --pid"), "{lack}");
        assert!(lack.contains("LimitNOFILE= of putex-guard.service") && !lack.contains("kill"), "{lack}");
        assert!(!lack.contains("restart") && !lack.contains("os error"), "{lack}");
        assert!(told(rustix::io::Errno::ACCESS).starts_with("cannot kill /db.service, trying again: "));
    }

    /// A control group that is a folder of the test, a socket of PID 1 that nobody answers on, and a lease that is past its
    /// time for SIGKILL.
    struct Bench {
        folder: tempfile::TempDir,
        systemd: UnixListener,
    }

    impl Bench {
        fn new(events: &str) -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let group = folder.path().join("a.service");
            fs::create_dir(&group).expect("a folder");
            for directory in [folder.path(), &group] {
                fs::write(directory.join("cgroup.procs"), "").expect("a file");
            }
            fs::write(group.join("cgroup.kill"), "").expect("a file");
            let systemd = UnixListener::bind(folder.path().join("systemd")).expect("a socket");
            let bench = Self { folder, systemd };
            bench.set(events);
            bench
        }

        fn set(&self, events: &str) {
            fs::write(self.folder.path().join("a.service/cgroup.events"), events).expect("a file");
        }

        fn wait_for_a_call(&self) {
            self.systemd.set_nonblocking(true).expect("can be set");
            wait_until(|| self.systemd.accept().is_ok());
        }

        fn killed(&self) -> bool {
            fs::read_to_string(self.folder.path().join("a.service/cgroup.kill")).is_ok_and(|text| text == "1")
        }

        /// Adds a group whose first look never ends: its file is a pipe that nobody writes to, so that opening it blocks.
        fn add_hanging(&self, name: &str) {
            let group = self.folder.path().join(name);
            fs::create_dir(&group).expect("a folder");
            let (here, mode) = (rustix::fs::CWD, rustix::fs::Mode::RWXU);
            let pipe = group.join("cgroup.events");
            rustix::fs::mknodat(here, &pipe, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
        }

        fn enforcer(&self) -> Enforcer {
            let hierarchy = Arc::new(Hierarchy::at(self.folder.path()));
            Enforcer::start(hierarchy, self.folder.path().join("systemd")).expect("threads")
        }

        fn begin(&self) -> (Enforcer, Enforcement) {
            let enforcer = self.enforcer();
            let enforcement = enforcer.begin(Self::lease("a.service"));
            (enforcer, enforcement)
        }

        fn lease(group: &str) -> Lease {
            Lease {
                service: ServiceName::new("db").expect("a name"),
                node: NodeId::new("h1").expect("a name"),
                terms: LeaseTerms {
                    instance: Instance(1),
                    write: WriteId(1),
                    revision: Revision(1),
                    token: FencingToken(1),
                    deadline: Time::default(),
                    stop_budget: RESERVE,
                    kill_reserve: RESERVE,
                },
                units: Vec::new(),
                cgroups: vec![format!("/{group}")],
                inactive: Vec::new(),
                begun: Vec::new(),
                contains: Vec::new(),
                on_stop_failure: OnStopFailure::Alert,
                closing: false,
            }
        }
    }

    /// A PID 1 that confirms every call. Returns the number of calls in each connection.
    fn obedient(systemd: UnixListener) -> Arc<Mutex<Vec<usize>>> {
        let stops = Arc::new(Mutex::new(Vec::new()));
        let counted = Arc::clone(&stops);
        thread::spawn(move || {
            for mut stream in systemd.incoming().flatten() {
                let mut hello = Vec::new();
                while !hello.ends_with(b"BEGIN\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).expect("it says hello");
                    hello.extend(byte);
                }
                stream.write_all(b"OK 1234\r\n").expect("it listens");
                counted.lock().expect("a list").push(0);
                let mut head = [0_u8; 16];
                while stream.read_exact(&mut head).is_ok() {
                    let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
                    let rest = number(12).next_multiple_of(8) + number(4);
                    let mut body = vec![0; usize::try_from(rest).expect("a length")];
                    stream.read_exact(&mut body).expect("the rest");
                    if let Some(stops) = counted.lock().expect("a list").last_mut() {
                        *stops += 1;
                    }
                    // A method return without a body. Its only field is the serial number of the call.
                    let mut answer = vec![b'l', 2, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 5, 1, b'u', 0];
                    answer.extend(&head[8..12]);
                    stream.write_all(&answer).expect("it listens");
                }
            }
        });
        stops
    }

    fn wait_until(holds: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < end, "waited in vain");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn whoever_is_late_asks_for_a_stop_only_when_the_units_are_dead_or_half_of_k_is_over() {
        let bench = Bench::new("populated 1\n");
        let begun = Instant::now();
        let (_enforcer, enforcement) = bench.begin();
        bench.wait_for_a_call();
        let asked = begun.elapsed();
        assert!(asked >= RESERVE / 2, "their ExecStop= would run: {asked:?}");
        assert!(asked < RESERVE * 3 / 2, "systemd is not to be kept waiting: {asked:?}");
        assert!(bench.killed() && !enforcement.is_stopped());
    }

    #[test]
    fn only_what_is_known_to_be_empty_is_stopped() {
        let bench = Bench::new("no such line\n");
        let (_enforcer, enforcement) = bench.begin();
        bench.wait_for_a_call();
        assert!(!enforcement.is_stopped(), "nobody knows");
        bench.set("populated 1\n");
        wait_until(|| bench.killed());
        assert!(!enforcement.is_stopped());
        bench.set("populated 0\n");
        wait_until(|| enforcement.is_stopped());
        bench.set("populated 1\n");
        wait_until(|| !enforcement.is_stopped());
    }

    #[test]
    fn the_dead_are_proven_once_systemd_has_taken_on_their_stop_and_for_as_long_as_they_are_dead() {
        let bench = Bench::new("populated 0\n");
        let socket = bench.folder.path().join("systemd");
        fs::remove_file(&socket).expect("removed");
        let (_enforcer, enforcement) = bench.begin();
        wait_until(|| enforcement.is_stopped());
        assert!(!enforcement.is_proven(), "systemd may be in the middle of a start");
        let _stops = obedient(UnixListener::bind(&socket).expect("a socket"));
        wait_until(|| enforcement.is_proven());
        bench.set("populated 1\n");
        wait_until(|| !enforcement.is_proven());
    }

    #[test]
    fn a_group_that_hangs_keeps_no_other_from_being_killed() {
        let bench = Bench::new("populated 1\n");
        let enforcer = bench.enforcer();
        let hanging: Vec<Enforcement> = (0..MOST_KILLERS - 1)
            .map(|number| {
                let name = format!("{number}.service");
                bench.add_hanging(&name);
                enforcer.begin(Bench::lease(&name))
            })
            .collect();
        let enforcement = enforcer.begin(Bench::lease("a.service"));
        wait_until(|| bench.killed());
        bench.set("populated 0\n");
        wait_until(|| enforcement.is_stopped());
        assert!(!hanging.iter().any(Enforcement::is_stopped), "nobody knows");
    }

    #[test]
    fn systemd_stops_many_units_over_few_connections() {
        const MANY: usize = 300;
        let bench = Bench::new("populated 1\n");
        let enforcer = bench.enforcer();
        let stops = obedient(bench.systemd.try_clone().expect("a socket"));
        // Every second lease has lapsed just now. The others are late, and dead already.
        let enforcements: Vec<Enforcement> = (0..MANY)
            .map(|number| {
                let mut lease = Bench::lease("gone.service");
                if number % 2 == 0 {
                    (lease.terms.deadline, lease.terms.stop_budget) = (clock::now(), Duration::from_secs(600));
                }
                enforcer.begin(lease)
            })
            .collect();
        wait_until(|| enforcements.iter().all(Enforcement::is_asked));
        let stops = stops.lock().expect("a list");
        assert_eq!(stops.iter().sum::<usize>(), MANY, "each is asked for once");
        assert!(stops.len() < MANY / 10, "{stops:?}");
    }

    #[test]
    fn an_enforcement_that_is_dropped_is_forgotten() {
        let bench = Bench::new("populated 0\n");
        let (enforcer, enforcement) = bench.begin();
        wait_until(|| enforcement.is_stopped());
        wait_until(|| enforcer.next_stopped().is_some());
        drop(enforcement);
        assert!(enforcer.office.lock().all.is_empty());
        bench.set("populated 1\n");
        thread::sleep(WATCH_INTERVAL * 2);
        assert!(!bench.killed(), "a disarmed lease kills nothing");
        assert!(enforcer.next_stopped().is_none());
    }
}
