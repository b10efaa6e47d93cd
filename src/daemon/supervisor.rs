//! The daemon as a whole: its start, its loop, and the beginning of services. The files beside this one have the reload, the end
//! of services, the binding of units to their leases, what is told of the services, and what other hosts are told.

mod binding;
mod broken;
mod devices;
mod drain;
mod net_units;
mod notify;
mod orders;
mod reader;
mod reload;
mod retire;
mod show;
mod watches;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::ExitCode,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::StreamExt as _;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{Notify, mpsc, watch},
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout},
};

use self::{broken::Broken, net_units::NetProcesses, reader::Reader, retire::Retiring};
use super::{
    cluster::{Cluster, Services},
    kept::{at_boot::BootCopy, drop_ins::FallbackDropIns, in_force::InForce},
    local::{
        alarms::Alarms, cgroup_owners::CgroupOwners, drain::Drain, fence::Fencings,
        machine::ThisMachine,
    },
    service::{self, Handle, Host},
    store_access::{
        hints::Hints, history::histories, notes::FewAtATime, store_health::StoreHealth,
    },
};
use crate::{
    command_line::exit,
    config::{self, Loaded, ServiceSettings, Settings, Severity},
    dbus::{self, Ask, Shown, control},
    facts::{
        At, Bar, ServiceState,
        alarm::{AlarmKind, Problem},
    },
    frames::Socket,
    guard_client::{
        GuardClient,
        frame::{ListedLease, SOCKET},
        kept::Unguarded,
    },
    host::{clock, identity},
    http::Http,
    metrics::{Answers, HostFacts, Metrics, Sources},
    store::{self, sealed},
    systemd::{ChangeHints, Systemd, drop_ins::KEPT_DIR},
    task::OwnedTask,
    types::{
        GUARDED_LEASES_DIR, LEASES_DIR, STATE_DIR, ServiceName, Time, first_named, span::rounded,
    },
};

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
/// Time between two comparisons of the services' progress. It is shorter where systemd's watchdog needs that.
const TICK: Duration = Duration::from_secs(1);
/// Every [`TICK`], a stop that is still under way asks systemd for this much more time.
const STOP_EXTENSION: Duration = Duration::from_secs(10);
/// The same for a start that waits for its files, each reading of which takes up to [`reader::LIMIT`].
const START_EXTENSION: Duration = Duration::from_secs(30);
/// How long the end of putexd waits at most until the histories and the disk have what is known of its services. Their units run on or
/// are stopped by then, and their locks are released.
const FINISH_LIMIT: Duration = Duration::from_secs(2);
/// How long a start with a broken `putexd.toml` waits for the guard, because putexd ends unless the guard has a lease to go
/// on with. It is longer than a restart of the guard takes.
const LEASES_LIMIT: Duration = Duration::from_secs(3);
/// How many services are named that have leases.
const NAMED: usize = 6;
/// How often a start that waits for the guard looks whether SIGKILL is due.
const UNGUARDED_INTERVAL: Duration = Duration::from_millis(100);

/// Runs until a signal ends it.
pub async fn run(root: &Path) -> ExitCode {
    let signals =
        signal(SignalKind::terminate()).and_then(|term| Ok((term, signal(SignalKind::hangup())?)));
    let (mut term, mut hup) = match signals {
        Ok(signals) => signals,
        Err(error) => {
            tracing::error!("failed to listen for signals: {error}");
            return ExitCode::from(exit::OS);
        }
    };
    if let Some(process) = control::server(Path::new(control::SOCKET)).await {
        tracing::error!(
            "see \"systemctl status putexd\": putexd runs on this host already, as process {process}"
        );
        return ExitCode::from(exit::REFUSED);
    }
    let started = async {
        let kept = InForce::read(Path::new(config::KEPT));
        let mut reader = Reader::new(root);
        let loaded = configuration(&mut reader, &kept).await;
        let broken = Broken::new(&loaded);
        let Some(settings) = loaded.settings else {
            return Err(exit::CONFIGURATION);
        };
        Supervisor::start(root, settings, broken, kept, reader)
            .await
            .map_err(|(error, status)| {
                tracing::error!("{error}");
                status
            })
    };
    let mut supervisor = tokio::select! {
        started = started => match started {
            Ok(supervisor) => supervisor,
            Err(status) => return ExitCode::from(status),
        },
        // No service was begun. A unit that a former putexd left running ends with its lease, by the guard.
        _ = term.recv() => return ExitCode::SUCCESS,
    };
    let code = supervisor.serve(&mut term, &mut hup).await;
    supervisor.finish().await;
    code
}

