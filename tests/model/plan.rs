//! What a search covers: the hosts, their timings, and how often each fault may happen.

use std::time::Duration;

use crate::election::Timings;

/// The length of one step of time, which is also R of most hosts.
pub const TICK: Duration = Duration::from_secs(1);

/// The length of a pause.
pub const PAUSE: Duration = Duration::from_secs(6);

/// A fault or an order. Each happens at most as often as the [`Plan`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The caller gives up a call, and its request or its answer is lost.
    Loss,
    /// The caller gives up a call, and its write is applied later.
    Orphan,
    /// A read shows what was replaced before.
    StaleRead,
    /// A daemon is killed.
    DaemonCrash,
    /// A host loses power.
    PowerLoss,
    /// Everything on a host stands still for a while, except its clocks.
    Freeze,
    /// A guard dies.
    GuardDeath,
    /// A unit dies by itself.
    UnitDeath,
    /// Somebody starts the unit with systemctl.
    StartByHand,
    /// The driver is told that the store cannot be reached.
    Disconnect,
    /// The store is replaced by an empty one, with another incarnation.
    Wipe,
    /// A copy of the store is taken.
    Copy,
    /// The store is made anew from the copy; without a copy, from what it held before the last write.
    Restore,
    /// Somebody writes the record of the copy again, without a comparison.
    PutBack,
    /// The store goes back to the copy in place and does not say so. It does so only when all that is lost, except renewals, is
    /// so old that a host that missed it was away for longer than counts as watching.
    GoBack,
    /// The key is purged, as if it had never existed.
    Purge,
    /// The key is deleted, which leaves a tombstone.
    Delete,
    /// An operator runs `putexctl clear`, at any time.
    Clear,
    /// An operator runs `putexctl step-down`, with or without another node as the next holder.
    StepDown,
    /// A host is drained, and comes back.
    Drain,
    /// An operator runs `putexctl stop`, on any host.
    Stop,
    /// An operator runs `putexctl start`, on any host.
    StartAgain,
    /// An operator runs `putexctl pause` for [`PAUSE`].
    Pause,
    /// An operator runs `putexctl resume`.
    Resume,
    /// An operator runs `putexctl step-down` on a host that does not hold the lock.
    OrderStepDown,
    /// An operator runs `putexctl pause` for [`PAUSE`] on a host that does not hold the lock.
    OrderPause,
    /// An operator runs `putexctl resume` on a host that does not hold the lock.
    OrderResume,
    /// A reload changes the timings.
    Reload,
    /// The fencing of others fails.
    FenceFails,
    /// Of two writes from one base that come at the same moment, the store keeps both, and answers the second as a conflict.
    KeepBoth,
    /// A clock runs at another rate, within the stated error.
    Rate,
    /// One of a host's two clocks has a far larger error, as when chrony slews it.
    Slew,
    /// (a) dropped: a won write is lost, and its revision is used again.
    RollBack,
    /// (a) dropped: the store is made anew under its old incarnation.
    SilentWipe,
    /// (b) dropped: both clocks of a host have a far larger error than stated.
    WrongRate,
    /// (b) dropped: a whole virtual machine stands still, and so do its clocks.
    StoppedClock,
    /// (c) dropped: neither the guard nor systemd can stop anything any more.
    NobodyEnforces,
    /// (c) dropped: SIGKILL does not empty the control group.
    Unkillable,
    /// (d) dropped: the program is run outside of its unit.
    Stray,
    /// A host that has been given a lease says that it gave up before.
    FalseGaveUp,
    /// Asked what words replaced, the store names the record with other words, whatever came in between.
    FalseAnswer,
    /// As [`Wipe`](Self::Wipe), but not while the lock has a record with a passing hold that some other host has not seen.
    WipeWhatIsKnown,
    /// A daemon that is down forgets the passing holds that it has seen.
    ForgetPassing,
    /// Somebody writes that the holder's pause is over, with everything in the record that shows it, while the guard still has the late
    /// deadline.
    FalseResume,
}

impl Fault {
    pub const COUNT: usize = Self::FalseResume as usize + 1;
}

/// A fault that may happen any number of times.
pub const ALWAYS: u8 = u8::MAX;

/// A host at the beginning of a search.
#[derive(Debug, Clone)]
pub struct HostPlan {
    pub name: &'static str,
    pub timings: Timings,
    /// The rate of both of its clocks, in millionths of real time.
    pub rate: u64,
    /// Whether its daemon runs from the beginning.
    pub up: bool,
    /// Whether its daemon, its network and its systemd may be late, for any time. If not, time passes only when everything that
    /// is due there is done.
    pub late: bool,
}

