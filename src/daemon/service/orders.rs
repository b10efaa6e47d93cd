//! What a service does with an operator's order, and answers to it: a holder obeys it, and another host has it written into the lock's
//! record (orders, H7).

use std::{sync::Arc, time::Duration};

use super::{Answer, Message, OperatorRequest, Said, Service, registration};
use crate::{
    cluster::verb::Unmet,
    daemon::units::busy_mounts,
    election::{Event, State, Wanted, rounded},
    facts::{Asked, At, Order, Refused, StepDown, Wait},
    types::NodeId,
    words,
};

/// What an operator has asked for who stops a service.
const STOPPED: &str = "stopped everywhere";

impl Service {
    /// Answers an operator, and returns what the election is told, which is nothing in effect where he is refused.
    pub fn take_request(&mut self, request: OperatorRequest, answer: Answer) -> Event {
        let name = &self.settings.name;
        match request {
            OperatorRequest::Ask(order) => {
                let known = self.election.pause_word(self.host.machine.now());
                // Where there is no pause to be ended, as far as is known here, nobody has to be asked.
                let is_in_vain = order.what == Asked::Resume && known.is_none();
                let is_standby = self.election.state() == State::Standby;
                if !is_standby || is_in_vain || self.election.orderable().is_none() {
                    return self.obey(order, Some(answer)).unwrap_or(Event::Timeout);
                }
                let holder = self.election.holder();
                let now = At::new(self.host.machine.wall());
                let lease = self.settings.timings.lease();
                let shown = self.display.status.borrow();
                let silence = shown
                    .wait
                    .as_ref()
                    .and_then(|wait| silence(wait, lease, now));
                let asked = format!("{holder} is asked for it by the lock's record");
                let said = silence.map_or(Ok(asked), refused);
                settled(Some(answer), order.word.at, said, Event::Order(order))
            }
            // The release by which it ends here is told as a change of state.
            OperatorRequest::Stop(word) if self.runs_unit() => {
                self.unless_in_use(Some(answer), word.at, Ok(begun()), Event::Stop(word));
                Event::Timeout
            }
            OperatorRequest::Stop(word) => {
                let word = match self.election.stop_word(self.host.machine.now()) {
                    Some(former) => word.over(former),
                    None => word,
                };
                tracing::info!("{name}: {}", words::asked(&word, STOPPED));
                settled(Some(answer), word.at, Ok(begun()), Event::Stop(word))
            }
            OperatorRequest::Start(by) => {
                let said = self.may_start();
                if said.is_ok() {
                    tracing::info!("{name}: started again by {by}");
                }
                settled(Some(answer), 0, said, Event::StartAgain)
            }
            OperatorRequest::Adopt => {
                let adopted = registration::adopt(self.host.clone(), self.shown.subscribe());
                self.later(async {
                    // The client may have gone.
                    let _ = answer.send(adopted.await);
                    None
                });
                Event::Timeout
            }
        }
    }

    /// Obeys what the record of this host's own tenure asks for, once.
    pub fn obey_record(&mut self) -> Option<Event> {
        let order = self.election.order(self.host.machine.now())?.clone();
        if self.asked.as_ref() == Some(&order) {
            return None;
        }
        if matches!(order.what, Asked::StepDown(_)) {
            self.asked = Some(order.clone());
        }
        self.obey(order, None)
    }

    /// Does what is asked of a holder. `answer`: the operator who asks on this host; where there is none the lock's record asks, and has
    /// the answer.
    fn obey(&mut self, order: Order, answer: Option<Answer>) -> Option<Event> {
        let at = order.word.at;
        let said = self.may_obey(&order);
        // A step-down is told as a change of state.
        if said.is_ok() && !matches!(order.what, Asked::StepDown(_)) {
            tracing::info!("{}: {}", self.settings.name, words::order(&order));
        }
        let event = match order.what {
            Asked::StepDown(_) => Event::StepDown(StepDown::Order(order)),
            Asked::Pause => Event::Pause(Some(order.word)),
            Asked::Resume => Event::Pause(None),
        };
        if said.is_err() || !matches!(event, Event::StepDown(_)) {
            return Some(settled(answer, at, said, event));
        }
        self.unless_in_use(answer, at, said, event);
        None
    }

    /// Says what comes of a request by which the units are stopped here, and gives the event to the election. It is refused where a mount
    /// is in use, because a host that cannot unmount goes down, with all that it runs.
    fn unless_in_use(&mut self, answer: Option<Answer>, at: u64, said: Said, event: Event) {
        let (systemd, settings) = (Arc::clone(&self.host.systemd), Arc::clone(&self.settings));
        self.later(async move {
            let busy = busy_mounts::in_use(&*systemd, &settings).await;
            let said = match busy {
                Some(busy) => Err(format!("nothing was changed: {busy}").into()),
                None => said,
            };
            Some(Message::Event(settled(answer, at, said, event)))
        });
    }

