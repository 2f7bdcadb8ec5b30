//! The receiver's side of a connection: stores offered messages, and makes them visible when the
//! sender has confirmed them.
//!
//! Each step runs in a transaction of the queue file, with the file's time. A message that is stored
//! twice cannot become visible twice: its id is known for a time (`arrived`). After an error
//! the session must be dropped with its connection. This module knows no socket.
//!
//! A refusal is decided by rules that repeating the offer does not change; a postponement ends by itself.

use std::collections::{HashMap, HashSet, VecDeque};

use rusqlite::{OptionalExtension as _, Transaction, params};

use super::{
    frames::{
        Accept, Arrival, FrameNumbers, Hello, Micros, OfferedMessage, ReceiverContent,
        ReceiverFrame, SenderContent, SenderFrame, Upto, Welcome, agreed_version,
    },
    inbound::{self, Confirmed, Stored, bury, is_known, pass_on, store},
    outgoing::{Destination, size},
    policy::{Policy, SenderRights},
};
use crate::{
    base::fault::planted,
    error::{Error, ErrorKind, Result},
    queue::sqlite::{
        checksum::checksum,
        limit,
        put::{count_put, note_unnotified},
    },
};

/// One connection from a sender.
#[derive(Debug)]
pub(crate) struct ReceiverSession {
    policy: Policy,
    rights: SenderRights,
    /// Random; distinguishes this connection from the sender's others.
    connection: [u8; 16],
    frames: FrameNumbers,
    /// The row in `senders`; `None` before Hello.
    sender: Option<i64>,
    /// The number of the last answered message.
    number: u64,
    /// The sender has not confirmed the messages of Welcome.
    holds: bool,
    /// The last row of the messages of Welcome.
    held_upto: Option<i64>,
    /// The numbers and rows of this connection's messages that are stored and not confirmed.
    stored: VecDeque<(u64, i64)>,
    /// The number up to which the sender has confirmed.
    confirmed: u64,
    /// Destinations of which a message was postponed: later ones must not overtake it.
    postponed: HashSet<(String, String)>,
    /// Destinations with the last number that was refused, until the sender confirms beyond it. If
    /// the refusal is lost, the message is offered again, and may be stored then: later ones must
    /// not overtake it.
    refused: HashMap<(String, String), u64>,
    /// Counted once for each offer: the ready messages for each next machine, and those that each
    /// queue has and will have.
    waiting: HashMap<String, u64>,
    depths: HashMap<String, u64>,
}

/// What happens to an offered message.
enum Verdict {
    Store,
    /// The file has it already: it comes from a restored copy of its sender.
    Known,
    /// For ever.
    Refuse(String),
    /// For now.
    Postpone(String),
}

/// Offered messages that are not confirmed: twice the window of a sender.
const UNCONFIRMED: u64 = 2_000;
/// Destinations that have postponed or refused messages.
const DESTINATIONS: usize = 10_000;

/// Messages that are not confirmed for longer do not fill a queue: their sender is away. If it returns,
/// they may exceed the limit.
const ABSENT: Micros = 15_000_000;
/// Another process connects with the same queue file while this one lives.
const OTHER_CONNECTION: &str = "the sender has opened another connection; if a copy of its queue \
    file is in use on another machine, run `reveille courier new-identity` there";

/// The outcome of a step: the inner error ends the connection.
type Step<T> = rusqlite::Result<Result<T>>;

impl ReceiverSession {
    /// Creates the session of a connection with a random id.
    pub(crate) fn new(connection: [u8; 16], policy: Policy) -> Self {
        Self {
            policy,
            rights: SenderRights::default(),
            connection,
            frames: FrameNumbers::default(),
            sender: None,
            number: 0,
            holds: false,
            held_upto: None,
            stored: VecDeque::new(),
            confirmed: 0,
            postponed: HashSet::new(),
            refused: HashMap::new(),
            waiting: HashMap::new(),
            depths: HashMap::new(),
        }
    }

    /// Sets who has opened the connection, with its present rights.
    pub(crate) fn set_rights(&mut self, rights: SenderRights) {
        self.rights = rights;
    }

