//! Queue addresses, and the selectors that match them.
//!
//! Matching is exact except for one `*` at the end of either part of a selector.

use std::{borrow::Borrow, str::FromStr, sync::Arc};

use super::{Limits, check_name};
use crate::{
    base::text::shown_as_text,
    error::{Error, Result},
};

/// A queue's address, written `account/queue`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueAddress {
    /// `account/queue`; neither part contains a slash.
    text: Arc<str>,
}

/// An address, or a pattern that matches many addresses: either part may end in one `*`, as in
/// `acct/ord*`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector {
    text: Arc<str>,
}

impl QueueAddress {
    /// Creates an address.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a part breaks the rule for names:
    /// 1 to 128 of `[A-Za-z0-9._-]`, not `.` or `..`.
    pub fn new(storage_account: &str, queue_name: &str) -> Result<Self> {
        check_name("storage_account", storage_account)?;
        check_name("queue_name", queue_name)?;
        Ok(Self {
            text: join(storage_account, queue_name),
        })
    }

    /// Returns the storage account.
    pub fn storage_account(&self) -> &str {
        split(&self.text).0
    }

    /// Returns the queue's name within its account.
    pub fn queue_name(&self) -> &str {
        split(&self.text).1
    }

    /// Returns the address as `account/queue`.
    #[cfg(feature = "relay")]
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the account and the queue's name.
    pub(crate) fn parts(&self) -> (&str, &str) {
        split(&self.text)
    }

    /// Returns whether the address has these parts.
    pub(crate) fn is(&self, account: &[u8], name: &[u8]) -> bool {
        let text = self.text.as_bytes();
        text.len() == account.len() + 1 + name.len()
            && text.starts_with(account)
            && text[account.len()] == b'/'
            && text.ends_with(name)
    }
}

impl Selector {
    /// Creates a selector.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a part, without the `*` at its end,
    /// breaks the rule for names, or a `*` is elsewhere.
    pub fn new(storage_account: &str, queue_name: &str) -> Result<Self> {
        check_pattern("storage_account", storage_account)?;
        check_pattern("queue_name", queue_name)?;
        Ok(Self {
            text: join(storage_account, queue_name),
        })
    }

    /// Returns the storage account, with its `*` if any.
    pub fn storage_account(&self) -> &str {
        split(&self.text).0
    }

    /// Returns the queue's name, with its `*` if any.
    pub fn queue_name(&self) -> &str {
        split(&self.text).1
    }

    /// Returns the one address that this selector matches, or `None` for a pattern.
    pub fn as_address(&self) -> Option<QueueAddress> {
        (!self.is_pattern()).then(|| QueueAddress {
            text: Arc::clone(&self.text),
        })
    }

    /// Returns whether a part ends in `*`.
    pub fn is_pattern(&self) -> bool {
        let (account, queue) = split(&self.text);
        account.ends_with('*') || queue.ends_with('*')
    }

    /// Returns the selector as `account/queue`.
    #[cfg(feature = "relay")]
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the common prefix of all addresses that the selector may match. These addresses are
    /// adjacent in the order of addresses.
    #[cfg(feature = "relay")]
    pub(crate) fn beginning(&self) -> &str {
        let star = self.text.find('*');
        &self.text[..star.unwrap_or(self.text.len())]
    }

    /// Returns whether the selector matches the address.
    pub fn matches(&self, address: &QueueAddress) -> bool {
        part_matches(self.storage_account(), address.storage_account())
            && part_matches(self.queue_name(), address.queue_name())
    }
}

impl Borrow<str> for QueueAddress {
    /// Returns `account/queue`, by which addresses are ordered.
    fn borrow(&self) -> &str {
        &self.text
    }
}

impl From<QueueAddress> for Selector {
    fn from(address: QueueAddress) -> Self {
        Self { text: address.text }
    }
}

