//! Whether what an operator has asked for has come about, as far as the picture of the cluster tells.

use std::time::Duration;

use super::view::{Presence, ServiceView, View};
use crate::types::span::rounded;

/// What is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Goal {
    /// Another host runs the service.
    HandedOver {
        /// The service.
        service: String,
        /// Who held it; empty = nobody.
        from: String,
        /// The fencing token then.
        token: u64,
        /// The host that should take over; `None` = any.
        to: Option<String>,
    },
    /// The service is kept stopped, and nobody runs it.
    Stopped(String),
    /// The service is not kept stopped, and somebody runs it.
    Started(String),
    /// The holder has its long lease.
    Paused(String),
    /// The lease is an ordinary one.
    Resumed(String),
    /// The host takes nothing, and runs nothing.
    Drained {
        /// The host.
        node: String,
        /// The services that it ran.
        had: Vec<String>,
    },
    /// The host takes part.
    Undrained(String),
}

/// How far it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Not yet; what is the case meanwhile.
    Going(String),
    /// It has come about.
    Done(String),
    /// It has come out otherwise; what to do comes with it.
    Failed(String),
}

impl Goal {
    /// The service whose history tells how long nobody ran it.
    pub(super) fn service(&self) -> Option<&str> {
        match self {
            Self::HandedOver { service, .. } | Self::Started(service) => Some(service),
            Self::Stopped(_) | Self::Paused(_) | Self::Resumed(_) | Self::Drained { .. } | Self::Undrained(_) => None,
        }
    }

    /// Judges the picture as it is now.
    pub(super) fn judge(&self, view: &View) -> Verdict {
        match self {
            Self::HandedOver { service, from, token, to } => {
                handed_over(find(view, service), from, *token, to.as_deref())
            }
            Self::Stopped(service) => stopped(find(view, service)),
            Self::Started(service) => started(find(view, service)),
            Self::Paused(service) => paused(find(view, service)),
            Self::Resumed(service) => match find(view, service) {
                Some(service) if service.paused.is_none() => Verdict::Done("it is not paused any more".to_owned()),
                Some(_) | None => Verdict::Going("its holder still has the long lease".to_owned()),
            },
            Self::Drained { node, had } => drained(view, node, had),
            Self::Undrained(node) => match view.hosts.iter().find(|host| host.node == *node) {
                Some(host) if host.status.report.drained.is_none() => Verdict::Done(
                    "it takes part again, and takes over nothing by itself that runs elsewhere".to_owned(),
                ),
                Some(_) | None => Verdict::Going("it is still drained".to_owned()),
            },
        }
    }
}

fn find<'a>(view: &'a View, service: &str) -> Option<&'a ServiceView> {
    view.services.iter().find(|known| known.service == service)
}

fn lost() -> Verdict {
    Verdict::Going("putexd does not tell of the service at the moment".to_owned())
}

fn handed_over(service: Option<&ServiceView>, from: &str, token: u64, to: Option<&str>) -> Verdict {
    let Some(service) = service else { return lost() };
    let (holder, state) = (service.holder.as_str(), service.state.as_str());
    match (holder, state) {
        ("", _) => Verdict::Going("nobody holds the lock at the moment".to_owned()),
        (holder, "running" | "paused") if holder == from && service.token > token => {
            Verdict::Failed(format!("no other host has taken it, and {holder} runs it again: {}", why_nobody(service)))
        }
        (holder, "running" | "paused" | "held" | "silent") if holder == from => {
            Verdict::Going(format!("{holder} is about to stop it"))
        }
        (holder, "stopping") => Verdict::Going(format!("{holder} stops it")),
        (holder, "starting") => Verdict::Going(format!("{holder} has the lock and starts it{}", left(service))),
        (holder, "running" | "paused" | "held") => match to {
            Some(to) if to != holder => Verdict::Failed(format!(
                "{holder} has taken it over, and not {to}: see \"putexctl status {}\"",
                service.service
            )),
            Some(_) | None => Verdict::Done(format!("{holder} has taken it over")),
        },
        (holder, _) => Verdict::Going(format!("{holder} holds the lock, and has not renewed it lately")),
    }
}

