//! A publisher and a subscription on the hub itself, for one process and for tests.

use std::{collections::VecDeque, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_core::Stream;
use tokio::sync::watch;

use super::{MessageStream, Relay};
use crate::{
    base::{clock::wall, text::opaque_debug},
    error::{Error, ErrorKind, Result},
    relay::hub::{StreamMessage, WakeBuilder},
    types::{
        Accepted, ConnectionState, Limits, LinkState, Notification, Notifier, Report, ReportFuture,
        SubscribeEvent, SubscribeOptions, WakeStream, Welcome, WorkDetected, check_text,
    },
};

/// Notifies a relay in this process.
#[derive(Debug, Clone)]
pub struct LocalPublisher {
    pub(super) relay: Relay,
    pub(super) name: Arc<str>,
}

/// Wake-ups of a relay in this process. Dropping it ends the subscription.
pub struct LocalSubscription {
    relay: Relay,
    stream: MessageStream<WakeBuilder>,
    pending: VecDeque<WorkDetected>,
    welcome: Option<Welcome>,
    reports: u64,
    link: watch::Sender<LinkState>,
}

/// The age of a stream of this process itself.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[async_trait]
impl Notifier for LocalPublisher {
    async fn notify_each(
        &self,
        mut notifications: Vec<Notification>,
    ) -> Result<Vec<Result<Accepted>>> {
        check_text("publisher", &self.name, Limits::MAX_TEXT)?;
        for notification in &mut notifications {
            notification.published_at.get_or_insert_with(wall);
        }
        let results = self.relay.notify(&self.name, &notifications);
        if results.iter().any(Result::is_ok) {
            self.relay.confirm().await?;
        }
        Ok(results)
    }
}

impl LocalSubscription {
    pub(super) fn new(relay: &Relay, options: &SubscribeOptions) -> Result<Self> {
        let stream = relay.open_stream(None, options, CENTURY, WakeBuilder::default())?;
        Ok(Self {
            relay: relay.clone(),
            stream,
            pending: VecDeque::new(),
            welcome: None,
            reports: 0,
            link: watch::Sender::new(LinkState::default()),
        })
    }

    /// Receives the stream's next message; returns whether the subscription goes on.
    async fn receive(&mut self) -> bool {
        let message = std::future::poll_fn(|cx| Pin::new(&mut self.stream).poll_next(cx)).await;
        match message {
            Some(StreamMessage::Event(SubscribeEvent::Welcome(welcome))) => {
                let (degraded, epoch) = (welcome.degraded, Arc::clone(&welcome.epoch));
                self.welcome = Some(welcome);
                self.link.send_modify(|link| {
                    link.epoch = epoch;
                    link.degraded = degraded;
                    link.connection = ConnectionState::Connected;
                    link.welcomes += 1;
                    link.announced = false;
                    link.cause = cut_off(degraded);
                });
            }
            Some(StreamMessage::Wake(wake)) => self.pending.extend(wake.work),
            Some(StreamMessage::Event(SubscribeEvent::Heartbeat { degraded, .. })) => {
                self.link.send_if_modified(|link| {
                    let changed = std::mem::replace(&mut link.degraded, degraded) != degraded;
                    if changed {
                        link.cause = cut_off(degraded);
                    }
                    changed
                });
            }
            Some(StreamMessage::Event(_)) => {}
            None => self
                .link
                .send_modify(|link| link.connection = ConnectionState::Closed),
        }
        !self.has_ended()
    }

    fn has_ended(&self) -> bool {
        self.link.borrow().connection == ConnectionState::Closed
    }
}

#[async_trait]
impl WakeStream for LocalSubscription {
    async fn next(&mut self) -> Option<Result<WorkDetected>> {
        while self.pending.is_empty() && self.receive().await {}
        self.pending.pop_front().map(Ok)
    }

    fn report(&mut self, mut report: Report) -> ReportFuture {
        let Some(welcome) = &self.welcome else {
            let early = "no stream just now: report after the next welcome";
            let error = Error::new(ErrorKind::Unavailable, early);
            return Box::pin(std::future::ready(Err(error)));
        };
        let id = Arc::clone(&welcome.subscription_id);
        self.reports += 1;
        report.number = self.reports;
        let relay = self.relay.clone();
        Box::pin(async move { relay.report(&id, &report).await })
    }

    fn link(&self) -> watch::Receiver<LinkState> {
        self.link.subscribe()
    }
}

fn cut_off(degraded: bool) -> Option<Arc<str>> {
    degraded.then(|| {
        "the relay is cut off from the other relays of its cluster, or was just now".into()
    })
}

opaque_debug!(LocalSubscription: has_ended());
