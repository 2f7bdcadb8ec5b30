//! Shared test support: waits with a deadline, plain HTTP requests, a TCP connection that can be
//! cut.

#[allow(dead_code, reason = "the library's own tests use more of it")]
pub(crate) mod azurite;
#[allow(dead_code, reason = "the library's own tests use more of it")]
mod log;
#[allow(dead_code, reason = "the library's own tests use more of it")]
pub(crate) mod metered;
#[allow(dead_code, reason = "the library's own tests use more of it")]
pub(crate) mod moto;
#[allow(dead_code, reason = "the library's own tests use more of it")]
pub(crate) mod nats;
#[allow(dead_code, reason = "the library's own tests use more of it")]
pub(crate) mod proxy;

use std::{
    future::Future,
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub(crate) use self::log::{Log, log_to};
use reveille::{
    Client, ClientConfig, ListenerId, QueueAddress, SubscribeOptions, WakeReason, WakeStream,
    WorkDetected, testing::TestRelay,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// The limit for all waits: longer than any correct operation takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Awaits a future; panics with `what` after [`PATIENCE`].
pub(crate) async fn within<T>(what: &str, happening: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, happening).await {
        Ok(happened) => happened,
        Err(_) => panic!("not within {PATIENCE:?}: {what}"),
    }
}

/// Polls the condition until it is true; panics with `what` after [`PATIENCE`].
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let polling = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(what, polling).await;
}

pub(crate) fn queue(text: &str) -> QueueAddress {
    text.parse().expect("an address")
}

/// A client with short reconnect waits.
pub(crate) fn eager(url: &str) -> Client {
    Client::with_config(url, eager_config()).expect("a client")
}

pub(crate) fn eager_config() -> ClientConfig {
    ClientConfig {
        reconnect_base: Duration::from_millis(50),
        reconnect_max: Duration::from_millis(200),
        ..ClientConfig::default()
    }
}

/// Returns the options of a listener of these queues, with the shortest heartbeat.
pub(crate) fn listening(id: &str, queues: &[&str]) -> SubscribeOptions {
    let selectors: Vec<reveille::Selector> = queues
        .iter()
        .map(|text| text.parse().expect("a selector"))
        .collect();
    SubscribeOptions {
        heartbeat: Duration::from_secs(1),
        ..SubscribeOptions::new(ListenerId::new(id).expect("a name"), selectors)
    }
}

/// Returns the next wake-up.
pub(crate) async fn woken(wakes: &mut impl WakeStream) -> WorkDetected {
    let work = within("a wake-up", wakes.next()).await;
    work.expect("not ended").expect("not refused")
}

/// Takes wake-ups until their counts add up to `notifications`; returns the last wake-up.
pub(crate) async fn told(wakes: &mut impl WakeStream, notifications: u64) -> WorkDetected {
    let mut sum = 0;
    loop {
        let work = woken(wakes).await;
        sum += work.notifications;
        assert!(sum <= notifications, "told of {sum}, not {notifications}");
        if sum == notifications && work.reason != WakeReason::CatchUp {
            return work;
        }
    }
}

/// Requests a page over HTTP/1.1; returns status and body.
pub(crate) async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    get_with(address, path, "").await
}

