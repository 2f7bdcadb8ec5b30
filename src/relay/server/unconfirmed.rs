//! The answers of a publisher's stream that wait until their causes are confirmed in the cluster
//! (C8). A relay without a cluster has none.
//!
//! Answers keep the order of their requests. At most [`MOST`] wait; then no further request is read.

use std::{
    collections::VecDeque,
    task::{Context, Poll},
};

use tokio_util::sync::ReusableBoxFuture;

use crate::{
    base::clock::{Clock, Tick, Timer},
    error::Error,
    relay::runtime::{CONFIRMED_WITHIN, Confirmation},
    wire::{proto, to_answer},
};

/// The waiting answers of one stream.
pub(super) struct Unconfirmed {
    answers: VecDeque<Waiting>,
    timer: Timer,
    change: ReusableBoxFuture<'static, ()>,
    /// `change` waits for the state that was read last.
    waits: bool,
}

struct Waiting {
    answer: proto::NotifyResponse,
    /// `None`: it waits for the answers before it only.
    confirmation: Option<Confirmation>,
    until: Tick,
}

/// Answers that wait at one time. A confirmation takes about a round trip to the broker.
pub(super) const MOST: usize = 256;

impl Unconfirmed {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            answers: VecDeque::new(),
            timer: Timer::new(clock),
            change: ReusableBoxFuture::new(std::future::pending()),
            waits: false,
        }
    }

    pub(super) fn push(
        &mut self,
        answer: proto::NotifyResponse,
        confirmation: Option<Confirmation>,
    ) {
        let until = self.timer.now() + CONFIRMED_WITHIN;
        self.answers.push_back(Waiting {
            answer,
            confirmation,
            until,
        });
    }

    pub(super) fn is_full(&self) -> bool {
        self.answers.len() >= MOST
    }

    pub(super) fn is_empty(&self) -> bool {
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
            let Some(confirmation) = &front.confirmation else {
                return Poll::Ready(self.answers.pop_front().map(|front| front.answer));
            };
            if !self.waits {
                // Registered before the state is read.
                self.change.set(confirmation.changed());
                self.waits = true;
            }
            let result = match confirmation.check() {
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
                    Err(Confirmation::late())
                }
            };
            let answer = self.answers.pop_front().map(|front| front.answer);
            return Poll::Ready(match result {
                Ok(()) => answer,
                Err(error) => Some(refusal(&error)),
            });
        }
    }
}

/// The answer of a request that was refused.
pub(super) fn refusal(error: &Error) -> proto::NotifyResponse {
    proto::NotifyResponse {
        accepted: Vec::new(),
        error: Some(to_answer(error)),
    }
}
