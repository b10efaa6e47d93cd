//! The history of each lock: what services tell of themselves, and the task that writes it into the store.
//!
//! A service hands an event over and goes on; nothing of an election waits for this task, and nothing that it reads decides
//! anything. The task writes at most one value at a time, the events of one lock together, and waits a moment before, so that
//! three hundred services which move at once become three hundred short writes behind each other. While the store is away, or
//! does not let this host write there, the events wait, and the oldest of them are dropped beyond [`QUEUE_LIMIT`]. When putexd
//! ends, what waits is written without a pause, for as long as [`History::finish`] is given.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::history::pages::{self, Page};
use crate::cluster::history::stored::{Slot, read_history, read_slot};
use crate::cluster::history::{AHEAD_MS, Happened, NOT_STARTED, What};
use crate::journal::Alarm;
use crate::store::{Attempt, Link, Store, StoreError, WriteOutcome};
use crate::types::span::milliseconds;
use crate::types::{Key, NodeId, WriteId};

/// The most events that wait to be written.
const QUEUE_LIMIT: usize = 1024;
/// The longest pause before the first write, so that the hosts of a cluster do not write at the same moment.
const SPREAD: Duration = Duration::from_secs(1);
/// The pause after a write that failed. Doubled with each failure in a row.
const PAUSE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// The longest such pause while the store is away: what happened meanwhile, and soon after its return, is to be there when
/// somebody looks, and before the next fault.
const PAUSE_AWAY: Duration = Duration::from_secs(10);
/// How often one page is tried again where other hosts write to it as well.
const CONFLICTS_LIMIT: u32 = 8;
/// An alarm that says the same as an earlier one of the host is not written again for so long.
const ALARM_AGAIN_MS: u64 = 10 * 60 * 1000;
/// The most histories of which the newest slot is remembered.
const PLACES_LIMIT: usize = 4096;
/// How long a client of the bus waits for a history, and how old the answer to another client may be.
const READ_LIMIT: Duration = Duration::from_secs(5);
const FRESH: Duration = Duration::from_secs(1);
/// Time between two looks whether everything is written, when putexd ends.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Takes events to be written, and answers what is written. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct History {
    queue: Arc<Mutex<Queue>>,
    comes: Arc<Notify>,
    /// Ends a pause, because putexd ends.
    hurries: Arc<Notify>,
    answers: Arc<Mutex<Answers>>,
    witness: Arc<OnceLock<Witness>>,
}

/// Says when the host that held a lock was last heard of, in milliseconds since 1970, as far as its reports tell.
pub(super) struct Witness(pub(super) Box<LastHeard>);

/// Takes the key of a lock and the name of the host that held it.
type LastHeard = dyn Fn(&Key, &str) -> Option<u64> + Send + Sync;

impl std::fmt::Debug for Witness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Witness")
    }
}

/// What was read a moment ago.
type Answers = HashMap<Key, (Instant, Vec<Happened>)>;

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<(Key, Happened)>,
    dropped: u64,
    /// Whether events are being written that were taken out.
    is_writing: bool,
    /// Whether putexd ends.
    ends: bool,
    /// Whether the store has given no answer since.
    is_given_up: bool,
}

/// Why events were not written.
#[derive(Debug)]
enum Failure {
    /// The store does not answer, which the journal is told of for all services.
    Away,
    /// It answers reads and this was not written; or it refuses to be read.
    Refused(String),
    /// What is there has to be mended first; the remedy comes first.
    Unfit(String),
}

impl History {
    /// Hands an event over. It never waits.
    pub fn tell(&self, lock: &Key, happened: Happened) {
        self.queue().put(lock.clone(), happened);
        self.comes.notify_one();
    }

    /// Sets who is asked for former holders. The first one stays.
    pub(super) fn ask(&self, witness: Witness) {
        let _ = self.witness.set(witness);
    }

    /// A start with the time since the former holder was last heard of, if this host had neither followed its record nor seen its
    /// release, and that holder's reports tell it.
    fn completed(&self, lock: &Key, happened: Happened) -> Happened {
        let is_open = happened.gap_is_least && !happened.former.is_empty() && happened.former_reason.is_empty();
        let heard = self.witness.get().filter(|_| is_open).and_then(|witness| witness.0(lock, &happened.former));
        let gap = heard.map(|heard_ms| happened.at_ms.saturating_sub(heard_ms));
        match gap.filter(|gap| *gap >= happened.gap_ms.unwrap_or(0)) {
            Some(gap) => Happened { gap_ms: Some(gap), gap_is_least: false, ..happened },
            None => happened,
        }
    }

