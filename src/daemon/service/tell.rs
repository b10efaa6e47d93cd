//! What a service tells the journal.

use super::Service;
use crate::election::{ObservedUnit, State, Transition};
use crate::facts::alarm::{Alarm, AlarmKind, Problem};
use crate::facts::{At, Bar};
use crate::{journal, words};

impl Service {
    /// Tells the journal why the units are refused.
    pub fn tell_of_refusal(&mut self, bar: &Bar) {
        // A service that retires takes nothing under supervision any more, and a daemon-reload takes the gate away from units whose
        // file is gone while they are being stopped.
        if self.retiring.is_some() {
            return;
        }
        let (name, unit) = (&self.settings.name, &self.settings.unit);
        let may_run = matches!(self.election.state(), State::Starting | State::Active);
        let refusal = words::bar(bar);
        // Systemd may start the unit without the lease.
        if bar.ends_running() && may_run {
            self.raise(Problem::Ungated { refusal });
        } else {
            tracing::error!(
                OBJECT_SYSTEMD_UNIT = unit.as_str(),
                "{name}: failed to take {unit} under supervision: {refusal}"
            );
        }
    }

    /// Tells the journal why a unit that was stopped by hand, or has ended, comes up elsewhere. An administrator who stops
    /// it should know that.
    pub fn tell_of_end(&self, unit: &ObservedUnit) {
        if let (State::Active, ObservedUnit::Dead { failed: false, .. }) =
            (self.election.state(), unit)
        {
            let (name, unit) = (&self.settings.name, &self.settings.unit);
            tracing::warn!(
                OBJECT_SYSTEMD_UNIT = unit.as_str(),
                "{name}: {unit} was stopped, or has ended, and another host may take it; \"putexctl stop {name}\" stops it everywhere"
            );
        }
    }

    /// Tells of a change of state.
    pub fn report(&mut self, told: &Transition) {
        let stopped = self.election.stop_word(self.host.machine.now()).is_some();
        let wall = self.host.machine.wall();
        self.runs.follow(told, stopped, At::new(wall));
        // A lapse that is found when putexd starts is told then, and any other by the entry of this change.
        if told.to == State::Lapsing && told.from != State::NoStore {
            let cause = told.reason.clone();
            let (about, problem) = (self.settings.name.clone(), Problem::Lapsed { cause });
            let alarm = Alarm::new(Some(about), problem, wall.as_secs());
            self.host.alarms.add(alarm, None);
        }
        let (service, unit) = (&self.settings.name, &self.settings.unit);
        let follows_the_store = matches!(
            (told.from, told.to),
            (State::Standby, State::NoStore) | (State::NoStore, State::Standby)
        );
        // The alarm tells it once for all services.
        if !(follows_the_store && self.host.alarms.stands(AlarmKind::StoreLost)) {
            journal::transition(service, unit, told);
        }
    }
}
