//! Minimal clients of a peer over a plain connection, which leave the processor to the measured
//! server.
//!
//! A subscriber parses only the first byte of each frame. That is enough, because all messages of
//! one run have the same form: subjects and ids differ in digits only, and all payloads have one
//! length. `raw_nats` and `raw_redis` have the two protocols.

use anyhow::{Context, Result, bail, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{raw_line::Line, raw_nats, raw_redis};

/// A connection to a peer.
#[derive(Debug)]
pub(super) struct Connection {
    protocol: Protocol,
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
    /// The bytes before the payload of a message.
    header: Vec<u8>,
    payload: usize,
    /// Whether the first message was compared with `header`.
    verified: bool,
    /// Number of published messages without an answer yet; a nats-server sends no answers.
    unanswered: usize,
}

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Nats,
    Redis,
}

const SMALL: usize = 4 * 1024;
/// Maximum number of messages without an answer: about as many as the relay's publisher has in
/// flight.
const MAX_UNANSWERED: usize = 4 * 1024;
/// The end of each line and each message.
const END: &[u8; 2] = b"\r\n";

impl Protocol {
    fn server(self) -> &'static str {
        match self {
            Self::Nats => "nats-server",
            Self::Redis => "redis-server",
        }
    }

    fn line(self, line: &[u8]) -> Line {
        match self {
            Self::Nats => raw_nats::line(line),
            Self::Redis => raw_redis::line(line),
        }
    }

    /// Returns a message to publish.
    pub(super) fn publication(self, subject: &str, payload: &[u8]) -> Vec<u8> {
        match self {
            Self::Nats => raw_nats::publication(subject, payload),
            Self::Redis => raw_redis::publication(subject, payload),
        }
    }
}

impl Connection {
    /// Connects, and waits until the server has answered.
    pub(super) async fn open(protocol: Protocol, target: &str) -> Result<Self> {
        let stream = TcpStream::connect(target)
            .await
            .with_context(|| format!("{} at {target} cannot be reached", protocol.server()))?;
        stream.set_nodelay(true)?;
        let mut connection = Self {
            protocol,
            stream,
            buffer: vec![0; SMALL],
            filled: 0,
            header: Vec::new(),
            payload: 0,
            verified: false,
            unanswered: 0,
        };
        if protocol == Protocol::Nats {
            connection.write(raw_nats::HELLO).await?;
        }
        connection.ping().await?;
        Ok(connection)
    }

    /// Subscribes to each subject `count` times; all messages will carry `payload` bytes.
    pub(super) async fn subscribe(
        &mut self,
        subjects: &[String],
        count: u64,
        payload: usize,
    ) -> Result<()> {
        let first = subjects.first().context("a subject")?;
        self.payload = payload;
        match self.protocol {
            Protocol::Nats => {
                self.header = raw_nats::header(first, payload);
                let lines = raw_nats::subscriptions(subjects, count);
                self.write(&lines).await?;
                self.ping().await
            }
            Protocol::Redis => {
                ensure!(count == 1, "redis sends a message once to each connection");
                self.header = raw_redis::header(first, payload);
                self.write(&raw_redis::subscription(subjects)).await?;
                // Redis confirms each channel separately.
                self.unanswered += subjects.len();
                self.answers(0).await
            }
        }
    }

    /// Sets the size of the read buffer.
    pub(super) fn set_buffer(&mut self, buffer: usize) {
        self.buffer.resize(buffer.max(self.filled), 0);
    }

    /// Publishes `bytes`, which contain `count` messages.
    pub(super) async fn publish(&mut self, bytes: &[u8], count: usize) -> Result<()> {
        self.write(bytes).await?;
        if self.protocol == Protocol::Redis {
            self.unanswered += count;
            self.answers(MAX_UNANSWERED).await?;
        }
        Ok(())
    }

    /// Waits for the answers to all published messages; a nats-server sends none.
    pub(super) async fn answered(&mut self) -> Result<()> {
        self.answers(0).await
    }

