mod broken;

use std::os::unix::fs::symlink;

use super::*;
use crate::config;

struct Host {
    root: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let host = Self {
            root: tempfile::tempdir().expect("a directory"),
        };
        for directory in SERVICE_DIRECTORIES {
            fs::create_dir_all(host.root.path().join(directory)).expect("makes a directory");
        }
        host
    }

    fn file(&self, name: &str, content: &str) -> &Self {
        let path = self.root.path().join(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("makes a directory");
        fs::write(path, content).expect("writes");
        self
    }

    /// What putexd has last taken from the file of a service.
    fn keep(&self, service: &str, text: &str) {
        let root = tempfile::tempdir().expect("a directory");
        for (path, text) in [
            (
                "etc/putex/putexd.toml",
                "node = \"h1\"\n[store]\ntype = \"directory\"\npath = \"/srv\"\n",
            ),
            (&format!("etc/putex.d/{service}.toml"), text),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("made");
            fs::write(path, text).expect("written");
        }
        let loaded = config::load(root.path());
        let settings = loaded.settings.expect("they are good");
        let bound = |service: &config::ServiceSettings| {
            let units = service.units().chain(&service.contains);
            let units = units.filter(|_| !service.observes());
            (service.name.clone(), units.cloned().collect())
        };
        let bound = AtBoot {
            services: settings.services.iter().map(bound).collect(),
            ..AtBoot::default()
        };
        self.file(
            "etc/putex.kept/bound.json",
            &serde_json::to_string(&bound).expect("JSON"),
        );
    }

    fn run(&self) -> Generated {
        run(self.root.path(), &self.root.path().join("out"))
    }

    /// The unit that each service is bound to.
    fn bound(&self) -> String {
        let generated = self.run();
        let bound = generated.bound.iter().flat_map(|(unit, services)| {
            services
                .iter()
                .map(move |service| format!("{service}:{unit}"))
        });
        bound.collect::<Vec<_>>().join(" ")
    }

    fn drop_in(&self, unit: &str) -> String {
        let _ = self.run();
        fs::read_to_string(
            self.root
                .path()
                .join(format!("out/{unit}.d/zzzz-putex.conf")),
        )
        .expect("was written")
    }
}

/// The drop-in that is written for the guard from this putexd.toml; `Err`: why there is none.
fn guard(text: &str) -> Result<Option<String>, String> {
    let host = Host::new();
    host.file("etc/putex/putexd.toml", text);
    let out = host.root.path().join("out");
    run_for_guard(host.root.path(), &out)?;
    Ok(fs::read_to_string(out.join("putex-guard.service.d/zzzz-putex.conf")).ok())
}

#[test]
fn the_units_of_an_observed_service_are_left_alone_and_those_that_are_run_are_not() {
    const RUN: &str = "unit = \"a.service\"\n";
    const OBSERVE: &str = "unit = \"a.service\"\nmode = \"observe\"\n";
    let bound = |kept: Option<&str>, file: &str| {
        let host = Host::new();
        if let Some(text) = kept {
            host.keep("db", text);
        }
        let generated = host.file("etc/putex.d/db.toml", file).run();
        (generated.bound.len(), generated.problems.len())
    };
    assert_eq!(
        bound(None, OBSERVE),
        (0, 0),
        "and nothing is wrong with that"
    );
    assert_eq!(bound(Some(OBSERVE), OBSERVE), (0, 0));
    assert_eq!(bound(Some(RUN), OBSERVE).0, 1, "putexd still runs it");
    assert_eq!(bound(Some(OBSERVE), RUN).0, 1);
    // A broken file must not stop what runs, nor set free what putexd has not observed.
    assert_eq!(
        bound(Some(OBSERVE), "unit = \"a.service\"\nmode = \"obs").0,
        0
    );
    assert_eq!(
        bound(None, "mode = \"observe\"\nunit = \"a.service\"\nkey = \"").0,
        1
    );
}

#[test]
fn the_guard_gets_its_watchdog() {
    let written = guard(
        "node = \"h1\"\n[guard]\nwatchdog-device = \"/dev/watchdog1\"\nwatchdog-timeout = \"1min 30s\"\n[store]\n",
    );
    let text = written.expect("nothing is wrong").expect("it was written");
    let line = "Environment=\"PUTEX_GUARD_OPTIONS=--watchdog-device /dev/watchdog1 --watchdog-timeout 90000ms\"";
    for line in [line, "[Service]", "DeviceAllow=/dev/watchdog1 rw"] {
        assert!(text.lines().any(|found| found == line), "{text}");
    }
    for none in ["", "node = \"h1\"\n[store]\n", "[guard]\n"] {
        assert_eq!(guard(none), Ok(None), "{none}");
    }
    let missing = tempfile::tempdir().expect("a directory");
    assert_eq!(run_for_guard(missing.path(), missing.path()), Ok(()));
}

