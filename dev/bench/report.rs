//! The report: the figures of each run, their medians, and the ratios to the peers.

use std::{borrow::Cow, fmt};

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

use crate::{latencies::Quantiles, server::Server, usage::Usage};

/// The output format.
#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Table,
    /// One document
    Json,
}

/// All runs of one benchmark.
#[derive(Debug)]
pub(crate) struct Report {
    work: String,
    runs: Vec<(Server, Figures)>,
}

/// The figures of one run, in the order in which they are printed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures(Vec<Figure>);

#[derive(Debug, Clone)]
struct Figure {
    name: Cow<'static, str>,
    unit: Unit,
    /// `None` if this system or this relay does not report it.
    value: Option<f64>,
}

/// The unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Count,
    Bytes,
    Kib,
    Seconds,
    Micros,
    PerSecond,
}

impl Figures {
    pub(crate) fn add(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        unit: Unit,
        value: impl Into<Option<f64>>,
    ) {
        let (name, value) = (name.into(), value.into());
        self.0.push(Figure { name, unit, value });
    }

    pub(crate) fn count(&mut self, name: impl Into<Cow<'static, str>>, count: u64) {
        self.add(name, Unit::Count, count as f64);
    }

    /// Adds the quantiles of latencies; `name` may be empty.
    pub(crate) fn latencies(&mut self, name: &str, of: &Quantiles) {
        for (quantile, micros) in [
            ("p50", of.p50),
            ("p99", of.p99),
            ("p99.9", of.p999),
            ("max", of.max),
        ] {
            let name = format!("{name} {quantile}").trim_start().to_owned();
            self.add(name, Unit::Micros, micros);
        }
    }

    /// Adds a server's processor time since `before`, and its memory; `name` may be empty.
    pub(crate) fn usage(&mut self, name: &str, before: &Usage, after: &Usage) {
        let named = |figure: &str| format!("{name} {figure}").trim_start().to_owned();
        self.add(named("cpu"), Unit::Seconds, after.seconds_since(before));
        self.add(named("rss"), Unit::Kib, after.kib());
    }

    fn to_json(&self) -> Map<String, Value> {
        let entry = |figure: &Figure| (figure.key(), json!(figure.value));
        self.0.iter().map(entry).collect()
    }
}

impl Report {
    pub(crate) fn new(work: &str) -> Self {
        Self {
            work: work.to_owned(),
            runs: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, server: Server, figures: Figures) {
        self.runs.push((server, figures));
    }

    /// Prints the report to stdout.
    pub(crate) fn print(&self, output: Format) {
        match output {
            Format::Table => println!("{}", self.table()),
            Format::Json => println!("{:#}", self.to_json()),
        }
    }

    fn servers(&self) -> Vec<Server> {
        let mut servers: Vec<Server> = self.runs.iter().map(|(server, _)| *server).collect();
        servers.sort_unstable();
        servers.dedup();
        servers
    }

    /// Returns the medians of a server's runs.
    fn medians(&self, server: Server) -> Figures {
        let runs = || self.runs.iter().filter(|(of, _)| *of == server);
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

    /// Returns the ratios of each peer to the relay. Above 1, the relay is better: it uses less, or
    /// delivers more.
    fn ratios(&self) -> Vec<(Server, Figures)> {
        let ours = self.medians(Server::RELAY);
        if ours.0.is_empty() {
            return Vec::new();
        }
        let peers = self.servers().into_iter();
        let peers = peers.filter(|server| *server != Server::RELAY);
        let ratios = |peer: Server| {
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
        for server in self.servers() {
            let runs = self.runs.iter().filter(|(of, _)| *of == server);
            let runs: Vec<&Figures> = runs.map(|(_, figures)| figures).collect();
            if let [only] = runs[..] {
                columns.push((server.to_string(), only.clone()));
                continue;
            }
            for (at, figures) in runs.into_iter().enumerate() {
                columns.push((format!("{server} {}", at + 1), figures.clone()));
            }
            columns.push((format!("{server} median"), self.medians(server)));
        }
        let mut header = vec![self.work.clone()];
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
        let runs = self.runs.iter().map(|(server, figures)| {
            let mut run = figures.to_json();
            run.insert("side".to_owned(), json!(server.to_string()));
            Value::Object(run)
        });
        let medians = self.servers().into_iter();
        let medians = medians.map(|server| (server, self.medians(server)));
        let by_server = |servers: &mut dyn Iterator<Item = (Server, Figures)>| {
            let entry = |(server, of): (Server, Figures)| (server.to_string(), of.to_json().into());
            servers.map(entry).collect::<Map<String, Value>>()
        };
        json!({
            "work": self.work,
            "runs": runs.collect::<Vec<_>>(),
            "median": by_server(&mut { medians }),
            "ratio": by_server(&mut self.ratios().into_iter()),
        })
    }
}

impl Figure {
    /// Returns the name in JSON, with the unit.
    fn key(&self) -> String {
        let name = self.name.replace(['/', ' ', '-'], "_");
        let name = name.replace(['.', ',', '\''], "");
        match self.unit {
            Unit::Count => name,
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
        }
    }
}

/// Returns the middle of the values, or the mean of the two in the middle.
pub(crate) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(match values.len() % 2 {
        0 => f64::midpoint(values[middle - 1], upper),
        _ => upper,
    })
}

/// Returns the ratio of the relay's figure and a peer's: above 1, the relay's is better. `None` for
/// figures that are arguments of the benchmark.
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

/// Returns whether figures of this unit are measured; counts and sizes are arguments.
fn varies(unit: Unit) -> bool {
    matches!(
        unit,
        Unit::Kib | Unit::Seconds | Unit::Micros | Unit::PerSecond
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
    fn each_peer_has_a_separate_ratio() {
        let mut report = Report::new("each");
        for (server, wall, rate) in [
            (Server::RELAY, 1.0, 100.0),
            (Server::Redis, 2.0, 50.0),
            (Server::Nats, 4.0, 400.0),
        ] {
            let mut figures = figures(wall, None);
            figures.add("pipelined deliveries/cpu", Unit::PerSecond, Some(rate));
            report.add(server, figures);
        }
        let ratio = &report.to_json()["ratio"];
        assert_eq!(ratio["redis"]["wall_seconds"], 2.0);
        assert_eq!(ratio["nats"]["wall_seconds"], 4.0);
        // For rates the relay is divided by the peer: above 1, the relay is better.
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
    fn each_server_has_its_medians_and_the_peer_its_ratio() {
        let mut report = Report::new("burst");
        for wall in [1.0, 9.0, 2.0] {
            report.add(Server::RELAY, figures(wall, None));
            report.add(Server::Nats, figures(wall * 10.0, Some(3.0)));
        }
        let json = report.to_json();
        assert_eq!(json["median"]["reveille"]["wall_seconds"], 2.0);
        assert_eq!(json["ratio"]["nats"]["wall_seconds"], 10.0);
        assert_eq!(json["ratio"]["nats"]["cpu_seconds"], Value::Null);
        assert_eq!(json["ratio"]["nats"]["wake_ups"], Value::Null);
        assert_eq!(json["runs"][0]["side"], "reveille");
    }

    #[test]
    fn an_unknown_figure_is_printed_as_not_available() {
        let mut report = Report::new("burst");
        report.add(Server::RELAY, figures(1.0, None));
        assert!(report.table().to_string().contains("n/a"));
    }

    #[test]
    fn the_median_of_an_even_count_is_in_between() {
        assert_eq!(median(&mut [4.0, 1.0]), Some(2.5));
        assert_eq!(median(&mut []), None);
    }
}
