//! Why the unit of a host that holds the lock is stopped: every cause that there is. The journal gives it as the reason of the
//! change to `releasing` or to `lapsing`, and the section "What stops a unit" of putexd(8) names each of them.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::waiting::rounded;

/// Why the lock is let go by a release (H5): the unit is stopped in good order, and the lease is renewed until it is dead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum ReleaseCause {
    /// This host is not to take part, and says why.
    Barred(String),
    /// Somebody asked for it, and says why.
    SteppedDown(String),
    /// The service is no longer this daemon's, and why.
    Retired(String),
    /// Another putexd had begun a release before this one adopted its lease.
    BegunBefore,
    /// The unit has ended by itself, or somebody stopped it.
    UnitEnded {
        /// How it ended, as systemd calls it.
        result: String,
        /// In good order, and later than T after its start.
        in_order: bool,
    },
    /// The active check has failed `fall` times in a row, the last time for this reason.
    CheckFailed(String),
    /// No active check has passed for so long (renewal, H1).
    CheckOverdue(Duration),
    /// The unit, or that of `[fence] unfence`, could not be started, and why.
    StartFailed(String),
    /// The guard ended, or was silent for R.
    GuardGone,
    /// The guard did not take the lease, and why.
    GuardRefusedLease(String),
}

/// Why a lease is over (loss, H3; lapse, H4): the unit is stopped at once, with SIGKILL at the end of its budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum LapseCause {
    /// The store has taken no renewal before the deadline.
    NotRenewed,
    /// `CLOCK_REALTIME` moved against `CLOCK_BOOTTIME`, and the store has taken no renewal since.
    ClockJumped,
    /// The guard did not extend the lease, and why.
    GuardRefusedExtension(String),
    /// Another host's record is in the store.
    HeldBy(String),
    /// An empty record of somebody else's is in the store.
    Blanked,
    /// The store has no record of the lock any more.
    Deleted,
    /// The store took a write of this host's on top of another one.
    WroteOverAnother,
    /// The deadline had passed before this putexd began.
    EndedWhileAway,
    /// This putexd does not know in which store the lease is.
    StoreUnknown,
}

/// Why a release or a lapse begins: K9 waits longer each time for what has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Occasion {
    /// Somebody asked for it.
    Planned,
    /// Something has failed.
    Failure,
}

impl ReleaseCause {
    /// What the back-off (K9) goes by.
    pub(super) fn occasion(&self) -> Occasion {
        match self {
            Self::Barred(_)
            | Self::SteppedDown(_)
            | Self::Retired(_)
            | Self::BegunBefore
            | Self::UnitEnded { in_order: true, .. } => Occasion::Planned,
            Self::UnitEnded { in_order: false, .. }
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
            Self::BegunBefore => f.write_str("a release had begun before putexd was away"),
            Self::UnitEnded { result, .. } => write!(f, "the unit has ended: {result}"),
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
            Self::EndedWhileAway => f.write_str("the lease ended while putexd was away"),
            Self::StoreUnknown => f.write_str("the lease's store is not known"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANUAL: &str = include_str!("../../../packaging/usr/share/man/man8/putexd.8");

    /// Each cause with the words that the manual has in the place of those that differ. A cause that is added has to be added here:
    /// the matches below do not compile without it.
    fn release_causes() -> Vec<ReleaseCause> {
        let reason = || "REASON".to_owned();
        let causes = vec![
            ReleaseCause::Barred(reason()),
            ReleaseCause::SteppedDown(reason()),
            ReleaseCause::Retired(reason()),
            ReleaseCause::BegunBefore,
            ReleaseCause::UnitEnded { result: "RESULT".to_owned(), in_order: true },
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
                ReleaseCause::BegunBefore => 3,
                ReleaseCause::UnitEnded { .. } => 4,
                ReleaseCause::CheckFailed(_) => 5,
                ReleaseCause::CheckOverdue(_) => 6,
                ReleaseCause::StartFailed(_) => 7,
                ReleaseCause::GuardGone => 8,
                ReleaseCause::GuardRefusedLease(_) => 9,
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
            LapseCause::EndedWhileAway,
            LapseCause::StoreUnknown,
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
                LapseCause::EndedWhileAway => 7,
                LapseCause::StoreUnknown => 8,
            };
            assert_eq!(position, expected);
        }
        causes
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
