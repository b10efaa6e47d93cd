//! systemd over D-Bus.
//!
//! Three rules, each learned from somebody's outage:
//!
//! - A job only queues, and its signal can be lost. What a unit does is read from the unit, after the job.
//! - No answer is no answer: the state is unknown then, which is neither "failed" nor "stopped".
//! - A stopped unit may still have processes. Only [`Systemd::prove_dead`] says that nothing of it runs.
//!
//! Every call is bounded in time, and no signal is trusted: signals only say when to read again.

mod ahead;
pub mod bond;
mod calls;
mod changes;
mod confinement;
mod ears;
mod elsewhere;
mod error;
pub mod gate;
mod job;
mod lanes;
mod link;
mod manager;
pub mod notify;
mod outside;
mod private;
mod properties;
mod proxy;
mod references;
mod run;
mod start;
mod supervisable;
mod task;
mod tracked;
mod units;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use ahead::Ahead;
pub use changes::Changes;
use changes::Watched;
pub use confinement::check_confinement;
pub use error::BusError;
pub use job::JobEnd;
pub use lanes::Purpose;
use link::{Keeper, Link};
pub use manager::{ChangeHints, Manager, ManagerFuture};
use outside::Walker;
pub use properties::{ActiveState, Invocation, QueuedJob, UnitState};
use references::References;
pub use run::{Check, RunResult};
pub use start::{PATIENCE, StartError, Started, insist};
pub use supervisable::{Surroundings, Unsupervisable};
use tracked::Tracked;
pub use units::{Brief, JobType, KillError, Look, NotDead, Placement, Proof, SystemState};

use crate::types::UnitName;

/// PID 1, however often the way to it breaks. Clones share one connection.
#[derive(Debug, Clone)]
pub struct Systemd {
    keeper: Keeper,
    /// What PID 1 keeps for clients of the bus, if it is to keep anything.
    references: Option<References>,
    purpose: Purpose,
    watched: Watched,
    mounts: units::Mounts,
    walker: Walker,
    begun: Begun,
    ahead: Ahead,
    tracked: Tracked,
    /// Starts that another putexd has begun: what became of them systemd may have forgotten.
    doubted: Arc<Mutex<HashSet<UnitName>>>,
}

/// Starts that did not come to a good end, or not yet: what became of the unit is a part of the proof, and systemd would forget
/// it with the unit.
type Begun = Arc<Mutex<HashMap<UnitName, Start>>>;

#[derive(Debug)]
struct Start {
    pin: Pin,
    /// Whether it is being carried out: a unit that is dead may be so because systemd has not been asked yet.
    is_under_way: bool,
}

