//! Encoded sizes, so that a client can limit its requests before encoding them.
//!
//! Texts and selectors are measured exactly; durations, counts and the resume number by their
//! maximum. A test of `wire` compares with the encoder.

use super::{Limits, Notification, Selector, SubscribeOptions};

/// A duration or a time: key, length, and the longest seconds and nanoseconds.
const SPAN: usize = 2 + 11 + 6;
/// A count: key and the longest varint.
const COUNT: usize = 11;

impl SubscribeOptions {
    /// Returns the maximum size of the request.
    pub(crate) fn encoded_at_most(&self) -> usize {
        let selectors = self.selectors.iter().map(|selector| {
            let length = names(selector);
            field(length)
        });
        let group = self.group.as_ref().map_or(0, |group| group.as_str().len());
        let texts = text(self.listener_id.as_str().len()) + text(group);
        let resume = text(Limits::TOKEN);
        texts + selectors.sum::<usize>() + COUNT + 2 * SPAN + resume
    }
}

impl Notification {
    /// Returns its maximum size in a notify request.
    pub(crate) fn encoded_at_most(&self) -> usize {
        let (account, name) = self.queue.parts();
        let texts = text(account.len()) + text(name.len()) + text(self.traceparent.len());
        field(texts + 3 * COUNT + 2 * SPAN)
    }
}

fn names(selector: &Selector) -> usize {
    text(selector.storage_account().len()) + text(selector.queue_name().len())
}

/// Returns the size of a text field; an empty text is omitted.
fn text(length: usize) -> usize {
    if length == 0 { 0 } else { field(length) }
}

/// Returns the size of a field of this length, including its key and the length itself.
fn field(length: usize) -> usize {
    let bits = usize::BITS - (length | 1).leading_zeros();
    1 + bits.div_ceil(7) as usize + length
}
