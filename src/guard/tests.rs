//! Reads what the guard of each release has kept for its successor, in all samples under `tests/compat`.

use std::{fs, path::Path, time::Duration};

use super::{
    kept::KeptLeases,
    table::{LeaseEntry, LeaseTable},
};
use crate::{
    guard_client::frame::{Command, Lease},
    samples,
    types::{
        BootId, Extension, FencingToken, Instance, LeaseTerms, NodeId, OnStopFailure, Revision,
        ServiceName, Time, UnitName, WriteId,
    },
};

const BOOT: BootId = BootId(5);

fn at(seconds: u64) -> Time {
    Time::both(Duration::from_secs(seconds))
}

fn table() -> LeaseTable {
    let unit = |name: &str| UnitName::new(name).expect("a unit's name");
    let lease = Lease {
        service: ServiceName::new("db").expect("a service's name"),
        node: NodeId::new("h1").expect("a node's name"),
        terms: LeaseTerms {
            instance: Instance(2),
            write: WriteId(3),
            revision: Revision(42),
            token: FencingToken(1_767_225_600),
            deadline: at(10),
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
    };
    let mut table = LeaseTable::default();
    table.handle(
        at(1),
        Command::Arm {
            lease,
            shorter: false,
        },
    );
    table
}

fn extended(mut table: LeaseTable) -> LeaseTable {
    let (service, instance) = (
        ServiceName::new("db").expect("a service's name"),
        Instance(2),
    );
    let (write, revision, deadline) = (WriteId(4), Revision(43), at(20));
    table.handle(
        at(2),
        Command::Extend {
            service,
            instance,
            extension: Extension {
                write,
                revision,
                deadline,
            },
        },
    );
    table
}

fn lapsed() -> LeaseTable {
    let mut table = table();
    table.expire(at(11));
    table
}

fn kept_in(folder: &tempfile::TempDir) -> KeptLeases {
    KeptLeases::new(folder.path(), Path::new("/nowhere"), BOOT)
}

/// The file of the lease, of which the second table is an extension.
fn record(first: &LeaseTable, second: Option<&LeaseTable>) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut kept = kept_in(&folder);
    kept.write(&first.entries()[0]);
    if let Some(second) = second {
        kept.extend(&second.entries()[0]);
    }
    fs::read(folder.path().join("db")).expect("it is there")
}

fn understood(entries: &[LeaseEntry]) -> serde_json::Value {
    entries
        .iter()
        .map(|entry| serde_json::to_value(entry).expect("JSON"))
        .collect()
}

#[test]
fn what_a_guard_keeps_for_its_successor() {
    let written = vec![
        ("armed", record(&table(), None)),
        ("extended", record(&table(), Some(&extended(table())))),
        ("lapsed", record(&lapsed(), None)),
    ];
    samples::check("guard", written, |_, content| {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("db"), content).expect("written");
        understood(&kept_in(&folder).load())
    });
}
