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
mod boot;
mod changes;
mod check_user;
mod confinement;
pub mod drop_ins;
mod elsewhere;
mod error;
pub mod gate;
mod interface;
mod job;
mod last_run;
mod link;
mod manager;
pub mod notify;
mod order;
mod outside;
pub mod private;
mod properties;
mod refusal;
pub mod remedy;
mod run;
mod start;
mod supervisable;
mod units;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{sync::Semaphore, time::Instant};

use crate::task::lock;

pub use belongings::Surroundings;
pub use boot::{Boot, Puller};
pub use changes::ChangeHints;
pub use check_user::{CheckUser, CheckUserError};
pub use confinement::{RunAs, check_confinement};
pub use elsewhere::{OutsideWork, begun};
pub use error::{BusError, KernelError, known};
pub use interface::{MANAGER, MANAGER_PATH, PROPERTIES, SIGKILL, UNIT, of_type, type_name};
pub use job::JobEnd;
use link::{Keeper, Pid1Link};
pub use link::{Setting, ask, bounded};
pub use manager::{Manager, ManagerFuture};
use outside::Walker;
pub use properties::{ActiveState, Invocation, Properties, UnitState};
pub use refusal::Refusal;
pub use run::{CheckCommand, RunResult};
pub use start::{PATIENCE, PreparedStart, RESTARTS_LIMIT, insist};
pub use units::{Devices, Look, NotDead, Placement};

use crate::types::UnitName;

/// Whether `list`, words with blanks between them, has `word`.
fn lists(list: &str, word: &str) -> bool {
    list.split_ascii_whitespace().any(|listed| listed == word)
}

/// The client of PID 1, which reconnects by itself whenever the connection breaks. Clones share one connection.
#[derive(Debug, Clone)]
pub struct Systemd {
    keeper: Keeper,
    mounts: units::Mounts,
    /// `None`: no mount is shown to be unmounted.
    devices: Option<Arc<dyn Devices>>,
    walker: Walker,
    checks: Arc<Semaphore>,
    admissions: Arc<Semaphore>,
    check_users: check_user::CheckUsers,
    /// Units whose start another putexd has begun: systemd may have forgotten how that start ended.
    doubted: Arc<Mutex<HashSet<String>>>,
}

impl Systemd {
    /// Connects over PID 1's private socket, which only root may use. Returns before there is a connection, and a task keeps
    /// one up from then on. While there is none, calls fail with [`BusError::Unreachable`]. `call_limit` bounds each call:
    /// keep it below the renewal interval R.
    ///
    /// # Panics
    ///
    /// When it is called outside of a tokio runtime.
    pub fn connect(call_limit: Duration) -> Self {
        Self {
            keeper: Keeper::new(call_limit),
            mounts: units::Mounts::default(),
            devices: None,
            walker: Walker::default(),
            checks: Arc::new(Semaphore::new(run::CHECKS)),
            admissions: Arc::new(Semaphore::new(supervisable::ADMISSIONS)),
            check_users: check_user::CheckUsers::default(),
            doubted: Arc::default(),
        }
    }

    /// Has `devices` say what is in use: without them no mount is shown to be unmounted.
    pub fn asking(self, devices: Arc<dyn Devices>) -> Self {
        Self {
            devices: Some(devices),
            ..self
        }
    }

    /// Waits until there is a connection to PID 1.
    pub async fn connected(&self) {
        // The sender lives as long as `self` does, so the wait cannot fail.
        let _ = self.keeper.newest.clone().wait_for(Option::is_some).await;
    }

    /// The newest link. Waits for one as long as a call may take.
    async fn link(&self) -> Result<Pid1Link, BusError> {
        let until = Instant::now() + self.keeper.call_limit;
        self.keeper.link_by(until).await
    }

    /// Notes that another putexd has begun a start of the unit whose end is not known. From then on an inactive unit
    /// whose last run systemd does not know is not taken for dead. The doubt ends when the unit is seen to be started, or
    /// is proven dead.
    pub fn doubt_start(&self, unit: &UnitName) {
        lock(&self.doubted).insert(unit.to_string());
    }

    /// Whether the end of a start of the unit is in doubt, as [`doubt_start`](Self::doubt_start) says.
    fn has_doubts(&self, unit: &str) -> bool {
        lock(&self.doubted).contains(unit)
    }

    fn end_doubt(&self, unit: &UnitName) {
        lock(&self.doubted).remove(unit.as_str());
    }

    /// Has systemd forget how a unit failed, and how often it was started. It is no error if systemd does not know the
    /// unit.
    pub async fn reset_failed(&self, unit: &UnitName) -> Result<(), BusError> {
        let link = self.link().await?;
        let reset = link.manager::<_, ()>("ResetFailedUnit", (unit.to_string(),));
        known(reset.await).map(drop)
    }
}
