//! Requests of operators to another host. They are in the store under a key of that host: whoever asks adds his request, that
//! host takes it out, carries it out once, and leaves there what came of it.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::{Cluster, Part, REPORT, Site};
use crate::cluster::request::{Mailbox, OPEN_LIMIT, Outcome, RESULTS_LIMIT, Request, Unmet, Verb};
use crate::cluster::wire;
use crate::daemon::hints::hint;
use crate::daemon::notes::{Trouble, update};
use crate::daemon::service::Answer;
use crate::types::{Key, NodeId, Value, shortened};

/// Time between two looks at this host's own requests, unless the store hints at one.
const LOOK: Duration = Duration::from_secs(5);
/// A request that is older is not carried out: its client has gone. So is one from the future, by so much.
const OLD: u64 = 60;
/// How long a client waits for another host.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time between two looks for the result of a request.
const RESULT: Duration = Duration::from_millis(500);
/// How long this host may take to answer.
const ANSWERED: Duration = Duration::from_secs(8);
/// How many requests are remembered, so that none is carried out twice.
const REMEMBERED: usize = 256;
/// The most characters of a reason, which goes into the record.
const REASON_LIMIT: usize = 256;
/// The most characters of an answer.
const TEXT_LIMIT: usize = 512;

/// A request from another host, for the supervisor to carry out.
pub(in crate::daemon) struct Errand {
    pub(in crate::daemon) verb: Verb,
    pub(in crate::daemon) by: String,
    pub(in crate::daemon) answer: Answer,
    /// Whether what speaks against it may be over in a moment, so that it is tried again.
    pub(in crate::daemon) is_patient: bool,
    /// Whether it was decided that this host carries it out.
    pub(in crate::daemon) is_placed: bool,
    /// Whether it was looked whether the mounts of the service are in use by others.
    pub(in crate::daemon) is_looked_at: bool,
}

fn opened(value: Option<&Value>) -> Mailbox {
    value.and_then(wire::decode).unwrap_or_default()
}

/// The value for a mailbox, with the oldest results left out where there is no room for all.
fn closed(mut mailbox: Mailbox) -> Value {
    let surplus = mailbox.results.len().saturating_sub(RESULTS_LIMIT);
    mailbox.results.drain(..surplus);
    wire::encode(&mailbox)
}

fn key_of(site: &Site, node: &NodeId) -> Key {
    Key::of_requests(site.cluster.as_ref(), node)
}

/// Hands `verb` to `node`, and waits for what comes of it. What is not answered in time is withdrawn, and only what is withdrawn
/// for certain is told as refused.
pub(super) async fn hand_over(site: &Site, node: &NodeId, verb: Verb, by: String) -> Result<String, Unmet> {
    let key = key_of(site, node);
    let at = site.clock.wall().as_secs();
    let request = Request { id: format!("{:032x}", site.clock.random()), by, at, verb };
    leave(site, node, &key, &request).await?;
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        sleep(RESULT).await;
        let Ok(snapshot) = site.notes.read(&key, None).await else { continue };
        let mailbox = opened(snapshot.entry.as_ref().and_then(|entry| entry.value.as_ref()));
        if let Some(outcome) = outcome_of(mailbox, &request.id).filter(|outcome| outcome.is_done) {
            return told(&outcome);
        }
    }
    let mut last = None;
    let withdrawn = update(&*site.notes, &*site.clock, &key, |value| {
        let mut mailbox = opened(value);
        let was_open = mailbox.open.iter().any(|open| id_of(open) == request.id);
        mailbox.open.retain(|open| id_of(open) != request.id);
        last = outcome_of(mailbox.clone(), &request.id);
        was_open.then(|| closed(mailbox))
    });
    let waited = PATIENCE.as_secs();
    match (withdrawn.await, last) {
        (Ok(()), None) => Err(Unmet::Unheard(format!(
            "say it on {node}: {node} has not answered within {waited} s, and the request is withdrawn"
        ))),
        (Ok(()), Some(outcome)) if outcome.is_done => told(&outcome),
        (Ok(()), Some(_)) => Err(Unmet::Open(format!("{node} has begun with it, and has not said what came of it"))),
        (Err(_), _) => Err(Unmet::Open(format!(
            "{node} has not answered within {waited} s, and the store does not take the request back: {node} may still do it within \
             {OLD} s"
        ))),
    }
}

