use super::*;
use crate::host::mountinfo::mount_at;

const PID1: &str = "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
                    40 22 0:35 / /mnt/a\\040b rw shared:2 master:1 - nfs4 nas:/a rw\n";

/// A /proc with these tables.
fn proc(tables: &[(i32, &str)]) -> tempfile::TempDir {
    let proc = tempfile::tempdir().expect("a folder");
    for (pid, table) in tables {
        let process = proc.path().join(pid.to_string());
        fs::create_dir(&process).expect("a folder");
        fs::write(process.join("mountinfo"), table).expect("a file");
        fs::write(process.join("cmdline"), format!("sleep\0{pid}\0")).expect("a file");
    }
    fs::create_dir(proc.path().join("self")).expect("a folder");
    proc
}

fn mount(line: &str) -> Mount {
    parse(line).expect("a line of mountinfo")
}

fn device(path: &str, number: &str) -> Device {
    Device::new(path, number)
}

fn configured(place: &str, what: &str) -> MountUnit {
    MountUnit {
        place: place.to_owned(),
        what: what.to_owned(),
        options: String::new(),
    }
}

fn pids(users: &[User]) -> Vec<i32> {
    users.iter().map(|user| user.pid).collect()
}

/// Who is found that has a mount of the unit at `place`, of this source, which was mounted so and may be a bind mount.
fn users(
    (place, what): (&str, &str),
    was: Option<&Mount>,
    is_bind: bool,
    pid1: &[Mount],
    tables: &[(i32, &str)],
) -> Vec<i32> {
    let source = Source {
        is_bind,
        ..Source::default()
    };
    let configured = configured(place, what);
    let wanted = MountSearch::of(&configured, was, &source, pid1);
    pids(&wanted.find(proc(tables).path()).expect("it can be read"))
}

#[test]
fn mounts_are_read() {
    let proc = proc(&[(1, PID1)]);
    let table = table_of_pid1(proc.path()).expect("it can be read");
    let [root, nfs] = &table[..] else {
        panic!("two mounts")
    };
    assert_eq!(
        (
            root.number.as_str(),
            root.place.as_str(),
            root.source.as_str()
        ),
        ("8:1", "/", "/dev/sda1")
    );
    assert_eq!(
        (nfs.place.as_str(), nfs.kind.as_str(), nfs.source.as_str()),
        ("/mnt/a b", "nfs4", "nas:/a")
    );
}

#[test]
fn what_cannot_be_read_proves_nothing() {
    for table in ["", "nonsense\n"] {
        table_of_pid1(proc(&[(1, table)]).path()).expect_err("that is no table");
    }
    let (configured, source) = (configured("/mnt", "nas:/b"), Source::default());
    let wanted = MountSearch::of(&configured, None, &source, &[]);
    wanted
        .find(proc(&[(7, PID1)]).path())
        .expect_err("PID 1 is hidden, and so may others be");
    wanted
        .find(proc(&[(1, PID1), (7, "nonsense\n")]).path())
        .expect_err("an odd table");
    let ending = proc(&[(1, PID1), (7, "")]);
    fs::create_dir(ending.path().join("8")).expect("a folder");
    assert_eq!(
        wanted
            .find(ending.path())
            .expect("processes end at any time"),
        []
    );
}

#[test]
fn the_place_of_a_mount_is_its_name() {
    let place = |name| place_of(&UnitName::new(name).expect("a unit's name"));
    assert_eq!(place("srv-data.mount").as_deref(), Some("/srv/data"));
    assert_eq!(
        place("srv-a\\x2db\\x20c.mount").as_deref(),
        Some("/srv/a-b c")
    );
    assert_eq!(place("-.mount").as_deref(), Some("/"));
    assert_eq!(place("srv-data.service"), None);
}

#[test]
fn tags_are_links_of_udev() {
    assert_eq!(device_path("/dev/sdb1"), Path::new("/dev/sdb1"));
    assert_eq!(
        device_path("UUID=ab-12"),
        Path::new("/dev/disk/by-uuid/ab-12")
    );
    assert_eq!(
        device_path("LABEL=\"a b/c\""),
        Path::new("/dev/disk/by-label/a\\x20b\\x2fc")
    );
    assert_eq!(device_path("nas:/a=b"), Path::new("nas:/a=b"));
    assert_eq!(
        device_path("PARTUUID=7"),
        Path::new("/dev/disk/by-partuuid/7")
    );
    assert_eq!(
        device_path("PARTLABEL=a+b:c=ä"),
        Path::new("/dev/disk/by-partlabel/a+b:c=ä")
    );
    assert_eq!(
        device_path("LABEL=$"),
        Path::new("/dev/disk/by-label/\\x24")
    );
}

