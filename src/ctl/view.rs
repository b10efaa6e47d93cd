//! The cluster as one picture, as the screens show it and `--json` prints it: its types, and words for them. `compose.rs` puts it
//! together.

use std::cmp::Reverse;

use serde::Serialize;

use super::found::Found;
pub(super) use super::found::{Rank, Severity};
use crate::dbus::{HostStatus, ServiceReport, ServiceStatus, StoreStatus, Word};
use crate::types::span::date;

/// How many services a finding names one by one.
pub(super) const NAMED: usize = 4;

/// The cluster, as `putexctl status --json` prints it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct View {
    /// The host that was asked.
    pub(super) node: String,
    /// What is wrong, or what an operator has asked for: the worst first.
    pub(super) findings: Vec<Finding>,
    /// All hosts, by name.
    pub(super) hosts: Vec<HostView>,
    /// All services, by name.
    pub(super) services: Vec<ServiceView>,
    /// The store, as this host sees it.
    pub(super) store: StoreStatus,
    /// Why this is not all that there is; empty = nothing is known to be missing.
    pub(super) incomplete: String,
}

/// What a host is for the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Presence {
    /// It reports.
    Up,
    /// It reports, and takes nothing because an operator has drained it.
    Drained,
    /// It has not reported for a while.
    Silent,
    /// Another host has taken a lock from it because it fell silent, and it has not reported since.
    Lost,
    /// Its machine reports under another name by now.
    Renamed,
    /// This host has not listened for long enough to know.
    Unknown,
}

impl Presence {
    /// Whether nothing is heard of the host, so that what it has reported is not so any more.
    pub(super) fn is_gone(self) -> bool {
        matches!(self, Self::Silent | Self::Lost | Self::Renamed)
    }
}

/// One host.
#[derive(Debug, Clone, Serialize)]
pub(super) struct HostView {
    /// Its name, which its report has as well.
    #[serde(skip)]
    pub(super) node: String,
    /// Whether it is the host that was asked.
    pub(super) here: bool,
    /// What it is for the cluster.
    pub(super) presence: Presence,
    /// The name under which its machine reports by now.
    #[serde(skip)]
    pub(super) renamed_to: Option<String>,
    /// How many services it runs.
    pub(super) runs: usize,
    /// What it has reported, and how long ago.
    #[serde(flatten)]
    pub(super) status: HostStatus,
}

/// A host, as far as one service is concerned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Candidate {
    /// Its name.
    pub(super) host: String,
    /// The state of the service there; empty = it has no such service, or nothing is known.
    pub(super) state: String,
    /// Whether it would take the lock if it were free.
    pub(super) eligible: bool,
    /// Why it would not; empty = it would, or it holds the lock.
    pub(super) reason: String,
    /// For how long it waits for a holder that falls silent, if it remembers a longer lease than usual, in milliseconds; 0 = as usual.
    #[serde(skip)]
    pub(super) remembered_ms: u64,
    /// The host whose settings differ from its own although they must agree; empty = none is known.
    #[serde(skip)]
    pub(super) differs_from: String,
}

/// One service, cluster-wide.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ServiceView {
    /// Its name.
    pub(super) service: String,
    /// The state of it in the cluster, in one word: see [`state_of`].
    pub(super) state: String,
    /// The host that holds the lock; empty = nobody, or not known.
    pub(super) holder: String,
    /// Since when, in seconds since 1970.
    pub(super) since: Option<u64>,
    /// How long the holder's lease still lasts if it does not renew, in milliseconds, as far as this host knows.
    pub(super) lease_left_ms: Option<u64>,
    /// In how many milliseconds the holder, which has the lock, may start the unit, as it has told; null = it does not wait for
    /// that, or has not told.
    pub(super) starts_ms: Option<u64>,
    /// Why it may not start it before; empty = it does not wait for that, or has not told.
    pub(super) starts_why: String,
    /// The fencing token of the holder; 0 = not known.
    pub(super) token: u64,
    /// The unit.
    pub(super) unit: String,
    /// Whether nobody has to look at it.
    pub(super) well: bool,
    /// The operator's word that keeps it stopped.
    pub(super) stopped: Option<Word>,
    /// The operator's word for a long lease.
    pub(super) paused: Option<Word>,
    /// All hosts that have it, or could.
    pub(super) hosts: Vec<Candidate>,
    /// What this host tells of it; `None`: this host does not have it.
    pub(super) here: Option<ServiceStatus>,
    /// The host that was asked.
    #[serde(skip)]
    pub(super) node: String,
    /// Whether the store gives that host no answer.
    #[serde(skip)]
    pub(super) is_storeless: bool,
    /// Whether what the holder has reported is of before the store was away, so that nobody knows yet what its unit does.
    #[serde(skip)]
    pub(super) is_stale: bool,
    /// How old that report is, in milliseconds, where that is known.
    #[serde(skip)]
    pub(super) last_told_ms: Option<u64>,
    /// The findings that concern this service.
    #[serde(skip)]
    pub(super) findings: Vec<Found>,
}

