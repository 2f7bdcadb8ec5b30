//! The model queues: messages that are hidden while somebody holds them, and shown again later.

use std::collections::BTreeMap;

use crate::{clock::Tick, words::QueueAddress};

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
    /// When it was got last.
    pub(super) got_at: Tick,
    pub(super) visible_at: Tick,
    /// How often it was got; also the receipt of whoever got it last.
    pub(super) gets: u64,
    /// The listener, and its life, that got it last and has neither deleted nor released it.
    pub(super) holder: Option<(usize, u64)>,
    pub(super) announced: Announced,
    pub(super) done: bool,
}

/// Who owes a wake-up for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Announced {
    /// This publisher (and its life): it has not reached the relay yet.
    Publisher(usize, u64),
    /// The relay, from then on.
    Due(Tick),
    /// This listener (and its life), which has still to report it.
    Listener(usize, u64),
    /// Nobody: whoever knew of it died. The sentinel's bound, which is not simulated yet.
    Nobody,
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
        message.holder = Some(by);
        Some((id, message.gets))
    }

    /// Deletes a message, where the receipt is still the newest.
    pub(super) fn delete(&mut self, id: MessageId, receipt: u64) {
        let message = &mut self.messages[id];
        if message.gets != receipt || message.done {
            return;
        }
        message.done = true;
        message.holder = None;
        self.list[message.queue]
            .messages
            .retain(|other| *other != id);
    }

    /// Shows a message again, where the receipt is still the newest; returns whether it was.
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
