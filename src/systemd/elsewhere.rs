//! Commands that have their work done elsewhere: what they begin is not in the unit's control group, so that a stop of the
//! unit neither ends it nor shows that it has ended.
//!
//! This is a list of known programs, and no proof: a program of another name, or a script, can do the same. The look at
//! the running unit finds processes that still descend from the unit, but not what a daemon was asked to run.

use super::properties::Properties;
use crate::types::UnitName;

/// A program that has its work done elsewhere.
struct Client {
    /// The file names of the program.
    names: &'static [&'static str],
    /// Whether these arguments begin work elsewhere.
    begins: fn(&[&str]) -> bool,
    /// What it asks for then; fits after "has {name} …".
    whereabouts: &'static str,
    remedy: &'static str,
}

const CONTAINERS: &str = "run the containers below a slice of their own (--cgroup-parent=db.slice, \"cgroup_parent: db.slice\" in a \
                          compose file) without a restart policy, and list it: contains = [\"db.slice\"]";
const MACHINES: &str =
    "have the machine run in a slice or scope of its own, and list it: contains = [\"machine-db.scope\"]";
const UNITS: &str = "list the unit that it starts in bound-units, and have this one want it";

/// The table of all known programs.
const CLIENTS: &[Client] = &[
    Client {
        names: &["docker", "docker-compose", "nerdctl", "ctr", "crictl"],
        begins: |arguments| first_word_is_not(arguments, KEEPS_CONTAINERS),
        whereabouts: "ask a daemon to run containers",
        remedy: CONTAINERS,
    },
    Client {
        names: &["podman"],
        begins: podman_begins,
        whereabouts: "run containers outside of the unit's control group",
        remedy: "use \"podman run --cgroups=split\", as a Quadlet file of the type .container does, or run the containers below a \
                 slice of their own (--cgroup-parent=db.slice), and list it: contains = [\"db.slice\"]",
    },
    Client {
        names: &["podman-compose"],
        begins: |arguments| first_word_is_not(arguments, KEEPS_CONTAINERS),
        whereabouts: "run containers outside of the unit's control group",
        remedy: CONTAINERS,
    },
    Client {
        names: &["virsh"],
        begins: |arguments| has_word(arguments, &["start", "create", "restore", "resume", "reboot", "reset"]),
        whereabouts: "ask libvirtd to run a machine",
        remedy: MACHINES,
    },
    Client {
        names: &["machinectl"],
        begins: |arguments| has_word(arguments, &["start", "shell", "login", "reboot", "enable"]),
        whereabouts: "ask systemd-machined to run a machine, or something in one",
        remedy: MACHINES,
    },
    Client {
        names: &["systemd-nspawn"],
        begins: |arguments| !arguments.contains(&"--keep-unit"),
        whereabouts: "run a container in a scope of its own",
        remedy: "add --keep-unit, which keeps it in the unit's control group",
    },
    Client {
        names: &["lxc", "incus"],
        begins: |arguments| has_word(arguments, &["start", "launch", "restart", "exec", "resume"]),
        whereabouts: "ask a daemon to run a container or a machine",
        remedy: MACHINES,
    },
    Client {
        names: &["lxc-start", "lxc-execute", "lxc-autostart", "pct", "qm"],
        begins: |_| true,
        whereabouts: "run a container or a machine in a control group of its own",
        remedy: MACHINES,
    },
    Client {
        names: &["systemd-run"],
        begins: |_| true,
        whereabouts: "ask systemd for a unit of its own",
        remedy: "start the command itself; if it needs a unit of its own, write that down as one and list it in bound-units",
    },
    Client {
        names: &["systemctl"],
        begins: |arguments| {
            let starts = ["start", "restart", "try-restart", "reload-or-restart", "isolate"];
            has_word(arguments, &starts)
                || (has_word(arguments, &["enable", "reenable"]) && arguments.contains(&"--now"))
        },
        whereabouts: "start another unit, which runs on without this one",
        remedy: UNITS,
    },
    Client {
        names: &["at", "batch"],
        begins: |_| true,
        whereabouts: "leave work to atd",
        remedy: "start the command itself, or use a timer, and list what it starts in bound-units",
    },
];

