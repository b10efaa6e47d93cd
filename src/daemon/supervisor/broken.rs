//! Which files of the configuration are broken, and what becomes of their services, in words for the operator.

use std::collections::BTreeMap;

use crate::config::{Diagnostic, Loaded};
use crate::facts::{Bar, ServiceState};
use crate::types::{ServiceName, shortened};

/// The most characters of what is wrong with a file, where other hosts are told.
const MESSAGE_LIMIT: usize = 300;

/// The errors that were found when the configuration was last read.
#[derive(Debug, Default)]
pub struct Broken {
    /// The error of `putexd.toml` or of a directory, which concerns every service.
    for_all: Option<Diagnostic>,
    services: BTreeMap<ServiceName, Diagnostic>,
}

impl Broken {
    /// The errors at the start of putexd. Where only kept settings could be used, each service is among the broken ones.
    pub fn new(loaded: &Loaded) -> Self {
        Self {
            for_all: loaded.for_all.clone(),
            services: loaded.broken.clone(),
        }
    }

    /// Takes over the errors that a reload found. Where the error concerns every service, the errors of single services stay as they
    /// were.
    pub fn update(&mut self, loaded: &Loaded) {
        let services = std::mem::take(&mut self.services);
        *self = Self::new(loaded);
        if self.for_all.is_some() {
            self.services = services;
        }
    }

    /// That some files are broken, for STATUS=. `None`: every file is good.
    pub fn in_short(&self) -> Option<String> {
        match self.advice(|_| true).len() {
            0 => None,
            1 => Some("1 file is broken: see \"putexctl status\"".to_owned()),
            count => Some(format!("{count} files are broken: see \"putexctl status\"")),
        }
    }

    /// Whether nothing new is known of any service.
    pub fn is_of_all(&self) -> bool {
        self.for_all.is_some()
    }

    /// Whether every file is good.
    pub fn is_empty(&self) -> bool {
        self.for_all.is_none() && self.services.is_empty()
    }

    /// Whether this service's file is broken.
    pub fn has(&self, name: &ServiceName) -> bool {
        self.services.contains_key(name)
    }

    /// The sentence for a service that goes on although its file, or that of the host, is broken. `None`: neither is.
    pub fn goes_on(&self, name: &ServiceName) -> Option<String> {
        let error = self.services.get(name).or(self.for_all.as_ref())?;
        Some(mend(error, &fate(name, true)))
    }

    /// Why a service whose file was broken when this putexd was started does not contend once it has no lease.
    pub fn bars(&self, name: &ServiceName) -> Option<String> {
        let error = self.services.get(name)?;
        Some(mend(error, &fate(name, false)))
    }

    /// What to do about each file. `goes_on` says which services go on here all the same.
    pub fn advice(&self, goes_on: impl Fn(&ServiceName) -> bool) -> Vec<String> {
        let all = "no change of any file takes effect, and what goes on here does so with its former settings";
        let for_all = self.for_all.iter().map(|error| mend(error, all));
        // Where the error is that of the host, it is told once.
        let own = self
            .services
            .iter()
            .filter(|(_, error)| self.for_all.as_ref() != Some(error));
        for_all
            .chain(own.map(|(name, error)| mend(error, &fate(name, goes_on(name)))))
            .collect()
    }

    /// The same for the alarm, whose text is short. `None`: every file is good.
    pub fn in_brief(&self, goes_on: impl Fn(&ServiceName) -> bool) -> Option<String> {
        let mut all = self.advice(goes_on).into_iter();
        let first = shortened(&all.next()?, MESSAGE_LIMIT);
        let more = match all.len() {
            0 => String::new(),
            left => format!("; {left} more: \"putexd --check\" there names each"),
        };
        Some(format!("{first}{more}"))
    }

    /// The states of the services with a broken file that do not run here.
    pub fn states(&self, runs: impl Fn(&ServiceName) -> bool) -> Vec<ServiceState> {
        let absent = self.services.iter().filter(|(name, _)| !runs(name));
        let row = |(name, _): (&ServiceName, &Diagnostic)| ServiceState {
            service: name.to_string(),
            bar: Some(Bar::Broken {
                error: self.bars(name).unwrap_or_default(),
            }),
            ..ServiceState::default()
        };
        absent.map(row).collect()
    }
}

/// What to do about a broken file, and what is so until then.
fn mend(error: &Diagnostic, until_then: &str) -> String {
    format!(
        "mend {} and run \"systemctl reload putexd\": until then {until_then}; {}",
        error.location(),
        error.message
    )
}

/// What becomes of a service whose file is broken.
fn fate(name: &ServiceName, goes_on: bool) -> String {
    if goes_on {
        format!("{name} goes on with its former settings")
    } else {
        format!("{name} is not run on this host")
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::config::Severity;

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
            diagnostics: broken
                .iter()
                .copied()
                .chain(is_host_broken.then_some("putexd"))
                .map(error)
                .collect(),
            lacks_store: false,
        }
    }

    #[test]
    fn as_long_as_an_error_concerns_every_service_nothing_is_mended() {
        let mut broken = Broken::new(&loaded(&["db", "web"], false));
        broken.update(&loaded(&[], true));
        assert_eq!(broken.advice(|_| true).len(), 3);
        broken.update(&loaded(&["web"], false));
        assert_eq!(broken.advice(|_| true).len(), 1);
        broken.update(&loaded(&[], false));
        assert!(broken.is_empty());
    }

    #[test]
    fn each_cause_is_told_once_and_in_whole_sentences() {
        let (mut at_start, is_db) = (loaded(&["own"], true), |name: &ServiceName| {
            name.as_str() == "db"
        });
        let error = at_start.for_all.clone().expect("it is broken");
        for name in ["db", "web"] {
            at_start
                .broken
                .insert(ServiceName::new(name).expect("a name"), error.clone());
        }
        let told = Broken::new(&at_start).advice(is_db);
        assert_eq!(told.len(), 2, "{told:#?}");
        assert!(
            told[0].starts_with("mend /etc/putex.d/putexd.toml and "),
            "{told:#?}"
        );
        assert!(
            told[1].ends_with("until then own is not run on this host; it is wrong"),
            "{told:#?}"
        );

        let names: Vec<String> = (0..40).map(|number| format!("db-{number:02}")).collect();
        let mut many = loaded(&names.iter().map(String::as_str).collect::<Vec<_>>(), false);
        many.broken
            .values_mut()
            .for_each(|error| error.message = "no ".repeat(400));
        let brief = Broken::new(&many)
            .in_brief(|_| true)
            .expect("all are broken");
        assert!(brief.chars().count() < 600, "{brief}");
        assert!(
            brief.contains("until then db-00 goes on with its former settings; no no")
                && brief.ends_with("; 39 more: \"putexd --check\" there names each"),
            "{brief}"
        );
    }

    #[test]
    fn broken_files_are_counted() {
        let told =
            |files: &[&str], is_host_broken| Broken::new(&loaded(files, is_host_broken)).in_short();
        assert_eq!(told(&[], false), None);
        assert_eq!(
            told(&["db"], false).as_deref(),
            Some("1 file is broken: see \"putexctl status\"")
        );
        assert_eq!(
            told(&["db"], true).as_deref(),
            Some("2 files are broken: see \"putexctl status\"")
        );
    }
}
