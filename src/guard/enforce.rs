//! Enforces lapses (H4), by a bounded number of threads, however many leases lapse at once. What is due, and what is proven, each
//! [`Case`] decides.
//!
//! | who | what it does | where it may hang |
//! | --- | --- | --- |
//! | the killer | looks at the control groups of all cases, sends SIGKILL, looks again; it asks nobody | nowhere: a group of the unified hierarchy waits for nothing of its own |
//! | the asker | asks PID 1, over one connection for leases due for SIGKILL, then one for the others | until its time limit |
//! | the lookers | check what is mounted | in the kernel, over one device: another looker is added |
//!
//! So a mount that hangs, or a PID 1 that hangs, does not keep any other lease from being killed in time. All threads but additional
//! lookers exist before the first lease is armed: a lapse needs nothing that the host may be unable to give then.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::case::{COMPLAINT_INTERVAL, Case, Death, KILL_INTERVAL, Kill, Look, WATCH_INTERVAL};
use super::mounts::Looker;
use super::pid1::{self, Systemd, WithoutProcess};
use super::thread_pool::{STACK_BYTES, ThreadPool};
use super::told::{self, Level, say};
use crate::guard_client::frame::Lease;
use crate::host::cgroup::Hierarchy;
use crate::host::clock;
use crate::journal::GuardAlarm;
use crate::types::{ServiceName, Time, UnitName};

/// How long systemd may take for everything that it is asked over one connection.
const ASK_LIMIT: Duration = Duration::from_secs(1);
/// The limit of lookers.
const MOST_LOOKERS: usize = 64;

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
    number: u64,
}

impl Enforcer {
    /// Starts all threads that a lapse needs. Fails if one cannot be started.
    pub fn start(hierarchy: Arc<Hierarchy>, systemd: PathBuf) -> io::Result<Self> {
        let (tell, stopped) = channel();
        let lookers = ThreadPool::new("looker", MOST_LOOKERS)?;
        let (cases, killer, asker) = (Mutex::default(), Condvar::new(), Condvar::new());
        let office = Arc::new(Office { hierarchy, systemd, lookers, tell, cases, killer, asker });
        let enforcer = Self { office, stopped };
        enforcer.spawn("killer", |office| office.kill())?;
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
        let of_asker = OfAsker { begun: lease.begun.clone(), looker, complain_at: now };
        let mut cases = office.lock();
        let number = cases.next;
        cases.next += 1;
        cases.all.insert(number, Enforced { case: Case::new(lease, now), of_asker: Some(of_asker) });
        drop(cases);
        office.killer.notify_one();
        office.asker.notify_one();
        Enforcement { office: Arc::clone(office), number }
    }

    /// Whether a look at a mount has not ended.
    #[must_use]
    pub fn is_looking(&self) -> bool {
        self.office.lookers.is_busy()
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
        self.office.killer.notify_one();
        self.office.asker.notify_one();
        self.office.lookers.close();
    }
}

impl Enforcement {
    /// See [`Case::is_asked`].
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.is(Case::is_asked)
    }

    /// See [`Case::is_stopped`].
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is(Case::is_stopped)
    }

    /// See [`Case::is_proven`].
    #[must_use]
    pub fn is_proven(&self) -> bool {
        self.is(Case::is_proven)
    }

    fn is(&self, so: impl FnOnce(&Case) -> bool) -> bool {
        self.office.with(self.number, |case| so(case)).unwrap_or(false)
    }
}

impl Drop for Enforcement {
    fn drop(&mut self) {
        self.office.lock().all.remove(&self.number);
    }
}

/// What all threads share. No lock is held over a call that may hang.
#[derive(Debug)]
struct Office {
    hierarchy: Arc<Hierarchy>,
    systemd: PathBuf,
    lookers: ThreadPool,
    tell: Sender<ServiceName>,
    cases: Mutex<Cases>,
    killer: Condvar,
    asker: Condvar,
}

#[derive(Debug, Default)]
struct Cases {
    /// The enforcer was dropped, as when the guard did not start after all: the threads are to end.
    closed: bool,
    next: u64,
    all: BTreeMap<u64, Enforced>,
}

#[derive(Debug)]
struct Enforced {
    case: Case,
    /// `None`: the asker has it, and puts it back.
    of_asker: Option<OfAsker>,
}

/// What only the asker uses of a case.
#[derive(Debug)]
struct OfAsker {
    /// The units of the lease's `begun` that were not seen active since.
    begun: Vec<UnitName>,
    /// Checks the mounts. `None`: there is no mount among the units.
    looker: Option<Looker>,
    /// When the log may complain again of what is still mounted.
    complain_at: Time,
}

impl Office {
    fn lock(&self) -> MutexGuard<'_, Cases> {
        self.cases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: the lease is not enforced any more.
    fn with<T>(&self, number: u64, work: impl FnOnce(&mut Case) -> T) -> Option<T> {
        self.lock().all.get_mut(&number).map(|enforced| work(&mut enforced.case))
    }

