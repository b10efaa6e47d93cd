//! The one loop of the guard: socket and timers in, the table in the middle, grants and enforcements out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::enforce::{Enforcement, Enforcer};
use super::files::{Files, Prepared};
use super::records::Records;
use super::table::{Effect, Entry, LEAST_PATIENCE, Table};
use super::watch::{IDLE_PATIENCE, Pulse, listen};
use super::watchdog::Watchdog;
use super::{Level, Paths, say};
use crate::guard_client::frame::{Command, Inbox, Lease, Of, Outcome, REQUEST_LIMIT_BYTES, Reply, Request};
use crate::guard_client::grant;
use crate::host::cgroup::{Condemned, Hierarchy};
use crate::host::clock::{self, BootTimer};
use crate::host::group_name::is_within;
use crate::host::identity;
use crate::host::self_fence::self_fence;
use crate::types::{DAEMON_UNIT, ServiceName, Time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use sd_notify::NotifyState;

/// Beats in the time after which they are missed.
const BEATS: u32 = 6;

/// How often a proof is looked for that lets the watchdog be kept alive again: nobody tells of it.
const PROOF_INTERVAL: Duration = Duration::from_millis(20);

/// Everybody may read a grant, as everybody may know the token.
const GRANT_MODE: u32 = 0o644;

/// How often it is tried whether there is room, at most.
const ROOM_INTERVAL: Duration = Duration::from_secs(1);

/// Whoever has looked at the clock so long ago wakes: the host may have stood still since.
const AWAKE: Duration = Duration::from_millis(100);

/// Replies wait for no more than so many others that are sent with them.
const REPLIES_AT_ONCE_BYTES: usize = 4096;

/// Between two tries to start, as systemd would leave between two guards.
const START_INTERVAL: Duration = Duration::from_millis(100);
/// For how long it is tried before systemd is to start another guard.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// Why the guard ends.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// The host does not give what the guard cannot do without.
    #[error("cannot {0}: {1}")]
    Host(&'static str, io::Error),
    /// Only the end of the guard can still have systemd stop the units.
    #[error("systemd was not heard to stop the units of {0}, and they are not dead")]
    Unproven(ServiceName),
    /// It was told to end while units may run; a watchdog goes on counting, and resets the host if nobody takes over.
    #[error("it is told to end, and there are leases")]
    Told,
    /// The host should be down by now.
    #[error("the stop of {0} is not proven, and the host did not go down")]
    NotFenced(ServiceName),
}

/// Begins as soon as it can. It says why it cannot once for each reason: a guard that ended each time would be started ten
/// times a second, and fill the journal.
pub(super) fn begin(paths: &Paths, watchdog: impl Fn() -> Option<Watchdog>) -> Result<Shell<'_>, Fatal> {
    let began = clock::now();
    let mut told = String::new();
    loop {
        let error = match Shell::start(paths, watchdog()) {
            Ok(shell) => return Ok(shell),
            Err(error) if clock::now().has_passed(began.plus(START_PATIENCE)) => return Err(error),
            Err(error) => error.to_string(),
        };
        if error != told {
            say(Level::Error, &format!("the guard cannot start yet: {error}"));
            told = error;
        }
        thread::sleep(START_INTERVAL);
    }
}

/// The control groups of each lease, ready to be killed.
type AllCondemned = BTreeMap<ServiceName, Vec<Condemned>>;

/// The first act of whoever wakes: where SIGKILL is due, it is sent before a log is written, a file is looked at that is
/// not the group's, or systemd is asked for a stop, whose `ExecStop=` may be a program that writes. What fails is tried again
/// by the enforcement, which says so.
#[derive(Debug, Default)]
struct FirstAct {
    /// For these it was done since `done_at`: what comes after it is the enforcement's.
    done: BTreeSet<ServiceName>,
    done_at: Time,
}

impl FirstAct {
    fn kill_overdue(&mut self, table: &Table, condemned: &AllCondemned, heart: &mut Heart) {
        let now = clock::now();
        if now.has_passed(self.done_at.plus(AWAKE)) {
            self.done.clear();
            self.done_at = now;
        }
        for service in table.overdue(now) {
            if self.done.insert(service.clone()) {
                for group in condemned.get(service).into_iter().flatten() {
                    let _ = group.kill();
                }
                heart.beat(table);
            }
        }
    }
}

