//! The figures of relays: a stream of them.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use futures_core::Stream;
use tonic::Streaming;

use super::{
    Client,
    connection::AdminClient,
    explain::Finding,
    mirror::{FromWire, mirror},
    pool::Lease,
};
use crate::{
    error::Result,
    wire::{from_status, proto, span_to_wire},
};

mirror! {
    /// The figures of the relays at one moment.
    #[derive(Debug, Clone, PartialEq)]
    pub struct Stats from WatchStatsResponse {
        /// When they were computed, by the relay's clock.
        pub at: SystemTime,
        /// The relay that answers, then the others of its cluster by id.
        pub relays: Vec<RelayStats>,
        /// Ids of the relays that did not answer: the sums are without them.
        pub unanswered = unanswered_relays: Vec<String>,
        /// The sums over the relays.
        pub totals: RelayTotals,
        /// The sums over the relays. The queues are those of the relay that knows most.
        pub levels: RelayLevels,
        /// The sum over the relays, with the settings of the one that answers.
        pub savings: Savings,
        /// What is wrong now, worst first.
        pub findings: Vec<Finding>,
    }
}

mirror! {
    /// One relay's figures.
    #[derive(Debug, Clone, PartialEq)]
    pub struct RelayStats from RelayStats {
        /// Its name.
        pub relay_id: String,
        /// The run, 32 hexadecimal digits.
        pub epoch: String,
        /// Its version.
        pub version: String,
        /// Time since its start.
        pub uptime: Duration,
        /// It ends its streams.
        pub draining: bool,
        /// Its listeners poll, because it is or was cut off from the other relays.
        pub degraded: bool,
        /// Counts since its start.
        pub totals: RelayTotals,
        /// Present numbers.
        pub levels: RelayLevels,
        /// What polling would have cost.
        pub savings: Savings,
    }
}

mirror! {
    /// Counts since a relay's start.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct RelayTotals from Totals {
        /// Notifications of the relay's own publishers.
        pub notifications: u64,
        /// Their messages.
        pub messages: u64,
        /// Wake-ups sent, each for some queues.
        pub wakes: u64,
        /// Queues in the wake-ups.
        pub wake_entries: u64,
        /// Timers that fired.
        pub timed: u64,
        /// Heartbeats sent.
        pub heartbeats: u64,
        /// Wake-ups because the relay was not certain what a listener had seen.
        pub catch_ups: u64,
        /// Periodic checks that listeners were asked for.
        pub sentinels: u64,
        /// Wake-ups that went to another member of a group.
        pub reassigned: u64,
        /// Requests refused at a limit.
        pub refused: u64,
        /// From a notification to the hand-over of its wake-up to the stream.
        pub wake_latency: LatencyBuckets,
        /// From a notification to its handler, as listeners report it.
        pub handler_latency: LatencyBuckets,
    }
}

mirror! {
    /// A histogram of latencies.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct LatencyBuckets from LatencyBuckets {
        /// The upper bounds of the buckets, ascending.
        pub bounds = bounds_us: Vec<Duration>,
        /// The count of each bucket alone; the last one has no bound.
        pub counts: Vec<u64>,
    }
}

mirror! {
    /// Present numbers of a relay.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct RelayLevels from Levels {
        /// Queues in memory.
        pub queues: u64,
        /// Open streams of listeners: the sum of the next three.
        pub subscriptions: u64,
        /// Streams without a dequeue task.
        pub asleep: u64,
        /// Streams with dequeue tasks.
        pub awake: u64,
        /// Streams whose listeners poll without wake-ups.
        pub polling: u64,
        /// Dequeue tasks, by the newest reports.
        pub active_dequeue_tasks: u64,
        /// Open connections.
        pub connections: u64,
        /// Streams that watch a flag.
        pub flag_watchers: u64,
        /// Pending timed wake-ups.
        pub timers: u64,
        /// Messages for which no member of a group was ready.
        pub unassigned: u64,
    }
}

mirror! {
    /// What polling would have cost.
    #[derive(Debug, Clone, Default, PartialEq)]
    pub struct Savings from Savings {
        /// Reads that sleeping listeners did not make, less those that the relay asked for.
        pub polls_avoided: u64,
        /// A polling listener reads each of its queues once in this time.
        pub assumed_poll: Duration,
        /// The price of a million reads.
        pub price_per_million: f64,
        /// The currency of the price.
        pub currency: String,
    }
}

