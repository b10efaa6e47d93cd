//! What a host waits for, and why: as data, and in the text that journal, `putexctl status` and D-Bus have alike.

use std::fmt;
use std::time::Duration;

pub use crate::types::span::rounded;
use crate::types::{OnStopFailure, Time};

/// Why a lock that this host takes does not entitle it to start at once: whose unit may still live (confirming, K3; verified
/// release, K4; unknown holder, K5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// Nobody's unit: the last holder's one was shown dead.
    Free,
    /// The unit of a holder that has fallen silent.
    Silent {
        /// The holder's name.
        holder: String,
        /// When something was last heard of the holder.
        heard: Heard,
    },
    /// The unit of a host that held the lock before this one, which has started nothing.
    GaveUp {
        /// The name of the host that gave up.
        holder: String,
    },
    /// The lock is empty, and nothing shows that its last holder's unit is dead.
    Unproven,
    /// The store has no record of the lock, and shows no deletion of one either.
    Absent,
    /// The record of the lock was deleted.
    Deleted,
}

/// Why nobody knows what the store held before the record that is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unseen {
    /// This host has just begun to watch the lock.
    Before,
    /// This host had no answer from the store for a while.
    Gap,
    /// The store was made anew, wiped or restored.
    NewStore,
    /// The store has gone back to an earlier revision.
    WentBack,
}

/// Which hold decides how long the wait is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Longest {
    /// The hold of this host's own timings.
    Own,
    /// The hold of the record that is seen.
    Seen,
    /// `longest-hold` in the configuration.
    Configured,
    /// The hold of an earlier record that this host remembers.
    Remembered,
    /// A lease that lasts until a point in time, as that of a pause does, and that this host has seen.
    Passing,
}

/// Everything that explains why a claim has to wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    /// Whose unit may still live.
    pub cause: Cause,
    /// Why a holder may live that the record does not show. `None`: this host has followed the lock.
    pub unseen: Option<Unseen>,
    /// Which hold decides how long the wait is.
    pub longest: Longest,
    /// The length of that hold.
    pub hold: Duration,
}

impl Why {
    /// There is no unit to wait for.
    pub(super) fn nobody() -> Self {
        Self { cause: Cause::Free, unseen: None, longest: Longest::Own, hold: Duration::ZERO }
    }
}

/// When something was last heard of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// The record was seen to change at this time.
    Renewed(Time),
    /// The record was found at this time by a host that had not watched the lock, and was not seen to change since.
    Found(Time),
}

/// How far the holder of a lock has come, by its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It may run the unit.
    Runs,
    /// It has only claimed the lock, and waits itself before it starts the unit.
    Claims,
    /// It has claimed the lock, and given up before it started anything.
    GaveUp,
    /// It has claimed the lock, and the service is stopped everywhere: it starts nothing, and stops what it may have started.
    Stopped,
}

