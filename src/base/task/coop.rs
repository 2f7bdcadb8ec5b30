//! Cooperative scheduling: a stream with much work lets other tasks run.
//!
//! tokio gives each poll of a task a budget of 128 units, which its sockets and channels spend. A
//! poll that encodes thousands of entries spends few of them, so it spends units here for its work.

use std::{
    future::poll_fn,
    task::{Context, Poll, Waker},
};

use tokio::task::coop::{has_budget_remaining, poll_proceed};

/// The units of one poll.
const BUDGET: usize = 128;

/// Work that a task has done.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    /// A number of counted events, at most 2 us each.
    Events(usize),
    /// A number of names parsed or looked up.
    Names(usize),
    /// A message with this number of entries, at most 4 us each.
    Message(usize),
    /// The start of a request.
    Request,
    /// A slice of a connection's bytes: some 0.1 ms, but most of a millisecond for the shortest frames.
    Slice,
}

impl Work {
    /// Returns the cost in units. A whole budget is 1,024 events, 32 short messages or requests, or a
    /// Wake of 128 entries, and takes some 2 ms.
    fn units(self) -> usize {
        match self {
            Self::Events(count) | Self::Names(count) => count.div_ceil(8),
            // A stream with so many entries is catching up and can wait for the others.
            Self::Message(128..) => BUDGET,
            Self::Message(entries) => 4 + entries / 5,
            Self::Request => Self::Message(0).units(),
            Self::Slice => BUDGET / 2,
        }
    }
}

/// Returns Pending if the budget is spent, until other tasks have run.
pub(crate) fn poll_budget(cx: &mut Context<'_>) -> Poll<()> {
    if has_budget_remaining() {
        return Poll::Ready(());
    }
    // Woken at once: within a `TaskGroup`, the members that are queued now run before this one.
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// Spends the units of `work`.
pub(crate) fn spend(work: Work) {
    let mut no_waker = Context::from_waker(Waker::noop());
    for _ in 0..work.units() {
        let Poll::Ready(unit) = poll_proceed(&mut no_waker) else {
            return;
        };
        unit.made_progress();
    }
}

/// Spends the units of `work`; if the budget is empty then, waits until other tasks have run.
pub(crate) async fn spend_and_yield(work: Work) {
    spend(work);
    poll_fn(poll_budget).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_budget_ends_when_it_is_spent() {
        let mut done = Vec::new();
        for _ in 0..2 {
            tokio::task::yield_now().await;
            let mut count = 0;
            poll_fn(|cx| {
                while poll_budget(cx).is_ready() {
                    spend(Work::Events(64));
                    count += 64;
                    if count > 100_000 {
                        break;
                    }
                }
                Poll::Ready(())
            })
            .await;
            done.push(count);
        }
        assert!((512..=1024).contains(&done[1]), "{done:?}");
        // The next poll has a new budget.
        poll_fn(poll_budget).await;
    }
}
