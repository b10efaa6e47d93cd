//! How the store has a history: in five pages, each under a key of its own, [`Key::of_history`].
//!
//! ```json
//! {"format":1,"page":7,"events":[{"at_ms":1767225600123,"host":"h1","what":"started","token":1767225600,"reason":"…","gap_ms":5480}]}
//! ```
//!
//! Pages are numbered from 0 on, and page n is in slot n modulo five, so that each new page replaces the oldest. A page takes up
//! to fifty events, the latest last: when the newest page has one event only, the four before it still have the 200 that are
//! [kept](super::KEPT). Events that this version does not understand stay where they are, and are not shown. A value that is no
//! page is replaced by the next page whose slot it is in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Happened, KEPT};
use crate::types::{Key, Value};

/// The number of slots.
pub const SLOTS: u32 = 5;

/// The most events of one page.
pub const EVENTS_IN_PAGE: usize = 50;

/// The version of the layout.
const FORMAT: u32 = 1;

/// The most bytes of a page, so that one more event never makes it larger than a value may be.
const PAGE_LIMIT_BYTES: usize = Value::LIMIT_BYTES - 2 * EVENT_LIMIT_BYTES;

/// The most bytes of an event. With its texts and the names of hosts at their longest, all characters escaped, it has fewer.
const EVENT_LIMIT_BYTES: usize = 3072;

/// The highest number of a page that is believed. Nobody gets there by counting.
const NUMBER_LIMIT: u64 = 1 << 48;

/// One page of a history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Page {
    format: u32,
    #[serde(rename = "page")]
    number: u64,
    /// Kept as they were found, because a newer putexd may have written more than this one understands.
    events: Vec<serde_json::Value>,
}

impl Page {
    /// The first page of a history, without an event.
    #[must_use]
    pub fn first() -> Self {
        Self { format: FORMAT, number: 0, events: Vec::new() }
    }

    /// The page that follows this one, without an event.
    #[must_use]
    pub fn next(&self) -> Self {
        Self { format: FORMAT, number: self.number + 1, events: Vec::new() }
    }

    /// The number of the page.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Where the page belongs.
    #[must_use]
    pub fn slot(&self) -> u32 {
        u32::try_from(self.number % u64::from(SLOTS)).unwrap_or(0)
    }

    /// Reads what is under the key of a slot. `None`: it is no page, or one of another slot.
    #[must_use]
    pub fn decode(slot: u32, value: &Value) -> Option<Self> {
        if value.is_too_large() || value.is_unsealed() || value.is_malformed() {
            return None;
        }
        let page: Self = serde_json::from_slice(&value.body).ok()?;
        (page.format == FORMAT && page.number < NUMBER_LIMIT && page.slot() == slot).then_some(page)
    }

    /// The value to write.
    #[must_use]
    pub fn encode(&self) -> Value {
        // A structure of numbers and of JSON that was read always becomes JSON.
        Value { body: serde_json::to_vec(self).unwrap_or_default(), fields: BTreeMap::new() }
    }

    /// Whether the next event needs a new page.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.events.len() >= EVENTS_IN_PAGE || self.encode().size() > PAGE_LIMIT_BYTES
    }

    /// Adds an event at the end.
    pub fn add(&mut self, happened: &Happened) {
        self.events.extend(serde_json::to_value(happened).ok());
    }

    /// The events that are understood, the latest last.
    #[must_use]
    pub fn happened(&self) -> Vec<Happened> {
        self.events.iter().filter_map(|event| Happened::deserialize(event).ok()).collect()
    }
}

/// The latest of these pages, which were read from the slots in any order.
#[must_use]
pub fn newest(pages: Vec<Page>) -> Option<Page> {
    following(pages).into_iter().max_by_key(Page::number)
}

/// The pages that follow each other. Writers replace the oldest of five pages, so a page whose number is further away from the
/// others was forged, or is left from a store that was restored. It counts as no page, and its slot is written again in its turn.
fn following(pages: Vec<Page>) -> Vec<Page> {
    let fits = |last: u64, page: &Page| page.number <= last && last - page.number < u64::from(SLOTS);
    let count = |last: u64| pages.iter().filter(|page| fits(last, page)).count();
    let last = pages.iter().map(Page::number).max_by_key(|last| (count(*last), std::cmp::Reverse(*last)));
    pages.into_iter().filter(|page| last.is_some_and(|last| fits(last, page))).collect()
}

