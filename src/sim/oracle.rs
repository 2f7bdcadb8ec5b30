//! The model's expectations: the node that must cause a wake-up for each message, and the frames
//! that a stream may send.
//!
//! Written from the protocol, not from the code: a `Place` is a few numbers of one queue on one
//! stream, from which follows whether the relay must count its listener as busy (R8: until it
//! reports DRAINED).

use std::{collections::BTreeMap, time::Duration};

use super::{
    net::ConnId,
    plan::Trouble,
    queue::Announced,
    relay::Stream,
    world::{Event, World},
};
use crate::{
    base::clock::Tick,
    relay::hub::QueueStats,
    types::{
        Accepted, Notification, Report, ReportState, Selector, SubscribeEvent, SubscribeOptions,
        WakeReason, WorkDetected,
    },
};

/// One queue on one stream.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Place {
    woken: Option<u64>,
    woken_at: Tick,
    drained: Option<u64>,
    busy: bool,
    number: u64,
}

/// A queue's counters at the relay.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) sequence: u64,
    notifications: u64,
    payload: u64,
    messages: u64,
}

/// A wake-up comes within this time where nothing is wrong.
pub(super) const SOON: Duration = Duration::from_secs(1);

impl World {
    /// A notification was applied: the relay owes a wake-up for the messages in it.
    pub(super) fn applied(
        &mut self,
        publisher: usize,
        notification: &Notification,
        accepted: Accepted,
    ) {
        let queue = self
            .queues
            .find(&notification.queue)
            .expect("it was put into");
        let (sequence, now) = (accepted.sequence, self.now);
        self.log.note(
            now,
            "applied",
            &[queue as u64, sequence, notification.payload_size],
        );
        if notification.delay.is_zero() {
            self.counted_for_groups(queue, notification);
        }
        let due = now + later(notification.delay);
        for message in self.publishers[publisher].told(queue, notification.payload_size) {
            let message = &mut self.queues.messages[message];
            if notification.delay.is_zero() && message.visible_at <= now {
                message.counted_in = self.relay.life;
            }
            let told = match message.announced {
                Announced::Publisher(..) => true,
                // A second notification: it helps if the message is visible then.
                Announced::Unannounced => message.visible_at <= now + notification.delay,
                _ => false,
            };
            if told {
                message.announced = Announced::Due(due);
            }
        }
        if notification.delay.is_zero() {
            let life = self.relay.life;
            self.relay.causes.insert(queue, (sequence, now));
            self.after(SOON, Event::CauseCheck(queue, life, sequence));
        }
    }

    /// A report was accepted.
    pub(super) fn accepted(&mut self, id: ConnId, report: &Report, stale: bool) {
        let Some(queue) = self.queues.find(&report.queue) else {
            return;
        };
        let sequence = if stale && report.sequence > self.head_of(queue) {
            0
        } else {
            report.sequence
        };
        let Some(stream) = self.relay.streams.get_mut(&id) else {
            return;
        };
        stream.reported = true;
        let place = stream.places.entry(queue).or_default();
        if report.number < place.number {
            return;
        }
        place.number = report.number;
        match report.state {
            ReportState::Busy => place.busy = true,
            ReportState::Drained => {
                place.drained = place.drained.max(Some(sequence));
                place.busy &= place.drained < place.woken;
            }
            _ => {}
        }
        self.member_reported(id, queue, report);
    }

    /// A stream ended at the relay: if its listener was busy, the relay wakes the queue when the
    /// listener's messages are visible (R8: the end of a busy listener sets a timer).
    pub(super) fn stream_was_lost(&mut self, stream: &Stream) {
        let (listener, life) = (stream.listener, stream.listener_life);
        let alive = self.listeners[listener].is_alive(life);
        let others = self
            .relay
            .streams
            .values()
            .any(|other| (other.listener, other.listener_life) == (listener, life));
        let span = stream.visibility + Duration::from_secs(2);
        let (timer, due) = (self.now + span, self.now + later(span));
        for id in self.queues.open().collect::<Vec<_>>() {
            let message = &mut self.queues.messages[id];
            if message.announced != Announced::Listener(listener, life) {
                continue;
            }
            let place = stream.places.get(&message.queue);
            // A message that was released for longer becomes visible after that timer.
            let in_time = message.holder.is_some() || message.visible_at <= timer;
            if in_time && place.is_some_and(|place| place.is_busy(stream, self.now)) {
                message.announced = Announced::Due(due);
            } else if !alive && !others {
                message.announced = Announced::Unannounced;
            }
        }
    }

