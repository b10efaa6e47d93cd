//! The gate: what binds a unit to its lease. The generator writes it as a drop-in; what counts is what PID 1 has loaded,
//! since any other file of the unit may take a part of it away.

use std::path::Path;

use super::{
    properties::{CommandEx, Condition, Properties},
    refusal::{Refusal, changed, refuse},
};
use crate::types::{LEASES_DIR, ServiceName};

/// The drop-in's name. systemd reads a unit's drop-ins in the order of their names, whichever directories they are in,
/// and an empty `ExecCondition=`, `EnvironmentFile=` or `AssertPathExists=` in a later one would take this one's away:
/// `systemctl edit` writes an `override.conf`, and many administrators use `zzz.conf` to have the last word.
pub const DROP_IN: &str = "zzzz-putex.conf";

/// The program that `ExecCondition=` runs.
pub const PROGRAM: &str = "/usr/bin/putex-guard";
/// What it exits with where the unit is not to be started. systemd skips a start for each status from 1 to this one, unless
/// `SuccessExitStatus=` names it; units do name 1.
pub const CLOSED: u8 = 254;
/// What a unit with `NoExecPaths=` needs for it: the program, and the C library that it is linked with.
pub const EXEC_PATHS: &str = "ExecPaths=/usr/bin/putex-guard /usr/lib -/usr/lib64";
/// The target that keeps the units of services loaded; putexd wants it.
pub const UNITS_TARGET: &str = "putex-units.target";
/// The unit of the guard: all leases end with it.
pub const GUARD_UNIT: &str = "putex-guard.service";

/// The directory that generators write to. systemd makes it anew at each daemon-reload, before the units are read. A file
/// of the drop-in's name may be in other directories too.
pub const GENERATED_DIR: &str = "/run/systemd/generator";

/// What systemd does by itself when a unit starts, ends or is not needed, in section `[Unit]`, and the value with which it does nothing.
///
/// Under a lease putexd decides when a unit starts and ends, so what the administrator has meant by such a setting does not hold any
/// more: a step-down is no success that the host is to be shut down for, and a SIGKILL at a lapse is no failure that all other services
/// of the host are to pay for. The drop-in that binds a unit turns these settings off.
pub const TURNED_OFF: [(&str, &str); 5] = [
    ("FailureAction", "none"),
    ("SuccessAction", "none"),
    ("StartLimitAction", "none"),
    ("JobTimeoutAction", "none"),
    ("StopWhenUnneeded", "no"),
];

/// Checks that nothing can start the unit, as PID 1 has loaded it, without the lease of `service`, and that it ends with
/// the lease.
pub fn check(properties: &Properties, service: &ServiceName) -> Result<(), Refusal> {
    let missing = missing(properties, service).join(", ");
    if missing.is_empty() {
        return Ok(());
    }
    let (unit, remedy) = (properties.id(), remedy(&properties.texts("DropInPaths")));
    Err(Refusal::Ungated(format!(
        "{unit} is not bound to its lease as systemd has loaded it: it lacks {missing}: {remedy}"
    )))
}

