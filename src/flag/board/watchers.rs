//! Watchers: how they come and go, and what operators are shown of them.

use super::{
    super::presence::{WatcherView, WatchersQuery},
    Board, Topic, Wakers,
};
use crate::{
    clock::Tick,
    error::{Error, ErrorKind, Result},
    words::{FlagName, ListenerId},
};

/// A watcher that was registered.
#[derive(Debug)]
pub(in crate::flag) struct Registered {
    pub(in crate::flag) id: u64,
    /// Another stream watches the flag under the same listener id.
    pub(in crate::flag) duplicate: bool,
    /// To wake when the board is unlocked.
    pub(in crate::flag) wakers: Wakers,
}

impl Board {
    /// Registers a watcher; what happens from now on reaches it.
    pub(in crate::flag) fn register(
        &mut self,
        name: &FlagName,
        listener: &ListenerId,
        acks: bool,
        now: Tick,
    ) -> Registered {
        let id = self.tick();
        let mut wakers = Wakers::default();
        let topic = self.topic(name);
        topic.register(id, acks);
        if let Some(place) = topic.idle.take() {
            self.idle.remove(&place);
        }
        self.watched.insert(name.clone());
        self.mark_acks(name, &mut wakers);
        Registered {
            id,
            duplicate: !acks && self.presence.arrive(name, listener, now),
            wakers,
        }
    }

    /// Checks that one more name may be watched by a client.
    ///
    /// # Errors
    /// `Exhausted`, naming the limit.
    pub(in crate::flag) fn admit_watch(&self, name: &FlagName) -> Result<()> {
        if self.watched.len() < self.max_watched || self.watched.contains(name) {
            return Ok(());
        }
        let message = format!(
            "flag `{name}` cannot be watched: the limit is {} watched flags",
            self.max_watched
        );
        Err(Error::new(ErrorKind::Exhausted, message))
    }

    /// Notes that a watcher's listener is to be shown as away: its stream ends.
    pub(in crate::flag) fn depart(&mut self, name: &FlagName, listener: &ListenerId, now: Tick) {
        self.presence.leave(name, listener, now);
    }

    pub(in crate::flag) fn unregister(&mut self, name: &FlagName, id: u64) -> Wakers {
        let mut wakers = Wakers::default();
        if let Some(topic) = self.topics.get_mut(name) {
            topic.unregister(id);
            if !topic.is_watched() {
                self.watched.remove(name);
            }
        }
        self.mark_acks(name, &mut wakers);
        self.rest(name);
        wakers
    }

    /// Lists the listeners that watch flags, or did, by flag and listener.
    pub(in crate::flag) fn list_watchers(
        &self,
        query: &WatchersQuery,
        now: Tick,
    ) -> Vec<WatcherView> {
        let mut page = self.presence.page(query, now);
        for view in &mut page {
            let key = self.acks.key(&view.listener);
            let topic = self.topics.get(&view.flag);
            view.acknowledged = topic.is_some_and(|topic| topic.acked.contains(&key));
        }
        page
    }

    /// Counts the watchers of all flags.
    pub(in crate::flag) fn watchers(&self) -> u64 {
        let watching = |topic: &Topic| u64::from(topic.watching());
        self.topics.values().map(watching).sum()
    }
}
