//! The time line of the holders as a picture: a row for each service, a bar for each holding, gaps in red, and marks for alarms and for
//! what operators asked for. It is the same text for the same history, and can be printed: bars have outlines, and the name of their
//! host where there is room.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::holdings::{End, Holding, bound_of_rest};
use crate::types::span::{date, rounded};
use crate::types::{printable, shortened};

/// The colours of hosts: those of Okabe and Ito, which people who see colours differently can tell apart, without the red one, which
/// is for gaps.
const COLOURS: [&str; 7] = ["#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#0072b2", "#b0b0b0"];
const GAP: &str = "#d00000";

const WIDTH: u64 = 1200;
const LEFT: u64 = 170;
const RIGHT: u64 = 30;
const TOP: u64 = 76;
const ROW: u64 = 46;
/// A picture with more rows has its legend and the times above them as well.
const TALL: usize = 10;
const BAR: u64 = 20;
/// A gap is at least this wide, in pixels, so that it can be seen in a picture of a whole month.
const LEAST_GAP: u64 = 3;
/// The width of a character, and the least distance of two texts.
const LETTER: u64 = 7;

/// A service with what is drawn of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Row {
    pub(super) service: String,
    pub(super) holdings: Vec<Holding>,
    /// Since when nobody runs it, in milliseconds since 1970.
    pub(super) nobody_since_ms: Option<u64>,
    pub(super) marks: Vec<Mark>,
}

/// A point in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) at_ms: u64,
    pub(super) is_alarm: bool,
    pub(super) host: String,
    pub(super) text: String,
}

/// What part of time is drawn, in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) from_ms: u64,
    pub(super) until_ms: u64,
}

impl Range {
    /// The place of a time on the picture, in pixels from the left.
    fn place(self, at_ms: u64) -> u64 {
        let at = at_ms.clamp(self.from_ms, self.until_ms) - self.from_ms;
        let pixels = u128::from(at) * u128::from(WIDTH - LEFT - RIGHT) / u128::from(self.length().max(1));
        LEFT + u64::try_from(pixels).unwrap_or(0)
    }

    const fn length(self) -> u64 {
        self.until_ms.saturating_sub(self.from_ms)
    }

    const fn has(self, at_ms: u64) -> bool {
        at_ms >= self.from_ms && at_ms <= self.until_ms
    }
}

/// The picture, as the text of a file. `note`: what is said above it beside the title.
pub(super) fn draw(rows: &[Row], range: Range, note: &str) -> String {
    let colours = colours(rows);
    let legend_height = 22 * legend_lines(&colours);
    let is_tall = rows.len() > TALL;
    let top = if is_tall { TOP + legend_height + 36 } else { TOP };
    let bottom = top + ROW * rows.len() as u64;
    let mut svg = Svg::new(bottom + 60 + legend_height);
    let title = format!("Holders from {} until {}", date(range.from_ms / 1000), date(range.until_ms / 1000));
    svg.text(LEFT, 26, "title", &title);
    let about = if note.is_empty() { String::new() } else { format!(" {note}.") };
    svg.text(LEFT, 44, "small", &format!("Times are UTC. A red gap: nobody ran the service.{about}"));
    axis(&mut svg, range, (top, bottom), is_tall);
    for (number, row) in rows.iter().enumerate() {
        draw_row(&mut svg, row, range, &colours, top + ROW * number as u64);
    }
    if is_tall {
        legend(&mut svg, &colours, TOP - 16);
    }
    legend(&mut svg, &colours, bottom + 44);
    svg.end()
}

/// Each host's colour, by name.
fn colours(rows: &[Row]) -> BTreeMap<&str, &'static str> {
    let mut hosts: BTreeMap<&str, &'static str> = BTreeMap::new();
    for row in rows {
        hosts.extend(row.holdings.iter().map(|holding| (holding.host.as_str(), "")));
    }
    for ((_, colour), next) in hosts.iter_mut().zip(COLOURS.iter().cycle()) {
        *colour = next;
    }
    hosts
}

/// The lines of the time axis: at most twelve, at round times, which are written below it, and above it as well if `is_tall`.
fn axis(svg: &mut Svg, range: Range, (top, bottom): (u64, u64), is_tall: bool) {
    const STEPS: [u64; 17] =
        [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000];
    let seconds = range.length() / 1000;
    let step = STEPS.into_iter().find(|step| seconds / step <= 10).unwrap_or(31_536_000);
    let mut at = range.from_ms / 1000 / step * step;
    let mut day = String::new();
    while at * 1000 <= range.until_ms {
        if range.has(at * 1000) {
            let place = range.place(at * 1000);
            svg.line((place, top - 6), (place, bottom + 4), "grid");
            let written = date(at);
            let (date, time) = written.split_once('T').unwrap_or((&written, ""));
            let time = time.trim_end_matches('Z');
            let time = if step >= 60 { time.get(..5).unwrap_or(time) } else { time };
            // The day is written where it begins.
            let begins = (step < 86_400 && date != day).then_some(date);
            let shown = if step >= 86_400 { date } else { time };
            for (of_time, of_day) in
                [(bottom + 17, bottom + 31), (top - 10, top - 24)].into_iter().take(1 + usize::from(is_tall))
            {
                svg.centred(place, of_time, shown);
                if let Some(date) = begins {
                    svg.centred(place, of_day, date);
                }
            }
            date.clone_into(&mut day);
        }
        at += step;
    }
    svg.line((LEFT, bottom + 4), (WIDTH - RIGHT, bottom + 4), "axis");
}

