//! Whether this host may run its units under the key that its configuration names (N1 to N4). A task looks at the entry of
//! each unit in the store, makes the entry if there is none, and changes it on an operator's word. `election::registration`
//! has the rules.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::hints;
use super::host::Host;
use super::inbox::{Adoption, Inbox, Standpoint, Told};
use super::machine::Machine;
use super::observation::observation;
use super::timers::{shared, shared_pause};
use crate::cluster::request::Unmet;
use crate::config::ServiceSettings;
use crate::election::{
    FormerLock, Found, KeptPlace, Place, Position, Record, Refusal, Registration, Verdict, is_newer, judge,
};
use crate::store::{Attempt, Entry, Snapshot, Store, StoreError, WriteOutcome};
use crate::types::store::StoreAddress;
use crate::types::{Key, Revision, UnitName, Value, WriteId};

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

/// At most one operator's word, which waits for the task that looks at the entries.
#[derive(Debug, Default)]
pub(super) struct Adoptions {
    waiting: Mutex<Option<Adoption>>,
    said: Notify,
}

impl Adoptions {
    /// Hands an operator's word over. `Err`: another one waits already.
    pub(super) fn say(&self, adoption: Adoption) -> Result<(), Adoption> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.is_some() {
            return Err(adoption);
        }
        *waiting = Some(adoption);
        drop(waiting);
        self.said.notify_one();
        Ok(())
    }

    async fn next(&self) -> Adoption {
        loop {
            if let Some(adoption) = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return adoption;
            }
            self.said.notified().await;
        }
    }
}

/// A map with the units of one service as keys. It is a vector, because most services have one unit, and a `BTreeMap`
/// allocates room for eleven.
struct OfUnits<T>(Vec<(UnitName, T)>);

impl<T> OfUnits<T> {
    fn get(&self, unit: &UnitName) -> Option<&T> {
        self.0.iter().find(|(other, _)| other == unit).map(|(_, one)| one)
    }

    fn put(&mut self, unit: &UnitName, one: T) {
        if let Some((_, former)) = self.0.iter_mut().find(|(other, _)| other == unit) {
            *former = one;
        } else {
            self.0.reserve_exact(1);
            self.0.push((unit.clone(), one));
        }
    }
}

impl<T> Default for OfUnits<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// What this host remembers of the entries of a service's units. The task that looks and the one that vets share it.
#[derive(Clone)]
pub(super) struct Places {
    machine: Arc<dyn Machine>,
    kept: Arc<Mutex<OfUnits<KeptPlace>>>,
    /// The entries as they were when they last cleared a unit.
    seen: Arc<Mutex<OfUnits<Snapshot>>>,
}

impl Places {
    /// Reads what is kept on the disk.
    pub(super) fn new<'a>(machine: &Arc<dyn Machine>, units: impl Iterator<Item = &'a UnitName>) -> Self {
        let places = OfUnits(units.filter_map(|unit| Some((unit.clone(), machine.recall_place(unit)?))).collect());
        Self { machine: Arc::clone(machine), kept: Arc::new(Mutex::new(places)), seen: Arc::default() }
    }

    fn seen(&self, unit: &UnitName) -> Option<Snapshot> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(unit).cloned()
    }

    fn see(&self, unit: &UnitName, snapshot: Snapshot) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).put(unit, snapshot);
    }

    fn of(&self, unit: &UnitName) -> Option<KeptPlace> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(unit).cloned()
    }

    fn keep(&self, unit: &UnitName, kept: KeptPlace) {
        let mut places = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if places.get(unit) != Some(&kept) {
            self.machine.keep_place(unit, kept.clone());
            places.put(unit, kept);
        }
    }

    /// Waits until the place of the unit is on the disk, which a start requires (N4).
    async fn are_on_disk(&self, unit: &UnitName, limit: Duration) -> Result<(), NotOnDisk> {
        let kept = async {
            while !self.machine.has_kept_place(unit).map_err(NotOnDisk::Failed)? {
                sleep(ON_DISK_INTERVAL).await;
            }
            Ok(())
        };
        timeout(limit, kept).await.unwrap_or_else(|_| Err(NotOnDisk::Late(unit.clone())))
    }

    /// Keeps the entry as the store showed it, whichever key it names, unless a newer one was seen (N4).
    fn keep_entry(&self, unit: &UnitName, store: &StoreAddress, entry: &Registration, at: Position) {
        let place = Place { store: store.clone(), key: entry.key.clone() };
        let kept = KeptPlace { place, former: entry.former.clone(), position: Some(at) };
        let newest = self.of(unit).and_then(|before| before.position);
        if !newest.is_some_and(|newest| is_newer(&newest, kept.position.as_ref())) {
            self.keep(unit, kept);
        }
    }
}

