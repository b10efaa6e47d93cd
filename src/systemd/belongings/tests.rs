//! What belongs to a service, by units as distributions ship them.

use zbus::Variant;

use super::*;

fn units(names: &[&str]) -> Vec<UnitName> {
    names
        .iter()
        .map(|name| UnitName::new(name).expect("a unit"))
        .collect()
}

/// Walks over a graph that is written as in unit files, such as `a.service Wants b.service c.service`. systemd knows each
/// dependency from both of its ends. All units that are named are loaded, but those in lines with `is absent`.
fn walk(own: &[&str], beside: &[&str], graph: &str) -> Belongings {
    const REVERSE: [(&str, &str); 12] = [
        ("Conflicts", "ConflictedBy"),
        ("Requires", "RequiredBy"),
        ("BindsTo", "BoundBy"),
        ("Wants", "WantedBy"),
        ("Upholds", "UpheldBy"),
        ("OnFailure", "OnFailureOf"),
        ("OnSuccess", "OnSuccessOf"),
        ("Triggers", "TriggeredBy"),
        ("PartOf", "ConsistsOf"),
        ("PropagatesStopTo", "StopPropagatedFrom"),
        ("StopPropagatedFrom", "PropagatesStopTo"),
        ("Requisite", "RequisiteOf"),
    ];
    let mut all: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    let (mut absent, mut bound, mut own_files) = (Vec::new(), Vec::new(), Vec::new());
    for line in graph.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut words = line.split_whitespace();
        let (unit, setting) = (
            words.next().expect("a unit"),
            words.next().expect("a setting"),
        );
        for other in words {
            if setting == "is" {
                match other {
                    "absent" => &mut absent,
                    "bound" => &mut bound,
                    "own" => &mut own_files,
                    _ => panic!("{line}"),
                }
                .push(unit);
                continue;
            }
            let (_, reverse) = REVERSE
                .iter()
                .find(|(name, _)| *name == setting)
                .expect("a setting");
            all.entry((unit, setting))
                .or_default()
                .push(other.to_owned());
            all.entry((other, reverse))
                .or_default()
                .push(unit.to_owned());
        }
    }
    let (own, beside) = (units(own), units(beside));
    let mut walk = Walk::new(&own[0], &own[1..], &beside, "multi-user.target");
    loop {
        let name = match walk.found() {
            Ok(found) => return found,
            Err(name) => name,
        };
        let state = if absent.contains(&name.as_str()) {
            "not-found"
        } else {
            "loaded"
        };
        let of_unit = all.iter().filter(|((unit, _), _)| *unit == name);
        let lists = of_unit
            .filter(|((_, property), _)| PROPERTIES.contains(property))
            .map(|((_, property), others)| (*property, zbus::Variant::from(others.clone())));
        let drop_ins: &[&str] = if bound.contains(&name.as_str()) {
            &["/run/a/zzzz-putex-kept.conf"]
        } else {
            &[]
        };
        let drop_ins = zbus::Variant::from(drop_ins.to_vec());
        let folder = if own_files.contains(&name.as_str()) {
            "/etc"
        } else {
            "/usr/lib"
        };
        let active = if absent.contains(&name.as_str()) {
            "inactive"
        } else {
            "active"
        };
        let properties = lists.chain([
            ("LoadState", zbus::Variant::from(state)),
            ("ActiveState", zbus::Variant::from(active)),
            (
                "FragmentPath",
                zbus::Variant::from(format!("{folder}/systemd/system/{name}")),
            ),
            ("DropInPaths", drop_ins),
        ]);
        let links = UnitLinks::of(&name, &Properties::of(properties));
        walk.known.insert(name, links);
    }
}

