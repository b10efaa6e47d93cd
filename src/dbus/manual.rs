//! The manual page names all that is served, with its types, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value as Json;

use super::bulletin::TransitionStatus;
use super::dictionary::to_dictionary;
use super::interfaces::{OF_MANAGER, OF_STATUS, of_manager, of_service};
use super::object::PROPERTIES;
use super::options::Options;
use super::status::{
    AlarmStatus, Begun, ClusterStatus, HostReport, HostStatus, ServiceReport, ServiceStatus, StoreStatus,
    TimingsStatus, Word,
};
use crate::cluster::history::{End, Known, Note, Run, Start, What};

fn page() -> String {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/usr/share/man/man5/org.putexd.Putexd1.5");
    std::fs::read_to_string(path).expect("the page can be read")
}

/// The items of each list of the page that has items in bold, by its heading.
fn items(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut heading = "";
    for line in page.lines() {
        if let Some(title) = line.strip_prefix(".Sh ").or_else(|| line.strip_prefix(".Ss ")) {
            heading = title;
        } else if let Some(item) = line.strip_prefix(".It \\fB") {
            let item = item.replace("\\fR", "").replace("\\(->", "->");
            assert!(all.entry(heading.to_owned()).or_default().insert(item.clone()), "{heading} has {item:?} twice");
        }
    }
    all
}

fn arguments(arguments: &[(&str, &str)]) -> String {
    let one = |(name, signature): &(&str, &str)| format!("{signature} {name}");
    arguments.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The keys of a type, and their types on the bus where `example` shows them.
fn keys<T: Serialize>(example: &T) -> Vec<(String, Option<String>)> {
    let Json::Object(object) = serde_json::to_value(example).expect("it is JSON") else { panic!("it is an object") };
    let dictionary = to_dictionary(example);
    let signature = |key: &String| dictionary.get(key).map(|value| value.value_signature().to_string());
    object.keys().map(|key| (key.clone(), signature(key))).collect()
}

#[test]
fn the_page_names_every_method_signal_and_property() {
    let mut expected: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for interface in of_manager().into_iter().chain(of_service()) {
        for method in interface.methods.iter().filter(|_| !interface.name.ends_with(".Properties")) {
            let line = format!("{}({}) -> {}", method.name, arguments(method.takes), arguments(method.gives));
            expected.entry(interface.name.to_owned()).or_default().insert(line);
        }
        for (name, signal) in interface.signals {
            expected.entry("SIGNALS".to_owned()).or_default().insert(format!("{name}({})", arguments(signal)));
        }
    }
    let property = |property: &super::object::Property| format!("{} {}", property.name, property.signature);
    expected.insert("PROPERTIES".to_owned(), PROPERTIES.iter().map(property).collect());
    let found = items(&page());
    for (heading, lines) in &expected {
        assert_eq!(found.get(heading), Some(lines), "{heading}");
    }
    // The options of each method are named with it.
    let page = page();
    for method in OF_STATUS.methods.iter().chain(OF_MANAGER.methods) {
        let Some(entry) = page.split(&format!(".It \\fB{}\\fR", method.name)).nth(1) else { panic!("{}", method.name) };
        let entry = entry.split("\n.It ").next().unwrap_or_default();
        let named = entry.lines().find(|line| line.starts_with("Options: ")).unwrap_or_default();
        let named: BTreeSet<&str> = named.split("\\fB").skip(1).filter_map(|part| part.split("\\fR").next()).collect();
        assert_eq!(named, method.options.iter().copied().collect(), "{}", method.name);
    }
}

#[test]
fn the_page_names_every_key_of_every_dictionary() {
    let word = Word { until: Some(1), ..Word::default() };
    let options = Options {
        reason: Some(String::new()),
        to: Some(String::new()),
        seconds: Some(1),
        until: Some(1),
        force: Some(true),
        limit: Some(1),
    };
    let service = ServiceStatus {
        since: Some(1),
        stopped: Some(word.clone()),
        paused: Some(word.clone()),
        timings: Some(TimingsStatus::default()),
        alarms: vec![AlarmStatus::default()],
        ..ServiceStatus::default()
    };
    // What is ordinary is left out, so nothing is.
    let report = ServiceReport {
        service: "a".to_owned(),
        key: "a".to_owned(),
        unit: "a".to_owned(),
        state: "a".to_owned(),
        hindrance: "a".to_owned(),
        since: 1,
        token: 1,
        starts: 1,
        waits: "a".to_owned(),
        goes_down: 1,
        failure: "a".to_owned(),
        remembered_ms: 1,
        remembered_until: 1,
        alarms: vec![AlarmStatus::default()],
        ..ServiceReport::default()
    };
    let host = HostStatus {
        report: HostReport { drained: Some(word.clone()), ..HostReport::default() },
        services: vec![report.clone()],
        ..HostStatus::default()
    };
    let cluster = ClusterStatus { hosts: vec![host.clone()], ..ClusterStatus::default() };
    let run = Run {
        end: Some(End { at_ms: 1, known: Known::Exactly }),
        began: "a".to_owned(),
        ended: "a".to_owned(),
        stopped: true,
        notes: vec![Note { at_ms: 1, what: What::Alarm, text: "a".to_owned() }],
        ..Run::new(1, "a", Start::At(1))
    };
    let dictionaries = [
        ("Options", keys(&options)),
        ("A service", keys(&service)),
        ("Timings", keys(&TimingsStatus::default())),
        ("A word", keys(&word)),
        ("An alarm", keys(&AlarmStatus::default())),
        ("The store", keys(&StoreStatus::default())),
        ("The cluster", keys(&cluster)),
        ("A host", keys(&host)),
        ("A service of a host", keys(&report)),
        ("A tenure", keys(&run)),
        ("A transition", keys(&TransitionStatus::default())),
        ("An answer", keys(&Begun::default())),
    ];
    let mut found = items(&page());
    for (heading, keys) in dictionaries {
        let lines = found.remove(heading).unwrap_or_else(|| panic!("the page has no list {heading:?}"));
        let named: BTreeSet<&str> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(named, keys.iter().map(|(key, _)| key.as_str()).collect(), "{heading}");
        for (key, signature) in keys {
            let Some(signature) = signature else { continue };
            assert!(lines.contains(&format!("{key} {signature}")), "{heading}: {key} has the type {signature}");
        }
    }
    let others = ["PROPERTIES", "SIGNALS"];
    found.retain(|heading, _| !others.contains(&heading.as_str()) && !heading.starts_with("org."));
    assert!(found.is_empty(), "the page has lists of what is not served: {found:?}");
}
