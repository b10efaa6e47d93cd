//! The daemon as a whole: its start, reload and stop, and what systemd is told of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use super::bonds::{Bonds, Bound};
use super::broken::Broken;
use super::disk;
use super::grounds::Grounds;
use super::machine::ThisMachine;
use super::notify;
use super::service::{self, Answer, Handle, Host, InheritedLease, Order, Status};
use super::silence::{Heard, Silences};
use super::texts::KeptTexts;
use super::tidings::Tidings;
use crate::command_line::exit;
use crate::config::{self, Loaded, ServiceSettings, Settings, Severity, Texts};
use crate::dbus::{self, Ask, ServiceStatus, StoreStatus};
use crate::election::{Hindrance, State, Waiting, rounded};
use crate::guard_client::frame::{ListedLease, SOCKET};
use crate::guard_client::{GuardClient, Link as GuardLink};
use crate::host::{clock, identity};
use crate::journal;
use crate::store::{self, Store, sealed};
use crate::systemd::bond::{KEPT_DIR, is_generated};
use crate::systemd::gate::GENERATED_DIR;
use crate::systemd::{Changes, JobType, Systemd};
use crate::types::store::StoreSettings;
use crate::types::{DAEMON_UNIT, STATE_DIR, ServiceName, Time, UnitName, kept};

/// Used in place of R where there is no service.
const IDLE_LIMIT: Duration = Duration::from_secs(1);
/// Shortest limit of a D-Bus call. A call on a busy host takes a while, and a shorter limit would mistake load for death.
const BUS_LIMIT_MIN: Duration = Duration::from_millis(500);
/// Limit of the D-Bus clients that wait for an answer. Further clients wait for their turn.
const ASKS_LIMIT: usize = 16;
/// Shortest time between two looks at all services for STATUS=, however many of them change.
const SHOWN_AGAIN: Duration = Duration::from_millis(100);
/// Time between two comparisons of the services' progress. It is shorter where systemd's watchdog needs that. Where systemd
/// asks for no watchdog, the comparisons keep STATUS= fresh.
const TICK: Duration = Duration::from_secs(1);
/// Every [`TICK`], a stop that is still under way asks systemd for this much more time.
const STOP_EXTENSION: Duration = Duration::from_secs(10);
/// A host that is late by so much was not busy but stood still.
const STANDSTILL_MIN: Duration = Duration::from_secs(1);
/// How long a start with a broken `putexd.toml` waits for the guard, because putexd ends unless the guard has a lease to go
/// on with. It is longer than a restart of the guard takes.
const LEASES_LIMIT: Duration = Duration::from_secs(3);
/// Limit of a daemon-reload, which waits for every generator.
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
    let kept = KeptTexts::read(Path::new(kept::DIR));
    let mut loaded = load(root);
    if !loaded.broken.is_empty() || loaded.settings.is_none() {
        let leased = tokio::select! {
            leased = leased(&loaded, &kept) => leased,
            () = signals.end() => return ExitCode::SUCCESS,
        };
        loaded = config::load_keeping(root, kept.texts(), &leased);
    }
    let broken = Broken::new(&loaded);
    let Some(settings) = loaded.settings else { return ExitCode::from(exit::CONFIGURATION) };
    let mut supervisor = tokio::select! {
        supervisor = Supervisor::start(root, settings, broken, kept) => match supervisor {
            Ok(supervisor) => supervisor,
            Err(error) => {
                tracing::error!("{error}");
                return ExitCode::from(exit::OS);
            }
        },
        // No service was begun. A unit that a former putexd left running ends with its lease, by the guard.
        () = signals.end() => return ExitCode::SUCCESS,
    };
    supervisor.keep(loaded.texts);
    let code = supervisor.serve(&mut signals).await;
    supervisor.host.tidings.write();
    code
}

