//! What the guard writes to the journal. It never waits for the journal: an entry that is not taken at once is lost.
//!
//! An entry with a MESSAGE_ID has fields, so it goes to the journal's own socket as a datagram of the
//! [native protocol](https://systemd.io/JOURNAL_NATIVE_PROTOCOL/). All other lines go to stderr, as do all entries where stderr
//! is not the journal, and those that the journal's socket does not take.

use std::io::{self, Write as _};
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrUnix, send, sendto};

use crate::guard_client::frame::Lease;
use crate::host::clock;
use crate::host::descriptors::Shortage;
use crate::journal::{self, GuardAlarm};
use crate::systemd::gate::GUARD_UNIT;
use crate::types::{printable, span};

/// The socket on which the journal takes entries with fields.
const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";

/// The program's name in the journal.
const IDENTIFIER: &str = "putex-guard";

/// The socket and the address for entries with fields. `None`: stderr is not the journal, or there is no socket.
static JOURNAL: OnceLock<Option<(UnixDatagram, SocketAddrUnix)>> = OnceLock::new();

/// The syslog priorities that the guard uses.
#[derive(Debug, Clone, Copy)]
pub(super) enum Level {
    Emergency = 0,
    Alert = 1,
    Error = 3,
    Warning = 4,
    Notice = 5,
    Info = 6,
}

/// Makes the socket for entries with fields, while the host is sure to have one to give.
pub(super) fn prepare() {
    JOURNAL.get_or_init(|| {
        let address = SocketAddrUnix::new(JOURNAL_SOCKET).ok()?;
        journal::stderr_is_the_journal().then(UnixDatagram::unbound)?.ok().map(|socket| (socket, address))
    });
}

/// Writes one line to the journal, with its priority in front as sd-daemon(3) defines it. A journal that does not read must not
/// block the guard: such a line is lost, and an error of writing is ignored.
pub(super) fn say(level: Level, text: &str) {
    let line = format!("<{}>{text}\n", level as u8);
    let unblocked = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    if send(io::stderr(), line.as_bytes(), unblocked) == Err(Errno::NOTSOCK) {
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// What to do, and what it is, if an error tells that descriptors have run out: that is no fact about what was looked at. The guard is
/// not restarted for it, because every lease would end.
pub(super) fn shortage(error: &io::Error) -> Option<String> {
    let cure = format!("run \"prlimit --pid {} --nofile=65536\"", std::process::id());
    Shortage::of(error).map(|shortage| shortage.in_words_with(GUARD_UNIT, &cure))
}

/// An error as it is told to putexd.
pub(super) fn in_words(error: &io::Error) -> String {
    shortage(error).unwrap_or_else(|| error.to_string())
}

/// Writes the entry of an alarm that concerns no single lease.
pub(super) fn alarm(level: Level, alarm: GuardAlarm, reason: &str) {
    enter(level, alarm, reason, &Subject::default());
}

/// Writes the entry of an alarm about a lease. `killed` are the control groups that have got SIGKILL.
pub(super) fn alarm_of(level: Level, alarm: GuardAlarm, lease: &Lease, killed: &[&str], reason: &str) {
    enter(level, alarm, reason, &Subject { lease: Some(lease), killed });
}

#[derive(Default)]
struct Subject<'a> {
    lease: Option<&'a Lease>,
    killed: &'a [&'a str],
}

fn enter(level: Level, alarm: GuardAlarm, reason: &str, subject: &Subject<'_>) {
    let message = match subject.lease {
        Some(lease) => format!("{}: {reason}", lease.service),
        None => reason.to_owned(),
    };
    let is_sent = JOURNAL.get().and_then(Option::as_ref).is_some_and(|(socket, address)| {
        let entry = encode(level, alarm, &message, reason, subject);
        sendto(socket, &entry, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, address).is_ok()
    });
    if !is_sent {
        say(level, &message);
    }
}

