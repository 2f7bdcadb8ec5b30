//! One dequeue task: gets messages for its places, handles them, deletes handled messages. It gets
//! more when half of the places are free, and sleeps or ends when the queue is empty.
//!
//! A place is room for one message; a task has [`dequeue_batch_size`] of them. Gets and sleeps run
//! concurrently with the messages in flight, so a slow message occupies only its own place.
//!
//! [`dequeue_batch_size`]: super::ListenerConfig::dequeue_batch_size

use std::{future::pending, pin::pin, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tokio::{sync::Semaphore, time::Instant};
use tracing::Instrument as _;

use super::{
    budget::Slot,
    delivery::deliver,
    hooks::Action,
    shared::{Core, Shared, in_time},
};
use crate::{
    base::clock::wall,
    error::Error,
    listener::scaling::{ListenerMode, TaskAction, TaskId},
    queue::Message,
};

/// A dequeue task and the messages that it holds.
struct DequeueTask<'a> {
    shared: &'a Arc<Shared>,
    id: TaskId,
    /// One permit for each message that may be handled at the same time.
    concurrency: &'a Semaphore,
    slot: Option<Slot>,
    deliveries: FuturesUnordered<BoxFuture<'a, ()>>,
    /// Another queue waits for the slot: the task gets no more before all its messages are handled.
    yields_slot: bool,
}

/// A slower get has failed; messages that it hid become visible again by themselves.
const GET_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a dequeue task to its end.
pub(super) async fn run(shared: Arc<Shared>, id: TaskId) {
    let concurrency = Semaphore::new(shared.config.handled_at_once());
    let task = DequeueTask {
        shared: &shared,
        id,
        concurrency: &concurrency,
        slot: None,
        deliveries: FuturesUnordered::new(),
        yields_slot: false,
    };
    task.run().await;
}

