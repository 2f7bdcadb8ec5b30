//! The invariants and their deadlines.
//!
//! The bounds follow from two promises that are checked separately: a node that can reach the relay
//! holds a stream again within a limit (W1, W2), and a listener with a healthy stream is woken
//! within a second of every cause (W0).

use std::time::Duration;

use super::{
    net::ConnId,
    oracle::SOON,
    plan::Trouble,
    queue::Announced,
    scaled::LOOKED,
    world::{Event, SILENCE, World},
};
use crate::base::clock::{Tick, nanos};

/// A listener that can reach the relay holds a stream within this time: 2.5 heartbeats until
/// silence is noticed, two attempts that time out, and the longest waits between them.
const BACK: Duration = Duration::from_secs(25 + 2 * 5 + 2 * 10 + 1);
/// A notification of a publisher that can reach the relay arrives within this time: the time-outs
/// of an answer and of an attempt, and the longest waits after them.
const HEARD: Duration = Duration::from_secs(5 + 5 + 2 * 5 + 1);
/// The interval between two checks.
const EVERY: Duration = Duration::from_millis(500);

impl World {
    /// Makes no promises for this listener before `until`; then all pending wake-ups come at once.
    pub(super) fn impair(&mut self, number: usize, until: Tick) {
        let listener = &mut self.listeners[number];
        listener.ok_from = listener.ok_from.max(until);
        listener.connected_by = Tick::NEVER;
        let (at, life) = (listener.ok_from + SOON, listener.life);
        self.at(at, Event::ListenerCheck(number, life));
    }

    /// A listener read its Welcome.
    pub(super) fn welcomed(&mut self, number: usize, id: ConnId) {
        self.conns[id].welcomed = true;
        let life = self.conns[id].relay_life.expect("it sent a Welcome");
        let listener = &mut self.listeners[number];
        (listener.stream, listener.stream_life) = (Some(id), life);
        self.log
            .note(self.now, "welcomed", &[number as u64, id as u64]);
        self.impair(number, self.now);
        self.report_again(number);
    }

    /// Checks every message, stream and connection.
    pub(super) fn check(&mut self) {
        self.after(EVERY, Event::Check);
        self.note_full_table();
        for id in self.queues.open().collect::<Vec<_>>() {
            self.check_message(id);
        }
        for number in 0..self.listeners.len() {
            self.check_connection(number);
            self.check_scaled(number);
        }
        self.check_relay();
    }

    /// Each listener of the queue has received this sequence by now.
    pub(super) fn check_cause(&mut self, queue: usize, life: u64, sequence: u64) {
        if life != self.relay.life {
            return;
        }
        let settled = self.now.as_nanos() - nanos(SOON);
        self.check_groups_told(queue, sequence, Tick::from_nanos(settled));
        for number in 0..self.listeners.len() {
            let listener = &self.listeners[number];
            if self.is_well(number)
                && !self.is_member(number)
                && listener.ok_from.as_nanos() <= settled
                && listener.wants(&self.queues.list[queue].address)
            {
                self.check_told(number, queue, sequence);
            }
        }
    }

    /// A listener that has been healthy for a while has received all sequences.
    pub(super) fn check_listener(&mut self, number: usize, life: u64) {
        let listener = &self.listeners[number];
        if !listener.is_alive(life) || !self.is_well(number) || self.is_member(number) {
            return;
        }
        if listener.ok_from + SOON > self.now {
            // A later trouble has its own check.
            return;
        }
        let conn = listener.conn.expect("it is well");
        let (expected, since) = match self.relay.streams.get(&conn) {
            Some(stream) => (stream.expected.clone(), stream.since),
            None => return,
        };
        // A queue that was forgotten before a pattern's stream began is not known by its name.
        let forgets = self.plan.forget_after < self.plan.active || self.plan.max_queues.is_some();
        for queue in expected {
            self.check_caught_up(number, queue);
        }
        let causes: Vec<_> = self
            .relay
            .causes
            .iter()
            // At the same instant the stream may have come after the queue gave way.
            .filter(|(_, (_, at))| *at + SOON <= self.now && (*at > since || !forgets))
            .map(|(queue, (sequence, _))| (*queue, *sequence))
            .collect();
        for (queue, sequence) in causes {
            if self.listeners[number].wants(&self.queues.list[queue].address) {
                self.check_told(number, queue, sequence);
            }
        }
    }

    pub(super) fn heartbeat(&self, number: usize) -> Duration {
        self.listeners[number].options.clamped_heartbeat()
    }

