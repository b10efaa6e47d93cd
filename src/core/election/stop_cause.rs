//! Every cause for which putexd stops the unit of a host that holds the lock. The journal gives the cause as the reason of the
//! change to `releasing` or to `lapsing`, and the section "What stops a unit" of putexd(8) names each of them.
//!
//! The rules that act on a cause are `release` and `lapse` in `machine/holder.rs`; `adopt` there does so for a lease that is over
//! or closed when putexd starts.
//!
//! Without a cause of these a unit is stopped by others. The guard does it at a deadline that nobody moved in time, whatever
//! became of putexd; its end, for whatever reason, ends every lease of the host, because `BindsTo=` has PID 1 stop the lease
//! targets. PID 1 stops a unit when somebody asks it to, and when the host goes down; a self-fence or the hardware watchdog
//! takes the host down, perhaps because of another service. What follows here is then `UnitEnded`, `GuardGone` or a lapse.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::waiting::rounded;

/// Why the lock is let go by a release (H5): the unit is stopped in good order, and the lease is renewed until it is dead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum ReleaseCause {
    /// This host may not take part in the election; the text says why. The texts come from `bar` in `daemon/service.rs` (the
    /// unit's entry, N1, names another lock or awaits a former one; its gate is gone), from `observe` there (the host is
    /// shutting down) and from `judge_outside` (work of the unit is outside of its control group).
    Barred(String),
    /// Somebody asked this host to let the lock go, or the units were changed while putexd was away; the text says which.
    SteppedDown(String),
    /// The service takes part no longer under this daemon; the texts are in `daemon/supervisor/retire.rs`.
    Retired(String),
    /// The lease was closed already when this putexd found it: another putexd had begun a release, or the guard was replaced,
    /// and the grants had ended with it.
    ClosedWhileAway,
    /// The unit has ended by itself, or somebody stopped it.
    UnitEnded {
        /// How it ended, as systemd calls it.
        result: String,
        /// The unit ended in good order, and later than T after its start.
        in_order: bool,
    },
    /// The unit is alive and serves nobody, because systemd restarts it again and again; the text says how often.
    UnitFails(String),
    /// The active check has failed `fall` times in a row; the text is the reason of the last failure.
    CheckFailed(String),
    /// No active check has passed for this long, so that no renewal may be sent (renewal, H1).
    CheckOverdue(Duration),
    /// The unit, or the unit of `[fence] unfence`, could not be started; the text says why.
    StartFailed(String),
    /// The guard is gone, or did not answer within the shortest R that this host's services had when putexd started. All
    /// services share one connection to the guard, so this ends the leases of all of them.
    GuardGone,
    /// The guard refused to arm the lease; the text says why.
    GuardRefusedLease(String),
}

/// Why a lease is over (loss, H3; lapse, H4): the unit is stopped at once, with SIGKILL k before the end of its stop budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum LapseCause {
    /// The store took no renewal before the deadline.
    NotRenewed,
    /// `CLOCK_REALTIME` moved against `CLOCK_BOOTTIME`, and no renewal that was sent since was won in time.
    ClockJumped,
    /// The guard refused to extend the lease; the text says why.
    GuardRefusedExtension(String),
    /// The record in the store is of this holder, and not of this tenure.
    HeldBy(String),
    /// An empty record that this host did not write is in the store.
    Blanked,
    /// The store has no record of the lock any more.
    Deleted,
    /// The store took a write of this host's on top of another host's; such a write does not count as won.
    WroteOverAnother,
    /// Two different answers came to a write of this host, so the last ones may not be the store's.
    Forged,
    /// The deadline had passed before this putexd started.
    EndedWhileAway,
    /// This putexd does not know in which store the lease's lock is.
    StoreUnknown,
    /// The kernel shows nothing of the unit, and systemd, which alone could start it again, has not answered for T.
    SystemdSilent,
}

/// What a wait before the next claim follows: after each failure in a row the wait is longer (back-off, K9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Occasion {
    /// Somebody asked for it, or the unit ended in good order.
    Planned,
    /// Something has failed.
    Failure,
}

