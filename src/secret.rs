//! Text that is never shown: keys, signatures, tokens.
//!
//! Whatever holds one may derive `Debug`: a secret prints as `(secret)`. Does not wipe memory.

use std::{fmt, sync::Arc};

/// A secret. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Arc<str>);

impl Secret {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the text itself: for whom it was made, and for no message.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}
