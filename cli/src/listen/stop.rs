//! How `listen` ends without a signal.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Why `listen` ends without a signal.
#[derive(Debug)]
pub(super) enum StopReason {
    /// --count was reached.
    Counted,
    /// Nobody reads the output any more.
    Unread,
    /// The system cannot run the command at all.
    Unable(String),
}

/// Stops the worker and ends `listen`.
#[derive(Debug, Clone)]
pub(super) struct StopHandle {
    sender: mpsc::Sender<StopReason>,
    /// Once cancelled, no further command starts.
    pub(super) stopped: CancellationToken,
    emptied: Arc<AtomicBool>,
}

impl StopHandle {
    /// Returns the handle, and the receiver of the reason.
    pub(super) fn new() -> (Self, mpsc::Receiver<StopReason>) {
        let (sender, reasons) = mpsc::channel(1);
        let handle = Self {
            sender,
            stopped: CancellationToken::new(),
            emptied: Arc::default(),
        };
        (handle, reasons)
    }

    pub(super) fn end(&self, reason: StopReason) {
        // Only the first reason counts.
        let _ = self.sender.try_send(reason);
        self.stopped.cancel();
    }

    /// Records that the queue was found empty. Messages that were got before are still handled.
    pub(super) fn set_emptied(&self) {
        self.emptied.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_emptied(&self) -> bool {
        self.emptied.load(Ordering::Relaxed)
    }
}
