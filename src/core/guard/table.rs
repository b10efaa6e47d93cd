//! The leases and their deadlines. The table is pure: time is an argument, and it returns what is to be done.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::agenda::Agenda;
use super::frame::{
    CGROUP_LIMIT, CGROUP_LIMIT_BYTES, CGROUPS_LIMIT_BYTES, Command, LEASE_LIMIT, LEASES_LIMIT_BYTES, Lease,
    ListedLease, MEMBER_LIMIT, Of, Outcome,
};
use crate::types::{Instance, Revision, ServiceName, Time, UnitName, WriteId};

/// How long it takes, after a guard was silent for longer than [`Table::patience`], until a successor enforces, if its watcher
/// hangs as well: systemd misses the watcher and starts another one, that one waits for a guard's beat in vain, and systemd
/// starts another guard. Three of systemd's timers are up to 250 ms late, `RestartSec=` is 100 ms twice, the watcher waits for
/// 190 ms, and the rest is for the starts. A watcher that does not hang needs less than half of it.
const SUCCESSION: Duration = Duration::from_millis(1300);

/// The shortest patience, because a busy host must not look like a guard that hangs.
pub const LEAST_PATIENCE: Duration = Duration::from_millis(250);

/// All leases that are not disarmed.
///
/// The caller calls [`Table::expire`] before each [`Table::handle`], and whenever [`Table::poll_timeout`] has passed; further
/// calls do nothing. It carries out the effects in their order, and answers the command afterwards.
///
/// All other fields follow from the entries, and only [`Table::put`] and an extension change any of them. What is asked for at
/// each renewal costs no more for many leases than for a few; a loop over several leases covers lapsed ones alone.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Table {
    entries: BTreeMap<ServiceName, Entry>,
    #[serde(skip)]
    agenda: Agenda<Mark, ServiceName>,
    /// Units and control groups, each with the service whose lease covers it. They cannot be confused: a group's path begins
    /// with a slash, and no unit's name does.
    #[serde(skip)]
    covered: BTreeSet<(String, String)>,
    /// An upper limit of what all leases take in a list of them, in bytes.
    #[serde(skip)]
    bytes: usize,
}

/// What is due for an entry at a point in time. The phase of the entry decides which marks it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    /// The deadline of a lease that has not lapsed.
    Deadline,
    /// When SIGKILL is due for a lease that has not lapsed.
    Kill,
    /// When to give up a lease that has lapsed.
    GiveUp,
    /// When SIGKILL is due for a lease that has lapsed.
    LapsedKill,
    /// When SIGKILL was due for a lease that was given up.
    LateKill,
    /// When the units have to be dead, if they were not seen dead yet.
    Death,
    /// When the units had to be dead, if they were seen dead.
    Dead,
}

/// A lease and what has become of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    lease: Lease,
    phase: Phase,
}

impl Entry {
    /// The lease.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Sets the deadline of a later [`Command::Extend`], with the write that it counts from.
    pub fn extend(&mut self, write: WriteId, revision: Revision, deadline: Time) {
        self.lease.terms.extend(write, revision, deadline);
    }

    /// Enters the points in time of this entry.
    fn enter(&self, agenda: &mut Agenda<Mark, ServiceName>) {
        for (mark, at) in self.marks() {
            agenda.insert(mark, at, &self.lease.service);
        }
    }

    /// Removes the points in time of this entry.
    fn leave(&self, agenda: &mut Agenda<Mark, ServiceName>) {
        for (mark, at) in self.marks() {
            agenda.remove(mark, at, &self.lease.service);
        }
    }

    fn marks(&self) -> Vec<(Mark, Time)> {
        let lease = &self.lease;
        match self.phase {
            Phase::Open | Phase::Closing => {
                vec![
                    (Mark::Deadline, lease.terms.deadline),
                    (Mark::Kill, lease.terms.kill_at()),
                    (Mark::Death, lease.terms.dead_by()),
                ]
            }
            Phase::Lapsed { give_up } => {
                vec![
                    (Mark::GiveUp, give_up),
                    (Mark::LapsedKill, lease.terms.kill_at()),
                    (Mark::Death, lease.terms.dead_by()),
                ]
            }
            Phase::GivenUp => vec![(Mark::LateKill, lease.terms.kill_at()), (Mark::Death, lease.terms.dead_by())],
            Phase::Stopped => vec![(Mark::Dead, lease.terms.dead_by())],
        }
    }

    fn covers(&self) -> impl Iterator<Item = &str> {
        self.lease.units.iter().map(UnitName::as_str).chain(self.lease.cgroups.iter().map(String::as_str))
    }
}

/// The phases of a lease. None leads back to `Open` or `Closing`: a closed lease never reopens, and a lapse is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Phase {
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

impl Table {
    /// The table of a guard that takes over from one that died. The grants died with it, and `BindsTo=` has systemd stop
    /// the units, so an open lease is closing now: its deadline is enforced, and may be extended for as long as the stop
    /// takes, but it never reopens.
    #[must_use]
    pub fn resume(now: Time, entries: Vec<Entry>) -> (Self, Vec<Effect>) {
        let mut effects = Vec::new();
        let mut table = Self::default();
        for Entry { mut lease, phase } in entries {
            lease.closing = true;
            let phase = match phase {
                Phase::Open | Phase::Closing => Phase::Closing,
                Phase::Lapsed { give_up } => {
                    Phase::Lapsed { give_up: give_up.latest(now.plus(lease.terms.kill_reserve)) }
                }
                Phase::Stopped | Phase::GivenUp => phase,
            };
            if phase != Phase::Closing {
                effects.push(Effect::Enforce(lease.clone()));
            }
            table.put(&lease.service.clone(), Some(Entry { lease, phase }));
        }
        (table, effects)
    }

