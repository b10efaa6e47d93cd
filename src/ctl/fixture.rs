//! Clusters for the tests of the screens.

use serde_json::Value as Json;

use super::view::View;
use crate::cluster::history::{End, Known, Run, Start};
use crate::dbus::{
    AlarmStatus, ClusterStatus, HostReport, HostStatus, ServiceReport, ServiceStatus, StoreStatus, TimingsStatus, Word,
};
use crate::journal::Alarm;

/// The time of all fixtures, in seconds since 1970.
pub(super) const NOW: u64 = 1_795_000_000;

/// What a host tells on the bus, before it is put together.
#[derive(Debug, Clone)]
pub(super) struct Told {
    pub(super) services: Vec<ServiceStatus>,
    pub(super) store: StoreStatus,
    pub(super) cluster: ClusterStatus,
}

impl Told {
    pub(super) fn view(&self) -> View {
        View::new(&self.services, self.store.clone(), self.cluster.clone(), NOW)
    }

    pub(super) fn service(&mut self, name: &str) -> &mut ServiceStatus {
        self.services.iter_mut().find(|status| status.service == name).expect("a service of the fixture")
    }

    pub(super) fn host(&mut self, name: &str) -> &mut HostStatus {
        self.cluster.hosts.iter_mut().find(|host| host.report.node == name).expect("a host of the fixture")
    }

    /// What a host reports of a service.
    pub(super) fn report(&mut self, host: &str, service: &str) -> &mut ServiceReport {
        let host = self.host(host);
        host.services.iter_mut().find(|report| report.service == service).expect("a service of the fixture")
    }
}

pub(super) fn timings() -> TimingsStatus {
    TimingsStatus {
        renew_interval_ms: 3000,
        failures: 6,
        confirmations: 2,
        lease_ms: 18_000,
        margin_ms: 300,
        stop_budget_ms: 6000,
        hold_ms: 23_700,
        wait_ms: 24_024,
        failover_ms: 30_024,
        stop_limit_ms: 90_000,
    }
}

/// An alarm that has stood since 2026-11-18T00:00:10Z.
pub(super) fn alarm(kind: Alarm, remedy: &str, reason: &str) -> AlarmStatus {
    AlarmStatus {
        kind: kind.kind(),
        remedy: remedy.to_owned(),
        what: kind.name().to_owned(),
        reason: reason.to_owned(),
        since: 1_794_960_010,
        over: false,
    }
}

pub(super) fn word(reason: &str, until: Option<u64>) -> Word {
    Word { by: "root@h2".to_owned(), reason: reason.to_owned(), at: NOW - 300, until }
}

/// Three hosts as h1 sees them, with the services spread over them; all is well.
pub(super) fn cluster(names: &[&str]) -> Told {
    let hosts = ["h1", "h2", "h3"];
    let holder = |place: usize| hosts[place % 3];
    let status = |(place, name): (usize, &&str)| {
        let is_own = holder(place) == "h1";
        ServiceStatus {
            service: (*name).to_owned(),
            unit: format!("{name}.service"),
            key: (*name).to_owned(),
            state: if is_own { "active" } else { "standby" }.to_owned(),
            since: Some(NOW - 7500),
            holder: holder(place).to_owned(),
            held_since: Some(NOW - 7500),
            silent_ms: (!is_own).then_some(1200),
            takeable_ms: (!is_own).then_some(16_800),
            lease_left_ms: is_own.then_some(16_500),
            revision: 2501,
            token: 1_794_992_500,
            health: if is_own { "passes" } else { "" }.to_owned(),
            waits: if is_own { String::new() } else { format!("{} holds the lock", holder(place)) },
            timings: Some(timings()),
            settings: "5e1f".to_owned(),
            ..ServiceStatus::default()
        }
    };
    let host = |node: &&str| {
        let report = |(place, name): (usize, &&str)| ServiceReport {
            service: (*name).to_owned(),
            settings: "5e1f".to_owned(),
            state: if holder(place) == *node { "active" } else { "" }.to_owned(),
            since: NOW - 7500,
            token: if holder(place) == *node { 1_794_992_500 } else { 0 },
            ..ServiceReport::default()
        };
        let own = HostReport {
            node: (*node).to_owned(),
            version: "0.1.0".to_owned(),
            boot: "6f1c0c57".to_owned(),
            since: NOW - 180_000,
            at: NOW - 4,
            ..HostReport::default()
        };
        HostStatus {
            report: own,
            silent_ms: Some(4000),
            reported_ms: Some(4000),
            services: names.iter().enumerate().map(report).collect(),
            ..HostStatus::default()
        }
    };
    Told {
        services: names.iter().enumerate().map(status).collect(),
        store: StoreStatus { store: "nats at nats://10.0.0.1:4222, bucket locks".to_owned(), ..StoreStatus::default() },
        cluster: ClusterStatus {
            node: "h1".to_owned(),
            hosts: hosts.iter().map(host).collect(),
            ..ClusterStatus::default()
        },
    }
}

