//! A file system that passes calls through to a folder and misbehaves as a test tells it. It can hang, be dead, delay
//! calls, fail, fail after it has done the work, and carry a call out twice and return the second result.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use tempfile::TempDir;

/// The faults, each with the number of calls out of a hundred that meet it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mischief {
    /// Waits up to 10 ms before the call is carried out.
    pub delay: u64,
    /// Returns an error, and does nothing.
    pub fail: u64,
    /// Does the work, and returns an error.
    pub fail_after: u64,
    /// Does the work twice, and returns the second result.
    pub repeat: u64,
}

/// The calls that hang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hang {
    All,
    /// Calls in this folder, and in the folders in it.
    Below(&'static str),
    /// Renames in this folder.
    RenamesIn(&'static str),
}

/// The mounted file system. It is unmounted when it is dropped, also when a test panics.
pub struct FaultyFs {
    inner: Arc<Inner>,
    _session: BackgroundSession,
    mount: TempDir,
    backing: TempDir,
}

/// Whether this machine has FUSE. Without it the tests that need it are skipped, which is told once on stderr. With
/// CI=true that is a failure.
pub fn is_there() -> bool {
    static ONCE: Once = Once::new();
    let missing = match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => return true,
        Err(error) => format!("/dev/fuse cannot be opened: {error}"),
    };
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "{missing}, and CI=true allows no skipping"
    );
    // The test harness captures what `eprintln!` prints, but not what is written to stderr itself.
    ONCE.call_once(|| {
        let _ = writeln!(
            io::stderr(),
            "\n*** ALL TESTS OF THE SHARED DIRECTORY ARE SKIPPED: {missing} ***\n"
        );
    });
    false
}

impl FaultyFs {
    /// Mounts a new file system. `ttl` is how long the kernel may cache its answers. It must be zero if calls fail after
    /// they did their work, or if the folder behind the file system is changed.
    pub fn mount(ttl: Duration) -> Self {
        // In memory, if there is /dev/shm: the disk is not what is tested.
        let backing = tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .expect("a folder");
        let mount = tempfile::tempdir().expect("a folder");
        let root = backing.path().to_owned();
        let inner = Arc::new(Inner {
            root: root.clone(),
            ttl,
            inodes: Mutex::new(Inodes {
                paths: [(1, root.clone())].into(),
                numbers: [(root, 1)].into(),
            }),
            next: AtomicU64::new(2),
            files: Mutex::default(),
            listings: Mutex::default(),
            weather: Mutex::new(Weather {
                mischief: Mischief::default(),
                dead: false,
                replaces: false,
                hanging: None,
            }),
            random: AtomicU64::new(0x9e37_79b9_7f4a_7c15),
        });
        let mut config = Config::default();
        config.n_threads = Some(4);
        config.clone_fd = true;
        let session = fuser::spawn_mount(Passthrough(Arc::clone(&inner)), mount.path(), &config)
            .unwrap_or_else(|error| {
                panic!("cannot mount ({error}): install the Debian package fuse3")
            });
        Self {
            inner,
            _session: session,
            mount,
            backing,
        }
    }

    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    pub fn set(&self, mischief: Mischief) {
        self.inner.weather().mischief = mischief;
    }

    /// Calls that match `hang` are not answered from now on.
    pub fn hang(&self, hang: Hang) {
        self.inner
            .weather()
            .hanging
            .get_or_insert((hang, Vec::new()));
    }

    /// The folder behind the file system, in which no fault happens, as another host sees it.
    pub fn behind(&self) -> &Path {
        self.backing.path()
    }

    /// The number of calls that hang.
    pub fn hanging(&self) -> usize {
        self.inner
            .weather()
            .hanging
            .as_ref()
            .map_or(0, |(_, waiting)| waiting.len())
    }

    /// Carries out the calls that hang, and ends the hanging.
    pub fn release(&self) {
        let waiting = self.inner.weather().hanging.take();
        for work in waiting.into_iter().flat_map(|(_, waiting)| waiting) {
            work();
        }
    }

    /// From now on a rename onto a folder replaces that folder, even if it is not empty.
    pub fn replace(&self) {
        self.inner.weather().replaces = true;
    }

    /// Every call fails at once from now on.
    pub fn die(&self) {
        self.inner.weather().dead = true;
    }

    pub fn come_back(&self) {
        self.inner.weather().dead = false;
    }
}

