//! The model's expectations: the node that must cause a wake-up for each message, and the frames
//! that a stream may send.
//!
//! Written from the protocol, not from the code: a `Place` is a few numbers of one queue on one
//! stream, from which follows whether the relay must count its listener as busy (R8: until it
//! reports DRAINED).

use std::time::Duration;

use super::{
    net::ConnId,
    plan::Trouble,
    queue::Announced,
    relay::Stream,
    world::{Event, World},
};
use crate::{
    base::clock::Tick,
    types::{
        Accepted, Notification, QueueAddress, Report, ReportState, SubscribeEvent,
        SubscribeOptions, WakeReason, WorkDetected,
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

/// A token's counters.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) sequence: u64,
    pub(super) notifications: u128,
    pub(super) payload: u128,
    pub(super) messages: u128,
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

    /// Returns the queues that a new stream must be told of: named exactly without a token of this
    /// life, or with a token of another (R2: uncertainty becomes a CATCH_UP).
    pub(super) fn expected(&mut self, listener: usize, options: &SubscribeOptions) -> Vec<usize> {
        // A position makes an entry where there is room; else its pattern's own CATCH_UP covers it.
        let short = self.lacks_room_for(options);
        let life = self.relay.life;
        let valid = |queue: usize| {
            let token = self.listeners[listener].tokens.get(&queue);
            token.is_some_and(|token| token.life == life)
        };
        let named = options
            .selectors
            .iter()
            .filter_map(|selector| selector.as_address());
        let mut expected: Vec<usize> = Vec::new();
        for (address, token) in named.map(|address| (address, None)).chain(
            options
                .positions
                .iter()
                .filter_map(|position| Some((position.queue.as_address()?, Some(&position.token)))),
        ) {
            let queue = self.queues.find(&address).expect("all queues are known");
            // A relay restored from its first moment cannot doubt a place at its first moment.
            let first = self.relay.restored
                && self.listeners[listener]
                    .tokens
                    .get(&queue)
                    .is_some_and(|token| token.counters.sequence == 0);
            let known =
                valid(queue) || first || (token.is_none() && self.has_position(options, queue));
            let by_pattern = short && token.is_some() && !self.is_named(options, &address);
            if !known && !by_pattern && !expected.contains(&queue) {
                expected.push(queue);
            }
        }
        expected
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
            SubscribeEvent::Heartbeat { .. } => {
                self.totals.heartbeats += 1;
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
        let forgotten = self.relay.hub.as_ref().map(|hub| hub.stats().forgotten);
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
            let sent = (queue, entry.sequence);
            self.relay.sent.extend(forgotten.map(|count| (sent, count)));
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

    fn is_named(&self, options: &SubscribeOptions, queue: &QueueAddress) -> bool {
        let mut exact = options.selectors.iter().filter(|one| !one.is_pattern());
        exact.any(|selector| selector.matches(queue))
    }

    fn has_position(&self, options: &SubscribeOptions, queue: usize) -> bool {
        let address = &self.queues.list[queue].address;
        options
            .positions
            .iter()
            .any(|position| position.queue.as_address().as_ref() == Some(address))
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
    /// Reads a token's counters, and whether it is of this epoch.
    pub(super) fn read(token: &[u8], epoch: u128) -> Option<(Self, bool)> {
        let number = |from: usize, width: usize| {
            let mut wide = [0; 16];
            wide[..width].copy_from_slice(token.get(from..from + width)?);
            Some(u128::from_le_bytes(wide))
        };
        // Sixteen bytes of the epoch, two with four lengths, then the counters.
        let lengths = number(16, 2)?;
        let mut from = 18;
        let mut next = |shift: u32| {
            let width = usize::try_from(lengths >> shift & 15).ok()?;
            let value = number(from, width)?;
            from += width;
            Some(value)
        };
        let counters = Self {
            sequence: u64::try_from(next(0)?).ok()?,
            notifications: next(4)?,
            payload: next(8)?,
            messages: next(12)?,
        };
        Some((counters, number(0, 16)? == epoch))
    }
}

/// Returns the longest that a timer of this delay may take, on the publisher's and the relay's grid
/// (R7: timers only add).
pub(super) fn later(delay: Duration) -> Duration {
    delay + delay / 7
}
