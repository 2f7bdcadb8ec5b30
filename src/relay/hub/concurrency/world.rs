//! A hub with queues whose messages are bits, for models of reading workers. A message that is
//! visible at the end, while a worker listens, was stranded.
//!
//! The time that passes never reaches a heartbeat, which would heal a loss. The messages are under
//! a plain lock: shuttle switches threads at the hub's own locks.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use shuttle::thread::{self, JoinHandle};

use super::{
    config::HubConfig,
    core::Hub,
    listener::{EPOCH, NOW, queue, walk},
    worker::{Manner, Worker},
};
use crate::{
    base::{clock::Tick, fault::Fault, sync::lock},
    types::{GroupName, ListenerId, Notification, Selector, SubscribeOptions},
};

/// R13: a wake-up that is not covered by a report for this long is redelivered.
pub(super) const CLAIM: Duration = Duration::from_secs(1);
/// R14: BUSY is a lease of this length: longer than what the busy member received is hidden.
pub(super) const LEASE: Duration = Duration::from_secs(40);
/// A received message is hidden for this long.
pub(super) const HIDDEN: Duration = Duration::from_secs(30);
/// The timer of a busy listener that ended has fired by then: 2 s after its messages are visible
/// (R8: a busy listener's end sets a timer), and at most 1/16 of the delay later (R7: timers merge
/// upwards).
pub(super) const VISIBLE_AGAIN: Duration = Duration::from_secs(36);
/// Longer than any model lasts.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// The most timers that fire in one model.
const TIMERS: usize = 200;

/// The hub, and the queues' messages, which the hub does not know.
#[derive(Clone)]
pub(super) struct World {
    pub(super) hub: Arc<Hub>,
    pub(super) queues: Arc<Queues>,
}

/// The messages of all queues.
#[derive(Default)]
pub(super) struct Queues(Mutex<Messages>);

