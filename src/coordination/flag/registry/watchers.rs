//! Watchers: registration and removal, and the list that operators are shown.

use super::{
    super::{
        acks::AckKey,
        presence::{WatcherView, WatchersQuery},
    },
    FlagEntry, Wakers, WatchRegistry,
};
use crate::{
    base::clock::Tick,
    error::{Error, ErrorKind, Result},
    types::{FlagName, ListenerId},
};

/// A new registration.
#[derive(Debug)]
pub(in crate::coordination::flag) struct Registered {
    pub(in crate::coordination::flag) id: u64,
    /// Whether another stream watches the flag under the same listener id.
    pub(in crate::coordination::flag) duplicate: bool,
    /// Drop these only after the registry is unlocked.
    pub(in crate::coordination::flag) wakers: Wakers,
}

impl WatchRegistry {
    /// Registers a watcher. It receives all later changes.
    pub(in crate::coordination::flag) fn register(
        &mut self,
        name: &FlagName,
        listener: &ListenerId,
        acks: bool,
        now: Tick,
    ) -> Registered {
        let id = self.next_sequence();
        let mut wakers = Wakers::default();
        let entry = self.entry(name);
        entry.register(id, acks);
        if let Some(key) = entry.idle_key.take() {
            self.idle.remove(&key);
        }
        self.watched.insert(name.clone());
        self.mark_acks(name, &mut wakers);
        Registered {
            id,
            duplicate: !acks && self.presence.stream_opened(name, listener, now),
            wakers,
        }
    }

    /// Checks that clients may watch one more flag.
    ///
    /// # Errors
    /// `Exhausted`, naming the limit.
    pub(in crate::coordination::flag) fn admit_watch(&self, name: &FlagName) -> Result<()> {
        if self.watched.len() < self.max_watched || self.watched.contains(name) {
            return Ok(());
        }
        let message = format!(
            "flag `{name}` cannot be watched: the limit is {} watched flags",
            self.max_watched
        );
        Err(Error::new(ErrorKind::Exhausted, message))
    }

    /// Marks a watcher's listener as away, because its stream ends.
    pub(in crate::coordination::flag) fn mark_away(
        &mut self,
        name: &FlagName,
        listener: &ListenerId,
        now: Tick,
    ) {
        self.presence.stream_closed(name, listener, now);
    }

    pub(in crate::coordination::flag) fn unregister(&mut self, name: &FlagName, id: u64) -> Wakers {
        let mut wakers = Wakers::default();
        if let Some(entry) = self.entries.get_mut(name) {
            entry.unregister(id);
            if !entry.is_watched() {
                self.watched.remove(name);
            }
        }
        self.mark_acks(name, &mut wakers);
        self.forget_if_unused(name);
        wakers
    }

    /// Lists the present and recent listeners of flags, by flag and listener.
    pub(in crate::coordination::flag) fn list_watchers(
        &self,
        query: &WatchersQuery,
        now: Tick,
    ) -> Vec<WatcherView> {
        let mut page = self.presence.page(query, now);
        for view in &mut page {
            let key = AckKey::of(&view.listener);
            let entry = self.entries.get(&view.flag);
            view.acknowledged = entry.is_some_and(|entry| entry.acked.contains(&key));
        }
        page
    }

    /// Counts the watchers of all flags.
    pub(in crate::coordination::flag) fn watchers(&self) -> u64 {
        let watching = |entry: &FlagEntry| u64::from(entry.watching());
        self.entries.values().map(watching).sum()
    }
}
