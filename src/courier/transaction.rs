//! Transactions: messages are sent and received together, or not at all.
//!
//! Sent messages stay in memory until the commit. Each receive is a short commit of the file with a
//! status; no database transaction stays open during the caller's work. Only the commit waits for the
//! disk. An application may also send inside a transaction of its own, on its own connection to the same
//! file. Knows nothing of the hand-over to other machines.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    handover::outgoing::NewSend,
    manager::{QueueManager, Shared, check_not_reserved},
    message::{Destination, MessageId, new_id},
    steps::{
        self, OF_TRANSACTION, ReceivedMessage, Taken, check_queue, give_back, is_file,
        settle_received,
    },
};
use crate::{
    backend::sqlite::refuse,
    base::sync::lock,
    error::{Error, ErrorKind, Result},
    queue::{
        QueueLimits,
        sqlite::{
            clock::{self, Micros},
            later,
        },
    },
};

/// A transaction over the queues of a file. Dropped without a commit, it is rolled back: received
/// messages return to their places, and sent ones are removed. If its process dies, the same
/// happens when its time-out is over.
///
/// The methods take `&mut self`, so the steps of one transaction do not overlap.
#[derive(Debug)]
#[must_use = "a transaction that is dropped is rolled back"]
pub struct Transaction {
    shared: Arc<Shared>,
    id: [u8; 16],
    began: Instant,
    timeout: Duration,
    /// Set by the first receive, by the file's clock.
    ends_at: Option<Micros>,
    /// Bytes of the sent messages.
    sent_bytes: usize,
    /// Whether the file may have rows of its receives, also of cancelled ones.
    has_received: bool,
    sent: Vec<NewSend>,
    received: Vec<Taken>,
    is_over: bool,
}

/// Enough for a handler that calls other services, and short enough that the messages of a process
/// that died come back soon.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// The messages that a transaction sends, in bytes: they stay in memory until the commit, which writes
/// them in one step.
const MAX_SENT: usize = 64 << 20;
/// What a message in memory takes beside its body, at most.
const OVERHEAD: usize = 256;

impl QueueManager {
    /// Begins a transaction with a time-out of 60 s.
    pub fn begin(&self) -> Transaction {
        Transaction::new(Arc::clone(&self.shared), DEFAULT_TIMEOUT)
    }

    /// Begins a transaction. After `timeout` it can no longer be committed, and its received
    /// messages are visible again.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the time-out is not 1 ms to 7 days.
    pub fn begin_with(&self, timeout: Duration) -> Result<Transaction> {
        let (least, most) = QueueLimits::EMBEDDED.visibility;
        if !(least..=most).contains(&timeout) {
            let rule = format_args!("must be {least:?} to {most:?}, but is {timeout:?}");
            return Err(Error::invalid("timeout", rule));
        }
        Ok(Transaction::new(Arc::clone(&self.shared), timeout))
    }
}

impl Transaction {
    fn new(shared: Arc<Shared>, timeout: Duration) -> Self {
        Self {
            shared,
            // Distinguishes the open transactions of a file; not a secret.
            id: fastrand::u128(..).to_be_bytes(),
            began: Instant::now(),
            timeout,
            ends_at: None,
            sent_bytes: 0,
            has_received: false,
            sent: Vec::new(),
            received: Vec::new(),
            is_over: false,
        }
    }

