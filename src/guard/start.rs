//! The start of the guard, after a guard that has ended.

use std::{
    fs, io,
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};

use sd_notify::NotifyState;

use super::{
    Root, WATCH_SOCKET,
    enforce::{Enforcer, tell},
    kept::KeptLeases,
    log::{Priority, say},
    looks::Inquiries,
    serve::{Guard, cannot},
    table::LeaseTable,
    watch::{Beats, stay_in_memory},
    watchdog::HostWatchdog,
};
use crate::{
    guard_client::frame,
    host::{
        cgroup::Hierarchy,
        clock::{self, BootTimer},
        files::listen,
        identity,
        self_fence::SYSRQ_TRIGGER,
    },
    systemd::private,
    types::{GUARDED_LEASES_DIR, LEASES_DIR},
};

/// Time between two attempts to start: the same that systemd leaves between two guards.
const START_INTERVAL: Duration = Duration::from_millis(100);
/// Tries to start until that succeeds, and logs each reason why it cannot once. A guard that ended at each failure would be
/// started ten times a second, and would fill the journal. `device`: the hardware watchdog and its timeout.
pub fn begin(root: &Root, device: Option<&(PathBuf, Duration)>) -> Guard {
    let mut logged = String::new();
    loop {
        let watchdog = device.map(|(path, timeout)| HostWatchdog::new(path.clone(), *timeout));
        let error = match Guard::start(root, watchdog) {
            Ok(guard) => return guard,
            Err(error) => format!("the guard cannot start yet: {error}"),
        };
        if error != logged {
            say(Priority::Error, &error);
            logged = error;
        }
        thread::sleep(START_INTERVAL);
    }
}

impl Guard {
    /// Enforces the leases that the previous guard left, and only then listens.
    fn start(root: &Root, watchdog: Option<HostWatchdog>) -> Result<Self, String> {
        let boot = identity::boot_id().map_err(cannot("read the boot's id"))?;
        let hierarchy =
            Arc::new(Hierarchy::that_kills().map_err(cannot("find the control groups"))?);
        let kept = KeptLeases::new(&root.at(GUARDED_LEASES_DIR), &root.at(LEASES_DIR), boot);
        let (mut table, mut effects) = LeaseTable::resume(clock::now(), kept.load());
        effects.extend(table.expire(clock::now()));
        let systemd = root.at(private::PATH);
        let enforcer =
            Enforcer::start(Arc::clone(&hierarchy), systemd).map_err(cannot("start a thread"))?;
        // SIGKILL is sent where it is due, before anything else is done.
        enforcer.begin_all(&effects);
        let seen = enforcer.look(|| ());
        stay_in_memory();
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        make_folders(root)?;
        kept.clear_grants()
            .map_err(cannot("remove the grants of the guard before"))?;
        let leases = table.leases().count();
        if leases > 0 {
            say(
                Priority::Warning,
                &format!("{leases} leases of a guard that ended are closed; their deadlines stand"),
            );
        }
        let mut guard = Self {
            timer: BootTimer::new().map_err(cannot("make a timer"))?,
            sigterm: at_sigterm().map_err(cannot("listen for SIGTERM"))?,
            listener: listen(&root.at(frame::SOCKET)).map_err(cannot("listen"))?,
            beats: Beats::new(&root.at(WATCH_SOCKET)).map_err(cannot("listen"))?,
            inquiries: Inquiries::new(),
            enforcer,
            sysrq: root.at(SYSRQ_TRIGGER),
            hierarchy,
            table,
            kept,
            connection: None,
            connection_group: None,
            look_at: clock::now(),
            watchdog,
            ending: None,
        };
        guard.beat();
        for (lease, news) in seen {
            tell(&lease, &news);
        }
        guard.carry_out(effects)?;
        guard.expire()?;
        guard.keep_alive();
        if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
            say(
                Priority::Warning,
                &format!("cannot tell systemd that the guard is ready, ignoring: {error}"),
            );
        }
        guard.beat();
        Ok(guard)
    }
}

/// Makes the folders of the grants, of the records and of the sockets, where they are missing.
fn make_folders(root: &Root) -> Result<(), String> {
    let grants = root.at(LEASES_DIR);
    fs::create_dir_all(&grants).map_err(cannot("make the directory of the grants"))?;
    // Units may run as any user, and their gate runs as the same user.
    fs::set_permissions(&grants, fs::Permissions::from_mode(0o755))
        .map_err(cannot("open the directory of the grants"))?;
    // The sockets are above it.
    fs::create_dir_all(root.at(GUARDED_LEASES_DIR))
        .map_err(cannot("make the guard's own directory"))
}

/// A stream that becomes readable at SIGTERM.
fn at_sigterm() -> io::Result<UnixStream> {
    let (sigterm, sender) = UnixStream::pair()?;
    sigterm.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGTERM, sender)?;
    Ok(sigterm)
}
