//! Whether what an operator has asked for has come about, as far as the picture of the cluster tells.

use std::time::Duration;

use super::view::{Presence, Rank, ServiceView, Severity, View, in_words};
use crate::cluster::eligibility;
use crate::dbus::Word;
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
    Stopped {
        /// The service.
        service: String,
        /// The fencing token before.
        token: u64,
    },
    /// The service is not kept stopped, and somebody runs it.
    Started {
        /// The service.
        service: String,
        /// The word that kept it stopped before; `None`: this host knew of none.
        before: Option<Word>,
    },
    /// The holder has its long lease.
    Paused {
        /// The service.
        service: String,
        /// Who held it before; empty = nobody.
        from: String,
        /// The fencing token then.
        token: u64,
        /// The word for a long lease before; `None`: this host knew of none.
        before: Option<Word>,
    },
    /// The lease is an ordinary one.
    Resumed {
        /// The service.
        service: String,
        /// The word for the long lease before; `None`: this host knew of none.
        before: Option<Word>,
    },
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
    /// It will not come about, unless what the hosts have reported is out of date: that may be so for a moment.
    Stuck(String),
    /// It has come out otherwise; what to do comes with it.
    Failed(String),
    /// It may have come about or not, and this host does not see it: its store does not answer, or the reports of other hosts
    /// cannot be read.
    Unseen(String),
}

impl Goal {
    /// The service that goes from one host to another, so that its history tells for how long nobody ran it. A start ends the time
    /// for which an operator has kept it stopped, which is no gap.
    pub(super) fn handed_over(&self) -> Option<&str> {
        if let Self::HandedOver { service, .. } = self { Some(service) } else { None }
    }

    /// The service that somebody runs once it has come about.
    pub(super) fn service(&self) -> Option<&str> {
        match self {
            Self::HandedOver { service, .. } | Self::Started { service, .. } => Some(service),
            Self::Stopped { .. }
            | Self::Paused { .. }
            | Self::Resumed { .. }
            | Self::Drained { .. }
            | Self::Undrained(_) => None,
        }
    }

    /// Whether `service` is one that it is about.
    pub(super) fn concerns(&self, service: &str) -> bool {
        match self {
            Self::HandedOver { service: name, .. }
            | Self::Stopped { service: name, .. }
            | Self::Started { service: name, .. }
            | Self::Paused { service: name, .. }
            | Self::Resumed { service: name, .. } => service == name,
            Self::Drained { had, .. } => had.iter().any(|name| name == service),
            Self::Undrained(_) => false,
        }
    }

    /// Whether the operator's word for it is there; `None`: it needs none.
    pub(super) fn has_word(&self, view: &View) -> Option<bool> {
        match self {
            Self::Stopped { service, .. } => Some(find(view, service)?.stopped.is_some()),
            Self::Paused { service, .. } => Some(find(view, service)?.paused.is_some()),
            Self::Drained { node, .. } => Some(is_drained(view, node)),
            Self::HandedOver { .. } | Self::Started { .. } | Self::Resumed { .. } | Self::Undrained(_) => None,
        }
    }

    /// What changes with each renewal of the lock into which the word for it is to be written; `None`: it is written elsewhere.
    pub(super) fn renewal(&self, view: &View) -> Option<u64> {
        let Self::Paused { service, .. } = self else { return None };
        find(view, service)?.here.as_ref().map(|here| here.revision)
    }

    /// What is told where the store does not answer this host and nothing that it is about runs here any more: nobody sees from
    /// here what other hosts do. `None`: there is more to see.
    pub(super) fn unseen(&self, view: &View) -> Option<Verdict> {
        let trouble = view.store.trouble_in_short()?;
        if matches!(self, Self::Paused { .. } | Self::Resumed { .. }) {
            return Some(Verdict::Unseen(format!(
                "the store has not taken it yet, as far as is seen here, and the host that was told goes on trying for as long as \
                 it has the lease and putexd is not restarted there: {trouble}"
            )));
        }
        let mut concerned = view.services.iter().filter(|service| self.concerns(&service.service)).peekable();
        let runs_here =
            |service: &ServiceView| service.here.as_ref().is_some_and(|here| eligibility::is_held_in(&here.state));
        if concerned.peek().is_none() || concerned.any(runs_here) {
            return None;
        }
        let told = match self {
            Self::Stopped { .. } | Self::Started { .. } => {
                "nothing of it runs on this host; the host that was told goes on trying for an hour to write that to the lock"
            }
            Self::Drained { .. } => "this host is drained, and runs nothing of what it had",
            Self::HandedOver { .. } | Self::Paused { .. } | Self::Resumed { .. } | Self::Undrained(_) => {
                "nothing of it runs on this host"
            }
        };
        Some(Verdict::Unseen(format!("{told}; what other hosts do is not seen here: {trouble}")))
    }

