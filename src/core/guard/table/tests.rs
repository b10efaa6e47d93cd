use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::types::{FencingToken, LeaseTerms, NodeId, OnStopFailure, Revision, WriteId};

mod lapse;
mod properties;

const S: Duration = Duration::from_secs(4);
const K: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Time {
    Time::both(Duration::from_secs(seconds))
}

fn name(text: &str) -> ServiceName {
    ServiceName::new(text).expect("a good name")
}

fn lease(service: &str, instance: u128, deadline: u64) -> Lease {
    Lease {
        service: name(service),
        node: NodeId::new("alpha").expect("a good name"),
        terms: LeaseTerms {
            instance: Instance(instance),
            write: WriteId(1),
            revision: Revision(1),
            token: FencingToken(42),
            deadline: at(deadline),
            stop_budget: S,
            kill_reserve: K,
        },
        units: vec![UnitName::new(&format!("{service}.service")).expect("a good name")],
        cgroups: vec![group(service)],
        inactive: Vec::new(),
        begun: Vec::new(),
        contains: Vec::new(),
        outside: [].into(),
        on_stop_failure: OnStopFailure::Alert,
        closing: false,
    }
}

fn group(service: &str) -> String {
    format!("/system.slice/{service}.service")
}

fn closed(mut lease: Lease) -> Lease {
    lease.closing = true;
    lease
}

/// A command that adds another group to the closed lease of `db` by `instance`.
fn wider(instance: u128) -> Command {
    let mut lease = closed(lease("db", instance, 10));
    lease.cgroups = vec!["/app.slice/db.service".to_owned()];
    Command::Arm {
        lease,
        shorter: false,
    }
}

fn extend(instance: u128, deadline: u64) -> Command {
    Command::Extend {
        service: name("db"),
        instance: Instance(instance),
        extension: Extension {
            write: WriteId(2),
            revision: Revision(2),
            deadline: at(deadline),
        },
    }
}

fn close(instance: u128) -> Command {
    Command::Close {
        service: name("db"),
        instance: Instance(instance),
    }
}

fn disarm(instance: u128) -> Command {
    Command::Disarm {
        service: name("db"),
        instance: Instance(instance),
    }
}

/// A table with the lease of `db` by instance 1, with its deadline at 10.
fn armed() -> LeaseTable {
    let mut table = LeaseTable::default();
    let lease = lease("db", 1, 10);
    let done = (Outcome::Done, vec![Effect::Grant(lease.clone())]);
    assert_eq!(
        table.handle(
            at(1),
            Command::Arm {
                lease,
                shorter: false
            }
        ),
        done
    );
    table
}

fn lapsed() -> LeaseTable {
    let mut table = armed();
    assert_eq!(table.expire(at(10)).len(), 2);
    table
}

#[track_caller]
fn refused(table: &mut LeaseTable, now: Time, command: Command, why: &str) {
    let before = table.clone();
    match table.handle(now, command) {
        (Outcome::Refused { reason }, effects) => {
            assert!(reason.contains(why), "{reason:?} does not say {why:?}");
            assert!(effects.is_empty());
        }
        (other, _) => panic!("not refused: {other:?}"),
    }
    assert_eq!(*table, before, "a refusal changes nothing");
}

fn listed(table: &mut LeaseTable) -> Vec<ListedLease> {
    match table.handle(at(0), Command::List(Of::All)).0 {
        Outcome::Leases(state) => state.leases,
        other @ (Outcome::Done | Outcome::Refused { .. }) => {
            panic!("not a list: {other:?}")
        }
    }
}

#[test]
fn arming_sets_the_deadline_and_the_grant() {
    let mut table = armed();
    assert_eq!(table.poll_timeout(), Some(at(10)));
    assert_eq!(
        listed(&mut table),
        [ListedLease {
            lease: lease("db", 1, 10),
            lapsed: false,
            stopped: false
        }]
    );
    assert!(
        table.expire(at(9)).is_empty(),
        "a call too early does nothing"
    );
}

