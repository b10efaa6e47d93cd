//! The leases and their deadlines. The table is pure: time is an argument, and it returns what is to be done.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::frame::{
    CGROUP_LIMIT, Command, GuardState, LEASE_LIMIT, Lease, ListedLease, MEMBER_LIMIT, Of, Outcome,
};
use crate::types::{Extension, Instance, ServiceName, Time, UnitName, is_within};

/// How long it takes, after a guard was silent for longer than [`LeaseTable::patience`], until a successor enforces, if its watcher
/// hangs as well: systemd misses the watcher and starts another one, that one waits for a guard's beat in vain, and systemd
/// starts another guard. Three of systemd's timers are up to 250 ms late, `RestartSec=` is 100 ms twice, the watcher waits for
/// 190 ms, and the rest is for the starts. A watcher that does not hang needs less than half of it.
const SUCCESSION: Duration = Duration::from_millis(1300);

/// The shortest patience, because a busy host must not look like a guard that hangs.
pub const LEAST_PATIENCE: Duration = Duration::from_millis(250);

/// All leases that are not disarmed.
///
/// The caller calls [`LeaseTable::expire`] before each [`LeaseTable::handle`], and whenever [`LeaseTable::poll_timeout`] has passed; further
/// calls do nothing. It carries out the effects in their order, and answers the command afterwards.
///
/// The points in time follow from the entries, so that what is asked for at each renewal costs no more for many leases than for a few.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct LeaseTable {
    entries: BTreeMap<ServiceName, LeaseEntry>,
    #[serde(skip)]
    points: BTreeSet<Point>,
}

/// A point in time on one of the clocks, which come one after the other, of the lease of a service. Each clock has an order of its own,
/// because a point has passed as soon as *either* clock has reached it.
type Point = (Due, Clock, Duration, String);

/// What is due at a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// The deadline of a lease that has not lapsed.
    Deadline,
    /// SIGKILL for such a lease.
    Kill,
    /// To give up a lease that has lapsed.
    GiveUp,
    /// SIGKILL for such a lease.
    LapsedKill,
    /// The death of units that were not seen dead yet.
    Death,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Clock {
    Boot,
    Raw,
}

/// A lease and what has become of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseEntry {
    lease: Lease,
    phase: LeasePhase,
}

impl LeaseEntry {
    /// The lease.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Sets the deadline of a later [`Command::Extend`], with the write that it counts from.
    pub fn extend(&mut self, to: Extension) {
        self.lease.terms.extend(to);
    }

    fn points(&self) -> impl Iterator<Item = Point> + use<> {
        let (terms, service) = (self.lease.terms, self.lease.service.to_string());
        let due = match self.phase {
            LeasePhase::Open | LeasePhase::Closing => vec![
                (Due::Deadline, terms.deadline),
                (Due::Kill, terms.kill_at()),
                (Due::Death, terms.dead_by()),
            ],
            LeasePhase::Lapsed { give_up } => vec![
                (Due::GiveUp, give_up),
                (Due::LapsedKill, terms.kill_at()),
                (Due::Death, terms.dead_by()),
            ],
            LeasePhase::GivenUp => vec![(Due::Death, terms.dead_by())],
            LeasePhase::Stopped => Vec::new(),
        };
        due.into_iter().flat_map(move |(due, at)| {
            [(Clock::Boot, at.boot), (Clock::Raw, at.raw)]
                .map(|(clock, at)| (due, clock, at, service.clone()))
        })
    }

    /// Whether [`LeaseTable::expire`] has something to do for it.
    fn is_due(&self, now: Time) -> bool {
        match self.phase {
            LeasePhase::Open | LeasePhase::Closing => now.has_passed(self.lease.terms.deadline),
            LeasePhase::Lapsed { give_up } => now.has_passed(give_up),
            LeasePhase::Stopped | LeasePhase::GivenUp => false,
        }
    }
}

/// The phases of a lease. None leads back to `Open` or `Closing`: a closed lease never reopens, and a lapse is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LeasePhase {
    /// The grant exists, and the units may run.
    Open,
    /// The grant is gone, and the deadline still counts.
    Closing,
    /// The deadline has passed; the units are being stopped.
    Lapsed {
        /// When the units are not proven dead by then, `on_stop_failure` is carried out.
        give_up: Time,
    },
    /// The units were seen dead after SIGKILL was due. They are watched until the lease is disarmed nevertheless: systemd may
    /// have hung in the middle of a start that passed the gate before the deadline.
    Stopped,
    /// The units were not proven dead in time. SIGKILL is still sent.
    GivenUp,
}

