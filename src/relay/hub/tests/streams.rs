//! A polled stream.

use super::*;
use crate::types::Drain;

/// A stream that has sent its first messages, and its waker.
pub(super) struct Polled {
    pub(super) hub: Arc<Hub>,
    pub(super) stream: SubscriberStream,
    alarm: Arc<Alarm>,
    pub(super) waker: Waker,
}

impl Polled {
    pub(super) fn new<S: std::fmt::Display>(selectors: &[S]) -> Self {
        Self::on(&hub(), &options(selectors))
    }

    pub(super) fn on(hub: &Arc<Hub>, options: &SubscribeOptions) -> Self {
        let mut polled = Self::unsent(hub, options);
        polled.sent(START);
        polled
    }

    /// Creates a stream that has sent nothing.
    pub(super) fn unsent(hub: &Arc<Hub>, options: &SubscribeOptions) -> Self {
        let (alarm, waker) = Alarm::new();
        Self {
            hub: Arc::clone(hub),
            stream: feed(hub, options),
            alarm,
            waker,
        }
    }

    pub(super) fn rung(&self) -> u64 {
        self.alarm.rung()
    }

    /// Notifies a queue so many times.
    pub(super) fn notify(&self, name: &str, times: usize) {
        (0..times).for_each(|_| _ = notify(&self.hub, name));
    }

    pub(super) fn sent(&mut self, now: Tick) -> (Vec<SubscribeEvent>, Tick) {
        sent(&mut self.stream, now, &self.waker)
    }

    /// Returns the entries of the wakes that are sent.
    pub(super) fn woken(&mut self, now: Tick) -> Vec<Entry> {
        woken(&self.sent(now).0)
    }

    /// Takes the next action of a stream that drains or not.
    pub(super) fn next(&mut self, now: Tick, drain: Option<Drain>) -> StreamAction<SubscribeEvent> {
        self.stream.next(now, drain, &self.waker)
    }
}
