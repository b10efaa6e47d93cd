//! Which files of the configuration are broken, and what becomes of their services, in words for the operator.

use crate::{
    config::{BrokenFiles, Diagnostic, Loaded},
    facts::{Bar, ServiceState},
    types::{ServiceName, first_named, shortened},
};

/// The most characters of what is wrong with a file, where other hosts are told.
const MESSAGE_LIMIT: usize = 300;

/// How many other files are named there.
const NAMED: usize = 4;

/// The errors that were found when the configuration was last read.
#[derive(Default)]
pub struct Broken {
    /// The error of `putexd.toml` or of a directory, which concerns every service.
    for_all: Option<Diagnostic>,
    services: BrokenFiles,
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
        self.for_all.clone_from(&loaded.for_all);
        if self.for_all.is_none() {
            self.services.clone_from(&loaded.broken);
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

    /// What to do about the file of a service, or that of the host, that is broken, and what becomes of the service. `None`: neither is.
    pub fn of(&self, name: &ServiceName, goes_on: bool) -> Option<String> {
        let error = self.services.get(name).or(self.for_all.as_ref())?;
        Some(mend(error, name.as_str(), goes_on))
    }

    /// What to do about the first of the broken files, and the names of the others. `None`: every file is good. `goes_on` says which
    /// services go on here all the same.
    pub fn in_brief(&self, goes_on: impl Fn(&ServiceName) -> bool) -> Option<String> {
        let for_all = self
            .for_all
            .iter()
            .map(|error| (error, mend(error, "what runs here", true)));
        // Where the error is that of the host, it is told once.
        let own = self
            .services
            .iter()
            .filter(|(_, error)| self.for_all.as_ref() != Some(error))
            .map(|(name, error)| (error, mend(error, name.as_str(), goes_on(name))));
        let mut all = for_all.chain(own);
        let first = shortened(&all.next()?.1, MESSAGE_LIMIT);
        let more: Vec<String> = all
            .map(|(error, _)| error.path.display().to_string())
            .collect();
        Some(match more.len() {
            0 => first,
            _ => format!("{first}; also {}", first_named(&more, NAMED)),
        })
    }

    /// The states of the services with a broken file that do not run here.
    pub fn states(&self, runs: impl Fn(&ServiceName) -> bool) -> Vec<ServiceState> {
        let absent = self.services.iter().filter(|(name, _)| !runs(name));
        let row = |(name, _): (&ServiceName, &Diagnostic)| ServiceState {
            service: name.to_string(),
            bar: Some(Bar::Broken {
                error: self.of(name, false).unwrap_or_default(),
            }),
            ..ServiceState::default()
        };
        absent.map(row).collect()
    }
}

/// What to do about a broken file, and what is so until then.
fn mend(error: &Diagnostic, what: &str, goes_on: bool) -> String {
    let fate = if goes_on {
        "goes on with its former settings"
    } else {
        "is not run on this host"
    };
    format!(
        "mend {} and run \"systemctl reload putexd\": until then {what} {fate}; {}",
        error.location(),
        error.message
    )
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
        let more = |broken: &Broken| {
            let brief = broken.in_brief(|_| true).expect("some are broken");
            let (_, more) = brief.split_once("it is wrong")?;
            (!more.is_empty()).then(|| more.to_owned())
        };
        let mut broken = Broken::new(&loaded(&["db", "web"], false));
        broken.update(&loaded(&[], true));
        let two = "; also /etc/putex.d/db.toml, /etc/putex.d/web.toml";
        assert_eq!(more(&broken).as_deref(), Some(two));
        broken.update(&loaded(&["web"], false));
        assert_eq!(more(&broken), None);
        broken.update(&loaded(&[], false));
        assert!(broken.is_empty() && broken.in_brief(|_| true).is_none());
    }

    #[test]
    fn each_cause_is_reported_once_and_in_whole_sentences() {
        let mut at_start = loaded(&["own"], true);
        let error = at_start.for_all.clone().expect("it is broken");
        for name in ["db", "web"] {
            let name = ServiceName::new(name).expect("a name");
            at_start.broken.insert(name, error.clone());
        }
        let broken = Broken::new(&at_start);
        let text = broken.in_brief(|_| true).expect("all are broken");
        assert!(
            text.starts_with("mend /etc/putex.d/putexd.toml and ")
                && text.contains(
                    "what runs here goes on with its former settings; it is wrong; also /etc/putex.d/own.toml"
                ),
            "{text}"
        );
        let own = ServiceName::new("own").expect("a name");
        let text = broken.of(&own, false).expect("it is broken");
        assert!(
            text.ends_with("until then own is not run on this host; it is wrong"),
            "{text}"
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
                && brief.ends_with("; also /etc/putex.d/db-01.toml, /etc/putex.d/db-02.toml, /etc/putex.d/db-03.toml, /etc/putex.d/db-04.toml and 35 more"),
            "{brief}"
        );
    }
}
