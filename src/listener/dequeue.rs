//! One dequeue task: get messages for its places, handle them, delete what was handled; get more when
//! half of the places are free; rest or leave when there is nothing.
//!
//! A place is room for one message, [`dequeue_batch_size`] of them. Gets and sleeps go on beside the
//! messages at hand, so that a slow one keeps its own place only. A batch that is handled as one keeps
//! all places to its end.
//!
//! [`dequeue_batch_size`]: super::ListenerConfig::dequeue_batch_size

use std::{
    future::pending,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::{
    attempts::Arrival,
    batch::{Handlers, Run},
    budget::Slot,
    delivery::{self, Got},
    hooks::Action,
    shared::{Shared, count},
};
use crate::{
    clock::wall,
    error::{Error, ErrorKind, Result},
    queue::Message,
    scaling::{Begin, Idle, ListenerMode, Rest, TaskId},
};

/// A dequeue task and the messages that it holds.
struct DequeueTask<'a> {
    shared: &'a Arc<Shared>,
    id: TaskId,
    /// How many messages are handled at a time.
    turns: &'a Semaphore,
    slot: Option<Slot>,
    deliveries: FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>,
    /// Runs of a batch handler; each ends with the deliveries that wait for it.
    runs: FuturesUnordered<Run>,
    /// Another queue waits for the slot: it gets nothing more before all that it holds is handled.
    yields: bool,
}

/// A get that takes longer has failed; its messages, if there were any, come back by themselves.
const GET_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a dequeue task to its end.
pub(super) async fn run(shared: Arc<Shared>, id: TaskId) {
    let turns = Semaphore::new(shared.config.handled_at_once());
    let task = DequeueTask {
        shared: &shared,
        id,
        turns: &turns,
        slot: None,
        deliveries: FuturesUnordered::new(),
        runs: FuturesUnordered::new(),
        yields: false,
    };
    task.run().await;
}

