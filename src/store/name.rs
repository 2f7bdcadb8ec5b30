//! What identifies a blob, and what identifies a write of it.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

use crate::error::{Error, Result};

/// A blob's name: 1 to 1,024 bytes in parts with `/` between them. No part is empty, `.` or `..`,
/// and there are neither control characters nor `\`: what all stores take, files included.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobName(Arc<str>);

/// Identifies one write of a blob: no other write, of whatever blob of the store, has the same.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ETag(Arc<str>);

/// The clouds' own limit on a name.
const NAME: usize = 1024;

impl BlobName {
    /// Makes a blob's name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where it breaks the rule.
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
    /// Makes an ETag of what a store calls it.
    pub fn new(etag: &str) -> Self {
        Self(etag.into())
    }

    /// Returns what the store calls it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Ordered as its text is.
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

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

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
