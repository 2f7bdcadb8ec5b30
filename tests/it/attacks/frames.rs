//! Handwritten HTTP/2 frames, for peers that no library implements.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::support::within;

/// A connection with handwritten frames.
#[derive(Debug)]
pub(super) struct RawPeer(pub(super) TcpStream);

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const ACK: u8 = 1;
pub(super) const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

impl RawPeer {
    /// Connects, and sends nothing.
    pub(super) async fn silent(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("it listens");
        stream.set_nodelay(true).expect("an open socket");
        Self(stream)
    }

    /// Connects, and sends the preface and empty settings.
    pub(super) async fn greeting(address: SocketAddr) -> Self {
        let mut peer = Self::silent(address).await;
        peer.greet().await.expect("taken");
        peer
    }

    /// As [`RawPeer::greeting`], from the given address.
    pub(super) async fn greeting_from(from: [u8; 4], address: SocketAddr) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        let mut peer = Self(socket.connect(address).await?);
        peer.greet().await?;
        Ok(peer)
    }

    /// Sends the preface and empty settings.
    pub(super) async fn greet(&mut self) -> io::Result<()> {
        self.0.write_all(PREFACE).await?;
        self.0.write_all(&frame(SETTINGS, 0, 0, &[])).await
    }

    /// Waits until the relay has answered the preface with its settings.
    pub(super) async fn is_answered(&mut self) {
        let mut header = [0; 9];
        self.0.read_exact(&mut header).await.expect("settings");
        assert_eq!(header[3], SETTINGS);
    }

    /// Begins a gRPC request without its body.
    pub(super) async fn open(&mut self, stream: u32, path: &str) {
        self.send_headers(stream, 0, &request_head(b"\x83", path))
            .await;
    }

    /// Sends a request that is not gRPC and has no body.
    pub(super) async fn get(&mut self, stream: u32, path: &str) {
        self.send_headers(stream, END_STREAM, &request_head(b"\x82", path))
            .await;
    }

    async fn send_headers(&mut self, stream: u32, flags: u8, block: &[u8]) {
        let headers = frame(HEADERS, flags | END_HEADERS, stream, block);
        self.0.write_all(&headers).await.expect("taken");
    }

    /// Reads the next frame other than PING; returns its type and its payload.
    pub(super) async fn next_frame(&mut self) -> (u8, Vec<u8>) {
        loop {
            match self.read_frame().await {
                // The relay ends a connection that does not answer a PING.
                (PING, payload) => {
                    let pong = frame(PING, ACK, 0, &payload);
                    self.0.write_all(&pong).await.expect("kept");
                }
                other => return other,
            }
        }
    }

    async fn read_frame(&mut self) -> (u8, Vec<u8>) {
        let read = async {
            let mut header = [0; 9];
            self.0.read_exact(&mut header).await?;
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
            let mut payload = vec![0; length as usize];
            self.0.read_exact(&mut payload).await?;
            io::Result::Ok((header[3], payload))
        };
        within("a frame", read)
            .await
            .expect("the connection is kept")
    }

    /// Reads until the relay closes the connection; returns whether it did within this time.
    pub(super) async fn is_closed_within(&mut self, span: Duration) -> bool {
        let mut bytes = [0; 4096];
        let read = async { while !matches!(self.0.read(&mut bytes).await, Ok(0) | Err(_)) {} };
        tokio::time::timeout(span, read).await.is_ok()
    }
}

/// Encodes the header fields of a request; `method` is an index of HPACK's table (RFC 7541).
fn request_head(method: &[u8], path: &str) -> Vec<u8> {
    let mut block = [method, b"\x86"].concat();
    for (name, value) in [
        (":path", path),
        (":authority", "relay"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        // A literal without indexing; texts shorter than 127 bytes.
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).expect("a short text"));
            block.extend(text.as_bytes());
        }
    }
    block
}

/// Encodes a SETTINGS frame of one parameter.
pub(super) fn settings(parameter: u16, value: u32) -> Vec<u8> {
    let payload = [&parameter.to_be_bytes()[..], &value.to_be_bytes()[..]].concat();
    frame(SETTINGS, 0, 0, &payload)
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
