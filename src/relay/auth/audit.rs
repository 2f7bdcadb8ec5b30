//! The audit log: one JSON line for each recorded decision, appended to a file.
//!
//! A caller never waits for the disk: lines go through a bounded channel to a writer thread. Lines
//! that find the channel full, or cannot be written, are counted as lost. Denials of one principal
//! and action are limited to one line a second, those of unknown callers by their address; the next
//! line has the number of the others.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write},
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use prost_types::Timestamp;
use serde::{Serialize, Serializer};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

use crate::{
    base::{clock::Tick, log_limiter::LogLimiter, sync::lock},
    error::{Error, ErrorKind, Result},
};

/// A decision to be recorded. No field may contain a credential.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct AuditEvent<'a> {
    #[serde(serialize_with = "time")]
    pub(crate) at: SystemTime,
    /// Name of the principal; empty if the caller is not authenticated.
    #[serde(serialize_with = "cut")]
    pub(crate) principal: &'a str,
    /// The kind of the credential and which it was, as [`Caller::credential`](super::Caller::credential);
    /// empty without one.
    #[serde(serialize_with = "cut", skip_serializing_if = "str::is_empty")]
    pub(crate) credential: &'a str,
    /// The peer's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<IpAddr>,
    /// An action's name, or `authenticate`.
    #[serde(serialize_with = "cut")]
    pub(crate) action: &'a str,
    /// The target as rules write it.
    #[serde(serialize_with = "cut")]
    pub(crate) target: &'a str,
    pub(crate) allowed: bool,
    /// The reason of the decision.
    #[serde(serialize_with = "cut")]
    pub(crate) why: &'a str,
}

/// The audit log. The last lines are written when it is dropped, for a second at most.
#[derive(Debug)]
pub(crate) struct AuditLog {
    lines: NonBlocking,
    /// Lines that found the channel full.
    dropped: ErrorCounter,
    file: Arc<FileState>,
    /// The denials of the last second by kind.
    denials: Mutex<HashMap<DenialKind, LogLimiter<1>>>,
    _writer: WorkerGuard,
}

/// The principal, the address of an unknown caller, and the action.
type DenialKind = (Box<str>, Option<IpAddr>, Box<str>);

/// The file, for the writer thread.
struct AuditFile {
    path: PathBuf,
    file: File,
    state: Arc<FileState>,
    /// Whether the last write failed, which was logged once.
    has_failed: bool,
    /// Whether the file may end within a line: of a write that failed, or of a process that was killed.
    may_be_torn: bool,
}

#[derive(Debug, Default)]
struct FileState {
    is_reopened: AtomicBool,
    /// Lines that could not be written.
    failed: AtomicU64,
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    event: &'a AuditEvent<'a>,
    /// Denials of this principal and action since their last line.
    #[serde(skip_serializing_if = "Option::is_none")]
    suppressed: Option<u64>,
}

/// Capacity of the channel: about 2 MiB of usual lines.
const BUFFERED_LINES: usize = 8 * 1024;
/// Longest text of a field in bytes. Callers choose parts of it.
const LONGEST_TEXT: usize = 512;
const DENIALS_EVERY: Duration = Duration::from_secs(1);
/// More kinds of denials than this within a second share one line.
const MOST_DENIALS: usize = 4096;
const OTHERS: &str = "(others)";

impl AuditLog {
    /// Opens the file for appending, and creates it with mode 0600 if it is missing.
    ///
    /// # Errors
    /// `Unavailable` if the file cannot be opened.
    pub(crate) fn open(path: impl AsRef<Path>) -> Result<Self> {
        let (path, state) = (path.as_ref(), Arc::<FileState>::default());
        let file = open(path).map_err(|error| {
            let message = format!("audit log `{}` cannot be opened: {error}", path.display());
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        })?;
        let (lines, writer) = NonBlockingBuilder::default()
            .buffered_lines_limit(BUFFERED_LINES)
            .thread_name("audit-log")
            .finish(AuditFile {
                path: path.to_owned(),
                file,
                state: Arc::clone(&state),
                has_failed: false,
                may_be_torn: true,
            });
        Ok(Self {
            dropped: lines.error_counter(),
            lines,
            file: state,
            denials: Mutex::default(),
            _writer: writer,
        })
    }

