//! Parts of the models: events with a bit each, listeners that add up the bits of their wake-ups,
//! and the runner of the fan-out.

use crate::types::Drain;
use std::{
    sync::Arc,
    task::{Wake, Waker},
    time::Duration,
};

use super::{
    config::HubConfig,
    core::Hub,
    counters::Epoch,
    stream::{StreamConfig, SubscriberStream},
    subscription::{Subscription, SubscriptionId, WakeBatch},
    sync::{AtomicU64, Ordering},
    wake_builder::WakeBuilder,
};
use crate::{
    base::{clock::Tick, fault::Fault},
    types::{
        ListenerId, Notification, QueueAddress, ResumeNumber, Selector, StreamAction,
        SubscribeEvent, SubscribeOptions, WorkDetected,
    },
};

/// The time of all steps, unless a model states another one.
pub(super) const NOW: Tick = Tick::from_nanos(1_000_000_000);
pub(super) const EPOCH: Epoch = Epoch(7);

/// Rings once, until it is read.
pub(super) struct Alarm(AtomicU64);

/// A stream, and the sum of its entries.
pub(super) struct Listener {
    hub: Arc<Hub>,
    selector: Selector,
    feed: SubscriberStream,
    pub(super) subscription: Arc<Subscription>,
    alarm: Arc<Alarm>,
    waker: Waker,
    /// The bits of the received events.
    pub(super) told: u64,
    /// A bit was received twice, a sequence went back, or sums do not add up.
    pub(super) wrong: bool,
    /// The newest entry of each queue.
    places: Vec<WorkDetected>,
    /// The newest resume number.
    resume: ResumeNumber,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.store(1, Ordering::SeqCst);
    }
}

impl Alarm {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(1)))
    }

    pub(super) fn heard(&self) -> bool {
        self.0.swap(0, Ordering::SeqCst) == 1
    }
}

pub(super) fn hub(inline: usize, fault: Fault) -> Arc<Hub> {
    fault.plant();
    Arc::new(Hub::new(HubConfig {
        epoch: EPOCH,
        inline,
        forget_after: Duration::ZERO,
        ..HubConfig::default()
    }))
}

pub(super) fn queue(name: &str) -> QueueAddress {
    QueueAddress::new("a", name).expect("a name")
}

/// Notifies events with the given bits, all of one queue, in one request.
pub(super) fn notify(hub: &Hub, name: &str, bits: &[u32], delay: Duration) {
    let event = |bit: &u32| Notification {
        payload_size: 1 << bit,
        delay,
        ..Notification::new(queue(name))
    };
    let events: Vec<_> = bits.iter().map(event).collect();
    hub.notify_all(&Arc::from("p"), &events, NOW)
        .expect("within the limits");
}

/// Runs all walks of the fan-out.
pub(super) fn walk(hub: &Hub) {
    let mut batch = WakeBatch::default();
    while let Some(mut walk) = hub.fanout.pop() {
        while walk.step(&mut batch) {
            batch.wake();
        }
    }
}

impl Listener {
    pub(super) fn subscribe(hub: &Arc<Hub>, selector: &str, number: u128) -> Self {
        let selector: Selector = selector.parse().expect("a selector");
        let alarm = Alarm::new();
        let (feed, subscription) = open(hub, &selector, number, &ResumeNumber::default());
        Self {
            hub: Arc::clone(hub),
            selector,
            feed,
            subscription,
            waker: Arc::clone(&alarm).into(),
            alarm,
            told: 0,
            wrong: false,
            places: Vec::new(),
            resume: ResumeNumber::default(),
        }
    }

    /// Subscribes and takes the first entries.
    pub(super) fn settled(hub: &Arc<Hub>, selector: &str, number: u128) -> Self {
        let mut listener = Self::subscribe(hub, selector, number);
        listener.listen();
        listener
    }

