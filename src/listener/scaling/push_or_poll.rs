//! Whether a listener is woken by a relay or polls, and when it changes from one to the other.

use crate::types::LinkState;

/// How a listener learns of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ListenerMode {
    /// By the relay's wake-ups: no task runs while there is no work.
    Pushed,
    /// The relay cannot be reached, or not all publishers can reach it: one task stays and polls,
    /// less and less often.
    Polling,
    /// There is no relay: one task stays and polls about once a second.
    PullOnly,
}

impl ListenerMode {
    /// Returns the mode after a change of the link to the relay.
    pub(crate) fn after(self, link: &LinkState) -> Self {
        match self {
            Self::PullOnly => Self::PullOnly,
            _ if link.is_pushed() => Self::Pushed,
            // The next stream reports all notifications that arrive until it is open.
            Self::Pushed if link.announced => Self::Pushed,
            _ => Self::Polling,
        }
    }
}
