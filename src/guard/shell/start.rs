//! The start of the guard: after a guard that has ended, or in place of another program in the same process.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::mm::{MlockAllFlags, mlockall};
use sd_notify::NotifyState;

use super::heart::{AllCondemned, FirstAct, Heart};
use super::keeping::Room;
use super::reexec::Sockets;
use super::{Fatal, Shell};
use crate::guard::Paths;
use crate::guard::enforce::Enforcer;
use crate::guard::files::Files;
use crate::guard::inquiries::Inquiries;
use crate::guard::records::Records;
use crate::guard::reexec::Taken;
use crate::guard::table::{Effect, Entry, Table};
use crate::guard::told::{Level, say};
use crate::guard::watchdog::Watchdog;
use crate::guard_client::frame::Lease;
use crate::host::cgroup::Hierarchy;
use crate::host::clock::{self, BootTimer};
use crate::host::identity;

/// Everybody may read a grant: the fencing token is no secret.
const GRANT_MODE: u32 = 0o644;

/// Time between two attempts to start: the same that systemd leaves between two guards.
const START_INTERVAL: Duration = Duration::from_millis(100);
/// For how long the guard tries to start before it ends, so that systemd starts another one.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// Tries to start for [`START_PATIENCE`], and logs each reason why it cannot once. A guard that ended at each failure would be
/// started ten times a second, and would fill the journal.
///
/// A program that was executed in place goes on instead, and tries only once: the program before can go on at once.
pub(in crate::guard) fn begin(
    paths: &Paths,
    watchdog: impl Fn() -> Option<Watchdog>,
    taken: Option<Taken>,
) -> Result<Shell<'_>, Fatal> {
    if let Some(taken) = taken {
        return Shell::start(paths, watchdog(), Some(&taken)).map_err(|error| {
            let error = taken.give_back(&error.to_string());
            Fatal::Host("go on", io::Error::other(error.to_string()))
        });
    }
    let began = clock::now();
    let mut told = String::new();
    loop {
        let error = match Shell::start(paths, watchdog(), None) {
            Ok(shell) => return Ok(shell),
            Err(error) if clock::now().has_passed(began.plus(START_PATIENCE)) => return Err(error),
            Err(error) => error.to_string(),
        };
        if error != told {
            say(Level::Error, &format!("the guard cannot start yet: {error}"));
            told = error;
        }
        thread::sleep(START_INTERVAL);
    }
}

impl<'a> Shell<'a> {
    /// Enforces the leases that the previous guard left, and only then listens. With what another program has `taken` over in
    /// this process, it goes on with that.
    fn start(paths: &'a Paths, watchdog: Option<Watchdog>, taken: Option<&Taken>) -> Result<Self, Fatal> {
        let host = |what| move |error| Fatal::Host(what, error);
        let boot = identity::boot_id().map_err(host("read the boot's id"))?;
        let hierarchy = Arc::new(Hierarchy::detect().map_err(host("find the control groups"))?);
        let records = Records::new(&paths.state, boot);
        let Left { table, effects, enforced } = Left::by(taken, &records);
        let (condemned, first_act) = kill_overdue(&table, &hierarchy);
        // A guard whose memory is paged out is late when memory is short, which is when it is needed.
        if let Err(error) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT) {
            say(Level::Warning, &format!("cannot keep the guard in memory, ignoring: {error}"));
        }
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        let timer = BootTimer::new().map_err(host("make a timer"))?;
        let told = at_sigterm().map_err(host("listen for SIGTERM"))?;
        let mut grants = make_folders(paths)?;
        let leases = table.leases().count();
        if taken.is_none() {
            grants.clear().map_err(host("remove the grants of the guard before"))?;
            if leases > 0 {
                say(
                    Level::Warning,
                    &format!("{leases} leases of a guard that ended are closed; their deadlines stand"),
                );
            }
        }
        let Sockets { listener, pulse, reloads, connection, asker, device } =
            Sockets::of(paths, taken).map_err(host("listen"))?;
        let kept = taken.and_then(|taken| taken.handed.watchdog.clone());
        let watchdog = watchdog.map(|watchdog| match kept {
            Some(kept) => watchdog.going_on(kept, device),
            None => watchdog,
        });
        let threads = Enforcer::start(Arc::clone(&hierarchy), paths.systemd.clone());
        let mut shell = Self {
            paths,
            hierarchy,
            timer,
            timer_set: None,
            table,
            records,
            grants,
            condemned,
            first_act,
            enforcer: threads.map_err(host("start its threads"))?,
            enforcements: BTreeMap::new(),
            listener,
            connection,
            connection_group: taken.and_then(|taken| taken.handed.connection_group.clone()),
            inquiries: Inquiries::new().map_err(host("make a pair of sockets"))?,
            heart: Heart::new(pulse),
            reloads,
            watchdog,
            room: Room::default(),
            told,
            ending: None,
        };
        shell.beat();
        for (lease, was_dead) in enforced {
            let enforcement = shell.enforcer.go_on(lease.clone(), was_dead);
            shell.enforcements.insert(lease.service, enforcement);
        }
        shell.carry_out(effects)?;
        shell.expire()?;
        shell.tend();
        if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
            say(Level::Warning, &format!("cannot tell systemd that the guard is ready, ignoring: {error}"));
        }
        shell.beat();
        if let Some(taken) = taken {
            taken.has_gone_on(asker.as_ref(), leases);
        }
        Ok(shell)
    }
}

