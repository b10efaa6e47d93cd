//! Readable scenarios: one command in each line, and the recorded output below a line of dashes.
//!
//! ```text
//! # Sentences that say what is shown.
//! hosts h1 h2
//! time 5s
//! power-loss h1
//! time 10s
//! expect active h2
//! ```

use std::time::Duration;

use putexd::election::{Content, Event, Record, Standing, Timings};
use putexd::store::sealed::Sealer;
use putexd::types::Holder;

use super::clocks::TRUE_RATE;
use super::host::Link;
use super::store::Store;
use super::{Sim, node, settings};

/// The line between the commands and the recorded output.
pub const DIVIDER: &str = "----";

/// Runs the commands of a scenario. Each line of the result is a command, or an event that followed it.
pub fn run(commands: &str) -> (Sim, Vec<String>) {
    let mut script = Script {
        sim: Sim { in_step: true, ..Sim::new(1) },
        timings: Timings::new(Duration::from_secs(1), 3, 1),
        shown: 0,
        output: Vec::new(),
    };
    for (number, line) in commands.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        script.output.push(format!("> {line}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        script.obey(&words).unwrap_or_else(|| panic!("line {}: {line:?} is not understood", number + 1));
        script.sim.run_for(Duration::ZERO);
        script.show();
    }
    (script.sim, script.output)
}

struct Script {
    sim: Sim,
    timings: Timings,
    shown: usize,
    output: Vec<String>,
}

impl Script {
    fn show(&mut self) {
        self.output.extend_from_slice(&self.sim.log[self.shown..]);
        self.shown = self.sim.log.len();
    }

    fn obey(&mut self, words: &[&str]) -> Option<()> {
        match words {
            ["time", span] => {
                self.sim.run_for(parse_span(span)?);
            }
            ["until-active"] => {
                let end = self.sim.now + Duration::from_secs(60);
                while !self.sim.is_served() && self.sim.now < end {
                    self.sim.run_for(Duration::from_millis(100));
                }
            }
            ["timings", numbers @ ..] => self.timings = parse_timings(self.timings, numbers)?,
            ["hosts", names @ ..] => {
                for name in names {
                    let h = self.add(name);
                    self.sim.start_daemon(h);
                }
            }
            ["host-off", name] => {
                self.add(name);
            }
            ["reload", name] => {
                let h = self.sim.index(name);
                let timings = self.timings;
                self.sim.reconfigure(h, timings);
            }
            ["pace", what, span] => self.set_pace(what, parse_span(span)?)?,
            ["store", rest @ ..] => self.change_store(rest)?,
            ["expect", rest @ ..] => self.expect(rest)?,
            [verb, name, rest @ ..] => self.strike(verb, name, rest)?,
            _ => return None,
        }
        Some(())
    }

    fn add(&mut self, name: &str) -> usize {
        let machine = 1 + self.sim.hosts.len() as u128;
        self.sim.add_host(settings(name, machine, self.timings))
    }

    fn set_pace(&mut self, what: &str, span: Duration) -> Option<()> {
        let pace = &mut self.sim.pace;
        match what {
            "network" => pace.network = (span, span),
            "start-queue" => pace.start_queue = span,
            "fencing" => pace.fencing = span,
            "guard" => pace.local = span,
            _ => return None,
        }
        Some(())
    }

    fn change_store(&mut self, words: &[&str]) -> Option<()> {
        let sim = &mut self.sim;
        let record = |token: &str| Content::Record(Record::new(Holder::decode(token.as_bytes()), None));
        match words {
            ["wipe"] => sim.renew_store(Store::wipe),
            ["restore", age] => {
                let age = age_of(sim, age)?;
                sim.renew_store(|store, at| store.restore(at, at.saturating_sub(age)));
            }
            ["roll-back", age] => {
                let age = age_of(sim, age)?;
                sim.change_store(|store, at| store.roll_back(at, at.saturating_sub(age)));
            }
            ["delete"] => sim.change_store(|store, at| _ = store.put(at, Content::Tombstone)),
            ["purge"] => sim.change_store(Store::purge),
            ["put", token] => sim.change_store(|store, at| _ = store.put(at, record(token))),
            ["blank"] => sim.change_store(|store, at| _ = store.put(at, record(""))),
            ["put-again", age] => {
                let age = age_of(sim, age)?;
                sim.change_store(|store, at| {
                    let old = store.as_of(at.saturating_sub(age)).content.clone();
                    store.put(at, old);
                });
            }
            ["forge-proven"] => sim.change_store(|store, at| {
                store.forge(at, |replaced, record| {
                    _ = std::mem::take(&mut record.holder);
                    let details = record.details.as_mut().expect("a record of putexd");
                    (details.standing, details.prev) = (Standing::Proven, Some((replaced, Some(details.instance))));
                    details.write.0 ^= 1;
                });
            }),
            ["forge-hold", span] => {
                let span = parse_span(span)?;
                sim.change_store(|store, at| {
                    store.forge(at, |_, record| {
                        let details = record.details.as_mut().expect("a record of putexd");
                        (details.lease, details.hold) = (span, span);
                    });
                });
            }
            ["bring-back-proven"] => sim.change_store(Store::bring_back_proven),
            ["seal"] => sim.store.sealer = Some(Sealer::new(&[b'k'; 32], None).expect("a key")),
            ["pause-words", span] => {
                let paused_for = parse_span(span)?;
                sim.change_store(|store, at| {
                    let mut record = store.record().expect("a record to add words to").clone();
                    record.details.as_mut().expect("a record of putexd").note.paused_for = Some(paused_for);
                    store.put(at, Content::Record(record));
                });
            }
            ["blind-writes"] => sim.blind_writes = true,
            ["stores-both", span] => sim.store.stores_both = parse_span(span)?,
            _ => return None,
        }
        Some(())
    }

    /// Checks an expectation. One that does not hold is written into the output, which makes the test fail.
    fn expect(&mut self, words: &[&str]) -> Option<()> {
        let sim = &self.sim;
        let is = match words {
            ["units", ..] => [&["units"], sim.executing().as_slice()].concat().join(" "),
            [_, name] => {
                let state = sim.state(sim.index(name));
                format!("{} {name}", state.map_or("down", |state| state.as_str()))
            }
            _ => return None,
        };
        let expected = words.join(" ");
        if is != expected {
            self.output.push(format!("! expected {expected}, but it is {is}"));
        }
        Some(())
    }

    fn strike(&mut self, verb: &str, name: &str, rest: &[&str]) -> Option<()> {
        let h = self.sim.hosts.iter().position(|host| host.name == name)?;
        self.strike_host(verb, h, rest).or_else(|| self.strike_unit(verb, h, rest))
    }

    fn strike_host(&mut self, verb: &str, h: usize, rest: &[&str]) -> Option<()> {
        let sim = &mut self.sim;
        match (verb, rest) {
            ("partition", []) => sim.set_link(h, Link { down: true, ..Link::default() }, true),
            ("partition-unnoticed", []) => sim.set_link(h, Link { down: true, ..Link::default() }, false),
            ("heal", []) => sim.set_link(h, Link::default(), true),
            ("lose-answers", []) => sim.set_link(h, Link { loses_answers: true, ..Link::default() }, false),
            ("lose-requests", []) => sim.set_link(h, Link { loses_requests: true, ..Link::default() }, false),
            ("hold-requests", []) => sim.set_link(h, Link { holds_requests: true, ..Link::default() }, false),
            ("watch-dies", []) => sim.set_link(h, Link { watch_dead: true, ..Link::default() }, false),
            ("reads-lag", [span]) => sim.hosts[h].lag = parse_span(span)?,
            ("power-loss", []) => sim.power_loss(h),
            ("power-on", []) => sim.power_on(h),
            ("freeze", []) => sim.freeze(h),
            ("thaw", []) => sim.thaw(h),
            ("suspend", []) => sim.suspend(h),
            ("wake-up", []) => sim.wake_up(h),
            ("stop-clocks", []) => {
                sim.freeze(h);
                sim.set_rates(h, 0, 0);
            }
            ("go-on", []) => {
                sim.set_rates(h, TRUE_RATE, TRUE_RATE);
                sim.thaw(h);
            }
            ("rates", [boot, raw]) => sim.set_rates(h, boot.parse().ok()?, raw.parse().ok()?),
            ("start-daemon", []) => sim.start_daemon(h),
            ("forget-longest-hold", []) => sim.hosts[h].disk.longest_hold = Duration::ZERO,
            ("crash-daemon", []) => sim.crash_daemon(h),
            ("pause-daemon", []) => sim.pause_daemon(h),
            ("resume-daemon", []) => sim.resume_daemon(h),
            ("kill-guard", []) => sim.kill_guard(h),
            ("start-guard", []) => sim.restart_guard(h),
            ("hang-guard", []) => sim.hang_guard(h),
            ("unhang-guard", []) => sim.unhang_guard(h),
            ("use-name-of", [other]) => {
                let other = sim.index(other);
                let node = sim.hosts[other].settings.node.clone();
                sim.hosts[h].settings.node = node;
            }
            _ => return None,
        }
        Some(())
    }

    fn strike_unit(&mut self, verb: &str, h: usize, rest: &[&str]) -> Option<()> {
        let sim = &mut self.sim;
        let host = &mut sim.hosts[h];
        match (verb, rest) {
            ("start-takes", [span]) => host.unit.nature.start_takes = parse_span(span)?,
            ("stop-takes", ["for-ever"]) => host.unit.nature.stop_takes = None,
            ("stop-takes", [span]) => host.unit.nature.stop_takes = Some(parse_span(span)?),
            ("kill-takes", ["for-ever"]) => host.unit.nature.kill_takes = None,
            ("kill-takes", [span]) => host.unit.nature.kill_takes = Some(parse_span(span)?),
            ("stop-timeout", ["none"]) => host.unit.nature.stop_timeout = None,
            ("start-fails", []) => host.unit.nature.start_fails = true,
            ("start-works", []) => host.unit.nature.start_fails = false,
            ("fences", []) => host.settings.fences = true,
            ("fencing-fails", []) => host.fence_works = false,
            ("fencing-works", []) => host.fence_works = true,
            ("other-key", []) => host.other_key = true,
            ("same-key", []) => host.other_key = false,
            ("unfences", []) => host.settings.unfences = true,
            ("checks", []) => {
                host.settings.check_validity = Some(host.settings.timings.lease());
                host.settings.checks_standby = true;
            }
            ("unhealthy", []) => host.active_healthy = false,
            ("healthy", []) => host.active_healthy = true,
            ("unfit", []) => host.standby_healthy = false,
            ("fit", []) => host.standby_healthy = true,
            ("check-hangs", []) => host.check_hangs = true,
            ("unit-dies", []) => sim.unit_dies(h),
            ("start-by-hand", []) => sim.start_by_hand(h),
            ("stray", []) => sim.run_a_stray(h),
            ("drain", []) => sim.tell_now(h, Event::Contend(Err("this host is drained".to_owned()))),
            ("undrain", []) => sim.tell_now(h, Event::Contend(Ok(()))),
            ("retire", []) => sim.tell_now(h, Event::Retire { reason: "putexd stops".to_owned() }),
            ("step-down", next) => {
                let next = next.first().map(|name| node(name));
                sim.tell_now(h, Event::StepDown { reason: "the operator asked".to_owned(), next });
            }
            _ => return None,
        }
        Some(())
    }
}

/// An age: a span, or `proven` for the time since the last `proven` was written.
fn age_of(sim: &Sim, text: &str) -> Option<Duration> {
    match text {
        "proven" => sim.store.proven_at().map(|at| sim.now.saturating_sub(at)),
        _ => parse_span(text),
    }
}

fn parse_span(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|character: char| character.is_ascii_alphabetic())?);
    let number: u64 = number.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

