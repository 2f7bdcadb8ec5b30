//! A task's turn: a part of a connection that has much to do lets others run.
//!
//! tokio gives each poll of a task 128 units, spent by its sockets and channels. A poll that writes
//! thousands of entries into frames spends few of these: it says here what it has done.

use std::{
    future::poll_fn,
    task::{Context, Poll, Waker},
};

use tokio::task::coop::{has_budget_remaining, poll_proceed};

/// The units of a turn.
const TURN: usize = 128;

/// What a task has done.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    /// So many events counted: at most 2 us each.
    Events(usize),
    /// So many names read, or looked up.
    Names(usize),
    /// A message with so many entries: at most 4 us each.
    Message(usize),
}

impl Work {
    /// Returns how many units it costs: a turn is 1,024 events, 32 short messages, or a Wake of 128
    /// entries, and takes some 2 ms.
    fn units(self) -> usize {
        match self {
            Self::Events(count) | Self::Names(count) => count.div_ceil(8),
            // A stream that has so much to tell catches up, and can wait for the others.
            Self::Message(128..) => TURN,
            Self::Message(entries) => 4 + entries / 5,
        }
    }
}

/// Waits where the turn is spent, until other tasks have had theirs.
pub(crate) fn poll_turn(cx: &mut Context<'_>) -> Poll<()> {
    if has_budget_remaining() {
        return Poll::Ready(());
    }
    // At once: in a bundle, the parts that come after this one keep their places before it.
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// Spends what this costs.
pub(crate) fn spend(work: Work) {
    let mut nobody = Context::from_waker(Waker::noop());
    for _ in 0..work.units() {
        let Poll::Ready(unit) = poll_proceed(&mut nobody) else {
            return;
        };
        unit.made_progress();
    }
}

/// Spends this, and waits until other tasks have had their turn where that was the whole of it.
pub(crate) async fn others_run(work: Work) {
    spend(work);
    poll_fn(poll_turn).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_turn_ends_when_it_is_spent() {
        let mut done = Vec::new();
        for _ in 0..2 {
            tokio::task::yield_now().await;
            let mut count = 0;
            poll_fn(|cx| {
                while poll_turn(cx).is_ready() {
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
        // The next turn comes by itself.
        poll_fn(poll_turn).await;
    }
}
