//! The daemon as a whole: start, reload, stop; what systemd is told of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::disk;
use super::grounds::Grounds;
use super::machine::ThisMachine;
use super::notify;
use super::service::{self, Handle, Host, Kept, Order};
use crate::command_line::exit;
use crate::config::{self, Loaded, ServiceSettings, Settings, Severity};
use crate::dbus::{self, Ask, ServiceStatus};
use crate::election::State;
use crate::guard::client::{GuardClient, Link as GuardLink};
use crate::guard::frame::{ListedLease, SOCKET};
use crate::host::identity;
use crate::journal;
use crate::store::{self, Link as StoreLink, Store};
use crate::systemd::{JobType, Systemd};
use crate::types::store::StoreSettings;
use crate::types::{ServiceName, UnitName};

const STATE_DIRECTORY: &str = "/var/lib/putex";
/// The daemon's own unit, about whose job PID 1 is asked.
const OWN_UNIT: &str = "putexd.service";
/// Where R says nothing because there is no service.
const IDLE_LIMIT: Duration = Duration::from_secs(1);
/// A D-Bus call on a busy host takes a while; less than this would mistake load for death.
const BUS_LIMIT_MIN: Duration = Duration::from_millis(500);
/// Clients that wait for an answer; more of them wait for their turn.
const ASKS_LIMIT: usize = 16;
/// Progress is compared this often where systemd asks for no watchdog, so that STATUS= is fresh.
const TICK: Duration = Duration::from_secs(1);
/// A stop that is still under way asks systemd for this much more time, every [`TICK`].
const STOP_EXTENSION: Duration = Duration::from_secs(10);
/// A daemon-reload waits for every generator.
const DAEMON_RELOAD_LIMIT: Duration = Duration::from_secs(30);

/// Runs until a signal ends it.
pub(super) async fn run(root: &Path) -> ExitCode {
    let signals = Signals::new();
    let mut signals = match signals {
        Ok(signals) => signals,
        Err(error) => {
            tracing::error!("failed to listen for signals: {error}");
            return ExitCode::from(exit::OS);
        }
    };
    let Some(settings) = load(root).settings else { return ExitCode::from(exit::CONFIGURATION) };
    let mut supervisor = tokio::select! {
        supervisor = Supervisor::start(root, settings) => match supervisor {
            Ok(supervisor) => supervisor,
            Err(error) => {
                tracing::error!("{error}");
                return ExitCode::from(exit::OS);
            }
        },
        // Nothing was begun. A unit that a former putexd left running ends with its lease, by the guard.
        () = signals.end() => return ExitCode::SUCCESS,
    };
    supervisor.serve(&mut signals).await
}

/// Reads the configuration and tells what is wrong with it.
fn load(root: &Path) -> Loaded {
    let loaded = config::load(root);
    for diagnostic in &loaded.diagnostics {
        match diagnostic.severity {
            Severity::Error => {
                let reason = diagnostic.to_string();
                journal::alarm(journal::Alarm::ConfigurationBroken, &journal::Subject::default(), &reason);
            }
            Severity::Warning => tracing::warn!("{diagnostic}"),
        }
    }
    loaded
}

struct Signals {
    term: Signal,
    int: Signal,
    hup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hup: signal(SignalKind::hangup())?,
        })
    }

    /// Returns at SIGTERM or SIGINT.
    async fn end(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}

/// What a SIGTERM is to do with the units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Stop them and release the locks.
    Release,
    /// Leave them running for the next putexd, which adopts them.
    Leave,
}

/// A service on its way out.
struct Retiring {
    handle: Handle,
    /// What takes its place.
    successor: Option<ServiceSettings>,
    give_up_at: Instant,
}

struct Supervisor {
    root: PathBuf,
    host: Host,
    systemd: Systemd,
    store_settings: StoreSettings,
    services: BTreeMap<ServiceName, Handle>,
    retiring: Vec<Retiring>,
    /// Services that begin as soon as the guard has said what it remembers of them, and nothing that retires has their units
    /// or their lock: a service of the same name may have left while the guard was away, and without its lease nothing could
    /// ever be armed for the name again.
    coming: Vec<ServiceSettings>,
    /// Rings when a service's status changed.
    changed: Arc<Notify>,
    shown: String,
    /// What clients ask over D-Bus.
    asks: mpsc::Receiver<Ask>,
}

