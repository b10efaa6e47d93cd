//! Each service's health command has a user of its own: one that does to the others whatever it may does nothing to them.

use std::collections::BTreeMap;

use crate::{
    cluster::Host,
    command::{said, wait_until},
    fixture::{Plan, SOON, TAKE_OVER, main_pid, wait_for_line},
    lockstore::Lockstore,
};

const SLEEPS: &str = "[Service]\nExecStart=/bin/sleep infinity\n";

/// Has a process, a file and a socket for half a second, and fails if somebody has touched them, or if it has a capability.
const VICTIM: &str = r#"use Socket;
open(my $status, "/proc/self/status");
die "a capability is left" if grep /^Cap\w+:\s+0*[1-9a-f]/, <$status>;
my ($path, $text, $socket, $file) = ("/tmp/victim-$$");
socket($socket, PF_UNIX, SOCK_STREAM, 0) && bind($socket, sockaddr_un("$path.socket")) && listen($socket, 5) or die $!;
open($file, "+>", "$path.file") && syswrite($file, "well") or die $!;
select(undef, undef, undef, 0.5);
sysseek($file, 0, 0) && sysread($file, $text, 9);
die "somebody has written $text" if $text ne "well";
vec(my $waiting = "", fileno($socket), 1) = 1;
die "somebody has connected" if select($waiting, undef, undef, 0);
unlink "$path.socket", "$path.file";
"#;

/// Kills all that it may, and writes into each file and connects to each socket of the victim's. It says what it has done.
const ATTACKER: &str = r#"use Socket;
my ($seen, $done) = (0, 0);
for (1..20) {
    for my $path (glob "/tmp/victim-*") {
        $seen++;
        if (-S $path) {
            socket(my $socket, PF_UNIX, SOCK_STREAM, 0);
            $done++ if connect($socket, sockaddr_un($path));
        } elsif (open(my $file, "+<", $path)) {
            $done++ if syswrite($file, "broken");
        }
    }
    # Whether it has hit somebody is not told.
    kill("KILL", -1) if $_ == 20;
    select(undef, undef, undef, 0.02);
}
print "saw $seen and did $done\n";
"#;

fn service(name: &str, user: &str) -> String {
    format!(
        "unit = \"{name}.service\"\nrenew-interval = \"2s\"\nfailures = 3\nconfirmations = 1\n[health]\n\
         command = [\"/usr/bin/perl\", \"/opt/{name}.pl\"]\ninterval = \"700ms\"\ntimeout = \"4s\"\nfall = 1\n{user}"
    )
}

/// The users that are locked for checks, by service.
fn users(host: &Host) -> BTreeMap<String, String> {
    let locked = "cd /run/systemd/dynamic-uid && for file in [0-9]*; do flock --nonblock $file true || echo $file $(cat $file); done";
    let listed = host.sh(locked);
    let pairs = listed
        .lines()
        .filter_map(|line| line.split_once(" putex-check-"));
    pairs
        .map(|(uid, service)| (service.to_owned(), uid.to_owned()))
        .collect()
}