/// Keeps looking at the entries of a service's units, and tells `inbox` each change. The units of a service stay the same
/// as long as it lives. It ends when the service is gone.
pub(super) async fn keep_looking(
    host: Host,
    settings: watch::Receiver<Arc<ServiceSettings>>,
    kept: Places,
    adoptions: Arc<Adoptions>,
    inbox: Inbox,
) {
    let units: Vec<UnitName> = settings.borrow().units().cloned().collect();
    let mut registrars: Vec<Registrar> =
        units.into_iter().map(|unit| Registrar::new(host.clone(), settings.clone(), kept.clone(), unit)).collect();
    let unit = settings.borrow().unit.clone();
    let bells: Vec<_> = registrars.iter().map(|registrar| host.hints.of(&registrar.entry)).collect();
    let mut last = None;
    loop {
        // Boxed, because the future would otherwise take memory between two looks as well.
        let standpoint = Box::pin(look(&mut registrars)).await;
        if last.as_ref() != Some(&standpoint) {
            last = Some(standpoint.clone());
            if inbox.tell(Told::Standpoint(standpoint.clone())).await.is_err() {
                return;
            }
        }
        let timings = settings.borrow().timings;
        let pause = match standpoint {
            Standpoint::Unknown(_) => timings.call_limit(),
            Standpoint::Cleared => LOOK_INTERVAL.max(shared(&*host.systemd, &unit, SHARE_OF_LOOKS)),
            // A former lock is watched closely, in order to see that it is let go.
            Standpoint::Refused(_) => timings.renew_interval / 2,
        };
        tokio::select! {
            // The order is fixed and not random, so that a simulation can be repeated exactly.
            biased;
            adoption = adoptions.next() => {
                // The client may have gone.
                let _ = adoption.send(Box::pin(adopt(&mut registrars)).await);
            }
            () = hints::hint(&bells) => {}
            () = sleep(shared_pause(host.machine.now(), pause)) => {}
        }
    }
}

/// The first unit that is not cleared decides for the service. The units after it are not looked at, because a host that
/// has the wrong key for one unit must not be the first that makes an entry for the others. Where the key is right and only
/// former locks are waited for, all units wait at the same time.
async fn look(registrars: &mut [Registrar]) -> Standpoint {
    let mut waits = None;
    for registrar in registrars {
        match registrar.look().await {
            Ok(Looked::Waits(reason)) => drop(waits.get_or_insert(reason)),
            Ok(Looked::Stands(Standpoint::Cleared)) => {}
            Ok(Looked::Stands(standpoint)) => return standpoint,
            // What is so for all entries is told alike for all services.
            Err(error @ (StoreError::Missing(_) | StoreError::Unreachable(_))) => {
                return Standpoint::Unknown(error.to_string());
            }
            Err(error) => {
                return Standpoint::Unknown(format!("the entry {} cannot be read: {error}", registrar.entry));
            }
        }
    }
    waits.map_or(Standpoint::Cleared, Standpoint::Refused)
}

/// What one unit's entry says.
#[derive(Debug, PartialEq, Eq)]
enum Looked {
    Stands(Standpoint),
    /// The key is right, but a former lock is not free yet (adoption of another key, N3). The words say which.
    Waits(String),
}

/// Carries out an operator's word for each unit.
async fn adopt(registrars: &mut [Registrar]) -> Result<String, Unmet> {
    let (mut adopted, mut needless) = (Vec::new(), Vec::new());
    for registrar in registrars {
        match registrar.adopt().await {
            Ok(told) => adopted.push(told),
            Err(Unmet::Needless(told)) => needless.push(told),
            Err(unmet) => return Err(unmet),
        }
    }
    if adopted.is_empty() {
        return Err(Unmet::Needless(format!("nothing was to be done: {}", needless.join("; "))));
    }
    Ok(adopted.join("; "))
}