impl Supervisor {
    /// Reaches bus and guard, however long that takes, and starts every election.
    async fn start(root: &Path, settings: Settings) -> Result<Self, String> {
        let machine_id = identity::machine_id().map_err(|error| format!("failed to read the machine id: {error}"))?;
        let shortest = |span: fn(&ServiceSettings) -> Duration| settings.services.iter().map(span).min();
        let renew_interval = shortest(|service| service.timings.renew_interval).unwrap_or(IDLE_LIMIT);
        let call_limit = shortest(|service| service.timings.call_limit()).unwrap_or(IDLE_LIMIT);
        notify::status("waiting for the system bus");
        let systemd = Systemd::connect(renew_interval.max(BUS_LIMIT_MIN));
        systemd.connected(true).await;
        notify::status("waiting for the guard");
        let guard = GuardClient::new(Path::new(SOCKET), renew_interval);
        let leases = list_leases(&guard).await;
        let store: Arc<dyn Store> =
            store::open(&settings.store, call_limit).map_err(|error| format!("failed to open the store: {error}"))?;
        let hints = super::hints::Hints::default();
        tokio::spawn(hints.clone().run(Arc::clone(&store)));
        let host = Host {
            node: settings.node.clone(),
            machine_id,
            store,
            store_address: settings.store.address(),
            cluster: settings.cluster.clone(),
            guard,
            systemd: Arc::new(systemd.clone()),
            hints,
            machine: Arc::new(ThisMachine { state_directory: PathBuf::from(STATE_DIRECTORY) }),
            grounds: Grounds::default(),
            watchdog: settings.watchdog.clone(),
        };
        let (ask, asks) = mpsc::channel(ASKS_LIMIT);
        tokio::spawn(dbus::serve(ask));
        tokio::spawn(tell_of_store(host.store.link()));
        let mut supervisor = Self {
            root: root.to_owned(),
            host,
            systemd,
            store_settings: settings.store,
            services: BTreeMap::new(),
            retiring: Vec::new(),
            coming: Vec::new(),
            changed: Arc::new(Notify::new()),
            shown: String::new(),
            asks,
        };
        supervisor.gate(&settings.services).await;
        supervisor.coming = settings.services;
        supervisor.retire_unclaimed(&leases);
        supervisor.begin_with(&leases);
        Ok(supervisor)
    }

    async fn serve(&mut self, signals: &mut Signals) -> ExitCode {
        notify::ready();
        tracing::info!("putexd {} runs {} as {}", env!("CARGO_PKG_VERSION"), self.count(), self.host.node);
        let beat = notify::watchdog_interval().map_or(TICK, |interval| (interval / 3).min(TICK));
        let mut tick = interval(beat);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watchdog = Watchdog::default();
        loop {
            self.reap();
            self.begin().await;
            self.show();
            tokio::select! {
                () = self.changed.notified() => {}
                _ = tick.tick() => {
                    if let Some(name) = self.ended_service() {
                        tracing::error!("{name}: its election has ended by itself, which is a defect");
                        return ExitCode::from(exit::DEFECT);
                    }
                    watchdog.beat(&self.services);
                }
                Some(ask) = self.asks.recv() => self.answer(ask),
                _ = signals.hup.recv() => self.reload().await,
                _ = signals.term.recv() => return self.end().await,
                _ = signals.int.recv() => return self.release().await,
            }
        }
    }

    fn count(&self) -> String {
        match self.services.len() {
            1 => "1 service".to_owned(),
            count => format!("{count} services"),
        }
    }

    fn add(&mut self, settings: ServiceSettings, kept: Option<Kept>) {
        let name = settings.name.clone();
        match service::spawn(&self.host, settings, kept, Arc::clone(&self.changed)) {
            Ok(handle) => {
                self.services.insert(name, handle);
            }
            Err(error) => tracing::error!("{name}: failed to start its election: {error}"),
        }
    }

    /// Has PID 1 run the generators where a unit is not yet bound to its lease. One reload for all of them.
    async fn gate(&self, services: &[ServiceSettings]) {
        if self.are_gated(services).await {
            return;
        }
        if let Err(error) = self.systemd.daemon_reload(DAEMON_RELOAD_LIMIT).await {
            tracing::error!("failed to have the units bound to their leases: failed to {error}");
        }
    }

    /// One that PID 1 tells nothing of counts as free: a reload too many does no harm.
    async fn are_gated(&self, services: &[ServiceSettings]) -> bool {
        for service in services {
            for unit in service.units() {
                if self.systemd.is_gated(&service.name, unit).await != Ok(true) {
                    return false;
                }
            }
        }
        true
    }

    /// A task that is over without having been asked to end.
    fn ended_service(&self) -> Option<&ServiceName> {
        self.services.iter().find(|(_, handle)| handle.task.is_finished()).map(|(name, _)| name)
    }

