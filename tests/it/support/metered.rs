//! A queue that counts its transactions. The library's unit tests and the benchmarks include this file
//! as well.

use std::{
    fmt::{self, Display},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;

use reveille::{
    Error, ErrorKind, GroupName, QueueAddress, Result,
    queue::{Message, MessageId, NewMessage, PeekedMessage, QueueLimits, Receipt, WorkQueue},
};

/// Counts the transactions of a queue, as services bill them: an empty answer costs as much as a
/// full one. Clones share the counts.
///
/// A put counts each of its messages, a get counts once. A failed call counts too, unless it was
/// refused as [`ErrorKind::Invalid`] before a request was sent. Wrap the back-end itself, inside of
/// a `Retrying`, so that each attempt counts.
#[derive(Debug, Clone)]
pub(crate) struct Metered<Q: ?Sized> {
    inner: Arc<Q>,
    usage: Arc<Mutex<QueueUsage>>,
}

/// The number of transactions so far, by kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueUsage {
    /// Messages put.
    pub(crate) puts: u64,
    /// Gets that returned messages or failed.
    pub(crate) gets: u64,
    /// Gets that returned no message.
    pub(crate) empty_gets: u64,
    /// Deleted messages.
    pub(crate) deletes: u64,
    /// Renewals of the visibility time-out.
    pub(crate) renews: u64,
    /// All other calls.
    pub(crate) others: u64,
}

impl<Q: WorkQueue + ?Sized> Metered<Q> {
    /// Wraps a queue; all counts are zero.
    pub(crate) fn new(inner: Arc<Q>) -> Self {
        Self {
            inner,
            usage: Arc::default(),
        }
    }

    /// Returns the wrapped queue, whose calls are not counted.
    pub(crate) fn inner(&self) -> &Q {
        &self.inner
    }

    /// Returns the counts of all clones so far.
    pub(crate) fn usage(&self) -> QueueUsage {
        *self.usage.lock().expect("no panic")
    }

    /// Counts a call that reached the service; returns its answer.
    fn count<T>(&self, answer: Result<T>, counted: impl FnOnce(&mut QueueUsage)) -> Result<T> {
        let refused = |error: &Error| error.kind() == ErrorKind::Invalid;
        if !answer.as_ref().is_err_and(refused) {
            counted(&mut self.usage.lock().expect("no panic"));
        }
        answer
    }

    fn count_other<T>(&self, answer: Result<T>) -> Result<T> {
        self.count(answer, |usage| usage.others += 1)
    }
}

impl QueueUsage {
    /// Returns the number of transactions of all kinds.
    pub(crate) fn total(&self) -> u64 {
        self.puts + self.gets + self.empty_gets + self.deletes + self.renews + self.others
    }

    /// Returns the difference to an earlier usage of the same queue.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            puts: self.puts - earlier.puts,
            gets: self.gets - earlier.gets,
            empty_gets: self.empty_gets - earlier.empty_gets,
            deletes: self.deletes - earlier.deletes,
            renews: self.renews - earlier.renews,
            others: self.others - earlier.others,
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<Q: WorkQueue + ?Sized> WorkQueue for Metered<Q> {
    fn address(&self) -> &QueueAddress {
        self.inner.address()
    }

    fn listener_group(&self) -> GroupName {
        self.inner.listener_group()
    }

    fn limits(&self) -> QueueLimits {
        self.inner.limits()
    }

    fn empty_is_certain(&self) -> bool {
        self.inner.empty_is_certain()
    }

    async fn create(&self) -> Result<bool> {
        self.count_other(self.inner.create().await)
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        let messages_put = messages.len() as u64;
        self.count(self.inner.put(messages).await, |usage| {
            usage.puts += messages_put;
        })
    }

    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
        let got = self.inner.get(max, visibility_timeout).await;
        let is_empty = got.as_ref().is_ok_and(Vec::is_empty);
        self.count(got, |usage| {
            if is_empty {
                usage.empty_gets += 1;
            } else {
                usage.gets += 1;
            }
        })
    }

    async fn delete(&self, receipt: &Receipt) -> Result<()> {
        self.count(self.inner.delete(receipt).await, |usage| usage.deletes += 1)
    }

    async fn renew(&self, receipt: &Receipt, visibility_timeout: Duration) -> Result<Receipt> {
        let renewed = self.inner.renew(receipt, visibility_timeout).await;
        self.count(renewed, |usage| usage.renews += 1)
    }

    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        self.count_other(self.inner.release(receipt, delay).await)
    }

    async fn release_untried(&self, receipt: &Receipt, delay: Duration) -> Result<bool> {
        self.count_other(self.inner.release_untried(receipt, delay).await)
    }

    async fn depth(&self) -> Result<u64> {
        self.count_other(self.inner.depth().await)
    }

    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>> {
        self.count_other(self.inner.peek(max).await)
    }

    async fn purge(&self) -> Result<()> {
        self.count_other(self.inner.purge().await)
    }
}

impl<Q: Display + ?Sized> Display for Metered<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
