//! Has the guard look at block devices, which putexd cannot open. Whatever is no answer is no proof.

use futures_util::future::BoxFuture;

use crate::guard_client::{GuardClient, GuardError};
use crate::systemd::{Devices, KernelError};
use crate::types::mount::{Source, SourceName};

impl Devices for GuardClient {
    fn source(&self, name: SourceName) -> BoxFuture<'_, Result<Source, KernelError>> {
        Box::pin(async move {
            match GuardClient::source(self, name).await {
                Ok(source) => Ok(source),
                Err(error @ GuardError::Gone) => Err(KernelError::NoGuard(error.to_string())),
                Err(GuardError::Refused(reason)) => Err(KernelError::NoGuard(reason)),
            }
        })
    }
}
