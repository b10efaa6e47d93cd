//! What concerns many services of the host at once and is told once: that the store is lost, the changes of state that follow
//! from it, and that another host has taken over.
//!
//! When the store is lost, every service that runs elsewhere goes from standby to no-store, and back when the store is
//! found. The first few of these changes are written to the journal at once, each in an entry of its own. Those that follow
//! within [`MOMENT`] wait for its end, and go into one entry that has the names of all services in its fields. A change of
//! a service whose unit runs here, or may run, has its own entry at once. The same holds for the news that a lock has another
//! holder, which a standby tells: all services of a host may go over to another one at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::alarms::Alarms;
use super::kept_alarms::KeptAlarms;
use crate::dbus::Transitions;
use crate::election::{State, Transition, rounded};
use crate::host::clock;
use crate::journal;
use crate::types::{ServiceName, Time, UnitName};

/// Number of changes that are written at once in one [`MOMENT`] although they [may wait](Change::may_wait).
const AT_ONCE: u32 = 4;
/// The other changes wait for at most so long.
const MOMENT: Duration = Duration::from_secs(1);

/// A change of state of one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) service: ServiceName,
    pub(super) unit: UnitName,
    pub(super) transition: Transition,
}

impl Change {
    /// Whether the journal may hear of it later: no unit runs here before or after the change, and none is being started.
    fn may_wait(&self) -> bool {
        matches!(
            (self.transition.from, self.transition.to),
            (State::Standby, State::NoStore) | (State::NoStore, State::Standby)
        )
    }

    /// The part of the reason that other services can share. What follows the first semicolon is of this service alone,
    /// such as how long it waits.
    fn shared_reason(&self) -> &str {
        let reason = &*self.transition.reason;
        reason.split_once(';').map_or(reason, |(shared, _)| shared)
    }

    fn is_like(&self, other: &Self) -> bool {
        let (own, others) = (&self.transition, &other.transition);
        (own.from, own.to, self.shared_reason()) == (others.from, others.to, other.shared_reason())
    }

    fn write(&self) {
        journal::transition(&self.service, &self.unit, &self.transition);
    }
}

/// The lock of a service that does not run here has another holder than before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NewHolder {
    pub(super) service: ServiceName,
    pub(super) unit: UnitName,
    pub(super) holder: String,
    pub(super) former: String,
}

impl NewHolder {
    fn is_like(&self, other: &Self) -> bool {
        (&self.holder, &self.former) == (&other.holder, &other.former)
    }

    fn write(alike: &[Self]) {
        let Some(Self { holder, former, .. }) = alike.first() else { return };
        let services: Vec<_> = alike.iter().map(|news| (&news.service, &news.unit)).collect();
        journal::new_holder(&services, holder, former);
    }
}

/// What is known of all services of the host. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Tidings(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Whether the journal has been told that the store does not answer, or takes no writes.
    store_fails: AtomicBool,
    /// Whether the journal has been told that the store does not answer, and not yet that it answers again.
    store_lost: AtomicBool,
    services: Mutex<Services>,
    alarms: Alarms,
    transitions: Transitions,
}

/// The end of one service's lease, if it is active here. When this is dropped the service is no longer counted. Each
/// service has a lock of its own, because the value changes at every event.
#[derive(Debug, Default)]
pub(super) struct Standing(Arc<Mutex<Option<Time>>>);