/// How its watcher knows that the guard lives.
#[derive(Debug)]
struct Heart {
    pulse: Pulse,
    /// When it was last told so, and for how long.
    told: Option<(Time, Duration)>,
    /// When somebody was last looked for who wants to hear it, while much is done at once.
    looked_at: Time,
}

impl Heart {
    fn accept(&mut self) -> io::Result<()> {
        if self.pulse.accept()? {
            self.told = None;
        }
        Ok(())
    }

    /// How long the guard may be silent from now on. It is counted on `CLOCK_MONOTONIC`, of which an eighth is left out as
    /// in [`Shell::wait`].
    fn patience(table: &Table, now: Time) -> Duration {
        table.patience(now).map_or(IDLE_PATIENCE, |patience| patience.saturating_sub(patience / 8).min(IDLE_PATIENCE))
    }

    /// Says that the guard lives, and when to give it up: where it is time for that, or to be given up sooner than was said
    /// last.
    fn beat(&mut self, table: &Table) {
        let now = clock::now();
        if !self.pulse.is_watched() && now.has_passed(self.looked_at.plus(LEAST_PATIENCE / BEATS)) {
            self.looked_at = now;
            if self.accept().is_err() {
                // The loop of the guard meets the error too.
                return;
            }
        }
        let patience = Self::patience(table, now);
        let is_told = |(at, told): (Time, Duration)| {
            let ago = now.since_at_most(at);
            ago < told / BEATS && ago + patience >= told
        };
        if !self.told.is_some_and(is_told) {
            self.pulse.beat(patience);
            self.told = Some((now, patience));
        }
    }

    /// How long until the next beat, if somebody wants to hear it.
    fn due_in(&self) -> Option<Duration> {
        let ago = |at| clock::now().since_at_most(at);
        let left = |(at, patience): (Time, Duration)| (patience / BEATS).saturating_sub(ago(at));
        self.pulse.is_watched().then(|| self.told.map_or(Duration::ZERO, left))
    }
}

/// Who waits to be accepted.
#[derive(Debug, Clone, Copy, Default)]
struct Comers {
    clients: bool,
    watchers: bool,
}

/// What a command is to a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// It may run from now on: this has to be kept.
    Begins,
    /// It may run for longer.
    Extends,
    /// It may not, or is to be stopped in more places.
    Ends,
}

/// Whether what the guard keeps in /run can be written.
#[derive(Debug, Default)]
struct Room {
    /// Why not, and what to do about it.
    trouble: Option<String>,
    /// Whose grants have a deadline that is not the latest: they exist, and the gate lets nothing start once it is over.
    outdated: BTreeSet<ServiceName>,
    /// Whose records are not the latest.
    unkept: BTreeSet<ServiceName>,
    /// When it was last tried whether they can be.
    looked_at: Option<Time>,
}

pub(super) struct Shell<'a> {
    paths: &'a Paths,
    hierarchy: Arc<Hierarchy>,
    timer: BootTimer,
    /// What it is set to.
    timer_set: Option<Duration>,
    table: Table,
    records: Records,
    grants: Files,
    condemned: AllCondemned,
    first_act: FirstAct,
    enforcer: Enforcer,
    enforcements: BTreeMap<ServiceName, Enforcement>,
    listener: UnixListener,
    connection: Option<Connection>,
    /// The control group of who is at its other end.
    connection_group: Option<String>,
    heart: Heart,
    /// The hardware's.
    watchdog: Option<Watchdog>,
    /// Whether records and grants can be written.
    room: Room,
    /// Readable at SIGTERM, where there is a watchdog to be closed. Otherwise the signal is the end.
    told: Option<UnixStream>,
}

