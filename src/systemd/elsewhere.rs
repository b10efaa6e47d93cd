//! Work that a unit has done elsewhere: what its programs begin is not in the unit's control group, so that a stop of the unit
//! neither ends it nor shows that it has ended.
//!
//! Only the distribution's own programs count, and only what is certain. A command line tells it before a start, whatever
//! wrapper or shell is around the program. A script does not tell: while the unit runs, the programs that stay beside their
//! work are found among its processes. What neither tells is a client that ends at once in a script.
//!
//! The connections of a unit's processes say less: whoever reads a unit's state from PID 1, or metrics from Docker, has the same
//! ones as whoever begins work there, and a client that ends at once has none at the time of a look.

mod command;

use std::path::Path;

pub use command::file_name;
use command::programs;

use super::{lists, properties::Properties};
use crate::{
    host::processes::{Process, Running},
    types::UnitName,
};

/// Subcommands of container engines, and of those for machines, that begin processes.
const ENGINE: &str =
    "deploy exec play restart restore resume run runp scale start unpause up watch";
const MACHINE: &str = "create exec launch login reboot reset restart restore resume shell start";
/// Words before such a subcommand: `docker compose up`, `podman pod start`.
const NOUNS: &str = "c compose container containers kube pod stack t task tasks";
const STARTING_VERBS: &str = "start restart reload-or-restart";

const MACHINES: &str =
    "run the machine in a scope of its own, and add contains = [\"machine-db.scope\"]";
const UNITS: &str = "list the unit that it starts in bound-units";
const ITSELF: &str = "start the command itself, or list a unit for it in bound-units";

/// Programs, whether they begin work elsewhere with these arguments, and what to do about it. What is begun in the units of the
/// service, the second argument, is not elsewhere.
type Programs = (&'static str, fn(&[&str], &[UnitName]) -> bool, &'static str);

/// The programs that stay beside the work that they have begun, so that they are found among a unit's processes. The kernel keeps no
/// more than 15 characters of a process's name. Daemons are there when what they run is below other slices than their own group.
const STAYING: [Programs; 7] = [
    (
        "docker docker-compose nerdctl podman-compose ctr crictl",
        |arguments, _| has_verb(arguments, ENGINE),
        "run the containers with --cgroup-parent=db.slice (\"cgroup_parent: db.slice\" in a compose file), and add contains = [\"db.slice\"]",
    ),
    (
        "podman",
        // How a container was made that is only started cannot be seen.
        |arguments, _| {
            has_verb(arguments, ENGINE) && !has(arguments, "--cgroups=split")
                || has(arguments, "system") && has(arguments, "service")
        },
        "use \"podman run --cgroups=split\", or --cgroup-parent=db.slice and contains = [\"db.slice\"]",
    ),
    (
        "systemd-nspawn",
        |arguments, _| !has(arguments, "--keep-unit --help --version"),
        "add --keep-unit",
    ),
    ("lxc-start lxc-execute lxc-autostart", |_, _| true, MACHINES),
    (
        "dockerd",
        |_, _| true,
        "set \"cgroup-parent\": \"docker.slice\" in /etc/docker/daemon.json and add contains = [\"docker.slice\"], or name a container's unit",
    ),
    (
        "containerd crio kubelet lxd incusd lxc-containers libvirtd virtqemud virtlxcd virtxend",
        |_, _| true,
        "name the unit of a container or a machine in its place",
    ),
    (
        "sshd",
        |arguments, _| !has(arguments, "-t -T -G -V"),
        "leave it to each host",
    ),
];

