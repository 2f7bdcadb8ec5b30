//! A flag's watch within the relay's own process.

use std::{future::poll_fn, task::Poll, time::Duration};

use async_trait::async_trait;

use super::{Event, Flags, Wall, Watch};
use crate::{
    backoff::Backoff,
    error::Result,
    words::{FlagName, FlagState, FlagWatch, ListenerId},
};

/// Watches a flag in this process; registered from the beginning.
pub(crate) struct LocalWatch {
    watch: Watch,
    wall: Wall,
}

/// A store that cannot be read is tried again after a wait that grows so far.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

impl LocalWatch {
    pub(crate) fn new(flags: &Flags, name: &FlagName, listener: ListenerId, wall: Wall) -> Self {
        let watch = flags.watch(name, listener, false);
        Self { watch, wall }
    }

    /// Reads the store until that counts; returns only what is final.
    async fn settle(&self) -> Result<()> {
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        loop {
            match self.watch.settle((self.wall)()).await {
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, "a flag cannot be watched yet");
                    tokio::time::sleep(backoff.next(&mut fastrand::Rng::new())).await;
                }
                settled => return settled,
            }
        }
    }

    /// Waits for what is owed, and takes the states out of it.
    async fn state(&self) -> FlagState {
        poll_fn(|context| {
            loop {
                match self.watch.owed(context.waker()) {
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
            // Once it is settled, a state is all that is waited for.
            Err(error) = self.settle() => Some(Err(error)),
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
