//! The accept loop: socket options, limits of connections, and a bounded shutdown.

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
use tracing::Instrument as _;

use super::{
    activity::Activity,
    addresses::Addresses,
    connection,
    incidents::{Incident, Incidents},
    limits::{ConnectionLimits, Lifetimes, ServerLimits, Shared, open_files},
    memory::MemoryGuard,
    tls::{Peer, PeerCertificate, ServerTls, Tls},
    transport::{Transport, read_preface},
};
use crate::{
    base::{
        clock::{Clock, wall},
        eviction::{EvictingPool, PoolPlace},
        task::Scope,
    },
    console::Metric,
    error::{Error, ErrorKind, Result},
    relay::server::access::Access,
};

/// How a server accepts connections.
#[derive(Debug, Clone)]
pub(crate) struct ServerConfig {
    pub(crate) listen: SocketAddr,
    pub(crate) limits: ServerLimits,
    /// The age at which the longest streams end by themselves, give or take a tenth.
    pub(crate) stream_max_age: Duration,
    /// `None`: plain text.
    pub(crate) tls: Option<ServerTls>,
    pub(crate) access: Access,
}

/// A listening server. Ends with [`Server::shutdown`], or at once when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    scope: Arc<Scope>,
    draining: CancellationToken,
    connections: Connections,
}

/// A bound port with its certificate. Connections are refused until [`Server::start`], so that a client
/// goes to another relay.
pub(crate) struct Port {
    socket: Socket,
    address: SocketAddr,
    tls: Option<Arc<Tls>>,
}

/// The connections of a server, for its metrics.
#[derive(Debug, Clone)]
pub(crate) struct Connections {
    max: usize,
    /// One permit for each connection that may still be established.
    permits: Arc<Semaphore>,
    /// Connections before their preface.
    handshakes: EvictingPool,
    shared: Arc<Shared>,
    tls: Option<Arc<Tls>>,
}

/// Maximum connections waiting to be accepted.
const BACKLOG: i32 = 1024;
/// The kernel's buffer for a peer that does not read. The kernel doubles it.
const SEND_BUFFER: usize = 32 * 1024;
/// A peer that has not acknowledged data for this long is dead.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(20);
/// Time from accept to preface: enough for a regular client on a bad network.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);
/// Time beyond the age of the longest streams, in which an old connection may end by itself.
const LAST_ANSWERS: Duration = Duration::from_secs(60);

impl Port {
    /// Binds the port, and reads the certificate.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`], with the address, if it cannot listen there;
    /// [`ErrorKind::Invalid`] if the TLS files do not fit, or a limit breaks its rule.
    pub(crate) fn bind(config: &ServerConfig) -> Result<Self> {
        config.limits.check()?;
        let failed = |error| cannot_listen(config.listen, error);
        let tls = config.tls.clone().map(Tls::load).transpose()?.map(Arc::new);
        let socket = bind(config.listen).map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        Ok(Self {
            socket,
            address: address.as_socket().unwrap_or(config.listen),
            tls,
        })
    }
}

impl Server {
    /// Serves the routes on every connection to the port. `short_of_memory` is told when the process
    /// comes near its limit of memory, and when there is room again.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`], with the address, if it cannot listen there.
    pub(crate) fn start(
        port: Port,
        config: &ServerConfig,
        routes: Routes,
        draining: CancellationToken,
        short_of_memory: impl Fn(bool) + Send + Sync + 'static,
    ) -> Result<Self> {
        let Port {
            socket,
            address,
            tls,
        } = port;
        let listener = listen(socket).map_err(|error| cannot_listen(address, error))?;
        let scope = Arc::new(Scope::new());
        let limits = config.limits.connections(config.listen);
        let limits = ConnectionLimits::new(limits, open_files());
        let shared = Shared::new(
            Arc::new(Incidents::new()),
            draining.clone(),
            Lifetimes {
                max_age: config.limits.max_connection_age,
                grace: config
                    .stream_max_age
                    .saturating_add(config.stream_max_age / 5)
                    .saturating_add(LAST_ANSWERS),
            },
            Arc::new(MemoryGuard::new(config.limits.max_memory)),
            config.limits.max_streams,
        );
        let memory = Arc::clone(&shared.memory);
        let short_of_memory = Arc::new(short_of_memory);
        scope.spawn_restarting("memory", move || {
            let short_of_memory = Arc::clone(&short_of_memory);
            Arc::clone(&memory).watch(move |is_short| short_of_memory(is_short))
        });
        let connections = Connections::new(limits, shared, tls.clone());
        if let Some(tls) = &tls {
            scope.spawn(Arc::clone(tls).follow());
        }
        if config.access.is_controlled() {
            let access = config.access.clone();
            scope.spawn_restarting("rules of access", move || access.clone().follow());
        }
        let accept = AcceptLoop {
            tls,
            access: config.access.clone(),
            routes: routes.prepare(),
            addresses: Addresses::new(config.limits.max_connections_per_address, config.listen),
            clock: Clock::new(),
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

    /// Ends each connection with its last stream, and all of them after `grace`.
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
                "grace period over; closing the remaining connections"
            );
        }
        self.scope.shutdown().await;
    }
}

