//! The other side of a connection: its address, and its certificate, which the handshake has verified.

use std::{
    net::SocketAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustls::pki_types::CertificateDer;
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, prelude::FromDer as _};

/// What a client's certificate states.
#[derive(Debug, Default)]
pub(super) struct PeerCertificate {
    /// The DNS names and URIs of its subject alternative names (RFC 5280, section 4.2.1.6).
    pub(super) names: Vec<String>,
    pub(super) expires_at: Option<SystemTime>,
}

/// The other side of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    pub(super) certificate: PeerCertificate,
}

impl PeerCertificate {
    /// Reads the first certificate of a chain; nothing if there is none.
    pub(super) fn of(chain: Option<&[CertificateDer<'_>]>) -> Self {
        let Some(certificate) = chain.and_then(<[_]>::first) else {
            return Self::default();
        };
        // The handshake has parsed it; what cannot be read here has no names, and so no rights.
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
            return Self::default();
        };
        let end = certificate.validity().not_after.timestamp();
        let end = Duration::from_secs(u64::try_from(end).unwrap_or_default());
        Self {
            names: names(&certificate),
            expires_at: UNIX_EPOCH.checked_add(end),
        }
    }
}

impl PeerCertificate {
    /// Returns the time until its end; `None` without one.
    pub(super) fn left(&self, now: SystemTime) -> Option<Duration> {
        let end = self.expires_at?;
        Some(end.duration_since(now).unwrap_or_default())
    }
}

fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(alternative)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let names = alternative.value.general_names.iter();
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::URI(name) => Some((*name).to_owned()),
            _ => None,
        })
        // No rule can name another one.
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_graphic()))
        .collect()
}
