//! Reads what each release has kept on the disk, in all samples under `tests/compat`.

use std::{fs, time::Duration};

use serde_json::json;

use super::{
    kept::memory,
    local::{
        alarms::{self, Alarms},
        drain::Drain,
    },
};
use crate::{
    election::{KeptPlace, LockPlace, Memory, PassingHold, Timings},
    facts::{
        Word,
        alarm::{Alarm, Problem},
    },
    journal::LockFields,
    samples,
    types::{
        BootId, FencingToken, Incarnation, Instance, Key, Revision, ServiceName, Time, UnitName,
        WriteId, store::StoreAddress,
    },
};

const BOOT: Option<BootId> = Some(BootId(1));

fn key(name: &str) -> Key {
    Key::new(name).expect("a key")
}

fn service() -> ServiceName {
    ServiceName::new("db").expect("a service's name")
}

fn unit() -> UnitName {
    UnitName::new("database.service").expect("a unit's name")
}

fn at(seconds: u64) -> Time {
    Time::both(Duration::from_secs(seconds))
}

fn of_service() -> Vec<u8> {
    let memory = Memory {
        position: Some((Incarnation("a".to_owned()), Revision(7))),
        token: FencingToken(1_767_225_600),
        token_of: Some(Instance(2)),
        longest_hold: Duration::from_secs(4),
        passing: Some(PassingHold {
            id: WriteId(3),
            taken_from: at(130),
            until: Some(at(160)),
        }),
        stopped: Some(Word::new(
            "root@h1",
            "restored by hand",
            1_767_225_601,
            None,
        )),
        started: Some(1_767_225_600),
    };
    let timings = Timings::new(Duration::from_secs(1), 4, 2);
    memory::content(&key("db"), memory, timings, BOOT, at(100))
}

fn of_unit() -> Vec<u8> {
    let store = StoreAddress {
        what: "nats, bucket locks".to_owned(),
        servers: vec!["nats://10.0.0.1".to_owned()],
    };
    let kept = KeptPlace {
        place: LockPlace {
            store,
            key: key("db"),
        },
        former: vec![key("old")],
        position: Some((Incarnation("a".to_owned()), Revision(10))),
    };
    memory::render_place(&unit(), &kept)
}

async fn of_drain() -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let word = Word {
        by: "root@h1".to_owned(),
        reason: "new disk".to_owned(),
        at: 1_767_225_600,
        until: Some(3600),
        removal: false,
    };
    Drain::read(folder.path())
        .set(Some(word))
        .await
        .expect("it is written");
    fs::read(folder.path().join("+drained.json")).expect("it is there")
}

fn of_alarms() -> Vec<u8> {
    let (alarms, since) = (Alarms::default(), 1_767_225_600);
    let cause = "not renewed".into();
    for problem in [
        Problem::Lapsed { cause },
        Problem::ClockJump { by_ms: 3000 },
    ] {
        let alarm = Alarm::new(Some(service()), problem, since);
        alarms.add(alarm, Some(LockFields::default()));
    }
    alarms.changed(since + 100).expect("there are some")
}

#[tokio::test]
async fn what_is_kept_in_var_lib() {
    let written = vec![
        ("service", of_service()),
        ("unit", of_unit()),
        ("drained", of_drain().await),
        ("alarms", of_alarms()),
    ];
    samples::check("state", written, |name, content| {
        let folder = tempfile::tempdir().expect("a folder");
        match name {
            "service" => {
                fs::write(folder.path().join("db.json"), content).expect("written");
                let Memory {
                    position,
                    token,
                    token_of,
                    longest_hold,
                    passing,
                    stopped,
                    started,
                } = memory::load(
                    &memory::path_of(folder.path(), &service()),
                    &key("db"),
                    BOOT,
                    at(110),
                );
                let (key, timings) =
                    memory::last_held(folder.path(), &service()).expect("it was held");
                let longest_hold_ms =
                    u64::try_from(longest_hold.as_millis()).expect("a short time");
                json!({"position": position, "token": token, "token_of": token_of, "longest_hold_ms": longest_hold_ms,
                    "passing": passing, "stopped": stopped, "started": started, "key": key, "timings": timings})
            }
            "unit" => {
                fs::write(memory::path_of_unit(folder.path(), &unit()), content).expect("written");
                json!(memory::load_place(folder.path(), &unit()).expect("it is known"))
            }
            "alarms" => {
                fs::write(alarms::path(folder.path()), content).expect("written");
                let alarms = Alarms::read(folder.path());
                json!(alarms.of(Some(&service()), 1_767_225_600 + 110))
            }
            _ => {
                fs::write(folder.path().join("+drained.json"), content).expect("written");
                json!(Drain::read(folder.path()).word().expect("it is drained"))
            }
        }
    });
}