/// The programs that end at once.
const PASSING: [Programs; 8] = [
    (
        "virsh machinectl lxc incus pct qm",
        |arguments, _| has_verb(arguments, MACHINE),
        MACHINES,
    ),
    (
        "systemd-run",
        |arguments, _| !has(arguments, "--help --version"),
        ITSELF,
    ),
    (
        "at batch",
        |arguments, _| !has(arguments, "-l -r -d -c -V"),
        ITSELF,
    ),
    (
        "tmux",
        |arguments, _| has_verb(arguments, "new new-session new-window neww run run-shell"),
        ITSELF,
    ),
    ("systemctl", systemctl_begins, UNITS),
    (
        "service invoke-rc.d",
        |arguments, own| matches!(arguments, [unit, verb, ..] if lists(STARTING_VERBS, verb) && !is_own(own, unit)),
        UNITS,
    ),
    // systemctl is what it runs then, unless it is itself the command of a unit.
    (
        "pg_ctlcluster",
        |arguments, _| {
            has(arguments, "start restart") && !has(arguments, "--skip-systemctl-redirect")
        },
        "add --skip-systemctl-redirect",
    ),
    (
        "mount mount.nfs mount.cifs systemd-mount",
        |arguments, _| {
            !arguments.is_empty()
                && !has(
                    arguments,
                    "-l -h -V --help --version --umount -u --list --show-labels",
                )
                && !arguments.iter().any(|word| word.contains("remount"))
        },
        "list a mount unit for it in bound-units",
    ),
];

/// The commands of a unit.
const COMMANDS: [&str; 7] = [
    "ExecCondition",
    "ExecStartPre",
    "ExecStart",
    "ExecStartPost",
    "ExecReload",
    "ExecStop",
    "ExecStopPost",
];

/// Work of units that no stop of them reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutsideWork {
    /// A process that has left the units' control groups, or one in them that has its work done elsewhere.
    pub process: Process,
    /// What to do about the second, as the beginning of a sentence.
    pub client: Option<&'static str>,
}

impl OutsideWork {
    /// A process that has left the units' control groups.
    pub fn left(process: Process) -> Self {
        Self {
            process,
            client: None,
        }
    }

    /// Whether both are of the same process.
    pub fn is(&self, other: &Self) -> bool {
        self.process.is(&other.process)
    }

    /// The process and where its work is, such as `PID 36 (/usr/bin/worker) in /user.slice/session-1.scope`.
    pub fn in_words(&self) -> String {
        let process = &self.process;
        if self.client.is_none() {
            return process.to_string();
        }
        format!(
            "PID {} ({}), which begins work outside of the unit",
            process.pid, process.command
        )
    }

    /// What to do about it, as the beginning of a sentence.
    pub fn remedy(&self) -> &'static str {
        // "contains" does not take the slice of a user's sessions, which are not the unit's alone.
        let is_session = self.process.group.starts_with("/user.slice/");
        self.client.unwrap_or(if is_session {
            "start it with User= in place of su, or take pam_systemd out of the PAM file that opens its session"
        } else {
            "have it stay in the unit, or list its slice in contains"
        })
    }
}

/// Whether the kernel calls a process by the name of a program that stays beside its work elsewhere.
pub fn stays(name: &str) -> bool {
    STAYING.iter().any(|(names, ..)| lists(names, name))
}

/// What `running` has done elsewhere, if it is known for that. The kernel tells the name of its program, and where that is only
/// the arguments, because putexd may not follow `/proc/PID/exe` of all users: with the right to do so it could do whatever they
/// may.
pub fn found(running: Running, own: &[UnitName]) -> Option<OutsideWork> {
    let Running {
        process,
        name,
        words,
    } = running;
    // A script's own name comes after that of its interpreter.
    let at = words
        .iter()
        .position(|word| stays(&name) && file_name(word) == name)?;
    let client = Some(remedy(&words[at..], own)?);
    Some(OutsideWork { process, client })
}

/// The commands of a unit.
pub fn commands(properties: &Properties) -> Vec<Vec<String>> {
    COMMANDS.map(|name| properties.commands(name)).concat()
}

/// The commands of a service that were run since they were loaded.
pub fn commands_run(properties: &Properties) -> Vec<Vec<String>> {
    if properties.kind() != "service" {
        return Vec::new();
    }
    COMMANDS.map(|name| properties.commands_run(name)).concat()
}

