//! The simulated relay: the production hub and its streams, with model drivers in place of tokio.
//!
//! A restart is a new hub with a new epoch. Streams are polled when their waker was woken or at
//! their own deadline, and never while their client does not read. Walks go step by step.

use crate::types::Drain;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    task::{Wake, Waker},
    time::Duration,
};

use bytes::Bytes;

use super::{
    fleets::Fleets,
    groups,
    net::{Client, ConnId, Down, Up},
    oracle::{Counters, Place},
    plan::{Plan, Shape, Trouble},
    queue::MessageId,
    world::{Event, World},
};
use crate::{
    base::clock::Tick,
    error::{Error, ErrorKind},
    relay::hub::{
        Epoch, Hub, HubConfig, QueueStats, StreamConfig, SubscriberStream, SubscriptionId,
        WakeBatch, WakeBuilder, Walk,
    },
    types::{Notification, StreamAction, SubscribeOptions},
    wire::NotifyAnswer,
};

/// The relay and what drives it.
pub(super) struct RelayNode {
    pub(super) hub: Option<Arc<Hub>>,
    /// Counts the relay's lives; 0 before the first.
    pub(super) life: u64,
    pub(super) epoch: u128,
    /// This life has the epoch of the one before: the relay was restored from a copy of its memory.
    pub(super) restored: bool,
    pub(super) restore_next: bool,
    pub(super) draining: bool,
    /// The whole machine is gone: no peer sees a reset.
    pub(super) vanished: bool,
    pub(super) streams: BTreeMap<ConnId, Stream>,
    pub(super) ids: BTreeMap<u128, ConnId>,
    pub(super) paused_until: Tick,
    pub(super) fanout_stalled_until: Tick,
    /// Events applied in this life.
    pub(super) applied: u64,
    pub(super) walks: u64,
    /// The newest cause that was counted in this life, by queue.
    pub(super) causes: BTreeMap<usize, (u64, Tick)>,
    /// The heads of all queues when a resume number of this life was sent.
    pub(super) numbers: BTreeMap<Bytes, BTreeMap<usize, Counters>>,
    pub(super) fleets: Fleets,
    /// Since when no publisher, listener or relay is responsible for a message's wake-up.
    pub(super) orphans: BTreeMap<MessageId, Tick>,
    walk: Option<Walk>,
    fanout_at: Option<Tick>,
    timers_at: Option<Tick>,
    bell: Arc<Bell>,
    inline: usize,
    forget_after: Duration,
    max_age: Duration,
    many: u64,
}

/// One subscriber's stream.
#[derive(Debug)]
pub(super) struct Stream {
    feed: SubscriberStream,
    waker: Waker,
    poll_at: Option<Tick>,
    pub(super) since: Tick,
    /// Its client does not read until this time.
    pub(super) blocked_until: Tick,
    /// The next frame is not sent before this time: its client stopped in the middle of it.
    pub(super) unsent_until: Tick,
    pub(super) listener: usize,
    pub(super) listener_life: u64,
    pub(super) visibility: Duration,
    pub(super) heartbeat: Duration,
    pub(super) reported: bool,
    /// The model's state of each queue on this stream.
    pub(super) places: BTreeMap<usize, Place>,
    /// Queues that need a CATCH_UP (R2: uncertainty becomes a CATCH_UP).
    pub(super) expected: Vec<usize>,
    /// The newest counters of each queue that it was told of; before that, of its beginning. And how
    /// many queues were forgotten by then.
    pub(super) sums: BTreeMap<usize, (u64, Counters)>,
    pub(super) forgotten: u64,
    pub(super) selectors_told: usize,
    pub(super) sent_at: Tick,
    pub(super) welcomed: bool,
    pub(super) ended: bool,
}

/// The streams and walks that were woken.
#[derive(Debug, Default)]
struct Bell {
    rung: Mutex<Vec<Ring>>,
}

#[derive(Debug, Clone, Copy)]
enum Ring {
    Stream(ConnId),
    Timers,
    Fanout,
}

struct Ringer {
    bell: Arc<Bell>,
    ring: Ring,
}

