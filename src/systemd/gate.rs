//! The gate: what binds a unit to its lease. The generator writes it as a drop-in; what counts is what PID 1 has loaded,
//! since any other file of the unit may take a part of it away.

use std::path::Path;

use zbus::{Structure, Variant};

use super::Systemd;
use super::error::BusError;
use super::properties::Properties;
use super::remedy::drop_in;
use crate::types::{FENCING_TOKEN, LEASES_DIR, ServiceName, UnitName};

/// The drop-in's name. systemd reads a unit's drop-ins in the order of their names, whichever directories they are in,
/// and an empty `ExecCondition=`, `EnvironmentFile=` or `AssertPathExists=` in a later one would take this one's away:
/// `systemctl edit` writes an `override.conf`, and many administrators use `zzz.conf` to have the last word.
pub const DROP_IN: &str = "zzzz-putex.conf";

/// The program that `ExecCondition=` runs.
pub const PROGRAM: &str = "/usr/bin/putex-guard";
/// What a unit with `NoExecPaths=` needs for it: the program, and the C library that it is linked with.
pub const EXEC_PATHS: &str = "ExecPaths=/usr/bin/putex-guard /usr/lib -/usr/lib64";
/// The unit of the guard: all leases end with it.
pub const GUARD_UNIT: &str = "putex-guard.service";

/// The directory that generators write to. systemd makes it anew at each daemon-reload, before the units are read. A file
/// of the drop-in's name may be in other directories too.
pub const GENERATED_DIR: &str = "/run/systemd/generator";

/// The paths that the gate needs in the file system as its process sees it. A root directory may have libraries of its
/// own.
const NEEDED: [&str; 4] = [PROGRAM, LEASES_DIR, "/usr/lib", LIB64];
const LIB64: &str = "/usr/lib64";

/// The properties that lay something over a part of the file system that a unit sees, and the index of its place in an
/// item.
const HIDING: [(&str, usize); 4] =
    [("TemporaryFileSystem", 0), ("BindPaths", 1), ("BindReadOnlyPaths", 1), ("MountImages", 1)];

/// What is wrong with a unit, and what to do about it.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) trouble: String,
    pub(super) remedy: String,
}

impl Systemd {
    /// Whether PID 1 has loaded all that binds `unit` to the lease of `service`. A slice or scope is taken for one that
    /// the service contains, which needs less than a unit.
    pub async fn is_gated(&self, service: &ServiceName, unit: &UnitName) -> Result<bool, BusError> {
        let check = if matches!(unit.kind(), "slice" | "scope") { check_contained } else { check };
        Ok(check(&self.read_settings(unit.as_str()).await?, service).is_ok())
    }
}

/// Checks that nothing can start the unit, as PID 1 has loaded it, without the lease of `service`, and that it ends with
/// the lease.
pub(super) fn check(properties: &Properties, service: &ServiceName) -> Result<(), Trouble> {
    let missing = missing(properties, service);
    if missing.is_empty() {
        return Ok(());
    }
    let trouble = format!("is not bound to its lease as systemd has loaded it: it lacks {}", missing.join(", "));
    Err(Trouble { trouble, remedy: remedy(&properties.texts("DropInPaths")) })
}

/// Checks that nothing can be started in a contained slice, as PID 1 has loaded it, without the lease of `service`, and
/// that the slice ends with the guard. A scope always passes: PID 1 tells nothing of one that nobody has made yet.
pub(super) fn check_contained(properties: &Properties, service: &ServiceName) -> Result<(), Trouble> {
    if properties.kind() == "scope" {
        return Ok(());
    }
    let grant = service.grant();
    let trouble = if !properties.items("Asserts").iter().any(|item| asserts(item, &grant)) {
        format!("may be started without the lease as systemd has loaded it: it lacks AssertPathExists={grant}")
    } else if !properties.texts("BindsTo").iter().any(|name| name == GUARD_UNIT) {
        format!("may outlive the guard as systemd has loaded it: it lacks BindsTo={GUARD_UNIT}")
    } else {
        return Ok(());
    };
    Err(Trouble { trouble, remedy: remedy(&properties.texts("DropInPaths")) })
}