    /// What the store has of the history of `lock`, at `now` since 1970. `Err`: why that is not known.
    pub(super) async fn read(&self, store: &dyn Store, lock: &Key, now: Duration) -> Result<Vec<Happened>, String> {
        let now_ms = milliseconds(now);
        if let Some((_, events)) = self.answers().get(lock).filter(|(read, _)| read.elapsed() < FRESH) {
            return Ok(events.clone());
        }
        let read = timeout(READ_LIMIT, read_history(store, lock, now_ms)).await;
        let events = read
            .map_err(|_| format!("the store did not answer within {READ_LIMIT:?}"))?
            .map_err(|error| format!("the history of the lock {lock} cannot be read: {error}"))?;
        let mut answers = self.answers();
        answers.retain(|_, (read, _)| read.elapsed() < FRESH);
        answers.insert(lock.clone(), (Instant::now(), events.clone()));
        Ok(events)
    }

    /// Writes the events that come, for ever. `store` must be the one for notes.
    pub(super) async fn write(self, store: Arc<dyn Store>, node: NodeId) {
        let mut link = store.link();
        let mut writer = Writer { store, node, places: HashMap::new(), told: false };
        loop {
            self.comes.notified().await;
            self.pause(sleep(random_share(SPREAD))).await;
            let mut pause = PAUSE.0;
            loop {
                let Some((lock, told)) = self.queue().take_first() else { break };
                let mut events = told.into_iter().map(|happened| self.completed(&lock, happened)).collect();
                match writer.append(&lock, &mut events).await {
                    Ok(()) => {
                        writer.tell_of_success(&self);
                        pause = PAUSE.0;
                    }
                    Err(failure) => {
                        writer.tell_of_failure(&failure);
                        let is_refused = !matches!(failure, Failure::Away);
                        if self.queue().is_last(is_refused) {
                            continue;
                        }
                        self.queue().put_back(&lock, events, is_refused);
                        let wait = sleep(pause + random_share(pause / 4));
                        let until_back = async {
                            if is_refused {
                                return wait.await;
                            }
                            tokio::select! {
                                () = wait => {}
                                () = comes_back(&mut link) => sleep(random_share(SPREAD)).await,
                            }
                        };
                        self.pause(until_back).await;
                        pause = (pause * 2).min(if is_refused { PAUSE.1 } else { PAUSE_AWAY });
                    }
                }
            }
        }
    }

    /// Waits for `end`, or not at all once putexd ends.
    async fn pause(&self, end: impl Future<Output = ()>) {
        if self.queue().ends {
            return;
        }
        tokio::select! {
            () = end => {}
            () = self.hurries.notified() => {}
        }
    }

    /// Has everything written that waits, without a pause, because putexd ends. Returns when that is done, when the store gives no
    /// answer, and after `limit` at the latest; what is not written then is lost.
    pub(super) async fn finish(&self, limit: Duration) {
        self.queue().ends = true;
        self.hurries.notify_one();
        let written = async {
            while !self.queue().is_done() {
                sleep(LOOK_AGAIN).await;
            }
        };
        // The release of each lock is in its record, from which the next holder knows most of what is lost.
        let _ = timeout(limit, written).await;
    }