/// What the attacker says of those of its runs that saw the victim.
fn attacks(host: &Host) -> Vec<String> {
    let unit = "--unit=putex-check-attacker-active.service";
    let text = host.exec(&["journalctl", "--no-pager", "--output=cat", unit]);
    text.lines()
        .filter(|line| line.starts_with("saw ") && !line.starts_with("saw 0 "))
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_check_reaches_nothing_of_another_services_check() {
    let plan = Plan::hosts("apart", 1, Lockstore::Directory)
        .unit("victim", SLEEPS)
        .unit("attacker", SLEEPS);
    let plan = plan
        .file("/opt/victim.pl", VICTIM)
        .file("/opt/attacker.pl", ATTACKER);
    let plan = plan
        .service("victim", service("victim", ""))
        .service("attacker", service("attacker", ""));
    let Some((fixture, _)) = plan.run() else {
        return;
    };
    let host = &fixture.hosts[0];
    wait_until(TAKE_OVER, "both run", || {
        ["victim.service", "attacker.service"]
            .iter()
            .all(|unit| main_pid(host, unit) != "0")
    });
    let (pid, begin) = (main_pid(host, "victim.service"), attacks(host).len());
    let before = users(host);
    assert_ne!(before["victim"], before["attacker"], "{before:?}");
    let name = host
        .read_file(&format!("/run/userdb/{}.user", before["victim"]))
        .expect("the user has a name");
    assert!(name.contains("Health check of victim"), "{name}");
    wait_until(TAKE_OVER * 2, "ten attacks", || {
        attacks(host).len() >= begin + 10
    });
    let said = attacks(host);
    assert!(said.iter().all(|line| line.ends_with("did 0")), "{said:?}");
    assert_eq!(
        main_pid(host, "victim.service"),
        pid,
        "no check of the victim has failed"
    );

    // systemd leaves users alone that it has not given, and a restarted putexd takes them again.
    host.exec(&["systemctl", "daemon-reexec"]);
    assert_eq!(users(host), before);
    host.exec(&["systemctl", "restart", "putexd.service"]);
    wait_until(SOON, "putexd has both users again", || {
        users(host) == before
    });
    assert_eq!(main_pid(host, "victim.service"), pid);

    // With one user for both, the same attack moves the victim away: it is one.
    for name in ["victim", "attacker"] {
        host.write_file(
            &format!("/etc/putex.d/{name}.toml"),
            &service(name, "user = \"daemon\"\n"),
        );
    }
    host.exec(&["systemctl", "reload", "putexd.service"]);
    wait_for_line(
        host,
        &["victim: releasing (was active)", "the active check fails"],
    );
    wait_until(SOON, "the attacker has done it", || {
        attacks(host).iter().any(|line| !line.ends_with("did 0"))
    });
    fixture.assert_no_violation();
}

/// Permits everything to everybody.
const PERMISSIVE: &str =
    "polkit.addRule(function(action, subject) { return polkit.Result.YES; });\n";

/// Asks for all by which something of its user would outlive it, says in one line what it was told, and leaves a process behind.
const CLINGS: &str = r#"#!/bin/sh
me=$(id -u)
login1="org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"
systemd1="org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager"
answers="asked by $(id -un):"
for call in "$login1 SetUserLinger ubb $me true false" "$login1 Inhibit ssss shutdown $me check delay" \
    "$systemd1 StartUnit ss user@$me.service replace" "$systemd1 StartUnit ss user-runtime-dir@$me.service replace"; do
    if answer=$(busctl call $call 2>&1); then answers="$answers permitted"; else answers="$answers ${answer##*: };"; fi
done
echo "$answers"
setsid sh -c 'trap "" HUP TERM; exec sleep 1000' >/dev/null 2>&1 &
"#;

/// As on most desktops and some servers: users without an entry in a file have names, logind keeps managers of users, and polkit
/// permits what it likes.
#[test]
fn a_check_gets_no_right_and_leaves_nothing_behind() {
    let plan = Plan::hosts("clings", 1, Lockstore::Directory)
        .unit("clings", SLEEPS)
        .file("/opt/clings.sh", CLINGS);
    let plan = plan.file("/etc/polkit-1/rules.d/10-everybody.rules", PERMISSIVE);
    let check = service("clings", "").replace(
        "/usr/bin/perl\", \"/opt/clings.pl",
        "/bin/sh\", \"/opt/clings.sh",
    );
    let Some((fixture, _)) = plan.service("clings", check).run() else {
        return;
    };
    let host = &fixture.hosts[0];
    host.exec(&[
        "sed",
        "-i",
        r"s/^\(passwd\|group\):.*/& systemd/",
        "/etc/nsswitch.conf",
    ]);
    host.exec(&["systemctl", "unmask", "systemd-logind.service"]);
    host.exec(&[
        "systemctl",
        "restart",
        "dbus.service",
        "polkit.service",
        "systemd-logind.service",
    ]);

    let answers = || {
        let text = host.exec(&[
            "journalctl",
            "--no-pager",
            "--output=cat",
            "--unit=putex-check-clings-active.service",
        ]);
        text.lines()
            .filter(|line| line.starts_with("asked by putex-check-"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    wait_until(TAKE_OVER, "three checks by a user with a name", || {
        answers().len() >= 3
    });
    assert!(
        answers().iter().all(|line| !line.contains("permitted")),
        "{:?}",
        answers()
    );
    // Others are permitted it on this host.
    let other = said(&host.output(&[
        "setpriv",
        "--reuid=65534",
        "--clear-groups",
        "sh",
        "/opt/clings.sh",
    ]));
    assert!(
        other.contains("asked by nobody") && other.matches("permitted").count() >= 3,
        "{other}"
    );
    host.output(&["pkill", "--uid=65534"]);

    let uid = users(host)["clings"].clone();
    host.exec(&["systemctl", "stop", "putexd.service"]);
    let left = format!(
        "ps --no-headers -o args --user {uid}; ls -d /run/user/{uid}; ls /var/lib/systemd/linger | grep putex; \
         loginctl list-users --no-legend | grep -w {uid}; systemd-inhibit --list --no-legend | grep -w {uid}; \
         systemctl list-units --all --plain --no-legend 'putex-check-*' '*{uid}*'; true"
    );
    // A check that was under way ends with its own time limit at the latest.
    wait_until(TAKE_OVER, &format!("nothing is left of {left}"), || {
        host.sh(&left).is_empty()
    });
    fixture.assert_no_violation();
}