impl Drop for FaultyFs {
    fn drop(&mut self) {
        // Callers that still wait get an error, or the threads of this process would stay in the kernel.
        self.die();
        self.release();
        // The unmount is lazy, because those threads may still have a folder open.
        let unmount = ["-u", "-z", "-q"].map(OsStr::new);
        let unmounted = Command::new("fusermount3")
            .args(unmount)
            .arg(self.mount.path())
            .status();
        if !unmounted.is_ok_and(|status| status.success()) {
            let _ = writeln!(
                io::stderr(),
                "{} stays mounted",
                self.mount.path().display()
            );
        }
    }
}

/// A call that is still to be carried out.
type Work = Box<dyn FnOnce() + Send>;

/// The entries that a folder had when it was opened.
type Listing = Arc<Vec<(OsString, FileType)>>;

struct Weather {
    mischief: Mischief,
    dead: bool,
    replaces: bool,
    hanging: Option<(Hang, Vec<Work>)>,
}

/// Inode numbers for paths, which follow renames. A number whose path is gone is never used for another path.
struct Inodes {
    paths: HashMap<u64, PathBuf>,
    numbers: HashMap<PathBuf, u64>,
}

struct Inner {
    root: PathBuf,
    ttl: Duration,
    inodes: Mutex<Inodes>,
    next: AtomicU64,
    files: Mutex<HashMap<u64, Arc<File>>>,
    listings: Mutex<HashMap<u64, Listing>>,
    weather: Mutex<Weather>,
    random: AtomicU64,
}

/// The fault that a call meets, or none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Good,
    Fails,
    FailsAfter,
    Repeats,
}

impl Inner {
    fn weather(&self) -> MutexGuard<'_, Weather> {
        lock(&self.weather)
    }

    fn path(&self, inode: INodeNo) -> io::Result<PathBuf> {
        lock(&self.inodes)
            .paths
            .get(&inode.0)
            .cloned()
            .ok_or_else(|| io::Error::from_raw_os_error(116))
    }

    fn child(&self, parent: INodeNo, name: &OsStr) -> io::Result<PathBuf> {
        Ok(self.path(parent)?.join(name))
    }

    fn number(&self, path: &Path) -> u64 {
        let mut inodes = lock(&self.inodes);
        if let Some(number) = inodes.numbers.get(path) {
            return *number;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        inodes.paths.insert(number, path.to_owned());
        inodes.numbers.insert(path.to_owned(), number);
        number
    }

    fn attributes(&self, path: &Path) -> io::Result<FileAttr> {
        Ok(attributes(self.number(path), &fs::symlink_metadata(path)?))
    }

    fn forget(&self, path: &Path) {
        let mut inodes = lock(&self.inodes);
        if let Some(number) = inodes.numbers.remove(path) {
            inodes.paths.remove(&number);
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.weather().replaces && to.is_dir() {
            fs::remove_dir_all(to)?;
        }
        fs::rename(from, to)?;
        self.forget(to);
        let mut inodes = lock(&self.inodes);
        let moved: Vec<(PathBuf, u64)> = inodes
            .numbers
            .iter()
            .filter(|(path, _)| path.starts_with(from))
            .map(|(path, number)| (path.clone(), *number))
            .collect();
        for (path, number) in moved {
            inodes.numbers.remove(&path);
            let below = path.strip_prefix(from).expect("it begins so");
            let path = if below.as_os_str().is_empty() {
                to.to_owned()
            } else {
                to.join(below)
            };
            inodes.paths.insert(number, path.clone());
            inodes.numbers.insert(path, number);
        }
        Ok(())
    }

    fn open(&self, file: File) -> FileHandle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.files).insert(handle, Arc::new(file));
        FileHandle(handle)
    }

    fn file(&self, handle: FileHandle) -> io::Result<Arc<File>> {
        lock(&self.files)
            .get(&handle.0)
            .cloned()
            .ok_or_else(|| io::Error::from_raw_os_error(9))
    }

    fn hangs(&self, hang: &Hang, doing: Doing, inode: INodeNo) -> bool {
        let within = |folder: &str| {
            self.path(inode)
                .is_ok_and(|path| path.starts_with(self.root.join(folder)))
        };
        match hang {
            Hang::All => true,
            Hang::Below(folder) => within(folder),
            Hang::RenamesIn(folder) => doing == Doing::Rename && within(folder),
        }
    }

    /// A random number below `below`, by SplitMix64.
    fn draw(&self, below: u64) -> u64 {
        let mut random = self
            .random
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        random = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        random = (random ^ (random >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (random ^ (random >> 31)) % below
    }

    fn fate(&self, mischief: Mischief) -> (Fate, Duration) {
        let wait = if self.draw(100) < mischief.delay {
            Duration::from_micros(self.draw(10_000))
        } else {
            Duration::ZERO
        };
        let drawn = self.draw(100);
        let fate = if drawn < mischief.fail {
            Fate::Fails
        } else if drawn < mischief.fail + mischief.fail_after {
            Fate::FailsAfter
        } else if drawn < mischief.fail + mischief.fail_after + mischief.repeat {
            Fate::Repeats
        } else {
            Fate::Good
        };
        (fate, wait)
    }
}

/// Carries a call out with the fault that it meets.
fn carry_out<T>(fate: Fate, call: impl Fn() -> io::Result<T>) -> Result<T, Errno> {
    let input_output = || io::Error::from_raw_os_error(5);
    let done = match fate {
        Fate::Good => call(),
        Fate::Fails => Err(input_output()),
        Fate::FailsAfter => call().and_then(|_| Err(input_output())),
        Fate::Repeats => call().and_then(|_| call()),
    };
    done.map_err(Errno::from)
}

/// The kind of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Look,
    Change,
    Rename,
}

