//! The tasks that run the hub: timers, fan-out, forgetting, and the log of lost listeners.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use super::RelayInner;
use tokio::time::MissedTickBehavior;
use tracing::field::display;

use crate::{
    base::{
        clock::{Tick, wall},
        sync::lock,
        task::Scope,
    },
    relay::hub::WakeBatch,
};

/// The interval of log lines about lost listeners.
const LOG_EVERY: Duration = Duration::from_secs(1);
/// Names of lost listeners in the log at a time.
const NAMED: usize = 8;
/// The interval of the history's samples.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Forgetting scans all queues, so it runs at most once a minute.
const FORGET_EVERY: Duration = Duration::from_secs(60);

pub(super) fn spawn(scope: &Scope, shared: &Arc<RelayInner>) {
    let timers = Arc::clone(shared);
    scope.spawn_restarting("timers", move || fire_timers(Arc::clone(&timers)));
    let fan = Arc::clone(shared);
    scope.spawn_restarting("fan-out", move || fan_out(Arc::clone(&fan)));
    let every = (shared.config.forget_after / 10).clamp(Duration::from_millis(100), FORGET_EVERY);
    let listeners = Arc::clone(shared);
    scope.spawn_restarting("lost listeners", move || {
        log_lost_listeners(Arc::clone(&listeners))
    });
    let sampled = Arc::clone(shared);
    scope.spawn_restarting("samples", move || sample(Arc::clone(&sampled)));
    let forgetting = Arc::clone(shared);
    scope.spawn_restarting("forgetting", move || forget(Arc::clone(&forgetting), every));
}

/// Fires each timer when it is due.
async fn fire_timers(shared: Arc<RelayInner>) {
    let waker = &shared.hub.timers().waker;
    loop {
        let now = shared.clock.now();
        let next = shared.hub.fire(now);
        if next.is_some_and(|next| next <= now) {
            // More than one slice is due.
            tokio::task::yield_now().await;
            continue;
        }
        let sleep = tokio::time::sleep_until(shared.clock.instant(next.unwrap_or(Tick::NEVER)));
        tokio::pin!(sleep);
        poll_fn(|cx| {
            waker.register(cx.waker());
            // Read again after the waker is registered: another timer may have become the first.
            if shared.hub.next_timer() != next {
                return Poll::Ready(());
            }
            sleep.as_mut().poll(cx)
        })
        .await;
    }
}

/// The most work of one batch and of one poll, in marks: its first stream waits some hundred
/// microseconds.
const MAX_BATCH_WORK: usize = 8192;

/// Walks the subscribers of queues with many, and detaches the cursors of closed streams. All pending walks
/// are done before their streams are woken, up to a batch: a stream of many queues sends one Wake for them,
/// and the runtime's threads begin to send together, where small batches would have them sleep and wake
/// each other in between. Between a mark and its wake there are only walks: a notification that finds the
/// mark relies on that wake.
async fn fan_out(shared: Arc<RelayInner>) {
    let (hub, waker) = (&shared.hub, &shared.hub.fanout.waker);
    let mut batch = WakeBatch::default();
    // Work since the last yield.
    let mut spent = 0;
    loop {
        let walk = poll_fn(|cx| {
            waker.register(cx.waker());
            match hub.fanout.pop() {
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
        loop {
            let more = walk.step(&mut batch);
            if batch.work >= MAX_BATCH_WORK || !more && hub.fanout.is_empty() {
                spent += batch.work;
                batch.wake();
            }
            if !more {
                break;
            }
            if batch.work == 0 {
                spent = 0;
                tokio::task::yield_now().await;
            }
        }
        if batch.work == 0 && (hub.detach_some(shared.clock.now()) || spent >= MAX_BATCH_WORK) {
            spent = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Adds a sample to the history each second.
async fn sample(shared: Arc<RelayInner>) {
    let mut ticks = tokio::time::interval(SAMPLE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first sample is of the first second.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let figures = shared.figures();
        lock(&shared.history).push(&figures, wall());
    }
}

async fn forget(shared: Arc<RelayInner>, every: Duration) {
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

/// Logs each listener that was lost, once.
async fn log_lost_listeners(shared: Arc<RelayInner>) {
    let mut ticks = tokio::time::interval(LOG_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let lost = shared.hub.take_lost();
        let others = lost.len().saturating_sub(NAMED);
        for lost in lost.iter().take(NAMED) {
            let (listener, queue) = (&lost.listener_id, lost.selectors.first().map(display));
            tracing::warn!(%listener, queue, "a listener is gone: it answered no heartbeat");
        }
        if others > 0 {
            tracing::warn!(listeners = others, "more listeners are gone");
        }
    }
}
