//! Each service's health command has a user of its own: one that does to the others whatever it may does nothing to them.

use std::collections::BTreeMap;

use crate::cluster::Host;
use crate::command::wait_until;
use crate::fixture::{Plan, SOON, TAKE_OVER, main_pid, wait_for_line};
use crate::lockstore::Lockstore;

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
    let pairs = listed.lines().filter_map(|line| line.split_once(" putex-check-"));
    pairs.map(|(uid, service)| (service.to_owned(), uid.to_owned())).collect()
}

/// What the attacker says of those of its runs that saw the victim.
fn attacks(host: &Host) -> Vec<String> {
    let unit = "--unit=putex-check-attacker-active.service";
    let text = host.exec(&["journalctl", "--no-pager", "--output=cat", unit]);
    text.lines().filter(|line| line.starts_with("saw ") && !line.starts_with("saw 0 ")).map(str::to_owned).collect()
}

#[test]
fn a_check_reaches_nothing_of_another_services_check() {
    let plan = Plan::hosts("apart", 1, Lockstore::Directory).unit("victim", SLEEPS).unit("attacker", SLEEPS);
    let plan = plan.file("/opt/victim.pl", VICTIM).file("/opt/attacker.pl", ATTACKER);
    let plan = plan.service("victim", service("victim", "")).service("attacker", service("attacker", ""));
    let Some((fixture, _)) = plan.run() else { return };
    let host = &fixture.hosts[0];
    wait_until(TAKE_OVER, "both run", || {
        ["victim.service", "attacker.service"].iter().all(|unit| main_pid(host, unit) != "0")
    });
    let (pid, begin) = (main_pid(host, "victim.service"), attacks(host).len());
    let before = users(host);
    assert_ne!(before["victim"], before["attacker"], "{before:?}");
    let name = host.read_file(&format!("/run/userdb/{}.user", before["victim"])).expect("the user has a name");
    assert!(name.contains("Health check of victim"), "{name}");
    wait_until(TAKE_OVER * 2, "ten attacks", || attacks(host).len() >= begin + 10);
    let said = attacks(host);
    assert!(said.iter().all(|line| line.ends_with("did 0")), "{said:?}");
    assert_eq!(main_pid(host, "victim.service"), pid, "no check of the victim has failed");

    // systemd leaves users alone that it has not given, and a restarted putexd takes them again.
    host.exec(&["systemctl", "daemon-reexec"]);
    assert_eq!(users(host), before);
    host.exec(&["systemctl", "restart", "putexd.service"]);
    wait_until(SOON, "putexd has both users again", || users(host) == before);
    assert_eq!(main_pid(host, "victim.service"), pid);

    // With one user for both, the same attack moves the victim away: it is one.
    for name in ["victim", "attacker"] {
        host.write_file(&format!("/etc/putex.d/{name}.toml"), &service(name, "user = \"daemon\"\n"));
    }
    host.exec(&["systemctl", "reload", "putexd.service"]);
    wait_for_line(host, &["victim: releasing (was active)", "the active check fails"]);
    wait_until(SOON, "the attacker has done it", || attacks(host).iter().any(|line| !line.ends_with("did 0")));
    fixture.assert_no_violation();
}
