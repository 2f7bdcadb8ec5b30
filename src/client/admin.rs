//! Calls for operators: a relay's listeners, its queues and its health.
//!
//! Reads all pages of a list. Does not format anything.

use std::time::Duration;

use super::{Client, connection::AdminClient, pages::all_pages};
use crate::{
    error::Result,
    wire::{proto, span_from_wire},
};

/// One stream of a listener, as the relay knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerInfo {
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
    /// Number of queues that its selectors match now.
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
}

/// One queue, as the relay knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueInfo {
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
    /// Number of messages in it by the newest report with a depth; `None` without one.
    pub current_queue_depth: Option<u64>,
    /// Age of that report; `None` without one, or from a relay older than this field.
    pub depth_age: Option<Duration>,
}

impl Client {
    /// Lists the listeners with an open stream; reads all pages.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the relay cannot be reached.
    pub async fn listeners(&self) -> Result<Vec<ListenerInfo>> {
        let fetch = async |page_token| {
            let request = proto::ListListenersRequest {
                page_size: 0,
                page_token,
            };
            let call =
                async |channel, request| AdminClient::new(channel).list_listeners(request).await;
            let page = self.call(request, call).await?;
            Ok((page.listeners, page.next_page_token))
        };
        let listed = all_pages(fetch).await?;
        Ok(listed.into_iter().map(ListenerInfo::from_wire).collect())
    }

    /// Lists the queues that the relay knows; reads all pages.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the relay cannot be reached.
    pub async fn queues(&self) -> Result<Vec<QueueInfo>> {
        let fetch = async |page_token| {
            let request = proto::ListQueuesRequest {
                page_size: 0,
                page_token,
            };
            let call =
                async |channel, request| AdminClient::new(channel).list_queues(request).await;
            let page = self.call(request, call).await?;
            Ok((page.queues, page.next_page_token))
        };
        let listed = all_pages(fetch).await?;
        Ok(listed.into_iter().map(QueueInfo::from_wire).collect())
    }

    /// Returns whether the relay serves, by the standard gRPC health check.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the relay cannot be reached.
    #[cfg(feature = "relay")]
    pub async fn health(&self) -> Result<bool> {
        use tonic_health::pb::{
            HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
        };
        let request = HealthCheckRequest::default();
        let call = async |channel, request| HealthClient::new(channel).check(request).await;
        let response = self.call(request, call).await?;
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
