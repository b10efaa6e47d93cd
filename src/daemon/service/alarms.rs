//! The alarms of a service: how they are raised, and when they are over.

use std::time::Duration;

use super::{Service, Standpoint};
use crate::cluster::alarm::AlarmStatus;
use crate::cluster::history::What;
use crate::daemon::restarts::service_time;
use crate::election::{Heard, Hindrance, Stage, State, Waiting};
use crate::journal::{self, Alarm};
use crate::types::{FencingToken, Time, span};

/// How often a service fails, here or as far as tenures show elsewhere, before that is an alarm.
const FAILURES: u32 = 3;

/// How long a service that has failed here may be without a holder before that is an alarm.
const ALONE: Duration = Duration::from_secs(10);

/// How long another host has to hold the lock for its unit to count as running well. It may hold the lock during a start that
/// takes long and fails.
const WELL_ELSEWHERE: Duration = Duration::from_secs(60);

/// Where the unit runs, as far as this host knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runs {
    Here,
    Elsewhere,
    Nowhere,
    /// It is alive here, and systemd is starting it again.
    Tries,
    /// The store does not answer this host, so that nothing is judged.
    Unknown,
}

/// Whether the service fails on this host for as long as to be an alarm. Where each host starts a unit that crashes, and lets the
/// lock go, each of them looks like a calm standby most of the time.
#[derive(Debug, Default)]
pub(super) struct Failing {
    /// The failures on this host since the unit has last run well.
    failures: u32,
    /// The tenures that have begun since.
    tenures: u32,
    token: FencingToken,
    /// Since when the unit runs in the present tenure, and where.
    since: Option<(Runs, Time)>,
    stands: bool,
    /// Whether systemd has restarted the unit again and again, so that it has to run for longer to count as running well.
    only_tries: bool,
}

impl Failing {
    /// Whether the alarm stands.
    pub(super) fn stands(&self) -> bool {
        self.stands
    }

    /// Whether the service has failed here since it has last run well.
    pub(super) fn is_counting(&self) -> bool {
        self.failures > 0
    }

    fn fail(&mut self) {
        self.failures += 1;
        self.since = None;
    }

    /// Returns whether the alarm stands. `lease` is how long the unit has to run here to count as running well.
    fn look(&mut self, runs: Runs, token: FencingToken, lease: Duration, now: Time) -> bool {
        if self.failures == 0 {
            self.token = token;
            return false;
        }
        if token > self.token {
            self.token = token;
            self.tenures += 1;
            self.since = None;
        }
        if matches!(runs, Runs::Tries | Runs::Unknown) {
            if runs == Runs::Tries {
                self.since = None;
            }
            return self.stands;
        }
        if self.since.is_none_or(|(before, _)| before != runs) {
            self.since = Some((runs, now));
        }
        let lasts = self.since.map_or(Duration::ZERO, |(_, since)| now.since_at_least(since));
        match runs {
            Runs::Here if lasts >= lease => *self = Self { token, ..Self::default() },
            Runs::Elsewhere if lasts >= WELL_ELSEWHERE => *self = Self { token, ..Self::default() },
            Runs::Nowhere if lasts >= ALONE => self.stands = true,
            Runs::Here | Runs::Elsewhere | Runs::Nowhere | Runs::Tries | Runs::Unknown => {}
        }
        self.stands |= self.failures.max(self.tenures) >= FAILURES;
        self.stands
    }
}

impl Service {
    /// Raises an alarm about this service, in the journal and among those that stand.
    pub(super) fn raise(&self, kind: Alarm, reason: &str) {
        let service = Some((&self.settings.name, &self.settings.unit));
        journal::alarm(kind, &journal::Subject { service, ..journal::Subject::default() }, reason);
        self.alarms.raise(kind, reason, self.host.machine.now(), self.host.machine.wall());
        // The history has what was wrong, and not that it is over.
        if kind.level() != tracing::Level::INFO {
            self.note(What::Alarm, format!("{}: {reason}", kind.name()));
        }
    }

