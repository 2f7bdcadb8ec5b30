//! What a listener remembers of a message from one get to the next.
//!
//! A queue counts gets. Not each of them is a try: the body may have been away with its blob store,
//! or the handler put the message off. Those are noted here, and so is who was rejected in company.
//! Bounded: what was not noted anew for long is forgotten, and such a message has fewer tries. Knows
//! neither queue nor time.

use std::collections::HashMap;

use crate::queue::{Message, MessageId};

/// Notes on messages by their ids.
#[derive(Debug, Default)]
pub(super) struct Notes {
    young: HashMap<MessageId, Note>,
    /// Those that were young when there were too many.
    old: HashMap<MessageId, Note>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Note {
    /// Gets that were no try.
    spared: u32,
    /// It was in a batch that was rejected.
    suspect: bool,
}

/// Ids of a generation; there are two. With ids of Azure some 3 MiB in all, and more messages than
/// come round within the five minutes that one is put off.
const GENERATION: usize = 16_384;

impl Notes {
    /// Returns how often a message was tried, this time included.
    pub(super) fn tries(&self, message: &Message) -> u32 {
        let spared = self.of(&message.id).spared;
        message.dequeue_count.saturating_sub(spared).max(1)
    }

    /// The get of a message was no try.
    pub(super) fn spare(&mut self, id: &MessageId) {
        self.change(id, |note| note.spared = note.spared.saturating_add(1));
    }

    /// A message was in a batch that was rejected: it is tried by itself from now on.
    pub(super) fn suspect(&mut self, id: &MessageId) {
        self.change(id, |note| note.suspect = true);
    }

    pub(super) fn is_suspect(&self, id: &MessageId) -> bool {
        self.of(id).suspect
    }

    /// A message is gone.
    pub(super) fn forget(&mut self, id: &MessageId) {
        self.young.remove(id);
        self.old.remove(id);
    }

    fn of(&self, id: &MessageId) -> Note {
        let note = self.young.get(id).or_else(|| self.old.get(id));
        note.copied().unwrap_or_default()
    }

    fn change(&mut self, id: &MessageId, change: impl FnOnce(&mut Note)) {
        let mut note = self.of(id);
        change(&mut note);
        self.forget(id);
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id.clone(), note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_noted_anew_for_long_is_forgotten_and_the_rest_kept() {
        let mut notes = Notes::default();
        let id = |number: usize| MessageId::new(&number.to_string());
        for number in 0..10 * GENERATION {
            notes.spare(&id(number));
            notes.spare(&id(0));
        }
        assert!(notes.young.len() + notes.old.len() <= 2 * GENERATION);
        assert_eq!(notes.of(&id(0)).spared as usize, 10 * GENERATION + 1);
        assert_eq!(notes.of(&id(1)).spared, 0);
        assert_eq!(notes.of(&id(10 * GENERATION - 1)).spared, 1);
        notes.forget(&id(0));
        assert_eq!(notes.of(&id(0)).spared, 0);
    }
}
