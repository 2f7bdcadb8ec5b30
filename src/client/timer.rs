//! A timer that is rarely rearmed.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::Sleep;

use crate::base::clock::{Clock, Tick};

/// Fires at the requested time or sooner; its caller then checks the time and polls again.
///
/// Each message of a stream moves the deadline a little. An early wake now and then costs less than
/// rearming the timer with each message.
#[derive(Debug)]
pub(super) struct Timer {
    clock: Clock,
    sleep: Pin<Box<Sleep>>,
}

impl Timer {
    pub(super) fn new(clock: Clock) -> Self {
        let sleep = tokio::time::sleep_until(clock.instant(clock.now()));
        Self {
            clock,
            sleep: Box::pin(sleep),
        }
    }

    pub(super) fn poll(&mut self, until: Tick, cx: &mut Context<'_>) -> Poll<()> {
        // Without this check, a sleep that is rearmed at each poll would never end.
        if until <= self.clock.now() {
            return Poll::Ready(());
        }
        let at = self.clock.instant(until);
        if at < self.sleep.deadline() || self.sleep.is_elapsed() {
            self.sleep.as_mut().reset(at);
        }
        self.sleep.as_mut().poll(cx)
    }
}
