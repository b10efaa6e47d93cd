//! The settings in force, kept in /run for the next putexd of this boot. Where a file is broken by then, its service's lease is
//! renewed with the settings with which it was armed (adoption, K8).

use std::path::{Path, PathBuf};

use super::{PRIVATE, read_or_ignore, remove, render, replace};
use crate::{
    config::{Kept, Settings},
    host::identity,
    types::{BootId, format::Format},
};

/// The settings in force.
pub struct InForce {
    path: PathBuf,
    /// This boot. `None`: the kernel does not say which it is, and nothing is kept.
    boot: Option<BootId>,
    /// Before a start, what a former putexd of this boot has kept.
    pub settings: Option<Settings>,
}

impl InForce {
    /// Reads what a former putexd has kept. A file that is not understood, or of another boot, is ignored.
    pub fn read(path: &Path) -> Self {
        let boot = identity::boot_id()
            .inspect_err(|error| {
                tracing::warn!("the settings in force are not kept: {error}, ignoring")
            })
            .ok();
        let kept = read_or_ignore::<Kept>(path).filter(|kept| Some(kept.boot) == boot);
        Self {
            path: path.to_owned(),
            boot,
            settings: kept.map(|kept| kept.settings),
        }
    }

    /// Keeps the settings that are in force from now on. A failure is logged, and the former file removed, because its settings
    /// are not in force any more.
    pub fn replace(&mut self, settings: Settings) {
        self.settings = Some(settings.clone());
        let Some(boot) = self.boot else { return };
        let kept = Kept {
            format: Format,
            boot,
            settings,
        };
        if let Err(error) = replace(&self.path, &render(&kept), PRIVATE) {
            let _ = remove(&self.path);
            tracing::warn!(
                "see why {} cannot be written: {error}; a restart with a broken file releases its service",
                self.path.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::config;

    fn settings(services: &[&str]) -> Settings {
        let root = tempfile::tempdir().expect("a directory");
        for folder in ["etc/putex.d", "etc/putex", "srv"] {
            fs::create_dir_all(root.path().join(folder)).expect("made");
        }
        let host = "node = \"h1\"\n[store]\ntype = \"directory\"\npath = \"/srv\"\n";
        fs::write(root.path().join("etc/putex/putexd.toml"), host).expect("written");
        for name in services {
            let file = root.path().join(format!("etc/putex.d/{name}.toml"));
            fs::write(file, format!("unit = \"{name}.service\"\n")).expect("written");
        }
        let loaded = config::load(root.path());
        loaded.settings.expect("they are good")
    }

    #[test]
    fn the_next_putexd_of_this_boot_finds_what_is_in_force() {
        let directory = tempfile::tempdir().expect("a directory");
        let kept = directory.path().join("kept");
        InForce::read(&kept).replace(settings(&["db", "web"]));
        let mut next = InForce::read(&kept);
        assert_eq!(next.settings, Some(settings(&["db", "web"])));
        next.replace(settings(&["db"]));
        assert_eq!(InForce::read(&kept).settings, Some(settings(&["db"])));
        let mode = fs::metadata(&kept)
            .expect("it is there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);

        // A file of another boot, and one that is not understood.
        let text = fs::read_to_string(&kept).expect("it is there");
        let boot = next.boot.expect("the kernel tells").to_string();
        for other in [text.replace(&boot, &"0".repeat(32)), "{".to_owned()] {
            fs::write(&kept, other).expect("written");
            assert_eq!(InForce::read(&kept).settings, None);
        }
    }

    #[test]
    fn what_cannot_be_written_is_not_what_was_there_before() {
        let directory = tempfile::tempdir().expect("a directory");
        let kept = directory.path().join("kept");
        InForce::read(&kept).replace(settings(&["db"]));
        // A directory in the place of the new file makes the write fail.
        fs::create_dir(directory.path().join("kept.new")).expect("made");
        InForce::read(&kept).replace(settings(&["web"]));
        assert!(!kept.exists());
        InForce::read(&directory.path().join("no/where")).replace(settings(&["db"]));
    }
}
