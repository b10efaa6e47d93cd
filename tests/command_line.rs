//! The programs as a person calls them: exit statuses and output.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    time::Duration,
};

use putexd::types::{Extension, Revision, Time, WriteId};
use tempfile::TempDir;

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .output()
        .expect("the program starts")
}

fn status(output: &Output) -> i32 {
    output.status.code().expect("the program exits by itself")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const PROGRAMS: [&str; 3] = [
    env!("CARGO_BIN_EXE_putexd"),
    env!("CARGO_BIN_EXE_putexctl"),
    env!("CARGO_BIN_EXE_putex-guard"),
];

#[test]
fn a_reader_who_has_enough_ends_the_check_without_an_error() {
    let root = TempDir::new().expect("a directory");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut check = Command::new(env!("CARGO_BIN_EXE_putexd"));
    let output = check
        .args(["--check", "--root"])
        .arg(root.path())
        .stdout(writer)
        .output()
        .expect("the program starts");
    assert_eq!((status(&output), text(&output.stderr).as_str()), (141, ""));
}

/// The verbs that a help lists.
fn verbs(help: &str) -> Vec<String> {
    let (_, list) = help.split_once("Commands:\n").unwrap_or_default();
    let list = list.lines().take_while(|line| !line.is_empty());
    let named = list.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    named
        .filter(|verb| !verb.is_empty() && *verb != "help")
        .map(ToOwned::to_owned)
        .collect()
}

#[test]
fn each_help_fits_a_terminal_of_80_columns() {
    let mut seen = 0;
    for program in PROGRAMS {
        let mut all = vec![Vec::new()];
        all.extend(
            verbs(&text(&run(program, &["--help"]).stdout))
                .into_iter()
                .map(|verb| vec![verb]),
        );
        for verb in all {
            for option in ["-h", "--help"] {
                let mut arguments: Vec<&str> = verb.iter().map(String::as_str).collect();
                arguments.push(option);
                let help = text(&run(program, &arguments).stdout);
                assert!(help.contains("Usage: "), "{arguments:?}: {help}");
                let wide = help.lines().find(|line| line.chars().count() > 80);
                assert_eq!(wide, None, "{arguments:?}");
                seen += 1;
            }
        }
    }
    assert!(seen > 40, "all verbs of putexctl are among them: {seen}");
}

#[test]
fn help_and_version_are_printed_on_standard_output() {
    for program in PROGRAMS {
        for argument in ["--help", "--version"] {
            let output = run(program, &[argument]);
            assert_eq!(status(&output), 0, "{program} {argument}");
            assert!(
                !output.stdout.is_empty() && output.stderr.is_empty(),
                "{program} {argument}"
            );
        }
    }
}

#[test]
fn each_program_says_its_version_its_commit_and_its_stores() {
    for program in PROGRAMS
        .into_iter()
        .chain([env!("CARGO_BIN_EXE_putex-generator")])
    {
        let output = run(program, &["--version"]);
        let said = text(&output.stdout);
        let name = Path::new(program)
            .file_name()
            .expect("a name")
            .to_string_lossy();
        let lines: Vec<&str> = said.lines().collect();
        let [first, commit, stores] = &lines[..] else {
            panic!("{said}")
        };
        assert_eq!(*first, format!("{name} {}", env!("CARGO_PKG_VERSION")));
        assert_eq!(
            commit.strip_prefix("commit: "),
            Some(option_env!("PUTEX_COMMIT").unwrap_or("unknown"))
        );
        let stores: Vec<&str> = stores
            .strip_prefix("stores: ")
            .expect("the stores")
            .split(", ")
            .collect();
        assert_eq!(stores, putexd::store::StoreSettings::BUILT_IN);
    }
}

#[test]
fn wrong_usage_exits_64() {
    for program in PROGRAMS {
        let output = run(program, &["--no-such-option"]);
        assert_eq!(status(&output), 64, "{program}");
        assert!(
            text(&output.stderr).contains("--no-such-option"),
            "{program}"
        );
    }
}

fn root(service: &str) -> TempDir {
    let root = tempfile::tempdir().expect("a directory");
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    };
    let host = "node = \"h1\"\n[store]\ntype = \"nats\"\nservers = [\"nats://127.0.0.1:1\"]\nbucket = \"locks\"\n";
    write("etc/putex/putexd.toml", host);
    write("etc/putex.d/db.toml", service);
    root
}

