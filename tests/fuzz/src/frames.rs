//! The guard's socket: requests and replies in lines, and the table behind.

use std::time::Duration;

use putexd::{
    guard::table::{LeaseEntry, LeaseTable},
    guard_client::frame::{Command, LEASE_LIMIT, ListedLease, Of, Outcome, Reply, Request},
    types::Time,
};
use serde::{Serialize, de::DeserializeOwned};

/// Each line is a frame.
pub fn frames(input: &[u8]) {
    let whole: Vec<&[u8]> = input
        .split_inclusive(|byte| *byte == b'\n')
        .filter(|line| line.ends_with(b"\n"))
        .collect();
    let mut guard = Guard {
        table: LeaseTable::default(),
        now: Duration::from_secs(1),
    };
    for line in whole {
        if let Some(reply) = understood::<Reply>(line) {
            survives(&reply);
        }
        if let Some(request) = understood::<Request>(line) {
            survives(&request);
            guard.serve(request);
        }
    }
}

/// The frame of a line; what is none is refused with its place in the line.
fn understood<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
    serde_json::from_slice(line)
        .inspect_err(|error| {
            // After the newline the parser stands on the next line.
            assert!(error.line() <= 2 && error.column() <= line.len(), "{error}");
            assert!(!error.to_string().is_empty());
        })
        .ok()
}

/// One line, and the same again for whoever reads it.
fn survives<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(frame: &T) {
    let text = serde_json::to_string(frame).expect("a frame can be written");
    assert!(!text.contains('\n'), "a frame is one line");
    assert_eq!(
        &serde_json::from_str::<T>(&text).expect("a frame of our own"),
        frame
    );
}

struct Guard {
    table: LeaseTable,
    now: Duration,
}

impl Guard {
    fn serve(&mut self, request: Request) {
        self.now += Duration::from_millis(500);
        let now = Time::both(self.now);
        self.table.expire(now);
        if let Some(due) = self.table.poll_timeout() {
            assert!(
                !now.has_passed(due),
                "everything that was due has been done"
            );
        }
        assert_eq!(self.table.expire(now), [], "done once is done");
        let before = self.table.clone();
        let (outcome, effects) = self.table.handle(now, request.command);
        if let Outcome::Refused { reason } = &outcome {
            assert!(!reason.is_empty() && !reason.contains('\n'), "{reason:?}");
            assert_eq!(
                (&self.table, effects.len()),
                (&before, 0),
                "a refusal changes nothing"
            );
        }
        assert!(self.table.entries().len() <= LEASE_LIMIT);
        let reply = Reply {
            id: request.id,
            result: outcome,
        };
        survives(&reply);
        self.succeed(now);
    }

    /// A successor reads what is kept and never opens a lease again.
    fn succeed(&self, now: Time) {
        let entries = self.table.entries();
        survives(&entries);
        let kept: Vec<LeaseEntry> = entries.clone();
        let (mut successor, _) = LeaseTable::resume(now, kept);
        assert_eq!(
            successor.entries().len(),
            entries.len(),
            "no lease is forgotten"
        );
        let (listed, _) = successor.handle(now, Command::List(Of::All));
        let Outcome::Leases(state) = listed else {
            panic!("a list was asked for")
        };
        assert!(
            state
                .leases
                .iter()
                .all(|ListedLease { lease, .. }| lease.closing),
            "no lease reopens"
        );
    }
}