/// Leaves a request in the store.
async fn leave(site: &Site, node: &NodeId, key: &Key, request: &Request) -> Result<(), Unmet> {
    let encoded = serde_json::to_value(request).map_err(|error| error.to_string())?;
    let (mut is_full, mut is_tried) = (false, false);
    let added = update(&*site.notes, &*site.clock, key, |value| {
        let mut mailbox = opened(value);
        let is_there = mailbox.open.iter().any(|open| id_of(open) == request.id)
            || mailbox.results.iter().any(|outcome| outcome.id == request.id);
        if is_there {
            return None;
        }
        mailbox.open.retain(|open| at_of(open).abs_diff(request.at) <= OLD);
        is_full = mailbox.open.len() >= OPEN_LIMIT;
        if is_full {
            return None;
        }
        is_tried = true;
        mailbox.open.push(encoded.clone());
        Some(closed(mailbox))
    });
    match added.await {
        Ok(()) if is_full => {
            Err(Unmet::Refused(format!("say it on {node}: {OPEN_LIMIT} requests wait for it already")))
        }
        Ok(()) => Ok(()),
        Err(Trouble::Away(error)) if is_tried => Err(Unmet::Open(format!(
            "the store has not said whether it has the request for {node}, which may do it within {OLD} s: {error}"
        ))),
        Err(Trouble::Away(error) | Trouble::Refused(error) | Trouble::Unfit(error)) => {
            Err(Unmet::Refused(format!("say it on {node}: the request cannot be left for it: {error}")))
        }
    }
}

fn outcome_of(mailbox: Mailbox, id: &str) -> Option<Outcome> {
    mailbox.results.into_iter().find(|outcome| outcome.id == id)
}

/// What another host has said.
fn told(outcome: &Outcome) -> Result<String, Unmet> {
    let text = shortened(&outcome.text, TEXT_LIMIT);
    match (outcome.is_ok, outcome.is_open) {
        (true, _) if outcome.is_needless => Err(Unmet::Needless(text)),
        (true, _) => Ok(text),
        (false, true) => Err(Unmet::Open(text)),
        (false, false) => Err(Unmet::Refused(text)),
    }
}

fn id_of(open: &serde_json::Value) -> &str {
    open.get("id").and_then(serde_json::Value::as_str).unwrap_or_default()
}

fn at_of(open: &serde_json::Value) -> u64 {
    open.get("at").and_then(serde_json::Value::as_u64).unwrap_or_default()
}

/// Carries out what other hosts ask of this one.
pub(super) struct Porter {
    cluster: Cluster,
    errands: mpsc::Sender<Errand>,
    /// The ids of the requests that were taken last.
    taken: VecDeque<String>,
}

impl Porter {
    pub(super) fn new(cluster: Cluster, errands: mpsc::Sender<Errand>) -> Self {
        Self { cluster, errands, taken: VecDeque::new() }
    }

    pub(super) async fn run(mut self) {
        let site = self.cluster.0.site.clone();
        let key = key_of(&site, &site.node);
        let bells = [site.hints.of(&key)];
        loop {
            let result = self.look(&site, &key).await;
            let pause = if result.as_ref().is_err_and(Trouble::is_refusal) { REPORT } else { LOOK };
            self.cluster.note(Part::Requests, result);
            if pause == LOOK {
                // A hint or the end of the time, either is a reason to look.
                let _ = timeout(pause, hint(&bells)).await;
            } else {
                sleep(pause).await;
            }
        }
    }