impl<'a> Shell<'a> {
    /// Enforces what a predecessor left, and only then listens.
    fn start(paths: &'a Paths, watchdog: Option<Watchdog>) -> Result<Self, Fatal> {
        let host = |what| move |error| Fatal::Host(what, error);
        let boot = identity::boot_id().map_err(host("read the boot's id"))?;
        let hierarchy = Arc::new(Hierarchy::detect().map_err(host("find the control groups"))?);
        let records = Records::new(&paths.state, boot);
        let (table, effects) = Table::resume(clock::now(), records.load());
        // The guard before has refused what may not be killed; of what cannot be read now the enforcement speaks.
        let condemn = |lease: &Lease| -> Vec<_> {
            lease.cgroups.iter().filter_map(|path| hierarchy.condemn(path).ok()).collect()
        };
        for service in table.overdue(clock::now()) {
            let lease = table.entry_of(service).map(Entry::lease);
            for group in lease.iter().flat_map(|lease| condemn(lease)) {
                let _ = group.kill();
            }
        }
        let condemned = table.leases().map(|lease| (lease.service.clone(), condemn(lease))).collect();
        // A guard that is paged out is late when memory is short, which is when it is needed.
        if let Err(error) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT) {
            say(Level::Warning, &format!("cannot keep the guard in memory, ignoring: {error}"));
        }
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        let timer = BootTimer::new().map_err(host("make a timer"))?;
        let told = watchdog.is_some().then(at_sigterm).transpose().map_err(host("listen for SIGTERM"))?;
        fs::create_dir_all(&paths.leases).map_err(host("make the directory of the grants"))?;
        // Units may run as any user, and the gate with them.
        fs::set_permissions(&paths.leases, fs::Permissions::from_mode(0o755))
            .map_err(host("open the directory of the grants"))?;
        let mut grants = Files::new(&paths.leases, GRANT_MODE);
        grants.clear().map_err(host("remove the grants of the guard before"))?;
        let parent = |file: &'a Path| file.parent().unwrap_or(Path::new("/"));
        for directory in [&paths.state, parent(&paths.socket), parent(&paths.watch)] {
            fs::create_dir_all(directory).map_err(host("make the guard's own directory"))?;
        }
        let leases = table.leases().count();
        if leases > 0 {
            say(Level::Warning, &format!("{leases} leases of a guard that ended are closed; their deadlines stand"));
        }
        let listener = listen(&paths.socket).map_err(host("listen"))?;
        let pulse = Pulse::new(&paths.watch).map_err(host("listen for its watcher"))?;
        let enforcer =
            Enforcer::start(Arc::clone(&hierarchy), paths.systemd.clone()).map_err(host("start its threads"))?;
        let mut shell = Self {
            paths,
            hierarchy,
            timer,
            timer_set: None,
            table,
            records,
            grants,
            condemned,
            first_act: FirstAct::default(),
            enforcer,
            enforcements: BTreeMap::new(),
            listener,
            connection: None,
            connection_group: None,
            heart: Heart { pulse, told: None, looked_at: Time::default() },
            watchdog,
            room: Room::default(),
            told,
        };
        shell.carry_out(effects)?;
        shell.expire()?;
        shell.tend();
        if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
            say(Level::Warning, &format!("cannot tell systemd that the guard is ready, ignoring: {error}"));
        }
        shell.beat();
        Ok(shell)
    }

    /// Serves until something fails that leaves a lease in doubt. With a watchdog it also returns at SIGTERM: without an error
    /// if nothing was at stake, and the device is closed.
    pub(super) fn serve(mut self) -> Result<(), Fatal> {
        loop {
            let comers = self.wait().map_err(|error| Fatal::Host("wait", error))?;
            self.expire()?;
            self.tend();
            if self.told.as_mut().is_some_and(|told| told.read(&mut [0]).is_ok()) {
                return self.end();
            }
            if comers.clients {
                self.accept().map_err(|error| Fatal::Host("accept connections", error))?;
            }
            if comers.watchers {
                self.heart.accept().map_err(|error| Fatal::Host("accept its watcher", error))?;
            }
            self.converse()?;
            self.beat();
        }
    }

    /// Keeps the hardware's watchdog from resetting the host, as long as every unit is sure to be dead in time.
    fn tend(&mut self) {
        if self.watchdog.is_none() {
            return;
        }
        let at_stake = self.at_stake();
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.tend(clock::now, at_stake);
        }
    }

    fn at_stake(&self) -> Option<Time> {
        self.table.at_stake(|service| self.enforcements.get(service).is_some_and(Enforcement::is_stopped))
    }

    /// SIGTERM: at the end of a shutdown, or by the administrator.
    fn end(self) -> Result<(), Fatal> {
        if self.at_stake().is_some() {
            return Err(Fatal::Told);
        }
        self.watchdog.into_iter().for_each(Watchdog::close);
        Ok(())
    }

    /// Shows that the guard lives. What is done for each of many leases shows it for each of them: nothing of that hangs.
    fn beat(&mut self) {
        self.heart.beat(&self.table);
    }

    /// Until somebody speaks, or a deadline passes on either clock.
    ///
    /// The timer is on `CLOCK_BOOTTIME`. The raw clock has no timers: poll(2) counts on `CLOCK_MONOTONIC`, which may be
    /// slewed against it by a tenth, so seven eighths of the time are waited, and then seven eighths of the rest.
    fn wait(&mut self) -> io::Result<Comers> {
        let next = self.table.wake_at(clock::now());
        self.set_timer(next)?;
        let raw = next.map(|at| at.raw.saturating_sub(clock::now().raw));
        let raw = raw.map(|left| left.saturating_sub(left / 8).max(Duration::from_micros(100)));
        let beat = self.heart.due_in();
        let due_in = |watchdog: &Watchdog| watchdog.due_in(clock::now(), self.at_stake()).unwrap_or(PROOF_INTERVAL);
        let keep_alive = self.watchdog.as_ref().map(due_in);
        let limit = [raw, beat, keep_alive].into_iter().flatten().min();
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut fds = vec![PollFd::new(&self.timer, PollFlags::IN)];
        fds.extend([&self.listener, self.heart.pulse.listener()].map(|listener| PollFd::new(listener, PollFlags::IN)));
        fds.extend(self.told.iter().map(|told| PollFd::new(told, PollFlags::IN)));
        if let Some(connection) = &self.connection {
            let interest = if connection.unsent.is_empty() { PollFlags::IN } else { PollFlags::OUT };
            fds.push(PollFd::new(&connection.stream, interest));
        }
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) => Ok(Comers { clients: !fds[1].revents().is_empty(), watchers: !fds[2].revents().is_empty() }),
            Err(rustix::io::Errno::INTR) => Ok(Comers::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// Asks the kernel only for what comes sooner than what it was asked for: a timer that fires too early is set anew then,
    /// and most leases are extended before that.
    fn set_timer(&mut self, next: Option<Time>) -> io::Result<()> {
        let boot = next.map(|at| at.boot);
        let is_early_enough = |set: Duration| set > clock::now().boot && boot.is_none_or(|boot| set <= boot);
        if self.timer_set != boot && !self.timer_set.is_some_and(is_early_enough) {
            self.timer.set(boot)?;
            self.timer_set = boot;
        }
        Ok(())
    }

    /// What the passing of time asks for; does nothing when it is called too early.
    fn expire(&mut self) -> Result<(), Fatal> {
        let mut stopped = Vec::new();
        while let Some(service) = self.enforcer.next_stopped() {
            let is_stopped = self.enforcements.get(&service).is_some_and(Enforcement::is_stopped);
            if is_stopped && self.table.stopped(&service) {
                stopped.push(service);
            }
        }
        self.first_act.kill_overdue(&self.table, &self.condemned, &mut self.heart);
        for service in stopped {
            let kept = self.keep(&service);
            self.take_note(kept);
            self.beat();
        }
        let effects = self.table.expire(clock::now());
        if effects.is_empty() {
            return Ok(());
        }
        // The stop first, then the note of it: a successor comes to the same conclusion without the note.
        let mut changed = BTreeSet::new();
        let mut giving_up = Vec::new();
        for effect in &effects {
            match effect {
                Effect::Enforce(lease) => drop(changed.insert(lease.service.clone())),
                Effect::GiveUp(lease) => {
                    changed.insert(lease.service.clone());
                    giving_up.push(lease.clone());
                }
                Effect::Grant(_) | Effect::Extend(..) | Effect::Withdraw(_) | Effect::Forget(_) => {}
            }
        }
        self.carry_out(effects)?;
        // A successor that finds the record before enforces the deadline as well, and sooner.
        for service in changed {
            let kept = self.keep(&service);
            self.take_note(kept);
            self.beat();
        }
        for lease in &giving_up {
            self.give_up(lease)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, effects: Vec<Effect>) -> Result<(), Fatal> {
        for effect in effects {
            self.beat();
            match effect {
                Effect::Withdraw(service) => {
                    self.room.outdated.remove(&service);
                    // A grant that cannot be removed is one that systemd has to remove with the guard.
                    self.grants.remove(&service).map_err(|error| Fatal::Host("remove a grant", error))?;
                }
                Effect::Extend(service, deadline) => self.extend_grant(&service, deadline),
                Effect::Enforce(lease) => self.enforce(lease),
                Effect::Forget(service) => drop(self.enforcements.remove(&service)),
                // The one was prepared, and follows when everything else is in place. The other follows when the table is
                // kept, because the guard may end over it.
                Effect::Grant(_) | Effect::GiveUp(_) => {}
            }
        }
        Ok(())
    }

    fn enforce(&mut self, lease: Lease) {
        let service = lease.service.clone();
        say(
            Level::Alert,
            &format!(
                "{service}: its lease has lapsed, stopping its units; SIGKILL follows {} ms after the deadline",
                lease.stop_budget.saturating_sub(lease.kill_reserve).as_millis()
            ),
        );
        let enforcement = self.enforcer.begin(lease);
        self.enforcements.insert(service, enforcement);
    }

    /// The stop is not proven in time. The guard ends if that still helps: `BindsTo=` needs nobody to answer. Where
    /// systemd has taken the stop on already it does not, and would take the other leases of the host along.
    fn give_up(&self, lease: &Lease) -> Result<(), Fatal> {
        let service = lease.service.clone();
        say(
            Level::Emergency,
            &format!(
                "{service}: its units are not proven dead {} ms after the deadline; they may run on two hosts",
                lease.stop_budget.as_millis()
            ),
        );
        if let Err(error) = self_fence(lease.on_stop_failure, &self.paths.sysrq) {
            say(Level::Emergency, &format!("cannot take this host down: {error}"));
        }
        if lease.on_stop_failure.is_self_fence() {
            return Err(Fatal::NotFenced(service));
        }
        if self.enforcements.get(&service).is_some_and(Enforcement::is_asked) {
            return Ok(());
        }
        Err(Fatal::Unproven(service))
    }

    /// A new connection ends the old one, and what it had not said yet; but nobody else ends putexd's. Whoever is root may
    /// speak to a guard that putexd does not speak to.
    fn accept(&mut self) -> io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    let peer = socket_peercred(&stream).ok().filter(|peer| peer.uid == geteuid());
                    let Some(peer) = peer.map(|peer| peer.pid.as_raw_nonzero().to_string()) else { continue };
                    let group = self.hierarchy.group_of(&peer).ok();
                    let serves_putexd = self.connection.is_some() && is_of_putexd(self.connection_group.as_deref());
                    if serves_putexd && !is_of_putexd(group.as_deref()) {
                        say(Level::Warning, &format!("process {peer} is sent away: the guard serves {DAEMON_UNIT}"));
                        continue;
                    }
                    self.connection_group = group;
                    let inbox = Inbox::new(REQUEST_LIMIT_BYTES);
                    self.connection = Some(Connection { stream, inbox, is_drained: false, unsent: Vec::new() });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Answers what has been said, one line at a time; the clock is looked at before each.
    fn converse(&mut self) -> Result<(), Fatal> {
        let Some(mut connection) = self.connection.take() else { return Ok(()) };
        connection.is_drained = false;
        loop {
            let request = match connection.next() {
                Ok(Some(request)) => request,
                Ok(None) => break,
                Err(error) => {
                    let (level, text) = farewell(&error);
                    say(level, &text);
                    return Ok(());
                }
            };
            self.expire()?;
            self.tend();
            let id = request.id;
            let result = self.execute(request.command, &request.of)?;
            connection.answer(&Reply { id, result });
        }
        self.connection = Some(connection);
        Ok(())
    }

    /// Everything is in place when this returns, or nothing has changed. What a successor and the gate read may be older where
    /// there is no room for it, and never says more than is so: a lease is begun only when it is kept, its deadline is kept
    /// before it counts, and all else that a successor may miss (a lease that is closed, over or let go) it finds out itself,
    /// or enforces in vain.
    fn execute(&mut self, command: Command, of: &Of) -> Result<Outcome, Fatal> {
        let (service, deadline) = match &command {
            Command::Arm { lease } => (lease.service.clone(), Some(lease.deadline).filter(|_| !lease.closing)),
            Command::Extend { service, deadline, .. } => (service.clone(), Some(*deadline)),
            Command::Close { service, .. } | Command::Disarm { service, .. } => (service.clone(), None),
            Command::List => {
                self.look_for_room();
                let watchdog = self.watchdog.as_ref().map(Watchdog::status);
                let trouble = self.room.trouble.clone();
                let mut leases = self.table.list(of);
                for listed in leases.iter_mut().filter(|listed| listed.stopped) {
                    let enforcement = self.enforcements.get(&listed.lease.service);
                    listed.stopped = enforcement.is_some_and(Enforcement::is_proven);
                }
                return Ok(Outcome::Leases { leases, watchdog, trouble });
            }
        };
        if let Some(watchdog) = &self.watchdog
            && let Err(reason) = match &command {
                // What opens nothing needs no watchdog.
                Command::Arm { lease } if lease.closing => Ok(()),
                Command::Arm { lease } => watchdog.permits_arming(clock::now(), lease.dead_by()),
                Command::Extend { .. } => watchdog.permits_extending(clock::now()),
                Command::Close { .. } | Command::Disarm { .. } | Command::List => Ok(()),
            }
        {
            return Ok(Outcome::Refused { reason });
        }
        let kind = match &command {
            Command::Arm { lease } if !lease.closing => Change::Begins,
            Command::Extend { .. } => Change::Extends,
            Command::Arm { .. } | Command::Close { .. } | Command::Disarm { .. } | Command::List => Change::Ends,
        };
        let before = self.table.entry_of(&service).cloned();
        let (outcome, effects) = self.table.handle(clock::now(), command);
        if outcome != Outcome::Done {
            return Ok(outcome);
        }
        // Kept before the grant exists: a successor must not miss a lease that somebody may have acted upon.
        let condemned = self.condemn(&service).map_err(|error| error.to_string());
        let grant = match condemned.and_then(|groups| Ok((groups, self.keep_all(&service, &effects, kind)?))) {
            Ok((groups, grant)) => {
                if let Some(groups) = groups {
                    self.condemned.insert(service.clone(), groups);
                }
                grant
            }
            Err(reason) => {
                self.table.put(&service, before);
                return Ok(Outcome::Refused { reason });
            }
        };
        if !self.table.holds(&service) {
            self.condemned.remove(&service);
        }
        // Before the grant too, so that no unit runs under a guard that may hang for longer than its lease.
        self.beat();
        self.set_timer(self.table.poll_timeout()).map_err(|error| Fatal::Host("set the timer", error))?;
        self.carry_out(effects)?;
        if let Some(grant) = grant {
            self.grants.put(grant).map_err(|error| Fatal::Host("put a grant in its place", error))?;
        }
        if !self.table.holds(&service) {
            self.forget(&service);
        }
        // The host may have stood still in between.
        if let Some(deadline) = deadline
            && clock::now().has_passed(deadline)
        {
            self.expire()?;
            return Ok(Outcome::Refused { reason: "the deadline has passed".to_owned() });
        }
        Ok(outcome)
    }

    /// The control groups of the lease of `service`, ready to be killed; `None`: they are what they were.
    fn condemn(&self, service: &ServiceName) -> io::Result<Option<Vec<Condemned>>> {
        let Some(lease) = self.table.entry_of(service).map(Entry::lease) else { return Ok(None) };
        let known = self.condemned.get(service);
        let paths = lease.cgroups.iter().map(String::as_str);
        if known.is_some_and(|known| known.iter().map(Condemned::path).eq(paths)) {
            return Ok(None);
        }
        let condemn = |path: &String| match &self.connection_group {
            Some(putexd) if is_within(putexd, path) => {
                Err(io::Error::other(format!("{path:?}: the group holds putexd, it is not a unit's to kill")))
            }
            Some(_) | None => self.hierarchy.condemn(path),
        };
        lease.cgroups.iter().map(condemn).collect::<io::Result<_>>().map(Some)
    }

    /// Writes what a change of the lease of `service` asks for: the record, and for a lease that begins the grant beside its
    /// place. `Err`: a lease is not to be begun, as it cannot be kept, and nothing of it is written.
    fn keep_all(
        &mut self,
        service: &ServiceName,
        effects: &[Effect],
        change: Change,
    ) -> Result<Option<Prepared>, String> {
        let kept = match (change, self.table.entry_of(service)) {
            (Change::Begins, _) => return self.keep_new(service, effects),
            (Change::Extends, Some(entry)) => self.records.extend(entry),
            (Change::Ends, Some(entry)) => self.records.write(entry),
            // One that is let go is forgotten when its grant is gone.
            (Change::Extends | Change::Ends, None) => Ok(()),
        };
        self.note_kept(service, kept.is_ok());
        // It takes less than a lease that begins: that it was written says nothing of whether there is room for that.
        if kept.is_err() {
            self.take_note(kept);
        }
        Ok(None)
    }

    /// Writes what a lease that begins needs.
    fn keep_new(&mut self, service: &ServiceName, effects: &[Effect]) -> Result<Option<Prepared>, String> {
        let granted =
            effects.iter().find_map(|effect| if let Effect::Grant(lease) = effect { Some(lease) } else { None });
        // The room for the grant first: a lease that gets none must not be on the disk either.
        let prepared = granted.map(|lease| prepare_grant(&self.grants, lease)).transpose();
        let kept = prepared.and_then(|grant| match self.table.entry_of(service) {
            Some(entry) => self.records.write(entry).map(|()| grant),
            None => Ok(grant),
        });
        match kept {
            Ok(grant) => {
                self.room.outdated.remove(service);
                self.room.unkept.remove(service);
                self.take_note(Ok(()));
                Ok(grant)
            }
            Err(error) => {
                self.take_note(Err(error));
                Err(self.room.trouble.clone().unwrap_or_default())
            }
        }
    }

    /// Has the gate know of a later deadline, which takes no room. A grant that is gone is made anew; where that fails, or no
    /// write succeeds, the gate lets nothing start once the deadline before is over.
    fn extend_grant(&mut self, service: &ServiceName, deadline: Time) {
        let changed = self.grants.change(service, &grant::deadline(deadline)).or_else(|_| {
            let lease = self.table.entry_of(service).map(Entry::lease);
            lease.map_or(Ok(()), |lease| write_grant(&mut self.grants, lease))
        });
        if changed.is_ok() {
            self.room.outdated.remove(service);
        } else {
            self.room.outdated.insert(service.clone());
            self.take_note(changed);
        }
    }

    /// Writes the record of a lease that has changed by itself.
    fn keep(&mut self, service: &ServiceName) -> io::Result<()> {
        let kept = self.table.entry_of(service).map_or(Ok(()), |entry| self.records.write(entry));
        self.note_kept(service, kept.is_ok());
        kept
    }

    fn note_kept(&mut self, service: &ServiceName, is_kept: bool) {
        if is_kept {
            self.room.unkept.remove(service);
        } else {
            self.room.unkept.insert(service.clone());
        }
    }

    /// Removes the record of a lease that was let go, after its grant.
    fn forget(&mut self, service: &ServiceName) {
        let removed = self.records.remove(service);
        self.note_kept(service, removed.is_ok());
        if removed.is_err() {
            self.take_note(removed);
        }
    }

    /// Tries to write what could not be written, or whether something could be; not often.
    fn look_for_room(&mut self) {
        let now = clock::now();
        if self.room.looked_at.is_some_and(|before| !now.has_passed(before.plus(ROOM_INTERVAL))) {
            return;
        }
        self.room.looked_at = Some(now);
        let mut written = self.records.has_room();
        for service in self.room.unkept.clone() {
            let kept = match self.table.entry_of(&service) {
                Some(entry) => self.records.write(entry),
                None => self.records.remove(&service),
            };
            self.note_kept(&service, kept.is_ok());
            self.beat();
            written = written.and(kept);
        }
        for service in self.room.outdated.clone() {
            let lease = self.table.entry_of(&service).map(Entry::lease);
            let granted = lease.map_or(Ok(()), |lease| write_grant(&mut self.grants, lease));
            if granted.is_ok() {
                self.room.outdated.remove(&service);
            }
            self.beat();
            written = written.and(granted);
        }
        self.take_note(written);
    }

    /// Says once that there is no room, and once that there is.
    fn take_note(&mut self, written: io::Result<()>) {
        match written {
            Err(error) => {
                let refused = if self.room.outdated.is_empty() {
                    "and none is begun"
                } else {
                    "none is begun, and what is started again under one may be refused"
                };
                let trouble = format!(
                    "{}: the guard cannot keep {}: {error}; leases go on, {refused}",
                    remedy(&error),
                    self.paths.state.display()
                );
                if self.room.trouble.replace(trouble.clone()).is_none() {
                    say(Level::Alert, &trouble);
                }
            }
            Ok(()) if self.room.outdated.is_empty() && self.room.unkept.is_empty() => {
                if self.room.trouble.take().is_some() {
                    say(Level::Notice, "/run takes the guard's table again");
                }
            }
            Ok(()) => {}
        }
    }
}

fn prepare_grant(grants: &Files, lease: &Lease) -> io::Result<Prepared> {
    let environment = grant::environment(lease);
    grants.prepare(&lease.service, &grant::deadline(lease.deadline), environment.as_bytes())
}

/// Writes a grant, or replaces it, at once and whole.
fn write_grant(grants: &mut Files, lease: &Lease) -> io::Result<()> {
    let prepared = prepare_grant(grants, lease)?;
    grants.put(prepared)
}

fn remedy(error: &io::Error) -> &'static str {
    if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        "free space in /run"
    } else {
        "see why /run cannot be written to"
    }
}

