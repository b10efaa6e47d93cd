//! What the guard writes to the journal. It never waits for the journal: an entry that is not taken at once is lost.
//!
//! An entry with a MESSAGE_ID has fields, so it goes to the journal's own socket as a datagram of the
//! [native protocol](https://systemd.io/JOURNAL_NATIVE_PROTOCOL/). All other lines go to stderr, as do all entries where stderr
//! is not the journal, and those that the journal's socket does not take.

use std::{
    io::{self, Write as _},
    os::unix::net::UnixDatagram,
    sync::OnceLock,
};

use rustix::{
    io::Errno,
    net::{SendFlags, SocketAddrUnix, send, sendto},
};

use crate::{
    guard_client::frame::Lease,
    journal::{self, GuardAlarm},
    types::printable,
};

/// The socket on which the journal takes entries with fields.
const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";

/// The guard waits for no journal.
const UNBLOCKED: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// The socket and the address for entries with fields. `None`: stderr is not the journal, or there is no socket.
static JOURNAL: OnceLock<Option<(UnixDatagram, SocketAddrUnix)>> = OnceLock::new();

/// The syslog priorities that the guard uses.
#[derive(Clone, Copy)]
pub enum Priority {
    Emergency = 0,
    Alert = 1,
    Error = 3,
    Warning = 4,
    Notice = 5,
}

/// Makes the socket for entries with fields, while the host is sure to have one to give.
pub fn prepare() {
    JOURNAL.get_or_init(|| {
        let address = SocketAddrUnix::new(JOURNAL_SOCKET).ok()?;
        let socket = journal::stderr_is_the_journal().then(UnixDatagram::unbound)?;
        Some((socket.ok()?, address))
    });
}

/// Writes one line to the journal, with its priority in front as sd-daemon(3) defines it. A journal that does not read must not
/// block the guard: such a line is lost, and an error of writing is ignored.
pub fn say(level: Priority, text: &str) {
    let line = format!("<{}>{text}\n", level as u8);
    if send(io::stderr(), line.as_bytes(), UNBLOCKED) == Err(Errno::NOTSOCK) {
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// Writes the entry of an alarm, about a lease if it concerns a single one.
pub fn alarm(level: Priority, alarm: GuardAlarm, lease: Option<&Lease>, reason: &str) {
    let message = match lease {
        Some(lease) => format!("{}: {reason}", lease.service),
        None => reason.to_owned(),
    };
    let is_sent = JOURNAL
        .get()
        .and_then(Option::as_ref)
        .is_some_and(|(socket, address)| {
            let entry = encode(level, alarm, lease, reason) + &field("MESSAGE", &message);
            sendto(socket, entry.as_bytes(), UNBLOCKED, address).is_ok()
        });
    if !is_sent {
        say(level, &message);
    }
}

/// A line of an entry. A newline in a value would begin another field.
fn field(name: &str, value: &str) -> String {
    format!("{name}={}\n", printable(value))
}

/// The entry as a datagram, but for its message: a line for each field.
fn encode(level: Priority, alarm: GuardAlarm, lease: Option<&Lease>, reason: &str) -> String {
    let mut entry = field("PRIORITY", &(level as u8).to_string())
        + &field("SYSLOG_IDENTIFIER", "putex-guard")
        + &field("MESSAGE_ID", alarm.message_id())
        + &field("PUTEX_REASON", reason);
    if let Some(lease) = lease {
        entry += &field("PUTEX_SERVICE", lease.service.as_str());
        for unit in &lease.units {
            entry += &field("OBJECT_SYSTEMD_UNIT", unit.as_str());
        }
        entry += &field("PUTEX_TOKEN", &lease.terms.token.0.to_string());
    }
    entry
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::types::{
        FencingToken, Instance, LeaseTerms, NodeId, OnStopFailure, Revision, ServiceName, Time,
        UnitName, WriteId,
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
            units: ["db.service", "db-front.socket"]
                .map(|unit| UnitName::new(unit).expect("a good name"))
                .into(),
            cgroups: vec!["/system.slice/db.service".to_owned()],
            inactive: Vec::new(),
            begun: Vec::new(),
            contains: Vec::new(),
            outside: [].into(),
            on_stop_failure: OnStopFailure::Alert,
            closing: false,
        }
    }

    #[test]
    fn an_entry_has_a_line_for_each_field_and_no_other() {
        let lease = lease();
        let text = encode(
            Priority::Alert,
            GuardAlarm::Killed,
            Some(&lease),
            "it is\nlate",
        );
        let id = GuardAlarm::Killed.message_id();
        let expected = format!(
            "PRIORITY=1\nSYSLOG_IDENTIFIER=putex-guard\nMESSAGE_ID={id}\nPUTEX_REASON=it is\\nlate\n\
             PUTEX_SERVICE=db\nOBJECT_SYSTEMD_UNIT=db.service\nOBJECT_SYSTEMD_UNIT=db-front.socket\nPUTEX_TOKEN=42\n"
        );
        assert_eq!(text, expected);
        let text = encode(Priority::Alert, GuardAlarm::Ends, None, "it ends");
        assert!(
            !text.contains("PUTEX_SERVICE") && !text.contains("OBJECT_SYSTEMD_UNIT"),
            "{text}"
        );
    }
}
