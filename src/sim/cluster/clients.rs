//! The network between listeners and relays: one connection for each stream, in order.
//!
//! A connection that is reset ends at both ends soon. One of a paused relay is silent.

use std::time::Duration;

use super::{
    hidden::Hidden,
    world::{Event, World},
};
use crate::{
    base::clock::Tick,
    error::Error,
    types::{Report, SubscribeEvent, SubscribeOptions},
};

/// Names a connection.
pub(super) type ConnId = usize;

/// The connection of one stream.
#[derive(Debug)]
pub(super) struct Conn {
    /// The listener that opened it, and the listener's life.
    pub(super) listener: (usize, u64),
    pub(super) relay: usize,
    /// The relay's run that took it; `None` before.
    pub(super) life: Option<u64>,
    /// The subscription at the relay.
    pub(super) subscription: Option<u128>,
    pub(super) reset: bool,
    pub(super) client_gone: bool,
    pub(super) relay_gone: bool,
    pub(super) hidden: Hidden,
    up_at: Tick,
    down_at: Tick,
}

/// What a listener sends.
#[derive(Debug)]
pub(super) enum Up {
    Subscribe(Box<SubscribeOptions>),
    Report(Box<Report>),
    Close,
}

/// What a relay sends.
#[derive(Debug)]
pub(super) enum Down {
    Opened,
    Event(Box<SubscribeEvent>),
    Closed(Option<Error>),
}

impl World {
    pub(super) fn open_conn(&mut self, listener: (usize, u64), relay: usize) -> ConnId {
        self.conns.push(Conn {
            listener,
            relay,
            life: None,
            subscription: None,
            reset: false,
            client_gone: false,
            relay_gone: false,
            hidden: Hidden::default(),
            up_at: self.now,
            down_at: self.now,
        });
        self.conns.len() - 1
    }

    pub(super) fn send_up(&mut self, id: ConnId, message: Up) {
        let at = self.now + self.transit();
        let conn = &mut self.conns[id];
        if conn.reset {
            return;
        }
        conn.up_at = conn.up_at.max(at);
        let at = conn.up_at;
        self.at(at, Event::ToRelay(id, message));
    }

    pub(super) fn send_down(&mut self, id: ConnId, message: Down) {
        let at = self.now + self.transit();
        let conn = &mut self.conns[id];
        if conn.reset || conn.client_gone {
            return;
        }
        conn.down_at = conn.down_at.max(at);
        let at = conn.down_at;
        self.at(at, Event::ToClient(id, message));
    }

    /// The listener drops its connection.
    pub(super) fn drop_conn(&mut self, id: ConnId) {
        if !std::mem::replace(&mut self.conns[id].client_gone, true) {
            self.send_up(id, Up::Close);
        }
    }

    /// The connection is reset: both ends see it soon.
    pub(super) fn reset_conn(&mut self, id: ConnId) {
        self.conns[id].reset = true;
        self.within_millis(50, Event::ClientBroken(id));
        self.within_millis(50, Event::RelayBroken(id));
    }

    /// Returns the time of a message in flight.
    pub(super) fn transit(&mut self) -> Duration {
        Duration::from_micros(self.rng.u64(100..20_000))
    }
}
