//! The package of a service itself, upgraded as putexd-operations(7) says under "Upgrade the package of a service".

use std::{fs, time::Duration};

use crate::{
    cluster::Host,
    command::{run, said, wait_until},
    environment::utf8,
    fixture::{Fixture, SERVICE, SOON, TAKE_OVER},
};

const UNIT: &str = "vendor.service";

/// What debhelper writes into a package with a unit.
const OF_DEBHELPER: &str = "\
#!/bin/sh
set -e
if [ \"$1\" = configure ]; then
    deb-systemd-helper unmask vendor.service >/dev/null || true
    if deb-systemd-helper --quiet was-enabled vendor.service; then
        deb-systemd-helper enable vendor.service >/dev/null || true
    else
        deb-systemd-helper update-state vendor.service >/dev/null || true
    fi
    systemctl --system daemon-reload >/dev/null || true
    if [ -n \"$2\" ]; then _dh_action=restart; else _dh_action=start; fi
    deb-systemd-invoke $_dh_action vendor.service >/dev/null || true
fi
";
/// What a vendor may write.
const OF_A_VENDOR: &str =
    "#!/bin/sh\nset -e\nsystemctl daemon-reload\nsystemctl start vendor.service\n";

/// Makes a version of the package, for the hosts to install.
fn build(fixture: &Fixture, version: &str, postinst: &str) -> String {
    let folder = fixture.shared().join(format!("vendor-{version}"));
    let write = |path: &str, text: &str| {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
        fs::write(&path, text).expect("the shared folder can be written to");
        path
    };
    let control = "Package: vendor\nArchitecture: all\nMaintainer: Tests <tests@example.org>\nDescription: a service\n";
    write("DEBIAN/control", &format!("{control}Version: {version}\n"));
    let script = write("DEBIAN/postinst", postinst);
    run("chmod", &["755", utf8(&script)]);
    let unit = "[Service]\nExecStart=/bin/sleep 1000\n\n[Install]\nWantedBy=multi-user.target\n";
    write("usr/lib/systemd/system/vendor.service", unit);
    run(
        "dpkg-deb",
        &[
            "--build",
            "--root-owner-group",
            utf8(&folder),
            utf8(&folder.with_extension("deb")),
        ],
    );
    format!("/srv/shared/vendor-{version}.deb")
}

fn is_active(host: &Host) -> bool {
    host.property(UNIT, "ActiveState") == "active"
}

fn package_is(host: &Host, state: &str, version: &str) -> bool {
    let printed = host.exec(&[
        "dpkg-query",
        "--show",
        "--showformat=${db:Status-Status} ${Version}",
        "vendor",
    ]);
    printed == format!("{state} {version}")
}

/// Moves the service to `host`. Its unit is bound anew a moment after systemd has read the new file, and not taken before.
fn moves(host: &Host) {
    let asked = || {
        host.output(&["putexctl", "move", "vendor", &host.name])
            .status
            .success()
    };
    wait_until(TAKE_OVER, "the service is moved", asked);
}

/// Goes through the page with both kinds of scripts. `holder` gets the service, `other` is the standby.
pub fn is_upgraded(fixture: &Fixture, holder: &Host, other: &Host) {
    let first = build(fixture, "1", OF_DEBHELPER);
    for host in [holder, other] {
        host.write_file(
            "/etc/putex.d/vendor.toml",
            &SERVICE.replace("database.service", UNIT),
        );
        host.sh("systemctl reload putexd.service");
        host.exec(&["dpkg", "--install", &first]);
        // The installation has enabled it.
        host.exec(&["systemctl", "disable", UNIT]);
    }
    let runs_once = || is_active(holder) != is_active(other);
    wait_until(TAKE_OVER, "one host runs it", runs_once);
    let (holder, other) = if is_active(holder) {
        (holder, other)
    } else {
        (other, holder)
    };
    wait_until(SOON, "it is a standby", || {
        other
            .property("putexd.service", "StatusText")
            .contains("vendor standby")
    });

    // Debian's scripts: nothing is started on the standby, and it is restarted on the holder, under its lease.
    let second = build(fixture, "2", OF_DEBHELPER);
    other.exec(&["dpkg", "--install", &second]);
    assert!(package_is(other, "installed", "2") && !is_active(other) && is_active(holder));
    let before = holder.property(UNIT, "InvocationID");
    holder.exec(&["dpkg", "--install", &second]);
    assert!(package_is(holder, "installed", "2"));
    wait_until(TAKE_OVER, "one host runs it anew", || {
        runs_once() && holder.property(UNIT, "InvocationID") != before
    });
    let (holder, other) = if is_active(holder) {
        (holder, other)
    } else {
        (other, holder)
    };

    // A vendor's: the standby's package is half configured, until the service is there.
    let third = build(fixture, "3", OF_A_VENDOR);
    let refused = other.output(&["dpkg", "--install", &third]);
    assert!(
        !refused.status.success() && package_is(other, "half-configured", "3"),
        "{}",
        said(&refused)
    );
    assert!(!is_active(other) && is_active(holder));
    moves(other);
    other.exec(&["dpkg", "--configure", "vendor"]);
    assert!(package_is(other, "installed", "3") && is_active(other));
    let refused = holder.output(&["dpkg", "--install", &third]);
    assert!(
        !refused.status.success() && package_is(holder, "half-configured", "3"),
        "{}",
        said(&refused)
    );
    moves(holder);
    holder.exec(&["dpkg", "--configure", "vendor"]);
    assert!(package_is(holder, "installed", "3") && is_active(holder) && !is_active(other));

    for host in [holder, other] {
        host.sh("rm /etc/putex.d/vendor.toml && systemctl reload putexd.service");
    }
    wait_until(Duration::from_secs(20), "it is stopped", || {
        !is_active(holder) && !is_active(other)
    });
}
