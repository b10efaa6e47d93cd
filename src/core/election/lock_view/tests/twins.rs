//! Records in this host's own name.

use super::*;

/// A lock whose record, in the name of h1, changes every second; each change has the machine and instance given. Returns for each
/// change which other machine it shows. This host is h1, and has had the instances 7 and 8.
fn changes(of: &[(u128, u128)]) -> (LockView, Vec<Option<MachineId>>) {
    let mut lock = LockView::new(Duration::ZERO, None);
    let shown = (10..).zip(of).map(|(second, &(machine, instance))| {
        let mut observation = shows(second, instance, Standing::Active, second - 1);
        if let Content::Record(Record {
            details: Some(details),
            ..
        }) = &mut observation.content
        {
            details.machine = MachineId(machine);
        }
        lock.observe(observation, at(second), at(second), &timings(), None);
        twin(&lock, at(second))
    });
    let shown = shown.collect();
    (lock, shown)
}

fn twin(lock: &LockView, now: Time) -> Option<MachineId> {
    let node = NodeId::new("h1").expect("a node name");
    let own = [Some(Instance(7)), Some(Instance(8))];
    lock.duplicate(&node, &own, now, &timings())
}

#[test]
fn a_twin_is_a_machine_that_keeps_changing_a_record_in_our_name() {
    let (lock, shown) = changes(&[(2, 9), (2, 9), (2, 9), (2, 9)]);
    let other = Some(MachineId(2));
    assert_eq!(shown, [None, None, other, other]);
    let quiet = at(13).plus(timings().takeover_wait(Duration::ZERO));
    assert_eq!(twin(&lock, quiet), None);
}

#[test]
fn own_writes_are_no_twins_whatever_became_of_them() {
    for instance in [7, 8] {
        let (_, shown) = changes(&[(1, instance), (1, instance), (1, instance)]);
        assert_eq!(shown, [None; 3]);
    }
}

#[test]
fn words_that_are_written_into_a_record_are_no_twin() {
    let (mut lock, _) = changes(&[(2, 9), (2, 9)]);
    let mut observation = shows(11, 9, Standing::Active, 10);
    observation.revision = Revision(12);
    if let Content::Record(Record {
        details: Some(details),
        ..
    }) = &mut observation.content
    {
        details.machine = MachineId(2);
        details.note.reason = Some("words".to_owned());
    }
    lock.observe(observation, at(12), at(12), &timings(), None);
    assert_eq!(twin(&lock, at(12)), None);
}

#[test]
fn nothing_is_asked_about_what_may_be_a_copy_from_the_past() {
    let mut lock = LockView::new(Duration::ZERO, None);
    lock.observe(
        shows(6, 7, Standing::Proven, 5),
        at(10),
        at(10),
        &timings(),
        None,
    );
    assert_eq!(lock.question(), None);
    assert_eq!(claim(&lock).entitled_at, at(10).plus(timings().wait(HOLD)));
}