/// Checks that the gate can run where systemd starts it, and finds the fencing token. It runs as the unit's own programs
/// do, with the unit's user, sandbox and environment: as root it would run whatever `LD_PRELOAD=` names there.
pub(super) fn check_reach(properties: &Properties) -> Result<(), Trouble> {
    if properties.kind() != "service" {
        return Ok(());
    }
    let id = properties.text("Id").unwrap_or_default();
    let unset = properties.texts("UnsetEnvironment");
    let is_token = |entry: &String| entry.split('=').next() == Some(FENCING_TOKEN);
    if unset.iter().any(is_token) {
        return Err(Trouble {
            trouble: format!("has UnsetEnvironment={FENCING_TOKEN}, which its start is judged by"),
            remedy: without(id, "UnsetEnvironment", unset.into_iter().filter(|entry| !is_token(entry))),
        });
    }
    if let Some(trouble) = denied(properties) {
        return Err(trouble);
    }
    let mounts = mounts(properties);
    // Of several mounts the one that is closest to a file counts.
    let cover = |needed: &&str| {
        let covers = mounts.iter().filter(|mount| is_below(needed, &mount.place));
        covers.max_by_key(|mount| mount.place.len()).filter(|mount| mount.hides)
    };
    let hidden = NEEDED.into_iter().filter(|needed| {
        cover(needed).is_some_and(|mount| !mount.has_libraries || matches!(*needed, PROGRAM | LEASES_DIR))
    });
    let hidden: Vec<&str> = hidden.collect();
    let Some(mount) = hidden.first().and_then(cover) else { return Ok(()) };
    let is_whole = !mount.has_libraries && mount.place == "/";
    // Not every host has the second one, and what hides all hides the links to them.
    let with_links = hidden.iter().map(|needed| if *needed == LIB64 { "-/usr/lib64" } else { needed });
    let with_links = with_links.chain(is_whole.then_some(["-/lib", "-/lib64"]).into_iter().flatten());
    let bind = format!("BindReadOnlyPaths={}", with_links.collect::<Vec<_>>().join(" "));
    let remedy = if mount.has_libraries {
        let outside = drop_in(id, "Service", "RootDirectoryStartOnly=yes");
        format!("{outside}, or have {PROGRAM} run inside of it by {bind}")
    } else {
        drop_in(id, "Service", &bind)
    };
    let hidden = hidden.join(" and ");
    Err(Trouble { trouble: format!("has {}, which hides {hidden} from the gate of its start", mount.setting), remedy })
}

/// The remedy that takes entries out of a list: the list anew, with the `others`.
fn without(unit: &str, name: &str, others: impl Iterator<Item = String>) -> String {
    let others: Vec<String> = others.collect();
    let again = if others.is_empty() { String::new() } else { format!("\n{name}={}", others.join(" ")) };
    drop_in(unit, "Service", &format!("{name}={again}"))
}

/// The trouble, if any, that the sandbox makes a path inaccessible which the gate needs, or does not let it run.
fn denied(properties: &Properties) -> Option<Trouble> {
    let id = properties.text("Id").unwrap_or_default();
    let place = |entry: &str| entry.trim_start_matches(['-', '+']).to_owned();
    let covered = |entry: &String| NEEDED.into_iter().find(|needed| is_below(needed, &place(entry)));
    let inaccessible = properties.texts("InaccessiblePaths");
    if let Some((entry, needed)) = inaccessible.iter().find_map(|entry| Some((entry.clone(), covered(entry)?))) {
        return Some(Trouble {
            trouble: format!("has InaccessiblePaths={entry}, which keeps {needed} from the gate of its start"),
            remedy: without(id, "InaccessiblePaths", inaccessible.into_iter().filter(|entry| covered(entry).is_none())),
        });
    }
    let closest = |name: &str| {
        let entries = properties.texts(name);
        entries.into_iter().filter(|entry| is_below(PROGRAM, &place(entry))).max_by_key(|entry| place(entry).len())
    };
    let refusal = closest("NoExecPaths")?;
    let is_permitted = closest("ExecPaths").is_some_and(|permit| place(&permit).len() >= place(&refusal).len());
    (!is_permitted).then(|| Trouble {
        trouble: format!("has NoExecPaths={refusal}, which keeps the gate of its start from running"),
        remedy: drop_in(id, "Service", EXEC_PATHS),
    })
}

