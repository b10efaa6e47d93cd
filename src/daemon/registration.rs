//! Whether this host may run a unit under the key that its configuration names: it looks at the unit's entry in the store,
//! makes it if it comes first, and changes it on an operator's word. `election::registration` has the rules.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::service::Host;
use crate::config::ServiceSettings;
use crate::election::{Found, Place, Record, Refusal, Registration, Standing, Verdict, judge};
use crate::store::{Attempt, Entry, Snapshot, Store, StoreError, WriteOutcome};
use crate::types::{Key, Time, WriteId};

/// How often the entry is looked at, unless the store hints at a change of it.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Steps of one look: the entry is made, former locks are looked at, the entry is changed, and each may have to be read again.
const STEPS_LIMIT: usize = 6;
/// How often the entry is asked for before a start.
const VET_LIMIT: usize = 3;

/// What is known of a unit's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standpoint {
    /// Nothing: the store has not answered. Whoever was cleared before stays so; the store is asked again before a start.
    Unknown(String),
    /// The unit may be run under the key.
    Cleared,
    /// It must not be, for this reason.
    Refused(String),
}

/// An operator's word that the place which the configuration names is meant; what became of it.
pub(super) type Adoption = oneshot::Sender<Result<String, String>>;

/// Keeps looking at one unit's entry.
pub(super) struct Registrar {
    host: Host,
    settings: watch::Receiver<ServiceSettings>,
    entry: Key,
    /// What this host knows.
    kept: Option<Place>,
    /// Former locks, each as it was last seen, and when that was first shown.
    seen: BTreeMap<Key, (Snapshot, Time)>,
}

impl Registrar {
    pub(super) fn new(host: &Host, settings: watch::Receiver<ServiceSettings>) -> Self {
        let unit = settings.borrow().unit.clone();
        let entry = Key::of_unit(host.cluster.as_ref(), &unit);
        let kept = host.machine.recall_place(&unit);
        Self { host: host.clone(), settings, entry, kept, seen: BTreeMap::new() }
    }

