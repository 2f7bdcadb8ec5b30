//! What each principal uses, by its name.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use super::{principal::Principal, usage::Usage};

/// The usages that a stream, a connection or a cached credential still needs.
#[derive(Debug, Default)]
pub(super) struct UsageTable {
    usages: HashMap<Box<str>, Weak<Usage>>,
    /// Unneeded usages are removed once there are this many.
    sweep_at: usize,
}

const FIRST_SWEEP: usize = 1024;

impl UsageTable {
    /// Returns the usage of a principal, which all of its callers share.
    pub(super) fn of(&mut self, principal: &Principal) -> Arc<Usage> {
        let known = self.usages.get(principal.name()).and_then(Weak::upgrade);
        if let Some(known) = known {
            return known;
        }
        if self.usages.len() >= self.sweep_at {
            self.usages.retain(|_, usage| usage.strong_count() > 0);
            self.sweep_at = FIRST_SWEEP.max(2 * self.usages.len());
        }
        let usage = Arc::new(Usage::new(principal.name()));
        self.usages
            .insert(principal.name().into(), Arc::downgrade(&usage));
        usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(number: usize) -> Principal {
        Principal::new(&format!("worker-{number}")).expect("a name")
    }

    #[test]
    fn callers_of_one_principal_share_its_usage() {
        let mut table = UsageTable::default();
        let first = table.of(&principal(1));
        assert!(Arc::ptr_eq(&first, &table.of(&principal(1))));
        assert!(!Arc::ptr_eq(&first, &table.of(&principal(2))));
    }

    #[test]
    fn unneeded_usages_leave_the_table() {
        let mut table = UsageTable::default();
        let kept = table.of(&principal(0));
        for number in 1..10 * FIRST_SWEEP {
            table.of(&principal(number));
        }
        assert!(
            table.usages.len() <= FIRST_SWEEP + 1,
            "{}",
            table.usages.len()
        );
        assert!(Arc::ptr_eq(&kept, &table.of(&principal(0))));
    }
}
