//! The queues that scalers ask about: which of them were certainly drained, and when one has a cause.
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
    base::sync::{lock, read, write},
    error::{Error, ErrorKind, Result},
    types::{GroupName, QueueAddress},
};

/// The queues, by address.
#[derive(Debug, Default)]
pub(super) struct ScaledQueues(RwLock<HashMap<QueueAddress, Arc<ScaledQueue>>>);

/// A queue that a scaler asks about.
#[derive(Debug)]
pub(crate) struct ScaledQueue {
    /// The number of its causes since the first question.
    causes: watch::Sender<u64>,
    /// The newest moment at which it was certainly drained.
    drained: Mutex<Option<Moment>>,
}

/// A moment in the causes that this relay knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    /// The causes of the queue.
    pub(crate) causes: u64,
    /// How often this relay may have missed causes of other relays.
    pub(crate) gaps: u64,
}

/// Queues that are remembered: 30 MB.
const MOST: usize = 100_000;

impl ScaledQueue {
    fn new() -> Self {
        Self {
            causes: watch::Sender::new(0),
            drained: Mutex::default(),
        }
    }

    /// Returns a receiver of its causes, which has seen those so far.
    pub(crate) fn causes(&self) -> watch::Receiver<u64> {
        self.causes.subscribe()
    }

    /// Returns the present moment.
    pub(crate) fn moment(&self, gaps: u64) -> Moment {
        let causes = *self.causes.borrow();
        Moment { causes, gaps }
    }

    /// Notes that it is drained by figures that were read at this moment or later.
    pub(crate) fn set_drained(&self, at: Moment) {
        *lock(&self.drained) = Some(at);
    }

    /// Returns whether it has had no cause since it was certainly drained.
    pub(crate) fn is_drained(&self, gaps: u64) -> bool {
        *lock(&self.drained) == Some(self.moment(gaps))
    }
}

impl Relay {
    /// Returns what is remembered of a queue for scalers, from now on. A cause before is in the figures
    /// of the queue that are read after this call.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] at the limit of such queues.
    pub(crate) fn scaled_queue(&self, queue: &QueueAddress) -> Result<Arc<ScaledQueue>> {
        let scaled = &self.shared.scaled;
        self.shared.hub.watch_causes(|| {
            let scaled = Arc::clone(scaled);
            Box::new(move |queue| {
                if let Some(known) = read(&scaled.0).get(queue) {
                    known.causes.send_modify(|causes| *causes += 1);
                }
            })
        });
        if let Some(known) = read(&scaled.0).get(queue) {
            return Ok(Arc::clone(known));
        }
        let mut queues = write(&scaled.0);
        if queues.len() >= MOST && !queues.contains_key(queue) {
            let message = format!("queues of scalers: the limit is {MOST} of this relay");
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        let known = queues.entry(queue.clone());
        Ok(Arc::clone(
            known.or_insert_with(|| Arc::new(ScaledQueue::new())),
        ))
    }

    /// Returns all queues that are remembered for scalers.
    pub(crate) fn scaled_queues(&self) -> Vec<(QueueAddress, Arc<ScaledQueue>)> {
        let queues = read(&self.shared.scaled.0);
        let all = queues.iter();
        all.map(|(queue, known)| (queue.clone(), Arc::clone(known)))
            .collect()
    }

    /// Returns the number of a group's members on a queue, at this relay.
    pub(crate) fn group_members(&self, queue: &QueueAddress, group: &GroupName) -> usize {
        self.shared.hub.group_members(queue, group)
    }
}
