//! A subscriber's resume number, which only the relay reads.

use bytes::Bytes;

/// A subscriber has all wake-ups up to here. Opaque: the subscriber keeps the newest one, and the
/// relay that issued it reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ResumeNumber(pub Bytes);

impl ResumeNumber {
    /// Returns whether there is no number.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