    /// Takes out what waits to be written.
    #[cfg(test)]
    pub(super) fn taken(&self) -> Vec<Happened> {
        self.queue().events.drain(..).map(|(_, happened)| happened).collect()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn put(&mut self, lock: Key, happened: Happened) {
        self.events.push_back((lock, happened));
        self.shorten();
    }

    fn shorten(&mut self) {
        while self.events.len() > QUEUE_LIMIT {
            self.events.pop_front();
            self.dropped += 1;
        }
    }

    /// Whether nothing is left to do for a putexd that ends.
    fn is_done(&self) -> bool {
        self.is_given_up || self.events.is_empty() && !self.is_writing
    }

    /// Notes that a write has failed. Returns whether nothing is tried again, because putexd ends: what is refused is refused a moment
    /// later, too, and a store that gives no answer takes nothing else either.
    fn is_last(&mut self, is_refused: bool) -> bool {
        self.is_writing = false;
        if self.ends && !is_refused {
            self.is_given_up = true;
            self.events.clear();
        }
        self.ends
    }

    /// The oldest event, with all others of the same lock.
    fn take_first(&mut self) -> Option<(Key, Vec<Happened>)> {
        let lock = self.events.front()?.0.clone();
        let (of_lock, others) = std::mem::take(&mut self.events).into_iter().partition(|(other, _)| *other == lock);
        self.events = others;
        let of_lock: VecDeque<(Key, Happened)> = of_lock;
        self.is_writing = true;
        Some((lock, of_lock.into_iter().map(|(_, happened)| happened).collect()))
    }

    /// Puts events back that were not written. `is_refused`: behind all others, because the rights to another lock's history
    /// may be there.
    fn put_back(&mut self, lock: &Key, events: Vec<Happened>, is_refused: bool) {
        let mut events: VecDeque<_> = events.into_iter().map(|happened| (lock.clone(), happened)).collect();
        // What this lock's service has told meanwhile came later, in either case.
        let (later, mut others): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.events).into_iter().partition(|(other, _)| other == lock);
        events.extend(later);
        if is_refused {
            others.extend(events);
            self.events = others;
        } else {
            events.extend(others);
            self.events = events;
        }
        self.shorten();
    }
}

/// The task that writes.
struct Writer {
    store: Arc<dyn Store>,
    node: NodeId,
    /// The slot that had the newest page of a lock's history when this host last wrote there.
    places: HashMap<Key, u32>,
    /// Whether the journal has been told that nothing can be written.
    told: bool,
}

/// Where the next event goes.
struct Newest {
    page: Page,
    slot: Slot,
    /// The latest events: those of the page, or of the one before if it is new.
    known: Vec<Happened>,
}

impl Writer {
    /// Writes these events, and takes out those that are written.
    async fn append(&mut self, lock: &Key, events: &mut Vec<Happened>) -> Result<(), Failure> {
        let mut conflicts = 0;
        while conflicts < CONFLICTS_LIMIT {
            let Newest { mut page, slot, known } = self.newest(lock).await.map_err(Failure::of_read)?;
            let started = known.iter().chain(events.iter()).filter(|event| event.what == What::Started);
            let started: HashSet<u64> = started.map(|event| event.token).collect();
            // That a start which was told of has failed is no news of an earlier one.
            let is_of_a_start =
                |new: &Happened| new.reason.starts_with(NOT_STARTED) && new.token != 0 && started.contains(&new.token);
            let is_again = |old: &Happened, new: &Happened| says_the_same(old, new) && !is_of_a_start(new);
            // One that is known was written, and the answer was lost; or it was told a moment ago.
            events.retain(|new| !known.iter().any(|old| is_same(old, new) || is_again(old, new)));
            let mut added: Vec<&Happened> = Vec::new();
            for happened in events.iter() {
                if page.is_full() {
                    break;
                }
                if !added.iter().any(|old| is_again(old, happened)) {
                    page.add(&with_gap(happened, known.iter().chain(added.iter().copied())));
                }
                added.push(happened);
            }
            let count = added.len();
            if count == 0 {
                return Ok(());
            }
            let attempt = Attempt {
                base: slot.base,
                incarnation: slot.incarnation,
                write: WriteId(random()),
                value: page.encode(),
            };
            self.places.remove(lock);
            match self.store.compare_and_set(&Key::of_history(lock, page.slot()), &attempt).await {
                WriteOutcome::Won(_) => {
                    if self.places.len() >= PLACES_LIMIT {
                        self.places.clear();
                    }
                    self.places.insert(lock.clone(), page.slot());
                    events.drain(..count);
                    if events.is_empty() {
                        return Ok(());
                    }
                }
                WriteOutcome::Conflict => {
                    conflicts += 1;
                    sleep(random_share(SPREAD / 10)).await;
                }
                WriteOutcome::Unknown(reason) => return Err(Failure::Refused(reason)),
            }
        }
        Err(Failure::Refused("other hosts write there all the time".to_owned()))
    }

