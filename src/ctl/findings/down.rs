//! A service that nobody is known to run: since when, why, and whether that is wrong yet.

use super::reasons;
use crate::cluster::report::OBSERVED;
use crate::ctl::found::{Found, Rank, Severity, When};
use crate::ctl::view::{HostView, NAMED, ServiceView, enumerated, report_of};
use crate::dbus::ServiceReport;

/// How long a service whose timings are not known may be without a running unit before that is wrong, in milliseconds.
const USUAL_FAILOVER_MS: u64 = 60_000;
/// A run that has ended so many seconds before a host took the lock was not a run of that host.
const BEFORE_S: u64 = 2;

/// What is known of a time that something has lasted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    Exact,
    /// It may be longer.
    AtLeast,
    /// It may be shorter.
    AtMost,
}

impl Bound {
    /// The words with `{0}` in the place of the time.
    const fn in_words(self) -> &'static str {
        match self {
            Self::Exact => "{0}",
            Self::AtLeast => "at least {0}",
            Self::AtMost => "at most {0}",
        }
    }
}

/// Since when nobody is known to run a service, by this host's clock, in seconds since 1970. `None`: somebody runs it, it is not to run,
/// or there is another word for it.
fn idle_since(view: &ServiceView) -> Option<(u64, Bound)> {
    let here = view.here.as_ref();
    // Whoever has the lock of a service that is stopped everywhere starts nothing. What nobody sees is told by another finding.
    if view.stopped.is_some() && matches!(view.state.as_str(), "no-holder" | "starting" | "lapsed") {
        return None;
    }
    let shown = match view.state.as_str() {
        // A clone of this host's disk renews the lock under this host's name.
        "held" if view.holder == view.node && here.is_some_and(|here| here.silent_ms.is_some()) => None,
        "held" if view.is_stale => None,
        "no-holder" | "starting" | "held" => here.and_then(|here| here.held_since).or(view.since),
        "stopping" => return view.since.map(|since| (since, Bound::Exact)),
        "lapsed" => view.since,
        _ => None,
    }?;
    // It counts from the last run, and not from the last try or the last record.
    let ran = here.and_then(|here| Some((here.ran_until?, &here.ran_on)));
    // Of another host the last renewal was seen, and it may have run the unit for a lease and a stop longer.
    let bound = |on: &str| if on.is_empty() || on == view.node { Bound::Exact } else { Bound::AtMost };
    // The present holder may have run it since it has the lock.
    let since = |until: u64, on: &str| if !on.is_empty() && on == view.holder { until } else { until.min(shown) };
    Some(ran.map_or((shown, Bound::AtLeast), |(until, on)| (since(until, on), bound(on))))
}

/// Whether each host that has the service and is there only observes it, so that it is not to run.
pub(in crate::ctl) fn is_only_observed(hosts: &[HostView], service: &str) -> bool {
    let reports = hosts.iter().filter(|host| !host.presence.is_gone()).filter_map(|host| report_of(host, service));
    let mut states = reports.map(|report| report.state.as_str()).peekable();
    states.peek().is_some() && states.all(|state| state == OBSERVED)
}

/// After so long without a running unit something is wrong with a service, in milliseconds.
pub(in crate::ctl) fn failover_ms(view: &ServiceView) -> u64 {
    let timings = view.here.as_ref().and_then(|here| here.timings.as_ref());
    let of = timings.map(|timings| match view.state.as_str() {
        "stopping" => timings.stop_limit_ms.saturating_add(timings.stop_budget_ms),
        _ => timings.failover_ms.max(timings.wait_ms),
    });
    of.unwrap_or(USUAL_FAILOVER_MS)
}

