//! The synchronous steps of one lock. The process may die after each of them.
//!
//! The proofs rest on these statements, in the terms of the parent module:
//!
//! 1. A revision is *genuine* if it was the first of its number in its lock's folder. Revision `r-0` is genuine.
//! 2. A witness `w-B` in a revision A says that A is genuine and B is its genuine successor. It is made by B's writer,
//!    in an A that this writer found genuine, or by a reader that finds it missing, in an A that itself has a witness
//!    in its predecessor. Either of them makes it *after* it saw B in its place, and under A's nonce. If A was still
//!    there then, no successor of A had ever been collected, because revisions are collected in ascending order; so B
//!    was the first of its number.
//! 3. Nobody makes a successor of B before B has its witness. So of the revisions that exist, only the highest can lack
//!    a witness: its writer has died between two steps, or is about to make the witness.
//!
//! A genuine revision stays genuine for ever, so a cache that shows an old state does no harm. One fact must be
//! current: A still exists when its witness is made. To check that, the witness is made inside A, which no cache can
//! answer.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::folder::{Folder, gone};
use super::layout::{self, IDENTITY, Nonce, VALUE};
use super::root;
use crate::store::{Attempt, StoreError, WriteOutcome};
use crate::types::{Incarnation, Key, Revision, Value};

/// How many times a read of a lock is repeated while the lock changes.
const ROUNDS: usize = 16;

/// The number of revisions that are kept, the latest included.
pub(super) const KEPT: u64 = 16;

/// The most revisions that one write collects.
const COLLECTED_AT_ONCE: usize = 4;

/// One lock in the store's folder.
#[derive(Debug)]
pub(super) struct Lock {
    root: Folder,
    /// The path of the lock's folder, relative to `root`.
    folder: PathBuf,
    key: Key,
    store: String,
}

/// The latest revision of a lock, which is genuine, and whose witness exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Top {
    pub(super) incarnation: Incarnation,
    pub(super) revision: Revision,
    pub(super) nonce: Nonce,
    /// `None` for revision 0, and where the value was not read.
    pub(super) value: Option<Value>,
}

/// The result of a rename, as it is found in the folder.
#[derive(Debug)]
pub(super) enum Placed {
    /// The revision is in its place, whatever the call answered.
    There,
    /// The revision is not in its place, and the call failed with this error.
    NotThere(io::Error),
}

/// Why a look at the lock failed.
#[derive(Debug)]
enum Fault {
    Io(PathBuf, io::Error),
    /// The files found do not fit together: the lock changed meanwhile, or it is damaged.
    Odd(String),
}

impl Lock {
    /// `store` is the id in the store's marker, as the last look found it.
    pub(super) fn new(root: Folder, key: &Key, store: &str) -> Self {
        Self { root, folder: layout::lock(Path::new(""), key), key: key.clone(), store: store.to_owned() }
    }

    /// The path of the lock's folder, and the store's folder, which contains it.
    pub(super) fn places(&self) -> (&Path, &Folder) {
        (&self.folder, &self.root)
    }

    /// The latest revision; `None` if there is no lock. Makes the witness of that revision if its writer has not made
    /// it.
    ///
    /// A lock that other users may change is an error here. Its holder goes on, because a write does not check that.
    pub(super) fn look(&self) -> Result<Option<Top>, StoreError> {
        let highest = self.highest()?;
        if highest.is_some()
            && let Ok(Some(why)) = self.root.why_not_ours(&self.folder)
        {
            return Err(StoreError::Unfit(why));
        }
        self.look_from(highest, |revision, nonce| self.value_in(&self.inner(revision, nonce)).map(Some))
    }