/// Three hosts with three services.
pub(super) fn small() -> Told {
    cluster(&["db", "mail", "web"])
}

/// The same with something wrong everywhere: h3 is silent, h2 drained, web is stopped, and the file of mail is broken here.
pub(super) fn troubled() -> Told {
    let mut told = cluster(&["cache", "db", "mail", "web"]);
    told.host("h3").silent_ms = Some(41_200);
    told.host("h2").report.drained = Some(word("new disks", Some(NOW + 6900)));
    let db = told.service("db");
    (db.holder, db.silent_ms, db.takeable_ms) = ("h3".to_owned(), Some(12_100), Some(5900));
    db.waits = "h3 last renewed 12.1s ago; may be taken in 5.9s".to_owned();
    told.report("h2", "db").state = String::new();
    told.report("h3", "db").state = "active".to_owned();
    let mail = told.service("mail");
    *mail = ServiceStatus {
        service: "mail".to_owned(),
        state: "broken".to_owned(),
        hindrance: "/etc/putex.d/mail.toml:2:1: unknown key \"unti\", did you mean \"unit\"?".to_owned(),
        ..ServiceStatus::default()
    };
    told.report("h1", "mail").state = "broken".to_owned();
    let web = told.service("web");
    (web.state, web.holder, web.lease_left_ms) = ("standby".to_owned(), String::new(), None);
    web.stopped = Some(word("schema change", None));
    web.hindrance = "an operator keeps it stopped".to_owned();
    told.report("h1", "web").state = String::new();
    told
}

/// A tenure of a history, whose times are so many seconds after [`NOW`].
pub(super) fn run(from_s: i64, host: &str, token: u64, end: Option<(i64, Known)>, ended: &str) -> Run {
    let at_ms = |at_s: i64| (NOW * 1000).saturating_add_signed(at_s * 1000);
    let end = end.map(|(at_s, known)| End { at_ms: at_ms(at_s), known });
    let began = "the lock was free".to_owned();
    Run { end, began, ended: ended.to_owned(), ..Run::new(token, host, Start::At(at_ms(from_s))) }
}

/// Asserts that what a command prints with `--json` is as `putexctl.schema.json` describes it, and has nothing beside.
#[track_caller]
pub(super) fn assert_described(command: &str, printed: &impl serde::Serialize) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/usr/share/putexd/putexctl.schema.json");
    let text = std::fs::read_to_string(path).expect("the schema");
    let schema: Json = serde_json::from_str(&text).expect("the schema is JSON");
    let printed = serde_json::to_value(printed).expect("it becomes JSON");
    let mut wrong = Vec::new();
    compare(&schema, &schema["properties"][command], &printed, command, &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The part of JSON Schema that the schema uses: `$ref`, `type`, `enum`, `anyOf`, `properties`, `required` and `items`.
fn compare(root: &Json, schema: &Json, value: &Json, place: &str, wrong: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let target = root.pointer(name.trim_start_matches('#'));
        return match target {
            Some(target) => compare(root, target, value, place, wrong),
            None => wrong.push(format!("{place}: the schema has no {name}")),
        };
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let fits = |one: &Json| {
            let mut inner = Vec::new();
            compare(root, one, value, place, &mut inner);
            inner.is_empty()
        };
        if !any.iter().any(fits) {
            wrong.push(format!("{place}: {value} is none of what the schema permits"));
        }
        return;
    }
    if let Some(values) = schema["enum"].as_array() {
        if !values.contains(value) {
            wrong.push(format!("{place}: {value} is none of {values:?}"));
        }
        return;
    }
    let is = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    };
    let fits = match &schema["type"] {
        Json::String(name) => is(name),
        Json::Array(names) => names.iter().filter_map(Json::as_str).any(is),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Object(_) => false,
    };
    if !fits {
        wrong.push(format!("{place}: {value} is not of the type {}", schema["type"]));
    }
    for (number, item) in value.as_array().into_iter().flatten().enumerate() {
        compare(root, &schema["items"], item, &format!("{place}[{number}]"), wrong);
    }
    let Some(object) = value.as_object() else { return };
    for (name, inner) in object {
        match schema["properties"].get(name) {
            Some(described) => compare(root, described, inner, &format!("{place}.{name}"), wrong),
            None => wrong.push(format!("{place}: the schema does not describe {name:?}")),
        }
    }
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str);
    wrong.extend(required.filter(|name| !object.contains_key(*name)).map(|name| format!("{place}: {name} is missing")));
}
