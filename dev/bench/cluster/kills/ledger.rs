//! The ledger of `kills`: which subscriber was told of which acknowledged notification, and when.
//!
//! Plain data, without a clock: all times are nanoseconds of the machine's wall clock. A queue is
//! notified again only after its last notification was judged, so that a later wake-up of the queue
//! never hides a lost one.
//!
//! A subscriber is told by a NOTIFIED that covers the notification, or by any wake-up after its
//! acknowledgement. A CATCH_UP up to a second before the acknowledgement also counts: the relay
//! counts a notification at most a second before it answers (C8).

use hdrhistogram::Histogram;

/// All notifications under way, and the counts of those that were judged.
#[derive(Debug)]
pub(super) struct Ledger {
    /// The newest notification of each queue.
    slots: Vec<Option<Slot>>,
    /// Their names.
    subscribers: Vec<String>,
    /// Added to each bound, for a busy machine.
    slack: u64,
    events: Vec<Event>,
    faults: Vec<FaultSpan>,
    pub(super) totals: Totals,
    /// The time lines of the first failures.
    pub(super) failures: Vec<String>,
}

/// The kind of a killed process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Relay,
    Broker,
}

/// The counts of the judged notifications. Delays are in nanoseconds, from the acknowledgement.
#[derive(Debug)]
pub(super) struct Totals {
    pub(super) acknowledged: u64,
    pub(super) unanswered: u64,
    /// Pairs of a notification and a subscriber that was never told, or too late.
    pub(super) lost: u64,
    pub(super) late: u64,
    /// Pairs that a CATCH_UP told.
    pub(super) by_catch_up: u64,
    /// CATCH_UPs after a kill of the broker, of a queue without a notification under way then: one for
    /// each subscriber and queue. Kills of relays explain such checks too, so it is of use without these.
    pub(super) other_checks: u64,
    pub(super) delays: Histogram<u64>,
    /// The longest delays: without a fault, after a relay's and after the broker's.
    pub(super) quiet: u64,
    pub(super) after_relay: u64,
    pub(super) after_broker: u64,
}

#[derive(Debug)]
struct Slot {
    sent: u64,
    publisher: usize,
    acknowledged: Option<u64>,
    /// Of each subscriber.
    told: Vec<Told>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Told {
    at: Option<u64>,
    by_catch_up: bool,
    /// The newest CATCH_UP before the acknowledgement; 0 without one.
    last_catch_up: u64,
}

#[derive(Debug)]
struct Event {
    at: u64,
    text: String,
}

#[derive(Debug, Clone, Copy)]
struct FaultSpan {
    fault: Fault,
    began: u64,
    /// `u64::MAX` until the process serves again.
    ended: u64,
}

const SECOND: u64 = 1_000_000_000;
/// Without a fault: the time of a heartbeat that shows a missed frame.
const QUIET_BOUND: u64 = 12 * SECOND / 10;
/// After a relay serves again: 3 s until its clients have streams, and 2 s over which their checks are
/// spread.
const RELAY_BOUND: u64 = 5 * SECOND;
/// After the broker is back: 0.5 s until a relay has connected, and 4.5 s for a resync of all.
const BROKER_BOUND: u64 = 5 * SECOND;
/// A relay answers at most this long after its count.
const ANSWER: u64 = 11 * SECOND / 10;
/// Events this long before and after a failure are part of its time line.
const AROUND: u64 = 15 * SECOND;
/// Failures beyond this number are only counted.
const MAX_FAILURES: usize = 20;

impl Ledger {
    pub(super) fn new(queues: usize, subscribers: Vec<String>, slack: u64) -> Self {
        Self {
            slots: std::iter::repeat_with(|| None).take(queues).collect(),
            subscribers,
            slack,
            events: Vec::new(),
            faults: Vec::new(),
            totals: Totals::new(),
            failures: Vec::new(),
        }
    }

    pub(super) fn queues(&self) -> usize {
        self.slots.len()
    }

