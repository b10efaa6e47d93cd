//! What a campaign does, drawn from its seed and from nothing else.

use std::fmt;
use std::time::Duration;

use super::rng::Rng;
use crate::lockstore::Lockstore;

/// From the first fault of a step to the beginning of its last.
const SPREAD_MS: u64 = 3_000;
/// How long a fault lasts. A daemon that systemd's watchdog misses is killed only after longer than that.
const SPAN_MS: (u64, u64) = (300, 10_000);
/// How often a draw that does not fit to the others is repeated before the step does without it.
const DRAWS: usize = 20;

/// What is broken.
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
    /// putexd and the guard at the same moment.
    BothStopped,
    BothKilled,
    SystemdStopped,
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
    UnitStartedByHand,
    SteppedDown,
    // Of the store, rather than of a host.
    ServersRolled,
    ServersAway,
    StoreMadeAnew,
    StoreRolledBack,
}

impl Fault {
    pub const ALL: [Self; 32] = [
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
        Self::BothStopped,
        Self::BothKilled,
        Self::SystemdStopped,
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
        Self::UnitStartedByHand,
        Self::SteppedDown,
        Self::ServersRolled,
        Self::ServersAway,
        Self::StoreMadeAnew,
        Self::StoreRolledBack,
    ];

    /// What makes the active host stop its unit, for steps that would end without anything having happened.
    const MOVING: [Self; 5] =
        [Self::SilentCut, Self::DaemonStopped, Self::GuardKilled, Self::SteppedDown, Self::ServersAway];

    /// All that can befall a store of this kind, and the hosts.
    pub fn with(store: Lockstore) -> Vec<Self> {
        let of_servers = |fault| {
            matches!(fault, Self::ServerStopped | Self::ServerKilled | Self::ServerDiskFull | Self::ServersRolled)
        };
        let there = |fault: &Self| match store {
            Lockstore::Directory => !of_servers(*fault),
            Lockstore::Etcd => *fault != Self::StoreMadeAnew,
            Lockstore::Nats | Lockstore::Postgres => true,
        };
        Self::ALL.into_iter().filter(there).collect()
    }

