//! Notification from the commit: the relay is told of every committed message, also after a crash.
//!
//! Each commit notes its messages in `unnotified`. After the commit a task notifies the relay and
//! deletes the row, if no other commit has changed it since. Rows that a crash or an unreachable
//! relay leaves behind are notified by [`QueueManager::notify_pending`]. A message may be notified
//! twice, and never not at all.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use rusqlite::{Connection, Transaction};

use super::{
    config::OUTGOING_QUEUE,
    manager::{QueueManager, Shared},
    notify_state::NotifyState,
};
use crate::{
    error::Result,
    queue::{
        QueueLimits,
        sqlite::{
            PutObserver,
            clock::{self, Micros},
            limit,
        },
    },
    types::{Notification, Notifier},
};

/// A row of `unnotified`.
#[derive(Debug, Clone)]
struct Unnotified {
    queue: i64,
    name: String,
    /// The file's time from which the messages are visible; 0 is when they were stored.
    due: Micros,
    messages: i64,
    bytes: i64,
    revision: i64,
    delay: Duration,
}

/// The rows of one pass. More are left to the next one.
const BATCH: usize = 256;

impl QueueManager {
    /// Notifies the relay of all committed messages of which it was not told; returns the number of
    /// notifications. The host of the file calls it after opening and once a second. Without a
    /// notifier it does nothing.
    ///
    /// # Errors
    /// Of the file or of the notifier; the notifications are tried again by the next call.
    pub async fn notify_pending(&self) -> Result<usize> {
        self.shared.notify_pending().await
    }
}

impl Shared {
    /// Starts a task that notifies, unless one runs. It runs beside the caller, so that a slow relay
    /// delays no commit. Without a runtime or a notifier it does nothing.
    pub(super) fn start_notifying(this: &Arc<Self>) {
        let has_runtime = tokio::runtime::Handle::try_current().is_ok();
        if this.notifier.get().is_none() || !has_runtime || !this.notifying.begin() {
            return;
        }
        let shared = Arc::clone(this);
        // Before the spawn: a runtime that shuts down may drop the task before its first poll.
        let mut ending = NotifyState::ending(&this.notifying);
        this.scope.spawn_graceful(async move {
            loop {
                if let Err(error) = shared.notify_pending().await {
                    let path = shared.database.path().display().to_string();
                    tracing::debug!(path, %error, "a notification of committed messages failed");
                }
                if !ending.goes_on() {
                    return;
                }
            }
        });
    }

    async fn notify_pending(&self) -> Result<usize> {
        let Some(notifier) = self.notifier.get() else {
            return Ok(0);
        };
        let mut count = self.notify_outgoing(&**notifier).await?;
        loop {
            let rows = self
                .database
                .run(|connection| unnotified(connection))
                .await?;
            let (found, is_last) = (rows.len(), rows.len() < BATCH);
            if found == 0 {
                return Ok(count);
            }
            let notifications = rows.iter().map(|row| {
                Ok(Notification {
                    messages: row.messages.unsigned_abs(),
                    payload_size: row.bytes.unsigned_abs(),
                    delay: row.delay,
                    ..Notification::new(self.address(&row.name)?)
                })
            });
            let notifications = notifications.collect::<Result<Vec<_>>>()?;
            notifier.notify(notifications).await?;
            let done = self.database.write_unsynced(move |transaction| {
                rows.iter().try_for_each(|row| forget(transaction, row))
            });
            done.await?;
            count += found;
            if is_last {
                return Ok(count);
            }
        }
    }

    /// Wakes the host, if it is another process. The rows of `outgoing` are the durable record.
    async fn notify_outgoing(&self, notifier: &dyn Notifier) -> Result<usize> {
        if !self.outgoing_unnotified.swap(false, Ordering::AcqRel) {
            return Ok(0);
        }
        let notification = Notification::new(self.address(OUTGOING_QUEUE)?);
        let notified = notifier.notify(vec![notification]).await;
        if notified.is_err() {
            self.outgoing_unnotified.store(true, Ordering::Release);
        }
        notified.map(|_| 1)
    }
}

impl PutObserver for Shared {
    fn put_committed(self: Arc<Self>) {
        Self::start_notifying(&self);
    }
}

fn unnotified(connection: &Connection) -> rusqlite::Result<Vec<Unnotified>> {
    let now = clock::now(connection)?;
    let longest = QueueLimits::EMBEDDED.delay;
    let mut select = connection.prepare_cached(
        "SELECT u.queue, q.name, u.due, u.messages, u.bytes, u.revision
         FROM unnotified u JOIN queues q ON q.id = u.queue LIMIT ?1",
    )?;
    let rows = select.query_map([limit(BATCH)], |row| {
        let due: Micros = row.get(2)?;
        let wait = due.saturating_sub(now).max(0).unsigned_abs();
        Ok(Unnotified {
            queue: row.get(0)?,
            name: row.get(1)?,
            due,
            messages: row.get::<_, i64>(3)?.max(1),
            bytes: row.get::<_, i64>(4)?.max(0),
            revision: row.get(5)?,
            delay: Duration::from_micros(wait).min(longest),
        })
    })?;
    rows.collect()
}

/// Deletes a row whose messages were notified. If another commit has added to it, only its own
/// messages stay.
fn forget(transaction: &Transaction<'_>, row: &Unnotified) -> rusqlite::Result<()> {
    let delete = "DELETE FROM unnotified WHERE queue = ?1 AND due = ?2 AND revision = ?3";
    let mut delete = transaction.prepare_cached(delete)?;
    if delete.execute([row.queue, row.due, row.revision])? > 0 {
        return Ok(());
    }
    transaction
        .prepare_cached(
            "UPDATE unnotified SET messages = max(messages - ?3, 1), bytes = max(bytes - ?4, 0)
             WHERE queue = ?1 AND due = ?2",
        )?
        .execute([row.queue, row.due, row.messages, row.bytes])
        .map(drop)
}
