//! Reads every sample of every release, in all formats that outlive a process or cross one, and compares what is understood. The
//! formats that only one program knows are in `src/daemon/tests.rs` and `src/guard/tests.rs`.

#[path = "support/samples.rs"]
mod samples;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::Duration,
};

use putexd::{
    cluster::{
        history::{End, History, Known, Run, Start},
        wire,
    },
    config::{self, HealthSettings, Kept, Probe, ServiceSettings, Settings, SourceFile},
    election::{
        Asked, Details, OperatorNote, Order, Passing, Record, Refused, Registration, Standing,
    },
    facts::{
        At, Bar, FailedRun, HostState, Retirement, Seen, ServiceState, State, Wait, Word,
        alarm::{Alarm, Problem},
    },
    guard_client::{
        frame::{Command, GuardState, Lease, ListedLease, Of, Outcome, Reply, Request, Watchdog},
        grant,
    },
    store::{
        StoreSettings,
        directory::{DirectorySettings, layout},
        sealed::Sealer,
    },
    types::{
        Extension, FencingToken, Holder, Incarnation, Instance, Key, LeaseTerms, MachineId, NodeId,
        OnStopFailure, Revision, ServiceName, Time, UnitName, Value, WriteId,
        bound::AtBoot,
        mount::{Mount, MountUnit},
    },
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
        passing: Some(Passing {
            lasting: Duration::from_millis(11_800),
            id: WriteId(4),
        }),
        token: FencingToken(1_767_225_600),
        prev: Some((Revision(41), Some(Instance(9)))),
        unfenced: ["h2", "h3"].map(node).to_vec(),
        units: ["billing.timer", "billing.service"].map(unit).to_vec(),
        holders: ["h3", "h1"].map(node).to_vec(),
        note: OperatorNote {
            next: Some(node("h2")),
            stopped: Some(Word::new("root@h1", "disk is full", 1_767_225_000, None)),
            paused: Some(Word::new(
                "root@h2",
                "100 % \u{e4}",
                1_767_225_001,
                Some(1_767_229_200),
            )),
            reason: Some("kernel update".to_owned()),
            by: Some("root".to_owned()),
            order: Some(Order {
                what: Asked::StepDown(Some(node("h2"))),
                word: Word::new("root@h3", "kernel update", 1_767_225_002, None),
            }),
            refused: Some(Refused {
                at: 1_767_225_001,
                reason: "a mount is busy".to_owned(),
            }),
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
    let in_state = |standing| Details {
        standing,
        ..small.clone()
    };
    vec![
        ("full", record("h1", full())),
        ("active", record("h1", in_state(Standing::Active))),
        ("confirming", record("h1", in_state(Standing::Confirming))),
        ("gave-up", record("h1", in_state(Standing::GaveUp))),
        (
            "proven",
            record(
                "",
                Details {
                    prev: full().prev,
                    ..in_state(Standing::Proven)
                },
            ),
        ),
    ]
}

fn understood(value: &Value) -> Json {
    let Record {
        holder, details, ..
    } = Record::decode(value);
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
    let written = records()
        .into_iter()
        .map(|(name, value)| (name, layout::encode(&value)))
        .collect();
    samples::check("record-directory", written, |_, content| {
        understood(&layout::decode(content).expect("a value"))
    });
}

fn attempt(value: Value) -> putexd::store::Attempt {
    let incarnation = Incarnation("a".to_owned());
    putexd::store::Attempt {
        base: Revision(41),
        incarnation,
        write: WriteId(3),
        value,
    }
}

/// The headers by name, an empty line, and the payload.
#[test]
fn records_in_nats() {
    use async_nats::{HeaderMap, HeaderName, HeaderValue};
    use putexd::store::nats::record as nats;

    let write = |value: Value| {
        let headers = nats::headers(&attempt(value.clone()), "KV_locks");
        let line = |(name, texts): (&HeaderName, &Vec<HeaderValue>)| {
            format!("{name}: {}\n", texts[0].as_str())
        };
        let lines: BTreeSet<String> = headers.iter().map(line).collect();
        [
            lines.into_iter().collect::<String>().as_bytes(),
            b"\n",
            &value.body,
        ]
        .concat()
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
    samples::check(
        "record-nats",
        records()
            .into_iter()
            .map(|(name, value)| (name, write(value)))
            .collect(),
        read,
    );
}

#[cfg(feature = "etcd")]
#[test]
fn records_in_etcd() {
    use putexd::store::etcd::record as etcd;

    let write = |value| etcd::encode(&attempt(value));
    let read = |_: &str, content: &[u8]| {
        assert!(etcd::is_by(content, WriteId(3)), "it says its attempt");
        understood(&etcd::decode(content))
    };
    samples::check(
        "record-etcd",
        records()
            .into_iter()
            .map(|(name, value)| (name, write(value)))
            .collect(),
        read,
    );
}

/// The two columns, each in a line.
#[cfg(feature = "postgres")]
#[test]
fn records_in_postgres() {
    use putexd::store::postgres::record as postgres;

    let write = |value: Value| {
        let (body, fields) = postgres::encode(&value);
        format!("{body}\n{fields}\n").into_bytes()
    };
    let read = |_: &str, content: &[u8]| {
        let (body, fields) = str::from_utf8(content)
            .expect("text")
            .split_once('\n')
            .expect("two lines");
        understood(&postgres::decode(body, fields.trim_end()))
    };
    samples::check(
        "record-postgres",
        records()
            .into_iter()
            .map(|(name, value)| (name, write(value)))
            .collect(),
        read,
    );
}

#[test]
fn sealed_records() {
    let sealer = Sealer::new(b"0123456789abcdef0123456789abcdef", None).expect("a key");
    let incarnation = Incarnation("a".to_owned());
    let write = |value| layout::encode(&sealer.seal(&key("db"), &incarnation, value));
    let written = records()
        .into_iter()
        .map(|(name, value)| (name, write(value)))
        .collect();
    samples::check("record-sealed", written, |_, content| {
        let value = sealer.open(
            &key("db"),
            &incarnation,
            layout::decode(content).expect("a value"),
        );
        assert!(!value.is_unsealed(), "the seal is good");
        understood(&value)
    });
}

/// Under which key a unit is run.
#[test]
fn entries_of_units() {
    let entry = |former: &[&str]| Registration {
        key: key("db"),
        former: former.iter().map(|name| key(name)).collect(),
    };
    let write = |former: &[&str]| layout::encode(&entry(former).encode(&unit("db.service")));
    samples::check(
        "entry",
        vec![("plain", write(&[])), ("moved", write(&["old", "site/db"]))],
        |_, content| {
            let value = layout::decode(content).expect("a value");
            let Registration { key, former } =
                Registration::decode(&value, &unit("db.service")).expect("an entry");
            json!({"key": key, "former": former})
        },
    );
}

fn alarms() -> Vec<Alarm> {
    let db = "db".parse().ok();
    let failed = Problem::CheckFailed {
        error: "exit code 1".into(),
        unit: None,
    };
    let jumped = Problem::ClockJump { by_ms: 3000 };
    let room = Problem::GuardUnfit {
        error: "free space in /run".into(),
    };
    [(db, failed), (None, jumped), (None, room)]
        .map(|(about, problem)| Alarm::new(about, problem, 1_767_225_600))
        .into()
}

fn service_state() -> ServiceState {
    ServiceState {
        service: "db".to_owned(),
        key: "site/db".to_owned(),
        unit: "database.service".to_owned(),
        settings: "0123456789abcdef".to_owned(),
        state: Some(State::Confirming),
        since: Some(At::seconds(1_767_225_600)),
        token: Some(1_767_225_600),
        wait: Some(Wait::Entitlement {
            until: At::seconds(1_767_225_624),
            former: Some(("h2".to_owned(), Seen::Renewed(At::seconds(1_767_225_590)))),
        }),
        unproven: Some("process 7 is alive".to_owned()),
        goes_down: Some(At::seconds(1_767_225_660)),
        failure: Some(FailedRun {
            at: At::seconds(1_767_225_500),
            error: "exit status 203".to_owned(),
        }),
        alarms: alarms(),
        ..ServiceState::default()
    }
}

/// Services that do not take their locks, for each kind of reason.
fn barred() -> Vec<ServiceState> {
    let error = || "no room".to_owned();
    let bars = [
        Bar::StopLost(drained()),
        Bar::Writing,
        Bar::Retiring {
            because: Retirement::Changed,
        },
        Bar::ShuttingDown,
        Bar::Drained(drained()),
        Bar::Broken { error: error() },
        Bar::Observed { runs: true },
        Bar::NotAdmitted {
            error: error(),
            ungated: true,
        },
        Bar::OtherLock { error: error() },
        Bar::EntryUnknown { error: error() },
        Bar::Outside { error: error() },
        Bar::StoreAway,
        Bar::GuardAway,
        Bar::UnitAlive,
        Bar::SharedName {
            machine: MachineId(10),
        },
        Bar::CheckFails { error: error() },
        Bar::CheckPending,
        Bar::BackOff {
            because: error(),
            failures: 2,
        },
    ];
    let service = |(number, bar)| ServiceState {
        service: format!("s{number:02}"),
        state: Some(State::Standby),
        bar: Some(bar),
        ..ServiceState::default()
    };
    bars.into_iter().enumerate().map(service).collect()
}

fn drained() -> Word {
    Word::new("root@h1", "new disk", 1_767_225_650, Some(1_767_229_200))
}

fn host_report() -> wire::Report {
    wire::Report {
        host: HostState {
            node: "h1".to_owned(),
            version: "0.1.0".to_owned(),
            since: At::seconds(1_767_225_600),
            at: At::seconds(1_767_225_700),
            drained: Some(drained()),
            alarms: alarms(),
        },
        more: 1,
        services: wire::pages([service_state()].iter().chain(&barred())).remove(0),
    }
}

#[test]
fn what_hosts_tell_of_themselves() {
    let written = vec![
        ("host", wire::encode(&host_report()).body),
        (
            "hosts",
            wire::encode(&wire::HostList {
                hosts: [("h1".to_owned(), 1_767_225_600)].into(),
            })
            .body,
        ),
    ];
    samples::check("report", written, |name, content| {
        let value = Value {
            body: content.to_vec(),
            ..Value::default()
        };
        match name {
            "host" => serde_json::to_value(wire::report(&value, &node("h1")).expect("a report")),
            _ => serde_json::to_value(wire::listed(&value)),
        }
        .expect("JSON")
    });
}

#[test]
fn histories() {
    let run = Run {
        end: Some(End {
            at_ms: 1_767_225_700_123,
            known: Known::Exactly,
        }),
        ended: "stopped by root@h1".to_owned(),
        stopped: true,
        alarms: vec![Alarm::new(
            None,
            Problem::CheckFailed {
                unit: None,
                error: "no".to_owned(),
            },
            1_767_225_650,
        )],
        ..Run::new(1_767_225_600, "h1", Start::At(1_767_225_600_123))
    };
    let seen = Run {
        end: Some(End {
            at_ms: 1_767_225_800_123,
            known: Known::AtLeast,
        }),
        ..Run::new(1_767_225_710, "h2", Start::Unseen)
    };
    let history = History {
        runs: vec![run, seen, Run::new(1_767_225_900, "h1", Start::Failed)],
    };
    samples::check(
        "history",
        vec![("history", history.encode().body)],
        |_, content| {
            let value = Value {
                body: content.to_vec(),
                ..Value::default()
            };
            json!(History::decode(Some(&value), u64::MAX))
        },
    );
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
            deadline: Time {
                boot: Duration::from_millis(10_500),
                raw: Duration::from_secs(9),
            },
            stop_budget: Duration::from_millis(2700),
            kill_reserve: Duration::from_millis(900),
        },
        units: ["db.service", "db.mount"].map(unit).to_vec(),
        cgroups: vec!["/system.slice/db.service".to_owned()],
        inactive: vec![unit("db.mount")],
        begun: vec![unit("db.mount")],
        contains: vec![unit("db.slice")],
        outside: [].into(),
        on_stop_failure: OnStopFailure::RebootForce,
        closing: false,
    }
}

