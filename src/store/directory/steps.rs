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

use std::{
    fmt::Display,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use super::{
    folder::Folder,
    layout::{self, IDENTITY, VALUE},
    root,
};
use crate::{
    host::files::gone,
    store::{Attempt, Entry, Result, Snapshot, StoreError, WriteOutcome, random_name},
    types::{Incarnation, Key, Revision, Value},
};

/// How many times a read of a lock is repeated while the lock changes.
const ROUNDS: usize = 16;

/// The number of revisions that are kept, the latest included.
pub const KEPT: u64 = 16;

/// The most revisions that one write collects.
const COLLECTED_AT_ONCE: usize = 4;

/// One lock in the store's folder.
pub struct Lock {
    pub root: Folder,
    /// The path of the lock's folder, relative to `root`.
    pub folder: PathBuf,
    key: Key,
    store: String,
}

/// The latest revision of a lock, which is genuine, and whose witness exists.
#[derive(Debug, Clone, PartialEq)]
pub struct Top {
    pub incarnation: Incarnation,
    pub revision: Revision,
    pub nonce: String,
    /// `None` for revision 0, and where the value was not read.
    pub value: Option<Value>,
}

/// The files found do not fit together: the lock changed meanwhile, or it is damaged.
fn odd(why: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why.into())
}

/// Whether the files found do not fit together; else the file system has failed.
fn is_odd(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidData
            | ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
    )
}

impl Lock {
    /// `store` is the id in the store's marker, as the last look found it.
    pub fn new(root: Folder, key: Key, store: String) -> Self {
        Self {
            root,
            folder: layout::lock(&key),
            key,
            store,
        }
    }

    /// As [`Store::read`](crate::store::Store::read).
    pub fn snapshot(&self, before: Option<Revision>) -> Result<Snapshot> {
        let top = self.look_or_make()?;
        let (revision, value) = match before {
            Some(revision) if revision <= top.revision => {
                let value = self.replaced_by(revision, &top.incarnation)?;
                (Revision(revision.0.saturating_sub(1)), value)
            }
            Some(revision) => (revision, None),
            None => (top.revision, top.value),
        };
        Ok(Snapshot {
            incarnation: top.incarnation,
            entry: value.map(|value| Entry {
                revision,
                value: Some(value),
            }),
        })
    }

    /// The latest revision; `None` if there is no lock. Makes the witness of that revision if its writer has not made
    /// it.
    ///
    /// A lock that other users may change is an error here. Its holder goes on, because a write does not check that.
    pub fn look(&self) -> Result<Option<Top>> {
        let highest = self.highest()?;
        if highest.is_some()
            && let Ok(Some(why)) = self.root.why_not_ours(&self.folder)
        {
            return Err(StoreError::Unfit(why));
        }
        self.look_from(highest, true)
    }

    /// As `look`, from the highest number that the caller has just seen.
    fn look_from(&self, mut highest: Option<Revision>, with_value: bool) -> Result<Option<Top>> {
        let mut before = None;
        for _ in 0..ROUNDS {
            let Some(number) = highest else {
                return Ok(None);
            };
            match self.look_at(number, with_value) {
                Ok(top) => return Ok(Some(top)),
                Err(error) if !is_odd(&error) => return Err(error.into()),
                Err(error) => {
                    let found = Some((number, error.to_string()));
                    if found == before {
                        return Err(self.damaged(&error.to_string()));
                    }
                    before = found;
                }
            }
            highest = self.highest()?;
        }
        Err(StoreError::Unreachable(format!(
            "{} changes faster than it can be read",
            self.shown()
        )))
    }

    /// As `look`, but makes the lock if it does not exist.
    pub fn look_or_make(&self) -> Result<Top> {
        if let Some(top) = self.look()? {
            return Ok(top);
        }
        self.make()?;
        self.look()?.ok_or_else(|| {
            let why = format!("{} goes away as soon as it is made", self.shown());
            StoreError::Unreachable(why)
        })
    }

    /// Takes all steps of one attempt. Nothing is put into its place after the caller has given up, because a late
    /// revision only disturbs the others.
    pub fn compare_and_set(
        &self,
        attempt: &Attempt,
        is_awaited: impl Fn() -> bool,
    ) -> Result<WriteOutcome> {
        let unproven = |why: &dyn Display| StoreError::Unproven(format!("failed to write: {why}"));
        let failed = |error: io::Error| unproven(&error);
        // The value of the base is not read: the caller, who names the base, has read it. If another revision is the
        // latest, its number is enough.
        let highest = self.highest()?;
        if highest.is_some_and(|highest| highest != attempt.base) {
            return Ok(WriteOutcome::Conflict);
        }
        let base = self
            .look_from(highest, false)?
            .ok_or_else(|| unproven(&"the lock is not there"))?;
        if base.incarnation != attempt.incarnation || base.revision != attempt.base {
            return Ok(WriteOutcome::Conflict);
        }
        let write = Write::new(self, base.revision).map_err(failed)?;
        let built = write.build(&attempt.value).map_err(failed);
        if built.is_err() || !is_awaited() {
            write.withdraw();
            return built.and_then(|()| Err(unproven(&"the caller has given up")));
        }
        if let Err(error) = write.place() {
            // Only a draft that was withdrawn, and whose place is taken, can never win.
            return if write.withdraw() && write.is_late() {
                Ok(WriteOutcome::Conflict)
            } else {
                Err(failed(error))
            };
        }
        write.witness(&base.nonce).map_err(failed)?;
        write.seal().map_err(failed)?;
        Ok(WriteOutcome::Won(write.revision()))
    }

