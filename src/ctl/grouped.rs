//! The findings of all services, one for each cause: what many services have alike is told once, with the earliest and the latest of
//! their times.

use std::collections::{BTreeMap, BTreeSet};

use super::found::{Found, PLACE, Range, Rank, Severity, fill};
use super::view::{Finding, NAMED, ServiceView, enumerated};

/// The findings of some services with one cause.
struct Group<'a> {
    first: &'a Found,
    services: Vec<String>,
    times: Vec<Range>,
    places: BTreeSet<&'a str>,
    is_one_place: bool,
    is_one_reason: bool,
}

impl<'a> Group<'a> {
    fn add(&mut self, service: &str, found: &'a Found) {
        if self.services.last().is_none_or(|last| last != service) {
            self.services.push(service.to_owned());
        }
        self.times.iter_mut().zip(&found.times).for_each(|(range, time)| range.widen(time));
        self.places.extend(found.places.iter().map(String::as_str));
        self.is_one_place &= self.first.place == found.place;
        self.is_one_reason &= self.first.reason == found.reason;
    }

    fn finding(self) -> Finding {
        let Found { severity, rank, text, words, reason, .. } = self.first;
        let places: Vec<String> = self.places.into_iter().map(str::to_owned).collect();
        let place = if self.is_one_place { self.first.place.clone() } else { enumerated(&places, NAMED) };
        let words = words.replace(PLACE, &place);
        let text = match &self.services[..] {
            [_] => text.clone(),
            _ if self.is_one_reason => fill(&words, &self.times, reason, "SERVICE"),
            _ => fill(&words, &self.times, "\"putexctl status SERVICE\" has the reason of each", "SERVICE"),
        };
        Finding { severity: *severity, services: self.services, text, rank: *rank }
    }
}

/// The findings of the services, one for each cause.
pub(super) fn grouped(views: &[ServiceView]) -> Vec<Finding> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut places: BTreeMap<(Severity, Rank, &str), usize> = BTreeMap::new();
    for view in views {
        for found in view.findings.iter().filter(|found| !found.is_told_of_host) {
            let place = *places.entry((found.severity, found.rank, &found.cause)).or_insert_with(|| {
                let times = found.times.iter().map(Range::of).collect();
                groups.push(Group {
                    first: found,
                    services: Vec::new(),
                    times,
                    places: BTreeSet::new(),
                    is_one_place: true,
                    is_one_reason: true,
                });
                groups.len() - 1
            });
            groups[place].add(&view.service, found);
        }
    }
    groups.into_iter().map(Group::finding).collect()
}
