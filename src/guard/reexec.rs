//! The guard's program is replaced in place, as `systemctl daemon-reexec` does it with systemd itself: the same process executes
//! the new file, and no lease, no deadline and no connection ends.
//!
//! | step | who | what |
//! | --- | --- | --- |
//! | 1 | `putex-guard reload`, which systemd runs from the new file | connects to the guard |
//! | 2 | the guard | shows it what would be handed over, and with which arguments the guard runs |
//! | 3 | the new program | reads both, and says whether it could go on with them |
//! | 4 | the guard, when nothing is under way | executes the file of that very program, and hands everything over |
//! | 5 | the guard, with the new program | goes on, and answers `putex-guard reload` |
//!
//! If the new program cannot go on in step 5 after all, it hands everything back: it executes the program before it, which says
//! so. Only if that fails too does the guard end, and every lease of the host with it.
//!
//! What is handed over is a message on a socket that is the standard input of the executed program: the state as JSON in a file
//! in memory, the program before, and the descriptors that the state names. The first two are the same in all versions.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, IoSlice, IoSliceMut, Read as _, Seek as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use super::table::Entry;
use super::told::{Level, say};
use super::watchdog;

/// The form of [`Handed`] that this program writes. It reads this one and all before it.
const FORMAT: u32 = 1;

/// Set for a program that is executed in place. Its value is why another program has handed everything back, or empty.
const VARIABLE: &str = "PUTEX_GUARD_REEXEC";

/// The two descriptors that are the same in all versions, and those of [`Descriptor`].
const DESCRIPTORS: usize = 2 + 7;

/// How long `putex-guard reload` waits for the guard, which itself waits for [`PATIENCE`] at most.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// How long the guard waits for a moment at which nothing is under way.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// What the new program says when it can go on.
pub(super) const READY: &str = "ready";
/// What the guard's answer begins with when the new program serves.
const REPLACED: &str = "replaced ";
/// What the guard's answer begins with when the program before goes on.
const KEPT: &str = "kept ";

/// What one program hands over to the next.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Handed {
    format: u32,
    /// The version of the program that hands over, for the journal.
    pub(super) version: String,
    /// What the guard was started with.
    arguments: Vec<String>,
    pub(super) entries: Vec<Entry>,
    /// The control group of the process that the guard serves.
    pub(super) connection_group: Option<String>,
    pub(super) watchdog: Option<watchdog::Kept>,
    /// The descriptors behind the first two, in their order.
    descriptors: Vec<Descriptor>,
}

/// What a descriptor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Descriptor {
    /// The socket to which putexd connects.
    Clients,
    /// The socket to which the watcher connects.
    Watchers,
    /// The socket to which `putex-guard reload` connects.
    Reloads,
    /// The connection of putexd.
    Putexd,
    /// The connection of the watcher.
    Watcher,
    /// The connection of `putex-guard reload`.
    Asker,
    /// The device of the watchdog.
    Watchdog,
}

/// The descriptors that are handed over, each with what it is.
pub(super) type Descriptors<'a> = Vec<(Descriptor, BorrowedFd<'a>)>;

