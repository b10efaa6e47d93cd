//! Has the guard look at mounts, whose block devices putexd cannot open. Whatever is no answer is no proof.

use futures_util::future::BoxFuture;

use crate::{
    guard_client::{GuardClient, GuardError},
    systemd::{Devices, KernelError, NotDead},
    types::mount::{Mount, MountUnit},
};

impl Devices for GuardClient {
    fn check_unmounted(
        &self,
        unit: MountUnit,
        was: Option<Mount>,
    ) -> BoxFuture<'_, Result<(), NotDead>> {
        Box::pin(async move {
            match GuardClient::check_unmounted(self, unit, was).await {
                Ok(()) => Ok(()),
                Err(error @ GuardError::Gone) => {
                    Err(KernelError::NoGuard(error.to_string()).into())
                }
                Err(GuardError::Refused(why)) => Err(NotDead::Mounted(why)),
            }
        })
    }
}
