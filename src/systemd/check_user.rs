//! A user for each service's health command, so that no check can end or read what belongs to the check of another service.
//!
//! `DynamicUser=` cannot be used, see `confinement.rs`. But the users are those that systemd has for it, and they are taken as
//! systemd takes them (src/core/dynamic-user.c): by a lock on a file with the user's number as its name. So systemd passes over
//! those of putexd, and putexd over those of systemd.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, File, Permissions, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
    sync::Arc,
};

use rustix::fs::{Mode, OFlags};
use serde_json::json;
use tokio::sync::Mutex;

use crate::{
    host::files::write_new,
    types::{DYNAMIC_USERS, ServiceName, sum},
};

/// Where the locks are.
const LOCKS: &str = "/run/systemd/dynamic-uid";

/// Where nss-systemd finds users that others have made: see "JSON User Records" and nss-systemd(8).
const NAMES: &str = "/run/userdb";

/// What the content of a lock's file begins with that putexd has taken; the service's name follows.
const OWNER: &str = "putex-check-";

/// A user that nothing else on this host has, until this is dropped.
#[derive(Debug)]
pub struct CheckUser {
    uid: u32,
    _lock: File,
}

/// Why there is no user.
#[derive(Debug, thiserror::Error)]
pub enum CheckUserError {
    /// Each of them is locked, or somebody's by /etc/passwd or /etc/group.
    #[error(
        "end units with DynamicUser=, or set user in [health]: all users from {} to {} are taken",
        DYNAMIC_USERS.start(),
        DYNAMIC_USERS.end()
    )]
    NoneLeft,
    /// The files of the locks cannot be used.
    #[error("have root write to {LOCKS}, or set user in [health]: {0}")]
    Locks(#[from] io::Error),
}

/// Those who want a user wait here for each other, so that no look at a file keeps another service from its own user, and so that
/// one thread waits if a disk hangs.
#[derive(Debug, Clone, Default)]
pub struct CheckUsers(Arc<Mutex<()>>);

impl CheckUsers {
    pub async fn take(&self, service: &ServiceName) -> Result<CheckUser, CheckUserError> {
        let turn = Arc::clone(&self.0).lock_owned().await;
        let service = service.clone();
        let taking = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let user = CheckUser::take(Path::new(LOCKS), Path::new("/etc"), &service)?;
            // Without a name the check does with less, as on a host without nss-systemd.
            let _ = user.publish_name(Path::new(NAMES), &service);
            Ok(user)
        });
        taking
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error).into()))
    }
}

impl CheckUser {
    /// The user's number, and that of its group.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Gives the user a name, which the bus and some programs want. It stays until the boot, as what the checks leave behind does.
    fn publish_name(&self, names: &Path, service: &ServiceName) -> io::Result<()> {
        make_folder(names)?;
        let uid = self.uid;
        let name = format!("{OWNER}{uid}");
        let user = json!({
            "userName": name, "realName": format!("Health check of {service}"), "uid": uid, "gid": uid, "disposition": "dynamic",
            "homeDirectory": "/", "shell": "/usr/sbin/nologin", "service": "putexd",
        });
        let group =
            json!({"groupName": name, "gid": uid, "disposition": "dynamic", "service": "putexd"});
        for (kind, record) in [("user", user), ("group", group)] {
            let (file, link) = (
                format!("{name}.{kind}"),
                names.join(format!("{uid}.{kind}")),
            );
            let (path, text) = (names.join(&file), format!("{record}\n"));
            if fs::read_to_string(&path).is_ok_and(|known| known == text) && link.exists() {
                continue;
            }
            let new = names.join(format!(".{file}"));
            write_new(&new, text.as_bytes(), 0o644, |_| fs::rename(&new, &path))?;
            if !link.exists() {
                symlink(file, link)?;
            }
        }
        Ok(())
    }

    /// Takes a user, the same as before where that is possible, because checks leave files behind. So the search begins at a place
    /// that the name decides, and what another service had since the boot is taken only if nothing else is left.
    fn take(locks: &Path, etc: &Path, service: &ServiceName) -> Result<Self, CheckUserError> {
        make_folder(locks)?;
        let known = known_ids(etc);
        let owner = format!("{OWNER}{service}\n");
        let count = DYNAMIC_USERS.count();
        let begin = usize::try_from(sum(owner.as_bytes()) % count as u64).unwrap_or(0);
        for spares_others in [true, false] {
            let from_begin = DYNAMIC_USERS.cycle().skip(begin).take(count);
            for uid in from_begin.filter(|uid| !known.contains(uid)) {
                if let Some(lock) = lock(&locks.join(uid.to_string()), &owner, spares_others)? {
                    return Ok(Self { uid, _lock: lock });
                }
            }
        }
        Err(CheckUserError::NoneLeft)
    }
}

