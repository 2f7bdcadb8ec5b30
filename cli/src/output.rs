//! Output: tables for people, JSON for programs. Data goes to stdout, notes to stderr, without
//! colours.
//!
//! Every verb has one shape of JSON. A list is an array with `json`, and one object a line with
//! `jsonl`. A single result is an object. A stream is one object a line.
//!
//! A field name has the same meaning in all verbs: `queue` (ACCOUNT/NAME), `flag`, `lease`,
//! `listener_id`, `message_id`, `depth`. Durations end in `_ms`, times in `_at` (RFC 3339). A field
//! that does not apply is null; one that only an option adds is absent without it.

use std::{
    fmt::Display,
    io::{self, Write as _},
    time::{Duration, SystemTime},
};

use comfy_table::{ContentArrangement, Table, presets};
use reveille::duration::Span;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;
use serde_json::Value;

/// The output format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Table,
    /// One document; streams: one object a line
    Json,
    /// One object a line
    Jsonl,
}

/// The argument of the verbs that print a result.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct OutputArgs {
    /// The output format
    #[arg(
        id = "output",
        short = 'o',
        long = "output",
        env = "REVEILLE_OUTPUT",
        value_name = "FORMAT",
        default_value = "table"
    )]
    pub(crate) format: Format,
}

impl Format {
    /// Writes a JSON object. A table has these of its fields.
    pub(crate) fn row(self, columns: &str, row: &Value) -> io::Result<()> {
        self.object(row, || table_of(columns, std::slice::from_ref(row)))
    }

    /// Writes a whole list of JSON objects. A table has these of their fields, named with spaces between
    /// them.
    pub(crate) fn rows(self, columns: &str, rows: &[Value]) -> io::Result<()> {
        match self {
            Self::Jsonl => rows.iter().try_for_each(|row| self.next(row, "")),
            _ => self.object(&rows, || table_of(columns, rows)),
        }
    }

    /// Writes a single result that is more than one table for people.
    pub(crate) fn object<T: Serialize>(
        self,
        row: &T,
        line: impl FnOnce() -> String,
    ) -> io::Result<()> {
        match self {
            Self::Table => write(line() + "\n"),
            Self::Json => write(serde_json::to_string_pretty(row)? + "\n"),
            Self::Jsonl => self.next(row, ""),
        }
    }

    /// Writes the next item of a stream: a line for people, or an object.
    pub(crate) fn next<T: Serialize>(self, row: &T, line: impl Display) -> io::Result<()> {
        match self {
            Self::Table => write(format!("{line}\n")),
            Self::Json | Self::Jsonl => write(serde_json::to_string(row)? + "\n"),
        }
    }
}

/// Writes bytes to stdout, unchanged.
pub(crate) fn write(bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes.as_ref())?;
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
        let text = joined(&cause.to_string());
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

/// Returns a text on one line.
pub(crate) fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns a point in time as RFC 3339, in UTC.
pub(crate) fn time(time: SystemTime) -> String {
    prost_types::Timestamp::from(time).to_string()
}

/// Returns a span in whole milliseconds.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a span of a relay's message.
pub(crate) fn span(of: Option<prost_types::Duration>) -> Option<Duration> {
    of.and_then(|span| span.try_into().ok())
}

/// Returns a span of a relay's message in whole milliseconds.
pub(crate) fn wire_millis(of: Option<prost_types::Duration>) -> Option<u64> {
    span(of).map(millis)
}

/// Returns the name of a value of a message's enum, without the name of the enum.
pub(crate) fn value_name(name: &str, of: &str) -> String {
    name.trim_start_matches(of).to_lowercase()
}

/// Returns a text of a relay's message, where it has one.
pub(crate) fn stated(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Returns a text with its control characters written out: a message's body must not reach a terminal
/// as commands.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() && character != '\n' {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    shown
}

/// Returns a table of JSON objects that fits the terminal; a pipe gets the whole one.
pub(crate) fn table_of(columns: &str, rows: &[Value]) -> String {
    let columns: Vec<_> = columns.split(' ').collect();
    fitted(&columns, rows, terminal_width())
}

/// Returns a table for this width. A narrow one does without the last columns; the others are wrapped.
fn fitted(mut columns: &[&str], rows: &[Value], width: Option<u16>) -> String {
    loop {
        let whole = arranged(rows, columns, None);
        let widest = whole.lines().map(|line| line.chars().count()).max();
        let Some(width) = width.filter(|width| widest > Some(usize::from(*width))) else {
            return whole;
        };
        if columns.len() <= KEPT {
            return arranged(rows, columns, Some(width));
        }
        columns = &columns[..columns.len() - 1];
    }
}

/// Returns a table with these columns; cells are wrapped for a width.
fn arranged(rows: &[Value], columns: &[&str], width: Option<u16>) -> String {
    let mut table = Table::new();
    let headers = columns.iter().map(|column| {
        let name = column.strip_suffix("_ms").unwrap_or(column);
        name.replace('_', " ").to_uppercase()
    });
    table.load_style(presets::NOTHING).set_header(headers);
    for row in rows {
        let cells = columns.iter();
        table.add_row(cells.map(|column| printable(&shown(column, &row[*column]))));
    }
    if let Some(width) = width {
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width);
    }
    let last = columns.len().saturating_sub(1);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if at == last { 0 } else { GAP }));
    }
    table.trim_fmt()
}

/// Returns a field for people.
fn shown(column: &str, value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(is_set) => if *is_set { "yes" } else { "no" }.to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_u64().filter(|_| column.ends_with("_ms")) {
            Some(millis) => Span(Duration::from_millis(millis)).to_string(),
            None => number.to_string(),
        },
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| shown("", item)).collect();
            items.join(" ")
        }
        Value::Object(_) => value.to_string(),
    }
}

/// Spaces between two columns.
const GAP: u16 = 2;
/// Columns that every terminal gets.
const KEPT: usize = 3;

fn terminal_width() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    // A terminal that does not know its width states 0.
    Some(size.ws_col).filter(|width| *width > 0)
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
    use serde_json::json;

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

    #[test]
    fn a_narrow_terminal_gets_fewer_columns_before_cells_are_wrapped() {
        let rows = [
            json!({ "name": "worker-1", "queue": "local/orders of the eu region", "age_ms": 3_000, "set": true }),
            json!({ "name": "worker-2", "queue": "", "age_ms": null, "set": false }),
        ];
        let columns = ["name", "queue", "age_ms", "set"];
        let lines = "NAME      QUEUE                          AGE  SET\n\
                     worker-1  local/orders of the eu region  3s   yes\n\
                     worker-2  -                              -    no";
        let fit = |width| fitted(&columns, &rows, width);
        assert_eq!(fit(None), lines);
        let narrow = "NAME      QUEUE                          AGE\n\
                      worker-1  local/orders of the eu region  3s\n\
                      worker-2  -                              -";
        assert_eq!(fit(Some(45)), narrow);
        let wrapped = fit(Some(20));
        assert!(
            wrapped.lines().all(|line| line.chars().count() <= 20),
            "{wrapped}"
        );
        for word in ["region", "AGE", "3s"] {
            assert!(wrapped.contains(word), "no {word} in {wrapped}");
        }
    }

    #[test]
    fn times_are_rfc_3339() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        assert_eq!(time(at), "1970-01-01T00:00:01.500Z");
    }
}
