//! The daemon as a whole: its start, its loop, and the beginning of services. The files beside this one have the reload, the end
//! of services, the binding of units to their leases, what is told of the services, and what other hosts are told.

mod binding;
mod drain;
mod reader;
mod reload;
mod report;
mod retire;
mod tell;
mod verbs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use self::reader::Reader;
use self::retire::Retiring;
use super::answers;
use super::bonds::Bonds;
use super::boot_copy::BootCopy;
use super::broken::Broken;
use super::cluster::{self, Cluster, Errand};
use super::drain::Drain;
use super::fence::Fencings;
use super::grounds::Grounds;
use super::guard_news::GuardNews;
use super::history::histories;
use super::machine::ThisMachine;
use super::net_units::NetUnits;
use super::notes::{MachineClock, NotesStore};
use super::notify;
use super::observer::{self, Observers};
use super::service::{self, Handle, Host, InheritedLease};
use super::silence::{Heard, Silences};
use super::texts::KeptTexts;
use super::tidings::Tidings;
use crate::cluster::report::ServiceReport;
use crate::command_line::exit;
use crate::config::{Loaded, ServiceSettings, Settings, Severity, Texts};
use crate::dbus::{self, Ask, Shown, control};
use crate::election::{self, Hindrance, rounded};
use crate::frames::Socket;
use crate::guard_client::frame::{ListedLease, SOCKET};
use crate::guard_client::kept::Unguarded;
use crate::guard_client::{GuardClient, Link as GuardLink};
use crate::host::descriptors::Shortage;
use crate::host::{clock, identity};
use crate::http::Http;
use crate::journal;
use crate::metrics::{Answers, HostFacts, Metrics, Sources};
use crate::store::StoreSettings;
use crate::store::{self, Store, sealed};
use crate::systemd::bond::KEPT_DIR;
use crate::systemd::{Changes, Systemd};
use crate::types::{DAEMON_UNIT, GUARDED_LEASES_DIR, LEASES_DIR, STATE_DIR, ServiceName, Time, first_named, kept};