/// The services of which the guard has a lease. Empty if the guard need not be asked or does not answer in time.
async fn leased(loaded: &Loaded, kept: &KeptTexts) -> BTreeSet<ServiceName> {
    let is_lost = loaded.settings.is_none();
    if kept.texts().services.is_empty() || (is_lost && kept.texts().host.is_none()) {
        return BTreeSet::new();
    }
    notify::status("waiting for the guard");
    let guard = GuardClient::new(Path::new(SOCKET), IDLE_LIMIT);
    let listed = if is_lost {
        timeout(LEASES_LIMIT, list_leases(&guard)).await.unwrap_or_default()
    } else {
        list_leases(&guard).await
    };
    // The guard ends lapsed leases itself, so they are no reason to go on without a good putexd.toml.
    listed.into_iter().filter(|listed| !(is_lost && listed.lapsed)).map(|listed| listed.lease.service).collect()
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

/// Returns when a service's status has changed, but not before `due`.
async fn changed_and_due(changed: &Notify, due: Instant) {
    changed.notified().await;
    sleep_until(due).await;
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

/// What a SIGTERM means for the units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Stop them and release the locks.
    Release,
    /// Leave them running for the next putexd, which adopts them.
    Leave,
}

/// Why a service retires.
#[derive(Debug, Clone, Copy)]
struct Why {
    reason: &'static str,
    /// What has to happen before the service is taken up on this host again. It fits behind the word "before".
    again: &'static str,
}

const STOPPED: Why =
    Why { reason: "putexd is stopped", again: "\"systemctl start putexd\", or a boot that starts putexd" };
const REMOVED: Why =
    Why { reason: "its file was removed", again: "its file is there again and \"systemctl reload putexd\" was run" };
const CHANGED: Why = Why {
    reason: "its units or its key were changed",
    again: "the service is taken up with them, which follows by itself",
};
const UNCLAIMED: Why = Why {
    reason: "no usable file defines this service",
    again: "a file without mistakes defines it and \"systemctl reload putexd\" was run",
};

impl Why {
    fn order(self) -> Order {
        Order::Retire { reason: self.reason.to_owned(), again: self.again.to_owned() }
    }
}

/// A service that stops its units and releases its lock.
struct Retiring {
    handle: Handle,
    /// The settings of the service that takes its place.
    successor: Option<ServiceSettings>,
    give_up_at: Instant,
}

struct Supervisor {
    root: PathBuf,
    host: Host,
    systemd: Systemd,
    /// Yields each time that PID 1 has read its files anew.
    reloads: Changes,
    store_settings: StoreSettings,
    seal_key: Option<PathBuf>,
    silences: Silences,
    services: BTreeMap<ServiceName, Handle>,
    retiring: Vec<Retiring>,
    /// Services that begin as soon as the guard has said what it remembers of them, and no retiring service has their units
    /// or their lock. A former service of the same name may have left its lease behind while the guard was away. A service
    /// that began without knowing that lease could never have the guard arm another.
    coming: Vec<ServiceSettings>,
    /// Rings when a service's status changed.
    changed: Arc<Notify>,
    shown: String,
    /// The requests of D-Bus clients.
    asks: mpsc::Receiver<Ask>,
    /// Which files are broken.
    broken: Broken,
    texts: KeptTexts,
    bonds: Bonds,
    /// Whether some drop-ins may have to be made again or removed.
    bonds_are_due: bool,
}

impl Supervisor {
    /// Waits for the bus and the guard, however long that takes, and starts every election.
    async fn start(root: &Path, settings: Settings, broken: Broken, texts: KeptTexts) -> Result<Self, String> {
        let machine_id = identity::machine_id().map_err(|error| format!("failed to read the machine id: {error}"))?;
        let shortest = |span: fn(&ServiceSettings) -> Duration| settings.services.iter().map(span).min();
        let renew_interval = shortest(|service| service.timings.renew_interval).unwrap_or(IDLE_LIMIT);
        let call_limit = shortest(|service| service.timings.call_limit()).unwrap_or(IDLE_LIMIT);
        notify::status("waiting for the system bus");
        let systemd = Systemd::connect(renew_interval.max(BUS_LIMIT_MIN));
        systemd.connected().await;
        notify::status("waiting for the guard");
        let guard = GuardClient::new(Path::new(SOCKET), renew_interval);
        let leases = list_leases(&guard).await;
        let store =
            store::open(&settings.store, call_limit).map_err(|error| format!("failed to open the store: {error}"))?;
        let store = sealed::as_configured(store, settings.seal_key.as_deref(), settings.cluster.as_ref())
            .map_err(|error| error.to_string())?;
        let tidings = Tidings::default();
        let silences = Silences::new(tidings.clone());
        let store: Arc<dyn Store> = Arc::new(Heard::new(store, silences.clone()));
        let hints = super::hints::Hints::default();
        tokio::spawn(hints.clone().run(Arc::clone(&store), guard.link()));
        let host = Host {
            node: settings.node.clone(),
            machine_id,
            store,
            store_address: settings.store.address(),
            cluster: settings.cluster.clone(),
            guard,
            systemd: Arc::new(systemd.clone()),
            hints,
            machine: Arc::new(ThisMachine::new(Path::new(STATE_DIR))),
            grounds: Grounds::default(),
            tidings,
            watchdog: settings.watchdog.clone(),
        };
        let (ask, asks) = mpsc::channel(ASKS_LIMIT);
        tokio::spawn(dbus::serve(ask));
        tokio::spawn(tell_of_thaws());
        let mut supervisor = Self {
            root: root.to_owned(),
            host,
            reloads: systemd.reloads(),
            systemd,
            store_settings: settings.store,
            seal_key: settings.seal_key,
            silences,
            services: BTreeMap::new(),
            retiring: Vec::new(),
            coming: Vec::new(),
            changed: Arc::new(Notify::new()),
            shown: String::new(),
            asks,
            broken,
            texts,
            bonds: Bonds::new(Path::new(KEPT_DIR)),
            bonds_are_due: true,
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
            let show_at = Instant::now() + SHOWN_AGAIN;
            tokio::select! {
                () = changed_and_due(&self.changed, show_at) => {}
                _ = tick.tick() => {
                    if let Some(name) = self.ended_service() {
                        tracing::error!("{name}: its election has ended by itself, which is a defect");
                        return ExitCode::from(exit::DEFECT);
                    }
                    watchdog.beat(&self.services);
                    self.tidy_bonds().await;
                }
                Some(()) = self.reloads.next() => {
                    // Whoever caused the daemon-reload may have removed drop-ins, as "systemctl revert" does.
                    self.bonds_are_due = true;
                    self.tidy_bonds().await;
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

    fn add(&mut self, settings: ServiceSettings, kept: Option<InheritedLease>) {
        let name = settings.name.clone();
        match service::spawn(&self.host, Arc::new(settings), kept, Arc::clone(&self.changed)) {
            Ok(handle) => {
                self.services.insert(name, handle);
            }
            Err(error) => tracing::error!("{name}: failed to start its election: {error}"),
        }
    }

    /// Has PID 1 run the generators if a unit of `services` is not yet bound to its lease, or is bound to a former one. One
    /// daemon-reload serves all units.
    async fn gate(&mut self, services: &[ServiceSettings]) {
        self.bonds_are_due = true;
        let running = self.services.values().map(|handle| &*handle.settings);
        let changed = self.bonds.keep(&bound(services, running), false).changed;
        if !self.are_kept_loaded(&changed).await && self.are_gated(services).await {
            return;
        }
        if let Err(error) = self.systemd.daemon_reload(DAEMON_RELOAD_LIMIT).await {
            tracing::error!("failed to have the units bound to their leases: {error}");
        }
    }

    /// Whether PID 1 has loaded a kept drop-in of one of these units. If PID 1 does not answer about a unit, its drop-in
    /// counts as loaded.
    async fn are_kept_loaded(&self, units: &[UnitName]) -> bool {
        for unit in units {
            if self.systemd.loaded_bonds(unit).await.map_or(true, |loaded| loaded.kept) {
                return true;
            }
        }
        false
    }

    /// Whether PID 1 has loaded what binds the units of `services` to their leases. A unit counts as not bound if PID 1
    /// does not answer about it, because a superfluous daemon-reload does no harm. PID 1 is not asked about what the
    /// generator has made. Whether all of that is in force is asked before a unit is admitted.
    async fn are_gated(&self, services: &[ServiceSettings]) -> bool {
        let wanted = bound(services, []);
        let directory = Path::new(GENERATED_DIR);
        let is_made = |unit: &UnitName| wanted.get(unit).is_some_and(|all| is_generated(directory, unit, all));
        let is_doubted = |service: &&ServiceSettings| !service.units().chain(&service.contains).all(is_made);
        for service in services.iter().filter(is_doubted) {
            for unit in service.units().chain(&service.contains) {
                if self.systemd.is_gated(&service.name, unit).await != Ok(true) {
                    return false;
                }
            }
        }
        true
    }

    /// Brings the kept drop-ins in line with the services that retire and the leases that the guard has let go, and makes
    /// again what somebody has removed. It costs nothing where there is nothing to do.
    ///
    /// Its own daemon-reload makes it look once more. That look finds no change, so no further daemon-reload follows.
    async fn tidy_bonds(&mut self) {
        if !self.bonds_are_due {
            return;
        }
        // It is tried again at the next tick.
        let Ok(leases) = self.host.guard.list().await else { return };
        let successors = self.retiring.iter().filter_map(|retiring| retiring.successor.as_ref());
        let wanted = self.services.values().map(|handle| &*handle.settings).chain(&self.coming).chain(successors);
        let mut all = bound([], wanted);
        let supervised = all.len();
        for Retiring { handle, .. } in &self.retiring {
            let settings = &handle.settings;
            bind(&mut all, settings.units().chain(&settings.contains), &settings.name);
        }
        for ListedLease { lease, .. } in &leases {
            bind(&mut all, lease.units.iter().chain(&lease.contains), &lease.service);
        }
        // The units that a broken file names are not known, so nothing is removed then.
        let replaced = self.bonds.keep(&all, self.broken.is_empty());
        self.bonds_are_due = self.bonds.have_failed() || all.len() > supervised;
        let mut is_stale = self.are_kept_loaded(&replaced.changed).await;
        for unit in &replaced.made {
            // A unit that PID 1 does not answer about may be bound to no lease.
            is_stale |= !self.systemd.loaded_bonds(unit).await.is_ok_and(|loaded| loaded.kept || loaded.generated);
        }
        for unit in &replaced.removed {
            // Where PID 1 still has the generator's drop-in loaded, there was no daemon-reload since the service's file was
            // removed, and the unit stays bound until the next one.
            let loaded = self.systemd.loaded_bonds(unit).await;
            is_stale |= loaded.is_ok_and(|loaded| loaded.kept && !loaded.generated);
        }
        if is_stale {
            let systemd = self.systemd.clone();
            tokio::spawn(async move {
                if let Err(error) = systemd.daemon_reload(DAEMON_RELOAD_LIMIT).await {
                    tracing::warn!(
                        "run \"systemctl daemon-reload\" to bind units to their leases and to set them free of former ones: \
                         {error}"
                    );
                }
            });
        }
    }

    /// A service whose task has ended without having been asked to.
    fn ended_service(&self) -> Option<&ServiceName> {
        self.services.iter().find(|(_, handle)| handle.task.is_finished()).map(|(name, _)| name)
    }

    /// Answers a D-Bus client, unless the client does not wait any more.
    fn answer(&self, ask: Ask) {
        match ask {
            Ask::List(answer) => {
                let _ = answer.send(self.statuses());
            }
            Ask::Store(answer) => {
                let _ = answer.send(self.store_status());
            }
            Ask::StepDown { service, reason, answer } => {
                self.order(&service, answer, |answer| Order::StepDown(reason, answer));
            }
            Ask::Adopt { service, answer } => self.order(&service, answer, Order::Adopt),
        }
    }

    /// Hands an order to a service, which answers the client. If that is not possible the client is told why.
    fn order(&self, service: &ServiceName, answer: Answer, order: impl FnOnce(Answer) -> Order) {
        let Some(handle) = self.services.get(service) else {
            let _ = answer.send(Err(format!("no service is called {service}")));
            return;
        };
        if let Err(Order::StepDown(_, answer) | Order::Adopt(answer)) = handle.orders.give(order(answer)) {
            let _ = answer.send(Err(format!("the election of {service} does not answer")));
        }
    }

    fn store_status(&self) -> StoreStatus {
        self.silences.status(self.store_settings.address().to_string())
    }

    /// The status of all services, and of those that do not run because their file is broken.
    fn statuses(&self) -> Vec<ServiceStatus> {
        let now = self.host.machine.now();
        let trouble = self.store_status().trouble();
        let of_service = |(name, handle): (_, &Handle)| {
            let bars = self.broken.bars(name).map(Hindrance::Reason);
            let bars = bars.is_some() && handle.status.borrow().hindrance == bars;
            let broken = self.broken.goes_on(name).filter(|_| !bars);
            status_of(&handle.settings, &handle.status.borrow(), now, broken, trouble.as_deref())
        };
        let mut all: Vec<ServiceStatus> = self.services.iter().map(of_service).collect();
        all.extend(self.broken.rows(|name| self.services.contains_key(name)));
        all.sort_by(|one, other| one.service.cmp(&other.service));
        all
    }

    fn show(&mut self) {
        let states = self.services.values().map(|handle| (handle.status.borrow().state, handle)).collect();
        let shown = notify::in_one_line(&self.count(), states, |handle: &&Handle| {
            let (name, told) = (&handle.settings.name, handle.status.borrow());
            let holder = match (told.state, told.holder.as_str()) {
                (State::Standby, "") => " (nobody holds it)".to_owned(),
                (State::Standby, holder) => match told.waiting {
                    Some(Waiting::OwnRecord { .. }) => " (nobody is known to hold it)".to_owned(),
                    Some(Waiting::Store { .. }) => " (the store does not answer)".to_owned(),
                    Some(Waiting::Holder { is_claim: true, .. }) => format!(" ({holder} has claimed it)"),
                    Some(_) | None => format!(" ({holder} holds it)"),
                },
                _ => String::new(),
            };
            format!("{name} {}{holder}", told.state)
        });
        if shown != self.shown {
            notify::status(&shown);
            self.shown = shown;
        }
    }
}

/// Reloads of the configuration.
impl Supervisor {
    /// Reads the configuration anew, and touches only the services that have changed. A service whose file is broken now
    /// goes on as it was.
    async fn reload(&mut self) {
        notify::reloading();
        let mut loaded = load(&self.root);
        if loaded.settings.is_some() && !loaded.broken.is_empty() {
            // A service that runs has the better right to its unit and its key, whatever its own file says now.
            let running = self.services.keys().cloned().collect();
            loaded = config::load_keeping(&self.root, self.texts.texts(), &running);
        }
        let mended = self.broken.update(&loaded);
        let mut told = Vec::new();
        if let Some(settings) = loaded.settings {
            told.extend(mended.in_words(|name| settings.services.iter().any(|service| service.name == *name)));
            self.keep(self.texts_in_force(loaded.texts, &settings));
            told.extend(self.apply(settings).await);
        }
        told.extend(self.broken.in_words(|name| self.services.contains_key(name)));
        let told = if told.is_empty() { "nothing changed".to_owned() } else { told.join("; ") };
        journal::alarm(journal::Alarm::ConfigurationReloaded, &journal::Subject::default(), &told);
        notify::ready();
        self.shown.clear();
    }

    fn keep(&mut self, texts: Texts) {
        self.texts.replace(texts);
    }

    /// The texts to keep after a reload. A service whose file is broken keeps its former text, and so do the host's own
    /// settings if only a restart can change them.
    fn texts_in_force(&self, mut texts: Texts, settings: &Settings) -> Texts {
        let former = self.texts.texts();
        for (name, made) in former.services.iter().filter(|(name, _)| self.broken.has(name)) {
            texts.services.entry(name.clone()).or_insert_with(|| made.clone());
        }
        if self.has_other_host(settings) {
            texts.host.clone_from(&former.host);
        }
        texts
    }

    /// Whether `putexd.toml` has settings that take effect only at a restart.
    fn has_other_host(&self, settings: &Settings) -> bool {
        settings.node != self.host.node
            || settings.store != self.store_settings
            || settings.seal_key != self.seal_key
            || settings.cluster != self.host.cluster
            || settings.watchdog != self.host.watchdog
    }

    /// Applies new settings. Returns what was done, in words.
    async fn apply(&mut self, settings: Settings) -> Vec<String> {
        if self.has_other_host(&settings) {
            tracing::warn!(
                "putexd.toml: a new node name, store, seal-key, cluster or watchdog takes effect at \"systemctl restart putexd\""
            );
        }
        self.gate(&settings.services).await;
        let mut told = Vec::new();
        for retiring in &mut self.retiring {
            // A successor that is still wanted is set again below.
            retiring.successor = None;
        }
        self.coming.retain(|service| self.broken.has(&service.name));
        let wanted: BTreeSet<&ServiceName> = settings.services.iter().map(|service| &service.name).collect();
        let is_gone = |name: &&ServiceName| !self.broken.has(name) && !wanted.contains(name);
        let gone: Vec<ServiceName> = self.services.keys().filter(is_gone).cloned().collect();
        for name in gone {
            told.push(format!("{name} removed"));
            self.retire(&name, REMOVED, None);
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
            if self.broken.has(&name) {
                continue;
            }
            if *handle.settings == service {
                // A full channel would mean a loop that stands still, which the watchdog ends.
                let _ = handle.orders.give(Order::Reconsider);
                continue;
            }
            told.push(format!("{name} changed"));
            if handle.settings.has_same_units(&service) && handle.settings.key == service.key {
                handle.settings = Arc::new(service);
                // A full channel would mean a loop that stands still, which the watchdog ends.
                let _ = handle.orders.give(Order::Reconfigure(Arc::clone(&handle.settings)));
            } else {
                self.retire(&name, CHANGED, Some(service));
            }
        }
        match self.host.guard.list().await {
            Ok(leases) => self.retire_unclaimed(&leases),
            Err(error) => {
                tracing::warn!("failed to ask the guard for leases that no service claims: {error}, ignoring");
            }
        }
        told
    }

    /// Has a service stop its units and release its lock (H5). `successor` takes its place after that.
    fn retire(&mut self, name: &ServiceName, why: Why, successor: Option<ServiceSettings>) {
        if let Some(handle) = self.services.remove(name) {
            self.retire_handle(handle, why, successor);
        }
    }

    fn retire_handle(&mut self, handle: Handle, why: Why, successor: Option<ServiceSettings>) {
        // A full channel would mean a loop that stands still, which the watchdog ends.
        let _ = handle.orders.give(why.order());
        let give_up_at = Instant::now() + handle.settings.longest_stop() + STOP_EXTENSION;
        self.retiring.push(Retiring { handle, successor, give_up_at });
    }

    /// Removes the retiring services that have ended, and queues their successors. A service that does not end in time is
    /// left to the guard.
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

/// The beginning of services, also after the start of the daemon.
impl Supervisor {
    /// Begins the services in `coming`. While the guard does not answer it is tried again about each second.
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
        let leases: BTreeMap<&ServiceName, &ListedLease> =
            leases.iter().map(|listed| (&listed.lease.service, listed)).collect();
        for service in std::mem::take(&mut self.coming) {
            if self.retiring.iter().any(|retiring| share(&retiring.handle.settings, &service)) {
                self.coming.push(service);
                continue;
            }
            let kept = leases.get(&service.name).copied().map(InheritedLease::from);
            if let Some(reason) = self.broken.goes_on(&service.name).filter(|_| kept.is_some()) {
                let subject =
                    journal::Subject { service: Some((&service.name, &service.unit)), ..journal::Subject::default() };
                journal::alarm(journal::Alarm::ConfigurationBroken, &subject, &reason);
            }
            let kept = kept.map(|kept| kept.with_broken(self.broken.bars(&service.name)));
            self.add(service, kept);
        }
    }

    /// Takes leases that no service claims through stop, proof and release (adoption, K8). Otherwise the guard would enforce
    /// them for ever, and kill whatever is started in their control groups.
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
            let last_held = disk::last_held(Path::new(STATE_DIR), name)
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
            match service::spawn(
                &self.host,
                Arc::new(settings),
                Some(InheritedLease::from(listed)),
                Arc::clone(&self.changed),
            ) {
                Ok(handle) => self.retire_handle(handle, UNCLAIMED, None),
                Err(error) => tracing::error!("{name}: failed to let its lease go: {error}"),
            }
        }
    }
}

/// The end of the daemon.
impl Supervisor {
    /// Ends at SIGTERM. Whether the units run on depends on what PID 1 has queued for the daemon's unit.
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
        let Ok(unit) = UnitName::new(DAEMON_UNIT) else { return Ending::Release };
        for systemd in [&self.systemd, &private] {
            match systemd.job_for_unit(&unit).await {
                Ok(Some(JobType::Restart | JobType::Start) | None) => return Ending::Leave,
                Ok(Some(JobType::Stop | JobType::Other(_))) => return Ending::Release,
                Err(error) => tracing::debug!("not known why putexd is stopped: {error}"),
            }
        }
        // It is not known, and to stop a unit needlessly is better than to leave it unsupervised.
        Ending::Release
    }

    /// Stops every unit and releases every lock, all at once. What has not stopped in time is left to the guard.
    async fn release(&mut self) -> ExitCode {
        notify::stopping("stopping the units and releasing their locks");
        let mut deadline = Instant::now();
        for (name, handle) in &self.services {
            deadline = deadline.max(Instant::now() + handle.settings.longest_stop() + STOP_EXTENSION);
            if handle.orders.give_in_turn(STOPPED.order()).await.is_err() {
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
        drop(ended);
        let handles = self.services.values().chain(self.retiring.iter().map(|retiring| &retiring.handle));
        let aging: Vec<&str> = handles
            .filter(|handle| handle.status.borrow().is_left_to_age)
            .map(|handle| handle.settings.name.as_str())
            .collect();
        if aging.is_empty() {
            tracing::info!("putexd ends; it holds no lock any more");
        } else {
            tracing::warn!(
                "putexd ends; the locks of {} could not be released, so other hosts wait until they have aged",
                aging.join(", ")
            );
        }
        ExitCode::SUCCESS
    }
}

/// Watches whether every service's loop makes progress.
#[derive(Debug, Default)]
struct Watchdog {
    seen: BTreeMap<ServiceName, (u64, Option<Instant>)>,
    /// When the watchdog last looked. If the host stood still since then, that says nothing against any service.
    last: Option<Instant>,
}

impl Watchdog {
    /// A loop shows progress every four seconds at least. A loop without progress for this long stands still.
    const PATIENCE: Duration = Duration::from_secs(8);

    fn beat(&mut self, services: &BTreeMap<ServiceName, Handle>) {
        self.seen.retain(|name, _| services.contains_key(name));
        let now = Instant::now();
        let stood_still = self.last.replace(now).is_some_and(|last| now - last > Self::PATIENCE / 2);
        let mut alive = true;
        for (name, handle) in services {
            let progress = handle.progress.load(Ordering::Acquire);
            let (last, since) = self.seen.entry(name.clone()).or_insert((progress, None));
            if *last != progress || since.is_none() || stood_still {
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

/// The services that bind each unit: all of `services`, and for units that those do not name, the first of `others` that
/// names them.
fn bound<'a>(
    services: impl IntoIterator<Item = &'a ServiceSettings>,
    others: impl IntoIterator<Item = &'a ServiceSettings>,
) -> Bound {
    let mut bound = Bound::new();
    for settings in services {
        for unit in settings.units().chain(&settings.contains) {
            bound.entry(unit.clone()).or_default().insert(settings.name.clone());
        }
    }
    for settings in others {
        bind(&mut bound, settings.units().chain(&settings.contains), &settings.name);
    }
    bound
}

/// Binds to `service` those of `units` that are not bound yet.
fn bind<'a>(bound: &mut Bound, units: impl Iterator<Item = &'a UnitName>, service: &ServiceName) {
    for unit in units {
        bound.entry(unit.clone()).or_insert_with(|| BTreeSet::from([service.clone()]));
    }
}

/// Whether one of the two must have ended before the other begins, because they have a key or a unit in common.
fn share(one: &ServiceSettings, other: &ServiceSettings) -> bool {
    one.key == other.key || one.units().any(|unit| other.units().any(|same| same == unit))
}

/// One service's status for D-Bus clients. `broken`: what is wrong with its file while it goes on. `trouble`: what is wrong
/// with the store.
fn status_of(
    settings: &ServiceSettings,
    status: &Status,
    now: Time,
    broken: Option<String>,
    trouble: Option<&str>,
) -> ServiceStatus {
    let waits = status.waiting.as_ref().map(|waiting| waiting.in_words(now));
    let unproven = status.unproven.clone();
    // The trouble comes first, because it says what to do.
    let cause = trouble.filter(|_| status.waiting.as_ref().is_some_and(Waiting::is_for_the_store)).map(str::to_owned);
    ServiceStatus {
        service: settings.name.to_string(),
        unit: settings.unit.to_string(),
        key: settings.key.to_string(),
        state: status.state.to_string(),
        holder: status.holder.clone(),
        revision: status.revision.0,
        token: status.token.0,
        hindrance: status.hindrance.as_ref().map(|hindrance| hindrance.in_words(now)).unwrap_or_default(),
        waits: cause.into_iter().chain(waits).chain(unproven).collect::<Vec<_>>().join("; "),
        remarks: broken.into_iter().chain(status.remarks.iter().cloned()).collect(),
    }
}

/// Writes to the journal that the host stood still. The task does nothing else, so that no work of its own makes it late.
async fn tell_of_thaws() {
    loop {
        let before = clock::now();
        sleep(TICK).await;
        if let Some(span) = stood_still(clock::now().since_at_most(before)) {
            tracing::warn!("this host, or putexd alone, stood still for {}", rounded(span));
        }
    }
}

/// For how long the host stood still, if `passed` is the time that a sleep of one [`TICK`] took. `None`: a busy host may be
/// late by so much.
fn stood_still(passed: Duration) -> Option<Duration> {
    passed.checked_sub(TICK).filter(|late| *late >= STANDSTILL_MIN)
}

/// The leases that the guard remembers. It waits for the guard however long that takes, because no running unit may be
/// judged without them.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::fake::settings;
    use crate::types::{FencingToken, Revision};

    fn status(waiting: Waiting) -> Status {
        Status {
            state: State::NoStore,
            holder: String::new(),
            revision: Revision(0),
            token: FencingToken(0),
            hindrance: None,
            waiting: Some(waiting),
            unproven: None,
            is_left_to_age: false,
            remarks: Vec::new(),
        }
    }

    #[test]
    fn whoever_waits_for_the_store_says_what_is_wrong_with_it() {
        let now = Time::both(Duration::from_secs(100));
        let waits = |waiting| status_of(&settings(), &status(waiting), now, None, Some("see to it: it is away")).waits;
        let store = Waiting::Store { holder: None }.in_words(now);
        assert_eq!(waits(Waiting::Store { holder: None }), format!("see to it: it is away; {store}"));
        assert!(waits(Waiting::Claim).starts_with("see to it: it is away; waits for the store to take its claim; "));
        let (since, deadline) = (Time::both(Duration::from_secs(88)), Time::both(Duration::from_secs(104)));
        assert_eq!(
            waits(Waiting::Renewal { since, deadline }),
            "see to it: it is away; not renewed for 12.0s; the unit is stopped in 4.0s unless the store takes a renewal before"
        );
        assert_eq!(waits(Waiting::Starting), Waiting::Starting.in_words(now));
    }

    #[test]
    fn a_host_stood_still_for_what_its_sleep_took_too_long() {
        assert_eq!(stood_still(Duration::from_millis(1900)), None);
        assert_eq!(stood_still(Duration::from_millis(900)), None);
        assert_eq!(stood_still(Duration::from_secs(9)), Some(Duration::from_secs(8)));
    }
}
