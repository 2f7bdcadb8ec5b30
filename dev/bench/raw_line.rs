//! The lines of a peer's protocol.

/// The kind of a line from the peer, on a connection without messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// The peer has read all bytes before the last PING.
    Pong,
    /// The peer expects a PONG.
    Ping,
    /// A command has succeeded.
    Done,
    /// A command was refused.
    Error,
    /// Part of an answer, or information about the server.
    Other,
}
