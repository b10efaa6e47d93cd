//! Draws what a campaign does from its seed, and from nothing else.

use std::{fmt, time::Duration};

use super::rng::Rng;
use crate::lockstore::Lockstore;

/// Time from the first fault of a step to the beginning of its last one.
const SPREAD_MS: u64 = 3_000;
/// Range of a fault's span. systemd's watchdog kills a daemon that hangs only after more than the upper limit.
const SPAN_MS: (u64, u64) = (300, 10_000);
/// Minimum span for which a host is away, so that the lock changes hands meanwhile and the new tenure is old enough to be
/// lost.
const AWAY: Duration = Duration::from_secs(6);
/// How often a fault that does not fit the others is drawn again before the step does without it.
const DRAWS: usize = 20;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    PowerLoss,
    SilentCut,
    DeafCut,
    MuteCut,
    HostFrozen,
    DaemonStopped,
    DaemonKilled,
    DaemonRestarted,
    GuardStopped,
    GuardKilled,
    WatcherStopped,
    WatcherKilled,
    /// The guard and its watcher at the same moment.
    GuardPairStopped,
    /// putexd and the guard at the same moment.
    BothStopped,
    BothKilled,
    /// putexd, the guard and its watcher at the same moment.
    AllStopped,
    SystemdStopped,
    /// putexd and PID 1 at the same moment: the guard is left alone.
    DaemonAndSystemdStopped,
    SystemdReexecuted,
    BusStopped,
    BusKilled,
    ServerStopped,
    ServerKilled,
    ServerDiskFull,
    RunFull,
    WallClockJumped,
    UnitFilesChanged,
    UnitDeaf,
    UnitLeavesChild,
    UnitFrozen,
    UnitKilled,
    /// systemd starts the unit again in another slice.
    UnitMoved,
    /// The unit's main process moves to another control group.
    UnitLeft,
    UnitStartedByHand,
    SteppedDown,
    /// The service has another key on one host.
    ServiceRenamed,
    /// As [`Self::ServiceRenamed`], and an operator confirms the new key, and later the old one again.
    ServiceAdopted,
    /// A host is away, and the store goes back to what it was when that began.
    CutAndGoneBack,
    FrozenAndGoneBack,
    // The next four befall the store rather than a host.
    ServersRolled,
    ServersAway,
    StoreMadeAnew,
    StoreRolledBack,
}

impl Fault {
    pub const ALL: [Self; 43] = [
        Self::PowerLoss,
        Self::SilentCut,
        Self::DeafCut,
        Self::MuteCut,
        Self::HostFrozen,
        Self::DaemonStopped,
        Self::DaemonKilled,
        Self::DaemonRestarted,
        Self::GuardStopped,
        Self::GuardKilled,
        Self::WatcherStopped,
        Self::WatcherKilled,
        Self::GuardPairStopped,
        Self::BothStopped,
        Self::BothKilled,
        Self::AllStopped,
        Self::SystemdStopped,
        Self::DaemonAndSystemdStopped,
        Self::SystemdReexecuted,
        Self::BusStopped,
        Self::BusKilled,
        Self::ServerStopped,
        Self::ServerKilled,
        Self::ServerDiskFull,
        Self::RunFull,
        Self::WallClockJumped,
        Self::UnitFilesChanged,
        Self::UnitDeaf,
        Self::UnitLeavesChild,
        Self::UnitFrozen,
        Self::UnitKilled,
        Self::UnitMoved,
        Self::UnitLeft,
        Self::UnitStartedByHand,
        Self::SteppedDown,
        Self::ServiceRenamed,
        Self::ServiceAdopted,
        Self::CutAndGoneBack,
        Self::FrozenAndGoneBack,
        Self::ServersRolled,
        Self::ServersAway,
        Self::StoreMadeAnew,
        Self::StoreRolledBack,
    ];

    /// Faults that make the active host stop its unit. One is added to a step that would otherwise have no visible
    /// effect.
    const MOVING: [Self; 6] = [
        Self::SilentCut,
        Self::DaemonStopped,
        Self::DaemonAndSystemdStopped,
        Self::GuardKilled,
        Self::SteppedDown,
        Self::ServersAway,
    ];

