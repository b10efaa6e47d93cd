//! Files that are broken, hidden or gone.

use super::*;

#[test]
fn a_broken_file_keeps_its_unit_gated_and_leaves_the_others_alone() {
    let host = Host::new();
    host.file("etc/putex.d/good.toml", "unit = \"good.service\"");
    for (name, text) in [
        ("a", "unit = \"a.service\"\nlease = = 3"),
        ("b", "lease = [\n  unit = 'b.service' # two"),
        ("c", "unit = c.service"),
        ("d", "unit = \"d.service"),
        ("e", "[health\n\"unit\" = \"e.service\"\n"),
        ("f", "unit = [\"f.service\"]"),
        ("g", "Unit = \"g.service\""),
    ] {
        host.file(&format!("etc/putex.d/{name}.toml"), text);
    }
    fs::write(
        host.root.path().join("etc/putex.d/h.toml"),
        b"# \xff\nunit = \"h.service\"",
    )
    .expect("writes");
    let expected = "a:a.service b:b.service c:c.service d:d.service e:e.service f:f.service g:g.service \
                    good:good.service h:h.service";
    assert_eq!(host.bound(), expected);
    assert_eq!(host.run().problems.len(), 7);
}

#[test]
fn a_name_in_three_quotation_marks_is_bound_in_a_broken_file_too() {
    for marks in ["\"\"\"", "'''"] {
        for text in [
            format!("unit = {marks}x.timer{marks}\nbound-units = [{marks}a.service{marks}]"),
            format!("unit = {marks}\nx.timer{marks}\nbound-units = [{marks}\na.service{marks}\n]"),
            format!(
                "unit = {marks}\r\nx.timer{marks}\r\nbound-units = [\n\"b.service\", {marks}\r\na.service{marks}]"
            ),
            format!("bound-units = [\"a.service\"]\nunit = {marks}\nx.timer\n"),
            format!(
                "[health]\ncommand = {marks}\nunit = \"y.service\"\n{marks}\nbound-units = \"a.service\"\nunit = \"x.timer\""
            ),
        ] {
            let host = Host::new();
            host.file("etc/putex.d/x.toml", &format!("{text}\nlease = = 3"));
            let bound = host.bound();
            assert!(
                bound.contains("x:a.service") && bound.contains("x:x.timer"),
                "{text}: {bound}"
            );
        }
    }
}

#[test]
fn a_broken_file_binds_what_it_hides_until_putexd_has_taken_it() {
    let host = Host::new();
    host.file("etc/putex.d/db.toml", "unit = \"e.service\"\nlease = = 3")
        .file("usr/lib/putex.d/db.toml", "unit = \"u.service\"");
    assert_eq!(host.bound(), "db:e.service db:u.service");
    host.file("run/putex.d/db.toml", "unit = \"r.service\"\nlease = = 3");
    assert_eq!(host.bound(), "db:e.service db:r.service db:u.service");
    host.file("run/putex.d/db.toml", "unit = \"r.service\"");
    assert_eq!(host.bound(), "db:e.service db:r.service");
    // What is masked is not hidden by the file.
    host.file("run/putex.d/db.toml", "");
    assert_eq!(host.bound(), "db:e.service");
    host.file("run/putex.d/db.toml", "unit = \"r.service\"");
    host.keep("db", "unit = \"former.service\"");
    assert_eq!(host.bound(), "db:e.service db:former.service");
    host.file("etc/putex.d/db.toml", "unit = \"e.service\"");
    assert_eq!(host.bound(), "db:e.service");
}

#[test]
fn a_link_to_nothing_binds_what_it_hides_and_what_was_run_before() {
    let host = Host::new();
    for service in ["db", "web"] {
        symlink(
            "/nowhere/x.toml",
            host.root.path().join(format!("etc/putex.d/{service}.toml")),
        )
        .expect("links");
    }
    assert_eq!(host.bound(), "");
    host.file("usr/lib/putex.d/web.toml", "unit = \"web.service\"");
    assert_eq!(host.bound(), "web:web.service");
    host.file(
        "etc/putex.kept/bound.json",
        r#"{"format":1,"mounts":["srv-conf.mount"],"services":{"db":["db.mount","db.service"],"web":["web.socket"]}}"#,
    );
    // What putexd ran counts, and not the file that is hidden.
    assert_eq!(host.bound(), "db:db.mount db:db.service web:web.socket");
    assert!(
        host.drop_in(DAEMON_UNIT)
            .ends_with("[Unit]\nAfter=srv-conf.mount\n")
    );
}