struct Passthrough(Arc<Inner>);

impl Passthrough {
    /// Answers a call now, later, or when the file system is released. Only a call that changes something meets faults
    /// other than a delay: the others change no state, so repeating them would show nothing.
    fn answer<T: 'static, Reply: Send + 'static>(
        &self,
        doing: Doing,
        inode: INodeNo,
        reply: Reply,
        call: impl Fn(&Inner) -> io::Result<T> + Send + 'static,
        answer: impl FnOnce(Reply, &Inner, Result<T, Errno>) + Send + 'static,
    ) {
        let inner = Arc::clone(&self.0);
        let mut weather = self.0.weather();
        let (fate, wait) = inner.fate(weather.mischief);
        let fate = if doing != Doing::Look || fate == Fate::Fails {
            fate
        } else {
            Fate::Good
        };
        let work = move || {
            let dead = inner.weather().dead;
            let fate = if dead { Fate::Fails } else { fate };
            let done = carry_out(fate, || call(&inner));
            answer(reply, &inner, done);
        };
        if let Some((hang, waiting)) = &mut weather.hanging
            && self.0.hangs(hang, doing, inode)
        {
            waiting.push(Box::new(work));
            return;
        }
        drop(weather);
        if wait.is_zero() {
            work();
        } else {
            std::thread::spawn(move || {
                std::thread::sleep(wait);
                work();
            });
        }
    }

    fn change(
        &self,
        doing: Doing,
        inode: INodeNo,
        reply: ReplyEmpty,
        call: impl Fn(&Inner) -> io::Result<()> + Send + 'static,
    ) {
        self.answer(doing, inode, reply, call, |reply, _, done| {
            empty(reply, done)
        });
    }
}