    /// After the silence: every message is handled, every listener knows every queue's head, and
    /// the counters balance.
    pub(super) fn check_the_end(&mut self) {
        let hangs = self.plan.troubles.contains(&Trouble::HandlersHang);
        for id in self.queues.open().collect::<Vec<_>>() {
            let message = &self.queues.messages[id];
            if self.queues.list[message.queue].forbidden {
                continue;
            }
            match message.announced {
                Announced::Unannounced
                    if self.plan.sentinel.is_zero() || !self.is_known(message.queue) =>
                {
                    self.totals.unannounced += 1;
                }
                // Its notification came while a handler that hangs hid it for longer than the silence.
                Announced::Due(due) if due > self.now && hangs => {}
                by => self.violate(|| format!("I1: message {id} is never handled, {by:?}")),
            }
        }
        for number in 0..self.listeners.len() {
            if self.is_member(number) {
                continue;
            }
            if self.is_well(number) {
                // A new stream may still be told what has changed.
                if self.listeners[number].ok_from + SOON <= self.now {
                    self.check_heads(number);
                }
            } else if self.plan.max_age > SILENCE {
                self.violate(|| format!("listener {number} holds no stream after the silence"));
            }
        }
        self.check_idle_queues();
        for number in 0..self.publishers.len() {
            let pending = self.publishers[number].session.pending();
            if pending > 0 {
                self.violate(|| format!("publisher {number} still has {pending} pending"));
            }
        }
    }

    /// Returns whether the listener's patterns may lack cursors: for some queues it is woken under
    /// the patterns' own names only, and polls all queues that it knows.
    pub(super) fn is_told_by_pattern(&self, number: usize) -> bool {
        let mut selectors = self.plan.listeners[number].selectors.iter();
        self.plan.cursors.is_some() && selectors.any(|selector| selector.is_pattern())
    }

    /// After the silence no queue is kept that only patterns match and that nothing needs (R3: an
    /// idle entry is forgotten).
    fn check_idle_queues(&mut self) {
        let Some(hub) = self.relay.hub.clone() else {
            return;
        };
        let forget_after = self.plan.forget_after;
        if forget_after * 4 > SILENCE || self.plan.listeners.iter().any(|one| one.group.is_some()) {
            return;
        }
        for view in hub.queues("", usize::MAX, self.now) {
            let mut selectors = self.plan.listeners.iter().flat_map(|one| &one.selectors);
            let named = selectors.any(|one| !one.is_pattern() && one.matches(&view.address));
            let idle = view.idle_for.is_some_and(|idle| idle > SILENCE * 3 / 4);
            // A BUSY that comes after its DRAINED is the newest one that a listener without room for a
            // cursor is known by.
            let overtaken = self.plan.cursors.is_some() && view.busy > 0;
            if !named && idle && view.timers == 0 && view.listeners > 0 && !overtaken {
                let ours = self.queues.find(&view.address);
                let well = (0..self.listeners.len()).all(|number| self.is_well(number));
                if ours.is_some() && well {
                    self.violate(|| format!("R3: an idle queue is kept: {view:?}"));
                }
            }
        }
    }

    /// A visible message that the relay or a publisher knows of is handled in time.
    fn check_message(&mut self, id: usize) {
        let (now, message) = (self.now, &self.queues.messages[id]);
        let (queue, put_at) = (message.queue, message.put_at);
        if self.queues.list[queue].forbidden {
            return;
        }
        self.check_orphan(id);
        let message = &self.queues.messages[id];
        let due = match message.announced {
            Announced::Due(due) => due.max(message.visible_at),
            Announced::Publisher(number, life) => {
                let publisher = &self.publishers[number];
                let never_in_trouble = publisher.ok_from == Tick::default();
                let within = if never_in_trouble { SOON } else { HEARD };
                let mut from = put_at.max(publisher.ok_from);
                if let Some(retried) = self.retried_by(queue) {
                    from = from.max(retried);
                }
                let by = from + within;
                let up = self.relay.hub.is_some() && !self.relay.draining;
                if publisher.alive && publisher.life == life && up && now > by {
                    self.violate(|| {
                        format!("publisher {number} does not bring message {id} across")
                    });
                }
                return;
            }
            Announced::Listener(..) | Announced::Unannounced => return,
        };
        self.check_fleet(id, due);
        for number in 0..self.listeners.len() {
            let listener = &self.listeners[number];
            if self.is_member(number) {
                continue;
            }
            let from = due.max(listener.ok_from);
            let batch = self.plan.listeners[number].batch;
            let (works, within) = match listener.scaled.get(&queue) {
                Some(scaled) => (scaled.has_looked(batch, due, from, now), LOOKED),
                None => (listener.works_on(queue), SOON),
            };
            if works || !listener.wants(&self.queues.list[queue].address) || !self.is_well(number) {
                continue;
            }
            let by = from + within;
            if now > by {
                let machine = format!("{:?}", listener.scaled.get(&queue));
                self.violate(|| {
                    format!(
                        "I1: no listener looks for message {id} in queue {queue}, due at {:.3} s, \
                         and listener {number} is well: {machine}",
                        due.as_nanos() as f64 / 1e9
                    )
                });
            }
        }
    }

    /// A listener that can reach the relay holds a stream in time.
    fn check_connection(&mut self, number: usize) {
        let listener = &self.listeners[number];
        let frozen = listener.paused_until.max(listener.partition_until);
        let relay_up = self.relay.hub.is_some() && !self.relay.draining;
        if listener.session.is_none() || listener.leaving || !relay_up {
            return;
        }
        let mut from = listener.ok_from.max(frozen).max(self.relay.paused_until);
        if self.plan.max_queues.is_some() {
            from = from.max(self.has_room_since());
        }
        let by = (from + BACK).min(listener.connected_by);
        if self.now > by && !self.is_well(number) {
            self.violate(|| format!("listener {number} is not connected by {by:?}"));
        }
    }