#[test]
fn a_watchdog_that_cannot_be_written_is_a_problem() {
    for (keys, why) in [
        (
            "watchdog-device = \"/dev/watchdog\"",
            "needs watchdog-device and watchdog-timeout",
        ),
        (
            "watchdog-timeout = \"3s\"",
            "needs watchdog-device and watchdog-timeout",
        ),
        (
            "watchdog-device = \"dev/watchdog\"\nwatchdog-timeout = \"3s\"",
            "is not the path of a device",
        ),
        (
            "watchdog-device = \"/dev/w d\"\nwatchdog-timeout = \"3s\"",
            "is not the path of a device",
        ),
        (
            "watchdog-device = \"/dev/watchdog\"\nwatchdog-timeout = \"3\"",
            "has no unit",
        ),
        (
            "watchdog-device = 3\nwatchdog-timeout = \"3s\"",
            "invalid type",
        ),
        (
            "watchdog-device = \"/dev/watchdog",
            "the guard is told of no watchdog",
        ),
    ] {
        let said = guard(&format!("[guard]\n{keys}\n")).expect_err(keys);
        assert!(said.contains(why) && said.contains("putexd.toml"), "{said}");
    }
}

#[test]
fn a_service_is_gated() {
    let host = Host::new();
    host.file(
        "etc/putex.d/database.toml",
        "unit = \"db@a.service\"\n[health]\ntype = \"tcp\"\n",
    );
    insta::assert_snapshot!(host.drop_in("db@a.service"), @r"
    # Made by putex-generator: this unit runs only while this host holds its lease.
    [Unit]
    BindsTo=putex-lease@database.target
    After=putex-lease@database.target
    AssertPathExists=/run/putex/leases/database
    FailureAction=none
    SuccessAction=none
    StartLimitAction=none
    JobTimeoutAction=none
    StopWhenUnneeded=no
    [Service]
    ExecCondition=/usr/bin/putex-guard gate database
    EnvironmentFile=-/run/putex/leases/database
    ");
}

#[test]
fn a_broken_file_binds_what_it_said_before() {
    let host = Host::new();
    let text = "unit = \"a.service\"\nbound-units = [\"b.service\"]\ncontains = [\"c.slice\"]\n";
    host.keep("db", text);
    host.file("etc/putex.d/db.toml", "unit = \"a.ser");
    let former = ["a.service", "b.service", "c.slice"];
    let bound = |generated: &Generated| {
        generated
            .bound
            .keys()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(bound(&host.run()), former);
    fs::remove_file(host.root.path().join("etc/putex.d/db.toml")).expect("removed");
    fs::create_dir(host.root.path().join("etc/putex.d/db.toml")).expect("makes a directory");
    assert_eq!(bound(&host.run()), former, "one that cannot be read");
    // A file that can be read is the one that is meant.
    fs::remove_dir(host.root.path().join("etc/putex.d/db.toml")).expect("removed");
    assert_eq!(bound(&host.run()), former, "one that is gone");
    host.file("etc/putex.d/db.toml", "unit = \"other.service\"\n");
    assert_eq!(bound(&host.run()), ["other.service"]);
}

#[test]
fn a_name_that_is_none_leaves_the_former_unit_gated() {
    let host = Host::new();
    let text = "unit = \"a.service\"\n";
    host.keep("db", text);
    for wrong in ["a", "a.service ", ""] {
        host.file("etc/putex.d/db.toml", &format!("unit = {wrong:?}\n"));
        let generated = host.run();
        assert_eq!(
            generated
                .bound
                .keys()
                .map(UnitName::as_str)
                .collect::<Vec<_>>(),
            ["a.service"],
            "{wrong}"
        );
    }
}

#[test]
fn a_file_that_others_may_change_sets_no_unit_free_and_says_nothing_new() {
    let host = Host::new();
    let shut = "unit = \"db.service\"\nbound-units = [\"a.timer\"]\ncontains = [\"db.slice\"]\n";
    host.file("etc/putex.d/db.toml", shut)
        .file("usr/lib/putex.d/db.toml", "unit = \"other.service\"\n");
    let set_mode = |name: &str, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(host.root.path().join(name), mode).expect("its mode");
    };
    set_mode("etc/putex.d/db.toml", 0o664);
    let all = "db:a.timer db:db.service db:db.slice";
    // At boot there is nothing else to go by but what it hides.
    assert_eq!(host.bound(), format!("{all} db:other.service"));
    assert!(
        host.run()
            .problems
            .iter()
            .any(|said| said.contains("run \"chmod go-w ")),
        "{:?}",
        host.run()
    );
    host.keep("db", shut);
    for text in ["unit = \"ssh.service\"\n", "", "unit ="] {
        host.file("etc/putex.d/db.toml", text);
        assert_eq!(host.bound(), all, "{text}");
    }
    set_mode("etc/putex.d/db.toml", 0o644);
    assert_eq!(
        host.file("etc/putex.d/db.toml", "unit = \"new.service\"\n")
            .bound(),
        "db:new.service"
    );

    set_mode("etc/putex.d", 0o777);
    let generated = host.run();
    assert!(
        generated
            .problems
            .iter()
            .any(|said| said.contains("chmod go-w") && said.contains("/etc/putex.d\""))
    );
    assert_eq!(host.bound(), "db:new.service");
    set_mode("etc/putex.d", 0o755);

    let watchdog = "[guard]\nwatchdog-device = \"/dev/watchdog\"\nwatchdog-timeout = \"3s\"\n";
    host.file("etc/putex/putexd.toml", watchdog);
    set_mode("etc/putex/putexd.toml", 0o646);
    let said = run_for_guard(host.root.path(), &host.root.path().join("out"));
    assert!(said.expect_err("it may be any file").contains("chmod go-w"));
}

#[test]
fn a_pipe_holds_up_nothing() {
    let host = Host::new();
    host.file("etc/putex.d/db.toml", "unit = \"a.service\"\n");
    let pipe = host.root.path().join("etc/putex.d/a.toml");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .expect("a pipe can be made");
    symlink(&pipe, host.root.path().join("etc/putex.d/z.toml")).expect("links can be made");
    let generated = host.run();
    assert_eq!(
        generated
            .bound
            .keys()
            .map(UnitName::as_str)
            .collect::<Vec<_>>(),
        ["a.service"]
    );
    let is_odd = |problem: &&String| problem.contains("it is not a regular file");
    assert_eq!(
        generated.problems.iter().filter(is_odd).count(),
        2,
        "{:?}",
        generated.problems
    );
}

#[test]
fn units_that_come_early_by_default_come_late() {
    let host = Host::new();
    host.file("etc/putex.d/data.toml", "unit = \"srv-data.mount\"")
        .file("etc/putex.d/web.toml", "unit = \"web.socket\"");
    insta::assert_snapshot!(host.drop_in("srv-data.mount"), @r"
    # Made by putex-generator: this unit runs only while this host holds its lease.
    [Unit]
    BindsTo=putex-lease@data.target
    After=putex-lease@data.target
    AssertPathExists=/run/putex/leases/data
    DefaultDependencies=no
    Conflicts=umount.target
    Before=umount.target
    FailureAction=none
    SuccessAction=none
    StartLimitAction=none
    JobTimeoutAction=none
    StopWhenUnneeded=no
    ");
    insta::assert_snapshot!(host.drop_in("web.socket"), @r"
    # Made by putex-generator: this unit runs only while this host holds its lease.
    [Unit]
    BindsTo=putex-lease@web.target
    After=putex-lease@web.target
    AssertPathExists=/run/putex/leases/web
    DefaultDependencies=no
    Conflicts=shutdown.target
    Before=shutdown.target
    FailureAction=none
    SuccessAction=none
    StartLimitAction=none
    JobTimeoutAction=none
    StopWhenUnneeded=no
    ");
}

#[test]
fn all_units_but_scopes_and_those_without_a_file_are_kept_loaded() {
    let host = Host::new();
    host.file(
        "etc/putex.d/db.toml",
        "unit = \"db.service\"\ncontains = [\"db.slice\", \"machine-db.scope\"]\n",
    );
    host.file(
        "etc/putex.d/web.toml",
        "unit = \"web.service\"\nbound-units = [\"web.timer\"]\n",
    );
    fs::create_dir_all(host.root.path().join("run/systemd/transient")).expect("makes a directory");
    host.file("etc/putex.d/run.toml", "unit = \"run.service\"\n")
        .file("run/systemd/transient/run.service", "[Service]\n");
    insta::assert_snapshot!(host.drop_in(UNITS_TARGET), @r"
    # Made by putex-generator: systemd keeps these units loaded.
    [Unit]
    PropagatesReloadTo=db.service
    PropagatesReloadTo=db.slice
    PropagatesReloadTo=web.service
    PropagatesReloadTo=web.timer
    ");
}

#[test]
fn a_unit_that_a_second_service_names_stays_bound_to_the_one_that_has_it() {
    let host = Host::new();
    host.file("etc/putex.d/db.toml", "unit = \"db.service\"\n")
        .file("etc/putex.d/dup.toml", "unit = \"db.service\"\n");
    assert_eq!(host.bound(), "db:db.service dup:db.service");
    host.keep("db", "unit = \"db.service\"\n");
    assert_eq!(host.bound(), "db:db.service");
    let problems = host.run().problems;
    assert_eq!(
        problems,
        ["dup: db.service is not bound to its lease, because it is another service's"]
    );
    // The service's own file names another unit now.
    host.file("etc/putex.d/db.toml", "unit = \"other.service\"\n");
    assert_eq!(host.bound(), "dup:db.service db:other.service");
}

#[test]
fn two_services_of_one_unit_need_both_leases() {
    let host = Host::new();
    host.file("etc/putex.d/a.toml", "unit = \"x.service\"")
        .file("usr/lib/putex.d/b.toml", "unit = \"x.service\"");
    let text = host.drop_in("x.service");
    for service in ["a", "b"] {
        assert!(text.contains(&format!("AssertPathExists=/run/putex/leases/{service}\n")));
        assert!(text.contains(&format!("gate {service}\n")));
    }
}

#[test]
fn bound_units_are_gated_like_the_unit() {
    let host = Host::new();
    host.file(
        "etc/putex.d/billing.toml",
        "unit = \"billing.timer\"\nbound-units = [\"billing.service\"]\n",
    );
    assert_eq!(
        host.bound(),
        "billing:billing.service billing:billing.timer"
    );
    assert!(host.run().problems.is_empty());
    let timer = host.drop_in("billing.timer");
    assert!(
        timer.contains("\nAssertPathExists=/run/putex/leases/billing\n"),
        "{timer}"
    );
    assert!(!timer.contains("[Service]"), "{timer}");
    insta::assert_snapshot!(host.drop_in("billing.service"), @r"
    # Made by putex-generator: this unit runs only while this host holds its lease.
    [Unit]
    BindsTo=putex-lease@billing.target
    After=putex-lease@billing.target
    AssertPathExists=/run/putex/leases/billing
    FailureAction=none
    SuccessAction=none
    StartLimitAction=none
    JobTimeoutAction=none
    StopWhenUnneeded=no
    [Service]
    ExecCondition=/usr/bin/putex-guard gate billing
    EnvironmentFile=-/run/putex/leases/billing
    ");
}

#[test]
fn what_is_contained_asserts_the_grant_and_ends_with_the_guard_and_not_with_the_lease() {
    let host = Host::new();
    host.file(
        "etc/putex.d/db.toml",
        "unit = \"db.service\"\ncontains = [\"db.slice\", \"machine-db.scope\"]\n",
    );
    assert_eq!(
        host.bound(),
        "db:db.service db:db.slice db:machine-db.scope"
    );
    let asserted = "# Made by putex-generator: this unit runs only while this host holds its lease.\n[Unit]\n\
                    BindsTo=putex-guard.service\nAssertPathExists=/run/putex/leases/db\nFailureAction=none\n\
                    SuccessAction=none\nStartLimitAction=none\nJobTimeoutAction=none\nStopWhenUnneeded=no\n";
    assert_eq!(host.drop_in("db.slice"), asserted);
    assert_eq!(host.drop_in("machine-db.scope"), asserted);
}

/// If one did, the host would not boot.
#[test]
fn no_slice_of_the_host_waits_for_a_lease() {
    for key in ["contains", "bound-units"] {
        for name in [
            "-.slice",
            "system.slice",
            "user.slice",
            "init.scope",
            "machine.slice",
            "user-0.slice",
        ] {
            let host = Host::new();
            host.file(
                "etc/putex.d/x.toml",
                &format!("unit = \"x.service\"\n{key} = [\"{name}\"]\n"),
            );
            assert_eq!(host.bound(), "x:x.service", "{key} {name}");
            assert_eq!(host.run().problems.len(), 1, "{key} {name}");
        }
    }
    let host = Host::new();
    host.file(
        "etc/putex.d/x.toml",
        "unit = \"system.slice\"\ncontains = [\"user.slice\"]\n",
    );
    assert_eq!(host.bound(), "");
}

#[test]
fn a_broken_file_keeps_what_it_contains_gated() {
    for text in [
        "unit = \"x.service\"\ncontains = [\"a.slice\", 'b.scope']\nlease = = 3",
        "unit = \"x.service\"\ncontains = \"a.slice\"\ncontain = b.scope",
        "unit = \"x.service\"\n[health]\nContains = [\n  \"a.slice\",\n  \"b.scope\"\n]\n",
    ] {
        let host = Host::new();
        host.file("etc/putex.d/x.toml", text);
        assert_eq!(host.bound(), "x:a.slice x:b.scope x:x.service", "{text}");
    }
}

#[test]
fn a_broken_file_keeps_its_bound_units_gated() {
    for text in [
        "unit = \"x.timer\"\nbound-units = [\"a.service\", 'b.service']\nlease = = 3",
        "unit = \"x.timer\"\nbound-units = [\n  \"a.service\", # the one\n  \"b.service\"\n]\nlease = = 3",
        "unit = \"x.timer\"\nbound-units = [\n  \"a.service\",\n  \"b.service\"\nfailures = 3\n",
        "bound-units = [\"a.service\", \"b.service\"\n[health]\nunit = \"x.timer\"",
        "unit = \"x.timer\"\nbound-units = \"a.service\"\nbound-units = b.service",
        "unit = \"x.timer\"\nbound-units = [\"a.service\", 3, \"b.service\"]",
        "unit = \"x.timer\"\nBound_Units = [\"a.service\", \"b.service\"]",
        "unit = \"x.timer\"\n[health]\nbound-units = [\"a.service\", \"b.service\"]",
        "unit = \"x.timer\"\nbound-units = [\"a.service\", \"b.service\", \"no-type\"]",
    ] {
        let host = Host::new();
        host.file("etc/putex.d/x.toml", text);
        assert_eq!(host.bound(), "x:a.service x:b.service x:x.timer", "{text}");
    }
}

#[test]
fn other_lines_bind_nothing() {
    let host = Host::new();
    host.file(
        "etc/putex.d/x.toml",
        "unit = \"x.service\"\n# bound-units = [\"a.service\"]\nkey = \"b.service\"\n",
    );
    assert_eq!(host.bound(), "x:x.service");
}

#[test]
fn putexd_waits_for_no_lease() {
    let host = Host::new();
    host.file(
        "etc/putex.d/x.toml",
        "unit = \"putexd.service\"\nbound-units = [\"putex-guard.service\", \"putex-units.target\"]\n",
    );
    let generated = host.run();
    assert!(generated.bound.is_empty());
    assert_eq!(generated.problems.len(), 4, "{:#?}", generated.problems);
}

#[test]
fn earlier_directories_hide_later_ones() {
    let host = Host::new();
    for (directory, unit) in [
        ("etc/putex.d", "e"),
        ("run/putex.d", "r"),
        ("usr/lib/putex.d", "u"),
    ] {
        host.file(
            &format!("{directory}/one.toml"),
            &format!("unit = \"{unit}.service\""),
        );
    }
    host.file("run/putex.d/two.toml", "unit = \"r2.service\"")
        .file("usr/lib/putex.d/two.toml", "unit = \"u2.service\"");
    assert_eq!(host.bound(), "one:e.service two:r2.service");
}

#[test]
fn a_file_is_masked_by_an_empty_one_and_by_dev_null() {
    let host = Host::new();
    for name in ["one", "two", "three"] {
        host.file(
            &format!("usr/lib/putex.d/{name}.toml"),
            "unit = \"u.service\"",
        );
    }
    host.file("run/putex.d/one.toml", "");
    symlink("/dev/null", host.root.path().join("etc/putex.d/two.toml")).expect("links");
    symlink("two.toml", host.root.path().join("etc/putex.d/three.toml")).expect("links");
    assert_eq!(host.run(), Generated::default());
}

#[test]
fn a_file_without_a_usable_unit_is_reported() {
    let host = Host::new();
    for (name, text) in [
        ("a", "lease = 3"),
        ("b", "unit = \"no-type\""),
        ("c", "unit = \"../x.service\""),
    ] {
        host.file(&format!("etc/putex.d/{name}.toml"), text);
    }
    host.file("etc/putex.d/bad name.toml", "unit = \"x.service\"")
        .file("etc/putex.d/README", "unit = \"x.service\"");
    symlink("nowhere", host.root.path().join("etc/putex.d/gone.toml")).expect("links");
    let generated = host.run();
    assert!(generated.bound.values().all(BTreeSet::is_empty));
    assert_eq!(generated.problems.len(), 9, "{:#?}", generated.problems);
}

#[test]
fn without_any_directory_there_is_nothing_to_do() {
    let root = tempfile::tempdir().expect("a directory");
    assert_eq!(run(root.path(), root.path()), Generated::default());
}
