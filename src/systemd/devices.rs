//! The interface to who can open block devices.

use std::fmt;

use futures_util::future::BoxFuture;

use super::error::KernelError;
use crate::types::mount::{Source, SourceName};

/// Who can open block devices. putexd cannot, and asks the guard.
pub trait Devices: fmt::Debug + Send + Sync {
    /// What a mount is of, and whether a file system uses its devices. It may take as long as a device takes to be opened.
    fn source(&self, name: SourceName) -> BoxFuture<'_, Result<Source, KernelError>>;
}
