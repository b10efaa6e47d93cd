//! Reads every sample of every release, in all formats that outlive a process or cross one, and compares what is understood. The
//! formats that only one program knows are in `src/daemon/compat.rs` and `src/guard/compat.rs`.

#[path = "support/samples.rs"]
mod samples;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use putexd::cluster::alarm::AlarmStatus;
use putexd::cluster::history::{End, History, Known, Note, Run, Start, What};
use putexd::cluster::report::{HostReport, ServiceReport, Word as HostWord};
use putexd::cluster::request::{Mailbox, Outcome as Answer, Request as Asked, Verb};
use putexd::cluster::wire;
use putexd::config;
use putexd::election::{Details, OperatorNote, Passing, Record, Registration, Standing, Word};
use putexd::guard_client::frame::{Command, Lease, ListedLease, Of, Outcome, Reply, Request, Watchdog};
use putexd::guard_client::grant;
use putexd::store::directory::layout;
use putexd::store::sealed::Sealer;
use putexd::types::bound::AtBoot;
use putexd::types::kept::{Kept, Made, Text};
use putexd::types::mount::{Claim, Device, Source, SourceName};
use putexd::types::{
    FencingToken, Holder, Incarnation, Instance, Key, LeaseTerms, MachineId, NodeId, OnStopFailure, Revision,
    ServiceName, Time, UnitName, Value, WriteId,
};
use serde_json::{Value as Json, json};

fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("a node's name")
}

fn unit(name: &str) -> UnitName {
    UnitName::new(name).expect("a unit's name")
}

fn service() -> ServiceName {
    ServiceName::new("db").expect("a service's name")
}

fn key(name: &str) -> Key {
    Key::new(name).expect("a key")
}

fn of_json<T: serde::de::DeserializeOwned + serde::Serialize>(content: &[u8]) -> Json {
    let read: T = serde_json::from_slice(content).expect("it is read");
    serde_json::to_value(read).expect("JSON")
}

/// A record with all that one can say.
fn full() -> Details {
    Details {
        machine: MachineId(1),
        instance: Instance(2),
        write: WriteId(3),
        standing: Standing::Active,
        lease: Duration::from_secs(9),
        hold: Duration::from_millis(11_900),
        passing: Some(Passing { lasting: Duration::from_millis(11_800), id: WriteId(4) }),
        token: FencingToken(1_767_225_600),
        prev: Some((Revision(41), Some(Instance(9)))),
        unfenced: ["h2", "h3"].map(node).to_vec(),
        units: ["billing.timer", "billing.service"].map(unit).to_vec(),
        holders: ["h3", "h1"].map(node).to_vec(),
        note: OperatorNote {
            next: Some(node("h2")),
            stopped: Some(Word::new("root@h1", "disk is full", 1_767_225_000, None)),
            paused: Some(Word::new("root@h2", "100 % \u{e4}", 1_767_225_001, Some(1_767_229_200))),
            reason: Some("kernel update".to_owned()),
            by: Some("root".to_owned()),
            started: Some(1_767_224_000),
            above: Some(FencingToken(1_767_229_300)),
        },
    }
}

fn record(holder: &str, details: Details) -> Value {
    Record::new(Holder::decode(holder.as_bytes()), Some(details)).encode()
}

fn records() -> Vec<(&'static str, Value)> {
    let small = Details {
        passing: None,
        prev: None,
        unfenced: Vec::new(),
        units: Vec::new(),
        holders: Vec::new(),
        note: OperatorNote::default(),
        ..full()
    };
    let in_state = |standing| Details { standing, ..small.clone() };
    vec![
        ("full", record("h1", full())),
        ("active", record("h1", in_state(Standing::Active))),
        ("confirming", record("h1", in_state(Standing::Confirming))),
        ("gave-up", record("h1", in_state(Standing::GaveUp))),
        ("proven", record("", Details { prev: full().prev, ..in_state(Standing::Proven) })),
    ]
}

