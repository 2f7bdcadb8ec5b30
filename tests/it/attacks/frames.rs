//! HTTP/2 frames by hand, for peers that no library plays.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

/// A connection whose frames are written by hand.
#[derive(Debug)]
pub(super) struct RawPeer(pub(super) TcpStream);

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(super) const HEADERS: u8 = 1;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;

impl RawPeer {
    /// Connects, and sends nothing.
    pub(super) async fn silent(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.expect("it listens"))
    }

    /// Connects, and sends the preface and empty settings.
    pub(super) async fn greeting(address: SocketAddr) -> Self {
        let mut peer = Self::silent(address).await;
        peer.greet().await.expect("taken");
        peer
    }

    /// As [`RawPeer::greeting`], from an address of its own.
    pub(super) async fn greeting_from(from: [u8; 4], address: SocketAddr) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        let mut peer = Self(socket.connect(address).await?);
        peer.greet().await?;
        Ok(peer)
    }

    async fn greet(&mut self) -> io::Result<()> {
        self.0.write_all(PREFACE).await?;
        self.0.write_all(&frame(SETTINGS, 0, 0, &[])).await
    }

    /// Waits until the relay has answered the preface with its settings.
    pub(super) async fn is_answered(&mut self) {
        let mut header = [0; 9];
        self.0.read_exact(&mut header).await.expect("settings");
        assert_eq!(header[3], SETTINGS);
    }

    /// Reads until the relay has closed the connection; returns whether it did within this time.
    pub(super) async fn is_closed_within(&mut self, span: Duration) -> bool {
        let mut bytes = [0; 4096];
        let read = async { while !matches!(self.0.read(&mut bytes).await, Ok(0) | Err(_)) {} };
        tokio::time::timeout(span, read).await.is_ok()
    }
}

/// Encodes a frame (RFC 9113, section 4.1).
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload");
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}
