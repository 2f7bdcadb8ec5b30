//! Connections to the relay, shared by streams and opened on demand.
//!
//! A stream or a call *leases* a connection for as long as it lasts. A connection opens with its
//! first lease and closes with its last one, unless it is the only one that takes new leases. A connection's
//! window covers the unread bytes of all of its streams, so an unread stream never blocks another.
//! The streams of a connection are therefore bounded; more streams open further connections.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use tonic::transport::Endpoint;

use super::{
    connector::Connector,
    credential::{Credential, RelayChannel},
};
use crate::base::{
    sync::lock,
    task::{Scope, TaskGroup},
};

/// Connections for streams, or connections for calls. One is kept open for the next lease.
#[derive(Debug)]
pub(super) struct Pool {
    opener: Opener,
    connections: Mutex<Vec<Arc<Connection>>>,
}

/// What a connection to a relay needs.
#[derive(Debug, Clone)]
pub(super) struct Opener {
    /// The number of the relay.
    pub(super) relay: usize,
    pub(super) endpoint: Endpoint,
    pub(super) connector: Connector,
    pub(super) credential: Credential,
}

/// A connection and the task that drives it. Reconnects by itself after a detected break.
#[derive(Debug)]
struct Connection {
    channel: RelayChannel,
    /// See [`Resolver::turn`](super::resolver::Resolver::turn).
    turn: usize,
    /// Changes under the pool's lock only.
    leases: AtomicUsize,
    /// Takes no new leases.
    retired: AtomicBool,
    _scope: Scope,
}

/// A stream's or a call's lease of a connection, until dropped.
#[derive(Debug)]
pub(super) struct Lease {
    pool: Arc<Pool>,
    connection: Arc<Connection>,
}

/// More streams would share one core (a connection is one task) and one socket's failures. The relay
/// accepts 1,000.
const LEASES_PER_CONNECTION: usize = 256;
/// Maximum unread bytes of a stream. Later wake-ups of a slow reader then conflate at the relay.
const STREAM_WINDOW: u32 = 64 * 1024;
/// HTTP/2's maximum window; the streams' windows bound the unread bytes. h2 adds up by how much
/// each unread DATA frame is shorter than 256 bytes, and closes the connection when the sum exceeds
/// half of this window. That is 4 MiB for each of 256 streams. The shortest messages, of 5 bytes,
/// add 3.3 MB when they fill a stream's window.
const CONNECTION_WINDOW: u32 = i32::MAX as u32;
// An unread stream would block another one.
const _: () = assert!(STREAM_WINDOW as usize * LEASES_PER_CONNECTION <= CONNECTION_WINDOW as usize);

impl Pool {
    pub(super) fn new(mut opener: Opener) -> Arc<Self> {
        opener.endpoint = opener
            .endpoint
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        Arc::new(Self {
            opener,
            connections: Mutex::default(),
        })
    }

    /// Leases a connection with room for one more stream. It connects at its first use.
    pub(super) fn lease(self: &Arc<Self>) -> Lease {
        let mut connections = lock(&self.connections);
        let connection = match connections.iter().find(|one| one.has_room()) {
            Some(connection) => Arc::clone(connection),
            None => {
                let connection = Arc::new(self.connect());
                connections.push(Arc::clone(&connection));
                connection
            }
        };
        connection.leases.fetch_add(1, Relaxed);
        Lease {
            pool: Arc::clone(self),
            connection,
        }
    }

    /// Retires all connections; see [`Lease::retire`].
    pub(super) fn retire_all(&self) {
        let mut connections = lock(&self.connections);
        let is_idle = |one: &mut Arc<Connection>| one.leases.load(Relaxed) == 0;
        let closed: Vec<_> = connections.extract_if(.., is_idle).collect();
        for connection in &*connections {
            connection.retired.store(true, Relaxed);
        }
        // Closing a connection drops its task's parts, so it happens outside of the lock.
        drop(connections);
        drop(closed);
    }

