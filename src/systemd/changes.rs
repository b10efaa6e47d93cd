//! Hints that a unit may have changed.
//!
//! Changes are told by signals, and two match rules serve all units: the bus has a limit for those. As a signal can be lost, PID 1
//! is asked from time to time for one line of each unit, of many at once.

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
use super::proxy::{MANAGER, MANAGER_PATH, PROPERTIES, Row, object};
use super::task::OwnedTask;
use crate::types::UnitName;

/// Between two attempts to listen, when PID 1 is there and does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// Between two questions for a line of each of some units, and how many these are: a thousand units take PID 1 a few
/// milliseconds a second, and each of them has its turn after a quarter of a minute.
const ROUND: Duration = Duration::from_secs(1);
const BATCH: usize = 64;

/// Where the objects of all units are.
const UNITS: &str = "/org/freedesktop/systemd1/unit";

/// Yields whenever a unit may have changed: its properties did, or PID 1 came back. Never ends while it is held.
///
/// Many changes may make one hint, and a change may make none: read the state also from time to time.
#[derive(Debug)]
pub struct Changes {
    hints: mpsc::Receiver<()>,
    /// `None`: of no unit in particular.
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
    /// Hints that the unit's state should be read again. Needs no connection: it listens as soon as there is one, and hints at
    /// once then.
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

    /// How many units are watched.
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
    /// The units by their objects. Signals carry the one of the unit's own name, by which it need not be watched.
    objects: HashMap<String, String>,
    /// Whoever wants to hear of what concerns all of them.
    bells: Vec<mpsc::Sender<()>>,
    /// How often all that was read before may have become another.
    rounds: u64,
}

#[derive(Debug, Default)]
struct Watch {
    bells: Vec<mpsc::Sender<()>>,
    /// What its line said last.
    seen: Option<Seen>,
}

/// What is in a unit's line that tells of a change: LoadState, ActiveState, SubState, and the number of its job.
type Seen = (String, String, String, u32);

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

    /// Up to `count` units behind `last`, and from the first one on behind the last of all.
    fn batch(&self, last: &str, count: usize) -> Vec<String> {
        let behind = self.units.range::<str, _>((Bound::Excluded(last), Bound::Unbounded));
        let before = self.units.range::<str, _>((Bound::Unbounded, Bound::Included(last)));
        behind.chain(before).take(count).map(|(unit, _)| unit.clone()).collect()
    }

    /// What the line of a unit says now.
    fn compare(&mut self, unit: &str, row: Row) {
        let (_, _, load_state, active_state, sub_state, _, object, job, ..) = row;
        let Some(watch) = self.units.get_mut(unit) else { return };
        let seen = (load_state, active_state, sub_state, job);
        if watch.seen.as_ref() != Some(&seen) {
            // What was seen first is what the first hint has had read.
            if watch.seen.is_some() {
                ring(&watch.bells);
            }
            watch.seen = Some(seen);
        }
        self.objects.insert(object.to_string(), unit.to_owned());
    }
}

impl Watched {
    /// Another number whenever PID 1 has read its files anew, or came back.
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
    // What happened before the rules were in place was not heard.
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
            // Slices, and what binds a unit, may be others now.
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

/// Asks for the units' lines, for ever.
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
    // Without an answer these are asked for again.
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
