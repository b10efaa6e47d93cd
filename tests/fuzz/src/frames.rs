//! The guard's socket: lines of any length in pieces of any size, requests and replies in them, and the table behind.

use std::time::Duration;

use putexd::guard::table::{Entry, Table};
use putexd::guard_client::frame::{
    Inbox, LEASE_LIMIT, ListedLease, Outcome, REPLY_LIMIT_BYTES, REQUEST_LIMIT_BYTES, Reply, Request,
};
use putexd::types::Time;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A small limit for the inbox, so that short inputs reach it.
const SMALL_LIMIT: usize = 512;

/// The first byte says in pieces of which size the rest comes in.
pub fn frames(input: &[u8]) {
    let Some((&piece, input)) = input.split_first() else { return };
    let piece = usize::from(piece).max(1);
    let whole: Vec<&[u8]> = input.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")).collect();
    for limit in [SMALL_LIMIT, REQUEST_LIMIT_BYTES] {
        let (lines, refused) = lines(input, piece, limit);
        assert!(lines.iter().zip(&whole).all(|(line, expected)| line == expected), "lines come out as they went in");
        if !refused {
            assert_eq!(lines.len(), whole.len(), "no line is lost");
        }
    }
    let mut guard = Guard { table: Table::default(), now: Duration::from_secs(1) };
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

/// What comes out of an inbox that takes at most `piece` bytes at once, and whether it refused to go on.
fn lines(input: &[u8], piece: usize, limit: usize) -> (Vec<Vec<u8>>, bool) {
    let mut inbox = Inbox::new(limit);
    let mut found = Vec::new();
    let mut rest = input;
    loop {
        while let Some(line) = inbox.line() {
            assert!(line.len() <= limit, "a line beyond the limit");
            found.push(line);
        }
        let Ok(room) = inbox.room() else {
            let unread = found.iter().map(Vec::len).sum::<usize>();
            assert!(!input[unread..unread + limit].contains(&b'\n'), "only a line that is too long is refused");
            return (found, true);
        };
        assert!(room.len() <= limit, "nothing is allocated beyond the limit");
        let (read, after) = rest.split_at(room.len().min(piece).min(rest.len()));
        if read.is_empty() {
            return (found, false);
        }
        room[..read.len()].copy_from_slice(read);
        inbox.take(read.len());
        rest = after;
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
    assert_eq!(&serde_json::from_str::<T>(&text).expect("a frame of our own"), frame);
}

struct Guard {
    table: Table,
    now: Duration,
}

impl Guard {
    fn serve(&mut self, request: Request) {
        self.now += Duration::from_millis(500);
        let now = Time::both(self.now);
        self.table.expire(now);
        if let Some(due) = self.table.poll_timeout() {
            assert!(!now.has_passed(due), "everything that was due has been done");
        }
        assert_eq!(self.table.expire(now), [], "done once is done");
        let before = self.table.clone();
        let (outcome, effects) = self.table.handle(now, request.command);
        if let Outcome::Refused { reason } = &outcome {
            assert!(!reason.is_empty() && !reason.contains('\n'), "{reason:?}");
            assert_eq!((&self.table, effects.len()), (&before, 0), "a refusal changes nothing");
        }
        assert!(self.table.entries().len() <= LEASE_LIMIT);
        let reply = Reply { id: request.id, result: outcome };
        survives(&reply);
        assert!(serde_json::to_vec(&reply).expect("it can be written").len() < REPLY_LIMIT_BYTES);
        self.succeed(now);
    }

    /// A successor reads what is kept and never opens a lease again.
    fn succeed(&self, now: Time) {
        let entries = self.table.entries();
        survives(&entries);
        let kept: Vec<Entry> = entries.clone();
        let (mut successor, _) = Table::resume(now, kept);
        assert_eq!(successor.entries().len(), entries.len(), "no lease is forgotten");
        let (listed, _) = successor.handle(now, putexd::guard_client::frame::Command::List);
        let Outcome::Leases { leases, .. } = listed else { panic!("a list was asked for") };
        assert!(leases.iter().all(|ListedLease { lease, .. }| lease.closing), "no lease reopens");
    }
}