/// What a service waits for on this host. It has points in time and not spans, so that the rest is computed when the text is
/// made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// For the store's answer to the claim.
    Claim,
    /// Until this host may start the unit.
    Entitlement {
        /// When it may start.
        until: Time,
        /// Why it may not start before.
        why: Why,
    },
    /// For the answer to the last write before the start, or for the store to say that the unit is run under this lock.
    LastWrite,
    /// For other hosts to be fenced.
    Fencing {
        /// The names of these hosts.
        hosts: Vec<String>,
    },
    /// For the guard to arm the lease.
    Arming,
    /// For the unit of `[fence] unfence`, which is started before the service's own one.
    Unfencing,
    /// For systemd to start the unit.
    Starting,
    /// For a renewal: the unit runs, and the store has taken none for longer than one takes.
    Renewal {
        /// When the last won renewal was sent.
        since: Time,
        /// When the unit is stopped unless a renewal is won.
        deadline: Time,
    },
    /// For the guard to close the gate.
    Closing {
        /// Why the lock is let go.
        reason: String,
    },
    /// For the proof that the unit is dead, in an orderly stop that takes the unit's own time.
    Stopping {
        /// Why the lock is let go.
        reason: String,
        /// When `stop-limit` is over.
        until: Time,
        /// What happens when it is over and the stop is not proven.
        on_stop_failure: OnStopFailure,
    },
    /// For the proof that the unit is dead, after `stop-limit`: it gets SIGKILL.
    Killing {
        /// Why the lock is let go.
        reason: String,
        /// When the stop should be proven.
        until: Time,
        /// What happens if it is not proven by then.
        on_stop_failure: OnStopFailure,
    },
    /// For the guard to forget the lease.
    Disarming,
    /// For the store to take the release, an empty record.
    Blanking {
        /// When this host gives that up and leaves the record to age.
        until: Time,
    },
    /// For the proof that the unit is dead, after a lapse: it gets SIGKILL k before its stop budget ends.
    Lapsing {
        /// When SIGKILL is sent.
        kill_at: Time,
        /// When the stop should be proven.
        until: Time,
        /// What happens if it is not proven by then.
        on_stop_failure: OnStopFailure,
    },
    /// For the store to answer.
    Store {
        /// Who held the lock by the last record that was seen, and when something was last heard of that holder.
        holder: Option<(String, Heard)>,
    },
    /// For the holder to let the lock go, or to fall silent.
    Holder {
        /// The holder's name.
        holder: String,
        /// How far the holder has come.
        stage: Stage,
        /// When something was last heard of the holder.
        heard: Heard,
        /// When this host may take the lock. `None`: it does not contend.
        take_at: Option<Time>,
    },
    /// For news of who holds the lock: the last record seen is this host's own, and nothing runs under it any more.
    OwnRecord {
        /// Whether the store still shows that record.
        shown: bool,
        /// How far this host had come with it.
        stage: Stage,
        /// When this host may take the lock. `None`: it does not contend.
        take_at: Option<Time>,
    },
    /// For this host's turn to take a lock that is free: the hosts take it one after another.
    Turn {
        /// When its turn comes.
        until: Time,
    },
    /// For the time to take a lock that has no holder, where the start has to wait after that.
    Unproven {
        /// When it takes the lock.
        take_at: Time,
        /// When this host may start the unit.
        start_at: Time,
        /// Why it may not start at once.
        why: Why,
    },
    /// For the end of the back-off before the next claim (back-off, K9).
    BackOff {
        /// When the back-off ends.
        until: Time,
        /// What the back-off follows.
        reason: String,
        /// How many failures there were in a row; 0 where nothing failed.
        failures: u32,
    },
}

/// Why a host does not contend for a free lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hindrance {
    /// The reason as text.
    Reason(String),
    /// The host waits before its next claim.
    BackOff(Waiting),
}

impl Hindrance {
    /// The reason as a sentence without a full stop.
    #[must_use]
    pub fn in_words(&self, now: Time) -> String {
        match self {
            Self::Reason(reason) => reason.clone(),
            Self::BackOff(waiting) => waiting.in_words(now),
        }
    }
}

/// Text for something that comes after `span`.
pub(super) fn ahead(span: Duration) -> String {
    if span.is_zero() { "at once".to_owned() } else { format!("in {}", rounded(span)) }
}

/// Text for an orderly stop that has time until `until`.
fn stopping_in_words(now: Time, until: Time, on_stop_failure: OnStopFailure, reason: &str) -> String {
    let then = if on_stop_failure.is_self_fence() { "it gets SIGKILL" } else { on_stop_failure.consequence() };
    let limit = match now.until_waited(until) {
        Duration::ZERO => "longer than stop-limit already".to_owned(),
        left => format!("for {} at most, then {then}", rounded(left)),
    };
    format!("waits until the unit is proven dead, in its own time and {limit}; it is stopped for this reason: {reason}")
}

/// Text for what happens unless a stop is proven by `until`.
fn otherwise(now: Time, until: Time, on_stop_failure: OnStopFailure) -> String {
    match now.until_passed(until) {
        Duration::ZERO => "the proof is overdue".to_owned(),
        left => format!("{} in {} otherwise", on_stop_failure.consequence(), rounded(left)),
    }
}

