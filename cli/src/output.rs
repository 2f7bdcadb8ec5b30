//! Output: tables for people, JSON for programs. Data goes to stdout, notes to stderr, without
//! colours.
//!
//! Every verb has one shape of JSON. A list is an array with `json`, and one object a line with
//! `jsonl`. A single result is an object. A stream is one object a line.
//!
//! A field name has the same meaning in all verbs: `queue` (ACCOUNT/NAME), `flag`, `lease`,
//! `listener_id`, `message_id`, `depth`. Durations end in `_ms`, times in `_at` (RFC 3339). A field
//! that does not apply is null, never absent.

use std::{
    fmt::Display,
    io::{self, Write as _},
    time::{Duration, SystemTime},
};

use comfy_table::{Table, presets};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize, Serializer};

use super::settings::Settings;

/// The output format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// For people
    #[default]
    Table,
    /// One document; streams: one object a line
    Json,
    /// One object a line
    Jsonl,
}

/// The output format of a verb.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct OutputArgs {
    /// The output format [default: table]
    #[arg(short, long, env = "REVEILLE_OUTPUT", value_name = "FORMAT")]
    output: Option<Format>,
}

/// A line of a table, or a JSON object.
pub(crate) trait Row: Serialize {
    const HEADERS: &'static [&'static str];
    /// The columns that a narrow terminal does not show, the least important one first.
    const DROPPED_FIRST: &'static [&'static str] = &[];
    /// On a narrow terminal the widest cells are cut, those of the first column last. Not where they are
    /// data that is shown once.
    const CUT: bool = true;

    fn cells(&self) -> Vec<String>;
}

impl OutputArgs {
    pub(crate) fn format(&self, settings: &Settings) -> Format {
        self.output.or(settings.output).unwrap_or_default()
    }
}

impl Format {
    /// Writes a whole list.
    pub(crate) fn list<T: Row>(self, rows: &[T]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match self {
            Self::Table => writeln!(out, "{}", fitting_table(rows))?,
            Self::Json => writeln!(out, "{}", serde_json::to_string_pretty(rows)?)?,
            Self::Jsonl => {
                for row in rows {
                    writeln!(out, "{}", serde_json::to_string(row)?)?;
                }
            }
        }
        out.flush()
    }

    /// Writes a single result.
    pub(crate) fn one<T: Row>(self, row: &T) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match self {
            Self::Table => writeln!(out, "{}", fitting_table(std::slice::from_ref(row)))?,
            Self::Json => writeln!(out, "{}", serde_json::to_string_pretty(row)?)?,
            Self::Jsonl => writeln!(out, "{}", serde_json::to_string(row)?)?,
        }
        out.flush()
    }

    /// Writes a single result that is more than one table for people.
    pub(crate) fn object<T: Serialize>(
        self,
        row: &T,
        text: impl FnOnce() -> String,
    ) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match self {
            Self::Table => writeln!(out, "{}", text())?,
            Self::Json => writeln!(out, "{}", serde_json::to_string_pretty(row)?)?,
            Self::Jsonl => writeln!(out, "{}", serde_json::to_string(row)?)?,
        }
        out.flush()
    }

    /// Writes the next item of a stream: a line for people, or an object.
    pub(crate) fn next<T: Serialize>(self, row: &T, line: impl Display) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match self {
            Self::Table => writeln!(out, "{line}")?,
            Self::Json | Self::Jsonl => writeln!(out, "{}", serde_json::to_string(row)?)?,
        }
        out.flush()
    }
}

/// Writes text to stdout, unchanged.
pub(crate) fn text(text: &str) -> io::Result<()> {
    bytes(text.as_bytes())
}

/// Writes bytes to stdout, unchanged.
pub(crate) fn bytes(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Returns a number and its noun: `1 message`, `2 messages`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Writes a note to stderr.
pub(crate) fn note(text: impl Display) {
    // One write, so that lines of several processes do not mix. A closed stderr is ignored.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Returns an error and its causes, each once, on one line.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause
            .to_string()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        if line.ends_with(&text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&text);
    }
    line
}

/// Returns a point in time as RFC 3339, in UTC.
pub(crate) fn time(time: SystemTime) -> String {
    prost_types::Timestamp::from(time).to_string()
}

pub(crate) fn serialize_time<S: Serializer>(
    at: &Option<SystemTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    at.map(time).serialize(serializer)
}

/// Returns a span in whole milliseconds.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a text with its control characters written out: a message's body must not reach a terminal
/// as commands.
fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() && character != '\n' {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    shown
}

/// Returns a table that fits the terminal; a pipe gets the whole one.
pub(crate) fn fitting_table<T: Row>(rows: &[T]) -> String {
    table(rows, terminal_width().unwrap_or(usize::MAX))
}

/// Returns a text in lines that fit the terminal, the further ones indented; a pipe gets one line.
pub(crate) fn paragraph(text: &str) -> String {
    wrapped(text, terminal_width().unwrap_or(usize::MAX))
}

fn wrapped(text: &str, width: usize) -> String {
    let (mut lines, mut used) = (String::new(), 0);
    for word in printable(text).split_whitespace() {
        let length = word.chars().count();
        match used {
            0 => used = length,
            _ if used + 1 + length <= width => {
                lines.push(' ');
                used += 1 + length;
            }
            _ => {
                lines.push_str("\n  ");
                used = 2 + length;
            }
        }
        lines.push_str(word);
    }
    lines
}

fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    // A terminal that does not know its width states 0.
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// Returns a table of at most `width` characters a line: without its least important columns, and then
/// with the widest cells cut.
fn table<T: Row>(rows: &[T], width: usize) -> String {
    let mut columns: Vec<Vec<String>> = T::HEADERS
        .iter()
        .map(|header| vec![(*header).to_owned()])
        .collect();
    for row in rows {
        for (column, cell) in columns.iter_mut().zip(row.cells()) {
            column.push(printable(&cell));
        }
    }
    let mut dropped = T::DROPPED_FIRST.iter();
    while total_width(&columns) > width
        && let Some(least) = dropped.next()
    {
        columns.retain(|column| column[0] != *least);
    }
    while T::CUT
        && total_width(&columns) > width
        && let Some(widest) = widest(&mut columns)
    {
        let cut = column_width(widest) - 1;
        for cell in widest {
            *cell = shortened(cell, cut);
        }
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for at in 0..=rows.len() {
        let cells = columns.iter().map(|column| column[at].as_str());
        match at {
            0 => _ = table.set_header(cells),
            _ => _ = table.add_row(cells),
        }
    }
    let last = columns.len().saturating_sub(1);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if at == last { 0 } else { GAP }));
    }
    table.trim_fmt()
}

/// Spaces between two columns.
const GAP: u16 = 2;
/// No column is cut below this width.
const LEAST_WIDTH: usize = 8;

fn total_width(columns: &[Vec<String>]) -> usize {
    let gaps = usize::from(GAP) * columns.len().saturating_sub(1);
    columns
        .iter()
        .map(|column| column_width(column))
        .sum::<usize>()
        + gaps
}

/// Returns the column that is cut next: the first one, whose ids a user may copy, is cut last.
fn widest(columns: &mut [Vec<String>]) -> Option<&mut Vec<String>> {
    let (first, others) = columns.split_first_mut()?;
    let widest = others.iter_mut().max_by_key(|column| column_width(column));
    let widest = widest.filter(|column| column_width(column) > LEAST_WIDTH);
    widest.or_else(|| Some(first).filter(|column| column_width(column) > LEAST_WIDTH))
}

fn column_width(column: &[String]) -> usize {
    let lines = column.iter().flat_map(|cell| cell.lines());
    lines.map(|line| line.chars().count()).max().unwrap_or(0)
}

/// Cuts each line of a cell to this width; `…` stands for the rest.
fn shortened(cell: &str, width: usize) -> String {
    let lines = cell.lines().map(|line| match line.chars().count() > width {
        true => line.chars().take(width - 1).chain(['…']).collect(),
        false => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns whether the reader of stdout, such as the next program of a pipe, has gone.
pub(crate) fn is_unread() -> bool {
    let stdout = io::stdout();
    let mut outputs = [PollFd::new(&stdout, PollFlags::empty())];
    // An error tells nothing.
    let _ = rustix::event::poll(&mut outputs, Some(&Timespec::default()));
    let gone = PollFlags::ERR | PollFlags::HUP;
    outputs[0].revents().intersects(gone)
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn an_error_is_one_line_without_repetition() {
        let cause = io::Error::other("disk\nfull");
        let error = Err::<(), _>(cause)
            .context("store: disk full")
            .context("cannot start")
            .expect_err("an error");
        assert_eq!(one_line(&error), "cannot start: store: disk full");
    }

    #[test]
    fn a_terminal_is_sent_no_control_characters() {
        assert_eq!(
            printable("\u{1b}[2Jé\u{7}\u{9b}"),
            "\\u{1b}[2Jé\\u{7}\\u{9b}"
        );
    }

    #[derive(Serialize)]
    struct Wide([&'static str; 4]);

    impl Row for Wide {
        const HEADERS: &'static [&'static str] = &["NAME", "QUEUE", "AGE", "GROUP"];
        const DROPPED_FIRST: &'static [&'static str] = &["GROUP", "AGE"];

        fn cells(&self) -> Vec<String> {
            self.0.map(str::to_owned).to_vec()
        }
    }

    #[test]
    fn a_narrow_terminal_gets_fewer_columns_and_then_shorter_cells() {
        let rows = [
            Wide(["worker-1", "local/orders-of-the-eu-region", "3s", "orders"]),
            Wide(["worker-2", "local/mails", "12s", "mails"]),
        ];
        let shown = |width| table(&rows, width);
        let header = |width: usize| shown(width).lines().next().map(str::to_owned);
        assert!(shown(usize::MAX).contains("GROUP"));
        assert_eq!(
            header(50).as_deref(),
            Some("NAME      QUEUE                          AGE")
        );
        let narrow = shown(30);
        assert!(!narrow.contains("AGE"), "{narrow}");
        assert!(
            narrow.contains("worker-1  local/orders-of-the…"),
            "{narrow}"
        );
        for width in [20, 30, 39, 40, 46, 50, 60] {
            let text = shown(width);
            assert!(
                text.lines().all(|line| line.chars().count() <= width),
                "{width}: {text}"
            );
            assert_eq!(text.lines().count(), 3, "nothing wraps: {text}");
        }
    }

    #[test]
    fn a_paragraph_breaks_between_words() {
        let text = "no listener subscribes to acct/orders; start one";
        let lines = "no listener\n  subscribes to\n  acct/orders; start\n  one";
        assert_eq!(wrapped(text, 20), lines);
        assert_eq!(wrapped(text, usize::MAX), text);
        assert_eq!(
            wrapped("acct/longer-than-a-line it is", 10),
            "acct/longer-than-a-line\n  it is"
        );
    }

    #[test]
    fn times_are_rfc_3339() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        assert_eq!(time(at), "1970-01-01T00:00:01.500Z");
    }
}
