//! Secret text such as keys, signatures and tokens.
//!
//! A type with a secret may derive `Debug`: the secret prints as `(secret)`. Memory is not wiped.

use std::{fmt, sync::Arc};

/// A secret. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Arc<str>);

impl Secret {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the text, for requests only. It must not appear in messages.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}