/// Why the program cannot be replaced.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {0}: {1}")]
    Host(&'static str, io::Error),
    #[error("what the other program hands over cannot be read: {0}")]
    State(#[from] serde_json::Error),
    #[error("the other program hands over form {0}, and this one reads up to form {FORMAT}")]
    Format(u32),
    #[error("the guard was started with arguments that this program does not take: {0}")]
    Arguments(String),
    #[error("nothing was handed over")]
    Nothing,
}

impl Handed {
    /// What this program hands over; the descriptors are added by [`write`].
    pub(super) fn new(entries: Vec<Entry>, connection_group: Option<String>, watchdog: Option<watchdog::Kept>) -> Self {
        let arguments = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { format: FORMAT, version, arguments, entries, connection_group, watchdog, descriptors: Vec::new() }
    }
}

/// Writes the state into a file in memory.
fn write(mut handed: Handed, descriptors: &Descriptors<'_>) -> Result<File, Error> {
    let host = |error| Error::Host("write down what is handed over", error);
    handed.descriptors = descriptors.iter().map(|(what, _)| *what).collect();
    let file = memfd_create("putex-guard", MemfdFlags::CLOEXEC).map_err(|error| host(error.into()))?;
    let mut file = File::from(file);
    file.write_all(&serde_json::to_vec(&handed)?).map_err(host)?;
    Ok(file)
}

/// Reads the state. Its form is looked at first: a newer one may have other fields.
fn read(mut file: &File) -> Result<Handed, Error> {
    #[derive(Deserialize)]
    struct Form {
        format: u32,
    }
    let host = |error| Error::Host("read what is handed over", error);
    file.rewind().map_err(host)?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(host)?;
    let Form { format } = serde_json::from_slice(&text)?;
    if format > FORMAT {
        return Err(Error::Format(format));
    }
    Ok(serde_json::from_slice(&text)?)
}

/// Sends descriptors over a socket, with a byte that nobody looks at.
fn send(socket: impl AsFd, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(b"\n")], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Takes the descriptors of one message.
fn take(socket: impl AsFd) -> io::Result<Vec<OwnedFd>> {
    let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = |message| if let RecvAncillaryMessage::ScmRights(rights) = message { Some(rights) } else { None };
    Ok(control.drain().filter_map(rights).flatten().collect())
}

/// Shows a new program what would be handed over (step 2).
pub(super) fn offer(asker: &UnixStream, handed: Handed) -> Result<(), Error> {
    let state = write(handed, &Vec::new())?;
    send(asker, &[state.as_fd()]).map_err(|error| Error::Host("show what would be handed over", error))
}

/// The file of the program at the other end of a connection, by the number of its process. What has been removed since cannot be
/// executed by its name.
pub(super) fn program_of(process: i32) -> Result<PathBuf, Error> {
    let host = |error| Error::Host("find the new program", error);
    let running = PathBuf::from(format!("/proc/{process}/exe"));
    let path = fs::read_link(&running).map_err(host)?;
    let (named, meant) = (fs::metadata(&path).map_err(host)?, fs::metadata(&running).map_err(host)?);
    if (named.dev(), named.ino()) != (meant.dev(), meant.ino()) {
        return Err(host(io::Error::other(format!("{} has been replaced meanwhile", path.display()))));
    }
    Ok(path)
}

/// Executes `program` in this process, and hands everything over (step 4). It returns only if that is not possible, and then
/// nothing has changed.
pub(super) fn execute(program: &Path, handed: Handed, descriptors: &Descriptors<'_>) -> Error {
    let prepared = || {
        let state = write(handed, descriptors)?;
        let this = File::open("/proc/self/exe").map_err(|error| Error::Host("open the present program", error))?;
        Ok((state, this))
    };
    match prepared() {
        Ok((state, this)) => {
            let all: Vec<_> =
                [state.as_fd(), this.as_fd()].into_iter().chain(descriptors.iter().map(|(_, fd)| *fd)).collect();
            become_program(program, "", &all)
        }
        Err(error) => error,
    }
}

fn become_program(program: &Path, reason: &str, descriptors: &[BorrowedFd<'_>]) -> Error {
    let host = |error| Error::Host("execute the other program", error);
    let sent = || {
        let (ours, theirs) = UnixStream::pair()?;
        send(&ours, descriptors)?;
        io::Result::Ok(theirs)
    };
    let theirs = match sent() {
        Ok(theirs) => theirs,
        Err(error) => return host(error),
    };
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| OsString::from("putex-guard"));
    let mut command = Command::new(program);
    command.arg0(name).args(arguments).env(VARIABLE, reason).stdin(Stdio::from(OwnedFd::from(theirs)));
    let error = command.exec();
    // The failed call may have made the socket this program's standard input.
    forget_stdin();
    host(error)
}

fn forget_stdin() {
    if let Ok(nothing) = File::open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&nothing);
    }
}

/// What another program has handed over to this one (step 5).
#[derive(Debug)]
pub struct Taken {
    pub(super) handed: Handed,
    descriptors: Vec<OwnedFd>,
    /// Why another program has handed everything back to this one. `None`: this is the new program.
    pub(super) returned: Option<String>,
    raw: Raw,
}

