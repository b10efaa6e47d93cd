//! The questions of a search about a world.

use std::{sync::Arc, time::Duration};

use super::{Node, World};
use crate::election::{Content, State};

impl World {
    pub fn executing(&self) -> usize {
        self.nodes.iter().filter(|node| node.executes()).count()
    }

    pub fn is_served(&self) -> bool {
        self.nodes.iter().any(|node| {
            let active = node
                .daemon
                .as_ref()
                .is_some_and(|daemon| daemon.election.state() == State::Active);
            active && node.executes()
        })
    }

    pub fn quiet(&self) -> Duration {
        self.quiet
    }

    pub fn is_calm(&self) -> bool {
        self.calm
    }

    /// Whether a unit was started with a fencing token that is not above all earlier ones, and had to be.
    pub fn token_fell(&self) -> bool {
        self.token_fell
    }

    /// The world in one line, for the path of a search.
    pub fn show(&self) -> String {
        let node = |node: &Arc<Node>| {
            let state = node.daemon.as_ref().map_or_else(
                || "gone".to_owned(),
                |daemon| daemon.election.state().to_string(),
            );
            format!(
                "{state}/{:?}{}",
                node.unit,
                if node.runs() { "" } else { "/still" }
            )
        };
        let latest = self.store.latest();
        let holder = match &latest.content {
            Content::Absent => "absent".to_owned(),
            Content::Tombstone => "tombstone".to_owned(),
            Content::Record(record) => {
                let standing = record.details.as_ref().map(|details| details.standing);
                format!("{:?} {standing:?}", record.holder)
            }
        };
        let nodes: Vec<String> = self.nodes.iter().map(node).collect();
        format!(
            "{:>5.2} r{} {holder}: {}",
            self.elapsed.as_secs_f64(),
            latest.revision,
            nodes.join("  ")
        )
    }
}
