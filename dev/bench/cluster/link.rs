//! A proxy between relays and their nats-server: counts the bytes, and delays them.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp},
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};

/// A running proxy. Its connections end with it.
#[derive(Debug)]
pub(super) struct Link {
    address: SocketAddr,
    bytes: Arc<AtomicU64>,
    /// Aborts all tasks when it is dropped.
    _tasks: JoinSet<()>,
}

/// Bytes that one read takes.
const CHUNK: usize = 64 * 1024;
/// Chunks that wait for their delay: more than a link carries within a second.
const WAITING: usize = 16 * 1024;

impl Link {
    /// Starts a proxy to the address `target` that delays each byte by this time, each way.
    pub(super) async fn start(target: String, delay: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let bytes = Arc::<AtomicU64>::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, target, delay, Arc::clone(&bytes)));
        Ok(Self {
            address,
            bytes,
            _tasks: tasks,
        })
    }

    pub(super) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns the number of bytes so far, of both ways and all connections.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

async fn accept(listener: TcpListener, target: String, delay: Duration, bytes: Arc<AtomicU64>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let (target, bytes) = (target.clone(), Arc::clone(&bytes));
        // A broken connection is the peers' matter: each sees its end.
        connections.spawn(async move {
            let _ = forward(client, &target, delay, &bytes).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Carries one connection until either side ends it.
async fn forward(
    client: TcpStream,
    target: &str,
    delay: Duration,
    bytes: &AtomicU64,
) -> io::Result<()> {
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        ended = carry(from_client, to_server, delay, bytes) => ended,
        ended = carry(from_server, to_client, delay, bytes) => ended,
    }
}

/// Carries one way of a connection. Reading goes on while earlier chunks wait for their delay.
async fn carry(
    mut from: tcp::OwnedReadHalf,
    mut to: tcp::OwnedWriteHalf,
    delay: Duration,
    bytes: &AtomicU64,
) -> io::Result<()> {
    let (sender, mut chunks) = mpsc::channel::<(Instant, Vec<u8>)>(WAITING);
    let read = async move {
        loop {
            let mut chunk = Vec::with_capacity(CHUNK);
            let count = from.read_buf(&mut chunk).await?;
            bytes.fetch_add(count as u64, Ordering::Relaxed);
            if count == 0 || sender.send((Instant::now() + delay, chunk)).await.is_err() {
                return io::Result::Ok(());
            }
        }
    };
    let write = async move {
        while let Some((due, chunk)) = chunks.recv().await {
            if !delay.is_zero() {
                sleep_until(due).await;
            }
            to.write_all(&chunk).await?;
        }
        io::Result::Ok(())
    };
    tokio::try_join!(read, write).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_arrive_in_order_after_the_delay_and_are_counted() {
        let server = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let target = server.local_addr().expect("bound").to_string();
        let delay = Duration::from_millis(20);
        let link = Link::start(target, delay).await.expect("a proxy");
        let began = Instant::now();
        let mut client = TcpStream::connect(link.address()).await.expect("accepted");
        client.write_all(b"one ").await.expect("written");
        client.write_all(b"two").await.expect("written");
        let (mut accepted, _) = server.accept().await.expect("a connection");
        let mut text = [0; 7];
        accepted.read_exact(&mut text).await.expect("read");
        assert_eq!(&text, b"one two");
        accepted.write_all(b"three").await.expect("written");
        let mut text = [0; 5];
        client.read_exact(&mut text).await.expect("read");
        assert!(began.elapsed() >= 2 * delay, "{:?}", began.elapsed());
        assert_eq!((&text, link.bytes()), (b"three", 12));
        // The end of one side ends the other.
        drop(client);
        assert_eq!(accepted.read(&mut [0]).await.expect("the end"), 0);
    }
}