/// Checks that the gate can run where systemd starts it. It runs as the unit's own programs do, with the unit's user, sandbox and
/// environment: as root it would run whatever `LD_PRELOAD=` names there.
pub fn check_reach(properties: &Properties) -> Result<(), Refusal> {
    if properties.kind() != "service" {
        return Ok(());
    }
    let paths = |name: &'static str, hides: bool| {
        properties.texts(name).into_iter().map(move |entry| Cover {
            place: entry.trim_start_matches(['-', '+']).to_owned(),
            setting: format!("{name}={entry}"),
            hides,
        })
    };
    let programs: Vec<_> = paths("NoExecPaths", true)
        .chain(paths("ExecPaths", false))
        .collect();
    let mut places: Vec<_> = paths("InaccessiblePaths", true).collect();
    let mut add = |place: &str, setting: String, hides| {
        places.push(Cover {
            place: place.to_owned(),
            setting,
            hides,
        });
    };
    for name in ["RootDirectory", "RootImage"] {
        let root = properties.text(name).unwrap_or_default();
        if !matches!(root, "" | "/") && properties.flag("RootDirectoryStartOnly") != Some(true) {
            add("/", format!("{name}={root}"), true);
        }
    }
    for (place, _) in properties.list::<(String, String)>("TemporaryFileSystem") {
        add(&place, format!("TemporaryFileSystem={place}"), true);
    }
    for name in ["BindPaths", "BindReadOnlyPaths"] {
        for (from, to, ..) in properties.list::<(String, String, bool, u64)>(name) {
            add(&to, format!("{name}={from}:{to}"), from != to);
        }
    }
    let Some(cover) = hiding(PROGRAM, &programs)
        .or_else(|| hiding(PROGRAM, &places))
        .or_else(|| hiding(LEASES_DIR, &places))
    else {
        return Ok(());
    };
    let setting = match cover.setting.split('=').next() {
        Some("NoExecPaths") => EXEC_PATHS.to_owned(),
        Some("RootDirectory" | "RootImage") => "RootDirectoryStartOnly=yes".to_owned(),
        Some("InaccessiblePaths") => {
            let left: Vec<_> = paths("InaccessiblePaths", false)
                .filter(|other| other.place != cover.place)
                .map(|other| other.setting)
                .collect();
            format!("InaccessiblePaths=\n{}", left.join("\n"))
        }
        Some(_) | None => {
            format!("BindReadOnlyPaths={PROGRAM} {LEASES_DIR} /usr/lib -/usr/lib64 -/lib -/lib64")
        }
    };
    refuse(
        properties,
        format!(
            "has {}, which keeps the gate of its start from {PROGRAM} or {LEASES_DIR}",
            cover.setting
        ),
        changed(properties, "", &setting),
    )
}

/// What is laid over a part of the file system that the unit sees.
struct Cover {
    place: String,
    /// The setting as it is written in the unit.
    setting: String,
    /// Whether something else than the host's own files is there.
    hides: bool,
}

/// What hides a path: of all that is laid over it, the closest counts.
fn hiding<'a>(path: &str, all: &'a [Cover]) -> Option<&'a Cover> {
    let is_over = |cover: &&Cover| Path::new(path).starts_with(&cover.place);
    all.iter()
        .filter(is_over)
        .max_by_key(|cover| cover.place.trim_end_matches('/').len())
        .filter(|cover| cover.hides)
}

/// What a unit lacks of its bond. A slice or scope is taken for one that the service contains: nothing may be started in it without the
/// lease, and it ends with the guard. PID 1 tells nothing of a scope that nobody has made yet.
fn missing(properties: &Properties, service: &ServiceName) -> Vec<String> {
    let (target, grant) = (service.lease_target().to_string(), service.grant());
    let wanted: &[(&str, &str)] = match properties.kind() {
        "scope" => return Vec::new(),
        "slice" => &[("BindsTo", GUARD_UNIT)],
        _ => &[("BindsTo", &target), ("After", &target)],
    };
    let mut missing = Vec::new();
    for (name, unit) in wanted {
        if !properties.lists(name, unit) {
            missing.push(format!("{name}={unit}"));
        }
    }
    if !asserts(properties, &grant) {
        missing.push(format!("AssertPathExists={grant}"));
    }
    if properties.kind() == "service" {
        let conditions = properties.list("ExecConditionEx");
        if !conditions
            .iter()
            .any(|command| calls_the_gate(command, service))
        {
            missing.push(format!("ExecCondition={PROGRAM} gate {service}"));
        }
        let successes: Option<(Vec<i32>, Vec<i32>)> = properties.get("SuccessExitStatus");
        if successes.is_some_and(|(codes, _)| codes.contains(&CLOSED.into())) {
            missing.push(format!("SuccessExitStatus= without {CLOSED}"));
        }
        // A later file could put another fencing token in the place of the grant's.
        let files: Vec<(String, bool)> = properties.list("EnvironmentFiles");
        if files.last().is_none_or(|(file, _)| *file != grant) {
            missing.push(format!("EnvironmentFile=-{grant} as the last one"));
        }
    }
    for (name, off) in TURNED_OFF {
        if properties.setting(name).is_some_and(|value| value != off) {
            missing.push(format!("{name}={off}"));
        }
    }
    missing
}

