//! The manual page "a day with putexd" shows what the commands print. This test does what the page does, on three hosts, and
//! compares what is printed with the page; with `PUTEX_RECORD=1` it writes the page's outputs anew.
//!
//! The page has a comment before each command, and its output in a display behind it:
//!
//! | comment | meaning |
//! | --- | --- |
//! | `.\" h1: COMMAND` | run it on that host, with its output in the display that follows |
//! | `.\" quietly h1: COMMAND` | run it on that host, where it must succeed; the page does not show it |
//! | `.\" until h1: COMMAND` | run it again and again until it succeeds |
//! | `.\" fault: WHAT` | what happens to the hosts or to the store: see [`Day::fault`] |
//!
//! Numbers, times and the spaces of tables are not compared, because they differ from run to run.

use std::fs;
use std::path::PathBuf;

use crate::command::{now, since, wait_until};
use crate::fixture::{Fixture, Plan, TAKE_OVER};
use crate::lockstore::Lockstore;

const PAGE: &str = "packaging/usr/share/man/man7/putexd-day.7";

/// Timings as in the page: T = 3 s, W = 1 s.
const SERVICE: &str = "unit = \"database.service\"\nrenew-interval = \"1s\"\nfailures = 3\nconfirmations = 1\n";

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

fn steps(page: &[&str]) -> Vec<Step> {
    let mut steps = Vec::new();
    for (number, line) in page.iter().enumerate() {
        let Some(said) = line.strip_prefix(".\\\" ") else { continue };
        let Some((what, said)) = said.split_once(": ") else { continue };
        let command = said.to_owned();
        let step = match what.split_once(' ') {
            Some(("quietly", host)) => Step::Quietly { host: host.to_owned(), command },
            Some(("until", host)) => Step::Until { host: host.to_owned(), command },
            None if what == "fault" => Step::Fault(command),
            None if what.starts_with('h') => {
                let display = &page[number + 1..];
                assert_eq!(display.first(), Some(&".Bd -literal"), "line {}: a display follows", number + 1);
                let length = display.iter().position(|line| *line == ".Ed").expect("each display ends");
                // The first line of the display has the command.
                Step::Shown { host: what.to_owned(), command, from: number + 3, to: number + 1 + length }
            }
            _ => continue,
        };
        steps.push(step);
    }
    steps
}

/// A line of output as the page has it.
fn escaped(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// What is compared of an output: the words, with each number replaced.
fn comparable(lines: &[String]) -> Vec<String> {
    let of_line = |line: &String| {
        let mut text = String::new();
        let mut in_number = false;
        for character in line.replace("\\-", "-").chars() {
            let is_part = character.is_ascii_digit() || (in_number && matches!(character, '.' | ':'));
            if is_part && !in_number {
                text.push('N');
            }
            if !is_part {
                text.push(character);
            }
            in_number = is_part;
        }
        // A time may be shown in another unit, or without its smaller part.
        let words =
            text.split_whitespace().map(|word| word.trim_end_matches("ms").replace("Nmin", "N").replace("Ns", "N"));
        words.filter(|word| !word.chars().all(|character| matches!(character, '-' | '─'))).collect::<Vec<_>>().join(" ")
    };
    lines.iter().map(of_line).collect()
}

struct Day {
    fixture: Fixture,
}

impl Day {
    fn host(&self, name: &str) -> &crate::cluster::Host {
        self.fixture.hosts.iter().find(|host| host.name == name).unwrap_or_else(|| panic!("{name} is no host"))
    }

    /// What the command prints, errors included.
    fn run(&self, host: &str, command: &str) -> String {
        let output = self.host(host).output(&["sh", "-c", &format!("{command} 2>&1")]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn succeeds(&self, host: &str, command: &str) -> bool {
        self.host(host).output(&["sh", "-c", command]).status.success()
    }

    fn fault(&self, what: &str) {
        let Fixture { locks, .. } = &self.fixture;
        match what.split_once(' ') {
            Some(("off", host)) => {
                self.host(host).power_off_hard();
            }
            Some(("on", host)) => {
                let host = self.host(host);
                host.power_on();
                host.wait_booted();
            }
            Some(("store", "lost")) => locks.lose(&self.fixture),
            Some(("store", "back")) => locks.regain(&self.fixture),
            _ => panic!("no such fault: {what}"),
        }
    }
}

#[test]
fn a_day_is_as_the_manual_page_shows_it() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = fs::read_to_string(&path).expect("the page is there");
    let lines: Vec<&str> = page.lines().collect();
    let plan = Plan::hosts("day", 3, Lockstore::Nats).service("db", SERVICE);
    let Some(fixture) = plan.prepare() else { return };
    let day = Day { fixture };
    let records = std::env::var_os("PUTEX_RECORD").is_some();
    let mut written: Vec<(usize, usize, Vec<String>)> = Vec::new();
    let mut differ = Vec::new();
    for step in steps(&lines) {
        let at = now();
        match &step {
            Step::Shown { host, command, from, to } => {
                let printed = day.run(host, command);
                let printed: Vec<String> = printed.lines().map(|line| escaped(line.trim_end())).collect();
                let shown: Vec<String> = lines[*from..*to].iter().map(|line| (*line).to_owned()).collect();
                if comparable(&printed) != comparable(&shown) {
                    differ.push(format!("{host}# {command}\nthe page: {shown:#?}\nprinted: {printed:#?}"));
                }
                written.push((*from, *to, printed));
            }
            Step::Quietly { host, command } => {
                assert!(day.succeeds(host, command), "{host}: {command}: {}", day.run(host, command));
            }
            Step::Until { host, command } => {
                wait_until(TAKE_OVER, &format!("{host}: {command}"), || day.succeeds(host, command));
            }
            Step::Fault(what) => day.fault(what),
        }
        println!("{:.1} s: {step:?}", since(at).as_secs_f64());
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
    assert!(differ.is_empty(), "the page shows other outputs; PUTEX_RECORD=1 writes them anew:\n{}", differ.join("\n"));
}

#[test]
fn the_steps_of_a_page_are_found_and_numbers_are_not_compared() {
    let page = [
        ".\\\" A page.",
        ".\\\" quietly h2: true",
        ".\\\" h1: echo a",
        ".Bd -literal",
        "h1# echo a",
        "a 1.5 s",
        ".Ed",
        ".\\\" fault: store lost",
    ];
    let found = steps(&page);
    assert_eq!(
        found,
        [
            Step::Quietly { host: "h2".to_owned(), command: "true".to_owned() },
            Step::Shown { host: "h1".to_owned(), command: "echo a".to_owned(), from: 5, to: 6 },
            Step::Fault("store lost".to_owned()),
        ]
    );
    let same = |one: &str, other: &str| comparable(&[escaped(one)]) == comparable(&[escaped(other)]);
    assert!(same("db  h1  held 12:03:04, left 2.5s", "db h1     held 1:13:55, left 3s"));
    assert!(!same("db h1 is well", "db h2 is not well"));
    assert_eq!(escaped(".x-y\\"), "\\&.x\\-y\\e");
}
