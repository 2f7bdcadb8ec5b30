//! Faults that the simulation found in the relay, each as the shortest run that shows it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Wake, Waker},
    time::Duration,
};

use crate::{
    base::clock::Tick,
    relay::hub::{
        Epoch, Hub, HubConfig, StreamConfig, SubscriberStream, SubscriptionId, WakeBatch,
    },
    types::{
        ListenerId, Notification, QueueAddress, ResumeNumber, Selector, StreamAction,
        SubscribeEvent, SubscribeOptions, WakeReason, WorkDetected,
    },
};

#[derive(Default)]
struct Count(AtomicU64);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A stream on a hub, and how often it was woken.
struct Stream {
    feed: SubscriberStream,
    woken: Arc<Count>,
}

impl Stream {
    fn open(hub: &Arc<Hub>, selectors: &[&str], resume: ResumeNumber) -> Self {
        let selectors = selectors.iter().map(|name| Selector::new("acct", name));
        let selectors: Vec<Selector> = selectors.map(|s| s.expect("a selector")).collect();
        let options = SubscribeOptions {
            resume,
            ..SubscribeOptions::new(ListenerId::new("l").expect("a name"), selectors)
        };
        let (mut rng, now) = (fastrand::Rng::with_seed(7), at(0));
        let subscription = hub
            .subscribe(SubscriptionId(1), &options, now)
            .expect("the options keep the rules");
        let config = StreamConfig {
            relay_id: "r".into(),
            epoch: "e".into(),
            version: "0".into(),
            max_age: Duration::from_secs(3600),
            throttle_from: StreamConfig::THROTTLE_FROM,
        };
        let feed = SubscriberStream::new(
            Arc::clone(hub),
            subscription,
            &options,
            &config,
            now,
            &mut rng,
        );
        let woken = Arc::default();
        Self { feed, woken }
    }

    /// Asks until it waits; returns the wake-ups, and until when it waits.
    fn drain(&mut self, now: Tick) -> (Vec<WorkDetected>, Tick) {
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut wakes = Vec::new();
        loop {
            match self.feed.next(now, None, &waker) {
                StreamAction::Send(SubscribeEvent::Wake(work)) => wakes.extend(work),
                StreamAction::Send(_) => {}
                StreamAction::Wait(until) => return (wakes, until),
                StreamAction::Yield | StreamAction::End => {
                    panic!("it goes on")
                }
            }
        }
    }
}

fn hub(inline: usize) -> Arc<Hub> {
    Arc::new(Hub::new(HubConfig {
        epoch: Epoch(9),
        inline,
        ..HubConfig::default()
    }))
}

fn at(millis: u64) -> Tick {
    Tick::from_nanos(millis * 1_000_000)
}

fn queue(name: &str) -> QueueAddress {
    QueueAddress::new("acct", name).expect("an address")
}

fn notify(hub: &Hub, name: &str, now: Tick) {
    let notification = Notification::new(queue(name));
    hub.notify_all(&"p".into(), &[notification], now)
        .expect("it keeps the rules");
}

#[test]
fn a_patterns_stream_is_woken_for_a_queue_that_is_new() {
    let hub = hub(64);
    let mut stream = Stream::open(&hub, &["ord*"], ResumeNumber::default());
    stream.drain(at(0));
    let before = stream.woken.0.load(Ordering::Relaxed);
    notify(&hub, "orders", at(10));
    assert_eq!(stream.woken.0.load(Ordering::Relaxed), before + 1);
}

#[test]
fn a_walk_that_is_dropped_tells_its_queue_while_another_one_is_busy() {
    let hub = hub(0);
    let mut stream = Stream::open(&hub, &["busy", "quiet"], ResumeNumber::default());
    stream.drain(at(0));
    notify(&hub, "quiet", at(10));
    drop(hub.fanout.pop().expect("it is left to the fan-out"));
    let mut told = Vec::new();
    for second in 1..=10 {
        notify(&hub, "busy", at(second * 1000));
        while hub
            .fanout
            .pop()
            .is_some_and(|mut walk| walk.step(&mut WakeBatch::default()))
        {}
        told.extend(stream.drain(at(second * 1000)).0);
    }
    let quiet = told.iter().find(|work| work.queue.queue_name() == "quiet");
    assert_eq!(quiet.map(|work| work.reason), Some(WakeReason::Notified));
}

#[test]
fn a_walk_that_is_dropped_does_not_keep_the_next_one_away() {
    let hub = hub(0);
    let mut stream = Stream::open(&hub, &["orders"], ResumeNumber::default());
    stream.drain(at(0));
    notify(&hub, "orders", at(10));
    drop(hub.fanout.pop().expect("it is left to the fan-out"));
    stream.drain(at(15));
    notify(&hub, "orders", at(20));
    assert!(hub.fanout.pop().is_some());
}