    /// As `look`, from the highest number that the caller has just seen. `value` reads the value, or returns `None`
    /// without reading.
    fn look_from(
        &self,
        mut highest: Option<Revision>,
        value: impl Fn(Revision, &Nonce) -> Result<Option<Value>, Fault>,
    ) -> Result<Option<Top>, StoreError> {
        let mut before = None;
        for _ in 0..ROUNDS {
            let Some(number) = highest else { return Ok(None) };
            match self.look_at(number, &value) {
                Ok(top) => return Ok(Some(top)),
                Err(Fault::Io(path, error)) => return Err(self.root.unreachable(&path, &error)),
                Err(Fault::Odd(why)) if before.as_ref() == Some(&(number, why.clone())) => {
                    return Err(self.damaged(&why));
                }
                Err(Fault::Odd(why)) => before = Some((number, why)),
            }
            highest = self.highest()?;
        }
        Err(StoreError::Unreachable(format!("{} changes faster than it can be read", self.shown())))
    }

    /// As `look`, but makes the lock if it does not exist.
    pub(super) fn look_or_make(&self) -> Result<Top, StoreError> {
        for _ in 0..ROUNDS {
            if let Some(top) = self.look()? {
                return Ok(top);
            }
            self.make()?;
        }
        Err(StoreError::Unreachable(format!("{} goes away as soon as it is made", self.shown())))
    }

    /// Takes all steps of one attempt. Nothing is put into its place after the caller has given up, because a late
    /// revision only disturbs the others.
    pub(super) fn compare_and_set(&self, attempt: &Attempt, is_awaited: impl Fn() -> bool) -> WriteOutcome {
        let unknown = |doing: &str, error: &dyn Display| WriteOutcome::Unknown(format!("failed to {doing}: {error}"));
        // The value of the base is not read: the caller, who names the base, has read it. If another revision is the
        // latest, its number is enough.
        let base = match self.highest() {
            Ok(Some(highest)) if highest != attempt.base => return WriteOutcome::Conflict,
            Ok(highest) => self.look_from(highest, |_, _| Ok(None)),
            Err(error) => Err(error),
        };
        let base = match base {
            Ok(Some(top)) => top,
            Ok(None) => return WriteOutcome::Unknown(format!("{} is not there", self.shown())),
            Err(error) => return WriteOutcome::Unknown(error.to_string()),
        };
        if base.incarnation != attempt.incarnation || base.revision != attempt.base {
            return WriteOutcome::Conflict;
        }
        let write = match Write::new(self, base.revision) {
            Ok(write) => write,
            Err(error) => return unknown("draw a random name", &error),
        };
        if let Err(error) = write.build(Some(&attempt.value)) {
            write.withdraw();
            return unknown("write the new revision", &error);
        }
        if !is_awaited() {
            write.withdraw();
            return WriteOutcome::Unknown("the caller has given up".to_owned());
        }
        match write.place() {
            Ok(Placed::There) => {}
            Ok(Placed::NotThere(error)) => {
                // Only a draft that was withdrawn, and whose place is taken, can never win.
                let lost = write.withdraw() && write.is_late();
                return if lost { WriteOutcome::Conflict } else { unknown("place the new revision", &error) };
            }
            Err(error) => return unknown("see what became of the new revision", &error),
        }
        if let Err(error) = write.witness(&base.nonce) {
            return unknown("prove the new revision", &error);
        }
        match write.seal() {
            Ok(()) => WriteOutcome::Won(write.revision()),
            Err(error) => unknown("keep the new revision", &error),
        }
    }

    /// The value that `revision` replaced; `None` if that is not certain. Both revisions must be genuine, which the
    /// witness of `revision` in its predecessor says. Both must belong to `incarnation`, which the caller read before.
    pub(super) fn replaced_by(
        &self,
        revision: Revision,
        incarnation: &Incarnation,
    ) -> Result<Option<Value>, StoreError> {
        let Some(before) = revision.0.checked_sub(1).filter(|before| *before > 0).map(Revision) else {
            return Ok(None);
        };
        let find = || {
            let replaced = self.inner(before, &self.nonce_in(before)?);
            if !self.there(&layout::witness(&replaced, &self.nonce_in(revision)?))? {
                return Ok(None);
            }
            let value = self.value_in(&replaced)?;
            Ok((self.incarnation()? == *incarnation).then_some(value))
        };
        match find() {
            Ok(value) => Ok(value),
            Err(Fault::Odd(_)) => Ok(None),
            Err(Fault::Io(path, error)) => Err(self.root.unreachable(&path, &error)),
        }
    }