    /// The value that `revision` replaced; `None` if that is not certain. Both revisions must be genuine, which the
    /// witness of `revision` in its predecessor says. Both must belong to `incarnation`, which the caller read before.
    pub fn replaced_by(
        &self,
        revision: Revision,
        incarnation: &Incarnation,
    ) -> Result<Option<Value>> {
        let Some(before) = revision
            .0
            .checked_sub(1)
            .filter(|before| *before > 0)
            .map(Revision)
        else {
            return Ok(None);
        };
        let find = || {
            let replaced = self.inner(before, &self.nonce_in(before)?);
            if !self
                .root
                .exists(&layout::witness(&replaced, &self.nonce_in(revision)?))?
            {
                return Ok(None);
            }
            let value = self.value_in(&replaced)?;
            Ok((self.incarnation()? == *incarnation).then_some(value))
        };
        match find() {
            Ok(value) => Ok(value),
            Err(error) if is_odd(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The highest revision number, without any proof; `None` if there is no lock, revision 0 if the lock has no
    /// revision folder at all.
    pub fn highest(&self) -> Result<Option<Revision>> {
        let names = match self.root.names(&self.folder) {
            Ok(names) => names,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                return Err(StoreError::Unfit(format!(
                    "remove {}: it is no folder, and no link is followed",
                    self.shown()
                )));
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Some(layout::highest_of(&names)))
    }

    /// Collects old revisions, a few at a time and in ascending order. A revision is removed only after its
    /// predecessor: a slow writer could still make a witness in a predecessor that exists. To check that the
    /// predecessor is gone, its folder is made again: a file system may answer from a cache that a folder does not
    /// exist, but not that it could be made.
    pub fn collect(&self, latest: Revision) -> io::Result<()> {
        let Some(bound) = latest.0.checked_sub(KEPT) else {
            return Ok(());
        };
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
            gone(
                self.root
                    .remove_all(&layout::revision(&self.folder, revision)),
            )?;
        }
        Ok(())
    }

    fn look_at(&self, highest: Revision, with_value: bool) -> io::Result<Top> {
        let nonce = self.nonce_in(highest)?;
        self.settle(highest, &nonce)?;
        // The incarnation is read after the nonce: if a later step finds the nonce again, the folder was the same all
        // the time.
        let incarnation = self.incarnation()?;
        if highest == Revision(0) && incarnation.0 != nonce {
            return Err(odd("revision 0 is that of another lock"));
        }
        let value = (with_value && highest != Revision(0))
            .then(|| self.value_in(&self.inner(highest, &nonce)))
            .transpose()?;
        Ok(Top {
            incarnation,
            revision: highest,
            nonce,
            value,
        })
    }

    /// Makes the witness of the highest revision if it is missing.
    fn settle(&self, highest: Revision, nonce: &str) -> io::Result<()> {
        let Some(before) = highest.0.checked_sub(1).map(Revision) else {
            return Ok(());
        };
        let predecessor = self.nonce_in(before)?;
        let witness = layout::witness(&self.inner(before, &predecessor), nonce);
        if self.root.exists(&witness)? {
            return Ok(());
        }
        if let Some(second) = before.0.checked_sub(1).map(Revision) {
            let proof = layout::witness(&self.inner(second, &self.nonce_in(second)?), &predecessor);
            if !self.root.exists(&proof)? {
                return Err(odd(format!(
                    "revision {before} has no witness, and {highest} came after it"
                )));
            }
        }
        self.root.make(&witness)
    }

    fn incarnation(&self) -> io::Result<Incarnation> {
        let path = self.folder.join(IDENTITY);
        let identity = self.file(&path)?;
        let field = |name: &str| identity.fields.get(name).map_or("", String::as_str);
        if field("key") != self.key.as_str() {
            // This also happens on a file system for which "A" and "a" are one name.
            return Err(odd(format!("it is the lock {:?}", field("key"))));
        }
        if field("store") != self.store {
            return Err(odd(format!(
                "it was made in another store, {}",
                field("store")
            )));
        }
        crate::store::incarnation(field("lock")).map_err(|error| odd(error.to_string()))
    }

    fn value_in(&self, inner: &Path) -> io::Result<Value> {
        self.file(&inner.join(VALUE)).map(Value::within_limit)
    }

    fn file(&self, path: &Path) -> io::Result<Value> {
        layout::decode(&self.root.read(path)?)
            .map_err(|why| odd(format!("{} {why}", path.display())))
    }

    fn inner(&self, revision: Revision, nonce: &str) -> PathBuf {
        layout::inner(&layout::revision(&self.folder, revision), nonce)
    }

    fn nonce_in(&self, revision: Revision) -> io::Result<String> {
        let folder = layout::revision(&self.folder, revision);
        let names = self.root.names(&folder)?;
        let mut nonces = names.iter().filter_map(|name| layout::nonce_of(name));
        match (nonces.next(), nonces.next()) {
            (Some(nonce), None) => Ok(nonce.to_owned()),
            (None, _) => Err(odd(format!("{} is empty", folder.display()))),
            (Some(_), Some(_)) => Err(odd(format!("{} is two revisions", folder.display()))),
        }
    }

    /// The full path of the lock's folder, for messages.
    fn shown(&self) -> impl Display {
        self.root.shown(&self.folder).display().to_string()
    }

    fn damaged(&self, why: &str) -> StoreError {
        let (shown, moved) = (self.shown(), layout::moved(&self.key));
        StoreError::Garbled(format!(
            "run \"mv {shown} {}\" on one host unless a holder mends it: {shown} is damaged: {why}",
            self.root.shown(&moved).display()
        ))
    }

    /// Builds the lock's folder aside and renames it into place. An error counts for nothing if the folder exists
    /// afterwards, whoever made it.
    fn make(&self) -> Result<()> {
        // Where the share is not mounted any more there may be an empty folder, in which no lock may be made.
        if root::store_id(&self.root)? != self.store {
            return Err(StoreError::Unreachable(format!(
                "{} has become another store",
                self.root.shown(Path::new("")).display()
            )));
        }
        let id = random_name()?;
        let made = self.root.build(&self.folder, |draft| {
            let first = layout::revision(draft, Revision(0));
            let inner = layout::inner(&first, &id);
            self.root.make(&first)?;
            self.root.make(&inner)?;
            let fields = [
                ("key", self.key.as_str()),
                ("lock", &id),
                ("store", &self.store),
            ];
            self.root.write_fields(&draft.join(IDENTITY), &fields)?;
            self.root.sync(&inner)?;
            self.root.sync(&first)
        });
        Ok(made?)
    }
}

/// One compare-and-set, step by step.
pub struct Write<'a> {
    lock: &'a Lock,
    base: Revision,
    nonce: String,
}

impl<'a> Write<'a> {
    pub fn new(lock: &'a Lock, base: Revision) -> io::Result<Self> {
        Ok(Self {
            lock,
            base,
            nonce: random_name()?,
        })
    }