/// What the files say, and for leases of services whose files are broken, what a former putexd has kept. While there are leases and
/// nothing that tells how to renew them, it is waited for better files.
async fn configuration(reader: &mut Reader, kept: &InForce) -> Loaded {
    let guard = GuardClient::new(Path::new(SOCKET), IDLE_LIMIT);
    let (mut logged, mut is_awaited) = (None, false);
    loop {
        let mut loaded = reader.read(None, &BTreeSet::new()).await;
        if logged.as_ref() != Some(&loaded.diagnostics) {
            log(&loaded);
            logged = Some(loaded.diagnostics.clone());
        }
        let mut leased = BTreeMap::new();
        if loaded.settings.is_none() || !loaded.broken.is_empty() {
            leased = services_with_leases(&loaded, kept, &guard).await;
            let names = leased.keys().cloned().collect();
            loaded = reader.read(kept.settings.as_ref(), &names).await;
        }
        if loaded.settings.is_some() || leased.is_empty() && !loaded.is_unread {
            return loaded;
        }
        // Where the files are not read it was said what is to be done. Else not even the former settings will do: a file that they name
        // is missing, as that of seal-key.
        if let (Some(error), false) = (&loaded.for_all, loaded.is_unread || is_awaited) {
            is_awaited = true;
            let names: Vec<&str> = leased.keys().map(ServiceName::as_str).collect();
            let left = leased
                .values()
                .copied()
                .reduce(Time::earliest)
                .map(|deadline| deadline.since_at_least(clock::now()));
            tracing::error!(
                "mend {} within {}, or the units of {} are stopped: {}",
                error.location(),
                rounded(left.unwrap_or_default()),
                first_named(&names, NAMED),
                error.message
            );
        }
        notify::status("waiting for the configuration: see \"journalctl --unit putexd\"");
        notify::extend_timeout(START_EXTENSION);
        sleep(TICK).await;
    }
}

/// The services of which the guard has a lease, and when that ends. Empty if the guard need not be asked or does not answer in time.
async fn services_with_leases(
    loaded: &Loaded,
    kept: &InForce,
    guard: &GuardClient,
) -> BTreeMap<ServiceName, Time> {
    let is_lost = loaded.settings.is_none();
    let kept = kept.settings.as_ref();
    if kept.is_none_or(|kept| kept.services.is_empty()) {
        return BTreeMap::new();
    }
    notify::status("waiting for the guard");
    let limit = if is_lost { LEASES_LIMIT } else { Duration::MAX };
    let listed = timeout(limit, list_leases(guard)).await.unwrap_or_default();
    // The guard ends lapsed leases itself, so they are no reason to go on without a good putexd.toml.
    listed
        .into_iter()
        .filter(|listed| !(is_lost && listed.lapsed))
        .map(|listed| (listed.lease.service, listed.lease.terms.deadline))
        .collect()
}

fn log(loaded: &Loaded) {
    for diagnostic in &loaded.diagnostics {
        match diagnostic.severity {
            Severity::Error => tracing::error!("{diagnostic}"),
            Severity::Warning => tracing::warn!("{diagnostic}"),
        }
    }
}

struct Supervisor {
    host: Host,
    /// The machine of `host`.
    machine: ThisMachine,
    systemd: Systemd,
    /// Yields each time that PID 1 has read its files anew.
    reloads: ChangeHints,
    store_health: StoreHealth,
    services: BTreeMap<ServiceName, Handle>,
    retiring: Vec<Retiring>,
    /// Services that begin as soon as the guard has said what it remembers of them, and no retiring service has their name, their
    /// units or their lock. A former service of the same name may have left its lease behind while the guard was away. A service
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
    /// The tasks that look at the other hosts and report to them.
    _cluster_tasks: [OwnedTask; 2],
    /// Which files are broken.
    broken: Broken,
    in_force: InForce,
    drop_ins: FallbackDropIns,
    boot_copy: BootCopy,
    reader: Reader,
    /// Whether some drop-ins may have to be made again or removed.
    drop_ins_are_due: bool,
}

