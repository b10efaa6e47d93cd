//! Which worlds the search treats as different.

use std::hash::{Hash, Hasher};

use super::{
    Node, World,
    clocks::nanos,
    network::{Answer, Ask},
};
use crate::{
    canonical::{Canonical, Mixer},
    election::{GuardRequest, Observation, Record},
    plan::{Fault, TICK},
    types::{FencingToken, WriteId},
};

impl World {
    fn live_writes(&self) -> Vec<WriteId> {
        let mut live: Vec<WriteId> = self
            .orphans
            .iter()
            .map(|orphan| orphan.request.write)
            .collect();
        let of = |observation: &Observation| observation.content.record().and_then(Record::write);
        live.extend(
            self.store
                .history
                .iter()
                .chain(&self.store.copy)
                .filter_map(of),
        );
        for daemon in self.nodes.iter().filter_map(|node| node.daemon.as_ref()) {
            for call in &daemon.calls {
                if let Ask::Write(request) = &call.ask {
                    live.push(request.request.write);
                }
                if let Some(Answer::Shows(observation)) = &call.answer {
                    live.extend(of(observation));
                }
            }
        }
        live
    }
}

impl Node {
    fn add_to<H: Hasher>(&self, to: &mut Canonical<'_, H>) {
        to.next_host(self.clock);
        let flags = [
            self.powered,
            self.frozen,
            self.clocks_stand,
            self.unenforced,
            self.unkillable,
            self.drained,
            self.guard.up,
            self.daemon.is_some(),
        ];
        to.number(
            flags
                .iter()
                .fold(0, |bits, flag| bits << 1 | u64::from(*flag)),
        );
        to.add(&self.rates);
        to.add(&self.timings);
        to.add(&self.unit);
        to.add(&self.disk);
        to.add(&self.kept_at);
        to.add(&self.guard.table);
        to.add(&self.guard.grant);
        to.add(&self.guard.armed);
        let Some(daemon) = &self.daemon else { return };
        to.add(&daemon.calls[..]);
        to.add(&daemon.election);
        to.number(daemon.queue.len() as u64);
        for request in &daemon.queue {
            to.add(request);
        }
        to.number(daemon.replies.len() as u64);
        for (request, done) in &daemon.replies {
            // Of the terms of a request that is answered the deadline alone is heeded.
            let (kind, instance, deadline) = match request {
                GuardRequest::Arm(terms) => (0_u8, terms.instance, Some(terms.deadline)),
                GuardRequest::Extend(terms) => (1, terms.instance, Some(terms.deadline)),
                GuardRequest::Shorten(terms) => (2, terms.instance, Some(terms.deadline)),
                GuardRequest::Close(instance) => (3, *instance, None),
                GuardRequest::Disarm(instance) => (4, *instance, None),
            };
            to.add(&(kind, instance, deadline, done));
        }
        to.add(&daemon.start);
        to.add(&daemon.fence);
        let known = [
            daemon.stops,
            daemon.sees_alive == Some(true),
            daemon.sees_alive == Some(false),
            daemon.sees_guard,
            daemon.guard_lost,
            daemon.sees_store,
            daemon.hint,
            daemon.heartbeat,
        ];
        to.number(
            known
                .iter()
                .fold(0, |bits, flag| bits << 1 | u64::from(*flag)),
        );
    }
}

/// Two states have the same hash when everything that can follow is the same for both.
impl Hash for World {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let oldest = self.plan.longest_wait() + TICK;
        let oldest_tenure = self.plan.longest_lease() * 10;
        let mut mixer = Mixer::default();
        let mut to = Canonical::new(
            &mut mixer,
            oldest,
            self.plan.longest_gap() + TICK,
            oldest_tenure,
        );
        to.losses = self.may(Fault::Loss) || self.may(Fault::Orphan);
        to.latest = self.store.last_revision;
        let shown = self
            .store
            .history
            .iter()
            .chain(&self.store.copy)
            .map(|old| old.revision.0)
            .filter(|revision| *revision > 0);
        to.earliest = shown.min().unwrap_or(to.latest + 1).min(to.latest + 1);
        to.highest_token = self.highest_token;
        to.live_writes = self.live_writes();
        to.number(u64::from(self.calm) | u64::from(self.token_fell) << 1);
        to.number(nanos(self.quiet));
        to.number(if self.plan.exact {
            nanos(self.elapsed) % nanos(TICK)
        } else {
            0
        });
        // The end of a pause is a time of day.
        to.number(if self.plan.longest_pause().is_zero() {
            0
        } else {
            nanos(self.elapsed)
        });
        to.add(&self.both);
        to.add(&FencingToken(self.started_token));
        to.add(&self.left[..]);
        to.add(&self.store.incarnation());
        to.add(&self.store.history[..]);
        to.add(&self.store.copy[..]);
        let left = self.store.copy_left.map(|left| {
            self.elapsed
                .saturating_sub(left)
                .min(self.plan.longest_gap() + TICK)
        });
        to.number(left.map_or(u64::MAX, nanos));
        to.number(self.orphans.len() as u64);
        for orphan in &self.orphans {
            to.add(&**orphan);
        }
        for node in &self.nodes {
            node.add_to(&mut to);
        }
        hasher.write_u64(mixer.finish());
    }
}