impl LeasePhase {
    /// Whether the deadline has still to come.
    fn is_armed(self) -> bool {
        matches!(self, Self::Open | Self::Closing)
    }
}

/// What the caller of the table has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Write the grant, or replace the one that is there.
    Grant(Lease),
    /// Write the later deadline into the grant that is there.
    Extend(ServiceName, Time),
    /// Remove the grant, if there is one.
    Withdraw(ServiceName),
    /// Stop and kill the units, again and again until [`Effect::Forget`]. This replaces an enforcement of the same service that
    /// is under way, because the lease covers more now.
    Enforce(Lease),
    /// End the enforcement of this service, if there is one.
    Forget(ServiceName),
    /// The stop was not proven in time: do what `on_stop_failure` says.
    GiveUp(Lease),
}

impl LeaseTable {
    /// The table of a guard that takes over from one that died. The grants died with it, and `BindsTo=` has systemd stop
    /// the units, so an open lease is closing now: its deadline is enforced, and may be extended for as long as the stop
    /// takes, but it never reopens.
    #[must_use]
    pub fn resume(now: Time, entries: Vec<LeaseEntry>) -> (Self, Vec<Effect>) {
        let mut effects = Vec::new();
        let mut table = Self::default();
        for LeaseEntry { mut lease, phase } in entries {
            lease.closing = true;
            let phase = match phase {
                LeasePhase::Open | LeasePhase::Closing => LeasePhase::Closing,
                LeasePhase::Lapsed { give_up } => LeasePhase::Lapsed {
                    give_up: give_up.latest(now.plus(lease.terms.kill_reserve)),
                },
                LeasePhase::Stopped | LeasePhase::GivenUp => phase,
            };
            if phase != LeasePhase::Closing {
                effects.push(Effect::Enforce(lease.clone()));
            }
            table.put(LeaseEntry { lease, phase });
        }
        (table, effects)
    }

    /// All entries, in the order of their services.
    pub fn entries(&self) -> Vec<LeaseEntry> {
        self.entries.values().cloned().collect()
    }

    /// The entry of `service`: its lease and phase, which a successor needs.
    pub fn entry_of(&self, service: &ServiceName) -> Option<&LeaseEntry> {
        self.entries.get(service)
    }

    /// Replaces the entry of the same service. The caller uses it to put back what [`LeaseTable::entry_of`] returned before a command
    /// that could not be carried out.
    pub fn put(&mut self, entry: LeaseEntry) {
        self.remove(&entry.lease.service);
        self.points.extend(entry.points());
        self.entries.insert(entry.lease.service.clone(), entry);
    }

    /// Removes the entry of a service, as [`LeaseTable::put`] replaces it.
    pub fn remove(&mut self, service: &ServiceName) -> Option<LeaseEntry> {
        let entry = self.entries.remove(service)?;
        for point in entry.points() {
            self.points.remove(&point);
        }
        Some(entry)
    }

    /// The earliest point of a kind, separately for each clock: the two values may come from different leases.
    fn first(&self, due: Due) -> Option<Time> {
        let first = |clock| {
            let start = (due, clock, Duration::ZERO, String::new());
            let (found, on, at, _) = self.points.range(start..).next()?;
            ((*found, *on) == (due, clock)).then_some(*at)
        };
        Some(Time {
            boot: first(Clock::Boot)?,
            raw: first(Clock::Raw)?,
        })
    }

    /// When [`LeaseTable::expire`] next has something to do: as soon as *either* clock reaches this point.
    pub fn poll_timeout(&self) -> Option<Time> {
        let (deadline, give_up) = (self.first(Due::Deadline), self.first(Due::GiveUp));
        deadline.into_iter().chain(give_up).reduce(Time::earliest)
    }

