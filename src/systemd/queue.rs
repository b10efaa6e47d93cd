//! What a job that is queued waits for, and taking back what a start has queued.

use std::collections::{BTreeMap, BTreeSet};

use super::Systemd;
use super::error::BusError;
use super::link::Link;
use super::properties::JobRow;
use super::proxy::JOB;
use super::units::JobType;
use crate::types::UnitName;

/// How many jobs are looked at at most. A host that boots has a few hundred.
const LIMIT: usize = 1024;

/// The job for which another one waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Awaited {
    /// Its number.
    pub job: u32,
    /// Its unit.
    pub unit: String,
    /// Its type, such as `start`.
    pub kind: String,
    /// Whether it is being carried out.
    pub is_running: bool,
}

impl Systemd {
    /// The job of another unit for which the queued job of the first of `units` waits: the first one that is being carried out, else
    /// the first one. `None`: it does not wait, or one of `units` is being started.
    pub async fn awaits(&self, units: &[UnitName]) -> Result<Option<Awaited>, BusError> {
        let Some(unit) = units.first() else { return Ok(None) };
        let Some(job) = self.queued_job(unit.as_str()).await? else { return Ok(None) };
        let link = self.link().await?;
        let state = match link.property(&job.path, JOB, "State").await {
            // The job ended between the two calls.
            Err(error) if error.is_named("org.freedesktop.DBus.Error.UnknownObject") => return Ok(None),
            state => state?,
        };
        if <&str>::try_from(&state).is_ok_and(|state| state != "waiting") {
            return Ok(None);
        }
        let awaited =
            |(job, unit, kind, state, ..): JobRow| Awaited { job, unit, kind, is_running: state == "running" };
        let all: Vec<Awaited> = before(&link, job.id).await?.into_values().map(awaited).collect();
        let is_own = |awaited: &Awaited| units.iter().any(|unit| unit.as_str() == awaited.unit);
        if all.iter().any(|awaited| awaited.is_running && is_own(awaited)) {
            return Ok(None);
        }
        let others = all.into_iter().filter(|awaited| !is_own(awaited));
        Ok(others.min_by_key(|awaited| (!awaited.is_running, awaited.job)))
    }

    /// Takes back the start that is queued for a unit, and the starts that were queued for it alone and are not being carried out:
    /// those that it waits for, directly or not, that are not older, and that nothing else waits for. Returns their units.
    pub async fn cancel_start(&self, unit: &UnitName) -> Result<Vec<String>, BusError> {
        let Some(job) = self.queued_job(unit.as_str()).await? else { return Ok(Vec::new()) };
        if self.job_for_unit(unit).await? != Some(JobType::Start) {
            return Ok(Vec::new());
        }
        let link = self.link().await?;
        // PID 1 numbers the jobs of one order one after another, the one that was asked for first.
        let queued = before(&link, job.id).await?.into_iter();
        let queued =
            queued.filter(|(id, (_, _, kind, state, ..))| *id > job.id && kind == "start" && state == "waiting");
        let mut own: BTreeMap<u32, JobRow> = queued.collect();
        loop {
            let mut needed = BTreeSet::new();
            for id in own.keys() {
                let after = link.jobs_after(*id).await.unwrap_or_default();
                if after.iter().any(|(after, ..)| *after != job.id && !own.contains_key(after)) {
                    needed.insert(*id);
                }
            }
            if needed.is_empty() {
                break;
            }
            own.retain(|id, _| !needed.contains(id));
        }
        for id in std::iter::once(job.id).chain(own.keys().copied()) {
            // A job that is gone by now needs no end.
            let _ = link.cancel_job(id).await;
        }
        Ok(own.into_values().map(|(_, unit, ..)| unit).collect())
    }
}

/// The jobs that have to end before the job `id` is carried out, by their numbers.
async fn before(link: &Link, id: u32) -> Result<BTreeMap<u32, JobRow>, BusError> {
    let mut found: BTreeMap<u32, JobRow> = BTreeMap::new();
    let mut next = vec![id];
    while let Some(id) = next.pop() {
        for row in link.jobs_before(id).await? {
            // What is being carried out waits for nothing any more.
            let is_waiting = row.3 == "waiting";
            let number = row.0;
            if found.len() < LIMIT && found.insert(number, row).is_none() && is_waiting {
                next.push(number);
            }
        }
    }
    Ok(found)
}