fn why_nobody(service: &ServiceView) -> String {
    format!("the others are: {}; see \"putexctl status {}\"", service.others_in_words(), service.service)
}

/// How long a new holder waits still, where this host is the one.
fn left(service: &ServiceView) -> String {
    let starts = service.here.as_ref().and_then(|here| here.starts_ms);
    starts.map_or_else(String::new, |ms| format!(" in {}", rounded(Duration::from_millis(ms))))
}

fn stopped(service: Option<&ServiceView>) -> Verdict {
    let Some(service) = service else { return lost() };
    match (&service.stopped, service.holder.as_str()) {
        (None, _) => Verdict::Going("the word is not in the lock's record yet".to_owned()),
        (Some(_), "") => Verdict::Done(format!(
            "it runs nowhere, and no host starts it before \"putexctl start {}\"{}",
            service.service,
            service.stopped.as_ref().and_then(|word| word.until).map_or("", |_| " or the end of the given time")
        )),
        (Some(_), holder) => Verdict::Going(format!("{holder} stops it")),
    }
}

fn started(service: Option<&ServiceView>) -> Verdict {
    let Some(service) = service else { return lost() };
    match (service.state.as_str(), service.holder.as_str()) {
        _ if service.stopped.is_some() => Verdict::Going("the word that keeps it stopped is still there".to_owned()),
        ("running" | "paused" | "held", holder) => Verdict::Done(format!("{holder} runs it")),
        ("starting", holder) => Verdict::Going(format!("{holder} has the lock and starts it{}", left(service))),
        (_, "") if service.others().count() > 0 && service.others().all(|candidate| !candidate.eligible) => {
            Verdict::Failed(format!("no host may take it: {}", why_nobody(service)))
        }
        (_, _) => Verdict::Going("no host has taken it yet".to_owned()),
    }
}

fn paused(service: Option<&ServiceView>) -> Verdict {
    let Some(service) = service else { return lost() };
    match (&service.paused, service.holder.as_str()) {
        (Some(word), holder) => {
            let until =
                word.until.map_or_else(String::new, |until| format!(" until {}", crate::types::span::date(until)));
            Verdict::Done(format!(
                "{holder} has the long lease{until}; the store may be away meanwhile; \"putexctl resume {}\" ends it",
                service.service
            ))
        }
        (None, "") => Verdict::Failed(
            "nobody holds the lock, so that there is no lease to make long: pause it again when it runs".to_owned(),
        ),
        (None, holder) => Verdict::Going(format!("{holder} asks the store for the long lease")),
    }
}