    /// All entries, in the order of their services.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.entries.values().cloned().collect()
    }

    /// The entry of `service`: its lease and phase, which a successor needs.
    #[must_use]
    pub fn entry_of(&self, service: &ServiceName) -> Option<&Entry> {
        self.entries.get(service)
    }

    /// Replaces the entry of `service`. The caller uses it to put back what [`Table::entry_of`] returned before a command that
    /// could not be carried out. Apart from an extension nothing else changes the entries.
    pub fn put(&mut self, service: &ServiceName, entry: Option<Entry>) {
        let covers = |entry: &Entry| -> Vec<(String, String)> {
            entry.covers().map(|covered| (covered.to_owned(), service.to_string())).collect()
        };
        let old = self.entries.remove(service);
        let is_as_wide = old.as_ref().zip(entry.as_ref()).is_some_and(|(old, new)| old.covers().eq(new.covers()));
        if let Some(old) = old {
            old.leave(&mut self.agenda);
            if !is_as_wide {
                for covered in covers(&old) {
                    self.covered.remove(&covered);
                }
            }
            self.bytes -= old.lease.listed_bytes();
        }
        let Some(new) = entry else { return };
        new.enter(&mut self.agenda);
        if !is_as_wide {
            self.covered.extend(covers(&new));
        }
        self.bytes += new.lease.listed_bytes();
        self.entries.insert(service.clone(), new);
    }

    /// When [`Table::expire`] next has something to do: as soon as *either* clock reaches this point.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        [Mark::Deadline, Mark::GiveUp].into_iter().filter_map(|mark| self.agenda.first(mark)).reduce(Time::earliest)
    }

    /// All leases that are not disarmed.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.entries.values().map(|entry| &entry.lease)
    }

    /// Whether `service` has a lease that is not disarmed.
    #[must_use]
    pub fn holds(&self, service: &ServiceName) -> bool {
        self.entries.contains_key(service)
    }

    /// The services whose units get SIGKILL before anything else is done: SIGKILL is due for them, and they were not seen dead
    /// since.
    pub fn overdue(&self, now: Time) -> impl Iterator<Item = &ServiceName> {
        let marks = [Mark::Kill, Mark::LapsedKill, Mark::LateKill];
        let overdue: BTreeSet<_> = marks.into_iter().flat_map(|mark| self.agenda.passed(mark, now)).collect();
        overdue.into_iter()
    }

    /// When to wake: at [`Table::poll_timeout`], or earlier when SIGKILL is due for a lapsed lease.
    #[must_use]
    pub fn wake_at(&self, now: Time) -> Option<Time> {
        let lapsed = self.agenda.all(Mark::LapsedKill).filter_map(|service| self.entries.get(service));
        let kills = lapsed.map(|entry| entry.lease.terms.kill_at()).filter(|kill_at| !now.has_passed(*kill_at));
        kills.chain(self.poll_timeout()).reduce(Time::earliest)
    }

    /// The earliest time by which a unit has to be dead that is not proven dead. `None`: no unit is at stake. `is_dead` says
    /// whether the units of a lapsed lease are dead now, because one may have been started again since the proof.
    #[must_use]
    pub fn at_stake(&self, is_dead: impl Fn(&ServiceName) -> bool) -> Option<Time> {
        let revived = self.agenda.all(Mark::Dead).filter(|service| !is_dead(service));
        let revived = revived.filter_map(|service| self.entries.get(service)).map(|entry| entry.lease.terms.dead_by());
        revived.chain(self.agenda.first(Mark::Death)).reduce(Time::earliest)
    }

    /// How long the guard may be silent before it is replaced, so that its successor can send SIGKILL when that is due even if
    /// putexd is gone as well. `None`: nothing limits it.
    ///
    /// It is never less than half of what is left of the shortest lease: a guard that is silent because its host is busy must
    /// not cost a lease that would be renewed. If a guard hangs too late for that, its successor is late as well, but by no
    /// more than [`LEAST_PATIENCE`] and [`SUCCESSION`] together.
    #[must_use]
    pub fn patience(&self, now: Time) -> Option<Duration> {
        let in_time = |mark| Some(now.until_passed(self.agenda.first(mark)?).saturating_sub(SUCCESSION));
        let shortest = self.agenda.first(Mark::Deadline).map(|deadline| now.until_passed(deadline) / 2);
        let armed = in_time(Mark::Kill).zip(shortest).map(|(in_time, least)| in_time.max(least));
        // For units that were stopped or given up a successor could do nothing better.
        let patience = [armed, in_time(Mark::LapsedKill)].into_iter().flatten().min();
        patience.map(|patience| patience.max(LEAST_PATIENCE))
    }

    /// Notes that the units of a lapsed lease were seen dead, at or after the time of SIGKILL; this may also come after the
    /// lease was given up. Returns whether that is new.
    pub fn stopped(&mut self, service: &ServiceName) -> bool {
        let Some(entry) = self.entries.get(service) else { return false };
        let is_new = matches!(entry.phase, Phase::Lapsed { .. } | Phase::GivenUp);
        if is_new {
            let lease = entry.lease.clone();
            self.put(service, Some(Entry { lease, phase: Phase::Stopped }));
        }
        is_new
    }

    /// Lets all leases lapse whose deadline has passed, and gives up those whose proof did not come in time.
    pub fn expire(&mut self, now: Time) -> Vec<Effect> {
        let mut effects = Vec::new();
        let marks = [Mark::Deadline, Mark::GiveUp];
        let due: BTreeSet<_> = marks.into_iter().flat_map(|mark| self.agenda.passed(mark, now)).cloned().collect();
        for service in due {
            let Some(Entry { mut lease, mut phase }) = self.entries.get(&service).cloned() else { continue };
            if matches!(phase, Phase::Open | Phase::Closing) {
                // A guard that wakes after S is over too still gets the time that SIGKILL takes: fencing the host would be no
                // faster.
                phase = Phase::Lapsed { give_up: lease.terms.dead_by().latest(now.plus(lease.terms.kill_reserve)) };
                lease.closing = true;
                effects.push(Effect::Withdraw(service.clone()));
                effects.push(Effect::Enforce(lease.clone()));
            }
            if let Phase::Lapsed { give_up } = phase
                && now.has_passed(give_up)
            {
                phase = Phase::GivenUp;
                effects.push(Effect::GiveUp(lease.clone()));
            }
            self.put(&service, Some(Entry { lease, phase }));
        }
        effects
    }

    /// Has every lease end now, because the guard is told to end. [`Table::expire`] does what follows from that.
    pub fn end(&mut self, now: Time) {
        for Entry { mut lease, phase } in self.entries() {
            if matches!(phase, Phase::Open | Phase::Closing) {
                lease.terms.deadline = lease.terms.deadline.earliest(now);
                self.put(&lease.service.clone(), Some(Entry { lease, phase }));
            }
        }
    }

    /// Executes a command. A refusal changes nothing.
    pub fn handle(&mut self, now: Time, command: Command) -> (Outcome, Vec<Effect>) {
        let result = match command {
            Command::Arm { lease, .. } if lease.closing => self.widen(lease),
            Command::Arm { lease, shorter } => self.arm(now, lease, shorter),
            Command::Extend { service, instance, write, revision, deadline } => {
                self.extend(now, &service, instance, (write, revision), deadline)
            }
            Command::Close { service, instance } => self.close(&service, instance),
            Command::Disarm { service, instance } => self.disarm(service, instance),
            Command::List => {
                let leases = self.list(&Of::All);
                return (Outcome::Leases { leases, watchdog: None, trouble: None, version: None }, Vec::new());
            }
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
        match self.entries.get(&lease.service) {
            None if self.entries.len() >= LEASE_LIMIT => return Err(format!("there are {LEASE_LIMIT} leases already")),
            Some(Entry { lease: old, .. }) if old.terms.instance != lease.terms.instance => {
                return Err(format!("the lease of instance {} is not disarmed", old.terms.instance));
            }
            Some(Entry { lease: old, phase: Phase::Open })
                if !shorter
                    && (lease.terms.deadline.boot < old.terms.deadline.boot
                        || lease.terms.deadline.raw < old.terms.deadline.raw) =>
            {
                return Err("the lease is armed with a later deadline".to_owned());
            }
            None | Some(Entry { phase: Phase::Open, .. }) => {}
            Some(Entry { phase: Phase::Closing, .. }) => {
                return Err("the lease is closed, and never reopens".to_owned());
            }
            Some(_) => return Err("the lease has lapsed, and a lapse is final".to_owned()),
        }
        self.check_room(&lease)?;
        let effects = vec![Effect::Grant(lease.clone())];
        self.put(&lease.service.clone(), Some(Entry { lease, phase: Phase::Open }));
        Ok(effects)
    }

    /// Adds units and groups to a closed or lapsed lease which it was not known to cover: a unit whose start was under way may
    /// have been put into another control group. Nothing is ever removed, so that a message that comes late cannot exempt a
    /// group.
    fn widen(&mut self, new: Lease) -> Result<Vec<Effect>, String> {
        self.check_overlap(&new)?;
        let Entry { lease, phase } = self.entry(&new.service, new.terms.instance)?;
        let mut wider = lease.clone();
        add_missing(&mut wider.units, new.units);
        add_missing(&mut wider.cgroups, new.cgroups);
        add_missing(&mut wider.inactive, new.inactive);
        add_missing(&mut wider.contains, new.contains);
        check(&wider)?;
        let phase = *phase;
        if phase == Phase::Open {
            return Err("the lease is not closed".to_owned());
        }
        if *lease == wider {
            return Ok(Vec::new());
        }
        self.check_room(&wider)?;
        self.put(&new.service, Some(Entry { lease: wider.clone(), phase }));
        Ok(if phase == Phase::Closing { Vec::new() } else { vec![Effect::Enforce(wider)] })
    }

    /// Refuses a lease that covers a unit or group of another: the end of one lease would kill what runs under the other.
    fn check_overlap(&self, new: &Lease) -> Result<(), String> {
        let unit = new.units.iter().find_map(|unit| self.other_with(new, unit.as_str()).zip(Some(unit.as_str())));
        let group = || new.cgroups.iter().find_map(|group| self.other_around(new, group).zip(Some(group.as_str())));
        match unit.or_else(group) {
            Some((service, covered)) => Err(format!("the lease of {service} still covers {covered}")),
            None => Ok(()),
        }
    }

    /// Another service whose lease covers exactly this unit or group.
    fn other_with(&self, new: &Lease, covered: &str) -> Option<&str> {
        let start = (covered.to_owned(), String::new());
        let same = self.covered.range(start..).take_while(|(other, _)| other == covered);
        same.map(|(_, service)| service.as_str()).find(|service| *service != new.service.as_str())
    }

    /// Another service whose lease covers this group, one above it, or one below it.
    fn other_around(&self, new: &Lease, group: &str) -> Option<&str> {
        let ends = group.match_indices('/').map(|(end, _)| end).chain([group.len()]);
        let above = ends.filter_map(|end| group.get(..end)).find_map(|above| self.other_with(new, above));
        above.or_else(|| {
            let inside = format!("{group}/");
            let below = self.covered.range((inside.clone(), String::new())..);
            let below = below.take_while(|(other, _)| other.starts_with(&inside)).map(|(_, service)| service.as_str());
            below.into_iter().find(|service| *service != new.service.as_str())
        })
    }

    /// Checks that a list of all leases still fits into a reply, with `new` in place of the present lease of its service.
    fn check_room(&self, new: &Lease) -> Result<(), String> {
        let old = self.entries.get(&new.service).map_or(0, |entry| entry.lease.listed_bytes());
        if self.bytes - old + new.listed_bytes() > LEASES_LIMIT_BYTES {
            return Err(format!("the leases would take more than {LEASES_LIMIT_BYTES} bytes together"));
        }
        Ok(())
    }

    fn extend(
        &mut self,
        now: Time,
        service: &ServiceName,
        instance: Instance,
        (write, revision): (WriteId, Revision),
        deadline: Time,
    ) -> Result<Vec<Effect>, String> {
        let entry = self.entry(service, instance)?;
        let Entry { lease, phase } = entry;
        if !matches!(phase, Phase::Open | Phase::Closing) || now.has_passed(lease.terms.deadline) {
            return Err("the lease has lapsed, and a lapse is final".to_owned());
        }
        if now.has_passed(deadline) {
            return Err("the deadline has passed".to_owned());
        }
        if (write, revision, deadline) == (lease.terms.write, lease.terms.revision, lease.terms.deadline) {
            // It is sent again because its answer was lost.
            return Ok(Vec::new());
        }
        if deadline.boot <= lease.terms.deadline.boot || deadline.raw <= lease.terms.deadline.raw {
            return Err("the deadline is not later than the one in force".to_owned());
        }
        let is_open = *phase == Phase::Open;
        let effects = is_open.then(|| Effect::Extend(service.clone(), deadline)).into_iter().collect();
        if let Some(entry) = self.entries.get_mut(service) {
            entry.leave(&mut self.agenda);
            entry.extend(write, revision, deadline);
            entry.enter(&mut self.agenda);
        }
        Ok(effects)
    }

    fn close(&mut self, service: &ServiceName, instance: Instance) -> Result<Vec<Effect>, String> {
        let Entry { lease, phase } = self.entry(service, instance)?;
        if *phase != Phase::Open {
            return Ok(Vec::new());
        }
        let mut lease = lease.clone();
        lease.closing = true;
        self.put(service, Some(Entry { lease, phase: Phase::Closing }));
        Ok(vec![Effect::Withdraw(service.clone())])
    }

    fn disarm(&mut self, service: ServiceName, instance: Instance) -> Result<Vec<Effect>, String> {
        if !self.entries.contains_key(&service) {
            return Ok(Vec::new());
        }
        self.entry(&service, instance)?;
        self.put(&service, None);
        Ok(vec![Effect::Withdraw(service.clone()), Effect::Forget(service)])
    }

    /// The leases that `of` selects from those that are not disarmed, lapsed ones included. `stopped` says that units were seen
    /// dead once; the caller has to correct it where they may have been started since.
    #[must_use]
    pub fn list(&self, of: &Of) -> Vec<ListedLease> {
        let listed = |Entry { lease, phase }: &Entry| ListedLease {
            lease: lease.clone(),
            lapsed: !matches!(phase, Phase::Open | Phase::Closing),
            stopped: *phase == Phase::Stopped,
        };
        match of {
            Of::All => self.entries.values().map(listed).collect(),
            Of::One(service) => self.entries.get(service).map(listed).into_iter().collect(),
            Of::None => Vec::new(),
        }
    }

    fn entry(&self, service: &ServiceName, instance: Instance) -> Result<&Entry, String> {
        let entry = self.entries.get(service).ok_or("there is no such lease")?;
        if entry.lease.terms.instance != instance {
            return Err(format!("the lease is that of instance {}", entry.lease.terms.instance));
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
    if lists.iter().any(|list| list.len() > MEMBER_LIMIT) {
        return Err(format!("more than {MEMBER_LIMIT} units"));
    }
    let bytes: usize = lease.cgroups.iter().map(String::len).sum();
    if lease.cgroups.len() > CGROUP_LIMIT || bytes > CGROUPS_LIMIT_BYTES {
        return Err(format!(
            "more than {CGROUP_LIMIT} control groups, or than {CGROUPS_LIMIT_BYTES} bytes of their paths"
        ));
    }
    match lease.cgroups.iter().find(|path| !is_below_the_root(path)) {
        Some(path) => Err(format!("{path:?} is not the path of a control group")),
        None => Ok(()),
    }
}

/// Whether `path` names a control group other than the root, which holds everything, and cannot lead out of the hierarchy:
/// everything in this group is going to be killed.
#[must_use]
pub fn is_below_the_root(path: &str) -> bool {
    path.len() <= CGROUP_LIMIT_BYTES
        && path.strip_prefix('/').is_some_and(|path| {
            path.split('/').all(|part| !matches!(part, "" | "." | "..") && !part.contains(char::is_control))
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
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::types::{FencingToken, LeaseTerms, NodeId, OnStopFailure, UnitName};

    const S: Duration = Duration::from_secs(4);
    const K: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Time {
        Time::both(Duration::from_secs(seconds))
    }

    fn name(text: &str) -> ServiceName {
        ServiceName::new(text).expect("a good name")
    }

    fn lease(service: &str, instance: u128, deadline: u64) -> Lease {
        Lease {
            service: name(service),
            node: NodeId::new("alpha").expect("a good name"),
            terms: LeaseTerms {
                instance: Instance(instance),
                write: WriteId(1),
                revision: Revision(1),
                token: FencingToken(42),
                deadline: at(deadline),
                stop_budget: S,
                kill_reserve: K,
            },
            units: vec![UnitName::new(&format!("{service}.service")).expect("a good name")],
            cgroups: vec![group(service)],
            inactive: Vec::new(),
            begun: Vec::new(),
            contains: Vec::new(),
            on_stop_failure: OnStopFailure::Alert,
            closing: false,
        }
    }

    fn group(service: &str) -> String {
        format!("/system.slice/{service}.service")
    }

    fn closed(mut lease: Lease) -> Lease {
        lease.closing = true;
        lease
    }

    /// A command that adds another group to the closed lease of `db` by `instance`.
    fn wider(instance: u128) -> Command {
        let mut lease = closed(lease("db", instance, 10));
        lease.cgroups = vec!["/app.slice/db.service".to_owned()];
        Command::Arm { lease, shorter: false }
    }

    fn extend(instance: u128, deadline: u64) -> Command {
        Command::Extend {
            service: name("db"),
            instance: Instance(instance),
            write: WriteId(2),
            revision: Revision(2),
            deadline: at(deadline),
        }
    }

    fn close(instance: u128) -> Command {
        Command::Close { service: name("db"), instance: Instance(instance) }
    }

    fn disarm(instance: u128) -> Command {
        Command::Disarm { service: name("db"), instance: Instance(instance) }
    }

    /// A table with the lease of `db` by instance 1, with its deadline at 10.
    fn armed() -> Table {
        let mut table = Table::default();
        let lease = lease("db", 1, 10);
        let done = (Outcome::Done, vec![Effect::Grant(lease.clone())]);
        assert_eq!(table.handle(at(1), Command::Arm { lease, shorter: false }), done);
        table
    }

    fn lapsed() -> Table {
        let mut table = armed();
        assert_eq!(table.expire(at(10)).len(), 2);
        table
    }

    #[track_caller]
    fn refused(table: &mut Table, now: Time, command: Command, why: &str) {
        let before = table.clone();
        match table.handle(now, command) {
            (Outcome::Refused { reason }, effects) => {
                assert!(reason.contains(why), "{reason:?} does not say {why:?}");
                assert!(effects.is_empty());
            }
            (other, _) => panic!("not refused: {other:?}"),
        }
        assert_eq!(*table, before, "a refusal changes nothing");
    }

    fn listed(table: &mut Table) -> Vec<ListedLease> {
        match table.handle(at(0), Command::List).0 {
            Outcome::Leases { leases, watchdog: None, trouble: None, version: None } => leases,
            other @ (Outcome::Done | Outcome::Refused { .. } | Outcome::Leases { .. } | Outcome::Source(_)) => {
                panic!("not a list: {other:?}")
            }
        }
    }

    #[test]
    fn arming_sets_the_deadline_and_the_grant() {
        let mut table = armed();
        assert_eq!(table.poll_timeout(), Some(at(10)));
        assert_eq!(listed(&mut table), [ListedLease { lease: lease("db", 1, 10), lapsed: false, stopped: false }]);
        assert!(table.expire(at(9)).is_empty(), "a call too early does nothing");
    }

    #[test]
    fn a_guard_that_hangs_has_a_successor_when_sigkill_is_due() {
        assert_eq!(Table::default().patience(at(0)), None);
        // SIGKILL is due at 13.
        let mut table = armed();
        let ms = Duration::from_millis;
        let at_ms = |milliseconds| Time::both(ms(milliseconds));
        assert_eq!(table.patience(at(4)), Some(ms(7700)));
        for milliseconds in (1000..11_400).step_by(100) {
            table.expire(at_ms(milliseconds));
            let patience = table.patience(at_ms(milliseconds)).expect("there is a lease");
            assert!(ms(milliseconds) + patience + SUCCESSION <= ms(13_000), "{patience:?} at {milliseconds} ms");
        }
        // The other lease has a later deadline.
        table.handle(at(12), Command::Arm { lease: lease("other", 2, 14), shorter: false });
        for late in [12_000, 12_900, 13_500] {
            assert_eq!(table.patience(at_ms(late)), Some(LEAST_PATIENCE));
        }
        table.stopped(&name("db"));
        assert_eq!(table.patience(at_ms(13_500)), Some(ms(2200)));
        table.handle(at(13), disarm(1));
        assert_eq!(table.patience(at_ms(13_500)), Some(ms(2200)));
    }

    #[test]
    fn a_guard_that_is_silent_for_less_than_half_a_short_lease_is_borne_with() {
        let mut table = Table::default();
        let mut short = lease("db", 1, 3);
        (short.terms.stop_budget, short.terms.kill_reserve) = (Duration::from_millis(200), Duration::from_millis(50));
        table.handle(at(1), Command::Arm { lease: short, shorter: false });
        assert_eq!(table.patience(at(1)), Some(Duration::from_secs(1)));
        assert_eq!(table.patience(at(2)), Some(Duration::from_millis(500)));
        assert_eq!(table.patience(at(3)), Some(LEAST_PATIENCE));
    }

    #[test]
    fn a_list_says_whose_units_were_seen_dead() {
        let mut table = lapsed();
        let said = |table: &mut Table| listed(table).into_iter().map(|listed| listed.stopped).collect::<Vec<_>>();
        assert_eq!(said(&mut table), [false]);
        table.stopped(&name("db"));
        assert_eq!(said(&mut table), [true]);
    }

    #[test]
    fn arming_is_refused() {
        let mut table = Table::default();
        refused(
            &mut table,
            at(10),
            Command::Arm { lease: lease("db", 1, 10), shorter: false },
            "the deadline has passed",
        );
        let raw_passed = Time { boot: Duration::from_secs(1), raw: Duration::from_secs(10) };
        refused(
            &mut table,
            raw_passed,
            Command::Arm { lease: lease("db", 1, 10), shorter: false },
            "the deadline has passed",
        );
        let mut odd = lease("db", 1, 10);
        odd.terms.kill_reserve = S * 2;
        refused(&mut table, at(1), Command::Arm { lease: odd, shorter: false }, "longer than the stop budget");
        let mut odd = lease("db", 1, 10);
        odd.cgroups = vec!["/a".to_owned(); CGROUP_LIMIT + 1];
        refused(&mut table, at(1), Command::Arm { lease: odd, shorter: false }, "64 control groups");
        let mut odd = lease("db", 1, 10);
        odd.inactive = vec![odd.units[0].clone(); MEMBER_LIMIT + 1];
        refused(&mut table, at(1), Command::Arm { lease: odd, shorter: false }, "16 units");
        for path in ["", "/", "a", "/a/../..", "/..", "/a//b", "/./a", "/a\0", "/a/", "/a\u{1}"] {
            let mut odd = lease("db", 1, 10);
            odd.cgroups = vec![path.to_owned()];
            refused(&mut table, at(1), Command::Arm { lease: odd, shorter: false }, "not the path of a control group");
        }
    }

    #[test]
    fn what_is_just_within_the_limits_is_armed() {
        let mut table = Table::default();
        let mut full = lease("db", 1, 10);
        full.terms.kill_reserve = S;
        full.units = vec![full.units[0].clone(); MEMBER_LIMIT];
        full.inactive = full.units.clone();
        full.cgroups =
            vec![format!("/{}", "x".repeat(CGROUP_LIMIT_BYTES - 1)); CGROUPS_LIMIT_BYTES / CGROUP_LIMIT_BYTES];
        let mut beyond = full.clone();
        let mut many = full.clone();
        assert_eq!(table.handle(at(1), Command::Arm { lease: full, shorter: false }).0, Outcome::Done);
        beyond.cgroups[0].push('x');
        beyond.cgroups[1].pop();
        refused(
            &mut table,
            at(1),
            Command::Arm { lease: beyond.clone(), shorter: false },
            "not the path of a control group",
        );
        beyond.cgroups[1].push('x');
        refused(&mut table, at(1), Command::Arm { lease: beyond, shorter: false }, "bytes of their paths");
        many.cgroups = vec!["/x".to_owned(); CGROUP_LIMIT];
        assert_eq!(table.handle(at(1), Command::Arm { lease: many, shorter: false }).0, Outcome::Done);
    }

    #[test]
    fn arming_over_another_lease_is_refused_in_every_phase() {
        let other = Command::Arm { lease: lease("db", 2, 90), shorter: false };
        let same = Command::Arm { lease: lease("db", 1, 90), shorter: false };
        let mut table = armed();
        refused(&mut table, at(1), other.clone(), "is not disarmed");
        table.handle(at(1), close(1));
        refused(&mut table, at(1), other.clone(), "is not disarmed");
        refused(&mut table, at(1), same.clone(), "never reopens");
        table.expire(at(10));
        for _ in 0..2 {
            refused(&mut table, at(11), other.clone(), "is not disarmed");
            refused(&mut table, at(11), same.clone(), "a lapse is final");
            table.stopped(&name("db"));
        }
        table.handle(at(12), disarm(1));
        assert_eq!(table.handle(at(12), other).0, Outcome::Done);
    }

    #[test]
    fn arming_again_replaces_but_never_shortens() {
        let mut table = armed();
        refused(
            &mut table,
            at(1),
            Command::Arm { lease: lease("db", 1, 9), shorter: false },
            "armed with a later deadline",
        );
        for (boot, raw) in [(9, 30), (30, 9)] {
            let mut earlier = lease("db", 1, 10);
            earlier.terms.deadline = Time { boot: Duration::from_secs(boot), raw: Duration::from_secs(raw) };
            refused(&mut table, at(1), Command::Arm { lease: earlier, shorter: false }, "armed with a later deadline");
        }
        for deadline in [10, 12] {
            assert_eq!(
                table.handle(at(1), Command::Arm { lease: lease("db", 1, deadline), shorter: false }).0,
                Outcome::Done
            );
            assert_eq!(table.poll_timeout(), Some(at(deadline)));
        }
    }

    /// At the end of a pause. What was closed stays as it is.
    #[test]
    fn arming_again_shortens_an_open_lease_only_if_it_is_said() {
        let mut table = armed();
        let shorter = |deadline| Command::Arm { lease: lease("db", 1, deadline), shorter: true };
        let (outcome, effects) = table.handle(at(1), shorter(6));
        assert_eq!((outcome, effects), (Outcome::Done, vec![Effect::Grant(lease("db", 1, 6))]));
        assert_eq!(table.poll_timeout(), Some(at(6)));
        refused(&mut table, at(4), shorter(3), "the deadline has passed");
        table.handle(at(4), close(1));
        refused(&mut table, at(4), shorter(5), "never reopens");
        assert_eq!(table.poll_timeout(), Some(at(6)));
    }

    #[test]
    fn arming_again_replaces_the_control_groups() {
        let mut table = armed();
        for groups in [["/system.slice/db.service", "/app.slice/db.service"].as_slice(), &["/app.slice/db.service"]] {
            let mut lease = lease("db", 1, 10);
            lease.cgroups = groups.iter().map(|group| (*group).to_owned()).collect();
            assert_eq!(table.handle(at(1), Command::Arm { lease, shorter: false }).0, Outcome::Done);
            assert_eq!(listed(&mut table)[0].lease.cgroups, groups);
        }
    }

    #[test]
    fn a_closed_lease_learns_of_control_groups_and_forgets_none() {
        let both = [group("db"), "/app.slice/db.service".to_owned()];
        refused(&mut Table::default(), at(1), wider(1), "no such lease");
        let mut table = armed();
        refused(&mut table, at(1), wider(1), "not closed");
        table.handle(at(1), close(1));
        refused(&mut table, at(1), wider(2), "that of instance");
        for _ in 0..2 {
            assert_eq!(table.handle(at(1), wider(1)), (Outcome::Done, vec![]), "no grant comes back");
            assert_eq!(listed(&mut table)[0].lease.cgroups, both);
        }
        assert_eq!(table.poll_timeout(), Some(at(10)), "the deadline stands");
        let effects = table.expire(at(10));
        assert!(matches!(&effects[1], Effect::Enforce(lease) if lease.cgroups == both));
    }

    #[test]
    fn a_lapsed_lease_that_covers_more_is_enforced_there_too() {
        for stopped in [false, true] {
            let mut table = lapsed();
            if stopped {
                table.stopped(&name("db"));
            }
            let (outcome, effects) = table.handle(at(11), wider(1));
            assert_eq!(outcome, Outcome::Done);
            assert!(matches!(&effects[..], [Effect::Enforce(lease)] if lease.cgroups.len() == 2));
            assert_eq!(table.handle(at(11), wider(1)), (Outcome::Done, vec![]), "once");
            assert!(listed(&mut table)[0].lapsed);
        }
    }

    #[test]
    fn a_closed_lease_has_the_same_limits() {
        let mut table = armed();
        table.handle(at(1), close(1));
        for number in 1..CGROUP_LIMIT {
            let mut lease = closed(lease("db", 1, 10));
            lease.cgroups = vec![format!("/{number}")];
            assert_eq!(table.handle(at(1), Command::Arm { lease, shorter: false }).0, Outcome::Done);
        }
        refused(&mut table, at(1), wider(1), "64 control groups");
    }

    #[test]
    fn what_another_lease_covers_is_not_armed() {
        let over = |groups: &[&str]| {
            let mut other = lease("other", 7, 20);
            other.cgroups = groups.iter().map(|group| (*group).to_owned()).collect();
            Command::Arm { lease: other, shorter: false }
        };
        let mut same_unit = lease("other", 7, 20);
        same_unit.units.push(lease("db", 1, 10).units[0].clone());
        let mut gone = armed();
        gone.handle(at(1), close(1));
        let mut stopped = lapsed();
        stopped.stopped(&name("db"));
        for mut table in [armed(), gone, lapsed(), stopped] {
            let lease_of_db = "the lease of db still covers";
            for group in ["/system.slice/db.service", "/system.slice", "/system.slice/db.service/inner"] {
                refused(&mut table, at(1), over(&["/free", group]), &format!("{lease_of_db} {group}"));
            }
            let unit = Command::Arm { lease: same_unit.clone(), shorter: false };
            refused(&mut table, at(1), unit.clone(), &format!("{lease_of_db} db.service"));
            assert_eq!(table.handle(at(1), over(&["/system.slice/db.service.other"])).0, Outcome::Done);
            refused(&mut table, at(1), over(&["/system.slice/db.service"]), lease_of_db);
            table.handle(at(11), disarm(1));
            assert_eq!(table.handle(at(11), unit).0, Outcome::Done);
        }
    }

    #[test]
    fn a_closed_lease_does_not_reach_into_another() {
        let mut table = armed();
        table.handle(at(1), Command::Arm { lease: lease("other", 7, 20), shorter: false });
        table.handle(at(1), close(1));
        let mut lease = closed(lease("db", 1, 10));
        lease.cgroups = vec![group("other")];
        refused(&mut table, at(1), Command::Arm { lease, shorter: false }, "the lease of other still covers");
    }

    #[test]
    fn the_table_has_a_limit() {
        let mut table = Table::default();
        for number in 0..LEASE_LIMIT {
            let lease = lease(&format!("s{number}"), 1, 10);
            assert_eq!(table.handle(at(1), Command::Arm { lease, shorter: false }).0, Outcome::Done);
        }
        refused(&mut table, at(1), Command::Arm { lease: lease("db", 1, 10), shorter: false }, "leases already");
    }

    #[test]
    fn all_leases_fit_into_one_list() {
        let mut table = Table::default();
        let big = |number: usize| {
            let mut lease = lease(&format!("s{number}"), 1, 10);
            lease.cgroups = (0..16).map(|part| format!("/{number}-{part}-{}", "x".repeat(1000))).collect();
            Command::Arm { lease, shorter: false }
        };
        let mut count = 0;
        while table.handle(at(1), big(count)).0 == Outcome::Done {
            count += 1;
        }
        assert!((256..LEASE_LIMIT).contains(&count), "{count}");
        refused(&mut table, at(1), big(count), "bytes together");
        table.handle(at(1), big(count - 1));
        table.handle(at(1), Command::Disarm { service: name("s0"), instance: Instance(1) });
        assert_eq!(table.handle(at(1), big(count)).0, Outcome::Done);
        let text = serde_json::to_vec(&listed(&mut table)).expect("encodes");
        assert!(text.len() < LEASES_LIMIT_BYTES);
    }

    #[test]
    fn a_list_has_what_is_asked_for() {
        let mut table = armed();
        table.handle(at(1), Command::Arm { lease: lease("other", 7, 20), shorter: false });
        assert_eq!(table.list(&Of::All).len(), 2);
        assert_eq!(
            table.list(&Of::One(name("db"))),
            [ListedLease { lease: lease("db", 1, 10), lapsed: false, stopped: false }]
        );
        assert!(table.list(&Of::One(name("none"))).is_empty() && table.list(&Of::None).is_empty());
    }

    #[test]
    fn extending_moves_the_deadline_and_renews_the_grant() {
        let mut table = armed();
        let mut expected = lease("db", 1, 15);
        expected.terms.write = WriteId(2);
        expected.terms.revision = Revision(2);
        assert_eq!(table.handle(at(5), extend(1, 15)), (Outcome::Done, vec![Effect::Extend(name("db"), at(15))]));
        assert_eq!(table.entry_of(&name("db")).expect("there is one").lease, expected);
        assert_eq!(table.poll_timeout(), Some(at(15)));
        assert!(table.expire(at(14)).is_empty());
        assert_eq!(table.expire(at(15)).len(), 2);
    }

    #[test]
    fn an_extension_that_is_sent_again_changes_nothing() {
        let mut table = armed();
        table.handle(at(5), extend(1, 15));
        let before = table.clone();
        assert_eq!(table.handle(at(6), extend(1, 15)), (Outcome::Done, Vec::new()));
        assert_eq!(table, before);
        refused(&mut table, at(15), extend(1, 15), "a lapse is final");
    }

    #[test]
    fn extending_is_refused() {
        refused(&mut Table::default(), at(1), extend(1, 15), "no such lease");
        let mut table = armed();
        refused(&mut table, at(1), extend(2, 15), "that of instance");
        refused(&mut table, at(1), extend(1, 10), "not later");
        refused(&mut table, at(1), extend(1, 9), "not later");
        refused(&mut table, at(9), extend(1, 9), "has passed");
        refused(&mut table, at(10), extend(1, 15), "a lapse is final");
        refused(&mut lapsed(), at(11), extend(1, 15), "a lapse is final");
        let raw_back = Command::Extend {
            service: name("db"),
            instance: Instance(1),
            write: WriteId(2),
            revision: Revision(2),
            deadline: Time { boot: Duration::from_secs(20), raw: Duration::from_secs(10) },
        };
        refused(&mut table, at(1), raw_back, "not later");
    }

    #[test]
    fn closing_removes_the_grant_for_good_and_keeps_the_deadline() {
        refused(&mut Table::default(), at(1), close(1), "no such lease");
        let mut table = armed();
        refused(&mut table, at(1), close(2), "that of instance");
        assert_eq!(table.handle(at(1), close(1)), (Outcome::Done, vec![Effect::Withdraw(name("db"))]));
        assert_eq!(table.handle(at(1), close(1)), (Outcome::Done, vec![]), "again, it changes nothing");
        assert!(listed(&mut table)[0].lease.closing);
        assert_eq!(table.handle(at(2), extend(1, 15)), (Outcome::Done, vec![]), "no grant comes back");
        assert!(table.expire(at(14)).is_empty());
        assert!(matches!(&table.expire(at(15))[..], [Effect::Withdraw(_), Effect::Enforce(_)]));
    }

    #[test]
    fn disarming_forgets() {
        assert_eq!(Table::default().handle(at(1), disarm(1)), (Outcome::Done, vec![]));
        for mut table in [armed(), lapsed()] {
            refused(&mut table, at(11), disarm(2), "that of instance");
            let effects = vec![Effect::Withdraw(name("db")), Effect::Forget(name("db"))];
            assert_eq!(table.handle(at(11), disarm(1)), (Outcome::Done, effects));
            assert_eq!((table.poll_timeout(), table), (None, Table::default()));
        }
    }

    #[test]
    fn either_clock_lets_it_lapse() {
        let late = Duration::from_secs(10);
        let early = Duration::from_secs(2);
        for now in [Time { boot: late, raw: early }, Time { boot: early, raw: late }] {
            let mut table = armed();
            let effects = table.expire(now);
            let enforced = closed(lease("db", 1, 10));
            assert_eq!(effects, [Effect::Withdraw(name("db")), Effect::Enforce(enforced)]);
            assert!(table.expire(now).is_empty(), "once");
            assert!(listed(&mut table)[0].lapsed);
        }
    }

    #[test]
    fn the_next_timeout_is_the_earliest_on_each_clock() {
        let mut table = Table::default();
        let mut one = lease("a", 1, 10);
        one.terms.deadline.raw = Duration::from_secs(30);
        let mut two = lease("b", 1, 20);
        two.terms.deadline.raw = Duration::from_secs(15);
        table.handle(at(1), Command::Arm { lease: one, shorter: false });
        table.handle(at(1), Command::Arm { lease: two, shorter: false });
        assert_eq!(table.poll_timeout(), Some(Time { boot: Duration::from_secs(10), raw: Duration::from_secs(15) }));
    }

    #[test]
    fn what_is_past_its_time_for_sigkill_is_overdue_until_it_was_seen_dead() {
        let overdue = |table: &Table, now| table.overdue(now).map(ToString::to_string).collect::<Vec<_>>();
        let mut table = armed();
        table.handle(at(1), Command::Arm { lease: lease("other", 7, 20), shorter: false });
        assert!(overdue(&table, at(12)).is_empty());
        assert_eq!(overdue(&table, at(13)), ["db"], "it woke too late for the lapse, and that is all the same");
        assert_eq!(overdue(&table, at(23)), ["db", "other"]);
        assert_eq!(overdue(&table, Time { boot: Duration::from_secs(1), raw: Duration::from_secs(13) }), ["db"]);
        table.expire(at(13));
        assert_eq!(overdue(&table, at(13)), ["db"]);
        table.expire(at(14));
        assert_eq!(overdue(&table, at(14)), ["db"], "given up");
        assert_eq!(overdue(&Table::resume(at(14), table.entries()).0, at(14)), ["db"], "for a successor too");
        table.stopped(&name("db"));
        assert!(overdue(&table, at(14)).is_empty());
        assert_eq!(table.leases().count(), 2);
        assert!(table.holds(&name("other")) && !table.holds(&name("another")));
    }

    #[test]
    fn it_wakes_for_the_time_of_sigkill() {
        let mut table = armed();
        assert_eq!(table.wake_at(at(1)), Some(at(10)));
        table.expire(at(10));
        assert_eq!(table.wake_at(at(10)), Some(at(13)));
        assert_eq!(table.wake_at(at(13)), Some(at(14)), "once");
        table.handle(at(1), Command::Arm { lease: lease("other", 7, 12), shorter: false });
        assert_eq!(table.wake_at(at(10)), Some(at(12)));
        assert_eq!(Table::default().wake_at(at(1)), None);
    }

    #[test]
    fn without_a_proof_in_time_it_gives_up_once() {
        let mut table = lapsed();
        assert_eq!(table.poll_timeout(), Some(at(14)));
        assert!(table.expire(at(13)).is_empty());
        assert_eq!(table.expire(at(14)), [Effect::GiveUp(closed(lease("db", 1, 10)))]);
        assert!(table.expire(at(99)).is_empty());
        assert_eq!(table.poll_timeout(), None);
    }

    #[test]
    fn with_a_proof_it_stays_lapsed_until_disarmed() {
        let mut table = lapsed();
        table.stopped(&name("db"));
        assert_eq!(table.poll_timeout(), None);
        assert!(table.expire(at(99)).is_empty());
        assert!(listed(&mut table)[0].lapsed);
    }

    #[test]
    fn a_unit_is_at_stake_until_it_is_proven_dead() {
        assert_eq!(Table::default().at_stake(|_| true), None);
        let mut table = armed();
        assert_eq!(table.at_stake(|_| true), Some(at(14)));
        let mut other = lease("other", 2, 30);
        (other.terms.deadline.raw, other.terms.stop_budget) = (Duration::from_secs(8), S / 2);
        table.handle(at(1), Command::Arm { lease: other, shorter: false });
        let first = Time { boot: Duration::from_secs(14), raw: Duration::from_secs(10) };
        assert_eq!(table.at_stake(|_| true), Some(first), "the earlier one on each clock");
        table.handle(at(1), disarm_other());
        table.handle(at(2), extend(1, 15));
        table.handle(at(2), close(1));
        assert_eq!(table.at_stake(|_| true), Some(at(19)));
        table.expire(at(15));
        assert_eq!(table.at_stake(|_| true), Some(at(19)), "lapsed");
        table.expire(at(19));
        assert_eq!(table.at_stake(|_| true), Some(at(19)), "given up");
        let (next, _) = Table::resume(at(20), table.entries());
        assert_eq!(next.at_stake(|_| true), Some(at(19)), "for a successor too");
        table.stopped(&name("db"));
        assert_eq!(table.at_stake(|_| true), None, "a late proof is one");
        assert_eq!(table.at_stake(|_| false), Some(at(19)), "until something of it runs again");
        assert!(table.expire(at(99)).is_empty());
        assert!(listed(&mut table)[0].lapsed);
    }

    fn disarm_other() -> Command {
        Command::Disarm { service: name("other"), instance: Instance(2) }
    }

    #[test]
    fn a_proof_means_nothing_before_the_lapse() {
        let mut table = armed();
        table.stopped(&name("db"));
        table.stopped(&name("unknown"));
        assert_eq!(table, armed());
    }

    #[test]
    fn whoever_wakes_late_still_kills_before_it_gives_up() {
        let mut table = armed();
        assert!(matches!(&table.expire(at(100))[..], [Effect::Withdraw(_), Effect::Enforce(_)]));
        assert_eq!(table.poll_timeout(), Some(at(100).plus(K)));
        assert!(matches!(&table.expire(at(101))[..], [Effect::GiveUp(_)]));
    }

    #[test]
    fn one_lapse_leaves_the_others_alone() {
        let mut table = armed();
        table.handle(at(1), Command::Arm { lease: lease("other", 7, 20), shorter: false });
        assert_eq!(table.expire(at(10)).len(), 2);
        assert_eq!(listed(&mut table).iter().filter(|listed| listed.lapsed).count(), 1);
        assert_eq!(table.expire(at(20)).len(), 3, "one gives up, the other lapses");
    }

    #[test]
    fn a_successor_closes_open_leases_and_goes_on_with_lapsed_ones() {
        let mut table = armed();
        table.handle(at(1), Command::Arm { lease: lease("other", 7, 5), shorter: false });
        table.expire(at(5));
        let (mut next, effects) = Table::resume(at(6), table.entries());
        assert_eq!(effects, [Effect::Enforce(closed(lease("other", 7, 5)))]);
        let listed = listed(&mut next);
        assert!(listed.iter().all(|listed| listed.lease.closing));
        assert_eq!(next.poll_timeout(), Some(at(9)));
        refused(&mut next, at(6), Command::Arm { lease: lease("db", 1, 20), shorter: false }, "never reopens");
        assert_eq!(next.handle(at(6), extend(1, 15)), (Outcome::Done, vec![]), "it is still being stopped");
        assert!(next.expire(at(15)).contains(&Effect::Withdraw(name("db"))));
    }

    #[test]
    fn a_successor_does_not_give_up_a_second_time() {
        let mut table = lapsed();
        table.expire(at(14));
        let (mut next, effects) = Table::resume(at(15), table.entries());
        assert_eq!(effects.len(), 1, "SIGKILL goes on");
        assert!(next.expire(at(99)).is_empty());
        let (next, _) = Table::resume(at(50), lapsed().entries());
        assert_eq!(next.poll_timeout(), Some(at(50).plus(K)), "time to kill before giving up");
    }

    #[test]
    fn what_is_kept_comes_back_as_it_was() {
        for mut table in [armed(), lapsed()] {
            for _ in 0..2 {
                let text = serde_json::to_string(&table.entries()).expect("encodes");
                let entries: Vec<Entry> = serde_json::from_str(&text).expect("decodes");
                assert_eq!(entries, table.entries());
                table.stopped(&name("db"));
            }
        }
    }

    #[derive(Debug, Clone)]
    #[expect(clippy::large_enum_variant, reason = "a few dozen of them, in a test")]
    enum Step {
        Wait(u64),
        Command(Command),
        Restart,
        Stopped,
    }

    fn step() -> impl Strategy<Value = Step> {
        let (instance, deadline) = (1_u128..3, 0_u64..60);
        prop_oneof![
            (0_u64..5).prop_map(Step::Wait),
            (instance.clone(), deadline.clone(), any::<bool>()).prop_map(|(instance, deadline, shorter)| {
                Step::Command(Command::Arm { lease: lease("db", instance, deadline), shorter })
            }),
            (instance.clone(), deadline).prop_map(|(instance, deadline)| Step::Command(extend(instance, deadline))),
            instance.clone().prop_map(|instance| Step::Command(wider(instance))),
            instance.clone().prop_map(|instance| Step::Command(close(instance))),
            instance.prop_map(|instance| Step::Command(disarm(instance))),
            Just(Step::Restart),
            Just(Step::Stopped),
        ]
    }

    /// Computes from the entries alone what the table answers with the help of its other fields.
    struct Scan<'a>(&'a Table);

    impl Scan<'_> {
        fn entries(&self) -> impl Iterator<Item = &Entry> {
            self.0.entries.values()
        }

        fn poll_timeout(&self) -> Option<Time> {
            let due = |entry: &Entry| match entry.phase {
                Phase::Open | Phase::Closing => Some(entry.lease.terms.deadline),
                Phase::Lapsed { give_up } => Some(give_up),
                Phase::Stopped | Phase::GivenUp => None,
            };
            self.entries().filter_map(due).reduce(Time::earliest)
        }

        fn overdue(&self, now: Time) -> Vec<&ServiceName> {
            let is_overdue =
                |entry: &&Entry| entry.phase != Phase::Stopped && now.has_passed(entry.lease.terms.kill_at());
            self.entries().filter(is_overdue).map(|entry| &entry.lease.service).collect()
        }

        fn wake_at(&self, now: Time) -> Option<Time> {
            let lapsed = self.entries().filter(|entry| matches!(entry.phase, Phase::Lapsed { .. }));
            let kills = lapsed.map(|entry| entry.lease.terms.kill_at()).filter(|kill_at| !now.has_passed(*kill_at));
            kills.chain(self.poll_timeout()).reduce(Time::earliest)
        }

        fn at_stake(&self, is_dead: impl Fn(&ServiceName) -> bool) -> Option<Time> {
            let lives = |entry: &&Entry| entry.phase != Phase::Stopped || !is_dead(&entry.lease.service);
            self.entries().filter(lives).map(|entry| entry.lease.terms.dead_by()).reduce(Time::earliest)
        }

        /// The least and the greatest patience that is permitted: half of the shortest lease, and what leaves time for a
        /// successor.
        fn patience(&self, now: Time) -> Option<(Duration, Duration)> {
            let bounds = |Entry { lease, phase }: &Entry| {
                let half = match phase {
                    Phase::Open | Phase::Closing => now.until_passed(lease.terms.deadline) / 2,
                    Phase::Lapsed { .. } => Duration::ZERO,
                    Phase::Stopped | Phase::GivenUp => return None,
                };
                let in_time = now.until_passed(lease.terms.kill_at()).saturating_sub(SUCCESSION);
                Some((half.max(LEAST_PATIENCE), in_time.max(half).max(LEAST_PATIENCE)))
            };
            let least =
                |one: (Duration, Duration), other: (Duration, Duration)| (one.0.min(other.0), one.1.min(other.1));
            self.entries().filter_map(bounds).reduce(least)
        }

        /// Whether another lease covers a unit of `new`, or a group that is, contains or lies within one of its own.
        fn overlaps(&self, new: &Lease) -> bool {
            self.entries().map(Entry::lease).filter(|lease| lease.service != new.service).any(|lease| {
                let is_within = |group: &str, other: &str| {
                    group.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                };
                let near = |one: &String, other: &String| is_within(one, other) || is_within(other, one);
                let touches = |group: &String| lease.cgroups.iter().any(|other| near(group, other));
                new.units.iter().any(|unit| lease.units.contains(unit)) || new.cgroups.iter().any(touches)
            })
        }
    }

    /// Random leases of a few services whose units and groups overlap, with clocks that drift apart.
    fn any_lease() -> impl Strategy<Value = Lease> {
        let spans = (0_u64..4, 0_u64..5, 0_u64..60, 0_u64..60);
        let groups = prop::sample::subsequence(vec!["/a", "/a/b", "/a/b/c", "/a.b", "/ab", "/b", "/b/a"], 0..3);
        let units = prop::sample::subsequence(vec!["a.service", "b.service", "c.service"], 0..2);
        (0..4, 1_u128..3, spans, groups, units, any::<bool>()).prop_map(
            |(service, instance, (reserve, rest, boot, raw), groups, units, closing)| {
                let mut lease = lease(&format!("s{service}"), instance, 0);
                lease.terms.deadline = Time { boot: Duration::from_secs(boot), raw: Duration::from_secs(raw) };
                lease.terms.kill_reserve = Duration::from_secs(reserve);
                lease.terms.stop_budget = Duration::from_secs(reserve + rest);
                lease.cgroups = groups.into_iter().map(str::to_owned).collect();
                lease.units = units.into_iter().map(|unit| UnitName::new(unit).expect("a good name")).collect();
                lease.closing = closing;
                lease
            },
        )
    }

    #[derive(Debug, Clone)]
    enum Turn {
        Wait(u64, u64),
        Arm(Box<Lease>),
        Extend(Box<Lease>),
        Close(Box<Lease>),
        Disarm(Box<Lease>),
        Stopped(Box<Lease>),
        PutBack(Box<Lease>),
        Restart,
    }

    fn turn() -> impl Strategy<Value = Turn> {
        let lease = || any_lease().prop_map(Box::new);
        prop_oneof![
            1 => (0_u64..6, 0_u64..6).prop_map(|(boot, raw)| Turn::Wait(boot, raw)),
            4 => lease().prop_map(Turn::Arm),
            2 => lease().prop_map(Turn::Extend),
            1 => lease().prop_map(Turn::Close),
            1 => lease().prop_map(Turn::Disarm),
            1 => lease().prop_map(Turn::Stopped),
            1 => lease().prop_map(Turn::PutBack),
            1 => Just(Turn::Restart),
        ]
    }

    proptest! {
        /// After any commands, what is kept beside the entries gives the same answers as a look at all of them.
        #[test]
        fn what_is_kept_beside_the_entries_follows_from_them(turns in proptest::collection::vec(turn(), 0..40)) {
            let mut table = Table::default();
            let mut now = at(0);
            for turn in turns {
                table.expire(now);
                match turn {
                    Turn::Wait(boot, raw) => {
                        now.boot += Duration::from_secs(boot);
                        now.raw += Duration::from_secs(raw);
                    }
                    Turn::Arm(lease) => {
                        let overlaps = Scan(&table).overlaps(&lease);
                        let shorter = lease.terms.deadline.boot.as_secs().is_multiple_of(2);
                        let (outcome, _) = table.handle(now, Command::Arm { lease: *lease, shorter });
                        let covers = matches!(&outcome, Outcome::Refused { reason } if reason.contains("still covers"));
                        prop_assert!(!overlaps || outcome != Outcome::Done);
                        prop_assert!(overlaps || !covers, "{:?}", outcome);
                    }
                    Turn::Extend(lease) => {
                        let LeaseTerms { instance, write, revision, deadline, .. } = lease.terms;
                        let service = lease.service;
                        table.handle(now, Command::Extend { service, instance, write, revision, deadline });
                    }
                    Turn::Close(lease) => {
                        table.handle(now, Command::Close { service: lease.service, instance: lease.terms.instance });
                    }
                    Turn::Disarm(lease) => {
                        table.handle(now, Command::Disarm { service: lease.service, instance: lease.terms.instance });
                    }
                    Turn::Stopped(lease) => drop(table.stopped(&lease.service)),
                    Turn::PutBack(lease) => {
                        let service = lease.service.clone();
                        let (before, kept) = (table.entry_of(&service).cloned(), table.clone());
                        table.handle(now, Command::Arm { lease: *lease, shorter: false });
                        table.put(&service, before);
                        prop_assert_eq!(&table, &kept);
                    }
                    Turn::Restart => {
                        let (next, _) = Table::resume(now, table.entries());
                        table = next;
                    }
                }
                let scan = Scan(&table);
                prop_assert_eq!(table.poll_timeout(), scan.poll_timeout());
                prop_assert_eq!(table.overdue(now).collect::<Vec<_>>(), scan.overdue(now));
                prop_assert_eq!(table.wake_at(now), scan.wake_at(now));
                for dead in ["s0", "s1"] {
                    let is_dead = |service: &ServiceName| service.as_str() == dead;
                    prop_assert_eq!(table.at_stake(is_dead), scan.at_stake(is_dead));
                }
                match (table.patience(now), scan.patience(now)) {
                    (Some(patience), Some((least, most))) => prop_assert!((least..=most).contains(&patience)),
                    (patience, none) => prop_assert_eq!((patience, none), (None, None)),
                }
                let bytes: usize = table.leases().map(Lease::listed_bytes).sum();
                prop_assert_eq!(table.bytes, bytes);
                let (same, _) = Table::resume(now, table.entries());
                prop_assert_eq!(&same.covered, &table.covered);
            }
        }

        /// A grant exists exactly while a lease is armed, open, and before its deadline; every lapse is enforced until
        /// the lease is disarmed.
        #[test]
        fn grants_and_enforcements_follow_the_leases(steps in proptest::collection::vec(step(), 0..60)) {
            let mut table = Table::default();
            let mut now = at(0);
            let (mut granted, mut enforced) = (false, false);
            for step in steps {
                let mut effects = table.expire(now);
                match step {
                    Step::Wait(seconds) => {
                        now = now.plus(Duration::from_secs(seconds));
                        effects.extend(table.expire(now));
                    }
                    Step::Command(command) => effects.extend(table.handle(now, command).1),
                    Step::Restart => {
                        (granted, enforced) = (false, false);
                        let (next, more) = Table::resume(now, table.entries());
                        table = next;
                        effects = more;
                    }
                    Step::Stopped => drop(table.stopped(&name("db"))),
                }
                for effect in effects {
                    match effect {
                        Effect::Grant(_) => granted = true,
                        Effect::Extend(..) => prop_assert!(granted, "it never comes back"),
                        Effect::Withdraw(_) => granted = false,
                        Effect::Enforce(_) => enforced = true,
                        Effect::Forget(_) => enforced = false,
                        Effect::GiveUp(_) => prop_assert!(enforced, "it gives up only what it has tried"),
                    }
                }
                let listed = listed(&mut table);
                let open = listed.iter().any(|listed| !listed.lapsed && !listed.lease.closing);
                prop_assert_eq!(granted, open);
                prop_assert_eq!(enforced, listed.iter().any(|listed| listed.lapsed));
                prop_assert!(listed.iter().all(|listed| listed.lapsed || !now.has_passed(listed.lease.terms.deadline)));
            }
        }
    }
}
