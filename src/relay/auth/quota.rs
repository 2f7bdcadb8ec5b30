//! How much a principal may use by the tables `[[limit]]`, and what it uses at present, over all of its
//! credentials and connections.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::Deserialize;

use super::principal::Principal;
use crate::{
    base::{clock::Tick, sync::lock},
    error::{Error, ErrorKind, Result},
    relay::hub::CursorPool,
};

/// How much a principal may use at one time. 0 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Notifications a second in the long run. The events of a request count, also those that are
    /// merged later.
    pub notify_rate: u32,
    /// Notifications at once after a pause; at least those of the largest request.
    pub notify_burst: u32,
    /// Connections. A connection that several principals use counts for the first.
    pub connections: usize,
    /// Open streams of any kind: subscriptions, watches, publishers' streams, hand-overs.
    pub streams: usize,
    /// Selectors of all subscriptions.
    pub selectors: usize,
    /// Queues that all subscriptions together are attached to. A pattern that matches more gets
    /// wake-ups for the rest under its own name.
    pub subscribed_queues: usize,
}

/// A table `[[limit]]`. A setting that is absent is left to the next table.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitForm {
    pub(super) principals: Vec<String>,
    pub(super) notify_rate: Option<u32>,
    pub(super) notify_burst: Option<u32>,
    pub(super) connections: Option<usize>,
    pub(super) streams: Option<usize>,
    pub(super) selectors: Option<usize>,
    pub(super) subscribed_queues: Option<usize>,
}

/// What a principal uses at present.
#[derive(Debug)]
pub(crate) struct Usage {
    principal: Box<str>,
    /// By [`Resource`].
    used: [AtomicUsize; 3],
    cursors: Arc<CursorPool>,
    notified: Mutex<Notified>,
}

/// What is used up of the burst of notifications. A count and no time, so that another rate, of rules that
/// have changed or of another credential, works it off in its own time.
#[derive(Debug, Default)]
struct Notified {
    /// In billionths of a notification.
    used: u128,
    /// When it was so much.
    at: Tick,
}

/// Something that a principal may have a limited number of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    Connections,
    Streams,
    Selectors,
}

/// A used part of a limit, until dropped.
#[derive(Debug)]
pub(crate) struct Share {
    usage: Arc<Usage>,
    resource: Resource,
    count: usize,
}

/// The usages that a stream, a connection or a cached credential still needs.
#[derive(Debug, Default)]
pub(super) struct UsageTable {
    usages: HashMap<Box<str>, Weak<Usage>>,
    /// Unneeded usages are removed once there are this many.
    sweep_at: usize,
}

/// A refused client waits for this long at least: streams and connections end at any time.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const FIRST_SWEEP: usize = 1024;
/// Parts of a notification that are counted: a rate a second earns so many of them in a nanosecond.
const BILLIONTHS: u128 = 1_000_000_000;

impl Default for Quota {
    fn default() -> Self {
        Self {
            // A notification takes some ten microseconds of the relay with its wake-ups. So one
            // principal uses a tenth of a processor core in the long run.
            notify_rate: 10_000,
            notify_burst: 20_000,
            connections: 1024,
            streams: 1000,
            selectors: 100_000,
            // A quarter of those of the relay.
            subscribed_queues: 500_000,
        }
    }
}

impl Quota {
    /// Combines the tables that apply to a principal: of each setting the first one counts, then the
    /// default.
    pub(super) fn of<'a>(tables: impl DoubleEndedIterator<Item = &'a LimitForm>) -> Self {
        tables.rev().fold(Self::default(), |quota, table| Self {
            notify_rate: table.notify_rate.unwrap_or(quota.notify_rate),
            notify_burst: table.notify_burst.unwrap_or(quota.notify_burst),
            connections: table.connections.unwrap_or(quota.connections),
            streams: table.streams.unwrap_or(quota.streams),
            selectors: table.selectors.unwrap_or(quota.selectors),
            subscribed_queues: table.subscribed_queues.unwrap_or(quota.subscribed_queues),
        })
    }

    /// Returns the limit of a resource, and the name of its setting.
    fn limit(&self, resource: Resource) -> (usize, &'static str) {
        match resource {
            Resource::Connections => (self.connections, "connections"),
            Resource::Streams => (self.streams, "streams"),
            Resource::Selectors => (self.selectors, "selectors"),
        }
    }

    /// Returns so many notifications in billionths. The burst is as large as a request may be.
    fn billionths(&self, notifications: usize) -> u128 {
        BILLIONTHS * (notifications as u128).min(u128::from(self.notify_burst))
    }
}

