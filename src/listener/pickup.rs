//! Who has a message of a stream: its reader, or the listener again.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

/// Decides whether a reader takes a message from its stream or the listener withdraws it: exactly
/// one of the two happens.
#[derive(Debug, Default)]
pub(super) struct Pickup {
    ended: AtomicBool,
    taken: CancellationToken,
}

impl Pickup {
    /// Takes the message; returns false if it was withdrawn.
    pub(super) fn take(&self) -> bool {
        let first = !self.ended.swap(true, Ordering::AcqRel);
        if first {
            self.taken.cancel();
        }
        first
    }

    /// Withdraws the message; returns false if it was taken.
    pub(super) fn withdraw(&self) -> bool {
        !self.ended.swap(true, Ordering::AcqRel)
    }

    /// Waits until the message is taken.
    pub(super) async fn taken(&self) {
        self.taken.cancelled().await;
    }
}
