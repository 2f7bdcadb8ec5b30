//! Which offered messages a receiver stores, refuses for ever, or postpones.
//!
//! Only reads the queue file. A refusal is decided by rules that repeating the offer does not
//! change; a postponement ends by itself.

use rusqlite::{OptionalExtension as _, Transaction, params};

use super::{
    frames::{Micros, OfferedMessage},
    inbound::is_known,
    outgoing::{Destination, size},
    receiver::{ReceiverSession, Verdict, no_route},
};
use crate::{base::fault::planted, queue::sqlite::limit};

/// Messages that are not confirmed for longer do not fill a queue: their sender is away. If it returns,
/// they may exceed the limit.
const ABSENT: Micros = 15_000_000;

impl ReceiverSession {
    /// Postpones a message that would overtake a refused one of its destination.
    pub(super) fn after_refusals(&self, destination: &Destination, verdict: Verdict) -> Verdict {
        if !matches!(verdict, Verdict::Store)
            || self.refused.is_empty()
            || planted!(RefusedOvertaken)
        {
            return verdict;
        }
        match self.refused.contains_key(destination) {
            true => Verdict::Postpone("an earlier message of the queue was refused".to_owned()),
            false => verdict,
        }
    }

    pub(super) fn verdict(
        &mut self,
        transaction: &Transaction<'_>,
        wall: Micros,
        sender: i64,
        message: &OfferedMessage,
        destination: &Destination,
    ) -> rusqlite::Result<Verdict> {
        if message.resume {
            self.postponed.remove(destination);
        }
        if self.postponed.contains(destination) {
            let reason = "an earlier message of the queue was postponed".to_owned();
            return Ok(Verdict::Postpone(reason));
        }
        // Before the search for its id: a message that has gone in a circle is known here.
        if let Some(reason) = self.circle(message) {
            return Ok(Verdict::Refuse(reason));
        }
        if is_known(transaction, sender, &message.uid)? {
            return Ok(Verdict::Known);
        }
        // Rules may be corrected.
        if let Some(reason) = self.rights.refusal(message) {
            return Ok(Verdict::Postpone(reason));
        }
        if message.body.len() > self.policy.max_body {
            return Ok(Verdict::Refuse(format!(
                "the body has {} bytes, and the limit is {}",
                message.body.len(),
                self.policy.max_body
            )));
        }
        match message.authority.is_empty() {
            true => self.verdict_here(transaction, wall, message),
            false => self.verdict_elsewhere(transaction, wall, message),
        }
    }

    /// The message is for a queue of this machine.
    fn verdict_here(
        &mut self,
        transaction: &Transaction<'_>,
        wall: Micros,
        message: &OfferedMessage,
    ) -> rusqlite::Result<Verdict> {
        let Some(depth) = self.depth(transaction, wall, &message.queue)? else {
            let reason = format!("queue `{}` does not exist", message.queue);
            return Ok(Verdict::Refuse(reason));
        };
        let max = self.policy.max_queue;
        if depth >= max {
            let queue = &message.queue;
            let reason = format!("queue `{queue}` is full: its limit is {max} messages");
            return Ok(Verdict::Postpone(reason));
        }
        if let Some(depth) = self.depths.get_mut(&message.queue) {
            *depth += 1;
        }
        Ok(Verdict::Store)
    }

    /// Returns the messages that a queue has, and those that are stored and not yet visible; `None`
    /// if there is no such queue. Without a limit, 0.
    fn depth(
        &mut self,
        transaction: &Transaction<'_>,
        wall: Micros,
        queue: &str,
    ) -> rusqlite::Result<Option<u64>> {
        if let Some(depth) = self.depths.get(queue) {
            return Ok(Some(*depth));
        }
        let select = "SELECT max(messages, 0) FROM queues WHERE name = ?1";
        let visible: Option<usize> = transaction
            .prepare_cached(select)?
            .query_row([queue], |row| size(row, 0))
            .optional()?;
        let Some(visible) = visible else {
            return Ok(None);
        };
        let mut depth = 0;
        if self.policy.max_queue != u64::MAX {
            let arriving = "SELECT count(*) FROM inbound
                            WHERE authority = '' AND queue = ?1 AND abs(arrived_at - ?2) < ?3";
            let arriving: usize = transaction
                .prepare_cached(arriving)?
                .query_row(params![queue, wall, ABSENT], |row| size(row, 0))?;
            depth = (visible + arriving) as u64;
        }
        self.depths.insert(queue.to_owned(), depth);
        Ok(Some(depth))
    }

    /// The message passes through this machine.
    fn verdict_elsewhere(
        &mut self,
        transaction: &Transaction<'_>,
        wall: Micros,
        message: &OfferedMessage,
    ) -> rusqlite::Result<Verdict> {
        let Some(hop) = self.policy.next_hop(&message.authority) else {
            return Ok(Verdict::Refuse(no_route(&message.authority)));
        };
        if self.policy.max_outgoing == u64::MAX {
            return Ok(Verdict::Store);
        }
        let waiting = match self.waiting.get(hop) {
            Some(waiting) => *waiting,
            None => {
                // Messages that are not yet confirmed may go to another next machine: they are few.
                let sql = "SELECT (SELECT count(*) FROM
                               (SELECT 1 FROM outgoing WHERE hop = ?1 AND status = 1 LIMIT ?2))
                             + (SELECT count(*) FROM inbound
                                WHERE authority = ?3 AND abs(arrived_at - ?4) < ?5)";
                let most = limit(usize::try_from(self.policy.max_outgoing).unwrap_or(usize::MAX));
                let values = params![hop, most, message.authority, wall, ABSENT];
                transaction
                    .prepare_cached(sql)?
                    .query_row(values, |row| size(row, 0))? as u64
            }
        };
        let max = self.policy.max_outgoing;
        let has_room = waiting < max;
        let full = format!("{max} messages wait for `{hop}`, which is the limit");
        let waiting = waiting + u64::from(has_room);
        self.waiting.insert(hop.to_owned(), waiting);
        Ok(match has_room {
            true => Verdict::Store,
            false => Verdict::Postpone(full),
        })
    }

    /// Returns why a message has passed too many machines.
    fn circle(&self, message: &OfferedMessage) -> Option<String> {
        let own = &self.policy.own;
        let mut passed = message.visited.chunks(own.len());
        if passed.any(|file| file == own) && !planted!(LoopAccepted) {
            return Some(format!(
                "the routes to `{}` form a loop, or two machines have copies of one queue file",
                message.authority
            ));
        }
        let limit = self.policy.max_hops;
        (message.visited.len() / own.len() > limit)
            .then(|| format!("it has passed {limit} machines, which is the limit"))
    }
}
