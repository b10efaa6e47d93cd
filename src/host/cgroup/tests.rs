use std::{
    process::{Child, Command},
    time::{Duration, Instant},
};

use rustix::fs::{Mode, OFlags};

use super::*;

fn fake() -> (tempfile::TempDir, Hierarchy) {
    let root = tempfile::tempdir().expect("a temporary directory");
    fs::write(root.path().join("cgroup.procs"), "1\n").expect("the root's processes");
    let hierarchy = Hierarchy::at(root.path());
    (root, hierarchy)
}

fn group(root: &Path, path: &str, file: &str, text: &str) {
    let directory = root.join(path);
    fs::create_dir_all(&directory).expect("a group");
    fs::write(directory.join(file), text).expect("a file of the group");
}

#[test]
fn only_what_the_kernel_calls_populated_or_not_is_believed() {
    let (root, hierarchy) = fake();
    group(
        root.path(),
        "a.slice/x.service",
        "cgroup.events",
        "populated 1\nfrozen 0\n",
    );
    assert!(!hierarchy.is_empty("/a.slice/x.service").expect("readable"));
    group(
        root.path(),
        "a.slice/x.service",
        "cgroup.events",
        "populated 0\nfrozen 0\n",
    );
    assert!(hierarchy.is_empty("/a.slice/x.service").expect("readable"));
    group(
        root.path(),
        "a.slice/x.service",
        "cgroup.events",
        "frozen 0\n",
    );
    assert!(hierarchy.is_empty("/a.slice/x.service").is_err());
}

#[test]
fn what_does_not_exist_is_empty_and_what_cannot_be_read_is_not() {
    let (root, hierarchy) = fake();
    assert!(
        hierarchy
            .is_empty("/a.slice/gone.service")
            .expect("no such group")
    );
    hierarchy
        .kill("/a.slice/gone.service")
        .expect("nothing to kill");
    fs::create_dir_all(root.path().join("a.slice/odd.service")).expect("a directory without files");
    assert!(hierarchy.is_empty("/a.slice/odd.service").is_err());
    group(root.path(), "a.slice/file", "cgroup.procs", "");
    assert!(hierarchy.is_empty("/a.slice/file/cgroup.procs/x").is_err());
}

#[test]
fn a_group_is_removed_only_if_it_is_known_not_to_be_there() {
    let (root, _hierarchy) = fake();
    is_removed(root.path()).expect_err("it is there");
    is_removed(&root.path().join("cgroup.procs/x")).expect_err("nobody knows");
    is_removed(&root.path().join("gone")).expect("it is not there");
}

#[test]
fn a_hierarchy_that_is_not_mounted_proves_nothing() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let error = Hierarchy::at(root.path())
        .is_empty("/x.service")
        .expect_err("no root");
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    let error = Hierarchy::detect_under(root.path()).expect_err("there is none");
    assert!(
        error
            .to_string()
            .starts_with("boot this host with systemd.unified_cgroup_hierarchy=1: "),
        "{error}"
    );
}

#[test]
fn a_kernel_without_the_file_that_kills_is_refused() {
    let (root, hierarchy) = fake();
    hierarchy
        .check_kill()
        .expect("there is no group to tell it");
    group(root.path(), "init.scope", "cgroup.procs", "");
    group(root.path(), "system.slice", "cgroup.procs", "");
    let error = hierarchy.check_kill().expect_err("an old kernel");
    assert!(
        error
            .to_string()
            .starts_with("boot a kernel of Linux 5.14 or newer: "),
        "{error}"
    );
    group(root.path(), "system.slice", "cgroup.kill", "");
    hierarchy
        .check_kill()
        .expect("the other one may be on its way out");
}

#[test]
fn paths_that_are_no_unit_are_refused() {
    let (_root, hierarchy) = fake();
    for path in [
        "",
        "/",
        "x.service",
        "/..",
        "/a/../b",
        "/a//b",
        "/a/",
        "/./a",
    ] {
        assert!(hierarchy.is_empty(path).is_err(), "{path:?}");
        assert!(
            hierarchy.kill(path).is_err() && hierarchy.units_group(path).is_err(),
            "{path:?}"
        );
    }
}

