//! Single `Notify` requests, many in flight. The library's publisher uses the stream only.
//!
//! This calls the protocol's `Notify` with messages defined here, which have only the needed fields.

use anyhow::{Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::uri::PathAndQuery;
use reveille::QueueAddress;
use tonic::{
    Request,
    client::Grpc,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

/// Calls `Notify` on one connection.
#[derive(Debug)]
pub(crate) struct UnarySender {
    channel: Channel,
    authorization: Option<MetadataValue<Ascii>>,
    request: NotifyRequest,
}

#[derive(Clone, PartialEq, prost::Message)]
struct NotifyRequest {
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
    accepted: Vec<Accepted>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Accepted {}

const METHOD: &str = "/reveille.v1.Relay/Notify";

impl UnarySender {
    /// Connects to the relay at this URL, which has no TLS.
    pub(crate) async fn open(
        target: &str,
        credential: Option<&str>,
        queue: &QueueAddress,
    ) -> Result<Self> {
        let authorization = credential.map(|credential| {
            let mut value: MetadataValue<Ascii> = format!("Bearer {credential}").parse()?;
            // As the library does: HTTP/2 sends it whole with each request.
            value.set_sensitive(true);
            anyhow::Ok(value)
        });
        let event = WorkDetected {
            storage_account: queue.storage_account().to_owned(),
            queue_name: queue.queue_name().to_owned(),
        };
        Ok(Self {
            channel: Endpoint::from_shared(target.to_owned())?.connect().await?,
            authorization: authorization.transpose()?,
            request: NotifyRequest {
                events: vec![event],
            },
        })
    }

    /// Publishes `count` notifications, one in each request and up to `in_flight` at a time. Waits
    /// for all acknowledgements.
    pub(crate) async fn requests(&self, count: u64, in_flight: usize) -> Result<()> {
        stream::iter(0..count)
            .map(|_| self.one())
            .buffer_unordered(in_flight)
            .try_for_each(async |()| Ok(()))
            .await
    }

    async fn one(&self) -> Result<()> {
        let mut relay = Grpc::new(self.channel.clone());
        let codec: ProstCodec<NotifyRequest, NotifyResponse> = ProstCodec::default();
        let mut request = Request::new(self.request.clone());
        if let Some(value) = &self.authorization {
            request
                .metadata_mut()
                .insert("authorization", value.clone());
        }
        relay.ready().await?;
        let method = PathAndQuery::from_static(METHOD);
        let answer = relay.unary(request, method, codec).await?;
        let accepted = answer.into_inner().accepted.len();
        ensure!(
            accepted == 1,
            "{accepted} acknowledgements of one notification"
        );
        Ok(())
    }
}