impl Standing {
    pub(super) fn put(&self, until: Option<Time>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

/// What is known of the services, and what the journal has not been told yet.
#[derive(Debug, Default)]
struct Services {
    /// The standings of all services, and of some that are gone.
    standings: Vec<Weak<Mutex<Option<Time>>>>,
    /// The end of the present [`MOMENT`], and how many changes were written at once in it.
    moment: Option<(Instant, u32)>,
    waiting: Vec<Change>,
    /// The services that have left no-store while the journal has not been told that the store answers again: it may be lost again.
    returned: Vec<Change>,
    new_holders: Vec<NewHolder>,
}

impl Tidings {
    /// Where nothing was told yet, and a former putexd has `kept` alarms.
    pub(super) fn after(kept: &KeptAlarms) -> Self {
        Self(Arc::new(Shared { alarms: Alarms::of_host(kept), ..Shared::default() }))
    }

    /// The changes of state that the bus is told of.
    pub(super) fn transitions(&self) -> &Transitions {
        &self.0.transitions
    }

    /// The alarms that stand about the host as a whole.
    pub(super) fn alarms(&self) -> &Alarms {
        &self.0.alarms
    }

    /// Raises an alarm about the host as a whole, in the journal and among those that stand. It takes the time of this machine, so
    /// that a service, which may run on a simulated host, must not call it.
    pub(super) fn raise(&self, alarm: journal::Alarm, reason: &str) {
        journal::alarm(alarm, &journal::Subject::default(), reason);
        self.stand(alarm, reason);
    }

    /// As [`raise`](Self::raise), where the journal has been told already.
    pub(super) fn stand(&self, alarm: journal::Alarm, reason: &str) {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0.alarms.raise(alarm, reason, clock::now(), wall);
    }

    /// Ends an alarm about the host as a whole, and tells the journal, if it stood.
    pub(super) fn end(&self, alarm: journal::Alarm) {
        if self.0.alarms.end(alarm) {
            journal::over(alarm, None);
        }
    }

    /// Adds a service, which is not active yet.
    pub(super) fn add(&self) -> Standing {
        let standing = Standing::default();
        let mut services = self.services();
        services.standings.retain(|standing| standing.strong_count() > 0);
        services.standings.push(Arc::downgrade(&standing.0));
        standing
    }

    /// Tells the journal of a change, now or soon. `Some`: the caller has to call [`write`](Self::write) at that time.
    pub(super) fn tell(&self, change: Change) -> Option<Instant> {
        let mut services = self.services();
        // A waiting change of the same service is older, so it is written first.
        if services.waiting.iter().any(|waiting| waiting.service == change.service) {
            services.write();
        }
        let has_returned = services.returned.iter().position(|returned| returned.service == change.service);
        let returned = has_returned.map(|place| services.returned.remove(place));
        if !change.may_wait() {
            returned.iter().for_each(Change::write);
            change.write();
            return None;
        }
        if change.transition.to == State::NoStore && returned.is_some() {
            // The journal knows it in no-store.
            return None;
        }
        if change.transition.to == State::Standby && self.0.store_lost.load(Ordering::Relaxed) {
            services.returned.push(change);
            return None;
        }
        match services.until() {
            None => change.write(),
            Some(until) => {
                services.waiting.push(change);
                return services.is_first().then_some(until);
            }
        }
        None
    }

    /// Tells the journal of another holder, as [`tell`](Self::tell) does of a change that may wait.
    pub(super) fn tell_of_holder(&self, news: NewHolder) -> Option<Instant> {
        let mut services = self.services();
        match services.until() {
            None => NewHolder::write(&[news]),
            Some(until) => {
                services.new_holders.push(news);
                return services.is_first().then_some(until);
            }
        }
        None
    }

    /// Writes the changes that wait.
    pub(super) fn write(&self) {
        self.services().write();
    }

    /// Whether the journal has been told that the store does not answer, or takes no writes. What follows from that for
    /// each service need not be told as well.
    pub(super) fn store_fails(&self) -> bool {
        self.0.store_fails.load(Ordering::Relaxed)
    }

    /// Sets [`Self::store_fails`].
    pub(super) fn note_store(&self, fails: bool) {
        self.0.store_fails.store(fails, Ordering::Relaxed);
    }

    /// Says whether the store is lost, until the journal is told that it answers again: until then no entry tells that a service
    /// has left no-store, because the store may come and go.
    pub(super) fn note_loss(&self, is_lost: bool) {
        if self.0.store_lost.swap(is_lost, Ordering::Relaxed) && !is_lost {
            let mut services = self.services();
            let returned = std::mem::take(&mut services.returned);
            services.waiting.extend(returned);
            services.write();
        }
    }

    /// How many services it concerns that the store does not answer, or answers again. The words fit behind a semicolon.
    pub(super) fn concerned(&self, now: Time) -> String {
        let standings: Vec<_> = self.services().standings.iter().filter_map(Weak::upgrade).collect();
        let until = |standing: &Arc<Mutex<Option<Time>>>| *standing.lock().unwrap_or_else(PoisonError::into_inner);
        let ends: Vec<Time> = standings.iter().filter_map(until).collect();
        let is = |count| if count == 1 { "is" } else { "are" };
        let (all, active) = (standings.len(), ends.len());
        let all = format!("{all} {} concerned", if all == 1 { "service is" } else { "services are" });
        let Some(left) = ends.iter().map(|end| now.until_passed(*end)).min() else {
            return format!("{all}, none of them active here");
        };
        if !self.store_fails() {
            return format!("{all}, {active} of them {} active here", is(active));
        }
        let left = rounded(left);
        format!("{all}, {active} of them {} active here, for {left} at least", is(active))
    }

    fn services(&self) -> MutexGuard<'_, Services> {
        self.0.services.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Services {
    /// Until when the next entry that may wait has to wait. `None`: it is written at once, and counts.
    fn until(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let (until, told) = self.moment.filter(|(until, _)| now < *until).unwrap_or((now + MOMENT, 0));
        if told < AT_ONCE {
            self.moment = Some((until, told + 1));
            return None;
        }
        Some(until)
    }

    /// Whether what was added last is all that waits.
    fn is_first(&self) -> bool {
        self.waiting.len() + self.new_holders.len() == 1
    }

    fn write(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut new_holders = std::mem::take(&mut self.new_holders);
        if !waiting.is_empty() || !new_holders.is_empty() {
            // Many changes came in this moment, so all changes of the next one wait for its end.
            self.moment = Some((Instant::now() + MOMENT, AT_ONCE));
        }
        while let Some(first) = waiting.first() {
            let (alike, others): (Vec<Change>, Vec<Change>) =
                waiting.iter().cloned().partition(|change| change.is_like(first));
            match &alike[..] {
                [alone] => alone.write(),
                [first, ..] => {
                    let services: Vec<_> = alike.iter().map(|change| (&change.service, &change.unit)).collect();
                    let Transition { from, to, .. } = first.transition;
                    journal::transitions(&services, from, to, first.shared_reason());
                }
                [] => {}
            }
            waiting = others;
        }
        while let Some(first) = new_holders.first() {
            let (alike, others): (Vec<NewHolder>, Vec<NewHolder>) =
                new_holders.iter().cloned().partition(|news| news.is_like(first));
            NewHolder::write(&alike);
            new_holders = others;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep_until};

    use super::*;
    use crate::daemon::fake::written;
    use crate::types::{FencingToken, Revision};

    fn name(number: u32) -> ServiceName {
        ServiceName::new(&format!("s{number}")).expect("a good name")
    }

    fn change(number: u32, from: State, to: State) -> Change {
        Change {
            service: name(number),
            unit: UnitName::new(&format!("s{number}.service")).expect("a good name"),
            transition: Transition {
                from,
                to,
                reason: "so it is".to_owned(),
                holder: String::new(),
                revision: Revision(0),
                token: FencingToken(0),
            },
        }
    }

    fn lost(number: u32) -> Change {
        change(number, State::Standby, State::NoStore)
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_are_told_at_once_and_the_others_together() {
        let (written, _guard) = written();
        let tidings = Tidings::default();
        let began = Instant::now();
        for number in 0..AT_ONCE {
            assert_eq!(tidings.tell(lost(number)), None);
            assert_eq!(written.take(), [format!("s{number}: no-store (was standby): so it is")]);
        }
        advance(MOMENT / 2).await;
        let at = tidings.tell(lost(10)).expect("the first that waits");
        assert_eq!(at, began + MOMENT);
        let because = |change: Change, reason: String| {
            let transition = Transition { reason, ..change.transition.clone() };
            Change { transition, ..change }
        };
        let own = |number| because(lost(number), format!("so it is; for {number}s more"));
        assert!((11..15).all(|number| tidings.tell(own(number)).is_none()));
        tidings.tell(because(lost(20), "for another reason".to_owned()));
        assert!(written.take().is_empty());
        sleep_until(at).await;
        tidings.write();
        let expected = [
            "s10, s11, s12 and 2 more: no-store (was standby): so it is",
            "s20: no-store (was standby): for another reason",
        ];
        assert_eq!(written.take(), expected);
        // After a moment with many changes, those of the next one wait from the first on.
        let next = tidings.tell(lost(30)).expect("it waits");
        assert_eq!(next, at + MOMENT);
        sleep_until(next + MOMENT).await;
        tidings.write();
        assert_eq!(written.take().len(), 1);
        sleep_until(next + MOMENT * 2).await;
        assert_eq!(tidings.tell(lost(40)), None, "a while later all is as it was");
    }

    #[tokio::test(start_paused = true)]
    async fn the_new_holder_of_many_locks_is_told_once() {
        let (written, _guard) = written();
        let tidings = Tidings::default();
        let news = |number: u32, former: &str| NewHolder {
            service: name(number),
            unit: UnitName::new(&format!("s{number}.service")).expect("a good name"),
            holder: "h1".to_owned(),
            former: former.to_owned(),
        };
        assert_eq!(tidings.tell_of_holder(news(0, "h3")), None);
        assert_eq!(written.take(), ["s0: holder is now h1 (was h3)"]);
        assert!((1..AT_ONCE).all(|number| tidings.tell_of_holder(news(number, "h3")).is_none()));
        written.take();
        let at = tidings.tell_of_holder(news(10, "h3")).expect("the first that waits");
        assert!((11..310).all(|number| tidings.tell_of_holder(news(number, "h3")).is_none()));
        assert_eq!(tidings.tell_of_holder(news(400, "h2")), None);
        assert_eq!(tidings.tell(lost(401)), None, "they wait together");
        assert!(written.take().is_empty());
        sleep_until(at).await;
        tidings.write();
        let expected = [
            "s401: no-store (was standby): so it is",
            "s10, s11, s12 and 253 more: holder is now h1 (was h3)",
            "s266, s267, s268 and 41 more: holder is now h1 (was h3)",
            "s400: holder is now h1 (was h2)",
        ];
        assert_eq!(written.take(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn what_concerns_a_unit_that_runs_does_not_wait_and_overtakes_nothing() {
        let (written, _guard) = written();
        let tidings = Tidings::default();
        for number in 0..=AT_ONCE {
            tidings.tell(lost(number));
        }
        let is_told_at_once = |from, to| {
            written.take();
            tidings.tell(change(50, from, to));
            written.take().len() == 1
        };
        assert!(State::ALL.iter().all(|state| is_told_at_once(*state, State::Lapsing)));
        assert!(is_told_at_once(State::Lapsing, State::NoStore));
        // A waiting change of a service is written before its next one.
        tidings.tell(change(AT_ONCE, State::Standby, State::Retired));
        let own = format!("s{AT_ONCE}: ");
        assert_eq!(
            written.take(),
            [own.clone() + "no-store (was standby): so it is", own + "retired (was standby): so it is"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn services_come_back_once_with_a_store_that_comes_and_goes() {
        let (written, _guard) = written();
        let tidings = Tidings::default();
        let back = |number| change(number, State::NoStore, State::Standby);
        tidings.tell(lost(1));
        tidings.note_loss(true);
        tidings.tell(lost(2));
        assert_eq!(written.take().len(), 2);
        for _ in 0..14 {
            for number in [1, 2] {
                tidings.tell(back(number));
                tidings.tell(lost(number));
            }
        }
        tidings.tell(back(1));
        tidings.tell(back(2));
        assert!(written.take().is_empty());
        // What this host does with its unit is told at once, and what was before it first.
        tidings.tell(change(2, State::Standby, State::Confirming));
        let of_second = ["s2: standby (was no-store): so it is", "s2: confirming (was standby): so it is"];
        assert_eq!(written.take(), of_second);
        tidings.note_loss(false);
        assert_eq!(written.take(), ["s1: standby (was no-store): so it is"]);
        tidings.tell(lost(1));
        assert_eq!(written.take().len(), 0);
        advance(MOMENT * 2).await;
        tidings.write();
        assert_eq!(written.take(), ["s1: no-store (was standby): so it is"]);
    }

    #[test]
    fn a_loss_counts_whom_it_concerns_and_says_how_long_leases_last() {
        let at = |seconds| Time::both(Duration::from_secs(seconds));
        let tidings = Tidings::default();
        let first = tidings.add();
        assert_eq!(tidings.concerned(at(0)), "1 service is concerned, none of them active here");
        let second = tidings.add();
        second.put(Some(at(30)));
        tidings.note_store(true);
        assert_eq!(tidings.concerned(at(10)), "2 services are concerned, 1 of them is active here, for 20s at least");
        first.put(Some(at(12)));
        assert_eq!(tidings.concerned(at(10)), "2 services are concerned, 2 of them are active here, for 2.0s at least");
        tidings.note_store(false);
        assert_eq!(tidings.concerned(at(10)), "2 services are concerned, 2 of them are active here");
        drop(first);
        second.put(None);
        assert_eq!(tidings.concerned(at(10)), "1 service is concerned, none of them active here");
    }
}
