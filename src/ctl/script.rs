//! What scripts ask: `putexctl is-active`, and the names that a shell completes.

use clap::{Command, CommandFactory};
use serde::Serialize;

use super::ask::Bus;
use super::findings::failover_ms;
use super::found::Found;
use super::output::{Failure, print, print_json, tell};
use super::status::picture;
use super::view::{Rank, ServiceView, View, enumerated};
use crate::command_line::exit;
use crate::config;
use crate::host::clock;
use crate::types::{NodeId, ServiceName};

/// Prints the host that runs the service, and ends with a status that tells where it runs.
pub(super) async fn is_active(service: &ServiceName, quiet: bool, json: bool) -> Result<(), Failure> {
    let bus = Bus::connect().await?;
    let view = picture(&bus).await?;
    let Some(found) = view.services.iter().find(|known| known.service == service.as_str()) else {
        return Err(Failure::new(
            exit::REFUSED,
            format!("putexd knows no service called {service}: \"putexctl status --all\" shows all names"),
        ));
    };
    let status = verdict(found, &view.node, clock::wall().as_secs());
    let runs = matches!(status, 0 | exit::ELSEWHERE);
    if json {
        print_json(&Told::of(found, runs, &view.node))?;
    } else if !quiet {
        print(&format!("{}\n", if runs { &found.holder } else { &found.state }))?;
        // For people, beside the one word for scripts.
        if let Some(known) = known(found).filter(|_| !runs) {
            tell(&format!("putexctl: {service}: {}\n", known.text));
        }
    }
    match status {
        0 => Ok(()),
        status => Err(Failure::new(status, "")),
    }
}

/// Where a service runs, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Told<'a> {
    /// The service.
    service: &'a str,
    /// Its state in the cluster, as in `status`.
    state: &'a str,
    /// The host that holds the lock; empty = nobody. Whether it runs the unit is in `runs`.
    holder: &'a str,
    /// Whether the holder is known to run the unit.
    runs: bool,
    /// Whether it runs on this host.
    here: bool,
    /// What is known, and how old that is, where it is not known to run.
    known: &'a str,
}

impl<'a> Told<'a> {
    fn of(found: &'a ServiceView, runs: bool, node: &str) -> Self {
        Self {
            service: &found.service,
            state: &found.state,
            holder: &found.holder,
            runs,
            here: runs && found.holder == node,
            known: known(found).filter(|_| !runs).map_or("", |found| &found.text),
        }
    }
}

/// What is known of a service that is not known to run, and how old that is: the worst that stands.
fn known(found: &ServiceView) -> Option<&Found> {
    found.findings.iter().filter(|found| found.rank != Rank::Past).min_by_key(|found| found.rank)
}

/// The exit status: 0 where the unit runs here, and others for elsewhere, nowhere and unknown.
fn verdict(found: &ServiceView, node: &str, now: u64) -> u8 {
    match found.state.as_str() {
        "running" | "paused" if found.holder == node => 0,
        "running" | "paused" => exit::ELSEWHERE,
        "held" if found.is_stale => exit::UNAVAILABLE,
        // A holder that does not renew its lease runs the unit until the lease ends, and nobody knows how far it is.
        "unknown" | "silent" => exit::UNAVAILABLE,
        // A host that never reports has the lock for longer than a start takes, and renews it: nobody will know more.
        "held" => {
            let seen = found.here.as_ref().and_then(|here| here.held_since).or(found.since);
            let is_old = seen.is_some_and(|seen| now.saturating_sub(seen).saturating_mul(1000) > failover_ms(found));
            let renews = found.here.as_ref().is_some_and(|here| here.silent_ms.is_some());
            if is_old && renews { exit::ELSEWHERE } else { exit::UNAVAILABLE }
        }
        _ => exit::NOWHERE,
    }
}

/// Refuses a name that no host has, and that of this host. Where putexd does not answer, nothing is known.
pub(super) async fn known_node(node: &NodeId) -> Result<(), Failure> {
    let view = async {
        let bus = Bus::connect().await?;
        picture(&bus).await
    };
    let Ok(view) = view.await else { return Ok(()) };
    match doubt_of(node, &view) {
        Some(doubt) => Err(Failure::new(exit::REFUSED, doubt)),
        None => Ok(()),
    }
}

fn doubt_of(node: &NodeId, view: &View) -> Option<String> {
    if view.node == node.as_str() {
        return Some(format!("name the host that is off: {node} is this host, which is up"));
    }
    // A host whose report is gone may still hold a lock.
    let mut known: Vec<String> = view.hosts.iter().map(|host| host.node.clone()).collect();
    known.extend(view.services.iter().map(|service| service.holder.clone()).filter(|holder| !holder.is_empty()));
    if known.iter().any(|name| name == node.as_str()) {
        return None;
    }
    known.sort();
    known.dedup();
    known.retain(|name| *name != view.node);
    let others = match known.len() {
        0 => "no other host is known".to_owned(),
        1 => format!("the only other one is {}", known[0]),
        _ => format!("the others are {}", enumerated(&known, 8)),
    };
    Some(format!("name a host of the cluster: none is called {node}; {others}"))
}

