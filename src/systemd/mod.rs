//! systemd over D-Bus.
//!
//! Three rules, each learned from an outage:
//!
//! - A job is only queued, and its signal can be lost. The state of a unit is read from the unit, after the job.
//! - Without an answer the state of a unit is unknown, which is neither "failed" nor "stopped".
//! - A stopped unit may still have processes. Only [`Systemd::prove_dead`] says that nothing of it runs.
//!
//! Every call is bounded in time, and no signal is trusted: signals only say when to read again.

mod belongings;
pub mod bond;
mod boot;
mod by_itself;
mod calls;
mod changes;
mod check_user;
mod confinement;
mod conflicts;
mod devices;
mod elsewhere;
mod error;
mod facts;
mod frozen;
pub mod gate;
mod job;
mod job_ends;
mod lanes;
mod link;
mod manager;
pub mod notify;
mod order;
mod outside;
mod prepared_start;
mod private;
mod properties;
mod proxy;
mod queue;
mod references;
pub mod remedy;
mod run;
mod start;
mod stranger;
mod supervisable;
mod tracked;
mod unit_files;
mod units;
mod unnamed;
pub mod wire;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

pub use boot::{Boot, Origin, Puller};
pub use changes::Changes;
use changes::Watched;
pub use check_user::{CheckUser, CheckUserError};
pub use confinement::{RunAs, check_confinement};
pub use devices::Devices;
pub use elsewhere::{FoundClient, begun};
pub use error::{BusError, KernelError};
pub use facts::{MemoryUse, UnitFacts};
pub use job::JobEnd;
pub use lanes::Purpose;
use link::{Keeper, Link};
pub use manager::{ChangeHints, Manager, ManagerFuture};
use outside::Walker;
use prepared_start::PreparedStarts;
pub use properties::{ActiveState, Invocation, QueuedJob, UnitState};
pub use queue::Awaited;
use references::References;
pub use run::{Check, RunResult};
pub use start::{PATIENCE, RESTARTS_LIMIT, StartError, Started, insist};
pub use stranger::Stranger;
pub use supervisable::{Surroundings, Unsupervisable};
use tracked::Tracked;
pub use units::{Brief, JobType, KillError, Life, Look, NotDead, Placement, SystemState};

use crate::types::UnitName;

/// The client of PID 1, which reconnects by itself whenever the connection breaks. Clones share one connection.
#[derive(Debug, Clone)]
pub struct Systemd {
    keeper: Keeper,
    /// The connection to the bus, over which PID 1 is asked to keep units loaded; `None` for a client without the bus.
    references: Option<References>,
    purpose: Purpose,
    watched: Watched,
    order: order::Order,
    mounts: units::Mounts,
    /// `None`: no mount is shown to be unmounted.
    devices: Option<Arc<dyn Devices>>,
    walker: Walker,
    begun: Begun,
    prepared_starts: PreparedStarts,
    tracked: Tracked,
    check_users: check_user::Turn,
    /// Units whose start another putexd has begun: systemd may have forgotten how that start ended.
    doubted: Arc<Mutex<HashSet<UnitName>>>,
}

/// Starts that have not succeeded, or not yet. How such a start ended is a part of the proof, and systemd would forget it
/// when it unloads the unit.
type Begun = Arc<Mutex<HashMap<UnitName, Start>>>;

#[derive(Debug)]
struct Start {
    pin: Pin,
    /// Whether the start is being carried out. If so, a unit may look dead only because systemd has not been asked to
    /// start it yet.
    is_under_way: bool,
}

/// Marks a start as under way until this value is dropped.
#[derive(Debug)]
struct UnderWay {
    begun: Begun,
    unit: UnitName,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(start) = self.begun.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&self.unit) {
            start.is_under_way = false;
        }
    }
}

impl Systemd {
    /// Connects over PID 1's private socket, which only root may use, and over the system bus for the references that
    /// PID 1 keeps only for clients of the bus. Returns before there is a connection, and a task keeps one up from then
    /// on. While there is none, calls fail with [`BusError::Unreachable`]. `call_limit` bounds each call: keep it below
    /// the renewal interval R.
    ///
    /// # Panics
    ///
    /// When it is called outside of a tokio runtime.
    #[must_use]
    pub fn connect(call_limit: Duration) -> Self {
        Self::with(Some(References::new(call_limit)), call_limit)
    }

    /// Connects over the private socket alone, without the bus. systemd keeps no references for such a client, so the
    /// reason of a failed condition may be gone before it is read.
    ///
    /// # Panics
    ///
    /// When it is called outside of a tokio runtime.
    #[must_use]
    pub fn private(call_limit: Duration) -> Self {
        Self::with(None, call_limit)
    }

    /// Has `devices` say what is in use: without them no mount is shown to be unmounted.
    #[must_use]
    pub fn asking(self, devices: Arc<dyn Devices>) -> Self {
        Self { devices: Some(devices), ..self }
    }

    /// Waits until there is a connection to PID 1.
    pub async fn connected(&self) {
        // The sender lives as long as `self` does, so the wait cannot fail.
        let _ = self.keeper.watch().wait_for(Option::is_some).await;
    }

    fn with(references: Option<References>, call_limit: Duration) -> Self {
        let keeper = Keeper::new(call_limit);
        Self {
            watched: Watched::new(&keeper),
            keeper,
            references,
            purpose: Purpose::Look,
            order: order::Order::default(),
            mounts: units::Mounts::default(),
            devices: None,
            walker: Walker::new(),
            begun: Begun::default(),
            prepared_starts: PreparedStarts::default(),
            tracked: Tracked::new(),
            check_users: check_user::Turn::default(),
            doubted: Arc::default(),
        }
    }

