//! One connection to NATS: the two subscriptions of a life, and a publisher that never waits.

use std::{io, sync::Arc, time::Duration};

use async_nats::{
    Client, ConnectError, ConnectErrorKind, PublishErrorKind, Statistics, Subject, Subscriber,
    connection::State,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{
    FutureExt as _, StreamExt as _,
    stream::{Select, select},
};
use tokio::time::timeout;

use super::{
    NatsConfig,
    config::{CLIENT_CAPACITY, CONNECT_TIMEOUT, options, shown},
    events::{Events, Kind, one_line},
    subjects::{NatsMessage, Subjects},
};
use crate::{
    base::{
        causes::{causes, with_causes},
        text::opaque_debug,
    },
    error::{Error, ErrorKind, Result},
    relay::runtime::PeerTransport,
    types::cluster::{ClusterLimits, LifeId},
};

/// A connection to NATS. It connects again without end until it is closed.
///
/// Messages of one subject arrive in the order in which they were published on one connection. The
/// client holds at most 512 messages of a subscription and drops what comes above.
#[derive(Debug)]
pub(crate) struct NatsConnection {
    publisher: NatsPublisher,
    incoming: Select<Subscriber, Subscriber>,
}

/// Publishes. Cheap to clone.
///
/// A message is dropped if the client is not connected, or if its channel of 256 messages is full. So a
/// caller must repeat a message that has to arrive, as the link does.
#[derive(Clone)]
pub(crate) struct NatsPublisher {
    pub(super) client: Client,
    statistics: Arc<Statistics>,
    pub(super) subjects: Subjects,
    pub(super) events: Arc<Events>,
}

/// The limit for the first attempt, with slow name servers: the relay then starts without
/// the broker.
const START_LIMIT: Duration = Duration::from_secs(5);
/// The limit for writing the last messages.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

impl NatsConnection {
    /// Connects. If no server can be reached, that is logged, and the connection is made later.
    ///
    /// # Errors
    /// `Invalid` for a setting that breaks a rule, TLS that does not fit, or messages of less than
    /// 64 KiB; `Denied` if NATS refuses the login.
    pub(crate) async fn connect(config: &NatsConfig, life: LifeId) -> Result<Self> {
        config.check()?;
        let servers = config.parsed_servers()?;
        let names = servers.iter().map(shown).collect::<Vec<_>>().join(",");
        let subjects = Subjects::new(&config.name);
        let events = Arc::new(Events::new(names.clone()));
        let options = options(config, &subjects, &events).await?;
        let first = options.clone().connect(servers.as_slice());
        let client = match timeout(START_LIMIT, first).await {
            Ok(Ok(client)) => {
                check_max_payload(&client)?;
                client
            }
            not_connected => {
                match not_connected {
                    Ok(Err(error)) if is_refusal(&error) => return Err(refused(&names, &error)),
                    Ok(Err(error)) => events.on_failed_attempt(with_causes(&error)),
                    _ => events.on_failed_attempt("no answer within 5 s"),
                }
                let again = options.retry_on_initial_connect();
                again.connect(servers.as_slice()).await.map_err(ended)?
            }
        };
        let all = client
            .subscribe(subjects.all.clone())
            .await
            .map_err(ended)?;
        let own = client.subscribe(subjects.of(life)).await.map_err(ended)?;
        if client.connection_state() == State::Connected {
            // The two commands leave the channel, whose room is for messages.
            let _ = timeout(CONNECT_TIMEOUT, client.flush()).await;
        }
        Ok(Self {
            publisher: NatsPublisher {
                statistics: client.statistics(),
                client,
                subjects,
                events,
            },
            incoming: select(all, own),
        })
    }

    /// Returns a handle that publishes.
    pub(crate) fn publisher(&self) -> NatsPublisher {
        self.publisher.clone()
    }

    /// Returns the next message; `None` only after the client has ended.
    ///
    /// # Cancel safety
    /// A dropped call takes no message.
    pub(crate) async fn next(&mut self) -> Option<NatsMessage> {
        let message = self.incoming.next().await?;
        Some(self.publisher.subjects.read(message))
    }

    /// Writes the messages that wait, for at most a second, and closes the connection.
    pub(crate) async fn close(self) {
        let client = &self.publisher.client;
        let last = async {
            client.flush().await.map_err(ended)?;
            client.drain().await.map_err(ended)
        };
        if self.publisher.is_connected() {
            // A connection that breaks now has lost them.
            let _ = timeout(CLOSE_LIMIT, last).await;
        }
    }
}

impl Drop for NatsConnection {
    fn drop(&mut self) {
        self.publisher.events.close();
    }
}

impl NatsPublisher {
    /// Publishes to all relays, this one included. Returns whether the client has taken the message.
    pub(crate) fn publish(&self, message: Bytes) -> bool {
        self.send(self.subjects.all.clone(), message)
    }

    /// Returns the count of connects. It rises before a message of the new connection can be taken:
    /// a caller that reads it after it took a message has counted that message's connection.
    pub(crate) fn connects(&self) -> u64 {
        let connects = &self.statistics.connects;
        connects.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Returns whether the client is connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Ends a connection that the client takes for a good one, so that it makes another. Without room
    /// in the client's channel nothing happens.
    pub(super) fn replace(&self) {
        if self.is_connected() {
            let asked = tokio::task::unconstrained(self.client.force_reconnect());
            let _ = asked.now_or_never();
        }
    }

    /// The same on any subject, as for a reply to a request of another life.
    pub(super) fn send(&self, subject: Subject, payload: Bytes) -> bool {
        let (client, events) = (&self.client, &self.events);
        // The log has a line of the break, so a dropped message has none.
        if !self.is_connected() {
            return false;
        }
        // The client waits where its channel has no room. One poll shows that. It is not counted as
        // work of the task: a task without budget would take a free channel for a full one.
        let sent = client.publish(subject, payload);
        match tokio::task::unconstrained(sent).now_or_never() {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                if error.kind() == PublishErrorKind::MaxPayloadExceeded {
                    let text = format_args!("a message is dropped: {error}");
                    events.note(Kind::TooLarge, text);
                }
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
}

#[async_trait]
impl PeerTransport for NatsPublisher {
    async fn request(&self, life: LifeId, request: Bytes) -> Option<Bytes> {
        // The client would keep the request until it is connected again.
        if !self.is_connected() {
            return None;
        }
        let subject = self.subjects.of(life);
        // With an inbox of its own: the client would keep a request of the shared one without end if no
        // reply comes.
        let request = async_nats::Request::new()
            .payload(request)
            .inbox(self.client.new_inbox());
        let reply = self.client.send_request(subject, request).await;
        reply.ok().map(|reply| reply.payload)
    }
}

opaque_debug!(NatsPublisher: subjects, connects());

fn check_max_payload(client: &Client) -> Result<()> {
    let (max, needed) = (client.max_payload(), ClusterLimits::MESSAGE_BYTES);
    if max >= needed {
        return Ok(());
    }
    let rule = format_args!(
        "max_payload of the NATS server must be at least {needed} bytes, but is {max}: set it there"
    );
    Err(Error::invalid("cluster", rule))
}

/// Returns whether the server refuses the login, or its TLS does not fit: no later attempt is better.
fn is_refusal(error: &ConnectError) -> bool {
    is_login(error) || tls_error(error)
}

fn is_login(error: &ConnectError) -> bool {
    matches!(
        error.kind(),
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication
    )
}

/// An I/O error does not name its inner error as its cause.
fn tls_error(error: &ConnectError) -> bool {
    causes(error).any(|cause| {
        let inner = cause
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        cause.is::<rustls::Error>() || inner.is_some_and(|inner| inner.is::<rustls::Error>())
    })
}

fn refused(servers: &str, error: &ConnectError) -> Error {
    let kind = if is_login(error) {
        ErrorKind::Denied
    } else {
        ErrorKind::Invalid
    };
    let text = one_line(with_causes(error));
    Error::new(kind, format!("cluster: NATS at {servers}: {text}"))
}

/// Only the end of the client's task refuses a command.
fn ended(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Unavailable, "the client of NATS has ended").with_source(error)
}
