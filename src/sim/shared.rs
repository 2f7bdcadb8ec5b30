//! Listeners of one client, whose streams share connections with a bounded window.
//!
//! The production placement chooses a stream's connection, and limits the unread bytes on a
//! connection. A connection falls silent or breaks with all of its streams; a stream that is opened
//! on a silent one is silent as well.

use std::collections::BTreeMap;

use super::{
    net::{Client, ConnId},
    plan::Trouble,
    world::World,
};
use crate::{
    base::clock::Tick,
    client::session::{ConnectionNumber, Placement, PlacementConfig},
};

/// The connections of the client.
#[derive(Debug)]
pub(super) struct Shared {
    placement: Placement,
    /// The silent directions of a connection: up, down.
    silent: BTreeMap<ConnectionNumber, (bool, bool)>,
}

impl Shared {
    pub(super) fn new(streams: usize) -> Self {
        let config = PlacementConfig {
            streams,
            keep_idle: false,
        };
        Self {
            placement: Placement::new(config),
            silent: BTreeMap::new(),
        }
    }

    fn release(&mut self, number: ConnectionNumber) {
        if self.placement.remove(number) {
            self.silent.remove(&number);
        }
    }
}

impl World {
    /// A listener opens a stream, on its previous connection unless it left that.
    pub(super) fn share(&mut self, listener: usize, id: ConnId) {
        let Some(shared) = &mut self.shared else {
            return;
        };
        let lease = &mut self.listeners[listener].lease;
        if let Some(left) = lease.take_if(|number| shared.placement.is_retired(*number)) {
            shared.release(left);
        }
        let number = *lease.get_or_insert_with(|| shared.placement.add());
        if self.listeners[listener].left == Some(number) {
            self.violate(|| {
                format!("R6: listener {listener} is back on the connection that fell silent")
            });
            return;
        }
        let conn = &mut self.conns[id];
        conn.shared = Some(number);
        (conn.cut_up, conn.cut_down) = shared.silent.get(&number).copied().unwrap_or_default();
    }

    /// A listener's stream was silent for too long.
    pub(super) fn leave_connection(&mut self, listener: usize) {
        if let Some(shared) = &mut self.shared
            && let Some(number) = self.listeners[listener].lease.take()
        {
            shared.placement.retire(number);
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
            let silent = shared.silent.entry(number).or_default();
            *silent = (silent.0 | up, silent.1 | down);
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

    /// Returns until when nothing can be sent on a stream, because unread data of other streams
    /// fills the window of its connection.
    pub(super) fn window_full_until(&self, id: ConnId) -> Option<Tick> {
        let number = self.conns[id].shared?;
        let windows = self.shared.as_ref()?.placement.window_streams();
        let mut unread: Vec<Tick> = self
            .relay
            .streams
            .iter()
            .filter(|(other, _)| **other != id && self.conns[**other].shared == Some(number))
            // A client that drops a stream returns the window of its unread data.
            .filter(|(other, _)| !self.conns[**other].client_gone)
            .map(|(_, stream)| stream.blocked_until)
            .filter(|until| *until > self.now)
            .collect();
        unread.sort();
        let excess = unread.len().checked_sub(windows)?;
        unread.get(excess).copied()
    }
}
