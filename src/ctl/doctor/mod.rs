//! `putexctl doctor`: what of the store and of this host keeps services from being run or taken over, each with its remedy. Nothing is
//! changed but one value that nobody reads, which is written to the store.

mod host;
mod store;
#[cfg(test)]
mod tests;

use std::path::Path;

use serde::Serialize;

use super::ask::Bus;
use super::output::{Failure, Screen, Style, print_json, width};
use super::store::load;
use super::texts::grouped;
use crate::command_line::exit;
use crate::config::FenceSettings;
use crate::types::{NodeId, first_named};

/// How many services and units a line names.
const NAMED: usize = 6;

/// What a line tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Weight {
    Fact,
    /// It keeps services from being run here.
    Wrong,
    /// It should not be so.
    Warning,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Line {
    level: Weight,
    /// What was found; what to do comes first where it is no fact.
    text: String,
}

/// All that was found, as `--json` prints it.
#[derive(Debug, Default, Serialize)]
struct Diagnosis {
    lines: Vec<Line>,
}

impl Diagnosis {
    fn add(&mut self, level: Weight, text: &str) {
        let text = text.replace('\n', " ");
        self.lines.push(Line { level, text });
    }

    fn fact(&mut self, text: impl AsRef<str>) {
        self.add(Weight::Fact, text.as_ref());
    }

    fn warn(&mut self, text: impl AsRef<str>) {
        self.add(Weight::Warning, text.as_ref());
    }

    fn wrong(&mut self, text: impl AsRef<str>) {
        self.add(Weight::Wrong, text.as_ref());
    }

    /// What many services have alike is told once.
    fn warn_of(&mut self, found: impl IntoIterator<Item = (String, &'static str)>) {
        for (text, services) in grouped(found) {
            self.warn(format!("{}: {text}", first_named(&services, NAMED)));
        }
    }

    fn is_wrong(&self) -> bool {
        self.lines.iter().any(|line| line.level == Weight::Wrong)
    }

    fn screen(&mut self, width: Option<usize>) -> Screen {
        let mut screen = Screen::new(width);
        self.lines.sort_by_key(|line| line.level);
        for line in &self.lines {
            let (mark, style) = match line.level {
                Weight::Fact => ("  ", Style::Plain),
                Weight::Wrong => ("× ", Style::Bad),
                Weight::Warning => ("! ", Style::Notable),
            };
            screen.sentence(mark, &line.text, style);
        }
        screen
    }
}

/// Looks, and prints what was found.
pub async fn run(root: &Path, json: bool) -> Result<(), Failure> {
    let settings = load(root)?;
    let mut report = Diagnosis::default();
    // With another root the files are those of another host.
    let is_here = root == Path::new("/");
    let daemon = if is_here {
        Bus::described().await.ok()
    } else {
        None
    };
    let looked = store::look(&settings, &mut report).await;
    report.warn_of(settings.services.iter().filter_map(|service| {
        let text = unfenced(&service.fence, &settings.node)?;
        Some((service.name.to_string(), text))
    }));
    if settings.seal_key.is_none() {
        report.warn(
            "have one seal-key on all hosts, see putexd.toml(5): whoever may write to the store can have two hosts run a unit",
        );
    }
    if is_here {
        host::look(&settings, daemon.as_ref(), &mut report).await;
    }
    if json {
        print_json(&report)?;
    } else {
        report.screen(width()).show()?;
    }
    looked?;
    Failure::end(if report.is_wrong() { exit::REFUSED } else { 0 })
}

/// What keeps a former holder from being fenced.
fn unfenced(fence: &FenceSettings, node: &NodeId) -> Option<&'static str> {
    if fence.others.is_none() {
        Some("no fencing; see [fence] in putexd.toml(5)")
    } else if fence.hosts.is_empty() {
        Some(
            "name all hosts in [fence] hosts: whoever may write to the store can have any host fenced",
        )
    } else if !fence.hosts.contains(node) {
        Some("add this host to [fence] hosts on all hosts")
    } else {
        None
    }
}
