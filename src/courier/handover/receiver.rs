//! The receiver's side of a connection: stores offered messages, and makes them visible when the
//! sender has confirmed them.
//!
//! Each step runs in a transaction of the queue file, with the file's time. A message that is stored
//! twice cannot become visible twice: its id is known until its history is removed. After an error
//! the session must be dropped with its connection. This module knows no socket.

use std::collections::HashSet;

use rusqlite::{OptionalExtension as _, Transaction, params};

use super::{
    frames::{
        Accept, Arrival, FileId, FrameNumbers, Hello, OfferedMessage, ReceiverContent,
        ReceiverFrame, SenderContent, SenderFrame, Upto, VERSION, Welcome,
    },
    inbound::{Stored, bury, is_known, make_visible, note_unnotified, pass_on, store},
    policy::Policy,
};
use crate::{
    base::fault::{Fault, planted},
    error::{Error, ErrorKind, Result},
};

/// Microseconds of the file's clock.
type Micros = i64;

/// One connection from a sender.
#[derive(Debug)]
pub(crate) struct ReceiverSession {
    policy: Policy,
    fault: Fault,
    /// Random; distinguishes this connection from the sender's others.
    connection: [u8; 16],
    frames: FrameNumbers,
    /// `None` before Hello.
    sender: Option<FileId>,
    /// The number of the last answered message.
    number: u64,
    /// Destinations of which a message was postponed: later ones must not overtake it.
    postponed: HashSet<(String, String)>,
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

/// The outcome of a step: the inner error ends the connection.
type Step<T> = rusqlite::Result<Result<T>>;

impl ReceiverSession {
    /// Creates the session of a connection with a random id.
    pub(crate) fn new(connection: [u8; 16], policy: Policy, fault: Fault) -> Self {
        Self {
            policy,
            fault,
            connection,
            frames: FrameNumbers::default(),
            sender: None,
            number: 0,
            postponed: HashSet::new(),
        }
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
            Arrival::Gap if planted!(self.fault, FrameGapAccepted) => {}
            Arrival::Gap => return Ok(Err(replaced("a frame of the hand-over is missing"))),
        }
        let answer = match (frame.content, self.sender) {
            (SenderContent::Hello(hello), None) => self
                .hello(transaction, wall, &hello)?
                .map(ReceiverContent::Welcome),
            (SenderContent::Offer(messages), Some(sender)) => {
                if !self.is_present(transaction, sender)? {
                    return Ok(Err(replaced("the sender has opened another connection")));
                }
                self.offer(transaction, wall, sender, &messages)?
                    .map(ReceiverContent::Accept)
            }
            (SenderContent::Confirm(upto), Some(sender)) => {
                if !self.is_present(transaction, sender)? {
                    return Ok(Err(replaced("the sender has opened another connection")));
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
        wall: Micros,
        hello: &Hello,
    ) -> Step<Welcome> {
        if hello.version != VERSION {
            let rule = format_args!(
                "is {} and this machine knows {VERSION} only: use programs of one version",
                hello.version
            );
            return Ok(Err(Error::invalid("version", rule)));
        }
        if hello.sender == self.policy.own {
            let rule = "is this machine itself: check the destination or the route";
            return Ok(Err(Error::invalid("receiver", rule)));
        }
        self.sender = Some(hello.sender);
        let present = "INSERT INTO senders (sender, connection, name, connected_at)
                       VALUES (?1, ?2, ?3, ?4) ON CONFLICT (sender) DO UPDATE
                       SET connection = excluded.connection, name = excluded.name,
                           connected_at = excluded.connected_at";
        let values = params![hello.sender, self.connection, hello.name, wall];
        transaction.execute(present, values)?;
        // Numbers of an earlier connection mean nothing now.
        let unnumbered = "UPDATE inbound SET number = 0 WHERE sender = ?1";
        transaction.execute(unnumbered, [hello.sender])?;
        let held = "SELECT uid FROM inbound WHERE sender = ?1 ORDER BY id";
        let mut held = transaction.prepare_cached(held)?;
        let held = held.query_map([hello.sender], |row| row.get(0))?;
        Ok(Ok(Welcome {
            version: VERSION,
            receiver: self.policy.own,
            held: held.collect::<rusqlite::Result<_>>()?,
        }))
    }

    /// Returns whether this is still the sender's present connection.
    fn is_present(&self, transaction: &Transaction<'_>, sender: FileId) -> rusqlite::Result<bool> {
        if planted!(self.fault, OldConnectionAccepted) {
            return Ok(true);
        }
        let sql = "SELECT connection FROM senders WHERE sender = ?1";
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
        sender: FileId,
        messages: &[OfferedMessage],
    ) -> Step<Accept> {
        let mut accept = Accept::default();
        for message in messages {
            if message.number != self.number + 1 {
                let rule = format_args!("must be {}, but is {}", self.number + 1, message.number);
                return Ok(Err(Error::invalid("number", rule)));
            }
            self.number = message.number;
            match self.verdict(transaction, sender, message)? {
                Verdict::Store => {
                    store(transaction, wall, sender, message)?;
                    if planted!(self.fault, VisibleBeforeConfirmed) {
                        let upto = Upto {
                            number: self.number,
                            held: false,
                        };
                        drop(self.confirm(transaction, wall, wall, sender, upto)?);
                    }
                }
                Verdict::Known => {}
                Verdict::Refuse(reason) => accept.refused.push((message.number, reason)),
                Verdict::Postpone(reason) => {
                    let destination = (message.authority.clone(), message.queue.clone());
                    self.postponed.insert(destination);
                    accept.postponed.push((message.number, reason));
                }
            }
        }
        accept.upto = self.number;
        Ok(Ok(accept))
    }

    fn verdict(
        &mut self,
        transaction: &Transaction<'_>,
        sender: FileId,
        message: &OfferedMessage,
    ) -> rusqlite::Result<Verdict> {
        let destination = (message.authority.clone(), message.queue.clone());
        if message.resume {
            self.postponed.remove(&destination);
        }
        if self.postponed.contains(&destination) && !planted!(self.fault, PostponedOvertaken) {
            let reason = "an earlier message of the queue was postponed".to_owned();
            return Ok(Verdict::Postpone(reason));
        }
        // Before the search for its id: a message that has gone in a circle is known here.
        if let Some(reason) = self.circle(message) {
            return Ok(Verdict::Refuse(reason));
        }
        if is_known(transaction, &message.uid, self.fault)? {
            return Ok(Verdict::Known);
        }
        let held = "SELECT 1 FROM inbound WHERE sender = ?1 AND uid = ?2";
        if transaction
            .prepare_cached(held)?
            .exists(params![sender, message.uid])?
        {
            return Ok(Verdict::Known);
        }
        if message.body.len() > self.policy.max_body {
            return Ok(Verdict::Refuse(format!(
                "the body has {} bytes, and the limit is {}",
                message.body.len(),
                self.policy.max_body
            )));
        }
        if crc32fast::hash(&message.body) != message.checksum {
            let reason = "the checksum of the body does not match".to_owned();
            return Ok(Verdict::Postpone(reason));
        }
        match message.authority.is_empty() {
            true => self.verdict_here(transaction, message),
            false => self.verdict_elsewhere(transaction, message),
        }
    }

    /// The message is for a queue of this machine.
    fn verdict_here(
        &self,
        transaction: &Transaction<'_>,
        message: &OfferedMessage,
    ) -> rusqlite::Result<Verdict> {
        let select = "SELECT messages FROM queues WHERE name = ?1";
        let stored: Option<i64> = transaction
            .prepare_cached(select)?
            .query_row([&message.queue], |row| row.get(0))
            .optional()?;
        let Some(stored) = stored else {
            return Ok(Verdict::Refuse(format!(
                "queue `{}` does not exist",
                message.queue
            )));
        };
        if self.policy.max_queue == u64::MAX {
            return Ok(Verdict::Store);
        }
        let arriving = "SELECT count(*) FROM inbound WHERE authority = '' AND queue = ?1";
        let arriving: i64 = transaction
            .prepare_cached(arriving)?
            .query_row([&message.queue], |row| row.get(0))?;
        Ok(
            match (stored + arriving).unsigned_abs() < self.policy.max_queue {
                true => Verdict::Store,
                false => Verdict::Postpone(format!(
                    "queue `{}` is full: its limit is {} messages",
                    message.queue, self.policy.max_queue
                )),
            },
        )
    }

    /// The message passes through this machine.
    fn verdict_elsewhere(
        &self,
        transaction: &Transaction<'_>,
        message: &OfferedMessage,
    ) -> rusqlite::Result<Verdict> {
        if self.policy.next_hop(&message.authority).is_none() {
            return Ok(Verdict::Refuse(no_route(&message.authority)));
        }
        if self.policy.max_outgoing == u64::MAX {
            return Ok(Verdict::Store);
        }
        let waiting = "SELECT count(*) FROM outgoing WHERE status = 1";
        let waiting: i64 = transaction
            .prepare_cached(waiting)?
            .query_row([], |row| row.get(0))?;
        Ok(match waiting.unsigned_abs() < self.policy.max_outgoing {
            true => Verdict::Store,
            false => Verdict::Postpone("messages for other machines are at their limit".to_owned()),
        })
    }

    /// Returns why a message has passed too many machines.
    fn circle(&self, message: &OfferedMessage) -> Option<String> {
        let own = &self.policy.own;
        let mut passed = message.visited.chunks(own.len());
        if passed.any(|file| file == own) && !planted!(self.fault, LoopAccepted) {
            return Some(format!("the routes to `{}` form a loop", message.authority));
        }
        let limit = self.policy.max_hops;
        (message.visited.len() / own.len() > limit)
            .then(|| format!("it has passed {limit} machines, which is the limit"))
    }

    /// Makes the confirmed messages visible, in the order of their offers.
    fn confirm(
        &mut self,
        transaction: &Transaction<'_>,
        now: Micros,
        wall: Micros,
        sender: FileId,
        upto: Upto,
    ) -> Step<Upto> {
        if upto.number > self.number {
            let rule = format_args!("must be at most {}, but is {}", self.number, upto.number);
            return Ok(Err(Error::invalid("upto", rule)));
        }
        let sql = "SELECT id, uid, authority, queue, length(body) FROM inbound
                   WHERE sender = ?1 AND number <= ?2 AND (?3 OR number > 0) ORDER BY id";
        let number = i64::try_from(upto.number).unwrap_or(i64::MAX);
        let stored: Vec<Stored> = transaction
            .prepare_cached(sql)?
            .query_map(params![sender, number, upto.held], |row| {
                Ok(Stored {
                    row: row.get(0)?,
                    uid: row.get(1)?,
                    authority: row.get(2)?,
                    queue: row.get(3)?,
                    bytes: row.get(4)?,
                })
            })?
            .collect::<rusqlite::Result<_>>()?;
        for message in &stored {
            if !is_known(transaction, &message.uid, self.fault)? {
                self.release(transaction, now, wall, message)?;
            }
            let delete = "DELETE FROM inbound WHERE id = ?1";
            transaction.prepare_cached(delete)?.execute([message.row])?;
        }
        Ok(Ok(upto))
    }

    /// Makes a message visible in its queue, or passes it on.
    fn release(
        &self,
        transaction: &Transaction<'_>,
        now: Micros,
        wall: Micros,
        message: &Stored,
    ) -> rusqlite::Result<()> {
        if !message.authority.is_empty() {
            // The routes may have changed since the message was stored.
            let Some(hop) = self.policy.next_hop(&message.authority) else {
                return bury(transaction, wall, message, &no_route(&message.authority));
            };
            let ends_at = self.policy.max_age.map(|age| now.saturating_add(age));
            return pass_on(transaction, wall, message, hop, ends_at);
        }
        let queue = "SELECT id FROM queues WHERE name = ?1";
        let queue: Option<i64> = transaction
            .prepare_cached(queue)?
            .query_row([&message.queue], |row| row.get(0))
            .optional()?;
        let Some(queue) = queue else {
            let reason = format!("queue `{}` does not exist", message.queue);
            return bury(transaction, wall, message, &reason);
        };
        make_visible(transaction, now, wall, message.row, queue)?;
        if planted!(self.fault, NotificationNotNoted) {
            return Ok(());
        }
        note_unnotified(transaction, queue, 1, message.bytes)
    }
}

#[cold]
fn replaced(reason: &str) -> Error {
    Error::new(ErrorKind::Conflict, format!("{reason}: connect again"))
}

fn no_route(authority: &str) -> String {
    format!("there is no route to `{authority}`")
}