/// Subcommands that begin no container, and are common in units beside one that does.
const KEEPS_CONTAINERS: &[&str] = &[
    "build", "cp", "image", "images", "info", "inspect", "kill", "load", "login", "logs", "network", "ps", "pull",
    "rm", "rmi", "stop", "tag", "version", "volume", "down",
];

/// Programs that only run another one, in the same control group.
const WRAPPERS: &[&str] = &["env", "exec", "nice", "nohup", "setsid", "ionice", "chrt"];
const SHELLS: &[&str] = &["sh", "bash", "dash", "ash", "ksh", "zsh"];

/// What the commands of a unit are known to have done elsewhere, and the remedy; `None` if nothing is known.
pub(super) fn check(properties: &Properties, contains: &[UnitName]) -> Option<(String, String)> {
    if let Some(name) = properties.text("PAMName").filter(|name| !name.is_empty()) {
        return Some((
            format!("has PAMName={name}, and PAM may move its processes to the session of a user, which outlives it"),
            "remove that line: User= needs no PAM".to_owned(),
        ));
    }
    if !contains.is_empty() {
        // The configuration says where the work runs. Whether that is true is checked by the look at the running unit;
        // the rest is up to whoever wrote it.
        return None;
    }
    let commands =
        ["ExecStartPre", "ExecStart", "ExecStartPost"].into_iter().flat_map(|name| properties.commands(name));
    commands.into_iter().find_map(|command| {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let (name, client) = find(&words)?;
        Some((format!("has {name} {}, where no stop of it reaches", client.whereabouts), client.remedy.to_owned()))
    })
}

