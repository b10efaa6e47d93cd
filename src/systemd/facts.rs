//! What `putexd --check` and `putexctl doctor` ask of PID 1 and the daemon does not. All of it is only read.

use std::io;
use std::time::Duration;

use zbus::OwnedVariant;

use super::Systemd;
use super::error::BusError;
use super::private::PrivateSocket;
use super::proxy::object;
use crate::host::memory;
use crate::types::UnitName;

/// What PID 1 says of a unit at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitFacts {
    /// LoadState, such as `loaded` or `not-found`.
    pub load_state: String,
    /// ActiveState, such as `active` or `failed`.
    pub active_state: String,
    /// How long systemd waits for the unit's stop until it sends SIGKILL; [`Duration::MAX`] where it waits for ever. `None`: units
    /// of this type have no such time.
    pub stop_time: Option<Duration>,
    /// The process id of the main process; 0 if there is none.
    pub main_pid: u32,
    /// How much memory its processes may have, or have. `None`: there is no limit, and it does not run.
    pub memory: Option<MemoryUse>,
}

/// The memory of a unit, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryUse {
    /// No more than this, by MemoryMax=.
    Limit(u64),
    /// As much as the host has, which is this and less than MemoryMax=.
    AllOfHost(u64),
    /// So much at present, without a limit.
    Present(u64),
}

impl MemoryUse {
    /// From the properties MemoryMax and MemoryCurrent, which have the largest number for "none", and the memory of the host.
    fn of(limit: u64, present: u64, of_host: u64) -> Option<Self> {
        match (limit, present) {
            (u64::MAX, u64::MAX) => None,
            (u64::MAX, present) => Some(Self::Present(present)),
            (limit, _) if limit > of_host => Some(Self::AllOfHost(of_host)),
            (limit, _) => Some(Self::Limit(limit)),
        }
    }
}

/// The interface and the property that tell how long a stop may take. `None`: units of this type have no processes.
fn stop_time_of(unit: &str) -> Option<(&'static str, &'static str)> {
    match unit.rsplit('.').next()? {
        "service" => Some(("org.freedesktop.systemd1.Service", "TimeoutStopUSec")),
        "socket" => Some(("org.freedesktop.systemd1.Socket", "TimeoutUSec")),
        "mount" => Some(("org.freedesktop.systemd1.Mount", "TimeoutUSec")),
        "swap" => Some(("org.freedesktop.systemd1.Swap", "TimeoutUSec")),
        _ => None,
    }
}

impl Systemd {
    /// Whether PID 1 takes a connection from this program. The error says why it does not.
    pub async fn can_be_asked() -> io::Result<()> {
        PrivateSocket::connect().await.map(drop)
    }

    /// Reads what only a check of the configuration needs to know of a unit.
    pub async fn facts(&self, unit: &UnitName) -> Result<UnitFacts, BusError> {
        let link = self.link().await?;
        let (name, path) = (unit.as_str(), object(unit.as_str()));
        let (_, _, load_state, active_state, ..) = link.row(name).await?;
        let malformed = |error: &dyn std::fmt::Display| BusError::Malformed(error.to_string());
        let stop_time = match stop_time_of(name) {
            None => None,
            Some((interface, property)) => {
                let micros = link.property(&path, interface, property).await?;
                let micros = u64::try_from(&micros).map_err(|error| malformed(&error))?;
                Some(if micros == u64::MAX { Duration::MAX } else { Duration::from_micros(micros) })
            }
        };
        let main_pid = if name.ends_with(".service") {
            let pid = link.property(&path, "org.freedesktop.systemd1.Service", "MainPID").await?;
            u32::try_from(&pid).map_err(|error| malformed(&error))?
        } else {
            0
        };
        let memory = match stop_time_of(name) {
            None => None,
            Some((interface, _)) => {
                let limit = link.property(&path, interface, "MemoryMax").await?;
                let present = link.property(&path, interface, "MemoryCurrent").await?;
                let bytes = |value: &OwnedVariant| u64::try_from(value).map_err(|error| malformed(&error));
                MemoryUse::of(bytes(&limit)?, bytes(&present)?, memory::total())
            }
        };
        Ok(UnitFacts { load_state, active_state, stop_time, main_pid, memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_with_processes_has_its_time_to_stop() {
        assert_eq!(stop_time_of("a.service"), Some(("org.freedesktop.systemd1.Service", "TimeoutStopUSec")));
        assert_eq!(stop_time_of("srv.mount"), Some(("org.freedesktop.systemd1.Mount", "TimeoutUSec")));
        assert_eq!(stop_time_of("a.timer"), None);
    }

    #[test]
    fn a_limit_of_memory_counts_before_what_is_used() {
        assert_eq!(MemoryUse::of(7, 5, 7), Some(MemoryUse::Limit(7)));
        assert_eq!(MemoryUse::of(8, 5, 7), Some(MemoryUse::AllOfHost(7)));
        assert_eq!(MemoryUse::of(u64::MAX, 5, 7), Some(MemoryUse::Present(5)));
        assert_eq!(MemoryUse::of(u64::MAX, u64::MAX, 7), None);
    }
}
