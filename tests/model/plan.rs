//! What a search is to look at: the hosts, their timings, and which faults may happen how often.

use std::time::Duration;

use crate::election::Timings;

/// One of the steps of time, and R of most hosts.
pub const TICK: Duration = Duration::from_secs(1);

/// What may go wrong, or be ordered. Each happens at most as often as the [`Plan`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A call is given up on; its request or its answer is lost.
    Loss,
    /// A call is given up on, and its write is applied later.
    Orphan,
    /// A read shows what was replaced already.
    StaleRead,
    /// A daemon is killed.
    DaemonCrash,
    /// A host loses power.
    PowerLoss,
    /// Everything on a host stands still for a while, but its clocks.
    Freeze,
    /// A guard dies.
    GuardDeath,
    /// A unit dies by itself.
    UnitDeath,
    /// Somebody starts the unit with systemctl.
    StartByHand,
    /// The driver is told that the store is out of reach.
    Disconnect,
    /// The store is made anew.
    Wipe,
    /// A copy of the store is taken.
    Copy,
    /// The store is made anew from the copy; without one, from what it held before the last write.
    Restore,
    /// Somebody puts the record of the copy there again, without comparing.
    PutBack,
    /// The store goes back to the copy in place and does not say so, when all that is lost by it, but for renewals, is so
    /// old that whoever missed it was away for longer than counts as watching.
    GoBack,
    /// The key is purged: as if it had never been.
    Purge,
    /// The key is deleted.
    Delete,
    /// `putexctl clear`, at any time.
    Clear,
    /// `putexctl step-down`, in favour of the other node too.
    StepDown,
    /// A host is drained, and comes back.
    Drain,
    /// Other timings, by a reload.
    Reload,
    /// A clock runs at another rate, within the stated error.
    Rate,
    /// One of a host's two clocks is bent by far more, as chrony does.
    Slew,
    /// (a) dropped: a won write is lost again, and its revision is given anew.
    RollBack,
    /// (a) dropped: the store is made anew under its old incarnation.
    SilentWipe,
    /// (b) dropped: both clocks of a host are off by far more than stated.
    WrongRate,
    /// (b) dropped: a whole virtual machine stands still, and its clocks too.
    StoppedClock,
    /// (c) dropped: nothing that the guard or systemd wants to stop is stopped any more.
    NobodyEnforces,
    /// (c) dropped: SIGKILL does not empty the control group.
    Unkillable,
    /// (d) dropped: the program is run outside of its unit.
    Stray,
}

impl Fault {
    pub const COUNT: usize = Self::Stray as usize + 1;
}

/// As often as it likes.
pub const ALWAYS: u8 = u8::MAX;

/// A host as it begins.
#[derive(Debug, Clone)]
pub struct HostPlan {
    pub name: &'static str,
    pub timings: Timings,
    /// The rates of its clocks in millionths of real time.
    pub rate: u64,
    /// Its daemon runs from the beginning.
    pub up: bool,
    /// Whether its daemon, its network and its systemd may be late, for as long as they like. If not, time passes only
    /// when all that is due there is done.
    pub late: bool,
}

/// One search.
#[expect(clippy::struct_excessive_bools, reason = "each is an independent choice")]
#[derive(Debug, Clone)]
pub struct Plan {
    pub hosts: Vec<HostPlan>,
    /// How often each fault may happen.
    pub faults: [u8; Fault::COUNT],
    /// What a reload may change the timings to.
    pub reloads: Vec<Timings>,
    /// Time also stops between two ticks, where a guard or a daemon has something to do: for clocks that differ.
    pub exact: bool,
    /// The first state is one in which a unit is active and another host stands by, not that of an empty store.
    pub begins_served: bool,
    /// The guard's replies come late, too.
    pub slow_guard: bool,
    /// Writes that were under way when the store was made anew are applied to the new one.
    pub blind_writes: bool,
    /// How much longer than its budget a stop may take.
    pub overrun: Duration,
    /// Hints of changes reach the daemons.
    pub hints: bool,
    /// At any point all faults may end for good: whoever is late is so no longer, and what is broken is repaired.
    pub calm: bool,
}

