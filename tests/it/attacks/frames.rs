//! Handwritten HTTP/2 frames, for peers that no library implements.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::Instant,
};

use super::target::{Stream, Target};
use crate::support::within;

/// A connection with handwritten frames.
#[derive(Debug)]
pub(crate) struct RawPeer(pub(super) Box<dyn Stream>);

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const ACK: u8 = 1;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
/// Pause of [`repeatedly`] before a new connection: the tests of frames do not measure the rate of
/// connections.
const PAUSE: Duration = Duration::from_millis(50);

impl RawPeer {
    /// Connects, and sends no byte of HTTP/2.
    pub(super) async fn silent(target: &Target) -> Self {
        Self(target.connect().await)
    }

    /// Connects, and sends the preface and empty settings.
    pub(crate) async fn greeting(target: &Target) -> Self {
        let mut peer = Self::silent(target).await;
        peer.greet().await.expect("taken");
        peer
    }

    /// As [`RawPeer::greeting`], from the given address.
    pub(super) async fn greeting_from(from: [u8; 4], target: &Target) -> io::Result<Self> {
        let mut peer = Self(target.connect_from(from).await?);
        peer.greet().await?;
        Ok(peer)
    }

    /// Sends the preface and empty settings.
    pub(super) async fn greet(&mut self) -> io::Result<()> {
        let settings = frame(SETTINGS, 0, 0, &[]);
        self.send(&[PREFACE, &settings].concat()).await
    }

    /// Sends these bytes. TLS holds a part of them back until it is flushed.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await?;
        self.0.flush().await
    }

    /// Waits until the relay has answered the preface with its settings.
    pub(super) async fn is_answered(&mut self) {
        let mut header = [0; 9];
        self.0.read_exact(&mut header).await.expect("settings");
        assert_eq!(header[3], SETTINGS);
    }

    /// Begins a gRPC request without its body.
    pub(crate) async fn open(&mut self, stream: u32, path: &str) {
        self.send(&request(stream, path)).await.expect("taken");
    }

    /// Sends a request that is not gRPC and has no body.
    pub(super) async fn get(&mut self, stream: u32, path: &str) {
        let block = request_head(b"\x82", path);
        let headers = frame(HEADERS, END_STREAM | END_HEADERS, stream, &block);
        self.send(&headers).await.expect("taken");
    }

    /// Sends these bytes, and reads the answers concurrently, until the relay closes the connection;
    /// returns the number of bytes that were answered.
    pub(super) async fn closed_after(self, pieces: impl IntoIterator<Item = Vec<u8>>) -> usize {
        let (mut answers, mut out) = tokio::io::split(self.0);
        let write = async {
            for piece in pieces {
                if out.write_all(&piece).await.is_err() || out.flush().await.is_err() {
                    break;
                }
            }
        };
        let mut answered = 0;
        let read = async {
            let mut bytes = vec![0; 16 * 1024];
            while let Ok(more @ 1..) = answers.read(&mut bytes).await {
                answered += more;
            }
        };
        let both = async { tokio::join!(write, read) };
        within("the relay closes the connection", both).await;
        answered
    }

    /// Sends these bytes so many times, and reads the answers concurrently.
    pub(super) async fn flood(self, bytes: &[u8], times: usize) {
        let (mut answers, mut out) = tokio::io::split(self.0);
        let write = async {
            for _ in 0..times {
                if out.write_all(bytes).await.is_err() || out.flush().await.is_err() {
                    break;
                }
            }
        };
        let read = async {
            let mut bytes = vec![0; 16 * 1024];
            while let Ok(1..) = answers.read(&mut bytes).await {}
        };
        tokio::select! {
            () = write => {}
            () = read => {}
        }
    }

    /// Reads the next frame other than PING; returns its type and its payload.
    pub(crate) async fn next_frame(&mut self) -> (u8, Vec<u8>) {
        loop {
            match self.read_frame().await {
                // The relay ends a connection that does not answer a PING.
                (PING, payload) => {
                    let pong = frame(PING, ACK, 0, &payload);
                    self.send(&pong).await.expect("kept");
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

/// Attacks repeatedly on new connections, three at a time, for this time; returns how many
/// connections there were.
pub(super) async fn repeatedly<F: Future<Output = ()> + Send + 'static>(
    span: Duration,
    target: &Target,
    attack: impl Fn(RawPeer) -> F + Clone + Send + Sync + 'static,
) -> usize {
    let end = Instant::now() + span;
    let mut attackers = JoinSet::new();
    for _ in 0..3 {
        let (target, attack) = (target.clone(), attack.clone());
        attackers.spawn(async move {
            let mut connections = 0;
            while Instant::now() < end {
                attack(RawPeer::greeting(&target).await).await;
                connections += 1;
                tokio::time::sleep(PAUSE).await;
            }
            connections
        });
    }
    attackers.join_all().await.into_iter().sum()
}

/// Encodes the start of a gRPC request, without its body.
pub(super) fn request(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &post(path))
}

/// Encodes the header fields of a gRPC request.
pub(super) fn post(path: &str) -> Vec<u8> {
    request_head(b"\x83", path)
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
        block.extend(field(name, value));
    }
    block
}

/// Encodes a header field as a literal without indexing; texts shorter than 127 bytes.
pub(super) fn field(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        bytes.push(u8::try_from(text.len()).expect("a short text"));
        bytes.extend(text.as_bytes());
    }
    bytes
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
