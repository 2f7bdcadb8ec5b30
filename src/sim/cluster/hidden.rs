//! R8: messages that a listener hides, and that a relay has a timer for: a busy listener has died.

use std::{collections::BTreeSet, time::Duration};

use super::{clients::ConnId, oracle::Promise, world::World};
use crate::{
    sim::{oracle::later, queue::MessageId},
    types::{QueueAddress, Report, ReportState},
};

/// R8: the timer of a busy listener that has ended is this much later than its messages.
const BUSY_MARGIN: Duration = Duration::from_secs(2);

/// What a connection's relay knows of the listener's messages.
#[derive(Debug, Default)]
pub(super) struct Hidden {
    /// The queues that the listener has reported as busy.
    busy: BTreeSet<QueueAddress>,
    /// Messages and receipts of a listener that has died.
    held: Vec<(MessageId, u64)>,
}

impl Hidden {
    /// The listener dies with these messages.
    pub(super) fn held_by_dead(&mut self, held: Vec<(MessageId, u64)>) {
        self.held = held;
    }
}

impl World {
    /// A relay has taken a report.
    pub(super) fn reported(&mut self, id: ConnId, report: &Report) {
        let busy = &mut self.conns[id].hidden.busy;
        match report.state {
            ReportState::Busy => _ = busy.insert(report.queue.clone()),
            ReportState::Drained => _ = busy.remove(&report.queue),
            _ => {}
        }
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