    /// A client that does not wait for its answer gets none.
    fn answer(&self, ask: Ask) {
        match ask {
            Ask::List(answer) => {
                let _ = answer.send(self.services.values().map(status_of).collect());
            }
            Ask::StepDown { service, reason, answer } => {
                let told = match self.services.get(&service) {
                    None => Err(format!("no service is called {service}")),
                    Some(handle) => handle
                        .orders
                        .try_send(Order::StepDown(reason))
                        .map_err(|_| format!("the election of {service} does not answer")),
                };
                let _ = answer.send(told);
            }
            Ask::Adopt { service, answer } => {
                let refused = match self.services.get(&service) {
                    None => Some((answer, format!("no service is called {service}"))),
                    Some(handle) => match handle.orders.try_send(Order::Adopt(answer)) {
                        Err(TrySendError::Full(Order::Adopt(answer)) | TrySendError::Closed(Order::Adopt(answer))) => {
                            Some((answer, format!("the election of {service} does not answer")))
                        }
                        Ok(()) | Err(TrySendError::Full(_) | TrySendError::Closed(_)) => None,
                    },
                };
                if let Some((answer, reason)) = refused {
                    let _ = answer.send(Err(reason));
                }
            }
        }
    }

    fn show(&mut self) {
        let mut parts = vec![self.count()];
        for (name, handle) in &self.services {
            let status = handle.status.borrow();
            let holder = match (status.state, status.holder.as_str()) {
                (State::Standby, "") => " (nobody holds it)".to_owned(),
                (State::Standby, holder) => format!(" ({holder} holds it)"),
                _ => String::new(),
            };
            parts.push(format!("{name} {}{holder}", status.state));
        }
        let shown = parts.join(", ");
        if shown != self.shown {
            notify::status(&shown);
            self.shown = shown;
        }
    }
}

/// Reload.
impl Supervisor {
    /// Compares, and touches only services that changed. A file that is broken now leaves its service as it was.
    async fn reload(&mut self) {
        notify::reloading();
        let loaded = load(&self.root);
        if let Some(settings) = loaded.settings {
            self.apply(settings, &loaded.broken).await;
        }
        notify::ready();
        self.shown.clear();
    }

    async fn apply(&mut self, settings: Settings, broken: &[ServiceName]) {
        if settings.node != self.host.node
            || settings.store != self.store_settings
            || settings.cluster != self.host.cluster
            || settings.watchdog != self.host.watchdog
        {
            tracing::warn!(
                "putexd.toml: a new node name, store, cluster or watchdog takes effect at \"systemctl restart putexd\""
            );
        }
        self.gate(&settings.services).await;
        let mut told = Vec::new();
        for retiring in &mut self.retiring {
            // A successor that is still wanted is named again below.
            retiring.successor = None;
        }
        self.coming.retain(|service| broken.contains(&service.name));
        let gone: Vec<ServiceName> = self
            .services
            .keys()
            .filter(|name| !broken.contains(name) && !settings.services.iter().any(|service| service.name == **name))
            .cloned()
            .collect();
        for name in gone {
            told.push(format!("{name} removed"));
            self.retire(&name, "its file was removed", None);
        }
        for service in settings.services {
            let name = service.name.clone();
            let Some(handle) = self.services.get_mut(&name) else {
                told.push(format!("{name} added"));
                match self.retiring.iter_mut().find(|retiring| retiring.handle.settings.name == name) {
                    Some(retiring) => retiring.successor = Some(service),
                    None => self.coming.push(service),
                }
                continue;
            };
            if handle.settings == service {
                // A full channel would mean a loop that stands still, which the watchdog ends.
                let _ = handle.orders.try_send(Order::Reconsider);
                continue;
            }
            told.push(format!("{name} changed"));
            if handle.settings.has_same_units(&service) && handle.settings.key == service.key {
                handle.settings = service.clone();
                // A full channel would mean a loop that stands still, which the watchdog ends.
                let _ = handle.orders.try_send(Order::Reconfigure(Box::new(service)));
            } else {
                self.retire(&name, "its units or its key were changed", Some(service));
            }
        }
        match self.host.guard.list().await {
            Ok(leases) => self.retire_unclaimed(&leases),
            Err(error) => {
                tracing::warn!("failed to ask the guard for leases that no service claims: {error}, ignoring");
            }
        }
        let told = if told.is_empty() { "nothing changed".to_owned() } else { told.join(", ") };
        journal::alarm(journal::Alarm::ConfigurationReloaded, &journal::Subject::default(), &told);
    }