/// The words that could stand in the place of the last of `words`, each in a line.
pub(super) async fn complete(words: &[String]) -> Result<(), Failure> {
    let (last, before) = words.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let top = super::Arguments::command();
    let lines = match wanted(&top, before, last) {
        Wanted::Words(words) => words,
        Wanted::Services => names(|view| view.services.iter().map(|service| service.service.clone()).collect()).await,
        Wanted::Nodes => names(|view| view.hosts.iter().map(|host| host.node.clone()).collect()).await,
        Wanted::Nothing => Vec::new(),
    };
    // A name with a character that a shell might take for something else is not offered.
    let plain = |each: char| each.is_ascii_alphanumeric() || "-_.:@".contains(each);
    let fits = |line: &&String| line.starts_with(last) && line.chars().all(plain);
    lines.iter().filter(fits).try_for_each(|line| print(&format!("{line}\n")))
}

/// What stands at a place of the command line.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Words(Vec<String>),
    Services,
    Nodes,
    Nothing,
}

/// Finds out what could stand behind the words `before`, as the definition of the command line has it.
fn wanted(top: &Command, before: &[String], last: &str) -> Wanted {
    let Some(verb) = before.iter().find_map(|word| top.find_subcommand(word)) else {
        let verbs = top.get_subcommands().filter(|verb| !verb.is_hide_set());
        return Wanted::Words(verbs.map(|verb| verb.get_name().to_owned()).chain(["help".to_owned()]).collect());
    };
    let options = || verb.get_arguments().filter(|argument| !argument.is_positional() && !argument.is_hide_set());
    let takes_value = |word: &str| {
        let name = word.strip_prefix("--")?;
        options().find(|option| option.get_long() == Some(name) && option.get_action().takes_values())
    };
    if let Some(option) = before.last().and_then(|word| takes_value(word)) {
        return of_value(option);
    }
    if last.starts_with('-') {
        return Wanted::Words(options().filter_map(|option| Some(format!("--{}", option.get_long()?))).collect());
    }
    // The words behind the verb that are neither options nor their values.
    let behind = before.iter().skip_while(|word| word.as_str() != verb.get_name()).skip(1);
    let mut given = 0;
    let mut is_value = false;
    for word in behind {
        if !is_value && !word.starts_with('-') {
            given += 1;
        }
        is_value = !is_value && takes_value(word).is_some();
    }
    let mut positionals = verb.get_positionals();
    let positional = positionals.nth(given).or_else(|| {
        verb.get_positionals().last().filter(|last| last.get_num_args().is_some_and(|range| range.max_values() > 1))
    });
    positional.map_or(Wanted::Nothing, of_value)
}

fn of_value(argument: &clap::Arg) -> Wanted {
    match argument.get_id().as_str() {
        "service" | "services" => Wanted::Services,
        "node" | "to" => Wanted::Nodes,
        _ => {
            let values = argument.get_possible_values();
            if values.is_empty() {
                Wanted::Nothing
            } else {
                Wanted::Words(values.iter().map(|value| value.get_name().to_owned()).collect())
            }
        }
    }
}

