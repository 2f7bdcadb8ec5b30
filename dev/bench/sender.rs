//! The publisher of one run.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use futures_util::{StreamExt, TryStreamExt, stream};
use reveille::{Notification, Publisher, PublisherOptions, QueueAddress};

use super::{
    Server,
    broker::Broker,
    nats,
    raw::{Connection, Protocol},
    wall_nanos::nanos,
};

/// Publishes to a fixed set of queues on one connection.
#[derive(Debug)]
pub(super) enum Sender {
    Reveille {
        publisher: Publisher,
        queues: Vec<QueueAddress>,
    },
    Nats {
        client: async_nats::Client,
        subjects: Vec<async_nats::Subject>,
        payload: usize,
    },
    Raw(RawSender),
}

/// Publishes on a plain connection.
#[derive(Debug)]
pub(super) struct RawSender {
    protocol: Protocol,
    connection: Connection,
    subject: String,
    payload: usize,
    /// Messages of one write, and their bytes: one to each queue in turn.
    batch: usize,
    write: Vec<u8>,
}

/// Maximum number of requests in flight: enough that the relay never waits for the publisher.
pub(super) const PIPELINE: usize = 64;

impl Sender {
    /// Connects. A burst has up to `pending` notifications, `batch` in a request. All names of
    /// queues have the same length.
    pub(super) async fn open(
        broker: &Broker,
        queues: &[QueueAddress],
        batch: usize,
        pending: u64,
    ) -> Result<Self> {
        let payload = event_size(queues.first().context("a queue")?);
        Ok(match broker.server {
            Server::Relay(_) => {
                let options = PublisherOptions {
                    conflate: false,
                    batch,
                    pipeline: PIPELINE,
                    max_pending: usize::try_from(pending)?,
                    deadline: Duration::from_secs(60),
                    ..PublisherOptions::default()
                };
                Self::Reveille {
                    publisher: broker.client()?.publisher_with(options),
                    queues: queues.to_vec(),
                }
            }
            Server::Nats => Self::Nats {
                client: nats::connect(&broker.target).await?,
                subjects: subjects(queues).into_iter().map(Into::into).collect(),
                payload,
            },
            Server::RawNats => {
                Self::Raw(RawSender::open(Protocol::Nats, broker, queues, batch).await?)
            }
            Server::Redis => {
                Self::Raw(RawSender::open(Protocol::Redis, broker, queues, batch).await?)
            }
            Server::Rabbitmq | Server::Cluster | Server::FarCluster | Server::ClusterOfOne => {
                bail!("{} takes no clients", broker.server)
            }
        })
    }

    /// Publishes one notification of the first queue with the current time, and returns that time.
    /// Waits for the acknowledgement of the relay or of Redis; a nats-server sends none.
    pub(super) async fn one(&mut self) -> Result<SystemTime> {
        let now = SystemTime::now();
        match self {
            Self::Reveille { publisher, queues } => {
                let notification = Notification {
                    published_at: Some(now),
                    ..Notification::new(queues[0].clone())
                };
                publisher.notify(notification).await?;
            }
            Self::Nats {
                client,
                subjects,
                payload,
            } => {
                let payload = dated(now, *payload).into();
                client.publish(subjects[0].clone(), payload).await?;
                client.flush().await?;
            }
            Self::Raw(raw) => {
                let payload = dated(now, raw.payload);
                let message = raw.protocol.publication(&raw.subject, &payload);
                raw.connection.publish(&message, 1).await?;
                raw.connection.answered().await?;
            }
        }
        Ok(now)
    }

    /// Publishes many notifications of the first queue as fast as possible; returns the time of the
    /// start. Waits for all acknowledgements, but not for the subscribers.
    pub(super) async fn all(&mut self, count: u64) -> Result<SystemTime> {
        let began = SystemTime::now();
        match self {
            Self::Reveille { publisher, queues } => {
                let notification = Notification::new(queues[0].clone());
                for _ in 0..count {
                    publisher.post(notification.clone())?;
                }
                publisher.flush().await?;
            }
            Self::Nats {
                client,
                subjects,
                payload,
            } => {
                let payload = bytes::Bytes::from(vec![0; *payload]);
                for _ in 0..count {
                    client.publish(subjects[0].clone(), payload.clone()).await?;
                }
                nats::barrier(client).await?;
            }
            Self::Raw(raw) => raw.all(usize::try_from(count)?).await?,
        }
        Ok(began)
    }