/// The hosts, the faults and the limits of one search.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an independent choice"
)]
#[derive(Debug, Clone)]
pub struct Plan {
    pub hosts: Vec<HostPlan>,
    /// How often each fault may happen.
    pub faults: [u8; Fault::COUNT],
    /// Which timings a reload may change to.
    pub reloads: Vec<Timings>,
    /// Time also stops between two ticks when a guard or a daemon has something to do. This is for clocks that differ.
    pub exact: bool,
    /// In the first state a unit is active and another host is standby, instead of an empty store.
    pub begins_served: bool,
    /// Each host has the hosts before it fenced.
    pub fences: bool,
    /// The guard's replies may come late as well.
    pub slow_guard: bool,
    /// Writes that were under way when the store was made anew are applied to the new one.
    pub blind_writes: bool,
    /// How much longer than its budget a stop may take.
    pub overrun: Duration,
    /// Whether hints of changes reach the daemons.
    pub hints: bool,
    /// At any point all faults may end for good: no host is late any more, and everything broken is repaired.
    pub calm: bool,
    /// This host is drained for good, and no fault ever reaches it. What it has seen of fencing tokens counts, whatever the
    /// store forgets (tokens seen, K10).
    pub witness: Option<usize>,
    /// K10 dropped: nobody writes what he has seen of tokens.
    pub mute: bool,
}

impl Plan {
    /// Hosts with these timings and without faults. Any daemon may still pause for any time.
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
            fences: false,
            slow_guard: false,
            blind_writes: true,
            overrun: Duration::ZERO,
            hints: false,
            calm: false,
            witness: None,
            mute: false,
        }
    }

    #[must_use]
    pub fn with(mut self, faults: &[(Fault, u8)]) -> Self {
        for (fault, times) in faults {
            self.faults[*fault as usize] = *times;
        }
        self
    }

    /// The longest hold that any host uses, or is given by a reload.
    pub fn longest_hold(&self) -> Duration {
        let all = self
            .hosts
            .iter()
            .map(|host| &host.timings)
            .chain(&self.reloads);
        let usual = all
            .map(|timings| timings.hold().max(timings.longest_hold.unwrap_or_default()))
            .max();
        usual.unwrap_or_default() + self.longest_pause()
    }

    pub fn longest_pause(&self) -> Duration {
        let pauses = [Fault::Pause, Fault::OrderPause];
        if pauses.iter().any(|fault| self.faults[*fault as usize] > 0) {
            PAUSE
        } else {
            Duration::ZERO
        }
    }

    /// The longest time for which any host waits for an unknown holder.
    pub fn longest_wait(&self) -> Duration {
        let hold = self.longest_hold();
        let all = self
            .hosts
            .iter()
            .map(|host| &host.timings)
            .chain(&self.reloads);
        all.map(|timings| timings.wait(hold))
            .max()
            .unwrap_or_default()
    }

    pub fn longest_lease(&self) -> Duration {
        let all = self
            .hosts
            .iter()
            .map(|host| &host.timings)
            .chain(&self.reloads);
        all.map(Timings::lease)
            .max()
            .unwrap_or_default()
            .max(self.longest_pause())
    }

    /// The longest real time for which any host may be without an answer and still count as watching.
    pub fn longest_gap(&self) -> Duration {
        let all = self
            .hosts
            .iter()
            .map(|host| &host.timings)
            .chain(&self.reloads);
        let real = |timings: &Timings| {
            let rate = 1_000_000 - timings.clock_error_ppm;
            timings.watch_gap().mul_f64(1_000_000.0 / f64::from(rate))
        };
        all.map(real).max().unwrap_or_default()
    }

    pub fn longest_renewal(&self) -> Duration {
        let all = self
            .hosts
            .iter()
            .map(|host| &host.timings)
            .chain(&self.reloads);
        all.map(|timings| timings.renew_interval)
            .max()
            .unwrap_or_default()
    }

    /// A store that is made anew forgets the tokens of holders that a host has never seen. CLOCK_REALTIME would make up for
    /// that, but here it is always below the tokens, and so would a host that has seen them, if there is a [`witness`](Self::witness).
    pub fn tokens_may_fall(&self) -> bool {
        let forgetting = [
            Fault::Wipe,
            Fault::Restore,
            Fault::PutBack,
            Fault::GoBack,
            Fault::Purge,
            Fault::Delete,
            Fault::Clear,
        ];
        let dropped = [Fault::RollBack, Fault::SilentWipe, Fault::WipeWhatIsKnown];
        forgetting
            .iter()
            .chain(&dropped)
            .any(|fault| self.faults[*fault as usize] > 0)
    }

    /// How many releases with a back-off the faults can cause on one host.
    fn releases(&self) -> u32 {
        let causes = [
            Fault::GuardDeath,
            Fault::UnitDeath,
            Fault::StepDown,
            Fault::OrderStepDown,
            Fault::Drain,
        ];
        let ordered: u32 = causes
            .iter()
            .map(|fault| u32::from(self.faults[*fault as usize]))
            .sum();
        // An arm that comes too late causes one more.
        ordered + 1
    }

    /// Within this time after the last fault a unit is active. It has the rest of a stop that was under way, a back-off, a
    /// read, and the whole wait for an unknown holder. R and T are added for a late write that is seen after that, or for a
    /// claim that conflicts.
    pub fn bound(&self) -> Duration {
        let renew = self.longest_renewal();
        let back_off =
            (renew * 2_u32.saturating_pow(self.releases().min(8))).min(self.longest_lease() * 10);
        self.longest_hold() + back_off + renew * 2 + self.longest_wait() + self.longest_lease()
    }
}
