//! Waits with a watch only: released at once, but misses a set that happened before.

use super::{acknowledge, next};
use crate::{
    error::Result,
    types::{FlagState, FlagWatch},
};

/// Waits for an unleash after it began to listen. It is stateless on purpose: it ignores an earlier
/// unleash, and a node that starts too late waits for ever. [`Release`] does not.
///
/// [`Release`]: super::Release
#[derive(Debug)]
pub struct ListeningRelease {
    watch: Box<dyn FlagWatch>,
    /// Whether the flag was set in the last state, and its generation.
    last_state: Option<(bool, u64)>,
}

impl ListeningRelease {
    /// Makes a release that listens on `watch` from the watch's beginning.
    pub fn new(watch: impl FlagWatch) -> Self {
        Self {
            watch: Box::new(watch),
            last_state: None,
        }
    }

    /// Waits until the flag is set anew, and returns its state.
    ///
    /// # Errors
    /// Only a final error: the watch was refused or closed.
    ///
    /// # Cancel safety
    /// Safe: it may be called again, and misses nothing in between.
    pub async fn wait(&mut self) -> Result<FlagState> {
        loop {
            let state = next(&mut *self.watch).await?;
            let before = self.last_state.replace((state.set, state.generation));
            // The first state is older than the watch.
            if state.set && before.is_some_and(|last_state| last_state != (true, state.generation))
            {
                return Ok(state);
            }
        }
    }

    /// Acknowledges the newest set, with retries for about half a minute. Run it beside the
    /// released work, which must not wait for it.
    ///
    /// # Errors
    /// The error of the last attempt. The node is released nevertheless.
    pub async fn acknowledge(mut self) -> Result<()> {
        match self.last_state {
            Some((true, generation)) => acknowledge(&mut *self.watch, generation).await,
            _ => Ok(()),
        }
    }
}
