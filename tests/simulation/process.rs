//! putexd as a process: all its tasks can be paused at any point and resumed later, or killed.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use putexd::{
    config::ServiceSettings,
    daemon::{
        local::{
            alarms::Alarms,
            cgroup_owners::CgroupOwners,
            drain::Drain,
            fence::Fencings,
            machine::{Clock, Machine, SeenOutside, Task, Timer},
        },
        service::{self, Host, Inbox, ServiceOrder},
        store_access::{hints::Hints, history::histories},
    },
    election::{KeptPlace, Memory, State},
    facts::ServiceState,
    guard_client::{GuardClient, frame::ListedLease},
    store::{Store, layered::Layered, sealed::Sealer},
    types::{
        Key, MachineId, NodeId, OnStopFailure, ServiceName, Time, UnitName, store::StoreAddress,
    },
};
use tokio::{
    sync::{Notify, watch},
    task::{AbortHandle, JoinHandle},
    time::{Sleep, sleep, sleep_until},
};

use crate::{
    guard::connect,
    journal::speak_for,
    pid1::Pid1,
    scene::{Word, host_name},
    wire::FarStore,
    world::{Failure, Sim, World},
};

/// When this many tasks are kept, the finished ones are removed.
const TASKS: usize = 64;

/// The time from a self-fence until the host is switched on again.
const REBOOT: Duration = Duration::from_secs(1);

/// A putexd process that was started and not killed.
pub struct Process {
    gate: Arc<Gate>,
    pub orders: Option<Inbox>,
    pub status: Option<watch::Receiver<ServiceState>>,
    /// Is notified when a retired service is to be taken up again.
    again: Arc<Notify>,
    paused: bool,
}

/// Whether the tasks of a process may run.
#[derive(Default)]
struct Gate(Mutex<Turn>);

#[derive(Default)]
struct Turn {
    held: bool,
    waiting: Vec<Waker>,
    tasks: Vec<AbortHandle>,
}

impl Gate {
    fn hold(&self, held: bool) {
        let mut turn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        turn.held = held;
        if !held {
            turn.waiting.drain(..).for_each(Waker::wake);
        }
    }

    fn kill(&self) {
        let mut turn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        turn.held = true;
        turn.tasks.drain(..).for_each(|task| task.abort());
    }

    fn waits(&self, context: &Context<'_>) -> bool {
        let mut turn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if turn.held {
            turn.waiting.push(context.waker().clone());
        }
        turn.held
    }

    fn keep(&self, task: AbortHandle) {
        let mut turn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if turn.tasks.len() >= TASKS {
            turn.tasks.retain(|task| !task.is_finished());
        }
        turn.tasks.push(task);
    }
}

/// A task of a process, which is polled only while the gate lets it.
struct Gated {
    gate: Arc<Gate>,
    sim: Sim,
    h: usize,
    task: Task,
}

impl Future for Gated {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.gate.waits(context) {
            return Poll::Pending;
        }
        let h = self.h;
        let part = AssertUnwindSafe(|| self.task.as_mut().poll(context));
        match speak_for(h, || catch_unwind(part)) {
            Ok(poll) => poll,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                self.sim
                    .lock()
                    .fail(Failure::Defect(format!("a task panics: {text}")));
                Poll::Ready(())
            }
        }
    }
}

/// The host as its daemon sees it, in place of the real kernel.
#[derive(Clone)]
struct VirtualMachine {
    sim: Sim,
    h: usize,
    gate: Arc<Gate>,
}

impl Clock for VirtualMachine {
    fn now(&self) -> Time {
        self.sim.lock().clock(self.h)
    }

    fn wall(&self) -> Duration {
        self.sim.lock().wall(self.h)
    }
}

impl Machine for VirtualMachine {
    fn random(&self) -> u128 {
        self.sim.lock().random()
    }

    fn timer(&self) -> std::io::Result<Box<dyn Timer>> {
        Ok(Box::new(VirtualTimer {
            machine: self.clone(),
            sleep: Mutex::default(),
        }))
    }

    fn spawn(&self, task: Task) -> JoinHandle<()> {
        let gated = Gated {
            gate: Arc::clone(&self.gate),
            sim: self.sim.clone(),
            h: self.h,
            task,
        };
        let handle = tokio::spawn(gated);
        self.gate.keep(handle.abort_handle());
        handle
    }

    fn recall(&self, _: &ServiceName, _: &Key) -> Memory {
        self.sim.lock().hosts[self.h].memory.clone()
    }

    fn keep(&self, _: &ServiceSettings, memory: Memory) {
        self.sim.lock().hosts[self.h].memory = memory;
    }

    fn recall_place(&self, _: &UnitName) -> Option<KeptPlace> {
        self.sim.lock().hosts[self.h].place.clone()
    }

    fn keep_place(&self, _: &UnitName, place: KeptPlace) {
        self.sim.lock().hosts[self.h].place = Some(place);
    }

    fn has_kept_place(&self, _: &UnitName) -> Result<bool, String> {
        Ok(true)
    }

    fn recall_outside(&self, _: &UnitName) -> SeenOutside {
        SeenOutside::default()
    }

    fn keep_outside(&self, _: &UnitName, _: &SeenOutside) {}

    fn fence(&self, _: OnStopFailure) -> std::io::Result<()> {
        let (h, mut world) = (self.h, self.sim.lock());
        world.power_off(h);
        world.after(REBOOT, move |world| world.power_on(h));
        drop(world);
        Ok(())
    }
}

/// A timer on tokio's clock, from which the simulated CLOCK_BOOTTIME is computed.
struct VirtualTimer {
    machine: VirtualMachine,
    sleep: Mutex<Option<Pin<Box<Sleep>>>>,
}

