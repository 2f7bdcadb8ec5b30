//! The process's log, on stderr.
//!
//! Other verbs write each line directly. A relay must not stop because its log has no reader: its
//! lines go through a bounded buffer to a writer thread. Lines that find the buffer full are
//! dropped and counted.

use std::{
    ffi::OsString,
    io::{self, IsTerminal, Write},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

use super::values::LogFormat;

/// Log level of client verbs without `RUST_LOG`.
/// The error of a verb states a failure of TLS: the libraries' own lines would be one for each attempt.
pub(crate) const CLIENT_LOG: &str = "error,rustls=off,rustls_platform_verifier=off";
/// Log level of `wait`: also logs another node that waits under the same listener id.
pub(crate) const WAIT_LOG: &str =
    "error,rustls=off,rustls_platform_verifier=off,reveille::client::flag_watch=warn";

/// Capacity of the buffer: about 1 MiB of usual lines.
const BUFFERED_LINES: usize = 8 * 1024;
/// Time-out for writing the buffered lines when the process ends, if the log's reader stalls.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The lines that [`start_lossy`] has dropped.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Sends lines to the writer thread.
#[derive(Debug, Clone)]
struct LossyWriter(SyncSender<Message>);

/// A message to the writer thread.
#[derive(Debug)]
enum Message {
    /// One whole line.
    Line(Vec<u8>),
    /// The thread drops the sender after it has written all lines before this message.
    Flush(#[expect(dead_code, reason = "sent for its drop")] SyncSender<()>),
}

/// Writes the buffered lines when it is dropped, in bounded time.
#[derive(Debug)]
#[must_use = "without it the last lines are lost"]
pub(crate) struct LogGuard(SyncSender<Message>);

/// Logs as text, by `RUST_LOG` or else by `default`.
pub(crate) fn to_stderr(default: &str) {
    start(default, LogFormat::Text);
}

/// Logs by `RUST_LOG` or else by `default`.
pub(crate) fn start(default: &str, format: LogFormat) {
    start_on(io::stderr, default, format);
}

/// Logs by `RUST_LOG` or else by `default`, and drops lines rather than wait for their reader.
pub(crate) fn start_lossy(default: &str, format: LogFormat) -> io::Result<LogGuard> {
    let (sender, messages) = sync_channel(BUFFERED_LINES);
    let thread = thread::Builder::new().name("log".to_owned());
    thread.spawn(move || write_all(&messages, &mut io::stderr()))?;
    start_on(LossyWriter(sender.clone()), default, format);
    Ok(LogGuard(sender))
}

/// Returns how many lines were dropped.
pub(crate) fn dropped_lines() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

fn start_on(
    writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static,
    default: &str,
    format: LogFormat,
) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Otherwise a line that cannot be written is followed by one on stderr that panics, in
        // whichever task has logged.
        .log_internal_errors(false)
        .with_writer(writer)
        .with_ansi(has_colours(
            io::stderr().is_terminal(),
            std::env::var_os("NO_COLOR"),
        ));
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

/// Returns whether lines are coloured: on a terminal, unless `NO_COLOR` is not empty
/// (<https://no-color.org>).
fn has_colours(is_terminal: bool, no_color: Option<OsString>) -> bool {
    is_terminal && no_color.is_none_or(|value| value.is_empty())
}

/// Writes lines until all senders are dropped.
fn write_all(messages: &Receiver<Message>, out: &mut impl Write) {
    for message in messages {
        if let Message::Line(line) = message {
            // An error of the log has no other place to go.
            let _ = out.write_all(&line);
        }
    }
}

impl<'w> MakeWriter<'w> for LossyWriter {
    type Writer = Self;

    fn make_writer(&'w self) -> Self {
        self.clone()
    }
}

impl Write for LossyWriter {
    /// Takes a whole line, as the formatter writes each in one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.0.try_send(Message::Line(line.to_vec())).is_err() {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        let (flushing, flushed) = sync_channel(0);
        let mut message = Message::Flush(flushing);
        while let Err(TrySendError::Full(back)) = self.0.try_send(message) {
            if Instant::now() >= deadline {
                return;
            }
            message = back;
            thread::sleep(Duration::from_millis(5));
        }
        // The thread sends nothing: the wait ends when it drops the sender.
        let _ = flushed.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_have_colours_on_a_terminal_only_and_not_with_no_color() {
        for (is_terminal, no_color, coloured) in [
            (true, None, true),
            (true, Some(""), true),
            (true, Some("1"), false),
            (false, None, false),
        ] {
            let no_color = no_color.map(OsString::from);
            assert_eq!(has_colours(is_terminal, no_color), coloured);
        }
    }

    #[test]
    fn buffered_lines_are_written_before_the_guard_is_dropped() {
        let (sender, messages) = sync_channel(10);
        let (mut written, out) = io::pipe().expect("a pipe");
        let thread = thread::spawn(move || {
            let mut out = out;
            write_all(&messages, &mut out);
        });
        let mut writer = LossyWriter(sender.clone());
        writer.write_all(b"a line\n").expect("taken");
        drop(LogGuard(sender));
        let mut line = [0; 7];
        io::Read::read_exact(&mut written, &mut line).expect("written");
        assert_eq!(&line, b"a line\n");
        drop(writer);
        thread.join().expect("no panic");
    }

    #[test]
    fn a_reader_that_stalls_costs_lines_and_no_time() {
        // The buffer has no reader.
        let (sender, _stalled) = sync_channel(10);
        let mut writer = LossyWriter(sender.clone());
        let (before, start) = (dropped_lines(), Instant::now());
        for _ in 0..1000 {
            writer.write_all(b"a line\n").expect("taken");
        }
        assert!(dropped_lines() - before >= 990);
        drop(LogGuard(sender));
        assert!(start.elapsed() < 3 * FLUSH_TIMEOUT);
    }
}