    /// The highest revision number, without any proof; `None` if there is no lock, revision 0 if the lock has no
    /// revision folder at all.
    pub(super) fn highest(&self) -> Result<Option<Revision>, StoreError> {
        let names = match self.root.names(&self.folder) {
            Ok(names) => names,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                let shown = self.shown();
                return Err(StoreError::Unfit(format!("remove {shown}: it is no folder, and no link is followed")));
            }
            Err(error) => return Err(self.root.unreachable(&self.folder, &error)),
        };
        Ok(Some(names.iter().filter_map(|name| layout::revision_of(name)).max().unwrap_or_default()))
    }

    /// Collects old revisions, a few at a time and in ascending order. A revision is removed only after its
    /// predecessor: a slow writer could still make a witness in a predecessor that exists. To check that the
    /// predecessor is gone, its folder is made again: a file system may answer from a cache that a folder does not
    /// exist, but not that it could be made.
    pub(super) fn collect(&self, latest: Revision) -> io::Result<()> {
        let Some(bound) = latest.0.checked_sub(KEPT) else { return Ok(()) };
        let mut old: Vec<Revision> = self
            .root
            .names(&self.folder)?
            .iter()
            .filter_map(|name| layout::revision_of(name))
            .filter(|revision| revision.0 <= bound)
            .collect();
        old.sort_unstable();
        for revision in old.into_iter().take(COLLECTED_AT_ONCE) {
            if let Some(before) = revision.0.checked_sub(1) {
                let before = layout::revision(&self.folder, Revision(before));
                self.root.make_new(&before)?;
                self.root.remove_folder(&before)?;
            }
            gone(self.root.remove_all(&layout::revision(&self.folder, revision)))?;
        }
        Ok(())
    }

    /// Moves the lock's folder aside if it is damaged, and returns a text that says what could be read of it; `None` if
    /// it is not damaged.
    ///
    /// A writer may be working in the folder, and may keep it open where the file system allows that. So the number
    /// after the highest is taken first, and that writer finds its place taken.
    pub(super) fn put_aside(&self) -> Result<Option<String>, StoreError> {
        let Err(StoreError::Garbled(why)) = self.look() else { return Ok(None) };
        let shown = self.shown();
        let highest = self.highest()?.unwrap_or_default();
        let whose = self.last_readable(highest);
        let doing = |path: &Path| {
            let path = path.to_owned();
            move |error: io::Error| self.root.unreachable(&path, &error)
        };
        let nonce = Nonce::draw().map_err(doing(&self.folder))?;
        if let Some(next) = highest.0.checked_add(1) {
            let end = Write { lock: self, base: highest, nonce: nonce.clone() };
            end.build(None).map_err(doing(&self.folder))?;
            if let Placed::NotThere(error) = end.place().map_err(doing(&self.folder))? {
                end.withdraw();
                return Err(self.root.unreachable(&layout::revision(&self.folder, Revision(next)), &error));
            }
        }
        let aside = layout::aside(Path::new(""), &self.key, &nonce);
        if let Err(error) = self.root.rename(&self.folder, &aside)
            && !self.root.exists(&aside).unwrap_or(false)
        {
            return Err(self.root.unreachable(&self.folder, &error));
        }
        self.root.sync(Path::new("")).map_err(doing(Path::new("")))?;
        let aside = self.root.shown(&aside);
        Ok(Some(format!("{shown} was damaged ({why}); {whose}; it is kept as {}", aside.display())))
    }

    fn look_at(
        &self,
        highest: Revision,
        value: &impl Fn(Revision, &Nonce) -> Result<Option<Value>, Fault>,
    ) -> Result<Top, Fault> {
        let nonce = self.nonce_in(highest)?;
        self.settle(highest, &nonce)?;
        // The incarnation is read after the nonce: if a later step finds the nonce again, the folder was the same all
        // the time.
        let incarnation = self.incarnation()?;
        let value = if highest == Revision(0) {
            if incarnation.0 != nonce.as_str() {
                return Err(Fault::Odd("revision 0 is that of another lock".to_owned()));
            }
            None
        } else {
            value(highest, &nonce)?
        };
        Ok(Top { incarnation, revision: highest, nonce, value })
    }

    /// Makes the witness of the highest revision if it is missing.
    fn settle(&self, highest: Revision, nonce: &Nonce) -> Result<(), Fault> {
        let Some(before) = highest.0.checked_sub(1).map(Revision) else { return Ok(()) };
        let predecessor = self.nonce_in(before)?;
        let witness = layout::witness(&self.inner(before, &predecessor), nonce);
        if self.there(&witness)? {
            return Ok(());
        }
        if let Some(second) = before.0.checked_sub(1).map(Revision) {
            let proof = layout::witness(&self.inner(second, &self.nonce_in(second)?), &predecessor);
            if !self.there(&proof)? {
                return Err(Fault::Odd(format!("revision {before} has no witness, and {highest} came after it")));
            }
        }
        self.make_witness(&witness).map_err(|error| fault(&witness, error))
    }

    fn incarnation(&self) -> Result<Incarnation, Fault> {
        let path = self.folder.join(IDENTITY);
        let identity = self.file(&path)?;
        let field = |name: &str| identity.fields.get(name).map_or("", String::as_str);
        if field("key") != self.key.as_str() {
            // This also happens on a file system for which "A" and "a" are one name.
            return Err(Fault::Odd(format!("it is the lock {:?}", field("key"))));
        }
        if field("store") != self.store {
            return Err(Fault::Odd(format!("it was made in another store, {}", field("store"))));
        }
        crate::store::incarnation(field("lock")).map_err(|error| Fault::Odd(error.to_string()))
    }

    fn value_in(&self, inner: &Path) -> Result<Value, Fault> {
        self.file(&inner.join(VALUE)).map(Value::within_limit)
    }

    fn file(&self, path: &Path) -> Result<Value, Fault> {
        let bytes = self.root.read(path).map_err(|error| fault(path, error))?;
        layout::decode(&bytes).map_err(|why| Fault::Odd(format!("{} {why}", self.below(path))))
    }

    fn inner(&self, revision: Revision, nonce: &Nonce) -> PathBuf {
        layout::inner(&layout::revision(&self.folder, revision), nonce)
    }

    fn nonce_in(&self, revision: Revision) -> Result<Nonce, Fault> {
        let folder = layout::revision(&self.folder, revision);
        let names = self.root.names(&folder).map_err(|error| fault(&folder, error))?;
        let mut nonces = names.iter().filter_map(|name| Nonce::of_folder(name));
        match (nonces.next(), nonces.next()) {
            (Some(nonce), None) => Ok(nonce),
            (None, _) => Err(Fault::Odd(format!("{} is empty", self.below(&folder)))),
            (Some(_), Some(_)) => Err(Fault::Odd(format!("{} is two revisions", self.below(&folder)))),
        }
    }

    fn there(&self, path: &Path) -> Result<bool, Fault> {
        self.root.exists(path).map_err(|error| fault(path, error))
    }

    /// Makes a witness. Its name contains the nonce of the revision that it proves, so one that exists already is the
    /// same.
    fn make_witness(&self, path: &Path) -> io::Result<()> {
        match self.root.make(path) {
            Err(_) if self.root.exists(path)? => Ok(()),
            made => made,
        }
    }

    /// The full path of the lock's folder, for messages.
    fn shown(&self) -> impl Display {
        self.root.shown(&self.folder).display().to_string()
    }

    fn below(&self, path: &Path) -> String {
        path.strip_prefix(&self.folder).unwrap_or(path).display().to_string()
    }

    fn damaged(&self, why: &str) -> StoreError {
        let (key, shown) = (&self.key, self.shown());
        StoreError::Garbled(format!(
            "run \"putexctl clear --key {key}\" unless a holder mends it: {shown} is damaged: {why}"
        ))
    }

    /// Says who held the lock, by the highest revision that can be read.
    fn last_readable(&self, highest: Revision) -> String {
        let readable = (0..KEPT).filter_map(|back| highest.0.checked_sub(back)).find_map(|number| {
            let revision = Revision(number);
            let value = self.value_in(&self.inner(revision, &self.nonce_in(revision).ok()?)).ok()?;
            let holder = String::from_utf8_lossy(&value.body).trim().to_owned();
            let holder = if holder.is_empty() { "nobody's".to_owned() } else { format!("{holder}'s") };
            Some(format!("by its revision {number} of {highest} it was {holder}"))
        });
        readable.unwrap_or_else(|| "whose it was cannot be read".to_owned())
    }

    /// Builds the lock's folder aside and renames it into place. An error counts for nothing if the folder exists
    /// afterwards, whoever made it.
    fn make(&self) -> Result<(), StoreError> {
        // Where the share is not mounted any more there may be an empty folder, in which no lock may be made.
        if root::store_id(&self.root)? != self.store {
            return Err(StoreError::Unreachable(format!(
                "{} has become another store",
                self.root.shown(Path::new("")).display()
            )));
        }
        let made = || {
            let (nonce, id) = (Nonce::draw()?, Nonce::draw()?);
            let draft = layout::draft(Path::new(""), &nonce);
            let first = layout::revision(&draft, Revision(0));
            let inner = layout::inner(&first, &id);
            for folder in [&draft, &first, &inner] {
                self.root.make(folder)?;
            }
            let fields = [("key", self.key.as_str()), ("lock", id.as_str()), ("store", &self.store)];
            let fields = fields.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
            self.root.write(&draft.join(IDENTITY), &Value { body: Vec::new(), fields })?;
            for folder in [&inner, &first, &draft] {
                self.root.sync(folder)?;
            }
            let renamed = self.root.rename(&draft, &self.folder);
            if renamed.is_err() {
                self.root.discard(Path::new(""), &draft);
                if !self.root.exists(&self.folder)? {
                    return renamed;
                }
            }
            self.root.sync(Path::new(""))
        };
        made().map_err(|error| self.root.unreachable(&self.folder, &error))
    }
}

