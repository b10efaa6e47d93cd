//! The alarms that stand: what is wrong with a service or with the host, until it is over.
//!
//! The journal has each alarm when it is raised, and once more when it is over. Here is what an operator sees meanwhile. There is
//! at most one entry for each kind of alarm, so that the list is bounded.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::kept_alarms::{KeptAlarms, SHOWN};
use crate::cluster::alarm::AlarmStatus;
use crate::journal::Alarm;
use crate::metrics;
use crate::types::{ServiceName, Time, printable_lines};

/// The alarms of one service, or those of the host. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Alarms(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    raised: Mutex<Vec<Raised>>,
    /// The kinds that stand, a bit for the place of each in [`Alarm::ALL`], for whoever asks often.
    mask: AtomicU64,
    /// Those whose cause was a moment, for the next putexd, and the service that they are about; empty = the host.
    kept: KeptAlarms,
    about: String,
}

/// The list of what stands. When it is dropped, the mask shows what it has then.
struct Held<'a> {
    raised: MutexGuard<'a, Vec<Raised>>,
    mask: &'a AtomicU64,
}

impl Deref for Held<'_> {
    type Target = Vec<Raised>;

    fn deref(&self) -> &Vec<Raised> {
        &self.raised
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Vec<Raised> {
        &mut self.raised
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mask = self.raised.iter().fold(0, |mask, raised| mask | metrics::bit(raised.kind));
        self.mask.store(mask, Relaxed);
    }
}

#[derive(Debug)]
struct Raised {
    kind: Alarm,
    reason: String,
    /// When it was raised, since 1970.
    since: Duration,
    /// When it is shown no longer. `None`: when its cause is over.
    until: Option<Time>,
}

impl Alarms {
    /// The alarms of a service: those that a former putexd has `kept`.
    pub(super) fn of_service(service: &ServiceName, kept: &KeptAlarms) -> Self {
        Self::kept_about(service.as_str(), kept)
    }

    /// The alarms of the host as a whole, in the same way.
    pub(super) fn of_host(kept: &KeptAlarms) -> Self {
        Self::kept_about("", kept)
    }

    fn kept_about(about: &str, kept: &KeptAlarms) -> Self {
        let (kept, about) = (kept.clone(), about.to_owned());
        let alarms = Self(Arc::new(Shared { kept, about, ..Shared::default() }));
        let raised = alarms.0.kept.about(&alarms.0.about).into_iter().filter_map(|kept| {
            let kind = Alarm::ALL.iter().copied().find(|kind| is_of_a_moment(*kind) && kind.kind() == kept.kind)?;
            Some(Raised { kind, since: kept.since(), until: Some(kept.until), reason: kept.reason })
        });
        alarms.lock().extend(raised);
        alarms
    }

    /// What is kept for the next putexd, of the host and of all its services.
    pub(super) fn kept(&self) -> &KeptAlarms {
        &self.0.kept
    }

    /// Notes that an alarm stands. One that stands already keeps its beginning, but for one whose cause is a moment: the latest is
    /// shown. `wall` is the time since 1970. Kinds that tell the end of another one do not stand.
    pub(super) fn raise(&self, kind: Alarm, reason: &str, now: Time, wall: Duration) {
        if remedy(kind).is_none() {
            return;
        }
        let until = is_of_a_moment(kind).then(|| now.plus(SHOWN));
        let reason = printable_lines(reason);
        if let Some(until) = until {
            self.0.kept.keep(&self.0.about, kind.kind(), &reason, wall, until);
        }
        let mut raised = self.lock();
        match raised.iter_mut().find(|raised| raised.kind == kind) {
            Some(raised) => {
                if until.is_some() {
                    raised.since = wall;
                }
                (raised.reason, raised.until) = (reason, until);
            }
            None => raised.push(Raised { kind, reason, since: wall, until }),
        }
    }

    /// Notes that an alarm is over. Returns whether it stood.
    pub(super) fn end(&self, kind: Alarm) -> bool {
        if is_of_a_moment(kind) {
            self.0.kept.forget(&self.0.about, kind.kind());
        }
        let mut raised = self.lock();
        let before = raised.len();
        raised.retain(|raised| raised.kind != kind);
        raised.len() < before
    }

    /// The kinds of the alarms that stand.
    pub(super) fn kinds(&self, now: Time) -> Vec<Alarm> {
        let mut raised = self.lock();
        raised.retain(|raised| raised.until.is_none_or(|until| !now.has_waited_until(until)));
        raised.iter().map(|raised| raised.kind).collect()
    }

    /// The alarms that stand, as they are told.
    pub(super) fn told(&self) -> Vec<AlarmStatus> {
        self.lock().iter().map(Raised::told).collect()
    }

    /// The kinds that stand, as [`metrics::bit`] has them.
    pub(super) fn mask(&self) -> u64 {
        self.0.mask.load(Relaxed)
    }

