//! Facts as sentences without a full stop. They fit behind a colon.

use std::{fmt, time::Duration};

use crate::{
    facts::{
        Asked, At, Bar, LapseCause, Missing, NotTaking, Order, ReleaseCause, Retirement, Seen,
        StepDown, StopCause, StoreState, Wait, Word,
    },
    types::span::{date, rounded},
};

/// Who asked for what, and why, as in `stopped everywhere by root@h1: kernel update`.
pub fn asked(Word { by, reason, .. }: &Word, what: &str) -> String {
    let mut text = what.to_owned();
    if !by.is_empty() {
        text.extend([" by ", by]);
    }
    if !reason.is_empty() {
        text.extend([": ", reason]);
    }
    text
}

/// What a holder was asked for, by whom and why.
pub fn order(Order { what, word }: &Order) -> String {
    match what {
        Asked::StepDown(None) => asked(word, "step-down"),
        Asked::StepDown(Some(to)) => asked(word, &format!("move to {to}")),
        Asked::Pause => asked(word, "pause"),
        Asked::Resume => asked(word, "resume"),
    }
}

/// What ends a drain by this word on its host.
pub fn end_of_drain(word: &Word) -> &'static str {
    if word.removal {
        "installing the package and starting putexd"
    } else {
        "\"putexctl undrain\""
    }
}

/// Why a service takes part no longer.
pub fn retirement(because: Retirement) -> &'static str {
    match because {
        Retirement::Stopped => "putexd is stopped",
        Retirement::Removed => "its file was removed",
        Retirement::Changed => "its units, its key or its mode were changed",
        Retirement::Unclaimed => "no usable file defines this service",
    }
}

/// Why a host does not take a lock.
pub fn bar(bar: &Bar) -> String {
    match bar {
        Bar::Stopped(word) | Bar::StopLost(word) => asked(word, "stopped everywhere"),
        Bar::Writing => "something is being written to the lock".to_owned(),
        Bar::Retiring { because } => retirement(*because).to_owned(),
        Bar::ShuttingDown => "this host is shutting down".to_owned(),
        Bar::Drained(word) => {
            let until = word
                .until
                .map(|until| format!(" until {}", date(until)))
                .unwrap_or_default();
            let drained = asked(word, "this host is drained");
            format!("{drained}{until}; {} ends it", end_of_drain(word))
        }
        Bar::Broken { error }
        | Bar::NotAdmitted { error, .. }
        | Bar::OtherLock { error }
        | Bar::EntryUnknown { error }
        | Bar::Outside { error } => error.clone(),
        Bar::Observed { runs } => {
            let runs = if *runs { "runs" } else { "does not run" };
            format!("it is only observed, and its unit {runs}")
        }
        Bar::StoreAway => "the store is out of reach".to_owned(),
        Bar::GuardAway => "the guard does not answer".to_owned(),
        Bar::UnitAlive => "the unit is not known to be dead".to_owned(),
        Bar::SharedName { machine } => {
            format!("machine {machine} renews the lock under this node's name")
        }
        Bar::CheckFails { error } => format!("the standby check fails: {error}"),
        Bar::CheckPending => "the standby check has not passed yet".to_owned(),
        Bar::BackOff { because, .. } => {
            format!("it waits before it takes the lock again, since {because}")
        }
        Bar::Unknown => "for a reason that only a later version of putexd knows".to_owned(),
    }
}

/// Why a host does not take a lock, and the time until it tries again, where that is all that keeps it from it.
pub fn bar_and_pause(why: &Bar, left: Option<Duration>) -> String {
    let (Bar::BackOff { because, failures }, Some(left)) = (why, left) else {
        return bar(why);
    };
    let left = rounded(left);
    if *failures == 0 {
        return format!("tries again in {left}: {because}");
    }
    format!(
        "tries again in {left}, at once after \"systemctl reload putexd\"; failed {failures} times in a row: {because}"
    )
}

/// Something that comes after `span`.
pub fn ahead(span: Duration) -> String {
    if span.is_zero() {
        "at once".to_owned()
    } else {
        format!("in {}", rounded(span))
    }
}

/// When a host may start the unit, and whose unit may still live.
pub fn entitlement(until: At, former: Option<&(String, Seen)>, now: At) -> String {
    let begins = format!("starts {}", ahead(until.until(now)));
    match former {
        _ if until <= now => begins,
        Some((name, seen)) => {
            let span = rounded(seen.at().since(now));
            format!("{begins}: {name} has not renewed for {span}, and its unit may live")
        }
        None => format!("{begins}: nothing shows that the last holder's unit is dead"),
    }
}

/// When something was last heard of a holder.
fn seen(seen: Seen, now: At) -> String {
    let span = rounded(seen.at().since(now));
    match seen {
        Seen::Renewed(_) => format!(" and last renewed {span} ago"),
        Seen::Found(_) => format!(", found {span} ago"),
    }
}

