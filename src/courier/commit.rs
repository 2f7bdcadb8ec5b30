//! The SQL of a commit, which settles all steps of a transaction.
//!
//! Knows no clock and no socket: the caller passes `now`. Each function runs inside one short
//! database transaction.

use std::{collections::BTreeMap, time::Duration};

use rusqlite::{Transaction, params};

use super::{
    handover::outgoing::{self, NewOutgoing},
    staging::{NewSend, insert_message, local_queue, time_is_over},
    taken::{self, Received, Taken},
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

/// All that a commit settles.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) tx: [u8; 16],
    pub(super) timeout: Duration,
    pub(super) ends_at: Micros,
    /// In the order of the sends.
    pub(super) sent: Vec<NewSend>,
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
/// Messages and bytes of the queues of this file.
type Tally = BTreeMap<i64, (usize, usize)>;

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
    for row in &outcome.received.steps {
        taken::forget(transaction, &outcome.tx, *row)?;
    }
    let mut tally = Tally::new();
    for send in &outcome.sent {
        if let Some(queue) = insert(transaction, outcome, send, now)? {
            let (messages, bytes) = tally.entry(queue).or_default();
            (*messages, *bytes) = (*messages + 1, *bytes + send.body.len());
        }
    }
    for (queue, (messages, bytes)) in tally {
        count_put(transaction, queue, messages)?;
        note_unnotified(transaction, queue, 0, messages, bytes)?;
    }
    Ok(())
}

/// Adds a message to a queue of this file, which is returned, or to those for other machines.
fn insert(
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
