//! How the values that hosts write for each other are encoded.
//!
//! Each value is a JSON object in the body, with its [`Format`] in `format`, and no fields beside it. Whatever is too large,
//! without a valid seal, of another format, or not understood, is taken as absent: nobody depends on it. Whoever may write to the
//! store may have written it, so that each text in it is made short, and such that it may be shown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value as Json;

use crate::{
    facts::{HostState, ServiceState, from_others, json},
    types::{NodeId, ServiceName, Value, format::Format, shortened},
};

/// How many hosts a cluster has at most in the eyes of the others. Further hosts run as ever, and are not shown.
pub const HOSTS_LIMIT: usize = 256;
/// How many pages a host's report has at most. Services that have no room on them are not shown elsewhere.
pub const PAGES_LIMIT: usize = 24;
/// The bytes that services take on one page. What the host says of itself has room beside them, below [`Value::LIMIT_BYTES`].
pub const PAGE_BYTES: usize = 16 * 1024;

/// The most characters of a text that is told to others.
const TEXT_LIMIT: usize = 600;
/// The most alarms that are told of a host, and of a service.
const ALARMS_LIMIT: usize = 8;

#[derive(Serialize, Deserialize)]
struct Formatted<T> {
    format: Format,
    #[serde(flatten)]
    content: T,
}

/// The list of the hosts that have reported.
#[derive(PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostList {
    /// When each host has last put itself there, by its own clock, in seconds since 1970.
    pub hosts: BTreeMap<String, u64>,
}

/// What a host says of itself and of its services. The store has it under [`Key::of_host`](crate::types::Key::of_host), page 0. What
/// has no room there is on further pages of the same form.
#[derive(Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// The host; on a further page its name alone.
    #[serde(flatten)]
    pub host: HostState,
    /// How many further pages there are.
    pub more: u32,
    /// The services, by name.
    pub services: Vec<Json>,
}

/// The value of `content`.
pub fn encode<T: Serialize>(content: &T) -> Value {
    let formatted = Formatted {
        format: Format,
        content,
    };
    Value {
        body: json(&formatted, short).into_bytes(),
        ..Value::default()
    }
}

/// What a value says; `None` if it cannot be understood.
pub fn decode<T: DeserializeOwned>(value: &Value) -> Option<T> {
    let formatted: Formatted<T> = from_others(value, short)?;
    Some(formatted.content)
}

/// What is said of `services`, divided into pages, as far as there is room.
pub fn pages<'a>(services: impl IntoIterator<Item = &'a ServiceState>) -> Vec<Vec<Json>> {
    let (mut pages, mut page, mut used) = (Vec::new(), Vec::new(), 0);
    for service in services {
        let size = json(service, short).len() + 1;
        if used + size > PAGE_BYTES {
            pages.push(std::mem::take(&mut page));
            used = 0;
        }
        used += size;
        page.extend(serde_json::to_value(service));
    }
    pages.push(page);
    pages.truncate(PAGES_LIMIT);
    pages
}

/// The services on the pages that another host has written: those with good names.
pub fn services(pages: impl IntoIterator<Item = Json>) -> BTreeMap<String, ServiceState> {
    pages
        .into_iter()
        .filter_map(|service| serde_json::from_value::<ServiceState>(service).ok())
        .filter(|service| service.service.parse::<ServiceName>().is_ok())
        .map(|service| {
            let mut service = service.for_others();
            service.alarms.truncate(ALARMS_LIMIT);
            (service.service.clone(), service)
        })
        .collect()
}

/// The hosts in a list, without what cannot be a host's name.
pub fn listed(list: &Value) -> BTreeMap<NodeId, u64> {
    let list: HostList = decode(list).unwrap_or_default();
    list.hosts
        .into_iter()
        .filter_map(|(node, at)| Some((node.parse().ok()?, at)))
        .take(HOSTS_LIMIT)
        .collect()
}

/// A page of the report of `node`. `None`: the value is no report of that host.
pub fn report(value: &Value, node: &NodeId) -> Option<Report> {
    let mut report: Report = decode(value)?;
    report.host.alarms.truncate(ALARMS_LIMIT);
    (report.host.node == node.as_str()).then_some(report)
}