/// The units that belong to `db.service`, and how, one after another.
fn of_db(graph: &str) -> String {
    let found = walk(
        &["db.service", "putex-lease@db.target"],
        &["beside.service"],
        graph,
    );
    found
        .units
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

#[test]
fn what_only_the_service_pulls_in_belongs_to_it() {
    for (setting, words) in [
        ("Requires", "side.service (Requires= of db.service)"),
        ("BindsTo", "side.service (BindsTo= of db.service)"),
        ("Wants", "side.service (Wants= of db.service)"),
        ("Upholds", "side.service (Upholds= of db.service)"),
        ("OnFailure", "side.service (OnFailure= of db.service)"),
        ("OnSuccess", "side.service (OnSuccess= of db.service)"),
        (
            "PropagatesStopTo",
            "side.service (PropagatesStopTo= of db.service)",
        ),
    ] {
        assert_eq!(of_db(&format!("db.service {setting} side.service")), words);
        assert_eq!(of_db(&format!("db.service {setting} beside.service")), "");
    }
    assert_eq!(
        of_db("side.service PartOf db.service"),
        "side.service (ConsistsOf= of db.service)"
    );
    for rivals in [
        "side.service Conflicts db.service",
        "db.service Conflicts side.service",
    ] {
        assert_eq!(
            of_db(&format!("side.service PartOf db.service\n{rivals}")),
            "",
            "{rivals}"
        );
    }
    assert_eq!(
        of_db("side.service BindsTo putex-lease@db.target"),
        "side.service (Follower= of putex-lease@db.target)"
    );
    // The service has had it before.
    assert_eq!(
        of_db("side.service BindsTo putex-lease@db.target\nside.service is bound"),
        ""
    );
    assert_eq!(
        of_db("db.service Wants nightly.timer\nnightly.timer Triggers nightly.service"),
        "nightly.service (Triggers= of nightly.timer), nightly.timer (Wants= of db.service)"
    );
    assert_eq!(
        of_db(
            "db.service Requires srv.mount\nsrv.mount Requires systemd-fsck@dev-x.service\n\
               systemd-fsck@dev-x.service Wants systemd-fsckd.socket\nsrv.mount BindsTo dev-x.device"
        ),
        "srv.mount (Requires= of db.service), systemd-fsck@dev-x.service (Requires= of srv.mount)"
    );
}

#[test]
fn what_the_host_has_for_itself_does_not_and_the_walk_ends_there() {
    let next = "side.service Wants behind.service";
    for of_host in [
        "multi-user.target Wants side.service",
        "dev-x.device Wants side.service",
        "app.service Requires side.service\nmulti-user.target Wants app.service",
        "graphical.target Wants side.service\nmulti-user.target Wants graphical.target",
        "side.timer Triggers side.service\ntimers.target Wants side.timer",
        "stack.target Wants side.service db.service\nmulti-user.target Wants stack.target",
        "beside.service Wants side.service",
    ] {
        assert_eq!(
            of_db(&format!(
                "db.service Requires side.service\n{next}\n{of_host}"
            )),
            "",
            "{of_host}"
        );
    }
    assert_eq!(
        of_db(
            "db.service Requires sysinit.target system.slice -.mount systemd-journald.socket syslog.socket\n\
               syslog.socket Triggers db.service\n\
               db.service Wants network-online.target blockdev@dev-x.target modprobe@loop.service\n\
               putexd.service Wants network-online.target\n\
               db.service BindsTo putex-lease@db.target\nputex-lease@db.target BindsTo putex-guard.service\n\
               network-online.target Wants wait.service"
        ),
        ""
    );
    assert_eq!(
        of_db("db.service Wants side.service\nside.service is absent"),
        ""
    );
}

/// What is enabled for a time at which no host serves, or waits for an event, does not run for the host.
#[test]
fn what_nothing_has_started_for_the_host_belongs_to_the_service() {
    for idle in [
        "side.socket Triggers side.service\nsockets.target Wants side.socket",
        "side.path Triggers side.service\nmulti-user.target Wants side.path",
        "rescue.target Wants side.service",
        "app.service OnFailure side.service\nmulti-user.target Wants app.service",
        "side.service Requires db.service\nmulti-user.target Wants side.service",
        "side.service Requisite db.service\nside.timer Triggers side.service\ntimers.target Wants side.timer",
        // What has it started is not started by any boot.
        "none.target Wants side.service",
        "graphical.target Wants side.service",
        "other.service Requires side.service",
        "other.timer Triggers other.service\nother.service Wants side.service",
        "dev-gone.device Wants side.service\ndev-gone.device is absent",
        "side.service Wants other.service\nother.service Wants side.service\nother.service is absent",
    ] {
        let found = of_db(&format!("db.service Wants side.service\n{idle}"));
        assert_eq!(found, "side.service (Wants= of db.service)", "{idle}");
    }
    for (target, how) in [
        ("time-sync.target", "Wants"),
        ("graphical.target", "Requires"),
        ("machine.slice", "Requires"),
    ] {
        let found = of_db(&format!(
            "db.service {how} {target}\n{target} Wants side.service"
        ));
        assert_eq!(found, format!("side.service (Wants= of {target})"));
    }
    assert_eq!(
        of_db("db.service Wants systemd-side.service\nsystemd-side.service is own"),
        "systemd-side.service (Wants= of db.service)"
    );
    assert_eq!(
        of_db("side.service StopPropagatedFrom db.service\nmulti-user.target Wants side.service"),
        "side.service (PropagatesStopTo= of db.service)"
    );
    let found = of_db(
        "db.service Requires srv.mount\nsrv.automount Triggers srv.mount\nlocal-fs.target Wants srv.automount",
    );
    assert_eq!(found, "srv.mount (Requires= of db.service)");
    assert_eq!(
        of_db("db.service Wants printer.target\nprinter.target Wants side.service"),
        "side.service (Wants= of printer.target)"
    );
    assert_eq!(
        of_db(
            "db.service Requires own.slice system.slice\nown.slice Wants side.service\nsystem.slice Wants log.service"
        ),
        "side.service (Wants= of own.slice)"
    );
    assert_eq!(
        of_db(
            "db.service Requires own.slice\nown.slice Wants a.service\ntop.service Requires own.slice\n\
               multi-user.target Wants top.service"
        ),
        ""
    );
}

#[test]
fn units_that_pull_each_other_in_belong_together() {
    let circle =
        "db.service Wants a.service\na.service Wants b.service\nb.service Requires a.service";
    assert_eq!(
        of_db(circle),
        "a.service (Wants= of db.service), b.service (Wants= of a.service)"
    );
    assert_eq!(
        of_db(&format!("{circle}\nmulti-user.target Wants b.service")),
        ""
    );
    // The way over the later one is only seen when that one was read.
    let late = "db.service Wants a.service c.service\nc.service Wants b.service\nb.service Wants a.service";
    assert_eq!(
        of_db(late),
        "a.service (Wants= of db.service), b.service (Wants= of c.service), c.service (Wants= of db.service)"
    );
}

#[test]
fn a_target_of_the_services_own_is_walked_through() {
    let graph = "db.service Wants all.target\nall.target Wants a.service";
    assert_eq!(of_db(graph), "a.service (Wants= of all.target)");
}

#[test]
fn a_target_that_a_boot_starts_only_where_it_is_enabled_is_as_any_other() {
    let graph = "db.service Wants machines.target\nmachines.target Wants a.service";
    assert_eq!(of_db(graph), "a.service (Wants= of machines.target)");
    assert_eq!(
        of_db(&format!("{graph}\nmulti-user.target Wants machines.target")),
        ""
    );
}

#[test]
fn what_starts_the_service_belongs_to_it_even_if_the_boot_starts_that() {
    assert_eq!(
        of_db("db.socket Triggers db.service\nsockets.target Wants db.socket"),
        "db.socket (TriggeredBy= of db.service)"
    );
    assert_eq!(
        of_db(
            "db.socket Triggers db.service\nsockets.target Wants db.socket\ndb.service Wants db.socket"
        ),
        "db.socket (Wants= of db.service)"
    );
    let found = walk(
        &["db.timer"],
        &[],
        "db.timer Triggers db.service\nmulti-user.target Wants db.service",
    );
    assert_eq!(
        found.units[0].to_string(),
        "db.service (Triggers= of db.timer)"
    );
}

#[test]
fn what_needs_the_lease_of_another_service_is_of_that() {
    let shared = "db.service Wants web.service\nweb.service BindsTo putex-lease@web.target\nweb.service Wants side.service";
    assert_eq!(of_db(shared), "");
    assert_eq!(
        of_db(&format!("{shared}\nweb.service Requires db.service")),
        ""
    );
}

#[test]
fn what_only_services_share_is_not_the_hosts() {
    let shared = "db.service Wants side.service\nweb.service Wants side.service";
    assert_eq!(
        of_db(&format!("{shared}\nmulti-user.target Wants web.service")),
        ""
    );
    let shared = &format!("{shared}\nmulti-user.target Wants web.service");
    let leased = format!("{shared}\nweb.service BindsTo putex-lease@web.target");
    assert_eq!(of_db(&leased), "side.service (Wants= of db.service)");
}

#[test]
fn an_end_that_takes_the_host_down_is_found() {
    let found = walk(
        &["db.service"],
        &[],
        "db.service OnFailure reboot.target mail@db.service",
    );
    let trouble = found.trouble.expect("it ends what runs");
    assert!(
        trouble.contains("--full db.service\" and delete OnFailure=reboot.target"),
        "{trouble}"
    );
    assert_eq!(
        found.units[0].to_string(),
        "mail@db.service (OnFailure= of db.service)"
    );
}

#[test]
fn a_walk_has_an_end() {
    let many = |count: usize| {
        (0..count)
            .map(|n| format!("db.service Wants u{n}.service"))
            .collect::<Vec<_>>()
            .join("\n")
            + "\n"
    };
    assert_eq!(walk(&["db.service"], &[], &many(MOST - 1)).trouble, None);
    let trouble = walk(&["db.service"], &[], &many(MOST)).trouble;
    assert!(trouble.is_some_and(|trouble| trouble.contains("name in beside")));
}

#[test]
fn what_is_said_ends_with_the_line_to_paste() {
    let fsck = "systemd-fsck@dev-disk-by\\x2duuid.service";
    let of = |unit: &str, how, of: &str| Belonging {
        unit: unit.to_owned(),
        how,
        of: of.to_owned(),
    };
    let found = Belongings {
        units: vec![
            of("srv-data.mount", "Requires", "database.service"),
            of(fsck, "Requires", "srv-data.mount"),
            of("web.socket", TRIGGER, "database.service"),
        ],
        ..Belongings::default()
    };
    let service = ServiceName::new("db").expect("a name");
    let unit = UnitName::new("database.service").expect("a unit");
    let around = Surroundings {
        named_in: Some(&service),
        bound: std::slice::from_ref(&unit),
        ..Surroundings::default()
    };
    let unnamed = found
        .check_named(&unit, around)
        .expect_err("they are not named");
    let unnamed = unnamed.to_string();
    insta::assert_snapshot!(
        unnamed,
        @r#"name in db.toml what database.service brings along, or it runs on two hosts: srv-data.mount (Requires= of database.service), systemd-fsck@dev-disk-by\x2duuid.service (Requires= of srv-data.mount), web.socket (TriggeredBy= of database.service); run "systemctl disable --now web.socket && systemctl add-wants database.service web.socket", so that the lease starts them; list in beside = […] what may run on several hosts, and the rest so: bound-units = ["srv-data.mount", "systemd-fsck@dev-disk-by\\x2duuid.service", "web.socket"]"#
    );
    let (_, line) = unnamed.rsplit_once(": ").expect("a line");
    let parsed: std::collections::BTreeMap<String, Vec<String>> =
        toml::from_str(line).expect("TOML");
    assert_eq!(
        parsed["bound-units"],
        ["srv-data.mount", fsck, "web.socket"]
    );
}

#[test]
fn an_umbrella_is_not_the_service() {
    let named = [UnitName::new("worker.service").expect("a unit")];
    let checked_with = |program: &'static str, parts: &[&str], bound: &[UnitName]| {
        let command = (
            program,
            vec![program],
            false,
            0_u64,
            0_u64,
            0_u64,
            0_u64,
            0_u32,
            0_i32,
            0_i32,
        );
        let main = [
            ("Id", Variant::from("group.service")),
            ("RemainAfterExit", Variant::from(true)),
            ("ExecStart", Variant::from(vec![command])),
        ];
        let parts: Vec<String> = parts.iter().map(|&part| part.to_owned()).collect();
        let belongings = Belongings {
            parts,
            ..Belongings::default()
        };
        let around = Surroundings {
            bound,
            ..Surroundings::default()
        };
        belongings
            .check_umbrella(&Properties::of(main), around)
            .map_err(|refusal| refusal.to_string())
    };
    let found = |program: &'static str, parts: &[&str]| checked_with(program, parts, &[]);
    let remedy = found("/bin/true", &["postgresql@15-main.service"]).expect_err("an umbrella");
    assert!(
        remedy.ends_with(": unit = \"postgresql@15-main.service\""),
        "{remedy}"
    );
    let remedy =
        found("/bin/true", &["openvpn@a.service", "openvpn@b.service"]).expect_err("an umbrella");
    assert!(remedy.ends_with("unit = \"openvpn@a.service\""), "{remedy}");
    let remedy = found("/bin/true", &[]).expect_err("what it stands for is not there");
    assert!(
        remedy.ends_with("see \"systemctl list-units --all 'group*'\""),
        "{remedy}"
    );
    assert_eq!(
        checked_with("/bin/true", &[], &named),
        Ok(()),
        "its service has another unit"
    );
    assert_eq!(
        found("/usr/sbin/ip", &["postgresql@15-main.service"]),
        Ok(()),
        "it does something itself"
    );
}
