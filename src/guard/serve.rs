//! The main loop of the guard. It takes what comes from socket and timers, asks the table, and carries out what that decides:
//! grants and enforcements.

use std::{
    io::{self, Read as _},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags},
    net::sockopt::socket_peercred,
    process::geteuid,
};
use sd_notify::NotifyState;

use super::{
    case::Case,
    connection::PutexdConnection,
    enforce::{Enforcer, tell},
    kept::KeptLeases,
    log::{self, Priority, say},
    looks::Inquiries,
    program,
    table::{Effect, LeaseTable},
    watch::{Beats, next_of, wait},
    watchdog::HostWatchdog,
};
use crate::{
    guard_client::frame::{Command, GuardState, Lease, Of, Outcome, Request},
    host::{
        cgroup::{Hierarchy, group_of},
        clock::{self, BootTimer},
        self_fence::self_fence,
    },
    journal::GuardAlarm,
    systemd::notify,
    types::{DAEMON_UNIT, ServiceName, Time, is_within},
};

/// How often the guard looks for a proof that permits its end, or the next keep-alive of the watchdog, and for what a look at a device
/// has found: no event announces one.
const PROOF_INTERVAL: Duration = Duration::from_millis(20);

/// How much more time to stop a guard asks systemd for that was told to end while units may run.
const END_EXTENSION: Duration = Duration::from_secs(10);

/// Time between two looks whether the guard's program was replaced.
const LOOK_INTERVAL: Duration = Duration::from_secs(4);

/// Why a guard that was told to end arms no lease.
const ENDING: &str = "run \"systemctl start putex-guard\": the guard was told to end, and it ends when the units of its leases are dead";

/// Why the guard ends, or does not start: the host refuses what it cannot do without.
pub fn cannot(what: &'static str) -> impl FnOnce(io::Error) -> String {
    move |error| format!("cannot {what}: {error}")
}

pub struct Guard {
    /// The file through which the host is taken down.
    pub sysrq: PathBuf,
    pub hierarchy: Arc<Hierarchy>,
    pub timer: BootTimer,
    pub table: LeaseTable,
    pub kept: KeptLeases,
    pub enforcer: Enforcer,
    pub listener: UnixListener,
    pub connection: Option<PutexdConnection>,
    /// The control group of the process at the other end of the connection.
    pub connection_group: Option<String>,
    pub inquiries: Inquiries,
    pub beats: Beats,
    /// When the guard next looks whether its program was replaced.
    pub look_at: Time,
    /// The hardware watchdog, if the guard is to serve one.
    pub watchdog: Option<HostWatchdog>,
    /// Becomes readable at SIGTERM.
    pub sigterm: UnixStream,
    /// The guard was told to end: when it next asks systemd for more time.
    pub ending: Option<Time>,
}

impl Guard {
    /// Serves until something fails that leaves a lease in doubt, or until SIGTERM. Then it ends every lease at once, and returns
    /// without an error when none of their units can be alive any more. It also returns when it has no lease and another program is
    /// installed, which systemd starts then.
    pub fn serve(mut self) -> Result<(), String> {
        loop {
            self.wait().map_err(cannot("wait"))?;
            self.expire()?;
            self.keep_alive();
            if self.may_end()? {
                break;
            }
            self.accept().map_err(cannot("accept connections"))?;
            self.converse()?;
            self.beat();
            if self.is_replaced() {
                say(
                    Priority::Notice,
                    "the guard ends, because it has no lease and another version of it is installed",
                );
                break;
            }
        }
        self.watchdog.into_iter().for_each(HostWatchdog::close);
        Ok(())
    }

    /// Whether this guard has nothing to do, and another program is installed.
    fn is_replaced(&mut self) -> bool {
        let now = clock::now();
        if !now.has_passed(self.look_at) {
            return false;
        }
        self.look_at = now.plus(LOOK_INTERVAL);
        // A process does not end while one of its threads hangs in the kernel, and systemd would start no other guard.
        let is_looking = self.enforcer.is_looking() || self.inquiries.is_under_way();
        self.table.leases().next().is_none() && !is_looking && program::is_replaced()
    }

