//! A timer that is rarely rearmed.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::Sleep;

use super::{Clock, Tick};

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
