//! The publisher of one run.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use redis::{AsyncCommands as _, aio::MultiplexedConnection};
use reveille::{Notification, Publisher, PublisherOptions, QueueAddress};

use crate::{
    broker::Broker,
    peers::{connect_nats, connect_redis},
    raw::{NotifyRequest, RawPublisher, RawStream},
    server::Server,
    subscriber_process::wall_nanos,
};

/// Publishes to a fixed set of queues on one connection.
#[derive(Debug)]
pub(crate) struct Sender {
    queues: Vec<QueueAddress>,
    /// The NATS subject or Redis channel of each queue.
    subjects: Vec<String>,
    /// Bytes of a peer's message.
    payload: usize,
    /// Maximum number of notifications of one request.
    batch: usize,
    client: Client,
}

#[derive(Debug)]
enum Client {
    Relay(RelayClient),
    Nats(async_nats::Client),
    Redis(MultiplexedConnection),
}

#[derive(Debug)]
struct RelayClient {
    publisher: Publisher,
    target: String,
    credential: Option<String>,
    has_tls: bool,
    /// For many notifications at once, which the publisher would conflate. Opened at the first use.
    stream: Option<RawStream>,
}

/// Maximum number of requests in flight: enough that the server never waits for the publisher.
pub(crate) const PIPELINE: usize = 64;

impl Sender {
    /// Connects. A burst has `batch` notifications in a request. All names of queues have the same
    /// length.
    pub(crate) async fn open(
        broker: &Broker,
        queues: &[QueueAddress],
        batch: usize,
    ) -> Result<Self> {
        let client = match broker.server {
            Server::Relay(protection) => Client::Relay(RelayClient {
                publisher: broker.client()?.publisher_with(PublisherOptions {
                    deadline: Duration::from_secs(60),
                    ..PublisherOptions::default()
                }),
                target: broker.target.clone(),
                credential: broker.credential().map(str::to_owned),
                has_tls: protection.has_tls(),
                stream: None,
            }),
            Server::Nats => Client::Nats(connect_nats(&broker.target).await?),
            Server::Redis => Client::Redis(connect_redis(&broker.target).await?),
            Server::Cluster(_) => bail!("a cluster takes no clients"),
        };
        Ok(Self {
            queues: queues.to_vec(),
            subjects: queues.iter().map(subject).collect(),
            payload: event_size(queues.first().context("a queue")?),
            batch,
            client,
        })
    }

    /// Publishes one notification of the first queue with the current time, and returns that time.
    /// Waits for the acknowledgement of the relay or of Redis; a nats-server sends none.
    pub(crate) async fn one(&mut self) -> Result<SystemTime> {
        let now = SystemTime::now();
        let mut payload = vec![0; self.payload];
        payload[..8].copy_from_slice(&wall_nanos(now).to_le_bytes());
        match &mut self.client {
            Client::Relay(relay) => {
                let notification = Notification {
                    published_at: Some(now),
                    ..Notification::new(self.queues[0].clone())
                };
                relay.publisher.notify(notification).await?;
            }
            Client::Nats(client) => {
                let subject = self.subjects[0].clone();
                client.publish(subject, payload.into()).await?;
                client.flush().await?;
            }
            Client::Redis(connection) => {
                let () = connection.publish(&self.subjects[0], payload).await?;
            }
        }
        Ok(now)
    }

    /// Publishes many notifications of the first queue as fast as possible; returns the time of the
    /// start. Waits for all acknowledgements, but not for the subscribers.
    pub(crate) async fn all(&mut self, count: u64) -> Result<SystemTime> {
        let began = SystemTime::now();
        let batch = self.batch as u64;
        match &mut self.client {
            Client::Relay(relay) => {
                let request = |size| NotifyRequest::new(std::iter::repeat_n(&self.queues[0], size));
                let stream = relay.stream().await?;
                stream.send(&request(self.batch), count / batch).await?;
                let rest = usize::try_from(count % batch)?;
                stream.send(&request(rest), u64::from(rest > 0)).await?;
            }
            Client::Nats(client) => {
                let subject = async_nats::Subject::from(self.subjects[0].as_str());
                let payload = bytes::Bytes::from(vec![0; self.payload]);
                for _ in 0..count {
                    client.publish(subject.clone(), payload.clone()).await?;
                }
                client.flush().await?;
            }
            Client::Redis(connection) => {
                let (count, channel) = (usize::try_from(count)?, &self.subjects[0]);
                let pipe = |size| pipe(self.payload, std::iter::repeat_n(channel, size));
                run_pipes(connection, &pipe(self.batch), count / self.batch).await?;
                run_pipes(connection, &pipe(count % self.batch), 1).await?;
            }
        }
        Ok(began)
    }

    /// Publishes `count` requests, each with one notification of each queue, as fast as possible,
    /// and waits for all acknowledgements.
    pub(crate) async fn requests(&mut self, count: u64) -> Result<()> {
        match &mut self.client {
            Client::Relay(relay) => {
                let request = NotifyRequest::new(&self.queues);
                relay.stream().await?.send(&request, count).await?;
            }
            Client::Nats(client) => {
                let subject = |subject: &String| async_nats::Subject::from(subject.as_str());
                let subjects: Vec<_> = self.subjects.iter().map(subject).collect();
                let payload = bytes::Bytes::from(vec![0; self.payload]);
                for _ in 0..count {
                    for subject in &subjects {
                        client.publish(subject.clone(), payload.clone()).await?;
                    }
                }
                client.flush().await?;
            }
            Client::Redis(connection) => {
                let pipe = pipe(self.payload, &self.subjects);
                run_pipes(connection, &pipe, usize::try_from(count)?).await?;
            }
        }
        Ok(())
    }
}

impl RelayClient {
    async fn stream(&mut self) -> Result<&mut RawStream> {
        if self.stream.is_none() {
            ensure!(!self.has_tls, "this benchmark has no client with TLS");
            let relay = RawPublisher::open(&self.target, self.credential.as_deref()).await?;
            self.stream = Some(relay.stream(PIPELINE).await?);
        }
        self.stream.as_mut().context("a stream")
    }
}

/// Returns a pipeline of Redis with a message to each channel.
fn pipe<'a>(payload: usize, channels: impl IntoIterator<Item = &'a String>) -> redis::Pipeline {
    let (mut pipe, payload) = (redis::pipe(), vec![0_u8; payload]);
    for channel in channels {
        pipe.publish(channel, &payload).ignore();
    }
    pipe
}

/// Sends a pipeline of Redis this many times, up to [`PIPELINE`] at a time.
async fn run_pipes(
    connection: &MultiplexedConnection,
    pipe: &redis::Pipeline,
    count: usize,
) -> Result<()> {
    stream::iter(0..count)
        .map(|_| {
            let mut connection = connection.clone();
            async move { pipe.exec_async(&mut connection).await }
        })
        .buffer_unordered(PIPELINE)
        .try_for_each(async |()| Ok(()))
        .await?;
    Ok(())
}

/// Returns the NATS subject or Redis channel of a queue.
pub(crate) fn subject(queue: &QueueAddress) -> String {
    format!("{}.{}", queue.storage_account(), queue.queue_name())
}

/// Returns the size in bytes of a notification of `queue` in a request. Messages of a peer have a
/// payload of the same size. It is the sum of tag and length of the entry (2) and of the two names
/// (4), the names, the count (2), and the time of publishing (14).
pub(crate) fn event_size(queue: &QueueAddress) -> usize {
    2 + 4 + queue.storage_account().len() + queue.queue_name().len() + 2 + 14
}