/// The events of all pages by their time, the latest last and at most [`KEPT`]. `pages` are those that could be read, in any order.
/// Events later than `until_ms` are left out; the second value is their number.
#[must_use]
pub fn collected(pages: Vec<Page>, until_ms: u64) -> (Vec<Happened>, usize) {
    let mut pages = following(pages);
    pages.sort_by_key(Page::number);
    let mut events: Vec<Happened> = pages.iter().flat_map(Page::happened).collect();
    let all = events.len();
    events.retain(|happened| happened.at_ms <= until_ms);
    let left_out = all - events.len();
    // A host that was cut off tells late what happened before. Events of the same time stay in the order in which they were told.
    events.sort_by_key(|happened| happened.at_ms);
    events.drain(..events.len().saturating_sub(KEPT));
    (events, left_out)
}

/// The keys of all slots of a lock's history.
pub fn keys(lock: &Key) -> impl Iterator<Item = (u32, Key)> {
    (0..SLOTS).map(|slot| (slot, Key::of_history(lock, slot)))
}

#[cfg(test)]
mod tests {
    use super::super::What;
    use super::*;

    fn event(at_ms: u64) -> Happened {
        Happened::new(at_ms, "h1", What::Alarm, 7, "it stands still")
    }

    /// Adds events as a writer does, to what the slots hold.
    fn fill(slots: &mut [Option<Value>; 5], events: std::ops::Range<u64>) {
        for at in events {
            let pages = (0..SLOTS).zip(&*slots).filter_map(|(slot, value)| Page::decode(slot, value.as_ref()?));
            let mut page = newest(pages.collect())
                .map_or_else(Page::first, |page| if page.is_full() { page.next() } else { page });
            page.add(&event(at));
            slots[page.slot() as usize] = Some(page.encode());
        }
    }

    fn read(slots: &[Option<Value>; 5]) -> Vec<u64> {
        let pages = (0..SLOTS).zip(slots).filter_map(|(slot, value)| Page::decode(slot, value.as_ref()?));
        collected(pages.collect(), u64::MAX).0.iter().map(|happened| happened.at_ms).collect()
    }

    #[test]
    fn the_last_200_events_are_there_at_any_time() {
        let mut slots = [const { None }; 5];
        for count in 1..=620 {
            fill(&mut slots, count - 1..count);
            let expected: Vec<u64> = (count.saturating_sub(200)..count).collect();
            assert_eq!(read(&slots), expected, "after {count} events");
        }
    }