#[test]
fn neither_pid_1_nor_the_caller_is_killed() {
    let (root, hierarchy) = fake();
    for process in ["1", "self"] {
        let Ok(path) = group_of(&Path::new("/proc").join(process)) else {
            continue;
        };
        group(root.path(), path.trim_start_matches('/'), "cgroup.kill", "");
        assert!(hierarchy.kill(&path).is_err(), "{path}");
        let file = root
            .path()
            .join(path.trim_start_matches('/'))
            .join("cgroup.kill");
        assert_eq!(fs::read_to_string(file).expect("readable"), "");
    }
}

#[test]
fn the_group_of_a_process_is_found_beside_other_hierarchies() {
    let text =
        "9:name=systemd:/init.scope\n4:cpu,cpuacct:/system.slice\n0::/system.slice/a:b.service\n";
    assert_eq!(group_in(text), Some("/system.slice/a:b.service"));
    assert_eq!(
        group_in("4:cpu,cpuacct:/system.slice\n9:name=systemd:/a::b\n"),
        None
    );
    assert_eq!(group_in(""), None);
    assert!(group_of(Path::new("/proc/no-process")).is_err());
}

#[test]
fn a_group_is_killed_without_a_look_at_it() {
    let (root, hierarchy) = fake();
    hierarchy.kill("/x.service").expect("nothing to kill");
    // Both files are broken on purpose: nobody reads them.
    group(root.path(), "x.service", "cgroup.procs", "what\n");
    group(root.path(), "x.service", "cgroup.kill", "");
    hierarchy.kill("/x.service").expect("written");
    assert_eq!(
        fs::read_to_string(root.path().join("x.service/cgroup.kill")).expect("readable"),
        "1"
    );
}

/// A group of our own in the hierarchy that this machine really has. Skipped where that is not allowed.
struct Real {
    hierarchy: Hierarchy,
    name: String,
    directory: PathBuf,
}

impl Real {
    fn new(test: &str) -> Option<Self> {
        let hierarchy = Hierarchy::that_kills().ok()?;
        let name = format!("putex-test-{test}-{}", std::process::id());
        let directory = hierarchy.root.join(&name);
        fs::create_dir_all(directory.join("inner")).ok()?;
        Some(Self {
            hierarchy,
            name: format!("/{name}"),
            directory,
        })
    }