    /// Checks a few times whether it was woken.
    pub(super) fn rounds(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.listen();
            shuttle::thread::yield_now();
        }
    }

    /// Takes the due entries where it was woken; a stream is polled for no other reason.
    pub(super) fn listen(&mut self) {
        while self.alarm.heard() {
            while let StreamAction::Send(event) = self.feed.next(NOW, None, &self.waker) {
                if let SubscribeEvent::Wake(work) = event {
                    work.into_iter().for_each(|entry| self.tell(entry));
                }
            }
        }
    }

    /// Takes all messages up to the Goodbye of a relay that drains.
    pub(super) fn goodbye(&mut self) {
        while let StreamAction::Send(event) =
            self.feed.next(NOW, Some(Drain::at_once(NOW)), &self.waker)
        {
            if let SubscribeEvent::Wake(work) = event {
                work.into_iter().for_each(|entry| self.tell(entry));
            }
        }
    }

    /// Loses its stream, and resubscribes with the newest resume number.
    pub(super) fn come_back(&mut self, number: u128, now: Tick) {
        self.feed.close(now);
        let resume = &self.resume;
        (self.feed, self.subscription) = open(&self.hub, &self.selector, number, resume);
        self.alarm.0.store(1, Ordering::SeqCst);
    }

    /// Takes the messages of a silent stream up to the heartbeat with a number, which it keeps.
    pub(super) fn beat(&mut self, now: Tick) {
        loop {
            let mut sink = WakeBuilder::default();
            match self.feed.next_into(now, None, &self.waker, &mut sink) {
                StreamAction::Send(message) => match message.into_event(sink) {
                    SubscribeEvent::Wake(work) => {
                        work.into_iter().for_each(|entry| self.tell(entry));
                    }
                    SubscribeEvent::Heartbeat { resume, .. } if !resume.is_empty() => {
                        self.resume = resume;
                        return;
                    }
                    _ => {}
                },
                StreamAction::Yield => shuttle::thread::yield_now(),
                StreamAction::Wait(_) | StreamAction::End => return,
            }
        }
    }

    pub(super) fn has_number(&self) -> bool {
        !self.resume.is_empty()
    }

    pub(super) fn close(&mut self, now: Tick) {
        self.feed.close(now);
    }

    /// Returns the sequence of its position in a queue.
    pub(super) fn place(&self, name: &str) -> Option<u64> {
        let queue = Selector::from(queue(name));
        let place = self.places.iter().find(|entry| entry.queue == queue);
        place.map(|entry| entry.sequence)
    }

    fn tell(&mut self, entry: WorkDetected) {
        let bits = entry.payload_size;
        self.wrong |= self.told & bits != 0 || u64::from(bits.count_ones()) != entry.notifications;
        self.told |= bits;
        if entry.queue.is_pattern() {
            return;
        }
        let before = self.places.iter_mut().find(|e| e.queue == entry.queue);
        let from = entry.sequence.checked_sub(entry.notifications);
        let Some(before) = before else {
            self.places.push(entry);
            return;
        };
        self.wrong |= from < Some(before.sequence);
        *before = entry;
    }
}

fn open(
    hub: &Arc<Hub>,
    selector: &Selector,
    number: u128,
    resume: &ResumeNumber,
) -> (SubscriberStream, Arc<Subscription>) {
    let id = ListenerId::new("l").expect("a name");
    let options = SubscribeOptions {
        resume: resume.clone(),
        ..SubscribeOptions::new(id, [selector.clone()])
    };
    let config = feed_config();
    let mut rng = fastrand::Rng::with_seed(1);
    let subscription = hub
        .subscribe(SubscriptionId(number), &options, NOW)
        .expect("accepted");
    let (hub, opened) = (Arc::clone(hub), Arc::clone(&subscription));
    let feed = SubscriberStream::new(hub, subscription, &options, &config, NOW, &mut rng);
    (feed, opened)
}

pub(super) fn feed_config() -> StreamConfig {
    StreamConfig {
        relay_id: "r".into(),
        epoch: "e".into(),
        version: "v".into(),
        max_age: Duration::from_secs(3600),
        throttle_from: StreamConfig::THROTTLE_FROM,
    }
}
