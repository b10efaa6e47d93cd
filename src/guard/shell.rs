//! The main loop of the guard. It takes what comes from socket and timers, asks the table, and carries out what that decides:
//! grants and enforcements. The files beside this one have what it does first, the connection of putexd, and what is kept in /run.

mod connection;
mod heart;
mod keeping;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use sd_notify::NotifyState;

use self::connection::{Connection, farewell, is_of_putexd};
use self::heart::{AllCondemned, FirstAct, Heart};
use self::keeping::{Change, Room};
use super::Paths;
use super::enforce::{Enforcement, Enforcer};
use super::files::Files;
use super::inquiries::Inquiries;
use super::program::Program;
use super::records::Records;
use super::table::{Effect, Entry, Table};
use super::told::{self, Level, say};
use super::watchdog::Watchdog;
use crate::guard_client::frame::{Command, Lease, Of, Outcome, Reply};
use crate::host::cgroup::{Condemned, Hierarchy};
use crate::host::clock::{self, BootTimer};
use crate::host::group_name::is_within;
use crate::host::self_fence::self_fence;
use crate::journal::GuardAlarm;
use crate::systemd::notify;
use crate::types::{DAEMON_UNIT, ServiceName, Time};

/// How often the guard looks for a proof that permits its end, or the next keep-alive of the watchdog: no event announces one.
const PROOF_INTERVAL: Duration = Duration::from_millis(20);

/// How much more time to stop a guard asks systemd for that was told to end while units may run, and how often.
const END_EXTENSION: Duration = Duration::from_secs(10);
const END_EXTENSION_INTERVAL: Duration = Duration::from_secs(1);

/// Why a guard that was told to end arms no lease.
const ENDING: &str =
    "run \"systemctl start putex-guard\": the guard was told to end, and it ends when the units of its leases are dead";

/// Why the guard ends, or does not start.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// The host refuses something that the guard cannot do without.
    #[error("cannot {0}: {1}")]
    Host(&'static str, io::Error),
    /// The units are not proven dead, and systemd did not take on their stop. Only the end of the guard can still make it stop
    /// them.
    #[error("systemd was not heard to stop the units of {0}, and they are not dead")]
    Unproven(ServiceName),
    /// The guard has taken this host down, and the host still runs.
    #[error("the stop of {0} is not proven, and the host did not go down")]
    NotFenced(ServiceName),
}

/// Which listeners have connections to accept.
#[derive(Debug, Clone, Copy, Default)]
struct Comers {
    clients: bool,
    watchers: bool,
}

pub(super) use self::start::begin;

pub(super) struct Shell<'a> {
    paths: &'a Paths,
    hierarchy: Arc<Hierarchy>,
    timer: BootTimer,
    /// The time to which the timer is set, on `CLOCK_BOOTTIME`.
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
    /// The control group of the process at the other end of the connection.
    connection_group: Option<String>,
    inquiries: Inquiries,
    heart: Heart,
    program: Program,
    /// The hardware watchdog, if the guard is to serve one.
    watchdog: Option<Watchdog>,
    room: Room,
    /// Becomes readable at SIGTERM.
    told: UnixStream,
    /// The guard was told to end: when it next asks systemd for more time.
    ending: Option<Time>,
}