fn short(text: &str) -> String {
    shortened(text, TEXT_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Bar;
    use crate::facts::alarm::{Alarm, Problem};

    fn service(name: &str) -> ServiceState {
        ServiceState {
            service: name.to_owned(),
            settings: "0123456789abcdef".to_owned(),
            ..ServiceState::default()
        }
    }

    #[test]
    fn three_hundred_services_fit_on_a_few_pages_and_come_back() {
        let all: Vec<ServiceState> = (0..300)
            .map(|n| service(&format!("service-{n:03}")))
            .collect();
        let pages = pages(&all);
        assert!(pages.len() <= 3, "{}", pages.len());
        let back = services(pages.into_iter().flatten());
        assert_eq!(back.into_values().collect::<Vec<_>>(), all);
    }

    #[test]
    fn what_has_no_room_is_left_out() {
        let long = |n: usize| {
            let text = "x".repeat(9999);
            ServiceState {
                bar: Some(Bar::EntryUnknown {
                    error: text.clone(),
                }),
                unproven: Some(text),
                ..service(&format!("s{n}"))
            }
        };
        let all: Vec<ServiceState> = (0..3000).map(long).collect();
        let pages = pages(&all);
        assert_eq!(pages.len(), PAGES_LIMIT);
        assert!(pages.iter().map(Vec::len).sum::<usize>() < 3000);
        let values = pages.into_iter().map(|services| {
            encode(&Report {
                services,
                ..Report::default()
            })
        });
        assert!(
            values
                .into_iter()
                .all(|page| page.size() <= PAGE_BYTES + 1024)
        );
    }

    #[test]
    fn hostile_values_are_ignored_or_bounded() {
        let body = |text: &str| Value {
            body: text.as_bytes().to_vec(),
            ..Value::default()
        };
        let node: NodeId = "h1".parse().expect("a node's name");
        for bad in [
            "",
            "[]",
            "{}",
            "{\"format\":2,\"node\":\"h1\"}",
            "{\"format\":1,\"node\":\"h2\"}",
            "\u{0}",
        ] {
            assert_eq!(report(&body(bad), &node), None, "{bad}");
        }
        assert_eq!(report(&Value::too_large(), &node), None);
        assert_eq!(
            report(&encode(&Report::default()).marked_unsealed(), &node),
            None
        );
        let long = Report {
            host: HostState {
                node: "h1".to_owned(),
                version: "\u{1b}[2J".repeat(99),
                alarms: vec![
                    Alarm::new(
                        None,
                        Problem::NotKept {
                            error: "y".repeat(700)
                        },
                        7
                    );
                    10
                ],
                ..HostState::default()
            },
            ..Report::default()
        };
        let shown = report(&encode(&long), &node).expect("a report").host;
        assert!(!shown.version.contains('\u{1b}') && shown.version.chars().count() <= TEXT_LIMIT);
        assert_eq!(shown.alarms.len(), ALARMS_LIMIT);

        let many = (0..1000).map(|n| (format!("h{n}"), n)).collect();
        assert_eq!(
            listed(&encode(&HostList { hosts: many })).len(),
            HOSTS_LIMIT
        );
        let odd = ["h 1", "", "-x", "h2"].map(|node| (node.to_owned(), 1));
        assert_eq!(
            listed(&encode(&HostList { hosts: odd.into() })),
            [("h2".parse().expect("a name"), 1)].into()
        );
        let said = |service: ServiceState| serde_json::to_value(service).expect("JSON");
        let page = [
            said(service("a b")),
            said(service("db")),
            said(service("db")),
            serde_json::json!({ "service": "web", "state": "a later version's" }),
        ];
        assert_eq!(services(page), [("db".to_owned(), service("db"))].into());
    }

    #[test]
    fn unknown_fields_are_ignored_and_missing_ones_are_absent() {
        let value = Value {
            body: br#"{"format":1,"node":"h1","news":[1,2]}"#.to_vec(),
            ..Value::default()
        };
        let node: NodeId = "h1".parse().expect("a node's name");
        assert_eq!(
            report(&value, &node),
            Some(Report {
                host: HostState {
                    node: "h1".to_owned(),
                    ..HostState::default()
                },
                ..Report::default()
            })
        );
    }
}
