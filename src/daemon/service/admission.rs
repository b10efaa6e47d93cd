//! Admission: whether the units of a service can be supervised on this host.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::lookout::SHARE_OF_STRAYS;
use super::{Admission, Host, Inbox, Refusal, Told, UnitControl};
use crate::config::{ServiceSettings, StopProof};
use crate::daemon::grounds::{self, Grounds, Uncontainable};
use crate::daemon::timers::{shared, shared_pause};
use crate::guard_client::frame::Watchdog;
use crate::systemd::{ChangeHints, Manager, Surroundings, Unsupervisable};
use crate::types::UnitName;

/// How often it is asked whether a unit can be supervised, where the host has few units: the unit's files may be mended, or
/// broken.
const ADMISSION_INTERVAL: Duration = Duration::from_secs(5);
/// How often that is asked until there is a first answer.
const FIRST_ADMISSION_INTERVAL: Duration = Duration::from_millis(100);
/// The time between two questions about a unit that can be supervised is this for each unit of the host, where that is more: each
/// question takes dozens of calls to PID 1, which tells by itself when it has read its files anew.
const SHARE_OF_QUESTIONS: Duration = Duration::from_millis(500);
/// Shortest time between two questions whether the files that must outlive guard and daemon can be written. The guard
/// itself does not look more often. It is `SHARE_OF_ROOM` for each unit of the host where that is more.
const ROOM_INTERVAL: Duration = Duration::from_secs(1);
const SHARE_OF_ROOM: Duration = Duration::from_millis(5);

/// Answers whether a service may be run on this host. A trait, so that a test can answer as well.
pub(super) trait Admits: Sync {
    /// Whether the units can be supervised. `None`: nobody answered.
    fn supervisable(&self) -> impl Future<Output = Option<Admission>> + Send;

    /// Whether the files that have to outlive guard and daemon can be written. `None`: nobody answered.
    fn can_keep(&self) -> impl Future<Output = Option<Result<(), Refusal>>> + Send;

    /// How long the answer of `supervisable` counts, unless PID 1 reads its files anew before.
    fn interval(&self, last: Option<&Admission>) -> Duration;

    /// The time from now on until `can_keep` is asked again.
    fn until_room(&self) -> Duration;
}

pub(super) struct Admitter {
    pub(super) host: Host,
    pub(super) units: UnitControl,
    pub(super) settings: watch::Receiver<Arc<ServiceSettings>>,
}

impl Admits for Admitter {
    async fn supervisable(&self) -> Option<Admission> {
        let current = self.settings.borrow().clone();
        self.host.grounds.put(&current.name, self.units.groups());
        match admission(&*self.units.systemd, &self.host.grounds, &current).await {
            Some(Ok(remarks)) => watchdog_is_served(&self.host).await.map(|served| served.map(|()| remarks)),
            other => other,
        }
    }

    async fn can_keep(&self) -> Option<Result<(), Refusal>> {
        if let Some(trouble) = self.host.guard.trouble().await.ok()? {
            return Some(Err(Refusal::Host(trouble)));
        }
        let settings = self.settings.borrow();
        let kept = settings.units().try_for_each(|unit| self.host.machine.has_kept_place(unit).map(drop));
        Some(kept.map_err(Refusal::Host))
    }

    fn interval(&self, last: Option<&Admission>) -> Duration {
        match last {
            None => FIRST_ADMISSION_INTERVAL,
            // PID 1 gives no hint when a refusal ends that has another cause than a unit's files.
            Some(Err(_)) => ADMISSION_INTERVAL.max(shared(&*self.units.systemd, &self.units.main, SHARE_OF_STRAYS)),
            Some(Ok(_)) => ADMISSION_INTERVAL.max(shared(&*self.units.systemd, &self.units.main, SHARE_OF_QUESTIONS)),
        }
    }

    fn until_room(&self) -> Duration {
        let renew_interval = self.settings.borrow().timings.renew_interval;
        let interval =
            renew_interval.max(ROOM_INTERVAL).max(shared(&*self.units.systemd, &self.units.main, SHARE_OF_ROOM));
        shared_pause(self.host.machine.now(), interval)
    }
}

/// Tells `inbox` each change of the admission: whether the units' stop can be proven and their start is gated, and the
/// remarks. `reloads` are PID 1's daemon-reloads. `can_keep` costs little and is asked about every R, and PID 1 is asked
/// about the units seldom.
pub(super) async fn admit(admits: impl Admits, mut reloads: ChangeHints, inbox: Inbox) {
    let mut last: Option<Admission> = None;
    loop {
        // Boxed, as is the next future, because it would otherwise take memory between two questions as well.
        let found = Box::pin(admits.supervisable()).await;
        let found_at = Instant::now();
        loop {
            let admission = match &found {
                Some(Ok(remarks)) => {
                    let can_keep = Box::pin(admits.can_keep()).await;
                    can_keep.map(|can| can.map(|()| remarks.clone()))
                }
                other => other.clone(),
            };
            if admission.is_some() && admission != last {
                last.clone_from(&admission);
                if let Some(admission) = admission
                    && inbox.tell(Told::Admission(admission)).await.is_err()
                {
                    return;
                }
            }
            let left = admits.interval(last.as_ref()).saturating_sub(found_at.elapsed());
            if left.is_zero() {
                break;
            }
            let pause = left.min(admits.until_room());
            tokio::select! {
                // The order is fixed and not random, so that a simulation can be repeated exactly.
                biased;
                // The stream of reloads never ends.
                _ = reloads.next(), if last.is_some() => break,
                () = sleep(pause) => {}
            }
        }
    }
}

