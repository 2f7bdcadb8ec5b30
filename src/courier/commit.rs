//! The SQL of the end of a transaction: a commit that settles all of its steps, or a rollback.
//!
//! Knows no clock and no socket: the caller passes `now`. Each function runs inside one short
//! database transaction.

use std::{collections::BTreeMap, time::Duration};

use rusqlite::{Transaction, params};

use super::{
    handover::outgoing::{self, NewOutgoing},
    staging::{NewSend, SentTo, insert_message, local_queue, time_is_over},
    taken::{self, Owner, Received, Taken},
};
use crate::{
    backend::sqlite::refuse,
    error::{Error, ErrorKind},
    queue::sqlite::{
        checksum::checksum,
        clock::Micros,
        put::{count_put, note_unnotified},
    },
};

/// A message that the transaction has sent, in the order of the sends.
#[derive(Debug)]
pub(super) enum Sent {
    /// It is in the memory of this process.
    Kept(NewSend),
    /// It is a row of `staged`.
    Staged { row: i64, size: usize, to: SentTo },
}

/// All that a commit settles.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) tx: [u8; 16],
    pub(super) timeout: Duration,
    pub(super) ends_at: Micros,
    pub(super) sent: Vec<Sent>,
    /// The transaction may have rows in `staged`, also of cancelled sends.
    pub(super) has_staged: bool,
    pub(super) received: Received,
    /// The age limit of messages to other machines.
    pub(super) outgoing_ends_at: Micros,
}

/// For all messages of a list of `taken`.
const INSERT_RECEIVED: &str = "INSERT INTO received (uid, queue, size, arrived_at, received_at)
     SELECT m.uid, q.name, length(m.body), m.inserted_at, ?2
     FROM json_each(?1) j CROSS JOIN messages m JOIN queues q ON q.id = m.queue
     WHERE m.id = j.value ->> 0 AND m.receipt = j.value ->> 1
     ON CONFLICT (uid) DO UPDATE SET received_at = excluded.received_at";
const INSERT_LOCAL: &str =
    "INSERT INTO messages (queue, visible_at, inserted_at, uid, checksum, body)
     SELECT ?3, ?4, ?4, uid, checksum, body FROM staged WHERE id = ?1 AND tx = ?2";
const INSERT_OUTGOING: &str = "INSERT INTO outgoing
       (uid, authority, queue, hop, status, stored_at, ends_at, visited, size, checksum, body)
     SELECT uid, authority, queue, ?3, 1, ?4, ?5, x'', length(body), checksum, body
     FROM staged WHERE id = ?1 AND tx = ?2";

/// Messages and bytes of the queues of this file.
type Tally = BTreeMap<i64, (usize, usize)>;

impl Sent {
    /// Returns whether it goes to another machine.
    pub(super) fn goes_out(&self) -> bool {
        match self {
            Self::Kept(send) => send.hop.is_some(),
            Self::Staged { to, .. } => matches!(to, SentTo::Hop(_)),
        }
    }
}

/// Applies a commit as a whole, or refuses it.
pub(super) fn commit(
    transaction: &Transaction<'_>,
    outcome: &Outcome,
    now: Micros,
) -> rusqlite::Result<()> {
    if now >= outcome.ends_at {
        return Err(refuse(time_is_over(Some(outcome.timeout))));
    }
    settle_received(transaction, &outcome.received.messages, now)?;
    forget_taken(transaction, &outcome.tx, &outcome.received.steps)?;
    let mut tally = Tally::new();
    for sent in &outcome.sent {
        let (queue, size) = match sent {
            Sent::Kept(send) => (
                insert_kept(transaction, outcome, send, now)?,
                send.body.len(),
            ),
            Sent::Staged { row, size, to } => {
                (move_staged(transaction, outcome, *row, to, now)?, *size)
            }
        };
        if let Some(queue) = queue {
            let (messages, bytes) = tally.entry(queue).or_default();
            (*messages, *bytes) = (*messages + 1, *bytes + size);
        }
    }
    for (queue, (messages, bytes)) in tally {
        count_put(transaction, queue, messages)?;
        note_unnotified(transaction, queue, 0, messages, bytes)?;
    }
    match outcome.has_staged {
        true => forget_staged(transaction, &outcome.tx),
        false => Ok(()),
    }
}

/// Adds a message of the memory to a queue of this file, which is returned, or to those for other
/// machines.
fn insert_kept(
    transaction: &Transaction<'_>,
    outcome: &Outcome,
    send: &NewSend,
    now: Micros,
) -> rusqlite::Result<Option<i64>> {
    let Some(hop) = &send.hop else {
        let queue = local_queue(transaction, &send.queue, 0, None)?;
        insert_message(transaction, queue, now, now, &send.uid, &send.body)?;
        return Ok(Some(queue));
    };
    let message = NewOutgoing {
        uid: &send.uid,
        authority: &send.authority,
        queue: &send.queue,
        hop,
        stored_at: now,
        ends_at: Some(outcome.outgoing_ends_at),
        checksum: checksum(&send.body),
        body: &send.body,
    };
    outgoing::insert(transaction, &message)?;
    Ok(None)
}

/// The same for a staged message.
fn move_staged(
    transaction: &Transaction<'_>,
    outcome: &Outcome,
    row: i64,
    to: &SentTo,
    now: Micros,
) -> rusqlite::Result<Option<i64>> {
    let (moved, queue) = match to {
        SentTo::Queue(queue) => {
            let mut insert = transaction.prepare_cached(INSERT_LOCAL)?;
            let moved = insert.execute(params![row, outcome.tx, queue, now])?;
            (moved, Some(*queue))
        }
        SentTo::Hop(hop) => {
            let mut insert = transaction.prepare_cached(INSERT_OUTGOING)?;
            let values = params![row, outcome.tx, hop, now, outcome.outgoing_ends_at];
            (insert.execute(values)?, None)
        }
    };
    match moved {
        1 => Ok(queue),
        // The rows of a transaction are removed after its time-out.
        _ => Err(refuse(time_is_over(Some(outcome.timeout)))),
    }
}

fn settle_received(
    transaction: &Transaction<'_>,
    received: &[Taken],
    now: Micros,
) -> rusqlite::Result<()> {
    if received.is_empty() {
        return Ok(());
    }
    let list = taken::list(received);
    let mut insert = transaction.prepare_cached(INSERT_RECEIVED)?;
    if insert.execute(params![list, now])? != received.len() {
        let message = "a message of the transaction was got by another consumer, or is gone: \
            nothing was committed";
        return Err(refuse(Error::new(ErrorKind::Conflict, message)));
    }
    let delete = "DELETE FROM messages WHERE id IN (SELECT value ->> 0 FROM json_each(?1))";
    transaction.prepare_cached(delete)?.execute([list])?;
    Ok(())
}

fn forget_taken(
    transaction: &Transaction<'_>,
    tx: &[u8; 16],
    steps: &[i64],
) -> rusqlite::Result<()> {
    steps
        .iter()
        .try_for_each(|row| taken::forget(transaction, tx, *row))
}

/// Puts received messages back at their former places and removes staged ones.
pub(super) fn roll_back(transaction: &Transaction<'_>, tx: &[u8; 16]) -> rusqlite::Result<()> {
    taken::give_back(transaction, Owner::Transaction(tx))?;
    forget_staged(transaction, tx)
}

fn forget_staged(transaction: &Transaction<'_>, tx: &[u8; 16]) -> rusqlite::Result<()> {
    let delete = "DELETE FROM staged WHERE tx = ?1";
    transaction.prepare_cached(delete)?.execute([tx]).map(drop)
}