    /// Whether this host can do what only the holder can.
    fn may_obey(&self, Order { what, word }: &Order) -> Said {
        let now = self.host.machine.now();
        let (state, name) = (self.election.state(), &self.settings.name);
        let is_paused = matches!(self.election.unwritten(), Some(Wanted::Pause(Some(_))))
            || self.election.pause_word(now).is_some();
        if *what == Asked::Resume && !is_paused {
            return if self.election.is_unread() || state == State::NoStore {
                unknown("pause")
            } else {
                Err(Unmet::needless("it is not paused"))
            };
        }
        let steps_down = matches!(what, Asked::StepDown(_))
            && matches!(state, State::Confirming | State::Fencing);
        if !self.runs_unit() && !steps_down {
            if let Some(word) = self.election.stop_word(now) {
                let stopped = words::asked(word, STOPPED);
                return refused(format!(
                    "run \"putexctl start {name}\" first: it is {stopped}"
                ));
            }
            let who = match self.election.holder() {
                "" => format!("nobody runs {name}"),
                holder => format!("this host does not run it, and {holder} held its lock last"),
            };
            return refused(format!("see \"putexctl status {name}\": {who}"));
        }
        if let Asked::StepDown(Some(to)) = what
            && let Some(wait) = &self.display.status.borrow().wait
            && is_taken_from(wait, to)
        {
            let wait = words::wait(wait, At::new(self.host.machine.wall()));
            return refused(format!("wait until {name} runs here: it {wait}"));
        }
        if *what == Asked::Pause {
            let timings = &self.settings.timings;
            let least = timings.gap_of_others() + timings.renew_interval * 2 + timings.lease();
            let until = Duration::from_secs(word.until.unwrap_or(u64::MAX));
            if until.saturating_sub(self.host.machine.wall()) < least {
                return refused(format!(
                    "name a time of at least {}, so that every host sees the long lease",
                    rounded(least)
                ));
            }
        }
        Ok(begun())
    }

    /// Whether a word keeps the service stopped.
    fn may_start(&self) -> Said {
        let word = self.election.stop_word(self.host.machine.now());
        if word.is_some() || matches!(self.election.unwritten(), Some(Wanted::Stop(_))) {
            Ok(begun())
        } else if self.election.state() == State::NoStore {
            unknown("stop")
        } else {
            Err(Unmet::needless("no operator keeps it stopped"))
        }
    }

    /// What is wanted on this host and not in the lock's record yet, in words.
    pub fn unwritten(&self) -> Option<String> {
        Some(match self.election.unwritten()? {
            Wanted::Stop(word) => words::asked(word, STOPPED),
            Wanted::Start(word) => {
                format!("started again, which was {}", words::asked(word, STOPPED))
            }
            Wanted::Order(_, order) => words::order(order),
            Wanted::Pause(Some(word)) => words::asked(word, "paused"),
            Wanted::Pause(None) => "the end of the pause".to_owned(),
        })
    }
}

/// Why nothing is asked of the holder for which this host waits, if that has not renewed for `lease`: what only it can do is not done.
fn silence(wait: &Wait, lease: Duration, now: At) -> Option<String> {
    let Wait::Holder { holder, seen, .. } = wait else {
        return None;
    };
    (seen.at().since(now) > lease).then(|| {
        let wait = words::wait(wait, now);
        format!("see that {holder} and its putexd run, as only the holder can do it: {wait}")
    })
}

/// Whether a host that takes the lock from `to`, which fell silent, waits until it may start the unit.
fn is_taken_from(wait: &Wait, to: &NodeId) -> bool {
    matches!(wait, Wait::Entitlement { former: Some((former, _)), .. } if former == to.as_str())
}

fn begun() -> String {
    "begun".to_owned()
}

fn refused(why: String) -> Said {
    Err(Unmet::Refused(why))
}

fn unknown(what: &str) -> Said {
    refused(format!(
        "see that the store answers, and say it again: no {what} is known here"
    ))
}

/// Says what comes of a request: to the operator, or in the lock's record to what was asked there at `at`. Returns the event for the
/// election, which is none in effect where an operator was refused.
fn settled(answer: Option<Answer>, at: u64, said: Said, event: Event) -> Event {
    match (answer, said) {
        (Some(answer), said) => {
            let event = if said.is_ok() { event } else { Event::Timeout };
            // The client may have gone.
            let _ = answer.send(said);
            event
        }
        (None, Ok(_)) => event,
        (None, Err(Unmet::Refused(reason) | Unmet::Open(reason) | Unmet::Needless(reason))) => {
            Event::Refuse(Refused { at, reason })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Seen;

    #[test]
    fn a_holder_that_is_silent_is_asked_for_nothing_and_it_is_said_how_long_nobody_takes_over() {
        let now = At::seconds(1_000_000);
        let lease = Duration::from_secs(18);
        let wait = |seconds| Wait::Holder {
            holder: "h2".to_owned(),
            runs: true,
            seen: Seen::Renewed(now.minus(Duration::from_secs(seconds))),
            take_at: Some(now.plus(Duration::from_secs(300))),
        };
        assert_eq!(silence(&wait(18), lease, now), None);
        assert_eq!(silence(&Wait::Store { holder: None }, lease, now), None);
        let why = "see that h2 and its putexd run, as only the holder can do it: h2 holds the lock and last renewed 19.0s ago; it \
                   may be taken in 5min";
        assert_eq!(silence(&wait(19), lease, now).as_deref(), Some(why));
    }

    #[test]
    fn a_claim_is_not_given_up_for_the_host_that_fell_silent() {
        let wait = |former: Option<&str>| Wait::Entitlement {
            until: At::seconds(1_000_000),
            former: former.map(|name| (name.to_owned(), Seen::Renewed(At::seconds(999_990)))),
        };
        let to = |name: &str| name.parse::<NodeId>().expect("a name");
        assert!(is_taken_from(&wait(Some("h1")), &to("h1")));
        assert!(
            !is_taken_from(&wait(Some("h1")), &to("h2")) && !is_taken_from(&wait(None), &to("h1"))
        );
    }
}
