//! The frames between putexd and the guard: one JSON object in each line.
//!
//! Both ends import this. After an upgrade without a reload of the guard, a new putexd may talk to an old guard for months: a field
//! is never reused with another meaning, and unknown fields are ignored. A new *command* ends the connection to an old guard.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::types::mount::{Source, SourceName};
use crate::types::{Instance, LeaseTerms, NodeId, OnStopFailure, Revision, ServiceName, Time, UnitName, WriteId};

/// The socket on which the guard listens.
pub const SOCKET: &str = "/run/putex/guard.sock";

/// The socket on which systemd listens for clients that do not use the bus.
pub const SYSTEMD_PRIVATE: &str = "/run/systemd/private";

/// The length of the longest request that the guard reads, its newline included.
pub const REQUEST_LIMIT_BYTES: usize = 64 * 1024;

/// The length of the longest reply that putexd reads, its newline included.
pub const REPLY_LIMIT_BYTES: usize = 16 * 1024 * 1024;

/// The most bytes that all leases of a guard may take in a reply, by [`Lease::listed_bytes`]. The difference is for the rest of
/// the reply. There is room for [`LEASE_LIMIT`] leases of four kilobytes each, several times the usual size.
pub const LEASES_LIMIT_BYTES: usize = REPLY_LIMIT_BYTES - 64 * 1024;

pub use crate::types::LEASE_LIMIT;

/// The most units of one lease.
pub const MEMBER_LIMIT: usize = 16;

/// The most control groups of one lease: those that its units have and would be started in, and former ones that are not empty
/// yet.
pub const CGROUP_LIMIT: usize = 64;

/// The most bytes of the path of one control group.
pub const CGROUP_LIMIT_BYTES: usize = 1024;

/// The most bytes of all paths of control groups of one lease.
pub const CGROUPS_LIMIT_BYTES: usize = 16 * 1024;

/// The most bytes that are read in one go.
const READ_BYTES: usize = 4096;

/// The bytes that were read from a connection and are not a whole line yet. Their number is limited, whatever the peer sends.
#[derive(Debug)]
pub struct Inbox {
    /// The bytes that were read, followed by room for more.
    buffer: Vec<u8>,
    /// How many bytes of the buffer were read.
    unread: usize,
    /// How many bytes of the buffer are known to have no newline.
    searched: usize,
    limit: usize,
}

impl Inbox {
    /// Takes lines of up to `limit` bytes, the newline included.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self { buffer: Vec::new(), unread: 0, searched: 0, limit }
    }

    /// The next line with its newline. `None`: it has not arrived yet.
    pub fn line(&mut self) -> Option<Vec<u8>> {
        let newline = self.buffer[self.searched..self.unread].iter().position(|byte| *byte == b'\n');
        let Some(newline) = newline else {
            self.searched = self.unread;
            return None;
        };
        let end = self.searched + newline + 1;
        let line = self.buffer[..end].to_vec();
        self.buffer.copy_within(end..self.unread, 0);
        (self.unread, self.searched) = (self.unread - end, 0);
        Some(line)
    }

    /// Where to read into. [`Inbox::take`] has to be told afterwards how much was read. Fails when a line is longer than the
    /// limit.
    pub fn room(&mut self) -> io::Result<&mut [u8]> {
        let room = (self.limit - self.unread).min(READ_BYTES);
        if room == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is too long"));
        }
        let end = self.unread + room;
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        } else if self.buffer.len() > end + READ_BYTES {
            // A long line is rare, so its memory is given back.
            self.buffer.truncate(end);
            self.buffer.shrink_to_fit();
        }
        Ok(&mut self.buffer[self.unread..end])
    }

    /// Adds `count` bytes that were read into the last [`Inbox::room`], which has to be asked for anew before the next read.
    pub fn take(&mut self, count: usize) {
        self.unread += count;
    }
}

