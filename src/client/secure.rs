//! Connections over TLS: the handshake, and the files that may be renewed.

use std::{
    fmt, io,
    sync::{Arc, Mutex},
};

use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use rustls::{ClientConfig, crypto::ring, pki_types::ServerName};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::codegen::{Service, http::Uri};

use super::{ClientIdentity, ClientTls, resolver::Resolver};
use crate::{
    base::{pem::PemFile, sync::lock, task::blocking},
    error::{Error, Result},
};

/// The files of TLS. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct SecureConnector(Arc<Tls>);

struct Tls {
    files: ClientTls,
    /// What the files held when they were read last, and its configuration.
    current: Mutex<(Contents, Arc<ClientConfig>)>,
}

#[derive(PartialEq, Eq)]
struct Contents {
    ca: Option<PemFile>,
    identity: Option<Identity>,
}

#[derive(PartialEq, Eq)]
struct Identity {
    certificate: PemFile,
    key: PemFile,
}

/// HTTP/2 in ALPN (RFC 9113, section 3.2).
const H2: &[u8] = b"h2";

impl SecureConnector {
    /// Reads the files.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) with the file that cannot be read or does
    /// not fit.
    pub(super) fn new(files: ClientTls) -> Result<Self> {
        let contents = Contents::read(&files)?;
        let config = contents.config()?;
        let current = Mutex::new((contents, config));
        Ok(Self(Arc::new(Tls { files, current })))
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
    let config = blocking(move || tls.config()).await;
    let connector = TlsConnector::from(config.ok_or_else(|| failed("the runtime ends"))?);
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
    /// Returns the configuration of what the files hold now. Files that cannot be read or do not
    /// fit together, as in the middle of a renewal, leave the former one in use.
    fn config(&self) -> Arc<ClientConfig> {
        let renewed = Contents::read(&self.files).and_then(|contents| {
            if lock(&self.current).0 == contents {
                return Ok(None);
            }
            let config = contents.config()?;
            Ok(Some((contents, config)))
        });
        let mut current = lock(&self.current);
        match renewed {
            Ok(Some(renewed)) => *current = renewed,
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "the former TLS files stay in use"),
        }
        Arc::clone(&current.1)
    }
}

impl fmt::Debug for Tls {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.files).finish()
    }
}

impl Contents {
    fn read(files: &ClientTls) -> Result<Self> {
        let read_identity = |files: &ClientIdentity| {
            Ok::<_, Error>(Identity {
                certificate: PemFile::read("cert", &files.certificate)?,
                key: PemFile::read("key", &files.key)?,
            })
        };
        Ok(Self {
            ca: files
                .ca
                .as_deref()
                .map(|path| PemFile::read("ca", path))
                .transpose()?,
            identity: files.identity.as_ref().map(read_identity).transpose()?,
        })
    }

    fn config(&self) -> Result<Arc<ClientConfig>> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::invalid("tls", error))?;
        let builder = match &self.ca {
            Some(ca) => builder.with_root_certificates(ca.roots()?),
            None => builder.with_platform_verifier().map_err(|error| {
                let rule = format_args!("the system's authorities cannot be read: {error}");
                Error::invalid("ca", rule)
            })?,
        };
        let mut config = match &self.identity {
            Some(Identity { certificate, key }) => builder
                .with_client_auth_cert(certificate.certificates()?, key.key()?)
                .map_err(|error| key.unfit(error))?,
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![H2.to_vec()];
        Ok(Arc::new(config))
    }
}

fn failed(error: impl fmt::Display) -> io::Error {
    io::Error::other(format!("TLS: {error}"))
}