fn missing(properties: &Properties, service: &ServiceName) -> Vec<String> {
    let (target, grant) = (service.lease_target().to_string(), service.grant());
    let mut missing = Vec::new();
    for name in ["BindsTo", "After"] {
        if !properties.texts(name).contains(&target) {
            missing.push(format!("{name}={target}"));
        }
    }
    if !properties.items("Asserts").iter().any(|item| asserts(item, &grant)) {
        missing.push(format!("AssertPathExists={grant}"));
    }
    if properties.kind() == "service" {
        if !properties.items("ExecConditionEx").iter().any(|item| calls_the_gate(item, service)) {
            missing.push(format!("ExecCondition={PROGRAM} gate {service}"));
        }
        // A later file could put another fencing token in the place of the grant's.
        let last = properties.items("EnvironmentFiles").last().and_then(|item| text_at(item, 0));
        if last != Some(&grant) {
            missing.push(format!("EnvironmentFile=-{grant} as the last one"));
        }
    }
    missing
}

/// Whether `item` asserts the grant: `(sbbsi)` of name, trigger, negation, parameter, outcome. An assertion with a
/// trigger (`|`) does not count, as it is content with the success of another one.
fn asserts(item: &Variant<'_>, grant: &str) -> bool {
    let Some([name, trigger, negated, parameter, ..]) = fields(item) else { return false };
    is_text(name, "AssertPathExists")
        && bool::try_from(trigger) == Ok(false)
        && bool::try_from(negated) == Ok(false)
        && is_text(parameter, grant)
}

/// Whether `item` runs the gate: `(sasasttttuii)` of path, arguments, flags, and how the last run went.
fn calls_the_gate(item: &Variant<'_>, service: &ServiceName) -> bool {
    let Some([path, arguments, flags, ..]) = fields(item) else { return false };
    let (arguments, flags) = (texts_of(arguments), texts_of(flags));
    is_text(path, PROGRAM)
        && matches!(arguments[..], [_, "gate", name] if name == service.as_str())
        && !flags.contains(&"ignore-failure")
}

/// What the operator should do about the drop-in that is in the way, as far as the names of the files tell.
pub(super) fn remedy(drop_ins: &[String]) -> String {
    let is_ours = |path: &str| path.rsplit('/').next() == Some(DROP_IN);
    let Some(at) = drop_ins.iter().position(|path| is_ours(path)) else {
        return "run \"systemctl daemon-reload\", and see what putex-generator says in \"journalctl -k\"".to_owned();
    };
    if !Path::new(&drop_ins[at]).starts_with(GENERATED_DIR) {
        let path = &drop_ins[at];
        return format!("remove {path}, which hides what putex-generator writes, and run \"systemctl daemon-reload\"");
    }
    let later = drop_ins[at + 1..].join(", ");
    if later.is_empty() {
        return "run \"systemctl daemon-reload\"".to_owned();
    }
    format!("give {later} a name that sorts before {DROP_IN}, and run \"systemctl daemon-reload\"")
}

/// A mount that is laid over a part of the file system.
struct Mount {
    place: String,
    /// The setting as it is written in the unit.
    setting: String,
    /// Whether something else than the host's own files is there.
    hides: bool,
    /// Whether it is a root directory, which has libraries of its own.
    has_libraries: bool,
}

