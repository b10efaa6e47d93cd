//! A service whose processes are run by a real Docker daemon: its unit has only the client in it.

use std::time::Duration;

use rustix::process::Signal;

use crate::{
    cluster::{Cut, Host},
    command::{holds_for, now, wait_until},
    fixture::{
        Fixture, HAND_OVER, Plan, SERVICE, SOON, TAKE_OVER, WAIT, wait_for_line, wait_for_standby,
    },
    lockstore::Lockstore,
};

const DAEMON: &str = "putexd.service";

/// Docker with its defaults, but without what is not permitted inside of a container: networks, devices, limits and a
/// keyring.
pub const DAEMON_JSON: &str = r#"{
    "storage-driver": "vfs", "iptables": false, "ip6tables": false, "ip-forward": false, "bridge": "none",
    "exec-opts": ["native.cgroupdriver=systemd"],
    "default-runtime": "plain", "runtimes": { "plain": { "path": "/usr/local/bin/crun-plain" } }
}
"#;
pub const CRUN_PLAIN: &str = r#"#!/bin/sh
for word; do
    shift
    case $word in
    --bundle) cd "$1"; set -- "$@" "$word" ;;
    create) set -- "$@" "$word" --no-new-keyring ;;
    *) set -- "$@" "$word" ;;
    esac
done
test -e config.json && sed -i 's/"resources":/"unused":/' config.json
exec /usr/bin/crun "$@"
"#;

/// Makes an image that contains only links to the host's programs.
pub const MAKE_IMAGE: &str = "mkdir -p /srv/image/usr /srv/image/srv/shared && \
    for folder in bin lib lib64; do ln -sfn usr/$folder /srv/image/$folder; done && \
    tar -C /srv/image -c . | docker import - plain";

/// The usual unit of a container.
const UNIT: &str = "[Unit]\nRequires=docker.service\nAfter=docker.service\n\
    [Service]\nExecStart=\nExecStartPre=-/usr/bin/docker rm -f db\n\
    ExecStart=/usr/bin/docker run --rm --name=db --cgroup-parent=db.slice --network=host --env=PUTEX_FENCING_TOKEN \
    --volume=/usr:/usr --volume=/srv/shared:/srv/shared plain /usr/local/bin/oracle\n\
    ExecStop=/usr/bin/docker stop --time=2 db\n";

/// A unit whose work only a look finds: its command is a script, which has a wrapper around it. `ExecStop=` does not end what it
/// runs, and the client is killed soon.
const HIDDEN: &str = "[Unit]\nRequires=docker.service\nAfter=docker.service\n\
    [Service]\nExecStart=\nExecStartPre=-/usr/bin/docker rm -f db\n\
    ExecStart=/usr/bin/flock /run/db.lock /usr/local/bin/run-db\nTimeoutStopSec=1s\n";
const SCRIPT: &str = "#!/bin/sh\nset -e\ndocker run --rm --name=db --network=host --env=PUTEX_FENCING_TOKEN \
    --volume=/usr:/usr --volume=/srv/shared:/srv/shared plain /bin/sh -c 'trap \"\" TERM; /usr/local/bin/oracle & wait'\n";
const DROP_IN: &str = "/etc/systemd/system/database.service.d/docker.conf";

fn start_docker(host: &Host) {
    host.sh("chmod 755 /usr/local/bin/crun-plain");
    host.exec(&[
        "systemctl",
        "unmask",
        "docker.service",
        "docker.socket",
        "containerd.service",
    ]);
    host.exec(&["systemctl", "start", "docker.service"]);
    host.sh(MAKE_IMAGE);
}

fn has_containers(host: &Host) -> bool {
    !host.exec(&["docker", "ps", "--quiet"]).trim().is_empty()
}

