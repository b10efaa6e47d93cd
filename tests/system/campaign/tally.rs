//! Counts and times of a campaign.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use super::{inject::Injected, script::Fault};
use crate::watch::Event;

#[derive(Debug, Default)]
pub struct Tally {
    injected: BTreeMap<Fault, usize>,
    uninterrupted: BTreeMap<Fault, usize>,
    alone: BTreeMap<Fault, Vec<Duration>>,
    in_company: BTreeMap<Fault, Vec<Duration>>,
    gaps: Vec<Duration>,
    settled: Vec<Duration>,
    overlaps: Vec<Duration>,
    steps: usize,
    hand_overs: usize,
    restarts: usize,
    revivals: usize,
}

impl Tally {
    /// Adds a step that is over. `old` is the copy that ran when the step began, and `end` its end, if it has ended.
    /// `starts` are the starts since then, and `settled` is the time from the undoing of the last fault until the cluster
    /// was at rest.
    pub fn add_step(
        &mut self,
        injected: &[Injected],
        old: &Event,
        end: Option<Duration>,
        starts: &[Event],
        settled: Duration,
    ) {
        self.steps += 1;
        self.settled.push(settled);
        for injected in injected.iter().filter(|injected| injected.hit) {
            *self.injected.entry(injected.planned.fault).or_default() += 1;
        }
        let mut before = old;
        for start in starts {
            let counter = if start.host == before.host {
                &mut self.restarts
            } else {
                &mut self.hand_overs
            };
            *counter += 1;
            before = start;
        }
        let Some(cause) = cause(injected, end) else {
            return;
        };
        let fault = cause.planned.fault;
        let Some(new) = starts.first() else {
            *self.uninterrupted.entry(fault).or_default() += 1;
            return;
        };
        if let Some(end) = end {
            self.gaps.push(new.after(end));
        }
        let kind = if injected.len() == 1 {
            &mut self.alone
        } else {
            &mut self.in_company
        };
        kind.entry(fault).or_default().push(new.after(cause.at));
    }

    /// Counts a server that had to be restarted to recover, or a damaged lock that had to be cleared.
    pub fn add_revival(&mut self) {
        self.revivals += 1;
    }

    /// Sets how long each copy that had stood still lived on after the thaw while another one ran.
    pub fn set_overlaps(&mut self, after_thaw: Vec<Duration>) {
        self.overlaps = after_thaw;
    }

    pub fn report(&self, seed: u64, ran: Duration, violations: usize) -> String {
        let mut text = String::new();
        let mut line = |line: String| writeln!(text, "{line}").expect("a string takes all text");
        let faults: usize = self.injected.values().sum();
        line(format!(
            "campaign: seed {seed}, {:.1} minutes, {} steps, {faults} faults, {} hand-overs, {} starts on the same host, \
             {violations} violations",
            ran.as_secs_f64() / 60.0,
            self.steps,
            self.hand_overs,
            self.restarts,
        ));
        line(String::new());
        line(format!(
            "{:<40} {:^31}  {:^31}",
            "seconds from the fault to the next start", "alone", "among others"
        ));
        let columns = format!("{:>7} {:>7} {:>7} {:>7}", "runs", "p50", "p99", "max");
        line(format!(
            "{:<24} {:>6} {:>8} {columns}  {columns}",
            "fault", "injected", "no gap"
        ));
        for fault in Fault::ALL {
            let count = |of: &BTreeMap<Fault, usize>| of.get(&fault).copied().unwrap_or_default();
            let spans = |of: &BTreeMap<Fault, Vec<Duration>>| {
                of.get(&fault)
                    .map_or_else(String::new, |spans| columns_of(spans))
            };
            let (injected, uninterrupted) = (count(&self.injected), count(&self.uninterrupted));
            if injected > 0 {
                let (alone, in_company) = (spans(&self.alone), spans(&self.in_company));
                line(
                    format!(
                        "{:<24} {injected:>6} {uninterrupted:>8} {alone:>31}  {in_company:>31}",
                        fault.words()
                    )
                    .trim_end()
                    .to_owned(),
                );
            }
        }
        line(String::new());
        for (what, spans) in [
            ("from the end of one copy to the next start", &self.gaps),
            ("from the last undoing to all at rest", &self.settled),
            ("both alive after the thaw of a frozen host", &self.overlaps),
        ] {
            let spans = if spans.is_empty() {
                format!("{:>7}", 0)
            } else {
                columns_of(spans)
            };
            line(format!("{what:<44} {spans}"));
        }
        line(format!(
            "{:<44} {:>7}",
            "servers revived, damaged locks cleared", self.revivals
        ));
        text
    }
}

/// The fault to which a change of holder is attributed: the first that concerns the active host or the store, hit, and
/// was injected before the old copy ended. If there is none, the first fault of the step.
fn cause(injected: &[Injected], end: Option<Duration>) -> Option<&Injected> {
    let in_time = |injected: &&Injected| injected.hit && end.is_none_or(|end| injected.at <= end);
    let concerned = injected
        .iter()
        .filter(|injected| injected.active || injected.host.is_none())
        .filter(in_time);
    concerned
        .min_by_key(|injected| injected.at)
        .or_else(|| injected.iter().min_by_key(|injected| injected.at))
}

fn columns_of(spans: &[Duration]) -> String {
    let mut sorted = spans.to_vec();
    sorted.sort();
    let seconds = |percent: usize| quantile(&sorted, percent).as_secs_f64();
    format!(
        "{:>7} {:>7.3} {:>7.3} {:>7.3}",
        sorted.len(),
        seconds(50),
        seconds(99),
        seconds(100)
    )
}

/// The smallest value that at least `percent` of all values do not exceed. `sorted` must not be empty.
fn quantile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let spans: Vec<Duration> = (1..=200).map(Duration::from_secs).collect();
        let of = |percent| quantile(&spans, percent).as_secs();
        assert_eq!((of(50), of(99), of(100)), (100, 198, 200));
        assert_eq!(quantile(&spans[..1], 50), Duration::from_secs(1));
    }
}