    /// All faults that can befall a store of this kind, and the hosts.
    pub fn with(store: Lockstore) -> Vec<Self> {
        let of_servers = |fault| {
            matches!(
                fault,
                Self::ServerStopped
                    | Self::ServerKilled
                    | Self::ServerDiskFull
                    | Self::ServersRolled
            )
        };
        let there = |fault: &Self| match store {
            Lockstore::Directory => !of_servers(*fault),
            Lockstore::Etcd => *fault != Self::StoreMadeAnew,
            Lockstore::Nats | Lockstore::Postgres => true,
        };
        Self::ALL.into_iter().filter(there).collect()
    }

    /// The name of the fault in the tables of the report.
    pub fn words(self) -> &'static str {
        match self {
            Self::PowerLoss => "power loss",
            Self::SilentCut => "silent partition",
            Self::DeafCut => "partition, hears nothing",
            Self::MuteCut => "partition, is not heard",
            Self::HostFrozen => "whole host frozen",
            Self::DaemonStopped => "SIGSTOP of putexd",
            Self::DaemonKilled => "SIGKILL of putexd",
            Self::DaemonRestarted => "putexd restarted",
            Self::GuardStopped => "SIGSTOP of the guard",
            Self::GuardKilled => "SIGKILL of the guard",
            Self::WatcherStopped => "SIGSTOP of the watcher",
            Self::WatcherKilled => "SIGKILL of the watcher",
            Self::GuardPairStopped => "SIGSTOP, guard, watcher",
            Self::BothStopped => "SIGSTOP of both at once",
            Self::BothKilled => "SIGKILL of both at once",
            Self::AllStopped => "SIGSTOP of all three",
            Self::SystemdStopped => "SIGSTOP of PID 1",
            Self::DaemonAndSystemdStopped => "SIGSTOP, putexd, PID 1",
            Self::SystemdReexecuted => "daemon-reexec",
            Self::BusStopped => "SIGSTOP of the bus",
            Self::BusKilled => "SIGKILL of the bus",
            Self::ServerStopped => "SIGSTOP of a server",
            Self::ServerKilled => "SIGKILL of a server",
            Self::ServerDiskFull => "disk full, of a server",
            Self::RunFull => "/run full",
            Self::WallClockJumped => "wall clock jumps",
            Self::UnitFilesChanged => "unit files changed",
            Self::UnitDeaf => "unit ignores SIGTERM",
            Self::UnitLeavesChild => "unit leaves processes",
            Self::UnitFrozen => "unit frozen",
            Self::UnitKilled => "SIGKILL of the unit",
            Self::UnitMoved => "unit in another slice",
            Self::UnitLeft => "unit leaves its group",
            Self::UnitStartedByHand => "unit started by hand",
            Self::SteppedDown => "step-down",
            Self::ServiceRenamed => "service renamed",
            Self::ServiceAdopted => "renamed and adopted",
            Self::CutAndGoneBack => "cut off, store goes back",
            Self::FrozenAndGoneBack => "frozen, store goes back",
            Self::ServersRolled => "servers killed in turn",
            Self::ServersAway => "store away",
            Self::StoreMadeAnew => "store made anew",
            Self::StoreRolledBack => "store rolled back",
        }
    }

    /// Whether the fault befalls the store rather than a host.
    pub fn is_global(self) -> bool {
        matches!(
            self,
            Self::ServersRolled | Self::ServersAway | Self::StoreMadeAnew | Self::StoreRolledBack
        )
    }

    /// Whether the fault is gone after the host went down and came back.
    pub fn ends_with_host(self) -> bool {
        !self.is_global() && !self.is_cut() && !self.is_of_files() && self != Self::PowerLoss
    }

    /// Whether the fault changes files on the disk of the host, which have to be changed back.
    fn is_of_files(self) -> bool {
        matches!(
            self,
            Self::UnitMoved | Self::ServiceRenamed | Self::ServiceAdopted
        )
    }

    /// Whether the store goes back while a host is away.
    pub fn goes_back(self) -> bool {
        matches!(self, Self::CutAndGoneBack | Self::FrozenAndGoneBack)
    }

    fn goes_back_to_copy(self) -> bool {
        self.goes_back() || self == Self::StoreRolledBack
    }

    /// Whether the content of the store is replaced, on all servers at once.
    fn changes_store(self) -> bool {
        self.goes_back_to_copy() || self == Self::StoreMadeAnew
    }

    /// Whether the whole host stands still meanwhile.
    pub fn freezes_host(self) -> bool {
        matches!(self, Self::HostFrozen | Self::FrozenAndGoneBack)
    }

    /// Whether nothing else may be wrong yet when the fault is injected: the lease is fresh, and putexd sees what
    /// happens to the unit.
    fn comes_first(self) -> bool {
        self.is_of_both() || self.goes_back() || matches!(self, Self::UnitMoved | Self::UnitLeft)
    }

    /// Whether the fault is over at once, with nothing to undo.
    fn is_brief(self) -> bool {
        matches!(
            self,
            Self::DaemonKilled
                | Self::DaemonRestarted
                | Self::GuardKilled
                | Self::WatcherKilled
                | Self::BothKilled
                | Self::SystemdReexecuted
                | Self::BusKilled
                | Self::ServerKilled
                | Self::UnitFilesChanged
                | Self::UnitKilled
                | Self::UnitStartedByHand
                | Self::SteppedDown
                | Self::ServersRolled
                | Self::StoreMadeAnew
                | Self::StoreRolledBack
        )
    }

    /// Whether the fault concerns the unit, which only the active host runs.
    fn is_of_the_unit(self) -> bool {
        matches!(
            self,
            Self::UnitDeaf
                | Self::UnitLeavesChild
                | Self::UnitFrozen
                | Self::UnitKilled
                | Self::UnitMoved
                | Self::UnitLeft
                | Self::SteppedDown
        )
    }

    /// Whether the fault shows only when another one makes the host stop the unit.
    fn needs_company(self) -> bool {
        self.goes_back()
            || matches!(
                self,
                Self::UnitDeaf | Self::UnitLeavesChild | Self::UnitFrozen | Self::UnitMoved
            )
    }

    /// Whether the store has one server less meanwhile.
    fn takes_a_server(self) -> bool {
        self.is_cut()
            || self.freezes_host()
            || matches!(
                self,
                Self::PowerLoss
                    | Self::ServerStopped
                    | Self::ServerKilled
                    | Self::ServerDiskFull
                    | Self::ServersRolled
                    | Self::ServersAway
                    | Self::StoreMadeAnew
                    | Self::StoreRolledBack
            )
    }

    fn is_cut(self) -> bool {
        matches!(
            self,
            Self::SilentCut | Self::DeafCut | Self::MuteCut | Self::CutAndGoneBack
        )
    }

    fn is_of_daemon(self) -> bool {
        self.is_of_both()
            || matches!(
                self,
                Self::DaemonStopped
                    | Self::DaemonKilled
                    | Self::DaemonRestarted
                    | Self::DaemonAndSystemdStopped
            )
    }

    fn is_of_guard(self) -> bool {
        self.is_of_both()
            || matches!(
                self,
                Self::GuardStopped | Self::GuardKilled | Self::GuardPairStopped
            )
    }

    fn is_of_both(self) -> bool {
        matches!(
            self,
            Self::BothStopped | Self::BothKilled | Self::AllStopped
        )
    }

    fn stops_systemd(self) -> bool {
        matches!(self, Self::SystemdStopped | Self::DaemonAndSystemdStopped)
    }

    /// Whether putexd cannot look at the unit meanwhile.
    fn blinds_daemon(self) -> bool {
        self.is_of_daemon()
            || self.stops_systemd()
            || self.freezes_host()
            || matches!(
                self,
                Self::SystemdReexecuted | Self::BusStopped | Self::BusKilled
            )
    }
}

