//! One watcher of one flag: registered as long as this lives.

use std::{fmt, task::Waker, time::SystemTime};

use super::{Event, Flags, board::Registered};
use crate::{
    error::Result,
    words::{FlagName, ListenerId},
};

/// A registered watcher. Registered first; [`Watch::settle`] reads the store then.
pub(crate) struct Watch {
    flags: Flags,
    name: FlagName,
    listener: ListenerId,
    id: u64,
    /// Whether operators are shown this watcher; one that is told of acknowledgements is not shown.
    shown: bool,
    duplicate: bool,
}

impl Watch {
    /// Makes the watch that was registered, and wakes the observers of the flag's watchers.
    pub(super) fn new(
        flags: Flags,
        name: FlagName,
        listener: ListenerId,
        acks: bool,
        registered: Registered,
    ) -> Self {
        registered.wakers.wake();
        Self {
            flags,
            name,
            listener,
            id: registered.id,
            shown: !acks,
            duplicate: registered.duplicate,
        }
    }

    /// Returns whether another stream watched the flag under the same listener id at the beginning.
    pub(crate) fn is_duplicate(&self) -> bool {
        self.duplicate
    }

    /// Has operators see the listener as away, because this watch's stream is about to end. A stream
    /// that takes its place is no duplicate then.
    pub(crate) fn depart(&mut self) {
        if std::mem::take(&mut self.shown) {
            let inner = &self.flags.inner;
            let now = inner.clock.now();
            inner.board().depart(&self.name, &self.listener, now);
        }
    }

    /// Makes sure that the present state is known: by a read of the store that began after this
    /// watcher was registered, and during which no local write ended (R20: a fresh read), be it
    /// this one's own or another watcher's. Until then no first state is told but that of an
    /// unleash here.
    ///
    /// # Errors
    /// `Unavailable`, with whatever kept the store from answering; it may be called again.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn settle(&self, wall: SystemTime) -> Result<()> {
        settle(&self.flags, &self.name, self.id, wall).await
    }

    /// Does what [`Watch::settle`] does, for a driver that holds this watch elsewhere.
    pub(crate) fn settling(
        &self,
        wall: SystemTime,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let (flags, name, id) = (self.flags.clone(), self.name.clone(), self.id);
        async move { settle(&flags, &name, id, wall).await }
    }

    /// Returns whether the present state is known.
    pub(crate) fn is_settled(&self) -> bool {
        self.flags.inner.board().is_settled(&self.name, self.id)
    }

    /// Takes what is owed next; where that is nothing, `waker` is woken when it is more.
    pub(crate) fn owed(&self, waker: &Waker) -> Option<Event> {
        let mut board = self.flags.inner.board();
        board.owed(&self.name, self.id, waker)
    }

    /// Counts that this watcher's listener has seen a generation.
    ///
    /// # Errors
    /// `Exhausted` where too many are remembered.
    pub(crate) fn ack(&self, generation: u64) -> Result<()> {
        self.flags.ack(&self.name, generation, &self.listener)
    }
}

async fn settle(flags: &Flags, name: &FlagName, id: u64, wall: SystemTime) -> Result<()> {
    let inner = &flags.inner;
    let is_settled = || inner.board().is_settled(name, id);
    if is_settled() {
        return Ok(());
    }
    let _turn = inner.reads.take(name).await;
    // Ends: what keeps a read from counting is a write's end, and a write that began after the
    // registration settles the watcher as well.
    while !is_settled() {
        // Whatever the store says, a watcher waits on: only a request can be refused for good.
        let read = inner.observe(name, wall).await;
        read.map_err(|error| inner.unavailable(name, "cannot be watched just now", error))?;
    }
    Ok(())
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.depart();
        let wakers = self.flags.inner.board().unregister(&self.name, self.id);
        wakers.wake();
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("name", &self.name)
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}
