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

use super::properties::Properties;
use super::remedy::drop_in;
use crate::host::processes::{Process, Running};
use crate::types::UnitName;
use command::{file_name, programs};

/// A program that has its work done elsewhere.
struct Client {
    /// The file names of the program, at most 15 characters each, which is all that the kernel keeps of a process's name.
    names: &'static [&'static str],
    /// The options before a subcommand that take a value of their own.
    valued: &'static [&'static str],
    /// Which arguments begin work elsewhere.
    begins: Begins,
    /// What it does; fits after "has {name} …".
    does: &'static str,
    remedy: &'static str,
    /// Whether the program stays beside the work that it has begun, so that it is found among a unit's processes.
    stays: bool,
    /// A file that the distribution's package has beside a program whose name others use too.
    beside: Option<&'static str>,
}

/// Which arguments begin work elsewhere.
enum Begins {
    /// Any.
    Always,
    /// One of these subcommands.
    Verbs(&'static [&'static str]),
    /// Others.
    If(fn(&Client, &[&str], &Own<'_>) -> bool),
}

/// The units of a service: what is started in them is not elsewhere.
struct Own<'a>(&'a [UnitName]);

impl Own<'_> {
    fn has(&self, name: &str) -> bool {
        let suffix = if name.contains('.') { "" } else { ".service" };
        self.0.iter().any(|unit| unit.as_str().strip_suffix(suffix).is_some_and(|rest| rest == name))
    }
}

const CONTAINERS: &str = "run the containers below a slice of their own (--cgroup-parent=db.slice, \"cgroup_parent: db.slice\" in a \
                          compose file) without a restart policy, and add contains = [\"db.slice\"]";
const MACHINES: &str = "have the machine run in a slice or scope of its own, and add contains = [\"machine-db.scope\"]";
const UNITS: &str = "list the unit that it starts in bound-units";

/// Subcommands of container engines that begin processes.
const ENGINE: Begins =
    Begins::Verbs(&["deploy", "exec", "kube", "play", "restart", "run", "scale", "start", "unpause", "up", "watch"]);
/// Words before such a subcommand: `docker compose up`, `podman pod start`.
const NOUNS: &[&str] = &["c", "compose", "container", "containers", "pod", "stack", "t", "task", "tasks"];

const NONE: Client =
    Client { names: &[], valued: &[], begins: Begins::Always, does: "", remedy: UNITS, stays: false, beside: None };

