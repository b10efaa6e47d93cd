//! Whether this host may run its units under the key that its configuration names (N1 to N4). A task looks at the entry of
//! each unit in the store, makes the entry if there is none, and changes it on an operator's word. `election::registration`
//! has the rules.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{bars::BarSource, inbox::Inbox};
use crate::{
    cluster::verb::Unmet,
    config::ServiceSettings,
    daemon::{
        host::Host,
        local::timers::pace,
        store_access::{
            calls::{observation, read_within, write_within},
            hints::rung,
        },
    },
    election::{
        FormerLock, Found, KeptPlace, KeyRefusal, LockPlace, Registration, Verdict, is_newer, judge,
    },
    facts::Bar,
    store::{Entry, Snapshot, StoreError, WriteOutcome},
    types::{Key, UnitName, Value},
};

/// Time between two looks at an entry, unless the store hints at a change of it. It is `SHARE_OF_LOOKS` for each unit of
/// the host where that is more: at a thousand units, 25 of them are looked at in a second.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
const SHARE_OF_LOOKS: Duration = Duration::from_millis(40);
/// Limit of the steps of one look. The entry is made, former locks are looked at, the entry is changed, and each may have
/// to be read again.
const STEPS_LIMIT: usize = 6;
/// Time between two looks whether something is on the disk.
const ON_DISK_INTERVAL: Duration = Duration::from_millis(5);
/// How often an entry is read before a start (vetting, N2).
const VET_LIMIT: usize = 3;

/// Keeps looking at the entries of a service's units, and tells `inbox` each change. The units of a service stay the same
/// as long as it lives.
pub async fn keep_looking(
    host: Host,
    settings: watch::Receiver<Arc<ServiceSettings>>,
    inbox: Inbox,
) {
    let mut entries = entries_of(&host, &settings);
    let unit = settings.borrow().unit.clone();
    let bells: Vec<_> = entries
        .iter()
        .map(|entry| host.hints.of(&entry.key))
        .collect();
    let mut last = None;
    loop {
        // Boxed, because the future would otherwise take memory between two looks as well.
        let entry = Box::pin(look(&mut entries)).await;
        let timings = settings.borrow().timings;
        let pause = match &entry {
            Ok(()) => pace(&*host.systemd, &unit, LOOK_INTERVAL, SHARE_OF_LOOKS),
            // A former lock is watched closely, in order to see that it is let go.
            Err(Bar::OtherLock { .. }) => timings.renew_interval / 2,
            Err(_) => timings.call_limit(),
        };
        inbox
            .send_bar(&mut last, BarSource::Entry, entry.err())
            .await;
        tokio::select! {
            // The order is fixed and not random, so that a simulation can be repeated exactly.
            biased;
            _ = rung(&bells) => {}
            () = sleep(pause) => {}
        }
    }
}

fn entries_of(host: &Host, settings: &watch::Receiver<Arc<ServiceSettings>>) -> Vec<UnitEntry> {
    let of_unit = |unit: &UnitName| UnitEntry {
        host: host.clone(),
        settings: settings.clone(),
        unit: unit.clone(),
        key: Key::of_unit(host.cluster.as_ref(), unit),
        former: BTreeMap::new(),
    };
    settings.borrow().units().map(of_unit).collect()
}

/// The first unit that is not cleared decides for the service. The units after it are not looked at, because a host that
/// has the wrong key for one unit must not be the first that makes an entry for the others. Where the key is right and only
/// former locks are waited for, all units wait at the same time.
async fn look(entries: &mut [UnitEntry]) -> Result<(), Bar> {
    let mut waits = None;
    for entry in entries {
        let reason = entry.look().await?;
        waits = waits.or(reason);
    }
    waits.map_or(Ok(()), |error| Err(Bar::OtherLock { error }))
}

/// Carries out an operator's word for each unit. Returns the answer to him.
pub async fn adopt(
    host: Host,
    settings: watch::Receiver<Arc<ServiceSettings>>,
) -> Result<String, Unmet> {
    let mut adopted = Vec::new();
    for entry in entries_of(&host, &settings) {
        adopted.extend(entry.adopt().await?);
    }
    if adopted.is_empty() {
        return Err(Unmet::needless("that is so already"));
    }
    Ok(adopted.join("; "))
}

