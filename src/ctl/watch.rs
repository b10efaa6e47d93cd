//! `putexctl watch`: the cluster live on a terminal, and each change as a line of JSON elsewhere.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use futures_util::{FutureExt as _, StreamExt as _};
use serde::Serialize;
use tokio::time::{Instant, sleep, sleep_until};
use zbus::{Message, MessageStream};

use super::ask::{Bus, signals};
use super::output::{Failure, Surface, print_json_line, redraw};
use super::status::{Rows, is_named, picture, screen, unknown_is_refused};
use super::view::{View, activity_in};
use crate::dbus::TransitionStatus;
use crate::host::clock;
use crate::types::printable_lines;

/// How often all is looked at: on a terminal often enough for the rest of a lease to be seen. putexd tells of changes of its own
/// services by itself, and what other hosts report comes every few seconds.
const INTERVAL: Duration = Duration::from_secs(1);
/// How soon after a signal all is looked at: what happened at the same moment is seen together.
const SOON: Duration = Duration::from_millis(200);
/// Time between two attempts where putexd or the bus is away, as while putexd is restarted.
const AGAIN: Duration = Duration::from_millis(500);

/// What `putexctl watch` is called with.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Only these services: names, or patterns with * and ?
    #[arg(value_name = "SERVICE")]
    services: Vec<String>,
    /// Print a line of JSON for each change, also on a terminal
    #[arg(long)]
    json: bool,
}

/// One change of a service in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Change {
    /// When it was seen, in seconds since 1970.
    at: u64,
    /// The service.
    service: String,
    /// The state before; empty = the service was not seen before.
    from: String,
    /// The state after; `gone` = the service is not there any more.
    to: String,
    /// The holder before; empty = nobody.
    from_holder: String,
    /// The holder after.
    holder: String,
    /// The fencing token after; 0 = not known.
    token: u64,
    /// Why, as this host tells of its own changes; empty = it was another host's, or nobody has told.
    reason: String,
}

/// What of a service counts as a change, and what is told with it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Seen {
    state: String,
    holder: String,
    token: u64,
}

/// Shows it for ever.
pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let surface = Surface::of_output();
    let draws = surface.height.is_some() && !arguments.json;
    let mut watcher =
        Watcher { arguments, draws, surface, seen: BTreeMap::new(), doubted: BTreeMap::new(), began: false };
    loop {
        match watcher.follow().await {
            End::Failed(failure) => return Err(failure),
            // A putexd that is restarted is back in a moment; one that was never there is an error.
            End::Lost(failure) if !watcher.began => return Err(failure),
            End::Lost(failure) if draws => redraw(&printable_lines(&failure.message), surface.height)?,
            End::Lost(_) => {}
        }
        sleep(AGAIN).await;
    }
}

/// Why it is not followed any more.
enum End {
    /// putexd or the bus is away.
    Lost(Failure),
    /// Nothing can be shown.
    Failed(Failure),
}

/// Shows what changes.
struct Watcher {
    arguments: Arguments,
    draws: bool,
    surface: Surface,
    /// The services as they were shown last.
    seen: BTreeMap<String, Seen>,
    /// What a look has shown of services on this host that no signal has told of: the signal may be under way.
    doubted: BTreeMap<String, Seen>,
    /// Whether something was shown.
    began: bool,
}

impl Watcher {
    /// Shows the cluster and what changes, as long as putexd answers.
    async fn follow(&mut self) -> End {
        let bus = match Bus::connect().await {
            Ok(bus) => bus,
            Err(failure) => return End::Lost(failure),
        };
        // Whoever listens before the first look misses nothing.
        let mut signals = signals().await;
        loop {
            let view = match picture(&bus).await {
                Ok(view) => view,
                Err(failure) => return End::Lost(failure),
            };
            let node = view.node.clone();
            if let Err(failure) = self.told(&mut signals, &node).and_then(|()| self.show(view)) {
                return End::Failed(failure);
            }
            let mut next = Instant::now() + INTERVAL;
            loop {
                tokio::select! {
                    () = sleep_until(next) => break,
                    signal = heard(&mut signals) => {
                        let Some(Ok(signal)) = signal else {
                            return End::Lost(Failure::unavailable("the system bus has closed the connection".to_owned()));
                        };
                        if let Err(failure) = self.hear(&signal, &node) {
                            return End::Failed(failure);
                        }
                        next = next.min(Instant::now() + SOON);
                    }
                }
            }
        }
    }

