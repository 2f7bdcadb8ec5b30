//! Slots for dequeue tasks that several queues share.
//!
//! A free slot goes to the queue that holds the fewest slots, and on a tie to the queue that waited
//! longest. So a queue that is never empty cannot starve another one: a queue that holds more than
//! a waiting queue gives a slot back between two batches. A plain structure, locked by its owner.

use std::collections::{BTreeSet, HashMap, VecDeque};

/// Identifies a waiting request for a slot: its queue, and its number in order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    queue: u64,
    number: u64,
}

/// The slots and the waiting requests, each with a `T`. A call costs the logarithm of the number of
/// waiting queues.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    total: usize,
    used: usize,
    next_number: u64,
    /// Queues that hold a slot or wait for one.
    queues: HashMap<u64, Queue<T>>,
    /// The queues with a waiting request; the next to be served is first.
    waiting: BTreeSet<Priority>,
}

/// The slots and the waiting requests of one queue.
#[derive(Debug)]
struct Queue<T> {
    held: usize,
    /// Waiting requests, by ascending number.
    requests: VecDeque<(u64, T)>,
}

/// The order in which waiting queues are served: fewest slots held, then oldest request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Priority {
    held: usize,
    oldest: u64,
    queue: u64,
}

impl<T> Queue<T> {
    fn priority(&self, queue: u64) -> Option<Priority> {
        let (oldest, _) = self.requests.front()?;
        Some(Priority {
            held: self.held,
            oldest: *oldest,
            queue,
        })
    }
}