#[test]
fn the_loop_devices_of_a_file_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("image");
    fs::write(&image, "").expect("a file");
    let devices = folder.path().join("block");
    for (name, shown) in [
        ("loop0", "/other"),
        ("loop1", image.to_str().expect("text")),
    ] {
        fs::create_dir_all(devices.join(name).join("loop")).expect("a folder");
        fs::write(
            devices.join(name).join("loop/backing_file"),
            format!("{shown}\n"),
        )
        .expect("a file");
        fs::write(devices.join(name).join("dev"), "7:1\n").expect("a file");
    }
    fs::create_dir_all(devices.join("sda")).expect("a folder");
    let found = loops_of(&devices, &image).expect("it can be read");
    assert_eq!(found, [device("/dev/loop1", "7:1")]);
}

#[test]
fn a_device_is_found_in_other_namespaces() {
    let other =
        "90 80 8:1 / / rw - ext4 /dev/sda1 rw\n91 90 8:16 /sub /data rw - ext4 /dev/sdb rw\n";
    let btrfs = "95 80 0:50 /@ / rw - btrfs /dev/sdb rw\n";
    let disk = device("/dev/sdb", "8:16");
    let find = |tables: &[(i32, &str)]| {
        users_of(proc(tables).path(), |mount| has(&disk, mount)).expect("it can be read")
    };
    assert_eq!(find(&[(1, PID1), (7, PID1)]), []);
    let found = find(&[(1, PID1), (7, other), (8, other), (9, btrfs)]);
    assert_eq!(pids(&found), [7, 9], "one process for each namespace");
    let text = found[0].to_string();
    assert!(
        text.contains("process 7 (sleep 7) has it at /data") && text.contains("nsenter --target 7"),
        "{text}"
    );
}

#[test]
fn what_has_no_device_counts_where_it_can_only_be_the_units() {
    let was = mount("40 22 0:40 / /srv/data rw - nfs4 nas:/data rw");
    let volume = "90 80 0:40 / /data rw - nfs4 nas:/data rw\n";
    let copy = "91 80 0:40 / /host/srv/data rw - nfs4 nas:/data rw\n";
    let reused = "92 80 0:40 / /data rw - nfs4 nas:/others rw\n";
    let tables = [(1, PID1), (7, volume), (8, copy), (9, reused)];
    let nas = ("/srv/data", "nas:/data");
    let found = |is_bind, pid1: &[Mount]| users(nas, Some(&was), is_bind, pid1, &tables);
    assert_eq!(found(false, &[]), [7, 8]);
    assert_eq!(
        found(true, &[]),
        [8],
        "what a bind mount shows is there without it"
    );
    let twice = mount("41 22 0:40 / /srv/again rw - nfs4 nas:/data rw");
    assert_eq!(
        found(false, &[twice]),
        [8],
        "the volume may be of the other mount"
    );
    assert_eq!(
        users(nas, None, false, &[], &tables),
        [7, 8],
        "where nobody saw it mounted"
    );
    let memory = mount("40 22 0:40 / /run/a rw - tmpfs tmpfs rw");
    let tables = [(1, PID1), (7, "90 80 0:40 / /x rw - tmpfs tmpfs rw\n")];
    let found = users(("/run/a", "tmpfs"), Some(&memory), false, &[], &tables);
    assert!(found.is_empty(), "{found:?}");
    let overlay = |place: &str, upper| {
        format!(
            "40 22 0:40 / {place} rw - overlay overlay rw,lowerdir=/l,upperdir={upper},workdir=/w\n"
        )
    };
    let was = mount(overlay("/mnt/ov", "/u").trim_end());
    let copies =
        [overlay("/x", "/u"), overlay("/x", "/other")].map(|line| line.replace("40 22", "90 80"));
    let tables = [
        (1, PID1),
        (7, &copies[0]),
        (8, &copies[1].replace("90 80", "91 80")),
    ];
    assert_eq!(
        users(("/mnt/ov", "overlay"), Some(&was), false, &[], &tables),
        [7],
        "another overlay has its number later"
    );
}

#[test]
fn a_mount_is_the_same_if_all_of_it_is() {
    let was = "40 22 0:40 /a /srv/data rw - nfs4 nas:/data rw";
    assert!(mount(was).is_same(&mount("41 30 0:40 /a /elsewhere ro - nfs4 nas:/data ro")));
    for other in [
        "40 22 0:41 /a /srv/data rw - nfs4 nas:/data rw",
        "40 22 0:40 /b /srv/data rw - nfs4 nas:/data rw",
        "40 22 0:40 /a /srv/data rw - nfs nas:/data rw",
        "40 22 0:40 /a /srv/data rw - nfs4 nas:/b rw",
    ] {
        assert!(!mount(other).is_same(&mount(was)), "{other}");
    }
}