impl From<&QueueAddress> for Selector {
    fn from(address: &QueueAddress) -> Self {
        Self {
            text: Arc::clone(&address.text),
        }
    }
}

impl FromStr for QueueAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (account, queue) = parts("queue", text)?;
        Self::new(account, queue)
    }
}

impl FromStr for Selector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (account, queue) = parts("selector", text)?;
        Self::new(account, queue)
    }
}

shown_as_text!(text: QueueAddress, Selector);

fn join(account: &str, queue: &str) -> Arc<str> {
    let mut text = String::with_capacity(account.len() + 1 + queue.len());
    text.push_str(account);
    text.push('/');
    text.push_str(queue);
    text.into()
}

fn split(text: &str) -> (&str, &str) {
    // Byte by byte: accounts are short, and memchr has a higher start-up cost.
    let slash = text.bytes().position(|byte| byte == b'/');
    let (account, queue) = text.split_at(slash.expect("made by join"));
    (account, &queue[1..])
}

fn parts<'a>(field: &str, text: &'a str) -> Result<(&'a str, &'a str)> {
    text.split_once('/').ok_or_else(|| {
        Error::invalid(
            field,
            format_args!("must be written account/queue, but is {text:?}"),
        )
    })
}

fn check_pattern(field: &str, part: &str) -> Result<()> {
    let stem = part.strip_suffix('*').unwrap_or(part);
    if stem.contains('*') {
        return Err(Error::invalid(
            field,
            format_args!("may hold one `*`, at its end, but is {part:?}"),
        ));
    }
    // A bare `*` matches every name; `.` and `..` before it are ordinary prefixes.
    let only_dots = stem.len() <= Limits::NAME && stem.bytes().all(|b| b == b'.');
    if part.len() > stem.len() && only_dots {
        return Ok(());
    }
    check_name(field, stem)
}

fn part_matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(stem) => name.starts_with(stem),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> QueueAddress {
        text.parse().expect(text)
    }

    fn selector(text: &str) -> Selector {
        text.parse().expect(text)
    }

    #[test]
    fn an_address_is_two_names() {
        let orders = address("acct/orders");
        assert_eq!(
            (orders.storage_account(), orders.queue_name()),
            ("acct", "orders")
        );
        for bad in ["acct", "acct/", "/q", "a/b/c", "a/*", "../q", ""] {
            assert!(bad.parse::<QueueAddress>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_selector_matches_exactly_but_for_the_star_at_its_end() {
        for (text, matching, other) in [
            ("acct/orders", "acct/orders", "acct/orders2"),
            ("acct/ord*", "acct/orders", "acct/invoices"),
            ("acct/*", "acct/x", "acct2/x"),
            ("a*/jobs", "acct/jobs", "acct/jobs2"),
            ("*/*", "any/thing", ""),
        ] {
            assert!(
                selector(text).matches(&address(matching)),
                "{text} {matching}"
            );
            if !other.is_empty() {
                assert!(!selector(text).matches(&address(other)), "{text} {other}");
            }
        }
    }

    #[test]
    fn a_star_elsewhere_is_refused() {
        for bad in ["a*b/q", "a/*x", "a/x**", "**/q", "a/or*d*"] {
            let error = bad.parse::<Selector>().expect_err(bad);
            assert!(error.message().contains("at its end"), "{error}");
        }
    }

    #[test]
    fn dots_before_a_star_have_the_limit_of_a_name() {
        selector(&format!("..*/{}*", ".".repeat(128)));
        let long = format!("a/{}*", ".".repeat(129));
        let error = long.parse::<Selector>().expect_err("too long");
        assert!(error.message().starts_with("queue_name: "), "{error}");
    }

    #[test]
    fn only_an_exact_selector_is_an_address() {
        assert_eq!(selector("a/q").as_address(), Some(address("a/q")));
        assert_eq!(selector("a/q*").as_address(), None);
        assert!(selector("a/q*").is_pattern());
    }
}
