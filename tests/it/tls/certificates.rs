//! Authorities and certificates, made anew for each test, as files in PEM.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use reveille::{ClientIdentity, ClientTls, ServerTls};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio_rustls::TlsAcceptor;

/// A certificate authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// The files of one side: its certificate, its key, and the other side's authority.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    pub(crate) ca: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).expect("signed").pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, pem }
    }

    /// Returns a certificate for these names, and its key. Names with `://` are URIs.
    pub(crate) fn issue(&self, names: &[&str]) -> (String, String) {
        self.issue_for(names, Duration::from_secs(3600))
    }

    /// Returns a certificate with a single name of this kind, and its key.
    pub(crate) fn issue_as(&self, name: SanType) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.subject_alt_names.push(name);
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        (certificate.pem(), key.serialize_pem())
    }

    /// As [`Authority::issue`], with this life from now on.
    pub(crate) fn issue_for(&self, names: &[&str], life: Duration) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let plain = names.iter().filter(|name| !name.contains("://"));
        let plain: Vec<_> = plain.map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(plain).expect("names");
        let uris = names.iter().filter(|name| name.contains("://"));
        for uri in uris {
            let uri = (*uri).try_into().expect("ASCII");
            params.subject_alt_names.push(SanType::URI(uri));
        }
        params.not_after = time::OffsetDateTime::from(SystemTime::now() + life);
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        (certificate.pem(), key.serialize_pem())
    }

    /// Returns the certificate of a server on this machine, and its key.
    pub(crate) fn server(&self) -> (String, String) {
        self.issue(&["localhost", "127.0.0.1"])
    }

    /// Writes a certificate, its key and the authority `ca` under a name.
    pub(crate) fn write(
        &self,
        directory: &Path,
        name: &str,
        (certificate, key): (String, String),
    ) -> Files {
        let write = |end: &str, text: &str| {
            let path = directory.join(format!("{name}{end}"));
            std::fs::write(&path, text).expect("written");
            path
        };
        Files {
            ca: write("-ca.pem", &self.pem),
            certificate: write(".pem", &certificate),
            key: write(".key", &key),
        }
    }
}

impl Files {
    /// Returns the TLS of a server of HTTP/2 that is not this crate's, with this certificate.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let certificate = CertificateDer::from_pem_file(&self.certificate).expect("PEM");
        let key = PrivateKeyDer::from_pem_file(&self.key).expect("PEM");
        let provider = Arc::new(ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("known")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("a certificate");
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config).into()
    }

    /// Returns the TLS of a server with this certificate, and with `client_ca` for its clients.
    pub(crate) fn server(&self, client_ca: Option<&Self>) -> ServerTls {
        ServerTls {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            client_ca: client_ca.map(|files| files.ca.clone()),
        }
    }

    /// Returns the TLS of a client that trusts this authority.
    pub(crate) fn client(&self, identity: Option<&Self>) -> ClientTls {
        ClientTls {
            ca: Some(self.ca.clone()),
            identity: identity.map(|files| ClientIdentity {
                certificate: files.certificate.clone(),
                key: files.key.clone(),
            }),
        }
    }
}
