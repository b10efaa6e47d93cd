//! The manual page "a day with putexd" shows what commands print. This test does on three hosts what the page does, and compares
//! what is printed with the page. With `PUTEX_RECORD=1` it writes the outputs into the page instead.
//!
//! A display of the page whose first line is `h1# COMMAND` is run on h1, and its other lines are the output: standard error first,
//! then standard output. Comments of the page say what happens in between:
//!
//! | comment | meaning |
//! | --- | --- |
//! | `.\" quietly h1: COMMAND` | the command has to succeed |
//! | `.\" until h1: COMMAND` | the command is run again and again until it succeeds |
//! | `.\" fault: WHAT` | what happens to a host or to the store, see [`Day::fault`] |
//!
//! Numbers, times and the width of columns differ from run to run, and so does how often a command shows progress. They are not
//! compared, see [`comparable`] and [`Printed::is_as`].

use std::{fs, path::PathBuf, thread, time::Duration};

use crate::{
    command::{now, said, since},
    fixture::{ELECTED, Fixture, Plan},
    lockstore::Lockstore,
    server::ADDRESS,
};

const PAGE: &str = "packaging/usr/share/man/man7/putexd-day.7";

/// T = 3 s, W = 1 s.
const SERVICE: &str = "unit = \"database.service\"\nrenew-interval = \"1s\"\nfailures = 3\nconfirmations = 1\n\n\
     [fence]\nothers = \"fence@.service\"\nhosts = [\"h1\", \"h2\", \"h3\"]\n";
/// The board that switches the hosts off does not answer while there is no power.
const FENCE: &str =
    "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'test ! -e /srv/shared/no-power'\n";

/// One step of the page.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// A command whose output is in the lines of the page from the first to before the second.
    Shown {
        host: String,
        command: String,
        from: usize,
        to: usize,
    },
    Quietly {
        host: String,
        command: String,
    },
    Until {
        host: String,
        command: String,
    },
    Fault(String),
}

/// The host and the command of the first line of a display.
fn prompt(line: &str) -> Option<(String, String)> {
    let (host, command) = line.split_once("# ")?;
    let number = host.strip_prefix('h')?;
    number.parse::<u8>().ok()?;
    Some((
        host.to_owned(),
        command.replace("\\-", "-").replace("\\e", "\\"),
    ))
}

fn steps(page: &[&str]) -> Vec<Step> {
    let step = |(at, line): (usize, &&str)| {
        if *line == ".Bd -literal" {
            let (host, command) = prompt(page.get(at + 1)?)?;
            let length = page[at..]
                .iter()
                .position(|line| *line == ".Ed")
                .expect("each display ends");
            return Some(Step::Shown {
                host,
                command,
                from: at + 2,
                to: at + length,
            });
        }
        let (what, command) = line.strip_prefix(".\\\" ")?.split_once(": ")?;
        let command = command.to_owned();
        match what.split_once(' ') {
            Some(("quietly", host)) => Some(Step::Quietly {
                host: host.to_owned(),
                command,
            }),
            Some(("until", host)) => Some(Step::Until {
                host: host.to_owned(),
                command,
            }),
            None if what == "fault" => Some(Step::Fault(command)),
            _ => None,
        }
    };
    page.iter().enumerate().filter_map(step).collect()
}

/// A line of output as the page has it.
fn escaped(line: &str) -> String {
    let text = line.trim_end().replace('\\', "\\e").replace('-', "\\-");
    let of_ascii = |character: char| {
        if character.is_ascii() {
            character.to_string()
        } else {
            format!("\\[u{:04X}]", u32::from(character))
        }
    };
    let text: String = text.chars().map(of_ascii).collect();
    if text.starts_with(['.', '\'']) {
        format!("\\&{text}")
    } else {
        text
    }
}

