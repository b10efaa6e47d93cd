//! The part of the main loop that has its program replaced: see [`crate::guard::reexec`].

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use super::{Connection, Shell};
use crate::guard::Paths;
use crate::guard::reexec::{self, Descriptor, Descriptors, Handed, PATIENCE, Taken};
use crate::guard::told::{Level, say};
use crate::guard::watch::{Pulse, listen};
use crate::guard::watchdog::Watchdog;
use crate::host::clock;
use crate::types::{Time, printable};

/// More than the one word that a new program says.
const WORD_BYTES: usize = 64;

/// How often the guard looks whether nothing is under way any more.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Takes `putex-guard reload`, one at a time.
#[derive(Debug)]
pub(super) struct Reloads {
    listener: UnixListener,
    asker: Option<Asker>,
}

/// What the guard listens on and is connected to: its own, or what another program has handed over.
pub(super) struct Sockets {
    pub(super) listener: UnixListener,
    pub(super) pulse: Pulse,
    pub(super) reloads: Reloads,
    pub(super) connection: Option<Connection>,
    /// The connection of the `putex-guard reload` that waits for an answer.
    pub(super) asker: Option<UnixStream>,
    /// The device of the watchdog.
    pub(super) device: Option<OwnedFd>,
}

impl Sockets {
    pub(super) fn of(paths: &Paths, taken: Option<&Taken>) -> io::Result<Self> {
        let Some(taken) = taken else {
            return Ok(Self {
                listener: listen(&paths.socket)?,
                pulse: Pulse::new(&paths.watch)?,
                reloads: Reloads { listener: listen(&paths.reload)?, asker: None },
                connection: None,
                asker: None,
                device: None,
            });
        };
        let missing = || io::Error::new(io::ErrorKind::NotFound, "a socket was not handed over");
        let listener = |what| taken.descriptor(what)?.map(UnixListener::from).ok_or_else(missing);
        let stream = |what| io::Result::Ok(taken.descriptor(what)?.map(UnixStream::from));
        Ok(Self {
            listener: listener(Descriptor::Clients)?,
            pulse: Pulse::of(listener(Descriptor::Watchers)?, stream(Descriptor::Watcher)?),
            reloads: Reloads { listener: listener(Descriptor::Reloads)?, asker: None },
            connection: stream(Descriptor::Putexd)?.map(Connection::new),
            asker: stream(Descriptor::Asker)?,
            device: taken.descriptor(Descriptor::Watchdog)?,
        })
    }
}

impl Taken {
    /// Tells the journal, and who asked for it, that this program serves now.
    pub(super) fn has_gone_on(&self, asker: Option<&UnixStream>, leases: usize) {
        let (version, before) = (env!("CARGO_PKG_VERSION"), &self.handed.version);
        match &self.returned {
            None => say(
                Level::Notice,
                &format!("the program was replaced in place: {version} goes on with {leases} leases of {before}"),
            ),
            Some(reason) => say(
                Level::Error,
                &format!("the program was not replaced: {version} goes on again with {leases} leases: {reason}"),
            ),
        }
        if let Some(asker) = asker {
            reexec::answer(asker, self.returned.as_deref().map_or(Ok(()), Err));
        }
    }
}

/// The connection of `putex-guard reload`.
#[derive(Debug)]
struct Asker {
    stream: UnixStream,
    process: i32,
    since: Time,
    looked_at: Time,
    heard: Vec<u8>,
    /// The file of the new program, once that has said that it can go on.
    program: Option<PathBuf>,
}

impl Reloads {
    /// What has to be waited for: a new program, and what the one that has connected says.
    pub(super) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let speaks = self.asker.iter().filter(|asker| asker.program.is_none());
        let asker = speaks.map(|asker| PollFd::new(&asker.stream, PollFlags::IN));
        std::iter::once(PollFd::new(&self.listener, PollFlags::IN)).chain(asker)
    }

    /// How long until [`Shell::serve_reload`] has something to do that no socket announces.
    pub(super) fn due_in(&self) -> Option<Duration> {
        let asker = self.asker.as_ref()?;
        let left = clock::now().until_passed(asker.since.plus(PATIENCE));
        let again = asker.looked_at.plus(if asker.program.is_some() { LOOK_AGAIN } else { PATIENCE });
        Some(left.min(clock::now().until_passed(again)))
    }

    /// The next process that connects. Those beside the one that is served are sent away, and so are other users.
    fn accept(&mut self) -> Option<Asker> {
        loop {
            let (stream, _) = self.listener.accept().ok()?;
            let peer = socket_peercred(&stream).ok().filter(|peer| peer.uid == geteuid());
            let Some(peer) = peer.filter(|_| self.asker.is_none()) else { continue };
            if stream.set_nonblocking(true).is_ok() {
                let process = peer.pid.as_raw_nonzero().get();
                let since = clock::now();
                let heard = Vec::new();
                return Some(Asker { stream, process, since, looked_at: since, heard, program: None });
            }
        }
    }
}

