//! Resuming all queues of a plain subscriber's stream by one number.
//!
//! A subscriber that reconnects states the newest *resume number* that its relay sent: the epoch, a
//! *revision* of the hub, and a digest of the listener and its selectors. The queues that changed
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

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    num::NonZeroU64,
};

use super::super::{core::Hub, counters::Epoch, sync::Ordering};
use crate::{
    base::fault::planted,
    types::{ListenerId, ResumeNumber, Selector, SubscribeOptions},
};

/// The content of a resume number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResumePoint {
    pub(crate) epoch: Epoch,
    /// The subscriber has all changes up to this one.
    pub(crate) revision: NonZeroU64,
    /// A hash of the listener and its selectors: the number is valid for these only.
    pub(crate) digest: u64,
}

/// Bytes of the epoch, the revision and the digest.
const EPOCH: usize = 16;
const NUMBER: usize = 8;

impl ResumePoint {
    pub(crate) fn number(self) -> ResumeNumber {
        let (revision, digest) = (self.revision.get().to_le_bytes(), self.digest.to_le_bytes());
        let parts: [&[u8]; 3] = [&self.epoch.0.to_le_bytes(), &revision, &digest];
        ResumeNumber(parts.concat().into())
    }

    /// Reads a number; `None` where no relay has written it.
    pub(crate) fn read(number: &ResumeNumber) -> Option<Self> {
        let (epoch, rest) = number.0.split_first_chunk::<EPOCH>()?;
        let (revision, rest) = rest.split_first_chunk::<NUMBER>()?;
        let digest: [u8; NUMBER] = rest.try_into().ok()?;
        Some(Self {
            epoch: Epoch(u128::from_le_bytes(*epoch)),
            revision: NonZeroU64::new(u64::from_le_bytes(*revision))?,
            digest: u64::from_le_bytes(digest),
        })
    }
}

impl Hub {
    /// Returns the revision up to which a subscriber with this digest has all changes, by the number that
    /// it states; `None` without one that is valid here.
    pub(in super::super) fn resumed_at(
        &self,
        options: &SubscribeOptions,
        digest: u64,
    ) -> Option<u64> {
        let point = ResumePoint::read(&options.resume).filter(|_| options.group.is_none())?;
        let revision = point.revision.get();
        if point.epoch != self.shared.config.epoch {
            return planted!(ForeignEpochAccepted).then_some(revision);
        }
        let is_known = revision < self.fanout.revision.load(Ordering::Relaxed);
        (is_known && point.digest == digest).then_some(revision)
    }

    /// Returns whether an entry was forgotten that changed after this revision.
    pub(in super::super) fn forgot_since(&self, revision: u64) -> bool {
        if planted!(ResumePastForgotten) {
            return false;
        }
        self.forgotten_at.load(Ordering::Acquire) > revision
    }
}

/// Returns the digest of a listener and its sorted selectors. It is keyed with the hub's seed: a hub
/// that lost its memory and kept its epoch accepts no number of the one before.
pub(crate) fn digest(seed: u64, listener: &ListenerId, selectors: &[Selector]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, listener, selectors).hash(&mut hasher);
    hasher.finish()
}
