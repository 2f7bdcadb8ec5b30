//! Resuming all queues of a plain subscriber's stream by one number.
//!
//! A subscriber that reconnects states the newest *resume number* that its relay sent: a *revision* of
//! the hub, and a digest of the hub's life, the listener and its selectors. The queues that changed
//! since that revision get a CATCH_UP, the others nothing.
//!
//! An entry notes the revision when all subscribers are marked for its newest change, under its lock;
//! while the fan-out has some of them to mark, it counts as changed after every revision. A stream
//! that draws a number raises the revision from C to C + 1 first, then takes its marks, and states C
//! when what they stand for was sent. Then each change noted with C or less was sent before: its
//! mark was set before the revision was read, so a stream that had not found the mark had raised the
//! revision by then.
//!
//! Numbers are drawn only when all queues of patterns are introduced. A new entry notes the revision as well: a subscriber
//! that was away may not know earlier counts under this name. The revisions of forgotten entries
//! are kept as one number (`Hub::forgotten_at`). For those, a pattern's subscriber gets a CATCH_UP
//! under the pattern's own name, because there is no entry.
//!
//! A wake-up that was taken for a stream and did not arrive is newer than the number that its
//! subscriber states, so the queue has changed. The subscriber takes a number only when the
//! application has all wake-ups before it.
//!
//! A notification reads the revision once and never writes it. Groups need no number: a member's
//! queues follow the group's cursor.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::super::{config::HubConfig, core::Hub, sync::Ordering};
use crate::{
    base::fault::planted,
    types::{ListenerId, ResumeNumber, Selector, SubscribeOptions},
};

/// Bytes of the digest, and of the revision.
const HALF: usize = 8;

/// Writes the number of a subscriber with this digest that has all changes up to this revision.
pub(crate) fn number(digest: u64, revision: u64) -> ResumeNumber {
    let halves: [[u8; HALF]; 2] = [digest.to_le_bytes(), revision.to_le_bytes()];
    ResumeNumber(halves.concat().into())
}

/// Reads the digest and the revision; `None` where no relay has written the number.
pub(crate) fn read(number: &ResumeNumber) -> Option<(u64, u64)> {
    let (digest, revision) = number.0.split_first_chunk::<HALF>()?;
    let revision: [u8; HALF] = revision.try_into().ok()?;
    Some((u64::from_le_bytes(*digest), u64::from_le_bytes(revision)))
}

impl Hub {
    /// Returns the revision up to which a subscriber with this digest has all changes, by the number that
    /// it states; `None` without one that is valid here.
    pub(in super::super) fn resumed_at(
        &self,
        options: &SubscribeOptions,
        digest: u64,
    ) -> Option<u64> {
        let (stated, revision) = read(&options.resume).filter(|_| options.group.is_none())?;
        let is_known = revision < self.shared.revision.load(Ordering::Relaxed);
        let is_own = stated == digest && is_known;
        (is_own || planted!(ForeignEpochAccepted)).then_some(revision)
    }
}

/// Returns the digest of a hub's life, a listener and its sorted selectors. The life is the epoch and the
/// seed: a hub that lost its memory and kept its epoch accepts no number of the one before.
pub(crate) fn digest(config: &HubConfig, listener: &ListenerId, selectors: &[Selector]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (config.epoch.0, config.seed, listener, selectors).hash(&mut hasher);
    hasher.finish()
}
