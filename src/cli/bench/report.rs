//! What the runs came to: a line for each, their medians, and how the sides compare.

use std::{borrow::Cow, fmt};

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

#[derive(Debug, Clone)]
struct Figure {
    name: Cow<'static, str>,
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
    pub(super) fn add(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        unit: Unit,
        value: Option<f64>,
    ) {
        let name = name.into();
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
                ..figure.clone()
            }
        };
        Figures(first.0.iter().enumerate().map(median_of).collect())
    }

    /// Returns how each peer compares with the relay: how many times less the relay uses, or more it
    /// does. Above 1, the relay is better.
    fn ratios(&self) -> Vec<(Side, Figures)> {
        let ours = self.medians(Side::Reveille);
        let peers = self.sides().into_iter();
        let peers = peers.filter(|side| *side != Side::Reveille);
        let ratios = |peer: Side| {
            let theirs = self.medians(peer);
            let ratio = |(ours, theirs): (&Figure, &Figure)| Figure {
                value: ratio(ours, theirs),
                ..ours.clone()
            };
            let ratios = ours.0.iter().zip(&theirs.0).map(ratio);
            (peer, Figures(ratios.collect()))
        };
        peers.map(ratios).collect()
    }

    /// Returns a row for each figure and a column for each run.
    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let mut columns: Vec<(String, Figures)> = Vec::new();
        let ratios = self.ratios();
        for side in self.sides() {
            let runs = self.runs.iter().filter(|(of, _)| *of == side);
            let runs: Vec<&Figures> = runs.map(|(_, figures)| figures).collect();
            if let [only] = runs[..] {
                columns.push((side.to_string(), only.clone()));
                continue;
            }
            for (at, figures) in runs.into_iter().enumerate() {
                columns.push((format!("{side} {}", at + 1), figures.clone()));
            }
            columns.push((format!("{side} median"), self.medians(side)));
        }
        let mut header = vec![self.work.to_owned()];
        header.extend(columns.iter().map(|(name, _)| name.clone()));
        header.extend(ratios.iter().map(|(peer, _)| format!("{peer} ratio")));
        table.set_header(header);
        let rows = columns.first().map_or(0, |(_, figures)| figures.0.len());
        for row in 0..rows {
            let mut cells = vec![columns[0].1.0[row].name.to_string()];
            cells.extend(
                columns
                    .iter()
                    .map(|(_, figures)| figures.0[row].to_string()),
            );
            cells.extend(ratios.iter().map(|(_, ratios)| {
                let ratio = ratios.0[row].value;
                ratio.map_or_else(String::new, |ratio| format!("{ratio:.2} x"))
            }));
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
        let medians = medians.map(|side| (side, self.medians(side)));
        let by_side = |sides: &mut dyn Iterator<Item = (Side, Figures)>| {
            let entry = |(side, of): (Side, Figures)| (side.to_string(), of.to_json().into());
            sides.map(entry).collect::<Map<String, Value>>()
        };
        json!({
            "work": self.work,
            "runs": runs.collect::<Vec<_>>(),
            "median": by_side(&mut { medians }),
            "ratio": by_side(&mut self.ratios().into_iter()),
        })
    }
}

impl Figure {
    /// Returns its name in JSON, unit included.
    fn key(&self) -> String {
        let name = self
            .name
            .replace("*/*", "all")
            .replace(['/', ' ', '-'], "_");
        let name = name.replace(['.', ',', '\''], "");
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

/// Returns how the relay's figure compares with a peer's: above 1, the relay's is better. What was
/// asked for, and not measured, is the same on both sides and has none.
fn ratio(ours: &Figure, theirs: &Figure) -> Option<f64> {
    let (ours, theirs) = ours
        .value
        .zip(theirs.value)
        .filter(|_| varies(theirs.unit))
        .map(|values| match theirs.unit {
            Unit::PerSecond => (values.1, values.0),
            _ => values,
        })?;
    ours.is_normal().then(|| theirs / ours)
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
    fn each_peer_has_a_ratio_of_its_own() {
        let mut report = Report::new("each");
        for (side, wall, rate) in [
            (Side::Reveille, 1.0, 100.0),
            (Side::Redis, 2.0, 50.0),
            (Side::Nats, 4.0, 400.0),
        ] {
            let mut figures = figures(wall, None);
            figures.add("pipelined deliveries/cpu", Unit::PerSecond, Some(rate));
            report.add(side, figures);
        }
        let ratio = &report.to_json()["ratio"];
        assert_eq!(ratio["redis"]["wall_seconds"], 2.0);
        assert_eq!(ratio["nats"]["wall_seconds"], 4.0);
        // Where more is better, the relay is divided by the peer: above 1, it is better.
        let rate = "pipelined_deliveries_cpu_per_second";
        assert_eq!(ratio["redis"][rate], 2.0);
        assert_eq!(ratio["nats"][rate], 0.25);
        let table = report.table().to_string();
        assert!(
            table.contains("nats ratio") && table.contains("redis ratio"),
            "{table}"
        );
        assert!(table.contains("0.25 x"), "{table}");
    }

    #[test]
    fn a_single_run_is_its_own_median() {
        let mut report = Report::new("idle");
        report.add(Side::Reveille, figures(1.0, None));
        assert!(!report.table().to_string().contains("median"));
        report.add(Side::Reveille, figures(3.0, None));
        let table = report.table().to_string();
        assert!(table.contains("reveille 2") && table.contains("reveille median"));
        assert_eq!(report.to_json()["median"]["reveille"]["wall_seconds"], 2.0);
    }

    #[test]
    fn without_a_peer_there_is_no_ratio() {
        let mut report = Report::new("idle");
        report.add(Side::Reveille, figures(1.0, None));
        assert_eq!(report.to_json()["ratio"], json!({}));
        assert!(!report.table().to_string().contains("ratio"));
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
        assert_eq!(json["ratio"]["nats"]["wall_seconds"], 10.0);
        assert_eq!(json["ratio"]["nats"]["cpu_seconds"], Value::Null);
        assert_eq!(json["ratio"]["nats"]["wake_ups"], Value::Null);
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