/// What a service waits for at `now`. It fits behind "it".
pub fn wait(wait: &Wait, now: At) -> String {
    let in_time = |at: &At| ahead(at.until(now));
    let taken = |at: &Option<At>| {
        at.map_or_else(String::new, |at| {
            format!("; it may be taken {}", in_time(&at))
        })
    };
    match wait {
        Wait::Entitlement { until, former } => entitlement(*until, former.as_ref(), now),
        Wait::Fencing { hosts } => format!("waits until {} is fenced", hosts.join(" and ")),
        Wait::Renewal { since, deadline } => format!(
            "last renewed {} ago; stops {} unless the store takes a renewal before",
            rounded(since.since(now)),
            in_time(deadline)
        ),
        Wait::Proof {
            cause,
            until,
            on_stop_failure,
        } => {
            let mut text = "waits until the unit is proven dead".to_owned();
            if on_stop_failure.is_self_fence() {
                text.extend([", or ", on_stop_failure.consequence(), " ", &in_time(until)]);
            }
            match cause {
                StopCause::Release(cause) => format!("{text}: {cause}"),
                StopCause::Lapse(cause) => format!("{text}: {cause}"),
            }
        }
        Wait::Store { holder } => {
            let last = holder.as_ref().map_or_else(String::new, |(holder, at)| {
                format!("; {holder} held the lock{}", seen(*at, now))
            });
            format!("waits for the store, and starts nothing before{last}")
        }
        Wait::Holder {
            holder,
            runs,
            seen: at,
            take_at,
        } => {
            let holds = if *runs {
                "holds the lock"
            } else {
                "has claimed the lock"
            };
            format!("{holder} {holds}{}{}", seen(*at, now), taken(take_at))
        }
        Wait::OwnRecord { take_at, .. } => {
            format!("the last record seen is this host's own{}", taken(take_at))
        }
        Wait::Other { services } => format!(
            "begins when {} has stopped here, which has the same unit or lock",
            services.join(" and ")
        ),
    }
}

/// Why a host would not take the lock of a service. It fits behind the host's name.
pub fn not_taking(why: &NotTaking, now: At) -> String {
    match why {
        NotTaking::Drained(word) => format!("is {}", asked(word, "drained")),
        NotTaking::Unseen => "has not been heard of".to_owned(),
        NotTaking::Silent(since) => {
            format!("has not reported for {}", rounded(since.since(now)))
        }
        NotTaking::NoService => "does not have it".to_owned(),
        NotTaking::OtherKey(key) => format!("has another key for it, {key}"),
        NotTaking::Barred(why) => format!("would not take it: {}", bar(why)),
    }
}

/// Why a host does not know all that there is. What to do comes first.
pub fn missing(missing: &Missing) -> String {
    match missing {
        Missing::StoreAway(error) => format!("see that the store can be reached: {error}"),
        Missing::Refused(error) => {
            format!("allow putexd to write putex-host/ and putex-hosts/ in the store: {error}")
        }
        Missing::Unfit(why) => format!("{why}; hosts do not see each other"),
        Missing::TooMuch => {
            "look who may write to the store: the hosts' reports are too large".to_owned()
        }
        Missing::Unsealed(hosts) => format!(
            "compare the file of seal-key with that of {}, and look who may write to the store: reports in that name are not believed",
            hosts.join(", ")
        ),
    }
}

/// What is wrong with the store now. What to do about it comes first.
pub fn store_trouble(store: &StoreState, now: At) -> Option<String> {
    let (name, error) = (&store.store, store.error.as_ref());
    let what = match (store.silent_since, store.unwritten_since) {
        (Some(since), _) => format!("has given no answer for {}", rounded(since.since(now))),
        (None, Some(since)) => format!("has taken no write for {}", rounded(since.since(now))),
        (None, None) => {
            error?;
            "cannot be used".to_owned()
        }
    };
    let error = error.map_or_else(String::new, |error| format!(": {error}"));
    Some(format!(
        "see \"putexctl doctor\": the store ({name}) {what}{error}"
    ))
}

impl fmt::Display for ReleaseCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Barred(Bar::Drained(word)) => f.write_str(&asked(word, "this host is drained")),
            Self::Barred(why) => f.write_str(&bar(why)),
            Self::SteppedDown(StepDown::Order(asked)) => f.write_str(&order(asked)),
            Self::SteppedDown(StepDown::Stopped(word)) => {
                f.write_str(&asked(word, "stopped everywhere"))
            }
            Self::SteppedDown(StepDown::UnitsChanged) => {
                f.write_str("its units were changed while putexd was away")
            }
            Self::Retired(why) => f.write_str(retirement(*why)),
            Self::ClosedWhileAway => f.write_str("the lease was closed while putexd was away"),
            Self::UnitEnded { result, .. } => write!(f, "the unit has ended: {result}"),
            Self::UnitFails(why) => write!(f, "the unit only tries: {why}"),
            Self::CheckFailed(reason) => write!(f, "the active check fails: {reason}"),
            Self::CheckOverdue(ms) => {
                let age = rounded(Duration::from_millis(*ms));
                write!(f, "no health check has passed for {age}")
            }
            Self::StartFailed(reason) => write!(f, "the start failed: {reason}"),
            Self::GuardGone => f.write_str("the guard is gone"),
            Self::GuardRefusedLease(reason) => write!(f, "the guard refused the lease: {reason}"),
        }
    }
}

impl fmt::Display for LapseCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GuardRefusedExtension(reason) => {
                return write!(f, "the guard refused to extend the lease: {reason}");
            }
            Self::HeldBy(holder) => return write!(f, "{holder} holds the lock"),
            Self::NotRenewed => "the lease was not renewed in time",
            Self::ClockJumped => "the clock jumped and no renewal was won since",
            Self::Blanked => "the lock was blanked by somebody else",
            Self::Deleted => "the lock was deleted",
            Self::WroteOverAnother => "the store took a write of this host's over that of another",
            Self::Forged => "the store's answers are forged",
            Self::EndedWhileAway => "the lease ended while putexd was away",
            Self::StoreUnknown => "the lease's store is not known",
            Self::SystemdSilent => "nothing of the unit is left, and systemd does not answer",
        })
    }
}

#[cfg(test)]
mod tests;