impl Plan {
    /// Hosts with these timings and no faults but pauses of any daemon for any time.
    pub fn of(timings: &[Timings]) -> Self {
        let names = ["h1", "h2", "h3"];
        let host = |(name, timings): (&'static str, &Timings)| HostPlan {
            name,
            timings: *timings,
            rate: 1_000_000,
            up: true,
            late: true,
        };
        Self {
            hosts: names.into_iter().zip(timings).map(host).collect(),
            faults: [0; Fault::COUNT],
            reloads: Vec::new(),
            exact: false,
            begins_served: true,
            slow_guard: false,
            blind_writes: true,
            overrun: Duration::ZERO,
            hints: false,
            calm: false,
        }
    }

    #[must_use]
    pub fn with(mut self, faults: &[(Fault, u8)]) -> Self {
        for (fault, times) in faults {
            self.faults[*fault as usize] = *times;
        }
        self
    }

    /// The longest hold that any host uses or may be given.
    pub fn longest_hold(&self) -> Duration {
        let all = self.hosts.iter().map(|host| &host.timings).chain(&self.reloads);
        all.map(|timings| timings.hold().max(timings.longest_hold.unwrap_or_default())).max().unwrap_or_default()
    }

    /// The longest time that anybody waits for an unknown holder.
    pub fn longest_wait(&self) -> Duration {
        let hold = self.longest_hold();
        let all = self.hosts.iter().map(|host| &host.timings).chain(&self.reloads);
        all.map(|timings| timings.wait(hold)).max().unwrap_or_default()
    }

    pub fn longest_lease(&self) -> Duration {
        let all = self.hosts.iter().map(|host| &host.timings).chain(&self.reloads);
        all.map(Timings::lease).max().unwrap_or_default()
    }

    /// The longest real time in which any host may have had no answer and count as watching all the same.
    pub fn longest_gap(&self) -> Duration {
        let all = self.hosts.iter().map(|host| &host.timings).chain(&self.reloads);
        let real = |timings: &Timings| {
            let rate = 1_000_000 - timings.clock_error_ppm;
            timings.watch_gap().mul_f64(1_000_000.0 / f64::from(rate))
        };
        all.map(real).max().unwrap_or_default()
    }

    pub fn longest_renewal(&self) -> Duration {
        let all = self.hosts.iter().map(|host| &host.timings).chain(&self.reloads);
        all.map(|timings| timings.renew_interval).max().unwrap_or_default()
    }

    /// A store that is made anew forgets the tokens of holders that a host has never seen; the clock of the wall, which
    /// stands for them then, stands still here.
    pub fn tokens_may_fall(&self) -> bool {
        let forgetting =
            [Fault::Wipe, Fault::Restore, Fault::PutBack, Fault::GoBack, Fault::Purge, Fault::Delete, Fault::Clear];
        let dropped = [Fault::RollBack, Fault::SilentWipe];
        forgetting.iter().chain(&dropped).any(|fault| self.faults[*fault as usize] > 0)
    }

    /// How many releases with a back-off the faults can bring about on one host.
    fn releases(&self) -> u32 {
        let causes = [Fault::GuardDeath, Fault::UnitDeath, Fault::StepDown, Fault::Drain];
        let ordered: u32 = causes.iter().map(|fault| u32::from(self.faults[*fault as usize])).sum();
        // One more for an arm that comes too late.
        ordered + 1
    }

    /// Within this long after the last fault one unit is active: what is left of a stop that was under way, a back-off,
    /// a read, and an unknown holder's whole time; and once more R and T for a late write that is seen after that, or for
    /// a claim that conflicts.
    pub fn bound(&self) -> Duration {
        let back_off = if self.releases() == 0 {
            Duration::ZERO
        } else {
            (self.longest_renewal() * 2_u32.saturating_pow(self.releases().min(8))).min(self.longest_lease() * 10)
        };
        let renew = self.longest_renewal();
        self.longest_hold() + back_off + renew * 2 + self.longest_wait() + self.longest_lease()
    }
}