    /// Notes why a start, or the unit after it, has failed on this host.
    pub(super) fn fails(&mut self, why: String) {
        self.failing.fail();
        self.failure = Some((self.host.machine.wall(), why));
    }

    /// As [`fails`](Self::fails), of a unit that has failed often enough to be an alarm.
    pub(super) fn fails_for_good(&mut self, why: String) {
        self.failing.failures = self.failing.failures.max(FAILURES - 1);
        self.failing.only_tries = true;
        self.fails(why);
    }

    /// Ends the alarms whose cause is over, and raises that of a service that fails. It costs next to nothing where there is no
    /// alarm.
    pub(super) fn settle_alarms(&mut self, now: Time) {
        if self.host.fencings.has_words()
            && let Some(Waiting::Holder { holder, heard: Heard::Renewed(at), .. }) = self.election.waiting(now)
            && self.host.fencings.see(&holder, at)
        {
            tracing::warn!("{holder} is seen again, and is fenced again where that is necessary");
            if !self.host.fencings.has_word_now(now) {
                self.host.tidings.end(Alarm::ConfirmedDead);
            }
        }
        self.judge_failures(now);
        if let Some(word) = self.election.lost_stop(now)
            && self.election.state() == State::Standby
            && !self.alarms.kinds(now).contains(&Alarm::StopLost)
        {
            self.raise(Alarm::StopLost, &word.in_words("it was stopped everywhere"));
        }
        for kind in self.alarms.kinds(now) {
            if self.is_over(kind, now) && self.alarms.end(kind) {
                journal::over(kind, Some((&self.settings.name, &self.settings.unit)));
            }
        }
    }

    fn judge_failures(&mut self, now: Time) {
        let runs = if self.failing.failures == 0 { Runs::Nowhere } else { self.runs(now) };
        let (token, lease) = (self.election.token(), self.settings.timings.lease());
        let lease = if self.failing.only_tries { service_time(lease) } else { lease };
        let (stood, has_failed) = (self.failing.stands, self.failing.is_counting());
        if self.failing.look(runs, token, lease, now)
            && !stood
            && let Some((_, why)) = &self.failure
        {
            self.raise(Alarm::ServiceFails, why);
        }
        if has_failed && !self.failing.is_counting() {
            // It runs well, here or elsewhere, so that the failure is history.
            self.failure = None;
        }
    }

    fn runs(&self, now: Time) -> Runs {
        match (self.election.state(), self.election.waiting(now)) {
            (State::Active, _) if self.serves == Some(false) => Runs::Tries,
            (State::Active, _) => Runs::Here,
            (_, Some(Waiting::Holder { stage: Stage::Runs, .. })) => Runs::Elsewhere,
            (_, Some(Waiting::Store { .. })) => Runs::Unknown,
            _ => Runs::Nowhere,
        }
    }

    fn is_over(&self, kind: Alarm, now: Time) -> bool {
        let state = self.election.state();
        let may_run = matches!(state, State::Starting | State::Active);
        let is_dead = self.undead.is_none() && self.alive.is_empty();
        match kind {
            Alarm::SharedName => !self.election.shares_its_name(now),
            Alarm::StrayUnit => may_run || is_dead,
            Alarm::Ungated => !self.admission.as_ref().is_err_and(super::Refusal::is_ungated),
            Alarm::LeftControlGroup => self.strayed.is_none() && self.outside.is_empty(),
            Alarm::StopFailed => may_run || (is_dead && !matches!(state, State::Releasing | State::Lapsing)),
            Alarm::OddRecord => self.election.revision() != self.odd_at,
            Alarm::NewerRecord => !self.election.shows_newer_record(),
            // The fence has succeeded, or another host runs the unit by now.
            Alarm::FenceFailed => may_run || self.runs(now) == Runs::Elsewhere,
            Alarm::CheckFailed => self.checker.is_none() || self.healthy,
            Alarm::OtherLock => !matches!(self.registration, Standpoint::Refused(_)),
            Alarm::ServiceFails => !self.failing.stands,
            Alarm::Frozen => !self.frozen,
            Alarm::StopLost => self.election.lost_stop(now).is_none(),
            // These are shown for a while, or are no alarms of a service.
            Alarm::StoreLost
            | Alarm::StoreFound
            | Alarm::Regression
            | Alarm::ClockJump
            | Alarm::SelfFence
            | Alarm::ConfigurationBroken
            | Alarm::ConfigurationReloaded
            | Alarm::CheckRecovered
            | Alarm::OneLock
            | Alarm::NotToBeFenced
            | Alarm::ConfirmedDead
            | Alarm::ForgedAnswer
            | Alarm::Forgeable
            | Alarm::Drained
            | Alarm::Undrained
            | Alarm::GuardGone
            | Alarm::SystemdSilent
            | Alarm::NoDescriptors
            | Alarm::Lapsed
            | Alarm::Over => false,
        }
    }

