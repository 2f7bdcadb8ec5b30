//! Durable global flags: names, states, options and watch events.

use std::time::{Duration, SystemTime};

use super::{FlagName, Goodbye, Limits, check_text};
use crate::error::{Error, Result};

/// The state of a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagState {
    /// The flag's name.
    pub name: FlagName,
    /// Whether it is set.
    pub set: bool,
    /// A new value for each time that the flag is set; compare for equality only. 0: unknown.
    pub generation: u64,
    /// Name of the caller that set the flag.
    pub set_by: String,
    /// Reason of that caller.
    pub reason: String,
    /// Time at which the flag was set, by the relay's clock.
    pub set_at: Option<SystemTime>,
    /// Time at which the flag expires.
    pub expires_at: Option<SystemTime>,
}

/// How a flag is set. Values that are left out keep those of a flag that is already set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnleashOptions {
    /// The flag expires after this duration, at most 3650 days; zero: never. `None`: a flag that is
    /// already set keeps its expiry, another one never expires.
    pub ttl: Option<Duration>,
    /// Name of the caller; at most 128 bytes. Empty: a flag that is already set keeps its name.
    pub set_by: String,
    /// Reason; at most 1,024 bytes. Empty: a flag that is already set keeps its reason.
    pub reason: String,
}

/// The caller that clears a flag, and its reason: for the relay's log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeashOptions {
    /// Name of the caller; at most 128 bytes.
    pub cleared_by: String,
    /// Reason; at most 1,024 bytes.
    pub reason: String,
}

/// An event of a flag's watch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlagEvent {
    /// The current state first, then each change.
    State(FlagState),
    /// The relay is alive, and the flag has not changed.
    Heartbeat,
    /// The relay ends the stream.
    Goodbye(Goodbye),
    /// The number of acknowledgements.
    Acks {
        /// The acknowledged generation.
        generation: u64,
        /// Number of distinct listeners that acknowledged it.
        acknowledged: u32,
        /// Number of streams that watch now.
        watchers: u32,
    },
    /// An event that this version does not know; it counts as a heartbeat.
    Unknown,
}

impl UnleashOptions {
    /// Checks the rules that the types do not enforce.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a text or the duration is too long.
    pub fn check(&self) -> Result<()> {
        check_text("set_by", &self.set_by, Limits::MAX_TEXT)?;
        check_text("reason", &self.reason, Limits::REASON)?;
        if self.ttl.is_some_and(|ttl| ttl > Limits::TTL) {
            return Err(Error::invalid("ttl", "must be at most 3650 days"));
        }
        Ok(())
    }
}

impl LeashOptions {
    /// Checks the rules that the types do not enforce.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a text is too long.
    pub fn check(&self) -> Result<()> {
        check_text("cleared_by", &self.cleared_by, Limits::MAX_TEXT)?;
        check_text("reason", &self.reason, Limits::REASON)
    }
}

impl FlagState {
    /// Generations from here on are hashes. A count of microseconds since 1970 reaches it in
    /// 146,000 years.
    #[cfg(feature = "coordination")]
    pub(crate) const HASHES: u64 = 1 << 62;

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
