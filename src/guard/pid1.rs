//! The guard's calls to PID 1, over systemd's private socket: they need no bus, no broker and no async runtime.
//!
//! zbus builds and reads the messages but does not carry them, because that takes an async runtime.
//! [`wire`](crate::systemd::wire) says what zbus does not read.
//!
//! Each connection has one time limit for everything, because PID 1 may hang, and its socket with it. Many calls go over one
//! connection, because PID 1 takes longer to make a connection than to answer a call, and it limits their number.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use zbus::message::{Header, Type as MessageType};
use zbus::wire::serialized::{Context, Data};
use zbus::wire::{DynamicType, Endian, Type};
use zbus::{Message, OwnedObjectPath, OwnedVariant};

use super::told;
use crate::host::failed_start::{Exit, FailedStart};
use crate::host::mounts::{Configured, place_of};
use crate::systemd::wire::{FIXED_BYTES, Layout, mend_sender};
use crate::types::UnitName;

const MANAGER: &str = "/org/freedesktop/systemd1";
const MANAGER_INTERFACE: &str = "org.freedesktop.systemd1.Manager";
const PROPERTIES_INTERFACE: &str = "org.freedesktop.DBus.Properties";
/// The unit types, except slices, that have a control group of their own.
const WITH_PROCESSES: [&str; 5] = ["service", "socket", "mount", "swap", "scope"];
const SIGKILL: i32 = 9;
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

/// The longest message that is read. Usual answers have about a hundred bytes.
const MESSAGE_LIMIT_BYTES: usize = 128 * 1024;

/// Why there is no answer, or not the wanted one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection failed, or the time limit is over.
    #[error("systemd does not answer: {}", told::in_words(.0))]
    Silent(#[from] io::Error),
    /// The answer is not what the D-Bus call returns.
    #[error("systemd's answer cannot be read: {0}")]
    Garbled(#[from] zbus::Error),
    /// systemd answered with this D-Bus error.
    #[error("systemd refused: {0}")]
    Refused(String),
}

impl Error {
    /// Whether the connection cannot be used again: it is not known to which call the next answer would belong.
    pub fn ends_connection(&self) -> bool {
        match self {
            Self::Silent(_) | Self::Garbled(_) => true,
            Self::Refused(_) => false,
        }
    }
}

/// The units of a lease that can be active without a process.
#[derive(Debug)]
pub struct WithoutProcess<'a> {
    /// The lease target, which became active when the lease began.
    pub target: &'a UnitName,
    /// The units: the lease's `inactive`.
    pub units: &'a [UnitName],
    /// Those of the units whose start may have been stopped half-way.
    pub begun: &'a [UnitName],
}

/// Checks that systemd accepts a connection and authenticates it within `limit`.
pub fn are_you_there(socket: &Path, limit: Duration) -> Result<(), Error> {
    Systemd::connect(socket, limit).map(drop)
}

fn known(result: Result<Answer, Error>) -> Result<Option<Answer>, Error> {
    match result {
        Ok(answer) => Ok(Some(answer)),
        Err(Error::Refused(name)) if name == NO_SUCH_UNIT => Ok(None),
        Err(error) => Err(error),
    }
}

/// The name of a unit's D-Bus interface, such as `Mount` for `srv-data.mount`.
fn type_interface(unit: &UnitName) -> String {
    let (first, rest) = unit.kind().split_at(1);
    format!("{}{rest}", first.to_ascii_uppercase())
}

/// A command of a service, as systemd describes it: path, arguments, whether a failure is ignored, four times, process id, exit
/// code and status.
type CommandOfUnit = (String, Vec<String>, bool, u64, u64, u64, u64, u32, i32, i32);

/// The body of a method return.
struct Answer {
    bytes: Vec<u8>,
    endian: Endian,
    body: usize,
}

impl Answer {
    fn body<T>(&self) -> Result<T, Error>
    where
        T: for<'a> serde::Deserialize<'a> + Type,
    {
        let data = Data::new(&self.bytes[self.body..], Context::new(self.endian, 0));
        Ok(data.deserialize::<T>()?.0)
    }
}

/// A connection to systemd, with one time limit.
pub struct Systemd {
    stream: UnixStream,
    until: Instant,
}