impl Drop for Server {
    /// Cancels the scope. Dropping it is not enough, as the accept loop and all connections hold
    /// it.
    fn drop(&mut self) {
        self.scope.token().cancel();
    }
}

impl Connections {
    fn new(limits: ConnectionLimits, shared: Shared, tls: Option<Arc<Tls>>) -> Self {
        let max = limits.established.min(Semaphore::MAX_PERMITS);
        Self {
            max,
            permits: Arc::new(Semaphore::new(max)),
            handshakes: EvictingPool::new(limits.handshakes),
            shared: Arc::new(shared),
            tls,
        }
    }

    /// Returns the TLS of the connections.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_deref()
    }

    /// Returns the number of established connections.
    pub(crate) fn open(&self) -> usize {
        self.max - self.permits.available_permits()
    }

    /// Returns the maximum of established connections.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Returns the number of connections that newer ones displaced before their preface.
    pub(crate) fn evictions(&self) -> u64 {
        self.handshakes.evictions()
    }

    /// Returns the counters of misbehaving peers.
    pub(crate) fn incidents(&self) -> Vec<Metric> {
        self.shared.incidents.metrics()
    }

    /// Returns the number of open streams, and the maximum.
    pub(crate) fn streams(&self) -> (usize, usize) {
        self.shared.streams()
    }

    /// Returns the guard of the process's memory.
    pub(crate) fn memory(&self) -> &MemoryGuard {
        &self.shared.memory
    }

    /// Waits until another connection can be established. Cancel safe.
    async fn available(&self) {
        // Released at once: a connection acquires its permit after its preface.
        drop(self.permits.acquire().await.expect("never closed"));
    }
}

#[derive(Clone)]
struct AcceptLoop {
    tls: Option<Arc<Tls>>,
    access: Access,
    routes: Routes,
    addresses: Addresses,
    clock: Clock,
    draining: CancellationToken,
    connections: Connections,
}

