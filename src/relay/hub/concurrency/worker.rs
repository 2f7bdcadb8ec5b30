//! Workers: listeners that read queues and report the result, each when its stream is woken.
//!
//! A worker that reads does so until its queue is empty, as the README's listener does, and sends
//! nothing else. It takes all messages of its stream before it handles any of them.

use crate::types::Drain;
use std::{
    sync::{Arc, Mutex, MutexGuard},
    task::{Wake, Waker},
};

use shuttle::thread::{self, JoinHandle, Thread};

use super::{
    listener::{NOW, feed_config, queue},
    stream::SubscriberStream,
    subscription::SubscriptionId,
    sync::{AtomicU64, Ordering},
    world::{HIDDEN, World},
};
use crate::{
    base::{clock::Tick, sync::lock},
    error::Result,
    types::{
        ListenerId, Report, ReportState, StreamAction, SubscribeEvent, SubscribeOptions,
        WorkDetected,
    },
};

/// A worker's reaction to a wake-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// Reads until empty, and reports BUSY and DRAINED.
    Reads,
    /// Reads nothing and reports nothing.
    Hangs,
    /// Gets one message, and reports nothing.
    GetsOne,
    /// Gets one message, reports BUSY, and does nothing more.
    HangsBusy,
}

/// Rings once, until it is read, and wakes its worker's thread.
#[derive(Default)]
struct Bell {
    rung: AtomicU64,
    thread: Mutex<Option<Thread>>,
}

/// A worker that listens in a separate thread until it is stopped.
pub(super) struct Serving {
    thread: JoinHandle<Worker>,
    stopped: Arc<AtomicU64>,
}

/// A listener's stream, and its dequeue task.
pub(super) struct Worker {
    world: World,
    feed: SubscriberStream,
    pub(super) id: SubscriptionId,
    bell: Arc<Bell>,
    waker: Waker,
    manner: Manner,
    pub(super) now: Tick,
    reports: u64,
    /// Entries handled since it settled.
    handled: u64,
    /// A greater sequence had been counted when it last reported DRAINED.
    pub(super) drained_behind: bool,
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
        lock(&self.thread)
    }
}

impl Serving {
    /// Waits until the worker has handled its wake-ups.
    pub(super) fn stop(self) -> Worker {
        self.stopped.store(1, Ordering::SeqCst);
        self.thread.thread().unpark();
        self.thread.join().expect("no thread of a model panics")
    }
}

impl Worker {
    pub(super) fn subscribe(
        world: &World,
        options: &SubscribeOptions,
        number: u128,
        manner: Manner,
    ) -> Self {
        // Each worker is a separate listener.
        let options = &SubscribeOptions {
            listener_id: ListenerId::new(&format!("w{number}")).expect("a name"),
            ..options.clone()
        };
        let mut rng = fastrand::Rng::with_seed(1);
        let (id, hub) = (SubscriptionId(number), &world.hub);
        let subscription = hub.subscribe(id, options, NOW).expect("accepted");
        let (hub, config) = (Arc::clone(hub), feed_config());
        let feed = SubscriberStream::new(hub, subscription, options, &config, NOW, &mut rng);
        let bell = Arc::new(Bell::default());
        bell.rung.store(1, Ordering::SeqCst);
        Self {
            world: world.clone(),
            feed,
            id,
            waker: Arc::clone(&bell).into(),
            bell,
            manner,
            now: NOW,
            reports: 0,
            handled: 0,
            drained_behind: false,
        }
    }

    /// Makes it idle; from now on it reacts in this manner.
    pub(super) fn settle(&mut self, manner: Manner) {
        (self.manner, self.handled) = (manner, 0);
    }

    /// Listens in a separate thread, whenever its stream is woken.
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

    /// Runs this in a separate thread.
    pub(super) fn spawn<T: Send + 'static>(
        mut self,
        act: impl FnOnce(&mut Self) -> T + Send + 'static,
    ) -> JoinHandle<(Self, T)> {
        thread::spawn(move || {
            let result = act(&mut self);
            (self, result)
        })
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

    /// Takes its stream's messages, where that was woken, then handles them; returns whether it was
    /// woken.
    pub(super) fn listen(&mut self) -> bool {
        let mut woken = false;
        while self.bell.heard() {
            woken = true;
            let taken = self.take(false);
            taken.iter().for_each(|entry| self.handle(entry));
        }
        woken
    }

    /// Its relay drains: takes all up to the Goodbye, which ends the stream.
    pub(super) fn goodbye(&mut self) {
        let taken = self.take(true);
        taken.iter().for_each(|entry| self.handle(entry));
        self.close();
    }

    pub(super) fn close(&mut self) {
        self.feed.close(self.now);
    }

    /// Reports one queue, under the next number.
    pub(super) fn report(&mut self, name: &str, state: ReportState, sequence: u64) -> Result<()> {
        self.reports += 1;
        let report = Report {
            state,
            sequence,
            number: self.reports,
            ..Report::new(queue(name))
        };
        self.world.hub.report(self.id, &report, self.now)
    }

    fn take(&mut self, draining: bool) -> Vec<WorkDetected> {
        let mut taken = Vec::new();
        let drain = draining.then(|| Drain::at_once(self.now));
        while let StreamAction::Send(event) = self.feed.next(self.now, drain, &self.waker) {
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
            // Reads every queue that it knows; no report states that.
            for name in self.world.queues.names() {
                if entry.queue.matches(&queue(name)) {
                    self.world.queues.read(name);
                }
            }
            return;
        };
        let (name, sequence) = (address.queue_name(), entry.sequence);
        if self.manner != Manner::Reads {
            let got = self.world.queues.hide(name, self.now + HIDDEN);
            if got && self.manner == Manner::HangsBusy {
                _ = self.report(name, ReportState::Busy, sequence);
            }
            return;
        }
        if self.world.queues.read(name) {
            _ = self.report(name, ReportState::Busy, sequence);
            while self.world.queues.read(name) {}
        }
        // The next message may arrive now.
        thread::yield_now();
        self.drained_behind = self.world.queues.head() > sequence;
        _ = self.report(name, ReportState::Drained, sequence);
    }
}
