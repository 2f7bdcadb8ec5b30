//! The naive model: a log of all events, searched from its beginning.

use std::collections::{BTreeMap, BTreeSet};

use super::super::*;
use crate::{relay::hub::timers::timer_offset, types::Selector};

/// The values of one event: notifications, payload, messages.
pub(super) type Delta = [u64; 3];

/// A due entry: the queue's name, the reason, its sequence and the sums.
pub(super) type Owed = (String, WakeReason, u64, Delta);

/// Every counted event.
#[derive(Default)]
pub(super) struct Log {
    events: Vec<Event>,
    queues: BTreeMap<String, Queue>,
    floor: u64,
    /// Grows with each resume number, and the greatest at which a forgotten queue had changed.
    revision: u64,
    forgotten_at: u64,
    pub(super) listeners: Vec<Option<Listener>>,
}

struct Event {
    queue: String,
    sequence: u64,
    timed: bool,
    sums: Delta,
}

/// The relay's present state of a queue.
struct Queue {
    start: u64,
    head: u64,
    /// The revision at its newest event, or when it was made.
    changed_at: u64,
    /// It has counted, or has a timer.
    used: bool,
    touched: Tick,
    /// When the last subscriber left; it counts while there is no other one.
    left: Tick,
    timers: BTreeMap<Tick, Delta>,
}

/// A subscriber.
pub(super) struct Listener {
    pub(super) selectors: Vec<Selector>,
    cursors: BTreeMap<String, Cursor>,
    /// Cursors of queues that were forgotten: at the end a busy one sets a timer.
    ghosts: Vec<(String, Cursor)>,
    doubts: BTreeSet<String>,
    reports: bool,
}

#[derive(Default)]
struct Cursor {
    place: u64,
    doubt: bool,
    woken: Option<(u64, Tick)>,
    drained: Option<u64>,
    busy: bool,
}

/// What a stated resume number is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Worth {
    /// The listener has all events up to this revision.
    Since(u64),
    /// It is of another run of the relay.
    Foreign,
    Nothing,
}

const VISIBILITY: Duration = Duration::from_secs(30);

impl Log {
    pub(super) fn notify(&mut self, name: &str, delay: Duration, sums: Delta, now: Tick) {
        self.use_queue(name, now);
        if delay.is_zero() {
            return self.count(name, false, sums, now);
        }
        self.set_timer(name, delay, sums, now);
    }

    pub(super) fn fire(&mut self, now: Tick) {
        let mut due = Vec::new();
        for (name, queue) in &mut self.queues {
            while let Some(first) = queue.timers.first_entry().filter(|t| *t.key() <= now) {
                due.push((name.clone(), first.remove()));
            }
        }
        for (name, sums) in due {
            self.count(&name, true, sums, now);
        }
    }

    pub(super) fn forget(&mut self, now: Tick) {
        let Some(since) = now.as_nanos().checked_sub(3_600_000_000_000) else {
            return;
        };
        let since = Tick::from_nanos(since);
        let listeners = &mut self.listeners;
        let (floor, forgotten_at) = (&mut self.floor, &mut self.forgotten_at);
        self.queues.retain(|name, queue| {
            let all = listeners.iter().flatten();
            let needed = all.clone().any(|one| one.needs(name, queue.head));
            let heard = all.clone().any(|one| one.wants(name));
            let old = queue.touched <= since && (heard || queue.left <= since);
            let stays = needed || !queue.timers.is_empty() || !old;
            if !stays {
                *floor = (*floor).max(queue.head + 1);
                *forgotten_at = (*forgotten_at).max(queue.changed_at);
                for listener in listeners.iter_mut().flatten() {
                    let cursor = listener.cursors.remove(name);
                    listener
                        .ghosts
                        .extend(cursor.map(|one| (name.clone(), one)));
                }
            }
            stays
        });
    }

    /// Returns the revision of a resume number, and raises it.
    pub(super) fn number(&mut self) -> u64 {
        self.revision += 1;
        self.revision - 1
    }

    /// Subscribes with a number of the given kind.
    pub(super) fn subscribe(
        &mut self,
        selectors: Vec<Selector>,
        number: Worth,
        now: Tick,
    ) -> Listener {
        let knows_patterns = match number {
            Worth::Since(revision) => self.forgotten_at <= revision,
            Worth::Foreign | Worth::Nothing => false,
        };
        let patterns = selectors.iter().filter(|s| s.is_pattern());
        let doubts = patterns.filter(|_| !knows_patterns);
        let mut listener = Listener {
            doubts: doubts.map(|s| s.queue_name().to_owned()).collect(),
            selectors,
            cursors: BTreeMap::new(),
            ghosts: Vec::new(),
            reports: false,
        };
        let exact = listener.selectors.iter().filter_map(Selector::as_address);
        let exact: Vec<_> = exact.map(|queue| queue.queue_name().to_owned()).collect();
        let known = self.queues.keys().filter(|name| listener.wants(name));
        let all: BTreeSet<_> = known.cloned().chain(exact).collect();
        for name in all {
            self.make(&name, now);
            let queue = &self.queues[&name];
            let is_told = matches!(number, Worth::Since(at) if queue.changed_at <= at);
            let cursor = Cursor {
                place: queue.head,
                doubt: !is_told,
                ..Cursor::default()
            };
            listener.cursors.insert(name, cursor);
        }
        listener
    }

