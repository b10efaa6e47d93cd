//! What the hosts are built on: the Debian root, the layer with the programs under test, the cgroups of this machine,
//! and the removal of what earlier runs left behind.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};

use crate::{
    command::{output, run, said},
    examples, package,
};

pub const BASE: &str = "/var/tmp/putexd-tests";

/// Limit of clusters that run at the same time. Hosts mostly wait, but each boot takes a core for a second, so more
/// clusters would disturb each other. The test harness needs at least as many threads, which `tests/run` arranges.
const CLUSTERS_AT_ONCE: usize = 6;

/// The tests' own programs on the hosts. One of them writes to a PostgreSQL, whose client is built with the store of
/// that name.
const EXAMPLES: &[&str] = if cfg!(feature = "postgres") {
    &["liar", "oracle", "writer"]
} else {
    &["liar", "oracle"]
};

/// Environment variable: a folder with the programs to install on the hosts, such as a release build, instead of those that
/// were built with the tests.
const PROGRAMS: &str = "PUTEX_PROGRAMS";

/// Environment variable: the path of another nats-server for the hosts, and for the network beside them, instead of
/// Debian's.
const NATS_SERVER: &str = "PUTEX_NATS_SERVER";

/// The parts that all clusters of this process share.
pub struct Environment {
    /// The Debian root, read-only.
    pub root: PathBuf,
    /// The tests' own programs; read-only.
    pub programs: PathBuf,
    /// The folder of the programs under test.
    pub under_test: PathBuf,
    /// Their package.
    pub package: PathBuf,
    /// What the installation of that package has changed in the Debian root; read-only.
    pub layer: PathBuf,
    /// The folder with all files of this process. Whoever can lock its `owner` knows that the process is gone.
    pub dir: PathBuf,
    /// The prefix of the names of network namespaces and cgroups.
    pub prefix: String,
    _owner: File,
}

/// The environment, made at the first call. `None` if this machine cannot run hosts, which is told once on stderr. With
/// CI=true that is a failure instead, because nobody notices a test that is skipped in silence.
pub fn environment() -> Option<&'static Environment> {
    static GROUND: OnceLock<Result<Environment, String>> = OnceLock::new();
    match GROUND.get_or_init(make) {
        Ok(environment) => Some(environment),
        Err(missing) => {
            assert!(
                std::env::var("CI").as_deref() != Ok("true"),
                "{missing}, and CI=true allows no skipping"
            );
            None
        }
    }
}

fn make() -> Result<Environment, String> {
    find_prerequisites().inspect_err(|missing| {
        // eprintln! would be captured by the test harness.
        let _ = writeln!(
            std::io::stderr(),
            "\n*** ALL TESTS ON REAL HOSTS ARE SKIPPED: {missing} ***\n"
        );
    })?;
    // The PID 1 of a killed host becomes a child of this process rather than of this machine's init, which may take its
    // time to collect it.
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own))
        .expect("every process may adopt its descendants");
    remove_leftovers();

    let pid = std::process::id();
    let dir = Path::new(BASE).join(format!("run-{pid}"));
    // The folder is locked before it gets its name, so that no other run takes it for a leftover.
    let unnamed = Path::new(BASE).join(format!("new-{pid}"));
    fs::create_dir_all(&unnamed).expect("/var/tmp can be written to");
    let owner = File::create(unnamed.join("owner")).expect("the run's folder can be written to");
    flock(&owner, FlockOperation::LockExclusive).expect("nobody else owns this run");
    fs::rename(&unnamed, &dir).expect("an earlier run with this process id was removed");

    let bin_dir = Path::new(env!("CARGO_BIN_EXE_putexd"))
        .parent()
        .expect("a program lies in a folder");
    let under_test = std::env::var_os(PROGRAMS)
        .map_or_else(|| light(bin_dir, &dir.join("light")), PathBuf::from);
    let package = package::build(
        "build-deb",
        &dir.join("package"),
        &under_test,
        env!("CARGO_PKG_VERSION"),
    );
    let layer = install(&package, &dir);
    examples::build(bin_dir, EXAMPLES);
    let programs = dir.join("programs");
    let place = programs.join("usr/local/bin");
    fs::create_dir_all(&place).expect("the layer can be written to");
    for example in EXAMPLES {
        fs::copy(bin_dir.join("examples").join(example), place.join(example))
            .expect("the example is built");
    }
    if let Some(server) = std::env::var_os(NATS_SERVER) {
        let place = programs.join("usr/sbin");
        fs::create_dir_all(&place).expect("the layer can be written to");
        fs::copy(&server, place.join("nats-server"))
            .unwrap_or_else(|error| panic!("{NATS_SERVER}: {error}"));
    }

    Ok(Environment {
        root: debian_root(),
        programs,
        under_test,
        package,
        layer,
        dir,
        prefix: format!("px{pid}c"),
        _owner: owner,
    })
}

