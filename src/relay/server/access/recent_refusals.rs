//! The callers that were refused last, for findings: one entry for each caller, action and target.

use std::{collections::VecDeque, sync::Mutex, time::Duration};

use crate::base::{clock::Tick, sync::lock};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusedCaller {
    /// Its principal; the address of a caller whose credential was refused.
    pub(crate) caller: String,
    pub(crate) action: &'static str,
    /// As `account/queue`, or another target; empty for a credential.
    pub(crate) target: String,
    pub(crate) why: String,
    /// How often since it is in the list.
    pub(crate) count: u64,
    /// Time since the newest refusal.
    pub(crate) before: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct RecentRefusals(Mutex<VecDeque<(RefusedCaller, Tick)>>);

const KEPT: usize = 32;
/// An older refusal explains nothing that happens now.
const RECENT: Duration = Duration::from_secs(600);

impl RefusedCaller {
    /// The action of a caller whose credential was refused.
    pub(crate) const AUTHENTICATE: &str = "authenticate";
    /// The action of a caller that asked why a queue is not served.
    pub(crate) const EXPLAIN: &str = "explain";
}

impl RecentRefusals {
    pub(crate) fn add(
        &self,
        caller: String,
        action: &'static str,
        target: String,
        why: &str,
        now: Tick,
    ) {
        let mut list = lock(&self.0);
        let known = list.iter().position(|(known, _)| {
            (&known.caller, known.action, &known.target) == (&caller, action, &target)
        });
        let known = known.and_then(|at| list.remove(at));
        if list.len() == KEPT {
            list.pop_front();
        }
        let refused = RefusedCaller {
            caller,
            action,
            target,
            why: why.to_owned(),
            count: known.map_or(0, |(known, _)| known.count) + 1,
            before: Duration::ZERO,
        };
        list.push_back((refused, now));
    }

    /// Returns those of the last ten minutes, newest first.
    pub(crate) fn list(&self, now: Tick) -> Vec<RefusedCaller> {
        let list = lock(&self.0);
        let recent = list.iter().rev().filter(|(_, at)| now.since(*at) < RECENT);
        let aged = recent.map(|(refused, at)| RefusedCaller {
            before: now.since(*at),
            ..refused.clone()
        });
        aged.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_refusal_is_one_entry_and_the_oldest_gives_way() {
        let (refusals, start) = (RecentRefusals::default(), Tick::default());
        let second = Duration::from_secs(1);
        let denied = |queue: usize, at: Tick| {
            let target = format!("acct/q{queue}");
            refusals.add("billing".to_owned(), "notify", target, "no rule", at);
        };
        (0..KEPT).for_each(|queue| denied(queue, start));
        denied(0, start + second);
        denied(99, start + second * 2);
        let listed = refusals.list(start + second * 3);
        assert_eq!(listed.len(), KEPT);
        let newest = |at: usize| (&*listed[at].target, listed[at].count, listed[at].before);
        assert_eq!(newest(0), ("acct/q99", 1, second));
        assert_eq!(newest(1), ("acct/q0", 2, second * 2));
        assert!(listed.iter().all(|one| one.target != "acct/q1"));
        assert!(refusals.list(start + RECENT + second * 2).is_empty());
    }
}