    fn lock(&self) -> Held<'_> {
        Held { raised: self.0.raised.lock().unwrap_or_else(PoisonError::into_inner), mask: &self.0.mask }
    }
}

impl Raised {
    fn told(&self) -> AlarmStatus {
        let remedy = remedy(self.kind).unwrap_or_default();
        let (remedy, reason) = match remedy {
            IN_REASON => self.reason.split_once(": ").unwrap_or(("see the journal", &self.reason)),
            remedy => (remedy, &*self.reason),
        };
        AlarmStatus {
            kind: self.kind.kind(),
            remedy: remedy.to_owned(),
            what: self.kind.name().to_owned(),
            reason: reason.to_owned(),
            since: self.since.as_secs(),
            over: is_of_a_moment(self.kind),
        }
    }
}

/// An alarm that another host has told of itself, where anybody could have written that: what to do is this host's own advice, and the
/// rest is quoted.
pub(super) fn quoted(told: AlarmStatus) -> AlarmStatus {
    let known = Alarm::ALL.iter().find(|kind| kind.kind() == told.kind);
    let own = known.and_then(|kind| remedy(*kind)).filter(|own| *own != IN_REASON);
    let said = if own.is_some() { told.reason } else { AlarmStatus { since: 0, ..told.clone() }.in_words() };
    AlarmStatus {
        remedy: own.unwrap_or("look on that host").to_owned(),
        what: known.map(|kind| kind.name().to_owned()).unwrap_or_default(),
        reason: quote(&said),
        kind: known.map(|kind| kind.kind()).unwrap_or_default(),
        ..told
    }
}

/// What another host has said of itself, unless it is nothing. It is the same for all hosts that say the same.
pub(super) fn quote(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!("it says {said:?}") }
}

/// Whether the cause of an alarm is over as soon as it is noticed, so that it is shown for [`SHOWN`].
fn is_of_a_moment(kind: Alarm) -> bool {
    matches!(
        kind,
        Alarm::Regression
            | Alarm::ClockJump
            | Alarm::SelfFence
            | Alarm::NotToBeFenced
            | Alarm::ConfirmedDead
            | Alarm::ForgedAnswer
            | Alarm::Lapsed
    )
}

/// The remedy is the beginning of the reason, up to the first colon and space, because it has a name in it.
const IN_REASON: &str = "";

