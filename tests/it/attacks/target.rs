//! The relay under attack as its peers see it: an address, and TLS where the relay has it.

use std::{
    fmt::Debug,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use reveille::{Client, ClientConfig, ClientTls, Credential};
use rustls::{
    RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpSocket, TcpStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    binary::Binary,
    support::within,
    tls::{Authority, Files},
};

/// What the connections of a trial carry HTTP/2 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    Plain,
    Tls,
}

/// The certificates of a relay with TLS, in files.
#[derive(Debug)]
pub(super) struct Certificates {
    files: Files,
    /// Deletes the files when it is dropped.
    _home: TempDir,
}

/// Connects peers and clients to a relay.
#[derive(Clone)]
pub(crate) struct Target {
    address: SocketAddr,
    url: String,
    tls: Option<(TlsConnector, ClientTls)>,
    /// Shown by regular clients.
    credential: Credential,
}

/// The bytes of one connection, below HTTP/2.
pub(super) trait Stream: AsyncRead + AsyncWrite + Debug + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Debug + Send + Unpin> Stream for T {}

impl Certificates {
    pub(super) fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let authority = Authority::new("relays");
        let files = authority.write(home.path(), "relay", authority.server());
        Self { files, _home: home }
    }

    /// Returns the arguments of a relay with this certificate.
    pub(super) fn arguments(&self) -> [&str; 4] {
        let certificate = self.files.certificate.to_str().expect("UTF-8");
        let key = self.files.key.to_str().expect("UTF-8");
        ["--tls-cert", certificate, "--tls-key", key]
    }

    fn connector(&self) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_file(&self.files.ca).expect("PEM");
        roots.add(ca).expect("a certificate");
        let provider = Arc::new(ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("known")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        // A resumed session would make the handshakes of an attack cheaper for the relay.
        config.resumption = rustls::client::Resumption::disabled();
        Arc::new(config).into()
    }
}

impl Target {
    /// The target of a relay's plain text.
    pub(crate) fn plain(relay: &Binary) -> Self {
        Self::new(relay, None)
    }

    pub(super) fn new(relay: &Binary, certificates: Option<&Certificates>) -> Self {
        Self {
            address: relay.address().parse().expect("an address"),
            url: relay.url(),
            tls: certificates.map(|certificates| {
                let tls = certificates.files.client(None);
                (certificates.connector(), tls)
            }),
            credential: Credential::default(),
        }
    }

    /// Returns the target with another credential of its regular clients.
    pub(super) fn with_credential(self, credential: Credential) -> Self {
        Self { credential, ..self }
    }

    /// Returns a regular client.
    pub(super) fn client(&self) -> Client {
        let tls = self.tls.as_ref().map(|(_, tls)| tls.clone());
        let config = ClientConfig {
            tls: tls.unwrap_or_default(),
            credential: self.credential.clone(),
            // Also where the relay does not listen on loopback.
            insecure: true,
            ..ClientConfig::default()
        };
        Client::with_config(&self.url, config).expect("a URL")
    }

    /// Connects, with the handshake of TLS.
    pub(super) async fn connect(&self) -> Box<dyn Stream> {
        let stream = TcpStream::connect(self.address).await.expect("it listens");
        stream.set_nodelay(true).expect("an open socket");
        self.secure(stream).await.expect("a handshake")
    }

    /// As [`Target::connect`], from the given address.
    pub(super) async fn connect_from(
        &self,
        from: impl Into<IpAddr>,
    ) -> io::Result<Box<dyn Stream>> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from.into(), 0).into())?;
        self.secure(socket.connect(self.address).await?).await
    }

    /// Does the handshake of TLS on a new connection.
    ///
    /// # Panics
    /// With a relay without TLS.
    pub(super) async fn handshake(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let (connector, _) = self.tls.as_ref().expect("a relay with TLS");
        let name = ServerName::try_from("localhost").expect("a name");
        within("a handshake", connector.connect(name, stream)).await
    }

    async fn secure(&self, stream: TcpStream) -> io::Result<Box<dyn Stream>> {
        Ok(match self.tls {
            None => Box::new(stream),
            Some(_) => Box::new(self.handshake(stream).await?),
        })
    }
}
