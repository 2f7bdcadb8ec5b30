//! A relay's own figures: counts since its start and present numbers, and those of the last ten minutes by
//! seconds and of the last day by minutes.
//!
//! With a survey of the listeners, for what operators are told about them.
//!
//! The history is two rings of 600 and 1,440 samples for the whole relay, 72 bytes each: 144 KiB. No queue
//! has one. A plain structure: its owner locks it, and pushes the figures once a second.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::{Duration, SystemTime},
};

use super::{Refused, Relay, RelayConfig, RelayInner, SilentRelays};
use crate::{
    base::{
        clock::{Tick, nanos},
        histogram::Histogram,
        sync::lock,
    },
    relay::hub::{ListenerSurvey, QueueStats},
    wire::{
        proto::{GetHistoryResponse, LatencyBuckets, Levels, Sample, Totals},
        span_to_wire,
    },
};

/// The figures of one relay, all read from counters.
#[derive(Debug, Clone, Default)]
pub(crate) struct RelayFigures {
    pub(crate) uptime: Duration,
    pub(crate) totals: Totals,
    /// Without those of connections and flags.
    pub(crate) levels: Levels,
    pub(crate) polls_avoided: u64,
}

/// The samples so far.
#[derive(Debug, Default)]
pub(super) struct History {
    seconds: Ring,
    minutes: Ring,
    pushed: u64,
}

#[derive(Debug, Default)]
struct Ring {
    samples: VecDeque<Sample>,
    /// The figures at the newest sample.
    before: RelayFigures,
    newest_at: Option<SystemTime>,
}

/// What the relay's listeners need, and the queues without one.
#[derive(Debug, Default)]
pub(crate) struct RelaySurvey {
    pub(crate) listeners: ListenerSurvey,
    /// The newest first.
    pub(crate) unserved: Vec<QueueStats>,
}

/// The newest survey.
#[derive(Debug, Default)]
pub(super) struct SurveyCache(Mutex<Option<(Tick, Arc<RelaySurvey>)>>);

/// Samples by seconds, and by minutes.
const SECONDS: usize = 600;
const MINUTES: usize = 1_440;
/// Seconds of a minute's sample.
const MINUTE: u64 = 60;

/// A survey locks each subscription and asks the other relays, so it is repeated no more often.
const SURVEY_EVERY: Duration = Duration::from_secs(5);
/// Queues about which the other relays are asked.
const UNSERVED: usize = 8;

impl RelayInner {
    pub(super) fn figures(&self) -> RelayFigures {
        let (hub, counters, now) = (self.hub.stats(), &self.counters, self.clock.now());
        let refused = [Refused::Notify, Refused::Subscribe, Refused::Report];
        let refused = refused.map(|of| counters.refusals.count(of as usize));
        RelayFigures {
            uptime: now.since(Tick::default()),
            totals: Totals {
                notifications: hub.notified,
                messages: hub.messages,
                wakes: counters.wakes.load(Relaxed),
                wake_entries: counters.entries.load(Relaxed),
                timed: hub.timed,
                heartbeats: counters.heartbeats.load(Relaxed),
                catch_ups: hub.catch_ups,
                sentinels: hub.sentinels,
                reassigned: hub.reassigned,
                refused: refused.iter().sum(),
                wake_latency: Some(buckets(&counters.wake_latency)),
                handler_latency: Some(buckets(&counters.handler_latency)),
            },
            levels: Levels {
                queues: hub.queues,
                subscriptions: hub.subscriptions,
                asleep: hub.subscriptions.saturating_sub(hub.awake + hub.polling),
                awake: hub.awake,
                polling: hub.polling,
                active_dequeue_tasks: hub.tasks,
                timers: hub.timers,
                unassigned: hub.unassigned,
                ..Levels::default()
            },
            polls_avoided: self.hub.polls_avoided(now),
        }
    }
}

impl Relay {
    pub(crate) fn figures(&self) -> RelayFigures {
        self.shared.figures()
    }

    pub(crate) fn config(&self) -> &RelayConfig {
        &self.shared.config
    }

    /// Surveys the relay; the result is at most five seconds old.
    pub(crate) async fn survey(&self) -> Arc<RelaySurvey> {
        let now = self.shared.clock.now();
        let cached = lock(&self.shared.survey.0).clone();
        if let Some((at, survey)) = cached
            && now.since(at) < SURVEY_EVERY
        {
            return survey;
        }
        let (mut survey, mut after) = (RelaySurvey::default(), None);
        loop {
            after = self.shared.hub.survey(after, &mut survey.listeners, now);
            if after.is_none() {
                break;
            }
            tokio::task::yield_now().await;
        }
        let mut silent = SilentRelays::default();
        let unserved = self.shared.hub.unserved_queues(now);
        for one in unserved.into_iter().take(UNSERVED) {
            let is_served = self.may_have_listener_elsewhere(&one.address, &mut silent);
            if !is_served.await {
                survey.unserved.push(one);
            }
        }
        let survey = Arc::new(survey);
        *lock(&self.shared.survey.0) = Some((now, Arc::clone(&survey)));
        survey
    }

    /// Returns the samples of the last day by minutes, or of the last ten minutes by seconds, oldest
    /// first.
    pub(crate) fn history(&self, day: bool) -> GetHistoryResponse {
        let history = lock(&self.shared.history);
        let (ring, seconds) = match day {
            true => (&history.minutes, MINUTE),
            false => (&history.seconds, 1),
        };
        GetHistoryResponse {
            relay_id: self.relay_id().to_owned(),
            newest_at: ring.newest_at.map(Into::into),
            interval: Some(span_to_wire(Duration::from_secs(seconds))),
            samples: ring.samples.iter().copied().collect(),
        }
    }
}

