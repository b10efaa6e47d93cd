//! What a job that is queued waits for, and taking back what a start has queued.

use std::collections::{BTreeMap, BTreeSet};

use zbus::OwnedObjectPath;

use super::Systemd;
use super::error::BusError;
use super::link::Link;

/// A job as PID 1 lists it: its number, unit, type and state, and the objects of both.
pub(super) type JobRow = (u32, String, String, String, OwnedObjectPath, OwnedObjectPath);

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
    /// The job for which the queued job of a unit waits: the first one that is being carried out, else the first one. `None`: no
    /// job is queued for the unit, or it waits for none.
    pub async fn awaits(&self, unit: &str) -> Result<Option<Awaited>, BusError> {
        let Some(job) = self.queued_job(unit).await? else { return Ok(None) };
        let before = before(&self.link().await?, job.id).await?;
        let awaited = |(job, unit, kind, state): (u32, String, String, String)| {
            let is_running = state == "running";
            Awaited { job, unit, kind, is_running }
        };
        let all = before.into_values().map(|(job, unit, kind, state, ..)| awaited((job, unit, kind, state)));
        Ok(all.min_by_key(|awaited| (!awaited.is_running, awaited.job)))
    }

    /// Takes back the start that is queued for a unit, and the starts that were queued for it alone and are not being carried out:
    /// those that it waits for, directly or not, that are not older, and that nothing else waits for. Returns their units.
    pub async fn cancel_start(&self, unit: &str) -> Result<Vec<String>, BusError> {
        let Some(job) = self.queued_job(unit).await? else { return Ok(Vec::new()) };
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
            if row.0 != id && found.len() < LIMIT && found.insert(row.0, row.clone()).is_none() {
                next.push(row.0);
            }
        }
    }
    Ok(found)
}
