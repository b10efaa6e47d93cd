//! Which programs a command line runs: what is inside of wrappers, and at the beginning of the commands of a shell.

use crate::systemd::lists;

/// Programs that run another one, in the same control group.
const WRAPPERS: &str = "env nohup setsid command catatonit eatmydata time exec nice ionice stdbuf sudo runuser setpriv \
                        systemd-inhibit systemd-cat dumb-init tini unshare nsenter pkexec dbus-run-session xargs chrt flock timeout \
                        taskset chroot gosu su-exec";
const SHELLS: &str = "sh bash dash ash ksh zsh";
/// Words of a shell after which a command begins.
const BEFORE_COMMANDS: &str = "! { if then else elif do while until";
/// How deep commands may be inside of each other.
const DEPTH: usize = 8;

pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The commands that a command line may run in the end: itself, or what is inside of wrappers and shells. Each is a program and its
/// arguments. Which options of a wrapper take a value is not known, so that any word behind it may be the program.
pub fn programs(words: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    unwrap(words, DEPTH, &mut found);
    found
}

fn unwrap(words: &[String], depth: usize, found: &mut Vec<Vec<String>>) {
    for (at, word) in words.iter().enumerate() {
        let (name, rest) = (file_name(word), &words[at + 1..]);
        let (is_shell, is_wrapper) = (lists(SHELLS, name), lists(WRAPPERS, name));
        if !is_shell && !is_wrapper {
            if !word.starts_with('-') {
                found.push(words[at..].to_vec());
            }
        } else if let Some(option) = rest.iter().position(|word| takes_script(word))
            && let Some(deeper) = depth.checked_sub(1)
        {
            for command in commands_of(&rest[option + 1..].join(" ")) {
                unwrap(&command, deeper, found);
            }
        }
        if is_shell || at == 0 && !is_wrapper {
            break;
        }
    }
}

/// Whether a word is the option of a shell that its script follows, such as `-euc`. `flock` and `runuser` have it as well.
fn takes_script(word: &str) -> bool {
    word == "--command" || word.starts_with('-') && !word.starts_with("--") && word.contains('c')
}

/// The commands of a shell's script by their words, also of those inside of `$(…)`. Quotes are not heeded, so that what is quoted may
/// count as a command.
fn commands_of(script: &str) -> Vec<Vec<String>> {
    let script = script.replace("\\\n", " ");
    let commands = script.split([';', '&', '|', '\n', '(', '`']);
    let words = |command: &str| {
        let words = command
            .split_whitespace()
            .map(|word| word.trim_matches(['"', '\'', ')']).to_owned());
        let is_before = |word: &String| lists(BEFORE_COMMANDS, word) || word.contains('=');
        words.skip_while(is_before).collect()
    };
    commands.map(words).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_by(words: &[&str]) -> Vec<String> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        programs(&words)
            .into_iter()
            .map(|command| command.join(" "))
            .collect()
    }

    #[test]
    fn what_a_wrapper_runs_is_found() {
        let lines = [
            "env -i -u B A=b",
            "env --unset B --chdir=/srv",
            "/usr/bin/nohup",
            "setsid --wait",
            "command",
            "catatonit --",
            "eatmydata",
            "time",
            "exec -a db",
            "nice -n 19",
            "nice -n19",
            "nice --adjustment 19",
            "ionice -c 2 -n7 -t",
            "chrt --rr -T 5 10",
            "flock -n -w 5 /run/db.lock",
            "timeout -s KILL --foreground 1h",
            "stdbuf -o L -eL",
            "sudo -nu db -g db A=b",
            "runuser -u db --",
            "setpriv --reuid db --regid=db --clear-groups",
            "systemd-inhibit --what=shutdown --who db --mode=block",
            "systemd-cat -t db",
            "dumb-init -r 15:3 --",
            "tini -s -p SIGTERM --",
            "taskset -c 0-3",
            "chroot --userspec db /srv",
            "gosu db",
            "su-exec db",
            "unshare -m --root /srv",
            "nsenter -t 1 -m",
            "pkexec --user root",
            "dbus-run-session --",
            "xargs -r -n 1",
            "nice flock /run/db.lock timeout 5 env",
        ];
        for line in lines {
            let words: Vec<&str> = line
                .split(' ')
                .chain(["/usr/bin/docker", "-r", "db"])
                .collect();
            let found = run_by(&words);
            let docker = "/usr/bin/docker -r db".to_owned();
            assert!(found.contains(&docker), "{line}: {found:?}");
        }
        for name in WRAPPERS.split_whitespace() {
            assert!(
                lines
                    .iter()
                    .any(|line| line.split([' ', '/']).any(|word| word == name)),
                "{name} has a line here"
            );
        }
        assert_eq!(run_by(&["env"]), [""; 0]);
        assert_eq!(run_by(&["timeout"]), [""; 0]);
        assert_eq!(run_by(&["env"; 20]), [""; 0]);
        let nested = ["sudo", "-a"].repeat(200);
        assert_eq!(run_by(&nested), [""; 0], "each word is looked at once");
    }

    #[test]
    fn what_a_shell_runs_is_found() {
        for words in [
            &["sh", "-c", "docker run"][..],
            &["/bin/bash", "-o", "pipefail", "-euc", "docker run"],
            &["bash", "--rcfile", "x", "-c", "exec docker run"],
            &["flock", "/run/l", "-c", "docker run"],
            &["runuser", "db", "-c", "docker run"],
            &["nice", "sh", "-c", "sh -c 'docker run'"],
            &["sh", "-c", "docker run", "name", "argument"],
        ] {
            let found = run_by(words);
            assert!(
                found
                    .iter()
                    .any(|command| command.starts_with("docker run")),
                "{words:?}: {found:?}"
            );
        }
        assert_eq!(
            run_by(&["sh", "/srv/docker", "run"]),
            [""; 0],
            "a script is not read"
        );
        assert_eq!(run_by(&["sh", "-c"]), [""; 0]);
    }

    #[test]
    fn words_of_a_script_count_where_a_command_begins() {
        for script in [
            "docker run",
            "cd /srv && docker run",
            "true; A=b docker run",
            "if true; then docker run; fi",
            "x=$(docker run)",
            "echo \"a $(docker run) b\"",
            "echo `docker run`",
            "(cd /srv; docker run)",
            "{ docker run; }",
            "! docker run",
            "echo a\ndocker run",
            "'docker' \"run\"",
            "docker \\\n run",
            "while docker run; do sleep 1; done",
            "a | docker run &",
        ] {
            assert!(
                run_by(&["sh", "-c", script])
                    .iter()
                    .any(|command| command.starts_with("docker run")),
                "{script}"
            );
        }
        for script in [
            "echo docker run",
            "echo done on $(hostname) at noon",
            "a=docker run",
        ] {
            let found = run_by(&["sh", "-c", script]);
            assert!(
                !found.iter().any(|command| command.starts_with("docker ")),
                "{script}: {found:?}"
            );
        }
    }
}
