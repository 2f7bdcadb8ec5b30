//! A subscriber's position in a queue, as a token that only the relay reads.

use bytes::Bytes;

use super::Selector;

/// An opaque position in a queue. The subscriber keeps it, and the relay that issued it reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Token(pub Bytes);

/// A subscriber's position in one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The queue. The relay also accepts a pattern here, and ignores it.
    pub queue: Selector,
    /// The position's token.
    pub token: Token,
}

impl Token {
    /// Returns whether the token is empty, so that there is no position.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