    /// Has a service stop its unit and release its lock. `successor` takes its place after that.
    fn retire(&mut self, name: &ServiceName, reason: &str, successor: Option<ServiceSettings>) {
        if let Some(handle) = self.services.remove(name) {
            self.retire_handle(handle, reason, successor);
        }
    }

    fn retire_handle(&mut self, handle: Handle, reason: &str, successor: Option<ServiceSettings>) {
        // A full channel would mean a loop that stands still, which the watchdog ends.
        let _ = handle.orders.try_send(Order::Retire(reason.to_owned()));
        let give_up_at = Instant::now() + handle.settings.stop_limit + STOP_EXTENSION;
        self.retiring.push(Retiring { handle, successor, give_up_at });
    }

    /// Has the successors of services that have ended begin; leaves to the guard what does not end.
    fn reap(&mut self) {
        let now = Instant::now();
        let (over, going_on): (Vec<_>, Vec<_>) = std::mem::take(&mut self.retiring)
            .into_iter()
            .partition(|retiring| retiring.handle.task.is_finished() || now >= retiring.give_up_at);
        self.retiring = going_on;
        for retiring in over {
            let name = &retiring.handle.settings.name;
            if !retiring.handle.task.is_finished() {
                tracing::error!("{name}: it has not stopped in time; its lease is left to the guard");
                retiring.handle.task.abort();
            }
            self.coming.extend(retiring.successor);
        }
    }
}

/// The beginning of services after that of the daemon.
impl Supervisor {
    /// Tried again about each second while the guard does not answer.
    async fn begin(&mut self) {
        if self.coming.is_empty() {
            return;
        }
        match self.host.guard.list().await {
            Ok(leases) => self.begin_with(&leases),
            Err(error) => tracing::debug!("failed to ask the guard for its leases: {error}, trying again"),
        }
    }

    fn begin_with(&mut self, leases: &[ListedLease]) {
        for service in std::mem::take(&mut self.coming) {
            if self.retiring.iter().any(|retiring| share(&retiring.handle.settings, &service)) {
                self.coming.push(service);
                continue;
            }
            let kept = leases.iter().find(|listed| listed.lease.service == service.name).map(Kept::from);
            self.add(service, kept);
        }
    }

    /// Takes leases that no service claims through stop, proof and release. The guard would enforce them for ever, and kill
    /// whatever is started in their control groups.
    fn retire_unclaimed(&mut self, leases: &[ListedLease]) {
        for listed in leases {
            let name = &listed.lease.service;
            let retires = |retiring: &Retiring| retiring.handle.settings.name == *name;
            if self.services.contains_key(name)
                || self.coming.iter().any(|service| service.name == *name)
                || self.retiring.iter().any(retires)
            {
                continue;
            }
            let last_held = disk::last_held(Path::new(STATE_DIRECTORY), name)
                .inspect_err(|error| tracing::warn!("{name}: the lock that it held is not known: {error}"))
                .ok();
            let lock = match &last_held {
                Some((key, _)) => format!("the lock {key} is released"),
                None => "its lock is left to age".to_owned(),
            };
            let Some(settings) = service::without_file(&listed.lease, last_held) else {
                tracing::error!("{name}: the guard has a lease of it that names no unit");
                continue;
            };
            let units: Vec<&str> = settings.units().map(UnitName::as_str).collect();
            tracing::info!(
                OBJECT_SYSTEMD_UNIT = settings.unit.as_str(),
                "{name}: no usable file defines this service, and the guard still has its lease: {} is stopped here, and {lock}",
                units.join(" and "),
            );
            match service::spawn(&self.host, settings, Some(Kept::from(listed)), Arc::clone(&self.changed)) {
                Ok(handle) => self.retire_handle(handle, "no usable file defines this service", None),
                Err(error) => tracing::error!("{name}: failed to let its lease go: {error}"),
            }
        }
    }
}

/// The end.
impl Supervisor {
    /// SIGTERM: PID 1 knows whether the daemon is to come back.
    async fn end(&mut self) -> ExitCode {
        match self.ending().await {
            Ending::Release => self.release().await,
            Ending::Leave => {
                notify::stopping("restarting; the units run on");
                tracing::info!("putexd ends and leaves the units running for the next one");
                ExitCode::SUCCESS
            }
        }
    }

