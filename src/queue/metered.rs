//! A queue that counts its transactions, to calculate their cost.
//!
//! Services bill each request, and an empty answer costs as much as a full one: that is the cost of
//! polling. This wrapper counts calls of the wrapped queue and does not see the requests behind
//! them. So wrap the back-end itself, inside of [`Retrying`](super::Retrying) and
//! [`Partitioned`](super::Partitioned).

use std::{
    fmt::{self, Display},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;

use super::{Message, MessageId, NewMessage, PeekedMessage, Receipt, WorkQueue, forward::forward};
use crate::error::{Error, ErrorKind, Result};

/// Counts storage transactions by kind. Clones share the counters.
///
/// A put counts once per message, because services put one message per request. A get counts once,
/// however many messages it returns. Failed calls count too, as most services bill them, except
/// [`ErrorKind::Invalid`], which is refused before a request is sent. A call that is cancelled before
/// its answer does not count.
#[derive(Debug, Clone)]
pub struct Metered<Q> {
    inner: Q,
    counters: Arc<Counters>,
}

/// The number of transactions so far, by kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueUsage {
    /// Messages put.
    pub puts: u64,
    /// Gets that returned messages or failed.
    pub gets: u64,
    /// Gets that returned no message.
    pub empty_gets: u64,
    /// Calls of [`WorkQueue::delete`].
    pub deletes: u64,
    /// Calls of [`WorkQueue::renew`].
    pub renews: u64,
    /// Calls of [`WorkQueue::release`] and [`WorkQueue::release_untried`].
    pub releases: u64,
    /// Calls of [`WorkQueue::depth`].
    pub depths: u64,
    /// Calls of [`WorkQueue::peek`].
    pub peeks: u64,
    /// Calls of [`WorkQueue::create`] and [`WorkQueue::purge`].
    pub others: u64,
}

/// The price of transactions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tariff {
    /// The price of 10,000 transactions, in any currency.
    pub per_10_000: f64,
}

/// The counters are independent: a snapshot during calls may include a later call and miss an
/// earlier one. No call is lost.
#[derive(Debug, Default)]
struct Counters {
    puts: AtomicU64,
    gets: AtomicU64,
    empty_gets: AtomicU64,
    deletes: AtomicU64,
    renews: AtomicU64,
    releases: AtomicU64,
    depths: AtomicU64,
    peeks: AtomicU64,
    others: AtomicU64,
}

impl<Q: WorkQueue> Metered<Q> {
    /// Wraps a queue; all counters are zero.
    pub fn new(inner: Q) -> Self {
        Self {
            inner,
            counters: Arc::default(),
        }
    }

    /// Returns the wrapped queue.
    pub fn inner(&self) -> &Q {
        &self.inner
    }

    /// Returns the counts of all clones so far.
    pub fn usage(&self) -> QueueUsage {
        self.counters.snapshot()
    }
}

impl QueueUsage {
    /// Returns the number of transactions of all kinds.
    pub fn total(&self) -> u64 {
        self.puts
            + self.gets
            + self.empty_gets
            + self.deletes
            + self.renews
            + self.releases
            + self.depths
            + self.peeks
            + self.others
    }

    /// Returns the difference to an earlier snapshot of the same queue.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            puts: self.puts.saturating_sub(earlier.puts),
            gets: self.gets.saturating_sub(earlier.gets),
            empty_gets: self.empty_gets.saturating_sub(earlier.empty_gets),
            deletes: self.deletes.saturating_sub(earlier.deletes),
            renews: self.renews.saturating_sub(earlier.renews),
            releases: self.releases.saturating_sub(earlier.releases),
            depths: self.depths.saturating_sub(earlier.depths),
            peeks: self.peeks.saturating_sub(earlier.peeks),
            others: self.others.saturating_sub(earlier.others),
        }
    }

    /// Returns the cost of all transactions.
    pub fn cost(&self, tariff: &Tariff) -> f64 {
        self.total() as f64 / 10_000.0 * tariff.per_10_000
    }
}

impl Default for Tariff {
    fn default() -> Self {
        Self {
            // US dollars, as in this project's comparisons with polling. The real price depends on
            // the service's region and redundancy.
            per_10_000: 0.01,
        }
    }
}