/// The table of all known programs.
const CLIENTS: &[Client] = &[
    Client {
        names: &["docker", "docker-compose", "nerdctl"],
        valued: &[
            "-H",
            "--host",
            "-l",
            "--log-level",
            "--config",
            "-c",
            "--context",
            "--tlscacert",
            "--tlscert",
            "--tlskey",
            "-f",
            "--file",
            "-p",
            "--project-name",
            "--profile",
            "--env-file",
            "--project-directory",
            "--ansi",
            "--parallel",
            "--progress",
            "-a",
            "--address",
            "-n",
            "--namespace",
            "--snapshotter",
            "--cgroup-manager",
            "--data-root",
        ],
        begins: ENGINE,
        does: "ask a daemon to run containers",
        remedy: CONTAINERS,
        stays: true,
        ..NONE
    },
    Client {
        names: &["ctr", "crictl"],
        valued: &["-a", "--address", "-n", "--namespace", "--timeout", "--connect-timeout", "-r", "-i", "-c", "-t"],
        begins: Begins::Verbs(&["exec", "restore", "run", "runp", "start"]),
        does: "ask a daemon to run containers",
        remedy: CONTAINERS,
        stays: true,
        ..NONE
    },
    Client {
        names: &["podman"],
        valued: &[
            "--cgroup-manager",
            "--conmon",
            "-c",
            "--connection",
            "--events-backend",
            "--hooks-dir",
            "--identity",
            "--imagestore",
            "--log-level",
            "--module",
            "--namespace",
            "--network-cmd-path",
            "--network-config-dir",
            "--network-backend",
            "--registries-conf",
            "--root",
            "--runroot",
            "--runtime",
            "--runtime-flag",
            "--ssh",
            "--storage-driver",
            "--storage-opt",
            "--tmpdir",
            "--url",
            "--volumepath",
        ],
        begins: Begins::If(podman_begins),
        does: "run containers outside of the unit's control group",
        remedy: "use \"podman run --cgroups=split\", as a Quadlet file of the type .container does, or run the containers below a \
                 slice of their own (--cgroup-parent=db.slice), and add contains = [\"db.slice\"]",
        stays: true,
        ..NONE
    },
    Client {
        names: &["podman-compose"],
        valued: &["-f", "--file", "-p", "--project-name", "--profile", "--env-file", "--parallel"],
        begins: ENGINE,
        does: "run containers outside of the unit's control group",
        remedy: CONTAINERS,
        stays: true,
        ..NONE
    },
    Client {
        names: &["virsh"],
        valued: &["-c", "--connect", "-d", "--debug", "-e", "--escape", "-k", "-K", "-l", "--log"],
        begins: Begins::Verbs(&["create", "reboot", "reset", "restore", "resume", "start"]),
        does: "ask libvirtd to run a machine",
        remedy: MACHINES,
        ..NONE
    },
    Client {
        names: &["machinectl"],
        valued: &["-H", "--host", "-M", "--machine", "-n", "-o", "-p", "--uid"],
        begins: Begins::Verbs(&["login", "reboot", "shell", "start"]),
        does: "ask systemd-machined to run a machine, or something in one",
        remedy: MACHINES,
        ..NONE
    },
    Client {
        names: &["systemd-nspawn"],
        begins: Begins::If(|_, arguments, _| !has(arguments, &["--keep-unit", "--help", "--version"])),
        does: "run a container in a scope of its own",
        remedy: "add --keep-unit, which keeps it in the unit's control group",
        stays: true,
        ..NONE
    },
    Client {
        names: &["lxc", "incus"],
        valued: &["--project"],
        begins: Begins::Verbs(&["exec", "launch", "restart", "resume", "start"]),
        does: "ask a daemon to run a container or a machine",
        remedy: MACHINES,
        ..NONE
    },
    Client {
        names: &["lxc-start", "lxc-execute", "lxc-autostart"],
        does: "run a container or a machine in a control group of its own",
        remedy: MACHINES,
        stays: true,
        ..NONE
    },
    Client {
        names: &["pct", "qm"],
        begins: Begins::Verbs(&["exec", "reboot", "resume", "start"]),
        does: "run a container or a machine in a control group of its own",
        remedy: MACHINES,
        beside: Some("/usr/share/perl5/PVE"),
        ..NONE
    },
    Client {
        names: &["systemd-run"],
        begins: Begins::If(|_, arguments, _| !has(arguments, &["--help", "--version"])),
        does: "ask systemd for a unit of its own",
        remedy: "start the command itself; if it needs a unit of its own, write that down as one and list it in bound-units",
        ..NONE
    },
    Client {
        names: &["systemctl"],
        valued: &[
            "-H",
            "--host",
            "-M",
            "--machine",
            "-n",
            "--lines",
            "-o",
            "--output",
            "-p",
            "--property",
            "-P",
            "-s",
            "--signal",
            "-t",
            "--type",
            "--state",
            "--job-mode",
            "--kill-whom",
            "--root",
            "--what",
            "--check-inhibitors",
            "--drop-in",
            "--when",
        ],
        begins: Begins::If(systemctl_begins),
        does: "start another unit, which runs on without this one",
        ..NONE
    },
    Client {
        names: &["service", "invoke-rc.d", "deb-systemd-invoke"],
        begins: Begins::If(|_, arguments, own| {
            let words: Vec<&str> = arguments.iter().copied().filter(|word| !word.starts_with('-')).collect();
            let is_start = |word: &str| matches!(word, "start" | "restart" | "reload-or-restart");
            // Debian's helper of packages has them the other way round.
            matches!(words[..], [name, verb, ..] if is_start(verb) && !own.has(name))
                || matches!(words[..], [verb, name, ..] if is_start(verb) && !own.has(name))
        }),
        does: "start another unit, which runs on without this one",
        ..NONE
    },
    Client {
        names: &["telinit", "init"],
        begins: Begins::If(|_, arguments, _| !arguments.is_empty()),
        does: "have systemd enter another state",
        remedy: "take it out",
        ..NONE
    },
    Client {
        names: &["portablectl"],
        valued: &["-p", "--profile", "-H", "-M"],
        begins: Begins::If(|client, arguments, _| {
            subcommand(client.valued, arguments).is_some_and(|(verb, _)| verb == "attach" || verb == "reattach")
                && has(arguments, &["--now"])
        }),
        does: "start another unit, which runs on without this one",
        ..NONE
    },
    Client {
        names: &["loginctl"],
        begins: Begins::Verbs(&["enable-linger"]),
        does: "have the services of a user started, which run on without this one",
        remedy: "make them units of the system, with User=, and list those in bound-units",
        ..NONE
    },
    Client {
        names: &["supervisorctl"],
        valued: &["-c", "--configuration", "-s", "--serverurl", "-u", "--username", "-p", "--password"],
        begins: Begins::Verbs(&["restart", "start"]),
        does: "ask a daemon to run a program",
        remedy: "start the program itself",
        ..NONE
    },
    Client {
        names: &["mount", "mount.nfs", "mount.cifs", "systemd-mount"],
        begins: Begins::If(|_, arguments, _| {
            let shown = ["-l", "-h", "-V", "--help", "--version", "--umount", "-u", "--list", "--show-labels"];
            !arguments.is_empty() && !has(arguments, &shown) && !arguments.iter().any(|word| word.contains("remount"))
        }),
        does: "mount a file system, which stays mounted",
        remedy: "write it down as a mount unit, and list that in bound-units",
        ..NONE
    },
    Client { names: &["swapon"], does: "take a swap into use, which stays", remedy: "leave it to each host", ..NONE },
    Client {
        names: &["busctl", "dbus-send", "gdbus"],
        begins: Begins::If(|_, arguments, own| {
            let asks = |word: &&str| STARTING_METHODS.contains(&word.rsplit('.').next().unwrap_or(word));
            let is_own = |word: &&str| own.has(word.trim_start_matches("string:").trim_matches(['"', '\'']));
            arguments.iter().any(asks) && !arguments.iter().any(is_own)
        }),
        does: "start another unit, which runs on without this one",
        ..NONE
    },
    Client {
        names: &["pg_ctlcluster"],
        // systemctl is what it runs then, unless it is itself the command of a unit.
        begins: Begins::If(|_, arguments, _| {
            has(arguments, &["start", "restart"]) && !has(arguments, &["--skip-systemctl-redirect"])
        }),
        does: "start postgresql@.service by systemctl",
        remedy: "add --skip-systemctl-redirect, which keeps the server in the unit's control group",
        ..NONE
    },
    Client {
        names: &["tmux"],
        valued: &["-c", "-f", "-L", "-S", "-T"],
        begins: Begins::If(|client, arguments, _| {
            let sessions = ["new-session", "new", "new-window", "neww", "split-window", "splitw", "run-shell", "run"];
            subcommand(client.valued, arguments).is_none_or(|(word, _)| sessions.contains(&word))
        }),
        does: "leave work to a server that may be another's, and that gives it a scope of its own",
        remedy: "start the command itself",
        ..NONE
    },
    Client {
        names: &["at", "batch"],
        begins: Begins::If(|_, arguments, _| !has(arguments, &["-l", "-r", "-d", "-c", "-V"])),
        does: "leave work to atd",
        remedy: "start the command itself, or use a timer, and list what it starts in bound-units",
        beside: Some("/usr/sbin/atd"),
        ..NONE
    },
    // The daemons that others ask: what they run is below other slices than their own group, and is there when they are gone.
    Client {
        names: &["dockerd"],
        does: "run containers outside of its own control group",
        remedy: "have them below one slice (\"cgroup-parent\": \"docker.slice\" in /etc/docker/daemon.json) and add contains = \
                 [\"docker.slice\"], or leave it to each host and name the unit of a container",
        stays: true,
        ..NONE
    },
    Client {
        names: &["containerd", "crio", "kubelet", "lxd", "incusd", "lxc-containers"],
        does: "run containers outside of its own control group",
        remedy: "leave it to each host, and name the unit of a container",
        stays: true,
        ..NONE
    },
    Client {
        names: &["libvirtd", "virtqemud", "virtlxcd", "virtxend"],
        does: "run machines outside of its own control group",
        remedy: "leave it to each host, and name the unit of a machine",
        stays: true,
        ..NONE
    },
    Client {
        names: &["sshd"],
        begins: Begins::If(|_, arguments, _| !has(arguments, &["-t", "-T", "-G", "-V"])),
        does: "open the sessions of users, which outlive it",
        remedy: "leave it to each host",
        ..NONE
    },
];

