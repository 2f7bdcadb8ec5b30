//! Dead letters: listed, and sent again; and the removal of messages that wait for a machine.
//!
//! A dead letter keeps its body until an operator sends it again or removes it.

use std::time::SystemTime;

use rusqlite::{OptionalExtension, Transaction, params};

use super::{
    manager::{QueueManager, Shared},
    message::{Destination, MessageId, new_id},
    staging::{insert_local, local_queue},
};
use crate::{
    backend::sqlite::refuse,
    error::{Error, ErrorKind, Result},
    queue::sqlite::{
        checksum::is_sound,
        clock::{self, Micros},
        limit, system_time,
    },
};

/// A message that could not be delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The message's id.
    pub id: MessageId,
    /// Where it was sent.
    pub destination: Destination,
    /// Why it was not delivered.
    pub reason: String,
    /// The size of its body in bytes.
    pub size: u64,
    /// The time at which it was sent or arrived.
    pub stored_at: SystemTime,
    /// The time at which it became a dead letter.
    pub died_at: SystemTime,
}

/// The result of [`QueueManager::purge`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Purged {
    /// Messages that were removed.
    pub removed: u64,
    /// Messages that the next machine may have stored already: only the hand-over settles them.
    pub kept: u64,
}

/// The rows of one write.
const STEP: usize = 100;

const SELECT: &str = "SELECT uid, authority, queue, checksum, body, stored_at, died_at
     FROM dead_letters WHERE uid = ?1";
const IS_CERTAIN: &str =
    "id > coalesce((SELECT uncertain_upto FROM hops WHERE authority = outgoing.hop), 0)";
const WAITING: &str = "status = 1 AND authority = ?1 AND queue = ?2";

