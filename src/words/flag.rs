//! The durable global flag, as everybody sees it.

use std::{
    fmt,
    str::FromStr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{Goodbye, Limits, check_name, check_text};
use crate::error::{Error, Result};

/// A flag's name: the names' rule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlagName(Arc<str>);

/// The state of a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagState {
    /// Which flag.
    pub name: FlagName,
    /// Whether it is set.
    pub set: bool,
    /// Another one for each time that it is set; compare for equality only. 0: none is known.
    pub generation: u64,
    /// Who set it.
    pub set_by: String,
    /// Why.
    pub reason: String,
    /// When, by the relay's clock.
    pub set_at: Option<SystemTime>,
    /// When it ends by itself.
    pub expires_at: Option<SystemTime>,
}

/// How a flag is set. What is left out of a flag that is set already stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnleashOptions {
    /// The flag ends by itself after this duration, at most 3650 days; zero: never. `None`: a flag
    /// that is set keeps its end, another one has none.
    pub ttl: Option<Duration>,
    /// Who sets it; at most 128 bytes. Empty: a flag that is set keeps the name it has.
    pub set_by: String,
    /// Why; at most 1,024 bytes. Empty: a flag that is set keeps its reason.
    pub reason: String,
}

/// Who clears a flag, and why: for the relay's log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeashOptions {
    /// Who clears it; at most 128 bytes.
    pub cleared_by: String,
    /// Why; at most 1,024 bytes.
    pub reason: String,
}

/// What arrives on a flag's watch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlagEvent {
    /// The state at first, and each change of it.
    State(FlagState),
    /// The relay is alive, and nothing changed.
    Heartbeat,
    /// The relay ends the stream.
    Goodbye(Goodbye),
    /// How many have acknowledged.
    Acks {
        /// The generation that was acknowledged.
        generation: u64,
        /// Distinct listeners that did.
        acknowledged: u32,
        /// Streams that watch now.
        watchers: u32,
    },
    /// Something that this version does not know: a sign of life.
    Unknown,
}

impl FlagName {
    /// Makes a flag's name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where it breaks the names' rule.
    pub fn new(name: &str) -> Result<Self> {
        check_name("flag", name)?;
        Ok(Self(name.into()))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl UnleashOptions {
    /// Checks the rules that the types do not.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where a text or the span is too long.
    pub fn check(&self) -> Result<()> {
        check_text("set_by", &self.set_by, Limits::TEXT)?;
        check_text("reason", &self.reason, Limits::REASON)?;
        if self.ttl.is_some_and(|ttl| ttl > Limits::TTL) {
            return Err(Error::invalid("ttl", "must be at most 3650 days"));
        }
        Ok(())
    }
}

impl LeashOptions {
    /// Checks the rules that the types do not.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where a text is too long.
    pub fn check(&self) -> Result<()> {
        check_text("cleared_by", &self.cleared_by, Limits::TEXT)?;
        check_text("reason", &self.reason, Limits::REASON)
    }
}

impl FlagState {
    /// Returns the state of a flag that is not set.
    pub fn unset(name: FlagName, generation: u64) -> Self {
        Self {
            name,
            set: false,
            generation,
            set_by: String::new(),
            reason: String::new(),
            set_at: None,
            expires_at: None,
        }
    }
}

impl FromStr for FlagName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl fmt::Display for FlagName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for FlagName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unleash_keeps_its_limits() {
        let second = Duration::from_secs(1);
        let with = |ttl, set_by: usize, reason: usize| UnleashOptions {
            ttl: Some(ttl),
            set_by: "x".repeat(set_by),
            reason: "x".repeat(reason),
        };
        assert!(with(Limits::TTL, 128, 1024).check().is_ok());
        for (options, field) in [
            (with(Limits::TTL + second, 0, 0), "ttl"),
            (with(second, 129, 0), "set_by"),
            (with(second, 0, 1025), "reason"),
        ] {
            let error = options.check().expect_err(field);
            assert!(error.message().starts_with(field), "{error}");
        }
    }
}
