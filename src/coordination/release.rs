//! How a parked node waits for its release: by a watch, by reading the flag, or by both.
//!
//! [`Release`] knows neither relay nor store, only a [`FlagWatch`] and a [`GlobalFlag`]. The end of
//! one way does not end the other.

#[cfg(test)]
mod tests;

use std::{pin::pin, time::Duration};

use crate::{
    base::backoff::{Backoff, jitter},
    error::{Error, ErrorKind, Result},
    types::{FlagName, FlagState, FlagWatch, GlobalFlag},
};

/// Waits until the flag is set, before or after the call.
///
/// [`Release::new`] uses a relay. Its watch registers first, and the relay reads the flag
/// afterwards for the watch's first state, so no set is missed. [`Release::with_flag`] also reads
/// the flag itself, so that the node is released even without a reachable relay; an error of one
/// way does not end the other. [`Release::reading`] only reads the flag: it is up to an interval
/// late, and may miss a set that is shorter than two intervals.
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

/// Reads the flag without a relay, and survives single failures.
#[derive(Debug)]
struct FlagPoller {
    name: FlagName,
    flag: Box<dyn GlobalFlag>,
    /// Zero selects the default, which differs with and without a watch.
    interval: Duration,
    /// Whether the flag was read before. A later refusal is then treated as transient.
    was_read: bool,
    /// Whether the last read failed and that was logged.
    failing: bool,
}

/// Interval of reads beside a watch, give or take a fifth. They cover failures of the watch and
/// cost a parked node 2,880 reads a day.
const POLL_BESIDE_WATCH: Duration = Duration::from_secs(30);
/// Attempts at an acknowledgement. With the waits between them they take about half a minute,
/// longer than a stream takes to reconnect.
const ACK_ATTEMPTS: u32 = 12;
/// Back-off between the attempts: first and longest wait.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

impl Release {
    /// The default interval of reads without a watch. A parked node is released 1.2 s late on
    /// average, and reads 38,400 times a day.
    pub const INTERVAL: Duration = Duration::from_millis(2500);

    /// Makes a release that waits on `watch`.
    pub fn new(watch: impl FlagWatch) -> Self {
        Self {
            mode: Mode::Watch(Box::new(watch)),
            released: None,
        }
    }

    /// Makes a release that reads the flag itself, at once and then at every interval, up to a
    /// fifth of an interval early at random. Zero is [`Release::INTERVAL`]. The second read comes at
    /// a random time within the first interval, so that nodes of a fleet do not read at the same
    /// time.
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
    /// If the store cannot be reached, the read is repeated at the next interval, and that is logged
    /// once. The same holds if the store refuses a read after it has allowed one: a change of the
    /// credential must not end a parked fleet.
    ///
    /// # Errors
    /// Only a final error of the last remaining way: the watch or the first read was refused, or
    /// the watch was closed. An invalid request ends both ways.
    ///
    /// # Cancel safety
    /// Safe: it may be called again, and misses nothing in between.
    pub async fn wait(&mut self) -> Result<FlagState> {
        let state = match &mut self.mode {
            Mode::Watch(watch) => next_set(&mut **watch).await?,
            Mode::Poll(poller) => poller.until_set(Self::INTERVAL).await?,
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
    pub async fn acknowledge(self) -> Result<()> {
        let (Some(released), Mode::Watch(mut watch) | Mode::WatchAndPoll(mut watch, _)) =
            (self.released, self.mode)
        else {
            return Ok(());
        };
        let generation = match released.generation {
            0 => next_set(&mut *watch).await?.generation,
            known => known,
        };
        let mut backoff = Backoff::new(RETRY_BACKOFF.0, RETRY_BACKOFF.1);
        for _ in 1..ACK_ATTEMPTS {
            match watch.ack(generation).await {
                Err(error) if error.is_retryable() => {
                    tokio::time::sleep(backoff.next(&mut fastrand::Rng::new())).await;
                }
                outcome => return outcome,
            }
        }
        watch.ack(generation).await
    }
}

impl FlagPoller {
    fn new(name: FlagName, flag: impl GlobalFlag, interval: Duration) -> Self {
        Self {
            name,
            flag: Box::new(flag),
            interval,
            was_read: false,
            failing: false,
        }
    }

    /// Reads the flag until it is set.
    async fn until_set(&mut self, default: Duration) -> Result<FlagState> {
        let interval = match self.interval {
            Duration::ZERO => default,
            stated => stated,
        };
        let mut rng = fastrand::Rng::new();
        let mut wait = jitter(interval, &mut rng);
        loop {
            match self.flag.is_set().await {
                Ok(set) => {
                    self.was_read = true;
                    if std::mem::take(&mut self.failing) {
                        tracing::info!("the flag can be read again");
                    }
                    if set {
                        let unset = FlagState::unset(self.name.clone(), 0);
                        return Ok(FlagState { set, ..unset });
                    }
                }
                Err(error) if error.is_retryable() || self.was_read => {
                    if !std::mem::replace(&mut self.failing, true) {
                        tracing::warn!(%error, "the flag cannot be read; retrying");
                    }
                }
                Err(error) => return Err(error),
            }
            tokio::time::sleep(wait).await;
            wait = interval - jitter(interval / 5, &mut rng);
        }
    }
}

/// Waits for the first of the two ways. An error of one way leaves the other.
async fn either(watch: &mut dyn FlagWatch, poller: &mut FlagPoller) -> Result<FlagState> {
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
        let closed = || Error::new(ErrorKind::Closed, "the flag's watch was closed");
        let state = watch.next().await.ok_or_else(closed)??;
        if state.set {
            return Ok(state);
        }
    }
}