impl Wake for Ringer {
    fn wake(self: Arc<Self>) {
        let mut rung = self.bell.rung.lock().expect("one thread");
        rung.push(self.ring);
    }
}

impl RelayNode {
    pub(super) fn new(plan: &Plan, rng: &mut fastrand::Rng) -> Self {
        Self {
            hub: None,
            life: 0,
            epoch: rng.u128(..),
            restored: false,
            restore_next: false,
            draining: false,
            vanished: false,
            streams: BTreeMap::new(),
            ids: BTreeMap::new(),
            paused_until: Tick::default(),
            fanout_stalled_until: Tick::default(),
            applied: 0,
            walks: 0,
            causes: BTreeMap::new(),
            numbers: BTreeMap::new(),
            fleets: Fleets::default(),
            orphans: BTreeMap::new(),
            walk: None,
            fanout_at: None,
            timers_at: None,
            bell: Arc::default(),
            inline: plan.inline,
            forget_after: plan.forget_after,
            max_age: plan.max_age,
            // Large wake-ups are rare here: half of the runs count two as large.
            many: if plan.aimed {
                StreamConfig::THROTTLE_FROM
            } else {
                2
            },
        }
    }

    /// Returns whether a walk has begun and not ended.
    pub(super) fn has_walk(&self) -> bool {
        self.walk.is_some()
    }

    fn waker(&self, ring: Ring) -> Waker {
        let bell = Arc::clone(&self.bell);
        Waker::from(Arc::new(Ringer { bell, ring }))
    }

    fn config(&self) -> StreamConfig {
        StreamConfig {
            relay_id: "sim".into(),
            epoch: Epoch(self.epoch).to_string().into(),
            version: "0".into(),
            max_age: self.max_age,
            throttle_from: self.many,
        }
    }
}

impl World {
    pub(super) fn relay_starts(&mut self) {
        let relay = &mut self.relay;
        if relay.hub.is_some() {
            return;
        }
        relay.restored = std::mem::take(&mut relay.restore_next);
        if !relay.restored {
            relay.epoch = self.rng.u128(..);
        }
        relay.life += 1;
        relay.causes.clear();
        relay.numbers.clear();
        relay.fleets = Fleets::default();
        (relay.draining, relay.vanished, relay.applied, relay.walks) = (false, false, 0, 0);
        (relay.walk, relay.fanout_at, relay.timers_at) = (None, None, None);
        let hub = Hub::new(HubConfig {
            epoch: Epoch(relay.epoch),
            seed: self.rng.u64(..),
            forget_after: relay.forget_after,
            inline: relay.inline,
            max_cursors_per_stream: self.plan.cursors.unwrap_or(usize::MAX),
            max_queues: self.plan.max_queues.unwrap_or(usize::MAX),
            ..groups::pace(self.plan.sentinel, self.plan.keep)
        });
        relay.bell = Arc::default();
        hub.timers().waker.register(&relay.waker(Ring::Timers));
        hub.fanout.waker.register(&relay.waker(Ring::Fanout));
        relay.hub = Some(Arc::new(hub));
        let life = relay.life;
        self.log.note(self.now, "relay starts", &[life]);
        self.after(self.forget_every(), Event::Forget);
        self.impair_all(self.now);
    }

    /// The relay dies: its streams, timers and counters are gone.
    pub(super) fn relay_crashes(&mut self) {
        if self.relay.hub.is_none() {
            return;
        }
        self.log.note(self.now, "relay crashes", &[self.relay.life]);
        self.totals.restarts += 1;
        for id in 0..self.conns.len() {
            let conn = &mut self.conns[id];
            if conn.relay_life != Some(self.relay.life) || conn.relay_gone {
                continue;
            }
            conn.relay_gone = true;
            if self.relay.vanished {
                (conn.cut_up, conn.cut_down) = (true, true);
            } else {
                let within = self.rng.u64(0..50);
                self.conns[id].reset = true;
                self.after_millis(within, Event::ClientBroken(id));
            }
        }
        self.stop_relay();
        self.relay_was_lost();
    }

