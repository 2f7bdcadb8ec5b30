//! The most bytes that a subscribe request encodes to, so that a client can refuse it before encoding it.

use super::{Limits, SubscribeOptions};

/// Beside the content of a text or a selector: key and length.
const FRAME: usize = 3;
/// A duration or a time: key, length, and the longest seconds and nanoseconds.
const SPAN: usize = 2 + 11 + 6;
/// A count: key and the longest varint.
const COUNT: usize = 11;

impl SubscribeOptions {
    /// Returns the maximum size of the request.
    pub(crate) fn encoded_at_most(&self) -> usize {
        let selectors = self.selectors.iter().map(|selector| {
            let names = selector.storage_account().len() + selector.queue_name().len();
            names + 3 * FRAME
        });
        let group = self.group.as_ref().map_or(0, |group| group.as_str().len());
        let texts = self.listener_id.as_str().len() + group + Limits::TOKEN + 3 * FRAME;
        texts + selectors.sum::<usize>() + COUNT + 2 * SPAN
    }
}