    async fn newest(&self, lock: &Key) -> Result<Newest, StoreError> {
        if let Some(slot) = self.places.get(lock) {
            let slot = read_slot(&*self.store, lock, *slot).await?;
            // Only the newest page has room.
            if let Some(page) = slot.page.clone().filter(|page| !page.is_full()) {
                return Ok(Newest { known: page.happened(), page, slot });
            }
        }
        let mut slots: Vec<Slot> = Vec::new();
        for slot in 0..pages::SLOTS {
            slots.push(read_slot(&*self.store, lock, slot).await?);
            // Of most histories there is the first page alone, and only the newest one has room.
            if let [Slot { page: Some(first), .. }, Slot { page: None, .. }] = &slots[..]
                && first.number() == 0
                && !first.is_full()
            {
                break;
            }
        }
        let newest = pages::newest(slots.iter().filter_map(|slot| slot.page.clone()).collect());
        let known = newest.as_ref().map(Page::happened).unwrap_or_default();
        let page = match newest {
            None => Page::first(),
            Some(page) if page.is_full() => page.next(),
            Some(page) => page,
        };
        let slot = slots.swap_remove(page.slot() as usize);
        Ok(Newest { page, slot, known })
    }

    fn tell_of_failure(&mut self, failure: &Failure) {
        match failure {
            Failure::Away => {}
            _ if std::mem::replace(&mut self.told, true) => {}
            Failure::Refused(reason) => tracing::info!(
                "the history of the locks cannot be written: {reason}; nothing depends on it, and it is tried again; the rights \
                 to putex-history are in putexd.toml(5), and \"putexctl doctor\" looks at them"
            ),
            Failure::Unfit(why) => tracing::info!(
                "{why}, and until then the history of a lock is not written; nothing depends on it, and it is tried again"
            ),
        }
    }

    fn tell_of_success(&mut self, history: &History) {
        let dropped = {
            let mut queue = history.queue();
            queue.is_writing = false;
            std::mem::take(&mut queue.dropped)
        };
        if std::mem::take(&mut self.told) || dropped > 0 {
            let lacks =
                if dropped == 0 { String::new() } else { format!("; it lacks {dropped} events of {}", self.node) };
            tracing::info!("the history of the locks is written again{lacks}");
        }
    }
}

impl Failure {
    fn of_read(error: StoreError) -> Self {
        match error {
            StoreError::Unreachable(_) | StoreError::Missing(_) => Self::Away,
            StoreError::Unfit(why) | StoreError::Misconfigured(why) | StoreError::Garbled(why) => Self::Unfit(why),
            error @ StoreError::Denied(_) => Self::Refused(error.to_string()),
        }
    }
}

/// Whether the two are one event. The gap before a start is added when it is written.
fn is_same(old: &Happened, new: &Happened) -> bool {
    let without = |one: &Happened| Happened { gap_ms: None, gap_is_least: false, ..one.clone() };
    without(old) == without(new)
}

/// Whether the host has raised the same alarm a while ago. Each lapse is one of its own.
fn says_the_same(old: &Happened, new: &Happened) -> bool {
    (old.what, new.what) == (What::Alarm, What::Alarm)
        && !new.reason.starts_with(Alarm::Lapsed.name())
        && (&old.host, &old.reason) == (&new.host, &new.reason)
        && new.at_ms.abs_diff(old.at_ms) < ALARM_AGAIN_MS
}

/// A start with the gap before it: since the begin of the stop of the tenure before, if that was told. Tokens tell which one that is, because a
/// host that was cut off tells late what happened before. Clocks differ, so a gap may be too short or too long by that.
fn with_gap<'a>(happened: &Happened, known: impl Iterator<Item = &'a Happened>) -> Happened {
    let earlier = known.filter(|old| old.is_of_a_run() && old.token < happened.token);
    let before = earlier.max_by_key(|old| (old.token, old.what == What::Stopped));
    let is_exact = |stop: &&Happened| {
        stop.what == What::Stopped
            && !stop.or_earlier
            // There was another holder since, which has told nothing.
            && stop.token >= happened.former_token
            // A stop of the far future was not told by a host.
            && stop.at_ms <= happened.at_ms.saturating_add(AHEAD_MS)
    };
    match before.filter(|_| happened.what == What::Started).filter(is_exact) {
        Some(stop) => {
            let gap = happened.at_ms.saturating_sub(stop.stopping_ms.unwrap_or(stop.at_ms));
            Happened { gap_ms: Some(gap), gap_is_least: false, ..happened.clone() }
        }
        None => happened.clone(),
    }
}

