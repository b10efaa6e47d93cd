//! How the values that hosts write for each other are encoded.
//!
//! Each value is a JSON object in the body, with its [`FORMAT`] in `format`, and no fields beside it. Whatever is too large,
//! without a valid seal, of another format, or not understood, is taken as absent: nobody depends on it.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::alarm::AlarmStatus;
use super::report::{HostReport, ServiceReport, Word};
use crate::types;
use crate::types::{NodeId, ServiceName, Value, shortened};

/// The format that this version writes, and the only one that it reads.
pub const FORMAT: u32 = 1;

/// How many hosts a cluster has at most in the eyes of the others. Further hosts run as ever, and are not shown.
pub const HOSTS_LIMIT: usize = 256;
/// How many pages with services a host has at most. Services that have no room on them are not shown elsewhere.
pub const PAGES_LIMIT: usize = 16;
/// The bytes that services take on one page. What comes around them has room below [`Value::LIMIT_BYTES`].
pub const PAGE_BYTES: usize = 24 * 1024;

/// The most characters of a text that is told to others.
const TEXT_LIMIT: usize = 240;
/// The same of an alarm, which has what to do, what is wrong, since when, and why.
const ALARM_LIMIT: usize = 600;
/// The most alarms that are told of a host, and of a service.
const ALARMS_LIMIT: usize = 8;

#[derive(Serialize, Deserialize)]
struct Formatted<T> {
    format: u32,
    #[serde(flatten)]
    content: T,
}

/// The list of the hosts that have reported.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostList {
    /// The hosts, in the order in which they came.
    pub hosts: Vec<Listed>,
}

/// A host in the list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Listed {
    /// The name of the host.
    pub node: String,
    /// When it has last put itself there, by its own clock, in seconds since 1970.
    pub at: u64,
}

/// One page of a host's services.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Page {
    /// The services, by name.
    pub services: Vec<ServiceReport>,
}

/// The value of `content`.
///
/// # Panics
///
/// Where `content` has a map whose keys are no text, which none of the types here has.
#[must_use]
pub fn encode<T: Serialize>(content: &T) -> Value {
    let body = serde_json::to_vec(&Formatted { format: FORMAT, content });
    Value { body: body.expect("it has no map with keys other than text"), ..Value::default() }
}

/// What a value says; `None` if it cannot be understood.
#[must_use]
pub fn decode<T: DeserializeOwned>(value: &Value) -> Option<T> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    if value.is_too_large() || value.is_malformed() || value.is_unsealed() {
        return None;
    }
    let format: Format = serde_json::from_slice(&value.body).ok()?;
    (format.format == FORMAT).then_some(())?;
    Some(serde_json::from_slice::<Formatted<T>>(&value.body).ok()?.content)
}

/// The [sum](types::sum) of bytes as 16 hexadecimal digits.
#[must_use]
pub fn sum(bytes: &[u8]) -> String {
    format!("{:016x}", types::sum(bytes))
}

/// The pages for `services`, and how many of the services have no room on them.
#[must_use]
pub fn pages(services: impl IntoIterator<Item = ServiceReport>) -> (Vec<Value>, usize) {
    let (mut pages, mut page, mut used, mut left_out) = (Vec::new(), Page::default(), 0, 0);
    for service in services {
        let service = bounded_service(service);
        let size = serde_json::to_vec(&service).map_or(PAGE_BYTES, |bytes| bytes.len() + 1);
        if used + size > PAGE_BYTES && !page.services.is_empty() {
            pages.push(encode(&std::mem::take(&mut page)));
            used = 0;
        }
        if pages.len() == PAGES_LIMIT {
            left_out += 1;
            continue;
        }
        used += size;
        page.services.push(service);
    }
    if !page.services.is_empty() {
        pages.push(encode(&page));
    }
    (pages, left_out)
}

/// The services on a page that another host has written: those with good names, each once.
#[must_use]
pub fn services(page: &Value) -> Vec<ServiceReport> {
    let page: Page = decode(page).unwrap_or_default();
    let good = page.services.into_iter().filter(|service| service.service.parse::<ServiceName>().is_ok());
    let mut good: Vec<ServiceReport> = good.map(bounded_service).collect();
    good.sort_by(|one, other| one.service.cmp(&other.service));
    good.dedup_by(|one, other| one.service == other.service);
    good
}

/// The hosts in a list, without what cannot be a host's name.
#[must_use]
pub fn listed(list: &Value) -> Vec<(NodeId, u64)> {
    let list: HostList = decode(list).unwrap_or_default();
    let good = list.hosts.into_iter().filter_map(|host| Some((host.node.parse().ok()?, host.at)));
    let mut good: Vec<(NodeId, u64)> = good.take(HOSTS_LIMIT).collect();
    good.sort();
    good.dedup_by(|one, other| one.0 == other.0);
    good
}

/// The report of `node` with texts that can be shown, and no more of them than a report needs. `None`: the value is no
/// report of that host.
#[must_use]
pub fn report(value: &Value, node: &NodeId) -> Option<HostReport> {
    let report: HostReport = decode(value)?;
    (report.node == node.as_str()).then(|| bounded_report(report))
}