/// Vets a start (N2): whether the entry of each unit still names this lock. It runs after the claim is won and before
/// anything is started. `Err`: why nothing may be started.
pub async fn vet(
    host: Host,
    settings: watch::Receiver<Arc<ServiceSettings>>,
) -> Result<(), String> {
    let entries = entries_of(&host, &settings);
    join_all(entries.iter().map(UnitEntry::vet))
        .await
        .into_iter()
        .collect()
}

/// One unit's entry.
struct UnitEntry {
    host: Host,
    settings: watch::Receiver<Arc<ServiceSettings>>,
    unit: UnitName,
    /// Where it is in the store.
    key: Key,
    /// The former locks that it names, with what was seen of them.
    former: BTreeMap<Key, FormerLock>,
}

impl UnitEntry {
    /// The store and the key that the configuration names.
    fn here(&self) -> LockPlace {
        LockPlace {
            store: self.host.store_address.clone(),
            key: self.settings.borrow().key.clone(),
        }
    }

    fn limit(&self) -> Duration {
        self.settings.borrow().timings.call_limit()
    }

    /// Whether the entry allows the unit to be run under the key; it is changed where the rules ask for that. `Ok`: nothing but the former
    /// lock that is named keeps the unit from being run; `None`: nothing at all does.
    async fn look(&mut self) -> Result<Option<String>, Bar> {
        let key = self.key.clone();
        let unread = |error: StoreError| {
            // What is so for all entries is told alike for all services.
            let error = if let StoreError::Missing(_) | StoreError::Unreachable(_) = error {
                error.to_string()
            } else {
                format!("the entry {key} cannot be read: {error}")
            };
            Bar::EntryUnknown { error }
        };
        for _ in 0..STEPS_LIMIT {
            let snapshot = self.read(&self.key).await.map_err(unread)?;
            // The entry is read again after a write, whatever its outcome.
            match self.judge(&snapshot, false) {
                Verdict::Cleared => {
                    self.former.clear();
                    self.remember(&snapshot);
                    // What a host remembers (N4) has to be on the disk when the unit is started.
                    let kept = self.is_on_disk().await;
                    return kept
                        .map(|()| None)
                        .map_err(|error| Bar::EntryUnknown { error });
                }
                Verdict::Write(registration) => drop(self.write(&snapshot, &registration).await),
                Verdict::Waits(mut registration) => {
                    self.remember(&snapshot);
                    let waits = self.wait_for(&mut registration.former).await;
                    if let Some(reason) = waits.map_err(unread)? {
                        return Ok(Some(reason));
                    }
                    self.write(&snapshot, &registration).await;
                }
                Verdict::Refused(refusal) => {
                    if let KeyRefusal::OtherKey(_) = refusal {
                        self.remember(&snapshot);
                    }
                    let error = self.explain(&refusal);
                    return Err(Bar::OtherLock { error });
                }
            }
        }
        Err(Bar::EntryUnknown {
            error: "the store does not take what is written".to_owned(),
        })
    }

    fn judge(&self, snapshot: &Snapshot, adopting: bool) -> Verdict {
        let kept = self.host.machine.recall_place(&self.unit);
        let (found, at) = (self.found(snapshot), snapshot.position());
        judge(&self.here(), kept.as_ref(), &found, &at, adopting)
    }

    fn found(&self, snapshot: &Snapshot) -> Found {
        match snapshot.value() {
            Some(value) => {
                Registration::decode(value, &self.unit).map_or(Found::Garbled, Found::Entry)
            }
            None => Found::Nothing,
        }
    }

    /// Keeps the entry as the store showed it, whichever key it names, unless a newer one was seen (N4).
    fn remember(&self, snapshot: &Snapshot) {
        let Found::Entry(Registration { key, former }) = self.found(snapshot) else {
            return;
        };
        let kept = KeptPlace {
            place: LockPlace { key, ..self.here() },
            former,
            position: Some(snapshot.position()),
        };
        let before = self.host.machine.recall_place(&self.unit);
        let newest = before.as_ref().and_then(|before| before.position.as_ref());
        if before.as_ref() != Some(&kept)
            && !newest.is_some_and(|newest| is_newer(newest, kept.position.as_ref()))
        {
            self.host.machine.keep_place(&self.unit, kept);
        }
    }

