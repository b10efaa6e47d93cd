//! What holds after any sequence of commands.

use super::*;

#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "a few dozen of them, in a test")]
enum Step {
    Wait(u64),
    Command(Command),
    Restart,
    Stopped,
}

fn step() -> impl Strategy<Value = Step> {
    let (instance, deadline) = (1_u128..3, 0_u64..60);
    prop_oneof![
        (0_u64..5).prop_map(Step::Wait),
        (instance.clone(), deadline.clone(), any::<bool>()).prop_map(
            |(instance, deadline, shorter)| {
                Step::Command(Command::Arm {
                    lease: lease("db", instance, deadline),
                    shorter,
                })
            }
        ),
        (instance.clone(), deadline)
            .prop_map(|(instance, deadline)| Step::Command(extend(instance, deadline))),
        instance
            .clone()
            .prop_map(|instance| Step::Command(wider(instance))),
        instance
            .clone()
            .prop_map(|instance| Step::Command(close(instance))),
        instance.prop_map(|instance| Step::Command(disarm(instance))),
        Just(Step::Restart),
        Just(Step::Stopped),
    ]
}

/// Computes from the entries alone what the table answers with the help of its other fields.
struct Scan<'a>(&'a LeaseTable);

impl Scan<'_> {
    fn entries(&self) -> impl Iterator<Item = &LeaseEntry> {
        self.0.entries.values()
    }

    fn poll_timeout(&self) -> Option<Time> {
        let due = |entry: &LeaseEntry| match entry.phase {
            LeasePhase::Open | LeasePhase::Closing => Some(entry.lease.terms.deadline),
            LeasePhase::Lapsed { give_up } => Some(give_up),
            LeasePhase::Stopped | LeasePhase::GivenUp => None,
        };
        self.entries().filter_map(due).reduce(Time::earliest)
    }

    fn at_stake(&self, is_dead: impl Fn(&ServiceName) -> bool) -> Option<Time> {
        let lives = |entry: &&LeaseEntry| {
            entry.phase != LeasePhase::Stopped || !is_dead(&entry.lease.service)
        };
        self.entries()
            .filter(lives)
            .map(|entry| entry.lease.terms.dead_by())
            .reduce(Time::earliest)
    }

    /// The least and the greatest patience that is permitted: half of the shortest lease, and what leaves time for a
    /// successor.
    fn patience(&self, now: Time) -> Option<(Duration, Duration)> {
        let bounds = |LeaseEntry { lease, phase }: &LeaseEntry| {
            let half = match phase {
                LeasePhase::Open | LeasePhase::Closing => {
                    now.until_passed(lease.terms.deadline) / 2
                }
                LeasePhase::Lapsed { .. } => Duration::ZERO,
                LeasePhase::Stopped | LeasePhase::GivenUp => return None,
            };
            let in_time = now
                .until_passed(lease.terms.kill_at())
                .saturating_sub(SUCCESSION);
            Some((
                half.max(LEAST_PATIENCE),
                in_time.max(half).max(LEAST_PATIENCE),
            ))
        };
        let least = |one: (Duration, Duration), other: (Duration, Duration)| {
            (one.0.min(other.0), one.1.min(other.1))
        };
        self.entries().filter_map(bounds).reduce(least)
    }

    /// Whether another lease covers a unit of `new`, or a group that is, contains or lies within one of its own.
    fn overlaps(&self, new: &Lease) -> bool {
        self.entries()
            .map(LeaseEntry::lease)
            .filter(|lease| lease.service != new.service)
            .any(|lease| {
                let is_within = |group: &str, other: &str| {
                    group
                        .strip_prefix(other)
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                };
                let near =
                    |one: &String, other: &String| is_within(one, other) || is_within(other, one);
                let touches = |group: &String| lease.cgroups.iter().any(|other| near(group, other));
                new.units.iter().any(|unit| lease.units.contains(unit))
                    || new.cgroups.iter().any(touches)
            })
    }
}

/// Random leases of a few services whose units and groups overlap, with clocks that drift apart.
fn any_lease() -> impl Strategy<Value = Lease> {
    let spans = (0_u64..4, 0_u64..5, 0_u64..60, 0_u64..60);
    let groups = prop::sample::subsequence(
        vec!["/a", "/a/b", "/a/b/c", "/a.b", "/ab", "/b", "/b/a"],
        0..3,
    );
    let units = prop::sample::subsequence(vec!["a.service", "b.service", "c.service"], 0..2);
    (0..4, 1_u128..3, spans, groups, units, any::<bool>()).prop_map(
        |(service, instance, (reserve, rest, boot, raw), groups, units, closing)| {
            let mut lease = lease(&format!("s{service}"), instance, 0);
            lease.terms.deadline = Time {
                boot: Duration::from_secs(boot),
                raw: Duration::from_secs(raw),
            };
            lease.terms.kill_reserve = Duration::from_secs(reserve);
            lease.terms.stop_budget = Duration::from_secs(reserve + rest);
            lease.cgroups = groups.into_iter().map(str::to_owned).collect();
            lease.units = units
                .into_iter()
                .map(|unit| UnitName::new(unit).expect("a good name"))
                .collect();
            lease.closing = closing;
            lease
        },
    )
}