/// Names from the running putexd, or of this host's files where it does not answer at once.
async fn names(of_view: impl Fn(&View) -> Vec<String>) -> Vec<String> {
    let asked = async {
        let bus = Bus::connect().await?;
        picture(&bus).await
    };
    // Whoever types must not be kept waiting.
    if let Ok(Ok(view)) = tokio::time::timeout(std::time::Duration::from_secs(1), asked).await {
        return of_view(&view);
    }
    let loaded = config::load(std::path::Path::new("/"));
    let services = loaded.settings.map(|settings| settings.services).unwrap_or_default();
    services.into_iter().map(|service| service.name.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW, Told as Fixture, alarm, assert_described, small};
    use super::*;
    use crate::dbus::AlarmStatus;
    use crate::journal::Alarm;

    fn at(words: &[&str], last: &str) -> Wanted {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        wanted(&super::super::Arguments::command(), &words, last)
    }

    #[test]
    fn the_place_on_the_command_line_decides_what_is_completed() {
        let Wanted::Words(verbs) = at(&[], "st") else { panic!("verbs") };
        assert!(verbs.contains(&"step-down".to_owned()) && !verbs.contains(&"complete".to_owned()), "{verbs:?}");
        assert_eq!(at(&["status"], ""), Wanted::Services);
        assert_eq!(at(&["status", "db"], ""), Wanted::Services);
        assert_eq!(at(&["move"], ""), Wanted::Services);
        assert_eq!(at(&["move", "db"], ""), Wanted::Nodes);
        assert_eq!(at(&["move", "--reason", "x", "db"], "h"), Wanted::Nodes);
        assert_eq!(at(&["move", "db", "h1"], ""), Wanted::Nothing);
        assert_eq!(at(&["step-down", "db", "--to"], ""), Wanted::Nodes);
        assert_eq!(at(&["stop", "--for"], ""), Wanted::Nothing);
        let Wanted::Words(orders) = at(&["status", "--sort"], "") else { panic!("orders") };
        assert!(orders.contains(&"holder".to_owned()), "{orders:?}");
        let Wanted::Words(options) = at(&["stop"], "--") else { panic!("options") };
        assert!(options.contains(&"--no-wait".to_owned()), "{options:?}");
    }

    #[test]
    fn a_name_that_no_host_has_is_refused_before_anything_is_asked() {
        let view = small().view();
        let doubt = |name: &str| doubt_of(&NodeId::new(name).expect("a node's name"), &view);
        assert_eq!(doubt("h2"), None);
        assert!(doubt("h1").is_some_and(|doubt| doubt.contains("this host")));
        assert_eq!(
            doubt("h22").as_deref(),
            Some("name a host of the cluster: none is called h22; the others are h2 and h3")
        );
    }

    #[test]
    fn what_is_known_of_a_service_is_not_an_alarm_that_is_over() {
        let mut told = small();
        told.service("web").silent_ms = Some(12_100);
        let over = alarm(Alarm::Lapsed, "find out why the lease was not renewed", "the store did not answer");
        told.service("web").alarms = vec![AlarmStatus { over: true, ..over }];
        let view = told.view();
        let web = view.services.iter().find(|service| service.service == "web").expect("a service");
        let known = known(web).expect("it is silent");
        assert!(known.text.starts_with("h3 has not renewed its lease for 12.1s"), "{}", known.text);
    }

    #[test]
    fn where_it_runs_is_an_exit_status() {
        let status = |told: &Fixture, name: &str| {
            let view = told.view();
            let found = view.services.iter().find(|service| service.service == name).expect("a service");
            let status = verdict(found, "h1", NOW);
            let runs = matches!(status, 0 | exit::ELSEWHERE);
            assert_described("is-active", &Told::of(found, runs, "h1"));
            (found.state.clone(), status)
        };
        let mut told = small();
        assert_eq!(status(&told, "db"), ("running".to_owned(), 0));
        assert_eq!(status(&told, "web"), ("running".to_owned(), exit::ELSEWHERE));
        // A holder that starts it, and one that has stopped it, run nothing, here and elsewhere.
        told.service("db").state = "confirming".to_owned();
        assert_eq!(status(&told, "db"), ("starting".to_owned(), exit::NOWHERE));
        told.service("db").state = "standby".to_owned();
        assert_eq!(status(&told, "db"), ("lapsed".to_owned(), exit::NOWHERE));
        told.report("h3", "web").state = "confirming".to_owned();
        assert_eq!(status(&told, "web"), ("starting".to_owned(), exit::NOWHERE));
        told.report("h3", "web").state = String::new();
        assert_eq!(status(&told, "web"), ("lapsed".to_owned(), exit::NOWHERE));
        // The host that is asked has lost the store.
        let web = told.service("web");
        (web.state, web.silent_ms) = ("no-store".to_owned(), Some(60_000));
        assert_eq!(status(&told, "web"), ("silent".to_owned(), exit::UNAVAILABLE));
        // It was started when the store was away, and has only an old report of the holder, which may have lost its power since.
        let web = told.service("web");
        (web.state, web.silent_ms, web.takeable_ms) = ("no-store".to_owned(), None, None);
        (told.store.silent_ms, told.host("h3").silent_ms) = (12_000, Some(14_000));
        assert_eq!(status(&told, "web"), ("silent".to_owned(), exit::UNAVAILABLE));
        // It has not heard of the store since it was booted, and no host has told of the service.
        let mut told = small();
        told.cluster.hosts.retain(|host| host.report.node == "h1");
        let db = told.service("db");
        (db.holder, db.state, db.token, db.held_since) = (String::new(), "no-store".to_owned(), 0, None);
        told.report("h1", "db").state = "no-store".to_owned();
        assert_eq!(status(&told, "db"), ("unknown".to_owned(), exit::UNAVAILABLE));
        // The holder does not report: at first, and for ever.
        let mut told = small();
        told.cluster.hosts.retain(|host| host.report.node != "h3");
        assert_eq!(status(&told, "web"), ("held".to_owned(), exit::ELSEWHERE));
        told.service("web").held_since = Some(NOW - 2);
        assert_eq!(status(&told, "web"), ("held".to_owned(), exit::UNAVAILABLE));
        // It had no store itself until now, and was not seen to renew anything since.
        let mut told = small();
        (told.service("web").silent_ms, told.report("h3", "web").state) = (None, "no-store".to_owned());
        assert_eq!(status(&told, "web"), ("held".to_owned(), exit::UNAVAILABLE));
        let mut told = small();
        told.service("db").holder = String::new();
        told.service("db").state = "standby".to_owned();
        assert_eq!(status(&told, "db"), ("no-holder".to_owned(), exit::NOWHERE));
    }
}
