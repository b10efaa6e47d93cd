//! What clients of D-Bus and systemd are told of the services, and what operators have them do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use zbus::fdo;

use super::notify;
use super::{Supervisor, share};
use crate::cluster::history::Run;
use crate::cluster::picture;
use crate::cluster::verb::Verb;
use crate::config::ServiceSettings;
use crate::daemon::service::{Answer, Handle, Order, Request, of_settings};
use crate::dbus::{Ask, Shown, ShownService};
use crate::election::Asked;
use crate::facts::alarm::{AlarmKind, Problem};
use crate::facts::{At, Bar, ClusterState, KnownHost, Presence, ServiceState, State, Wait};
use crate::types::{NodeId, ServiceName, printable};

/// A report may be read so long after it was written: one that a host wrote before it died says nothing of its life.
const READ_LATE: Duration = Duration::from_secs(15);

impl Supervisor {
    /// Answers a D-Bus client from what this host knows, or does what the client asks for.
    pub fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::Describe(answer) => {
                self.cluster.looked_at();
                let _ = answer.send(self.picture());
            }
            Ask::Service { service, answer } => {
                let _ = answer.send(self.states().remove(&service));
            }
            Ask::History { service, answer } => self.tell_history(&service, answer),
            Ask::Do { verb, by, answer } => self.act(verb, &by, answer),
        }
    }

    fn act(&self, verb: Verb, by: &str, answer: Answer) {
        let word = verb.word(by, self.host.machine.wall().as_secs());
        match verb {
            Verb::StepDown { service, to, .. } => {
                self.ask_holder(&service, Asked::StepDown(to), word, answer);
            }
            Verb::Pause { service, .. } => self.ask_holder(&service, Asked::Pause, word, answer),
            Verb::Resume { service } => self.ask_holder(&service, Asked::Resume, word, answer),
            Verb::Adopt { service } => self.request(&service, Request::Adopt, answer),
            Verb::Stop { service, .. } => self.request(&service, Request::Stop(word), answer),
            Verb::Start { service } => {
                let (by, kept_by) = (word.by, self.kept_by_others(&service));
                self.request(&service, Request::Start { by, kept_by }, answer);
            }
            Verb::Drain { force, .. } => self.drain(word, force, answer),
            Verb::Undrain {} => self.undrain(by, answer),
            Verb::ConfirmDead { node, .. } => {
                let _ = answer.send(self.confirm_dead(&node, by).map_err(Into::into));
            }
        }
    }

    /// Hands what an operator asks for to a service, which answers him.
    fn request(&self, service: &ServiceName, request: Request, answer: Answer) {
        match self.known(service) {
            Ok(handle) => handle.orders.give(Order::Request(request, answer)),
            Err(why) => drop(answer.send(Err(why.into()))),
        }
    }

    /// The service of this name. `Err`: why this host can do nothing with it.
    pub fn known(&self, service: &ServiceName) -> Result<&Handle, String> {
        let ending = self.retiring.iter().map(|retiring| &retiring.handle);
        let mut handles = self.services.values().chain(ending);
        match handles.find(|handle| handle.settings.name == *service) {
            None => Err(format!("no service is called {service}")),
            Some(handle) if handle.settings.observes() => Err(format!(
                "say it on a host that runs {service}: it is only observed here (mode = \"observe\")"
            )),
            Some(handle) => Ok(handle),
        }
    }

    /// The other hosts that keep a service stopped because of a word that the store has lost, as they report.
    fn kept_by_others(&self, service: &ServiceName) -> Vec<String> {
        let keeps = |host: &&KnownHost| {
            host.node() != self.host.node.as_str()
                && host.presence == Presence::Up
                && host
                    .services
                    .get(service.as_str())
                    .is_some_and(|state| matches!(state.bar, Some(Bar::StopLost(_))))
        };
        let known = self.cluster.known();
        let keep = known.hosts.iter().filter(keeps);
        keep.map(|host| host.node().to_owned()).collect()
    }

    /// Takes an operator's word that a host is off, and ends the wait for its fencing.
    fn confirm_dead(&self, node: &NodeId, by: &str) -> Result<String, String> {
        if *node == self.host.node {
            return Err(format!(
                "name the host that is off: {node} is this host, which is up"
            ));
        }
        let now = self.host.machine.now();
        self.host.fencings.confirm(node, by, now)?;
        self.host.alarms.raise(Problem::ConfirmedDead {
            node: node.clone(),
            by: by.into(),
        });
        for handle in self.services.values() {
            handle.orders.give(Order::TryAgain);
        }
        Ok(format!(
            "the fencing of {node} is not waited for, for 10 minutes or until {node} is seen again; nothing starts earlier than the \
             clock permits"
        ))
    }

    /// Ends an operator's word that a host is off once that host reports again. A host that holds no lock is seen in no other way.
    pub fn end_words_on_the_dead(&self) {
        let (fencings, now) = (&self.host.fencings, self.host.machine.now());
        if !fencings.has_word_now(now) {
            return self.host.alarms.clear(AlarmKind::ConfirmedDead);
        }
        let wall = At::new(self.host.machine.wall());
        for host in self.cluster.known().hosts {
            let Some(silent) = host.reported.map(|reported| reported.since(wall)) else {
                continue;
            };
            let node = host.state.node;
            if fencings.see(&node, now.minus(silent.saturating_add(READ_LATE))) {
                tracing::warn!("{node} reports again, and is fenced again where that is necessary");
            }
        }
    }

    /// Reads what the store has of the history of the service's lock, beside all else.
    fn tell_history(&self, service: &ServiceName, answer: oneshot::Sender<fdo::Result<Vec<Run>>>) {
        let lock = self
            .services
            .get(service)
            .map(|handle| handle.settings.key.clone());
        let Some(lock) = lock else {
            let why = format!(
                "look at \"putexctl status {service}\": it has no file on this host, or a broken one"
            );
            let _ = answer.send(Err(fdo::Error::Failed(why)));
            return;
        };
        let (history, notes) = (self.host.history.clone(), Arc::clone(&self.host.notes));
        let now = self.host.machine.wall();
        tokio::spawn(async move {
            let read = history.read(&*notes, &lock, now).await;
            let _ = answer.send(read.map(|history| history.runs).map_err(|why| {
                let why = printable(&why);
                fdo::Error::IOError(format!("see that the store can be reached: {why}"))
            }));
        });
    }

    /// All that this host knows.
    fn picture(&self) -> ClusterState {
        picture::with_services(
            self.cluster.known(),
            self.states(),
            self.store_health.state_at(self.host.machine.wall()),
        )
    }

    /// Shows the state of each service. What comes first counts: one that ends here is seen until it has ended.
    fn each_state(&self, mut see: impl FnMut(&ServiceState)) {
        let ending = self.retiring.iter().map(|retiring| &retiring.handle);
        for handle in self.services.values().chain(ending) {
            see(&handle.status.borrow());
        }
        self.resting().iter().for_each(&mut see);
        self.coming
            .iter()
            .for_each(|service| see(&self.of_coming(service)));
    }

    /// The states of the services, by their names.
    fn states(&self) -> BTreeMap<String, ServiceState> {
        let mut states = BTreeMap::new();
        self.each_state(|state| {
            let place = states.entry(state.service.clone());
            place.or_insert_with(|| state.clone());
        });
        states
    }

    /// Has the properties on the bus show what is so now.
    pub fn show_on_bus(&self) {
        let mut services = BTreeMap::new();
        self.each_state(|state| {
            services
                .entry(state.service.clone())
                .or_insert_with(|| ShownService::of(state));
        });
        let drained = self.host.drain.word().is_some();
        let now = Shown { drained, services };
        self.on_bus.send_if_modified(|shown| {
            let is_new = *shown != now;
            *shown = now;
            is_new
        });
    }

    /// The state of a service that has not begun here yet.
    fn of_coming(&self, service: &ServiceSettings) -> ServiceState {
        let before = self
            .retiring
            .iter()
            .map(|retiring| &retiring.handle.settings);
        let before: Vec<String> = before
            .filter(|other| share(other, service))
            .map(|other| other.name.to_string())
            .collect();
        ServiceState {
            // It has not read the lock yet.
            state: Some(State::NoStore),
            wait: (!before.is_empty()).then_some(Wait::Other { services: before }),
            ..of_settings(service)
        }
    }

    pub fn show(&mut self) {
        for handle in self.services.values() {
            self.cluster.see_loss(&handle.status.borrow());
        }
        self.show_on_bus();
        let services = self
            .services
            .values()
            .map(|handle| {
                let status = handle.status.borrow();
                // One that is only observed takes as little as a standby does.
                let state = status.state.unwrap_or(State::Standby);
                let is_other = |holder: &&str| *holder != self.host.node.as_str();
                let holder = status.holder().filter(is_other);
                let holder = holder.filter(|_| state == State::Standby);
                let holder =
                    holder.map_or_else(String::new, |holder| format!(" ({holder} holds it)"));
                let said = format!("{} {}{holder}", handle.settings.name, state);
                (state, said)
            })
            .collect();
        let drained = if self.host.drain.word().is_some() {
            " (this host is drained)"
        } else {
            ""
        };
        let count = format!("{}{drained}", self.count());
        let services = notify::in_one_line(&count, services);
        let shown = match self.broken.in_short() {
            Some(broken) => format!("{broken}; {services}"),
            None => services,
        };
        if shown != self.shown {
            notify::status(&shown);
            self.shown = shown;
        }
    }

    pub fn count(&self) -> String {
        match self.services.len() {
            1 => "1 service".to_owned(),
            count => format!("{count} services"),
        }
    }
}