impl Systemd {
    /// Connects and authenticates. After `limit`, counted from now, every call fails.
    pub fn connect(path: &Path, limit: Duration) -> Result<Self, Error> {
        // When PID 1 hangs, its backlog fills, and a blocking connect would wait for it.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(io::Error::from)?;
        let address = SocketAddrUnix::new(path).map_err(io::Error::from)?;
        connect(&socket, &address).map_err(io::Error::from)?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        let mut systemd = Self { stream, until: Instant::now() + limit };
        systemd.authenticate()?;
        Ok(systemd)
    }

    /// Queues a stop of each of `units`, in this order. A unit that systemd does not know counts as stopped.
    pub fn stop<'a>(&mut self, units: impl IntoIterator<Item = &'a UnitName>) -> Result<(), Error> {
        for unit in units {
            // "replace" cancels a start that is queued, which must not happen after a lapse.
            known(self.call(MANAGER, MANAGER_INTERFACE, "StopUnit", &(unit.as_str(), "replace")))?;
        }
        Ok(())
    }

    /// Has systemd thaw units and slices, because systemd 256 and newer stops no frozen unit. Nothing is waited for: systemd reads one
    /// call after another, refuses what is not frozen, and may answer late.
    pub fn thaw<'a>(&mut self, units: impl IntoIterator<Item = &'a str>) -> Result<(), Error> {
        for unit in units {
            let message = Message::method_call(MANAGER, "ThawUnit").interface(MANAGER_INTERFACE).build(&unit)?;
            self.send(message.data())?;
        }
        Ok(())
    }

    /// Those of `units` that are active now.
    pub fn started(&mut self, units: &[UnitName]) -> Result<Vec<UnitName>, Error> {
        let mut started = Vec::new();
        for unit in units {
            let Some(path) = self.find("GetUnit", unit)? else { continue };
            if self.property(&path, "Unit", "ActiveState")? == "active" {
                started.push(unit.clone());
            }
        }
        Ok(started)
    }

    /// The control groups that `units` have now. putexd does not know them if a unit was moved to another slice and started
    /// there while putexd hung.
    pub fn groups(&mut self, units: &[UnitName]) -> Result<Vec<String>, Error> {
        let mut groups = Vec::new();
        for unit in units.iter().filter(|unit| WITH_PROCESSES.contains(&unit.kind())) {
            let Some(path) = self.find("GetUnit", unit)? else { continue };
            groups.push(self.property(&path, &type_interface(unit), "ControlGroup")?);
        }
        // A unit has no group before its first start.
        groups.retain(|group| !group.is_empty());
        Ok(groups)
    }

    /// Sends SIGKILL to the main processes of `units`, in whichever control group they are, because systemd knows the processes
    /// best. Returns whether systemd still has a main process, dead or not.
    pub fn kill_main(&mut self, units: &[UnitName]) -> Result<bool, Error> {
        let mut found = false;
        for unit in units.iter().filter(|unit| unit.kind() == "service") {
            let Some(path) = self.find("GetUnit", unit)? else { continue };
            if u32::try_from(self.value(&path, "Service", "MainPID")?)? == 0 {
                continue;
            }
            found = true;
            match self.call(MANAGER, MANAGER_INTERFACE, "KillUnit", &(unit.as_str(), "main", SIGKILL)) {
                // A refusal means that the process has died meanwhile.
                Ok(_) | Err(Error::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Whether systemd shows these units as stopped in such a way that nothing of them is left, but for mounts. `Some`: it
    /// does, and these are the mounts among them as they are configured, which only the kernel can prove to be gone. `None`: it
    /// does not.
    pub fn inactive(&mut self, of: &WithoutProcess<'_>) -> Result<Option<Vec<Configured>>, Error> {
        let mut mounts = Vec::new();
        for unit in of.units {
            let is_begun = of.begun.contains(unit);
            let place = place_of(unit);
            // A mount that systemd has forgotten is loaded again, because more than its state is asked for.
            let method = if place.is_some() { "LoadUnit" } else { "GetUnit" };
            let Some(path) = self.find(method, unit)? else {
                // When systemd forgot the unit, it forgot how its start went.
                if is_begun {
                    return Ok(None);
                }
                continue;
            };
            let interface = type_interface(unit);
            let state = self.property(&path, "Unit", "ActiveState")?;
            if !matches!(state.as_str(), "inactive" | "failed") {
                return Ok(None);
            }
            let is_orderly = state == "inactive" && self.property(&path, &interface, "Result")? == "success";
            let is_proven = match unit.kind() {
                "mount" => true,
                "service" if is_orderly => self.shows_good_end(&path, of.target, is_begun)?,
                "service" => self.failed_start(&path, of.target)?.has_left_nothing(),
                _ => is_orderly,
            };
            if !is_proven {
                return Ok(None);
            }
            if let Some(place) = place {
                let what = self.property(&path, &interface, "What")?;
                let options = self.property(&path, &interface, "Options")?;
                mounts.push(Configured { place, what, options });
            }
        }
        Ok(Some(mounts))
    }

    /// systemd knows the peer's user from the socket. The user id is a formality: the hexadecimal codes of its decimal digits.
    ///
    /// BEGIN is sent together with AUTH, as systemd's own library does. If it were sent later, together with the first call,
    /// systemd would not read that call until something else arrives.
    fn authenticate(&mut self) -> Result<(), Error> {
        let user = rustix::process::geteuid().as_raw().to_string();
        // In ASCII the digits have the codes 0x30 to 0x39.
        let user: String = user.chars().flat_map(|digit| ['3', digit]).collect();
        self.send(format!("\0AUTH EXTERNAL {user}\r\nBEGIN\r\n").as_bytes())?;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.push(self.receive(1)?[0]);
            if line.len() > 512 {
                return Err(Error::Refused("it does not authenticate".to_owned()));
            }
        }
        if !line.starts_with(b"OK ") {
            return Err(Error::Refused(String::from_utf8_lossy(&line).trim().to_owned()));
        }
        Ok(())
    }

    /// The D-Bus object of a unit. `None`: systemd does not know the unit. `method` is `GetUnit`, or `LoadUnit` to load it as
    /// well.
    fn find(&mut self, method: &str, unit: &UnitName) -> Result<Option<OwnedObjectPath>, Error> {
        let answer = known(self.call(MANAGER, MANAGER_INTERFACE, method, &(unit.as_str())))?;
        answer.map(|answer| answer.body()).transpose()
    }

    fn property(&mut self, path: &OwnedObjectPath, interface: &str, name: &str) -> Result<String, Error> {
        Ok(String::try_from(self.value(path, interface, name)?)?)
    }

    fn value(&mut self, path: &OwnedObjectPath, interface: &str, name: &str) -> Result<OwnedVariant, Error> {
        let interface = format!("org.freedesktop.systemd1.{interface}");
        self.call(path.as_str(), PROPERTIES_INTERFACE, "Get", &(interface.as_str(), name))?.body()
    }

    /// Whether a service that is `inactive` with `success` has left nothing, although systemd also calls it so after it was
    /// stopped in the middle of its start. `is_begun`: systemd may have forgotten such a start too.
    fn shows_good_end(&mut self, path: &OwnedObjectPath, target: &UnitName, is_begun: bool) -> Result<bool, Error> {
        let mut at = |name| Ok::<u64, Error>(u64::try_from(self.value(path, "Unit", name)?)?);
        let has_ended_early = at("InactiveExitTimestampMonotonic")? > at("ActiveEnterTimestampMonotonic")?;
        let is_forgiven = at("StateChangeTimestampMonotonic")? > at("InactiveEnterTimestampMonotonic")?;
        if has_ended_early {
            return Ok(is_forgiven || self.failed_start(path, target)?.has_left_nothing());
        }
        Ok(!is_begun || self.failed_start(path, target)?.was_active())
    }

    fn failed_start(&mut self, path: &OwnedObjectPath, target: &UnitName) -> Result<FailedStart, Error> {
        let active_since = |systemd: &mut Self, path: &OwnedObjectPath| -> Result<u64, Error> {
            Ok(u64::try_from(systemd.value(path, "Unit", "ActiveEnterTimestampMonotonic")?)?)
        };
        let lease_since = match self.find("GetUnit", target)? {
            Some(lease) => active_since(self, &lease)?,
            None => 0,
        };
        let mut exits = |name| self.exits(path, name);
        let mut starts = exits("ExecStartPre")?;
        starts.extend(exits("ExecStart")?);
        starts.extend(exits("ExecStartPost")?);
        let (has_stop, stop_posts) = (!exits("ExecStop")?.is_empty(), exits("ExecStopPost")?);
        let is_oneshot = self.property(path, "Service", "Type")? == "oneshot";
        let active_since = active_since(self, path)?;
        Ok(FailedStart { is_oneshot, starts, has_stop, stop_posts, active_since, lease_since })
    }

    /// How the commands in the property `name` of a service ended in its last run.
    fn exits(&mut self, path: &OwnedObjectPath, name: &str) -> Result<Vec<Exit>, Error> {
        let commands = Vec::<CommandOfUnit>::try_from(self.value(path, "Service", name)?)?;
        Ok(commands.into_iter().map(|(.., code, status)| Exit { code, status }).collect())
    }

    fn call<B>(&mut self, path: &str, interface: &str, member: &str, body: &B) -> Result<Answer, Error>
    where
        B: serde::Serialize + DynamicType,
    {
        let message = Message::method_call(path, member).interface(interface).build(body)?;
        let serial = message.primary_header().serial_num();
        self.send(message.data())?;
        loop {
            let mut bytes = self.receive(FIXED_BYTES)?;
            let unreadable = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
            let layout = Layout::of(&bytes).ok_or_else(|| unreadable("an answer that is no message".to_owned()))?;
            if layout.length() > MESSAGE_LIMIT_BYTES {
                // What is left of it is still to come on this connection.
                let why = format!("an answer of more than {MESSAGE_LIMIT_BYTES} bytes");
                return Err(Error::Silent(unreadable(why)));
            }
            bytes.extend(self.receive(layout.length() - FIXED_BYTES)?);
            mend_sender(&mut bytes);
            let (kind, answers_to, error) = {
                let data = Data::new(&bytes[..], Context::new(layout.endian, 0));
                let header: Header<'_> = data.deserialize()?.0;
                (header.message_type(), header.reply_serial(), header.error_name().map(ToString::to_string))
            };
            if answers_to != Some(serial) {
                // Other messages are signals, which are not needed here.
                continue;
            }
            match kind {
                MessageType::MethodReturn => {
                    return Ok(Answer { bytes, endian: layout.endian, body: layout.body_at() });
                }
                MessageType::Error => return Err(Error::Refused(error.unwrap_or_default())),
                MessageType::MethodCall | MessageType::Signal => {}
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        Ok(self.stream.write_all(bytes)?)
    }

    fn receive(&mut self, count: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; count];
        let mut filled = 0;
        while filled < count {
            self.stream.set_read_timeout(Some(self.left()?))?;
            match self.stream.read(&mut bytes[filled..])? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                more => filled += more,
            }
        }
        Ok(bytes)
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread::spawn;

    use super::*;
    use crate::systemd::wire::tests::message;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Makes one call to a PID 1 that sends `answers`, one after the other, each as the answer to that call.
    fn call(answers: Vec<Vec<u8>>) -> Result<u32, Error> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("private");
        let listener = UnixListener::bind(&path).expect("a socket");
        let pid1 = spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let (mut handshake, mut byte) = (Vec::new(), [0]);
            while !handshake.ends_with(b"BEGIN\r\n") {
                stream.read_exact(&mut byte).expect("what the guard sends");
                handshake.extend(byte);
            }
            stream.write_all(b"OK 0123\r\n").expect("sent");
            let mut call = [0; 16];
            stream.read_exact(&mut call).expect("a call");
            for mut answer in answers {
                answer[20..24].copy_from_slice(&call[8..12]);
                // The guard does not read on behind an answer that it refuses.
                let _ = stream.write_all(&answer);
            }
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let mut systemd = Systemd::connect(&path, LIMIT)?;
        let answer =
            systemd.call(MANAGER, MANAGER_INTERFACE, "Reload", &("a.service")).and_then(|answer| answer.body());
        drop(systemd);
        pid1.join().expect("it ends by itself");
        answer
    }

    #[test]
    fn an_answer_with_the_well_known_name_of_systemd_as_its_sender_is_read() {
        assert_eq!(call(vec![message("org.freedesktop.systemd1")]).expect("an answer"), 0x0403_0201);
    }

    #[test]
    fn what_is_no_answer_to_the_call_is_passed_over() {
        let mut signal = message("org.freedesktop.systemd1");
        signal[1] = 4;
        assert_eq!(call(vec![signal, message("org.freedesktop.systemd1")]).expect("an answer"), 0x0403_0201);
    }

    #[test]
    fn an_answer_beyond_the_limit_ends_the_connection() {
        let mut huge = message("org.freedesktop.systemd1");
        huge[4..8].copy_from_slice(&[0, 0, 2, 0]);
        let error = call(vec![huge]).expect_err("it is too long");
        assert!(error.ends_connection() && error.to_string().contains("more than 131072 bytes"), "{error}");
    }
}