fn drained(view: &View, node: &str, had: &[String]) -> Verdict {
    let host = view.hosts.iter().find(|host| host.node == node);
    let is_drained =
        host.is_some_and(|host| host.presence == Presence::Drained || host.status.report.drained.is_some());
    let held: Vec<String> =
        view.services.iter().filter(|service| service.holder == node).map(|service| service.service.clone()).collect();
    if !held.is_empty() {
        return Verdict::Going(format!("it still has {}", super::view::enumerated(&held, 4)));
    }
    if !is_drained {
        return Verdict::Going("it has not noted it yet".to_owned());
    }
    let open: Vec<&ServiceView> = had
        .iter()
        .filter_map(|name| find(view, name))
        .filter(|service| !matches!(service.state.as_str(), "running" | "paused" | "held") && service.stopped.is_none())
        .collect();
    let (waiting, left): (Vec<&ServiceView>, Vec<&ServiceView>) = open
        .into_iter()
        .partition(|service| service.others().any(|candidate| candidate.eligible && candidate.host != node));
    if !waiting.is_empty() {
        let names: Vec<String> = waiting.iter().map(|service| service.service.clone()).collect();
        return Verdict::Going(format!(
            "it runs nothing any more; {} is being taken over",
            super::view::enumerated(&names, 4)
        ));
    }
    let taken: Vec<String> = had
        .iter()
        .filter_map(|name| find(view, name))
        .filter(|service| !service.holder.is_empty())
        .map(|service| format!("{} on {}", service.service, service.holder))
        .collect();
    let mut text = "it runs nothing and takes nothing; \"putexctl undrain\" there ends this".to_owned();
    if !taken.is_empty() {
        text = format!("{text}; what it ran runs elsewhere now: {}", super::view::enumerated(&taken, 8));
    }
    if !left.is_empty() {
        let names: Vec<String> = left.iter().map(|service| service.service.clone()).collect();
        text = format!("{text}; nobody runs {}, because no other host may", super::view::enumerated(&names, 8));
    }
    Verdict::Done(text)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW, Told, small, word};
    use super::*;

    fn to(host: Option<&str>) -> Goal {
        let to = host.map(ToOwned::to_owned);
        Goal::HandedOver { service: "db".to_owned(), from: "h1".to_owned(), token: 1_794_992_500, to }
    }

    /// The lock of db is that host's, in that state there.
    fn held_by(told: &mut Told, host: &str, state: &str) {
        let db = told.service("db");
        (db.holder, db.state) = (host.to_owned(), if host == "h1" { state } else { "standby" }.to_owned());
        for node in ["h1", "h2", "h3"] {
            told.report(node, "db").state = if node == host { state } else { "" }.to_owned();
        }
    }

    #[test]
    fn a_hand_over_is_done_when_another_host_runs_it() {
        let mut told = small();
        assert!(matches!(to(None).judge(&told.view()), Verdict::Going(text) if text.contains("about to stop")));
        held_by(&mut told, "h1", "releasing");
        assert_eq!(to(None).judge(&told.view()), Verdict::Going("h1 stops it".to_owned()));
        held_by(&mut told, "", "standby");
        assert!(matches!(to(None).judge(&told.view()), Verdict::Going(text) if text.contains("nobody")));
        held_by(&mut told, "h2", "starting");
        assert!(matches!(to(None).judge(&told.view()), Verdict::Going(text) if text.contains("h2 has the lock")));
        held_by(&mut told, "h2", "active");
        assert_eq!(to(Some("h2")).judge(&told.view()), Verdict::Done("h2 has taken it over".to_owned()));
        assert!(matches!(to(Some("h3")).judge(&told.view()), Verdict::Failed(text) if text.contains("not h3")));
    }

    #[test]
    fn a_host_that_takes_it_again_is_told_of_with_the_reason() {
        let mut told = small();
        told.service("db").token += 1;
        told.host("h2").report.drained = Some(word("", None));
        let Verdict::Failed(text) = to(None).judge(&told.view()) else { panic!("nobody else has it") };
        assert!(text.contains("h1 runs it again") && text.contains("h2 is drained"), "{text}");
    }

    #[test]
    fn a_service_is_stopped_when_nobody_runs_it() {
        let mut told = small();
        let goal = Goal::Stopped("db".to_owned());
        assert!(matches!(goal.judge(&told.view()), Verdict::Going(_)));
        told.service("db").stopped = Some(word("schema", Some(NOW + 60)));
        assert_eq!(goal.judge(&told.view()), Verdict::Going("h1 stops it".to_owned()));
        held_by(&mut told, "", "standby");
        assert!(matches!(goal.judge(&told.view()), Verdict::Done(text) if text.contains("putexctl start db")));
        assert!(matches!(Goal::Started("db".to_owned()).judge(&told.view()), Verdict::Going(_)));
    }

    #[test]
    fn a_drain_is_done_when_all_that_can_go_has_gone() {
        let mut told = small();
        let goal = Goal::Drained { node: "h1".to_owned(), had: vec!["db".to_owned()] };
        told.host("h1").report.drained = Some(word("", None));
        assert!(matches!(goal.judge(&told.view()), Verdict::Going(text) if text.contains("still has db")));
        held_by(&mut told, "", "standby");
        assert!(matches!(goal.judge(&told.view()), Verdict::Going(text) if text.contains("being taken over")));
        held_by(&mut told, "h3", "active");
        assert!(matches!(goal.judge(&told.view()), Verdict::Done(text) if text.contains("db on h3")));
    }
}
