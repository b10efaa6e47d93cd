//! A service whose processes a real Docker daemon runs: its unit holds the client alone.

use rustix::process::Signal;

use crate::cluster::{Cut, Host};
use crate::command::{holds_for, now, wait_until};
use crate::lockstore::Lockstore;
use crate::scene::{HAND_OVER, Plan, SERVICE, SOON, Scene, TAKE_OVER, WAIT, wait_for_line, wait_for_standby};

const DAEMON: &str = "putexd.service";

/// Docker as it comes, but for what a container may not do in a container: networks, devices, limits and a keyring.
const DAEMON_JSON: &str = r#"{
    "storage-driver": "vfs", "iptables": false, "ip6tables": false, "ip-forward": false, "bridge": "none",
    "exec-opts": ["native.cgroupdriver=systemd"],
    "default-runtime": "plain", "runtimes": { "plain": { "path": "/usr/local/bin/crun-plain" } }
}
"#;
const CRUN_PLAIN: &str = r#"#!/bin/sh
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

/// An image with nothing in it but the way to the host's programs.
const MAKE_IMAGE: &str = "mkdir -p /srv/image/usr /srv/image/srv/shared && \
    for folder in bin lib lib64; do ln -sfn usr/$folder /srv/image/$folder; done && \
    tar -C /srv/image -c . | docker import - plain";

/// The usual unit of a container.
const UNIT: &str = "[Unit]\nRequires=docker.service\nAfter=docker.service\n\
    [Service]\nExecStart=\nExecStartPre=-/usr/bin/docker rm -f db\n\
    ExecStart=/usr/bin/docker run --rm --name=db --cgroup-parent=db.slice --network=host --env=PUTEX_FENCING_TOKEN \
    --volume=/usr:/usr --volume=/srv/shared:/srv/shared plain /usr/local/bin/oracle\n\
    ExecStop=/usr/bin/docker stop --time=2 db\n";

fn start_docker(host: &Host) {
    host.sh("chmod 755 /usr/local/bin/crun-plain");
    host.exec(&["systemctl", "unmask", "docker.service", "docker.socket", "containerd.service"]);
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
        .file("/etc/systemd/system/database.service.d/docker.conf", UNIT);
    let Some(scene) = plan.prepare() else { return };
    for host in &scene.hosts {
        start_docker(host);
    }
    scene.start_putexd();
    for host in &scene.hosts {
        wait_for_line(host, &["database.service has docker ask a daemon to run containers"]);
    }
    let since = now();
    for host in &scene.hosts {
        host.write_file("/etc/putex.d/db.toml", &format!("{SERVICE}contains = [\"db.slice\"]\n"));
        host.exec(&["systemctl", "reload", DAEMON]);
    }
    let first = scene.wait_for_start(since, TAKE_OVER);
    wait_for_standby(scene.other(&first));
    holds_for(WAIT, "a container in its slice runs on", || scene.oracle.live() == [first.clone()]);

    let since = now();
    scene.host_of(&first).exec(&["putexctl", "step-down", "db"]);
    let second = scene.wait_for_takeover(&first, since, HAND_OVER, "step-down with docker");
    assert!(scene.stop_of(&first).is_some(), "docker stopped it in order");

    // Its client is killed and its daemon hangs: the container would run on.
    let host = scene.host_of(&second);
    let since = now();
    host.signal_all("dockerd", Signal::STOP);
    host.signal_all("containerd", Signal::STOP);
    host.partition(Cut::Silent);
    let third = scene.wait_for_takeover(&second, since, TAKE_OVER, "lapse with a docker that hangs");
    host.signal_all("containerd", Signal::CONT);
    host.signal_all("dockerd", Signal::CONT);
    host.heal();
    wait_until(SOON, "docker has noticed", || !has_containers(host));
    restart_policy(&scene, host);
    scene.assert_alone(&third);
    scene.assert_no_violation();
}

/// A container in the slice that docker starts by itself does not run on a host without the lease.
fn restart_policy(scene: &Scene, standby: &Host) {
    wait_for_standby(standby);
    let starts = scene.oracle.starts();
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
    holds_for(WAIT, "no container starts in the slice of a host without the lease", || scene.oracle.starts() == starts);
    standby.exec(&["docker", "rm", "--force", "again"]);
}