/// One compare-and-set, step by step.
#[derive(Debug)]
pub(super) struct Write<'a> {
    lock: &'a Lock,
    base: Revision,
    nonce: Nonce,
}

impl<'a> Write<'a> {
    pub(super) fn new(lock: &'a Lock, base: Revision) -> io::Result<Self> {
        Ok(Self { lock, base, nonce: Nonce::draw()? })
    }

    /// Step 1: builds the whole revision beside the others. Nobody reads it there.
    pub(super) fn build(&self, value: Option<&Value>) -> io::Result<()> {
        let draft = self.draft();
        let inner = layout::inner(&draft, &self.nonce);
        let root = &self.lock.root;
        root.make(&draft)?;
        root.make(&inner)?;
        if let Some(value) = value {
            root.write(&inner.join(VALUE), value)?;
        }
        root.sync(&inner)?;
        root.sync(&draft)
    }

    /// Step 2: renames the draft into its place, which must be free. A call that was repeated on its way reports that
    /// the draft is gone, or that the place is taken, although the first one succeeded. So after an error the folder
    /// itself is looked at.
    pub(super) fn place(&self) -> io::Result<Placed> {
        let folder = layout::revision(&self.lock.folder, self.revision());
        match self.lock.root.rename(&self.draft(), &folder) {
            Ok(()) => Ok(Placed::There),
            Err(_) if self.lock.root.exists(&layout::inner(&folder, &self.nonce))? => Ok(Placed::There),
            Err(error) => Ok(Placed::NotThere(error)),
        }
    }

