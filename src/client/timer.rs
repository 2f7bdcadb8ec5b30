//! A timer that is moved as rarely as it can be.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::Sleep;

use crate::clock::{Clock, Tick};

/// Ends at the time that is asked for, or sooner: whoever waits looks, and asks again.
///
/// Each message of a stream puts its end off a little; one look in vain, now and then, costs less
/// than moving a timer with each of them.
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
        // Rearmed at each poll, a sleep whose time has come would never end.
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
