//! The model network: connections that deliver in order, late, not at all, or break.
//!
//! A stream has its own connection, unless the listeners belong to one client (see `shared`). A
//! partition delays all frames until it ends, as TCP does. A silent break drops them for ever, in
//! one direction or both. A reset ends the connection, and one end may learn of it late. Unary
//! calls have no connection (see `reports`).

use std::time::Duration;

use super::world::{Event, World};
use crate::{
    base::clock::Tick,
    error::Error,
    types::{Notification, SubscribeEvent, SubscribeOptions},
    wire::NotifyAnswer,
};

/// Names a connection.
pub(super) type ConnId = usize;

/// The node that opened a connection, and its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    Listener(usize, u64),
    Publisher(usize, u64),
}

/// One stream's connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) client: Client,
    /// The relay's life that took it; `None` before.
    pub(super) relay_life: Option<u64>,
    /// Its connection, if that is shared with other streams.
    pub(super) shared: Option<usize>,
    /// No frame arrives any more, in this direction or the other.
    pub(super) cut_up: bool,
    pub(super) cut_down: bool,
    pub(super) reset: bool,
    pub(super) client_gone: bool,
    pub(super) relay_gone: bool,
    /// The client has read its Welcome.
    pub(super) welcomed: bool,
    pub(super) opened_at: Tick,
    up_at: Tick,
    down_at: Tick,
}

/// What a client sends.
#[derive(Debug)]
pub(super) enum Up {
    Subscribe(Box<SubscribeOptions>),
    OpenNotify,
    Notify(Vec<Notification>),
    Close,
}

/// What a relay sends.
#[derive(Debug)]
pub(super) enum Down {
    Opened,
    Event(Box<SubscribeEvent>),
    Answer(NotifyAnswer),
    Closed(Option<Error>),
}

/// Both ends of a connection learn of a reset within this many milliseconds.
const SEEN_WITHIN: u64 = 50;

impl World {
    pub(super) fn connect(&mut self, client: Client) -> ConnId {
        self.conns.push(Conn {
            client,
            relay_life: None,
            shared: None,
            cut_up: false,
            cut_down: false,
            reset: false,
            client_gone: false,
            relay_gone: false,
            welcomed: false,
            opened_at: self.now,
            up_at: self.now,
            down_at: self.now,
        });
        self.conns.len() - 1
    }

    pub(super) fn send_up(&mut self, id: ConnId, message: Up) {
        let held = self.held_until(self.conns[id].client);
        let at = (self.now + self.transit()).max(held);
        let conn = &mut self.conns[id];
        if conn.cut_up || conn.reset {
            return;
        }
        conn.up_at = conn.up_at.max(at);
        let at = conn.up_at;
        self.at(at, Event::ToRelay(id, message));
    }

    pub(super) fn send_down(&mut self, id: ConnId, message: Down) {
        let held = self.held_until(self.conns[id].client);
        let at = (self.now + self.transit()).max(held);
        let conn = &mut self.conns[id];
        if conn.cut_down || conn.reset || conn.client_gone {
            return;
        }
        conn.down_at = conn.down_at.max(at);
        let at = conn.down_at;
        self.at(at, Event::ToClient(id, message));
    }

    /// The client drops its connection.
    pub(super) fn drop_conn(&mut self, id: ConnId) {
        if !std::mem::replace(&mut self.conns[id].client_gone, true) {
            self.send_up(id, Up::Close);
        }
    }

    /// The connection is reset: the client sees it at once, the relay soon or with its next ping.
    pub(super) fn reset(&mut self, id: ConnId, relay_sees: bool) {
        let within = self.rng.u64(0..SEEN_WITHIN);
        self.conns[id].reset = true;
        self.after_millis(within, Event::ClientBroken(id));
        if relay_sees {
            let within = self.rng.u64(0..SEEN_WITHIN);
            self.after_millis(within, Event::RelayBroken(id));
        } else {
            self.relay_pings(id);
        }
    }

    /// The connection falls silent.
    pub(super) fn silence(&mut self, id: ConnId, up: bool, down: bool) {
        self.conns[id].cut_up |= up;
        self.conns[id].cut_down |= down;
        self.relay_pings(id);
    }

    /// Returns the time of a frame in flight.
    pub(super) fn transit(&mut self) -> Duration {
        Duration::from_micros(self.rng.u64(100..40_000))
    }

    /// The relay's ping is not answered: it learns of a dead connection within 30 s.
    fn relay_pings(&mut self, id: ConnId) {
        let within = self.rng.u64(10_000..30_000);
        self.after_millis(within, Event::RelayBroken(id));
    }

    fn held_until(&self, client: Client) -> Tick {
        match client {
            Client::Listener(number, _) => self.listeners[number].partition_until,
            Client::Publisher(number, _) => self.publishers[number].partition_until,
        }
    }
}