impl Usage {
    pub(super) fn new(principal: &str) -> Self {
        Self {
            principal: principal.into(),
            used: Default::default(),
            cursors: Arc::new(CursorPool::new(u64::MAX)),
            notified: Mutex::default(),
        }
    }

    /// Takes `count` of a resource.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`], with the limit's name, if the quota has no room for all of them.
    pub(crate) fn take(
        self: &Arc<Self>,
        resource: Resource,
        count: usize,
        quota: &Quota,
    ) -> Result<Share> {
        let (limit, name) = quota.limit(resource);
        let fits = |used: &usize| limit == 0 || *used <= limit;
        let more = |used: usize| used.checked_add(count).filter(fits);
        let taken = self.used[resource as usize].fetch_update(Relaxed, Relaxed, more);
        if taken.is_ok() {
            Ok(Share {
                usage: Arc::clone(self),
                resource,
                count,
            })
        } else {
            let message = format!(
                "{name}: the limit of {limit} {name} of `{}` is reached",
                self.principal
            );
            Err(Error::new(ErrorKind::Exhausted, message).with_retry_after(RETRY_AFTER))
        }
    }

    /// Returns the pool of the cursors of the principal's subscriptions, with the limit of this quota.
    pub(crate) fn cursors(&self, quota: &Quota) -> Arc<CursorPool> {
        let limit = match quota.subscribed_queues {
            0 => u64::MAX,
            limit => limit as u64,
        };
        self.cursors.set_limit(limit);
        Arc::clone(&self.cursors)
    }

    /// Takes this many notifications at once, all or none.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] with the time after which they would be within the rate.
    pub(crate) fn take_notifications(&self, count: usize, quota: &Quota, now: Tick) -> Result<()> {
        if quota.notify_rate == 0 || quota.notify_burst == 0 {
            return Ok(());
        }
        let rate = u128::from(quota.notify_rate);
        let mut notified = lock(&self.notified);
        let earned = now.since(notified.at).as_nanos() * rate;
        notified.used = notified.used.saturating_sub(earned);
        notified.at = notified.at.max(now);
        let used = notified.used + quota.billionths(count);
        let burst = quota.billionths(usize::MAX);
        if used <= burst {
            notified.used = used;
            return Ok(());
        }
        let message = format!(
            "notify_rate: the limit of {} notifications a second of `{}` is reached",
            quota.notify_rate, self.principal
        );
        let wait = u64::try_from((used - burst).div_ceil(rate)).unwrap_or(u64::MAX);
        let error = Error::new(ErrorKind::Exhausted, message);
        Err(error.with_retry_after(Duration::from_nanos(wait)))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.usage.used[self.resource as usize].fetch_sub(self.count, Relaxed);
    }
}