fn mounts(properties: &Properties) -> Vec<Mount> {
    let mut mounts = Vec::new();
    if properties.flag("RootDirectoryStartOnly") != Some(true) {
        for name in ["RootDirectory", "RootImage"] {
            let root = properties.text(name).filter(|root| !matches!(*root, "" | "/"));
            mounts.extend(root.map(|root| Mount {
                place: "/".to_owned(),
                setting: format!("{name}={root}"),
                hides: true,
                has_libraries: true,
            }));
        }
    }
    for (name, at) in HIDING {
        for item in properties.items(name) {
            let (Some(first), Some(place)) = (text_at(item, 0), text_at(item, at)) else { continue };
            let setting = if at == 0 { format!("{name}={place}") } else { format!("{name}={first}:{place}") };
            let hides = at == 0 || first != place;
            mounts.push(Mount { place: place.to_owned(), setting, hides, has_libraries: false });
        }
    }
    mounts
}

/// Whether `path` is `place` or lies in it.
fn is_below(path: &str, place: &str) -> bool {
    path.strip_prefix(place.trim_end_matches('/')).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn fields<'a>(item: &'a Variant<'_>) -> Option<&'a [Variant<'a>]> {
    <&Structure<'_>>::try_from(item).ok().map(Structure::fields)
}

fn text_at<'a>(item: &'a Variant<'_>, at: usize) -> Option<&'a str> {
    <&str>::try_from(fields(item)?.get(at)?).ok()
}

fn is_text(value: &Variant<'_>, text: &str) -> bool {
    <&str>::try_from(value) == Ok(text)
}

fn texts_of<'a>(value: &'a Variant<'_>) -> Vec<&'a str> {
    let Variant::Array(array) = value else { return Vec::new() };
    array.inner().iter().filter_map(|item| <&str>::try_from(item).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Condition = (&'static str, Vec<&'static str>, Vec<&'static str>, u64, u64, u64, u64, u32, i32, i32);

    const TARGET: &str = "putex-lease@db.target";
    const GRANT: &str = "/run/putex/leases/db";
    const OURS: &str = "/run/systemd/generator/a.service.d/zzzz-putex.conf";

    fn service() -> ServiceName {
        ServiceName::new("db").expect("a name")
    }

    fn condition(arguments: &[&'static str], flags: &[&'static str]) -> Condition {
        (arguments[0], arguments.to_vec(), flags.to_vec(), 0, 0, 0, 0, 0, 0, 0)
    }

    fn gate() -> Condition {
        condition(&[PROGRAM, "gate", "db"], &[])
    }

    /// A unit with a whole gate, as systemd tells of it; `others` replaces some of its properties.
    fn properties(id: &str, others: Vec<(&str, Variant<'static>)>) -> Properties {
        let whole = vec![
            ("Id", Variant::from(id.to_owned())),
            ("BindsTo", Variant::from(vec![TARGET])),
            ("After", Variant::from(vec!["system.slice", TARGET])),
            ("Asserts", Variant::from(vec![("AssertPathExists", false, false, GRANT, 0_i32)])),
            ("DropInPaths", Variant::from(vec!["/etc/systemd/system/a.service.d/override.conf", OURS])),
            ("ExecConditionEx", Variant::from(vec![condition(&["/bin/true"], &[]), gate()])),
            ("EnvironmentFiles", Variant::from(vec![("/etc/own", true), (GRANT, true)])),
        ];
        // The last value of a property counts.
        let all: std::collections::HashMap<&str, Variant<'static>> = whole.into_iter().chain(others).collect();
        Properties::of(all)
    }

    /// What [`check`] says of the gate.
    fn said(others: Vec<(&str, Variant<'static>)>) -> String {
        let Trouble { trouble, remedy } = check(&properties("a.service", others), &service()).expect_err("refused");
        format!("{trouble}; {remedy}")
    }

    #[test]
    fn a_whole_gate_is_found() {
        for id in ["a.service", "a.timer"] {
            check(&properties(id, Vec::new()), &service()).expect("gated");
        }
        let others = ["ExecConditionEx", "EnvironmentFiles"].map(|name| (name, Variant::from(Vec::<String>::new())));
        check(&properties("a.socket", others.into()), &service()).expect("what is no service has no commands");
        let before = vec![gate(), condition(&["/bin/true"], &["ignore-failure"])];
        let asserts = vec![
            ("AssertPathExists", true, false, "/elsewhere", -1_i32),
            ("AssertPathExists", false, false, GRANT, 1_i32),
        ];
        let others = vec![("ExecConditionEx", Variant::from(before)), ("Asserts", Variant::from(asserts))];
        check(&properties("a.service", others), &service()).expect("gated beside conditions of others");
    }

    #[test]
    fn each_part_of_the_gate_is_missed() {
        let other = vec!["putex-lease@other.target"];
        for name in ["BindsTo", "After"] {
            let text = said(vec![(name, Variant::from(other.clone()))]);
            assert!(text.contains(&format!("lacks {name}={TARGET};")), "{text}");
        }
        for assertion in [
            ("AssertPathExists", true, false, GRANT, 0_i32),
            ("AssertPathExists", false, true, GRANT, 0_i32),
            ("AssertPathExists", false, false, "/run/putex/leases/other", 0_i32),
            ("AssertPathIsReadWrite", false, false, GRANT, 0_i32),
        ] {
            let text = said(vec![("Asserts", Variant::from(vec![assertion]))]);
            assert!(text.contains("lacks AssertPathExists=/run/putex/leases/db;"), "{text}");
        }
        for conditions in [
            Vec::new(),
            vec![condition(&["/bin/true"], &[])],
            vec![condition(&[PROGRAM, "gate", "db"], &["ignore-failure"])],
            vec![condition(&[PROGRAM, "gate", "other"], &[])],
            vec![condition(&[PROGRAM, "--version"], &[])],
        ] {
            let text = said(vec![("ExecConditionEx", Variant::from(conditions))]);
            assert!(text.contains("lacks ExecCondition=/usr/bin/putex-guard gate db;"), "{text}");
        }
        for files in [Vec::new(), vec![("/etc/own", true)], vec![(GRANT, true), ("/etc/own", true)]] {
            let text = said(vec![("EnvironmentFiles", Variant::from(files))]);
            assert!(text.contains("lacks EnvironmentFile=-/run/putex/leases/db as the last one;"), "{text}");
        }
    }

    #[test]
    fn the_file_in_the_way_is_named() {
        let none = |paths: Vec<&'static str>| {
            said(vec![("BindsTo", Variant::from(Vec::<String>::new())), ("DropInPaths", Variant::from(paths))])
        };
        let shadow = "/etc/systemd/system/a.service.d/zzzz-putex.conf";
        let later = "/etc/systemd/system/a.service.d/zzzzz.conf";
        assert!(none(vec![shadow]).contains(&format!("; remove {shadow}, ")));
        assert!(none(vec![OURS, later]).contains(&format!("; give {later} a name that sorts before {DROP_IN}, ")));
        assert!(none(vec![OURS]).ends_with("; run \"systemctl daemon-reload\""));
        assert!(none(Vec::new()).contains("what putex-generator says"));
        let kept = "/run/systemd/system/a.service.d/zzzz-putex-kept.conf";
        assert!(none(vec![kept]).contains("what putex-generator says"));
        assert!(none(vec![kept, OURS]).ends_with("; run \"systemctl daemon-reload\""), "it is in the way of nothing");
    }

    /// What [`check_reach`] says of a unit whose gate is whole.
    fn reach(others: Vec<(&str, Variant<'static>)>) -> Result<(), String> {
        let reach = check_reach(&properties("a.service", others));
        reach.map_err(|Trouble { trouble, remedy }| format!("{trouble}: {remedy}"))
    }

    fn paths(name: &'static str, path: &'static str) -> (&'static str, Variant<'static>) {
        (name, Variant::from(vec![path]))
    }

    fn bind(source: &'static str, place: &'static str) -> Vec<(&'static str, &'static str, bool, u64)> {
        vec![(source, place, false, 0)]
    }

    #[test]
    fn a_gate_that_cannot_be_reached_is_found() {
        let root = || ("RootDirectory", Variant::from("/srv/root"));
        let tmpfs = |place: &'static str| ("TemporaryFileSystem", Variant::from(vec![(place, "")]));
        let image = vec![("/srv/image", "/usr", false, Vec::<(&str, &str)>::new())];
        for (settings, wanted) in [
            (vec![root()], "RootDirectory=/srv/root"),
            (vec![root()], "BindReadOnlyPaths=/usr/bin/putex-guard /run/putex/leases"),
            (vec![root(), ("BindReadOnlyPaths", Variant::from(bind(PROGRAM, PROGRAM)))], "=/run/putex/leases"),
            (vec![("RootImage", Variant::from("/srv/image"))], "RootDirectoryStartOnly=yes"),
            (vec![tmpfs("/run")], " BindReadOnlyPaths=/run/putex/leases >"),
            (vec![tmpfs("/usr")], "'BindReadOnlyPaths=/usr/bin/putex-guard /usr/lib -/usr/lib64'"),
            (
                vec![tmpfs("/")],
                "'BindReadOnlyPaths=/usr/bin/putex-guard /run/putex/leases /usr/lib -/usr/lib64 -/lib -/lib64'",
            ),
            (vec![tmpfs("/usr"), ("RootDirectoryStartOnly", Variant::from(true))], "TemporaryFileSystem=/usr"),
            (vec![("BindPaths", Variant::from(bind("/srv/run", "/run/")))], "BindPaths=/srv/run:/run/, which"),
            (vec![("MountImages", Variant::from(image))], "MountImages=/srv/image:/usr"),
            (vec![("UnsetEnvironment", Variant::from(vec!["A", "PUTEX_FENCING_TOKEN"]))], "UnsetEnvironment="),
            (vec![("UnsetEnvironment", Variant::from(vec!["PUTEX_FENCING_TOKEN=7"]))], " UnsetEnvironment= >"),
            (
                vec![("UnsetEnvironment", Variant::from(vec!["PUTEX_FENCING_TOKEN", "A"]))],
                " UnsetEnvironment= UnsetEnvironment=A >",
            ),
            (
                vec![("InaccessiblePaths", Variant::from(vec!["/srv", "-/run/putex"]))],
                "InaccessiblePaths=-/run/putex, ",
            ),
            (vec![("InaccessiblePaths", Variant::from(vec!["/usr/bin"]))], " InaccessiblePaths= >"),
            (vec![paths("NoExecPaths", "+/")], "NoExecPaths=+/, which"),
            (
                vec![paths("NoExecPaths", "/usr/bin"), paths("ExecPaths", "/usr")],
                "'ExecPaths=/usr/bin/putex-guard /usr/lib -/usr/lib64' >",
            ),
        ] {
            let text = reach(settings).expect_err(wanted);
            assert!(text.contains(wanted), "{text}");
        }
    }

    #[test]
    fn what_does_not_hide_the_gate_is_no_trouble() {
        let root = || ("RootDirectory", Variant::from("/srv/root"));
        let binds = [PROGRAM, "/run"].map(|place| (place, place, false, 0_u64));
        for settings in [
            Vec::new(),
            vec![root(), ("RootDirectoryStartOnly", Variant::from(true))],
            vec![root(), ("BindReadOnlyPaths", Variant::from(binds.to_vec()))],
            vec![("RootDirectory", Variant::from("/")), ("RootImage", Variant::from(""))],
            vec![("TemporaryFileSystem", Variant::from(vec![("/var", ""), ("/usr/local", ""), ("/run/put", "")]))],
            vec![
                ("TemporaryFileSystem", Variant::from(vec![("/run", "ro")])),
                ("BindPaths", Variant::from(bind("/run/putex", "/run/putex"))),
            ],
            vec![("UnsetEnvironment", Variant::from(vec!["PUTEX_NODE", "PUTEX_FENCING_TOKENS=1"]))],
            vec![("InaccessiblePaths", Variant::from(vec!["/usr/bin/putexctl", "-/run/put"]))],
            vec![paths("NoExecPaths", "/srv")],
            vec![paths("NoExecPaths", "/"), paths("ExecPaths", "-/usr/bin/")],
        ] {
            assert_eq!(reach(settings), Ok(()));
        }
        let other = properties("a.socket", vec![("RootDirectory", Variant::from("/srv/root"))]);
        check_reach(&other).expect("what is no service calls no gate");
    }
}