/// Looks at one unit's entry, and changes it where the rules ask for that.
struct Registrar {
    host: Host,
    settings: watch::Receiver<Arc<ServiceSettings>>,
    unit: UnitName,
    entry: Key,
    kept: Places,
    /// The former locks of the entry, with what was seen of them.
    former: BTreeMap<Key, FormerLock>,
}

impl Registrar {
    fn new(host: Host, settings: watch::Receiver<Arc<ServiceSettings>>, kept: Places, unit: UnitName) -> Self {
        let entry = Key::of_unit(host.cluster.as_ref(), &unit);
        Self { host, settings, unit, entry, kept, former: BTreeMap::new() }
    }

    /// The store and the key that the configuration names.
    fn here(&self) -> Place {
        Place { store: self.host.store_address.clone(), key: self.settings.borrow().key.clone() }
    }

    async fn look(&mut self) -> Result<Looked, StoreError> {
        for _ in 0..STEPS_LIMIT {
            let snapshot = self.read(&self.entry).await?;
            let found = found(&snapshot, &self.unit);
            let verdict = judge(&self.here(), self.kept.of(&self.unit).as_ref(), &found, &position(&snapshot), false);
            // The entry is read again after a write, whatever its outcome.
            match verdict {
                Verdict::Cleared => {
                    self.former.clear();
                    self.remember(&found, &snapshot);
                    self.kept.see(&self.unit, snapshot);
                    // What a host remembers (N4) has to be on the disk when the unit is started.
                    let limit = self.settings.borrow().timings.call_limit();
                    return Ok(Looked::Stands(match self.kept.are_on_disk(&self.unit, limit).await {
                        Ok(()) => Standpoint::Cleared,
                        Err(error) => Standpoint::Unknown(error.to_string()),
                    }));
                }
                Verdict::Write(registration) => {
                    self.write(&snapshot, &registration).await;
                }
                Verdict::Waits(mut registration) => {
                    self.remember(&found, &snapshot);
                    if let Some(reason) = self.wait_for(&mut registration.former).await? {
                        return Ok(Looked::Waits(reason));
                    }
                    self.write(&snapshot, &registration).await;
                }
                Verdict::Refused(refusal) => {
                    if let Refusal::OtherKey(_) = refusal {
                        self.remember(&found, &snapshot);
                    }
                    return Ok(Looked::Stands(Standpoint::Refused(self.explain(&refusal).await)));
                }
            }
        }
        Err(StoreError::Unreachable("it does not take what is written".to_owned()))
    }

    /// Carries out an operator's word that the place which the configuration names is meant (N3). Returns the answer to
    /// him.
    async fn adopt(&mut self) -> Result<String, Unmet> {
        let unit = &self.unit;
        let snapshot = self.read(&self.entry).await.map_err(|error| error.to_string())?;
        let here = self.here();
        let key = here.key.clone();
        let mut at = position(&snapshot);
        let is_known = {
            let kept = self.kept.of(unit);
            matches!(judge(&here, kept.as_ref(), &found(&snapshot, unit), &at, false), Verdict::Cleared)
        };
        if is_known {
            let address = &self.host.store_address;
            return Err(Unmet::Needless(format!("{unit} is run under the key \"{key}\" in {address} already")));
        }
        let former = match judge(&here, self.kept.of(unit).as_ref(), &found(&snapshot, unit), &at, true) {
            Verdict::Cleared => Vec::new(),
            Verdict::Waits(registration) => registration.former,
            Verdict::Write(registration) => match self.write(&snapshot, &registration).await {
                WriteOutcome::Won(revision) => {
                    at.1 = revision;
                    registration.former
                }
                WriteOutcome::Conflict => {
                    return Err(Unmet::Refused(
                        "another host has changed the entry at the same time; look, and say it again".to_owned(),
                    ));
                }
                WriteOutcome::Unknown(why) => {
                    return Err(Unmet::Open(format!(
                        "whether the store has taken it is not known: {why}; say it again"
                    )));
                }
            },
            Verdict::Refused(refusal) => return Err(self.explain(&refusal).await.into()),
        };
        tracing::info!("an operator has said that {unit} is run under the key {key} in {}", self.host.store_address);
        let moved = self.kept.of(unit).filter(|kept| !here.store.leads_to_that_of(&kept.place.store));
        let warning = moved.map_or_else(String::new, |kept| {
            let former = kept.place.store;
            format!("; see that no host comes back with the former store, {former}, not even one that is off: nothing else does")
        });
        let answer = format!("{unit} is run under the key \"{key}\" in {}{warning}", self.host.store_address);
        self.kept.keep(unit, KeptPlace { place: here, former, position: Some(at) });
        Ok(answer)
    }

