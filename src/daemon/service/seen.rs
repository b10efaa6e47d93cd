//! Whether a unit serves or only tries: systemd restarts some units by themselves for ever ("A unit that only tries" in
//! putexd(8)).

use std::time::Duration;

use super::{Service, bars::BarSource};
use crate::{
    daemon::units::ObservedUnits,
    election::{ObservedUnit, State, rounded},
    facts::{At, Bar, alarm::Problem},
    systemd::{Invocation, RESTARTS_LIMIT, UnitState},
    types::{Time, UnitName},
};

/// The least service time, for which a unit has to be active without a break to have served: systemd's own default for
/// StartLimitIntervalSec=.
const LEAST: Duration = Duration::from_secs(10);

/// What is known of the restarts of a unit. It counts what it sees itself: NRestarts goes back to zero at a start or reset
/// by somebody else, and is any number when a new putexd first sees it.
#[derive(Default)]
pub struct Restarts {
    /// NRestarts at the last look. `None`: there was none since the start.
    last: Option<u32>,
    /// The run that was started at the last look, and when that was first seen.
    run: Option<(Invocation, Time)>,
    /// How the last run has ended that was seen to end.
    ended: Option<String>,
    /// The restarts since there was service time.
    count: u32,
    /// Since when the unit is being started.
    tries_since: Option<Time>,
}

impl Restarts {
    /// Those since putexd's own start, at which NRestarts is zero: those that fell into the start count.
    pub fn since_start() -> Self {
        Self {
            last: Some(0),
            ..Self::default()
        }
    }

    /// Takes a look at the unit. `lease` is T; `limit` is the limit of a start, if one is configured. Returns why the unit has
    /// failed, if it has.
    pub fn see(
        &mut self,
        state: &UnitState,
        lease: Duration,
        limit: Option<Duration>,
        now: Time,
    ) -> Option<String> {
        let service_time = lease.max(LEAST);
        let for_long = |since: Time| now.since_at_least(since);
        // At the next restart systemd forgets it.
        self.ended = state.ended().or(self.ended.take());
        let new = match self.last.replace(state.restarts) {
            Some(last) => state.restarts.checked_sub(last).unwrap_or(state.restarts),
            None => 0,
        };
        let lasted = self.run.map(|(_, since)| for_long(since));
        let same_run = self.run.filter(|(run, _)| Some(*run) == state.invocation);
        // A run that was started at the last look, and is replaced by the next one, may have lasted until now.
        let has_served = (same_run.is_some() || new == 1) && lasted >= Some(service_time);
        // A program that ends in good order and is run again after a while, as a schedule of its own, does what it should.
        let rests = state.rests_for() >= Some(service_time);
        self.count = if has_served || rests {
            0
        } else {
            self.count.saturating_add(new)
        };
        let run = state.invocation.filter(|_| state.active_state.is_started());
        self.run = run.map(|run| same_run.unwrap_or((run, now)));
        let since = self.tries_since.unwrap_or(now);
        self.tries_since = state.is_trying().then_some(since);
        if self.count >= RESTARTS_LIMIT {
            let (count, time) = (self.count, rounded(service_time));
            let how = self.ended.clone().unwrap_or_else(|| state.in_full());
            return Some(format!(
                "systemd has restarted it {count} times, never active for {time}: it was {how}"
            ));
        }
        let limit = limit.filter(|limit| self.tries_since.map(for_long) >= Some(*limit))?;
        Some(format!(
            "systemd restarts it, not active again within {}: it is {}",
            rounded(limit),
            state.in_full()
        ))
    }
}

/// What the last look at the units has shown.
#[derive(Default)]
pub struct LastLook {
    /// The units that were alive.
    pub alive: Vec<UnitName>,
    /// Whether all of them were dead.
    pub are_dead: bool,
    /// Whether the main unit serves. `None`: it was not looked at since its start.
    pub serves: Option<bool>,
    /// When systemd has seen it become active last.
    pub active_at: Option<At>,
    /// Whether it is frozen.
    pub frozen: bool,
    /// Its restarts by systemd.
    pub restarts: Restarts,
}

