//! What a service answers to an operator who stops it everywhere, starts it again, or pauses it.

use std::time::Duration;

use super::Service;
use crate::cluster::request::Unmet;
use crate::election::{State, Unsaid, Word, rounded};
use crate::types::span;

/// What to do where a word can be written from nowhere at the moment.
const SEE_THE_STORE: &str = "see that the store answers, and say it again";

impl Service {
    /// Who holds the lock, for an operator who says on this host what has to be said on the holder.
    pub(super) fn held_elsewhere(&self) -> String {
        if let Some(word) = self.election.stop_word(self.host.machine.now()) {
            let name = &self.settings.name;
            return format!("it is {}; \"putexctl start {name}\" ends that", word.in_words("stopped everywhere"));
        }
        let is_blind = self.election.state() == State::NoStore;
        match self.election.holder() {
            "" if is_blind => "the store does not answer this host, so that it is not known who holds it".to_owned(),
            holder if holder == self.host.node.as_str() => {
                let store = if is_blind { "the store does not answer this host; " } else { "" };
                format!("{store}its last record is this host's own, and nothing runs under it")
            }
            holder if is_blind => format!(
                "the store does not answer this host; by the last record that was seen {holder} held it, so wait for the store, or \
                 say it there"
            ),
            "" => "nobody is known to hold it".to_owned(),
            holder => format!("{holder} holds it, so say it there"),
        }
    }

    /// What was said on this host and is not in the lock's record yet, in words.
    pub(super) fn unsaid(&self) -> Option<String> {
        Some(match self.election.unsaid(self.host.machine.now())? {
            Unsaid::Stopped(word) => word.in_words("stopped everywhere"),
            Unsaid::Started => "started again".to_owned(),
            Unsaid::Paused(word) => word.in_words("paused"),
            Unsaid::Resumed => format!("resume asked for by {}", self.resumed_by),
        })
    }

    /// Tells the journal of an operator's word that this host has given up, because the store did not take it in time.
    pub(super) fn tell_of_unheard(&mut self) {
        let (name, unit) = (&self.settings.name, &self.settings.unit);
        let (again, word) = match self.election.take_unheard() {
            None => return,
            Some(Ok(word)) => ("say it again if it is still meant", word.in_words("stopped everywhere")),
            Some(Err(word)) => (
                "say \"start\" again if it is still meant",
                format!("the end of what was said before ({})", word.in_words("stopped everywhere")),
            ),
        };
        tracing::warn!(
            OBJECT_SYSTEMD_UNIT = unit.as_str(),
            "{name}: {again}: {word}: the store has not taken that in time, and this host does not try any more"
        );
    }

