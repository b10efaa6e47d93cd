//! What keeps a service from being started on this host, or from going on.

use std::collections::BTreeMap;

use crate::facts::Bar;

/// What a bar comes from. There is one of each at most, and the first one counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BarSource {
    /// The service is only observed on this host.
    Mode,
    /// The host is shutting down.
    Shutdown,
    /// It is drained, and the service's turn has come.
    Drain,
    /// The service's file was broken when this putexd was started. It stands until the configuration is read anew.
    File,
    /// The units cannot be supervised, or the guard can take no lease of them, or nobody knows that yet.
    Admission,
    /// The units must not be run under the key of the configuration, or nobody knows that yet (the unit's entry, N1).
    Entry,
    /// Some of their processes left their control groups while they ran. It stands until the configuration is read anew.
    Outside,
}

/// The bars that stand.
#[derive(Default)]
pub struct Bars {
    standing: BTreeMap<BarSource, Bar>,
    /// Whether the election was told that there is none.
    is_clear_known: bool,
}

impl Bars {
    /// Sets or removes a bar. Returns the one that stood before.
    pub fn set(&mut self, source: BarSource, bar: Option<Bar>) -> Option<Bar> {
        match bar {
            Some(bar) => self.standing.insert(source, bar),
            None => self.standing.remove(&source),
        }
    }

    pub fn get(&self, source: BarSource) -> Option<&Bar> {
        self.standing.get(&source)
    }

    pub fn has(&self, source: BarSource) -> bool {
        self.get(source).is_some()
    }

    /// What the election is to be told: the bar that counts, or that there is none any more. While a unit may run, only the bars
    /// count that end it, and all others keep new starts from being begun. `ends`: a tenure is on its way to its end, which its
    /// bar is a part of.
    pub fn news(&mut self, may_run: bool, ends: bool) -> Option<Result<(), Bar>> {
        let mut bars = self.standing.values();
        let counts = bars
            .find(|bar| bar.ends_running())
            .or_else(|| self.standing.values().next().filter(|_| !may_run));
        if let Some(bar) = counts {
            self.is_clear_known = false;
            return Some(Err(bar.clone()));
        }
        let is_news = self.standing.is_empty() && !self.is_clear_known && !ends;
        self.is_clear_known |= is_news;
        is_news.then_some(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_unit_is_ended_by_what_ends_it_and_a_start_needs_all_to_be_gone() {
        let error = || "an error".to_owned();
        let refused = |ungated| {
            Some(Bar::NotAdmitted {
                error: error(),
                ungated,
            })
        };
        let mut bars = Bars::default();
        bars.set(BarSource::Entry, Some(Bar::EntryUnknown { error: error() }));
        bars.set(BarSource::Admission, refused(false));
        assert_eq!(bars.news(true, false), None, "it goes on");
        assert_eq!(bars.news(false, false), refused(false).map(Err));
        bars.set(BarSource::Entry, Some(Bar::OtherLock { error: error() }));
        let other = || Some(Err(Bar::OtherLock { error: error() }));
        assert_eq!(
            (bars.news(true, false), bars.news(false, false)),
            (other(), other())
        );
        bars.set(BarSource::Entry, None);
        assert_eq!(bars.news(true, false), None);
        bars.set(BarSource::Admission, refused(true));
        assert_eq!(
            bars.news(true, false),
            refused(true).map(Err),
            "systemd may start it without the lease"
        );
        bars.set(BarSource::Admission, None);
        assert_eq!(bars.news(true, true), None, "what ends it is not over yet");
        assert_eq!(bars.news(false, false), Some(Ok(())));
        assert_eq!(bars.news(false, false), None, "it is told once");
    }
}
