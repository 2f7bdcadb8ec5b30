//! Calls for operators: a relay's listeners, its queues, its figures and its health.
//!
//! Their results are the messages of `proto/reveille/v1/admin.proto`. Reads all pages of a list. Does not
//! format anything.

use std::{collections::HashSet, time::Duration};

use super::{
    Client,
    connection::AdminClient,
    pages::{Listed, all_pages},
};
pub use crate::wire::proto::{
    Decision, DecisionKind, ExplainResponse as Explanation, Finding, FindingKind,
    FlagWatcher as FlagWatcherInfo, GetHistoryResponse as History, LatencyBuckets,
    Levels as RelayLevels, ListListenersRequest as ListenerQuery, ListQueuesRequest as QueueQuery,
    Listener as ListenerInfo, OpenConsoleResponse as ConsoleAddress, Queue as QueueInfo,
    QueueOrder, RelayInfo, RelayState, RelayStats, Sample as HistorySample, Savings,
    Totals as RelayTotals, WatchStatsResponse as Stats,
};
use crate::{
    error::Result,
    types::QueueAddress,
    wire::{proto, span_to_wire},
};

impl Client {
    /// Lists the listeners with an open stream, of all relays of the cluster; reads all pages.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the relay cannot be reached.
    pub async fn listeners(&self) -> Result<Listed<ListenerInfo>> {
        self.listeners_where(&ListenerQuery::default()).await
    }

    /// Lists the listeners of a query; reads all pages.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a filter beyond its limit, and as
    /// [`Client::listeners`].
    pub async fn listeners_where(&self, query: &ListenerQuery) -> Result<Listed<ListenerInfo>> {
        let fetch = async |page_token| {
            let request = ListenerQuery {
                page_token,
                ..query.clone()
            };
            let call =
                async |channel, request| AdminClient::new(channel).list_listeners(request).await;
            let page = self.read(request, call).await?;
            Ok((page.listeners, page.unanswered_relays, page.next_page_token))
        };
        let mut listed = all_pages(fetch).await?;
        if query.lost {
            // One may have come back to another relay of the cluster.
            let open = listed.entries.iter().filter(|one| one.lost_for.is_none());
            let open: HashSet<String> = open.map(|one| one.listener_id.clone()).collect();
            let is_listed =
                |one: &ListenerInfo| one.lost_for.is_none() || !open.contains(&one.listener_id);
            listed.entries.retain(is_listed);
        }
        Ok(listed)
    }

    /// Lists the queues that the relay or another one of its cluster knows; reads all pages.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the relay cannot be reached.
    pub async fn queues(&self) -> Result<Listed<QueueInfo>> {
        self.queues_where(&QueueQuery::default()).await
    }

    /// Lists the queues of a query: all of them by name, or the first `page_size` in another order.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a filter or a count beyond its limit, and as
    /// [`Client::queues`].
    pub async fn queues_where(&self, query: &QueueQuery) -> Result<Listed<QueueInfo>> {
        let fetch = async |page_token| {
            let request = QueueQuery {
                page_token,
                ..query.clone()
            };
            let call =
                async |channel, request| AdminClient::new(channel).list_queues(request).await;
            let page = self.read(request, call).await?;
            Ok((page.queues, page.unanswered_relays, page.next_page_token))
        };
        all_pages(fetch).await
    }

    /// Lists the relays of the cluster, as the relay that answers knows them. It comes first; a relay
    /// without a cluster is the only one.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the relay cannot be reached;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) from a relay older than this call.
    pub async fn relays(&self) -> Result<Vec<RelayInfo>> {
        let request = proto::ListRelaysRequest {};
        let call = async |channel, request| AdminClient::new(channel).list_relays(request).await;
        Ok(self.read(request, call).await?.relays)
    }

    /// Returns where the relay's console is, with a code for one login within 60 s, where one is needed.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) if the relay has none, or if the caller has no token
    /// and one is needed; [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the relay cannot
    /// be reached; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) from a relay older than
    /// this call.
    pub async fn console(&self) -> Result<ConsoleAddress> {
        let request = proto::OpenConsoleRequest {};
        let call = async |channel, request| AdminClient::new(channel).open_console(request).await;
        self.call(request, call).await
    }

    /// Asks why a queue is, or is not, served. The first question makes the relays note their decisions
    /// about the queue, until ten minutes after the newest one, while they know the queue.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the relay cannot be reached;
    /// [`ErrorKind::Denied`](crate::ErrorKind::Denied) if the caller may not use the queue;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) from a relay older than this call.
    pub async fn explain(&self, queue: &QueueAddress) -> Result<Explanation> {
        let request = proto::ExplainRequest {
            storage_account: queue.storage_account().to_owned(),
            queue_name: queue.queue_name().to_owned(),
        };
        let call = async |channel, request| AdminClient::new(channel).explain(request).await;
        self.read(request, call).await
    }

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

    /// Asks the relay to end in order. It answers when the drain has begun: its streams end within
    /// `span` (`None`: the relay's setting; zero: at once), and then its process ends.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the relay cannot be reached;
    /// [`ErrorKind::Denied`](crate::ErrorKind::Denied) if the caller may not administer it;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) from a relay older than this call.
    pub async fn drain(&self, span: Option<Duration>) -> Result<()> {
        let request = proto::DrainRequest {
            grace: span.map(span_to_wire),
        };
        let call = async |channel, request| AdminClient::new(channel).drain(request).await;
        self.call(request, call).await?;
        Ok(())
    }

    /// Returns why the relay does not serve, by the standard gRPC health check: as `/readyz` of its admin
    /// port. `None` if it does. Needs no credential.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the relay cannot be reached.
    #[cfg(feature = "relay")]
    pub async fn not_ready(&self) -> Result<Option<String>> {
        use crate::wire::NOT_READY;
        use tonic_health::pb::{
            HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
        };
        let request = HealthCheckRequest::default();
        let call = async |channel, request| {
            let response = HealthClient::new(channel).check(request).await?;
            let reason = response.metadata().get(NOT_READY);
            let reason = reason.and_then(|reason| reason.to_str().ok());
            let reason = reason.unwrap_or("it states no reason").to_owned();
            Ok(response.map(|health| (health.status(), reason)))
        };
        let (status, reason) = self.read(request, call).await?;
        Ok((status != ServingStatus::Serving).then_some(reason))
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

    /// Returns the bound of the bucket that has this percentile; `None` without latencies. One above the
    /// last bound has that bound.
    pub fn percentile(&self, percent: u8) -> Option<Duration> {
        let count: u64 = self.counts.iter().sum();
        let rank = (count * u64::from(percent)).div_ceil(100).max(1);
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
        assert_eq!(since.counts, [0, 2, 0]);
        assert_eq!(since.percentile(1), Some(millis(5)));
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