    /// All leases that are not disarmed.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.entries.values().map(|entry| &entry.lease)
    }

    /// The earliest time by which a unit has to be dead that is not proven dead. `None`: no unit is at stake. `is_dead` says
    /// whether the units of a lapsed lease are dead now, because one may have been started again since the proof.
    pub fn at_stake(&self, is_dead: impl Fn(&ServiceName) -> bool) -> Option<Time> {
        let revived = |entry: &&LeaseEntry| {
            entry.phase == LeasePhase::Stopped && !is_dead(&entry.lease.service)
        };
        self.entries
            .values()
            .filter(revived)
            .map(|entry| entry.lease.terms.dead_by())
            .chain(self.first(Due::Death))
            .reduce(Time::earliest)
    }

    /// How long the guard may be silent before it is replaced, so that its successor can send SIGKILL when that is due even if
    /// putexd is gone as well. `None`: nothing limits it.
    ///
    /// It is never less than half of what is left of the shortest lease: a guard that is silent because its host is busy must
    /// not cost a lease that would be renewed. If a guard hangs too late for that, its successor is late as well, but by no
    /// more than [`LEAST_PATIENCE`] and [`SUCCESSION`] together.
    pub fn patience(&self, now: Time) -> Option<Duration> {
        let in_time = |kill_at| now.until_passed(kill_at).saturating_sub(SUCCESSION);
        let armed = self.first(Due::Kill).zip(self.first(Due::Deadline));
        let armed =
            armed.map(|(kill_at, deadline)| in_time(kill_at).max(now.until_passed(deadline) / 2));
        // For units that were stopped or given up a successor could do nothing better.
        let lapsed = self.first(Due::LapsedKill).map(in_time);
        let patience = armed.into_iter().chain(lapsed).min();
        patience.map(|patience| patience.max(LEAST_PATIENCE))
    }

    /// Notes that the units of a lapsed lease were seen dead, at or after the time of SIGKILL; this may also come after the
    /// lease was given up. Returns whether that is new.
    pub fn stopped(&mut self, service: &ServiceName) -> bool {
        let Some(LeaseEntry { lease, phase }) = self.entries.get(service) else {
            return false;
        };
        let is_new = matches!(phase, LeasePhase::Lapsed { .. } | LeasePhase::GivenUp);
        if is_new {
            self.put(LeaseEntry {
                lease: lease.clone(),
                phase: LeasePhase::Stopped,
            });
        }
        is_new
    }

    /// Lets all leases lapse whose deadline has passed, and gives up those whose proof did not come in time.
    pub fn expire(&mut self, now: Time) -> Vec<Effect> {
        let mut effects = Vec::new();
        if !self.poll_timeout().is_some_and(|at| now.has_passed(at)) {
            return effects;
        }
        let due = self.entries.values().filter(|entry| entry.is_due(now));
        for LeaseEntry {
            mut lease,
            mut phase,
        } in due.cloned().collect::<Vec<_>>()
        {
            if phase.is_armed() {
                // A guard that wakes after S is over too still gets the time that SIGKILL takes: fencing the host would be no
                // faster.
                let terms = lease.terms;
                let give_up = terms.dead_by().latest(now.plus(terms.kill_reserve));
                phase = LeasePhase::Lapsed { give_up };
                lease.closing = true;
                effects.push(Effect::Withdraw(lease.service.clone()));
                effects.push(Effect::Enforce(lease.clone()));
            }
            if let LeasePhase::Lapsed { give_up } = phase
                && now.has_passed(give_up)
            {
                phase = LeasePhase::GivenUp;
                effects.push(Effect::GiveUp(lease.clone()));
            }
            self.put(LeaseEntry { lease, phase });
        }
        effects
    }

    /// Has every lease end now, because the guard is told to end. [`LeaseTable::expire`] does what follows from that.
    pub fn end(&mut self, now: Time) {
        for LeaseEntry { mut lease, phase } in self.entries() {
            if phase.is_armed() {
                lease.terms.deadline = lease.terms.deadline.earliest(now);
                self.put(LeaseEntry { lease, phase });
            }
        }
    }

    /// Executes a command. A refusal changes nothing.
    pub fn handle(&mut self, now: Time, command: Command) -> (Outcome, Vec<Effect>) {
        let result = match command {
            Command::Arm { lease, .. } if lease.closing => self.widen(lease),
            Command::Arm { lease, shorter } => self.arm(now, lease, shorter),
            Command::Extend {
                service,
                instance,
                extension,
            } => self.extend(now, &service, instance, extension),
            Command::Close { service, instance } => self.close(&service, instance),
            Command::Disarm { service, instance } => self.disarm(service, instance),
            Command::List(of) => {
                let state = GuardState {
                    leases: self.list(&of),
                    ..GuardState::default()
                };
                return (Outcome::Leases(state), Vec::new());
            }
            Command::CheckUnmounted { .. } => Err("this is no question about a lease".to_owned()),
        };
        match result {
            Ok(effects) => (Outcome::Done, effects),
            Err(reason) => (Outcome::Refused { reason }, Vec::new()),
        }
    }

    fn arm(&mut self, now: Time, lease: Lease, shorter: bool) -> Result<Vec<Effect>, String> {
        check(&lease)?;
        if now.has_passed(lease.terms.deadline) {
            return Err("the deadline has passed".to_owned());
        }
        self.check_overlap(&lease)?;
        let known = self.entries.get(&lease.service);
        if known.is_none() && self.entries.len() >= LEASE_LIMIT {
            return Err(format!("there are {LEASE_LIMIT} leases already"));
        }
        if let Some(LeaseEntry { lease: old, phase }) = known {
            let (new, old) = (lease.terms, old.terms);
            if old.instance != new.instance {
                let old = old.instance;
                return Err(format!("the lease of instance {old} is not disarmed"));
            }
            let is_earlier =
                new.deadline.boot < old.deadline.boot || new.deadline.raw < old.deadline.raw;
            let why = match phase {
                LeasePhase::Open if is_earlier && !shorter => {
                    Some("the lease is armed with a later deadline")
                }
                LeasePhase::Open => None,
                LeasePhase::Closing => Some("the lease is closed, and never reopens"),
                LeasePhase::Lapsed { .. } | LeasePhase::Stopped | LeasePhase::GivenUp => {
                    Some("the lease has lapsed, and a lapse is final")
                }
            };
            if let Some(why) = why {
                return Err(why.to_owned());
            }
        }
        self.put(LeaseEntry {
            lease: lease.clone(),
            phase: LeasePhase::Open,
        });
        Ok(vec![Effect::Grant(lease)])
    }

    /// Adds units and groups to a closed or lapsed lease which it was not known to cover: a unit whose start was under way may
    /// have been put into another control group. Nothing is ever removed, so that a message that comes late cannot exempt a
    /// group.
    fn widen(&mut self, new: Lease) -> Result<Vec<Effect>, String> {
        self.check_overlap(&new)?;
        let LeaseEntry { lease, phase } = self.entry(&new.service, new.terms.instance)?;
        let mut wider = lease.clone();
        add_missing(&mut wider.units, new.units);
        add_missing(&mut wider.cgroups, new.cgroups);
        add_missing(&mut wider.inactive, new.inactive);
        add_missing(&mut wider.contains, new.contains);
        wider.outside.extend(new.outside);
        check(&wider)?;
        let (phase, is_known) = (*phase, *lease == wider);
        if phase == LeasePhase::Open {
            return Err("the lease is not closed".to_owned());
        }
        let mut effects = Vec::new();
        if !is_known {
            if phase != LeasePhase::Closing {
                effects.push(Effect::Enforce(wider.clone()));
            }
            self.put(LeaseEntry {
                lease: wider,
                phase,
            });
        }
        Ok(effects)
    }

    /// Refuses a lease that covers a unit or group of another: the end of one lease would kill what runs under the other.
    fn check_overlap(&self, new: &Lease) -> Result<(), String> {
        for other in self.leases().filter(|other| other.service != new.service) {
            let unit = new.units.iter().find(|unit| other.units.contains(unit));
            let overlaps = |group: &&String| {
                other
                    .cgroups
                    .iter()
                    .any(|covered| is_within(covered, group) || is_within(group, covered))
            };
            let group = || new.cgroups.iter().find(overlaps).map(String::as_str);
            if let Some(covered) = unit.map(UnitName::as_str).or_else(group) {
                let service = &other.service;
                return Err(format!("the lease of {service} still covers {covered}"));
            }
        }
        Ok(())
    }

    fn extend(
        &mut self,
        now: Time,
        service: &ServiceName,
        instance: Instance,
        to: Extension,
    ) -> Result<Vec<Effect>, String> {
        let LeaseEntry { lease, phase } = self.entry(service, instance)?;
        let (terms, is_open) = (lease.terms, *phase == LeasePhase::Open);
        if !phase.is_armed() || now.has_passed(terms.deadline) {
            return Err("the lease has lapsed, and a lapse is final".to_owned());
        }
        if now.has_passed(to.deadline) {
            return Err("the deadline has passed".to_owned());
        }
        if to == Extension::of(&terms) {
            // It is sent again because its answer was lost.
            return Ok(Vec::new());
        }
        if to.deadline.boot <= terms.deadline.boot || to.deadline.raw <= terms.deadline.raw {
            return Err("the deadline is not later than the one in force".to_owned());
        }
        if let Some(mut entry) = self.remove(service) {
            entry.extend(to);
            self.put(entry);
        }
        Ok(is_open
            .then(|| Effect::Extend(service.clone(), to.deadline))
            .into_iter()
            .collect())
    }

    fn close(&mut self, service: &ServiceName, instance: Instance) -> Result<Vec<Effect>, String> {
        let LeaseEntry { lease, phase } = self.entry(service, instance)?;
        if *phase != LeasePhase::Open {
            return Ok(Vec::new());
        }
        let mut lease = lease.clone();
        lease.closing = true;
        self.put(LeaseEntry {
            lease,
            phase: LeasePhase::Closing,
        });
        Ok(vec![Effect::Withdraw(service.clone())])
    }

    fn disarm(&mut self, service: ServiceName, instance: Instance) -> Result<Vec<Effect>, String> {
        if !self.entries.contains_key(&service) {
            return Ok(Vec::new());
        }
        self.entry(&service, instance)?;
        self.remove(&service);
        Ok(vec![
            Effect::Withdraw(service.clone()),
            Effect::Forget(service),
        ])
    }

    /// The leases that `of` selects from those that are not disarmed, lapsed ones included. `stopped` says that units were seen
    /// dead once; the caller has to correct it where they may have been started since.
    pub fn list(&self, of: &Of) -> Vec<ListedLease> {
        let listed = |LeaseEntry { lease, phase }: &LeaseEntry| ListedLease {
            lease: lease.clone(),
            lapsed: !phase.is_armed(),
            stopped: *phase == LeasePhase::Stopped,
        };
        match of {
            Of::All => self.entries.values().map(listed).collect(),
            Of::One(service) => self.entries.get(service).map(listed).into_iter().collect(),
            Of::None => Vec::new(),
        }
    }

    fn entry(&self, service: &ServiceName, instance: Instance) -> Result<&LeaseEntry, String> {
        let entry = self.entries.get(service).ok_or("there is no such lease")?;
        let held = entry.lease.terms.instance;
        if held != instance {
            return Err(format!("the lease is that of instance {held}"));
        }
        Ok(entry)
    }
}