/// The methods of PID 1 that start a unit.
const STARTING_METHODS: &[&str] =
    &["StartUnit", "RestartUnit", "ReloadOrRestartUnit", "StartTransientUnit", "StartUnitWithFlags", "EnqueueUnitJob"];

/// The commands of a unit.
const COMMANDS: [&str; 7] =
    ["ExecConditionEx", "ExecStartPre", "ExecStart", "ExecStartPost", "ExecReload", "ExecStop", "ExecStopPost"];

/// Where PAM's files are; the earlier folder wins.
const PAM_FOLDERS: [&str; 2] = ["/etc/pam.d", "/usr/lib/pam.d"];
/// How deep PAM's files may include each other.
const PAM_DEPTH: usize = 8;

/// A process that has its work done elsewhere, and stays beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundClient {
    /// The process.
    pub process: Process,
    /// What it does; fits after the process.
    pub does: String,
    /// What to do about it, as the beginning of a sentence.
    pub remedy: &'static str,
}

/// Whether the kernel calls a process by the name of a program that stays beside its work elsewhere.
pub(super) fn stays(name: &str) -> bool {
    CLIENTS.iter().any(|client| client.stays && client.names.contains(&name))
}

/// What `running` has done elsewhere, if it is known for that. The kernel tells the name of its program, and where that is only
/// the arguments, because putexd may not follow `/proc/PID/exe` of all users: with the right to do so it could do whatever they
/// may.
pub(super) fn found(running: Running, own: &[UnitName]) -> Option<FoundClient> {
    let Running { process, name, words } = running;
    // A script's own name comes after that of its interpreter.
    let at = words.iter().position(|word| file_name(word) == name)?;
    let arguments: Vec<&str> = words[at + 1..].iter().map(String::as_str).collect();
    let client = client(&words[at], &arguments, &Own(own), is_there).filter(|client| client.stays)?;
    Some(FoundClient { process, does: format!("has {name} {}", client.does), remedy: client.remedy })
}

