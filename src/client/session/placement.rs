//! Selects the connection of a new stream.
//!
//! A connection's window covers the unread bytes of all of its streams, so an unread stream never
//! blocks another. The streams of a connection are therefore bounded; more streams open further
//! connections. A retired connection takes no new streams. Holds numbers only: the driver owns the
//! connections.

use crate::base::fault::planted;

/// Identifies a connection within one [`Placement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConnectionNumber(u64);

/// How many streams share a connection, and when an idle connection closes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlacementConfig {
    /// Maximum streams of one connection.
    pub(crate) streams: usize,
    /// Keeps one connection open while it has no stream.
    pub(crate) keep_idle: bool,
}

/// The connections, each with its number of streams.
#[derive(Debug)]
pub(crate) struct Placement {
    config: PlacementConfig,
    connections: Vec<ConnectionEntry>,
    next: u64,
}

#[derive(Debug)]
struct ConnectionEntry {
    number: ConnectionNumber,
    streams: usize,
    /// Takes no new streams.
    retired: bool,
}

/// Streams of one connection. With a window of 64 KiB each, up to 16 MiB are unread on it, far
/// below HTTP/2's maximum window of 2 GiB. More streams would share one core (a connection is one
/// task) and one socket's failures. The relay accepts 1,000.
pub(crate) const STREAMS_PER_CONNECTION: usize = 256;
/// Maximum unread bytes of a stream. Later wake-ups of a slow reader then conflate at the relay.
pub(crate) const STREAM_WINDOW: u32 = 64 * 1024;

impl Placement {
    pub(crate) fn new(config: PlacementConfig) -> Self {
        Self {
            config,
            connections: Vec::new(),
            next: 0,
        }
    }

    /// Returns the number of stream windows that a connection's window covers. It covers all of
    /// them, so that an unread stream never blocks another.
    pub(crate) fn window_streams(&self) -> usize {
        if planted!(ConnectionWindowNarrow) {
            return 1;
        }
        self.config.streams
    }

    /// Adds a stream to a connection; to a new one if all are full or retired.
    pub(crate) fn add(&mut self) -> ConnectionNumber {
        let max_streams = self.config.streams;
        let mut connections = self.connections.iter_mut();
        if let Some(entry) = connections.find(|entry| entry.streams < max_streams && !entry.retired)
        {
            entry.streams += 1;
            return entry.number;
        }
        self.next += 1;
        let number = ConnectionNumber(self.next);
        self.connections.push(ConnectionEntry {
            number,
            streams: 1,
            retired: false,
        });
        number
    }

    /// Removes an ended stream. Returns whether the driver must close the connection.
    pub(crate) fn remove(&mut self, number: ConnectionNumber) -> bool {
        let keeps = self.config.keep_idle && !self.has_other_open(number);
        let Some(at) = self.find(number) else {
            return false;
        };
        let entry = &mut self.connections[at];
        entry.streams = entry.streams.saturating_sub(1);
        let closes = entry.streams == 0 && (entry.retired || !keeps);
        if closes {
            self.connections.remove(at);
        }
        closes
    }

    /// Retires a connection that seems dead: its streams stay, new streams go to another one.
    pub(crate) fn retire(&mut self, number: ConnectionNumber) {
        if let Some(at) = self.find(number) {
            self.connections[at].retired = true;
        }
    }

    /// Retires all connections: new streams are to go to another relay. Returns those without a
    /// stream, which the driver must close.
    pub(crate) fn retire_all(&mut self) -> Vec<ConnectionNumber> {
        let is_empty = |entry: &mut ConnectionEntry| entry.streams == 0;
        let closed = self.connections.extract_if(.., is_empty);
        let closed = closed.map(|entry| entry.number).collect();
        for entry in &mut self.connections {
            entry.retired = true;
        }
        closed
    }

    /// Returns whether the connection takes no new streams.
    pub(crate) fn is_retired(&self, number: ConnectionNumber) -> bool {
        self.find(number)
            .is_none_or(|at| self.connections[at].retired)
    }

    /// Returns whether another connection takes streams.
    fn has_other_open(&self, number: ConnectionNumber) -> bool {
        let mut others = self.connections.iter();
        others.any(|entry| entry.number != number && !entry.retired)
    }

    fn find(&self, number: ConnectionNumber) -> Option<usize> {
        let mut connections = self.connections.iter();
        connections.position(|entry| entry.number == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(streams: usize, keep_idle: bool) -> Placement {
        Placement::new(PlacementConfig { streams, keep_idle })
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
    fn a_retired_connection_takes_no_more_streams_and_closes_with_its_last_one() {
        let mut placement = placement(9, true);
        let (first, same) = (placement.add(), placement.add());
        assert_eq!(first, same);
        placement.retire(first);
        assert!(placement.is_retired(first));
        let second = placement.add();
        assert_ne!(first, second);
        assert!(!placement.remove(first));
        assert!(placement.remove(first));
        assert!(placement.is_retired(first), "it is gone");
    }

    #[test]
    fn where_all_connections_are_retired_the_next_stream_opens_one() {
        let mut placement = placement(1, true);
        let known = [placement.add(), placement.add()];
        placement.remove(known[1]);
        placement.remove(known[0]);
        let known = [placement.add(), placement.add()];
        assert_eq!(placement.retire_all(), []);
        assert!(known.iter().all(|number| placement.is_retired(*number)));
        let next = placement.add();
        assert!(!known.contains(&next) && !placement.is_retired(next));
        assert!(!placement.remove(next), "it is kept for the next call");
        assert_eq!(placement.retire_all(), [next], "no lease would close it");
    }

    #[test]
    fn one_connection_is_kept_for_the_next_call() {
        let mut placement = placement(1, true);
        let (first, second) = (placement.add(), placement.add());
        assert!(
            placement.remove(second),
            "the first connection takes streams"
        );
        assert!(!placement.remove(first));
        assert_eq!(placement.add(), first);
        placement.retire(first);
        assert!(placement.remove(first));
    }

    #[test]
    fn a_connections_window_covers_the_windows_of_all_its_streams() {
        let placement = placement(STREAMS_PER_CONNECTION, false);
        let window = u64::from(STREAM_WINDOW) * placement.window_streams() as u64;
        assert_eq!(window, 16 * 1024 * 1024);
        assert!(i32::try_from(window).is_ok(), "HTTP/2's limit");
    }
}