fn back_off_in_words(left: Duration, reason: &str, failures: u32) -> String {
    let left = rounded(left);
    let again = "(run \"systemctl reload putexd\" to try at once)";
    match failures {
        0 => {
            format!("tries again in {left}, since it let the lock go: {reason}; it takes it again if nobody else does")
        }
        1 => format!("tries again in {left} {again}, since something failed: {reason}"),
        count => {
            format!("tries again in {left} {again}, since something failed {count} times in a row, at last: {reason}")
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Free => f.write_str("the last holder's unit was shown dead")?,
            Cause::Silent { holder, .. } => {
                write!(f, "waits for the former holder {holder}, whose unit may live until then")?;
            }
            Cause::GaveUp { holder } => {
                write!(
                    f,
                    "waits for the unit of whoever held the lock before {holder}, which gave up before it started anything"
                )?;
            }
            Cause::Unproven => f.write_str("nothing shows that the last holder's unit is dead")?,
            Cause::Absent => {
                f.write_str("the store has no record of this lock, and a holder that nobody knows of may live")?;
            }
            Cause::Deleted => f.write_str("the lock was deleted, and its last holder may live")?,
        }
        // Where there is no record, or the unit was shown dead, the cause has said everything already.
        match (&self.cause, self.unseen) {
            (_, None) | (Cause::Absent | Cause::Deleted | Cause::Free, Some(Unseen::Before | Unseen::Gap)) => {}
            (_, Some(Unseen::Before)) => {
                f.write_str("; this host has just begun to watch, and another may have held the lock since")?;
            }
            (_, Some(Unseen::Gap)) => {
                f.write_str(
                    "; this host had no answer from the store for a while, and another may have held the lock since",
                )?;
            }
            (_, Some(Unseen::NewStore)) => {
                f.write_str(
                    "; the store was made anew, wiped or restored, and a holder that it no longer shows may live",
                )?;
            }
            (_, Some(Unseen::WentBack)) => {
                f.write_str("; the store has gone back in time, and a holder that it no longer shows may live")?;
            }
        }
        let hold = rounded(self.hold);
        match self.longest {
            Longest::Own | Longest::Seen => Ok(()),
            Longest::Configured => write!(f, "; it may live for longest-hold = {hold}"),
            Longest::Remembered => write!(
                f,
                "; it may live for {hold}, the longest hold of any record of this lock that this host remembers, see \
                 putexd-operations(7)"
            ),
            Longest::Passing => f.write_str("; it may live until the end of a pause that this host has seen"),
        }
    }
}

impl Why {
    /// What is told of the former holder when its lock was taken. `None`: there is none that fell silent.
    pub(super) fn silence(&self, now: Time) -> Option<String> {
        let Cause::Silent { holder, heard } = &self.cause else { return None };
        Some(match heard {
            Heard::Renewed(at) => format!("{holder} has not renewed for {}", rounded(now.since_at_least(*at))),
            Heard::Found(at) => {
                let span = rounded(now.since_at_least(*at));
                format!("{holder} has not renewed in the {span} since its record was found")
            }
        })
    }
}

impl Heard {
    /// Text that fits behind the holder's name with "holds the lock" or the like.
    fn in_words(self, now: Time) -> String {
        match self {
            Self::Renewed(at) => format!(" and last renewed {} ago", rounded(now.since_at_least(at))),
            Self::Found(at) => format!(
                "; this host has seen its record for {}, and does not know how old it was then",
                rounded(now.since_at_least(at))
            ),
        }
    }
}

impl Waiting {
    /// Whether the wait lasts for as long as the store does not answer, or takes no write.
    #[must_use]
    pub fn is_for_the_store(&self) -> bool {
        match self {
            Self::Claim
            | Self::LastWrite
            | Self::Renewal { .. }
            | Self::Blanking { .. }
            | Self::Store { .. }
            | Self::OwnRecord { shown: false, .. } => true,
            Self::Entitlement { .. }
            | Self::Fencing { .. }
            | Self::Arming
            | Self::Unfencing
            | Self::Starting
            | Self::Closing { .. }
            | Self::Stopping { .. }
            | Self::Killing { .. }
            | Self::Disarming
            | Self::Lapsing { .. }
            | Self::Holder { .. }
            | Self::OwnRecord { shown: true, .. }
            | Self::Turn { .. }
            | Self::Unproven { .. }
            | Self::BackOff { .. } => false,
        }
    }

    /// When what happens to a host whose stop is not proven comes to it; `stop_budget` is S. `None`: it waits for no such proof.
    #[must_use]
    pub fn fails_at(&self, stop_budget: Duration) -> Option<Time> {
        match self {
            // SIGKILL is sent first, and has the stop budget to take effect.
            Self::Stopping { until, .. } => Some(until.plus(stop_budget)),
            Self::Killing { until, .. } | Self::Lapsing { until, .. } => Some(*until),
            Self::Claim
            | Self::Entitlement { .. }
            | Self::LastWrite
            | Self::Fencing { .. }
            | Self::Arming
            | Self::Unfencing
            | Self::Starting
            | Self::Renewal { .. }
            | Self::Closing { .. }
            | Self::Disarming
            | Self::Blanking { .. }
            | Self::Store { .. }
            | Self::Holder { .. }
            | Self::OwnRecord { .. }
            | Self::Turn { .. }
            | Self::Unproven { .. }
            | Self::BackOff { .. } => None,
        }
    }