    /// Takes the signals that have come meanwhile, which are older than what was looked at.
    fn told(&mut self, signals: &mut Option<MessageStream>, node: &str) -> Result<(), Failure> {
        while let Some(Some(Ok(signal))) = heard(signals).now_or_never() {
            self.hear(&signal, node)?;
        }
        Ok(())
    }

    /// Takes a signal. One that tells of a change of state is shown at once, so that none is missed between two looks.
    fn hear(&mut self, signal: &Message, node: &str) -> Result<(), Failure> {
        let told = signal.body().deserialize::<String>().ok().and_then(|told| serde_json::from_str(&told).ok());
        let Some(change) = told.and_then(|told: TransitionStatus| self.transition(told, node)) else { return Ok(()) };
        if self.draws { Ok(()) } else { print_json_line(&change) }
    }

    /// The change that a transition on this host is for the cluster. `None`: the next look tells what it is.
    fn transition(&mut self, told: TransitionStatus, node: &str) -> Option<Change> {
        let state = activity_in(&told.to)?;
        if !self.began || !is_named(&self.arguments.services, &told.service) {
            return None;
        }
        let after = Seen { state: state.to_owned(), holder: node.to_owned(), token: told.token };
        let before = self.seen.insert(told.service.clone(), after.clone()).unwrap_or_default();
        self.doubted.remove(&told.service);
        let is_other = (&before.state, &before.holder) != (&after.state, &after.holder);
        is_other.then(|| Change { reason: told.reason, ..change(told.at, &told.service, before, after) })
    }

    fn show(&mut self, mut view: View) -> Result<(), Failure> {
        if !self.began {
            let known = view.services.iter().map(|service| service.service.as_str());
            unknown_is_refused(&self.arguments.services, &known)?;
        }
        view.services.retain(|service| is_named(&self.arguments.services, &service.service));
        let now = clock::wall().as_secs();
        if self.draws {
            let rows = if self.arguments.services.is_empty() { Rows::Few } else { Rows::All };
            redraw(screen(&view, rows, now, Surface::of_output()).as_text(), self.surface.height)?;
        } else {
            self.changes(&view, now).iter().try_for_each(print_json_line)?;
        }
        self.began = true;
        Ok(())
    }

    /// What has changed since the last look. At first each service is told of as it stands.
    fn changes(&mut self, view: &View, at: u64) -> Vec<Change> {
        let now: BTreeMap<String, Seen> = view
            .services
            .iter()
            .map(|service| {
                let (state, holder) = (service.state.clone(), service.holder.clone());
                (service.service.clone(), Seen { state, holder, token: service.token })
            })
            .collect();
        let mut found = Vec::new();
        for (service, after) in &now {
            let before = self.seen.get(service).cloned().unwrap_or_default();
            if (&before.state, &before.holder) == (&after.state, &after.holder) {
                self.doubted.remove(service);
                continue;
            }
            // putexd tells of what happens on this host by itself, a moment later than a look may see it. What two looks show
            // alike has no signal to wait for.
            let is_own =
                self.began && !before.state.is_empty() && [&before.holder, &after.holder].contains(&&view.node);
            if is_own && self.doubted.insert(service.clone(), after.clone()).as_ref() != Some(after) {
                continue;
            }
            self.doubted.remove(service);
            self.seen.insert(service.clone(), after.clone());
            found.push(change(at, service, before, after.clone()));
        }
        let gone: Vec<String> = self.seen.keys().filter(|service| !now.contains_key(*service)).cloned().collect();
        for service in gone {
            let before = self.seen.remove(&service).unwrap_or_default();
            self.doubted.remove(&service);
            found.push(change(at, &service, before, Seen { state: "gone".to_owned(), ..Seen::default() }));
        }
        found
    }
}