/// The host that a fault befalls, by its role when the step begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Active,
    FirstStandby,
    SecondStandby,
}

impl Role {
    fn draw(rng: &mut Rng) -> Self {
        match rng.below(10) {
            0..6 => Self::Active,
            6..8 => Self::FirstStandby,
            _ => Self::SecondStandby,
        }
    }
}

/// One fault of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    pub fault: Fault,
    /// Without meaning for a fault of the store.
    pub role: Role,
    /// Offset from the beginning of the step.
    pub from: Duration,
    /// Duration of the fault; zero for one that is over at once.
    pub span: Duration,
    /// The jump of the wall clock, in seconds.
    pub jump_s: i64,
}

impl Planned {
    fn draw(rng: &mut Rng, among: &[Fault], first: bool) -> Self {
        let fault =
            among[usize::try_from(rng.below(among.len() as u64)).expect("there are few faults")];
        let role = Role::draw(rng);
        let from = rng.millis(0, SPREAD_MS);
        let span = rng.millis(SPAN_MS.0, SPAN_MS.1)
            + if fault.goes_back() {
                AWAY
            } else {
                Duration::ZERO
            };
        let jump = i64::try_from(rng.below(7_200)).expect("two hours") - 3_600;
        Self {
            fault,
            role: if fault.is_of_the_unit() {
                Role::Active
            } else {
                role
            },
            from: if first || fault.comes_first() {
                Duration::ZERO
            } else {
                from
            },
            span: if fault.is_brief() {
                Duration::ZERO
            } else {
                span
            },
            jump_s: jump,
        }
    }