    async fn ending(&self) -> Ending {
        // The bus may be gone already when the host goes down; the private socket is not.
        let private = Systemd::private(BUS_LIMIT_MIN);
        let Ok(unit) = UnitName::new(OWN_UNIT) else { return Ending::Release };
        for systemd in [&self.systemd, &private] {
            match systemd.job_for_unit(&unit).await {
                Ok(Some(JobType::Restart | JobType::Start) | None) => return Ending::Leave,
                Ok(Some(JobType::Stop | JobType::Other(_))) => return Ending::Release,
                Err(error) => tracing::debug!("failed to {error}"),
            }
        }
        // Nobody knows: a unit that is stopped for nothing is better than one that is left alone.
        Ending::Release
    }

    /// Stops every unit and releases every lock, all at once.
    async fn release(&mut self) -> ExitCode {
        notify::stopping("stopping the units and releasing their locks");
        let mut deadline = Instant::now();
        for (name, handle) in &self.services {
            deadline = deadline.max(Instant::now() + handle.settings.stop_limit + STOP_EXTENSION);
            if handle.orders.send(Order::Retire("putexd is stopped".to_owned())).await.is_err() {
                tracing::error!("{name}: its election does not answer");
            }
        }
        let leaving = self.retiring.iter_mut().map(|retiring| &mut retiring.handle);
        let tasks = self.services.values_mut().chain(leaving).map(|handle| &mut handle.task);
        let mut ended = futures_util::future::join_all(tasks);
        while timeout(TICK, &mut ended).await.is_err() {
            if Instant::now() >= deadline {
                tracing::error!("not every unit has stopped; their leases are left to the guard");
                return ExitCode::from(exit::DEFECT);
            }
            notify::watchdog();
            notify::extend_timeout(STOP_EXTENSION);
        }
        tracing::info!("putexd ends; every lock is released");
        ExitCode::SUCCESS
    }
}

/// Whether every service's loop makes progress.
#[derive(Debug, Default)]
struct Watchdog {
    seen: BTreeMap<ServiceName, (u64, Option<Instant>)>,
}

impl Watchdog {
    /// A loop beats every second; one that has not for this long stands still.
    const PATIENCE: Duration = Duration::from_secs(5);

    fn beat(&mut self, services: &BTreeMap<ServiceName, Handle>) {
        self.seen.retain(|name, _| services.contains_key(name));
        let now = Instant::now();
        let mut alive = true;
        for (name, handle) in services {
            let progress = handle.progress.load(Ordering::Acquire);
            let (last, since) = self.seen.entry(name.clone()).or_insert((progress, None));
            if *last != progress || since.is_none() {
                (*last, *since) = (progress, Some(now));
            }
            if since.is_some_and(|since| now - since > Self::PATIENCE) {
                tracing::error!("{name}: its election stands still; systemd will restart putexd");
                alive = false;
            }
        }
        if alive {
            notify::watchdog();
        }
    }
}

/// Whether one of them must have ended before the other begins.
fn share(one: &ServiceSettings, other: &ServiceSettings) -> bool {
    one.key == other.key || one.units().any(|unit| other.units().any(|same| same == unit))
}

fn status_of(handle: &Handle) -> ServiceStatus {
    let status = handle.status.borrow();
    ServiceStatus {
        service: handle.settings.name.to_string(),
        unit: handle.settings.unit.to_string(),
        key: handle.settings.key.to_string(),
        state: status.state.to_string(),
        holder: status.holder.clone(),
        revision: status.revision.0,
        token: status.term.0,
        hindrance: status.hindrance.clone().unwrap_or_default(),
        remarks: status.remarks.clone(),
    }
}

/// Writes to the journal when the store is lost and found, once for all services.
async fn tell_of_store(mut link: watch::Receiver<StoreLink>) {
    let mut lost = false;
    while link.changed().await.is_ok() {
        let down = match &*link.borrow_and_update() {
            StoreLink::Up => None,
            StoreLink::Down(reason) => Some(reason.clone()),
        };
        let alarm = match &down {
            Some(_) if lost => continue,
            Some(_) => journal::Alarm::StoreLost,
            None => journal::Alarm::StoreFound,
        };
        lost = down.is_some();
        let reason = down.unwrap_or_else(|| "it answers".to_owned());
        journal::alarm(alarm, &journal::Subject::default(), &reason);
    }
}

/// What the guard remembers, however long it takes to answer: without it no running unit may be judged.
async fn list_leases(guard: &GuardClient) -> Vec<ListedLease> {
    let mut link = guard.link();
    loop {
        let _ = link.wait_for(|link| *link == GuardLink::Up).await;
        match guard.list().await {
            Ok(leases) => return leases,
            Err(error) => {
                tracing::warn!("failed to ask the guard for its leases: {error}, trying again");
                sleep(IDLE_LIMIT / 10).await;
            }
        }
    }
}