/// What the guard before, or the program before, has left.
struct Left {
    table: Table,
    effects: Vec<Effect>,
    /// Leases whose units were being stopped, and whether they were seen dead, which the journal was told of.
    enforced: Vec<(Lease, bool)>,
}

impl Left {
    fn by(taken: Option<&Taken>, records: &Records) -> Self {
        if let Some(taken) = taken {
            let (table, enforced) = Table::go_on(taken.handed.entries.clone());
            return Self { table, effects: Vec::new(), enforced };
        }
        let (table, effects) = Table::resume(clock::now(), records.load());
        Self { table, effects, enforced: Vec::new() }
    }
}

/// Opens the control groups of all leases, and kills those for which SIGKILL is due.
fn kill_overdue(table: &Table, hierarchy: &Hierarchy) -> (AllCondemned, FirstAct) {
    // The previous guard has refused groups that must not be killed. The enforcement reports those that cannot be read now.
    let condemn =
        |lease: &Lease| -> Vec<_> { lease.cgroups.iter().filter_map(|path| hierarchy.condemn(path).ok()).collect() };
    let mut first_act = FirstAct::default();
    for service in table.overdue(clock::now()) {
        first_act.note(service);
        let lease = table.entry_of(service).map(Entry::lease);
        for group in lease.iter().flat_map(|lease| condemn(lease)) {
            let _ = group.kill();
        }
    }
    (table.leases().map(|lease| (lease.service.clone(), condemn(lease))).collect(), first_act)
}

/// Makes the folders of the grants, of the records and of the sockets, where they are missing.
fn make_folders(paths: &Paths) -> Result<Files, Fatal> {
    let host = |what| move |error| Fatal::Host(what, error);
    fs::create_dir_all(&paths.leases).map_err(host("make the directory of the grants"))?;
    // Units may run as any user, and their gate runs as the same user.
    fs::set_permissions(&paths.leases, fs::Permissions::from_mode(0o755))
        .map_err(host("open the directory of the grants"))?;
    let parents = [&paths.socket, &paths.watch, &paths.reload].map(|file| file.parent().unwrap_or(Path::new("/")));
    for directory in parents.into_iter().chain([paths.state.as_path()]) {
        fs::create_dir_all(directory).map_err(host("make the guard's own directory"))?;
    }
    Ok(Files::new(&paths.leases, GRANT_MODE))
}

/// A stream that becomes readable at SIGTERM.
fn at_sigterm() -> io::Result<UnixStream> {
    let (told, sender) = UnixStream::pair()?;
    told.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGTERM, sender)?;
    Ok(told)
}