    /// Handles a frame, and returns the answers to send when the transaction is durable.
    ///
    /// # Errors
    /// The inner error: the sender broke a rule, has opened another connection, or a frame is
    /// missing. The connection must end.
    pub(crate) fn on_frame(
        &mut self,
        transaction: &Transaction<'_>,
        now: Micros,
        wall: Micros,
        frame: SenderFrame,
    ) -> Step<Vec<ReceiverFrame>> {
        match self.frames.arrive(frame.frame) {
            Arrival::Next => {}
            Arrival::Repeated => return Ok(Ok(Vec::new())),
            Arrival::Gap if planted!(FrameGapAccepted) => {}
            Arrival::Gap => return Ok(Err(replaced("a frame of the hand-over is missing"))),
        }
        let answer = match (frame.content, self.sender) {
            (SenderContent::Hello(hello), None) => self
                .hello(transaction, now, wall, &hello)?
                .map(ReceiverContent::Welcome),
            (SenderContent::Offer(messages), Some(sender)) => {
                if !self.is_present(transaction, sender)? {
                    return Ok(Err(replaced(OTHER_CONNECTION)));
                }
                self.offer(transaction, wall, sender, messages)?
                    .map(ReceiverContent::Accept)
            }
            (SenderContent::Confirm(upto), Some(sender)) => {
                if !self.is_present(transaction, sender)? {
                    return Ok(Err(replaced(OTHER_CONNECTION)));
                }
                self.confirm(transaction, now, wall, sender, upto)?
                    .map(ReceiverContent::Visible)
            }
            _ => Err(Error::invalid(
                "frame",
                "must be Hello first, and only first",
            )),
        };
        Ok(answer.map(|content| vec![self.frames.number(content)]))
    }