/// The next signal. Where there is no bus, none comes.
async fn heard(signals: &mut Option<MessageStream>) -> Option<zbus::Result<Message>> {
    match signals {
        Some(signals) => signals.next().await,
        None => std::future::pending().await,
    }
}

fn change(at: u64, service: &str, before: Seen, after: Seen) -> Change {
    Change {
        at,
        service: service.to_owned(),
        from: before.state,
        to: after.state,
        from_holder: before.holder,
        holder: after.holder,
        token: after.token,
        reason: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{assert_described, small};
    use super::*;

    fn watcher() -> Watcher {
        let arguments = Arguments { services: Vec::new(), json: true };
        let (seen, doubted) = (BTreeMap::new(), BTreeMap::new());
        Watcher { arguments, draws: false, surface: Surface::PIPE, seen, doubted, began: false }
    }

    fn words(change: &Change) -> (&str, &str, &str) {
        (&change.from, &change.to, &change.holder)
    }

    #[test]
    fn each_change_is_told_once() {
        let mut told = small();
        let mut watcher = watcher();
        let first = watcher.changes(&told.view(), 1);
        watcher.began = true;
        assert_eq!(first.iter().map(|change| change.to.as_str()).collect::<Vec<_>>(), ["running"; 3]);
        assert_described("watch", &first[0]);
        assert_eq!(watcher.changes(&told.view(), 2), Vec::new());
        // Another host's change is told at once, and one of this host's after two looks: no signal came.
        told.report("h2", "mail").state = "releasing".to_owned();
        told.service("db").state = "releasing".to_owned();
        let [stops] = &watcher.changes(&told.view(), 3)[..] else { panic!("one change") };
        assert_eq!(words(stops), ("running", "stopping", "h2"));
        let [stops] = &watcher.changes(&told.view(), 4)[..] else { panic!("one change") };
        assert_eq!(words(stops), ("running", "stopping", "h1"));
        told.services.retain(|status| status.service != "db");
        told.cluster.hosts.iter_mut().for_each(|host| host.services.retain(|report| report.service != "db"));
        let [gone] = &watcher.changes(&told.view(), 5)[..] else { panic!("one change") };
        assert_eq!((gone.to.as_str(), gone.from_holder.as_str()), ("gone", "h1"));
    }

    /// A service that is stopped and started between two looks.
    #[test]
    fn a_transition_between_two_looks_is_not_lost_and_not_told_twice() {
        let mut told = small();
        let mut watcher = watcher();
        watcher.changes(&told.view(), 1);
        watcher.began = true;
        let hear = |watcher: &mut Watcher, to: &str| {
            let told = TransitionStatus {
                service: "db".to_owned(),
                to: to.to_owned(),
                reason: "so it is".to_owned(),
                token: 9,
                at: 2,
                ..TransitionStatus::default()
            };
            watcher.transition(told, "h1")
        };
        // A look came first, and the signals after it.
        told.service("db").state = "confirming".to_owned();
        assert_eq!(watcher.changes(&told.view(), 2), Vec::new());
        let heard: Vec<Change> = ["releasing", "standby", "confirming", "starting", "active"]
            .iter()
            .filter_map(|to| hear(&mut watcher, to))
            .collect();
        let expected = [("running", "stopping", "h1"), ("stopping", "starting", "h1"), ("starting", "running", "h1")];
        assert_eq!(heard.iter().map(words).collect::<Vec<_>>(), expected);
        assert!(heard.iter().all(|change| change.reason == "so it is"));
        assert_described("watch", &heard[0]);
        told.service("db").state = "active".to_owned();
        assert_eq!(watcher.changes(&told.view(), 3), Vec::new());
    }
}
