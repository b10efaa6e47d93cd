//! Hints that a unit may have changed.
//!
//! PID 1 tells of changes by signals. Two match rules serve all units, because the bus limits the number of rules. As a
//! signal can be lost, PID 1 is also asked from time to time for the line of each unit in its list, for many units at
//! once.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use zbus::{MatchRule, Message};

use super::Systemd;
use super::error::BusError;
use super::link::{Keeper, Link};
use super::properties::Row;
use super::proxy::{MANAGER, MANAGER_PATH, PROPERTIES, object};
use crate::task::OwnedTask;
use crate::types::UnitName;

/// The pause between two attempts to listen, when PID 1 is there and does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// The pause between two questions, and the number of units whose lines one question asks for. A thousand units cost
/// PID 1 a few milliseconds a second, and each of them has its turn every quarter of a minute.
const ROUND: Duration = Duration::from_secs(1);
const BATCH: usize = 64;

/// The path below which the objects of all units are.
const UNITS: &str = "/org/freedesktop/systemd1/unit";

/// Yields whenever a unit may have changed: its properties changed, or PID 1 came back. The stream never ends.
///
/// Many changes may make one hint, and a change may make none: read the state also from time to time.
#[derive(Debug)]
pub struct Changes {
    hints: mpsc::Receiver<()>,
    /// The unit; `None` for hints that concern no particular unit.
    unit: Option<String>,
    watched: Watched,
}

impl Stream for Changes {
    type Item = ();

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<()>> {
        self.hints.poll_recv(context)
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.hints.close();
        self.watched.shared.board().forget_closed(self.unit.as_deref());
    }
}

impl Systemd {
    /// Hints that the unit's state should be read again. Needs no connection: as soon as there is one it listens, and
    /// gives a first hint.
    #[must_use]
    pub fn changes(&self, unit: &UnitName) -> Changes {
        let (bell, hints) = mpsc::channel(1);
        self.watched.shared.board().add(unit.as_str(), bell);
        Changes { hints, unit: Some(unit.to_string()), watched: self.watched.clone() }
    }

    /// Hints that everything should be read again: PID 1 has read its files anew, or came back.
    #[must_use]
    pub fn reloads(&self) -> Changes {
        let (bell, hints) = mpsc::channel(1);
        self.watched.shared.board().bells.push(bell);
        Changes { hints, unit: None, watched: self.watched.clone() }
    }

    /// How many units are watched. A unit that several watch counts once.
    #[must_use]
    pub fn watched(&self) -> usize {
        self.watched.shared.board().units.len()
    }
}

/// The units that somebody watches. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Watched {
    shared: Arc<Shared>,
    _tasks: Arc<[OwnedTask; 2]>,
}

#[derive(Debug, Default)]
struct Shared {
    board: Mutex<Board>,
}

impl Shared {
    fn board(&self) -> std::sync::MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Board {
    units: BTreeMap<String, Watch>,
    /// The watched units by the paths of their objects. A signal carries the path of the unit's own name, and the unit
    /// may be watched under another of its names.
    objects: HashMap<String, String>,
    /// Where to send the hints that all units should be read again.
    bells: Vec<mpsc::Sender<()>>,
    /// How often everything that was read before may have become outdated.
    rounds: u64,
}

#[derive(Debug, Default)]
struct Watch {
    bells: Vec<mpsc::Sender<()>>,
    /// What the line of the unit said last.
    seen: Option<UnitLine>,
}

/// The fields of a unit's line that tell of a change: LoadState, ActiveState, SubState, and the number of its job.
type UnitLine = (String, String, String, u32);

fn ring(bells: &[mpsc::Sender<()>]) {
    for bell in bells {
        // A hint that is not yet taken stands for later ones too.
        let _ = bell.try_send(());
    }
}

impl Board {
    fn add(&mut self, unit: &str, bell: mpsc::Sender<()>) {
        self.objects.insert(object(unit), unit.to_owned());
        self.units.entry(unit.to_owned()).or_default().bells.push(bell);
    }

