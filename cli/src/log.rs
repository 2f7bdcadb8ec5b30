//! The process's log, on stderr.
//!
//! Other verbs write each line directly. A relay must not stop because its log has no reader: its
//! lines go through a bounded buffer to a writer thread. Lines that find the buffer full are
//! dropped and counted.

use std::{
    io::{self, IsTerminal},
    sync::OnceLock,
};

use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

/// Log level of client verbs without `RUST_LOG`: also another node that waits under the same listener id,
/// and a flag that cannot be read.
/// The error of a verb states a failure of TLS: the libraries' own lines would be one for each attempt.
pub(crate) const CLIENT_LOG: &str = "error,rustls=off,rustls_platform_verifier=off,\
                                     reveille::client::flags=warn,reveille::coordination::release=info";

/// Capacity of the buffer: about 1 MiB of usual lines.
const BUFFERED_LINES: usize = 8 * 1024;
/// Counts the lines that [`start_lossy`] has dropped.
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Logs by `RUST_LOG` or else by `default`.
pub(crate) fn start(default: &str, as_json: bool) {
    start_on(io::stderr, default, as_json);
}

/// Logs by `RUST_LOG` or else by `default`, and drops lines rather than wait for their reader. The
/// buffered lines are written when the guard is dropped, in bounded time.
pub(crate) fn start_lossy(default: &str, as_json: bool) -> WorkerGuard {
    let (writer, guard) = NonBlockingBuilder::default()
        .buffered_lines_limit(BUFFERED_LINES)
        .thread_name("log")
        .finish(io::stderr());
    DROPPED.get_or_init(|| writer.error_counter());
    start_on(writer, default, as_json);
    guard
}

/// Returns how many lines were dropped.
pub(crate) fn dropped_lines() -> u64 {
    DROPPED
        .get()
        .map_or(0, |counter| counter.dropped_lines() as u64)
}

fn start_on(
    writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static,
    default: &str,
    as_json: bool,
) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Otherwise a line that cannot be written is followed by one on stderr that panics, in
        // whichever task has logged.
        .log_internal_errors(false)
        .with_writer(writer);
    // Lines on a terminal are coloured, unless `NO_COLOR` is not empty (<https://no-color.org>).
    let log = match io::stderr().is_terminal() {
        true => log,
        false => log.with_ansi(false),
    };
    match as_json {
        true => log.json().flatten_event(true).init(),
        false => log.init(),
    }
}
