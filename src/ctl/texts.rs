//! Words, times, names and colours that several screens have alike.

use jiff::{Timestamp, tz::TimeZone};

use super::output::{Failure, Style};
use crate::{
    facts::{Activity, At, Candidate, ClusterState, ServiceState, ServiceSummary, Word},
    types::first_named,
    words,
};

/// How many names are told one by one.
pub const NAMED: usize = 4;

/// How an activity is shown.
pub const fn style_of(activity: Activity) -> Style {
    match activity {
        Activity::Running => Style::Good,
        Activity::Starting
        | Activity::Stopping
        | Activity::Stopped
        | Activity::Paused
        | Activity::Held
        | Activity::Observed => Style::Notable,
        Activity::Silent
        | Activity::Lapsed
        | Activity::NoHolder
        | Activity::Broken
        | Activity::Unknown => Style::Bad,
    }
}

/// How a service stands, in a few words.
pub fn standing(service: &ServiceSummary) -> String {
    let activity = service.activity;
    match &service.holder {
        Some(holder) => format!("{activity} on {holder}"),
        None => activity.to_string(),
    }
}

/// What an operator has said to a host, while the lock's record does not have it.
pub fn unwritten(here: &ServiceState) -> Option<String> {
    let word = here.unwritten.as_ref()?;
    Some(format!(
        "{word}: it is not in the lock's record yet, trying again"
    ))
}

/// A time in seconds since 1970, in the time zone of this host, as `2026-11-22 07:49:47`.
pub fn local(seconds: u64) -> String {
    let seconds = seconds.try_into().unwrap_or(i64::MAX);
    // The screens of the tests are the same everywhere.
    let zone = if cfg!(test) {
        TimeZone::UTC
    } else {
        TimeZone::system()
    };
    let time = Timestamp::from_second(seconds).unwrap_or_default();
    time.to_zoned(zone).strftime("%F %T").to_string()
}

/// What an operator has asked for, and until when.
pub fn lasting(word: &Word, what: &str) -> String {
    let until = word.until.map(|until| format!(" until {}", local(until)));
    what.to_owned() + &until.unwrap_or_default()
}

/// The same: by whom, until when and why.
pub fn asked(word: &Word, what: &str) -> String {
    words::asked(word, &lasting(word, what))
}

/// What is said of hosts or services, each with the names of those of which the same is said, in the order in which they come.
pub fn grouped<T: PartialEq>(all: impl IntoIterator<Item = (String, T)>) -> Vec<(T, Vec<String>)> {
    let mut groups: Vec<(T, Vec<String>)> = Vec::new();
    for (name, text) in all {
        match groups.iter_mut().find(|(other, _)| *other == text) {
            Some((_, names)) if names.contains(&name) => {}
            Some((_, names)) => names.push(name),
            None => groups.push((text, vec![name])),
        }
    }
    groups
}

/// Why hosts would not take a service, or have not taken it. Those with the same reason are told of together.
pub fn reasons<'a>(hosts: impl Iterator<Item = &'a Candidate>, now: At) -> String {
    let why = |host: &'a Candidate| {
        let why = host
            .not_taking
            .as_ref()
            .map(|why| words::not_taking(why, now));
        let why = why.unwrap_or_else(|| "would take it".to_owned());
        (host.host.clone(), why)
    };
    let line = |(why, hosts): (String, Vec<String>)| match &hosts[..] {
        [host] => format!("{host} {why}"),
        _ => format!("each of {} {why}", first_named(&hosts, NAMED)),
    };
    let all: Vec<String> = grouped(hosts.map(why)).into_iter().map(line).collect();
    if all.is_empty() {
        "there is no other host".to_owned()
    } else {
        all.join(", ")
    }
}

/// Whether the service is one of those named; without names all are.
pub fn is_named(names: &[String], service: &str) -> bool {
    names.is_empty() || names.iter().any(|name| fits(name, service))
}

/// Whether `text` fits the pattern, in which `*` is any text and `?` any character. Names are ASCII.
fn fits(pattern: &str, text: &str) -> bool {
    let (mut rest, mut more) = (pattern.chars(), text.chars());
    match (rest.next(), more.next()) {
        (Some('*'), _) => (0..=text.len()).any(|from| fits(rest.as_str(), &text[from..])),
        (Some(one), Some(other)) => {
            (one == '?' || one == other) && fits(rest.as_str(), more.as_str())
        }
        (one, other) => one == other,
    }
}

/// An error for the first name that no service has.
pub fn known(names: &[String], cluster: &ClusterState) -> Result<(), Failure> {
    let services = &cluster.services;
    let is_unknown = |name: &&String| !services.iter().any(|one| fits(name, &one.service));
    match names.iter().find(is_unknown) {
        None => Ok(()),
        Some(name) => Err(unknown(name)),
    }
}

/// The error for a name that no service has.
pub fn unknown(name: &str) -> Failure {
    Failure::refused(format!(
        "no service is called {name}: \"putexctl status --all\" shows all names"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::small;
    use super::*;

    #[test]
    fn patterns_pick_services() {
        for (pattern, name, expected) in [
            ("db", "db", true),
            ("db", "dbx", false),
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abcb", false),
            ("a?c", "abc", true),
            ("*-1*", "app-210-11", true),
            ("**x", "yyx", true),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_name_that_no_service_has_is_refused() {
        let known = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            known(&names, &small())
        };
        assert!(known(&[]).is_ok() && known(&["w*", "db"]).is_ok());
        let refused = known(&["db", "dbb"]).expect_err("no such");
        assert!(refused.message.starts_with("no service is called dbb"));
    }
}
