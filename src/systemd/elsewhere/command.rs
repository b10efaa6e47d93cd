//! Which programs a command line runs: what is inside of wrappers, and at the beginning of the commands of a shell.

use std::borrow::Cow;

/// A program that runs another one, in the same control group.
struct Wrapper {
    names: &'static [&'static str],
    /// The letters of its options that take a value.
    letters: &'static str,
    /// Its long options that take a value, which may be the next word.
    long: &'static [&'static str],
    /// How many words of its own come before the command.
    operands: usize,
}

const NONE: Wrapper = Wrapper { names: &[], letters: "", long: &[], operands: 0 };

/// The table of wrappers.
const WRAPPERS: &[Wrapper] = &[
    Wrapper { names: &["env"], letters: "CSu", long: &["--chdir", "--split-string", "--unset"], ..NONE },
    Wrapper { names: &["nohup", "setsid", "command", "catatonit", "eatmydata", "time"], ..NONE },
    Wrapper { names: &["exec"], letters: "a", ..NONE },
    Wrapper { names: &["nice"], letters: "n", long: &["--adjustment"], ..NONE },
    Wrapper { names: &["ionice"], letters: "cnpPu", long: &["--class", "--classdata"], ..NONE },
    Wrapper {
        names: &["chrt"],
        letters: "TPD",
        long: &["--sched-runtime", "--sched-period", "--sched-deadline"],
        operands: 1,
    },
    Wrapper { names: &["flock"], letters: "wE", long: &["--timeout", "--wait", "--conflict-exit-code"], operands: 1 },
    Wrapper { names: &["timeout"], letters: "ks", long: &["--kill-after", "--signal"], operands: 1 },
    Wrapper { names: &["stdbuf"], letters: "ioe", long: &["--input", "--output", "--error"], ..NONE },
    Wrapper {
        names: &["sudo"],
        letters: "aCcDghpRrTtUu",
        long: &[
            "--chdir",
            "--chroot",
            "--close-from",
            "--command-timeout",
            "--group",
            "--host",
            "--prompt",
            "--role",
            "--type",
            "--user",
        ],
        ..NONE
    },
    Wrapper {
        names: &["runuser"],
        letters: "GgTuw",
        long: &["--group", "--supp-group", "--user", "--whitelist-environment"],
        ..NONE
    },
    Wrapper {
        names: &["setpriv"],
        long: &[
            "--ambient-caps",
            "--inh-caps",
            "--bounding-set",
            "--ruid",
            "--euid",
            "--reuid",
            "--rgid",
            "--egid",
            "--regid",
            "--groups",
            "--securebits",
            "--pdeathsig",
            "--selinux-label",
            "--apparmor-profile",
        ],
        ..NONE
    },
    Wrapper { names: &["systemd-inhibit"], long: &["--what", "--who", "--why", "--mode"], ..NONE },
    Wrapper {
        names: &["systemd-cat"],
        letters: "tp",
        long: &["--identifier", "--priority", "--stderr-priority", "--level-prefix", "--namespace"],
        ..NONE
    },
    Wrapper { names: &["dumb-init"], letters: "r", long: &["--rewrite"], ..NONE },
    Wrapper { names: &["tini"], letters: "pe", ..NONE },
    Wrapper { names: &["taskset"], operands: 1, ..NONE },
    Wrapper { names: &["chroot"], operands: 1, long: &["--groups", "--userspec"], ..NONE },
    Wrapper { names: &["gosu", "su-exec"], operands: 1, ..NONE },
    Wrapper {
        names: &["unshare"],
        letters: "SGRw",
        long: &["--setuid", "--setgid", "--root", "--wd", "--map-user", "--map-group", "--map-users", "--map-groups"],
        ..NONE
    },
    Wrapper { names: &["nsenter"], letters: "tSG", long: &["--target", "--setuid", "--setgid"], ..NONE },
    Wrapper { names: &["pkexec"], long: &["--user"], ..NONE },
    Wrapper { names: &["dbus-run-session"], long: &["--config-file", "--dbus-daemon"], ..NONE },
    Wrapper {
        names: &["xargs"],
        letters: "aEdILnPs",
        long: &["--arg-file", "--delimiter", "--max-lines", "--max-args", "--max-procs", "--max-chars"],
        ..NONE
    },
];

const SHELLS: &[&str] = &["sh", "bash", "dash", "ash", "ksh", "zsh"];
/// The letters of a shell's options that take a value, other than the one for its script.
const SHELL_LETTERS: &str = "oO";
const SHELL_LONG: &[&str] = &["--init-file", "--rcfile"];

/// Words of a shell after which a command begins.
const BEFORE_COMMANDS: &[&str] = &["!", "{", "if", "then", "else", "elif", "do", "while", "until"];

