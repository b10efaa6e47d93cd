//! The guard's calls to PID 1, over systemd's private socket, which needs no bus and no broker.
//!
//! The calls block the thread that makes them, and no other. zbus carries the messages, in a runtime of that thread alone, which is
//! made when the guard starts.
//!
//! Each connection has one time limit for everything, because PID 1 may hang, and its socket with it. Many calls go over one
//! connection, because PID 1 takes longer to make a connection than to answer a call, and it limits their number.

use std::{
    io,
    path::Path,
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio::runtime::{Builder, Runtime};
use zbus::{
    Connection, Message, OwnedObjectPath, OwnedVariant, Variant,
    wire::{DynamicDeserialize, DynamicType},
};

use crate::{
    host::mounts::place_of,
    systemd::{
        BusError, MANAGER, MANAGER_PATH, PROPERTIES, Properties, SIGKILL, UNIT, ask, bounded,
        known, of_type, private,
    },
    types::{UnitName, mount::MountUnit},
};

/// The unit types, except slices, that have a control group of their own.
const WITH_PROCESSES: [&str; 5] = ["service", "socket", "mount", "swap", "scope"];

/// What all units have of that which tells how the last run has ended. They are read one by one: for all of them PID 1 would look for
/// the unit's files, on a file system that may not answer.
const OF_ALL_TYPES: [&str; 6] = [
    "Id",
    "ActiveState",
    "ActiveEnterTimestampMonotonic",
    "InactiveEnterTimestampMonotonic",
    "InactiveExitTimestampMonotonic",
    "StateChangeTimestampMonotonic",
];

/// A runtime for the thread that is going to call.
pub fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// A connection to systemd, made at the first call, with one time limit. Once it has failed, or could not be made, every further call
/// fails in the same way: it is not known to which call the next answer would belong.
pub struct Pid1<'a> {
    runtime: &'a Runtime,
    socket: &'a Path,
    until: Instant,
    connection: Option<Result<Connection, BusError>>,
}

impl<'a> Pid1<'a> {
    /// A connection on which every call fails after `limit`, counted from now.
    pub fn new(runtime: &'a Runtime, socket: &'a Path, limit: Duration) -> Self {
        Self {
            runtime,
            socket,
            until: Instant::now() + limit,
            connection: None,
        }
    }

    /// Connects and authenticates, unless that was tried before.
    pub fn connect(&mut self) -> Result<Connection, BusError> {
        let (runtime, left) = (self.runtime, self.left());
        let connect = || runtime.block_on(bounded(left, private::connect(self.socket)));
        self.connection.get_or_insert_with(connect).clone()
    }