    fn forget_closed(&mut self, unit: Option<&str>) {
        let Some(unit) = unit else { return self.bells.retain(|bell| !bell.is_closed()) };
        let Some(watch) = self.units.get_mut(unit) else { return };
        watch.bells.retain(|bell| !bell.is_closed());
        if watch.bells.is_empty() {
            self.units.remove(unit);
            self.objects.retain(|_, other| other != unit);
        }
    }

    fn ring(&self, object: &str) {
        if let Some(watch) = self.objects.get(object).and_then(|unit| self.units.get(unit)) {
            ring(&watch.bells);
        }
    }

    fn ring_all(&mut self) {
        self.rounds += 1;
        ring(&self.bells);
        self.units.values().for_each(|watch| ring(&watch.bells));
    }

    /// Up to `count` units in the order of their names, from the one behind `last` on; behind the last of all it goes on
    /// with the first.
    fn batch(&self, last: &str, count: usize) -> Vec<String> {
        let behind = self.units.range::<str, _>((Bound::Excluded(last), Bound::Unbounded));
        let before = self.units.range::<str, _>((Bound::Unbounded, Bound::Included(last)));
        behind.chain(before).take(count).map(|(unit, _)| unit.clone()).collect()
    }

    /// Compares the line of a unit with the one before, and gives a hint if it changed.
    fn compare(&mut self, unit: &str, row: Row) {
        let (_, _, load_state, active_state, sub_state, _, object, job, ..) = row;
        let Some(watch) = self.units.get_mut(unit) else { return };
        let seen = (load_state, active_state, sub_state, job);
        if watch.seen.as_ref() != Some(&seen) {
            // The first line gives no hint: the first hint of all has already had the unit read.
            if watch.seen.is_some() {
                ring(&watch.bells);
            }
            watch.seen = Some(seen);
        }
        self.objects.insert(object.to_string(), unit.to_owned());
    }
}

impl Watched {
    /// A number that changes whenever PID 1 has read its files anew, or came back.
    pub(super) fn rounds(&self) -> u64 {
        self.shared.board().rounds
    }

    pub(super) fn new(keeper: &Keeper) -> Self {
        let shared = Arc::<Shared>::default();
        let listening = OwnedTask::spawn(listen(keeper.clone(), Arc::clone(&shared)));
        let attending = OwnedTask::spawn(attend(keeper.clone(), Arc::clone(&shared)));
        Self { shared, _tasks: Arc::new([listening, attending]) }
    }
}

/// Turns signals into hints, for ever.
async fn listen(keeper: Keeper, shared: Arc<Shared>) {
    let mut links = keeper.watch();
    loop {
        let link = match links.wait_for(Option::is_some).await {
            Ok(link) => link.clone(),
            Err(_) => return,
        };
        if let Some(link) = link
            && drain(&link, &mut links, &shared).await.is_err()
        {
            sleep(RETRY).await;
        }
    }
}

/// Turns signals into hints until the connection ends.
async fn drain(link: &Link, links: &mut watch::Receiver<Option<Link>>, shared: &Shared) -> Result<(), BusError> {
    let rule = || MatchRule::builder().msg_type(zbus::message::Type::Signal);
    let of_units = rule().path_namespace(UNITS).interface(PROPERTIES).member("PropertiesChanged");
    let of_reloads = rule().path(MANAGER_PATH).interface(MANAGER).member("Reloading");
    let mut changes = link.signals(of_units.build()?).await?;
    let mut reloads = link.signals(of_reloads.build()?).await?;
    // Signals that were sent before the rules were in place are lost.
    shared.board().ring_all();
    let is_over = |signal: &Option<zbus::Result<Message>>| !matches!(signal, Some(Ok(_)));
    loop {
        tokio::select! {
            signal = changes.next() => match signal {
                Some(Ok(message)) => if let Some(path) = message.header().path() {
                    shared.board().ring(path.as_str());
                },
                Some(Err(_)) | None => return Ok(()),
            },
            // After a daemon-reload a unit may be in another slice, and may be bound in another way.
            signal = reloads.next() => if is_over(&signal) {
                return Ok(());
            } else {
                shared.board().ring_all();
            },
            // PID 1 left the bus, or came back to it: signals in between are lost.
            link = links.changed() => if link.is_err() {
                return Ok(());
            } else {
                shared.board().ring_all();
            },
        }
    }
}

/// Asks PID 1 for the units' lines, some at a time, for ever.
async fn attend(keeper: Keeper, shared: Arc<Shared>) {
    let mut links = keeper.watch();
    let mut last = String::new();
    loop {
        let link = match links.wait_for(Option::is_some).await {
            Ok(link) => link.clone(),
            Err(_) => return,
        };
        if let Some(link) = link {
            ask(&link, &shared, &mut last).await;
        }
        sleep(ROUND).await;
    }
}

async fn ask(link: &Link, shared: &Shared, last: &mut String) {
    let batch = shared.board().batch(last, BATCH);
    let Some(end) = batch.last() else { return };
    let names: Vec<&str> = batch.iter().map(String::as_str).collect();
    // Without an answer the same units are asked for again.
    if let Ok(rows) = link.rows(&names).await {
        let mut board = shared.board();
        for (unit, row) in batch.iter().zip(rows) {
            board.compare(unit, row);
        }
        last.clone_from(end);
    }
}

#[cfg(test)]
mod tests {
    use zbus::OwnedObjectPath;