    pub fn until(&self) -> Duration {
        self.from + self.span
    }

    /// Whether the fault makes the active host stop its unit.
    fn moves(&self) -> bool {
        let moves = Fault::MOVING.contains(&self.fault) || self.fault.goes_back();
        moves && (self.role == Role::Active || self.fault.is_global())
    }

    fn shares_host_with(&self, other: &Self) -> bool {
        self.role == other.role && !self.fault.is_global() && !other.fault.is_global()
    }

    /// Whether the two faults may be injected together. The documentation of the campaign says which may not.
    fn fits(&self, other: &Self) -> bool {
        let pair = [self.fault, other.fault];
        let either = |is: fn(Fault) -> bool| pair.into_iter().any(is);
        let one_and_other = |one: fn(Fault) -> bool, other: fn(Fault) -> bool| {
            (one(pair[0]) && other(pair[1])) || (one(pair[1]) && other(pair[0]))
        };
        let are = |one: Fault, other: Fault| pair == [one, other] || pair == [other, one];
        if one_and_other(Fault::changes_store, Fault::takes_a_server)
            || one_and_other(Fault::is_global, Fault::is_global)
            || one_and_other(Fault::is_global, Fault::goes_back)
            || one_and_other(Fault::changes_store, |fault| fault == Fault::RunFull)
            || one_and_other(
                |fault| fault.is_global() || fault.goes_back(),
                |fault| fault == Fault::ServiceAdopted,
            )
            || one_and_other(
                |fault| fault == Fault::ServersAway || fault.goes_back_to_copy(),
                |fault| fault == Fault::PowerLoss || fault.freezes_host() || fault.stops_systemd(),
            )
        {
            return false;
        }
        if !self.shares_host_with(other) {
            return true;
        }
        if self.fault == other.fault || (self.fault.is_cut() && other.fault.is_cut()) {
            return false;
        }
        if either(|fault| fault == Fault::PowerLoss) {
            return either(Fault::is_cut);
        }
        let stands_still =
            |fault: Fault| fault.freezes_host() || fault.stops_systemd() || fault == Fault::RunFull;
        !(one_and_other(Fault::is_of_guard, Fault::is_of_daemon)
            || one_and_other(Fault::is_of_guard, Fault::freezes_host)
            || one_and_other(Fault::is_of_both, stands_still)
            || one_and_other(Fault::stops_systemd, |fault| {
                fault == Fault::DaemonAndSystemdStopped
            })
            || one_and_other(
                |fault| fault == Fault::UnitLeft,
                |fault| fault.is_of_guard() || fault.blinds_daemon(),
            )
            || are(Fault::UnitMoved, Fault::UnitKilled)
            || are(Fault::UnitMoved, Fault::UnitLeft)
            || are(Fault::ServiceRenamed, Fault::ServiceAdopted))
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, span) = (self.from.as_secs_f64(), self.span.as_secs_f64());
        write!(formatter, "+{from:.1} s {}", self.fault.words())?;
        if !self.fault.is_global() {
            write!(formatter, " of {:?}", self.role)?;
        }
        if self.fault == Fault::WallClockJumped {
            write!(formatter, " by {} s", self.jump_s)?;
        }
        if self.fault.is_brief() {
            Ok(())
        } else {
            write!(formatter, " for {span:.1} s")
        }
    }
}

