use std::process::{Child, Command};

use super::*;
use crate::host::cgroup::group_in;

const INIT: (i32, i32, &str, &str) = (1, 0, "S", "/init.scope");

/// A `/proc` with these processes, each as pid, parent, state and control group, and what is read of it.
fn host(processes: &[(i32, i32, &str, &str)]) -> (tempfile::TempDir, Family) {
    let root = tempfile::tempdir().expect("a temporary directory");
    for (pid, parent, state, group) in processes {
        let directory = root.path().join(pid.to_string());
        fs::create_dir(&directory).expect("a process");
        let fields = "0 ".repeat(17);
        fs::write(
            directory.join("stat"),
            format!("{pid} (a) b) {state} {parent} {fields}{pid}00 0\n"),
        )
        .expect("its state");
        fs::write(
            directory.join("cgroup"),
            format!("9:name=systemd:/v1{group}\n0::{group}\n"),
        )
        .expect("its group");
        fs::write(directory.join("cmdline"), format!("worker\0{pid}\0")).expect("its command");
    }
    fs::create_dir(root.path().join("self")).expect("what is no process");
    let family = family_in(root.path()).expect("readable");
    (root, family)
}

fn family_in(root: &Path) -> io::Result<Family> {
    Family::read_in(Proc(root.to_owned()))
}

fn is_worker(name: &str) -> bool {
    name == "a) b"
}

#[test]
fn whoever_uses_a_folder_is_found_unless_it_is_of_the_service() {
    let (root, _) = host(&[
        INIT,
        (10, 1, "S", "/system.slice/a.service"),
        (11, 1, "S", "/user.slice/session-1.scope"),
        (12, 1, "S", "/user.slice/session-1.scope"),
        (13, 1, "S", "/system.slice/b.service"),
        (14, 1, "S", "/system.slice/b.service"),
        (15, 1, "Z", "/system.slice/b.service"),
    ]);
    let link = |path: &str, target: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
        std::os::unix::fs::symlink(target, path).expect("a link");
    };
    link("10/cwd", "/srv/data");
    link("11/cwd", "/srv/data/base");
    link("12/cwd", "/srv/database");
    link("13/fd/7", "/srv/data/file (deleted)");
    link("15/cwd", "/srv/data");
    fs::write(
        root.path().join("14/maps"),
        "7f00-7f01 r--p 0 08:01 7 /usr/lib/a\n7f02-7f03 r--s 0 08:11 9 /srv/data/x y\n",
    )
    .expect("its maps");
    let own = BTreeSet::from(["/system.slice/a.service".to_owned()]);
    let users =
        users_in(Proc(root.path().to_owned()), Path::new("/srv/data"), &own).expect("readable");
    assert_eq!(
        users.iter().map(|user| user.pid).collect::<Vec<_>>(),
        [11, 13, 14]
    );
    assert_eq!(users[0].command, "worker 11");
}

fn find(family: &Family, known: &[i32], groups: &[&str]) -> io::Result<Vec<Process>> {
    let known = known.iter().copied().collect();
    let groups = groups.iter().map(|&group| group.to_owned()).collect();
    family.outside(&family.suspects(&known, &Members::new(), &groups), &groups)
}

fn outside(processes: &[(i32, i32, &str, &str)], known: &[i32], groups: &[&str]) -> Vec<i32> {
    let (_root, family) = host(processes);
    let found = find(&family, known, groups).expect("readable");
    found.into_iter().map(|process| process.pid).collect()
}

#[test]
fn what_left_the_group_is_found_with_its_descendants() {
    let processes = [
        INIT,
        (10, 1, "S", "/system.slice/a.service"),
        (11, 10, "S", "/user.slice/session-1.scope"),
        (12, 11, "R", "/user.slice/session-1.scope"),
        (13, 10, "S", "/system.slice/a.service/inner"),
        (20, 1, "S", "/system.slice/a.service.d"),
        (21, 1, "S", "/user.slice/session-1.scope"),
    ];
    assert_eq!(
        outside(&processes, &[10], &["/system.slice/a.service"]),
        [11, 12]
    );
    assert_eq!(
        outside(&processes, &[], &["/system.slice/a.service"]),
        [11, 12],
        "by its group alone"
    );
    assert_eq!(
        outside(
            &processes,
            &[10],
            &["/system.slice/a.service", "/user.slice"]
        ),
        [0; 0]
    );
    assert_eq!(
        outside(&processes, &[11], &["/system.slice/a.service"]),
        [11, 12],
        "the main process itself"
    );
    assert_eq!(
        outside(&processes, &[20], &["/system.slice/a.service"]),
        [11, 12, 20],
        "a longer name is another"
    );
    assert_eq!(
        outside(&processes, &[], &["/system.slice/a.service.d"]),
        [0; 0]
    );
}