    /// A publisher notifies a queue; its last notification is judged.
    pub(super) fn sent(&mut self, queue: usize, publisher: usize, now: u64) {
        self.judge(queue);
        self.slots[queue] = Some(Slot {
            sent: now,
            publisher,
            acknowledged: None,
            told: vec![Told::default(); self.subscribers.len()],
        });
    }

    pub(super) fn acknowledged(&mut self, queue: usize, now: u64) {
        self.totals.acknowledged += 1;
        let Some(slot) = &mut self.slots[queue] else {
            return;
        };
        slot.acknowledged = Some(now);
        let earliest = slot.sent.max(now.saturating_sub(ANSWER));
        for told in &mut slot.told {
            if told.at.is_none() && told.last_catch_up >= earliest {
                told.set(told.last_catch_up, true);
            }
        }
    }

    /// The notification was not acknowledged before its deadline: it may be lost.
    pub(super) fn unanswered(&mut self, queue: usize) {
        self.totals.unanswered += 1;
        self.slots[queue] = None;
    }

    /// A subscriber gets a NOTIFIED.
    pub(super) fn notified(
        &mut self,
        subscriber: usize,
        queue: usize,
        published_at: u64,
        now: u64,
    ) {
        let Some(Some(slot)) = self.slots.get_mut(queue) else {
            return;
        };
        if published_at >= slot.sent || slot.acknowledged.is_some() {
            slot.told[subscriber].set(now, false);
        }
    }

    /// A subscriber gets a CATCH_UP of one queue, or of all.
    pub(super) fn catch_up(&mut self, subscriber: usize, queue: Option<usize>, now: u64) {
        let queues = queue.map_or(0..self.slots.len(), |queue| queue..queue + 1);
        let killed = self.broker_killed(now);
        for slot in self.slots.get_mut(queues).unwrap_or_default() {
            let Some(slot) = slot else { continue };
            let before = slot
                .acknowledged
                .is_some_and(|at| Some(at + SECOND) < killed);
            self.totals.other_checks += u64::from(before);
            match slot.acknowledged {
                Some(_) => slot.told[subscriber].set(now, true),
                None => slot.told[subscriber].last_catch_up = now,
            }
        }
    }

    /// Returns when the broker was killed, where that explains a CATCH_UP at this time: the earliest kill
    /// that is not over.
    fn broker_killed(&self, now: u64) -> Option<u64> {
        let mut faults = self.faults.iter();
        let kill = faults.find(|span| now <= span.ended.saturating_add(BROKER_BOUND))?;
        Some(kill.began).filter(|_| kill.fault == Fault::Broker)
    }

    /// Notes an event for time lines.
    pub(super) fn event(&mut self, at: u64, text: String) {
        self.events.push(Event { at, text });
    }

    pub(super) fn fault_begins(&mut self, fault: Fault, name: &str, now: u64) {
        self.event(now, format!("{name} killed"));
        self.faults.push(FaultSpan {
            fault,
            began: now,
            ended: u64::MAX,
        });
    }

    pub(super) fn fault_ends(&mut self, name: &str, now: u64) {
        self.event(now, format!("{name} serves again"));
        if let Some(fault) = self.faults.last_mut() {
            fault.ended = now;
        }
    }

    /// Returns whether all subscribers are told of the notifications that were acknowledged before a
    /// time.
    pub(super) fn is_told(&self, before: u64) -> bool {
        self.slots.iter().flatten().all(|slot| {
            slot.acknowledged.is_none_or(|at| at >= before)
                || slot.told.iter().all(|told| told.at.is_some())
        })
    }

    /// Returns whether all notifications are answered and told.
    pub(super) fn is_settled(&self) -> bool {
        self.slots.iter().flatten().all(|slot| {
            slot.acknowledged.is_some() && slot.told.iter().all(|told| told.at.is_some())
        })
    }

    /// Judges all notifications.
    pub(super) fn finish(&mut self) {
        for queue in 0..self.slots.len() {
            self.judge(queue);
        }
    }

