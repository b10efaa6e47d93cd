//! Clusters for the tests of the screens.

use serde_json::Value as Json;

use crate::{
    cluster::history::{End, Known, Run, Start},
    facts::{
        Activity, At, Bar, Candidate, ClusterState, Health, HostState, KnownHost, LockState,
        NotTaking, Presence, Seen, ServiceState, ServiceSummary, State, StoreState, TimingsState,
        Wait, Word,
        alarm::{Alarm, Problem},
    },
};

/// The time of all fixtures, in seconds since 1970.
pub const NOW: u64 = 1_795_000_000;

/// So many seconds ago.
pub fn ago(seconds: u64) -> At {
    At::seconds(NOW - seconds)
}

fn timings() -> TimingsState {
    TimingsState {
        renew_interval_ms: 3000,
        lease_ms: 18_000,
        wait_ms: 24_024,
        failover_ms: 30_024,
        stop_limit_ms: 90_000,
    }
}

/// An alarm that has stood since 2026-11-18T00:00:10Z.
pub fn alarm(problem: Problem) -> Alarm {
    Alarm::new(None, problem, 1_794_960_010)
}

pub fn word(reason: &str, until: Option<u64>) -> Word {
    Word {
        by: "root@h2".to_owned(),
        reason: reason.to_owned(),
        at: NOW - 300,
        until,
        removal: false,
    }
}

const HOSTS: [&str; 3] = ["h1", "h2", "h3"];

fn candidate(name: &str, host: &str, holder: &str) -> Candidate {
    let holds = host == holder;
    let state = ServiceState {
        service: name.to_owned(),
        unit: format!("{name}.service"),
        key: name.to_owned(),
        settings: "5e1f".to_owned(),
        state: Some(if holds { State::Active } else { State::Standby }),
        since: Some(ago(7500)),
        token: holds.then_some(1_794_992_500),
        ..ServiceState::default()
    };
    let here = ServiceState {
        lease_until: holds.then_some(At(NOW * 1000 + 16_500)),
        health: holds.then_some(Health::Passes),
        lock: Some(LockState {
            refused: None,
            holder: Some(holder.to_owned()),
            since: Some(ago(7500)),
            revision: 2501,
            token: Some(1_794_992_500),
            last_run: None,
        }),
        timings: Some(timings()),
        ..state.clone()
    };
    Candidate {
        host: host.to_owned(),
        state: Some(if host == HOSTS[0] { here } else { state }),
        ..Candidate::default()
    }
}

/// Three hosts as h1 sees them, with the services spread over them; all is well.
pub fn cluster(names: &[&str]) -> ClusterState {
    let service = |(place, name): (usize, &&str)| {
        let holder = HOSTS[place % 3];
        let until = if holder == HOSTS[0] { 16_500 } else { 16_800 };
        ServiceSummary {
            service: (*name).to_owned(),
            unit: format!("{name}.service"),
            activity: Activity::Running,
            holder: Some(holder.to_owned()),
            since: Some(ago(7500)),
            lease_until: Some(At(NOW * 1000 + until)),
            token: Some(1_794_992_500),
            hosts: HOSTS
                .iter()
                .map(|host| candidate(name, host, holder))
                .collect(),
            ..ServiceSummary::default()
        }
    };
    let host = |node: &&str| KnownHost {
        state: HostState {
            node: (*node).to_owned(),
            version: "0.1.0".to_owned(),
            since: ago(180_000),
            at: ago(4),
            ..HostState::default()
        },
        presence: Presence::Up,
        seen: Some(ago(4)),
        reported: Some(ago(4)),
        ..KnownHost::default()
    };
    ClusterState {
        node: HOSTS[0].to_owned(),
        at: At::seconds(NOW),
        store: StoreState {
            store: "nats at nats://10.0.0.1:4222, bucket locks".to_owned(),
            ..StoreState::default()
        },
        hosts: HOSTS.iter().map(host).collect(),
        services: names.iter().enumerate().map(service).collect(),
        missing: Vec::new(),
    }
}

/// Three hosts with three services.
pub fn small() -> ClusterState {
    cluster(&["db", "mail", "web"])
}

pub fn service<'a>(cluster: &'a mut ClusterState, name: &str) -> &'a mut ServiceSummary {
    let mut services = cluster.services.iter_mut();
    services
        .find(|service| service.service == name)
        .expect("a service of the fixture")
}

pub fn host<'a>(cluster: &'a mut ClusterState, name: &str) -> &'a mut KnownHost {
    let mut hosts = cluster.hosts.iter_mut();
    hosts
        .find(|host| host.state.node == name)
        .expect("a host of the fixture")
}

/// A host's part in a service.
pub fn part<'a>(cluster: &'a mut ClusterState, host: &str, name: &str) -> &'a mut Candidate {
    let mut parts = service(cluster, name).hosts.iter_mut();
    parts
        .find(|part| part.host == host)
        .expect("a host of the fixture")
}

/// What a host says of a service.
pub fn state<'a>(cluster: &'a mut ClusterState, host: &str, name: &str) -> &'a mut ServiceState {
    part(cluster, host, name).state.get_or_insert_default()
}

/// The lock of a service as this host sees it.
pub fn lock<'a>(cluster: &'a mut ClusterState, name: &str) -> &'a mut LockState {
    state(cluster, HOSTS[0], name).lock.get_or_insert_default()
}

