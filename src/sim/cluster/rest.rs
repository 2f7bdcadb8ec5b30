//! The invariants at rest, when the troubles have stopped for long enough.

use super::world::World;

impl World {
    pub(super) fn check_the_end(&mut self) {
        self.check_handled();
        for relay in 0..self.relays.len() {
            self.check_rest(relay);
        }
        self.check_flags_at_rest();
        if self.plan.is_lossless() {
            self.check_equal_sums();
        }
    }

    /// Each message was handled, but for those whose holder has died.
    fn check_handled(&mut self) {
        let open = self.queues.open().find(|message| {
            let visible = self.queues.messages[*message].visible_at <= self.now;
            let queue = self.queues.messages[*message].queue;
            let wanted = (0..self.listeners.len()).any(|number| self.wants(number, queue));
            visible && wanted && !self.excused.contains(message)
        });
        if let Some(message) = open {
            let queue = self.queues.messages[message].queue;
            self.violate(|| format!("J1: message {message} of queue {queue} is never handled"));
        }
    }

    /// J3: no gap, all frames applied, nothing listed, nothing unconfirmed, not degraded.
    fn check_rest(&mut self, relay: usize) {
        let now = self.local(relay);
        let Some(run) = &self.relays[relay].run else {
            return self.violate(|| format!("J3: relay {relay} does not run"));
        };
        let settled = run.node.is_settled() && !run.node.link().is_degraded(now);
        let newest = |life| {
            let mut runs = self.relays.iter().filter_map(|relay| relay.run.as_ref());
            let run = runs.find(|run| run.life_id() == life)?;
            Some(run.node.link().newest_frame())
        };
        let mut received = run.node.link().received();
        let behind = received.find(|(life, applied, gap)| {
            *gap || newest(*life).is_some_and(|newest| newest != *applied)
        });
        drop(received);
        if !settled {
            return self
                .violate(|| format!("J3: relay {relay} has frames to send, or is degraded"));
        }
        if let Some((life, applied, gap)) = behind {
            self.violate(|| {
                format!("J3: relay {relay} has applied {applied} of relay {life}: {gap}")
            });
        }
    }

    /// J4: the sums of all relays are equal to the last byte.
    fn check_equal_sums(&mut self) {
        for relay in 0..self.relays.len() {
            for (queue, sums) in self.sums_of(relay) {
                let all = self.oracle.notified.get(&queue).copied();
                let all = all.unwrap_or_default();
                if sums != all {
                    self.violate(|| {
                        format!("J4: relay {relay}, queue {queue}: {sums:?}, not {all:?}")
                    });
                }
            }
        }
        self.totals.count("equal sums", 1);
    }
}