    fn judge(&mut self, queue: usize) {
        let Some(slot) = self.slots[queue].take() else {
            return;
        };
        let Some(acknowledged) = slot.acknowledged else {
            return;
        };
        let (limit, fault) = self.limit(acknowledged);
        for (number, told) in slot.told.iter().enumerate() {
            let Some(at) = told.at else {
                self.totals.lost += 1;
                self.fail("LOST", queue, &slot, number);
                continue;
            };
            let delay = at.saturating_sub(acknowledged);
            self.totals.told(delay, told.by_catch_up, fault);
            if at > limit {
                self.totals.late += 1;
                self.fail("LATE", queue, &slot, number);
            }
        }
    }

    /// Returns the time until which subscribers must be told of a notification with this time of
    /// acknowledgement, and the fault that decides.
    fn limit(&self, acknowledged: u64) -> (u64, Option<Fault>) {
        let mut limit = (acknowledged + QUIET_BOUND + self.slack, None);
        // A fault that begins after the limit had no part in the delay.
        let quiet = limit.0;
        let had_part = |span: &&FaultSpan| span.began <= quiet;
        // Those before the last two are over.
        for span in self.faults.iter().filter(had_part).rev().take(2) {
            let bound = match span.fault {
                Fault::Relay => RELAY_BOUND,
                Fault::Broker => BROKER_BOUND,
            };
            let end = span.ended.saturating_add(bound + self.slack);
            if end > limit.0 {
                limit = (end, Some(span.fault));
            }
        }
        limit
    }

    fn fail(&mut self, kind: &str, queue: usize, slot: &Slot, subscriber: usize) {
        if self.failures.len() == MAX_FAILURES {
            return;
        }
        let Some(zero) = slot.acknowledged else {
            return;
        };
        let told = &slot.told[subscriber];
        let name = &self.subscribers[subscriber];
        let mut lines = vec![
            (
                slot.sent,
                format!("sent by publisher {}", slot.publisher + 1),
            ),
            (zero, "acknowledged".to_owned()),
        ];
        if let Some(at) = told.at {
            let reason = if told.by_catch_up {
                "CATCH_UP"
            } else {
                "NOTIFIED"
            };
            lines.push((at, format!("{name} gets {reason}")));
        }
        if told.last_catch_up > 0 {
            let text = format!("last CATCH_UP of {name} before the acknowledgement");
            lines.push((told.last_catch_up, text));
        }
        let is_near = |event: &&Event| event.at.abs_diff(zero) <= AROUND;
        let events = self.events.iter().filter(is_near);
        lines.extend(events.map(|event| (event.at, event.text.clone())));
        lines.sort();
        let mut text = format!("{kind}: queue {queue}, {name}; ms after the acknowledgement:");
        for (at, line) in lines {
            let span = at as f64 - zero as f64;
            text.push_str(&format!("\n  {:>10.1}  {line}", span / 1e6));
        }
        self.failures.push(text);
    }
}

impl Told {
    fn set(&mut self, at: u64, by_catch_up: bool) {
        if self.at.is_none() {
            (self.at, self.by_catch_up) = (Some(at), by_catch_up);
        }
    }
}

impl Totals {
    fn new() -> Self {
        Self {
            acknowledged: 0,
            unanswered: 0,
            lost: 0,
            late: 0,
            by_catch_up: 0,
            other_checks: 0,
            delays: Histogram::new(3).expect("3 digits are permitted"),
            quiet: 0,
            after_relay: 0,
            after_broker: 0,
        }
    }

    fn told(&mut self, delay: u64, by_catch_up: bool, fault: Option<Fault>) {
        self.by_catch_up += u64::from(by_catch_up);
        self.delays.saturating_record(delay);
        let longest = match fault {
            None => &mut self.quiet,
            Some(Fault::Relay) => &mut self.after_relay,
            Some(Fault::Broker) => &mut self.after_broker,
        };
        *longest = delay.max(*longest);
    }
}

#[cfg(test)]
#[path = "ledger/tests.rs"]
mod tests;