impl ServiceView {
    /// How bad it is, for the order in which services are shown.
    pub(super) fn rank(&self) -> (bool, Rank) {
        (self.well, self.findings.iter().map(|found| found.rank).min().unwrap_or(Rank::Past))
    }

    /// The hosts that do not hold the lock.
    pub(super) fn others(&self) -> impl Iterator<Item = &Candidate> {
        self.hosts.iter().filter(|candidate| candidate.host != self.holder)
    }

    /// How many of the other hosts would take it, of how many, and why not the rest; empty where nothing is known of others.
    pub(super) fn others_in_words(&self) -> String {
        let all = self.others().count();
        let eligible = self.others().filter(|candidate| candidate.eligible).count();
        if all == 0 {
            return "none is known".to_owned();
        }
        if self.paused.is_some() && !self.holder.is_empty() {
            return format!("none before the pause ends; {eligible} of {all} then");
        }
        if eligible == all {
            return format!("{eligible} of {all} eligible");
        }
        let reasons: Vec<String> = self
            .others()
            .filter(|candidate| !candidate.eligible)
            .map(|candidate| format!("{} {}", candidate.host, cut_at_a_part(&candidate.reason, 80)))
            .collect();
        format!("{eligible} of {all}; {}", reasons.join("; "))
    }
}

/// Something that somebody has to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// How bad it is.
    pub(super) severity: Severity,
    /// The services that it concerns; empty = a host, or the store.
    pub(super) services: Vec<String>,
    /// What it is; with `services` it goes on where they are named.
    pub(super) text: String,
    /// What follows from it.
    #[serde(skip)]
    pub(super) rank: Rank,
}

impl Finding {
    /// The whole sentence.
    pub(super) fn in_words(&self) -> String {
        match &self.services[..] {
            [] => self.text.clone(),
            services if services.len() > NAMED => {
                format!("{} services ({}): {}", services.len(), enumerated(services, NAMED), self.text)
            }
            services => format!("{}: {}", enumerated(services, NAMED), self.text),
        }
    }

    pub(super) fn of_no_service(severity: Severity, rank: Rank, text: String) -> Self {
        Self { severity, services: Vec::new(), text, rank }
    }

    /// The worst first; of what is equally bad, what concerns more services.
    pub(super) fn order(&self) -> (Severity, Rank, Reverse<usize>) {
        (self.severity, self.rank, Reverse(self.services.len()))
    }
}

/// The text, or as much of its beginning as fits into `limit` characters, up to the end of a part of the sentence if it has one.
pub(super) fn cut_at_a_part(text: &str, limit: usize) -> String {
    let Some((end, _)) = text.char_indices().nth(limit) else { return text.to_owned() };
    match text[..end].rfind([';', ',', ':', '(']).filter(|part| *part > 0) {
        Some(part) => format!("{} …", text[..part].trim_end()),
        None => format!("{} …", text[..end].rsplit_once(' ').map_or(&text[..end], |(whole, _)| whole)),
    }
}

/// `a`, `a and b`, `a, b and 5 more`.
pub(super) fn enumerated(names: &[String], limit: usize) -> String {
    let shown = if names.len() > limit { limit.saturating_sub(1).max(1) } else { names.len() };
    let head = names[..shown].join(", ");
    match (names.len() - shown, shown) {
        (0, 0 | 1) => head,
        (0, _) => format!("{} and {}", names[..shown - 1].join(", "), names[shown - 1]),
        (more, _) => format!("{head} and {more} more"),
    }
}

/// What is told of a service on one host: by itself, or in its report.
pub(super) fn report_of<'a>(host: &'a HostView, service: &str) -> Option<&'a ServiceReport> {
    host.status.services.iter().find(|report| report.service == service)
}

/// An empty state in a report is the ordinary one.
pub(super) fn state_in(report: &ServiceReport) -> &str {
    if report.state.is_empty() { "standby" } else { &report.state }
}

/// What a holder in this state does, in the cluster's words; `None`: nothing that concerns the unit.
pub(super) fn activity_in(state: &str) -> Option<&'static str> {
    match state {
        "confirming" | "fencing" | "starting" => Some("starting"),
        "active" => Some("running"),
        "releasing" | "lapsing" => Some("stopping"),
        _ => None,
    }
}

/// Who has asked, when, until when and why, with `{0}` and `{1}` in place of the times, and the times in seconds since 1970.
pub(super) fn asked_in_words(word: &Word) -> (String, Vec<u64>) {
    let by = if word.by.is_empty() { "somebody" } else { &word.by };
    let reason = if word.reason.is_empty() { String::new() } else { format!(" ({})", word.reason) };
    let until = word.until.map_or("", |_| " until {1}");
    (format!("by {by} since {{0}}{until}{reason}"), [word.at].into_iter().chain(word.until).collect())
}

/// Who has asked, when, until when and why.
pub(super) fn in_words(word: &Word) -> String {
    let (words, times) = asked_in_words(word);
    let fill = |words: String, (place, time): (usize, &u64)| words.replacen(&format!("{{{place}}}"), &date(*time), 1);
    times.iter().enumerate().fold(words, fill)
}
