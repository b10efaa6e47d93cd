//! The steps of one lock, each of which may be the last.

use tempfile::TempDir;

use super::*;
use crate::types::WriteId;

fn opened(folder: &TempDir) -> Folder {
    Folder::open(folder.path(), None).expect("it is there")
}

fn lock() -> (TempDir, Lock) {
    // The folder is in memory where that is possible: the tests write often, and do not test the disk.
    let folder = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a folder");
    let (store, _) = root::make(&opened(&folder)).expect("a store");
    let lock = Lock::new(opened(&folder), Key::new("db").expect("a key"), store);
    lock.look_or_make().expect("a lock");
    (folder, lock)
}

fn value(body: &str) -> Value {
    Value {
        body: body.into(),
        ..Value::default()
    }
}

fn top(lock: &Lock) -> Top {
    lock.look()
        .expect("it can be read")
        .expect("there is a lock")
}

fn attempt(top: &Top, body: &str) -> Attempt {
    let Top {
        incarnation,
        revision,
        ..
    } = top.clone();
    Attempt {
        base: revision,
        incarnation,
        write: WriteId(1),
        value: value(body),
    }
}

/// Writes over whatever is there, and collects.
fn go_on(lock: &Lock, writes: usize) -> Top {
    for _ in 0..writes {
        let outcome = lock.compare_and_set(&attempt(&top(lock), "other"), || true);
        let Ok(WriteOutcome::Won(revision)) = outcome else {
            panic!("{outcome:?}")
        };
        lock.collect(revision).expect("the old ones go");
    }
    top(lock)
}

fn revisions(lock: &Lock) -> Vec<u64> {
    let names = lock.root.names(&lock.folder).expect("names");
    let mut revisions: Vec<u64> = names
        .iter()
        .filter_map(|name| Some(layout::revision_of(name)?.0))
        .collect();
    revisions.sort_unstable();
    revisions
}

/// A writer that dies after `steps` steps.
fn dies_after<'a>(lock: &'a Lock, base: &Top, steps: usize) -> Write<'a> {
    let write = Write::new(lock, base.revision).expect("a name");
    let doing: [&dyn Fn(); 4] = [
        &|| write.build(&value("dead")).expect("built"),
        &|| assert!(write.place().is_ok()),
        &|| write.witness(&base.nonce).expect("the base is there"),
        &|| write.seal().expect("sealed"),
    ];
    for step in &doing[..steps] {
        step();
    }
    write
}