#[test]
fn a_guard_that_hangs_has_a_successor_when_sigkill_is_due() {
    assert_eq!(LeaseTable::default().patience(at(0)), None);
    // SIGKILL is due at 13.
    let mut table = armed();
    let ms = Duration::from_millis;
    let at_ms = |milliseconds| Time::both(ms(milliseconds));
    assert_eq!(table.patience(at(4)), Some(ms(7700)));
    for milliseconds in (1000..11_400).step_by(100) {
        table.expire(at_ms(milliseconds));
        let patience = table
            .patience(at_ms(milliseconds))
            .expect("there is a lease");
        assert!(
            ms(milliseconds) + patience + SUCCESSION <= ms(13_000),
            "{patience:?} at {milliseconds} ms"
        );
    }
    // The other lease has a later deadline.
    table.handle(
        at(12),
        Command::Arm {
            lease: lease("other", 2, 14),
            shorter: false,
        },
    );
    for late in [12_000, 12_900, 13_500] {
        assert_eq!(table.patience(at_ms(late)), Some(LEAST_PATIENCE));
    }
    table.stopped(&name("db"));
    assert_eq!(table.patience(at_ms(13_500)), Some(ms(2200)));
    table.handle(at(13), disarm(1));
    assert_eq!(table.patience(at_ms(13_500)), Some(ms(2200)));
}

#[test]
fn a_guard_that_is_silent_for_less_than_half_a_short_lease_is_borne_with() {
    let mut table = LeaseTable::default();
    let mut short = lease("db", 1, 3);
    (short.terms.stop_budget, short.terms.kill_reserve) =
        (Duration::from_millis(200), Duration::from_millis(50));
    table.handle(
        at(1),
        Command::Arm {
            lease: short,
            shorter: false,
        },
    );
    assert_eq!(table.patience(at(1)), Some(Duration::from_secs(1)));
    assert_eq!(table.patience(at(2)), Some(Duration::from_millis(500)));
    assert_eq!(table.patience(at(3)), Some(LEAST_PATIENCE));
}

#[test]
fn a_list_says_whose_units_were_seen_dead() {
    let mut table = lapsed();
    let said = |table: &mut LeaseTable| {
        listed(table)
            .into_iter()
            .map(|listed| listed.stopped)
            .collect::<Vec<_>>()
    };
    assert_eq!(said(&mut table), [false]);
    table.stopped(&name("db"));
    assert_eq!(said(&mut table), [true]);
}

#[test]
fn arming_is_refused() {
    let mut table = LeaseTable::default();
    refused(
        &mut table,
        at(10),
        Command::Arm {
            lease: lease("db", 1, 10),
            shorter: false,
        },
        "the deadline has passed",
    );
    let raw_passed = Time {
        boot: Duration::from_secs(1),
        raw: Duration::from_secs(10),
    };
    refused(
        &mut table,
        raw_passed,
        Command::Arm {
            lease: lease("db", 1, 10),
            shorter: false,
        },
        "the deadline has passed",
    );
    let mut odd = lease("db", 1, 10);
    odd.terms.kill_reserve = S * 2;
    refused(
        &mut table,
        at(1),
        Command::Arm {
            lease: odd,
            shorter: false,
        },
        "longer than the stop budget",
    );
    let mut odd = lease("db", 1, 10);
    odd.cgroups = vec!["/a".to_owned(); CGROUP_LIMIT + 1];
    refused(
        &mut table,
        at(1),
        Command::Arm {
            lease: odd,
            shorter: false,
        },
        "64 control groups",
    );
    let mut odd = lease("db", 1, 10);
    odd.inactive = vec![odd.units[0].clone(); MEMBER_LIMIT + 1];
    refused(
        &mut table,
        at(1),
        Command::Arm {
            lease: odd,
            shorter: false,
        },
        "16 units",
    );
    for path in [
        "", "/", "a", "/a/../..", "/..", "/a//b", "/./a", "/a\0", "/a/", "/a\u{1}",
    ] {
        let mut odd = lease("db", 1, 10);
        odd.cgroups = vec![path.to_owned()];
        refused(
            &mut table,
            at(1),
            Command::Arm {
                lease: odd,
                shorter: false,
            },
            "not the path of a control group",
        );
    }
}

