//! Who ran a service from when to when, as far as its history and the present state of the cluster tell.

use serde::Serialize;
use serde_with::skip_serializing_none;

use super::output::{Cell, Style};
use crate::{
    cluster::history::{End, Known, Length, Run, Start},
    facts::{Activity, ServiceSummary},
};

/// The past of one service, as `--json` prints it.
#[derive(Serialize)]
pub struct Past {
    /// The service.
    pub service: String,
    /// The tenures that are kept, the latest last.
    pub runs: Vec<PastRun>,
}

/// One tenure.
#[skip_serializing_none]
#[derive(Serialize)]
pub struct PastRun {
    #[serde(flatten)]
    pub run: Run,
    /// For how long nobody ran the service before. `None`: that is not known, or an operator had it stopped.
    pub gap: Option<Length>,
    /// The host that was not heard of again, and after which this one took over.
    pub takeover: Option<String>,
    /// Whether it is known to go on.
    pub goes_on: bool,
}

impl Past {
    /// What `service`, its present state, and `runs`, the history, tell.
    pub fn new(service: &ServiceSummary, mut runs: Vec<Run>) -> Self {
        // What has ended some time before it was looked at, or at a time that nobody has written, had ended when the next one began.
        for place in 1..runs.len() {
            let next_ms = runs[place].at_ms();
            let end = runs[place - 1].end.get_or_insert(End {
                at_ms: next_ms,
                known: Known::AtMost,
            });
            if end.known == Known::AtMost {
                end.at_ms = end.at_ms.min(next_ms);
            }
        }
        let mut shown: Vec<PastRun> = Vec::with_capacity(runs.len());
        for run in runs {
            let mut before = shown.iter().rev();
            let before = before.find(|before| before.run.start != Start::Failed);
            let before = before.map(|before| &before.run);
            let silent = before.filter(|before| before.is_silent() && before.host != run.host);
            shown.push(PastRun {
                gap: before.and_then(|before| run.gap_after(before)),
                takeover: silent.map(|silent| silent.host.clone()),
                goes_on: goes_on(&run, service),
                run,
            });
        }
        Self {
            service: service.service.clone(),
            runs: shown,
        }
    }
}

/// Whether a run of which nobody has written the end goes on. The next holder writes that if it does not.
fn goes_on(run: &Run, service: &ServiceSummary) -> bool {
    let activity = service.activity;
    let runs = activity.runs()
        || activity == Activity::Stopping
        || activity == Activity::Held && service.said.is_none();
    run.end.is_none()
        && runs
        && service.holder.as_ref() == Some(&run.host)
        && service.token.is_none_or(|token| token <= run.token)
}

/// How long a run has lasted.
pub fn lasted(PastRun { run, goes_on, .. }: &PastRun, now_ms: u64) -> Cell {
    let length = run.length(now_ms).map(|length| length.to_string());
    let length = length.unwrap_or_else(|| "?".to_owned());
    match (run.start, goes_on, run.end) {
        (Start::Failed, ..) => Cell::styled("failed", Style::Bad),
        (_, true, _) => Cell::styled(format!("{length} so far"), Style::Good),
        (_, false, None) => Cell::styled(format!("≤ {length}"), Style::Notable),
        (_, false, Some(_)) => length.into(),
    }
}

/// Why it ended; empty: that is not known, or it goes on.
pub fn ended(run: &Run) -> &str {
    if run.is_silent() && run.ended.is_empty() {
        "not heard of again"
    } else {
        &run.ended
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW, run, service, small};
    use super::*;
    use crate::facts::At;

    fn past(runs: Vec<Run>, change: impl FnOnce(&mut ServiceSummary)) -> Past {
        let mut cluster = small();
        let db = service(&mut cluster, "db");
        db.token = Some(7);
        change(db);
        Past::new(db, runs)
    }

    #[test]
    fn a_run_goes_on_while_its_host_holds_the_lock() {
        let last = |change: fn(&mut ServiceSummary)| {
            let past = past(vec![run(-100, "h1", 7, None, "")], change);
            past.runs[0].goes_on
        };
        assert!(last(|_| {}));
        for change in [
            |service: &mut ServiceSummary| {
                (service.activity, service.said) = (Activity::Held, Some(At(1)));
            },
            |service: &mut ServiceSummary| service.activity = Activity::Silent,
            |service: &mut ServiceSummary| service.activity = Activity::Unknown,
            |service: &mut ServiceSummary| service.activity = Activity::Lapsed,
            // Another one holds it, or nobody, or it holds it anew and has not started anything.
            |service: &mut ServiceSummary| service.holder = Some("h2".to_owned()),
            |service: &mut ServiceSummary| {
                (service.activity, service.holder) = (Activity::NoHolder, None);
            },
            |service: &mut ServiceSummary| service.token = Some(8),
        ] {
            assert!(!last(change));
        }
    }

    #[test]
    fn a_run_whose_end_nobody_has_written_had_ended_when_the_next_one_began() {
        let runs = vec![
            run(-100, "h1", 7, None, ""),
            run(-20, "h2", 8, Some((-10, Known::Exactly)), "it failed"),
        ];
        let shown = past(runs, |_| {}).runs;
        let lasted = shown[0]
            .run
            .length(NOW * 1000)
            .map(|length| length.to_string());
        assert_eq!(lasted.as_deref(), Some("≤ 80s"));
        assert_eq!(shown[1].gap, None, "it is not known");
    }

    #[test]
    fn a_start_that_failed_is_a_part_of_the_gap() {
        let failed = Run {
            start: Start::Failed,
            ..run(-20, "h2", 8, Some((-20, Known::Exactly)), "exit status 1")
        };
        let runs = vec![
            run(-100, "h1", 7, Some((-30, Known::Exactly)), "it failed"),
            failed,
            run(-10, "h1", 9, None, ""),
        ];
        let shown = past(runs, |_| {}).runs;
        let gaps: Vec<_> = shown
            .into_iter()
            .map(|shown| shown.gap.map(|gap| gap.ms))
            .collect();
        assert_eq!(gaps, [None, None, Some(20_000)]);
    }
}