fn draw_row(svg: &mut Svg, row: &Row, range: Range, colours: &BTreeMap<&str, &'static str>, top: u64) {
    svg.right(LEFT - 10, top + 26, &shortened(&row.service, 20));
    let bar = top + 12;
    svg.line((LEFT, bar + BAR / 2), (WIDTH - RIGHT, bar + BAR / 2), "base");
    for holding in &row.holdings {
        let from = holding.from_ms;
        let until = holding.until_ms.unwrap_or(range.until_ms);
        if until < range.from_ms || from > range.until_ms {
            continue;
        }
        let (left, right) = (range.place(from), range.place(until));
        let width = (right - left).max(1);
        let about = format!(
            "{} on {}: from {} until {}, fencing token {}{}",
            row.service,
            holding.host,
            date(from / 1000),
            until_in_words(holding),
            holding.token,
            if holding.ended.is_empty() { String::new() } else { format!("; ended: {}", holding.ended) }
        );
        svg.bar((left, bar), width, colours.get(holding.host.as_str()).copied().unwrap_or("#b0b0b0"), &about);
        if holding.end == End::NotKnown {
            // From the last sign of life on, nobody knows whether it ran.
            let known = range.place(holding.told_ms.clamp(from, until));
            svg.unknown((known, bar), right.saturating_sub(known).max(1));
        }
        let name = shortened(&holding.host, 24);
        if name.chars().count() as u64 * LETTER + 8 < width {
            svg.text(left + 5, bar + 15, "name", &name);
        }
    }
    // Over the bars, so that a short gap is seen between them.
    let mut free = LEFT;
    for held in &row.holdings {
        let parts = held.gaps.iter().filter(|_| held.gap_ms.is_some());
        for (from, until) in parts.filter(|(from, until)| *until >= range.from_ms && *from <= range.until_ms) {
            free = gap(svg, range, (*from, *until), held.bound_of_gap(), bar, free);
        }
    }
    if let Some(since) = row.nobody_since_ms {
        gap(svg, range, (since, range.until_ms.max(since)), bound_of_rest(&row.holdings), bar, free);
    }
    for mark in row.marks.iter().filter(|mark| range.has(mark.at_ms)) {
        svg.mark(
            range.place(mark.at_ms),
            bar + BAR,
            mark,
            &format!("{} on {}, {}: {}", row.service, mark.host, date(mark.at_ms / 1000), mark.text),
        );
    }
}

fn until_in_words(holding: &Holding) -> String {
    let at = |until: u64| date(until / 1000);
    match (holding.until_ms, holding.end) {
        (Some(until), End::NotKnown) => format!("{} at the latest", at(until)),
        (Some(until), End::LastHeard) => format!("{} or later", at(until)),
        (Some(until), _) => at(until),
        (None, _) => "now".to_owned(),
    }
}

/// A gap, with its length above it where there is room behind the text before. Returns where the next text may begin.
fn gap(svg: &mut Svg, range: Range, (from, until): (u64, u64), bound: &str, bar: u64, free: u64) -> u64 {
    let (left, right) = (range.place(from), range.place(until));
    let width = (right - left).max(LEAST_GAP);
    let length = format!("{bound}{}", rounded(Duration::from_millis(until - from)));
    svg.gap((left, bar), width, &format!("nobody ran it for {length}, from {} on", date(from / 1000)));
    let half = length.chars().count() as u64 * LETTER / 2;
    let middle = left + width / 2;
    if middle.saturating_sub(half) < free {
        return free;
    }
    svg.small_centred(middle, bar - 4, &length);
    middle + half + LETTER
}

/// How many lines the legend takes.
fn legend_lines(colours: &BTreeMap<&str, &'static str>) -> u64 {
    (colours.len() as u64 + 4).div_ceil(5)
}

