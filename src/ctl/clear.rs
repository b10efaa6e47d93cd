//! `putexctl clear`: a lock whose holder is gone for good, or that a disaster left unreadable.
//!
//! It leaves an empty value without a proof, or a lock of another incarnation. Contenders take either for the record of
//! an unknown holder and wait their whole time before they start (K5), so that even a wrong use does not let two units
//! run at once.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::output::print_json;
use super::{Failure, print};
use crate::command_line::exit;
use crate::election::Record;
use crate::host::identity;
use crate::store::{Administer, Attempt, Entry, Snapshot, WriteOutcome};
use crate::types::{Key, Value, WriteId};

/// The interval at which the lock is looked at.
const INTERVAL: Duration = Duration::from_millis(250);

/// Clears the lock, if nobody renews it. `subject` is what the operator called it, `lease` how long its holder is watched
/// where its record does not say.
pub(super) async fn clear(
    store: &dyn Administer,
    key: &Key,
    subject: &Subject,
    lease: Duration,
    json: bool,
) -> Result<(), Failure> {
    let say = |text: String| if json { Ok(()) } else { print(&text) };
    if let Some(what) = store.mend(key).await.map_err(|error| Failure::unavailable(error.to_string()))? {
        say(format!("{what}\n"))?;
        say(format!("{subject}: cleared; contenders wait their whole time before they start\n"))?;
        return told(json, &Told { key, cleared: true, holder: "", token: 0, revision: 0, text: &what });
    }
    let found = read(store, key).await?;
    let Some(Entry { revision, value }) = &found.entry else {
        return Err(Failure::new(exit::REFUSED, format!("{subject}: there is no lock {key} in the store")));
    };
    let record = Record::decode(value.as_ref().unwrap_or(&Value::default()));
    if !record.is_held() {
        let text = "nobody holds it; nothing is to be cleared";
        say(format!("{subject}: {text}\n"))?;
        return told(json, &Told { key, cleared: false, holder: "", token: 0, revision: revision.0, text });
    }
    let holder = record.holder.as_str();
    let (lease, details) = match &record.details {
        Some(details) => {
            let words =
                format!(", machine {}, fencing token {}, lease {:?}", details.machine, details.token, details.lease);
            (details.lease, words)
        }
        None => match &record.oddity {
            Some(oddity) => (lease, format!(", which is not believed: {}", oddity.what)),
            None => (lease, ", not written by putexd".to_owned()),
        },
    };
    say(format!("{subject}: held by {holder}, revision {revision}{details}\n"))?;
    say(format!("watching for {lease:?} whether {holder} still renews it\n"))?;
    watch(store, key, subject, holder, &found, lease, &say).await?;
    let attempt = Attempt {
        base: *revision,
        incarnation: found.incarnation.clone(),
        write: WriteId(identity::random()),
        value: Value::default(),
    };
    match store.compare_and_set(key, &attempt).await {
        WriteOutcome::Won(_) => {
            let text = format!("cleared, it was {holder}'s; contenders wait their whole time before they start");
            say(format!("{subject}: {text}\n"))?;
            let token = record.details.as_ref().map_or(0, |details| details.token.0);
            told(json, &Told { key, cleared: true, holder, token, revision: revision.0, text: &text })
        }
        WriteOutcome::Conflict => Err(changed(subject, holder, &read(store, key).await?)),
        WriteOutcome::Unknown(why) => {
            let text = format!("{subject}: whether it was cleared is not known: {why}; run it again to find out");
            Err(Failure::unavailable(text))
        }
    }
}

/// What has come of it, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Told<'a> {
    /// The key of the lock.
    key: &'a Key,
    /// Whether it was cleared; otherwise there was nothing to clear.
    cleared: bool,
    /// The former holder; empty = nobody, or it cannot be read.
    holder: &'a str,
    /// Its fencing token; 0 = not known.
    token: u64,
    /// The revision that was cleared; 0 = not known.
    revision: u64,
    /// The same in words.
    text: &'a str,
}

fn told(json: bool, told: &Told<'_>) -> Result<(), Failure> {
    if json { print_json(told) } else { Ok(()) }
}

/// What the operator asked for.
#[derive(Debug)]
pub(super) enum Subject {
    /// A service of this host.
    Service(crate::types::ServiceName),
    /// A lock by its key.
    Key(Key),
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Service(service) => service.fmt(f),
            Self::Key(key) => key.fmt(f),
        }
    }
}

/// Watches the lock for `lease`, in which a holder that lives must renew. Fails if the lock changes.
async fn watch(
    store: &dyn Administer,
    key: &Key,
    subject: &Subject,
    holder: &str,
    found: &Snapshot,
    lease: Duration,
    say: &impl Fn(String) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let begin = Instant::now();
    let mut told = 0;
    loop {
        let left = lease.saturating_sub(begin.elapsed());
        tokio::time::sleep(left.min(INTERVAL)).await;
        let now = read(store, key).await?;
        if now != *found {
            return Err(changed(subject, holder, &now));
        }
        if left.is_zero() {
            return Ok(());
        }
        let seconds = begin.elapsed().as_secs();
        if seconds > told {
            told = seconds;
            say(format!("  unchanged for {seconds} s\n"))?;
        }
    }
}

async fn read(store: &dyn Administer, key: &Key) -> Result<Snapshot, Failure> {
    store.read(key, None).await.map_err(|error| Failure::unavailable(error.to_string()))
}

/// The lock is not stale: its holder, who was `before`, has renewed it, or it has another one `now`.
fn changed(subject: &Subject, before: &str, now: &Snapshot) -> Failure {
    let value = now.entry.as_ref().and_then(|entry| entry.value.as_ref());
    let record = value.map(Record::decode).filter(Record::is_held);
    let text = match record.as_ref().map(|record| record.holder.as_str()) {
        Some(holder) => {
            let what = if holder == before { "renews it" } else { "has taken it meanwhile" };
            let service = if let Subject::Service(service) = subject { format!(" {service}") } else { String::new() };
            format!(
                "{subject}: {holder} {what}, so it is not stale; to have it released, run \"putexctl step-down{service}\" there"
            )
        }
        None => format!("{subject}: it has changed meanwhile, and nobody holds it now; nothing is to be cleared"),
    };
    Failure::new(exit::REFUSED, text)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::assert_described;
    use super::*;

    #[test]
    fn what_is_printed_as_json_is_described() {
        let key = Key::new("db").expect("a key");
        let told = Told { key: &key, cleared: true, holder: "h1", token: 7, revision: 9, text: "cleared" };
        assert_described("clear", &told);
    }
}