fn understood(value: &Value) -> Json {
    let Record { holder, details, .. } = Record::decode(value);
    let details = details.expect("it is believed");
    let milliseconds = |span: Duration| u64::try_from(span.as_millis()).expect("a short time");
    let word = |word: Option<Word>| {
        word.map(|word| json!({"by": word.by, "reason": word.reason, "at": word.at, "until": word.until}))
    };
    json!({
        "holder": holder.as_str(),
        "machine": details.machine.to_string(),
        "instance": details.instance.to_string(),
        "write": details.write.to_string(),
        "standing": match details.standing {
            Standing::Confirming => "confirming",
            Standing::GaveUp => "gave up",
            Standing::Active => "active",
            Standing::Proven => "proven",
        },
        "lease_ms": milliseconds(details.lease),
        "hold_ms": milliseconds(details.hold),
        "lasting_ms": milliseconds(details.lasting_hold()),
        "passing": details.passing.map(|passing| passing.id.to_string()),
        "token": details.token.0,
        "prev": details.prev.map(|(revision, instance)| json!([revision.0, instance.map(|id| id.to_string())])),
        "unfenced": details.unfenced,
        "units": details.units,
        "holders": details.holders,
        "next": details.note.next,
        "stopped": word(details.note.stopped),
        "paused": word(details.note.paused),
        "reason": details.note.reason,
        "by": details.note.by,
        "above": details.note.above,
    })
}

/// As the directory keeps them. The other stores keep the same fields, each in a form of its own.
#[test]
fn records_in_a_directory() {
    let written = records().into_iter().map(|(name, value)| (name, layout::encode(&value))).collect();
    samples::check("record-directory", written, |_, content| understood(&layout::decode(content).expect("a value")));
}

fn attempt(value: Value) -> putexd::store::Attempt {
    let incarnation = Incarnation("a".to_owned());
    putexd::store::Attempt { base: Revision(41), incarnation, write: WriteId(3), value }
}

/// The headers by name, an empty line, and the payload.
#[test]
fn records_in_nats() {
    use async_nats::{HeaderMap, HeaderName, HeaderValue};
    use putexd::store::nats::record as nats;

    let write = |value: Value| {
        let headers = nats::headers(&attempt(value.clone()), "KV_locks").expect("headers");
        let line = |(name, texts): (&HeaderName, &Vec<HeaderValue>)| format!("{name}: {}\n", texts[0].as_str());
        let lines: BTreeSet<String> = headers.iter().map(line).collect();
        [lines.into_iter().collect::<String>().as_bytes(), b"\n", &value.body].concat()
    };
    let read = |_: &str, content: &[u8]| {
        let text = str::from_utf8(content).expect("text");
        let (lines, body) = text.split_once("\n\n").expect("headers and a payload");
        let mut headers = HeaderMap::new();
        for (name, text) in lines.lines().filter_map(|line| line.split_once(": ")) {
            headers.append(name, text);
        }
        let mut understood = understood(&nats::value(&headers, body.as_bytes()).expect("a value"));
        understood["base"] = nats::base(&headers).expect("a revision").0.into();
        understood
    };
    samples::check("record-nats", records().into_iter().map(|(name, value)| (name, write(value))).collect(), read);
}

#[cfg(feature = "etcd")]
#[test]
fn records_in_etcd() {
    use putexd::store::etcd::record as etcd;

    let write = |value| etcd::encode(&attempt(value)).expect("a line");
    let read = |_: &str, content: &[u8]| {
        assert!(etcd::is_by(content, WriteId(3)), "it says its attempt");
        understood(&etcd::decode(content))
    };
    samples::check("record-etcd", records().into_iter().map(|(name, value)| (name, write(value))).collect(), read);
}

/// The two columns, each in a line.
#[cfg(feature = "postgres")]
#[test]
fn records_in_postgres() {
    use putexd::store::postgres::record as postgres;

    let write = |value: Value| {
        let (body, fields) = postgres::encode(&value).expect("two columns");
        format!("{body}\n{fields}\n").into_bytes()
    };
    let read = |_: &str, content: &[u8]| {
        let (body, fields) = str::from_utf8(content).expect("text").split_once('\n').expect("two lines");
        understood(&postgres::decode(body, fields.trim_end()))
    };
    samples::check("record-postgres", records().into_iter().map(|(name, value)| (name, write(value))).collect(), read);
}

