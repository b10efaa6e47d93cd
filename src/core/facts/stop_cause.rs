//! Every cause for which putexd stops the unit of a host that holds the lock. The journal gives the cause as the reason of the
//! change to `releasing` or to `lapsing`, and the section "What stops a unit" of putexd(8) names each of them.
//!
//! The rules that act on a cause are `release` and `lapse` in `machine/holder.rs`; `adopt` there does so for a lease that is over
//! or closed when putexd starts.
//!
//! A host that does not hold the lock stops a unit that runs all the same, with the alarm `StrayUnit` (`advance_idle` in
//! `machine/deadlines.rs`).
//!
//! Without a cause of these a unit is stopped by others. The guard does it at a deadline that nobody moved in time, whatever
//! became of putexd, and where there is no guard its watcher sends the SIGKILL, and a putexd that starts (`Unguarded` in
//! `guard_client/kept.rs`). The guard's end, for whatever reason, ends every lease of the host, because `BindsTo=` has PID 1 stop the lease
//! targets. PID 1 stops a unit when somebody asks it to, and when the host goes down; a self-fence or the hardware watchdog
//! takes the host down, perhaps because of another service. What follows here is then `UnitEnded`, `GuardGone` or a lapse.

use serde::{Deserialize, Serialize};

use super::{Asked, Bar, Order, Retirement, Word};
use crate::types::NodeId;

/// Why the unit of a holder is stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StopCause {
    /// The lock is let go.
    Release(ReleaseCause),
    /// The lease is over.
    Lapse(LapseCause),
}

/// Why the lock is let go by a release (H5): the unit is stopped in good order, and the lease is renewed until it is dead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReleaseCause {
    /// This host may not take part in the election. [`Bar::ends_running`] says which bars end a unit that runs.
    Barred(Bar),
    /// Somebody asked this host to let the lock go, or the units were changed while putexd was away.
    SteppedDown(StepDown),
    /// The service takes part no longer under this putexd.
    Retired(Retirement),
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
    /// No active check has passed for so many milliseconds, so that no renewal may be sent (renewal, H1).
    CheckOverdue(u64),
    /// The unit, or the unit of `[fence] unfence`, could not be started; the text says why.
    StartFailed(String),
    /// The guard is gone, or did not answer within the shortest R that this host's services had when putexd started. All
    /// services share one connection to the guard, so this ends the leases of all of them.
    GuardGone,
    /// The guard refused to arm the lease; the text says why.
    GuardRefusedLease(String),
}

/// Who has asked a holder to let the lock go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepDown {
    /// An operator.
    Order(Order),
    /// An operator who keeps the service stopped everywhere.
    Stopped(Word),
    /// The units were changed while putexd was away.
    UnitsChanged,
}

/// Why a lease is over (loss, H3; lapse, H4): the unit is stopped at once, with SIGKILL k before the end of its stop budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Occasion {
    /// Somebody asked for it, or the unit ended in good order.
    Planned,
    /// Something has failed.
    Failure,
}

impl ReleaseCause {
    /// The node that should take over.
    pub(crate) fn next(&self) -> Option<&NodeId> {
        let Self::SteppedDown(StepDown::Order(Order {
            what: Asked::StepDown(next),
            ..
        })) = self
        else {
            return None;
        };
        next.as_ref()
    }

    /// Whether the wait after this release grows (back-off, K9).
    pub(crate) fn occasion(&self) -> Occasion {
        match self {
            Self::Barred(_)
            | Self::SteppedDown(_)
            | Self::Retired(_)
            | Self::ClosedWhileAway
            | Self::UnitEnded { in_order: true, .. } => Occasion::Planned,
            Self::UnitEnded {
                in_order: false, ..
            }
            | Self::UnitFails(_)
            | Self::CheckFailed(_)
            | Self::CheckOverdue(_)
            | Self::StartFailed(_)
            | Self::GuardGone
            | Self::GuardRefusedLease(_) => Occasion::Failure,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Each cause, with the manual's placeholder for the part of its text that varies. A new cause has to be added here: the
    /// matches in these functions do not compile without it.
    pub(crate) fn release_causes() -> Vec<ReleaseCause> {
        let reason = || "REASON".to_owned();
        let causes = vec![
            ReleaseCause::Barred(Bar::Outside { error: reason() }),
            ReleaseCause::SteppedDown(StepDown::Order(Order {
                what: Asked::StepDown(None),
                word: Word::new("OPERATOR", "REASON", 0, None),
            })),
            ReleaseCause::Retired(Retirement::Stopped),
            ReleaseCause::ClosedWhileAway,
            ReleaseCause::UnitEnded {
                result: "RESULT".to_owned(),
                in_order: true,
            },
            ReleaseCause::UnitFails(reason()),
            ReleaseCause::CheckFailed(reason()),
            ReleaseCause::CheckOverdue(7000),
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

    pub(crate) fn lapse_causes() -> Vec<LapseCause> {
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

    /// The first text in the JSON of a cause.
    fn kind(cause: &impl Serialize) -> String {
        let json = serde_json::to_string(cause).expect("it is written");
        json.split('"').nth(1).expect("a text").to_owned()
    }

    #[test]
    fn each_cause_has_a_kind_of_its_own() {
        let (release, lapse) = (release_causes(), lapse_causes());
        let mut kinds: Vec<String> = release.iter().map(kind).collect();
        kinds.extend(lapse.iter().map(kind));
        let all = kinds.len();
        kinds.sort_unstable();
        kinds.dedup();
        assert_eq!(kinds.len(), all);
    }
}