/// A lease as the guard keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The service whose units may run.
    pub service: ServiceName,
    /// The node's name, for the unit's environment.
    pub node: NodeId,
    /// The terms, as the election has set them.
    pub terms: LeaseTerms,
    /// The units to stop. The lease target is stopped first, because its stop takes everything that is bound to it along, in
    /// the right order; then these, in case one of them is not bound.
    pub units: Vec<UnitName>,
    /// The units' control groups as PID 1 names them (such as `/system.slice/database.service`): those that they have, those
    /// that they would be started in now, and former ones until they were seen empty.
    pub cgroups: Vec<String>,
    /// Those of the units that can be active without a process (mounts, `RemainAfterExit=`). An empty control group proves
    /// nothing for them, so PID 1 must show `ActiveState=inactive` and `Result=success` as well.
    #[serde(default)]
    pub inactive: Vec<UnitName>,
    /// Those of `inactive` whose start under this lease has begun, or is about to, and is not known to have ended: systemd may
    /// have stopped one half-way, called that a success, and forgotten it. An old putexd never sends this.
    #[serde(default)]
    pub begun: Vec<UnitName>,
    /// Slices and scopes in which the units have other programs run. They are stopped after SIGKILL was sent: only their start
    /// needs the lease, so systemd would start things in them for as long as they are active.
    #[serde(default)]
    pub contains: Vec<UnitName>,
    /// What to do when the stop cannot be proven by `deadline + stop_budget`.
    pub on_stop_failure: OnStopFailure,
    /// Whether the lease is closed for a release (H5): the grant is gone for good, and the deadline still counts and can be
    /// extended.
    pub closing: bool,
}

/// A request of putexd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The number of the request, unique on its connection; the reply has the same.
    pub id: u64,
    /// What to do.
    pub command: Command,
    /// Which leases the answer to `List` is to have. An old guard sends all of them.
    #[serde(default, skip_serializing_if = "Of::is_all")]
    pub of: Of,
    /// With `List`: not a list is asked for, but what a mount is of, and whether a file system uses its devices. The reply comes when
    /// that is known, after later ones. An old guard ignores this, and sends the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceName>,
}

/// Which leases a list has. All of them are too many to be sent again and again.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Of {
    /// All leases.
    #[default]
    All,
    /// The lease of this service, if there is one.
    One(ServiceName),
    /// No lease: only the state of the guard is asked for.
    None,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Of {
    fn is_all(&self) -> bool {
        *self == Self::All
    }
}

/// The five commands of putexd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// Sets a deadline and writes the grant. Refused when the deadline has passed, while the lease of another instance of the
    /// service is not disarmed, when this instance's lease is closing or has lapsed, or while the lease of another service
    /// covers one of the units or control groups. While the lease is open, the command may be sent again to replace the lease, by
    /// an earlier deadline only with `shorter`; so the guard learns of other control groups. It is also refused when the record for
    /// the guard's successor cannot be written; all other commands are executed nevertheless.
    ///
    /// With `closing: true` it opens nothing and moves no deadline: it adds units and control groups to this instance's lease
    /// that is closing or has lapsed. A guard of an earlier version refuses that.
    Arm {
        /// The complete lease, whichever parts of it are new.
        lease: Lease,
        /// The deadline of an open lease may become earlier. An old guard ignores this, and refuses an earlier deadline.
        #[serde(default, skip_serializing_if = "is_false")]
        shorter: bool,
    },
    /// Moves the deadline of an armed or closing lease of the same instance to a later time. Refused when the lease is unknown,
    /// is another instance's or has lapsed, or when the deadline is not later or has passed. Sent again, it changes nothing.
    Extend {
        /// The service of the lease.
        service: ServiceName,
        /// The tenure that the lease belongs to.
        instance: Instance,
        /// The write to the store that the new deadline counts from.
        write: WriteId,
        /// The revision of that write.
        revision: Revision,
        /// The later deadline.
        deadline: Time,
    },
    /// Removes the grant and keeps the deadline. Sent again, it changes nothing.
    Close {
        /// The service of the lease.
        service: ServiceName,
        /// The tenure that the lease belongs to.
        instance: Instance,
    },
    /// Forgets the lease, because its units are proven dead. It succeeds as well if the service has no lease. Refused for
    /// another instance's lease.
    Disarm {
        /// The service of the lease.
        service: ServiceName,
        /// The tenure that the lease belongs to.
        instance: Instance,
    },
    /// Asks for all leases that are not disarmed, lapsed ones included, or for those of them that [`Request::of`] selects.
    List,
}