impl Counters {
    fn snapshot(&self) -> QueueUsage {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        QueueUsage {
            puts: read(&self.puts),
            gets: read(&self.gets),
            empty_gets: read(&self.empty_gets),
            deletes: read(&self.deletes),
            renews: read(&self.renews),
            releases: read(&self.releases),
            depths: read(&self.depths),
            peeks: read(&self.peeks),
            others: read(&self.others),
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<Q: WorkQueue> WorkQueue for Metered<Q> {
    forward!([inner] address, addresses, listener_group, limits, empty_is_certain);

    async fn create(&self) -> Result<bool> {
        count(&self.counters.others, 1, self.inner.create().await)
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        let messages_put = messages.len() as u64;
        let ids = self.inner.put(messages).await;
        count(&self.counters.puts, messages_put, ids)
    }

    async fn put_each(&self, messages: Vec<NewMessage>) -> Vec<Result<MessageId>> {
        let outcomes = self.inner.put_each(messages).await;
        let each = outcomes.into_iter();
        each.map(|outcome| count(&self.counters.puts, 1, outcome))
            .collect()
    }

    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
        let got = self.inner.get(max, visibility_timeout).await;
        let counter = match &got {
            Ok(messages) if messages.is_empty() => &self.counters.empty_gets,
            _ => &self.counters.gets,
        };
        count(counter, 1, got)
    }

    async fn delete(&self, receipt: &Receipt) -> Result<()> {
        count(&self.counters.deletes, 1, self.inner.delete(receipt).await)
    }

    async fn renew(&self, receipt: &Receipt, visibility_timeout: Duration) -> Result<Receipt> {
        let renewed = self.inner.renew(receipt, visibility_timeout).await;
        count(&self.counters.renews, 1, renewed)
    }

    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        let released = self.inner.release(receipt, delay).await;
        count(&self.counters.releases, 1, released)
    }

    async fn release_untried(&self, receipt: &Receipt, delay: Duration) -> Result<bool> {
        let released = self.inner.release_untried(receipt, delay).await;
        count(&self.counters.releases, 1, released)
    }

    async fn depth(&self) -> Result<u64> {
        count(&self.counters.depths, 1, self.inner.depth().await)
    }

    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>> {
        count(&self.counters.peeks, 1, self.inner.peek(max).await)
    }

    async fn purge(&self) -> Result<()> {
        count(&self.counters.others, 1, self.inner.purge().await)
    }
}

impl<Q: Display> Display for Metered<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Counts a call that reached the service; returns its answer.
fn count<T>(counter: &AtomicU64, transactions: u64, answer: Result<T>) -> Result<T> {
    let refused = |error: &Error| error.kind() == ErrorKind::Invalid;
    if !answer.as_ref().is_err_and(refused) {
        counter.fetch_add(transactions, Ordering::Relaxed);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::{super::MemoryQueue, *};
    use crate::testing::queue_contract as contract;

    const LONG: Duration = Duration::from_secs(600);

    fn queue() -> Metered<MemoryQueue> {
        let address = "local/jobs".parse().expect("an address");
        Metered::new(MemoryQueue::new(address))
    }

    #[tokio::test(start_paused = true)]
    async fn it_keeps_the_contract() {
        contract::check(&queue()).await;
    }

    #[tokio::test]
    async fn a_put_counts_each_message_and_a_get_counts_once() {
        let queue = queue();
        let three = ["a", "b", "c"].map(NewMessage::new).to_vec();
        queue.put(three).await.expect("put");
        let put = queue.usage();
        assert_eq!((put.puts, put.total()), (3, 3));

        let got = queue.get(1, LONG).await.expect("get");
        queue.delete(&got[0].receipt).await.expect("delete");
        let worked = queue.usage().since(&put);
        assert_eq!((worked.gets, worked.deletes, worked.total()), (1, 1, 2));

        queue.purge().await.expect("purge");
        let before = queue.usage();
        assert!(queue.get(32, LONG).await.expect("get").is_empty());
        let polled = queue.usage().since(&before);
        assert_eq!((polled.empty_gets, polled.gets, polled.total()), (1, 0, 1));
    }

    #[tokio::test]
    async fn every_kind_is_counted_by_all_clones_together() {
        let queue = queue();
        let clone = queue.clone();
        assert_eq!(queue.to_string(), "memory:jobs");
        queue.create().await.expect("create");
        let put = clone.put(vec![NewMessage::new("work")]).await;
        put.expect("put");
        queue.peek(1).await.expect("peek");
        let got = clone.get(1, LONG).await.expect("get");
        let renewed = queue.renew(&got[0].receipt, LONG).await.expect("renew");
        let lost = clone.delete(&got[0].receipt).await;
        lost.expect_err("the old receipt; still billed");
        let released = queue.release(&renewed, Duration::ZERO).await;
        released.expect("release");
        clone.depth().await.expect("depth");
        clone.purge().await.expect("purge");
        clone.get(1, LONG).await.expect("get");
        let expected = QueueUsage {
            puts: 1,
            gets: 1,
            empty_gets: 1,
            deletes: 1,
            renews: 1,
            releases: 1,
            depths: 1,
            peeks: 1,
            others: 2,
        };
        assert_eq!(queue.usage(), expected);
        assert_eq!(clone.usage().total(), 10);
    }

    #[tokio::test]
    async fn a_call_that_is_refused_before_sending_costs_nothing() {
        let queue = queue();
        queue.get(0, LONG).await.expect_err("none is not a number");
        let large = NewMessage::new(vec![0; queue.limits().body + 1]);
        queue.put(vec![large]).await.expect_err("too large");
        queue.put(Vec::new()).await.expect("nothing to do");
        assert_eq!(queue.usage(), QueueUsage::default());
    }

    #[test]
    fn a_month_of_polling_costs_the_documented_price() {
        let cents = |threads: u64| {
            let month = QueueUsage {
                empty_gets: 79_200 * 30 * threads,
                ..QueueUsage::default()
            };
            format!("{:.2}", month.cost(&Tariff::default()))
        };
        assert_eq!((cents(1), cents(200)), ("2.38".into(), "475.20".into()));
    }
}
