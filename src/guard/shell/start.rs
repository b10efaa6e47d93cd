//! The start of the guard, after a guard that has ended.

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
use super::{Fatal, Shell};
use crate::guard::Paths;
use crate::guard::enforce::Enforcer;
use crate::guard::files::Files;
use crate::guard::inquiries::Inquiries;
use crate::guard::program::Program;
use crate::guard::records::Records;
use crate::guard::table::{Entry, Table};
use crate::guard::told::{Level, say};
use crate::guard::watch::{Pulse, listen};
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
pub(in crate::guard) fn begin(paths: &Paths, watchdog: impl Fn() -> Option<Watchdog>) -> Result<Shell<'_>, Fatal> {
    let began = clock::now();
    let mut told = String::new();
    loop {
        let error = match Shell::start(paths, watchdog()) {
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
    /// Enforces the leases that the previous guard left, and only then listens.
    fn start(paths: &'a Paths, watchdog: Option<Watchdog>) -> Result<Self, Fatal> {
        let host = |what| move |error| Fatal::Host(what, error);
        let boot = identity::boot_id().map_err(host("read the boot's id"))?;
        let hierarchy = Arc::new(Hierarchy::that_kills().map_err(host("find the control groups"))?);
        let records = Records::new(&paths.state, boot);
        let (table, effects) = Table::resume(clock::now(), records.load());
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
        grants.clear().map_err(host("remove the grants of the guard before"))?;
        if leases > 0 {
            say(Level::Warning, &format!("{leases} leases of a guard that ended are closed; their deadlines stand"));
        }
        let listener = listen(&paths.socket).map_err(host("listen"))?;
        let pulse = Pulse::new(&paths.watch).map_err(host("listen"))?;
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
            connection: None,
            connection_group: None,
            inquiries: Inquiries::new().map_err(host("look at devices"))?,
            heart: Heart::new(pulse),
            program: Program::new(),
            watchdog,
            room: Room::default(),
            told,
            ending: None,
        };
        shell.beat();
        shell.carry_out(effects)?;
        shell.expire()?;
        shell.tend();
        if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
            say(Level::Warning, &format!("cannot tell systemd that the guard is ready, ignoring: {error}"));
        }
        shell.beat();
        Ok(shell)
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
    let parents = [&paths.socket, &paths.watch].map(|file| file.parent().unwrap_or(Path::new("/")));
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