/// What the commands of a unit are known to have done elsewhere, and the remedy; `None` if nothing is known. `own` are the units
/// of the service.
pub(super) fn check(properties: &Properties, own: &[UnitName], contains: &[UnitName]) -> Option<(String, String)> {
    if let Some(found) = check_session(properties, &PAM_FOLDERS.map(Path::new)) {
        return Some(found);
    }
    if !contains.is_empty() {
        // The configuration says where the work runs. Whether that is true is checked by the look at the running unit;
        // the rest is up to whoever wrote it.
        return None;
    }
    of_commands(COMMANDS.into_iter().flat_map(|name| properties.commands(name)), own)
}

/// The commands of a service that were run since they were loaded.
pub(super) fn commands_run(properties: &Properties) -> Vec<Vec<String>> {
    let of_service = COMMANDS.into_iter().filter(|_| properties.kind() == "service");
    of_service.flat_map(|name| properties.commands_run(name)).collect()
}

/// What commands that were run are known to have done elsewhere, other than in the units `own`. A unit with such commands is not
/// started; its file may have been changed while it ran.
#[must_use]
pub fn begun(ran: &[Vec<String>], own: &[UnitName]) -> Option<String> {
    of_commands(ran.iter().cloned(), own).map(|(words, _)| words)
}

fn of_commands(mut commands: impl Iterator<Item = Vec<String>>, own: &[UnitName]) -> Option<(String, String)> {
    commands.find_map(|command| {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let (name, client) = find(&words, &Own(own), is_there)?;
        Some((format!("has {name} {}, where no stop of it reaches", client.does), client.remedy.to_owned()))
    })
}

