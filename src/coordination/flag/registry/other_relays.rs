//! Writes of other relays of the cluster, which share the store (C14).

use super::{Wakers, WatchRegistry};
use crate::types::cluster::FlagHint;

impl WatchRegistry {
    /// Takes a write through another relay: tells the watchers of a set that they have not seen, and
    /// requests a read. A flag without a watcher is left out.
    pub(in crate::coordination::flag) fn hear(&mut self, hint: FlagHint) -> Wakers {
        let mut wakers = Wakers::default();
        // Also of a set that is cleared by hand, so that a later set through this relay is later here.
        self.note_number(hint.number);
        let name = hint.name.clone();
        let now = self.next_sequence();
        if self.request_read(&name) {
            self.change(&name, &mut wakers, |entry, wakers| {
                entry.hear(hint, now, wakers);
            });
        }
        wakers
    }
}
