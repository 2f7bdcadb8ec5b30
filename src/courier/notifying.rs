//! Notification from the commit: the relay is told of every committed message, also after a crash.
//!
//! Each commit notes its messages in `unnotified`. After the commit a task notifies the relay and
//! deletes the row, if no other commit has changed it since. Rows that a crash or an unreachable
//! relay leaves behind are notified by [`QueueManager::notify_pending`]. A message may be notified
//! twice, and never not at all.
//!
//! A relay forgets its timers when it ends. So the row of a delayed message stays until the message is
//! visible, and the relay is notified then once more. A queue that the relay refuses delays no other.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use rusqlite::{Connection, Transaction};
use tokio::time::Instant;

use super::{
    config::OUTGOING_QUEUE,
    manager::{QueueManager, Shared},
};
use crate::{
    base::sync::lock,
    error::{Error, ErrorKind, Result},
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

/// Resets the mark that a task waits to notify the relay.
struct Queued(Arc<Shared>);

/// The rows of one request.
const BATCH: usize = 256;
/// The pause after a refusal of a queue.
const PAUSE: Duration = Duration::from_secs(10);

impl QueueManager {
    /// Notifies the relay of all committed messages of which it was not told; returns the number of
    /// notifications. The host of the file calls it after opening and once a second. Without a
    /// notifier it does nothing.
    ///
    /// # Errors
    /// Of the file or of the notifier; the notifications are tried again by the next call. Where the
    /// relay refuses a queue, the others are notified, the first refusal is returned, and that queue
    /// is tried again after 10 s.
    pub async fn notify_pending(&self) -> Result<usize> {
        self.shared.notify_pending().await
    }
}

impl Shared {
    /// Starts a task that notifies, unless one waits for its turn. It runs beside the caller, so that a
    /// slow relay delays no commit. Without a runtime or a notifier it does nothing.
    pub(super) fn start_notifying(this: &Arc<Self>) {
        let has_runtime = tokio::runtime::Handle::try_current().is_ok();
        if this.notifier.get().is_none() || !has_runtime {
            return;
        }
        if this.notifies.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = Arc::clone(this);
        // Before the spawn: a runtime that shuts down may drop the task before its first poll.
        let queued = Queued(Arc::clone(this));
        this.scope.spawn_graceful(async move {
            let _turn = shared.notifying.lock().await;
            // A commit from now on starts another task.
            drop(queued);
            if let Err(error) = shared.notify_pending().await {
                let path = shared.database.path().display().to_string();
                tracing::debug!(path, %error, "a notification of committed messages failed");
            }
        });
    }

    async fn notify_pending(&self) -> Result<usize> {
        let Some(notifier) = self.notifier.get() else {
            return Ok(0);
        };
        let (mut count, mut refused) = match self.notify_outgoing(&**notifier).await {
            Ok(count) => (count, None),
            Err(error) => (0, Some(error)),
        };
        let mut after = (i64::MIN, Micros::MIN);
        loop {
            let read = self
                .database
                .run(move |connection| unnotified(connection, after));
            let mut rows = read.await?;
            let is_last = rows.len() < BATCH;
            if let Some(last) = rows.last() {
                after = (last.queue, last.due);
            }
            let waits = |until: &Instant| Instant::now() < *until;
            rows.retain(|row| !lock(&self.refused).get(&row.queue).is_some_and(waits));
            let (told, error) = self.notify_rows(&**notifier, rows).await?;
            count += told.len();
            if !told.is_empty() {
                let done = self.database.write_unsynced(move |transaction| {
                    told.iter().try_for_each(|row| forget(transaction, row))
                });
                done.await?;
            }
            match error {
                Some(error) if !is_of_a_queue(&error) => return Err(error),
                error => refused = refused.or(error),
            }
            if is_last {
                return refused.map_or(Ok(count), Err);
            }
        }
    }

    /// Returns the rows that were accepted, and the first error; one that concerns all queues goes
    /// before a refusal of a queue.
    async fn notify_rows(
        &self,
        notifier: &dyn Notifier,
        rows: Vec<Unnotified>,
    ) -> Result<(Vec<Unnotified>, Option<Error>)> {
        let (mut told, mut first) = (Vec::new(), None);
        let (mut sent, mut notifications) = (Vec::new(), Vec::new());
        let mut refuse = |row: &Unnotified, error| {
            lock(&self.refused).insert(row.queue, Instant::now() + PAUSE);
            first.get_or_insert(error);
        };
        for row in rows {
            match self.notification(&row) {
                Ok(notification) => {
                    notifications.push(notification);
                    sent.push(row);
                }
                Err(error) => refuse(&row, error),
            }
        }
        let mut of_all = None;
        let results = match notifications.is_empty() {
            true => Vec::new(),
            false => match notifier.notify_each(notifications.clone()).await {
                // One of them may be the reason.
                Err(error) if is_of_a_queue(&error) && sent.len() > 1 => {
                    let mut results = Vec::new();
                    for one in notifications {
                        let result = notifier.notify_each(vec![one]).await;
                        let ends = matches!(&result, Err(error) if !is_of_a_queue(error));
                        results.extend(result.unwrap_or_else(|error| vec![Err(error)]));
                        if ends {
                            break;
                        }
                    }
                    results
                }
                results => results?,
            },
        };
        for (row, result) in sent.into_iter().zip(results) {
            match result {
                Ok(_) => told.push(row),
                Err(error) if is_of_a_queue(&error) => refuse(&row, error),
                Err(error) => of_all = Some(error),
            }
        }
        Ok((told, of_all.or(first)))
    }

    fn notification(&self, row: &Unnotified) -> Result<Notification> {
        Ok(Notification {
            messages: row.messages.unsigned_abs(),
            payload_size: row.bytes.unsigned_abs(),
            delay: row.delay,
            ..Notification::new(self.address(&row.name)?)
        })
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

impl Drop for Queued {
    fn drop(&mut self) {
        self.0.notifies.store(false, Ordering::Release);
    }
}

/// Returns whether an error of the relay is about a queue, and not about all of them.
fn is_of_a_queue(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Denied | ErrorKind::Exhausted | ErrorKind::Invalid
    )
}

/// Reads the rows behind `after` of which the relay was not told, or that are due.
fn unnotified(connection: &Connection, after: (i64, Micros)) -> rusqlite::Result<Vec<Unnotified>> {
    let now = clock::now(connection)?;
    let longest = QueueLimits::EMBEDDED.delay;
    let mut select = connection.prepare_cached(
        "SELECT u.queue, q.name, u.due, u.messages, u.bytes, u.revision
         FROM (SELECT * FROM unnotified WHERE told = 0 AND (queue, due) > (?1, ?2)
               UNION ALL
               SELECT * FROM unnotified
               WHERE told = 1 AND due <= ?3 AND (queue, due) > (?1, ?2)) u
         JOIN queues q ON q.id = u.queue ORDER BY u.queue, u.due LIMIT ?4",
    )?;
    let values = [after.0, after.1, now, limit(BATCH)];
    let rows = select.query_map(values, |row| {
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

/// Deletes a row whose messages were notified, or marks it where they are not visible yet. If another
/// commit has added to it, only its own messages stay.
fn forget(transaction: &Transaction<'_>, row: &Unnotified) -> rusqlite::Result<()> {
    if !row.delay.is_zero() {
        let mark = "UPDATE unnotified SET told = 1
                    WHERE queue = ?1 AND due = ?2 AND revision = ?3";
        let mut mark = transaction.prepare_cached(mark)?;
        return mark.execute([row.queue, row.due, row.revision]).map(drop);
    }
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