    fn remember(&self, found: &Found, snapshot: &Snapshot) {
        if let Found::Entry(entry) = found {
            self.kept.keep_entry(&self.unit, &self.host.store_address, entry, position(snapshot));
        }
    }

    /// Removes from `former` the first lock under which nobody runs the unit any more, or returns why there is none. A host
    /// that takes such a lock later looks at the entry before it starts anything (N2).
    async fn wait_for(&mut self, former: &mut Vec<Key>) -> Result<Option<String>, StoreError> {
        let (unit, timings) = (&self.unit, self.settings.borrow().timings);
        let mut reason = None;
        for (index, key) in former.iter().enumerate() {
            let sent = self.host.machine.now();
            let snapshot = self.read(key).await?;
            let (now, shown) = (self.host.machine.now(), observation(snapshot.clone()));
            let holder = holder_of(&snapshot);
            let free = if let Some(lock) = self.former.get_mut(key) {
                lock.see(unit, shown, sent, now, &timings)
            } else {
                self.former.insert(key.clone(), FormerLock::first(shown, sent, now));
                false
            };
            // The read showed the present value only if this write of the unchanged value is won (N3).
            if free && self.rewrite(key, &snapshot).await {
                former.remove(index);
                return Ok(None);
            }
            reason.get_or_insert_with(|| {
                let holder =
                    holder.map_or_else(|| "nobody knows who held it".to_owned(), |name| format!("{name} holds it"));
                format!("{unit} was run under the key \"{key}\" before, and that lock is not free yet: {holder}")
            });
        }
        Ok(reason)
    }

    /// Why the unit may not be run under the key, and what the operator can do about it.
    async fn explain(&self, refusal: &Refusal) -> String {
        let unit = &self.unit;
        let (name, key, source, is_bound) = {
            let settings = self.settings.borrow();
            (settings.name.clone(), settings.key.clone(), settings.source.0.clone(), settings.unit != *unit)
        };
        let source = source.display();
        let correct = |other: &Key| {
            if is_bound {
                format!("take {unit} out of bound-units in {source}")
            } else {
                format!("set key = \"{other}\" in {source}")
            }
        };
        let adopt = format!("run \"putexctl adopt {name}\" on this host");
        match refusal {
            Refusal::OtherKey(other) => {
                let holder = match self.read(other).await {
                    Ok(snapshot) => holder_of(&snapshot)
                        .map_or_else(|| "nobody holds it".to_owned(), |holder| format!("{holder} holds it")),
                    Err(error) => format!("who holds it is not known: {error}"),
                };
                format!(
                    "{unit} is run under the key \"{other}\" in this store ({holder}), and not under \"{key}\" as this \
                     host has it; {}; or, if \"{key}\" is to be its key on all hosts from now on, {adopt}, and change the \
                     others after it; or, if another cluster has a unit of the same name, set cluster = \"…\" in the \
                     putexd.toml of these hosts",
                    correct(other)
                )
            }
            Refusal::FormerKey(former) => format!(
                "this host has run {unit} under the key \"{former}\" until now, and the store does not say under which \
                 key other hosts run it; {}; or, if \"{key}\" is meant, {adopt}",
                correct(former)
            ),
            Refusal::WentBack(former) => format!(
                "the store says that {unit} is run under the key \"{key}\", but later it said \"{former}\" to this host: its entry \
                 was lost, or the store went back; {}; or, if \"{key}\" is meant, {adopt}",
                correct(former)
            ),
            Refusal::OtherStore(place) => format!(
                "this host has run {unit} under the key \"{}\" in another store, {}, and nobody can see in this one, {}, \
                 who runs it there; \"systemctl stop putexd\" on each other host that still has the other store, see that \
                 \"systemctl is-active {unit}\" says inactive there, then {adopt}",
                place.key, place.store, self.host.store_address
            ),
            Refusal::Garbled => format!(
                "see that all hosts have the same seal-key, or none has one: the store's entry {} for {unit} is not understood, or has no \
                 valid seal; if they have, see that no other host runs it under another key than \"{key}\", then {adopt}",
                self.entry
            ),
            Refusal::TooMany(count) => format!(
                "{unit} was run under {count} other keys that have not been seen free; see \"putexctl status\" on the \
                 other hosts"
            ),
        }
    }