/// What is needed to hand everything back.
#[derive(Debug)]
struct Raw {
    state: OwnedFd,
    former: OwnedFd,
}

impl Taken {
    /// A duplicate of a descriptor, if it was handed over.
    pub(super) fn descriptor(&self, what: Descriptor) -> io::Result<Option<OwnedFd>> {
        let at = self.handed.descriptors.iter().position(|other| *other == what);
        at.and_then(|at| self.descriptors.get(at)).map(OwnedFd::try_clone).transpose()
    }

    /// Hands everything back to the program before, which goes on. It returns only if that is not possible.
    #[must_use]
    pub fn give_back(self, reason: &str) -> Error {
        if let Some(before) = &self.returned {
            // Two programs that both cannot go on must not hand the leases to and fro for ever.
            return Error::Host("go on with either program", io::Error::other(format!("{before}; {reason}")));
        }
        give_back(&self.raw, &self.descriptors, reason)
    }
}

fn give_back(raw: &Raw, descriptors: &[OwnedFd], reason: &str) -> Error {
    say(Level::Error, &format!("the new program cannot go on, the one before is executed again: {reason}"));
    let former = PathBuf::from(format!("/proc/self/fd/{}", raw.former.as_raw_fd()));
    let all: Vec<_> =
        [raw.state.as_fd(), raw.former.as_fd()].into_iter().chain(descriptors.iter().map(AsFd::as_fd)).collect();
    become_program(&former, reason, &all)
}

/// Takes what another program hands over, if this one was executed in place. What cannot be read is handed back; an error means
/// that this was not possible either.
pub fn taken() -> Result<Option<Taken>, Error> {
    let Some(reason) = std::env::var_os(VARIABLE) else { return Ok(None) };
    let found = take(io::stdin()).map_err(|error| Error::Host("take what is handed over", error));
    forget_stdin();
    // The name of a program that is executed by the number of its descriptor would be that number.
    let _ = rustix::thread::set_name(c"putex-guard");
    let mut found = found?.into_iter();
    let (Some(state), Some(former)) = (found.next(), found.next()) else { return Err(Error::Nothing) };
    let (raw, descriptors) = (Raw { state, former }, found.collect::<Vec<_>>());
    let returned = Some(reason.to_string_lossy().into_owned()).filter(|reason| !reason.is_empty());
    let handed = raw.state.try_clone().map_err(|error| Error::Host("read what is handed over", error));
    match handed.and_then(|state| read(&File::from(state))) {
        Ok(handed) => Ok(Some(Taken { handed, descriptors, returned, raw })),
        Err(error) if returned.is_none() => Err(give_back(&raw, &descriptors, &error.to_string())),
        Err(error) => Err(error),
    }
}

/// Tells `putex-guard reload` that the new program serves, or why the one before goes on.
pub(super) fn answer(asker: &UnixStream, outcome: Result<(), &str>) {
    let text = match outcome {
        Ok(()) => format!("{REPLACED}{}\n", env!("CARGO_PKG_VERSION")),
        Err(reason) => format!("{KEPT}{}\n", reason.replace('\n', " ")),
    };
    // Nobody may listen any more, and a line always fits into the socket.
    let mut asker = asker;
    let _ = asker.write_all(text.as_bytes());
}

/// Why `putex-guard reload` has failed. The guard goes on with its present program, unless it says otherwise.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReloadError {
    #[error(
        "look with \"systemctl status putex-guard\" whether the guard runs; if it does, its program is too old to be replaced in \
         place, and is replaced at the next boot: cannot connect to {}: {source}",
        socket.display()
    )]
    NotReached { socket: PathBuf, source: io::Error },
    #[error("the guard goes on with its present program: {0}")]
    Unfit(Error),
    #[error("the guard goes on with its present program: {0}")]
    Kept(String),
    #[error("look with \"journalctl -u putex-guard\" what became of it: the guard has not answered: {0}")]
    NoAnswer(io::Error),
}