/// Each frame is a line.
#[test]
fn frames_between_putexd_and_the_guard() {
    let (service, instance) = (service(), Instance(2));
    let (write, revision, deadline) = (
        WriteId(4),
        Revision(43),
        Time::both(Duration::from_secs(20)),
    );
    let check_unmounted = Command::CheckUnmounted {
        unit: MountUnit {
            place: "/srv/db".to_owned(),
            what: "UUID=7".to_owned(),
            options: "noatime".to_owned(),
        },
        was: Some(Mount {
            number: "8:16".to_owned(),
            root: "/".to_owned(),
            place: "/srv/db".to_owned(),
            kind: "ext4".to_owned(),
            source: "/dev/sdb".to_owned(),
            options: "rw,noatime".to_owned(),
        }),
    };
    let requests: Vec<Request> = [
        Command::Arm {
            lease: lease(),
            shorter: false,
        },
        Command::Arm {
            lease: Lease {
                closing: true,
                ..lease()
            },
            shorter: true,
        },
        Command::Extend {
            service: service.clone(),
            instance,
            extension: Extension {
                write,
                revision,
                deadline,
            },
        },
        Command::Close {
            service: service.clone(),
            instance,
        },
        Command::Disarm {
            service: service.clone(),
            instance,
        },
        Command::List(Of::All),
        Command::List(Of::One(service)),
        Command::List(Of::None),
        check_unmounted,
    ]
    .into_iter()
    .zip(1..)
    .map(|(command, id)| Request { id, command })
    .collect();
    let watchdog = Watchdog {
        device: "/dev/watchdog".into(),
        timeout: Duration::from_secs(3),
        trouble: Some("it is busy".to_owned()),
    };
    let listed = ListedLease {
        lease: lease(),
        lapsed: true,
        stopped: true,
    };
    let results = vec![
        Outcome::Done,
        Outcome::Refused {
            reason: "the deadline has passed".to_owned(),
        },
        Outcome::Leases(GuardState {
            leases: vec![listed],
            ..GuardState::default()
        }),
        Outcome::Leases(GuardState {
            leases: Vec::new(),
            watchdog: Some(watchdog),
            trouble: Some("free space in /run".to_owned()),
            version: "0.1.0".to_owned(),
        }),
    ];
    let replies: Vec<Reply> = results
        .into_iter()
        .zip(1..)
        .map(|(result, id)| Reply { id, result })
        .collect();
    let written = vec![("requests", lines(&requests)), ("replies", lines(&replies))];
    samples::check("frames", written, |name, content| {
        let lines = content.split_inclusive(|byte| *byte == b'\n');
        lines
            .map(|line| {
                if name == "requests" {
                    of_json::<Request>(line)
                } else {
                    of_json::<Reply>(line)
                }
            })
            .collect()
    });
}