    /// As the tables have it.
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
            Self::BothStopped => "SIGSTOP of both at once",
            Self::BothKilled => "SIGKILL of both at once",
            Self::SystemdStopped => "SIGSTOP of PID 1",
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
            Self::UnitStartedByHand => "unit started by hand",
            Self::SteppedDown => "step-down",
            Self::ServersRolled => "servers killed in turn",
            Self::ServersAway => "store away",
            Self::StoreMadeAnew => "store made anew",
            Self::StoreRolledBack => "store rolled back",
        }
    }

    /// It befalls the store, and has no host.
    pub fn is_global(self) -> bool {
        matches!(self, Self::ServersRolled | Self::ServersAway | Self::StoreMadeAnew | Self::StoreRolledBack)
    }

    /// A host that goes down and comes back is rid of it.
    pub fn ends_with_host(self) -> bool {
        !self.is_global() && !self.is_cut() && self != Self::PowerLoss
    }

    /// It is over at once; there is nothing to undo.
    fn is_brief(self) -> bool {
        matches!(
            self,
            Self::DaemonKilled
                | Self::DaemonRestarted
                | Self::GuardKilled
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

    /// It concerns the unit, which only the active host runs.
    fn is_of_the_unit(self) -> bool {
        matches!(self, Self::UnitDeaf | Self::UnitLeavesChild | Self::UnitFrozen | Self::UnitKilled | Self::SteppedDown)
    }

    /// It shows only when something else has the unit stopped.
    fn needs_company(self) -> bool {
        matches!(self, Self::UnitDeaf | Self::UnitLeavesChild | Self::UnitFrozen)
    }

    /// The store has one server less meanwhile.
    fn takes_a_server(self) -> bool {
        self.is_cut()
            || matches!(
                self,
                Self::PowerLoss
                    | Self::HostFrozen
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
        matches!(self, Self::SilentCut | Self::DeafCut | Self::MuteCut)
    }

    fn is_of_daemon(self) -> bool {
        self.is_of_both() || matches!(self, Self::DaemonStopped | Self::DaemonKilled | Self::DaemonRestarted)
    }

    fn is_of_guard(self) -> bool {
        self.is_of_both() || matches!(self, Self::GuardStopped | Self::GuardKilled)
    }

    fn is_of_both(self) -> bool {
        matches!(self, Self::BothStopped | Self::BothKilled)
    }
}

/// Which host it befalls: what its part is when the step begins.
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
    /// Of no meaning for what befalls the store.
    pub role: Role,
    /// After the beginning of the step.
    pub from: Duration,
    /// Zero for what is over at once.
    pub span: Duration,
    /// By how much a clock jumps.
    pub jump_s: i64,
}

impl Planned {
    fn draw(rng: &mut Rng, among: &[Fault], first: bool) -> Self {
        let fault = among[usize::try_from(rng.below(among.len() as u64)).expect("there are few faults")];
        let role = Role::draw(rng);
        let from = rng.millis(0, SPREAD_MS);
        let span = rng.millis(SPAN_MS.0, SPAN_MS.1);
        let jump = i64::try_from(rng.below(7_200)).expect("two hours") - 3_600;
        Self {
            fault,
            role: if fault.is_of_the_unit() { Role::Active } else { role },
            from: if first || fault.is_of_both() { Duration::ZERO } else { from },
            span: if fault.is_brief() { Duration::ZERO } else { span },
            jump_s: jump,
        }
    }

    pub fn until(&self) -> Duration {
        self.from + self.span
    }

    fn shares_host_with(&self, other: &Self) -> bool {
        self.role == other.role && !self.fault.is_global() && !other.fault.is_global()
    }

    /// Whether the two may be thrown together; what may not is in the documentation of the campaign.
    fn fits(&self, other: &Self) -> bool {
        let pair = [self.fault, other.fault];
        let either = |is: fn(Fault) -> bool| pair.into_iter().any(is);
        let one_and_other = |one: fn(Fault) -> bool, other: fn(Fault) -> bool| {
            (one(pair[0]) && other(pair[1])) || (one(pair[1]) && other(pair[0]))
        };
        let is_of_store = |fault: Fault| matches!(fault, Fault::StoreMadeAnew | Fault::StoreRolledBack);
        if one_and_other(is_of_store, Fault::takes_a_server)
            || one_and_other(Fault::is_global, Fault::is_global)
            || one_and_other(is_of_store, |fault| fault == Fault::RunFull)
            || one_and_other(
                |fault| matches!(fault, Fault::ServersAway | Fault::StoreRolledBack),
                |fault| matches!(fault, Fault::PowerLoss | Fault::HostFrozen | Fault::SystemdStopped),
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
        let stands_still = |fault| matches!(fault, Fault::HostFrozen | Fault::SystemdStopped | Fault::RunFull);
        !(one_and_other(Fault::is_of_guard, Fault::is_of_daemon)
            || one_and_other(Fault::is_of_guard, |fault| fault == Fault::HostFrozen)
            || one_and_other(Fault::is_of_both, stands_still))
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
        if self.fault.is_brief() { Ok(()) } else { write!(formatter, " for {span:.1} s") }
    }
}

/// The next step: one to three faults, the first of them at once, and what it takes for them to show.
pub fn draw(rng: &mut Rng, among: &[Fault]) -> Vec<Planned> {
    let count = 1 + rng.below(3);
    let mut step: Vec<Planned> = Vec::new();
    for _ in 0..count {
        add(rng, among, &mut step);
    }
    let moves = |planned: &Planned| {
        Fault::MOVING.contains(&planned.fault) && (planned.role == Role::Active || planned.fault.is_global())
    };
    if step.iter().any(|planned| planned.fault.needs_company()) && !step.iter().any(moves) {
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
        let drawn: BTreeSet<Fault> = steps.iter().flatten().map(|planned| planned.fault).collect();
        assert_eq!(drawn.len(), Fault::ALL.len());
        assert!(steps.iter().all(|step| !step.is_empty() && step[0].from == Duration::ZERO));
        assert!(steps.iter().any(|step| step.len() == 1) && steps.iter().any(|step| step.len() == 3));
    }

    #[test]
    fn what_the_assumptions_exclude_is_never_drawn() {
        for step in steps(4) {
            for (index, one) in step.iter().enumerate() {
                for other in &step[index + 1..] {
                    if one.shares_host_with(other) {
                        for (one, other) in [(one, other), (other, one)] {
                            assert!(!(one.fault.is_of_guard() && other.fault.is_of_daemon()), "{one} and {other}");
                        }
                    }
                }
            }
        }
    }
}