/// A holder that does not renew its lease.
pub(super) fn silence(view: &ServiceView) -> Option<Found> {
    if view.state != "silent" {
        return None;
    }
    let (here, holder, node) = (view.here.as_ref(), &view.holder, &view.node);
    let down = |rank, words: String, times: Vec<u64>| {
        let times = times.into_iter().map(When::Lasts).collect();
        Some(Found::with((Severity::Alarm, rank), &view.service, words, times, String::new()))
    };
    let silent = here.and_then(|here| here.silent_ms);
    if view.is_storeless || here.is_some_and(|here| here.state == "no-store") {
        let seen = silent.map_or_else(
            || format!("by the last that {node} has heard, {holder} held the lock"),
            |_| format!("{node} has last seen {holder} renew its lease {{0}} ago"),
        );
        let words = format!(
            "whether {holder} still runs it is not known, because {node} gets no answer from the store: {seen}"
        );
        return down(Rank::Threat, words, silent.into_iter().collect());
    }
    let Some(silent) = silent else {
        // This host has not seen it renew anything, as after a start of this putexd.
        return down(Rank::Down, format!("{holder} holds the lock, and does not report any more"), Vec::new());
    };
    let taken = here.and_then(|here| here.takeable_ms);
    let when = taken.map_or_else(String::new, |_| format!("; {node} may take over in {{1}}"));
    let words = format!("{holder} has not renewed its lease for {{0}}{when}");
    down(Rank::Down, words, [silent].into_iter().chain(taken).collect())
}

/// A holder of which nothing was heard since the store answers again.
pub(super) fn staleness(view: &ServiceView) -> Option<Found> {
    let words = match view.last_told_ms {
        Some(_) => {
            "{holder} had the lock when it last reported, {0} ago; its next report or renewal shows what its unit does"
        }
        None => "{holder} has the lock; its next report or renewal shows what its unit does",
    };
    let words = words.replace("{holder}", &view.holder);
    let times = view.last_told_ms.into_iter().map(When::Lasts).collect();
    let found = || Found::with((Severity::Progress, Rank::Down), &view.service, words, times, String::new());
    view.is_stale.then(found)
}

/// A service that nobody is known to run: in progress at first, and wrong when a failover would have ended long ago, or when an alarm
/// tells what prevents it.
pub(super) fn idleness(view: &ServiceView, hosts: &[HostView], prevents: Option<&Found>, now: u64) -> Option<Found> {
    let Some((since, bound)) = idle_since(view) else { return unknown(view) };
    let lasts_ms = now.saturating_sub(since).saturating_mul(1000);
    let is_late = lasts_ms > failover_ms(view);
    let lasts = bound.in_words();
    if let Some(alarm) = prevents.filter(|_| view.state != "stopping") {
        let words = format!("nobody has run it for {lasts}: {}", alarm.words.replace("{0}", "{1}"));
        let times = [When::Lasts(lasts_ms)].into_iter().chain(alarm.times.iter().cloned()).collect();
        let found = Found::with((Severity::Alarm, Rank::Down), &view.service, words, times, alarm.reason.clone());
        return Some(found.told_on(alarm.places.clone(), &alarm.place));
    }
    let stop = hosts.iter().find(|host| host.node == view.holder).and_then(|host| report_of(host, &view.service));
    let stop = stop.filter(|report| view.state == "stopping" && !report.waits.is_empty());
    if let Some(ServiceReport { waits, goes_down, .. }) = stop {
        let mut times = vec![When::Lasts(lasts_ms)];
        let left =
            goes_down.checked_sub(now).filter(|left| *left > 0).map(|left| When::Lasts(left.saturating_mul(1000)));
        let down = left.as_ref().map_or("", |_| "; the host goes down in {1} unless it is proven dead before");
        times.extend(left);
        let words = format!("{} has been stopping it for {lasts}: {{reason}}{down}", view.holder);
        return Some(Found::with((Severity::Alarm, Rank::Down), &view.service, words, times, waits.clone()));
    }
    let severity = match (view.state.as_str(), is_late) {
        // A host that never reports renews the lock.
        ("held", true) if renews(view) => Severity::Warning,
        (_, true) => Severity::Alarm,
        (_, false) => Severity::Progress,
    };
    let mut times = vec![When::Lasts(lasts_ms)];
    let words = idle_in_words(view, lasts, is_late, now, &mut times);
    Some(Found::with((severity, Rank::Down), &view.service, words, times, String::new()))
}

/// Whether the holder was seen to renew the lock lately.
fn renews(view: &ServiceView) -> bool {
    view.here.as_ref().is_none_or(|here| here.silent_ms.is_some())
}

