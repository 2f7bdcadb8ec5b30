//! Calls for operators: a relay's listeners, its queues and its health.
//!
//! Reads all pages of a list. Does not format anything.

use std::{collections::HashSet, net::SocketAddr, time::Duration};

use super::{
    Client,
    connection::AdminClient,
    explain::Explanation,
    mirror::{FromWire as _, mirror, mirror_enum},
    pages::{ListPage, Listed, all_pages},
};
use crate::{
    error::{Error, Result},
    types::QueueAddress,
    wire::{proto, span_to_wire},
};

mirror! {
    /// One stream of a listener, as the relay knows it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ListenerInfo from Listener {
        /// The listener's id, which it chose itself; several streams may have the same one.
        pub listener_id: String,
        /// The stream's id.
        pub subscription_id: String,
        /// Its selectors, each written `account/queue`, patterns with `*`.
        pub selectors: Vec<String>,
        /// Messages that it handles at one time.
        pub capacity: u32,
        /// How long its queue hides a message after a get.
        pub visibility_timeout: Duration,
        /// How long the stream has been open.
        pub connected_for: Duration,
        /// Number of queues that it names, and of its patterns.
        pub queues: u32,
        /// Number of queues for which the relay counts it as busy.
        pub busy: u32,
        /// Number of queues with a wake-up that its stream has not sent yet.
        pub owed: u32,
        /// From its newest report: dequeue tasks working or waiting for work.
        pub active_dequeue_tasks: u32,
        /// From its newest report: the maximum of dequeue tasks active at one time.
        pub total_dequeue_tasks: u32,
        /// The group that shares its wake-ups; `None` if it receives every wake-up.
        pub group: Option<String>,
        /// From its newest report: it polls its queue without wake-ups.
        pub polling: bool,
        /// It was woken and has not reported for this long, although it reports, and was not busy: it hangs,
        /// or it cannot read its queue.
        pub silent_for: Option<Duration>,
        /// By its newest report: how long it has been handling the oldest of its messages.
        pub busy_for: Option<Duration>,
        /// It was lost this long ago, because it did not answer in time. The other fields are as they were
        /// then. `None`: its stream is open.
        pub lost_for: Option<Duration>,
        /// It starts workers in place of reading its queues; its dequeue tasks are those workers.
        pub agent: bool,
    }
}

mirror! {
    /// One queue, as the relay knows it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct QueueInfo from Queue {
        /// Its storage account.
        pub storage_account: String,
        /// Its name within the account.
        pub queue_name: String,
        /// Number of notifications and timed wake-ups so far.
        pub sequence: u64,
        /// Number of notifications since the relay created its entry.
        pub notifications: u64,
        /// The sum of their payload sizes.
        pub payload_size: u64,
        /// The sum of their message counts.
        pub messages: u64,
        /// Number of streams that subscribe to it.
        pub listeners: u32,
        /// Number of pending timed wake-ups.
        pub timers: u32,
        /// Time since the newest notification or timed wake-up; `None` without any.
        pub idle_for: Option<Duration>,
        /// The newest depth that a listener read, or 0 since one found no visible message; `None` without
        /// either.
        pub current_queue_depth: Option<u64>,
        /// How long ago that was; `None` without it, or from a relay older than this field.
        pub depth_age: Option<Duration>,
        /// Messages that are not known to be handled: the newest depth and the messages notified since.
        pub backlog: u64,
        /// No listener has reported since the relay knows the queue: there may be messages from before.
        pub in_doubt: bool,
        /// Number of streams that are busy with it.
        pub busy: u32,
    }
}

/// Which listeners are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListenerQuery {
    /// Only listeners whose id, group or a selector contains this text; at most 128 bytes.
    pub filter: String,
    /// Also those that were lost within the last hour and have not come back.
    pub lost: bool,
    /// At most this many listeners, up to 1,000; 0: all of them.
    pub count: u32,
}

/// Which queues are listed, and in which order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueQuery {
    /// Only queues whose `account/queue` contains this text; at most 128 bytes.
    pub filter: String,
    /// The order of the list.
    pub order: QueueOrder,
    /// In another order than by name: at most this many queues, up to 1,000; 0: 100.
    pub count: u32,
}

