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

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};

use super::enforce::Enforcement;
use super::table::{Effect, Entry, Table};
use super::watch::{IDLE_PATIENCE, Pulse, listen};
use super::watchdog::Watchdog;
use super::{Level, Paths, say};
use crate::guard::frame::{Command, Inbox, Lease, Outcome, REQUEST_LIMIT_BYTES, Reply, Request};
use crate::guard::grant::{self, Prepared};
use crate::host::cgroup::{Condemned, Hierarchy};
use crate::host::clock::{self, BootTimer};
use crate::host::group_name::is_within;
use crate::host::identity;
use crate::host::self_fence::self_fence;
use crate::types::{BootId, DAEMON_UNIT, ServiceName, Time};

/// Beats in the time after which they are missed.
const BEATS: u32 = 6;

/// How often a proof is looked for that lets the watchdog be kept alive again: nobody tells of it.
const PROOF_INTERVAL: Duration = Duration::from_millis(20);

/// How often it is tried whether there is room, at most.
const ROOM_INTERVAL: Duration = Duration::from_secs(1);

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

/// The table as it is kept for a successor. It means nothing after a reboot.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    boot: BootId,
    entries: Vec<Entry>,
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
/// not the group's, a thread is started, or systemd is asked for a stop, whose `ExecStop=` may be a program that writes.
/// What fails is tried again by the enforcement, which says so.
fn kill_overdue(table: &Table, condemned: &AllCondemned) {
    for service in table.overdue(clock::now()) {
        for group in condemned.get(service).into_iter().flatten() {
            let _ = group.kill();
        }
    }
}

/// Whether what the guard keeps in /run can be written.
#[derive(Debug, Default)]
struct Room {
    /// Why not, and what to do about it.
    trouble: Option<String>,
    /// Whose grants have a deadline that is not the latest: they exist, and the gate lets nothing start once it is over.
    outdated: BTreeSet<ServiceName>,
    /// When that was tried last.
    looked_at: Option<Time>,
}

