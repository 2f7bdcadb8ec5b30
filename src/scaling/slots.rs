//! Slots that several queues share: whose turn it is to have a dequeue task at work.
//!
//! A slot goes to the queue that holds the fewest, and among those to the one that has waited
//! longest. So a queue that never runs dry cannot starve another one: whoever holds more than a
//! waiting queue gives one back between two batches. A plain structure, locked by its owner.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// One request for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(pub(crate) u64);

/// Who holds a slot, and who waits for one. A call costs the logarithm of the requests that wait.
#[derive(Debug)]
pub(crate) struct Slots {
    total: usize,
    used: usize,
    asked: u64,
    /// Queues that hold a slot or wait for one.
    queues: HashMap<u64, Queue>,
    /// Where each request waits: its queue, and its number in the order in which they came.
    waiting: HashMap<Ticket, (u64, u64)>,
    /// The queues with a request, the one whose turn it is first.
    line: BTreeSet<Turn>,
}

/// What one queue holds and waits for.
#[derive(Debug, Default)]
struct Queue {
    held: usize,
    /// Its requests, by their numbers.
    requests: BTreeMap<u64, Ticket>,
}

/// A queue's place in the line: by what it holds, then by its oldest request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    held: usize,
    oldest: u64,
    queue: u64,
}

impl Queue {
    fn turn(&self, queue: u64) -> Option<Turn> {
        let (oldest, _) = self.requests.first_key_value()?;
        Some(Turn {
            held: self.held,
            oldest: *oldest,
            queue,
        })
    }
}

impl Slots {
    /// Makes `total` slots; 0 counts as 1.
    pub(crate) fn new(total: usize) -> Self {
        Self {
            total: total.max(1),
            used: 0,
            asked: 0,
            queues: HashMap::new(),
            waiting: HashMap::new(),
            line: BTreeSet::new(),
        }
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Joins the line.
    pub(crate) fn ask(&mut self, ticket: Ticket, queue: u64) {
        let number = self.asked;
        self.asked += 1;
        self.waiting.insert(ticket, (queue, number));
        self.change(queue, |queue| {
            queue.requests.insert(number, ticket);
        });
    }

    /// Leaves the line; returns whether it was still there.
    pub(crate) fn withdraw(&mut self, ticket: Ticket) -> bool {
        let Some((queue, number)) = self.waiting.remove(&ticket) else {
            return false;
        };
        self.change(queue, |queue| {
            queue.requests.remove(&number);
        });
        true
    }

    /// Gives the next slot, where one is free and somebody waits.
    pub(crate) fn grant(&mut self) -> Option<Ticket> {
        if self.used >= self.total {
            return None;
        }
        let next = *self.line.first()?;
        let ticket = self.change(next.queue, |queue| {
            queue.held += 1;
            queue.requests.remove(&next.oldest)
        })?;
        self.waiting.remove(&ticket);
        self.used += 1;
        Some(ticket)
    }

    /// Takes back a slot that the queue held.
    pub(crate) fn give_back(&mut self, queue: u64) {
        self.used -= 1;
        self.change(queue, |queue| queue.held = queue.held.saturating_sub(1));
    }

    /// Returns whether a task of this queue is to give its slot back between two batches: another
    /// queue waits that would still hold no more than this queue is left with, or that holds none.
    pub(crate) fn should_yield(&self, queue: u64) -> bool {
        if self.used < self.total {
            return false;
        }
        let own = self.queues.get(&queue).map_or(0, |queue| queue.held);
        // The one that holds the fewest is first.
        let other = self.line.iter().find(|turn| turn.queue != queue);
        other.is_some_and(|turn| turn.held == 0 || turn.held + 1 < own)
    }

    /// Changes a queue, and its place in the line.
    fn change<T>(&mut self, number: u64, change: impl FnOnce(&mut Queue) -> T) -> T {
        let queue = self.queues.entry(number).or_default();
        if let Some(turn) = queue.turn(number) {
            self.line.remove(&turn);
        }
        let changed = change(queue);
        match queue.turn(number) {
            Some(turn) => {
                self.line.insert(turn);
            }
            None if queue.held == 0 => {
                self.queues.remove(&number);
            }
            None => {}
        }
        changed
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

    /// The rule as it is said above, over all requests.
    #[derive(Default)]
    struct Plain {
        held: BTreeMap<u64, usize>,
        line: Vec<(Ticket, u64)>,
    }

    impl Plain {
        fn held(&self, queue: u64) -> usize {
            self.held.get(&queue).copied().unwrap_or_default()
        }

        fn grant(&mut self, total: usize) -> Option<Ticket> {
            if self.held.values().sum::<usize>() >= total {
                return None;
            }
            let places = 0..self.line.len();
            let next = places.min_by_key(|at| (self.held(self.line[*at].1), *at))?;
            let (ticket, queue) = self.line.remove(next);
            *self.held.entry(queue).or_default() += 1;
            Some(ticket)
        }

        fn should_yield(&self, queue: u64, total: usize) -> bool {
            let others = self.line.iter().filter(|(_, other)| *other != queue);
            let mut held = others.map(|(_, other)| self.held(*other));
            self.held.values().sum::<usize>() >= total
                && held.any(|held| held == 0 || held + 1 < self.held(queue))
        }
    }

    #[test]
    fn every_grant_is_what_the_plain_rule_gives() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let total = rng.usize(1..6);
            let (mut slots, mut plain) = (Slots::new(total), Plain::default());
            for ticket in 0..300 {
                let (ticket, queue) = (Ticket(ticket), rng.u64(..8));
                match rng.u32(..4) {
                    0 | 1 => {
                        slots.ask(ticket, queue);
                        plain.line.push((ticket, queue));
                    }
                    2 if plain.held(queue) > 0 => {
                        slots.give_back(queue);
                        *plain.held.get_mut(&queue).expect("held") -= 1;
                    }
                    _ => {
                        let other = Ticket(rng.u64(..=ticket.0));
                        let was = plain.line.iter().position(|(one, _)| *one == other);
                        if let Some(at) = was {
                            plain.line.remove(at);
                        }
                        assert_eq!(slots.withdraw(other), was.is_some());
                    }
                }
                assert_eq!(slots.grant(), plain.grant(total), "seed {seed}");
                let asked = (0..8).map(|queue| slots.should_yield(queue));
                let told = (0..8).map(|queue| plain.should_yield(queue, total));
                assert!(asked.eq(told), "seed {seed}");
            }
        }
    }

    #[test]
    fn nothing_is_left_of_queues_that_neither_hold_nor_wait() {
        let mut slots = Slots::new(2);
        for number in 0..1_000 {
            slots.ask(Ticket(number), number);
        }
        let mut served = 0;
        while let Some(Ticket(queue)) = slots.grant() {
            slots.give_back(queue);
            served += 1;
        }
        assert_eq!(served, 1_000);
        assert!(slots.queues.is_empty() && slots.waiting.is_empty() && slots.line.is_empty());
    }
}
