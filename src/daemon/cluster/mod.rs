//! What this host tells the other hosts of its cluster through the store, and what it knows of them.
//!
//! | key | written by | content |
//! | --- | --- | --- |
//! | [`Key::of_hosts`] | each host, once a day | the list of all hosts |
//! | [`Key::of_host`], page 0 | that host, every [`REPORT`] and at changes | the [host's report](crate::cluster::report::HostReport) |
//! | [`Key::of_host`], other pages | that host, when they change | its services, up to 24 KiB on a page |
//! | [`Key::of_requests`] | other hosts, and that host | requests of operators to that host, and what came of them |
//!
//! Everything goes through [`Host::notes`](super::host::Host::notes), so that it delays no lock, and this host makes one write in
//! [`PACE`] on average at most. Where the store refuses these keys, the rest of putexd works as ever; the journal says so once, and
//! [`ClusterStatus::trouble`] for as long as it is so.

mod mail;
mod publish;
mod slot;
#[cfg(test)]
pub(super) mod tests;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio::time::timeout;

pub(super) use self::mail::Errand;
use self::mail::Porter;
use self::publish::Publisher;
pub(super) use self::publish::hindrance;
use self::view::{View, Viewer};
use super::hints::Hints;
use super::service::{Answer, Status};
use crate::cluster::report::{HostReport, ServiceReport};
use crate::cluster::request::{Unmet, Verb};
use crate::cluster::view::{ClusterStatus, HostStatus, SILENT};
use crate::config::ServiceSettings;
use crate::daemon::notes::{Clock, Trouble};
use crate::store::{Link, Store};
use crate::task::{OwnedTask, lock};
use crate::types::{ClusterName, Key, NodeId, shortened};

/// Time between two reports of this host while nothing changes, and between two attempts where the store refuses what is asked
/// of it: what was forbidden may be allowed by now.
const REPORT: Duration = Duration::from_secs(10);
/// Shortest time between two writes of this host's report, on average.
const PACE: Duration = Duration::from_secs(1);

/// How long the store may take to be connected before it counts as away.
const CONNECTS: Duration = Duration::from_secs(2);

/// How many requests to other hosts are under way at most.
const REQUESTS: usize = 16;

/// How long a report that is wanted at once, or the reports of the others, are waited for.
const AT_ONCE: Duration = Duration::from_secs(5);
/// How many wait for one of these.
const ASKED: usize = 4;

/// Who waits for a report of this host that is written at once.
type Asked = oneshot::Sender<Result<(), String>>;
/// Who waits until the reports of the other hosts were read anew, and is told of which hosts that was possible.
type Fresh = oneshot::Sender<Result<BTreeSet<NodeId>, String>>;

/// The most characters that are told of an error of the store.
const ERROR_LIMIT: usize = 200;

/// Where this host is, and its way to the store.
#[derive(Clone)]
pub(super) struct Site {
    pub(super) node: NodeId,
    pub(super) cluster: Option<ClusterName>,
    pub(super) notes: Arc<dyn Store>,
    pub(super) hints: Hints,
    pub(super) clock: Arc<dyn Clock>,
    /// Changes when the store answers again after a silence.
    pub(super) returns: watch::Receiver<()>,
    /// Whether what hosts write has a seal. Otherwise anybody who may write to the store may have written it.
    pub is_sealed: bool,
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
    /// The [hash](ServiceSettings::agreement) of what must agree.
    pub(super) sum: String,
    pub(super) status: watch::Receiver<Status>,
}

/// The services that are reported.
#[derive(Clone, Default)]
pub(super) struct Services {
    /// Those that run.
    pub(super) watched: Vec<Watched>,
    /// Those that do not, because their files are broken or say that they are only observed.
    pub(super) resting: Vec<ServiceReport>,
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
    /// Somebody looks at the cluster.
    looked_at: Notify,
    /// The list of hosts lacks this host.
    unlisted: Notify,
    services: watch::Sender<Services>,
    asked: mpsc::Sender<Asked>,
    fresh: mpsc::Sender<Fresh>,
    /// The other ends of the two, until the tasks begin.
    ends: Mutex<Option<(mpsc::Receiver<Asked>, mpsc::Receiver<Fresh>)>>,
    /// For each request that another host may be asked at the same time.
    requests: Arc<Semaphore>,
    began: Duration,
}