impl Filesystem for Passthrough {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        let find = move |inner: &Inner| inner.attributes(&inner.child(parent, &name)?);
        self.answer(Doing::Look, parent, reply, find, entry);
    }

    fn getattr(&self, _: &Request, inode: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let find = move |inner: &Inner| match handle.and_then(|handle| inner.file(handle).ok()) {
            Some(file) => Ok(attributes(inode.0, &file.metadata()?)),
            None => inner.attributes(&inner.path(inode)?),
        };
        self.answer(Doing::Look, inode, reply, find, attribute);
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<std::time::SystemTime>,
        _: Option<FileHandle>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = move |inner: &Inner| {
            let path = inner.path(inode)?;
            if let Some(size) = size {
                OpenOptions::new().write(true).open(&path)?.set_len(size)?;
            }
            inner.attributes(&path)
        };
        self.answer(Doing::Change, inode, reply, set, attribute);
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let name = name.to_owned();
        let make = move |inner: &Inner| {
            let path = inner.child(parent, &name)?;
            fs::create_dir(&path)?;
            inner.attributes(&path)
        };
        self.answer(Doing::Change, parent, reply, make, entry);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.change(Doing::Change, parent, reply, move |inner| {
            let path = inner.child(parent, &name)?;
            fs::remove_file(&path)?;
            inner.forget(&path);
            Ok(())
        });
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.change(Doing::Change, parent, reply, move |inner| {
            let path = inner.child(parent, &name)?;
            fs::remove_dir(&path)?;
            inner.forget(&path);
            Ok(())
        });
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        self.change(Doing::Rename, parent, reply, move |inner| {
            inner.rename(
                &inner.child(parent, &name)?,
                &inner.child(new_parent, &new_name)?,
            )
        });
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let name = name.to_owned();
        let exclusive = flags & 0o200 != 0;
        let create = move |inner: &Inner| {
            let path = inner.child(parent, &name)?;
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(true)
                .create(true)
                .create_new(exclusive)
                .truncate(!exclusive);
            let handle = inner.open(options.open(&path)?);
            Ok((handle, inner.attributes(&path)?))
        };
        self.answer(
            Doing::Change,
            parent,
            reply,
            create,
            |reply, inner, done| match done {
                Ok((handle, attributes)) => {
                    reply.created(
                        &inner.ttl,
                        &attributes,
                        Generation(0),
                        handle,
                        FopenFlags::FOPEN_DIRECT_IO,
                    );
                }
                Err(error) => reply.error(error),
            },
        );
    }

    fn open(&self, _: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let writes = flags.0 & 0o3 != 0;
        let open = move |inner: &Inner| {
            Ok(inner.open(
                OpenOptions::new()
                    .read(true)
                    .write(writes)
                    .open(inner.path(inode)?)?,
            ))
        };
        self.answer(Doing::Look, inode, reply, open, opened);
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = move |inner: &Inner| {
            let mut bytes = vec![0; usize::try_from(size).expect("it fits")];
            let length = inner.file(handle)?.read_at(&mut bytes, offset)?;
            bytes.truncate(length);
            Ok(bytes)
        };
        self.answer(
            Doing::Look,
            inode,
            reply,
            read,
            |reply, _, done| match done {
                Ok(bytes) => reply.data(&bytes),
                Err(error) => reply.error(error),
            },
        );
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = data.to_vec();
        let write = move |inner: &Inner| {
            inner.file(handle)?.write_all_at(&data, offset)?;
            Ok(u32::try_from(data.len()).expect("it came in one"))
        };
        self.answer(
            Doing::Change,
            inode,
            reply,
            write,
            |reply, _, done| match done {
                Ok(length) => reply.written(length),
                Err(error) => reply.error(error),
            },
        );
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        lock(&self.0.files).remove(&handle.0);
        reply.ok();
    }

    /// The power does not fail in these tests, so there is nothing to sync.
    fn fsync(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.change(Doing::Change, inode, reply, |_| Ok(()));
    }

    fn opendir(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let list = move |inner: &Inner| {
            let mut listing = vec![
                (".".into(), FileType::Directory),
                ("..".into(), FileType::Directory),
            ];
            for entry in fs::read_dir(inner.path(inode)?)? {
                let entry = entry?;
                // The entry may be gone by now.
                let Ok(kind) = entry.file_type() else {
                    continue;
                };
                listing.push((
                    entry.file_name(),
                    FileType::from_std(kind).unwrap_or(FileType::RegularFile),
                ));
            }
            let handle = inner.next.fetch_add(1, Ordering::Relaxed);
            lock(&inner.listings).insert(handle, Arc::new(listing));
            Ok(FileHandle(handle))
        };
        self.answer(
            Doing::Look,
            inode,
            reply,
            list,
            |reply, _, done| match done {
                Ok(handle) => reply.opened(handle, FopenFlags::empty()),
                Err(error) => reply.error(error),
            },
        );
    }

    fn readdir(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(listing) = lock(&self.0.listings).get(&handle.0).cloned() else {
            return reply.error(Errno::EBADF);
        };
        for (index, (name, kind)) in (1..)
            .zip(listing.iter())
            .skip(usize::try_from(offset).expect("it fits"))
        {
            // The inode number in a listing is not used by anybody here.
            if reply.add(inode, index, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        lock(&self.0.listings).remove(&handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.change(Doing::Change, inode, reply, |_| Ok(()));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(0, 0, 0, 0, 0, 4096, 255, 4096);
    }
}

fn empty(reply: ReplyEmpty, done: Result<(), Errno>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn entry(reply: ReplyEntry, inner: &Inner, done: Result<FileAttr, Errno>) {
    match done {
        Ok(attributes) => reply.entry(&inner.ttl, &attributes, Generation(0)),
        Err(error) => reply.error(error),
    }
}

fn attribute(reply: ReplyAttr, inner: &Inner, done: Result<FileAttr, Errno>) {
    match done {
        Ok(attributes) => reply.attr(&inner.ttl, &attributes),
        Err(error) => reply.error(error),
    }
}

fn opened(reply: ReplyOpen, _: &Inner, done: Result<FileHandle, Errno>) {
    match done {
        Ok(handle) => reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO),
        Err(error) => reply.error(error),
    }
}

fn attributes(number: u64, metadata: &Metadata) -> FileAttr {
    let modified = metadata.modified().unwrap_or(std::time::UNIX_EPOCH);
    FileAttr {
        ino: INodeNo(number),
        size: metadata.len(),
        blocks: metadata.blocks(),
        atime: modified,
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind: FileType::from_std(metadata.file_type()).unwrap_or(FileType::RegularFile),
        perm: u16::try_from(metadata.mode() & 0o7777).expect("it fits"),
        nlink: 1,
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
