//! The hub with very many queues: the cost of each step, and no remains at the end.
//!
//! Streams of up to 10,000 queues, by a pattern, by name and as members of a group, with a sentinel
//! or with delays of up to 14 days; counts, sequences and resume numbers at the ends of their ranges
//! and beyond. A step is one call of the hub. Its work is counted in locks that it takes, because no
//! clock is steady enough; its limit does not depend on the number of queues. At the end each
//! stream knows every queue's head, and after all streams have ended the hub is empty.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
    time::Duration,
};

use super::{Seeds, groups};
use crate::{
    base::{clock::Tick, fault::Fault, sync::work},
    relay::hub::{
        Epoch, Hub, HubConfig, StreamConfig, StreamMessage, SubscriberStream, SubscriptionId,
        WakeBatch, WakeBuilder, Walk,
    },
    types::{
        GroupName, Limits, ListenerId, Notification, QueueAddress, Report, ReportState,
        ResumeNumber, Selector, StreamAction, SubscribeEvent, SubscribeOptions, WakeReason,
    },
};

const SEEDS: Seeds = Seeds {
    test: "many_queues_cost",
    count: [20, 40],
    cost: 50,
};
const SECOND: Duration = Duration::from_secs(1);
const SENTINEL: Duration = Duration::from_secs(25);
/// The sentinel asks each queue's listeners within this time, when all are silent: two intervals
/// during which a false report counts as polling, one more, and the claims of a group's members.
const ASKED: u64 = 100;
/// The maximum number of locks of a step of any kind, and of one notification or name in a request.
const STEP: u64 = 4_000;
const EACH: u64 = 10;

struct World {
    rng: fastrand::Rng,
    hub: Arc<Hub>,
    now: Tick,
    streams: Vec<Stream>,
    queues: Vec<QueueAddress>,
    walk: Option<Walk>,
    sentinel: Duration,
    numbers: u128,
    delayed: u64,
    most: Totals,
}

struct Stream {
    feed: SubscriberStream,
    id: SubscriptionId,
    options: SubscribeOptions,
    alarm: Arc<Alarm>,
    poll_at: Tick,
    /// Its client does not read until then.
    reads_at: Tick,
    /// The newest sequence of each queue.
    told: Vec<Option<u64>>,
    /// The newest resume number.
    number: ResumeNumber,
    /// When it was asked to check.
    asked: Vec<Option<Tick>>,
}

/// The greatest work of a step of each kind.
type Totals = BTreeMap<&'static str, u64>;

#[derive(Default)]
struct Alarm(AtomicBool);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

type Done = Result<(), String>;

