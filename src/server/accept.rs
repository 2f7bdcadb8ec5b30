//! The accept loop: socket options, caps on connections, and an end in bounded time.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use super::{
    activity::Activity,
    addresses::Addresses,
    budget::RequestBudget,
    connection,
    incidents::{Incident, Incidents},
    limits::{ConnectionLimits, open_files},
    preface,
};
use crate::{
    error::{Error, ErrorKind, Result},
    eviction::{EvictingPool, PoolPlace},
    task::Scope,
};

/// How a server takes connections.
#[derive(Debug, Clone)]
pub(crate) struct ServerConfig {
    pub(crate) listen: SocketAddr,
    /// Connections at one time; further ones wait in the backlog. Fewer where the process may not
    /// have as many files open.
    pub(crate) max_connections: usize,
    /// Connections of one address, further ones are closed; see [`Addresses::new`].
    pub(crate) max_connections_per_address: Option<usize>,
    /// A connection without streams for this long is ended.
    pub(crate) idle: Duration,
}

/// A server that listens. Ends with [`Server::shutdown`], or at once when it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    scope: Arc<Scope>,
    draining: CancellationToken,
    connections: Connections,
}

/// The connections of a server, for its metrics.
#[derive(Debug, Clone)]
pub(crate) struct Connections {
    max: usize,
    /// One permit for each connection that may yet be established.
    permits: Arc<Semaphore>,
    /// Connections before their preface.
    handshakes: EvictingPool,
    incidents: Arc<Incidents>,
}

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// What the kernel holds for a reader that does not read. The kernel doubles it.
const SEND_BUFFER: usize = 32 * 1024;
/// A peer that has not acknowledged data for this long is gone.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(20);
/// From accept to preface: as long as an honest client needs over a bad line.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);