/// The entry as a datagram: a line for each field.
fn encode(level: Level, alarm: GuardAlarm, message: &str, reason: &str, subject: &Subject<'_>) -> Vec<u8> {
    let mut entry = Vec::new();
    let mut field = |name: &str, value: &str| {
        // A newline in a value would begin another field.
        let value = printable(value);
        entry.extend_from_slice(format!("{name}={value}\n").as_bytes());
    };
    field("MESSAGE", message);
    field("PRIORITY", &(level as u8).to_string());
    field("SYSLOG_IDENTIFIER", IDENTIFIER);
    field("MESSAGE_ID", alarm.message_id());
    field("PUTEX_REASON", reason);
    if let Some(lease) = subject.lease {
        field("PUTEX_SERVICE", lease.service.as_str());
        for unit in &lease.units {
            field("OBJECT_SYSTEMD_UNIT", unit.as_str());
        }
        field("PUTEX_TOKEN", &lease.terms.token.0.to_string());
        field("PUTEX_DEADLINE", &deadline(lease));
    }
    for group in subject.killed {
        field("PUTEX_KILLED", group);
    }
    entry
}

/// The deadline of a lease as a date.
fn deadline(lease: &Lease) -> String {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (now, deadline) = (clock::now().boot, lease.terms.deadline.boot);
    let at = (wall + deadline.saturating_sub(now)).saturating_sub(now.saturating_sub(deadline));
    span::date(at.as_secs())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::types::{
        FencingToken, Instance, LeaseTerms, NodeId, OnStopFailure, Revision, ServiceName, Time, UnitName, WriteId,
    };

    fn lease() -> Lease {
        Lease {
            service: ServiceName::new("db").expect("a good name"),
            node: NodeId::new("h1").expect("a good name"),
            terms: LeaseTerms {
                instance: Instance(1),
                write: WriteId(2),
                revision: Revision(3),
                token: FencingToken(42),
                deadline: Time::both(Duration::ZERO),
                stop_budget: Duration::from_secs(5),
                kill_reserve: Duration::from_secs(1),
            },
            units: ["db.service", "db-front.socket"].map(|unit| UnitName::new(unit).expect("a good name")).into(),
            cgroups: vec!["/system.slice/db.service".to_owned()],
            inactive: Vec::new(),
            begun: Vec::new(),
            contains: Vec::new(),
            on_stop_failure: OnStopFailure::Alert,
            closing: false,
        }
    }

    #[test]
    fn an_entry_has_a_line_for_each_field_and_no_other() {
        let (lease, killed) = (lease(), ["/system.slice/db.service\nPRIORITY=7"]);
        let subject = Subject { lease: Some(&lease), killed: &killed };
        let entry = encode(Level::Alert, GuardAlarm::Killed, "db: it is late", "it is late", &subject);
        let text = String::from_utf8(entry).expect("it is text");
        let (before, after) = text.split_once("PUTEX_DEADLINE=").expect("it has a deadline");
        let id = GuardAlarm::Killed.message_id();
        let expected = format!(
            "MESSAGE=db: it is late\nPRIORITY=1\nSYSLOG_IDENTIFIER=putex-guard\nMESSAGE_ID={id}\nPUTEX_REASON=it is late\n\
             PUTEX_SERVICE=db\nOBJECT_SYSTEMD_UNIT=db.service\nOBJECT_SYSTEMD_UNIT=db-front.socket\nPUTEX_TOKEN=42\n"
        );
        assert_eq!(before, expected);
        let (date, killed) = after.split_once('\n').expect("more follows");
        assert!(date.ends_with('Z') && date.starts_with("20"), "{date}");
        assert_eq!(killed, "PUTEX_KILLED=/system.slice/db.service\\nPRIORITY=7\n");
        let entry = encode(Level::Alert, GuardAlarm::Ends, "it ends", "it ends", &Subject::default());
        let text = String::from_utf8(entry).expect("it is text");
        assert!(!text.contains("PUTEX_SERVICE") && !text.contains("OBJECT_SYSTEMD_UNIT"), "{text}");
    }
}