/// What a cause is without its details, in a word that is the same in each version: a label of the metrics. The last one stands
/// for a stop whose cause is over by the time that it is counted.
pub const STOP_KINDS: [&str; 23] = [
    "barred",
    "stepped-down",
    "retired",
    "closed-while-away",
    "unit-ended",
    "unit-fails",
    "check-failed",
    "check-overdue",
    "start-failed",
    "guard-gone",
    "guard-refused-lease",
    "not-renewed",
    "clock-jumped",
    "guard-refused-extension",
    "held-by-another",
    "blanked",
    "deleted",
    "wrote-over-another",
    "forged",
    "ended-while-away",
    "store-unknown",
    "systemd-silent",
    "other",
];

impl LapseCause {
    /// Its place in [`STOP_KINDS`].
    pub(super) const fn kind(&self) -> usize {
        match self {
            Self::NotRenewed => 11,
            Self::ClockJumped => 12,
            Self::GuardRefusedExtension(_) => 13,
            Self::HeldBy(_) => 14,
            Self::Blanked => 15,
            Self::Deleted => 16,
            Self::WroteOverAnother => 17,
            Self::Forged => 18,
            Self::EndedWhileAway => 19,
            Self::StoreUnknown => 20,
            Self::SystemdSilent => 21,
        }
    }
}

impl ReleaseCause {
    /// Its place in [`STOP_KINDS`].
    pub(super) const fn kind(&self) -> usize {
        match self {
            Self::Barred(_) => 0,
            Self::SteppedDown(_) => 1,
            Self::Retired(_) => 2,
            Self::ClosedWhileAway => 3,
            Self::UnitEnded { .. } => 4,
            Self::UnitFails(_) => 5,
            Self::CheckFailed(_) => 6,
            Self::CheckOverdue(_) => 7,
            Self::StartFailed(_) => 8,
            Self::GuardGone => 9,
            Self::GuardRefusedLease(_) => 10,
        }
    }

    /// Whether the wait after this release grows (back-off, K9).
    pub(super) fn occasion(&self) -> Occasion {
        match self {
            Self::Barred(_)
            | Self::SteppedDown(_)
            | Self::Retired(_)
            | Self::ClosedWhileAway
            | Self::UnitEnded { in_order: true, .. } => Occasion::Planned,
            Self::UnitEnded { in_order: false, .. }
            | Self::UnitFails(_)
            | Self::CheckFailed(_)
            | Self::CheckOverdue(_)
            | Self::StartFailed(_)
            | Self::GuardGone
            | Self::GuardRefusedLease(_) => Occasion::Failure,
        }
    }
}

impl fmt::Display for ReleaseCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Barred(reason) | Self::SteppedDown(reason) | Self::Retired(reason) | Self::StartFailed(reason) => {
                f.write_str(reason)
            }
            Self::ClosedWhileAway => f.write_str("the lease was closed while putexd was away"),
            Self::UnitEnded { result, .. } => write!(f, "the unit has ended: {result}"),
            Self::UnitFails(why) => write!(f, "the unit only tries: {why}"),
            Self::CheckFailed(reason) => write!(f, "the active check fails: {reason}"),
            Self::CheckOverdue(age) => write!(f, "no health check has passed for {}", rounded(*age)),
            Self::GuardGone => f.write_str("the guard is gone"),
            Self::GuardRefusedLease(reason) => write!(f, "the guard refused the lease: {reason}"),
        }
    }
}