#[test]
fn what_is_looked_for_is_the_device_or_what_tells_it_from_others() {
    let wanted = |what: &str, was: Option<&str>, is_bind, pid1: &[Mount]| {
        let (was, configured) = (was.map(mount), configured("/srv/data", what));
        let source = Source {
            is_bind,
            ..Source::default()
        };
        let wanted = MountSearch::of(&configured, was.as_ref(), &source, pid1);
        (wanted.devices.len(), wanted.part.map(|_| wanted.anywhere))
    };
    let looked_for = |line: &str, is_bind| wanted("what", Some(line), is_bind, &[]);
    let disk = "40 22 8:16 / /srv/data rw - ext4 /dev/sdb rw";
    assert_eq!(looked_for(disk, false), (1, None));
    assert_eq!(
        looked_for(disk, true),
        (0, Some(false)),
        "the whole device is mounted otherwise"
    );
    assert_eq!(
        looked_for("40 22 0:40 / /srv/data rw - nfs4 nas:/data rw", false),
        (0, Some(true))
    );
    for memory in [
        "40 22 0:40 / /srv/data rw - tmpfs tmpfs rw",
        "40 22 0:40 / /srv/data rw - tmpfs none rw",
    ] {
        assert_eq!(looked_for(memory, false), (0, None));
        assert_eq!(looked_for(memory, true), (0, Some(false)));
    }
    let shown = [mount("40 22 0:40 / /srv/again rw - nfs4 nas:/data rw")];
    let source = |what: &str| wanted(what, None, false, &shown).1;
    assert_eq!(
        source("nas:/data"),
        Some(false),
        "the volume may be of the other mount"
    );
    assert_eq!(source("nas:/b"), Some(true));
    assert_eq!(source("tmpfs"), None);
}

#[test]
fn a_mount_is_of_a_device_by_its_number_or_its_name() {
    let device = device("/dev/sdb", "8:16");
    assert!(has(
        &device,
        &mount("40 22 8:16 / /srv rw - ext4 /dev/disk/by-uuid/x rw")
    ));
    assert!(has(
        &device,
        &mount("40 22 0:50 / /srv rw - btrfs /dev/sdb rw")
    ));
    assert!(!has(
        &device,
        &mount("40 22 8:1 / / rw - ext4 /dev/sda1 rw")
    ));
}

#[test]
fn an_operator_sees_one() {
    let user = |pid| User {
        pid,
        place: "/srv".to_owned(),
        command: "sh".to_owned(),
    };
    assert_eq!(
        user(1).to_string(),
        "process 1 (sh) has it at /srv: run \"nsenter --target 1 --mount umount /srv\""
    );
    let device = device("/dev/sdb", "8:16");
    assert!(busy(&device, &[]).starts_with("/dev/sdb is busy, and no process shows a mount of it"));
    assert!(busy(&device, &[user(7)]).starts_with("/dev/sdb is busy: process 7 (sh)"));
}

#[test]
fn what_this_host_has_mounted_is_not_gone() {
    let root = mount_at("/")
        .expect("it can be read")
        .expect("every namespace has a root");
    assert_eq!(root.place, "/");
    assert_eq!(mount_at("/nowhere").expect("it can be read"), None);
    let configured = |place: &str| configured(place, "/dev/nowhere");
    let check = |place: &str, source: &Source| {
        still_mounted(&configured(place), None, source).expect("it can be read")
    };
    let source = Source::of(&configured("/nowhere"), None).expect("it can be read");
    assert_eq!(
        check("/", &source).as_deref(),
        Some("something is mounted at /")
    );
    assert_eq!(check("/nowhere", &source), None, "nobody has it");
    let is_in_use = |claim| {
        let devices = vec![Device {
            claim,
            ..device("/dev/nowhere", "0:0")
        }];
        check(
            "/nowhere",
            &Source {
                devices,
                ..Source::default()
            },
        )
        .is_some()
    };
    assert_eq!(
        [DeviceUse::Free, DeviceUse::Unknown, DeviceUse::Busy].map(is_in_use),
        [false, false, true]
    );
}

#[test]
fn folders_and_files_are_on_no_device_of_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = |what: &Path, options: &str| {
        let what = what.to_str().expect("text").to_owned();
        let configured = MountUnit {
            place: "/srv/data".to_owned(),
            what,
            options: options.to_owned(),
        };
        // As the kernel shows the mount of a folder.
        let was = mount("40 22 8:1 /var/data /srv/data rw - ext4 /dev/sda1 rw");
        Source::of(&configured, Some(&was)).expect("it can be read")
    };
    let bind = Source {
        is_bind: true,
        ..Source::default()
    };
    assert_eq!(source(folder.path(), "defaults"), bind);
    assert_eq!(source(Path::new("/dev/nowhere"), "ro,rbind"), bind);
    let image = folder.path().join("image");
    fs::write(&image, "").expect("a file");
    assert_eq!(
        source(&image, "loop"),
        Source {
            is_file: true,
            ..Source::default()
        }
    );
}