    /// Step 3: proves that the base still existed. Without this step a writer could sleep while its base was replaced
    /// and all revisions up to its successor were collected, and would then make that successor a second time.
    pub(super) fn witness(&self, base: &Nonce) -> io::Result<()> {
        self.lock.make_witness(&layout::witness(&self.lock.inner(self.base, base), &self.nonce))
    }

    /// Step 4: makes the revision outlive a power loss. The first revision also syncs the name of the lock's folder.
    pub(super) fn seal(&self) -> io::Result<()> {
        self.lock.root.sync(&self.lock.folder)?;
        if self.base == Revision(0) { self.lock.root.sync(Path::new("")) } else { Ok(()) }
    }

    /// Instead of step 3: takes the draft's name from it, in one step. `true`: the draft was never put into its place
    /// and never will be, even if a call for it is still under way.
    pub(super) fn withdraw(&self) -> bool {
        let root = &self.lock.root;
        let Some(discarded) = root.take_name(&self.lock.folder, &self.draft()) else { return false };
        // The contents are known, so they are removed one by one. What remains is swept later.
        let inner = layout::inner(&discarded, &self.nonce);
        let removed = root.remove_file(&inner.join(VALUE)).and_then(|()| root.remove_folder(&inner));
        let _ = removed.and_then(|()| root.remove_folder(&discarded));
        true
    }

