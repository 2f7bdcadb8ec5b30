//! C15: a relay that ends hands its timers over to the other relays.

use std::time::Duration;

use super::Relay;
use crate::{
    error::{Error, ErrorKind, Result},
    relay::cluster::{HandedOver, TimerHandOver},
    types::cluster::HandedTimer,
    wire::link::{peer_reply::Answer, peer_request::Call},
};

/// A relay that does not answer within this time is not asked again.
const WITHIN: Duration = Duration::from_secs(1);

impl Relay {
    /// Hands all timers over, and returns when they are acknowledged or no other relay is left.
    ///
    /// # Cancel safety
    /// The timers of a dropped call that were acknowledged are at the other relays.
    pub(crate) async fn hand_over_timers(&self) -> HandedOver {
        self.settle().await;
        let clock = &self.shared.clock;
        let mut hand_over = TimerHandOver::new(&self.shared.hub, self.present_lives());
        while let Some((life, request)) = hand_over.next_request(clock.now()) {
            let answer = self.ask(life, Call::Timers(request), WITHIN).await;
            hand_over.acknowledged(matches!(answer, Some(Answer::Done(_))));
        }
        hand_over.handed_over()
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
}