#[derive(Default)]
struct Messages {
    /// The greatest sequence in a publisher's answer.
    head: u64,
    visible: Vec<(&'static str, u64)>,
    /// Received messages, neither deleted nor visible yet.
    hidden: Vec<(Tick, &'static str, u64)>,
}

/// Returns the options of a worker outside of groups.
pub(super) fn plain(selectors: &[&str]) -> SubscribeOptions {
    let id = ListenerId::new("w").expect("a name");
    let selectors = selectors
        .iter()
        .map(|text| text.parse::<Selector>().expect("a selector"));
    SubscribeOptions {
        visibility_timeout: HIDDEN,
        heartbeat: HEARTBEAT,
        ..SubscribeOptions::new(id, selectors)
    }
}

/// Returns the options of a member of the one group.
pub(super) fn member(selectors: &[&str]) -> SubscribeOptions {
    SubscribeOptions {
        group: Some(GroupName::new("g").expect("a name")),
        ..plain(selectors)
    }
}

impl World {
    pub(super) fn new(fault: Fault) -> Self {
        Self::with(fault, |_| {})
    }

    pub(super) fn with(fault: Fault, change: impl FnOnce(&mut HubConfig)) -> Self {
        fault.plant();
        let mut config = HubConfig {
            epoch: EPOCH,
            forget_after: Duration::ZERO,
            claim_timeout: CLAIM,
            busy_lease: LEASE,
            ..HubConfig::default()
        };
        change(&mut config);
        Self {
            hub: Arc::new(Hub::new(config)),
            queues: Arc::default(),
        }
    }

    /// Subscribes; the worker reads the queues of its CATCH_UP, and is idle.
    pub(super) fn settled(
        &self,
        options: &SubscribeOptions,
        number: u128,
        manner: Manner,
    ) -> Worker {
        let mut worker = Worker::subscribe(self, options, number, Manner::Reads);
        worker.listen();
        worker.settle(manner);
        worker
    }

    /// Runs this in a separate thread.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let world = self.clone();
        thread::spawn(move || act(&world))
    }

    /// Publishes a message for each bit, in a separate thread.
    pub(super) fn spawn_publish(&self, name: &'static str, bits: &'static [u32]) -> JoinHandle<()> {
        self.spawn(move |world| {
            for bit in bits {
                world.publish(name, *bit);
                thread::yield_now();
            }
        })
    }

    /// Puts a message, then notifies.
    pub(super) fn publish(&self, name: &'static str, bit: u32) {
        self.queues.put(name, 1 << bit);
        let event = Notification::new(queue(name));
        let accepted = self.hub.notify_all(&Arc::from("p"), &[event], NOW);
        let sequence = accepted.expect("within the limits")[0].sequence;
        let mut messages = self.queues.lock();
        messages.head = messages.head.max(sequence);
    }

    /// Lets time pass up to `until`: the timers fire one after the other, and workers listen.
    pub(super) fn pass(&self, workers: &mut [Worker], mut now: Tick, until: Tick) {
        for _ in 0..TIMERS {
            self.quiet(workers, now);
            let Some(next) = self.hub.next_timer().filter(|next| *next <= until) else {
                return self.queues.reappear(until);
            };
            now = now.max(next);
            self.queues.reappear(now);
            self.hub.fire(now);
        }
        panic!("timers do not end");
    }

    /// Runs the hub's tasks and the workers, until none of them was woken.
    fn quiet(&self, workers: &mut [Worker], now: Tick) {
        loop {
            walk(&self.hub);
            while self.hub.detach_some(now) {}
            let woken = workers.iter_mut().map(|worker| worker.listen_at(now));
            if !woken.fold(false, |any, woken| any | woken) {
                return;
            }
        }
    }

    /// Checks that no message is visible.
    pub(super) fn all_read(&self) -> Result<(), String> {
        let messages = self.queues.lock();
        let stranded = messages.visible.iter().filter(|(_, visible)| *visible != 0);
        let stranded: Vec<_> = stranded.collect();
        match stranded.is_empty() {
            true => Ok(()),
            false => Err(format!("stranded: {stranded:?}")),
        }
    }
}

impl Queues {
    pub(super) fn put(&self, name: &'static str, bits: u64) {
        let mut messages = self.lock();
        match messages
            .visible
            .iter_mut()
            .find(|(known, _)| *known == name)
        {
            Some((_, visible)) => *visible |= bits,
            None => messages.visible.push((name, bits)),
        }
    }

    /// Gets and deletes all messages; returns whether there were any.
    pub(super) fn read(&self, name: &str) -> bool {
        let mut messages = self.lock();
        let found = messages
            .visible
            .iter_mut()
            .find(|(known, _)| *known == name);
        found.is_some_and(|(_, visible)| std::mem::take(visible) != 0)
    }

    /// Gets one message, which is hidden until then; returns whether there was one.
    pub(super) fn hide(&self, name: &str, until: Tick) -> bool {
        let mut messages = self.lock();
        let found = messages
            .visible
            .iter_mut()
            .find(|(known, _)| *known == name);
        let Some((name, visible)) = found.filter(|(_, visible)| *visible != 0) else {
            return false;
        };
        let bit = *visible & visible.wrapping_neg();
        *visible &= !bit;
        let name = *name;
        messages.hidden.push((until, name, bit));
        true
    }

    /// Makes messages visible that were hidden until now.
    pub(super) fn reappear(&self, now: Tick) {
        let hidden = std::mem::take(&mut self.lock().hidden);
        for (until, name, bit) in hidden {
            match until <= now {
                true => self.put(name, bit),
                false => self.lock().hidden.push((until, name, bit)),
            }
        }
    }

    /// Returns the greatest sequence in a publisher's answer.
    pub(super) fn head(&self) -> u64 {
        self.lock().head
    }

    pub(super) fn names(&self) -> Vec<&'static str> {
        self.lock().visible.iter().map(|(name, _)| *name).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Messages> {
        lock(&self.0)
    }
}
