//! Who ran a service from when to when, as far as its history and the present state of the cluster tell.

use serde::Serialize;

use super::output::{Cell, Style};
use super::view::ServiceView;
use crate::cluster::history::{End, Known, Length, Run, Start};

/// The past of one service, as `--json` prints it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Past {
    /// The service.
    pub(super) service: String,
    /// The tenures that are kept, the latest last.
    pub(super) runs: Vec<Shown>,
    /// Since when nobody has run it although no operator has it stopped, in milliseconds since 1970. `None`: somebody runs it, or nobody
    /// knows.
    pub(super) down_since_ms: Option<u64>,
}

/// One tenure.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Shown {
    #[serde(flatten)]
    pub(super) run: Run,
    /// For how long nobody ran the service before. `None`: that is not known, or an operator had it stopped.
    pub(super) gap: Option<Length>,
    /// Whether it goes on. `None`: nobody knows.
    pub(super) goes_on: Option<bool>,
}

impl Past {
    /// What `runs`, the history, and `service`, its present state, tell at `now_ms`.
    pub(super) fn new(name: &str, mut runs: Vec<Run>, service: Option<&ServiceView>, now_ms: u64) -> Self {
        let goes_on = match (runs.last_mut(), service) {
            (Some(last), Some(service)) if last.end.is_none() => settle(last, service, now_ms),
            (Some(last), None) if last.end.is_none() => None,
            _ => Some(false),
        };
        let is_down = service.is_some_and(|service| {
            matches!(service.state.as_str(), "no-holder" | "starting" | "lapsed") && service.stopped.is_none()
        });
        let since = |run: &Run| run.end.filter(|_| !run.stopped).map(|end| end.at_ms);
        let down_since_ms = runs.last().filter(|_| is_down).and_then(since);
        let mut shown: Vec<Shown> = Vec::with_capacity(runs.len());
        for run in runs {
            let before = shown.iter().rev().find(|before| before.run.start != Start::Failed);
            let gap = before.and_then(|before| run.gap_after(&before.run));
            shown.push(Shown { run, gap, goes_on: Some(false) });
        }
        if let Some(last) = shown.last_mut() {
            last.goes_on = goes_on;
        }
        Self { service: name.to_owned(), runs: shown, down_since_ms }
    }
}

/// Whether a run of which nobody has written the end goes on at `now_ms`. One that does not gets the end that is known.
fn settle(last: &mut Run, service: &ServiceView, now_ms: u64) -> Option<bool> {
    let here = service.here.as_ref();
    let is_holder = service.holder == last.host && (service.token == 0 || service.token <= last.token);
    match service.state.as_str() {
        "unknown" | "broken" => return None,
        "running" | "paused" | "stopping" if is_holder => return Some(true),
        "held" if is_holder => return (!service.is_stale).then_some(true),
        "silent" if is_holder => return None,
        _ => {}
    }
    let seen =
        here.filter(|here| here.ran_on == last.host && here.ran_on != service.node).and_then(|here| here.ran_until);
    let seen = seen.map(|seen| seen.saturating_mul(1000)).filter(|seen| *seen >= last.at_ms());
    let (at_ms, known) = if let Some(seen) = seen {
        (seen, Known::AtLeast)
    } else {
        // It is told in whole seconds, and may be of an earlier time.
        let since = service.since.map(|since| since.saturating_mul(1000).saturating_add(999));
        let since = since.filter(|since| !is_holder && *since >= last.at_ms()).unwrap_or(now_ms);
        (since.min(now_ms), Known::AtMost)
    };
    last.end = Some(End { at_ms, known });
    Some(false)
}

/// How long a run has lasted.
pub(super) fn lasted(run: &Run, goes_on: Option<bool>, now_ms: u64) -> Cell {
    let length = run.length(now_ms).map(|length| length.to_string());
    match (run.start, goes_on, length) {
        (Start::Failed, ..) => Cell::styled("failed", Style::Bad),
        (_, Some(true), Some(length)) => Cell::styled(format!("{length} so far"), Style::Good),
        (_, Some(true), None) => Cell::styled("so far", Style::Good),
        (_, None, Some(length)) => Cell::styled(format!("≤ {length}"), Style::Notable),
        (_, Some(false), Some(length)) => Cell::new(length),
        (_, None | Some(false), None) => Cell::new("?"),
    }
}

