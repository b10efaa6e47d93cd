//! The interface to who can open block devices.

use std::fmt;

use futures_util::future::BoxFuture;

use super::units::NotDead;
use crate::types::mount::{Mount, MountUnit};

/// Who can open block devices. putexd cannot, and asks the guard.
pub trait Devices: fmt::Debug + Send + Sync {
    /// Shows that what a unit had mounted is mounted nowhere on the host. `was` is how it was seen while it was mounted. It may take as
    /// long as a device takes to be opened.
    fn check_unmounted(
        &self,
        unit: MountUnit,
        was: Option<Mount>,
    ) -> BoxFuture<'_, Result<(), NotDead>>;
}