impl Supervisor {
    /// Waits for the bus and the guard, however long that takes, and starts every election.
    /// `Err`: why it could not be started, and the exit status.
    async fn start(
        root: &Path,
        settings: Settings,
        broken: Broken,
        mut in_force: InForce,
        reader: Reader,
    ) -> Result<Self, (String, u8)> {
        let machine_id = identity::machine_id()
            .map_err(|error| (format!("failed to read the machine id: {error}"), exit::OS))?;
        let timings = settings.services.iter().map(|service| service.timings);
        let renew_interval = timings
            .clone()
            .map(|timings| timings.renew_interval)
            .min()
            .unwrap_or(IDLE_LIMIT);
        let call_limit = timings
            .map(|timings| timings.call_limit())
            .min()
            .unwrap_or(IDLE_LIMIT);
        notify::status("waiting for the system bus");
        let guard = GuardClient::new(Path::new(SOCKET), renew_interval);
        let systemd =
            Systemd::connect(renew_interval.max(BUS_LIMIT_MIN)).asking(Arc::new(guard.clone()));
        systemd.connected().await;
        notify::status("waiting for the guard");
        let leases = list_leases(&guard).await;
        let socket: Socket = Arc::new(NetProcesses::new(systemd.clone()));
        let store = store::open(&settings.store, call_limit, socket.clone());
        let store = sealed::as_configured(
            store,
            settings.seal_key.as_deref(),
            settings.cluster.as_ref(),
        )
        .map_err(|error| (error.to_string(), exit::CONFIGURATION))?;
        let machine = ThisMachine::new(Path::new(STATE_DIR));
        let metrics = Metrics::default();
        let alarms = Alarms::read(Path::new(STATE_DIR));
        let store_health = StoreHealth::new(settings.store.address().to_string(), alarms.clone());
        if settings.seal_key.is_some() {
            tokio::spawn(watches::judge_answers(Arc::clone(&store), alarms.clone()));
        }
        let notes = FewAtATime::around(Arc::clone(&store), call_limit);
        let (history, entries) = histories();
        tokio::spawn(entries.write(Arc::clone(&notes), Arc::new(machine.clone())));
        let store = store_health.of(store);
        let hints = Hints::default();
        tokio::spawn(hints.clone().run(Arc::clone(&store), guard.link()));
        let drain = Drain::read(Path::new(STATE_DIR));
        let http = Http::new(
            Answers::new(Sources {
                node: settings.node.clone(),
                leases: LEASES_DIR.into(),
                metrics: metrics.clone(),
                guard: guard.clone(),
                host: Box::new({
                    let (store, drain, alarms) =
                        (store_health.clone(), drain.clone(), alarms.clone());
                    move || {
                        let now = clock::wall();
                        let state = store.state_at(now);
                        let since = state.silent_since.or(state.unwritten_since);
                        let span = since.map(|since| since.since(At::new(now)));
                        HostFacts {
                            store_silent: span.unwrap_or_default(),
                            drained: drain.word().is_some(),
                            alarms: alarms.kinds(),
                        }
                    }
                }),
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
            cgroup_owners: CgroupOwners::default(),
            fencings: Fencings::default(),
            drain,
            http,
            alarms,
            watchdog: settings.watchdog.clone(),
            metrics,
        };
        let (cluster, cluster_tasks) = Cluster::begin(host.clone(), store_health.returns());
        let (ask, asks) = mpsc::channel(ASKS_LIMIT);
        let (on_bus, shown) = watch::channel(Shown::default());
        let served = dbus::Daemon::new(settings.node.clone(), ask, shown);
        watches::begin(&host, systemd.clone());
        in_force.replace(settings.clone());
        let mut supervisor = Self {
            host,
            machine,
            reloads: systemd.reloads(),
            systemd,
            store_health,
            services: BTreeMap::new(),
            retiring: Vec::new(),
            coming: Vec::new(),
            changed: Arc::new(Notify::new()),
            shown: String::new(),
            on_bus,
            asks,
            cluster,
            _cluster_tasks: cluster_tasks,
            broken,
            in_force,
            drop_ins: FallbackDropIns::new(Path::new(KEPT_DIR)),
            boot_copy: BootCopy::read(root),
            reader,
            drop_ins_are_due: true,
        };
        supervisor.keep_for_boot(&settings.services).await;
        supervisor.gate(&settings.services).await;
        supervisor.coming = settings.services;
        supervisor.retire_unclaimed(&leases);
        supervisor.begin_with(&leases);
        // What goes on all the same is known only now.
        supervisor.alarm_of_broken_files();
        supervisor.show();
        control::serve(Path::new(control::SOCKET), served.clone());
        let tried = Arc::new(Notify::new());
        tokio::spawn(dbus::serve(served, Arc::clone(&tried)));
        // Whoever has waited for the start of putexd asks it next. A bus that does not answer delays nothing for long.
        let _ = timeout(SERVED_LIMIT, tried.notified()).await;
        Ok(supervisor)
    }

    async fn serve(&mut self, term: &mut Signal, hup: &mut Signal) -> ExitCode {
        notify::ready();
        tracing::info!(
            "putexd {} begins as {}, services: {}",
            env!("CARGO_PKG_VERSION"),
            self.host.node,
            self.coming.len() + self.services.len()
        );
        let beat = sd_notify::watchdog_enabled().map_or(TICK, |interval| (interval / 3).min(TICK));
        let mut tick = interval(beat);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watchdog = LoopWatchdog::default();
        // What is shown is made anew at a change. With a thousand services it is not made for each question.
        let mut show_at = Instant::now();
        loop {
            self.reap();
            self.begin().await;
            let is_due = tokio::select! {
                () = async {
                    sleep_until(show_at).await;
                    // The last thing that is waited for: whoever drops this before it ends loses no change.
                    self.changed.notified().await;
                } => {
                    self.cluster.changed();
                    true
                }
                _ = tick.tick() => {
                    let ended = self.services.iter().find(|(_, handle)| handle.task.is_finished());
                    if let Some((name, _)) = ended {
                        tracing::error!("{name}: its election has ended by itself, which is a defect");
                        return ExitCode::from(exit::DEFECT);
                    }
                    watchdog.beat(self.host.machine.now().boot, &self.services);
                    if !self.broken.is_empty() {
                        // A service may have lost the lease with which it went on.
                        self.alarm_of_broken_files();
                    }
                    self.end_drain();
                    self.end_words_on_the_dead();
                    self.keep_alarms();
                    self.tidy_drop_ins().await;
                    self.host.drain.word().is_some() != self.on_bus.borrow().drained
                }
                Some(()) = self.reloads.next() => {
                    // Whoever caused the daemon-reload may have removed drop-ins, as "systemctl revert" does.
                    self.drop_ins_are_due = true;
                    self.tidy_drop_ins().await;
                    false
                }
                Some(ask) = self.asks.recv() => {
                    self.answer(ask);
                    false
                }
                _ = hup.recv() => {
                    self.reload().await;
                    true
                }
                _ = term.recv() => return self.end().await,
            };
            if is_due {
                self.report();
                self.show();
                show_at = Instant::now() + SHOWN_AGAIN;
            }
        }
    }

    /// Raises the alarm of broken files for as long as there are any.
    fn alarm_of_broken_files(&self) {
        let problem = self
            .broken
            .in_brief(|name| self.goes_on(name))
            .map(|error| Problem::ConfigurationBroken { error });
        self.host
            .alarms
            .set(AlarmKind::ConfigurationBroken, problem);
    }

    /// Whether a service goes on here if its file is broken. It does not once it has lost the lease that it had when putexd was
    /// started.
    fn goes_on(&self, name: &ServiceName) -> bool {
        match self.services.get(name) {
            Some(handle) => !matches!(handle.status.borrow().bar, Some(Bar::Broken { .. })),
            None => self.coming.iter().any(|service| service.name == *name),
        }
    }

    fn keep_alarms(&self) {
        let trouble = self.machine.files.trouble().map(|error| Problem::NotKept {
            error: format!("{error}; until then a restart forgets what was seen of the locks"),
        });
        self.host.alarms.set(AlarmKind::NotKept, trouble);
        self.store_health.settle();
        self.machine.keep_alarms(&self.host.alarms);
    }

    /// Has the services reported that there are now.
    fn report(&self) {
        self.cluster.report(Services {
            running: self
                .services
                .values()
                .map(|handle| handle.status.clone())
                .collect(),
            resting: self.resting(),
        });
    }

    /// The services that do not run because their files are broken.
    fn resting(&self) -> Vec<ServiceState> {
        self.broken.states(|name| self.services.contains_key(name))
    }

    /// Has written what only this host knows and this putexd would take with it.
    async fn finish(&self) {
        self.keep_alarms();
        tokio::join!(
            self.host.history.finish(FINISH_LIMIT),
            self.machine.files.finish(FINISH_LIMIT)
        );
    }

    /// Begins a service, with its lease if there is one among `leases`.
    fn add(&mut self, settings: ServiceSettings, leases: &[ListedLease]) {
        let name = settings.name.clone();
        let kept = leases
            .iter()
            .find(|listed| listed.lease.service == name && !settings.observes());
        let mut bar = None;
        if let Some(reason) = kept.and_then(|_| self.broken.of(&name, true)) {
            let unit = settings.unit.as_str();
            tracing::error!(OBJECT_SYSTEMD_UNIT = unit, "{name}: {reason}");
            // Without the lease it is not begun while its file is broken.
            bar = self
                .broken
                .of(&name, false)
                .filter(|_| self.broken.has(&name));
        }
        let changed = Arc::clone(&self.changed);
        match service::spawn(&self.host, Arc::new(settings), kept, bar, changed) {
            Ok(handle) => {
                self.services.insert(name, handle);
                self.changed.notify_one();
            }
            Err(error) => tracing::error!("{name}: failed to start its election: {error}"),
        }
    }

    /// Begins the services in `coming`. While the guard does not answer it is tried again about each second.
    async fn begin(&mut self) {
        if !self.coming.is_empty()
            && let Ok(leases) = self.host.guard.list().await
        {
            self.begin_with(&leases);
        }
    }

    fn begin_with(&mut self, leases: &[ListedLease]) {
        for service in std::mem::take(&mut self.coming) {
            if self
                .retiring
                .iter()
                .any(|retiring| share(&retiring.handle.settings, &service))
            {
                self.coming.push(service);
            } else {
                self.add(service, leases);
            }
        }
    }
}

/// Watches whether every service's loop makes progress.
#[derive(Default)]
struct LoopWatchdog {
    /// When the watchdog last looked.
    last: Duration,
    /// No loop is judged by what was before this.
    judged_from: Duration,
}

impl LoopWatchdog {
    /// A loop shows progress every four seconds at least. A loop without progress for this long stands still.
    const PATIENCE: Duration = Duration::from_secs(8);

    /// `now` is by `CLOCK_BOOTTIME`.
    fn beat(&mut self, now: Duration, services: &BTreeMap<ServiceName, Handle>) {
        let last = std::mem::replace(&mut self.last, now);
        if now.saturating_sub(last) > Self::PATIENCE / 2 {
            // The host stood still since then, which says nothing against any service.
            self.judged_from = now;
        }
        let mut alive = true;
        for (name, handle) in services {
            let progress = Duration::from_millis(handle.progress.load(Ordering::Acquire));
            if now.saturating_sub(progress.max(self.judged_from)) > Self::PATIENCE {
                tracing::error!("{name}: its election stands still, and systemd restarts putexd");
                alive = false;
            }
        }
        if alive {
            notify::watchdog();
        }
    }
}

/// Whether one of the two must have ended before the other begins, because they have the name, a key or a unit in common.
fn share(one: &ServiceSettings, other: &ServiceSettings) -> bool {
    one.name == other.name
        || one.key == other.key
        || one
            .units()
            .any(|unit| other.units().any(|same| same == unit))
}

/// The leases that the guard remembers. It waits for the guard however long that takes, because no running unit may be
/// judged without them. While there is none, systemd may be forbidden to start it, and this host may have to be rid of units all the
/// same.
async fn list_leases(guard: &GuardClient) -> Vec<ListedLease> {
    let mut link = guard.link();
    let mut unguarded = Unguarded::new(Path::new(GUARDED_LEASES_DIR))
        .inspect_err(|error| {
            tracing::error!("cannot enforce leases without the guard, ignoring: {error}")
        })
        .ok();
    loop {
        if timeout(UNGUARDED_INTERVAL, link.wait_for(|is_up| *is_up))
            .await
            .is_err()
        {
            for (lease, reason) in unguarded.iter_mut().flat_map(Unguarded::kill_overdue) {
                tracing::error!("{}: {reason}", lease.service);
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
