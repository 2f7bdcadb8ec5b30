//! Sends inside a transaction of the application, on its own connection to the same file.
//!
//! Business data and messages are committed together or not at all, without an outbox table.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use rusqlite::Transaction;

use super::{
    handover::outgoing::{self, NewOutgoing},
    manager::{QueueManager, Shared, check_not_reserved},
    message::{Destination, MessageId, new_id},
    staging::{check_body, insert_local, is_file, local_queue},
};
use crate::{
    error::{Error, Result},
    queue::sqlite::{
        checksum::checksum,
        clock::{self, Micros},
        later,
    },
};

impl QueueManager {
    /// Sends a message as a part of the caller's transaction, whose connection has the manager's
    /// file open ([`QueueManager::connect`]). Call [`QueueManager::committed`] after its commit.
    ///
    /// ```
    /// # async fn order(manager: &reveille::courier::QueueManager) -> Result<(), Box<dyn std::error::Error>> {
    /// let orders = manager.destination("orders")?;
    /// let mut connection = manager.connect()?;
    /// let transaction = connection.transaction()?;
    /// transaction.execute("INSERT INTO sales (item) VALUES ('tea')", [])?;
    /// manager.send_in(&transaction, &orders, "tea")?;
    /// transaction.commit()?;
    /// manager.committed();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::send`](super::Transaction::send), and
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the connection is to another file. Roll
    /// back the transaction after an error.
    pub fn send_in(
        &self,
        transaction: &Transaction<'_>,
        to: &Destination,
        body: impl Into<Bytes>,
    ) -> Result<MessageId> {
        let body = body.into();
        check_body(&body, self.shared.config.max_body)?;
        check_not_reserved(to.queue())?;
        let uid = new_id()?;
        let error = |error| self.shared.database.error(error);
        if !is_file(transaction, &self.shared.file_id).map_err(error)? {
            let path = self.path().display();
            let rule = format_args!("must be a connection to `{path}`");
            return Err(Error::invalid("transaction", rule));
        }
        self.shared
            .insert_in(transaction, to, &uid, &body)
            .map_err(error)?;
        Ok(MessageId::from_bytes(uid))
    }

    /// Notifies the relay, and the host, of messages that the caller's own transactions have sent or
    /// put. Returns at once. After a crash before this call, the host notifies within a second.
    pub fn committed(&self) {
        // Not cleared: another transaction of this process may have sent and not yet be committed.
        if self.shared.sent_in.load(Ordering::Acquire) {
            self.shared.signal_outgoing();
        }
        Shared::start_notifying(&self.shared);
    }
}

impl Shared {
    fn insert_in(
        &self,
        transaction: &Transaction<'_>,
        to: &Destination,
        uid: &[u8; 16],
        body: &[u8],
    ) -> rusqlite::Result<()> {
        let now = clock::advance_exactly(transaction)?;
        let Some(authority) = self.config.remote(to) else {
            let queue = local_queue(transaction, to.queue(), 0, self.config.max_queue)?;
            return insert_local(transaction, queue, now, now, uid, body);
        };
        self.insert_outgoing(transaction, now, uid, (authority, to.queue()), body)?;
        self.sent_in.store(true, Ordering::Release);
        Ok(())
    }

    /// Adds a message to another machine, if there is room.
    pub(super) fn insert_outgoing(
        &self,
        transaction: &Transaction<'_>,
        now: Micros,
        uid: &[u8; 16],
        (authority, queue): (&str, &str),
        body: &[u8],
    ) -> rusqlite::Result<()> {
        let hop: Arc<str> = self.config.hop_of(authority).into();
        self.reserve_outgoing(transaction, &hop, 0)?;
        let message = NewOutgoing {
            uid,
            authority,
            queue,
            hop: self.config.hop_of(authority),
            stored_at: now,
            ends_at: Some(later(now, self.config.max_age)),
            checksum: checksum(body),
            body,
        };
        outgoing::insert(transaction, &message)
    }
}
