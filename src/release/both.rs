//! Waits by listening and by reading: released at once, and never missed.

use std::time::Duration;

use super::{acknowledge, next, polling::until_set};
use crate::{
    error::{ErrorKind, Result},
    words::{FlagName, FlagState, FlagWatch, GlobalFlag},
};

/// Waits until the flag is set, whether that was before or comes later.
///
/// It subscribes first and reads then: a watch's first state is the relay's own reading of the
/// flag, made after the watch was registered. With [`Release::with_flag`] it also reads the flag
/// itself, so that it is released even while no relay can be reached.
#[derive(Debug)]
pub struct Release {
    watch: Box<dyn FlagWatch>,
    flag: Option<Direct>,
    released: Option<FlagState>,
}

/// The flag, read without a relay.
#[derive(Debug)]
struct Direct {
    name: FlagName,
    flag: Box<dyn GlobalFlag>,
}

/// How often the flag is read beside a watch, give or take a fifth: a net below the watch, which
/// costs a parked node 2,880 reads a day.
const INTERVAL: Duration = Duration::from_secs(30);

impl Release {
    /// Makes one that waits on `watch`.
    pub fn new(watch: impl FlagWatch) -> Self {
        Self {
            watch: Box::new(watch),
            flag: None,
            released: None,
        }
    }

    /// Reads the flag itself as well, at once and every half a minute or so.
    #[must_use]
    pub fn with_flag(mut self, name: FlagName, flag: impl GlobalFlag) -> Self {
        let flag = Box::new(flag);
        self.flag = Some(Direct { name, flag });
        self
    }

    /// Waits until the flag is set, and returns its state; one with generation 0 where it was read
    /// directly.
    ///
    /// # Errors
    /// Only what is final: the watch or the reading was refused, or the watch was closed and there
    /// is no flag to read.
    ///
    /// # Cancel safety
    /// Safe: it may be called again, and misses nothing in between.
    pub async fn wait(&mut self) -> Result<FlagState> {
        let state = match &self.flag {
            None => next_set(&mut *self.watch).await?,
            Some(direct) => tokio::select! {
                // The watch comes first, so that whatever is set after the reading is heard.
                biased;
                state = while_open(&mut *self.watch) => state?,
                read = until_set(&*direct.flag, interval) => {
                    read?;
                    let unset = FlagState::unset(direct.name.clone(), 0);
                    FlagState { set: true, ..unset }
                }
            },
        };
        Ok(self.released.insert(state).clone())
    }

    /// Says that this node was released, trying again for about half a minute; where the generation
    /// is not known yet, the watch is asked for it first. Meant to run beside what was waited for,
    /// which it shall not delay. Does nothing where the node was not released.
    ///
    /// # Errors
    /// Whatever kept the acknowledgement from arriving; the node is released all the same.
    pub async fn acknowledge(mut self) -> Result<()> {
        let generation = match self.released {
            None => return Ok(()),
            Some(state) if state.generation != 0 => state.generation,
            Some(_) => next_set(&mut *self.watch).await?.generation,
        };
        acknowledge(&mut *self.watch, generation).await
    }
}

/// Waits for the next state that is a set one.
async fn next_set(watch: &mut dyn FlagWatch) -> Result<FlagState> {
    loop {
        let state = next(watch).await?;
        if state.set {
            return Ok(state);
        }
    }
}

/// Waits for the next state that is a set one; for ever once the watch is closed, as the flag is
/// read beside it.
async fn while_open(watch: &mut dyn FlagWatch) -> Result<FlagState> {
    match next_set(watch).await {
        Err(error) if error.kind() == ErrorKind::Closed => {
            tracing::warn!(%error, "only the flag itself is read from now on");
            std::future::pending().await
        }
        state => state,
    }
}

fn interval() -> Duration {
    INTERVAL.mul_f64(0.8 + 0.4 * fastrand::f64())
}