/// Since when the holder has had the lock, as far as is known, and whether it may be longer.
fn taken(view: &ServiceView) -> (Option<u64>, bool) {
    let seen = view.here.as_ref().and_then(|here| Some((here.held_since?, here.held_longer)));
    match (seen, view.since) {
        // The holder itself has told since when.
        (Some((seen, true)), Some(since)) if since < seen => (Some(since), false),
        (Some((seen, longer)), _) => (Some(seen), longer),
        (None, since) => (since, false),
    }
}

/// `lasts`: the words for how long nobody has run it. `times` gets what is told beside that.
fn idle_in_words(view: &ServiceView, lasts: &str, is_late: bool, now: u64, times: &mut Vec<When>) -> String {
    let holder = &view.holder;
    let takes: Vec<String> =
        view.hosts.iter().filter(|candidate| candidate.eligible).map(|candidate| candidate.host.clone()).collect();
    let nobody_may = takes.iter().all(|host| host == holder);
    let here = view.here.as_ref();
    let (took, longer) = taken(view);
    let has_run =
        here.and_then(|here| here.ran_until).zip(took).is_none_or(|(ran, took)| ran.saturating_add(BEFORE_S) >= took);
    let has_run = if longer { here.is_none_or(|here| here.ran_on == *holder) } else { has_run };
    let mut took_words = || {
        times.push(When::Lasts(now.saturating_sub(took.unwrap_or(now)).saturating_mul(1000)));
        format!("{holder} took the lock {}{{{}}} ago", if longer { "at least " } else { "" }, times.len() - 1)
    };
    match view.state.as_str() {
        "no-holder" if nobody_may => {
            format!("nobody has run it for {lasts}, and no host may take it: {}", reasons(view))
        }
        "no-holder" => format!("nobody has run it for {lasts}; {} may take it", enumerated(&takes, NAMED)),
        "lapsed" if has_run => {
            format!(
                "nobody has run it for {lasts}: {holder} has stopped it without a release, and its record has to age first"
            )
        }
        "lapsed" if longer => {
            format!(
                "nobody has run it for {lasts}: {holder} has the lock and does not run it, and its record has to age first"
            )
        }
        "lapsed" => format!(
            "nobody has run it for {lasts}: {}, and gave up before it started anything; its record has to age first",
            took_words()
        ),
        "stopping" => format!("{holder} has been stopping it for {lasts}"),
        // Its record says that it may run the unit by now.
        "starting" if here.is_some_and(|here| here.ran_on == *holder && *holder != view.node) => {
            format!("{holder} has the lock, and is starting it")
        }
        "starting" => {
            let took = took_words();
            let mut place = |ms: u64| {
                times.push(When::Lasts(ms));
                times.len() - 1
            };
            let own = here.and_then(|here| here.starts_ms).filter(|_| *holder == view.node);
            let starts = own.or(view.starts_ms).map(|ms| format!(" in {{{}}}", place(ms))).unwrap_or_default();
            let remembers = view.hosts.iter().any(|candidate| candidate.host == *holder && candidate.remembered_ms > 0);
            let why = if remembers {
                "; it remembers a longer lease, as after a pause: see putexd-operations(7)"
            } else {
                ""
            };
            format!("nobody has run it for {lasts}: {took}, and starts it{starts}{why}")
        }
        // Its last report is of before, or this host cannot read reports.
        _ if is_late && !renews(view) => format!(
            "{}, and has neither been seen to renew it nor reported that it runs it; nobody has been known to run it for {lasts}",
            took_words()
        ),
        // Only a host that does not report stays so.
        _ if is_late => {
            format!(
                "{holder} has the lock, and whether it runs it is not known here, because {holder} does not report it"
            )
        }
        _ => format!("{}, and has not reported yet that it runs it", took_words()),
    }
}

/// A service of which this host does not know whether anybody runs it.
fn unknown(view: &ServiceView) -> Option<Found> {
    if view.state != "unknown" {
        return None;
    }
    // Where the store is away that is told by itself, and lasts as long.
    let severity = if view.is_storeless { Severity::Alarm } else { Severity::Progress };
    let text = if view.is_storeless {
        format!(
            "it does not run on {}, and whether another host runs it is not known while the store does not answer",
            view.node
        )
    } else {
        "whether anybody runs it is not known here".to_owned()
    };
    Some(Found::new(severity, Rank::Down, text))
}