/// How deep commands may be inside of each other.
const DEPTH: usize = 16;

/// A command: a program and its arguments.
pub(super) type Command<'a> = Vec<Cow<'a, str>>;

pub(super) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The commands that a command line runs in the end: itself, or what is inside of wrappers and shells.
pub(super) fn programs<'a>(words: &[&'a str]) -> Vec<Command<'a>> {
    let mut found = Vec::new();
    unwrap(words.iter().map(|&word| Cow::Borrowed(word)).collect(), DEPTH, &mut found);
    found
}

fn unwrap<'a>(mut command: Command<'a>, depth: usize, found: &mut Vec<Command<'a>>) {
    let Some(program) = command.first() else { return };
    let Some(deeper) = depth.checked_sub(1) else { return };
    let name = file_name(program).to_owned();
    if SHELLS.contains(&name.as_str()) {
        let options = options(&command[1..], SHELL_LETTERS, SHELL_LONG);
        if options.letters.contains('c')
            && let Some(script) = command.get(1 + options.count)
        {
            in_script(script, deeper, found);
        }
        return;
    }
    let Some(wrapper) = WRAPPERS.iter().find(|wrapper| wrapper.names.contains(&name.as_str())) else {
        found.push(command);
        return;
    };
    let options = options(&command[1..], wrapper.letters, wrapper.long);
    let mut at = 1 + options.count;
    if let Some(line) = options.split {
        // "env -S" has the words in one.
        let mut words: Command<'a> = line.split_whitespace().map(|word| Cow::Owned(word.to_owned())).collect();
        words.extend(command.drain(at.min(command.len())..));
        words.insert(0, Cow::Borrowed("env"));
        return unwrap(words, deeper, found);
    }
    if matches!(name.as_str(), "env" | "sudo") {
        at += command[at.min(command.len())..].iter().take_while(|word| word.contains('=')).count();
    }
    if name == "runuser" && !options.letters.contains('u') && !options.long.contains(&"--user".to_owned()) {
        // As su: a user, and then options of a shell.
        command.splice(..(at + 1).min(command.len()), [Cow::Borrowed("sh")]);
        return unwrap(command, deeper, found);
    }
    at += wrapper.operands;
    if name == "flock" && command.get(at).is_some_and(|word| matches!(word.as_ref(), "-c" | "--command")) {
        command.splice(..at, [Cow::Borrowed("sh")]);
        return unwrap(command, deeper, found);
    }
    command.drain(..at.min(command.len()));
    unwrap(command, deeper, found);
}

/// The options at the beginning of a command line.
#[derive(Default)]
struct Options {
    /// How many words they take.
    count: usize,
    /// The letters among them.
    letters: String,
    /// The long ones among them.
    long: Vec<String>,
    /// The value of `-S` or `--split-string`.
    split: Option<String>,
}

/// Reads options as getopt does, up to the first word that is none. `letters` and `long` take values.
fn options(words: &[Cow<'_, str>], letters: &str, long: &[&str]) -> Options {
    let mut found = Options::default();
    while let Some(word) = words.get(found.count).filter(|word| word.len() > 1 && word.starts_with(['-', '+'])) {
        found.count += 1;
        if word == "--" {
            break;
        }
        let next = words.get(found.count).map(|word| word.clone().into_owned());
        let mut value = None;
        if word.starts_with("--") {
            let (name, own) = word.split_once('=').map_or((word.as_ref(), None), |(name, own)| (name, Some(own)));
            if long.contains(&name) {
                value = own.map(str::to_owned).or_else(|| {
                    found.count += 1;
                    next
                });
            }
            if name == "--split-string" {
                found.split = value;
            }
            found.long.push(name.to_owned());
            continue;
        }
        for (at, letter) in word.char_indices().skip(1) {
            found.letters.push(letter);
            if letters.contains(letter) {
                let own = &word[at + letter.len_utf8()..];
                value = Some(own.to_owned()).filter(|own| !own.is_empty()).or_else(|| {
                    found.count += 1;
                    next
                });
                if letter == 'S' {
                    found.split = value;
                }
                break;
            }
        }
    }
    found
}

/// The commands of a shell's script, where they are certain: the words at the beginning of each command, also of those inside
/// of it. What is quoted is no command, and `$(…)` is one.
fn in_script(script: &str, depth: usize, found: &mut Vec<Command<'_>>) {
    let mut reader = Reader { rest: script.chars().peekable(), commands: Vec::new() };
    reader.read(None, depth);
    for command in reader.commands {
        let is_before = |word: &String| BEFORE_COMMANDS.contains(&word.as_str()) || is_assignment(word);
        let command: Command<'static> = command.into_iter().skip_while(is_before).map(Cow::Owned).collect();
        unwrap(command, depth, found);
    }
}

fn is_assignment(word: &str) -> bool {
    let is_name = |name: &str| name.chars().all(|character| character.is_ascii_alphanumeric() || character == '_');
    word.split_once('=').is_some_and(|(name, _)| !name.is_empty() && is_name(name.trim_end_matches('+')))
}

struct Reader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    commands: Vec<Vec<String>>,
}