/// PAM gives a unit a session, whose scope is the control group of its processes then, where the PAM file that the unit names
/// says so.
fn check_session(properties: &Properties, folders: &[&Path]) -> Option<(String, String)> {
    let name = properties.text("PAMName").filter(|name| !name.is_empty())?;
    if !opens_session(folders, name, 0) {
        return None;
    }
    let unit = properties.text("Id").unwrap_or_default();
    let remedy = if unit.starts_with("user@") {
        "putexd cannot run the manager of a user: make its services units of the system, with User=, and name those"
            .to_owned()
    } else {
        drop_in(unit, "Service", "PAMName=")
    };
    Some((
        format!("has PAMName={name}, and PAM moves its processes to the session of a user, which outlives it"),
        remedy,
    ))
}

/// Whether a PAM file, or one that it includes, opens a session of systemd's. A file that cannot be read says nothing, and the
/// look at the running unit remains.
fn opens_session(folders: &[&Path], name: &str, depth: usize) -> bool {
    let Some(text) = folders.iter().find_map(|folder| std::fs::read_to_string(folder.join(name)).ok()) else {
        return name != "other" && depth == 0 && opens_session(folders, "other", 1);
    };
    text.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["@include", other] => depth < PAM_DEPTH && opens_session(folders, other, depth + 1),
            ["session" | "-session", "include" | "substack", other, ..] => {
                depth < PAM_DEPTH && opens_session(folders, other, depth + 1)
            }
            ["session" | "-session", ref rest @ ..] => {
                rest.iter().any(|word| matches!(file_name(word), "pam_systemd.so" | "pam_elogind.so"))
            }
            _ => false,
        }
    })
}

/// The known program that a command line runs in the end, as far as that is certain.
fn find(words: &[&str], own: &Own<'_>, is_there: fn(&str) -> bool) -> Option<(String, &'static Client)> {
    programs(words).into_iter().find_map(|command| {
        let [program, arguments @ ..] = &command[..] else { return None };
        let arguments: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
        let client = client(program, &arguments, own, is_there)?;
        Some((file_name(program).to_owned(), client))
    })
}