#[test]
fn what_is_just_within_the_limits_is_armed() {
    let mut table = LeaseTable::default();
    let mut full = lease("db", 1, 10);
    full.terms.kill_reserve = S;
    full.units = vec![full.units[0].clone(); MEMBER_LIMIT];
    full.inactive = full.units.clone();
    full.cgroups = vec!["/x".to_owned(); CGROUP_LIMIT];
    assert_eq!(
        table
            .handle(
                at(1),
                Command::Arm {
                    lease: full,
                    shorter: false
                }
            )
            .0,
        Outcome::Done
    );
}

#[test]
fn arming_over_another_lease_is_refused_in_every_phase() {
    let other = Command::Arm {
        lease: lease("db", 2, 90),
        shorter: false,
    };
    let same = Command::Arm {
        lease: lease("db", 1, 90),
        shorter: false,
    };
    let mut table = armed();
    refused(&mut table, at(1), other.clone(), "is not disarmed");
    table.handle(at(1), close(1));
    refused(&mut table, at(1), other.clone(), "is not disarmed");
    refused(&mut table, at(1), same.clone(), "never reopens");
    table.expire(at(10));
    for _ in 0..2 {
        refused(&mut table, at(11), other.clone(), "is not disarmed");
        refused(&mut table, at(11), same.clone(), "a lapse is final");
        table.stopped(&name("db"));
    }
    table.handle(at(12), disarm(1));
    assert_eq!(table.handle(at(12), other).0, Outcome::Done);
}

#[test]
fn arming_again_replaces_but_never_shortens() {
    let mut table = armed();
    refused(
        &mut table,
        at(1),
        Command::Arm {
            lease: lease("db", 1, 9),
            shorter: false,
        },
        "armed with a later deadline",
    );
    for (boot, raw) in [(9, 30), (30, 9)] {
        let mut earlier = lease("db", 1, 10);
        earlier.terms.deadline = Time {
            boot: Duration::from_secs(boot),
            raw: Duration::from_secs(raw),
        };
        refused(
            &mut table,
            at(1),
            Command::Arm {
                lease: earlier,
                shorter: false,
            },
            "armed with a later deadline",
        );
    }
    for deadline in [10, 12] {
        assert_eq!(
            table
                .handle(
                    at(1),
                    Command::Arm {
                        lease: lease("db", 1, deadline),
                        shorter: false
                    }
                )
                .0,
            Outcome::Done
        );
        assert_eq!(table.poll_timeout(), Some(at(deadline)));
    }
}

/// At the end of a pause. What was closed stays as it is.
#[test]
fn arming_again_shortens_an_open_lease_only_if_it_is_said() {
    let mut table = armed();
    let shorter = |deadline| Command::Arm {
        lease: lease("db", 1, deadline),
        shorter: true,
    };
    let (outcome, effects) = table.handle(at(1), shorter(6));
    assert_eq!(
        (outcome, effects),
        (Outcome::Done, vec![Effect::Grant(lease("db", 1, 6))])
    );
    assert_eq!(table.poll_timeout(), Some(at(6)));
    refused(&mut table, at(4), shorter(3), "the deadline has passed");
    table.handle(at(4), close(1));
    refused(&mut table, at(4), shorter(5), "never reopens");
    assert_eq!(table.poll_timeout(), Some(at(6)));
}

