//! What clients of D-Bus and systemd are told of the services, and what operators have them do.

use super::retire::Retiring;
use super::{Supervisor, share};
use crate::cluster::request::Verb;
use crate::config::ServiceSettings;
use crate::daemon::notify;
use crate::daemon::service::{Answer, Handle, Order, Status};
use crate::dbus::{Ask, ClusterStatus, ServiceStatus, StoreStatus};
use crate::election::{Hindrance, State, Waiting};
use crate::types::{ServiceName, Time};

impl Supervisor {
    /// Answers a D-Bus client, unless the client does not wait any more.
    pub(super) fn answer(&self, ask: Ask) {
        match ask {
            Ask::List(answer) => {
                let _ = answer.send(self.statuses());
            }
            Ask::Store(answer) => {
                let _ = answer.send(self.store_status());
            }
            Ask::Cluster(answer) => {
                let _ = answer.send(ClusterStatus { node: self.host.node.to_string(), ..ClusterStatus::default() });
            }
            Ask::History { answer, .. } => {
                let _ = answer.send(Ok(Vec::new()));
            }
            Ask::Do { verb, by: _, answer } => match verb {
                Verb::StepDown { service, reason, to: _ } => {
                    self.order(&service, answer, |answer| Order::StepDown(reason, answer));
                }
                Verb::Adopt { service } => self.order(&service, answer, Order::Adopt),
                Verb::Stop { .. } | Verb::Start { .. } => {
                    let _ = answer.send(Err("this putexd cannot stop or start a service everywhere".to_owned()));
                }
                Verb::Pause { .. } | Verb::Resume { .. } => {
                    let _ = answer.send(Err("this putexd cannot pause a service".to_owned()));
                }
                Verb::Drain { .. } | Verb::Undrain => {
                    let _ = answer.send(Err("this putexd cannot be drained".to_owned()));
                }
                Verb::ConfirmDead { .. } => {
                    let _ = answer.send(Err("this putexd cannot take a host for dead".to_owned()));
                }
            },
        }
    }

    /// Hands an order to a service, which answers the client. If that is not possible the client is told why.
    pub(super) fn order(&self, service: &ServiceName, answer: Answer, order: impl FnOnce(Answer) -> Order) {
        let Some(handle) = self.services.get(service) else {
            let _ = answer.send(Err(format!("no service is called {service}")));
            return;
        };
        if let Err(Order::StepDown(_, answer) | Order::Adopt(answer)) = handle.orders.give(order(answer)) {
            let _ = answer.send(Err(format!("the election of {service} does not answer")));
        }
    }

    pub(super) fn store_status(&self) -> StoreStatus {
        self.silences.status(self.store_settings.address().to_string())
    }

    /// The status of all services, and of those that do not run because their file is broken.
    pub(super) fn statuses(&self) -> Vec<ServiceStatus> {
        let now = self.host.machine.now();
        let trouble = self.store_status().trouble_in_short();
        let of_service = |(name, handle): (_, &Handle)| {
            let bars = self.broken.bars(name).map(Hindrance::Reason);
            let bars = bars.is_some() && handle.status.borrow().hindrance == bars;
            let broken = self.broken.goes_on(name).filter(|_| !bars);
            status_of(&handle.settings, &handle.status.borrow(), now, broken, trouble.as_deref())
        };
        let mut all: Vec<ServiceStatus> = self.services.iter().map(of_service).collect();
        all.extend(self.broken.rows(|name| self.services.contains_key(name)));
        for Retiring { handle, .. } in &self.retiring {
            if !all.iter().any(|status| status.service == handle.settings.name.as_str()) {
                all.push(status_of(&handle.settings, &handle.status.borrow(), now, None, trouble.as_deref()));
            }
        }
        for service in &self.coming {
            if !all.iter().any(|status| status.service == service.name.as_str()) {
                all.push(self.row_of_coming(service));
            }
        }
        all.sort_by(|one, other| one.service.cmp(&other.service));
        all
    }

