//! What is closed, what lapses, what is at stake, and what a successor does.

use super::*;

#[test]
fn closing_removes_the_grant_for_good_and_keeps_the_deadline() {
    refused(&mut LeaseTable::default(), at(1), close(1), "no such lease");
    let mut table = armed();
    refused(&mut table, at(1), close(2), "that of instance");
    assert_eq!(
        table.handle(at(1), close(1)),
        (Outcome::Done, vec![Effect::Withdraw(name("db"))])
    );
    assert_eq!(
        table.handle(at(1), close(1)),
        (Outcome::Done, vec![]),
        "again, it changes nothing"
    );
    assert!(listed(&mut table)[0].lease.closing);
    assert_eq!(
        table.handle(at(2), extend(1, 15)),
        (Outcome::Done, vec![]),
        "no grant comes back"
    );
    assert!(table.expire(at(14)).is_empty());
    assert!(matches!(
        &table.expire(at(15))[..],
        [Effect::Withdraw(_), Effect::Enforce(_)]
    ));
}

#[test]
fn disarming_forgets() {
    assert_eq!(
        LeaseTable::default().handle(at(1), disarm(1)),
        (Outcome::Done, vec![])
    );
    for mut table in [armed(), lapsed()] {
        refused(&mut table, at(11), disarm(2), "that of instance");
        let effects = vec![Effect::Withdraw(name("db")), Effect::Forget(name("db"))];
        assert_eq!(table.handle(at(11), disarm(1)), (Outcome::Done, effects));
        assert_eq!((table.poll_timeout(), table), (None, LeaseTable::default()));
    }
}

#[test]
fn a_guard_that_is_asked_to_end_has_each_lease_lapse_now_and_moves_no_deadline_that_is_past() {
    for (now, deadline) in [(3, at(3)), (30, at(10))] {
        let mut table = armed();
        assert!(table.expire(at(3)).is_empty());
        table.end(at(now));
        let effects = table.expire(at(now));
        let [Effect::Withdraw(_), Effect::Enforce(lease)] = &effects[..] else {
            panic!("{effects:?}")
        };
        assert_eq!(lease.terms.deadline, deadline);
    }
}

#[test]
fn either_clock_lets_it_lapse() {
    let late = Duration::from_secs(10);
    let early = Duration::from_secs(2);
    for now in [
        Time {
            boot: late,
            raw: early,
        },
        Time {
            boot: early,
            raw: late,
        },
    ] {
        let mut table = armed();
        let effects = table.expire(now);
        let enforced = closed(lease("db", 1, 10));
        assert_eq!(
            effects,
            [Effect::Withdraw(name("db")), Effect::Enforce(enforced)]
        );
        assert!(table.expire(now).is_empty(), "once");
        assert!(listed(&mut table)[0].lapsed);
    }
}

#[test]
fn the_next_timeout_is_the_earliest_on_each_clock() {
    let mut table = LeaseTable::default();
    let mut one = lease("a", 1, 10);
    one.terms.deadline.raw = Duration::from_secs(30);
    let mut two = lease("b", 1, 20);
    two.terms.deadline.raw = Duration::from_secs(15);
    table.handle(
        at(1),
        Command::Arm {
            lease: one,
            shorter: false,
        },
    );
    table.handle(
        at(1),
        Command::Arm {
            lease: two,
            shorter: false,
        },
    );
    assert_eq!(
        table.poll_timeout(),
        Some(Time {
            boot: Duration::from_secs(10),
            raw: Duration::from_secs(15)
        })
    );
}

#[test]
fn without_a_proof_in_time_it_gives_up_once() {
    let mut table = lapsed();
    assert_eq!(table.poll_timeout(), Some(at(14)));
    assert!(table.expire(at(13)).is_empty());
    assert_eq!(
        table.expire(at(14)),
        [Effect::GiveUp(closed(lease("db", 1, 10)))]
    );
    assert!(table.expire(at(99)).is_empty());
    assert_eq!(table.poll_timeout(), None);
}

#[test]
fn with_a_proof_it_stays_lapsed_until_disarmed() {
    let mut table = lapsed();
    table.stopped(&name("db"));
    assert_eq!(table.poll_timeout(), None);
    assert!(table.expire(at(99)).is_empty());
    assert!(listed(&mut table)[0].lapsed);
}