impl Server {
    /// Listens, and serves the routes on every connection.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] where the address cannot be listened on; it is named.
    pub(crate) fn start(
        config: &ServerConfig,
        routes: Routes,
        draining: CancellationToken,
    ) -> Result<Self> {
        let failed = |error: io::Error| {
            let message = format!("cannot listen on {}", config.listen);
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        };
        let listener = listen(config.listen).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let scope = Arc::new(Scope::new());
        let limits = ConnectionLimits::new(config.max_connections, open_files());
        let connections = Connections::new(limits);
        let accept = Accept {
            routes: routes.prepare(),
            addresses: Addresses::new(config.max_connections_per_address, config.listen),
            budget: RequestBudget::new(),
            idle: config.idle,
            draining: draining.clone(),
            connections: connections.clone(),
        };
        scope.spawn(accept.run(listener, Arc::clone(&scope)));
        Ok(Self {
            address,
            scope,
            draining,
            connections,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn connections(&self) -> Connections {
        self.connections.clone()
    }

    /// Ends connections: each when its streams have ended, all after `grace`.
    pub(crate) async fn shutdown(&self, grace: Duration) {
        self.draining.cancel();
        let idle = async {
            while self.connections.open() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(grace, idle).await.is_err() {
            let left = self.connections.open();
            tracing::warn!(
                connections = left,
                "grace period over, closing what is left"
            );
        }
        self.scope.shutdown().await;
    }
}

impl Drop for Server {
    /// The accept loop and each connection hold the scope as well: only cancelled it ends.
    fn drop(&mut self) {
        self.scope.token().cancel();
    }
}

impl Connections {
    fn new(limits: ConnectionLimits) -> Self {
        let max = limits.established.min(Semaphore::MAX_PERMITS);
        Self {
            max,
            permits: Arc::new(Semaphore::new(max)),
            handshakes: EvictingPool::new(limits.handshakes),
            incidents: Arc::new(Incidents::new()),
        }
    }

    /// Returns how many have sent their preface and have not ended.
    pub(crate) fn open(&self) -> usize {
        self.max - self.permits.available_permits()
    }

    /// Returns how many there can be.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Returns how many were closed before their preface because newer ones came.
    pub(crate) fn evictions(&self) -> u64 {
        self.handshakes.evictions()
    }

    /// Returns how many incidents of a kind there were.
    pub(crate) fn incidents(&self, incident: Incident) -> u64 {
        self.incidents.count(incident)
    }

    /// Waits until a further connection can be established. Safe to cancel.
    async fn room(&self) {
        // Given back at once: a connection has none before its preface.
        drop(self.permits.acquire().await.expect("never closed"));
    }
}

#[derive(Clone)]
struct Accept {
    routes: Routes,
    addresses: Addresses,
    budget: RequestBudget,
    idle: Duration,
    draining: CancellationToken,
    connections: Connections,
}

impl Accept {
    async fn run(self, listener: TcpListener, scope: Arc<Scope>) {
        let mut failing = false;
        while let Some(accepted) = self.next(&listener).await {
            match accepted {
                Ok((stream, peer)) => {
                    failing = false;
                    let Some(place) = self.addresses.enter(peer.ip()) else {
                        let incidents = &self.connections.incidents;
                        incidents.note(Incident::AddressFull, peer);
                        continue;
                    };
                    let handshake = self.connections.handshakes.enter();
                    let this = self.clone();
                    scope.spawn(async move {
                        let _place = place;
                        this.handle(stream, peer, handshake).await;
                    });
                }
                Err(error) => {
                    // Out of file descriptors, mostly: said once, and not asked again at once.
                    if !failing {
                        tracing::error!(%error, "cannot accept connections");
                    }
                    failing = true;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Waits until there is room for a connection, and for one to come; `None` once draining. Then
    /// the listener is dropped at once, however full the server is: whoever waits in the backlog is
    /// turned away, and goes to another relay instead of waiting for the end of this one.
    async fn next(&self, listener: &TcpListener) -> Option<io::Result<(TcpStream, SocketAddr)>> {
        let next = async {
            self.connections.room().await;
            listener.accept().await
        };
        tokio::select! {
            biased;
            () = self.draining.cancelled() => None,
            next = next => Some(next),
        }
    }

    /// Takes a connection from its first byte to its last.
    async fn handle(self, mut stream: TcpStream, peer: SocketAddr, handshake: PoolPlace) {
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%peer, %error, "socket options");
        }
        let Some(_permit) = self.establish(&mut stream, peer, handshake).await else {
            return;
        };
        let activity = Activity::new(
            peer,
            Arc::clone(&self.connections.incidents),
            self.budget.of_connection(),
            self.draining,
            self.idle,
        );
        if let Err(error) = connection::serve(stream, self.routes, activity).await {
            tracing::debug!(%peer, %error, "connection ended");
        }
    }

    /// Reads the preface, and takes one of the places for connections. Without one it ends by a
    /// deadline, or when it is displaced, or when the server drains.
    async fn establish(
        &self,
        stream: &mut TcpStream,
        peer: SocketAddr,
        handshake: PoolPlace,
    ) -> Option<OwnedSemaphorePermit> {
        let greeted = AtomicBool::new(false);
        let established = async {
            preface::read(stream).await?;
            greeted.store(true, Relaxed);
            let permit = Arc::clone(&self.connections.permits).acquire_owned().await;
            io::Result::Ok(permit.expect("never closed"))
        };
        let given_up = || {
            let incident = match greeted.load(Relaxed) {
                true => Incident::Full,
                false => Incident::Silent,
            };
            self.connections.incidents.note(incident, peer);
        };
        tokio::select! {
            biased;
            () = self.draining.cancelled() => None,
            established = established => match established {
                Ok(permit) => Some(permit),
                Err(error) => {
                    tracing::debug!(%peer, %error, "connection ended");
                    None
                }
            },
            () = handshake.evicted() => {
                given_up();
                None
            }
            () = tokio::time::sleep(HANDSHAKE_DEADLINE) => {
                given_up();
                None
            }
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // So that a restart need not wait for the connections of the life before.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_send_buffer_size(SEND_BUFFER)?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        client::Client,
        flag::{Flags, FlagsConfig},
        relay::{Relay, RelayConfig},
        server::Services,
        store::MemoryStore,
    };

    /// Starts a server that ends connections so soon.
    fn impatient(idle: Duration) -> Server {
        let relay = Relay::start(RelayConfig::default()).expect("started");
        let flags = Flags::new(Arc::new(MemoryStore::new()), FlagsConfig::default());
        let draining = CancellationToken::new();
        let services = Services {
            relay,
            flags,
            stream_max_age: Duration::from_secs(60),
            draining: draining.clone(),
        };
        let (routes, _) = services.routes().expect("routes");
        let config = ServerConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            max_connections: 100,
            max_connections_per_address: None,
            idle,
        };
        Server::start(&config, routes, draining).expect("it listens")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn clients_do_not_notice_that_idle_connections_end() {
        let idle = Duration::from_millis(20);
        let server = impatient(idle);
        let client = Client::new(&format!("http://{}", server.address())).expect("a URL");
        let flag = crate::words::FlagName::new("go").expect("a name");
        let (mut ended, mut failed) = (0, 0);
        for _ in 0..400 {
            // Some calls fall into the very moment of the end, while GOAWAY is on its way. They
            // have not happened, and happen when they are tried again.
            if let Err(error) = client.flags().get(&flag).await {
                assert!(error.is_retryable(), "{error}");
                client
                    .flags()
                    .get(&flag)
                    .await
                    .expect("a connection of its own");
                failed += 1;
            }
            let pause = fastrand::u64(5_000..50_000);
            tokio::time::sleep(Duration::from_micros(pause)).await;
            ended += usize::from(server.connections().open() == 0);
        }
        assert!(ended > 20, "only {ended} connections had ended");
        assert!(failed < 20, "{failed} calls of 400 failed");
        server.shutdown(Duration::from_secs(1)).await;
    }
}
