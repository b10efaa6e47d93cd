//! The texts that the settings in force were made of, kept in /run for the next putexd of this boot. Where a file is broken
//! by then, its service's lease is renewed with the settings with which it was armed (adoption, K8).

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::config::Texts;
use crate::host::identity;
use crate::types::format::Format;
use crate::types::kept::{self, Kept, Made};
use crate::types::{BootId, ServiceName};

/// The kept texts, as far as this putexd knows.
pub(super) struct KeptTexts {
    directory: PathBuf,
    /// This boot. `None`: the kernel does not say which it is, and nothing is kept.
    boot: Option<BootId>,
    texts: Texts,
}

impl KeptTexts {
    /// Reads what a former putexd has kept. A file that is not understood, or of another boot, is ignored.
    pub(super) fn read(directory: &Path) -> Self {
        let boot = identity::boot_id()
            .inspect_err(|error| tracing::warn!("the texts of the configuration are not kept: {error}, ignoring"))
            .ok();
        let mut texts = Texts::default();
        let names = fs::read_dir(directory).into_iter().flatten().flatten();
        for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
            let Some(made) = read(&directory.join(&name), boot) else { continue };
            match name.strip_suffix(".json").and_then(|stem| ServiceName::new(stem).ok()) {
                Some(service) => drop(texts.services.insert(service, made)),
                None if name == kept::HOST => texts.host = Some(made.file),
                None => {}
            }
        }
        Self { directory: directory.to_owned(), boot, texts }
    }

    pub(super) fn texts(&self) -> &Texts {
        &self.texts
    }

    /// Keeps `texts`, of which the settings in force are made from now on, and removes the texts of all other services. A
    /// failure is logged.
    pub(super) fn replace(&mut self, texts: Texts) {
        let Some(boot) = self.boot else { return };
        let former = std::mem::take(&mut self.texts);
        for name in former.services.keys().filter(|name| !texts.services.contains_key(*name)) {
            remove(&self.path_of(name));
        }
        let mut failed = self.make_directory().err();
        for (name, made) in &texts.services {
            if former.services.get(name) != Some(made) {
                failed = failed.or(write(&self.path_of(name), boot, made.clone()).err());
            }
        }
        if let Some(file) = &texts.host
            && former.host != texts.host
        {
            let made = Made { file: file.clone(), host: None };
            failed = failed.or(write(&self.directory.join(kept::HOST), boot, made).err());
        }
        if texts.host.is_none() {
            remove(&self.directory.join(kept::HOST));
        }
        if let Some(error) = failed {
            tracing::warn!(
                "failed to keep the configuration's text in {}: {error}; should a file be broken when putexd is restarted, \
                 its service is released then, ignoring",
                self.directory.display()
            );
        }
        self.texts = texts;
    }

    fn path_of(&self, name: &ServiceName) -> PathBuf {
        self.directory.join(format!("{name}.json"))
    }

    /// Makes the directory, but not its parents, which belong to the guard.
    fn make_directory(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }
}

fn read(path: &Path, boot: Option<BootId>) -> Option<Made> {
    let kept: Kept = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    (Some(kept.boot) == boot).then_some(kept.made)
}

/// Replaces a file atomically. If that fails the old file is removed, because its text is not in force any more.
fn write(path: &Path, boot: BootId, made: Made) -> io::Result<()> {
    let new = path.with_extension("new");
    let written =
        serde_json::to_vec(&Kept { format: Format::WRITTEN, boot, made }).map_err(io::Error::from).and_then(|bytes| {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&bytes)?;
            fs::rename(&new, path)
        });
    if written.is_err() {
        remove(&new);
        remove(path);
    }
    written
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("failed to remove {}: {error}, ignoring", path.display());
        }
        Ok(()) | Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::types::kept::Text;

    fn made(text: &str) -> Made {
        let file = |path: &str, text: &str| Text { path: PathBuf::from(path), text: text.to_owned() };
        Made { file: file("/etc/putex.d/db.toml", text), host: Some(file("/etc/putex/putexd.toml", "node")) }
    }

    fn texts(services: &[(&str, &str)]) -> Texts {
        let service = |(name, text): &(&str, &str)| (ServiceName::new(name).expect("a name"), made(text));
        Texts { host: made("").host, services: services.iter().map(service).collect() }
    }

    #[test]
    fn the_next_putexd_of_this_boot_finds_what_is_in_force() {
        let directory = tempfile::tempdir().expect("a directory");
        let kept = directory.path().join("kept");
        KeptTexts::read(&kept).replace(texts(&[("db", "a"), ("web", "b")]));
        let mut next = KeptTexts::read(&kept);
        assert_eq!(*next.texts(), texts(&[("db", "a"), ("web", "b")]));
        next.replace(Texts { host: None, ..texts(&[("db", "c")]) });
        assert_eq!(KeptTexts::read(&kept).texts().host, None, "the former text is not kept");
        next.replace(texts(&[("db", "c")]));
        assert_eq!(*KeptTexts::read(&kept).texts(), texts(&[("db", "c")]));
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!((mode(&kept), mode(&kept.join("db.json")), mode(&kept.join(kept::HOST))), (0o700, 0o600, 0o600));

        // A file of another boot, and one that is not understood.
        let text = fs::read_to_string(kept.join("db.json")).expect("it is there");
        let boot = next.boot.expect("the kernel tells").to_string();
        fs::write(kept.join("web.json"), text.replace(&boot, &"0".repeat(32))).expect("written");
        fs::write(kept.join("other.json"), "{").expect("written");
        assert_eq!(*KeptTexts::read(&kept).texts(), texts(&[("db", "c")]));
    }

    #[test]
    fn what_cannot_be_written_is_not_what_was_there_before() {
        let directory = tempfile::tempdir().expect("a directory");
        let kept = directory.path().join("kept");
        KeptTexts::read(&kept).replace(texts(&[("db", "a")]));
        // A directory in the place of the new file makes the write fail.
        fs::create_dir(kept.join("db.new")).expect("made");
        KeptTexts::read(&kept).replace(texts(&[("db", "b")]));
        assert_eq!(*KeptTexts::read(&kept).texts(), texts(&[]));
        KeptTexts::read(&directory.path().join("no/where")).replace(texts(&[("db", "a")]));
    }
}