    /// Takes the hub down, so that nothing of it stays in memory.
    pub(super) fn stop_relay(&mut self) {
        if let Some(hub) = self.relay.hub.take() {
            let stats = hub.stats();
            self.totals.timed += stats.timed;
            self.totals.forgotten += stats.forgotten;
            for stream in self.relay.streams.values_mut() {
                stream.feed.close(self.now);
            }
        }
        self.relay.streams.clear();
        self.relay.ids.clear();
        self.relay.walk = None;
    }

    pub(super) fn relay_hears(&mut self, id: ConnId, message: Up) {
        let conn = &mut self.conns[id];
        if conn.reset || conn.relay_gone {
            return;
        }
        let Some(hub) = self.relay.hub.clone() else {
            if !self.relay.vanished {
                conn.relay_gone = true;
                let refused = Error::new(ErrorKind::Unavailable, "connection refused");
                self.send_down(id, Down::Closed(Some(refused)));
            }
            return;
        };
        if *conn.relay_life.get_or_insert(self.relay.life) != self.relay.life {
            conn.relay_gone = true;
            self.send_down(id, Down::Closed(None));
            return;
        }
        match message {
            Up::Subscribe(options) => self.subscribe(&hub, id, &options),
            Up::OpenNotify => self.send_down(id, Down::Opened),
            Up::Notify(notifications) => {
                let answer = self.notify(&hub, id, &notifications);
                self.send_down(id, Down::Answer(answer));
            }
            Up::Close => self.stream_ends(id),
        }
    }

    /// The relay learns that a connection has ended, or ends it.
    pub(super) fn stream_ends(&mut self, id: ConnId) {
        if std::mem::replace(&mut self.conns[id].relay_gone, true) {
            return;
        }
        if let Some(mut stream) = self.relay.streams.remove(&id) {
            self.log.note(self.now, "stream ends", &[id as u64]);
            stream.feed.close(self.now);
            self.relay.ids.retain(|_, conn| *conn != id);
            self.member_was_lost(id, &stream.busy_queues(self.now));
            self.stream_was_lost(&stream);
        }
        self.send_down(id, Down::Closed(None));
    }

    /// Polls a stream for its next message.
    pub(super) fn feed(&mut self, id: ConnId) {
        let now = self.now;
        let drain = self.relay.draining.then(|| Drain::at_once(now));
        let Some(stream) = self.relay.streams.get_mut(&id) else {
            return;
        };
        if stream.poll_at.is_none_or(|at| at > now) {
            return;
        }
        if stream.blocked_until > now {
            let until = stream.blocked_until;
            stream.poll_at = Some(until);
            self.at(until, Event::Feed(id));
            return;
        }
        stream.poll_at = None;
        let stream = self.relay.streams.get_mut(&id).expect("it was there");
        let mut sink = WakeBuilder::default();
        let next = stream.feed.next_into(now, drain, &stream.waker, &mut sink);
        match next {
            StreamAction::Wait(at) => self.poll_stream(id, at),
            StreamAction::End => self.stream_ends(id),
            StreamAction::Yield => {
                let gap = Duration::from_micros(self.rng.u64(1..300));
                self.poll_stream(id, now + gap);
            }
            StreamAction::Send(message) => {
                let event = message.into_event(sink);
                self.stream_sends(id, &event);
                self.send_down(id, Down::Event(Box::new(event)));
                let longest = if self.rng.u32(0..8) == 0 {
                    60_000
                } else {
                    3_000
                };
                let gap = Duration::from_micros(self.rng.u64(10..longest));
                if let Some(stream) = self.relay.streams.get_mut(&id) {
                    stream.blocked_until = stream.blocked_until.max(stream.unsent_until);
                }
                self.poll_stream(id, now + gap);
            }
        }
    }

    pub(super) fn fire_timers(&mut self) {
        if self.relay.timers_at.is_none_or(|at| at > self.now) {
            return;
        }
        self.relay.timers_at = None;
        if let Some(hub) = self.relay.hub.clone() {
            let before = hub.stats().timed;
            hub.fire(self.now);
            if hub.stats().timed > before {
                self.relay.fleets.timed();
            }
            self.arm_timers();
        }
    }

