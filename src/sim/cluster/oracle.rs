//! What the model knows of each message: who must look at its queue, and since when.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::world::World;
use crate::{base::clock::Tick, sim::queue::MessageId, types::GroupName};

/// The messages whose wake-ups are not complete.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    pub(super) open: BTreeMap<MessageId, Note>,
    /// The notifications of each queue, in all relays together.
    pub(super) notified: BTreeMap<usize, Sums>,
    /// When a cause of the queue with this hash was last counted anywhere.
    pub(super) caused_at: BTreeMap<u64, Tick>,
}

/// One message.
#[derive(Debug)]
pub(super) struct Note {
    pub(super) queue: usize,
    /// From then on a look at the queue finds it.
    pub(super) visible_at: Tick,
    pub(super) promise: Option<Promise>,
    /// Listeners outside of groups, and groups, that have not looked since.
    pub(super) listeners: BTreeSet<usize>,
    pub(super) groups: BTreeSet<GroupName>,
}

/// The OK that a publisher got.
#[derive(Debug, Clone, Copy)]
pub(super) struct Promise {
    /// When the wake-up is due at the latest: the time of the OK, or of a delayed notification.
    pub(super) due: Tick,
    pub(super) relay: usize,
    pub(super) life: u64,
    /// Only this relay knows of the notification, until it is due.
    pub(super) delayed: bool,
}

/// Sums of notifications.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) notifications: u64,
    pub(super) payload_size: u64,
    pub(super) messages: u64,
}

/// A relay is missing when four own heartbeats have returned since its last message.
const MISSING: Duration = Duration::from_millis(3_500);

impl World {
    /// A message is put: each listener and each group of the queue must look at it.
    pub(super) fn expect_looks(&mut self, message: MessageId) {
        let (queue, visible_at) = {
            let message = &self.queues.messages[message];
            (message.queue, message.visible_at)
        };
        let (mut listeners, mut groups) = (BTreeSet::new(), BTreeSet::new());
        for number in 0..self.listeners.len() {
            if self.wants(number, queue) {
                match &self.plan.listeners[number].group {
                    Some(group) => _ = groups.insert(group.clone()),
                    None => _ = listeners.insert(number),
                }
            }
        }
        let note = Note {
            queue,
            visible_at,
            promise: None,
            listeners,
            groups,
        };
        self.oracle.open.insert(message, note);
    }

    /// A listener has issued a get.
    pub(super) fn looked(&mut self, number: usize, queue: usize) {
        let now = self.now;
        let group = self.plan.listeners[number].group.clone();
        if let Some(group) = &group {
            self.group_looked(number, group, queue);
        }
        for note in self.oracle.open.values_mut() {
            if note.queue != queue || note.visible_at > now {
                continue;
            }
            match &group {
                Some(group) => _ = note.groups.remove(group),
                None => _ = note.listeners.remove(&number),
            }
        }
        let done = |note: &Note| {
            note.listeners.is_empty() && note.groups.is_empty() && note.promise.is_some()
        };
        self.oracle.open.retain(|_, note| !done(note));
    }

    /// A relay has answered OK to the notification of a message.
    pub(super) fn promised(&mut self, message: MessageId, promise: Promise) {
        if let Some(note) = self.oracle.open.get_mut(&message) {
            note.promise.get_or_insert(promise);
        }
    }

    /// A relay has ended: its delayed notifications are gone with it.
    pub(super) fn forget_delayed_of(&mut self, relay: usize, life: u64) {
        let of_it = |one: Promise| one.delayed && (one.relay, one.life) == (relay, life);
        let lost = self
            .oracle
            .open
            .extract_if(.., |_, note| note.promise.is_some_and(of_it));
        self.excused.extend(lost.map(|(message, _)| message));
    }

    /// Limit 2 of the promise: a relay answers and ends, and another relay that did not know it, or that
    /// counted it as missing, has heard nothing because of a break that does not isolate it.
    pub(super) fn excuse_unheard(&mut self, relay: usize) {
        let Some(run) = &self.relays[relay].run else {
            return;
        };
        let unheard = (0..self.relays.len()).any(|other| {
            let (now, run_of_other) = (self.local(other), self.relays[other].run.as_ref());
            let connected = run_of_other.is_some_and(|other| now < other.own.isolated_from());
            let heard = run.heard_by.get(&(other, self.relays[other].life));
            let knows = heard.is_some_and(|at| *at + MISSING > self.now);
            other != relay && connected && !knows
        });
        if unheard {
            self.excuse_promises_of(relay);
        }
    }

    /// What a relay has promised in its life is not promised any more.
    pub(super) fn excuse_promises_of(&mut self, relay: usize) {
        let life = self.relays[relay].life;
        let of_it = |one: Promise| (one.relay, one.life) == (relay, life);
        let open = &mut self.oracle.open;
        let lost = open.extract_if(.., |_, note| note.promise.is_some_and(of_it));
        self.excused.extend(lost.map(|(message, _)| message));
    }

    /// No message so far is promised any more.
    pub(super) fn excuse_all(&mut self) {
        let open = std::mem::take(&mut self.oracle.open);
        self.excused.extend(open.into_keys());
    }

    pub(super) fn wants(&self, number: usize, queue: usize) -> bool {
        let address = &self.queues.list[queue].address;
        let mut selectors = self.plan.listeners[number].selectors.iter();
        selectors.any(|selector| selector.matches(address))
    }
}