    /// Waits until the server has read all written bytes.
    pub(super) async fn barrier(&mut self) -> Result<()> {
        match self.protocol {
            Protocol::Nats => self.ping().await,
            Protocol::Redis => self.answers(0).await,
        }
    }

    /// Waits for messages, and calls `take` with the payload of each.
    pub(super) async fn messages(&mut self, mut take: impl FnMut(&[u8])) -> Result<()> {
        self.fill().await?;
        let (header, server) = (self.header.len(), self.protocol.server());
        let message = header + self.payload + END.len();
        let (mut at, mut pings) = (0, 0);
        loop {
            let rest = &self.buffer[at..self.filled];
            match rest.first() {
                Some(first) if *first == self.header[0] => {
                    if rest.len() < message {
                        break;
                    }
                    if !self.verified {
                        self.verified = true;
                        let same = alike(&rest[..header], &self.header);
                        ensure!(same, "{server} sends messages of another form");
                    }
                    take(&rest[header..message - END.len()]);
                    at += message;
                }
                Some(b'P') if rest.len() >= raw_nats::PING.len() => {
                    pings += usize::from(rest.starts_with(raw_nats::PING));
                    at += raw_nats::PING.len();
                }
                None | Some(b'P') => break,
                Some(_) => {
                    let text = String::from_utf8_lossy(rest);
                    bail!("{server}: {}", text.lines().next().unwrap_or_default());
                }
            }
        }
        self.consume(at);
        for _ in 0..pings {
            self.write(raw_nats::PONG).await?;
        }
        Ok(())
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.stream.write_all(bytes).await;
        written.context(self.protocol.server())
    }

    /// Sends a PING, and waits for its answer. This connection has no messages.
    async fn ping(&mut self) -> Result<()> {
        self.write(raw_nats::PING).await?;
        let mut answered = false;
        while !answered {
            answered = self.lines(&[Line::Pong]).await? > 0;
        }
        Ok(())
    }

    /// Waits until at most `left` published messages have no answer.
    async fn answers(&mut self, left: usize) -> Result<()> {
        while self.unanswered > left {
            let answers = self.lines(&[Line::Done]).await?;
            self.unanswered = self.unanswered.saturating_sub(answers);
        }
        Ok(())
    }

    /// Reads at least once, and consumes all whole lines; returns how many of them are `wanted`.
    async fn lines(&mut self, wanted: &[Line]) -> Result<usize> {
        self.fill().await?;
        let (mut at, mut found, mut pings) = (0, 0, 0);
        while let Some(end) = self.buffer[at..self.filled]
            .iter()
            .position(|byte| *byte == b'\n')
        {
            let line = self.buffer[at..at + end].trim_ascii_end();
            at += end + 1;
            match self.protocol.line(line) {
                Line::Error => {
                    let text = String::from_utf8_lossy(line);
                    bail!("{}: {text}", self.protocol.server());
                }
                Line::Ping => pings += 1,
                kind => found += usize::from(wanted.contains(&kind)),
            }
        }
        self.consume(at);
        for _ in 0..pings {
            self.write(raw_nats::PONG).await?;
        }
        Ok(found)
    }

    async fn fill(&mut self) -> Result<()> {
        if self.filled == self.buffer.len() {
            self.buffer.resize(self.filled * 2, 0);
        }
        let server = self.protocol.server();
        let read = self.stream.read(&mut self.buffer[self.filled..]).await;
        let count = read.context(server)?;
        ensure!(count > 0, "{server} closed the connection");
        self.filled += count;
        Ok(())
    }

    fn consume(&mut self, count: usize) {
        self.buffer.copy_within(count..self.filled, 0);
        self.filled -= count;
    }
}

