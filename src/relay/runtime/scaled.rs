//! The queues that scalers ask about: when one has had a cause, and when it was certainly empty.
//!
//! The hub forgets idle queues, and whether a listener has reported on them. What a scaler knows of a
//! queue must outlast that, so that an idle workload is not started each time to look.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, RwLock},
};

use tokio::sync::watch;

use super::Relay;
use crate::{
    base::{
        clock::Tick,
        sync::{lock, read, write},
    },
    error::{Error, ErrorKind, Result},
    types::QueueAddress,
};

/// The queues, by address.
#[derive(Debug, Default)]
pub(super) struct ScaledQueues(RwLock<HashMap<QueueAddress, Arc<ScaledQueue>>>);

/// A queue that a scaler asks about.
#[derive(Debug, Default)]
pub(crate) struct ScaledQueue {
    /// The time of its newest cause since the first question.
    caused: watch::Sender<Tick>,
    /// When it was last certainly empty.
    emptied: Mutex<Tick>,
    /// Since when it may have messages that the relay does not know of; `None` while it is empty. A newer
    /// doubt does not put off the look that the older one waits for.
    doubted: Mutex<Option<Tick>>,
}

/// Queues that are remembered: 30 MB.
const MOST: usize = 100_000;

impl ScaledQueue {
    /// Returns a receiver of its causes, which has seen those so far.
    pub(crate) fn watch(&self) -> watch::Receiver<Tick> {
        self.caused.subscribe()
    }

    /// Notes that it was empty at this time.
    pub(crate) fn set_empty(&self, at: Tick) {
        let mut emptied = lock(&self.emptied);
        *emptied = at.max(*emptied);
    }

    /// Notes that it has messages, which may have come without a cause.
    pub(crate) fn set_filled(&self) {
        *lock(&self.emptied) = Tick::default();
    }

    /// Returns since when it is in doubt, of causes that were missed until then.
    pub(crate) fn doubted_since(&self, missed: Tick) -> Tick {
        *lock(&self.doubted).get_or_insert(missed)
    }

    /// Returns whether it has had a cause since it was empty, and since this time.
    pub(crate) fn is_caused_since(&self, at: Tick) -> bool {
        let caused = *self.caused.borrow();
        caused > Tick::default() && caused >= at.max(*lock(&self.emptied))
    }

    /// Returns whether it was certainly empty after its newest cause, and after causes were missed.
    pub(crate) fn is_empty(&self, missed: Tick) -> bool {
        let emptied = *lock(&self.emptied);
        let is_empty = emptied > *self.caused.borrow() && emptied >= missed;
        if is_empty {
            *lock(&self.doubted) = None;
        }
        is_empty
    }
}

impl Relay {
    /// Returns what is remembered of a queue for scalers, from now on. A cause before is in the figures
    /// of the queue that are read after this call.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] at the limit of such queues.
    pub(crate) fn scaled_queue(&self, queue: &QueueAddress) -> Result<Arc<ScaledQueue>> {
        let (scaled, clock) = (&self.shared.scaled, self.clock());
        self.shared.hub.watch_causes(|| {
            let scaled = Arc::clone(scaled);
            Box::new(move |queue| {
                if let Some(known) = read(&scaled.0).get(queue) {
                    known.caused.send_modify(|at| *at = clock.now());
                }
            })
        });
        if let Some(known) = read(&scaled.0).get(queue) {
            return Ok(Arc::clone(known));
        }
        let mut queues = write(&scaled.0);
        if queues.len() >= MOST {
            // Those of streams stay.
            queues.retain(|_, known| known.caused.receiver_count() > 0);
        }
        if queues.len() >= MOST {
            let message = format!("queues of scalers: the limit is {MOST} of this relay");
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        Ok(Arc::clone(queues.entry(queue.clone()).or_default()))
    }

    /// Returns when this relay may last have missed causes of other relays.
    pub(crate) fn missed_causes(&self) -> Tick {
        let stats = self.cluster_stats().map(|(stats, _)| stats);
        stats.unwrap_or_default().missed
    }
}