/// Used in place of R where there is no service.
const IDLE_LIMIT: Duration = Duration::from_secs(1);
/// Shortest limit of a D-Bus call. A call on a busy host takes a while, and a shorter limit would mistake load for death.
const BUS_LIMIT_MIN: Duration = Duration::from_millis(500);
/// Limit of the D-Bus clients that wait for an answer. Further clients wait for their turn.
const ASKS_LIMIT: usize = 16;
/// How long the start waits at most until clients can ask over the bus.
const SERVED_LIMIT: Duration = Duration::from_secs(1);
/// Shortest time between two looks at all services for STATUS=, however many of them change.
const SHOWN_AGAIN: Duration = Duration::from_millis(100);
/// Time between two comparisons of the services' progress. It is shorter where systemd's watchdog needs that. Where systemd
/// asks for no watchdog, the comparisons keep STATUS= fresh.
const TICK: Duration = Duration::from_secs(1);
/// Every [`TICK`], a stop that is still under way asks systemd for this much more time.
const STOP_EXTENSION: Duration = Duration::from_secs(10);
/// The same for a start that waits for its files, each reading of which takes up to [`reader::LIMIT`].
const START_EXTENSION: Duration = Duration::from_secs(30);
/// How long the end of putexd waits at most until the histories and the disk have what is known of its services. Their units run on or
/// are stopped by then, and their locks are released.
const FINISH_LIMIT: Duration = Duration::from_secs(2);
/// A host that is late by so much was not busy but stood still.
const STANDSTILL_MIN: Duration = Duration::from_secs(1);
/// How long the guard may give no answer before that is an alarm.
const GUARD_PATIENCE: Duration = Duration::from_secs(1);
/// How long PID 1 may give no answer before that is an alarm. A PID 1 that has much to do answers sooner.
const SYSTEMD_PATIENCE: Duration = Duration::from_secs(5);
/// For how long files can be opened again until a lack of descriptors is over: what is opened next may take the last one.
const DESCRIPTORS_PATIENCE: Duration = Duration::from_secs(10);
/// How long a start with a broken `putexd.toml` waits for the guard, because putexd ends unless the guard has a lease to go
/// on with. It is longer than a restart of the guard takes.
const LEASES_LIMIT: Duration = Duration::from_secs(3);
/// How many services are named that have leases.
const NAMED: usize = 6;
/// How often a start that waits for the guard looks whether SIGKILL is due.
const UNGUARDED_INTERVAL: Duration = Duration::from_millis(100);

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
    if let Some(process) = control::server(Path::new(control::SOCKET)).await {
        tracing::error!(
            "another putexd runs on this host, as process {process}: run \"systemctl stop putexd\", or end that process, before this \
             one is started; with --check this program only looks at the configuration"
        );
        return ExitCode::from(exit::REFUSED);
    }
    let kept = KeptTexts::read(Path::new(kept::DIR));
    let mut reader = Reader::new(root);
    let mut loaded = reader.load().await;
    let mut told = loaded.diagnostics.clone();
    let (mut is_asked, mut is_awaited) = (false, false);
    let mut guard = None;
    loop {
        let mut leases = BTreeMap::new();
        if !loaded.broken.is_empty() || loaded.settings.is_none() && !(is_asked && loaded.is_unread) {
            is_asked = true;
            leases = tokio::select! {
                leases = leased(&loaded, &kept, &mut guard) => leases,
                () = signals.end() => return ExitCode::SUCCESS,
            };
            loaded = reader.read(kept.texts(), &leases.keys().cloned().collect()).await;
        }
        if loaded.settings.is_some() {
            break;
        }
        if loaded.is_unread {
            // It was said what is to be done.
            notify::status("waiting for the files of the services: see \"journalctl --unit putexd\"");
        } else if !leases.is_empty() {
            // Not even the former settings will do: a file that they name is missing, as that of seal-key.
            if !std::mem::replace(&mut is_awaited, true) {
                tracing::error!("{}", awaited(&loaded, &leases));
            }
            notify::status("waiting for what putexd.toml lacks: see \"journalctl --unit putexd\"");
        } else {
            break;
        }
        notify::extend_timeout(START_EXTENSION);
        tokio::select! {
            () = sleep(TICK) => {}
            () = signals.end() => return ExitCode::SUCCESS,
        }
        loaded = reader.read(&Texts::default(), &BTreeSet::new()).await;
        if loaded.diagnostics != told {
            tell(&loaded);
            told.clone_from(&loaded.diagnostics);
        }
    }
    drop(guard);
    let broken = Broken::new(&loaded);
    let Some(settings) = loaded.settings else { return ExitCode::from(exit::CONFIGURATION) };
    let mut supervisor = tokio::select! {
        supervisor = Supervisor::start(root, settings, broken, (kept, loaded.texts), reader) => match supervisor {
            Ok(supervisor) => supervisor,
            Err(Unstarted { error, status }) => {
                tracing::error!("{error}");
                return ExitCode::from(status);
            }
        },
        // No service was begun. A unit that a former putexd left running ends with its lease, by the guard.
        () = signals.end() => return ExitCode::SUCCESS,
    };
    let code = supervisor.serve(&mut signals).await;
    supervisor.host.tidings.write();
    supervisor.finish().await;
    code
}

/// The services of which the guard has a lease, and when that ends. Empty if the guard need not be asked or does not answer in time.
/// `guard`: the connection, which is made when it is needed.
async fn leased(loaded: &Loaded, kept: &KeptTexts, guard: &mut Option<GuardClient>) -> BTreeMap<ServiceName, Time> {
    let is_lost = loaded.settings.is_none();
    if kept.texts().services.is_empty() || (is_lost && kept.texts().host.is_none()) {
        return BTreeMap::new();
    }
    notify::status("waiting for the guard");
    let guard = guard.get_or_insert_with(|| GuardClient::new(Path::new(SOCKET), IDLE_LIMIT));
    let listed = if is_lost {
        timeout(LEASES_LIMIT, list_leases(guard)).await.unwrap_or_default()
    } else {
        list_leases(guard).await
    };
    // The guard ends lapsed leases itself, so they are no reason to go on without a good putexd.toml.
    let listed = listed.into_iter().filter(|listed| !(is_lost && listed.lapsed));
    listed.map(|listed| (listed.lease.service, listed.lease.terms.deadline)).collect()
}

