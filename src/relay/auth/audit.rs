//! The audit log: one JSON line for each recorded decision, appended to a file.
//!
//! A caller never waits for the disk: lines go through a bounded channel to a writer thread. Lines
//! that find the channel full, or cannot be written, are counted as lost. Denials of one principal
//! and action are limited to one line a second, those of unknown callers by their address (see
//! `audit/limiter`). The number of the others follows within a minute.

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
use crate::{
    base::{clock::wall, sync::lock},
    error::Result,
};

/// A decision to be recorded. No field may contain a credential.
#[derive(Debug, Clone, Copy)]
pub struct AuditEvent<'a> {
    /// The time of the decision.
    pub at: SystemTime,
    /// Name of the principal; empty if the caller is not authenticated.
    pub principal: &'a str,
    /// The kind of the credential and which it was, as [`Caller::credential`](super::Caller::credential);
    /// empty without one.
    pub credential: &'a str,
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
    limiter: Arc<Mutex<DenialLimiter>>,
}

#[derive(Serialize)]
struct Line<'a> {
    at: String,
    principal: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    credential: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<IpAddr>,
    action: &'a str,
    target: &'a str,
    allowed: bool,
    why: &'a str,
    /// Denials of this principal and action since their last line.
    #[serde(skip_serializing_if = "is_zero")]
    suppressed: u64,
    /// The time of that line.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
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
        let limiter = Arc::<Mutex<DenialLimiter>>::default();
        // Denials that nothing follows are counted in a line as well.
        let ended = {
            let limiter = Arc::clone(&limiter);
            move || {
                let now = wall();
                let ended = lock(&limiter).take_ended(now);
                ended
                    .iter()
                    .filter_map(|ended| summary(now, ended))
                    .collect()
            }
        };
        writer::start(file, messages, ended)?;
        Ok(Self {
            lines,
            lost,
            limiter,
        })
    }

    /// Records a decision. Does not wait for the disk.
    pub fn record(&self, event: &AuditEvent<'_>) {
        let (principal, action) = (cut(event.principal), cut(event.action));
        let mut limiter = lock(&self.limiter);
        let ended = limiter.take_ended(event.at);
        // The failures of one address must not hide those of others.
        let from = event.from.filter(|_| principal.is_empty());
        let suppressed = match event.allowed {
            true => Some(0),
            false => limiter.count((principal, from, action), event.at),
        };
        drop(limiter);
        for ended in &ended {
            self.send(summary(event.at, ended));
        }
        let Some(suppressed) = suppressed else {
            return;
        };
        self.send(
            Line {
                at: time(event.at),
                principal,
                credential: cut(event.credential),
                from: event.from,
                action,
                target: cut(event.target),
                allowed: event.allowed,
                why: cut(event.why),
                suppressed,
                since: None,
            }
            .text(),
        );
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

    fn send(&self, text: Option<Vec<u8>>) {
        let sent = text.map(|text| self.lines.try_send(Message::Line(text)));
        if !matches!(sent, Some(Ok(()))) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Line<'_> {
    /// Returns the line as JSON. Characters that could act on a terminal, or change the order of the
    /// others, are escaped, also where JSON permits them.
    fn text(&self) -> Option<Vec<u8>> {
        let json = serde_json::to_string(self).ok()?;
        let mut text = String::with_capacity(json.len() + 1);
        for char in json.chars() {
            let is_plain = char.is_alphanumeric() || (char.is_ascii() && !char.is_ascii_control());
            if is_plain {
                text.push(char);
                continue;
            }
            for unit in char.encode_utf16(&mut [0; 2]) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        }
        text.push('\n');
        Some(text.into_bytes())
    }
}

/// Returns the line of denials whose flood has ended, and whose last ones have none yet.
fn summary(at: SystemTime, ended: &limiter::Ended) -> Option<Vec<u8>> {
    let line = Line {
        at: time(at),
        principal: &ended.principal,
        credential: "",
        from: ended.from,
        action: &ended.action,
        target: "",
        allowed: false,
        why: "further denials that were not recorded",
        suppressed: ended.suppressed,
        since: Some(time(ended.at)),
    };
    line.text()
}

fn time(at: SystemTime) -> String {
    Timestamp::from(at).to_string()
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        const STEP: Duration = Duration::from_millis(5);
        let ended = lock(&self.limiter).take_all();
        for ended in &ended {
            self.send(summary(ended.at, ended));
        }
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