/// What is compared of lines: their words, where `#` stands for each number, time and identifier. The number of a host is kept.
/// Where a line ends depends on how long the numbers are.
fn comparable(lines: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let mut shown = String::new();
    let lines = lines
        .into_iter()
        .map(|line| line.as_ref().replace("\\-", "-"))
        .collect::<Vec<_>>();
    for word in lines
        .iter()
        .flat_map(|line| line.split_whitespace())
        .map(masked)
    {
        // "1min 3s" in one run is "59s" in another.
        if word.starts_with('#') && shown.ends_with("# ") {
            shown.truncate(shown.len() - 2);
        }
        shown.push_str(&word);
        shown.push(' ');
    }
    // The history tells this a moment later, and a busy host may be late with it.
    shown.replace(", down for # ", " ")
}

fn masked(word: &str) -> String {
    let is_part = |character: char| character.is_ascii_alphanumeric() || ".:+-".contains(character);
    let mut shown = String::new();
    let mut rest = word;
    while let Some(first) = rest.chars().next() {
        let part = &rest[..rest
            .find(|character| !is_part(character))
            .unwrap_or(rest.len())];
        let part =
            Some(part.trim_end_matches(['.', ':', '+', '-'])).filter(|part| !part.is_empty());
        let part = part.unwrap_or(&rest[..first.len_utf8()]);
        let is_host = matches!(part.as_bytes(), [b'h', b'0'..=b'9']);
        if first.is_ascii_digit()
            || (part.len() >= 8 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
        {
            shown.push('#');
        } else {
            // Numbers at the end of other names are those of addresses and the like.
            shown.push_str(if is_host {
                part
            } else {
                part.trim_end_matches(|last: char| last.is_ascii_digit())
            });
        }
        rest = &rest[part.len()..];
    }
    shown
}

/// What a command has printed.
struct Printed {
    error: Vec<String>,
    output: Vec<String>,
}

impl Printed {
    fn lines(&self) -> impl Iterator<Item = &String> {
        self.error.iter().chain(&self.output)
    }

    /// Whether the page shows it. Lines on standard error are progress, of which there may be more or less: the page has one of
    /// those that were printed, or none was printed.
    fn is_as(&self, shown: &[&str]) -> bool {
        let compared = |lines: &[String]| {
            comparable(
                lines
                    .iter()
                    .map(|line| escaped(line))
                    .collect::<Vec<_>>()
                    .iter(),
            )
        };
        let (shown, output) = (comparable(shown), compared(&self.output));
        let Some(progress) = shown.strip_suffix(&output) else {
            return false;
        };
        let is_shown = |line: &String| progress.contains(&compared(std::slice::from_ref(line)));
        let ends_a_word = progress.is_empty() || progress.ends_with(' ');
        ends_a_word
            && if self.error.is_empty() {
                progress.is_empty()
            } else {
                self.error.iter().any(is_shown)
            }
    }

    /// The lines as the page has them. Long ones are folded, because a page of the manual has no more room.
    fn page(&self) -> impl Iterator<Item = String> {
        self.lines()
            .flat_map(|line| folded(line))
            .map(|line| escaped(&line))
    }
}

/// The most characters of a line of the page, unless there is a longer word.
const WIDTH: usize = 78;

fn folded(line: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = line;
    while rest.chars().count() > WIDTH {
        let end = rest
            .char_indices()
            .nth(WIDTH)
            .map_or(rest.len(), |(end, _)| end);
        let indent = rest.len() - rest.trim_start().len();
        let last = rest[indent..end].rfind(' ').map(|space| indent + space);
        let space = if rest[end..].starts_with(' ') {
            Some(end)
        } else {
            last
        };
        let Some(space) = space else { break };
        lines.push(rest[..space].to_owned());
        rest = rest[space..].trim_start();
    }
    lines.push(rest.to_owned());
    lines
}

/// How long a look is repeated until it shows what the page has.
const SETTLED: Duration = Duration::from_secs(12);

/// Whether a command only looks, so that it may be repeated.
fn is_look(command: &str) -> bool {
    let looks = [
        "cat ",
        "journalctl ",
        "putexd --check",
        "putexctl status",
        "putexctl history",
        "putexctl explain",
        "putexctl is-active",
    ];
    looks.iter().any(|look| command.starts_with(look))
}

struct Day {
    fixture: Fixture,
}

impl Day {
    fn prepare() -> Option<Self> {
        let plan = Plan::hosts("day", 3, Lockstore::Nats).service("db", SERVICE);
        let fixture = plan
            .file("/etc/systemd/system/fence@.service", FENCE)
            .prepare()?;
        for host in &fixture.hosts {
            let store = format!(
                "type = \"nats\"\nservers = [\"nats://{ADDRESS}:4222\"]\nbucket = \"locks\"\nreplicas = 1\n"
            );
            host.write_file(
                "/etc/putex/putexd.toml",
                &format!("node = \"{}\"\n\n[store]\n{store}", host.name),
            );
        }
        // The page makes the store.
        fixture.locks.empty(&fixture);
        Some(Self { fixture })
    }

    fn host(&self, name: &str) -> &crate::cluster::Host {
        self.fixture
            .hosts
            .iter()
            .find(|host| host.name == name)
            .unwrap_or_else(|| panic!("{name} is no host"))
    }

    fn run(&self, host: &str, command: &str) -> Printed {
        // A table has the columns of a terminal, and else those of its widest line.
        let output = if command.starts_with("putexctl history") {
            let command = format!("stty cols {WIDTH}; TERM=dumb {command}");
            let terminal = ["script", "-qec", &command, "/dev/null"];
            self.host(host).output(&terminal)
        } else {
            self.host(host).output(&["sh", "-c", command])
        };
        let lines = |bytes: &[u8]| {
            String::from_utf8_lossy(bytes)
                .lines()
                .map(str::to_owned)
                .collect()
        };
        Printed {
            error: lines(&output.stderr),
            output: lines(&output.stdout),
        }
    }

    fn fault(&self, what: &str) {
        let Fixture { locks, .. } = &self.fixture;
        match what.split_once(' ') {
            Some(("off", host)) => drop(self.host(host).power_off_hard()),
            Some(("on", host)) => self.host(host).boot(),
            Some(("store", "lost")) => locks.lose(&self.fixture),
            Some(("store", "back")) => locks.regain(&self.fixture),
            Some(("store", "empty")) => locks.empty(&self.fixture),
            _ => panic!("no such fault: {what}"),
        }
    }

    /// Does a step. Returns what a command that is shown has printed.
    fn go(&self, step: &Step) -> Option<Printed> {
        match step {
            Step::Shown { host, command, .. } => return Some(self.run(host, command)),
            Step::Quietly { host, command } => {
                let output = self.host(host).output(&["sh", "-c", command]);
                assert!(
                    output.status.success(),
                    "{host}: {command}: {}",
                    said(&output)
                );
            }
            Step::Until { host, command } => {
                let end = now() + ELECTED;
                while !self
                    .host(host)
                    .output(&["sh", "-c", command])
                    .status
                    .success()
                {
                    let shown = || said(&self.host(host).output(&["putexctl", "status"]));
                    assert!(
                        now() < end,
                        "waited in vain on {host} for {command}: {}",
                        shown()
                    );
                    // Each look is a few processes.
                    thread::sleep(Duration::from_millis(50));
                }
            }
            Step::Fault(what) => self.fault(what),
        }
        None
    }
}

#[test]
fn a_day_is_as_the_manual_page_shows_it() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = fs::read_to_string(&path).expect("the page is there");
    let lines: Vec<&str> = page.lines().collect();
    let Some(day) = Day::prepare() else { return };
    let mut written = Vec::new();
    let mut differ = Vec::new();
    let records = std::env::var_os("PUTEX_RECORD").is_some();
    for step in steps(&lines) {
        let began = now();
        let mut printed = day.go(&step);
        if let Step::Shown {
            command, from, to, ..
        } = &step
        {
            // On a busy machine what is looked at may come a moment later. What changes something is done once.
            while !records && is_look(command) && since(began) < SETTLED {
                if printed
                    .as_ref()
                    .is_none_or(|printed| printed.is_as(&lines[*from..*to]))
                {
                    break;
                }
                thread::sleep(Duration::from_millis(200));
                printed = day.go(&step);
            }
        }
        println!("{:.1} s: {step:?}", since(began).as_secs_f64());
        if let (
            Some(printed),
            Step::Shown {
                host,
                command,
                from,
                to,
            },
        ) = (printed, step)
        {
            let (shown, all) = (&lines[from..to], printed.page().collect::<Vec<_>>());
            println!("{}", all.join("\n"));
            if !printed.is_as(shown) {
                differ.push(format!(
                    "{host}# {command}\nthe page: {shown:#?}\nprinted: {all:#?}"
                ));
            }
            written.push((from, to, all));
        }
    }
    day.fixture.assert_no_violation();
    if records {
        let mut anew: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        for (from, to, printed) in written.into_iter().rev() {
            anew.splice(from..to, printed);
        }
        fs::write(&path, anew.join("\n") + "\n").expect("the page can be written");
        return;
    }
    assert!(
        differ.is_empty(),
        "the page shows other outputs; with PUTEX_RECORD=1 this test writes them anew:\n{}",
        differ.join("\n")
    );
}

