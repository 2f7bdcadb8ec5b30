//! What a principal uses at present, over all of its credentials and connections.

use std::{
    num::NonZeroU32,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use governor::{
    RateLimiter, clock::Clock, middleware::NoOpMiddleware, nanos::Nanos, state::InMemoryState,
    state::NotKeyed,
};

use super::quota::{NotifyRate, Quota};
use crate::{
    base::{clock::Tick, sync::lock},
    error::{Error, ErrorKind, Result},
    relay::hub::CursorPool,
};

/// What a principal uses at present.
#[derive(Debug)]
pub(crate) struct Usage {
    principal: Box<str>,
    connections: AtomicUsize,
    streams: AtomicUsize,
    selectors: AtomicUsize,
    cursors: Arc<CursorPool>,
    /// One for each rate that credentials of the principal have: their groups may differ.
    rates: Mutex<Vec<Arc<RateOfNotify>>>,
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

/// The rate of one principal's notifications.
#[derive(Debug)]
pub(crate) struct RateOfNotify {
    principal: Box<str>,
    pub(super) rate: NotifyRate,
    limiter: RateLimiter<NotKeyed, InMemoryState, LatestTime, NoOpMiddleware<Nanos>>,
    now: LatestTime,
    /// Notifications that were taken and then refused for another reason, and when. The limiter takes
    /// none back; after [`UNUSED_FOR`] it has earned as many again.
    unused: AtomicU32,
    unused_at: AtomicU64,
}

/// The clock of a limiter: the latest time that a caller has stated.
#[derive(Debug, Clone, Default)]
struct LatestTime(Arc<AtomicU64>);

/// Rates beyond these are removed once no caller has them.
const MOST_RATES: usize = 8;
/// What was given back is there for this long.
const UNUSED_FOR: Duration = Duration::from_secs(1);
/// A refused client waits for this long at least: streams and connections end at any time.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Usage {
    pub(super) fn new(principal: &str) -> Self {
        Self {
            principal: principal.into(),
            connections: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            selectors: AtomicUsize::new(0),
            cursors: Arc::new(CursorPool::unlimited()),
            rates: Mutex::default(),
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
        let limit = resource.limit(quota).unwrap_or(usize::MAX);
        let more = |used: usize| used.checked_add(count).filter(|used| *used <= limit);
        let taken = self.used(resource).fetch_update(Relaxed, Relaxed, more);
        match taken {
            Ok(_) => Ok(Share {
                usage: Arc::clone(self),
                resource,
                count,
            }),
            Err(_) => Err(self.exhausted(resource, limit)),
        }
    }

    /// Returns the pool of the cursors of the principal's subscriptions, with the limit of this quota.
    pub(crate) fn cursors(&self, quota: &Quota) -> Arc<CursorPool> {
        let limit = quota.subscribed_queues;
        self.cursors
            .set_limit(limit.map_or(u64::MAX, |limit| limit as u64));
        Arc::clone(&self.cursors)
    }

    /// Returns the rate of the principal's notifications, which all of its callers share; `None`
    /// without a limit.
    pub(super) fn rate(&self, quota: &Quota) -> Option<Arc<RateOfNotify>> {
        let stated = quota.notifications?;
        let mut rates = lock(&self.rates);
        if let Some(known) = rates.iter().find(|known| known.rate == stated) {
            return Some(Arc::clone(known));
        }
        // Those of former rules are in use no longer.
        if rates.len() >= MOST_RATES {
            rates.retain(|rate| Arc::strong_count(rate) > 1);
        }
        let rate = Arc::new(RateOfNotify::new(&self.principal, stated));
        rates.push(Arc::clone(&rate));
        Some(rate)
    }

    fn used(&self, resource: Resource) -> &AtomicUsize {
        match resource {
            Resource::Connections => &self.connections,
            Resource::Streams => &self.streams,
            Resource::Selectors => &self.selectors,
        }
    }

    #[cold]
    fn exhausted(&self, resource: Resource, limit: usize) -> Error {
        let (name, principal) = (resource.name(), &self.principal);
        let message = format!("{name}: the limit of {limit} {name} of `{principal}` is reached");
        Error::new(ErrorKind::Exhausted, message).with_retry_after(RETRY_AFTER)
    }
}

impl Resource {
    /// The name of the setting in a table `[[limit]]`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Streams => "streams",
            Self::Selectors => "selectors",
        }
    }

    fn limit(self, quota: &Quota) -> Option<usize> {
        match self {
            Self::Connections => quota.connections,
            Self::Streams => quota.streams,
            Self::Selectors => quota.selectors,
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let used = self.usage.used(self.resource);
        used.fetch_sub(self.count, Relaxed);
    }
}

impl RateOfNotify {
    pub(super) fn new(principal: &str, rate: NotifyRate) -> Self {
        let now = LatestTime::default();
        let quota = governor::Quota::per_second(rate.per_second).allow_burst(rate.burst);
        Self {
            principal: principal.into(),
            rate,
            limiter: RateLimiter::direct_with_clock(quota, now.clone()),
            now,
            unused: AtomicU32::new(0),
            unused_at: AtomicU64::new(0),
        }
    }

    /// Takes this many notifications at once, all or none.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] with the time after which they would be within the rate.
    pub(crate) fn take(&self, notifications: usize, now: Tick) -> Result<()> {
        let count = u32::try_from(notifications).unwrap_or(u32::MAX);
        // The burst is as large as a request may be.
        let count = count.min(self.rate.burst.get());
        self.now.0.fetch_max(now.as_nanos(), Relaxed);
        let unused = match self.unused.load(Relaxed) {
            0 => 0,
            _ => self.unused.swap(0, Relaxed),
        };
        let given_back = Tick::from_nanos(self.unused_at.load(Relaxed));
        let unused = match now.since(given_back) < UNUSED_FOR {
            true => unused,
            false => 0,
        };
        let reused = count.min(unused);
        self.add_unused(unused - reused);
        let Some(count) = NonZeroU32::new(count - reused) else {
            return Ok(());
        };
        match self.limiter.check_n(count) {
            Ok(Ok(())) | Err(_) => Ok(()),
            Ok(Err(not_until)) => {
                self.add_unused(reused);
                Err(self.exceeded(not_until.wait_time_from(self.now.now())))
            }
        }
    }

    /// Gives back what was taken for a request that counted nothing.
    pub(crate) fn give_back(&self, notifications: u32, now: Tick) {
        self.unused_at.store(now.as_nanos(), Relaxed);
        self.add_unused(notifications);
    }

    fn add_unused(&self, notifications: u32) {
        if notifications > 0 {
            let most = self.rate.burst.get();
            let add = |unused: u32| Some(unused.saturating_add(notifications).min(most));
            let _ = self.unused.fetch_update(Relaxed, Relaxed, add);
        }
    }

    #[cold]
    fn exceeded(&self, wait: Duration) -> Error {
        let (rate, principal) = (self.rate.per_second, &self.principal);
        let message = format!(
            "notify_rate: the limit of {rate} notifications a second of `{principal}` is reached"
        );
        Error::new(ErrorKind::Exhausted, message).with_retry_after(wait)
    }
}

impl Clock for LatestTime {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::new(self.0.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(streams: usize) -> Quota {
        Quota {
            streams: Some(streams),
            ..Quota::default()
        }
    }

    #[test]
    fn a_share_is_free_again_when_it_is_dropped() {
        let usage = Arc::new(Usage::new("billing"));
        let first = usage.take(Resource::Streams, 2, &quota(3)).expect("room");
        let error = usage
            .take(Resource::Streams, 2, &quota(3))
            .expect_err("none");
        assert_eq!(
            error.message(),
            "streams: the limit of 3 streams of `billing` is reached"
        );
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert_eq!(error.retry_after(), Some(RETRY_AFTER));
        assert!(usage.take(Resource::Connections, 2, &quota(3)).is_ok());
        drop(first);
        assert!(usage.take(Resource::Streams, 3, &quota(3)).is_ok());
        // A lower limit leaves the present streams.
        let held = usage.take(Resource::Streams, 3, &quota(3)).expect("room");
        assert!(usage.take(Resource::Streams, 1, &quota(2)).is_err());
        drop(held);
        assert!(usage.take(Resource::Streams, 1, &quota(2)).is_ok());
    }

    /// A principal whose credentials state different groups must not earn a new burst by changing them.
    #[test]
    fn each_rate_of_a_principal_is_used_up_by_itself() {
        let usage = Usage::new("billing");
        let number = |number| NonZeroU32::new(number).expect("positive");
        let of = |per_second| Quota {
            notifications: Some(NotifyRate {
                per_second: number(per_second),
                burst: number(1024),
            }),
            ..Quota::default()
        };
        let now = Tick::default();
        let take = |per_second, now| {
            let rate = usage.rate(&of(per_second)).expect("a rate");
            rate.take(1024, now)
        };
        take(100, now).expect("its burst");
        take(200, now).expect("its burst");
        assert!(take(100, now).is_err());
        assert!(take(200, now).is_err());
        // Former rates leave.
        for per_second in 1000..2000 {
            take(per_second, now).expect("its burst");
        }
        assert!(lock(&usage.rates).len() <= MOST_RATES);
    }

    #[test]
    fn what_a_refused_request_took_is_there_for_the_next_one() {
        let number = |number| NonZeroU32::new(number).expect("positive");
        let rate = NotifyRate {
            per_second: number(100),
            burst: number(1024),
        };
        let rate = RateOfNotify::new("billing", rate);
        let now = Tick::default();
        rate.take(1024, now).expect("the burst");
        rate.give_back(1000, now);
        rate.take(600, now).expect("a part of it");
        assert!(rate.take(500, now).is_err(), "more than the rest");
        rate.take(400, now).expect("the rest");
        assert!(rate.take(1, now).is_err());
        rate.give_back(1000, now);
        let later = now + Duration::from_secs(1);
        assert!(rate.take(101, later).is_err(), "beside what was earned");
    }

    #[test]
    fn a_rate_has_a_burst_and_is_earned_again_with_time() {
        let number = |number| NonZeroU32::new(number).expect("positive");
        let rate = NotifyRate {
            per_second: number(100),
            burst: number(1024),
        };
        let rate = RateOfNotify::new("billing", rate);
        let start = Tick::default() + Duration::from_secs(60);
        rate.take(1024, start).expect("the burst");
        let error = rate.take(100, start).expect_err("nothing is left");
        assert!(
            error.message().starts_with("notify_rate: the limit of 100"),
            "{error}"
        );
        let wait = error.retry_after().expect("a time");
        assert!(wait <= Duration::from_secs(1), "{wait:?}");
        assert!(rate.take(100, start + wait / 2).is_err());
        rate.take(100, start + wait).expect("a second's");
        assert!(rate.take(1, start + wait).is_err());
        // A clock that another thread has read earlier takes nothing back.
        assert!(rate.take(1, start).is_err());
        rate.take(0, start).expect("nothing");
        rate.take(5000, start + Duration::from_secs(60))
            .expect("no more than the burst counts");
    }
}
