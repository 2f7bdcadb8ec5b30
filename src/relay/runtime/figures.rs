//! A relay's own figures at one moment: counts since its start, and present numbers.

use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, SystemTime},
};

use super::{Refused, Relay, RelayInner, Sample, Tariff, history::Resolution};
use crate::{base::sync::lock, relay::hub::HubStats};

/// The figures of one relay, all read from counters.
#[derive(Debug, Clone)]
pub(crate) struct RelayFigures {
    pub(crate) uptime: Duration,
    pub(crate) hub: HubStats,
    pub(crate) wakes: u64,
    pub(crate) wake_entries: u64,
    pub(crate) heartbeats: u64,
    pub(crate) refused: u64,
    pub(crate) wake_latency: Buckets,
    pub(crate) handler_latency: Buckets,
    pub(crate) polls_avoided: u64,
}

/// The counts of a histogram, one more than its bounds.
#[derive(Debug, Clone)]
pub(crate) struct Buckets {
    pub(crate) bounds: &'static [Duration],
    pub(crate) counts: Vec<u64>,
}

impl RelayFigures {
    /// Returns the streams that are neither awake nor polling.
    pub(crate) fn asleep(&self) -> u64 {
        let load = &self.hub.load;
        let others = load.awake + load.polling;
        self.hub.subscriptions.saturating_sub(others)
    }
}

impl RelayInner {
    pub(super) fn figures(&self) -> RelayFigures {
        let (counters, now) = (&self.counters, self.clock.now());
        let refused = [Refused::Notify, Refused::Subscribe, Refused::Report];
        let buckets = |of: &crate::base::histogram::Histogram| Buckets {
            bounds: of.bounds(),
            counts: of.counts(),
        };
        RelayFigures {
            uptime: now.since(crate::base::clock::Tick::default()),
            hub: self.hub.stats(),
            wakes: counters.wakes.load(Relaxed),
            wake_entries: counters.entries.load(Relaxed),
            heartbeats: counters.heartbeats.load(Relaxed),
            refused: refused.iter().map(|of| counters.refusals.count(*of)).sum(),
            wake_latency: buckets(&counters.wake_latency),
            handler_latency: buckets(&counters.handler_latency),
            polls_avoided: self.hub.polls_avoided(now),
        }
    }
}

impl Relay {
    pub(crate) fn figures(&self) -> RelayFigures {
        self.shared.figures()
    }

    pub(crate) fn tariff(&self) -> &Tariff {
        &self.shared.tariff
    }

    /// Returns the samples of the last day by minutes, or of the last ten minutes by seconds, oldest
    /// first, and the time of the newest one.
    pub(crate) fn history(&self, day: bool) -> (Duration, Vec<Sample>, Option<SystemTime>) {
        let resolution = match day {
            true => Resolution::Minutes,
            false => Resolution::Seconds,
        };
        let (samples, newest_at) = lock(&self.shared.history).samples(resolution);
        (resolution.interval(), samples, newest_at)
    }
}