impl DequeueTask<'_> {
    async fn run(mut self) {
        while !self.shared.stopping.is_cancelled() {
            let until = self
                .shared
                .scaler(|scaler, now, _| scaler.sleeps_until(self.id, now));
            let next = if until.is_some() {
                self.sleep().await
            } else {
                self.poll_queue().await
            };
            if next == TaskAction::Leave {
                return;
            }
        }
        while !self.deliveries.is_empty() {
            self.delivery_ended().await;
        }
    }

    /// Sleeps until the next poll, while the messages in flight are handled.
    async fn sleep(&mut self) -> TaskAction {
        if self.deliveries.is_empty() {
            self.slot = None;
        }
        let (shared, id) = (self.shared, self.id);
        tokio::select! {
            biased;
            // First, so that one get fills all places that become free at the same time.
            () = self.delivery_ended() => {}
            () = sleep(shared, id) => return TaskAction::Get,
        }
        if self.deliveries.is_empty() {
            return self.finish().await;
        }
        self.use_places();
        TaskAction::Get
    }

    /// Gets messages for the free places.
    async fn poll_queue(&mut self) -> TaskAction {
        let (shared, config) = (self.shared, &self.shared.config);
        let held = self.deliveries.len();
        let yields_slot = held > 0 && config.budget.should_yield(shared.number);
        // A kept task that was about to end may have no free place.
        if yields_slot || held >= config.dequeue_batch_size {
            self.yields_slot |= yields_slot;
            shared.scaler(|scaler, _, _| scaler.stop_polling(self.id));
            // Another task of this listener may poll instead.
            shared.changed.notify_one();
            return TaskAction::Get;
        }
        if self.slot.is_none() {
            self.slot = tokio::select! {
                slot = config.budget.acquire(shared.number) => Some(slot),
                () = shared.stopping.cancelled() => return TaskAction::Get,
            };
        }
        let places = config.dequeue_batch_size - held;
        let begin = shared.scaler(|scaler, now, _| {
            if held == 0 {
                scaler.holds_nothing(self.id);
            }
            scaler.begin(self.id, now)
        });
        if begin != TaskAction::Get {
            return begin;
        }
        shared.count(|stats| stats.gets += 1);
        let asked = Instant::now();
        let get = shared.queue.get(places, config.visibility_timeout);
        let get = in_time(GET_TIMEOUT, "the get", get);
        let got = self.while_handling(get).await;
        if self.deliveries.is_empty() {
            shared.scaler(|scaler, _, _| scaler.holds_nothing(self.id));
        }
        match got {
            Ok(batch) if batch.is_empty() => on_empty(shared, self.id),
            Ok(batch) => {
                self.start_deliveries(batch, places, asked);
                TaskAction::Get
            }
            Err(error) => on_failed(shared, self.id, &error),
        }
    }

    /// Starts a delivery for each message of a get. All are kept hidden from the start; the handler
    /// runs for a limited number at a time.
    fn start_deliveries(&mut self, batch: Vec<Message>, asked_for: usize, asked: Instant) {
        let shared = self.shared;
        let full = batch.len() >= asked_for;
        shared.count(|stats| stats.received += batch.len() as u64);
        let (detected, mode) =
            shared.scaler(|scaler, now, _| (scaler.found(self.id, full, now), scaler.mode()));
        if detected && mode != ListenerMode::Pushed {
            shared.hook((), |hooks| hooks.on_work_detected(None));
        }
        for message in batch {
            let arrival = shared.attempts().on_received(&message, wall());
            let (queue, id) = (&shared.queue, &message.id);
            // All that is logged about a message until it is settled, by its handler too.
            let span = tracing::info_span!("message", %queue, %id, gets = message.dequeue_count);
            let delivery = deliver(shared, self.concurrency, message, arrival, asked);
            self.deliveries.push(Box::pin(delivery.instrument(span)));
        }
        self.use_places();
        // After the free places are known: they decide whether another task is needed.
        shared.changed.notify_one();
    }

    /// Tells the scaler about free places, if they may be used before all messages are handled.
    fn use_places(&mut self) {
        let (shared, held) = (self.shared, self.deliveries.len());
        let config = &shared.config;
        let waits = self.yields_slot || !config.dequeue_interval.is_zero();
        if waits || held >= config.dequeue_batch_size {
            return;
        }
        let half = held * 2 <= config.dequeue_batch_size;
        shared.scaler(|scaler, now, chance| scaler.places_free(self.id, half, now, chance));
    }

    /// All messages are handled: waits for the interval between two batches, then asks the scaler.
    async fn finish(&mut self) -> TaskAction {
        let (shared, interval) = (self.shared, self.shared.config.dequeue_interval);
        self.yields_slot = false;
        // A pausing task needs no slot.
        if !interval.is_zero() || shared.config.budget.should_yield(shared.number) {
            self.slot = None;
        }
        if !interval.is_zero() {
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                () = shared.stopping.cancelled() => {}
            }
        }
        let next = shared.scaler(|scaler, now, _| scaler.done(self.id, now));
        // A poll that waited for a free task comes next.
        shared.changed.notify_one();
        next
    }

    /// Awaits a call while the messages in flight are handled.
    async fn while_handling<T>(&mut self, call: impl Future<Output = T>) -> T {
        let mut call = pin!(call);
        loop {
            tokio::select! {
                biased;
                outcome = &mut call => return outcome,
                () = self.delivery_ended() => {}
            }
        }
    }

    /// Waits until one delivery ends; for ever without any.
    async fn delivery_ended(&mut self) {
        if self.deliveries.is_empty() {
            return pending().await;
        }
        self.deliveries.next().await;
    }
}

/// Sleeps until the scaler's deadline, or until that may have changed.
async fn sleep(shared: &Shared, id: TaskId) {
    let mut woken_early = pin!(shared.sleep_changed.notified());
    woken_early.as_mut().enable();
    // Read after the signal is enabled. `Tick::NEVER` while the task only handles its messages.
    let Some(until) = shared.scaler(|scaler, now, _| scaler.sleeps_until(id, now)) else {
        return;
    };
    tokio::select! {
        () = tokio::time::sleep_until(shared.clock.instant(until)) => {}
        () = woken_early => {}
        () = shared.stopping.cancelled() => {}
    }
}

/// Asks the hook for a decision, and applies it unless a wake arrived since the get.
fn on_empty(shared: &Shared, id: TaskId) -> TaskAction {
    shared.count(|stats| stats.empty_gets += 1);
    let (idle_count, proposed) = shared.scaler(|scaler, now, chance| scaler.idle(id, now, chance));
    let idle = shared.hook(proposed, |hooks| hooks.on_queue_empty(idle_count, proposed));
    let next = shared.scaler(|scaler, now, chance| scaler.after_empty(id, idle, now, chance));
    shared.changed.notify_one();
    next
}

fn on_failed(shared: &Shared, id: TaskId, error: &Error) -> TaskAction {
    shared.report_error(Action::Get, None, error);
    let resolution = shared.queue.limits().resolution;
    let visibility = shared.config.visibility_timeout.saturating_add(resolution);
    let next = {
        let Core { scaler, rng } = &mut *shared.core();
        scaler.failed(id, error.kind(), visibility, shared.clock.now(), rng)
    };
    shared.changed.notify_one();
    next
}
