//! Resuming all queues of a plain subscriber's stream by one number.
//!
//! A client states a token for 4,096 queues at most. The hub's *revision* stands for all the
//! others. An entry notes the revision at its newest change, under its lock. A stream that begins
//! to compare its cursors raises the revision from C to C + 1 first, and states C when all findings
//! are sent. Then each change noted with C or less was sent before. Its notifier read the revision
//! before the raise, so it had the entry's lock before the comparison did: in the other order the
//! lock would have shown it C + 1. So the comparison saw the change.
//!
//! A cursor that is attached during the comparison starts with all pending changes marked, and
//! later changes are noted with more than C. A new entry notes the revision as well: a subscriber
//! that was away may not know earlier counts under this name. The revisions of forgotten entries
//! are kept as one number (`Hub::forgotten_at`). For those, a pattern's subscriber gets a CATCH_UP
//! under the pattern's own name, because there is no entry.
//!
//! A notification reads the revision once and never writes it. Streams with patterns over the
//! limits of cursors state no number. Groups need none: a member's queues follow the group's
//! cursor.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    num::NonZeroU64,
};

use super::counters::Epoch;
use crate::types::{ListenerId, Selector, Token};

/// The revision up to which a subscriber has all changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResumePoint {
    pub(crate) revision: NonZeroU64,
    /// A hash of the listener and its selectors: the number is valid for these only.
    pub(crate) digest: u64,
}

/// Bytes of the epoch, the revision and the digest.
const EPOCH: usize = 16;
const NUMBER: usize = 8;

impl ResumePoint {
    pub(crate) fn token(self, epoch: Epoch) -> Token {
        let mut token = Vec::with_capacity(EPOCH + 2 * NUMBER);
        token.extend_from_slice(&epoch.0.to_le_bytes());
        token.extend_from_slice(&self.revision.get().to_le_bytes());
        token.extend_from_slice(&self.digest.to_le_bytes());
        Token(token.into())
    }

    /// Reads a token; `None` where it is of another run of the relay, or malformed.
    pub(crate) fn read(token: &Token, epoch: Epoch) -> Option<Self> {
        let (own, rest) = token.0.split_first_chunk::<EPOCH>()?;
        let (revision, rest) = rest.split_first_chunk::<NUMBER>()?;
        let digest: [u8; NUMBER] = rest.try_into().ok()?;
        let revision = NonZeroU64::new(u64::from_le_bytes(*revision))?;
        (*own == epoch.0.to_le_bytes()).then(|| Self {
            revision,
            digest: u64::from_le_bytes(digest),
        })
    }
}

/// Returns the digest of a listener and its selectors, independent of their order. It is keyed with
/// the hub's seed: a hub that lost its memory and kept its epoch accepts no number of the one
/// before.
pub(super) fn digest(seed: u64, listener: &ListenerId, selectors: &[Selector]) -> u64 {
    let listener = hashed(&(seed, listener));
    let selectors = selectors.iter().map(|one| hashed(&(seed, listener, one)));
    selectors.fold(listener, u64::wrapping_add)
}

fn hashed(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