/// Checks a lease by itself, without the other leases.
fn check(lease: &Lease) -> Result<(), String> {
    if lease.terms.kill_reserve > lease.terms.stop_budget {
        return Err("the time kept for SIGKILL is longer than the stop budget".to_owned());
    }
    let lists = [&lease.units, &lease.inactive, &lease.begun, &lease.contains];
    if lists.iter().any(|list| list.len() > MEMBER_LIMIT)
        || lease.cgroups.len().max(lease.outside.len()) > CGROUP_LIMIT
    {
        return Err(format!(
            "more than {MEMBER_LIMIT} units, or than {CGROUP_LIMIT} control groups or processes outside them"
        ));
    }
    match lease.cgroups.iter().find(|path| !is_below_the_root(path)) {
        Some(path) => Err(format!("{path:?} is not the path of a control group")),
        None => Ok(()),
    }
}

/// Whether `path` names a control group other than the root, which holds everything, and cannot lead out of the hierarchy:
/// everything in this group is going to be killed.
pub fn is_below_the_root(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|path| {
        path.split('/')
            .all(|part| !matches!(part, "" | "." | "..") && !part.contains(char::is_control))
    })
}

fn add_missing<T: PartialEq>(members: &mut Vec<T>, more: Vec<T>) {
    for member in more {
        if !members.contains(&member) {
            members.push(member);
        }
    }
}

#[cfg(test)]
mod tests;