#[test]
fn a_unit_is_at_stake_until_it_is_proven_dead() {
    assert_eq!(LeaseTable::default().at_stake(|_| true), None);
    let mut table = armed();
    assert_eq!(table.at_stake(|_| true), Some(at(14)));
    let mut other = lease("other", 2, 30);
    (other.terms.deadline.raw, other.terms.stop_budget) = (Duration::from_secs(8), S / 2);
    table.handle(
        at(1),
        Command::Arm {
            lease: other,
            shorter: false,
        },
    );
    let first = Time {
        boot: Duration::from_secs(14),
        raw: Duration::from_secs(10),
    };
    assert_eq!(
        table.at_stake(|_| true),
        Some(first),
        "the earlier one on each clock"
    );
    table.handle(at(1), disarm_other());
    table.handle(at(2), extend(1, 15));
    table.handle(at(2), close(1));
    assert_eq!(table.at_stake(|_| true), Some(at(19)));
    table.expire(at(15));
    assert_eq!(table.at_stake(|_| true), Some(at(19)), "lapsed");
    table.expire(at(19));
    assert_eq!(table.at_stake(|_| true), Some(at(19)), "given up");
    let (next, _) = LeaseTable::resume(at(20), table.entries());
    assert_eq!(next.at_stake(|_| true), Some(at(19)), "for a successor too");
    table.stopped(&name("db"));
    assert_eq!(table.at_stake(|_| true), None, "a late proof is one");
    assert_eq!(
        table.at_stake(|_| false),
        Some(at(19)),
        "until something of it runs again"
    );
    assert!(table.expire(at(99)).is_empty());
    assert!(listed(&mut table)[0].lapsed);
}

fn disarm_other() -> Command {
    Command::Disarm {
        service: name("other"),
        instance: Instance(2),
    }
}

#[test]
fn a_proof_means_nothing_before_the_lapse() {
    let mut table = armed();
    table.stopped(&name("db"));
    table.stopped(&name("unknown"));
    assert_eq!(table, armed());
}

#[test]
fn whoever_wakes_late_still_kills_before_it_gives_up() {
    let mut table = armed();
    assert!(matches!(
        &table.expire(at(100))[..],
        [Effect::Withdraw(_), Effect::Enforce(_)]
    ));
    assert_eq!(table.poll_timeout(), Some(at(100).plus(K)));
    assert!(matches!(&table.expire(at(101))[..], [Effect::GiveUp(_)]));
}

#[test]
fn one_lapse_leaves_the_others_alone() {
    let mut table = armed();
    table.handle(
        at(1),
        Command::Arm {
            lease: lease("other", 7, 20),
            shorter: false,
        },
    );
    assert_eq!(table.expire(at(10)).len(), 2);
    assert_eq!(
        listed(&mut table)
            .iter()
            .filter(|listed| listed.lapsed)
            .count(),
        1
    );
    assert_eq!(
        table.expire(at(20)).len(),
        3,
        "one gives up, the other lapses"
    );
}

#[test]
fn a_successor_closes_open_leases_and_goes_on_with_lapsed_ones() {
    let mut table = armed();
    table.handle(
        at(1),
        Command::Arm {
            lease: lease("other", 7, 5),
            shorter: false,
        },
    );
    table.expire(at(5));
    let (mut next, effects) = LeaseTable::resume(at(6), table.entries());
    assert_eq!(effects, [Effect::Enforce(closed(lease("other", 7, 5)))]);
    let listed = listed(&mut next);
    assert!(listed.iter().all(|listed| listed.lease.closing));
    assert_eq!(next.poll_timeout(), Some(at(9)));
    refused(
        &mut next,
        at(6),
        Command::Arm {
            lease: lease("db", 1, 20),
            shorter: false,
        },
        "never reopens",
    );
    assert_eq!(
        next.handle(at(6), extend(1, 15)),
        (Outcome::Done, vec![]),
        "it is still being stopped"
    );
    assert!(next.expire(at(15)).contains(&Effect::Withdraw(name("db"))));
}

#[test]
fn a_successor_does_not_give_up_a_second_time() {
    let mut table = lapsed();
    table.expire(at(14));
    let (mut next, effects) = LeaseTable::resume(at(15), table.entries());
    assert_eq!(effects.len(), 1, "SIGKILL goes on");
    assert!(next.expire(at(99)).is_empty());
    let (next, _) = LeaseTable::resume(at(50), lapsed().entries());
    assert_eq!(
        next.poll_timeout(),
        Some(at(50).plus(K)),
        "time to kill before giving up"
    );
}

#[test]
fn what_is_kept_comes_back_as_it_was() {
    for mut table in [armed(), lapsed()] {
        for _ in 0..2 {
            let text = serde_json::to_string(&table.entries()).expect("encodes");
            let entries: Vec<LeaseEntry> = serde_json::from_str(&text).expect("decodes");
            assert_eq!(entries, table.entries());
            table.stopped(&name("db"));
        }
    }
}
