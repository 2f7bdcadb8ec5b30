//! Versions and protocols of the handshake, and peers that do not finish it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, RootCertStore, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    version::{TLS12, TLS13},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::SecureRelay;
use crate::support::{figure, listening, queue, until, within, woken};
use reveille::Notification;

/// HTTP/2's preface and empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The start of a ClientHello that announces 200 bytes.
const HALF_HELLO: &[u8] = &[0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3];

impl SecureRelay {
    fn address(&self) -> SocketAddr {
        self.relay.node().expect("it runs").address()
    }

    /// Does a handshake with this version and these protocols.
    async fn handshake(
        &self,
        version: &'static SupportedProtocolVersion,
        protocols: &[&[u8]],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_file(&self.files.ca).expect("PEM");
        roots.add(ca).expect("a certificate");
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[version])
            .expect("known")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let stream = TcpStream::connect(self.address()).await?;
        let name = ServerName::try_from("localhost").expect("a name");
        let connector = TlsConnector::from(Arc::new(config));
        within("a handshake", connector.connect(name, stream)).await
    }
}

/// Waits until the relay has closed the connection; returns what it sent before.
async fn closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset is an end as well.
    let _ = within("the relay closes it", stream.read_to_end(&mut bytes)).await;
    bytes
}

#[tokio::test]
async fn both_versions_are_served() {
    let relay = SecureRelay::start().await;
    for version in [&TLS12, &TLS13] {
        let mut stream = relay.handshake(version, &[b"h2"]).await.expect("served");
        stream.write_all(PREFACE).await.expect("written");
        let mut frame = [0; 9];
        let read = within("its settings", stream.read_exact(&mut frame)).await;
        read.expect("a frame");
        assert_eq!(frame[3], 4, "{version:?}: SETTINGS");
    }
}

#[tokio::test]
async fn a_client_without_http2_in_alpn_is_refused() {
    let relay = SecureRelay::start().await;
    for protocols in [&[][..], &[&b"http/1.1"[..]]] {
        // With TLS 1.3 the client may learn it after its own end of the handshake.
        if let Ok(mut stream) = relay.handshake(&TLS13, protocols).await {
            let _ = stream.write_all(PREFACE).await;
            let mut answer = Vec::new();
            let _ = within("its end", stream.read_to_end(&mut answer)).await;
            assert_eq!(answer, b"", "{protocols:?}");
        }
    }
    let admin = relay.relay.node().expect("it runs").admin_address();
    let refused = figure(
        admin.expect("a port"),
        "reveille_connections_without_tls_total",
    );
    assert_eq!(refused.await, 2);
}

#[tokio::test]
async fn an_older_version_is_refused_with_an_alert() {
    let relay = SecureRelay::start().await;
    let mut hello = vec![0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 2];
    hello.extend([7; 32]);
    // No session; one cipher of TLS 1.1; no compression; no extensions.
    hello.extend([0, 0, 2, 0, 0x2f, 1, 0]);
    let mut stream = TcpStream::connect(relay.address())
        .await
        .expect("it listens");
    stream.write_all(&hello).await.expect("written");
    let alert = closed(&mut stream).await;
    // A fatal alert (RFC 8446, section 6.2): protocol_version, or handshake_failure because the hello
    // lacks what only later versions have.
    let is_fatal = matches!(alert[..], [0x15, 3, _, 0, 2, 2, 40 | 70]);
    assert!(is_fatal, "{alert:x?}");
}

#[tokio::test]
async fn unfinished_handshakes_have_a_deadline_and_delay_no_wake_up() {
    let relay = SecureRelay::start().await;
    let client = relay.client(None);
    let mut wakes = client
        .subscribe(listening("worker", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let begun = tokio::time::Instant::now();
    let mut peers = Vec::new();
    for number in 0..120 {
        let mut peer = TcpStream::connect(relay.address())
            .await
            .expect("it listens");
        match number % 3 {
            0 => {}
            1 => peer.write_all(HALF_HELLO).await.expect("written"),
            _ => peer.write_all(&HALF_HELLO[..1]).await.expect("written"),
        }
        peers.push(peer);
    }
    let publisher = client.publisher("test");
    publisher
        .notify(Notification::new(queue("acct/orders")))
        .await
        .expect("counted");
    woken(&mut wakes).await;
    assert!(begun.elapsed() < Duration::from_secs(4), "while they wait");
    // One byte a second does not extend the deadline.
    let slow = peers.len() - 1;
    let mut dripping = peers.swap_remove(slow);
    let drip = async {
        while dripping.write_all(&[3]).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let all = async {
        for peer in &mut peers {
            closed(peer).await;
        }
    };
    let both = async { tokio::join!(drip, all) };
    let ended = tokio::time::timeout(Duration::from_secs(12), both).await;
    ended.expect("closed by the deadline of handshakes");
    until("all are counted", async || {
        let admin = relay.relay.node().expect("it runs").admin_address();
        figure(admin.expect("a port"), "reveille_connections_silent_total").await >= 120
    })
    .await;
}

#[tokio::test]
async fn garbage_in_place_of_a_handshake_is_closed_at_once() {
    let relay = SecureRelay::start().await;
    for garbage in [PREFACE, &[0; 64], b"GET / HTTP/1.1\r\n\r\n", &[0xff; 4096]] {
        let mut stream = TcpStream::connect(relay.address())
            .await
            .expect("it listens");
        // The relay may close it before all is written.
        let _ = stream.write_all(garbage).await;
        let ended = tokio::time::timeout(Duration::from_secs(4), closed(&mut stream)).await;
        let answer = ended.expect("before the deadline");
        assert!(answer.len() <= 7, "an alert at most: {answer:x?}");
    }
}
