//! Makes RESULTS.md and its plots of the figures that `tests/bench/run` has collected.

use std::{collections::{BTreeMap, BTreeSet}, error::Error, fmt::Write as _, fs, path::{Path, PathBuf}};

use plotters::prelude::*;
use serde::Deserialize;

/// As `tests/system/scale.rs` writes it: a line of JSON.
#[derive(Debug, Deserialize)]
struct Figure {
    store: String,
    services: u32,
    name: String,
    unit: String,
    value: f64,
}

/// What was measured with one store: by name, in the order of the first run, by number of services.
#[derive(Debug, Default)]
struct Table {
    order: Vec<String>,
    units: BTreeMap<String, String>,
    values: BTreeMap<(String, u32), f64>,
}

/// A figure against another of the same run, so that it says something on another machine too.
struct Ratio {
    name: &'static str,
    of: &'static str,
    /// What no program can shorten: T + C·R at R = 3 s, F = 3, C = 2, in seconds.
    less: f64,
    to: &'static str,
}

const RATIOS: [Ratio; 4] = [
    Ratio { name: "start of all / PID 1's own", of: "start", less: 0.0, to: "PID 1 alone: start" },
    Ratio {
        name: "stop of putexd / PID 1's own stop of all",
        of: "release: the stop of putexd",
        less: 0.0,
        to: "PID 1 alone: stop",
    },
    Ratio {
        name: "release until all run / PID 1's own start of all",
        of: "release",
        less: 0.0,
        to: "PID 1 alone: start",
    },
    Ratio {
        name: "power loss, less T + C·R = 15 s / PID 1's own start of all",
        of: "power loss",
        less: 15.0,
        to: "PID 1 alone: start",
    },
];

const REST_LINES: [&str; 7] = [
    "rest, holder: putexd",
    "rest, holder: guard",
    "rest, holder: PID 1",
    "rest, holder: bus",
    "rest, standby: putexd",
    "rest, standby: PID 1",
    "PID 1 alone: rest",
];
const TIME_LINES: [&str; 6] =
    ["start", "release", "release: the stop of putexd", "power loss", "PID 1 alone: start", "PID 1 alone: stop"];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [figures, machine, folder] = &arguments[..] else {
        return Err("give three paths: the figures, a text on the machine, and the folder for the results".into());
    };
    let mut tables: BTreeMap<String, Table> = BTreeMap::new();
    for line in fs::read_to_string(figures)?.lines() {
        let Figure { store, services, name, unit, value } = serde_json::from_str(line)?;
        let table = tables.entry(store).or_default();
        if !table.order.contains(&name) {
            table.order.push(name.clone());
        }
        table.units.insert(name.clone(), unit);
        table.values.insert((name, services), value);
    }
    let mut text = String::from(
        "# What many services cost\n\nMade by `tests/bench/run`; do not edit. Three hosts in containers share the machine, with R = 3 s, F = 3, C = 2; each unit \
         is a `sleep`. One host runs all services, the others none, but after \"start\" and \"power loss\". CPU is in % of one core.\n\n",
    );
    text.push_str(&fs::read_to_string(machine)?);
    for (store, table) in &tables {
        write!(text, "\n## {store}\n\n{}", table.in_markdown())?;
        for (what, title, lines) in
            [("rest", "CPU at rest, % of a core", &REST_LINES[..]), ("time", "seconds", &TIME_LINES[..])]
        {
            let name = format!("{store}-{what}.svg");
            if table.plot(&folder.join(&name), title, lines)? {
                write!(text, "\n![{store}: {title}]({name})\n")?;
            }
        }
    }
    fs::write(folder.join("RESULTS.md"), text)?;
    Ok(())
}

impl Table {
    fn sizes(&self) -> BTreeSet<u32> {
        self.values.keys().map(|(_, services)| *services).collect()
    }

    fn value(&self, name: &str, services: u32) -> Option<f64> {
        self.values.get(&(name.to_owned(), services)).copied()
    }

    fn in_markdown(&self) -> String {
        let sizes = self.sizes();
        let mut text = String::from("| services |");
        let cells = |values: Vec<Option<f64>>| -> String {
            values
                .into_iter()
                .map(|value| value.map_or(" |".to_owned(), |value| format!(" {} |", short(value))))
                .collect()
        };
        for services in &sizes {
            write!(text, " {services} |").expect("text");
        }
        text.push_str("\n| --- |");
        text.push_str(&" --- |".repeat(sizes.len()));
        text.push('\n');
        for name in &self.order {
            let values = sizes.iter().map(|services| self.value(name, *services)).collect();
            writeln!(text, "| {name}, {} |{}", self.units[name], cells(values)).expect("text");
        }
        for Ratio { name, of, less, to } in &RATIOS {
            let ratio =
                |services: &u32| Some((self.value(of, *services)? - less).max(0.0) / self.value(to, *services)?);
            let values: Vec<_> = sizes.iter().map(ratio).collect();
            if values.iter().any(Option::is_some) {
                writeln!(text, "| *{name}* |{}", cells(values)).expect("text");
            }
        }
        text
    }

    /// Both axes are logarithmic. One size is no line, and is not drawn.
    fn plot(&self, path: &Path, title: &str, lines: &[&str]) -> Result<bool, Box<dyn Error>> {
        const LEAST: f64 = 0.01;
        let sizes = self.sizes();
        let (Some(first), Some(last)) = (sizes.first(), sizes.last()) else { return Ok(false) };
        if first == last {
            return Ok(false);
        }
        let points = |name: &str| -> Vec<(u32, f64)> {
            sizes.iter().filter_map(|size| Some((*size, self.value(name, *size)?.max(LEAST)))).collect()
        };
        let most = lines.iter().flat_map(|name| points(name)).map(|(_, value)| value).fold(1.0, f64::max);
        let area = SVGBackend::new(path, (820, 460)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(32)
            .y_label_area_size(52)
            .build_cartesian_2d((*first..*last).log_scale(), (LEAST..most * 1.5).log_scale())?;
        chart.configure_mesh().x_desc("services").light_line_style(TRANSPARENT).draw()?;
        for (at, name) in lines.iter().enumerate() {
            let color = Palette99::pick(at).to_rgba();
            let points = points(name);
            chart
                .draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?
                .label(*name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
            chart.draw_series(points.into_iter().map(|point| Circle::new(point, 3, color.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .draw()?;
        area.present()?;
        Ok(true)
    }
}

/// Three digits are more than a second run would confirm.
fn short(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}