#[derive(Debug, Clone)]
enum Turn {
    Wait(u64, u64),
    Arm(Box<Lease>),
    Extend(Box<Lease>),
    Close(Box<Lease>),
    Disarm(Box<Lease>),
    Stopped(Box<Lease>),
    PutBack(Box<Lease>),
    Restart,
}

fn turn() -> impl Strategy<Value = Turn> {
    let lease = || any_lease().prop_map(Box::new);
    prop_oneof![
        1 => (0_u64..6, 0_u64..6).prop_map(|(boot, raw)| Turn::Wait(boot, raw)),
        4 => lease().prop_map(Turn::Arm),
        2 => lease().prop_map(Turn::Extend),
        1 => lease().prop_map(Turn::Close),
        1 => lease().prop_map(Turn::Disarm),
        1 => lease().prop_map(Turn::Stopped),
        1 => lease().prop_map(Turn::PutBack),
        1 => Just(Turn::Restart),
    ]
}

proptest! {
    /// After any commands, what is kept beside the entries gives the same answers as a look at all of them.
    #[test]
    fn what_is_kept_beside_the_entries_follows_from_them(turns in proptest::collection::vec(turn(), 0..40)) {
        let mut table = LeaseTable::default();
        let mut now = at(0);
        for turn in turns {
            table.expire(now);
            match turn {
                Turn::Wait(boot, raw) => {
                    now.boot += Duration::from_secs(boot);
                    now.raw += Duration::from_secs(raw);
                }
                Turn::Arm(lease) => {
                    let overlaps = Scan(&table).overlaps(&lease);
                    let shorter = lease.terms.deadline.boot.as_secs().is_multiple_of(2);
                    let (outcome, _) = table.handle(now, Command::Arm { lease: *lease, shorter });
                    let covers = matches!(&outcome, Outcome::Refused { reason } if reason.contains("still covers"));
                    prop_assert!(!overlaps || outcome != Outcome::Done);
                    prop_assert!(overlaps || !covers, "{:?}", outcome);
                }
                Turn::Extend(lease) => {
                    let LeaseTerms { instance, write, revision, deadline, .. } = lease.terms;
                    let service = lease.service;
                    table.handle(now, Command::Extend { service, instance, extension: Extension { write, revision, deadline } });
                }
                Turn::Close(lease) => {
                    table.handle(now, Command::Close { service: lease.service, instance: lease.terms.instance });
                }
                Turn::Disarm(lease) => {
                    table.handle(now, Command::Disarm { service: lease.service, instance: lease.terms.instance });
                }
                Turn::Stopped(lease) => drop(table.stopped(&lease.service)),
                Turn::PutBack(lease) => {
                    let service = lease.service.clone();
                    let (before, kept) = (table.entry_of(&service).cloned(), table.clone());
                    table.handle(now, Command::Arm { lease: *lease, shorter: false });
                    match before {
                        Some(before) => table.put(before),
                        None => drop(table.remove(&service)),
                    }
                    prop_assert_eq!(&table, &kept);
                }
                Turn::Restart => {
                    let (next, _) = LeaseTable::resume(now, table.entries());
                    table = next;
                }
            }
            let scan = Scan(&table);
            prop_assert_eq!(table.poll_timeout(), scan.poll_timeout());
            for dead in ["s0", "s1"] {
                let is_dead = |service: &ServiceName| service.as_str() == dead;
                prop_assert_eq!(table.at_stake(is_dead), scan.at_stake(is_dead));
            }
            match (table.patience(now), scan.patience(now)) {
                (Some(patience), Some((least, most))) => prop_assert!((least..=most).contains(&patience)),
                (patience, none) => prop_assert_eq!((patience, none), (None, None)),
            }
        }
    }

    /// A grant exists exactly while a lease is armed, open, and before its deadline; every lapse is enforced until
    /// the lease is disarmed.
    #[test]
    fn grants_and_enforcements_follow_the_leases(steps in proptest::collection::vec(step(), 0..60)) {
        let mut table = LeaseTable::default();
        let mut now = at(0);
        let (mut granted, mut enforced) = (false, false);
        for step in steps {
            let mut effects = table.expire(now);
            match step {
                Step::Wait(seconds) => {
                    now = now.plus(Duration::from_secs(seconds));
                    effects.extend(table.expire(now));
                }
                Step::Command(command) => effects.extend(table.handle(now, command).1),
                Step::Restart => {
                    (granted, enforced) = (false, false);
                    let (next, more) = LeaseTable::resume(now, table.entries());
                    table = next;
                    effects = more;
                }
                Step::Stopped => drop(table.stopped(&name("db"))),
            }
            for effect in effects {
                match effect {
                    Effect::Grant(_) => granted = true,
                    Effect::Extend(..) => prop_assert!(granted, "it never comes back"),
                    Effect::Withdraw(_) => granted = false,
                    Effect::Enforce(_) => enforced = true,
                    Effect::Forget(_) => enforced = false,
                    Effect::GiveUp(_) => prop_assert!(enforced, "it gives up only what it has tried"),
                }
            }
            let listed = listed(&mut table);
            let open = listed.iter().any(|listed| !listed.lapsed && !listed.lease.closing);
            prop_assert_eq!(granted, open);
            prop_assert_eq!(enforced, listed.iter().any(|listed| listed.lapsed));
            prop_assert!(listed.iter().all(|listed| listed.lapsed || !now.has_passed(listed.lease.terms.deadline)));
        }
    }
}
