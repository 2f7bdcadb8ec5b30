//! The hub's rules, one test each, with manual time and wakers that count.
//!
//! `model` runs random operations against a naive log; `concurrency` runs interleavings.

mod backlog;
mod cluster;
mod counting;
mod decisions;
mod fanout;
mod forgetting;
mod groups;
mod limits;
mod listing;
mod load;
mod memory;
mod model;
mod ordering;
mod reporting;
mod resume;
mod resuming;
mod sentinel;
mod streams;
mod timing;
mod wake_builder;
mod waking;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Wake, Waker},
    time::Duration,
};

use super::{
    CursorPool, Epoch, Filled, Hub, HubConfig, StreamConfig, StreamMessage, SubscriberStream,
    Subscription, SubscriptionId, WakeBatch, WakeBuilder,
};
use crate::{
    base::{clock::Tick, fault::Fault},
    types::{
        Accepted, GroupName, ListenerId, Notification, QueueAddress, Report, ReportState,
        ResumeNumber, StreamAction, SubscribeEvent, SubscribeOptions, WakeReason, WorkDetected,
    },
};

const EPOCH: Epoch = Epoch(7);
const START: Tick = Tick::from_nanos(0);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Counts how often it is woken.
#[derive(Default)]
struct Alarm(AtomicU64);

/// One entry of a wake, without the fields that few tests need.
type Entry = (String, WakeReason, u64);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Alarm {
    fn new() -> (Arc<Self>, Waker) {
        let alarm = Arc::new(Self::default());
        (Arc::clone(&alarm), alarm.into())
    }

    fn rung(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

fn hub() -> Arc<Hub> {
    hub_with(HubConfig::default())
}

/// Creates a hub whose configuration differs from the default in this.
fn hub_where(change: impl FnOnce(&mut HubConfig)) -> Arc<Hub> {
    let mut config = HubConfig::default();
    change(&mut config);
    hub_with(config)
}

fn hub_with(mut config: HubConfig) -> Arc<Hub> {
    config.epoch = EPOCH;
    Arc::new(Hub::new(config))
}

fn after(span: Duration) -> Tick {
    START + span
}

fn queue(name: &str) -> QueueAddress {
    QueueAddress::new("acct", name).expect(name)
}

fn notification(name: &str) -> Notification {
    Notification::new(queue(name))
}

/// Notifies one queue once, at time zero.
fn notify(hub: &Hub, name: &str) -> Accepted {
    notify_with(hub, notification(name), START)
}

fn notify_with(hub: &Hub, notification: Notification, now: Tick) -> Accepted {
    let accepted = hub.notify_all(&Arc::from("tests"), &[notification], now);
    accepted.expect("within the limits")[0]
}

/// Sends several notifications in one request.
fn notify_all(hub: &Hub, batch: &[Notification], now: Tick) -> crate::Result<Vec<Accepted>> {
    hub.notify_all(&Arc::from("tests"), batch, now)
}

fn delayed(name: &str, delay: Duration) -> Notification {
    Notification {
        delay,
        ..notification(name)
    }
}

/// Returns `count` names: the prefix and a number.
fn numbered(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|at| format!("{prefix}{at}")).collect()
}

fn options<S: std::fmt::Display>(selectors: &[S]) -> SubscribeOptions {
    let id = ListenerId::new("listener").expect("a name");
    let selectors = selectors
        .iter()
        .map(|name| format!("acct/{name}").parse::<crate::types::Selector>());
    SubscribeOptions::new(id, selectors.map(|selector| selector.expect("a selector")))
}

fn in_group<S: std::fmt::Display>(group: &str, selectors: &[S]) -> SubscribeOptions {
    SubscribeOptions {
        group: Some(GroupName::new(group).expect("a name")),
        ..options(selectors)
    }
}

/// Draws a resume number, takes all entries, and states the number.
fn resume_number(hub: &Hub, subscription: &Subscription, now: Tick) -> ResumeNumber {
    drain(subscription, now);
    let revision = Some(&hub.shared.revision);
    _ = subscription.fill(now, revision, &mut WakeBuilder::default());
    subscription.take_resume().expect("all is sent")
}

fn subscribe<S: std::fmt::Display>(hub: &Arc<Hub>, selectors: &[S]) -> Arc<Subscription> {
    subscribe_with(hub, &options(selectors), START)
}

/// Opens a subscription whose patterns are not introduced yet.
fn open(hub: &Arc<Hub>, id: u128, options: &SubscribeOptions) -> crate::Result<Arc<Subscription>> {
    hub.subscribe(SubscriptionId(id), options, START)
}

fn subscribe_with(hub: &Arc<Hub>, options: &SubscribeOptions, now: Tick) -> Arc<Subscription> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = SubscriptionId(NEXT.fetch_add(1, Ordering::Relaxed).into());
    let subscription = hub.subscribe(id, options, now).expect("accepted");
    while !hub.introduce_some(&subscription, now) {}
    subscription
}