impl AcceptLoop {
    async fn run(self, listener: TcpListener, scope: Arc<Scope>) {
        let mut failing = false;
        while let Some(accepted) = self.next(&listener).await {
            match accepted {
                Ok((stream, peer)) => {
                    failing = false;
                    let shared = &self.connections.shared;
                    if shared.memory.is_short() {
                        shared.incidents.note(Incident::ShortOfMemory, peer);
                        continue;
                    }
                    let Some(admitted) = self.addresses.admit(peer.ip(), self.clock.now()) else {
                        shared.incidents.note(Incident::AddressFull, peer);
                        continue;
                    };
                    let handshake = self.connections.handshakes.enter();
                    let this = self.clone();
                    let connection = async move {
                        let _address_guard = admitted.guard;
                        this.handle(stream, peer, handshake, admitted.place).await;
                    };
                    let span = tracing::debug_span!("connection", %peer);
                    scope.spawn(connection.instrument(span));
                }
                Err(error) => {
                    // Mostly a lack of file descriptors: logged once, and retried after a pause.
                    if !failing {
                        tracing::error!(%error, "cannot accept connections");
                    }
                    failing = true;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Waits for room and then for a connection; `None` once draining. The listener is then dropped
    /// at once, even by a full server. So clients in the backlog are refused and connect to another
    /// relay, instead of waiting for this one's end.
    async fn next(&self, listener: &TcpListener) -> Option<io::Result<(TcpStream, SocketAddr)>> {
        let next = async {
            self.connections.available().await;
            listener.accept().await
        };
        tokio::select! {
            biased;
            () = self.draining.cancelled() => None,
            next = next => Some(next),
        }
    }

    /// Runs a connection from preface to end.
    async fn handle(
        self,
        stream: TcpStream,
        peer: SocketAddr,
        handshake: PoolPlace,
        place: Option<PoolPlace>,
    ) {
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%error, "socket options");
        }
        let established = self.establish(stream, peer, handshake, place.as_ref());
        let Some((stream, _permit)) = established.await else {
            return;
        };
        tracing::debug!("a connection is open");
        let certificate = match &stream {
            Transport::Left(_) => PeerCertificate::default(),
            Transport::Right(stream) => PeerCertificate::of(stream.get_ref().1.peer_certificates()),
        };
        let left = certificate.left(wall());
        let peer = Arc::new(Peer::new(peer, certificate));
        let activity = Activity::new(peer, Arc::clone(&self.connections.shared))
            .certified_for(left)
            .unproven(place);
        let served = connection::serve(stream, self.routes, activity, self.access);
        match served.await {
            Ok(()) => tracing::debug!("the connection has ended"),
            Err(error) => tracing::debug!(%error, "the connection has ended"),
        }
    }

    /// Does the TLS handshake, reads the preface and acquires a connection's permit. Returns `None` after a deadline, when
    /// a newer connection displaces this one, or when the server drains.
    async fn establish(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        handshake: PoolPlace,
        place: Option<&PoolPlace>,
    ) -> Option<(Transport, OwnedSemaphorePermit)> {
        let preface_received = AtomicBool::new(false);
        let established = async {
            let mut stream = self.secure(stream, peer).await?;
            read_preface(&mut stream).await?;
            preface_received.store(true, Relaxed);
            let permit = Arc::clone(&self.connections.permits).acquire_owned().await;
            io::Result::Ok((stream, permit.expect("never closed")))
        };
        let displaced = async {
            match place {
                Some(place) => place.evicted().await,
                None => std::future::pending().await,
            }
        };
        let note_incident = || {
            let incident = match preface_received.load(Relaxed) {
                true => Incident::Full,
                false => Incident::Silent,
            };
            self.connections.shared.incidents.note(incident, peer);
        };
        tokio::select! {
            biased;
            () = self.draining.cancelled() => None,
            established = established => match established {
                Ok(established) => Some(established),
                Err(error) => {
                    if error.kind() == io::ErrorKind::InvalidData && self.tls.is_none() {
                        let incidents = &self.connections.shared.incidents;
                        incidents.note_error(Incident::OtherProtocol, peer, &error);
                    }
                    tracing::debug!(%error, "the connection has ended before its first request");
                    None
                }
            },
            () = handshake.evicted() => {
                note_incident();
                None
            }
            () = displaced => {
                self.connections.shared.incidents.note(Incident::AddressFull, peer);
                None
            }
            () = tokio::time::sleep(HANDSHAKE_DEADLINE) => {
                note_incident();
                None
            }
        }
    }

    /// Does the TLS handshake, if the server has TLS.
    async fn secure(&self, stream: TcpStream, peer: SocketAddr) -> io::Result<Transport> {
        let Some(tls) = &self.tls else {
            return Ok(Transport::Left(stream));
        };
        match tls.accept(stream).await {
            Ok(stream) => Ok(Transport::Right(Box::new(stream))),
            Err(error) => {
                let incidents = &self.connections.shared.incidents;
                incidents.note_error(Incident::Handshake, peer, &error);
                Err(error)
            }
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // A restart need not wait for connections of the previous process.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn listen(socket: Socket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

fn cannot_listen(address: SocketAddr, error: io::Error) -> Error {
    let message = format!("cannot listen on {address}");
    Error::new(ErrorKind::Unavailable, message).with_source(error)
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
