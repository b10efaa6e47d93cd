//! What this host tells the other hosts of its cluster through the store, and what it knows of them.
//!
//! | key | written by | content |
//! | --- | --- | --- |
//! | [`Key::of_hosts`] | each host, once a day | the list of all hosts |
//! | [`Key::of_host`], page 0 | that host, every [`REPORT`] and at changes | the [host's report](crate::cluster::report::HostReport) |
//! | [`Key::of_host`], other pages | that host, when they change | its services, up to 24 KiB on a page |
//! | [`Key::of_requests`] | other hosts, and that host | requests of operators to that host, and what came of them |
//!
//! Everything goes through [`Host::notes`](super::host::Host::notes), so that it delays no lock, and this host writes its report
//! at most once in [`PACE`]. Where the store refuses these keys, the rest of putexd works as ever; the journal says so once, and
//! [`ClusterStatus::trouble`] for as long as it is so.

mod publish;
mod slot;
mod view;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use self::publish::Publisher;
use self::slot::Trouble;
use self::view::{View, Viewer};
use super::hints::Hints;
use super::machine::Machine;
use super::service::Status;
use crate::cluster::report::{HostReport, ServiceReport};
use crate::cluster::view::{ClusterStatus, HostStatus};
use crate::cluster::wire;
use crate::config::ServiceSettings;
use crate::store::Store;
use crate::task::OwnedTask;
use crate::types::{ClusterName, Key, NodeId, shortened};

/// Time between two reports of this host while nothing changes.
const REPORT: Duration = Duration::from_secs(10);
/// Shortest time between two writes of this host's report.
const PACE: Duration = Duration::from_secs(1);
/// Time between two attempts where the store refuses what is asked of it.
const REFUSED: Duration = Duration::from_secs(60);

/// The most characters that are told of an error of the store.
const ERROR_LIMIT: usize = 200;

/// The clocks, and where random numbers come from. A test has its own.
pub(super) trait Clock: Send + Sync {
    /// `CLOCK_BOOTTIME`.
    fn boot(&self) -> Duration;
    /// `CLOCK_REALTIME`, since 1970.
    fn wall(&self) -> Duration;
    /// 128 random bits.
    fn random(&self) -> u128;
}

/// The clocks of the host.
pub(super) struct MachineClock(pub(super) Arc<dyn Machine>);

impl Clock for MachineClock {
    fn boot(&self) -> Duration {
        self.0.now().boot
    }

    fn wall(&self) -> Duration {
        self.0.wall()
    }

    fn random(&self) -> u128 {
        self.0.random()
    }
}

/// Where this host is, and its way to the store.
#[derive(Clone)]
pub(super) struct Site {
    pub(super) node: NodeId,
    pub(super) cluster: Option<ClusterName>,
    pub(super) notes: Arc<dyn Store>,
    pub(super) hints: Hints,
    pub(super) clock: Arc<dyn Clock>,
}

impl Site {
    fn list(&self) -> Key {
        Key::of_hosts(self.cluster.as_ref())
    }

    fn page(&self, node: &NodeId, page: u32) -> Key {
        Key::of_host(self.cluster.as_ref(), node, page)
    }
}

/// A service whose state is reported.
#[derive(Clone)]
pub(super) struct Watched {
    pub(super) settings: Arc<ServiceSettings>,
    /// [`sum_of`] these settings.
    pub(super) sum: String,
    pub(super) status: watch::Receiver<Status>,
}

/// The services that are reported.
#[derive(Clone, Default)]
pub(super) struct Services {
    /// Those that run.
    pub(super) watched: Vec<Watched>,
    /// Those that do not, because their files are broken.
    pub(super) broken: Vec<ServiceReport>,
}

/// What of this host's cluster is known, and how it is told what this host reports. Clones share it.
#[derive(Clone)]
pub(super) struct Cluster(Arc<Shared>);

struct Shared {
    site: Site,
    view: Mutex<View>,
    own: Mutex<Option<HostStatus>>,
    troubles: Mutex<BTreeMap<Part, Trouble>>,
    changed: Notify,
    services: watch::Sender<Services>,
}

