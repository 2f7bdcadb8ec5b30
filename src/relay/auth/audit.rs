//! The audit log: one JSON line for each recorded decision, appended to a file.
//!
//! A caller never waits for the disk: lines go through a bounded channel to a writer thread. Lines
//! that find the channel full, or cannot be written, are counted as lost. Denials of one principal
//! and action are limited to one line a second, those of unknown callers by their address (see
//! `audit/limiter`).

mod limiter;
mod writer;

use std::{
    net::IpAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc::{SyncSender, TrySendError, sync_channel},
    },
    time::{Duration, SystemTime},
};

use prost_types::Timestamp;
use serde::Serialize;

use self::{
    limiter::DenialLimiter,
    writer::{AuditFile, Message},
};
use crate::{base::sync::lock, error::Result};

/// A decision to be recorded. No field may contain a credential.
#[derive(Debug, Clone, Copy)]
pub struct AuditEvent<'a> {
    /// The time of the decision.
    pub at: SystemTime,
    /// Name of the principal; empty if the caller is not authenticated.
    pub principal: &'a str,
    /// The peer's address.
    pub from: Option<IpAddr>,
    /// An action's name, or `authenticate`.
    pub action: &'a str,
    /// The target as rules write it.
    pub target: &'a str,
    /// The decision.
    pub allowed: bool,
    /// Its reason.
    pub why: &'a str,
}

/// The audit log. The last lines are written when it is dropped.
#[derive(Debug)]
pub struct AuditLog {
    lines: SyncSender<Message>,
    lost: Arc<AtomicU64>,
    limiter: Mutex<DenialLimiter>,
}

#[derive(Serialize)]
struct Line<'a> {
    at: String,
    principal: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<IpAddr>,
    action: &'a str,
    target: &'a str,
    allowed: bool,
    why: &'a str,
    /// Denials of this principal and action since their last line.
    #[serde(skip_serializing_if = "is_zero")]
    suppressed: u64,
}

/// Capacity of the channel: about 2 MiB of usual lines.
const BUFFERED_LINES: usize = 8 * 1024;
/// Longest text of a field in bytes. Callers choose parts of it.
const LONGEST_TEXT: usize = 512;
/// Time-out for writing the last lines, if the disk stalls.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

impl AuditLog {
    /// Opens the file for appending, and creates it with mode 0600 if it is missing.
    ///
    /// # Errors
    /// `Unavailable` if the file cannot be opened or the writer thread not be started.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let lost = Arc::<AtomicU64>::default();
        let file = AuditFile::open(path.as_ref(), Arc::clone(&lost))?;
        let (lines, messages) = sync_channel(BUFFERED_LINES);
        writer::start(file, messages)?;
        Ok(Self {
            lines,
            lost,
            limiter: Mutex::default(),
        })
    }

    /// Records a decision. Does not wait for the disk.
    pub fn record(&self, event: &AuditEvent<'_>) {
        let (principal, action) = (cut(event.principal), cut(event.action));
        let mut suppressed = 0;
        let mut summaries = Vec::new();
        if !event.allowed {
            let mut limiter = lock(&self.limiter);
            summaries = limiter.take_ended(event.at);
            // The failures of one address must not hide those of others.
            let from = event.from.filter(|_| principal.is_empty());
            let Some(count) = limiter.count((principal, from, action), event.at) else {
                drop(limiter);
                self.summarise(event.at, &summaries);
                return;
            };
            suppressed = count;
        }
        self.summarise(event.at, &summaries);
        self.send(&Line {
            at: Timestamp::from(event.at).to_string(),
            principal,
            from: event.from,
            action,
            target: cut(event.target),
            allowed: event.allowed,
            why: cut(event.why),
            suppressed,
        });
    }

    /// Opens the file again by its path, after another program has renamed it.
    pub fn reopen(&self) {
        // A full channel: the next call of the operator reopens it.
        let _ = self.lines.try_send(Message::Reopen);
    }

    /// Returns the number of lines that were lost.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Records denials whose flood has ended, and whose last ones have no line yet.
    fn summarise(&self, at: SystemTime, ended: &[limiter::Ended]) {
        for ended in ended {
            self.send(&Line {
                at: Timestamp::from(at).to_string(),
                principal: &ended.principal,
                from: ended.from,
                action: &ended.action,
                target: "",
                allowed: false,
                why: "further denials that were not recorded",
                suppressed: ended.suppressed,
            });
        }
    }

    fn send(&self, line: &Line<'_>) {
        let Ok(mut text) = serde_json::to_vec(line) else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        text.push(b'\n');
        if self.lines.try_send(Message::Line(text)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        let ended = lock(&self.limiter).take_all();
        if let Some(at) = ended.iter().map(|ended| ended.at).max() {
            self.summarise(at, &ended);
        }
        const STEP: Duration = Duration::from_millis(5);
        let (flushing, flushed) = sync_channel(0);
        let mut message = Message::Flush(flushing);
        let mut left = FLUSH_TIMEOUT;
        while let Err(TrySendError::Full(back)) = self.lines.try_send(message) {
            if left.is_zero() {
                return;
            }
            message = back;
            left = left.saturating_sub(STEP);
            std::thread::sleep(STEP);
        }
        // The thread sends nothing: the wait ends when it drops the sender.
        let _ = flushed.recv_timeout(left);
    }
}

/// Returns at most [`LONGEST_TEXT`] bytes.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST_TEXT)]
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde requires"
)]
fn is_zero(count: &u64) -> bool {
    *count == 0
}
