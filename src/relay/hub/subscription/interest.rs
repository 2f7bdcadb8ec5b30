//! What a subscription wants, which never changes: its listener, its queues and its group.

use std::{collections::HashSet, sync::Arc, time::Duration};

use super::super::{
    counters::Epoch,
    cursor::CursorPool,
    mailbox::{Mailbox, SubscriptionId},
    resume::digest,
};
use crate::{
    base::clock::Tick,
    types::{GroupName, Limits, ListenerId, QueueAddress, Selector, SubscribeOptions},
};

/// What a subscription wants, and its stream's state.
pub(crate) struct Interest {
    pub(crate) id: SubscriptionId,
    pub(crate) listener_id: ListenerId,
    pub(crate) selectors: Box<[Selector]>,
    /// The exact selectors, where there are many selectors.
    exact: HashSet<QueueAddress>,
    pub(crate) group: Option<GroupName>,
    pub(crate) visibility_timeout: Duration,
    pub(crate) since: Tick,
    pub(crate) epoch: Epoch,
    /// A hash of the listener and its selectors: see `resume`.
    pub(crate) digest: u64,
    pub(crate) mailbox: Mailbox,
    /// Its cursors count there as well.
    pub(crate) pool: Option<Arc<CursorPool>>,
}

/// Up to this many selectors, comparing all of them is as quick as a table.
const UNINDEXED: usize = 8;

impl Interest {
    pub(crate) fn new(
        id: SubscriptionId,
        options: &SubscribeOptions,
        (epoch, seed): (Epoch, u64),
        now: Tick,
    ) -> Self {
        let selectors = distinct(&options.selectors);
        let exact = match selectors.len() {
            0..=UNINDEXED => HashSet::new(),
            _ => selectors.iter().filter_map(Selector::as_address).collect(),
        };
        Self {
            id,
            listener_id: options.listener_id.clone(),
            exact,
            group: options.group.clone(),
            visibility_timeout: match options.visibility_timeout {
                Duration::ZERO => Limits::DEFAULT_VISIBILITY_TIMEOUT,
                stated => stated,
            },
            since: now,
            epoch,
            digest: digest(seed, &options.listener_id, &selectors),
            mailbox: Mailbox::new(options.capacity.max(1), options.agent),
            selectors,
            pool: None,
        }
    }

    pub(crate) fn in_pool(mut self, pool: Option<Arc<CursorPool>>) -> Self {
        self.pool = pool;
        self
    }

    /// Returns the number of queues that it names, or patterns.
    pub(crate) fn queues(&self) -> usize {
        self.selectors.len()
    }

    /// Returns the pairs of the stream and what it listens to, for the load.
    pub(crate) fn pairs(&self) -> i64 {
        i64::try_from(self.selectors.len()).unwrap_or(i64::MAX)
    }

    /// Returns whether a selector matches the queue.
    pub(crate) fn wants(&self, address: &QueueAddress) -> bool {
        self.names(address) || self.patterns().any(|pattern| pattern.matches(address))
    }

    /// Returns whether a selector names the queue exactly.
    pub(crate) fn names(&self, address: &QueueAddress) -> bool {
        if self.selectors.len() > UNINDEXED {
            return self.exact.contains(address);
        }
        let mut exact = self.selectors.iter().filter(|one| !one.is_pattern());
        exact.any(|selector| selector.matches(address))
    }

    pub(crate) fn patterns(&self) -> impl Iterator<Item = &Selector> {
        let all_exact = !self.exact.is_empty() && self.exact.len() == self.selectors.len();
        let some = if all_exact { &[] } else { &self.selectors[..] };
        some.iter().filter(|selector| selector.is_pattern())
    }

    pub(crate) fn has_pattern(&self) -> bool {
        self.patterns().next().is_some()
    }
}

/// Returns the selectors without duplicates, in their order.
fn distinct(selectors: &[Selector]) -> Box<[Selector]> {
    let mut seen = HashSet::new();
    selectors
        .iter()
        .filter(|selector| seen.insert(*selector))
        .cloned()
        .collect()
}