#[test]
fn sealed_records() {
    let sealer = Sealer::new(b"0123456789abcdef0123456789abcdef", None).expect("a key");
    let incarnation = Incarnation("a".to_owned());
    let write = |value| layout::encode(&sealer.seal(&key("db"), &incarnation, value));
    let written = records().into_iter().map(|(name, value)| (name, write(value))).collect();
    samples::check("record-sealed", written, |_, content| {
        let value = sealer.open(&key("db"), &incarnation, layout::decode(content).expect("a value"));
        assert!(!value.is_unsealed(), "the seal is good");
        understood(&value)
    });
}

/// Under which key a unit is run.
#[test]
fn entries_of_units() {
    let entry =
        |former: &[&str]| Registration { key: key("db"), former: former.iter().map(|name| key(name)).collect() };
    let write = |former: &[&str]| layout::encode(&entry(former).encode(&unit("db.service")));
    samples::check("entry", vec![("plain", write(&[])), ("moved", write(&["old", "site/db"]))], |_, content| {
        let value = layout::decode(content).expect("a value");
        let Registration { key, former } = Registration::decode(&value, &unit("db.service")).expect("an entry");
        json!({"key": key, "former": former})
    });
}

fn alarm() -> AlarmStatus {
    AlarmStatus {
        kind: "check-failed".to_owned(),
        remedy: "find out why the health check fails".to_owned(),
        what: "the health check has failed".to_owned(),
        reason: "exit status 1".to_owned(),
        since: 1_767_225_600,
        over: true,
    }
}

fn service_report() -> ServiceReport {
    ServiceReport {
        service: "db".to_owned(),
        key: "site/db".to_owned(),
        unit: "database.service".to_owned(),
        settings: wire::sum(b"db"),
        state: "confirming".to_owned(),
        hindrance: "the guard does not answer".to_owned(),
        failure: "exit status 203".to_owned(),
        since: 1_767_225_600,
        token: 1_767_225_600,
        starts: 1_767_225_624,
        waits: "waits for the former holder h2".to_owned(),
        goes_down: 1_767_225_660,
        remembered_ms: 86_400_000,
        remembered_until: 1_767_312_000,
        alarms: vec![alarm()],
    }
}

fn host_report() -> HostReport {
    let (by, reason) = ("root@h1".to_owned(), "new disk".to_owned());
    HostReport {
        node: "h1".to_owned(),
        version: "0.1.0".to_owned(),
        boot: "b".repeat(32),
        machine: "a".repeat(32),
        since: 1_767_225_600,
        at: 1_767_225_700,
        drained: Some(HostWord { by, reason, at: 1_767_225_650, until: Some(1_767_229_200) }),
        guard: "the guard does not answer".to_owned(),
        guard_version: "0.0.9".to_owned(),
        watchdog: "/dev/watchdog".to_owned(),
        alarms: vec![alarm(), AlarmStatus::sentence("free space in /run".to_owned())],
        lost: vec!["h3".to_owned()],
        pages: 1,
        sums: vec![wire::sum(b"page")],
    }
}

#[test]
fn what_hosts_tell_of_themselves() {
    let listed = wire::Listed { node: "h1".to_owned(), at: 1_767_225_600 };
    let (pages, _) = wire::pages([service_report()]);
    let written = vec![
        ("host", wire::encode(&host_report()).body),
        ("hosts", wire::encode(&wire::HostList { hosts: vec![listed] }).body),
        ("services", pages[0].body.clone()),
    ];
    samples::check("report", written, |name, content| {
        let value = Value { body: content.to_vec(), ..Value::default() };
        match name {
            "host" => serde_json::to_value(wire::report(&value, &node("h1")).expect("a report")),
            "hosts" => serde_json::to_value(wire::listed(&value)),
            _ => serde_json::to_value(wire::services(&value)),
        }
        .expect("JSON")
    });
}

fn verbs() -> Vec<Verb> {
    let (service, reason) = (service(), "kernel update".to_owned());
    vec![
        Verb::StepDown { service: service.clone(), reason: reason.clone(), to: Some(node("h2")) },
        Verb::StepDown { service: service.clone(), reason: String::new(), to: None },
        Verb::Stop { service: service.clone(), reason: reason.clone(), until: Some(1_767_229_200) },
        Verb::Start { service: service.clone() },
        Verb::Pause { service: service.clone(), reason: reason.clone(), seconds: 3600 },
        Verb::Resume { service: service.clone() },
        Verb::Adopt { service },
        Verb::Drain { reason, until: None, force: true },
        Verb::Undrain,
        Verb::ConfirmDead { node: node("h3") },
    ]
}

