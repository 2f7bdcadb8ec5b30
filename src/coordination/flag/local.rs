//! A watch of a flag within the relay's own process.

use std::{future::poll_fn, task::Poll, time::Duration};

use async_trait::async_trait;

use super::{Event, Flags, WallClock, WatchGuard};
use crate::{
    base::backoff::Backoff,
    error::Result,
    types::{FlagName, FlagState, FlagWatch, ListenerId},
};

/// Watches a flag in this process. It is registered on creation.
pub(crate) struct LocalWatch {
    watch: WatchGuard,
    wall: WallClock,
}

/// Back-off after a failed read of the store: first and longest wait.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

impl LocalWatch {
    pub(crate) fn new(
        flags: &Flags,
        name: &FlagName,
        listener: ListenerId,
        wall: WallClock,
    ) -> Self {
        let watch = flags.watch(name, listener, false);
        Self { watch, wall }
    }

    /// Reads the store until a read counts. Returns only final errors.
    async fn sync(&self) -> Result<()> {
        let mut backoff = Backoff::new(RETRY_BACKOFF.0, RETRY_BACKOFF.1);
        loop {
            match self.watch.sync((self.wall)()).await {
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, "a flag cannot be watched yet");
                    tokio::time::sleep(backoff.next(&mut fastrand::Rng::new())).await;
                }
                synced => return synced,
            }
        }
    }

    /// Waits for the next state and skips other events.
    async fn state(&self) -> FlagState {
        poll_fn(|context| {
            loop {
                match self.watch.next_event(context.waker()) {
                    Some(Event::State(state)) => return Poll::Ready(FlagState::clone(&state)),
                    Some(_) => {}
                    None => return Poll::Pending,
                }
            }
        })
        .await
    }
}

#[async_trait]
impl FlagWatch for LocalWatch {
    async fn next(&mut self) -> Option<Result<FlagState>> {
        tokio::select! {
            biased;
            state = self.state() => Some(Ok(state)),
            // After the synchronization, only states are waited for.
            Err(error) = self.sync() => Some(Err(error)),
        }
    }

    async fn ack(&mut self, generation: u64) -> Result<()> {
        self.watch.ack(generation)
    }
}

impl std::fmt::Debug for LocalWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LocalWatch").field(&self.watch).finish()
    }
}
