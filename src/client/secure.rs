//! Connections over TLS: the handshake, and the files that may be renewed.

use std::{fmt, io, sync::Arc};

use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::codegen::{Service, http::Uri};

use super::{ClientTls, resolver::Resolver};
use crate::{
    base::{
        task::blocking,
        text::opaque_debug,
        tls_files::{ClientFiles, RenewedConfig},
    },
    error::Result,
};

/// The files of TLS. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct SecureConnector(Arc<Tls>);

struct Tls {
    files: ClientTls,
    config: RenewedConfig<ClientFiles>,
}

/// HTTP/2 in ALPN (RFC 9113, section 3.2).
const H2: &[u8] = b"h2";

impl SecureConnector {
    /// Reads the files.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) with the file that cannot be read or does
    /// not fit.
    pub(super) fn new(files: &ClientTls) -> Result<Self> {
        let config = RenewedConfig::new(read(files)?)?;
        let files = files.clone();
        Ok(Self(Arc::new(Tls { files, config })))
    }

    /// Returns a connector over this one.
    pub(super) fn over(
        &self,
        tcp: HttpConnector<Resolver>,
    ) -> impl Service<Uri, Response = TokioIo<TlsStream<TcpStream>>, Error = io::Error, Future: Send>
    + Send
    + use<> {
        let tls = Arc::clone(&self.0);
        tower::service_fn(move |uri| connect(Arc::clone(&tls), tcp.clone(), uri))
    }
}

async fn connect(
    tls: Arc<Tls>,
    mut tcp: HttpConnector<Resolver>,
    uri: Uri,
) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let name = ServerName::try_from(host.to_owned()).map_err(failed)?;
    let stream = tcp.call(uri).await.map_err(io::Error::other)?;
    let config = blocking(move || tls.config()).await.map_err(failed)?;
    let connector = TlsConnector::from(config);
    let stream = connector
        .connect(name, stream.into_inner())
        .await
        .map_err(failed)?;
    if stream.get_ref().1.alpn_protocol() != Some(H2) {
        return Err(failed("the server does not offer HTTP/2 by ALPN"));
    }
    Ok(TokioIo::new(stream))
}

impl Tls {
    /// Returns the configuration of what the files hold now.
    fn config(&self) -> Arc<ClientConfig> {
        let renewed = read(&self.files).and_then(|files| self.config.renew(files));
        if let Err(error) = renewed {
            tracing::warn!(%error, "the former TLS files stay in use");
        }
        let mut config = ClientConfig::clone(&self.config.current());
        config.alpn_protocols = vec![H2.to_vec()];
        Arc::new(config)
    }
}

// Without the key.
opaque_debug!(Tls: files);

fn read(files: &ClientTls) -> Result<ClientFiles> {
    let identity = files.identity.as_ref();
    let identity = identity.map(|files| (&*files.certificate, &*files.key));
    ClientFiles::read("", true, files.ca.as_deref(), identity)
}

fn failed(error: impl fmt::Display) -> io::Error {
    io::Error::other(format!("TLS: {error}"))
}