fn check(service: &str) -> Output {
    let root = root(service);
    run(
        PROGRAMS[0],
        &[
            "--check",
            "--root",
            root.path().to_str().expect("a path in UTF-8"),
        ],
    )
}

#[test]
fn a_good_configuration_is_checked_with_0() {
    let output = check("unit = \"database.service\"\n");
    assert_eq!(status(&output), 0, "{}", text(&output.stdout));
    assert!(
        text(&output.stdout).contains("1 good service, 0 errors"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn a_wrong_configuration_is_checked_with_78_and_its_place() {
    let output = check("unit = \"database.service\"\nrenew-interval = 3\n");
    assert_eq!(status(&output), 78);
    assert!(
        text(&output.stdout).contains("etc/putex.d/db.toml:2:18"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn an_unsafe_timing_is_refused_with_its_numbers() {
    let output = check(
        "unit = \"database.service\"\nrenew-interval = \"1s\"\nfailures = 3\nconfirmations = 1\nstop-budget = \"5s\"\n",
    );
    assert_eq!(status(&output), 78);
    let shown = text(&output.stdout);
    assert!(
        shown.contains("db.toml:5:") && shown.contains(" for 8s after a renewal"),
        "{shown}"
    );
}

#[test]
fn a_store_out_of_reach_is_said_so_by_init_with_69() {
    let root = root("unit = \"database.service\"\n");
    let output = run(
        PROGRAMS[1],
        &[
            "init",
            "--root",
            root.path().to_str().expect("a path in UTF-8"),
        ],
    );
    assert_eq!(status(&output), 69);
    assert!(
        text(&output.stderr).contains("127.0.0.1:1"),
        "{}",
        text(&output.stderr)
    );
}

fn token(root: &TempDir, service: &str) -> Output {
    run(
        PROGRAMS[1],
        &[
            "token",
            service,
            "--root",
            root.path().to_str().expect("a path in UTF-8"),
        ],
    )
}

/// Writes a grant as the guard does, with a deadline that many seconds after this host's boot.
fn grant(root: &TempDir, seconds: u64) {
    let leases = root.path().join("run/putex/leases");
    fs::create_dir_all(&leases).expect("a folder");
    let extension = Extension {
        write: WriteId(1),
        revision: Revision(1),
        deadline: Time::both(Duration::from_secs(seconds)),
    };
    let text =
        extension.line() + "PUTEX_FENCING_TOKEN=1795000042\nPUTEX_SERVICE=db\nPUTEX_NODE=\"h1\"\n";
    fs::write(leases.join("db"), text).expect("a file");
}

/// Longer than any host is up, in seconds.
const FOR_EVER: u64 = 10_000_000_000;

#[test]
fn a_token_is_printed_alone() {
    let root = root("unit = \"database.service\"\n");
    grant(&root, FOR_EVER);
    let output = token(&root, "db");
    assert_eq!(
        (status(&output), text(&output.stdout), text(&output.stderr)),
        (0, "1795000042\n".into(), String::new())
    );
}

#[test]
fn no_token_is_printed_without_a_lease_or_after_its_deadline() {
    let root = root("unit = \"database.service\"\n");
    let refused = |service: &str, why: &str| {
        let output = token(&root, service);
        assert_eq!(
            (status(&output), text(&output.stdout)),
            (1, String::new()),
            "{service}"
        );
        assert!(
            text(&output.stderr).contains(why),
            "{}",
            text(&output.stderr)
        );
    };
    refused("db", "db: this host does not hold its lease");
    refused("web", "web: this host does not hold its lease");
    // A guard that hangs has not removed the grant after its deadline.
    grant(&root, 0);
    refused("db", "db: its lease has passed its deadline");
}

#[test]
fn a_grant_that_cannot_be_read_is_no_lease() {
    let root = root("unit = \"database.service\"\n");
    grant(&root, FOR_EVER);
    fs::write(
        root.path().join("run/putex/leases/db"),
        "PUTEX_FENCING_TOKEN=7\n",
    )
    .expect("a file");
    let output = token(&root, "db");
    assert_eq!((status(&output), text(&output.stdout)), (1, String::new()));
    assert!(
        text(&output.stderr).contains("no valid deadline"),
        "{}",
        text(&output.stderr)
    );
}

/// What bash offers for the last of these words, by the completion that is shipped.
fn completed(words: &[&str]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("packaging/usr/share/bash-completion/completions/putexctl");
    let folder = Path::new(PROGRAMS[1]).parent().expect("a folder");
    let line = "source \"$1\"; shift; COMP_WORDS=(putexctl \"$@\"); COMP_CWORD=$#; \
                _clap_complete_putexctl putexctl \"${COMP_WORDS[COMP_CWORD]}\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-O", "extglob", "-c", line, "bash"])
        .arg(script)
        .args(words);
    let path =
        std::env::join_paths([folder, Path::new("/usr/bin"), Path::new("/bin")]).expect("a path");
    let output = bash.env("PATH", path).output().expect("bash starts");
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout)
        .lines()
        .filter(|line| !line.is_empty())
        .map(ToOwned::to_owned)
        .collect()
}

#[test]
fn bash_completes_verbs_and_options() {
    assert_eq!(completed(&["st"]), ["status", "step-down", "stop", "start"]);
    assert_eq!(completed(&["step-down", "--no"]), ["--no-wait"]);
    assert_eq!(completed(&["nothing-like-this"]), Vec::<String>::new());
}

#[test]
fn timings_are_explained_without_a_running_putexd() {
    let root = root("unit = \"database.service\"\n");
    let path = root.path().to_str().expect("a path in UTF-8");
    let output = run(PROGRAMS[1], &["explain", "db", "--root", path]);
    assert_eq!(status(&output), 0, "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(
        shown.contains("lease 18.0s = failures 6 × 3s, confirmations 2 × 3s")
            && shown.contains("planned hand-over"),
        "{shown}"
    );
    let what_if = |line| {
        run(
            PROGRAMS[1],
            &["explain", "db", "--root", path, "--what-if", line],
        )
    };
    let output = what_if("renew-interval = 1s");
    let shown = text(&output.stdout);
    assert!(
        shown.contains("failures 6 × 1s, confirmations 2 × 1s") && shown.contains("105s → 95s"),
        "{shown}"
    );
    for (line, why) in [
        ("failures=0", "failures"),
        ("no-such-key=1", "no-such-key"),
        ("failures", "KEY=VALUE"),
    ] {
        let output = what_if(line);
        assert_eq!(status(&output), 1, "{line}");
        let printed = text(&output.stderr);
        assert!(
            printed.contains("putexd would refuse") && printed.contains(why),
            "{printed}"
        );
    }
}

#[test]
fn what_cannot_be_undone_is_asked_or_said() {
    let output = run(PROGRAMS[1], &["confirm-dead", "h3"]);
    assert_eq!(status(&output), 1);
    assert!(
        text(&output.stderr).contains("--yes"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn without_putexd_the_grants_still_tell_which_leases_there_are() {
    let root = root("unit = \"database.service\"\n");
    grant(&root, FOR_EVER);
    let mut status_command = Command::new(PROGRAMS[1]);
    status_command.args(["status", "--root"]).arg(root.path());
    // A bus that nobody serves.
    status_command.env(
        "DBUS_SYSTEM_BUS_ADDRESS",
        format!("unix:path={}", root.path().join("bus").display()),
    );
    let output = status_command.output().expect("the program starts");
    assert_eq!(status(&output), 69);
    assert!(
        text(&output.stderr).contains("system bus"),
        "{}",
        text(&output.stderr)
    );
    let shown = text(&output.stdout);
    assert!(
        shown
            .lines()
            .any(|line| line.starts_with("db       1795000042")),
        "{shown}"
    );
}
