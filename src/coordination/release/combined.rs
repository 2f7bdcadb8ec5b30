//! Waits with a watch and by polling: released at once, and never missed.

use std::{pin::pin, time::Duration};

use super::{
    acknowledge, next,
    polling::{FlagReader, PollingRelease, or_default},
};
use crate::{
    error::{Error, ErrorKind, Result},
    types::{FlagName, FlagState, FlagWatch, GlobalFlag},
};

/// Waits until the flag is set, before or after the call.
///
/// [`Release::new`] uses a relay. Its watch registers first, and the relay reads the flag
/// afterwards for the watch's first state, so no set is missed. [`Release::with_flag`] also reads
/// the flag itself, so that the node is released even without a reachable relay; an error of one
/// way does not end the other. [`Release::reading`] only reads the flag, and is up to an interval
/// late.
#[derive(Debug)]
pub struct Release {
    mode: Mode,
    released: Option<FlagState>,
}

/// How a node learns of its release.
#[derive(Debug)]
enum Mode {
    Watch(Box<dyn FlagWatch>),
    Poll(FlagPoller),
    WatchAndPoll(Box<dyn FlagWatch>, FlagPoller),
}

/// Reads the flag without a relay.
#[derive(Debug)]
struct FlagPoller {
    name: FlagName,
    flag: FlagReader,
    /// Zero selects the default, which differs with and without a watch.
    interval: Duration,
}

/// Interval of reads beside a watch, give or take a fifth. They cover failures of the watch and
/// cost a parked node 2,880 reads a day.
const POLL_BESIDE_WATCH: Duration = Duration::from_secs(30);

impl Release {
    /// Makes a release that waits on `watch`.
    pub fn new(watch: impl FlagWatch) -> Self {
        Self {
            mode: Mode::Watch(Box::new(watch)),
            released: None,
        }
    }

    /// Makes a release that reads the flag itself, at once and at every interval. Zero is
    /// [`PollingRelease::INTERVAL`].
    pub fn reading(name: FlagName, flag: impl GlobalFlag, interval: Duration) -> Self {
        Self {
            mode: Mode::Poll(FlagPoller::new(name, flag, interval)),
            released: None,
        }
    }

    /// Also reads the flag itself, at once and at every interval. Zero is about half a minute.
    #[must_use]
    pub fn with_flag(self, name: FlagName, flag: impl GlobalFlag, interval: Duration) -> Self {
        let poller = FlagPoller::new(name, flag, interval);
        let mode = match self.mode {
            Mode::Watch(watch) | Mode::WatchAndPoll(watch, _) => Mode::WatchAndPoll(watch, poller),
            Mode::Poll(_) => Mode::Poll(poller),
        };
        Self { mode, ..self }
    }

    /// Waits until the flag is set, and returns its state. The generation is 0 if the flag was read
    /// directly.
    ///
    /// # Errors
    /// Only a final error of the last remaining way: the watch or the read was refused, or the
    /// watch was closed. An invalid request ends both ways.
    ///
    /// # Cancel safety
    /// Safe: it may be called again, and misses nothing in between.
    pub async fn wait(&mut self) -> Result<FlagState> {
        let state = match &mut self.mode {
            Mode::Watch(watch) => next_set(&mut **watch).await?,
            Mode::Poll(poller) => poller.until_set(PollingRelease::INTERVAL).await?,
            Mode::WatchAndPoll(watch, poller) => either(&mut **watch, poller).await?,
        };
        Ok(self.released.insert(state).clone())
    }

    /// Acknowledges the release, with retries for about half a minute. If the generation is not
    /// known yet, it first waits for the watch's state. Run it beside the released work, which must
    /// not wait for it. Does nothing if the node was not released or has no watch.
    ///
    /// # Errors
    /// The error of the last attempt. The node is released nevertheless.
    pub async fn acknowledge(mut self) -> Result<()> {
        let watch = match &mut self.mode {
            Mode::Watch(watch) | Mode::WatchAndPoll(watch, _) => &mut **watch,
            Mode::Poll(_) => return Ok(()),
        };
        let generation = match self.released {
            None => return Ok(()),
            Some(state) if state.generation != 0 => state.generation,
            Some(_) => next_set(watch).await?.generation,
        };
        acknowledge(watch, generation).await
    }
}

impl FlagPoller {
    fn new(name: FlagName, flag: impl GlobalFlag, interval: Duration) -> Self {
        let flag = FlagReader::new(flag);
        Self {
            name,
            flag,
            interval,
        }
    }

    /// Reads the flag until it is set.
    async fn until_set(&self, default: Duration) -> Result<FlagState> {
        let interval = or_default(self.interval, default);
        self.flag.until_set(interval).await?;
        let unset = FlagState::unset(self.name.clone(), 0);
        Ok(FlagState { set: true, ..unset })
    }
}

/// Waits for the first of the two ways. An error of one way leaves the other.
async fn either(watch: &mut dyn FlagWatch, poller: &FlagPoller) -> Result<FlagState> {
    let default = POLL_BESIDE_WATCH.mul_f64(0.8 + 0.4 * fastrand::f64());
    let (mut watched, mut read) = (pin!(next_set(watch)), pin!(poller.until_set(default)));
    // The watch is polled first, so that a set after the read is seen.
    tokio::select! {
        biased;
        state = &mut watched => match state {
            Err(error) if allows_other_way(&error) => {
                tracing::warn!(%error, "the watch failed; only the flag is read from now on");
                read.await
            }
            state => state,
        },
        state = &mut read => match state {
            Err(error) if allows_other_way(&error) => {
                tracing::warn!(%error, "the flag cannot be read; only the watch is used from now on");
                watched.await
            }
            state => state,
        },
    }
}

/// An invalid request is an error of the caller, so both ways end.
fn allows_other_way(error: &Error) -> bool {
    error.kind() != ErrorKind::Invalid
}

/// Waits for the next state that is set.
async fn next_set(watch: &mut dyn FlagWatch) -> Result<FlagState> {
    loop {
        let state = next(watch).await?;
        if state.set {
            return Ok(state);
        }
    }
}