/// The report with texts that can be shown, and no more of them than a report needs.
#[must_use]
pub fn bounded_report(mut report: HostReport) -> HostReport {
    let HostReport { version, boot, machine, guard, guard_version, watchdog, .. } = &mut report;
    [version, boot, machine, guard, guard_version, watchdog].into_iter().for_each(shorten);
    if let Some(Word { by, reason, .. }) = &mut report.drained {
        shorten(by);
        shorten(reason);
    }
    bound_alarms(&mut report.alarms);
    report.lost.truncate(HOSTS_LIMIT);
    report.lost.retain(|node| node.parse::<NodeId>().is_ok());
    report.sums.truncate(PAGES_LIMIT);
    report.sums.iter_mut().for_each(shorten);
    report.pages = u32::try_from(report.sums.len()).unwrap_or_default();
    report
}

fn bounded_service(mut service: ServiceReport) -> ServiceReport {
    let ServiceReport { service: name, key, settings, state, hindrance, waits, .. } = &mut service;
    for text in [name, key, settings, state, hindrance, waits] {
        shorten(text);
    }
    // A unit's name may be longer than other texts.
    if service.unit.chars().count() > 255 {
        service.unit.clear();
    }
    service.unit = shortened(&service.unit, 255);
    bound_alarms(&mut service.alarms);
    service
}

fn bound_alarms(alarms: &mut Vec<AlarmStatus>) {
    alarms.truncate(ALARMS_LIMIT);
    for AlarmStatus { kind, remedy, what, reason, .. } in alarms {
        [kind, what].into_iter().for_each(shorten);
        for text in [remedy, reason] {
            *text = shortened(text, ALARM_LIMIT);
        }
    }
}

fn shorten(text: &mut String) {
    *text = shortened(text, TEXT_LIMIT);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str) -> ServiceReport {
        ServiceReport { service: name.to_owned(), settings: sum(name.as_bytes()), ..ServiceReport::default() }
    }

    #[test]
    fn three_hundred_services_fit_on_a_few_pages_and_come_back() {
        let all: Vec<ServiceReport> = (0..300).map(|n| service(&format!("service-{n:03}"))).collect();
        let (pages, left_out) = pages(all.clone());
        assert_eq!(left_out, 0);
        assert!(pages.len() <= 2, "{}", pages.len());
        assert!(pages.iter().all(|page| page.size() <= PAGE_BYTES + 64), "the rest of the page is small");
        let back: Vec<ServiceReport> = pages.iter().flat_map(services).collect();
        assert_eq!(back, all);
    }

    #[test]
    fn what_has_no_room_is_counted() {
        let long = |n: usize| {
            let text = "x".repeat(9999);
            ServiceReport { hindrance: text.clone(), waits: text, ..service(&format!("s{n}")) }
        };
        let (pages, left_out) = pages((0..3000).map(long));
        assert_eq!(pages.len(), PAGES_LIMIT);
        assert_eq!(left_out + pages.iter().map(|page| services(page).len()).sum::<usize>(), 3000);
        assert!(left_out > 0 && pages.iter().all(|page| !page.is_too_large()));
    }

    #[test]
    fn hostile_values_are_ignored_or_bounded() {
        let body = |text: &str| Value { body: text.as_bytes().to_vec(), ..Value::default() };
        let node: NodeId = "h1".parse().expect("a node's name");
        for bad in ["", "[]", "{}", "{\"format\":2,\"node\":\"h1\"}", "{\"format\":1,\"node\":\"h2\"}", "\u{0}"] {
            assert_eq!(report(&body(bad), &node), None, "{bad}");
        }
        assert_eq!(report(&Value::too_large(), &node), None);
        assert_eq!(report(&encode(&HostReport::default()).marked_unsealed(), &node), None);
        let long = HostReport {
            node: "h1".to_owned(),
            guard: "\u{1b}[2J".repeat(99),
            alarms: vec![AlarmStatus { remedy: "x".repeat(700), ..AlarmStatus::sentence("y".repeat(700)) }; 10],
            lost: vec!["\u{1b}".to_owned(); 300],
            sums: vec![String::new(); 3000],
            pages: u32::MAX,
            ..HostReport::default()
        };
        let shown = report(&encode(&long), &node).expect("a report");
        assert!(!shown.guard.contains('\u{1b}') && shown.guard.chars().count() <= TEXT_LIMIT);
        assert_eq!((shown.alarms.len(), shown.pages as usize), (ALARMS_LIMIT, PAGES_LIMIT));
        let longest = |alarm: &AlarmStatus| alarm.remedy.chars().count().max(alarm.reason.chars().count());
        assert!(shown.alarms.iter().all(|alarm| longest(alarm) <= ALARM_LIMIT));
        assert!(shown.lost.is_empty(), "no host has such a name");

        let many = (0..1000).map(|n| Listed { node: format!("h{n}"), at: n }).collect();
        assert_eq!(listed(&encode(&HostList { hosts: many })).len(), HOSTS_LIMIT);
        let odd = ["h 1", "", "-x", "h2", "h2"].map(|node| Listed { node: node.to_owned(), at: 1 });
        assert_eq!(listed(&encode(&HostList { hosts: odd.to_vec() })), [("h2".parse().expect("a name"), 1)]);
        let page = Page { services: vec![service("a b"), service("db"), service("db")] };
        assert_eq!(services(&encode(&page)), [service("db")]);
    }

    #[test]
    fn unknown_fields_are_ignored_and_missing_ones_are_absent() {
        let value = Value { body: br#"{"format":1,"node":"h1","news":[1,2]}"#.to_vec(), ..Value::default() };
        let node: NodeId = "h1".parse().expect("a node's name");
        assert_eq!(report(&value, &node), Some(HostReport { node: "h1".to_owned(), ..HostReport::default() }));
    }
}