/// What can fail by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Report,
    View,
    Requests,
}

impl Part {
    /// What to do where the store refuses it.
    fn remedy(self) -> &'static str {
        match self {
            Self::Report => {
                "allow putexd to write putex-host/ and putex-hosts/ in the store, so that other hosts see this one"
            }
            Self::Requests => {
                "allow putexd to read and write putex-request/ in the store, so that this host does what is asked for elsewhere"
            }
            Self::View => {
                "allow putexd to read putex-host/ and putex-hosts/ in the store, so that this host sees others"
            }
        }
    }

    /// What does not work meanwhile.
    fn lack(self) -> &'static str {
        match self {
            Self::Report => "other hosts do not see how this one is",
            Self::Requests => "this host does not do what is asked for elsewhere",
            Self::View => "this host does not see how others are",
        }
    }
}

/// The tasks that report and look. They end when this is dropped.
pub(super) struct Tasks {
    _tasks: [OwnedTask; 3],
}

impl Cluster {
    pub(super) fn new(site: Site) -> Self {
        let (services, _) = watch::channel(Services::default());
        let (asked, to_write) = mpsc::channel(ASKED);
        let (fresh, to_read) = mpsc::channel(ASKED);
        let began = site.clock.boot();
        Self(Arc::new(Shared {
            site,
            view: Mutex::default(),
            own: Mutex::default(),
            troubles: Mutex::default(),
            changed: Notify::new(),
            looked_at: Notify::new(),
            unlisted: Notify::new(),
            services,
            asked,
            fresh,
            ends: Mutex::new(Some((to_write, to_read))),
            requests: Arc::new(Semaphore::new(REQUESTS)),
            began,
        }))
    }