#[test]
fn the_steps_of_a_page_are_found() {
    let page = [
        ".\\\" A page.",
        ".\\\" quietly h2: true",
        ".Bd -literal",
        "h1# echo \\-a",
        "\\-a",
        ".Ed",
        ".Bd -literal",
        "h1 is no prompt",
        ".Ed",
        ".\\\" until h2: false",
        ".\\\" fault: store lost",
    ];
    let on = |host: &str, command: &str| (host.to_owned(), command.to_owned());
    let ((host, command), (quiet, truth), (until, lie)) =
        (on("h1", "echo -a"), on("h2", "true"), on("h2", "false"));
    let expected = [
        Step::Quietly {
            host: quiet,
            command: truth,
        },
        Step::Shown {
            host,
            command,
            from: 4,
            to: 5,
        },
        Step::Until {
            host: until,
            command: lie,
        },
        Step::Fault("store lost".to_owned()),
    ];
    assert_eq!(steps(&page), expected);
    assert_eq!(escaped(".x-y·\\ "), "\\&.x\\-y\\[u00B7]\\e");
}

#[test]
fn words_are_compared_and_numbers_are_not() {
    let compared = |text: &str| comparable([escaped(text).as_str()]);
    for (one, other) in [
        (
            "db  h1  2026-11-23T12:03:04Z, left 2.5s",
            "db h1     2026-01-01T00:00:00Z, left 300ms",
        ),
        ("(59s ago)", "(1min 3s ago)"),
        ("for 1min 3s.", "for 59s."),
        (
            "putexd[123]: key 0123456789abcdef",
            "putexd[7]: key deadbeefdeadbeef",
        ),
        ("done in 1.5s, down for 0.1s", "done in 2s"),
        ("h1 waits", "h1\n  waits"),
    ] {
        assert_eq!(compared(one), compared(other));
    }
    for (one, other) in [
        ("db h1", "db h2"),
        ("it is well", "it is not well"),
        ("gap 1s", "gap -"),
    ] {
        assert_ne!(compared(one), compared(other));
    }
    let printed = |error: &[&str], output: &[&str]| {
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
        Printed {
            error: lines(error),
            output: lines(output),
        }
    };
    assert!(printed(&["begun", "a (1s)"], &["done"]).is_as(&["begun", "a (1s)", "b (2s)", "done"]));
    assert!(printed(&["waits (1s)", "begun"], &["done"]).is_as(&["begun", "done"]));
    assert!(!printed(&["begun"], &["done"]).is_as(&["begun", "undone"]));
    assert!(!printed(&[], &["done"]).is_as(&["more", "done"]));
    assert!(!printed(&["failed"], &[]).is_as(&[]));
    let long = "wo·d ".repeat(40);
    let folded = printed(&[], &[&long]).page().collect::<Vec<_>>();
    assert!(
        folded.len() > 1
            && folded
                .iter()
                .all(|line| line.replace("\\[u00B7]", "·").chars().count() <= WIDTH),
        "{folded:?}"
    );
    assert!(printed(&[], &[&long]).is_as(&folded.iter().map(String::as_str).collect::<Vec<_>>()));
}