#[test]
fn a_real_docker_container_is_stopped_killed_and_proven_with_its_slice() {
    let plan = Plan::hosts("docker", 2, Lockstore::Nats)
        .file("/etc/docker/daemon.json", DAEMON_JSON)
        .file("/usr/local/bin/crun-plain", CRUN_PLAIN)
        .file("/usr/local/bin/run-db", SCRIPT)
        .file(DROP_IN, HIDDEN);
    let Some(fixture) = plan.prepare() else {
        return;
    };
    for host in &fixture.hosts {
        host.sh("chmod 755 /usr/local/bin/run-db");
        start_docker(host);
    }
    fixture.start_putexd();
    found_by_what_runs(&fixture);
    for host in &fixture.hosts {
        host.write_file(DROP_IN, UNIT);
        host.exec(&["systemctl", "daemon-reload"]);
        host.exec(&["systemctl", "reload", DAEMON]);
        wait_for_line(host, &["database.service has docker begin work"]);
    }
    let since = now();
    for host in &fixture.hosts {
        host.write_file(
            "/etc/putex.d/db.toml",
            &format!("{SERVICE}contains = [\"db.slice\"]\nbeside = [\"docker.service\"]\n"),
        );
        host.exec(&["systemctl", "reload", DAEMON]);
    }
    let first = fixture.wait_for_start(since, TAKE_OVER);
    wait_for_standby(fixture.other(&first));
    holds_for(WAIT, "a container in its slice runs on", || {
        fixture.oracle.live() == [first.clone()]
    });

    let since = now();
    fixture
        .host_of(&first)
        .exec(&["putexctl", "step-down", "--no-wait", "db"]);
    let second = fixture.wait_for_takeover(&first, since, HAND_OVER, "step-down with docker");
    assert!(
        fixture.stop_of(&first).is_some(),
        "docker stopped it in order"
    );

    // The client is killed while its daemon hangs: without the guard the container would run on.
    let host = fixture.host_of(&second);
    let since = now();
    host.signal_all("dockerd", Signal::STOP);
    host.signal_all("containerd", Signal::STOP);
    host.partition(Cut::Silent);
    let third =
        fixture.wait_for_takeover(&second, since, TAKE_OVER, "lapse with a docker that hangs");
    host.signal_all("containerd", Signal::CONT);
    host.signal_all("dockerd", Signal::CONT);
    host.heal();
    wait_until(SOON, "docker has noticed", || !has_containers(host));
    restart_policy(&fixture, host);
    fixture.assert_alone(&third);
    fixture.assert_no_violation();
}

/// Checks that a client is found which no command line shows, and that nobody starts a second container before somebody has
/// ended the one that the killed client left.
fn found_by_what_runs(fixture: &Fixture) {
    let mut since = Duration::ZERO;
    for _ in &fixture.hosts {
        let start = fixture.wait_for_start(since, TAKE_OVER);
        let host = fixture.host_of(&start);
        let line = wait_for_line(
            host,
            &["work of the unit is outside of its control group: PID "],
        );
        assert!(
            line.contains("(docker run ") && line.contains("which begins work outside"),
            "{line}"
        );
        wait_for_line(
            host,
            &[
                "run \"systemctl reset-failed database.service\"",
                "so did not end the work of PID ",
            ],
        );
        holds_for(WAIT, "only the container that was left runs", || {
            fixture.oracle.live() == [start.clone()]
        });
        since = now();
        host.exec(&["docker", "rm", "--force", "db"]);
        host.exec(&["systemctl", "reset-failed", "database.service"]);
        fixture.oracle.wait_for_end(&start, SOON);
    }
    wait_until(TAKE_OVER, "no host contends", || {
        fixture.hosts.iter().all(|host| {
            host.exec(&["putexctl", "status", "db"])
                .contains("does not contend")
        })
    });
    let starts = fixture.oracle.starts();
    holds_for(WAIT, "nobody runs it again", || {
        fixture.oracle.starts() == starts
    });
}

/// Checks that a container in the slice that docker starts by itself does not run on a host without the lease.
fn restart_policy(fixture: &Fixture, standby: &Host) {
    wait_for_standby(standby);
    let starts = fixture.oracle.starts();
    standby.output(&[
        "docker",
        "run",
        "--detach",
        "--restart=always",
        "--name=again",
        "--cgroup-parent=db.slice",
        "--network=host",
        "--volume=/usr:/usr",
        "--volume=/srv/shared:/srv/shared",
        "plain",
        "/usr/local/bin/oracle",
    ]);
    holds_for(
        WAIT,
        "no container starts in the slice of a host without the lease",
        || fixture.oracle.starts() == starts,
    );
    standby.exec(&["docker", "rm", "--force", "again"]);
}
