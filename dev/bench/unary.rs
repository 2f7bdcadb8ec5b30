//! Single `Notify` requests, many in flight. The library's publisher uses the stream only.
//!
//! This calls the protocol's `Notify` with messages defined here, which have only the needed fields.

use std::{
    io,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use anyhow::{Context as _, Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::uri::{PathAndQuery, Uri};
use hyper_util::rt::TokioIo;
use reveille::QueueAddress;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::{
    Request,
    client::Grpc,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;
use tower::Service;

use super::security::Security;

/// Calls `Notify` on one connection.
#[derive(Debug)]
pub(super) struct UnarySender {
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

/// Connects over TLS, and trusts one authority.
#[derive(Clone)]
struct SecureConnector(TlsConnector);

const METHOD: &str = "/reveille.v1.Relay/Notify";

impl UnarySender {
    /// Connects to the relay at this URL, with its protection.
    pub(super) async fn open(
        target: &str,
        security: &Security,
        queue: &QueueAddress,
    ) -> Result<Self> {
        let authorization = security.credential().map(|credential| {
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
            channel: connect(target, security.ca()).await?,
            authorization: authorization.transpose()?,
            request: NotifyRequest {
                events: vec![event],
            },
        })
    }

    /// Publishes `count` notifications, one in each request and up to `in_flight` at a time. Waits
    /// for all acknowledgements.
    pub(super) async fn requests(&self, count: u64, in_flight: usize) -> Result<()> {
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

async fn connect(target: &str, ca: Option<&Path>) -> Result<Channel> {
    let Some(ca) = ca else {
        return Ok(Endpoint::from_shared(target.to_owned())?.connect().await?);
    };
    let (_, address) = target.split_once("://").context("a URL")?;
    let origin: Uri = target.parse()?;
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?.origin(origin);
    Ok(endpoint
        .connect_with_connector(SecureConnector::new(ca)?)
        .await?)
}

impl SecureConnector {
    fn new(ca: &Path) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(ca)?)?;
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    async fn connect(self, uri: Uri) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
        let authority = uri.authority().ok_or(io::ErrorKind::InvalidInput)?;
        let host = authority.host().to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let stream = TcpStream::connect(authority.as_str()).await?;
        stream.set_nodelay(true)?;
        Ok(TokioIo::new(self.0.connect(name, stream).await?))
    }
}

impl Service<Uri> for SecureConnector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}
