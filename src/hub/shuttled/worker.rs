//! Queues whose messages are bits, and workers that read them: a message that is visible in the end,
//! while a worker listens, was stranded.
//!
//! A worker that is woken reads until empty and reports, as the README's listener does. Nothing else
//! makes it read, and no time that passes in a model reaches a heartbeat, which would heal what was
//! lost. The messages are under a plain lock: shuttle switches threads at the hub's own locks.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Wake, Waker},
    time::Duration,
};

use shuttle::thread::{self, JoinHandle, Thread};

use super::{
    company::Pace,
    core::{Hub, HubConfig},
    feed::{Feed, Next},
    listener::{EPOCH, NOW, feed_config, queue, walk},
    subscription::SubscriptionId,
    sync::{AtomicU64, Ordering},
};
use crate::{
    clock::Tick,
    error,
    fault::Fault,
    words::{
        GroupName, ListenerId, Notification, Report, ReportState, Selector, SubscribeEvent,
        SubscribeOptions, WorkDetected,
    },
};

/// A wake-up that is not covered by a report for this long goes to another member (R13).
pub(super) const CLAIM: Duration = Duration::from_secs(1);
/// BUSY is believed for this long (R14).
pub(super) const LEASE: Duration = Duration::from_secs(20);
/// A message that was got is hidden for this long.
pub(super) const HIDDEN: Duration = Duration::from_secs(30);
/// The timer of a busy listener that ended has fired by then: 2 s after its messages are visible
/// (R8), and at most 1/16 of the delay later (R7).
pub(super) const VISIBLE_AGAIN: Duration = Duration::from_secs(36);
/// Longer than any model lasts.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// Timers that fire in one model at most.
const TIMERS: usize = 200;

/// The messages of all queues.
#[derive(Default)]
pub(super) struct Queues(Mutex<Messages>);