fn legend(svg: &mut Svg, colours: &BTreeMap<&str, &'static str>, top: u64) {
    let place = |number: u64| (LEFT + number % 5 * 200, top + number / 5 * 22);
    for (number, (host, colour)) in colours.iter().enumerate() {
        let (left, top) = place(number as u64);
        svg.swatch((left, top), colour);
        svg.text(left + 24, top + 12, "plain", &shortened(host, 22));
    }
    let next = colours.len() as u64;
    let (left, top) = place(next);
    svg.swatch((left, top), GAP);
    svg.text(left + 24, top + 12, "plain", "nobody ran it");
    let (left, top) = place(next + 1);
    svg.swatch((left, top), "url(#unknown)");
    svg.text(left + 24, top + 12, "plain", "not known");
    for (number, (is_alarm, text)) in [(true, "alarm"), (false, "an operator's order")].into_iter().enumerate() {
        let (left, top) = place(next + 2 + number as u64);
        let mark = Mark { at_ms: 0, is_alarm, host: String::new(), text: String::new() };
        svg.mark(left + 8, top + 1, &mark, text);
        svg.text(left + 24, top + 12, "plain", text);
    }
}

/// The text of the file.
struct Svg(String);

impl Svg {
    fn new(height: u64) -> Self {
        let style = "text{font:13px sans-serif;fill:#111}.title{font-size:17px;font-weight:bold}.small{font-size:11px;fill:#444}\
                     .name{font-size:12px}.grid{stroke:#ddd}.axis{stroke:#333}.base{stroke:#bbb;stroke-dasharray:2 3}";
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\">\n\
             <style>{style}</style>\n\
             <defs><pattern id=\"unknown\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
             <rect width=\"6\" height=\"6\" fill=\"#fff\" fill-opacity=\"0.55\"/><line y2=\"6\" stroke=\"#333\" stroke-width=\"2\"/></pattern></defs>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n"
        ))
    }

    fn end(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }

    /// Writing to a string does not fail.
    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = self.0.write_fmt(element);
        self.0.push('\n');
    }

    fn text(&mut self, left: u64, bottom: u64, class: &str, text: &str) {
        self.add(format_args!("<text x=\"{left}\" y=\"{bottom}\" class=\"{class}\">{}</text>", escaped(text)));
    }

    fn centred(&mut self, middle: u64, bottom: u64, text: &str) {
        let text = escaped(text);
        self.add(format_args!("<text x=\"{middle}\" y=\"{bottom}\" text-anchor=\"middle\">{text}</text>"));
    }

    fn small_centred(&mut self, middle: u64, bottom: u64, text: &str) {
        let text = escaped(text);
        self.add(format_args!(
            "<text x=\"{middle}\" y=\"{bottom}\" class=\"small\" text-anchor=\"middle\">{text}</text>"
        ));
    }

    fn right(&mut self, right: u64, bottom: u64, text: &str) {
        self.add(format_args!("<text x=\"{right}\" y=\"{bottom}\" text-anchor=\"end\">{}</text>", escaped(text)));
    }

    fn line(&mut self, from: (u64, u64), to: (u64, u64), class: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.add(format_args!("<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" class=\"{class}\"/>"));
    }

    fn bar(&mut self, (left, top): (u64, u64), width: u64, colour: &str, about: &str) {
        self.add(format_args!(
            "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{BAR}\" fill=\"{colour}\" stroke=\"#333\"><title>{}</title></rect>",
            escaped(about)
        ));
    }

    fn gap(&mut self, (left, top): (u64, u64), width: u64, about: &str) {
        let (top, height) = (top - 2, BAR + 4);
        self.add(format_args!(
            "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" fill=\"{GAP}\"><title>{}</title></rect>",
            escaped(about)
        ));
    }

    /// A hatched part of a bar.
    fn unknown(&mut self, (left, top): (u64, u64), width: u64) {
        self.add(format_args!(
            "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{BAR}\" fill=\"url(#unknown)\" stroke=\"#333\">\
             <title>whether it ran is not known</title></rect>"
        ));
    }

    fn swatch(&mut self, (left, top): (u64, u64), colour: &str) {
        self.add(format_args!(
            "<rect x=\"{left}\" y=\"{top}\" width=\"16\" height=\"14\" fill=\"{colour}\" stroke=\"#333\"/>"
        ));
    }

    /// A triangle below the bar for an alarm, and a diamond for an order.
    fn mark(&mut self, middle: u64, top: u64, mark: &Mark, about: &str) {
        let (left, right) = (middle.saturating_sub(6), middle + 6);
        let (points, colour) = if mark.is_alarm {
            (format!("{middle},{top} {left},{} {right},{}", top + 11, top + 11), "#d00000")
        } else {
            (format!("{middle},{top} {right},{} {middle},{} {left},{}", top + 6, top + 12, top + 6), "#333333")
        };
        self.add(format_args!(
            "<polygon points=\"{points}\" fill=\"{colour}\" stroke=\"#fff\"><title>{}</title></polygon>",
            escaped(about)
        ));
    }
}

/// Text for XML. Names and reasons come from other hosts.
fn escaped(text: &str) -> String {
    let mut shown = String::new();
    for character in printable(text).chars() {
        match character {
            '&' => shown.push_str("&amp;"),
            '<' => shown.push_str("&lt;"),
            '>' => shown.push_str("&gt;"),
            '"' => shown.push_str("&quot;"),
            '\'' => shown.push_str("&apos;"),
            other => shown.push(other),
        }
    }
    shown
}