/// What these commands are known to have done elsewhere, other than in the units `own`, and the remedy; `None` if nothing is known. A
/// unit with such commands is not started; its file may have been changed while it ran.
pub fn begun(commands: &[Vec<String>], own: &[UnitName]) -> Option<(String, &'static str)> {
    commands
        .iter()
        .flat_map(|command| programs(command))
        .find_map(|command| {
            let (name, remedy) = (file_name(&command[0]), remedy(&command, own)?);
            let words = format!("has {name} begin work outside of its control group");
            Some((words, remedy))
        })
}

/// What to do about a command that begins work elsewhere; `None`: it is not known for that. A name without a folder is looked up in
/// PATH.
fn remedy(command: &[String], own: &[UnitName]) -> Option<&'static str> {
    let (program, arguments) = command.split_first()?;
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (folder, mut name) = program.rsplit_once('/').unwrap_or(("/usr/bin", program));
    // A script of System V's calls systemctl for the unit of its name.
    if folder == "/etc/init.d" {
        arguments.insert(0, name);
        name = "service";
    } else if !["/usr", "/bin", "/sbin", "/snap"]
        .iter()
        .any(|root| Path::new(folder).starts_with(root))
    {
        return None;
    }
    let (_, begins, remedy) = STAYING
        .iter()
        .chain(&PASSING)
        .find(|(names, ..)| lists(names, name))?;
    begins(&arguments, own).then_some(*remedy)
}

/// Whether a command names a unit of the service. The ending of a .service may be left out.
fn is_own(own: &[UnitName], name: &str) -> bool {
    let suffix = if name.contains('.') { "" } else { ".service" };
    own.iter()
        .any(|unit| unit.as_str().strip_suffix(suffix) == Some(name))
}

fn has(arguments: &[&str], wanted: &str) -> bool {
    arguments.iter().any(|word| lists(wanted, word))
}

fn has_verb(arguments: &[&str], verbs: &str) -> bool {
    subcommand(verbs, arguments).is_some()
}