    /// For a write that was withdrawn: whether another revision is, or was, in its place.
    pub(super) fn is_late(&self) -> bool {
        self.lock.highest().is_ok_and(|highest| highest >= Some(self.revision()))
    }

    pub(super) fn revision(&self) -> Revision {
        Revision(self.base.0.saturating_add(1))
    }

    fn draft(&self) -> PathBuf {
        layout::draft(&self.lock.folder, &self.nonce)
    }
}

fn fault(path: &Path, error: io::Error) -> Fault {
    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory) {
        return Fault::Odd(format!("{}: {error}", path.display()));
    }
    Fault::Io(path.to_owned(), error)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::types::WriteId;

    fn opened(folder: &TempDir) -> Folder {
        Folder::open(folder.path(), None).expect("it is there")
    }

    fn lock() -> (TempDir, Lock) {
        // The folder is in memory where that is possible: the tests write often, and do not test the disk.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
        let (store, _) = root::make(&opened(&folder)).expect("a store");
        let lock = Lock::new(opened(&folder), &Key::new("db").expect("a key"), &store);
        lock.look_or_make().expect("a lock");
        (folder, lock)
    }

    fn value(body: &str) -> Value {
        Value { body: body.into(), ..Value::default() }
    }

    fn top(lock: &Lock) -> Top {
        lock.look().expect("it can be read").expect("there is a lock")
    }

    fn attempt(top: &Top, body: &str) -> Attempt {
        let Top { incarnation, revision, .. } = top.clone();
        Attempt { base: revision, incarnation, write: WriteId(1), value: value(body) }
    }

    /// Writes over whatever is there, and collects.
    fn go_on(lock: &Lock, writes: usize) -> Top {
        for _ in 0..writes {
            let outcome = lock.compare_and_set(&attempt(&top(lock), "other"), || true);
            let WriteOutcome::Won(revision) = outcome else { panic!("{outcome:?}") };
            lock.collect(revision).expect("the old ones go");
        }
        top(lock)
    }

    fn revisions(lock: &Lock) -> Vec<u64> {
        let names = lock.root.names(&lock.folder).expect("names");
        let mut revisions: Vec<u64> = names.iter().filter_map(|name| Some(layout::revision_of(name)?.0)).collect();
        revisions.sort_unstable();
        revisions
    }

    /// A writer that dies after `steps` steps.
    fn dies_after<'a>(lock: &'a Lock, base: &Top, steps: usize) -> Write<'a> {
        let write = Write::new(lock, base.revision).expect("a name");
        let doing: [&dyn Fn(); 4] = [
            &|| write.build(Some(&value("dead"))).expect("built"),
            &|| assert!(matches!(write.place(), Ok(Placed::There))),
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
                let expected = if steps >= 2 { base.revision.0 + 1 } else { base.revision.0 };
                assert_eq!(found.revision.0, expected, "died after {steps} of {writes_before}");
                if steps >= 2 {
                    assert_eq!(found.value, Some(value("dead")));
                    // What the revision replaced is known too, although its writer died before it proved that.
                    let replaced = lock.replaced_by(found.revision, &found.incarnation).expect("it can be read");
                    assert_eq!(replaced, base.value);
                }
                let after = go_on(&lock, 40);
                assert_eq!(after.revision.0, expected + 40);
                assert_eq!(revisions(&lock), (after.revision.0 - KEPT + 1..=after.revision.0).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_slow_writer_whose_place_was_collected_takes_it_again_and_has_not_won() {
        for writes_before in [0, 1, 5] {
            let (_folder, lock) = lock();
            let base = go_on(&lock, writes_before);
            let slow = Write::new(&lock, base.revision).expect("a name");
            slow.build(Some(&value("slow"))).expect("built");
            let after = go_on(&lock, 40);
            // The number is free again. Without step 3 the slow writer would be the second winner of this number.
            assert!(matches!(slow.place(), Ok(Placed::There)));
            assert_eq!(slow.witness(&base.nonce).expect_err("too late").kind(), ErrorKind::NotFound);

            // Nobody else can prove the slow writer's revision, or take it for genuine.
            assert_eq!(top(&lock), after);
            assert_eq!(lock.replaced_by(slow.revision(), &after.incarnation), Ok(None));
            let second = Write::new(&lock, slow.revision()).expect("a name");
            second.build(Some(&value("slower"))).expect("built");
            assert!(matches!(second.place(), Ok(Placed::There)));
            assert_eq!(lock.replaced_by(second.revision(), &after.incarnation), Ok(None));
            let error = lock.settle(second.revision(), &second.nonce).expect_err("it is not genuine");
            assert!(matches!(error, Fault::Odd(_)), "{error:?}");
            let last = go_on(&lock, 8);
            assert_eq!(revisions(&lock), (last.revision.0 - KEPT + 1..=last.revision.0).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_witness_under_the_number_alone_would_let_a_slow_writer_win() {
        let (_folder, lock) = lock();
        let base = go_on(&lock, 5);
        let [first, second] = [0, 1].map(|ahead| {
            let write = Write::new(&lock, Revision(base.revision.0 + ahead)).expect("a name");
            write.build(Some(&value("slow"))).expect("built");
            write
        });
        let genuine = top_after(&lock, &first);
        go_on(&lock, 40);
        assert!(matches!(first.place(), Ok(Placed::There)));
        assert!(matches!(second.place(), Ok(Placed::There)));
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
        abandoned.build(Some(&value("late"))).expect("built");
        assert_eq!(lock.compare_and_set(&attempt(&base, "never"), || false), given_up());
        let after = go_on(&lock, 1);
        assert!(matches!(abandoned.place(), Ok(Placed::NotThere(_))));
        assert!(abandoned.withdraw() && abandoned.is_late());
        assert_eq!(top(&lock), after);

        // If nothing came before it, the revision is applied late: the outcome `Unknown` was right.
        let abandoned = Write::new(&lock, after.revision).expect("a name");
        abandoned.build(Some(&value("late"))).expect("built");
        assert_eq!(top(&lock), after);
        assert!(matches!(abandoned.place(), Ok(Placed::There)));
        assert_eq!(top(&lock).value, Some(value("late")));
        assert!(!abandoned.withdraw());
    }

    /// The revision that another writer makes at the number that `slow` wants.
    fn top_after(lock: &Lock, slow: &Write) -> Top {
        let top = go_on(lock, 1);
        assert_eq!(top.revision, slow.revision());
        top
    }

    fn given_up() -> WriteOutcome {
        WriteOutcome::Unknown("the caller has given up".to_owned())
    }

    #[test]
    fn a_withdrawn_draft_cannot_be_placed() {
        let (_folder, lock) = lock();
        let base = top(&lock);
        let write = Write::new(&lock, base.revision).expect("a name");
        write.build(Some(&value("a"))).expect("built");
        assert!(write.withdraw());
        assert!(!write.is_late());
        assert!(matches!(write.place(), Ok(Placed::NotThere(_))));
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
        lock.root.remove_file(&inner.join(VALUE)).expect("half of it");
        let after = go_on(&lock, 4);
        assert_eq!(revisions(&lock), (after.revision.0 - KEPT + 1..=after.revision.0).collect::<Vec<_>>());
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
        assert_eq!(lock.compare_and_set(&attempt(&old, "a"), || true), WriteOutcome::Conflict);
        // The slow writer looked before the lock was deleted.
        slow.build(Some(&value("slow"))).expect("built");
        assert!(matches!(slow.place(), Ok(Placed::There)));
        assert!(slow.witness(&old.nonce).is_err());
    }

    #[test]
    fn a_damaged_lock_is_said_to_be_and_is_put_aside_with_its_holder_told() {
        let (folder, lock) = lock();
        let damaged = go_on(&lock, 20);
        assert_eq!(lock.put_aside(), Ok(None));
        let path = lock.root.shown(&lock.inner(damaged.revision, &damaged.nonce).join(VALUE));
        std::fs::write(&path, &layout::encode(&value("h1"))[..20]).expect("cut short");
        let error = lock.look().expect_err("damaged");
        assert!(matches!(&error, StoreError::Garbled(why) if why.contains("putexctl clear")), "{error}");

        let late = Write::new(&lock, damaged.revision).expect("a name");
        late.build(Some(&value("late"))).expect("built");
        let told = lock.put_aside().expect("it is put aside").expect("it was damaged");
        assert!(told.contains("revision 19 of 20 it was other's"), "{told}");
        assert_eq!(lock.look(), Ok(None));
        // A writer that keeps the old folder open finds the next number taken.
        let names = lock.root.names(Path::new("")).expect("names");
        let aside = names.iter().find(|name| name.starts_with("x-db-")).expect("it is kept");
        assert!(folder.path().join(aside).join("r-00000000000000000021").is_dir());
        assert_ne!(lock.look_or_make().expect("a lock").incarnation, damaged.incarnation);
        assert!(matches!(late.place(), Ok(Placed::NotThere(_))));
    }

    #[test]
    fn names_that_differ_in_case_alone_and_locks_of_other_stores_are_noticed() {
        let (folder, lock) = lock();
        let upper = Lock::new(opened(&folder), &Key::new("DB").expect("a key"), &lock.store);
        let Lock { key, store, .. } = lock;
        let foreign = Lock { store: "another".to_owned(), ..Lock::new(opened(&folder), &key, &store) };
        assert!(matches!(foreign.look(), Err(StoreError::Garbled(why)) if why.contains("another store")));
        upper.root.rename(&foreign.folder, &upper.folder).expect("one name for both");
        assert!(matches!(upper.look(), Err(StoreError::Garbled(why)) if why.contains("it is the lock \"db\"")));
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
        assert!(matches!(&error, StoreError::Unfit(why) if why.contains("run \"chmod go-w ")), "{error}");
        assert_eq!(lock.compare_and_set(&attempt(&held, "on"), || true), WriteOutcome::Won(Revision(2)));
        rights(0o700);
        assert_eq!(top(&lock).revision, Revision(2));

        let elsewhere = folder.path().join("elsewhere");
        std::fs::rename(&place, &elsewhere).expect("it is moved");
        std::os::unix::fs::symlink(&elsewhere, &place).expect("a link");
        let error = lock.look_or_make().expect_err("it is a link");
        assert!(matches!(&error, StoreError::Unfit(why) if why.contains("no link is followed")), "{error}");
        let outcome = lock.compare_and_set(&attempt(&held, "through"), || true);
        assert!(matches!(outcome, WriteOutcome::Unknown(_)), "{outcome:?}");
        assert!(lock.collect(Revision(40)).is_err());
        assert!(elsewhere.join("r-00000000000000000002").is_dir());
    }
}