    /// Publishes one notification of each queue in one request, and waits for its acknowledgement.
    pub(super) async fn request(&mut self) -> Result<()> {
        match self {
            Self::Reveille { publisher, queues } => {
                publisher.notify_all(of_each(queues)).await?;
            }
            Self::Nats {
                client,
                subjects,
                payload,
            } => {
                let payload = bytes::Bytes::from(vec![0; *payload]);
                for subject in subjects {
                    client.publish(subject.clone(), payload.clone()).await?;
                }
                client.flush().await?;
            }
            Self::Raw(raw) => {
                raw.connection.publish(&raw.write, raw.batch).await?;
                raw.connection.answered().await?;
            }
        }
        Ok(())
    }

    /// Publishes `count` requests, each with one notification of each queue, as fast as possible,
    /// and waits for all acknowledgements.
    pub(super) async fn requests(&mut self, count: u64) -> Result<()> {
        match self {
            Self::Reveille { publisher, queues } => {
                // Twice as many callers as requests in flight, so that a next request always waits.
                let (publisher, queues) = (&*publisher, &*queues);
                stream::iter(0..count)
                    .map(|_| publisher.notify_all(of_each(queues)))
                    .buffer_unordered(2 * PIPELINE)
                    .try_for_each(async |_| Ok(()))
                    .await?;
            }
            Self::Nats {
                client,
                subjects,
                payload,
            } => {
                let payload = bytes::Bytes::from(vec![0; *payload]);
                for _ in 0..count {
                    for subject in &*subjects {
                        client.publish(subject.clone(), payload.clone()).await?;
                    }
                }
                nats::barrier(client).await?;
            }
            Self::Raw(raw) => {
                let count = usize::try_from(count)? * raw.batch;
                raw.all(count).await?;
            }
        }
        Ok(())
    }
}

impl RawSender {
    async fn open(
        protocol: Protocol,
        broker: &Broker,
        queues: &[QueueAddress],
        batch: usize,
    ) -> Result<Self> {
        let payload = event_size(&queues[0]);
        let subjects = subjects(queues);
        let publication = |subject: &String| protocol.publication(subject, &vec![0; payload]);
        let write = subjects.iter().cycle().take(batch).flat_map(publication);
        Ok(Self {
            protocol,
            connection: Connection::open(protocol, &broker.target).await?,
            write: write.collect(),
            subject: subjects[0].clone(),
            payload,
            batch,
        })
    }

    /// Publishes `count` messages, with the batch size of the relay's requests in each write.
    async fn all(&mut self, count: usize) -> Result<()> {
        let one = self.write.len() / self.batch;
        let mut left = count;
        while left > 0 {
            let now = left.min(self.batch);
            let bytes = &self.write[..now * one];
            self.connection.publish(bytes, now).await?;
            left -= now;
        }
        self.connection.barrier().await
    }
}

/// Returns one notification of each queue.
fn of_each(queues: &[QueueAddress]) -> Vec<Notification> {
    queues.iter().cloned().map(Notification::new).collect()
}

/// Returns a payload of this size that starts with the time.
fn dated(now: SystemTime, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    bytes[..8].copy_from_slice(&nanos(now).to_le_bytes());
    bytes
}

/// Returns the NATS subject or Redis channel of each queue.
pub(super) fn subjects(queues: &[QueueAddress]) -> Vec<String> {
    let subject =
        |queue: &QueueAddress| format!("{}.{}", queue.storage_account(), queue.queue_name());
    queues.iter().map(subject).collect()
}

/// Returns the size in bytes of a notification of `queue` in a request. Messages of a peer have a
/// payload of the same size. It is the sum of tag and length of the entry (2) and of the two names
/// (4), the names, the count (2), and the time of publishing (14).
pub(super) fn event_size(queue: &QueueAddress) -> usize {
    2 + 4 + queue.storage_account().len() + queue.queue_name().len() + 2 + 14
}