    /// A listener crashed: the relay wakes for its messages only if it has a stream of the
    /// listener.
    pub(super) fn listener_was_lost(&mut self, listener: usize, life: u64) {
        let streams = self.relay.streams.values();
        let known = streams
            .filter(|stream| (stream.listener, stream.listener_life) == (listener, life))
            .count()
            > 0;
        for id in self.queues.open().collect::<Vec<_>>() {
            let message = &mut self.queues.messages[id];
            if message.announced == Announced::Listener(listener, life) && !known {
                message.announced = Announced::Unannounced;
            }
        }
    }

    /// The relay died, and its timers with it.
    pub(super) fn relay_was_lost(&mut self) {
        for id in self.queues.open().collect::<Vec<_>>() {
            let message = &mut self.queues.messages[id];
            let lost = match message.announced {
                Announced::Due(due) => due > self.now,
                Announced::Listener(listener, life) => !self.listeners[listener].is_alive(life),
                Announced::Publisher(..) | Announced::Unannounced => false,
            };
            if lost {
                message.announced = Announced::Unannounced;
            }
        }
    }

    /// A walk was lost: the next heartbeat finds its events (R6: it proves that nothing is
    /// pending).
    pub(super) fn walk_was_lost(&mut self) {
        self.log.note(self.now, "walk lost", &[]);
        self.totals.walks_lost += 1;
        for listener in 0..self.listeners.len() {
            let heartbeat = self.heartbeat(listener);
            self.impair(listener, self.now + heartbeat);
        }
    }

    /// Returns the queues that a new stream must be told of (R2: uncertainty becomes a CATCH_UP): those
    /// that it names, but for those that have not changed since its number was sent.
    pub(super) fn expected(&self, options: &SubscribeOptions) -> Vec<usize> {
        let before = self.relay.numbers.get(&options.resume.0);
        let heads = self.heads();
        let named = options.selectors.iter().filter_map(Selector::as_address);
        let named = named.filter_map(|address| self.queues.find(&address));
        let changed = |queue: &usize| {
            let sequence = |heads: &BTreeMap<usize, Counters>| {
                heads.get(queue).map_or(0, |head| head.sequence)
            };
            before.is_none_or(|before| sequence(&heads) > sequence(before))
        };
        named.filter(changed).collect()
    }

    /// A stream sends: Welcome first and nothing after the end (I16), no invented wake-up (I2).
    pub(super) fn stream_sends(&mut self, id: ConnId, event: &SubscribeEvent) {
        let now = self.now;
        let stream = self.relay.streams.get_mut(&id).expect("it sends");
        let first = !std::mem::replace(&mut stream.welcomed, true);
        let is_welcome = matches!(event, SubscribeEvent::Welcome(_));
        let ended = stream.ended;
        if first != is_welcome || ended {
            self.violate(|| {
                format!("I16: stream {id} sends {event:?}, first {first}, ended {ended}")
            });
            return;
        }
        stream.sent_at = now;
        let code = match event {
            SubscribeEvent::Welcome(_) => 0,
            SubscribeEvent::Wake(work) => {
                let work = work.clone();
                self.stream_wakes(id, &work);
                1
            }
            SubscribeEvent::Heartbeat { resume, .. } => {
                self.totals.heartbeats += 1;
                if !resume.is_empty() {
                    let heads = self.heads();
                    self.relay.numbers.insert(resume.0.clone(), heads);
                }
                2
            }
            _ => {
                stream.ended = true;
                3
            }
        };
        self.log.note(now, "sends", &[id as u64, code]);
    }