impl World {
    fn new(seed: u64, fault: Fault) -> Self {
        fault.plant();
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x6d61_6e79);
        let count = [300, 2_000, 10_000]
            [usize::from(seed.is_multiple_of(10)) + usize::from(seed.is_multiple_of(5))];
        let sentinel = if seed.is_multiple_of(2) {
            SENTINEL
        } else {
            Duration::ZERO
        };
        let hub = Hub::new(HubConfig {
            epoch: Epoch(rng.u128(..)),
            seed: rng.u64(..),
            inline: if rng.bool() { 0 } else { 64 },
            ..groups::pace(sentinel, Duration::from_secs(600))
        });
        Self {
            rng,
            hub: Arc::new(hub),
            now: Tick::default(),
            streams: Vec::new(),
            queues: (0..count)
                .map(|n| super::plan::address(&format!("q{n}")))
                .collect(),
            walk: None,
            sentinel,
            numbers: 0,
            delayed: 0,
            most: Totals::new(),
        }
    }

    fn run(&mut self) -> Done {
        if self.rng.bool() {
            self.notify_all()?;
        }
        let group = GroupName::new("fleet").expect("a name");
        let pattern = vec![Selector::new("acct", "q*").expect("a selector")];
        let named: Vec<_> = self
            .queues
            .iter()
            .take(Limits::SELECTORS)
            .map(Selector::from)
            .collect();
        for (selectors, group) in [
            (pattern.clone(), None),
            (named.clone(), None),
            (pattern, Some(group.clone())),
            (named, Some(group)),
        ] {
            self.join(selectors, group)?;
        }
        self.notify_all()?;
        self.rest()?;
        for _ in 0..self.rng.usize(5..25) {
            let span = self.rng.u64(0..3_000);
            self.pass(Duration::from_millis(span))?;
            self.trouble()?;
        }
        for stream in &mut self.streams {
            stream.reads_at = self.now;
        }
        self.silence()?;
        self.fire_delayed()?;
        self.check_heads()?;
        self.end()
    }

    /// Runs one random operation.
    fn trouble(&mut self) -> Done {
        match self.rng.u32(0..8) {
            0 => self.notify_all(),
            1 | 2 => {
                let count = self.rng.usize(1..=200.min(self.queues.len()));
                self.notify_some(count)
            }
            3 | 4 => (0..self.rng.u32(1..50)).try_for_each(|_| self.report()),
            5 => {
                let at = self.rng.usize(0..self.streams.len());
                self.streams[at].reads_at = self.now + SECOND * self.rng.u32(1..20);
                Ok(())
            }
            _ => {
                let at = self.rng.usize(0..self.streams.len());
                self.come_back(at)
            }
        }
    }

    fn join(&mut self, selectors: Vec<Selector>, group: Option<GroupName>) -> Done {
        let listener = ListenerId::new("listener").expect("a name");
        let options = SubscribeOptions {
            group,
            capacity: [0, 1, 10, u32::MAX][self.rng.usize(0..4)],
            heartbeat: Limits::HEARTBEAT_MAX,
            ..SubscribeOptions::new(listener, selectors)
        };
        self.subscribe(options, vec![None; self.queues.len()])
    }

    fn subscribe(&mut self, options: SubscribeOptions, told: Vec<Option<u64>>) -> Done {
        self.numbers += 1;
        let id = SubscriptionId(self.numbers);
        let before = work::done();
        let made = self.hub.subscribe(id, &options, self.now);
        let limit = 2 * STEP + EACH * options.selectors.len() as u64;
        self.step("subscribe", before, limit)?;
        let config = StreamConfig {
            relay_id: "sim".into(),
            epoch: "".into(),
            version: "0".into(),
            max_age: Duration::from_secs(365 * 24 * 3600),
            throttle_from: StreamConfig::THROTTLE_FROM,
        };
        let made = made.map_err(|refused| format!("refused: {refused}"))?;
        let hub = Arc::clone(&self.hub);
        let feed = SubscriberStream::new(hub, made, &options, &config, self.now, &mut self.rng);
        self.streams.push(Stream {
            feed,
            id,
            options,
            alarm: Arc::default(),
            poll_at: self.now,
            reads_at: self.now,
            asked: vec![None; told.len()],
            told,
            number: ResumeNumber::default(),
        });
        Ok(())
    }

    /// A stream ends, and its listener comes back with its number, with none, or with nonsense.
    fn come_back(&mut self, at: usize) -> Done {
        let mut stream = self.streams.swap_remove(at);
        stream.feed.close(self.now);
        stream.options.resume = match self.rng.u32(0..4) {
            0 => {
                let length = self.rng.usize(0..=Limits::TOKEN);
                ResumeNumber((0..length).map(|_| self.rng.u8(..)).collect())
            }
            _ => stream.number.clone(),
        };
        // Without its number it must be told of every queue.
        if stream.number.is_empty() || stream.options.resume != stream.number {
            stream.told.fill(None);
        }
        self.subscribe(stream.options, stream.told)
    }

    fn notify_all(&mut self) -> Done {
        let all: Vec<_> = (0..self.queues.len()).collect();
        all.chunks(Limits::EVENTS)
            .try_for_each(|part| self.notify(part))
    }

    fn notify_some(&mut self, count: usize) -> Done {
        let some: Vec<_> = (0..count)
            .map(|_| self.rng.usize(0..self.queues.len()))
            .collect();
        self.notify(&some)
    }

    fn notify(&mut self, queues: &[usize]) -> Done {
        let delays = match self.sentinel.is_zero() {
            true => [
                Duration::from_secs(1),
                Duration::from_secs(3_600),
                Limits::DELAY,
            ],
            false => [
                Duration::from_millis(1),
                Duration::from_secs(5),
                Duration::from_secs(20),
            ],
        };
        let notifications: Vec<_> = queues
            .iter()
            .map(|queue| {
                let rng = &mut self.rng;
                let delayed = rng.u32(0..10) == 0;
                Notification {
                    messages: extreme(rng),
                    notifications: extreme(rng),
                    payload_size: extreme(rng),
                    delay: if delayed {
                        delays[rng.usize(0..3)]
                    } else {
                        Duration::ZERO
                    },
                    traceparent: "x".repeat(rng.usize(0..=Limits::TRACEPARENT)).into(),
                    ..Notification::new(self.queues[*queue].clone())
                }
            })
            .collect();
        self.delayed += notifications
            .iter()
            .filter(|one| !one.delay.is_zero())
            .count() as u64;
        let before = work::done();
        let told = self.hub.notify_all(&"p".into(), &notifications, self.now);
        let limit = STEP + EACH * notifications.len() as u64;
        self.step("notify", before, limit)?;
        told.map(drop)
            .map_err(|refused| format!("refused: {refused}"))
    }

    fn report(&mut self) -> Done {
        let rng = &mut self.rng;
        let stream = &self.streams[rng.usize(0..self.streams.len())];
        let queue = rng.usize(0..self.queues.len());
        let number = extreme(rng);
        let report = Report {
            state: [
                ReportState::Busy,
                ReportState::Drained,
                ReportState::Unspecified,
            ][rng.usize(0..3)],
            // Below its own head it would be a good report.
            sequence: if rng.bool() { 0 } else { u64::MAX },
            number,
            visible_in: (rng.u32(0..4) == 0).then_some(SECOND),
            current_queue_depth: extreme(rng),
            active_dequeue_tasks: rng.u32(..),
            total_dequeue_tasks: rng.u32(..),
            mean_wake_latency: Duration::MAX,
            ..Report::new(self.queues[queue].clone())
        };
        let (id, before) = (stream.id, work::done());
        // That the stream does not listen on the queue is its answer.
        _ = self.hub.report(id, &report, self.now);
        self.step("report", before, STEP)
    }

    /// Lets time pass, and runs all steps that become due.
    fn pass(&mut self, span: Duration) -> Done {
        let end = self.now + span;
        loop {
            self.rest()?;
            let polls = self.streams.iter().map(|one| one.poll_at.max(one.reads_at));
            let timer = self.hub.next_timer().unwrap_or(Tick::NEVER);
            let next = polls.min().unwrap_or(Tick::NEVER).min(timer);
            if next > end {
                break;
            }
            self.now = self.now.max(next);
        }
        self.now = end;
        self.rest()
    }

    /// Runs all due steps until none is left.
    fn rest(&mut self) -> Done {
        for _ in 0..100_000 {
            let fired = self.fire()?;
            let walked = self.walk()?;
            let mut polled = false;
            for at in 0..self.streams.len() {
                polled |= self.poll(at)?;
            }
            if !fired && !walked && !polled {
                return Ok(());
            }
        }
        Err("work: the hub does not come to rest".to_owned())
    }

    fn fire(&mut self) -> Result<bool, String> {
        if self.hub.next_timer().is_none_or(|next| next > self.now) {
            return Ok(false);
        }
        let before = work::done();
        self.hub.fire(self.now);
        self.step("fire", before, STEP)?;
        Ok(true)
    }

    fn walk(&mut self) -> Result<bool, String> {
        let before = work::done();
        let detached = self.hub.detach_some(self.now);
        self.step("detach", before, STEP)?;
        let before = work::done();
        let Some(mut walk) = self.walk.take().or_else(|| self.hub.fanout.pop()) else {
            return Ok(detached);
        };
        let mut batch = WakeBatch::default();
        if walk.step(&mut batch) {
            self.walk = Some(walk);
        }
        drop(batch);
        self.step("walk", before, STEP)?;
        Ok(true)
    }

    /// Polls a stream for its next message.
    fn poll(&mut self, at: usize) -> Result<bool, String> {
        let now = self.now;
        let stream = &mut self.streams[at];
        let rung = stream.alarm.0.load(Ordering::Relaxed);
        if now < stream.reads_at || !rung && stream.poll_at > now {
            return Ok(false);
        }
        stream.alarm.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&stream.alarm));
        let (before, mut sink) = (work::done(), WakeBuilder::default());
        let next = stream.feed.next_into(now, None, &waker, &mut sink);
        stream.poll_at = match &next {
            StreamAction::Wait(at) => *at,
            _ => now,
        };
        match next {
            StreamAction::Send(StreamMessage::Event(SubscribeEvent::Goodbye(_)))
            | StreamAction::End => return Err("a stream ends by itself".to_owned()),
            StreamAction::Send(StreamMessage::Event(SubscribeEvent::Heartbeat {
                resume, ..
            })) if !resume.is_empty() => stream.number = resume,
            _ => {}
        }
        for work in sink.work {
            // A pattern's own entry has no place.
            let Some(queue) = number_of(work.queue.queue_name()) else {
                continue;
            };
            if work.reason == WakeReason::Sentinel {
                stream.asked[queue] = Some(now);
            }
            stream.told[queue] = Some(work.sequence);
        }
        self.step("poll", before, STEP)?;
        Ok(true)
    }

    /// No reports and no notifications: the sentinel has each queue checked.
    fn silence(&mut self) -> Done {
        let began = self.now;
        self.rest()?;
        for _ in 0..if self.sentinel.is_zero() { 25 } else { ASKED } {
            self.pass(SECOND)?;
        }
        if self.sentinel.is_zero() {
            return Ok(());
        }
        let asked =
            |queue: usize, stream: &Stream| stream.asked[queue].is_some_and(|at| at >= began);
        let mut all = 0..self.queues.len();
        match all.find(|queue| !self.streams.iter().any(|stream| asked(*queue, stream))) {
            Some(queue) => Err(format!(
                "R11: no listener is asked to check queue {queue} in {ASKED} s"
            )),
            None => Ok(()),
        }
    }

    /// Jumps from one delayed wake-up to the next: each is fired, and none is left.
    fn fire_delayed(&mut self) -> Done {
        if self.sentinel.is_zero() {
            for _ in 0..10_000 {
                match self.hub.next_timer() {
                    Some(next) => self.now = self.now.max(next + Duration::from_secs(60)),
                    None => break,
                }
                self.rest()?;
            }
        }
        match self.hub.stats().timers {
            0 => Ok(()),
            left => Err(format!(
                "R9: {left} delayed wake-ups of {} are left",
                self.delayed
            )),
        }
    }

    /// Each stream outside of groups was told of each of its queues' heads (I1: no wake-up is lost).
    fn check_heads(&mut self) -> Done {
        // A stream is throttled after a large wake-up.
        for _ in 0..10 {
            self.pass(SECOND)?;
        }
        let known = self.hub.queues("", usize::MAX, self.now);
        for stream in self
            .streams
            .iter()
            .filter(|one| one.options.group.is_none())
        {
            for view in &known {
                let queue = number_of(view.address.queue_name()).expect("a queue of this run");
                let wanted = stream
                    .options
                    .selectors
                    .iter()
                    .any(|one| one.matches(&view.address));
                let told = stream.told[queue];
                if wanted && told < Some(view.sequence) {
                    return Err(format!(
                        "I1: a stream is told {told:?} of queue {queue}, {view:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// All streams end, and the hub forgets everything.
    fn end(&mut self) -> Done {
        for mut stream in std::mem::take(&mut self.streams) {
            stream.feed.close(self.now);
        }
        self.rest()?;
        for _ in 0..3 {
            self.now += Duration::from_secs(2 * 3600);
            self.rest()?;
            let mut after = None;
            loop {
                let before = work::done();
                after = self.hub.forget_some(after.as_ref(), self.now);
                self.step("forget", before, STEP)?;
                if after.is_none() {
                    break;
                }
            }
        }
        let stats = self.hub.stats();
        let left = [
            stats.queues,
            stats.subscriptions,
            stats.cursors,
            stats.timers,
        ];
        match left {
            [0, 0, 0, 0] => Ok(()),
            _ => Err(format!("memory: something is left: {left:?}")),
        }
    }

    /// A step has ended: it took few locks.
    fn step(&mut self, name: &'static str, before: u64, limit: u64) -> Done {
        let locks = work::done() - before;
        let most = self.most.entry(name).or_default();
        *most = locks.max(*most);
        match locks > limit {
            true => Err(format!("work: a step of `{name}` takes {locks} locks")),
            false => Ok(()),
        }
    }
}

/// Returns a queue's number; `None` for a pattern.
fn number_of(name: &str) -> Option<usize> {
    name.strip_prefix('q')?.parse().ok()
}

/// Returns a number, often one at an end of its range.
fn extreme(rng: &mut fastrand::Rng) -> u64 {
    match rng.u32(0..6) {
        0 => 0,
        1 => u64::MAX,
        2 => u64::MAX - 1,
        3 => rng.u64(..),
        _ => 1,
    }
}

pub(super) fn run(seed: u64, fault: Fault) -> Option<String> {
    World::new(seed, fault).run().err()
}

/// With any number of queues each step is short, no event is lost, and no state remains.
#[test]
fn many_queues_cost_each_step_little() {
    let totals = Mutex::new(Totals::new());
    let all = SEEDS.run(|seed, fault, _| {
        let mut world = World::new(seed, fault);
        let violation = world.run().err();
        let mut totals = totals.lock().expect("no panic");
        for (name, most) in world.most {
            let all = totals.entry(name).or_default();
            *all = most.max(*all);
        }
        violation
    });
    let totals = totals.into_inner().expect("no panic");
    println!("locks of a step at most: {totals:?}");
    // What never happens is not tested: a poll, a walk and a closed stream of many queues.
    for (name, least) in [("poll", 1_000), ("detach", 500), ("fire", 500), ("walk", 1)] {
        let most = totals.get(name).copied().unwrap_or_default();
        assert!(!all || most >= least, "`{name}`: {totals:?}");
    }
}
