//! What runs the hub: its timers, its fan-out, and forgetting.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use super::Shared;
use crate::{clock::Tick, task::Scope};

/// Looking for queues to forget costs a scan of all of them: at most one a minute.
const FORGET_EVERY: Duration = Duration::from_secs(60);

pub(super) fn spawn(scope: &Scope, shared: &Arc<Shared>, forget_after: Duration) {
    let timers = Arc::clone(shared);
    scope.spawn_again("timers", move || fire_timers(Arc::clone(&timers)));
    let fan = Arc::clone(shared);
    scope.spawn_again("fan-out", move || fan_out(Arc::clone(&fan)));
    let every = (forget_after / 10).clamp(Duration::from_millis(100), FORGET_EVERY);
    let forgetting = Arc::clone(shared);
    scope.spawn_again("forgetting", move || forget(Arc::clone(&forgetting), every));
}

/// Fires each timer when it is due.
async fn fire_timers(shared: Arc<Shared>) {
    let waker = shared.hub.timers_waker();
    loop {
        let next = shared.hub.fire(shared.clock.now());
        let sleep = tokio::time::sleep_until(shared.clock.instant(next.unwrap_or(Tick::NEVER)));
        tokio::pin!(sleep);
        poll_fn(|cx| {
            waker.register(cx.waker());
            // Asked again after registering: a timer may have become the first in between.
            if shared.hub.next_timer() != next {
                return Poll::Ready(());
            }
            sleep.as_mut().poll(cx)
        })
        .await;
    }
}

/// Walks the subscribers of queues that have many, a few at a time.
async fn fan_out(shared: Arc<Shared>) {
    let waker = shared.hub.fanout_waker();
    loop {
        let mut walk = poll_fn(|cx| {
            waker.register(cx.waker());
            shared.hub.next_walk().map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        while walk.step() {
            tokio::task::yield_now().await;
        }
    }
}

async fn forget(shared: Arc<Shared>, every: Duration) {
    let mut ticks = tokio::time::interval(every);
    loop {
        ticks.tick().await;
        shared.hub.forget(shared.clock.now());
    }
}
