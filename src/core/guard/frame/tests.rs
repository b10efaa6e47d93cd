use proptest::prelude::*;

use super::*;
use crate::types::{
    FencingToken, Revision, Time, WriteId,
    mount::{Mount, MountUnit},
};

fn lease() -> Lease {
    Lease {
        service: ServiceName::new("database").expect("a good name"),
        node: NodeId::new("alpha").expect("a good name"),
        terms: LeaseTerms {
            instance: Instance(1),
            write: WriteId(2),
            revision: Revision(3),
            token: FencingToken(4),
            deadline: Time::both(Duration::from_secs(10)),
            stop_budget: Duration::from_secs(5),
            kill_reserve: Duration::from_secs(1),
        },
        units: vec![UnitName::new("database.service").expect("a good name")],
        cgroups: vec!["/system.slice/database.service".to_owned()],
        inactive: Vec::new(),
        begun: Vec::new(),
        contains: Vec::new(),
        outside: [].into(),
        on_stop_failure: OnStopFailure::Alert,
        closing: false,
    }
}

fn check_unmounted() -> Command {
    Command::CheckUnmounted {
        unit: MountUnit {
            place: "/srv/data".to_owned(),
            what: "UUID=7".to_owned(),
            options: "noatime".to_owned(),
        },
        was: Some(Mount {
            number: "8:16".to_owned(),
            root: "/".to_owned(),
            place: "/srv/data".to_owned(),
            kind: "ext4".to_owned(),
            source: "/dev/sdb".to_owned(),
            options: "rw,noatime".to_owned(),
        }),
    }
}

fn at(seconds: u64) -> Time {
    Time::both(Duration::from_secs(seconds))
}

fn commands() -> Vec<Command> {
    let (service, instance) = (lease().service, lease().terms.instance);
    vec![
        Command::Arm {
            lease: lease(),
            shorter: false,
        },
        Command::Extend {
            service: service.clone(),
            instance,
            extension: Extension {
                write: WriteId(9),
                revision: Revision(9),
                deadline: Time::both(Duration::from_secs(20)),
            },
        },
        Command::Close {
            service: service.clone(),
            instance,
        },
        Command::Disarm { service, instance },
        Command::List(Of::One(lease().service)),
        check_unmounted(),
    ]
}

#[test]
fn requests_come_back_as_they_were() {
    for (id, command) in (0..).zip(commands()) {
        let request = Request { id, command };
        let text = serde_json::to_string(&request).expect("encodes");
        assert!(!text.contains('\n'), "a frame is one line");
        assert_eq!(
            serde_json::from_str::<Request>(&text).expect("decodes"),
            request
        );
    }
}

#[test]
fn replies_come_back_as_they_were() {
    for result in [
        Outcome::Done,
        Outcome::Refused {
            reason: "no\nwonder".to_owned(),
        },
        Outcome::Leases(GuardState {
            leases: vec![ListedLease {
                lease: lease(),
                lapsed: true,
                stopped: true,
            }],
            watchdog: None,
            trouble: None,
            version: String::new(),
        }),
        Outcome::Leases(GuardState {
            leases: Vec::new(),
            trouble: Some("free space in /run".to_owned()),
            version: "0.1.0".to_owned(),
            watchdog: Some(Watchdog {
                device: "/dev/watchdog".into(),
                timeout: Duration::from_secs(3),
                trouble: Some("busy".to_owned()),
            }),
        }),
    ] {
        let reply = Reply {
            id: u64::MAX,
            result,
        };
        let text = serde_json::to_string(&reply).expect("encodes");
        assert!(!text.contains('\n'), "a frame is one line");
        assert_eq!(
            serde_json::from_str::<Reply>(&text).expect("decodes"),
            reply
        );
    }
}