    fn report(&self, lease: &Lease, death: Option<Death>) {
        let Some(Death { is_told }) = death else { return };
        if !is_told {
            told::alarm_of(Level::Notice, GuardAlarm::Dead, lease, &[], "nothing of its units runs any more");
        }
        // At the end of the guard nobody receives this.
        let _ = self.tell.send(lease.service.clone());
    }
}

/// The work of the killer.
impl Office {
    fn kill(&self) {
        let mut cases = self.lock();
        while !cases.closed {
            let now = clock::now();
            let due = |(number, enforced): (&u64, &mut Enforced)| {
                let look = enforced.case.look(now)?;
                Some((*number, Arc::clone(enforced.case.lease()), look))
            };
            let due: Vec<(u64, Arc<Lease>, Look)> = cases.all.iter_mut().filter_map(due).collect();
            if due.is_empty() {
                let next = cases.all.values().map(|enforced| enforced.case.look_at()).reduce(Time::earliest);
                cases = match next {
                    // The clocks are read again before long, because they may go on faster than the one that this waits by.
                    Some(next) => {
                        let limit = now.until_passed(next).min(WATCH_INTERVAL);
                        self.killer.wait_timeout(cases, limit).unwrap_or_else(PoisonError::into_inner).0
                    }
                    None => self.killer.wait(cases).unwrap_or_else(PoisonError::into_inner),
                };
                continue;
            }
            drop(cases);
            for (number, lease, look) in due {
                self.look(number, &lease, &look);
            }
            cases = self.lock();
        }
    }

    fn look(&self, number: u64, lease: &Lease, look: &Look) {
        let mut all_empty = true;
        for group in &look.groups {
            match self.end(number, lease, group) {
                Ok(Some(is_empty)) => all_empty &= is_empty,
                Ok(None) => return,
                Err(error) => {
                    all_empty = false;
                    if look.complains {
                        told::alarm_of(Level::Alert, GuardAlarm::Unproven, lease, &[], &not_killed(group, &error));
                    }
                }
            }
        }
        let now = clock::now();
        let looked = self.with(number, |case| (case.looked(now, all_empty), case.seems_dead(now)));
        let Some((death, seems_dead)) = looked else { return };
        self.report(lease, death);
        if look.complains && !seems_dead {
            let reason = "its units are still not proven dead, trying again";
            told::alarm_of(Level::Alert, GuardAlarm::Unproven, lease, &[], reason);
        }
    }