pub(super) struct Shell<'a> {
    paths: &'a Paths,
    boot: BootId,
    hierarchy: Arc<Hierarchy>,
    timer: BootTimer,
    table: Table,
    condemned: AllCondemned,
    enforcements: BTreeMap<ServiceName, Enforcement>,
    listener: UnixListener,
    connection: Option<Connection>,
    /// The control group of who is at its other end.
    connection_group: Option<String>,
    /// How its watcher knows that it lives.
    pulse: Pulse,
    /// The hardware's.
    watchdog: Option<Watchdog>,
    /// Whether table and grants can be written.
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
        let (table, effects) = Table::resume(clock::now(), load(&paths.state, boot));
        // The guard before has refused what may not be killed; of what cannot be read now the enforcement speaks.
        let condemned = |lease: &Lease| lease.cgroups.iter().filter_map(|path| hierarchy.condemn(path).ok()).collect();
        let condemned: AllCondemned = table.leases().map(|lease| (lease.service.clone(), condemned(lease))).collect();
        kill_overdue(&table, &condemned);
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
        grant::withdraw_all(&paths.leases).map_err(host("remove the grants of the guard before"))?;
        for file in [&paths.state, &paths.socket, &paths.watch] {
            fs::create_dir_all(file.parent().unwrap_or(Path::new("/")))
                .map_err(host("make the guard's own directory"))?;
        }
        let leases = table.entries().len();
        if leases > 0 {
            say(Level::Warning, &format!("{leases} leases of a guard that ended are closed; their deadlines stand"));
        }
        let mut shell = Self {
            paths,
            boot,
            hierarchy,
            timer,
            table,
            condemned,
            enforcements: BTreeMap::new(),
            listener: listen(&paths.socket).map_err(host("listen"))?,
            connection: None,
            connection_group: None,
            pulse: Pulse::new(&paths.watch).map_err(host("listen for its watcher"))?,
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
            self.wait().map_err(|error| Fatal::Host("wait", error))?;
            self.expire()?;
            self.tend();
            if self.told.as_mut().is_some_and(|told| told.read(&mut [0]).is_ok()) {
                return self.end();
            }
            self.accept().map_err(|error| Fatal::Host("accept connections", error))?;
            self.pulse.accept().map_err(|error| Fatal::Host("accept its watcher", error))?;
            self.converse()?;
            self.beat();
        }
    }

    /// Keeps the hardware's watchdog from resetting the host, as long as every unit is sure to be dead in time.
    fn tend(&mut self) {
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

    /// How long the guard may be silent from now on. It is counted on `CLOCK_MONOTONIC`, of which an eighth is left out as
    /// in [`Shell::wait`].
    fn patience(&self) -> Duration {
        let patience = self.table.patience(clock::now());
        patience.map_or(IDLE_PATIENCE, |patience| patience.saturating_sub(patience / 8).min(IDLE_PATIENCE))
    }

    /// Shows that the guard lives, and says when to give it up.
    fn beat(&mut self) {
        let patience = self.patience();
        self.pulse.beat(patience);
    }

    /// Until somebody speaks, or a deadline passes on either clock.
    ///
    /// The timer is on `CLOCK_BOOTTIME`. The raw clock has no timers: poll(2) counts on `CLOCK_MONOTONIC`, which may be
    /// slewed against it by a tenth, so seven eighths of the time are waited, and then seven eighths of the rest.
    fn wait(&self) -> io::Result<()> {
        let next = self.table.wake_at(clock::now());
        self.timer.set(next.map(|at| at.boot))?;
        let raw = next.map(|at| at.raw.saturating_sub(clock::now().raw));
        let raw = raw.map(|left| left.saturating_sub(left / 8).max(Duration::from_micros(100)));
        let beat = self.pulse.is_watched().then(|| self.patience() / BEATS);
        let due_in = |watchdog: &Watchdog| watchdog.due_in(clock::now(), self.at_stake()).unwrap_or(PROOF_INTERVAL);
        let keep_alive = self.watchdog.as_ref().map(due_in);
        let limit = [raw, beat, keep_alive].into_iter().flatten().min();
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut fds = vec![PollFd::new(&self.timer, PollFlags::IN)];
        fds.extend([&self.listener, self.pulse.listener()].map(|listener| PollFd::new(listener, PollFlags::IN)));
        fds.extend(self.told.iter().map(|told| PollFd::new(told, PollFlags::IN)));
        if let Some(connection) = &self.connection {
            let interest = if connection.unsent.is_empty() { PollFlags::IN } else { PollFlags::OUT };
            fds.push(PollFd::new(&connection.stream, interest));
        }
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// What the passing of time asks for; does nothing when it is called too early.
    fn expire(&mut self) -> Result<(), Fatal> {
        kill_overdue(&self.table, &self.condemned);
        for (service, enforcement) in &self.enforcements {
            if enforcement.is_stopped() {
                self.table.stopped(service);
            }
        }
        let effects = self.table.expire(clock::now());
        if effects.is_empty() {
            return Ok(());
        }
        // The stop first, then the note of it: a successor comes to the same conclusion without the note.
        let giving_up: Vec<Lease> = effects
            .iter()
            .filter_map(|effect| if let Effect::GiveUp(lease) = effect { Some(lease.clone()) } else { None })
            .collect();
        self.carry_out(effects)?;
        // A successor that finds the table before enforces the deadline as well, and sooner.
        let saved = self.save(&self.table);
        self.take_note(saved);
        for lease in &giving_up {
            self.give_up(lease)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, effects: Vec<Effect>) -> Result<(), Fatal> {
        for effect in effects {
            match effect {
                Effect::Withdraw(service) => {
                    self.room.outdated.remove(&service);
                    // A grant that cannot be removed is one that systemd has to remove with the guard.
                    grant::withdraw(&self.paths.leases, &service)
                        .map_err(|error| Fatal::Host("remove a grant", error))?;
                }
                Effect::Enforce(lease) => self.enforce(lease)?,
                Effect::Forget(service) => drop(self.enforcements.remove(&service)),
                // The one was prepared, and follows when everything else is in place. The other follows when the table is
                // kept, because the guard may end over it.
                Effect::Grant(_) | Effect::GiveUp(_) => {}
            }
        }
        Ok(())
    }

    fn enforce(&mut self, lease: Lease) -> Result<(), Fatal> {
        let service = lease.service.clone();
        say(
            Level::Alert,
            &format!(
                "{service}: its lease has lapsed, stopping its units; SIGKILL follows {} ms after the deadline",
                lease.stop_budget.saturating_sub(lease.kill_reserve).as_millis()
            ),
        );
        let enforcement = Enforcement::begin(lease, Arc::clone(&self.hierarchy), self.paths.systemd.clone())
            .map_err(|error| Fatal::Host("start a thread", error))?;
        self.enforcements.insert(service, enforcement);
        Ok(())
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
                    self.connection = Some(Connection { stream, inbox, unsent: Vec::new() });
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
            let result = self.execute(request.command)?;
            connection.answer(&Reply { id, result });
        }
        self.connection = Some(connection);
        Ok(())
    }

    /// Everything is in place when this returns, or nothing has changed. What a successor and the gate read may be older where
    /// there is no room for it, and never says more than is so: a lease is begun only when it is kept, its deadline is kept
    /// before it counts, and all else that a successor may miss (a lease that is closed, over or let go) it finds out itself,
    /// or enforces in vain.
    fn execute(&mut self, command: Command) -> Result<Outcome, Fatal> {
        let deadline = match &command {
            Command::Arm { lease } => Some(lease.deadline).filter(|_| !lease.closing),
            Command::Extend { deadline, .. } => Some(*deadline),
            Command::Close { .. } | Command::Disarm { .. } | Command::List => None,
        };
        if command == Command::List {
            self.look_for_room();
            let watchdog = self.watchdog.as_ref().map(Watchdog::status);
            return Ok(Outcome::Leases { leases: self.table.list(), watchdog, trouble: self.room.trouble.clone() });
        }
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
        let begins = matches!(&command, Command::Arm { lease } if !lease.closing);
        let mut table = self.table.clone();
        let (outcome, effects) = table.handle(clock::now(), command);
        if outcome != Outcome::Done {
            return Ok(outcome);
        }
        let condemned = match self.condemn(&table) {
            Ok(condemned) => condemned,
            Err(error) => return Ok(Outcome::Refused { reason: error.to_string() }),
        };
        // Kept before the grant exists: a successor must not miss a lease that somebody may have acted upon.
        let grant = match self.keep(&table, &effects, begins) {
            Ok(grant) => grant,
            Err(reason) => return Ok(Outcome::Refused { reason }),
        };
        self.table = table;
        self.condemned.extend(condemned);
        self.condemned.retain(|service, _| self.table.holds(service));
        // Before the grant too, so that no unit runs under a guard that may hang for longer than its lease.
        self.beat();
        self.timer
            .set(self.table.poll_timeout().map(|at| at.boot))
            .map_err(|error| Fatal::Host("set the timer", error))?;
        self.carry_out(effects)?;
        if let Some(grant) = grant {
            grant.put().map_err(|error| Fatal::Host("put a grant in its place", error))?;
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

    /// The control groups of the leases that have others than before, ready to be killed.
    fn condemn(&self, table: &Table) -> io::Result<AllCondemned> {
        let changed = table.leases().filter(|lease| {
            let known = self.condemned.get(&lease.service).into_iter().flatten();
            !known.map(Condemned::path).eq(lease.cgroups.iter().map(String::as_str))
        });
        let condemn = |path: &String| match &self.connection_group {
            Some(putexd) if is_within(putexd, path) => {
                Err(io::Error::other(format!("{path:?}: the group holds putexd, it is not a unit's to kill")))
            }
            Some(_) | None => self.hierarchy.condemn(path),
        };
        changed
            .map(|lease| Ok((lease.service.clone(), lease.cgroups.iter().map(condemn).collect::<io::Result<_>>()?)))
            .collect()
    }

    /// Writes what a change of the table to `table` asks for: the grant beside its place, where there is to be one, and the
    /// table. `Err`: a lease is not to be begun, as it cannot be kept, and nothing of it is written.
    fn keep(&mut self, table: &Table, effects: &[Effect], begins: bool) -> Result<Option<Prepared>, String> {
        let granted =
            effects.iter().find_map(|effect| if let Effect::Grant(lease) = effect { Some(lease) } else { None });
        let prepared = granted.map(|lease| grant::prepare(&self.paths.leases, lease)).transpose();
        if begins {
            // The room for the grant first: a lease that gets none must not be in the table either.
            return match prepared.and_then(|grant| self.save(table).map(|()| grant)) {
                Ok(grant) => {
                    self.take_note(Ok(()));
                    Ok(grant)
                }
                Err(error) => {
                    self.take_note(Err(error));
                    Err(self.room.trouble.clone().unwrap_or_default())
                }
            };
        }
        if let Some(lease) = granted {
            match prepared {
                Ok(_) => self.room.outdated.remove(&lease.service),
                Err(_) => self.room.outdated.insert(lease.service.clone()),
            };
        }
        let saved = self.save(table);
        let (grant, refused) = prepared.map_or_else(|error| (None, Err(error)), |grant| (grant, Ok(())));
        self.take_note(saved.and(refused));
        Ok(grant)
    }

    /// Tries to write what could not be written, or whether something could be; not often.
    fn look_for_room(&mut self) {
        let now = clock::now();
        if self.room.looked_at.is_some_and(|before| !now.has_passed(before.plus(ROOM_INTERVAL))) {
            return;
        }
        let mut written = self.save(&self.table);
        for lease in self.table.leases().filter(|lease| self.room.outdated.contains(&lease.service)) {
            written = written.and_then(|()| grant::write(&self.paths.leases, lease));
        }
        if written.is_ok() {
            self.room.outdated.clear();
        }
        self.take_note(written);
    }

    /// Says once that there is no room, and once that there is.
    fn take_note(&mut self, written: io::Result<()>) {
        self.room.looked_at = Some(clock::now());
        match written {
            Err(error) => {
                let trouble = format!(
                    "{}: the guard cannot keep {}: {error}; leases go on, none is begun, and what is started again under one \
                     may be refused",
                    remedy(&error),
                    self.paths.state.display()
                );
                if self.room.trouble.replace(trouble.clone()).is_none() {
                    say(Level::Alert, &trouble);
                }
            }
            Ok(()) if self.room.outdated.is_empty() => {
                if self.room.trouble.take().is_some() {
                    say(Level::Notice, "/run takes the guard's table again");
                }
            }
            Ok(()) => {}
        }
    }

    fn save(&self, table: &Table) -> io::Result<()> {
        let text = serde_json::to_vec(&Saved { boot: self.boot, entries: table.entries() })?;
        grant::replace(&self.paths.state, &text, 0o600)
    }
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

/// What the guard before has left. A file that cannot be read is as good as none: with that guard's end systemd has
/// stopped all units already, and the deadlines only make sure.
fn load(path: &Path, boot: BootId) -> Vec<Entry> {
    let saved = fs::read(path).and_then(|text| Ok(serde_json::from_slice::<Saved>(&text)?));
    match saved {
        Ok(saved) if saved.boot == boot => saved.entries,
        Ok(_) => Vec::new(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            say(Level::Alert, &format!("the table of the guard before is lost, ignoring: {}: {error}", path.display()));
            Vec::new()
        }
    }
}

struct Connection {
    stream: UnixStream,
    inbox: Inbox,
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
    /// The next request; `None` if it is not here yet, or while replies wait to be taken.
    fn next(&mut self) -> io::Result<Option<Request>> {
        self.flush()?;
        if !self.unsent.is_empty() {
            return Ok(None);
        }
        loop {
            if let Some(line) = self.inbox.line() {
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            let mut room = self.inbox.room()?;
            match self.stream.read(&mut room) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.inbox.take(&room[..count]),
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