    /// A clone of this client whose calls are made for `purpose`.
    fn to(&self, purpose: Purpose) -> Self {
        Self { purpose, ..self.clone() }
    }

    /// The newest link, for this client's purpose. Waits for a link as long as a call may take.
    async fn link(&self) -> Result<Link, BusError> {
        Ok(self.keeper.link().await?.to(self.purpose))
    }

    /// As [`link`](Self::link), but waits until `deadline`.
    async fn link_by(&self, deadline: Instant) -> Result<Link, BusError> {
        Ok(self.keeper.link_by(deadline).await?.to(self.purpose))
    }

    fn has_references(&self) -> bool {
        self.references.is_some()
    }

    /// Keeps a unit loaded until the pin is dropped; `None` without the bus. Once systemd unloads a unit, it tells
    /// nothing more of a run that ended or was never begun.
    async fn pin(&self, unit: &str) -> Result<Option<Pin>, BusError> {
        let (Some(references), Some(pin)) = (&self.references, self.adopt(unit)) else { return Ok(None) };
        references.take(unit, self.purpose).await?;
        Ok(Some(pin))
    }

    /// Notes that the start of a unit begins, and keeps the unit loaded (by `pin` if there is one) until the start has
    /// succeeded, or until it is no longer under way and the unit is proven dead. An `Err` in the pair says that the unit
    /// is not kept loaded, although references are available.
    async fn begin(&self, unit: &UnitName, pin: Option<Pin>) -> (UnderWay, Result<(), BusError>) {
        let kept = match pin {
            Some(pin) => {
                self.hold(unit, pin, true);
                Ok(())
            }
            None => self.keep(unit, true).await,
        };
        (UnderWay { begun: Arc::clone(&self.begun), unit: unit.clone() }, kept)
    }

    async fn keep(&self, unit: &UnitName, is_under_way: bool) -> Result<(), BusError> {
        if let Some(pin) = self.pin(unit.as_str()).await? {
            self.hold(unit, pin, is_under_way);
        }
        Ok(())
    }

    fn hold(&self, unit: &UnitName, pin: Pin, is_under_way: bool) {
        let start = Start { pin, is_under_way };
        let before = self.begun.lock().unwrap_or_else(PoisonError::into_inner).insert(unit.clone(), start);
        drop(before);
    }

    /// Whether a start of the unit was begun that is no longer under way, while neither its success nor the death of the
    /// unit was seen.
    fn is_interrupted(&self, unit: &UnitName) -> bool {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.get(unit).is_some_and(|start| !start.is_under_way)
    }

    /// Forgets a start of the unit, which is over, and gives back the unit's reference.
    async fn end_start(&self, unit: &UnitName) {
        let start = self.begun.lock().unwrap_or_else(PoisonError::into_inner).remove(unit);
        if let Some(start) = start {
            start.pin.release().await;
        }
    }

    /// Notes that another putexd has begun a start of the unit whose end is not known. From then on an inactive unit
    /// whose last run systemd does not know is not taken for dead. The doubt ends when the unit is seen to be started, or
    /// is proven dead.
    pub fn doubt_start(&self, unit: &UnitName) {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner).insert(unit.clone());
    }

    /// Whether the end of a start of the unit is in doubt, as [`doubt_start`](Self::doubt_start) says.
    fn has_doubts(&self, unit: &str) -> bool {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|doubted| doubted.as_str() == unit)
    }

    /// As [`has_doubts`](Self::has_doubts). A unit in doubt is also kept loaded from now on, because only a loaded unit
    /// tells that an operator had systemd forget its failure.
    async fn is_doubted(&self, unit: &UnitName) -> bool {
        let is_doubted = self.has_doubts(unit.as_str());
        if is_doubted && !self.begun.lock().unwrap_or_else(PoisonError::into_inner).contains_key(unit) {
            // A failure is no error: the unit is kept at the next look.
            let _ = self.keep(unit, false).await;
        }
        is_doubted
    }

    async fn end_doubt(&self, unit: &UnitName) {
        if self.doubted.lock().unwrap_or_else(PoisonError::into_inner).remove(unit) {
            self.end_start(unit).await;
        }
    }

    /// A pin that gives back a reference which the caller takes itself, by a call or by a setting of a transient unit.
    /// `None` without the bus.
    fn adopt(&self, unit: &str) -> Option<Pin> {
        self.has_references().then(|| Pin { systemd: self.clone(), unit: unit.to_owned() })
    }

    /// Gives back a reference. With the last one, what systemd remembers of the unit may be gone.
    async fn forget(&self, unit: &str) {
        if let Some(references) = &self.references {
            // If this fails, the reference ends with the connection at the latest.
            let _ = references.give_back(unit, self.purpose).await;
        }
    }

    /// Has systemd forget how a unit failed, and how often it was started. It is no error if systemd does not know the
    /// unit.
    pub async fn reset_failed(&self, unit: &str) -> Result<(), BusError> {
        match self.link().await?.reset_failed_unit(unit).await {
            Err(error) if error.is_no_such_unit() => Ok(()),
            other => other,
        }
    }
}

/// A reference to a unit. It is given back even when the caller's future is cancelled.
#[derive(Debug)]
struct Pin {
    systemd: Systemd,
    /// The name of the unit; empty once the reference is given back.
    unit: String,
}

impl Pin {
    async fn release(mut self) {
        let unit = std::mem::take(&mut self.unit);
        self.systemd.forget(&unit).await;
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let unit = std::mem::take(&mut self.unit);
        if let Ok(runtime) = tokio::runtime::Handle::try_current()
            && !unit.is_empty()
        {
            let systemd = self.systemd.clone();
            runtime.spawn(async move { systemd.forget(&unit).await });
        }
    }
}