    fn child(&self) -> Option<Child> {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        if fs::write(
            self.directory.join("inner/cgroup.procs"),
            child.id().to_string(),
        )
        .is_err()
        {
            child
                .kill()
                .and_then(|()| child.wait())
                .expect("the child ends");
            return None;
        }
        Some(child)
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let limit = Instant::now() + Duration::from_secs(2);
        for directory in [self.directory.join("inner"), self.directory.clone()] {
            while fs::remove_dir(&directory).is_err() && Instant::now() < limit {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// So deep that no path leads to the innermost one: the kernel takes none of more than 4096 bytes.
const DEPTH: usize = 100;
const LONG_NAME: &str = "a-name-that-makes-the-path-of-the-innermost-group-longer-than-4096";

/// Makes groups within the group `inner` and puts `child` into the innermost; `false` where that is not allowed.
fn nest(real: &Real, child: &Child) -> bool {
    let mut here = rustix::fs::open(
        real.directory.join("inner"),
        OFlags::DIRECTORY,
        Mode::empty(),
    )
    .expect("opened");
    for _ in 0..DEPTH {
        rustix::fs::mkdirat(&here, LONG_NAME, Mode::RWXU).expect("a group within a group");
        here =
            rustix::fs::openat(&here, LONG_NAME, OFlags::DIRECTORY, Mode::empty()).expect("opened");
    }
    let procs = rustix::fs::openat(&here, "cgroup.procs", OFlags::WRONLY, Mode::empty())
        .expect("it has processes");
    rustix::io::write(&procs, child.id().to_string().as_bytes()).is_ok()
}

/// Removes what [`nest`] has made.
fn remove_nested(real: &Real) {
    let directory = OFlags::DIRECTORY;
    let mut here =
        rustix::fs::open(real.directory.join("inner"), directory, Mode::empty()).expect("opened");
    for _ in 0..DEPTH {
        here = rustix::fs::openat(&here, LONG_NAME, directory, Mode::empty()).expect("opened");
    }
    let limit = Instant::now() + Duration::from_secs(5);
    for _ in 0..DEPTH {
        here = rustix::fs::openat(&here, "..", directory, Mode::empty()).expect("opened");
        while rustix::fs::unlinkat(&here, LONG_NAME, rustix::fs::AtFlags::REMOVEDIR).is_err() {
            assert!(Instant::now() < limit, "it is not removed");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn no_depth_keeps_a_real_group_from_being_killed_and_seen_to_be_empty() {
    let Some(real) = Real::new("deep") else {
        return;
    };
    let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
    if nest(&real, &child) {
        assert!(!real.hierarchy.is_empty(&real.name).expect("readable"));
        real.hierarchy.kill(&real.name).expect("killed");
    } else {
        child.kill().expect("the child ends");
    }
    assert!(!child.wait().expect("waited for").success());
    assert!(
        real.hierarchy.is_empty(&real.name).expect("readable"),
        "{:?}",
        real.hierarchy
    );
    remove_nested(&real);
}

#[test]
fn real_groups_are_killed() {
    let Some(real) = Real::new("kill") else {
        return;
    };
    assert!(real.hierarchy.is_empty(&real.name).expect("readable"));
    let Some(mut child) = real.child() else {
        return;
    };
    assert!(
        !real.hierarchy.is_empty(&real.name).expect("readable"),
        "{:?}",
        real.hierarchy
    );
    real.hierarchy.kill(&real.name).expect("killed");
    assert!(!child.wait().expect("waited for").success());
    assert!(
        real.hierarchy.is_empty(&real.name).expect("readable"),
        "{:?}",
        real.hierarchy
    );
}

/// Its first thread ends, and another one runs on.
const HEADLESS: &str = r"
    #include <pthread.h>
    #include <unistd.h>
    static void *run_on(void *nothing) { for (;;) pause(); return nothing; }
    int main(void) {
        pthread_t other;
        if (pthread_create(&other, 0, run_on, 0)) return 1;
        pthread_exit(0);
    }";

#[test]
fn a_process_whose_first_thread_has_ended_is_killed() {
    let Some(real) = Real::new("headless") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("a.c"), folder.path().join("a"));
    fs::write(&source, HEADLESS).expect("a file");
    let mut compiler = Command::new("cc");
    compiler.arg("-pthread").arg("-o").args([&program, &source]);
    assert!(compiler.status().expect("what links Rust").success());
    let procs = real.directory.join("inner/cgroup.procs");
    if OpenOptions::new().write(true).open(&procs).is_err() {
        return;
    }
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo $$ > \"$0\" && exec \"$1\""]);
    let mut child = shell.args([&procs, &program]).spawn().expect("it runs");
    let limit = Instant::now() + Duration::from_secs(10);
    let stat = format!("/proc/{}/stat", child.id());
    while !fs::read_to_string(&stat).expect("it runs").contains(") Z ") {
        assert!(Instant::now() < limit, "its first thread ends");
        std::thread::sleep(Duration::from_millis(1));
    }
    real.hierarchy.kill(&real.name).expect("killed");
    let mut is_dead = false;
    while !is_dead && Instant::now() < limit {
        is_dead = child.try_wait().expect("it is ours").is_some();
        std::thread::sleep(Duration::from_millis(1));
    }
    // Nothing of the test is to be left.
    child.kill().expect("ended, or it can be");
    child.wait().expect("it is ours");
    assert!(is_dead, "it is killed");
}
