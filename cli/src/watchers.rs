//! The listeners that wait for a flag, as `flag get`, `listeners` and `unleash --expect` print
//! them.

use std::fmt::Write as _;

use reveille::{FlagWatcherInfo, duration::Span};
use serde::Serialize;

use super::output::millis;

/// Prefix of the listener ids of `flag watch`. A person who watches a flag is not a missing node.
pub(super) const FLAG_WATCH_ID: &str = "flag-watch";

/// Maximum number of names in a text; JSON has all.
const SHOWN: usize = 20;

/// A listener that watches a flag.
#[derive(Debug, Serialize)]
pub(super) struct Waiter {
    listener_id: String,
    streams: u32,
    connected_for_ms: u64,
    acknowledged: bool,
    #[serde(skip)]
    waiting_for: Span,
}

/// A listener that watches a flag and has not acknowledged it.
#[derive(Debug, Serialize)]
pub(super) struct Missing {
    listener_id: String,
}

impl From<FlagWatcherInfo> for Waiter {
    fn from(watcher: FlagWatcherInfo) -> Self {
        Self {
            listener_id: watcher.listener_id,
            streams: watcher.streams,
            connected_for_ms: millis(watcher.since),
            acknowledged: watcher.acknowledged,
            waiting_for: Span(watcher.since),
        }
    }
}

impl Missing {
    /// Returns the nodes among these that have not acknowledged.
    pub(super) fn of(watchers: Vec<FlagWatcherInfo>) -> Vec<Self> {
        let missing = watchers.into_iter().filter(|watcher| {
            !watcher.acknowledged && !watcher.listener_id.starts_with(FLAG_WATCH_ID)
        });
        let missing = missing.map(|watcher| Self {
            listener_id: watcher.listener_id,
        });
        missing.collect()
    }
}

/// Returns the waiting listeners as a table's cell, one a line.
pub(super) fn cell(waiters: Option<&[Waiter]>) -> String {
    let Some(waiters) = waiters else {
        return "unknown".to_owned();
    };
    let line = |waiter: &Waiter| {
        let mut line = format!("{} for {}", waiter.listener_id, waiter.waiting_for);
        if waiter.streams > 1 {
            let _ = write!(line, ", {} streams", waiter.streams);
        }
        if waiter.acknowledged {
            line.push_str(", acknowledged");
        }
        line
    };
    let lines = shown(waiters, line);
    if lines.is_empty() {
        "-".to_owned()
    } else {
        lines.join("\n")
    }
}

/// Returns the missing listeners as a part of a sentence. `expected` and `acknowledged` give the
/// number of listeners that do not watch now.
pub(super) fn sentence(missing: &[Missing], expected: u32, acknowledged: u32) -> String {
    let mut parts = shown(missing, |missing| missing.listener_id.clone());
    let known = u32::try_from(missing.len()).unwrap_or(u32::MAX);
    let unseen = expected.saturating_sub(acknowledged).saturating_sub(known);
    if unseen > 0 {
        parts.push(format!("{unseen} that do not watch now"));
    }
    parts.join(", ")
}

/// Returns the texts of the first items, and the number of further ones.
fn shown<T>(all: &[T], text: impl Fn(&T) -> String) -> Vec<String> {
    let mut texts: Vec<_> = all.iter().take(SHOWN).map(text).collect();
    let more = all.len().saturating_sub(SHOWN);
    if more > 0 {
        texts.push(format!("and {more} more"));
    }
    texts
}
