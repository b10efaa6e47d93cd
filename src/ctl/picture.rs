//! The time line of the holders as a picture: a row for each service, a bar for each tenure, gaps in red, and marks for notes.

use std::collections::BTreeMap;

use svg::Document;
use svg::node::element::{Circle, Group, Rectangle, Text, Title};

use super::runs::{Past, Shown};
use crate::cluster::history::{Known, Start, What};
use crate::types::printable;
use crate::types::span::date;

/// The colours of hosts: those of Okabe and Ito, which people who see colours differently can tell apart, without the red one, which
/// is for gaps.
const COLOURS: [&str; 7] = ["#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#0072b2", "#b0b0b0"];
const GAP: &str = "#d00000";

const WIDTH: u64 = 1200;
const LEFT: u64 = 170;
const RIGHT: u64 = 30;
const TOP: u64 = 60;
const ROW: u64 = 40;
const BAR: u64 = 20;
/// A gap is at least this wide, in pixels, so that it can be seen in a picture of a whole month.
const LEAST: u64 = 3;
/// The width of a character.
const LETTER: u64 = 7;

/// The part of time that is drawn, in milliseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    pub(super) from_ms: u64,
    pub(super) until_ms: u64,
}

impl Range {
    fn x(self, at_ms: u64) -> u64 {
        let at = at_ms.clamp(self.from_ms, self.until_ms) - self.from_ms;
        LEFT + at.saturating_mul(WIDTH - LEFT - RIGHT) / (self.until_ms - self.from_ms).max(1)
    }
}

/// The picture, which is the same text for the same histories.
pub(super) fn draw(pasts: &[Past], range: Range) -> String {
    let all = pasts.iter().flat_map(|past| &past.runs);
    let mut hosts: BTreeMap<&str, &str> = all.map(|shown| (shown.run.host.as_str(), "")).collect();
    hosts.values_mut().zip(COLOURS.iter().cycle()).for_each(|(colour, next)| *colour = next);
    let height = TOP + ROW * u64::try_from(pasts.len()).unwrap_or(u64::MAX / ROW / 2) + 20;
    let mut document = Document::new()
        .set("width", WIDTH)
        .set("height", height)
        .set("font-family", "sans-serif")
        .set("font-size", 12)
        .add(Rectangle::new().set("width", "100%").set("height", "100%").set("fill", "white"))
        .add(label(LEFT, 20, &date(range.from_ms / 1000)))
        .add(label(WIDTH - RIGHT, 20, &date(range.until_ms / 1000)).set("text-anchor", "end"));
    let mut x = LEFT;
    for (host, colour) in &hosts {
        document = document.add(bar(x, 32, 12, 12, colour)).add(label(x + 18, 43, host));
        x += 40 + LETTER * u64::try_from(host.chars().count()).unwrap_or(0);
    }
    for (y, past) in (TOP..).step_by(usize::try_from(ROW).unwrap_or(1)).zip(pasts) {
        document = document.add(row(past, y, range, &hosts));
    }
    format!("{document}\n")
}

fn row(past: &Past, y: u64, range: Range, hosts: &BTreeMap<&str, &str>) -> Group {
    let mut group = Group::new().add(label(LEFT - 10, y + 15, &past.service).set("text-anchor", "end"));
    let span = |from: u64, until: u64| (range.x(from), range.x(until).saturating_sub(range.x(from)).max(LEAST));
    for Shown { run, gap, goes_on } in &past.runs {
        let Start::At(from) = run.start else { continue };
        let until = run.end.map_or(range.until_ms, |end| end.at_ms);
        if let Some(gap) = gap.filter(|gap| gap.ms > 0 && from >= range.from_ms) {
            let (x, width) = span(from.saturating_sub(gap.ms), from);
            group = group.add(titled(bar(x, y, width, BAR, GAP), &format!("nobody ran it for {gap}")));
        }
        if until < range.from_ms {
            continue;
        }
        let (x, width) = span(from, until);
        let colour = hosts.get(run.host.as_str()).copied().unwrap_or(COLOURS[0]);
        let mut shape = bar(x, y, width, BAR, colour);
        // An end that nobody knows exactly has a broken outline.
        if goes_on.is_none() || run.end.is_some_and(|end| end.known != Known::Exactly) {
            shape = shape.set("stroke-dasharray", "4 2");
        }
        let text = format!("{} from {}: {}; {}", run.host, date(from / 1000), run.began, run.ended);
        group = group.add(titled(shape, &text));
        if width > LETTER * u64::try_from(run.host.chars().count()).unwrap_or(0) + 8 {
            group = group.add(label(x + 4, y + 15, &run.host));
        }
        for note in run.notes.iter().filter(|note| note.at_ms >= range.from_ms) {
            let fill = if note.what == What::Alarm { GAP } else { "black" };
            let circle =
                Circle::new().set("cx", range.x(note.at_ms)).set("cy", y + BAR + 6).set("r", 4).set("fill", fill);
            group = group.add(circle.add(Title::new(shown(&note.text))));
        }
    }
    if let Some(since) = past.down_since_ms {
        let (x, width) = span(since, range.until_ms);
        group = group.add(titled(bar(x, y, width, BAR, GAP), "nobody runs it"));
    }
    group
}

fn bar(x: u64, y: u64, width: u64, height: u64, fill: &str) -> Rectangle {
    let shape = Rectangle::new().set("x", x).set("y", y).set("width", width).set("height", height);
    shape.set("fill", fill).set("stroke", "black")
}

fn titled(shape: Rectangle, text: &str) -> Rectangle {
    shape.add(Title::new(shown(text)))
}

fn label(x: u64, y: u64, text: &str) -> Text {
    Text::new(shown(text)).set("x", x).set("y", y)
}

/// Texts are of other hosts: nothing of them harms a terminal, and the crate escapes what XML would take for a tag.
fn shown(text: &str) -> String {
    printable(text).into_owned()
}
