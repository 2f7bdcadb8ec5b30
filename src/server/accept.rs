//! The accept loop: socket options, a cap on connections, and an end in bounded time.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
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

use super::connection;
use crate::{
    error::{Error, ErrorKind, Result},
    task::Scope,
};

/// How a server takes connections.
#[derive(Debug, Clone)]
pub(crate) struct ServerConfig {
    pub(crate) listen: SocketAddr,
    /// Connections at one time; further ones wait in the backlog.
    pub(crate) max_connections: usize,
}

/// A server that listens. Ends with [`Server::shutdown`], or at once when it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    scope: Arc<Scope>,
    draining: CancellationToken,
    connections: Arc<AtomicU64>,
}

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// What the kernel holds for a reader that does not read. The kernel doubles it.
const SEND_BUFFER: usize = 32 * 1024;
/// A peer that has not acknowledged data for this long is gone.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(20);

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
        let connections = Arc::new(AtomicU64::new(0));
        let accept = Accept {
            routes: routes.prepare(),
            permits: Arc::new(Semaphore::new(
                config.max_connections.min(Semaphore::MAX_PERMITS),
            )),
            draining: draining.clone(),
            connections: Arc::clone(&connections),
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

    /// Returns the count of open connections, kept by the accept loop.
    pub(crate) fn connections(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.connections)
    }

    /// Ends connections: each when its streams have ended, all after `grace`.
    pub(crate) async fn shutdown(&self, grace: Duration) {
        self.draining.cancel();
        let idle = async {
            while self.connections.load(Ordering::Acquire) > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(grace, idle).await.is_err() {
            let left = self.connections.load(Ordering::Acquire);
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

struct Accept {
    routes: Routes,
    permits: Arc<Semaphore>,
    draining: CancellationToken,
    connections: Arc<AtomicU64>,
}

/// The room for a connection, and the connection.
type Next = (OwnedSemaphorePermit, io::Result<(TcpStream, SocketAddr)>);

/// Counts a connection while it lives.
struct Counted(Arc<AtomicU64>);

impl Accept {
    async fn run(self, listener: TcpListener, scope: Arc<Scope>) {
        let mut failing = false;
        loop {
            let Some((permit, accepted)) = self.next(&listener).await else {
                return;
            };
            match accepted {
                Ok((stream, peer)) => {
                    failing = false;
                    let counted = Counted::new(&self.connections);
                    let routes = self.routes.clone();
                    let draining = self.draining.clone();
                    scope.spawn(async move {
                        let _held = (permit, counted);
                        if let Err(error) = prepare(&stream) {
                            tracing::debug!(%peer, %error, "socket options");
                        }
                        if let Err(error) = connection::serve(stream, routes, draining).await {
                            tracing::debug!(%peer, %error, "connection ended");
                        }
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
    async fn next(&self, listener: &TcpListener) -> Option<Next> {
        let next = async {
            let permit = Arc::clone(&self.permits).acquire_owned().await;
            (permit.expect("never closed"), listener.accept().await)
        };
        tokio::select! {
            biased;
            () = self.draining.cancelled() => None,
            next = next => Some(next),
        }
    }
}

impl Counted {
    fn new(count: &Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
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
