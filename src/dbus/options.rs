//! The options of the Manager's methods: what a client may say beside the service. A method refuses an option that it does not
//! know, by its name, because an operator who is not heard must not believe that he was.

use serde::{Deserialize, Serialize};
use zbus::fdo;

use super::dictionary::{Dictionary, from_dictionary, to_dictionary};
use crate::types::{NodeId, shortened};

/// How many characters of an operator's reason are kept: it goes into the record, which is small.
const REASON_LIMIT: usize = 256;

/// The options of all methods. A method takes some of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// Why.
    pub reason: Option<String>,
    /// The host that should take over.
    pub to: Option<String>,
    /// For how many seconds.
    pub seconds: Option<u64>,
    /// Until when, in seconds since 1970.
    pub until: Option<u64>,
    /// Also where it does harm.
    pub force: Option<bool>,
    /// How many events at most, the latest of them.
    pub limit: Option<u64>,
}

impl From<Options> for Dictionary {
    fn from(options: Options) -> Self {
        to_dictionary(&options)
    }
}

impl Options {
    /// Reads what a client has sent to a method that takes the options `known`.
    pub(super) fn read(sent: Dictionary, method: &str, known: &[&str]) -> fdo::Result<Self> {
        if let Some(unknown) = sent.keys().find(|name| !known.contains(&name.as_str())) {
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let text = format!("{method} has no option {unknown:?}; it has {known}");
            return Err(fdo::Error::InvalidArgs(text));
        }
        for (name, value) in &sent {
            let wanted = match name.as_str() {
                "force" => "b",
                "reason" | "to" => "s",
                _ => "t",
            };
            if value.value_signature() != wanted {
                let text = format!("the option {name:?} of {method} has the type {wanted}");
                return Err(fdo::Error::InvalidArgs(text));
            }
        }
        from_dictionary(sent).map_err(|error| fdo::Error::InvalidArgs(format!("the options of {method}: {error}")))
    }

    /// Why it is asked for; empty = nothing was said.
    pub(super) fn reason(&self) -> String {
        shortened(self.reason.as_deref().unwrap_or_default(), REASON_LIMIT)
    }

    /// The host that should take over.
    pub(super) fn to(&self) -> fdo::Result<Option<NodeId>> {
        self.to.as_deref().map(node).transpose()
    }

    /// For how many seconds, which have to be said.
    pub(super) fn seconds(&self, method: &str) -> fdo::Result<u64> {
        let text = || fdo::Error::InvalidArgs(format!("{method} needs the option \"seconds\", which is not 0"));
        self.seconds.filter(|seconds| *seconds > 0).ok_or_else(text)
    }
}

/// The name of a host, as a client has sent it.
pub(super) fn node(name: &str) -> fdo::Result<NodeId> {
    name.parse().map_err(|error| fdo::Error::InvalidArgs(format!("the host's name: {error}")))
}

#[cfg(test)]
mod tests {
    use zbus::{OwnedVariant, Variant};

    use super::*;

    #[test]
    fn an_option_that_a_method_does_not_know_is_refused_by_its_name() {
        let sent: Dictionary = Options { force: Some(true), ..Options::default() }.into();
        let error = Options::read(sent, "StepDown", &["reason", "to"]).expect_err("it takes no force");
        assert_eq!(
            error.to_string(),
            "org.freedesktop.DBus.Error.InvalidArgs: StepDown has no option \"force\"; it has reason, to"
        );
        let text = OwnedVariant::try_from(Variant::from("soon")).expect("a text");
        let error = Options::read(Dictionary::from([("until".to_owned(), text)]), "Stop", &["until"]);
        let error = error.expect_err("it is no time").to_string();
        assert_eq!(error, "org.freedesktop.DBus.Error.InvalidArgs: the option \"until\" of Stop has the type t");
    }

    #[test]
    fn what_is_sent_is_what_is_read() {
        let options = Options { reason: Some("r".repeat(300)), until: Some(u64::MAX), ..Options::default() };
        let read = Options::read(options.clone().into(), "Stop", &["reason", "until"]).expect("it is understood");
        assert_eq!(read, options);
        assert!(read.reason().chars().count() <= REASON_LIMIT + 1, "{}", read.reason());
        assert!(Options::default().seconds("Pause").is_err());
    }
}
