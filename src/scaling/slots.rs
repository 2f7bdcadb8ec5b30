//! Slots that several queues share: whose turn it is to have a dequeue task at work.
//!
//! A slot goes to the queue that holds the fewest, and among those to the one that has waited
//! longest. So a queue that never runs dry cannot starve another one: whoever holds more than a
//! waiting queue gives one back between two batches. A plain structure, locked by its owner.

use std::collections::{BTreeMap, VecDeque};

/// One request for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(pub(crate) u64);

/// Who holds a slot, and who waits for one.
#[derive(Debug)]
pub(crate) struct Slots {
    total: usize,
    used: usize,
    /// Slots that each queue holds; none that holds none.
    held: BTreeMap<u64, usize>,
    /// Requests in the order in which they came.
    line: VecDeque<(Ticket, u64)>,
}

impl Slots {
    /// Makes `total` slots; 0 counts as 1.
    pub(crate) fn new(total: usize) -> Self {
        Self {
            total: total.max(1),
            used: 0,
            held: BTreeMap::new(),
            line: VecDeque::new(),
        }
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Joins the line.
    pub(crate) fn ask(&mut self, ticket: Ticket, queue: u64) {
        self.line.push_back((ticket, queue));
    }

    /// Leaves the line; returns whether it was still there.
    pub(crate) fn withdraw(&mut self, ticket: Ticket) -> bool {
        let waiting = self.line.len();
        self.line.retain(|(other, _)| *other != ticket);
        self.line.len() < waiting
    }

    /// Gives the next slot, where one is free and somebody waits.
    pub(crate) fn grant(&mut self) -> Option<Ticket> {
        if self.used >= self.total {
            return None;
        }
        let held = |queue: &u64| self.held.get(queue).copied().unwrap_or_default();
        let waiting = self.line.iter().enumerate();
        let (next, _) = waiting.min_by_key(|(place, (_, queue))| (held(queue), *place))?;
        let (ticket, queue) = self.line.remove(next)?;
        self.used += 1;
        *self.held.entry(queue).or_default() += 1;
        Some(ticket)
    }

    /// Takes back a slot that the queue held.
    pub(crate) fn give_back(&mut self, queue: u64) {
        self.used -= 1;
        if let Some(held) = self.held.get_mut(&queue) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&queue);
            }
        }
    }

    /// Returns whether a task of this queue is to give its slot back between two batches: somebody
    /// waits who would still hold no more than this queue is left with, or who holds none.
    pub(crate) fn should_yield(&self, queue: u64) -> bool {
        let held = |queue: u64| self.held.get(&queue).copied().unwrap_or_default();
        let own = held(queue);
        self.used >= self.total
            && self
                .line
                .iter()
                .any(|(_, other)| *other != queue && (held(*other) + 1 < own || held(*other) == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_slot_goes_to_who_holds_the_fewest_and_waits_longest() {
        let mut slots = Slots::new(3);
        for (ticket, queue) in [(1, 7), (2, 7), (3, 8), (4, 9), (5, 8)] {
            slots.ask(Ticket(ticket), queue);
        }
        let granted: Vec<_> = std::iter::from_fn(|| slots.grant()).map(|t| t.0).collect();
        assert_eq!(granted, [1, 3, 4], "one for each queue, then none is free");
        slots.give_back(9);
        assert_eq!(slots.grant(), Some(Ticket(2)));
        assert_eq!(slots.grant(), None);
        assert!(slots.withdraw(Ticket(5)), "it was waiting");
        assert!(!slots.withdraw(Ticket(2)), "it was served");
        slots.give_back(7);
        assert_eq!(slots.grant(), None, "nobody waits");
    }

    #[test]
    fn whoever_holds_more_than_its_share_gives_back_between_two_batches() {
        let mut slots = Slots::new(2);
        for ticket in 1..=3 {
            slots.ask(Ticket(ticket), 7);
        }
        while slots.grant().is_some() {}
        assert!(!slots.should_yield(7), "nobody else waits");
        slots.ask(Ticket(4), 8);
        assert!(slots.should_yield(7));
        slots.give_back(7);
        assert_eq!(slots.grant(), Some(Ticket(4)));
        assert!(!slots.should_yield(7) && !slots.should_yield(8), "even");
        slots.ask(Ticket(5), 9);
        assert!(slots.should_yield(7), "one who holds none takes turns");
    }

    #[test]
    fn zero_slots_count_as_one() {
        let mut slots = Slots::new(0);
        slots.ask(Ticket(1), 7);
        assert_eq!((slots.total(), slots.grant()), (1, Some(Ticket(1))));
    }
}