/// The programs of `bin_dir` in `folder`, without what a debugger alone needs: that is most of a debug build, and each package would
/// have it. Backtraces name functions still.
fn light(bin_dir: &Path, folder: &Path) -> PathBuf {
    fs::create_dir_all(folder).expect("the run's folder can be written to");
    thread::scope(|scope| {
        for program in [
            "putexd",
            "putex-guard",
            "putex-net",
            "putexctl",
            "putex-generator",
        ] {
            let (from, to) = (bin_dir.join(program), folder.join(program));
            scope.spawn(move || run("strip", &["--strip-debug", "-o", utf8(&to), utf8(&from)]));
        }
    });
    folder.to_owned()
}

/// Installs the package in the Debian root, and returns the folder with what that has changed there.
fn install(package: &Path, dir: &Path) -> PathBuf {
    let (place, layer) = writable_root(&dir.join("layer"));
    fs::copy(package, place.join("putexd.deb")).expect("the layer can be written to");
    let path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
    run(
        "chroot",
        &[
            utf8(&place),
            "env",
            path,
            "dpkg",
            "--force-unsafe-io",
            "--install",
            "/putexd.deb",
        ],
    );
    fs::remove_file(place.join("putexd.deb")).expect("the layer can be written to");
    run("umount", &[utf8(&place)]);
    layer
}

/// Mounts the Debian root below `folder`, where it can be written to. Returns the place, and the folder that takes what is changed
/// there.
pub fn writable_root(folder: &Path) -> (PathBuf, PathBuf) {
    let [place, upper, work] = ["root", "upper", "work"].map(|name| folder.join(name));
    for folder in [&place, &upper, &work] {
        fs::create_dir_all(folder).expect("the run's folder can be written to");
    }
    mount(&[&debian_root()], &upper, &work, &place);
    (place, upper)
}

/// What was made of packages of the distribution, in a folder beside the Debian root, once for each suite. `make` gets a line of
/// the shell to be run first, a root with a network to run commands in, and the new folder's path.
pub fn made_of_packages(
    ending: &str,
    is_new: bool,
    make: impl FnOnce(&str, &Path, &Path),
) -> PathBuf {
    let environment = environment().expect("asked for before");
    let files = environment.root.with_extension(ending);
    if files.is_dir() && !is_new {
        return files;
    }
    let (place, _) = writable_root(&environment.dir.join(ending));
    fs::copy("/etc/resolv.conf", place.join("etc/resolv.conf"))
        .expect("the layer can be written to");
    let new = files.with_extension("new");
    let _ = fs::remove_dir_all(&new);
    make(
        "export PATH=/usr/sbin:/usr/bin:/sbin:/bin; apt-get update -qq",
        &place,
        &new,
    );
    run("umount", &[utf8(&place)]);
    let _ = fs::remove_dir_all(&files);
    fs::rename(&new, &files).expect("the cache can be written to");
    files
}

/// The program that runs as the NATS server beside the hosts.
pub fn nats_server() -> PathBuf {
    std::env::var_os(NATS_SERVER)
        .map_or_else(|| PathBuf::from("/usr/sbin/nats-server"), PathBuf::from)
}

fn debian_root() -> PathBuf {
    let prepare = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/system/prepare");
    PathBuf::from(run(prepare, &["--path"]).trim())
}

fn find_prerequisites() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("they need root".to_owned());
    }
    let root = debian_root();
    if !root.is_dir() {
        return Err(format!(
            "{} is missing; tests/system/prepare makes it",
            root.display()
        ));
    }
    for (program, option) in [
        ("systemd-nspawn", "--version"),
        ("ip", "-V"),
        ("nft", "-v"),
        ("nsenter", "-V"),
        ("bindfs", "-V"),
    ] {
        let found = Command::new(program).arg(option).output();
        if !found.is_ok_and(|output| output.status.success()) {
            return Err(format!(
                "{program} is missing; tests/system/prepare installs it"
            ));
        }
    }
    if Hierarchies::of_this_machine().unified.is_none() {
        return Err("no cgroup2 file system is mounted".to_owned());
    }
    Ok(())
}

/// Where the cgroup hierarchies of this machine are mounted.
pub struct Hierarchies {
    /// The cgroup2 mount: the only hierarchy, or the one beside cgroup v1. It is needed to kill and to freeze a host.
    pub unified: Option<PathBuf>,
    /// The v1 hierarchy name=systemd.
    pub named: Option<PathBuf>,
}