impl QueueManager {
    /// Returns up to `max` dead letters, the newest first.
    ///
    /// # Errors
    /// Of the file.
    pub async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>> {
        let read = self.database().run(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT uid, authority, queue, reason, length(body), stored_at, died_at
                 FROM dead_letters ORDER BY id DESC LIMIT ?1",
            )?;
            let rows = select.query_map([limit(max)], |row| {
                Ok(DeadLetter {
                    id: MessageId::from_bytes(row.get(0)?),
                    destination: Destination::stored(row.get(1)?, row.get(2)?),
                    reason: row.get(3)?,
                    size: row.get::<_, i64>(4)?.unsigned_abs(),
                    stored_at: system_time(row.get(5)?),
                    died_at: system_time(row.get(6)?),
                })
            })?;
            rows.collect()
        });
        read.await
    }

    /// Sends a dead letter again. A message to another machine gets a new id, which is returned: the
    /// machines on its way may know the old one, and would take it for a copy.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such dead letter, or its queue does not exist;
    /// [`ErrorKind::Invalid`] if its body is damaged; [`ErrorKind::Exhausted`] if a limit is
    /// reached.
    pub async fn requeue(&self, id: MessageId) -> Result<MessageId> {
        let (uid, new) = (*id.as_bytes(), new_id()?);
        let shared = std::sync::Arc::clone(&self.shared);
        let requeued = self.database().write(move |transaction| {
            let now = clock::advance_exactly(transaction)?;
            requeue(transaction, &shared, uid, new, now)
        });
        let (id, is_local) = requeued.await?;
        if !is_local {
            self.shared.signal_outgoing();
        }
        Shared::start_notifying(&self.shared);
        Ok(MessageId::from_bytes(id))
    }

    /// Sends all dead letters again, the oldest first; returns how many. A dead letter that cannot
    /// be sent stays, with the error in its reason.
    ///
    /// # Errors
    /// Of the file, and [`ErrorKind::Exhausted`] if a limit is reached: the rest stays.
    pub async fn requeue_all(&self) -> Result<u64> {
        let (mut after, mut count) = (0, 0);
        loop {
            let read = self.database().run(move |connection| {
                let sql = "SELECT id, uid FROM dead_letters WHERE id > ?1 ORDER BY id LIMIT ?2";
                let mut select = connection.prepare_cached(sql)?;
                let rows =
                    select.query_map([after, limit(STEP)], |row| Ok((row.get(0)?, row.get(1)?)))?;
                rows.collect::<rusqlite::Result<Vec<(i64, [u8; 16])>>>()
            });
            let rows = read.await?;
            let Some((last, _)) = rows.last() else {
                return Ok(count);
            };
            after = *last;
            for (_, uid) in rows {
                match self.requeue(MessageId::from_bytes(uid)).await {
                    Ok(_) => count += 1,
                    Err(error)
                        if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid) =>
                    {
                        self.keep(uid, error.message().to_owned()).await?;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Removes the messages that wait for another machine. Messages that the machine may have stored
    /// already are kept: removed here, they could still become visible there.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a local queue: purge the queue itself.
    pub async fn purge(&self, destination: &Destination) -> Result<Purged> {
        let Some(authority) = destination.authority() else {
            let rule = "must be on another machine: purge a local queue as a queue";
            return Err(Error::invalid("destination", rule));
        };
        let mut removed = 0;
        loop {
            let (authority, queue) = (authority.to_owned(), destination.queue().to_owned());
            let step = self.database().write(move |transaction| {
                let sql = format!(
                    "DELETE FROM outgoing WHERE id IN (SELECT id FROM outgoing
                     WHERE {WAITING} AND {IS_CERTAIN} LIMIT 1000)"
                );
                let removed = transaction.execute(&sql, params![authority, queue])?;
                let sql = format!("SELECT count(*) FROM outgoing WHERE {WAITING}");
                let kept: i64 = match removed {
                    0 => {
                        transaction.query_row(&sql, params![authority, queue], |row| row.get(0))?
                    }
                    _ => 0,
                };
                Ok((removed as u64, kept.unsigned_abs()))
            });
            let (step, kept) = step.await?;
            removed += step;
            if step == 0 {
                return Ok(Purged { removed, kept });
            }
        }
    }

    /// Notes why a dead letter stays.
    async fn keep(&self, uid: [u8; 16], reason: String) -> Result<()> {
        let update = "UPDATE dead_letters SET reason = ?2 WHERE uid = ?1";
        let noted = self
            .database()
            .write(move |transaction| transaction.execute(update, params![uid, reason]));
        noted.await.map(drop)
    }
}

/// Moves a dead letter to its queue or to the outgoing messages; returns its id, and whether it is
/// local.
fn requeue(
    transaction: &Transaction<'_>,
    shared: &Shared,
    uid: [u8; 16],
    new: [u8; 16],
    now: Micros,
) -> rusqlite::Result<([u8; 16], bool)> {
    type Found = (String, String, i64, Vec<u8>, Micros);
    let found: Option<Found> = transaction
        .prepare_cached(SELECT)?
        .query_row([uid], |row| {
            Ok((
                row.get(1)?,
                row.get(2)?,
                row.get(3)?,
                row.get(4)?,
                row.get(5)?,
            ))
        })
        .optional()?;
    let id = MessageId::from_bytes(uid);
    let Some((authority, queue, sum, body, stored_at)) = found else {
        let message = format!("there is no dead letter `{id}`");
        return Err(refuse(Error::new(ErrorKind::NotFound, message)));
    };
    if !is_sound(&body, Some(sum)) {
        let rule = format_args!("`{id}` is damaged: its body does not have its checksum");
        return Err(refuse(Error::invalid("dead letter", rule)));
    }
    transaction.execute("DELETE FROM dead_letters WHERE uid = ?1", [uid])?;
    if authority.is_empty() {
        let queue = local_queue(transaction, &queue, shared.config.max_queue)?;
        insert_local(transaction, queue, now, stored_at, &uid, &body)?;
        return Ok((uid, true));
    }
    shared.insert_outgoing(transaction, now, &new, (&authority, &queue), &body)?;
    Ok((new, false))
}
