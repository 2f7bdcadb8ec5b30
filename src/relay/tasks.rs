//! What runs the hub: its timers, its fan-out, and forgetting.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use super::Shared;
use tokio::time::MissedTickBehavior;

use crate::{
    clock::Tick,
    hub::{NearestName, WakeBatch},
    task::Scope,
};

/// Queues without listeners are told of so often.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Looking for queues to forget costs a scan of all of them: at most one a minute.
const FORGET_EVERY: Duration = Duration::from_secs(60);

pub(super) fn spawn(scope: &Scope, shared: &Arc<Shared>, forget_after: Duration) {
    let timers = Arc::clone(shared);
    scope.spawn_restarting("timers", move || fire_timers(Arc::clone(&timers)));
    let fan = Arc::clone(shared);
    scope.spawn_restarting("fan-out", move || fan_out(Arc::clone(&fan)));
    let every = (forget_after / 10).clamp(Duration::from_millis(100), FORGET_EVERY);
    let unheard = Arc::clone(shared);
    scope.spawn_restarting("names without listeners", move || {
        tell_unheard(Arc::clone(&unheard))
    });
    let forgetting = Arc::clone(shared);
    scope.spawn_restarting("forgetting", move || forget(Arc::clone(&forgetting), every));
}

/// Fires each timer when it is due.
async fn fire_timers(shared: Arc<Shared>) {
    let waker = shared.hub.timers_waker();
    loop {
        let now = shared.clock.now();
        let next = shared.hub.fire(now);
        if next.is_some_and(|next| next <= now) {
            // There is more than one slice.
            tokio::task::yield_now().await;
            continue;
        }
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

/// Work of one batch, in marks, and of one poll: what follows its first mark waits for some hundred
/// microseconds.
const BATCH: usize = 8192;

/// Walks the subscribers of queues that have many, a few at a time, and detaches what closed streams
/// leave. All walks that are pending are done before their streams are woken, up to a batch, so that
/// a stream of many queues sends one Wake for them. Between a mark and its wake there is nothing but
/// walks: a notification that finds the mark relies on that wake.
async fn fan_out(shared: Arc<Shared>) {
    let (hub, waker) = (&shared.hub, shared.hub.fanout_waker());
    let mut batch = WakeBatch::default();
    // What was done since others could run.
    let mut spent = 0;
    loop {
        let walk = poll_fn(|cx| {
            waker.register(cx.waker());
            match hub.next_walk() {
                Some(walk) => Poll::Ready(Some(walk)),
                None if hub.detach_some(shared.clock.now()) => Poll::Ready(None),
                None => Poll::Pending,
            }
        });
        let Some(mut walk) = walk.await else {
            spent = 0;
            tokio::task::yield_now().await;
            continue;
        };
        // The only walk there is wakes its streams step by step; with others in the batch it would send
        // some streams a Wake of their own for the last queue.
        let alone = batch.work() == 0;
        loop {
            let more = walk.step(&mut batch);
            let full = batch.work() >= BATCH;
            if full || hub.fanout_is_empty() && (alone || !more) {
                spent += batch.work();
                batch.wake();
            }
            if !more {
                break;
            }
            if batch.work() == 0 {
                spent = 0;
                tokio::task::yield_now().await;
            }
        }
        if batch.work() == 0 && (hub.detach_some(shared.clock.now()) || spent >= BATCH) {
            spent = 0;
            tokio::task::yield_now().await;
        }
    }
}

async fn forget(shared: Arc<Shared>, every: Duration) {
    let mut ticks = tokio::time::interval(every);
    loop {
        ticks.tick().await;
        let mut after = None;
        while let Some(last) = shared.hub.forget_some(after.as_ref(), shared.clock.now()) {
            after = Some(last);
            tokio::task::yield_now().await;
        }
    }
}

/// Says, once for each queue, that it was notified and has no listener: no error, but often a
/// misspelling. At most once a second, however many there are, with so much work at most.
async fn tell_unheard(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(TELL_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (named, others) = shared.hub.take_unheard();
        let mut left = NearestName::WORK;
        for (queue, others) in named.iter().zip((1..=named.len()).rev()) {
            let mut search = NearestName::new(queue, left / others);
            while shared.hub.search_nearest(&mut search) {
                tokio::task::yield_now().await;
            }
            left = left.saturating_sub(search.work());
            match search.found() {
                None => tracing::info!(%queue, "notified, and nobody listens on it"),
                Some(nearest) => tracing::warn!(
                    %queue, %nearest,
                    "notified, and nobody listens on it; somebody listens on a name much like it"
                ),
            }
        }
        if others > 0 {
            tracing::info!(
                queues = others,
                "more queues notified that nobody listens on"
            );
        }
    }
}