/// Parses timings such as `R=1s F=3 C=1 S=900ms longest-hold=20s`. What is missing is derived from R, F and C. Timings that are
/// not safe are refused, unless the scenario marks them as `unsafe` to show their effect.
fn parse_timings(before: Timings, words: &[&str]) -> Option<Timings> {
    let (mut renew, mut failures, mut confirmations) = (before.renew_interval, 3, 1);
    let (mut budget, mut longest, mut allowed) = (None, None, false);
    for word in words {
        match word.split_once('=') {
            Some(("R", text)) => renew = parse_span(text)?,
            Some(("F", text)) => failures = text.parse().ok()?,
            Some(("C", text)) => confirmations = text.parse().ok()?,
            Some(("S", text)) => budget = Some(parse_span(text)?),
            Some(("longest-hold", text)) => longest = Some(parse_span(text)?),
            None if *word == "unsafe" => allowed = true,
            Some(_) | None => return None,
        }
    }
    let mut timings = Timings::new(renew, failures, confirmations);
    if let Some(budget) = budget {
        timings.stop_budget = budget;
        timings.kill_reserve = Timings::default_kill_reserve(budget);
    }
    timings.longest_hold = longest;
    assert_eq!(timings.validate().is_err(), allowed, "{:?}", timings.validate());
    Some(timings)
}