    fn connect(&self) -> Connection {
        let (scope, parts) = (Scope::new(), TaskGroup::default());
        scope.spawn(parts.clone().run(std::future::pending()));
        let opener = &self.opener;
        let endpoint = opener.endpoint.clone().executor(parts);
        let channel = opener.connector.connect_lazy(&endpoint);
        Connection {
            channel: opener.credential.clone().over(channel),
            turn: opener.connector.resolver.turn(),
            leases: AtomicUsize::new(0),
            retired: AtomicBool::new(false),
            _scope: scope,
        }
    }
}

impl Connection {
    fn is_retired(&self) -> bool {
        self.retired.load(Relaxed)
    }

    fn has_room(&self) -> bool {
        !self.is_retired() && self.leases.load(Relaxed) < LEASES_PER_CONNECTION
    }
}

impl Lease {
    pub(super) fn channel(&self) -> RelayChannel {
        self.connection.channel.clone()
    }

    /// Returns the number of the relay.
    pub(super) fn relay(&self) -> usize {
        self.pool.opener.relay
    }

    /// Returns which of the relay's addresses came first when the connection was made.
    pub(super) fn turn(&self) -> usize {
        self.connection.turn
    }

    /// Retires the connection after too long a silence, so that new leases use another one. Its
    /// other streams detect a dead connection themselves.
    pub(super) fn retire(&self) {
        self.connection.retired.store(true, Relaxed);
    }

    /// Returns whether the connection takes no new streams.
    pub(super) fn is_retired(&self) -> bool {
        self.connection.is_retired()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The connection closes after the lock is released, with this lease's reference to it.
        let mut connections = lock(&self.pool.connections);
        let was_last = self.connection.leases.fetch_sub(1, Relaxed) == 1;
        let is_other = |one: &Arc<Connection>| !Arc::ptr_eq(one, &self.connection);
        let has_other = || (connections.iter()).any(|one| is_other(one) && !one.is_retired());
        if was_last && (self.is_retired() || has_other()) {
            connections.retain(is_other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ClientConfig;

    fn pool() -> Arc<Pool> {
        let config = ClientConfig::default();
        let made = Connector::new("http://127.0.0.1:1", &config.tls, config.connect_timeout);
        let (endpoint, connector) = made.expect("valid");
        Pool::new(Opener {
            relay: 0,
            endpoint,
            connector,
            credential: config.credential,
        })
    }

    fn open(pool: &Pool) -> usize {
        lock(&pool.connections).len()
    }

    #[tokio::test]
    async fn streams_fill_a_connection_before_the_next_one() {
        let pool = pool();
        let mut leases: Vec<_> = (0..LEASES_PER_CONNECTION).map(|_| pool.lease()).collect();
        assert_eq!(open(&pool), 1);
        let next = pool.lease();
        assert_eq!(open(&pool), 2);
        leases.pop();
        leases.push(pool.lease());
        drop(next);
        assert_eq!(open(&pool), 1, "there was room again");
    }

    #[tokio::test]
    async fn a_retired_connection_takes_no_more_streams_and_closes_with_its_last_one() {
        let pool = pool();
        let (first, second) = (pool.lease(), pool.lease());
        first.retire();
        assert!(second.is_retired());
        let next = pool.lease();
        assert!(!next.is_retired());
        drop(first);
        assert_eq!(open(&pool), 2);
        drop(second);
        assert_eq!(open(&pool), 1);
    }

    #[tokio::test]
    async fn one_connection_is_kept_for_the_next_lease_unless_all_are_retired() {
        let pool = pool();
        let kept = Arc::clone(&pool.lease().connection);
        let lease = pool.lease();
        assert!(Arc::ptr_eq(&kept, &lease.connection));
        pool.retire_all();
        assert!(lease.is_retired());
        drop(lease);
        assert_eq!(open(&pool), 0);
        drop(pool.lease());
        assert_eq!(open(&pool), 1);
        pool.retire_all();
        assert_eq!(open(&pool), 0, "no lease would close it");
    }
}
