//! Holds the protocol's page and the code together: each cited rule is on the page, each rule of the page is cited, and the
//! picture of the states is the one of the transition table.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use putexd::election::{EDGES, State};

const PAGE: &str = include_str!("../src/core/election/protocol.md");
const PICTURE: (&str, &str) = ("<!-- the states: begin -->\n", "<!-- the states: end -->");

/// The rules of the page, by number, with their names. A heading looks like `**K4, verified release.**`.
fn rules() -> BTreeMap<String, String> {
    let heading = |line: &str| {
        let (heading, _) = line.strip_prefix("**")?.split_once("**")?;
        let (number, name) = heading.split_once(", ")?;
        numbers(number)
            .contains(number)
            .then(|| (number.to_owned(), name.trim_end_matches('.').to_owned()))
    };
    PAGE.lines().filter_map(heading).collect()
}

/// The rules that `text` cites. A citation is a letter H, K or N and one or two digits, as a word of its own.
fn numbers(text: &str) -> BTreeSet<String> {
    text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
        .filter(|word| {
            let mut characters = word.chars();
            matches!(characters.next(), Some('H' | 'K' | 'N'))
                && (2..=3).contains(&word.len())
                && characters.all(|character| character.is_ascii_digit())
        })
        .map(str::to_owned)
        .collect()
}

fn sources() -> Vec<(PathBuf, String)> {
    fn collect(folder: &Path, into: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(folder).expect("a folder of the sources") {
            let path = entry.expect("an entry of the folder").path();
            if path.is_dir() {
                collect(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a source");
                into.push((path, text));
            }
        }
    }
    let mut all = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut all);
    all
}

#[test]
fn every_rule_that_is_cited_is_on_the_page_and_every_rule_of_the_page_is_cited() {
    let rules = rules();
    assert!(rules.len() > 15, "the headings were read: {rules:?}");
    let mut cited = BTreeSet::new();
    for (path, text) in sources() {
        for number in numbers(&text) {
            assert!(
                rules.contains_key(&number),
                "{} cites {number}, which the page does not have",
                path.display()
            );
            cited.insert(number);
        }
    }
    let uncited: Vec<&String> = rules
        .keys()
        .filter(|number| !cited.contains(*number))
        .collect();
    assert!(uncited.is_empty(), "no code cites {uncited:?}");
    for number in numbers(PAGE) {
        assert!(
            rules.contains_key(&number),
            "the page cites {number}, which it does not have"
        );
    }
}

/// A reader who meets a number in a file must find the name of the rule in the same file. `election/mod.rs` is left
/// out, because it has the page itself.
#[test]
fn a_rule_is_cited_with_its_name() {
    let rules = rules();
    let mut nameless = Vec::new();
    for (path, text) in sources()
        .into_iter()
        .filter(|(path, _)| !path.ends_with("src/core/election/mod.rs"))
    {
        // A name may go over the end of a line of comment.
        let words: Vec<&str> = text
            .split_whitespace()
            .filter(|word| !word.chars().all(|c| c == '/' || c == '!'))
            .collect();
        // "K1 to K7" names a part of the page, not a rule.
        let is_of_a_range = |position: usize| {
            words.get(position + 1) == Some(&"to") || position > 0 && words[position - 1] == "to"
        };
        let text = words.join(" ").to_lowercase();
        for (position, word) in words
            .iter()
            .enumerate()
            .filter(|(position, _)| !is_of_a_range(*position))
        {
            for number in numbers(word) {
                if !text.contains(&rules[&number].to_lowercase()) {
                    nameless.push(format!(
                        "{}: {} {number}, \"{}\"",
                        path.display(),
                        words[position],
                        rules[&number]
                    ));
                }
            }
        }
    }
    assert!(nameless.is_empty(), "{nameless:#?}");
}

/// The picture of the states and their transitions, as a Mermaid diagram, which common viewers of Markdown draw, and as
/// a table.
fn picture() -> String {
    let mut text = "```mermaid\nstateDiagram-v2\n".to_owned();
    let id = |state: State| state.to_string().replace('-', "_");
    for state in State::ALL
        .into_iter()
        .filter(|state| id(*state) != state.to_string())
    {
        writeln!(text, "    state \"{state}\" as {}", id(state)).expect("text");
    }
    writeln!(text, "    [*] --> {}", id(State::NoStore)).expect("text");
    for (from, to) in edges() {
        writeln!(text, "    {} --> {}", id(from), id(to)).expect("text");
    }
    text.push_str("```\n\n| from | to | why |\n| --- | --- | --- |\n");
    text
}

fn edges() -> impl Iterator<Item = (State, State)> {
    EDGES
        .into_iter()
        .flat_map(|(from, all)| all.iter().map(move |to| (from, *to)))
}

#[test]
fn the_picture_of_the_states_is_that_of_the_table() {
    let (_, rest) = PAGE
        .split_once(PICTURE.0)
        .expect("the page has the picture");
    let (shown, _) = rest.split_once(PICTURE.1).expect("the picture has an end");
    let rows = shown
        .strip_prefix(&picture())
        .unwrap_or_else(|| panic!("put this before the rows of the table:\n{}", picture()));
    let mut edges = edges();
    for row in rows.lines() {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let (from, to) = edges.next().expect("a row for each edge");
        assert_eq!(cells[..2], [from.to_string(), to.to_string()], "{row}");
        assert!(cells[2].ends_with('.'), "a reason: {row}");
    }
    assert_eq!(edges.next(), None);
}
