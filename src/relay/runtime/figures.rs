//! A relay's own figures: counts since its start and present numbers. With a survey of the listeners, for
//! what operators are told about them.

use std::{
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Duration,
};

use super::{Refused, Relay, RelayConfig, SilentRelays};
use crate::{
    base::{clock::Tick, histogram::Histogram, sync::lock},
    relay::hub::{ListenerSurvey, UnservedQueue},
    wire::proto::{LatencyBuckets, Levels, Totals},
};

/// The figures of one relay, all read from counters.
#[derive(Debug)]
pub(crate) struct RelayFigures {
    pub(crate) uptime: Duration,
    pub(crate) totals: Totals,
    /// Without those of connections and flags.
    pub(crate) levels: Levels,
    pub(crate) polls_avoided: u64,
}

/// What the relay's listeners need, and the queues without one.
#[derive(Debug, Default)]
pub(crate) struct RelaySurvey {
    pub(crate) listeners: ListenerSurvey,
    /// The newest first.
    pub(crate) unserved: Vec<UnservedQueue>,
}

/// The newest survey.
#[derive(Debug, Default)]
pub(super) struct SurveyCache(Mutex<Option<(Tick, Arc<RelaySurvey>)>>);

/// A survey locks each subscription and asks the other relays, so it is repeated no more often.
const SURVEY_EVERY: Duration = Duration::from_secs(5);
/// Queues about which the other relays are asked.
const UNSERVED: usize = 8;

impl Relay {
    pub(crate) fn figures(&self) -> RelayFigures {
        let (hub, counters) = self.stats();
        let now = self.now();
        let refused = [Refused::Notify, Refused::Subscribe, Refused::Report];
        let refused = refused.map(|of| counters.refusals.count(of as usize));
        let load = &hub.load;
        RelayFigures {
            uptime: now.since(Tick::default()),
            totals: Totals {
                notifications: hub.notified,
                messages: hub.messages,
                wakes: counters.wakes.load(Relaxed),
                wake_entries: counters.entries.load(Relaxed),
                timed: hub.timed,
                heartbeats: counters.heartbeats.load(Relaxed),
                catch_ups: load.catch_ups,
                sentinels: load.sentinels,
                reassigned: load.reassigned,
                refused: refused.iter().sum(),
                wake_latency: Some(buckets(&counters.wake_latency)),
                handler_latency: Some(buckets(&counters.handler_latency)),
            },
            levels: Levels {
                queues: hub.queues,
                subscriptions: hub.subscriptions,
                asleep: hub.subscriptions.saturating_sub(load.awake + load.polling),
                awake: load.awake,
                polling: load.polling,
                active_dequeue_tasks: load.tasks,
                timers: hub.timers,
                unassigned: hub.unassigned,
                ..Levels::default()
            },
            polls_avoided: self.hub().polls_avoided(now),
        }
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
            let is_served = self.may_have_listener_elsewhere(&one.queue, &mut silent);
            if !is_served.await {
                survey.unserved.push(one);
            }
        }
        let survey = Arc::new(survey);
        *lock(&self.shared.survey.0) = Some((now, Arc::clone(&survey)));
        survey
    }
}

fn buckets(histogram: &Histogram) -> LatencyBuckets {
    let buckets = histogram.snapshot();
    let micros = |bound: &Duration| u64::try_from(bound.as_micros()).unwrap_or(u64::MAX);
    LatencyBuckets {
        bounds_us: buckets.bounds.iter().map(micros).collect(),
        counts: buckets.counts,
    }
}