    use super::*;

    fn path(path: &str) -> OwnedObjectPath {
        OwnedObjectPath::try_from(path.to_owned()).expect("a path")
    }

    /// What PID 1 says of a unit whose own name is `id`.
    fn row(id: &str, active_state: &str) -> Row {
        let text = str::to_owned;
        let (load, active, sub) = (text("loaded"), text(active_state), text("dead"));
        (text(id), String::new(), load, active, sub, String::new(), path(&object(id)), 0, String::new(), path("/"))
    }

    fn watch(board: &mut Board, unit: &str) -> mpsc::Receiver<()> {
        let (bell, hints) = mpsc::channel(1);
        board.add(unit, bell);
        hints
    }

    fn is_rung(hints: &mut mpsc::Receiver<()>) -> bool {
        hints.try_recv().is_ok()
    }

    #[test]
    fn a_line_that_changes_is_a_hint_and_so_is_a_signal_by_the_units_own_name() {
        let mut board = Board::default();
        let (mut one, mut other) = (watch(&mut board, "alias.service"), watch(&mut board, "b.service"));
        for (state, rings) in [("inactive", false), ("inactive", false), ("active", true), ("active", false)] {
            board.compare("alias.service", row("a.service", state));
            assert_eq!(is_rung(&mut one), rings, "{state}");
        }
        board.ring(&object("a.service"));
        assert!(is_rung(&mut one) && !is_rung(&mut other));
        board.ring(&object("b.service"));
        assert!(!is_rung(&mut one) && is_rung(&mut other));
    }

    #[test]
    fn each_unit_has_its_turn() {
        let mut board = Board::default();
        let _hints: Vec<_> = ["a", "b", "c"].iter().map(|unit| watch(&mut board, unit)).collect();
        assert_eq!(board.batch("", 2), ["a", "b"]);
        assert_eq!(board.batch("b", 2), ["c", "a"]);
        assert_eq!(board.batch("a", 5), ["b", "c", "a"]);
        assert_eq!(Board::default().batch("a", 5), [""; 0]);
    }

    #[test]
    fn what_nobody_watches_any_more_is_forgotten() {
        let mut board = Board::default();
        let (one, other) = (watch(&mut board, "a.service"), watch(&mut board, "a.service"));
        drop(one);
        board.forget_closed(Some("a.service"));
        assert_eq!((board.units.len(), board.objects.len()), (1, 1));
        drop(other);
        board.forget_closed(Some("a.service"));
        assert_eq!((board.units.len(), board.objects.len()), (0, 0));
    }
}