    async fn read(&self, key: &Key) -> Result<Snapshot, StoreError> {
        let limit = self.settings.borrow().timings.call_limit();
        read(&*self.host.store, key, limit).await
    }

    async fn write(&self, snapshot: &Snapshot, registration: &Registration) -> WriteOutcome {
        let limit = self.settings.borrow().timings.call_limit();
        replace(&self.host, &self.entry, snapshot, registration.encode(&self.unit), limit).await
    }

    /// Whether `key` has the value of `snapshot` now, and not only in the past.
    async fn rewrite(&self, key: &Key, snapshot: &Snapshot) -> bool {
        let limit = self.settings.borrow().timings.call_limit();
        rewrite(&self.host, key, snapshot, limit).await.is_some()
    }
}

/// Why the place of a unit is not on the disk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotOnDisk {
    /// It cannot be written, for this reason.
    #[error("{0}")]
    Failed(String),
    #[error("see why /var/lib/putex is slow: the place of the lock of {0} is not written there yet")]
    Late(UnitName),
}

/// Why a start is not vetted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotVetted {
    /// The entry does not allow the start.
    #[error("the store says no longer that {unit} is run under the key \"{key}\"")]
    NotCleared { unit: UnitName, key: Key },
    /// The entry cannot be read.
    #[error("whether {unit} is still run under the key \"{key}\" is not known: {source}")]
    Unread { unit: UnitName, key: Key, source: StoreError },
    /// The entry was read, but not written again, so that it may have changed since.
    #[error(
        "whether {unit} is still run under the key \"{key}\" is not known: its entry is being changed, or cannot be \
         written"
    )]
    Unwritten { unit: UnitName, key: Key },
    #[error(transparent)]
    NotOnDisk(#[from] NotOnDisk),
}

/// Vets a start (N2): whether the entry of each unit still names this lock. It runs after the claim is won and before
/// anything is started.
pub(super) async fn vet(host: Host, settings: Arc<ServiceSettings>, kept: Places) -> Result<(), NotVetted> {
    let vetted = join_all(settings.units().map(|unit| vet_unit(&host, &settings, &kept, unit))).await;
    vetted.into_iter().collect()
}

/// First writes the entry again as it was seen at the last look: if that write is won, the entry has not changed since. The
/// entry is read only if that write is not won.
async fn vet_unit(host: &Host, settings: &ServiceSettings, kept: &Places, unit: &UnitName) -> Result<(), NotVetted> {
    let entry = Key::of_unit(host.cluster.as_ref(), unit);
    let limit = settings.timings.call_limit();
    if let Some(seen) = kept.seen(unit)
        && vouch(host, settings, kept, unit, seen).await == Ok(true)
    {
        return Ok(());
    }
    let unwritten = || NotVetted::Unwritten { unit: unit.clone(), key: settings.key.clone() };
    let mut last = unwritten();
    for _ in 0..VET_LIMIT {
        last = match read(&*host.store, &entry, limit).await {
            Ok(snapshot) => {
                if vouch(host, settings, kept, unit, snapshot).await? {
                    return Ok(());
                }
                unwritten()
            }
            Err(source) => NotVetted::Unread { unit: unit.clone(), key: settings.key.clone(), source },
        };
        sleep(limit / 2).await;
    }
    Err(last)
}

/// Whether the entry still is `snapshot`, which allows a start. `Err`: an entry like `snapshot` does not allow one.
async fn vouch(
    host: &Host,
    settings: &ServiceSettings,
    kept: &Places,
    unit: &UnitName,
    mut snapshot: Snapshot,
) -> Result<bool, NotVetted> {
    let here = Place { store: host.store_address.clone(), key: settings.key.clone() };
    let limit = settings.timings.call_limit();
    let found = found(&snapshot, unit);
    if judge(&here, kept.of(unit).as_ref(), &found, &position(&snapshot), false) != Verdict::Cleared {
        return Err(NotVetted::NotCleared { unit: unit.clone(), key: settings.key.clone() });
    }
    kept.are_on_disk(unit, limit).await?;
    let entry = Key::of_unit(host.cluster.as_ref(), unit);
    let Some(revision) = rewrite(host, &entry, &snapshot, limit).await else { return Ok(false) };
    if let Some(entry) = &mut snapshot.entry {
        entry.revision = revision;
    }
    kept.see(unit, snapshot);
    Ok(true)
}

