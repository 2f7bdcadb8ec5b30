//! Waits by listening and by reading: released at once, and never missed.

use std::{pin::pin, time::Duration};

use super::{
    acknowledge, next,
    polling::{Polled, PollingRelease, or_usual},
};
use crate::{
    error::{Error, ErrorKind, Result},
    words::{FlagName, FlagState, FlagWatch, GlobalFlag},
};

/// Waits until the flag is set, whether that was before or comes later.
///
/// [`Release::new`] has a relay: it subscribes first and reads then, as a watch's first state is
/// the relay's own reading of the flag, made after the watch was registered. With
/// [`Release::with_flag`] it also reads the flag itself, so that it is released even while no relay
/// can be reached; neither way ends because of the other. [`Release::reading`] has the flag alone,
/// and is up to an interval late.
#[derive(Debug)]
pub struct Release {
    ways: Ways,
    released: Option<FlagState>,
}

/// How a node hears of its release.
#[derive(Debug)]
enum Ways {
    Told(Box<dyn FlagWatch>),
    Reads(Direct),
    Both(Box<dyn FlagWatch>, Direct),
}

/// The flag, read without a relay.
#[derive(Debug)]
struct Direct {
    name: FlagName,
    flag: Polled,
    /// Zero: the usual one, of one way or of two.
    interval: Duration,
}

/// How often the flag is read beside a watch, give or take a fifth: a net below the watch, which
/// costs a parked node 2,880 reads a day.
const BESIDE: Duration = Duration::from_secs(30);

impl Release {
    /// Makes one that waits on `watch`.
    pub fn new(watch: impl FlagWatch) -> Self {
        Self {
            ways: Ways::Told(Box::new(watch)),
            released: None,
        }
    }

    /// Makes one that reads the flag itself, at once and every interval; zero is
    /// [`PollingRelease::INTERVAL`].
    pub fn reading(name: FlagName, flag: impl GlobalFlag, interval: Duration) -> Self {
        Self {
            ways: Ways::Reads(Direct::new(name, flag, interval)),
            released: None,
        }
    }

    /// Reads the flag itself as well, at once and every interval; zero is half a minute or so.
    #[must_use]
    pub fn with_flag(self, name: FlagName, flag: impl GlobalFlag, interval: Duration) -> Self {
        let direct = Direct::new(name, flag, interval);
        let ways = match self.ways {
            Ways::Told(watch) | Ways::Both(watch, _) => Ways::Both(watch, direct),
            Ways::Reads(_) => Ways::Reads(direct),
        };
        Self { ways, ..self }
    }

    /// Waits until the flag is set, and returns its state; one with generation 0 where it was read
    /// directly.
    ///
    /// # Errors
    /// Only what is final, of the last way that was left: the watch or the reading was refused, or
    /// the watch was closed. What breaks a rule ends both.
    ///
    /// # Cancel safety
    /// Safe: it may be called again, and misses nothing in between.
    pub async fn wait(&mut self) -> Result<FlagState> {
        let state = match &mut self.ways {
            Ways::Told(watch) => next_set(&mut **watch).await?,
            Ways::Reads(direct) => direct.until_set(PollingRelease::INTERVAL).await?,
            Ways::Both(watch, direct) => either(&mut **watch, direct).await?,
        };
        Ok(self.released.insert(state).clone())
    }

    /// Says that this node was released, trying again for about half a minute; where the generation
    /// is not known yet, the watch is asked for it first. Meant to run beside what was waited for,
    /// which it shall not delay. Does nothing where the node was not released, or has no watch.
    ///
    /// # Errors
    /// Whatever kept the acknowledgement from arriving; the node is released all the same.
    pub async fn acknowledge(mut self) -> Result<()> {
        let watch = match &mut self.ways {
            Ways::Told(watch) | Ways::Both(watch, _) => &mut **watch,
            Ways::Reads(_) => return Ok(()),
        };
        let generation = match self.released {
            None => return Ok(()),
            Some(state) if state.generation != 0 => state.generation,
            Some(_) => next_set(watch).await?.generation,
        };
        acknowledge(watch, generation).await
    }
}

impl Direct {
    fn new(name: FlagName, flag: impl GlobalFlag, interval: Duration) -> Self {
        let flag = Polled::new(flag);
        Self {
            name,
            flag,
            interval,
        }
    }

    /// Reads the flag until it is set.
    async fn until_set(&self, usual: Duration) -> Result<FlagState> {
        let interval = or_usual(self.interval, usual);
        self.flag.until_set(interval).await?;
        let unset = FlagState::unset(self.name.clone(), 0);
        Ok(FlagState { set: true, ..unset })
    }
}

/// Waits for whichever is first; a way that has ended leaves the other one.
async fn either(watch: &mut dyn FlagWatch, direct: &Direct) -> Result<FlagState> {
    let usual = BESIDE.mul_f64(0.8 + 0.4 * fastrand::f64());
    let (mut told, mut read) = (pin!(next_set(watch)), pin!(direct.until_set(usual)));
    // The watch comes first, so that whatever is set after the reading is heard.
    tokio::select! {
        biased;
        state = &mut told => match state {
            Err(error) if leaves_the_other(&error) => {
                tracing::warn!(%error, "only the flag itself is read from now on");
                read.await
            }
            state => state,
        },
        state = &mut read => match state {
            Err(error) if leaves_the_other(&error) => {
                tracing::warn!(%error, "only the relay is listened to from now on");
                told.await
            }
            state => state,
        },
    }
}

/// What breaks a rule is a mistake of whoever waits, and is not waited for.
fn leaves_the_other(error: &Error) -> bool {
    error.kind() != ErrorKind::Invalid
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
