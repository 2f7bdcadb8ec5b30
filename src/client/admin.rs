//! Calls for operators: a relay's listeners, its queues, its figures and its health.
//!
//! Their results are the messages of `proto/reveille/v1/admin.proto`. Reads all pages of a list. Does not
//! format anything.

use std::{collections::HashSet, net::SocketAddr, time::Duration};

use super::{
    Client,
    connection::AdminClient,
    pages::{Listed, all_pages},
};
pub use crate::wire::proto::{
    BusyQueue, Decision, DecisionKind, ExplainResponse as Explanation, Finding, FindingKind,
    FlagWatcher as FlagWatcherInfo, GetHistoryResponse as History, LatencyBuckets,
    Levels as RelayLevels, ListListenersRequest as ListenerQuery, ListQueuesRequest as QueueQuery,
    Listener as ListenerInfo, Queue as QueueInfo, QueueOrder, RelayInfo, RelayState, RelayStats,
    Sample as HistorySample, Savings, Totals as RelayTotals, WatchStatsResponse as Stats,
};
use crate::{
    error::{Error, Result},
    types::QueueAddress,
    wire::{proto, span_to_wire},
};

/// Where a relay's console is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsoleAddress {
    /// The admin port.
    pub address: SocketAddr,
    /// A login with the caller's credential, once, within 60 s; `None` where no login is needed.
    pub code: Option<String>,
}

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
            let listed = Listed {
                entries: page.listeners,
                unanswered: page.unanswered_relays,
            };
            Ok((listed, page.next_page_token))
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
            let listed = Listed {
                entries: page.queues,
                unanswered: page.unanswered_relays,
            };
            Ok((listed, page.next_page_token))
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

    /// Returns where the relay's console is.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) if the relay has none, or if the caller has no token
    /// and one is needed; [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the relay cannot
    /// be reached; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) from a relay older than
    /// this call.
    pub async fn console(&self) -> Result<ConsoleAddress> {
        let request = proto::OpenConsoleRequest {};
        let call = async |channel, request| AdminClient::new(channel).open_console(request).await;
        let opened = self.call(request, call).await?;
        let address = opened.address.parse();
        let address = address.map_err(|_| Error::invalid("address", "must be IP:PORT"))?;
        let code = Some(opened.code).filter(|code| !code.is_empty());
        Ok(ConsoleAddress { address, code })
    }

    /// Asks why a queue is, or is not, served. The first question makes the relays note their decisions
    /// about the queue, until ten minutes after the newest one.
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

    /// Returns whether the relay serves, by the standard gRPC health check: as `/readyz` of its admin
    /// port. Needs no credential.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the relay cannot be reached.
    #[cfg(feature = "relay")]
    pub async fn health(&self) -> Result<bool> {
        Ok(self.not_ready().await?.is_none())
    }

    /// Returns why the relay does not serve; `None` if it does. The same check as [`Client::health`].
    ///
    /// # Errors
    /// As [`Client::health`].
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
