//! TLS on the gRPC port: the certificate, the clients' CAs and their reload, and what the certificate of a
//! client states.
//!
//! The files are read again every ten seconds. New connections use what they hold then; open ones go
//! on. Files that do not fit together, as in the middle of a renewal, leave the former ones in use.

use std::{
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::CertificateDer,
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    version::{TLS12, TLS13},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use x509_parser::{
    certificate::X509Certificate, extensions::GeneralName, prelude::FromDer as _, time::ASN1Time,
};

use crate::{
    base::{
        file::note_open,
        sync::lock,
        task::blocking,
        text::opaque_debug,
        tls_files::{RenewedConfig, TlsFile, TlsFiles},
    },
    error::Result,
    relay::auth::{is_host_name, is_uri},
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
pub(crate) struct Tls {
    files: ServerTls,
    config: RenewedConfig<Contents>,
    /// Why the files cannot be read again.
    stale: Mutex<Option<String>>,
}

/// The files as they were read.
#[derive(PartialEq)]
struct Contents {
    certificate: TlsFile,
    key: TlsFile,
    client_ca: Option<TlsFile>,
}

/// HTTP/2 in ALPN (RFC 9113, section 3.2).
const H2: &[u8] = b"h2";

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] with the file that cannot be read or does not fit.
    pub(crate) fn load(files: ServerTls) -> Result<Self> {
        if let Some(note) = note_open(&files.key, true) {
            tracing::warn!("{note}");
        }
        Ok(Self {
            config: RenewedConfig::new(Contents::read(&files)?)?,
            files,
            stale: Mutex::default(),
        })
    }

    /// Returns why the files cannot be read again.
    pub(crate) fn stale(&self) -> Option<String> {
        lock(&self.stale).clone()
    }

    /// Returns the end of the certificate, if it can be read.
    pub(crate) fn ends_at(&self) -> Option<SystemTime> {
        let certificates = self
            .config
            .with_files(|files| files.certificate.certificates().ok())?;
        let (_, certificate) = X509Certificate::from_der(certificates.first()?).ok()?;
        time(certificate.validity().not_after)
    }

    /// Does the handshake. A client that offers other protocols than HTTP/2, or none, is refused.
    ///
    /// # Errors
    /// The reason of the refusal, in TLS's words.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let acceptor = TlsAcceptor::from(self.config.current());
        let stream = acceptor.accept(stream).await?;
        if stream.get_ref().1.alpn_protocol() == Some(H2) {
            Ok(stream)
        } else {
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the client does not offer HTTP/2 by ALPN",
            ))
        }
    }

    /// Reads the files again; a failure is logged.
    pub(crate) async fn refresh(self: Arc<Self>) {
        let this = Arc::clone(&self);
        let reload = move || this.config.renew(Contents::read(&this.files)?);
        let failure = match blocking(reload).await {
            Ok(Err(error)) => Some(error.to_string()),
            Ok(Ok(true)) => {
                let certificate = self.files.certificate.display();
                tracing::info!(%certificate, "new connections use other TLS files");
                None
            }
            Ok(Ok(false)) | Err(_) => None,
        };
        let former = std::mem::replace(&mut *lock(&self.stale), failure.clone());
        if let Some(error) = failure.filter(|error| former.as_ref() != Some(error)) {
            tracing::warn!(error, "the former TLS files stay in use");
        }
    }
}

// Without the key.
opaque_debug!(Tls: files);

impl Contents {
    fn read(files: &ServerTls) -> Result<Self> {
        let read_ca = |path: &PathBuf| TlsFile::read("tls_client_ca", path);
        Ok(Self {
            certificate: TlsFile::read("tls_cert", &files.certificate)?,
            key: TlsFile::read("tls_key", &files.key)?,
            client_ca: files.client_ca.as_ref().map(read_ca).transpose()?,
        })
    }
}

impl TlsFiles for Contents {
    type Config = ServerConfig;

    fn config(&self) -> Result<ServerConfig> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|error| self.certificate.unfit(error))?;
        let builder = match &self.client_ca {
            Some(ca) => {
                let roots = Arc::new(ca.roots()?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| ca.unfit(error))?)
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(self.certificate.certificates()?, self.key.key()?)
            .map_err(|error| self.key.unfit(error))?;
        config.alpn_protocols = vec![H2.to_vec()];
        if self.client_ca.is_some() {
            // A resumed session would not check the client's certificate again.
            config.session_storage = Arc::new(NoServerSessionStorage {});
        }
        Ok(config)
    }
}

/// What a client's certificate states.
#[derive(Debug, Default)]
pub(crate) struct PeerCertificate {
    /// The DNS names and URIs of its subject alternative names (RFC 5280, section 4.2.1.6). No DNS name has the
    /// form of a URI, nor the reverse.
    pub(crate) names: Vec<String>,
    pub(crate) expires_at: Option<SystemTime>,
}

/// The other side of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) certificate: PeerCertificate,
    /// Whether the last credential of the connection could be a guess.
    pub(crate) has_failed: AtomicBool,
}

impl Peer {
    pub(crate) fn new(address: SocketAddr, certificate: PeerCertificate) -> Self {
        Self {
            address,
            certificate,
            has_failed: AtomicBool::new(false),
        }
    }

    /// A peer of the admin port. A connection to it is not counted by address, so its first signature
    /// is.
    pub(crate) fn of_admin_port(address: SocketAddr) -> Self {
        Self {
            address,
            certificate: PeerCertificate::default(),
            has_failed: AtomicBool::new(true),
        }
    }
}

impl PeerCertificate {
    /// Reads the first certificate of a chain; nothing if there is none.
    pub(crate) fn of(chain: Option<&[CertificateDer<'_>]>) -> Self {
        let Some(certificate) = chain.and_then(<[_]>::first) else {
            return Self::default();
        };
        // The handshake has parsed it; what cannot be read here has no names, and so no rights.
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
            return Self::default();
        };
        Self {
            names: names(&certificate),
            expires_at: time(certificate.validity().not_after),
        }
    }

    /// Returns the time until its end; `None` without one.
    pub(crate) fn left(&self, now: SystemTime) -> Option<Duration> {
        let end = self.expires_at?;
        Some(end.duration_since(now).unwrap_or_default())
    }
}

fn time(at: ASN1Time) -> Option<SystemTime> {
    let seconds = u64::try_from(at.timestamp()).unwrap_or_default();
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(alternative)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let names = alternative.value.general_names.iter();
    names
        .filter_map(|name| match name {
            // The constraints of an authority's DNS names do not bind its URIs (RFC 5280, section
            // 4.2.1.10), so that neither kind must pass for the other.
            GeneralName::DNSName(name) if is_host_name(name) => Some((*name).to_owned()),
            GeneralName::URI(name) if is_uri(name) => Some((*name).to_owned()),
            _ => None,
        })
        .collect()
}
