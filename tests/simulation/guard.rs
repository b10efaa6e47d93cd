//! A simulated guard around the real table, the real frames and the real grants.

use std::{io, sync::Arc, time::Duration};

use putexd::{
    guard::table::{Effect, LeaseEntry, LeaseTable},
    guard_client::{
        frame::{Command, Lease, Of, Outcome, Reply, Request},
        grant,
    },
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    sync::Notify,
};

use crate::world::{Sim, World};

/// Both intervals are those of `guard::enforce`.
const KILL_INTERVAL: Duration = Duration::from_millis(20);
const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// The time from the end of the patience until a successor enforces, as in `guard::table`.
const SUCCESSION: Duration = Duration::from_millis(1300);
/// The longest patience, as in `guard::watch`.
const IDLE_PATIENCE: Duration = Duration::from_secs(10);
/// More than all frames that can be under way at a time.
const SOCKET_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Life {
    #[default]
    Dead,
    Up,
    /// It neither answers nor enforces, and its files stay.
    Hung,
}

/// The guard of one host, and its files in /run.
#[derive(Default)]
pub struct Guard {
    pub life: Life,
    /// Counts the starts and ends of guards, and when one hangs or goes on.
    era: u64,
    table: LeaseTable,
    saved: Vec<LeaseEntry>,
    pub grant: Option<String>,
    /// Counts connections. Only the latest is served.
    pub connection: u64,
    /// Wakes the tasks of connections, which then look at the guard again.
    pub bell: Arc<Notify>,
    enforcement: Option<Lease>,
    /// The guard's patience when it began to hang.
    patience: Option<Duration>,
    /// Whether the successor of the guard that is gone is there before SIGKILL is due.
    pub covered: bool,
    /// Counts enforcements, so that an older one stops.
    enforced: u64,
    timer: u64,
}

impl Guard {
    pub fn of_next_boot(&self) -> Self {
        Self {
            connection: self.connection + 1,
            ..Self::default()
        }
    }
}

/// What happens to a request now.
enum Turn {
    Answer(Box<Outcome>),
    Wait,
    Gone,
}

/// Makes a new connection to the guard of host `h`.
pub async fn connect(sim: Sim, h: usize) -> io::Result<DuplexStream> {
    let mut world = sim.lock();
    let guard = &mut world.hosts[h].guard;
    if guard.life == Life::Dead {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    guard.connection += 1;
    guard.bell.notify_waiters();
    let connection = guard.connection;
    let (client, server) = duplex(SOCKET_BYTES);
    tokio::spawn(serve(sim.clone(), h, connection, server));
    Ok(client)
}

/// Answers one request after the other until the connection ends.
async fn serve(sim: Sim, h: usize, connection: u64, mut stream: DuplexStream) {
    let mut unread = Vec::new();
    loop {
        let bell = Arc::clone(&sim.lock().hosts[h].guard.bell);
        let rung = bell.notified();
        if sim.lock().hosts[h].guard.connection != connection {
            return;
        }
        tokio::select! {
            biased;
            () = rung => {}
            read = stream.read_buf(&mut unread) => if !matches!(read, Ok(1..)) { return },
        }
        while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = unread.drain(..=end).collect();
            let request: Request = serde_json::from_slice(&line).expect("a request");
            let Some(result) = answer(&sim, h, connection, request.command).await else {
                return;
            };
            let mut line = serde_json::to_vec(&Reply {
                id: request.id,
                result,
            })
            .expect("a reply");
            line.push(b'\n');
            if stream.write_all(&line).await.is_err() {
                return;
            }
        }
    }
}

async fn answer(sim: &Sim, h: usize, connection: u64, command: Command) -> Option<Outcome> {
    loop {
        let bell = Arc::clone(&sim.lock().hosts[h].guard.bell);
        let rung = bell.notified();
        let turn = sim.lock().guard_turn(h, connection, &command);
        match turn {
            Turn::Answer(outcome) => return Some(*outcome),
            Turn::Wait => rung.await,
            Turn::Gone => return None,
        }
    }
}

/// How long the watcher waits for a beat after a thaw.
fn after_a_thaw(patience: Option<Duration>) -> Duration {
    patience.unwrap_or(IDLE_PATIENCE).min(IDLE_PATIENCE) / 4
}