impl Reader<'_> {
    /// Reads commands up to `end`, which closes a substitution, or to the end of the script.
    fn read(&mut self, end: Option<char>, depth: usize) {
        let mut command = Vec::new();
        let mut word: Option<String> = None;
        while let Some(character) = self.rest.next() {
            if Some(character) == end {
                break;
            }
            match character {
                ' ' | '\t' => command.extend(word.take()),
                ';' | '&' | '|' | '\n' | '(' | ')' => {
                    command.extend(word.take());
                    self.commands.push(std::mem::take(&mut command));
                    // Inside of parentheses the closing one is not the end of a substitution around them.
                    if character == '(' && end.is_some() && depth > 0 {
                        self.read(Some(')'), depth - 1);
                    }
                }
                '#' if word.is_none() => while self.rest.next_if(|&next| next != '\n').is_some() {},
                '\\' => {
                    if self.rest.next_if_eq(&'\n').is_none() {
                        word.get_or_insert_default().extend(self.rest.next());
                    }
                }
                '\'' => {
                    let word = word.get_or_insert_default();
                    word.extend(self.rest.by_ref().take_while(|&next| next != '\''));
                }
                '"' => {
                    word.get_or_insert_default();
                    self.read_quoted(&mut word, depth);
                }
                _ => self.read_plain(character, &mut word, depth),
            }
        }
        command.extend(word);
        self.commands.push(command);
    }

    /// Reads to the end of a word in double quotes.
    fn read_quoted(&mut self, word: &mut Option<String>, depth: usize) {
        while let Some(character) = self.rest.next() {
            match character {
                '"' => return,
                '\\' => word.get_or_insert_default().extend(self.rest.next()),
                _ => self.read_plain(character, word, depth),
            }
        }
    }

    /// Takes a character of a word, and the commands that are substituted there.
    fn read_plain(&mut self, character: char, word: &mut Option<String>, depth: usize) {
        let word = word.get_or_insert_default();
        word.push(character);
        let end = match character {
            '`' => Some('`'),
            '$' => self.rest.next_if_eq(&'(').map(|_| ')'),
            _ => None,
        };
        if let Some(end) = end
            && depth > 0
        {
            self.read(Some(end), depth - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_by(words: &[&str]) -> Vec<String> {
        programs(words).into_iter().map(|command| command.join(" ")).collect()
    }

    #[test]
    fn what_a_wrapper_runs_is_found() {
        let lines = [
            "env -i -u B A=b",
            "env --unset B --chdir=/srv",
            "/usr/bin/env -S A=b nice",
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
            let words: Vec<&str> = line.split(' ').chain(["/usr/bin/docker", "-r", "db"]).collect();
            assert_eq!(run_by(&words), ["/usr/bin/docker -r db"], "{line}");
        }
        for name in WRAPPERS.iter().flat_map(|wrapper| wrapper.names) {
            assert!(
                lines.iter().any(|line| line.split([' ', '/']).any(|word| word == *name)),
                "{name} has a line here"
            );
        }
        assert_eq!(run_by(&["env"]), [""; 0]);
        assert_eq!(run_by(&["timeout"]), [""; 0]);
        assert_eq!(run_by(&["env"; 20]), [""; 0], "there is a bound");
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
            assert_eq!(run_by(words), ["docker run"], "{words:?}");
        }
        assert_eq!(run_by(&["sh", "/srv/script", "-c", "docker run"]), [""; 0], "a script is not read");
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
            "case $1 in start) docker run;; esac",
            "echo a\ndocker run",
            "'docker' \"run\"",
            "docker \\\n run",
            "while docker run; do sleep 1; done",
            "a | docker run &",
            "echo $(echo (a); docker run)",
        ] {
            assert!(run_by(&["sh", "-c", script]).iter().any(|command| command == "docker run"), "{script}");
        }
        for script in [
            "echo docker run",
            "echo done on $(hostname) at noon",
            "echo 'docker; docker run'",
            "echo \"a; docker run\"",
            "true # ; docker run",
            "echo \\; docker run",
            "echo 'unfinished; docker run",
            "a=docker run",
        ] {
            let found = run_by(&["sh", "-c", script]);
            assert!(!found.iter().any(|command| command.starts_with("docker ")), "{script}: {found:?}");
        }
    }
}
