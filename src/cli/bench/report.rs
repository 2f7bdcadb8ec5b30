//! What the runs came to: a line for each, their medians, and how the sides compare.

use std::fmt;

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

use super::{Output, Side};

/// All runs of one work.
#[derive(Debug)]
pub(super) struct Report {
    work: &'static str,
    runs: Vec<(Side, Figures)>,
}

/// The figures of one run, in the order in which they are printed.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures(Vec<Figure>);

#[derive(Debug, Clone, Copy)]
struct Figure {
    name: &'static str,
    unit: Unit,
    /// `None` where this system or this relay does not tell.
    value: Option<f64>,
}

/// What a figure is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Count,
    Bytes,
    Kib,
    Seconds,
    Micros,
    PerSecond,
    Ratio,
}

impl Figures {
    pub(super) fn add(&mut self, name: &'static str, unit: Unit, value: Option<f64>) {
        self.0.push(Figure { name, unit, value });
    }

    fn to_json(&self) -> Map<String, Value> {
        let entry = |figure: &Figure| (figure.key(), json!(figure.value));
        self.0.iter().map(entry).collect()
    }
}

impl Report {
    pub(super) fn new(work: &'static str) -> Self {
        Self {
            work,
            runs: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, side: Side, figures: Figures) {
        self.runs.push((side, figures));
    }

    /// Prints all of it on stdout.
    pub(super) fn print(&self, output: Output) -> Result<()> {
        match output {
            Output::Table => println!("{}", self.table()),
            Output::Json => println!("{}", serde_json::to_string_pretty(&self.to_json())?),
        }
        Ok(())
    }

    fn sides(&self) -> Vec<Side> {
        let mut sides: Vec<Side> = self.runs.iter().map(|(side, _)| *side).collect();
        sides.sort_unstable();
        sides.dedup();
        sides
    }

    /// Returns the medians of a side's runs.
    fn medians(&self, side: Side) -> Figures {
        let runs = || self.runs.iter().filter(|(of, _)| *of == side);
        let Some((_, first)) = runs().next() else {
            return Figures::default();
        };
        let median_of = |(at, figure): (usize, &Figure)| {
            let mut values: Vec<f64> = runs().filter_map(|(_, run)| run.0[at].value).collect();
            Figure {
                value: median(&mut values),
                ..*figure
            }
        };
        Figures(first.0.iter().enumerate().map(median_of).collect())
    }

    /// Returns the peer's medians as multiples of the relay's.
    fn ratios(&self) -> Option<Figures> {
        let (ours, theirs) = match self.sides()[..] {
            [ours, theirs] => (self.medians(ours), self.medians(theirs)),
            _ => return None,
        };
        let ratio = |(ours, theirs): (&Figure, &Figure)| {
            let both = ours.value.zip(theirs.value);
            // What was set, and not measured, is the same on both sides.
            let measured = both.filter(|(ours, _)| ours.is_normal() && varies(theirs.unit));
            Figure {
                value: measured.map(|(ours, theirs)| theirs / ours),
                ..*ours
            }
        };
        Some(Figures(ours.0.iter().zip(&theirs.0).map(ratio).collect()))
    }

    /// Returns a row for each figure and a column for each run.
    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let mut columns: Vec<(String, Figures)> = Vec::new();
        let ratios = self.ratios();
        for side in self.sides() {
            let runs = self.runs.iter().filter(|(of, _)| *of == side);
            for (at, (_, figures)) in runs.enumerate() {
                columns.push((format!("{side} {}", at + 1), figures.clone()));
            }
            columns.push((format!("{side} median"), self.medians(side)));
        }
        let mut header = vec![self.work.to_owned()];
        header.extend(columns.iter().map(|(name, _)| name.clone()));
        header.extend(ratios.iter().map(|_| "ratio".to_owned()));
        table.set_header(header);
        let rows = columns.first().map_or(0, |(_, figures)| figures.0.len());
        for row in 0..rows {
            let mut cells = vec![columns[0].1.0[row].name.to_owned()];
            cells.extend(
                columns
                    .iter()
                    .map(|(_, figures)| figures.0[row].to_string()),
            );
            if let Some(ratios) = &ratios {
                let ratio = ratios.0[row].value;
                cells.push(ratio.map_or_else(String::new, |ratio| format!("{ratio:.2} x")));
            }
            table.add_row(cells);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    fn to_json(&self) -> Value {
        let runs = self.runs.iter().map(|(side, figures)| {
            let mut run = figures.to_json();
            run.insert("side".to_owned(), json!(side.to_string()));
            Value::Object(run)
        });
        let medians = self.sides().into_iter();
        let medians = medians.map(|side| (side.to_string(), self.medians(side).to_json()));
        json!({
            "work": self.work,
            "runs": runs.collect::<Vec<_>>(),
            "median": medians.map(|(side, of)| (side, Value::Object(of))).collect::<Map<_, _>>(),
            "ratio": self.ratios().map(|ratios| ratios.to_json()),
        })
    }
}

impl Figure {
    /// Returns its name in JSON, unit included.
    fn key(&self) -> String {
        let name = self.name.replace(['/', ' ', '-'], "_").replace('.', "");
        match self.unit {
            Unit::Count | Unit::Ratio => name,
            Unit::Bytes => format!("{name}_bytes"),
            Unit::Kib => format!("{name}_kib"),
            Unit::Seconds => format!("{name}_seconds"),
            Unit::Micros => format!("{name}_us"),
            Unit::PerSecond => format!("{name}_per_second"),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(value) = self.value else {
            return f.write_str("n/a");
        };
        match self.unit {
            Unit::Count => write!(f, "{value:.0}"),
            Unit::Bytes => write!(f, "{value:.0} B"),
            Unit::Kib if value >= 10_240.0 => write!(f, "{:.1} MiB", value / 1024.0),
            Unit::Kib => write!(f, "{value:.2} KiB"),
            Unit::Seconds => write!(f, "{value:.3} s"),
            Unit::Micros => write!(f, "{value:.1} us"),
            Unit::PerSecond => write!(f, "{value:.0} /s"),
            Unit::Ratio => write!(f, "{value:.2}"),
        }
    }
}

/// Returns the middle of the values, or the mean of the two in the middle.
pub(super) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(match values.len() % 2 {
        0 => f64::midpoint(values[middle - 1], upper),
        _ => upper,
    })
}

/// Returns whether figures of this unit are measured; counts and sizes are what was asked for.
fn varies(unit: Unit) -> bool {
    matches!(
        unit,
        Unit::Kib | Unit::Seconds | Unit::Micros | Unit::PerSecond | Unit::Ratio
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(wall: f64, cpu: Option<f64>) -> Figures {
        let mut figures = Figures::default();
        figures.add("wake-ups", Unit::Count, Some(7.0));
        figures.add("wall", Unit::Seconds, Some(wall));
        figures.add("cpu", Unit::Seconds, cpu);
        figures
    }

    #[test]
    fn each_side_has_its_medians_and_the_peer_its_ratio() {
        let mut report = Report::new("burst");
        for wall in [1.0, 9.0, 2.0] {
            report.add(Side::Reveille, figures(wall, None));
            report.add(Side::Nats, figures(wall * 10.0, Some(3.0)));
        }
        let json = report.to_json();
        assert_eq!(json["median"]["reveille"]["wall_seconds"], 2.0);
        assert_eq!(json["ratio"]["wall_seconds"], 10.0);
        assert_eq!(json["ratio"]["cpu_seconds"], Value::Null);
        assert_eq!(json["ratio"]["wake_ups"], Value::Null);
        assert_eq!(json["runs"][0]["side"], "reveille");
    }

    #[test]
    fn what_is_not_known_is_printed_as_such() {
        let mut report = Report::new("burst");
        report.add(Side::Reveille, figures(1.0, None));
        assert!(report.table().to_string().contains("n/a"));
    }

    #[test]
    fn the_median_of_an_even_count_is_in_between() {
        assert_eq!(median(&mut [4.0, 1.0]), Some(2.5));
        assert_eq!(median(&mut []), None);
    }
}