/// Whether the guard serves the hardware watchdog that the configuration names. The guard takes it from its own command
/// line, so it may have been started before the configuration was changed. `None`: the guard did not answer.
async fn watchdog_is_served(host: &Host) -> Option<Result<(), Refusal>> {
    let Some(wanted) = &host.watchdog else { return Some(Ok(())) };
    let served = host.guard.watchdog().await.ok()?;
    let matches = |served: &Watchdog| served.device == wanted.device && served.timeout == wanted.timeout;
    Some(match served.filter(matches) {
        None => Err(Refusal::OtherWatchdog(wanted.clone())),
        Some(Watchdog { trouble: Some(trouble), device, .. }) => Err(Refusal::Unserved { device, trouble }),
        Some(Watchdog { trouble: None, .. }) => Ok(()),
    })
}

/// The remarks on the units, or why they cannot be supervised. `None`: PID 1 did not answer, and nothing against them is
/// known.
async fn admission(systemd: &dyn Manager, grounds: &Grounds, settings: &ServiceSettings) -> Option<Admission> {
    let all: Vec<UnitName> = settings.units().cloned().collect();
    let mut remarks = Vec::new();
    let mut refusal = None;
    for unit in &all {
        let around = Surroundings {
            service: Some(&settings.name),
            named_in: None,
            self_fence: settings.on_stop_failure.is_self_fence(),
            bound: &all,
            beside: &settings.beside,
            contains: &settings.contains,
            unit_only: settings.stop_proof == StopProof::UnitOnly,
            may_end: *unit != settings.unit,
        };
        match systemd.supervisable(unit, around).await {
            Ok(found) => remarks.extend(found),
            Err(Unsupervisable::Bus(_)) => return None,
            // A unit that can be started without the lease weighs more than any other fault of another unit.
            Err(error) if error.is_ungated() => return Some(Err(error.into())),
            Err(error) => drop(refusal.get_or_insert(error)),
        }
    }
    if let Some(refusal) = refusal {
        return Some(Err(refusal.into()));
    }
    match grounds::check(systemd, grounds, settings).await {
        Ok(()) => Some(Ok(remarks)),
        Err(Uncontainable::Bus(_)) => None,
        Err(error) => Some(Err(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;

    const R: Duration = Duration::from_secs(1);

    /// Answers for a unit that can be supervised, on a host whose disk may be full.
    #[derive(Clone, Default)]
    struct Told {
        trouble: Arc<Mutex<Option<String>>>,
        asked_pid_1: Arc<AtomicU64>,
    }

    impl Admits for Told {
        async fn supervisable(&self) -> Option<Admission> {
            self.asked_pid_1.fetch_add(1, Ordering::Relaxed);
            Some(Ok(vec!["a remark".to_owned()]))
        }

        async fn can_keep(&self) -> Option<Result<(), Refusal>> {
            let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Some(trouble.map_or(Ok(()), |trouble| Err(Refusal::Host(trouble))))
        }

        fn interval(&self, last: Option<&Admission>) -> Duration {
            if last.is_some() { ADMISSION_INTERVAL } else { FIRST_ADMISSION_INTERVAL }
        }

        fn until_room(&self) -> Duration {
            R
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_host_is_told_of_within_r_when_it_begins_and_when_it_is_over() {
        let told = Told::default();
        let (inbox, mut admissions) = Inbox::new();
        tokio::spawn(admit(told.clone(), Box::pin(futures_util::stream::pending()), inbox));
        let mut next = async || {
            let told = *admissions.recv().await.expect("it is told");
            let super::Told::Admission(admission) = told else { panic!("{told:?}") };
            admission
        };
        let well = || Ok(vec!["a remark".to_owned()]);
        assert_eq!(next().await, well());
        let began = Instant::now();
        for _ in 0..20 {
            let full = Err(Refusal::Host("free space".to_owned()));
            for (trouble, wanted) in [(Some("free space".to_owned()), full), (None, well())] {
                *told.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
                let since = Instant::now();
                assert_eq!(next().await, wanted);
                assert!(since.elapsed() <= R, "{:?}", since.elapsed());
                tokio::time::sleep(Duration::from_millis(130)).await;
            }
        }
        let asked = told.asked_pid_1.load(Ordering::Relaxed);
        assert!(asked <= began.elapsed().as_secs() / ADMISSION_INTERVAL.as_secs() + 1, "{asked}");
    }
}