/// The guard's reply. It is sent after the timer is set, and record and grant are written as far as /run has space for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The number of the request.
    pub id: u64,
    /// The outcome of the command.
    pub result: Outcome,
}

/// The outcome of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The command was executed.
    Done,
    /// The command was not executed; nothing changed.
    Refused {
        /// The reason, in lower case: the end of "the guard refused: ".
        reason: String,
    },
    /// The answer to `List`.
    Leases {
        /// The leases, in no particular order. An old guard sends more than were asked for.
        leases: Vec<ListedLease>,
        /// The watchdog that the guard was told to serve. An old guard never sends one.
        #[serde(default)]
        watchdog: Option<Watchdog>,
        /// Why no lease can be armed: the guard cannot write to /run, and what to do about it. A whole text, in lower case. An
        /// old guard never sends this.
        #[serde(default)]
        trouble: Option<String>,
        /// The version of the guard. An old guard never sends this.
        #[serde(default)]
        version: Option<String>,
    },
    /// The answer to [`Request::source`], from a look that began after the request had come.
    Source(Source),
}

/// The state of the hardware watchdog that a guard serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watchdog {
    /// The path of its device.
    pub device: PathBuf,
    /// The timeout that the guard was told.
    pub timeout: Duration,
    /// Why it is not served, in lower case: the end of "the watchdog is not served: ". No lease is armed meanwhile.
    pub trouble: Option<String>,
}

/// A lease in the answer to `List`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedLease {
    /// The lease. After a restart of the guard it is `closing`: the grants did not outlive the old guard.
    pub lease: Lease,
    /// The deadline has passed; the guard is stopping the units, or has stopped them.
    pub lapsed: bool,
    /// The guard has seen the units dead after SIGKILL was due, sees nothing of them now, and systemd has taken on their stop.
    /// An old guard never sends this.
    #[serde(default)]
    pub stopped: bool,
}