/// Runs `putex-guard reload` (steps 1 and 3): has the guard go on with this program. `takes` says whether this program takes the
/// arguments of the guard. Returns the version that serves.
pub(super) fn reload(socket: &Path, takes: impl Fn(&[String]) -> Result<(), String>) -> Result<String, ReloadError> {
    let not_reached = |source| ReloadError::NotReached { socket: socket.to_owned(), source };
    let mut guard = UnixStream::connect(socket).map_err(not_reached)?;
    guard.set_read_timeout(Some(ANSWER_LIMIT)).map_err(not_reached)?;
    let offered = take(&guard).map_err(ReloadError::NoAnswer)?;
    let state = offered.into_iter().next().ok_or(ReloadError::Unfit(Error::Nothing))?;
    let handed = read(&File::from(state)).map_err(ReloadError::Unfit)?;
    takes(&handed.arguments).map_err(|error| ReloadError::Unfit(Error::Arguments(error)))?;
    writeln!(guard, "{READY}").map_err(ReloadError::NoAnswer)?;
    let mut line = String::new();
    BufReader::new(guard).read_line(&mut line).map_err(ReloadError::NoAnswer)?;
    let line = line.trim_end();
    if let Some(version) = line.strip_prefix(REPLACED) {
        return Ok(version.to_owned());
    }
    match line.strip_prefix(KEPT) {
        Some(reason) => Err(ReloadError::Kept(reason.to_owned())),
        None => Err(ReloadError::NoAnswer(io::ErrorKind::UnexpectedEof.into())),
    }
}

/// What would be handed over, of a program of which everything is known.
#[cfg(test)]
pub(super) fn sample(entries: Vec<Entry>) -> Vec<u8> {
    let watchdog = watchdog::Watchdog::new("/dev/watchdog".into(), Duration::from_secs(3)).kept();
    let descriptors = vec![
        Descriptor::Clients,
        Descriptor::Watchers,
        Descriptor::Reloads,
        Descriptor::Putexd,
        Descriptor::Watcher,
        Descriptor::Asker,
        Descriptor::Watchdog,
    ];
    let handed = Handed {
        format: FORMAT,
        version: "0.1.0".to_owned(),
        arguments: vec!["/usr/bin/putex-guard".to_owned()],
        entries,
        connection_group: Some("/system.slice/putexd.service".to_owned()),
        watchdog: Some(watchdog),
        descriptors,
    };
    serde_json::to_vec(&handed).expect("JSON")
}

/// Reads what another program hands over.
#[cfg(test)]
pub(super) fn read_sample(content: &[u8]) -> Result<Handed, Error> {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(content).expect("written");
    read(&file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(text: &str) -> File {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(text.as_bytes()).expect("writes");
        file
    }

    #[test]
    fn a_state_is_read_as_it_was_written_and_a_newer_form_is_refused_by_its_number() {
        let (one, _other) = UnixStream::pair().expect("sockets");
        let descriptors = vec![(Descriptor::Clients, one.as_fd())];
        let file = write(Handed::new(Vec::new(), Some("/g".to_owned()), None), &descriptors).expect("writes");
        let handed = read(&file).expect("reads");
        assert_eq!(handed.descriptors, [Descriptor::Clients]);
        assert_eq!(handed.connection_group.as_deref(), Some("/g"));
        let newer = read(&state("{\"format\": 2, \"entries\": \"of another kind\"}")).expect_err("newer");
        assert_eq!(newer.to_string(), "the other program hands over form 2, and this one reads up to form 1");
        assert!(matches!(read(&state("{}")), Err(Error::State(_))));
    }

    #[test]
    fn descriptors_arrive_in_their_order() {
        let (one, other) = UnixStream::pair().expect("sockets");
        let files = ["first", "second"].map(state);
        send(&one, &[files[0].as_fd(), files[1].as_fd()]).expect("sends");
        drop(one);
        let texts: Vec<String> = take(&other)
            .expect("takes")
            .into_iter()
            .map(|taken| {
                let mut file = File::from(taken);
                file.rewind().expect("a file");
                io::read_to_string(file).expect("text")
            })
            .collect();
        assert_eq!(texts, ["first", "second"]);
        assert!(take(&other).expect("the end").is_empty());
    }
}