impl Hierarchies {
    pub fn of_this_machine() -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("/proc is mounted");
        let find = |wanted: &dyn Fn(&str, &str) -> bool| {
            mounts.lines().find_map(|line| {
                let mut words = line.split(' ').skip(1);
                let (place, kind, options) = (words.next()?, words.next()?, words.next()?);
                (place.starts_with("/sys/fs/cgroup") && wanted(kind, options))
                    .then(|| PathBuf::from(place))
            })
        };
        Self {
            unified: find(&|kind, _| kind == "cgroup2"),
            named: find(&|kind, options| kind == "cgroup" && options.contains("name=systemd")),
        }
    }

    pub fn all(self) -> impl Iterator<Item = PathBuf> {
        self.unified.into_iter().chain(self.named)
    }
}

/// Takes one of the places for clusters. It waits until one is free; all processes share the places.
pub fn take_place() -> File {
    loop {
        for place in 0..CLUSTERS_AT_ONCE {
            let path = Path::new(BASE).join(format!("place-{place}"));
            let file = File::create(path).expect("the tests' folder can be written to");
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return file;
            }
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Removes what earlier runs left behind because they crashed or were interrupted.
fn remove_leftovers() {
    let Ok(runs) = fs::read_dir(BASE) else { return };
    for run in runs.flatten() {
        let name = run.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix("run-")) else {
            continue;
        };
        let Ok(owner) = File::create(run.path().join("owner")) else {
            continue;
        };
        if flock(&owner, FlockOperation::NonBlockingLockExclusive).is_ok() {
            clear(&run.path(), &format!("px{pid}c"));
        }
    }
}

/// Kills, unmounts and removes everything whose name begins with `prefix`, and removes `dir`.
pub fn clear(dir: &Path, prefix: &str) {
    for hierarchy in Hierarchies::of_this_machine().all() {
        for group in fs::read_dir(hierarchy).into_iter().flatten().flatten() {
            if group
                .file_name()
                .to_str()
                .is_some_and(|name| name.starts_with(prefix))
            {
                remove_cgroup(&group.path());
            }
        }
    }
    for namespace in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        if let Some(name) = namespace
            .file_name()
            .to_str()
            .filter(|name| name.starts_with(prefix))
        {
            let pids = output("ip", &["netns", "pids", name]);
            for pid in String::from_utf8_lossy(&pids.stdout).split_whitespace() {
                output("kill", &["-KILL", pid]);
            }
            output("ip", &["netns", "delete", name]);
        }
    }
    let mounts = fs::read_to_string("/proc/self/mounts").expect("/proc is mounted");
    for place in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
        if Path::new(place).starts_with(dir) {
            output("umount", &["--lazy", place]);
        }
    }
    let _ = fs::remove_dir_all(dir);
}

/// Kills and removes a cgroup. It stays busy until the last zombie in it has been collected by the process that
/// inherits it.
fn remove_cgroup(group: &Path) {
    let _ = fs::write(group.join("cgroup.kill"), "1");
    let end = Instant::now() + Duration::from_secs(10);
    while group.exists() && Instant::now() < end {
        output(
            "find",
            &[
                utf8(group),
                "-depth",
                "-type",
                "d",
                "-exec",
                "rmdir",
                "{}",
                "+",
            ],
        );
        if group.exists() {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The path as text. All paths of the tests are made by the tests, so they are UTF-8.
pub fn utf8(path: &Path) -> &str {
    path.to_str().expect("paths of the tests are UTF-8")
}

/// Mounts the Debian root, the layers and a host's own changes over each other at `place`; with `bare`, without putexd.
pub fn mount_overlay(
    environment: &Environment,
    bare: bool,
    upper: &Path,
    work: &Path,
    place: &Path,
) {
    let putexd = (!bare).then_some(&environment.layer);
    let layers: Vec<&Path> = [&environment.programs]
        .into_iter()
        .chain(putexd)
        .chain([&environment.root])
        .map(PathBuf::as_path)
        .collect();
    mount(&layers, upper, work, place);
}

/// Mounts `layers`, the first of which counts most, below `upper`, which takes what is written.
fn mount(layers: &[&Path], upper: &Path, work: &Path, place: &Path) {
    let layers: Vec<&str> = layers.iter().map(|layer| utf8(layer)).collect();
    let (upper, work) = (utf8(upper), utf8(work));
    // Without syncing (`volatile`): hosts lose their power here while this machine keeps its page cache.
    let options = format!(
        "lowerdir={},upperdir={upper},workdir={work},volatile",
        layers.join(":")
    );
    let mounted = output(
        "mount",
        &["-t", "overlay", "overlay", "-o", &options, utf8(place)],
    );
    assert!(
        mounted.status.success(),
        "failed to mount the root of a host: {}",
        said(&mounted)
    );
}
