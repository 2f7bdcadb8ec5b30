//! The accept loop: socket options, limits of connections, and a bounded shutdown.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::OwnedSemaphorePermit,
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{
    activity::Activity,
    all_connections::{Addresses, Connections},
    connection::{self, Transport, read_preface},
    incidents::Incident,
    server_limits::ServerLimits,
    service::ServiceRoutes,
    tls::{Peer, PeerCertificate, ServerTls, Tls},
};
use crate::{
    base::{evicting_pool::PoolPlace, task::Scope},
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
    connections: Arc<Connections>,
}

/// A bound port with its certificate. Connections are refused until [`Server::start`], so that a client
/// goes to another relay.
pub(crate) struct Port {
    socket: Socket,
    address: SocketAddr,
    tls: Option<Arc<Tls>>,
}

/// Maximum connections waiting to be accepted.
const BACKLOG: i32 = 1024;
/// The kernel's buffer for a peer that does not read. The kernel doubles it.
const SEND_BUFFER: usize = 32 * 1024;
/// A peer that has not acknowledged data for this long is dead.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(20);
/// Renewed files are in use after this time.
const REFRESH_EVERY: Duration = Duration::from_secs(10);
/// Time from accept to preface: enough for a regular client on a bad network.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);

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
        routes: ServiceRoutes,
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
        let connections = Arc::new(Connections::new(config, draining, tls));
        let memory = Arc::clone(&connections.memory);
        let short_of_memory = Arc::new(short_of_memory);
        scope.spawn_restarting("memory", move || {
            let short_of_memory = Arc::clone(&short_of_memory);
            Arc::clone(&memory).watch(move |is_short| short_of_memory(is_short))
        });
        let (access, tls) = (config.access.clone(), connections.tls.clone());
        scope.spawn_restarting("files of access and TLS", move || {
            refresh(access.clone(), tls.clone())
        });
        let accept = AcceptLoop {
            access: config.access.clone(),
            routes,
            addresses: Addresses::new(config.limits.max_connections_per_address, config.listen),
            connections: Arc::clone(&connections),
        };
        scope.spawn(accept.run(listener, Arc::clone(&scope)));
        Ok(Self {
            address,
            scope,
            connections,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn connections(&self) -> Arc<Connections> {
        Arc::clone(&self.connections)
    }

    /// Ends each connection with its last stream, and all of them after `grace`.
    pub(crate) async fn shutdown(&self, grace: Duration) {
        self.connections.draining.cancel();
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

#[derive(Clone)]
struct AcceptLoop {
    access: Access,
    routes: ServiceRoutes,
    addresses: Addresses,
    connections: Arc<Connections>,
}

impl AcceptLoop {
    async fn run(self, listener: TcpListener, scope: Arc<Scope>) {
        let mut failing = false;
        while let Some(accepted) = self.next(&listener).await {
            match accepted {
                Ok((stream, peer)) => {
                    failing = false;
                    let connections = &self.connections;
                    if connections.memory.is_short() {
                        connections.incidents.note(Incident::ShortOfMemory, peer);
                        continue;
                    }
                    let Some(address) = self.addresses.admit(peer.ip()) else {
                        connections.incidents.note(Incident::AddressFull, peer);
                        continue;
                    };
                    let handshake = self.connections.handshakes.enter();
                    let this = self.clone();
                    let connection = async move {
                        let _address = address;
                        this.handle(stream, peer, handshake).await;
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
            // Released at once: a connection acquires its permit after its preface.
            drop(
                self.connections
                    .permits
                    .acquire()
                    .await
                    .expect("never closed"),
            );
            listener.accept().await
        };
        tokio::select! {
            biased;
            () = self.connections.draining.cancelled() => None,
            next = next => Some(next),
        }
    }

    /// Runs a connection from preface to end.
    async fn handle(self, stream: TcpStream, peer: SocketAddr, handshake: PoolPlace) {
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%error, "socket options");
        }
        let Some((stream, _permit)) = self.establish(stream, peer, handshake).await else {
            return;
        };
        tracing::debug!("a connection is open");
        let certificate = match &stream {
            Transport::Left(_) => PeerCertificate::default(),
            Transport::Right(stream) => PeerCertificate::of(stream.get_ref().1.peer_certificates()),
        };
        let peer = Arc::new(Peer::new(peer, certificate));
        let activity = Activity::new(peer, Arc::clone(&self.connections));
        let served = connection::serve(stream, self.routes, activity, self.access);
        match served.await {
            Ok(()) => tracing::debug!("the connection has ended"),
            Err(error) => tracing::debug!(%error, "the connection has ended"),
        }
    }

    /// Does the TLS handshake, reads the preface and acquires a connection's permit. Returns `None` after a
    /// deadline, when a newer connection displaces this one, or when the server is full or drains.
    async fn establish(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        handshake: PoolPlace,
    ) -> Option<(Transport, OwnedSemaphorePermit)> {
        let established = async {
            let mut stream = self.secure(stream, peer).await?;
            read_preface(&mut stream).await?;
            io::Result::Ok(stream)
        };
        let incident = tokio::select! {
            biased;
            () = self.connections.draining.cancelled() => return None,
            established = established => match established {
                Ok(stream) => match Arc::clone(&self.connections.permits).try_acquire_owned() {
                    Ok(permit) => return Some((stream, permit)),
                    Err(_) => Incident::Full,
                },
                Err(error) => {
                    if error.kind() == io::ErrorKind::InvalidData && self.connections.tls.is_none() {
                        let incidents = &self.connections.incidents;
                        incidents.note_error(Incident::OtherProtocol, peer, &error);
                    }
                    tracing::debug!(%error, "the connection has ended before its first request");
                    return None;
                }
            },
            () = handshake.evicted() => Incident::Silent,
            () = tokio::time::sleep(HANDSHAKE_DEADLINE) => Incident::Silent,
        };
        self.connections.incidents.note(incident, peer);
        None
    }

    /// Does the TLS handshake, if the server has TLS.
    async fn secure(&self, stream: TcpStream, peer: SocketAddr) -> io::Result<Transport> {
        let Some(tls) = &self.connections.tls else {
            return Ok(Transport::Left(stream));
        };
        match tls.accept(stream).await {
            Ok(stream) => Ok(Transport::Right(Box::new(stream))),
            Err(error) => {
                let incidents = &self.connections.incidents;
                incidents.note_error(Incident::Handshake, peer, &error);
                Err(error)
            }
        }
    }
}

/// Reads the files again and again.
async fn refresh(access: Access, tls: Option<Arc<Tls>>) {
    loop {
        tokio::time::sleep(REFRESH_EVERY).await;
        access.refresh().await;
        if let Some(tls) = &tls {
            Arc::clone(tls).refresh().await;
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
