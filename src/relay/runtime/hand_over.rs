//! C15: a relay that ends hands its timers over to the other relays.

use std::time::Duration;

use super::Relay;
use crate::{
    error::{Error, ErrorKind, Result},
    relay::cluster::{HandedOver, TimerHandOver, TimersReply},
    types::cluster::HandedTimer,
    wire::link::{peer_reply::Answer, peer_request::Call},
};

/// The wait for the reply to a request.
const WITHIN: Duration = Duration::from_secs(1);
/// The pause after a request without a reply, which may come at once without the broker.
const PAUSE: Duration = Duration::from_millis(50);

impl Relay {
    /// Hands all timers over, and returns when they are acknowledged, or no other relay takes them:
    /// after 5 s without a reply, or 20 s in all.
    ///
    /// # Cancel safety
    /// The timers of a dropped call that were acknowledged are at the other relays.
    pub(crate) async fn hand_over_timers(&self) -> HandedOver {
        self.settle().await;
        let clock = &self.shared.clock;
        let lives = self.shared.present_lives();
        let mut hand_over = TimerHandOver::new(&self.shared.hub, lives, clock.now());
        while let Some((life, request)) = hand_over.next_request(clock.now()) {
            let reply = match self.ask(life, Call::Timers(request), WITHIN).await {
                Some(Answer::Done(_)) => TimersReply::Taken,
                Some(answer) => {
                    tracing::debug!(%life, ?answer, "timers are refused");
                    TimersReply::Refused
                }
                None => {
                    tokio::time::sleep(PAUSE).await;
                    TimersReply::Missing
                }
            };
            hand_over.replied(reply, clock.now());
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
