//! C15: the timers of a relay that ends go to the other relays, in requests of bounded size.
//!
//! The driver sends each request and states its result. A life that refuses a request, or does not
//! reply, gets no further one.

use prost::Message as _;

use crate::{
    base::clock::Tick,
    relay::hub::{Hub, PendingTimers},
    types::cluster::LifeId,
    wire::{
        link::{Timer, TimersRequest},
        timer_to_wire,
    },
};

/// A hand-over that is under way.
pub(crate) struct TimerHandOver {
    pending: PendingTimers,
    /// The last one gets the requests.
    lives: Vec<LifeId>,
    /// The request that no life has taken yet.
    request: Option<TimersRequest>,
    handed: HandedOver,
}

/// The timers of a relay that ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HandedOver {
    pub(crate) taken: u64,
    /// No other relay has acknowledged them: their queues are checked by the sentinel.
    pub(crate) lost: u64,
}

/// Encoded bytes of a request before the timers of the last queue: these have at most 28 KiB.
const FILLED: usize = 28 * 1024;

impl TimerHandOver {
    /// Begins the hand-over of all pending timers to one of these lives.
    pub(crate) fn new(hub: &Hub, lives: Vec<LifeId>) -> Self {
        Self {
            pending: hub.pending_timers(),
            lives,
            request: None,
            handed: HandedOver::default(),
        }
    }

    /// Returns the next request and its life, or `None` at the end. The caller states the result
    /// of each request before it takes the next one.
    pub(crate) fn next_request(&mut self, now: Tick) -> Option<(LifeId, TimersRequest)> {
        loop {
            let request = self.request.take().or_else(|| self.next_timers(now))?;
            if let Some(life) = self.lives.last() {
                self.request = Some(request.clone());
                return Some((*life, request));
            }
            self.handed.lost += request.timers.len() as u64;
        }
    }

    /// States whether the life has acknowledged the newest request.
    pub(crate) fn acknowledged(&mut self, acknowledged: bool) {
        if !acknowledged {
            self.lives.pop();
        } else if let Some(request) = self.request.take() {
            self.handed.taken += request.timers.len() as u64;
        }
    }

    pub(crate) fn handed_over(&self) -> HandedOver {
        self.handed
    }

    /// Returns timers for a request: all of a queue, and of as many queues as there is room for.
    fn next_timers(&mut self, now: Tick) -> Option<TimersRequest> {
        let mut request = TimersRequest::default();
        let mut bytes = 0;
        while bytes < FILLED
            && let Some(timers) = self.pending.next_queue(now)
        {
            let timers = timers.iter().map(timer_to_wire);
            request.timers.extend(timers.inspect(|timer: &Timer| {
                bytes += timer.encoded_len() + 8;
            }));
        }
        (!request.timers.is_empty()).then_some(request)
    }
}