    /// Sends SIGKILL to what is in a control group. Returns whether it is empty; `None`: the lease is not enforced any more, so that
    /// nothing must be killed.
    fn end(&self, number: u64, lease: &Lease, group: &str) -> io::Result<Option<bool>> {
        if self.hierarchy.is_empty(group)? {
            return Ok(Some(true));
        }
        let Some(were_dead) = self.with(number, Case::sees_life) else { return Ok(None) };
        self.hierarchy.kill(group)?;
        let reason = match self.with(number, |case| case.killed(group, were_dead)).flatten() {
            Some(Kill::First) => {
                Some(format!("the processes in {group} have got SIGKILL, because they were left when it was due"))
            }
            Some(Kill::Again) => Some(format!("{group} has processes again, which have got SIGKILL")),
            None => None,
        };
        if let Some(reason) = reason {
            told::alarm_of(Level::Alert, GuardAlarm::Killed, lease, &[group], &reason);
        }
        self.hierarchy.is_empty(group).map(Some)
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
            let (began, now) = (Instant::now(), clock::now());
            let (mut late, mut early) = (Vec::new(), Vec::new());
            for (number, Enforced { case, .. }) in &cases.all {
                let of = if case.is_late(now) { &mut late } else { &mut early };
                of.push((case.lease().terms.kill_at().boot, *number));
            }
            let known = cases.next;
            drop(cases);
            // Late and early cases get a connection each, so that the early ones get a part of PID 1's time as well.
            let refusals = [&mut late, &mut early].map(|cases| {
                cases.sort_unstable();
                self.ask_for(cases.iter().map(|(_, number)| *number))
            });
            if clock::now().has_passed(grumble_at)
                && let Some(refusal) = refusals.into_iter().flatten().next()
            {
                grumble_at = clock::now().plus(COMPLAINT_INTERVAL);
                say(Level::Warning, &refusal);
            }
            // The pause limits how often PID 1 is asked, however many leases lapse one after the other.
            thread::sleep(KILL_INTERVAL);
            let (cases, now) = (self.lock(), clock::now());
            let mut asked = cases.all.range(..known).map(|(_, enforced)| &enforced.case);
            if asked.all(|case| case.is_settled(now)) {
                let early = cases.all.values().map(|enforced| &enforced.case).filter(|case| !case.is_late(now));
                let next = early.map(|case| now.until_passed(case.lease().terms.kill_at())).min();
                // When nothing is left to be asked but to watch, PID 1 keeps most of its time.
                let pause = (began.elapsed() * 4).clamp(WATCH_INTERVAL, ASK_LIMIT).min(next.unwrap_or(ASK_LIMIT));
                drop(self.asker.wait_timeout_while(cases, pause, |cases| cases.next == known));
            }
        }
    }

    /// Asks systemd everything that is due for some cases. Returns the log line for what systemd did not do.
    fn ask_for(&self, cases: impl Iterator<Item = u64>) -> Option<String> {
        let mut connection = None;
        let mut refused = None;
        let mut others = 0;
        for number in cases {
            let mut systemd = Asked { socket: &self.systemd, connection: &mut connection };
            match self.ask_about(number, &mut systemd) {
                Ok(()) => {}
                Err((service, error)) if refused.is_none() => refused = Some((service, error)),
                Err(_) => others += 1,
            }
        }
        let (service, error) = refused?;
        let others = if others == 0 { String::new() } else { format!(" and of {others} other services") };
        Some(format!("{service}: cannot have systemd stop its units{others}, trying again: {error}"))
    }

    /// Asks systemd everything that is due for a case. `Err`: systemd did not confirm a stop.
    fn ask_about(&self, number: u64, systemd: &mut Asked<'_>) -> Result<(), (ServiceName, Unanswered)> {
        let taken = self.lock().all.get_mut(&number).and_then(|enforced| {
            let due = enforced.case.questions(clock::now());
            Some((due, Arc::clone(enforced.case.lease()), enforced.of_asker.take()?))
        });
        let Some((due, lease, mut own)) = taken else { return Ok(()) };
        let mut outcome = Ok(());
        if due.end_contained {
            outcome = systemd.call(|systemd| systemd.stop(&lease.contains));
            self.with(number, |case| case.contained_ended(outcome.is_ok(), &due));
        }
        if due.stop {
            let stopped = own.stop(&lease, systemd);
            self.with(number, |case| case.stop_asked(stopped.is_ok()));
            outcome = outcome.and(stopped);
        }
        // On an error of what follows the asker asks again in its next round.
        if due.place
            && let Ok(groups) = systemd.call(|systemd| systemd.groups(&lease.units))
        {
            let elsewhere = self.with(number, |case| case.placed(groups)).unwrap_or_default().join(", ");
            if !elsewhere.is_empty() {
                let service = &lease.service;
                let text = format!(
                    "{service}: its units have the control groups {elsewhere} as well, which its lease does not name"
                );
                say(Level::Warning, &text);
            }
        }
        if due.end_main
            && let Ok(had_main) = systemd.call(|systemd| systemd.kill_main(&lease.units))
        {
            self.with(number, |case| case.main_ended(had_main, &due));
        }
        if due.inactive {
            let is_inactive = own.is_inactive(&lease, systemd);
            let death = self.with(number, |case| case.seen_inactive(clock::now(), is_inactive, &due));
            self.report(&lease, death.flatten());
        }
        if let Some(enforced) = self.lock().all.get_mut(&number) {
            enforced.of_asker = Some(own);
        }
        outcome.map_err(|error| (lease.service.clone(), error))
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

impl OfAsker {
    /// Asks systemd to stop the units. Only whether it accepted matters here: the proof is taken from the kernel.
    fn stop(&mut self, lease: &Lease, systemd: &mut Asked<'_>) -> Result<(), Unanswered> {
        // A unit that is active now has completed its start, which systemd may forget after the stop.
        if !self.begun.is_empty()
            && let Ok(started) = systemd.call(|systemd| systemd.started(&self.begun))
        {
            self.begun.retain(|unit| !started.contains(unit));
        }
        // The slices come first: systemd thaws nothing in a frozen slice.
        let names = lease.cgroups.iter().flat_map(|group| group.split('/'));
        let slices = names.filter(|name| name.strip_suffix(".slice").is_some());
        let frozen: Vec<&str> = slices.chain(lease.units.iter().map(UnitName::as_str)).collect();
        systemd.call(|systemd| systemd.thaw(frozen.iter().copied()))?;
        // The lease target comes first: its stop takes everything that is bound to it along, in the right order.
        let target = lease.service.lease_target();
        systemd.call(|systemd| systemd.stop(std::iter::once(&target).chain(&lease.units)))
    }

    fn is_inactive(&mut self, lease: &Lease, systemd: &mut Asked<'_>) -> bool {
        let target = lease.service.lease_target();
        let of = WithoutProcess { target: &target, units: &lease.inactive, begun: &self.begun };
        let inactive = systemd.call(|systemd| systemd.inactive(&of)).ok().flatten();
        let Some(looker) = &mut self.looker else { return inactive.is_some() };
        let Some(mounts) = inactive else {
            looker.doubt();
            return false;
        };
        // The limit is zero: an answer that is not there yet is used for the next question.
        let Err(trouble) = looker.check(mounts, Duration::ZERO) else { return true };
        if !looker.is_looking() && clock::now().has_passed(self.complain_at) {
            self.complain_at = clock::now().plus(COMPLAINT_INTERVAL);
            told::alarm_of(Level::Alert, GuardAlarm::Unproven, lease, &[], &trouble.to_string());
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