/// A stream of figures. It does not reconnect: where it ends, open another one.
#[derive(Debug)]
pub struct StatsWatch {
    responses: Streaming<proto::WatchStatsResponse>,
    /// Held so that the connection stays in its pool.
    _connection: Lease,
}

impl Client {
    /// Returns the figures of the relay and of the others of its cluster.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the relay cannot be reached; [`ErrorKind::Denied`](crate::ErrorKind::Denied) if the caller may
    /// not administer it; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) from a relay older than this call.
    pub async fn stats(&self) -> Result<Stats> {
        let request = proto::WatchStatsRequest::default();
        // The response is the first message of a stream, which ends with this call.
        let call = async |channel, request| {
            let response = AdminClient::new(channel).watch_stats(request).await?;
            let first = response.into_inner().message().await?;
            let ended = || tonic::Status::unavailable("the relay has ended the stream");
            first.map(tonic::Response::new).ok_or_else(ended)
        };
        self.read(request, call).await.map(Stats::from_wire)
    }

    /// Opens a stream of figures: at once, and then each `interval` (250 ms to 60 s; zero: 1 s).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for another interval, and as [`Client::stats`].
    pub async fn watch_stats(&self, interval: Duration) -> Result<StatsWatch> {
        let request = proto::WatchStatsRequest {
            interval: Some(span_to_wire(interval)),
        };
        let call = async |channel, request| AdminClient::new(channel).watch_stats(request).await;
        let (responses, connection) = self.call_each(request, call, true).await?;
        Ok(StatsWatch {
            responses,
            _connection: connection,
        })
    }
}

impl StatsWatch {
    /// Waits for the next figures; `None` after the end of the stream.
    pub async fn next(&mut self) -> Option<Result<Stats>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl Stream for StatsWatch {
    type Item = Result<Stats>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = std::task::ready!(Pin::new(&mut self.responses).poll_next(cx));
        let read = |next: Result<_, _>| next.map(Stats::from_wire).map_err(from_status);
        Poll::Ready(next.map(read))
    }
}

impl LatencyBuckets {
    /// Returns the latencies since an earlier state of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = earlier.counts.iter().copied().chain(std::iter::repeat(0));
        let counts = self.counts.iter().zip(before);
        Self {
            bounds: self.bounds.clone(),
            counts: counts
                .map(|(now, before)| now.saturating_sub(before))
                .collect(),
        }
    }

    /// Returns the number of latencies.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the bound of the bucket that has this percentile; `None` without latencies. One above the
    /// last bound has that bound.
    pub fn percentile(&self, percent: u8) -> Option<Duration> {
        let rank = (self.count() * u64::from(percent)).div_ceil(100).max(1);
        let mut below = 0;
        let at = self.counts.iter().position(|count| {
            below += count;
            below >= rank
        })?;
        self.bounds.get(at).or_else(|| self.bounds.last()).copied()
    }
}

impl Savings {
    /// Returns the price of the reads that were not made.
    pub fn price(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "a price for people")]
        let millions = self.polls_avoided as f64 / 1e6;
        millions * self.price_per_million
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_bound_of_its_bucket() {
        let millis = Duration::from_millis;
        let of = |counts: [u64; 3]| LatencyBuckets {
            bounds: vec![millis(1), millis(5)],
            counts: counts.to_vec(),
        };
        assert_eq!(of([0, 0, 0]).percentile(99), None);
        assert_eq!(of([98, 2, 0]).percentile(50), Some(millis(1)));
        assert_eq!(of([98, 2, 0]).percentile(99), Some(millis(5)));
        assert_eq!(of([0, 0, 1]).percentile(50), Some(millis(5)), "above all");
        let since = of([98, 4, 0]).since(&of([98, 2, 0]));
        assert_eq!((since.count(), since.percentile(1)), (2, Some(millis(5))));
    }

    #[test]
    fn savings_have_a_price() {
        let savings = Savings {
            polls_avoided: 2_500_000,
            price_per_million: 0.04,
            ..Savings::default()
        };
        assert!((savings.price() - 0.1).abs() < 1e-9);
    }
}