    #[test]
    fn what_is_no_page_of_its_slot_is_replaced_and_hides_no_other() {
        let mut slots = [const { None }; 5];
        fill(&mut slots, 0..120);
        let body = |text: &str| Some(Value { body: text.into(), ..Value::default() });
        for odd in [
            "",
            "h1",
            "{}",
            r#"{"format":2,"page":2,"events":[]}"#,
            r#"{"format":1,"page":3,"events":[]}"#,
            r#"{"format":1,"page":18446744073709551612,"events":[]}"#,
            r#"{"format":1,"page":2,"events":{}}"#,
        ] {
            slots[2] = body(odd);
            assert_eq!(read(&slots), (0..100).collect::<Vec<_>>(), "{odd}");
        }
        // A page that does not follow the others is none, whatever its number.
        slots[2] = body(r#"{"format":1,"page":281474976710652,"events":[{"at_ms":1,"host":"h1","what":"alarm"}]}"#);
        assert!(Page::decode(2, slots[2].as_ref().expect("a value")).is_some());
        assert_eq!(read(&slots), (0..100).collect::<Vec<_>>());
        slots[3] = Some(Value::too_large());
        fill(&mut slots, 200..300);
        assert_eq!(read(&slots), (0..100).chain(200..300).collect::<Vec<_>>());
    }

    #[test]
    fn the_longest_event_has_fewer_bytes_than_a_page_keeps_free() {
        let (name, text) = ("\u{1f4a9}".repeat(128), "\u{1f4a9}".repeat(500));
        let longest = Happened {
            gap_ms: Some(u64::MAX),
            former: name.clone(),
            former_token: u64::MAX,
            former_from_ms: Some(u64::MAX),
            or_earlier: true,
            lease_until_ms: Some(u64::MAX),
            ..Happened::new(u64::MAX, &name, What::Started, u64::MAX, &text).after_release(&text)
        };
        let bytes = serde_json::to_vec(&longest).expect("it becomes JSON").len();
        assert!(bytes < EVENT_LIMIT_BYTES, "{bytes}");
    }

    #[test]
    fn an_event_of_the_far_future_does_not_stay_in_front() {
        let mut page = Page::first();
        for at_ms in [1, u64::MAX, 2] {
            page.add(&event(at_ms));
        }
        let (events, left_out) = collected(vec![page], 1000);
        assert_eq!((events.iter().map(|event| event.at_ms).collect::<Vec<_>>(), left_out), (vec![1, 2], 1));
    }

    #[test]
    fn events_of_another_version_stay_and_are_not_shown() {
        let text = r#"{"format":1,"page":0,"events":[{"what":"danced","at_ms":1},{"at_ms":2,"host":"h1","what":"alarm","more":3}]}"#;
        let mut page = Page::decode(0, &Value { body: text.into(), ..Value::default() }).expect("a page");
        assert_eq!(page.happened().len(), 1);
        page.add(&event(5));
        let written = String::from_utf8(page.encode().body).expect("text");
        assert!(written.contains("danced") && written.contains(r#""more":3"#), "{written}");
    }

    /// putexd-scale(7) has these figures: `cargo test --lib -- --nocapture what_a_history_takes`.
    #[test]
    fn what_a_history_takes_is_what_the_manual_says() {
        let why = [
            (
                What::Started,
                "h2 has not renewed for 3.0s; wrote the lock, starts in 1.0s: waits for the former holder h2, whose unit may live until then",
            ),
            (What::Stopped, "root@h1: kernel update"),
        ];
        let mut slots = [const { None }; 5];
        let mut written: [Vec<usize>; 5] = Default::default();
        for count in 0..1000_u64 {
            let before = slots.clone();
            let pages = (0..SLOTS).zip(&slots).filter_map(|(slot, value)| Page::decode(slot, value.as_ref()?));
            let mut page = newest(pages.collect())
                .map_or_else(Page::first, |page| if page.is_full() { page.next() } else { page });
            let (what, reason) = why[usize::from(count % 2 == 1)];
            let gap_ms = (what == What::Started).then_some(4100);
            let is_start = what == What::Started;
            page.add(&Happened {
                gap_ms,
                former: if is_start { "h2".to_owned() } else { String::new() },
                former_token: if is_start { 1_795_445_400 } else { 0 },
                former_from_ms: is_start.then_some(1_795_445_400_123),
                ..Happened::new(1_795_445_454_123 + count, "h1", what, 1_795_445_454, reason)
            });
            slots[page.slot() as usize] = Some(page.encode());
            let changed = (0..5).find(|slot| slots[*slot] != before[*slot]).expect("a page is written");
            written[changed].push(slots[changed].as_ref().map_or(0, Value::size));
        }
        let kept = |values: usize| {
            let of_slot = |sizes: &Vec<usize>| sizes.iter().rev().take(values).sum::<usize>();
            written.iter().map(of_slot).sum::<usize>() / 1024
        };
        let largest = written.iter().flatten().max().copied().unwrap_or_default() / 1024;
        println!(
            "a page: {largest} KiB; all: {} KiB, with the last 2, 16, 64 values of each: {}, {}, {} KiB",
            kept(1),
            kept(2),
            kept(16),
            kept(64)
        );
        assert!((6..12).contains(&largest), "{largest}");
        for (values, expected) in [(1, 20..60), (2, 50..110), (16, 400..900), (64, 1000..2500)] {
            assert!(expected.contains(&kept(values)), "{values}: {}", kept(values));
        }
    }

    #[test]
    fn a_page_is_never_larger_than_a_value_may_be() {
        let mut page = Page::first();
        let worst = Happened {
            gap_ms: Some(u64::MAX),
            gap_is_least: true,
            former: "\"".repeat(128),
            former_token: u64::MAX,
            former_from_ms: Some(u64::MAX),
            or_earlier: true,
            lease_until_ms: Some(u64::MAX),
            ..Happened::new(u64::MAX, &"\"".repeat(128), What::Started, u64::MAX, &"\u{10fffd}".repeat(500))
        };
        while !page.is_full() {
            page.add(&worst);
        }
        assert!(page.encode().size() <= Value::LIMIT_BYTES);
        assert!(serde_json::to_vec(&worst).expect("JSON").len() < EVENT_LIMIT_BYTES);
    }
}
