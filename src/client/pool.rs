//! Connections to the relay, shared by streams and opened on demand.
//!
//! A stream or a call *leases* a connection for as long as it lasts. A connection opens with its
//! first lease and closes with its last one. `session` selects the connection of a stream.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
};

use tonic::transport::Endpoint;

use super::{
    connector::Connector,
    credential::{Credential, RelayChannel},
};
use crate::{
    base::{
        sync::lock,
        task::{Scope, TaskGroup},
    },
    client::session::{
        ConnectionNumber, Placement, PlacementConfig, STREAM_WINDOW, STREAMS_PER_CONNECTION,
    },
};

/// Connections for streams, or connections for calls.
#[derive(Debug)]
pub(super) struct Pool {
    opener: Opener,
    state: Mutex<PoolState>,
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

#[derive(Debug)]
struct PoolState {
    placement: Placement,
    connections: HashMap<ConnectionNumber, Connection>,
}

/// A connection and the task that drives it. Reconnects by itself after a detected break.
#[derive(Debug)]
struct Connection {
    channel: RelayChannel,
    /// See [`Resolver::turn`](super::resolver::Resolver::turn).
    turn: usize,
    _scope: Scope,
}

/// A stream's or a call's lease of a connection, until dropped.
pub(super) struct Lease {
    pool: Arc<Pool>,
    number: ConnectionNumber,
    channel: RelayChannel,
    turn: usize,
}

/// HTTP/2's maximum window; the streams' windows bound the unread bytes. h2 adds up by how much
/// each unread DATA frame is shorter than 256 bytes, and closes the connection when the sum exceeds
/// half of this window. That is 4 MiB for each of 256 streams. The shortest messages, of 5 bytes,
/// add
/// 3.3 MB when they fill a stream's window.
const CONNECTION_WINDOW: u32 = i32::MAX as u32;

impl Pool {
    /// Creates a pool. With `keep_idle` it keeps one connection open for the next lease.
    pub(super) fn new(mut opener: Opener, keep_idle: bool) -> Arc<Self> {
        let placement = Placement::new(PlacementConfig {
            streams: STREAMS_PER_CONNECTION,
            keep_idle,
        });
        let unread = u64::from(STREAM_WINDOW) * placement.window_streams() as u64;
        debug_assert!(
            unread <= u64::from(CONNECTION_WINDOW),
            "an unread stream blocks another"
        );
        opener.endpoint = opener
            .endpoint
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let state = PoolState {
            placement,
            connections: HashMap::new(),
        };
        Arc::new(Self {
            opener,
            state: Mutex::new(state),
        })
    }

    /// Leases a connection with room for one more stream. It connects at its first use.
    pub(super) fn lease(self: &Arc<Self>) -> Lease {
        let mut state = self.lock();
        let number = state.placement.add();
        let connections = &mut state.connections;
        let connection = connections.entry(number).or_insert_with(|| self.connect());
        Lease {
            pool: Arc::clone(self),
            number,
            channel: connection.channel.clone(),
            turn: connection.turn,
        }
    }

    /// Retires all connections; see [`Lease::retire`].
    pub(super) fn retire_all(&self) {
        let mut state = self.lock();
        let closed = state.placement.retire_all();
        let connections = &mut state.connections;
        let closed: Vec<_> = closed.iter().map(|one| connections.remove(one)).collect();
        // Closing a connection drops its task's parts, so it happens outside of the lock.
        drop(state);
        drop(closed);
    }

    fn connect(&self) -> Connection {
        let (scope, parts) = (Scope::new(), TaskGroup::default());
        scope.spawn(parts.clone().run(std::future::pending()));
        let opener = &self.opener;
        let endpoint = opener.endpoint.clone().executor(parts);
        let channel = opener.connector.connect_lazy(&endpoint);
        Connection {
            turn: opener.connector.resolver.turn(),
            channel: RelayChannel::new(channel, opener.credential.clone()),
            _scope: scope,
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        lock(&self.state)
    }
}

impl Lease {
    pub(super) fn channel(&self) -> RelayChannel {
        self.channel.clone()
    }

    /// Returns the number of the relay.
    pub(super) fn relay(&self) -> usize {
        self.pool.opener.relay
    }

    /// Returns which of the relay's addresses came first when the connection was made.
    pub(super) fn turn(&self) -> usize {
        self.turn
    }

    /// Retires the connection after too long a silence, so that new leases use another one. Its
    /// other streams detect a dead connection themselves.
    pub(super) fn retire(&self) {
        self.pool.lock().placement.retire(self.number);
    }

    /// Returns whether the connection takes no new streams.
    pub(super) fn is_retired(&self) -> bool {
        self.pool.lock().placement.is_retired(self.number)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        let closed = if state.placement.remove(self.number) {
            state.connections.remove(&self.number)
        } else {
            None
        };
        // Closing the connection drops its task's parts, so it happens outside of the lock.
        drop(state);
        drop(closed);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.number).finish()
    }
}
