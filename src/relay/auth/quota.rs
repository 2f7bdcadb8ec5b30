//! How much a principal may use: the settings of the tables `[[limit]]`.

use std::num::NonZeroU32;

/// How much a principal may use at one time, over all of its credentials and connections. `None` is no
/// limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Notifications a second, and the most at once.
    pub notifications: Option<NotifyRate>,
    /// Connections. A connection that several principals use counts for the first.
    pub connections: Option<usize>,
    /// Open streams of any kind: subscriptions, watches, publishers' streams, hand-overs.
    pub streams: Option<usize>,
    /// Selectors of all subscriptions.
    pub selectors: Option<usize>,
    /// Queues that all subscriptions together are attached to. A pattern that matches more gets
    /// wake-ups for the rest under its own name.
    pub subscribed_queues: Option<usize>,
}

/// A rate of notifications. The events of a request count, also those that are merged later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotifyRate {
    /// Notifications a second in the long run.
    pub per_second: NonZeroU32,
    /// Notifications at once after a pause; at least those of the largest request.
    pub burst: NonZeroU32,
}

/// The settings of a table `[[limit]]`. A setting that is absent is left to the next table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct QuotaChange {
    pub(super) notify_rate: Option<u32>,
    pub(super) notify_burst: Option<u32>,
    pub(super) connections: Option<usize>,
    pub(super) streams: Option<usize>,
    pub(super) selectors: Option<usize>,
    pub(super) subscribed_queues: Option<usize>,
}

/// A notification takes some ten microseconds of the relay with its wake-ups. So one principal uses a
/// tenth of a processor core in the long run.
const NOTIFY_RATE: u32 = 10_000;
const NOTIFY_BURST: u32 = 20_000;
const CONNECTIONS: usize = 1024;
const STREAMS: usize = 1000;
const SELECTORS: usize = 100_000;
/// A quarter of those of the relay.
const SUBSCRIBED_QUEUES: usize = 500_000;

impl QuotaChange {
    /// The settings of a relay without a table `[[limit]]`.
    const DEFAULT: Self = Self {
        notify_rate: Some(NOTIFY_RATE),
        notify_burst: Some(NOTIFY_BURST),
        connections: Some(CONNECTIONS),
        streams: Some(STREAMS),
        selectors: Some(SELECTORS),
        subscribed_queues: Some(SUBSCRIBED_QUEUES),
    };

    /// Takes the absent settings from another table.
    fn or(self, next: &Self) -> Self {
        Self {
            notify_rate: self.notify_rate.or(next.notify_rate),
            notify_burst: self.notify_burst.or(next.notify_burst),
            connections: self.connections.or(next.connections),
            streams: self.streams.or(next.streams),
            selectors: self.selectors.or(next.selectors),
            subscribed_queues: self.subscribed_queues.or(next.subscribed_queues),
        }
    }
}

impl Quota {
    /// Combines the tables that apply to a principal: of each setting the first one counts, then the
    /// default.
    pub(super) fn of<'a>(changes: impl IntoIterator<Item = &'a QuotaChange>) -> Self {
        let all = changes
            .into_iter()
            .fold(QuotaChange::default(), QuotaChange::or)
            .or(&QuotaChange::DEFAULT);
        let limit = |stated: Option<usize>| stated.filter(|stated| *stated > 0);
        let rate = all.notify_rate.and_then(NonZeroU32::new);
        let burst = all.notify_burst.and_then(NonZeroU32::new);
        Self {
            notifications: rate
                .zip(burst)
                .map(|(per_second, burst)| NotifyRate { per_second, burst }),
            connections: limit(all.connections),
            streams: limit(all.streams),
            selectors: limit(all.selectors),
            subscribed_queues: limit(all.subscribed_queues),
        }
    }
}

impl Default for Quota {
    fn default() -> Self {
        Self::of([])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_setting_the_first_table_counts_then_the_default() {
        let first = QuotaChange {
            streams: Some(5),
            ..QuotaChange::default()
        };
        let second = QuotaChange {
            streams: Some(7),
            connections: Some(0),
            notify_rate: Some(50),
            ..QuotaChange::default()
        };
        let quota = Quota::of([&first, &second]);
        assert_eq!((quota.streams, quota.connections), (Some(5), None));
        let rate = quota.notifications.expect("a rate");
        assert_eq!(
            (rate.per_second.get(), rate.burst.get()),
            (50, NOTIFY_BURST)
        );
        assert_eq!(quota.selectors, Quota::default().selectors);
        let open = QuotaChange {
            notify_rate: Some(0),
            ..QuotaChange::default()
        };
        assert_eq!(Quota::of([&open]).notifications, None);
    }
}