    /// Takes one step of a walk, or the next walk.
    pub(super) fn fan_out(&mut self) {
        if self.relay.fanout_at.is_none_or(|at| at > self.now) {
            return;
        }
        self.relay.fanout_at = None;
        let Some(hub) = self.relay.hub.clone() else {
            return;
        };
        if hub.detach_some(self.now) {
            let soon = Duration::from_micros(self.rng.u64(10..300));
            self.arm_fanout(soon);
        }
        let walk = self.relay.walk.take();
        let fresh = walk.is_none();
        let Some(mut walk) = walk.or_else(|| hub.fanout.pop()) else {
            hub.fanout.waker.register(&self.relay.waker(Ring::Fanout));
            return;
        };
        if fresh {
            self.relay.walks += 1;
            self.totals.walks += 1;
        }
        let lost = fresh && self.may(Trouble::WalksLost) && self.rng.u32(0..3) == 0;
        if lost {
            self.walk_was_lost();
        } else {
            let mut batch = WakeBatch::default();
            if walk.step(&mut batch) {
                self.relay.walk = Some(walk);
            }
        }
        let longest = if self.plan.shape == Shape::Crowd {
            20_000
        } else {
            300
        };
        let gap = Duration::from_micros(self.rng.u64(10..longest));
        self.arm_fanout(gap);
    }

    pub(super) fn forget(&mut self) {
        let every = self.forget_every();
        if let Some(hub) = &self.relay.hub {
            hub.forget(self.now);
            let known = hub.queues("", usize::MAX, self.now);
            self.after(every, Event::Forget);
            for queue in 0..self.queues.list.len() {
                let address = &self.queues.list[queue].address;
                if !known.iter().any(|view| view.address == *address) {
                    self.not_counted(queue);
                }
            }
        }
    }

    /// Schedules the streams and walks that were woken.
    pub(super) fn relay_wakers(&mut self) {
        loop {
            let rung = std::mem::take(&mut *self.relay.bell.rung.lock().expect("one thread"));
            if rung.is_empty() {
                return;
            }
            for ring in rung {
                let soon = Duration::from_micros(self.rng.u64(1..5_000));
                match ring {
                    Ring::Stream(id) => self.poll_stream(id, self.now + soon),
                    Ring::Timers => self.arm_timers(),
                    Ring::Fanout => self.arm_fanout(soon),
                }
            }
        }
    }

    /// Returns the counters of all queues at the relay.
    pub(super) fn heads(&self) -> BTreeMap<usize, Counters> {
        let Some(hub) = &self.relay.hub else {
            return BTreeMap::new();
        };
        let views = hub.queues("", usize::MAX, self.now).into_iter();
        let known = |view: QueueStats| {
            let queue = self.queues.find(&view.address)?;
            Some((queue, Counters::of(&view)))
        };
        views.filter_map(known).collect()
    }

    /// Returns the queue's sequence at the relay.
    pub(super) fn head_of(&self, queue: usize) -> u64 {
        self.heads().get(&queue).map_or(0, |head| head.sequence)
    }

