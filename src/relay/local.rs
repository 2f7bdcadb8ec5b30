//! A publisher and a subscription on the hub itself, for one process and for tests.

use std::{collections::VecDeque, pin::Pin, sync::Arc};

use async_trait::async_trait;
use futures_core::Stream;

use super::{FeedStream, Relay};
use crate::{
    clock::wall,
    error::{Error, ErrorKind, Result},
    words::{
        Accepted, ConnectionState, Limits, Notification, Notify, Report, SubscribeEvent,
        SubscribeOptions, Wakes, Welcome, WorkDetected, check_text,
    },
};

/// Says that there is work, to a relay in this process.
#[derive(Debug, Clone)]
pub struct LocalPublisher {
    relay: Relay,
    name: Arc<str>,
}

/// Wake-ups of a relay in this process. Dropping it ends the subscription.
pub struct LocalSubscription {
    relay: Relay,
    feed: FeedStream,
    arrived: VecDeque<WorkDetected>,
    welcome: Option<Welcome>,
    reports: u64,
    ended: bool,
}

impl LocalPublisher {
    pub(super) fn new(relay: &Relay, name: &str) -> Self {
        Self {
            relay: relay.clone(),
            name: name.into(),
        }
    }
}

#[async_trait]
impl Notify for LocalPublisher {
    async fn notify(&self, mut notifications: Vec<Notification>) -> Result<Vec<Accepted>> {
        check_text("publisher", &self.name, Limits::TEXT)?;
        for notification in &mut notifications {
            notification.published_at.get_or_insert_with(wall);
        }
        self.relay.notify(&self.name, &notifications)
    }
}

impl LocalSubscription {
    pub(super) fn new(relay: &Relay, options: &SubscribeOptions) -> Result<Self> {
        let feed = relay.local_feed(options)?;
        let (relay, arrived) = (relay.clone(), VecDeque::new());
        Ok(Self {
            relay,
            feed,
            arrived,
            welcome: None,
            reports: 0,
            ended: false,
        })
    }

    /// Takes in the stream's next message; returns whether there was one.
    async fn receive(&mut self) -> bool {
        match std::future::poll_fn(|cx| Pin::new(&mut self.feed).poll_next(cx)).await {
            Some(SubscribeEvent::Welcome(welcome)) => self.welcome = Some(welcome),
            Some(SubscribeEvent::Wake(work)) => self.arrived.extend(work),
            Some(_) => {}
            None => self.ended = true,
        }
        !self.ended
    }
}

#[async_trait]
impl Wakes for LocalSubscription {
    async fn next(&mut self) -> Option<Result<WorkDetected>> {
        while self.arrived.is_empty() && self.receive().await {}
        self.arrived.pop_front().map(Ok)
    }

    async fn report(&mut self, mut report: Report) -> Result<()> {
        // The first message, which is ready at once.
        while self.welcome.is_none() && self.receive().await {}
        let closed = || Error::new(ErrorKind::Closed, "the relay was shut down");
        let id = Arc::clone(&self.welcome.as_ref().ok_or_else(closed)?.subscription_id);
        self.reports += 1;
        report.number = self.reports;
        self.relay.report(&id, &report)
    }

    fn state(&self) -> ConnectionState {
        if self.ended {
            ConnectionState::Closed
        } else {
            ConnectionState::Connected
        }
    }
}

impl std::fmt::Debug for LocalSubscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalSubscription")
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
