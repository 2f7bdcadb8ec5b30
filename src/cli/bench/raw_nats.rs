//! As much of the NATS protocol as the bench needs, over a plain connection.
//!
//! Written so that the client takes as little as possible from the server that it measures: it
//! parses nothing but the first byte of each frame. That works because all messages of one run are
//! alike: same subject, same subscription id digits, same payload length.

use anyhow::{Context, Result, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// A connection to a nats-server.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
    /// The header line of every message, as this subject and these ids make it.
    header: Vec<u8>,
    payload: usize,
    /// Whether the first message was compared with `header`.
    verified: bool,
}

/// `PING` and `PONG`, with their line ends.
const PING: &[u8; 6] = b"PING\r\n";
const PONG: &[u8; 6] = b"PONG\r\n";
const SMALL: usize = 4 * 1024;

impl Connection {
    /// Connects, and waits until the server has answered.
    pub(super) async fn open(target: &str) -> Result<Self> {
        let stream = TcpStream::connect(target)
            .await
            .with_context(|| format!("nats-server at {target} cannot be reached"))?;
        stream.set_nodelay(true)?;
        let mut connection = Self {
            stream,
            buffer: vec![0; SMALL],
            filled: 0,
            header: Vec::new(),
            payload: 0,
            verified: false,
        };
        let hello = b"CONNECT {\"verbose\":false,\"pedantic\":false,\"echo\":false}\r\n";
        connection.write(hello).await?;
        connection.barrier().await?;
        Ok(connection)
    }

    /// Subscribes `count` times; all messages will carry `payload` bytes.
    pub(super) async fn subscribe(
        &mut self,
        subject: &str,
        count: u64,
        payload: usize,
    ) -> Result<()> {
        // All ids have as many digits.
        let ids = 100_000..100_000 + count;
        let mut lines = String::new();
        for id in ids {
            lines.push_str(&format!("SUB {subject} {id}\r\n"));
        }
        self.header = format!("MSG {subject} 100000 {payload}\r\n").into_bytes();
        self.payload = payload;
        self.write(lines.as_bytes()).await?;
        self.barrier().await
    }

    /// Reads with a buffer of this size from now on.
    pub(super) fn widen(&mut self, buffer: usize) {
        self.buffer.resize(buffer.max(self.filled), 0);
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).await.context("nats-server")
    }

    /// Waits until the server has taken in all that was written.
    pub(super) async fn barrier(&mut self) -> Result<()> {
        self.write(PING).await?;
        loop {
            // What the server says of itself and of errors are lines; there are no messages yet.
            while let Some(end) = self.buffer[..self.filled].iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer[..=end].to_vec();
                self.consume(end + 1);
                ensure!(
                    !line.starts_with(b"-ERR"),
                    "nats-server: {}",
                    String::from_utf8_lossy(&line).trim()
                );
                if line == PONG {
                    return Ok(());
                }
                if line == PING {
                    self.write(PONG).await?;
                }
            }
            self.fill().await?;
        }
    }

    /// Waits for messages, and hands the payload of each to `take`.
    pub(super) async fn messages(&mut self, mut take: impl FnMut(&[u8])) -> Result<()> {
        self.fill().await?;
        let message = self.header.len() + self.payload + 2;
        let (mut at, mut pings) = (0, 0);
        loop {
            let rest = &self.buffer[at..self.filled];
            match rest.first() {
                Some(b'M') if rest.len() >= message => {
                    if !self.verified {
                        self.verified = true;
                        let same = alike(&rest[..self.header.len()], &self.header);
                        ensure!(same, "nats-server sends messages of another form");
                    }
                    take(&rest[self.header.len()..message - 2]);
                    at += message;
                }
                Some(b'P') if rest.len() >= PING.len() => {
                    pings += usize::from(rest.starts_with(PING));
                    at += PING.len();
                }
                None | Some(b'M' | b'P') => break,
                Some(_) => {
                    let words = String::from_utf8_lossy(rest);
                    anyhow::bail!("nats-server: {}", words.lines().next().unwrap_or_default());
                }
            }
        }
        self.consume(at);
        for _ in 0..pings {
            self.write(PONG).await?;
        }
        Ok(())
    }

    async fn fill(&mut self) -> Result<()> {
        if self.filled == self.buffer.len() {
            self.buffer.resize(self.filled * 2, 0);
        }
        let count = self.stream.read(&mut self.buffer[self.filled..]).await?;
        ensure!(count > 0, "nats-server closed the connection");
        self.filled += count;
        Ok(())
    }

    fn consume(&mut self, count: usize) {
        self.buffer.copy_within(count..self.filled, 0);
        self.filled -= count;
    }
}

/// Returns whether two header lines differ in nothing but the digits of their ids.
fn alike(one: &[u8], other: &[u8]) -> bool {
    let same = |(a, b): (&u8, &u8)| a == b || (a.is_ascii_digit() && b.is_ascii_digit());
    one.len() == other.len() && one.iter().zip(other).all(same)
}

/// Returns a message to publish.
pub(super) fn publication(subject: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("PUB {subject} {}\r\n", payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes.extend_from_slice(b"\r\n");
    bytes
}