/// The known program that a command line runs in the end, as far as can be seen.
fn find<'a>(words: &[&'a str]) -> Option<(&'a str, &'static Client)> {
    let [program, arguments @ ..] = words else { return None };
    let name = program.rsplit('/').next().unwrap_or(program);
    if WRAPPERS.contains(&name) {
        // These are options and assignments of the wrapper's own. An option with a value as a word of its own hides the
        // command, as a script would.
        let own = arguments.iter().take_while(|word| word.starts_with('-') || word.contains('=')).count();
        return find(arguments.get(own..)?);
    }
    if SHELLS.contains(&name) {
        let at = arguments
            .iter()
            .position(|word| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c'))?;
        return in_script(arguments.get(at + 1)?);
    }
    CLIENTS
        .iter()
        .find(|client| client.names.contains(&name) && (client.begins)(arguments))
        .map(|client| (name, client))
}

/// Looks for known programs in a script, at the words with which commands begin. It does not know a shell's quoting, so
/// that it finds too little in some scripts and too much in others.
fn in_script(script: &str) -> Option<(&str, &'static Client)> {
    script.split([';', '&', '|', '\n', '(', ')', '{', '}', '`']).find_map(|command| {
        let words = command.split_whitespace().map(|word| word.trim_matches(['"', '\'', '$']));
        let words: Vec<&str> = words
            .skip_while(|word| {
                word.contains('=') || matches!(*word, "!" | "if" | "then" | "else" | "do" | "while" | "until")
            })
            .collect();
        find(&words)
    })
}

fn has_word(arguments: &[&str], wanted: &[&str]) -> bool {
    arguments.iter().any(|word| wanted.contains(word))
}

/// Whether the first argument that is no option is none of `harmless`. The value of a preceding option is taken for this
/// argument, so that more is refused than has to be.
fn first_word_is_not(arguments: &[&str], harmless: &[&str]) -> bool {
    let mut words = arguments.iter().filter(|word| !word.starts_with('-'));
    // "docker compose up" and "docker container run".
    let word = words.find(|word| !matches!(**word, "compose" | "container" | "containers" | "c"));
    word.is_some_and(|word| !harmless.contains(word))
}

/// Whether podman begins a container outside of the unit's control group. One that is run with its control group split
/// stays in the unit's. How a container was made that is only started cannot be seen.
fn podman_begins(arguments: &[&str]) -> bool {
    let splits =
        arguments.contains(&"--cgroups=split") || arguments.windows(2).any(|pair| pair == ["--cgroups", "split"]);
    let runs = arguments.iter().find(|word| !word.starts_with('-') && **word != "container") == Some(&"run");
    first_word_is_not(arguments, KEEPS_CONTAINERS) && !(runs && splits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(line: &str) -> Option<&str> {
        let words: Vec<&str> = line.split(' ').collect();
        find(&words).map(|(name, _)| name)
    }

    #[test]
    fn clients_of_daemons_are_known() {
        for (line, name) in [
            ("/usr/bin/docker run --rm --name db postgres", "docker"),
            ("/usr/bin/docker compose -f /srv/db.yaml up", "docker"),
            ("docker start -a db", "docker"),
            ("/usr/local/bin/docker-compose up", "docker-compose"),
            ("/usr/bin/nerdctl run db", "nerdctl"),
            ("/usr/bin/podman run --rm --name db postgres", "podman"),
            ("/usr/bin/podman run --cgroups=no-conmon db", "podman"),
            ("/usr/bin/podman kube play --replace --service-container=true /srv/db.yaml", "podman"),
            ("/usr/bin/podman play kube /srv/db.yaml --cgroups=split", "podman"),
            ("/usr/bin/podman start db", "podman"),
            ("/usr/bin/virsh --connect qemu:///system start db", "virsh"),
            ("/usr/bin/machinectl start db", "machinectl"),
            ("/usr/bin/systemd-nspawn -bD /srv/db", "systemd-nspawn"),
            ("/usr/bin/lxc start db", "lxc"),
            ("/usr/bin/incus start db", "incus"),
            ("/usr/bin/systemd-run --scope /usr/bin/db", "systemd-run"),
            ("/usr/bin/systemctl start db-worker.service", "systemctl"),
            ("/usr/bin/systemctl --now enable db-worker.service", "systemctl"),
            ("/usr/bin/at now", "at"),
            ("/usr/bin/env A=b /usr/bin/docker run db", "docker"),
            ("/usr/bin/nice -n19 setsid docker run db", "docker"),
        ] {
            assert_eq!(named(line), Some(name), "{line}");
        }
    }

    #[test]
    fn what_runs_in_the_unit_is_let_through() {
        for line in [
            "/usr/bin/docker pull postgres",
            "/usr/bin/docker rm -f db",
            "/usr/bin/docker compose down",
            "/usr/bin/docker",
            "/usr/bin/podman run --name=db --cidfile=/run/db.cid --replace --rm --cgroups=split -d postgres",
            "/usr/bin/podman --log-level=info container run --cgroups split db",
            "/usr/bin/podman rm -f -i --cidfile=/run/db.cid",
            "/usr/bin/podman network create db",
            "/usr/bin/virsh destroy db",
            "/usr/bin/systemd-nspawn --quiet --keep-unit --boot --machine=db",
            "/usr/bin/systemctl stop other.service",
            "/usr/bin/systemctl is-active other.service",
            "/usr/bin/systemctl enable other.service",
            "/bin/su daemon -s /bin/sh -c exec",
            "/usr/bin/sudo -u daemon worker",
            "/usr/sbin/dockerd -H fd://",
            "/usr/bin/database --docker run",
            "/usr/bin/env",
        ] {
            assert_eq!(named(line), None, "{line}");
        }
    }

    #[test]
    fn scripts_are_looked_into_as_far_as_words_go() {
        let in_sh = |script: &'static str| find(&["/bin/sh", "-ec", script]).map(|(name, _)| name);
        assert_eq!(in_sh("docker run db"), Some("docker"));
        assert_eq!(in_sh("cd /srv && exec /usr/bin/docker run db"), Some("docker"));
        assert_eq!(in_sh("docker pull db; A=b podman start \"$db\""), Some("podman"));
        assert_eq!(in_sh("if true; then systemd-run worker; fi"), Some("systemd-run"));
        assert_eq!(in_sh("echo docker run db"), None);
        assert_eq!(in_sh("docker pull db"), None);
        for options in [["-e", "-c"], ["--norc", "-c"]] {
            let words = ["/bin/bash", options[0], options[1], "docker run db"];
            assert_eq!(find(&words).map(|(name, _)| name), Some("docker"), "{options:?}");
        }
        assert_eq!(find(&["/bin/bash", "/srv/docker run"]).map(|(name, _)| name), None, "a script is not read");
        assert_eq!(find(&["/bin/bash", "-c"]).map(|(name, _)| name), None);
    }
}