    /// The status of a service that has not begun here yet.
    fn row_of_coming(&self, service: &ServiceSettings) -> ServiceStatus {
        let before = self.retiring.iter().map(|retiring| &retiring.handle.settings);
        let before: Vec<&str> = before.filter(|other| share(other, service)).map(|other| other.name.as_str()).collect();
        let waits = if before.is_empty() {
            "begins when the guard has said what it remembers of it".to_owned()
        } else {
            format!("begins when {} has stopped here, which has the same unit or the same lock", before.join(" and "))
        };
        ServiceStatus {
            service: service.name.to_string(),
            unit: service.unit.to_string(),
            key: service.key.to_string(),
            state: State::Standby.to_string(),
            waits,
            ..ServiceStatus::default()
        }
    }

    pub(super) fn show(&mut self) {
        let states = self.services.values().map(|handle| (handle.status.borrow().state, handle)).collect();
        let shown = notify::in_one_line(&self.count(), states, |handle: &&Handle| {
            let (name, told) = (&handle.settings.name, handle.status.borrow());
            let holder = match (told.state, told.holder.as_str()) {
                (State::Standby, "") => " (nobody holds it)".to_owned(),
                (State::Standby, holder) => match told.waiting {
                    Some(Waiting::OwnRecord { .. }) => " (nobody is known to hold it)".to_owned(),
                    Some(Waiting::Store { .. }) => " (the store does not answer)".to_owned(),
                    Some(Waiting::Holder { is_claim: true, .. }) => format!(" ({holder} has claimed it)"),
                    Some(_) | None => format!(" ({holder} holds it)"),
                },
                _ => String::new(),
            };
            format!("{name} {}{holder}", told.state)
        });
        let shown = self.broken.in_short().into_iter().chain([shown]).collect::<Vec<_>>().join("; ");
        if shown != self.shown {
            notify::status(&shown);
            self.shown = shown;
        }
    }

    pub(super) fn count(&self) -> String {
        match self.services.len() {
            1 => "1 service".to_owned(),
            count => format!("{count} services"),
        }
    }
}

/// One service's status for D-Bus clients. `broken`: what is wrong with its file while it goes on. `trouble`: what is wrong
/// with the store, in short.
fn status_of(
    settings: &ServiceSettings,
    status: &Status,
    now: Time,
    broken: Option<String>,
    trouble: Option<&str>,
) -> ServiceStatus {
    let waits = status.waiting.as_ref().map(|waiting| waiting.in_words(now));
    let unproven = status.unproven.clone();
    // What to do about the store is told once, and not with each service.
    let cause = trouble.filter(|_| status.waiting.as_ref().is_some_and(Waiting::is_for_the_store)).map(str::to_owned);
    ServiceStatus {
        service: settings.name.to_string(),
        unit: settings.unit.to_string(),
        key: settings.key.to_string(),
        state: status.state.to_string(),
        holder: status.holder.clone(),
        revision: status.revision.0,
        token: status.token.0,
        hindrance: status.hindrance.as_ref().map(|hindrance| hindrance.in_words(now)).unwrap_or_default(),
        waits: cause.into_iter().chain(waits).chain(unproven).collect::<Vec<_>>().join("; "),
        remarks: broken.into_iter().chain(status.remarks.iter().cloned()).collect(),
        ..ServiceStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::daemon::fake::settings;
    use crate::types::{FencingToken, Revision};

    fn status(waiting: Waiting) -> Status {
        Status {
            state: State::NoStore,
            holder: String::new(),
            revision: Revision(0),
            token: FencingToken(0),
            hindrance: None,
            waiting: Some(waiting),
            unproven: None,
            is_left_to_age: false,
            remarks: Vec::new(),
        }
    }

    #[test]
    fn whoever_waits_for_the_store_says_since_when() {
        let now = Time::both(Duration::from_secs(100));
        let waits = |waiting| status_of(&settings(), &status(waiting), now, None, Some("store lost 12.0s ago")).waits;
        let store = Waiting::Store { holder: None }.in_words(now);
        assert_eq!(waits(Waiting::Store { holder: None }), format!("store lost 12.0s ago; {store}"));
        assert!(waits(Waiting::Claim).starts_with("store lost 12.0s ago; waits for the store to take its claim; "));
        let (since, deadline) = (Time::both(Duration::from_secs(88)), Time::both(Duration::from_secs(104)));
        assert_eq!(
            waits(Waiting::Renewal { since, deadline }),
            "store lost 12.0s ago; last renewed 12.0s ago; stops in 4.0s unless the store takes a renewal before"
        );
        assert_eq!(waits(Waiting::Starting), Waiting::Starting.in_words(now));
    }
}