    /// Keeps the hardware watchdog from resetting the host, as long as every unit is sure to be dead in time.
    pub fn keep_alive(&mut self) {
        let at_stake = self.watchdog.as_ref().and_then(|_| self.at_stake());
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.tend(clock::now, at_stake);
        }
    }

    fn at_stake(&self) -> Option<Time> {
        self.table
            .at_stake(|service| self.enforcer.is(service, Case::is_stopped))
    }

    /// Handles SIGTERM, which comes at the end of a shutdown, or from the administrator. Returns whether the guard may end. Nobody
    /// would extend or enforce its leases without it, and systemd starts no other guard while this one is being stopped.
    fn may_end(&mut self) -> Result<bool, String> {
        let now = clock::now();
        if self.sigterm.read(&mut [0]).is_ok() && self.ending.is_none() {
            self.ending = Some(now);
            if self.at_stake().is_some() {
                log::alarm(
                    Priority::Alert,
                    GuardAlarm::Ends,
                    None,
                    "the guard is told to end: every lease of this host ends now, and the guard when their units are dead",
                );
            }
            self.table.end(now);
            self.expire()?;
        }
        let at_stake = self.at_stake().is_some();
        if at_stake
            && self
                .ending
                .is_some_and(|extend_at| now.has_passed(extend_at))
        {
            self.ending = Some(now.plus(END_EXTENSION / 10));
            let extension = notify::micros(END_EXTENSION);
            // It is repeated. If all of them are lost, systemd kills the guard, and its watcher sends SIGKILL to the units.
            let _ = notify::try_tell(&[NotifyState::ExtendTimeoutUsec(extension)]);
        }
        Ok(self.ending.is_some() && !at_stake)
    }

    /// Shows that the guard lives. Loops over many leases call this for each of them, because none of these steps can hang.
    pub fn beat(&mut self) {
        self.beats.beat(&self.table);
    }

    /// Waits until a descriptor is readable, or until the next deadline, beat or keep-alive is due.
    ///
    /// The timer is on `CLOCK_BOOTTIME`. There are no timers on `CLOCK_MONOTONIC_RAW`. poll(2) counts on `CLOCK_MONOTONIC`,
    /// which may be slewed against it by a tenth, so the guard waits for seven eighths of the time, and then for seven eighths
    /// of the rest.
    fn wait(&mut self) -> io::Result<()> {
        let now = clock::now();
        let next = [self.table.poll_timeout(), self.enforcer.look_at()]
            .into_iter()
            .flatten()
            .reduce(Time::earliest);
        self.timer.set(next.map(|at| at.boot))?;
        let raw = next.map(|at| {
            let left = at.raw.saturating_sub(now.raw);
            left.saturating_sub(left / 8)
                .max(Duration::from_micros(100))
        });
        let keep_alive = self.watchdog.as_ref().map(|watchdog| {
            watchdog
                .due_in(now, self.at_stake())
                .unwrap_or(PROOF_INTERVAL)
        });
        let end = self.ending.map(|_| PROOF_INTERVAL);
        let beat = self.beats.due_in();
        let look = now.until_passed(self.look_at);
        let answers = self.inquiries.are_open().then_some(PROOF_INTERVAL);
        let limits = [raw, beat, keep_alive, end, answers, Some(look)];
        let mut fds = vec![
            PollFd::new(&self.timer, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
            PollFd::new(self.beats.listener(), PollFlags::IN),
            PollFd::new(&self.sigterm, PollFlags::IN),
        ];
        fds.extend(self.connection.as_ref().map(PutexdConnection::poll_fd));
        wait(&mut fds, limits.into_iter().flatten().min())
    }

    /// Does what is due by now. It may be called too early, and does nothing then.
    pub fn expire(&mut self) -> Result<(), String> {
        // What is due for SIGKILL gets it before a log is written, before a file is read that is not the kernel's own, and before systemd
        // is asked for a stop, whose ExecStop= may be a program that writes.
        let mut seen = self.enforcer.look(|| self.beats.beat(&self.table));
        let mut changed = self.enforcer.stopped();
        changed.retain(|service| self.table.stopped(service));
        let effects = self.table.expire(clock::now());
        self.enforcer.begin_all(&effects);
        seen.extend(self.enforcer.look(|| self.beats.beat(&self.table)));
        for (lease, news) in seen {
            tell(&lease, &news);
        }
        for service in changed {
            self.write(&service);
        }
        self.carry_out(effects)
    }

    /// Writes the record of a lease that has changed without a command.
    fn write(&mut self, service: &ServiceName) {
        if let Some(entry) = self.table.entry_of(service) {
            self.kept.write(entry);
        }
        self.beat();
    }

    /// Does what the table has decided, and what it has begun to enforce already.
    pub fn carry_out(&mut self, effects: Vec<Effect>) -> Result<(), String> {
        let mut given_up = Vec::new();
        for effect in effects {
            self.beat();
            match effect {
                // If the guard cannot remove a grant, it ends, because systemd then removes the grants with its runtime directory.
                Effect::Withdraw(service) => self
                    .kept
                    .withdraw_grant(&service)
                    .map_err(cannot("remove a grant"))?,
                Effect::Extend(service, _) => {
                    if let Some(entry) = self.table.entry_of(&service) {
                        self.kept.extend_grant(entry.lease());
                    }
                }
                Effect::Enforce(lease) => tell_lapse(&lease),
                Effect::Forget(service) => self.enforcer.end(&service),
                Effect::GiveUp(lease) => given_up.push(lease),
                Effect::Grant(lease) => self
                    .kept
                    .open(&lease.service)
                    .map_err(cannot("put a grant in its place"))?,
            }
        }
        // A lapse needs no record: a successor finds it by the deadline. But what was stopped is not given up, and nothing is twice. All
        // records are written before the first of these leases is given up, because the guard may end over it.
        for lease in &given_up {
            self.write(&lease.service);
        }
        given_up.iter().try_for_each(|lease| self.give_up(lease))
    }

    /// The stop was not proven in time. The guard ends if that still helps, because `BindsTo=` then stops the units without an
    /// answer from PID 1. It does not help if systemd has taken on the stop already, as when it stops the guard itself, and it
    /// would end the other leases of the host too.
    fn give_up(&self, lease: &Lease) -> Result<(), String> {
        let service = &lease.service;
        let alarm = |alarm, text: &str| log::alarm(Priority::Emergency, alarm, Some(lease), text);
        let doubt = self.enforcer.doubt(service).map(|why| format!(": {why}"));
        alarm(
            GuardAlarm::Unproven,
            &format!(
                "its units are not proven dead {} ms after the deadline; they may run on two hosts{}",
                lease.terms.stop_budget.as_millis(),
                doubt.unwrap_or_default()
            ),
        );
        if let Err(error) = self_fence(lease.on_stop_failure, &self.sysrq) {
            alarm(
                GuardAlarm::TakesDown,
                &format!("cannot take this host down: {error}"),
            );
        }
        if lease.on_stop_failure.is_self_fence() {
            return Err(format!(
                "the stop of {service} is not proven, and the host did not go down"
            ));
        }
        if self.ending.is_some() || self.enforcer.is(service, Case::is_asked) {
            return Ok(());
        }
        // Only the end of the guard can still make systemd stop them.
        Err(format!(
            "systemd was not heard to stop the units of {service}, and they are not dead"
        ))
    }

    /// A new connection replaces the old one, and the unread requests of the old one are dropped. Only putexd may replace a
    /// connection of putexd. While putexd has none, any process of root may connect.
    fn accept(&mut self) -> io::Result<()> {
        self.beats.accept()?;
        while let Some(stream) = next_of(&self.listener)? {
            let Ok(peer) = socket_peercred(&stream) else {
                continue;
            };
            if peer.uid != geteuid() {
                continue;
            }
            let peer = peer.pid.as_raw_nonzero().to_string();
            let group = group_of(&Path::new("/proc").join(&peer)).ok();
            let serves_putexd =
                self.connection.is_some() && is_of_putexd(self.connection_group.as_deref());
            if serves_putexd && !is_of_putexd(group.as_deref()) {
                say(
                    Priority::Warning,
                    &format!("process {peer} is sent away: the guard serves {DAEMON_UNIT}"),
                );
                continue;
            }
            self.connection_group = group;
            self.connection = Some(PutexdConnection::new(stream));
            self.inquiries.forget();
        }
        Ok(())
    }

    /// Executes the requests that have arrived, one line at a time. The clock is read before each.
    fn converse(&mut self) -> Result<(), String> {
        let answers = self.inquiries.answers();
        let Some(mut connection) = self.connection.take() else {
            return Ok(());
        };
        for (id, answer) in answers {
            connection.answer(id, answer);
        }
        loop {
            let Request { id, command } = match connection.next() {
                Ok(Some(request)) => request,
                Ok(None) => break,
                Err(error) => {
                    // putexd ends its connection whenever it is stopped.
                    say(
                        Priority::Notice,
                        &format!(
                            "the connection of putexd has ended, its leases are kept to their deadlines: {error}"
                        ),
                    );
                    return Ok(());
                }
            };
            self.expire()?;
            self.keep_alive();
            let result = match command {
                Command::List(of) => Outcome::Leases(self.state(&of)),
                Command::CheckUnmounted { unit, was } => match self.inquiries.ask(id, unit, was) {
                    Ok(()) => continue,
                    Err(error) => refused(error.to_string()),
                },
                command @ (Command::Arm { .. }
                | Command::Extend { .. }
                | Command::Close { .. }
                | Command::Disarm { .. }) => match self.permits(&command) {
                    Ok((service, until)) => self.execute(&service, until, command)?,
                    Err(reason) => refused(reason),
                },
            };
            connection.answer(id, result);
        }
        self.connection = Some(connection);
        Ok(())
    }

    /// The service that a command is for, and until when it lets the units run. `Err`: it may not be executed under the watchdog, or by
    /// a guard that is to end. What permits nothing always may.
    fn permits(&self, command: &Command) -> Result<(ServiceName, Option<Time>), String> {
        let (now, watchdog) = (clock::now(), self.watchdog.as_ref());
        let (service, until) = match command {
            Command::Arm { lease, .. } if lease.closing => (&lease.service, None),
            Command::Arm { lease, .. } => {
                if self.ending.is_some() {
                    return Err(ENDING.to_owned());
                }
                let dead_by = lease.terms.dead_by();
                watchdog.map_or(Ok(()), |watchdog| watchdog.permits_arming(now, dead_by))?;
                (&lease.service, Some(lease.terms.deadline))
            }
            Command::Extend {
                service, extension, ..
            } => {
                watchdog.map_or(Ok(()), |watchdog| watchdog.permits_extending(now))?;
                (service, Some(extension.deadline))
            }
            Command::Close { service, .. } | Command::Disarm { service, .. } => (service, None),
            Command::List(_) | Command::CheckUnmounted { .. } => {
                return Err("this changes no lease".to_owned());
            }
        };
        Ok((service.clone(), until))
    }

    /// Executes one command. When this returns, either everything is in place or nothing has changed. If there is no space in
    /// /run, the record and the grant may be older than the table, but they never permit more than it does. A lease begins only
    /// if its record is written, and a later deadline goes into the record, if that is possible, before it counts. A successor
    /// that misses another change (a lease that is closed, has lapsed or was disarmed) finds it out itself, or enforces in
    /// vain.
    fn execute(
        &mut self,
        service: &ServiceName,
        until: Option<Time>,
        command: Command,
    ) -> Result<Outcome, String> {
        let is_arm = matches!(command, Command::Arm { .. });
        let before = self.table.entry_of(service).cloned();
        let (outcome, effects) = self.table.handle(clock::now(), command);
        if outcome != Outcome::Done {
            return Ok(outcome);
        }
        // The record is written before the grant exists: a successor must know every lease that somebody may have acted upon.
        match self.table.entry_of(service) {
            Some(entry) if is_arm => {
                let kept = self.check_groups(entry.lease()).and_then(|()| {
                    if until.is_some() {
                        self.kept.begin(entry)
                    } else {
                        self.kept.write(entry);
                        Ok(())
                    }
                });
                if let Err(reason) = kept {
                    match before {
                        Some(before) => self.table.put(before),
                        None => drop(self.table.remove(service)),
                    }
                    return Ok(refused(reason));
                }
            }
            Some(entry) if until.is_some() => self.kept.extend(entry),
            // A successor closes all leases. The record of a disarmed lease is removed later, after its grant.
            Some(_) | None => {}
        }
        // The beat comes before the grant too, so that no unit runs under a guard that may hang for longer than its lease.
        self.beat();
        self.enforcer.begin_all(&effects);
        self.carry_out(effects)?;
        if self.table.entry_of(service).is_none() {
            self.kept.forget(service);
        }
        // The host may have stood still since the first look at the clock.
        if until.is_some_and(|until| clock::now().has_passed(until)) {
            self.expire()?;
            return Ok(refused("the deadline has passed".to_owned()));
        }
        Ok(outcome)
    }

    /// Checks that the control groups of a lease may be killed: that none holds PID 1, the guard or putexd.
    fn check_groups(&self, lease: &Lease) -> Result<(), String> {
        for path in &lease.cgroups {
            self.hierarchy
                .units_group(path)
                .map_err(|error| error.to_string())?;
            let putexd = self.connection_group.as_deref();
            if putexd.is_some_and(|putexd| is_within(putexd, path)) {
                return Err(format!(
                    "{path:?}: the group holds putexd, it is not a unit's to kill"
                ));
            }
        }
        Ok(())
    }

    fn state(&mut self, of: &Of) -> GuardState {
        let kept = self.kept.trouble();
        let mut leases = self.table.list(of);
        for listed in leases.iter_mut().filter(|listed| listed.stopped) {
            listed.stopped = self.enforcer.is(&listed.lease.service, Case::is_proven);
        }
        GuardState {
            leases,
            watchdog: self.watchdog.as_ref().map(HostWatchdog::status).cloned(),
            trouble: self.ending.map(|_| ENDING.to_owned()).or(kept),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

fn tell_lapse(lease: &Lease) {
    let terms = &lease.terms;
    let after = terms.stop_budget.saturating_sub(terms.kill_reserve);
    log::alarm(
        Priority::Alert,
        GuardAlarm::Lapsed,
        Some(lease),
        &format!(
            "its lease has lapsed, stopping its units; SIGKILL follows {} ms after the deadline",
            after.as_millis()
        ),
    );
}

fn refused(reason: String) -> Outcome {
    Outcome::Refused { reason }
}

/// Whether this is the control group of putexd.
fn is_of_putexd(group: Option<&str>) -> bool {
    group.and_then(|group| group.rsplit('/').next()) == Some(DAEMON_UNIT)
}
