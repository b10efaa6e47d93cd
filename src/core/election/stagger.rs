//! Which contender is the first to take a lock that is free, or whose lease is over (taking, K2; verified release, K4).

use std::time::Duration;

use super::{
    observed_lock::{Entitlement, ObservedLock},
    record::HOLDERS_LIMIT,
    timings::Timings,
};
use crate::types::{Key, NodeId, Revision, Time};

/// Taking (K2): the time from which this node may write its claim; each node has a turn of its own. Contenders mostly see a
/// renewal or a release at the same moment. Some stores accept two writes that come at the same moment, and neither of them can
/// be confirmed then. With turns, the second contender sees the claim of the first before it writes one.
///
/// Nodes that have held the lock come first, in an order that all nodes compute alike. Where a claim only begins a wait, the
/// turns are in the first half of that wait, at most R/2, and the start comes no later because of them. Where a claim may entitle
/// at once, the first node in turn does not wait, and each other one waits for as long as it takes to hear of the claim before
/// its own. A node need not read the lock again before its claim: the compare-and-set looks at the same place as a read would,
/// and later.
pub fn staggered(
    claim: &Entitlement,
    key: &Key,
    node: &NodeId,
    seen: &ObservedLock,
    timings: &Timings,
) -> Time {
    let details = seen.content.details();
    if details.is_some_and(|details| details.note.next.as_ref() == Some(node)) {
        return claim.take_at;
    }
    let wait = claim.entitled_at.since_at_least(claim.take_at);
    let holders = details.map_or(&[][..], |details| &details.holders);
    let (latest, others) = holders
        .split_last()
        .map_or((None, &[][..]), |(latest, others)| (Some(latest), others));
    let others = &others[others.len().saturating_sub(HOLDERS_LIMIT)..];
    let known = u32::try_from(others.len()).unwrap_or(0);
    let turns = if wait.is_zero() {
        timings.renew_interval
    } else {
        wait.min(timings.renew_interval)
    } / 2;
    let longest = turns / (known + TURNS_OF_NEW_NODES + 1);
    let step = if wait.is_zero() {
        (seen.round_trip * CLAIM_ROUND_TRIPS)
            .max(SHORTEST_TURN)
            .min(longest)
    } else {
        longest
    };
    let own = match rank(others, key, node, seen.revision) {
        Some(rank) => step * rank,
        None if latest == Some(node) => step * (known + TURNS_OF_NEW_NODES),
        None => step * known + step * TURNS_OF_NEW_NODES * place(key, node, seen.revision) / PLACES,
    };
    claim.take_at.plus(own)
}

/// The position of a node among those that have held the lock; `None` if it is not one of them. All nodes compute the same order,
/// and it is another one at each revision.
fn rank(holders: &[NodeId], key: &Key, node: &NodeId, revision: Revision) -> Option<u32> {
    let place_of = |holder: &NodeId| (place(key, holder, revision), holder.clone());
    let own = holders.contains(node).then(|| place_of(node))?;
    u32::try_from(holders.iter().filter(|other| place_of(other) < own).count()).ok()
}

/// Nodes that have not held the lock yet share this many turns behind those that have, each at a moment of its own. The latest
/// holder comes after them: it let the lock go, or is dead.
pub const TURNS_OF_NEW_NODES: u32 = 4;

/// The shortest turn. Some stores take this long to notice that a write has replaced what another write rests on, and hosts that
/// are busy differ by this much in when they see the release.
pub const SHORTEST_TURN: Duration = Duration::from_millis(30);

/// Round trips until the next node in turn sees a claim: the question what the release replaced, the claim, its hint, and a read.
const CLAIM_ROUND_TRIPS: u32 = 4;

/// The number of moments that the turns of new nodes are divided into.
pub const PLACES: u32 = 256;

/// A number below [`PLACES`]: FNV-1a over key, node and revision, with the final mix of murmur. It separates nodes with similar
/// names, and nodes that meet at one revision part at the next. Many services that are free at once, which some stores give the
/// same revision, go to different nodes.
pub fn place(key: &Key, node: &NodeId, revision: Revision) -> u32 {
    let bytes = key
        .as_str()
        .bytes()
        .chain([0])
        .chain(node.as_str().bytes())
        .chain(revision.0.to_le_bytes());
    let mut hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    (hash ^ (hash >> 16)) % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name).expect("a key")
    }

    #[test]
    fn a_place_is_what_fnv_1a_and_murmurs_last_mix_make_of_key_node_and_revision() {
        let place = |name, node, revision| {
            super::place(
                &key(name),
                &NodeId::new(node).expect("a node name"),
                Revision(revision),
            )
        };
        let places = [
            ("db", "h1", 0),
            ("db", "h1", 1),
            ("db", "h2", 1),
            ("web", "h1", 0),
            ("db", "a-host.example", 1 << 40),
            ("db", "a-host.example", u64::MAX),
        ];
        assert_eq!(
            places.map(|(key, node, revision)| place(key, node, revision)),
            [57, 60, 204, 123, 67, 165]
        );
    }

    #[test]
    fn services_whose_locks_have_the_same_revision_go_to_different_nodes() {
        let nodes = ["h1", "h2", "h3"].map(|name| NodeId::new(name).expect("a node name"));
        let mut first = [0; 3];
        for number in 0..1000 {
            let key = key(&format!("many-{number:04}"));
            let at = (0..3)
                .min_by_key(|at| place(&key, &nodes[*at], Revision(1)))
                .expect("three nodes");
            first[at] += 1;
        }
        assert!(
            first.iter().all(|count| (250..=420).contains(count)),
            "{first:?}"
        );
    }

    #[test]
    fn two_nodes_meet_in_a_turn_no_more_often_than_by_chance_and_each_is_first_as_often() {
        let nodes = ["h1", "h2", "h3"].map(|name| NodeId::new(name).expect("a node name"));
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            let places = |node: usize| (1..=4096).map(move |revision| (node, revision));
            let db = key("db");
            let pairs = places(one)
                .zip(places(other))
                .map(|((one, revision), (other, _))| {
                    (
                        place(&db, &nodes[one], Revision(revision)),
                        place(&db, &nodes[other], Revision(revision)),
                    )
                });
            let (mut meet, mut first) = (0, 0);
            for (one, other) in pairs {
                meet += u32::from(one == other);
                first += u32::from(one < other);
            }
            // The expected numbers are 16 and 2040 of 4096.
            assert!(
                (4..=32).contains(&meet),
                "{one} and {other} meet {meet} times"
            );
            assert!(
                (1900..=2180).contains(&first),
                "{one} is before {other} {first} times"
            );
        }
    }
}