    fn subscribe(&mut self, hub: &Arc<Hub>, id: ConnId, options: &SubscribeOptions) {
        if self.relay.draining {
            let refused = Error::new(ErrorKind::Unavailable, "the relay is shutting down")
                .with_retry_after(Duration::from_secs(1));
            self.conns[id].relay_gone = true;
            self.send_down(id, Down::Closed(Some(refused)));
            return;
        }
        let Client::Listener(listener, listener_life) = self.conns[id].client else {
            return;
        };
        let (number, now) = (self.rng.u128(..), self.now);
        let resumes = self.relay.numbers.contains_key(&options.resume.0);
        let expected = match self.is_member(listener) {
            false => self.expected(options),
            true => Vec::new(),
        };
        let (new, has_room) = self.before_subscription(hub, options);
        let subscription = match hub.subscribe(SubscriptionId(number), options, now) {
            Ok(subscription) => subscription,
            Err(refused) => {
                assert_eq!(refused.kind(), ErrorKind::Exhausted, "{refused}");
                self.log.note(now, "subscription is refused", &[id as u64]);
                self.check_refusal(hub, &new, has_room);
                self.conns[id].relay_gone = true;
                self.send_down(id, Down::Closed(Some(refused)));
                return;
            }
        };
        let forgotten = hub.stats().forgotten;
        let heads = self.heads().into_iter();
        let sums = heads.map(|(queue, head)| (queue, (forgotten, head)));
        let config = self.relay.config();
        let hub = Arc::clone(hub);
        let feed = SubscriberStream::new(hub, subscription, options, &config, now, &mut self.rng);
        let stream = Stream {
            feed,
            waker: self.relay.waker(Ring::Stream(id)),
            poll_at: None,
            since: now,
            blocked_until: now,
            unsent_until: now,
            listener,
            listener_life,
            visibility: options.visibility_timeout,
            heartbeat: options.clamped_heartbeat(),
            reported: false,
            places: BTreeMap::new(),
            expected,
            sums: sums.collect(),
            forgotten,
            selectors_told: 0,
            sent_at: now,
            welcomed: false,
            ended: false,
        };
        self.log
            .note(now, "stream opens", &[id as u64, listener as u64]);
        self.totals.streams += 1;
        self.totals.resumed += u64::from(resumes);
        let mut stream = stream;
        if !self.healed && self.rng.u32(0..4) == 0 {
            // Its transport takes nothing at first, so that events can happen between the
            // subscription and its first message.
            stream.blocked_until = now + Duration::from_millis(self.rng.u64(0..250));
        }
        self.relay.streams.insert(id, stream);
        self.relay.ids.insert(number, id);
        self.member_came(id, options);
        self.send_down(id, Down::Opened);
        let soon = Duration::from_micros(self.rng.u64(10..20_000));
        self.poll_stream(id, now + soon);
        self.race(listener);
    }

    fn notify(
        &mut self,
        hub: &Arc<Hub>,
        id: ConnId,
        notifications: &[Notification],
    ) -> NotifyAnswer {
        let Client::Publisher(publisher, _) = self.conns[id].client else {
            unreachable!("only publishers notify")
        };
        let is_forbidden = |one: &Notification| {
            let queue = self.queues.find(&one.queue).expect("it was put into");
            self.queues.list[queue].forbidden
        };
        let allowed = notifications.iter().filter(|one| !is_forbidden(one));
        let allowed: Vec<_> = allowed.cloned().collect();
        let forbidden: Vec<_> = notifications.iter().map(is_forbidden).collect();
        let name: Arc<str> = format!("publisher-{publisher}").into();
        let results = self.notify_with_limit(hub, &name, &allowed);
        for (notification, result) in allowed.iter().zip(&results) {
            if let Ok(accepted) = result {
                self.relay.applied += 1;
                self.applied(publisher, notification, *accepted);
            }
        }
        let mut results = results.into_iter();
        let all = forbidden.into_iter().map(|forbidden| match forbidden {
            true => {
                let message = "notify is not permitted on acct/forbidden";
                Err(Error::new(ErrorKind::Denied, message))
            }
            false => results.next().expect("one each"),
        });
        NotifyAnswer {
            results: all.collect(),
            ..NotifyAnswer::default()
        }
    }

    fn poll_stream(&mut self, id: ConnId, at: Tick) {
        let Some(stream) = self.relay.streams.get_mut(&id) else {
            return;
        };
        let at = at.max(self.now);
        if stream.poll_at.is_none_or(|earlier| at < earlier) {
            stream.poll_at = Some(at);
            self.at(at, Event::Feed(id));
        }
    }

    fn arm_timers(&mut self) {
        let Some(hub) = &self.relay.hub else { return };
        hub.timers().waker.register(&self.relay.waker(Ring::Timers));
        let Some(next) = hub.next_timer() else { return };
        let next = next.max(self.now);
        if self.relay.timers_at.is_none_or(|earlier| next < earlier) {
            self.relay.timers_at = Some(next);
            self.at(next, Event::Timers);
        }
    }

    fn arm_fanout(&mut self, soon: Duration) {
        let at = (self.now + soon).max(self.relay.fanout_stalled_until);
        if self.relay.fanout_at.is_none() {
            self.relay.fanout_at = Some(at);
            self.at(at, Event::Fanout);
        }
    }

    fn forget_every(&self) -> Duration {
        let longest = Duration::from_secs(60);
        (self.relay.forget_after / 10).clamp(Duration::from_millis(100), longest)
    }
}