impl UsageTable {
    /// Returns the usage of a principal, which all of its callers share.
    pub(super) fn of(&mut self, principal: &Principal) -> Arc<Usage> {
        let known = self.usages.get(principal.name()).and_then(Weak::upgrade);
        if let Some(known) = known {
            return known;
        }
        if self.usages.len() >= self.sweep_at {
            self.usages.retain(|_, usage| usage.strong_count() > 0);
            self.sweep_at = FIRST_SWEEP.max(2 * self.usages.len());
        }
        let usage = Arc::new(Usage::new(principal.name()));
        self.usages
            .insert(principal.name().into(), Arc::downgrade(&usage));
        usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams(streams: usize) -> Quota {
        Quota {
            streams,
            ..Quota::default()
        }
    }

    /// A burst of 1,024 notifications.
    fn rate(notify_rate: u32) -> Quota {
        Quota {
            notify_rate,
            notify_burst: 1024,
            ..Quota::default()
        }
    }

    #[test]
    fn of_each_setting_the_first_table_counts_then_the_default() {
        let first = LimitForm {
            streams: Some(5),
            ..LimitForm::default()
        };
        let second = LimitForm {
            streams: Some(7),
            connections: Some(0),
            notify_rate: Some(50),
            ..LimitForm::default()
        };
        let quota = Quota::of([&first, &second].into_iter());
        let expected = Quota {
            streams: 5,
            connections: 0,
            notify_rate: 50,
            ..Quota::default()
        };
        assert_eq!(quota, expected);
    }

    #[test]
    fn a_share_is_free_again_when_it_is_dropped() {
        let usage = Arc::new(Usage::new("billing"));
        let take = |resource, count, limit| usage.take(resource, count, &streams(limit));
        let first = take(Resource::Streams, 2, 3).expect("room");
        let error = take(Resource::Streams, 2, 3).expect_err("none");
        assert_eq!(
            error.message(),
            "streams: the limit of 3 streams of `billing` is reached"
        );
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert_eq!(error.retry_after(), Some(RETRY_AFTER));
        assert!(take(Resource::Connections, 2, 3).is_ok());
        drop(first);
        assert!(take(Resource::Streams, 3, 3).is_ok());
        // A lower limit leaves the present streams.
        let held = take(Resource::Streams, 3, 3).expect("room");
        assert!(take(Resource::Streams, 1, 2).is_err());
        assert!(take(Resource::Streams, 1, 0).is_ok(), "no limit");
        drop(held);
        assert!(take(Resource::Streams, 1, 2).is_ok());
    }

    /// A principal whose credentials state different groups must not earn a new burst by changing them.
    #[test]
    fn the_rates_of_a_principal_use_up_one_burst() {
        let usage = Usage::new("billing");
        let now = Tick::default();
        let take = |per_second| usage.take_notifications(1024, &rate(per_second), now);
        take(100).expect("the burst");
        assert!(take(100).is_err());
        assert!(take(200).is_err());
        take(0).expect("no limit");
    }

    #[test]
    fn a_higher_rate_works_off_what_a_lower_one_has_used_up() {
        let usage = Usage::new("billing");
        let take = |per_second, now| usage.take_notifications(1024, &rate(per_second), now);
        let start = Tick::default();
        take(1, start).expect("the burst");
        let error = take(1, start).expect_err("nothing is left");
        assert_eq!(error.retry_after(), Some(Duration::from_secs(1024)));
        take(1024, start + Duration::from_secs(1)).expect("a second's");
    }

    #[test]
    fn a_rate_has_a_burst_and_is_earned_again_with_time() {
        let usage = Usage::new("billing");
        let take = |count, now| usage.take_notifications(count, &rate(100), now);
        let start = Tick::default() + Duration::from_secs(60);
        take(1024, start).expect("the burst");
        let error = take(100, start).expect_err("nothing is left");
        assert!(
            error.message().starts_with("notify_rate: the limit of 100"),
            "{error}"
        );
        let wait = error.retry_after().expect("a time");
        assert_eq!(wait, Duration::from_secs(1));
        assert!(take(100, start + wait / 2).is_err());
        take(100, start + wait).expect("a second's");
        assert!(take(1, start + wait).is_err());
        // A clock that another thread has read earlier takes nothing back.
        assert!(take(1, start).is_err());
        take(0, start + wait).expect("nothing");
        take(5000, start + Duration::from_secs(60)).expect("no more than the burst counts");
    }

    fn principal(number: usize) -> Principal {
        Principal::new(&format!("worker-{number}")).expect("a name")
    }

    #[test]
    fn callers_of_one_principal_share_its_usage() {
        let mut table = UsageTable::default();
        let first = table.of(&principal(1));
        assert!(Arc::ptr_eq(&first, &table.of(&principal(1))));
        assert!(!Arc::ptr_eq(&first, &table.of(&principal(2))));
    }

    #[test]
    fn unneeded_usages_leave_the_table() {
        let mut table = UsageTable::default();
        let kept = table.of(&principal(0));
        for number in 1..10 * FIRST_SWEEP {
            table.of(&principal(number));
        }
        assert!(
            table.usages.len() <= FIRST_SWEEP + 1,
            "{}",
            table.usages.len()
        );
        assert!(Arc::ptr_eq(&kept, &table.of(&principal(0))));
    }
}