#[test]
fn requests_to_other_hosts() {
    let asked = |verb| Asked { id: "c".repeat(32), by: "root@h1".to_owned(), at: 1_767_225_600, verb };
    let open = verbs().into_iter().map(|verb| serde_json::to_value(asked(verb)).expect("JSON")).collect();
    let result = |is_done, is_ok, is_open| Answer {
        id: "d".repeat(32),
        is_done,
        is_ok,
        is_open,
        is_needless: false,
        text: "the lease of db ends at 12:00".to_owned(),
    };
    let results = vec![result(true, true, false), result(true, false, false), result(false, false, true)];
    let written = vec![("mailbox", wire::encode(&Mailbox { open, results }).body)];
    samples::check("request", written, |_, content| {
        let value = Value { body: content.to_vec(), ..Value::default() };
        let Mailbox { open, results } = wire::decode(&value).expect("a mailbox");
        let open: Vec<Asked> = open.into_iter().map(|one| serde_json::from_value(one).expect("a request")).collect();
        json!({"open": open, "results": results})
    });
}

#[test]
fn histories() {
    let run = Run {
        end: Some(End { at_ms: 1_767_225_700_123, known: Known::Exactly }),
        began: "h2 is silent".to_owned(),
        ended: "stopped by root@h1".to_owned(),
        stopped: true,
        notes: vec![Note { at_ms: 1_767_225_650_123, what: What::Alarm, text: "store-lost".to_owned() }],
        ..Run::new(1_767_225_600, "h1", Start::At(1_767_225_600_123))
    };
    let seen = Run {
        end: Some(End { at_ms: 1_767_225_800_123, known: Known::AtLeast }),
        ..Run::new(1_767_225_710, "h2", Start::Unseen)
    };
    let history = History { runs: vec![run, seen, Run::new(1_767_225_900, "h1", Start::Failed)] };
    samples::check("history", vec![("history", history.encode().body)], |_, content| {
        let value = Value { body: content.to_vec(), ..Value::default() };
        json!(History::decode(Some(&value), u64::MAX))
    });
}

fn lease() -> Lease {
    Lease {
        service: service(),
        node: node("h1"),
        terms: LeaseTerms {
            instance: Instance(2),
            write: WriteId(3),
            revision: Revision(42),
            token: FencingToken(1_767_225_600),
            deadline: Time { boot: Duration::from_millis(10_500), raw: Duration::from_secs(9) },
            stop_budget: Duration::from_millis(2700),
            kill_reserve: Duration::from_millis(900),
        },
        units: ["db.service", "db.mount"].map(unit).to_vec(),
        cgroups: vec!["/system.slice/db.service".to_owned()],
        inactive: vec![unit("db.mount")],
        begun: vec![unit("db.mount")],
        contains: vec![unit("db.slice")],
        on_stop_failure: OnStopFailure::RebootForce,
        closing: false,
    }
}

/// Each frame is a line.
#[test]
fn frames_between_putexd_and_the_guard() {
    let (service, instance) = (service(), Instance(2));
    let (write, revision, deadline) = (WriteId(4), Revision(43), Time::both(Duration::from_secs(20)));
    let source_name = SourceName { what: "UUID=7".to_owned(), is_bind: false, was: Some("/dev/sdb".to_owned()) };
    let device = Device { path: "/dev/sdb".to_owned(), number: "8:16".to_owned(), claim: Claim::Busy };
    let requests: Vec<Request> = [
        (Command::Arm { lease: lease(), shorter: false }, Of::All),
        (Command::Arm { lease: Lease { closing: true, ..lease() }, shorter: true }, Of::All),
        (Command::Extend { service: service.clone(), instance, write, revision, deadline }, Of::All),
        (Command::Close { service: service.clone(), instance }, Of::All),
        (Command::Disarm { service: service.clone(), instance }, Of::All),
        (Command::List, Of::All),
        (Command::List, Of::One(service)),
        (Command::List, Of::None),
    ]
    .into_iter()
    .zip(1..)
    .map(|((command, of), id)| Request { id, command, of, source: None })
    .chain(std::iter::once(Request { id: 9, command: Command::List, of: Of::None, source: Some(source_name) }))
    .collect();
    let watchdog = Watchdog {
        device: "/dev/watchdog".into(),
        timeout: Duration::from_secs(3),
        trouble: Some("it is busy".to_owned()),
    };
    let listed = ListedLease { lease: lease(), lapsed: true, stopped: true };
    let results = vec![
        Outcome::Done,
        Outcome::Refused { reason: "the deadline has passed".to_owned() },
        Outcome::Leases { leases: vec![listed], watchdog: None, trouble: None, version: None },
        Outcome::Leases {
            leases: Vec::new(),
            watchdog: Some(watchdog),
            trouble: Some("free space in /run".to_owned()),
            version: Some("0.1.0".to_owned()),
        },
        Outcome::Source(Source { devices: vec![device], is_file: false, is_bind: false }),
    ];
    let replies: Vec<Reply> = results.into_iter().zip(1..).map(|(result, id)| Reply { id, result }).collect();
    let written = vec![("requests", lines(&requests)), ("replies", lines(&replies))];
    samples::check("frames", written, |name, content| {
        let lines = content.split_inclusive(|byte| *byte == b'\n');
        lines.map(|line| if name == "requests" { of_json::<Request>(line) } else { of_json::<Reply>(line) }).collect()
    });
}

