//! What a service shows to operators, and to the daemon for STATUS=.

use std::time::Duration;

use super::Service;
use crate::cluster::alarm::AlarmStatus;
use crate::daemon::restarts::service_time;
use crate::daemon::unit_control;
use crate::election::{Heard, Hindrance, Stage, State, Waiting, Word, rounded};
use crate::metrics::Shown;
use crate::systemd::RESTARTS_LIMIT;
use crate::types::{FencingToken, Revision, Time, span};

/// A unit that has to be dead is remarked on when it has not been proven dead for so long, because an orderly stop takes a
/// while.
const UNDEAD_TOLD_AFTER: Duration = Duration::from_secs(1);

/// A hold that was kept on the disk is read back as longer by so much at most.
const ROUNDING: Duration = Duration::from_millis(2);

/// When somebody was last known to run the unit.
#[derive(Debug, Default)]
pub(super) struct LastRun {
    /// Where and when somebody was last known to run it in an earlier run than the present one.
    before: Option<(String, Time)>,
    /// The present run: where it is, since when this host has seen it, and when it did last.
    present: Option<(String, Time, Time)>,
}

/// Where the unit runs, as far as this host knows.
struct Place<'a> {
    state: State,
    waiting: Option<&'a Waiting>,
    /// Whether the unit has run on this host in the present tenure.
    has_run: bool,
}

impl LastRun {
    /// Takes in where the unit runs now. Returns where it was last known to run, with an empty name for this host, and how long ago.
    /// A run that did not last for `lease` does not count while the service `fails` here: each host may start such a unit again
    /// and again.
    fn see(&mut self, place: &Place<'_>, (lease, fails): (Duration, bool), now: Time) -> Option<(&str, Duration)> {
        let runs = match (place.state, place.waiting) {
            (State::Active, _) => Some(("", now)),
            (State::Releasing | State::Lapsing, _) if place.has_run => Some(("", now)),
            (_, Some(Waiting::Holder { holder, stage: Stage::Runs, heard: Heard::Renewed(at), .. })) => {
                Some((holder.as_str(), *at))
            }
            _ => None,
        };
        match (&mut self.present, runs) {
            (Some((place, _, last)), Some((now_at, at))) if *place == now_at => *last = at,
            (present, runs) => {
                let ended = std::mem::replace(present, runs.map(|(place, at)| (place.to_owned(), at, at)));
                if let Some((place, since, last)) = ended
                    && (!fails || self.before.is_none() || last.since_at_least(since) >= lease)
                {
                    self.before = Some((place, last));
                }
            }
        }
        let lasted = |(_, since, last): &(String, Time, Time)| !fails || last.since_at_least(*since) >= lease;
        let present = self.present.as_ref().filter(|run| lasted(run)).map(|(place, _, last)| (place, *last));
        let known = present.or_else(|| self.before.as_ref().map(|(place, last)| (place, *last)));
        known.map(|(place, last)| (place.as_str(), now.since_at_least(last)))
    }
}

/// The status of a service, as operators see it. It has points in time and not spans, so that it changes only when something
/// happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The state of the host (protocol.md, "The states of a host").
    pub state: State,
    /// Since when it is in that state, in seconds since 1970; where the unit runs on under a lease of a former putexd, since when
    /// systemd has it as started.
    pub since: u64,
    /// The lock's holder, by the latest record. Empty: nobody.
    pub holder: String,
    /// Since when this host has seen that tenure, or that nobody holds the lock, in seconds since 1970. `None`: it has seen nothing.
    pub held_since: Option<u64>,
    /// Whether it was so for longer, because this host did not watch the lock when that began.
    pub held_longer: bool,
    /// When somebody was last known to run the unit, in seconds since 1970. `None`: this host has seen nobody run it.
    pub ran_until: Option<u64>,
    /// The host that ran it then; empty: this host has seen nobody run it.
    pub ran_on: String,
    /// For how long this host waits for the unit of a holder that falls silent, if it remembers a lease that is longer than usual.
    pub remembered: Duration,
    /// Until when it waits for that unit because of a passing hold (H9), in seconds since 1970. `None`: not longer than usual.
    pub remembered_until: Option<u64>,
    /// The lock's revision.
    pub revision: Revision,
    /// The fencing token of its own tenure, else the highest seen.
    pub token: FencingToken,
    /// The last verdict of the health check: `passes`, or why it fails. Empty: there is none.
    pub health: String,
    /// Why the last run on this host failed, until a start succeeds. Empty: it did not.
    pub failure: String,
    /// Whether it fails on this host for as long as to be an alarm.
    pub is_failing: bool,
    /// Why this host does not contend.
    pub hindrance: Option<Hindrance>,
    /// The word that keeps the service stopped everywhere, as far as this host knows.
    pub stopped: Option<Word>,
    /// The same word, where the store does not tell of it any more, so that it keeps this host alone.
    pub lost_stop: Option<Word>,
    /// The word for a long lease of the holder, as far as this host knows.
    pub paused: Option<Word>,
    /// When this host's own lease ends, unless it is renewed. `None`: it has none.
    pub deadline: Option<Time>,
    /// What the service waits for.
    pub waiting: Option<Waiting>,
    /// When this host, which has the lock, may start the unit, in seconds since 1970, and why not before. It is told to other
    /// hosts. `None`: it does not wait for that.
    pub starts: Option<(u64, String)>,
    /// What an operator has said and is not in the lock's record yet.
    pub unsaid: Option<String>,
    /// What keeps the stop of its units from being proven, while it is releasing or lapsing.
    pub unproven: Option<String>,
    /// When this host goes down unless the stop is proven before, in seconds since 1970. `None`: nothing keeps it from being proven, or
    /// the host stays up.
    pub goes_down: Option<u64>,
    /// Whether the last tenure has ended without a release, so that the record is left to age.
    pub is_left_to_age: bool,
    /// The alarms that stand.
    pub alarms: Vec<AlarmStatus>,
    /// What the operator should know of the service although it is supervised, in whole sentences.
    pub remarks: Vec<String>,
}