#[test]
fn what_was_in_the_group_is_found_elsewhere_without_its_parent() {
    let groups = BTreeSet::from(["/a.service".to_owned()]);
    let (_root, family) = host(&[INIT, (10, 1, "S", "/a.service")]);
    let before = family.in_groups(&groups);
    assert_eq!(before, Members::from([(10, 1000)]));
    let moved = [INIT, (10, 1, "S", "/user.slice"), (11, 10, "S", "/b")];
    let (_root, family) = host(&moved);
    let none = BTreeSet::new();
    assert_eq!(family.suspects(&none, &before, &groups), [10, 11]);
    let another = Members::from([(10, 999)]);
    assert_eq!(family.suspects(&none, &another, &groups), [0; 0]);
}

#[test]
fn what_is_in_a_group_or_below_it_is_found() {
    let (_root, family) = host(&[
        INIT,
        (10, 1, "S", "/db.slice"),
        (11, 10, "R", "/db.slice/job/inner"),
        (12, 10, "Z", "/db.slice/job"),
        (13, 10, "S", "/db.slice.d"),
        (14, 10, "S", "/"),
    ]);
    let inside = family.inside(&BTreeSet::from(["/db.slice".to_owned()]));
    let inside = inside.expect("readable").into_iter();
    assert_eq!(
        inside.map(|process| process.pid).collect::<Vec<_>>(),
        [10, 11]
    );
}

#[test]
fn programs_are_found_by_the_names_that_the_kernel_has() {
    let processes = [
        INIT,
        (10, 1, "S", "/a.service"),
        (11, 10, "Z", "/a.service"),
        (12, 1, "S", "/b.service"),
        (13, 1, "S", "/a.service"),
    ];
    let (root, family) = host(&processes);
    let groups = BTreeSet::from(["/a.service".to_owned()]);
    assert_eq!(family.named_in(&groups, is_worker), [10, 13]);
    fs::write(root.path().join("10/status"), "Name:\ta\nNSpid:\t10\n").expect("its namespaces");
    fs::write(root.path().join("13/status"), "NSpid:\t13\t1\n").expect("its namespaces");
    let find = || family.programs(&[10, 12, 13], &groups).expect("readable");
    let [found] = &find()[..] else {
        panic!("one is outside, and one in a container: {:?}", find())
    };
    assert_eq!((found.process.pid, found.name.as_str()), (10, "a) b"));
    assert_eq!(found.words, ["worker", "10"]);
    fs::copy(root.path().join("12/stat"), root.path().join("10/stat")).expect("another process");
    assert_eq!(find(), []);
    assert_eq!(family.named_in(&groups, |_| false), [0; 0]);
}

#[test]
fn neither_zombies_nor_pid_1_nor_what_is_gone_counts() {
    let processes = [
        INIT,
        (10, 1, "S", "/a.service"),
        (11, 10, "Z", "/b.service"),
        (12, 11, "S", "/b.service"),
        (2, 0, "S", "/"),
    ];
    assert_eq!(outside(&processes, &[0, 1, 10, 99], &["/a.service"]), [12]);
    let (root, family) = host(&processes);
    fs::remove_dir_all(root.path().join("12")).expect("it ends");
    assert_eq!(find(&family, &[10], &["/a.service"]).expect("readable"), []);
}

#[test]
fn a_number_that_was_given_again_is_another_process() {
    let (root, family) = host(&[
        INIT,
        (10, 1, "S", "/a.service"),
        (11, 10, "S", "/b.service"),
    ]);
    let stat = root.path().join("11/stat");
    let text = fs::read_to_string(&stat).expect("its state");
    fs::write(&stat, text.replace("1100", "1101")).expect("another process");
    assert_eq!(find(&family, &[10], &["/a.service"]).expect("readable"), []);
}

#[test]
fn a_command_is_shown_cut_and_without_control_characters() {
    let (root, family) = host(&[INIT, (10, 1, "S", "/b.service")]);
    let shown = || {
        let found = find(&family, &[10], &[]).expect("readable");
        (
            found[0].command.clone(),
            found[0].group.clone(),
            found[0].began,
        )
    };
    assert_eq!(
        shown(),
        ("worker 10".to_owned(), "/b.service".to_owned(), 1000)
    );
    fs::write(root.path().join("10/cmdline"), "x\x1b[31m\0".repeat(100)).expect("a command");
    let (command, ..) = shown();
    assert_eq!(command.chars().count(), COMMAND_LIMIT);
    assert!(command.ends_with('…') && !command.contains(char::is_control));
    fs::write(root.path().join("10/cmdline"), "").expect("no command");
    fs::write(root.path().join("10/comm"), "name\n").expect("a name");
    assert_eq!(shown().0, "name");
}