/// Why it began and ended.
pub(super) fn why(run: &Run) -> String {
    let began = if run.began.is_empty() { "start not seen" } else { &run.began };
    let ended = match (run.end.map(|end| end.known), run.ended.as_str()) {
        (None, _) => return began.to_owned(),
        (Some(Known::AtLeast), "") => "not heard of again",
        (Some(Known::AtMost | Known::Exactly), "") => "end not seen",
        (Some(_), ended) => ended,
    };
    if run.start == Start::Failed {
        format!("{began} → not started: {ended}")
    } else {
        format!("{began} → {ended}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW, run, small};
    use super::*;

    const NOW_MS: u64 = NOW * 1000;

    fn past(runs: Vec<Run>, change: impl FnOnce(&mut ServiceView)) -> Past {
        let mut view = small().view();
        let service = view.services.iter_mut().find(|service| service.service == "db").expect("it is there");
        (service.state, service.holder, service.token, service.is_stale) =
            ("running".to_owned(), "h1".to_owned(), 7, false);
        change(service);
        Past::new("db", runs, Some(service), NOW_MS)
    }

    #[test]
    fn a_run_goes_on_while_its_host_holds_the_lock() {
        let open = || vec![run(-100, "h1", 7, None, "")];
        let last = |change: fn(&mut ServiceView)| past(open(), change).runs.pop().expect("one");
        assert_eq!(last(|_| {}).goes_on, Some(true));
        assert_eq!(last(|service| (service.state, service.is_stale) = ("held".to_owned(), true)).goes_on, None);
        for state in ["silent", "unknown", "broken"] {
            let service = |service: &mut ServiceView| service.state = state.to_owned();
            assert_eq!(past(open(), service).runs[0].goes_on, None, "{state}");
        }
        // Another one holds it, or nobody, or it holds it anew and has not started anything.
        let other = last(|service| (service.holder, service.since) = ("h2".to_owned(), Some(NOW - 10)));
        let end = End { at_ms: NOW_MS - 10_000 + 999, known: Known::AtMost };
        assert_eq!((other.goes_on, other.run.end), (Some(false), Some(end)));
        for change in [
            |service: &mut ServiceView| (service.state, service.holder) = ("no-holder".to_owned(), String::new()),
            |service: &mut ServiceView| service.token = 8,
            |service: &mut ServiceView| service.state = "lapsed".to_owned(),
        ] {
            assert_eq!(past(open(), change).runs[0].goes_on, Some(false));
        }
    }

    #[test]
    fn it_is_down_since_the_last_end_unless_an_operator_has_it_stopped() {
        let down =
            |service: &mut ServiceView| (service.state, service.holder) = ("no-holder".to_owned(), String::new());
        let ended = || run(-100, "h1", 7, Some((-30, Known::Exactly)), "it failed");
        assert_eq!(past(vec![ended()], down).down_since_ms, Some(NOW_MS - 30_000));
        assert_eq!(past(vec![Run { stopped: true, ..ended() }], down).down_since_ms, None);
        assert_eq!(past(vec![ended()], |_| {}).down_since_ms, None);
        assert_eq!(past(Vec::new(), down).down_since_ms, None);
    }

    #[test]
    fn a_start_that_failed_is_a_part_of_the_gap() {
        let failed = Run { start: Start::Failed, ..run(-20, "h2", 8, Some((-20, Known::Exactly)), "exit status 1") };
        let runs =
            vec![run(-100, "h1", 7, Some((-30, Known::Exactly)), "it failed"), failed, run(-10, "h1", 9, None, "")];
        let gaps: Vec<_> = past(runs, |_| {}).runs.into_iter().map(|shown| shown.gap.map(|gap| gap.ms)).collect();
        assert_eq!(gaps, [None, None, Some(20_000)]);
    }
}