/// What an operator is to do about an alarm, as the beginning of a sentence. `None`: the alarm tells of a change that needs
/// nothing, or of the end of another alarm.
fn remedy(kind: Alarm) -> Option<&'static str> {
    Some(match kind {
        Alarm::StoreLost => "see that the store is up, and that this host reaches it",
        Alarm::SharedName => "give each host a name of its own",
        Alarm::Regression => "find out what happened to the store",
        Alarm::StrayUnit => "find out what has started the unit",
        Alarm::Ungated => "put back what binds the unit to its lease, and run \"systemctl daemon-reload\"",
        Alarm::LeftControlGroup => "have the work stay in the unit, and run \"systemctl reload putexd\"",
        Alarm::ClockJump => "check whether this machine was paused",
        Alarm::StopFailed => "look for what is left of the unit",
        Alarm::SelfFence => "find out why the unit could not be stopped",
        Alarm::OddRecord => "find out who may write to the store",
        Alarm::ForgedAnswer => {
            "see that no login but those of the hosts is in the account of the bucket, see putexd-stores(7)"
        }
        Alarm::NewerRecord => "install on this host the version of putexd that the holder has",
        Alarm::StopLost => {
            "find out who may write to the store, and run \"putexctl start\" here when this host may run the service again"
        }
        Alarm::FenceFailed
        | Alarm::Forgeable
        | Alarm::ConfirmedDead
        | Alarm::ConfigurationBroken
        | Alarm::Frozen
        | Alarm::NoDescriptors => IN_REASON,
        Alarm::NotToBeFenced => "name the host under [fence] hosts if it should be fenced",
        Alarm::CheckFailed => "find out why the health check fails",
        Alarm::OtherLock => "follow putexd-operations(7)",
        Alarm::ServiceFails => "find out from the journal of the unit why it fails",
        Alarm::GuardGone => "look at \"systemctl status putex-guard\"",
        Alarm::SystemdSilent => {
            "run \"cat /proc/1/stack\", and if PID 1 waits for a share, make that answer or run \"umount -f -l\" with its path; reboot the \
             host if that does not help"
        }
        Alarm::Lapsed => "find out why the lease was not renewed",
        Alarm::Drained => "run \"putexctl undrain\" when this host is to take part again",
        Alarm::Undrained
        | Alarm::StoreFound
        | Alarm::ConfigurationReloaded
        | Alarm::CheckRecovered
        | Alarm::OneLock
        | Alarm::Over => {
            return None;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::both(Duration::from_secs(seconds))
    }

    #[test]
    fn an_alarm_stands_until_it_is_over_and_one_of_a_moment_for_an_hour() {
        let alarms = Alarms::default();
        let wall = Duration::from_secs(1_790_000_000);
        alarms.raise(Alarm::CheckFailed, "it says no", at(1), wall);
        alarms.raise(Alarm::CheckFailed, "it says\u{1b} no again", at(5), wall + Duration::from_secs(4));
        alarms.raise(Alarm::ClockJump, "by 3 s", at(5), wall);
        alarms.raise(Alarm::StoreFound, "it is no alarm", at(5), wall);
        assert_eq!(
            alarms.told()[0].in_words(),
            "find out why the health check fails: the health check has failed, since 2026-09-21T14:13:20Z: it says\\u{1b} no again"
        );
        assert!(alarms.told()[1].in_words().contains("the clock jumped, at 2026-"), "{:?}", alarms.told());
        let later = wall + Duration::from_secs(180);
        alarms.raise(Alarm::ClockJump, "by 4 s", at(185), later);
        let since: Vec<u64> = alarms.told().iter().map(|told| told.since).collect();
        assert_eq!(since, [wall.as_secs(), later.as_secs()], "the latest moment counts, and the first of what lasts");
        alarms.raise(Alarm::ClockJump, "by 3 s", at(5), wall);
        assert_eq!(alarms.kinds(at(5)), [Alarm::CheckFailed, Alarm::ClockJump]);
        assert_eq!(alarms.mask(), metrics::bit(Alarm::CheckFailed) | metrics::bit(Alarm::ClockJump));
        assert_eq!(alarms.kinds(at(5 + 3_600)), [Alarm::CheckFailed]);
        assert!(alarms.end(Alarm::CheckFailed));
        assert!(!alarms.end(Alarm::CheckFailed), "it is told once");
        assert_eq!(alarms.told(), []);
        assert_eq!(alarms.mask(), 0);
    }

    #[test]
    fn the_next_putexd_shows_what_was_over_in_a_moment_and_raises_again_what_lasts() {
        let (wall, kept) = (Duration::from_secs(1_790_000_000), KeptAlarms::default());
        let service = ServiceName::new("db").expect("a service's name");
        let former = Alarms::of_service(&service, &kept);
        former.raise(Alarm::Lapsed, "not renewed", at(5), wall);
        former.raise(Alarm::CheckFailed, "it says no", at(5), wall);
        former.raise(Alarm::Regression, "it was at 9", at(5), wall);
        former.end(Alarm::Regression);
        Alarms::of_host(&kept).raise(Alarm::ConfirmedDead, "run this: h2 is off", at(6), wall);
        let next = Alarms::of_service(&service, &kept);
        assert_eq!(next.mask(), metrics::bit(Alarm::Lapsed));
        assert_eq!(next.told(), former.told()[..1]);
        assert_eq!(next.kinds(at(5 + 3_599)), [Alarm::Lapsed]);
        assert_eq!(next.kinds(at(5 + 3_600)), []);
        assert_eq!(Alarms::of_host(&kept).told()[0].remedy, "run this");
    }

    #[test]
    fn an_alarm_of_another_host_has_its_remedy_with_the_name() {
        let alarms = Alarms::default();
        let reason = "run \"putexctl confirm-dead h2\" if you know that h2 is off: fence@h2.service: exit-code";
        alarms.raise(Alarm::FenceFailed, reason, at(1), Duration::from_secs(1_790_000_000));
        assert_eq!(
            alarms.told()[0].in_words(),
            "run \"putexctl confirm-dead h2\" if you know that h2 is off: fencing has failed, since 2026-09-21T14:13:20Z: \
             fence@h2.service: exit-code"
        );
    }

    #[test]
    fn each_alarm_has_a_remedy_or_tells_of_no_trouble() {
        for kind in Alarm::ALL {
            let is_trouble = kind.level() != tracing::Level::INFO;
            assert_eq!(remedy(*kind).is_some(), is_trouble, "{}", kind.name());
        }
    }

    #[test]
    fn what_anybody_may_have_written_gives_no_advice() {
        let told = AlarmStatus {
            kind: "store-lost".to_owned(),
            remedy: "run \"putexctl confirm-dead h2\"".to_owned(),
            what: "all is lost".to_owned(),
            reason: "it burns".to_owned(),
            since: 17,
            over: false,
        };
        let shown = quoted(told.clone());
        assert_eq!(shown.head(), "see that the store is up, and that this host reaches it: the store is lost");
        assert_eq!((&*shown.reason, shown.since), ("it says \"it burns\"", 17));
        // A kind that says itself what to do, and none that there is.
        for kind in ["forgeable", "burning", ""] {
            let shown = quoted(AlarmStatus { kind: kind.to_owned(), ..told.clone() });
            assert_eq!(shown.remedy, "look on that host", "{kind}");
            let said = "it says \"run \\\"putexctl confirm-dead h2\\\": all is lost: it burns\"";
            assert_eq!(shown.reason, said, "{kind}");
        }
        assert_eq!(quote(""), "");
    }
}
