//! Processes of units that are outside of the units' control groups.
//!
//! systemd counts a process by its control group alone. One that was moved to another, as PAM moves a login to the scope
//! of its session, is not stopped with the unit, and an empty group says nothing of it.

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use rustix::process::Signal;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use super::{
    Systemd,
    elsewhere::{self, OutsideWork},
    error::KernelError,
    units::NotDead,
};
use crate::{
    host::{
        mountinfo::mount_at,
        mounts::place_of,
        processes::{self, Family, Members, Process},
    },
    types::UnitName,
};

/// The properties that name the units which systemd stops with a unit.
const FOLLOWING: [&str; 5] = [
    "BoundBy",
    "RequiredBy",
    "RequisiteOf",
    "ConsistsOf",
    "PropagatesStopTo",
];
/// How many units are looked at that are stopped together with a mount.
const FOLLOWERS_LIMIT: usize = 256;

impl Systemd {
    /// Of `known`, those that were in the groups `before`, the processes in `groups` and all their descendants: those that are in none
    /// of `groups`, and the processes that are in the groups for the next look. The parents and the groups of processes may come from a
    /// reading that is up to `age` old. What is outside by that reading is looked at again, so that it is outside now.
    ///
    /// A process that lost its parent is a child of PID 1, and escapes this look unless it was in one of the groups at the last one.
    pub async fn outside(
        &self,
        known: &BTreeSet<i32>,
        before: &Members,
        groups: &BTreeSet<String>,
        age: Duration,
    ) -> Result<(Vec<Process>, Members), KernelError> {
        let family = self.family(age).await?;
        let suspects = family.suspects(known, before, groups);
        let members = family.in_groups(groups);
        if suspects.is_empty() {
            return Ok((Vec::new(), members));
        }
        let groups = groups.clone();
        let outside = self.blocking(move || family.outside(&suspects, &groups));
        Ok((outside.await?, members))
    }

    /// The processes in `groups` that are clients of a daemon and stay beside the work that it does for them. `own` are the
    /// units of the service, which a client may start. `age` is as for [`outside`](Self::outside).
    pub async fn clients(
        &self,
        groups: &BTreeSet<String>,
        own: &[UnitName],
        age: Duration,
    ) -> Result<Vec<OutsideWork>, KernelError> {
        let family = self.family(age).await?;
        let named = family.named_in(groups, elsewhere::stays);
        if named.is_empty() {
            return Ok(Vec::new());
        }
        let groups = groups.clone();
        let programs = self.blocking(move || family.programs(&named, &groups));
        let client = |running| elsewhere::found(running, own);
        Ok(programs.await?.into_iter().filter_map(client).collect())
    }

    /// The processes that keep the file system of a mount from being unmounted, and that neither belong to `own` nor are stopped by
    /// systemd together with it. Nobody uses what is not mounted.
    pub async fn users_of_mount(
        &self,
        mount: &UnitName,
        own: &[UnitName],
    ) -> Result<Vec<Process>, NotDead> {
        let Some(place) = place_of(mount) else {
            return Ok(Vec::new());
        };
        let link = self.link().await?;
        let (mut open, mut known, mut groups) = (own.to_vec(), BTreeSet::new(), BTreeSet::new());
        while let Some(unit) = open.pop() {
            if known.len() < FOLLOWERS_LIMIT && known.insert(unit.clone()) {
                let properties = link.common(unit.as_str(), &FOLLOWING).await?;
                let followers = FOLLOWING.iter().flat_map(|kind| properties.texts(kind));
                open.extend(followers.filter_map(|follower| UnitName::new(&follower).ok()));
                groups.extend(self.placement(&unit).await?.groups);
            }
        }
        let users = self.blocking(move || match mount_at(&place)? {
            Some(_) => processes::users_of(Path::new(&place), &groups),
            None => Ok(Vec::new()),
        });
        Ok(users.await?)
    }

    async fn family(&self, age: Duration) -> Result<Arc<Family>, KernelError> {
        let limit = self.keeper.call_limit;
        timeout(limit, self.walker.family(age))
            .await
            .unwrap_or(Err(KernelError::no_answer_within(limit)))
    }

    /// Sends `signal`, if one is given, to each of the processes that still runs. Returns those that still run
    /// afterwards.
    pub async fn end_processes(
        &self,
        processes: &[Process],
        signal: Option<Signal>,
    ) -> Result<Vec<Process>, KernelError> {
        let known = processes.to_vec();
        self.blocking(move || {
            if let Some(signal) = signal {
                for process in &known {
                    processes::signal(process.pid, process.began, signal)?;
                }
            }
            processes::alive(&known)
        })
        .await
    }

    /// Sends a signal to every process of a control group, named as PID 1 names it, and of those below it, without asking PID 1, which
    /// does not know the groups that others make, such as those of containers. Refused for a group that holds PID 1 or the caller.
    pub async fn signal_group(&self, path: &str, signal: Signal) -> Result<(), KernelError> {
        if signal == Signal::KILL {
            return self.kill_group(path).await;
        }
        let family = self.family(Duration::ZERO).await?;
        let group = path.to_owned();
        self.control_groups(move |hierarchy| {
            hierarchy.units_group(&group)?;
            let inside = family.inside(&BTreeSet::from([group]))?;
            for process in inside {
                processes::signal(process.pid, process.began, signal)?;
            }
            Ok(())
        })
        .await
    }
}

/// Reads `/proc` for all callers, one after another, so that the looks of many services cost no more than those of a few, and that
/// one thread hangs where the kernel does. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Walker(Arc<Mutex<Option<Reading>>>);

/// What `/proc` has shown, and since when.
type Reading = (Instant, Arc<Family>);

impl Walker {
    /// A reading that has begun `age` ago or later.
    async fn family(&self, age: Duration) -> Result<Arc<Family>, KernelError> {
        let asked = Instant::now();
        let mut last = Arc::clone(&self.0).lock_owned().await;
        if let Some((began, family)) = &*last
            && *began + age >= asked
        {
            return Ok(Arc::clone(family));
        }
        let reading = tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            let family = Arc::new(Family::read()?);
            *last = Some((began, Arc::clone(&family)));
            Ok::<_, KernelError>(family)
        });
        reading
            .await
            .unwrap_or_else(|error| Err(KernelError::Failed(error.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn many_share_one_reading_and_none_gets_an_older_one_than_it_wants() {
        let walker = Walker::default();
        let first = walker.family(Duration::ZERO).await.expect("read");
        let shared = walker.family(Duration::from_secs(60)).await.expect("read");
        assert!(Arc::ptr_eq(&first, &shared));
        let other = walker.family(Duration::ZERO).await.expect("read");
        assert!(!Arc::ptr_eq(&first, &other));
    }
}