impl Timer for VirtualTimer {
    fn set(&self, boot: Duration, _: Duration) -> std::io::Result<()> {
        let world = self.machine.sim.lock();
        let clocks = &world.hosts[self.machine.h].clocks;
        let never = Duration::from_secs(1_000_000_000);
        let at = clocks.real_when_passed(world.now(), Time { boot, raw: never });
        let sleep = at.map(|at| Box::pin(sleep_until(world.instant(at))));
        *self.sleep.lock().unwrap_or_else(PoisonError::into_inner) = sleep;
        Ok(())
    }

    fn poll_fired(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.sleep.get_mut().unwrap_or_else(PoisonError::into_inner) {
            Some(sleep) => sleep.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

impl World {
    pub fn start_daemon(&mut self, h: usize) {
        if !self.hosts[h].runs() || self.hosts[h].process.is_some() {
            return;
        }
        let gate = Arc::new(Gate::default());
        let again = Arc::new(Notify::new());
        let process = Process {
            gate: Arc::clone(&gate),
            orders: None,
            status: None,
            again: Arc::clone(&again),
            paused: false,
        };
        self.hosts[h].process = Some(process);
        let machine = VirtualMachine {
            sim: self.sim(),
            h,
            gate,
        };
        machine.spawn(Box::pin(run(machine.clone(), again)));
    }

    pub fn kill_daemon(&mut self, h: usize) {
        if let Some(process) = self.hosts[h].process.take() {
            self.note(Some(h), "putexd is gone");
            process.gate.kill();
        }
    }

    /// Whether there is a daemon that has its service loaded and is not paused.
    pub fn daemon_enforces(&self, h: usize) -> bool {
        self.hosts[h]
            .process
            .as_ref()
            .is_some_and(|process| process.status.is_some() && !process.paused)
    }

    pub fn pause_daemon(&mut self, h: usize, paused: bool) {
        if let Some(process) = &mut self.hosts[h].process {
            process.paused = paused;
        }
        self.hold_daemon(h);
    }

    /// Pauses the daemon if it is to be paused or its host is frozen, else resumes it.
    pub fn hold_daemon(&mut self, h: usize) {
        let frozen = self.hosts[h].frozen;
        if let Some(process) = &self.hosts[h].process {
            process.gate.hold(frozen || process.paused);
        }
    }

    pub fn order(&mut self, h: usize, order: ServiceOrder) {
        if let Some(orders) = self.hosts[h]
            .process
            .as_ref()
            .and_then(|process| process.orders.as_ref())
        {
            orders.give(order);
        }
    }

    pub fn take_up(&mut self, h: usize) {
        self.hosts[h].retired = false;
        if let Some(process) = &self.hosts[h].process {
            process.again.notify_one();
        }
    }
}

/// Does the supervisor's work for one service.
async fn run(machine: VirtualMachine, again: Arc<Notify>) {
    let (sim, h) = (machine.sim.clone(), machine.h);
    let mut store: Arc<dyn Store> = Arc::new(FarStore {
        sim: sim.clone(),
        h,
    });
    if sim.lock().has(Word::Sealed) {
        store = Arc::new(Layered::new(
            store,
            Sealer::new(&[b'k'; 32], None).expect("a key"),
        ));
    }
    let named_as = sim.lock().hosts[h].scene.named_as.unwrap_or(h);
    let limit = sim.lock().settings(h).timings.renew_interval;
    let dial = sim.clone();
    let (guard, connection) = GuardClient::over(limit, move || connect(dial.clone(), h));
    machine.spawn(Box::pin(connection));
    let hints = Hints::default();
    machine.spawn(Box::pin(
        hints.clone().run(Arc::clone(&store), guard.link()),
    ));
    let host = Host {
        node: NodeId::new(&host_name(named_as)).expect("a node's name"),
        machine_id: MachineId(1 + h as u128),
        notes: Arc::clone(&store),
        history: histories().0,
        store,
        store_address: StoreAddress {
            what: "memory".to_owned(),
            servers: vec!["here".to_owned()],
        },
        cluster: None,
        systemd: Arc::new(Pid1 {
            sim: sim.clone(),
            h,
        }),
        hints,
        machine: Arc::new(machine),
        cgroup_owners: CgroupOwners::default(),
        fencings: Fencings::default(),
        drain: Drain::default(),
        alarms: Alarms::default(),
        guard: guard.clone(),
        watchdog: None,
        metrics: putexd::metrics::Metrics::default(),
        http: putexd::http::Http::over((), |_| async {
            Err(std::io::Error::other("a simulated host has none"))
        }),
    };
    loop {
        while sim.lock().hosts[h].retired {
            again.notified().await;
        }
        let kept = kept(&guard).await;
        let settings = sim.lock().settings(h);
        let changed = Arc::new(Notify::new());
        let handle = service::spawn(&host, Arc::new(settings), kept.as_ref(), None, changed)
            .expect("a service is spawned");
        {
            let mut world = sim.lock();
            let process = world.hosts[h].process.as_mut().expect("this process");
            (process.orders, process.status) =
                (Some(handle.orders.clone()), Some(handle.status.clone()));
        }
        // A panic is reported where it happens.
        let _ = handle.task.await;
        if handle.status.borrow().state != Some(State::Retired) {
            sim.lock().fail(Failure::Defect(format!(
                "the election of h{} has ended by itself",
                h + 1
            )));
            return;
        }
    }
}

/// The lease that the guard remembers; waits until the guard answers.
async fn kept(guard: &GuardClient) -> Option<ListedLease> {
    let mut link = guard.link();
    loop {
        let _ = link.wait_for(|is_up| *is_up).await;
        match guard.list().await {
            Ok(leases) => return leases.into_iter().next(),
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}
