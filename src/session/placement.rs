//! Which connection a new stream goes to.
//!
//! A connection's window holds what all of its streams may hold unread, so that one that is not
//! read never stops another; hence a bound on its streams, and further connections beyond. A
//! connection that a driver has left takes no more streams. Holds numbers only: the connections
//! themselves are the driver's.

use crate::fault::{Fault, planted};

/// Names a connection of one placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConnectionNumber(u64);

/// How many streams share a connection, and what becomes of one without any.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlacementConfig {
    /// Streams of one connection at most.
    pub(crate) streams: usize,
    /// One connection stays open while it has no stream.
    pub(crate) keeps_one: bool,
    pub(crate) fault: Fault,
}

/// The connections and how many streams each has.
#[derive(Debug)]
pub(crate) struct Placement {
    config: PlacementConfig,
    connections: Vec<Place>,
    next: u64,
}

#[derive(Debug)]
struct Place {
    number: ConnectionNumber,
    streams: usize,
    /// It takes no more streams.
    left: bool,
}

/// Streams of one connection: with a window of 64 KiB each, 16 MiB may lie unread on it, far below
/// the 2 GiB that a window can count. More would share a core (a connection is one task) and the
/// fate of one socket; the relay takes 1,000.
pub(crate) const STREAMS: usize = 256;
/// A reader that does not read holds this much of a stream, no more, so that what it is owed
/// conflates at the relay.
pub(crate) const STREAM_WINDOW: u32 = 64 * 1024;

impl Placement {
    pub(crate) fn new(config: PlacementConfig) -> Self {
        Self {
            config,
            connections: Vec::new(),
            next: 0,
        }
    }

    /// Returns how many streams' windows that of a connection has room for: one that is not read
    /// never takes the room of another.
    pub(crate) fn windows(&self) -> usize {
        if planted!(self.config.fault, ConnectionWindowNarrow) {
            return 1;
        }
        self.config.streams
    }

    /// Adds a stream to a connection; to a new one where all are full or left.
    pub(crate) fn add(&mut self) -> ConnectionNumber {
        let most = self.config.streams;
        let mut connections = self.connections.iter_mut();
        if let Some(place) = connections.find(|place| place.streams < most && !place.left) {
            place.streams += 1;
            return place.number;
        }
        self.next += 1;
        let number = ConnectionNumber(self.next);
        self.connections.push(Place {
            number,
            streams: 1,
            left: false,
        });
        number
    }

    /// A stream of the connection has ended. Returns whether the connection is to be closed.
    pub(crate) fn remove(&mut self, number: ConnectionNumber) -> bool {
        let keeps = self.config.keeps_one && !self.has_another(number);
        let Some(at) = self.find(number) else {
            return false;
        };
        let place = &mut self.connections[at];
        place.streams = place.streams.saturating_sub(1);
        let closes = place.streams == 0 && (place.left || !keeps);
        if closes {
            self.connections.remove(at);
        }
        closes
    }

    /// The connection seems dead: its streams may stay on it, new ones go to another.
    pub(crate) fn leave(&mut self, number: ConnectionNumber) {
        if planted!(self.config.fault, SilentConnectionKept) {
            return;
        }
        if let Some(at) = self.find(number) {
            self.connections[at].left = true;
        }
    }

    /// Returns whether the connection takes no more streams.
    pub(crate) fn is_left(&self, number: ConnectionNumber) -> bool {
        self.find(number).is_none_or(|at| self.connections[at].left)
    }

    /// Returns whether a connection beside this one takes streams.
    fn has_another(&self, number: ConnectionNumber) -> bool {
        let mut others = self.connections.iter();
        others.any(|place| place.number != number && !place.left)
    }

    fn find(&self, number: ConnectionNumber) -> Option<usize> {
        let mut connections = self.connections.iter();
        connections.position(|place| place.number == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(streams: usize, keeps_one: bool) -> Placement {
        Placement::new(PlacementConfig {
            streams,
            keeps_one,
            fault: Fault::NONE,
        })
    }

    #[test]
    fn streams_fill_a_connection_before_the_next_one() {
        let mut placement = placement(2, false);
        let numbers: Vec<_> = (0..5).map(|_| placement.add().0).collect();
        assert_eq!(numbers, [1, 1, 2, 2, 3]);
        assert!(!placement.remove(ConnectionNumber(1)));
        assert_eq!(placement.add().0, 1, "there is room again");
        assert!(placement.remove(ConnectionNumber(3)), "its only stream");
        assert_eq!(placement.add().0, 4);
    }

    #[test]
    fn a_connection_that_was_left_takes_no_more_and_closes_with_its_last_stream() {
        let mut placement = placement(9, true);
        let (first, same) = (placement.add(), placement.add());
        assert_eq!(first, same);
        placement.leave(first);
        assert!(placement.is_left(first));
        let second = placement.add();
        assert_ne!(first, second);
        assert!(!placement.remove(first));
        assert!(placement.remove(first));
        assert!(placement.is_left(first), "it is gone");
    }

    #[test]
    fn one_connection_is_kept_for_the_next_call() {
        let mut placement = placement(1, true);
        let (first, second) = (placement.add(), placement.add());
        assert!(placement.remove(second), "the other one takes streams");
        assert!(!placement.remove(first));
        assert_eq!(placement.add(), first);
        placement.leave(first);
        assert!(placement.remove(first));
    }

    #[test]
    fn a_connections_window_holds_what_all_its_streams_may_hold() {
        let placement = placement(STREAMS, false);
        let window = u64::from(STREAM_WINDOW) * placement.windows() as u64;
        assert_eq!(window, 16 * 1024 * 1024);
        assert!(i32::try_from(window).is_ok(), "HTTP/2's limit");
    }
}
