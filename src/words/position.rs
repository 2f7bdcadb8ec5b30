//! A subscriber's place in a queue, as a token that only the relay reads.

use bytes::Bytes;

use super::Selector;

/// An opaque place in a queue: kept by whoever subscribes, read by the relay that made it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Token(pub Bytes);

/// Where a subscriber stands in one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The queue; the relay also takes a selector's own name, and makes nothing of it.
    pub queue: Selector,
    /// Its place.
    pub token: Token,
}

impl Token {
    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