/// The known program that `program` is, if it begins work elsewhere with `arguments`.
fn client(program: &str, arguments: &[&str], own: &Own<'_>, is_there: fn(&str) -> bool) -> Option<&'static Client> {
    // A script of System V's calls systemctl for the unit of its name.
    if let Some(name) = program.strip_prefix("/etc/init.d/") {
        let client = CLIENTS.iter().find(|client| client.names.contains(&"service"))?;
        let arguments: Vec<&str> = std::iter::once(name).chain(arguments.iter().copied()).collect();
        return client.begins_with(&arguments, own).then_some(client);
    }
    let name = file_name(program);
    CLIENTS.iter().find(|client| {
        client.names.contains(&name) && client.is_at(program, is_there) && client.begins_with(arguments, own)
    })
}

impl Client {
    /// Whether `program` is the distribution's. A name alone is looked up in PATH.
    fn is_at(&self, program: &str, is_there: fn(&str) -> bool) -> bool {
        let folder = program.rsplit_once('/').map(|(folder, _)| folder);
        match self.beside {
            Some(beside) => {
                matches!(folder, None | Some("/bin" | "/sbin" | "/usr/bin" | "/usr/sbin")) && is_there(beside)
            }
            None => folder.is_none_or(|folder| {
                ["/usr", "/bin", "/sbin", "/snap"].iter().any(|root| Path::new(folder).starts_with(root))
            }),
        }
    }

    fn begins_with(&self, arguments: &[&str], own: &Own<'_>) -> bool {
        match self.begins {
            Begins::Always => true,
            Begins::Verbs(verbs) => subcommand(self.valued, arguments).is_some_and(|(word, _)| verbs.contains(&word)),
            Begins::If(begins) => begins(self, arguments, own),
        }
    }
}

fn is_there(path: &str) -> bool {
    Path::new(path).exists()
}

fn has(arguments: &[&str], wanted: &[&str]) -> bool {
    arguments.iter().any(|word| wanted.contains(word))
}

/// The first argument that is neither an option nor its value nor one of [`NOUNS`], and what follows it. A variable holds
/// options.
fn subcommand<'a, 'b>(valued: &[&str], arguments: &'b [&'a str]) -> Option<(&'a str, &'b [&'a str])> {
    let mut rest = arguments;
    while let [word, behind @ ..] = rest {
        if valued.contains(word) {
            rest = behind.get(1..)?;
        } else if word.starts_with(['-', '$']) || NOUNS.contains(word) {
            rest = behind;
        } else {
            return Some((word, behind));
        }
    }
    None
}

/// Whether podman begins a container outside of the unit's control group. One that is run with its control group split
/// stays in the unit's. How a container was made that is only started cannot be seen.
fn podman_begins(client: &Client, arguments: &[&str], _: &Own<'_>) -> bool {
    let Begins::Verbs(verbs) = ENGINE else { return false };
    let Some((verb, options)) = subcommand(client.valued, arguments) else { return false };
    let splits = options.contains(&"--cgroups=split") || options.windows(2).any(|pair| pair == ["--cgroups", "split"]);
    // "podman kube down" and "podman play kube".
    let is_end = verb == "kube" && options.iter().find(|word| !word.starts_with('-')) != Some(&"play");
    let serves = verb == "system" && options.first() == Some(&"service");
    serves || verbs.contains(&verb) && !is_end && !(verb == "run" && splits)
}

/// Whether systemctl starts a unit that is not of the service.
fn systemctl_begins(client: &Client, arguments: &[&str], own: &Own<'_>) -> bool {
    let Some((verb, names)) = subcommand(client.valued, arguments) else { return false };
    let mut names = names.iter().filter(|word| !word.starts_with('-'));
    match verb {
        "start" | "restart" | "reload-or-restart" => names.any(|name| !own.has(name)),
        "enable" | "reenable" | "link" | "preset" => has(arguments, &["--now"]) && names.any(|name| !own.has(name)),
        "isolate" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named_in(own: &[UnitName], words: &[&str]) -> Option<String> {
        find(words, &Own(own), |_| true).map(|(name, _)| name)
    }

    fn named(line: &str) -> Option<String> {
        named_in(&[], &line.split(' ').collect::<Vec<_>>())
    }

    #[test]
    fn clients_of_daemons_are_known() {
        let lines = [
            ("/usr/bin/docker run --rm --name db postgres", "docker"),
            ("/usr/bin/docker -H tcp://h compose -f /srv/db.yaml up", "docker"),
            ("docker start -a db", "docker"),
            ("/usr/bin/docker stack deploy db", "docker"),
            ("/usr/local/bin/docker-compose up", "docker-compose"),
            ("/usr/libexec/docker/cli-plugins/docker-compose compose up", "docker-compose"),
            ("/usr/bin/nerdctl -n db run db", "nerdctl"),
            ("/usr/bin/ctr task start db", "ctr"),
            ("/usr/local/bin/crictl runp db.json", "crictl"),
            ("/usr/bin/podman run --rm --name db postgres", "podman"),
            ("/usr/bin/podman run --cgroups=no-conmon db", "podman"),
            ("/usr/bin/podman --log-level info kube play --replace --service-container=true /srv/db.yaml", "podman"),
            ("/usr/bin/podman play kube /srv/db.yaml --cgroups=split", "podman"),
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
            ("/usr/bin/systemctl --now enable db-worker.service", "systemctl"),
            ("/usr/sbin/service worker start", "service"),
            ("/usr/sbin/invoke-rc.d worker start", "invoke-rc.d"),
            ("/usr/bin/deb-systemd-invoke restart worker.service", "deb-systemd-invoke"),
            ("/etc/init.d/worker start", "worker"),
            ("/usr/bin/unshare -m systemctl start worker", "systemctl"),
            ("/usr/bin/systemctl preset --now worker", "systemctl"),
            ("/usr/sbin/telinit 2", "telinit"),
            ("/sbin/init 3", "init"),
            ("/usr/bin/portablectl attach --now /srv/db.raw", "portablectl"),
            ("/usr/bin/loginctl enable-linger db", "loginctl"),
            ("/usr/bin/supervisorctl -c /srv/a start db", "supervisorctl"),
            ("/bin/mount --bind /srv/a /mnt/a", "mount"),
            ("/sbin/mount.nfs a:/b /mnt/b", "mount.nfs"),
            ("/sbin/mount.cifs //a/b /mnt/b", "mount.cifs"),
            ("/usr/bin/systemd-mount -o bind /srv/a /mnt/a", "systemd-mount"),
            ("/sbin/swapon /srv/swap", "swapon"),
            (
                "/usr/bin/busctl call a /a org.freedesktop.systemd1.Manager StartUnit ss worker.service replace",
                "busctl",
            ),
            ("dbus-send --system /a org.freedesktop.systemd1.Manager.StartUnit string:a.service", "dbus-send"),
            ("gdbus call --method org.freedesktop.systemd1.Manager.StartUnit a.service replace", "gdbus"),
            ("/usr/bin/pg_ctlcluster 15 main start", "pg_ctlcluster"),
            ("/usr/bin/tmux -L db new -d db", "tmux"),
            ("/usr/bin/at now", "at"),
            ("/usr/bin/batch", "batch"),
            ("/usr/libexec/lxc/lxc-containers start", "lxc-containers"),
            ("/usr/sbin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock", "dockerd"),
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
        for client in CLIENTS {
            for name in client.names {
                assert!(lines.iter().any(|(line, _)| line.contains(name)), "{name} has a line here");
                assert!(!client.stays || name.len() <= 15, "the kernel keeps no more of {name}");
            }
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
            "/usr/bin/podman --log-level=info container run --cgroups split db",
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
            "/usr/local/bin/at now",
            "/srv/qm start",
        ] {
            assert_eq!(named(line), None, "{line}");
        }
        let alone = |line: &str| find(&line.split(' ').collect::<Vec<_>>(), &Own(&[]), |_| false).map(|(name, _)| name);
        for line in ["/usr/bin/at now", "batch", "/usr/bin/qm start 100"] {
            assert_eq!(alone(line), None, "{line}: the package of the known one is not here");
        }
        assert!(alone("/usr/bin/docker run db").is_some());
    }

    #[test]
    fn what_is_started_in_units_of_the_service_is_not_elsewhere() {
        let own = ["worker.service", "db@a.timer"].map(|name| UnitName::new(name).expect("a name"));
        let named = |line: &str| named_in(&own, &line.split(' ').collect::<Vec<_>>());
        for line in [
            "systemctl start worker",
            "systemctl start --no-block worker.service db@a.timer",
            "service worker start",
            "busctl call a /a org.freedesktop.systemd1.Manager StartUnit ss worker.service replace",
        ] {
            assert_eq!(named(line), None, "{line}");
        }
        assert_eq!(named("systemctl start worker other").as_deref(), Some("systemctl"));
    }

    #[test]
    fn a_process_is_a_client_by_its_program_and_its_arguments() {
        let found = |name: &str, line: &str| {
            let process = Process { pid: 7, began: 1, group: "/a".to_owned(), command: line.to_owned() };
            let words = line.split(' ').map(str::to_owned).collect();
            super::found(Running { process, name: name.to_owned(), words }, &[])
        };
        for (name, line) in [
            ("docker", "docker run db"),
            ("docker", "/usr/bin/docker compose up"),
            ("docker-compose", "/usr/bin/python3 /usr/bin/docker-compose up"),
            ("podman", "/usr/bin/podman start -a db"),
            ("systemd-nspawn", "systemd-nspawn -D /srv/db"),
        ] {
            assert!(stays(name), "{name}");
            assert!(found(name, line).is_some_and(|found| found.does.starts_with(&format!("has {name} "))), "{line}");
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

    #[test]
    fn a_session_is_what_a_pam_file_says() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(root.path().join(name), text).expect("a file");
        write("common", "session optional pam_unix.so\n# session optional pam_systemd.so\n");
        write("sessions", "auth required pam_deny.so\n-session [success=ok] /lib/security/pam_systemd.so\n");
        write("cron", "@include common\n");
        write("crond", "session include sessions\n");
        write("su", "@include common\n@include sessions\n");
        write("loop", "@include loop\n");
        for (name, wanted) in [("cron", false), ("crond", true), ("su", true), ("loop", false), ("none", false)] {
            assert_eq!(opens_session(&[root.path()], name, 0), wanted, "{name}");
        }
        write("other", "session substack su\n");
        assert!(opens_session(&[root.path()], "none", 0), "what has no file of its own has that of others");
    }
}
