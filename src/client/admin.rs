//! What operators ask a relay: who is there, what the queues have seen, whether it serves.
//!
//! Reads all pages of a list. Knows nothing of how it is shown.

use std::time::Duration;

use super::{Client, connection::AdminClient, pages::all_pages};
use crate::{
    error::Result,
    wire::{proto, span_from_wire},
};

/// One stream of a listener, as the relay sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerInfo {
    /// Who listens, by its own name; several streams may bear the same one.
    pub listener_id: String,
    /// The stream's own id.
    pub subscription_id: String,
    /// What it listens to, each written `account/queue`, patterns with their `*`.
    pub selectors: Vec<String>,
    /// Messages that it takes on at once.
    pub capacity: u32,
    /// For how long the queue hides a message that it has got.
    pub visibility_timeout: Duration,
    /// How long the stream has been open.
    pub connected_for: Duration,
    /// Queues that its selectors match now.
    pub queues: u32,
    /// Queues where it is taken to be busy.
    pub busy: u32,
    /// Queues where a wake-up is owed that its stream has not taken yet.
    pub owed: u32,
    /// Of its newest report: dequeue tasks working or waiting for work.
    pub active_dequeue_tasks: u32,
    /// Of its newest report: the most that were ever active at one time.
    pub total_dequeue_tasks: u32,
    /// The group that it shares wake-ups with; `None` where it is told of every one.
    pub group: Option<String>,
    /// By its newest report it looks by itself.
    pub polling: bool,
}

/// What the relay remembers of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueInfo {
    /// Its storage account.
    pub storage_account: String,
    /// Its name within the account.
    pub queue_name: String,
    /// How many causes to wake there have been: notifications and timed wake-ups.
    pub sequence: u64,
    /// Notifications since the relay knows it.
    pub notifications: u64,
    /// The sum of their payload sizes.
    pub payload_size: u64,
    /// How many messages they told of.
    pub messages: u64,
    /// Streams that listen on it.
    pub listeners: u32,
    /// Timed wake-ups that wait.
    pub timers: u32,
    /// How long ago the newest cause to wake was; `None` where there was none.
    pub idle_for: Option<Duration>,
    /// Messages in it by the newest report that told; `None` where none did.
    pub current_queue_depth: Option<u64>,
    /// How old that report is; `None` where there is none, or from a relay of before this field.
    pub depth_age: Option<Duration>,
}

impl Client {
    /// Lists the listeners that hold a stream, through all pages.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) where the relay cannot be reached.
    pub async fn listeners(&self) -> Result<Vec<ListenerInfo>> {
        let ask = async |page_token| {
            let request = proto::ListListenersRequest {
                page_size: 0,
                page_token,
            };
            let call =
                |channel| async move { AdminClient::new(channel).list_listeners(request).await };
            let page = self.call(call).await?;
            Ok((page.listeners, page.next_page_token))
        };
        let listed = all_pages(ask).await?;
        Ok(listed.into_iter().map(ListenerInfo::from_wire).collect())
    }

    /// Lists the queues that the relay remembers, through all pages.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) where the relay cannot be reached.
    pub async fn queues(&self) -> Result<Vec<QueueInfo>> {
        let ask = async |page_token| {
            let request = proto::ListQueuesRequest {
                page_size: 0,
                page_token,
            };
            let call =
                |channel| async move { AdminClient::new(channel).list_queues(request).await };
            let page = self.call(call).await?;
            Ok((page.queues, page.next_page_token))
        };
        let listed = all_pages(ask).await?;
        Ok(listed.into_iter().map(QueueInfo::from_wire).collect())
    }

    /// Returns whether the relay says that it serves, by the standard gRPC health check.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) where the relay cannot be reached.
    #[cfg(feature = "relay")]
    pub async fn health(&self) -> Result<bool> {
        use tonic_health::pb::{
            HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
        };
        let request = HealthCheckRequest::default();
        let call = |channel| async move { HealthClient::new(channel).check(request).await };
        let response = self.call(call).await?;
        Ok(response.status() == ServingStatus::Serving)
    }
}

impl ListenerInfo {
    fn from_wire(listener: proto::Listener) -> Self {
        Self {
            listener_id: listener.listener_id,
            subscription_id: listener.subscription_id,
            selectors: listener
                .selectors
                .iter()
                .map(|selector| format!("{}/{}", selector.storage_account, selector.queue_name))
                .collect(),
            capacity: listener.capacity,
            visibility_timeout: span_from_wire(listener.visibility_timeout),
            connected_for: span_from_wire(listener.connected_for),
            queues: listener.queues,
            busy: listener.busy,
            owed: listener.owed,
            active_dequeue_tasks: listener.active_dequeue_tasks,
            total_dequeue_tasks: listener.total_dequeue_tasks,
            group: (!listener.group.is_empty()).then_some(listener.group),
            polling: listener.polling,
        }
    }
}

impl QueueInfo {
    fn from_wire(queue: proto::Queue) -> Self {
        Self {
            storage_account: queue.storage_account,
            queue_name: queue.queue_name,
            sequence: queue.sequence,
            notifications: queue.notifications,
            payload_size: queue.payload_size,
            messages: queue.messages,
            listeners: queue.listeners,
            timers: queue.timers,
            idle_for: queue.idle_for.map(|span| span_from_wire(Some(span))),
            current_queue_depth: queue.current_queue_depth,
            depth_age: queue.depth_age.map(|age| span_from_wire(Some(age))),
        }
    }
}