#[derive(Default)]
struct Messages {
    /// The greatest sequence that a publisher had in an answer.
    head: u64,
    visible: Vec<(&'static str, u64)>,
    /// Those that were got and neither deleted nor visible yet.
    hidden: Vec<(Tick, &'static str, u64)>,
}

/// What a worker does with a wake-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// Reads until empty, and reports BUSY and DRAINED.
    Reads,
    /// Reads nothing and reports nothing.
    Hangs,
    /// Gets one message, reports BUSY, and does nothing more.
    HangsBusy,
}

/// Rings once, until it is heard, and wakes the thread that serves its worker.
#[derive(Default)]
struct Bell {
    rung: AtomicU64,
    thread: Mutex<Option<Thread>>,
}

/// A worker that listens in a thread of its own until it is stopped.
pub(super) struct Serving {
    thread: JoinHandle<Worker>,
    stopped: Arc<AtomicU64>,
}

/// A listener's stream, and its dequeue task.
pub(super) struct Worker {
    pub(super) hub: Arc<Hub>,
    queues: Arc<Queues>,
    feed: Feed,
    pub(super) id: SubscriptionId,
    bell: Arc<Bell>,
    waker: Waker,
    manner: Manner,
    pub(super) now: Tick,
    reports: u64,
    /// Entries that it handled since it settled.
    handled: u64,
    /// When it last reported DRAINED, a greater sequence had been counted.
    pub(super) drained_behind: bool,
}

pub(super) fn hub_with(fault: Fault, change: impl FnOnce(&mut HubConfig)) -> Arc<Hub> {
    let pace = Pace {
        claim: CLAIM,
        lease: LEASE,
        ..Pace::default()
    };
    let mut config = HubConfig {
        epoch: EPOCH,
        fault,
        pace,
        forget_after: Duration::ZERO,
        ..HubConfig::default()
    };
    change(&mut config);
    Arc::new(Hub::new(config))
}

/// Returns the options of a worker; its group, if any, follows from the caller.
pub(super) fn options(selectors: &[&str]) -> SubscribeOptions {
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

/// The same of a member of the one group.
pub(super) fn member(selectors: &[&str]) -> SubscribeOptions {
    SubscribeOptions {
        group: Some(GroupName::new("g").expect("a name")),
        ..options(selectors)
    }
}

/// Lets time pass up to `until`: the timers fire one after the other, and workers listen.
pub(super) fn pass(hub: &Hub, queues: &Queues, workers: &mut [Worker], mut now: Tick, until: Tick) {
    for _ in 0..TIMERS {
        loop {
            walk(hub);
            while hub.detach_some(now) {}
            let woken = workers.iter_mut().map(|worker| worker.listen_at(now));
            if !woken.fold(false, |any, woken| any | woken) {
                break;
            }
        }
        let Some(next) = hub.next_timer().filter(|next| *next <= until) else {
            return queues.reappear(until);
        };
        now = now.max(next);
        queues.reappear(now);
        hub.fire(now);
    }
    panic!("timers do not end");
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

    /// Puts a message, then notifies.
    pub(super) fn publish(&self, hub: &Hub, name: &'static str, bit: u32) {
        self.put(name, 1 << bit);
        let accepted = hub.notify(&Arc::from("p"), &[Notification::new(queue(name))], NOW);
        let sequence = accepted.expect("within the limits")[0].sequence;
        let mut messages = self.lock();
        messages.head = messages.head.max(sequence);
    }

    fn head(&self) -> u64 {
        self.lock().head
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

    /// Makes visible what was hidden until now.
    pub(super) fn reappear(&self, now: Tick) {
        let hidden = std::mem::take(&mut self.lock().hidden);
        for (until, name, bit) in hidden {
            match until <= now {
                true => self.put(name, bit),
                false => self.lock().hidden.push((until, name, bit)),
            }
        }
    }

    /// Checks that no message is visible.
    pub(super) fn all_read(&self) -> Result<(), String> {
        let messages = self.lock();
        let stranded = messages.visible.iter().filter(|(_, visible)| *visible != 0);
        let stranded: Vec<_> = stranded.collect();
        match stranded.is_empty() {
            true => Ok(()),
            false => Err(format!("stranded: {stranded:?}")),
        }
    }

    fn names(&self) -> Vec<&'static str> {
        self.lock().visible.iter().map(|(name, _)| *name).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Messages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.store(1, Ordering::SeqCst);
        let thread = self.thread().clone();
        if let Some(thread) = thread {
            thread.unpark();
        }
    }
}

impl Bell {
    fn heard(&self) -> bool {
        self.rung.swap(0, Ordering::SeqCst) == 1
    }

    fn thread(&self) -> MutexGuard<'_, Option<Thread>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Serving {
    /// Waits until the worker has done what it was woken for.
    pub(super) fn stop(self) -> Worker {
        self.stopped.store(1, Ordering::SeqCst);
        self.thread.thread().unpark();
        self.thread.join().expect("no thread of a model panics")
    }
}

impl Worker {
    pub(super) fn subscribe(
        hub: &Arc<Hub>,
        queues: &Arc<Queues>,
        options: &SubscribeOptions,
        number: u128,
        manner: Manner,
    ) -> Self {
        Self::subscribe_at(hub, queues, options, number, (manner, NOW))
    }

    pub(super) fn subscribe_at(
        hub: &Arc<Hub>,
        queues: &Arc<Queues>,
        options: &SubscribeOptions,
        number: u128,
        (manner, now): (Manner, Tick),
    ) -> Self {
        let mut rng = fastrand::Rng::with_seed(1);
        let id = SubscriptionId(number);
        let subscription = hub.subscribe(id, options, now, &mut rng).expect("accepted");
        let config = feed_config();
        let feed = Feed::new(
            Arc::clone(hub),
            subscription,
            options,
            &config,
            now,
            &mut rng,
        );
        let bell = Arc::new(Bell::default());
        bell.rung.store(1, Ordering::SeqCst);
        Self {
            hub: Arc::clone(hub),
            queues: Arc::clone(queues),
            feed,
            id,
            waker: Arc::clone(&bell).into(),
            bell,
            manner,
            now,
            reports: 0,
            handled: 0,
            drained_behind: false,
        }
    }

    /// Subscribes, reads what its CATCH_UP is about, and is idle.
    pub(super) fn settled(
        hub: &Arc<Hub>,
        queues: &Arc<Queues>,
        options: &SubscribeOptions,
        number: u128,
        manner: Manner,
    ) -> Self {
        let mut worker = Self::subscribe(hub, queues, options, number, Manner::Reads);
        worker.listen();
        (worker.manner, worker.handled) = (manner, 0);
        worker
    }

    /// Listens in a thread of its own, whenever its stream is woken.
    pub(super) fn serve(self) -> Serving {
        self.serve_while(|_| true)
    }

    /// The same up to the first wake-up: then its stream ends without a Goodbye.
    pub(super) fn serve_once(self) -> Serving {
        self.serve_while(|worker| {
            if worker.handled > 0 {
                worker.close();
            }
            worker.handled == 0
        })
    }

    fn serve_while(mut self, goes_on: impl Fn(&mut Self) -> bool + Send + 'static) -> Serving {
        let stopped = Arc::new(AtomicU64::new(0));
        let stop = Arc::clone(&stopped);
        let thread = thread::spawn(move || {
            *self.bell.thread() = Some(thread::current());
            loop {
                self.listen();
                if !goes_on(&mut self) || stop.load(Ordering::SeqCst) == 1 {
                    *self.bell.thread() = None;
                    return self;
                }
                thread::park();
            }
        });
        Serving { thread, stopped }
    }

    /// Listens a few times.
    pub(super) fn rounds(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.listen();
            thread::yield_now();
        }
    }

    pub(super) fn listen_at(&mut self, now: Tick) -> bool {
        self.now = now;
        self.listen()
    }

    /// Takes what its stream has, where that was woken, then handles it; returns whether it was.
    pub(super) fn listen(&mut self) -> bool {
        let mut woken = false;
        while self.bell.heard() {
            woken = true;
            let taken = self.take(false);
            taken.iter().for_each(|entry| self.handle(entry));
        }
        woken
    }

    /// Its relay drains: takes up to the Goodbye, which ends the stream.
    pub(super) fn goodbye(&mut self) {
        let taken = self.take(true);
        taken.iter().for_each(|entry| self.handle(entry));
        self.close();
    }

    pub(super) fn close(&mut self) {
        self.feed.close(self.now);
    }

    /// Reports one queue, under the next number.
    pub(super) fn report(
        &mut self,
        name: &str,
        state: ReportState,
        sequence: u64,
    ) -> error::Result<()> {
        self.reports += 1;
        let report = Report {
            state,
            sequence,
            number: self.reports,
            ..Report::new(queue(name))
        };
        self.hub.report(self.id, &report, self.now)
    }

    fn take(&mut self, draining: bool) -> Vec<WorkDetected> {
        let mut taken = Vec::new();
        while let Next::Send(event) = self.feed.next(self.now, draining, &self.waker) {
            if let SubscribeEvent::Wake(work) = event {
                taken.extend(work);
            }
        }
        taken
    }

    fn handle(&mut self, entry: &WorkDetected) {
        self.handled += 1;
        if self.manner == Manner::Hangs {
            return;
        }
        let Some(address) = entry.queue.as_address() else {
            // Reads every queue that it knows; no report says so.
            for name in self.queues.names() {
                if entry.queue.matches(&queue(name)) {
                    self.queues.read(name);
                }
            }
            return;
        };
        let (name, sequence) = (address.queue_name(), entry.sequence);
        if self.manner == Manner::HangsBusy {
            if self.queues.hide(name, self.now + HIDDEN) {
                _ = self.report(name, ReportState::Busy, sequence);
            }
            return;
        }
        if self.queues.read(name) {
            _ = self.report(name, ReportState::Busy, sequence);
            while self.queues.read(name) {}
        }
        // The next message may come now.
        thread::yield_now();
        self.drained_behind = self.queues.head() > sequence;
        _ = self.report(name, ReportState::Drained, sequence);
    }
}
