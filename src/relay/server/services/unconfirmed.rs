//! The answers of a publisher's stream that wait until their causes are confirmed in the cluster
//! (C8). A relay without a cluster has none.
//!
//! Answers keep the order of their requests. At most [`MOST_ANSWERS`] wait, with at most
//! [`MOST_NOTIFICATIONS`]; then no further request is read.

use std::{
    collections::VecDeque,
    task::{Context, Poll},
};

use tokio_util::sync::ReusableBoxFuture;

use crate::{
    base::clock::{Tick, Timer},
    error::Error,
    relay::runtime::{CONFIRMED_WITHIN, Confirmations, Relay},
    wire::{error_to_wire, proto},
};

/// The waiting answers of one stream.
pub(crate) struct Unconfirmed {
    answers: VecDeque<Waiting>,
    /// The notifications of these answers.
    notifications: usize,
    confirmations: Confirmations,
    epoch: String,
    timer: Timer,
    change: ReusableBoxFuture<'static, ()>,
    /// `change` waits for the state that was read last.
    waits: bool,
}

struct Waiting {
    answer: proto::NotifyResponse,
    /// Its causes are before this position in the hub's list. `None`: it has counted nothing, and
    /// waits for the answers before it only.
    position: Option<u64>,
    until: Tick,
}

/// Answers that wait at one time. A confirmation takes about a round trip to the broker, and after
/// a burst a millisecond more.
const MOST_ANSWERS: usize = 2_048;
/// Their notifications: they bound the memory of large requests.
const MOST_NOTIFICATIONS: usize = 16_384;

impl Unconfirmed {
    /// Returns `None` where publishers do not wait for confirmations.
    pub(crate) fn of(relay: &Relay) -> Option<Self> {
        Some(Self {
            answers: VecDeque::new(),
            notifications: 0,
            confirmations: relay.confirmations()?,
            epoch: relay.epoch().to_owned(),
            timer: Timer::new(relay.clock()),
            change: ReusableBoxFuture::new(std::future::pending()),
            waits: false,
        })
    }

    pub(crate) fn push(&mut self, answer: proto::NotifyResponse, position: Option<u64>) {
        let until = self.timer.now() + CONFIRMED_WITHIN;
        self.notifications += weight(&answer);
        self.answers.push_back(Waiting {
            answer,
            position,
            until,
        });
    }

    pub(super) fn is_full(&self) -> bool {
        self.answers.len() >= MOST_ANSWERS || self.notifications >= MOST_NOTIFICATIONS
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Returns the next answer when it is confirmed, or the error in its place; `None` where none
    /// waits.
    pub(super) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<proto::NotifyResponse>> {
        loop {
            let Some(front) = self.answers.front() else {
                return Poll::Ready(None);
            };
            let Some(position) = front.position else {
                return Poll::Ready(self.pop());
            };
            if !self.waits {
                // Registered before the state is read.
                self.change.set(self.confirmations.changed());
                self.waits = true;
            }
            let result = match self.confirmations.check(position) {
                Some(result) => result,
                None if self.change.poll(cx).is_ready() => {
                    self.waits = false;
                    continue;
                }
                None => {
                    let (until, now) = (front.until, self.timer.now());
                    std::task::ready!(self.timer.poll(until, now, cx));
                    if self.timer.now() < until {
                        continue;
                    }
                    Err(Confirmations::late())
                }
            };
            let answer = self.pop();
            return Poll::Ready(match result {
                Ok(()) => answer,
                Err(error) => answer.map(|answer| self.unavailable(answer, &error, position)),
            });
        }
    }

    /// The answer to a request whose events are counted up to this position and not confirmed. The
    /// refused ones stay refused.
    fn unavailable(
        &self,
        mut answer: proto::NotifyResponse,
        error: &Error,
        position: u64,
    ) -> proto::NotifyResponse {
        for result in &mut answer.results {
            (result.sequence, result.listeners) = (0, 0);
        }
        if answer.results.iter().all(|result| result.error.is_none()) {
            answer.results.clear();
        }
        answer.error = Some(error_to_wire(error));
        answer.counted = Some(proto::Counted {
            epoch: self.epoch.clone(),
            position,
        });
        answer
    }

    fn pop(&mut self) -> Option<proto::NotifyResponse> {
        let front = self.answers.pop_front()?;
        self.notifications -= weight(&front.answer);
        Some(front.answer)
    }
}

/// Returns how many notifications an answer counts as. The texts of refused ones are much larger.
fn weight(answer: &proto::NotifyResponse) -> usize {
    let refused = answer.results.iter().filter_map(|one| one.error.as_ref());
    let texts: usize = refused.map(|error| error.message.len()).sum();
    answer.results.len() + texts / size_of::<proto::EventResult>()
}

/// The answer of a request that was refused.
pub(crate) fn refusal(error: &Error) -> proto::NotifyResponse {
    proto::NotifyResponse {
        error: Some(error_to_wire(error)),
        ..proto::NotifyResponse::default()
    }
}
