//! Which files of the configuration are broken, and what becomes of their services, in words for the operator.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::config::{Diagnostic, Loaded, Severity};
use crate::dbus::ServiceStatus;
use crate::types::{ServiceName, shortened};

/// The state of a service that is not run here because its file is broken.
const STATE: &str = "broken";
const RELOAD: &str = "run \"systemctl reload putexd\"";
/// The most characters of what is wrong with a file, where other hosts are told.
const MESSAGE_LIMIT: usize = 240;
/// The same of all files together, but for one that is told in any case.
const BRIEF_LIMIT: usize = 500;

/// The errors that were found when the configuration was last read.
#[derive(Debug, Default)]
pub(super) struct Broken {
    /// The error of `putexd.toml` or of a directory, which concerns every service.
    for_all: Option<Diagnostic>,
    services: BTreeMap<ServiceName, Diagnostic>,
    /// All files with an error, also those that could not be the file of any service.
    files: BTreeSet<PathBuf>,
}

/// The files that were broken before a reload and are good after it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Mended {
    of_host: Option<Diagnostic>,
    services: Vec<ServiceName>,
}

impl Mended {
    /// One sentence for each file. A service whose file was removed is not mended: `exists` says which services are
    /// defined.
    pub(super) fn in_words(&self, exists: impl Fn(&ServiceName) -> bool) -> Vec<String> {
        let of_host = self.of_host.iter().map(|error| format!("{} is mended", error.path.display()));
        of_host
            .chain(self.services.iter().filter(|name| exists(name)).map(|name| format!("{name} is mended")))
            .collect()
    }
}

impl Broken {
    /// The errors at the start of putexd. Where only kept texts could be used, each service is among the broken ones.
    pub(super) fn new(loaded: &Loaded) -> Self {
        Self { for_all: loaded.for_all.clone(), services: loaded.broken.clone(), files: files(loaded) }
    }

    /// Takes over the errors that a reload found, and returns the files that are good again: that of the whole host, and
    /// those of services. Where the error concerns every service, the errors of single services stay as they were.
    pub(super) fn update(&mut self, loaded: &Loaded) -> Mended {
        let before = self.for_all.take();
        self.for_all.clone_from(&loaded.for_all);
        self.files = files(loaded);
        if self.for_all.is_some() {
            return Mended::default();
        }
        let services = std::mem::replace(&mut self.services, loaded.broken.clone());
        // A service that was broken only because of the host's file has no file of its own that was mended.
        let is_own = |error: &Diagnostic| before.as_ref().is_none_or(|before| before.path != error.path);
        let mended = services.into_iter().filter(|(name, error)| is_own(error) && !self.has(name));
        let services = mended.map(|(name, _)| name).collect();
        Mended { of_host: before, services }
    }

    /// That some files are broken, for STATUS=. `None`: every file is good.
    pub(super) fn in_short(&self) -> Option<String> {
        match self.files.len() {
            0 => None,
            1 => Some("1 file is broken: see \"putexctl status\"".to_owned()),
            count => Some(format!("{count} files are broken: see \"putexctl status\"")),
        }
    }

    /// Whether nothing new is known of any service.
    pub(super) fn is_of_all(&self) -> bool {
        self.for_all.is_some()
    }

    /// Whether every file is good.
    pub(super) fn is_empty(&self) -> bool {
        self.for_all.is_none() && self.services.is_empty()
    }

    /// Whether this service's file is broken.
    pub(super) fn has(&self, name: &ServiceName) -> bool {
        self.services.contains_key(name)
    }

    /// The sentence for a service that goes on although its file, or that of the host, is broken. `None`: neither is.
    pub(super) fn goes_on(&self, name: &ServiceName) -> Option<String> {
        let error = self.services.get(name).or(self.for_all.as_ref())?;
        Some(format!(
            "mend {} and {RELOAD}: {}; until then {name} goes on with its former settings",
            error.location(),
            error.message
        ))
    }

    /// Why a service whose file was broken when this putexd was started does not contend once it has no lease.
    pub(super) fn bars(&self, name: &ServiceName) -> Option<String> {
        let error = self.services.get(name)?;
        Some(format!(
            "mend {} and {RELOAD}: {}; this host has no lease of it that could go on",
            error.location(),
            error.message
        ))
    }

    /// The errors, each file in one sentence that begins with what to do. `goes_on` says which services go on here all the same.
    pub(super) fn in_words(&self, goes_on: impl Fn(&ServiceName) -> bool) -> Vec<String> {
        self.told(goes_on, str::to_owned)
    }

    /// The same in one text that is told to other hosts, which has room for whole sentences only.
    pub(super) fn in_brief(&self, goes_on: impl Fn(&ServiceName) -> bool) -> String {
        let mut all = self.told(goes_on, |message| shortened(message, MESSAGE_LIMIT)).into_iter().peekable();
        let (mut text, mut length) = (all.next().unwrap_or_default(), 0);
        length += text.chars().count();
        while let Some(next) = all.next_if(|next| length + next.chars().count() <= BRIEF_LIMIT) {
            length += next.chars().count();
            text = format!("{text}; {next}");
        }
        match all.count() {
            0 => text,
            left => format!("{text}; {left} more: \"putexd --check\" there names each"),
        }
    }