#[test]
fn what_putexd_had_taken_stays_bound_until_it_has_read_the_files() {
    let host = Host::new();
    let copy = |text: &str| {
        host.file("etc/putex.kept/bound.json", text);
    };
    copy(
        r#"{"format":1,"mounts":[],"services":{"db":["db.mount","db.service"],"former":["other.service"],"web":["web.service"]}}"#,
    );
    host.file("usr/lib/putex.d/web.toml", "unit = \"other.service\"");
    assert_eq!(
        host.bound(),
        "db:db.mount db:db.service web:other.service",
        "a file that is there counts"
    );
    copy(
        r#"{"format":1,"mounts":[],"services":{"db":["db.mount","db.service"],"web":["web.service"]}}"#,
    );
    let problems = host.run().problems;
    assert!(
        problems
            .iter()
            .any(|said| said.starts_with("db has no file"))
            && problems.len() == 1,
        "{problems:?}"
    );
    // A folder that cannot be listed, and a link into a file system that is not mounted yet.
    let usr = host.root.path().join("usr/lib/putex.d");
    fs::rename(&usr, host.root.path().join("away")).expect("moved");
    for target in ["/nowhere/putex.d", "/dev/null"] {
        symlink(target, &usr).expect("links");
        assert_eq!(
            host.bound(),
            "db:db.mount db:db.service web:web.service",
            "{target}"
        );
        assert!(
            host.run()
                .problems
                .iter()
                .any(|said| said.contains("/usr/lib/putex.d: ")),
            "{target}"
        );
        fs::remove_file(&usr).expect("removed");
    }
    // What is only observed has no units there.
    copy(r#"{"format":1,"mounts":[],"services":{"seen":[]}}"#);
    assert_eq!(host.bound(), "");
    copy("{");
    assert!(
        host.run()
            .problems
            .iter()
            .any(|said| said.contains("bound.json: ")),
        "{:?}",
        host.run()
    );
}

#[test]
fn a_name_with_escapes_is_bound_in_a_broken_file_too() {
    let host = Host::new();
    for (name, text) in [
        (
            "a",
            "unit = \"a\\\\x2da.service\"\nbound-units = [\"b\\\\x2db.mount\"]\nlease = 3s",
        ),
        ("c", "unit = 'c\\x2dc.service'\nlease = 3s"),
        ("e", "\u{feff}unit = \"e.service\"\nlease = 3s"),
        ("f", "unit: \"f.service\""),
    ] {
        host.file(&format!("etc/putex.d/{name}.toml"), text);
    }
    assert_eq!(
        host.bound(),
        "a:a\\x2da.service a:b\\x2db.mount c:c\\x2dc.service e:e.service f:f.service"
    );
}

#[test]
fn a_file_whose_name_is_refused_sets_no_unit_free() {
    let host = Host::new();
    host.file("etc/putex.d/db.toml", "unit = \"db.service\"")
        .file("etc/putex.d/db copy.toml", "unit = \"db.service\"");
    host.file(
        "etc/putex.d/web.prod.toml",
        "unit = \"web.service\"\nbound-units = [\"web.timer\"]",
    );
    assert_eq!(host.bound(), "db:db.service");
    let drop_in =
        |unit: &str| fs::read_to_string(host.root.path().join(format!("out/{unit}.d/{DROP_IN}")));
    for unit in ["web.service", "web.timer"] {
        let text = drop_in(unit).expect("it is kept from being started");
        assert!(
            text.ends_with("[Unit]\nAssertPathExists=/run/putex/leases/.refused\n"),
            "{text}"
        );
    }
    assert!(
        !drop_in("db.service")
            .expect("it is bound")
            .contains("refused"),
        "by the file whose name is good"
    );
}