    /// Adds a message that is sent by the commit. Returns the id that it keeps on its way. The
    /// messages stay in memory until then, at most 64 MiB. The commit checks that the queue exists and
    /// has room.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the body is too long;
    /// [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted) if this limit is reached;
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if the time-out is over. The transaction goes on
    /// without the message.
    pub fn send(&mut self, to: &Destination, body: impl Into<Bytes>) -> Result<MessageId> {
        let send = self.shared.new_send(new_id()?, to, body.into())?;
        let (uid, size) = (send.uid, send.body.len() + OVERHEAD);
        self.check_time()?;
        if self.sent_bytes + size > MAX_SENT {
            let message = format!("transaction: its messages may have at most {MAX_SENT} bytes");
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        self.sent_bytes += size;
        self.sent.push(send);
        Ok(MessageId::from_bytes(uid))
    }

    /// Checks the time-out by this process's clock; steps in the file check it by the file's.
    fn check_time(&self) -> Result<()> {
        if self.began.elapsed() >= self.timeout {
            Err(steps::time_is_over(Some(self.timeout)))
        } else {
            Ok(())
        }
    }

    /// Receives the next message of a queue; `None` if no message is visible. No other consumer sees
    /// it until this transaction ends. Messages come in the order in which they became visible.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the queue does not exist;
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if the time-out is over.
    ///
    /// # Cancel safety
    /// A cancelled receive may hide messages until the transaction is rolled back or dropped, or until
    /// its time-out.
    pub async fn receive(&mut self, queue: &str) -> Result<Option<ReceivedMessage>> {
        Ok(self.receive_many(queue, 1).await?.pop())
    }

    /// Receives up to `max` messages, at most 32, in one step.
    ///
    /// # Errors
    /// As [`Transaction::receive`], and [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a
    /// `max` of 0.
    ///
    /// # Cancel safety
    /// As [`Transaction::receive`].
    pub async fn receive_many(&mut self, queue: &str, max: usize) -> Result<Vec<ReceivedMessage>> {
        let max = QueueLimits::EMBEDDED.check_max(max)?;
        let (ends_at, tx, queue) = (self.ends_at, self.id, queue.to_owned());
        let left = self.timeout.saturating_sub(self.began.elapsed());
        let process = self.shared.process_id()?;
        // Until it is known what a receive took, or if that is never known.
        let had_received = std::mem::replace(&mut self.has_received, true);
        let taken = self.shared.database.write_unsynced(move |transaction| {
            let now = clock::advance(transaction)?;
            let until = ends_at.unwrap_or_else(|| later(now, left));
            let who = (&tx, process);
            let step = steps::receive(transaction, who, &queue, max, until, now)?;
            Ok((step, until))
        });
        let ((received, messages), ends_at) = taken.await?;
        self.ends_at = Some(ends_at);
        self.has_received = had_received || !received.is_empty();
        self.received.extend(received);
        Ok(messages)
    }

    /// Commits: all sent messages are ready, and all received ones are gone. When this returns, it
    /// is on disk.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if the time-out is over or another
    /// consumer has got a received message since: nothing was committed, and the transaction is
    /// rolled back; the same with [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if a local queue
    /// does not exist, and with [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted) if a limit of the
    /// manager's settings is reached. After any other error that is not a [refusal](crate::ErrorKind::is_refusal) the
    /// commit may have taken effect.
    ///
    /// # Cancel safety
    /// A cancelled commit may have taken effect as a whole.
    pub async fn commit(self) -> Result<()> {
        if self.sent.is_empty() && self.received.is_empty() {
            // What cancelled receives took is given back.
            return self.roll_back().await;
        }
        self.commit_with(|_| Ok(())).await
    }

    /// Commits as [`Transaction::commit`], together with writes of the application to its own tables
    /// in the same file. An error of `work` rolls everything back.
    ///
    /// `work` runs on the file's thread, which every user of the file in this process waits for. What
    /// it sorts, and the former contents of pages that it changes, may take memory.
    ///
    /// # Errors
    /// As [`Transaction::commit`], and the error of `work`.
    ///
    /// # Cancel safety
    /// As [`Transaction::commit`].
    pub async fn commit_with<T: Send + 'static>(
        mut self,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        if !self.sent.is_empty() {
            self.check_time()?;
        }
        let sent = std::mem::take(&mut self.sent);
        let has_sent = !sent.is_empty();
        let goes_out = sent.iter().any(|send| send.hop.is_some());
        let (tx, timeout, has_received) = (self.id, self.timeout, self.has_received);
        let (received, ends_at) = (self.received.clone(), self.ends_at.unwrap_or(Micros::MAX));
        let shared = Arc::clone(&self.shared);
        let committed = self.shared.database.write(move |transaction| {
            let now = clock::advance_exactly(transaction)?;
            if now >= ends_at {
                return Err(refuse(steps::time_is_over(Some(timeout))));
            }
            if has_received {
                settle_received(transaction, &received, now)?;
                // Only messages of receives that were cancelled are left.
                give_back(transaction, OF_TRANSACTION, &tx)?;
            }
            let outgoing_ends_at = later(now, shared.config.max_age);
            for send in &sent {
                shared.check_room(transaction, send)?;
                steps::insert(transaction, send, (now, now), outgoing_ends_at)?;
            }
            work(transaction)
        });
        let value = committed.await?;
        self.is_over = true;
        if goes_out {
            self.shared.signal_outgoing();
        }
        if has_sent || self.has_received {
            Shared::start_notifying(&self.shared);
        }
        Ok(value)
    }

