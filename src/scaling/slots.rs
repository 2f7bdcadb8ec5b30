//! Slots that several queues share: whose turn it is to have a dequeue task at work.
//!
//! A slot goes to the queue that holds the fewest, and among those to the one that has waited
//! longest. So a queue that never runs dry cannot starve another one: whoever holds more than a
//! waiting queue gives one back between two batches. A plain structure, locked by its owner.

use std::collections::{BTreeSet, HashMap, VecDeque};

/// Where a request for a slot waits: its queue, and its number in the order in which they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    queue: u64,
    number: u64,
}

/// The slots, and the requests that wait for one, each with a `T`. A call costs the logarithm of the
/// queues that wait.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    total: usize,
    used: usize,
    asked: u64,
    /// Queues that hold a slot or wait for one.
    queues: HashMap<u64, Queue<T>>,
    /// The queues with a request, the one whose turn it is first.
    line: BTreeSet<Turn>,
}

/// What one queue holds and waits for.
#[derive(Debug)]
struct Queue<T> {
    held: usize,
    /// Its requests, by their numbers.
    requests: VecDeque<(u64, T)>,
}

/// A queue's place in the line: by what it holds, then by its oldest request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    held: usize,
    oldest: u64,
    queue: u64,
}

impl<T> Queue<T> {
    fn turn(&self, queue: u64) -> Option<Turn> {
        let (oldest, _) = self.requests.front()?;
        Some(Turn {
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
            asked: 0,
            queues: HashMap::new(),
            line: BTreeSet::new(),
        }
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Takes a slot at once where one is free: then no request waits.
    pub(crate) fn take(&mut self, queue: u64) -> bool {
        let free = self.used < self.total && self.line.is_empty();
        if free {
            self.used += 1;
            self.change(queue, |queue| queue.held += 1);
        }
        free
    }

    /// Joins the line.
    pub(crate) fn ask(&mut self, queue: u64, request: T) -> Ticket {
        let number = self.asked;
        self.asked += 1;
        self.change(queue, |queue| queue.requests.push_back((number, request)));
        Ticket { queue, number }
    }

    /// Leaves the line; returns whether it was still there.
    pub(crate) fn withdraw(&mut self, ticket: Ticket) -> bool {
        self.change(ticket.queue, |queue| {
            let at = queue
                .requests
                .binary_search_by_key(&ticket.number, |(number, _)| *number);
            at.is_ok_and(|at| queue.requests.remove(at).is_some())
        })
    }

    /// Gives the next slot, where one is free and a request waits.
    pub(crate) fn grant(&mut self) -> Option<T> {
        if self.used >= self.total {
            return None;
        }
        let next = *self.line.first()?;
        let (_, request) = self.change(next.queue, |queue| {
            queue.held += 1;
            queue.requests.pop_front()
        })?;
        self.used += 1;
        Some(request)
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
        // The one that holds the fewest is first.
        let other = self.line.iter().find(|turn| turn.queue != queue);
        let own = || self.queues.get(&queue).map_or(0, |queue| queue.held);
        other.is_some_and(|turn| turn.held == 0 || turn.held + 1 < own())
    }

    /// Changes a queue, and its place in the line.
    fn change<R>(&mut self, number: u64, change: impl FnOnce(&mut Queue<T>) -> R) -> R {
        let queue = self.queues.entry(number).or_insert_with(|| Queue {
            held: 0,
            requests: VecDeque::new(),
        });
        let before = queue.turn(number);
        let changed = change(queue);
        let after = queue.turn(number);
        if after.is_none() && queue.held == 0 {
            self.queues.remove(&number);
        }
        if before != after {
            if let Some(turn) = before {
                self.line.remove(&turn);
            }
            self.line.extend(after);
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_free_slot_goes_to_who_holds_the_fewest_and_waits_longest() {
        let mut slots = Slots::new(3);
        let requests = [(1, 7), (2, 7), (3, 8), (4, 9), (5, 8)];
        let tickets = requests.map(|(request, queue)| slots.ask(queue, request));
        let granted: Vec<_> = std::iter::from_fn(|| slots.grant()).collect();
        assert_eq!(granted, [1, 3, 4], "one for each queue, then none is free");
        slots.give_back(9);
        assert_eq!(slots.grant(), Some(2));
        assert_eq!(slots.grant(), None);
        assert!(slots.withdraw(tickets[4]), "it was waiting");
        assert!(!slots.withdraw(tickets[1]), "it was served");
        slots.give_back(7);
        assert_eq!(slots.grant(), None, "nobody waits");
    }

    #[test]
    fn whoever_holds_more_than_its_share_gives_back_between_two_batches() {
        let mut slots = Slots::new(2);
        for request in 1..=3 {
            slots.ask(7, request);
        }
        while slots.grant().is_some() {}
        assert!(!slots.should_yield(7), "nobody else waits");
        slots.ask(8, 4);
        assert!(slots.should_yield(7));
        slots.give_back(7);
        assert_eq!(slots.grant(), Some(4));
        assert!(!slots.should_yield(7) && !slots.should_yield(8), "even");
        slots.ask(9, 5);
        assert!(slots.should_yield(7), "one who holds none takes turns");
    }

    #[test]
    fn zero_slots_count_as_one() {
        let mut slots = Slots::new(0);
        slots.ask(7, 1);
        assert_eq!((slots.total(), slots.grant()), (1, Some(1)));
    }

    /// The rule as it is said above, over all requests.
    #[derive(Default)]
    struct Plain {
        held: BTreeMap<u64, usize>,
        line: Vec<(usize, u64)>,
    }

    impl Plain {
        fn held(&self, queue: u64) -> usize {
            self.held.get(&queue).copied().unwrap_or_default()
        }

        fn grant(&mut self, total: usize) -> Option<usize> {
            if self.held.values().sum::<usize>() >= total {
                return None;
            }
            let places = 0..self.line.len();
            let next = places.min_by_key(|at| (self.held(self.line[*at].1), *at))?;
            let (request, queue) = self.line.remove(next);
            *self.held.entry(queue).or_default() += 1;
            Some(request)
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
            let mut tickets = Vec::new();
            for _ in 0..300 {
                let queue = rng.u64(..8);
                match rng.u32(..5) {
                    0 => {
                        plain.line.push((usize::MAX, queue));
                        let taken = plain.grant(total) == Some(usize::MAX);
                        plain.line.retain(|(request, _)| *request != usize::MAX);
                        assert_eq!(slots.take(queue), taken, "seed {seed}");
                    }
                    1 | 2 => {
                        plain.line.push((tickets.len(), queue));
                        tickets.push(slots.ask(queue, tickets.len()));
                    }
                    3 if plain.held(queue) > 0 => {
                        slots.give_back(queue);
                        *plain.held.get_mut(&queue).expect("held") -= 1;
                    }
                    _ if tickets.is_empty() => {}
                    _ => {
                        let other = rng.usize(..tickets.len());
                        let was = plain.line.iter().position(|(one, _)| *one == other);
                        if let Some(at) = was {
                            plain.line.remove(at);
                        }
                        assert_eq!(slots.withdraw(tickets[other]), was.is_some());
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
            slots.ask(number, number);
        }
        let mut served = 0;
        while let Some(queue) = slots.grant() {
            slots.give_back(queue);
            served += 1;
        }
        assert_eq!(served, 1_000);
        assert!(slots.queues.is_empty() && slots.line.is_empty());
    }
}