/// Draws the next step: one to three faults, the first of them at once, and one more where they would not show
/// otherwise.
pub fn draw(rng: &mut Rng, among: &[Fault]) -> Vec<Planned> {
    let count = 1 + rng.below(3);
    let mut step: Vec<Planned> = Vec::new();
    for _ in 0..count {
        add(rng, among, &mut step);
    }
    if step.iter().any(|planned| planned.fault.needs_company()) && !step.iter().any(Planned::moves)
    {
        add(rng, &Fault::MOVING, &mut step);
    }
    step
}

fn add(rng: &mut Rng, among: &[Fault], step: &mut Vec<Planned>) {
    for _ in 0..DRAWS {
        let mut drawn = Planned::draw(rng, among, step.is_empty());
        if among == Fault::MOVING {
            drawn.role = Role::Active;
        }
        if step.iter().all(|other| drawn.fits(other)) {
            step.push(drawn);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn steps(seed: u64) -> Vec<Vec<Planned>> {
        let mut rng = Rng::new(seed);
        (0..2_000).map(|_| draw(&mut rng, &Fault::ALL)).collect()
    }

    #[test]
    fn a_seed_draws_the_same_steps_and_another_seed_others() {
        assert_eq!(steps(1), steps(1));
        assert_ne!(steps(1), steps(2));
    }

    #[test]
    fn every_fault_is_drawn_alone_or_in_company_and_no_step_is_empty() {
        let steps = steps(3);
        let drawn: BTreeSet<Fault> = steps
            .iter()
            .flatten()
            .map(|planned| planned.fault)
            .collect();
        assert_eq!(drawn.len(), Fault::ALL.len());
        assert!(
            steps
                .iter()
                .all(|step| !step.is_empty() && step[0].from == Duration::ZERO)
        );
        assert!(
            steps.iter().any(|step| step.len() == 1) && steps.iter().any(|step| step.len() == 3)
        );
    }

    #[test]
    fn what_the_assumptions_exclude_is_never_drawn() {
        for step in steps(4) {
            let pairs = step
                .iter()
                .flat_map(|one| step.iter().map(move |other| (one, other)));
            for (one, other) in pairs.filter(|(one, other)| !std::ptr::eq(*one, *other)) {
                let (fault, beside) = (one.fault, other.fault);
                let here = one.shares_host_with(other);
                assert!(
                    !(here && fault.is_of_guard() && beside.is_of_daemon()),
                    "{one} and {other}"
                );
                assert!(
                    !(here && fault.is_of_both() && beside.stops_systemd()),
                    "{one} and {other}"
                );
                assert!(
                    !(here && fault == Fault::UnitLeft && beside.blinds_daemon()),
                    "{one} and {other}"
                );
                assert!(
                    !(fault.changes_store() && beside.takes_a_server()),
                    "{one} and {other}"
                );
            }
        }
    }

    #[test]
    fn what_putexd_has_to_see_begins_its_step_and_a_store_that_goes_back_has_something_to_lose() {
        for planned in steps(5).into_iter().flatten() {
            assert!(
                !planned.fault.comes_first() || planned.from == Duration::ZERO,
                "{planned}"
            );
        }
        let back: Vec<_> = steps(6)
            .into_iter()
            .filter(|step| step.iter().any(|planned| planned.fault.goes_back()))
            .collect();
        let moves = |step: &&Vec<Planned>| step.iter().any(Planned::moves);
        let moving = back.iter().filter(moves).count();
        assert!(moving * 20 > back.len() * 19, "{moving} of {}", back.len());
    }
}