    fn told(&self, goes_on: impl Fn(&ServiceName) -> bool, cut: impl Fn(&str) -> String) -> Vec<String> {
        let for_all = self.for_all.iter().map(|error| {
            format!(
                "mend {} and {RELOAD}: {}; until then no change of any file takes effect, and what goes on here does so with \
                 its former settings",
                error.location(),
                cut(&error.message)
            )
        });
        // Where the error is that of the host, it is told once.
        let own = self.services.iter().filter(|(_, error)| self.for_all.as_ref() != Some(error));
        let services = own.map(|(name, error)| {
            let what = if goes_on(name) { "goes on with its former settings" } else { "is not run on this host" };
            format!("mend {} and {RELOAD}: {}; until then {name} {what}", error.location(), cut(&error.message))
        });
        for_all.chain(services).collect()
    }

    /// Status rows for the services with a broken file that do not run here.
    pub(super) fn rows(&self, runs: impl Fn(&ServiceName) -> bool) -> Vec<ServiceStatus> {
        let absent = self.services.iter().filter(|(name, _)| !runs(name));
        let row = |(name, _): (&ServiceName, &Diagnostic)| ServiceStatus {
            service: name.to_string(),
            state: STATE.to_owned(),
            hindrance: self.bars(name).unwrap_or_default(),
            ..ServiceStatus::default()
        };
        absent.map(row).collect()
    }
}

/// The files with an error.
fn files(loaded: &Loaded) -> BTreeSet<PathBuf> {
    let errors = loaded.diagnostics.iter().filter(|found| found.severity == Severity::Error);
    errors.map(|found| found.path.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Texts;

    fn loaded(broken: &[&str], is_host_broken: bool) -> Loaded {
        let error = |file: &str| Diagnostic {
            severity: Severity::Error,
            path: PathBuf::from(format!("/etc/putex.d/{file}.toml")),
            place: None,
            message: "it is wrong".to_owned(),
        };
        let service = |name: &&str| (ServiceName::new(name).expect("a name"), error(name));
        Loaded {
            settings: None,
            broken: broken.iter().map(service).collect(),
            for_all: is_host_broken.then(|| error("putexd")),
            is_unread: false,
            diagnostics: broken.iter().copied().chain(is_host_broken.then_some("putexd")).map(error).collect(),
            texts: Texts::default(),
        }
    }

    #[test]
    fn what_is_mended_is_told_once() {
        let mut broken = Broken::new(&loaded(&["db", "web", "gone"], false));
        assert_eq!(broken.update(&loaded(&["db", "web", "gone"], false)), Mended::default());
        // As long as an error concerns every service, none counts as mended.
        assert_eq!(broken.update(&loaded(&[], true)), Mended::default());
        let mended = broken.update(&loaded(&["web"], false));
        let words = mended.in_words(|name| name.as_str() != "gone");
        assert_eq!(words, ["/etc/putex.d/putexd.toml is mended", "db is mended"]);
        assert_eq!(broken.update(&loaded(&["web"], false)), Mended::default());
    }

    #[test]
    fn a_host_file_that_was_broken_at_the_start_is_mended_too() {
        let mut at_start = loaded(&[], true);
        // The services that go on with their former settings have the error of the host's file.
        let error = at_start.for_all.clone().expect("it is broken");
        at_start.broken.insert(ServiceName::new("db").expect("a name"), error);
        let mut broken = Broken::new(&at_start);
        let mended = broken.update(&loaded(&[], false));
        assert_eq!(mended.in_words(|_| true), ["/etc/putex.d/putexd.toml is mended"]);
    }

    #[test]
    fn each_cause_is_told_once_and_in_whole_sentences() {
        let (mut at_start, is_db) = (loaded(&["own"], true), |name: &ServiceName| name.as_str() == "db");
        let error = at_start.for_all.clone().expect("it is broken");
        for name in ["db", "web"] {
            at_start.broken.insert(ServiceName::new(name).expect("a name"), error.clone());
        }
        let told = Broken::new(&at_start).in_words(is_db);
        assert_eq!(told.len(), 2, "{told:#?}");
        assert!(told[0].starts_with("mend /etc/putex.d/putexd.toml and "), "{told:#?}");
        assert!(told[1].ends_with("it is wrong; until then own is not run on this host"), "{told:#?}");

        let names: Vec<String> = (0..40).map(|number| format!("db-{number:02}")).collect();
        let mut many = loaded(&names.iter().map(String::as_str).collect::<Vec<_>>(), false);
        many.broken.values_mut().for_each(|error| error.message = "no ".repeat(400));
        let brief = Broken::new(&many).in_brief(|_| true);
        assert!(brief.chars().count() < 600, "{brief}");
        assert!(
            brief.contains(
                "until then db-00 goes on with its former settings; 39 more: \"putexd --check\" there names each"
            ),
            "{brief}"
        );
    }

    #[test]
    fn broken_files_are_counted() {
        let told = |files: &[&str], is_host_broken| Broken::new(&loaded(files, is_host_broken)).in_short();
        assert_eq!(told(&[], false), None);
        assert_eq!(told(&["db"], false).as_deref(), Some("1 file is broken: see \"putexctl status\""));
        assert_eq!(told(&["db"], true).as_deref(), Some("2 files are broken: see \"putexctl status\""));
    }
}