impl History {
    /// Adds the figures at the end of a second.
    pub(super) fn push(&mut self, figures: &RelayFigures, at: SystemTime) {
        self.pushed += 1;
        self.seconds.push(figures, at, SECONDS);
        if self.pushed.is_multiple_of(MINUTE) {
            self.minutes.push(figures, at, MINUTES);
        }
    }
}

impl Ring {
    fn push(&mut self, figures: &RelayFigures, at: SystemTime, room: usize) {
        let before = std::mem::replace(&mut self.before, figures.clone());
        let (totals, levels) = (&figures.totals, &figures.levels);
        let latency = |of: &Totals| of.wake_latency.clone().unwrap_or_default();
        let latencies = (latency(totals), latency(&before.totals));
        let quantile = |percent| quantile_us(&latencies.0, &latencies.1.counts, percent);
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let sample = Sample {
            notifications: since(totals.notifications, before.totals.notifications),
            wake_entries: since(totals.wake_entries, before.totals.wake_entries),
            polls_avoided: since(figures.polls_avoided, before.polls_avoided),
            asleep: levels.asleep,
            awake: levels.awake,
            polling: levels.polling,
            active_dequeue_tasks: levels.active_dequeue_tasks,
            wake_p50_us: quantile(50),
            wake_p99_us: quantile(99),
        };
        if self.samples.len() == room {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        self.newest_at = Some(at);
    }
}

fn buckets(histogram: &Histogram) -> LatencyBuckets {
    let buckets = histogram.snapshot();
    let micros = |bound: &f64| nanos(Duration::from_secs_f64(*bound)) / 1_000;
    LatencyBuckets {
        bounds_us: buckets.bounds.iter().map(micros).collect(),
        counts: buckets.counts,
    }
}

/// Returns the bound of the bucket that has this percentile of the latencies since `before`, in
/// microseconds; 0 without any. Latencies above the last bound have that bound.
fn quantile_us(latency: &LatencyBuckets, before: &[u64], percent: u64) -> u64 {
    let before = before.iter().copied().chain(std::iter::repeat(0));
    let counts = latency.counts.iter().zip(before);
    let counts: Vec<u64> = counts.map(|(now, then)| now.saturating_sub(then)).collect();
    let all: u64 = counts.iter().sum();
    let rank = (all * percent).div_ceil(100).max(1);
    let mut below = 0;
    let reaches = |count: &u64| {
        below += count;
        below >= rank
    };
    let bounds = &latency.bounds_us;
    let bound = counts.iter().position(reaches);
    let bound = bound.and_then(|at| bounds.get(at).or_else(|| bounds.last()));
    bound.copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(notified: u64, latency: [u64; 3]) -> RelayFigures {
        RelayFigures {
            totals: Totals {
                notifications: notified,
                wake_entries: notified * 2,
                wake_latency: Some(LatencyBuckets {
                    bounds_us: vec![100, 1_000],
                    counts: latency.to_vec(),
                }),
                ..Totals::default()
            },
            levels: Levels {
                asleep: 3,
                awake: 1,
                polling: 1,
                active_dequeue_tasks: 7,
                ..Levels::default()
            },
            polls_avoided: notified * 3,
            ..RelayFigures::default()
        }
    }

    #[test]
    fn a_sample_has_the_increments_and_the_levels_of_its_interval() {
        let (mut history, at) = (History::default(), SystemTime::UNIX_EPOCH);
        history.push(&figures(10, [99, 1, 0]), at);
        history.push(&figures(25, [99, 2, 1]), at + Duration::from_secs(1));
        history.push(&figures(25, [99, 2, 1]), at + Duration::from_secs(2));
        let (samples, newest_at) = (&history.seconds.samples, history.seconds.newest_at);
        assert_eq!(newest_at, Some(at + Duration::from_secs(2)));
        let counted = |sample: &Sample| (sample.notifications, sample.wake_entries);
        let counted: Vec<_> = samples.iter().map(counted).collect();
        assert_eq!(counted, [(10, 20), (15, 30), (0, 0)]);
        assert_eq!(samples[1].polls_avoided, 45);
        let levels = |one: &Sample| (one.asleep, one.awake, one.polling, one.active_dequeue_tasks);
        assert_eq!(levels(&samples[2]), (3, 1, 1, 7));
        let latency = |one: &Sample| (one.wake_p50_us, one.wake_p99_us);
        let latency: Vec<_> = samples.iter().map(latency).collect();
        assert_eq!(latency, [(100, 100), (1_000, 1_000), (0, 0)]);
    }

    #[test]
    fn the_rings_have_ten_minutes_and_a_day() {
        let mut history = History::default();
        for second in 1..=90_000 {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
            history.push(&figures(second, [0; 3]), at);
        }
        let seconds = &history.seconds.samples;
        let (minutes, newest_at) = (&history.minutes.samples, history.minutes.newest_at);
        assert_eq!((seconds.len(), minutes.len()), (600, 1_440));
        assert!(seconds.iter().all(|sample| sample.notifications == 1));
        assert!(minutes.iter().all(|sample| sample.notifications == 60));
        let newest = SystemTime::UNIX_EPOCH + Duration::from_secs(90_000);
        assert_eq!(newest_at, Some(newest));
        assert!(size_of::<Sample>() * (600 + 1_440) <= 144 * 1024);
    }
}