/// Makes a folder in which every program may look for users, if it is missing.
fn make_folder(path: &Path) -> io::Result<()> {
    if DirBuilder::new().mode(0o755).create(path).is_ok() {
        // Whatever the umask is.
        fs::set_permissions(path, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Locks a user's file, and writes the owner into it. `None`: the user is taken; with `spares_others` also if another service had
/// it.
fn lock(path: &Path, owner: &str, spares_others: bool) -> io::Result<Option<File>> {
    loop {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // systemd removes the file of a user that it does not need any more, perhaps between the two steps above.
        if file.metadata()?.nlink() == 0 {
            continue;
        }
        let mut former = Vec::new();
        file.read_to_end(&mut former)?;
        if spares_others && former.starts_with(OWNER.as_bytes()) && former != owner.as_bytes() {
            return Ok(None);
        }
        file.rewind()?;
        file.set_len(0)?;
        file.write_all(owner.as_bytes())?;
        return Ok(Some(file));
    }
}

/// The numbers of the users and groups of this host.
fn known_ids(etc: &Path) -> BTreeSet<u32> {
    let read = |name| fs::read(etc.join(name)).unwrap_or_default();
    let id = |line: &[u8]| {
        str::from_utf8(line.split(|byte| *byte == b':').nth(2)?)
            .ok()?
            .parse()
            .ok()
    };
    let lines = [read("passwd"), read("group")].join(&b'\n');
    lines.split(|byte| *byte == b'\n').filter_map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Host(tempfile::TempDir);

    impl Host {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a folder"))
        }

        fn take(&self, service: &str) -> Result<CheckUser, CheckUserError> {
            CheckUser::take(
                &self.0.path().join("locks"),
                self.0.path(),
                &service.parse().expect("a service's name"),
            )
        }

        fn file(&self, uid: u32) -> std::path::PathBuf {
            self.0.path().join("locks").join(uid.to_string())
        }
    }

    #[test]
    fn each_service_has_a_user_of_its_own_and_the_same_again() {
        let host = Host::new();
        // So many that some of them have the same hash.
        let names: Vec<String> = (0..200).map(|number| format!("app-{number}")).collect();
        let take = |names: &[String]| -> Vec<CheckUser> {
            names
                .iter()
                .map(|name| host.take(name).expect("a user"))
                .collect()
        };
        let users = take(&names);
        let uids: Vec<u32> = users.iter().map(CheckUser::uid).collect();
        assert!(uids.iter().all(|uid| DYNAMIC_USERS.contains(uid)));
        assert_eq!(uids.iter().collect::<BTreeSet<_>>().len(), names.len());
        drop(users);
        // After a restart of putexd, in another order.
        let mut backwards = names.clone();
        backwards.reverse();
        let again: Vec<u32> = take(&backwards).iter().map(CheckUser::uid).rev().collect();
        assert_eq!(again, uids);
        let folder = fs::metadata(host.0.path().join("locks"))
            .expect("it was made")
            .permissions();
        assert_eq!(folder.mode() & 0o777, 0o755);
    }

    #[test]
    fn a_user_of_somebody_else_is_passed_over() {
        let host = Host::new();
        let usual = host.take("db").expect("a user").uid();
        fs::write(
            host.0.path().join("passwd"),
            format!("root:x:0:0::/:\nx:x:{usual}:100::/:\n"),
        )
        .expect("written");
        let next = host.take("db").expect("a user").uid();
        assert_eq!(next, usual + 1);
        fs::write(host.0.path().join("group"), format!("x:x:{next}:\n")).expect("written");
        assert_eq!(host.take("db").expect("a user").uid(), usual + 2);
        // A unit of systemd with DynamicUser=.
        let file = File::create(host.file(usual + 2)).expect("made");
        file.lock().expect("nobody has it");
        assert_eq!(host.take("db").expect("a user").uid(), usual + 3);
    }

    #[test]
    fn what_a_former_service_had_is_taken_last_and_that_none_is_left_is_said() {
        let host = Host::new();
        let former = host.take("former").expect("a user").uid();
        let other = host.take("other").expect("a user");
        let left = [former, other.uid()];
        let ids = DYNAMIC_USERS.filter(|uid| !left.contains(uid));
        let lines: Vec<String> = ids.map(|uid| format!("x:x:{uid}:\n")).collect();
        fs::write(host.0.path().join("passwd"), lines.concat()).expect("written");
        let last = host.take("db").expect("the last one");
        assert_eq!(last.uid(), former);
        let error = host.take("web").expect_err("none is left");
        assert!(
            matches!(error, CheckUserError::NoneLeft)
                && error.to_string().contains("from 61184 to 65519"),
            "{error}"
        );
        drop(other);
        // A process that another test is about to execute has the lock as well, for a moment.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while host.take("web").is_err() {
            assert!(std::time::Instant::now() < end, "the user is given up");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_user_has_a_name_that_every_program_can_read() {
        let host = Host::new();
        let names = host.0.path().join("names");
        let user = host.take("db").expect("a user");
        for _ in 0..2 {
            user.publish_name(&names, &"db".parse().expect("a service's name"))
                .expect("the folder can be written to");
        }
        for (kind, part) in [
            ("user", "\"realName\":\"Health check of db\""),
            ("group", "\"gid\":"),
        ] {
            let link = names.join(format!("{}.{kind}", user.uid()));
            let text = fs::read_to_string(&link).expect("it is there");
            assert!(
                text.contains(part) && text.contains(&format!("\"putex-check-{}\"", user.uid())),
                "{text}"
            );
            assert_eq!(
                fs::metadata(&link).expect("it is there").mode() & 0o777,
                0o644
            );
        }
        assert_eq!(fs::read_dir(&names).expect("it was made").count(), 4);
    }
}