    /// The alarms that stand, for the status.
    pub(super) fn told_alarms(&self, now: Time) -> Vec<AlarmStatus> {
        let mut told = self.alarms.told();
        if self.failing.stands
            && let Some(Hindrance::BackOff(Waiting::BackOff { until, .. })) = self.election.hindrance(now)
            && let fails = Alarm::ServiceFails.kind()
            && let Some(alarm) = told.iter_mut().find(|alarm| alarm.kind == fails)
        {
            // A point in time stays the same, so that the status does not change with every look.
            let at = self.host.machine.wall() + now.until_waited(until);
            alarm.reason.push_str("; next try at ");
            alarm.reason.push_str(&span::date(at.as_secs()));
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(3);

    fn at(seconds: u64) -> Time {
        Time::both(Duration::from_secs(seconds))
    }

    #[test]
    fn one_failure_is_no_alarm_if_another_host_takes_over() {
        let mut failing = Failing::default();
        assert!(!failing.look(Runs::Here, FencingToken(1), LEASE, at(0)));
        failing.fail();
        assert!(!failing.look(Runs::Nowhere, FencingToken(1), LEASE, at(1)));
        for second in 2..100 {
            assert!(!failing.look(Runs::Elsewhere, FencingToken(2), LEASE, at(second)));
        }
        assert_eq!(failing.failures, 0, "it runs well elsewhere");
    }

    #[test]
    fn a_service_that_fails_on_each_host_is_an_alarm_on_each_until_it_runs_for_a_lease() {
        let mut failing = Failing::default();
        failing.fail();
        assert!(!failing.look(Runs::Nowhere, FencingToken(1), LEASE, at(0)));
        assert!(!failing.look(Runs::Elsewhere, FencingToken(2), LEASE, at(3)));
        assert!(failing.look(Runs::Elsewhere, FencingToken(3), LEASE, at(6)), "three tenures, one after the other");
        assert!(failing.look(Runs::Here, FencingToken(4), LEASE, at(10)));
        failing.fail();
        assert!(failing.look(Runs::Nowhere, FencingToken(4), LEASE, at(12)));
        assert!(failing.look(Runs::Here, FencingToken(5), LEASE, at(20)));
        assert!(failing.look(Runs::Here, FencingToken(5), LEASE, at(22)));
        assert!(!failing.look(Runs::Here, FencingToken(5), LEASE, at(23)));
    }

    /// A look at which the store had not answered in time, as on a host with many services.
    #[test]
    fn a_run_elsewhere_goes_on_over_a_moment_without_the_store() {
        let mut failing = Failing { failures: FAILURES, stands: true, ..Failing::default() };
        for second in 0..=70 {
            let runs = if second % 10 == 5 { Runs::Unknown } else { Runs::Elsewhere };
            failing.look(runs, FencingToken(0), LEASE, at(second));
        }
        assert!(!failing.stands && !failing.is_counting());
    }

    #[test]
    fn a_service_that_nobody_holds_after_its_failure_is_an_alarm() {
        let mut failing = Failing::default();
        failing.fail();
        assert!(!failing.look(Runs::Nowhere, FencingToken(1), LEASE, at(0)));
        assert!(!failing.look(Runs::Nowhere, FencingToken(1), LEASE, at(9)));
        assert!(failing.look(Runs::Nowhere, FencingToken(1), LEASE, at(10)));
    }
}