    async fn look(&mut self, site: &Site, key: &Key) -> Result<(), Trouble> {
        let snapshot = site.notes.read(key, None).await?;
        let value = snapshot.entry.as_ref().and_then(|entry| entry.value.as_ref());
        if opened(value).open.is_empty() {
            return Ok(());
        }
        // They are taken out before any is carried out, so that a putexd that dies in between repeats none.
        let mut open = Vec::new();
        update(&*site.notes, &*site.clock, key, |value| {
            let mut mailbox = opened(value);
            let found = std::mem::take(&mut mailbox.open);
            if found.is_empty() {
                // They may have been taken out by the last attempt, of which nothing was heard.
                let is_taken = |id: &str| mailbox.results.iter().any(|outcome| outcome.id == id && !outcome.is_done);
                open.retain(|request| is_taken(id_of(request)));
                return None;
            }
            open = found;
            open.truncate(OPEN_LIMIT);
            for request in open.iter().filter(|request| is_id(id_of(request))) {
                mailbox.results.retain(|outcome| outcome.id != id_of(request));
                mailbox.results.push(Outcome { id: id_of(request).to_owned(), ..Outcome::default() });
            }
            Some(closed(mailbox))
        })
        .await?;
        let mut outcomes = Vec::new();
        for request in open {
            let id = id_of(&request).to_owned();
            if !is_id(&id) || self.taken.contains(&id) {
                continue;
            }
            self.taken.push_back(id.clone());
            if self.taken.len() > REMEMBERED {
                self.taken.pop_front();
            }
            let result = self.carry_out(site, request).await;
            let (is_open, is_needless) =
                (matches!(result, Err(Unmet::Open(_))), matches!(result, Err(Unmet::Needless(_))));
            let is_ok = result.is_ok() || is_needless;
            let text = match result {
                Ok(text)
                | Err(Unmet::Refused(text) | Unmet::Unheard(text) | Unmet::Open(text) | Unmet::Needless(text)) => {
                    shortened(&text, TEXT_LIMIT)
                }
            };
            outcomes.push(Outcome { id, is_done: true, is_ok, is_open, is_needless, text });
        }
        update(&*site.notes, &*site.clock, key, |value| {
            let mut mailbox = opened(value);
            let is_there = |outcome: &Outcome| mailbox.results.contains(outcome);
            if outcomes.iter().all(is_there) {
                return None;
            }
            mailbox.results.retain(|old| outcomes.iter().all(|outcome| outcome.id != old.id));
            mailbox.results.extend(outcomes.iter().cloned());
            Some(closed(mailbox))
        })
        .await
    }

    async fn carry_out(&self, site: &Site, request: serde_json::Value) -> Result<String, Unmet> {
        let now = site.clock.wall().as_secs();
        let age = at_of(&request).abs_diff(now);
        if age > OLD {
            return Err(Unmet::Refused(format!(
                "compare the clocks of the hosts, or say it again: the request is {age} s away from this host's clock, and \
                 at most {OLD} s are accepted"
            )));
        }
        let Ok(Request { by, mut verb, .. }) = serde_json::from_value(request) else {
            return Err("say it on that host: its putexd does not know what is asked for".to_owned().into());
        };
        verb.check(now)?;
        match &mut verb {
            Verb::StepDown { reason, .. } | Verb::Stop { reason, .. } | Verb::Pause { reason, .. } => {
                *reason = shortened(reason, REASON_LIMIT);
            }
            Verb::Start { .. } | Verb::Resume { .. } => {}
            Verb::Adopt { .. } | Verb::Drain { .. } | Verb::Undrain | Verb::ConfirmDead { .. } => {
                return Err("say it on that host itself: it is not done for another one".to_owned().into());
            }
        }
        let (answer, result) = oneshot::channel();
        let by = shortened(&by, 128);
        let errand = Errand { verb, by, answer, is_patient: true, is_placed: true, is_looked_at: false };
        let refused = |_| "say it again: its putexd has too much to do".to_owned();
        self.errands.try_send(errand).map_err(refused)?;
        let late = || Err(Unmet::Open("its putexd has not said in time whether it has begun with it".to_owned()));
        timeout(ANSWERED, result).await.ok().and_then(Result::ok).unwrap_or_else(late)
    }
}

/// Whether it is an id as [`hand_over`] makes it.
fn is_id(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}