fn lines<T: serde::Serialize>(frames: &[T]) -> Vec<u8> {
    let lines = frames
        .iter()
        .map(|frame| serde_json::to_string(frame).expect("a line") + "\n");
    lines.collect::<String>().into_bytes()
}

/// The gate of the installed program reads the grant of the running guard.
#[test]
fn grants() {
    samples::check(
        "grant",
        vec![("db", grant::render(&lease()).into_bytes())],
        |_, content| {
            let text = str::from_utf8(content).expect("text");
            let token = lease().terms.token;
            grant::judge(text, &token.to_string(), Time::default())
                .expect("the gate is open before the deadline");
            grant::judge(text, &token.to_string(), lease().terms.deadline)
                .expect_err("and closed after it");
            let environment: BTreeMap<&str, &str> = text
                .lines()
                .filter(|line| !line.starts_with('#'))
                .filter_map(|line| line.split_once('='))
                .collect();
            json!(environment)
        },
    );
}

/// What is bound at a boot in which the files cannot be read.
#[test]
fn bound_at_boot() {
    let written = AtBoot {
        format: putexd::types::format::Format,
        mounts: BTreeSet::from([UnitName::new("etc-putex.d.mount").expect("a unit")]),
        services: BTreeMap::from([(
            ServiceName::new("db").expect("a name"),
            BTreeSet::from([UnitName::new("database.service").expect("a unit")]),
        )]),
    };
    samples::check(
        "bound",
        vec![(
            "bound.json",
            serde_json::to_vec_pretty(&written).expect("JSON"),
        )],
        |_, content| {
            let AtBoot {
                mounts, services, ..
            } = serde_json::from_slice(content).expect("it is read");
            json!({"mounts": mounts, "services": services})
        },
    );
}