    /// Rolls back: sent messages are removed, and received ones return to their places. Their dequeue
    /// counts stay raised.
    ///
    /// # Errors
    /// As any write of the file; then the time-out rolls back.
    pub async fn roll_back(mut self) -> Result<()> {
        if !self.has_received {
            return Ok(());
        }
        let tx = self.id;
        let rolled_back = self
            .shared
            .database
            .write_unsynced(move |transaction| give_back(transaction, OF_TRANSACTION, &tx));
        rolled_back.await?;
        self.is_over = true;
        Shared::start_notifying(&self.shared);
        Ok(())
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.is_over || !self.has_received {
            return;
        }
        let tx = self.id;
        // If there is no room for the job, the time-out rolls back.
        let queued = self.shared.database.queue_unsynced(move |transaction| {
            give_back(transaction, OF_TRANSACTION, &tx).map(drop)
        });
        if queued {
            Shared::start_notifying(&self.shared);
        }
    }
}

impl Shared {
    /// Returns a message with its next machine.
    pub(super) fn new_send(&self, uid: [u8; 16], to: &Destination, body: Bytes) -> Result<NewSend> {
        QueueLimits::check_body(body.len(), self.config.max_body)?;
        check_not_reserved(to.queue())?;
        let remote = self.config.remote(to);
        Ok(NewSend {
            uid,
            hop: remote.map(|authority| self.config.hop_of(authority).to_owned()),
            authority: remote.unwrap_or_default().to_owned(),
            queue: to.queue().to_owned(),
            body,
        })
    }

    /// Checks that a message has room where it goes.
    pub(super) fn check_room(
        &self,
        connection: &rusqlite::Connection,
        send: &NewSend,
    ) -> rusqlite::Result<()> {
        let Some(hop) = &send.hop else {
            let check = |max| check_queue(connection, &send.queue, max);
            return self.config.max_queue.map_or(Ok(()), check);
        };
        if let Some(room) = lock(&self.outgoing_room).get_mut(hop)
            && *room > 0
        {
            *room -= 1;
            return Ok(());
        }
        let room = steps::check_outgoing(connection, hop, self.config.max_outgoing)?;
        lock(&self.outgoing_room).insert(hop.clone(), room);
        Ok(())
    }
}

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
    /// As [`Transaction::send`], and
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the connection is to another file. Roll
    /// back the transaction after an error.
    pub fn send_in(
        &self,
        transaction: &rusqlite::Transaction<'_>,
        to: &Destination,
        body: impl Into<Bytes>,
    ) -> Result<MessageId> {
        let shared = &self.shared;
        let send = shared.new_send(new_id()?, to, body.into())?;
        let error = |error| shared.database.error(error);
        if !is_file(transaction, &shared.file_id).map_err(error)? {
            let path = self.path().display();
            let rule = format_args!("must be a connection to `{path}`");
            return Err(Error::invalid("transaction", rule));
        }
        let insert = || {
            shared.check_room(transaction, &send)?;
            let now = clock::advance_exactly(transaction)?;
            steps::insert(
                transaction,
                &send,
                (now, now),
                later(now, shared.config.max_age),
            )
        };
        insert().map_err(error)?;
        if send.hop.is_some() {
            shared.sent_in.store(true, Ordering::Release);
        }
        Ok(MessageId::from_bytes(send.uid))
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
