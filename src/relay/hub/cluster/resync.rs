//! Walks over the hub after frames of other relays were missed (C6), or after a relay died (C7).
//!
//! A walk goes in steps of some hundred queues, so that its driver can yield between them. Queues
//! that are made during a walk need none: their first subscriber gets its own CATCH_UP.
//!
//! A hash may name a queue that has no entry here. Then all patterns are checked under their own
//! names. Subscribers that resume by a number during the walk are covered as well: from the beginning of
//! that part a subscription checks its patterns when its queues are introduced, and at its end the
//! revision of forgotten changes is raised (see `resume`). The order matters: the revision is raised
//! before the mark is cleared.

use std::{collections::HashSet, sync::Arc};

use super::super::{
    core::Hub,
    counters::Counters,
    subscription::{SubscriptionId, WakeBatch},
    sync::Ordering,
};
use crate::{
    base::{clock::Tick, fault::planted},
    types::{QueueAddress, cluster::queue_hash},
};

/// A walk, and its position.
#[derive(Debug)]
pub(crate) struct ResyncWalk {
    scope: ResyncScope,
    /// Named hashes that no queue had so far.
    unknown: HashSet<u64>,
    /// `None`: it has ended.
    phase: Option<Phase>,
}

/// What a walk does at each queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResyncScope {
    /// A resync of the queues with these hashes.
    Queues(HashSet<u64>),
    /// A resync of all queues, and of all patterns.
    All,
    /// C7: a resync of the queues with groups. One without members checks when it has one.
    Groups,
}

#[derive(Debug)]
enum Phase {
    /// The queues after this one.
    Queues(Option<QueueAddress>),
    /// The patterns of groups, after the node with this number.
    Groups(Option<u64>),
    /// The patterns of the subscriptions after this one.
    Subscriptions(Option<SubscriptionId>),
}

impl ResyncWalk {
    pub(crate) fn new(scope: ResyncScope) -> Self {
        let unknown = match &scope {
            ResyncScope::Queues(hashes) => hashes.clone(),
            _ => HashSet::new(),
        };
        Self {
            scope,
            unknown,
            phase: Some(Phase::Queues(None)),
        }
    }

    /// The most queues that one step visits, and the patterns of groups or of subscriptions, give or take
    /// those of one subscription: some hundred microseconds.
    pub(crate) const STEP: usize = 512;

    /// Returns whether the next step visits queues, and no patterns.
    pub(crate) fn visits_queues(&self) -> bool {
        matches!(self.phase, Some(Phase::Queues(_)))
    }
}

impl Hub {
    /// Takes the next step of a walk, over `limit` queues at most; returns whether there are more.
    pub(crate) fn resync_step(&self, walk: &mut ResyncWalk, limit: usize, now: Tick) -> bool {
        walk.phase = match walk.phase.take() {
            Some(Phase::Queues(after)) => self.resync_queues(walk, (after.as_ref(), limit), now),
            Some(Phase::Groups(after)) => Some(self.resync_groups(after, now)),
            Some(Phase::Subscriptions(after)) => self.resync_subscriptions(after),
            None => None,
        };
        walk.phase.is_some()
    }

    /// C6: the subscribers of the next queues get a CATCH_UP.
    fn resync_queues(
        &self,
        walk: &mut ResyncWalk,
        (after, limit): (Option<&QueueAddress>, usize),
        now: Tick,
    ) -> Option<Phase> {
        let entries = self.entries.after(after, limit);
        let mut batch = WakeBatch::default();
        for entry in &entries {
            let hash = queue_hash(entry.address());
            let is_wanted = match &walk.scope {
                ResyncScope::Queues(hashes) => hashes.contains(&hash),
                ResyncScope::All => true,
                ResyncScope::Groups => entry.lock_with_nodes(now).is_grouped(),
            };
            // The patterns of a forgotten one must check.
            if !is_wanted || entry.lock().is_dead {
                continue;
            }
            walk.unknown.remove(&hash);
            self.update(Arc::clone(entry), false, now, &mut batch, |_, state| {
                let unheard = state.listeners() == 0;
                if unheard && planted!(LinkResyncNeedsListener) {
                    return;
                }
                // One cause without sums. It does not postpone forgetting: a connection that is often
                // interrupted would otherwise keep all queues.
                state.count_announced(&Counters::starting_at(1));
                state.announced().resynced = state.counters.sequence;
            });
        }
        drop(batch);
        if let Some(last) = entries.last() {
            return Some(Phase::Queues(Some(last.address().clone())));
        }
        let needs_patterns = walk.scope == ResyncScope::All || !walk.unknown.is_empty();
        needs_patterns.then(|| {
            self.begin_pattern_resync();
            Phase::Groups(None)
        })
    }

    /// One member of each group checks the next patterns of groups under their own names.
    fn resync_groups(&self, after: Option<u64>, now: Tick) -> Phase {
        let nodes = self.shared.patterns.some_after(after, ResyncWalk::STEP);
        let Some(last) = nodes.last() else {
            return Phase::Subscriptions(None);
        };
        let mut batch = WakeBatch::default();
        for node in nodes.iter().filter(|node| node.group.is_some()) {
            node.request_check(now, &mut batch);
        }
        Phase::Groups(Some(last.number))
    }

    /// The next subscriptions outside of groups check their patterns under their own names.
    fn resync_subscriptions(&self, after: Option<SubscriptionId>) -> Option<Phase> {
        let mut batch = WakeBatch::default();
        let (mut last, mut left) = (after, ResyncWalk::STEP);
        for subscription in self.subscriptions_after(after, left) {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(subscription.patterns().len().max(1));
            if subscription.group.is_none() {
                subscription.request_pattern_checks(&mut batch);
            }
            last = Some(subscription.id);
        }
        if last == after {
            self.end_pattern_resync();
            return None;
        }
        Some(Phase::Subscriptions(last))
    }

    /// From now on, a subscription checks its patterns when its queues are introduced.
    pub(in super::super) fn begin_pattern_resync(&self) {
        self.pattern_resyncs.fetch_add(1, Ordering::SeqCst);
    }

    pub(in super::super) fn end_pattern_resync(&self) {
        let revision = self.shared.revision.load(Ordering::SeqCst);
        self.forgotten_at.fetch_max(revision, Ordering::SeqCst);
        self.pattern_resyncs.fetch_sub(1, Ordering::SeqCst);
    }
}
