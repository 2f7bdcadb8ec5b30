//! Dead letters: listed, shown, removed, and sent again.
//!
//! A dead letter keeps its body until an operator sends it again or removes it.

use std::time::SystemTime;

use bytes::Bytes;
use rusqlite::{OptionalExtension, Row, Transaction};

use super::{
    manager::{QueueManager, Shared},
    message::{Destination, MessageId, new_id},
    status::{destination, unsigned},
    steps::insert,
};
use crate::{
    backend::sqlite::refuse,
    error::{Error, ErrorKind, Result},
    queue::sqlite::{
        checksum::is_sound,
        clock::{self, Micros},
        later, limit, system_time,
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

const COLUMNS: &str = "uid, authority, queue, reason, length(body), stored_at, died_at";

impl QueueManager {
    /// Returns up to `max` dead letters, the newest first.
    ///
    /// # Errors
    /// Of the file.
    pub async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>> {
        let read = self.database().run(move |connection| {
            let sql = format!("SELECT {COLUMNS} FROM dead_letters ORDER BY id DESC LIMIT ?1");
            let mut select = connection.prepare_cached(&sql)?;
            let rows = select.query_map([limit(max)], letter)?;
            rows.collect()
        });
        read.await
    }

    /// Returns a dead letter with its body.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such dead letter.
    pub async fn dead_letter(&self, id: MessageId) -> Result<(DeadLetter, Bytes)> {
        let read = self.database().run(move |connection| {
            let sql = format!("SELECT {COLUMNS}, body FROM dead_letters WHERE uid = ?1");
            let mut select = connection.prepare_cached(&sql)?;
            let found = select.query_row([id.as_bytes()], |row| {
                Ok((letter(row)?, row.get::<_, Vec<u8>>(7)?.into()))
            });
            found.optional()
        });
        read.await?.ok_or_else(|| missing(id))
    }

    /// Removes a dead letter. The message is lost then.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such dead letter.
    pub async fn remove_dead_letter(&self, id: MessageId) -> Result<()> {
        let delete = "DELETE FROM dead_letters WHERE uid = ?1";
        let removed = self
            .database()
            .write(move |transaction| transaction.execute(delete, [id.as_bytes()]));
        match removed.await? {
            0 => Err(missing(id)),
            _ => Ok(()),
        }
    }

    /// Removes all dead letters that are there now; returns how many.
    ///
    /// # Errors
    /// Of the file.
    pub async fn remove_dead_letters(&self) -> Result<u64> {
        let delete = "DELETE FROM dead_letters";
        let removed = self
            .database()
            .write(move |transaction| transaction.execute(delete, []));
        Ok(removed.await? as u64)
    }

    /// Sends a dead letter again, to `to` or to its former destination. A message to another machine gets
    /// a new id, which is returned: the machines on its way may know the old one, and would take it for
    /// a copy.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such dead letter, or its queue does not exist;
    /// [`ErrorKind::Invalid`] if its body is damaged or at another machine;
    /// [`ErrorKind::Exhausted`] if a limit is reached.
    pub async fn requeue(&self, id: MessageId, to: Option<&Destination>) -> Result<MessageId> {
        let (uid, new, to) = (*id.as_bytes(), new_id()?, to.cloned());
        let shared = std::sync::Arc::clone(&self.shared);
        let requeued = self.database().write(move |transaction| {
            let now = clock::advance_exactly(transaction)?;
            requeue(transaction, &shared, (uid, new), to, now)
        });
        let (id, is_local) = requeued.await?;
        if !is_local {
            self.shared.signal_outgoing();
        }
        Shared::start_notifying(&self.shared);
        Ok(MessageId::from_bytes(id))
    }

    /// Sends all dead letters that are there now again, the oldest first, to `to` or to their former
    /// destinations; returns how many. One whose queue does not exist stays, and a damaged one.
    ///
    /// # Errors
    /// Of the file, and [`ErrorKind::Exhausted`] if a limit is reached: the rest stays.
    pub async fn requeue_all(&self, to: Option<&Destination>) -> Result<u64> {
        // Messages that are refused again are dead letters behind these.
        let all = self.database().run(|connection| {
            let mut select =
                connection.prepare_cached("SELECT uid FROM dead_letters ORDER BY id")?;
            let rows = select.query_map([], |row| row.get(0))?;
            rows.collect::<rusqlite::Result<Vec<[u8; 16]>>>()
        });
        let mut count = 0;
        for uid in all.await? {
            match self.requeue(MessageId::from_bytes(uid), to).await {
                Ok(_) => count += 1,
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }
}

/// Moves a dead letter to its queue or to the outgoing messages; returns its id, and whether it is
/// local.
fn requeue(
    transaction: &Transaction<'_>,
    shared: &Shared,
    (uid, new): ([u8; 16], [u8; 16]),
    to: Option<Destination>,
    now: Micros,
) -> rusqlite::Result<([u8; 16], bool)> {
    let select = "SELECT authority, queue, checksum, body, stored_at FROM dead_letters
                  WHERE uid = ?1";
    let found = transaction.prepare_cached(select)?.query_row([uid], |row| {
        let (sum, body): (i64, Vec<u8>) = (row.get(2)?, row.get(3)?);
        Ok((destination(row, 0)?, sum, body, row.get::<_, Micros>(4)?))
    });
    let id = MessageId::from_bytes(uid);
    let Some((former, sum, body, stored_at)) = found.optional()? else {
        return Err(refuse(missing(id)));
    };
    if !is_sound(&body, Some(sum)) {
        let why = if body.is_empty() {
            "has no body here: only the former queue file of the other machine has it"
        } else {
            "is damaged: its body does not have its checksum"
        };
        return Err(refuse(Error::invalid(
            "dead letter",
            format_args!("`{id}` {why}"),
        )));
    }
    transaction.execute("DELETE FROM dead_letters WHERE uid = ?1", [uid])?;
    let to = to.unwrap_or(former);
    let mut send = shared.new_send(uid, &to, body.into()).map_err(refuse)?;
    shared.check_room(transaction, &send)?;
    let is_local = send.hop.is_none();
    let stored_at = if is_local {
        stored_at
    } else {
        send.uid = new;
        now
    };
    let ends_at = later(now, shared.config.max_age);
    insert(transaction, &send, (now, stored_at), ends_at)?;
    Ok((send.uid, is_local))
}

/// Reads the columns [`COLUMNS`].
fn letter(row: &Row<'_>) -> rusqlite::Result<DeadLetter> {
    Ok(DeadLetter {
        id: MessageId::from_bytes(row.get(0)?),
        destination: destination(row, 1)?,
        reason: row.get(3)?,
        size: unsigned(row, 4)?,
        stored_at: system_time(row.get(5)?),
        died_at: system_time(row.get(6)?),
    })
}

#[cold]
fn missing(id: MessageId) -> Error {
    let message = format!("there is no dead letter `{id}`");
    Error::new(ErrorKind::NotFound, message)
}