impl Shell<'_> {
    /// Serves until something fails that leaves a lease in doubt, or until SIGTERM. Then it ends every lease at once, and returns
    /// without an error when none of their units can be alive any more. It also returns when it has no lease and another program is
    /// installed, which systemd starts then.
    pub(super) fn serve(mut self) -> Result<(), Fatal> {
        loop {
            let comers = self.wait().map_err(|error| Fatal::Host("wait", error))?;
            self.expire()?;
            self.tend();
            if self.may_end()? {
                break;
            }
            if comers.clients {
                self.accept().map_err(|error| Fatal::Host("accept connections", error))?;
            }
            if comers.watchers {
                self.heart.accept().map_err(|error| Fatal::Host("accept its watcher", error))?;
            }
            self.converse()?;
            self.beat();
            // A process does not end while one of its threads hangs in the kernel, and systemd would start no other guard.
            let is_looking = self.enforcer.is_looking() || self.inquiries.is_looking();
            if self.program.is_replaced() && self.table.leases().next().is_none() && !is_looking {
                say(Level::Notice, "the guard ends, because it has no lease and another version of it is installed");
                break;
            }
        }
        self.watchdog.into_iter().for_each(Watchdog::close);
        Ok(())
    }

    /// Keeps the hardware watchdog from resetting the host, as long as every unit is sure to be dead in time.
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

    /// Handles SIGTERM, which comes at the end of a shutdown, or from the administrator. Returns whether the guard may end. Nobody
    /// would extend or enforce its leases without it, and systemd starts no other guard while this one is being stopped.
    fn may_end(&mut self) -> Result<bool, Fatal> {
        let now = clock::now();
        if self.told.read(&mut [0]).is_ok() && self.ending.is_none() {
            self.ending = Some(now);
            if self.at_stake().is_some() {
                let reason = "the guard is told to end: every lease of this host ends now, and the guard when their units are dead";
                told::alarm(Level::Alert, GuardAlarm::Ends, reason);
            }
            self.table.end(now);
            self.expire()?;
        }
        let Some(extend_at) = self.ending else { return Ok(false) };
        if self.at_stake().is_none() {
            return Ok(true);
        }
        if now.has_passed(extend_at) {
            self.ending = Some(now.plus(END_EXTENSION_INTERVAL));
            let extension = u32::try_from(END_EXTENSION.as_micros()).unwrap_or(u32::MAX);
            // It is repeated. If all of them are lost, systemd kills the guard, and its watcher sends SIGKILL to the units.
            let _ = notify::try_tell(&[NotifyState::ExtendTimeoutUsec(extension)]);
        }
        Ok(false)
    }

    /// Shows that the guard lives. Loops over many leases call this for each of them, because none of these steps can hang.
    fn beat(&mut self) {
        self.heart.beat(&self.table);
    }

    /// Waits until a descriptor is readable, or until the next deadline, beat or keep-alive is due.
    ///
    /// The timer is on `CLOCK_BOOTTIME`. There are no timers on `CLOCK_MONOTONIC_RAW`. poll(2) counts on `CLOCK_MONOTONIC`,
    /// which may be slewed against it by a tenth, so the guard waits for seven eighths of the time, and then for seven eighths
    /// of the rest.
    fn wait(&mut self) -> io::Result<Comers> {
        let next = self.table.wake_at(clock::now());
        self.set_timer(next)?;
        let raw = next.map(|at| at.raw.saturating_sub(clock::now().raw));
        let raw = raw.map(|left| left.saturating_sub(left / 8).max(Duration::from_micros(100)));
        let beat = self.heart.due_in();
        let due_in = |watchdog: &Watchdog| watchdog.due_in(clock::now(), self.at_stake()).unwrap_or(PROOF_INTERVAL);
        let keep_alive = self.watchdog.as_ref().map(due_in);
        let end = self.ending.map(|_| PROOF_INTERVAL);
        let limit = [raw, beat, keep_alive, end, Some(self.program.due_in())].into_iter().flatten().min();
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut fds = vec![PollFd::new(&self.timer, PollFlags::IN)];
        fds.extend([&self.listener, self.heart.pulse.listener()].map(|listener| PollFd::new(listener, PollFlags::IN)));
        fds.push(PollFd::new(&self.told, PollFlags::IN));
        fds.push(self.inquiries.poll_fd());
        if let Some(connection) = &self.connection {
            fds.push(connection.poll_fd());
        }
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) => {
                let has = |fds: &[PollFd<'_>]| fds.iter().any(|fd| !fd.revents().is_empty());
                Ok(Comers { clients: has(&fds[1..2]), watchers: has(&fds[2..3]) })
            }
            Err(rustix::io::Errno::INTR) => Ok(Comers::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets the timer only if it would fire too late. A timer that fires too early is set anew then, which is rare: most leases
    /// are extended before that.
    fn set_timer(&mut self, next: Option<Time>) -> io::Result<()> {
        let boot = next.map(|at| at.boot);
        let is_early_enough = |set: Duration| set > clock::now().boot && boot.is_none_or(|boot| set <= boot);
        if self.timer_set != boot && !self.timer_set.is_some_and(is_early_enough) {
            self.timer.set(boot)?;
            self.timer_set = boot;
        }
        Ok(())
    }

    /// Does what is due by now. It may be called too early, and does nothing then.
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
        // The stop comes first and the record after it: a successor decides the same without the record.
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
        // A successor that finds the older record enforces its deadline as well, which is the same or earlier.
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
                    // If the guard cannot remove a grant, it ends, because systemd then removes the grants with its runtime
                    // directory.
                    self.grants.remove(&service).map_err(|error| Fatal::Host("remove a grant", error))?;
                }
                Effect::Extend(service, deadline) => self.extend_grant(&service, deadline),
                Effect::Enforce(lease) => self.enforce(lease),
                Effect::Forget(service) => drop(self.enforcements.remove(&service)),
                // A grant was prepared already, and follows when everything else is in place. Giving up follows after the
                // records are written, because the guard may end over it.
                Effect::Grant(_) | Effect::GiveUp(_) => {}
            }
        }
        Ok(())
    }

    fn enforce(&mut self, lease: Lease) {
        let service = lease.service.clone();
        let reason = format!(
            "its lease has lapsed, stopping its units; SIGKILL follows {} ms after the deadline",
            lease.terms.stop_budget.saturating_sub(lease.terms.kill_reserve).as_millis()
        );
        told::alarm_of(Level::Alert, GuardAlarm::Lapsed, &lease, &[], &reason);
        if self.first_act.has_killed(&service) {
            let killed: Vec<&str> = lease.cgroups.iter().map(String::as_str).collect();
            let reason = "SIGKILL was due already, and its control groups have got it before anything else was done";
            told::alarm_of(Level::Alert, GuardAlarm::Killed, &lease, &killed, reason);
        }
        let enforcement = self.enforcer.begin(lease);
        self.enforcements.insert(service, enforcement);
    }

    /// The stop was not proven in time. The guard ends if that still helps, because `BindsTo=` then stops the units without an
    /// answer from PID 1. It does not help if systemd has taken on the stop already, as when it stops the guard itself, and it
    /// would end the other leases of the host too.
    fn give_up(&self, lease: &Lease) -> Result<(), Fatal> {
        let service = lease.service.clone();
        let reason = format!(
            "its units are not proven dead {} ms after the deadline; they may run on two hosts",
            lease.terms.stop_budget.as_millis()
        );
        told::alarm_of(Level::Emergency, GuardAlarm::Unproven, lease, &[], &reason);
        if let Err(error) = self_fence(lease.on_stop_failure, &self.paths.sysrq) {
            let reason = format!("cannot take this host down: {error}");
            told::alarm_of(Level::Emergency, GuardAlarm::TakesDown, lease, &[], &reason);
        }
        if lease.on_stop_failure.is_self_fence() {
            return Err(Fatal::NotFenced(service));
        }
        if self.ending.is_some() || self.enforcements.get(&service).is_some_and(Enforcement::is_asked) {
            return Ok(());
        }
        Err(Fatal::Unproven(service))
    }

    /// A new connection replaces the old one, and the unread requests of the old one are dropped. Only putexd may replace a
    /// connection of putexd. While putexd has none, any process of root may connect.
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
                    self.connection = Some(Connection::new(stream));
                    self.inquiries.forget();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Executes the requests that have arrived, one line at a time. The clock is read before each.
    fn converse(&mut self) -> Result<(), Fatal> {
        let answers = self.inquiries.answers();
        let Some(mut connection) = self.connection.take() else { return Ok(()) };
        connection.wake();
        for reply in &answers {
            connection.answer(reply);
        }
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
            let result = match request.source {
                Some(name) => match self.inquiries.ask(id, name) {
                    Ok(()) => continue,
                    Err(reason) => Outcome::Refused { reason },
                },
                None => self.execute(request.command, &request.of)?,
            };
            connection.answer(&Reply { id, result });
        }
        self.connection = Some(connection);
        Ok(())
    }

    /// Executes one command. When this returns, either everything is in place or nothing has changed. If there is no space in
    /// /run, the record and the grant may be older than the table, but they never permit more than it does. A lease begins only
    /// if its record is written, and a later deadline goes into the record, if that is possible, before it counts. A successor
    /// that misses another change (a lease that is closed, has lapsed or was disarmed) finds it out itself, or enforces in
    /// vain.
    fn execute(&mut self, command: Command, of: &Of) -> Result<Outcome, Fatal> {
        let (service, deadline) = match &command {
            Command::Arm { lease, .. } => {
                (lease.service.clone(), Some(lease.terms.deadline).filter(|_| !lease.closing))
            }
            Command::Extend { service, deadline, .. } => (service.clone(), Some(*deadline)),
            Command::Close { service, .. } | Command::Disarm { service, .. } => (service.clone(), None),
            Command::List => {
                self.look_for_room();
                let watchdog = self.watchdog.as_ref().map(Watchdog::status);
                let trouble = self.ending.map(|_| ENDING.to_owned()).or_else(|| self.room.trouble.clone());
                let mut leases = self.table.list(of);
                for listed in leases.iter_mut().filter(|listed| listed.stopped) {
                    let enforcement = self.enforcements.get(&listed.lease.service);
                    listed.stopped = enforcement.is_some_and(Enforcement::is_proven);
                }
                let version = Some(env!("CARGO_PKG_VERSION").to_owned());
                return Ok(Outcome::Leases { leases, watchdog, trouble, version });
            }
        };
        if let Some(watchdog) = &self.watchdog
            && let Err(error) = match &command {
                // Commands that permit nothing need no watchdog.
                Command::Arm { lease, .. } if lease.closing => Ok(()),
                Command::Arm { lease, .. } => watchdog.permits_arming(clock::now(), lease.terms.dead_by()),
                Command::Extend { .. } => watchdog.permits_extending(clock::now()),
                Command::Close { .. } | Command::Disarm { .. } | Command::List => Ok(()),
            }
        {
            return Ok(Outcome::Refused { reason: error.to_string() });
        }
        if self.ending.is_some() && matches!(&command, Command::Arm { lease, .. } if !lease.closing) {
            return Ok(Outcome::Refused { reason: ENDING.to_owned() });
        }
        let kind = match &command {
            Command::Arm { lease, .. } if !lease.closing => Change::Begins,
            Command::Extend { .. } => Change::Extends,
            Command::Arm { .. } | Command::Close { .. } | Command::Disarm { .. } | Command::List => Change::Ends,
        };
        let before = self.table.entry_of(&service).cloned();
        let (outcome, effects) = self.table.handle(clock::now(), command);
        if outcome != Outcome::Done {
            return Ok(outcome);
        }
        // The record is written before the grant exists: a successor must know every lease that somebody may have acted upon.
        let condemned = self.condemn(&service).map_err(|error| told::in_words(&error));
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
        // The beat comes before the grant too, so that no unit runs under a guard that may hang for longer than its lease.
        self.beat();
        self.set_timer(self.table.poll_timeout()).map_err(|error| Fatal::Host("set the timer", error))?;
        self.carry_out(effects)?;
        if let Some(grant) = grant {
            self.grants.put(grant).map_err(|error| Fatal::Host("put a grant in its place", error))?;
        }
        if !self.table.holds(&service) {
            self.forget(&service);
        }
        // The host may have stood still since the first look at the clock.
        if let Some(deadline) = deadline
            && clock::now().has_passed(deadline)
        {
            self.expire()?;
            return Ok(Outcome::Refused { reason: "the deadline has passed".to_owned() });
        }
        Ok(outcome)
    }

    /// Opens the control groups of the lease of `service` for a later kill. `None`: they have not changed.
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
}