#[test]
fn lines_that_cannot_be_understood_are_errors() {
    assert_eq!(
        stat_in("7 (a) S 3) ) S 4 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 55 0"),
        Some(Stat {
            name: "a) S 3) ".to_owned(),
            parent: 4,
            began: 55,
            is_dead: false,
            is_kernels: false
        })
    );
    let of_the_kernel = stat_in("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 0 0 0 0 55 0");
    assert!(of_the_kernel.is_some_and(|stat| stat.is_kernels && stat.began == 55));
    // The first thread of a process may have ended, and the others run on.
    for (threads, is_dead) in [(1, true), (2, false)] {
        let text = format!("7 (a) Z 4 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 {threads} 0 55 0");
        assert!(stat_in(&text).is_some_and(|stat| stat.is_dead == is_dead && stat.began == 55));
    }
    for text in [
        "",
        "7 (a S 4",
        "7 (a) S",
        "7 (a) S x 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 55",
    ] {
        assert_eq!(stat_in(text), None, "{text:?}");
    }
    let both = "4:pids,cpu:/p\n1:name=systemd:/one\n0::/two:2\n";
    assert_eq!(group_in(both), Some("/two:2"));
    let (root, _) = host(&[INIT]);
    fs::write(root.path().join("1/stat"), "1 what\n").expect("a file without sense");
    assert!(family_in(root.path()).is_err());
    assert!(
        family_in(&root.path().join("self")).is_err(),
        "no process at all is no host"
    );
}

fn sleeper() -> (Child, Process) {
    let child = Command::new("sleep").arg("60").spawn().expect("sleep");
    let pid = i32::try_from(child.id()).expect("a pid");
    let stat = Proc::new().stat(pid).expect("readable");
    let stat = stat.expect("it runs");
    (
        child,
        Process {
            pid,
            began: stat.began,
            group: String::new(),
            command: String::new(),
        },
    )
}

#[test]
fn what_cannot_be_read_is_an_error_unless_the_process_is_gone() {
    let (root, family) = host(&[INIT, (10, 1, "S", "/b.service")]);
    fs::create_dir(root.path().join("11")).expect("a process that ends");
    assert_eq!(family_in(root.path()).expect("readable"), family);
    let outside = || find(&family, &[10], &[]);
    for file in ["cgroup", "stat"] {
        let path = root.path().join("10").join(file);
        fs::rename(&path, root.path().join("kept")).expect("it is there");
        assert_eq!(outside().expect("it is gone"), []);
        fs::create_dir(&path).expect("what is no file");
        outside().expect_err("nobody knows");
        if file == "cgroup" {
            let family = family_in(root.path()).expect("the others are readable");
            find(&family, &[10], &[]).expect_err("it may be anywhere");
            assert_eq!(
                find(&family, &[], &["/b.service"]).expect("nobody asks for it"),
                []
            );
        }
        fs::remove_dir(&path).expect("it is empty");
        fs::rename(root.path().join("kept"), &path).expect("it is there");
    }
    assert_eq!(outside().expect("readable").len(), 1);
}

#[test]
fn this_process_is_found_on_this_host() {
    let own = i32::try_from(std::process::id()).expect("a pid");
    let groups = fs::read_to_string("/proc/self/cgroup").expect("readable");
    let Some(group) = group_in(&groups) else {
        return;
    };
    let outside = |groups: &[&str]| {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        let family = Family::read().expect("readable");
        let suspects = family.suspects(&BTreeSet::from([own]), &Members::new(), &groups);
        let found = family.outside(&suspects, &groups).expect("readable");
        found.into_iter().any(|process| process.pid == own)
    };
    assert!(outside(&[]) && !outside(&[group]), "{group}");
}

#[test]
fn a_process_that_began_in_the_tick_of_a_time_did_not_begin_before_it() {
    let process = |began| Process {
        pid: 7,
        began,
        group: String::new(),
        command: String::new(),
    };
    assert!(process(99).began_before(1_000_000) && !process(100).began_before(1_009_999));
    assert!(!process(0).began_before(0), "a unit that was never started");
}

#[test]
fn a_process_is_signalled_and_none_that_has_its_number_later() {
    let (mut child, process) = sleeper();
    let earlier = Process {
        began: process.began - 1,
        ..process.clone()
    };
    assert!(
        process.is(&Process {
            group: "/x".to_owned(),
            ..process.clone()
        }) && !process.is(&earlier)
    );
    signal(earlier.pid, earlier.began, Signal::TERM).expect("gone is fine");
    let both = [earlier, process.clone()];
    assert_eq!(alive(&both).expect("readable"), both[1..]);
    signal(process.pid, process.began, Signal::KILL).expect("signalled");
    // Until it is waited for it is a zombie, which counts as gone.
    while !alive(std::slice::from_ref(&process))
        .expect("readable")
        .is_empty()
    {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let status = child.wait().expect("waited for");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9),
        "the other signal was not its"
    );
    signal(process.pid, process.began, Signal::KILL).expect("gone is fine");
}