/// A service whose holder is h3, which has fallen silent for so many milliseconds.
pub fn silent(cluster: &mut ClusterState, name: &str, ms: u64) {
    let db = service(cluster, name);
    (db.activity, db.holder) = (Activity::Silent, Some("h3".to_owned()));
    db.since = Some(At(NOW * 1000 - ms));
    db.lease_until = Some(At(NOW * 1000 + 18_000 - ms));
    lock(cluster, name).holder = Some("h3".to_owned());
    state(cluster, HOSTS[0], name).wait = Some(Wait::Holder {
        holder: "h3".to_owned(),
        runs: true,
        seen: Seen::Renewed(At(NOW * 1000 - ms)),
        take_at: Some(At(NOW * 1000 + 18_000 - ms)),
    });
}

/// A host that has not been heard of for so many seconds.
pub fn gone(cluster: &mut ClusterState, name: &str, seconds: u64) {
    let known = host(cluster, name);
    (known.presence, known.seen, known.reported) =
        (Presence::Silent, Some(ago(seconds)), Some(ago(seconds)));
    for service in &mut cluster.services {
        for part in service.hosts.iter_mut().filter(|part| part.host == name) {
            if service.holder.as_deref() != Some(name) {
                part.not_taking = Some(NotTaking::Silent(ago(seconds)));
            }
        }
    }
}

/// The same with something wrong everywhere: h3 is silent, h2 drained, web is stopped, and the file of mail is broken here.
pub fn troubled() -> ClusterState {
    let mut cluster = cluster(&["cache", "db", "mail", "web"]);
    silent(&mut cluster, "db", 12_100);
    gone(&mut cluster, "h3", 41);
    let drained = word("new disks", Some(NOW + 6900));
    host(&mut cluster, "h2").state.drained = Some(drained.clone());
    for name in ["cache", "db", "mail", "web"] {
        let part = part(&mut cluster, "h2", name);
        part.not_taking = Some(NotTaking::Drained(drained.clone()));
    }
    let mail = service(&mut cluster, "mail");
    (
        mail.activity,
        mail.holder,
        mail.since,
        mail.lease_until,
        mail.token,
    ) = (Activity::Broken, None, None, None, None);
    let part_here = part(&mut cluster, "h1", "mail");
    let error = "mend /etc/putex.d/mail.toml:2:1 and run \"systemctl reload putexd\": until then mail is not run on this host; the key \"unti\" is unknown here: did you mean \"unit\"?".to_owned();
    let bar = Bar::Broken {
        error: error.clone(),
    };
    part_here.not_taking = Some(NotTaking::Barred(bar.clone()));
    part_here.state = Some(ServiceState {
        service: "mail".to_owned(),
        bar: Some(bar),
        ..ServiceState::default()
    });
    let broken = Problem::ConfigurationBroken { error };
    host(&mut cluster, "h1").state.alarms = vec![alarm(broken)];
    let web = service(&mut cluster, "web");
    (web.activity, web.holder, web.lease_until, web.token) = (Activity::Stopped, None, None, None);
    web.stopped = Some(word("schema change", None));
    cluster
}

/// A tenure of a history, whose times are so many seconds after [`NOW`].
pub fn run(from_s: i64, host: &str, token: u64, end: Option<(i64, Known)>, ended: &str) -> Run {
    let at_ms = |at_s: i64| (NOW * 1000).saturating_add_signed(at_s * 1000);
    let end = end.map(|(at_s, known)| End {
        at_ms: at_ms(at_s),
        known,
    });
    Run {
        end,
        ended: ended.to_owned(),
        ..Run::new(token, host, Start::At(at_ms(from_s)))
    }
}

/// Asserts that what a command prints with `--json` is as `putexctl.schema.json` describes it, and has nothing beside.
#[track_caller]
pub fn assert_described(command: &str, printed: &impl serde::Serialize) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("packaging/usr/share/putexd/putexctl.schema.json");
    let text = std::fs::read_to_string(path).expect("the schema");
    let schema: Json = serde_json::from_str(&text).expect("the schema is JSON");
    let printed = serde_json::to_value(printed).expect("JSON");
    let mut wrong = Vec::new();
    compare(
        &schema,
        &schema["properties"][command],
        &printed,
        command,
        &mut wrong,
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The part of JSON Schema that the schema uses: `$ref`, `type`, `enum`, `anyOf`, `properties`, `required`, `items` and
/// `prefixItems`.
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
            wrong.push(format!(
                "{place}: {value} is none of what the schema permits"
            ));
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
        wrong.push(format!(
            "{place}: {value} is not of the type {}",
            schema["type"]
        ));
    }
    for (number, item) in value.as_array().into_iter().flatten().enumerate() {
        let first = &schema["prefixItems"][number];
        let described = if first.is_null() {
            &schema["items"]
        } else {
            first
        };
        compare(root, described, item, &format!("{place}[{number}]"), wrong);
    }
    let Some(object) = value.as_object() else {
        return;
    };
    if schema["additionalProperties"] == true {
        return;
    }
    for (name, inner) in object {
        match schema["properties"].get(name) {
            Some(described) => compare(root, described, inner, &format!("{place}.{name}"), wrong),
            None => wrong.push(format!("{place}: the schema does not describe {name:?}")),
        }
    }
    let required = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Json::as_str);
    wrong.extend(
        required
            .filter(|name| !object.contains_key(*name))
            .map(|name| format!("{place}: {name} is missing")),
    );
}