    /// Waits until the place of the unit is on the disk, which a start requires (N4). `Err`: why it is not.
    async fn is_on_disk(&self) -> Result<(), String> {
        let kept = async {
            while !self.host.machine.has_kept_place(&self.unit)? {
                sleep(ON_DISK_INTERVAL).await;
            }
            Ok(())
        };
        timeout(self.limit(), kept).await.unwrap_or_else(|_| {
            Err(format!(
                "see why /var/lib/putex is slow: where the lock of {} is was not written yet",
                self.unit
            ))
        })
    }

    /// Carries out an operator's word that the place which the configuration names is meant (adoption of another key, N3). Returns the answer to
    /// him; `None`: it is so already.
    async fn adopt(&self) -> Result<Option<String>, Unmet> {
        let (unit, here) = (&self.unit, self.here());
        let read = self.read(&self.key).await;
        let snapshot = read.map_err(|error| error.to_string())?;
        if self.judge(&snapshot, false) == Verdict::Cleared {
            return Ok(None);
        }
        let mut at = snapshot.position();
        let former = match self.judge(&snapshot, true) {
            Verdict::Cleared => Vec::new(),
            Verdict::Waits(registration) => registration.former,
            Verdict::Refused(refusal) => return Err(self.explain(&refusal).into()),
            Verdict::Write(registration) => {
                let outcome = self.write(&snapshot, &registration).await;
                let WriteOutcome::Won(revision) = outcome else {
                    return Err(Unmet::Open(format!(
                        "see \"putexctl status\", and say it again: the store may have taken it or not: {outcome:?}"
                    )));
                };
                at.1 = revision;
                registration.former
            }
        };
        let mut done = format!(
            "{unit} is run under the key \"{}\" in {}",
            here.key, here.store
        );
        tracing::info!("an operator has said that {done}");
        if let Some(kept) = self.host.machine.recall_place(unit)
            && !here.store.leads_to_that_of(&kept.place.store)
        {
            done = format!(
                "{done}; see that no host comes back with the former store, {}, not even one that is off",
                kept.place.store
            );
        }
        let kept = KeptPlace {
            place: here,
            former,
            position: Some(at),
        };
        self.host.machine.keep_place(unit, kept);
        Ok(Some(done))
    }

    /// Writes the entry again as it was seen last, or else as it is read. `Err`: an entry does not allow a start, or is not known to.
    async fn vet(&self) -> Result<(), String> {
        if let Some(seen) = self.last_seen()
            && self.is_present(&seen).await == Ok(true)
        {
            return Ok(());
        }
        let mut last = String::new();
        for _ in 0..VET_LIMIT {
            match self.read(&self.key).await {
                Ok(snapshot) if self.is_present(&snapshot).await? => return Ok(()),
                Ok(_) => "its entry is being changed, or cannot be written".clone_into(&mut last),
                Err(error) => last = error.to_string(),
            }
            sleep(self.limit() / 2).await;
        }
        Err(format!(
            "whether {} is run under the key \"{}\" is not known: {last}",
            self.unit,
            self.here().key
        ))
    }

    /// The entry as this host has seen it last.
    fn last_seen(&self) -> Option<Snapshot> {
        let KeptPlace {
            place,
            former,
            position,
        } = self.host.machine.recall_place(&self.unit)?;
        let (incarnation, revision) = position?;
        let value = Registration {
            key: place.key,
            former,
        }
        .encode(&self.unit);
        let entry = Entry {
            revision,
            value: Some(value),
        };
        Some(Snapshot {
            incarnation,
            entry: Some(entry),
        })
    }

    /// Whether `seen` is what the store has now, which a write of it shows. `Err`: it does not allow a start.
    async fn is_present(&self, seen: &Snapshot) -> Result<bool, String> {
        if self.judge(seen, false) != Verdict::Cleared {
            return Err(format!(
                "the store says no longer that {} is run under the key \"{}\"",
                self.unit,
                self.here().key
            ));
        }
        self.is_on_disk().await?;
        Ok(self.rewrite(&self.key, seen).await)
    }

