//! The two clocks of each host, each with a rate of its own, and the time that passes for all hosts.

use std::time::Duration;

use super::{Both, World};
use crate::{
    plan::{Fault, TICK},
    types::Time,
};

/// A clock's true rate.
pub(super) const TRUE_RATE: u64 = 1_000_000;

/// Time does not stop for an event that is due in less than this.
const LEAST: Duration = Duration::from_millis(5);

/// What a host's clocks show when it boots.
pub(super) const BOOT: Duration = Duration::from_secs(1000);

impl World {
    pub(super) fn change_rate(&mut self, n: usize, boot: u64, raw: u64) {
        let error = u64::from(self.nodes[n].timings.clock_error_ppm);
        let within = |rate: u64| rate.abs_diff(TRUE_RATE) <= error;
        let fault = match (within(boot), within(raw)) {
            (true, true) => Fault::Rate,
            (false, false) => Fault::WrongRate,
            _ => Fault::Slew,
        };
        self.spend(if self.may(fault) { fault } else { Fault::Slew });
        self.node(n).rates = (boot, raw);
    }

    pub(super) fn tick(&mut self) {
        self.both = Both::No;
        let into = Duration::from_nanos(nanos(self.elapsed) % nanos(TICK));
        let mut span = TICK.saturating_sub(into);
        if self.plan.exact {
            let due = (0..self.nodes.len())
                .filter_map(|n| self.next_instant(n))
                .min();
            span = span.min(due.unwrap_or(span));
        }
        self.elapsed += span;
        for n in 0..self.nodes.len() {
            let node = self.node(n);
            if node.clocks_stand {
                node.wall_ahead += span;
            } else {
                let (boot, raw) = node.rates;
                node.clock.boot += scaled(span, boot);
                node.clock.raw += scaled(span, raw);
            }
            self.enforce(n);
        }
        if self.calm {
            self.quiet = if self.is_served() {
                Duration::ZERO
            } else {
                self.quiet + span
            };
            for n in 0..self.nodes.len() {
                if let Some(daemon) = self.daemon(n) {
                    daemon.heartbeat = true;
                }
            }
        }
    }

    /// The real time until a guard or a daemon has something to do, at least [`LEAST`].
    fn next_instant(&self, n: usize) -> Option<Duration> {
        let node = &self.nodes[n];
        if !node.runs() {
            return None;
        }
        let dead_by = node.guard.armed.map(|(_, dead_by)| dead_by);
        // When all is calm, a daemon may be late by a part of a tick.
        let wakes = node.daemon.as_ref().filter(|_| !self.calm);
        let wake = wakes.and_then(|daemon| daemon.election.poll_timeout());
        let points = [node.guard.table.poll_timeout(), dead_by, wake];
        let until = |at: Time| {
            let spans = [
                (at.boot.saturating_sub(node.clock.boot), node.rates.0),
                (at.raw.saturating_sub(node.clock.raw), node.rates.1),
            ];
            spans
                .into_iter()
                .map(|(span, rate)| unscaled(span, rate))
                .filter(|span| *span >= LEAST)
                .min()
        };
        points.into_iter().flatten().filter_map(until).min()
    }
}

pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).expect("a search's time is short")
}

fn scaled(span: Duration, rate: u64) -> Duration {
    Duration::from_nanos(nanos(span) * (rate / 1000) / (TRUE_RATE / 1000))
}

fn unscaled(span: Duration, rate: u64) -> Duration {
    Duration::from_nanos((nanos(span) * (TRUE_RATE / 1000)).div_ceil((rate / 1000).max(1)))
}
