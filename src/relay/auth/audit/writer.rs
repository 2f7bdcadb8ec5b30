//! The thread that writes the audit log.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender},
    },
    thread,
    time::Duration,
};

use crate::error::{Error, ErrorKind, Result};

/// A denial without a line waits no longer than this for one, unless other lines follow.
const SILENCE: Duration = Duration::from_secs(10);

/// A message to the writer thread.
#[derive(Debug)]
pub(super) enum Message {
    /// One whole line.
    Line(Vec<u8>),
    Reopen,
    /// The thread drops the sender after it has written all lines before this message.
    Flush(#[expect(dead_code, reason = "sent for its drop")] SyncSender<()>),
}

#[derive(Debug)]
pub(super) struct AuditFile {
    path: PathBuf,
    file: File,
    /// Whether the last line may be incomplete.
    is_torn: bool,
    /// Whether the last write failed, which was logged once.
    has_failed: bool,
    lost: Arc<AtomicU64>,
}

/// Starts the thread, which ends when all senders are dropped. After a silence it writes the lines that
/// are pending.
#[expect(clippy::disallowed_methods, reason = "lives as long as the audit log")]
pub(super) fn start(
    mut file: AuditFile,
    messages: Receiver<Message>,
    pending: impl Fn() -> Vec<Vec<u8>> + Send + 'static,
) -> Result<()> {
    let thread = thread::Builder::new().name("audit-log".to_owned());
    let started = thread.spawn(move || {
        loop {
            match messages.recv_timeout(SILENCE) {
                Ok(Message::Line(line)) => file.write(&line),
                Ok(Message::Reopen) => file.reopen(),
                Ok(Message::Flush(_)) => file.sync(),
                Err(RecvTimeoutError::Timeout) => {
                    pending().iter().for_each(|line| file.write(line));
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    started.map(drop).map_err(|error| {
        let message = "the thread of the audit log cannot be started";
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    })
}

impl AuditFile {
    pub(super) fn open(path: &Path, lost: Arc<AtomicU64>) -> Result<Self> {
        let file = open(path).map_err(|error| {
            let message = format!("audit log `{}` cannot be opened: {error}", path.display());
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        })?;
        Ok(Self {
            path: path.to_owned(),
            is_torn: is_torn(&file),
            file,
            has_failed: false,
            lost,
        })
    }

    fn write(&mut self, line: &[u8]) {
        let written = match std::mem::take(&mut self.is_torn) {
            true => self
                .file
                .write_all(b"\n")
                .and_then(|()| self.file.write_all(line)),
            false => self.file.write_all(line),
        };
        match written {
            Ok(()) => self.has_failed = false,
            Err(error) => {
                self.is_torn = true;
                self.lost.fetch_add(1, Ordering::Relaxed);
                self.warn(&error);
            }
        }
    }

    fn reopen(&mut self) {
        match open(&self.path) {
            Ok(file) => {
                self.is_torn = is_torn(&file);
                self.file = file;
            }
            // The old file is still written.
            Err(error) => self.warn(&error),
        }
    }

    fn sync(&mut self) {
        if let Err(error) = self.file.sync_data() {
            self.warn(&error);
        }
    }

    /// Logs the first of several errors.
    fn warn(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.has_failed, true) {
            tracing::warn!(path = %self.path.display(), %error, "the audit log cannot be written");
        }
    }
}

/// Returns whether the file ends within a line: a process that was killed may have left a part.
fn is_torn(mut file: &File) -> bool {
    let mut last = [0];
    let is_read = file
        .seek(SeekFrom::End(-1))
        .and_then(|_| file.read_exact(&mut last));
    // An empty file has no last byte.
    is_read.is_ok() && last != [b'\n']
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}
