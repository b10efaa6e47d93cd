//! Which files are obeyed: those that only root can have written, or the user that the program runs as, which is `me`.

use std::{
    fs::{self, Metadata},
    os::unix::fs::MetadataExt,
    path::Path,
};

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
        Self {
            owner: found.uid(),
            mode: found.mode(),
        }
    }
}

/// Why a file or folder is not obeyed, with the remedy first: others than root and `me` may change it. `None`: it is obeyed.
pub fn why_not_obeyed(path: &Path, found: impl Into<Rights>, me: u32) -> Option<String> {
    let remedy = format!("run \"chmod go-w {}\"", path.display());
    let what = "others than its owner may change it";
    refused(path, found.into(), me, (0o022, &remedy, what))
}

/// Whether a service's file is a mask, which says that the service is not there and hides files of its name in later directories:
/// a link to /dev/null, or an empty file. A file that somebody else may have emptied is no mask.
pub fn is_mask(path: &Path, me: u32) -> bool {
    fs::canonicalize(path).is_ok_and(|target| target == Path::new("/dev/null"))
        || fs::metadata(path).is_ok_and(|found| {
            found.is_file() && found.len() == 0 && why_not_obeyed(path, &found, me).is_none()
        })
}

/// Why a file must not be used for a secret, with the remedy first. `None`: it may be used.
pub fn why_no_secret(path: &Path, found: impl Into<Rights>, me: u32) -> Option<String> {
    let remedy = format!("run \"chmod 600 {}\"", path.display());
    let what = "others than its owner may use the secret";
    refused(path, found.into(), me, (0o077, &remedy, what))
}

fn refused(
    path: &Path,
    found: Rights,
    me: u32,
    (bits, remedy, what): (u32, &str, &str),
) -> Option<String> {
    let (path, owner, mode) = (path.display(), found.owner, found.mode & 0o7777);
    if owner != ROOT && owner != me {
        return Some(format!(
            "run \"chown root {path}\": it belongs to the user {owner}"
        ));
    }
    (mode & bits != 0).then(|| format!("{remedy}: {what} (mode {mode:04o})"))
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
        let words = judge(
            &path,
            (&fs::metadata(&path).expect("it is there")).into(),
            me(),
        );
        words.map(|words| words.replace(&folder.path().display().to_string(), ""))
    }

    #[test]
    fn what_others_may_change_is_not_obeyed() {
        for good in [0o644, 0o600, 0o755, 0o444] {
            assert_eq!(judged(why_not_obeyed, good, None), None, "{good:o}");
        }
        for bad in [0o664, 0o646, 0o620] {
            let words = judged(why_not_obeyed, bad, None).expect("refused");
            assert_eq!(
                words,
                format!(
                    "run \"chmod go-w /f\": others than its owner may change it (mode {bad:04o})"
                )
            );
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
                format!(
                    "run \"chmod 600 /f\": others than its owner may use the secret (mode {bad:04o})"
                )
            );
        }
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
    }
}
