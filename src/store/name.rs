//! Names of blobs, and ETags of writes.

use std::{borrow::Borrow, str::FromStr, sync::Arc};

use crate::{
    base::text::shown_as_text,
    error::{Error, Result},
};

/// A blob's name: 1 to 1,024 bytes in parts with `/` between them. No part is empty, `.` or `..`,
/// and control characters and `\` are excluded. All stores, including file systems, accept such
/// names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobName(Arc<str>);

/// Identifies one write: no other write to any blob of the store has the same ETag.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ETag(Arc<str>);

/// The clouds' own limit on a name.
const NAME: usize = 1024;

impl BlobName {
    /// Makes a blob's name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a malformed name.
    pub fn new(name: &str) -> Result<Self> {
        let part = |part: &str| !matches!(part, "" | "." | "..");
        let character = |c: char| !c.is_control() && c != '\\';
        if name.len() <= NAME && name.split('/').all(part) && name.chars().all(character) {
            return Ok(Self(name.into()));
        }
        let shown: String = name.chars().take(40).collect();
        let rule = format_args!(
            "must be 1 to {NAME} bytes in parts with `/` between them, none empty, `.` or `..`, \
             without control characters and `\\`, but is {shown:?}"
        );
        Err(Error::invalid("blob", rule))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl ETag {
    /// Makes an ETag from the store's text.
    pub fn new(etag: &str) -> Self {
        Self(etag.into())
    }

    /// Returns the store's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Sorts like its text.
impl Borrow<str> for BlobName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for BlobName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

shown_as_text!(0: BlobName, ETag);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blob_names_keep_the_rule() {
        let longest = "x".repeat(1024);
        for good in [
            "a",
            "flags/go",
            "a/b c/ä.txt",
            ".hidden/...",
            longest.as_str(),
        ] {
            assert!(BlobName::new(good).is_ok(), "{good}");
        }
        let too_long = "x".repeat(1025);
        for bad in [
            "",
            "/",
            "/a",
            "a/",
            "a//b",
            "a/../b",
            "./a",
            "..",
            "a\n",
            "a\\b",
            "a\0",
            too_long.as_str(),
        ] {
            let error = BlobName::new(bad).expect_err(bad);
            assert!(
                error.message().starts_with("blob: must be 1 to 1024"),
                "{error}"
            );
        }
    }
}