/// The order of a list of queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueOrder {
    /// By account and name: all queues.
    #[default]
    Name = proto::QueueOrder::Unspecified as isize,
    /// Most notifications in the last second first. The relay begins to measure at the first call.
    Rate = proto::QueueOrder::Rate as isize,
    /// Largest backlog first.
    Backlog = proto::QueueOrder::Backlog as isize,
    /// Longest without a notification first.
    Idle = proto::QueueOrder::Idle as isize,
    /// Fewest listeners first.
    Listeners = proto::QueueOrder::Listeners as isize,
}

mirror! {
    /// One run of a relay in a cluster.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct RelayInfo from RelayInfo {
        /// Its name.
        pub relay_id: String,
        /// The run, 32 hexadecimal digits.
        pub epoch: String,
        /// Its version.
        pub version: String,
        /// Whether it is present.
        pub state: RelayState,
        /// Number of open streams of listeners.
        pub streams: u64,
        /// Number of queues that it knows.
        pub queues: u64,
        /// Its listeners poll, because it is or was cut off from the other relays.
        pub degraded: bool,
        /// Time since its last message; `None` for the relay that answers.
        pub silent_for: Option<Duration>,
        /// How often its missed messages made listeners of the answering relay check queues.
        pub resyncs: u64,
    }
}

/// Where a relay's console is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsoleAddress {
    /// The admin port.
    pub address: SocketAddr,
    /// A login with the caller's credential, once, within 60 s; `None` where no login is needed.
    pub code: Option<String>,
}

mirror_enum! {
    /// Whether a relay of a cluster is present, as the answering relay knows.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum RelayState from RelayState {
        /// The relay that answers.
        Answering = Self_ "answering",
        /// Its heartbeats arrive.
        Present = Present "present",
        /// Silent for several seconds: it has died or is cut off.
        Missing = Missing "missing",
        /// It has left in order.
        Left = Left "left",
    }
}

impl Client {
    /// Lists the listeners with an open stream, of all relays of the cluster; reads all pages.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the relay cannot be reached.
    pub async fn listeners(&self) -> Result<Listed<ListenerInfo>> {
        self.listeners_where(&ListenerQuery::default()).await
    }

    /// Lists the listeners of a query.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a filter beyond its limit, and as
    /// [`Client::listeners`].
    pub async fn listeners_where(&self, query: &ListenerQuery) -> Result<Listed<ListenerInfo>> {
        let fetch = async |page_token| {
            let request = proto::ListListenersRequest {
                page_size: query.count,
                page_token,
                lost: query.lost,
                filter: query.filter.clone(),
            };
            let call =
                async |channel, request| AdminClient::new(channel).list_listeners(request).await;
            let page = self.read(request, call).await?;
            let next = Some(page.next_page_token).filter(|_| query.count == 0);
            Ok(ListPage {
                entries: page.listeners,
                next: next.unwrap_or_default(),
                unanswered: page.unanswered_relays,
            })
        };
        let mut listed = all_pages(fetch).await?.map(ListenerInfo::from_wire);
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

    /// Lists the queues of a query: all of them by name, or the first ones in another order.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a filter or a count beyond its limit, and as
    /// [`Client::queues`].
    pub async fn queues_where(&self, query: &QueueQuery) -> Result<Listed<QueueInfo>> {
        let by_name = query.order == QueueOrder::Name;
        let fetch = async |page_token| {
            let request = proto::ListQueuesRequest {
                page_size: if by_name { 0 } else { query.count },
                page_token,
                filter: query.filter.clone(),
                order_by: query.order as i32,
            };
            let call =
                async |channel, request| AdminClient::new(channel).list_queues(request).await;
            let page = self.read(request, call).await?;
            Ok(ListPage {
                entries: page.queues,
                next: page.next_page_token,
                unanswered: page.unanswered_relays,
            })
        };
        Ok(all_pages(fetch).await?.map(QueueInfo::from_wire))
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
        let listed = self.read(request, call).await?.relays.into_iter();
        Ok(listed.map(RelayInfo::from_wire).collect())
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
        self.read(request, call).await.map(Explanation::from_wire)
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
