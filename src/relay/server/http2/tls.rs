//! TLS on the gRPC port: the certificate, the clients' CAs and their reload, and what the certificate of a
//! client states.
//!
//! The files are read again every ten seconds. New connections use what they hold then; open ones go
//! on. Files that do not fit together, as in the middle of a renewal, leave the former ones in use. A
//! certificate that has ended or ends soon is logged.

use std::{
    fmt, io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prost_types::Timestamp;
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
        clock::wall,
        sync::lock,
        task::blocking,
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

/// A renewal is late when less than this is left of a certificate, or than a sixth of its life.
const SOON: Duration = Duration::from_secs(14 * 24 * 60 * 60);
/// HTTP/2 in ALPN (RFC 9113, section 3.2).
const H2: &[u8] = b"h2";
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] with the file that cannot be read or does not fit.
    pub(crate) fn load(files: ServerTls) -> Result<Self> {
        Ok(Self {
            config: RenewedConfig::new(Contents::read(&files)?)?,
            files,
            stale: Mutex::default(),
        })
    }

    /// Returns why the files cannot be used as they are: they cannot be read again, or the certificate
    /// has no time left.
    pub(crate) fn failures(&self) -> Vec<String> {
        let stale = lock(&self.stale).clone();
        stale.into_iter().chain(self.problem_of_time()).collect()
    }

    /// Returns whether the files cannot be read again.
    pub(crate) fn is_stale(&self) -> bool {
        lock(&self.stale).is_some()
    }

    /// Returns the end of the certificate, if it can be read.
    pub(crate) fn ends_at(&self) -> Option<SystemTime> {
        Some(self.config.with_files(Contents::life)?.1)
    }

    /// Returns why clients refuse the certificate, or soon will.
    fn problem_of_time(&self) -> Option<String> {
        let (start, end) = self.config.with_files(Contents::life)?;
        let (what, at) = problem_of_time(start, end, wall())?;
        let (path, at) = (self.files.certificate.display(), Timestamp::from(at));
        Some(format!("the certificate `{path}` {what} {at}"))
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

    /// Reads the files again and again.
    pub(crate) async fn follow(self: Arc<Self>) {
        if self.config.with_files(|files| files.key.is_public) {
            let key = self.files.key.display();
            tracing::warn!("the key `{key}` can be read by every user of the machine");
        }
        let mut known = None;
        loop {
            let problem = self.problem_of_time();
            if let Some(text) = problem.as_ref().filter(|_| problem != known) {
                tracing::warn!("{text}: clients refuse a certificate outside of its time");
            }
            known = problem;
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let this = Arc::clone(&self);
            let reload = move || this.config.renew(Contents::read(&this.files)?);
            let Some(reloaded) = blocking(reload).await else {
                return;
            };
            let failure = match reloaded {
                Ok(is_changed) => {
                    if is_changed {
                        let certificate = self.files.certificate.display();
                        tracing::info!(%certificate, "new connections use other TLS files");
                    }
                    None
                }
                Err(error) => Some(error.to_string()),
            };
            let former = std::mem::replace(&mut *lock(&self.stale), failure.clone());
            if let (Some(error), None) = (failure, former) {
                tracing::warn!(error, "the former TLS files stay in use");
            }
        }
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
        let read_ca = |path: &PathBuf| TlsFile::read("tls_client_ca", path);
        Ok(Self {
            certificate: TlsFile::read("tls_cert", &files.certificate)?,
            key: TlsFile::read("tls_key", &files.key)?,
            client_ca: files.client_ca.as_ref().map(read_ca).transpose()?,
        })
    }

    /// Returns the start and the end of the server's certificate.
    fn life(&self) -> Option<(SystemTime, SystemTime)> {
        validity(self.certificate.certificates().ok()?.first()?)
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

/// Returns what is wrong with the time of a certificate, and when that begins or ends.
fn problem_of_time(
    start: SystemTime,
    end: SystemTime,
    now: SystemTime,
) -> Option<(&'static str, SystemTime)> {
    let life = end.duration_since(start).unwrap_or_default();
    match end.duration_since(now) {
        _ if now < start => Some(("is valid from", start)),
        Ok(left) if left > SOON.min(life / 6) => None,
        Ok(left) if !left.is_zero() => Some(("ends soon, at", end)),
        _ => Some(("has ended at", end)),
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
}

impl Peer {
    pub(crate) fn new(address: SocketAddr, certificate: PeerCertificate) -> Self {
        Self {
            address,
            certificate,
        }
    }

    /// A peer of the admin port. A connection to it is not counted by address, so its first signature is.
    pub(crate) fn of_admin_port(address: SocketAddr) -> Self {
        Self {
            address,
            certificate: PeerCertificate::default(),
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

/// Returns the start and the end of a certificate; `None` if it cannot be read.
fn validity(certificate: &CertificateDer<'_>) -> Option<(SystemTime, SystemTime)> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let validity = certificate.validity();
    Some((time(validity.not_before)?, time(validity.not_after)?))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_ends_soon_in_its_last_sixth_or_fortnight() {
        let hours = |count: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(3600 * count);
        let soon = Some("ends soon, at");
        for (from, to, now, expected) in [
            (100, 124, 99, Some("is valid from")),
            (100, 124, 100, None),
            (100, 124, 119, None),
            (100, 124, 120, soon),
            (100, 124, 124, Some("has ended at")),
            (100, 124, 1000, Some("has ended at")),
            (0, 24 * 365, 24 * 350, None),
            (0, 24 * 365, 24 * 351, soon),
        ] {
            let found = problem_of_time(hours(from), hours(to), hours(now));
            assert_eq!(found.map(|(what, _)| what), expected, "{now}");
        }
    }
}
