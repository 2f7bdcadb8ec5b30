//! Patterns of rules: a name, or a prefix that ends in one `*`.

use std::str::FromStr;

use crate::{
    error::{Error, Result},
    types::{QueueAddress, Selector, check_name},
};

/// A name, or all names with a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::relay::auth) struct NamePattern {
    stem: Box<str>,
    /// Whether a `*` follows the stem.
    is_prefix: bool,
}

/// A queue, or all queues that a selector matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::relay::auth) struct QueuePattern {
    account: NamePattern,
    queue: NamePattern,
}

/// A flag, or all flags with a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::relay::auth) struct FlagPattern(pub(super) NamePattern);

impl NamePattern {
    fn new(text: &str) -> Self {
        let stem = text.strip_suffix('*');
        Self {
            stem: stem.unwrap_or(text).into(),
            is_prefix: stem.is_some(),
        }
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        if self.is_prefix {
            name.starts_with(&*self.stem)
        } else {
            *name == *self.stem
        }
    }

    /// Returns whether all names with this prefix match.
    pub(super) fn covers_prefix(&self, prefix: &str) -> bool {
        self.is_prefix && prefix.starts_with(&*self.stem)
    }

    /// Returns whether all names that a part of a selector matches match here as well.
    fn covers(&self, part: &str) -> bool {
        match part.strip_suffix('*') {
            Some(prefix) => self.covers_prefix(prefix),
            None => self.matches(part),
        }
    }
}

impl QueuePattern {
    pub(super) fn matches(&self, address: &QueueAddress) -> bool {
        if self.account.is_prefix {
            let (account, queue) = address.parts();
            return self.account.matches(account) && self.queue.matches(queue);
        }
        // Without a search for the slash, because this runs for each notification.
        let text = address.as_str();
        text.strip_prefix(&*self.account.stem)
            .and_then(|rest| rest.strip_prefix('/'))
            .is_some_and(|queue| self.queue.matches(queue))
    }

    /// Returns the first address from `from` on that the pattern could match; `None` where it matches
    /// none from there on. Patterns with a `*` in the account may match none of the next ones.
    pub(super) fn seek(&self, from: &str) -> Option<String> {
        let prefix = if self.account.is_prefix {
            self.account.stem.to_string()
        } else {
            format!("{}/{}", self.account.stem, self.queue.stem)
        };
        let is_one = !self.account.is_prefix && !self.queue.is_prefix;
        match from <= &*prefix {
            true => Some(prefix),
            false if is_one || !from.starts_with(&*prefix) => None,
            false => Some(from.to_owned()),
        }
    }

    /// Returns whether the pattern matches every address that the selector matches. A selector
    /// matches any combination of its parts, so each part is compared alone.
    pub(super) fn covers(&self, selector: &Selector) -> bool {
        self.account.covers(selector.storage_account()) && self.queue.covers(selector.queue_name())
    }
}

impl FromStr for QueuePattern {
    type Err = Error;

    /// Parses a selector, such as `acct/ord*`.
    fn from_str(text: &str) -> Result<Self> {
        let selector: Selector = text.parse()?;
        Ok(Self {
            account: NamePattern::new(selector.storage_account()),
            queue: NamePattern::new(selector.queue_name()),
        })
    }
}

impl FromStr for FlagPattern {
    type Err = Error;

    /// Parses a flag's name, or a prefix with one `*` at its end.
    fn from_str(text: &str) -> Result<Self> {
        let pattern = NamePattern::new(text);
        if pattern.stem.contains('*') {
            let rule = format_args!("may hold one `*`, at its end, but is {text:?}");
            return Err(Error::invalid("flag", rule));
        }
        // `.` and `..` are no names, but names may begin so.
        let stem_is_open = pattern.stem.is_empty() || matches!(&*pattern.stem, "." | "..");
        if !(pattern.is_prefix && stem_is_open) {
            check_name("flag", &pattern.stem)?;
        }
        Ok(Self(pattern))
    }
}