#[test]
fn a_writer_may_die_after_each_step_and_the_others_go_on() {
    for writes_before in [0, 1, 40] {
        for steps in 0..=4 {
            let (_folder, lock) = lock();
            let base = go_on(&lock, writes_before);
            dies_after(&lock, &base, steps);
            let found = top(&lock);
            let expected = if steps >= 2 {
                base.revision.0 + 1
            } else {
                base.revision.0
            };
            assert_eq!(
                found.revision.0, expected,
                "died after {steps} of {writes_before}"
            );
            if steps >= 2 {
                assert_eq!(found.value, Some(value("dead")));
                // What the revision replaced is known too, although its writer died before it proved that.
                let replaced = lock
                    .replaced_by(found.revision, &found.incarnation)
                    .expect("it can be read");
                assert_eq!(replaced, base.value);
            }
            let after = go_on(&lock, 40);
            assert_eq!(after.revision.0, expected + 40);
            assert_eq!(
                revisions(&lock),
                (after.revision.0 - KEPT + 1..=after.revision.0).collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn a_slow_writer_whose_place_was_collected_takes_it_again_and_has_not_won() {
    for writes_before in [0, 1, 5] {
        let (_folder, lock) = lock();
        let base = go_on(&lock, writes_before);
        let slow = Write::new(&lock, base.revision).expect("a name");
        slow.build(&value("slow")).expect("built");
        let after = go_on(&lock, 40);
        // The number is free again. Without step 3 the slow writer would be the second winner of this number.
        assert!(slow.place().is_ok());
        assert_eq!(
            slow.witness(&base.nonce).expect_err("too late").kind(),
            ErrorKind::NotFound
        );

        // Nobody else can prove the slow writer's revision, or take it for genuine.
        assert_eq!(top(&lock), after);
        assert_eq!(
            lock.replaced_by(slow.revision(), &after.incarnation),
            Ok(None)
        );
        let second = Write::new(&lock, slow.revision()).expect("a name");
        second.build(&value("slower")).expect("built");
        assert!(second.place().is_ok());
        assert_eq!(
            lock.replaced_by(second.revision(), &after.incarnation),
            Ok(None)
        );
        let error = lock
            .settle(second.revision(), &second.nonce)
            .expect_err("it is not genuine");
        assert!(is_odd(&error), "{error:?}");
        let last = go_on(&lock, 8);
        assert_eq!(
            revisions(&lock),
            (last.revision.0 - KEPT + 1..=last.revision.0).collect::<Vec<_>>()
        );
    }
}

#[test]
fn a_witness_under_the_number_alone_would_let_a_slow_writer_win() {
    let (_folder, lock) = lock();
    let base = go_on(&lock, 5);
    let [first, second] = [0, 1].map(|ahead| {
        let write = Write::new(&lock, Revision(base.revision.0 + ahead)).expect("a name");
        write.build(&value("slow")).expect("built");
        write
    });
    let genuine = top_after(&lock, &first);
    go_on(&lock, 40);
    assert!(first.place().is_ok());
    assert!(second.place().is_ok());
    // The number of the second writer's base exists again, and would take a witness. Only the nonce distinguishes
    // it from the genuine one.
    assert!(second.witness(&first.nonce).is_ok());
    assert!(second.witness(&genuine.nonce).is_err());
}

#[test]
fn a_late_rename_of_one_who_gave_up_loses_against_what_came_before_it() {
    let (_folder, lock) = lock();
    let base = go_on(&lock, 3);
    let abandoned = Write::new(&lock, base.revision).expect("a name");
    abandoned.build(&value("late")).expect("built");
    let outcome = lock.compare_and_set(&attempt(&base, "never"), || false);
    assert!(outcome.is_err(), "{outcome:?}");
    let after = go_on(&lock, 1);
    assert!(abandoned.place().is_err());
    assert!(abandoned.withdraw() && abandoned.is_late());
    assert_eq!(top(&lock), after);

    // If nothing came before it, the revision is applied late: the outcome `Unknown` was right.
    let abandoned = Write::new(&lock, after.revision).expect("a name");
    abandoned.build(&value("late")).expect("built");
    assert_eq!(top(&lock), after);
    assert!(abandoned.place().is_ok());
    assert_eq!(top(&lock).value, Some(value("late")));
    assert!(!abandoned.withdraw());
}

/// The revision that another writer makes at the number that `slow` wants.
fn top_after(lock: &Lock, slow: &Write) -> Top {
    let top = go_on(lock, 1);
    assert_eq!(top.revision, slow.revision());
    top
}

#[test]
fn a_withdrawn_draft_cannot_be_placed() {
    let (_folder, lock) = lock();
    let base = top(&lock);
    let write = Write::new(&lock, base.revision).expect("a name");
    write.build(&value("a")).expect("built");
    assert!(write.withdraw());
    assert!(!write.is_late());
    assert!(write.place().is_err());
    assert_eq!(top(&lock), base);
}

#[test]
fn one_who_stops_while_collecting_leaves_it_to_the_next() {
    let (_folder, lock) = lock();
    go_on(&lock, 16);
    let folder = |number| layout::revision(&lock.folder, Revision(number));
    // Half of revision 1 is gone, and the empty folder of revision 0, which the collector made as a check, still
    // exists.
    lock.root.make_new(&folder(0)).expect("it was collected");
    let inner = lock.inner(Revision(1), &lock.nonce_in(Revision(1)).expect("a nonce"));
    std::fs::remove_file(lock.root.shown(&inner.join(VALUE))).expect("half of it");
    let after = go_on(&lock, 4);
    assert_eq!(
        revisions(&lock),
        (after.revision.0 - KEPT + 1..=after.revision.0).collect::<Vec<_>>()
    );
}

#[test]
fn a_lock_made_anew_is_another_incarnation_even_at_revision_0() {
    let (_folder, lock) = lock();
    let old = top(&lock);
    let slow = Write::new(&lock, old.revision).expect("a name");
    lock.root.remove_all(&lock.folder).expect("deleted");
    assert_eq!(lock.look(), Ok(None));
    let new = lock.look_or_make().expect("a lock");
    assert_ne!(new.incarnation, old.incarnation);
    assert_eq!(
        lock.compare_and_set(&attempt(&old, "a"), || true),
        Ok(WriteOutcome::Conflict)
    );
    // The slow writer looked before the lock was deleted.
    slow.build(&value("slow")).expect("built");
    assert!(slow.place().is_ok());
    assert!(slow.witness(&old.nonce).is_err());
}

#[test]
fn a_damaged_lock_is_said_to_be_and_may_be_moved_away() {
    let (folder, lock) = lock();
    let damaged = go_on(&lock, 20);
    let path = lock
        .root
        .shown(&lock.inner(damaged.revision, &damaged.nonce).join(VALUE));
    std::fs::write(&path, &layout::encode(&value("h1"))[..20]).expect("cut short");
    let error = lock.look().expect_err("damaged");
    assert!(
        matches!(&error, StoreError::Garbled(why) if why.starts_with("run \"mv ")),
        "{error}"
    );

    let late = Write::new(&lock, damaged.revision).expect("a name");
    late.build(&value("late")).expect("built");
    let moved = folder.path().join("x-db");
    std::fs::rename(folder.path().join("lock-db"), moved).expect("it is put aside");
    assert_eq!(lock.look(), Ok(None));
    assert_ne!(
        lock.look_or_make().expect("a lock").incarnation,
        damaged.incarnation
    );
    assert!(late.place().is_err());
}

#[test]
fn names_that_differ_in_case_alone_and_locks_of_other_stores_are_noticed() {
    let (folder, lock) = lock();
    let upper = Lock::new(
        opened(&folder),
        Key::new("DB").expect("a key"),
        lock.store.clone(),
    );
    let Lock { key, store, .. } = lock;
    let foreign = Lock {
        store: "another".to_owned(),
        ..Lock::new(opened(&folder), key, store)
    };
    assert!(
        matches!(foreign.look(), Err(StoreError::Garbled(why)) if why.contains("another store"))
    );
    upper
        .root
        .rename(&foreign.folder, &upper.folder)
        .expect("one name for both");
    assert!(
        matches!(upper.look(), Err(StoreError::Garbled(why)) if why.contains("it is the lock \"db\""))
    );
}

#[test]
fn a_lock_that_is_a_link_or_that_others_may_change_is_not_believed_and_its_holder_goes_on() {
    let (folder, lock) = lock();
    let held = go_on(&lock, 1);
    let place = lock.root.shown(&lock.folder);
    let rights = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&place, mode).expect("its mode");
    };
    rights(0o777);
    let error = lock.look().expect_err("it is anybody's");
    assert!(
        matches!(&error, StoreError::Unfit(why) if why.contains("run \"chmod go-w ")),
        "{error}"
    );
    assert_eq!(
        lock.compare_and_set(&attempt(&held, "on"), || true),
        Ok(WriteOutcome::Won(Revision(2)))
    );
    rights(0o700);
    assert_eq!(top(&lock).revision, Revision(2));

    let elsewhere = folder.path().join("elsewhere");
    std::fs::rename(&place, &elsewhere).expect("it is moved");
    std::os::unix::fs::symlink(&elsewhere, &place).expect("a link");
    let error = lock.look_or_make().expect_err("it is a link");
    assert!(
        matches!(&error, StoreError::Unfit(why) if why.contains("no link is followed")),
        "{error}"
    );
    let outcome = lock.compare_and_set(&attempt(&held, "through"), || true);
    assert!(outcome.is_err(), "{outcome:?}");
    assert!(lock.collect(Revision(40)).is_err());
    assert!(elsewhere.join("r-00000000000000000002").is_dir());
}