impl Lease {
    /// An upper limit of the bytes that the lease takes in a list.
    #[must_use]
    pub fn listed_bytes(&self) -> usize {
        /// All fields of a fixed length, the numbers with the most digits, and the names of all fields.
        const FIXED_BYTES: usize = 1024;
        // A backslash takes two bytes in JSON. No other character that may be in a name takes more.
        let bytes = |length: usize| 2 * length + "\"\",".len();
        let lists = [&self.units, &self.inactive, &self.begun, &self.contains];
        let units = lists.into_iter().flatten().map(|unit| bytes(unit.as_str().len()));
        let cgroups = self.cgroups.iter().map(|path| bytes(path.len()));
        FIXED_BYTES + bytes(self.node.as_str().len()) + units.chain(cgroups).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::types::FencingToken;
    use crate::types::mount::{Claim, Device};

    fn lease() -> Lease {
        Lease {
            service: ServiceName::new("database").expect("a good name"),
            node: NodeId::new("alpha").expect("a good name"),
            terms: LeaseTerms {
                instance: Instance(1),
                write: WriteId(2),
                revision: Revision(3),
                token: FencingToken(4),
                deadline: Time::both(Duration::from_secs(10)),
                stop_budget: Duration::from_secs(5),
                kill_reserve: Duration::from_secs(1),
            },
            units: vec![UnitName::new("database.service").expect("a good name")],
            cgroups: vec!["/system.slice/database.service".to_owned()],
            inactive: Vec::new(),
            begun: Vec::new(),
            contains: Vec::new(),
            on_stop_failure: OnStopFailure::Alert,
            closing: false,
        }
    }

    fn source_name() -> SourceName {
        SourceName { what: "UUID=7".to_owned(), is_bind: false, was: Some("/dev/sdb".to_owned()) }
    }

    fn at(seconds: u64) -> Time {
        Time::both(Duration::from_secs(seconds))
    }

    fn commands() -> Vec<Command> {
        let (service, instance) = (lease().service, lease().terms.instance);
        vec![
            Command::Arm { lease: lease(), shorter: false },
            Command::Extend {
                service: service.clone(),
                instance,
                write: WriteId(9),
                revision: Revision(9),
                deadline: Time::both(Duration::from_secs(20)),
            },
            Command::Close { service: service.clone(), instance },
            Command::Disarm { service, instance },
            Command::List,
        ]
    }

    #[test]
    fn requests_come_back_as_they_were() {
        for (id, command) in (0..).zip(commands()) {
            let request = Request { id, command, of: Of::One(lease().service), source: Some(source_name()) };
            let text = serde_json::to_string(&request).expect("encodes");
            assert!(!text.contains('\n'), "a frame is one line");
            assert_eq!(serde_json::from_str::<Request>(&text).expect("decodes"), request);
        }
    }

    #[test]
    fn replies_come_back_as_they_were() {
        for result in [
            Outcome::Done,
            Outcome::Refused { reason: "no\nwonder".to_owned() },
            Outcome::Leases {
                leases: vec![ListedLease { lease: lease(), lapsed: true, stopped: true }],
                watchdog: None,
                trouble: None,
                version: None,
            },
            Outcome::Leases {
                leases: Vec::new(),
                trouble: Some("free space in /run".to_owned()),
                version: Some("0.1.0".to_owned()),
                watchdog: Some(Watchdog {
                    device: "/dev/watchdog".into(),
                    timeout: Duration::from_secs(3),
                    trouble: Some("busy".to_owned()),
                }),
            },
            Outcome::Source(Source {
                devices: vec![Device { path: "/dev/sdb".to_owned(), number: "8:16".to_owned(), claim: Claim::Busy }],
                is_file: false,
                is_bind: false,
            }),
        ] {
            let reply = Reply { id: u64::MAX, result };
            let text = serde_json::to_string(&reply).expect("encodes");
            assert!(!text.contains('\n'), "a frame is one line");
            assert_eq!(serde_json::from_str::<Reply>(&text).expect("decodes"), reply);
        }
    }

    #[test]
    fn the_wire_format_stays_as_old_guards_know_it() {
        let [_, _, close, ..] = &commands()[..] else { panic!("five commands") };
        let text = serde_json::to_string(&Request { id: 7, command: close.clone(), of: Of::All, source: None })
            .expect("encodes");
        let expected =
            r#"{"id":7,"command":{"close":{"service":"database","instance":"00000000000000000000000000000001"}}}"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn lines_come_out_as_they_were_cut() {
        let text = b"one\n\ntwo three\nrest";
        for cut in 1..=text.len() {
            let mut inbox = Inbox::new(10);
            let mut lines = Vec::new();
            for read in text.chunks(cut.min(10)) {
                let mut rest = read;
                while !rest.is_empty() {
                    let room = inbox.room().expect("no line is too long");
                    let (now, later) = rest.split_at(rest.len().min(room.len()));
                    room[..now.len()].copy_from_slice(now);
                    inbox.take(now.len());
                    rest = later;
                    while let Some(line) = inbox.line() {
                        lines.push(String::from_utf8(line).expect("it is text"));
                    }
                }
            }
            assert_eq!(lines, ["one\n", "\n", "two three\n"], "cut at {cut}");
        }
    }

    #[test]
    fn a_line_may_be_as_long_as_the_limit_and_no_longer() {
        for (length, limit) in [(10, 10), (10_000, 10_000)] {
            let mut inbox = Inbox::new(limit);
            let mut line = vec![b'x'; length - 1];
            for _ in 0..3 {
                if let Ok(room) = inbox.room() {
                    let count = room.len().min(line.len());
                    room[..count].copy_from_slice(&line[..count]);
                    inbox.take(count);
                    line.drain(..count);
                }
                assert_eq!(inbox.line(), None);
            }
            assert_eq!(inbox.room().expect("one byte is left").len(), 1);
            inbox.room().expect("one byte is left").copy_from_slice(b"x");
            inbox.take(1);
            assert_eq!(inbox.line(), None);
            assert_eq!(inbox.room().expect_err("it is too long").kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn an_old_guard_serves_no_watchdog_and_does_not_say_its_version() {
        let reply: Reply = serde_json::from_str(r#"{"id":7,"result":{"leases":{"leases":[]}}}"#).expect("decodes");
        assert_eq!(reply.result, Outcome::Leases { leases: Vec::new(), watchdog: None, trouble: None, version: None });
    }

    #[test]
    fn fields_of_a_newer_putexd_are_ignored() {
        let text = r#"{"id":7,"colour":"red","command":{"close":{"service":"a","instance":"00000000000000000000000000000001","why":1}}}"#;
        assert!(serde_json::from_str::<Request>(text).is_ok());
    }

    #[test]
    fn a_program_of_another_version_has_the_same_limits() {
        assert_eq!((REQUEST_LIMIT_BYTES, REPLY_LIMIT_BYTES), (65_536, 16_777_216));
        assert_eq!((LEASE_LIMIT, MEMBER_LIMIT), (4096, 16));
        assert_eq!((CGROUP_LIMIT, CGROUP_LIMIT_BYTES, CGROUPS_LIMIT_BYTES), (64, 1024, 16_384));
        assert_eq!(LEASES_LIMIT_BYTES, 16_711_680);
    }

    #[test]
    fn beside_the_leases_a_reply_has_room_for_the_longest_rest() {
        // U+0001 takes six bytes in JSON. The longest path that Linux takes consists of it, and so does the path that the text
        // names.
        let longest = "\u{1}".repeat(4095);
        let rest = Outcome::Leases {
            leases: Vec::new(),
            watchdog: Some(Watchdog {
                device: PathBuf::from(&longest),
                timeout: Duration::new(u64::MAX, 999_999_999),
                trouble: Some("x".repeat(4096)),
            }),
            trouble: Some(longest + &"x".repeat(4096)),
            version: Some("x".repeat(256)),
        };
        let text = serde_json::to_vec(&Reply { id: u64::MAX, result: rest }).expect("encodes");
        assert!(text.len() < REPLY_LIMIT_BYTES - LEASES_LIMIT_BYTES, "{}", text.len());
    }

    #[test]
    fn a_lease_says_when_its_units_are_killed_and_dead() {
        assert_eq!((lease().terms.kill_at(), lease().terms.dead_by()), (at(14), at(15)));
    }

    #[test]
    fn an_old_putexd_asks_for_all_leases_and_an_old_guard_sends_them() {
        let old: Request = serde_json::from_str(r#"{"id":7,"command":"list"}"#).expect("decodes");
        assert_eq!((old.command, old.of), (Command::List, Of::All));
        let new = Request { id: 7, command: Command::List, of: Of::None, source: None };
        let new = serde_json::to_string(&new).expect("encodes");
        assert_eq!(new, r#"{"id":7,"command":"list","of":"none"}"#, "an old guard knows the command");
    }

    #[test]
    fn a_question_about_a_mount_is_a_list_to_an_old_guard_and_has_room_in_a_request() {
        // U+0001 takes six bytes in JSON.
        let longest = "\u{1}".repeat(SourceName::LIMIT_BYTES);
        let source = SourceName { what: longest.clone(), is_bind: false, was: Some(longest) };
        assert!(source.is_short());
        let request = Request { id: u64::MAX, command: Command::List, of: Of::None, source: Some(source.clone()) };
        let text = serde_json::to_string(&request).expect("encodes");
        assert!(text.len() < REQUEST_LIMIT_BYTES, "{}", text.len());
        assert!(text.starts_with(r#"{"id":18446744073709551615,"command":"list","of":"none","source":{"what":"#));
        let longer = source.what + "x";
        assert!(!SourceName { what: String::new(), is_bind: false, was: Some(longer) }.is_short());
    }

    /// A lease of the largest size that a request can have.
    fn largest() -> Lease {
        let unit = UnitName::new(&format!("{}.service", "\\".repeat(247))).expect("a good name");
        let units = vec![unit; MEMBER_LIMIT];
        Lease {
            service: ServiceName::new(&"s".repeat(64)).expect("a good name"),
            node: NodeId::new(&"\\".repeat(128)).expect("a good name"),
            terms: LeaseTerms {
                instance: Instance(u128::MAX),
                write: WriteId(u128::MAX),
                revision: Revision(u64::MAX),
                token: FencingToken(u64::MAX),
                deadline: Time::both(Duration::new(u64::MAX, 999_999_999)),
                stop_budget: Duration::new(u64::MAX, 999_999_999),
                kill_reserve: Duration::new(u64::MAX, 999_999_999),
            },
            units: units.clone(),
            cgroups: vec!["\\".repeat(CGROUPS_LIMIT_BYTES / CGROUP_LIMIT); CGROUP_LIMIT],
            inactive: units,
            begun: Vec::new(),
            contains: Vec::new(),
            on_stop_failure: OnStopFailure::RebootForce,
            closing: false,
        }
    }

    #[test]
    fn an_old_guard_says_of_no_units_that_they_are_dead() {
        let mut listed =
            serde_json::to_value(ListedLease { lease: lease(), lapsed: true, stopped: true }).expect("encodes");
        listed.as_object_mut().expect("an object").remove("stopped").expect("a new guard says it");
        let listed: ListedLease = serde_json::from_value(listed).expect("decodes");
        assert!(listed.lapsed && !listed.stopped);
    }

    #[test]
    fn the_longest_list_fits_in_a_reply() {
        let arm = Command::Arm { lease: largest(), shorter: true };
        let request = Request { id: u64::MAX, command: arm, of: Of::All, source: None };
        assert!(serde_json::to_vec(&request).expect("encodes").len() < REQUEST_LIMIT_BYTES);
        for lease in [lease(), largest()] {
            let bytes = lease.listed_bytes();
            let listed = vec![
                ListedLease { lease, lapsed: false, stopped: false };
                (LEASES_LIMIT_BYTES / bytes).min(LEASE_LIMIT)
            ];
            assert!(listed.len() >= 256);
            let text = serde_json::to_vec(&listed).expect("encodes");
            assert!(text.len() <= bytes * listed.len(), "{} of {bytes}", text.len() / listed.len());
        }
        assert!(lease().listed_bytes() * LEASE_LIMIT < LEASES_LIMIT_BYTES / 2, "usual ones are far below the limit");
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = serde_json::from_slice::<Request>(&bytes);
            let _ = serde_json::from_slice::<Reply>(&bytes);
        }

        /// This is closer to the format than random bytes: a valid frame with some bytes replaced.
        #[test]
        fn decoding_a_damaged_frame_never_panics(
            which in 0_usize..5,
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let request = Request { id: 1, command: commands().swap_remove(which), of: Of::All, source: Some(source_name()) };
            let mut bytes = serde_json::to_vec(&request).expect("encodes");
            for (index, byte) in damage {
                let at = index.index(bytes.len());
                bytes[at] = byte;
            }
            let _ = serde_json::from_slice::<Request>(&bytes);
        }
    }
}