/// Returns whether two headers differ in digits only.
fn alike(one: &[u8], other: &[u8]) -> bool {
    let same = |(a, b): (&u8, &u8)| a == b || (a.is_ascii_digit() && b.is_ascii_digit());
    one.len() == other.len() && one.iter().zip(other).all(same)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Returns a connection to a peer that has written `bytes`, and the peer's end of the
    /// connection.
    async fn connected(protocol: Protocol, bytes: &[u8]) -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let target = listener.local_addr().expect("an address").to_string();
        let accepted = async {
            let (mut peer, _) = listener.accept().await.expect("connected");
            let pong = match protocol {
                Protocol::Nats => &b"INFO {}\r\nPONG\r\n"[..],
                Protocol::Redis => &b"+PONG\r\n"[..],
            };
            peer.write_all(pong).await.expect("written");
            peer
        };
        let (connection, mut peer) = tokio::join!(Connection::open(protocol, &target), accepted);
        peer.write_all(bytes).await.expect("written");
        (connection.expect("opened"), peer)
    }

    async fn payloads(connection: &mut Connection, count: usize) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        while found.len() < count {
            let take = |payload: &[u8]| found.push(payload.to_vec());
            connection.messages(take).await.expect("messages");
        }
        found
    }

    #[tokio::test]
    async fn messages_of_redis_are_counted_by_their_length() {
        let confirmed = b"*3\r\n$9\r\nsubscribe\r\n$4\r\na.q1\r\n:1\r\n\
                          *3\r\n$9\r\nsubscribe\r\n$4\r\na.q2\r\n:2\r\n";
        let (mut connection, mut peer) = connected(Protocol::Redis, confirmed).await;
        let subjects = ["a.q1".to_owned(), "a.q2".to_owned()];
        connection
            .subscribe(&subjects, 1, 3)
            .await
            .expect("confirmed");
        let messages = b"*3\r\n$7\r\nmessage\r\n$4\r\na.q1\r\n$3\r\nabc\r\n\
                         *3\r\n$7\r\nmessage\r\n$4\r\na.q2\r\n$3\r\n\r\n*\r\n";
        peer.write_all(messages).await.expect("written");
        // A payload may contain a line end or the first byte of a frame.
        let expected = [b"abc".to_vec(), b"\r\n*".to_vec()];
        assert_eq!(payloads(&mut connection, 2).await, expected);
    }

    #[tokio::test]
    async fn messages_of_nats_are_counted_and_its_pings_answered() {
        let (mut connection, mut peer) = connected(Protocol::Nats, b"PONG\r\n").await;
        let subjects = ["a.q1".to_owned(), "a.q2".to_owned()];
        connection
            .subscribe(&subjects, 1, 2)
            .await
            .expect("answered");
        let messages = b"MSG a.q1 100000 2\r\nxy\r\nPING\r\nMSG a.q2 100001 2\r\nzz\r\n";
        peer.write_all(messages).await.expect("written");
        let expected = [b"xy".to_vec(), b"zz".to_vec()];
        assert_eq!(payloads(&mut connection, 2).await, expected);
        let mut written = vec![0; 4096];
        let mut text = String::new();
        while !text.ends_with("PONG\r\n") {
            let count = peer.read(&mut written).await.expect("read");
            text.push_str(&String::from_utf8_lossy(&written[..count]));
        }
        assert!(text.contains("SUB a.q2 100001\r\n"), "{text}");
    }

    #[tokio::test]
    async fn a_publisher_waits_for_the_answers_of_redis() {
        let (mut connection, mut peer) = connected(Protocol::Redis, b":1\r\n:0\r\n:1").await;
        connection.publish(b"x", 2).await.expect("published");
        connection.answered().await.expect("answered");
        assert_eq!(connection.unanswered, 0);
        // Half a line is no answer yet.
        assert_eq!(connection.buffer[..connection.filled], *b":1");
        connection.publish(b"x", 1).await.expect("published");
        assert_eq!(connection.unanswered, 1);
        peer.write_all(b"\r\n").await.expect("written");
        connection.answered().await.expect("answered");
        assert_eq!(connection.unanswered, 0);
    }

    #[tokio::test]
    async fn an_error_of_a_peer_is_returned() {
        let refusal = b"-ERR max number of clients reached\r\n";
        let (mut connection, _peer) = connected(Protocol::Redis, refusal).await;
        connection.publish(b"x", 1).await.expect("published");
        let refused = connection.answered().await.expect_err("refused");
        assert!(refused.to_string().contains("max number"), "{refused}");
    }
}