fn lines<T: serde::Serialize>(frames: &[T]) -> Vec<u8> {
    let lines = frames.iter().map(|frame| serde_json::to_string(frame).expect("a line") + "\n");
    lines.collect::<String>().into_bytes()
}

/// The gate of the installed program reads the grant of the running guard.
#[test]
fn grants() {
    samples::check("grant", vec![("db", grant::render(&lease()).into_bytes())], |_, content| {
        let text = str::from_utf8(content).expect("text");
        let token = lease().terms.token;
        grant::judge(text, &token.to_string(), Time::default()).expect("the gate is open before the deadline");
        grant::judge(text, &token.to_string(), lease().terms.deadline).expect_err("and closed after it");
        let environment: BTreeMap<&str, &str> =
            text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('=')).collect();
        json!(environment)
    });
}

/// What is bound at a boot in which the files cannot be read.
#[test]
fn bound_at_boot() {
    let written = AtBoot {
        format: putexd::types::format::Format::WRITTEN,
        mounts: BTreeSet::from([UnitName::new("etc-putex.d.mount").expect("a unit")]),
        services: BTreeMap::from([(
            ServiceName::new("db").expect("a name"),
            BTreeSet::from([UnitName::new("database.service").expect("a unit")]),
        )]),
    };
    samples::check("bound", vec![("bound.json", serde_json::to_vec_pretty(&written).expect("JSON"))], |_, content| {
        let AtBoot { mounts, services, .. } = serde_json::from_slice(content).expect("it is read");
        json!({"mounts": mounts, "services": services})
    });
}

/// The texts of the configuration in force, in /run.
#[test]
fn kept_texts() {
    let text = |path: &str, text: &str| Text { path: PathBuf::from(path), text: text.to_owned() };
    let boot = "b".repeat(32).parse().expect("a boot's id");
    let of_service = Made {
        file: text("/etc/putex.d/db.toml", "unit = \"db.service\"\n"),
        host: Some(text("/etc/putex/putexd.toml", "[store]\n")),
    };
    let of_host = Made { file: text("/etc/putex/putexd.toml", "[store]\n"), host: None };
    let write = |made| serde_json::to_vec(&Kept { format: putexd::types::format::Format::WRITTEN, boot, made });
    let written = vec![("db.json", write(of_service).expect("JSON")), ("+putexd.json", write(of_host).expect("JSON"))];
    samples::check("kept", written, |_, content| {
        let Kept { boot, made: Made { file, host }, .. } = serde_json::from_slice(content).expect("it is read");
        let text = |Text { path, text }| json!([path, text]);
        json!({"boot": boot, "file": text(file), "host": host.map(text)})
    });
}

/// What the manual page says that the bus serves; a test of the module holds it together with what is served.
#[test]
fn what_is_on_the_bus_stays() {
    let now = on_the_bus(include_str!("../packaging/usr/share/man/man5/org.putexd.Putexd1.5"));
    samples::read_all("dbus", &["org.putexd.Putexd1.5"], |_, page| {
        let then = on_the_bus(str::from_utf8(page).expect("text"));
        // What was there has to be there now, whatever has come beside it.
        for (heading, items) in &then {
            let lost: Vec<&String> = items.iter().filter(|item| !now[heading].contains(*item)).collect();
            assert!(lost.is_empty(), "{heading} lacks {lost:?}");
        }
        json!(then)
    });
}