impl Asker {
    /// What it has said, once the line is whole. An error means that it is gone, or says what nobody understands.
    fn hear(&mut self) -> io::Result<Option<String>> {
        let mut bytes = [0; WORD_BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.heard.extend_from_slice(&bytes[..count]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        if self.heard.len() > WORD_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let line = self.heard.strip_suffix(b"\n");
        Ok(line.map(|line| String::from_utf8_lossy(line).into_owned()))
    }
}

impl Shell<'_> {
    /// Serves `putex-guard reload`. It returns at once; where the program is replaced it does not return.
    pub(super) fn serve_reload(&mut self) {
        // Before anybody new: an asker that is gone sends nobody away.
        if let Some(asker) = self.reloads.asker.take() {
            self.serve_asker(asker);
        }
        if let Some(asker) = self.reloads.accept() {
            match reexec::offer(&asker.stream, self.handed()) {
                Ok(()) => self.reloads.asker = Some(asker),
                Err(error) => keep_program(&asker, &error.to_string()),
            }
        }
    }

    fn serve_asker(&mut self, mut asker: Asker) {
        asker.looked_at = clock::now();
        if asker.program.is_none() {
            match asker.hear() {
                Ok(None) => {}
                Ok(Some(word)) if word == reexec::READY => match reexec::program_of(asker.process) {
                    Ok(program) => asker.program = Some(program),
                    Err(error) => return keep_program(&asker, &error.to_string()),
                },
                Ok(Some(word)) => {
                    return keep_program(&asker, &format!("the new program says {}", printable(&word)));
                }
                Err(error) => return keep_program(&asker, &format!("the new program cannot go on: {error}")),
            }
        }
        let is_late = clock::now().has_passed(asker.since.plus(PATIENCE));
        let Some(program) = asker.program.clone() else {
            if is_late {
                return keep_program(&asker, "the new program has not said whether it can go on");
            }
            self.reloads.asker = Some(asker);
            return;
        };
        match self.hindrance() {
            Some(hindrance) if is_late => keep_program(&asker, &hindrance),
            Some(_) => self.reloads.asker = Some(asker),
            None => {
                // From here on nothing may be begun: what has been handed over would not know of it.
                let error = self.execute_in_place(&program, &asker.stream);
                keep_program(&asker, &error.to_string());
            }
        }
    }

    /// Why the program cannot be replaced now.
    fn hindrance(&self) -> Option<String> {
        if let Some(trouble) = &self.room.trouble {
            // The new program writes each record and each grant anew, which takes space.
            return Some(trouble.clone());
        }
        if let Some(service) = self.table.first_lapsed() {
            return Some(format!("the units of {service} are being stopped, try again when they are dead"));
        }
        if self.inquiries.is_looking() {
            return Some("try again: a block device or a mount that putexd asks about does not answer".to_owned());
        }
        let is_idle = self.connection.as_ref().is_none_or(Connection::is_idle);
        (!is_idle).then(|| "try again: putexd has sent half of a request, or does not take its replies".to_owned())
    }

    fn handed(&self) -> Handed {
        let watchdog = self.watchdog.as_ref().map(Watchdog::kept);
        Handed::new(self.table.entries(), self.connection_group.clone(), watchdog)
    }

    fn execute_in_place(&mut self, program: &Path, asker: &UnixStream) -> reexec::Error {
        // The watcher counts the silence from the last beat on.
        self.heart.beat_anew(&self.table);
        let mut descriptors: Descriptors<'_> = vec![
            (Descriptor::Clients, self.listener.as_fd()),
            (Descriptor::Watchers, self.heart.pulse.listener().as_fd()),
            (Descriptor::Reloads, self.reloads.listener.as_fd()),
            (Descriptor::Asker, asker.as_fd()),
        ];
        let of_connection = self.connection.as_ref().map(|connection| connection.stream().as_fd());
        let optional = [
            (Descriptor::Putexd, of_connection),
            (Descriptor::Watcher, self.heart.pulse.watcher()),
            (Descriptor::Watchdog, self.watchdog.as_ref().and_then(Watchdog::device)),
        ];
        descriptors.extend(optional.into_iter().filter_map(|(what, descriptor)| descriptor.map(|fd| (what, fd))));
        reexec::execute(program, self.handed(), &descriptors)
    }
}

fn keep_program(asker: &Asker, reason: &str) {
    say(Level::Error, &format!("the guard goes on with its present program: {reason}"));
    reexec::answer(&asker.stream, Err(reason));
}