    /// The relay's streams beat until their Goodbye (I16), its memory is bounded (I10), and its
    /// counters balance (I19).
    /// The relay makes no promise of the messages that it has counted in this queue: it has forgotten
    /// them.
    pub(super) fn not_counted(&mut self, queue: usize) {
        for id in &self.queues.list[queue].messages {
            self.queues.messages[*id].counted_in = 0;
        }
    }

    /// Counted messages that no listener has got are in the backlog.
    fn check_backlogs(&mut self) {
        let Some(hub) = self.relay.hub.clone() else {
            return;
        };
        // In a full table an entry may give way to another one at any time.
        if self.plan.max_queues.is_some() {
            return;
        }
        for view in hub.queues("", usize::MAX, self.now) {
            let Some(queue) = self.queues.find(&view.address) else {
                continue;
            };
            let ids = self.queues.list[queue].messages.iter();
            let waits = ids.filter(|id| {
                let message = &self.queues.messages[**id];
                message.counted_in == self.relay.life && message.gets == 0
            });
            let waiting = waits.count() as u64;
            if waiting > view.backlog {
                self.violate(|| format!("backlog: {waiting} messages wait: {view:?}"));
            }
        }
    }

    fn check_relay(&mut self) {
        self.check_backlogs();
        let Some(hub) = &self.relay.hub else { return };
        let stats = hub.stats();
        let (queues, streams) = (
            self.queues.list.len() as u64,
            self.relay.streams.len() as u64,
        );
        let applied = self.relay.applied;
        let queues = self.most_queues().unwrap_or(queues);
        if stats.notified != applied || stats.subscriptions != streams || stats.queues > queues {
            self.violate(|| {
                format!("I19: {stats:?}, but {applied} applied, {streams} streams, {queues} queues")
            });
        }
        let paused = self.relay.paused_until;
        if self.relay.draining {
            return;
        }
        let silent = self.relay.streams.iter().find(|(_, stream)| {
            let from = stream.sent_at.max(stream.blocked_until).max(paused);
            !stream.ended && self.now > from + stream.heartbeat * 11 / 10
        });
        if let Some((id, _)) = silent {
            let id = *id;
            self.violate(|| format!("I16: stream {id} is silent for over 1.1 heartbeats"));
        }
    }

    /// Returns whether the path between this listener and the relay is healthy now.
    pub(super) fn is_well(&self, number: usize) -> bool {
        let (now, listener) = (self.now, &self.listeners[number]);
        let Some(conn) = listener.conn.map(|id| &self.conns[id]) else {
            return false;
        };
        listener.session.is_some()
            && !listener.leaving
            && listener.paused_until <= now
            && self.relay.hub.is_some()
            && !self.relay.draining
            && self.relay.paused_until <= now
            && conn.relay_life == Some(self.relay.life)
            && conn.welcomed
            && !conn.relay_gone
            && !conn.client_gone
            && !conn.reset
            && !conn.cut_down
    }

    /// A listener has received the queue's wake-ups of this life, up to the sequence.
    fn check_told(&mut self, number: usize, queue: usize, sequence: u64) {
        let told = self.listeners[number].told.get(&queue).copied();
        let life = self.relay.life;
        let is_told = told.is_some_and(|told| told.life == life && told.sequence >= sequence);
        if !is_told && !self.is_told_by_pattern(number) {
            self.violate(|| {
                format!(
                    "I1: listener {number} is not told of queue {queue}: {told:?} for {sequence}"
                )
            });
        }
    }

    /// A listener has received a wake-up of a queue that its stream must report.
    fn check_caught_up(&mut self, number: usize, queue: usize) {
        let listener = &self.listeners[number];
        let told = listener.told.get(&queue).copied();
        if told.is_none_or(|told| told.stream != listener.conn) {
            self.violate(|| {
                format!("R2: listener {number} gets no CATCH_UP of queue {queue}: {told:?}")
            });
        }
    }

    /// A listener was told the heads of its queues.
    fn check_heads(&mut self, number: usize) {
        if self.is_told_by_pattern(number) {
            return;
        }
        let hub = self.relay.hub.clone().expect("it is up");
        for view in hub.queues("", usize::MAX, self.now) {
            if !self.listeners[number].wants(&view.address) {
                continue;
            }
            let queue = self
                .queues
                .find(&view.address)
                .expect("all queues are known");
            let told = self.listeners[number].told.get(&queue).copied();
            let life = self.relay.life;
            let is_head =
                told.is_some_and(|told| told.life == life && told.sequence == view.sequence);
            if !is_head && view.idle_for.is_some_and(|idle| idle > SOON) {
                self.violate(|| {
                    format!("I1: listener {number} was told {told:?} of queue {queue}, {view:?}")
                });
            }
        }
    }
}