    /// The services that other hosts have yet to take over, once this host has nothing more to do. They may wait for long.
    pub(super) fn awaited(&self, view: &View) -> Vec<String> {
        let Self::Drained { node, had } = self else { return Vec::new() };
        if !held_by(view, node).is_empty() {
            return Vec::new();
        }
        open_of(view, had).map(|service| service.service.clone()).collect()
    }

    /// Judges the picture as it is now.
    pub(super) fn judge(&self, view: &View) -> Verdict {
        match self {
            Self::HandedOver { service, from, token, to } => {
                handed_over(find(view, service), from, *token, to.as_deref(), &view.incomplete)
            }
            Self::Stopped { service, token } => stopped(find(view, service), *token),
            Self::Started { service, before } => started(find(view, service), before.as_ref(), &view.incomplete),
            Self::Paused { service, from, token, before } => {
                paused(find(view, service), from, *token, before.as_ref())
            }
            Self::Resumed { service, before } => match find(view, service).map(|service| &service.paused) {
                Some(None) => Verdict::Done("it is not paused any more".to_owned()),
                Some(Some(word)) if is_another(word, before.as_ref()) => {
                    Verdict::Failed(format!("it was paused again {}", in_words(word)))
                }
                Some(Some(_)) | None => Verdict::Going(
                    "its holder has the long lease until the store has taken the end of it, and its guard the earlier deadline"
                        .to_owned(),
                ),
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

/// Whether a word was said after the one that was there before.
fn is_another(word: &Word, before: Option<&Word>) -> bool {
    before.is_some_and(|before| before != word)
}

fn lost() -> Verdict {
    Verdict::Going("putexd does not tell of the service at the moment".to_owned())
}

fn handed_over(service: Option<&ServiceView>, from: &str, token: u64, to: Option<&str>, incomplete: &str) -> Verdict {
    let Some(service) = service else { return lost() };
    let (holder, state) = (service.holder.as_str(), service.state.as_str());
    let runs = |told: String| match to {
        Some(to) if to != holder => {
            Verdict::Failed(format!("{told}, and not {to}: see \"putexctl status {}\"", service.service))
        }
        Some(_) | None => Verdict::Done(told),
    };
    match (holder, state) {
        ("", "stopped") => Verdict::Failed(format!(
            "it is stopped everywhere, so that no host takes it: see \"putexctl status {}\"",
            service.service
        )),
        ("", _) => Verdict::Going(nobody_holds(service)),
        (holder, "running" | "paused") if holder == from && service.token > token => {
            Verdict::Failed(format!("no other host has taken it, and {holder} runs it again: {}", why_nobody(service)))
        }
        (holder, "running" | "paused" | "held" | "silent") if holder == from => {
            Verdict::Going(format!("{holder} is about to stop it"))
        }
        (holder, "stopping") => Verdict::Going(stops(service, holder)),
        (holder, "starting") => Verdict::Going(format!("{holder} has the lock and starts it{}", left(service))),
        (holder, "running" | "paused") => runs(format!("{holder} has taken it over")),
        (holder, "held") if incomplete.is_empty() || to.is_none_or(|to| to == holder) => held(service, incomplete),
        (holder, "held") => runs(format!("{holder} has the lock")),
        (holder, _) => Verdict::Going(format!("{holder} holds the lock, and has not renewed it lately")),
    }
}

/// How far it has come with a holder that has not reported what its unit does. Where reports cannot be read, no waiting helps.
/// How a stop goes on, with what hinders it.
fn stops(service: &ServiceView, holder: &str) -> String {
    let hinders = service.findings.iter().find(|found| found.severity == Severity::Alarm && found.rank == Rank::Down);
    hinders.map_or_else(|| format!("{holder} stops it"), |found| found.text.clone())
}

fn held(service: &ServiceView, incomplete: &str) -> Verdict {
    let (name, holder) = (&service.service, &service.holder);
    if incomplete.is_empty() {
        return Verdict::Going(format!("{holder} has the lock, and has not reported yet that it runs it"));
    }
    Verdict::Unseen(format!(
        "run \"putexctl status {name}\" on {holder}, which has the lock: whether it runs it already is not known here ({incomplete})"
    ))
}

/// What is the case while nobody holds the lock.
fn nobody_holds(service: &ServiceView) -> String {
    let takes: Vec<String> = service.hosts.iter().filter(|host| host.eligible).map(|host| host.host.clone()).collect();
    if takes.is_empty() {
        "nobody holds the lock at the moment".to_owned()
    } else {
        format!("nobody holds the lock at the moment; {} may take it", super::view::enumerated(&takes, 4))
    }
}

fn why_nobody(service: &ServiceView) -> String {
    format!("the others are: {}; see \"putexctl status {}\"", service.others_in_words(), service.service)
}

/// How long a new holder waits still, and why, as far as it has told.
fn left(service: &ServiceView) -> String {
    let starts = service.here.as_ref().and_then(|here| here.starts_ms).or(service.starts_ms);
    let why = if service.starts_why.is_empty() { String::new() } else { format!(": {}", service.starts_why) };
    starts.map_or_else(String::new, |ms| format!(" in {}{why}", rounded(Duration::from_millis(ms))))
}

fn stopped(service: Option<&ServiceView>, token: u64) -> Verdict {
    let Some(service) = service else { return lost() };
    match (&service.stopped, service.holder.as_str()) {
        (None, holder) if service.token > token && matches!(service.state.as_str(), "running" | "paused") => {
            Verdict::Failed(format!(
                "it is not kept stopped, and {holder} has started it again: somebody has said so meanwhile"
            ))
        }
        (None, _) => Verdict::Going("the word is not in the lock's record yet".to_owned()),
        (Some(_), "") => Verdict::Done(format!(
            "it runs nowhere, and no host starts it before \"putexctl start {}\"{}",
            service.service,
            service.stopped.as_ref().and_then(|word| word.until).map_or("", |_| " or the end of the given time")
        )),
        (Some(_), holder) => Verdict::Going(stops(service, holder)),
    }
}

fn started(service: Option<&ServiceView>, before: Option<&Word>, incomplete: &str) -> Verdict {
    let Some(service) = service else { return lost() };
    if let Some(word) = service.stopped.as_ref().filter(|word| is_another(word, before)) {
        return Verdict::Failed(format!("it was stopped again {}", in_words(word)));
    }
    match (service.state.as_str(), service.holder.as_str()) {
        _ if service.stopped.is_some() => Verdict::Going("the word that keeps it stopped is still there".to_owned()),
        ("running" | "paused", holder) => Verdict::Done(format!("{holder} runs it")),
        ("held", _) => held(service, incomplete),
        ("starting", holder) => Verdict::Going(format!("{holder} has the lock and starts it{}", left(service))),
        (_, "") if service.others().count() > 0 && service.others().all(|candidate| !candidate.eligible) => {
            Verdict::Stuck(format!("no host may take it: {}", why_nobody(service)))
        }
        (_, "") => Verdict::Going(nobody_holds(service)),
        ("stopping", holder) => Verdict::Going(format!("{holder} stops it")),
        (_, holder) => Verdict::Going(format!("{holder} holds the lock, and has not renewed it lately")),
    }
}

fn paused(service: Option<&ServiceView>, from: &str, token: u64, before: Option<&Word>) -> Verdict {
    let Some(service) = service else { return lost() };
    match (&service.paused, service.holder.as_str()) {
        (Some(word), holder) if before == Some(word) => {
            Verdict::Going(format!("{holder} asks the store for the other end of the long lease"))
        }
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
        (None, holder) if !from.is_empty() && (holder != from || service.token > token) => Verdict::Failed(format!(
            "the host that was asked for it has handed the service over, and {holder} has an ordinary lease: pause it again"
        )),
        (None, _) if service.state == "stopping" => {
            Verdict::Failed("its holder stops it, and has no lease to be kept: pause it again when it runs".to_owned())
        }
        (None, holder) => Verdict::Going(format!("{holder} asks the store for the long lease")),
    }
}

/// Whether somebody runs the service, as far as that can be known.
fn is_served(service: &ServiceView, incomplete: &str) -> bool {
    match service.state.as_str() {
        "running" | "paused" => true,
        "held" => !incomplete.is_empty(),
        _ => false,
    }
}

/// The services that `node` runs, or stops. A host that says itself that it does not run what the lock's record names it for has to
/// stop nothing more.
fn held_by(view: &View, node: &str) -> Vec<String> {
    let has_stopped = |service: &ServiceView| {
        let own = service.here.as_ref().filter(|_| service.node == node);
        own.is_some_and(|here| !eligibility::is_held_in(&here.state))
    };
    let held = view.services.iter().filter(|service| service.holder == node && !has_stopped(service));
    held.map(|service| service.service.clone()).collect()
}

/// Those of `had` that nobody runs although nobody keeps them stopped.
fn open_of<'a>(view: &'a View, had: &'a [String]) -> impl Iterator<Item = &'a ServiceView> {
    let services = had.iter().filter_map(|name| find(view, name));
    services.filter(|service| !is_served(service, &view.incomplete) && service.stopped.is_none())
}

/// A service that is to be taken over, and how long that takes where the host that has its lock has told.
fn awaited(service: &ServiceView) -> String {
    match (service.state.as_str(), left(service)) {
        ("starting", left) if !left.is_empty() => {
            format!("{} ({} has the lock and starts it{left})", service.service, service.holder)
        }
        _ => service.service.clone(),
    }
}

fn is_drained(view: &View, node: &str) -> bool {
    let host = view.hosts.iter().find(|host| host.node == node);
    host.is_some_and(|host| host.presence == Presence::Drained || host.status.report.drained.is_some())
}

fn drained(view: &View, node: &str, had: &[String]) -> Verdict {
    let held = held_by(view, node);
    if !held.is_empty() {
        return Verdict::Going(format!("it still has {}", super::view::enumerated(&held, 4)));
    }
    if !is_drained(view, node) {
        return Verdict::Going("it has not noted it yet".to_owned());
    }
    // Without an answer of the store nobody is known to be eligible, and that says nothing of the time after it.
    let may_go = |service: &ServiceView| {
        service.is_storeless || service.hosts.iter().any(|candidate| candidate.eligible && candidate.host != node)
    };
    let (waiting, left): (Vec<&ServiceView>, Vec<&ServiceView>) =
        open_of(view, had).partition(|service| may_go(service));
    if !waiting.is_empty() {
        let names: Vec<String> = waiting.iter().map(|service| awaited(service)).collect();
        let names = super::view::enumerated(&names, 4);
        return Verdict::Going(match view.store.trouble_in_short() {
            Some(trouble) => format!("it runs nothing any more; no host can take over {names} meanwhile: {trouble}"),
            None => format!(
                "it runs nothing any more; {names} {} being taken over",
                if waiting.len() == 1 { "is" } else { "are" }
            ),
        });
    }
    let has_it = |service: &ServiceView| match service.state.as_str() {
        "running" | "paused" => format!("{} on {}", service.service, service.holder),
        _ => format!("{} ({} has the lock)", service.service, service.holder),
    };
    let taken: Vec<String> = had
        .iter()
        .filter_map(|name| find(view, name))
        .filter(|service| !service.holder.is_empty())
        .map(has_it)
        .collect();
    let word = view.hosts.iter().find(|host| host.node == node).and_then(|host| host.status.report.drained.clone());
    let end = word.unwrap_or_default().end_of_drain();
    let mut text = format!("it runs nothing and takes nothing; {end} there ends this");
    if !taken.is_empty() {
        text = format!("{text}; what it ran is elsewhere now: {}", super::view::enumerated(&taken, 8));
    }
    if left.is_empty() {
        return Verdict::Done(text);
    }
    let names: Vec<String> = left.iter().map(|service| service.service.clone()).collect();
    Verdict::Stuck(format!("nobody runs {}, because no other host may; {text}", super::view::enumerated(&names, 8)))
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
        told.service("db").since = Some(NOW - 2);
        assert_eq!(to(None).judge(&told.view()), Verdict::Going("h1 stops it".to_owned()));
        // It hangs.
        told.report("h1", "db").waits = "have process 7 (sh) leave".to_owned();
        assert!(matches!(to(None).judge(&told.view()), Verdict::Going(text) if text.contains("process 7")));
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
        let goal = Goal::Stopped { service: "db".to_owned(), token: 1_794_992_500 };
        assert!(matches!(goal.judge(&told.view()), Verdict::Going(_)));
        told.service("db").stopped = Some(word("schema", Some(NOW + 60)));
        assert_eq!(goal.judge(&told.view()), Verdict::Going("h1 stops it".to_owned()));
        held_by(&mut told, "", "standby");
        assert!(matches!(goal.judge(&told.view()), Verdict::Done(text) if text.contains("putexctl start db")));
        assert_eq!((goal.has_word(&told.view()), goal.unseen(&told.view())), (Some(true), None));
        let started = |before| Goal::Started { service: "db".to_owned(), before };
        assert!(matches!(started(None).judge(&told.view()), Verdict::Going(_)));
        assert!(matches!(started(Some(word("schema", Some(NOW + 60)))).judge(&told.view()), Verdict::Going(_)));
        let overridden = started(Some(word("before", None))).judge(&told.view());
        assert!(
            matches!(&overridden, Verdict::Failed(text) if text.contains("stopped again by root@h2")),
            "{overridden:?}"
        );
        // Somebody has started it again before it had stopped.
        told.service("db").stopped = None;
        held_by(&mut told, "h2", "active");
        told.service("db").token += 1;
        told.report("h2", "db").token = told.service("db").token;
        let overridden = goal.judge(&told.view());
        assert!(
            matches!(&overridden, Verdict::Failed(text) if text.contains("h2 has started it again")),
            "{overridden:?}"
        );
    }

    #[test]
    fn a_pause_fails_where_the_service_is_handed_over_and_its_end_where_it_is_paused_anew() {
        let mut told = small();
        let goal = Goal::Paused { service: "db".to_owned(), from: "h1".to_owned(), token: 1_794_992_500, before: None };
        assert!(matches!(goal.judge(&told.view()), Verdict::Going(text) if text.contains("asks the store")));
        held_by(&mut told, "h1", "releasing");
        assert!(matches!(goal.judge(&told.view()), Verdict::Failed(text) if text.contains("when it runs")));
        held_by(&mut told, "h2", "active");
        assert!(matches!(goal.judge(&told.view()), Verdict::Failed(text) if text.contains("h2 has an ordinary lease")));
        told.service("db").paused = Some(word("disks", None));
        assert!(matches!(goal.judge(&told.view()), Verdict::Done(_)));
        let resumed = |before| Goal::Resumed { service: "db".to_owned(), before }.judge(&told.view());
        assert!(matches!(resumed(Some(word("disks", None))), Verdict::Going(_)));
        assert!(matches!(resumed(Some(word("fans", None))), Verdict::Failed(text) if text.contains("paused again")));
    }

    #[test]
    fn without_the_store_no_pause_is_begun_or_ended() {
        let mut told = small();
        told.service("db").paused = Some(word("disks", None));
        let goal = Goal::Resumed { service: "db".to_owned(), before: Some(word("disks", None)) };
        assert_eq!(goal.unseen(&told.view()), None);
        told.store.silent_ms = 7000;
        assert!(matches!(goal.judge(&told.view()), Verdict::Going(_)));
        let unseen = goal.unseen(&told.view());
        assert!(
            matches!(&unseen, Some(Verdict::Unseen(text)) if text.contains("the store has not taken it yet")),
            "{unseen:?}"
        );
        // Another end of a pause is there when the word is another one.
        let before = Some(word("disks", None));
        let goal = Goal::Paused { service: "db".to_owned(), from: "h1".to_owned(), token: 1_794_992_500, before };
        assert!(matches!(goal.judge(&told.view()), Verdict::Going(text) if text.contains("the other end")));
        told.service("db").paused = Some(word("fans", None));
        assert!(matches!(goal.judge(&told.view()), Verdict::Done(_)));
    }

    #[test]
    fn without_the_store_it_is_waited_for_what_this_host_does_and_not_longer() {
        let mut told = small();
        told.store.silent_ms = 7000;
        let goal = Goal::Stopped { service: "db".to_owned(), token: 1_794_992_500 };
        assert_eq!(goal.unseen(&told.view()), None);
        told.service("db").state = "no-store".to_owned();
        assert!(
            matches!(goal.unseen(&told.view()), Some(Verdict::Unseen(text)) if text.contains("store lost 7.0s ago"))
        );
        assert_eq!(Goal::Undrained("h1".to_owned()).unseen(&told.view()), None);
    }

    #[test]
    fn what_a_host_does_whose_reports_cannot_be_read_is_not_known() {
        let mut told = small();
        held_by(&mut told, "h2", "");
        told.service("db").token += 1;
        told.cluster.hosts.retain(|host| host.report.node != "h2");
        let goals = [to(None), to(Some("h2")), Goal::Started { service: "db".to_owned(), before: None }];
        for goal in &goals {
            let going = goal.judge(&told.view());
            assert!(matches!(&going, Verdict::Going(text) if text.contains("has not reported yet")), "{going:?}");
        }
        told.cluster.trouble = "no rights".to_owned();
        for goal in &goals {
            let unseen = goal.judge(&told.view());
            let expected =
                "run \"putexctl status db\" on h2, which has the lock: whether it runs it already is not known";
            assert!(matches!(&unseen, Verdict::Unseen(text) if text.starts_with(expected)), "{unseen:?}");
        }
        let other = to(Some("h3")).judge(&told.view());
        assert!(
            matches!(&other, Verdict::Failed(text) if text.starts_with("h2 has the lock, and not h3")),
            "{other:?}"
        );
    }

    #[test]
    fn a_drain_is_done_when_all_that_can_go_has_gone() {
        let mut told = small();
        let goal = Goal::Drained { node: "h1".to_owned(), had: vec!["db".to_owned()] };
        told.host("h1").report.drained = Some(word("", None));
        assert!(matches!(goal.judge(&told.view()), Verdict::Going(text) if text.contains("still has db")));
        assert_eq!(goal.awaited(&told.view()), Vec::<String>::new());
        held_by(&mut told, "", "standby");
        assert!(matches!(goal.judge(&told.view()), Verdict::Going(text) if text.contains("db is being taken over")));
        assert_eq!(goal.awaited(&told.view()), ["db"]);
        // It waits for long there, as the host that has the lock has told.
        held_by(&mut told, "h3", "confirming");
        let report = told.report("h3", "db");
        (report.starts, report.waits) = (NOW + 590, "waits for the former holder h1".to_owned());
        let waits = goal.judge(&told.view());
        let expected = "db (h3 has the lock and starts it in 9min 50s: waits for the former holder h1)";
        assert!(matches!(&waits, Verdict::Going(text) if text.contains(expected)), "{waits:?}");
        let report = told.report("h3", "db");
        (report.starts, report.waits) = (0, String::new());
        held_by(&mut told, "h3", "active");
        assert!(matches!(goal.judge(&told.view()), Verdict::Done(text) if text.contains("db on h3")));
        // Its lease has ended without the store, whose record names it still.
        held_by(&mut told, "h1", "no-store");
        told.store.silent_ms = 7000;
        assert!(matches!(goal.judge(&told.view()), Verdict::Going(text) if !text.contains("still has")));
        let unseen = goal.unseen(&told.view());
        assert!(
            matches!(&unseen, Some(Verdict::Unseen(text)) if text.contains("drained, and runs nothing of what it had")),
            "{unseen:?}"
        );
        told.store.silent_ms = 0;
        // Nobody runs it, and nobody may: that is no success.
        held_by(&mut told, "", "standby");
        for host in ["h2", "h3"] {
            told.host(host).report.drained = Some(word("", None));
        }
        let left = goal.judge(&told.view());
        assert!(matches!(&left, Verdict::Stuck(text) if text.starts_with("nobody runs db")), "{left:?}");
    }
}