impl DequeueTask<'_> {
    async fn run(mut self) {
        while !self.shared.stopping.is_cancelled() {
            let sleeps = self
                .shared
                .ask(|core, now| core.scaler.sleeps_until(self.id, now).is_some());
            let rest = match sleeps {
                true => self.sleep().await,
                false => self.look().await,
            };
            if rest == Rest::Leave {
                return;
            }
        }
        while !self.deliveries.is_empty() {
            self.one_ended().await;
        }
    }

    /// Sleeps until the task looks again; what it holds goes on.
    async fn sleep(&mut self) -> Rest {
        if self.deliveries.is_empty() {
            self.slot = None;
        }
        let (shared, id) = (self.shared, self.id);
        tokio::select! {
            biased;
            // First: places that are free at the same time are filled by one get.
            () = self.one_ended() => {}
            () = sleep(shared, id) => return Rest::Again,
        }
        if self.deliveries.is_empty() {
            return self.finish().await;
        }
        self.use_places();
        Rest::Again
    }

    /// Gets messages for the places that are free.
    async fn look(&mut self) -> Rest {
        let shared = self.shared;
        if !self.deliveries.is_empty() && shared.config.budget.should_yield(shared.number) {
            self.yields = true;
            shared.ask(|core, _| core.scaler.only_handles(self.id));
            // Another one of its tasks may look instead.
            shared.stirred.notify_one();
            return Rest::Again;
        }
        if self.deliveries.len() >= shared.config.dequeue_batch_size {
            // It goes on after it was to end, and has no place left.
            shared.ask(|core, _| core.scaler.only_handles(self.id));
            return Rest::Again;
        }
        let Some((places, prefetched)) = self.reserve().await else {
            return Rest::Again;
        };
        let holds_nothing = self.deliveries.is_empty();
        let begin = shared.ask(|core, now| {
            if holds_nothing {
                core.scaler.holds_nothing(self.id);
            }
            core.scaler.begin(self.id, now)
        });
        match begin {
            Begin::Get => {}
            Begin::Sleep(_) => return Rest::Again,
            Begin::Leave => return Rest::Leave,
        }
        count(&shared.counters.gets);
        let asked = Instant::now();
        let got = self.beside(get(shared, places)).await;
        if self.deliveries.is_empty() {
            shared.ask(|core, _| core.scaler.holds_nothing(self.id));
        }
        match got {
            Ok(batch) if batch.is_empty() => empty(shared, self.id),
            Ok(batch) => {
                self.take(batch, places, prefetched, asked);
                Rest::Again
            }
            Err(error) => failed(shared, self.id, error),
        }
    }

    /// Waits until messages may be got: for a slot, and with a stream for readers that take others.
    /// Returns how many may be. Neither is kept while the other is waited for, or two tasks might wait
    /// for each other. `None` where the listener stops.
    async fn reserve(&mut self) -> Option<(usize, Option<OwnedSemaphorePermit>)> {
        let shared = self.shared;
        loop {
            if self.deliveries.is_empty() && shared.prefetch.is_some() {
                self.slot = None;
            }
            let places = shared.config.dequeue_batch_size - self.deliveries.len();
            let reserved = tokio::select! {
                biased;
                reserved = prefetch(shared, places) => reserved?,
                () = self.one_ended() => continue,
            };
            if self.slot.is_some() {
                return Some(reserved);
            }
            let acquiring = acquire(shared);
            tokio::pin!(acquiring);
            if let Poll::Ready(slot) = futures_util::poll!(&mut acquiring) {
                self.slot = Some(slot?);
                return Some(reserved);
            }
            drop(reserved);
            self.slot = Some(acquiring.await?);
            let reserving = prefetch(shared, places);
            tokio::pin!(reserving);
            if let Poll::Ready(reserved) = futures_util::poll!(&mut reserving) {
                return reserved;
            }
        }
    }

    /// Takes in what a get found: all messages are kept hidden from the start, and so many of them
    /// are handled at a time.
    fn take(
        &mut self,
        batch: Vec<Message>,
        asked_for: usize,
        mut prefetched: Option<OwnedSemaphorePermit>,
        asked: Instant,
    ) {
        let shared = self.shared;
        let full = batch.len() >= asked_for;
        let received = &shared.counters.received;
        received.fetch_add(batch.len() as u64, Ordering::Relaxed);
        let (detected, mode) =
            shared.ask(|core, now| (core.scaler.found(self.id, full, now), core.scaler.mode()));
        if detected && mode != ListenerMode::Pushed {
            shared.hooks.on_work_detected(None);
        }
        let arrivals = arrivals(shared, &batch);
        let alone = |arrival: &Arrival| matches!(arrival, Arrival::Handle { alone: true, .. });
        let alone: Vec<bool> = arrivals.iter().map(alone).collect();
        let (handlers, runs) = shared.handlers.seat(&alone);
        self.runs.extend(runs);
        let turns = self.turns;
        let got = std::iter::zip(batch, arrivals);
        for ((message, arrival), handler) in std::iter::zip(got, handlers) {
            let one = prefetched.as_mut().and_then(|permits| permits.split(1));
            let got = Got {
                message,
                arrival,
                asked,
            };
            let delivery = delivery::deliver(shared, turns, got, handler, one);
            self.deliveries.push(Box::pin(delivery));
        }
        self.use_places();
        // With those places in mind: another task may be needed, or not.
        shared.stirred.notify_one();
    }

    /// Says that places are free, where they may be used before all messages are handled.
    fn use_places(&mut self) {
        let (shared, held) = (self.shared, self.deliveries.len());
        let config = &shared.config;
        let together = matches!(shared.handlers, Handlers::Together(_));
        let waits = together || self.yields || !config.dequeue_interval.is_zero();
        if waits || held >= config.dequeue_batch_size {
            return;
        }
        let half = held * 2 <= config.dequeue_batch_size;
        shared.ask(|core, now| {
            let chance = core.chance();
            core.scaler.places_free(self.id, half, now, chance);
        });
    }

    /// All messages are handled: lets the time between two batches pass, and is ready for the next.
    async fn finish(&mut self) -> Rest {
        let (shared, interval) = (self.shared, self.shared.config.dequeue_interval);
        self.yields = false;
        // Whoever pauses needs no slot.
        if !interval.is_zero() || shared.config.budget.should_yield(shared.number) {
            self.slot = None;
        }
        if !interval.is_zero() {
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                () = shared.stopping.cancelled() => {}
            }
        }
        let rest = shared.ask(|core, now| core.scaler.done(self.id, now));
        // What it was too busy to look for is looked for next.
        shared.stirred.notify_one();
        rest
    }

    /// Awaits a call while the messages at hand go on.
    async fn beside<T>(&mut self, call: impl Future<Output = T>) -> T {
        tokio::pin!(call);
        loop {
            tokio::select! {
                biased;
                outcome = &mut call => return outcome,
                () = self.one_ended() => {}
            }
        }
    }

    /// Waits until one of the messages at hand is done with; for ever where there is none.
    async fn one_ended(&mut self) {
        if self.deliveries.is_empty() {
            return pending().await;
        }
        loop {
            tokio::select! {
                biased;
                _ = self.deliveries.next() => break,
                // It has told all that wait for it.
                Some(()) = self.runs.next() => {}
            }
        }
        if self.deliveries.is_empty() {
            // No delivery waits for them any more.
            self.runs.clear();
        }
    }
}

/// Sleeps until the machine's time, or until that may be another one.
async fn sleep(shared: &Shared, id: TaskId) {
    let roused = shared.roused.notified();
    tokio::pin!(roused);
    roused.as_mut().enable();
    // Asked now that the signal is heard: for good where it only handles what it holds.
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

async fn get(shared: &Shared, places: usize) -> Result<Vec<Message>> {
    let get = shared.queue.get(places, shared.config.visibility_timeout);
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
    let (idle_count, proposed) = shared.ask(|core, now| {
        let chance = core.chance();
        core.scaler.idle(id, now, chance)
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

/// Waits until readers of a stream have taken so many messages that more may be got; returns how
/// many, up to `places`. `None` where the listener stops.
async fn prefetch(shared: &Shared, places: usize) -> Option<(usize, Option<OwnedSemaphorePermit>)> {
    let Some(prefetch) = &shared.prefetch else {
        return Some((places, None));
    };
    let first = tokio::select! {
        first = Arc::clone(prefetch).acquire_owned() => first.expect("never closed"),
        () = shared.stopping.cancelled() => return None,
    };
    let mut permits = first;
    while permits.num_permits() < places
        && let Ok(more) = Arc::clone(prefetch).try_acquire_owned()
    {
        permits.merge(more);
    }
    Some((permits.num_permits(), Some(permits)))
}

/// Decides what is done with the messages of a batch, for all of it at one time: a message that is
/// to share no run and one that goes to the poison queue next are the same.
fn arrivals(shared: &Shared, batch: &[Message]) -> Vec<Arrival> {
    let (attempts, now) = (shared.attempts(), wall());
    let arrived = |message: &Message| attempts.arrived(message, now);
    batch.iter().map(arrived).collect()
}
