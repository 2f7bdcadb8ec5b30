//! The figures of relays, and their history.

use std::time::Duration;

use super::{
    Client,
    admin::{History, LatencyBuckets, Savings, Stats},
    connection::AdminClient,
};
use crate::{error::Result, wire::proto};

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
        self.read(request, call).await
    }

    /// Returns the figures of the relay over the last day by minutes, or over the last ten minutes by
    /// seconds.
    ///
    /// # Errors
    /// As [`Client::stats`].
    pub async fn history(&self, day: bool) -> Result<History> {
        let request = proto::GetHistoryRequest { day };
        let call = async |channel, request| AdminClient::new(channel).get_history(request).await;
        self.read(request, call).await
    }
}

impl LatencyBuckets {
    /// Returns the latencies since an earlier state of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = earlier.counts.iter().copied().chain(std::iter::repeat(0));
        let counts = self.counts.iter().zip(before);
        Self {
            bounds_us: self.bounds_us.clone(),
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
        let bound = self.bounds_us.get(at).or_else(|| self.bounds_us.last());
        bound.copied().map(Duration::from_micros)
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
            bounds_us: vec![1_000, 5_000],
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