    fn stream_wakes(&mut self, id: ConnId, work: &[WorkDetected]) {
        self.totals.wakes += 1;
        self.totals.entries += work.len() as u64;
        let bytes: usize = work.iter().map(WorkDetected::encoded_at_most).sum();
        if work.is_empty() || work.len() > 256 || bytes > 32 * 1024 {
            self.violate(|| format!("R1: a wake of {} entries and {bytes} bytes", work.len()));
        }
        let (now, mut wrong) = (self.now, None);
        let listener = self.relay.streams[&id].listener;
        let selectors = self.listeners[listener].options.selectors.len();
        // Over its cursors a pattern is told under its name as often as there is something.
        let once_only = self.plan.cursors.is_none() && !self.is_member(listener);
        for entry in work {
            let Some(address) = entry.queue.as_address() else {
                let stream = self.relay.streams.get_mut(&id).expect("it sends");
                let once = entry.reason == WakeReason::CatchUp;
                stream.selectors_told += usize::from(once);
                if once_only && stream.selectors_told > selectors {
                    wrong = Some("I2: a pattern is told twice".to_owned());
                }
                continue;
            };
            let queue = self.queues.find(&address).expect("all queues are known");
            let alone = self.given(id, queue, entry);
            self.check_sums(id, queue, entry);
            let stream = self.relay.streams.get_mut(&id).expect("it sends");
            let place = stream.places.entry(queue).or_default();
            let again = place.woken.is_some_and(|woken| entry.sequence <= woken);
            let hollow = entry.reason == WakeReason::Notified && entry.notifications == 0;
            if (again || hollow) && !alone {
                wrong = Some(format!(
                    "I2: a wake without a cause: {entry:?} after {place:?}"
                ));
            }
            (place.woken, place.woken_at) = (place.woken.max(Some(entry.sequence)), now);
            place.busy |= alone;
            self.log.note(
                now,
                "wakes",
                &[id as u64, queue as u64, entry.sequence, entry.notifications],
            );
        }
        if let Some(wrong) = wrong {
            self.violate(|| wrong);
        }
    }

    /// The counts of an entry are exactly the difference to the one before on its stream.
    fn check_sums(&mut self, id: ConnId, queue: usize, entry: &WorkDetected) {
        let listener = self.relay.streams[&id].listener;
        // Events under a pattern's own name are in no sum of their queue.
        if self.is_member(listener) || self.is_told_by_pattern(listener) {
            return;
        }
        let Some(hub) = &self.relay.hub else { return };
        let forgotten = hub.stats().forgotten;
        let head = self.heads().get(&queue).copied().unwrap_or_default();
        let stream = self.relay.streams.get_mut(&id).expect("it sends");
        let before = stream.sums.insert(queue, (forgotten, head));
        let nothing = (stream.forgotten, Counters::default());
        let (before_forgotten, before) = before.unwrap_or(nothing);
        // A queue that was forgotten meanwhile may count from its beginning.
        if before_forgotten != forgotten {
            return;
        }
        let exact = head.sequence == entry.sequence
            && head.notifications == before.notifications + entry.notifications
            && head.payload == before.payload + entry.payload_size
            && head.messages == before.messages + entry.messages;
        if !exact {
            self.violate(|| {
                format!("I2: stream {id} is told {entry:?}, {head:?} after {before:?}")
            });
        }
    }

    pub(super) fn may(&self, trouble: Trouble) -> bool {
        !self.healed && self.plan.may(trouble)
    }
}

impl Stream {
    /// Returns the queues that the relay takes its listener to be busy with.
    pub(super) fn busy_queues(&self, now: Tick) -> Vec<usize> {
        let busy = self
            .places
            .iter()
            .filter(|(_, place)| place.is_busy(self, now));
        busy.map(|(queue, _)| *queue).collect()
    }

    /// Returns the newest sequence of the queue that it was sent.
    pub(super) fn woken(&self, queue: usize) -> Option<u64> {
        self.places.get(&queue)?.woken
    }
}

impl Place {
    pub(super) fn is_busy(&self, stream: &Stream, now: Tick) -> bool {
        if !stream.reported && now >= self.woken_at + stream.visibility {
            return false;
        }
        self.busy || self.drained < self.woken
    }
}

impl Counters {
    pub(super) fn of(view: &QueueStats) -> Self {
        Self {
            sequence: view.sequence,
            notifications: view.notifications,
            payload: view.payload_size,
            messages: view.messages,
        }
    }
}

/// Returns the longest that a timer of this delay may take, on the publisher's and the relay's grid
/// (R7: timers only add).
pub(super) fn later(delay: Duration) -> Duration {
    delay + delay / 7
}