    /// Records a decision. Does not wait for the disk.
    pub(crate) fn record(&self, event: &AuditEvent<'_>, now: Tick) {
        // What happens on the relay's machine is no flood.
        let suppressed = if event.allowed || event.from.is_none() {
            0
        } else {
            match self.count_denial(event, now) {
                Some(suppressed) => suppressed,
                None => return,
            }
        };
        let line = Line {
            event,
            suppressed: (suppressed > 0).then_some(suppressed),
        };
        // The writer does not fail: it counts.
        let _ = self.lines.clone().write_all(line.text().as_bytes());
    }

    /// Opens the file again by its path before the next line, after another program has renamed it.
    pub(crate) fn reopen(&self) {
        self.file.is_reopened.store(true, Relaxed);
    }

    /// Returns the number of lines that were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.dropped.dropped_lines() as u64 + self.file.failed.load(Relaxed)
    }

    /// If the denial should be recorded, returns the number of denials before it that were not.
    fn count_denial(&self, event: &AuditEvent<'_>, now: Tick) -> Option<u64> {
        // The failures of one address must not hide those of others.
        let from = event.from.filter(|_| event.principal.is_empty());
        let mut kind = (event.principal.into(), from, event.action.into());
        let mut kinds = lock(&self.denials);
        if kinds.len() >= MOST_DENIALS && !kinds.contains_key(&kind) {
            kinds.retain(|_, limiter| limiter.is_limited(0, now));
            if kinds.len() >= MOST_DENIALS {
                (kind.0, kind.1) = (OTHERS.into(), None);
            }
        }
        let limiter = kinds
            .entry(kind)
            .or_insert_with(|| LogLimiter::new(DENIALS_EVERY));
        limiter.count(0, now)
    }
}

impl Line<'_> {
    /// Returns the line as JSON. Characters that could act on a terminal, or change the order of the
    /// others, are escaped, also where JSON permits them.
    fn text(&self) -> String {
        let json = serde_json::to_string(self).expect("texts and numbers");
        let mut text = String::with_capacity(json.len() + 1);
        for char in json.chars() {
            if char.is_alphanumeric() || (char.is_ascii() && !char.is_ascii_control()) {
                text.push(char);
                continue;
            }
            for unit in char.encode_utf16(&mut [0; 2]) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        }
        text.push('\n');
        text
    }
}

impl AuditFile {
    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        if self.state.is_reopened.swap(false, Relaxed) {
            match open(&self.path) {
                Ok(file) => (self.file, self.may_be_torn) = (file, true),
                // The old file is still written.
                Err(error) => self.warn(&error),
            }
        }
        if std::mem::replace(&mut self.may_be_torn, true) {
            end_line(&mut self.file)?;
        }
        self.file.write_all(line)?;
        self.may_be_torn = false;
        Ok(())
    }

    fn warn(&self, error: &io::Error) {
        let path = self.path.display();
        tracing::warn!(%path, %error, "the audit log cannot be written");
    }
}

impl Write for AuditFile {
    /// Takes a whole line, as each is sent in one call. A failure is counted and not returned: the
    /// thread would lose further lines.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self.write_line(line) {
            Ok(()) => self.has_failed = false,
            Err(error) => {
                self.state.failed.fetch_add(1, Relaxed);
                if !std::mem::replace(&mut self.has_failed, true) {
                    self.warn(&error);
                }
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn end_line(file: &mut File) -> io::Result<()> {
    let mut last = [0];
    let read = file.seek(SeekFrom::End(-1));
    let read = read.and_then(|_| file.read_exact(&mut last));
    // An empty file has no last byte.
    if read.is_ok() && last != *b"\n" {
        file.write_all(b"\n")?;
    }
    Ok(())
}

fn time<S: Serializer>(at: &SystemTime, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(&Timestamp::from(*at))
}

/// Writes at most [`LONGEST_TEXT`] bytes.
fn cut<S: Serializer>(text: &str, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(&text[..text.floor_char_boundary(LONGEST_TEXT)])
}
