//! What systemd is asked to do with the processes that have the network.

use async_trait::async_trait;
use tokio::runtime::Handle;

use crate::{frames::Units, systemd::Systemd, types::NET_SOCKET};

/// The units of the processes that have the network.
pub struct NetProcesses {
    systemd: Systemd,
    /// Where systemd is spoken to.
    runtime: Handle,
}

impl NetProcesses {
    /// It has to be made on the runtime of `systemd`.
    pub fn new(systemd: Systemd) -> Self {
        Self {
            systemd,
            runtime: Handle::current(),
        }
    }
}

#[async_trait]
impl Units for NetProcesses {
    fn start_socket(&self) {
        let systemd = self.systemd.clone();
        // An error is seen by the next attempt to connect.
        self.runtime
            .spawn(async move { systemd.queue_start(NET_SOCKET).await });
    }

    async fn kill_all(&self) {
        // systemd names an instance by a number, and by process id and user of who has connected.
        let pattern = format!("putex-net@*-{}-0.service", std::process::id());
        let (systemd, asked) = (self.systemd.clone(), pattern.clone());
        let killing = self
            .runtime
            .spawn(async move { systemd.kill_like(&asked).await });
        // What is left then ends by its watchdog, unless it does not want to.
        if let Ok(Err(error)) = killing.await {
            tracing::warn!("run \"systemctl kill --signal=KILL '{pattern}'\": {error}");
        }
    }
}