    /// Tells each change, for ever.
    pub(super) async fn run(mut self, mut adoptions: mpsc::Receiver<Adoption>, told: mpsc::Sender<Standpoint>) {
        let bell = self.host.hints.of(&self.entry);
        let mut last = None;
        loop {
            let standpoint = match self.look().await {
                Ok(standpoint) => standpoint,
                Err(error) => Standpoint::Unknown(format!("its entry {} cannot be read: {error}", self.entry)),
            };
            if last.as_ref() != Some(&standpoint) {
                last = Some(standpoint.clone());
                if told.send(standpoint.clone()).await.is_err() {
                    return;
                }
            }
            let timings = self.settings.borrow().timings;
            let pause = match standpoint {
                Standpoint::Unknown(_) => timings.call_limit(),
                Standpoint::Cleared => LOOK_INTERVAL,
                Standpoint::Refused(_) => timings.renew_interval,
            };
            tokio::select! {
                // In this order, and not in one that is drawn: a simulation runs it again.
                biased;
                Some(adoption) = adoptions.recv() => {
                    // Whoever asked may have gone.
                    let _ = adoption.send(self.adopt().await);
                }
                () = bell.notified() => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Where the configuration has the lock.
    fn here(&self) -> Place {
        Place { store: self.host.store_address.clone(), key: self.settings.borrow().key.clone() }
    }

    async fn look(&mut self) -> Result<Standpoint, StoreError> {
        for _ in 0..STEPS_LIMIT {
            let snapshot = self.read(&self.entry).await?;
            let here = self.here();
            match judge(&here, self.kept.as_ref(), &self.found(&snapshot), false) {
                Verdict::Cleared => {
                    self.seen.clear();
                    self.keep(here);
                    return Ok(Standpoint::Cleared);
                }
                // Whatever became of it, it is read again.
                Verdict::Write(registration) => {
                    self.write(&snapshot, &registration).await;
                }
                Verdict::Waits(registration) => {
                    if let Some(reason) = self.wait_for(&registration.former).await? {
                        return Ok(Standpoint::Refused(reason));
                    }
                    self.write(&snapshot, &Registration { former: Vec::new(), ..registration }).await;
                }
                Verdict::Refused(refusal) => return Ok(Standpoint::Refused(self.explain(&refusal).await)),
            }
        }
        Err(StoreError::Unreachable("it does not take what is written".to_owned()))
    }

    /// What an operator says: the place that the configuration names is meant.
    async fn adopt(&mut self) -> Result<String, String> {
        let unit = self.settings.borrow().unit.clone();
        let snapshot = self.read(&self.entry).await.map_err(|error| error.to_string())?;
        let here = self.here();
        let key = here.key.clone();
        match judge(&here, self.kept.as_ref(), &self.found(&snapshot), true) {
            Verdict::Cleared | Verdict::Waits(_) => {}
            Verdict::Write(registration) => match self.write(&snapshot, &registration).await {
                WriteOutcome::Won(_) => {}
                WriteOutcome::Conflict => {
                    return Err(
                        "another host has changed the entry at the same time; look, and say it again".to_owned()
                    );
                }
                WriteOutcome::Unknown(why) => {
                    return Err(format!("whether the store has taken it is not known: {why}; say it again"));
                }
            },
            Verdict::Refused(refusal) => return Err(self.explain(&refusal).await),
        }
        self.keep(here);
        tracing::info!("an operator has said that {unit} is run under the key {key} in {}", self.host.store_address);
        Ok(format!("{unit} is run under the key \"{key}\" in {}", self.host.store_address))
    }

    fn found(&self, snapshot: &Snapshot) -> Found {
        let Some(Entry { value: Some(value), .. }) = &snapshot.entry else { return Found::Nothing };
        Registration::decode(value, &self.settings.borrow().unit).map_or(Found::Garbled, Found::Entry)
    }

    fn keep(&mut self, here: Place) {
        if self.kept.as_ref() != Some(&here) {
            self.host.machine.keep_place(&self.settings.borrow().unit, here.clone());
            self.kept = Some(here);
        }
    }

    /// `None`: each of these locks has been seen free since they are former ones. Whoever takes one after that reads the
    /// entry before it starts anything.
    async fn wait_for(&mut self, former: &[Key]) -> Result<Option<String>, StoreError> {
        let (unit, timings) = {
            let settings = self.settings.borrow();
            (settings.unit.clone(), settings.timings)
        };
        for key in former {
            let sent = self.host.machine.now();
            let snapshot = self.read(key).await?;
            let value = snapshot.entry.as_ref().and_then(|entry| entry.value.as_ref());
            let record = value.map(Record::decode);
            let details = record.as_ref().and_then(|record| record.details.as_ref());
            if details.is_some_and(|details| details.standing == Standing::Proven) {
                continue;
            }
            // As long as a contender waits for the unit of a holder that is gone, or that it knows nothing of.
            let known = details.map_or(Duration::ZERO, |details| details.hold);
            let hold = known.max(timings.hold()).max(timings.longest_hold.unwrap_or_default());
            let (shown, since) =
                self.seen.entry(key.clone()).or_insert_with(|| (snapshot.clone(), self.host.machine.now()));
            if *shown != snapshot {
                (*shown, *since) = (snapshot.clone(), self.host.machine.now());
            }
            if !sent.has_waited_until(since.plus(timings.wait(hold))) {
                let holder = record.map(|record| record.token).filter(|token| !token.is_empty());
                let holder =
                    holder.map_or_else(|| "nobody knows who held it".to_owned(), |name| format!("{name} holds it"));
                return Ok(Some(format!(
                    "{unit} was run under the key \"{key}\" before, and that lock is not free yet: {holder}"
                )));
            }
        }
        Ok(None)
    }

    /// What is wrong, and what is to be done about it.
    async fn explain(&self, refusal: &Refusal) -> String {
        let (name, unit, key, source) = {
            let settings = self.settings.borrow();
            (settings.name.clone(), settings.unit.clone(), settings.key.clone(), settings.source.clone())
        };
        let source = source.display();
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
                     host has it; set key = \"{other}\" in {source}; or, if the new key is meant, {adopt}, and change the \
                     other hosts after it; or, if another cluster has a unit of the same name, set cluster = \"…\" in the \
                     putexd.toml of these hosts"
                )
            }
            Refusal::FormerKey(former) => format!(
                "this host has run {unit} under the key \"{former}\" until now, and the store does not say under which \
                 key other hosts run it; set key = \"{former}\" in {source}; or, if \"{key}\" is meant, {adopt}"
            ),
            Refusal::OtherStore(place) => format!(
                "this host has run {unit} under the key \"{}\" in another store, {}, and nobody can see in this one, {}, \
                 who runs it there; \"systemctl stop putexd\" on each other host that still has the other store, see that \
                 \"systemctl is-active {unit}\" says inactive there, then {adopt}",
                place.key, place.store, self.host.store_address
            ),
            Refusal::Garbled => format!(
                "the store's entry {} for {unit} is not understood; see that no other host runs it under another key than \
                 \"{key}\", then {adopt}",
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
        let (limit, unit) = {
            let settings = self.settings.borrow();
            (settings.timings.call_limit(), settings.unit.clone())
        };
        let attempt = Attempt {
            base: snapshot.entry.as_ref().map_or_else(Default::default, |entry| entry.revision),
            incarnation: snapshot.incarnation.clone(),
            write: WriteId(self.host.machine.random()),
            value: registration.encode(&unit),
        };
        match timeout(limit, self.host.store.compare_and_set(&self.entry, &attempt)).await {
            Ok(outcome) => outcome,
            Err(_) => WriteOutcome::Unknown("it did not answer in time".to_owned()),
        }
    }
}

/// Asked when the lock has been written, and before anything is started: whether the entry still names this lock.
pub(super) async fn vet(host: Host, settings: ServiceSettings) -> Result<(), String> {
    let entry = Key::of_unit(host.cluster.as_ref(), &settings.unit);
    let limit = settings.timings.call_limit();
    let mut last = String::new();
    for _ in 0..VET_LIMIT {
        match read(&*host.store, &entry, limit).await {
            Ok(snapshot) => {
                let value = snapshot.entry.and_then(|entry| entry.value);
                let registration = value.and_then(|value| Registration::decode(&value, &settings.unit));
                return if registration.is_some_and(|registration| registration.vouches_for(&settings.key)) {
                    Ok(())
                } else {
                    Err(format!("{} is no longer run under the key \"{}\"", settings.unit, settings.key))
                };
            }
            Err(error) => last = error.to_string(),
        }
        sleep(limit / 2).await;
    }
    Err(format!("whether {} is still run under the key \"{}\" is not known: {last}", settings.unit, settings.key))
}

fn holder_of(snapshot: &Snapshot) -> Option<String> {
    let value = snapshot.entry.as_ref()?.value.as_ref()?;
    Some(Record::decode(value).token).filter(|token| !token.is_empty())
}

async fn read(store: &dyn Store, key: &Key, limit: Duration) -> Result<Snapshot, StoreError> {
    match timeout(limit, store.read(key, None)).await {
        Ok(read) => read,
        Err(_) => Err(StoreError::Unreachable("it did not answer in time".to_owned())),
    }
}