#[test]
fn the_wire_format_stays_as_old_guards_know_it() {
    let [_, _, close, ..] = &commands()[..] else {
        panic!("six commands")
    };
    let text = serde_json::to_string(&Request {
        id: 7,
        command: close.clone(),
    })
    .expect("encodes");
    let expected = r#"{"id":7,"command":{"close":{"service":"database","instance":"00000000000000000000000000000001"}}}"#;
    assert_eq!(text, expected);
}

#[test]
fn fields_of_a_newer_putexd_are_ignored() {
    let text = r#"{"id":7,"colour":"red","command":{"close":{"service":"a","instance":"00000000000000000000000000000001","why":1}}}"#;
    assert!(serde_json::from_str::<Request>(text).is_ok());
}

#[test]
fn a_program_of_another_version_has_the_same_limits() {
    assert_eq!(REQUEST_LIMIT_BYTES, 65_536);
    assert_eq!((LEASE_LIMIT, MEMBER_LIMIT), (4096, 16));
    assert_eq!(CGROUP_LIMIT, 64);
}

#[test]
fn a_lease_says_when_its_units_are_killed_and_dead() {
    assert_eq!(
        (lease().terms.kill_at(), lease().terms.dead_by()),
        (at(14), at(15))
    );
}

/// A lease of the largest size that a request can have.
fn largest() -> Lease {
    let unit = UnitName::new(&format!("{}.service", "\\".repeat(247))).expect("a good name");
    let units = vec![unit; MEMBER_LIMIT];
    Lease {
        service: ServiceName::new(&"s".repeat(64)).expect("a good name"),
        node: NodeId::new(&"\\".repeat(128)).expect("a good name"),
        terms: LeaseTerms {
            instance: Instance(u128::MAX),
            write: WriteId(u128::MAX),
            revision: Revision(u64::MAX),
            token: FencingToken(u64::MAX),
            deadline: Time::both(Duration::new(u64::MAX, 999_999_999)),
            stop_budget: Duration::new(u64::MAX, 999_999_999),
            kill_reserve: Duration::new(u64::MAX, 999_999_999),
        },
        units: units.clone(),
        cgroups: vec!["\\".repeat(256); CGROUP_LIMIT],
        inactive: units,
        begun: Vec::new(),
        contains: Vec::new(),
        outside: [].into(),
        on_stop_failure: OnStopFailure::RebootForce,
        closing: false,
    }
}

#[test]
fn the_largest_lease_fits_in_a_request() {
    let arm = Command::Arm {
        lease: largest(),
        shorter: true,
    };
    let request = Request {
        id: u64::MAX,
        command: arm,
    };
    assert!(serde_json::to_vec(&request).expect("encodes").len() < REQUEST_LIMIT_BYTES);
}

#[test]
fn a_guard_that_arms_no_lease_says_why() {
    let mut state = GuardState {
        watchdog: Some(Watchdog {
            device: "/dev/watchdog0".into(),
            timeout: Duration::from_secs(10),
            trouble: None,
        }),
        ..GuardState::default()
    };
    assert_eq!(state.unfit(), None);
    state.watchdog.as_mut().expect("there is one").trouble = Some("it is busy".to_owned());
    let unserved = "the watchdog /dev/watchdog0 is not served: it is busy";
    assert_eq!(state.unfit().as_deref(), Some(unserved));
    state.trouble = Some("free space in /run".to_owned());
    assert_eq!(state.unfit(), state.trouble);
}

proptest! {
    #[test]
    fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _ = serde_json::from_slice::<Request>(&bytes);
        let _ = serde_json::from_slice::<Reply>(&bytes);
    }

    /// This is closer to the format than random bytes: a valid frame with some bytes replaced.
    #[test]
    fn decoding_a_damaged_frame_never_panics(
        which in 0_usize..6,
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let request = Request { id: 1, command: commands().swap_remove(which) };
        let mut bytes = serde_json::to_vec(&request).expect("encodes");
        for (index, byte) in damage {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = serde_json::from_slice::<Request>(&bytes);
    }
}
