//! What the oracles wrote down, and when each of their copies had really ended.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, flock},
    thread::gettid,
};

use crate::{
    cluster::Host,
    command::{now, output, wait_for},
};

/// How often new copies are looked for. Their ends are not polled: the kernel wakes a waiting thread.
const POLL: Duration = Duration::from_millis(5);

/// A line of the oracle's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub kind: Kind,
    /// The host's name.
    pub host: String,
    /// CLOCK_MONOTONIC, the clock of [`now`].
    pub at: Duration,
    /// The fencing token, if the unit was given one.
    pub token: Option<u64>,
    /// The id of the copy.
    pub id: String,
}

/// What happened to a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The copy began.
    Start,
    /// Another copy was alive when this one began.
    Violation,
    /// The copy got SIGTERM, and ignores it.
    Ignore,
    /// The copy stops in order.
    Stop,
    /// The last process of the copy is gone, for whatever reason.
    End,
}

impl Event {
    /// How long after `earlier` the event happened; zero if it was before that.
    pub fn after(&self, earlier: Duration) -> Duration {
        self.at.saturating_sub(earlier)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let kind = match words.next()? {
            "START" => Kind::Start,
            "VIOLATION" => Kind::Violation,
            "IGNORE" => Kind::Ignore,
            "STOP" => Kind::Stop,
            "END" => Kind::End,
            _ => return None,
        };
        let host = words.next()?.to_owned();
        let at = Duration::from_nanos(words.next()?.parse().ok()?);
        let token = words.next()?.parse().ok();
        Some(Self {
            kind,
            host,
            at,
            token,
            id: words.next()?.to_owned(),
        })
    }
}

/// Reads what the oracles of a cluster did.
pub struct Watch {
    shared: PathBuf,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub fn begin(shared: &Path) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let thread = {
            let (shared, ended) = (shared.to_owned(), Arc::clone(&ended));
            thread::spawn(move || follow(&shared, &ended))
        };
        Self {
            shared: shared.to_owned(),
            ended,
            thread: Some(thread),
        }
    }

    pub fn end(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the watch does not fail");
        }
    }

    /// The whole log.
    pub fn text(&self) -> String {
        fs::read_to_string(self.shared.join("oracle.log")).unwrap_or_default()
    }

    /// All events so far, in the order of the lines.
    pub fn events(&self) -> Vec<Event> {
        self.text().lines().filter_map(Event::parse).collect()
    }

    pub fn starts(&self) -> Vec<Event> {
        self.of(Kind::Start)
    }

    pub fn violations(&self) -> Vec<Event> {
        self.of(Kind::Violation)
    }

    /// When each copy that is gone had ended, by the id of the copy.
    pub fn ends(&self) -> BTreeMap<String, Duration> {
        self.of(Kind::End)
            .into_iter()
            .map(|end| (end.id, end.at))
            .collect()
    }

    fn of(&self, kind: Kind) -> Vec<Event> {
        self.events()
            .into_iter()
            .filter(|event| event.kind == kind)
            .collect()
    }

    /// The copies that are alive now, as their start events.
    pub fn live(&self) -> Vec<Event> {
        let events = self.events();
        let ended: BTreeSet<&str> = events
            .iter()
            .filter(|event| event.kind == Kind::End)
            .map(|event| event.id.as_str())
            .collect();
        let lives =
            |event: &&Event| event.kind == Kind::Start && !ended.contains(event.id.as_str());
        events.iter().filter(lives).cloned().collect()
    }

    /// Waits for the first start later than `after` on one of `hosts`.
    #[track_caller]
    pub fn wait_for_start_on(&self, hosts: &[&Host], after: Duration, limit: Duration) -> Event {
        let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        wait_for(limit, &format!("a start on one of {names:?}"), || {
            self.starts()
                .into_iter()
                .find(|start| start.at > after && names.contains(&start.host.as_str()))
        })
    }

    /// Waits until the last process of the copy of `start` is gone, and returns that event.
    #[track_caller]
    pub fn wait_for_end(&self, start: &Event, limit: Duration) -> Event {
        wait_for(limit, &format!("the end of {}", start.id), || {
            self.of(Kind::End)
                .into_iter()
                .find(|event| event.id == start.id)
        })
    }
}

fn follow(shared: &Path, ended: &AtomicBool) {
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(shared.join("oracle.log"));
    let log = log.expect("the shared folder can be written to");
    let mut known = BTreeSet::new();
    thread::scope(|scope| {
        while !ended.load(Ordering::Relaxed) {
            for entry in fs::read_dir(shared.join("live"))
                .into_iter()
                .flatten()
                .flatten()
            {
                let id = entry.file_name().to_string_lossy().into_owned();
                if known.insert(id.clone()) {
                    let log = &log;
                    scope.spawn(move || wait_for_last_process(&entry.path(), &id, log));
                }
            }
            thread::sleep(POLL);
        }
    });
}

fn wait_for_last_process(lock: &Path, id: &str, mut log: &File) {
    run_ahead_of_others();
    let file = File::open(lock).expect("nobody removes the locks of the oracles");
    while flock(&file, FlockOperation::LockShared) == Err(rustix::io::Errno::INTR) {}
    let host = id.split('-').next().unwrap_or_default();
    let line = format!("END {host} {} - {id}\n", now().as_nanos());
    log.write_all(line.as_bytes())
        .expect("the shared folder can be written to");
}

/// Gives this thread real-time priority, so that it runs as soon as it is woken: milliseconds are measured. A machine that
/// does not permit it measures less exactly.
fn run_ahead_of_others() {
    output(
        "chrt",
        &[
            "--fifo",
            "--pid",
            "1",
            &gettid().as_raw_nonzero().to_string(),
        ],
    );
}