/// Waits until the relay answers a call, at most this long; zero is one attempt.
pub(crate) async fn ready(client: &Client, at_most: Duration) -> reveille::Result<()> {
    let began = std::time::Instant::now();
    loop {
        match client.queues().await {
            Ok(_) => return Ok(()),
            Err(error) if !error.is_retryable() || began.elapsed() >= at_most => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// As [`get`], with further lines of the header.
async fn get_with(address: SocketAddr, path: &str, header: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = String::new();
    within("a page", stream.read_to_string(&mut answer))
        .await
        .expect("text");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
    (
        status.expect("a status line"),
        body.unwrap_or_default().to_owned(),
    )
}

/// Reads one figure from the metrics page.
pub(crate) async fn figure(address: SocketAddr, name: &str) -> u64 {
    figure_as(address, name, None).await
}

/// As [`figure`], with a token.
pub(crate) async fn figure_as(address: SocketAddr, name: &str, token: Option<&str>) -> u64 {
    let header = token.map(|token| format!("authorization: Bearer {token}\r\n"));
    let (_, page) = get_with(address, "/metrics", &header.unwrap_or_default()).await;
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("no figure {name} in {page}"))
}

/// Returns cargo's target directory. `tests/run` prepares the Python environment in it.
pub(crate) fn target() -> PathBuf {
    let temporary = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    temporary.parent().expect("below target").to_owned()
}

/// A TCP proxy between a client and a relay that can be cut and stalled.
#[derive(Debug)]
pub(crate) struct Wire {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    connections: Arc<AtomicU64>,
    open: Arc<AtomicU64>,
    target: watch::Sender<SocketAddr>,
    /// Connections with a lower number forward no more bytes in these directions.
    silenced: watch::Sender<(u64, Way)>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Forwards all bytes.
    Carries,
    /// Holds the bytes of these directions back, with open connections.
    Stalls(Way),
    /// Closes all connections, old and new.
    Cut,
}

/// The directions in which a proxy holds bytes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Both,
    /// To the target.
    Up,
    /// From the target.
    Down,
}

impl Wire {
    /// Starts a proxy to a relay.
    pub(crate) async fn of(relay: &TestRelay) -> Self {
        Self::to(relay.node().expect("it runs").address()).await
    }

    /// Starts a proxy to `target`.
    pub(crate) async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let mode = watch::Sender::new(Mode::Carries);
        let connections = Arc::new(AtomicU64::new(0));
        let silenced = watch::Sender::new((0, Way::Both));
        let signals = (mode.subscribe(), silenced.subscribe());
        let mut tasks = JoinSet::new();
        let open = Arc::new(AtomicU64::new(0));
        let counts = (Arc::clone(&connections), Arc::clone(&open));
        let target = watch::Sender::new(target);
        tasks.spawn(carry_all(listener, target.subscribe(), signals, counts));
        Self {
            address,
            mode,
            connections,
            open,
            target,
            silenced,
            _tasks: tasks,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the proxy's address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of accepted connections so far.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Acquire)
    }

    /// Forwards new connections to another target.
    pub(crate) fn lead_to(&self, target: SocketAddr) {
        self.target.send_replace(target);
    }

    /// Returns the number of open connections.
    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::Acquire)
    }

    pub(crate) fn cut(&self) {
        self.mode.send_replace(Mode::Cut);
    }

    pub(crate) fn stall(&self) {
        self.stall_way(Way::Both);
    }

    /// Holds bytes back as a network does that drops packets in one direction or in both.
    pub(crate) fn stall_way(&self, way: Way) {
        self.mode.send_replace(Mode::Stalls(way));
    }

    /// Stops forwarding on all existing connections without closing them; new ones work.
    pub(crate) fn silence(&self, way: Way) {
        self.silenced.send_replace((self.connections(), way));
    }

    pub(crate) fn mend(&self) {
        self.mode.send_replace(Mode::Carries);
    }
}

/// The mode, and the number below which connections are silenced.
type Signals = (watch::Receiver<Mode>, watch::Receiver<(u64, Way)>);

async fn carry_all(
    listener: TcpListener,
    target: watch::Receiver<SocketAddr>,
    signals: Signals,
    (connections, open): (Arc<AtomicU64>, Arc<AtomicU64>),
) {
    let mut tasks = JoinSet::new();
    loop {
        let (near, _) = listener.accept().await.expect("it listens");
        if *signals.0.borrow() == Mode::Cut {
            continue;
        }
        let number = connections.fetch_add(1, Ordering::AcqRel);
        let (signals, open) = (signals.clone(), Arc::clone(&open));
        let target = *target.borrow();
        open.fetch_add(1, Ordering::AcqRel);
        tasks.spawn(async move {
            carry(near, target, signals, number).await;
            open.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

async fn carry(near: TcpStream, target: SocketAddr, signals: Signals, number: u64) {
    let Ok(far) = TcpStream::connect(target).await else {
        return;
    };
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    let (up, down) = (signals.clone(), signals.clone());
    let mut mode = signals.0;
    let cut = async { mode.wait_for(|mode| *mode == Mode::Cut).await.is_ok() };
    tokio::select! {
        _ = cut => {}
        _ = one_way(near_in, far_out, Way::Up, up, number) => {}
        _ = one_way(far_in, near_out, Way::Down, down, number) => {}
    }
}

async fn one_way(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    way: Way,
    (mut mode, silenced): Signals,
    number: u64,
) -> io::Result<()> {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let count = from.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        // Bytes that arrive during a stall are held until it ends.
        let stalls = [Mode::Stalls(Way::Both), Mode::Stalls(way)];
        if mode.wait_for(|mode| !stalls.contains(mode)).await.is_err() {
            return Ok(());
        }
        let (below, of) = *silenced.borrow();
        if number < below && [Way::Both, way].contains(&of) {
            std::future::pending::<()>().await;
        }
        to.write_all(&bytes[..count]).await?;
    }
}
