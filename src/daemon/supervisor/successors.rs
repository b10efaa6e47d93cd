//! Whether other hosts would take services over, as far as their reports tell.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::cluster::picture;
use crate::daemon::cluster::Cluster;
use crate::facts::{At, ClusterState, KnownHost};
use crate::host::clock;
use crate::types::NodeId;
use crate::words;

/// Time between two looks for a host that can take over.
const LOOK: Duration = Duration::from_millis(500);

/// The services that no other host would take, and why.
pub type Lonely = BTreeMap<String, String>;

/// Those of the services that no host would take from the one that `leaves` names with them, or not `to`. For a moment, `limit` at most, it
/// is waited for such a host. `is_lenient`: where a host is not known well enough, that is not held against it. `Err`: the reports of the
/// other hosts cannot be read.
pub async fn lonely(
    cluster: &Cluster,
    to: Option<&NodeId>,
    is_lenient: bool,
    limit: Duration,
    leaves: impl Fn(&ClusterState) -> Vec<(String, String)>,
) -> Result<Lonely, String> {
    let begin = Instant::now();
    loop {
        let read = match cluster.look_again().await {
            Err(_) if is_lenient => return Ok(Lonely::new()),
            read => read?,
        };
        if is_lenient && to.is_none() && cluster.is_new() {
            return Ok(Lonely::new());
        }
        let known = cluster.known();
        let read = (!is_lenient).then_some(&read);
        let (mut lonely, mut may_change) = (Lonely::new(), false);
        for (service, holder) in leaves(&known) {
            if let Some((why, is_open)) = nobody(&known, read, &service, &holder, to) {
                may_change |= is_open;
                lonely.insert(service, why);
            }
        }
        if !may_change || begin.elapsed() >= limit {
            return Ok(lonely);
        }
        sleep(LOOK).await;
    }
}

/// Why no host would take `service` from `holder`, or not `to`, and whether that may change in a moment. `None`: some host would.
/// Only hosts whose reports could be `read` would, or else also those that are not known well enough.
fn nobody(
    known: &ClusterState,
    read: Option<&BTreeSet<NodeId>>,
    service: &str,
    holder: &str,
    to: Option<&NodeId>,
) -> Option<(String, bool)> {
    let is_read = |host: &str| {
        host == known.node || read.is_none_or(|read| read.iter().any(|node| node.as_str() == host))
    };
    let (mut reasons, mut may_change) = (Vec::new(), false);
    for candidate in picture::candidates(known, service) {
        let host = &candidate.host;
        if host == holder || to.is_some_and(|to| to.as_str() != host) {
            continue;
        }
        match &candidate.not_taking {
            None if is_read(host) => return None,
            Some(_) if candidate.uncertain && read.is_none() && to.is_none() => return None,
            None => reasons.push(format!("{host}: its report cannot be read")),
            Some(why) => {
                let why = words::not_taking(why, At::new(clock::wall()));
                reasons.push(format!("{host} {why}"));
            }
        }
        // An operator who has drained a host does not end that within seconds.
        may_change |= !is_drained(known, host);
    }
    if reasons.is_empty() {
        let why = match to {
            None => "no other host has reported".to_owned(),
            Some(to) => {
                let names: Vec<&str> = known.hosts.iter().map(KnownHost::node).collect();
                format!("no host is called {to}; known: {}", names.join(", "))
            }
        };
        return Some((why, true));
    }
    Some((reasons.join(", "), may_change))
}

pub fn is_drained(known: &ClusterState, node: &str) -> bool {
    known
        .host(node)
        .is_some_and(|known| known.state.drained.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{HostState, Presence, ServiceState, Word};

    fn cluster(drained: &[&str]) -> ClusterState {
        let now = At::new(clock::wall());
        let host = |node: &str| KnownHost {
            state: HostState {
                node: node.to_owned(),
                drained: drained.contains(&node).then(Word::default),
                ..HostState::default()
            },
            presence: Presence::Up,
            heard: Some(now),
            reported: Some(now),
            services: [("db".to_owned(), ServiceState::default())].into(),
            ..KnownHost::default()
        };
        ClusterState {
            node: "h1".to_owned(),
            hosts: ["h1", "h2", "h3"].map(host).into(),
            ..ClusterState::default()
        }
    }

    #[test]
    fn nothing_is_handed_over_that_nobody_could_take_and_what_no_waiting_helps_is_told_at_once() {
        let judged = |drained: &[&str], to: Option<&str>| {
            let to = to.map(|to| NodeId::new(to).expect("a node's name"));
            nobody(&cluster(drained), None, "db", "h1", to.as_ref())
        };
        assert_eq!(judged(&[], None), None);
        assert_eq!(judged(&["h2"], None), None);
        assert_eq!(judged(&["h2"], Some("h3")), None);
        for (drained, to) in [(&["h2"][..], Some("h2")), (&["h2", "h3"], None)] {
            let (why, may_change) = judged(drained, to).expect("nobody would take it");
            assert!(!may_change && why.contains("h2 is drained"), "{why}");
        }
        assert_eq!(
            judged(&[], Some("h9")),
            Some(("no host is called h9; known: h1, h2, h3".to_owned(), true))
        );
    }
}