/// Which of `verbs` the arguments begin with behind options and [`NOUNS`], and what follows it. Which options take a value is not
/// known: a word behind one is its value or a verb.
fn subcommand<'a, 'b>(verbs: &str, arguments: &'b [&'a str]) -> Option<(&'a str, &'b [&'a str])> {
    let mut may_be_value = false;
    for (at, word) in arguments.iter().enumerate() {
        // A variable holds options.
        if word.starts_with(['-', '$']) {
            may_be_value = !word.contains('=');
        } else if lists(verbs, word) {
            return Some((word, &arguments[at + 1..]));
        } else if !std::mem::take(&mut may_be_value) && !lists(NOUNS, word) {
            break;
        }
    }
    None
}

/// Whether systemctl starts a unit that is not of the service.
fn systemctl_begins(arguments: &[&str], own: &[UnitName]) -> bool {
    let verbs = "start restart reload-or-restart enable reenable link preset isolate";
    subcommand(verbs, arguments).is_some_and(|(verb, names)| {
        let is_other = |name: &&str| !name.starts_with('-') && !is_own(own, name);
        let starts = lists(STARTING_VERBS, verb) || has(arguments, "--now");
        verb == "isolate" || starts && names.iter().any(is_other)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named_in(own: &[UnitName], line: &str) -> Option<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let (words, _) = begun(&[words], own)?;
        Some(words.split(' ').nth(1)?.to_owned())
    }

    fn named(line: &str) -> Option<String> {
        named_in(&[], line)
    }

    #[test]
    fn clients_of_daemons_are_known() {
        let lines = [
            ("/usr/bin/docker run --rm --name db postgres", "docker"),
            (
                "/usr/bin/docker -H tcp://h compose -f /srv/db.yaml up",
                "docker",
            ),
            ("docker start -a db", "docker"),
            ("/usr/bin/docker stack deploy db", "docker"),
            ("/usr/local/bin/docker-compose up", "docker-compose"),
            (
                "/usr/libexec/docker/cli-plugins/docker-compose compose up",
                "docker-compose",
            ),
            ("/usr/bin/nerdctl -n db run db", "nerdctl"),
            ("/usr/bin/ctr task start db", "ctr"),
            ("/usr/local/bin/crictl runp db.json", "crictl"),
            ("/usr/bin/podman run --rm --name db postgres", "podman"),
            ("/usr/bin/podman run --cgroups=no-conmon db", "podman"),
            (
                "/usr/bin/podman --log-level info kube play --replace --service-container=true /srv/db.yaml",
                "podman",
            ),
            ("/usr/bin/podman play kube /srv/db.yaml", "podman"),
            ("/usr/bin/podman start db", "podman"),
            ("/usr/bin/podman $LOGGING system service", "podman"),
            ("/usr/bin/podman-compose up -d", "podman-compose"),
            ("/usr/bin/virsh --connect qemu:///system start db", "virsh"),
            ("/usr/bin/machinectl start db", "machinectl"),
            ("/usr/bin/systemd-nspawn -bD /srv/db", "systemd-nspawn"),
            ("/snap/bin/lxc start db", "lxc"),
            ("/usr/bin/incus start db", "incus"),
            ("/usr/bin/lxc-start -F db", "lxc-start"),
            ("/usr/bin/lxc-execute db", "lxc-execute"),
            ("/usr/bin/lxc-autostart", "lxc-autostart"),
            ("/usr/sbin/qm start 100", "qm"),
            ("/usr/sbin/pct start 100", "pct"),
            ("/usr/bin/systemd-run --scope /usr/bin/db", "systemd-run"),
            ("/usr/bin/systemctl start db-worker.service", "systemctl"),
            (
                "/usr/bin/systemctl --now enable db-worker.service",
                "systemctl",
            ),
            ("/usr/sbin/service worker start", "service"),
            ("/usr/sbin/invoke-rc.d worker start", "invoke-rc.d"),
            ("/etc/init.d/worker start", "worker"),
            ("/usr/bin/unshare -m systemctl start worker", "systemctl"),
            ("/usr/bin/systemctl preset --now worker", "systemctl"),
            ("/bin/mount --bind /srv/a /mnt/a", "mount"),
            ("/sbin/mount.nfs a:/b /mnt/b", "mount.nfs"),
            ("/sbin/mount.cifs //a/b /mnt/b", "mount.cifs"),
            (
                "/usr/bin/systemd-mount -o bind /srv/a /mnt/a",
                "systemd-mount",
            ),
            ("/usr/bin/pg_ctlcluster 15 main start", "pg_ctlcluster"),
            ("/usr/bin/tmux -L db new -d db", "tmux"),
            ("/usr/bin/at now", "at"),
            ("/usr/bin/batch", "batch"),
            ("/usr/libexec/lxc/lxc-containers start", "lxc-containers"),
            (
                "/usr/sbin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock",
                "dockerd",
            ),
            ("/usr/bin/containerd", "containerd"),
            ("/usr/bin/crio", "crio"),
            ("/usr/bin/kubelet", "kubelet"),
            ("/usr/sbin/libvirtd --timeout 120", "libvirtd"),
            ("/usr/sbin/virtqemud", "virtqemud"),
            ("/usr/sbin/virtlxcd", "virtlxcd"),
            ("/usr/sbin/virtxend", "virtxend"),
            ("/usr/sbin/lxd --group lxd", "lxd"),
            ("/usr/libexec/incus/incusd", "incusd"),
            ("/usr/sbin/sshd -D", "sshd"),
        ];
        for (line, name) in lines {
            assert_eq!(named(line).as_deref(), Some(name), "{line}");
        }
        for name in STAYING
            .iter()
            .flat_map(|(names, ..)| names.split_whitespace())
        {
            assert!(
                name.len() <= 15 && lines.iter().any(|(_, known)| *known == name),
                "{name} has a line here"
            );
        }
    }

    #[test]
    fn what_runs_in_the_unit_is_let_through() {
        for line in [
            "/usr/bin/docker pull postgres",
            "/usr/bin/docker rm -f run",
            "/usr/bin/docker compose down",
            "/usr/bin/docker events",
            "/usr/bin/docker",
            "/usr/bin/podman run --name=db --cidfile=/run/db.cid --replace --rm --cgroups=split -d postgres",
            "/usr/bin/podman rm -f -i --cidfile=/run/db.cid",
            "/usr/bin/podman network create db",
            "/usr/bin/podman kube down /srv/db.yaml",
            "/usr/bin/virsh destroy db",
            "/usr/bin/systemd-nspawn --quiet --keep-unit --boot --machine=db",
            "/usr/bin/systemctl stop other.service",
            "/bin/mount -o remount,rw /srv",
            "/bin/mount",
            "/usr/bin/deb-systemd-invoke stop other.service",
            "/usr/bin/systemctl is-active other.service",
            "/usr/bin/systemctl enable other.service",
            "/usr/bin/systemctl try-restart other.service",
            "/usr/sbin/service other stop",
            "/usr/bin/busctl call a /a org.freedesktop.systemd1.Manager StopUnit ss worker.service replace",
            "-/usr/bin/pg_ctlcluster --skip-systemctl-redirect 15-main start",
            "/usr/bin/tmux kill-server",
            "/usr/bin/at -l",
            "/bin/su daemon -s /bin/sh -c exec",
            "/usr/bin/sudo -u daemon worker",
            "/usr/sbin/sshd -t",
            "/usr/bin/podman system prune",
            "/usr/bin/database --docker run",
            "/usr/bin/env",
            // Programs of others.
            "/opt/billing/bin/batch",
            "/opt/docker run db",
            "/srv/qm start",
        ] {
            assert_eq!(named(line), None, "{line}");
        }
    }

    #[test]
    fn what_is_started_in_units_of_the_service_is_not_elsewhere() {
        let own = ["worker.service", "db@a.timer"].map(|name| UnitName::new(name).expect("a name"));
        let named = |line: &str| named_in(&own, line);
        for line in [
            "systemctl start worker",
            "systemctl start --no-block worker.service db@a.timer",
            "service worker start",
        ] {
            assert_eq!(named(line), None, "{line}");
        }
        assert_eq!(
            named("systemctl start worker other").as_deref(),
            Some("systemctl")
        );
    }

    #[test]
    fn a_process_is_a_client_by_its_program_and_its_arguments() {
        let found = |name: &str, line: &str| {
            let process = Process {
                pid: 7,
                began: 1,
                group: "/a".to_owned(),
                command: line.to_owned(),
            };
            let words = line.split(' ').map(str::to_owned).collect();
            super::found(
                Running {
                    process,
                    name: name.to_owned(),
                    words,
                },
                &[],
            )
        };
        for (name, line) in [
            ("docker", "docker run db"),
            ("docker", "/usr/bin/docker compose up"),
            (
                "docker-compose",
                "/usr/bin/python3 /usr/bin/docker-compose up",
            ),
            ("podman", "/usr/bin/podman start -a db"),
            ("systemd-nspawn", "systemd-nspawn -D /srv/db"),
        ] {
            assert!(stays(name), "{name}");
            assert!(found(name, line).is_some(), "{line}");
        }
        for (name, line) in [
            ("docker", "docker events"),
            ("docker", "/opt/bin/docker run db"),
            ("docker", "sh docker-run"),
            ("podman", "/usr/bin/podman run --cgroups=split db"),
            ("sh", "sh -c docker run db"),
            ("systemctl", "systemctl start other.service"),
        ] {
            assert_eq!(found(name, line), None, "{line}");
        }
        assert!(!stays("systemctl") && !stays("sh"));
    }
}
