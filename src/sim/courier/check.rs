//! The assertions of the hand-over's simulation.

use super::{DAY, World, machine::Id};

impl World {
    /// A handled message arrived where it was sent to, once, and in order.
    pub(super) fn check_received(&self, number: usize, id: Id) -> Result<(), String> {
        let index = usize::try_from(id).expect("a number");
        let message = &self.sent[index];
        if message.to != number {
            return Err(format!(
                "a message is handled at the wrong machine: {id} at {number}"
            ));
        }
        let received = &self.machines[number].received;
        let times = received.iter().filter(|other| **other == id).count();
        if times != 1 {
            return Err(format!("a message is handled twice: {id}"));
        }
        let before = received.iter().take_while(|other| **other != id);
        let mut before = before.copied();
        let overtaken = before.any(|other| {
            let other_message = &self.sent[usize::try_from(other).expect("a number")];
            other > id
                && other_message.from == message.from
                && other_message.name == message.name
                && other_message.queue == message.queue
        });
        // A restored receiver lost it, and a restored sender brings it back after later ones.
        match overtaken && !message.may_be_lost {
            true => Err(format!("a message is out of order: {id}")),
            false => Ok(()),
        }
    }

    /// No message is ready at the sender and visible at the receiver, or the other way round.
    pub(super) fn check_pair(&self, id: u64) -> Result<(), String> {
        let Some(connection) = self.connections.get(&id) else {
            return Ok(());
        };
        let (from, to) = (
            &self.machines[connection.from],
            &self.machines[connection.to],
        );
        let ready = format!(
            "SELECT uid FROM outgoing WHERE status = 1 AND hop = '{}' LIMIT 20",
            connection.hop
        );
        for id in from.ids(&ready) {
            let sent = &self.sent[usize::try_from(id).expect("a number")];
            if sent.may_be_lost || self.shape.restores {
                continue;
            }
            let visible = to.count("messages WHERE 1", id) + to.count("arrived WHERE 1", id);
            let dead = to.count("dead_letters WHERE 1", id);
            if visible + dead > 0 {
                return Err(format!("a message is on both sides: {id}"));
            }
        }
        let confirmed = format!(
            "SELECT uid FROM outgoing WHERE status = 3 AND hop = '{}' ORDER BY id DESC LIMIT 20",
            connection.hop
        );
        for id in from.ids(&confirmed) {
            if !self.shape.restores && to.count("inbound WHERE 1", id) > 0 {
                return Err(format!("a message counts as visible and is not: {id}"));
            }
        }
        Ok(())
    }

    /// Each message was handled once, or is a dead letter for a reason.
    pub(super) fn check_end(&mut self) -> Result<(), String> {
        for (number, machine) in self.machines.iter().enumerate() {
            for (sender, name) in machine.held() {
                // A file from before the first connection knows nothing of it.
                if self.machines[sender].knows(&name) {
                    return Err(format!("a message stays invisible: at {number} as {name}"));
                }
            }
            let waiting = machine.ids("SELECT uid FROM outgoing WHERE status IN (1, 2)");
            if !waiting.is_empty() {
                return Err(format!(
                    "a message is not handed over: {waiting:?} at {number}"
                ));
            }
            let unhandled = machine.ids("SELECT uid FROM messages");
            if !unhandled.is_empty() {
                return Err(format!(
                    "a consumer was not woken: {unhandled:?} at {number}"
                ));
            }
        }
        for id in 0..self.sent.len() {
            self.check_message(id)?;
        }
        Ok(())
    }

    pub(super) fn check_message(&mut self, index: usize) -> Result<(), String> {
        let id = index as Id;
        let message = &self.sent[index];
        let handled = self.machines[message.to].received.contains(&id);
        let letters = self
            .machines
            .iter()
            .filter_map(|machine| machine.dead_letter(id));
        let letters: Vec<String> = letters.collect();
        if handled && !letters.is_empty() && !self.shape.restores {
            return Err(format!(
                "a handled message is a dead letter: {id} {letters:?}"
            ));
        }
        if handled || message.may_be_lost {
            self.totals.passed_on += u64::from(self.shape.is_routed(message.from, message.to));
            return Ok(());
        }
        let Some(reason) = letters.first() else {
            return Err(format!("a message is lost: {id}"));
        };
        self.totals.dead += 1;
        let expected = (message.queue == "missing" && reason.contains("does not exist"))
            || (self.shape.is_loop(message.from, message.to) && reason.contains("loop"))
            || (self.shape.max_age < DAY && reason.contains("age limit"));
        match expected {
            true => Ok(()),
            false => Err(format!(
                "a message is a dead letter without a cause: {reason} {id}"
            )),
        }
    }
}