    /// What the operator should know of words that were said on this host and are not in force yet.
    pub(super) fn remark_on_words(&self) -> Option<String> {
        let now = self.host.machine.now();
        if let Some(word) = self.unsaid() {
            return Some(format!(
                "{word}: that is not in the lock's record yet, and this host goes on trying; it is dropped if putexd is restarted \
                 here before"
            ));
        }
        if self.election.has_unknown_pause(now) {
            return Some(
                "the lease of this host is a long one, because it was paused before putexd was restarted here; by whom and until \
                 when is shown once the store answers"
                    .to_owned(),
            );
        }
        let is_paused = self.election.pause_word(now).is_some();
        (is_paused && self.election.is_shortening()).then(|| {
            format!(
                "resume asked for by {}: the store has it, and putex-guard has not acknowledged the shorter lease yet",
                self.resumed_by
            )
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
            State::NoStore => format!(
                "{before}the store does not answer, and this host goes on trying for an hour to tell the lock; no host starts \
                 {unit} after that {until}"
            ),
            State::Retired => return Err("say it on another host: this one does not take part any more".to_owned()),
        };
        tracing::info!("{name}: {}", word.in_words("stopped everywhere"));
        Ok(told)
    }

    /// `kept_by`: other hosts that keep the service stopped by a word that the store has lost. `Err`: it is not stopped, or the word
    /// cannot be taken back from this host.
    pub(super) fn told_to_start(&self, by: &str, kept_by: &[String]) -> Result<String, Unmet> {
        let now = self.host.machine.now();
        let name = &self.settings.name;
        let is_blind = self.election.state() == State::NoStore;
        let Some(word) = self.election.stop_word(now) else {
            if let Some(Unsaid::Stopped(word)) = self.election.unsaid(now) {
                tracing::info!("{name}: {by} takes back: {}", word.in_words("stopped everywhere"));
                return Ok(
                    "the stop is not in the lock's record, as far as this host knows, and is not written any more"
                        .to_owned(),
                );
            }
            if is_blind {
                return Err(Unmet::Refused(format!(
                    "{SEE_THE_STORE}: this host does not know of a word that keeps {name} stopped"
                )));
            }
            let where_it_is = match (self.election.state(), self.election.holder()) {
                (State::Starting | State::Active, _) => "this host runs it".to_owned(),
                (_, "") => "a host that may run it takes it; \"putexctl status\" says what each waits for".to_owned(),
                (_, holder) => format!("{holder} has its lock"),
            };
            if !kept_by.is_empty() {
                return Err(Unmet::Refused(format!(
                    "run \"putexctl start {name}\" on {}: an operator's stop that the store has lost is known there and not on this host, \
                     and keeps it stopped there ({where_it_is})",
                    kept_by.join(" and on ")
                )));
            }
            return Err(Unmet::Needless(format!(
                "nothing was to be done, because no operator keeps it stopped: {where_it_is}"
            )));
        };
        tracing::info!("{name}: {by} takes back: {}", word.in_words("stopped everywhere"));
        let was = word.in_words("stopped everywhere");
        Ok(if is_blind {
            format!("the store does not answer, and this host goes on trying for an hour to tell the lock; it is {was}")
        } else {
            format!("the hosts that may run it contend for it again; it was {was}")
        })
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
        let timings = &self.settings.timings;
        let counts = timings.gap_of_others() + timings.renew_interval * 2;
        let least = counts + timings.lease();
        let left = Duration::from_secs(word.until.unwrap_or(u64::MAX)).saturating_sub(self.host.machine.wall());
        if left < least {
            return Err(format!(
                "name a time of at least {}: the long lease counts only when every host has seen it, after {}, and a pause that is \
                 over so soon after that lets nobody maintain the store",
                rounded(least),
                rounded(counts)
            ));
        }
        tracing::info!("{name}: {}", word.in_words("paused"));
        let until = word.until.map(span::date).unwrap_or_default();
        let counts = rounded(counts);
        Ok(format!(
            "the lease of this host is kept until {until}; leave the store alone for {counts} still, until every host has seen \
             that. Then {unit} runs on without the store, and no other host takes over if this one dies; \
             \"putexctl resume {name}\" ends it"
        ))
    }

    /// `Err`: there is no pause, or this host has none.
    pub(super) fn told_to_resume(&mut self, by: &str) -> Result<String, Unmet> {
        let now = self.host.machine.now();
        let name = &self.settings.name;
        let Some(word) = self.election.pause_word(now).or_else(|| self.election.pause_to_be(now)) else {
            if self.election.has_unknown_pause(now) {
                return Err(Unmet::Refused(format!(
                    "{SEE_THE_STORE}: putexd was restarted here in a pause, and does not know yet what is to be ended"
                )));
            }
            if self.election.state() == State::NoStore {
                return Err(Unmet::Refused(format!("{SEE_THE_STORE}: this host does not know of a pause of {name}")));
            }
            return Err(Unmet::Needless("nothing was to be done, because it is not paused".to_owned()));
        };
        if !matches!(self.election.state(), State::Starting | State::Active) {
            let until = word.until.map_or_else(String::new, |until| format!(" before {}", span::date(until)));
            return Err(Unmet::Refused(format!(
                "see that {} is up, and that putexd runs there: only the host that has the long lease can end it, and no other \
                 host takes the lock{until}",
                self.election.holder()
            )));
        }
        tracing::info!("{name}: {by} takes back: {}", word.in_words("paused"));
        by.clone_into(&mut self.resumed_by);
        let lease = rounded(self.settings.timings.lease());
        Ok(format!(
            "the lease lasts {lease} again, as soon as the store has taken a renewal and putex-guard knows of it"
        ))
    }
}
