//! The calls to PID 1.

use futures_util::future::try_join_all;
use zbus::{OwnedObjectPath, OwnedVariant};

use super::error::BusError;
use super::link::Link;
use super::properties::{JobRow, Properties, Row};
use super::proxy::{Setting, UNIT, interface, object};

impl Link {
    pub(super) async fn reset_failed_unit(&self, unit: &str) -> Result<(), BusError> {
        let (manager, unit) = (self.manager.clone(), unit.to_owned());
        self.call(async move { manager.reset_failed_unit(&unit).await }).await
    }

    /// Sends a signal to all processes of a unit.
    pub(super) async fn kill_unit(&self, unit: &str, signal: i32) -> Result<(), BusError> {
        let (manager, unit) = (self.manager.clone(), unit.to_owned());
        self.call(async move { manager.kill_unit(&unit, "all", signal).await }).await
    }

    /// Thaws a unit, and waits for it.
    pub(super) async fn thaw_unit(&self, unit: &str) -> Result<(), BusError> {
        let (manager, unit) = (self.manager.clone(), unit.to_owned());
        self.call(async move { manager.thaw_unit(&unit).await }).await
    }

    /// The jobs that have to end before the job `id` is carried out.
    pub(super) async fn jobs_before(&self, id: u32) -> Result<Vec<JobRow>, BusError> {
        let manager = self.manager.clone();
        self.call(async move { manager.get_job_before(id).await }).await
    }

    /// The jobs that are not carried out before the job `id` has ended.
    pub(super) async fn jobs_after(&self, id: u32) -> Result<Vec<JobRow>, BusError> {
        let manager = self.manager.clone();
        self.call(async move { manager.get_job_after(id).await }).await
    }

    /// Takes a job out of the queue.
    pub(super) async fn cancel_job(&self, id: u32) -> Result<(), BusError> {
        let manager = self.manager.clone();
        self.call(async move { manager.cancel_job(id).await }).await
    }

    /// Queues a start. Returns the object of the job.
    pub(super) async fn start_unit(&self, unit: &str) -> Result<OwnedObjectPath, BusError> {
        let (manager, unit) = (self.manager.clone(), unit.to_owned());
        self.call(async move { manager.start_unit(&unit, "replace").await }).await
    }

    /// Queues a stop. Returns the object of the job.
    pub(super) async fn stop_unit(&self, unit: &str) -> Result<OwnedObjectPath, BusError> {
        let (manager, unit) = (self.manager.clone(), unit.to_owned());
        self.call(async move { manager.stop_unit(&unit, "replace").await }).await
    }

    /// Creates a transient unit and queues its start. Returns the object of the job.
    pub(super) async fn start_transient_unit(
        &self,
        unit: &str,
        settings: Vec<Setting>,
    ) -> Result<OwnedObjectPath, BusError> {
        let (manager, unit) = (self.manager.clone(), unit.to_owned());
        self.call(async move { manager.start_transient_unit(&unit, "replace", &settings, &[]).await }).await
    }

    /// The line of each unit in PID 1's list, in the order of `units`. A unit that does not exist says so by its
    /// LoadState.
    pub(super) async fn rows(&self, units: &[&str]) -> Result<Vec<Row>, BusError> {
        let (manager, units) = (self.manager.clone(), units.iter().map(|&unit| unit.to_owned()).collect::<Vec<_>>());
        self.call(async move { manager.list_units_by_names(&units).await }).await
    }

    /// The names of the units that are loaded and fit a pattern.
    pub(super) async fn names_like(&self, pattern: &str) -> Result<Vec<String>, BusError> {
        let (manager, pattern) = (self.manager.clone(), pattern.to_owned());
        let rows = self.call(async move { manager.list_units_by_patterns(&[], &[&pattern]).await }).await?;
        Ok(rows.into_iter().map(|(name, ..)| name).collect())
    }

    /// The line of one unit.
    pub(super) async fn row(&self, unit: &str) -> Result<Row, BusError> {
        let rows = self.rows(&[unit]).await?;
        rows.into_iter().next().ok_or_else(|| BusError::Malformed(format!("no line of {unit}")))
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

    /// Some of the properties that all units have, by their names. They are not read all together, because for some of
    /// them PID 1 would read every folder of unit files.
    pub(super) async fn common(&self, unit: &str, names: &'static [&'static str]) -> Result<Properties, BusError> {
        self.completed(unit, Properties::default(), names).await
    }

    /// What is known of a unit already, and those of the properties that all units have which it lacks.
    pub(super) async fn completed(
        &self,
        unit: &str,
        known: Properties,
        names: &'static [&'static str],
    ) -> Result<Properties, BusError> {
        let properties = self.properties(&object(unit)).await?;
        let names: Vec<&str> = names.iter().copied().filter(|name| !known.has(name)).collect();
        let all = async move {
            let values = try_join_all(names.iter().map(|name| properties.get(UNIT, name))).await?;
            Ok(names.into_iter().zip(values).collect())
        };
        Ok(known.with(Properties::new(self.call(all).await?)))
    }

    /// The properties that only units of its type have, as far as they are used here, read at one moment.
    pub(super) async fn of_its_type(&self, unit: &str) -> Result<Properties, BusError> {
        let properties = self.properties(&object(unit)).await?;
        let interface = interface(unit);
        self.call(async move { properties.get_all(&interface).await }).await
    }
}