    /// Queues a stop of each of `units`, in this order. A unit that systemd does not know counts as stopped.
    pub fn stop<'u>(
        &mut self,
        units: impl IntoIterator<Item = &'u UnitName>,
    ) -> Result<(), BusError> {
        for unit in units {
            // "replace" cancels a start that is queued, which must not happen after a lapse.
            known(self.manager::<OwnedObjectPath>("StopUnit", &(unit.as_str(), "replace")))?;
        }
        Ok(())
    }

    /// Has systemd thaw units and slices, because systemd 256 and newer stops no frozen unit. Nothing is waited for: systemd reads one
    /// call after another, refuses what is not frozen, and may answer late.
    pub fn thaw<'u>(&mut self, units: impl IntoIterator<Item = &'u str>) -> Result<(), BusError> {
        for unit in units {
            self.within(async |connection| {
                let message = Message::method_call(MANAGER_PATH, "ThawUnit")
                    .interface(MANAGER)
                    .build(&unit)?;
                connection.send(&message).await
            })?;
        }
        Ok(())
    }

    /// Whether a unit is active now.
    pub fn is_active(&mut self, unit: &UnitName) -> Result<bool, BusError> {
        let state = self.property::<String>(unit, UNIT, "ActiveState")?;
        Ok(state.as_deref() == Some("active"))
    }

    /// The control groups that `units` have now. putexd does not know them if a unit was moved to another slice and started
    /// there while putexd hung. A unit has no group before its first start.
    pub fn groups<'u>(
        &mut self,
        units: impl IntoIterator<Item = &'u UnitName>,
    ) -> Result<Vec<String>, BusError> {
        let mut groups = Vec::new();
        let with_processes = |unit: &&UnitName| WITH_PROCESSES.contains(&unit.kind());
        for unit in units.into_iter().filter(with_processes) {
            let group = self.property(unit, &of_type(unit.as_str()), "ControlGroup")?;
            groups.extend(group.filter(|group: &String| !group.is_empty()));
        }
        Ok(groups)
    }

    /// Sends SIGKILL to the main processes of `units`, in whichever control group they are, because systemd knows the processes
    /// best. Returns whether systemd still has a main process, dead or not.
    pub fn kill_main(&mut self, units: &[UnitName]) -> Result<bool, BusError> {
        let mut found = false;
        for unit in units.iter().filter(|unit| unit.kind() == "service") {
            let main = self.property(unit, &of_type(unit.as_str()), "MainPID")?;
            if main.is_none_or(|process: u32| process == 0) {
                continue;
            }
            found = true;
            match self.manager::<()>("KillUnit", &(unit.as_str(), "main", SIGKILL)) {
                // A refusal means that the process has died meanwhile.
                Ok(()) | Err(BusError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Whether systemd shows that nothing is left of `units`, but for mounts. `Some`: it does, and these are the mounts among them as
    /// they are configured, which only the kernel can prove to be gone. `target` became active when the lease began, and the start of
    /// the units in `begun` may have been stopped half-way.
    pub fn inactive(
        &mut self,
        target: &UnitName,
        units: &[UnitName],
        begun: &[UnitName],
    ) -> Result<Option<Vec<MountUnit>>, BusError> {
        let lease_since = self.property(target, UNIT, "ActiveEnterTimestampMonotonic")?;
        let mut mounts = Vec::new();
        for unit in units {
            let (is_begun, place) = (begun.contains(unit), place_of(unit));
            // A mount that systemd has forgotten is loaded again, because more than its state is asked for.
            let method = if place.is_some() {
                "LoadUnit"
            } else {
                "GetUnit"
            };
            let Some(object) = self.object(method, unit)? else {
                // When systemd forgot the unit, it forgot how its start went.
                if is_begun {
                    return Ok(None);
                }
                continue;
            };
            let of_all_types = self.get(&object, UNIT, &OF_ALL_TYPES)?;
            let of_its_type = self.call(&object, PROPERTIES, "GetAll", &of_type(unit.as_str()))?;
            let found = of_all_types.with(of_its_type);
            if !found.has_left_nothing(is_begun, lease_since.unwrap_or_default()) {
                return Ok(None);
            }
            mounts.extend(place.map(|place| found.mounted_at(place)));
        }
        Ok(Some(mounts))
    }

    /// One property of a unit. `None`: systemd does not have the unit loaded.
    fn property<T: TryFrom<Variant<'static>>>(
        &mut self,
        unit: &UnitName,
        interface: &str,
        name: &str,
    ) -> Result<Option<T>, BusError> {
        let Some(object) = self.object("GetUnit", unit)? else {
            return Ok(None);
        };
        let found = self.get(&object, interface, &[name])?.get(name);
        let odd = || BusError::Malformed(name.to_owned());
        found.ok_or_else(odd).map(Some)
    }

    fn get(
        &mut self,
        object: &OwnedObjectPath,
        interface: &str,
        names: &[&str],
    ) -> Result<Properties, BusError> {
        let get = |&name: &&str| {
            let value: OwnedVariant = self.call(object, PROPERTIES, "Get", &(interface, name))?;
            Ok((name.to_owned(), value))
        };
        names.iter().map(get).collect()
    }

    /// The D-Bus object of a unit. `None`: systemd does not know the unit. `method` is `GetUnit`, or `LoadUnit` to load it as
    /// well.
    fn object(
        &mut self,
        method: &str,
        unit: &UnitName,
    ) -> Result<Option<OwnedObjectPath>, BusError> {
        known(self.manager(method, &unit.as_str()))
    }

    fn manager<T: for<'d> DynamicDeserialize<'d>>(
        &mut self,
        method: &str,
        body: &(impl Serialize + DynamicType),
    ) -> Result<T, BusError> {
        self.call(MANAGER_PATH, MANAGER, method, body)
    }

    fn call<T: for<'d> DynamicDeserialize<'d>>(
        &mut self,
        path: &str,
        interface: &str,
        method: &str,
        body: &(impl Serialize + DynamicType),
    ) -> Result<T, BusError> {
        self.within(async |connection| ask(connection, path, interface, method, body).await)
    }

    /// Waits for `work` on the connection, which is not used again after anything but a refusal.
    fn within<T>(
        &mut self,
        work: impl AsyncFnOnce(&Connection) -> zbus::Result<T>,
    ) -> Result<T, BusError> {
        let connection = self.connect()?;
        let result = self
            .runtime
            .block_on(bounded(self.left(), work(&connection)));
        if let Err(error) = &result
            && !matches!(error, BusError::Refused { .. })
        {
            drop(connection);
            self.close();
            self.connection = Some(Err(error.clone()));
        }
        result
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Ends the connection now: the tasks of zbus that have it end when the runtime runs.
    fn close(&mut self) {
        let connection = self.connection.take();
        self.runtime.block_on(async {
            drop(connection);
            tokio::task::yield_now().await;
        });
    }
}

impl Drop for Pid1<'_> {
    fn drop(&mut self) {
        self.close();
    }
}
