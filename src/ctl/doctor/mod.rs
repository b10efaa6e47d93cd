//! `putexctl doctor`: what of the store and of this host keeps services from being run or taken over, each with its remedy. Nothing is
//! changed but one value that nobody reads, which is written to the store.

mod host;
mod store;
#[cfg(test)]
mod tests;

use std::path::Path;

use serde::Serialize;

use super::{
    ask::Bus,
    output::{Failure, Screen, Style, print_json, width},
    store::load,
    texts::grouped,
};
use crate::{
    command_line::exit,
    config::FenceSettings,
    facts::{
        ClusterState,
        alarm::{AlarmKind, Urgency},
    },
    types::{NodeId, first_named},
};

/// How many services and units a line names.
const NAMED: usize = 6;

/// What is looked at here, whatever putexd says of it.
const LOOKED_AT: [AlarmKind; 4] = [
    AlarmKind::StoreLost,
    AlarmKind::StoreReadOnly,
    AlarmKind::ConfigurationBroken,
    AlarmKind::GuardGone,
];

/// All that was found, as `--json` prints it. What to do comes first where it is no fact.
#[derive(Default, Serialize)]
struct Diagnosis {
    facts: Vec<String>,
    /// What keeps services from being run here.
    wrong: Vec<String>,
    /// What should not be so.
    warnings: Vec<String>,
}

impl Diagnosis {
    /// What putexd says of this host as a whole.
    fn take_alarms(&mut self, daemon: &ClusterState) {
        let host = daemon.host(&daemon.node).into_iter();
        let alarms = host.flat_map(|host| &host.state.alarms);
        for alarm in alarms.filter(|alarm| !LOOKED_AT.contains(&alarm.kind())) {
            let of_level = match alarm.kind().urgency() {
                Urgency::Error => &mut self.wrong,
                Urgency::Warn => &mut self.warnings,
            };
            of_level.push(format!("{}: {}", alarm.kind().remedy(), alarm.problem));
        }
    }

    fn screen(&self, width: Option<usize>) -> Screen {
        let mut screen = Screen::new(width);
        for (texts, mark, style) in [
            (&self.facts, "  ", Style::Plain),
            (&self.wrong, "× ", Style::Bad),
            (&self.warnings, "! ", Style::Notable),
        ] {
            for text in texts {
                screen.sentence(mark, &text.replace('\n', " "), style);
            }
        }
        screen
    }
}

/// What many services have alike is told once.
fn once(found: impl IntoIterator<Item = (String, &'static str)>) -> impl Iterator<Item = String> {
    let grouped = grouped(found).into_iter();
    grouped.map(|(text, services)| format!("{}: {text}", first_named(&services, NAMED)))
}

/// Looks, and prints what was found.
pub async fn run(root: &Path, json: bool) -> Result<(), Failure> {
    let (settings, broken) = load(root)?;
    let mut report = Diagnosis::default();
    // With another root the files are those of another host.
    let is_here = root == Path::new("/");
    let daemon = if is_here {
        Bus::described().await.ok()
    } else {
        None
    };
    let looked = store::look(&settings, &mut report).await;
    let services = settings.services.iter();
    report.warnings.extend(once(services.filter_map(|service| {
        let text = unfenced(&service.fence, &settings.node)?;
        Some((service.name.to_string(), text))
    })));
    if settings.seal_key.is_none() {
        report.warnings.push("have one seal-key on all hosts, see putexd.toml(5): whoever may write to the store can have two hosts run a unit".to_owned());
    }
    if is_here {
        report.wrong = host::look(&settings, &broken, daemon.as_ref()).await;
        match &daemon {
            Some(daemon) => report.take_alarms(daemon),
            None => report.warnings.extend(host::left_bound(&settings)),
        }
    }
    if json {
        print_json(&report)?;
    } else {
        report.screen(width()).show()?;
    }
    looked?;
    Failure::end(if report.wrong.is_empty() {
        0
    } else {
        exit::REFUSED
    })
}

/// What keeps a former holder from being fenced.
fn unfenced(fence: &FenceSettings, node: &NodeId) -> Option<&'static str> {
    if fence.others.is_none() {
        Some("see [fence] in putexd.toml(5): a lost host is not fenced")
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