    /// A sentence without a full stop; it fits behind "it" and behind a colon.
    #[must_use]
    pub fn in_words(&self, now: Time) -> String {
        match self {
            Self::Claim => "waits for the store to take its claim; the unit is not started before that".to_owned(),
            Self::Entitlement { until, why } => format!("starts {}: {why}", ahead(now.until_waited(*until))),
            Self::LastWrite => "waits for the store to confirm once more that the lock is its own".to_owned(),
            Self::Fencing { hosts } => format!("waits until {} is fenced", hosts.join(" and ")),
            Self::Arming => "waits for putex-guard to take up the lease".to_owned(),
            Self::Unfencing => "waits for the unit of [fence] unfence".to_owned(),
            Self::Renewal { since, deadline } => format!(
                "last renewed {} ago; stops {} unless the store takes a renewal before",
                rounded(now.since_at_least(*since)),
                ahead(now.until_passed(*deadline))
            ),
            Self::Starting => "waits for systemd to start the unit; the lease is renewed meanwhile".to_owned(),
            Self::Closing { reason } => {
                format!("waits for putex-guard to close the gate before it stops the unit for this reason: {reason}")
            }
            Self::Stopping { reason, until, on_stop_failure } => stopping_in_words(now, *until, *on_stop_failure, reason),
            Self::Killing { reason, until, on_stop_failure } => format!(
                "stop-limit is over; waits until the unit is proven dead; it gets SIGKILL, and {}; it is stopped for this \
                 reason: {reason}",
                otherwise(now, *until, *on_stop_failure)
            ),
            Self::Disarming => "the unit is dead; waits for putex-guard to forget the lease".to_owned(),
            Self::Blanking { until } => format!(
                "the unit is dead; waits for the store to take the release, and leaves the lock to age {}",
                ahead(now.until_waited(*until))
            ),
            Self::Lapsing { kill_at, until, on_stop_failure } => {
                let kill = match now.until_passed(*kill_at) {
                    Duration::ZERO => "it gets SIGKILL".to_owned(),
                    left => format!("it gets SIGKILL in {}", rounded(left)),
                };
                let otherwise = otherwise(now, *until, *on_stop_failure);
                format!("the lease is over; waits until the unit is proven dead; {kill}, and {otherwise}")
            }
            Self::Store { holder } => {
                let waits = "waits for the store to answer; nothing is started on this host before it does";
                match holder {
                    Some((holder, heard)) => format!("{waits}; before, {holder} held the lock{}", heard.in_words(now)),
                    None => waits.to_owned(),
                }
            }
            Self::Holder { holder, stage, heard, take_at } => {
                let holds = match (stage, heard) {
                    (Stage::Runs, _) => format!("{holder} holds the lock"),
                    (Stage::Claims, Heard::Renewed(_)) => {
                        format!("{holder} has claimed the lock, is about to start the unit,")
                    }
                    (Stage::Claims, Heard::Found(_)) => {
                        format!("{holder} has claimed the lock and is about to start the unit")
                    }
                    (Stage::GaveUp, _) => {
                        format!("{holder} had claimed the lock, and gave up before it started anything")
                    }
                    (Stage::Stopped, _) => format!(
                        "{holder} had claimed the lock, and starts nothing because the service is stopped everywhere; its record has \
                         to age"
                    ),
                };
                let heard = match stage {
                    Stage::Runs | Stage::Claims => format!("{holds}{}", heard.in_words(now)),
                    Stage::GaveUp | Stage::Stopped => holds,
                };
                match take_at {
                    Some(at) if *stage == Stage::GaveUp => {
                        format!("{heard}; it may be taken {}", ahead(now.until_waited(*at)))
                    }
                    Some(at) => {
                        format!("{heard}; it may be taken {} unless {holder} renews it", ahead(now.until_waited(*at)))
                    }
                    None => heard,
                }
            }
            Self::OwnRecord { shown: false, .. } => {
                "waits for the store to answer; nothing is started on this host before it does; the last record seen is this \
                 host's own; its unit is stopped here; who holds the lock now is not known"
                    .to_owned()
            }
            Self::OwnRecord { shown: true, take_at, .. } => {
                let aging =
                    "the last record seen is this host's own; its unit is stopped here; the record is left to age";
                match take_at {
                    Some(at) => format!("{aging}; the lock may be taken {}", ahead(now.until_waited(*at))),
                    None => aging.to_owned(),
                }
            }
            Self::Turn { until } => match now.until_waited(*until) {
                Duration::ZERO => "the lock is free, and this host takes it now".to_owned(),
                left => format!(
                    "the lock is free; waits {} before it takes it, so that no two hosts take it at the same moment",
                    rounded(left)
                ),
            },
            Self::Unproven { take_at, start_at, why } => format!(
                "nobody holds the lock; unless another host does so before, this one takes it {}, and starts the unit {}: {why}",
                ahead(now.until_waited(*take_at)),
                ahead(now.until_waited(*start_at))
            ),
            Self::BackOff { until, reason, failures } => back_off_in_words(now.until_waited(*until), reason, *failures),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_says_its_cause_and_what_is_left() {
        let at = |milliseconds| Time::both(Duration::from_millis(milliseconds));
        let hold = Duration::from_secs(20);
        let why = Why { cause: Cause::Absent, unseen: Some(Unseen::NewStore), longest: Longest::Configured, hold };
        assert_eq!(
            Waiting::Entitlement { until: at(15_849), why }.in_words(at(1000)),
            "starts in 14.8s: the store has no record of this lock, and a holder that nobody knows of may \
             live; the store was made anew, wiped or restored, and a holder that it no longer shows may live; it may live \
             for longest-hold = 20s"
        );
        let holder = |take_at| {
            let heard = Heard::Renewed(at(1000));
            Waiting::Holder { holder: "h2".to_owned(), stage: Stage::Runs, heard, take_at }
        };
        assert_eq!(
            holder(Some(at(4000))).in_words(at(1400)),
            "h2 holds the lock and last renewed 0.4s ago; it may be taken in 2.6s unless h2 renews it"
        );
        let why = |heard| {
            let cause = Cause::Silent { holder: "h3".to_owned(), heard };
            Why { cause, unseen: None, longest: Longest::Seen, hold }
        };
        assert_eq!(
            Waiting::Entitlement { until: at(10_200), why: why(Heard::Renewed(at(1000))) }.in_words(at(1000)),
            "starts in 9.2s: waits for the former holder h3, whose unit may live until then"
        );
        let cause = Cause::GaveUp { holder: "h2".to_owned() };
        let gave_up = Why { cause, unseen: None, longest: Longest::Seen, hold };
        assert_eq!(
            gave_up.to_string(),
            "waits for the unit of whoever held the lock before h2, which gave up before it started anything"
        );
        assert_eq!(gave_up.silence(at(1000)), None);
        let silence = |heard| why(heard).silence(at(10_000)).expect("it fell silent");
        assert_eq!(silence(Heard::Renewed(at(1000))), "h3 has not renewed for 9.0s");
        assert_eq!(silence(Heard::Found(at(1000))), "h3 has not renewed in the 9.0s since its record was found");
        assert_eq!(Why::nobody().silence(at(1000)), None);
        assert_eq!(holder(None).in_words(at(1400)), "h2 holds the lock and last renewed 0.4s ago");
        assert_eq!(
            holder(Some(at(4000))).in_words(at(4000)),
            "h2 holds the lock and last renewed 3.0s ago; it may be taken at once unless h2 renews it"
        );
        assert_eq!(
            Waiting::Renewal { since: at(1000), deadline: at(16_200) }.in_words(at(12_700)),
            "last renewed 11.7s ago; stops in 3.5s unless the store takes a renewal before"
        );
        let own = |shown| Waiting::OwnRecord { shown, stage: Stage::Runs, take_at: Some(at(4000)) }.in_words(at(1400));
        let stopped = "the last record seen is this host's own; its unit is stopped here";
        let waits = "waits for the store to answer; nothing is started on this host before it does";
        assert_eq!(own(false), format!("{waits}; {stopped}; who holds the lock now is not known"));
        let store = |holder| Waiting::Store { holder }.in_words(at(1400));
        assert_eq!(store(None), waits);
        let silent = Some(("h2".to_owned(), Heard::Renewed(at(1000))));
        assert_eq!(store(silent), format!("{waits}; before, h2 held the lock and last renewed 0.4s ago"));
        let claim = |heard| {
            Waiting::Holder { holder: "h2".to_owned(), stage: Stage::Claims, heard, take_at: None }.in_words(at(1400))
        };
        assert_eq!(
            claim(Heard::Renewed(at(1000))),
            "h2 has claimed the lock, is about to start the unit, and last renewed 0.4s ago"
        );
        assert_eq!(
            claim(Heard::Found(at(1000))),
            "h2 has claimed the lock and is about to start the unit; this host has seen its record for 0.4s, and does not \
             know how old it was then"
        );
        let gave_up = |take_at| {
            let (holder, heard) = ("h2".to_owned(), Heard::Renewed(at(1000)));
            Waiting::Holder { holder, stage: Stage::GaveUp, heard, take_at }.in_words(at(1400))
        };
        assert_eq!(gave_up(None), "h2 had claimed the lock, and gave up before it started anything");
        assert_eq!(gave_up(Some(at(4000))), format!("{}; it may be taken in 2.6s", gave_up(None)));
        assert_eq!(own(true), format!("{stopped}; the record is left to age; the lock may be taken in 2.6s"));
        let hold = Duration::from_secs(6);
        let why = Why { cause: Cause::Unproven, unseen: Some(Unseen::Before), longest: Longest::Own, hold };
        assert_eq!(
            Waiting::Unproven { take_at: at(16_400), start_at: at(22_000), why }.in_words(at(1000)),
            "nobody holds the lock; unless another host does so before, this one takes it in 15.4s, and starts the unit in \
             21s: nothing shows that the last holder's unit is dead; this host has just begun to watch, and another may \
             have held the lock since"
        );
        assert_eq!(
            Waiting::Turn { until: at(1200) }.in_words(at(1000)),
            "the lock is free; waits 0.2s before it takes it, so that no two hosts take it at the same moment"
        );
        let back_off = |failures| Waiting::BackOff { until: at(5200), reason: "it did".to_owned(), failures };
        assert_eq!(
            back_off(3).in_words(at(1000)),
            "tries again in 4.2s (run \"systemctl reload putexd\" to try at once), since something failed 3 times in a row, \
             at last: it did"
        );
        assert!(!back_off(0).in_words(at(1000)).contains("reload"), "an operator asked for this one");
        assert!(back_off(0).in_words(at(1000)).contains("if nobody else does"));
    }

    #[test]
    fn a_stop_says_what_happens_if_it_is_not_proven() {
        let at = |milliseconds| Time::both(Duration::from_millis(milliseconds));
        let stopping = |on_stop_failure, now| {
            Waiting::Stopping { reason: "kernel update".to_owned(), until: at(4000), on_stop_failure }.in_words(at(now))
        };
        assert_eq!(
            stopping(OnStopFailure::Alert, 1000),
            "waits until the unit is proven dead, in its own time and for 3.0s at most, then an alarm is raised; it is \
             stopped for this reason: kernel update"
        );
        assert!(stopping(OnStopFailure::RebootForce, 1000).contains("then it gets SIGKILL; "));
        assert!(stopping(OnStopFailure::Alert, 5000).contains("and longer than stop-limit already; "));
        let killing = |now| {
            let on_stop_failure = OnStopFailure::RebootForce;
            Waiting::Killing { reason: "kernel update".to_owned(), until: at(4000), on_stop_failure }.in_words(at(now))
        };
        assert_eq!(
            killing(1000),
            "stop-limit is over; waits until the unit is proven dead; it gets SIGKILL, and this host is rebooted in 3.0s \
             otherwise; it is stopped for this reason: kernel update"
        );
        assert!(killing(5000).contains("it gets SIGKILL, and the proof is overdue; "));
        let lapsing = |on_stop_failure, now| {
            Waiting::Lapsing { kill_at: at(2000), until: at(4000), on_stop_failure }.in_words(at(now))
        };
        assert_eq!(
            lapsing(OnStopFailure::Alert, 1000),
            "the lease is over; waits until the unit is proven dead; it gets SIGKILL in 1.0s, and an alarm is raised in \
             3.0s otherwise"
        );
        assert!(
            lapsing(OnStopFailure::KernelPanic, 3000).contains("it gets SIGKILL, and this host's kernel is made to")
        );
        assert!(lapsing(OnStopFailure::KernelPanic, 5000).ends_with("it gets SIGKILL, and the proof is overdue"));
    }
}