    /// Begins to report, to look, and to take requests, which go to `errands`. `describe` makes the host's part of the report.
    pub(super) fn run(
        &self,
        describe: impl Fn() -> HostReport + Send + Sync + 'static,
        errands: mpsc::Sender<Errand>,
    ) -> Tasks {
        // They begin once; the ends of new channels would only never be asked for anything.
        let ends = lock(&self.0.ends).take();
        let (asked, fresh) = ends.unwrap_or_else(|| (mpsc::channel(1).1, mpsc::channel(1).1));
        let publisher = Publisher::new(self.clone(), Box::new(describe), asked);
        let viewer = Viewer::new(self.clone(), fresh);
        let porter = Porter::new(self.clone(), errands);
        Tasks {
            _tasks: [OwnedTask::spawn(publisher.run()), OwnedTask::spawn(viewer.run()), OwnedTask::spawn(porter.run())],
        }
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

    /// Says that somebody looks at the cluster, and may do so again soon: the reports of the other hosts are read more often for a
    /// while, because not every store gives hints.
    pub(super) fn looked_at(&self) {
        self.0.looked_at.notify_one();
    }

    /// Says that this host has taken a lock from `node`, whose last renewal was seen at `heard` by `CLOCK_BOOTTIME`: nothing is
    /// expected of that host until it reports again.
    pub(super) fn lose(&self, node: &str, heard: Duration) {
        lock(&self.0.view).lose(node, heard, self.0.site.clock.boot());
        self.changed();
    }

    /// The cluster as it is known now.
    pub(super) fn status(&self) -> ClusterStatus {
        let own = lock(&self.0.own).clone();
        let clock = &self.0.site.clock;
        let (mut hosts, is_cut, unsealed) = {
            let view = lock(&self.0.view);
            let unsealed: Vec<String> = view.unsealed(clock.boot()).into_iter().map(NodeId::to_string).collect();
            (view.hosts(&self.0.site, clock.boot(), clock.wall()), view.is_cut(), unsealed.join(", "))
        };
        hosts.extend(own);
        hosts.sort_by(|one, other| one.report.node.cmp(&other.report.node));
        let troubles = lock(&self.0.troubles);
        // That the store is away is told once, and so is what has to be mended for several parts.
        let (mut is_away, mut unfit) = (false, BTreeSet::new());
        let mut is_told = |trouble: &Trouble| match trouble {
            Trouble::Away(_) => !std::mem::replace(&mut is_away, true),
            Trouble::Refused(_) => true,
            Trouble::Unfit(why) => unfit.insert(why.clone()),
        };
        let told = troubles.iter().filter(|(_, trouble)| is_told(trouble));
        let mut trouble: Vec<String> = told.map(|(part, trouble)| trouble.in_words(*part)).collect();
        if is_cut {
            trouble.push(
                "look who may write to the store: the hosts' reports are too large together, and not all is shown"
                    .to_owned(),
            );
        }
        if !unsealed.is_empty() {
            trouble.push(format!(
                "compare the file of seal-key with that of {}, and look who else may write to the store: a report in that name has no \
                 seal by the key of this host, and is not believed",
                shortened(&unsealed, ERROR_LIMIT)
            ));
        }
        ClusterStatus { node: self.0.site.node.to_string(), hosts, trouble: trouble.join("; ") }
    }

    /// Whether nothing can be said of the other hosts: their reports cannot be read, or there was no time to find any.
    pub(super) fn is_blind(&self) -> bool {
        let is_young = self.0.site.clock.boot().saturating_sub(self.0.began) < SILENT;
        let fails = lock(&self.0.troubles).contains_key(&Part::View);
        fails || (is_young && lock(&self.0.view).is_empty())
    }

    /// Has this host's report written as it is now. `Ok`: the store has it, so that whoever reads it from now on sees it.
    pub(super) async fn announce(&self) -> Result<(), String> {
        let (asked, written) = oneshot::channel();
        let late =
            || format!("see that the store can be reached: it has not taken this host's report within {AT_ONCE:?}");
        self.0.asked.try_send(asked).map_err(|_| late())?;
        timeout(AT_ONCE, written).await.ok().and_then(Result::ok).unwrap_or_else(|| Err(late()))
    }

    /// Reads the reports of all other hosts anew, and returns those of which that was possible: what [`status`](Self::status) tells
    /// of them is not older than this call.
    pub(super) async fn look_again(&self) -> Result<BTreeSet<NodeId>, String> {
        let (fresh, read) = oneshot::channel();
        let late = || format!("see that the store can be reached: the hosts' reports were not read within {AT_ONCE:?}");
        self.0.fresh.try_send(fresh).map_err(|_| late())?;
        timeout(AT_ONCE, read).await.ok().and_then(Result::ok).unwrap_or_else(|| Err(late()))
    }

    /// Has another host do what an operator asks for. The answer comes from there.
    pub(super) fn hand_over(&self, node: NodeId, verb: Verb, by: String, answer: Answer) {
        let Ok(turn) = Arc::clone(&self.0.requests).try_acquire_owned() else {
            let why = format!("say it again later: {REQUESTS} requests to other hosts are under way");
            let _ = answer.send(Err(why.into()));
            return;
        };
        let site = self.0.site.clone();
        tokio::spawn(async move {
            let result = mail::hand_over(&site, &node, verb, by).await;
            drop(turn);
            // The client may have gone.
            let named = |text: String| format!("{node}: {text}");
            let _ = answer.send(result.map(named).map_err(|unmet: Unmet| unmet.map(named)));
        });
    }

    /// Waits until the store is connected, for a moment: an attempt before that says nothing of the store.
    async fn connected(&self) {
        let mut link = self.0.site.notes.link();
        let _ = timeout(CONNECTS, link.wait_for(|link| *link == Link::Up)).await;
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
            Self::Unfit(why) => format!("{}, and until then {}", shortened(why, ERROR_LIMIT), part.lack()),
        }
    }
}
