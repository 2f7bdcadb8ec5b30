//! C15: a relay that ends hands its timers over to the other relays.

use std::time::Duration;

use prost::Message as _;

use super::Relay;
use crate::{
    error::{Error, ErrorKind, Result},
    types::cluster::{HandedTimer, LifeId},
    wire::{
        link::{Timer, TimersRequest, peer_reply::Answer, peer_request::Call},
        timer_to_wire,
    },
};

/// The timers of a relay that ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HandedOver {
    pub(crate) taken: u64,
    /// No other relay has acknowledged them: their queues are checked by the sentinel.
    pub(crate) lost: u64,
}

/// A relay that does not answer within this time is not asked again.
const WITHIN: Duration = Duration::from_secs(1);
/// Encoded bytes of a request before the timers of the last queue: these have at most 28 KiB.
const FILLED: usize = 28 * 1024;

impl Relay {
    /// Hands all timers over, and returns when they are acknowledged or no other relay is left.
    ///
    /// # Cancel safety
    /// The timers of a dropped call that were acknowledged are at the other relays.
    pub(crate) async fn hand_over_timers(&self) -> HandedOver {
        self.settle().await;
        let mut all = HandedOver::default();
        let mut pending = self.shared.hub.pending_timers();
        let mut relays = self.present_lives();
        loop {
            let mut request = TimersRequest::default();
            let mut bytes = 0;
            let mut is_last = false;
            while bytes < FILLED && !is_last {
                match pending.next_queue(self.shared.clock.now()) {
                    Some(timers) => {
                        let timers = timers.iter().map(timer_to_wire);
                        request.timers.extend(timers.inspect(|timer: &Timer| {
                            bytes += timer.encoded_len() + 8;
                        }));
                    }
                    None => is_last = true,
                }
            }
            let count = request.timers.len() as u64;
            if count > 0 {
                match self.hand_over(&mut relays, request).await {
                    true => all.taken += count,
                    false => all.lost += count,
                }
            }
            if is_last {
                return all;
            }
        }
    }

    /// Takes over the timers of another relay.
    ///
    /// # Errors
    /// `Unavailable` while this relay is shutting down; `Exhausted` where there is no room.
    pub(crate) fn take_over_timers(&self, timers: &[HandedTimer]) -> Result<()> {
        if self.is_draining() {
            let message = "timers: the relay is shutting down";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let now = self.shared.clock.now();
        self.shared.hub.take_over_timers(timers, now)
    }

    /// Waits until the subscriptions of ended streams are detached: the end of a busy listener sets a
    /// timer.
    async fn settle(&self) {
        let settled = async {
            while self.shared.hub.has_deferred_work() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        // Otherwise the timers of the rest are lost.
        let _ = tokio::time::timeout(WITHIN, settled).await;
    }

    /// Offers timers to one relay after another; those that refuse them are not asked again.
    async fn hand_over(&self, relays: &mut Vec<LifeId>, request: TimersRequest) -> bool {
        while let Some(life) = relays.last() {
            let call = Call::Timers(request.clone());
            if let Some(Answer::Done(_)) = self.ask(*life, call, WITHIN).await {
                return true;
            }
            relays.pop();
        }
        false
    }
}
