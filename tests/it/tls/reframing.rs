//! A proxy that ends TLS and speaks HTTP/2 of its own with the relay (h2c), as load balancers do.

use std::{net::SocketAddr, time::Duration};

use futures_util::future::join_all;
use http::{Request, Response, Uri, uri::Scheme};
use hyper::{body::Incoming, client, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use reveille::{
    Client, ClientConfig, Credential, Notification, SubscribeOptions, Subscription,
    testing::TestRelay,
};
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{Authority, Files};
use crate::support::{figure_as, listening, queue, told, within, woken};

/// A proxy whose clients share one connection to the relay. Each frame that arrives on one side is
/// decoded, and sent in a new frame on a stream of the other side.
pub(crate) struct ReframingProxy {
    address: SocketAddr,
    files: Files,
    /// Deletes the files when it is dropped.
    _home: TempDir,
    _tasks: JoinSet<()>,
}

/// Longer than the silence after which the relay and the clients send a PING.
pub(crate) const SILENCE: Duration = Duration::from_secs(22);
/// No heartbeat breaks the silence.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// Queues of a subscription, with names of 50 letters: it takes more than one frame.
const MANY: usize = 500;

/// The one connection to the relay.
type Back = client::conn::http2::SendRequest<Incoming>;

impl ReframingProxy {
    pub(crate) async fn to(relay: SocketAddr) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let authority = Authority::new("proxies");
        let files = authority.write(home.path(), "proxy", authority.server());
        let acceptor = files.acceptor();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let stream = TcpStream::connect(relay).await.expect("it listens");
        stream.set_nodelay(true).expect("an open socket");
        let executor = TokioExecutor::new();
        let shaken = client::conn::http2::handshake(executor, TokioIo::new(stream)).await;
        let (back, connection) = shaken.expect("HTTP/2");
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            connection.await.expect("the relay keeps the connection");
        });
        tasks.spawn(accept(listener, acceptor, back));
        Self {
            address,
            files,
            _home: home,
            _tasks: tasks,
        }
    }

    /// Returns a client of the proxy.
    pub(crate) fn client(&self, credential: Credential) -> Client {
        let config = ClientConfig {
            tls: self.files.client(None),
            credential,
            ..ClientConfig::default()
        };
        let url = format!("https://{}", self.address);
        Client::with_config(&url, config).expect("a client")
    }
}

/// Serves the proxy's clients.
async fn accept(listener: TcpListener, acceptor: TlsAcceptor, back: Back) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        let (acceptor, back) = (acceptor.clone(), back.clone());
        connections.spawn(async move {
            let front = acceptor.accept(stream).await.expect("a handshake");
            serve(front, back).await;
        });
    }
}

async fn serve(front: TlsStream<TcpStream>, back: Back) {
    let forwards = service_fn(move |request| forward(request, back.clone()));
    let connection = http2::Builder::new(TokioExecutor::new());
    // It ends when the client goes, perhaps within a frame.
    let _ = connection
        .serve_connection(TokioIo::new(front), forwards)
        .await;
}

/// Sends a request to the relay, and returns the relay's answer.
async fn forward(
    mut request: Request<Incoming>,
    mut back: Back,
) -> Result<Response<Incoming>, hyper::Error> {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(Scheme::HTTP);
    *request.uri_mut() = Uri::from_parts(parts).expect("a URI");
    back.ready().await?;
    back.send_request(request).await
}

/// A listener and a publisher of one account behind the proxy.
struct Pair {
    client: Client,
    account: &'static str,
    wakes: Subscription,
    /// Of [`MANY`] queues.
    many: Subscription,
}

impl Pair {
    async fn start(proxy: &ReframingProxy, credential: Credential, account: &'static str) -> Self {
        let client = proxy.client(credential);
        let subscribe = |id: &str, queues: &[String]| {
            let queues: Vec<_> = queues.iter().map(String::as_str).collect();
            let options = SubscribeOptions {
                heartbeat: HEARTBEAT,
                ..listening(id, &queues)
            };
            client.subscribe(options).expect("options")
        };
        let mut wakes = subscribe(account, &[format!("{account}/orders")]);
        woken(&mut wakes).await;
        let mut many = subscribe(account, &many(account));
        for _ in 0..MANY {
            woken(&mut many).await;
        }
        Self {
            client,
            account,
            wakes,
            many,
        }
    }

    /// Notifies each queue once, and takes the wake-ups.
    async fn notify(&mut self) {
        let publisher = self.client.publisher("test");
        let orders = Notification::new(queue(&format!("{}/orders", self.account)));
        let notified = publisher.notify(orders);
        within("an answer", notified).await.expect("counted");
        assert_eq!(told(&mut self.wakes, 1).await.notifications, 1);
        let all = many(self.account);
        let all = all.iter().map(|name| Notification::new(queue(name)));
        let notified = publisher.notify_all(all.collect());
        within("an answer", notified).await.expect("counted");
        told(&mut self.many, MANY as u64).await;
    }
}

fn many(account: &str) -> Vec<String> {
    let name = |number| format!("{account}/{}-{number:03}", "n".repeat(46));
    (0..MANY).map(name).collect()
}

/// Checks that clients with these tokens and accounts are served on one connection of the relay, also
/// after this silence. The first one may read the metrics.
pub(crate) async fn are_served(
    relay: &TestRelay,
    proxy: &ReframingProxy,
    clients: &[(Option<&str>, &'static str)],
    silence: Duration,
) {
    let pairs = clients.iter().map(|(token, account)| {
        let credential = token.map(Credential::text);
        Pair::start(proxy, credential.unwrap_or_default(), account)
    });
    let mut pairs = join_all(pairs).await;
    join_all(pairs.iter_mut().map(Pair::notify)).await;
    tokio::time::sleep(silence).await;
    join_all(pairs.iter_mut().map(Pair::notify)).await;
    for client in pairs.into_iter().map(|pair| pair.client) {
        let reason = within("an answer", client.not_ready()).await;
        assert_eq!(reason.expect("an answer"), None);
    }
    let admin = relay.admin_address().expect("an admin port");
    let connections = figure_as(admin, "reveille_connections", clients[0].0);
    assert_eq!(connections.await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_behind_a_proxy_share_one_connection_to_the_relay() {
    share_one_connection(Duration::ZERO).await;
}

mod full {
    #[tokio::test(flavor = "multi_thread")]
    async fn clients_behind_a_proxy_share_one_connection_after_a_silence() {
        super::share_one_connection(super::SILENCE).await;
    }
}

async fn share_one_connection(silence: Duration) {
    let relay = TestRelay::start().await.expect("a relay");
    let proxy = ReframingProxy::to(relay.node().expect("it runs").address()).await;
    let clients = ["acct", "other", "third"].map(|account| (None, account));
    are_served(&relay, &proxy, &clients, silence).await;
}
