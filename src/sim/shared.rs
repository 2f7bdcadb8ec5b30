//! Listeners of one client, whose streams share connections.
//!
//! A connection falls silent or breaks with all of its streams; a stream that is opened on a silent one
//! is silent as well.

use super::{
    net::{Client, ConnId},
    plan::Trouble,
    world::World,
};

/// The connections of the client. A connection's number is its index.
#[derive(Debug)]
pub(super) struct Shared {
    /// Maximum streams of a connection.
    streams: usize,
    connections: Vec<SharedConnection>,
}

#[derive(Debug, Default)]
struct SharedConnection {
    streams: usize,
    /// Takes no new streams.
    retired: bool,
    silent_up: bool,
    silent_down: bool,
}

impl Shared {
    pub(super) fn new(streams: usize) -> Self {
        Self {
            streams,
            connections: Vec::new(),
        }
    }

    /// Adds a stream to a connection; to a new one if all are full or retired.
    fn lease(&mut self) -> usize {
        let has_room = |one: &SharedConnection| one.streams < self.streams && !one.retired;
        let number = self.connections.iter().position(has_room);
        let number = number.unwrap_or_else(|| {
            self.connections.push(SharedConnection::default());
            self.connections.len() - 1
        });
        self.connections[number].streams += 1;
        number
    }

    fn release(&mut self, number: usize) {
        self.connections[number].streams -= 1;
    }
}

impl World {
    /// A listener opens a stream, on its previous connection unless it left that.
    pub(super) fn share(&mut self, listener: usize, id: ConnId) {
        let Some(shared) = &mut self.shared else {
            return;
        };
        let lease = &mut self.listeners[listener].lease;
        if let Some(left) = lease.take_if(|number| shared.connections[*number].retired) {
            shared.release(left);
        }
        let number = *lease.get_or_insert_with(|| shared.lease());
        if self.listeners[listener].left == Some(number) {
            self.violate(|| {
                format!("R6: listener {listener} is back on the connection that fell silent")
            });
            return;
        }
        let conn = &mut self.conns[id];
        conn.shared = Some(number);
        let connection = &shared.connections[number];
        (conn.cut_up, conn.cut_down) = (connection.silent_up, connection.silent_down);
    }

    /// A listener's stream was silent for too long.
    pub(super) fn leave_connection(&mut self, listener: usize) {
        if let Some(shared) = &mut self.shared
            && let Some(number) = self.listeners[listener].lease.take()
        {
            shared.connections[number].retired = true;
            shared.release(number);
            self.listeners[listener].left = Some(number);
        }
    }

    /// A listener is gone.
    pub(super) fn release_connection(&mut self, listener: usize) {
        if let Some(shared) = &mut self.shared
            && let Some(number) = self.listeners[listener].lease.take()
        {
            shared.release(number);
        }
    }

    /// A connection breaks with all its streams: returns the other streams, with their listeners.
    pub(super) fn break_others(&mut self, trouble: Trouble, id: ConnId) -> Vec<(ConnId, usize)> {
        let Some(number) = self.conns[id].shared else {
            return Vec::new();
        };
        let (up, down) = match trouble {
            Trouble::SilentUp => (true, false),
            Trouble::SilentDown => (false, true),
            Trouble::SilentBoth => (true, true),
            _ => (false, false),
        };
        if let Some(shared) = &mut self.shared {
            let connection = &mut shared.connections[number];
            connection.silent_up |= up;
            connection.silent_down |= down;
        }
        let others = self.conns.iter().enumerate().filter(|(other, conn)| {
            *other != id && conn.shared == Some(number) && !conn.client_gone && !conn.reset
        });
        let with_listener = |(other, conn): (ConnId, &super::net::Conn)| match conn.client {
            Client::Listener(listener, _) => Some((other, listener)),
            Client::Publisher(..) => None,
        };
        others.filter_map(with_listener).collect()
    }
}
