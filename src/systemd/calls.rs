//! The calls to PID 1.

use zbus::{OwnedObjectPath, OwnedVariant};

use super::error::BusError;
use super::link::Link;
use super::properties::Properties;
use super::proxy::{Row, Setting, object};

impl Link {
    pub(super) async fn subscribe(&self) -> Result<(), BusError> {
        let manager = self.manager.clone();
        self.call(async move { manager.subscribe().await }).await
    }

    /// Keeps the unit loaded until [`unref_unit`](Self::unref_unit) or the end of this connection.
    pub(super) async fn ref_unit(&self, unit: &str) -> Result<(), BusError> {
        let (manager, unit) = (self.manager.clone(), unit.to_owned());
        self.call(async move { manager.ref_unit(&unit).await }).await
    }

    pub(super) async fn unref_unit(&self, unit: &str) -> Result<(), BusError> {
        let (manager, unit) = (self.manager.clone(), unit.to_owned());
        self.call(async move { manager.unref_unit(&unit).await }).await
    }

    pub(super) async fn reset_failed_unit(&self, unit: &str) -> Result<(), BusError> {
        let (manager, unit) = (self.manager.clone(), unit.to_owned());
        self.call(async move { manager.reset_failed_unit(&unit).await }).await
    }

    /// A signal to all processes of a unit.
    pub(super) async fn kill_unit(&self, unit: &str, signal: i32) -> Result<(), BusError> {
        let (manager, unit) = (self.manager.clone(), unit.to_owned());
        self.call(async move { manager.kill_unit(&unit, "all", signal).await }).await
    }

    /// The job that is queued.
    pub(super) async fn start_unit(&self, unit: &str) -> Result<OwnedObjectPath, BusError> {
        let (manager, unit) = (self.manager.clone(), unit.to_owned());
        self.call(async move { manager.start_unit(&unit, "replace").await }).await
    }

    /// The job that is queued.
    pub(super) async fn stop_unit(&self, unit: &str) -> Result<OwnedObjectPath, BusError> {
        let (manager, unit) = (self.manager.clone(), unit.to_owned());
        self.call(async move { manager.stop_unit(&unit, "replace").await }).await
    }

    /// The job that is queued.
    pub(super) async fn start_transient_unit(
        &self,
        unit: &str,
        settings: &[Setting],
    ) -> Result<OwnedObjectPath, BusError> {
        let (manager, unit) = (self.manager.clone(), unit.to_owned());
        let settings = settings.iter().map(|(name, value)| Ok((*name, value.try_clone()?)));
        let settings = settings.collect::<zbus::Result<Vec<Setting>>>()?;
        self.call(async move { manager.start_transient_unit(&unit, "replace", &settings, &[]).await }).await
    }

    /// What is in one line of each unit, in the order that was asked for. One that does not exist says so by its load state.
    pub(super) async fn rows(&self, units: &[&str]) -> Result<Vec<Row>, BusError> {
        let (manager, units) = (self.manager.clone(), units.iter().map(|&unit| unit.to_owned()).collect::<Vec<_>>());
        self.call(async move { manager.list_units_by_names(&units).await }).await
    }

    /// One property of an object.
    pub(super) async fn property(
        &self,
        path: &str,
        interface: &'static str,
        name: &'static str,
    ) -> Result<OwnedVariant, BusError> {
        let properties = self.properties(path).await?;
        self.call(async move { properties.get(interface, name).await }).await
    }

    /// All properties that a unit has in `interface`, read at one moment; an empty one stands for all of the unit's.
    pub(super) async fn all_properties(&self, unit: &str, interface: &'static str) -> Result<Properties, BusError> {
        let properties = self.properties(&object(unit)).await?;
        self.call(async move { properties.get_all(interface).await }).await
    }
}