/// What can fail by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Report,
    View,
}

impl Part {
    /// What to do where the store refuses it.
    fn remedy(self) -> &'static str {
        match self {
            Self::Report => {
                "allow putexd to write putex-host/ and putex-hosts/ in the store, so that other hosts see this one"
            }
            Self::View => {
                "allow putexd to read putex-host/ and putex-hosts/ in the store, so that this host sees others"
            }
        }
    }
}

/// The tasks that report and look. They end when this is dropped.
pub(super) struct Tasks {
    _tasks: [OwnedTask; 2],
}

impl Cluster {
    pub(super) fn new(site: Site) -> Self {
        let (services, _) = watch::channel(Services::default());
        Self(Arc::new(Shared {
            site,
            view: Mutex::default(),
            own: Mutex::default(),
            troubles: Mutex::default(),
            changed: Notify::new(),
            services,
        }))
    }

    /// Begins to report and to look. `describe` makes the host's part of the report.
    pub(super) fn run(&self, describe: impl Fn() -> HostReport + Send + Sync + 'static) -> Tasks {
        let publisher = Publisher::new(self.clone(), Box::new(describe));
        let viewer = Viewer::new(self.clone());
        Tasks { _tasks: [OwnedTask::spawn(publisher.run()), OwnedTask::spawn(viewer.run())] }
    }

    /// Sets the services that are reported.
    pub(super) fn report(&self, services: Services) {
        self.0.services.send_replace(services);
        self.changed();
    }

    /// Says that the state of something that is reported may have changed.
    pub(super) fn changed(&self) {
        self.0.changed.notify_one();
    }

    /// The cluster as it is known now.
    pub(super) fn status(&self) -> ClusterStatus {
        let own = lock(&self.0.own).clone();
        let mut hosts = lock(&self.0.view).hosts(self.0.site.clock.boot());
        hosts.extend(own);
        hosts.sort_by(|one, other| one.report.node.cmp(&other.report.node));
        let troubles = lock(&self.0.troubles);
        let trouble: Vec<String> = troubles.iter().map(|(part, trouble)| trouble.in_words(*part)).collect();
        ClusterStatus { node: self.0.site.node.to_string(), hosts, trouble: trouble.join("; ") }
    }

    /// Notes what came of a part's last attempt. The journal hears of a refusal once, until the part works again.
    fn note(&self, part: Part, result: Result<(), Trouble>) {
        let mut troubles = lock(&self.0.troubles);
        match result {
            Ok(()) => drop(troubles.remove(&part)),
            Err(trouble) => {
                let was_refused = troubles.get(&part).is_some_and(Trouble::is_refusal);
                if trouble.is_refusal() && !was_refused {
                    tracing::warn!("{}, trying again from time to time", trouble.in_words(part));
                }
                // What the store refused is refused until it is allowed, also while the store is away.
                if trouble.is_refusal() || !was_refused {
                    troubles.insert(part, trouble);
                }
            }
        }
    }
}

impl Trouble {
    fn in_words(&self, part: Part) -> String {
        match self {
            Self::Away(error) => {
                format!("see that the store can be reached: {}", shortened(error, ERROR_LIMIT))
            }
            Self::Refused(error) => format!("{}: {}", part.remedy(), shortened(error, ERROR_LIMIT)),
        }
    }
}

/// A sum of the settings of a service that must be the same on all hosts.
pub(super) fn sum_of(settings: &ServiceSettings) -> String {
    let timings = &settings.timings;
    // Each part is on a line of its own. None of them can have a newline.
    let mut text = format!("{}\n{}\n", settings.key, settings.unit);
    for unit in settings.bound_units.iter().chain([&settings.unit]).chain(&settings.contains) {
        text.push_str(unit.as_str());
        text.push('\n');
    }
    let times = [timings.renew_interval, timings.margin, timings.stop_budget].map(|span| span.as_micros());
    text.push_str(&format!("{} {} {times:?}", timings.failures, timings.confirmations));
    wire::sum(text.as_bytes())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
