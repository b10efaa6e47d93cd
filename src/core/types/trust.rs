//! Which files are obeyed: those that only root can have written, or the user that the program runs as, which is `me`.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const GROUP_OR_OTHERS_WRITE: u32 = 0o022;
const GROUP_OR_OTHERS: u32 = 0o077;
const OTHERS_AND_GROUP_WRITE: u32 = 0o027;
const ROOT: u32 = 0;

/// Owner and mode of a file or folder.
#[derive(Debug, Clone, Copy)]
pub struct Rights {
    /// The user that owns it.
    pub owner: u32,
    /// Its mode, with or without the bits of its type.
    pub mode: u32,
}

impl From<&Metadata> for Rights {
    fn from(found: &Metadata) -> Self {
        Self { owner: found.uid(), mode: found.mode() }
    }
}

/// Why a file or folder is not obeyed, with the remedy first: others than root and `me` may change it. `None`: it is obeyed.
#[must_use]
pub fn why_not_obeyed(path: &Path, found: impl Into<Rights>, me: u32) -> Option<String> {
    let found = found.into();
    why_foreign(path, found, me).or_else(|| {
        let why = format!("others than its owner may change it (mode {:04o})", mode(found));
        (found.mode & GROUP_OR_OTHERS_WRITE != 0).then(|| format!("run \"chmod go-w {}\": {why}", path.display()))
    })
}

/// Whether a service's file is a mask, which says that the service is not there and hides files of its name in later directories:
/// a link to /dev/null, or an empty file. A file that somebody else may have emptied is no mask.
#[must_use]
pub fn is_mask(path: &Path, me: u32) -> bool {
    fs::canonicalize(path).is_ok_and(|target| target == Path::new("/dev/null"))
        || fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.len() == 0 && why_not_obeyed(path, &found, me).is_none())
}

/// Why a file must not be used for a secret, with the remedy first. `None`: it may be used.
#[must_use]
pub fn why_no_secret(path: &Path, found: impl Into<Rights>, me: u32) -> Option<String> {
    let found = found.into();
    why_foreign(path, found, me).or_else(|| {
        let why = format!("others than its owner may use the secret (mode {:04o})", mode(found));
        (found.mode & GROUP_OR_OTHERS != 0).then(|| format!("run \"chmod 600 {}\": {why}", path.display()))
    })
}

/// As [`why_no_secret`], for a credential that systemd has put in place: its list of the users that may read the file shows as a
/// right of the group.
#[must_use]
pub fn why_no_credential(path: &Path, found: impl Into<Rights>, me: u32) -> Option<String> {
    let found = found.into();
    let remedy = "have systemd put it there, with LoadCredential=";
    if !is_ours(found, me) {
        return Some(format!("{remedy}: {} belongs to the user {}", path.display(), found.owner));
    }
    let open = found.mode & OTHERS_AND_GROUP_WRITE != 0;
    open.then(|| format!("{remedy}: others may use {} (mode {:04o})", path.display(), mode(found)))
}

fn why_foreign(path: &Path, found: Rights, me: u32) -> Option<String> {
    let user = found.owner;
    (!is_ours(found, me)).then(|| format!("run \"chown root {}\": it belongs to the user {user}", path.display()))
}

fn is_ours(found: Rights, me: u32) -> bool {
    found.owner == ROOT || found.owner == me
}

fn mode(found: Rights) -> u32 {
    found.mode & 0o7777
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use tempfile::TempDir;

    use super::*;

    type Judge = fn(&Path, Rights, u32) -> Option<String>;

    fn me() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn judged(judge: Judge, mode: u32, owner: Option<u32>) -> Option<String> {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("f");
        fs::write(&path, "").expect("a file");
        chown(&path, owner, None).expect("it is given away");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
        let words = judge(&path, (&fs::metadata(&path).expect("it is there")).into(), me());
        words.map(|words| words.replace(&folder.path().display().to_string(), ""))
    }

    #[test]
    fn what_others_may_change_is_not_obeyed() {
        for good in [0o644, 0o600, 0o755, 0o444] {
            assert_eq!(judged(why_not_obeyed, good, None), None, "{good:o}");
        }
        for bad in [0o664, 0o646, 0o620] {
            let words = judged(why_not_obeyed, bad, None).expect("refused");
            assert_eq!(words, format!("run \"chmod go-w /f\": others than its owner may change it (mode {bad:04o})"));
        }
    }

    #[test]
    fn what_others_may_use_is_no_secret() {
        for good in [0o600, 0o400, 0o700] {
            assert_eq!(judged(why_no_secret, good, None), None, "{good:o}");
        }
        for bad in [0o640, 0o604, 0o610] {
            let words = judged(why_no_secret, bad, None).expect("refused");
            assert_eq!(
                words,
                format!("run \"chmod 600 /f\": others than its owner may use the secret (mode {bad:04o})")
            );
        }
        // systemd gives the user of a service the right to read it by an access control list, which shows as a right of the
        // group.
        assert_eq!(judged(why_no_credential, 0o440, None), None);
        assert!(judged(why_no_credential, 0o444, None).is_some_and(|words| words.contains("LoadCredential=")));
    }

    #[test]
    fn what_belongs_to_others_is_neither() {
        if me() != ROOT {
            eprintln!("SKIPPED: only root can give a file away");
            return;
        }
        for judge in [why_not_obeyed as Judge, why_no_secret] {
            let words = judged(judge, 0o600, Some(12345)).expect("refused");
            assert_eq!(words, "run \"chown root /f\": it belongs to the user 12345");
        }
        assert!(judged(why_no_credential, 0o400, Some(12345)).is_some());
    }
}