    fn hello(
        &mut self,
        transaction: &Transaction<'_>,
        now: Micros,
        wall: Micros,
        hello: &Hello,
    ) -> Step<Welcome> {
        let version = match agreed_version(hello.least_version, hello.version) {
            Ok(version) => version,
            Err(error) => return Ok(Err(error)),
        };
        if hello.sender == self.policy.own {
            let rule = "is this machine itself, or has a copy of its queue file: check the \
                        destination or the route, or run `reveille courier new-identity` on the copy";
            return Ok(Err(Error::invalid("receiver", rule)));
        }
        if let Err(error) = self.rights.check_file(transaction, &hello.sender)? {
            return Ok(Err(error));
        }
        let present = "INSERT INTO senders
                         (file, authority, connection, name, connected_at, seen_at, principal)
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (file, authority) DO UPDATE
                       SET connection = excluded.connection, name = excluded.name,
                           connected_at = excluded.connected_at, seen_at = excluded.seen_at,
                           principal = coalesce(excluded.principal, principal)
                       RETURNING id";
        let values = params![
            hello.sender,
            hello.authority,
            self.connection,
            hello.name,
            wall,
            now,
            self.rights.principal
        ];
        let sender: i64 = transaction.query_row(present, values, |row| row.get(0))?;
        self.sender = Some(sender);
        let held = "SELECT id, uid FROM inbound WHERE sender = ?1 ORDER BY id";
        let mut held = transaction.prepare_cached(held)?;
        let held = held.query_map([sender], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let held: Vec<(i64, _)> = held.collect::<rusqlite::Result<_>>()?;
        self.held_upto = held.last().map(|(row, _)| *row);
        self.holds = !held.is_empty();
        let held = held.into_iter().map(|(_, uid)| uid).collect();
        Ok(Ok(Welcome {
            version,
            receiver: self.policy.own,
            held,
        }))
    }

    /// Returns whether this is still the sender's present connection.
    fn is_present(&self, transaction: &Transaction<'_>, sender: i64) -> rusqlite::Result<bool> {
        if planted!(OldConnectionAccepted) {
            return Ok(true);
        }
        let sql = "SELECT connection FROM senders WHERE id = ?1";
        let present: Option<[u8; 16]> = transaction
            .prepare_cached(sql)?
            .query_row([sender], |row| row.get(0))
            .optional()?;
        Ok(present == Some(self.connection))
    }

    fn offer(
        &mut self,
        transaction: &Transaction<'_>,
        wall: Micros,
        sender: i64,
        messages: Vec<OfferedMessage>,
    ) -> Step<Accept> {
        let mut accept = Accept::default();
        self.waiting.clear();
        self.depths.clear();
        for mut message in messages {
            if message.number != self.number + 1 {
                let rule = format_args!("must be {}, but is {}", self.number + 1, message.number);
                return Ok(Err(Error::invalid("number", rule)));
            }
            self.number = message.number;
            if let Err(error) = self.check_bounds() {
                return Ok(Err(error));
            }
            if checksum(&message.body) != message.checksum {
                // The sender has checked its own row.
                let rule = "does not fit the body, which was damaged on the way";
                return Ok(Err(Error::invalid("checksum", rule)));
            }
            // As the sender knows it: two names of this machine are two orders.
            let destination = (message.authority.clone(), message.queue.clone());
            if self.policy.is_own(&message.authority) {
                message.authority.clear();
            }
            let verdict = self.verdict(transaction, wall, sender, &message, &destination)?;
            match self.after_refusals(&destination, verdict) {
                Verdict::Store => {
                    let row = store(transaction, wall, sender, &message)?;
                    self.stored.push_back((message.number, row));
                }
                Verdict::Known => {}
                Verdict::Refuse(reason) => {
                    self.refused.insert(destination, message.number);
                    accept.refused.push((message.number, reason));
                }
                Verdict::Postpone(reason) => {
                    self.postponed.insert(destination);
                    accept.postponed.push((message.number, reason));
                }
            }
        }
        accept.upto = self.number;
        Ok(Ok(accept))
    }

    /// Postpones a message that would overtake a refused one of its destination.
    fn after_refusals(&self, destination: &Destination, verdict: Verdict) -> Verdict {
        if !matches!(verdict, Verdict::Store)
            || self.refused.is_empty()
            || planted!(RefusedOvertaken)
        {
            return verdict;
        }
        if self.refused.contains_key(destination) {
            Verdict::Postpone("an earlier message of the queue was refused".to_owned())
        } else {
            verdict
        }
    }

    fn verdict(
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
        if message.authority.is_empty() {
            self.verdict_here(transaction, wall, message)
        } else {
            self.verdict_elsewhere(transaction, wall, message)
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
        Ok(if has_room {
            Verdict::Store
        } else {
            Verdict::Postpone(full)
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

    /// Checks what a connection makes this machine keep.
    fn check_bounds(&self) -> Result<()> {
        if self.holds {
            let rule = "must not come before the confirmation of the messages of Welcome";
            return Err(Error::invalid("messages", rule));
        }
        if self.number - self.confirmed > UNCONFIRMED {
            let rule = format_args!("must be at most {UNCONFIRMED} before a confirmation");
            return Err(Error::invalid("messages", rule));
        }
        if self.postponed.len() + self.refused.len() > DESTINATIONS {
            let rule = format_args!("may have at most {DESTINATIONS} destinations that wait");
            return Err(Error::invalid("messages", rule));
        }
        Ok(())
    }

    /// Makes the confirmed messages visible, in the order of their offers.
    fn confirm(
        &mut self,
        transaction: &Transaction<'_>,
        now: Micros,
        wall: Micros,
        sender: i64,
        upto: Upto,
    ) -> Step<Upto> {
        if upto.number > self.number {
            let rule = format_args!("must be at most {}, but is {}", self.number, upto.number);
            return Ok(Err(Error::invalid("upto", rule)));
        }
        let seen = "UPDATE senders SET seen_at = ?2 WHERE id = ?1";
        transaction.prepare_cached(seen)?.execute([sender, now])?;
        self.confirmed = self.confirmed.max(upto.number);
        self.holds &= !upto.held;
        // The sender confirms after it has made dead letters of the refused ones.
        self.refused.retain(|_, number| *number > upto.number);
        let Some(confirmed) = self.confirmed_rows(sender, upto) else {
            return Ok(Ok(upto));
        };
        inbound::drop_known(transaction, confirmed)?;
        inbound::note_arrived(transaction, now, confirmed)?;
        let visible = inbound::make_visible(transaction, now, wall, confirmed)?;
        for (queue, messages, bytes) in visible {
            count_put(transaction, queue, messages)?;
            if !planted!(NotificationNotNoted) {
                note_unnotified(transaction, queue, 0, messages, bytes)?;
            }
        }
        for message in inbound::confirmed(transaction, confirmed)? {
            self.release(transaction, now, wall, &message)?;
            inbound::delete(transaction, &message)?;
        }
        Ok(Ok(upto))
    }

    /// Returns the rows that a frame confirms. Rows of a sender have the order of its offers.
    fn confirmed_rows(&mut self, sender: i64, upto: Upto) -> Option<Confirmed> {
        let held = self.held_upto.take_if(|_| upto.held);
        let count = self
            .stored
            .partition_point(|(number, _)| *number <= upto.number);
        let mut rows = held
            .into_iter()
            .chain(self.stored.drain(..count).map(|(_, row)| row));
        let first = rows.next()?;
        Some(Confirmed {
            sender,
            last: rows.last().unwrap_or(first),
            first: if held.is_some() { i64::MIN } else { first },
        })
    }

    /// Passes a message on, or makes a dead letter of it.
    fn release(
        &self,
        transaction: &Transaction<'_>,
        now: Micros,
        wall: Micros,
        message: &Stored,
    ) -> rusqlite::Result<()> {
        if message.authority.is_empty() {
            let reason = format!("queue `{}` does not exist", message.queue);
            return bury(transaction, wall, message, &reason);
        }
        // The routes may have changed since the message was stored.
        let Some(hop) = self.policy.next_hop(&message.authority) else {
            return bury(transaction, wall, message, &no_route(&message.authority));
        };
        let ends_at = self.policy.max_age.map(|age| now.saturating_add(age));
        pass_on(transaction, wall, message, hop, ends_at)
    }
}

#[cold]
fn replaced(reason: &str) -> Error {
    Error::new(ErrorKind::Conflict, format!("{reason}: connect again"))
}

fn no_route(authority: &str) -> String {
    format!("there is no route to `{authority}`")
}
