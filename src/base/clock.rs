//! Time as a plain number, and the only module that reads a clock.
//!
//! The state machines take a [`Tick`] as an argument and read no clock. So they run the same
//! under tokio, under a paused clock and in the simulation. Ticks are monotonic. Wall-clock time is
//! used only where people or other machines read it.

use std::{
    ops::{Add, AddAssign, Sub},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep};

/// A point in monotonic time: nanoseconds since the creation of its clock.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Tick(u64);

/// Converts tokio's clock into ticks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Tick {
    /// The tick that never comes.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    /// Creates a tick from nanoseconds since the clock's creation.
    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the clock's creation.
    pub(crate) const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the first point at or after `self + delay` of a grid whose steps are the greatest
    /// power of two nanoseconds that is at most 1/16 of the delay: near times fall together.
    /// R7: timers merge upwards only, at most 1/16 of the delay later.
    pub(crate) fn after_on_grid(self, delay: Duration) -> Self {
        self.after_on_moved_grid(delay, 0)
    }

    /// As [`Tick::after_on_grid`] with the grid moved by `offset` nanoseconds, so that timers of
    /// different owners do not fire at the same instant. All grids of one offset share their points.
    pub(crate) fn after_on_moved_grid(self, delay: Duration, offset: u64) -> Self {
        let nanos = nanos(delay);
        let step = (nanos / 16).checked_ilog2().map_or(1, |bits| 1u64 << bits);
        let offset = offset % step;
        // Subtract the offset, so that the grid's points are multiples of the step.
        let due = (self + delay).as_nanos();
        let moved = due.saturating_sub(offset);
        let point = moved.checked_next_multiple_of(step);
        Self(
            point
                .and_then(|point| point.checked_add(offset))
                .unwrap_or(u64::MAX),
        )
    }

    /// Returns the first multiple of the span at or after this tick.
    pub(crate) fn next_multiple_of(self, span: Duration) -> Self {
        let next = match nanos(span) {
            0 => Some(self.0),
            span => self.0.checked_next_multiple_of(span),
        };
        Self(next.unwrap_or(u64::MAX))
    }

    /// Returns the span from `earlier` to this tick, or zero if `earlier` is later.
    pub(crate) const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Sub<Duration> for Tick {
    type Output = Self;

    /// Saturates at the clock's creation.
    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)))
    }
}

impl Add<Duration> for Tick {
    type Output = Self;

    /// Saturates at [`Tick::NEVER`], about 584 years after the clock's creation.
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }
}

impl AddAssign<Duration> for Tick {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Tick {
        Tick::default() + self.origin.elapsed()
    }

    /// Returns the instant of a tick, for tokio's timers. Ticks later than 30 years after the
    /// clock's creation, such as [`Tick::NEVER`], give that time.
    pub(crate) fn instant(&self, tick: Tick) -> Instant {
        instant_after(self.origin, tick.since(Tick::default()))
    }
}

/// Fires at the requested time or sooner; its caller then checks the time and polls again.
///
/// Each message of a stream moves the deadline a little. An early wake now and then costs less than
/// rearming the timer with each message.
#[derive(Debug)]
pub(crate) struct Timer {
    clock: Clock,
    sleep: Pin<Box<Sleep>>,
}

impl Timer {
    pub(crate) fn new(clock: Clock) -> Self {
        let sleep = tokio::time::sleep_until(clock.instant(clock.now()));
        Self {
            clock,
            sleep: Box::pin(sleep),
        }
    }

    pub(crate) fn now(&self) -> Tick {
        self.clock.now()
    }

    /// Waits until this time; `now` is the time of the caller's last step.
    pub(crate) fn poll(&mut self, until: Tick, now: Tick, cx: &mut Context<'_>) -> Poll<()> {
        // Without this check, a sleep that is rearmed at each poll would never end.
        if until <= now {
            return Poll::Ready(());
        }
        let (at, deadline) = (self.clock.instant(until), self.sleep.deadline());
        if at < deadline || deadline <= self.clock.instant(now) {
            self.sleep.as_mut().reset(at);
        }
        self.sleep.as_mut().poll(cx)
    }
}

/// Returns `from + span`, at most 30 years later.
pub(crate) fn instant_after(from: Instant, span: Duration) -> Instant {
    // The same limit as tokio's own far future: some systems' clocks cannot represent more.
    const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    from + span.min(FAR)
}

/// Returns a span in nanoseconds. Saturates after 584 years.
pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the wall clock's time, for output to people and other machines.
pub(crate) fn wall() -> std::time::SystemTime {
    std::time::SystemTime::now()
}

/// Returns a wall-clock time as microseconds since 1970, or 0 for an earlier time.
pub(crate) fn micros(wall: std::time::SystemTime) -> u64 {
    let since = wall.duration_since(std::time::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_saturate_instead_of_wrapping() {
        let late = Tick::from_nanos(u64::MAX - 1);
        assert_eq!(late + Duration::from_secs(1), Tick::NEVER);
        assert_eq!(Tick::default().since(late), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_follows_tokio() {
        let clock = Clock::new();
        tokio::time::advance(Duration::from_millis(1500)).await;
        assert_eq!(clock.now(), Tick::from_nanos(1_500_000_000));
        assert_eq!(
            clock.instant(clock.now() + Duration::from_secs(1)),
            Instant::now() + Duration::from_secs(1)
        );
    }
}