/// The items of the page in bold, by their heading, and the options of each method.
fn on_the_bus(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let (mut items, mut heading) = (BTreeMap::<String, BTreeSet<String>>::new(), "");
    for line in page.lines() {
        if let Some(title) = line.strip_prefix(".Sh ").or_else(|| line.strip_prefix(".Ss ")) {
            heading = title;
        }
        let item = line.strip_prefix(".It \\fB").map(str::to_owned);
        let options = line.strip_prefix("Options: ").into_iter().flat_map(|options| options.split("\\fB").skip(1));
        let options = options.map(|option| format!("option {}", option.split("\\fR").next().unwrap_or_default()));
        items.entry(heading.to_owned()).or_default().extend(item.into_iter().chain(options));
    }
    items
}

/// What `--json` prints: each property of an earlier schema is there with its type.
#[test]
fn what_json_prints_stays() {
    let schema = include_str!("../packaging/usr/share/putexd/putexctl.schema.json");
    let now: Json = serde_json::from_str(schema).expect("JSON");
    samples::read_all("json", &["putexctl.schema.json"], |_, content| {
        let then: Json = serde_json::from_slice(content).expect("JSON");
        keeps("", &now, &then);
        json!({"properties": then["properties"].as_object().expect("an object").len()})
    });
}

fn keeps(path: &str, now: &Json, then: &Json) {
    for (name, then) in then.as_object().into_iter().flatten() {
        let (now, path) = (&now[name], format!("{path}/{name}"));
        match name.as_str() {
            "description" | "title" => {}
            "type" | "$ref" | "const" => assert_eq!(now, then, "{path}"),
            // A later version may leave nothing out that was always there, and may say more of what it says.
            "required" | "enum" => {
                let has = |wanted: &Json| now.as_array().is_some_and(|now| now.contains(wanted));
                assert!(then.as_array().into_iter().flatten().all(has), "{path}: {then} and now {now}");
            }
            _ => {
                assert!(!now.is_null(), "{path} is gone");
                keeps(&path, now, then);
            }
        }
    }
}

/// The shipped samples of the configuration. They are read without an error for as long as
/// packaging/VERSIONS.md says.
#[test]
fn configurations() {
    let names = ["address.toml", "container.toml", "database.toml"];
    samples::read_all("configuration", &names, |name, content| {
        let root = tempfile::tempdir().expect("a folder");
        let put = |path: &str, content: &[u8]| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, content).expect("a file");
        };
        put("etc/putex/putexd.toml", b"[store]\ntype = \"directory\"\npath = \"/srv/putex\"\n");
        put(&format!("etc/putex.d/{name}"), content);
        let loaded = config::load_as(root.path(), "h1");
        assert!(!loaded.has_errors(), "{name}: {loaded}");
        let settings = loaded.settings.expect("settings");
        let service = |service: &config::ServiceSettings| {
            json!({
                "name": service.name,
                "key": service.key,
                "units": service.units().collect::<Vec<_>>(),
                "timings": service.timings,
            })
        };
        json!({
            "store": settings.store.address(),
            "services": settings.services.iter().map(service).collect::<Vec<_>>(),
        })
    });
}

/// The configuration that the packages install. Every administrator has changed it, so dpkg asks each of them at an upgrade whose
/// package has another text, and an upgrade without a terminal stops half-way. So the text stays as the first release has it: what
/// there is to tell of new keys is in the sample and in the manual.
#[test]
fn the_configuration_that_is_installed_stays_as_it_was() {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/etc/putex/putexd.toml");
    let installed = fs::read(installed).expect("it is shipped");
    samples::read_all("installed", &["putexd.toml"], |name, content| {
        let same = String::from_utf8_lossy(content) == String::from_utf8_lossy(&installed);
        assert!(same, "put back the text of {name} that was released: dpkg asks every administrator about another one");
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join("etc/putex/putexd.toml");
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, content).expect("a file");
        json!({ "lacks_store": config::lacks_store(root.path()) })
    });
}
