//! The publisher of one run.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use reveille::{Client, Notification, Publisher, PublisherOptions, QueueAddress};

use super::{Side, broker::Broker, nats, raw_nats, subscribers::nanos};

/// Publishes to one queue, on one connection.
#[derive(Debug)]
pub(super) enum Sender {
    Reveille {
        publisher: Publisher,
        queue: QueueAddress,
    },
    Nats {
        client: async_nats::Client,
        subject: async_nats::Subject,
        payload: usize,
    },
    RawNats {
        connection: raw_nats::Connection,
        subject: String,
        payload: usize,
        /// Messages of one write.
        batch: usize,
    },
}

/// Requests on their way at one time: enough that the relay never waits for the publisher.
const PIPELINE: usize = 64;

impl Sender {
    /// Connects; a burst may hold up to `pending` notifications, `batch` to a request.
    pub(super) async fn open(
        broker: &Broker,
        queue: &QueueAddress,
        batch: usize,
        pending: u64,
    ) -> Result<Self> {
        Ok(match broker.side {
            Side::Reveille => {
                let options = PublisherOptions {
                    conflate: false,
                    batch,
                    pipeline: PIPELINE,
                    max_pending: usize::try_from(pending)?,
                    deadline: Duration::from_secs(60),
                    ..PublisherOptions::default()
                };
                Self::Reveille {
                    publisher: Client::new(&broker.target)?.publisher_with(options),
                    queue: queue.clone(),
                }
            }
            Side::Nats => Self::Nats {
                client: nats::connect(&broker.target).await?,
                subject: subject(queue).into(),
                payload: event_size(queue),
            },
            Side::RawNats => Self::RawNats {
                connection: raw_nats::Connection::open(&broker.target).await?,
                subject: subject(queue),
                payload: event_size(queue),
                batch,
            },
        })
    }

    /// Publishes one notification that carries the time; returns when it was made. Waits for the
    /// relay's acknowledgement; a nats-server gives none.
    pub(super) async fn one(&mut self) -> Result<SystemTime> {
        let now = SystemTime::now();
        match self {
            Self::Reveille { publisher, queue } => {
                let notification = Notification {
                    published_at: Some(now),
                    ..Notification::new(queue.clone())
                };
                publisher.notify(notification).await?;
            }
            Self::Nats {
                client,
                subject,
                payload,
            } => {
                let payload = dated(now, *payload).into();
                client.publish(subject.clone(), payload).await?;
                client.flush().await?;
            }
            Self::RawNats {
                connection,
                subject,
                payload,
                ..
            } => {
                let message = raw_nats::publication(subject, &dated(now, *payload));
                connection.write(&message).await?;
            }
        }
        Ok(now)
    }

    /// Publishes many as fast as it can; returns when it began. What was published may still be on
    /// its way.
    pub(super) async fn all(&mut self, count: u64) -> Result<SystemTime> {
        let began = SystemTime::now();
        match self {
            Self::Reveille { publisher, queue } => {
                let notification = Notification::new(queue.clone());
                for _ in 0..count {
                    publisher.post(notification.clone())?;
                }
                publisher.flush().await?;
            }
            Self::Nats {
                client,
                subject,
                payload,
            } => {
                let payload = bytes::Bytes::from(vec![0; *payload]);
                for _ in 0..count {
                    client.publish(subject.clone(), payload.clone()).await?;
                }
                nats::barrier(client).await?;
            }
            Self::RawNats {
                connection,
                subject,
                payload,
                batch,
            } => {
                let one = raw_nats::publication(subject, &vec![0; *payload]);
                // As many to a write as the relay gets to a request.
                let many = one.repeat(*batch);
                let mut left = usize::try_from(count)?;
                while left > 0 {
                    let now = left.min(*batch);
                    connection.write(&many[..now * one.len()]).await?;
                    left -= now;
                }
                connection.barrier().await?;
            }
        }
        Ok(began)
    }
}

/// Returns a payload of this size that begins with the time.
fn dated(now: SystemTime, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    bytes[..8].copy_from_slice(&nanos(now).to_le_bytes());
    bytes
}

/// Returns the subject that stands for a queue.
pub(super) fn subject(queue: &QueueAddress) -> String {
    format!("{}.{}", queue.storage_account(), queue.queue_name())
}

/// Returns the bytes that a notification of `queue` takes up in a request, which a message of a
/// nats-server is given as its payload: tag and length of the entry (2) and of the two names (4),
/// the names, the count (2), and the time of publishing (14).
pub(super) fn event_size(queue: &QueueAddress) -> usize {
    2 + 4 + queue.storage_account().len() + queue.queue_name().len() + 2 + 14
}