impl Service {
    /// Takes what was seen of the units. While they may run, the main unit decides whether the service lives, because bound
    /// units come and go, as the service of a timer does. Without the lease none of the units may live.
    pub fn judge(&mut self, observed: ObservedUnits) -> Option<ObservedUnit> {
        if self.settings.observes() {
            // The election is told nothing of such a unit.
            let runs = !observed.alive.is_empty();
            self.bars.set(BarSource::Mode, Some(Bar::Observed { runs }));
            return None;
        }
        let (state, now) = (self.election.state(), self.host.machine.now());
        let lease = self.settings.timings.lease();
        let seen = &mut self.seen;
        seen.alive = observed.alive;
        seen.are_dead = matches!(observed.all, Some(ObservedUnit::Dead { .. }));
        if state != State::Active {
            (seen.serves, seen.frozen) = (None, false);
            seen.restarts = if state == State::Starting {
                Restarts::since_start()
            } else {
                Restarts::default()
            };
            return observed.all;
        }
        let is_alive = observed.main == Some(ObservedUnit::Alive);
        let Some(main) = observed.state.filter(|_| is_alive) else {
            seen.serves = observed.main.as_ref().map(|_| false);
            return observed.main;
        };
        seen.active_at = main.active_at.map(At::new);
        let frozen_by = observed.frozen_by;
        seen.serves = Some(main.active_state.is_started() && frozen_by.is_none());
        let was_frozen = std::mem::replace(&mut seen.frozen, frozen_by.is_some());
        let limit = self.settings.start_limit;
        let found = match seen.restarts.see(&main, lease, limit, now) {
            Some(why) => ObservedUnit::Failing(why),
            None if main.is_trying() => ObservedUnit::Trying,
            None => ObservedUnit::Alive,
        };
        if let Some(by) = frozen_by.filter(|_| !was_frozen) {
            self.raise(Problem::Frozen { unit: by.clone() });
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systemd::ActiveState;

    const LEASE: Duration = Duration::from_secs(3);

    fn at(seconds: u64) -> Time {
        Time::both(Duration::from_secs(seconds))
    }

    fn started(run: u128, restarts: u32) -> UnitState {
        UnitState {
            invocation: Some(Invocation(run)),
            restarts,
            active_state: ActiveState::Active,
            ..UnitState::default()
        }
    }

    fn between(run: u128, restarts: u32) -> UnitState {
        UnitState {
            invocation: Some(Invocation(run)),
            restarts,
            active_state: ActiveState::Activating,
            sub_state: "auto-restart".to_owned(),
            result: Some("exit-code".to_owned()),
            exit: "exit status 1".to_owned(),
            ..UnitState::default()
        }
    }

    /// The outcome of looks at these times.
    fn seen(restarts: &mut Restarts, looks: &[(u64, UnitState)]) -> Option<String> {
        looks.iter().fold(None, |_, (time, state)| {
            restarts.see(state, LEASE, None, at(*time))
        })
    }

    #[test]
    fn five_restarts_without_service_time_are_a_failure_whatever_their_number_was_before() {
        for first in [0, 70] {
            let mut restarts = Restarts::default();
            assert_eq!(seen(&mut restarts, &[(0, started(1, first))]), None);
            for number in 1..RESTARTS_LIMIT {
                let run = u128::from(number);
                assert_eq!(
                    seen(
                        &mut restarts,
                        &[(u64::from(number), between(run, first + number))]
                    ),
                    None
                );
            }
            // The last look may fall into the start that follows.
            let last = UnitState {
                sub_state: "start".to_owned(),
                ..between(9, first + RESTARTS_LIMIT)
            };
            let why = seen(&mut restarts, &[(9, last)]).expect("it has failed");
            assert!(
                why.contains("restarted it 5 times") && why.contains("exit status 1"),
                "{why}"
            );
        }
    }

    #[test]
    fn restarts_during_the_start_count() {
        let mut restarts = Restarts::since_start();
        assert_eq!(
            seen(&mut restarts, &[(0, between(1, RESTARTS_LIMIT - 1))]),
            None
        );
        assert!(seen(&mut restarts, &[(2, between(2, RESTARTS_LIMIT))]).is_some());
    }

    #[test]
    fn restarts_that_no_look_has_shown_count_and_a_counter_that_was_reset_goes_on() {
        let mut restarts = Restarts::default();
        assert_eq!(
            seen(&mut restarts, &[(0, started(1, 0)), (1, between(7, 3))]),
            None
        );
        assert!(seen(&mut restarts, &[(2, between(9, 1)), (3, between(10, 2))]).is_some());
    }

    #[test]
    fn a_pause_of_half_a_minute_between_two_attempts_is_no_service_time() {
        let mut restarts = Restarts::default();
        let mut why = None;
        for number in 0..=RESTARTS_LIMIT {
            let (run, time) = (u128::from(number), u64::from(number) * 31);
            why = seen(
                &mut restarts,
                &[
                    (time, started(run, number)),
                    (time + 1, between(run, number)),
                ],
            );
        }
        assert!(why.is_some());
    }

    #[test]
    fn a_program_that_works_for_minutes_between_its_crashes_has_not_failed() {
        let mut restarts = Restarts::default();
        for number in 0..100 {
            let (run, time) = (u128::from(number), u64::from(number) * 130);
            let looks = [
                (time, started(run, number)),
                (time + 120, between(run, number)),
            ];
            assert_eq!(seen(&mut restarts, &looks), None);
        }
        // The same where no look falls between two runs.
        let mut restarts = Restarts::default();
        for number in 0..100 {
            assert_eq!(
                seen(
                    &mut restarts,
                    &[(u64::from(number) * 130, started(u128::from(number), number))]
                ),
                None
            );
        }
    }

    #[test]
    fn service_time_ends_the_count() {
        let mut restarts = Restarts::default();
        let crashes = |from: u64, number: u32| {
            (
                from + u64::from(number),
                between(u128::from(number), number),
            )
        };
        seen(
            &mut restarts,
            &[
                (0, started(0, 0)),
                crashes(0, 1),
                crashes(0, 2),
                crashes(0, 3),
                crashes(0, 4),
            ],
        );
        assert_eq!(restarts.count, 4);
        seen(&mut restarts, &[(6, started(5, 4)), (17, started(5, 4))]);
        assert_eq!(restarts.count, 0);
    }

    #[test]
    fn a_program_that_ends_well_and_rests_is_a_schedule() {
        let rests = |restarts, pause| UnitState {
            restart_pause: Some(Duration::from_secs(pause)),
            result: Some("success".to_owned()),
            ..between(1, restarts)
        };
        let mut restarts = Restarts::default();
        for number in 0..100 {
            assert_eq!(
                seen(
                    &mut restarts,
                    &[(u64::from(number) * 60, rests(number, 60))]
                ),
                None
            );
        }
        let mut restarts = Restarts::default();
        let why = (0..=RESTARTS_LIMIT).fold(None, |_, number| {
            seen(&mut restarts, &[(u64::from(number), rests(number, 1))])
        });
        assert!(why.is_some(), "it is run again at once");
    }

    #[test]
    fn a_restart_that_takes_longer_than_a_start_may_is_a_failure() {
        let limit = Some(Duration::from_secs(60));
        let mut restarts = Restarts::default();
        assert_eq!(restarts.see(&between(1, 1), LEASE, limit, at(0)), None);
        assert_eq!(restarts.see(&between(1, 1), LEASE, limit, at(59)), None);
        assert!(restarts.see(&between(1, 1), LEASE, limit, at(60)).is_some());
        assert_eq!(restarts.see(&started(1, 1), LEASE, limit, at(61)), None);
    }
}