    pub(super) fn unsubscribe(&mut self, listener: Listener, now: Tick) {
        let exact = listener.selectors.iter().filter_map(Selector::as_address);
        for queue in exact {
            self.queues.get_mut(queue.queue_name()).expect("named").left = now;
        }
        for (name, cursor) in listener.cursors.into_iter().chain(listener.ghosts) {
            let woken = cursor.woken.map(|(sequence, _)| sequence);
            let lapsed = cursor.woken.is_none_or(|(_, at)| now >= at + VISIBILITY);
            let busy = cursor.busy || cursor.drained < woken;
            if busy && (listener.reports || !lapsed) {
                self.use_queue(&name, now);
                self.set_timer(&name, VISIBILITY + 2 * SECOND, [0; 3], now);
            }
        }
    }

    pub(super) fn report(&mut self, slot: usize, report: &Report, now: Tick) {
        let name = report.queue.queue_name();
        self.make(name, now);
        let queue = &self.queues[name];
        let (start, head) = (queue.start, queue.head);
        let listener = self.listeners[slot].as_mut().expect("subscribed");
        listener.reports = true;
        let at_birth = || Cursor {
            place: start,
            ..Cursor::default()
        };
        let cursor = listener
            .cursors
            .entry(name.to_owned())
            .or_insert_with(at_birth);
        let sequence = if report.sequence > head {
            0
        } else {
            report.sequence
        };
        match report.state {
            ReportState::Busy => cursor.busy = true,
            ReportState::Drained => {
                cursor.drained = cursor.drained.max(Some(sequence));
                let woken = cursor.woken.map(|(sequence, _)| sequence);
                cursor.busy &= cursor.drained < woken;
            }
            ReportState::Unspecified => {}
        }
        let Some(delay) = report.visible_in else {
            return;
        };
        self.use_queue(name, now);
        match delay {
            Duration::ZERO => self.count(name, true, [0; 3], now),
            delay => self.set_timer(name, delay, [0; 3], now),
        }
    }

    /// Takes a listener's due entries.
    pub(super) fn take(&mut self, slot: usize, now: Tick) -> Vec<Owed> {
        let listener = self.listeners[slot].as_mut().expect("subscribed");
        let mut owed = Vec::new();
        let doubts = std::mem::take(&mut listener.doubts).into_iter();
        owed.extend(doubts.map(|name| (name, WakeReason::CatchUp, 0, [0; 3])));
        for (name, cursor) in &mut listener.cursors {
            let head = self.queues[name].head;
            let missed = |event: &&Event| event.queue == *name && event.sequence > cursor.place;
            let missed: Vec<_> = self.events.iter().filter(missed).collect();
            let reason = match (missed.iter().any(|e| !e.timed), missed.is_empty()) {
                (true, _) => WakeReason::Notified,
                (false, false) => WakeReason::Timed,
                (false, true) if cursor.doubt => WakeReason::CatchUp,
                (false, true) => continue,
            };
            let add = |all: Delta, event: &&Event| std::array::from_fn(|i| all[i] + event.sums[i]);
            owed.push((name.clone(), reason, head, missed.iter().fold([0; 3], add)));
            cursor.place = head;
            cursor.doubt = false;
            cursor.woken = Some((head, now));
        }
        owed.sort();
        owed
    }

    fn make(&mut self, name: &str, now: Tick) {
        let (floor, revision) = (self.floor, self.revision);
        let new = || Queue {
            start: floor,
            head: floor,
            changed_at: revision,
            used: false,
            touched: now,
            left: now,
            timers: BTreeMap::new(),
        };
        self.queues.entry(name.to_owned()).or_insert_with(new);
    }

    /// Makes the queue; subscribers with a matching pattern listen from its start.
    fn use_queue(&mut self, name: &str, now: Tick) {
        self.make(name, now);
        let queue = self.queues.get_mut(name).expect("made");
        if std::mem::replace(&mut queue.used, true) {
            return;
        }
        for listener in self.listeners.iter_mut().flatten() {
            if listener.wants(name) {
                let place = queue.start;
                let cursor = Cursor {
                    place,
                    ..Cursor::default()
                };
                listener.cursors.entry(name.to_owned()).or_insert(cursor);
            }
        }
    }

    fn count(&mut self, name: &str, timed: bool, sums: Delta, now: Tick) {
        let queue = self.queues.get_mut(name).expect("used");
        queue.head += 1;
        queue.changed_at = self.revision;
        queue.touched = now;
        self.events.push(Event {
            queue: name.to_owned(),
            sequence: queue.head,
            timed,
            sums,
        });
    }

    fn set_timer(&mut self, name: &str, delay: Duration, sums: Delta, now: Tick) {
        let queue = self.queues.get_mut(name).expect("used");
        let at = now.after_on_moved_grid(delay, timer_offset(&super::queue(name)));
        let timer = queue.timers.entry(at).or_default();
        *timer = std::array::from_fn(|i| timer[i] + sums[i]);
    }
}

impl Listener {
    /// Returns whether it names the queue, has a pending entry there, or counts as busy.
    fn needs(&self, name: &str, head: u64) -> bool {
        let Some(cursor) = self.cursors.get(name) else {
            return false;
        };
        let address = queue(name);
        let mut exact = self.selectors.iter().filter(|one| !one.is_pattern());
        let named = exact.any(|selector| selector.matches(&address));
        let woken = cursor.woken.map(|(sequence, _)| sequence);
        let held = cursor.busy || cursor.drained < woken;
        named || held || cursor.doubt || cursor.place < head
    }

    pub(super) fn wants(&self, name: &str) -> bool {
        let queue = queue(name);
        self.selectors
            .iter()
            .any(|selector| selector.matches(&queue))
    }
}
