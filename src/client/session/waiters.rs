//! Callers that wait for a publisher's notifications, and their results.

use std::collections::{BTreeSet, HashMap};

use crate::{
    base::clock::Tick,
    error::{Error, Result},
    types::Accepted,
};

/// Identifies a waiting caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct WaiterId(u64);

/// The results for a waiting caller.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) waiter: WaiterId,
    /// One for each of its notifications.
    pub(crate) results: Vec<Result<Accepted>>,
}

/// Waiting callers, each until its notifications are answered or its deadline passes.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    waiters: HashMap<WaiterId, Waiter>,
    deadlines: BTreeSet<(Tick, WaiterId)>,
    completions: Vec<Completion>,
    last: u64,
}

/// The callers to answer, each with the index of its notification.
pub(super) type WaiterList = Vec<(WaiterId, usize)>;

/// Items for which a list has room after a purge, beside as many again as are left.
const SPARE: usize = 4;

#[derive(Debug)]
pub(super) struct Waiter {
    results: Vec<Option<Result<Accepted>>>,
    missing: usize,
    deadline: Tick,
}

impl Waiters {
    /// Adds a caller that waits for `count` notifications.
    pub(super) fn add(&mut self, count: usize, deadline: Tick) -> WaiterId {
        self.last += 1;
        let id = WaiterId(self.last);
        let waiter = Waiter {
            results: vec![None; count],
            missing: count,
            deadline,
        };
        self.waiters.insert(id, waiter);
        self.deadlines.insert((deadline, id));
        if count == 0 {
            self.complete(id);
        }
        id
    }

    /// Adds a caller to an entry's waiter list. A full list is purged first, so lists grow with queues and
    /// not with calls.
    pub(super) fn add_to_list(&self, list: &mut WaiterList, id: WaiterId, index: usize) {
        if list.len() == list.capacity() {
            self.purge(list);
            // As many as are left come before the next purge, so its cost per caller is constant.
            list.reserve_exact(list.len() + SPARE);
        }
        list.push((id, index));
    }

    /// Removes callers that stopped waiting from a list.
    pub(super) fn purge(&self, list: &mut WaiterList) {
        list.retain(|(id, _)| self.waiters.contains_key(id));
        list.shrink_to(list.len() * 2 + SPARE);
    }

    /// Notes the result of an entry for its callers.
    pub(super) fn settle(&mut self, list: WaiterList, result: &Result<Accepted>) {
        for (id, index) in list {
            let Some(waiter) = self.waiters.get_mut(&id) else {
                continue;
            };
            if waiter.results[index].replace(result.clone()).is_none() {
                waiter.missing -= 1;
            }
            if waiter.missing == 0 {
                self.complete(id);
            }
        }
    }

    /// Answers all callers; the error is the result of what is unanswered.
    pub(super) fn fail_all(&mut self, error: &Error) {
        for (_, id) in std::mem::take(&mut self.deadlines) {
            self.fail(id, error);
        }
    }

    /// Answers the callers whose deadline has passed.
    pub(super) fn expire(&mut self, now: Tick, error: impl Fn() -> Error) {
        while let Some((_, id)) = self.deadlines.first().filter(|(at, _)| *at <= now).copied() {
            self.fail(id, &error());
        }
    }

    /// Returns the earliest deadline.
    pub(super) fn deadline(&self) -> Tick {
        let first = self.deadlines.first();
        first.map_or(Tick::NEVER, |(deadline, _)| *deadline)
    }

    pub(super) fn take_completions(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.completions)
    }

    fn complete(&mut self, id: WaiterId) {
        if let Some(waiter) = self.remove(id) {
            self.finish(id, waiter.results.into_iter().flatten().collect());
        }
    }

    fn fail(&mut self, id: WaiterId, error: &Error) {
        if let Some(waiter) = self.remove(id) {
            let results = waiter.results.into_iter();
            let results = results.map(|one| one.unwrap_or_else(|| Err(error.clone())));
            self.finish(id, results.collect());
        }
    }

    fn finish(&mut self, waiter: WaiterId, results: Vec<Result<Accepted>>) {
        self.completions.push(Completion { waiter, results });
    }

    /// Removes a caller that is answered, or no longer waits.
    pub(super) fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        self.deadlines.remove(&(waiter.deadline, id));
        Some(waiter)
    }
}