/// A start that is under way, until this is dropped.
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
    /// Over PID 1's private socket, for root alone, and over the system bus for what PID 1 keeps for clients of that. Returns
    /// before there is a connection, and keeps one up from then on; until there is one, calls fail as
    /// [`BusError::Unreachable`]. `call_limit` bounds each call; keep it below the renewal interval.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn connect(call_limit: Duration) -> Self {
        Self::with(Some(References::new(call_limit)), call_limit)
    }

    /// Without the bus. systemd keeps no references then, so that the reason of a failed condition may be gone before it is
    /// read.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn private(call_limit: Duration) -> Self {
        Self::with(None, call_limit)
    }

    /// Whether there is a connection to PID 1 now.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.keeper.watch().borrow().is_some()
    }

    /// Waits until there is a connection, or there is none: until [`is_connected`](Self::is_connected) is `wanted`.
    pub async fn connected(&self, wanted: bool) {
        // The sender lives as long as `self` does.
        let _ = self.keeper.watch().wait_for(|link: &Option<Link>| link.is_some() == wanted).await;
    }

    fn with(references: Option<References>, call_limit: Duration) -> Self {
        let keeper = Keeper::new(call_limit);
        Self {
            watched: Watched::new(&keeper),
            keeper,
            references,
            purpose: Purpose::Look,
            mounts: units::Mounts::default(),
            walker: Walker::new(),
            begun: Begun::default(),
            ahead: Ahead::default(),
            tracked: Tracked::new(),
            doubted: Arc::default(),
        }
    }

    /// The same, whose calls are for `purpose`.
    fn to(&self, purpose: Purpose) -> Self {
        Self { purpose, ..self.clone() }
    }

    /// The newest link, for the purpose of this; waits for one as long as a call may take.
    async fn link(&self) -> Result<Link, BusError> {
        Ok(self.keeper.link().await?.to(self.purpose))
    }

    /// The same; waits for one until `deadline`.
    async fn link_by(&self, deadline: Instant) -> Result<Link, BusError> {
        Ok(self.keeper.link_by(deadline).await?.to(self.purpose))
    }

    fn has_references(&self) -> bool {
        self.references.is_some()
    }

    /// Keeps a unit loaded until the pin is dropped; `None` where systemd does not offer that. What it tells of a run that
    /// ended, or was never begun, is gone once it unloads the unit.
    async fn pin(&self, unit: &str) -> Result<Option<Pin>, BusError> {
        let (Some(references), Some(pin)) = (&self.references, self.adopt(unit)) else { return Ok(None) };
        references.take(unit, self.purpose).await?;
        Ok(Some(pin))
    }

    /// Keeps a unit loaded whose start begins, by `pin` if there is one, until it has succeeded, or is under way no longer and the unit is proven dead.
    /// `Err`: it is not kept, although systemd offers that.
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

    /// Whether a start of the unit was begun that is neither under way nor at its end.
    fn is_interrupted(&self, unit: &UnitName) -> bool {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.get(unit).is_some_and(|start| !start.is_under_way)
    }

    /// That is over.
    async fn end_start(&self, unit: &UnitName) {
        let start = self.begun.lock().unwrap_or_else(PoisonError::into_inner).remove(unit);
        if let Some(start) = start {
            start.pin.release().await;
        }
    }

    /// A start of the unit was begun by another putexd and is not known to have come to its end, so that an inactive unit whose
    /// last run systemd does not know is not dead. It ends when the unit is seen to be started, or proven dead.
    pub fn doubt_start(&self, unit: &UnitName) {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner).insert(unit.clone());
    }

    /// Whether that is so.
    fn has_doubts(&self, unit: &str) -> bool {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|doubted| doubted.as_str() == unit)
    }

    /// Whether that is so. If it is, the unit is kept loaded from now on, because what an operator has systemd forget is told by
    /// a unit that is loaded alone.
    async fn is_doubted(&self, unit: &UnitName) -> bool {
        let is_doubted = self.has_doubts(unit.as_str());
        if is_doubted && !self.begun.lock().unwrap_or_else(PoisonError::into_inner).contains_key(unit) {
            // Tried again at the next look.
            let _ = self.keep(unit, false).await;
        }
        is_doubted
    }

    async fn end_doubt(&self, unit: &UnitName) {
        if self.doubted.lock().unwrap_or_else(PoisonError::into_inner).remove(unit) {
            self.end_start(unit).await;
        }
    }

    /// A pin for a reference that is taken otherwise.
    fn adopt(&self, unit: &str) -> Option<Pin> {
        self.has_references().then(|| Pin { systemd: self.clone(), unit: unit.to_owned() })
    }

    /// Gives back a reference, and with the last one what systemd remembers of the unit.
    async fn forget(&self, unit: &str) {
        if let Some(references) = &self.references {
            // The references end with the connection at the latest.
            let _ = references.give_back(unit, self.purpose).await;
        }
    }

    /// Has systemd forget how a unit failed, and how often it was started. One that it does not know is fine.
    pub async fn reset_failed(&self, unit: &str) -> Result<(), BusError> {
        match self.link().await?.reset_failed_unit(unit).await {
            Err(error) if error.is_no_such_unit() => Ok(()),
            other => other,
        }
    }
}

/// A reference to a unit, given back even by a caller that is cancelled.
#[derive(Debug)]
struct Pin {
    systemd: Systemd,
    /// Empty once it is given back.
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