impl fmt::Display for LapseCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRenewed => f.write_str("the lease was not renewed in time"),
            Self::ClockJumped => f.write_str("the clock jumped and no renewal was won since"),
            Self::GuardRefusedExtension(reason) => write!(f, "the guard refused to extend the lease: {reason}"),
            Self::HeldBy(holder) => write!(f, "{holder} holds the lock"),
            Self::Blanked => f.write_str("the lock was blanked by somebody else"),
            Self::Deleted => f.write_str("the lock was deleted"),
            Self::WroteOverAnother => {
                f.write_str("the store took a write of this host's over another one, and it does not count")
            }
            Self::Forged => f.write_str("the store's answers are forged"),
            Self::EndedWhileAway => f.write_str("the lease ended while putexd was away"),
            Self::StoreUnknown => f.write_str("the lease's store is not known"),
            Self::SystemdSilent => f.write_str("nothing of the unit is left, and systemd does not answer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANUAL: &str = include_str!("../../../packaging/usr/share/man/man8/putexd.8");

    /// Each cause, with the manual's placeholder for the part of its text that varies. A new cause has to be added here: the
    /// matches in these functions do not compile without it.
    fn release_causes() -> Vec<ReleaseCause> {
        let reason = || "REASON".to_owned();
        let causes = vec![
            ReleaseCause::Barred(reason()),
            ReleaseCause::SteppedDown(reason()),
            ReleaseCause::Retired(reason()),
            ReleaseCause::ClosedWhileAway,
            ReleaseCause::UnitEnded { result: "RESULT".to_owned(), in_order: true },
            ReleaseCause::UnitFails(reason()),
            ReleaseCause::CheckFailed(reason()),
            ReleaseCause::CheckOverdue(Duration::from_secs(7)),
            ReleaseCause::StartFailed(reason()),
            ReleaseCause::GuardGone,
            ReleaseCause::GuardRefusedLease(reason()),
        ];
        for (position, cause) in causes.iter().enumerate() {
            let expected = match cause {
                ReleaseCause::Barred(_) => 0,
                ReleaseCause::SteppedDown(_) => 1,
                ReleaseCause::Retired(_) => 2,
                ReleaseCause::ClosedWhileAway => 3,
                ReleaseCause::UnitEnded { .. } => 4,
                ReleaseCause::UnitFails(_) => 5,
                ReleaseCause::CheckFailed(_) => 6,
                ReleaseCause::CheckOverdue(_) => 7,
                ReleaseCause::StartFailed(_) => 8,
                ReleaseCause::GuardGone => 9,
                ReleaseCause::GuardRefusedLease(_) => 10,
            };
            assert_eq!(position, expected);
        }
        causes
    }

    fn lapse_causes() -> Vec<LapseCause> {
        let causes = vec![
            LapseCause::NotRenewed,
            LapseCause::ClockJumped,
            LapseCause::GuardRefusedExtension("REASON".to_owned()),
            LapseCause::HeldBy("HOST".to_owned()),
            LapseCause::Blanked,
            LapseCause::Deleted,
            LapseCause::WroteOverAnother,
            LapseCause::Forged,
            LapseCause::EndedWhileAway,
            LapseCause::StoreUnknown,
            LapseCause::SystemdSilent,
        ];
        for (position, cause) in causes.iter().enumerate() {
            let expected = match cause {
                LapseCause::NotRenewed => 0,
                LapseCause::ClockJumped => 1,
                LapseCause::GuardRefusedExtension(_) => 2,
                LapseCause::HeldBy(_) => 3,
                LapseCause::Blanked => 4,
                LapseCause::Deleted => 5,
                LapseCause::WroteOverAnother => 6,
                LapseCause::Forged => 7,
                LapseCause::EndedWhileAway => 8,
                LapseCause::StoreUnknown => 9,
                LapseCause::SystemdSilent => 10,
            };
            assert_eq!(position, expected);
        }
        causes
    }

    #[test]
    fn each_cause_has_a_kind_of_its_own() {
        let kinds: Vec<usize> = release_causes()
            .iter()
            .map(ReleaseCause::kind)
            .chain(lapse_causes().iter().map(LapseCause::kind))
            .collect();
        assert_eq!(kinds, (0..STOP_KINDS.len() - 1).collect::<Vec<_>>());
    }

    #[test]
    fn the_manual_names_everything_that_stops_a_unit_and_nothing_else() {
        let (_, section) = MANUAL.split_once(".Sh WHAT STOPS A UNIT\n").expect("the manual has the section");
        let (section, _) = section.split_once("\n.Sh ").expect("others follow");
        let quoted = |line: &str| {
            line.strip_prefix(".It \\(lq")
                .and_then(|line| line.strip_suffix("\\(rq"))
                .map(|line| line.replace("\\-", "-"))
        };
        let mut named: Vec<String> = section.lines().filter_map(quoted).collect();
        let mut known: Vec<String> =
            release_causes().iter().map(|cause| cause.to_string().replace("7.0s", "AGE")).collect();
        known.extend(lapse_causes().iter().map(LapseCause::to_string));
        known.sort();
        known.dedup();
        named.sort();
        assert_eq!(named, known);
    }
}
