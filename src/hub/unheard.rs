//! Names that nobody listens on: said once for each queue, with the nearest name that somebody does.
//!
//! Matching is exact, so a misspelled queue is notified for ever and wakes nobody. Off the hot
//! path: asked only when a notification found no listener.

use super::{core::Hub, sync::lock};
use crate::words::{QueueAddress, Selector};

/// Names further apart than this are no misspellings of each other.
const NEAR: usize = 3;

impl Hub {
    /// Returns `Some` the first time that a queue is found without listeners, with the nearest
    /// selector that somebody subscribes to, if any is near.
    pub(crate) fn unheard(&self, queue: &QueueAddress) -> Option<Option<Selector>> {
        let record = self.records.get(queue)?;
        if !record.lock().first_unheard() {
            return None;
        }
        let subscriptions: Vec<_> = lock(&self.subscriptions).values().cloned().collect();
        let name = queue.to_string().to_lowercase();
        let distance =
            |selector: &Selector| strsim::levenshtein(&name, &selector.to_string().to_lowercase());
        let all = subscriptions
            .iter()
            .flat_map(|subscription| &subscription.selectors);
        let near = all
            .map(|selector| (distance(selector), selector))
            .filter(|(far, _)| *far <= NEAR);
        Some(
            near.min_by_key(|(far, _)| *far)
                .map(|(_, selector)| selector.clone()),
        )
    }
}
