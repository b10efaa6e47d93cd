//! What a service answers to an operator who stops it everywhere, starts it again, or pauses it.

use super::Service;
use crate::election::{State, Word, rounded};
use crate::types::span;

impl Service {
    /// Who holds the lock, for an operator who says on this host what has to be said on the holder.
    pub(super) fn held_elsewhere(&self) -> String {
        if let Some(word) = self.election.stop_word(self.host.machine.now()) {
            let name = &self.settings.name;
            return format!("it is {}; \"putexctl start {name}\" ends that", word.in_words("stopped everywhere"));
        }
        match self.election.holder() {
            "" => "nobody is known to hold it".to_owned(),
            holder if holder == self.host.node.as_str() => {
                "its last record is this host's own, and nothing runs under it".to_owned()
            }
            holder => format!("{holder} holds it, so say it there"),
        }
    }

    /// What was said of a stop on this host and is not in the lock's record yet, in words.
    pub(super) fn unsaid(&self) -> Option<String> {
        Some(match self.election.unsaid()? {
            Some(word) => word.in_words("stopped everywhere"),
            None => "started again".to_owned(),
        })
    }

    /// `Err`: the word cannot be written from this host.
    pub(super) fn told_to_stop(&self, word: &Word) -> Result<String, String> {
        let now = self.host.machine.now();
        let (name, unit) = (&self.settings.name, &self.settings.unit);
        let until = match word.until {
            Some(until) => format!("until {}, or until somebody runs \"putexctl start {name}\"", span::date(until)),
            None => format!("until somebody runs \"putexctl start {name}\""),
        };
        let before = match self.election.stop_word(now) {
            Some(before) => {
                format!("it was {} already, and this replaces that; ", before.in_words("stopped everywhere"))
            }
            None => String::new(),
        };
        let told = match self.election.state() {
            State::Starting | State::Active => {
                format!("begun to stop {unit}; no host starts it {until}")
            }
            State::Releasing | State::Lapsing => format!("{unit} is being stopped; no host starts it {until}"),
            State::Confirming | State::Fencing => {
                format!("gave up its claim before {unit} was started; no host starts it {until}")
            }
            State::Standby if self.election.has_believed_record() => {
                format!("{before}the lock is being told so; no host starts {unit} {until}")
            }
            State::Standby => match self.election.hindrance(now) {
                Some(hindrance) => {
                    return Err(format!(
                        "say it on another host: the lock has no record that could be told so, and this host cannot take \
                         the lock: {}",
                        hindrance.in_words(now)
                    ));
                }
                None => format!("the lock is taken, is told so and left again; no host starts {unit} {until}"),
            },
            State::NoStore => {
                return Err(
                    "see that the store answers, and say it again: this host cannot tell the lock now".to_owned()
                );
            }
            State::Retired => return Err("say it on another host: this one does not take part any more".to_owned()),
        };
        tracing::info!("{name}: {}", word.in_words("stopped everywhere"));
        Ok(told)
    }

    /// `Err`: it is not stopped, or the word cannot be taken back from this host.
    pub(super) fn told_to_start(&self, by: &str) -> Result<String, String> {
        let now = self.host.machine.now();
        let name = &self.settings.name;
        if self.election.state() == State::NoStore {
            return Err("see that the store answers, and say it again: this host cannot tell the lock now".to_owned());
        }
        let Some(word) = self.election.stop_word(now) else {
            let where_it_is = match (self.election.state(), self.election.holder()) {
                (State::Starting | State::Active, _) => "this host runs it".to_owned(),
                (_, "") => "a host that may run it takes it; \"putexctl status\" says what each waits for".to_owned(),
                (_, holder) => format!("{holder} holds it"),
            };
            return Err(format!("{name} is not stopped everywhere: {where_it_is}"));
        };
        tracing::info!("{name}: {by} takes back: {}", word.in_words("stopped everywhere"));
        Ok(format!("the hosts that may run it contend for it again; it was {}", word.in_words("stopped everywhere")))
    }

    /// `Err`: this host has no lease that could be prolonged.
    pub(super) fn told_to_pause(&self, word: &Word) -> Result<String, String> {
        let (name, unit) = (&self.settings.name, &self.settings.unit);
        match self.election.state() {
            State::Starting | State::Active => {}
            State::Releasing | State::Lapsing => {
                return Err(format!("{unit} is being stopped, and has no lease to be kept"));
            }
            State::NoStore | State::Standby | State::Confirming | State::Fencing | State::Retired => {
                return Err(format!("this host does not run it: {}", self.held_elsewhere()));
            }
        }
        tracing::info!("{name}: {}", word.in_words("paused"));
        let until = word.until.map(span::date).unwrap_or_default();
        let timings = &self.settings.timings;
        let counts = rounded(timings.gap_of_others() + timings.renew_interval * 2);
        Ok(format!(
            "the lease of this host is kept until {until}; leave the store alone for {counts} still, until every host has seen \
             that. Then {unit} runs on without the store, and no other host takes over if this one dies; \
             \"putexctl resume {name}\" ends it"
        ))
    }

    /// `Err`: there is no pause, or this host has none.
    pub(super) fn told_to_resume(&self, by: &str) -> Result<String, String> {
        let now = self.host.machine.now();
        let name = &self.settings.name;
        let Some(word) = self.election.pause_word(now) else { return Err(format!("{name} is not paused")) };
        if !matches!(self.election.state(), State::Starting | State::Active) {
            let until = word.until.map_or_else(String::new, |until| format!(" before {}", span::date(until)));
            return Err(format!(
                "see that {} is up, and that putexd runs there: only the host that has the long lease can end it, and no other \
                 host takes the lock{until}",
                self.election.holder()
            ));
        }
        tracing::info!("{name}: {by} takes back: {}", word.in_words("paused"));
        let lease = rounded(self.settings.timings.lease());
        Ok(format!(
            "the lease lasts {lease} again, as soon as the store has taken a renewal and putex-guard knows of it"
        ))
    }
}
