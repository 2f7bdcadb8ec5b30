//! Waits by listening only: released at once, and deaf to what came before.

use super::{acknowledge, next};
use crate::{
    error::Result,
    words::{FlagState, FlagWatch},
};

/// Waits for an unleash that comes after it began to listen. Stateless on purpose: one that came
/// before is none of its business, and a node that starts too late waits for ever. [`Release`]
/// does not.
///
/// [`Release`]: super::Release
#[derive(Debug)]
pub struct ListeningRelease {
    watch: Box<dyn FlagWatch>,
    /// Whether the flag was set when it was last heard of, and with which generation.
    heard: Option<(bool, u64)>,
}

impl ListeningRelease {
    /// Makes one that listens on `watch`, and listens from its beginning.
    pub fn new(watch: impl FlagWatch) -> Self {
        Self {
            watch: Box::new(watch),
            heard: None,
        }
    }

    /// Waits until the flag is set anew, and returns its state.
    ///
    /// # Errors
    /// Only what is final: the watch was refused or closed.
    ///
    /// # Cancel safety
    /// Safe: it may be called again, and has missed nothing in between.
    pub async fn wait(&mut self) -> Result<FlagState> {
        loop {
            let state = next(&mut *self.watch).await?;
            let before = self.heard.replace((state.set, state.generation));
            // The first state is the one that was there already.
            if state.set && before.is_some_and(|heard| heard != (true, state.generation)) {
                return Ok(state);
            }
        }
    }

    /// Says that this node was released by the newest set, trying again for about half a minute.
    /// Meant to run beside what was waited for, which it shall not delay.
    ///
    /// # Errors
    /// Whatever kept the acknowledgement from arriving; the node is released all the same.
    pub async fn acknowledge(mut self) -> Result<()> {
        match self.heard {
            Some((true, generation)) => acknowledge(&mut *self.watch, generation).await,
            _ => Ok(()),
        }
    }
}
