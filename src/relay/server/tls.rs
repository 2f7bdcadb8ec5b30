//! TLS on the gRPC port: the certificate, the clients' CAs, and their reload.
//!
//! The files are read again every ten seconds. New connections use what they hold then; open ones go
//! on. Files that do not fit together, as in the middle of a renewal, leave the former ones in use.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    version::{TLS12, TLS13},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::{
    base::{sync::lock, task::blocking},
    error::{Error, ErrorKind, Result},
};

/// The files of a server's TLS, all in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// The certificate and its chain, the server's own first.
    pub certificate: PathBuf,
    /// The key of the certificate: PKCS #8, SEC 1 or PKCS #1.
    pub key: PathBuf,
    /// The certificates of the authorities of clients. With it, a client without a certificate of
    /// one of them is refused.
    pub client_ca: Option<PathBuf>,
}

/// The TLS of a server, with the configuration of the files as they were read last.
pub(super) struct Tls {
    files: ServerTls,
    current: Mutex<(Contents, Arc<ServerConfig>)>,
}

/// What the files hold.
#[derive(PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// HTTP/2 in ALPN (RFC 9113, section 3.2).
const H2: &[u8] = b"h2";
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] with the file that cannot be read or does not fit.
    pub(super) fn load(files: ServerTls) -> Result<Self> {
        let contents = Contents::read(&files)?;
        let config = contents.config(&files)?;
        Ok(Self {
            files,
            current: Mutex::new((contents, config)),
        })
    }

    /// Does the handshake. A client that offers other protocols than HTTP/2, or none, is refused.
    ///
    /// # Errors
    /// The reason of the refusal, in TLS's words.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = Arc::clone(&lock(&self.current).1);
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        match stream.get_ref().1.alpn_protocol() == Some(H2) {
            true => Ok(stream),
            false => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the client does not offer HTTP/2 by ALPN",
            )),
        }
    }

    /// Reads the files again and again.
    pub(super) async fn follow(self: Arc<Self>) {
        let mut failing = false;
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let this = Arc::clone(&self);
            let Some(reloaded) = blocking(move || this.reload()).await else {
                return;
            };
            match reloaded {
                Ok(false) => failing = false,
                Ok(true) => {
                    failing = false;
                    let certificate = self.files.certificate.display();
                    tracing::info!(%certificate, "new connections use other TLS files");
                }
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, "the former TLS files stay in use");
                    }
                    failing = true;
                }
            }
        }
    }

    /// Returns whether the files have changed, and applies them.
    fn reload(&self) -> Result<bool> {
        let contents = Contents::read(&self.files)?;
        if lock(&self.current).0 == contents {
            return Ok(false);
        }
        let config = contents.config(&self.files)?;
        *lock(&self.current) = (contents, config);
        Ok(true)
    }
}

impl fmt::Debug for Tls {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.files).finish()
    }
}

impl Contents {
    fn read(files: &ServerTls) -> Result<Self> {
        let client_ca = files.client_ca.as_deref();
        Ok(Self {
            certificate: read("tls_cert", &files.certificate)?,
            key: read("tls_key", &files.key)?,
            client_ca: client_ca
                .map(|path| read("tls_client_ca", path))
                .transpose()?,
        })
    }

    fn config(&self, files: &ServerTls) -> Result<Arc<ServerConfig>> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|error| unfit("tls_cert", &files.certificate, &error))?;
        let builder = match (&self.client_ca, &files.client_ca) {
            (Some(pem), Some(path)) => {
                let unfit = |error: &dyn fmt::Display| unfit("tls_client_ca", path, error);
                let mut roots = RootCertStore::empty();
                for authority in certificates("tls_client_ca", path, pem)? {
                    roots.add(authority).map_err(|error| unfit(&error))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().map_err(|error| unfit(&error))?)
            }
            _ => builder.with_no_client_auth(),
        };
        let chain = certificates("tls_cert", &files.certificate, &self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| unfit("tls_key", &files.key, &"no private key in PEM"))?;
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| unfit("tls_key", &files.key, &error))?;
        config.alpn_protocols = vec![H2.to_vec()];
        if self.client_ca.is_some() {
            // A resumed session would not check the client's certificate again.
            config.session_storage = Arc::new(NoServerSessionStorage {});
        }
        Ok(Arc::new(config))
    }
}

fn read(field: &'static str, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| unfit(field, path, &error))
}

fn certificates(
    field: &'static str,
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(unfit(field, path, &"no certificate in PEM")),
    }
}

fn unfit(field: &'static str, path: &Path, reason: &dyn fmt::Display) -> Error {
    Error::new(
        ErrorKind::Invalid,
        format!("{field}: `{}`: {reason}", path.display()),
    )
}
