//! The time line of the holders as a picture: a row for each service, a bar for each tenure, and gaps in red.

use std::collections::BTreeMap;

use svg::{
    Document,
    node::element::{Rectangle, Text, Title},
};

use super::runs::{Past, PastRun};
use crate::{
    cluster::history::{Known, Start},
    types::{printable, span::date},
};

/// The colours of hosts: those of Okabe and Ito, which people who see colours differently can tell apart, without the red one, which
/// is for gaps.
const COLOURS: [&str; 7] = [
    "#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#0072b2", "#b0b0b0",
];
const GAP: &str = "#d00000";

const WIDTH: u64 = 1200;
const LEFT: u64 = 170;
const RIGHT: u64 = WIDTH - 30;
const TOP: u64 = 60;
const ROW: u64 = 40;
const BAR: u64 = 20;
/// A gap is at least this wide, in pixels, so that it can be seen in a picture of a whole month.
const LEAST: u64 = 3;
/// The room of a host's name in the legend.
const NAME: usize = 120;

/// The picture, which is the same text for the same histories, from the time that is asked for, or the first start, on. `None`: there is
/// nothing to draw.
pub fn draw(pasts: &[Past], from_ms: u64, now_ms: u64) -> Option<String> {
    let all = || pasts.iter().flat_map(|past| &past.runs);
    let first = all().map(|shown| shown.run.at_ms()).min()?;
    let until = now_ms.max(first.saturating_add(1000));
    let from = from_ms.clamp(first, until - 1);
    let x = |at: u64| {
        LEFT + (at.clamp(from, until) - from).saturating_mul(RIGHT - LEFT) / (until - from)
    };
    let mut hosts: BTreeMap<&str, &str> = all().map(|shown| (&*shown.run.host, "")).collect();
    for (colour, next) in hosts.values_mut().zip(COLOURS.iter().cycle()) {
        *colour = next;
    }
    let mut picture = Document::new()
        .set("width", WIDTH)
        .set("font-family", "sans-serif")
        .set("font-size", 12)
        .add(label(LEFT, 20, &date(from / 1000)))
        .add(label(RIGHT, 20, &date(until / 1000)).set("text-anchor", "end"));
    for ((host, colour), x) in hosts.iter().zip((LEFT..).step_by(NAME)) {
        picture = picture
            .add(bar((x, 32), 12, colour, host))
            .add(label(x + 18, 43, host));
    }
    let mut y = TOP;
    for past in pasts {
        picture = picture.add(label(LEFT - 10, y + 15, &past.service).set("text-anchor", "end"));
        for PastRun {
            run, gap, goes_on, ..
        } in &past.runs
        {
            let Start::At(start) = run.start else {
                continue;
            };
            let end = run.end.map_or(until, |end| end.at_ms);
            if let Some(gap) = gap.filter(|gap| gap.ms > 0 && start >= from) {
                let x = (x(start.saturating_sub(gap.ms)), x(start));
                let text = format!("nobody ran it for {gap}");
                picture = picture.add(bar((x.0, y), x.1 - x.0, GAP, &text));
            }
            if end < from {
                continue;
            }
            let (host, begun) = (&run.host, date(start / 1000));
            let text = format!("{host} from {begun}: {}", run.ended);
            let mut shape = bar(
                (x(start), y),
                x(end).saturating_sub(x(start)),
                hosts[&**host],
                &text,
            );
            // An end that nobody knows exactly has a broken outline.
            if !goes_on && run.end.is_none_or(|end| end.known != Known::Exactly) {
                shape = shape.set("stroke-dasharray", "4 2");
            }
            picture = picture.add(shape);
        }
        y += ROW;
    }
    let picture = picture.set("height", y + 20);
    Some(format!("{picture}\n"))
}

/// Texts are of other hosts: nothing of them harms a terminal, and the crate escapes what XML would take for a tag.
fn bar((x, y): (u64, u64), width: u64, fill: &str, text: &str) -> Rectangle {
    Rectangle::new()
        .set("x", x)
        .set("y", y)
        .set("width", width.max(LEAST))
        .set("height", BAR)
        .set("fill", fill)
        .set("stroke", "black")
        .add(Title::new(printable(text).into_owned()))
}

fn label(x: u64, y: u64, text: &str) -> Text {
    Text::new(printable(text).into_owned())
        .set("x", x)
        .set("y", y)
}
