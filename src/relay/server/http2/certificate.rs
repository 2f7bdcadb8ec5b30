//! The other side of a connection: its address, and its certificate, which the handshake has verified.

use std::{
    net::SocketAddr,
    sync::atomic::AtomicBool,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustls::pki_types::CertificateDer;
use x509_parser::{
    certificate::X509Certificate, extensions::GeneralName, prelude::FromDer as _, time::ASN1Time,
};

use crate::relay::auth::{is_host_name, is_uri};

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
    /// A signature of a credential was wrong, and none was right since then.
    pub(crate) has_bad_signature: AtomicBool,
}

impl Peer {
    pub(crate) fn new(address: SocketAddr, certificate: PeerCertificate) -> Self {
        Self {
            address,
            certificate,
            has_bad_signature: AtomicBool::new(false),
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
}

impl PeerCertificate {
    /// Returns the time until its end; `None` without one.
    pub(crate) fn left(&self, now: SystemTime) -> Option<Duration> {
        let end = self.expires_at?;
        Some(end.duration_since(now).unwrap_or_default())
    }
}

/// Returns the start and the end of a certificate; `None` if it cannot be read.
pub(super) fn validity(certificate: &CertificateDer<'_>) -> Option<(SystemTime, SystemTime)> {
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