#[test]
fn arming_again_replaces_the_control_groups() {
    let mut table = armed();
    for groups in [
        ["/system.slice/db.service", "/app.slice/db.service"].as_slice(),
        &["/app.slice/db.service"],
    ] {
        let mut lease = lease("db", 1, 10);
        lease.cgroups = groups.iter().map(|group| (*group).to_owned()).collect();
        assert_eq!(
            table
                .handle(
                    at(1),
                    Command::Arm {
                        lease,
                        shorter: false
                    }
                )
                .0,
            Outcome::Done
        );
        assert_eq!(listed(&mut table)[0].lease.cgroups, groups);
    }
}

#[test]
fn a_closed_lease_learns_of_control_groups_and_forgets_none() {
    let both = [group("db"), "/app.slice/db.service".to_owned()];
    refused(&mut LeaseTable::default(), at(1), wider(1), "no such lease");
    let mut table = armed();
    refused(&mut table, at(1), wider(1), "not closed");
    table.handle(at(1), close(1));
    refused(&mut table, at(1), wider(2), "that of instance");
    for _ in 0..2 {
        assert_eq!(
            table.handle(at(1), wider(1)),
            (Outcome::Done, vec![]),
            "no grant comes back"
        );
        assert_eq!(listed(&mut table)[0].lease.cgroups, both);
    }
    assert_eq!(table.poll_timeout(), Some(at(10)), "the deadline stands");
    let effects = table.expire(at(10));
    assert!(matches!(&effects[1], Effect::Enforce(lease) if lease.cgroups == both));
}

#[test]
fn a_lapsed_lease_that_covers_more_is_enforced_there_too() {
    for stopped in [false, true] {
        let mut table = lapsed();
        if stopped {
            table.stopped(&name("db"));
        }
        let (outcome, effects) = table.handle(at(11), wider(1));
        assert_eq!(outcome, Outcome::Done);
        assert!(matches!(&effects[..], [Effect::Enforce(lease)] if lease.cgroups.len() == 2));
        assert_eq!(
            table.handle(at(11), wider(1)),
            (Outcome::Done, vec![]),
            "once"
        );
        assert!(listed(&mut table)[0].lapsed);
    }
}

#[test]
fn a_closed_lease_has_the_same_limits() {
    let mut table = armed();
    table.handle(at(1), close(1));
    for number in 1..CGROUP_LIMIT {
        let mut lease = closed(lease("db", 1, 10));
        lease.cgroups = vec![format!("/{number}")];
        assert_eq!(
            table
                .handle(
                    at(1),
                    Command::Arm {
                        lease,
                        shorter: false
                    }
                )
                .0,
            Outcome::Done
        );
    }
    refused(&mut table, at(1), wider(1), "64 control groups");
}

#[test]
fn what_another_lease_covers_is_not_armed() {
    let over = |groups: &[&str]| {
        let mut other = lease("other", 7, 20);
        other.cgroups = groups.iter().map(|group| (*group).to_owned()).collect();
        Command::Arm {
            lease: other,
            shorter: false,
        }
    };
    let mut same_unit = lease("other", 7, 20);
    same_unit.units.push(lease("db", 1, 10).units[0].clone());
    let mut gone = armed();
    gone.handle(at(1), close(1));
    let mut stopped = lapsed();
    stopped.stopped(&name("db"));
    for mut table in [armed(), gone, lapsed(), stopped] {
        let lease_of_db = "the lease of db still covers";
        for group in [
            "/system.slice/db.service",
            "/system.slice",
            "/system.slice/db.service/inner",
        ] {
            refused(
                &mut table,
                at(1),
                over(&["/free", group]),
                &format!("{lease_of_db} {group}"),
            );
        }
        let unit = Command::Arm {
            lease: same_unit.clone(),
            shorter: false,
        };
        refused(
            &mut table,
            at(1),
            unit.clone(),
            &format!("{lease_of_db} db.service"),
        );
        assert_eq!(
            table
                .handle(at(1), over(&["/system.slice/db.service.other"]))
                .0,
            Outcome::Done
        );
        refused(
            &mut table,
            at(1),
            over(&["/system.slice/db.service"]),
            lease_of_db,
        );
        table.handle(at(11), disarm(1));
        assert_eq!(table.handle(at(11), unit).0, Outcome::Done);
    }
}