impl World {
    fn guard_turn(&mut self, h: usize, connection: u64, command: &Command) -> Turn {
        let host = &self.hosts[h];
        if host.guard.connection != connection || host.guard.life == Life::Dead || !host.powered {
            return Turn::Gone;
        }
        if host.frozen || host.guard.life == Life::Hung {
            return Turn::Wait;
        }
        self.guard_looks(h);
        let now = self.clock(h);
        let guard = &mut self.hosts[h].guard;
        let (outcome, effects) = guard.table.handle(now, command.clone());
        self.guard_acts(h, effects);
        if let Outcome::Refused { reason } = &outcome {
            self.note(Some(h), &format!("the guard refuses: {reason}"));
        }
        Turn::Answer(Box::new(outcome))
    }

    /// Does what is due by now.
    pub fn guard_looks(&mut self, h: usize) {
        if self.hosts[h].guard.life != Life::Up || !self.hosts[h].runs() {
            return;
        }
        let now = self.clock(h);
        let effects = self.hosts[h].guard.table.expire(now);
        self.guard_acts(h, effects);
    }

    /// Carries out the effects, keeps the table for a successor, and sets the timer.
    fn guard_acts(&mut self, h: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Extend(service, _) => {
                    let guard = &mut self.hosts[h].guard;
                    guard.grant = guard
                        .table
                        .entry_of(&service)
                        .map(|entry| grant::render(entry.lease()));
                }
                Effect::Grant(lease) => self.hosts[h].guard.grant = Some(grant::render(&lease)),
                Effect::Withdraw(_) => self.hosts[h].guard.grant = None,
                Effect::Enforce(lease) => self.enforce(h, lease),
                Effect::Forget(_) => self.hosts[h].guard.enforcement = None,
                Effect::GiveUp(_) => {
                    self.note(Some(h), "the guard: the unit is not proven dead in time")
                }
            }
        }
        let now = self.now();
        let host = &mut self.hosts[h];
        host.guard.saved = host.guard.table.entries();
        host.guard.timer += 1;
        let timer = host.guard.timer;
        let next = host.guard.table.poll_timeout();
        if let Some(at) = next.and_then(|next| host.clocks.real_when_passed(now, next)) {
            self.on_host(h, at.saturating_sub(now), move |world| {
                if world.hosts[h].guard.timer == timer {
                    world.guard_looks(h);
                }
            });
        }
    }

    fn enforce(&mut self, h: usize, lease: Lease) {
        self.note(Some(h), "the guard: the lease has lapsed");
        let guard = &mut self.hosts[h].guard;
        guard.enforced += 1;
        let number = guard.enforced;
        guard.enforcement = Some(lease);
        let ask = self.millis(1, 3);
        self.on_host(h, ask, move |world| {
            if world.hosts[h].guard.enforced == number && world.hosts[h].guard.life == Life::Up {
                world.arrive_at_pid1(h, move |world| world.stop_lease(h));
            }
        });
        self.enforce_further(h, number, Duration::ZERO);
    }

    /// Looks at the unit once, and schedules the next look.
    fn enforce_further(&mut self, h: usize, number: u64, after: Duration) {
        self.on_host(h, after, move |world| {
            let guard = &world.hosts[h].guard;
            let Some(lease) = guard
                .enforcement
                .clone()
                .filter(|_| guard.enforced == number)
            else {
                return;
            };
            let now = world.clock(h);
            let mut pause = WATCH_INTERVAL
                .min(now.until_passed(lease.terms.kill_at()))
                .max(Duration::from_millis(1));
            if world.hosts[h].guard.life == Life::Up && now.has_passed(lease.terms.kill_at()) {
                if lease
                    .cgroups
                    .iter()
                    .any(|group| world.is_populated(h, group))
                {
                    world.kill_unit(h);
                    pause = KILL_INTERVAL;
                } else {
                    let service = world.service.clone();
                    world.hosts[h].guard.table.stopped(&service);
                    world.guard_acts(h, Vec::new());
                    pause = WATCH_INTERVAL;
                }
            }
            world.enforce_further(h, number, pause);
        });
    }

    /// Starts a guard, which enforces what its predecessor left, and serves.
    pub fn start_guard(&mut self, h: usize) {
        let now = self.clock(h);
        let guard = &mut self.hosts[h].guard;
        if guard.life != Life::Dead {
            return;
        }
        let (table, effects) = LeaseTable::resume(now, std::mem::take(&mut guard.saved));
        guard.life = Life::Up;
        guard.era += 1;
        guard.grant = None;
        guard.table = table;
        guard.bell.notify_waiters();
        self.guard_acts(h, effects);
        self.guard_looks(h);
    }

    /// Assumption (c): guard and putexd are not both gone when SIGKILL is due. `gap` is how long this guard would be gone.
    fn may_be_gone(&mut self, h: usize, gap: Duration) -> bool {
        let now = self.clock(h);
        let (listed, _) = self.hosts[h]
            .guard
            .table
            .handle(now, Command::List(Of::All));
        let in_time = match listed {
            Outcome::Leases(state) => state
                .leases
                .iter()
                .all(|listed| now.until_passed(listed.lease.terms.kill_at()) >= gap),
            Outcome::Done | Outcome::Refused { .. } => true,
        };
        self.hosts[h].guard.covered = in_time;
        in_time || !self.hosts[h].unit.alive || self.daemon_enforces(h)
    }

    /// Kills the guard. systemd then stops what is bound to it, removes the grants, and starts another one.
    pub fn kill_guard(&mut self, h: usize) {
        let hung = self.hosts[h].guard.life == Life::Hung;
        if self.hosts[h].guard.life == Life::Dead || !hung && !self.may_be_gone(h, SUCCESSION) {
            return;
        }
        let guard = &mut self.hosts[h].guard;
        guard.life = Life::Dead;
        guard.era += 1;
        guard.grant = None;
        guard.enforcement = None;
        guard.enforced += 1;
        guard.timer += 1;
        guard.connection += 1;
        guard.bell.notify_waiters();
        self.note(Some(h), "the guard is gone");
        self.stop_lease(h);
        let succession = self.millis(120, 400);
        self.on_host(h, succession, move |world| {
            world.note(Some(h), "the guard starts");
            world.start_guard(h);
        });
    }

    pub fn hang_guard(&mut self, h: usize) {
        if self.hosts[h].guard.life != Life::Up {
            return;
        }
        let now = self.clock(h);
        let patience = self.hosts[h].guard.table.patience(now);
        if !self.may_be_gone(h, patience.unwrap_or_default() + SUCCESSION) {
            return;
        }
        let guard = &mut self.hosts[h].guard;
        guard.life = Life::Hung;
        guard.patience = patience;
        guard.era += 1;
        let era = guard.era;
        self.note(Some(h), "the guard hangs");
        let Some(patience) = patience else { return };
        // Either its watcher misses it early, or the watcher hangs as well, and systemd has to miss the watcher first.
        let watched = self.millis(0, 1) == Duration::ZERO;
        let missed = if watched {
            patience * 3 / 4 + self.millis(0, 20)
        } else {
            patience + self.millis(300, 900)
        };
        let due = self.now() + missed;
        self.on_host(h, missed, move |world| {
            // If the host stood still in between, the watcher first gives the guard time to speak.
            let stood_still = world.now() > due;
            let look = if stood_still {
                after_a_thaw(Some(patience))
            } else {
                Duration::ZERO
            };
            world.on_host(h, look, move |world| {
                if world.hosts[h].guard.era == era {
                    world.kill_guard(h);
                }
            });
        });
    }

    /// For how long after a thaw a guard that was gone before it may still have no successor.
    pub fn succession_after_a_thaw(&self, h: usize) -> Duration {
        match self.hosts[h].guard.life {
            Life::Up => Duration::ZERO,
            Life::Dead => SUCCESSION,
            Life::Hung => SUCCESSION + after_a_thaw(self.hosts[h].guard.patience),
        }
    }

    pub fn unhang_guard(&mut self, h: usize) {
        let guard = &mut self.hosts[h].guard;
        if guard.life != Life::Hung {
            return;
        }
        guard.life = Life::Up;
        guard.era += 1;
        guard.bell.notify_waiters();
        self.note(Some(h), "the guard goes on");
        self.guard_looks(h);
    }
}
