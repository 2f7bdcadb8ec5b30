//! Messages that become visible later, and for which a relay has a timer: a busy listener has died
//! (R8), or a listener has released a message and reported when it is visible (R10).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{clients::ConnId, oracle::Promise, world::World};
use crate::{
    base::clock::Tick,
    sim::{oracle::later, queue::MessageId},
    types::{QueueAddress, Report, ReportState, WorkDetected},
};

/// R8: the timer of a busy listener that has ended is this much later than its messages.
const BUSY_MARGIN: Duration = Duration::from_secs(2);

/// What a connection's relay knows of the listener's messages.
#[derive(Debug, Default)]
pub(super) struct Hidden {
    /// The queues that the listener has reported as busy.
    busy: BTreeSet<QueueAddress>,
    /// The newest sequence that was sent for each queue, and that no report has covered.
    woken: BTreeMap<QueueAddress, u64>,
    /// Messages and receipts of a listener that has died.
    held: Vec<(MessageId, u64)>,
}

/// A message that a listener has released: its handler has failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Released {
    message: MessageId,
    receipt: u64,
    visible_at: Tick,
    /// The relay, and its run, that has the report.
    known_by: Option<(usize, u64)>,
}

impl Hidden {
    /// The stream sends wake-ups.
    pub(super) fn woken(&mut self, work: &[WorkDetected]) {
        let queues = work
            .iter()
            .filter_map(|one| Some((one.queue.as_address()?, one.sequence)));
        self.woken.extend(queues);
    }

    /// R8: returns whether the relay counts the listener as idle on the queue.
    pub(super) fn is_idle(&self, queue: &QueueAddress) -> bool {
        !self.busy.contains(queue) && !self.woken.contains_key(queue)
    }

    fn reported(&mut self, report: &Report) {
        let newest = self.woken.get(&report.queue).copied();
        match report.state {
            ReportState::Busy => _ = self.busy.insert(report.queue.clone()),
            ReportState::Drained if newest <= Some(report.sequence) => {
                self.woken.remove(&report.queue);
                self.busy.remove(&report.queue);
            }
            _ => {}
        }
    }

    /// The listener dies with these messages.
    pub(super) fn held_by_dead(&mut self, held: Vec<(MessageId, u64)>) {
        self.held = held;
    }
}

impl World {
    /// A relay has taken a report.
    pub(super) fn reported(&mut self, id: ConnId, report: &Report) {
        self.conns[id].hidden.reported(report);
        if report.state != ReportState::Unspecified {
            self.quiet_reported(&report.queue);
        }
        if let Some(visible_in) = report.visible_in {
            self.visible_reported(id, &report.queue, visible_in);
        }
    }

    /// A handler fails: its message is visible again after a while, and the relay is told.
    pub(super) fn releases(&mut self, number: usize, (message, receipt): (MessageId, u64)) {
        let delay = Duration::from_millis(self.rng.u64(0..12_000));
        let visible_at = self.now + delay;
        if !self.queues.release(message, receipt, visible_at) {
            return;
        }
        self.totals.count("releases", 1);
        self.log
            .note(self.now, "releases", &[number as u64, message as u64]);
        self.excused.insert(message);
        let queue = self.queues.messages[message].queue;
        self.listeners[number].released.push(Released {
            message,
            receipt,
            visible_at,
            known_by: None,
        });
        self.report_visible(number, queue, delay);
    }

    /// After a Welcome a listener reports again what becomes visible later, and what no relay knows.
    pub(super) fn report_released(&mut self, number: usize) {
        let (now, messages) = (self.now, &self.queues.messages);
        let released = &mut self.listeners[number].released;
        released.retain(|one| {
            let message = &messages[one.message];
            let newest = message.gets == one.receipt && !message.done;
            newest && (one.known_by.is_none() || one.visible_at > now)
        });
        let all = released.clone();
        for one in all {
            let queue = self.queues.messages[one.message].queue;
            self.report_visible(number, queue, one.visible_at.since(now));
        }
    }

    fn report_visible(&mut self, number: usize, queue: usize, delay: Duration) {
        let report = Report {
            // A relay whose clock runs too fast must not wake too early.
            visible_in: Some(delay + delay / 50),
            ..Report::new(self.queues.list[queue].address.clone())
        };
        self.send_report(number, report);
    }

    /// R10: a relay has taken a report, and wakes the queue when the message is visible.
    fn visible_reported(&mut self, id: ConnId, queue: &QueueAddress, visible_in: Duration) {
        let (relay, number) = (self.conns[id].relay, self.conns[id].listener);
        let by = (relay, self.relays[relay].life);
        let queue = self.queues.find(queue).expect("it is reported");
        if self.listeners[number.0].life != number.1 {
            return;
        }
        let delay = visible_in + visible_in / 25;
        let promise = Promise {
            due: self.now + later(delay),
            relay,
            life: by.1,
            delayed: true,
        };
        let mut released = std::mem::take(&mut self.listeners[number.0].released);
        for one in &mut released {
            let message = &self.queues.messages[one.message];
            let newest = message.gets == one.receipt && !message.done;
            let covered = self.now + visible_in >= one.visible_at;
            if message.queue != queue || !newest || !covered || one.known_by == Some(by) {
                continue;
            }
            one.known_by = Some(by);
            self.excused.remove(&one.message);
            // Some listeners have not looked yet since the put, and are awaited for that.
            if !self.oracle.open.contains_key(&one.message) {
                self.totals.count("reported as visible later", 1);
                self.expect_looks(one.message);
                self.promised(one.message, promise);
            }
        }
        self.listeners[number.0].released = released;
    }

    /// R8: a stream ends. For a busy listener the relay wakes the queue after the visibility
    /// time-out.
    pub(super) fn busy_ends(&mut self, id: ConnId) {
        let (relay, number) = (self.conns[id].relay, self.conns[id].listener.0);
        let life = self.relays[relay].life;
        let timeout = self.plan.listeners[number].visibility + BUSY_MARGIN;
        let hidden = std::mem::take(&mut self.conns[id].hidden);
        for (message, receipt) in hidden.held {
            let of = &self.queues.messages[message];
            let known = hidden.busy.contains(&self.queues.list[of.queue].address);
            let newest = of.gets == receipt && !of.done;
            // Some listeners have not looked yet since the put, and are awaited for that.
            if known && newest && !self.oracle.open.contains_key(&message) {
                let promise = Promise {
                    due: self.now + later(timeout + timeout / 25),
                    relay,
                    life,
                    delayed: true,
                };
                self.totals.count("busy ends", 1);
                self.excused.remove(&message);
                self.expect_looks(message);
                self.promised(message, promise);
            }
        }
    }
}
