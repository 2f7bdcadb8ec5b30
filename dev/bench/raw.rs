//! Requests as they are: unary `Notify` calls and one `NotifyStream`, with many requests in flight. The
//! library's publisher uses the stream only, and conflates what it has not sent yet.
//!
//! The messages are defined here, with the needed fields only.

use anyhow::{Context as _, Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::uri::PathAndQuery;
use reveille::QueueAddress;
use tokio::sync::mpsc;
use tonic::{
    Request, Streaming,
    client::Grpc,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

/// A connection to a relay without TLS.
#[derive(Debug)]
pub(crate) struct RawPublisher {
    channel: Channel,
    authorization: Option<MetadataValue<Ascii>>,
}

/// An open `NotifyStream`.
#[derive(Debug)]
pub(crate) struct RawStream {
    requests: mpsc::Sender<NotifyRequest>,
    answers: Streaming<NotifyResponse>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NotifyRequest {
    #[prost(message, repeated, tag = "1")]
    events: Vec<WorkDetected>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct WorkDetected {
    #[prost(string, tag = "1")]
    storage_account: String,
    #[prost(string, tag = "2")]
    queue_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct NotifyResponse {
    #[prost(message, repeated, tag = "1")]
    results: Vec<EventResult>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EventResult {
    #[prost(message, optional, tag = "3")]
    error: Option<Refusal>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Refusal {}

type Codec = ProstCodec<NotifyRequest, NotifyResponse>;

impl NotifyRequest {
    /// One event of each of these queues.
    pub(crate) fn new<'a>(queues: impl IntoIterator<Item = &'a QueueAddress>) -> Self {
        let event = |queue: &QueueAddress| WorkDetected {
            storage_account: queue.storage_account().to_owned(),
            queue_name: queue.queue_name().to_owned(),
        };
        Self {
            events: queues.into_iter().map(event).collect(),
        }
    }

    fn check(&self, answer: &NotifyResponse) -> Result<()> {
        let accepted = answer.results.iter().filter(|one| one.error.is_none());
        let (events, accepted) = (self.events.len(), accepted.count());
        ensure!(
            accepted == events,
            "{accepted} acknowledgements of {events} notifications"
        );
        Ok(())
    }
}

impl RawPublisher {
    /// Connects to the relay at this URL, which has no TLS.
    pub(crate) async fn open(target: &str, credential: Option<&str>) -> Result<Self> {
        let authorization = credential.map(|credential| {
            let mut value: MetadataValue<Ascii> = format!("Bearer {credential}").parse()?;
            // As the library does: HTTP/2 sends it whole with each request.
            value.set_sensitive(true);
            anyhow::Ok(value)
        });
        Ok(Self {
            channel: Endpoint::from_shared(target.to_owned())?.connect().await?,
            authorization: authorization.transpose()?,
        })
    }

    /// Calls `Notify` `count` times, up to `in_flight` at a time. Waits for all acknowledgements.
    pub(crate) async fn unary(
        &self,
        request: &NotifyRequest,
        count: u64,
        in_flight: usize,
    ) -> Result<()> {
        stream::iter(0..count)
            .map(|_| self.one(request))
            .buffer_unordered(in_flight)
            .try_for_each(async |()| Ok(()))
            .await
    }

    async fn one(&self, request: &NotifyRequest) -> Result<()> {
        let mut relay = Grpc::new(self.channel.clone());
        relay.ready().await?;
        let method = PathAndQuery::from_static("/reveille.v1.Relay/Notify");
        let answer = relay
            .unary(self.authorized(request.clone()), method, Codec::default())
            .await?;
        request.check(answer.get_ref())
    }

    /// Opens a stream with room for so many requests in flight.
    pub(crate) async fn stream(&self, in_flight: usize) -> Result<RawStream> {
        let (requests, receiver) = mpsc::channel(in_flight);
        let receiver = stream::unfold(receiver, async |mut receiver| {
            let request = receiver.recv().await?;
            Some((request, receiver))
        });
        let mut relay = Grpc::new(self.channel.clone());
        relay.ready().await?;
        let method = PathAndQuery::from_static("/reveille.v1.Relay/NotifyStream");
        let answer = relay
            .streaming(self.authorized(receiver), method, Codec::default())
            .await?;
        Ok(RawStream {
            requests,
            answers: answer.into_inner(),
        })
    }

    fn authorized<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(value) = &self.authorization {
            request
                .metadata_mut()
                .insert("authorization", value.clone());
        }
        request
    }
}

impl RawStream {
    /// Sends the request `count` times, and waits for all acknowledgements.
    pub(crate) async fn send(&mut self, request: &NotifyRequest, count: u64) -> Result<()> {
        let in_flight = self.requests.max_capacity() as u64;
        let (mut sent, mut answered) = (0, 0);
        while answered < count {
            while sent < count && sent - answered < in_flight {
                self.requests.send(request.clone()).await?;
                sent += 1;
            }
            let answer = self.answers.message().await?;
            request.check(&answer.context("the stream has ended")?)?;
            answered += 1;
        }
        Ok(())
    }
}