/// Whether the unit asserts the grant. An assertion with a trigger (`|`) does not count, as it is content with the success of
/// another one.
fn asserts(properties: &Properties, grant: &str) -> bool {
    let asserts: Vec<Condition> = properties.list("Asserts");
    asserts
        .iter()
        .any(|(name, trigger, negated, parameter, _)| {
            name == "AssertPathExists" && !trigger && !negated && parameter == grant
        })
}

fn calls_the_gate((program, arguments, flags, ..): &CommandEx, service: &ServiceName) -> bool {
    program == PROGRAM
        && matches!(&arguments[..], [_, gate, name] if gate == "gate" && name == service.as_str())
        && !flags.iter().any(|flag| flag == "ignore-failure")
}

/// What the operator should do about the drop-in that is in the way, as far as the names of the files tell.
pub fn remedy(drop_ins: &[String]) -> String {
    let is_ours = |path: &String| Path::new(path).ends_with(DROP_IN);
    let Some(at) = drop_ins.iter().position(is_ours) else {
        return "run \"systemctl daemon-reload\", and see \"journalctl -kg putex-generator\""
            .to_owned();
    };
    let path = &drop_ins[at];
    if !Path::new(path).starts_with(GENERATED_DIR) {
        return format!(
            "remove {path}, which hides what putex-generator writes, and run \"systemctl daemon-reload\""
        );
    }
    let later = drop_ins[at + 1..].join(", ");
    if later.is_empty() {
        return "run \"systemctl daemon-reload\"".to_owned();
    }
    format!("give {later} a name that sorts before {DROP_IN}, and run \"systemctl daemon-reload\"")
}

#[cfg(test)]
mod tests {
    use zbus::Variant;

    use super::*;

    type Condition = (
        &'static str,
        Vec<&'static str>,
        Vec<&'static str>,
        u64,
        u64,
        u64,
        u64,
        u32,
        i32,
        i32,
    );

    const TARGET: &str = "putex-lease@db.target";
    const GRANT: &str = "/run/putex/leases/db";
    const OURS: &str = "/run/systemd/generator/a.service.d/zzzz-putex.conf";

    fn service() -> ServiceName {
        ServiceName::new("db").expect("a name")
    }

