//! The network and the troubles of the hand-over's simulation.

use super::{DAY, Event, FORWARD, MILLI, SECOND, World};
use crate::wire::proto::{
    HandOverRequest, HandOverResponse, hand_over_response::Kind as Response,
    hand_over_verdict::Kind as Verdict,
};

impl World {
    pub(super) fn latency(&mut self) -> i64 {
        self.rng.i64(MILLI / 5..self.shape.latency)
    }

    pub(super) fn send_to_receiver(&mut self, id: u64, request: &HandOverRequest) {
        for after in self.travel(id, 0) {
            self.push(after, Event::ToReceiver(id, request.clone()));
        }
    }

    pub(super) fn send_to_sender(&mut self, id: u64, answer: &HandOverResponse) {
        for after in self.travel(id, 1) {
            self.push(after, Event::ToSender(id, answer.clone()));
        }
    }

    /// Returns whether the network loses an answer because it refuses a message: the queue may be
    /// there when the message is offered again.
    pub(super) fn loses_refusal(&mut self, answer: &HandOverResponse) -> bool {
        let refuses = matches!(
            &answer.kind,
            Some(Response::Accept(accept)) if accept.verdicts.iter().any(|verdict| {
                matches!(verdict.kind, Some(Verdict::Refused(_)))
            })
        );
        refuses && self.shape.queue_changes && self.happens(3)
    }

    /// Returns when a frame arrives, if at all, and perhaps twice.
    fn travel(&mut self, id: u64, direction: usize) -> Vec<i64> {
        if self.happens(self.shape.lost) {
            self.totals.lost += 1;
            return Vec::new();
        }
        let late = self.happens(self.shape.late);
        let swapped = self.happens(self.shape.swapped);
        let repeated = self.happens(self.shape.repeated);
        let mut latency = self.latency();
        if late {
            self.totals.late += 1;
            // Mostly as long as a new connection takes.
            let longest = [SECOND / 2, SECOND, 5 * SECOND][self.rng.usize(..3)];
            latency += self.rng.i64(..longest);
            if self.rng.bool() {
                // Its connection is replaced before it arrives.
                let ends = self.rng.i64(..100 * MILLI);
                self.push(ends, Event::SenderEnds(id));
                self.push(latency + SECOND, Event::ReceiverEnds(id));
            }
        }
        let mut at = self.now + latency;
        if swapped {
            // The next frames overtake it.
            self.totals.swapped += 1;
            at += self.shape.latency;
        } else if let Some(connection) = self.connections.get_mut(&id) {
            at = at.max(connection.arrivals[direction] + 1);
            connection.arrivals[direction] = at;
        }
        let mut arrivals = vec![at - self.now];
        if repeated {
            self.totals.repeated += 1;
            arrivals.push(at - self.now + self.rng.i64(1..SECOND));
        }
        arrivals
    }

    pub(super) fn trouble(&mut self) {
        if !self.troubled {
            return;
        }
        let pause = self.rng.i64(1..2 * self.shape.troubles);
        self.push(pause, Event::Trouble);
        let number = self.rng.usize(..self.machines.len());
        match self.rng.u8(..8) {
            0 if self.shape.crashes => self.crash(number),
            1 if self.shape.crashes => {
                // A loop: the machine ends soon after each start.
                for crash in 0..self.rng.i64(1..6) {
                    let after = crash * self.rng.i64(100 * MILLI..SECOND);
                    self.push(after, Event::Crash(number));
                }
            }
            2 if self.shape.restores => self.machines[number].copy_file(),
            3 if self.shape.restores && self.machines[number].copy.is_some() => {
                self.crash(number);
                self.restore(number);
            }
            4 if self.shape.clock_jumps => {
                let jumps = [-20 * DAY, -20 * DAY, -DAY, DAY, -SECOND, 3600 * SECOND];
                let jump = jumps[self.rng.usize(..6)];
                let offset = &mut self.machines[number].offset;
                *offset = match *offset < -10 * DAY {
                    // A time server corrects a boot with an old clock.
                    true => 0,
                    false => (*offset + jump).min(FORWARD),
                };
            }
            _ => self.cut(),
        }
    }

    /// A connection breaks; each side notices at its own time, and frames still arrive.
    pub(super) fn cut(&mut self) {
        let open = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.sender.is_some());
        let open: Vec<u64> = open.map(|(id, _)| *id).collect();
        if open.is_empty() {
            return;
        }
        self.totals.cuts += 1;
        let id = open[self.rng.usize(..open.len())];
        let (sender, receiver) = (self.rng.i64(..100 * MILLI), self.rng.i64(..10 * SECOND));
        self.push(sender, Event::SenderEnds(id));
        self.push(receiver, Event::ReceiverEnds(id));
    }

    pub(super) fn crash(&mut self, number: usize) {
        if !self.machines[number].up {
            return;
        }
        self.totals.crashes += 1;
        self.log(|_| format!("machine {number} crashes"));
        self.machines[number].up = false;
        self.machines[number].life += 1;
        let mut ended = Vec::new();
        for (id, connection) in &mut self.connections {
            if connection.from == number {
                connection.sender = None;
            }
            if connection.to == number {
                connection.receiver = None;
                ended.push(*id);
            }
        }
        self.forget_ended();
        for id in ended {
            let after = self.latency();
            self.push(after, Event::SenderEnds(id));
        }
        let away = match self.rng.u8(..4) {
            0 => self.rng.i64(..30 * SECOND),
            _ => self.rng.i64(..SECOND),
        };
        self.push(away, Event::Restart(number));
    }

    pub(super) fn restart(&mut self, number: usize) {
        if self.machines[number].up {
            return;
        }
        self.machines[number].up = true;
        self.machines[number].opened();
        let life = self.machines[number].life;
        self.push(0, Event::Host(number, life));
        // A consumer reads once when it starts.
        self.push(MILLI, Event::Consume(number));
    }

    pub(super) fn restore(&mut self, number: usize) {
        self.totals.restores += 1;
        self.log(|_| format!("machine {number} is restored"));
        for id in self.machines[number].restore() {
            let index = usize::try_from(id).expect("a number");
            self.sent[index].may_be_lost = true;
        }
    }
}