/// A stream that becomes readable at SIGTERM.
fn at_sigterm() -> io::Result<UnixStream> {
    let (told, sender) = UnixStream::pair()?;
    told.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGTERM, sender)?;
    Ok(told)
}

struct Connection {
    stream: UnixStream,
    inbox: Inbox,
    /// The last read left nothing behind: what comes later wakes the guard again.
    is_drained: bool,
    unsent: Vec<u8>,
}

/// Whether this is the control group of putexd.
fn is_of_putexd(group: Option<&str>) -> bool {
    group.and_then(|group| group.rsplit('/').next()) == Some(DAEMON_UNIT)
}

/// What is said of a connection that is over. One that putexd has ended, as it does whenever it is stopped, is no trouble.
fn farewell(error: &io::Error) -> (Level, String) {
    let is_end = matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    );
    // A request that breaks off in the middle has the error of its reader within.
    if is_end && error.get_ref().is_none() {
        (Level::Info, "putexd has ended its connection; its leases are kept to their deadlines".to_owned())
    } else {
        (Level::Warning, format!("putexd is disconnected: {error}"))
    }
}

impl Connection {
    /// The next request; `None` if it is not here yet, or while replies wait to be taken. What was read at once is answered
    /// at once, unless that is much.
    fn next(&mut self) -> io::Result<Option<Request>> {
        loop {
            if self.unsent.len() > REPLIES_AT_ONCE_BYTES {
                self.flush()?;
                if !self.unsent.is_empty() {
                    return Ok(None);
                }
            }
            if let Some(line) = self.inbox.line() {
                let request = serde_json::from_slice(&line);
                if request.is_err() {
                    // It ends the connection, and what is done is answered before.
                    self.flush()?;
                }
                return Ok(Some(request?));
            }
            self.flush()?;
            if self.is_drained || !self.unsent.is_empty() {
                return Ok(None);
            }
            let room = self.inbox.room()?;
            let most = room.len();
            match self.stream.read(room) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    self.inbox.take(count);
                    self.is_drained = count < most;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn answer(&mut self, reply: &Reply) {
        serde_json::to_writer(&mut self.unsent, reply).expect("a reply has no map with keys other than text");
        self.unsent.push(b'\n');
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // A long list is seldom asked for.
        self.unsent.shrink_to(REQUEST_LIMIT_BYTES);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_putexd_is_no_trouble_and_a_broken_request_is() {
        let (level, text) = farewell(&io::ErrorKind::UnexpectedEof.into());
        assert!(matches!(level, Level::Info) && text.contains("kept to their deadlines"), "{text}");
        let broken: io::Error =
            serde_json::from_slice::<Request>(b"{").map(drop).map_err(io::Error::from).expect_err("half");
        assert_eq!(broken.kind(), io::ErrorKind::UnexpectedEof);
        let (level, text) = farewell(&broken);
        assert!(matches!(level, Level::Warning) && text.contains("disconnected"), "{text}");
    }
}
