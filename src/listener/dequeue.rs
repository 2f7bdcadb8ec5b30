//! One dequeue task: get a batch, handle it, delete what was handled; rest or leave when there is
//! nothing.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::{sync::Semaphore, time::Instant};

use super::{
    budget::Slot,
    delivery,
    hooks::Action,
    shared::{Shared, count},
};
use crate::{
    error::{Error, ErrorKind, Result},
    queue::Message,
    scaling::{Begin, Idle, ListenerMode, Rest, TaskId},
};

/// A get that takes longer has failed; its messages, if there were any, come back by themselves.
const GET_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a dequeue task to its end.
pub(super) async fn run(shared: Arc<Shared>, id: TaskId) {
    let mut slot = None;
    while !shared.stopping.is_cancelled() {
        let sleeps = shared.ask(|core, now| core.scaler.sleeps_until(id, now).is_some());
        if sleeps {
            slot = None;
            sleep(&shared, id).await;
            continue;
        }
        if slot.is_none() {
            slot = acquire(&shared).await;
            continue;
        }
        match shared.ask(|core, now| core.scaler.begin(id, now)) {
            Begin::Get => {}
            Begin::Sleep(_) => continue,
            Begin::Leave => return,
        }
        count(&shared.counters.gets);
        let asked = Instant::now();
        let rest = match get(&shared).await {
            Ok(batch) if batch.is_empty() => empty(&shared, id),
            Ok(batch) => {
                handle(&shared, id, batch, asked).await;
                // Whoever pauses needs none.
                let pauses = !shared.config.dequeue_interval.is_zero();
                if pauses || shared.config.budget.should_yield(shared.number) {
                    slot = None;
                }
                pause(&shared, id).await;
                Rest::Again
            }
            Err(error) => failed(&shared, id, error),
        };
        if rest == Rest::Leave {
            return;
        }
    }
}

/// Sleeps until then, or until it is to sleep less.
async fn sleep(shared: &Shared, id: TaskId) {
    let roused = shared.roused.notified();
    tokio::pin!(roused);
    roused.as_mut().enable();
    // Asked now that the signal is heard.
    let until = shared.ask(|core, now| core.scaler.sleeps_until(id, now));
    let Some(until) = until else { return };
    tokio::select! {
        () = tokio::time::sleep_until(shared.clock.instant(until)) => {}
        () = roused => {}
        () = shared.stopping.cancelled() => {}
    }
}

async fn acquire(shared: &Shared) -> Option<Slot> {
    let stopped = shared.stopping.cancelled();
    tokio::select! {
        slot = shared.config.budget.acquire(shared.number) => Some(slot),
        () = stopped => None,
    }
}

async fn get(shared: &Shared) -> Result<Vec<Message>> {
    let config = &shared.config;
    let get = shared
        .queue
        .get(config.dequeue_batch_size, config.visibility_timeout);
    tokio::time::timeout(GET_TIMEOUT, get)
        .await
        .unwrap_or_else(|_| {
            let message = format!("`{}` gave no answer within {GET_TIMEOUT:?}", shared.queue);
            Err(Error::new(ErrorKind::Timeout, message))
        })
}

/// Asks the hook, then does what it said, in so far as nothing has happened meanwhile.
fn empty(shared: &Shared, id: TaskId) -> Rest {
    count(&shared.counters.empty_gets);
    let (idle_count, proposed) = shared.ask(|core, _| {
        let chance = core.chance();
        core.scaler.idle(id, chance)
    });
    let idle: Idle = shared.hooks.on_queue_empty(idle_count, proposed);
    let rest = shared.ask(|core, now| {
        let chance = core.chance();
        core.scaler.rest(id, idle, now, chance)
    });
    shared.stirred.notify_one();
    rest
}

fn failed(shared: &Shared, id: TaskId, error: Error) -> Rest {
    let kind = error.kind();
    shared.complain(Action::Get, None, error);
    let resolution = shared.queue.limits().resolution;
    let visibility = shared.config.visibility_timeout.saturating_add(resolution);
    let rest = shared.ask(|core, now| core.scaler.failed(id, kind, visibility, now, &mut core.rng));
    shared.stirred.notify_one();
    rest
}

/// Handles a batch: all its messages are kept hidden from the start, and so many of them are handled
/// at a time.
async fn handle(shared: &Arc<Shared>, id: TaskId, batch: Vec<Message>, asked: Instant) {
    let full = batch.len() >= shared.config.dequeue_batch_size;
    let received = &shared.counters.received;
    received.fetch_add(batch.len() as u64, Ordering::Relaxed);
    let (detected, mode) =
        shared.ask(|core, now| (core.scaler.found(id, full, now), core.scaler.mode()));
    if detected && mode != ListenerMode::Pushed {
        shared.hooks.on_work_detected(None);
    }
    shared.stirred.notify_one();
    deliver(shared, batch, asked).await;
}

/// Lets the time between two batches pass; the task is ready for the next one then.
async fn pause(shared: &Shared, id: TaskId) {
    if !shared.config.dequeue_interval.is_zero() {
        let pause = tokio::time::sleep(shared.config.dequeue_interval);
        tokio::select! {
            () = pause => {}
            () = shared.stopping.cancelled() => {}
        }
    }
    shared.ask(|core, _| core.scaler.done(id));
    // What it was too busy to look for is looked for next.
    shared.stirred.notify_one();
}

/// Says for each message of a batch whether it is to share no run: who would go to the poison queue
/// next takes no other one there, and who was rejected in company has to show whose fault it was.
fn alone(shared: &Shared, batch: &[Message]) -> Vec<bool> {
    let notes = shared.notes();
    let last = |one: &Message| notes.tries(one) >= shared.config.max_dequeue_count;
    let alone = |one: &Message| notes.is_suspect(&one.id) || shared.poison.is_some() && last(one);
    batch.iter().map(alone).collect()
}

async fn deliver(shared: &Arc<Shared>, batch: Vec<Message>, asked: Instant) {
    let (handlers, runs) = shared.handlers.seat(&alone(shared, &batch));
    let turns = Semaphore::new(shared.config.handled_at_once());
    let mut deliveries: FuturesUnordered<_> = std::iter::zip(batch, handlers)
        .map(|(message, handler)| delivery::deliver(shared, &turns, message, handler, asked))
        .collect();
    let delivered = async { while deliveries.next().await.is_some() {} };
    // Runs that have ended have told everybody; runs that nobody waits for any more are dropped.
    let runs = async {
        futures_util::future::join_all(runs).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = delivered => {}
        () = runs => {}
    }
}