/// Returns when the connection to the store is there again. Never, if it has been there all the time.
async fn comes_back(link: &mut tokio::sync::watch::Receiver<Link>) {
    link.mark_unchanged();
    let mut was_away = *link.borrow() != Link::Up;
    loop {
        if link.changed().await.is_err() {
            return std::future::pending().await;
        }
        let is_up = *link.borrow_and_update() == Link::Up;
        if was_away && is_up {
            return;
        }
        was_away |= !is_up;
    }
}

/// A random time between nothing and `longest`.
fn random_share(longest: Duration) -> Duration {
    let share = u32::try_from(random() % 1024).unwrap_or(0);
    longest * share / 1024
}

/// A host without randomness has the time instead; nobody else draws the same.
fn random() -> u128 {
    let mut bytes = [0; 16];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u128::from_ne_bytes(bytes),
        Err(_) => crate::host::clock::now().boot.as_nanos(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::{MemoryStore, WriteFault};

    const LIMIT: Duration = Duration::from_millis(500);
    const NOW_MS: u64 = 1_795_000_000_000;
    const NOW: Duration = Duration::from_millis(NOW_MS);

    fn lock(name: &str) -> Key {
        Key::new(name).expect("a key")
    }

    fn event(at_ms: u64, what: What) -> Happened {
        Happened::new(at_ms, "h1", what, 7, &format!("event {at_ms}"))
    }

    /// A store, and a writer on it.
    fn writing() -> (MemoryStore, History) {
        let (store, history) = (MemoryStore::new(LIMIT), History::default());
        let node = NodeId::new("h1").expect("a node's name");
        tokio::spawn(history.clone().write(Arc::new(store.clone()), node));
        (store, history)
    }

    /// The times of the events that the store has in the end.
    async fn written(store: &MemoryStore, lock: &Key, count: usize) -> Vec<u64> {
        for _ in 0..1000 {
            let events = read_history(store, lock, NOW_MS).await.unwrap_or_default();
            if events.len() >= count {
                return events.iter().map(|happened| happened.at_ms).collect();
            }
            sleep(LIMIT).await;
        }
        panic!("{count} events were not written in time");
    }

    #[tokio::test(start_paused = true)]
    async fn events_of_each_lock_are_written_over_pages_in_their_order() {
        let (store, history) = writing();
        let (a, b) = (lock("a"), lock("b"));
        for at in 0..120 {
            history.tell(&a, event(at, What::Alarm));
            history.tell(&b, event(1000 + at, What::Asked));
        }
        assert_eq!(written(&store, &a, 120).await, (0..120).collect::<Vec<_>>());
        assert_eq!(written(&store, &b, 120).await, (1000..1120).collect::<Vec<_>>());
        for at in 120..420 {
            history.tell(&a, event(at, What::Asked));
            sleep(SPREAD).await;
        }
        sleep(SPREAD * 2).await;
        assert_eq!(written(&store, &a, 200).await, (220..420).collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_answer_writes_nothing_twice_and_an_alarm_that_goes_on_is_told_once() {
        let (store, history) = writing();
        let a = lock("a");
        store.fail_writes([WriteFault::LoseAnswer, WriteFault::LoseAnswer]);
        let stop = event(1000, What::Stopped);
        history.tell(&a, stop.clone());
        sleep(PAUSE.1).await;
        let start = Happened { gap_ms: Some(9), token: 8, ..event(3500, What::Started) };
        history.tell(&a, start);
        for at in 0..20 {
            history.tell(&a, Happened { at_ms: 4000 + at, ..event(1, What::Alarm) });
        }
        assert_eq!(written(&store, &a, 3).await, [1000, 3500, 4000]);
        let events = read_history(&store, &a, NOW_MS).await.expect("they are there");
        assert_eq!((&events[0], events[1].gap_ms), (&stop, Some(2500)), "since the stop");
    }

    #[tokio::test(start_paused = true)]
    async fn each_start_that_was_told_of_and_has_failed_is_told_of_as_failed() {
        let (store, history) = writing();
        let a = lock("a");
        for token in 1..=3 {
            let failed = Happened::new(1000 * token + 1, "h1", What::Alarm, token, "was not started: exit status 203");
            if token < 3 {
                history.tell(&a, Happened { token, ..event(1000 * token, What::Started) });
            }
            history.tell(&a, failed);
            sleep(SPREAD * 2).await;
        }
        assert_eq!(
            written(&store, &a, 4).await,
            [1000, 1001, 2000, 2001],
            "a start that began nothing is told of once"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_gap_that_nobody_saw_is_that_since_the_last_report_of_the_former_holder() {
        let (store, history) = writing();
        let a = lock("a");
        history.ask(Witness(Box::new(|_, former| (former == "h2").then_some(20_000))));
        let found = |at_ms, former: &str| Happened {
            gap_ms: Some(5200),
            gap_is_least: true,
            former: former.to_owned(),
            ..event(at_ms, What::Started)
        };
        history.tell(&a, found(90_000, "h2"));
        history.tell(&a, found(91_000, "h3"));
        history.tell(&a, found(24_000, "h2"));
        history.tell(&a, found(92_000, "h2").after_release("drained"));
        written(&store, &a, 4).await;
        let events = read_history(&store, &a, NOW_MS).await.expect("they are there");
        let gaps: Vec<_> = events.iter().map(|event| (event.gap_ms, event.gap_is_least)).collect();
        let seen = (Some(5200), true);
        assert_eq!(gaps, [seen, (Some(70_000), false), seen, seen], "a release that was seen tells more than a report");
    }

    #[tokio::test(start_paused = true)]
    async fn a_forged_alarm_of_the_far_future_hides_no_true_one() {
        let alarm = |at_ms| Happened { reason: "so".to_owned(), ..event(at_ms, What::Alarm) };
        assert!(says_the_same(&alarm(1000), &alarm(2000)));
        assert!(!says_the_same(&alarm(u64::MAX), &alarm(2000)));
        let start = Happened { token: 8, ..event(5000, What::Started) };
        assert_eq!(with_gap(&start, [event(u64::MAX, What::Stopped)].iter()).gap_ms, None);
        assert_eq!(with_gap(&start, [event(4000, What::Stopped)].iter()).gap_ms, Some(1000));
    }

    #[test]
    fn a_stop_that_is_told_late_is_not_that_of_the_run_before() {
        let of = |token, one: Happened| Happened { token, ..one };
        // h1 was cut off, and has told of its stop after h2 had told of its start. Then h2 died.
        let known = [
            of(10, event(1000, What::Started)),
            of(11, event(20_000, What::Started)),
            of(10, event(15_000, What::Stopped)),
        ];
        let start = Happened { gap_ms: Some(12_000), ..of(12, event(290_000, What::Started)) };
        assert_eq!(with_gap(&start, known.iter()).gap_ms, Some(12_000));
        let late = of(11, event(280_000, What::Stopped));
        assert_eq!(with_gap(&start, known.iter().chain([&late])).gap_ms, Some(10_000));
        let bound = Happened { or_earlier: true, ..late.clone() };
        assert_eq!(with_gap(&start, known.iter().chain([&bound])).gap_ms, Some(12_000), "nobody knows when it stopped");
        let lost = Happened { former: "h3".to_owned(), former_token: 12, token: 13, ..start };
        assert_eq!(with_gap(&lost, known.iter().chain([&late])).gap_ms, Some(12_000), "another has run it since");
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_is_written_soon_after_the_store_is_back() {
        let (store, history) = writing();
        let a = lock("a");
        store.go_down("it is away");
        history.tell(&a, event(1, What::Started));
        sleep(PAUSE.1 * 20).await;
        store.go_up();
        history.tell(&a, event(2, What::Stopped));
        sleep(SPREAD * 3 / 2).await;
        assert_eq!(written(&store, &a, 0).await, [1, 2], "in order");
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_when_putexd_ends_is_written_at_once() {
        let (store, history) = writing();
        let name = |number: u64| lock(&format!("s{number}"));
        for number in 0..60 {
            history.tell(&name(number), event(number, What::Stopped));
        }
        let began = Instant::now();
        history.finish(Duration::from_secs(2)).await;
        assert!(began.elapsed() <= LOOK_AGAIN, "{:?}", began.elapsed());
        for number in 0..60 {
            let events = read_history(&store, &name(number), NOW_MS).await.expect("it can be read");
            assert_eq!(events.len(), 1, "{number}");
        }
        history.finish(Duration::from_secs(2)).await;
        assert!(began.elapsed() <= LOOK_AGAIN, "nothing waits");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_takes_nothing_delays_the_end_of_putexd_for_a_moment() {
        let limit = Duration::from_secs(2);
        let ends_after = async |break_store: fn(&MemoryStore)| {
            let (store, history) = writing();
            break_store(&store);
            history.tell(&lock("a"), event(1, What::Stopped));
            history.tell(&lock("b"), event(2, What::Stopped));
            sleep(PAUSE.1).await;
            let began = Instant::now();
            history.finish(limit).await;
            began.elapsed()
        };
        assert!(ends_after(|store| store.go_down("it is away")).await <= LOOK_AGAIN);
        let refuse = |store: &MemoryStore| store.refuse_reads(Some(StoreError::Denied("no".to_owned())));
        assert!(ends_after(refuse).await <= LOOK_AGAIN);
        assert!(ends_after(MemoryStore::hang).await <= LIMIT + LOOK_AGAIN);
    }

    #[tokio::test(start_paused = true)]
    async fn events_wait_for_a_store_that_is_away_and_the_oldest_are_dropped() {
        let (store, history) = writing();
        store.refuse_reads(Some(StoreError::Unreachable("it is away".to_owned())));
        let many = 2000;
        for at in 0..many {
            history.tell(&lock(if at % 2 == 0 { "a" } else { "b" }), event(at, What::Asked));
        }
        sleep(PAUSE.1).await;
        assert!(history.queue().events.len() <= QUEUE_LIMIT);
        store.refuse_reads(None);
        sleep(PAUSE.1 * 3).await;
        assert_eq!(written(&store, &lock("a"), 200).await.last(), Some(&(many - 2)));
        assert_eq!(written(&store, &lock("b"), 200).await.last(), Some(&(many - 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_history_is_whole_where_its_second_page_begins() {
        let (store, history) = writing();
        let a = lock("a");
        for at in 0..52 {
            history.tell(&a, event(at, What::Asked));
            assert_eq!(
                written(&store, &a, usize::try_from(at + 1).expect("small")).await,
                (0..=at).collect::<Vec<_>>()
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn two_hosts_write_one_history() {
        let (store, history) = writing();
        let other = History::default();
        tokio::spawn(other.clone().write(Arc::new(store.clone()), NodeId::new("h2").expect("a node's name")));
        let a = lock("a");
        for at in 0..150 {
            let who = if at % 3 == 0 { &other } else { &history };
            who.tell(&a, event(at, What::Asked));
            if at % 10 == 0 {
                sleep(SPREAD / 2).await;
            }
        }
        assert_eq!(written(&store, &a, 150).await, (0..150).collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_history_keeps_no_other_from_being_written() {
        let told = |at| event(at, What::Asked);
        let mut queue = Queue::default();
        for (name, at) in [("a", 1), ("b", 2), ("a", 3)] {
            queue.put(lock(name), told(at));
        }
        let (first, events) = queue.take_first().expect("events");
        assert_eq!((first.as_str(), events.len()), ("a", 2));
        queue.put(lock("a"), told(4));
        queue.put_back(&first, events, true);
        assert_eq!(queue.take_first().expect("events").0.as_str(), "b");
        let (_, events) = queue.take_first().expect("events");
        assert_eq!(events.iter().map(|happened| happened.at_ms).collect::<Vec<_>>(), [1, 3, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_history_is_read_once_in_a_second() {
        let (store, history) = writing();
        let a = lock("a");
        history.tell(&a, event(1, What::Started));
        written(&store, &a, 1).await;
        assert_eq!(history.read(&store, &a, NOW).await.map(|events| events.len()), Ok(1));
        store.refuse_reads(Some(StoreError::Denied("no".to_owned())));
        assert_eq!(history.read(&store, &a, NOW).await.map(|events| events.len()), Ok(1));
        sleep(FRESH).await;
        assert!(history.read(&store, &a, NOW).await.is_err_and(|error| error.contains("refused")));
        store.refuse_reads(None);
        store.hang();
        assert!(history.read(&store, &a, NOW).await.is_err());
    }

    #[test]
    fn each_lapse_is_an_alarm_of_its_own_and_what_is_tried_again_is_told_once() {
        let alarm =
            |kind: Alarm, at_ms| Happened::new(at_ms, "h1", What::Alarm, 7, &format!("{}: not renewed", kind.name()));
        assert!(says_the_same(&alarm(Alarm::CheckFailed, 0), &alarm(Alarm::CheckFailed, 1000)));
        assert!(!says_the_same(&alarm(Alarm::Lapsed, 0), &alarm(Alarm::Lapsed, 1000)));
    }
}