impl Status {
    /// The status of a service of which nothing is known yet. `since`: now, in seconds since 1970.
    pub(in crate::daemon) fn unknown(since: u64) -> Self {
        Self {
            state: State::NoStore,
            since,
            holder: String::new(),
            held_since: None,
            held_longer: true,
            ran_until: None,
            ran_on: String::new(),
            remembered: Duration::ZERO,
            remembered_until: None,
            health: String::new(),
            failure: String::new(),
            is_failing: false,
            revision: Revision(0),
            token: FencingToken(0),
            hindrance: None,
            stopped: None,
            lost_stop: None,
            paused: None,
            deadline: None,
            waiting: None,
            starts: None,
            unsaid: None,
            unproven: None,
            goes_down: None,
            is_left_to_age: false,
            alarms: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// Whether STATUS= and the properties on the bus, which are made anew for each change, say the same of the service with both
    /// statuses. A renewal changes the revision alone, which they do not name.
    fn is_told_as(&self, other: &Self) -> bool {
        let stage = |status: &Self| match status.waiting {
            Some(Waiting::Holder { stage, .. }) => Some(stage),
            Some(_) | None => None,
        };
        let told = |status: &Self| (status.waiting.as_ref().map(std::mem::discriminant), stage(status));
        let is_stopped = |status: &Self| status.stopped.is_some();
        (self.state, self.since) == (other.state, other.since)
            && self.holder == other.holder
            && told(self) == told(other)
            && is_stopped(self) == is_stopped(other)
    }
}

/// Whether two times of a start are the same one, of which only the rounding differs.
fn is_same_start(one: Option<&(u64, String)>, other: Option<&(u64, String)>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one.0.abs_diff(other.0) <= 1 && one.1 == other.1)
}

impl Service {
    pub(super) fn show(&mut self) {
        let now = self.host.machine.now();
        let is_active = matches!(self.election.state(), State::Starting | State::Active);
        self.standing.put(self.election.deadline().filter(|_| is_active));
        self.metrics.show(Shown {
            state: self.election.state(),
            holds: self.election.holder() == self.host.node.as_str(),
            alive: !self.alive.is_empty(),
            serves: self.election.state() != State::Starting && self.serves != Some(false),
            healthy: self.settings.health.as_ref().map(|_| self.healthy),
            lease: self.settings.timings.lease(),
            stopped: self.election.stop_word(now).is_some(),
            paused: self.election.pause_word(now).is_some(),
            alarms: self.alarms.mask(),
        });
        let wall = self.host.machine.wall().as_secs();
        let has_check = self.settings.health.is_some();
        // The record of a holder that is gone stays for as long as the service is stopped everywhere.
        let is_over = self.election.is_stopped_by_age(now);
        let holder = if is_over { String::new() } else { self.election.holder().to_owned() };
        let waiting = self.election.waiting(now);
        let place = Place { state: self.election.state(), waiting: waiting.as_ref(), has_run: self.runs.has_run() };
        let (lease, fails) = (self.settings.timings.lease(), self.failing.is_counting());
        let ran = self.last_run.see(&place, (lease, fails), now).filter(|_| place.state != State::Active);
        let ran_until = ran.as_ref().map(|(_, ago)| self.host.machine.wall().saturating_sub(*ago).as_secs());
        let own_name = || self.host.node.to_string();
        let ran_on = ran.map_or_else(String::new, |(on, _)| if on.is_empty() { own_name() } else { on.to_owned() });
        let mut status = Status {
            state: self.election.state(),
            since: wall,
            held_since: Some(wall),
            held_longer: self.election.has_found_record(),
            ran_until,
            ran_on,
            remembered: self.remembered(),
            remembered_until: self.remembered_until(now),
            holder,
            revision: self.election.revision(),
            token: self.election.token(),
            health: if has_check { self.verdict.clone() } else { String::new() },
            failure: self.failure.as_ref().map(|(_, failure)| failure.clone()).unwrap_or_default(),
            is_failing: self.failing.stands(),
            hindrance: self.election.hindrance(now),
            stopped: self.election.stop_word(now).cloned(),
            lost_stop: self.election.lost_stop(now).cloned(),
            paused: self.election.pause_word(now).cloned(),
            deadline: self.election.deadline(),
            starts: None,
            waiting,
            unsaid: self.unsaid(),
            unproven: self.unproven(),
            goes_down: None,
            is_left_to_age: self.election.leaves_lock_to_age(),
            alarms: self.told_alarms(now),
            remarks: self.remarks(),
        };
        if let Some(Waiting::Entitlement { until, why }) = &status.waiting {
            status.starts = Some((wall.saturating_add(now.until_waited(*until).as_secs()), why.to_string()));
        }
        if status.unproven.is_some() && self.settings.on_stop_failure.is_self_fence() {
            let at = status.waiting.as_ref().and_then(|waiting| waiting.fails_at(self.settings.timings.stop_budget));
            status.goes_down = at.map(|at| wall.saturating_add(now.until_passed(at).as_secs()));
        }
        self.runs.see_holder(status.waiting.as_ref(), self.election.holder_token(), &self.host.node, now);
        if let Some(release) = self.election.released() {
            self.runs.see_release(release, &self.host.node, now);
        }
        let runs_since = self.runs_since.filter(|_| status.state == State::Active);
        let mut is_told = false;
        self.status.send_if_modified(|shown| {
            if shown.state == status.state {
                status.since = shown.since;
            }
            if let Some(since) = runs_since {
                status.since = since;
            }
            // The same point in time, of which only the rounding differs.
            let is_same_end = |(one, other): (u64, u64)| one.abs_diff(other) <= 1;
            if shown.remembered_until.zip(status.remembered_until).is_some_and(is_same_end) {
                status.remembered_until = shown.remembered_until;
            }
            if shown.goes_down.zip(status.goes_down).is_some_and(is_same_end) {
                status.goes_down = shown.goes_down;
            }
            if is_same_start(shown.starts.as_ref(), status.starts.as_ref()) {
                status.starts.clone_from(&shown.starts);
            }
            if (&shown.holder, shown.token) == (&status.holder, status.token) {
                status.held_since = shown.held_since.or(status.held_since);
                status.held_longer = shown.held_longer;
            }
            is_told = !shown.is_told_as(&status);
            let modified = *shown != status;
            *shown = status;
            modified
        });
        if is_told {
            self.changed.notify_one();
        }
    }