/// What to do while nobody renews `leases`, because not even the former settings will do.
fn awaited(loaded: &Loaded, leases: &BTreeMap<ServiceName, Time>) -> String {
    let now = clock::now();
    let left = leases.values().map(|deadline| deadline.since_at_least(now)).min().unwrap_or_default();
    let names: Vec<&str> = leases.keys().map(ServiceName::as_str).collect();
    let (place, message) = loaded.for_all.as_ref().map(|error| (error.location(), &*error.message)).unwrap_or_default();
    format!(
        "mend {place} within {}, and this putexd goes on by itself: {message}; a file that is the same on all hosts, as that of seal-key, \
         is copied from another one; until then nobody renews the leases of this host, and when they end, the units of {} are stopped",
        rounded(left),
        first_named(&names, NAMED)
    )
}

fn tell(loaded: &Loaded) {
    for diagnostic in &loaded.diagnostics {
        match diagnostic.severity {
            Severity::Error => {
                let reason = diagnostic.to_string();
                journal::alarm(journal::Alarm::ConfigurationBroken, &journal::Subject::default(), &reason);
            }
            Severity::Warning => tracing::warn!("{diagnostic}"),
        }
    }
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

/// Why putexd could not be started, and the exit status.
struct Unstarted {
    error: String,
    status: u8,
}

struct Supervisor {
    root: PathBuf,
    host: Host,
    /// The machine of `host`.
    machine: ThisMachine,
    systemd: Systemd,
    /// Yields each time that PID 1 has read its files anew.
    reloads: Changes,
    store_settings: StoreSettings,
    seal_key: Option<PathBuf>,
    silences: Silences,
    services: BTreeMap<ServiceName, Handle>,
    observers: Observers,
    retiring: Vec<Retiring>,
    /// Services that begin as soon as the guard has said what it remembers of them, and no retiring service has their units
    /// or their lock. A former service of the same name may have left its lease behind while the guard was away. A service
    /// that began without knowing that lease could never have the guard arm another.
    coming: Vec<ServiceSettings>,
    /// Rings when a service's status changed.
    changed: Arc<Notify>,
    shown: String,
    /// What the properties on the bus show.
    on_bus: watch::Sender<Shown>,
    /// The requests of D-Bus clients.
    asks: mpsc::Receiver<Ask>,
    /// What is known of the other hosts, and what they are told.
    cluster: Cluster,
    /// What operators have asked for on other hosts.
    errands: mpsc::Receiver<Errand>,
    /// The sending end of `errands`.
    errand: mpsc::Sender<Errand>,
    /// The tasks that look at the other hosts and report to them.
    _cluster_tasks: cluster::Tasks,
    /// The settings of the services that are reported, and those whose files are broken.
    reported: (Vec<Arc<ServiceSettings>>, Vec<ServiceReport>),
    /// Which files are broken.
    broken: Broken,
    /// The services whose locks this host has taken from a host that fell silent, and when that one was last heard of.
    taken: BTreeMap<ServiceName, election::Heard>,
    texts: KeptTexts,
    /// What serves metrics and leases over HTTP.
    bonds: Bonds,
    boot_copy: BootCopy,
    reader: Reader,
    /// Whether some drop-ins may have to be made again or removed.
    bonds_are_due: bool,
}

impl Supervisor {
    /// Waits for the bus and the guard, however long that takes, and starts every election.
    /// `texts` are those that were kept, and those that the settings were made of.
    #[expect(clippy::too_many_lines, reason = "everything that a host needs is set up once, in this order")]
    async fn start(
        root: &Path,
        settings: Settings,
        broken: Broken,
        texts: (KeptTexts, Texts),
        reader: Reader,
    ) -> Result<Self, Unstarted> {
        let of_host = |error: String| Unstarted { error, status: exit::OS };
        let machine_id =
            identity::machine_id().map_err(|error| of_host(format!("failed to read the machine id: {error}")))?;
        let shortest = |span: fn(&ServiceSettings) -> Duration| settings.services.iter().map(span).min();
        let renew_interval = shortest(|service| service.timings.renew_interval).unwrap_or(IDLE_LIMIT);
        let call_limit = shortest(|service| service.timings.call_limit()).unwrap_or(IDLE_LIMIT);
        notify::status("waiting for the system bus");
        let guard = GuardClient::new(Path::new(SOCKET), renew_interval);
        let systemd = Systemd::connect(renew_interval.max(BUS_LIMIT_MIN)).asking(Arc::new(guard.clone()));
        systemd.connected().await;
        notify::status("waiting for the guard");
        let leases = list_leases(&guard).await;
        let socket = Socket::new(NetUnits::new(systemd.clone()));
        let store = store::open(&settings.store, call_limit, socket.clone());
        let store = sealed::as_configured(store, settings.seal_key.as_deref(), settings.cluster.as_ref())
            .map_err(|error| Unstarted { error: error.to_string(), status: exit::CONFIGURATION })?;
        let machine = ThisMachine::new(Path::new(STATE_DIR));
        let tidings = Tidings::after(&machine.recall_alarms());
        let metrics = Metrics::default();
        let silences = Silences::new(tidings.clone(), metrics.clone());
        if settings.seal_key.is_some() {
            tokio::spawn(answers::judge(Arc::clone(&store), tidings.clone()));
        }
        let notes: Arc<dyn Store> = Arc::new(NotesStore::new(Arc::clone(&store) as Arc<dyn Store>, call_limit));
        let (history, entries) = histories();
        tokio::spawn(entries.write(Arc::clone(&notes), Arc::new(MachineClock(Arc::new(machine.clone())))));
        let store: Arc<dyn Store> = Arc::new(Heard::new(store, silences.clone()));
        let hints = super::hints::Hints::default();
        tokio::spawn(hints.clone().run(Arc::clone(&store), guard.link()));
        let drain = Drain::read(Path::new(STATE_DIR));
        let http = Http::new(
            Answers::new(Sources {
                node: settings.node.clone(),
                leases: LEASES_DIR.into(),
                metrics: metrics.clone(),
                guard: guard.clone(),
                store: Box::new({
                    let silences = silences.clone();
                    move || silences.facts()
                }),
                host: Box::new({
                    let (drain, tidings) = (drain.clone(), tidings.clone());
                    move || HostFacts { drained: drain.word().is_some(), alarms: tidings.alarms().mask() }
                }),
                started: clock::wall(),
            }),
            socket,
        );
        http.listen(settings.metrics);
        let host = Host {
            node: settings.node.clone(),
            machine_id,
            store,
            notes,
            history,
            store_address: settings.store.address(),
            cluster: settings.cluster.clone(),
            guard,
            systemd: Arc::new(systemd.clone()),
            hints,
            machine: Arc::new(machine.clone()),
            grounds: Grounds::default(),
            fencings: Fencings::default(),
            drain,
            http,
            tidings,
            watchdog: settings.watchdog.clone(),
            metrics,
        };
        let cluster = report::cluster_of(&host, silences.returns(), settings.seal_key.is_some());
        let (errand, errands) = mpsc::channel(ASKS_LIMIT);
        let guard_news = GuardNews::default();
        tokio::spawn(guard_news.clone().follow(host.guard.clone()));
        let cluster_tasks = cluster.run(report::describe(&host, guard_news), errand.clone());
        let (ask, asks) = mpsc::channel(ASKS_LIMIT);
        let (on_bus, shown) = watch::channel(Shown::default());
        let served = dbus::Daemon::new(settings.node.clone(), ask, shown);
        let (tried, is_served) = oneshot::channel();
        tokio::spawn(tell_of_thaws());
        tokio::spawn(tell_of_guard(host.guard.link(), host.tidings.clone()));
        tokio::spawn(tell_of_systemd(systemd.clone(), host.tidings.clone()));
        tokio::spawn(tell_of_descriptors(host.tidings.clone()));
        let mut supervisor = Self {
            root: root.to_owned(),
            host,
            machine,
            reloads: systemd.reloads(),
            systemd,
            store_settings: settings.store,
            seal_key: settings.seal_key,
            silences,
            services: BTreeMap::new(),
            errands,
            errand,
            observers: Observers::default(),
            retiring: Vec::new(),
            coming: Vec::new(),
            changed: Arc::new(Notify::new()),
            shown: String::new(),
            on_bus,
            asks,
            cluster,
            _cluster_tasks: cluster_tasks,
            reported: Default::default(),
            broken,
            taken: BTreeMap::new(),
            texts: texts.0,
            bonds: Bonds::new(Path::new(KEPT_DIR)),
            boot_copy: BootCopy::read(root),
            reader,
            bonds_are_due: true,
        };
        supervisor.keep(texts.1);
        let (services, observed) = observer::apart(settings.services);
        supervisor.keep_for_boot(&services).await;
        supervisor.gate(&services).await;
        supervisor.coming = services;
        let changed = Arc::clone(&supervisor.changed);
        supervisor.observers.replace(&supervisor.host, observed, |_| false, &changed);
        supervisor.retire_unclaimed(&leases);
        supervisor.begin_with(&leases);
        // What goes on all the same is known only now.
        supervisor.tell_of_broken_files();
        supervisor.show_on_bus();
        control::serve(Path::new(control::SOCKET), served.clone());
        tokio::spawn(dbus::serve(served, supervisor.host.tidings.transitions().clone(), tried));
        // Whoever has waited for the start of putexd asks it next. A bus that does not answer delays nothing for long.
        let _ = timeout(SERVED_LIMIT, is_served).await;
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
            self.report();
            self.show();
            let show_at = Instant::now() + SHOWN_AGAIN;
            tokio::select! {
                () = changed_and_due(&self.changed, show_at) => self.cluster.changed(),
                _ = tick.tick() => {
                    if let Some(name) = self.ended_service() {
                        tracing::error!("{name}: its election has ended by itself, which is a defect");
                        return ExitCode::from(exit::DEFECT);
                    }
                    watchdog.beat(&self.services);
                    if !self.broken.is_empty() {
                        // A service may have lost the lease with which it went on.
                        self.tell_of_broken_files();
                    }
                    self.end_drain();
                    self.end_words_on_the_dead();
                    self.keep_alarms();
                    self.tidy_bonds().await;
                }
                Some(()) = self.reloads.next() => {
                    // Whoever caused the daemon-reload may have removed drop-ins, as "systemctl revert" does.
                    self.bonds_are_due = true;
                    self.tidy_bonds().await;
                }
                Some(ask) = self.asks.recv() => self.answer(ask),
                Some(errand) = self.errands.recv() => self.send(errand),
                _ = signals.hup.recv() => self.reload().await,
                _ = signals.term.recv() => return self.end().await,
                _ = signals.int.recv() => return self.release().await,
            }
        }
    }

    /// Raises the alarm of broken files for as long as there are any. The journal has been told of each of them.
    fn tell_of_broken_files(&self) {
        let tidings = &self.host.tidings;
        if self.broken.is_empty() {
            tidings.end(journal::Alarm::ConfigurationBroken);
        } else {
            let words = self.broken.in_brief(|name| self.goes_on(name));
            tidings.stand(journal::Alarm::ConfigurationBroken, &words);
        }
    }

    /// Whether a service goes on here if its file is broken. It does not once it has lost the lease that it had when putexd was
    /// started.
    fn goes_on(&self, name: &ServiceName) -> bool {
        match self.services.get(name) {
            Some(handle) => !self.is_barred(name, handle),
            None => self.observers.has(name) || self.coming.iter().any(|service| service.name == *name),
        }
    }

    /// Whether nothing but a broken file keeps the service from contending.
    fn is_barred(&self, name: &ServiceName, handle: &Handle) -> bool {
        let bars = self.broken.bars(name).map(Hindrance::Reason);
        bars.is_some() && handle.status.borrow().hindrance == bars
    }

    fn keep_alarms(&self) {
        self.machine.keep_alarms(self.host.tidings.alarms().kept());
    }

    /// Has written what only this host knows and this putexd would take with it.
    async fn finish(&self) {
        self.keep_alarms();
        tokio::join!(self.host.history.finish(FINISH_LIMIT), self.machine.finish(FINISH_LIMIT));
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

    /// A service whose task has ended without having been asked to.
    fn ended_service(&self) -> Option<&ServiceName> {
        self.services.iter().find(|(_, handle)| handle.task.is_finished()).map(|(name, _)| name)
    }

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

/// Whether one of the two must have ended before the other begins, because they have a key or a unit in common.
fn share(one: &ServiceSettings, other: &ServiceSettings) -> bool {
    one.key == other.key || one.units().any(|unit| other.units().any(|same| same == unit))
}

/// Raises the alarm of a guard that does not answer, and ends it.
async fn tell_of_guard(mut link: watch::Receiver<GuardLink>, tidings: Tidings) {
    loop {
        if link.wait_for(|link| *link == GuardLink::Down).await.is_err() {
            return;
        }
        // A guard that has ended is replaced within this time.
        if timeout(GUARD_PATIENCE, link.wait_for(|link| *link == GuardLink::Up)).await.is_ok() {
            continue;
        }
        let reason = format!("there is no answer for {}, and nothing is started meanwhile", rounded(GUARD_PATIENCE));
        tidings.raise(journal::Alarm::GuardGone, &reason);
        if link.wait_for(|link| *link == GuardLink::Up).await.is_err() {
            return;
        }
        tidings.end(journal::Alarm::GuardGone);
    }
}

/// Raises the alarm of a PID 1 that does not answer, and ends it. Every unit of the host depends on it, also those that need nothing
/// of it now.
async fn tell_of_systemd(systemd: Systemd, tidings: Tidings) {
    let (mut answered, mut unanswered, mut stands) = (Instant::now(), 0, false);
    loop {
        if systemd.system_state().await.is_err_and(|error| error.is_unreachable()) {
            unanswered += 1;
            // A host that stood still has had one question without an answer.
            if !stands && unanswered > 2 && answered.elapsed() >= SYSTEMD_PATIENCE {
                stands = true;
                let reason = format!(
                    "PID 1 has given no answer for {}; \"systemctl\" hangs as well, units can be neither started nor stopped here, and a \
                     unit that ends goes to another host",
                    rounded(SYSTEMD_PATIENCE)
                );
                tidings.raise(journal::Alarm::SystemdSilent, &reason);
            }
        } else {
            (answered, unanswered) = (Instant::now(), 0);
            if std::mem::take(&mut stands) {
                tidings.end(journal::Alarm::SystemdSilent);
            }
        }
        sleep(TICK).await;
    }
}

/// Raises the alarm of a putexd that can open no more files, and ends it once it could for a while. What it cannot read meanwhile it
/// does not know, and takes for no fact about a unit.
async fn tell_of_descriptors(tidings: Tidings) {
    let mut lacked: Option<Instant> = None;
    loop {
        if let Some(shortage) = Shortage::now() {
            if lacked.replace(Instant::now()).is_none() {
                let reason = format!(
                    "{}; what runs goes on, and nothing is started or proven dead here meanwhile",
                    shortage.in_words(DAEMON_UNIT)
                );
                tidings.raise(journal::Alarm::NoDescriptors, &reason);
            }
        } else if lacked.is_some_and(|last| last.elapsed() >= DESCRIPTORS_PATIENCE) {
            lacked = None;
            tidings.end(journal::Alarm::NoDescriptors);
        }
        sleep(TICK).await;
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
/// judged without them. While there is none, systemd may be forbidden to start it, and this host may have to be rid of units all the
/// same.
async fn list_leases(guard: &GuardClient) -> Vec<ListedLease> {
    let mut link = guard.link();
    let mut unguarded = Unguarded::new(Path::new(GUARDED_LEASES_DIR))
        .inspect_err(|error| tracing::error!("cannot enforce leases without the guard, ignoring: {error}"))
        .ok();
    loop {
        if timeout(UNGUARDED_INTERVAL, link.wait_for(|link| *link == GuardLink::Up)).await.is_err() {
            for (lease, group) in unguarded.iter_mut().flat_map(Unguarded::kill_overdue) {
                let service = lease.service;
                tracing::error!(
                    "{service}: there is no guard, and the processes in {group} have got SIGKILL, which was due"
                );
            }
            continue;
        }
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

    #[test]
    fn a_host_stood_still_for_what_its_sleep_took_too_long() {
        assert_eq!(stood_still(Duration::from_millis(1900)), None);
        assert_eq!(stood_still(Duration::from_millis(900)), None);
        assert_eq!(stood_still(Duration::from_secs(9)), Some(Duration::from_secs(8)));
    }
}
