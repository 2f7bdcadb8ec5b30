//! The model queues: messages are hidden while a listener holds them, and become visible later.

use std::collections::BTreeMap;

use crate::{base::clock::Tick, types::QueueAddress};

/// Names a message.
pub(super) type MessageId = usize;

/// A queue and its messages that are not deleted.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) address: QueueAddress,
    pub(super) messages: Vec<MessageId>,
    /// The relay refuses notifications of it.
    pub(super) forbidden: bool,
}

/// One message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) queue: usize,
    pub(super) put_at: Tick,
    /// The time of its last get.
    pub(super) got_at: Tick,
    pub(super) visible_at: Tick,
    /// The number of its gets; also the receipt of the last one.
    pub(super) gets: u64,
    /// The listener, and its life, that got it last and has neither deleted nor released it.
    pub(super) holder: Option<(usize, u64)>,
    pub(super) announced: Announced,
    pub(super) done: bool,
    /// The relay's life that has counted it when it was visible; 0 before that.
    pub(super) counted_in: u64,
    /// A handler has handled it; it is in the poison queue.
    pub(super) handled: bool,
    pub(super) poisoned: bool,
    /// The queue's own count of gets.
    dequeue_count: u32,
    /// All of its gets; a receipt is the number of one, from 1 on.
    pub(super) history: Vec<Get>,
}

/// One get of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Get {
    /// The listener, and its life.
    by: (usize, u64),
    /// The dequeue count that came with it.
    pub(super) count: u32,
    pub(super) end: End,
}

/// How a get ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Its answer was lost, its listener has died, or it has not ended.
    Unknown,
    Failed,
    /// It had no try, and its listener knows: the queue must remove it from its count if it can.
    Untried,
    /// The queue cannot remove it, or was not reached.
    Untaken,
    /// The queue has removed it, and the listener does not know.
    Unheard,
}

/// The node that must cause a wake-up for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Announced {
    /// This publisher (and its life): it has not reached the relay yet.
    Publisher(usize, u64),
    /// The relay, from then on.
    Due(Tick),
    /// This listener (and its life), which has still to report it.
    Listener(usize, u64),
    /// No node: the node that knew of it crashed. Only the sentinel finds the message.
    Unannounced,
}

/// All queues.
#[derive(Debug, Default)]
pub(super) struct Queues {
    pub(super) list: Vec<Queue>,
    pub(super) messages: Vec<Message>,
    index: BTreeMap<QueueAddress, usize>,
}

impl Queues {
    pub(super) fn add(&mut self, address: QueueAddress, forbidden: bool) -> usize {
        self.index.insert(address.clone(), self.list.len());
        self.list.push(Queue {
            address,
            messages: Vec::new(),
            forbidden,
        });
        self.list.len() - 1
    }

    pub(super) fn find(&self, address: &QueueAddress) -> Option<usize> {
        self.index.get(address).copied()
    }

    pub(super) fn put(
        &mut self,
        queue: usize,
        now: Tick,
        visible_at: Tick,
        by: Announced,
    ) -> MessageId {
        self.messages.push(Message {
            queue,
            put_at: now,
            got_at: now,
            visible_at,
            gets: 0,
            holder: None,
            announced: by,
            done: false,
            counted_in: 0,
            handled: false,
            poisoned: false,
            dequeue_count: 0,
            history: Vec::new(),
        });
        let id = self.messages.len() - 1;
        self.list[queue].messages.push(id);
        id
    }

    /// Gets the first visible message and hides it until `hidden_until`.
    pub(super) fn get(
        &mut self,
        queue: usize,
        by: (usize, u64),
        now: Tick,
        hidden_until: Tick,
    ) -> Option<(MessageId, u64)> {
        let visible = |id: &&MessageId| self.messages[**id].visible_at <= now;
        let id = *self.list[queue].messages.iter().find(visible)?;
        let message = &mut self.messages[id];
        message.visible_at = hidden_until;
        message.gets += 1;
        message.dequeue_count += 1;
        message.history.push(Get {
            by,
            count: message.dequeue_count,
            end: End::Unknown,
        });
        message.holder = Some(by);
        Some((id, message.gets))
    }

    /// Deletes a message, where the receipt is still the newest; returns whether it was.
    pub(super) fn delete(&mut self, id: MessageId, receipt: u64) -> bool {
        let message = &mut self.messages[id];
        if message.gets != receipt || message.done {
            return false;
        }
        message.done = true;
        message.holder = None;
        self.list[message.queue]
            .messages
            .retain(|other| *other != id);
        true
    }

    /// Removes a get from a message's count if the receipt is still the newest; returns whether it
    /// was.
    pub(super) fn take_back(&mut self, (id, receipt): (MessageId, u64)) -> bool {
        let message = &mut self.messages[id];
        let newest = message.gets == receipt && !message.done;
        message.dequeue_count -= u32::from(newest);
        newest
    }

    /// Records the end of a get.
    pub(super) fn ended(&mut self, (id, receipt): (MessageId, u64), end: End) {
        let number = usize::try_from(receipt).expect("few") - 1;
        self.messages[id].history[number].end = end;
    }

    /// Releases a message if the receipt is still the newest; returns whether it was.
    pub(super) fn release(&mut self, id: MessageId, receipt: u64, visible_at: Tick) -> bool {
        let message = &mut self.messages[id];
        if message.gets != receipt || message.done {
            return false;
        }
        message.visible_at = visible_at;
        message.holder = None;
        true
    }

    /// Returns the messages that are not deleted.
    pub(super) fn open(&self) -> impl Iterator<Item = MessageId> + '_ {
        self.list
            .iter()
            .flat_map(|queue| queue.messages.iter().copied())
    }
}

impl Message {
    pub(super) fn get(&self, receipt: u64) -> Get {
        self.history[usize::try_from(receipt).expect("few") - 1]
    }

    /// Returns how often its handler failed.
    pub(super) fn failed(&self) -> u32 {
        let failed = self.history.iter().filter(|get| get.end == End::Failed);
        u32::try_from(failed.count()).expect("few")
    }

    /// Returns how many of its gets, up to this one, a listener must count as attempts, and how
    /// many others the queue has removed from its count without the listener's knowledge.
    pub(super) fn attempts(&self, receipt: u64, by: (usize, u64)) -> (u32, u32) {
        let gets = &self.history[..usize::try_from(receipt).expect("few")];
        let counts = |get: &&Get| match get.end {
            End::Unknown | End::Failed => true,
            End::Untaken => get.by != by,
            End::Untried | End::Unheard => false,
        };
        let in_doubt = |get: &&Get| get.end == End::Unheard && get.by == by;
        let count = |some: usize| u32::try_from(some).expect("few");
        let (attempts, in_doubt) = (
            gets.iter().filter(counts).count(),
            gets.iter().filter(in_doubt).count(),
        );
        (count(attempts), count(in_doubt))
    }
}