#[test]
fn a_closed_lease_does_not_reach_into_another() {
    let mut table = armed();
    table.handle(
        at(1),
        Command::Arm {
            lease: lease("other", 7, 20),
            shorter: false,
        },
    );
    table.handle(at(1), close(1));
    let mut lease = closed(lease("db", 1, 10));
    lease.cgroups = vec![group("other")];
    refused(
        &mut table,
        at(1),
        Command::Arm {
            lease,
            shorter: false,
        },
        "the lease of other still covers",
    );
}

#[test]
fn the_table_has_a_limit() {
    let mut table = LeaseTable::default();
    for number in 0..LEASE_LIMIT {
        let lease = lease(&format!("s{number}"), 1, 10);
        assert_eq!(
            table
                .handle(
                    at(1),
                    Command::Arm {
                        lease,
                        shorter: false
                    }
                )
                .0,
            Outcome::Done
        );
    }
    refused(
        &mut table,
        at(1),
        Command::Arm {
            lease: lease("db", 1, 10),
            shorter: false,
        },
        "leases already",
    );
}

#[test]
fn a_list_has_what_is_asked_for() {
    let mut table = armed();
    table.handle(
        at(1),
        Command::Arm {
            lease: lease("other", 7, 20),
            shorter: false,
        },
    );
    assert_eq!(table.list(&Of::All).len(), 2);
    assert_eq!(
        table.list(&Of::One(name("db"))),
        [ListedLease {
            lease: lease("db", 1, 10),
            lapsed: false,
            stopped: false
        }]
    );
    assert!(table.list(&Of::One(name("none"))).is_empty() && table.list(&Of::None).is_empty());
}

#[test]
fn extending_moves_the_deadline_and_renews_the_grant() {
    let mut table = armed();
    let mut expected = lease("db", 1, 15);
    expected.terms.write = WriteId(2);
    expected.terms.revision = Revision(2);
    assert_eq!(
        table.handle(at(5), extend(1, 15)),
        (Outcome::Done, vec![Effect::Extend(name("db"), at(15))])
    );
    assert_eq!(
        table.entry_of(&name("db")).expect("there is one").lease,
        expected
    );
    assert_eq!(table.poll_timeout(), Some(at(15)));
    assert!(table.expire(at(14)).is_empty());
    assert_eq!(table.expire(at(15)).len(), 2);
}

#[test]
fn an_extension_that_is_sent_again_changes_nothing() {
    let mut table = armed();
    table.handle(at(5), extend(1, 15));
    let before = table.clone();
    assert_eq!(
        table.handle(at(6), extend(1, 15)),
        (Outcome::Done, Vec::new())
    );
    assert_eq!(table, before);
    refused(&mut table, at(15), extend(1, 15), "a lapse is final");
}

#[test]
fn extending_is_refused() {
    refused(
        &mut LeaseTable::default(),
        at(1),
        extend(1, 15),
        "no such lease",
    );
    let mut table = armed();
    refused(&mut table, at(1), extend(2, 15), "that of instance");
    refused(&mut table, at(1), extend(1, 10), "not later");
    refused(&mut table, at(1), extend(1, 9), "not later");
    refused(&mut table, at(9), extend(1, 9), "has passed");
    refused(&mut table, at(10), extend(1, 15), "a lapse is final");
    refused(&mut lapsed(), at(11), extend(1, 15), "a lapse is final");
    let raw_back = Command::Extend {
        service: name("db"),
        instance: Instance(1),
        extension: Extension {
            write: WriteId(2),
            revision: Revision(2),
            deadline: Time {
                boot: Duration::from_secs(20),
                raw: Duration::from_secs(10),
            },
        },
    };
    refused(&mut table, at(1), raw_back, "not later");
}