    /// Step 1: builds the whole revision beside the others. Nobody reads it there.
    pub fn build(&self, value: &Value) -> io::Result<()> {
        let draft = self.draft();
        let inner = layout::inner(&draft, &self.nonce);
        let root = &self.lock.root;
        root.make(&draft)?;
        root.make(&inner)?;
        root.write(&inner.join(VALUE), value)?;
        root.sync(&inner)?;
        root.sync(&draft)
    }

    /// Step 2: renames the draft into its place, which must be free. A call that was repeated on its way reports that
    /// the draft is gone, or that the place is taken, although the first one succeeded. So after an error the folder
    /// itself is looked at.
    pub fn place(&self) -> io::Result<()> {
        let (root, folder) = (&self.lock.root, &self.lock.folder);
        let place = layout::revision(folder, self.revision());
        match root.rename(&self.draft(), &place) {
            Err(_) if root.exists(&layout::inner(&place, &self.nonce))? => Ok(()),
            placed => placed,
        }
    }

    /// Step 3: proves that the base still existed. Without this step a writer could sleep while its base was replaced
    /// and all revisions up to its successor were collected, and would then make that successor a second time.
    pub fn witness(&self, base: &str) -> io::Result<()> {
        self.lock.root.make(&layout::witness(
            &self.lock.inner(self.base, base),
            &self.nonce,
        ))
    }

    /// Step 4: makes the revision outlive a power loss. The first revision also syncs the name of the lock's folder.
    pub fn seal(&self) -> io::Result<()> {
        self.lock.root.sync(&self.lock.folder)?;
        if self.base == Revision(0) {
            self.lock.root.sync(Path::new(""))
        } else {
            Ok(())
        }
    }

    /// Instead of step 3: takes the draft's name from it, in one step. `true`: the draft was never put into its place
    /// and never will be, even if a call for it is still under way.
    pub fn withdraw(&self) -> bool {
        self.lock.root.discard(&self.lock.folder, &self.draft())
    }

    /// For a write that was withdrawn: whether another revision is, or was, in its place.
    pub fn is_late(&self) -> bool {
        self.lock
            .highest()
            .is_ok_and(|highest| highest >= Some(self.revision()))
    }

    pub fn revision(&self) -> Revision {
        Revision(self.base.0.saturating_add(1))
    }

    fn draft(&self) -> PathBuf {
        layout::draft(&self.lock.folder, &self.nonce)
    }
}

#[cfg(test)]
mod tests;