    /// Removes from `former` the first lock under which nobody runs the unit any more, or returns why there is none. A host
    /// that takes such a lock later looks at the entry before it starts anything (N2).
    async fn wait_for(&mut self, former: &mut Vec<Key>) -> Result<Option<String>, StoreError> {
        let timings = self.settings.borrow().timings;
        let mut reason = None;
        for (index, key) in former.iter().enumerate() {
            let sent = self.host.machine.now();
            let snapshot = self.read(key).await?;
            let (now, shown) = (self.host.machine.now(), observation(&snapshot));
            let free = if let Some(lock) = self.former.get_mut(key) {
                lock.see(&self.unit, shown, sent, now, &timings)
            } else {
                self.former
                    .insert(key.clone(), FormerLock::first(shown, sent, now));
                false
            };
            // The read showed the present value only if this write of the unchanged value is won (N3).
            if free && self.rewrite(key, &snapshot).await {
                former.remove(index);
                return Ok(None);
            }
            reason.get_or_insert_with(|| {
                format!(
                    "{} was run under the key \"{key}\", and that lock is not free yet",
                    self.unit
                )
            });
        }
        Ok(reason)
    }

    /// Why the unit may not be run under the key, and what the operator can do about it.
    fn explain(&self, refusal: &KeyRefusal) -> String {
        let unit = &self.unit;
        let settings = self.settings.borrow();
        let (key, source) = (&settings.key, settings.source.0.display());
        let adopt = format!("run \"putexctl adopt {}\" on this host", settings.name);
        let choose = |other: &Key| {
            let correct = if settings.unit == *unit {
                format!("set key = \"{other}\" in {source}")
            } else {
                format!("take {unit} out of bound-units in {source}")
            };
            format!("{correct}; or, if \"{key}\" is meant, {adopt}")
        };
        match refusal {
            KeyRefusal::OtherKey(other) => format!(
                "{unit} is run under the key \"{other}\" in this store, and not under \"{key}\"; {}, and change the others after it; \
                 or, if another cluster has a unit of the same name, set cluster in putexd.toml",
                choose(other)
            ),
            KeyRefusal::FormerKey(former) => format!(
                "{}: the store has lost the entry of {unit}, which was run under the key \"{former}\"",
                choose(former)
            ),
            KeyRefusal::OtherStore(place) => format!(
                "run \"systemctl stop putexd\" on each host with the former store, see that \"systemctl is-active {unit}\" says inactive there, then {adopt}: {unit} was run under the key \"{}\" in {}, and not in {}",
                place.key, place.store, self.host.store_address
            ),
            KeyRefusal::Garbled => format!(
                "see that all hosts have the same seal-key, or none, and that no host runs {unit} under another key than \"{key}\", then {adopt}: the \
                 entry {} is not understood",
                self.key
            ),
            KeyRefusal::TooMany(count) => format!(
                "see \"putexctl status\" on the other hosts: {unit} was run under {count} keys that are not seen free"
            ),
        }
    }

    async fn read(&self, key: &Key) -> Result<Snapshot, StoreError> {
        read_within(self.limit(), &*self.host.store, key, None).await
    }

    async fn write(&self, snapshot: &Snapshot, registration: &Registration) -> WriteOutcome {
        self.replace(&self.key, snapshot, registration.encode(&self.unit))
            .await
    }

    /// Writes `key` again as it was read. If that write is won, the read was not one of the past, as a deposed leader or the
    /// cache of a network file system may show.
    async fn rewrite(&self, key: &Key, snapshot: &Snapshot) -> bool {
        let value = snapshot.value().cloned().unwrap_or_default();
        let written = self.replace(key, snapshot, value).await;
        matches!(written, WriteOutcome::Won(_))
    }

    async fn replace(&self, key: &Key, snapshot: &Snapshot, value: Value) -> WriteOutcome {
        let attempt = snapshot.replaced_by(value, self.host.machine.random());
        write_within(self.limit(), &*self.host.store, key, &attempt).await
    }
}

#[cfg(test)]
mod tests;
