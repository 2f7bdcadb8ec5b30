//! Publishes on the cluster's subjects, and never waits.

use std::sync::Arc;

use async_nats::{Client, PublishError, PublishErrorKind, Statistics, Subject, connection::State};
use bytes::Bytes;
use futures_util::FutureExt as _;

use super::{
    events::{Events, Kind},
    options::CLIENT_CAPACITY,
    subjects::{ReplyTo, Subjects},
};
use crate::types::cluster::LifeId;

/// Publishes. Cheap to clone.
///
/// A message is dropped and counted if the client is not connected, or if its channel of 256
/// messages is full. So a caller must repeat a message that has to arrive, as the link does.
#[derive(Clone)]
pub(crate) struct NatsPublisher(Arc<Shared>);

struct Shared {
    client: Client,
    statistics: Arc<Statistics>,
    subjects: Subjects,
    events: Arc<Events>,
}

/// Messages that were dropped before they reached the client, by reason.
#[cfg(test)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DroppedMessages {
    pub(crate) not_connected: u64,
    pub(crate) no_room: u64,
    pub(crate) too_large: u64,
}

impl NatsPublisher {
    pub(super) fn new(client: Client, subjects: Subjects, events: Arc<Events>) -> Self {
        let statistics = client.statistics();
        Self(Arc::new(Shared {
            client,
            statistics,
            subjects,
            events,
        }))
    }

    /// Publishes to all relays, this one included. Returns whether the client has taken the message.
    pub(crate) fn publish(&self, message: Bytes) -> bool {
        self.send(self.0.subjects.all.clone(), None, message)
    }

    /// Sends a request to a life. Its reply has this life's `number`.
    pub(crate) fn ask(&self, life: LifeId, number: u64, request: Bytes) -> bool {
        let reply = self.0.subjects.own_reply(number);
        self.send(self.0.subjects.ask(life), Some(reply), request)
    }

    /// Replies to a request of another life.
    pub(crate) fn reply(&self, to: ReplyTo, reply: Bytes) -> bool {
        self.send(self.0.subjects.reply(to), None, reply)
    }

    /// Returns the count of connects. It rises before a message of the new connection can be taken:
    /// a caller that reads it after it took a message has counted that message's connection.
    pub(crate) fn connects(&self) -> u64 {
        self.0
            .statistics
            .connects
            .load(std::sync::atomic::Ordering::Acquire)
    }

    /// Returns whether the client is connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.0.client.connection_state() == State::Connected
    }

    /// Ends a connection that the client takes for a good one, so that it makes another. Without room
    /// in the client's channel nothing happens.
    pub(super) fn replace(&self) {
        if self.is_connected() {
            let asked = tokio::task::unconstrained(self.0.client.force_reconnect());
            let _ = asked.now_or_never();
        }
    }

    /// Returns the counts of dropped messages.
    #[cfg(test)]
    pub(crate) fn dropped(&self) -> DroppedMessages {
        let events = &self.0.events;
        DroppedMessages {
            not_connected: events.count(Kind::NotConnected),
            no_room: events.count(Kind::NoRoom),
            too_large: events.count(Kind::TooLarge),
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.0.client
    }

    pub(super) fn subjects(&self) -> &Subjects {
        &self.0.subjects
    }

    pub(super) fn events(&self) -> &Events {
        &self.0.events
    }

    fn send(&self, subject: Subject, reply: Option<Subject>, payload: Bytes) -> bool {
        let (client, events) = (&self.0.client, &self.0.events);
        // The log has a line of the break, so a dropped message has none.
        if !self.is_connected() {
            events.count_only(Kind::NotConnected);
            return false;
        }
        // The client waits where its channel has no room. One poll shows that. It is not counted as
        // work of the task: a task without budget would take a free channel for a full one.
        let sent = async {
            match reply {
                Some(reply) => client.publish_with_reply(subject, reply, payload).await,
                None => client.publish(subject, payload).await,
            }
        };
        match tokio::task::unconstrained(sent).now_or_never() {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                self.on_error(&error);
                false
            }
            None => {
                events.note(
                    Kind::NoRoom,
                    format_args!("a message is dropped: {CLIENT_CAPACITY} wait for NATS already"),
                );
                false
            }
        }
    }

    #[cold]
    fn on_error(&self, error: &PublishError) {
        match error.kind() {
            PublishErrorKind::MaxPayloadExceeded => {
                let max = self.0.client.max_payload();
                self.0.events.note(
                    Kind::TooLarge,
                    format_args!(
                        "a message is dropped: max_payload of NATS is {max} bytes, but must be at \
                         least 65536"
                    ),
                );
            }
            // The client has ended.
            _ => self.0.events.count_only(Kind::NotConnected),
        }
    }
}

impl std::fmt::Debug for NatsPublisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsPublisher")
            .field("subjects", &self.0.subjects)
            .field("connects", &self.connects())
            .finish_non_exhaustive()
    }
}