fn found(snapshot: &Snapshot, unit: &UnitName) -> Found {
    let Some(Entry { value: Some(value), .. }) = &snapshot.entry else { return Found::Nothing };
    Registration::decode(value, unit).map_or(Found::Garbled, Found::Entry)
}

/// Writes `key` again as it was read. If that write is won, the read was not one of the past, as a deposed leader or the
/// cache of a network file system may show. `None`: it was not won.
async fn rewrite(host: &Host, key: &Key, snapshot: &Snapshot, limit: Duration) -> Option<Revision> {
    let value = snapshot.entry.as_ref().and_then(|entry| entry.value.clone()).unwrap_or_default();
    match replace(host, key, snapshot, value, limit).await {
        WriteOutcome::Won(revision) => Some(revision),
        WriteOutcome::Conflict | WriteOutcome::Unknown(_) => None,
    }
}

async fn replace(host: &Host, key: &Key, snapshot: &Snapshot, value: Value, limit: Duration) -> WriteOutcome {
    let (incarnation, base) = position(snapshot);
    let attempt = Attempt { base, incarnation, write: WriteId(host.machine.random()), value };
    match timeout(limit, host.store.compare_and_set(key, &attempt)).await {
        Ok(outcome) => outcome,
        Err(_) => WriteOutcome::Unknown("it did not answer in time".to_owned()),
    }
}

fn position(snapshot: &Snapshot) -> Position {
    let revision = snapshot.entry.as_ref().map_or_else(Default::default, |entry| entry.revision);
    (snapshot.incarnation.clone(), revision)
}

fn holder_of(snapshot: &Snapshot) -> Option<String> {
    let value = snapshot.entry.as_ref()?.value.as_ref()?;
    Some(Record::decode(value).holder).filter(|token| !token.is_nobody()).map(|token| token.to_string())
}

