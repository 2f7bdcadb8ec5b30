//! The events of a world, in the order of their time.

use std::collections::BTreeMap;

/// Events of one time stay in the order in which they were added.
#[derive(Debug)]
pub(super) struct Schedule<T, E> {
    events: BTreeMap<(T, u64), E>,
    added: u64,
}

/// An event that was taken.
#[derive(Debug)]
pub(super) struct Scheduled<T, E> {
    pub(super) at: T,
    number: u64,
    pub(super) event: E,
}

impl<T, E> Default for Schedule<T, E> {
    fn default() -> Self {
        Self {
            events: BTreeMap::new(),
            added: 0,
        }
    }
}

impl<T: Copy + Ord, E> Schedule<T, E> {
    pub(super) fn add(&mut self, at: T, event: E) {
        self.added += 1;
        self.events.insert((at, self.added), event);
    }

    pub(super) fn next_at(&self) -> Option<T> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the next event that happens until then.
    pub(super) fn take_until(&mut self, end: T) -> Option<Scheduled<T, E>> {
        let first = self
            .events
            .first_entry()
            .filter(|first| first.key().0 <= end)?;
        let ((at, number), event) = first.remove_entry();
        Some(Scheduled { at, number, event })
    }

    /// Puts an event off. It keeps its place among the events of that time.
    pub(super) fn put_off(&mut self, scheduled: Scheduled<T, E>, until: T) {
        self.events
            .insert((until, scheduled.number), scheduled.event);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (T, &E)> {
        self.events.iter().map(|((at, _), event)| (*at, event))
    }
}
