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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        relay::hub::HubConfig,
        types::{Notification, QueueAddress},
    };

    const NOW: Tick = Tick::from_nanos(1_000_000_000);

    fn hub_with_timers(queues: u64) -> Hub {
        let hub = Hub::new(HubConfig::default());
        for number in 0..queues {
            let queue = QueueAddress::new("acct", &format!("q{number}")).expect("an address");
            let delayed = Notification {
                delay: Duration::from_secs(10),
                ..Notification::new(queue)
            };
            hub.notify(&"p".into(), &[delayed], NOW)
                .expect("there is room");
        }
        hub
    }

    #[test]
    fn a_life_that_refuses_timers_gets_no_further_request() {
        let (refuses, takes) = (LifeId(1), LifeId(2));
        let hub = hub_with_timers(2_000);
        let mut hand_over = TimerHandOver::new(&hub, vec![takes, refuses]);
        let mut asked = Vec::new();
        while let Some((life, _)) = hand_over.next_request(NOW) {
            asked.push(life);
            hand_over.acknowledged(life == takes);
        }
        assert!(asked.len() > 2, "{asked:?}");
        assert_eq!(asked[0], refuses);
        assert!(asked[1..].iter().all(|life| *life == takes), "{asked:?}");
        let expected = HandedOver {
            taken: 2_000,
            lost: 0,
        };
        assert_eq!(hand_over.handed_over(), expected);
    }

    #[test]
    fn timers_that_no_life_takes_are_counted_as_lost() {
        let hub = hub_with_timers(2_000);
        let mut hand_over = TimerHandOver::new(&hub, vec![LifeId(1)]);
        let (life, _) = hand_over.next_request(NOW).expect("there are timers");
        assert_eq!(life, LifeId(1));
        hand_over.acknowledged(false);
        assert!(hand_over.next_request(NOW).is_none());
        let expected = HandedOver {
            taken: 0,
            lost: 2_000,
        };
        assert_eq!(hand_over.handed_over(), expected);
    }
}