/// The settings in force, in /run.
#[test]
fn kept_settings() {
    let mut service = ServiceSettings::new("db".parse().expect("a name"));
    service.source = SourceFile("/etc/putex.d/db.toml".into());
    service.health = Some(HealthSettings {
        probe: Probe::Tcp("127.0.0.1:5432".to_owned()),
        interval: Duration::from_secs(1),
        timeout: Duration::from_millis(500),
        rise: 1,
        fall: 2,
    });
    let kept = Kept {
        format: putexd::types::format::Format,
        boot: "b".repeat(32).parse().expect("a boot's id"),
        settings: Settings {
            node: node("h1"),
            store: StoreSettings::Directory(DirectorySettings {
                path: "/srv/putex".into(),
                owner: None,
            }),
            cluster: None,
            seal_key: Some("/etc/putex/seal.key".into()),
            watchdog: None,
            metrics: Some("127.0.0.1:9190".parse().expect("an address")),
            services: vec![service],
        },
    };
    let written = vec![("kept.json", serde_json::to_vec(&kept).expect("JSON"))];
    samples::check("kept", written, |_, content| {
        let kept: Kept = serde_json::from_slice(content).expect("it is read");
        json!({"boot": kept.boot, "settings": kept.settings})
    });
}

/// What the manual page says that the bus serves; a test of the module holds it together with what is served.
#[test]
fn what_is_on_the_bus_stays() {
    let now = on_the_bus(include_str!(
        "../packaging/usr/share/man/man5/org.putexd.Putexd1.5"
    ));
    samples::read_all("dbus", &["org.putexd.Putexd1.5"], |_, page| {
        let then = on_the_bus(str::from_utf8(page).expect("text"));
        // What was there has to be there now, whatever has come beside it.
        for (heading, items) in &then {
            let lost: Vec<&String> = items
                .iter()
                .filter(|item| !now[heading].contains(*item))
                .collect();
            assert!(lost.is_empty(), "{heading} lacks {lost:?}");
        }
        json!(then)
    });
}

