//! The files that this program consists of: whether others are installed in their place, as by an upgrade.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::host::clock;
use crate::types::Time;

/// Time between two looks at the files. They are others when two looks have found the same others, so that what is half written
/// does not count.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Device and number of a file; `None`: there is none.
type Identity = Option<(u64, u64)>;

/// This program and the libraries that it has loaded.
#[derive(Debug)]
pub(super) struct Program {
    /// The first one is the program itself.
    files: Vec<PathBuf>,
    /// What the files were when the program started. What they were before does not count: each change can end a guard only once,
    /// and nothing can make it end again and again.
    started_as: Vec<Identity>,
    seen: Vec<Identity>,
    looked_at: Time,
    is_replaced: bool,
}

impl Program {
    pub(super) fn new() -> Self {
        let own = std::env::current_exe().ok();
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        Self::of(own.into_iter().chain(executed(&maps)).collect())
    }

    fn of(files: Vec<PathBuf>) -> Self {
        let started_as = identities(&files);
        Self { files, seen: started_as.clone(), started_as, looked_at: clock::now(), is_replaced: false }
    }

    /// Whether another program, or another library of this one, is installed by now.
    pub(super) fn is_replaced(&mut self) -> bool {
        if self.due_in().is_zero() {
            self.looked_at = clock::now();
            self.look();
        }
        self.is_replaced
    }

    /// How long until the next look.
    pub(super) fn due_in(&self) -> Duration {
        clock::now().until_passed(self.looked_at.plus(LOOK_INTERVAL))
    }

    fn look(&mut self) {
        let found = identities(&self.files);
        // Where the program itself is gone, as in a removal, there is nothing to start in its place.
        let is_there = found.first().is_some_and(Option::is_some);
        self.is_replaced = is_there && found != self.started_as && found == self.seen;
        self.seen = found;
    }
}

fn identities(files: &[PathBuf]) -> Vec<Identity> {
    files.iter().map(|file| fs::metadata(file).ok().map(|file| (file.dev(), file.ino()))).collect()
}

/// The files in a list of /proc/PID/maps that are executed.
fn executed(maps: &str) -> impl Iterator<Item = PathBuf> {
    let fields = maps.lines().map(|line| line.splitn(6, ' '));
    fields.filter_map(|mut fields| {
        let path = fields.clone().last()?.trim_start();
        (fields.nth(1)?.contains('x') && path.starts_with('/')).then(|| Path::new(path).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_executed_is_found() {
        let maps = "55d0-55d8 r--p 00000000 fe:01 399 /usr/bin/putex-guard\n55d8-55f8 r-xp 00008000 fe:01 399        /usr/bin/putex-guard\n\
                    55f8-55f9 rw-p 00000000 00:00 0          [heap]\n7f01-7f02 r-xp 00001000 fe:01 400      /usr/lib/lib c.so\n\
                    7ffe-7fff r-xp 00000000 00:00 0    [vdso]\n7fff-7fff r-xp 00000000 00:00 0 \n";
        let found: Vec<PathBuf> = executed(maps).collect();
        assert_eq!(found, ["/usr/bin/putex-guard", "/usr/lib/lib c.so"].map(PathBuf::from));
        let this = Program::new();
        assert!(this.files.len() > 1 && this.started_as.iter().all(Option::is_some), "{this:?}");
    }

    #[test]
    fn a_program_is_replaced_when_the_same_other_file_was_seen_twice() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = ["program", "library"].map(|name| folder.path().join(name));
        let install = |file: &Path| {
            let new = folder.path().join("new");
            fs::write(&new, "").expect("writes");
            fs::rename(new, file).expect("moves");
        };
        for file in &files {
            install(file);
        }
        let mut program = Program::of(files.to_vec());
        let look = |program: &mut Program| {
            program.look();
            program.is_replaced
        };
        assert!(!look(&mut program) && !look(&mut program));
        for file in &files {
            // The former file is kept, so that the new one gets another number.
            fs::hard_link(file, file.with_extension("old")).expect("links");
            install(file);
            assert!(!look(&mut program), "it may be half written");
            assert!(look(&mut program));
            let started = &mut Program::of(files.to_vec());
            assert!(!look(started) && !look(started), "once for each change");
        }
        fs::remove_file(&files[1]).expect("removes");
        assert!(!look(&mut program) && look(&mut program), "the next version of a library may have another name");
        fs::remove_file(&files[0]).expect("removes");
        assert!(!look(&mut program) && !look(&mut program), "there is nothing to start");
    }
}
