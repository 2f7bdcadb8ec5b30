//! Connections to the relay, shared by streams and opened as these need them.
//!
//! A stream or a call *leases* a connection for as long as it lasts. A connection is made by its
//! first lease and closed with its last one. Where to put a stream is decided by `session`.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tonic::transport::{Channel, Endpoint};

use crate::{
    fault::Fault,
    session::{ConnectionNumber, Placement, PlacementConfig, STREAM_WINDOW, STREAMS},
    task::{Scope, TaskGroup},
};

/// The connections of one kind.
#[derive(Debug)]
pub(super) struct Pool {
    endpoint: Endpoint,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    placement: Placement,
    connections: HashMap<ConnectionNumber, Connection>,
}

/// A connection, and the task that drives it. Reconnects by itself after it was seen to break.
#[derive(Debug)]
struct Connection {
    channel: Channel,
    _scope: Scope,
}

/// A stream's or a call's right to a connection; ends when it is dropped.
pub(super) struct Lease {
    pool: Arc<Pool>,
    number: ConnectionNumber,
    channel: Channel,
}

/// The widest that HTTP/2 has; what may lie unread is bounded by the streams' windows. h2 closes a
/// connection whose unread DATA frames of less than 256 bytes fall short of 256 bytes by half of
/// this, added up. That is 4 MiB for each of 256 streams, and the shortest messages there are, of 5
/// bytes, fall short by 3.3 MB where they fill a stream's window.
const CONNECTION_WINDOW: u32 = i32::MAX as u32;

impl Pool {
    /// Makes a pool; one that `keeps_one` leaves a connection open for the next lease.
    pub(super) fn new(endpoint: Endpoint, keeps_one: bool) -> Arc<Self> {
        let placement = Placement::new(PlacementConfig {
            streams: STREAMS,
            keeps_one,
            fault: Fault::NONE,
        });
        let unread = u64::from(STREAM_WINDOW) * placement.windows() as u64;
        debug_assert!(unread <= u64::from(CONNECTION_WINDOW), "one stops another");
        let endpoint = endpoint
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let state = State {
            placement,
            connections: HashMap::new(),
        };
        Arc::new(Self {
            endpoint,
            state: Mutex::new(state),
        })
    }

    /// Leases a connection with room for one more stream. It is connected when first used.
    pub(super) fn lease(self: &Arc<Self>) -> Lease {
        let mut state = self.lock();
        let number = state.placement.add();
        let connections = &mut state.connections;
        let connection = connections.entry(number).or_insert_with(|| self.connect());
        Lease {
            pool: Arc::clone(self),
            number,
            channel: connection.channel.clone(),
        }
    }

    fn connect(&self) -> Connection {
        let (scope, parts) = (Scope::new(), TaskGroup::default());
        scope.spawn(parts.clone().run(std::future::pending()));
        Connection {
            channel: self.endpoint.clone().executor(parts).connect_lazy(),
            _scope: scope,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease {
    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Has new leases go to another connection: this one was silent for too long. Its other streams
    /// judge for themselves.
    pub(super) fn leave(&self) {
        self.pool.lock().placement.leave(self.number);
    }

    /// Returns whether the connection was left: it is not used for another stream.
    pub(super) fn is_left(&self) -> bool {
        self.pool.lock().placement.is_left(self.number)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        let closed = match state.placement.remove(self.number) {
            true => state.connections.remove(&self.number),
            false => None,
        };
        // The connection's end runs what else is on it: not under the lock.
        drop(state);
        drop(closed);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.number).finish()
    }
}