    /// How long the wait for the unit of a silent holder is, if this host remembers a longer lease than the timings have.
    fn remembered(&self) -> Duration {
        let timings = &self.settings.timings;
        let (usual, longest) = (timings.usual_hold(), self.election.memory().longest_hold);
        if longest > usual.saturating_add(ROUNDING) { timings.wait(longest) } else { Duration::ZERO }
    }

    /// Until when it waits for that unit because of a passing hold, in seconds since 1970, if that is longer than usual.
    fn remembered_until(&self, now: Time) -> Option<u64> {
        let timings = &self.settings.timings;
        let left = now.until_waited(self.election.memory().passing?.until?);
        let is_longer = left > timings.wait(timings.usual_hold()).saturating_add(ROUNDING);
        is_longer.then(|| self.host.machine.wall().saturating_add(left).as_secs())
    }

    /// What keeps the end of the tenure from being proven, while it is releasing or lapsing.
    fn unproven(&self) -> Option<String> {
        let ends = matches!(self.election.state(), State::Releasing | State::Lapsing);
        if ends { self.units.unproven() } else { None }
    }

    pub(super) fn stop_of_another(&self) -> String {
        let unit = &self.settings.unit;
        format!(
            "{unit} is being stopped, and putexd has not asked for it; once it has stopped, its lock is let go, so that another \
             host may take it"
        )
    }

    fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = Vec::new();
        if self.broken.is_some() && self.may_run() {
            remarks.push(format!(
                "once {} is let go, it is not taken again on this host before its file is mended",
                self.settings.name
            ));
        }
        remarks.extend(self.admission.iter().flatten().chain(&self.outside).cloned());
        // Where nothing runs, the refusal is shown as the hindrance.
        remarks.extend(self.admission.as_ref().err().filter(|_| self.may_run()).map(ToString::to_string));
        remarks.extend(self.stopped_by_another.clone());
        remarks.extend(self.units.awaited().filter(|_| self.election.state() == State::Starting));
        if self.restarts.count() > 1 {
            let (unit, count) = (&self.settings.unit, self.restarts.count());
            let time = rounded(service_time(self.settings.timings.lease()));
            remarks.push(format!(
                "{unit} was restarted by systemd {count} times without being active for {time}; after {RESTARTS_LIMIT} times its \
                 lock is let go"
            ));
        }
        remarks.extend(self.host.machine.trouble());
        remarks.extend(self.unreadable.told());
        remarks.extend(self.remark_on_words());
        let now = self.host.machine.now();
        let lasts = self.undead_since.is_some_and(|since| now.since_at_least(since) >= UNDEAD_TOLD_AFTER);
        // What a stop waits for is shown with the stop.
        let unproven = self.unproven();
        let is_told = |undead: &&unit_control::Trouble| {
            (undead.is_for_the_operator || lasts) && unproven.as_ref() != Some(&undead.words)
        };
        remarks.extend(self.undead.as_ref().filter(is_told).map(|undead| undead.words.clone()));
        remarks.extend(self.failure.as_ref().map(|(at, failure)| {
            let (unit, at) = (&self.settings.unit, span::date(at.as_secs()));
            format!("the last run on this host failed at {at}: {failure}; see \"journalctl --unit {unit}\"")
        }));
        remarks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(3);

    fn at(seconds: u64) -> Time {
        Time::both(Duration::from_secs(seconds))
    }

    /// How many seconds ago somebody ran it, `now`.
    fn see(last: &mut LastRun, state: State, waiting: Option<&Waiting>, fails: bool, now: u64) -> Option<u64> {
        let place = Place { state, waiting, has_run: false };
        last.see(&place, (LEASE, fails), at(now)).map(|(_, ago)| ago.as_secs())
    }

    fn held(holder: &str, stage: Stage, renewed: u64) -> Waiting {
        Waiting::Holder { holder: holder.to_owned(), stage, heard: Heard::Renewed(at(renewed)), take_at: None }
    }

    #[test]
    fn it_counts_from_the_last_renewal_of_who_ran_it_and_not_from_the_last_claim() {
        let mut last = LastRun::default();
        assert_eq!(see(&mut last, State::NoStore, None, false, 0), None, "nobody was seen to run it");
        assert_eq!(see(&mut last, State::Standby, Some(&held("h2", Stage::Runs, 10)), false, 11), Some(1));
        assert_eq!(see(&mut last, State::Standby, Some(&held("h2", Stage::Runs, 20)), false, 29), Some(9));
        assert_eq!(see(&mut last, State::Standby, Some(&held("h3", Stage::Claims, 30)), false, 31), Some(11));
        assert_eq!(see(&mut last, State::Confirming, None, false, 40), Some(20));
        assert_eq!(see(&mut last, State::Active, None, false, 50), Some(0));
        assert_eq!(see(&mut last, State::Standby, None, false, 60), Some(10));
        let held_again = held("h2", Stage::Runs, 65);
        let ran_on = |last: &mut LastRun, waiting: Option<&Waiting>| {
            let place = Place { state: State::Standby, waiting, has_run: false };
            last.see(&place, (LEASE, false), at(70)).map(|(on, _)| on.to_owned())
        };
        assert_eq!(ran_on(&mut last, None).as_deref(), Some(""), "this host was the last one");
        assert_eq!(ran_on(&mut last, Some(&held_again)).as_deref(), Some("h2"));
        assert_eq!(ran_on(&mut last, None).as_deref(), Some("h2"));
    }

    #[test]
    fn a_start_that_fails_again_and_again_is_no_run() {
        let mut last = LastRun::default();
        see(&mut last, State::Active, None, false, 0);
        see(&mut last, State::Active, None, false, 100);
        assert_eq!(see(&mut last, State::Standby, None, true, 101), Some(1));
        for now in [110, 120, 130] {
            see(&mut last, State::Active, None, true, now);
            see(&mut last, State::Standby, Some(&held("h2", Stage::Runs, now + 1)), true, now + 1);
        }
        assert_eq!(see(&mut last, State::Standby, None, true, 200), Some(100));
        // One that lasts is one.
        for now in 210..=214 {
            see(&mut last, State::Active, None, true, now);
        }
        assert_eq!(see(&mut last, State::Standby, None, true, 220), Some(6));
    }
}