/// Subscribes, and takes the first CATCH_UPs.
fn settled(hub: &Arc<Hub>, selectors: &[&str]) -> Arc<Subscription> {
    let subscription = subscribe(hub, selectors);
    drain(&subscription, START);
    subscription
}

/// Takes the next Wake; `None` where nothing is marked.
fn take(subscription: &Subscription, now: Tick) -> Option<Vec<WorkDetected>> {
    loop {
        let mut sink = WakeBuilder::default();
        let filled = subscription.fill(now, None, &mut sink);
        if filled.entries > 0 || filled.complete {
            return Some(sink.work).filter(|work| !work.is_empty());
        }
    }
}

/// Takes all entries of a stream, and ends its send.
fn take_sent(hub: &Hub, subscription: &Subscription, now: Tick) -> Vec<WorkDetected> {
    let work = drain(subscription, now);
    hub.end_send(subscription, now);
    work
}

/// Takes until nothing is marked.
fn drain(subscription: &Subscription, now: Tick) -> Vec<WorkDetected> {
    std::iter::from_fn(|| take(subscription, now))
        .flatten()
        .collect()
}

/// Runs all walks of the fan-out.
fn walk_all(hub: &Hub) {
    let mut batch = WakeBatch::default();
    while let Some(mut walk) = hub.fanout.pop() {
        while walk.step(&mut batch) {}
        batch.wake();
    }
}

/// Takes all entries at the start.
fn told(subscription: &Subscription) -> Vec<Entry> {
    entries(&drain(subscription, START))
}

fn entries(work: &[WorkDetected]) -> Vec<Entry> {
    let mut entries: Vec<_> = work
        .iter()
        .map(|entry| {
            let name = entry.queue.queue_name().to_owned();
            (name, entry.reason, entry.notifications)
        })
        .collect();
    entries.sort();
    entries
}

fn entry(name: &str, reason: WakeReason, notifications: u64) -> Entry {
    (name.to_owned(), reason, notifications)
}

fn feed(hub: &Arc<Hub>, options: &SubscribeOptions) -> SubscriberStream {
    feed_at(hub, options, START)
}

fn feed_at(hub: &Arc<Hub>, options: &SubscribeOptions, now: Tick) -> SubscriberStream {
    let config = StreamConfig {
        relay_id: "relay".into(),
        epoch: EPOCH.to_string().into(),
        version: "1".into(),
        max_age: HOUR,
        throttle_from: StreamConfig::THROTTLE_FROM,
    };
    let subscription = subscribe_with(hub, options, now);
    let hub = Arc::clone(hub);
    let mut rng = fastrand::Rng::with_seed(1);
    SubscriberStream::new(hub, subscription, options, &config, now, &mut rng)
}

/// Polls a stream until it waits. Returns its events, and the end of the wait.
fn sent(feed: &mut SubscriberStream, now: Tick, waker: &Waker) -> (Vec<SubscribeEvent>, Tick) {
    let mut events = Vec::new();
    loop {
        match feed.next(now, None, waker) {
            StreamAction::Send(event) => events.push(event),
            StreamAction::Wait(until) => return (events, until),
            StreamAction::End => return (events, Tick::NEVER),
            StreamAction::Yield => unreachable!("not by `next`"),
        }
    }
}

/// Returns the entries of the wakes among a stream's events.
fn woken(events: &[SubscribeEvent]) -> Vec<Entry> {
    let work = events.iter().filter_map(|event| match event {
        SubscribeEvent::Wake(work) => Some(work.clone()),
        _ => None,
    });
    entries(&work.flatten().collect::<Vec<_>>())
}

/// Returns the newest resume number of a stream's events.
fn stated(events: &[SubscribeEvent]) -> Option<ResumeNumber> {
    events.iter().rev().find_map(|event| match event {
        SubscribeEvent::Heartbeat { resume, .. } => Some(resume.clone()),
        _ => None,
    })
}

fn report(name: &str, state: ReportState, sequence: u64, number: u64) -> Report {
    Report {
        state,
        sequence,
        number,
        ..Report::new(queue(name))
    }
}

/// Returns the number of a listener's next report.
fn number() -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

fn say(hub: &Hub, listener: &Subscription, report: &Report, now: Tick) {
    let said = hub.report(listener.id, report, now);
    said.expect("it listens on the queue");
}
