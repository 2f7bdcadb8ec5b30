//! What a machine accepts from others, and where it passes messages on.

use super::frames::FileId;
use crate::courier::config::Route;

/// The rules of a receiver.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    /// The id of the own file.
    pub(crate) own: FileId,
    /// The maximum size of a body, in bytes.
    pub(crate) max_body: usize,
    /// The maximum number of messages of a queue; beyond it, messages are postponed.
    pub(crate) max_queue: u64,
    /// The maximum number of messages that wait for other machines; beyond it, messages for other
    /// machines are postponed.
    pub(crate) max_outgoing: u64,
    /// The maximum number of machines that a message may pass.
    pub(crate) max_hops: usize,
    /// How long a message that passes through may wait here, in microseconds.
    pub(crate) max_age: Option<i64>,
    pub(crate) routes: Vec<Route>,
}

impl Policy {
    /// Returns the next machine of a message that passes through this one. Only a route allows it:
    /// a machine is no open relay.
    pub(crate) fn next_hop(&self, authority: &str) -> Option<&str> {
        Route::next_hop(&self.routes, authority)
    }
}