async fn read(store: &dyn Store, key: &Key, limit: Duration) -> Result<Snapshot, StoreError> {
    match timeout(limit, store.read(key, None)).await {
        Ok(read) => read,
        Err(_) => Err(StoreError::Unreachable("it did not answer in time".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::daemon::fake::settings;
    use crate::daemon::fence::Fencings;
    use crate::daemon::grounds::Grounds;
    use crate::daemon::hints::Hints;
    use crate::daemon::history::histories;
    use crate::daemon::machine::ThisMachine;
    use crate::daemon::tidings::Tidings;
    use crate::election::{Details, OperatorNote, Standing, Timings};
    use crate::guard_client::GuardClient;
    use crate::store::memory::MemoryStore;
    use crate::systemd::Systemd;
    use crate::types::store::StoreAddress;
    use crate::types::{FencingToken, Holder, Instance, MachineId, NodeId, Value};

    /// A host whose configuration has `database.service` under the key `db`, and the store.
    struct Bench {
        store: MemoryStore,
        host: Host,
        settings: ServiceSettings,
        _folder: tempfile::TempDir,
    }

    fn key(name: &str) -> Key {
        Key::new(name).expect("a key")
    }

    /// Short timings, because the tests wait for real.
    fn timings() -> Timings {
        settings().timings
    }

    fn entry() -> Key {
        Key::of_unit(None, &settings().unit)
    }

    impl Bench {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let limit = timings().call_limit();
            let store = MemoryStore::new(limit);
            let host = Host {
                node: NodeId::new("h1").expect("a node's name"),
                machine_id: MachineId(1),
                store: Arc::new(store.clone()),
                notes: Arc::new(store.clone()),
                history: histories().0,
                store_address: StoreAddress { what: "memory".to_owned(), servers: vec!["here".to_owned()] },
                cluster: None,
                guard: GuardClient::new(&folder.path().join("no-guard"), limit),
                systemd: Arc::new(Systemd::private(limit)),
                hints: Hints::default(),
                machine: Arc::new(ThisMachine::new(folder.path())),
                grounds: Grounds::default(),
                fencings: Fencings::default(),
                drain: crate::daemon::drain::Drain::default(),
                tidings: Tidings::default(),
                watchdog: None,
                metrics: crate::metrics::Metrics::default(),
                http: crate::http::Http::over((), |_| async { Err(std::io::Error::other("a test has none")) }),
            };
            Self { store, host, settings: settings(), _folder: folder }
        }

        fn put_entry(&self, name: &str, former: &[&str]) {
            let registration = Registration { key: key(name), former: former.iter().map(|name| key(name)).collect() };
            self.store.put(&entry(), registration.encode(&settings().unit));
        }

        /// Writes the lock `old` as h2 would.
        fn put_old_lock(&self, standing: Standing, hold: Duration) {
            let is_free = standing == Standing::Proven;
            let details = Details {
                machine: MachineId(2),
                instance: Instance(2),
                write: WriteId(self.host.machine.random()),
                standing,
                lease: timings().lease(),
                hold,
                passing: None,
                token: FencingToken(1),
                prev: None,
                unfenced: Vec::new(),
                units: Vec::new(),
                holders: Vec::new(),
                note: OperatorNote::default(),
            };
            let token = if is_free { String::new() } else { "h2".to_owned() };
            self.store.put(&key("old"), Record::new(Holder::decode(token.as_bytes()), Some(details)).encode());
        }

        fn registrar(&self) -> Registrar {
            let settings = watch::channel(Arc::new(self.settings.clone())).1;
            Registrar::new(self.host.clone(), settings, self.places(), self.settings.unit.clone())
        }

        /// What a daemon knows that has just begun.
        fn places(&self) -> Places {
            Places::new(&self.host.machine, self.settings.units())
        }

        async fn vet(&self) -> Result<(), NotVetted> {
            self.vet_by(self.places()).await
        }

        async fn vet_by(&self, places: Places) -> Result<(), NotVetted> {
            vet(self.host.clone(), Arc::new(self.settings.clone()), places).await
        }
    }

    async fn refusal(registrar: &mut Registrar) -> String {
        match registrar.look().await.expect("it can be read") {
            Looked::Waits(reason) | Looked::Stands(Standpoint::Refused(reason)) => reason,
            other @ Looked::Stands(Standpoint::Unknown(_) | Standpoint::Cleared) => panic!("{other:?}"),
        }
    }

    /// Looks until the unit is cleared, and returns how long that took.
    async fn cleared(registrar: &mut Registrar) -> Duration {
        let begun = Instant::now();
        while registrar.look().await.expect("it can be read") != Looked::Stands(Standpoint::Cleared) {
            sleep(Duration::from_millis(5)).await;
        }
        begun.elapsed()
    }

    #[tokio::test]
    async fn a_former_lock_that_was_let_go_is_waited_for_no_longer() {
        let bench = Bench::new();
        bench.put_entry("db", &["old"]);
        let mut registrar = bench.registrar();
        bench.put_old_lock(Standing::Active, Duration::from_secs(60));
        assert!(refusal(&mut registrar).await.ends_with("h2 holds it"));
        bench.put_old_lock(Standing::Proven, Duration::from_secs(60));
        let waited = cleared(&mut registrar).await;
        assert!(waited < Duration::from_secs(60), "it did not wait for the hold of what was let go: {waited:?}");
        bench.vet().await.expect("the entry names no former lock any more");
    }

    #[tokio::test]
    async fn a_former_lock_that_nobody_lets_go_is_waited_for_as_long_as_its_unit_may_live() {
        let bench = Bench::new();
        bench.put_entry("db", &["old"]);
        let mut registrar = bench.registrar();
        assert!(refusal(&mut registrar).await.ends_with("nobody knows who held it"));
        assert!(cleared(&mut registrar).await >= timings().wait(timings().hold()) * 9 / 10, "nobody knows its hold");

        let hold = timings().hold() * 3;
        bench.put_entry("db", &["old"]);
        for standing in [Standing::Confirming, Standing::Active] {
            // Each new record begins the wait anew.
            bench.put_old_lock(standing, hold);
            assert!(refusal(&mut registrar).await.ends_with("h2 holds it"));
            sleep(hold / 2).await;
        }
        bench.put_old_lock(Standing::Active, hold);
        assert!(cleared(&mut registrar).await >= timings().wait(hold) * 9 / 10);
    }

    #[tokio::test]
    async fn the_units_of_a_service_wait_for_its_former_lock_at_the_same_time() {
        let bench = Bench::new();
        let units = ["database.service", "backup.timer"].map(|name| UnitName::new(name).expect("a unit's name"));
        for unit in &units {
            let registration = Registration { key: key("db"), former: vec![key("old")] };
            bench.store.put(&Key::of_unit(None, unit), registration.encode(unit));
        }
        bench.put_old_lock(Standing::Active, Duration::from_secs(60));
        let settings = watch::channel(Arc::new(bench.settings.clone())).1;
        let places = Places::new(&bench.host.machine, units.iter());
        let mut registrars =
            units.map(|unit| Registrar::new(bench.host.clone(), settings.clone(), places.clone(), unit));
        let Standpoint::Refused(reason) = look(&mut registrars).await else { panic!("it waits") };
        assert!(reason.starts_with("database.service was run under the key \"old\" before"), "{reason}");
        assert!(
            registrars.iter().all(|registrar| registrar.former.contains_key(&key("old"))),
            "each of them watches it"
        );
    }

    #[tokio::test]
    async fn what_the_past_says_clears_nobody() {
        let bench = Bench::new();
        bench.put_entry("db", &[]);
        let past = bench.store.backup();
        bench.put_entry("other", &["db"]);
        bench.store.read_from(Some(past));
        assert!(bench.vet().await.expect_err("it was given another key").to_string().contains("is not known"));
        bench.store.read_from(None);

        // The former lock was let go and has been taken again.
        bench.put_entry("db", &["old"]);
        bench.put_old_lock(Standing::Active, Duration::from_secs(60));
        let mut registrar = bench.registrar();
        refusal(&mut registrar).await;
        bench.put_old_lock(Standing::Proven, Duration::from_secs(60));
        let past = bench.store.backup();
        bench.put_old_lock(Standing::Active, Duration::from_secs(60));
        bench.store.read_from(Some(past));
        refusal(&mut registrar).await;
        bench.store.read_from(None);
        assert!(refusal(&mut registrar).await.ends_with("h2 holds it"));
    }

    #[tokio::test]
    async fn whoever_has_seen_the_entry_vets_it_by_a_write_alone() {
        let bench = Bench::new();
        bench.put_entry("db", &[]);
        let mut registrar = bench.registrar();
        cleared(&mut registrar).await;
        bench.store.refuse_reads(Some(StoreError::Unreachable("nobody needs it".to_owned())));
        for _ in 0..2 {
            bench.vet_by(registrar.kept.clone()).await.expect("it is as it was seen, and as it was written since");
        }
        bench.store.refuse_reads(None);
        // A later write by another host is noticed all the same.
        bench.put_entry("db", &[]);
        bench.vet_by(registrar.kept.clone()).await.expect("it says what it said");
        bench.put_entry("other", &["db"]);
        bench.vet_by(registrar.kept.clone()).await.expect_err("it was given another key");
    }

    #[tokio::test]
    async fn what_an_entry_named_is_remembered_even_by_a_host_that_it_refuses() {
        let mut bench = Bench::new();
        bench.put_entry("db", &[]);
        let past = bench.store.backup();
        bench.put_entry("other", &[]);
        assert!(refusal(&mut bench.registrar()).await.contains("run under the key \"other\""));
        bench.store.restore(past);
        // The place is written in the background.
        let unit = bench.settings.unit.clone();
        while bench.host.machine.recall_place(&unit).is_none() {
            sleep(Duration::from_millis(5)).await;
        }
        assert!(refusal(&mut bench.registrar()).await.contains("later it said \"other\" to this host"));
        bench.settings.bound_units = vec![crate::daemon::fake::unit("bound.service")];
        let mut registrar = bench.registrar();
        registrar.adopt().await.expect("adopted");
        assert!(refusal(&mut registrar).await.contains("run under the key \"other\" before"));
        cleared(&mut registrar).await;
        assert!(bench.vet().await.expect_err("its bound unit has no entry").to_string().contains("bound.service"));
    }

    #[tokio::test]
    async fn what_is_not_known_of_an_entry_starts_nothing() {
        let bench = Bench::new();
        assert!(bench.vet().await.expect_err("there is none").to_string().contains("says no longer that"));
        bench.store.put(&entry(), Value::default());
        bench.vet().await.expect_err("it is not understood");
        for (name, former) in [("other", &[][..]), ("db", &["old"])] {
            bench.put_entry(name, former);
            bench.vet().await.expect_err("another host may run it");
        }
        bench.put_entry("db", &[]);
        bench.vet().await.expect("it is this host's");
        bench.store.refuse_reads(Some(StoreError::Unreachable("away".to_owned())));
        assert!(bench.vet().await.expect_err("it may have changed").to_string().contains("is not known"));
    }
}