impl<T> Slots<T> {
    /// Makes `total` slots; 0 counts as 1.
    pub(crate) fn new(total: usize) -> Self {
        Self {
            total: total.max(1),
            used: 0,
            next_number: 0,
            queues: HashMap::new(),
            waiting: BTreeSet::new(),
        }
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Takes a slot at once where one is free and no request waits.
    pub(crate) fn take(&mut self, queue: u64) -> bool {
        let free = self.used < self.total && self.waiting.is_empty();
        if free {
            self.used += 1;
            self.update(queue, |queue| queue.held += 1);
        }
        free
    }

    /// Adds a waiting request.
    pub(crate) fn enqueue(&mut self, queue: u64, request: T) -> Ticket {
        let number = self.next_number;
        self.next_number += 1;
        self.update(queue, |queue| queue.requests.push_back((number, request)));
        Ticket { queue, number }
    }

    /// Removes a waiting request; returns whether it was still waiting.
    pub(crate) fn withdraw(&mut self, ticket: Ticket) -> bool {
        self.update(ticket.queue, |queue| {
            let at = queue
                .requests
                .binary_search_by_key(&ticket.number, |(number, _)| *number);
            at.is_ok_and(|at| queue.requests.remove(at).is_some())
        })
    }

    /// Grants a free slot to the next waiting request.
    pub(crate) fn grant(&mut self) -> Option<T> {
        if self.used >= self.total {
            return None;
        }
        let next = *self.waiting.first()?;
        let (_, request) = self.update(next.queue, |queue| {
            queue.held += 1;
            queue.requests.pop_front()
        })?;
        self.used += 1;
        Some(request)
    }

    /// Takes back a slot that the queue held.
    pub(crate) fn give_back(&mut self, queue: u64) {
        self.used -= 1;
        self.update(queue, |queue| queue.held = queue.held.saturating_sub(1));
    }

    /// Returns whether a task of this queue must give its slot back between two batches: another
    /// queue waits that holds none, or that would then hold no more than this queue keeps.
    pub(crate) fn should_yield(&self, queue: u64) -> bool {
        if self.used < self.total {
            return false;
        }
        // The queue that holds the fewest slots is first.
        let other = self.waiting.iter().find(|priority| priority.queue != queue);
        let own = || self.queues.get(&queue).map_or(0, |queue| queue.held);
        other.is_some_and(|priority| priority.held == 0 || priority.held + 1 < own())
    }

    /// Changes a queue and updates its priority.
    fn update<R>(&mut self, number: u64, change: impl FnOnce(&mut Queue<T>) -> R) -> R {
        let queue = self.queues.entry(number).or_insert_with(|| Queue {
            held: 0,
            requests: VecDeque::new(),
        });
        let before = queue.priority(number);
        let changed = change(queue);
        let after = queue.priority(number);
        if after.is_none() && queue.held == 0 {
            self.queues.remove(&number);
        }
        if before != after {
            if let Some(priority) = before {
                self.waiting.remove(&priority);
            }
            self.waiting.extend(after);
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_free_slot_goes_to_the_queue_with_the_fewest_that_waited_longest() {
        let mut slots = Slots::new(3);
        let requests = [(1, 7), (2, 7), (3, 8), (4, 9), (5, 8)];
        let tickets = requests.map(|(request, queue)| slots.enqueue(queue, request));
        let granted: Vec<_> = std::iter::from_fn(|| slots.grant()).collect();
        assert_eq!(granted, [1, 3, 4], "one for each queue, then none is free");
        slots.give_back(9);
        assert_eq!(slots.grant(), Some(2));
        assert_eq!(slots.grant(), None);
        assert!(slots.withdraw(tickets[4]), "it was waiting");
        assert!(!slots.withdraw(tickets[1]), "it was served");
        slots.give_back(7);
        assert_eq!(slots.grant(), None, "no request waits");
    }

    #[test]
    fn a_queue_with_more_than_its_share_gives_back_between_two_batches() {
        let mut slots = Slots::new(2);
        for request in 1..=3 {
            slots.enqueue(7, request);
        }
        while slots.grant().is_some() {}
        assert!(!slots.should_yield(7), "no other queue waits");
        slots.enqueue(8, 4);
        assert!(slots.should_yield(7));
        slots.give_back(7);
        assert_eq!(slots.grant(), Some(4));
        assert!(!slots.should_yield(7) && !slots.should_yield(8), "even");
        slots.enqueue(9, 5);
        assert!(slots.should_yield(7), "a queue without a slot gets one");
    }

    #[test]
    fn zero_slots_count_as_one() {
        let mut slots = Slots::new(0);
        slots.enqueue(7, 1);
        assert_eq!((slots.total(), slots.grant()), (1, Some(1)));
    }

    /// The same rule, computed over all requests.
    #[derive(Default)]
    struct NaiveSlots {
        held: BTreeMap<u64, usize>,
        waiting: Vec<(usize, u64)>,
    }

    impl NaiveSlots {
        fn held(&self, queue: u64) -> usize {
            self.held.get(&queue).copied().unwrap_or_default()
        }

        fn grant(&mut self, total: usize) -> Option<usize> {
            if self.held.values().sum::<usize>() >= total {
                return None;
            }
            let places = 0..self.waiting.len();
            let next = places.min_by_key(|at| (self.held(self.waiting[*at].1), *at))?;
            let (request, queue) = self.waiting.remove(next);
            *self.held.entry(queue).or_default() += 1;
            Some(request)
        }

        fn should_yield(&self, queue: u64, total: usize) -> bool {
            let others = self.waiting.iter().filter(|(_, other)| *other != queue);
            let mut held = others.map(|(_, other)| self.held(*other));
            self.held.values().sum::<usize>() >= total
                && held.any(|held| held == 0 || held + 1 < self.held(queue))
        }
    }

    #[test]
    fn every_grant_follows_the_naive_rule() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let total = rng.usize(1..6);
            let (mut slots, mut naive) = (Slots::new(total), NaiveSlots::default());
            let mut tickets = Vec::new();
            for _ in 0..300 {
                let queue = rng.u64(..8);
                match rng.u32(..5) {
                    0 => {
                        naive.waiting.push((usize::MAX, queue));
                        let taken = naive.grant(total) == Some(usize::MAX);
                        naive.waiting.retain(|(request, _)| *request != usize::MAX);
                        assert_eq!(slots.take(queue), taken, "seed {seed}");
                    }
                    1 | 2 => {
                        naive.waiting.push((tickets.len(), queue));
                        tickets.push(slots.enqueue(queue, tickets.len()));
                    }
                    3 if naive.held(queue) > 0 => {
                        slots.give_back(queue);
                        *naive.held.get_mut(&queue).expect("held") -= 1;
                    }
                    _ if tickets.is_empty() => {}
                    _ => {
                        let other = rng.usize(..tickets.len());
                        let was = naive.waiting.iter().position(|(one, _)| *one == other);
                        if let Some(at) = was {
                            naive.waiting.remove(at);
                        }
                        assert_eq!(slots.withdraw(tickets[other]), was.is_some());
                    }
                }
                assert_eq!(slots.grant(), naive.grant(total), "seed {seed}");
                let next_number = (0..8).map(|queue| slots.should_yield(queue));
                let told = (0..8).map(|queue| naive.should_yield(queue, total));
                assert!(next_number.eq(told), "seed {seed}");
            }
        }
    }

    #[test]
    fn queues_without_slots_and_requests_are_removed() {
        let mut slots = Slots::new(2);
        for number in 0..1_000 {
            slots.enqueue(number, number);
        }
        let mut served = 0;
        while let Some(queue) = slots.grant() {
            slots.give_back(queue);
            served += 1;
        }
        assert_eq!(served, 1_000);
        assert!(slots.queues.is_empty() && slots.waiting.is_empty());
    }
}