/// The items of the page in bold, by their heading, and the options of each method.
fn on_the_bus(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let (mut items, mut heading) = (BTreeMap::<String, BTreeSet<String>>::new(), "");
    for line in page.lines() {
        if let Some(title) = line
            .strip_prefix(".Sh ")
            .or_else(|| line.strip_prefix(".Ss "))
        {
            heading = title;
        }
        let item = line.strip_prefix(".It \\fB").map(str::to_owned);
        let options = line
            .strip_prefix("Options: ")
            .into_iter()
            .flat_map(|options| options.split("\\fB").skip(1));
        let options = options
            .map(|option| format!("option {}", option.split("\\fR").next().unwrap_or_default()));
        items
            .entry(heading.to_owned())
            .or_default()
            .extend(item.into_iter().chain(options));
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
                assert!(
                    then.as_array().into_iter().flatten().all(has),
                    "{path}: {then} and now {now}"
                );
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
        put(
            "etc/putex/putexd.toml",
            b"[store]\ntype = \"directory\"\npath = \"/srv/putex\"\n",
        );
        put(&format!("etc/putex.d/{name}"), content);
        let loaded = config::load_keeping(root.path(), "h1", None, &BTreeSet::new());
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
        assert!(
            same,
            "put back the text of {name} that was released: dpkg asks every administrator about another one"
        );
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join("etc/putex/putexd.toml");
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, content).expect("a file");
        json!({ "lacks_store": config::load(root.path()).lacks_store })
    });
}
