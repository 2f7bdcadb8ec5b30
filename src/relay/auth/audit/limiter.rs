//! Limits the lines of denials: one a second for each principal and action, or address and action.
//!
//! Plain data: its owner holds the lock and passes the time. Counts that have no later line are
//! returned once their second is over, so that no denial stays uncounted.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, SystemTime},
};

#[derive(Debug, Default)]
pub(super) struct DenialLimiter {
    recent: HashMap<Key, Recent>,
    /// The last search for ended floods.
    searched: Option<SystemTime>,
}

/// The principal, the address of an unknown caller, and the action.
type Key = (Box<str>, Option<IpAddr>, Box<str>);

#[derive(Debug, Clone, Copy)]
struct Recent {
    at: SystemTime,
    suppressed: u64,
}

/// Denials without a line whose flood has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) principal: Box<str>,
    pub(super) from: Option<IpAddr>,
    pub(super) action: Box<str>,
    pub(super) at: SystemTime,
    pub(super) suppressed: u64,
}

const EVERY: Duration = Duration::from_secs(1);
/// More principals than this share one line.
const MOST: usize = 4096;
const OTHERS: &str = "(others)";

impl DenialLimiter {
    /// Counts a denial. If it should be recorded, returns the number of denials before it that were
    /// not.
    pub(super) fn count(
        &mut self,
        (principal, from, action): (&str, Option<IpAddr>, &str),
        at: SystemTime,
    ) -> Option<u64> {
        let mut key = (Box::from(principal), from, Box::from(action));
        if self.recent.len() >= MOST && !self.recent.contains_key(&key) {
            (key.0, key.1) = (OTHERS.into(), None);
        }
        let recent = self.recent.get_mut(&key);
        if let Some(recent) = recent.filter(|recent| recent.is_near(at)) {
            recent.suppressed += 1;
            return None;
        }
        let last = self.recent.insert(key, Recent { at, suppressed: 0 });
        Some(last.map_or(0, |last| last.suppressed))
    }

    /// Removes the floods that have ended, at most once a second.
    pub(super) fn take_ended(&mut self, now: SystemTime) -> Vec<Ended> {
        let searched = self.searched.map(|at| Recent { at, suppressed: 0 });
        if searched.is_some_and(|searched| searched.is_near(now)) {
            return Vec::new();
        }
        self.searched = Some(now);
        self.take(|recent| !recent.is_near(now))
    }

    pub(super) fn take_all(&mut self) -> Vec<Ended> {
        self.take(|_| true)
    }

    fn take(&mut self, is_ended: impl Fn(&Recent) -> bool) -> Vec<Ended> {
        let ended = self.recent.extract_if(|_, recent| is_ended(recent));
        let ended = ended.filter(|(_, recent)| recent.suppressed > 0);
        let ended = ended.map(|((principal, from, action), recent)| Ended {
            principal,
            from,
            action,
            at: recent.at,
            suppressed: recent.suppressed,
        });
        ended.collect()
    }
}

impl Recent {
    /// Returns whether the time is within the second. A clock that was set back begins a new one.
    fn is_near(&self, at: SystemTime) -> bool {
        at.duration_since(self.at).is_ok_and(|since| since < EVERY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000 + millis)
    }

    fn of<'a>(principal: &'a str, action: &'a str) -> (&'a str, Option<IpAddr>, &'a str) {
        (principal, None, action)
    }

    #[test]
    fn the_failures_of_one_address_do_not_hide_those_of_another() {
        let mut limiter = DenialLimiter::default();
        let from = |last| ("", Some(IpAddr::from([10, 0, 0, last])), "authenticate");
        assert_eq!(limiter.count(from(1), at(0)), Some(0));
        assert_eq!(limiter.count(from(1), at(1)), None);
        assert_eq!(limiter.count(from(2), at(1)), Some(0));
        let ended = limiter.take_all();
        assert_eq!(ended.len(), 1, "{ended:?}");
        assert_eq!(ended[0].from, from(1).1);
    }

    #[test]
    fn a_flood_is_one_line_a_second_and_counted_whole() {
        let mut limiter = DenialLimiter::default();
        assert_eq!(limiter.count(of("a", "notify"), at(0)), Some(0));
        for millis in 1..1000 {
            assert_eq!(limiter.count(of("a", "notify"), at(millis)), None);
        }
        assert_eq!(limiter.count(of("b", "notify"), at(999)), Some(0));
        assert_eq!(limiter.count(of("a", "watch"), at(999)), Some(0));
        assert_eq!(limiter.count(of("a", "notify"), at(1000)), Some(999));
        assert_eq!(limiter.count(of("a", "notify"), at(1001)), None);
        let ended = limiter.take_ended(at(2500));
        assert_eq!(ended.len(), 1, "{ended:?}");
        assert_eq!(ended[0].suppressed, 1);
        assert!(limiter.recent.is_empty());
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_silence_the_log() {
        let mut limiter = DenialLimiter::default();
        assert_eq!(limiter.count(of("a", "notify"), at(900_000)), Some(0));
        assert_eq!(limiter.count(of("a", "notify"), at(0)), Some(0));
    }

    #[test]
    fn the_table_stays_bounded() {
        let mut limiter = DenialLimiter::default();
        for number in 0..10_000 {
            limiter.count(of(&number.to_string(), "notify"), at(0));
        }
        assert_eq!(limiter.recent.len(), MOST + 1);
        let all: u64 = limiter
            .take_all()
            .iter()
            .map(|ended| ended.suppressed)
            .sum();
        assert_eq!(all, 10_000 - MOST as u64 - 1);
    }
}