    fn condition(arguments: &[&'static str], flags: &[&'static str]) -> Condition {
        (
            arguments[0],
            arguments.to_vec(),
            flags.to_vec(),
            0,
            0,
            0,
            0,
            0,
            0,
            0,
        )
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
            (
                "Asserts",
                Variant::from(vec![("AssertPathExists", false, false, GRANT, 0_i32)]),
            ),
            (
                "DropInPaths",
                Variant::from(vec!["/etc/systemd/system/a.service.d/override.conf", OURS]),
            ),
            (
                "ExecConditionEx",
                Variant::from(vec![condition(&["/bin/true"], &[]), gate()]),
            ),
            (
                "EnvironmentFiles",
                Variant::from(vec![("/etc/own", true), (GRANT, true)]),
            ),
        ];
        // The last value of a property counts.
        let all: std::collections::HashMap<&str, Variant<'static>> =
            whole.into_iter().chain(others).collect();
        Properties::of(all)
    }

    /// What [`check`] says of the gate.
    fn said(others: Vec<(&str, Variant<'static>)>) -> String {
        check(&properties("a.service", others), &service())
            .expect_err("refused")
            .to_string()
    }

    #[test]
    fn a_whole_gate_is_found() {
        for id in ["a.service", "a.timer"] {
            check(&properties(id, Vec::new()), &service()).expect("gated");
        }
        let others = ["ExecConditionEx", "EnvironmentFiles"]
            .map(|name| (name, Variant::from(Vec::<String>::new())));
        check(&properties("a.socket", others.into()), &service())
            .expect("what is no service has no commands");
        let before = vec![gate(), condition(&["/bin/true"], &["ignore-failure"])];
        let asserts = vec![
            ("AssertPathExists", true, false, "/elsewhere", -1_i32),
            ("AssertPathExists", false, false, GRANT, 1_i32),
        ];
        let others = vec![
            ("ExecConditionEx", Variant::from(before)),
            ("Asserts", Variant::from(asserts)),
        ];
        check(&properties("a.service", others), &service())
            .expect("gated beside conditions of others");
    }

    #[test]
    fn no_unit_takes_the_status_of_a_closed_gate_for_success() {
        for (codes, is_good) in [(vec![1, 143], true), (vec![143, 254], false)] {
            let successes = Variant::from((codes, vec![9]));
            let properties = properties("a.service", vec![("SuccessExitStatus", successes)]);
            assert_eq!(check(&properties, &service()).is_ok(), is_good);
        }
    }

    #[test]
    fn each_part_of_the_gate_is_missed() {
        let other = vec!["putex-lease@other.target"];
        for name in ["BindsTo", "After"] {
            let text = said(vec![(name, Variant::from(other.clone()))]);
            assert!(text.contains(&format!("lacks {name}={TARGET}:")), "{text}");
        }
        for assertion in [
            ("AssertPathExists", true, false, GRANT, 0_i32),
            ("AssertPathExists", false, true, GRANT, 0_i32),
            (
                "AssertPathExists",
                false,
                false,
                "/run/putex/leases/other",
                0_i32,
            ),
            ("AssertPathIsReadWrite", false, false, GRANT, 0_i32),
        ] {
            let text = said(vec![("Asserts", Variant::from(vec![assertion]))]);
            assert!(
                text.contains("lacks AssertPathExists=/run/putex/leases/db:"),
                "{text}"
            );
        }
        for conditions in [
            Vec::new(),
            vec![condition(&["/bin/true"], &[])],
            vec![condition(&[PROGRAM, "gate", "db"], &["ignore-failure"])],
            vec![condition(&[PROGRAM, "gate", "other"], &[])],
            vec![condition(&[PROGRAM, "--version"], &[])],
        ] {
            let text = said(vec![("ExecConditionEx", Variant::from(conditions))]);
            assert!(
                text.contains("lacks ExecCondition=/usr/bin/putex-guard gate db:"),
                "{text}"
            );
        }
        for files in [
            Vec::new(),
            vec![("/etc/own", true)],
            vec![(GRANT, true), ("/etc/own", true)],
        ] {
            let text = said(vec![("EnvironmentFiles", Variant::from(files))]);
            assert!(
                text.contains("lacks EnvironmentFile=-/run/putex/leases/db as the last one:"),
                "{text}"
            );
        }
    }

    #[test]
    fn the_file_in_the_way_is_named() {
        let none = |paths: Vec<&'static str>| {
            said(vec![
                ("BindsTo", Variant::from(Vec::<String>::new())),
                ("DropInPaths", Variant::from(paths)),
            ])
        };
        let shadow = "/etc/systemd/system/a.service.d/zzzz-putex.conf";
        let later = "/etc/systemd/system/a.service.d/zzzzz.conf";
        assert!(none(vec![shadow]).contains(&format!(": remove {shadow}, ")));
        assert!(none(vec![OURS, later]).contains(&format!(
            ": give {later} a name that sorts before {DROP_IN}, "
        )));
        assert!(none(vec![OURS]).ends_with(": run \"systemctl daemon-reload\""));
        assert!(none(Vec::new()).contains("journalctl -kg putex-generator"));
        let kept = "/run/systemd/system/a.service.d/zzzz-putex-kept.conf";
        assert!(none(vec![kept]).contains("journalctl -kg putex-generator"));
        assert!(
            none(vec![kept, OURS]).ends_with(": run \"systemctl daemon-reload\""),
            "it is in the way of nothing"
        );
    }

    /// What [`check_reach`] says of a unit whose gate is whole.
    fn reach(others: Vec<(&str, Variant<'static>)>) -> Result<(), String> {
        let reach = check_reach(&properties("a.service", others));
        reach.as_ref().copied().map_err(ToString::to_string)
    }

    fn paths(name: &'static str, path: &'static str) -> (&'static str, Variant<'static>) {
        (name, Variant::from(vec![path]))
    }

    fn bind(
        source: &'static str,
        place: &'static str,
    ) -> Vec<(&'static str, &'static str, bool, u64)> {
        vec![(source, place, false, 0)]
    }

    #[test]
    fn a_gate_that_cannot_be_reached_is_found() {
        let root = || ("RootDirectory", Variant::from("/srv/root"));
        let tmpfs = |place: &'static str| ("TemporaryFileSystem", Variant::from(vec![(place, "")]));
        for (settings, wanted) in [
            (vec![root()], "RootDirectory=/srv/root"),
            (
                vec![
                    root(),
                    ("BindReadOnlyPaths", Variant::from(bind(PROGRAM, PROGRAM))),
                ],
                "RootDirectoryStartOnly=yes",
            ),
            (
                vec![("RootImage", Variant::from("/srv/image"))],
                "RootDirectoryStartOnly=yes",
            ),
            (
                vec![tmpfs("/run")],
                "BindReadOnlyPaths=/usr/bin/putex-guard /run/putex/leases /usr/lib",
            ),
            (vec![tmpfs("/usr")], "has TemporaryFileSystem=/usr"),
            (vec![tmpfs("/")], "-/lib -/lib64'"),
            (
                vec![
                    tmpfs("/usr"),
                    ("RootDirectoryStartOnly", Variant::from(true)),
                ],
                "TemporaryFileSystem=/usr",
            ),
            (
                vec![("BindPaths", Variant::from(bind("/srv/run", "/run/")))],
                "BindPaths=/srv/run:/run/, which",
            ),
            (
                vec![(
                    "InaccessiblePaths",
                    Variant::from(vec!["/srv", "-/run/putex"]),
                )],
                " InaccessiblePaths= InaccessiblePaths=/srv >",
            ),
            (
                vec![("InaccessiblePaths", Variant::from(vec!["/usr/bin"]))],
                " InaccessiblePaths= >",
            ),
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
    fn what_acts_on_what_putexd_does_is_found() {
        let later = "/etc/systemd/system/a.service.d/zzzzz.conf";
        for (name, off) in TURNED_OFF {
            let of = |value: &'static str| match value {
                "yes" | "no" => Variant::from(value == "yes"),
                action => Variant::from(action),
            };
            check(&properties("a.service", vec![(name, of(off))]), &service()).expect("off");
            let acts = if off == "no" { "yes" } else { "reboot" };
            let text = said(vec![
                (name, of(acts)),
                ("DropInPaths", Variant::from(vec![OURS, later])),
            ]);
            assert!(
                text.contains(&format!("lacks {name}={off}: give {later} ")),
                "{text}"
            );
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
            vec![
                ("RootDirectory", Variant::from("/")),
                ("RootImage", Variant::from("")),
            ],
            vec![(
                "TemporaryFileSystem",
                Variant::from(vec![("/var", ""), ("/usr/local", ""), ("/run/put", "")]),
            )],
            vec![
                ("TemporaryFileSystem", Variant::from(vec![("/run", "ro")])),
                ("BindPaths", Variant::from(bind("/run/putex", "/run/putex"))),
            ],
            vec![(
                "InaccessiblePaths",
                Variant::from(vec!["/usr/bin/putexctl", "-/run/put"]),
            )],
            vec![paths("NoExecPaths", "/srv")],
            vec![paths("NoExecPaths", "/"), paths("ExecPaths", "-/usr/bin/")],
        ] {
            assert_eq!(reach(settings), Ok(()));
        }
        let other = properties(
            "a.socket",
            vec![("RootDirectory", Variant::from("/srv/root"))],
        );
        check_reach(&other).expect("what is no service calls no gate");
    }
}
